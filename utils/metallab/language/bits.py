"""How well a decoder predicts a text: bits a character, window by window, so that an interval can be given."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metallab.language.corpus import encode
from metallab.language.decoder import Decoder

WINDOW = 256
"""Characters that are read at once; the second half of them is judged, each with at least half a window before it."""


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean of independent values, (n,): percentiles of 2000 means drawn with replacement."""
    random = np.random.default_rng(0)
    means = values[random.integers(len(values), size=(2000, len(values)))].mean(1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def in_words(values: np.ndarray) -> str:
    """The mean of bits a character, (windows,), or of differences between two models, with its interval.

    >>> in_words(scores["4 bits"] - scores["32 bits"])
    '+0.1043 bits a character, 95 % interval +0.0871 to +0.1216, 81 windows'
    """
    low, high = mean_interval(values)
    return f"{values.mean():+.4f} bits a character, 95 % interval {low:+.4f} to {high:+.4f}, {len(values)} windows"


@torch.no_grad()
def bits_per_character(model: Decoder, text: str, batch: int = 64) -> np.ndarray:
    """Bits that a character of ``text`` costs under ``model``: the mean of each window, float64 (windows,).

    0 if the model foresees all, log2(96) = 6.6 if nothing. All but the first half window counts, on the model's device.

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
    return torch.cat(costs).double().mean(1).numpy() / math.log(2)
