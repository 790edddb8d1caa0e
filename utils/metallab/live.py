"""Panes in a notebook that show frames as they are made, with a button that stops them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from metallab import video


class Live:
    """Frames go to each pane in turn, in a thread of their own, until they end or Stop is pressed.

    ``panes`` maps a name to a function that makes a picture of a frame, both uint8 (height, width, 3) in RGB. Show the
    widget that `start` returns. While a cell computes Jupyter does not hear the button: let the cell end.
    """

    def __init__(self, panes: Mapping[str, Callable[[np.ndarray], np.ndarray]], frames: Iterable[np.ndarray]) -> None:
        from ipywidgets import HTML, Button, HBox, Image, Layout, VBox

        self.panes, self.frames = dict(panes), frames
        self.shown = 0
        """How many frames every pane has shown."""
        self.problem: Exception | None = None
        self.stopped = threading.Event()
        self.pictures = {name: Image(format="jpeg", layout=Layout(width="100%")) for name in self.panes}
        self.button = Button(description="Stop", icon="stop", tooltip="stop the live view")
        self.button.on_click(lambda _: self.stop())
        self.state = HTML()
        self.widget = VBox([HBox([self.pictures[name] for name in self.panes]), HBox([self.button, self.state])])
        self.thread = threading.Thread(target=self._play, name="live", daemon=True)

    def start(self):
        """Begin, and return the widget."""
        self.thread.start()
        return self.widget

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

    def _play(self) -> None:
        try:
            for frame in self.frames:
                if self.stopped.is_set():
                    break
                for name, make in self.panes.items():
                    self.pictures[name].value = video.jpeg(make(frame))
                self.shown += 1
                self.state.value = f"{self.shown} frames"
        except Exception as error:  # noqa: BLE001  # wait() raises it; in a thread nobody would hear of it
            self.problem = error
            self.state.value = f"stopped: {type(error).__name__}"
        finally:
            self.button.disabled = True
