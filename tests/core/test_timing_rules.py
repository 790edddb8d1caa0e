"""The rules of measuring, each on a clock or a device whose true times are known."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from fake_clock import FakeClock
from measurements import make_measurement

from metallab import timing
from metallab.fake_device import FakeDevice
from metallab.timing import inspections, load

QUICK = {"min_samples": 6, "min_seconds": 0.0, "max_seconds": 1.0}
QUICK |= {"warmup_calls": 2, "warmup_seconds": 0.0, "block_seconds": 0.004}


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


def leave_kernels(device: FakeDevice, *, count: int) -> None:
    """Launch kernels for which nobody waits."""
    for _ in range(count):
        device.launch(0.002)


@pytest.mark.parametrize("question", ["latency", "throughput"])
def test_nothing_runs_when_the_clock_is_read(question) -> None:
    """At both readings of every sample the device has finished all it was given."""
    with FakeDevice() as device:
        leave_kernels(device, count=3)
        clock = SpyClock(device)
        timing.measure(
            lambda: device.launch(0.001),
            on=device,
            question=question,
            budget=timing.Budget(**QUICK),
            clock=clock,
        )

    assert clock.pending, "the clock was never read"
    assert max(clock.pending) == 0, "the clock was read while kernels ran"


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
    calls = []
    # a long block: a call that was held up on a busy machine must not fill it alone
    budget = timing.Budget(**QUICK | {"block_seconds": 0.1})

    def call():
        calls.append(1)
        return [0.001]

    with LazyFakeDevice() as device:
        got = timing.measure(call, on=device, question="throughput", budget=budget)
        assert device.launched == len(calls), f"{len(calls)} results, {device.launched} computed"

    assert min(got.samples) >= 0.001


MIB_16 = np.empty(2**24, dtype=np.uint8)  # never touched: it takes no memory


@pytest.mark.parametrize(
    ("result", "most"),
    [
        pytest.param([{"a": MIB_16}, (MIB_16, 1)], 8, id="nested"),
        pytest.param(MIB_16, 16, id="an array"),
        pytest.param(np.empty(0), 4096, id="empty"),
        pytest.param(None, 4096, id="nothing"),
    ],
)
def test_a_block_keeps_256_mib_of_results_at_most(result, most) -> None:
    """Where results are kept until they are waited for."""
    clock, lazy = FakeClock(), timing.Host(waits_for_results=True)
    fn = clock.returning(result, 1e-6)
    budget = timing.Budget(**QUICK)
    got = timing.measure(fn, on=lazy, question="throughput", budget=budget, clock=clock)
    assert got.block == most


@pytest.fixture(params=[True, False], ids=["on", "off"])
def collector_is_on(request) -> Iterator[bool]:
    """Whether Python's garbage collector is on before the test; it is on again afterwards."""
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_garbage_is_not_collected_meanwhile_and_the_collector_is_put_back(collector_is_on) -> None:
    seen = []

    def look():
        seen.append(gc.isenabled())

    timing.measure(look, on=timing.Host(), budget=timing.Budget(**QUICK))
    assert not any(seen)
    assert gc.isenabled() == collector_is_on


def test_the_first_call_is_kept_apart() -> None:
    """A first call that compiles shows in `first_call` and in no sample."""
    clock = FakeClock()
    durations = iter([1.0])
    got = measured(clock, lambda: next(durations, 0.010))
    assert got.first_call == 1.0
    assert max(got.samples) == 0.010


@pytest.mark.parametrize(
    ("seconds", "least"),
    [pytest.param(0.020, 3, id="three calls"), pytest.param(0.001, 25, id="25 ms")],
)
def test_a_warm_up_has_three_calls_and_25_ms_at_least(seconds, least) -> None:
    assert measured(FakeClock(), lambda: seconds).warmup_calls >= least


def test_a_slow_start_is_warmed_away() -> None:
    """Calls are left out until both halves of them agree: here 40."""
    slow_start = iter(0.005 * 0.9**i for i in range(40))
    got = measured(FakeClock(), lambda: 0.001 + next(slow_start, 0.0))
    assert max(got.samples) < 0.0012


@pytest.mark.parametrize(
    ("question", "block"),
    [pytest.param("throughput", 32, id="throughput"), pytest.param("latency", 1, id="latency")],
)
def test_a_block_of_throughput_lasts_20_ms_and_latency_is_one_call(question, block) -> None:
    got = measured(FakeClock(), lambda: 0.001, question=question)
    assert got.block == block
    assert got.median == 0.001, "the median is not per call"
    assert got.n * got.block * got.median < 0.7, "half a second was the budget"


AHEAD = timing.Host(kind="mps")
HANDED_OVER = timing.Host(waits_for_results=True)


