"""The writer of `metallab.language.found` after page 10 has repaired its four faults, each by one line.

It runs on a CPU, on an Apple GPU and on an NVIDIA GPU, and names none of them.
"""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from metallab.language import corpus, decoder, found


class Block(found.Block):
    """The block that was found, without three of the faults."""

    def make_angles(self, head: int) -> Tensor:
        """Return by how much each pair of numbers turns from one position to the next."""
        angles = 10_000 ** (-np.arange(0, head, 2) / head)
        return torch.from_numpy(angles).float()  # 1: MPS has no float64; (head / 2,)

    def turn(self, x: Tensor) -> Tensor:
        """Turn queries or keys by their positions."""
        positions = torch.arange(x.shape[2], device=x.device)  # 2: made where x is
        turns = positions[:, None] * self.angles  # (n, head / 2)

        cosine = torch.cat([turns.cos(), turns.cos()], 1).to(x.dtype)  # (n, head)
        sine = torch.cat([-turns.sin(), turns.sin()], 1).to(x.dtype)
        return x * cosine + x.roll(x.shape[-1] // 2, -1) * sine

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Let each character look back at those before it."""
        dropout = self.dropout if self.training else 0.0  # 3: not while it writes
        return functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True
        )  # (batch, heads, n, head)


class Writer(found.Writer):
    """The writer that was found, without the fourth fault."""

    def __init__(self, width: int = 192, layers: int = 6) -> None:
        super().__init__(width, layers)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])

    def vote(self, drafts: Tensor) -> Tensor:
        """Return the character that most drafts have chosen."""
        votes = functional.one_hot(drafts, len(corpus.CHARACTERS)).sum(0)  # (96,)
        return votes.argmax(-1, keepdim=True)  # 4: of operators that MPS has


def load() -> Writer:
    """Return the writer with its weights, on the CPU, ready to write."""
    writer = Writer()
    writer.load_state_dict(load_file(decoder.WEIGHTS))
    return writer.eval()
