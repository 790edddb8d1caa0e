"""Frames come from where a reader says, or an error says why not; what is written can be read again."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import itertools
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from metallab.detection import video
from metallab.timing import Host


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
    picture = Image.open(io.BytesIO(video.preview(moving(), 20, width=128)))
    assert (picture.n_frames, picture.size) == (12, (128, 96))
    picture.seek(11)
    picture.load()  # which reads how long it is shown
    last = np.asarray(picture.convert("RGB").resize((64, 48)))
    assert picture.info["duration"] == 50
    assert is_alike(last, list(moving())[11])


def test_scenes_are_the_default(monkeypatch):
    source = video.open_source(size=(96, 160))
    assert "seed" in source.name
    first = source.take(2)
    assert [frame.shape for frame in first] == [(96, 160, 3)] * 2
    assert np.array_equal(video.open_source("", size=(96, 160)).take(1)[0], first[0])
    monkeypatch.setenv("SOURCE", "nowhere.mp4")
    with pytest.raises(video.SourceError):
        video.open_source()
    assert "seed" in video.open_source("").name, "what is given counts more than the environment"


def test_what_cannot_be_read_is_named_and_the_default_offered(tmp_path):
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


def test_films_need_frames_of_one_size(tmp_path):
    for frames in ([], [np.zeros((8, 8, 3), np.uint8), np.zeros((8, 16, 3), np.uint8)]):
        for write in (lambda f: video.write_film(tmp_path / "x.mp4", f, 5), lambda f: video.preview(f, 5)):
            with pytest.raises(ValueError, match="one size"):
                write(frames)
    for no_frame in (np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), torch.zeros(8, 8, 3, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="a frame is a NumPy array, uint8"):
            video.write_film(tmp_path / "x.mp4", [no_frame], 5)
    assert not list(tmp_path.iterdir())


@dataclasses.dataclass
class Pane:
    """Takes so many seconds of a planted clock for each frame."""

    seconds: float
    clock: list[float]
    boxes: Sequence = ((0, 0, 9, 9, 0.9, 1),)
    seen: list[int] = dataclasses.field(default_factory=list)
    on: Host = dataclasses.field(default_factory=lambda: Host("Chip X"))
    dtype: str = "float32"

    def __call__(self, frame):
        self.clock[0] += self.seconds
        self.seen.append(int(frame[0, 0, 0]))
        return frame, np.array(self.boxes)


@pytest.fixture
def filmed(monkeypatch):
    """Film panes of 0.2 s and 0.1 s a frame, on a machine that is quiet or not."""
    now = [5.0]
    monkeypatch.setattr(video, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(video.mode, "current", lambda: "full")
    monkeypatch.setattr(video.boxes, "captioned", lambda frame, caption: frame)

    def make(count, others=0.0, seconds=9.0, **about):
        load = contextlib.nullcontext(SimpleNamespace(cores=lambda: others))
        monkeypatch.setattr(video.timing, "undisturbed", lambda: load)
        frames = [np.full((48, 64, 3), 10 * n, np.uint8) for n in range(count)]
        make.panes = {"slow": Pane(0.2, now), "quick": Pane(0.1, now, **about)}
        return video.film(make.panes, frames, seconds)

    return make


def test_a_film_gives_rates_and_their_ratio(filmed):
    film = filmed(8)
    assert filmed.panes["quick"].seen == [0, 0, *range(0, 80, 10)], "the first frame warms up"
    same, rates, ratio = film.sentences
    assert same == "8 boxes in 8 frames, the same in every pane."
    assert rates == "slow: 5.0 frames/s. quick: 10.0 frames/s."
    assert "quick is 2.00 times as fast as slow (95 % interval" in ratio
    assert film.caption("quick") == "quick: 10.0 frames/s"
    assert not film.left_out
    pictures = film.pictures(rate=10)
    ahead = [(int(picture[192, -320, 0]), int(picture[192, 320, 0])) for picture in pictures]
    assert (ahead[0], ahead[-1]) == ((0, 0), (70, 70))
    assert all(quick >= slow for quick, slow in ahead)
    assert sum(quick > slow for quick, slow in ahead) > 5
    with pytest.raises(ValueError, match="no frame to film"):
        filmed(0)


@pytest.mark.parametrize(("seconds", "count", "left_out"), [(9.6, 30, "30 of 60"), (1.0, 12, "48 of 60")])
def test_a_slow_machine_films_fewer_frames(filmed, seconds, count, left_out):
    film = filmed(60, seconds=seconds)
    assert len(film.finished["quick"]) == count
    assert f"{left_out} frames of the film (300 ms each" in repr(film)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"count": 8, "others": 1.0}, "no rate, busy machine"),
        ({"count": 3}, "no rate, too few frames"),
        ({"count": 8, "boxes": [(0, 0, 3, 3, 0.9, 1)]}, "no rate, outputs differ"),
    ],
)
def test_rates_are_withheld_and_no_pane_runs_ahead(filmed, about, words):
    film = filmed(**about)
    assert film.caption("quick") == f"quick: {words}"
    assert "frames/s" not in repr(film)
    for picture in film.pictures():
        assert np.array_equal(picture[:, :640], picture[:, -640:])
    page = film._repr_html_()
    assert "one frame after the other" in page
    assert 'alt="The same scene twice' in page
    assert bool(film.compared.paired) != ("boxes" in about), "nor in the report"


@pytest.mark.parametrize("others", [0.0, 1.0], ids=["quiet", "busy"])
def test_a_page_shows_a_film_that_moves(filmed, others):
    page = filmed(24, others=others)._repr_html_()
    film = Image.open(io.BytesIO(base64.b64decode(page.partition("base64,")[2].partition('"')[0])))
    assert film.n_frames >= 24
    longer = filmed(60, others=others, seconds=99)._repr_html_()
    assert ("times as fast as it happened" in longer) == (not others)


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


@pytest.mark.parametrize("source", ["~nobody-of-this-name/film.mp4", "x" * 300, "99999999999"])
def test_what_no_file_and_no_camera_can_be_called_is_not_there(source):
    with pytest.raises(video.SourceError, match="no such file or folder"):
        video.open_source(source)


def test_hidden_files_of_a_folder_are_no_pictures(tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    (tmp_path / "._one.png").write_bytes(b"what macOS writes beside a file on other disks")
    assert len(video.open_source(str(tmp_path)).take(5)) == 1
