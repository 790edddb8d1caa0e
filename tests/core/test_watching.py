"""A comparison watches the machine by itself: its speed, and what other programs do in each stretch of its rounds."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from fake_clock import FakeClock

from metallab import device, timing
from metallab.timing import load, rounds, sentinels


@dataclass(frozen=True)
class WatchedDevice(timing.Host):
    """A device on a fake clock with work for a sentinel."""

    label: str = "a watched device"
    work: Callable[[], None] | None = None

    def make_sentinel_work(self) -> Callable[[], None]:
        return self.work


class Machine:
    """A fake machine: its clock, its speed, and how often its sentinel's work was called."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.slowness = 1.0
        self.sentinel_calls = 0
        self.device = WatchedDevice(work=self._sentinel_work)

    def _sentinel_work(self) -> None:
        self.sentinel_calls += 1
        self.clock.now += round(0.010 * self.slowness * 1e9)

    def compare(
        self,
        slowness: Callable[[float], float] = lambda seconds: 1.0,
        slow: float = 0.020,
        **options: object,
    ) -> timing.Comparison:
        """Compare a function that takes ``slow`` seconds with one that takes half as long.

        ``slowness`` returns how many times as long everything takes on this machine, its sentinel's work as well, by
        the seconds of its clock. ``options`` are those of `timing.compare`.
        """

        def work(seconds: float) -> None:
            self.slowness = slowness(self.clock.now / 1e9)
            self.clock.now += round(seconds * self.slowness * 1e9)

        options.setdefault("on", self.device)
        return timing.compare(
            {"slow": lambda: work(slow), "fast": lambda: work(slow / 2)},
            baseline="slow",
            parity=timing.Unchecked("clocks"),
            clock=self.clock,
            **options,
        )


@pytest.fixture(autouse=True)
def nobody_else_is_busy(monkeypatch):
    monkeypatch.setattr(load, "_count_busy_seconds", lambda: 0.0)


@pytest.fixture
def machine() -> Machine:
    return Machine()


BUDGET_SECONDS = 2 * timing.FULL_COMPARISON.max_seconds
"""Of two variants."""

AMID = 1.0
"""Seconds on the fake clock at which rounds are taken."""

SLOWER = 1 + timing.DRIFT + 0.01
"""The times of a machine that has just drifted, relative to those before."""
FASTER = 1 - timing.DRIFT - 0.01


@pytest.mark.parametrize("factor", [1.3, 0.7, SLOWER, FASTER])
def test_a_speed_that_does_not_settle_withholds_the_speed_up(machine, factor):
    compared = machine.compare(slowness=lambda seconds: factor ** (int(seconds / 0.4) % 7))
    assert compared.answers["fast"].reason is timing.Reason.DRIFTED
    assert compared["fast"].n >= timing.FULL_COMPARISON.min_samples, "its times are shown"
    assert machine.clock.now / 1e9 < 1.5 * BUDGET_SECONDS, "it went on waiting for a steady speed"


@pytest.mark.parametrize("factor", [1.3, 0.7, SLOWER, FASTER])
def test_rounds_before_and_after_a_drift_are_not_put_together(machine, factor):
    compared = machine.compare(slowness=lambda seconds: 1.0 if seconds < AMID else factor)
    assert compared.answers["fast"].ratio.median == pytest.approx(2.0)
    assert "disturbed rounds do not count" in compared["fast"].stop_reason
    assert compared.drift == 0.0
    assert len(set(compared["fast"].samples)) == 1, "of one of the two speeds alone"


def test_times_of_both_sides_of_a_drift_are_never_a_speed_up(machine):
    """Where a number of samples is asked for none is taken again, so the speed-up is withheld."""
    budget = timing.Budget(min_samples=60, max_samples=60)
    compared = machine.compare(lambda seconds: 1.0 if seconds < AMID else 1.3, budget=budget)
    assert compared["fast"].n == 60
    assert compared.answers["fast"].reason is timing.Reason.DRIFTED
    assert compared.drift == pytest.approx(0.3)


