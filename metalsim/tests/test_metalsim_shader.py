"""Simulated Metal shaders compute what a GPU would, refuse what is not simulated, and find what is planted.

The judges are PyTorch's own kernels, its own Metal headers, and the Metal kernels that its Inductor generates.
"""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import children
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from metalsim import SimulationError, device, shader
from metalsim.shader import binding, check, compiler, source
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
def each_compiler(request, monkeypatch) -> compiler.Compiler:
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


@with_each_compiler
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("n", [1, pytest.param(1000, marks=pytest.mark.processor)])
def test_softshrink_is_pytorch_s_to_the_last_bit(name, n):
    """In pieces of 7: on longer ones PyTorch's vector code takes over and drops the sign of zero, a NaN's gradient."""
    lib, x = library("softshrink"), values(n, DTYPES[name])
    out, grad_x, grad = (
        torch.empty_like(x),
        torch.empty_like(x),
        values(n, DTYPES[name]).flip(0).contiguous(),
    )
    getattr(lib, f"softshrink_forward_{name}")(out, x, 0.5)
    assert same_bits(out, torch.cat([F.softshrink(piece, 0.5) for piece in x.split(7)]))
    getattr(lib, f"softshrink_backward_{name}")(grad_x, grad, x, 0.5)
    pieces = zip(grad.split(7), x.split(7), strict=True)
    assert same_bits(
        grad_x,
        torch.cat([torch.ops.aten.softshrink_backward(g, piece, 0.5) for g, piece in pieces]),
    )


@with_each_compiler
@pytest.mark.parametrize("name", ["softmax_tree", "softmax_simd"])
@pytest.mark.parametrize(("rows", "cols", "group"), [(3, 1000, 256), (5, 33, 64)])
def test_softmax_in_threadgroup_memory(name, rows, cols, group):
    x = torch.randn(rows, cols) * 5
    out = torch.empty_like(x)
    getattr(library("softmax"), name)(out, x, cols, threads=rows * group, group_size=group)
    torch.testing.assert_close(out, x.softmax(-1), atol=1e-6, rtol=1e-5)


@with_each_compiler
def test_shuffles_and_atomics():
    lib, x, out = library("softmax"), torch.randn(320), torch.empty(10)
    lib.shuffle_sum(out, x, threads=320, group_size=64)
    torch.testing.assert_close(out, x.view(10, 32).sum(1), atol=1e-5, rtol=1e-5)
    counts, drawn = (
        torch.zeros(10, dtype=torch.int32),
        torch.randint(0, 10, (5000,), dtype=torch.int32),
    )
    lib.histogram(counts, drawn, threads=5000)
    assert torch.equal(counts.long(), torch.bincount(drawn.long(), minlength=10))


@with_each_compiler
def test_swizzles_and_packed_vectors():
    lib, x = library("language"), torch.randn(6, 4)
    out = torch.empty_like(x)
    lib.swizzles(out, x, threads=6)
    a, b = x[:, 0] + 1, x[:, 1] + 1
    assert torch.equal(out, torch.stack([2 * x[:, 0], x[:, 1], b, a], 1))
    p, q = torch.randn(5, 3), torch.empty(5, 3)
    lib.packed(q, p, 3, threads=5)
    torch.testing.assert_close(q, p * 2 + 3 + p * p)


@with_each_compiler
def test_positions_in_a_grid_that_groups_do_not_divide():
    """The last groups are smaller, as measured on a Mac: threads=10, group_size=4 gives groups of 4, 4 and 2."""
    out = torch.zeros(2, 3, 5, 4, dtype=torch.int32)
    library("language").positions(out, threads=(5, 3, 2), group_size=(4, 2, 1))
    assert out[0, :, :, 0].tolist() == [[421] * 4 + [121]] * 2 + [[411] * 4 + [111]]
    assert set(out[..., 1].flatten().tolist()) == {421}
    assert out[0, :2, :4, 3].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert torch.equal(out[..., 2], out[..., 3] % 32)


@pytest.mark.processor
@with_each_compiler
def test_half_rounds_after_each_operation():
    x = torch.randn(4000).half()
    out = torch.empty_like(x)
    library("language").half_steps(out, x)
    assert same_bits(out, x * 3 + x / 3)


