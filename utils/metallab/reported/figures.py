"""Which check finds each published figure of `metallab.reported.impossible`."""

from __future__ import annotations

from dataclasses import dataclass

from metallab import units
from metallab.reported import Check, Figure, peaks

SAME = 0.05
"""Times whose spread is below this share of the largest are the same."""

APART = 2.0
"""Machines whose peaks differ by this factor should not take the same time, nor two readings differ by so much."""

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_PREFIXES = {"PFLOP/s": 1e15, "TFLOP/s": 1e12, "GB/s": 1e9}


@dataclass(frozen=True)
class Finding:
    """What a check says of a figure."""

    check: Check
    value: float
    """What the figure amounts to: FLOP/s, B/s, a spread, a number of calls or a factor."""
    limit: float
    """What it should keep to."""
    words: str
    """Both, for people."""


def rate(figure: Figure) -> float:
    """What a figure amounts to: its work per second.

    Parameters
    ----------
    figure : Figure
        With a ``work``, and one chip.

    Returns
    -------
    float
        FLOP/s, or B/s where its work is bytes.

    Raises
    ------
    ValueError
        The figure says nothing of its work, or has several chips.
    """
    if figure.work is None or len(figure.published) != 1:
        raise ValueError(
            f"{figure.name!r} has no rate: its work is unknown, or it has several times"
        )

    (published,) = figure.published
    if figure.unit in _SECONDS:
        return figure.work / (published * _SECONDS[figure.unit])
    return published * figure.work * _PREFIXES.get(figure.unit, 1.0)


def at_most(figure: Figure) -> peaks.Band | None:
    """What the figure's chip could do at most, or None where that is unknown or the figure has several chips."""
    if len(figure.chips) != 1:
        return None
    if figure.check is Check.BANDWIDTH:
        return peaks.bandwidth(figure.chips[0])
    return peaks.arithmetic(figure.chips[0], figure.dtype or "float32")


def find(figure: Figure) -> list[Finding]:
    """Try every check on a figure.

    Parameters
    ----------
    figure : Figure
        One of `metallab.reported.impossible`, or one of your own.

    Returns
    -------
    list of Finding
        One for each check that finds something; empty for a figure that may well be true.

    Raises
    ------
    ValueError
        The figure is a time that somebody else gives as a rate, and says nothing of its work.
    """
    tried = (
        _above_limit(figure),
        _same_time(figure),
        _never_repeated(figure),
        _read_otherwise(figure),
    )
    return [finding for finding in tried if finding]


def _above_limit(figure: Figure) -> Finding | None:
    """Find more work a second than the chip or its memory can do.

    None where the limit or the work is unknown. A figure says itself whether its work is bytes, by its ``check``.
    """
    limit = at_most(figure)
    if limit is None or figure.work is None:
        return None

    reached = rate(figure)
    if reached <= limit.high:
        return None
    check = Check.BANDWIDTH if figure.check is Check.BANDWIDTH else Check.ARITHMETIC
    words = f"{units.rate(reached, limit.unit)} where an {figure.chips[0]} has {limit}"
    return Finding(check, reached, limit.high, words)


def _same_time(figure: Figure) -> Finding | None:
    """Find times within `SAME` of each other on machines whose peaks are `APART` times as far, or farther."""
    if len(figure.published) < 2:
        return None

    limits = [band.high for chip in figure.chips if (band := peaks.float32(chip))]
    spread = 1 - min(figure.published) / max(figure.published)
    if spread >= SAME or len(limits) < 2 or max(limits) < APART * min(limits):
        return None
    apart = units.times(max(limits) / min(limits))
    words = (
        f"times within {spread:.0%} of each other, on chips whose largest GPUs differ {apart} times"
    )
    return Finding(Check.SAME_TIME, spread, SAME, words)


def _never_repeated(figure: Figure) -> Finding | None:
    """Find a time of first calls."""
    if figure.repeats is None or figure.repeats >= 2:
        return None
    words = "each shape was called once, so its time has the making of programs in it"
    return Finding(Check.REPEATS, figure.repeats, 2, words)


def _read_otherwise(figure: Figure) -> Finding | None:
    """Find that somebody else reads something very different, by a factor of `APART`; None of several figures."""
    if figure.other is None or len(figure.published) != 1:
        return None

    (own,) = figure.published
    if figure.unit in _SECONDS:
        own = rate(figure) / 1e12  # the other reading is in TFLOP/s then
    factor = max(own, figure.other) / min(own, figure.other)
    if factor < APART:
        return None
    words = f"{units.times(factor)} times away from another reading: {figure.other_source}"
    return Finding(Check.ANOTHER_READING, factor, APART, words)
