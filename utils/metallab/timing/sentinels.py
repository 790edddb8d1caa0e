"""Sentinels: a fixed piece of work, timed before and after others, tells whether the machine kept its speed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from metallab.timing.measurement import Measurement
from metallab.timing.verdicts import has_drifted, why_withheld


@dataclass
class Sentinel:
    """A fixed computation timed before and after a run; if it drifted, speed-ups in between are withheld."""

    before: Measurement
    after: Measurement | None = None
    """None until the run has ended."""

    @property
    def drift(self) -> float:
        """Relative change of the computation's time: 0.1 is 10 % longer. RuntimeError before the run has ended."""
        if self.after is None:
            raise RuntimeError(
                "the sentinel measures again when its `with` block ends: ask for speed-ups after it"
            )
        return self.after.median / self.before.median - 1

    @property
    def throttled(self) -> bool:
        """True if the time moved too far; never in fast mode, in which nothing is concluded anyway."""
        return self.before.mode == "full" and has_drifted(self.drift)

    def __str__(self) -> str:
        withheld = why_withheld(self.before, drift=self.drift)
        verdict = "steady" if withheld is None else withheld.label
        return f"sentinel on {self.before.device}: {self.drift:+.1%} ({verdict})"


_open: ContextVar[tuple[Sentinel, ...]] = ContextVar("open sentinels", default=())


def find_open() -> tuple[Sentinel, ...]:
    """Return the sentinels whose ``with`` blocks run now, the outermost first."""
    return _open.get()


@contextlib.contextmanager
def keep_open(watch: Sentinel) -> Iterator[None]:
    """Let comparisons of this block know of a sentinel."""
    token = _open.set((*_open.get(), watch))
    try:
        yield
    finally:
        _open.reset(token)
