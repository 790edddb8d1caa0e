"""How long a fuzzer looks: at some hundred examples, the same each time, in `make test`; for minutes with `SUITE=fuzz`.

``METALLAB_FUZZ`` is the number of minutes for all fuzzers together: half of them for files of results, which take long,
and half for the others, which share it evenly. Examples are then random.
A counter-example is printed in full, and belongs into a test of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

SECONDS = 60 * float(os.environ.get("METALLAB_FUZZ") or 0)
"""For all fuzzers together; 0 in `make test`."""
_fuzzers: list[str] = []


def fuzzed(examples: int, **strategies: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A test of a check, whose arguments are drawn: of so many examples, and of more until its time is up."""

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        _fuzzers.append(check.__name__)

        def test() -> None:
            until = time.monotonic() + SECONDS / 2 / len(_fuzzers)
            look = settings(
                max_examples=examples,
                deadline=None,
                derandomize=not SECONDS,
                database=None,
                phases=(Phase.explicit, Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            )(given(**strategies)(check))
            look()
            while time.monotonic() < until:
                look()

        test.__doc__, test.__name__ = check.__doc__, check.__name__
        return test

    return decorate
