"""Launches in fresh processes: each stage's time is its own, and a slow machine leaves some out.

The processes have a clock that moves only when they say so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import filelock
import numpy as np
import pytest

from metallab import checks, isolated, launches
from metallab.device import Device

CLOCK = """
import time
ticks = 0
def after(seconds):
    global ticks
    ticks += int(seconds * 1e9)
time.perf_counter_ns = lambda: ticks
"""
LOAD = """
import os
sitecustomize.after(2 if os.path.exists("seen") else 20)
open("seen", "w").close()
calls = []
def answer(x):
    calls.append(1)
    sitecustomize.after(4 if len(calls) == 1 else 1)
    return x + 1
"""
CPU = Device("cpu", "a CPU")
WAY = launches.Way("import sitecustomize; sitecustomize.after(3)", LOAD)


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put into a folder what launches start from: an input, and the clock."""
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setattr(launches, "QUIET", 0.0)
    (folder / "sitecustomize.py").write_text(CLOCK)  # Python imports it when it starts
    np.save(folder / "x.npy", np.zeros(2))
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    return prepare(tmp_path, monkeypatch)


def measured(ways, here, rounds=2, on=CPU, seconds=1e6, **clock):
    return launches.measure(ways, here, rounds=rounds, on=on, seconds=seconds, **clock)


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Two launches of one way."""
    with pytest.MonkeyPatch.context() as patch:
        return measured({"a": WAY}, prepare(tmp_path_factory.mktemp("here"), patch))["a"]


def test_stages_are_timed_apart(launch):
    assert {stage: part.samples for stage, part in launch.parts.items()} == {
        "import": (3, 3),
        "load": (20, 2),
        "first call": (4, 4),
        "first answer": (27, 9),
    }
    assert [part.first_call for part in launch.parts.values()] == [3, 20, 4, 27]


def test_a_launch_keeps_its_answer(launch):
    assert launch.output.tolist() == [1, 1]


def test_a_stage_is_named_by_its_way(launch):
    assert launch.parts["import"].name == "a: import"
    assert launch.parts["load"].name == "a: load"


def test_a_launch_is_told_by_its_first_answer(launch):
    assert str(launch).startswith("a: the first answer takes 18")


CACHED = """
import os, pathlib
cache = pathlib.Path(os.environ["CACHE"])
answer = lambda x, warm=cache.exists(): x + warm
cache.mkdir(exist_ok=True)
"""
"""Loads what adds 1 where the launch before left a cache."""
WARM = launches.Way("", CACHED, {"CACHE": "{here}/cache"})


def test_a_cold_cache_is_emptied(here):
    cold = dataclasses.replace(WARM, emptied="cache")
    assert measured({"cold": cold}, here)["cold"].output.tolist() == [0, 0]


def test_outputs_of_launches_are_compared(here):
    """The second one finds the first one's cache, and answers something else."""
    with pytest.raises(checks.Mismatch):
        measured({"warm": WARM}, here)


@pytest.fixture
def slow_clock(monkeypatch):
    """A clock in seconds, of which each launch takes 8."""
    spent, launch = [0.0], launches._launch

    def launch_slowly(*given):
        spent[0] += 8.0
        return launch(*given)

    monkeypatch.setattr(launches, "_launch", launch_slowly)
    return lambda: spent[0]


def test_what_there_is_no_time_for_is_left_out(here, slow_clock, capsys):
    spare = dataclasses.replace(WAY, spare=True)
    ways = {"a": WAY, "b": spare, "c": WAY, "d": spare, "e": WAY}

    made = measured(ways, here, seconds=20, clock=slow_clock)

    assert {name: each.parts["load"].n for name, each in made.items()} == dict.fromkeys("abce", 1)
    assert made["a"].parts["load"].stop_reason == "1 of 2 processes"
    assert ": d; rounds of launches 2 (" in capsys.readouterr().out


def test_a_crash_names_the_way(here):
    crash = launches.Way(WAY.imports, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(isolated.ChildFailed, match=r"^b: no result 'early' .* killed by SIGSEGV"):
        measured({"a": WAY, "b": crash}, here, rounds=1)


def test_a_round_is_one_turn_which_its_processes_share(here, monkeypatch):
    """The lock is there before they measure, and they do not wait for it."""
    (queue := here / "turns").mkdir()
    monkeypatch.setenv("METALLAB_TURNS", str(queue))
    load = "import os\nanswer = lambda x: x + len(os.listdir(os.environ['METALLAB_TURNS']))"
    assert measured({"a": launches.Way("", load)}, here)["a"].output.tolist() == [1, 1]
    with filelock.FileLock(queue / "turn.lock").acquire(blocking=False):
        pass  # the turn was given back


def test_no_simulated_time_is_shown(here, monkeypatch):
    gpu = Device("mps", "a simulated GPU", simulated=True)
    seconds = dict.fromkeys((*launches.STAGES, launches.TOTAL), 1.0)
    monkeypatch.setattr(launches, "_launch", lambda *_: launches._Sample(seconds, 0.0, np.zeros(2)))

    made = measured({"a": WAY, "b": dataclasses.replace(WAY, device="mps")}, here, on=gpu)
    assert [launch.parts["load"].simulated for launch in made.values()] == [False, True]
    assert made["b"].parts["load"].device == gpu.label
    assert str(made["b"]).startswith("b: simulated: ")