@pytest.mark.processor
@with_each_compiler
@pytest.mark.parametrize("group", [32, 64, 40])
def test_simdgroup_functions_see_the_lanes_that_are_there(group):
    """simd_sum over a group of 40 has 32 lanes and then 8, as measured on a Mac."""
    x = torch.randn(group)
    out = torch.empty(group, 8)
    library("language").lanes(out, x, threads=group, group_size=group)
    for first in range(0, group, 32):
        lanes, got = x[first : first + 32], out[first : first + 32]
        n = len(lanes)
        torch.testing.assert_close(got[:, 0], lanes.sum().expand(n))
        torch.testing.assert_close(got[:, 1], lanes.cumsum(0))
        assert torch.equal(got[:, 2], lanes[torch.arange(n) ^ 1])
        assert torch.equal(got[:, 3], lanes[3].expand(n))
        torch.testing.assert_close(got[:, 4], lanes.view(-1, 4).sum(1).repeat_interleave(4))
        assert torch.equal(got[: n - 1, 5], lanes[1:])
        assert got[0, 6] == sum(1 << k for k in range(min(n, 16)) if lanes[k] > 0)
        assert torch.equal(got[:16, 7], lanes[:16].max().expand(min(n, 16)))
        if n == 32:
            assert torch.equal(got[16:, 7], lanes[16:].min().expand(16))


@pytest.mark.processor
@with_each_compiler
def test_matrix_tiles():
    a, b, c = torch.randn(8, 8), torch.randn(8, 8), torch.zeros(8, 8)
    library("language").tiles(c, a, b, threads=32)
    torch.testing.assert_close(c, a @ b)


@with_each_compiler
def test_templates_overloads_and_literals_of_metal():
    """Functors; functions overloaded by address space; a literal with a point is a float; vectors of integers."""
    lib = library("language")
    for name, x in (
        ("square_float", torch.randn(9)),
        ("square_int", torch.arange(9, dtype=torch.int32)),
    ):
        out = torch.empty_like(x)
        getattr(lib, name)(out, x)
        torch.testing.assert_close(out, x * x)
    out = torch.zeros(2)
    lib.literals(out, threads=1)
    assert out.tolist() == [4.0, torch.tensor(1 / 3).item()]
    numbers = torch.tensor([-7, -1, 3, 9], dtype=torch.int32)
    lib.integers(numbers, threads=1)
    assert numbers.tolist() == [-2, 1, 4, 6]


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


@pytest.mark.processor
@with_each_compiler
def test_conversions_round_to_nearest():
    """Also what AVX512-BF16 takes for zero: subnormal numbers. Of a NaN made bfloat the bits are known, too."""
    x, all_bits = every_rounding(), torch.arange(1 << 16)
    bfloat, half = from_bits(all_bits, torch.bfloat16), from_bits(all_bits, torch.float16)
    assert torch.equal(bits_of(converted(x, "bfloat")), bits_of(to_bfloat(x)))
    with np.errstate(over="ignore", invalid="ignore"):  # NumPy converts half in integers
        assert same_bits(converted(x, "half"), torch.from_numpy(x.numpy().astype(np.float16)))
    assert torch.equal(bits_of(converted(bfloat, "float")), all_bits << 16)
    assert same_bits(converted(half, "float"), torch.from_numpy(half.numpy().astype(np.float32)))
    assert same_bits(converted(half, "bfloat"), to_bfloat(converted(half, "float")))
    assert same_bits(converted(bfloat, "half"), converted(converted(bfloat, "float"), "half"))


@pytest.mark.processor
@with_each_compiler
@pytest.mark.parametrize("name", DTYPES)
def test_arithmetic_rounds_each_operation(name):
    draw = torch.Generator().manual_seed(3)
    dtype, round_to = (
        DTYPES[name],
        {"float": lambda x: x, "half": lambda x: x.half(), "bfloat": to_bfloat}[name],
    )
    x, y = (
        from_bits(torch.randint(0, 1 << 8 * dtype.itemsize, (20_000,), generator=draw), dtype)
        for _ in range(2)
    )
    out = torch.empty(20_000, 4, dtype=dtype)
    getattr(library("numbers"), f"arithmetic_{name}")(out, x, y, threads=20_000)
    a, b = x.float(), y.float()
    assert same_bits(out, torch.stack([round_to(v) for v in (a + b, a - b, a * b, a / b)], 1))


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


