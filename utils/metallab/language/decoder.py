"""A decoder in plain PyTorch, of the kind that large language models are.

It has attention that looks back, rotary positions, RMSNorm and gated feed-forward layers. It is small enough to ship,
and reads and writes characters (`corpus.CHARACTERS`).

Read it from `Decoder.forward` on. In the comments on shapes a letter stands for each size:

===  ==================================  ============================
B    texts in a batch
T    tokens of a text that are read now
L    tokens read so far, with these ones  T without a cache
C    the width of a token                192 in the trained decoder
H    heads                               6
D    numbers in a head, C / H            32
F    the width of the feed-forward part  512
V    the vocabulary                      96 characters
===  ==================================  ============================
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
    def head(self) -> int:  # D
        """Numbers in one key, and in one value, of one head."""
        return self.width // self.heads


class Cache(Protocol):
    """Keys and values of the tokens that were read, so that they are not computed again."""

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Return where the next tokens stand in the text, and move on.

        Parameters
        ----------
        count
            How many tokens come next.
        device
            Where the result is made.

        Returns
        -------
        Tensor
            int64, (T,).
        """

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keep what a layer made of new tokens, and return that of all tokens.

        Parameters
        ----------
        layer
            Its number, from 0.
        keys, values
            Of the new tokens, (B, H, T, D).

        Returns
        -------
        keys, values : Tensor
            Of all tokens so far, (B, H, L, D).
        allowed : Tensor or None
            Which of them each new token may look at, (T, L): bool, or 0 and minus infinity in their dtype. None where
            it may look at all.
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
        count = keys.shape[2]  # T
        if layer in self.kept:
            earlier_keys, earlier_values = self.kept[layer]
            keys = torch.cat([earlier_keys, keys], 2)  # (B, H, L, D)
            values = torch.cat([earlier_values, values], 2)
        self.kept[layer] = keys, values

        if count == 1:  # one token looks at all that came before it, and at itself
            return keys, values, None
        # `positions`, which is called before, has counted the new tokens into the length
        allowed = torch.ones(count, self.length, dtype=torch.bool, device=keys.device)  # (T, L)
        return keys, values, allowed.tril(self.length - count)


class FixedCache:
    """A cache with room for ``length`` tokens from the start: no shape changes while a text grows.

    Each token looks at all of the room, at what is not filled yet with a weight of 0. That is why its shapes, and so
    a graph that a driver compiled for them, stay the same. The room is made of zeros, in the decoder's dtype.
    """

    def __init__(self, decoder: Decoder, length: int, batch: int = 1) -> None:
        """Make room in the memory of the decoder's device.

        Parameters
        ----------
        decoder
            Whose keys and values will be kept.
        length
            The most tokens that a text may have: L.
        batch
            Texts that are read at once: B.

        Raises
        ------
        ValueError
            For a length that the decoder does not take.
        """
        shape = decoder.shape
        if not 1 <= length <= shape.context:
            raise ValueError(
                f"a cache for {length} tokens: this decoder takes 1 to {shape.context}"
            )

        weight = decoder.embedding.weight
        room = (shape.layers, 2, batch, shape.heads, length, shape.head)
        self.room = torch.zeros(room, dtype=weight.dtype, device=weight.device)
        """Keys and values of each layer: (layers, 2, B, H, L, D)."""

        self.next = torch.zeros(1, dtype=torch.int64, device=weight.device)
        """Where the next token will stand: on the device, so that a recorded CUDA graph moves on by itself."""

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values: layers x 2 x batch x heads x length x numbers in a head x bytes in one."""
        return self.room.nbytes

    def positions(self, count: int, device: torch.device) -> Tensor:
        """See `Cache`. The mask that `add` returns is made here, once for all layers.

        Whether there is room left is not looked at, since `next` lies on the device. Beyond it `add` has an index that
        is out of range.
        """
        length = self.room.shape[-2]
        self._now = torch.arange(count, device=device) + self.next  # (T,)
        later = torch.arange(length, device=device) > self._now[:, None]  # (T, L)
        mask = torch.zeros(count, length, dtype=self.room.dtype, device=device)
        self._mask = mask.masked_fill(later, -torch.inf)

        self.next += count
        return self._now

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `Cache`."""
        kept_keys, kept_values = self.room[layer]  # (B, H, L, D)
        kept_keys.index_copy_(2, self._now, keys)
        kept_values.index_copy_(2, self._now, values)
        return kept_keys, kept_values, self._mask


