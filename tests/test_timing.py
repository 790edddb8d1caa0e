"""The timer keeps its rules, and each rule's check goes red when the rule is taken out of the timer."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

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
    with pytest.raises(ValueError, match="no stages"):
        timing.measure_stages({}, on=timing.Host())


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