def test_a_moment_of_another_speed_is_left_out(machine):
    compared = machine.compare(lambda seconds: 5.0 if AMID < seconds < AMID + 1.5 else 1.0)
    assert compared.answers["fast"].ratio.median == pytest.approx(2.0)
    assert compared.drift == 0.0
    assert max(compared["fast"].samples) == pytest.approx(0.010)


@pytest.mark.parametrize("factor", [1.0, 1 + 0.8 * timing.DRIFT, 1 - 0.8 * timing.DRIFT])
def test_a_small_drift_withholds_nothing(machine, factor):
    compared = machine.compare(lambda seconds: 1.0 if seconds < AMID else factor)
    assert compared.answers["fast"].ratio.median == pytest.approx(2.0)
    assert compared.drift == pytest.approx(factor - 1, abs=0.001)
    assert "disturbed" not in compared["fast"].stop_reason


BARELY_FASTER = (1 - timing.DRIFT + 1 / (1 + timing.DRIFT)) / 2
"""Just within the drift, seen from before; seen from afterwards the times before were longer by more than it."""


def test_rounds_are_taken_again_for_a_machine_that_becomes_faster_a_little_before_it_has_drifted(
    machine,
):
    compared = machine.compare(lambda seconds: 1.0 if seconds < AMID else BARELY_FASTER)
    assert "disturbed rounds do not count" in compared["fast"].stop_reason
    assert compared.drift == 0.0
    assert compared.answers["fast"].ratio


def test_a_machine_that_becomes_faster_a_little_has_not_drifted(machine):
    """Where a number of samples is asked for, no rounds are taken again, and the drift alone decides."""
    budget = timing.Budget(min_samples=60, max_samples=60)
    compared = machine.compare(
        lambda seconds: 1.0 if seconds < AMID else BARELY_FASTER, budget=budget
    )
    assert compared.drift == pytest.approx(BARELY_FASTER - 1, abs=0.001)
    assert compared.answers["fast"].ratio


@pytest.mark.parametrize("watched_first", [True, False])
def test_each_of_the_devices_must_keep_its_speed(machine, watched_first):
    def steady_work() -> None:
        machine.clock.now += 10_000_000

    steady = WatchedDevice(label="a steady GPU", kind="mps", work=steady_work)
    devices = [machine.device, steady] if watched_first else [steady, machine.device]
    compared = machine.compare(
        lambda seconds: 1.3 ** (int(seconds / 0.4) % 7),
        on=dict(zip(("slow", "fast"), devices, strict=True)),
    )
    assert compared.answers["fast"].reason is timing.Reason.DRIFTED
    assert [watch.before.device for watch in compared.sentinels] == [each.label for each in devices]


def test_it_opens_no_sentinel_inside_of_one(machine):
    with timing.sentinel(machine.device.work, on=machine.device, clock=machine.clock) as watch:
        before = machine.sentinel_calls
        compared = machine.compare()
        assert machine.sentinel_calls == before
    assert compared.sentinels == (watch,)


def test_its_sentinel_is_closed_afterwards(machine):
    machine.compare()
    assert sentinels.find_open() == ()


def test_in_fast_mode_nothing_is_watched(machine, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    assert machine.compare().sentinels == ()
    assert machine.sentinel_calls == 0


def test_a_device_without_work_for_a_sentinel_is_not_watched(machine):
    machine.device = timing.Host()
    assert machine.compare().drift is None


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "mlx"])
def test_the_cpu_of_each_framework_can_be_watched(framework):
    pytest.importorskip({"mlx": "mlx.core"}.get(framework, framework))
    lab = device.cpu(framework=framework)
    with timing.sentinel(lab.make_sentinel_work(), on=lab, budget=timing.FAST) as watch:
        pass
    assert watch.drift > -1


