"""The exercises of page 02."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from metallab import isolated
from metallab.exercises.counting import count_lines, judge_count
from metallab.exercises.judging import Right, exercise, expect, expect_that, is_near
from metallab.pytorch import puzzles
from metallab.roofline import CLOSE

GROUP = 32
"""Threads of a threadgroup: one SIMD-group."""

LINES = 64, 128
"""Bytes that memory may deliver at once."""

BASE = 2
"""The stride that others are compared with: a copy of neighbours is often a program of its own."""

ROW_SUMS = puzzles.Puzzle(
    "row_sums",
    reference=lambda a: a.sum(1),
    inputs=lambda n: [torch.randn(n, n, generator=torch.Generator().manual_seed(n))],
    sizes=[(32,), (64,), (96,)],
    numbers=lambda n: [n],
    tolerance=1e-4,
)


@exercise("02.1", hint="let 32 threads read 32 neighbours of one row, and add up with simd_sum")
def judge_row_sums(row_sums: Callable[[], Any]) -> Right | isolated.Skipped:
    """Run the kernel at several sizes, and count the lines that its reads touch."""
    answer = row_sums()
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str)
    expect_that(is_pair, "row_sums()", answer, "the source code, and the threads for each row")
    source, threads = answer
    is_count = isinstance(threads, int) and not isinstance(threads, bool) and threads > 0
    expect_that(is_count, "row_sums()", answer, "threads for each row, a whole number above 0")

    def launch(n: int) -> dict[str, Any]:
        return {"threads": n * threads, "group_size": GROUP}

    return judge_count(ROW_SUMS, source, count_lines, most=2, launch=launch)


@exercise(
    "02.2", hint="never more than a line to read, and 8 bytes to write: fetched, and written back"
)
def judge_bytes(
    bytes_a_number: Callable[[int, int], Any], slower: Mapping[int, float]
) -> bool | Right:
    """Ask for strides on both sides of a line, then put in what was measured on the page."""
    for line in (64, 128, 32):
        for stride in (2, 8, 16, 24, 32, 100):
            got = bytes_a_number(stride, line)
            wanted = _count_bytes(stride, line)
            expect(f"bytes_a_number({stride}, {line})", got, wanted, holds=is_near(got, wanted))
    return Right(compare_lines(slower))


def compare_lines(slower: Mapping[int, float]) -> str:
    """Say which length of a line explains the last point of a strided copy, if either does.

    Parameters
    ----------
    slower
        How many times as long as one of them the copies took, by the stride; `BASE` and a larger one are among them.

    Returns
    -------
    str
        An explanation to think about, and no proof.
    """
    stride = max(slower)
    measured = slower[stride] / slower[BASE]
    expected = {line: _count_bytes(stride, line) / _count_bytes(BASE, line) for line in LINES}
    told = f"Stride {stride} should take {expected[64]:.3g} times as long as stride {BASE} with lines of 64 bytes, "
    told += f"and {expected[128]:.3g} times with 128; measured {measured:.3g} times."

    close = [line for line, times in expected.items() if abs(measured / times - 1) <= CLOSE]
    limit = f"{100 * CLOSE:.0f} %"
    if not close:
        return f"{told} Neither comes within {limit}: something else counts for more here."
    if len(close) == len(LINES):
        return f"{told} Both come within {limit}, so this point does not tell which it is."
    return f"{told} Lines of {close[0]} bytes alone come within {limit}."


def _count_bytes(stride: int, line: int) -> int:
    """Return what a strided copy moves for each number of 4 bytes: its line is fetched before it is written back."""
    return min(4 * stride, line) + 8
