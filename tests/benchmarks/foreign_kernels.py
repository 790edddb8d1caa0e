"""Metal files of other projects on the simulated Apple GPU: which load, and whether they compute what NumPy computes.

    python tests/benchmarks/foreign_kernels.py {candle,mlx} CHECKOUT [--only FILE ...] [--write]

CHECKOUT is a folder with the project's source; FILE names some of its Metal files, softmax for instance. Each is read
as its project's build reads it, with quoted includes put where they stand. Of every template some kernels are compiled,
spread over those that the file makes of it (``--each``), and of all else everything. A file is loaded when all these
are. What NumPy has an answer for is run and compared. Prints a Markdown table with the revision, writes it into
metalsim/src/metalsim/shader/FOREIGN.md with ``--write``, and ends with code 1 if a kernel differs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import posixpath
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

SOURCES = Path(__file__).resolve().parents[2] / "metalsim" / "src"
sys.path[:0] = [str(SOURCES)]
from metalsim import shader  # noqa: E402
from metalsim.shader import compiler  # noqa: E402
from metalsim.shader import source as msl  # noqa: E402

TABLES = SOURCES / "metalsim" / "shader" / "FOREIGN.md"
RIGHT = "right"
FOLDERS = {"candle": "candle-metal-kernels/src/metal_src", "mlx": "mlx/backend/metal/kernels"}
THREADGROUP = dict.fromkeys(range(4), 8192)
"""Bytes of threadgroup memory by index."""

Compared = Iterator[tuple[str, torch.Tensor | RuntimeError, Any]]
"""Names of kernels, what they computed or raised, and what NumPy computes."""


# ---- files -----------------------------------------------------------------------------------------------------------


def with_includes(file: str, checkout: Path, seen: set[str] | None = None) -> str:
    """A file's text with its quoted includes in their places, each once: beside it, or from the checkout's root."""
    seen = set() if seen is None else seen
    lines = []
    for line in (checkout / file).read_text(encoding="utf-8").splitlines():
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if match is None:
            lines.append("" if line.strip() == "#pragma once" else line)
            continue
        names = [posixpath.normpath(posixpath.join(folder, match[1])) for folder in (posixpath.dirname(file), "")]
        name = next((name for name in names if (checkout / name).is_file()), None)
        if name is None:
            raise FileNotFoundError(f"{file} includes {match[1]}, which {checkout} does not have")
        if name not in seen:
            seen.add(name)
            lines.append(with_includes(name, checkout, seen))
    return "\n".join(lines)


@dataclass
class MetalFile:
    """A Metal file of a project, compiled as far as it is asked for."""

    text: str
    each: int

    def __post_init__(self) -> None:
        preprocessed = compiler.preprocess(self.text)
        self.constants = {match[2]: True if match[1] == "bool" else 1 for match in msl._CONSTANT.finditer(preprocessed)}
        given = msl.Given(self.constants, THREADGROUP)
        msl.refuse_what_is_not_simulated(preprocessed, given)
        self.kernels = msl.find_kernels(preprocessed)

    def spread(self) -> list[str]:
        """Names of the kernels to compile: all functions, and of each template some of what is made of it."""
        templates: dict[str, list[str]] = {}
        names = []
        for kernel in self.kernels:
            base, is_template, _ = kernel.expression.partition("<")
            (templates.setdefault(base, []) if is_template else names).append(kernel.name)
        for made in templates.values():
            count = min(self.each, len(made))
            names += [made[i * (len(made) - 1) // max(count - 1, 1)] for i in range(count)]
        return list(dict.fromkeys(names))

    def library(self, *names: str, threadgroup: dict[int, int] = THREADGROUP, **constants: object) -> shader.Library:
        """The file compiled for these kernels, with values of function constants."""
        given = self.constants | constants
        return shader.compile_shader(self.text, constants=given, threadgroup=threadgroup, kernels=names)

    def load(self, names: list[str]) -> int:
        """Compiles the named kernels, in parts where they are too much for the compiler at once; returns how many."""
        try:
            return len(dir(self.library(*names)))
        except RuntimeError as error:
            if "too large" not in str(error) or len(names) < 2:
                raise
        half = len(names) // 2
        return self.load(names[:half]) + self.load(names[half:])


def failure(error: Exception) -> str:
    """What an error says, in a line."""
    lines = [line for line in str(error).splitlines() if "error:" in line] or str(error).splitlines() or [""]
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {lines[0]}".replace("|", r"\|"))[:300]


# ---- what NumPy computes ---------------------------------------------------------------------------------------------

CHECKS: dict[str, dict[str, Callable[[MetalFile], Compared]]] = {"candle": {}, "mlx": {}}
"""By project and file: runs kernels of the file."""

CLOSE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # relative, and absolute for numbers about 1


def check(project: str, file: str) -> Callable:
    """Registers a function as the check of a file."""

    def register(function: Callable[[MetalFile], Compared]) -> Callable[[MetalFile], Compared]:
        CHECKS[project][file] = function
        return function

    return register


def outcome(result: torch.Tensor | RuntimeError, expected: Any) -> str:
    """`RIGHT`, or by how much a kernel's result differs from NumPy's, or what it raised."""
    if isinstance(result, RuntimeError):
        return f"raises {failure(result)}"
    tolerance = CLOSE.get(result.dtype, 0)
    got = result.float().numpy() if result.dtype == torch.bfloat16 else result.numpy()
    try:
        np.testing.assert_allclose(got, np.asarray(expected), rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        return f"differs: {' '.join(str(error).split())[:160]}"
    return RIGHT


def numbers(*shape: int, low: float = -1.0, high: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same numbers in every run, spread at random between two."""
    drawn = np.random.default_rng(sum(shape)).uniform(low, high, shape)
    return torch.from_numpy(drawn).to(dtype)


