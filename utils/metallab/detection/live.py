"""Panes in a notebook that show frames as they are made, each with its rate, and a button that stops them."""

from __future__ import annotations

import base64
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from metallab import mode, timing
from metallab.detection import boxes, video

SIZE = (384, 640)
"""Height and width of a pane's pictures, in pixels."""

_playing: list[Live] = []


def progress(items: Sequence[Any], what: str) -> Iterator[Any]:
    """The items, with a line below the cell that counts them as they are taken.

    One line that changes: a bar of tqdm leaves all its steps, or a dead widget, in a page that was run headlessly.
    """
    from IPython.display import Pretty, display

    line = lambda done: Pretty(f"{what}: {done} of {len(items)} {'#' * round(30 * done / max(1, len(items)))}")
    shown, last = display(line(0), display_id=True), time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        if shown and (done == len(items) or time.monotonic() - last > 0.2):
            shown.update(line(done))
            last = time.monotonic()


class Live:
    """Frames go to each pane in turn, in a thread of their own, until they end or Stop is pressed.

    ``panes`` maps a name to a function that makes a finished picture of a frame, both uint8 (height, width, 3) in RGB.
    The time that it takes makes the rate in the pane's corner: finished pictures a second of that pane's own work. None
    is told while other programs compute, in fast mode, or if ``simulated``.
    Another view that still plays is stopped first: both would compute at once. ``close`` is called at the end, to let
    go of a camera. As the last line of a cell it begins and shows its widget, as `start` does; in a run without a
    person it plays to its end, and shows its last pictures. While a cell computes Jupyter does not hear the button.
    """

    def __init__(
        self,
        panes: Mapping[str, Callable[[np.ndarray], np.ndarray]],
        frames: Iterable[np.ndarray],
        close: Callable[[], None] = lambda: None,
        simulated: bool = False,
    ) -> None:
        from ipywidgets import HTML, Button, HBox, Image, Layout, VBox

        self.panes, self.frames, self.close = dict(panes), frames, close
        self.simulated = simulated
        self.shown = 0
        """How many frames every pane has shown."""
        self.seconds = dict.fromkeys(self.panes, 0.0)
        """What each pane's pictures took, all together."""
        self.last: dict[str, np.ndarray] = {}
        """Each pane's last picture."""
        self.problem: Exception | None = None
        self.stopped = threading.Event()
        self.pictures = {name: Image(format="jpeg", layout=Layout(width="100%")) for name in self.panes}
        self.button = Button(description="Stop", icon="stop", tooltip="stop the live view")
        self.button.on_click(lambda _: self.stop())
        self.state = HTML()
        self.widget = VBox([HBox([self.pictures[name] for name in self.panes]), HBox([self.button, self.state])])
        self.thread = threading.Thread(target=self._play, name="live", daemon=True)

    @classmethod
    def of_source(
        cls, panes: Mapping[str, Callable], source: video.Source, frames: Sequence[np.ndarray], most: int
    ) -> Live:
        """A view of a source of which ``frames`` were taken already: they come again, then the rest, ``most`` in all.

        A camera shows what it sees from now on, until Stop is pressed; in a run without a person ``most`` frames.
        ``panes`` are pipelines (`metallab.detection.pipelines`).
        """
        to_show = source.frames if source.live else itertools.chain(frames, source.frames)
        if not source.live or os.environ.get("METALLAB_OUT"):  # which headless runs set
            to_show = itertools.islice(to_show, most)
        drawing = {name: functools.partial(_picture_of, pane) for name, pane in panes.items()}
        simulated = any(pane.on.simulated for pane in panes.values())
        return cls(drawing, to_show, source.close, simulated)

    def start(self):
        """Begin, and return the widget."""
        for view in _playing:
            view.stop()
            view.thread.join(10)
        _playing[:] = [self]
        self.thread.start()
        return self.widget

    def _repr_mimebundle_(self, **options) -> dict | tuple[dict, dict]:
        if not os.environ.get("METALLAB_OUT"):
            return self.start()._repr_mimebundle_(**options)
        self.start()
        self.wait(120)
        picture = base64.b64encode(video.jpeg(functools.reduce(video.side_by_side, self.last.values()))).decode()
        words = f"The last pictures of the live view: {', '.join(self.last)}"
        return {"image/jpeg": picture, "text/plain": words}, {"image/jpeg": {"alt": words}}

    def stop(self) -> None:
        """End after the frame that is being made."""
        self.stopped.set()

    def wait(self, timeout: float | None = None) -> int:
        """How many frames were shown, once the view has ended; what went wrong in it is raised here.

        TimeoutError after ``timeout`` seconds; it goes on then.
        """
        self.thread.join(timeout)
        if self.thread.is_alive():
            raise TimeoutError(f"the live view goes on after {timeout:g} s; press Stop, or call stop()")
        if self.problem:
            raise self.problem
        return self.shown

    def report(self, timeout: float = 120.0) -> str:
        """What became of it, in words, when it has ended; that it goes on, if it still does after ``timeout`` seconds.

        What went wrong in it is raised here.
        """
        try:
            return f"The live view showed {self.wait(timeout)} frames."
        except TimeoutError as error:
            return f"{str(error)[0].upper()}{str(error)[1:]}."

    def _play(self) -> None:
        load = timing.Others()
        try:
            for frame in self.frames:
                if self.stopped.is_set():
                    break
                for name in self.panes:
                    self._show(name, frame, self._doubt(load.cores()))
                self.shown += 1
                self.state.value = f"{self.shown} frames"
        except Exception as error:  # noqa: BLE001  # wait() raises it; in a thread nobody would hear of it
            self.problem = error
            self.state.value = f"stopped: {type(error).__name__}"
        finally:
            self.button.disabled = True
            self.close()

    def _doubt(self, others: float) -> str:
        """Why no rate is told just now, as `timing.doubt` would say; empty if it may."""
        if self.simulated:
            return "simulated"
        if mode.current() != "full":
            return "fast mode"
        return "busy machine" if others > timing.BUSY else ""

    def _show(self, name: str, frame: np.ndarray, doubt: str) -> None:
        start = time.perf_counter()
        picture = self.panes[name](frame)
        self.seconds[name] += time.perf_counter() - start
        rate = f"{(self.shown + 1) / self.seconds[name]:.1f} frames/s"
        told = f"no rate, {doubt}" if doubt else rate
        self.last[name] = boxes.captioned(video.fitted(picture, *SIZE), f"{name}: {told}")
        self.pictures[name].value = video.jpeg(self.last[name])


def _picture_of(pane: Callable, frame: np.ndarray) -> np.ndarray:
    """A pipeline's picture of a frame, without its boxes, with the threads of its own device."""
    with pane.on.active():
        return pane(frame)[0]