@pytest.mark.parametrize(
    ("on", "seconds", "block"),
    [
        pytest.param(AHEAD, 0.040, 8, id="eight"),
        pytest.param(AHEAD, 0.090, 4, id="0.4 s at most"),
        pytest.param(AHEAD, 0.300, 1, id="one"),
        pytest.param(HANDED_OVER, 0.040, 8, id="results that are waited for"),
        pytest.param(timing.Host(), 0.020, 1, id="a CPU, which runs within the call"),
    ],
)
def test_slow_calls_stand_in_a_row_where_a_device_runs_on_after_a_call(on, seconds, block) -> None:
    got = measured(FakeClock(), lambda: seconds, on=on, question="throughput")
    assert got.block == block
    assert got.median == seconds, "the median is not per call"


def test_quiet_samples_end_after_half_a_second() -> None:
    got = measured(FakeClock(), lambda: 0.010)
    assert got.stop_reason == "quiet"
    assert got.n >= 10
    assert sum(got.samples) >= 0.5 - 1e-9


def test_restless_samples_end_when_their_noise_is_known() -> None:
    rng = random.Random(2)
    got = measured(FakeClock(), lambda: 0.050 * rng.lognormvariate(0, 0.3))
    assert got.stop_reason == "noise is stable"
    assert 20 <= got.n < 30


def test_long_samples_end_at_a_limit_of_time() -> None:
    got = measured(FakeClock(), lambda: 4.0)
    assert got.stop_reason == "time limit"
    assert sum(got.samples) < 20


def test_blocks_that_grow_ever_longer_end_at_a_limit_of_time() -> None:
    clock = FakeClock()
    got = measured(clock, lambda: 0.001 * (1 + clock.now / 1e9), question="throughput")
    assert got.stop_reason == "time limit"
    assert clock.now < 12e9, "8 s of work are the limit"


def test_many_variants_with_steady_times_are_called_quiet() -> None:
    """Half a second for each of ten would be more than the four seconds that a comparison with 20 rounds has."""
    clock = FakeClock()
    many = {f"variant {number}": clock.taking(lambda: 0.010) for number in range(10)}
    compared = timing.compare(
        many,
        on=timing.Host(),
        baseline="variant 0",
        parity=timing.Unchecked("clocks"),
        clock=clock,
    )
    assert compared["variant 1"].stop_reason == "quiet"


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


SHORT = timing.Budget(min_samples=20, min_seconds=0.2, max_seconds=1.0)


def race(slow: float, budget: timing.Budget | None = None) -> tuple[timing.Ratio, float]:
    """Compare a function of so many seconds with one of half of them: the ratio, and the seconds that it took."""
    clock = FakeClock()
    made = compared(
        clock, clock.taking(lambda: slow), clock.taking(lambda: slow / 2), budget=budget
    )
    return made.paired["b"], clock.now / 1e9


@pytest.mark.parametrize(
    ("slow", "budget", "most"),
    [
        pytest.param(1.0, None, 20, id="1 s"),
        pytest.param(1.5, None, 30, id="1.5 s"),
        pytest.param(0.8, SHORT, 20, id="0.8 s, a page's short budget"),
        pytest.param(1.2, SHORT, 20, id="1.2 s, a page's short budget"),
    ],
)
def test_slow_variants_get_the_pairs_that_an_interval_needs(slow, budget, most) -> None:
    ratio, seconds = race(slow, budget)
    assert ratio.n >= 6
    assert ratio.verdict == "faster"
    assert seconds < most


def test_variants_of_many_seconds_do_not_get_them() -> None:
    ratio, seconds = race(16.0)
    assert ratio.n < 6
    assert seconds < 150, "minutes for a comparison"


def test_samples_are_described_by_their_median_and_quartiles() -> None:
    """Against NumPy; a mean follows a single slow sample."""
    samples = np.random.default_rng(0).lognormal(size=101)
    got = make_measurement(samples=samples)
    assert got.median == np.median(samples)
    assert got.quartiles == (np.percentile(samples, 25), np.percentile(samples, 75))


@pytest.mark.parametrize(
    ("spread", "flags"),
    [
        pytest.param(0.04, (), id="quiet"),
        pytest.param(0.15, ("noisy",), id="above 10 %"),
        pytest.param(0.40, ("unreliable",), id="above 25 %"),
    ],
)
def test_the_interquartile_range_by_the_median_is_the_noise(spread, flags) -> None:
    samples = [1 + spread * (i / 10 - 0.5) * 2 for i in range(11)]
    assert make_measurement(samples=samples).flags == flags


def test_two_samples_are_few() -> None:
    assert "few samples" in make_measurement(samples=[1.0, 1.0]).flags


GPU = timing.Host("a GPU", kind="xpu")
SAME = timing.Unchecked("the same twice")


class SevenThreads(timing.Host):
    """A CPU that says how many threads it has."""

    threads = 7


SEVEN_THREADS = SevenThreads("a CPU")
SIDES = {"a": SEVEN_THREADS, "b": GPU}


class DtypeOfPyTorch:
    """A dtype that has its name as a text, as PyTorch's have."""

    def __str__(self) -> str:
        return "torch.bfloat16"


