"""The exercises of page 02."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

FULL = 16
"""The stride from which on each number has a line of 64 bytes for itself."""

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
    """Run the kernel at several sizes, and count the lines of 128 bytes that its reads touch.

    The answer is the kernel's source, and how many threads it wants for each row. Its sums have to be right, and the 32
    threads of a SIMD-group may touch 2 lines in a read, on average: 1 where they read neighbours, 32 where each reads
    in a row of its own. Nothing is counted, and the exercise skipped, on a real GPU.
    """
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
    "02.2", hint="never more than a line to read, and behind it the rest, whatever the stride is"
)
def judge_bytes(
    bytes_a_number: Callable[[int, int, float], Any], slower: Mapping[int, float]
) -> bool | Right:
    """Ask for strides on both sides of a line, then put in what was measured on the page."""
    for line in (64, 128, 32):
        for stride in (2, 8, 16, 24, 32, 100):
            for rest in (8, 2.5):
                got = bytes_a_number(stride, line, rest)
                wanted = _count_bytes(stride, line, rest)
                asked = f"bytes_a_number({stride}, {line}, {rest})"
                expect(asked, got, wanted, holds=is_near(got, wanted))
    return Right(compare_lines(slower))


def compare_lines(slower: Mapping[int, float]) -> str:
    """Say which length of a line explains the last points of a strided copy, if any does.

    What a number costs besides its read is not known beforehand: a write may cost its bytes, twice these, or nearly
    nothing where the result stays in a cache. It is found from `BASE` and `FULL`, the points between test it, and those
    behind `FULL` tell lines apart.

    Parameters
    ----------
    slower
        How many times as long as one of them the copies took, by the stride; `BASE`, `FULL` and others between and
        behind them are among them.

    Returns
    -------
    str
        An explanation to think about, and no proof.
    """
    measured = {stride: times / slower[BASE] for stride, times in slower.items() if stride >= BASE}
    # The bytes of a number grow eightfold from `BASE` to `FULL`; a time that does not grow says nothing of them, and
    # could not be divided by below.
    if measured[FULL] <= 1:
        return f"Stride {FULL} took no longer than stride {BASE}: here nothing waited for memory, so lines do not show."

    rest = _find_rest(measured[FULL])
    told = f"Besides its read a number costs as much as reading {rest:.3g} bytes."
    limit = f"{100 * CLOSE:.0f} %"
    before = [stride for stride in measured if stride <= FULL]
    # up to `FULL` a number costs the same with lines of either length, so the first of them stands for both
    if not _explains(LINES[0], rest, measured, before):
        return (
            f"{told} With that the times up to stride {FULL} do not follow the bytes within {limit}: something else "
            "counts for more here, and what comes behind says nothing of lines."
        )

    behind = [stride for stride in measured if stride > FULL]
    strides = " and ".join(str(stride) for stride in behind)
    close = [line for line in LINES if _explains(line, rest, measured, behind)]
    if not close:
        return (
            f"{told} Neither lines of 64 bytes nor of 128 come within {limit} at strides {strides}."
        )
    if len(close) == len(LINES):
        return f"{told} Both lengths come within {limit} at strides {strides}, so these points do not tell which it is."
    return f"{told} Lines of {close[0]} bytes alone come within {limit} at strides {strides}."


def _find_rest(slower_at_full: float) -> float:
    """Return what a number costs besides its read, in bytes read meanwhile, from the time at `FULL` over `BASE`'s."""
    rest = (4 * FULL - slower_at_full * 4 * BASE) / (slower_at_full - 1)
    # below 0 it would be nonsense: `FULL` takes longer than its bytes explain, and the caller says so
    return max(rest, 0.0)


def _explains(
    line: int, rest: float, measured: Mapping[int, float], strides: Sequence[int]
) -> bool:
    base = _count_bytes(BASE, line, rest)
    expected = {stride: _count_bytes(stride, line, rest) / base for stride in strides}
    return all(abs(measured[stride] / expected[stride] - 1) <= CLOSE for stride in strides)


def _count_bytes(stride: int, line: int, rest: float) -> float:
    """Return what a strided copy pays for each number of 4 bytes: what it reads of lines, and the rest."""
    return min(4 * stride, line) + rest
