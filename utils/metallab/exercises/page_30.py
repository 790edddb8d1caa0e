"""The exercises of page 30."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect, expect_that, is_near


@exercise(
    "30.1",
    hint="needs(...) counts them, in GiB; which heads have keys and values? no scores",
)
def judge_together(together: Callable[..., Any]) -> bool:
    """Ask for the sum, which the message does not tell."""
    got = together()
    expect_that(isinstance(got, float | int), "together()", got, "a number of GiB")
    assert math.isclose(got, 8.207, abs_tol=0.01), (
        f"together() returned {got:.4g}, which is not the sum of weights and cache"
    )
    return True


@exercise(
    "30.2",
    hint="which bytes does a token read, and how long does that take?",
)
def judge_most_tokens(most_tokens: Callable[..., Any]) -> bool:
    """Ask for the limits of small models and of large ones."""
    cases = [
        (4e9, 0, 120e9, 30),
        (4e9, 4e9, 120e9, 15),
        (6e5, 2e5, 1e7, 12.5),
        (160e9, 40e9, 120e9, 0.6),
        (2e12, 1e12, 120e9, 0.04),
    ]

    for weights, cache, bandwidth, wanted in cases:
        got = most_tokens(weights, cache, bandwidth)
        near = is_near(got, wanted, relative=1e-9, absolute=0)
        expect(f"most_tokens({weights:g}, {cache:g}, {bandwidth:g})", got, wanted, holds=near)
    return True
