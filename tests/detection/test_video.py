"""Frames come from where a reader says, or an error says why not; what is written can be read again."""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from metallab import isolated, timing
from metallab.checks import Mismatch
from metallab.detection import video
from metallab.timing import Host

os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # video.py sets it, too late if another test has read a film


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.delenv("SOURCE", raising=False)


def moving(count=12, height=48, width=64):
    """A red square that goes to the right over blue, bright enough to survive compression."""
    for i in range(count):
        frame = np.full((height, width, 3), (0, 0, 200), np.uint8)
        frame[16:32, 4 * i : 4 * i + 16] = (220, 0, 0)
        yield frame


def is_alike(a, b, most=25):
    return a.shape == b.shape and np.abs(a.astype(int) - b).mean() < most


def test_pictures_come_in_the_order_of_their_names(tmp_path):
    frames = list(moving(3))
    for name, frame in zip(("b.png", "a.png", "c.PNG"), frames, strict=True):
        Image.fromarray(frame).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    source = video.open_source(str(tmp_path))
    got = source.take(9)
    assert [np.array_equal(a, frames[i]) for a, i in zip(got, (1, 0, 2), strict=True)] == [True] * 3
    assert np.array_equal(video.open_source(str(tmp_path / "b.png")).take(9)[0], frames[0])
    assert "pictures in" in source.name


def test_a_film_that_was_written_is_read_again(tmp_path):
    import cv2

    frames = list(moving())
    path = video.write_film(tmp_path / "new" / "film.mp4", iter(frames), 10)
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FPS) == pytest.approx(10)
    got = video.open_source(str(path)).take(99)
    assert len(got) == len(frames)
    assert all(is_alike(a, b) for a, b in zip(got, frames, strict=True))
    assert not is_alike(got[0], got[-1], most=10), "the square moves"
    assert [p.name for p in path.parent.iterdir()] == ["film.mp4"]


def test_a_preview_moves_at_its_rate():
    import io

    picture = Image.open(io.BytesIO(video.preview(moving(), 20, width=128)))
    assert (picture.n_frames, picture.size) == (12, (128, 96))
    picture.seek(11)
    picture.load()  # which reads how long it is shown
    last = np.asarray(picture.convert("RGB").resize((64, 48)))
    assert picture.info["duration"] == 50
    assert is_alike(last, list(moving())[11])


@pytest.mark.parametrize("seconds", [0.01, 0.2, 3.0])
@pytest.mark.parametrize("others", [0.0, 1.0], ids=["quiet", "busy"])
def test_a_page_shows_a_film_that_moves(seconds, others):
    """However slow the panes were, and whether or not their rates may be told: never one picture for seconds."""
    import io

    frames = [np.full((48, 64, 3), 10 * n, np.uint8) for n in range(24)]
    measured = {
        name: timing.Measurement(
            name, samples=(times * seconds,) * 24, first_call=seconds, question="latency", block=1, warmup_calls=2,
            stop_reason="all", mode="full", others=others, **timing.described(Host("Chip X")),
        )
        for name, times in (("slow", 1.0), ("quick", 0.5))
    }  # fmt: skip
    compared = timing.compare_samples(measured, baseline="slow", name="film", parity="the same boxes")
    finished = {name: [(m.samples[0], frame) for frame in frames] for name, m in measured.items()}
    filmed = video.Filmed(finished, {name: [["a box"]] * 24 for name in finished}, compared)
    assert bool(filmed.doubt) == bool(others)
    page = filmed._repr_html_()
    film = Image.open(io.BytesIO(base64.b64decode(page.partition("base64,")[2].partition('"')[0])))
    durations = []
    for index in range(film.n_frames):
        film.seek(index)
        film.load()  # which reads how long it is shown
        durations.append(film.info["duration"])
    told = "one frame after the other" if others else "times as fast as it happened"
    assert (told in page) == bool(others or seconds == 3.0)
    assert sum(durations) <= 1000 * (video.PREVIEW + 1) / video.FILM_RATE
    assert film.n_frames >= (24 if others or seconds > 0.1 else 3)
    assert max(durations[:-1]) < 400


def test_scenes_are_the_default(monkeypatch):
    source = video.open_source(size=(96, 160))
    assert source.generated
    assert "seed" in source.name
    first = source.take(2)
    assert [frame.shape for frame in first] == [(96, 160, 3)] * 2
    assert np.array_equal(video.open_source("", size=(96, 160)).take(1)[0], first[0])
    monkeypatch.setenv("SOURCE", "nowhere.mp4")
    with pytest.raises(video.SourceError):
        video.open_source()
    assert video.open_source("").generated, "what is given counts more than the environment"


