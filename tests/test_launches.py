"""Launches in fresh processes: each stage's time is its own, and nothing is compared that may not be.

The processes have a clock that moves only when they say so.
"""

from __future__ import annotations

import dataclasses
import os
import types

import numpy as np
import pytest

from metallab import allowance, checks, isolated, launches
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
ROUTE = launches.Route("import sitecustomize; sitecustomize.after(3)", LOAD)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    (tmp_path / "sitecustomize.py").write_text(CLOCK)  # Python imports it when it starts
    np.save(tmp_path / "x.npy", np.zeros(2))
    return tmp_path


def test_stages_are_told_apart_and_the_first_process_is_kept_apart(here):
    found = launches.measure({"a": ROUTE}, here, processes=2, label="a CPU")["a"]
    told = {stage: (part.samples, part.first_call) for stage, part in found.parts.items()}
    assert told == {
        "import": ((3, 3), 3),
        "load": ((2, 2), 20),
        "first call": ((4, 4), 4),
        "first answer": ((9, 9), 27),
        "steady": ((1, 1), 1),
    }
    assert found.output.tolist() == [1, 1]
    assert [part.name for part in found.measurements()][:2] == ["a: import", "a: load"]


def test_a_cold_cache_is_emptied_and_outputs_are_compared(here):
    load = (
        "import os, pathlib\ncache = pathlib.Path(os.environ['CACHE'])\n"
        "answer = lambda x, found=cache.exists(): x + found\ncache.mkdir(exist_ok=True)\n"
        "runs = pathlib.Path(HERE, 'runs')\nruns.write_text(str(int(runs.read_text()) + 1))"
    )
    (runs := here / "runs").write_text("0")
    cold = launches.Route("", load, {"CACHE": "{here}/cache"}, emptied="cache")
    found = launches.measure({"cold": cold}, here, processes=2, label="a CPU")["cold"]
    assert found.output.tolist() == [0, 0]
    assert runs.read_text() == "2", "every process of it counts"
    (here / "cache").rmdir()
    with pytest.raises(checks.Mismatch):
        launches.measure({"warm": dataclasses.replace(cold, emptied="")}, here, processes=2, label="a CPU")


def test_slow_routes_get_fewer_processes_and_it_is_said(here, monkeypatch):
    """Their seconds are planted: what a process takes with everything around it."""
    taken, started = {"quick": 1.0, "slow": 8.0, "cold": 30.0, "stuck": 40.0}, []

    def launch(name, route, folder, samples, timed=launches._timed_launch):
        timed(name, route, folder, samples)
        started.append(name)
        return taken[name]

    monkeypatch.setattr(launches, "_timed_launch", launch)
    within = allowance.Allowance(20, clock=lambda: 0.0)
    routes = {"slow": ROUTE, "cold": dataclasses.replace(ROUTE, emptied="cache"), "quick": ROUTE, "stuck": ROUTE}
    found = launches.measure(routes, here, processes=3, label="a CPU", within=within)
    assert started == ["slow", "cold", "quick", "stuck", "slow", "quick", "slow", "quick", "quick"]
    told = {name: (launch.parts["load"].n, launch.parts["load"].stop_reason) for name, launch in found.items()}
    assert told == {
        "quick": (3, "3 processes, as asked"),
        "slow": (2, "2 of 3 processes: there was no time for more"),
        "cold": (1, "1 of 3 processes: there was no time for more"),
        "stuck": (1, "1 of 3 processes: there was no time for more"),
    }
    assert within.left_out == [
        "1 of 3 processes of slow (8 s each)",
        "2 of 2 processes of cold (30 s each)",
        "3 of 3 processes of stuck (40 s each)",
    ]
    assert launches.compare(found, "quick", "slow").n == 2


