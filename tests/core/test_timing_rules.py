"""The rules of measuring, each on a clock or a device whose true times are known."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import random
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from metallab import timing
from metallab.fake_device import FakeDevice
from metallab.timing import inspections, load

QUICK = {"min_samples": 6, "min_seconds": 0.0, "max_seconds": 1.0}
QUICK |= {"warmup_calls": 2, "warmup_seconds": 0.0, "block_seconds": 0.004}


class FakeClock:
    """A clock that moves only when told: functions made by `taking` advance it by their duration."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now

    def taking(self, durations: Callable[[], float]) -> Callable[[], None]:
        """A function that takes as many seconds of this clock as ``durations()`` says."""

        def work() -> None:
            self.now += max(1, round(durations() * 1e9))

        return work

    def returning(self, value: object, seconds: float = 0.010) -> Callable[[], object]:
        """A function that takes so many seconds of this clock and returns the value."""
        work = self.taking(lambda: seconds)
        return lambda: (work(), value)[1]


def measured(clock: FakeClock, durations: Callable[[], float], **options) -> timing.Measurement:
    """A function that takes so long, measured by a fake clock with the default budget."""
    return timing.measure(
        clock.taking(durations), **{"on": timing.Host(), "clock": clock} | options
    )


def compared(clock: FakeClock, a: Callable, b: Callable, **options) -> timing.Comparison:
    """Two functions compared by a fake clock, ``a`` as the baseline; their results are not looked at."""
    usual = {
        "on": timing.Host(),
        "baseline": "a",
        "parity": timing.Unchecked("clocks"),
        "clock": clock,
    }
    return timing.compare({"a": a, "b": b}, **usual | options)


