"""Checks of the exercises of page 02: lines that a read touches, and bytes that a strided copy moves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from metallab.isolated import Skipped
from metallab.pytorch import gpu_counts

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
"""Stands before a learner's kernel."""

MOST_LINES = 2
"""A SIMD-group's read may touch so many lines."""

SIZES = (32, 64, 96)
"""Rows and columns that a kernel is tried with."""


def judge_row_sums(answer: Any) -> bool | Skipped:
    """Judge a kernel ``row_sums(out, a, n)`` that adds up rows, by its sums and by the lines that it reads.

    Parameters
    ----------
    answer : tuple of (str, int)
        The source code, and how many threads it takes for each row; groups have 32 threads.

    Returns
    -------
    bool or metallab.isolated.Skipped
        True for a right kernel with few lines. On a Mac, whose GPU records nothing, the lines are not judged.

    Raises
    ------
    AssertionError
        What is wrong with it.
    """
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str)
    assert is_pair, "return the source code, and the number of threads for each row"
    source, threads_a_row = answer

    is_simulated = sys.platform != "darwin"
    kernel = _compile(source, is_simulated=is_simulated)
    for n in SIZES:
        a = torch.randn(n, n, generator=torch.Generator().manual_seed(n))
        threads = n * threads_a_row
        if not is_simulated:
            out = torch.full((n,), float("nan"), device="mps")
            kernel(out, a.to("mps"), n, threads=threads, group_size=32)
            _check_sums(out.cpu(), a)
            continue

        nothing = torch.full((n,), float("nan"))
        accesses = kernel.accesses(nothing, a, n, threads=threads, group_size=32)
        assert accesses.fault is None, f"at n = {n}: {accesses.fault.message}"
        _check_sums(torch.frombuffer(bytearray(accesses.memory[0]), dtype=torch.float32), a)
        lines = gpu_counts.lines_a_read(accesses, buffer=1)
        assert lines <= MOST_LINES, (
            f"the sums are right, and a SIMD-group's read touches {lines:.3g} lines: at most {MOST_LINES} are allowed"
        )

    if not is_simulated:
        return Skipped("the sums are right; only the simulated GPU counts lines")
    return True


def _compile(source: str, *, is_simulated: bool) -> Any:
    compiler = importlib.import_module("metalsim.shader" if is_simulated else "torch.mps")
    try:
        library = compiler.compile_shader(HEAD + source)
    except (SyntaxError, RuntimeError) as error:
        raise AssertionError(f"it does not compile: {str(error).splitlines()[0]}") from error

    try:
        return library.row_sums
    except (AttributeError, RuntimeError) as error:  # a Mac's library raises the latter
        raise AssertionError("there is no kernel of the name row_sums in it") from error


def _check_sums(sums: torch.Tensor, a: torch.Tensor) -> None:
    wanted = a.sum(1)
    wrong = (~torch.isclose(sums, wanted, atol=1e-3)).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        raise AssertionError(
            f"at n = {len(a)} row {row} is {sums[row]:.4g}, and should be {wanted[row]:.4g}"
        )


def judge_bytes(bytes_a_number: Callable[[int, int], float]) -> bool:
    """Judge the bytes that a strided copy moves for each number: those that it reads, in whole lines, and 4 written.

    Parameters
    ----------
    bytes_a_number : callable
        Of the stride, and of the bytes in a line of memory.

    Returns
    -------
    bool
        True for ``min(4 * stride, line) + 4``.

    Raises
    ------
    AssertionError
        Names the first stride and line for which it returns something else.
    """
    for line in (64, 128, 32):
        for stride in (1, 2, 8, 16, 24, 32, 100):
            wanted = min(4 * stride, line) + 4
            got = bytes_a_number(stride, line)
            is_near = isinstance(got, int | float) and abs(got - wanted) < 1e-6
            assert is_near, (
                f"stride {stride}, lines of {line} bytes: it is {got!r}, should be {wanted}"
            )
    return True


def compare_lines(measured: Mapping[int, float]) -> str:
    """Say which length of a line would explain the last point of a strided copy, of those that processors have.

    Parameters
    ----------
    measured : mapping
        How many times as long as stride 1 a copy took, by the stride.

    Returns
    -------
    str
        A table, and the length that comes nearest: an explanation to think about, and no proof.
    """
    stride = max(measured)
    rows = []
    for line in (64, 128, 256):
        expected = (min(4 * stride, line) + 4) / 8
        rows.append((abs(expected - measured[stride]), line, expected))

    text = "\n".join(f"lines of {line} bytes: {expected:.3g} times" for _, line, expected in rows)
    _, nearest, _ = min(rows)
    return f"{text}\nmeasured at stride {stride}: {measured[stride]:.3g} times, nearest to lines of {nearest} bytes"