def exact(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's numbers in NumPy, floats as float64."""
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


def in_bytes(format: str, *values: object) -> torch.Tensor:
    """A structure as a kernel reads it."""
    return torch.frombuffer(bytearray(struct.pack(format, *values)), dtype=torch.uint8)


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def attended(q: torch.Tensor, k: np.ndarray, v: np.ndarray, scale: float, hidden: Any = False) -> np.ndarray:
    scores = exact(q) @ k.swapaxes(-1, -2) * scale
    return softmax(np.where(hidden, -np.inf, scores)) @ v


def normalised(x: np.ndarray, epsilon: float, centred: bool) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True) if centred else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


INT, LONG = torch.int32, torch.int64
N = 1003  # no power of 2, no multiple of what a thread computes
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ALL_DTYPES = DTYPES | {"u8": torch.uint8, "u32": torch.uint32, "i64": LONG}
MLX_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def transposed(rows: int, columns: int) -> tuple[torch.Tensor, np.ndarray, list[int], list[int]]:
    """A matrix in memory, what it is read as, and the shape and the strides with which it is."""
    x = numbers(rows, columns)
    return x, exact(x).T, [columns, rows], [1, columns]


# ---- candle's --------------------------------------------------------------------------------------------------------


@check("candle", "affine")
def affine(file: MetalFile) -> Compared:
    lib = file.library("affine_f32", "affine_f16", "affine_bf16", "affine_f32_strided", "powf_f32", "elu_f32")
    for name, dtype in DTYPES.items():
        x, out = numbers(N, dtype=dtype), torch.zeros(N, dtype=dtype)
        getattr(lib, f"affine_{name}")(N, 3.0, 0.5, x, out, threads=N)
        yield f"affine_{name}", out, exact(x) * 3 + 0.5
    x, expected, shape, strides = transposed(7, 9)
    lib.affine_f32_strided(63, 2, shape, strides, 3.0, 0.5, x, out := torch.zeros(63), threads=63)
    yield "affine_f32_strided", out, expected.ravel() * 3 + 0.5
    x = numbers(N)
    lib.elu_f32(N, 0.5, x, out := torch.zeros(N), threads=N)
    yield "elu_f32", out, np.where(exact(x) > 0, exact(x), 0.5 * np.expm1(exact(x)))
    x = numbers(N, low=0.1)
    lib.powf_f32(N, 2.5, x, out := torch.zeros(N), threads=N)
    yield "powf_f32", out, exact(x) ** 2.5


@check("candle", "unary")
def unary(file: MetalFile) -> Compared:
    rules = {
        "sqrt": np.sqrt, "sqr": np.square, "neg": np.negative, "recip": lambda x: 1 / x, "cos": np.cos, "sin": np.sin,
        "exp": np.exp, "log": np.log, "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "round": np.round,
        "erf": erf, "sign": np.sign, "sigmoid": sigmoid, "tanh": np.tanh, "silu": lambda x: x * sigmoid(x),
        "gelu_erf": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, "relu": lambda x: np.maximum(x, 0),
        "gelu": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    }  # fmt: skip
    names = [*(f"{rule}_f32" for rule in rules), "exp_f16", "exp_bf16"]
    lib = file.library(*names, "exp_f32_strided")
    for name in names:
        rule, _, dtype = name.rpartition("_")
        x = numbers(N, low=0.1, high=3, dtype=DTYPES[dtype])
        getattr(lib, name)(N, x, out := torch.zeros_like(x), threads=N)
        yield name, out, rules[rule](exact(x))
    x, expected, shape, strides = transposed(7, 9)
    lib.exp_f32_strided(63, 2, shape, strides, x, out := torch.zeros(63), threads=63)
    yield "exp_f32_strided", out, np.exp(expected.ravel())


@check("candle", "binary")
def binary(file: MetalFile) -> Compared:
    rules = {
        "badd": np.add, "bsub": np.subtract, "bmul": np.multiply, "bdiv": np.divide, "bminimum": np.minimum,
        "bmaximum": np.maximum,
    }  # fmt: skip
    names = [f"{rule}_{dtype}" for rule in rules for dtype in DTYPES]
    lib = file.library(*names, "badd_i64", "eq_u32", "lt_f32", "bsub_f32_lstrided")
    for name in names:
        rule, dtype = name.split("_")
        x, y = numbers(N, dtype=DTYPES[dtype]), numbers(N, low=0.5, high=2, dtype=DTYPES[dtype])
        getattr(lib, name)(N, x, y, out := torch.zeros(N, dtype=DTYPES[dtype]), threads=N)
        yield name, out, rules[rule](exact(x), exact(y))
    i = torch.arange(N)
    lib.badd_i64(N, i, i * 2**33, out := torch.zeros(N, dtype=LONG), threads=N)
    yield "badd_i64", out, exact(i) * (1 + 2**33)
    few = (i % 3).to(torch.uint32)
    lib.eq_u32(N, i.to(torch.uint32), few, out := torch.zeros(N, dtype=torch.uint8), threads=N)
    yield "eq_u32", out, exact(i) == exact(few)
    x, y = numbers(N), numbers(1, N)[0]
    lib.lt_f32(N, x, y, out := torch.zeros(N, dtype=torch.uint8), threads=N)
    yield "lt_f32", out, exact(x) < exact(y)
    x, expected, shape, strides = transposed(7, 9)
    y = numbers(63)
    lib.bsub_f32_lstrided(63, 2, shape, strides, [0, 0], x, y, out := torch.zeros(63), threads=63)
    yield "bsub_f32_lstrided", out, expected.ravel() - exact(y)


