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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from metallab import timing
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
    kind: str, *, truth: float, rng: np.random.Generator, count: int, rounds: int = 15
) -> list[lockstep.Pair]:
    """Pairs of processes; B takes ``truth`` times as long as A."""
    times = np.exp(of_processes(kind, rng, (count, 2, 1)) + of_rounds(rng, (count, 2, rounds)))
    return [lockstep.Pair(tuple(a), tuple(b * truth), 1, (1.0, 1.0)) for a, b in times]


KINDS = ("normal", "a fast kind and a slow one", "long tails")


def count_coverage(count: int) -> tuple[float, float]:
    """Return for which share of all ways to give noise its signs the interval of so many pairs holds the truth.

    The truth is that both sides take equally long: a ratio of 1, whose logarithm is 0. The second share is that of an
    interval whose ends are the next means inwards, of those that are taken of each two logarithms.
    """
    # no two means of them are equal, whatever their signs
    sizes = np.sqrt(np.arange(2.0, count + 2))
    both = itertools.combinations_with_replacement(range(count), 2)
    places = np.array([i * count + j for i, j in both])  # each two once, in a table of all sums
    inside = narrower = 0

    for signs in itertools.product((-1, 1), repeat=count):
        logs = sizes * signs
        got = intervals.interval(list(logs))
        means = np.sort(((logs[:, None] + logs) / 2).ravel()[places])
        k = np.searchsorted(means, math.log(got.low) - 1e-9) + 1  # the next mean that is larger
        inside += got.low <= 1 <= got.high
        narrower += means[k] <= 0 <= means[-1 - k]

    return inside / 2**count, narrower / 2**count


@pytest.mark.parametrize("count", [8, 12])
def test_each_look_is_an_interval_of_99_percent_and_no_wider(count):
    """By trying all signs of noise that is symmetric."""
    inside, narrower = count_coverage(count)
    assert inside >= 0.99 > narrower


def test_seven_pairs_have_no_interval():
    few = intervals.interval([0.1] * 7)
    assert few.low == 0
    assert few.high == math.inf


def test_no_pairs_are_refused():
    with pytest.raises(ValueError, match="a pair of processes at least"):
        intervals.interval([])


PUBLISHED = {8: 0, 12: 7, 18: 27, 27: 83, 40: 220}
"""The largest sums of ranks that Wilcoxon's test refuses at 1 %, by the number of pairs."""


@pytest.mark.parametrize("count", intervals.LOOKS)
def test_ranks_are_those_of_published_tables(count):
    assert intervals._rank(count, 0.01) - 1 == PUBLISHED[count]


def look_at(kind: str, rng: np.random.Generator) -> list[timing.Ratio]:
    """Compare processes of which B takes 1.05 times as long, and return the interval of each look."""
    every = pairs(kind, truth=1.05, rng=rng, count=intervals.LOOKS[-1])
    logs = [pair.log for pair in every]
    return [intervals.interval(logs[:count]) for count in intervals.LOOKS]


@pytest.mark.parametrize("kind", KINDS)
def test_five_looks_miss_the_truth_in_5_percent_at_most(kind):
    """Whoever stops at the worst moment is still right in 95 of 100 comparisons."""
    rng = np.random.default_rng(1)
    comparisons = [look_at(kind, rng) for _ in range(400)]
    missed = [
        looks
        for looks in comparisons
        if any(not look.low <= 1 / 1.05 <= look.high for look in looks)
    ]
    assert len(missed) <= 0.05 * len(comparisons)


@pytest.mark.parametrize("kind", KINDS)
def test_a_median_lies_in_its_interval(kind):
    rng = np.random.default_rng(1)
    looks = itertools.chain.from_iterable(look_at(kind, rng) for _ in range(40))
    assert all(look.low <= look.median <= look.high for look in looks)


SETTINGS = lockstep.Settings(Path("cases.py"), seconds=1e9)


def answers(monkeypatch, kind: str, *, truth: float, times: int) -> list[str]:
    """The answers of comparisons with such pairs instead of processes."""
    rng = np.random.default_rng(2)
    endless = iter(lambda: pairs(kind, truth=truth, rng=rng, count=1)[0], None)
    instead(monkeypatch, lambda *_, **__: next(endless))

    def compare():
        return next(lockstep.compare([CASE], (), SETTINGS, random.Random(0)))

    return [compare().answer for _ in range(times)]


