"""Open exercises on a planted machine: what is right, what is wrong, and what stays open."""

from __future__ import annotations

import sys

import pytest
import torch

from metallab.isolated import Skipped
from metallab.pytorch import exercise_02, exercise_13, predictions

SECONDS = {"slow": 40e-3, "quick": 5e-3, "half": 9e-3, "useless": 35e-3}


def explain(predicted, without="quick", is_same=lambda one, other: True):
    """Ask about a call that takes 40 ms here, without anything being timed."""
    names = iter(["slow", without])
    return predictions.explain(
        predicted,
        call=lambda: None,
        without=None if without is None else lambda: None,
        is_same=is_same,
        measure=lambda _: SECONDS[next(names)],
    )


@pytest.mark.parametrize(
    ("predicted", "without", "is_right"),
    [
        pytest.param(30e-3, None, True, id="the prediction holds"),
        pytest.param(70e-3, None, True, id="and in the other direction"),
        pytest.param(5e-3, "quick", True, id="explained"),
        pytest.param(5e-3, "half", True, id="half of the gap is closed"),
        pytest.param(5e-3, "useless", False, id="not the cause"),
        pytest.param(5e-3, None, False, id="nothing was tried"),
    ],
)
def test_an_open_answer_is_right_or_open_and_never_wrong(predicted, without, is_right):
    judged = predictions.judge(explain(predicted, without))
    assert (judged is True) == is_right
    assert judged is True or isinstance(judged, Skipped)


@pytest.mark.parametrize("predicted", [None, -1.0, 0, float("nan"), float("inf"), True, "5 ms"])
def test_what_is_no_number_of_seconds_is_wrong(predicted):
    with pytest.raises(AssertionError, match="number of seconds above 0"):
        explain(predicted)


def test_an_experiment_that_computes_something_else_is_wrong():
    with pytest.raises(AssertionError, match="something else"):
        explain(5e-3, is_same=lambda one, other: False)


def test_two_rates_are_judged_at_the_edge_of_the_cache():
    def right(moved, overhead, cached, uncached, cache):
        return overhead + moved / (cached if moved <= cache else uncached)

    def without_overhead(moved, overhead, cached, uncached, cache):
        return right(moved, 0.0, cached, uncached, cache)

    def in_parts(moved, overhead, cached, uncached, cache):
        return overhead + min(moved, cache) / cached + max(0.0, moved - cache) / uncached

    assert exercise_13.judge_two_rates(right)
    for wrong in (without_overhead, in_parts, lambda *_: None):
        with pytest.raises(AssertionError, match="should take"):
            exercise_13.judge_two_rates(wrong)


@pytest.mark.parametrize(("gpu_rate", "size"), [(2e9, 1024), (0.5e9, None)])
def test_a_crossover_is_the_first_power_of_two_that_wins(gpu_rate, size):
    """The GPU starts 2 µs later, and gains half a nanosecond a byte of 4 a number."""
    found = exercise_13.find_crossover(
        lambda moved: moved / 1e9, lambda moved: 2e-6 + moved / gpu_rate, 4
    )
    assert found == size


def test_bytes_of_a_strided_copy_come_in_whole_lines():
    assert exercise_02.judge_bytes(lambda stride, line: min(4 * stride, line) + 4)
    for wrong in (
        lambda stride, line: 4 * stride + 4,
        lambda stride, line: line + 4,
        lambda stride, line: min(4 * stride, line),
    ):
        with pytest.raises(AssertionError, match="should be"):
            exercise_02.judge_bytes(wrong)


def test_the_nearest_line_is_named():
    assert "nearest to lines of 128 bytes" in exercise_02.compare_lines({1: 1.0, 32: 15.0})


SIMD_SUM = """kernel void row_sums(device float* out, device const float* a, constant long& n,
    uint r [[threadgroup_position_in_grid]], uint l [[thread_index_in_simdgroup]]) {
    float sum = 0; for (long k = l; k < n; k += 32) sum += a[r * n + k];
    sum = simd_sum(sum); if (l == 0) out[r] = sum; }"""
A_THREAD_A_ROW = """kernel void row_sums(device float* out, device const float* a, constant long& n,
    uint i [[thread_position_in_grid]]) {
    float sum = 0; for (long k = 0; k < n; k++) sum += a[i * n + k]; out[i] = sum; }"""


@pytest.mark.skipif(sys.platform == "darwin", reason="only the simulated GPU counts lines")
def test_a_kernel_that_reads_neighbours_is_right():
    assert exercise_02.judge_row_sums((SIMD_SUM, 32)) is True


@pytest.mark.skipif(sys.platform == "darwin", reason="only the simulated GPU counts lines")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param((A_THREAD_A_ROW, 1), "touches 32 lines", id="too many lines"),
        pytest.param((SIMD_SUM.replace("r * n + k", "k"), 32), "should be", id="wrong sums"),
        pytest.param((SIMD_SUM.replace("row_sums", "sums"), 32), "no kernel", id="another name"),
        pytest.param(("kernel void", 32), "does not compile", id="no program"),
        pytest.param(None, "return the source code", id="nothing"),
    ],
)
def test_a_kernel_that_is_wrong_is_told_why(answer, words):
    with pytest.raises(AssertionError, match=words):
        exercise_02.judge_row_sums(answer)


def test_a_relu_of_a_simulated_device_is_not_judged():
    class Simulated:
        class on:
            simulated = True

    explanation = predictions.Explanation(1.0, 1.0, None)
    assert isinstance(exercise_13.judge_relu(explanation, Simulated), Skipped)


def test_a_relu_that_was_not_predicted_is_not_attempted():
    class Bench:
        machine = None

    z = torch.ones(4)
    open_answer = lambda *_: ...
    assert exercise_13.predict_relu(open_answer, open_answer, Bench, z) is ...
