"""How a model is run: in training or in evaluation mode, with gradients or without."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum

import torch

from metallab.pytorch.divergence import wording


class Gradients(StrEnum):
    """Whether PyTorch keeps what a backward pass needs: it takes other operators where it does not."""

    KEPT = "kept"
    NO_GRAD = "no_grad"
    INFERENCE_MODE = "inference_mode"


@dataclass(frozen=True)
class RunMode:
    """One way to run a model."""

    is_training: bool
    """Whether it is in training mode; else it is in evaluation mode."""
    gradients: Gradients = Gradients.KEPT

    @property
    def has_gradients(self) -> bool:
        """Whether there is a loss and a backward pass."""
        return self.gradients is Gradients.KEPT

    def __str__(self) -> str:
        return wording.run_mode(self)


WITH_GRADIENTS = RunMode(is_training=True)
WITHOUT_GRADIENTS = tuple(
    RunMode(is_training, gradients)
    for is_training in (False, True)
    for gradients in (Gradients.NO_GRAD, Gradients.INFERENCE_MODE)
)
"""The ways to run a model without gradients, first in evaluation mode: that is how people call it."""


def enter_gradients(gradients: Gradients) -> contextlib.AbstractContextManager:
    """Return what to enter with ``with`` to run a model so."""
    if gradients is Gradients.NO_GRAD:
        return torch.no_grad()
    if gradients is Gradients.INFERENCE_MODE:
        return torch.inference_mode()
    return contextlib.nullcontext()
