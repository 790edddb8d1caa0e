"""The exercises of page 44."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from metallab.exercises.judging import exercise, expect, expect_that, is_near


@exercise(
    "44.1",
    hint="from 2 to 5.1 needs the range from 0 to 5.1; `low` becomes -128; round",
)
def judge_scale_and_zero(scale_and_zero: Callable[..., Any]) -> bool:
    """Ask for ranges with and without 0."""
    cases = [  # low, high, scale, zero point
        (-1.0, 1.55, 0.01, -28),
        (0.0, 5.1, 0.02, -128),
        (2.0, 5.1, 0.02, -128),
        (-2.55, -1.0, 0.01, 127),
        (-1.0, 1.6, 2.6 / 255, -30),
        (-0.989, 1.561, 0.01, -29),  # -29.1
        (-0.4, 4.7, 0.02, -108),
        (0.0, 1e-4, 1e-4 / 255, -128),
        (-3e8, 0.0, 3e8 / 255, 127),
    ]

    for low, high, scale, zero in cases:
        got, case = scale_and_zero(low, high), f"scale_and_zero({low}, {high})"
        is_pair = isinstance(got, tuple | list) and len(got) == 2
        expect_that(is_pair, case, got, "two numbers")
        is_right = is_near(got[0], scale, absolute=0) and got[1] == zero
        expect(case, got, (scale, zero), holds=is_right)
    return True


@exercise(
    "44.2",
    hint="round(x / scale) + zero point, below `low` or above `high`; all of x",
)
def judge_saturated(saturated: Callable[..., Any], affine: Callable[..., Any]) -> bool:
    """Ask which share of the numbers an integer format cannot hold, for several formats, of rows and of tables.

    ``affine`` is the page's class of formats: of scale, zero point, and the smallest and the largest integer.
    """
    cases: list[tuple[Any, list, float]] = [
        (affine(0.5, 3, 0, 7), [-1.5, -1.7, -1.8, 0.0, 2.0, 2.2, 2.3, 2.8], 3 / 8),
        (affine(0.5, 3, 0, 7), [2.25, 1.0], 0),  # 4.5 becomes 4, as in Affine
        (affine(0.5, 0, 0, 7), [[-2.0, 1.0], [0.0, 3.5]], 1 / 4),
        (affine(0.5, 0, -3, 3), [[-1.5, -1.0, -2.0], [1.7, 1.8, np.inf]], 1 / 2),
        (affine(0.5, 10, 0, 255), [0.0, 60.0, 122.0, 123.0], 1 / 4),
        (affine(0.5, -128, -128, 127), [0.0, 100.0], 0),
    ]

    for number_format, values, wanted in cases:
        x = np.array(values)
        got = saturated(x, number_format)
        is_right = np.shape(got) == () and is_near(got, wanted, relative=0)
        expect(f"saturated({values}, {number_format})", got, wanted, holds=is_right)
        assert (x == values).all(), "it changes the numbers that it is given"
    return True
