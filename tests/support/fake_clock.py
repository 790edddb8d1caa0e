"""A clock for tests whose time passes only where they say so."""

from __future__ import annotations

from collections.abc import Callable


class FakeClock:
    """A clock that moves only when told: functions made by `taking` advance it by their duration."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now

    def taking(self, durations: Callable[[], float]) -> Callable[[], None]:
        """A function that takes as many seconds of this clock as ``durations()`` says."""

        def work() -> None:
            self.now += max(1, round(durations() * 1e9))

        return work

    def returning(self, value: object, seconds: float = 0.010) -> Callable[[], object]:
        """A function that takes so many seconds of this clock and returns the value."""
        work = self.taking(lambda: seconds)
        return lambda: (work(), value)[1]
