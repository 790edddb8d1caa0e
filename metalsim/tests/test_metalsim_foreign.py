"""Metal files of projects other than PyTorch: what their hosts set beside the source, and what their headers call."""

from __future__ import annotations

import numpy as np
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
    return shader.compile_shader(
        SUMS, constants={"width": WIDTH, "scaled": False}, threadgroup=LENGTH
    ).sums


EACH_SUM = X.view(-1, WIDTH).sum(1)
"""The sum of each group."""


@pytest.fixture(scope="module")
def scaled_sums():
    """The kernel with a scale, its constants by index, and a factor of 0.5."""
    constants = {0: WIDTH, 1: True, 2: 0.5}
    return shader.compile_shader(SUMS, constants=constants, threadgroup=LENGTH).sums


def test_constants_may_be_set_by_name(sums):
    out = torch.zeros(8)
    sums(out, X, **EACH_GROUP)
    assert torch.equal(out, 3 * EACH_SUM)


def test_constants_may_be_set_by_index(scaled_sums):
    out = torch.zeros(8)
    scaled_sums(out, X, torch.tensor([10.0]), **EACH_GROUP)
    assert torch.equal(out, 5 * EACH_SUM)


def test_a_parameter_is_there_where_its_constant_is_true(scaled_sums):
    with pytest.raises(RuntimeError, match=r"buffer\(2\) is not bound"):
        scaled_sums(torch.zeros(8), X, **EACH_GROUP)


def test_a_length_that_the_host_sets_is_threadgroup_memory_of_the_kernel(sums):
    assert sums.static_thread_group_memory_length == LENGTH[0]


def test_what_is_written_behind_a_length_is_found():
    if missing := compiler.find_compiler().missing_sanitizers:
        pytest.skip(missing)
    short = shader.compile_shader(
        SUMS, constants={"width": WIDTH, "scaled": False}, threadgroup={0: 16}
    )
    (finding,) = short.sums.check(torch.zeros(8), X, **EACH_GROUP).findings
    assert "global-buffer-overflow: write of 4 bytes" in str(finding)


PLAIN = {"width": WIDTH, "scaled": False}
WRONG = {
    "nothing": ({}, SyntaxError, "function constants"),
    "no length": ({"constants": {}}, SyntaxError, "threadgroup memory as a parameter"),
    "a constant without a value": (
        {"constants": {"scaled": True}, "threadgroup": LENGTH},
        SyntaxError,
        "width has no value",
    ),
    "a constant that is not there": (
        {"constants": {"widht": 8}, "threadgroup": {}},
        ValueError,
        "no function constant 'widht'",
    ),
    "another length": (
        {"constants": PLAIN, "threadgroup": {1: 16}},
        SyntaxError,
        r"\[\[threadgroup\(0\)\]\] has no length",
    ),
    "an odd length": (
        {"constants": PLAIN, "threadgroup": {0: 12}},
        ValueError,
        "multiple of 16 bytes",
    ),
}


@pytest.mark.parametrize(("given", "error", "words"), WRONG.values(), ids=WRONG)
def test_what_is_missing_or_wrong_is_named(given, error, words):
    with pytest.raises(error, match=words):
        shader.compile_shader(SUMS, **given)


def test_a_length_beyond_the_threadgroup_memory_is_refused():
    with pytest.raises(RuntimeError, match="65536 bytes of threadgroup memory"):
        _ = shader.compile_shader(SUMS, constants=PLAIN, threadgroup={0: 65536}).sums


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
namespace precise {
inline bfloat16_t sqrt(bfloat16_t x) {
  return static_cast<bfloat16_t>(__metal_sqrt(static_cast<float>(x), __METAL_PRECISE_MATH__));
}
}  // namespace precise
}  // namespace metal

kernel void functions(
    device bfloat16_t* out, device const bfloat16_t* x, device int* lanes, uint i [[thread_position_in_grid]]) {
  out[i] = exp(x[i]) + metal::precise::sqrt(x[i]);
  lanes[i] = simd_shuffle_and_fill_down(int(i), -int(i), ushort(3), ushort(8));
}
"""


@pytest.fixture(scope="module")
def bfloat16_functions():
    """Values and lanes of the kernel with functions for bfloat16, of 32 numbers from 0 to 1."""
    x, lanes = torch.linspace(0, 1, 32).bfloat16(), torch.zeros(32, dtype=torch.int32)
    out = torch.zeros_like(x)
    shader.compile_shader(BFLOAT16).functions(out, x, lanes, threads=32)
    return x, out, lanes


def test_headers_may_overload_functions_for_bfloat16(bfloat16_functions):
    x, out, _ = bfloat16_functions
    assert torch.equal(out, x.float().exp().bfloat16() + x.float().sqrt().bfloat16())


def test_lanes_are_shifted_within_their_parts_of_a_simd_group(bfloat16_functions):
    _, _, lanes = bfloat16_functions
    i = torch.arange(32)
    assert lanes.tolist() == torch.where(i % 8 < 5, i + 3, -(i + 3 - 8)).tolist()


# What kernels of candle and MLX are written with, each in a few lines of our own.
MANNERS = """\
#include <metal_stdlib>
using namespace metal;

struct Pair {
  uint i;
  float value;
  Pair() thread = default;
  Pair() threadgroup = default;
  Pair(uint i, float value) : i(i), value(value) {}
  operator int() threadgroup { return i; }
  operator int() device { return i; }
};
template <>
struct _numeric_limits_impl<Pair> {
  static Pair lowest() { return Pair(7, numeric_limits<float>::lowest()); }
};

