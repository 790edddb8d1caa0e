"""The writer as found on the web: right on a CPU, with four faults that an Apple GPU reports in four different errors.

Nobody really published it: it was written for page 10, in the way such scripts are written. It is the network of
`metallab.language.decoder` written anew, with the same weights, and a method that writes. Each fault is one that people
meet, and each is here on purpose, so this file is not repaired. Page 10 repairs it, and what then is left of it is
`metallab.language.repaired`.
"""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from metallab.language import corpus, decoder

WINDOW = 256
"""Characters that the writer was trained to look back on."""


class Block(nn.Module):
    """Attention, then a gated feed-forward layer."""

    angles: Tensor

    def __init__(
        self, width: int = 192, heads: int = 6, hidden: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.feed_out = nn.Linear(hidden, width, bias=False)
        self.register_buffer("angles", self.make_angles(width // heads), persistent=False)

    def make_angles(self, head: int) -> Tensor:
        """Return by how much each pair of numbers turns from one position to the next."""
        angles = 10_000 ** (-np.arange(0, head, 2) / head)
        return torch.from_numpy(angles)  # (head / 2,)

    def turn(self, x: Tensor) -> Tensor:
        """Turn queries or keys by their positions."""
        positions = torch.arange(x.shape[2])  # x: (batch, heads, n, head)
        turns = positions[:, None] * self.angles  # (n, head / 2)

        cosine = torch.cat([turns.cos(), turns.cos()], 1).to(x.dtype)  # (n, head)
        sine = torch.cat([-turns.sin(), turns.sin()], 1).to(x.dtype)
        return x * cosine + x.roll(x.shape[-1] // 2, -1) * sine

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Let each character look back at those before it."""
        return functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=self.dropout, is_causal=True
        )  # (batch, heads, n, head)

    def forward(self, x: Tensor) -> Tensor:
        """Return what came in, with what this block adds to it."""
        batch, n, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, n, 3, self.heads, -1)
        queries, keys, values = qkv.transpose(1, 3).unbind(2)  # (batch, heads, n, head) each

        mixed = self.attend(self.turn(queries), self.turn(keys), values)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, n, width))

        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, -1)  # (batch, n, hidden) each
        return x + self.feed_out(functional.silu(gate) * up)


class Writer(nn.Module):
    """A language model of characters, and how it writes."""

    def __init__(self, width: int = 192, layers: int = 6) -> None:
        super().__init__()
        characters = len(corpus.CHARACTERS)  # 96
        self.embedding = nn.Embedding(characters, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, characters, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Score each character as the next one."""
        x = self.embedding(tokens)  # (batch, n) -> (batch, n, width)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # (batch, n, 96)

    def vote(self, drafts: Tensor) -> Tensor:
        """Return the character that most drafts have chosen."""
        return drafts.mode(0, keepdim=True).values  # (drafts,) -> (1,)

    @torch.no_grad()
    def write(self, prompt: str, count: int = 40, drafts: int = 9) -> str:
        """Write on after a prompt, a character at a time: several drafts of it, and the most frequent is taken."""
        device = self.embedding.weight.device
        tokens = corpus.encode(prompt).to(device).expand(drafts, -1)  # (drafts, n)

        for _ in range(count):
            scores = self(tokens[:, -WINDOW:])[:, -1]  # (drafts, 96)
            chosen = self.vote(scores.argmax(-1))
            tokens = torch.cat([tokens, chosen.expand(drafts, 1)], 1)
        return corpus.decode(tokens[0])


def load() -> Writer:
    """Return the writer with its weights, on the CPU, ready to write."""
    torch.manual_seed(0)  # so that each run writes the same
    writer = Writer()
    writer.load_state_dict(load_file(decoder.WEIGHTS))
    return writer.eval()
