"""How much work a run does: ``METALLAB_MODE`` is ``full`` (the default) or ``fast``.

Fast mode runs the same code on small sizes with three samples, and marks every record; it exists to find broken
pages quickly, never to learn how fast anything is.
"""

from __future__ import annotations

import os
from typing import Literal, TypeVar, get_args

T = TypeVar("T")
Mode = Literal["full", "fast"]
MODES: tuple[Mode, ...] = get_args(Mode)


def current() -> Mode:
    """``"full"`` or ``"fast"``, from ``METALLAB_MODE``; ValueError on anything else."""
    mode = os.environ.get("METALLAB_MODE") or "full"
    if mode not in MODES:
        raise ValueError(
            f"METALLAB_MODE is {mode!r}; set it to 'full' or 'fast', or unset it for 'full'"
        )
    return mode


def by_mode(*, full: T, fast: T) -> T:
    """The value for this run's mode: ``size = by_mode(full=4096, fast=256)``."""
    return full if current() == "full" else fast
