"""A child that is forked has what a fresh interpreter would have; where that is not sure, there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from test_isolated import forked, gone
from test_turns import until

from metallab import forking, isolated

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is forked is the simulated GPU's")


@pytest.mark.parametrize(
    ("served", "text"),
    [
        (True, "import torch"),
        (True, "'''What it does.'''\nfrom __future__ import annotations\nimport os, sys\nfrom torch import nn\n1 / 0"),
        (True, "import numpy as np\nfrom metallab.pytorch import blame\nimport metalsim\nimport torch.nn"),
        (True, "from whole import model"),
        (True, "import functions\nfrom whole import model"),
        (False, ""),
        (False, "import os"),
        (False, "import functions"),
        (False, "import os\nos.environ['PYTORCH_ENABLE_MPS_FALLBACK'] = '1'\nimport torch"),
        (False, "x = 1\nimport torch"),
        (False, "import sklearn\nimport torch"),
        (False, "import torchvision"),
        (False, "from . import torch"),
        (False, "if True:\n    import torch"),
        (False, "@print\ndef f(): pass\nimport torch"),
        (False, "def f(x=print()): pass\nimport torch"),
        (False, "def f(*, x=print()): pass\nimport torch"),
        (False, "def f(x: print()): pass\nimport torch"),
        (False, "def f() -> print(): pass\nimport torch"),
        (False, "import settings\nimport torch"),
        (False, "import round\nimport torch"),
        (False, "import torch ("),
    ],
)
def test_only_a_text_that_begins_with_torch_is_served(served, text):
    modules = {
        "whole": "import functions\nimport torch\nmodel = torch.nn.ReLU()",
        "functions": "import copy\ndef f(a, /, b, *c, d, **e):\n    print(a)",
        "settings": "import os\nos.environ['X'] = '1'",
        "round": "import round\nimport torch",  # it imports itself
    }
    assert forking.may_serve(text, modules) is served


def test_each_child_is_as_new(monkeypatch):
    """What the one before it did to the device, to Python and to the environment has gone; nothing is drawn twice."""
    look = """
import os, random, sys
import metalsim, numpy as np, torch
drawn = random.random(), np.random.rand(), torch.rand(1).item(), torch.rand(1, device="mps").item()
counted = metalsim.counters().copies_to_host  # of what was just drawn
state = counted, metalsim.planted(), torch.mps.current_allocated_memory(), torch.mps.current_stream().stream_id
known = "HERE" in os.environ or hasattr(torch, "here"), sys.argv[2:], os.getsid(0) == os.getppid()
files = len(os.listdir("/proc/self/fd"))
"""
    leave = """
