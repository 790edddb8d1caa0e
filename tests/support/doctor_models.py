"""Small models with one fault each, and one with nothing to train, as factories of `metallab doctor`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.forward = function


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu().transpose(2, 3))


def classes() -> Any:
    """Whole numbers alone come out: there is nothing to train."""
    return nn.Sequential(nn.Linear(8, 5), Function(lambda x: x.argmax(-1))), torch.randn(16, 8)


def hidden_copy() -> Any:
    """A number that is printed on the way."""
    watched = Function(lambda x: x * float(x.abs().max().cpu()) ** 0)
    return nn.Sequential(nn.Linear(8, 8), watched, nn.Linear(8, 4)), torch.randn(4, 8)


def overflow() -> Any:
    """Beyond 65504 in the middle, and small again at its end."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), Function(lambda x: x * 1e-6), nn.Linear(8, 4))
    for layer in model[:2]:
        nn.init.constant_(layer.weight, 100.0)
    return model, torch.ones(2, 8)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("scale", torch.linspace(0, 1, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def double() -> Any:
    """A buffer in float64, which no Apple GPU has."""
    return Scaled(), torch.randn(8, 8)
