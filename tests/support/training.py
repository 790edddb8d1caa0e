"""A short training, for tests that compare two ways to compute the same."""

from __future__ import annotations

from collections.abc import Callable

import torch


def losses(
    loss: Callable[[], torch.Tensor], optimiser: torch.optim.Optimizer, steps: int
) -> list[float]:
    """The loss before each step; ``loss`` runs the model and returns a scalar."""
    values = []
    for _ in range(steps):
        optimiser.zero_grad()
        now = loss()
        now.backward()
        optimiser.step()
        values.append(now.item())
    return values
