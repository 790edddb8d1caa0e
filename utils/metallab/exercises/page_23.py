"""The exercises of page 23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from metallab import isolated
from metallab.exercises.judging import Open, exercise, expect, is_near
from metallab.pytorch.kernels import rule


@exercise(
    "23.1",
    hint="for NaN each of < <= > >= is false: let that keep the number",
)
def judge_hardshrink(text: str) -> bool | isolated.Skipped | Open:
    """Run the kernel on NaN, infinities, zeros, and numbers beside each λ.

    It has to give 0 from -λ to λ, and elsewhere x, also for NaN. The exercise is skipped where no kernel can be run,
    and *open* if it does not end in time.
    """
    special = torch.tensor(rule.SPECIAL)  # NaN, infinities, zeros, λ itself
    # more than the threads of a threadgroup, which are 1024 at most
    many = 2 * torch.randn(1500, generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([3.0, 0.5, 0.25, 1e-30])
    edges = torch.cat([edges, -edges])
    # a little larger, and the next numbers that float32 has on both sides
    beside = [1.00001 * edges, edges.nextafter(2 * edges), edges.nextafter(0 * edges)]
    x = torch.cat([special, edges, *beside, 1e5 * many[:9], many])

    lambdas = (3.0, 0.5, 0.25, 1e-30, 0.0, -1.0, float("inf"))
    wanted = {lambd: torch.where(x.abs() <= lambd, 0.0, x) for lambd in lambdas}
    try:
        return rule.gives(text, "hardshrink", x, wanted)
    except TimeoutError as late:
        # a busy machine may be the reason as well
        return Open(
            f"Your kernel {late}. Does it have a loop that never ends? If not, run it again."
        )


@exercise(
    "23.2",
    hint="count what is read and what is written: how many tensors is that?",
)
def judge_share_of_roof(share_of_roof: Callable[..., Any]) -> bool:
    """Ask for the shares of several kernels, of which one is faster than the copy."""
    cases = [
        ((1_000_000, 2, 2e-3, 4e9), 0.75),
        ((1_000_000, 4, 2e-3, 4e9), 1.5),  # in a cache: faster than the copy
        ((1_000_000, 4, 6e-3, 4e9), 0.5),
        ((1000, 8, 2e-3, 4e9), 0.003),
        ((5000, 1, 1e-6, 1e11), 0.15),
    ]

    for given, wanted in cases:
        got = share_of_roof(*given)
        near = is_near(got, wanted, absolute=0)
        expect(f"share_of_roof{given}", got, wanted, holds=near)
    return True
