"""Frames from a film, a folder, a camera or generated scenes, and films of frames: what notebook 08 reads and writes.

A frame is a NumPy array, uint8 (height, width, 3), in RGB; OpenCV, which reads and writes the files, turns colours
around, and that stays inside this module.
"""

from __future__ import annotations

import base64
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
from dataclasses import dataclass
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
"""H.264, which browsers play, where OpenCV has it, as on a Mac; elsewhere MPEG-4, which needs a video player."""

_CAMERA = (
    "is a camera attached, and may this program use it? On a Mac allow it in System Settings, Privacy & Security, "
    "Camera, for the program in which Jupyter was started, and run the cell again"
)
_DEFAULT = "unset SOURCE for the generated scenes that come with this project"


class SourceError(ValueError):
    """Frames that cannot be read; the message says why, and what can be used instead."""


@dataclass
class Source:
    """Frames, one after the other."""

    name: str
    frames: Iterator[np.ndarray]
    live: bool = False
    """True for a camera: what it shows goes on meanwhile."""
    close: Callable[[], None] = lambda: None
    """Releases a camera or a file; it may be called twice."""

    def take(self, count: int) -> list[np.ndarray]:
        """The next ``count`` frames, fewer if there are no more. `SourceError` if there is none."""
        taken = list(itertools.islice(self.frames, count))
        if not taken:
            raise SourceError(f"{self.name}: not a single frame came; choose another SOURCE, or {_DEFAULT}")
        return taken


def open_source(source: str | None = None, size: tuple[int, int] = (720, 1280)) -> Source:
    """Frames from what the environment variable ``SOURCE`` names, or from ``source`` if it is given.

    Nothing: generated scenes of ``size`` (height, width), without end. A number: that webcam. ``photographs``: the two
    in the ultralytics package. Else a path: a picture, a folder of pictures, or a film. `SourceError` if it cannot be
    read; for a damaged picture in a folder when its turn comes.
    """
    text = os.environ.get("SOURCE", "") if source is None else source
    if not text:
        return Source(f"generated scenes, seed {SEED}", (f.image for f in scenes.video(SEED, 10**6, size)))
    if text.isdecimal() and len(text) < 5:
        return dataclasses.replace(_film(int(text), f"webcam {text}", _CAMERA), live=True)
    if text == "photographs":
        import ultralytics

        return _pictures(Path(ultralytics.__file__).parent / "assets", "ultralytics' two photographs")
    path = Path(os.path.expanduser(text))  # Path.expanduser raises for a user that is not there
    if os.path.isdir(path):
        return _pictures(path, f"pictures in {path.name}")
    if not os.path.isfile(path):  # False for whatever no file can be called
        raise SourceError(
            f"SOURCE is {text!r}, and there is no such file or folder: give its whole path; or {_DEFAULT}"
        )
    if path.suffix.lower() in PICTURES:
        return Source(path.name, iter([_picture(path)]))
    if path.suffix.lower() in FILMS:
        return _film(str(path), path.name, "it is damaged, or of a kind that OpenCV does not read")
    kinds = f"neither a picture ({', '.join(PICTURES)}) nor a film ({', '.join(FILMS)})"
    raise SourceError(f"SOURCE is {path.name}, which is {kinds}; {_DEFAULT}")


def assert_something(boxes: Sequence[Sequence]) -> None:
    """`SourceError` if a detector found nothing in any frame: there is nothing to compare."""
    if not sum(map(len, boxes)):
        raise SourceError(
            f"the detector finds nothing in {len(boxes)} frames: choose another SOURCE, or YOLO_WEIGHTS that know what "
            f"is in it; or {_DEFAULT}"
        )


