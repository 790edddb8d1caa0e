"""A model of the times of other batches, made from two that were measured.

A page's exercise calls one of the two functions, and returns what they return::

    @exercise("33.1", hint="which part of a step does not grow with the batch?")
    def judge_seconds(seconds, measure):
        return judge_model(seconds, measure, batches=(2, 8, 16, 64))

`measure` is an argument: on the page it times a step of that batch on this machine, in a test it is a planted machine.
As the times are this machine's, a model that misses them is *open*, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from metallab import units
from metallab.exercises.judging import Open, Right, expect_that

Measure = Callable[[int], float]
"""Returns the seconds of a step of a batch."""


@dataclass(frozen=True)
class _Row:
    """What was predicted of a batch, and measured."""

    batch: int
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        return (
            f"batch {self.batch}: predicted {units.seconds(self.predicted)}, "
            f"measured {units.seconds(self.measured)} ({self.off:+.0%})"
        )


def judge_model(
    seconds: Callable[[int], Any],
    measure: Measure,
    *,
    batches: Sequence[int],
    within: float = 0.3,
    misses: int = 1,
) -> Right | Open:
    """Judge a model of step times at batches that it was not made from.

    Parameters
    ----------
    seconds
        The learner's model: a batch size to the seconds of a step.
    measure
        Returns the seconds of a step of a batch on this machine.
    batches
        The batches at which it is checked.
    within
        How far off a prediction may be, as a share of what is measured.
    misses
        So many of the batches may be off by more.

    Returns
    -------
    Right or Open
        With what was predicted and measured of each batch.

    Raises
    ------
    AssertionError
        If the model returns no number above 0.
    """
    # all before the first step is timed, which takes long: what is no time is told at once
    predicted = [seconds(batch) for batch in batches]
    for batch, value in zip(batches, predicted, strict=True):
        expect_that(_is_time(value), f"seconds({batch})", value, "seconds, a number above 0")

    rows = [
        _Row(batch, float(value), measure(batch))
        for batch, value in zip(batches, predicted, strict=True)
    ]
    told = "; ".join(map(str, rows))
    off = [row for row in rows if abs(row.off) > within]
    if len(off) <= misses:
        return Right(f"{told}.")

    too_long = sum(row.off > 0 for row in off)
    way = "long" if too_long > len(off) / 2 else "short"
    return Open(
        f"{told}. Most of what is off by more than {within:.0%} is predicted too {way}: "
        "which part of a step does not grow with the batch?"
    )


def judge_largest(
    batch: Any, measure: Measure, *, limit: float, slack: float = 0.1
) -> Right | Open:
    """Judge the largest batch whose step takes no longer than a limit: it holds the limit, and twice of it does not.

    Parameters
    ----------
    batch
        The learner's answer.
    measure
        Returns the seconds of a step of a batch on this machine.
    limit
        Seconds.
    slack
        How far a time may be on the other side, as a share of the limit, since times scatter.

    Returns
    -------
    Right or Open
        With both times, and in which direction a better answer lies.

    Raises
    ------
    AssertionError
        If the answer is no whole number above 0.
    """
    is_batch = isinstance(batch, int) and not isinstance(batch, bool) and batch > 0
    expect_that(is_batch, "your answer", batch, "a whole number above 0")

    own, double = measure(batch), measure(2 * batch)
    told = (
        f"batch {batch} takes {units.seconds(own)}, batch {2 * batch} {units.seconds(double)}, "
        f"the limit is {units.seconds(limit)}"
    )
    if own > limit * (1 + slack):
        return Open(f"{told}: yours is over the limit.")
    if double < limit * (1 - slack):
        return Open(f"{told}: a larger batch fits, too.")
    return Right(f"{told}.")


def _is_time(value: Any) -> bool:
    """Return whether it is a number above 0."""
    try:
        return math.isfinite(value) and value > 0
    except TypeError:
        return False
