"""Simulated Metal shaders compute what a GPU would, refuse what is not simulated, and find what is planted.

The judges are PyTorch's own kernels, its own Metal headers, and the Metal kernels that its Inductor generates.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import platform
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import children
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from metalsim import SimulationError, clang, device, shader
from metalsim.shader import binding, check, compiler, program, source
from metalsim.shader.accesses import KINDS

SHADERS = Path(__file__).parent / "shaders"
DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
POSITION = "uint i [[thread_position_in_grid]]"

try:
    COMPILER = compiler.find_compiler()
except shader.NoCompiler as error:
    pytest.skip(str(error), allow_module_level=True)
# How METALSIM_CXX names the compiler that is taken here, and ziglang beside it, which others have alone.
COMPILERS = {COMPILER.kind: os.environ.get("METALSIM_CXX", "")}
if importlib.util.find_spec("ziglang"):
    COMPILERS.setdefault("zig", "zig")
with_each_compiler = pytest.mark.usefixtures("each_compiler")
sanitized = pytest.mark.skipif(
    bool(COMPILER.missing_sanitizers), reason=str(COMPILER.missing_sanitizers)
)


@pytest.fixture(params=COMPILERS)
def each_compiler(request, monkeypatch) -> clang.Compiler:
    monkeypatch.setenv("METALSIM_CXX", COMPILERS[request.param])
    chosen = compiler.find_compiler()
    assert chosen.kind == request.param
    return chosen


HAS_TRIGAMMA = device.release(torch.__version__) >= (2, 12)
"""Whether PyTorch's Metal headers have that function."""


def text_of(name: str) -> str:
    text = (SHADERS / f"{name}.metal").read_text(encoding="utf-8")
    return text if HAS_TRIGAMMA else text.replace("SPECIAL(trigamma)", "")


def library(name: str) -> shader.Library:
    return shader.compile_shader(text_of(name))


def kernel(body: str, parameters: str = "device float* x") -> shader.Kernel:
    """A kernel k of which only the body matters."""
    return shader.compile_shader(f"{HEAD}kernel void k({parameters}, {POSITION}) {{ {body} }}").k


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit; NaN equals NaN."""
    numbers = ~torch.isnan(b)
    as_int = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return bool(
        torch.equal(torch.isnan(a), ~numbers)
        and torch.equal(a.view(as_int)[numbers], b.view(as_int)[numbers])
    )


def values(n: int, dtype: torch.dtype) -> torch.Tensor:
    """n values, with every special one among them."""
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 1e-8, -1e-8, 6e4])
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    x[: len(special)] = special[:n]
    return x.to(dtype)


# ---- right kernels compute what PyTorch computes ---------------------------------------------------------------------


LENGTHS = pytest.mark.parametrize("n", [1, pytest.param(1000, marks=pytest.mark.processor)])


@with_each_compiler
@pytest.mark.parametrize("name", DTYPES)
@LENGTHS
def test_softshrink_is_pytorch_s_to_the_last_bit(name, n):
    """In pieces of 7: on longer ones PyTorch's vector code takes over, and drops the sign of zero."""
    x = values(n, DTYPES[name])
    out = torch.empty_like(x)
    getattr(library("softshrink"), f"softshrink_forward_{name}")(out, x, 0.5)
    assert same_bits(out, torch.cat([F.softshrink(piece, 0.5) for piece in x.split(7)]))


@with_each_compiler
@pytest.mark.parametrize("name", DTYPES)
@LENGTHS
def test_the_gradient_of_softshrink_is_pytorch_s_to_the_last_bit(name, n):
    """In pieces of 7: on longer ones PyTorch's vector code takes over, and drops the gradient of a NaN."""
    x = values(n, DTYPES[name])
    out, grad = torch.empty_like(x), x.flip(0).contiguous()
    getattr(library("softshrink"), f"softshrink_backward_{name}")(out, grad, x, 0.5)

    pieces = zip(grad.split(7), x.split(7), strict=True)
    expected = [torch.ops.aten.softshrink_backward(g, piece, 0.5) for g, piece in pieces]
    assert same_bits(out, torch.cat(expected))


@with_each_compiler
@pytest.mark.parametrize("name", ["softmax_tree", "softmax_simd"])
@pytest.mark.parametrize(("rows", "cols", "group"), [(3, 1000, 256), (5, 33, 64)])
def test_softmax_in_threadgroup_memory(name, rows, cols, group):
    x = torch.randn(rows, cols) * 5
    out = torch.empty_like(x)
    getattr(library("softmax"), name)(out, x, cols, threads=rows * group, group_size=group)
    torch.testing.assert_close(out, x.softmax(-1), atol=1e-6, rtol=1e-5)


@with_each_compiler
def test_a_sum_by_shuffles_is_that_of_each_simd_group():
    x, out = torch.randn(320), torch.empty(10)
    library("softmax").shuffle_sum(out, x, threads=320, group_size=64)
    torch.testing.assert_close(out, x.view(10, 32).sum(1), atol=1e-5, rtol=1e-5)


@with_each_compiler
def test_atomics_lose_no_count():
    counts = torch.zeros(10, dtype=torch.int32)
    drawn = torch.randint(0, 10, (5000,), dtype=torch.int32)
    library("softmax").histogram(counts, drawn, threads=5000)
    assert torch.equal(counts.long(), torch.bincount(drawn.long(), minlength=10))


@with_each_compiler
def test_swizzles_read_and_write_the_elements_that_they_name():
    x = torch.randn(6, 4)
    out = torch.empty_like(x)
    library("language").swizzles(out, x, threads=6)
    a, b = x[:, 0] + 1, x[:, 1] + 1
    assert torch.equal(out, torch.stack([2 * x[:, 0], x[:, 1], b, a], 1))


@with_each_compiler
def test_packed_vectors_of_three_lie_side_by_side():
    p, q = torch.randn(5, 3), torch.empty(5, 3)
    library("language").packed(q, p, 3, threads=5)
    torch.testing.assert_close(q, p * 2 + 3 + p * p)


@pytest.fixture
def positions(each_compiler) -> torch.Tensor:
    """What threads are told in a grid of 5 x 3 x 2 in groups of 4 x 2.

    The last groups are smaller, as measured on a Mac: threads=10, group_size=4 gives groups of 4, 4 and 2.
    """
    out = torch.zeros(2, 3, 5, 4, dtype=torch.int32)
    library("language").positions(out, threads=(5, 3, 2), group_size=(4, 2, 1))
    return out


def test_the_last_groups_of_a_grid_are_smaller(positions):
    assert positions[0, :, :, 0].tolist() == [[421] * 4 + [121]] * 2 + [[411] * 4 + [111]]


def test_every_thread_is_told_the_group_size_that_was_asked_for(positions):
    assert set(positions[..., 1].flatten().tolist()) == {421}


def test_threads_of_a_group_are_numbered_by_rows(positions):
    assert positions[0, :2, :4, 3].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_lanes_are_numbered_by_32(positions):
    assert torch.equal(positions[..., 2], positions[..., 3] % 32)


@pytest.mark.processor
@with_each_compiler
def test_half_rounds_after_each_operation():
    x = torch.randn(4000).half()
    out = torch.empty_like(x)
    library("language").half_steps(out, x)
    assert same_bits(out, x * 3 + x / 3)


def lanes_that_are_greater_than_0(x: torch.Tensor) -> torch.Tensor:
    """A number with a bit for each of the first 16 lanes, for the first lane alone."""
    return torch.tensor([float(sum(1 << k for k in range(min(len(x), 16)) if x[k] > 0))])


SIMD_FUNCTIONS = {  # the column of the results, the lanes that are looked at, and what they get
    "simd_sum": (0, slice(None), lambda x: x.sum().expand(len(x))),
    "simd_prefix_inclusive_sum": (1, slice(None), lambda x: x.cumsum(0)),
    "simd_shuffle_xor": (2, slice(None), lambda x: x[torch.arange(len(x)) ^ 1]),
    "simd_broadcast": (3, slice(None), lambda x: x[3].expand(len(x))),
    "quad_sum": (4, slice(None), lambda x: x.view(-1, 4).sum(1).repeat_interleave(4)),
    "simd_shuffle_rotate_down": (5, slice(-1), lambda x: x[1:]),
    "simd_ballot": (6, slice(1), lanes_that_are_greater_than_0),
    "simd_max in a branch": (7, slice(16), lambda x: x[:16].max().expand(len(x[:16]))),
}


@pytest.mark.processor
@pytest.mark.parametrize("function", SIMD_FUNCTIONS)
@pytest.mark.parametrize("group", [32, 64, 40])
@with_each_compiler
def test_simdgroup_functions_see_the_lanes_that_are_there(group, function):
    """simd_sum over a group of 40 has 32 lanes and then 8, as measured on a Mac."""
    x, out = torch.randn(group), torch.empty(group, 8)
    library("language").lanes(out, x, threads=group, group_size=group)

    column, looked_at, expected = SIMD_FUNCTIONS[function]
    got = [lanes[looked_at] for lanes in out[:, column].split(32)]
    torch.testing.assert_close(got, [expected(lanes) for lanes in x.split(32)])


@pytest.mark.processor
@with_each_compiler
def test_the_other_side_of_a_branch_sees_its_own_lanes():
    x, out = torch.randn(32), torch.empty(32, 8)
    library("language").lanes(out, x, threads=32, group_size=32)
    assert torch.equal(out[16:, 7], x[16:].min().expand(16))


@pytest.mark.processor
@with_each_compiler
def test_matrix_tiles():
    a, b, c = torch.randn(8, 8), torch.randn(8, 8), torch.zeros(8, 8)
    library("language").tiles(c, a, b, threads=32)
    torch.testing.assert_close(c, a @ b)