def instead(monkeypatch, pair) -> None:
    """Such pairs in place of those of two live processes."""
    monkeypatch.setattr(lockstep, "_pair", pair)
    monkeypatch.setattr(lockstep, "_live_pair", lambda *_: contextlib.nullcontext({}))


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_is_planted_nothing_is_found(monkeypatch, kind):
    found = answers(monkeypatch, kind, truth=1.0, times=60)
    assert found.count("SLOWER") + found.count("FASTER") <= 3


@pytest.mark.parametrize("kind", ["normal", "long tails"])
@pytest.mark.parametrize(("truth", "answer"), [(1.10, "SLOWER"), (1 / 1.10, "FASTER")])
def test_what_is_planted_is_found_and_the_right_way_round(monkeypatch, kind, truth, answer):
    assert answers(monkeypatch, kind, truth=truth, times=30).count(answer) >= 28


def test_a_large_difference_is_found_at_the_first_look(monkeypatch):
    seen = []
    look = intervals.interval
    monkeypatch.setattr(intervals, "interval", lambda logs: seen.append(len(logs)) or look(logs))
    answers(monkeypatch, "normal", truth=1.25, times=5)
    assert set(seen) == {intervals.LOOKS[0]}


def noisy_pairs(noise: float) -> list[lockstep.Pair]:
    """Pairs whose ratios are 1, a little less and a little more, in turn."""
    ratios = (1.0 + noise * (number % 3 - 1) for number in range(50))
    return [lockstep.Pair((1.0,), (ratio,), 1, (1.0, 1.0)) for ratio in ratios]


@pytest.mark.parametrize(
    ("noise", "answer", "count"),
    [
        pytest.param(0.001, "SAME", 8, id="quiet"),
        pytest.param(0.2, "UNSURE", 40, id="loud: 40 pairs are the last"),
    ],
)
def test_what_is_the_same_is_called_so_and_there_is_an_end(monkeypatch, noise, answer, count):
    left = iter(noisy_pairs(noise))
    instead(monkeypatch, lambda *_, **__: next(left))
    (outcome,) = lockstep.compare([CASE], (), SETTINGS)
    assert outcome.answer == answer
    assert len(outcome.pairs) == count


def test_an_interruption_loses_no_pairs(monkeypatch):
    """Ctrl-C after three pairs of two cases: both outcomes come with the pairs that they have; then it is raised."""
    left = iter([lockstep.Pair((1.0,), (2.0,), 1, (1.0, 1.0))] * 3)

    def pair(*_):
        if got := next(left, None):
            return got
        raise KeyboardInterrupt

    instead(monkeypatch, pair)
    given = [cases.Case(name, lambda: None) for name in "ab"]
    compared = lockstep.compare(given, (), SETTINGS)
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
        if "calls" in self.asked:
            return {"nanoseconds": 9}
        return {"calls": 3, "first_call": 1.0, "dtypes": {}}


@pytest.fixture
def live(monkeypatch) -> dict[str, Answering]:
    """Two sides that log in which order they are asked; their outputs agree."""
    log: list[str] = []
    monkeypatch.setattr(lockstep, "_assert_outputs_agree", lambda *_: None)
    return {name: Answering(name, log) for name in "AB"}


def take_pair(live: dict[str, Answering], *, beside: float = 0.0) -> lockstep.Pair:
    """Take the rounds of a pair of processes."""
    progress = lockstep.Outcome(CASE, beside=beside)
    settings = lockstep.Settings(Path("cases.py"))
    return lockstep._pair(progress, live, settings, random.Random(0))


def test_a_round_is_one_sample_of_each_in_random_order(live, monkeypatch):
    monkeypatch.setattr(lockstep, "_rounds", lambda *_: 20)
    pair = take_pair(live)

    log = live["A"].log
    rounds = ["".join(log[index : index + 2]) for index in range(0, 40, 2)]
    assert len(pair.a) == len(pair.b) == 20
    assert set(rounds) == {"AB", "BA"}
    assert live["A"].asked == {"calls": 3}


