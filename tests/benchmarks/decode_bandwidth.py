"""Does a decoder that writes one token after the other use the memory's bandwidth? On an NVIDIA GPU.

    python tests/benchmarks/decode_bandwidth.py

Decoders of `metallab.language` with random weights, 13 GB of them in bfloat16, write with a cache of fixed length: one
of the shape of Llama 2 7B, and one with few layers as wide as those of a 70B. Each token reads every weight once, so
that a token cannot take less time than reading them. That time is measured by a copy that moves as many bytes, in turns
with the decoder: operator by operator, and as a recorded CUDA graph. Bar, on an NVIDIA H200: as a graph each reaches
60 % of that limit. In November 2026, PyTorch 2.11.0: 61 % and 88 %; operator by operator 33 % and 82 %. (With
`torch.compile` before recording one of 5 GB was slower, 43 % against 56 %.)

Prints the shares and whether they reach the bar, and ends with code 0 either way. Wants a GPU that nobody else uses.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from metallab import device, timing, units
from metallab.language import decoder, writing

SHAPES = {
    "7B": decoder.Shape(width=4096, layers=32, heads=32, hidden=11_008, vocabulary=32_000, context=1024),
    "wide": decoder.Shape(width=8192, layers=7, heads=64, hidden=28_672, vocabulary=32_000, context=1024),
}
LENGTH, POSITION, BAR = 512, 300, 0.60


def recorded(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step as a CUDA graph: one launch for all of its kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


def assert_as_right_as_eager(model: decoder.Decoder, token: Tensor, ways: dict[str, Callable[[], Tensor]]) -> None:
    """AssertionError if a way is further from float32 than twice what rounding alone does to the first of them.

    A compiler joins operators and rounds elsewhere, so that two right ways differ in bfloat16.
    """
    exact = copy.deepcopy(model).float()
    cache = decoder.FixedCache(exact, LENGTH)
    cache.next.fill_(POSITION)
    truth = exact(token, cache)
    errors = {name: float((way().float() - truth).norm() / truth.norm()) for name, way in ways.items()}
    print("error against float32:", ", ".join(f"{name} {error:.3f}" for name, error in errors.items()))
    eager, *others = errors.values()
    assert eager < 0.3, "the decoder itself is wrong in bfloat16"
    assert max(others) <= 2 * eager, "a way is further from float32 than rounding explains"


@torch.no_grad()
def share(lab: device.Device, name: str) -> float:
    """The share of the limit that a shape reaches as a CUDA graph, 0 if it is withheld."""
    with lab.torch_device:
        model = decoder.Decoder(SHAPES[name]).eval()
        token = torch.tensor([[7]])
    cache = decoder.FixedCache(model, LENGTH)
    read = writing.nbytes(model) - model.embedding.weight.nbytes
    half = torch.ones(read // 4, device=lab.torch_device)
    copied = torch.empty_like(half)

    def step() -> Tensor:
        cache.next.fill_(POSITION)
        return model(token, cache)

    ways = {"operator by operator": step, "CUDA graph": recorded(step)}
    print(f"{name}, {units.size(read)} of weights a token")
    assert_as_right_as_eager(model, token, ways)
    compared = timing.compare(
        {"copy": lambda: copied.copy_(half), **ways},
        on=lab,
        baseline="copy",
        parity=timing.Unchecked("a copy gives something else; the ways to decode were compared before"),
        question="throughput",
        name=f"{name}: decode against a copy of as many bytes",
        dtype=torch.bfloat16,
        budget=timing.Budget(min_samples=20, max_seconds=4),
    )
    print(compared)
    print(f"copy: {units.rate(read / compared['copy'].median, 'B/s')}")
    for way, ratio in compared.ratios.items():
        print(f"{way}: {ratio.median:.1%} of the limit, {1 / compared[way].median:.0f} tokens/s")
    ratio = compared.ratios.get("CUDA graph")
    return ratio.median if ratio else 0.0


def main() -> None:
    lab = device.pick()
    if lab.kind != "cuda":
        sys.exit(f"this measures an NVIDIA GPU, and here is {lab.label}: run it where there is one")
    print(f"{lab.label}, PyTorch {torch.__version__}")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    shares = [share(lab, name) for name in SHAPES]
    print(f"{'MET' if min(shares) >= BAR else 'MISSED'}: at least {BAR:.0%} of the limit")


if __name__ == "__main__":
    main()