@with_each_compiler
@pytest.mark.parametrize(
    ("name", "x"),
    [
        pytest.param("square_float", torch.randn(9), id="float"),
        pytest.param("square_int", torch.arange(9, dtype=torch.int32), id="int"),
    ],
)
def test_functors_and_overloads_by_address_space_are_called(name, x):
    out = torch.empty_like(x)
    getattr(library("language"), name)(out, x)
    torch.testing.assert_close(out, x * x)


@with_each_compiler
def test_a_literal_with_a_point_is_a_float():
    out = torch.zeros(2)
    library("language").literals(out, threads=1)
    assert out.tolist() == [4.0, torch.tensor(1 / 3).item()]


@with_each_compiler
def test_vectors_of_integers_are_computed_with():
    numbers = torch.tensor([-7, -1, 3, 9], dtype=torch.int32)
    library("language").integers(numbers, threads=1)
    assert numbers.tolist() == [-2, 1, 4, 6]


# ---- built-in functions of vectors -----------------------------------------------------------------------------------

VECTORS = {torch.float32: "float4", torch.float16: "half4", torch.int32: "int4", torch.uint8: "uchar4"}  # fmt: skip
"""What Metal calls four numbers of a dtype."""


def whole(low: int, high: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Draw whole numbers, the same ones for the same limits."""
    seeded = torch.Generator().manual_seed(high)
    return torch.randint(low, high, (50, 4), dtype=dtype, generator=seeded)


BIG, OTHER_BIG, SHORT = whole(-(2**31), 2**31), whole(-(2**31), 2**31 - 1), whole(-2000, 2000)
BYTES = whole(0, 256, torch.uint8)
REAL = values(200, torch.float32).view(-1, 4)
FINITE = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
TURNED = REAL.flip(0)
HALF, HALF_TURNED = REAL.half(), TURNED.half()
EXPONENTS = whole(-20, 20)


def wide_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the upper 32 bits of a product."""
    return (a.long() * b.long() >> 32).int()


def smooth(x: torch.Tensor) -> torch.Tensor:
    """Return smoothstep from -1 to 1."""
    t = ((x.float() + 1) / 2).clamp(0, 1)
    return (t * t * (3 - 2 * t)).to(x.dtype)


def next_after(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.nextafter(a.numpy(), b.numpy()))


class BuiltIn(NamedTuple):
    """A body that calls a function, what it is given, and what has to come out."""

    body: str
    given: tuple[torch.Tensor, ...]
    expected: torch.Tensor
    tolerance: float = 0


BUILT_IN = {
    "hadd": BuiltIn(
        "out[i] = hadd(a[i], b[i]);", (BIG, OTHER_BIG), (BIG.long() + OTHER_BIG >> 1).int()
    ),
    "rhadd": BuiltIn(
        "out[i] = rhadd(a[i], b[i]);", (BIG, OTHER_BIG), (BIG.long() + OTHER_BIG + 1 >> 1).int()
    ),
    "madhi": BuiltIn(
        "out[i] = madhi(a[i], b[i], c[i]);", (BIG, OTHER_BIG, SHORT), wide_product(BIG, OTHER_BIG) + SHORT
    ),
    "mul24": BuiltIn("out[i] = mul24(a[i], b[i]);", (SHORT, SHORT.flip(0)), SHORT * SHORT.flip(0)),
    "mad24": BuiltIn(
        "out[i] = mad24(a[i], b[i], c[i]);", (SHORT, SHORT.flip(0), BIG // 2), SHORT * SHORT.flip(0) + BIG // 2
    ),
    "extract_bits of a sign": BuiltIn(
        "out[i] = extract_bits(a[i], 4, 8);", (BIG,), (BIG >> 4).to(torch.int8).int()
    ),
    "extract_bits of bytes": BuiltIn("out[i] = extract_bits(a[i], 2u, 3u);", (BYTES,), BYTES >> 2 & 7),
    "smoothstep": BuiltIn("out[i] = smoothstep(float4(-1), float4(1), a[i]);", (FINITE,), smooth(FINITE)),
    "smoothstep of half": BuiltIn(
        "out[i] = smoothstep(half4(-1), half4(1), a[i]);", (FINITE.half(),), smooth(FINITE.half())
    ),
    "smoothstep between numbers": BuiltIn(
        "out[i] = smoothstep(-1.0f, 1.0f, a[i]);", (FINITE,), smooth(FINITE)
    ),
    "nextafter": BuiltIn("out[i] = nextafter(a[i], b[i]);", (REAL, TURNED), next_after(REAL, TURNED)),
    "nextafter of half": BuiltIn(
        "out[i] = nextafter(a[i], b[i]);", (HALF, HALF_TURNED), next_after(HALF, HALF_TURNED)
    ),
    "nextafter of half at zero": BuiltIn(
        "out[i] = nextafter(half4(0), a[i]);", (HALF,), next_after(torch.zeros_like(HALF), HALF)
    ),
    "ilogb": BuiltIn("out[i] = ilogb(a[i]);", (FINITE,), FINITE.frexp().exponent - 1),
    "ldexp": BuiltIn("out[i] = ldexp(a[i], b[i]);", (FINITE, EXPONENTS), FINITE.ldexp(EXPONENTS)),
    "ldexp by a number": BuiltIn("out[i] = ldexp(a[i], 3);", (FINITE,), FINITE * 8),
    "frexp, the fraction": BuiltIn("int4 e; out[i] = frexp(a[i], e);", (FINITE,), FINITE.frexp().mantissa),
    "frexp, the exponent": BuiltIn(
        "int4 e; frexp(a[i], e); out[i] = e;", (FINITE,), FINITE.frexp().exponent
    ),
    "modf, the fraction": BuiltIn("float4 w; out[i] = modf(a[i], w);", (FINITE * 9,), (FINITE * 9).frac()),
    "modf, the whole number": BuiltIn(
        "half4 w; modf(a[i], w); out[i] = w;", (FINITE.half() * 9,), (FINITE.half() * 9).trunc()
    ),
    "sincos, the sine": BuiltIn("float4 c; out[i] = sincos(a[i], c);", (FINITE,), FINITE.sin(), 1e-6),
    "sincos, the cosine": BuiltIn(
        "half4 c; sincos(a[i], c); out[i] = c;", (FINITE.half(),), FINITE.half().cos(), 1e-3
    ),
    "isordered": BuiltIn(
        "out[i] = int4(isordered(a[i], b[i]));", (REAL, TURNED), (~(REAL.isnan() | TURNED.isnan())).int()
    ),
    "isunordered": BuiltIn("out[i] = int4(isunordered(a[i], b[i]));", (REAL, REAL), REAL.isnan().int()),
}  # fmt: skip


def kernel_of_vectors(name: str, case: BuiltIn) -> str:
    """Return the source of a kernel: `out`, `a`, `b` and `c` are vectors of four, the rows of tensors."""
    named = [("out", case.expected), *zip("abc", case.given, strict=False)]
    parameters = [f"device {VECTORS[tensor.dtype]}* {parameter}" for parameter, tensor in named]
    return f"kernel void {name}({', '.join(parameters)}, {POSITION}) {{ {case.body} }}\n"


NAMES_OF_KERNELS = {case_id: re.sub(r"\W+", "_", f"k {case_id}") for case_id in BUILT_IN}
ALL_BUILT_IN = HEAD + "".join(
    kernel_of_vectors(NAMES_OF_KERNELS[case_id], case) for case_id, case in BUILT_IN.items()
)
"""One source, so that it is compiled once for all cases."""


@with_each_compiler
@pytest.mark.parametrize("case_id", BUILT_IN)
def test_a_built_in_function_computes_each_element_of_vectors(case_id):
    case, computes = BUILT_IN[case_id], shader.compile_shader(ALL_BUILT_IN)
    computed = torch.empty_like(case.expected)

    getattr(computes, NAMES_OF_KERNELS[case_id])(computed, *case.given, threads=len(computed))

    torch.testing.assert_close(
        computed, case.expected, rtol=case.tolerance, atol=case.tolerance, equal_nan=True
    )


def of_a_ray(expression: str, x: float, y: float) -> torch.Tensor:
    """Compute an expression of a ray with this direction; the surface's normal `n` points up."""
    out = torch.empty(1, 4)
    body = f"float4 ray(x[0], x[1], 0, 0), n(0, 1, 0, 0); out[i] = {expression};"
    kernel(body, "device float4* out, device float* x")(out, torch.tensor([x, y]), threads=1)
    return out[0]


@with_each_compiler
def test_a_ray_is_reflected():
    assert of_a_ray("reflect(ray, n)", 3.0, -4.0).tolist() == [3, 4, 0, 0]


@with_each_compiler
def test_a_ray_is_refracted_by_snell_s_law():
    bent = of_a_ray("refract(ray, n, 0.75)", math.sin(1), -math.cos(1))
    angle = math.asin(0.75 * math.sin(1))
    torch.testing.assert_close(bent[:2], torch.tensor([math.sin(angle), -math.cos(angle)]))


@with_each_compiler
def test_a_ray_that_cannot_leave_is_not_refracted():
    assert of_a_ray("refract(ray, n, 1.5)", math.sin(1), -math.cos(1)).tolist() == [0, 0, 0, 0]


# ---- the same numbers on every processor, whichever compiler --------------------------------------------------------


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """As non-negative integers, int64."""
    size = x.element_size()
    return x.view({4: torch.int32, 2: torch.int16}[size]).long() & (1 << 8 * size) - 1


def from_bits(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    signed = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return (bits - ((bits >> 8 * dtype.itemsize - 1) << 8 * dtype.itemsize)).to(signed).view(dtype)


def to_bfloat(x: torch.Tensor) -> torch.Tensor:
    """float32 to bfloat16 in integers, to nearest, ties to even: no instruction of this processor converts anything."""
    bits = bits_of(x)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return from_bits(
        torch.where(nan, bits | 0x400000, bits + 0x7FFF + (bits >> 16 & 1)) >> 16, torch.bfloat16
    )


def every_rounding() -> torch.Tensor:
    """Every upper half of a float32, subnormal numbers and NaN too, with lower halves below, at and above ties."""
    below = torch.tensor(
        [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    )
    return from_bits((torch.arange(1 << 16)[:, None] << 16 | below).flatten(), torch.float32)


def converted(x: torch.Tensor, to: str) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=DTYPES[to])
    [name] = (name for name, dtype in DTYPES.items() if dtype == x.dtype)
    getattr(library("numbers"), f"{name}_to_{to}")(out, x)
    return out


ALL_BITS = torch.arange(1 << 16)
BFLOATS, HALVES = from_bits(ALL_BITS, torch.bfloat16), from_bits(ALL_BITS, torch.float16)
"""Every number of 16 bits."""


@pytest.mark.processor
@with_each_compiler
def test_float_is_rounded_to_the_nearest_bfloat():
    """Also what AVX512-BF16 takes for zero: subnormal numbers. Of a NaN the bits are known, too."""
    x = every_rounding()
    assert torch.equal(bits_of(converted(x, "bfloat")), bits_of(to_bfloat(x)))


@pytest.mark.processor
@with_each_compiler
def test_float_is_rounded_to_the_nearest_half():
    x = every_rounding()
    with np.errstate(over="ignore", invalid="ignore"):  # NumPy converts half in integers
        expected = torch.from_numpy(x.numpy().astype(np.float16))
    assert same_bits(converted(x, "half"), expected)


@pytest.mark.processor
@with_each_compiler
def test_a_float_of_16_bits_is_the_same_number_in_32():
    assert torch.equal(bits_of(converted(BFLOATS, "float")), ALL_BITS << 16)
    expected = torch.from_numpy(HALVES.numpy().astype(np.float32))
    assert same_bits(converted(HALVES, "float"), expected)


@pytest.mark.processor
@with_each_compiler
def test_a_float_of_16_bits_becomes_the_other_by_way_of_32():
    assert same_bits(converted(HALVES, "bfloat"), to_bfloat(converted(HALVES, "float")))
    assert same_bits(converted(BFLOATS, "half"), converted(converted(BFLOATS, "float"), "half"))


ROUND_TO = {"float": lambda x: x, "half": torch.Tensor.half, "bfloat": to_bfloat}


def any_numbers(dtype: torch.dtype, *, seed: int) -> torch.Tensor:
    """20 000 numbers of any bits."""
    draw = torch.Generator().manual_seed(seed)
    return from_bits(torch.randint(0, 1 << 8 * dtype.itemsize, (20_000,), generator=draw), dtype)


@pytest.mark.processor
@with_each_compiler
@pytest.mark.parametrize("name", DTYPES)
def test_arithmetic_rounds_each_operation(name):
    x, y = (any_numbers(DTYPES[name], seed=seed) for seed in (3, 4))
    out = torch.empty(20_000, 4, dtype=DTYPES[name])

    getattr(library("numbers"), f"arithmetic_{name}")(out, x, y, threads=20_000)

    a, b = x.float(), y.float()
    exact = (a + b, a - b, a * b, a / b)
    assert same_bits(out, torch.stack([ROUND_TO[name](value) for value in exact], 1))


@pytest.mark.processor
@with_each_compiler
def test_products_and_sums_are_fused_only_by_fma():
    draw = torch.Generator().manual_seed(4)
    x, y, z = (torch.randn(20_000, generator=draw) for _ in range(3))
    separate, fused = torch.empty_like(x), torch.empty_like(x)

    library("numbers").multiply_add(separate, fused, x, y, z)

    assert same_bits(separate, (x * y) + z)
    assert same_bits(fused, (x.double() * y.double() + z.double()).float())
    assert not same_bits(separate, fused), "the arguments tell nothing"


def undefined_symbols(name: str) -> list[str]:
    """What a library leaves undefined, as nm prints it."""
    command = ["nm", "--dynamic", "--undefined-only", str(library(name)._binary)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@with_each_compiler
@pytest.mark.parametrize("name", ["softshrink", "numbers", "special"])
def test_a_library_calls_the_c_library_and_nothing_else(name):
    """What it leaves undefined carries the version of glibc, or is weak and may be missing.

    Of a compiler's own run-time library a process may have another version, or none: `__truncsfbf2` and its kin.
    """
    undefined = undefined_symbols(name)
    others = [line for line in undefined if "@GLIBC_" not in line]
    assert len(others) < len(undefined), "nm shows no versions"
    assert [line for line in others if line.split()[0] not in ("w", "v")] == []


def for_processor(options: list[str]) -> tuple[str, ...]:
    return tuple(o for o in options if o.startswith(("-march", "-mcpu", "-mtune")))


@with_each_compiler
def test_everything_is_compiled_for_the_same_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))
    run, commands = compiler._run, []
    monkeypatch.setattr(
        compiler, "_run", lambda command, **how: (commands.append(command), run(command, **how))[1]
    )

    kernel("x[i] += 1;").check(torch.zeros(4))

    assert len(commands) >= 5, "preprocessed, a library and a program with a run time each"
    assert {for_processor(command) for command in commands} == {compiler.find_compiler().options}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64")
@with_each_compiler
def test_the_processor_that_everything_is_compiled_for_has_avx2():
    (option,) = compiler.find_compiler().options
    assert option.replace("_", "-") == "-march=x86-64-v3"


@pytest.fixture
def processor(monkeypatch):
    """What a processor has, to be changed: all that is asked for."""
    has = dict.fromkeys(compiler.V3, True) | {"architecture": "x86_64"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    return has


@pytest.mark.parametrize("lacking", ["avx2", "fma3"])
def test_an_older_processor_is_told_what_it_lacks(lacking, processor):
    processor[lacking] = False
    words = rf"processors with AVX2 and FMA.* lacks {lacking}: use another machine"
    with pytest.raises(SimulationError, match=words):
        kernel("x[i] = 1;")


def test_of_another_architecture_no_instructions_of_x86_are_asked(processor):
    processor.update(avx2=False, architecture="aarch64")
    kernel("x[i] = 1;")


# ---- PyTorch's own Metal code ----------------------------------------------------------------------------------------

HEADERS = sorted((Path(torch.__file__).parent / "include" / "c10" / "metal").glob("*.h"))


def test_headers_of_pytorch_compile():
    text = HEAD + "".join(f"#include <c10/metal/{header.name}>\n" for header in HEADERS)
    x = torch.zeros(3)
    shader.compile_shader(f"{text}kernel void k(device float* x, {POSITION}) {{ x[i] = i; }}").k(x)
    assert len(HEADERS) > 5
    assert x.tolist() == [0, 1, 2]


S = torch.special
SPECIAL = {
    "digamma": S.digamma, "log_gamma": torch.lgamma, "i0": S.i0, "i0e": S.i0e, "i1": S.i1, "i1e": S.i1e,
    "erf": torch.erf, "erfc": torch.erfc, "erfinv": torch.erfinv, "sinc": torch.sinc, "entr": S.entr,
    "log1p": torch.log1p, "expm1f": torch.expm1,
    "bessel_j0_forward": S.bessel_j0, "modified_bessel_k0_forward": S.modified_bessel_k0,
}  # fmt: skip
if HAS_TRIGAMMA:
    SPECIAL["trigamma"] = functools.partial(torch.polygamma, 1)


@with_each_compiler
@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_function_of_pytorch_s_headers_is_right(name):
    x = torch.linspace(0.05, 0.95, 4001)
    out = torch.empty_like(x)
    getattr(library("special"), f"special_{name}")(out, x)
    exact = SPECIAL[name](x.double())
    assert ((out - exact).abs() / exact.abs().clamp_min(1e-6)).max() < 1e-5


@with_each_compiler
@pytest.mark.parametrize(
    ("name", "function"),
    [("sum", torch.sum), ("prod", torch.prod), ("max", torch.amax), ("min", torch.amin)],
)
@pytest.mark.parametrize("group", [32, 200])
def test_a_reduction_of_pytorch_s_headers_is_right(group, name, function):
    x, out = torch.rand(5, group) + 0.5, torch.zeros(5)
    getattr(library("special"), f"reduce_{name}")(out, x, threads=5 * group, group_size=group)
    torch.testing.assert_close(out, function(x, 1), rtol=1e-4, atol=0)


def test_what_a_kernel_reports_is_raised():
    x = torch.ones(5)
    x[3] = -1
    with pytest.raises(RuntimeError, match="value 3 is negative"):
        library("special").complain(x, error_buf_idx=1)


def test_a_kernel_that_reports_nothing_raises_nothing():
    library("special").complain(torch.ones(5), error_buf_idx=1)


# ---- kernels that Inductor generates for mps -------------------------------------------------------------------------


def pointwise(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of many functions of each element: Inductor makes one kernel of all."""
    activated = (
        F.gelu(x)
        + F.gelu(x, approximate="tanh")
        + F.mish(x)
        + F.softplus(x)
        + F.elu(x)
        + torch.sigmoid(x)
    )
    shrunk = (
        F.softshrink(x, 0.5)
        + F.hardshrink(x, 0.3)
        + torch.where(x > 0.5, x - 0.5, (x * 2).clamp(-1, 1))
    )
    rounded = (
        x.floor() + x.round() + x.sign() + x.trunc() + torch.remainder(x, 0.7) + torch.fmod(x, 0.3)
    )
    smooth = (
        x.exp().log1p() + x.abs().sqrt() + x**3 + x.abs().rsqrt() + x.sin() * x.cos() + x.atan()
    )

    return (
        activated
        + shrunk
        + rounded
        + smooth
        + torch.special.i0(x)
        + torch.erf(x)
        + torch.lgamma(x.abs() + 1)
    )


def rows(x: torch.Tensor) -> torch.Tensor:
    """Return a number for each row, of each kind of reduction; whether any and all are large counts 1 and 2."""
    both = (x > 3.5).any(-1).float() + (x > -3.5).all(-1).float() * 2
    return (
        x.amax(-1)
        - x.amin(-1)
        + x.sum(-1)
        + (x * 0.01 + 1).prod(-1)
        + x.var(-1)
        + x.mean(-1)
        + both
    )


GENERATED = {
    "pointwise": pointwise,
    "integers": lambda x: (x * 1000).long() * 3 + (x * 100).to(torch.int32) // 7 + (x > 0),
    "transposed": lambda x: torch.cat([x.t(), x.t() * 2], 1),
    "sum of all": lambda x: x.sum(),
    "reductions of rows": rows,
    "reductions of columns": lambda x: x.softmax(0) * (x * 2).mean(0) + x.flip(0),
    "argmax": lambda x: x.argmax(-1),
    "cross entropy": lambda x: F.cross_entropy(
        x, torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    ),
    "half softmax": lambda x: (x.half() * 2).softmax(-1),
    "bfloat16 layer norm": lambda x: F.layer_norm(F.silu(x.bfloat16()), (x.shape[-1],)),
}


def generated(function, x: torch.Tensor) -> types.ModuleType:
    """Return Inductor's code for a function of a tensor on mps, as a module whose `call([x])` returns the results.

    It is made for a tensor without memory, since there is no mps in this process. The code is then given memory of the
    host, and its Metal kernels are compiled by what `pretended_mps` puts into torch.
    """
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode()
    with mode:
        fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="mps")
        graph = make_fx(function, decomposition_table=select_decomp_table())(fake)
    lowering = GraphLowering(graph, example_inputs=[fake], shape_env=None)
    with V.set_graph_handler(lowering), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        lowering.run(fake)
        code = lowering.codegen()[0]

    text = code.value if hasattr(code, "value") else code
    assert "kernel void" in text, "nothing was generated for Metal"
    module = types.ModuleType("generated")
    exec(
        compile(text.replace("device='mps'", "device='cpu'"), "generated.py", "exec"),
        module.__dict__,
    )
    return module


@pytest.fixture
def pretended_mps(monkeypatch):
    """What Inductor asks a Mac for while it generates and compiles."""
    monkeypatch.setattr(torch._C, "_mps_get_core_count", lambda: 10, raising=False)
    monkeypatch.setattr(torch._C, "_mps_get_name", lambda: "Apple M1", raising=False)
    monkeypatch.setattr(
        torch.mps, "compile_shader", lambda source: shader.compile_shader(source, strided=True)
    )


WITH_ZIG = (
    ["half softmax", "bfloat16 layer norm"] if COMPILER.kind != "zig" and "zig" in COMPILERS else []
)


INDUCTOR_CASES = [
    *(pytest.param(name, COMPILER.kind, id=name) for name in GENERATED),
    *(pytest.param(name, "zig", id=f"{name} by zig") for name in WITH_ZIG),
]
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.float16: {"rtol": 2e-2, "atol": 4e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 4e-3},
}


@pytest.mark.usefixtures("pretended_mps")
@pytest.mark.parametrize(("name", "kind"), INDUCTOR_CASES)
def test_kernels_that_inductor_generates_agree_with_eager(name, kind, monkeypatch):
    monkeypatch.setenv("METALSIM_CXX", COMPILERS[kind])
    x = torch.randn(37, 1000, generator=torch.Generator().manual_seed(5))
    expected = GENERATED[name](x)

    [got] = generated(GENERATED[name], x).call([x.clone()])

    allowed = TOLERANCES.get(expected.dtype, {"rtol": 0, "atol": 0})
    torch.testing.assert_close(got, expected, equal_nan=True, **allowed)


# ---- planted bugs ----------------------------------------------------------------------------------------------------

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
ADD = "atomic_fetch_add_explicit(&counts[x[i]], 1u, memory_order_relaxed)"
IDENTITY = "lane < nsg ? part[lane] : "
ROWS = {"threads": 3 * 128, "group_size": 128}
ORDER, GARBAGE, ADDRESS = (
    {"race", "thread order"},
    {"race", "uninitialised memory"},
    {"address", "undefined behaviour"},
)


@dataclass(frozen=True)
class Planted:
    """A bug: in which kernel, what it is, the edit, columns or elements, kinds of finding that may show it."""

    kernel: str
    what: str
    old: str
    new: str
    n: int
    kinds: set[str]

    def __str__(self) -> str:
        return f"{self.kernel}: {self.what}"


PLANTED = [
    Planted("softmax_tree", "no barrier in the tree", f"{BARRIER}  // 2", "", 1000, ORDER),
    Planted("softmax_tree", "no barrier before reuse", f"{BARRIER}  // 3", "", 1000, ORDER),
    Planted(
        "softmax_tree",
        "early return",
        "red[256];",
        "red[256]; if (t >= cols) return;",
        100,
        {"barrier"},
    ),
    Planted(
        "softmax_tree",
        "barrier in a branch",
        f"{BARRIER}  // 3",
        f"if (t < 64) {BARRIER}",
        1000,
        {"barrier"},
    ),
    Planted("softmax_tree", "array too short", "float red[256]", "float red[64]", 1000, ADDRESS),
    Planted("softmax_simd", "no barrier between stages", f"{BARRIER}  // 1", "", 1000, GARBAGE),
    Planted("softmax_simd", "no barrier before reuse", f"{BARRIER}  // 2", "", 1000, {"race"}),
    Planted(
        "softmax_simd", "no identity in the sum", f"{IDENTITY}0.0", "part[lane]", 1000, GARBAGE
    ),
    Planted("softshrink_vec4", "no tail", "if (i + 4 <= n)", "if (true)", 1001, {"address"}),
    Planted(
        "softshrink_vec4",
        "misaligned",
        "(out + i) =",
        "(out + i + 1) =",
        1024,
        {"crash", "address"},
    ),
    Planted("histogram", "no atomic", ADD, "((device uint*)counts)[x[i]] += 1", 500, {"race"}),
]


def arguments(name: str, n: int) -> tuple[tuple, dict]:
    """Return what a kernel is called with, and with how many threads: for `n` columns, or numbers."""
    draw = torch.Generator().manual_seed(1)
    if name.startswith("softmax"):
        return (torch.zeros(3, n), torch.randn(3, n, generator=draw), n), ROWS
    if name == "histogram":
        drawn = torch.randint(0, 10, (n,), dtype=torch.int32, generator=draw)
        return (torch.zeros(10, dtype=torch.int32), drawn), {"threads": n, "group_size": 100}
    return (torch.zeros(n), torch.randn(n, generator=draw), 0.5, n), {
        "threads": (n + 3) // 4,
        "group_size": 64,
    }


def checked(name: str, change: tuple[str, str] | None, n: int) -> tuple[check.Report, str]:
    """Return the report on a kernel, whose arguments have to keep their values, and its source.

    `change` is a text of the source and what takes its place, once, in the kernel or behind it.
    """
    text = text_of("softshrink" if name.startswith("softshrink") else "softmax")
    if change:
        assert text.count(change[0]) >= 1, f"{change[0]!r} is not in the source: adapt the table"
        place = text.index(change[0], text.index(f"void {name}("))
        text = text[:place] + change[1] + text[place + len(change[0]) :]

    args, sizes = arguments(name, n)
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    report = getattr(shader.compile_shader(text), name).check(*args, **sizes)
    assert all(
        torch.equal(a, b) for a, b in zip(args, before, strict=True) if isinstance(a, torch.Tensor)
    )
    return report, text


RIGHT = [
    ("softmax_tree", 1000),
    ("softmax_simd", 1000),
    ("softshrink_vec4", 1001),
    ("histogram", 500),
]


@pytest.mark.parametrize(("name", "n"), RIGHT)
def test_nothing_is_found_in_a_right_kernel(name, n):
    report, _ = checked(name, None, n)
    assert report.ok, report
    assert "thread orders" in report.ran
    assert bool(report.skipped) == bool(COMPILER.missing_sanitizers)


WITHOUT_A_LINE = ("thread order", "uninitialised memory")
"""Findings that compare runs."""


@pytest.mark.parametrize("bug", PLANTED, ids=str)
def test_a_planted_bug_is_found_in_its_kernel(bug):
    report, text = checked(bug.kernel, (bug.old, bug.new), bug.n)
    findings = [finding for finding in report.findings if finding.kind in bug.kinds]
    assert findings, report

    first = text[: text.index(f"void {bug.kernel}(")].count("\n") + 1
    lines = [finding.line for finding in findings if finding.kind not in WITHOUT_A_LINE]
    assert all(first < line <= len(text.splitlines()) for line in lines), findings


def test_one_missing_barrier_is_one_finding():
    report, _ = checked("softmax_simd", (f"{BARRIER}  // 1", ""), 1000)
    assert [finding.kind for finding in report.findings] == ["race"], report
    assert report.effects
    assert str(report).count("seen with it: buffer(0) has other values") == len(report.effects)


def found_in(report: check.Report) -> set[tuple[str, int]]:
    """The kind and the line of each finding."""
    return {(finding.kind, finding.line) for finding in report.findings}


@sanitized
def test_undefined_behaviour_is_found_with_its_line():
    body = "\n\nint v = x[i];\nx[i] = 7 / v;"
    report = kernel(body, "device int* x").check(torch.zeros(6, dtype=torch.int32))
    assert found_in(report) == {("undefined behaviour", 6)}


@sanitized
def test_an_access_far_outside_is_found_with_its_line():
    report = kernel("\n\nx[i + 1000000000000l] = 1;").check(torch.zeros(6))
    assert found_in(report) == {("address", 5)}


@sanitized
def test_a_race_is_found_with_its_line():
    assert found_in(kernel("x[0] += 1;").check(torch.zeros(6))) == {("race", 3)}


ENDLESS = {  # kernels that never end, and that C++ may assume to end
    "writes": "while (true) { x[i] += 1; }",
    "spins": "while (true) {}",
    "counts": "for (uint j = 0;; j++) {}",
    "waits_for_a_value": "uint n = uint(x[i]) + 1; while (n != 0) { n |= 1; }",
    "waits_for_a_thread": "while (x[0] == 0) { ((device volatile float*)x)[1] = 1; }",
}


@pytest.fixture
def without_sanitizers(monkeypatch):
    """A compiler whose sanitizers are too slow to be waited for here."""
    here = compiler.find_compiler().__dict__
    monkeypatch.setitem(here, "missing_sanitizers", "too slow to compile here")


ENDLESS_KERNELS = HEAD + "".join(
    f"kernel void {name}(device float* x, {POSITION}) {{ {body} }}\n"
    for name, body in ENDLESS.items()
)


@pytest.mark.usefixtures("without_sanitizers")
@pytest.mark.parametrize("name", ENDLESS)
def test_a_kernel_without_end_is_called_that_and_nothing_else(name):
    endless = getattr(shader.compile_shader(ENDLESS_KERNELS), name)
    report = endless.check(torch.zeros(4), timeout=0.5)
    assert [finding.kind for finding in report.findings] == ["hang"], report
    assert report.ran == ("a plain run",)


def test_generated_code_reads_what_was_there_before_it_wrote():
    """torch.compile gives a running mean as what is read and as what is written, and each thread reads the old one."""
    text = "kernel void k(device float* out, constant float* x, uint i [[thread_position_in_grid]]) { *out = *x + 1; }"
    shader.compile_shader(text, strided=True).k(x := torch.zeros(1), x, threads=60)
    assert x.item() == 1


@pytest.mark.parametrize("at", [8, 1000, 1100, 1900])
def test_a_write_behind_a_buffer_is_noticed(at):
    text = "kernel void k(device float* out, constant int& at) { out[at] = 1; }"
    with pytest.raises(RuntimeError, match="outside"):
        shader.compile_shader(text).k(torch.zeros(8), at, threads=1, arg_casts="int32")


@sanitized
def test_why_a_kernel_does_not_end_is_found_beside_it(monkeypatch):
    run = check.Program.run

    def run_slowly(self, tool, call, timeout):
        # the limit is for the plain run alone: a sanitizer ends the kernel, however long it takes to begin
        return run(self, tool, call, timeout if tool == "plain" else children.LIMIT)

    monkeypatch.setattr(check.Program, "run", run_slowly)
    endless = kernel("while (x[i + 4] != 12345) { ((device volatile float*)x)[i] = 1; }")
    report = endless.check(torch.zeros(4), threads=1, timeout=0.5)

    assert "address" in {finding.kind for finding in report.findings}, report


IN_ONE_ORDER = "device volatile float* y = x; if (i > 0) { while (y[i - 1] == 0) {} } y[i] = 1;"


def test_a_kernel_that_ends_in_one_order_only_is_told_which():
    run = kernel_program(IN_ONE_ORDER, 4)
    call = binding.bind((torch.zeros(4),), None, None, None, False)
    usual = run("plain", call, children.LIMIT)
    assert usual.status == 0

    def run_limited(tool, call, timeout, order=0, **more):
        # the limit is for other orders alone: on a busy machine a run that ends may take longer
        return run(tool, call, timeout if order else children.LIMIT, order, **more)

    findings = check._compare_runs(types.SimpleNamespace(run=run_limited), call, 1.0, usual)
    assert [finding.kind for finding in findings] == ["hang"], findings
    assert "backwards" in findings[0].message


def kernel_program(body: str, n: int):
    """How the programs of a kernel run."""
    one = kernel(body)
    return check.Program(
        one._library._code, one._number, one._library._described[one.name]["meets"]
    ).run


POSITIONS = f"{POSITION}, uint t [[thread_position_in_threadgroup]]"
IN_SHARED = "threadgroup float s[64]; s[t] = i; {} x[i] = s[t ^ {}];"
IN_SIMDGROUP = "simdgroup_barrier(mem_flags::mem_threadgroup);"
ATOMIC = "atomic_fetch_add_explicit((device atomic_uint*)x, 1u, memory_order_relaxed);"
JUDGED = {  # kernels of 64 threads in groups of 64, or of 32 for two groups, with what is found in them
    "a barrier": (IN_SHARED.format(BARRIER, 32), 64, None),
    "no barrier": (IN_SHARED.format("", 1), 64, "race"),
    "a barrier of the SIMD-group, inside of it": (IN_SHARED.format(IN_SIMDGROUP, 1), 64, None),
    "a barrier of the SIMD-group, across two": (IN_SHARED.format(IN_SIMDGROUP, 32), 64, "race"),
    "two writes": ("x[i / 2] = 1;", 64, "race"),
    "two groups": ("x[i] = 1; x[(i + 32) % 64] = 1;", 32, "race"),
    "many readers": (
        "float first = x[63]; threadgroup_barrier(mem_flags::mem_device); x[i] = first;",
        64,
        None,
    ),
    "a writer after many readers": ("float first = x[63]; x[i] = first;", 64, "race"),
    "halves beside each other": ("((device half*)x)[i] = 1;", 64, None),
    "atomics": (ATOMIC, 64, None),
    "an atomic and a write": (f"{ATOMIC} if (t == 1) x[0] = 1;", 64, "race"),
    "a vector behind the end": ("((device float4*)x)[i] = 1;", 64, "address"),
    "before the beginning": ("x[i] = x[long(i) - 1];", 64, "address"),
    "before the guard": ("float y = x[i + 64]; if (i > 63) x[i] = y;", 64, "address"),
    "a table of constants": ("constexpr float a[4] = {1, 2, 3, 4}; x[i] = a[i % 4];", 64, None),
}


JUDGED_KERNELS = HEAD + "".join(
    f"kernel void k{i}(device float* x, {POSITIONS}) {{\n{body}\n}}\n"
    for i, (body, _, _) in enumerate(JUDGED.values())
)


@with_each_compiler
@pytest.mark.parametrize("name", JUDGED)
def test_each_access_is_watched(name):
    """Races and accesses outside of buffers, by the calls that each clang makes, without a sanitizer."""
    number, (_, group, kind) = [*JUDGED].index(name), JUDGED[name]
    compiled = shader.compile_shader(JUDGED_KERNELS)
    one = getattr(compiled, f"k{number}")
    program = check.Program(compiled._code, one._number, compiled._described[one.name]["meets"])

    call = binding.bind((torch.zeros(64),), 64, group, None, False)
    found = check.findings_in(program.run("race", call, children.LIMIT))

    assert {finding.kind for finding in found} == ({kind} if kind else set()), found
    line_of_body = HEAD.count("\n") + 3 * number + 2  # the second of a kernel's three
    assert {finding.line for finding in found} <= {line_of_body}, found


SHARING_THREADS = """#include <metal_stdlib>
    kernel void k(device float* out, device const float* x, uint i [[thread_position_in_grid]],
                  uint t [[thread_position_in_threadgroup]]) {
      threadgroup float left[4], right[4];
      left[t] = 1; right[t] = x[i];
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      out[i] += left[t] + right[3 - t];
    }"""


def record(text: str, out: torch.Tensor):
    """Record the accesses of a kernel of 8 threads in groups of 4."""
    return shader.compile_shader(text).k.accesses(out, torch.arange(8.0), threads=8, group_size=4)


def accesses_of(run, *, group: int, thread: int) -> set[tuple]:
    """What a thread touched: the name of the memory, the element, how, and after how many barriers."""
    mine = [one for one in run.lines if (one["group"], one["thread"]) == (group, thread)]
    return {
        (run.place(one).name, run.place(one).byte // 4, KINDS[one["kind"]], int(one["interval"]))
        for one in mine
    }


def test_a_recorded_run_computes_and_leaves_its_arguments_as_they_are():
    out = torch.ones(8)
    run = record(SHARING_THREADS, out)
    assert run.fault is None
    assert np.frombuffer(run.memory[0], np.float32).tolist() == [5, 4, 3, 2, 9, 8, 7, 6]
    assert out.tolist() == [1] * 8


def test_which_thread_touches_what_is_recorded():
    run = record(SHARING_THREADS, torch.ones(8))
    assert accesses_of(run, group=1, thread=0) == {
        ("buffer(0)", 4, "read", 1),
        ("buffer(0)", 4, "write", 1),
        ("buffer(1)", 4, "read", 0),
        ("left", 0, "write", 0),
        ("right", 0, "write", 0),
        ("left", 0, "read", 1),
        ("right", 3, "read", 1),
    }


def test_an_access_outside_of_a_buffer_is_recorded_with_its_place_and_line():
    run = record(SHARING_THREADS.replace("x[i]", "x[i + 1]"), torch.ones(8))
    marked = [one for one in run.lines if one["kind"] == KINDS.index("outside")]
    assert run.fault.kind == "address"
    assert run.fault.line == 5
    assert run.memory == {}, "the run was ended, and has no result"
    assert run.source_line(marked[0]) == 5
    assert ("buffer(1)", 32) in [(place.name, place.byte) for place in map(run.place, marked)]


@pytest.mark.parametrize(
    ("declared", "value", "is_unset"),
    [
        pytest.param("float y", "y", True, id="a variable"),
        pytest.param("float y[2]", "y[i % 2]", True, id="an array"),
        pytest.param("float y = 1", "y", False, id="a variable that is set"),
    ],
)
def test_unset_variables_are_nan_or_zero_as_asked(declared, value, is_unset):
    text = f"""kernel void k(device float* out, uint i [[thread_position_in_grid]]) {{
      {declared}; if (i > 9) {value} = 2; out[i] = {value};
    }}"""
    kernel = shader.compile_shader(text).k

    runs = (kernel.accesses(torch.ones(4), unset=unset) for unset in ("pattern", "zero"))
    nans, zeros = (np.frombuffer(run.memory[0], np.float32) for run in runs)

    assert np.isnan(nans).all() == is_unset
    assert (zeros == 0).all() == is_unset


def test_slow_under_a_sanitizer_is_no_hang(monkeypatch):
    """A kernel that ends in its plain run is not called endless where a tool makes it slow: the tool is skipped."""
    monkeypatch.setitem(compiler.find_compiler().__dict__, "missing_sanitizers", None)
    name = check.TOOLS["race"]

    def run(tool, call, timeout, order=0, garbage=0xFF):
        # as if only the run that is watched for races did not end in time
        return check.Outcome(None if tool == "race" else 0, "", (b"",))

    call = binding.bind((torch.zeros(4),), None, None, None, False)
    report = check.check("k", types.SimpleNamespace(run=run), call, 7.0)

    assert report.ok
    assert name not in report.ran
    (skipped,) = report.skipped
    assert skipped == f"{name}: not done within 7 s; pass a larger timeout or fewer threads"


def test_check_says_what_it_skipped():
    report = kernel("x[i] += 1;").check(torch.zeros(0))
    assert report.ok
    assert report.skipped == ("everything: there are no threads",)
    assert "skipped" in str(report)


def test_races_are_found_in_groups_of_1024():
    (race,) = kernel("x[i % 1023] = 1;").check(torch.zeros(1024), group_size=1024).findings
    assert race.kind == "race"


# ---- a kernel gone wrong in an ordinary call -------------------------------------------------------------------------


@with_each_compiler
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("x[i + 1000000000000l] = 1;", id="far behind"),
        pytest.param("x[i - 100000000l] = 1;", id="far before"),
    ],
)
def test_a_crash_is_an_error_and_the_process_lives(body):
    with pytest.raises(RuntimeError, match=r"outside of every buffer.*k\.check"):
        kernel(body)(torch.zeros(4))


@with_each_compiler
def test_a_division_by_zero_is_an_error_and_the_process_lives():
    with pytest.raises(RuntimeError, match="division by zero"):
        kernel("x[i] = 7 / x[i];", "device int* x")(torch.zeros(4, dtype=torch.int32))


FULL_STACK = {
    "of the loop that runs threads": f"""
        float f(float a, thread int& n) {{ n++; return a <= 0 ? 0 : f(a - 1, n) + a; }}
        kernel void k(device float* x, {POSITION}) {{ int n = 0; x[i] = f(1e8f * (x[i] + 1), n) + n; }}""",
    "of a fiber": f"""
        kernel void k(device float* x, {POSITION}) {{
          volatile float a[100000]; for (uint j = 0; j < 100000; j++) a[j] = x[i];
          threadgroup_barrier(mem_flags::mem_device); x[i] = a[i]; }}""",
}


@pytest.mark.parametrize("text", FULL_STACK.values(), ids=FULL_STACK)
def test_a_full_stack_is_called_that(text):
    with pytest.raises(RuntimeError, match="ran out of stack: Metal has no recursion"):
        shader.compile_shader(HEAD + text).k(torch.zeros(4))


INTERRUPTED = f"""
import os, signal, threading, torch
from metalsim import shader

text = "kernel void k(device float* x, {POSITION}) {{ while (true) x[i] += 1; }}"
endless, x = shader.compile_shader(text).k, torch.zeros(4)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background begins with it ignored
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try: endless(x)
except KeyboardInterrupt: print("ended")
"""


def test_ctrl_c_ends_a_kernel():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=children.LIMIT
    )
    assert done.stdout == "ended\n", done.stdout + done.stderr


def test_writing_beside_a_buffer_is_an_error_and_changes_nothing():
    whole = torch.zeros(12)
    with pytest.raises(RuntimeError, match=r"wrote outside of buffer\(0\), 16 bytes long"):
        kernel("x[i + 1] = 1;")(whole[4:8])
    assert torch.equal(whole, torch.zeros(12))


@with_each_compiler
@pytest.mark.parametrize(
    ("others", "words"),
    [
        pytest.param("", "barrier reached by 4 of 8 threads", id="no barrier"),
        pytest.param(f"else {BARRIER}", "at different barriers", id="another barrier"),
    ],
)
def test_a_barrier_that_some_threads_miss_is_an_error(others, words):
    with pytest.raises(RuntimeError, match=words):
        kernel(f"if (i < 4) {BARRIER} {others} x[i] = 1;")(torch.zeros(8))


def test_threadgroup_memory_begins_as_garbage():
    x = torch.zeros(4)
    kernel("threadgroup float shared[4]; x[i] = shared[i];")(x)
    assert x.isnan().all()


def test_one_tensor_as_two_arguments_stays_one_memory():
    x = torch.arange(10.0)
    kernel("x[i] = y[i] * 2;", "device float* x, device const float* y")(x, x)
    assert torch.equal(x, torch.arange(10.0) * 2)


def test_two_views_of_one_tensor_stay_one_memory():
    """What a kernel writes through one it reads through the other, where they overlap."""
    x = torch.arange(10.0)
    write_and_read = kernel("x[1] = 70; x[0] = y[0];", "device float* x, device const float* y")

    write_and_read(x[2:5], x[3:], threads=1)

    assert x[2:4].tolist() == [70, 70]


# ---- arguments (binding.py), errors as PyTorch's ---------------------------------------------------------------------


def bound(*args, **settings):
    """How arguments are bound, by the names of what PyTorch's kernels take."""
    given = {"threads": None, "group_size": None, "arg_casts": None, "strided": False} | settings
    most = given.pop("most_threads", 1024)
    return binding.bind(args, *given.values(), most)


TEN, MANY = torch.zeros(10), torch.zeros(5000)


@pytest.mark.parametrize(
    ("arguments", "threads"),
    [
        pytest.param((TEN, MANY), (10, 1, 1), id="the first tensor"),
        pytest.param((1.0, MANY, TEN), (5000, 1, 1), id="the first that is a tensor"),
    ],
)
def test_there_is_a_thread_for_each_element_of_the_first_tensor(arguments, threads):
    assert bound(*arguments).threads == threads


@pytest.mark.parametrize(
    ("tensor", "settings", "group_size"),
    [
        pytest.param(TEN, {}, (10, 1, 1), id="as many as threads"),
        pytest.param(MANY, {}, (1024, 1, 1), id="at most 1024"),
        pytest.param(MANY, {"threads": (7, 3)}, (1024, 1, 1), id="of a grid"),
        pytest.param(MANY, {"most_threads": 64}, (64, 1, 1), id="at most those of a kernel"),
    ],
)
def test_the_group_size_that_nobody_names_is_pytorch_s(tensor, settings, group_size):
    assert bound(tensor, **settings).group_size == group_size


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"group_size": 2048}, id="a number"),
        pytest.param({"group_size": [1025]}, id="a list"),
        pytest.param({"threads": (3, 1024), "group_size": (3, 1024)}, id="a product"),
    ],
)
def test_a_group_of_more_than_1024_threads_is_refused(settings):
    with pytest.raises(ValueError, match="Threadgroup size exceeds 1024 limit"):
        bound(TEN, **settings)


