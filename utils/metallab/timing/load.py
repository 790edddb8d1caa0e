"""What else the machine does while something is timed, and how to keep this process out of its own way."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator

import psutil

from metallab import measuring_lock

_SHORTEST = 0.3
"""Seconds below which nothing is known of other programs: systems count in steps of 10 ms."""


class BackgroundLoad:
    """Counts the cores that other programs use: all busy time less that of this process and of those it started."""

    def __init__(self) -> None:
        self.wall = time.monotonic()
        self.busy = _count_busy_seconds()
        self.own = _count_own_seconds()

    def cores(self) -> float:
        """Return the cores that others used on average since this was made; 0 where that was too short to know."""
        wall = time.monotonic() - self.wall
        if wall < _SHORTEST:
            return 0.0

        busy = _count_busy_seconds() - self.busy
        own = _count_own_seconds() - self.own
        return max(0.0, (busy - own) / wall)

    def wait(self) -> None:
        """Wait until `cores` knows something, where what is timed took less than that."""
        time.sleep(max(0.0, _SHORTEST - (time.monotonic() - self.wall)))


@contextlib.contextmanager
def quiet() -> Iterator[BackgroundLoad]:
    """Measure alone: wait until nobody else measures (`metallab.measuring_lock`), and switch garbage collection off.

    Yields
    ------
    BackgroundLoad
        Its ``cores()`` says how many cores other programs used from then on.

    Examples
    --------
    >>> with timing.quiet() as load:
    ...     seconds = timeit.timeit(work, number=100)
    >>> load.cores()
    0.02
    """
    with measuring_lock.hold():
        load = BackgroundLoad()
        was_on = gc.isenabled()
        gc.disable()
        try:
            yield load
        finally:
            if was_on:
                gc.enable()


def _count_own_seconds() -> float:
    """Return the busy seconds of this process and of all that it started, such as compilers and workers that load data.

    What a process that has ended used is in the count of the one that waited for it. macOS keeps that for this process
    alone: there the work of a child's child counts as that of others once it has ended.
    """
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            used = child.cpu_times()
            seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


def _count_busy_seconds() -> float:
    """Return the busy seconds of all cores since the machine started, with those taken by its host."""
    times = psutil.cpu_times()
    return sum(
        getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal")
    )