@pytest.mark.parametrize("order", [("watched", "plain"), ("plain", "watched")])
def test_a_device_that_can_be_watched_is(machine, order):
    devices = {"watched": machine.device, "plain": timing.Host()}
    compared = timing.compare(
        {name: machine.clock.taking(lambda: 0.01) for name in order},
        on=devices,
        baseline=order[0],
        parity=timing.Unchecked("clocks"),
        clock=machine.clock,
    )
    assert compared.drift == pytest.approx(0.0, abs=0.001)


def test_a_sentinel_of_a_comparison_is_no_other_s(machine):
    """While its rounds run none is open: a comparison within would take it for one that the page has opened."""
    seen = []

    def work():
        seen.append(sentinels.find_open())
        machine.clock.now += 10_000_000

    timing.compare(
        {"a": work, "b": work},
        on=machine.device,
        baseline="a",
        parity=timing.Unchecked("clocks"),
        clock=machine.clock,
    )
    assert not any(seen)


def test_rounds_are_not_taken_again_where_too_few_of_them_would_count(machine):
    """Calls are slow, and the speed changes with each of them: twice the budget would not bring six steady pairs."""
    compared = machine.compare(lambda seconds: 1.5 ** (int(seconds / 0.6) % 3), slow=0.4)
    assert compared.answers["fast"].reason is timing.Reason.DRIFTED
    assert machine.clock.now / 1e9 < 1.5 * BUDGET_SECONDS


def test_the_budget_ends_a_comparison_of_which_no_more_rounds_become_steady(machine):
    """Six pairs are enough for an interval. Twenty, at which noise may end it, would never come."""
    steady = 1.2  # seconds
    compared = machine.compare(lambda now: 1.0 if now < steady else 1.3 * now / steady)
    assert timing.FEWEST_PAIRS <= compared["fast"].n < timing.FULL_COMPARISON.min_samples
    assert compared.answers["fast"].ratio.median == pytest.approx(2.0)
    assert machine.clock.now / 1e9 < 1.5 * BUDGET_SECONDS


def test_a_short_budget_waits_for_a_moment_of_another_speed_to_pass(machine):
    budget = timing.Budget(min_samples=6, min_seconds=0.2, max_seconds=0.3)
    moment = 0.7  # seconds: about the first stretch
    compared = machine.compare(lambda now: 2.0 if now < moment else 1.0, budget=budget)
    assert compared.answers["fast"].ratio.median == pytest.approx(2.0)
    assert compared.drift == 0.0


def test_a_short_budget_is_exceeded_by_no_more_than_itself(machine):
    """The speed changes all the time, so no rounds can be put together."""
    budget = timing.Budget(min_samples=6, min_seconds=0.3, max_seconds=0.3)
    compared = machine.compare(lambda now: 1.3 ** (int(now / 0.4) % 7), budget=budget)
    assert compared.answers["fast"].reason is timing.Reason.DRIFTED
    two_variants = 2 * budget.max_seconds
    assert machine.clock.now / 1e9 < 2 * two_variants + 0.8, "and one more stretch with its look"


# ---------------------------------------------------------------- other programs


class BusyFor:
    """Stands in for `timing.BackgroundLoad`: other programs use cores in some stretches, and none in the others."""

    def __init__(self, stretches: float, after: int = 0, cores: float = 2.0) -> None:
        self.seen = 0
        self.cores = cores
        self.first, self.last = after + 1, after + stretches

    def __call__(self) -> BusyFor._Count:
        return self._Count(self)

    class _Count:
        def __init__(self, plan: BusyFor) -> None:
            self.plan = plan

        def cores(self) -> float:
            self.plan.seen += 1
            return self.plan.cores if self.plan.first <= self.plan.seen <= self.plan.last else 0.0


def test_rounds_that_others_disturbed_are_taken_again(machine, monkeypatch):
    monkeypatch.setattr(rounds, "BackgroundLoad", BusyFor(stretches=1))
    machine.device = timing.Host()
    compared = machine.compare()
    assert compared["fast"].others == 0.0
    assert compared["fast"].n >= timing.FULL_COMPARISON.min_samples
    assert compared.answers["fast"].ratio is not None


