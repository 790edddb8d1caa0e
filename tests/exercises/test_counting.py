"""Any kernel is accepted that is right and reads few lines of memory; the simulated GPU counts them."""

from __future__ import annotations

import sys

import pytest
import torch

from metallab import isolated
from metallab.exercises import counting
from metallab.exercises.counting import count_lines, judge_count
from metallab.exercises.judging import NotAttempted, Right
from metallab.pytorch import puzzles

ON_LINUX = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac's GPU counts nothing")

A_THREAD_A_ROW = """
kernel void row_sums(device float* out, device const float* a, constant long& n,
                     uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (long k = 0; k < n; k++) sum += a[i * n + k];
  out[i] = sum;
}"""
A_GROUP_A_ROW = """
kernel void row_sums(device float* out, device const float* a, constant long& n,
                     uint row [[threadgroup_position_in_grid]],
                     uint lane [[thread_index_in_simdgroup]]) {
  float sum = 0;
  for (long k = lane; k < n; k += 32) sum += a[row * n + k];
  sum = simd_sum(sum);
  if (lane == 0) out[row] = sum;
}"""


def one_thread(n):
    return {"threads": n, "group_size": 32}


def one_group(n):
    return {"threads": 32 * n, "group_size": 32}


ROW_SUMS = puzzles.Puzzle(
    "row_sums",
    reference=lambda a: a.sum(1),
    inputs=lambda n: [torch.randn(n, n, generator=torch.Generator().manual_seed(n))],
    sizes=[(32,), (64,)],
    numbers=lambda n: [n],
    launch=one_thread,
    tolerance=1e-4,
)


@ON_LINUX
def test_a_kernel_that_reads_side_by_side_is_right():
    judged = judge_count(ROW_SUMS, A_GROUP_A_ROW, count_lines, most=2, launch=one_group)
    assert isinstance(judged, Right)
    assert judged.sentence.endswith(": 1.")


@ON_LINUX
def test_a_kernel_that_reads_far_apart_is_refused_with_its_count():
    with pytest.raises(AssertionError, match="counted 32, expected at most 2"):
        judge_count(ROW_SUMS, A_THREAD_A_ROW, count_lines, most=2)


@ON_LINUX
@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(A_THREAD_A_ROW.replace("i * n + k", "k * n + i"), "32", id="other-results"),
        pytest.param(A_THREAD_A_ROW.replace("float sum = 0;", ""), "compile", id="no-program"),
        pytest.param(7, "int", id="no-text"),
    ],
)
def test_a_wrong_kernel_is_refused_before_it_is_counted(source, said):
    with pytest.raises(AssertionError, match=said):
        judge_count(ROW_SUMS, source, count_lines, most=100)


@pytest.mark.parametrize("source", [..., "kernel void row_sums() { // your code here }"])
def test_a_stub_is_not_attempted(source):
    with pytest.raises(NotAttempted):
        judge_count(ROW_SUMS, source, count_lines, most=2)


def test_a_real_gpu_counts_nothing(monkeypatch):
    monkeypatch.setattr(counting, "kernel_is_simulated", lambda: False)
    judged = judge_count(ROW_SUMS, A_GROUP_A_ROW, count_lines, most=2)
    assert isinstance(judged, isolated.Skipped)