def write_film(path: Path | str, frames: Iterable[np.ndarray], rate: float) -> Path:
    """Write frames of one size as an MP4, ``rate`` of them a second; the file.

    Films have even sizes: of an odd one the last row or column is there twice. ValueError for what are no frames of
    one size; OSError if it cannot be written.
    """
    import cv2

    path, frames = Path(path), _of_one_size(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    odd = [(0, length % 2) for length in frames[0].shape[:2]]
    frames = [np.pad(frame, [*odd, (0, 0)], mode="edge") for frame in frames]
    part = path.with_name(f".{path.name}").with_suffix(".mp4")
    for kind in ENCODERS:
        writer = cv2.VideoWriter(str(part), cv2.VideoWriter_fourcc(*kind), rate, frames[0].shape[1::-1])
        if writer.isOpened():
            break
    for frame in frames:
        writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
    writer.release()
    if not cv2.VideoCapture(str(part)).isOpened():  # OpenCV does not report a full disk
        part.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be written: OpenCV has no encoder of {ENCODERS}, or the disk is full")
    return part.replace(path)


def preview(frames: Iterable[np.ndarray], rate: float, width: int = 640) -> bytes:
    """A small animated WebP, which browsers show as a picture: the bytes of a file. ValueError as for `write_film`.

    It counts time in thousandths of a second. Frames that follow each other and are the same become one.
    """
    from PIL import Image

    frames = _of_one_size(frames)
    height = max(1, round(frames[0].shape[0] * width / frames[0].shape[1]))
    first, *rest = [Image.fromarray(frame).resize((width, height)) for frame in frames]
    file = io.BytesIO()
    settings = {"duration": round(1000 / rate), "loop": 0, "quality": 60, "method": 2}
    first.save(file, "webp", save_all=True, append_images=rest, **settings)
    return file.getvalue()


@dataclass(frozen=True)
class Filmed:
    """What several panes made of the same frames, in turns. On a page it shows the film and `sentences`."""

    finished: Mapping[str, Sequence[tuple[float, np.ndarray]]]
    """By pane: of each frame the seconds that it took, and its picture."""
    boxes: Mapping[str, Sequence[Any]]
    """By pane: the boxes of each frame."""
    compared: timing.Comparison
    """The times of the panes, paired frame by frame; a pane whose boxes differ from the baseline's is refused."""
    left_out: str = ""
    """The frames that were left out for time; empty if there are none."""

    @property
    def doubt(self) -> timing.Doubt:
        """Reason why frame rates are withheld, or ''."""
        unsure = [
            timing.Doubt("too few frames" if ratio.side else "inconclusive", str(ratio))
            for ratio in self.compared.ratios.values()
            if ratio.verdict == "inconclusive"
        ]
        return next(iter([*self.compared.withheld.values(), *unsure]), timing.Doubt())

    @property
    def sentences(self) -> list[str]:
        """What was compared, and the rate of each pane and their ratio, or why they are withheld."""
        found = self.boxes[self.compared.baseline]
        if self.compared.refused:
            return [f"No frame rates: {name}: {why}." for name, why in self.compared.refused.items()]
        same = f"{sum(map(len, found))} boxes in {len(found)} frames, the same in every pane."
        if self.doubt:
            return [same, f"No frame rates: {self.doubt}."]
        rates = " ".join(f"{name}: {self.rate(name):.1f} frames/s." for name in self.finished)
        return [same, rates, *(f"Frame by frame, in the median, {ratio}." for ratio in self.compared.ratios.values())]

    def rate(self, name: str) -> float:
        """Finished pictures a second of a pane, over the whole film."""
        return len(self.finished[name]) / sum(seconds for seconds, _ in self.finished[name])

    def pictures(self, rate: float = FILM_RATE) -> list[np.ndarray]:
        """The film, ``rate`` pictures a second: all panes side by side, each working at its own speed.

        At any moment a pane shows the last picture that it had finished by then (the first one until there is any).
        Where rates are withheld no pane runs ahead: a picture for each frame.
        """
        done_at = {name: np.cumsum([seconds for seconds, _ in made]) for name, made in self.finished.items()}
        if self.doubt:
            done_at = {name: np.arange(1, len(times) + 1) for name, times in done_at.items()}
            moments = done_at[self.compared.baseline]
        else:
            moments = np.arange(0, max(times[-1] for times in done_at.values()) + 1 / rate, 1 / rate)
        film = []
        for moment in moments:
            done = {name: int(np.searchsorted(times, moment, side="right")) for name, times in done_at.items()}
            panes = [
                boxes.captioned(fitted(self.finished[n][max(k - 1, 0)][1]), self.caption(n)) for n, k in done.items()
            ]
            film.append(functools.reduce(side_by_side, panes))
        return film

    def caption(self, name: str) -> str:
        """The text below a pane: its rate over the film, or why there is none."""
        return f"{name}: " + (f"no rate, {self.doubt.kind}" if self.doubt else f"{self.rate(name):.1f} frames/s")

    def figure(self) -> Figure:
        """One moment of the film, halfway through, as a still picture."""
        moments = self.pictures()
        return still(moments[len(moments) // 2], self.alternative_text)

    @property
    def alternative_text(self) -> str:
        """What the film shows, as text."""
        return f"The same scene twice, with boxes: {', '.join(self.finished)}"

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, *filter(None, [self.left_out])])

    def _repr_html_(self) -> str:
        longest = max(sum(seconds for seconds, _ in pictures) for pictures in self.finished.values())
        faster = max(1, math.ceil(longest * FILM_RATE / (PREVIEW - 1)))
        lines, rate = repr(self).splitlines(), FILM_RATE
        if self.doubt:
            rate = FILM_RATE / 2
            lines.append(f"The film shows one frame after the other, {rate:g} a second.")
        elif faster > 1:
            lines.append(f"The film plays {faster} times as fast as it happened.")
        film = base64.b64encode(preview(self.pictures(FILM_RATE / faster), rate, width=900)).decode()
        picture = f'<img src="data:image/webp;base64,{film}" alt="{html.escape(self.alternative_text)}">'
        return picture + "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def film(panes: Mapping[str, Any], frames: Sequence[np.ndarray], seconds: float = 5.0) -> Filmed:
    """Give each frame to every pane in turn, and time it; the first frame once more before, as a warm-up.

    ``panes`` are `metallab.detection.pipelines.Pipeline`s, the first of which is the baseline: one whose boxes differ
    from its boxes gets no rate. As many frames as fit into ``seconds`` are taken, but 12 if there are so many.
    ValueError if there are no frames, `SourceError` if nothing is detected in any.
    """
    if not frames:
        raise ValueError("there is no frame to film")
    baseline, allowance = next(iter(panes)), Allowance(seconds, clock=time.perf_counter)
    for _ in range(2):  # the second time without what is done once
        start = time.perf_counter()
        for pane in panes.values():
            with pane.on.active():
                pane(frames[0])
        each = time.perf_counter() - start
    least = min(12, len(frames))
    frames = frames[: allowance.count("frames of the film", each=each, wanted=len(frames), least=least)]
    finished, detected = {name: [] for name in panes}, {name: [] for name in panes}
    with timing.undisturbed() as load:
        for frame in frames:
            for name, pane in panes.items():
                with pane.on.active():
                    start = time.perf_counter()
                    picture, what = pane(frame)
                    finished[name].append((time.perf_counter() - start, picture))
                detected[name].append(what)
    assert_something(detected[baseline])
    made = {"question": "latency", "block": 1, "warmup_calls": 2, "stop_reason": f"{len(frames)} frames, as asked"}
    made |= {"mode": mode.current(), "others": load.cores()}
    measured = {}
    for name, pictures in finished.items():
        samples = tuple(seconds for seconds, _ in pictures)
        about = {"first_call": samples[0], **timing.described(panes[name].on), **made}
        measured[name] = timing.Measurement(name, samples=samples, **about)
    parity = {name: boxes.matches(pane.dtype) for name, pane in panes.items() if name != baseline}
    told = "; ".join(sorted({str(same) for same in parity.values()}))
    compared = timing.compare_samples(measured, baseline=baseline, name="film", parity=told)
    refused = {}
    for name, same in parity.items():
        try:
            same(detected[baseline], detected[name])
        except Mismatch as difference:
            refused[name] = timing.Doubt("outputs differ", str(difference).partition("; ")[0])
    paired = {name: ratio for name, ratio in compared.paired.items() if name not in refused}
    compared = dataclasses.replace(compared, refused=refused, paired=paired)
    return Filmed(finished, detected, compared, str(allowance) if allowance.left_out else "")


def still(picture: np.ndarray, words: str) -> Figure:
    """A picture, uint8 (height, width, 3), as a figure without axes; ``words`` are its alternative text."""
    height, width = picture.shape[:2]
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 7.5 * height / width))
        axes.set_axis_off()
        axes.imshow(picture)
    return plots.described(figure, words)


