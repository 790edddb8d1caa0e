"""What intervals in lockstep promise, each as a check with the changes of the code that must break it.

All of it is synthetic: pairs of processes that differ by chance, rounds that vary, and a truth that is known.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from metallab.versus import cases, intervals, lockstep, worker

CASE = cases.Case("synthetic", lambda: None)


def of_processes(kind: str, rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """What a process is slower than another by, as a logarithm: it keeps that for all its rounds."""
    if kind == "normal":
        return rng.normal(0, 0.015, size)
    if kind == "a fast kind and a slow one":
        return rng.choice([0, 0.08], size, p=[0.7, 0.3]) + rng.normal(0, 0.003, size)
    return rng.standard_t(2, size) * 0.01  # now and then far off


def of_rounds(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """What a single sample takes more than its process's others: at times it is interrupted."""
    return rng.normal(0, 0.04, size) + rng.choice([0, 1.0], size, p=[0.9, 0.1]) * rng.exponential(
        0.5, size
    )


def pairs(
    module, kind: str, truth: float, rng: np.random.Generator, count: int, rounds: int = 15
) -> list:
    """Pairs of processes; B takes ``truth`` times as long as A."""
    times = np.exp(of_processes(kind, rng, (count, 2, 1)) + of_rounds(rng, (count, 2, rounds)))
    return [module.Pair(tuple(a), tuple(b * truth), 1, (1.0, 1.0)) for a, b in times]


KINDS = ("normal", "a fast kind and a slow one", "long tails")


def test_each_look_is_an_interval_of_99_percent():
    """By trying all signs of noise that is symmetric: enough leave the truth inside, and one rank less does not."""
    for count in (8, 12):
        sizes = np.sqrt(np.arange(2.0, count + 2))
        walsh = np.array(
            [i * count + j for i, j in itertools.combinations_with_replacement(range(count), 2)]
        )
        inside = narrower = 0
        for signs in itertools.product((-1, 1), repeat=count):
            logs = sizes * signs
            inside += (got := intervals.interval(list(logs))).low <= 1 <= got.high
            means = np.sort(((logs[:, None] + logs) / 2).ravel()[walsh])
            k = np.searchsorted(means, math.log(got.low) - 1e-9) + 1  # the next mean that is larger
            narrower += means[k] <= 0 <= means[-1 - k]
        assert inside / 2**count >= 0.99 > narrower / 2**count, count
    few = intervals.interval([0.1] * 7)
    assert (few.low, few.high) == (0, math.inf)
    published = {
        8: 0,
        12: 7,
        18: 27,
        27: 83,
        40: 220,
    }  # the largest sums of ranks that Wilcoxon's test refuses at 1 %
    assert {count: intervals._rank(count, 0.01) - 1 for count in intervals.LOOKS} == published
    with pytest.raises(ValueError, match="a pair of processes at least"):
        intervals.interval([])


def test_five_looks_miss_the_truth_in_5_percent_at_most():
    """Whoever stops at the worst moment is still right in 95 of 100 comparisons."""
    rng, times = np.random.default_rng(1), 400
    for kind in KINDS:
        missed = 0
        for _ in range(times):
            logs = [pair.log for pair in pairs(lockstep, kind, 1.05, rng, intervals.LOOKS[-1])]
            looks = [intervals.interval(logs[:count]) for count in intervals.LOOKS]
            missed += not all(look.low <= 1 / 1.05 <= look.high for look in looks)
            assert all(look.low <= look.median <= look.high for look in looks)
        assert missed <= 0.05 * times, f"{kind}: {missed} of {times}"


def outcomes(
    monkeypatch, lockstep, kind: str, truth: float, times: int, seconds: float = 1e9
) -> list[str]:
    """The answers of comparisons with such pairs instead of processes."""
    rng = np.random.default_rng(2)
    endless = iter(lambda: pairs(lockstep, kind, truth, rng, 1)[0], None)
    instead(monkeypatch, lockstep, lambda *_, **__: next(endless))
    settings = lockstep.Settings(Path("cases.py"), seconds=seconds)
    return [
        next(lockstep.compare([CASE], (), settings, random.Random(0))).answer for _ in range(times)
    ]