def bind_number(number, cast: str | None = None) -> torch.Tensor:
    """What a number becomes as the second argument of a kernel."""
    return bound(torch.zeros(1), number, arg_casts=cast).buffers[1].owner


@pytest.mark.parametrize(
    ("number", "dtype", "size"),
    [
        pytest.param(0.5, torch.float32, 4, id="a float"),
        pytest.param(3, torch.int64, 8, id="an integer"),
        pytest.param([1, 2], torch.int64, 16, id="integers"),
        pytest.param((0.1, 0.2), torch.float32, 8, id="floats"),
    ],
)
def test_numbers_are_float_and_int64_unless_cast(number, dtype, size):
    buffer = bound(torch.zeros(1), number).buffers[1]
    assert buffer.owner.dtype == dtype
    assert buffer.bytes == size


@pytest.mark.parametrize(("name", "dtype"), binding.CASTS.items())
def test_a_number_is_cast_to_a_type_by_its_name(name, dtype):
    assert bind_number(3, name).dtype == dtype


def test_a_cast_drops_what_is_behind_the_point():
    assert bind_number(2.75, "int8").tolist() == [2]


def test_a_cast_may_be_of_some_arguments_alone():
    some = bound(torch.zeros(1), 3, 4, arg_casts={2: "int32"}).buffers
    assert some[1].owner.dtype == torch.int64
    assert some[2].owner.dtype == torch.int32


