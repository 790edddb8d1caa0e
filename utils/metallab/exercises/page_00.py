"""The exercises of page 00."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from metallab.exercises.judging import (
    Open,
    Right,
    exercise,
    expect,
    expect_that,
    require_attempt,
)

NAN, INFINITY = float("nan"), float("inf")


@exercise(
    "00.1",
    hint="every value; and ask what is within the tolerance, not what is beyond",
)
def judge_agree(agree: Callable[..., Any]) -> bool:
    """Ask whether arrays agree, each value within the tolerance.

    NaN agrees with nothing, as the page says, not even with NaN.
    """
    cases: list[tuple[list, list, float, bool]] = [  # result, expected, tolerance, right
        ([1.0, 1.05, 1.0], [1.0, 1.0, 1.0], 0.1, True),
        ([1.0, 1.2, 1.0], [1.0, 1.0, 1.0], 0.1, False),
        # the sign of the difference counts for nothing
        ([1.0, 0.8, 1.0], [1.0, 1.0, 1.0], 0.1, False),
        ([1.0, NAN, 1.0], [1.0, 0.0, 1.0], 0.1, False),  # NaN is not beyond anything either
        ([1.0, 1.0], [1.0, NAN], 0.1, False),
        ([1.0, NAN], [1.0, NAN], 0.1, False),
        ([INFINITY, 1.0, 1.0], [1.0, 1.0, 1.0], 0.1, False),
        ([2.0, -2.0], [-2.0, 2.0], 0.5, False),  # sums, largest and smallest values are equal
        ([3e-9, 0.0], [0.0, 0.0], 1e-9, False),  # below the tolerances that NumPy takes by default
        # float32, or a share of the value, would let it pass
        ([1e8, 0.0], [1e8 + 1, 0.0], 0.1, False),
        ([], [], 0.1, True),  # there is no largest difference
        ([0.05] * 9, [0.0] * 9, 0.1, True),  # each is within, their norm is not
        ([0.25, 3.5], [0.0, 3.75], 0.25, True),  # as far away as allowed
        # equal, at a tolerance of 0
        ([[7.0, 0.0], [0.0, 7.0]], [[7.0, 0.0], [0.0, 7.0]], 0.0, True),
    ]

    for result, expected, tolerance, wanted in cases:
        # views that take no writing, as the answer may read both and change neither
        given = [np.broadcast_to(x, np.shape(x)) for x in (result, expected)]
        got = agree(*given, tolerance)
        expect(f"agree({result}, {expected}, {tolerance})", got, wanted)
    return True


TERM = 4.0
"""What the matrices of the second exercise are full of: each term of a result is its square, 16."""

SIZES = (1024, 2048, 4096, 8192)
"""Numbers of terms."""

ROWS = 8
"""Of the result, which is small: it is the number of terms that matters."""

ALLOWED = 0.01
"""How far a product in float16 may be off, as a share of its value."""


@exercise(
    "00.2",
    hint="how many terms of 16 come to more than 65504? And what is divided before can be multiplied afterwards",
)
def judge_overflow(
    breaks_at: Callable[[], Any],
    without_it: Callable[[torch.Tensor, torch.Tensor], Any],
    device: torch.device,
) -> Right | Open:
    """Ask for a product that does not break at any of `SIZES`, then compare the predicted size with what breaks here.

    A product in float16 breaks where its results are more than 1 % off. The prediction is right if it is the first size
    at which this machine's product breaks, whatever breaks there. It is *open* if it is the first whose result float16
    cannot hold, and this machine breaks at another one or at none; every other prediction is wrong.
    """
    predicted = breaks_at()
    is_size = predicted in SIZES and not isinstance(predicted, bool)
    expect_that(is_size, "breaks_at()", predicted, f"one of {', '.join(map(str, SIZES))}")

    for terms in SIZES:
        a, b = _fill(terms, device)
        # `check` looks for an open ``...`` in its first function alone
        got = require_attempt(without_it(a, b))
        wanted = terms * TERM**2  # both matrices are full of `TERM`
        is_right = isinstance(got, torch.Tensor) and got.shape == (ROWS, ROWS)
        is_right = is_right and _is_within(got, wanted)
        case = f"without_it(a, b) of {terms} terms"
        # all results are equal, so one is shown
        shown = got.flatten()[0] if isinstance(got, torch.Tensor) and got.numel() else got
        expect_that(is_right, case, shown, f"{wanted:g} within 1 %, in {ROWS} x {ROWS} results")

    broken = find_first_broken(device)
    if predicted == broken:
        return Right(f"This machine's product leaves 1 % at {broken} terms, as you predicted.")
    exact = next(terms for terms in SIZES if terms * TERM**2 > torch.finfo(torch.float16).max)
    expect("breaks_at()", predicted, exact)
    return Open(
        f"{exact} is right for the result alone, but this machine's product broke at {broken or 'none of them'}: "
        "it adds up in another format. Which one would explain that?"
    )


def find_first_broken(device: torch.device) -> int | None:
    """Return the first number of terms whose float16 product is more than 1 % off on a device; None if none is."""
    for terms in SIZES:
        a, b = _fill(terms, device)
        if not _is_within(a @ b, terms * TERM**2):
            return terms
    return None


def _fill(terms: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two matrices in float16 whose product has so many equal terms in each result."""
    a = torch.full((ROWS, terms), TERM, dtype=torch.float16, device=device)
    return a, a.T.contiguous()


def _is_within(product: torch.Tensor, wanted: float) -> bool:
    """Say whether all results are within what float16 is allowed; an infinity or NaN is not."""
    off = (product.cpu().double() - wanted).abs()
    return bool((off <= ALLOWED * wanted).all())
