"""The exercises of page 24."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from metallab.exercises.judging import exercise, expect, expect_that

INFINITY = float("inf")


def _find_place(gradient: Callable[..., Any]) -> str:
    """Return where a gradient is if x is on meta, a device that has shapes and no numbers."""
    x = torch.ones(2, 3, device="meta")
    try:
        return str(gradient(x, x, 0.5).device.type)
    except RuntimeError as error:  # of two devices; or it looks at numbers
        return "the CPU" if "expected device" in str(error) else "meta"


@exercise(
    "24.1",
    hint="the chain rule: where the slope is 1, what comes in; where it is 0, always 0",
)
def judge_hardshrink_gradient(hardshrink_gradient: Callable[..., Any]) -> bool:
    """Compare with PyTorch's own gradient, at and beside λ, where an infinite one comes in as well."""
    for lambd in (0.5, 2.0, 1e-30, 0.0, -1.0, INFINITY):
        for dtype in (torch.float32, torch.float64, torch.float16):
            _compare_gradients(hardshrink_gradient, lambd, dtype)

    expect("for x on meta it", _find_place(hardshrink_gradient), "meta")
    return True


def _compare_gradients(
    hardshrink_gradient: Callable[..., Any], lambd: float, dtype: torch.dtype
) -> None:
    """Compare the gradients of one λ in one dtype with PyTorch's, for x at λ, a little beside it, at 0 and far off.

    Raises AssertionError where one differs, where dtype or shape are others, and if the incoming gradient was changed.
    """
    edge = torch.tensor(lambd, dtype=dtype)
    zero = edge.new_zeros(())
    x = torch.stack([edge, 1.01 * edge, 0.99 * edge, zero, 3 * edge])
    x = torch.stack([x, -x]).requires_grad_()
    grad = torch.arange(5.0, 15).view(2, 5).to(dtype)
    # where x is 0 and the slope may be, too: their product is NaN, and the gradient 0
    grad[1, 3] = INFINITY
    (wanted,) = torch.autograd.grad(F.hardshrink(x, lambd), x, grad)

    x, given = x.detach(), grad.clone()
    got = hardshrink_gradient(given, x.clone(), lambd)
    case = f"for x in {dtype} and shape (2, 5) it"
    expect(f"{case}, as dtype,", getattr(got, "dtype", got), dtype)
    expect(f"{case}, as shape,", tuple(got.shape), (2, 5))

    columns = [each.flatten().tolist() for each in (x, grad, got, wanted)]
    for at, came, goes, right in zip(*columns, strict=True):
        expect(f"in {dtype}, for x = {at:g}, λ = {lambd} and grad = {came:g} it", goes, right)
    assert torch.equal(given, grad), "it changes the gradient that comes in"


@exercise(
    "24.2",
    hint="empty_like copies the strides of x; the kernel writes row after row",
)
def judge_softmax_fake(softmax_fake: Callable[..., Any]) -> bool:
    """Compare shape, dtype, device and strides of the fake with those of the kernel's result, which has no numbers.

    Most x are transposed, so that their rows do not follow each other in memory; those of the result do.
    """
    shapes: dict[tuple[int, ...], tuple[int, ...]]
    shapes = {(4, 3): (1, 0), (4, 5): (0, 1), (2, 3, 4): (2, 0, 1), (0, 3): (1, 0)}

    for shape, order in shapes.items():
        for place in ("meta", "cpu"):
            x = torch.ones(shape, dtype=torch.float16, device=place).permute(order)
            # float32 whatever x is, and row after row, as the kernel writes
            kernel, fake = torch.zeros(x.shape, device=place), softmax_fake(x)

            case = f"for x of {tuple(x.shape)} with strides {x.stride()} on {place} it"
            for what in ("shape", "dtype", "device"):
                expect(f"{case}, as {what},", getattr(fake, what), getattr(kernel, what))
            is_contiguous = fake.is_contiguous()
            expect_that(is_contiguous, f"{case}, as strides,", fake.stride(), "row after row")
    return True