def test_a_tensor_of_float64_is_refused():
    with pytest.raises(TypeError, match="doesn't support float64"):
        bound(torch.zeros(3, dtype=torch.float64))


def test_a_tensor_that_is_not_contiguous_is_refused_with_its_strides():
    with pytest.raises(RuntimeError, match=r"argument 0 has strides \(1, 4\) .*contiguous\(\)"):
        bound(torch.zeros(3, 4).t())


@pytest.mark.parametrize(
    ("tensor", "size"),
    [
        pytest.param(torch.zeros(3, 4).t(), 48, id="transposed"),
        pytest.param(torch.zeros(9)[2:5], 12, id="a slice"),
        pytest.param(torch.zeros(4, 4)[:, 1:2], 60, id="a column with what lies between"),
    ],
)
def test_a_strided_tensor_is_the_memory_from_its_first_to_its_last_element(tensor, size):
    assert bound(tensor, strided=True).buffers[0].bytes == size


def run_at_most_64(out: torch.Tensor, numbers: list[int], is_added: int, **settings) -> None:
    """Add 5 to numbers, by a kernel that is written for at most 64 threads."""
    run = library("language").at_most_64
    run(out, numbers, 5, is_added, arg_casts={1: "int32", 2: "uint8"}, **settings)


def test_arguments_reach_the_kernel():
    out = torch.zeros(3, dtype=torch.int32)
    run_at_most_64(out, [10, 20, 30], True)
    assert out.tolist() == [15, 25, 35]


