"""How well a decoder predicts a text: bits a character, window by window, so that an interval can be given."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metallab.language.corpus import encode
from metallab.language.decoder import Decoder

WINDOW = 256
"""Characters that are read at once; the second half of them is judged, each with at least half a window before it."""


@dataclass(frozen=True)
class Bits:
    """Bits that a text costs, a character, under a model: 0 if it foresees all, log2(96) = 6.6 if nothing."""

    windows: np.ndarray
    """The mean of each window, float64 (windows,)."""

    @property
    def mean(self) -> float:
        """Over all of them; each has as many characters."""
        return float(self.windows.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean: bootstrap over windows, 2000 draws from a fixed seed."""
        return mean_interval(self.windows)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.3f} bits a character, 95 % interval {low:.3f} to {high:.3f}, {len(self.windows)} windows"


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean of independent values, (n,): percentiles of 2000 means drawn with replacement."""
    random = np.random.default_rng(0)
    means = values[random.integers(len(values), size=(2000, len(values)))].mean(1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


@torch.no_grad()
def bits_per_character(model: Decoder, text: str, batch: int = 64) -> Bits:
    """What ``text`` costs under ``model``, on the model's device, all but its first half window.

    ValueError for a text that is shorter than a window.
    """
    half, tokens = WINDOW // 2, encode(text)
    count = (len(tokens) - 1 - half) // half
    if count < 1:
        raise ValueError(f"a text of {len(text)} characters: give at least {WINDOW + 1}")
    rows = torch.arange(count)[:, None] * half + torch.arange(WINDOW + 1)
    device = model.embedding.weight.device
    costs: list[Tensor] = []
    for part in tokens[rows].split(batch):
        part = part.to(device)
        logits = model(part[:, :-1])[:, half:].float()
        costs.append(functional.cross_entropy(logits.transpose(1, 2), part[:, half + 1 :], reduction="none").cpu())
    return Bits(torch.cat(costs).double().mean(1).numpy() / math.log(2))


@dataclass(frozen=True)
class Cost:
    """What a change of a model costs, in bits a character more, window by window on one text."""

    name: str
    differences: np.ndarray
    """Candidate minus reference, (windows,); above 0 is worse."""

    @property
    def mean(self) -> float:
        """In bits a character."""
        return float(self.differences.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean, `mean_interval`."""
        return mean_interval(self.differences)

    def __repr__(self) -> str:
        low, high = self.interval
        return f"{self.name}: {self.mean:+.4f} bits a character (95 % interval {low:+.4f} to {high:+.4f})"


def cost(name: str, reference: Bits, candidate: Bits) -> Cost:
    """The difference of two scores on the same windows. ValueError for another number of windows."""
    if len(reference.windows) != len(candidate.windows):
        raise ValueError(f"{len(candidate.windows)} windows against {len(reference.windows)}: score the same text")
    return Cost(name, candidate.windows - reference.windows)
