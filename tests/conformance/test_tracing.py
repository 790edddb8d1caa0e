"""what a trace of PyTorch's operators sees on the GPU, and what it cannot see"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from conformance.claims import ON_A_MAC
from metallab import device
from metallab.pytorch import networks, trace

pytestmark = pytest.mark.claim(
    on="gpu",
    used_in="notebook 14, metallab.pytorch.trace",
    environment={"PYTORCH_ENABLE_MPS_FALLBACK": "1"},
)


class Detour(nn.Module):
    """A copy to the CPU and back in the middle of a network."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softshrink(x.cpu()).to(x.device)


def traced(layer: type[nn.Module]) -> trace.Trace:
    """The second training step of the talk's network, with another layer for each of its three Softshrinks."""
    made = networks.talk_mlp(16).to("mps")
    layers = [layer() if isinstance(each, nn.Softshrink) else each for each in made.model]
    step = dataclasses.replace(made, model=nn.Sequential(*layers)).training_step()
    step()
    with trace.record(on=device.pick()) as recorded:
        step()
    return recorded


def test_fallbacks_are_seen():
    """A trace names each operator that falls back, on the CPU's lane; on a Mac, which tells none, it deduces them."""
    fallbacks = traced(nn.RReLU).having("fallback")
    assert [(each.name, each.lane, each.device) for each in fallbacks] == [
        ("aten::rrelu_with_noise", "CPU", "cpu")
    ] * 3
    assert {each.inferred for each in fallbacks} == {ON_A_MAC}
    assert all(each.bytes > 0 for each in fallbacks)


def test_a_detour_s_copies_are_seen_and_the_gpu_starves():
    """Copies there and back are in a trace, in both passes, what ran on the CPU on its lane, and the GPU starves."""
    recorded = traced(Detour)

    ways = [each.direction for each in recorded.having("copy")]
    assert ways.count("to host") == 6
    assert ways.count("to device") == 6

    softshrinks = [each for each in recorded.events if each.short.startswith("softshrink")]
    assert [(each.lane, each.device) for each in softshrinks] == [("CPU", "cpu")] * 6
    assert {each.lane for each in recorded.events if each.short == "linear"} == {"mps"}
    assert len(recorded.starving) >= 6


def test_a_kernel_of_our_own_is_not_seen(shaders):
    """A trace does not see what ``compile_shader`` launches; the copy in ``torch.tensor`` it deduces."""
    x = torch.ones(4, device="mps")
    source = """
    #include <metal_stdlib>
    kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }"""
    library = torch.mps.compile_shader(source)

    with trace.record(on=device.pick()) as recorded:
        library.twice(x)
        torch.tensor([1.0, 2.0], device="mps")

    (copy,) = recorded.having("op", "copy", "fallback")
    assert copy.inferred
    assert copy.direction == "to device"
    assert x.tolist() == [2.0] * 4