def test_a_kernel_knows_how_many_threads_it_is_written_for():
    assert library("language").at_most_64.max_threads_per_threadgroup == 64
    with pytest.raises(ValueError, match="Threadgroup size exceeds 64 limit"):
        run_at_most_64(torch.zeros(3, dtype=torch.int32), [1, 2, 3], True, group_size=65)


def test_a_truth_value_that_is_neither_0_nor_1_is_refused():
    with pytest.raises(RuntimeError, match="is 2, which 1 bytes cannot"):
        run_at_most_64(torch.zeros(3, dtype=torch.int32), [1, 2, 3], 2, group_size=3)


# ---- libraries -------------------------------------------------------------------------------------------------------


def test_a_library_names_its_kernels():
    assert dir(library("softmax")) == ["histogram", "shuffle_sum", "softmax_simd", "softmax_tree"]
    assert dir(shader.compile_shader("// nothing")) == []


def test_a_kernel_that_a_library_does_not_have_is_no_attribute_of_it():
    assert not hasattr(library("softmax"), "nope")


def test_a_kernel_that_a_library_does_not_have_raises_pytorchs_words_and_names_those_it_has():
    words = "(?s)Failed to create function state object for: nope.*softmax_tree"
    with pytest.raises(RuntimeError, match=words) as refused:
        library("softmax").nope  # noqa: B018
    assert isinstance(refused.value, AttributeError)


