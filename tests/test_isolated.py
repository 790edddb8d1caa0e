"""Code in a child process: whatever becomes of it is told, and nothing of it is left behind."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from metallab import forking, isolated, needs

linux = pytest.mark.skipif(sys.platform != "linux", reason="what is forked is the simulated GPU's, which is Linux's")


@pytest.fixture(params=["fresh", pytest.param("forked", marks=linux)])
def run(request, monkeypatch):
    """`isolated.run`, in a fresh interpreter and in a forked child: what is true of one is true of the other."""
    run = isolated.run if request.param == "fresh" else forked(monkeypatch)
    return lambda source, **given: run(source, **{"timeout": 1800, **given})


@functools.cache
def _build():
    """The simulated GPU is there: a server that has to build it says so, and is not used."""
    assert isolated.run("", device="mps", timeout=1800).ok


def forked(monkeypatch):
    """`isolated.run` of any text in a forked child; without one the test fails."""
    _build()
    fork = forking.child

    def child(*given):
        made = fork(*given)
        assert made is not None, "a fresh interpreter would come instead"
        return made

    def run(source, **given):
        monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # else each test would start a server of its own
        return isolated.run(source, device="mps", forked=True, **given)

    monkeypatch.setattr(forking, "may_serve", lambda *_: True)
    monkeypatch.setattr(forking, "child", child)
    return run


def test_what_it_prints_and_its_results_come_back(run):
    outcome = run(
        "import numpy as np\nprint('one')\nx, secret = np.arange(3.0), 1\nprint('two', end='')", results=["x"]
    )
    assert outcome.ok
    assert str(outcome) == "well"
    assert outcome.printed == "one\ntwo"
    assert np.array_equal(outcome["x"], [0, 1, 2])
    with pytest.raises(isolated.ChildFailed, match=r"no result 'secret'.*not asked for; results are x"):
        outcome["secret"]


def test_an_exception_is_a_line_and_the_place_where_it_was(run):
    outcome = run("def f():\n    return 1 / 0\n\nprint('before')\nf()\n", results=["x"])
    assert (outcome.ended, outcome.printed) == ("raised", "before\n")
    assert str(outcome) == "raised: ZeroDivisionError: division by zero"
    assert "line 5" in outcome.detail
    assert "return 1 / 0" in outcome.detail
    assert "isolated.py" not in outcome.detail, "our own lines are of no interest"
    with pytest.raises(isolated.ChildFailed, match=r"no result 'x' came back .*division by zero"):
        outcome["x"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("raise ValueError", "ValueError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("x = lambda: 1", "turn it into NumPy arrays"),
        ("y = 1", "the code ended without setting x"),
        ("x = (", "SyntaxError: '(' was never closed"),
    ],
)
def test_whatever_is_raised_is_told(run, code, reason):
    outcome = run(code, results=["x"])
    assert outcome.ended == "raised"
    assert reason in outcome.reason


def test_a_hanging_child_is_stopped_with_all_that_it_started(run, tmp_path, monkeypatch):
    """Also a process that it started through another one, which has ended since. Its time is up once it has begun."""
    number = tmp_path / "number"
    code = f"""