@check("candle", "cast")
def cast(file: MetalFile) -> Compared:
    pairs = {f"cast_{a}_{b}": (ALL_DTYPES[a], ALL_DTYPES[b]) for a, b in itertools.permutations(ALL_DTYPES, 2)}
    lib = file.library(*pairs)
    for name, (given, made) in pairs.items():
        x, out = numbers(N, low=0, high=200).to(given), torch.zeros(N, dtype=INT).to(made)
        getattr(lib, name)(N, x, out, threads=N)
        yield name, out, exact(x) if out.is_floating_point() else np.trunc(exact(x))


@check("candle", "fill")
def fill(file: MetalFile) -> Compared:
    for name, dtype in ALL_DTYPES.items():
        lib = file.library(f"fill_{name}")
        value = torch.tensor([7]).to(dtype)
        getattr(lib, f"fill_{name}")(out := torch.zeros(N, dtype=LONG).to(dtype), value, N, threads=N + 5)
        yield f"fill_{name}", out, np.full(N, 7)


@check("candle", "ternary")
def ternary(file: MetalFile) -> Compared:
    for name, dtype in (("where_u8_f32", torch.uint8), ("where_u32_f32", torch.uint32), ("where_i64_f32", LONG)):
        x, y, shape, strides = transposed(7, 9)
        z, condition = numbers(63), (torch.arange(63) % 3 == 0).to(dtype)
        lib = file.library(name, IDS_CONTIGUOUS=True, T_CONTIGUOUS=False, F_CONTIGUOUS=True)
        arguments = (63, 2, shape, [9, 1], strides, [9, 1], condition, x, z, out := torch.zeros(63))
        getattr(lib, name)(*arguments, threads=63)
        yield name, out, np.where(exact(condition) != 0, y.ravel(), exact(z))


@check("candle", "sort")
def sort(file: MetalFile) -> Compared:
    rows, columns, padded = 3, 100, 128
    for order, sign in (("asc", 1), ("desc", -1)):
        for dtype in DTYPES:
            lib = file.library(f"asort_{order}_{dtype}", threadgroup={0: 4 * padded})
            x = torch.stack([torch.randperm(columns, generator=torch.Generator().manual_seed(i)) for i in range(rows)])
            out = torch.zeros(rows, columns, dtype=torch.uint32)
            call = getattr(lib, f"asort_{order}_{dtype}")
            call(x.to(DTYPES[dtype]), out, columns, padded, threads=(padded, rows), group_size=(padded, 1))
            yield f"asort_{order}_{dtype}", out, np.argsort(sign * exact(x), -1)


@check("candle", "indexing")
def indexing(file: MetalFile) -> Compared:
    lib = file.library("is_u32_f32", "gather_u32_f32", "s_u32_f32", "sa_u32_f32", "ia_u32_f32")
    left, source, right = 2, 9, 5
    x, ids = numbers(left, source, right), torch.tensor([8, 0, 3, 3]).to(torch.uint32)
    out = torch.zeros(left, len(ids), right)
    sizes = (out.numel(), left, source, right, len(ids))
    lib.is_u32_f32(*sizes, 1, [0], [0], x, ids, out, threads=out.numel())
    yield "is_u32_f32", out, exact(x)[:, ids.numpy()]
    each = (torch.arange(out.numel()).reshape(out.shape) * 5 % source).to(torch.uint32)
    lib.gather_u32_f32(*sizes, x, each, out := torch.zeros(left, len(ids), right), threads=out.numel())
    yield "gather_u32_f32", out, np.take_along_axis(exact(x), each.numpy().astype(int), 1)
    where, y = each.numpy().astype(int), numbers(left, len(ids), right)
    expected = exact(x)
    for i in range(len(ids)):
        a, b = np.indices((left, right))
        np.add.at(expected, (a, where[:, i], b), exact(y)[:, i])
    out = x.clone()
    lib.sa_u32_f32(left * right, left, len(ids), right, source, y, each, out, threads=left * right)
    yield "sa_u32_f32", out, expected
    distinct = torch.arange(len(ids), dtype=torch.int32)[None, :, None].expand(y.shape).contiguous().to(torch.uint32)
    expected = exact(x)
    expected[:, : len(ids)] = exact(y)
    out = x.clone()
    lib.s_u32_f32(left * right, left, len(ids), right, source, y, distinct, out, threads=left * right)
    yield "s_u32_f32", out, expected


@check("candle", "reduce")
def reduce(file: MetalFile) -> Compared:
    rules = {"sum": np.sum, "mul": np.prod, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}
    rows, columns = 3, 300
    each_row = {"threads": rows * 128, "group_size": 128}
    names = [f"fast_{rule}_f32" for rule in rules]
    x = numbers(rows, columns)
    for name, rule in zip(names, rules.values(), strict=True):
        lib = file.library(name)
        y = x + 0.9 if rule is np.prod else x
        out = torch.zeros(rows, dtype=torch.int32).to(torch.uint32) if "arg" in name else torch.zeros(rows)
        getattr(lib, name)(x.numel(), 2, torch.tensor([rows, columns], dtype=INT), columns, y, out, **each_row)
        yield name, out, rule(exact(y), -1)
    lib = file.library("softmax_f32", "rmsnorm_f32", "layernorm_f32")
    out, weight, bias = torch.zeros(rows, columns), numbers(columns), numbers(1, columns)[0]
    lib.softmax_f32(x.numel(), columns, x, out, **each_row)
    yield "softmax_f32", out, softmax(exact(x))
    lib.rmsnorm_f32(x.numel(), columns, x, out := torch.zeros(rows, columns), weight, 1e-5, **each_row)
    yield "rmsnorm_f32", out, normalised(exact(x), 1e-5, False) * exact(weight)
    lib.layernorm_f32(x.numel(), columns, x, out := torch.zeros(rows, columns), weight, bias, 1e-5, **each_row)
    yield "layernorm_f32", out, normalised(exact(x), 1e-5, True) * exact(weight) + exact(bias)