def test_a_crash_names_the_route(here):
    crash = launches.Route(ROUTE.imports, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(isolated.ChildFailed, match=r"^b: no result 'early' .* killed by SIGSEGV"):
        launches.measure({"a": ROUTE, "b": crash}, here, processes=1, label="a CPU")


def test_a_round_is_one_turn_which_its_processes_share(here, monkeypatch):
    """They see one number in the queue, also before they measure, and do not wait for it."""
    (queue := here / "turns").mkdir()
    monkeypatch.setenv("METALLAB_TURNS", str(queue))
    load = "import os\nanswer = lambda x: x + len(os.listdir(os.environ['METALLAB_TURNS']))"
    found = launches.measure({"a": launches.Route("", load)}, here, processes=2, label="a CPU")["a"]
    assert found.output.tolist() == [1, 1]
    assert list(queue.iterdir()) == [], "the turn was given back"


def test_the_compiled_route_compiles_the_stored_model(tmp_path, monkeypatch):
    """Without its compiler, which takes long: a fast run of notebook 09 leaves this route out."""
    import safetensors.torch
    import torch

    net, x, compiled = types.SimpleNamespace(make=lambda: torch.nn.Linear(2, 3)), np.ones((1, 2), np.float32), []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    model = net.make().eval()
    launches.store(model, x, tmp_path)
    space = {"HERE": str(tmp_path), "torch": torch, "net": net, "safetensors": safetensors}
    exec(launches.COMPILED, space)
    checks.assert_close(model(torch.from_numpy(x)).detach().numpy(), space["answer"](x), "float32")
    assert [type(each) for each in compiled] == [torch.nn.Linear]
    assert not compiled[0].training


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
    ratio = launches.compare(every, "fast", "slow")
    assert (ratio.median, ratio.low, ratio.high, ratio.n) == (10, 10, 10, 6)
    assert "10.0 times as fast" in launches.describe(every, "fast", "slow")
    with pytest.raises(checks.Mismatch):
        launches.compare(every, "wrong", "slow")
    with pytest.raises(ValueError, match="not compared"):
        launches.compare(every, "sim", "slow")
    assert "sim against slow: no speed-up is given: simulated" in launches.describe(every, "sim", "slow")
    assert launches.quickest({name: every[name] for name in ("slow", "fast", "sim")}).startswith(
        "Smallest median (first answer): fast.\n    first answer: fast is 10.0 times as fast as slow"
    )
    busy = made(launches, "busy", [1.0] * 6, others=0.5)
    said = launches.quickest({"slow": every["slow"], "busy": busy})
    assert said.startswith("Smallest median (first answer): not told.")
    assert "no speed-up is given: busy machine" in said
    assert launches.spread(every["sim"].parts["load"]) == "simulated: no time"
    assert launches.spread(every["fast"].parts["load"]) == "1 s (1 s to 1 s)"
    assert launches.spread(made(launches, "few", [1.0]).parts["load"]) == "1 s"
    assert launches.spread(made(launches, "few", [1.0, 3.0]).parts["load"]) == "2 s (each of 2: 1 s, 3 s)"


def test_no_simulated_time_is_drawn():
    figure = launches.picture([made(launches, "a", [1.0] * 6), made(launches, "b", [7.0] * 6, True)], heading="h")
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sorted(words) == ["1 s", "1 s", "simulated: no time", "simulated: no time"]
    assert "SIMULATED" not in figure.get_suptitle(), "most of it is real"
    assert "BUSY" not in figure.get_suptitle()
    assert "BUSY" in launches.picture([made(launches, "a", [1.0] * 6, others=0.5)], heading="h").get_suptitle()
    alone = launches.picture([made(launches, "b", [7.0] * 6, True)], heading="h")
    assert "SIMULATED" in alone.get_suptitle()


def test_a_file_is_dropped_from_memory(tmp_path):
    files = [tmp_path / "file", tmp_path / "control"]
    for file in files:
        file.write_bytes(bytes(100_000))
    before = launches.in_memory(files[0])
    if before is None:
        pytest.skip("this operating system does not tell what is in memory")
    assert before == 1
    with files[1].open("rb") as control:
        os.fsync(control.fileno())
        os.posix_fadvise(control.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if launches.in_memory(files[1]) == 1:
        pytest.skip("this file system keeps its files in memory")
    launches.evict(files[0])
    first, *again = (launches.in_memory(files[0]) for _ in range(3))
    assert first < 1
    assert again == [first] * 2, "asking reads nothing"


def test_a_damaged_copy_differs_in_a_byte(tmp_path):
    package = tmp_path / "p"
    package.mkdir()
    (package / "large").write_bytes(b"0123")
    (package / "small").write_bytes(b"0")
    package.with_suffix(".json").write_text("{}")
    for _ in range(2):
        launches.damage(package, tmp_path / "q")
    assert (tmp_path / "q" / "large").read_bytes() == b"012\xcc"
    assert (tmp_path / "q" / "small").read_bytes() == b"0"
    assert (package / "large").read_bytes() == b"0123"
