"""Frames from wherever a reader has them, and films of frames: what notebook 08 reads and writes.

A frame is a NumPy array, uint8 (height, width, 3), in RGB; OpenCV, which reads and writes the files, turns colours
around, and that stays inside this module.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import html
import io
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import mode, plots, timing
from metallab.allowance import Allowance
from metallab.checks import Mismatch
from metallab.detection import boxes, scenes

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
FILMS = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".gif")
SEED = 2026
"""Of the generated scenes; the detector was trained on others."""

FILM_RATE = 12.0
"""Pictures a second of a film that compares."""

PREVIEW = 72
"""Pictures that a page shows of such a film, about: a longer one plays faster."""

ENCODERS = ("avc1", "mp4v") if sys.platform == "darwin" else ("mp4v",)
"""H.264, which browsers play, where OpenCV has it, as on a Mac; elsewhere MPEG-4, which wants a video player."""

_CAMERA = (
    "is a camera attached, and may this program use it? On a Mac allow it in System Settings, Privacy & Security, "
    "Camera, for the program in which Jupyter was started, and run the cell again"
)
_DEFAULT = "unset SOURCE for the generated scenes that come with this project"


class SourceError(ValueError):
    """Frames that cannot be had; the message says why, and what can be had instead."""


@dataclass
class Source:
    """Frames, one after the other."""

    name: str
    """Where they come from, in words."""
    frames: Iterator[np.ndarray]
    generated: bool = False
    """True for the scenes that the shipped detector knows."""
    live: bool = False
    """True for a camera: what it shows goes on without us."""
    release: Callable[[], None] = field(default=lambda: None, repr=False)
    """Lets go of a camera or a file; it may be called twice."""

    def close(self) -> None:
        """Let go of a camera or a file, also if no frame of it was taken."""
        if hasattr(self.frames, "close"):
            self.frames.close()
        self.release()

    def take(self, count: int) -> list[np.ndarray]:
        """The next ``count`` frames, fewer if there are no more. `SourceError` if there is none."""
        taken = list(itertools.islice(self.frames, count))
        if not taken:
            raise SourceError(f"{self.name}: not a single frame came; choose another SOURCE, or {_DEFAULT}")
        return taken


def open_source(source: str | None = None, size: tuple[int, int] = (720, 1280)) -> Source:
    """Frames from what the environment variable ``SOURCE`` names, or from ``source`` if it is given.

    Nothing: generated scenes of ``size`` (height, width), without end. A number: that webcam. ``photographs``: the two
    in the ultralytics package. Else a path: a picture, a folder of pictures, or a film. `SourceError` says at once what
    is wrong with it; of a damaged picture in a folder when its turn has come.
    """
    text = os.environ.get("SOURCE", "") if source is None else source
    if not text:
        return Source(f"generated scenes, seed {SEED}", (f.image for f in scenes.video(SEED, 10**6, size)), True)
    if text.isdecimal() and len(text) < 5:
        camera = _film(int(text), f"webcam {text}", _CAMERA)
        return dataclasses.replace(camera, live=True)
    if text == "photographs":
        import ultralytics

        return _pictures(Path(ultralytics.__file__).parent / "assets", "ultralytics' two photographs")
    path = Path(os.path.expanduser(text))  # Path.expanduser raises for a user that is not there
    if os.path.isdir(path):
        return _pictures(path, f"pictures in {path.name}")
    if not os.path.isfile(path):  # False for whatever no file can be called
        raise SourceError(
            f"SOURCE is {text!r}, and there is no such file or folder here: give its whole path, from / "
            f"on; or {_DEFAULT}"
        )
    if path.suffix.lower() in PICTURES:
        return Source(path.name, iter([_picture(path)]))
    if path.suffix.lower() in FILMS:
        return _film(str(path), path.name, "it is damaged, or of a kind that OpenCV does not read")
    raise SourceError(
        f"SOURCE is {path.name}, which is neither a picture ({', '.join(PICTURES)}) nor a film ({', '.join(FILMS)}); "
        f"{_DEFAULT}"
    )


def assert_something(boxes: Sequence[Sequence]) -> None:
    """`SourceError`, with what to do, if a detector found nothing in any frame: there is nothing to compare."""
    if not sum(map(len, boxes)):
        raise SourceError(
            f"the detector finds nothing in {len(boxes)} frames: choose another SOURCE, or YOLO_WEIGHTS that know what "
            f"is in it; or {_DEFAULT}"
        )


def write_film(path: Path | str, frames: Iterable[np.ndarray], rate: float) -> Path:
    """Write frames of one size as an MP4, ``rate`` of them a second; the file.

    Films have even sizes: of an odd one the last row or column is there twice. ValueError if there are no frames, or of
    several sizes, or something else than frames, or no rate above 0; OSError if it cannot be written.
    """
    import cv2

    path, frames = Path(path), _of_one_size(frames, rate)
    path.parent.mkdir(parents=True, exist_ok=True)
    odd = [(0, length % 2) for length in frames[0].shape[:2]]
    frames = [np.pad(frame, [*odd, (0, 0)], mode="edge") for frame in frames]
    height, width = frames[0].shape[:2]
    part = path.with_name(f".{path.name}").with_suffix(".mp4")
    with _quiet(cv2):
        for kind in ENCODERS:
            writer = cv2.VideoWriter(str(part), cv2.VideoWriter_fourcc(*kind), rate, (width, height))
            if writer.isOpened():
                break
        else:
            raise OSError(f"{path} cannot be written: OpenCV has no encoder for {ENCODERS}, or the folder no room")
    try:
        try:
            for frame in frames:
                writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        finally:
            writer.release()
        with _quiet(cv2):
            if not cv2.VideoCapture(str(part)).isOpened():  # OpenCV says nothing of a full disk
                raise OSError(f"{path} cannot be written: what came of it cannot be read back; make room there")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def preview(frames: Iterable[np.ndarray], rate: float, width: int = 640) -> bytes:
    """A small animated WebP, which browsers show as a picture, for pages: the bytes of a file.

    It counts time in thousandths of a second. Frames that follow each other and are the same become one. ValueError as
    for `write_film`.
    """
    from PIL import Image

    frames = _of_one_size(frames, rate)
    height = max(1, round(frames[0].shape[0] * width / frames[0].shape[1]))
    first, *rest = [Image.fromarray(frame).resize((width, height)) for frame in frames]
    file = io.BytesIO()
    settings = {"duration": round(1000 / rate), "loop": 0, "quality": 60, "method": 2}
    first.save(file, "webp", save_all=True, append_images=rest, **settings)
    return file.getvalue()


@dataclass(frozen=True)
class Filmed:
    """What several panes made of the same frames, in turns, and what may be said of their times.

    On a page it shows the whole film, faster than it happened if it is long, and, below, `sentences`.
    """

    finished: Mapping[str, Sequence[tuple[float, np.ndarray]]]
    """By pane: of each frame the seconds that it took, and its picture."""
    boxes: Mapping[str, Sequence[Any]]
    """By pane: the boxes of each frame."""
    compared: timing.Comparison
    """The times of the panes, paired frame by frame; a pane whose boxes differ from the baseline's is refused."""
    left_out: str = ""
    """How many frames were left out for want of time, in words."""

    @property
    def doubt(self) -> timing.Doubt:
        """Why the film tells no rates; empty if it may: by the rule that holds for every speed-up, `timing.doubt`."""
        unsure = [
            timing.Doubt("too few frames" if ratio.side else "inconclusive", str(ratio))
            for ratio in self.compared.ratios.values()
            if ratio.verdict == "inconclusive"
        ]
        return next(iter([*self.compared.withheld.values(), *unsure]), timing.Doubt())

    @property
    def sentences(self) -> list[str]:
        """The rate of each pane and their ratio, or why they are withheld; before them, what was compared."""
        count = len(self.finished[self.compared.baseline])
        boxes_in_all = sum(map(len, self.boxes[self.compared.baseline]))
        same = f"{boxes_in_all} boxes in {count} frames, the same in every pane."
        if self.compared.refused:
            return [f"No frame rates: {name}: {why}." for name, why in self.compared.refused.items()]
        if self.doubt:
            return [same, f"No frame rates: {self.doubt}."]
        rates = [f"{self.caption(name, count).removesuffix(', all done')}." for name in self.finished]
        return [
            same,
            " ".join(rates),
            *(f"Frame by frame, in the median, {ratio}." for ratio in self.compared.ratios.values()),
        ]

    def caption(self, name: str, done: int) -> str:
        """What stands below a pane when so many of its frames are finished: its rate over the film, if it has one."""
        if not done:
            return f"{name}: at its first frame"
        told = f"no rate, {self.doubt.kind}" if self.doubt else f"{self.rate(name):.1f} frames/s"
        return f"{name}: {told}{', all done' if done == len(self.finished[name]) else ''}"

    def rate(self, name: str) -> float:
        """Finished pictures a second of a pane, over the whole film, whatever may be told of it."""
        return len(self.finished[name]) / sum(seconds for seconds, _ in self.finished[name])

    def pictures(self, rate: float = FILM_RATE) -> list[np.ndarray]:
        """The film, as `race` makes it. Where no rate may be told no pane runs ahead: a picture for each frame."""
        if not self.doubt:
            return race(self.finished, self.caption, rate)
        return [
            _panes({name: pictures[done - 1][1] for name, pictures in self.finished.items()}, self._captions(done))
            for done in range(1, len(self.finished[self.compared.baseline]) + 1)
        ]

    def _captions(self, done: int) -> dict[str, str]:
        return {name: self.caption(name, done) for name in self.finished}

    def figure(self) -> Figure:
        """One moment of the film, halfway through, as a still picture."""
        moments = self.pictures()
        return still(moments[len(moments) // 2], self.alternative_text)

    @property
    def alternative_text(self) -> str:
        """What the film shows, in words."""
        return f"The same scene twice, with boxes: {', '.join(self.finished)}"

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, *filter(None, [self.left_out])])

    def _repr_html_(self) -> str:
        longest = max(sum(seconds for seconds, _ in pictures) for pictures in self.finished.values())
        faster = max(1, math.ceil(longest * FILM_RATE / (PREVIEW - 1)))
        shown = self.pictures(FILM_RATE / faster)
        lines, rate = repr(self).splitlines(), FILM_RATE
        if self.doubt:
            rate = FILM_RATE / 2
            lines.append(f"The film shows one frame after the other, {rate:g} a second.")
        elif faster > 1:
            lines.append(f"The film plays {faster} times as fast as it happened.")
        film = base64.b64encode(preview(shown, rate, width=900)).decode()
        picture = f'<img src="data:image/webp;base64,{film}" alt="{html.escape(self.alternative_text)}">'
        return picture + "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def film(
    panes: Mapping[str, Callable[[np.ndarray], tuple[np.ndarray, Any]]],
    frames: Iterable[np.ndarray],
    *,
    on: Mapping[str, timing.DeviceLike],
    baseline: str,
    parity: Mapping[str, Callable[[Sequence[Any], Sequence[Any]], None]],
    seconds: float = 5.0,
) -> Filmed:
    """Give each frame to every pane in turn, and time it; the first frame once more before, as a warm-up.

    A pane is a function that returns a finished picture of a frame, uint8 (height, width, 3) in RGB, and its boxes,
    when both are there: it has waited for its device. ``on`` is where each pane computes. ``parity`` compares the boxes
    of each other pane, frame by frame, with the baseline's (`boxes.matches`): one that differs gets no rate. As many
    frames as fit into ``seconds`` are taken, but 12 if there are so many. ValueError if there are no frames,
    `SourceError` if nothing is detected in any.
    """
    frames = list(frames)
    if not frames:
        raise ValueError("there is no frame to film")
    allowance = Allowance(seconds, clock=time.perf_counter)
    for _ in range(2):  # the second time without what is done once
        start = time.perf_counter()
        for name, pane in panes.items():
            with on[name].active():
                pane(frames[0])
        each = time.perf_counter() - start
    least = min(12, len(frames))
    frames = frames[: allowance.count("frames of the film", each=each, wanted=len(frames), least=least)]
    finished, detected = {name: [] for name in panes}, {name: [] for name in panes}
    with timing.undisturbed() as load:
        for frame in frames:
            for name, pane in panes.items():
                with on[name].active():
                    start = time.perf_counter()
                    picture, what = pane(frame)
                    finished[name].append((time.perf_counter() - start, picture))
                detected[name].append(what)
    assert_something(detected[baseline])
    made = {"question": "latency", "block": 1, "warmup_calls": 2, "stop_reason": f"{len(frames)} frames, as asked"}
    made |= {"mode": mode.current(), "others": load.cores()}
    measured = {
        name: timing.Measurement(
            name,
            samples=tuple(seconds for seconds, _ in pictures),
            first_call=pictures[0][0],
            **timing.described(on[name]),
            **made,
        )
        for name, pictures in finished.items()
    }
    compared = timing.compare_samples(
        measured,
        baseline=baseline,
        name="film",
        parity="; ".join(sorted({str(parity[name]) for name in panes if name != baseline})),
    )
    refused = {}
    for name in (name for name in panes if name != baseline):
        try:
            parity[name](detected[baseline], detected[name])
        except Mismatch as difference:
            refused[name] = timing.Doubt("outputs differ", str(difference).partition("; ")[0])
    paired = {name: ratio for name, ratio in compared.paired.items() if name not in refused}
    compared = dataclasses.replace(compared, refused=refused, paired=paired)
    return Filmed(finished, detected, compared, str(allowance) if allowance.left_out else "")