@with_each_compiler
@pytest.mark.parametrize("name", ["softshrink", "numbers", "special"])
def test_a_library_calls_the_c_library_and_nothing_else(name):
    """What it leaves undefined carries the version of glibc, or is weak and may be missing.

    Of a compiler's own run-time library a process may have another version, or none: `__truncsfbf2` and its kin.
    """
    command = ["nm", "--dynamic", "--undefined-only", str(library(name)._binary)]
    undefined = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert any("@GLIBC_" in line for line in undefined), "nm shows no versions"
    assert [
        line for line in undefined if "@GLIBC_" not in line and line.split()[0] not in ("w", "v")
    ] == []


@with_each_compiler
def test_everything_is_compiled_for_the_same_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))
    run, commands = compiler._run, []
    monkeypatch.setattr(
        compiler, "_run", lambda command, **how: (commands.append(command), run(command, **how))[1]
    )
    kernel("x[i] += 1;").check(torch.zeros(4))
    assert len(commands) >= 5, "preprocessed, a library and a program with a run time each"
    chosen = {
        tuple(o for o in command if o.startswith(("-march", "-mcpu", "-mtune")))
        for command in commands
    }
    assert chosen == {compiler.find_compiler().options}
    if platform.machine() == "x86_64":
        assert [option.replace("_", "-") for option in compiler.find_compiler().options] == [
            "-march=x86-64-v3"
        ]


@pytest.mark.parametrize("lacking", ["avx2", "fma3"])
def test_an_older_processor_is_told_what_it_lacks(lacking, monkeypatch):
    has = dict.fromkeys(compiler.V3, True) | {"architecture": "x86_64", lacking: False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    with pytest.raises(
        SimulationError,
        match=rf"processors with AVX2 and FMA.* lacks {lacking}: use another machine",
    ):
        kernel("x[i] = 1;")
    has["architecture"] = "aarch64"
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
    SPECIAL["trigamma"] = lambda x: torch.polygamma(1, x)


@with_each_compiler
def test_special_functions_of_pytorch_s_headers():
    x = torch.linspace(0.05, 0.95, 4001)
    for name, function in SPECIAL.items():
        out = torch.empty_like(x)
        getattr(library("special"), f"special_{name}")(out, x)
        reference = function(x.double())
        assert ((out - reference).abs() / reference.abs().clamp_min(1e-6)).max() < 1e-5, name


@with_each_compiler
@pytest.mark.parametrize("group", [32, 200])
def test_reductions_of_pytorch_s_headers(group):
    x = torch.rand(5, group) + 0.5
    for name, function in {
        "sum": torch.sum,
        "prod": torch.prod,
        "max": torch.amax,
        "min": torch.amin,
    }.items():
        out = torch.zeros(5)
        getattr(library("special"), f"reduce_{name}")(out, x, threads=5 * group, group_size=group)
        torch.testing.assert_close(out, function(x, 1), rtol=1e-4, atol=0)


def test_what_a_kernel_reports_is_raised():
    run = library("special").complain
    run(torch.ones(5), error_buf_idx=1)
    x = torch.ones(5)
    x[3] = -1
    with pytest.raises(RuntimeError, match="value 3 is negative"):
        run(x, error_buf_idx=1)


# ---- kernels that Inductor generates for mps -------------------------------------------------------------------------


def pointwise(x: torch.Tensor) -> torch.Tensor:
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
    """Inductor's wrapper code for a function on mps, with memory of the host and its Metal kernels run by metalsim."""
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(pytest.param(name, COMPILER.kind, id=name) for name in GENERATED),
        *(pytest.param(name, "zig", id=f"{name} by zig") for name in WITH_ZIG),
    ],
)
def test_kernels_that_inductor_generates_agree_with_eager(name, kind, pretended_mps, monkeypatch):
    monkeypatch.setenv("METALSIM_CXX", COMPILERS[kind])
    x = torch.randn(37, 1000, generator=torch.Generator().manual_seed(5))
    expected = GENERATED[name](x)
    [got] = generated(GENERATED[name], x).call([x.clone()])
    assert got.dtype == expected.dtype
    if not expected.dtype.is_floating_point:
        assert torch.equal(got, expected)
        return
    low = expected.dtype in (torch.float16, torch.bfloat16)
    torch.testing.assert_close(
        got.float(),
        expected.float(),
        rtol=2e-2 if low else 1e-4,
        atol=4e-3 if low else 2e-5,
        equal_nan=True,
    )


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
    """The report on a kernel after a change of its source, and that source."""
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