def test_a_machine_that_is_busy_for_good_is_called_so_and_ends(machine, monkeypatch):
    monkeypatch.setattr(rounds, "BackgroundLoad", BusyFor(stretches=float("inf")))
    machine.device = timing.Host()
    compared = machine.compare()
    assert compared["fast"].others == pytest.approx(2.0)
    assert compared.answers["fast"].reason is timing.Reason.BUSY_MACHINE
    assert compared["fast"].n >= timing.FULL_COMPARISON.min_samples
    assert compared["fast"].stop_reason == "others were busy most of the time"
    assert machine.clock.now < 20e9, "it went on taking rounds again"


@pytest.mark.parametrize("watched", [0, 1, 2])
def test_a_machine_that_becomes_busy_for_good_is_called_so(machine, monkeypatch, watched):
    """However many of its devices are watched: looks at their speeds take time as well."""
    monkeypatch.setattr(rounds, "BackgroundLoad", BusyFor(stretches=float("inf"), after=1))
    other = WatchedDevice(label="another GPU", kind="mps", work=machine.device.work)
    devices = {"slow": machine.device, "fast": other if watched == 2 else machine.device}
    compared = machine.compare(on=devices if watched else timing.Host())
    assert compared.answers["fast"].reason is timing.Reason.BUSY_MACHINE
    assert machine.clock.now < 20e9


def test_quiet_stretches_do_not_make_up_for_busy_ones_that_count(machine, monkeypatch):
    """On average over all stretches others use less than a quarter of a core here, and in most of them more."""
    load_of_most = timing.BUSY * 1.2
    monkeypatch.setattr(
        rounds, "BackgroundLoad", BusyFor(stretches=float("inf"), after=2, cores=load_of_most)
    )
    machine.device = timing.Host()
    compared = machine.compare()
    assert compared["fast"].others == pytest.approx(load_of_most)
    assert compared.answers["fast"].reason is timing.Reason.BUSY_MACHINE


def test_disturbed_rounds_that_count_for_lack_of_others_withhold_the_speed_up(machine, monkeypatch):
    """Calls are so slow that the quiet stretch at the beginning has too few pairs for an interval."""
    monkeypatch.setattr(
        rounds, "BackgroundLoad", BusyFor(stretches=float("inf"), after=3, cores=timing.BUSY * 1.2)
    )
    machine.device = timing.Host()
    compared = machine.compare(slow=2.0)
    assert compared.answers["fast"].reason is timing.Reason.BUSY_MACHINE


def test_slow_calls_that_were_disturbed_leave_the_pairs_of_an_interval(machine, monkeypatch):
    """A round of these calls is longer than a stretch has to be, so two stretches that are disturbed are two rounds."""
    monkeypatch.setattr(rounds, "BackgroundLoad", BusyFor(stretches=2))
    work = machine.clock.taking(lambda: 0.6)

    compared = timing.compare(
        {"a": work, "b": work},
        on=timing.Host(),
        baseline="a",
        parity=timing.Unchecked("clocks"),
        clock=machine.clock,
    )

    assert compared["a"].n >= timing.FEWEST_PAIRS
    assert compared["a"].others == 0.0
    assert "2 disturbed rounds" in compared["a"].stop_reason


def test_a_number_of_samples_that_was_asked_for_is_taken_once(machine, monkeypatch):
    monkeypatch.setattr(rounds, "BackgroundLoad", BusyFor(stretches=1))
    machine.device = timing.Host()
    budget = timing.Budget(min_samples=30, max_samples=30)
    assert machine.compare(budget=budget)["fast"].n == 30
    assert machine.clock.now < 5e9


CHILD = """
import sys, time
while time.process_time() < 0.5:
    pass
print("worked", flush=True)
sys.stdin.read()
"""


def test_the_work_of_processes_that_this_one_started_is_its_own():
    before = load._count_own_seconds()
    command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(CHILD)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline().strip() == b"worked"
        running = load._count_own_seconds()
        child.stdin.close()
    assert running - before >= 0.45, "while it runs"
    assert load._count_own_seconds() - before >= 0.45, "and when it has ended"