def still(picture: np.ndarray, words: str) -> Figure:
    """A picture, uint8 (height, width, 3), as a figure without axes; ``words`` are for whoever cannot see it."""
    _require_frame(picture)
    height, width = picture.shape[:2]
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 7.5 * height / width))
        axes.set_axis_off()
        axes.imshow(picture)
    return plots.described(figure, words)


def race(
    finished: Mapping[str, Sequence[tuple[float, np.ndarray]]],
    caption: Callable[[str, int], str] = lambda name, done: name,
    rate: float = FILM_RATE,
    size: tuple[int, int] = (384, 640),
) -> list[np.ndarray]:
    """A film, ``rate`` pictures a second, of pipelines that work through the same frames, each at its own speed.

    ``finished`` maps each pipeline's name to its pictures in order, each with the seconds that it took. At any moment
    a pane shows the last picture that was finished by then (the first one until there is any), and below it
    ``caption(name, n)``, with n the number finished. The film ends when the slowest is through. Pictures are scaled
    and padded to ``size`` (height, width). ValueError if there is nothing to show.
    """
    if not finished or not all(finished.values()):
        raise ValueError("nothing was finished: give each pipeline at least one (seconds, picture)")
    done_at = {name: np.cumsum([seconds for seconds, _ in pictures]) for name, pictures in finished.items()}
    moments = np.arange(0, max(times[-1] for times in done_at.values()) + 1 / rate, 1 / rate)
    film = []
    for moment in moments:
        done = {name: int(np.searchsorted(times, moment, side="right")) for name, times in done_at.items()}
        last = {name: pictures[max(done[name] - 1, 0)][1] for name, pictures in finished.items()}
        film.append(_panes(last, {name: caption(name, done[name]) for name in finished}, size))
    return film