import os, torch, metalsim
os.environ["HERE"] = torch.here = "yes"
torch.manual_seed(1)
kept = torch.ones(1000, device="mps").sum().item()
torch.mps.set_per_process_memory_fraction(0.5)
metalsim.plant("addcdiv, odd offset").__enter__()
os.open("/dev/null", os.O_RDONLY)
"""
    names, run = ["drawn", "state", "known", "files"], forked(monkeypatch)
    fresh = isolated.run(look, results=names, device="mps")
    first = run(look, results=names)
    assert run(leave).ok
    second = run(look, results=names)
    for name in ("state", "known", "files"):
        assert first[name] == second[name] == fresh[name]
    assert first["known"] == (False, ["sim"], True)
    assert not set(first["drawn"]) & set(second["drawn"])


def test_one_thread_is_one_thread_there_too(monkeypatch):
    code = (
        "import os, torch\nseen = os.environ['OMP_NUM_THREADS'], len(os.sched_getaffinity(0)), torch.get_num_threads()"
    )
    assert forked(monkeypatch)(code, results=["seen"], threads=1)["seen"] == ("1", 1, 1)


def test_a_module_of_the_tasks_own_is_not_taken_for_one_that_the_server_has(monkeypatch):
    mine = {"typing_extensions": "HERE = 1"}  # which torch imports
    run, text = forked(monkeypatch), "import mine\nhere = mine.HERE, __import__('sys').modules['mine'].__file__"
    outcome = run(text, results=["here"], modules={"mine": "HERE = 2"})
    assert outcome["here"][0] == 2
    assert Path(outcome["here"][1]).name == "mine.py"
    with pytest.raises(AssertionError, match="a fresh interpreter would come"):
        run("import typing_extensions", modules=mine)


SERVER = """
import functools, os, sys, time
from metallab import forking
forking.serve(lambda: exec({prepare!r}), lambda folder: exec({work!r}) or 0)
"""


@pytest.fixture
def ask(tmp_path):
    """Asks a server, of which we say how it prepares and what it does, for a child."""

    def child(prepare="", work="", timeout=300.0):
        command = [sys.executable, "-P", "-c", SERVER.format(prepare=prepare, work=work), "argument"]
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            environment = {**os.environ, "PYTHONUNBUFFERED": ""}
            return forking.child(command, environment, {"TASK": "1"}, tmp_path, (out, err), timeout)

    yield child
    forking._stop()


def test_a_server_is_used_again_until_something_differs(ask, tmp_path, monkeypatch):
    pids = []
    work = "print(os.getppid(), os.environ['TASK'], flush=True)"
    changes = [
        lambda: None,
        lambda: None,
        lambda: monkeypatch.setenv("CHANGED", "1"),
        lambda: monkeypatch.chdir(tmp_path),
    ]
    for change in changes:
        change()
        assert ask(work=work).wait(300) == 0
        pids.append(int((tmp_path / "out").read_text().split()[0]))
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3
    assert [gone(pid) for pid in pids] == [True, True, True, False]


@pytest.mark.parametrize(
    "prepare",
    [
        "import threading; threading.Thread(target=time.sleep, args=[600], daemon=True).start()",
        "print('a warning, which belongs below the cell', flush=True)",
        "print('a warning', file=sys.stderr)",
        "1 / 0",
        "os.abort()",
        "del os.pidfd_open; os.pidfd_open",
    ],
)
def test_where_anything_is_odd_there_is_no_child(prepare, ask):
    assert ask(prepare) is None
    assert ask(work="pass").wait(300) == 0, "the next one is served"


def test_a_server_that_fails_is_tried_twice(ask, tmp_path):
    """The first time the simulated GPU may have been built, which is told."""
    tries = tmp_path / "tries"
    prepare = f"open({str(tries)!r}, 'a').write('x'); print('building', flush=True)"
    assert [ask(prepare) for _ in range(4)] == [None] * 4
    assert tries.read_text() == "xx"
    for _ in range(3):  # one that does not fail may be started as often as one likes
        assert ask().wait(300) == 0
        forking._stop()


def test_a_server_that_takes_too_long_is_ended(ask, tmp_path, monkeypatch):
    number = tmp_path / "number"
    prepare = f"print(os.getpid(), file=open({str(number)!r}, 'w'), flush=True); time.sleep(600)"
    receive = forking._Server.receive

    def impatient(server, timeout):
        until(lambda: number.exists() and number.read_text().endswith("\n"))
        return receive(server, 0.01)

    monkeypatch.setattr(forking._Server, "receive", impatient)
    assert ask(prepare) is None
    assert gone(int(number.read_text()))


def test_while_a_child_is_at_work_there_is_no_other(ask, tmp_path):
    go = tmp_path / "go"
    work = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nos._exit(7)"
    first = ask(work=work)
    assert ask(work=work) is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.01)
    go.touch()
    assert (first.wait(300), first.wait(300)) == (7, 7)
    assert ask(work="").wait(300) == 0


def test_an_error_of_our_own_is_told_as_an_interpreter_would(ask, tmp_path):
    """As where the disk is full and the answer cannot be written."""
    assert ask(work="print('printed'); 1 / 0").wait(300) == 1
    assert (tmp_path / "out").read_text() == "printed\n"
    assert (tmp_path / "err").read_text().endswith("ZeroDivisionError: division by zero\n")


def test_a_child_whose_server_is_killed_counts_as_killed(ask, tmp_path):
    go = tmp_path / "go"
    work = f"os.path.exists({str(go)!r}) or time.sleep(600)"
    child = ask(work=work)
    process = psutil.Process(child.pid)
    forking._server._process.kill()
    try:
        assert child.wait(300) == -signal.SIGKILL
    finally:
        process.kill()
    go.touch()
    assert ask(work=work) is None, "that is noticed when one asks"
    assert ask(work=work).wait(300) == 0


def test_ctrl_c_before_there_is_a_child_ends_the_server(ask, monkeypatch):
    def interrupted(server, timeout):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(forking._Server, "is_ready", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask()
    assert forking._server is None
    assert ask().wait(300) == 0, "the next one is served"


def test_ctrl_c_ends_the_child_and_the_next_one_is_served(monkeypatch):
    run, wait, pids = forked(monkeypatch), forking.Child.wait, []

    def interrupted(child, timeout=None):
        pids.append(child.pid)
        if len(pids) == 1:
            raise KeyboardInterrupt
        return wait(child, timeout)

    monkeypatch.setattr(forking.Child, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("import time; time.sleep(600)")
    assert gone(pids[0])
    assert run("").ok


@pytest.mark.parametrize("end", ["sys.exit()", "os.kill(os.getpid(), 9)"])
def test_it_ends_with_the_process_that_asked_and_so_does_the_child_at_work(end, tmp_path):
    program = f"""
import os, sys, tempfile
from pathlib import Path
from metallab import forking
command = [sys.executable, "-P", "-c", {SERVER.format(prepare="", work="time.sleep(600)")!r}, "argument"]
with tempfile.TemporaryFile() as out:
    child = forking.child(command, dict(os.environ), {{}}, Path({str(tmp_path)!r}), (out, out), 300)
print(forking._server._process.pid, child.pid, flush=True)
{end}
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600).stdout
    pids = [int(word) for word in told.split()]
    assert len(pids) == 2
    until(lambda: gone(*pids))
