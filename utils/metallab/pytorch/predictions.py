"""Open exercises: predict, run, explain.

A learner predicts how long something takes, it is measured, and where the two are far apart the learner names the cause
by an experiment: a call that computes the same without it. No check knows the right number, since it is this machine's.
What is checked is that the experiment computes the same, which is right or wrong, and that it closes half of the gap,
which stays *open* where it does not: on another machine the cause may be another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metallab import roofline, units
from metallab.isolated import Skipped

HELD = 2.0
"""A prediction holds within this factor, in either direction."""


@dataclass(frozen=True)
class Explanation:
    """A prediction, what was measured, and what an experiment made of the difference. Seconds."""

    predicted: float
    measured: float
    without: float | None
    """Without what is suspected; None where nothing had to be explained, or nothing was tried."""

    @property
    def factor(self) -> float:
        """How far the prediction was off, from 1 on."""
        return max(self.predicted / self.measured, self.measured / self.predicted)

    @property
    def has_held(self) -> bool:
        """Whether there is nothing to explain."""
        return self.factor <= HELD

    @property
    def is_explained(self) -> bool:
        """Whether the experiment closes half of the gap."""
        if self.without is None:
            return False
        return roofline.explains(self.predicted, self.measured, self.without)

    def __str__(self) -> str:
        direction = "longer" if self.measured > self.predicted else "shorter"
        text = (
            f"predicted {units.seconds(self.predicted)}, measured {units.seconds(self.measured)}: "
            f"{units.times(self.factor)} times {direction}"
        )
        if self.has_held:
            return f"{text}, which is a good prediction"
        if self.without is None:
            return f"{text}: name the cause by an experiment"
        return f"{text}; without what you suspect {units.seconds(self.without)}"


def explain(
    predicted: float,
    call: Callable[[], Any],
    without: Callable[[], Any] | None,
    is_same: Callable[[Any, Any], bool],
    measure: Callable[[Callable[[], Any]], float],
) -> Explanation:
    """Measure what was predicted, and the experiment that is to explain the difference.

    Parameters
    ----------
    predicted : float
        Seconds.
    call : callable
        What was predicted.
    without : callable or None
        The same without the suspected cause.
    is_same : callable
        Compares both results.
    measure : callable
        Returns the seconds of a call; an argument, so that a test can plant a machine.

    Returns
    -------
    Explanation
        With the experiment's time only where the prediction did not hold.

    Raises
    ------
    AssertionError
        The prediction is no number of seconds above 0, or the experiment computes something else.
    """
    is_number = isinstance(predicted, int | float) and not isinstance(predicted, bool)
    assert is_number, f"a prediction is a number of seconds above 0, and not {predicted!r}"
    assert 0 < predicted < math.inf, (
        f"a prediction is a number of seconds above 0, and not {predicted!r}"
    )
    assert without is None or is_same(call(), without()), (
        "the experiment computes something else: change the cause, and nothing besides"
    )

    explanation = Explanation(float(predicted), measure(call), None)
    if explanation.has_held or without is None:
        return explanation
    return Explanation(explanation.predicted, explanation.measured, measure(without))


def judge(explanation: Explanation) -> bool | Skipped:
    """Return True where the prediction held or was explained; an open question is not judged, and never wrong."""
    if explanation.has_held or explanation.is_explained:
        return True
    return Skipped(
        f"open: {explanation}. On this machine it is not the main cause, look for another"
    )
