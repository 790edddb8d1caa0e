"""The exercises of page 65."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from metallab.exercises.judging import exercise, expect


@exercise(
    "65.1",
    hint="halve the last axis named, not the last of the array; compute no transform",
)
def judge_rfft_shape(rfft_shape: Callable[..., Any]) -> bool:
    """Compare with PyTorch's shapes, and ask for an array that no memory holds."""
    cases: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((8,), (0,)),
        ((7, 9), (0, 1)),
        ((6, 8, 5), (2, 0)),
        ((4, 10), (-2,)),
        ((7,), (0,)),
        ((3, 11), (1, 0)),
        ((4, 6, 7), (2, 0, 1)),
        ((5, 6, 8), (0, -1, 1)),
        ((2, 6, 8, 10), (3, 1)),
        ((1, 1), (0, 1)),
    ]

    for shape, axes in cases:
        wanted = tuple(torch.fft.rfftn(torch.zeros(shape), dim=axes).shape)
        expect(f"rfft_shape({shape}, {axes})", rfft_shape(shape, axes), wanted)
    large = rfft_shape((10**9, 10**9), (1, 0))  # no memory holds such an x
    expect("rfft_shape((10**9, 10**9), (1, 0))", large, (10**9 // 2 + 1, 10**9))
    return True


@exercise(
    "65.2",
    hint="cumsum, and differences of it; the first mean needs a sum of nothing: a 0",
)
def judge_running_mean(running_mean: Callable[..., Any], device: torch.device) -> bool:
    """Compare with the mean of each window, and look at the operations that it is made of.

    They have to be a running sum, and as many for 9 numbers as for 8, so that neither a long window nor a loop over the
    row makes more work of a number. The numbers have to stay as they are, and float64 stays float64.
    """
    numbers = torch.tensor([1.0, 2, 6, 4, 2, 9, -5, 0, 3], device=device)

    for count, n in ((6, 3), (6, 1), (6, 6), (9, 2), (9, 4), (7, 5)):
        row = numbers[:count].clone()
        got, wanted = running_mean(row, n), numbers[:count].unfold(0, n, 1).mean(dim=1)
        assert row.equal(numbers[:count]), "it changes the numbers that it is given"
        is_right = got.shape == wanted.shape and got.allclose(wanted, atol=1e-5)
        expect(f"running_mean({row.tolist()}, {n})", got, wanted, holds=is_right)

    wide = running_mean(numbers.cpu().double(), 3).dtype
    expect("of numbers in float64, as dtype, running_mean", wide, torch.float64)
    # code that lists each operation that ran, one a line, in which a loop is written out
    traced = make_fx(lambda x: running_mean(x, 3))
    long, short = (traced(numbers[:n].cpu()).code for n in (9, 8))
    assert "cumsum" in long, "no running sum, so the work grows with n"
    assert long.count("\n") == short.count("\n"), "a loop: the work grows with the row"
    return True