def measure_shortly(**about) -> timing.Measurement:
    clock = FakeClock()
    work = clock.taking(lambda: 0.001)
    return timing.measure(work, budget=timing.FAST, clock=clock, **about)


def compare_shortly(**about) -> timing.Comparison:
    """Compare a function with itself, on the CPU and on the GPU."""
    clock = FakeClock()
    work = clock.taking(lambda: 0.001)
    return compared(clock, work, work, on=SIDES, parity=SAME, budget=timing.FAST, **about)


@pytest.mark.parametrize(
    ("on", "kind", "label", "threads"),
    [
        pytest.param(GPU, "xpu", "a GPU", None, id="a GPU"),
        pytest.param(SEVEN_THREADS, "cpu", "a CPU", 7, id="a CPU"),
    ],
)
def test_where_a_measurement_ran_stands_in_fields(on, kind, label, threads) -> None:
    got = measure_shortly(on=on)
    assert got.kind == kind
    assert got.device == label
    assert got.threads == threads


def test_the_dtype_and_size_of_a_measurement_stand_in_fields() -> None:
    half = SimpleNamespace(name="float16")  # as NumPy's dtypes have their names
    got = measure_shortly(on=GPU, dtype=half, size=64)
    assert got.dtype == "float16"
    assert got.size == timing.Size(64)


def test_a_measurement_of_which_nothing_is_said_has_no_dtype_and_no_size() -> None:
    got = measure_shortly(on=timing.Host())
    assert got.dtype is None
    assert got.size is None


def test_a_comparison_of_a_series_is_named_by_its_size() -> None:
    made = compare_shortly(series="product, n", size=timing.Size(8, "rows"))
    assert made.name == "product, n = 8"
    assert made.series == "product, n"
    assert [made[key].size for key in "ab"] == [timing.Size(8, "rows")] * 2


def test_a_comparison_of_a_series_may_have_a_name_of_its_own() -> None:
    assert compare_shortly(series="n x n", name="8 x 8", size=8).name == "8 x 8"


def test_each_side_of_a_comparison_has_its_dtype_and_its_threads() -> None:
    made = compare_shortly(dtype={"a": "float32", "b": DtypeOfPyTorch()}, roles={"b": "GPU"})
    assert [made[key].dtype for key in "ab"] == ["float32", "bfloat16"]
    assert [made[key].threads for key in "ab"] == [7, None]
    assert made.roles == {"b": "GPU"}


def test_an_unknown_dtype_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"^dtype is 'half'; name one of float64, float32"):
        measure_shortly(on=GPU, dtype="half")


def test_a_size_without_a_series_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a size is one of a series"):
        compare_shortly(size=8)


@pytest.mark.parametrize(
    ("cores", "is_flagged"),
    [pytest.param(3.0, True, id="three cores"), pytest.param(0.0, False, id="its own work alone")],
)
def test_cores_that_other_programs_keep_busy_are_counted(monkeypatch, cores, is_flagged) -> None:
    clock = FakeClock()

    def now():
        return clock.now / 1e9

    monkeypatch.setattr(load, "_count_busy_seconds", lambda: (1 + cores) * now())
    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=now, process_time=now))

    got = measured(clock, lambda: 0.01)
    assert got.others == pytest.approx(cores, abs=1e-6)
    assert ("busy machine" in got.flags) == is_flagged


