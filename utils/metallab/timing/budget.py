"""How long to measure: what ends a measurement, a comparison, or a sweep on a page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from metallab import units

T = TypeVar("T")

Clock = Callable[[], int]
"""Returns nanoseconds, as `time.perf_counter_ns`."""

SHORTEST = 0.05
"""Seconds that a comparison gets even where nothing is left."""


@dataclass(frozen=True)
class Budget:
    """How long to measure; waiting between samples counts, too.

    Parameters
    ----------
    min_samples
        Samples of each function before noise may end a measurement; the time limit ends it anyway.
    min_seconds
        Seconds for each function, at least; of many functions together no more than ``max_seconds``.
    max_seconds
        Seconds after which it ends if it has ``min_samples``. A comparison that lacks them goes on until each function
        had so many seconds. A sample that has begun is finished, and a comparison may take disturbed rounds again for
        about as long.
    max_samples
        Samples after which it ends in any case; None for no such number.
    warmup_calls
        Calls before the first sample, at least.
    warmup_seconds
        Seconds of these calls, at least.
    warmup_limit
        Seconds after which warming up ends, though the times have not settled; 0 takes the least of it.
    block_seconds
        Seconds of one sample of the throughput, at least: as many calls as that takes are waited for together.
    """

    min_samples: int = 10
    min_seconds: float = 0.5
    max_seconds: float = 4.0
    max_samples: int | None = None
    warmup_calls: int = 3
    warmup_seconds: float = 0.025
    warmup_limit: float = 0.5
    block_seconds: float = 0.020


FULL = Budget()
"""Of `measure`, in full mode."""

FULL_COMPARISON = Budget(min_samples=20)
"""Of `compare`, in full mode: 20 pairs see a true 1.10 at 5 % noise, and 10 often do not."""

FAST = Budget(
    min_samples=3,
    max_samples=3,
    warmup_calls=1,
    warmup_seconds=0.0,
    warmup_limit=0.0,
    block_seconds=0.002,
)
"""Of either, in fast mode."""

PAGE_SENTINEL = Budget(min_seconds=0.2, max_seconds=2.0)
"""Of the two measurements of a sentinel that a page opens, or that `make bench` makes around one."""


def shorten(budget: Budget, seconds: float) -> Budget:
    """Return a budget whose ``max_seconds`` are at most so many.

    Parameters
    ----------
    budget
        What may be taken otherwise.
    seconds
        The time; of less than `SHORTEST` that is taken.
    """
    most = min(budget.max_seconds, max(SHORTEST, seconds))
    return replace(budget, max_seconds=most, min_seconds=min(budget.min_seconds, most))


def assert_time(seconds: float, what: str) -> None:
    """Raise unless this is a time: neither 0 nor negative, infinite or NaN.

    Parameters
    ----------
    seconds
        The number.
    what
        What was to take so long, for the message.

    Raises
    ------
    ValueError
        If it is no time.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{what}: {seconds} s is no time; give seconds, more than 0 (of work: measure one first)"
        )


def within(
    seconds: float,
    items: Iterable[T],
    what: str = "",
    *,
    least: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[T]:
    """Go through ``items`` while there is time for one more, and print which were left out for lack of it.

    One more is taken to need what the one before took, so on a slow machine a sweep is shorter, and it is said. Nothing
    is interrupted: it takes longer by what had begun, or by what ``least`` insists on.

    >>> for n in timing.within(20, [64, 256, 1024], "sizes"):
    ...     timing.measure(make(n), on=lab, name=f"{n}")

    Parameters
    ----------
    seconds
        The time for all of them, from the first on.
    items
        What is gone through, such as sizes.
    what
        What they are, for the line that says which were left out.
    least
        So many are done in any case.
    clock
        Returns seconds.

    Raises
    ------
    ValueError
        If ``seconds`` is not above 0.
    """
    assert_time(seconds, "a sweep")
    waiting = list(items)
    started = clock()
    last = 0.0

    for done, item in enumerate(waiting):
        begun = clock()
        if done >= least and last > seconds - (begun - started):
            left_out = f"{what} {', '.join(map(str, waiting[done:]))}".lstrip()
            took = f"the last one, {waiting[done - 1]}, took {units.seconds(last)}"
            print(f"Left out for lack of time ({units.seconds(seconds)}): {left_out} ({took}).")
            return

        yield item
        last = clock() - begun