class SpyClock:
    """A clock that notes, at every reading, how many kernels of a fake device were still unfinished."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.pending = device, []

    def __call__(self) -> int:
        self.pending.append(self.device.launched - self.device.finished)
        return time.perf_counter_ns()


def test_nothing_runs_when_the_clock_is_read() -> None:
    """Latency and throughput: at both readings of every sample the device has finished all it was given."""
    for question in ("latency", "throughput"):
        with FakeDevice() as device:
            for _ in range(3):
                device.launch(0.002)  # left over from somebody else
            clock = SpyClock(device)
            budget = timing.Budget(**QUICK)
            timing.measure(
                lambda: device.launch(0.001),
                on=device,
                question=question,
                budget=budget,
                clock=clock,
            )
            assert clock.pending, "the clock was never read"
            assert not any(clock.pending), (
                f"{question}: the clock was read while {max(clock.pending)} kernels ran"
            )


class LazyFakeDevice(FakeDevice):
    """As in MLX: a result, the seconds in a list, is computed when it is waited for."""

    waits_for_results = True

    def synchronize(self, *results) -> None:
        for result in results:
            while isinstance(result, list) and result:
                self.launch(result.pop())
        super().synchronize()


def test_lazy_results_are_consumed() -> None:
    """Where only a result can be waited for, each one of a block is."""
    with LazyFakeDevice() as device:
        calls = []
        # a long block: a call that was held up on a busy machine must not fill it alone
        budget = timing.Budget(**{**QUICK, "block_seconds": 0.1})
        got = timing.measure(
            lambda: calls.append(1) or [0.001], on=device, question="throughput", budget=budget
        )
        assert device.launched == len(calls), f"{len(calls)} results, {device.launched} computed"
        assert min(got.samples) >= 0.001


def test_kept_results_fit_into_memory() -> None:
    """Where results are kept until they are waited for, a block keeps 256 MiB of them at most, however nested."""
    kept = np.empty(2**24, dtype=np.uint8)  # never touched: it takes no memory
    for result, most in (
        ([{"a": kept}, (kept, 1)], 8),
        (kept, 16),
        (np.empty(0), 4096),
        (None, 4096),
    ):
        clock, lazy = FakeClock(), timing.Host(waits_for_results=True)
        fn = clock.returning(result, 1e-6)
        got = timing.measure(
            fn, on=lazy, question="throughput", budget=timing.Budget(**QUICK), clock=clock
        )
        assert got.block == most, f"{got.block} results of {most} were kept"


def test_garbage_is_not_collected_meanwhile() -> None:
    """The collector is off inside a sample and as it was afterwards."""
    seen = []
    for was_on in (True, False):
        (gc.enable if was_on else gc.disable)()
        try:
            timing.measure(
                lambda: seen.append(gc.isenabled()), on=timing.Host(), budget=timing.Budget(**QUICK)
            )
            assert gc.isenabled() == was_on, "the collector was not put back"
        finally:
            gc.enable()
    assert not any(seen)


def test_the_first_call_is_kept_apart() -> None:
    """A first call that compiles shows in `first_call` and in no sample."""
    clock = FakeClock()
    durations = iter([1.0])
    got = measured(clock, lambda: next(durations, 0.010))
    assert got.first_call == 1.0
    assert max(got.samples) == 0.010


def test_a_slow_start_is_warmed_away() -> None:
    """At least 3 calls and 25 ms, and on until both halves agree; 40 slow calls leave no trace."""
    for seconds, least in ((0.020, 3), (0.001, 25)):
        got = measured(FakeClock(), lambda seconds=seconds: seconds)
        assert got.warmup_calls >= least, f"{got.warmup_calls} warm-up calls of {seconds} s"
    slow_start = iter(0.005 * 0.9**i for i in range(40))
    got = measured(FakeClock(), lambda: 0.001 + next(slow_start, 0.0))
    assert max(got.samples) < 0.0012, f"a sample of {max(got.samples)} s is from the slow start"


def test_blocks_fill_their_time() -> None:
    """Throughput doubles the block until it lasts 20 ms; latency is one call."""
    for question, block in (("throughput", 32), ("latency", 1)):
        got = measured(FakeClock(), lambda: 0.001, question=question)
        assert got.block == block, f"{question}: a block of {got.block}"
        assert got.median == 0.001, "the median is not per call"
        assert got.n * got.block * got.median < 0.7, (
            f"{question}: half a second became {got.n * got.block * 0.001} s"
        )


def test_slow_calls_stand_in_a_row_too() -> None:
    """Where a device runs on after a call, throughput takes 8 calls in a row, but no block of more than 0.4 s."""
    ahead, within = timing.Host(kind="mps"), timing.Host()
    handed_over = timing.Host(waits_for_results=True)
    for on, seconds, block in (
        (ahead, 0.040, 8),
        (ahead, 0.090, 4),
        (ahead, 0.300, 1),
        (handed_over, 0.040, 8),
        (within, 0.020, 1),
    ):
        got = measured(FakeClock(), lambda s=seconds: s, on=on, question="throughput")
        assert got.block == block, f"{seconds} s a call on {on}: a block of {got.block}"
        assert got.median == seconds, "the median is not per call"


def test_measuring_stops_when_enough_is_known() -> None:
    """Quiet samples stop at half a second, restless ones once their noise is known or at 4 s; the reason is kept."""
    rng = random.Random(2)
    cases = {
        "quiet": lambda: 0.010,
        "noise is stable": lambda: 0.050 * rng.lognormvariate(0, 0.3),
        "time limit": lambda: 4.0,
    }
    for reason, durations in cases.items():
        got = measured(FakeClock(), durations)
        assert got.stop_reason == reason, f"{got.stop_reason} instead of {reason}"
        if reason == "quiet":
            assert sum(got.samples) >= 0.5 - 1e-9, f"{sum(got.samples)} s of samples"
            assert got.n >= 10
        if reason == "noise is stable":
            assert 20 <= got.n < 30
        if reason == "time limit":
            assert sum(got.samples) < 20
    clock = FakeClock()
    got = measured(clock, lambda: 0.001 * (1 + clock.now / 1e9), question="throughput")
    assert got.stop_reason == "time limit"
    assert clock.now < 12e9, f"{clock.now / 1e9:.1f} s, where 8 s of work are the limit"


def test_waiting_between_samples_is_limited_too() -> None:
    """Microseconds of measured work with a second of waiting before each: ends all the same."""
    clock = FakeClock()

    class Slow(timing.Host):
        def synchronize(self, *results):
            if not results:
                clock.now += 1_000_000_000
                assert clock.now < 300_000_000_000, "five minutes for a measurement"

    noisy = random.Random(0)
    got = measured(clock, lambda: noisy.uniform(1e-6, 9e-6), on=Slow())
    assert got.stop_reason == "time limit"


def test_slow_variants_get_the_pairs_that_an_interval_needs() -> None:
    """Functions of about a second get six pairs, also in a page's short budget; of many seconds they do not."""

    def race(slow: float, budget=None):
        clock = FakeClock()
        made = compared(
            clock, clock.taking(lambda: slow), clock.taking(lambda: slow / 2), budget=budget
        )
        return made.paired["b"], clock.now / 1e9

    short = timing.Budget(min_samples=20, min_seconds=0.2, max_seconds=1.0)
    for slow, budget, most in (
        (1.0, None, 20),
        (1.5, None, 30),
        (0.8, short, 20),
        (1.2, short, 20),
    ):
        ratio, seconds = race(slow, budget)
        assert ratio.n >= 6, f"{slow} s: {ratio.n} pairs"
        assert ratio.verdict == "faster"
        assert seconds < most, f"{slow} s: {seconds:.0f} s for a comparison"
    ratio, seconds = race(16.0)
    assert ratio.n < 6
    assert seconds < 150, "minutes for a comparison"