def instead(monkeypatch, lockstep, pair) -> None:
    """Such pairs in place of those of two live processes."""
    monkeypatch.setattr(lockstep, "_pair", pair)
    monkeypatch.setattr(lockstep, "_live_pair", lambda *_: contextlib.nullcontext({}))


def test_where_nothing_is_planted_nothing_is_found(monkeypatch):
    for kind in KINDS:
        answers = outcomes(monkeypatch, lockstep, kind, 1.0, 60)
        assert answers.count("SLOWER") + answers.count("FASTER") <= 3, kind


def test_what_is_planted_is_found_and_the_right_way_round(monkeypatch):
    """And at the first looks, which a budget for 10 pairs has one of."""
    for kind in ("normal", "long tails"):
        assert outcomes(monkeypatch, lockstep, kind, 1.10, 30).count("SLOWER") >= 28, kind
        assert outcomes(monkeypatch, lockstep, kind, 1 / 1.10, 30).count("FASTER") >= 28, kind
    seen = []
    looked = intervals.interval
    monkeypatch.setattr(intervals, "interval", lambda logs: seen.append(len(logs)) or looked(logs))
    outcomes(monkeypatch, lockstep, "normal", 1.25, 5)
    assert set(seen) == {intervals.LOOKS[0]}


def test_what_is_the_same_is_called_so_and_there_is_an_end(monkeypatch):
    """Noise a tenth of the others'; where noise is larger, 40 pairs are the last."""
    quiet = [lockstep.Pair((1.0,), (1.0 + 0.001 * (n % 3 - 1),), 1, (1.0, 1.0)) for n in range(50)]
    loud = [lockstep.Pair((1.0,), (1.0 + 0.2 * (n % 3 - 1),), 1, (1.0, 1.0)) for n in range(41)]
    for given, answer, count in ((quiet, "SAME", 8), (loud, "UNSURE", 40)):
        left = iter(given)
        instead(monkeypatch, lockstep, lambda *_, left=left, **__: next(left))
        (outcome,) = lockstep.compare([CASE], (), lockstep.Settings(Path("cases.py"), seconds=1e9))
        assert (outcome.answer, len(outcome.pairs)) == (answer, count)


def test_an_interruption_loses_no_pairs(monkeypatch):
    left = iter([lockstep.Pair((1.0,), (2.0,), 1, (1.0, 1.0))] * 3)

    def pair(*_):
        if got := next(left, None):
            return got
        raise KeyboardInterrupt

    instead(monkeypatch, lockstep, pair)
    given = [cases.Case(name, lambda: None) for name in "ab"]
    compared = lockstep.compare(given, (), lockstep.Settings(Path("cases.py"), seconds=1e9))
    kept = list(itertools.islice(compared, 2))
    assert sorted(len(outcome.pairs) for outcome in kept) == [1, 2]
    assert {outcome.stopped for outcome in kept} == {lockstep.INTERRUPTED}
    with pytest.raises(KeyboardInterrupt):
        next(compared)