def test_a_simd_group_of_a_kernel_has_32_threads():
    assert library("softmax").softmax_tree.thread_execution_width == 32


@pytest.mark.parametrize(
    ("name", "size"),
    [("histogram", 0), ("shuffle_sum", 0), ("softmax_simd", 128), ("softmax_tree", 1024)],
)
def test_a_kernel_knows_its_threadgroup_memory(name, size):
    assert getattr(library("softmax"), name).static_thread_group_memory_length == size


def test_more_threadgroup_memory_than_metal_has_is_refused():
    with pytest.raises(RuntimeError, match="36000 bytes of threadgroup memory, 32768"):
        kernel("threadgroup float shared[9000]; shared[0] = 1; x[i] = shared[0];")


REFUSED = {
    "no function of C": ("x[i] = erf(x[i]);", "undeclared identifier 'erf'"),
    "no std": ("x[i] = std::exp(x[i]);", "undeclared identifier 'std'"),
    "no goto": ("goto end; end: x[i] = 1;", "metal_has_no_goto"),
    "no double": ("double d = x[i]; x[i] = d;", "metal_has_no_double"),
    "ambiguous call": ("x[i] = max(x[i], 0);", "call to 'max' is ambiguous"),
    "no address space": (
        "float* p = x; p[i] = 1;",
        "must have explicit address space qualifier: 'float*'",
    ),
    "bool in a SIMD-group function": (
        "x[i] = simd_sum(x[i] > 0);",
        "no matching function for call to 'simd_sum'",
    ),
    "swizzle with a repeated element": (
        "float3 a = 1; a.xx = float2(1, 2); x[i] = a.x;",
        "not assignable",
    ),
    "atomic of half": (
        "device atomic<half>* p = (device atomic<half>*)x; p += 1;",
        "Metal's atomics are",
    ),
    "half from float": ("half2 h = float2(1); x[i] = h.x;", "no viable conversion"),
    "bfloat from float": ("bfloat b = x[i]; x[i] = b;", "no viable conversion"),
}


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_source_is_a_syntax_error_with_its_line(body, words):
    with pytest.raises(SyntaxError) as caught:
        kernel("\n" + body)
    assert words in str(caught.value)
    assert caught.value.filename == "program_source"
    assert caught.value.lineno == 4
    assert str(compiler.HERE) not in str(caught.value)