def _panes(
    pictures: Mapping[str, np.ndarray], captions: Mapping[str, str], size: tuple[int, int] = (384, 640)
) -> np.ndarray:
    """A picture of each pane with its caption, scaled and padded to ``size``, side by side."""
    return functools.reduce(
        side_by_side, [boxes.captioned(fitted(picture, *size), captions[name]) for name, picture in pictures.items()]
    )


def fitted(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """A frame, scaled as a whole and padded with black to (height, width, 3). ValueError if it is something else."""
    import cv2

    _require_frame(frame)
    scale = min(height / frame.shape[0], width / frame.shape[1])
    inner = max(1, round(frame.shape[0] * scale)), max(1, round(frame.shape[1] * scale))
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    picture = np.zeros((height, width, 3), np.uint8)
    picture[top : top + inner[0], left : left + inner[1]] = cv2.resize(frame, inner[::-1], interpolation=cv2.INTER_AREA)
    return picture


def jpeg(frame: np.ndarray, quality: int = 85) -> bytes:
    """A frame as a JPEG file, for widgets that show one. ValueError if it is something else."""
    from PIL import Image

    _require_frame(frame)
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "jpeg", quality=quality)
    return file.getvalue()


def side_by_side(left: np.ndarray, right: np.ndarray, gap: int = 8) -> np.ndarray:
    """Two frames of one size beside each other, with a white gap of ``gap`` pixels."""
    return np.hstack([left, np.full((left.shape[0], gap, 3), 255, np.uint8), right])


