"""An accelerator in miniature, to learn and to test with: a queue, and a thread that works through it.

Like a GPU it takes work at once and finishes it later, compiles a kernel the first time a shape is seen, and has to be
waited for. Its kernels compute nothing: they sleep for the time they are told, so that the truth about every
measurement on it is known beforehand. It imitates no hardware and no number from it says anything about any.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from typing import Any


class FakeDevice:
    """A device (see `metallab.timing.DeviceLike`) whose work is finished later, on a thread.

    ``compile_seconds`` is added to the first launch of each shape; ``slowdown_per_second`` makes every kernel take that
    fraction longer for each second since the device was made, as a chip does that is getting hot. Use it in a ``with``
    block, or ``close()`` it. ValueError for a time or a slowdown that is negative or not a number.
    """

    kind = "fake"
    label = "fake device (a thread that sleeps)"
    simulated = False  # its times are real times, of sleeping, and its label says so
    waits_for_results = False

    def __init__(self, *, compile_seconds: float = 0.0, slowdown_per_second: float = 0.0) -> None:
        self.compile_seconds = _finite(compile_seconds, "compile_seconds")
        self.slowdown_per_second = _finite(slowdown_per_second, "slowdown_per_second")
        self.launched = 0
        self.finished = 0
        self._compiled: set[Any] = set()
        self._made = time.perf_counter()
        self._queue: queue.Queue[float | None] = queue.Queue()
        self._worker = threading.Thread(target=self._work, name="fake-device", daemon=True)
        self._worker.start()

    def launch(self, seconds: float, shape: Any = None) -> None:
        """Queue a kernel that takes ``seconds`` and return at once. RuntimeError if the device is closed."""
        # refused here: on the thread it would end the work, and whoever waits would wait for ever
        seconds = _finite(seconds, "seconds")
        if not self._worker.is_alive():
            raise RuntimeError("this fake device is closed; make a new one")
        if shape not in self._compiled:
            self._compiled.add(shape)
            seconds += self.compile_seconds
        self.launched += 1
        self._queue.put(seconds)

    def synchronize(self, *results: Any) -> None:
        """Wait until every launched kernel is finished."""
        self._queue.join()

    def active(self) -> contextlib.AbstractContextManager:
        """No settings."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Finish what is queued and end the thread. Closing twice is no mistake."""
        if self._worker.is_alive():
            self._queue.put(None)
            self._worker.join()

    def __enter__(self) -> FakeDevice:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _work(self) -> None:
        while (seconds := self._queue.get()) is not None:
            time.sleep(
                seconds * (1 + self.slowdown_per_second * (time.perf_counter() - self._made))
            )
            self.finished += 1
            self._queue.task_done()
        self._queue.task_done()  # for the order to end: else waiting for a closed device would never end


def _finite(value: float, what: str) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{what} is {value}; it must be 0 or more, and finite")
    return value
