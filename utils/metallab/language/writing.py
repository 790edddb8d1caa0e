"""Letting a decoder write: token by token, and how near it comes to what the memory's bandwidth allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metallab import allowance, mode, timing
from metallab.device import Device
from metallab.language.corpus import decode, encode
from metallab.language.decoder import Cache, Decoder, Shape


def prompt_for(model: Decoder, text: str) -> Tensor:
    """A text's tokens, int64 (1, characters), on the model's device. ValueError for others than it knows."""
    return encode(text)[None].to(model.embedding.weight.device)


@torch.no_grad()
def write(
    model: Decoder,
    prompt: str,
    count: int,
    cache: Cache | None = None,
    *,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    """``prompt`` and ``count`` more characters.

    With an empty ``cache`` the prompt is read once, and then each character alone; without one the whole text is read
    again for each. At ``temperature`` 0 the likeliest character is taken; above, one is drawn by ``seed`` on the CPU,
    so that all devices draw alike. ValueError for an empty prompt, a temperature below 0, or a text beyond the context.
    """
    if not prompt:
        raise ValueError("the prompt is empty: begin with at least one character, such as a line's end")
    if temperature < 0:
        raise ValueError(f"temperature is {temperature}: give 0 for the likeliest character, or more")
    if len(prompt) + count > model.shape.context:
        raise ValueError(f"{len(prompt) + count} characters: this decoder takes at most {model.shape.context}")
    random = torch.Generator().manual_seed(seed)
    tokens = prompt_for(model, prompt)
    unread = tokens
    for _ in range(count):
        logits = model(tokens if cache is None else unread, cache, last=True)[0, -1]
        if temperature:
            odds = (logits.float().cpu() / temperature).softmax(0)
            unread = torch.multinomial(odds, 1, generator=random)[None].to(tokens.device)
        else:
            unread = logits.argmax()[None, None]
        tokens = torch.cat([tokens, unread], 1)
    return decode(tokens[0])


@torch.no_grad()
def first_difference(reference: Decoder, other: Decoder, prompt: str, count: int) -> str:
    """Where ``other`` would first leave the text that ``reference`` writes, always taking the likeliest character.

    Both read the reference's text at once, each on its own device. In words, with by how much the reference preferred
    its character there, and the largest difference of any two logits. ValueError as `write`.
    """
    text = write(reference, prompt, count)
    first = len(prompt) - 1
    ours, theirs = (model(prompt_for(model, text))[0, first:-1].float().cpu() for model in (reference, other))
    error = f"logits differ by {(ours - theirs).abs().max():.2g} at most"
    apart = (ours.argmax(1) != theirs.argmax(1)).nonzero().flatten().tolist()
    if not apart:
        return f"the same {count} characters ({error})"
    at = apart[0]
    best, second = ours[at].argmax(), theirs[at].argmax()
    pair = f"{decode(second[None])!r} for {decode(best[None])!r}"
    return (
        f"the same {at} characters, and then {pair} after {text[: len(prompt) + at][-12:]!r}. "
        f"The two were {ours[at, best] - ours[at, second]:.2g} apart there ({error})"
    )


WIDTHS = {"cuda": 4096, "mps": 2048, "cpu": 1024}


def large_decoder(on: Device) -> Decoder:
    """A decoder of random weights that takes longer to read than to launch: 1.3 billion on CUDA, 82 million on a CPU.

    It has 6 layers, float32 weights and 128 tokens of context. A tiny one in fast mode, and on a simulated device.
    """
    width = 64 if on.simulated else mode.by_mode(full=WIDTHS[on.kind], fast=64)
    with on.torch_device:
        return Decoder(Shape(width, 6, width // 64, 3 * width, context=128)).eval().requires_grad_(False)


def limit(
    step: Callable[[], Tensor], model: torch.nn.Module, *, on: Device, name: str, seconds: float = 3.0
) -> timing.Comparison:
    """Time ``step``, which makes one token of ``model``, in turns with a copy of half as many bytes as it reads.

    A copy reads and writes, and so moves each byte twice. The ratio of ``decode`` is the share of what memory allows.
    Measures for about so many ``seconds`` in full mode.
    """
    half = torch.ones(bytes_a_token(model) // 8, device=on.torch_device)
    copied = torch.empty_like(half)
    return timing.compare(
        {"copy": lambda: copied.copy_(half), "decode": step},
        on=on,
        baseline="copy",
        parity=timing.Unchecked("a copy gives something else, and moves as many bytes"),
        question="throughput",
        name=name,
        budget=allowance.Allowance(seconds).budget(variants=2),
    )


def share(compared: timing.Comparison) -> str:
    """A comparison of `limit` in words: tokens a second, and the share of what a copy allows, or why there is none."""
    if "decode" not in compared.ratios:
        return f"{compared.name}: no share is given: {compared.withheld['decode']}"
    ratio, rates = compared.ratios["decode"], [1 / compared[kind].median for kind in ("decode", "copy")]
    interval = f" (95 % interval {ratio.low:.1%} to {ratio.high:.1%})" if ratio.high < 100 else ""
    allowed = f"{rates[0]:.3g} tokens/s, where a copy of as many bytes allows {rates[1]:.3g}"
    return f"{compared.name}: {allowed}: {ratio.median:.1%}{interval}"


def bytes_a_token(model: torch.nn.Module) -> int:
    """Bytes of weights that a token reads: all but the table of embeddings, of which it reads a row."""
    return nbytes(model) - model.embedding.weight.nbytes


def rate(tokens: int, measured: timing.Measurement) -> str:
    """How many tokens a second a measurement of so many was, in words, or why none is given."""
    if doubt := timing.doubt(measured):
        return f"{measured.name}: no rate is given: {doubt}"
    return f"{measured.name}: {tokens / measured.median:,.0f} tokens/s on {measured.device}"


def nbytes(model: torch.nn.Module) -> int:
    """Bytes of all that ``model.state_dict()`` holds: weights, or what stands for them."""
    return sum(tensor.nbytes for tensor in model.state_dict().values())
