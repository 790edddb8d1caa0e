"""One verdict on a machine: fit for measuring now, or not, for which reasons, and what to do."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
from fake_clock import FakeClock

from metallab import device, fitness, machine, timing
from metallab.fitness import Obstacle

QUIET = dataclasses.replace(machine.describe(), power_source="AC", low_power_mode=False)
STEADY = 0.010
"""Seconds of the computation."""


class Planted(device.Device):
    """A device on a fake clock, whose fixed work takes the next of some times."""

    clock: FakeClock
    times: Iterator[float]

    def make_sentinel_work(self):
        return self.clock.taking(lambda: next(self.times))

    def synchronize(self, *results):
        pass

    def active(self):
        return timing.Host().active()


def judge(times=(STEADY,), *, simulated=False, here=QUIET):
    """Judge a machine whose computation takes these times in turns."""
    planted = Planted("cpu", "a planted processor", simulated=simulated)
    object.__setattr__(planted, "clock", FakeClock())
    object.__setattr__(planted, "times", itertools.cycle(times))
    budget = timing.Budget(min_samples=20, max_samples=20, warmup_calls=1, warmup_seconds=0.0)
    return fitness.judge(planted, budget=budget, ask=lambda: here, clock=planted.clock)


@pytest.fixture(autouse=True)
def full_mode_on_a_quiet_machine(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "full")
    monkeypatch.setattr(timing.BackgroundLoad, "cores", lambda self: 0.0)


def test_a_quiet_machine_is_fit():
    judged = judge()
    assert judged.is_fit
    assert judged.obstacles == ()
    assert "a planted processor" in str(judged)


def test_other_programs_make_it_unfit(monkeypatch):
    monkeypatch.setattr(timing.BackgroundLoad, "cores", lambda self: 1.5)
    judged = judge()
    assert judged.obstacles == (Obstacle.BUSY,)
    assert "1.5 cores" in str(judged)


def test_a_speed_that_changed_makes_it_unfit():
    slower = [STEADY] * 24 + [1.3 * STEADY] * 100
    judged = judge(slower)
    assert judged.obstacles == (Obstacle.DRIFTED,)
    assert "30%" in str(judged)


def test_times_far_apart_make_it_unfit():
    judged = judge([STEADY, 2 * STEADY])
    assert judged.obstacles == (Obstacle.RESTLESS,)
    assert not judged.is_fit


@pytest.mark.parametrize(
    ("changes", "obstacles"),
    [
        pytest.param({"power_source": "battery"}, (Obstacle.BATTERY,), id="battery"),
        pytest.param({"low_power_mode": True}, (Obstacle.LOW_POWER,), id="low power"),
        pytest.param(
            {"power_source": "battery", "low_power_mode": True},
            (Obstacle.BATTERY, Obstacle.LOW_POWER),
            id="both",
        ),
        pytest.param({"power_source": None, "low_power_mode": None}, (), id="unknown"),
    ],
)
def test_its_power_counts(changes, obstacles):
    assert judge(here=dataclasses.replace(QUIET, **changes)).obstacles == obstacles


def test_every_obstacle_is_told(monkeypatch):
    monkeypatch.setattr(timing.BackgroundLoad, "cores", lambda self: 1.5)
    told = str(judge(here=dataclasses.replace(QUIET, power_source="battery")))
    assert "1.5 cores" in told
    assert "plug it in" in told


@pytest.mark.parametrize("reason", list(timing.Reason))
def test_whatever_withholds_a_speed_up_is_told(monkeypatch, reason):
    withheld = timing.Withheld(reason, "the moon is full")
    monkeypatch.setattr(fitness, "why_withheld", lambda *measured, drift: withheld)
    assert "the moon is full" in str(judge())


def test_power_that_nobody_told_is_called_unknown():
    known = str(judge())
    unknown = str(judge(here=dataclasses.replace(QUIET, power_source=None)))
    assert "mains" in known
    assert "mains" not in unknown


@pytest.mark.parametrize(
    ("simulated", "mode", "word"),
    [
        pytest.param(True, "full", "simulated", id="simulated"),
        pytest.param(False, "fast", "fast mode", id="fast mode"),
    ],
)
def test_what_has_no_times_of_its_own_is_not_judged(monkeypatch, simulated, mode, word):
    monkeypatch.setenv("METALLAB_MODE", mode)
    judged = judge(simulated=simulated)
    assert not judged.is_judged
    assert not judged.is_fit
    assert judged.obstacles == ()
    assert word in str(judged)
