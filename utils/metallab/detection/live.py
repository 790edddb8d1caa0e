"""Panes in a notebook that show frames as they are made, each with its rate, and a button that stops them."""

from __future__ import annotations

import base64
import functools
import itertools
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metallab import mode, timing
from metallab.detection import boxes, video

_playing: list[Live] = []


class Live:
    """Frames of a source go to each pane in turn, in a thread of their own, until they end or Stop is pressed.

    ``panes`` are `metallab.detection.pipelines.Pipeline`s. ``frames``, which were taken from the source before, come
    first, then the rest, ``most`` in all. A camera shows what it sees from now on, until Stop is pressed. The rate in a
    pane's corner is that of its own work; it is withheld while other programs compute, in fast mode, and if a pane is
    simulated. A view that still plays is stopped first. As the last line of a cell it begins and shows its widget; in a
    run without a person it plays to its end, and shows its last pictures.
    """

    def __init__(
        self, panes: Mapping[str, Any], source: video.Source, frames: Sequence[np.ndarray] = (), most: int = 100
    ) -> None:
        from ipywidgets import HTML, Button, HBox, Image, Layout, VBox

        self.panes, self.close = dict(panes), source.close
        self.headless = bool(os.environ.get("METALLAB_OUT"))
        self.frames = source.frames if source.live else itertools.chain(frames, source.frames)
        if self.headless or not source.live:
            self.frames = itertools.islice(self.frames, most)
        self.shown = 0
        """How many frames every pane has shown."""
        self.seconds = dict.fromkeys(self.panes, 0.0)
        self.last: dict[str, np.ndarray] = {}
        """Each pane's last picture."""
        self.problem: Exception | None = None
        self.stopped = threading.Event()
        self.pictures = {name: Image(format="jpeg", layout=Layout(width="100%")) for name in self.panes}
        self.button = Button(description="Stop", icon="stop", tooltip="stop the live view")
        self.button.on_click(lambda _: self.stopped.set())
        self.state = HTML()
        self.widget = VBox([HBox([self.pictures[name] for name in self.panes]), HBox([self.button, self.state])])
        self.thread = threading.Thread(target=self._play, name="live", daemon=True)

    def start(self):
        """Begin, and return the widget."""
        for view in _playing:
            view.stopped.set()
            view.thread.join(10)
        _playing[:] = [self]
        self.thread.start()
        return self.widget

    def _repr_mimebundle_(self, **options) -> dict | tuple[dict, dict]:
        widget = self.start()
        if not self.headless:
            return widget._repr_mimebundle_(**options)
        self.report()
        picture = base64.b64encode(video.jpeg(functools.reduce(video.side_by_side, self.last.values()))).decode()
        words = f"The last pictures of the live view: {', '.join(self.last)}"
        return {"image/jpeg": picture, "text/plain": words}, {"image/jpeg": {"alt": words}}

    def report(self, timeout: float = 120.0) -> str:
        """How many frames were shown, once the view has ended, or that it goes on after ``timeout`` seconds.

        An error of a pane is raised here.
        """
        self.thread.join(timeout)
        if self.thread.is_alive():
            return "The live view goes on; press Stop."
        if self.problem:
            raise self.problem
        return f"The live view showed {self.shown} frames."

    def _play(self) -> None:
        load = timing.Others()
        try:
            for frame in self.frames:
                if self.stopped.is_set():
                    break
                for name in self.panes:
                    self._show(name, frame, load.cores())
                self.shown += 1
                self.state.value = f"{self.shown} frames"
        except Exception as error:  # noqa: BLE001  # report() raises it; a thread would lose it
            self.problem = error
            self.state.value = f"stopped: {type(error).__name__}"
        finally:
            self.button.disabled = True
            self.close()

    def _show(self, name: str, frame: np.ndarray, others: float) -> None:
        start = time.perf_counter()
        with self.panes[name].on.active():
            picture, _ = self.panes[name](frame)
        self.seconds[name] += time.perf_counter() - start
        rate = f"{(self.shown + 1) / self.seconds[name]:.1f} frames/s"
        if any(pane.on.simulated for pane in self.panes.values()):
            rate = "no rate, simulated"
        elif mode.current() != "full":
            rate = "no rate, fast mode"
        elif others > timing.BUSY:
            rate = "no rate, busy machine"
        self.last[name] = boxes.captioned(video.fitted(picture), f"{name}: {rate}")
        self.pictures[name].value = video.jpeg(self.last[name])
