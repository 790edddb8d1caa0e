"""What a question may use; without PyTorch, since the process that asks does not import it."""

from __future__ import annotations

from dataclasses import dataclass

OVER_MEMORY = 77
"""The exit code of a process that ended itself because it used more memory than it may."""


@dataclass(frozen=True)
class Limits:
    """What a question may use, and the machine that is asked about beside this one."""

    seconds: float = 60.0
    max_bytes: int = 2**40
    """Memory of the process that answers."""
    machine_bytes: int | None = None
    """Memory of another machine that the question of memory also asks about."""