class Decoder(nn.Module):
    """A language model: for each token, how likely each token of the vocabulary is to be the next."""

    def __init__(self, shape: Shape = Shape(), dropout: float = 0.0) -> None:
        """Make one with random weights.

        Parameters
        ----------
        shape
            How large it is.
        dropout
            The share of what is added that is left out in training.
        """
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList([Block(shape, layer, dropout) for layer in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)

        cosine, sine = _compute_rotations(shape)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self._draw_weights()

    def _draw_weights(self) -> None:
        """Draw the matrices from a normal distribution; vectors, which are the scales of norms, stay 1.

        The matrices whose results are added to the stream of tokens, two in each layer, start smaller the more of them
        there are, so that the sum does not grow with the number of layers (as in GPT-2).
        """
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                continue
            is_added = name.endswith("out.weight")
            std = 0.02 / (2 * self.shape.layers) ** 0.5 if is_added else 0.02
            nn.init.normal_(weight, std=std)

    def forward(self, tokens: Tensor, cache: Cache | None = None, last: bool = False) -> Tensor:
        """Return for each token the logits of the next one.

        Parameters
        ----------
        tokens
            int64, (B, T).
        cache
            With one, the tokens follow those that it has seen.
        last
            Whether the last token's logits are enough, as they are to write: those of others are not computed.

        Returns
        -------
        Tensor
            (B, T, V), with ``last`` (B, 1, V).
        """
        count = tokens.shape[1]  # T
        if cache is None:
            positions = torch.arange(count, device=tokens.device)  # (T,)
        else:
            positions = cache.positions(count, tokens.device)  # (T,); the cache moves on by them

        x = self.dropout(self.embedding(tokens))  # (B, T, C)
        cosine = self.cosine[positions].to(x.dtype)  # (T, D)
        sine = self.sine[positions].to(x.dtype)  # (T, D)
        for block in self.blocks:
            x = block(x, (cosine, sine), cache)  # (B, T, C)

        if last:
            x = x[:, -1:]  # (B, 1, C)
        return self.head(self.norm(x))  # (B, T, V)


class Block(nn.Module):
    """Attention, then a gated feed-forward layer, each added to what came in."""

    def __init__(self, shape: Shape, layer: int, dropout: float) -> None:
        super().__init__()
        self.layer = layer
        self.heads = shape.heads
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)

        self.feed_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.feed_out = nn.Linear(shape.hidden, shape.width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        """Return the tokens with what attention and the feed-forward layer add to them: (B, T, C) -> (B, T, C).

        ``rotation`` is `rotate`'s, (T, D) each.
        """
        x = x + self.dropout(self._attend(self.attention_norm(x), rotation, cache))
        return x + self.dropout(self._feed(self.feed_norm(x)))

    def _attend(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        """Mix into each token what it finds in those before it: (B, T, C) -> (B, T, C)."""
        batch, count, width = x.shape
        qkv = self.qkv(x)  # (B, T, 3 C)
        qkv = qkv.view(batch, count, 3, self.heads, -1)  # (B, T, 3, H, D)
        qkv = qkv.transpose(1, 3)  # (B, H, 3, T, D)

        # queries and keys are rotated together, in one call: values have no position
        queries, keys = rotate(qkv[:, :, :2], rotation).unbind(2)  # (B, H, T, D) each
        values = qkv[:, :, 2]  # (B, H, T, D)

        allowed = None
        if cache is not None:
            keys, values, allowed = cache.add(self.layer, keys, values)  # (B, H, L, D), (T, L)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, allowed, is_causal=cache is None
        )  # (B, H, T, D)

        mixed = mixed.transpose(1, 2).reshape(
            batch, count, width
        )  # (B, T, H D), which is (B, T, C)
        return self.attention_out(mixed)

    def _feed(self, x: Tensor) -> Tensor:
        """Compute with each token alone: (B, T, C) -> (B, T, C)."""
        gate, up = self.gate_up(x).chunk(2, -1)  # (B, T, F) each
        return self.feed_out(functional.silu(gate) * up)  # (B, T, C)


def _compute_rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles by which each position is turned, (context, D) each.

    A key's numbers are D / 2 pairs, of which each turns at a speed of its own: the first by 1 a token, the last by a
    little more than 1 / 10 000. The two numbers of a pair stand half a head apart, and their sines have opposite signs.
    """
    speeds = 10_000 ** (-torch.arange(0, shape.head, 2) / shape.head)  # (D / 2,)
    angles = torch.arange(shape.context)[:, None] * speeds  # (context, D / 2)
    cosine = torch.cat([angles.cos(), angles.cos()], 1)  # (context, D)
    sine = torch.cat([-angles.sin(), angles.sin()], 1)  # (context, D)
    return cosine, sine


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries and keys by their positions (RoPE: Su and others, 2021).

    Parameters
    ----------
    x
        (..., T, D).
    rotation
        Cosines, and sines with the sign of their half, (T, D) each.

    Returns
    -------
    Tensor
        Of the shape of ``x``.
    """
    cosine, sine = rotation
    partner = x.roll(x.shape[-1] // 2, -1)  # the other number of each pair, half a head away
    return torch.addcmul(x * cosine, partner, sine)


def load(path: str | Path = WEIGHTS, sha256: str | None = SHA256) -> Decoder:
    """Load the trained decoder, on the CPU, in float32 and evaluation mode; its weights want no gradients.

    Parameters
    ----------
    path
        A file that ``train_decoder.py`` wrote.
    sha256
        Its checksum; None leaves the check out.

    Raises
    ------
    ValueError
        If the file is missing, damaged, or made for other characters.
    """
    remedy = f"{corpus.REMEDY}, or train it there: `python data/weights/train_decoder.py`"
    metadata, state = _read(Path(path), sha256, remedy)
    if metadata.get("characters") != CHARACTERS:
        raise ValueError(
            f"{path} is not a decoder of the characters of `corpus.CHARACTERS`: {remedy}"
        )

    # its first weights are random and overwritten, so the caller's random numbers need not move on
    with torch.random.fork_rng(devices=[]):
        decoder = Decoder(Shape(**json.loads(metadata["shape"])))
    decoder.load_state_dict(state)
    return decoder.eval().requires_grad_(False)


def _read(path: Path, sha256: str | None, remedy: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return what a file of weights says of itself, and the weights in float32; ValueError if it cannot be read."""
    try:
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
        if sha256 is not None and actual != sha256:
            raise ValueError(f"{path} has sha256 {actual} instead of {sha256}: {remedy}")

        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118  # no mapping
            return file.metadata() or {}, state
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}): {remedy}") from error
