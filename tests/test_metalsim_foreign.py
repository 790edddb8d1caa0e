"""Metal files of projects other than PyTorch: what their hosts set beside the source, and what their headers call."""

from __future__ import annotations

import pytest
import torch

from metalsim import shader
from metalsim.shader import compiler, source

SUMS = """\
#include <metal_stdlib>
using namespace metal;
constant int width [[function_constant(0)]];
static constant constexpr const bool scaled [[function_constant(1)]];
constant float asked [[function_constant(2)]];
constant float factor = is_function_constant_defined(asked) ? asked : 3;

kernel void sums(
    device float* out [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device const float* scale [[buffer(2), function_constant(scaled)]],
    threadgroup float* part [[threadgroup(0)]],
    uint i [[thread_position_in_threadgroup]],
    uint group [[threadgroup_position_in_grid]]) {
  part[i] = x[group * width + i] * factor;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) {
    float sum = 0;
    for (int k = 0; k < width; k++) sum += part[k];
    out[group] = scaled ? sum * scale[0] : sum;
  }
}
"""
WIDTH = 8
X = torch.arange(64.0)
EACH_GROUP = {"threads": 64, "group_size": WIDTH}
LENGTH = {0: 4 * WIDTH}


@pytest.fixture(scope="module")
def sums():
    """The kernel without a scale."""
    return shader.compile_shader(SUMS, constants={"width": WIDTH, "scaled": False}, threadgroup=LENGTH).sums


def test_constants_and_lengths_are_what_the_host_sets(sums):
    out, expected = torch.zeros(8), X.view(-1, WIDTH).sum(1)
    sums(out, X, **EACH_GROUP)
    assert torch.equal(out, 3 * expected)
    assert sums.static_thread_group_memory_length == LENGTH[0]
    by_index = shader.compile_shader(SUMS, constants={0: WIDTH, 1: True, 2: 0.5}, threadgroup=LENGTH)
    by_index.sums(out, X, torch.tensor([10.0]), **EACH_GROUP)
    assert torch.equal(out, 5 * expected)
    with pytest.raises(RuntimeError, match=r"buffer\(2\) is not bound"):
        by_index.sums(out, X, **EACH_GROUP)


def test_what_is_written_behind_a_length_is_found():
    if missing := compiler.find_compiler().missing_sanitizers:
        pytest.skip(missing)
    short = shader.compile_shader(SUMS, constants={"width": WIDTH, "scaled": False}, threadgroup={0: 16})
    (finding,) = short.sums.check(torch.zeros(8), X, **EACH_GROUP).findings
    assert "global-buffer-overflow: write of 4 bytes" in str(finding)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, SyntaxError, r":3:\d+: error: function constants \(torch.mps.compile_shader cannot set them"),
        ({"constants": {}}, SyntaxError, r"threadgroup memory as a parameter \(torch.mps.compile_shader cannot size"),
        ({"constants": {"scaled": True}, "threadgroup": LENGTH}, SyntaxError, "function constant width has no value"),
        ({"constants": {"widht": 8}, "threadgroup": {}}, ValueError, r"no function constant 'widht'; it has width \(0"),
        ({"constants": {0: 8, 1: "yes"}, "threadgroup": {}}, ValueError, "a bool, an int, a float or a sequence"),
        ({"constants": {0: 8, 1: 0}, "threadgroup": {1: 16}}, SyntaxError, r"\[\[threadgroup\(0\)\]\] has no length"),
        ({"threadgroup": {0: 12}}, ValueError, "a positive multiple of 16 bytes"),
    ],
)
def test_what_is_missing_or_wrong_is_named(given, error, words):
    with pytest.raises(error, match=words):
        shader.compile_shader(SUMS, **given)


def test_more_memory_than_a_group_has_is_refused():
    lengths = {0: 65536}
    lib = shader.compile_shader(SUMS, constants={"width": WIDTH, "scaled": False}, threadgroup=lengths)
    with pytest.raises(RuntimeError, match="sums uses 65536 bytes of threadgroup memory, 32768 are there"):
        _ = lib.sums


def test_a_vector_is_a_sequence():
    text = "constant int2 size [[function_constant(0)]];"
    assert "int2 size = int2(3, 4);" in source.set_constants(text, {"size": (3, 4)})


# As MLX's bf16_math.h gives bfloat16 its functions, also in the namespaces for fast and precise mathematics.
BFLOAT16 = """\
#include <metal_stdlib>
using namespace metal;
typedef bfloat bfloat16_t;
namespace metal {
inline bfloat16_t exp(bfloat16_t x) {
  return static_cast<bfloat16_t>(__metal_exp(static_cast<float>(x), __METAL_MAYBE_FAST_MATH__));
}
inline bfloat16_t simd_sum(bfloat16_t x) {
  return static_cast<bfloat16_t>(__metal_simd_sum(static_cast<float>(x)));
}
namespace precise {
inline bfloat16_t sqrt(bfloat16_t x) {
  return static_cast<bfloat16_t>(__metal_sqrt(static_cast<float>(x), __METAL_PRECISE_MATH__));
}
}  // namespace precise
}  // namespace metal

kernel void functions(
    device bfloat16_t* out, device const bfloat16_t* x, device float* whole, device int* lanes,
    uint i [[thread_position_in_grid]]) {
  out[i] = exp(x[i]) + metal::precise::sqrt(x[i]);
  whole[i] = metal::precise::sqrt(float(x[i])) + fmedian3(float(x[i]), 0.5, 0.75) + float(simd_sum(x[i]));
  lanes[i] = simd_shuffle_and_fill_down(int(i), -int(i), ushort(3), ushort(8));
  lanes[i + 32] = simd_shuffle_and_fill_up(int(i), -int(i), ushort(3), ushort(8));
}
"""


def test_functions_that_a_header_adds_for_bfloat16_stand_beside_metal_s_own():
    x = torch.linspace(0, 1, 32).bfloat16()
    out, whole, lanes = torch.zeros(32, dtype=torch.bfloat16), torch.zeros(32), torch.zeros(64, dtype=torch.int32)
    shader.compile_shader(BFLOAT16).functions(out, x, whole, lanes, threads=32)
    assert torch.equal(out, x.float().exp().bfloat16() + x.float().sqrt().bfloat16())
    middle, sum_of_all = x.float().clamp(0.5, 0.75), x.float().sum().bfloat16().float()
    torch.testing.assert_close(whole, x.float().sqrt() + middle + sum_of_all)
    i = torch.arange(32)
    down = torch.where(i % 8 < 5, i + 3, -(i + 3 - 8))
    up = torch.where(i % 8 >= 3, i - 3, -(i + 8 - 3))
    assert lanes.tolist() == [*down.tolist(), *up.tolist()]
