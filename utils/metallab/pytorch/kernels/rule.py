"""Softshrink's rule in PyTorch's elementary operators, which judges every kernel bit by bit; `gives` judges a
reader's.
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

SPECIAL = (2.0, -2.0, 0.3, -0.3, 0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, -0.5)
"""Numbers of which each kind makes some kernel go wrong: either side, zeros, NaN, infinities, and the edges."""


def softshrink(x: Tensor, lambd: float) -> Tensor:
    """The value for each element, computed in float32 or wider, in the dtype of ``x``."""
    v, limit = _wide(x, lambd)
    return torch.where(v > limit, v - limit, torch.where(v < -limit, v + limit, 0 * v)).to(x.dtype)


def gradient(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """The gradient with respect to ``x``, given that with respect to the value."""
    v, limit = _wide(x, lambd)
    return torch.where((v >= -limit) & (v <= limit), torch.zeros_like(grad), grad)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if dtype, shape and every bit are the same. NaN has many bit patterns and is the same as itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    numbers = ~a.isnan()
    return torch.equal(numbers, ~b.isnan()) and torch.equal(
        a.view(whole)[numbers], b.view(whole)[numbers]
    )


def _wide(x: Tensor, lambd: float) -> tuple[Tensor, Tensor]:
    """``x`` and ``lambd`` to compute with; ``lambd`` is rounded to the dtype of ``x`` first."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide), torch.full((), lambd, dtype=x.dtype, device=x.device).to(wide)


def gives(
    text: str, name: str, x: Tensor, expected: Mapping[float, Tensor]
) -> bool | isolated.Skipped:
    """True if the kernel ``name(out, x, lambd)`` of a Metal text gives the bits that are expected for each λ.

    ``x`` and the expected tensors are float32 (n,) on the CPU. It runs on the Apple GPU, be it simulated, in a process
    of its own; `isolated.Skipped` where none can be had. AssertionError that names the first number that is wrong;
    `kernels.CannotCompile` for a text that does not compile or a kernel that cannot be run; TimeoutError for one that
    does not end in time, which may be the machine's fault.

    >>> gives(my_text, "hardshrink", torch.tensor([1.0, 0.1]), {0.5: torch.tensor([1.0, 0.0])})
    True
    """
    program = _ONE_KERNEL.format(x=x.tolist(), text=text, name=name, lambds=[*expected])
    outcome = isolated.run(program, results=["outs"], device="mps")
    if outcome.ok:
        for (lambd, wanted), out in zip(expected.items(), outcome["outs"], strict=True):
            for number, got, right in zip(x, torch.tensor(out), wanted, strict=True):
                assert same_bits(got, right), (
                    f"of {number:g} and λ = {lambd:g} it makes {got:g}, not {right:g}"
                )
        return True
    if outcome.reason.startswith(("Simulation", "NoCompiler")):
        return isolated.Skipped(outcome.reason)
    if outcome.ended == "timeout":
        raise TimeoutError(outcome.reason)
    raise kernels.CannotCompile(outcome.reason)
