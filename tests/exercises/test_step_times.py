"""A model of step times is checked at other batches, on a planted machine: 3 ms, and 0.25 ms for each row."""

from __future__ import annotations

import pytest

from metallab.exercises.judging import Open, Right
from metallab.exercises.step_times import judge_largest, judge_model

BATCHES = (2, 8, 16, 64)


def measure(batch):
    return 0.003 + 0.00025 * batch


@pytest.mark.parametrize(
    ("seconds", "kind", "words"),
    [
        pytest.param(lambda b: 0.003 + 0.00026 * b, Right, "batch 64", id="a-line"),
        pytest.param(
            lambda b: 0.003 + 0.00025 * b + (b == 64), Right, "batch 64", id="one-may-be-off"
        ),
        pytest.param(lambda b: 0.00325 * b, Open, "too long", id="proportional"),
        pytest.param(lambda b: 0.00325, Open, "too short", id="the-same-for-all"),
    ],
)
def test_a_model_is_right_or_open_and_the_direction_is_said(seconds, kind, words):
    judged = judge_model(seconds, measure, batches=BATCHES)
    assert isinstance(judged, kind)
    assert words in judged.sentence


@pytest.mark.parametrize("value", [None, 0, -1.0, "3 ms", float("inf")])
def test_a_model_that_returns_no_time_is_wrong(value):
    with pytest.raises(AssertionError, match=r"seconds\(2\) returned"):
        judge_model(lambda batch: value, measure, batches=BATCHES)


@pytest.mark.parametrize(
    ("batch", "kind", "words"),
    [
        pytest.param(28, Right, "batch 56", id="the-largest"),
        pytest.param(20, Right, "batch 40", id="twice-is-too-much"),
        pytest.param(4, Open, "a larger batch fits", id="too-small"),
        pytest.param(64, Open, "over the limit", id="too-large"),
    ],
)
def test_the_largest_batch_within_a_limit(batch, kind, words):
    judged = judge_largest(batch, measure, limit=0.010)
    assert isinstance(judged, kind)
    assert words in judged.sentence


@pytest.mark.parametrize("batch", [0, 2.5, None, True])
def test_what_is_no_batch_is_wrong(batch):
    with pytest.raises(AssertionError, match="whole number"):
        judge_largest(batch, measure, limit=0.010)
