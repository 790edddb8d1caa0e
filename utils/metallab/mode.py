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


NOT_STRICT = ("", "0", "no")
"""What ``METALLAB_STRICT``, ``STRICT=`` of the Makefile and ``--strict=`` may say besides 1, which is strict."""


def is_strict() -> bool:
    """Return whether ``METALLAB_STRICT`` asks for a strict run (`read_strict`)."""
    return read_strict(os.environ.get("METALLAB_STRICT", ""), "METALLAB_STRICT")


def read_strict(told: str, name: str) -> bool:
    """Return whether a page that did not run whole is a failure: True for 1, False for 0, no and nothing.

    Parameters
    ----------
    told
        What was given.
    name
        Of the variable or option that it was given to, for the message.

    Raises
    ------
    ValueError
        If it is another word.
    """
    if told != "1" and told not in NOT_STRICT:
        raise ValueError(f"{name} is {told!r}; set it to 1 for a strict run, or to 0")
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