MISSING = "fracts"
"""A name that is taken here for a function that is missing: invented, so that no function that is written changes it.

One letter more than that of a function which is there, for which a compiler may take it.
"""


@pytest.fixture
def one_is_missing(monkeypatch):
    """Have one function that Metal is said to have, and that is missing here."""
    monkeypatch.setattr(source, "MISSING_FUNCTIONS", {MISSING})


@pytest.mark.usefixtures("one_is_missing")
@pytest.mark.parametrize("namespace", ["", "metal::"], ids=["alone", "in a namespace"])
def test_a_missing_function_is_not_blamed_on_the_source(namespace):
    with pytest.raises(SyntaxError) as caught:
        kernel(f"\nx[i] = {namespace}{MISSING}(x[i]);")
    assert f"Metal has '{MISSING}', and it is not simulated yet" in str(caught.value)
    assert caught.value.lineno == 4


TAKEN_FOR_ANOTHER = f"""\
program_source:3:51: error: use of undeclared identifier '{MISSING}'; did you mean 'fract'?
    3 |     x[i] = {MISSING}(x[i]);
      |            ^~~~~~
      |            fract
"""
"""What clang++ says of a name that it takes for a misspelled one; ziglang does not guess."""


@pytest.mark.usefixtures("one_is_missing")
def test_a_missing_function_is_not_taken_for_one_with_a_similar_name():
    told = compiler._name_what_is_missing(TAKEN_FOR_ANOTHER)
    assert f"Metal has '{MISSING}'" in told
    assert "fract" not in told.replace(MISSING, "")


@pytest.mark.usefixtures("one_is_missing")
def test_a_function_of_ones_own_may_have_the_name_of_a_missing_one():
    own = f"float {MISSING}(float a) {{ return 2 * a; }}"
    text = f"{HEAD}{own} kernel void k(device float* x, {POSITION}) {{ x[i] = {MISSING}(x[i]); }}"
    x = torch.ones(3)

    shader.compile_shader(text).k(x)

    assert x.tolist() == [2, 2, 2]


def test_all_functions_that_are_said_to_be_missing_are(monkeypatch):
    """A function that was written since has to leave the list."""
    monkeypatch.setattr(compiler, "CODE", (*compiler.CODE, "-ferror-limit=0"))
    named = "\n".join(f"using metal::{name};" for name in sorted(source.MISSING_FUNCTIONS))

    with pytest.raises(SyntaxError) as caught:
        shader.compile_shader(f"{HEAD}{named}\nkernel void k(device float* x) {{ x[0] = 1; }}")

    complained = re.findall(r"Metal has '(\w+)'", str(caught.value))
    assert set(complained) == source.MISSING_FUNCTIONS


def test_missing_functions_are_listed_for_people():
    limits = (Path(source.__file__).with_name("LIMITS.md")).read_text(encoding="utf-8")
    (listed,) = re.findall(
        r"^## Functions of the standard library that are missing\n(.*?)^## ",
        limits,
        re.DOTALL | re.MULTILINE,
    )

    named = re.findall(r"`(\w+)`", listed)
    assert sorted(named) == sorted(source.MISSING_FUNCTIONS)


def test_constant_memory_is_read_only():
    with pytest.raises(SyntaxError, match=r"program_source:3:.*not assignable"):
        kernel("x[i] = 1;", "constant float* x")


def test_a_missing_include_is_named():
    text = f"kernel void k(device float* x, {POSITION}) {{ x[i] = metal::exp(x[i]); }}"
    with pytest.raises(SyntaxError, match=r"program_source:1.*include <metal_stdlib> is missing"):
        shader.compile_shader(text)


def test_a_kernel_takes_no_parameter_by_value():
    with pytest.raises(SyntaxError, match="a kernel's parameter is a pointer, a reference"):
        kernel("x[i] = v;", "device float* x, float v")


def test_a_buffer_beyond_the_last_is_refused():
    with pytest.raises(RuntimeError, match=r"buffer\(31\) does not exist"):
        kernel("x[i] = 1;", "device float* x [[buffer(31)]]")


# ---- the rewrite (source.py) -----------------------------------------------------------------------------------------

MARK = "extern int metalsim_standard_library;\n"


def translated(text):
    return source.translate(f'{MARK}# 1 "program_source"\n{text}\n', source.Given())