@pytest.mark.parametrize("bug", PLANTED, ids=str)
def test_a_planted_bug_is_found(bug):
    report, text = checked(bug.kernel, (bug.old, bug.new), bug.n)
    findings = [finding for finding in report.findings if finding.kind in bug.kinds]
    assert findings, report
    first = text[: text.index(f"void {bug.kernel}(")].count("\n") + 1
    for finding in findings:
        if finding.kind not in ("thread order", "uninitialised memory"):
            assert first < finding.line <= len(text.splitlines()), finding


def test_one_missing_barrier_is_one_finding():
    report, _ = checked("softmax_simd", (f"{BARRIER}  // 1", ""), 1000)
    assert [finding.kind for finding in report.findings] == ["race"], report
    assert report.effects
    assert str(report).count("seen with it: buffer(0) has other values") == len(report.effects)


@sanitized
def test_findings_name_the_line():
    n = 6
    lines = [*HEAD.splitlines(), f"kernel void k(device int* x, {POSITION})"]
    lines += ["{", "  int v = x[i];", "  x[i] = 7 / v;", "}"]
    report = shader.compile_shader("\n".join(lines)).k.check(torch.zeros(n, dtype=torch.int32))
    assert [(f.kind, f.line) for f in report.findings] == [("undefined behaviour", 6)]
    wild = kernel("\n\nx[i + 1000000000000l] = 1;").check(torch.zeros(n))
    assert [(f.kind, f.line) for f in wild.findings] == [("address", 5)]
    race = kernel("x[0] += 1;").check(torch.zeros(n))
    assert {(f.kind, f.line) for f in race.findings} == {("race", 3)}


