"""Softshrink's rule in PyTorch's elementary operators, which judges every kernel bit by bit.

`gives` judges a reader's kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from metallab import isolated
from metallab.pytorch import kernels

_ONE_KERNEL = """
from math import inf, nan  # which are no literals
import torch
x = torch.tensor({x!r}, device="mps")
kernel = torch.mps.compile_shader({text!r}).{name}
outs = []
for lambd in {lambds!r}:
    out = torch.full_like(x, 7)
    kernel(out, x, lambd)
    outs.append(out.tolist())
"""
"""A program that runs a kernel once for each λ. What it does not write stays 7, and so is seen where 7 is wrong."""

SPECIAL = (2.0, -2.0, 0.3, -0.3, 0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, -0.5)
"""Numbers of which each kind makes some kernel go wrong: either side, zeros, NaN, infinities, and the edges."""


def softshrink(x: Tensor, lambd: float) -> Tensor:
    """Compute the value for each element.

    Parameters
    ----------
    x
        Floating, of any shape.
    lambd
        Above it ``lambd`` is subtracted, below its negative it is added, between them is zero.

    Returns
    -------
    Tensor
        Of the shape and dtype of ``x``; computed in float32 or wider.
    """
    v, limit = _widen(x, lambd)
    below = torch.where(v < -limit, v + limit, 0 * v)  # 0 with the sign of v, and NaN of NaN
    return torch.where(v > limit, v - limit, below).to(x.dtype)


def gradient(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """Compute the gradient with respect to the input.

    Parameters
    ----------
    grad
        The gradient with respect to the value, of the shape and dtype of ``x``.
    x, lambd
        See `softshrink`.

    Returns
    -------
    Tensor
        ``grad`` where ``x`` is not between the limits, else 0.
    """
    v, limit = _widen(x, lambd)
    return torch.where((v >= -limit) & (v <= limit), torch.zeros_like(grad), grad)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Say whether dtype, shape and every bit are the same. NaN has many bit patterns and is the same as itself.

    Parameters
    ----------
    a, b
        Floating tensors, on any device.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return False

    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    is_number = ~a.isnan()
    if not torch.equal(is_number, ~b.isnan()):
        return False

    # compared as whole numbers, because 0.0 == -0.0
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(whole)[is_number], b.view(whole)[is_number])


def _widen(x: Tensor, lambd: float) -> tuple[Tensor, Tensor]:
    """Return ``x`` and ``lambd`` to compute with; ``lambd`` is rounded to the dtype of ``x`` first."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide), torch.full((), lambd, dtype=x.dtype, device=x.device).to(wide)


def gives(
    text: str, name: str, x: Tensor, expected: Mapping[float, Tensor]
) -> bool | isolated.Skipped:
    """Say whether the kernel ``name(out, x, lambd)`` of a Metal text gives the bits that are expected for each λ.

    It runs on the Apple GPU, be it simulated, in a process of its own, where it may hang or crash. There every number
    of ``out`` is 7 before, so that one which the kernel does not write is seen where 7 is wrong. Where NaN is expected,
    any NaN is right.

    Parameters
    ----------
    text
        The Metal source.
    name
        The kernel's name in it.
    x
        float32, (n,), on the CPU.
    expected
        By λ, what it has to compute: float32, (n,), on the CPU.

    Returns
    -------
    bool or isolated.Skipped
        True; `isolated.Skipped` where no Apple GPU can be had.

    Raises
    ------
    AssertionError
        With the first number that is wrong.
    kernels.CannotCompile
        For a text that does not compile, or a kernel that cannot be run.
    TimeoutError
        For one that does not end in time, which may be the machine's fault.

    Examples
    --------
    >>> gives(my_text, "hardshrink", torch.tensor([1.0, 0.1]), {0.5: torch.tensor([1.0, 0.0])})
    True
    """
    program = _ONE_KERNEL.format(x=x.tolist(), text=text, name=name, lambds=[*expected])
    outcome = isolated.run(program, results=["outs"], device="mps")
    if outcome.ok:
        for (lambd, right), out in zip(expected.items(), outcome["outs"], strict=True):
            _require_bits(x, lambd, torch.tensor(out), right)
        return True

    # a reason begins with the exception's name: with `SimulationError` and `NoCompiler` there is no GPU to run it on
    if outcome.reason.startswith(("Simulation", "NoCompiler")):
        return isolated.Skipped(outcome.reason)
    if outcome.ended == "timeout":
        raise TimeoutError(outcome.reason)
    raise kernels.CannotCompile(outcome.reason)


def _require_bits(x: Tensor, lambd: float, out: Tensor, right: Tensor) -> None:
    """Raise AssertionError with the first number that is wrong."""
    for number, made, wanted in zip(x, out, right, strict=True):
        assert same_bits(made, wanted), (
            f"of {number:g} and λ = {lambd:g} it makes {made:g}, not {wanted:g}"
        )