import subprocess, time
print("started", flush=True)
subprocess.run("sleep 600 > /dev/null 2>&1 & echo $! > '{number}'", shell=True)
time.sleep(600)
"""

    def impatient(wait):
        def waits(child, timeout=None):
            if timeout == 5000:
                while not (number.exists() and number.read_text().endswith("\n")):
                    time.sleep(0.01)
                raise subprocess.TimeoutExpired(code, timeout)
            try:
                return wait(child, 300 if timeout is None else timeout)
            except subprocess.TimeoutExpired:
                raise AssertionError("it waits for ever") from None

        return waits

    for kind in (subprocess.Popen, forking.Child):
        monkeypatch.setattr(kind, "wait", impatient(kind.wait))
    outcome = run(code, timeout=5000)
    monkeypatch.undo()
    assert (outcome.ended, outcome.printed) == ("hung", "started\n")
    assert "longer than 5000 s" in outcome.reason
    assert gone(int(number.read_text()))
    with pytest.raises(isolated.ChildFailed, match="longer than 5000 s"):
        outcome["x"]


def gone(*pids: int) -> bool:
    """Whether these processes have ended; a zombie that nobody waits for has."""

    def ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(ended, pids))


def test_a_full_disk_is_a_line(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(isolated.Path, "write_bytes", full)
    with pytest.raises(
        isolated.ChildFailed, match=r"no child process: .* \(No space left on device\); make room there"
    ):
        isolated.run("1")


AWAY = """
import os, subprocess, sys
empty = {} if sys.platform == "linux" else None  # a Mac finds what has kept its environment
print(subprocess.Popen(["sleep", "600"], start_new_session=True, env=empty).pid, flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "ended", "reason"),
    [
        ("", "well", ""),
        ("1 / 0", "raised", "ZeroDivisionError: division by zero"),
        ("os.abort()", "crashed", "the process was killed by SIGABRT"),
        (
            "os.kill(os.getpid(), 9)",
            "crashed",
            "the process was killed by SIGKILL (often the system, for lack of memory)",
        ),
        ("os._exit(3)", "crashed", "the process exited with code 3"),
        ("os._exit(0)", "crashed", "the process exited with code 0 before it answered"),
    ],
)
def test_however_it_ends_that_is_a_sentence_and_no_child_of_its_own_survives(run, ending, ended, reason):
    """Nor one in a session of its own. What it printed is there."""
    outcome = run(AWAY + ending)
    assert (outcome.ended, outcome.reason) == (ended, reason)
    assert gone(int(outcome.printed))


