"""A count of what is simulated beside PyTorch's operators: launches of shaders, and runs of MPSGraph's graphs."""

from __future__ import annotations

_noted = 0


def note() -> None:
    """Count a launch, or a run."""
    global _noted
    _noted += 1


def count() -> int:
    """Return how many were counted in this process."""
    return _noted
