"""The timer keeps its rules, and each rule's check goes red when the rule is taken out of the timer."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from timing_rules import RULES

from metallab import timing

SOURCE = Path(timing.__file__).read_text()
BREAKS = [(rule, old, new) for rule in RULES for old, new in rule.breaks]
BREAK_IDS = [f"{rule.check.__name__}-{index}" for index, (rule, _, _) in enumerate(BREAKS)]


def broken_timing(old: str, new: str):
    """A copy of the timing module with a piece of its text replaced."""
    assert old in SOURCE, f"timing.py no longer says {old!r}: adapt the rule's break"
    spec = importlib.util.spec_from_loader("broken_timing", loader=None)
    module = importlib.util.module_from_spec(spec)
    sys.modules["broken_timing"] = module  # dataclasses look their module up
    exec(compile(SOURCE.replace(old, new), "broken_timing.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.check.__name__)
def test_rule_holds(rule):
    rule.check(timing)


@pytest.mark.parametrize(("rule", "old", "new"), BREAKS, ids=BREAK_IDS)
def test_broken_rule_goes_red(rule, old, new):
    with pytest.raises(AssertionError):
        rule.check(broken_timing(old, new))


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
    with pytest.raises(KeyError, match="no place is given for b"):
        timing.compare(dict.fromkeys("ab", int), on=places, baseline="a", parity=timing.Unchecked("-"))
    with pytest.raises(ValueError, match="no stages"):
        timing.measure_stages({}, on=timing.Host())
    with pytest.raises(ValueError, match="give it another name"):
        timing.measure_stages({"total": int}, on=timing.Host())


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
    said = str(timing.Ratio("a", "b", median=0.5, low=0.4, high=0.8, n=24))
    assert said == "a takes 2.00 times as long as b (95 % interval 1.25 to 2.50, 24 pairs)"


def ratios_of(*medians, noise=0.05, n=60, seed=0):
    rng = np.random.default_rng(seed)
    for median in medians:
        pairs = tuple(median * np.exp(rng.normal(0, noise, n)))
        yield timing.Ratio("gpu", "cpu", float(np.median(pairs)), *timing.median_interval(pairs), n, pairs)


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
    assert timing.geometric_mean(list(ratios_of(2.0, n=6))).verdict == "faster"
    other = dataclasses.replace(next(ratios_of(2.0)), variant="tpu")
    for wrong in ([], [next(ratios_of(2.0)), other]):
        with pytest.raises(ValueError, match="one variant over one baseline"):
            timing.geometric_mean(wrong)