def work_for(seconds: float) -> None:
    """Keep a core busy for some seconds of this process."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(10_000))


def test_the_system_s_count_of_busy_time_moves() -> None:
    before = load._count_busy_seconds()
    work_for(0.2)
    assert load._count_busy_seconds() - before > 0.1


def test_idle_cores_and_waiting_for_a_disk_are_no_work(monkeypatch) -> None:
    times = SimpleNamespace(
        user=1, nice=2, system=4, irq=8, softirq=16, steal=32, idle=1000, iowait=5000
    )
    monkeypatch.setattr(load.psutil, "cpu_times", lambda: times)
    assert load._count_busy_seconds() == 1 + 2 + 4 + 8 + 16 + 32


class Turns:
    """A fake machine that is in use for 1000 s before a turn begins; it keeps what happened."""

    def __init__(self) -> None:
        self.clock, self.busy, self.log = FakeClock(), 0.0, []

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self.clock.now += 1000 * 10**9
        self.busy += 1000  # somebody else has measured, on one core
        self.log.append("begins")
        yield
        self.log.append("ends")

    def call(self) -> None:
        self.log.append("call")
        self.clock.now += 100_000_000

    def measure(self) -> timing.Measurement:
        budget = timing.Budget(**QUICK)
        return timing.measure(self.call, on=timing.Host(), budget=budget, clock=self.clock)

    def compare(self) -> timing.Measurement:
        return compared(self.clock, self.call, self.call, budget=timing.Budget(**QUICK))["b"]


@pytest.fixture
def turns(monkeypatch) -> Turns:
    made = Turns()
    clocks = SimpleNamespace(monotonic=lambda: made.clock.now / 1e9, process_time=lambda: 0.0)
    monkeypatch.setattr(load, "measuring_lock", made)
    monkeypatch.setattr(load, "_count_busy_seconds", lambda: made.busy)
    monkeypatch.setattr(load, "time", clocks)
    return made


@pytest.mark.parametrize("way", ["measure", "compare"])
def test_all_calls_of_a_measurement_or_comparison_are_in_one_turn(turns, way) -> None:
    getattr(turns, way)()
    begins, *calls, ends = turns.log
    assert begins == "begins"
    assert set(calls) == {"call"}, "the turn was given away in between"
    assert ends == "ends"


@pytest.mark.parametrize("way", ["measure", "compare"])
def test_waiting_for_a_turn_is_no_part_of_a_time_or_of_other_programs_work(turns, way) -> None:
    got = getattr(turns, way)()
    assert {got.first_call, *got.samples} == {0.1}
    assert got.others == 0


@pytest.fixture
def fast_mode(monkeypatch) -> None:
    monkeypatch.setenv("METALLAB_MODE", "fast")


def test_fast_mode_takes_three_samples_and_says_so(fast_mode) -> None:
    got = measured(FakeClock(), lambda: 0.010)
    assert got.n == 3
    assert got.warmup_calls == 1
    assert got.mode == "fast"
    assert "fast mode" in got.flags


def test_a_block_of_fast_mode_is_short(fast_mode) -> None:
    assert measured(FakeClock(), lambda: 0.001, question="throughput").block == 2


def test_a_sentinel_of_fast_mode_is_short(fast_mode) -> None:
    clock = FakeClock()
    with timing.sentinel(clock.taking(lambda: 0.010), on=timing.Host(), clock=clock) as watch:
        assert watch.before.n == 3


def test_fast_mode_gives_no_verdict_and_no_speed_up(fast_mode) -> None:
    clock = FakeClock()
    pair = compared(clock, clock.taking(lambda: 0.010), clock.taking(lambda: 0.001))
    assert pair.paired["b"].verdict == "inconclusive"
    assert not pair.ratios
    assert pair.withheld["b"].reason is timing.Reason.FAST_MODE


@pytest.fixture(scope="module")
def slowing_down() -> SimpleNamespace:
    """A comparison of two alike on a machine that slows down all the while, and ``order``: whose each call was."""
    clock = FakeClock()
    order = []

    def variant(name):
        def work():
            order.append(name)
            clock.now += round(1e6 * (1 + clock.now / 2e9))  # ever slower

        return work

    made = compared(clock, variant("a"), variant("b"))
    return SimpleNamespace(compared=made, order=order)


def test_a_machine_that_slows_down_blames_no_variant(slowing_down) -> None:
    ratio = slowing_down.compared.paired["b"]
    assert ratio.verdict in ("same", "inconclusive")
    assert abs(ratio.median - 1) < 0.01


def test_a_round_is_one_sample_of_each_variant_in_random_order(slowing_down) -> None:
    samples = slowing_down.order[1::2]  # each sample comes after a call that counts for nothing
    rounds = list(zip(samples[-80::2], samples[-79::2], strict=True))
    assert all(set(pair) == {"a", "b"} for pair in rounds)
    assert 5 < sum(pair == ("a", "b") for pair in rounds) < 35


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


DRAWS = {
    "normal": lambda rng, n: max(0.5, rng.gauss(1, 0.05)),
    "skewed": lambda rng, n: 0.95 + rng.expovariate(1 / 0.05),
    "bimodal": lambda rng, n: rng.choice((1.0, 1.1)) + rng.gauss(0, 0.01),
    "drifting": lambda rng, n: (1 + 0.004 * n) * rng.gauss(1, 0.03),
    "outliers": lambda rng, n: (
        rng.gauss(1, 0.03) * (rng.uniform(2, 10) if rng.random() < 0.05 else 1)
    ),
}
"""Noise of about 5 %, of the five kinds that machines make: a factor for the nth call."""


def noise(kind: str, rng: random.Random) -> Callable[[], float]:
    """Durations around 10 ms with noise of a kind."""
    calls = itertools.count(1)
    return lambda: 0.010 * DRAWS[kind](rng, next(calls))


def trials(kind: str, ratio: float, count: int, samples: int) -> list:
    """Return what ``count`` comparisons say of a function that is ``ratio`` times as fast as another.

    Each has a seed of its own and so many pairs of samples. The two functions' times are drawn from one noise of the
    kind, so that one that drifts goes on from call to call.
    """
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


@pytest.mark.parametrize("kind", DRAWS)
def test_an_interval_covers_the_truth_in_93_percent_of_the_trials_at_least(kind) -> None:
    covered = sum(r.low <= 1.3 <= r.high for r in trials(kind, 1.3, 500, samples=24))
    assert covered >= 0.93 * 500


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [pytest.param(1.10, "faster", id="faster"), pytest.param(1 / 1.10, "slower", id="slower")],
)
def test_ten_percent_at_5_percent_noise_is_found_in_95_percent_of_the_trials(
    ratio, verdict
) -> None:
    """With 20 samples, and in the right direction."""
    hits = sum(r.verdict == verdict for r in trials("normal", ratio, 500, samples=20))
    assert hits >= 0.95 * 500


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        pytest.param(0.1 / 1.005, "same", id="half a percent faster"),
        pytest.param(0.1 * 1.005, "same", id="half a percent slower"),
        pytest.param(0.1 / 1.02, "faster", id="2 percent faster"),
        pytest.param(0.1 * 1.02, "slower", id="2 percent slower"),
    ],
)
def test_a_difference_that_matters_to_nobody_is_neither_faster_nor_slower(other, verdict) -> None:
    """However sure it is."""
    clock = FakeClock()
    got = compared(clock, clock.taking(lambda: 0.1), clock.taking(lambda: other))
    assert got.paired["b"].verdict == verdict


def check_within(most: float) -> Callable[[float, float], None]:
    """Make a check that allows such an error."""

    def near(reference, result):
        assert abs(reference - result) <= most, f"more than {most}"

    near.__name__ = f"within {most}"
    return near


def test_each_variant_is_judged_by_its_own_parity() -> None:
    """One of half precision is allowed more than another of single precision."""
    clock = FakeClock()
    got = timing.compare(
        {
            "base": clock.returning(1.0),
            "half": clock.returning(1.05),
            "single": clock.returning(1.05),
        },
        on=timing.Host(),
        baseline="base",
        parity={"half": check_within(0.1), "single": check_within(0.01)},
        clock=clock,
    )

    assert set(got.paired) == {"half"}
    assert "more than 0.01" in got.withheld["single"].detail
    assert got.parity == "outputs checked by within 0.1; outputs checked by within 0.01"


@pytest.mark.parametrize(
    ("wins", "size"),
    [
        pytest.param({1: False, 2: True, 4: False, 8: True, 16: True}, 8, id="a lucky size"),
        pytest.param({16: True, 8: True}, 8, id="in any order"),
        pytest.param({1: True, 2: False}, None, id="the largest is lost"),
        pytest.param({}, None, id="no size"),
        pytest.param({1: False, 2: True, 4: None, 8: True, 16: None}, 2, id="some are withheld"),
        pytest.param({1: None, 2: True}, 2, id="the first is withheld"),
    ],
)
def test_a_crossover_is_where_every_larger_size_is_won_or_withheld(wins, size) -> None:
    assert timing.crossover(wins) == size


def test_sizes_that_are_withheld_are_named() -> None:
    assert timing.not_counted({2: True, 4: None, 8: False, 16.0: None}).endswith(" n = 4, 16)")


def test_where_no_size_is_withheld_none_is_named() -> None:
    assert timing.not_counted({2: True, 4: False}) == ""


def compare_on_a_quiet_machine(clock: FakeClock) -> timing.Comparison:
    """Compare a function with one that takes half as long, whatever else this machine does."""
    made = compared(clock, clock.taking(lambda: 0.020), clock.taking(lambda: 0.010))
    alone = {name: dataclasses.replace(m, others=0.0) for name, m in made.measurements.items()}
    return dataclasses.replace(made, measurements=alone)


@pytest.fixture(scope="module")
def quiet() -> timing.Comparison:
    return compare_on_a_quiet_machine(FakeClock())


def test_what_nothing_speaks_against_has_a_speed_up_with_its_interval(quiet) -> None:
    ratio = quiet.ratios["b"]
    assert quiet.withheld == {}
    assert quiet.answers["b"].outcome == "faster"
    assert quiet.sentences == [str(ratio)]
    assert ratio.ends == "2.00 to 2.00"


@dataclasses.dataclass(frozen=True)
class Doubt:
    """What the fields of two measurements are that are withheld a speed-up, and for what reason."""

    reason: timing.Reason
    of_one: dict[str, Any]
    """Fields of one of the two measurements, be it the baseline's or the variant's."""
    of_the_other: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the other one; empty for a reason that one measurement is enough for."""


