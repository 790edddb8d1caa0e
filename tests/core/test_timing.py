"""Intervals, bad questions and what a measurement prints; the rules of measuring are in test_timing_rules.py."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from measurements import make_measurement

from metallab import timing
from metallab.timing import stopping
from metallab.timing.outputs import describe_check


@pytest.mark.parametrize("n", [6, 7, 20, 100, 1999])
def test_median_interval_has_the_promised_probability(n):
    """Against SciPy's binomial distribution: at least 95 %, and one step narrower is less."""
    from scipy.stats import binom

    low, high = timing.median_interval(range(1, n + 1))
    assert low + high == n + 1
    assert 1 - 2 * binom.cdf(low - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(low, n, 0.5) < 0.95


MICROSECOND = 1000
"""Nanoseconds."""


def test_samples_are_thinned_evenly():
    clock = functools.partial(next, itertools.count(step=MICROSECOND))
    budget = timing.Budget(min_samples=9000, min_seconds=0.0, warmup_seconds=0.0)
    got = timing.measure(lambda: None, on=timing.Host(), clock=clock, budget=budget)
    assert 2000 <= got.n <= 4000


def test_the_noise_of_many_samples_is_computed_from_time_to_time(monkeypatch):
    """Not for each: after a number of samples it is computed again when there are a fifth more."""
    computed = []

    def noise(samples):
        computed.append(len(samples))
        return 2.0 ** len(computed)  # neither quiet nor stable

    monkeypatch.setattr(stopping, "noise", noise)
    clock = functools.partial(next, itertools.count(step=MICROSECOND))  # each reading takes one
    budget = timing.Budget(min_samples=10, min_seconds=0.0, max_seconds=0.03, warmup_seconds=0.0)
    got = timing.measure(lambda: None, on=timing.Host(), clock=clock, budget=budget)
    assert got.stop_reason == "time limit"
    assert got.n >= 2000
    assert len(computed) < 200


def test_a_question_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="'latency' or 'throughput'"):
        timing.measure(lambda: None, on=timing.Host(), question="speed")


UNCHECKED = timing.Unchecked("-")


def test_a_baseline_that_is_no_variant_is_refused():
    with pytest.raises(KeyError, match="not among the variants"):
        timing.compare({"a": int}, on=timing.Host(), baseline="b", parity=UNCHECKED)


def test_variants_without_a_check_of_their_outputs_are_named():
    variants = dict.fromkeys("abcd", int)
    with pytest.raises(KeyError, match="no parity is given for b, c"):
        timing.compare(variants, on=timing.Host(), baseline="a", parity={"d": print})


def test_a_variant_without_a_device_is_named():
    variants = dict.fromkeys("ab", int)
    with pytest.raises(KeyError, match="no device is given for b"):
        timing.compare(variants, on={"a": timing.Host()}, baseline="a", parity=UNCHECKED)


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


FEW = {
    "5 pairs, 0.045 to 0.055 times as fast": (0.05, 0.055, 0.045, 0.05, 0.05),
    "2 pairs, 0.90 to 1.20 times as fast": (0.9, 1.2),
    "1 pair, 4.00 times as fast": (4.0,),
}


@pytest.mark.parametrize(("words", "pairs"), FEW.items(), ids=["five", "two", "one"])
def test_too_few_pairs_say_what_they_showed(words, pairs):
    low, high = timing.median_interval(pairs)
    ratio = timing.Ratio("a", "b", float(np.median(pairs)), low, high, len(pairs), pairs)
    assert str(ratio).startswith(f"a against b: {words}: too few for a 95 % interval")


@pytest.mark.parametrize("pairs", FEW.values(), ids=["five", "two", "one"])
def test_too_few_pairs_have_an_endless_interval_and_no_verdict(pairs):
    low, high = timing.median_interval(pairs)
    ratio = timing.Ratio("a", "b", float(np.median(pairs)), low, high, len(pairs), pairs)
    assert ratio.low == 0.0
    assert ratio.high == math.inf
    assert ratio.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("low", "high", "left"),
    [
        pytest.param(0.9, 1.2, "it may be slower or faster", id="both"),
        pytest.param(1.0, 1.2, "it may be faster, or as fast within 1%", id="faster or same"),
        pytest.param(0.8, 1.0, "it may be slower, or as fast within 1%", id="slower or same"),
        pytest.param(1 / 1.01, 1.2, "it may be faster, or as fast within 1%", id="hardly slower"),
    ],
)
def test_inconclusive_says_what_it_leaves_open(low, high, left):
    ratio = timing.Ratio("a", "b", 1.0, low, high, 20)
    assert f"inconclusive, {left} (1.00 times as fast, " in str(ratio)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        pytest.param(len, "outputs checked by len", id="a function"),
        pytest.param(
            functools.partial(len), "outputs checked by a function of yours", id="no name"
        ),
    ],
)
def test_a_check_is_called_by_its_name_or_a_function_of_yours(check, words):
    assert describe_check(check) == words


def taken_elsewhere(a: timing.Measurement, b: timing.Measurement) -> timing.Comparison:
    return timing.compare_samples(
        {"a": a, "b": b}, baseline="a", name="film", parity="compared before"
    )


TWOS = make_measurement("a", [2.0] * 8)
ONES = make_measurement("b", [1.0] * 8)


def test_samples_taken_elsewhere_are_compared_by_the_same_rule():
    assert taken_elsewhere(TWOS, ONES).ratios["b"].verdict == "faster"


def test_samples_of_a_busy_machine_elsewhere_give_no_speed_up():
    assert not taken_elsewhere(TWOS, dataclasses.replace(ONES, others=1.0)).ratios


def test_samples_of_a_simulated_device_elsewhere_are_not_compared():
    assert not taken_elsewhere(dataclasses.replace(TWOS, simulated=True), ONES).paired


def test_samples_taken_elsewhere_must_be_as_many():
    with pytest.raises(ValueError, match="as many as a, 8"):
        taken_elsewhere(TWOS, make_measurement("b", [1.0]))


MADE = taken_elsewhere(TWOS, ONES)
RESULTS = [MADE, MADE["a"], MADE.ratios["b"], MADE.answers["b"]]
SETTINGS = [timing.Size(1), UNCHECKED, timing.FULL, timing.Host()]


@pytest.mark.parametrize("given", [*RESULTS, *SETTINGS], ids=lambda given: type(given).__name__)
def test_what_was_measured_and_how_cannot_be_changed(given):
    first_field, *_ = dataclasses.fields(given)
    with pytest.raises(AttributeError):
        setattr(given, first_field.name, "another")


SWINGS = [1.0, 1.6, 1.1, 1.9, 1.0, 1.7, 1.2, 2.0]
RESTLESS_A = make_measurement("a", (2 * time for time in SWINGS))
RESTLESS_B = make_measurement("b", SWINGS)


def test_a_sure_ratio_of_unreliable_times_is_explained():
    restless = str(taken_elsewhere(RESTLESS_A, RESTLESS_B))
    assert "unreliable" in restless
    assert "b is 2.00 times as fast as a (95 % interval 2.00 to 2.00, 8 pairs)" in restless
    assert "vary together" in restless


def test_where_no_ratio_is_given_none_is_explained():
    busy = dataclasses.replace(RESTLESS_B, others=1.0)
    assert "vary together" not in str(taken_elsewhere(RESTLESS_A, busy))


def test_a_ratio_of_steady_times_needs_no_explanation():
    assert "vary" not in str(taken_elsewhere(TWOS, ONES))


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