def test_samples_are_described_without_a_mean() -> None:
    """Median, quartiles and percentiles against NumPy; noise flags at 10 and 25 %."""
    base = {
        "question": "latency",
        "first_call": 1.0,
        "block": 1,
        "warmup_calls": 3,
        "stop_reason": "quiet",
    }
    base |= {"mode": "full", "device": "x", "simulated": False, "name": "x"}
    samples = tuple(np.random.default_rng(0).lognormal(size=101))
    got = timing.Measurement(samples=samples, **base)
    assert got.median == np.median(samples)
    assert got.median != np.mean(samples)
    assert got.quartiles == (np.percentile(samples, 25), np.percentile(samples, 75))
    for spread, flags in ((0.04, ()), (0.15, ("noisy",)), (0.40, ("unreliable",))):
        samples = tuple(
            1 + spread * (i / 10 - 0.5) * 2 for i in range(11)
        )  # IQR/median is `spread`
        assert timing.Measurement(samples=samples, **base).flags == flags, f"{spread}"
    assert "few samples" in timing.Measurement(samples=(1.0, 1.0), **base).flags


def test_what_ran_and_where_stands_in_fields() -> None:
    """Nobody has to read it out of a name: kind and threads of the place, number format, size, series and roles."""
    same, clock = timing.Unchecked("the same twice"), FakeClock()
    work = clock.taking(lambda: 0.001)
    short = {"budget": timing.FAST, "clock": clock}
    gpu = timing.Host("a GPU", kind="xpu")
    cpu = SimpleNamespace(
        kind="cpu", label="a CPU", simulated=False, waits_for_results=False, threads=7
    )
    cpu.synchronize, cpu.active = (lambda *results: None), contextlib.nullcontext
    half = SimpleNamespace(name="float16")  # as NumPy's dtypes have their names
    got = timing.measure(work, on=gpu, dtype=half, size=64, **short)
    assert (got.kind, got.threads, got.device) == ("xpu", None, "a GPU")
    assert (got.dtype, got.size) == ("float16", timing.Size(64))
    plain = timing.measure(work, on=timing.Host(), **short)
    assert (plain.kind, plain.dtype, plain.size) == ("cpu", None, None)
    on_cpu = timing.measure(work, on=cpu, **short)
    assert (on_cpu.kind, on_cpu.threads, on_cpu.device) == ("cpu", 7, "a CPU")

    class Format:
        def __str__(self):
            return "torch.bfloat16"  # as PyTorch's have

    about = {
        "dtype": {"a": "float32", "b": Format()},
        "size": timing.Size(8, "rows"),
        "roles": {"b": "GPU"},
    }
    sides = {"on": {"a": cpu, "b": gpu}, "baseline": "a", "parity": same}
    made = timing.compare({"a": work, "b": work}, series="product, n", **sides, **about, **short)
    assert (made.name, made.series, made.roles) == ("product, n = 8", "product, n", {"b": "GPU"})
    assert [made[key].dtype for key in "ab"] == ["float32", "bfloat16"]
    assert [made[key].threads for key in "ab"] == [7, None]
    assert {made[key].size for key in "ab"} == {timing.Size(8, "rows")}
    named = timing.compare(
        {"a": work, "b": work}, series="n x n", name="8 x 8", size=8, **sides, **short
    )
    assert (named.name, named["b"].dtype) == ("8 x 8", None)

    with pytest.raises(ValueError, match=r"^dtype is 'half'; name one of float64, float32"):
        timing.measure(work, on=gpu, dtype="half", **short)
    with pytest.raises(ValueError, match=r"^a size is one of a series"):
        timing.compare({"a": work, "b": work}, size=8, **sides, **short)