ENDLESS = {  # kernels that never end, and that C++ may assume to end
    "writes": "while (true) { x[i] += 1; }",
    "spins": "while (true) {}",
    "counts": "for (uint j = 0;; j++) {}",
    "waits_for_a_value": "uint n = uint(x[i]) + 1; while (n != 0) { n |= 1; }",
    "waits_for_a_thread": "while (x[0] == 0) { ((device volatile float*)x)[1] = 1; }",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_kernel_without_end_is_called_that_and_nothing_else(name, monkeypatch):
    monkeypatch.setitem(
        compiler.find_compiler().__dict__, "missing_sanitizers", "too slow to compile here"
    )
    text = "".join(
        f"kernel void {name}(device float* x, {POSITION}) {{ {body} }}\n"
        for name, body in ENDLESS.items()
    )
    report = getattr(shader.compile_shader(HEAD + text), name).check(torch.zeros(4), timeout=0.5)
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
    slow = lambda self, tool, call, timeout: run(
        self, tool, call, timeout if tool == "plain" else children.LIMIT
    )
    monkeypatch.setattr(check.Program, "run", slow)
    report = kernel("while (x[i + 4] != 12345) { ((device volatile float*)x)[i] = 1; }").check(
        torch.zeros(4), threads=1, timeout=0.5
    )
    assert "address" in {finding.kind for finding in report.findings}, report


def test_a_kernel_that_ends_in_one_order_only_is_told_which():
    body = "device volatile float* y = x; if (i > 0) { while (y[i - 1] == 0) {} } y[i] = 1;"
    run = kernel_program(body, 4)
    call = binding.bind((torch.zeros(4),), None, None, None, False)
    usual = run("plain", call, children.LIMIT)
    assert usual.status == 0
    limited = lambda tool, call, timeout, order=0, **more: run(
        tool, call, timeout if order else children.LIMIT, order, **more
    )
    findings = check._compare_runs(types.SimpleNamespace(run=limited), call, 1.0, usual)
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


@with_each_compiler
def test_each_access_is_watched():
    """Races and accesses outside of buffers, by the calls that each clang makes, without a sanitizer."""
    text = "".join(
        f"kernel void k{i}(device float* x, {POSITIONS}) {{\n{JUDGED[name][0]}\n}}\n"
        for i, name in enumerate(JUDGED)
    )
    library = shader.compile_shader(HEAD + text)
    for i, (name, (_, group, kind)) in enumerate(JUDGED.items()):
        one = getattr(library, f"k{i}")
        call = binding.bind((torch.zeros(64),), 64, group, None, False)
        program = check.Program(library._code, one._number, library._described[one.name]["meets"])
        found = check.findings_in(program.run("race", call, children.LIMIT))
        assert {finding.kind for finding in found} == ({kind} if kind else set()), (name, found)
        lines = {finding.line for finding in found}
        assert lines <= {HEAD.count("\n") + 3 * i + 2}, (name, found)


def test_which_thread_touches_what_is_recorded():
    text = """#include <metal_stdlib>
    kernel void k(device float* out, device const float* x, uint i [[thread_position_in_grid]],
                  uint t [[thread_position_in_threadgroup]]) {
      threadgroup float left[4], right[4];
      left[t] = 1; right[t] = x[i];
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      out[i] += left[t] + right[3 - t];
    }"""
    out, x = torch.ones(8), torch.arange(8.0)
    run = shader.compile_shader(text).k.accesses(out, x, threads=8, group_size=4)
    assert run.fault is None
    assert np.frombuffer(run.memory[0], np.float32).tolist() == [5, 4, 3, 2, 9, 8, 7, 6]
    assert out.tolist() == [1] * 8, "the arguments keep their values"
    told = {(place.name, place.byte // 4, KINDS[one["kind"]], int(one["interval"]))
            for one in run.lines if (one["group"], one["thread"]) == (1, 0) for place in [run.place(one)]}  # fmt: skip
    device = {
        ("buffer(0)", 4, "read", 1),
        ("buffer(0)", 4, "write", 1),
        ("buffer(1)", 4, "read", 0),
    }
    shared = {
        ("left", 0, "write", 0),
        ("right", 0, "write", 0),
        ("left", 0, "read", 1),
        ("right", 3, "read", 1),
    }
    assert told == device | shared
    outside = shader.compile_shader(text.replace("x[i]", "x[i + 1]")).k.accesses(
        out, x, threads=8, group_size=4
    )
    marked = [one for one in outside.lines if one["kind"] == KINDS.index("outside")]
    assert outside.fault.kind == "address"
    assert ("buffer(1)", 32) in [(place.name, place.byte) for place in map(outside.place, marked)]
    assert outside.source_line(marked[0]) == outside.fault.line == 5


@pytest.mark.parametrize(
    ("declared", "differ"), [("float y", True), ("float y[2]", True), ("float y = 1", False)]
)
def test_unset_variables_are_nan_or_zero_as_asked(declared, differ):
    value = "y[i % 2]" if "[" in declared else "y"
    text = f"""kernel void k(device float* out, uint i [[thread_position_in_grid]]) {{
      {declared}; if (i > 9) {value} = 2; out[i] = {value};
    }}"""
    kernel = shader.compile_shader(text).k
    runs = (kernel.accesses(torch.ones(4), unset=unset) for unset in ("pattern", "zero"))
    nans, zeros = (np.frombuffer(run.memory[0], np.float32) for run in runs)
    assert (np.isnan(nans).all(), (zeros == 0).all()) == (differ, differ)


def test_slow_under_a_sanitizer_is_no_hang(monkeypatch):
    monkeypatch.setitem(compiler.find_compiler().__dict__, "missing_sanitizers", None)

    def run(tool, call, timeout, order=0, garbage=0xFF):
        return check.Outcome(None if tool == "race" else 0, "", (b"",))

    call = binding.bind((torch.zeros(4),), None, None, None, False)
    report = check.check("k", types.SimpleNamespace(run=run), call, 7.0)
    assert report.ok
    name = check.TOOLS["race"]
    assert report.skipped == (
        f"{name}: not done within 7 s; pass a larger timeout or fewer threads",
    )
    assert name not in report.ran


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
def test_a_crash_is_an_error_and_the_process_lives():
    for body in ("x[i + 1000000000000l] = 1;", "x[i - 100000000l] = 1;"):
        with pytest.raises(RuntimeError, match=r"outside of every buffer.*k\.check"):
            kernel(body)(torch.zeros(4))
    with pytest.raises(RuntimeError, match="division by zero"):
        kernel("x[i] = 7 / x[i];", "device int* x")(torch.zeros(4, dtype=torch.int32))


def test_a_full_stack_is_called_that():
    """Of the loop that runs threads, and of a fiber."""
    deep = "float f(float a, thread int& n) { n++; return a <= 0 ? 0 : f(a - 1, n) + a; }\n"
    large = "volatile float a[100000]; for (uint j = 0; j < 100000; j++) a[j] = x[i];"
    recursive = shader.compile_shader(
        f"{HEAD}{deep}kernel void k(device float* x, {POSITION}) {{ int n = 0; x[i] = f(1e8f * (x[i] + 1), n) + n; }}"
    ).k
    for one in (
        recursive,
        kernel(f"{large} threadgroup_barrier(mem_flags::mem_device); x[i] = a[i];"),
    ):
        with pytest.raises(RuntimeError, match="ran out of stack: Metal has no recursion"):
            one(torch.zeros(4))


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
def test_a_barrier_that_some_threads_miss_is_an_error():
    for others, message in (
        ("", "barrier reached by 4 of 8 threads"),
        (f"else {BARRIER}", "at different barriers"),
    ):
        with pytest.raises(RuntimeError, match=message):
            kernel(f"if (i < 4) {BARRIER} {others} x[i] = 1;")(torch.zeros(8))


def test_threadgroup_memory_begins_as_garbage():
    x = torch.zeros(4)
    kernel("threadgroup float shared[4]; x[i] = shared[i];")(x)
    assert x.isnan().all()


def test_two_views_of_one_tensor_stay_one_memory():
    x = torch.arange(10.0)
    kernel("x[i] = y[i] * 2;", "device float* x, device const float* y")(x, x)
    assert torch.equal(x, torch.arange(10.0) * 2)
    kernel("x[i] += ((device const float*)y)[0];", "device float* x, device const void* y")(
        x[2:4], x[5:]
    )
    assert x[2:4].tolist() == [14, 16]


# ---- arguments (binding.py), errors as PyTorch's ---------------------------------------------------------------------


def bound(
    binding, *args, threads=None, group_size=None, arg_casts=None, strided=False, most_threads=1024
):
    return binding.bind(args, threads, group_size, arg_casts, strided, most_threads)


def test_sizes_are_pytorch_s():
    x, y = torch.zeros(10), torch.zeros(5000)
    assert (bound(binding, x, y).threads, bound(binding, x, y).group_size) == (
        (10, 1, 1),
        (10, 1, 1),
    )
    assert bound(binding, y).group_size == (1024, 1, 1)
    assert bound(binding, y, threads=(7, 3)).group_size == (1024, 1, 1)
    assert bound(binding, 1.0, y, x).threads == (5000, 1, 1)
    assert bound(binding, y, most_threads=64).group_size == (64, 1, 1)
    for group in (2048, [1025]):
        with pytest.raises(ValueError, match="Threadgroup size exceeds 1024 limit"):
            bound(binding, x, group_size=group)
    with pytest.raises(ValueError, match="Threadgroup size exceeds 1024 limit"):
        bound(binding, x, threads=(3, 1024), group_size=(3, 1024))


def numbers_in(buffer) -> list:
    return buffer.owner.tolist()


def test_numbers_are_float_and_int64_unless_cast():
    x = torch.zeros(1)
    plain = bound(binding, x, 0.5, 3, [1, 2], (0.1, 0.2)).buffers
    assert [plain[i].owner.dtype for i in (1, 2, 3, 4)] == [
        torch.float32,
        torch.int64,
        torch.int64,
        torch.float32,
    ]
    assert [plain[i].bytes for i in (1, 2, 3, 4)] == [4, 8, 16, 8]
    for name, dtype in binding.CASTS.items():
        assert bound(binding, x, 3, arg_casts=name).buffers[1].owner.dtype == dtype
    some = bound(binding, x, 3, 4, arg_casts={2: "int32"}).buffers
    assert (some[1].owner.dtype, some[2].owner.dtype) == (torch.int64, torch.int32)
    assert numbers_in(bound(binding, x, 2.75, arg_casts="int8").buffers[1]) == [2]


def test_tensors_are_contiguous_and_have_no_float64():
    with pytest.raises(TypeError, match="doesn't support float64"):
        bound(binding, torch.zeros(3, dtype=torch.float64))
    turned = torch.zeros(3, 4).t()
    with pytest.raises(RuntimeError, match=r"argument 0 has strides \(1, 4\) .*contiguous\(\)"):
        bound(binding, turned)
    assert bound(binding, turned, strided=True).buffers[0].bytes == 48
    assert bound(binding, torch.zeros(9)[2:5]).buffers[0].bytes == 12
    assert bound(binding, torch.zeros(4, 4)[:, 1:2], strided=True).buffers[0].bytes == 60


def test_arguments_reach_the_kernel():
    run = library("language").at_most_64
    out = torch.zeros(3, dtype=torch.int32)
    run(out, [10, 20, 30], 5, True, arg_casts={1: "int32", 2: "uint8"})
    assert out.tolist() == [15, 25, 35]
    assert run.max_threads_per_threadgroup == 64
    for yes, size, message in (
        (True, 65, "Threadgroup size exceeds 64 limit"),
        (2, 3, "is 2, which 1 bytes cannot"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            run(out, [1, 2, 3], 5, yes, arg_casts={1: "int32", 2: "uint8"}, group_size=size)


# ---- libraries -------------------------------------------------------------------------------------------------------


def test_a_library_names_its_kernels():
    lib = library("softmax")
    assert dir(lib) == ["histogram", "shuffle_sum", "softmax_simd", "softmax_tree"]
    assert not hasattr(lib, "nope")
    with pytest.raises(
        RuntimeError, match="Failed to create function state object for: nope"
    ):  # as PyTorch
        lib.nope  # noqa: B018
    with pytest.raises(AttributeError, match="softmax_tree"):
        lib.nope  # noqa: B018
    assert dir(shader.compile_shader("// nothing")) == []
    assert lib.softmax_tree.thread_execution_width == 32
    assert [getattr(lib, name).static_thread_group_memory_length for name in dir(lib)] == [
        0,
        0,
        128,
        1024,
    ]
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


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_source_is_a_syntax_error_with_its_line(what):
    body, message = REFUSED[what]
    with pytest.raises(SyntaxError) as caught:
        kernel("\n" + body)
    assert message in str(caught.value)
    assert (caught.value.filename, caught.value.lineno) == ("program_source", 4)
    assert str(compiler.HERE) not in str(caught.value)


def test_constant_memory_is_read_only():
    with pytest.raises(SyntaxError, match=r"program_source:3:.*not assignable"):
        kernel("x[i] = 1;", "constant float* x")
    with pytest.raises(SyntaxError, match=r"program_source:1:.*include <metal_stdlib> is missing"):
        shader.compile_shader(
            f"kernel void k(device float* x, {POSITION}) {{ x[i] = metal::exp(x[i]); }}"
        )
    with pytest.raises(SyntaxError, match="a kernel's parameter is a pointer, a reference"):
        kernel("x[i] = v;", "device float* x, float v")
    with pytest.raises(RuntimeError, match=r"buffer\(31\) does not exist"):
        kernel("x[i] = 1;", "device float* x [[buffer(31)]]")


# ---- the rewrite (source.py) -----------------------------------------------------------------------------------------

MARK = "extern int metalsim_standard_library;\n"


def translated(text):
    return source.translate(f'{MARK}# 1 "program_source"\n{text}\n', source.Given())


NOT_SIMULATED = {
    "texture2d<float> t": "textures are",
    "device float* x, sampler s": "samplers are",
    "device float* x, threadgroup float* s [[threadgroup(0)]]": "threadgroup memory as a parameter",
    "device float* x, visible_function_table<void()> f": "function tables are",
    f"device float* x, {POSITION}) {{ atomic_thread_fence(1); }} void f(": "fences are",
    f"device float* x, {POSITION}) {{ simdgroup_event e; }} void f(": "asynchronous copies are",
    "device float* x, uint i [[sample_id]]": r"the attribute \[\[sample_id\]\] is",
}


def test_what_is_not_simulated_is_refused_with_its_line():
    for parameters, message in NOT_SIMULATED.items():
        with pytest.raises(
            SyntaxError, match=rf"program_source:3.*{message}.* not simulated"
        ) as caught:
            translated(f"\n\nkernel void k({parameters}) {{}}")
        assert caught.value.lineno == 3
    for text, message in (
        ("constant bool b [[function_constant(0)]];", "function constants"),
        ("vertex float4 f(uint i [[vertex_id]]) { return 0; }", "vertex and fragment functions"),
    ):
        with pytest.raises(SyntaxError, match=rf"program_source:1.*{message}"):
            translated(text)


def test_pointers_name_their_address_space():
    for text in (
        "void f(float* p);",
        "template <typename T> void f(T* p);",
        "void f(thread float& a, const int& b);",
    ):
        with pytest.raises(SyntaxError, match="explicit address space"):
            source.check_address_spaces(text)
    for text in (
        "void f(device float* p, constant int& n);",
        "a = b * c;",
        "int d = int(e) & f;",
        "auto t = x && y;",
    ):
        source.check_address_spaces(text)


def test_kernels_whose_threads_may_meet_are_known():
    text = """
    inline void deep() { threadgroup_barrier(mem_flags::mem_none); }
    inline void middle() { deep(); }
    kernel void a(device float* x) { middle(); }
    kernel void b(device float* x) { x[0] = 1; }
    """
    assert {k.name: k.meets for k in translated(text).kernels} == {"a": True, "b": False}
    functor = "struct F { float operator()(float v) { return simd_sum(v); } };"
    functor += "kernel void c(device float* x) { F f; x[0] = f(1); }"
    assert [k.meets for k in translated(functor).kernels] == [True]


def test_only_equal_overloads_are_dropped():
    twins = (
        "float f(constant float* p) { return *p; }\nfloat f(device const float* p) { return *p; }\n"
    )
    assert source.drop_equal_overloads(twins).count("return") == 1
    assert source.drop_equal_overloads(twins).count("\n") == 2
    assert (
        source.drop_equal_overloads(twins.replace("return *p", "return 2", 1)).count("return") == 2
    )
    apart = "namespace a { int f() { return 1; } } namespace b { int f() { return 1; } }"
    assert source.drop_equal_overloads(apart) == apart


def test_kernels_are_found_by_their_host_names():
    text = f"""
    kernel void plain(device float* x, {POSITION}) {{}}
    [[kernel]] void other(device float* x) {{}}
    template <typename T> [[max_total_threads_per_threadgroup(8)]] kernel void made(device T* x, {POSITION}) {{}}
    template [[host_name("made_" "float")]] kernel void made<float>(device float*, uint);
    template [[host_name("made_half")]] [[kernel]] decltype(made<half>) made<half>;
    """
    kernels = {k.name: k for k in translated(text).kernels}
    assert list(kernels) == ["plain", "other", "made_float", "made_half"]
    assert kernels["made_half"].expression == "made<half>"
    assert all(
        kernels[k].parameters[1].attribute == "thread_position_in_grid"
        for k in kernels
        if k != "other"
    )
    eight = translated(
        "[[max_total_threads_per_threadgroup(8)]] kernel void k(device float* x) {}"
    ).kernels
    assert eight[0].most_threads == 8


# ---- the compiler and its cache --------------------------------------------------------------------------------------


def test_a_compiler_ends_at_its_limit(monkeypatch):
    monkeypatch.setattr(compiler, "MOST_SECONDS", 0.01)
    with pytest.raises(RuntimeError, match="several libraries"):
        compiler._run(["sleep", "600"])


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    """And takes the wheel of ziglang before that."""
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    if importlib.util.find_spec("ziglang"):
        assert compiler._find_compiler("", "no path at all").kind == "zig"
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    compiler._find_compiler.cache_clear()
    with pytest.raises(shader.NoCompiler, match=r"pip install ziglang.*clang-19"):
        compiler._find_compiler("", "no path at all")
    compiler._find_compiler.cache_clear()


def test_a_kernel_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("METALSIM_CACHE", str(tmp_path))
    text = f"kernel void k(device float* x, {POSITION}) {{ x[i] = 42; }}"
    shader.compile_shader(text)
    monkeypatch.setattr(compiler, "_run", lambda *args, **kwargs: pytest.fail("compiled again"))
    x = torch.zeros(2)
    shader.compile_shader(text).k(x)
    assert x.tolist() == [42, 42]
    assert not list(tmp_path.rglob(".*-*")), "left something half made"
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        shader.compile_shader(text.replace("42", "43"))
    monkeypatch.setattr(torch, "__version__", "9.9")  # whose headers may be others
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        shader.compile_shader(text)


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
