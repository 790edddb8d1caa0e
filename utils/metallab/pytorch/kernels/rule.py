"""Softshrink's rule in PyTorch's elementary operators: what every kernel of this folder is judged by, bit by bit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metallab import checks

SPECIAL = (2.0, -2.0, 0.3, -0.3, 0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, -0.5)
"""Numbers of which each kind makes some kernel go wrong: either side, zeros, NaN, infinities, and the edges."""

RIGHT = "every bit is right"


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
    return torch.equal(numbers, ~b.isnan()) and torch.equal(a.view(whole)[numbers], b.view(whole)[numbers])


def judged(got: Tensor, expected: Tensor) -> str:
    """The words for a result with the `same_bits` as the rule's; `metallab.checks.Mismatch` for any other."""
    if not same_bits(got, expected):
        raise checks.Mismatch(f"not the rule's bits: got {got.detach().cpu()}, expected {expected.detach().cpu()}")
    return RIGHT


def _wide(x: Tensor, lambd: float) -> tuple[Tensor, Tensor]:
    """``x`` and ``lambd`` to compute with; ``lambd`` is rounded to the dtype of ``x`` first."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide), torch.full((), lambd, dtype=x.dtype, device=x.device).to(wide)