def test_a_busy_machine_is_flagged(monkeypatch) -> None:
    """Cores that other programs keep busy are counted: three of them, and none; this process's own work is not."""
    for cores, flagged in ((3.0, True), (0.0, False)):
        clock = FakeClock()
        now = lambda clock=clock: clock.now / 1e9
        with monkeypatch.context() as planted:
            planted.setattr(
                load, "_count_busy_seconds", lambda cores=cores, now=now: (1 + cores) * now()
            )
            planted.setattr(load, "time", SimpleNamespace(monotonic=now, process_time=now))
            got = measured(clock, lambda: 0.01)
        assert ("busy machine" in got.flags) == flagged, f"{got.others} cores"
        assert got.others == pytest.approx(cores, abs=1e-6)
    before = load._count_busy_seconds()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        sum(range(10_000))
    assert load._count_busy_seconds() - before > 0.1, (
        "the system's count of busy time does not move"
    )
    kinds = {
        "user": 1,
        "nice": 2,
        "system": 4,
        "irq": 8,
        "softirq": 16,
        "steal": 32,
        "idle": 1000,
        "iowait": 5000,
    }
    monkeypatch.setattr(load.psutil, "cpu_times", lambda: SimpleNamespace(**kinds))
    assert load._count_busy_seconds() == 63, "all that is work, and nothing else"


def test_a_measurement_waits_for_its_turn(monkeypatch) -> None:
    """A measurement or comparison is one turn, and waiting for it is no part of a time or of other programs' work."""
    clock, log, busy = FakeClock(), [], [0.0]

    @contextlib.contextmanager
    def hold():
        clock.now += 1000 * 10**9
        busy[0] += 1000  # somebody else has measured, on one core
        log.append("begins")
        yield
        log.append("ends")

    def call():
        log.append("call")
        clock.now += 100_000_000

    given = {"on": timing.Host(), "budget": timing.Budget(**QUICK), "clock": clock}
    ways = (
        lambda: timing.measure(call, **given),
        lambda: timing.compare(
            {"a": call, "b": call}, baseline="a", parity=timing.Unchecked("fake"), **given
        )["b"],
    )
    monkeypatch.setattr(load, "measuring_lock", SimpleNamespace(hold=hold))
    monkeypatch.setattr(load, "_count_busy_seconds", lambda: busy[0])
    clocks = SimpleNamespace(monotonic=lambda: clock.now / 1e9, process_time=lambda: 0.0)
    monkeypatch.setattr(load, "time", clocks)
    for measure in ways:
        log.clear()
        got = measure()
        assert (log[0], log[-1]) == ("begins", "ends"), "something was called outside of the turn"
        assert set(log[1:-1]) == {"call"}, "the turn was given away in between"
        assert {got.first_call, *got.samples} == {0.1}
        assert got.others == 0, "the work of those who were waited for is counted"


