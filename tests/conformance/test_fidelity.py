"""arithmetic on the GPU where the simulation has to guess: what it chose is the claim"""

from __future__ import annotations

import pytest
import torch

from conformance.claims import ON_A_MAC

LIMITS = "metalsim/src/metalsim/shader/LIMITS.md"
pytestmark = pytest.mark.claim(on="gpu", used_in=LIMITS)
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


@pytest.fixture(scope="module")
def library(shaders):
    return torch.mps.compile_shader(KERNELS)


def test_subnormal_numbers_are_kept(library, evidence):
    """A kernel keeps numbers below 1.2e-38 (the simulation does; a GPU may flush them to zero)."""
    x = torch.tensor([1e-40, -3e-39]).to("mps")
    library.doubled(out := torch.empty_like(x), x)
    evidence("doubled", out.tolist())
    evidence("by PyTorch's operator", (x * 2).tolist())
    assert (out.cpu() != 0).all()


def test_products_and_sums_round_twice(library, evidence):
    """``a * b + c`` in a kernel rounds twice, as in the simulation (a GPU may fuse the two and round once).

    Of numbers whose product needs more digits than float32 has, and whose sum cancels the leading ones.
    """
    a = torch.rand(1000) + 1
    c = -(a * a)  # rounded: what is left after an exact product is its rounding error
    out = torch.empty(1000).to("mps")
    library.multiply_add(out, *(t.to("mps") for t in (a, a, c)))
    fused = int((out.cpu() != 0).sum())
    evidence("rounded once, of 1000", fused)
    assert fused == 0


@pytest.mark.claim(used_in="notebook 23: what fast math may assume")
def test_nan_is_known_without_a_pragma(library, evidence):
    """PyTorch switches fast math off for what compile_shader compiles: isnan is true of NaN without a pragma."""
    x = torch.tensor([float("nan"), 1.0]).to("mps")
    library.is_nan(out := torch.empty_like(x), x)
    evidence("isnan of NaN and of 1", out.tolist())
    assert out.tolist() == [1.0, 0.0]


@pytest.mark.claim(used_in=f"{LIMITS}; Inductor's reductions")
def test_absent_lanes_give_zero(library, evidence):
    """``simd_shuffle_and_fill_down`` reads 0 from lanes that no thread runs in, as the simulation has it.

    A group of 20 threads: lanes 4 to 15 ask for lanes 20 to 31, which are not there.
    """
    x = torch.ones(20).to("mps")
    library.shifted(out := torch.empty_like(x), x, threads=20, group_size=20)
    evidence("lanes", out.tolist())
    assert out[:4].tolist() == [1.0] * 4
    assert out[4:16].tolist() == [0.0] * 12


@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "tanh", "sqrt", "rsqrt"])
def test_functions_are_accurate(name, evidence):
    """PyTorch's exp, log, sin, cos, tanh, sqrt and rsqrt on the GPU are within 4 times float32's epsilon of the value.

    Of 20001 numbers from 0.01 to 20, against float64. Below a value of 1/1024 the error is taken of that.
    """
    x = torch.linspace(0.01, 20, 20_001)
    truth = getattr(torch, name)(x.double())
    got = getattr(torch, name)(x.to("mps")).cpu().double()
    epsilon = torch.finfo(torch.float32).eps * truth.abs().clamp_min(2.0**-10)
    worst = ((got - truth).abs() / epsilon).max().item()
    evidence("largest error, in epsilons", round(worst, 2))
    assert worst <= 4


def test_groups_have_at_most_1024_threads(library, evidence):
    """A group of 2048 threads is refused with an error, and one of 1024 runs."""
    x = torch.ones(4096).to("mps")
    library.doubled(out := torch.zeros_like(x), x, threads=4096, group_size=1024)
    assert out.sum().item() == 8192
    with pytest.raises(Exception, match="") as refused:  # noqa: PT011  # which one it is, is recorded
        library.doubled(torch.zeros_like(x), x, threads=4096, group_size=2048)
    evidence("2048", f"{refused.type.__name__}: {refused.value}"[:300])


def test_integers_divided_by_zero(library, evidence):
    """Division of integers by zero gives some value on a GPU (the simulation raises)."""
    x = torch.tensor([7, -7], dtype=torch.int32).to("mps")
    if not ON_A_MAC:
        with pytest.raises(Exception, match="zero"):  # the simulation's
            library.halved_down(torch.empty_like(x), x, 0, arg_casts="int32")
        return
    library.halved_down(out := torch.empty_like(x), x, 0, arg_casts="int32")
    evidence("7 / 0 and -7 / 0", out.tolist())
