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
    with pytest.raises(ValueError, match="no stages"):
        timing.Stages({}, on=timing.Host())
    with pytest.raises(ValueError, match="give it another name"):
        timing.Stages({"total": int}, on=timing.Host())
    way = timing.Stages({"one": int}, on=timing.Host())
    with pytest.raises(ValueError, match="compare it once"):
        way.split(timing.measure(int, on=timing.Host(), budget=timing.FAST))


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
        ((0.05, 0.055, 0.045, 0.05), "each of 4 pairs took 18.2 to 22.2 times as long; too few for a 95 % interval"),
        ((2.0, 3.0, 2.5), "each of 3 pairs was 2.00 to 3.00 times as fast; too few for a 95 % interval"),
        ((0.9, 1.2), "inconclusive: 2 pairs were 0.90 to 1.20 times as fast; too few for a 95 % interval"),
        ((4.0,), "the only pair was 4.00 times as fast; too few for a 95 % interval"),
    ],
)
def test_too_few_pairs_say_what_each_showed_and_how_many_are_needed(pairs, words):
    ratio = timing.Ratio("a", "b", float(np.median(pairs)), *timing.median_interval(pairs), len(pairs), pairs)
    assert str(ratio) == f"a against b: {words}, which needs 6"
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


def ratios_of(*medians, noise=0.05, n=60, seed=0):
    """``n`` is the number of pairs of each, or one for each."""
    rng, counts = np.random.default_rng(seed), n if isinstance(n, tuple) else [n] * len(medians)
    for index, (median, count) in enumerate(zip(medians, counts, strict=True)):
        pairs = tuple(median * np.exp(rng.normal(0, noise, count)))
        low, high = timing.median_interval(pairs)
        yield timing.Ratio("gpu", "cpu", float(np.median(pairs)), low, high, count, pairs, f"net {index}")


def test_the_geometric_mean_has_an_interval_that_holds_it():
    """400 times four pieces of work whose true geometric mean is 2: the interval misses it in 5 % at most."""
    missed, widths = 0, []
    for seed in range(400):
        mean = timing.geometric_mean(list(ratios_of(1.0, 2.0, 4.0, 2.0, seed=seed)))
        missed += not mean.low <= 2.0 <= mean.high
        widths.append(mean.high / mean.low)
    assert missed <= 20
    assert 1.02 < np.median(widths) < 1.10
    assert (mean.variant, mean.baseline, mean.n, mean.verdict) == ("gpu", "cpu", 240, "faster")
    assert mean.median == pytest.approx(2, rel=0.03)


def test_a_mean_of_few_pairs_is_inconclusive_and_one_of_unlike_things_is_refused():
    few = timing.geometric_mean(list(ratios_of(2.0, 2.0, n=6)))
    assert few.verdict == "inconclusive", "6 pairs have an interval of 95 %, but none of 97.5 %"
    assert str(few) == (
        "gpu against cpu: inconclusive: 12 pairs are too few for a 95 % interval of their mean: "
        "7 of each are enough, 'net 0' has 6 and 'net 1' has 6"
    )
    assert timing.geometric_mean(list(ratios_of(2.0, n=6))).verdict == "faster"
    other = dataclasses.replace(next(ratios_of(2.0)), variant="tpu")
    for wrong in ([], [next(ratios_of(2.0)), other]):
        with pytest.raises(ValueError, match="one variant over one baseline"):
            timing.geometric_mean(wrong)


def test_one_slow_comparison_does_not_take_the_mean_its_interval():
    """The others have pairs to spare: it gets the risk that it needs, and the whole is still held in 95 %."""
    missed = 0
    for seed in range(400):
        mean = timing.geometric_mean(list(ratios_of(0.05, 0.5, 0.2, 0.1, 0.4, n=(6, 40, 20, 40, 21), seed=seed)))
        assert (mean.verdict, mean.n) == ("slower", 127)
        missed += not mean.low <= (0.05 * 0.5 * 0.2 * 0.1 * 0.4) ** 0.2 <= mean.high
    assert missed <= 20


def test_the_risk_is_all_that_is_shared():
    for counts in ([20], [6, 40, 40], [7, 7], [9, 8, 30, 30, 30], [60] * 10):
        shares = timing._shares(counts, 0.05)
        assert sum(shares) <= 0.05 * (1 + 1e-6)
        assert all(
            math.isfinite(timing.median_interval(range(n), 1 - s)[1]) for n, s in zip(counts, shares, strict=True)
        )
    assert timing._shares([6, 6], 0.05) is None


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