def test_fast_mode_takes_three_marked_samples(monkeypatch) -> None:
    """Fast mode: three samples, and the record says so; three pairs never make a verdict."""
    monkeypatch.setenv("METALLAB_MODE", "fast")
    clock = FakeClock()
    got = measured(clock, lambda: 0.010)
    pair = compared(clock, clock.taking(lambda: 0.010), clock.taking(lambda: 0.001))
    assert (got.n, got.warmup_calls) == (3, 1)
    assert measured(clock, lambda: 0.001, question="throughput").block == 2
    with timing.sentinel(clock.taking(lambda: 0.010), on=timing.Host(), clock=clock) as watch:
        assert watch.before.n == 3
    assert got.mode == "fast"
    assert "fast mode" in got.flags
    assert pair.paired["b"].verdict == "inconclusive"
    assert not pair.ratios
    assert pair.withheld["b"].reason is timing.Reason.FAST_MODE


def test_variants_are_interleaved_at_random() -> None:
    """A machine that slows down all the while, or in step with the rounds, blames no variant."""
    clock = FakeClock()
    order = []

    def variant(name):
        def work():
            order.append(name)
            clock.now += round(1e6 * (1 + clock.now / 2e9))  # ever slower

        return work

    got = compared(clock, variant("a"), variant("b"))
    assert got.paired["b"].verdict in ("same", "inconclusive"), str(got.paired["b"])
    assert abs(got.paired["b"].median - 1) < 0.01
    samples = order[1::2]  # each sample comes after a call that counts for nothing
    rounds = list(zip(samples[-80::2], samples[-79::2], strict=True))
    assert all(set(pair) == {"a", "b"} for pair in rounds), "a round is one sample of each"
    assert 5 < sum(pair == ("a", "b") for pair in rounds) < 35, (
        "the order within a round is not random"
    )


def test_a_switch_is_not_paid_by_the_sample() -> None:
    """The first call after another variant finds cold caches and sleeping threads: it is not sampled."""
    clock, last = FakeClock(), []

    def variant(name):
        def work():
            clock.now += 10_000_000 if last == [name] else 30_000_000
            last[:] = [name]

        return work

    got = compared(clock, variant("a"), variant("b"))
    assert max(got["a"].samples) == max(got["b"].samples) == 0.010


def noise(kind: str, rng: random.Random) -> Callable[[], float]:
    """Durations around 10 ms with about 5 % of noise, of the five kinds that machines make."""
    state = {"n": 0}

    def draw() -> float:
        state["n"] += 1
        if kind == "normal":
            return 0.010 * max(0.5, rng.gauss(1, 0.05))
        if kind == "skewed":
            return 0.010 * (0.95 + rng.expovariate(1 / 0.05))
        if kind == "bimodal":
            return 0.010 * (rng.choice((1.0, 1.1)) + rng.gauss(0, 0.01))
        if kind == "drifting":
            return 0.010 * (1 + 0.004 * state["n"]) * rng.gauss(1, 0.03)
        return (
            0.010 * rng.gauss(1, 0.03) * (rng.uniform(2, 10) if rng.random() < 0.05 else 1)
        )  # outliers

    return draw


def trials(kind: str, ratio: float, count: int, samples: int) -> list:
    """``count`` seeded comparisons of a function with one that is ``ratio`` times as fast, ``samples`` pairs each."""
    budget = timing.Budget(
        min_samples=samples, max_samples=samples, warmup_calls=1, warmup_seconds=0, warmup_limit=0
    )
    results = []
    for seed in range(count):
        clock, rng = FakeClock(), random.Random(seed)
        draw = noise(kind, rng)
        other = clock.taking(lambda draw=draw: draw() / ratio)
        results.append(
            compared(clock, clock.taking(draw), other, budget=budget, seed=seed).paired["b"]
        )
    return results