def _require_frame(frame: Any) -> None:
    shape, dtype = tuple(getattr(frame, "shape", ())), getattr(frame, "dtype", "no dtype")
    if not isinstance(frame, np.ndarray) or dtype != np.uint8 or shape[2:] != (3,) or not frame.size:
        scaled = " (of numbers from 0 to 1 it is (255 * frame).astype(np.uint8))" if "float" in str(dtype) else ""
        raise ValueError(
            f"a frame is a NumPy array, uint8 (height, width, 3) in RGB{scaled}; this is a {type(frame).__name__}, "
            f"{dtype} {shape}"
        )


def _of_one_size(frames: Iterable[np.ndarray], rate: float) -> list[np.ndarray]:
    if not 0 < rate < float("inf"):
        raise ValueError(f"rate is {rate}: give the pictures a second, more than 0")
    frames = list(frames)
    for frame in frames:
        _require_frame(frame)
    if len({frame.shape for frame in frames}) != 1:
        raise ValueError(f"a film's frames have one size; these have {len({frame.shape for frame in frames})}")
    return frames


def _pictures(folder: Path, name: str) -> Source:
    """All pictures of a folder, by name; hidden files are none, such as those that macOS writes beside others."""
    files = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in PICTURES and not path.name.startswith(".")
    )
    if not files:
        raise SourceError(f"there are no pictures ({', '.join(PICTURES)}) in {folder}; {_DEFAULT}")
    return Source(name, map(_picture, files))


