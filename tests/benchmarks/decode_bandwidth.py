"""Does a decoder that writes one token after the other use the memory's bandwidth? On an NVIDIA GPU.

    python tests/benchmarks/decode_bandwidth.py

A decoder of `metallab.language` with random weights, more than 4 GB of them in bfloat16, writes with a cache of fixed
length. Each token reads every weight once, so that a token cannot take less time than reading them. That time is
measured by a copy that moves as many bytes, in turns with the decoder: operator by operator, as a recorded CUDA graph,
and compiled by `torch.compile` and then recorded. Bar, on an NVIDIA H200: the best of them reaches 60 % of that limit.

Prints the shares and whether they reach the bar, and ends with code 0 either way. Wants a GPU that nobody else uses.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from metallab import device, timing, units
from metallab.language import decoder

SHAPE = decoder.Shape(width=4096, layers=12, heads=32, hidden=11_008, vocabulary=32_000, context=1024)
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
def main() -> None:
    lab = device.pick()
    if lab.kind != "cuda":
        sys.exit(f"this measures an NVIDIA GPU, and here is {lab.label}: run it where there is one")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with lab.torch_device:
        model = decoder.Decoder(SHAPE).eval()
        token = torch.tensor([[7]])
    cache = decoder.FixedCache(model, LENGTH)
    read = sum(weight.nbytes for weight in model.parameters()) - model.embedding.weight.nbytes
    half = torch.empty(read // 2, dtype=torch.uint8, device=lab.torch_device)
    copied = torch.empty_like(half)

    def step(forward: Callable[..., Tensor] = model) -> Tensor:
        cache.next.fill_(POSITION)
        return forward(token, cache)

    compiled = torch.compile(model, dynamic=False, fullgraph=True, options={"coordinate_descent_tuning": True})
    compiled_step = lambda: step(compiled)
    variants = {
        "copy": lambda: copied.copy_(half),
        "operator by operator": step,
        "CUDA graph": recorded(step),
        "compiled, CUDA graph": recorded(compiled_step),
    }
    assert_as_right_as_eager(model, token, {name: run for name, run in variants.items() if name != "copy"})
    print(f"{lab.label}, PyTorch {torch.__version__}: {units.size(read)} of weights a token")
    compared = timing.compare(
        variants,
        on=lab,
        baseline="copy",
        parity=timing.Unchecked("a copy gives something else; the ways to decode were compared before"),
        question="throughput",
        name="decode against a copy of as many bytes",
        dtype=torch.bfloat16,
    )
    print(compared)
    print(f"copy: {units.rate(read / compared['copy'].median, 'B/s')}")
    shares = {name: ratio.median for name, ratio in compared.ratios.items()}
    for name, share in shares.items():
        print(f"{name}: {share:.1%} of the limit, {1 / compared[name].median:.0f} tokens/s")
    if not shares:
        print(f"WITHHELD: {compared.withheld}")
    else:
        print(f"{'MET' if max(shares.values()) >= BAR else 'MISSED'}: at least {BAR:.0%} of the limit")


if __name__ == "__main__":
    main()