def test_intervals_cover_the_truth() -> None:
    """On five kinds of noise the interval holds the true ratio in at least 93 % of the trials."""
    for kind in ("normal", "skewed", "bimodal", "drifting", "outliers"):
        covered = sum(r.low <= 1.3 <= r.high for r in trials(kind, 1.3, 500, samples=24))
        assert covered >= 0.93 * 500, f"{kind}: covered in {covered} of {500}"


def test_ten_percent_is_found() -> None:
    """A true 1.10 at 5 % noise is called in at least 95 % of the trials with 20 samples, in the right direction."""
    for ratio, verdict in ((1.10, "faster"), (1 / 1.10, "slower")):
        hits = sum(r.verdict == verdict for r in trials("normal", ratio, 500, samples=20))
        assert hits >= 0.95 * 500, f"{verdict}: found in {hits} of {500}"


def test_a_difference_that_matters_to_nobody_is_no_verdict() -> None:
    """Half a per cent, however sure, is neither faster nor slower; two per cent is."""
    for percent, verdicts in ((0.5, ("same", "same")), (2.0, ("faster", "slower"))):
        for other, verdict in zip(
            (0.1 / (1 + percent / 100), 0.1 * (1 + percent / 100)), verdicts, strict=True
        ):
            clock = FakeClock()
            got = compared(
                clock, clock.taking(lambda: 0.1), clock.taking(lambda other=other: other)
            )
            assert got.paired["b"].verdict == verdict, str(got.paired["b"])


def test_each_variant_is_judged_by_its_own_parity() -> None:
    """One of half precision is allowed more than another of single precision."""
    clock = FakeClock()

    def within(most):
        def near(reference, result):
            assert abs(reference - result) <= most, f"more than {most}"

        near.__name__ = f"within {most}"
        return near

    got = timing.compare(
        {
            "base": clock.returning(1.0),
            "half": clock.returning(1.05),
            "single": clock.returning(1.05),
        },
        on=timing.Host(),
        baseline="base",
        parity={"half": within(0.1), "single": within(0.01)},
        clock=clock,
    )
    assert set(got.paired) == {"half"}
    assert "more than 0.01" in got.withheld["single"].detail
    assert got.parity == "outputs checked by within 0.1; outputs checked by within 0.01"


def test_a_crossover_holds_at_every_larger_size() -> None:
    """One lucky size does not count; that there is none is said where the largest is lost."""
    assert timing.crossover({1: False, 2: True, 4: False, 8: True, 16: True}) == 8
    assert timing.crossover({16: True, 8: True}) == 8
    assert timing.crossover({1: True, 2: False}) is None
    assert timing.crossover({}) is None
    assert timing.crossover({1: False, 2: True, 4: None, 8: True, 16: None}) == 2, (
        "what may not be said is no loss"
    )
    assert timing.crossover({1: None, 2: True}) == 2
    assert timing.not_counted({2: True, 4: None, 8: False, 16.0: None}).endswith(" n = 4, 16)")
    assert timing.not_counted({2: True, 4: False}) == ""