class Costs:
    """A machine on which starting a pair takes 2 s, its rounds 5 s, and ending it 3 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.beside = []
        """What each pair was told of the seconds beside its rounds."""

    def monotonic(self) -> float:
        return self.now

    @contextlib.contextmanager
    def live_pair(self, *_) -> Iterator[dict]:
        self.now += 2.0
        yield {}
        self.now += 3.0

    def pair(self, progress, *_) -> lockstep.Pair:
        self.beside.append(progress.beside)
        self.now += 5.0
        ratio = 1.0 + 0.2 * (len(self.beside) // 2 % 3 - 1)
        return lockstep.Pair((1.0,), (ratio,), 1, (1.0, 1.0))


@pytest.fixture
def costs(monkeypatch) -> Costs:
    made = Costs()
    monkeypatch.setattr(lockstep, "time", made)
    monkeypatch.setattr(lockstep, "_live_pair", made.live_pair)
    monkeypatch.setattr(lockstep, "_pair", made.pair)
    return made


def compare_two(seconds: float) -> list[lockstep.Outcome]:
    """Compare two cases that share their processes, with a budget for each."""
    given = [cases.Case(name, lambda: None) for name in "ab"]
    return list(lockstep.compare(given, (), lockstep.Settings(Path("cases.py"), seconds=seconds)))


@pytest.mark.parametrize(
    ("seconds", "spent", "count"),
    [
        pytest.param(10.0, 15.0, 2, id="a short budget, which is not doubled for two pairs"),
        pytest.param(55.0, 60.0, 8, id="one that is exceeded for the first interval"),
    ],
)
def test_starting_and_ending_processes_belong_to_the_budget(costs, seconds, spent, count):
    """Of 2 s and 3 s in each pair half is each of two cases', beside its own 5 s."""
    outcomes = compare_two(seconds)
    assert [outcome.seconds for outcome in outcomes] == [spent] * 2
    assert [len(outcome.pairs) for outcome in outcomes] == [count] * 2


def test_a_pair_knows_its_share_of_starting_and_ending_the_one_before(costs):
    compare_two(55.0)
    assert costs.beside[:4] == [0.0, 0.0, 2.5, 2.5]


def test_rounds_are_counted_with_the_share_of_starting_and_ending(live, monkeypatch):
    told = []
    monkeypatch.setattr(lockstep, "time", Costs())  # whose clock stands
    monkeypatch.setattr(lockstep, "_rounds", lambda cost, *_: told.append(cost) or 1)
    take_pair(live, beside=2.5)
    assert told == [2.5]


def test_dear_processes_get_more_rounds():
    assert lockstep._rounds(0.4, 0.01, 60) < lockstep._rounds(2.0, 0.01, 60)


@pytest.mark.parametrize(
    ("beside", "a_round", "budget", "count"),
    [
        pytest.param(4.0, 0.001, 1e6, lockstep.MOST_ROUNDS, id="quick rounds: the most"),
        pytest.param(1.0, 1.0, 40, 3, id="slow rounds leave the budget for eight pairs"),
        pytest.param(2.0, 100.0, 40, 1, id="one there is always"),
        pytest.param(6.0, 0.1, 40, 15, id="dear processes"),
    ],
)
def test_rounds_are_as_many_as_a_pair_is_worth(beside, a_round, budget, count):
    assert lockstep._rounds(beside, a_round, budget) == count


class Later:
    """A result that is there only when it has been waited for, as JAX's are."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def block_until_ready(self) -> None:
        self.log.append("ready")


def sampled(
    monkeypatch, *, device: str, result: object, calls: int, uncounted: bool = True
) -> list[str]:
    """What happens during a sample: calls, waiting, readings of the clock."""
    log = getattr(result, "log", [])
    cuda = types.SimpleNamespace(synchronize=lambda: log.append("wait"))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(worker.time, "perf_counter_ns", lambda: log.append("clock") or len(log))

    wait = worker.Waiting(result, device)
    worker.sample(lambda: log.append("call") or result, wait, calls, uncounted)
    return log


def test_a_sample_follows_a_call_that_does_not_count(monkeypatch):
    happened = sampled(monkeypatch, device="cpu", result=1.0, calls=2)
    assert happened == ["call", "clock", "call", "call", "clock"]


def test_a_sample_may_do_without_a_call_that_does_not_count(monkeypatch):
    happened = sampled(monkeypatch, device="cpu", result=1.0, calls=2, uncounted=False)
    assert happened == ["clock", "call", "call", "clock"]


def test_on_a_gpu_nothing_is_under_way_when_the_clock_is_read(monkeypatch):
    happened = sampled(monkeypatch, device="cuda", result=1.0, calls=2)
    assert happened == ["call", "wait", "clock", "call", "call", "wait", "clock"]


def test_results_that_come_later_are_waited_for_before_the_clock_is_read(monkeypatch):
    happened = sampled(monkeypatch, device="cpu", result=Later([]), calls=2)
    assert happened == ["call", "ready", "clock", "call", "ready", "call", "ready", "clock"]