NOT_SIMULATED = {
    "textures": ("texture2d<float> t", "textures are"),
    "samplers": ("device float* x, sampler s", "samplers are"),
    "threadgroup memory": (
        "device float* x, threadgroup float* s [[threadgroup(0)]]",
        "threadgroup memory as a parameter",
    ),
    "function tables": (
        "device float* x, visible_function_table<void()> f",
        "function tables are",
    ),
    "fences": (f"device float* x, {POSITION}) {{ atomic_thread_fence(1); }} void f(", "fences are"),
    "asynchronous copies": (
        f"device float* x, {POSITION}) {{ simdgroup_event e; }} void f(",
        "asynchronous copies are",
    ),
    "another attribute": (
        "device float* x, uint i [[sample_id]]",
        r"the attribute \[\[sample_id\]\] is",
    ),
}
"""Parameters of a kernel, and what is said of them."""


@pytest.mark.parametrize(("parameters", "words"), NOT_SIMULATED.values(), ids=NOT_SIMULATED)
def test_what_is_not_simulated_is_refused_with_its_line(parameters, words):
    expected = rf"program_source:3.*{words}.* not simulated"
    with pytest.raises(SyntaxError, match=expected) as caught:
        translated(f"\n\nkernel void k({parameters}) {{}}")
    assert caught.value.lineno == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "constant bool b [[function_constant(0)]];", "function constants", id="constants"
        ),
        pytest.param(
            "vertex float4 f(uint i [[vertex_id]]) { return 0; }",
            "vertex and fragment functions",
            id="functions",
        ),
    ],
)
def test_what_is_not_simulated_outside_of_kernels_is_refused(text, words):
    with pytest.raises(SyntaxError, match=rf"program_source:1.*{words}"):
        translated(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("void f(float* p);", id="a pointer"),
        pytest.param("template <typename T> void f(T* p);", id="of a template"),
        pytest.param("void f(thread float& a, const int& b);", id="a reference"),
    ],
)
def test_a_pointer_without_an_address_space_is_refused(text):
    with pytest.raises(SyntaxError, match="explicit address space"):
        source.check_address_spaces(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("void f(device float* p, constant int& n);", id="address spaces"),
        pytest.param("a = b * c;", id="a product"),
        pytest.param("int d = int(e) & f;", id="bits"),
        pytest.param("auto t = x && y;", id="a truth value"),
    ],
)
def test_a_product_or_an_and_is_no_pointer(text):
    source.check_address_spaces(text)


CALLING = """
inline void deep() { threadgroup_barrier(mem_flags::mem_none); }
inline void middle() { deep(); }
kernel void a(device float* x) { middle(); }
kernel void b(device float* x) { x[0] = 1; }
"""
FUNCTOR = """
struct F { float operator()(float v) { return simd_sum(v); } };
kernel void c(device float* x) { F f; x[0] = f(1); }
"""


@pytest.mark.parametrize(
    ("text", "name", "meets"),
    [
        pytest.param(CALLING, "a", True, id="by functions that it calls"),
        pytest.param(CALLING, "b", False, id="not at all"),
        pytest.param(FUNCTOR, "c", True, id="by a functor"),
    ],
)
def test_kernels_whose_threads_may_meet_are_known(text, name, meets):
    assert kernels_of(text)[name].meets is meets


TWINS = """float f(constant float* p) { return *p; }
float f(device const float* p) { return *p; }
"""


def test_an_equal_overload_is_dropped_and_its_line_stays():
    dropped = source.drop_equal_overloads(TWINS)
    assert dropped.count("return") == 1
    assert dropped.count("\n") == 2


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TWINS.replace("return *p", "return 2", 1), id="another body"),
        pytest.param(
            "namespace a { int f() { return 1; } } namespace b { int f() { return 1; } }",
            id="another namespace",
        ),
    ],
)
def test_overloads_that_are_not_equal_stay(text):
    assert source.drop_equal_overloads(text) == text


NAMED = f"""
kernel void plain(device float* x, {POSITION}) {{}}
[[kernel]] void other(device float* x) {{}}
template <typename T> [[max_total_threads_per_threadgroup(8)]] kernel void made(device T* x, {POSITION}) {{}}
template [[host_name("made_" "float")]] kernel void made<float>(device float*, uint);
template [[host_name("made_half")]] [[kernel]] decltype(made<half>) made<half>;
"""


def kernels_of(text: str) -> dict[str, source.Kernel]:
    return {each.name: each for each in translated(text).kernels}


def test_kernels_are_found_by_their_host_names():
    kernels = kernels_of(NAMED)
    assert [*kernels] == ["plain", "other", "made_float", "made_half"]
    assert kernels["made_half"].expression == "made<half>"


@pytest.mark.parametrize("name", ["plain", "made_float", "made_half"])
def test_the_attribute_of_a_parameter_is_found(name):
    assert kernels_of(NAMED)[name].parameters[1].attribute == "thread_position_in_grid"


def test_the_number_of_threads_that_a_kernel_is_written_for_is_found():
    text = "[[max_total_threads_per_threadgroup(8)]] kernel void k(device float* x) {}"
    assert kernels_of(text)["k"].most_threads == 8


# ---- the compiler and its cache --------------------------------------------------------------------------------------


def test_a_compiler_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr(compiler, "MOST_SECONDS", 0.01)
    with pytest.raises(RuntimeError, match="several libraries"):
        compiler._run(["sleep", "600"])


@pytest.fixture
def no_clang(monkeypatch):
    """A machine without clang; what is found is forgotten before and after."""
    monkeypatch.setattr(clang.shutil, "which", lambda name: None)
    clang._find_compiler.cache_clear()
    yield
    clang._find_compiler.cache_clear()


@pytest.mark.skipif("zig" not in COMPILERS, reason="ziglang is not here")
@pytest.mark.usefixtures("no_clang")
def test_without_clang_the_wheel_of_ziglang_is_taken():
    assert clang._find_compiler("", "no path at all").kind == "zig"


@pytest.mark.usefixtures("no_clang")
def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(clang.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(shader.NoCompiler, match=r"pip install ziglang.*clang-19"):
        clang._find_compiler("", "no path at all")


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(" ", id="nothing but a blank"),
        pytest.param("clang++ '-O1", id="an open quote"),
        pytest.param("true", id="another program"),
    ],
)
def test_a_command_that_is_no_clang_is_told_with_its_variable(named, monkeypatch):
    """And no package is advised, since the variable would go on to name the command."""
    monkeypatch.setenv("METALSIM_CXX", named)

    with pytest.raises(shader.NoCompiler, match=r"METALSIM_CXX=.*unset the variable") as refused:
        clang.find_compiler()

    assert "pip install" not in str(refused.value)


def test_a_compiler_that_never_answers_is_no_clang(monkeypatch, tmp_path):
    silent = tmp_path / "clang++"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(clang, "MOST_SECONDS", 0.01)
    monkeypatch.setenv("METALSIM_CXX", str(silent))

    with pytest.raises(shader.NoCompiler, match="METALSIM_CXX="):
        clang.find_compiler()


def test_the_sanitizers_of_a_clang_that_names_no_folder_are_not_looked_for_here(
    monkeypatch, tmp_path
):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libclang_rt.asan.a").write_text("of another clang")
    monkeypatch.chdir(tmp_path)

    says_nothing = clang.Compiler(("true",), "clang", "says nothing")

    assert says_nothing.missing_sanitizers is not None


def test_without_a_symbolizer_that_answers_no_line_is_named(monkeypatch):
    def wait(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    compiler.find_compiler()  # asked before nobody answers
    monkeypatch.setattr(subprocess, "run", wait)

    assert program.source_line(Path("kernel"), "0x10") == "?:0"


def test_a_compiler_that_cannot_be_started_is_not_blamed_on_the_cache(monkeypatch, tmp_path):
    """The package ziglang may have been copied without its permission to execute."""
    copied = tmp_path / "zig"
    copied.write_text("no x among its permissions")
    without_permission = clang.Compiler((str(copied), "c++"), "zig", "copied")
    monkeypatch.setattr(compiler, "find_compiler", lambda: without_permission)
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path / "cache"))

    with pytest.raises(shader.NoCompiler, match=r"zig, cannot be started \(Permission denied\)"):
        kernel("x[i] = 42;")


ANSWER = f"kernel void k(device float* x, {POSITION}) {{ x[i] = 42; }}"


@pytest.fixture
def compiled_before(monkeypatch, tmp_path):
    """A cache that has one kernel; whatever is compiled from now on is a failure."""
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))
    shader.compile_shader(ANSWER)
    monkeypatch.setattr(compiler, "_run", lambda *args, **kwargs: pytest.fail("compiled again"))
    return tmp_path


def test_a_kernel_is_compiled_once(compiled_before):
    x = torch.zeros(2)
    shader.compile_shader(ANSWER).k(x)
    assert x.tolist() == [42, 42]
    assert not list(compiled_before.rglob(".*-*")), "left something half made"


@pytest.mark.usefixtures("compiled_before")
def test_another_text_is_compiled_again():
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        shader.compile_shader(ANSWER.replace("42", "43"))


@pytest.mark.usefixtures("compiled_before")
def test_under_another_torch_whose_headers_may_be_others_a_kernel_is_compiled_again(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "9.9")
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        shader.compile_shader(ANSWER)


@pytest.mark.parametrize("far", [5 * 10**8, -(2**31)])
@pytest.mark.parametrize("line", ["o[i] = o[(int)i + k];", "o[(int)i + k] = 1;"])
def test_a_wrong_index_of_32_bits_reaches_no_other_memory(line, far):
    """However far it goes: reading and writing stop the kernel, and Python lives."""
    lib = shader.compile_shader(
        f"kernel void wild(device float* o, constant int& k, uint i [[thread_position_in_grid]]) {{ {line} }}"
    )
    x = torch.ones(1)
    with pytest.raises(RuntimeError, match="wild"):
        lib.wild(x, far, arg_casts={1: "int32"})
    assert x.tolist() == [1]