@pytest.fixture(params=["a", "b"], ids=["of the baseline", "of the variant"])
def doubt(quiet, request) -> Callable[..., timing.Comparison]:
    """A function that makes a comparison in doubt: it changes one of the two measurements, or both."""
    one = request.param
    other = "b" if one == "a" else "a"

    def change(
        of_one: dict[str, Any], of_the_other: dict[str, Any] | None = None
    ) -> timing.Comparison:
        changed = {
            one: dataclasses.replace(quiet[one], **of_one),
            other: dataclasses.replace(quiet[other], **of_the_other or {}),
        }
        measurements = {name: changed[name] for name in quiet.measurements}
        return dataclasses.replace(quiet, measurements=measurements)

    return change


DOUBTS = [
    pytest.param(Doubt(timing.Reason.BUSY_MACHINE, {"others": 0.3}), id="busy"),
    pytest.param(Doubt(timing.Reason.FAST_MODE, {"mode": "fast"}), id="fast"),
    pytest.param(Doubt(timing.Reason.SIMULATED, {"simulated": True}), id="simulated"),
]
"""A reason that only two measurements show gives both, each within what is allowed of a single one::

    Doubt(timing.Reason.OTHER_POWER, {"power": "battery"}, of_the_other={"power": "AC"})
"""