def _picture(path: Path) -> np.ndarray:
    import cv2

    # not Pillow: ultralytics changes Image.open so that a file it does not know makes it install a package
    with _quiet(cv2):
        try:
            picture = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
        except (OSError, cv2.error) as error:
            raise SourceError(f"{path.name} cannot be read as a picture: {error}; {_DEFAULT}") from error
    if picture is None:
        raise SourceError(f"{path.name} cannot be read as a picture: it is damaged, or of another kind; {_DEFAULT}")
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def _film(which: int | str, name: str, hint: str) -> Source:
    import cv2

    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # read with the first film; -8 is FFmpeg's "quiet"
    with _quiet(cv2):
        capture = cv2.VideoCapture(which)
        there, first = capture.read() if capture.isOpened() else (False, None)
    if not there:
        capture.release()
        raise SourceError(f"{name} gives no frames: {hint}; {_DEFAULT}")

    def frames() -> Iterator[np.ndarray]:
        frame, more = first, True
        try:
            while more:
                yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
                more, frame = capture.read()
        finally:
            capture.release()

    return Source(name, frames(), release=capture.release)


@contextlib.contextmanager
def _quiet(cv2) -> Iterator[None]:
    """OpenCV's own messages on the terminal are kept back: what went wrong is said in an error."""
    log = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # the second since OpenCV 5
    level = log.getLogLevel()
    log.setLogLevel(0)
    try:
        yield
    finally:
        log.setLogLevel(level)