def test_folders_of_modules_are_added_to_those_that_there_are(run, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/usual", prepend=os.pathsep)
    code = "import sys\nfolders = [path for path in sys.path if path in ('/usual', '/given')]"
    assert run(code, results=["folders"], environment={"PYTHONPATH": "/given"})["folders"] == ["/given", "/usual"]
    assert run(code, results=["folders"])["folders"] == ["/usual"]


def test_one_thread_is_one_thread(monkeypatch):
    """By variables, which count where no core can be assigned, as on a Mac, and by the core."""
    names = (
        *("OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NPROC", "PJRT_NPROC"),
        *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
    )
    for name in names:
        monkeypatch.delenv(name, raising=False)
    code = f"""
import os
variables = [os.environ.get(name) for name in {names}]
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
"""
    one, all_of_them = (isolated.run(code, results=["variables", "cores"], threads=threads) for threads in (1, None))
    assert (one["variables"], all_of_them["variables"]) == (["1"] * 6, [None] * 6)
    if sys.platform == "linux":
        assert (one["cores"], all_of_them["cores"]) == (1, len(os.sched_getaffinity(0)))
    with pytest.raises(ValueError, match="threads is 4"):
        isolated.run("", threads=4)


@linux
def test_without_a_device_it_is_forked_too_and_has_none(monkeypatch):
    code = """
import torch
import atexit
atexit.register(print, "at its end")
seen = torch.backends.mps.is_available(), torch.ones(2).sum().item()
"""
    assert isolated.run(code, results=["seen"], forked=True).ok
    forks = _counted(monkeypatch)
    outcome = isolated.run(code, results=["seen"], forked=True)
    assert outcome["seen"] == (False, 2.0)
    assert outcome.printed == "at its end\n"
    assert forks == [True]


def _counted(monkeypatch):
    """Whether each process that is asked for comes from the server."""
    made, fork = [], forking.child

    def child(*given):
        forked = fork(*given)
        made.append(forked is not None)
        return forked

    monkeypatch.setattr(forking, "child", child)
    return made


def test_settings_reach_it_before_anything_is_imported(run):
    outcome = run(
        "import os\nx = os.environ['METALLAB_X'], os.environ['HOME']",
        results=["x"],
        environment={"METALLAB_X": "set"},
    )
    assert outcome["x"] == ("set", os.environ["HOME"])
    assert "METALLAB_X" not in os.environ


def test_nothing_of_the_folder_it_runs_in_and_nothing_typed_gets_in(run, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('a file beside the notebook was imported')")
    monkeypatch.chdir(tmp_path)
    assert run("import json").ok
    assert run("import sys\nx = sys.stdin.read()", results=["x"])["x"] == ""


def test_an_apple_gpu_is_asked_for(monkeypatch):
    """The simulated one, where there is no Mac."""
    asked = {}

    def outcome(arguments, variables, *_):
        assert "METALLAB_DEVICE" not in variables
        asked["device"] = arguments[0]
        return isolated.Outcome("well")

    monkeypatch.setattr(isolated, "_outcome", outcome)
    for platform, kind in (("linux", "sim"), ("darwin", "mps")):
        monkeypatch.setattr(sys, "platform", platform)
        isolated.run("", device="mps")
        assert asked["device"] == kind
    monkeypatch.setenv("METALLAB_DEVICE", "cpu")
    isolated.run("")
    assert asked["device"] == "cpu"
    with pytest.raises(ValueError, match="device is 'cuda'"):
        isolated.run("", device="cuda")


class Shell:
    """Of IPython's shell what a cell magic needs; ``cell`` is the magic."""

    def __init__(self):
        self.user_ns = {}
        isolated.load_ipython_extension(self)

    def register_magic_function(self, function, kind, name):
        assert (kind, name) == ("cell", "isolated")
        self.cell = function


@pytest.fixture
def shell():
    return Shell()


def test_a_cell_runs_in_a_process_of_its_own(shell, capsys, monkeypatch):
    """What it prints stands below it, its results become variables, and it fails in the notebook if it fails there."""
    cell = shell.cell
    cell("x y", "x, y = 1, [2]\nprint('hello')\nimport os; mark = os.getpid()")
    assert (shell.user_ns["x"], shell.user_ns["y"]) == (1, [2])
    assert "mark" not in shell.user_ns
    assert capsys.readouterr().out == "hello\n"
    with pytest.raises(isolated.ChildFailed, match=r"the process was killed by SIGABRT \(this cell crashed in its own"):
        cell("x", "print('before', flush=True)\nimport os; os.abort()")
    assert capsys.readouterr().out == "before\n"
    assert "x" not in shell.user_ns, "an old result must not be taken for a new one"
    assert shell.user_ns["isolated_outcome"].ended == "crashed"
    cell("n --threads 1 --set NAME='a b' --timeout 3000", "import os\nn = os.environ['NPROC'], os.environ['NAME']")
    assert shell.user_ns["n"] == ("1", "a b")
    with pytest.raises(isolated.ChildFailed, match=r"took longer than 1 s .*this cell hung in its own process"):
        cell("--timeout 1", "import time; time.sleep(600)")
    monkeypatch.setattr(
        isolated, "run", lambda cell, **options: isolated.Outcome("well", printed=str(options["device"]))
    )
    cell("--device mps", "")
    first, last = capsys.readouterr().out.splitlines()
    assert "Apple GPU" in first
    assert last == "mps"


def test_a_result_that_cannot_be_read_here_is_told_and_nothing_old_stays(shell):
    """As a tensor of a device that this process does not have."""
    code = "class Odd:\n    def __reduce__(self):\n        return (int, ('not a number',))\nx = Odd()"
    outcome = isolated.run(code, results=["x"])
    assert outcome.ended == "raised"
    assert outcome.reason.startswith("a result cannot be taken over: invalid literal")
    assert "turn it into NumPy arrays" in outcome.reason
    silent = code.replace("(int, ('not a number',))", "(next, (iter([]),))")  # StopIteration has no message
    assert "taken over: StopIteration; turn" in isolated.run(silent, results=["x"]).reason
    shell.user_ns["x"] = "old"
    with pytest.raises(isolated.ChildFailed, match="a result cannot be taken over"):
        shell.cell("x", code)
    assert "x" not in shell.user_ns
    assert shell.user_ns["isolated_outcome"].ended == "raised"


def test_a_failure_that_is_taught_has_to_come(shell, capsys):
    """``--raises`` takes the exception that it names, or one of its kind, and nothing else."""
    cell = shell.cell
    for kind in ("NotImplementedError", "RuntimeError"):  # the second is the base of the first
        cell(f"--raises {kind}", "raise NotImplementedError('no kernel')")
        printed = capsys.readouterr().out
        assert f"This cell is meant to raise {kind}, and did:\n" in printed
        assert printed.endswith("NotImplementedError: no kernel\n")
    with pytest.raises(isolated.ChildFailed, match="should raise NotImplementedError, and ended without raising"):
        cell("--raises NotImplementedError", "1 + 1")
    with pytest.raises(isolated.ChildFailed, match=r"^KeyError: 'x' .*where it should raise NotImplementedError"):
        cell("--raises NotImplementedError", "raise KeyError('x')")
    with pytest.raises(isolated.ChildFailed, match=r"^the process exited with code 3 .*should raise RuntimeError"):
        cell("--raises RuntimeError", "import os; os._exit(3)")


def test_a_fast_run_leaves_out_what_takes_long(shell, capsys, monkeypatch):
    for mode, printed, ended in (
        ("fast", "A quick run leaves this cell out.\n", "not run"),
        ("full", "it ran\n", "well"),
    ):
        monkeypatch.setenv("METALLAB_MODE", mode)
        shell.cell("x --full", "x = print('it ran')")
        assert capsys.readouterr().out == printed
        assert shell.user_ns["isolated_outcome"].ended == ended
        assert str(shell.user_ns["x"]) == ("Nothing to show: a quick run leaves it out." if mode == "fast" else "None")


def test_a_cell_whose_tool_is_missing_is_not_run(shell, capsys, monkeypatch):
    """It says what was not run and what mends it; what a cell merely wants does not keep it from running."""
    absent = {"coremltools": "make tools", "apple-gpu": "buy one", "sanitizers": "make packages"}
    for name, mend in absent.items():
        tool = dataclasses.replace(needs.TOOLS[name], is_here=lambda: False, mend=lambda mend=mend: mend)
        monkeypatch.setitem(needs.TOOLS, name, tool)
    for line, mend in (("x --needs coremltools", "make tools"), ("x --device mps", "buy one")):
        shell.user_ns["x"] = "old"
        shell.cell(line, "x = print('it ran')")
        printed = capsys.readouterr().out
        assert "it ran" not in printed
        assert printed.startswith("NOT RUN: this cell needs ")
        assert printed.endswith(f"To mend it: {mend}\n")
        missing = shell.user_ns["x"]
        assert str(missing.picture("heading")).startswith("Nothing to show: this cell needs "), "nothing old is there"
        assert missing["key"] is missing
        assert (list(missing), hasattr(missing, "_repr_html_")) == ([], False)
        assert shell.user_ns["isolated_outcome"].ended == "not run"
        with pytest.raises(isolated.ChildFailed, match=r"no result 'x' came back.*this cell needs "):
            shell.user_ns["isolated_outcome"]["x"]
    shell.cell("x --wants sanitizers", "x = print('it ran')")
    printed = capsys.readouterr().out
    assert printed.startswith("it ran\nNOT RUN: the part of this cell that needs clang's sanitizers.\nTo mend it: make")
    assert shell.user_ns["isolated_outcome"].ok


def test_a_simulation_that_cannot_be_built_for_another_torch_leaves_the_page_incomplete(shell, capsys, monkeypatch):
    """For the locked PyTorch it has to be there: then the page fails."""
    code = "from metalsim import SimulationError\nraise SimulationError('it could not be built')"
    with pytest.raises(isolated.ChildFailed, match="could not be built"):
        shell.cell("x", code)
    monkeypatch.setattr(needs.importlib.metadata, "version", lambda name: "2.11.0+cu130")
    shell.cell("x", code)
    assert capsys.readouterr().out.startswith("NOT RUN: the simulated Apple GPU is written for torch 2.")
    assert "not 2.11.0" in repr(shell.user_ns["x"])
    with pytest.raises(isolated.ChildFailed, match="KeyError"):
        shell.cell("x", "raise KeyError('x')")


def test_a_cell_kept_as_a_module_is_imported_by_later_ones(shell, capsys, monkeypatch, tmp_path):
    (tmp_path / "of_mine.py").write_text("SIX = 6")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    shell.cell("--module mine", "def seven():\n    return 7\n\nif __name__ == '__main__':\n    print('as a script')")
    assert capsys.readouterr().out == "as a script\n"
    shell.cell("n", "from mine import seven\nfrom of_mine import SIX\nn = SIX * seven()")
    assert shell.user_ns["n"] == 42
    assert capsys.readouterr().out == ""
    with pytest.raises(isolated.ChildFailed, match="No module named 'mine'"):
        Shell().cell("", "import mine")


def test_warnings_of_a_cell_are_shown(shell, capsys):
    shell.cell("", "import warnings; warnings.warn('it falls back'); print('done')")
    shown = capsys.readouterr()
    assert shown.out == "done\n"
    assert "it falls back" in shown.err


@pytest.mark.parametrize(
    "line",
    [
        *("'y", "2x", "--divice mps", "--device cuda", "--threads 3", "--set NAME", "--needs clangg", "--raises"),
        *("--timeout 0", "--timeout nan", "--timeout soon", "--module my-module"),
    ],
)
def test_a_magic_line_that_is_not_understood_is_told(shell, line):
    with pytest.raises(ValueError, match=r"%%isolated does not understand .*it takes: %%isolated \[RESULT"):
        shell.cell(line, "")


def test_the_magic_is_one_of_ipython(capsys):
    """A failure there shows the child's traceback once, and no frame of ours."""
    from IPython.testing.globalipapp import start_ipython

    shell = start_ipython()
    shell.run_line_magic("load_ext", "metallab.isolated")
    shell.run_cell_magic("isolated", "made", "made = 6 * 7")
    assert shell.user_ns["made"] == 42
    capsys.readouterr()
    ran = shell.run_cell("%%isolated\ndef f():\n    return 1 / 0\n\nf()")
    assert isinstance(ran.error_in_exec, isolated.ChildFailed)
    shown = capsys.readouterr().out
    assert shown.startswith("ChildFailed: ZeroDivisionError: division by zero (this cell raised in its own process)\n")
    assert shown.count("return 1 / 0") == 1
    assert "isolated.py" not in shown


def test_what_a_long_talker_said_last_is_kept_and_it_is_told_how_much_is_not(run):
    outcome = run("import sys\nfor i in range(60_000): print(i)\nfor i in range(60_000): print(i, file=sys.stderr)")
    for shown in (outcome.printed, run("for i in range(60_000): print(i)\nraise SystemExit(3)").printed):
        first, _, rest = shown.partition("\n")
        assert first == "[243 KiB left out; here is the end]"
        assert rest.endswith("59999\n")
        assert len(rest) == isolated.MOST_SHOWN
    assert outcome.detail.startswith("[243 KiB left out"), "of standard error, too"
    assert run(f"print('x' * {isolated.MOST_SHOWN - 1})").printed == "x" * (isolated.MOST_SHOWN - 1) + "\n"


def test_a_result_that_cannot_be_sent_back_is_not_the_error_that_was_expected(shell, capsys):
    with pytest.raises(isolated.ChildFailed, match=r"cannot be sent back.*where it should raise TypeError"):
        shell.cell("lock --raises TypeError", "import threading; lock = threading.Lock()")
    assert "is meant to raise" not in capsys.readouterr().out
