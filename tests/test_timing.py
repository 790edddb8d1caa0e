"""Intervals, bad questions and what a measurement prints; the rules of measuring are in test_timing_rules.py."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest

from metallab import timing


@pytest.mark.parametrize("n", [6, 7, 20, 100, 1999])
def test_median_interval_has_the_promised_probability(n):
    """Against SciPy's binomial distribution: at least 95 %, and one step narrower is less."""
    from scipy.stats import binom

    low, high = timing.median_interval(range(1, n + 1))
    assert low + high == n + 1
    assert 1 - 2 * binom.cdf(low - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(low, n, 0.5) < 0.95


def test_too_few_values_have_no_interval():
    assert timing.median_interval([1.0] * 5) == (0.0, math.inf)


def test_samples_are_thinned_evenly():
    clock_ns = [0]

    def clock():
        clock_ns[0] += 1000
        return clock_ns[0]

    got = timing.measure(lambda: None, on=timing.Host(), clock=clock, budget=timing.Budget(min_samples=9000))
    assert timing.KEEP <= got.n <= 2 * timing.KEEP


def test_bad_questions_and_baselines_say_what_to_do():
    with pytest.raises(ValueError, match="'latency' or 'throughput'"):
        timing.measure(lambda: None, on=timing.Host(), question="speed")
    with pytest.raises(KeyError, match="not among the variants"):
        timing.compare({"a": lambda: 1}, on=timing.Host(), baseline="b", parity=timing.Unchecked("-"))
    with pytest.raises(KeyError, match="no parity is given for b, c"):
        timing.compare(dict.fromkeys("abcd", lambda: 1), on=timing.Host(), baseline="a", parity={"d": print})
    places = {"a": timing.Host()}
    with pytest.raises(KeyError, match="no device is given for b"):
        timing.compare(dict.fromkeys("ab", int), on=places, baseline="a", parity=timing.Unchecked("-"))


def test_errors_of_the_function_come_through_and_the_collector_is_back():
    import gc

    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        timing.measure(broken, on=timing.Host())
    assert gc.isenabled()


def test_a_stopped_clock_is_noticed():
    with pytest.raises(RuntimeError, match="is the clock running"):
        timing.measure(lambda: None, on=timing.Host(), question="throughput", clock=lambda: 0, budget=timing.FAST)


def test_slower_is_said_in_times_as_long_with_its_interval():
    sentence = str(timing.Ratio("a", "b", median=0.5, low=0.4, high=0.8, n=24))
    assert sentence == "a takes 2.00 times as long as b (95 % interval 1.25 to 2.50, 24 pairs)"


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ((0.05, 0.055, 0.045, 0.05), "4 pairs, 18.2 to 22.2 times as long: too few for a 95 % interval"),
        ((0.9, 1.2), "2 pairs, 0.90 to 1.20 times as fast: too few for a 95 % interval"),
        ((4.0,), "1 pair, 4.00 times as fast: too few for a 95 % interval"),
    ],
)
def test_too_few_pairs_say_what_they_showed(pairs, words):
    ratio = timing.Ratio("a", "b", float(np.median(pairs)), *timing.median_interval(pairs), len(pairs), pairs)
    assert str(ratio).startswith(f"a against b: {words}")
    assert ratio.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("low", "high", "left"),
    [
        (0.9, 1.2, "it may be slower or faster"),
        (1.0, 1.2, "it may be faster, or as fast within 1%"),
        (0.8, 1.0, "it may be slower, or as fast within 1%"),
    ],
)
def test_inconclusive_says_what_it_leaves_open(low, high, left):
    assert f"inconclusive, {left} (1.00 times as fast, " in str(timing.Ratio("a", "b", 1.0, low, high, 20))


def test_samples_taken_elsewhere_are_held_to_the_same_rule():
    made = {"question": "latency", "first_call": 1.0, "block": 1, "warmup_calls": 1, "stop_reason": "as asked"}
    made |= {"mode": "full", "device": "x", "simulated": False}
    of = lambda name, seconds, **more: timing.Measurement(name, samples=(seconds,) * 8, **(made | more))
    compare = functools.partial(timing.compare_samples, baseline="a", name="film", parity="compared before")
    assert compare({"a": of("a", 2.0), "b": of("b", 1.0)}).ratios["b"].verdict == "faster"
    assert not compare({"a": of("a", 2.0), "b": of("b", 1.0, others=1.0)}).ratios
    assert not compare({"a": of("a", 2.0, simulated=True), "b": of("b", 1.0)}).paired
    with pytest.raises(ValueError, match="as many as a, 8"):
        compare({"a": of("a", 2.0), "b": dataclasses.replace(of("b", 1.0), samples=(1.0,))})


def test_a_sure_ratio_of_unreliable_times_is_explained():
    made = {"question": "latency", "first_call": 1.0, "block": 1, "warmup_calls": 1, "stop_reason": "quiet"}
    made |= {"mode": "full", "device": "x", "simulated": False}
    swings = [1.0, 1.6, 1.1, 1.9, 1.0, 1.7, 1.2, 2.0]
    of = lambda name, factor, times: timing.Measurement(name, samples=tuple(factor * t for t in times), **made)
    compare = functools.partial(timing.compare_samples, baseline="a", name="c", parity="")
    restless = str(compare({"a": of("a", 2.0, swings), "b": of("b", 1.0, swings)}))
    assert "unreliable" in restless
    assert "b is 2.00 times as fast as a (95 % interval 2.00 to 2.00, 8 pairs)" in restless
    assert "pairs taken in one round, which vary together" in restless
    steady = str(compare({"a": of("a", 2.0, [1.0] * 8), "b": of("b", 1.0, [1.0] * 8)}))
    assert "vary" not in steady