def fitted(frame: np.ndarray, height: int = 384, width: int = 640) -> np.ndarray:
    """A frame, scaled as a whole and padded with black to (height, width, 3)."""
    import cv2

    scale = min(height / frame.shape[0], width / frame.shape[1])
    inner = max(1, round(frame.shape[0] * scale)), max(1, round(frame.shape[1] * scale))
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    picture = np.zeros((height, width, 3), np.uint8)
    picture[top : top + inner[0], left : left + inner[1]] = cv2.resize(frame, inner[::-1], interpolation=cv2.INTER_AREA)
    return picture


def jpeg(frame: np.ndarray, quality: int = 85) -> bytes:
    """A frame as a JPEG file, for widgets that show one."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(frame).save(file, "jpeg", quality=quality)
    return file.getvalue()


def side_by_side(left: np.ndarray, right: np.ndarray, gap: int = 8) -> np.ndarray:
    """Two frames of one size beside each other, with a white gap of ``gap`` pixels."""
    return np.hstack([left, np.full((left.shape[0], gap, 3), 255, np.uint8), right])


def _of_one_size(frames: Iterable[np.ndarray]) -> list[np.ndarray]:
    frames = list(frames)
    for frame in frames:
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape[2:] != (3,):
            raise ValueError("a frame is a NumPy array, uint8 (height, width, 3) in RGB, with values from 0 to 255")
    if len({frame.shape for frame in frames}) != 1:
        raise ValueError(f"a film's frames have one size; these have {len({frame.shape for frame in frames})}")
    return frames


def _pictures(folder: Path, name: str) -> Source:
    """All pictures of a folder, by name; not the hidden files that macOS writes beside others."""
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES and not p.name.startswith("."))
    if not files:
        raise SourceError(f"there are no pictures ({', '.join(PICTURES)}) in {folder}; {_DEFAULT}")
    return Source(name, map(_picture, files))


def _picture(path: Path) -> np.ndarray:
    import cv2

    # not Pillow: ultralytics changes Image.open so that a file it does not know makes it install a package
    picture = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    if picture is None:
        raise SourceError(f"{path.name} cannot be read as a picture: it is damaged, or of another kind; {_DEFAULT}")
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def _film(which: int | str, name: str, hint: str) -> Source:
    import cv2

    capture = cv2.VideoCapture(which)
    there, first = capture.read() if capture.isOpened() else (False, None)
    if not there:
        capture.release()
        raise SourceError(f"{name} gives no frames: {hint}; {_DEFAULT}")

    def frames() -> Iterator[np.ndarray]:
        frame, more = first, True
        while more:
            yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
            more, frame = capture.read()
        capture.release()

    return Source(name, frames(), close=capture.release)
