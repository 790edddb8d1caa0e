"""The exercises of page 00."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from metallab.exercises.judging import exercise, expect

NAN, INFINITY = float("nan"), float("inf")


@exercise(
    "00.1",
    hint="every value; and ask what is within the tolerance, not what is beyond",
)
def judge_agree(agree: Callable[..., Any]) -> bool:
    """Ask whether arrays agree: with NaN, infinities, no values at all, and more dimensions than one."""
    cases: list[tuple[list, list, float, bool]] = [  # result, expected, tolerance, right
        ([1.0, 1.05, 1.0], [1.0, 1.0, 1.0], 0.1, True),
        ([1.0, 1.2, 1.0], [1.0, 1.0, 1.0], 0.1, False),
        ([1.0, 0.8, 1.0], [1.0, 1.0, 1.0], 0.1, False),
        ([1.0, NAN, 1.0], [1.0, 0.0, 1.0], 0.1, False),
        ([1.0, 1.0], [1.0, NAN], 0.1, False),
        ([1.0, NAN], [1.0, NAN], 0.1, False),
        ([INFINITY, 1.0, 1.0], [1.0, 1.0, 1.0], 0.1, False),
        ([2.0, -2.0], [-2.0, 2.0], 0.5, False),
        ([3e-9, 0.0], [0.0, 0.0], 1e-9, False),
        ([1e8, 0.0], [1e8 + 1, 0.0], 0.1, False),  # not in float32
        ([], [], 0.1, True),
        ([0.05] * 9, [0.0] * 9, 0.1, True),
        ([0.25, 3.5], [0.0, 3.75], 0.25, True),  # as far away as allowed
        ([[7.0, 0.0], [0.0, 7.0]], [[7.0, 0.0], [0.0, 7.0]], 0.0, True),
    ]

    for result, expected, tolerance, wanted in cases:
        given = [np.broadcast_to(x, np.shape(x)) for x in (result, expected)]
        got = agree(*given, tolerance)  # which it may read, and not write
        expect(f"agree({result}, {expected}, {tolerance})", got, wanted)
    return True


@exercise(
    "00.2",
    hint="as text, 2.15 comes before 2.9; packaging.version.Version compares numbers",
)
def judge_at_least(at_least: Callable[..., Any]) -> bool:
    """Ask about versions whose text sorts in another way than their numbers, and that are not finished."""
    cases = [
        ("2.15.0", "2.9", True),
        ("2.9.1", "2.15", False),
        ("2.9", "2.9", True),
        ("1.20", "2.9", False),
        ("3.0", "2.15", True),
        ("2.9", "2.9.0", True),
        ("2.9.0", "2.9", True),
        ("2.9.0", "2.9.1", False),
        ("2.9.10", "2.9.9", True),
        ("2.15.0+cu132", "2.15", True),
        ("2.9.0rc1", "2.9.0", False),
        ("2.9.0", "2.9.0rc1", True),
        ("2.9.0rc1", "2.9.0rc2", False),
        ("2.9.0rc10", "2.9.0rc9", True),
        ("2.9.0", "2.9.0.1", False),
        ("2.10.0.dev20250901", "2.10", False),
    ]

    for version, wanted, answer in cases:
        expect(f"at_least({version!r}, {wanted!r})", at_least(version, wanted), answer)
    return True
