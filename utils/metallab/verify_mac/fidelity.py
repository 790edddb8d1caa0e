"""Arithmetic on the GPU where the simulation had to guess: what it chose is the claim."""

from __future__ import annotations

from typing import Any

from metallab import units
from metallab.verify_mac.trial import Finding, judged, simulated, trial

KERNELS = """
#include <metal_stdlib>
using namespace metal;
kernel void doubled(device float* out, device const float* x, uint i [[thread_position_in_grid]]) {
  out[i] = x[i] * 2.0f;
}
kernel void multiply_add(device float* out, device const float* a, device const float* b, device const float* c,
                         uint i [[thread_position_in_grid]]) {
  out[i] = a[i] * b[i] + c[i];
}
kernel void is_nan(device float* out, device const float* x, uint i [[thread_position_in_grid]]) {
  out[i] = isnan(x[i]) ? 1.0f : 0.0f;
}
kernel void shifted(device float* out, device const float* x, uint i [[thread_position_in_grid]]) {
  out[i] = simd_shuffle_and_fill_down(x[i], 7.0f, 16);
}
kernel void halved_down(device int* out, device const int* x, constant int& by, uint i [[thread_position_in_grid]]) {
  out[i] = x[i] / by;
}
"""
FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sqrt", "rsqrt")
LIMITS = "utils/metalsim/shader/LIMITS.md"


def _library() -> Any:
    import torch

    return torch.mps.compile_shader(KERNELS)


@trial(on="gpu", used_in=LIMITS)
def subnormal_numbers_are_kept() -> Finding:
    """A kernel keeps numbers below 1.2e-38 (the simulation does; a GPU may flush them to zero)."""
    import torch

    x = torch.tensor([1e-40, -3e-39]).to("mps")
    _library().doubled(out := torch.empty_like(x), x)
    by_torch = (x * 2).cpu()
    kept = bool((out.cpu() != 0).all())
    return judged(kept, f"doubled: {out.cpu().tolist()}, by PyTorch's operator {by_torch.tolist()}")


@trial(on="gpu", used_in=LIMITS)
def products_and_sums_round_twice() -> Finding:
    """``a * b + c`` in a kernel rounds twice, as in the simulation (a GPU may fuse the two and round once).

    Of numbers whose product needs more digits than float32 has, and whose sum cancels the leading ones.
    """
    import torch

    a = torch.rand(1000) + 1
    c = -(a * a)  # rounded: what is left after an exact product is its rounding error
    out = torch.empty(1000).to("mps")
    _library().multiply_add(out, *(t.to("mps") for t in (a, a, c)))
    fused = int((out.cpu() != 0).sum())
    return judged(fused == 0, f"{fused} of 1000 were rounded once")


@trial(on="gpu", used_in="notebook 04: what fast math may assume")
def nan_is_known_without_a_pragma() -> Finding:
    """PyTorch switches fast math off for what compile_shader compiles: isnan is true of NaN without a pragma."""
    import torch

    x = torch.tensor([float("nan"), 1.0]).to("mps")
    _library().is_nan(out := torch.empty_like(x), x)
    return judged(out.tolist() == [1.0, 0.0], f"isnan of NaN and of 1: {out.tolist()}")


@trial(on="gpu", used_in=f"{LIMITS}; Inductor's reductions")
def absent_lanes_give_zero() -> Finding:
    """``simd_shuffle_and_fill_down`` reads 0 from lanes that no thread runs in, as the simulation has it.

    A group of 20 threads: lanes 4 to 15 ask for lanes 20 to 31, which are not there.
    """
    import torch

    x = torch.ones(20).to("mps")
    _library().shifted(out := torch.empty_like(x), x, threads=20, group_size=20)
    got = out.tolist()
    return judged(got[:4] == [1.0] * 4 and got[4:16] == [0.0] * 12, f"{got}", lanes=got)


@trial(on="gpu", used_in=LIMITS)
def functions_are_accurate() -> Finding:
    """PyTorch's exp, log, sin, cos, tanh, sqrt and rsqrt on the GPU are within 4 times float32's epsilon of the value.

    Of 20001 numbers from 0.01 to 20, against float64. Below a value of 1/1024 the error is taken of that.
    """
    import torch

    x = torch.linspace(0.01, 20, 20_001)
    worst = {}
    for name in FUNCTIONS:
        truth = getattr(torch, name)(x.double())
        got = getattr(torch, name)(x.to("mps")).cpu().double()
        epsilon = torch.finfo(torch.float32).eps * truth.abs().clamp_min(2.0**-10)
        worst[name] = round(((got - truth).abs() / epsilon).max().item(), 2)
    return judged(max(worst.values()) <= 4, f"largest errors, in epsilons (1.2e-7 of the value): {worst}", worst=worst)


@trial(on="gpu", used_in=LIMITS)
def groups_have_at_most_1024_threads() -> Finding:
    """A group of 2048 threads is refused with an error, and one of 1024 runs."""
    import torch

    x, said = torch.ones(4096).to("mps"), {}
    for size in (1024, 2048):
        try:
            _library().doubled(out := torch.zeros_like(x), x, threads=4096, group_size=size)
            said[size] = f"ran, sum {out.sum().item():g}"
        except Exception as error:  # noqa: BLE001  # which one it is, is recorded
            said[size] = units.first_line(error, kind=True)
    holds = said[1024] == "ran, sum 8192" and not said[2048].startswith("ran")
    return judged(holds, f"{said}", said=said)


@trial(on="gpu", used_in=LIMITS)
def integers_divided_by_zero() -> Finding:
    """Division of integers by zero gives some value on a GPU (the simulation raises)."""
    import torch

    x = torch.tensor([7, -7], dtype=torch.int32).to("mps")
    try:
        _library().halved_down(out := torch.empty_like(x), x, 0, arg_casts="int32")
        said, ran = f"7 / 0 and -7 / 0 gave {out.tolist()}", True
    except Exception as error:  # noqa: BLE001  # the simulation's
        said, ran = units.first_line(error, kind=True), False
    return judged(ran != simulated(), said)