def test_the_two_photographs_are_there():
    photographs = video.open_source("photographs")
    got = photographs.take(9)
    assert len(got) == 2
    assert not photographs.generated
    assert all(frame.dtype == np.uint8 and min(frame.shape[:2]) > 500 for frame in got)


def test_what_cannot_be_had_is_told_and_the_default_offered(tmp_path, capfd):
    """Also where ultralytics has changed what Pillow does with a file that it does not know."""
    import ultralytics.utils.patches  # noqa: F401

    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    (tmp_path / "torn.mp4").write_bytes(b"no film at all" * 100)
    (tmp_path / "text.txt").write_text("hello")
    for name, message in (
        ("none.mp4", "no such file or folder"),
        ("empty", "no pictures"),
        ("torn.png", "cannot be read as a picture"),
        ("torn.mp4", "torn.mp4 gives no frames: it is damaged"),
        ("text.txt", "neither a picture"),
        (None, "webcam 97 gives no frames: is a camera attached"),
    ):
        with pytest.raises(video.SourceError, match=message) as caught:
            video.open_source(str(tmp_path / name) if name else "97")
        assert "unset SOURCE for the generated scenes" in str(caught.value)
    with pytest.raises(video.SourceError, match="no such file or folder"):
        video.open_source("²")
    with pytest.raises(video.SourceError, match="finds nothing in 2 frames: choose another SOURCE"):
        video.assert_something([[], []])
    video.assert_something([[], [1]])
    with pytest.raises(video.SourceError, match="not a single frame"):
        video.Source("nothing", iter(())).take(1)
    assert capfd.readouterr().err == ""


def test_films_want_frames_of_one_size(tmp_path):
    for frames in ([], [np.zeros((8, 8, 3), np.uint8), np.zeros((8, 16, 3), np.uint8)]):
        for write in (lambda f: video.write_film(tmp_path / "x.mp4", f, 5), lambda f: video.preview(f, 5)):
            with pytest.raises(ValueError, match="one size"):
                write(frames)
    assert not list(tmp_path.iterdir())


def test_a_race_shows_what_was_finished_by_then(monkeypatch):
    """A pane that needs 1/4 s a frame beside one that needs 1/2 s, in a film of 4 pictures a second."""
    captions = []
    monkeypatch.setattr(video.boxes, "captioned", lambda frame, caption: captions.append(caption) or frame)
    pictures = [np.full((4, 4, 3), 10 * (i + 1), np.uint8) for i in range(3)]
    finished = {"quick": [(0.25, p) for p in pictures], "slow": [(0.5, p) for p in pictures]}
    film = video.race(finished, lambda name, done: f"{name} {done}", rate=4, size=(8, 16))
    assert {f.shape for f in film} == {(8, 40, 3)}
    assert [int(f[4, 8, 0]) for f in film] == [10, 10, 20, 30, 30, 30, 30]
    assert [int(f[4, -8, 0]) for f in film] == [10, 10, 10, 10, 20, 20, 30]
    assert captions[-2:] == ["quick 3", "slow 3"]
    assert captions[:4] == ["quick 0", "slow 0", "quick 1", "slow 0"]
    for nothing in ({}, {"quick": []}):
        with pytest.raises(ValueError, match="nothing was finished"):
            video.race(nothing)


