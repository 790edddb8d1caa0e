"""Launches in fresh processes: each stage's time is its own, and nothing is compared that may not be.

The processes have a clock that moves only when they say so.
"""

from __future__ import annotations

import dataclasses

import filelock
import numpy as np
import pytest

from metallab import allowance, checks, isolated, launches
from metallab.device import Device
from metallab.timing import Measurement

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
sitecustomize.after(2 if os.path.exists(HERE + "/seen") else 20)
open(HERE + "/seen", "w").close()
calls = []
def answer(x):
    calls.append(1)
    sitecustomize.after(4 if len(calls) == 1 else 1)
    return x + 1
"""
CPU = Device("cpu", "a CPU")
ROUTE = launches.Route("import sitecustomize; sitecustomize.after(3)", LOAD)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    (tmp_path / "sitecustomize.py").write_text(CLOCK)  # Python imports it when it starts
    np.save(tmp_path / "x.npy", np.zeros(2))
    return tmp_path


def test_stages_are_timed_apart(here):
    launch = launches.measure({"a": ROUTE}, here, processes=2, on=CPU)["a"]
    times = {stage: (part.samples, part.first_call) for stage, part in launch.parts.items()}
    assert times == {
        "import": ((3, 3), 3),
        "load": ((20, 2), 20),
        "first call": ((4, 4), 4),
        "first answer": ((27, 9), 27),
        "steady": ((1, 1), 1),
    }
    assert launch.output.tolist() == [1, 1]
    assert [part.name for part in launch.measurements()][:2] == ["a: import", "a: load"]


def test_a_cold_cache_is_emptied_and_outputs_are_compared(here):
    load = (
        "import os, pathlib\ncache = pathlib.Path(os.environ['CACHE'])\n"
        "answer = lambda x, warm=cache.exists(): x + warm\ncache.mkdir(exist_ok=True)"
    )
    cold = launches.Route("", load, {"CACHE": "{here}/cache"}, emptied="cache")
    launch = launches.measure({"cold": cold}, here, processes=2, on=CPU)["cold"]
    assert launch.output.tolist() == [0, 0]
    (here / "cache").rmdir()
    with pytest.raises(checks.Mismatch):
        launches.measure({"warm": dataclasses.replace(cold, emptied="")}, here, processes=2, on=CPU)


def test_slow_routes_get_fewer_processes_and_it_is_said(here, monkeypatch):
    """Their seconds are planted: what a process takes with everything around it."""
    taken, started = {"quick": 1.0, "slow": 12.0, "cold": 30.0, "stuck": 40.0}, []

    def launch(name, route, folder, samples, timed=launches._timed_launch):
        timed(name, route, folder, samples)
        started.append(name)
        return taken[name]

    monkeypatch.setattr(launches, "_timed_launch", launch)
    within = allowance.Allowance(20, clock=lambda: 0.0)
    routes = {"slow": ROUTE, "cold": dataclasses.replace(ROUTE, emptied="cache"), "quick": ROUTE, "stuck": ROUTE}
    measured = launches.measure(routes, here, processes=3, on=CPU, within=within)
    assert started == ["slow", "cold", "quick", "stuck", "slow", "quick", "quick"]
    counts = {name: (launch.parts["load"].n, launch.parts["load"].stop_reason) for name, launch in measured.items()}
    assert counts == {
        "quick": (3, "3 processes, as asked"),
        "slow": (2, "2 of 3 processes: there was no time for more"),
        "cold": (1, "1 of 3 processes: there was no time for more"),
        "stuck": (1, "1 of 3 processes: there was no time for more"),
    }
    assert len(within.left_out) == 3


def test_a_spare_route_is_left_out_when_time_is_up(here, monkeypatch):
    spent = [0.0]

    def launch(name, route, folder, samples, timed=launches._timed_launch):
        spent[0] += 8.0
        timed(name, route, folder, samples)
        return 8.0

    monkeypatch.setattr(launches, "_timed_launch", launch)
    within = allowance.Allowance(20, clock=lambda: spent[0])
    spare = dataclasses.replace(ROUTE, spare=True)
    routes = {"a": ROUTE, "b": spare, "c": ROUTE, "d": spare, "e": ROUTE}
    assert list(launches.measure(routes, here, processes=1, on=CPU, within=within)) == ["a", "b", "c", "e"]
    assert within.left_out == ["d"]


def test_a_crash_names_the_route(here):
    crash = launches.Route(ROUTE.imports, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(isolated.ChildFailed, match=r"^b: no result 'early' .* killed by SIGSEGV"):
        launches.measure({"a": ROUTE, "b": crash}, here, processes=1, on=CPU)


def test_a_round_is_one_turn_which_its_processes_share(here, monkeypatch):
    """The lock is there before they measure, and they do not wait for it."""
    (queue := here / "turns").mkdir()
    monkeypatch.setenv("METALLAB_TURNS", str(queue))
    load = "import os\nanswer = lambda x: x + len(os.listdir(os.environ['METALLAB_TURNS']))"
    launch = launches.measure({"a": launches.Route("", load)}, here, processes=2, on=CPU)["a"]
    assert launch.output.tolist() == [1, 1]
    with filelock.FileLock(queue / "turn.lock").acquire(blocking=False):
        pass  # the turn was given back


def made(launches, name, seconds, simulated=False, output=1.0, others=0.0):
    parts = {
        stage: Measurement(stage, "latency", tuple(seconds), 1.0, 1, 0, "", "full", "a CPU", simulated, others)
        for stage in (*launches.STAGES, launches.TOTAL, launches.STEADY)
    }
    return launches.Launch(name, parts, np.full(2, output, np.float32))


def test_only_real_and_equal_launches_are_compared():
    every = {
        "slow": made(launches, "slow", [10.0] * 6),
        "fast": made(launches, "fast", [1.0] * 6),
        "wrong": made(launches, "wrong", [1.0] * 6, output=2.0),
        "sim": made(launches, "sim", [1.0] * 6, simulated=True),
    }
    assert "10.0 times as fast" in launches.describe(every, "fast", "slow")
    with pytest.raises(checks.Mismatch):
        launches.describe(every, "wrong", "slow")
    assert "sim: no speed-up is given: simulated" in launches.describe(every, "sim", "slow")
    every["busy"] = made(launches, "busy", [1.0] * 6, others=0.5)
    assert "no speed-up is given: busy machine" in launches.describe(every, "busy", "slow")
    assert launches.spread(every["sim"].parts["load"]) == "simulated: no time"
    assert str(every["sim"]) == "sim: simulated: no time"


def test_no_simulated_time_is_drawn():
    real, simulated = made(launches, "a", [1.0] * 6), made(launches, "b", [7.0] * 6, True)
    figure = launches.picture([real, simulated], heading="h")
    assert len(figure.axes[0].patches) == len(launches.STAGES)
    assert "simulated, no time: b" in figure.get_suptitle()
    assert "SIMULATED" in launches.picture([simulated], heading="h").get_label()


def test_a_simulated_route_is_launched_once_and_named_so(here, monkeypatch):
    """Its times are never shown, so more of them would be waste; a real route beside it keeps its processes."""
    gpu = Device("mps", "a simulated GPU", simulated=True)
    started, seconds = [], dict.fromkeys((*launches.STAGES, launches.TOTAL, launches.STEADY), 1.0)

    def launch(route, folder):
        started.append(route.device)
        return launches._Sample(seconds, 0.0, np.zeros(2))

    monkeypatch.setattr(launches, "_launch", launch)
    routes = {"a": ROUTE, "b": dataclasses.replace(ROUTE, device="mps")}
    measured = launches.measure(routes, here, processes=2, on=gpu)
    assert sorted(started) == ["cpu", "cpu", "mps"]
    assert [(launch.simulated, launch.parts["load"].device) for launch in measured.values()][1] == (True, gpu.label)
    assert not measured["a"].simulated
    assert list(launches.portable(CPU)) == ["eager", "ONNX Runtime"], "fast: none that has to be compiled"
