"""A decoder in plain PyTorch, of the kind that large language models are: attention that looks back, rotary positions,
RMSNorm, gated feed-forward layers. Small enough to ship: it reads and writes characters (`corpus.CHARACTERS`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from metallab.language import corpus
from metallab.language.corpus import CHARACTERS

WEIGHTS = corpus.DATA / "topics_decoder.safetensors"
"""The weights that come with the project."""

SHA256 = "24018baf3fd402acc9b41916effb326a71afe01ad28c24fb00c916d4506a2144"
"""Their checksum, as in the README beside them."""


@dataclass(frozen=True)
class Shape:
    """How large a decoder is."""

    width: int = 192
    layers: int = 6
    heads: int = 6
    hidden: int = 512
    """Width between the two halves of a feed-forward layer."""
    vocabulary: int = len(CHARACTERS)
    context: int = 4096
    """Most tokens that a sequence may have."""

    @property
    def head(self) -> int:
        """Numbers in one key, and in one value, of one head."""
        return self.width // self.heads


class Cache(Protocol):
    """Keys and values of the tokens that were read, so that they are not computed again."""

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Where the next ``count`` tokens stand in the sequence, int64 (count,)."""

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keep what a layer made of new tokens, each (batch, heads, count, head).

        All keys and values so far, (batch, heads, length, head), and a mask of those that each new token may look at,
        (count, length): bool, or 0 and minus infinity in their dtype. None where that is all.
        """


class GrowingCache:
    """A cache that is as long as what was read: each token makes new, longer tensors."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.length = 0

    def positions(self, count: int, device: torch.device) -> Tensor:
        """See `Cache`."""
        self.length += count
        return torch.arange(self.length - count, self.length, device=device)

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `Cache`."""
        count = keys.shape[2]
        if layer in self.kept:
            keys = torch.cat([self.kept[layer][0], keys], 2)
            values = torch.cat([self.kept[layer][1], values], 2)
        self.kept[layer] = keys, values
        if count == 1:
            return keys, values, None
        allowed = torch.ones(count, self.length, dtype=torch.bool, device=keys.device)
        return keys, values, allowed.tril(self.length - count)


class FixedCache:
    """A cache with room for ``length`` tokens from the start: no shape changes while a text grows.

    Each token looks at all of the room, at what is not filled yet with a weight of 0. That is why its shapes, and so
    a graph that a driver compiled for them, stay the same. The room is made of zeros, in the decoder's dtype.
    """

    def __init__(self, decoder: Decoder, length: int, batch: int = 1) -> None:
        shape = decoder.shape
        if not 1 <= length <= shape.context:
            raise ValueError(
                f"a cache for {length} tokens: this decoder takes 1 to {shape.context}"
            )
        weight = decoder.embedding.weight
        room = (shape.layers, 2, batch, shape.heads, length, shape.head)
        self.room = torch.zeros(room, dtype=weight.dtype, device=weight.device)
        self.next = torch.zeros(1, dtype=torch.int64, device=weight.device)
        """Where the next token will stand: on the device, so that a recorded CUDA graph moves on by itself."""

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values: layers x 2 x batch x heads x length x numbers in a head x bytes in one."""
        return self.room.nbytes

    def positions(self, count: int, device: torch.device) -> Tensor:
        """See `Cache`."""
        self._now = torch.arange(count, device=device) + self.next
        later = torch.arange(self.room.shape[-2], device=device) > self._now[:, None]
        self._mask = torch.zeros(later.shape, dtype=self.room.dtype, device=device).masked_fill(
            later, -torch.inf
        )
        self.next += count
        return self._now

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `Cache`."""
        kept_keys, kept_values = self.room[layer]
        kept_keys.index_copy_(2, self._now, keys)
        kept_values.index_copy_(2, self._now, values)
        return kept_keys, kept_values, self._mask


class Decoder(nn.Module):
    """A language model: for each token, how likely each token of the vocabulary is to be the next."""

    def __init__(self, shape: Shape = Shape(), dropout: float = 0.0) -> None:  # frozen
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList([Block(shape, layer, dropout) for layer in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)
        angles = torch.arange(shape.context)[:, None] * 10_000 ** (
            -torch.arange(0, shape.head, 2) / shape.head
        )
        self.register_buffer("cosine", torch.cat([angles.cos(), angles.cos()], 1), persistent=False)
        self.register_buffer("sine", torch.cat([-angles.sin(), angles.sin()], 1), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:  # what is added to the residual stream starts smaller
                nn.init.normal_(
                    weight,
                    std=0.02 / (2 * shape.layers) ** 0.5 if name.endswith("out.weight") else 0.02,
                )

    def forward(self, tokens: Tensor, cache: Cache | None = None, last: bool = False) -> Tensor:
        """Logits of the next token, (batch, tokens, vocabulary), for ``tokens``, int64 (batch, tokens).

        With a ``cache`` the tokens follow those that it has seen. With ``last`` only the last token's logits are
        computed, (batch, 1, vocabulary): the others are not needed to write.
        """
        count = tokens.shape[1]
        positions = (
            cache.positions(count, tokens.device)
            if cache
            else torch.arange(count, device=tokens.device)
        )
        x = self.dropout(self.embedding(tokens))
        rotation = self.cosine[positions].to(x.dtype), self.sine[positions].to(x.dtype)
        for block in self.blocks:
            x = block(x, rotation, cache)
        return self.head(self.norm(x[:, -1:] if last else x))


class Block(nn.Module):
    """Attention, then a gated feed-forward layer, each added to what came in."""

    def __init__(self, shape: Shape, layer: int, dropout: float) -> None:
        super().__init__()
        self.layer, self.heads = layer, shape.heads
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.feed_out = nn.Linear(shape.hidden, shape.width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        """``x`` and what it gives are (batch, tokens, width)."""
        batch, count, width = x.shape
        parts = (
            self.qkv(self.attention_norm(x)).view(batch, count, 3, self.heads, -1).transpose(1, 3)
        )
        queries, keys = rotated(parts[:, :, :2], rotation).unbind(2)
        values = parts[:, :, 2]
        allowed = None
        if cache:
            keys, values, allowed = cache.add(self.layer, keys, values)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, allowed, is_causal=cache is None
        )
        x = x + self.dropout(self.attention_out(mixed.transpose(1, 2).reshape(batch, count, width)))
        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, -1)
        return x + self.dropout(self.feed_out(functional.silu(gate) * up))


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Queries and keys, (..., tokens, head), turned by their positions (RoPE: Su and others, 2021).

    A pair of numbers stands half a head apart: ``rotation`` holds cosines, and sines with the sign of their half.
    """
    cosine, sine = rotation
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)


def load(path: str | Path = WEIGHTS, sha256: str | None = SHA256) -> Decoder:
    """The trained decoder, on the CPU, in float32 and evaluation mode.

    For a file that ``train_decoder.py`` wrote, pass its ``path`` and its ``sha256``, or None to leave that check out.
    ValueError if it is missing, damaged, or made for other characters.
    """
    remedy = f"{corpus.REMEDY}, or train it there: `python data/weights/train_decoder.py`"
    try:
        if (
            sha256 is not None
            and (actual := hashlib.sha256(Path(path).read_bytes()).hexdigest()) != sha256
        ):
            raise ValueError(f"{path} has sha256 {actual} instead of {sha256}: {remedy}")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}): {remedy}") from error
    if metadata.get("characters") != CHARACTERS:
        raise ValueError(
            f"{path} is not a decoder of the characters of `corpus.CHARACTERS`: {remedy}"
        )
    with torch.random.fork_rng(devices=[]):  # what it is made of is overwritten
        decoder = Decoder(Shape(**json.loads(metadata["shape"])))
    decoder.load_state_dict(state)
    return decoder.eval().requires_grad_(False)