@check("candle", "conv")
def pooling(file: MetalFile) -> Compared:
    lib = file.library("max_pool2d_f32", "avg_pool2d_f32", "upsample_nearest2d_f32")
    x = numbers(2, 3, 8, 9)
    layout = (list(x.shape), list(x.stride()), x)
    windows = np.lib.stride_tricks.sliding_window_view(exact(x), (2, 3), (2, 3))[:, :, ::2, ::3]
    for name, rule in (("max_pool2d_f32", np.max), ("avg_pool2d_f32", np.mean)):
        out = torch.zeros(windows.shape[:4])
        getattr(lib, name)(2, 3, 2, 3, *layout, out, threads=out.numel())
        yield name, out, rule(windows, (-2, -1))
    out = torch.zeros(2, 3, 16, 27)
    lib.upsample_nearest2d_f32(16, 27, 1 / 2, 1 / 3, *layout, out, threads=out.numel())
    yield "upsample_nearest2d_f32", out, exact(x).repeat(2, 2).repeat(3, 3)


@check("candle", "mlx_gemm")
def candle_gemm(file: MetalFile) -> Compared:
    batches = (torch.zeros(1, dtype=INT), [0])
    yield from _gemm(file, "gemm_{}_f32_f32_32_32_16_2_2", "8i3Q3i4x", batches, do_gather=False)


@check("candle", "scaled_dot_product_attention")
def candle_attention(file: MetalFile) -> Compared:
    heads, keys, size, scale = 2, 40, 64, 0.125
    q, k, v = numbers(heads, size), numbers(heads, keys, size), numbers(heads, keys, size, low=0)
    lib = file.library("sdpa_vector_float_64", sdpa_vector_has_mask=False)
    arguments = (q, k, v, out := torch.zeros(heads, size), 1, keys, keys * size, keys * size, scale, 1.0)
    lib.sdpa_vector_float_64(*arguments, threads=(1024, heads), group_size=(1024, 1))
    yield "sdpa_vector_float_64", out[:, None], attended(q[:, None], exact(k), exact(v), scale)


# ---- of both ---------------------------------------------------------------------------------------------------------


