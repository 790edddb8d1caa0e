"""The exercises of page 62."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from metallab import checks
from metallab.exercises.judging import exercise, expect


@exercise(
    "62.1",
    hint="once with line[None, :], then what that gives with line[:, None]",
)
def judge_two_passes(
    two_passes: Callable[..., Any], direct: Callable[..., Any], picture: torch.Tensor
) -> bool:
    """Filter with four lines, compare with one pass by their outer product, and count the products.

    Two passes with the line have to do: the count is twice that of one. ``direct`` is the page's filter, of a picture
    and a table of weights.
    """
    bell = torch.exp(-(torch.arange(-6.0, 7) ** 2) / 8)
    lines = {
        "a Gaussian": bell / bell.sum(),
        "an edge": torch.tensor([-1.0, 0, 1]),
        "one number": torch.tensor([2.0]),
        "no symmetry": torch.tensor([0.5, 0.3, 0.1, -0.7, 2.0]),
    }

    for name, each in lines.items():
        # two of the three colours, on whose number no answer may count
        line, given = each.to(picture.device), (255 * picture - 100)[:, :2]
        wanted = direct(given, torch.outer(line, line))
        with FlopCounterMode(display=False) as one_pass:
            direct(given, line[None, :])
        with FlopCounterMode(display=False) as counted:
            checks.assert_close(wanted, two_passes(given, line), "float32")

        times = counted.get_total_flops() / one_pass.get_total_flops()
        assert times == 2, f"{name}: as many products as {times:g} passes with `line`, expected 2"
    return True


@exercise(
    "62.2",
    hint="conjugate the first; irfft2 needs s=; divmod the argmax by the width",
)
def judge_moved_by(moved_by: Callable[..., Any], picture: torch.Tensor) -> bool:
    """Move the photograph, and noise of even and odd sizes, and ask by how many rows and columns.

    What leaves a picture at one side enters it at the other. The answer is a tuple, and both pictures stay as they are.
    """
    grey = picture.mean(dim=1)[0]
    grey = grey - grey.mean()
    got = moved_by(grey, grey.roll((3, 10), (0, 1)))
    expect("of the photograph, moved by (3, 10): moved_by", got, (3, 10))

    cases = [((40, 64), (3, 10)), ((41, 63), (40, 54)), ((64, 40), (0, 0))]
    cases += [((90, 25), (57, 0)), ((31, 31), (0, 17))]  # irfft2 has to be told odd sizes
    for size, moved in cases:
        first = torch.randint(-9, 10, size, generator=torch.Generator().manual_seed(0))
        first[:, 0] -= first.sum(dim=1)  # so that sums of rows tell nothing,
        first[0] -= first.sum(dim=0)  # nor of columns
        first = (first + 1.0).to(picture.device)

        kept, second = first.clone(), first.roll(moved, (0, 1))
        expect(f"of noise of {size} pixels, moved: moved_by", moved_by(first, second), moved)
        unchanged = first.equal(kept) and second.equal(kept.roll(moved, (0, 1)))
        assert unchanged, "it changes a picture that it is given"
    return True