TRANSIENT = {timing.Reason.BUSY_MACHINE, timing.Reason.DRIFTED}
"""Another run may be without it."""


OF_VERSUS = {timing.Reason.ONLY_A, timing.Reason.ONLY_B, timing.Reason.NEITHER}
WITH_TESTS_OF_THEIR_OWN = {timing.Reason.OUTPUTS_DIFFER, timing.Reason.DRIFTED}


def test_each_reason_of_a_comparison_has_a_case():
    reasons = {case.values[0].reason for case in DOUBTS} | WITH_TESTS_OF_THEIR_OWN
    assert reasons == {*timing.Reason} - OF_VERSUS - {timing.Reason.OTHER}


@pytest.mark.parametrize("case", DOUBTS)
def test_what_is_in_doubt_gets_a_reason_and_no_speed_up(doubt, case) -> None:
    answer = doubt(case.of_one, case.of_the_other).answers["b"]
    assert answer.outcome == "withheld"
    assert answer.reason == case.reason
    assert answer.ratio is None


@pytest.mark.parametrize("case", DOUBTS)
def test_what_is_in_doubt_is_told_by_its_reason_without_a_speed_up(doubt, case) -> None:
    got = doubt(case.of_one, case.of_the_other)
    assert "times as fast" not in str(got)
    assert got.sentences == [f"b: {got.withheld['b'].sentence}"]
    assert got.headlines == [f"{got.name}: {got.sentences[0]}"]


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        pytest.param(timing.BUSY - 0.001, None, id="just below"),
        pytest.param(timing.BUSY, None, id="at it"),
        pytest.param(timing.BUSY + 0.001, timing.Reason.BUSY_MACHINE, id="just above"),
    ],
)
def test_other_programs_withhold_a_speed_up_above_the_threshold_alone(
    doubt, others, reason
) -> None:
    assert doubt({"others": others}).answers["b"].reason == reason


@pytest.mark.parametrize("direction", [1, -1], ids=["slower", "faster"])
@pytest.mark.parametrize(
    ("drift", "is_withheld"),
    [
        pytest.param(timing.DRIFT - 0.001, False, id="just below"),
        pytest.param(timing.DRIFT, False, id="at it"),
        pytest.param(timing.DRIFT + 0.001, True, id="just above"),
    ],
)
def test_a_drift_withholds_above_the_threshold_alone(quiet, drift, direction, is_withheld) -> None:
    withheld = timing.why_withheld(quiet["a"], drift=direction * drift)
    assert (withheld is not None) == is_withheld


@pytest.mark.parametrize(
    ("drift", "advice"),
    [
        pytest.param(2 * timing.DRIFT, "more time .* let the machine rest", id="slower"),
        pytest.param(-2 * timing.DRIFT, "less time .* run again at once", id="faster"),
    ],
)
def test_rest_is_advised_to_a_machine_that_became_slower_alone(drift, advice) -> None:
    assert re.search(advice, str(timing.why_withheld(drift=drift)))


@pytest.mark.parametrize("case", DOUBTS)
def test_some_doubts_may_pass_and_the_others_stay(doubt, case) -> None:
    withheld = doubt(case.of_one, case.of_the_other).withheld["b"]
    assert withheld.is_transient == (case.reason in TRANSIENT)


@pytest.mark.parametrize("case", DOUBTS)
def test_a_doubt_of_two_measurements_is_none_of_either_alone(doubt, case) -> None:
    got = doubt(case.of_one, case.of_the_other)
    alone = [timing.why_withheld(each) for each in got.measurements.values()]
    is_of_one = not case.of_the_other
    assert any(alone) == is_of_one


def test_both_measurements_can_be_put_in_doubt(doubt) -> None:
    got = doubt({"device": "one"}, {"device": "other"})
    assert {each.device for each in got.measurements.values()} == {"one", "other"}


def compare_while_drifting(factor: float) -> tuple[timing.Comparison, timing.Sentinel]:
    """Compare inside of a sentinel whose work takes another time afterwards."""
    clock, speed = FakeClock(), [1.0]
    fixed = clock.taking(lambda: 0.010 * speed[0])
    with timing.sentinel(fixed, on=timing.Host(), clock=clock) as watch:
        inside = compare_on_a_quiet_machine(clock)
        speed[0] = factor
    return inside, watch


