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
        """The number of samples at which the noise is computed again."""

    @property
    def seconds(self) -> float:
        """Since the first could be taken."""
        return (self.clock() - self.started) / 1e9

    @property
    def kept(self) -> list[Sequence[float]]:
        """The rows, or every n-th of more than twice `MAX_SAMPLES`."""
        return self.rows[:: max(1, len(self.rows) // MAX_SAMPLES)]

    def stop_reason(self, budget: Budget, repeated: float = 0.0) -> str | None:
        """Return why to stop now, or None to go on.

        The clock is read each time. The noise takes longer, and is computed only when there are some more rows.
        ``repeated`` is the time, in seconds, of rows that do not count, since others are taken in their place.
        """
        count = len(self.rows)
        if count == 0:
            return None
        if budget.max_samples and count >= budget.max_samples:
            return f"{count} samples, as asked"

        passed = self.seconds
        if count >= self.next_noise:
            self.next_noise = self._choose_next_noise(budget)
            has_enough = count >= budget.min_samples
            if has_enough and passed - repeated >= budget.min_seconds * self.columns:
                calm = self._describe_calm(budget)
                if calm is not None:
                    return calm
        return "time limit" if passed >= self.time_limit(budget) else None

    def _choose_next_noise(self, budget: Budget) -> int:
        """Return the number of samples at which to compute the noise again: a fifth more, or the budget's least."""
        count = len(self.rows)
        a_fifth_more = math.ceil(count * 1.2)
        return min(a_fifth_more, budget.min_samples) if count < budget.min_samples else a_fifth_more

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
        """Return the time limit in seconds; a comparison of slow variants has more, for the pairs of an interval."""
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