def test_a_film_tells_no_more_than_its_times_allow(monkeypatch):
    """Panes of 0.1 s and 0.2 s a frame on a quiet machine; on a busy one, or with too few frames, none runs ahead."""
    now, others = [5.0], [0.0]
    monkeypatch.setattr(video, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    counted = contextlib.nullcontext(SimpleNamespace(cores=lambda: others[0]))
    monkeypatch.setattr(video.timing, "undisturbed", lambda: counted)
    monkeypatch.setattr(video.mode, "current", lambda: "full")
    monkeypatch.setattr(video.boxes, "captioned", lambda frame, caption: frame)
    seen = []

    def pane(seconds):
        def finish(frame):
            now[0] += seconds
            seen.append(int(frame[0, 0, 0]))
            return frame, ["a box"]

        return finish

    def filmed(count, parity=lambda reference, result: None, seconds=9.0):
        frames = [np.full((48, 64, 3), 10 * n, np.uint8) for n in range(count)]
        on, same = (dict.fromkeys(("quick", "slow"), value) for value in (Host("Chip X"), parity))
        panes = {"slow": pane(0.2), "quick": pane(0.1)}
        return video.film(panes, frames, on=on, baseline="slow", parity=same, seconds=seconds)

    quiet = filmed(8)
    assert seen[:8] == [0, 0, 0, 0, 0, 0, 10, 10], "the first frame warms each pane up, then they take turns"
    assert {name: len(each) for name, each in quiet.boxes.items()} == {"slow": 8, "quick": 8}
    assert quiet.sentences[:2] == [
        "8 boxes in 8 frames, the same in every pane.", "slow: 5.0 frames/s. quick: 10.0 frames/s.",
    ]  # fmt: skip
    assert quiet.sentences[2].startswith(
        "Frame by frame, in the median, quick is 2.00 times as fast as slow (95 % interval"
    )
    assert not quiet.left_out
    short = filmed(60, seconds=9.6)
    assert len(short.finished["quick"]) == 30
    assert "30 of 60 frames of the film (300 ms each)" in repr(short)
    rushed = filmed(60, seconds=1.0)
    assert len(rushed.finished["quick"]) == 12, "a film of a few frames shows nothing"
    assert "48 of 60 frames of the film (300 ms each; 12 are always taken)" in repr(rushed)
    assert [quiet.caption("quick", n) for n in (0, 4, 8)] == [
        "quick: at its first frame", "quick: 10.0 frames/s", "quick: 10.0 frames/s, all done",
    ]  # fmt: skip
    apart = sum(not np.array_equal(film[:384, :640], film[:384, -640:]) for film in quiet.pictures(rate=10))
    assert apart > 5, "the quick pane is ahead"
    others[0] = 1.0
    for count, words in ((8, "no rate, busy machine"), (3, "no rate, too few frames")):
        doubtful = filmed(count)
        others[0] = 0.0
        assert doubtful.caption("quick", 2) == f"quick: {words}"
        assert "frames/s" not in doubtful.caption("slow", count)
        for film in doubtful.pictures(rate=10):
            assert np.array_equal(film[:384, :640], film[:384, -640:]), "no pane runs ahead"
        assert "The film shows one frame after the other" in doubtful._repr_html_()

    def differ(reference, result):
        raise Mismatch("a box is missing; another one is there")

    wrong = filmed(8, differ)
    assert repr(wrong) == "No frame rates: quick: outputs differ: a box is missing."
    assert wrong.caption("quick", 8) == "quick: no rate, outputs differ, all done"
    assert not wrong.compared.paired, "nor in the report"
    assert 'alt="The same scene twice' in wrong._repr_html_()
    with pytest.raises(ValueError, match="no frame to film"):
        filmed(0)


def test_a_frame_is_fitted_as_a_whole():
    tall = np.full((100, 50, 3), 200, np.uint8)
    picture = video.fitted(tall, 40, 80)
    assert picture.shape == (40, 80, 3)
    bright = np.argwhere(picture[..., 0] > 100)
    assert (bright.min(axis=0).tolist(), bright.max(axis=0).tolist()) == ([0, 30], [39, 49])
    wide = video.fitted(np.full((10, 80, 3), 200, np.uint8), 40, 80)
    assert np.argwhere(wide[..., 0] > 100).min(axis=0).tolist() == [15, 0]


@pytest.mark.parametrize("taken", [5, 0])
def test_a_camera_is_let_go(monkeypatch, taken):
    """A stand-in for OpenCV's camera: it is released when the source is closed, wherever its frames are."""
    import cv2

    class Camera:
        released = False

        def __init__(self, which):
            assert which == 3
            Camera.now = self

        def isOpened(self):
            return True

        def read(self):
            return True, np.zeros((4, 4, 3), np.uint8)

        def release(self):
            self.released = True

    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    source = video.open_source("3")
    assert source.live
    assert len(list(itertools.islice(source.frames, taken))) == taken
    assert not Camera.now.released
    source.close()
    assert Camera.now.released
    assert not video.open_source("").live


def test_a_jpeg_is_one():
    import io

    frame = next(moving())
    assert is_alike(np.asarray(Image.open(io.BytesIO(video.jpeg(frame)))), frame)


def test_side_by_side():
    a, b = itertools.islice(moving(), 2)
    both = video.side_by_side(a, b, gap=4)
    assert both.shape == (48, 132, 3)
    assert np.array_equal(both[:, :64], a)
    assert (both[:, 64:68] == 255).all()
    assert np.array_equal(both[:, 68:], b)


def test_a_film_of_an_odd_size_loses_no_row_and_no_column(tmp_path):
    for height, width in ((63, 65), (64, 65), (63, 64), (1, 1)):
        frames = [np.full((height, width, 3), shade, np.uint8) for shade in (60, 120, 180)]
        got = video.open_source(str(video.write_film(tmp_path / "film.mp4", frames, 10))).take(9)
        assert len(got) == 3
        for was, now in zip(frames, got, strict=True):
            assert now.shape == (height + height % 2, width + width % 2, 3)
            assert np.abs(now.astype(int) - was[0, 0]).max() < 10, "the last row and column are like their neighbours"
        assert video.preview(frames, 10, width=9)[8:12] == b"WEBP"
    assert video.preview([np.zeros((2, 5000, 3), np.uint8)], 10)[8:12] == b"WEBP"


NO_FRAMES = {
    "of floats": np.zeros((8, 8, 3)),
    "of whole numbers": np.zeros((8, 8, 3), int),
    "grey": np.zeros((8, 8), np.uint8),
    "with transparency": np.zeros((8, 8, 4), np.uint8),
    "empty": np.zeros((0, 8, 3), np.uint8),
    "a tensor": torch.zeros(8, 8, 3, dtype=torch.uint8),
    "an array of another framework": SimpleNamespace(dtype=np.dtype("uint8"), shape=(8, 8, 3), size=192),
    "a list": [[[0, 0, 0]]],
    "none": None,
}


def test_what_is_no_frame_is_refused_in_a_line(tmp_path):
    good = np.zeros((8, 8, 3), np.uint8)
    for name, frame in NO_FRAMES.items():
        for use in (
            lambda f: video.write_film(tmp_path / "x.mp4", [f], 5),
            lambda f: video.write_film(tmp_path / "x.mp4", [good, f], 5),
            lambda f: video.preview([f, good], 5),
            lambda f: video.fitted(f, 16, 16),
            video.jpeg,
        ):
            with pytest.raises(
                ValueError, match=r"^a frame is a NumPy array, uint8 \(height, width, 3\) in RGB"
            ) as message:
                use(frame)
            assert "\n" not in str(message.value)
            assert ("(255 * frame)" in str(message.value)) == (name == "of floats")
    for rate in (0, -1, float("nan"), float("inf")):
        for use in (lambda r: video.write_film(tmp_path / "x.mp4", [good], r), lambda r: video.preview([good], r)):
            with pytest.raises(ValueError, match=r"^rate is .*: give the pictures a second, more than 0$"):
                use(rate)
    assert not list(tmp_path.iterdir())


def full_disk(limit=20_000):
    """No file may become longer than this: what a full disk does, and OpenCV says nothing of it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.skipif(sys.platform == "darwin", reason="AVFoundation may write in a process that the limit does not hold")
def test_a_film_that_the_disk_has_no_room_for_is_not_left_half_written(tmp_path):
    (tmp_path / "film.mp4").write_bytes(b"before")
    program = f"""
import numpy as np
from pathlib import Path
from test_video import full_disk
from metallab.detection import video
full_disk()
noise = np.random.default_rng(0).integers(0, 255, (20, 128, 128, 3), np.uint8)
try:
    video.write_film(Path({str(tmp_path)!r}, "film.mp4"), noise, 5)
except OSError as error:
    print(error)
"""
    ran = isolated.run(program, environment={"PYTHONPATH": str(Path(__file__).parent)})
    assert ran.ok, ran.detail
    assert "film.mp4 cannot be written" in ran.printed
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


@pytest.mark.parametrize("source", ["~nobody-of-this-name/film.mp4", "x" * 300, "99999999999"])
def test_what_no_file_and_no_camera_can_be_called_is_not_there(source):
    with pytest.raises(video.SourceError, match="no such file or folder"):
        video.open_source(source)


def test_hidden_files_of_a_folder_are_no_pictures(tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    (tmp_path / "._one.png").write_bytes(b"what macOS writes beside a file on other disks")
    assert len(video.open_source(str(tmp_path)).take(5)) == 1