class Answering:
    """A side that notes when it is asked for a sample."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.asked, self.output = name, log, {}, Path("output.npz")

    def ask(self, what: dict) -> None:
        self.asked = what
        self.log += [self.name] if "calls" in what else []

    def read(self) -> dict:
        return (
            {"nanoseconds": 9}
            if "calls" in self.asked
            else {"calls": 3, "first_call": 1.0, "dtypes": {}}
        )


def test_a_round_is_one_sample_of_each_in_random_order(monkeypatch):
    log: list[str] = []
    live = {name: Answering(name, log) for name in "AB"}
    monkeypatch.setattr(lockstep, "_rounds", lambda *_: 20)
    monkeypatch.setattr(lockstep, "_assert_outputs_agree", lambda *_: None)
    pair = lockstep._pair(
        lockstep.Outcome(CASE), live, lockstep.Settings(Path("cases.py")), random.Random(0)
    )
    rounds = ["".join(log[index : index + 2]) for index in range(0, 40, 2)]
    assert len(pair.a) == len(pair.b) == 20
    assert set(rounds) == {"AB", "BA"}
    assert live["A"].asked == {"calls": 3}


def test_starting_and_ending_processes_belong_to_the_budget(monkeypatch):
    """Of 2 s and 3 s in each pair half is each of two cases', beside its own 5 s; and rounds are fewer for it.

    The budget is doubled for the pairs that the first interval needs, and for no others.
    """
    clock, beside_of_pairs, costs = [0.0], [], []

    @contextlib.contextmanager
    def live_pair(*_):
        clock[0] += 2.0
        yield {}
        clock[0] += 3.0

    def pair(progress, *_):
        beside_of_pairs.append(progress.beside)
        clock[0] += 5.0
        return lockstep.Pair(
            (1.0,), (1.0 + 0.2 * (len(beside_of_pairs) // 2 % 3 - 1),), 1, (1.0, 1.0)
        )

    monkeypatch.setattr(lockstep, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(lockstep, "_live_pair", live_pair)
    given = [cases.Case(name, lambda: None) for name in "ab"]
    with monkeypatch.context() as context:
        context.setattr(lockstep, "_pair", pair)
        for seconds, spent, pairs_taken in ((10.0, 15.0, 2), (55.0, 60.0, 8)):
            beside_of_pairs.clear()
            outcomes = list(
                lockstep.compare(given, (), lockstep.Settings(Path("cases.py"), seconds=seconds))
            )
            assert [(outcome.seconds, len(outcome.pairs)) for outcome in outcomes] == [
                (spent, pairs_taken)
            ] * 2
    assert beside_of_pairs[:4] == [0.0, 0.0, 2.5, 2.5]
    monkeypatch.setattr(lockstep, "_rounds", lambda cost, *_: costs.append(cost) or 1)
    live = {name: Answering(name, []) for name in "AB"}
    monkeypatch.setattr(lockstep, "_assert_outputs_agree", lambda *_: None)
    lockstep._pair(
        lockstep.Outcome(CASE, beside=2.5),
        live,
        lockstep.Settings(Path("cases.py")),
        random.Random(0),
    )
    assert costs == [2.5]


def test_rounds_are_as_many_as_a_pair_is_worth():
    """Dear processes get more rounds, slow rounds leave the budget for eight pairs, and one there is always."""
    assert lockstep._rounds(0.4, 0.01, 60) < lockstep._rounds(2.0, 0.01, 60)
    assert lockstep._rounds(4.0, 0.001, 1e6) == lockstep.MOST_ROUNDS
    assert lockstep._rounds(1.0, 1.0, 40) == 3
    assert lockstep._rounds(2.0, 100.0, 40) == 1
    assert lockstep._rounds(6.0, 0.1, 40) == 15


class Later:
    """A result that is there only when it has been waited for, as JAX's are."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def block_until_ready(self) -> None:
        self.log.append("ready")


def sampled(
    worker, monkeypatch, device: str, result, calls: int, uncounted: bool = True
) -> list[str]:
    """What happens during a sample: calls, waiting, readings of the clock."""
    log = getattr(result, "log", [])
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(synchronize=lambda: log.append("wait"))
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(worker.time, "perf_counter_ns", lambda: log.append("clock") or len(log))
    wait = worker.Waiting(result, device)
    worker.sample(lambda: log.append("call") or result, wait, calls, uncounted)
    return log


def test_a_sample_follows_a_call_that_does_not_count(monkeypatch):
    """At the second reading of the clock nothing is under way: on a GPU, and with results that come later."""
    at_once = ["call", "clock", "call", "call", "clock"]
    assert sampled(worker, monkeypatch, "cpu", 1.0, 2) == at_once
    assert sampled(worker, monkeypatch, "cpu", 1.0, 2, uncounted=False) == at_once[1:]
    on_gpu = ["call", "wait", "clock", "call", "call", "wait", "clock"]
    assert sampled(worker, monkeypatch, "cuda", 1.0, 2) == on_gpu
    later = ["call", "ready", "clock", "call", "ready", "call", "ready", "clock"]
    assert sampled(worker, monkeypatch, "cpu", Later([]), 2) == later