def test_what_is_in_doubt_gets_no_speed_up() -> None:
    """Busy, drifted, simulated or fast, of the variant or of its baseline: no ratio is given, and it is said why."""
    clock, speed = FakeClock(), [1.0]
    fixed = clock.taking(lambda: 0.010 * speed[0])

    def on_a_quiet_machine():
        made = compared(clock, clock.taking(lambda: 0.020), clock.taking(lambda: 0.010))
        alone = {name: dataclasses.replace(m, others=0.0) for name, m in made.measurements.items()}
        return dataclasses.replace(made, measurements=alone)  # whatever else this machine does

    quiet = on_a_quiet_machine()
    assert (set(quiet.ratios), quiet.withheld) == ({"b"}, {})
    assert quiet.answers["b"].outcome == "faster"
    assert (quiet.sentences, quiet.ratios["b"].ends) == ([str(quiet.ratios["b"])], "2.00 to 2.00")
    doubts = {
        "busy machine": {"others": 0.3},
        "fast mode": {"mode": "fast"},
        "simulated": {"simulated": True},
    }
    for (kind, change), which in itertools.product(doubts.items(), "ab"):
        measured = {**quiet.measurements, which: dataclasses.replace(quiet[which], **change)}
        got = dataclasses.replace(quiet, measurements=measured)
        assert got.answers["b"].reason == kind, f"{kind} of {which}: {got.withheld}"
        assert not got.ratios
        assert "times as fast" not in str(got)
        assert (got.answers["b"].outcome, got.answers["b"].ratio) == ("withheld", None)
        assert got.sentences == [f"b: {got.withheld['b'].sentence}"]
        assert got.headlines == [f"{got.name}: {got.sentences[0]}"]
        assert got.withheld["b"].is_transient == (kind == "busy machine")
    for factor, kind in ((1.3, "drifted"), (0.7, "drifted"), (1.05, None)):
        speed[0] = 1.0
        with timing.sentinel(fixed, on=timing.Host(), clock=clock) as watch:
            inside = on_a_quiet_machine()
            with pytest.raises(RuntimeError, match="`with` block ends"):
                raise AssertionError(f"a ratio before the drift is known: {inside.ratios}")
            speed[0] = factor
        assert [withheld.reason for withheld in inside.withheld.values()] == (
            [kind] if kind else []
        )
        assert set(inside.ratios) == (set() if kind else {"b"})
        assert inside.drift == watch.drift
        assert on_a_quiet_machine().ratios, "what comes after a sentinel is none of its business"


def test_only_none_and_true_mean_that_outputs_agree() -> None:
    """A text, a pair or an error's size is true to Python, and says that outputs differ."""
    clock = FakeClock()

    def judged(parity):
        return compared(
            clock, clock.returning(np.ones(3)), clock.returning(np.zeros(3)), parity=parity
        )

    for agrees in (None, True, np.True_, 1):
        assert set(judged(lambda a, b, agrees=agrees: agrees).paired) == {"b"}, (
            f"{agrees!r} means: they agree"
        )
    for differs in (
        False,
        np.False_,
        0,
        NotImplemented,
        "they differ",
        (False, "why"),
        {"agree": False},
        3.7,
    ):
        got = judged(lambda a, b, differs=differs: differs)
        assert not got.paired
        assert str(got.withheld["b"]) == f"outputs differ: the check returned {differs!r}"
    assert judged(np.allclose).answers["b"].reason is timing.Reason.OUTPUTS_DIFFER
    with pytest.raises(ValueError, match="truth value of an array"):
        judged(np.isclose)

    def silent(reference, result):
        raise AssertionError

    assert judged(silent).answers["b"].reason is timing.Reason.OUTPUTS_DIFFER
    lines = judged(np.testing.assert_allclose).withheld["b"].detail
    assert lines.startswith("Not equal to tolerance")
    assert "\n" not in lines


def test_what_cannot_be_called_is_refused() -> None:
    """A result, or nothing, in a function's place."""
    place = {"on": timing.Host(), "budget": timing.FAST}
    with pytest.raises(TypeError, match=r"^ndarray cannot be called"):
        timing.measure(np.ones(3), **place)
    for parity in (None, {"b": None}):
        with pytest.raises(TypeError, match=r"^None is given as a parity"):
            timing.compare({"a": int, "b": int}, baseline="a", parity=parity, **place)


