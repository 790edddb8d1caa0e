"""Intervals, bad questions and what a measurement prints; the rules of measuring are in test_timing_rules.py."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from metallab import timing
from metallab.timing.outputs import describe_check


@pytest.mark.parametrize("n", [6, 7, 20, 100, 1999])
def test_median_interval_has_the_promised_probability(n):
    """Against SciPy's binomial distribution: at least 95 %, and one step narrower is less."""
    from scipy.stats import binom

    low, high = timing.median_interval(range(1, n + 1))
    assert low + high == n + 1
    assert 1 - 2 * binom.cdf(low - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(low, n, 0.5) < 0.95


def test_samples_are_thinned_evenly():
    """And looked at from time to time: at most 100 readings of the clock besides two of each call."""
    readings, calls = itertools.count(), []
    clock = lambda: 1000 * next(readings)
    budget = timing.Budget(min_samples=9000, min_seconds=0.0, warmup_seconds=0.0)
    got = timing.measure(lambda: calls.append(1), on=timing.Host(), clock=clock, budget=budget)
    assert 2000 <= got.n <= 4000
    assert next(readings) - 2 * len(calls) < 100


def test_bad_questions_and_baselines_say_what_to_do():
    with pytest.raises(ValueError, match="'latency' or 'throughput'"):
        timing.measure(lambda: None, on=timing.Host(), question="speed")
    with pytest.raises(KeyError, match="not among the variants"):
        timing.compare(
            {"a": lambda: 1}, on=timing.Host(), baseline="b", parity=timing.Unchecked("-")
        )
    with pytest.raises(KeyError, match="no parity is given for b, c"):
        timing.compare(
            dict.fromkeys("abcd", lambda: 1), on=timing.Host(), baseline="a", parity={"d": print}
        )
    places = {"a": timing.Host()}
    with pytest.raises(KeyError, match="no device is given for b"):
        timing.compare(
            dict.fromkeys("ab", int), on=places, baseline="a", parity=timing.Unchecked("-")
        )


def test_a_stopped_clock_is_noticed():
    with pytest.raises(RuntimeError, match="is the clock running"):
        timing.measure(
            lambda: None,
            on=timing.Host(),
            question="throughput",
            clock=lambda: 0,
            budget=timing.FAST,
        )


def test_slower_is_said_in_times_as_long_with_its_interval():
    sentence = str(timing.Ratio("a", "b", median=0.5, low=0.4, high=0.8, n=24))
    assert sentence == "a takes 2.00 times as long as b (95 % interval 1.25 to 2.50, 24 pairs)"


def test_too_few_pairs_say_what_they_showed():
    for pairs, words in (
        (
            (0.05, 0.055, 0.045, 0.05, 0.05),
            "5 pairs, 0.045 to 0.055 times as fast: too few for a 95 % interval",
        ),
        ((0.9, 1.2), "2 pairs, 0.90 to 1.20 times as fast: too few for a 95 % interval"),
        ((4.0,), "1 pair, 4.00 times as fast: too few for a 95 % interval"),
    ):
        ratio = timing.Ratio(
            "a", "b", float(np.median(pairs)), *timing.median_interval(pairs), len(pairs), pairs
        )
        assert str(ratio).startswith(f"a against b: {words}")
        assert (ratio.low, ratio.high, ratio.verdict) == (0.0, math.inf, "inconclusive")


def test_inconclusive_says_what_it_leaves_open():
    for low, high, left in (
        (0.9, 1.2, "it may be slower or faster"),
        (1.0, 1.2, "it may be faster, or as fast within 1%"),
        (0.8, 1.0, "it may be slower, or as fast within 1%"),
        (1 / 1.01, 1.2, "it may be faster, or as fast within 1%"),
    ):
        assert f"inconclusive, {left} (1.00 times as fast, " in str(
            timing.Ratio("a", "b", 1.0, low, high, 20)
        )


def test_a_check_without_a_name_is_a_function_of_yours():
    assert describe_check(functools.partial(len)) == "outputs checked by a function of yours"
    assert describe_check(len) == "outputs checked by len"


def planted(name: str, *samples: float, **more) -> timing.Measurement:
    made = {
        "question": "latency",
        "first_call": 1.0,
        "block": 1,
        "warmup_calls": 1,
        "stop_reason": "quiet",
    }
    made |= {"mode": "full", "device": "x", "simulated": False}
    return timing.Measurement(name, samples=samples, **made | more)


def taken_elsewhere(a: timing.Measurement, b: timing.Measurement) -> timing.Comparison:
    return timing.compare_samples(
        {"a": a, "b": b}, baseline="a", name="film", parity="compared before"
    )


def test_samples_taken_elsewhere_have_the_same_rule():
    twos, ones = (2.0,) * 8, (1.0,) * 8
    assert taken_elsewhere(planted("a", *twos), planted("b", *ones)).ratios["b"].verdict == "faster"
    assert not taken_elsewhere(planted("a", *twos), planted("b", *ones, others=1.0)).ratios
    assert not taken_elsewhere(planted("a", *twos, simulated=True), planted("b", *ones)).paired
    with pytest.raises(ValueError, match="as many as a, 8"):
        taken_elsewhere(planted("a", *twos), planted("b", 1.0))


def test_what_was_measured_cannot_be_changed():
    made = taken_elsewhere(planted("a", *[2.0] * 8), planted("b", *[1.0] * 8))
    about = made["a"], made.ratios["b"], made.answers["b"], timing.Size(1), timing.Unchecked("-")
    for one in (made, *about, timing.FULL, timing.Host()):
        with pytest.raises(AttributeError):
            setattr(one, dataclasses.fields(one)[0].name, "another")


def test_a_sure_ratio_of_unreliable_times_is_explained():
    swings = [1.0, 1.6, 1.1, 1.9, 1.0, 1.7, 1.2, 2.0]
    a, b = planted("a", *(2 * time for time in swings)), planted("b", *swings)
    restless = str(taken_elsewhere(a, b))
    assert "unreliable" in restless
    assert "b is 2.00 times as fast as a (95 % interval 2.00 to 2.00, 8 pairs)" in restless
    assert "vary together" in restless
    assert "vary together" not in str(taken_elsewhere(a, dataclasses.replace(b, others=1.0))), (
        "nothing to explain"
    )
    assert "vary" not in str(taken_elsewhere(planted("a", *[2.0] * 8), planted("b", *[1.0] * 8)))


@pytest.mark.parametrize(
    "time_it",
    [
        pytest.param(
            lambda call: timing.measure(call, on=timing.Host(), dtype="float13"), id="measure"
        ),
        pytest.param(
            lambda call: timing.compare(
                {"a": call, "b": call},
                on=timing.Host(),
                baseline="a",
                parity=timing.Unchecked("the same function twice"),
                dtype={"a": "float32", "b": "float13"},
            ),
            id="compare",
        ),
    ],
)
def test_an_unknown_dtype_is_refused_before_anything_is_called(time_it):
    calls = []
    with pytest.raises(ValueError, match="float13"):
        time_it(lambda: calls.append(1))
    assert calls == []
