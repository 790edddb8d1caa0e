"""A guess comes before the measurement, and an explanation is an experiment; all on a planted machine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from metallab import checks, timing
from metallab.exercises import explain, predict, predictions, reveal

X = np.arange(4.0)
CAUSE = "each call asks for new memory"


def slow():
    """The call: 40 ms on the planted machine."""
    return X * 2


def quick():
    """The same without the cause: 5 ms there."""
    return np.multiply(X, 2)


def partly():
    """The same, with another cause taken away, which does not count: 38 ms."""
    return X + X


TIMES = {slow: 0.040, quick: 0.005, partly: 0.038}


def measure(call):
    """The planted machine."""
    return TIMES.get(call, 0.005), call()


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(predictions, "_PREDICTIONS", {})


@pytest.fixture
def missed():
    """A guess of 5 ms, and 40 ms measured."""
    predict("97.1", seconds=0.005)
    return reveal("97.1", slow, measure=measure)


def test_a_guess_is_kept_and_open():
    assert predict("97.1", seconds=0.005).outcome == "open"


def test_a_guess_may_change_until_it_is_measured():
    predict("97.1", seconds=0.005)
    predict("97.1", seconds=0.05)
    assert reveal("97.1", slow, measure=measure).outcome == "right"


@pytest.mark.parametrize("guess", [0, -1.0, "soon", None, float("nan"), True])
def test_what_is_no_number_above_0_is_wrong(guess):
    with pytest.raises(checks.WrongAnswer, match="a number above 0"):
        predict("97.1", seconds=guess)


def test_a_stub_is_not_attempted():
    assert predict("97.1", seconds=...).outcome == "not attempted"
    assert reveal("97.1", slow, measure=measure).outcome == "not attempted"
    assert explain("97.1", ..., ...).outcome == "not attempted"


def test_a_second_guess_after_the_measurement_is_refused(missed):
    with pytest.raises(checks.WrongAnswer, match=r"0\.005, stays"):
        predict("97.1", seconds=0.04)
    assert predict("97.1", seconds=0.005).outcome == "open"


@pytest.mark.parametrize(
    ("guess", "way"), [pytest.param(0.005, "more", id="more"), pytest.param(0.4, "less", id="less")]
)
def test_the_direction_is_said(guess, way):
    predict("97.1", seconds=guess)
    judged = reveal("97.1", slow, measure=measure)
    assert judged.outcome == "open"
    assert f"times {way}" in judged


def test_a_prediction_that_holds_ends_the_exercise():
    predict("97.1", seconds=0.03)
    assert reveal("97.1", slow, measure=measure).outcome == "right"
    assert explain("97.1", ..., ...).outcome == "right"


def test_an_experiment_that_closes_the_gap_is_right(missed):
    judged = explain("97.1", CAUSE, quick)
    assert judged.outcome == "right"
    assert CAUSE in judged
    assert "1.00 times" in judged
    assert "8.00 times" in judged


def test_an_experiment_that_leaves_the_gap_is_open(missed):
    assert explain("97.1", CAUSE, partly).outcome == "open"


def test_a_changed_computation_is_refused(missed):
    with pytest.raises(checks.WrongAnswer, match="something else"):
        explain("97.1", CAUSE, lambda: X[:2] * 2)


def test_an_experiment_without_a_sentence_is_refused(missed):
    with pytest.raises(checks.WrongAnswer, match="'memory'"):
        explain("97.1", "memory", quick)


def test_one_prediction_has_one_unit():
    with pytest.raises(TypeError, match="one number"):
        predict("97.1", seconds=1.0, bytes=3)


def test_a_time_of_the_simulated_gpu_is_not_taken(monkeypatch):
    measured = SimpleNamespace(median=1.0, simulated=True)
    monkeypatch.setattr(timing, "measure", lambda *_, **__: measured)
    with pytest.raises(ValueError, match="simulated"):
        predictions.time_on(timing.Host())(slow)


def test_a_call_is_timed_on_a_device_that_is_here(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    seconds, result = predictions.time_on(timing.Host())(slow)
    assert seconds > 0
    assert np.array_equal(result, X * 2)


@pytest.mark.parametrize(
    ("guess", "instead", "outcome"),
    [
        pytest.param(0.03, None, "right", id="it holds"),
        pytest.param(0.005, None, "open", id="nothing was tried"),
        pytest.param(0.005, quick, "right", id="explained"),
        pytest.param(0.005, partly, "open", id="another cause"),
    ],
)
def test_a_formula_is_judged_in_one(guess, instead, outcome):
    judged = predictions.judge_formula(
        "97.1", guess, slow, because=CAUSE, instead=instead, measure=measure
    )
    assert judged.outcome == outcome


def test_a_formula_may_be_put_in_again_with_newer_numbers():
    for guess in (0.005, 0.006):
        judged = predictions.judge_formula(
            "97.1", guess, slow, because=..., instead=None, measure=measure
        )
    assert "predicted 0.006" in judged