def test_last_outputs_are_compared_too() -> None:
    """Right at first is not enough: of the variant, of the baseline, and of what a variant does to an input of both."""
    clock = FakeClock()

    def judged(base, other, parity=np.array_equal, budget=None):
        work = clock.taking(lambda: 0.010)
        a, b = (lambda fn=fn: (work(), fn())[1] for fn in (base, other))
        return compared(clock, a, b, parity=parity, budget=budget)

    def counting(after, step=1.0):
        calls = itertools.count()
        return lambda: np.ones(3) + step * (next(calls) > after)

    steady = lambda: np.ones(3)
    assert set(judged(steady, steady).paired) == {"b"}
    for after in (0, 5, 25):
        got = judged(steady, counting(after))
        assert not got.paired
        assert str(got.withheld.get("b")).startswith("outputs differ: it returns")
        itself = "outputs differ: 'a' itself"
        assert str(judged(counting(after), steady).withheld.get("b")).startswith(itself)
        assert str(judged(counting(after), counting(after)).withheld.get("b")).startswith(itself), (
            "alike, and wrong alike"
        )
        assert judged(steady, counting(after), timing.Unchecked("random")).paired
    x = np.ones(3)
    got = judged(lambda: 2 * x, lambda: np.multiply(x, 2, out=x).copy())
    assert not got.paired, "an input of both was changed by one, so that both went on agreeing"
    buffers = np.empty(3), np.empty(3)
    reusing = [functools.partial(np.multiply, np.arange(3.0), 2, out=out) for out in buffers]
    assert judged(*reusing).paired, "the same place for each result is no change"

    summing = lambda total: lambda: {"total": [total.__iadd__(1)]}
    same = lambda a, b: a["total"][0][0] == b["total"][0][0]
    got = judged(
        summing(np.zeros(1)),
        summing(np.zeros(1)),
        same,
        timing.Budget(min_samples=6, max_samples=6),
    )
    assert "'a' itself" in str(got.withheld.get("b")), (
        "the first result was overwritten by the last: no copy was kept"
    )


def test_a_tensor_with_a_gradient_is_copied() -> None:
    """Also in a dict, and beside what cannot be copied."""
    import torch

    weight = torch.ones(2, requires_grad=True)
    result = {"loss": weight * 2, "all": (weight + 1, np.zeros(2))}
    copied = inspections.copy_result(result)
    with torch.no_grad():
        result["loss"].zero_()
        result["all"][0].zero_()
    result["all"][1][:] = 5
    assert copied["loss"].tolist() == [2, 2]
    assert [copied["all"][0].tolist(), copied["all"][1].tolist()] == [[2, 2], [0, 0]]
    generator = (number for number in range(3))
    assert inspections.copy_result(generator) is generator


def test_settings_hold_for_their_variant_only() -> None:
    """What `DeviceLike.active` sets holds for every call of its variant and for no call of another."""
    active, seen = [], {"a": set(), "b": set()}

    class Settings(timing.Host):
        def active(self):
            @contextlib.contextmanager
            def settings():
                active.append(self.label)
                yield
                active.remove(self.label)

            return settings()

    timing.compare(
        {key: lambda key=key: seen[key].add(tuple(active)) for key in seen},
        on={key: Settings(key) for key in seen},
        baseline="a",
        parity=timing.Unchecked("nothing"),
        budget=timing.Budget(**QUICK),
    )
    assert seen == {"a": {("a",)}, "b": {("b",)}}
    assert not active


def test_the_sentinel_sees_drift() -> None:
    """A machine that is 20 % slower afterwards is reported, one that is as before is not."""
    for factor, throttled in ((1.2, True), (0.8, True), (1.05, False)):
        clock, speed = FakeClock(), [1.0]
        with timing.sentinel(
            clock.taking(lambda s=speed: 0.010 * s[0]), on=timing.Host(), clock=clock
        ) as watch:
            speed[0] = factor
        assert watch.throttled == throttled, f"{factor}: drift {watch.drift}"
        assert abs(watch.drift - (factor - 1)) < 0.001
        assert ("drifted" in str(watch)) == throttled
        assert sum(watch.before.samples) < 0.3
    slow = clock.taking(lambda: 1.2)
    with timing.sentinel(slow, on=timing.Host(), clock=clock) as long:
        assert sum(long.before.samples) < 3, "two seconds for a sentinel's first half"
    fast = timing.Sentinel(
        *(dataclasses.replace(m, mode="fast") for m in (watch.before, watch.before))
    )
    fast.after = dataclasses.replace(fast.after, samples=(9.0, 9.0, 9.0))
    assert not fast.throttled
    assert "fast mode" in str(fast)