template <typename T, class U = T> struct Sum {};
template <> struct Sum<int> {
  static constexpr constant int first = int(20);
  static constant constexpr const int defined[2] = {1, 2};
};
constant constexpr const int Sum<int>::defined[2];
inline int by_reference(thread const volatile int& x) { return x; }

template <typename T> int length(constant const T* x, int n) { return n + int(x[0]); }
template <typename T> int length(device const T* x, int n) { return n + int(x[0]); }
template <typename T> struct pointee {};
template <typename T> struct pointee<device T*> { static constexpr int bytes() { return sizeof(T); } };
template <typename T> struct pointee<threadgroup T*> { static constexpr int bytes() { return sizeof(T); } };

kernel void words(device int* out, device float* limit, constant int* three, device const int* four) {
  uint4 fewer = {1u, 2u, 1u ^ 2u};
  Pair lowest = numeric_limits<Pair>::lowest();
  for (int k = 0; k < 4; k++) out[k] = fewer[k];
  out[4] = lowest.i;
  limit[0] = lowest.value;
  out[5] = length(three, 10) + length(four, 100);
  out[6] = pointee<device short*>::bytes() + pointee<threadgroup char*>::bytes();
  out[7] = __is_valid_simdgroup_type<half>::value + 2 * __is_valid_simdgroup_type<Pair>::value +
            4 * __is_valid_simdgroup_type<bfloat>::value + 8 * __is_valid_simdgroup_type<uint2>::value +
            16 * __is_valid_simdgroup_type<long>::value;
  bfloat assigned;
  assigned = lowest;
  limit[1] = assigned + bfloat(lowest);
  out[8] = int(lowest) + by_reference(Sum<int>::first) + Sum<int>::defined[1];
#ifdef __HAVE_BFLOAT__
  out[9] = 1;
#endif
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(64)]] void neighbours(
    device T* x [[buffer(0)]], uint i [[thread_position_in_grid]], uint k [[thread_position_in_threadgroup]]) {
  threadgroup T values[2][32] = {{0}, {0}};
  values[k / 32][k % 32] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = values[k / 32][k % 32 ^ 1];
}
template [[host_name("neighbours_float")]] [[kernel]] decltype(neighbours<float>) neighbours<float>;
template [[host_name("neighbours_not_there")]] [[kernel]] decltype(neighbours<atomic<half>>) neighbours<atomic<half>>;

kernel void tiles(
    device float* out, device float2* mine, device const float* a, device const float* b,
    ushort lane [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<float, 8, 8> left, right, product;
  simdgroup_load(left, a);
  mine[lane] = left.thread_elements();
  const ushort row = (lane / 4 & 4) + lane / 2 % 4, column = (lane / 4 & 2) * 2 + lane % 2 * 2;
  right.thread_elements()[0] = b[column * 8 + row];
  reinterpret_cast<thread float2&>(right.thread_elements()).y = b[(column + 1) * 8 + row];
  simdgroup_multiply_accumulate(product, left, right, left);
  product = product * left;
  thread const auto& sums = product.thread_elements();
  out[row * 8 + column] = sums[0];
  out[row * 8 + column + 1] = sums[1];
}
"""
CHOSEN = ("words", "neighbours_float", "tiles")


@pytest.fixture(scope="module")
def manners():
    """The kernels that compile; all would not."""
    return shader.compile_shader(MANNERS, kernels=CHOSEN)


def test_words_that_kernels_of_other_projects_use(manners):
    out, limit = torch.zeros(10, dtype=torch.int32), torch.zeros(2)
    three, four = (torch.tensor([n], dtype=torch.int32) for n in (3, 4))
    manners.words(out, limit, three, four, threads=1)
    assert out.tolist() == [1, 2, 3, 0, 7, 117, 3, 1 + 8, 29, 1]
    assert limit.tolist() == [torch.finfo(torch.float32).min, 14]


def test_threadgroup_memory_with_first_values_is_shared(manners):
    x = torch.arange(128.0)
    manners.neighbours_float(x, threads=128, group_size=64)
    assert torch.equal(x, torch.arange(128.0).view(-1, 2).flip(1).flatten())


def test_the_number_of_threads_stands_in_an_attribute_beside_kernel(manners):
    assert manners.neighbours_float.max_threads_per_threadgroup == 64


def test_lanes_hold_the_elements_of_a_tile_as_on_a_gpu(manners):
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    out, mine = torch.zeros(8, 8), torch.zeros(32, 2)

    manners.tiles(out, mine, a, b, threads=32)

    lane = np.arange(32)
    row, column = (lane // 4 & 4) + lane // 2 % 4, (lane // 4 & 2) * 2 + lane % 2 * 2
    torch.testing.assert_close(out, (a @ b.T + a) @ a)
    assert torch.equal(mine, torch.stack((a[row, column], a[row, column + 1]), 1))


def test_what_comes_of_metal_4_is_refused_with_its_line():
    text = "#include <metal_stdlib>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n"
    words = "program_source:3:19: error: Metal 4 tensors are not simulated"
    with pytest.raises(SyntaxError, match=words):
        shader.compile_shader(text + "kernel void k() { mpp::tensor_ops::run(); }")


def test_only_the_chosen_kernels_are_compiled(manners):
    assert set(dir(manners)) == set(CHOSEN)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        pytest.param(
            "neighbours_not_there", SyntaxError, "Metal's atomics are", id="does not compile"
        ),
        pytest.param("neighbours", ValueError, "no kernel 'neighbours'", id="a template"),
    ],
)
def test_a_chosen_kernel_that_cannot_be_had_is_named(name, error, words):
    with pytest.raises(error, match=words):
        shader.compile_shader(MANNERS, kernels=[name])
