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
    """Return ``"full"`` or ``"fast"``, from ``METALLAB_MODE``; ValueError on anything else."""
    mode = os.environ.get("METALLAB_MODE") or "full"
    if mode not in MODES:
        raise ValueError(
            f"METALLAB_MODE is {mode!r}; set it to 'full' or 'fast', or unset it for 'full'"
        )
    return mode


def is_strict() -> bool:
    """Return whether a page that did not run whole is a failure: ``METALLAB_STRICT`` is 1, neither 0 nor empty.

    ValueError on anything else.
    """
    told = os.environ.get("METALLAB_STRICT") or "0"
    if told not in ("0", "1"):
        raise ValueError(f"METALLAB_STRICT is {told!r}; set it to 1 for strict runs, or unset it")
    return told == "1"


def by_mode(*, full: T, fast: T) -> T:
    """Return the value for this run's mode: ``size = by_mode(full=4096, fast=256)``.

    Parameters
    ----------
    full, fast
        The values for either mode, of any type.

    Raises
    ------
    ValueError
        ``METALLAB_MODE`` is neither.
    """
    return full if current() == "full" else fast
