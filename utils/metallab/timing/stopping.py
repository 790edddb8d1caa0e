"""When to stop: rows of samples, and the rule that says that they are enough."""

from __future__ import annotations

import math
from collections.abc import Sequence

from metallab.timing.budget import Budget, Clock
from metallab.timing.measurement import noise
from metallab.timing.verdicts import FEWEST_PAIRS

MAX_SAMPLES = 2000
"""Of more than twice as many samples every n-th is kept."""

SECONDS_FOR_PAIRS = 10.0
"""Seconds for which a comparison of slow calls continues at least, to get the pairs of an interval."""

QUIET = 0.05
"""Samples whose noise is below this are enough."""

STABLE = 0.10
"""So they are if half of them have the same noise, within this share of it."""


class Samples:
    """Rows of samples, a column for each variant, and the rule when to stop."""

    def __init__(self, columns: int, clock: Clock) -> None:
        self.columns = columns
        self.clock = clock
        self.started = clock()
        self.rows: list[Sequence[float]] = []
        """Seconds a call."""
        self.next_noise = 1
        """The number of rows from which on the noise is computed."""

    @property
    def seconds(self) -> float:
        """Since this was made; what comes before the first row and between rows counts, too."""
        return (self.clock() - self.started) / 1e9

    @property
    def kept(self) -> list[Sequence[float]]:
        """The rows, or every n-th of more than twice `MAX_SAMPLES`."""
        return self.rows[:: max(1, len(self.rows) // MAX_SAMPLES)]

    def stop_reason(self, budget: Budget) -> str | None:
        """Return why to stop now, or None to go on.

        The clock is read each time. The noise takes longer to compute: that is done when there are a fifth more rows.
        """
        count = len(self.rows)
        if count == 0:
            return None
        if budget.max_samples and count >= budget.max_samples:
            return f"{count} samples, as asked"

        passed = self.seconds
        if count >= self.next_noise and self._has_least(budget, passed):
            self.next_noise = math.ceil(count * 1.2)
            calm = self._describe_calm(budget)
            if calm is not None:
                return calm
        return "time limit" if passed >= self.time_limit(budget) else None

    def calm(self, budget: Budget, seconds: float) -> str | None:
        """Return why rows that took so many seconds are enough; None if they are too few, or more would tell more."""
        return self._describe_calm(budget) if self._has_least(budget, seconds) else None

    def least_seconds(self, budget: Budget) -> float:
        """Return the seconds before which no noise ends it."""
        return min(budget.min_seconds * self.columns, budget.max_seconds)

    def _has_least(self, budget: Budget, seconds: float) -> bool:
        """Return whether rows that took so many seconds are as many as the budget wants at least, and took as long."""
        return len(self.rows) >= budget.min_samples and seconds >= self.least_seconds(budget)

    def _describe_calm(self, budget: Budget) -> str | None:
        """Return what is known of the noise of all columns; None if more samples would tell more."""
        columns = list(zip(*self.kept, strict=True))
        if all(noise(column) < QUIET for column in columns):
            return "quiet"

        can_be_halved = len(self.rows) >= 2 * budget.min_samples
        if can_be_halved and all(map(_noise_is_stable, columns)):
            return "noise is stable"
        return None

    def time_limit(self, budget: Budget) -> float:
        """Return the time limit in seconds.

        It is the budget's where there are as many rows as it wants. A comparison that lacks them has this time for each
        of its variants, and more where calls are so slow that the pairs of an interval are lacking.
        """
        has_enough = len(self.rows) >= budget.min_samples
        if has_enough or self.columns == 1:
            return budget.max_seconds

        limit = budget.max_seconds * self.columns
        lacks_pairs = len(self.rows) < FEWEST_PAIRS <= budget.min_samples
        if not lacks_pairs:
            return limit
        return max(2 * limit, SECONDS_FOR_PAIRS)  # twice: each sample follows an untimed call


def _noise_is_stable(samples: Sequence[float]) -> bool:
    """Return whether half of the samples have the same noise, within `STABLE`."""
    now, before = noise(samples), noise(samples[: len(samples) // 2])
    return abs(now - before) <= STABLE * now