def _gemm(file: MetalFile, pattern: str, layout: str, rest: tuple = (), **constants: object) -> Compared:
    """A product in tiles of 32 x 32: sizes that they divide, and sizes that they do not."""
    names = [pattern.format(how) for how in ("nn", "nt", "tn", "tt")]
    for m, n, k in ((32, 64, 32), (40, 37, 21)):
        aligned = {"align_M": m % 32 == 0, "align_N": n % 32 == 0, "align_K": k % 16 == 0}
        off = {"has_batch": False, "use_out_source": False, "do_axpby": False}
        lib = file.library(*names, **aligned, **off, **constants)
        a, b = numbers(m, k), numbers(k, n)
        rows, columns = -(-m // 32), -(-n // 32)
        for name, (a_is_transposed, b_is_transposed) in zip(names, np.ndindex(2, 2), strict=True):
            left, right = a.T.contiguous() if a_is_transposed else a, b.T.contiguous() if b_is_transposed else b
            strides = (left.shape[1], right.shape[1], n)
            sizes = in_bytes(layout, m, n, k, *strides, columns, rows, m * k, k * n, m * n, 0, k // 16, 0)
            buffers = (left, right, torch.zeros(1), out := torch.zeros(m, n), sizes, torch.zeros(1), *rest)
            getattr(lib, name)(*buffers, threads=(32 * columns, 2 * rows, 2), group_size=(32, 2, 2))
            yield f"{name}, {m} x {n} x {k}", out, exact(a) @ exact(b)


@check("candle", "gemv")
@check("mlx", "gemv")
def gemv(file: MetalFile) -> Compared:
    """A matrix by a vector, and a vector by a matrix, in groups that do and that do not add up what they share."""
    name, shared = (f"gemv_float32_bm{bm}_bn{bn}_sm1_sn32_tm4_tn4_nc0_axpby0" for bm, bn in ((4, 1), (1, 8)))
    back = "gemv_t_float32_bm1_bn4_sm8_sn4_tm4_tn4_nc0_axpby0"
    lib = file.library(name, shared, back)
    rows, columns = 37, 256  # columns that groups divide: in others some threads return before a barrier
    a, x, y = numbers(rows, columns), numbers(columns), numbers(rows)
    rest = (1.0, 0.0, 1, torch.ones(1, dtype=INT), [0], [0], [0], 1)
    how = {"threads": (32 * -(-rows // 16), 1, 4), "group_size": (32, 1, 4)}
    getattr(lib, name)(a, x, x, out := torch.zeros(rows), columns, rows, columns, *rest, **how)
    yield name, out, exact(a) @ exact(x)
    how = {"threads": (32 * -(-rows // 4), 1, 8), "group_size": (32, 1, 8)}
    out = torch.zeros(rows)
    try:
        getattr(lib, shared)(a, x, x, out, columns, rows, columns, *rest, **how)
    except RuntimeError as error:
        out = error
    yield shared, out, exact(a) @ exact(x)
    how = {"threads": (32 * -(-columns // 64), 1, 4), "group_size": (32, 1, 4)}
    getattr(lib, back)(a, y, y, out := torch.zeros(columns), rows, columns, columns, *rest, **how)
    yield back, out, exact(y) @ exact(a)


@check("candle", "mlx_sort")
def candle_mlx_sort(file: MetalFile) -> Compared:
    yield from _block_sort(file, {"carg_block_sort_float32_uint32_bn128_tn8": np.argsort})


@check("mlx", "sort")
def mlx_sort(file: MetalFile) -> Compared:
    rules = {"carg_block_sort_float32_uint32_bn128_tn4": np.argsort, "c_block_sort_float32_float32_bn128_tn4": np.sort}
    yield from _block_sort(file, rules)


def _block_sort(file: MetalFile, rules: dict[str, Callable]) -> Compared:
    """Rows that a group of 128 threads sorts."""
    rows, columns = 3, 500
    x = numbers(rows, columns)
    for name, rule in rules.items():
        lib = file.library(name)
        out = torch.zeros(rows, columns).to(torch.uint32) if "arg" in name else torch.zeros(rows, columns)
        getattr(lib, name)(x, out, columns, 1, 1, columns, columns, threads=(128, rows), group_size=(128, 1))
        yield name, out, rule(exact(x), -1)


# ---- MLX's -----------------------------------------------------------------------------------------------------------


@check("mlx", "arange")
def arange(file: MetalFile) -> Compared:
    lib = file.library("arangefloat32", "arangeint64")
    lib.arangefloat32(0.5, 0.25, out := torch.zeros(N), threads=N)
    yield "arangefloat32", out, 0.5 + 0.25 * np.arange(N)
    lib.arangeint64(-5, 3, out := torch.zeros(N, dtype=LONG), threads=N)
    yield "arangeint64", out, np.arange(N) * 3 - 5


@check("mlx", "unary")
def mlx_unary(file: MetalFile) -> Compared:
    rules = {
        "Abs": np.abs, "ArcCos": np.arccos, "ArcSin": np.arcsin, "ArcSinh": np.arcsinh, "ArcTan": np.arctan,
        "ArcTanh": np.arctanh, "Ceil": np.ceil, "Cos": np.cos, "Cosh": np.cosh, "Exp": np.exp, "Expm1": np.expm1,
        "Erf": erf, "Floor": np.floor, "Log": np.log, "Log2": np.log2, "Log10": np.log10, "Log1p": np.log1p,
        "Negative": np.negative, "Round": np.round, "Sigmoid": sigmoid, "Sign": np.sign, "Sin": np.sin,
        "Sinh": np.sinh, "Square": np.square, "Sqrt": np.sqrt, "Rsqrt": lambda x: 1 / np.sqrt(x), "Tan": np.tan,
        "Tanh": np.tanh,
    }  # fmt: skip
    lib = file.library(*(f"vn_{rule}{dtype}{dtype}" for rule in rules for dtype in MLX_DTYPES))
    for dtype, torch_dtype in MLX_DTYPES.items():
        x = numbers(N, low=0.05, high=0.95, dtype=torch_dtype)
        for rule, function in rules.items():
            name = f"vn_{rule}{dtype}{dtype}"
            getattr(lib, name)(x, out := torch.zeros(N, dtype=torch_dtype), N, threads=-(-N // 2))
            yield name, out, function(exact(x))


@check("mlx", "binary")
def mlx_binary(file: MetalFile) -> Compared:
    rules = {
        "Add": np.add, "Divide": np.divide, "Maximum": np.maximum, "Minimum": np.minimum, "Multiply": np.multiply,
        "Subtract": np.subtract, "Power": np.power, "Remainder": np.mod, "ArcTan2": np.arctan2,
        "LogAddExp": np.logaddexp,
    }  # fmt: skip
    lib = file.library(*(f"vvn_{rule}{dtype}" for rule in rules for dtype in MLX_DTYPES), "vv_LeftShiftuint32")
    for dtype, torch_dtype in MLX_DTYPES.items():
        x, y = numbers(N, low=0.1, dtype=torch_dtype), numbers(N + 1, low=0.5, dtype=torch_dtype)[:N]
        for rule, function in rules.items():
            name = f"vvn_{rule}{dtype}"
            getattr(lib, name)(x, y, out := torch.zeros(N, dtype=torch_dtype), N, threads=-(-N // 2))
            if rule != "Remainder" or dtype == "float32":  # elsewhere a rounded operand moves it by a whole divisor
                yield name, out, function(exact(x), exact(y))
    i = torch.arange(N).to(torch.uint32)
    shifts = (torch.arange(N) % 7).to(torch.uint32)
    lib.vv_LeftShiftuint32(i, shifts, out := torch.zeros(N).to(torch.uint32), N, threads=N)
    yield "vv_LeftShiftuint32", out, exact(i) << exact(shifts)


@check("mlx", "binary_two")
def binary_two(file: MetalFile) -> Compared:
    lib = file.library("vv_DivModfloat32", "vvn_DivModint32")
    for name, dtype, step in (("vv_DivModfloat32", torch.float32, 1), ("vvn_DivModint32", INT, 2)):
        x, y = numbers(N, low=-90, high=90).to(dtype), numbers(N, low=2, high=9).to(dtype)
        quotient, rest = torch.zeros_like(x), torch.zeros_like(x)
        getattr(lib, name)(x, y, quotient, rest, N, threads=-(-N // step))
        yield f"{name}, quotient", quotient, np.floor_divide(exact(x), exact(y))
        yield f"{name}, remainder", rest, np.mod(exact(x), exact(y))


@check("mlx", "quantized")
def dequantize(file: MetalFile) -> Compared:
    for bits in (2, 4, 8):
        name, groups, each = f"affine_dequantize_float_gs_64_b_{bits}", 6, 8 // bits
        lib = file.library(name)
        packed = (torch.arange(groups * 64 // each) * 37 % 256).to(torch.uint8)
        scales, biases = numbers(groups), numbers(1, groups)[0]
        getattr(lib, name)(packed, scales, biases, out := torch.zeros(groups, 64), threads=(len(packed), 1))
        whole = exact(packed)[:, None] >> (bits * np.arange(each)) & 2**bits - 1
        yield name, out, whole.reshape(groups, 64) * exact(scales)[:, None] + exact(biases)[:, None]


@check("mlx", "copy")
def copy(file: MetalFile) -> Compared:
    types = MLX_DTYPES | {"uint8": torch.uint8, "int32": INT, "int64": LONG, "bool_": torch.bool}
    pairs = {f"v_copy{a}{b}": (types[a], types[b]) for a in types for b in types}
    lib = file.library(*pairs, "g2_copyfloat32float32")
    for name, (given, made) in pairs.items():
        x, out = (torch.arange(N) % 100).to(given), torch.zeros(N).to(made)
        getattr(lib, name)(x, out, N, threads=N)
        yield name, out, exact(x) != 0 if made == torch.bool else exact(x)
    x, expected, _, strides = transposed(7, 9)
    lib.g2_copyfloat32float32(x, out := torch.zeros(9, 7), 0, strides, threads=(7, 9))
    yield "g2_copyfloat32float32", out, expected


@check("mlx", "ternary")
def mlx_ternary(file: MetalFile) -> Compared:
    lib = file.library("v_Selectfloat32", "vn_Selectbfloat16")
    condition = torch.arange(N) % 3 == 0
    for name, dtype in (("v_Selectfloat32", torch.float32), ("vn_Selectbfloat16", torch.bfloat16)):
        x, y = numbers(N, dtype=dtype), numbers(N + 1, dtype=dtype)[:N]
        getattr(lib, name)(condition, x, y, out := torch.zeros(N, dtype=dtype), N, threads=N if name[1] == "_" else 251)
        yield name, out, np.where(condition, exact(x), exact(y))


ROWS, COLUMNS = 3, 1001


def launch_of_rows(name: str) -> tuple[int, dict[str, int]]:
    """Columns for a kernel that computes each row of a matrix, and how it is launched.

    Four numbers a thread; what loops over a row is launched with as many threads as a group has, and counts on it.
    """
    columns, group = (5003, 1024) if "looped" in name else (COLUMNS, 256)
    return columns, {"threads": ROWS * group, "group_size": group}


@check("mlx", "softmax")
def mlx_softmax(file: MetalFile) -> Compared:
    names = [f"{how}_softmax_{dtype}" for how in ("block", "looped") for dtype in MLX_DTYPES]
    lib = file.library(*names)
    for name in names:
        columns, how = launch_of_rows(name)
        x = numbers(ROWS, columns, low=-3, high=3, dtype=MLX_DTYPES[name.split("_")[-1]])
        getattr(lib, name)(x, out := torch.zeros_like(x), columns, **how)
        yield name, out, softmax(exact(x))


@check("mlx", "logsumexp")
def logsumexp(file: MetalFile) -> Compared:
    lib = file.library("block_logsumexp_float32", "looped_logsumexp_float32")
    for name in dir(lib):
        columns, how = launch_of_rows(name)
        x = numbers(ROWS, columns)
        getattr(lib, name)(x, out := torch.zeros(ROWS), columns, **how)
        yield name, out, np.log(np.exp(exact(x)).sum(-1))


@check("mlx", "rms_norm")
def rms_norm(file: MetalFile) -> Compared:
    lib = file.library("rmsfloat32", "rmsbfloat16", "rms_loopedfloat32")
    for name in dir(lib):
        dtype = torch.bfloat16 if "bf" in name else torch.float32
        columns, how = launch_of_rows(name)
        x, weight = numbers(ROWS, columns, dtype=dtype), numbers(columns, dtype=dtype)
        getattr(lib, name)(x, weight, out := torch.zeros_like(x), 1e-5, columns, 1, **how)
        yield name, out, normalised(exact(x), 1e-5, False) * exact(weight)


@check("mlx", "layer_norm")
def layer_norm(file: MetalFile) -> Compared:
    lib = file.library("layer_normfloat32", "layer_normbfloat16", "layer_norm_loopedfloat32")
    for name in dir(lib):
        dtype = torch.bfloat16 if "bf" in name else torch.float32
        columns, how = launch_of_rows(name)
        x, weight = numbers(ROWS, columns, dtype=dtype), numbers(columns, dtype=dtype)
        bias = numbers(1, columns, dtype=dtype)[0]
        getattr(lib, name)(x, weight, bias, out := torch.zeros_like(x), 1e-5, columns, 1, 1, **how)
        yield name, out, normalised(exact(x), 1e-5, True) * exact(weight) + exact(bias)


@check("mlx", "scan")
def scan(file: MetalFile) -> Compared:
    rules = {"sum": np.cumsum, "prod": np.cumprod, "max": np.maximum.accumulate, "min": np.minimum.accumulate}
    names = [f"contig_scan_{how}inclusive_{rule}_float32_float32" for how in ("", "reverse_") for rule in rules]
    lib = file.library(*names, "contig_scan_exclusive_sum_int32_int32")
    how = {"threads": (256, ROWS), "group_size": (256, 1)}
    x = numbers(ROWS, COLUMNS, low=0.9, high=1.1)
    for name in names:
        reverse, rule = "reverse" in name, rules[name.split("inclusive_")[1].split("_")[0]]
        getattr(lib, name)(x, out := torch.zeros_like(x), COLUMNS, **how)
        expected = rule(exact(x)[:, ::-1] if reverse else exact(x), -1)
        yield name, out, expected[:, ::-1] if reverse else expected
    i = torch.arange(ROWS * COLUMNS, dtype=INT).reshape(ROWS, COLUMNS)
    lib.contig_scan_exclusive_sum_int32_int32(i, out := torch.zeros_like(i), COLUMNS, **how)
    yield "contig_scan_exclusive_sum_int32_int32", out, np.cumsum(exact(i), -1) - exact(i)


@check("mlx", "reduce")
def mlx_reduce(file: MetalFile) -> Compared:
    rules = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
    x = numbers(8, COLUMNS, low=0.9, high=1.1)
    lib = file.library(*(f"{how}_{rule}float32" for how in ("all_reduce", "row_reduce_simple") for rule in rules))
    for rule, function in rules.items():
        out = torch.zeros(1)
        getattr(lib, f"all_reduce_{rule}float32")(x, out, x.numel(), x.numel(), threads=(256, 1), group_size=(256, 1))
        yield f"all_reduce_{rule}float32", out, function(exact(x))
        how = {"threads": (256, 2), "group_size": (256, 1)}  # four rows a group
        getattr(lib, f"row_reduce_simple_{rule}float32")(x, out := torch.zeros(8), COLUMNS, 8, **how)
        yield f"row_reduce_simple_{rule}float32", out, function(exact(x), -1)


@check("mlx", "arg_reduce")
def arg_reduce(file: MetalFile) -> Compared:
    lib = file.library("argmin_float32", "argmax_float32", "argmax_int64", "argmin_bfloat16")
    dtypes = MLX_DTYPES | {"int64": LONG}
    for name in dir(lib):
        x = numbers(ROWS, COLUMNS, low=-1e5, high=1e5).to(dtypes[name.split("_")[1]])
        out = torch.zeros(ROWS).to(torch.uint32)
        sizes = (torch.tensor([ROWS], dtype=INT), [COLUMNS], [1], 1, 1, COLUMNS)
        getattr(lib, name)(x, out, *sizes, threads=(256, ROWS), group_size=(256, 1))
        yield name, out, getattr(np, name.split("_")[0])(exact(x), -1)


@check("mlx", "searchsorted")
def searchsorted(file: MetalFile) -> Compared:
    sorted_numbers, wanted = numbers(N).sort().values, numbers(50)
    wanted[:5] = sorted_numbers[100:105]
    for side in ("left", "right"):
        lib = file.library(f"searchsorted_float32_{side}")
        call = getattr(lib, f"searchsorted_float32_{side}")
        call(sorted_numbers, wanted, out := torch.zeros(50).to(torch.uint32), N, 1, threads=(50, 1, 1))
        yield f"searchsorted_float32_{side}", out, np.searchsorted(sorted_numbers.numpy(), wanted.numpy(), side)


@check("mlx", "dot")
def dot(file: MetalFile) -> Compared:
    for dtype, torch_dtype in MLX_DTYPES.items():
        name = f"dot_product_{dtype}_it32_tg512_sg16"
        lib = file.library(name)
        x, y = numbers(20000, dtype=torch_dtype), numbers(20000, low=0, dtype=torch_dtype)
        groups = 2
        getattr(lib, name)(x, y, out := torch.zeros(groups), 20000, threads=512 * groups, group_size=512)
        yield name, out.sum()[None], [exact(x) @ exact(y)]


@check("mlx", "rope")
def rope(file: MetalFile) -> Compared:
    for traditional in (True, False):
        lib = file.library("rope_single_float32", forward=True, traditional=traditional)
        heads, size, offset, base = 3, 64, 17, 10000.0
        x = numbers(heads, size)
        arguments = (x, out := torch.zeros_like(x), offset, 1.0, size, 0, 0, 0, 0, 0, math.log2(base))
        lib.rope_single_float32(*arguments, threads=(size // 2, heads))
        angle = offset * base ** -(np.arange(size // 2) / (size // 2))
        pairs = np.stack((exact(x)[:, ::2], exact(x)[:, 1::2]) if traditional else np.split(exact(x), 2, -1))
        cosine, sine = np.cos(angle), np.sin(angle)
        turned = pairs[0] * cosine - pairs[1] * sine, pairs[0] * sine + pairs[1] * cosine
        expected = np.stack(turned, -1).reshape(x.shape) if traditional else np.concatenate(turned, -1)
        yield f"rope_single_float32, traditional={traditional}", out, expected


def threefry(key: tuple[int, int], count: np.ndarray) -> np.ndarray:
    """Threefry-2x32 with 20 rounds (Salmon and others, 2011), of pairs of counters, shape (2, n), uint32."""
    keys = np.array([*key, key[0] ^ key[1] ^ 0x1BD11BDA], dtype=np.uint32)
    x, y = count[0] + keys[0], count[1] + keys[1]
    for block in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x = x + y
            y = (y << np.uint32(distance) | y >> np.uint32(32 - distance)) ^ x
        x = x + keys[(block + 1) % 3]
        y = y + keys[(block + 2) % 3] + np.uint32(block + 1)
    return np.stack((x, y))


@check("mlx", "random")
def random(file: MetalFile) -> Compared:
    keys, half = torch.tensor([[1, 2], [3, 2**31]]), 50
    lib = file.library("rbitsc")
    out = torch.zeros(2, 8 * half, dtype=torch.int8)
    lib.rbitsc(keys.to(torch.uint32), out, 0, 8 * half, threads=(2, half))
    count = np.arange(2 * half, dtype=np.uint32).reshape(2, half)
    expected = np.stack([threefry(tuple(map(int, key)), count).ravel() for key in keys])
    yield "rbitsc", out.view(torch.uint32), expected


@check("mlx", "steel_gemm_fused")
def mlx_gemm(file: MetalFile) -> Compared:
    yield from _gemm(file, "steel_gemm_fused_{}_float32_float32_bm32_bn32_bk16_wm2_wn2", "8i3q3i4x")


@check("mlx", "scaled_dot_product_attention")
def attention(file: MetalFile) -> Compared:
    heads, keys, size, scale = 4, 40, 64, 0.125
    q, k, v = numbers(heads, size), numbers(heads // 2, keys, size), numbers(heads // 2, keys, size, low=0)
    off = ("has_mask", "query_transposed", "do_causal", "bool_mask", "float_mask", "has_sinks")
    lib = file.library("sdpa_vector_float_64_64", **dict.fromkeys(off, False))
    strides = (keys * size, size) * 2
    arguments = (q, k, v, out := torch.zeros(heads, size), 2, keys, *strides, scale)
    lib.sdpa_vector_float_64_64(*arguments, threads=(1024 * heads, 1, 1), group_size=(1024, 1, 1))
    k, v = (np.repeat(exact(x), 2, 0) for x in (k, v))
    yield "sdpa_vector_float_64_64", out[:, None], attended(q[:, None], k, v, scale)


@check("mlx", "steel_attention")
def steel_attention(file: MetalFile) -> Compared:
    heads, queries, keys, size, scale = 2, 40, 50, 64, 0.125
    q, k, v = numbers(heads, queries, size), numbers(heads, keys, size), numbers(heads, keys, size, low=0)
    off = ("align_Q", "align_K", "has_mask", "has_sinks")
    for causal in (False, True):
        name = "steel_attention_float32_bq32_bk32_bd64_wm4_wn1_maskbool_"
        lib = file.library(name, do_causal=causal, **dict.fromkeys(off, False))
        strides = [(heads * rows * size, rows * size, size) for rows in (queries, keys, keys, queries)]
        blocks = (2, 2, 1, 1, queries - 32, keys - 32, keys - queries)
        sizes = in_bytes("6if7i12q", 1, heads, size, queries, keys, 1, scale, *blocks, *np.ravel(strides))
        arguments = (q, k, v, out := torch.zeros(heads, queries, size), sizes)
        getattr(lib, name)(*arguments, threads=(32 * 2, 4 * heads, 1), group_size=(32, 4, 1))
        later = np.arange(keys) > np.arange(queries)[:, None] + keys - queries
        yield f"{name}, causal={causal}", out, attended(q, exact(k), exact(v), scale, hidden=causal & later)


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What came of a file: kernels that it has, that were compiled, that were compared with NumPy; why not, or how."""

    file: str
    kernels: int = 0
    loaded: int = 0
    compared: int = 0
    why_not: str = ""
    differ: tuple[str, ...] = ()

    def line(self) -> str:
        """The row in Markdown."""
        load = f"{self.loaded} of {self.kernels}" if not self.why_not else "no"
        right = f"{self.compared - len(self.differ)} of {self.compared} right" if self.compared else ""
        return f"| {self.file} | {load} | {right} | {self.why_not or '; '.join(self.differ)} |"


def looked_at(project: str, name: str, checkout: Path, each: int) -> Row:
    """Loads a file, and runs its check."""
    short = name.removeprefix(f"{FOLDERS[project]}/").removesuffix(".metal")
    try:
        file = MetalFile(with_includes(name, checkout), each)
        loaded = file.load(file.spread())
    except (SyntaxError, RuntimeError, ValueError, OSError) as error:
        return Row(short, why_not=failure(error))
    function = CHECKS[project].get(Path(name).stem)
    outcomes = []
    try:
        for kernel, result, expected in function(file) if function else ():
            outcomes.append((kernel, outcome(result, expected)))
    except (SyntaxError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        outcomes.append(("the check", failure(error)))
    differ = tuple(
        f"{kernel}: {what.split(f'. {kernel}')[0].replace(f'{kernel}: ', '')}"
        for kernel, what in outcomes
        if what != RIGHT
    )
    return Row(short, len(file.kernels), loaded, len(outcomes), differ=differ)


def table(title: str, rows: list[Row]) -> str:
    """All rows in Markdown, under a sentence that counts them."""
    load, compared = sum(not row.why_not for row in rows), sum(row.compared for row in rows)
    right = compared - sum(len(row.differ) for row in rows)
    made_by = compiler.find_compiler().identity.split(" (")[0]
    first = f"{title}, {made_by}: {load} of {len(rows)} files load; "
    first += f"of {compared} results compared with NumPy's {right} are right."
    headings = "| file | kernels compiled | against NumPy | why not, or how |\n|---|---|---|---|"
    return "\n".join([first, "", headings, *(row.line() for row in rows), ""])


def revision(checkout: Path) -> str:
    """The checkout's commit and its date; empty where it is no git repository."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def write(project: str, text: str) -> None:
    """Puts a project's part into the page of tables."""
    page = TABLES.read_text(encoding="utf-8")
    begin, end = f"<!-- {project} -->\n", f"<!-- end of {project} -->\n"
    before, rest = page.split(begin)
    TABLES.write_text(f"{before}{begin}{text}{end}{rest.split(end)[1]}", encoding="utf-8")


def main() -> int:
    """1 if a kernel differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("project", choices=FOLDERS)
    parser.add_argument("checkout", type=Path, help="a folder with the project's source")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE", help="names of Metal files; all by default")
    parser.add_argument("--each", type=int, default=4, help="how many kernels of a template are compiled")
    parser.add_argument("--write", action="store_true", help=f"write the table into {TABLES.name}")
    given = parser.parse_args()
    folder = given.checkout / FOLDERS[given.project]
    names = [path.relative_to(given.checkout).as_posix() for path in sorted(folder.rglob("*.metal"))]
    if not names:
        parser.error(f"no Metal files in {folder}: CHECKOUT is the root of a checkout of {given.project}")
    if unknown := set(given.only) - {Path(name).stem for name in names}:
        parser.error(f"no {', '.join(sorted(unknown))} among the {len(names)} Metal files of {folder}")
    if given.write and given.only:
        parser.error("--write wants all files")
    if not (commit := revision(given.checkout)):
        parser.error(f"{given.checkout} is no git repository: its revision belongs to the table")
    rows = []
    for name in names:
        if given.only and Path(name).stem not in given.only:
            continue
        begin = time.monotonic()
        rows.append(looked_at(given.project, name, given.checkout, given.each))
        print(rows[-1].line(), f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    text = table(f"**{given.project}**, commit {commit}", rows)
    print(text)
    if given.write:
        write(given.project, text)
    return 1 if any(row.differ for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
