"""The exercises of page 02."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from metallab import isolated
from metallab.exercises.counting import count_lines, judge_count
from metallab.exercises.judging import Right, exercise, expect, expect_that, is_near
from metallab.pytorch import puzzles

GROUP = 32
"""Threads of a threadgroup: one SIMD-group."""

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


@exercise("02.2", hint="never more than a line to read, and 4 bytes to write")
def judge_bytes(
    bytes_a_number: Callable[[int, int], Any], slower: Mapping[int, float]
) -> bool | Right:
    """Ask for strides on both sides of a line, then put in what was measured on the page."""
    for line in (64, 128, 32):
        for stride in (1, 2, 8, 16, 24, 32, 100):
            got = bytes_a_number(stride, line)
            wanted = min(4 * stride, line) + 4
            expect(f"bytes_a_number({stride}, {line})", got, wanted, holds=is_near(got, wanted))
    return Right(compare_lines(slower))


def compare_lines(slower: Mapping[int, float]) -> str:
    """Say which length of a line comes nearest to the last point of a strided copy.

    Parameters
    ----------
    slower
        How many times as long as stride 1 a copy took, by the stride.

    Returns
    -------
    str
        An explanation to think about, and no proof.
    """
    stride = max(slower)
    expected = {line: (min(4 * stride, line) + 4) / 8 for line in (64, 128)}
    told = ", ".join(f"{times:.3g} times with lines of {line}" for line, times in expected.items())

    nearest = min(expected, key=lambda line: abs(expected[line] - slower[stride]))
    return (
        f"At stride {stride}: {told} bytes; measured {slower[stride]:.3g} times, "
        f"nearest to lines of {nearest} bytes."
    )
