"""The exercises of page 12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from metallab.exercises.judging import exercise, expect, expect_that, is_near

NAN, INFINITY = float("nan"), float("inf")


@exercise(
    "12.1",
    hint="where are both finite? everywhere else they have to be the same",
)
def judge_layer_error(layer_error: Callable[..., Any]) -> bool:
    """Ask for the error of layers whose values are finite, infinite and NaN."""
    exact = [3.0, -4.0, 0.0, NAN, INFINITY]
    cases: list[tuple[list, list, float]] = [  # exact, given, the error
        (exact, exact, 0.0),
        (exact, [3.0, -3.5, 0.0, NAN, INFINITY], 0.5 / (25 / 3) ** 0.5),
        (exact, [3.0, -4.0, NAN, NAN, INFINITY], INFINITY),
        (exact, [3.0, INFINITY, 0.0, NAN, INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, 5.0, INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, INFINITY, INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, NAN, -INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, NAN, 7.0], INFINITY),
        ([3.0, -4.0, INFINITY, -INFINITY], [3.0, -4.0, -INFINITY, INFINITY], INFINITY),
        ([[3.0, 4.0], [4.0, 3.0]], [[2.0, 4.5], [1.0, 2.0]], 3 / 12.5**0.5),
    ]

    for *pair, wanted in cases:
        tensors = [torch.tensor(part, dtype=torch.float64) for part in pair]
        got = layer_error(*tensors)
        kept = str([t.tolist() for t in tensors]) == str(pair)
        assert kept, f"it changes {pair}"
        near = got == wanted or is_near(got, wanted, relative=0)
        expect(f"layer_error({pair[0]}, {pair[1]})", got, wanted, holds=near)
    return True


@exercise(
    "12.2",
    hint="split counts rows unless the tensor is flat; f may give another dtype",
)
def judge_in_parts(in_parts: Callable[..., Any]) -> bool:
    """Apply functions to tensors of several shapes, none of them contiguous, and note how much each is given."""
    cases: list[tuple[Callable[..., Any], tuple[int, ...], int]] = [
        (torch.relu, (50, 3), 32),
        (torch.exp, (23,), 3),
        (torch.neg, (5, 3, 2), 7),
        (torch.isnan, (4, 4), 5),
        (torch.relu, (6,), 10),
        (torch.exp, (3, 0), 2),
        (torch.exp, (), 2),
    ]
    in_parts(torch.relu, torch.ones(2, 2), 2)

    for function, shape, most in cases:
        x = torch.linspace(-2, 2, torch.Size(shape).numel()).view(shape)
        x = x.transpose(0, -1)  # not contiguous
        kept, wanted = x.clone(), function(x)
        noting = _Noting(function)
        got = in_parts(noting, x, most)

        case = f"in_parts(torch.{function.__name__}, x, {most}) for x of {tuple(x.shape)}"
        assert x.equal(kept), f"{case}: x is changed"
        largest = max(noting.sizes, default=0)
        assert largest <= most, f"{case}: f is given {largest} at once, expected {most} at most"
        expect_that(isinstance(got, torch.Tensor), case, got, "a tensor")
        expect(f"{case}, as shape,", tuple(got.shape), tuple(wanted.shape))
        expect(f"{case}, as dtype,", got.dtype, wanted.dtype)
        expect(case, got, wanted, holds=got.equal(wanted))
    return True


class _Noting:
    """A function that notes how many numbers it is given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.sizes: list[int] = []

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        self.sizes.append(part.numel())
        return self.function(part)