@pytest.mark.parametrize("factor", [1.3, 0.7], ids=["slower", "faster"])
def test_a_machine_that_drifted_gets_no_speed_up(factor) -> None:
    inside, watch = compare_while_drifting(factor)
    assert inside.ratios == {}
    assert inside.withheld["b"].reason is timing.Reason.DRIFTED
    assert inside.drift == watch.drift


def test_a_small_drift_withholds_nothing() -> None:
    inside, watch = compare_while_drifting(1 + timing.DRIFT / 2)
    assert set(inside.ratios) == {"b"}
    assert inside.withheld == {}
    assert inside.drift == watch.drift


def test_before_the_drift_is_known_there_is_no_speed_up() -> None:
    clock = FakeClock()
    with timing.sentinel(clock.taking(lambda: 0.010), on=timing.Host(), clock=clock):
        inside = compare_on_a_quiet_machine(clock)
        with pytest.raises(RuntimeError, match="`with` block ends"):
            inside.ratios  # noqa: B018


def test_what_comes_after_a_sentinel_is_none_of_its_business() -> None:
    clock, speed = FakeClock(), [1.0]
    fixed = clock.taking(lambda: 0.010 * speed[0])
    with timing.sentinel(fixed, on=timing.Host(), clock=clock):
        speed[0] = 1.3
    assert compare_on_a_quiet_machine(clock).ratios


def judge(parity: Callable) -> timing.Comparison:
    """Compare a function that returns ones with one that returns zeros, by a check."""
    clock = FakeClock()
    ones, zeros = clock.returning(np.ones(3)), clock.returning(np.zeros(3))
    return compared(clock, ones, zeros, parity=parity)


@pytest.mark.parametrize("agrees", [None, True, np.True_, 1], ids=repr)
def test_none_and_true_mean_that_outputs_agree(agrees) -> None:
    assert set(judge(lambda a, b: agrees).paired) == {"b"}


@pytest.mark.parametrize(
    "differs",
    [
        False,
        np.False_,
        0,
        NotImplemented,
        "they differ",
        (False, "why"),
        {"agree": False},
        3.7,
    ],
    ids=repr,
)
def test_anything_else_means_that_outputs_differ(differs) -> None:
    """A text, a pair or an error's size is true to Python."""
    got = judge(lambda a, b: differs)
    assert not got.paired
    assert str(got.withheld["b"]) == f"outputs differ: the check returned {differs!r}"


def fail_silently(reference, result):
    raise AssertionError


@pytest.mark.parametrize("check", [np.allclose, fail_silently])
def test_a_check_that_finds_a_difference_withholds_the_speed_up(check) -> None:
    assert judge(check).answers["b"].reason is timing.Reason.OUTPUTS_DIFFER


def test_a_check_that_returns_an_array_is_no_check() -> None:
    with pytest.raises(ValueError, match="truth value of an array"):
        judge(np.isclose)


def test_what_a_check_says_in_several_lines_is_told_in_one() -> None:
    detail = judge(np.testing.assert_allclose).withheld["b"].detail
    assert detail.startswith("Not equal to tolerance")
    assert "\n" not in detail


def test_a_result_in_a_function_s_place_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^ndarray cannot be called"):
        timing.measure(np.ones(3), on=timing.Host(), budget=timing.FAST)


@pytest.mark.parametrize("parity", [None, {"b": None}], ids=["for all", "for one"])
def test_nothing_in_a_check_s_place_is_refused(parity) -> None:
    with pytest.raises(TypeError, match=r"^None is given as a parity"):
        compared(FakeClock(), int, int, parity=parity, budget=timing.FAST)


def judge_outputs(
    base: Callable, other: Callable, *, parity=np.array_equal, budget: timing.Budget | None = None
) -> timing.Comparison:
    """Compare two functions of 10 ms by their outputs."""
    clock = FakeClock()
    work = clock.taking(lambda: 0.010)
    return compared(
        clock,
        lambda: (work(), base())[1],
        lambda: (work(), other())[1],
        parity=parity,
        budget=budget,
    )


def return_ones() -> np.ndarray:
    return np.ones(3)


def change_after(calls: int) -> Callable[[], np.ndarray]:
    """Make a function that returns ones, and after so many calls something else."""
    counted = itertools.count()
    return lambda: np.ones(3) + (next(counted) > calls)


def test_outputs_that_stay_the_same_agree() -> None:
    assert set(judge_outputs(return_ones, return_ones).paired) == {"b"}


LATE = pytest.mark.parametrize("calls", [0, 5, 25], ids=["at once", "soon", "late"])


@LATE
def test_a_variant_that_is_right_at_first_alone_differs(calls) -> None:
    got = judge_outputs(return_ones, change_after(calls))
    assert not got.paired
    assert str(got.withheld["b"]).startswith("outputs differ: it returns")


@LATE
def test_a_baseline_that_is_right_at_first_alone_is_blamed_itself(calls) -> None:
    got = judge_outputs(change_after(calls), return_ones)
    assert str(got.withheld["b"]).startswith("outputs differ: 'a' itself")


@LATE
def test_two_that_change_alike_are_wrong_alike(calls) -> None:
    got = judge_outputs(change_after(calls), change_after(calls))
    assert str(got.withheld["b"]).startswith("outputs differ: 'a' itself")


@LATE
def test_outputs_that_are_not_to_be_checked_may_change(calls) -> None:
    unchecked = timing.Unchecked("random")
    assert judge_outputs(return_ones, change_after(calls), parity=unchecked).paired


def test_a_variant_that_changes_an_input_of_both_differs() -> None:
    """Though both go on agreeing."""
    x = np.ones(3)
    got = judge_outputs(lambda: 2 * x, lambda: np.multiply(x, 2, out=x).copy())
    assert not got.paired


def test_results_in_the_same_place_are_no_change() -> None:
    buffers = np.empty(3), np.empty(3)
    reusing = [functools.partial(np.multiply, np.arange(3.0), 2, out=out) for out in buffers]
    assert judge_outputs(*reusing).paired


def test_of_a_result_that_the_next_call_overwrites_a_copy_is_kept() -> None:
    def summing(total):
        return lambda: {"total": [total.__iadd__(1)]}

    got = judge_outputs(
        summing(np.zeros(1)),
        summing(np.zeros(1)),
        parity=lambda a, b: a["total"][0][0] == b["total"][0][0],
        budget=timing.Budget(min_samples=6, max_samples=6),
    )
    assert "'a' itself" in str(got.withheld["b"])


def test_tensors_with_a_gradient_are_copied_beside_arrays_in_a_dict() -> None:
    """Whatever is written over them afterwards, the copy stays, at every depth of the result."""
    import torch

    weight = torch.ones(2, requires_grad=True)
    result = {"loss": weight * 2, "all": (weight + 1, np.zeros(2))}

    copied = inspections.copy_result(result)
    with torch.no_grad():
        result["loss"].zero_()
        result["all"][0].zero_()
    result["all"][1][:] = 5

    assert copied["loss"].tolist() == [2, 2]
    assert [each.tolist() for each in copied["all"]] == [[2, 2], [0, 0]]


def test_what_cannot_be_copied_stays_what_it_is() -> None:
    generator = (number for number in range(3))
    assert inspections.copy_result(generator) is generator


class WithSettings(timing.Host):
    """A device whose settings are its label in a list of those that are active."""

    active_labels: ClassVar[list[str]] = []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        self.active_labels.append(self.label)
        yield
        self.active_labels.remove(self.label)


def test_settings_hold_for_every_call_of_their_variant_and_for_no_other() -> None:
    """Each call sees the settings of its own device alone, and after the comparison none are left."""
    seen = {"a": set(), "b": set()}

    def look(key):
        seen[key].add(tuple(WithSettings.active_labels))

    timing.compare(
        {key: functools.partial(look, key) for key in seen},
        on={key: WithSettings(key) for key in seen},
        baseline="a",
        parity=timing.Unchecked("nothing"),
        budget=timing.Budget(**QUICK),
    )

    assert seen == {"a": {("a",)}, "b": {("b",)}}
    assert not WithSettings.active_labels


def watch_machine(factor: float) -> timing.Sentinel:
    """Watch a machine on which everything takes so many times as long afterwards."""
    clock, speed = FakeClock(), [1.0]
    work = clock.taking(lambda: 0.010 * speed[0])
    with timing.sentinel(work, on=timing.Host(), clock=clock) as watch:
        speed[0] = factor
    return watch


@pytest.mark.parametrize(
    ("factor", "has_drifted"),
    [
        pytest.param(1 + 2 * timing.DRIFT, True, id="slower"),
        pytest.param(1 - 2 * timing.DRIFT, True, id="faster"),
        pytest.param(1 + timing.DRIFT / 2, False, id="hardly slower"),
    ],
)
def test_a_sentinel_reports_a_machine_that_is_not_as_before(factor, has_drifted) -> None:
    watch = watch_machine(factor)
    assert abs(watch.drift - (factor - 1)) < 0.001
    assert watch.throttled == has_drifted
    assert ("drifted" in str(watch)) == has_drifted


def test_the_first_half_of_a_sentinel_takes_less_than_a_third_of_a_second() -> None:
    assert sum(watch_machine(1.0).before.samples) < 0.3


def test_a_sentinel_of_long_work_takes_a_few_samples() -> None:
    clock = FakeClock()
    with timing.sentinel(clock.taking(lambda: 1.2), on=timing.Host(), clock=clock) as watch:
        assert sum(watch.before.samples) < 3


def test_a_sentinel_of_fast_mode_reports_nothing() -> None:
    before = dataclasses.replace(watch_machine(1.0).before, mode="fast")
    watch = timing.Sentinel(before, dataclasses.replace(before, samples=(9.0, 9.0, 9.0)))
    assert not watch.throttled
    assert "fast mode" in str(watch)
