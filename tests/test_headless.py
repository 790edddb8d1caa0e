"""The headless runner: every way in which a notebook can end, and that nothing is left behind or mistaken.

Notebooks are made on the spot. Nothing here asserts on a duration; what a limit or a signal should stop would take
`FOREVER` without it.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from test_isolated import gone

from metallab import headless, paths, processes
from metallab import notebook as notebooks
from metallab.headless import cli, devices, jobs, pool, summary, worker
from metallab.headless.jobs import REGISTER, make_job
from metallab.headless.summary import UNFINISHED, Console, SummaryWriter
from metallab.notebook import Failure, first_unexecuted, read_notebook, skip_reason, without_colours
from metallab.paths import write_atomically

FOREVER = 600
PATIENCE = 300
"""Seconds after which something that should happen is taken for not happening."""
CPU = {"device": "cpu", "label": "a CPU in a test", "simulated": False}
SKIPPED = {"skip": {"device": ["cpu"], "reason": "needs a GPU"}}
"""The metadata of a notebook that is not run on it."""
COMMAND = f"""
import signal, sys
from metallab.headless import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.resolve_device = lambda name: {CPU!r}
sys.exit(cli.main(sys.argv[1:]))
"""
"""The command line, without the seconds that looking for a device takes.

Ctrl-C counts even where the tests run as a shell's background job, which is born deaf to it.
"""


@pytest.fixture(autouse=True)
def scratch(monkeypatch, tmp_path_factory) -> Iterator[Path]:
    """A temporary folder with a short path (sockets go there), which every run must leave empty."""
    tmp_path_factory.getbasetemp()  # pytest's own folder must not come to lie in it
    with tempfile.TemporaryDirectory(prefix="ml") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
        assert list(Path(folder).iterdir()) == []


@pytest.fixture
def command(monkeypatch, tmp_path) -> Callable[..., int]:
    """Runs the command line in this process, into ``tmp_path/"run"``."""
    monkeypatch.setattr(cli, "resolve_device", lambda name: CPU)
    monkeypatch.setenv("METALLAB_OUT", str(tmp_path / "run"))
    return lambda *arguments: headless.main([str(argument) for argument in arguments])


def make(path: Path, *cells: str | dict, title: str = "Make a test", **metadata: object) -> Path:
    """Writes a notebook. A cell is its source or the arguments of a code cell; ids are c1, c2, ..."""
    made = [new_markdown_cell(f"# {title}", id="title")]
    for number, cell in enumerate(cells, 1):
        arguments = {"source": cell} if isinstance(cell, str) else cell
        made.append(new_code_cell(**({"id": f"c{number}"} | arguments)))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=made, metadata={"kernelspec": kernel} | metadata), path)
    return path


def code(path: Path) -> list:
    """The code cells of a notebook's file."""
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def text(cell) -> str:
    """What a cell put out: its streams, results and errors."""
    parts = []
    for output in cell.outputs:
        parts.append(output.get("text") or output.get("data", {}).get("text/plain") or output.get("evalue"))
    return "".join(part or "" for part in parts)


def whisper(path: Path) -> str:
    """A cell that leaves the numbers of its kernel, its worker and a child in a file, and hangs."""
    return f"""
import os, pathlib, subprocess, time
child = subprocess.Popen(["sleep", "{FOREVER}"])
draft = pathlib.Path({str(path)!r}).with_suffix(".draft")
draft.write_text(f"{{os.getpid()}} {{os.getppid()}} {{child.pid}}")
draft.rename({str(path)!r})
time.sleep({FOREVER})
"""


def heard(path: Path) -> list[int]:
    """The numbers, once they are there: kernel, worker, child."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return [int(number) for number in path.read_text().split()]


def entries(folder: Path) -> dict[str, dict]:
    """The entries of a folder's summary, by name."""
    return {entry["name"]: entry for entry in json.loads((folder / "summary.json").read_text())["notebooks"]}


# ------------------------------------------------------------------------------------------------ what passes


def test_a_notebook_that_passes(tmp_path, monkeypatch):
    """Everything about a good run, in one kernel."""
    bad_kernel = tmp_path / "jupyter/kernels/python3/kernel.json"
    bad_kernel.parent.mkdir(parents=True)
    bad_kernel.write_text(json.dumps({"argv": ["false"], "display_name": "not ours", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("METALLAB_DEVICE", "mps")
    look = """
import json, os, psutil, subprocess, sys
orphan = int(subprocess.check_output(["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"]))
empty = {} if sys.platform == "linux" else None  # a Mac finds what has kept its environment
away = subprocess.Popen(["sleep", "600"], start_new_session=True, env=empty).pid
worker = psutil.Process(os.getppid()).environ().get("METALLAB_DEVICE", "")
mine = {name: os.environ.get(f"METALLAB_{name}") for name in ("MODE", "DEVICE", "OUT")}
print(json.dumps({**mine, "python": sys.executable, "folder": os.getcwd(), "children": [orphan, away],
                  "worker": worker, "backend": os.environ.get("MPLBACKEND", ""), "profile": os.environ["IPYTHONDIR"]}))
"""
    path = make(
        tmp_path / "lesson" / "01_good.ipynb",
        look,
        {"source": "1 / 0", "id": "replaced"},
        {"source": "1 / 0", "id": "emptied"},
        {"source": "1 / 0", "metadata": {"tags": ["skip-headless"], "reason": "needs a person"}},
        {"source": "1 / 0", "metadata": {"tags": ["raises-exception"]}},
        "  \n",
        "hog = bytearray(300 << 20); del hog",
        title="Pass a test",
    )
    out = tmp_path / "out"
    stale = [out / "01_good.ipynb", out / "results/01_good.json", out / "failed/01_good.ipynb"]
    other = out / "results/02_other.json"
    for file in (*stale, other):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("old")
    (out / REGISTER).write_text("01_good\n")
    result = headless.run_notebook(path, out=out, replace={"replaced": "6 * 7", "emptied": ""})
    assert (result.status, result.reason, result.failed_copy, result.cell) == ("passed", "", None, None)
    assert (result.name, result.title, result.cells, result.executed) == ("01_good", "Pass a test", 5, 4)
    assert result.seconds > 0
    assert result.peak_rss_bytes > 300 << 20
    assert result.notebook == out / "01_good.ipynb"
    cells = code(result.notebook)
    seen = json.loads(text(cells[0]))
    assert (seen["MODE"], seen["DEVICE"], seen["OUT"]) == ("fast", "cpu", str(out))
    assert seen["worker"] == ""  # or importing metallab would arm the simulation there too
    assert seen["python"] == os.path.abspath(sys.executable)
    assert Path(seen["folder"]) == path.parent
    assert "inline" in seen["backend"]
    assert not Path(seen["profile"]).exists()  # a fresh one, gone with the run
    assert gone(*seen["children"])
    assert text(cells[1]) == "42"
    assert text(cells[3]) == "skipped: needs a person\n"
    assert [cell.execution_count for cell in cells] == [1, 2, None, None, 3, None, 4]
    assert not any(file.exists() for file in stale[1:])
    assert other.read_text() == "old"


def test_the_parent_stays_light():
    heavy = "torch nbconvert nbformat nbclient jupyter_client numpy tensorflow"
    check = f"import sys, metallab.headless; print([m for m in {heavy.split()} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------- what is incomplete

PLANTED = """
import dataclasses
from metallab import needs
needs.TOOLS["sanitizers"] = dataclasses.replace(needs.TOOLS["sanitizers"], is_here=lambda: False, fix=lambda: "buy it")
"""
"""A cell that takes a tool away."""


def test_a_notebook_without_a_tool_is_incomplete(tmp_path, command, capsys):
    """The run ends well; summary and console say what was not run, and how to mend it. Without a gap they do not."""
    load, run = "%load_ext metallab.isolated", tmp_path / "run"
    gap = "needs.incomplete('the model was not converted', 'install Xcode')"
    lacking = make(tmp_path / "01_lacking.ipynb", PLANTED, load, "%%isolated --needs sanitizers\n1 / 0", gap, "1 + 1")
    whole = make(tmp_path / "02_whole.ipynb", load, "%%isolated x --needs coremltools\nx = 6 * 7", "x")
    assert command("--mode", "fast", lacking, whole) == 0
    printed = capsys.readouterr().out
    entry_of = entries(run)
    cells = [("cell 3 (Make a test)", "this cell needs clang's sanitizers, which this machine lacks", "buy it")]
    cells += [("cell 4 (Make a test)", "the model was not converted", "install Xcode")]
    wanted = [dict(zip(("where", "what", "mend"), cell, strict=True)) for cell in cells]
    assert (entry_of["01_lacking"]["status"], entry_of["01_lacking"]["not_run"]) == ("incomplete", wanted)
    assert entry_of["01_lacking"]["executed"] == entry_of["01_lacking"]["cells"] == 5
    assert "To mend it: buy it, install Xcode" in entry_of["01_lacking"]["reason"]
    assert [entry_of["02_whole"][name] for name in ("status", "reason", "not_run")] == ["passed", "", []]
    assert "1 passed, 1 incomplete, 0 failed, 0 skipped" in printed
    lines = printed.splitlines()
    assert lines[-5:] == [
        "01_lacking is incomplete. Not run:",
        *(f"  {gap['where']}: {gap['what']}" for gap in wanted),
        *(f"  to mend it: {gap['mend']}" for gap in wanted),
    ]
    shown = code(run / "01_lacking.ipynb")[2]
    assert text(shown) == f"NOT RUN: {wanted[0]['what']}.\nTo fix it: buy it"
    assert "42" in text(code(run / "02_whole.ipynb")[2])

    result = headless.NotebookResult("03_red", "", reason="cell 2: wrong", not_run=wanted)
    Console().summary([result], run, 1.0)
    assert "03_red: cell 2: wrong\n\n03_red is incomplete besides. Not run:" in capsys.readouterr().out

    older = json.loads((run / "summary.json").read_text())
    for entry in older["notebooks"]:
        del entry["not_run"]
    (run / "summary.json").write_text(json.dumps(older))
    assert command("--mode", "fast", whole) == 0
    assert entries(run)["01_lacking"] == entry_of["01_lacking"] | {"not_run": []}, "an older summary is kept"


def test_an_isolated_cell_that_fails_fails_its_notebook(tmp_path):
    """As one does that should raise and does not, and one whose tool is there and that fails."""
    failing = {
        "%%isolated\nprint('before')\n1 / 0": "ZeroDivisionError: division by zero (this cell raised",
        "%%isolated\nimport os\nos.abort()": "the process was killed by SIGABRT (this cell crashed",
        "%%isolated --raises KeyError\n1 + 1": "this cell should raise KeyError, and ended without raising",
        "%%isolated --needs coremltools\n1 / 0": "ZeroDivisionError",
    }
    as_it_should = "%%isolated --raises ZeroDivisionError\n1 / 0"
    path = make(tmp_path / "01_broken.ipynb", "%load_ext metallab.isolated", *failing, as_it_should)
    result = headless.run_notebook(path, out=tmp_path / "out", allow_errors=True)
    assert (result.status, result.cell) == ("failed", 2)
    assert result.reason.startswith("cell 2: ChildFailed: ZeroDivisionError: division by zero")
    ran = code(result.notebook)
    for cell, reason in zip(ran[1:-1], failing.values(), strict=True):
        (error,) = (output for output in cell.outputs if output.output_type == "error")
        assert error.ename == "ChildFailed"
        assert reason in error.evalue
    assert text(ran[1]).startswith("before\n")
    assert "is meant to raise ZeroDivisionError, and did" in text(ran[-1])
    stopped = headless.run_notebook(path, out=tmp_path / "out")
    assert (stopped.status, stopped.cell, stopped.executed) == ("failed", 2, 2)


# ------------------------------------------------------------------------------------------------- what fails


def without(package: str) -> dict:
    return {"device": [], "without": [package], "reason": f"needs {package}"}


def test_one_run_meets_every_kind_of_failure_and_goes_on(tmp_path, command, capsys):
    folder = tmp_path / "notebooks"
    (folder / "02_malformed.ipynb").parent.mkdir()
    (folder / "02_malformed.ipynb").write_text('{"cells": [')
    first = "print('done before')"
    last = {"source": "2", "execution_count": 3, "outputs": [nbformat.v4.new_output("stream", text="stale")]}
    made = [
        make(folder / "01_good.ipynb", "1 + 1", title="Add"),
        folder / "02_malformed.ipynb",
        folder / "03_missing.ipynb",
        make(folder / "04_raises.ipynb", first, "def f():\n    raise ValueError('boo')\nf()", last),
        make(folder / "05_killed.ipynb", first, "import os\nos.kill(os.getpid(), 9)", last),
        make(folder / "06_exits.ipynb", first, "import os\nos._exit(3)", last),
        make(folder / "07_aborts.ipynb", first, "import os\ndef fall():\n    os.abort()\nfall()", last),
        make(folder / "09_kernel.ipynb", "1", kernelspec={"name": "ir", "display_name": "R"}),
        make(folder / "10_skipped.ipynb", "1 / 0", metallab=SKIPPED),
        make(folder / "11_unsaid.ipynb", "1", metallab={"skip": {"device": ["mps"]}}),
        make(folder / "12_cell.ipynb", "1", {"source": "1 / 0", "metadata": {"tags": ["skip-headless"]}}),
        make(folder / "14_count.ipynb", first, "get_ipython().execution_count = 0", last),
        make(folder / "15_good.ipynb", "1 + 1"),
        make(folder / "16_without.ipynb", "1 / 0", metallab={"skip": without("no_such_package")}),
        make(folder / "17_with.ipynb", "1 + 1", metallab={"skip": without("json")}),
        make(folder / "18_unclear.ipynb", "1", metallab={"skip": without("json") | {"without": "json"}}),
    ]
    reasons = {
        "02_malformed": "malformed JSON",
        "03_missing": "there is no file",
        "04_raises": "cell 2: ValueError: boo",
        "05_killed": "cell 2: the kernel was killed by SIGKILL",
        "06_exits": "cell 2: the kernel exited with code 3",
        "07_aborts": "cell 2: the kernel was killed by SIGABRT",
        "09_kernel": "unknown kernel 'ir'",
        "11_unsaid": "metadata.metallab.skip gives no reason",
        "12_cell": "cell 2 is tagged skip-headless but its metadata has no reason",
        "14_count": "cell 3 was not executed in order",
        "18_unclear": "metadata.metallab.skip.without must be a list of packages",
    }
    assert command("--mode", "fast", "--jobs", 3, *made) == 1
    run, printed = tmp_path / "run", capsys.readouterr().out

    summary = json.loads((run / "summary.json").read_text())
    assert list(summary) == ["mode", "device", "label", "simulated", "started", "seconds", "notebooks"]
    assert (summary["mode"], summary["device"], summary["label"]) == ("fast", "cpu", CPU["label"])
    assert summary["started"].endswith("+00:00")
    assert summary["simulated"] is False
    entry_of = entries(run)
    assert list(entry_of) == [path.stem for path in made]
    assert {name: entry["status"] for name, entry in entry_of.items()} == dict.fromkeys(entry_of, "failed") | {
        "01_good": "passed",
        "15_good": "passed",
        "10_skipped": "skipped",
        "16_without": "skipped",
        "17_with": "passed",
    }
    assert entry_of["10_skipped"]["reason"] == "needs a GPU"
    assert (entry_of["01_good"]["title"], entry_of["01_good"]["reason"]) == ("Add", "")
    for name, reason in reasons.items():
        assert entry_of[name]["reason"].startswith(reason), name
        assert (run / entry_of[name]["failed_copy"]).parent == run / "failed"
        assert f"{name}: {reason}" in printed
        assert f"{entry_of[name]['failed_copy']}\n" in printed
    assert sorted(run.glob("*.ipynb")) == [run / "01_good.ipynb", run / "15_good.ipynb", run / "17_with.ipynb"]

    assert (run / "failed/02_malformed.unreadable").read_text() == '{"cells": ['
    assert "malformed JSON" in (run / "failed/02_malformed.txt").read_text()
    assert "there is no file" in (run / "failed/03_missing.txt").read_text()
    for name in ("04_raises", "05_killed", "06_exits", "07_aborts"):
        before, stopped, after = code(run / f"failed/{name}.ipynb")
        assert text(before) == "done before\n", name
        errors = [output for output in stopped.outputs if output.output_type == "error"]
        assert reasons[name].removeprefix("cell 2: ").removeprefix("ValueError: ") in errors[-1].evalue
        assert (after.outputs, after.execution_count) == ([], None)
        executed = 2 if name == "04_raises" else 1
        assert (entry_of[name]["cells"], entry_of[name]["executed"]) == (3, executed)
    for name in ("09_kernel", "11_unsaid", "12_cell"):
        refused = code(run / f"failed/{name}.ipynb")[0]
        assert (refused.execution_count, text(refused)) == (None, entry_of[name]["reason"])
        assert entry_of[name]["executed"] == 0
    assert "in fall" in "\n".join(code(run / "failed/07_aborts.ipynb")[1].outputs[-1].traceback)
    assert all(where in printed for where in ("in fall", "in f()"))

    make(folder / "04_raises.ipynb", "print('mended')")
    assert command("--mode", "fast", made[3]) == 0
    later = entries(run)
    assert (later["04_raises"]["status"], later["04_raises"]["failed_copy"]) == ("passed", None)
    assert not (run / "failed/04_raises.ipynb").exists()
    assert {name: entry for name, entry in later.items() if name != "04_raises"} == {
        name: entry for name, entry in entry_of.items() if name != "04_raises"
    }


CLOCK = """
import os, time
time.monotonic = lambda clock=time.monotonic: clock() + 3600 * os.path.getsize({!r})
"""


@pytest.fixture
def hours(monkeypatch, tmp_path_factory) -> Path:
    """A file each of whose bytes is an hour on the clock of the processes that are started: a limit comes when a page
    or a test says so, however fast this machine is.
    """
    folder = tmp_path_factory.mktemp("clock")
    passed = folder / "hours"
    passed.touch()
    (folder / "sitecustomize.py").write_text(CLOCK.format(str(passed)))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return passed


def an_hour(passed: Path) -> None:
    with passed.open("a") as file:
        file.write("1")


def test_a_cell_that_hangs_is_interrupted(tmp_path, command, hours):
    hang = f"""
import time
def nap():
    open({str(hours)!r}, "a").write("1")
    time.sleep({FOREVER})
nap()
"""
    long = make(tmp_path / "01_hangs.ipynb", "print('done before')", hang, "3")
    assert command("--mode", "fast", "--timeout", 0, "--cell-timeout", 3000, long) == 1
    assert entries(tmp_path / "run")["01_hangs"]["reason"] == "cell 2 took longer than 3000 s (--cell-timeout)"
    before, hung, after = code(tmp_path / "run/failed/01_hangs.ipynb")
    assert (text(before), after.outputs) == ("done before\n", [])
    assert "in nap" in without_colours("\n".join(hung.outputs[0].traceback))


def test_a_cell_whose_outputs_do_not_arrive_fails(tmp_path, hours):
    """Time passes as soon as it ends, and goes on."""
    quiet = f"""
import threading, time
get_ipython().kernel._publish_status = lambda *a, **k: None
def pass_time():
    while True:
        time.sleep(0.1)
        open({str(hours)!r}, "a").write("1")
threading.Thread(target=pass_time, daemon=True).start()
"""
    path = make(tmp_path / "01_quiet.ipynb", quiet)
    result = headless.run_notebook(path, out=tmp_path / "out", cell_timeout=0, timeout=0)
    assert result.reason.startswith("cell 1 ended, but its outputs did not all arrive")


def test_a_kernel_that_ignores_the_interrupt_ends_with_its_children(tmp_path, hours):
    """Time passes once the memory of both has been seen."""
    stubborn = f"""
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
hog = bytearray(200 << 20)
eat = "import signal, time; hog = bytearray(200 << 20); print(flush=True); time.sleep({FOREVER})"
child = subprocess.Popen([sys.executable, "-c", eat], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
import time
while True:
    time.sleep({FOREVER})
"""
    job = make_job(make(tmp_path / "01_deaf.ipynb", stubborn), "fast", "cpu", tmp_path / "out", timeout=3000)
    look = lambda running: any(one.peak > 400 << 20 for one in running) and an_hour(hours)
    results: list[headless.NotebookResult] = []
    pool.Pool([job], progress=look, finished=results.append).run()
    assert results[0].reason == "cell 1: the notebook took longer than 3000 s (--timeout)"
    (cell,) = code(results[0].notebook)
    assert gone(int(cell.outputs[0].text))


def test_a_killed_worker_leaves_what_was_done(tmp_path):
    kill = f"import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep({FOREVER})"
    path = make(tmp_path / "01_orphan.ipynb", "import os\nprint(os.getpid())", kill, "3")
    result = headless.run_notebook(path, out=tmp_path / "out")
    assert result.reason.startswith("cell 2: the worker process was killed by SIGKILL")
    assert (result.title, result.cells, result.executed, result.cell) == ("Make a test", 3, 1, 2)
    first, stopped, _ = code(result.notebook)
    assert gone(int(text(first)))
    assert text(stopped) == result.reason
    nbformat.validate(result.read())


def test_a_worker_that_hangs_is_killed(tmp_path):
    """Once its time is up, which comes here as soon as it hangs."""
    told = tmp_path / "pids"
    freeze = f"""
import os, pathlib, signal, time
pathlib.Path({str(told)!r}).write_text(f"{{os.getpid()}} {{os.getppid()}}\\n")
os.kill(os.getppid(), signal.SIGSTOP)
time.sleep({FOREVER})
"""
    path = make(tmp_path / "01_frozen.ipynb", freeze)
    job = make_job(path, "fast", "cpu", tmp_path / "out", timeout=3000)

    def look(running: list[pool.Running]) -> None:
        for one in running:
            planned = one.started + 3000 + pool.HANG_GRACE
            assert one.deadline == planned or told.exists()
            if told.exists() and told.read_text().endswith("\n"):
                one.deadline = time.monotonic()

    results: list[headless.NotebookResult] = []
    pool.Pool([job], progress=look, finished=results.append).run()
    (result,) = results
    assert "the worker did not answer" in result.reason
    assert gone(*map(int, told.read_text().split()))
    assert text(code(result.notebook)[0]) == result.reason


def test_a_worker_that_breaks_says_why_and_so_does_a_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    path = make(tmp_path / "01_any.ipynb", "1")
    kernel = tmp_path / "ipykernel_launcher.py"
    kernel.write_text("raise ImportError('ipykernel is broken here')")
    result = headless.run_notebook(path, out=tmp_path / "out")
    assert result.reason.startswith("no kernel: ")
    assert "ipykernel is broken here" in result.traceback
    kernel.unlink()
    (tmp_path / "nbformat.py").write_text("raise ImportError('nbformat is broken here')")
    result = headless.run_notebook(path, out=tmp_path / "out")
    assert result.reason == "the worker process exited with code 1"
    assert "nbformat is broken here" in result.traceback
    assert "nbformat is broken here" in (tmp_path / "out" / result.failed_copy).read_text()
    assert result.notebook is None
    with pytest.raises(ValueError, match="left no notebook"):
        result.read()


def test_errors_may_be_run_past_but_still_fail(tmp_path):
    path = make(tmp_path / "01_wrong.ipynb", "1 / 0", "'went on'", "undefined")
    result = headless.run_notebook(path, out=tmp_path / "out", failed=tmp_path / "bad", allow_errors=True)
    assert (result.status, result.reason, result.cell) == ("failed", "cell 1: ZeroDivisionError: division by zero", 1)
    assert result.notebook == tmp_path / "bad/01_wrong.ipynb"
    assert [text(cell) for cell in code(result.notebook)][1:] == ["'went on'", "name 'undefined' is not defined"]
    assert "\x1b" not in result.traceback


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ([1, 2, 3], None),
        ([1, None, 2], "cell 3 was not executed"),
        ([None, 1, 2], "cell 1 was not executed"),
        ([2, 2, 3], "cell 3 was not executed in order: its count is 2, after 2"),
    ],
)
def test_the_guard_finds_cells_that_were_not_executed(counts, reason):
    """A skipped cell counts as one, a blank one does not."""
    cells = [new_code_cell("1", execution_count=count) for count in counts]
    cells.insert(1, new_code_cell(" \n"))
    cells.insert(1, new_code_cell("1", metadata={"tags": ["skip-headless"], "reason": "why"}))
    failure = first_unexecuted(new_notebook(cells=[new_markdown_cell("text"), *cells]))
    assert (failure and failure.reason) == reason


BROKEN = {
    "no cells": (lambda nb: nb.pop("cells"), "no cells"),
    "version 3": (lambda nb: nb.update(nbformat=3), "format 4"),
    "a cell that is none": (lambda nb: nb["cells"].append(1), "no type"),
    "a format that is no number": (lambda nb: nb.update(nbformat_minor="5"), "its nbformat_minor is '5'"),
    "no source": (lambda nb: nb["cells"][1].pop("source"), "no source"),
    "no id": (lambda nb: nb["cells"][1].pop("id"), "without an id"),
    "an id twice": (lambda nb: nb["cells"][1].update(id="title"), "the cell id title twice"),
    "a wrong field": (lambda nb: nb["cells"][1].update(outputs="none"), "not a valid notebook"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_not_a_notebook_is_refused(tmp_path, what):
    spoil, reason = BROKEN[what]
    path = make(tmp_path / "01_broken.ipynb", "1")
    read_notebook(path)
    raw = json.loads(path.read_text())
    spoil(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(Failure, match=reason):
        read_notebook(path)


def test_what_is_not_a_text_file_is_refused(tmp_path):
    (tmp_path / "binary.ipynb").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Failure, match="malformed JSON"):
        read_notebook(tmp_path / "binary.ipynb")
    with pytest.raises(Failure, match="can't be read"):
        read_notebook(tmp_path)
    (tmp_path / "deep.ipynb").write_text("[" * 100_000)
    with pytest.raises(Failure, match="malformed JSON"):
        read_notebook(tmp_path / "deep.ipynb")


@pytest.mark.parametrize("device", [None, "cpu", ["tpu"], [["cpu"]], [], ["mps", "cpu"]])
def test_a_skip_must_name_devices(device):
    skip = {"device": device, "reason": "because"}
    notebook = new_notebook(metadata={"metallab": {"skip": skip}})
    if device in ([], ["mps", "cpu"]):
        assert skip_reason(notebook, "cpu") == ("because" if device else "")
        assert skip_reason(notebook, "cuda") == ""
    else:
        with pytest.raises(Failure, match="must be a list"):
            skip_reason(notebook, "cpu")


# ------------------------------------------------------------------------------------------- what is left running


def test_a_child_that_got_away_is_known_by_its_mark():
    """Where nobody adopts orphans, as on a Mac, and where who would have is dead: in a session of its own as well."""
    start = """
import subprocess
print(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""
    environment = processes.marked(processes.marked(dict(os.environ), "metallab-outer"), "metallab-inner")
    for name in ("metallab-outer", "metallab-inner"):
        orphan = int(subprocess.check_output([sys.executable, "-c", start], env=environment))
        processes.kill_family(None, "metallab-other")
        assert not gone(orphan)
        processes.kill_family(None, name)
        assert gone(orphan)


# ------------------------------------------------------------------------------------------------- what is too much


def test_saving_takes_a_bounded_share_of_the_time(tmp_path, monkeypatch):
    """Each save is of the whole notebook: after each of 1000 cells it took longer than the cells. On a fake clock."""
    clock, saved = [0.0], []

    def slow(notebook, path: Path) -> None:
        clock[0] += 0.001 * len(saved_cells)
        saved.append(clock[0])

    monkeypatch.setattr(worker, "save", slow)
    monkeypatch.setattr(worker.time, "monotonic", lambda: clock[0])
    job = make_job(tmp_path / "01_many.ipynb", "fast", "cpu", tmp_path / "out")
    one = worker.Page(job, new_notebook(), headless.NotebookResult("01_many", "Many"), lambda **_: None, None)
    saved_cells: list[int] = []
    for number in range(1000):
        saved_cells.append(number)
        clock[0] += 0.01
        one.save()
    assert saved[:30] == pytest.approx([0.01 * n + 0.0005 * n * (n + 1) for n in range(1, 31)]), "a short page: each"
    assert clock[0] < 1000 * 0.01 + worker.SAVE_SECONDS + worker.SAVE_SHARE * clock[0] + 1.0 + 1e-9
    assert clock[0] - saved[-1] < 12 * 1.0, "and it never stops saving"


def test_a_page_that_prints_too_much_is_cut_and_says_so(tmp_path):
    """As it comes: what was cleared does not count, and an error is always told."""
    flood = f"for _ in range(3):\n    print('x' * {notebooks.MOST_PRINTED - 1}, flush=True)"
    cleared = f"""
from IPython.display import clear_output
print('x' * {notebooks.MOST_PRINTED + 5}); clear_output(); print('after')
"""
    path = make(tmp_path / "01_flood.ipynb", flood, "print('next')", cleared, f"raise ValueError('y' * {3 << 20})")
    result = headless.run_notebook(path, out=tmp_path / "out")
    assert result.reason.startswith("cell 4: ValueError: yyyy")
    assert len(result.reason) < 2000
    flooded, after, cleared, raised = code(result.notebook)
    assert len(text(flooded)) < notebooks.MOST_PRINTED + 200
    assert f"CUT: {2 * notebooks.MOST_PRINTED} characters more were put out here" in text(flooded)
    assert (text(after), text(cleared)) == ("next\n", "after\n")
    assert len(text(raised)) <= 2 * notebooks.MOST_PRINTED
    assert [number for number, _ in notebooks.cuts(result.read())] == [1, 4]
    assert result.notebook.stat().st_size < 5 << 20
    nbformat.validate(result.read())


def test_what_a_page_shows_is_limited_as_a_whole(monkeypatch):
    monkeypatch.setattr(notebooks, "MOST_SHOWN", 1000)
    picture = {"image/png": "A" * 600}
    shown = lambda: nbformat.v4.new_output("display_data", data=dict(picture))
    cells = [new_code_cell("1", outputs=[shown()]), new_code_cell("2", outputs=[shown(), shown()])]
    notebook = new_notebook(cells=cells)
    notebooks.cut_outputs(notebook)
    first, second = notebook.cells
    assert first.outputs == [shown()]
    assert [words for _, words in notebooks.cuts(notebook)] == [text(second)]
    assert "CUT: 1234 characters more" in text(second)
    before = nbformat.writes(notebook)
    notebooks.cut_outputs(notebook)
    assert nbformat.writes(notebook) == before, "what was cut once fits"
    nbformat.validate(notebook)


# ---------------------------------------------------------------------------------- full disks and other people's files


def full(*_, **__) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def no_large_files() -> Iterator[Callable[[int], None]]:
    """A limit of the size of files, for this process and those it starts: what a full disk is, without being root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_page_that_fills_the_disk_fails_in_one_line_and_the_run_goes_on(tmp_path, command, no_large_files):
    """Nothing half-written is left, and once there is room the next run recovers."""
    long = make(tmp_path / "01_long.ipynb", "print('kept')", "print('x' * 300_000)", "print('not reached')")
    good = make(tmp_path / "02_good.ipynb", "6 * 7")
    run = tmp_path / "run"
    no_large_files(200_000)
    assert command("--mode", "fast", "--jobs", 2, long, good) == 1
    entry_of = entries(run)
    assert [entry_of["01_long"]["status"], entry_of["02_good"]["status"]] == ["failed", "passed"]
    why = f"cell 2: {run}/failed/01_long.ipynb cannot be written (File too large): make room there"
    assert entry_of["01_long"]["reason"].startswith(why)
    assert entry_of["01_long"]["executed"] == 2
    assert "\n" not in entry_of["01_long"]["reason"]
    assert not (run / "01_long.ipynb").exists()
    first, second, _ = code(run / entry_of["01_long"]["failed_copy"])  # as it was at the last save
    assert (text(first), text(second)) == ("kept\n", "")
    assert not list(run.rglob(".*.part"))
    no_large_files(resource.RLIM_INFINITY)
    assert command("--mode", "fast", long) == 0
    assert {entry["status"] for entry in entries(run).values()} == {"passed"}
    assert not list((run / "failed").iterdir())


def test_a_full_disk_at_the_end_of_a_page_fails_it(tmp_path, monkeypatch):
    """The page came to its end, and is not taken for whole; neither if its partial copy cannot be written either."""
    job = make_job(tmp_path / "01_any.ipynb", "fast", "cpu", tmp_path / "out")
    notebook = new_notebook(cells=[new_code_cell("1")])
    monkeypatch.setattr(worker, "save", full)
    with pytest.raises(Failure, match="it came to its end, but") as ended:
        worker.keep(job, notebook, headless.NotebookResult("01_any", "Any"))
    result = jobs.fail(job, headless.NotebookResult("01_any", "Any"), ended.value, notebook)
    assert (result.status, result.notebook) == ("failed", job.partial)
    assert result.reason.startswith(
        f"it came to its end, but {job.executed} cannot be written (No space left on device)"
    )
    job.partial.unlink()
    monkeypatch.setattr(jobs, "save", full)
    for failure in (ended.value, Failure("cell 3: boo")):
        result = jobs.fail(job, headless.NotebookResult("01_any", "Any"), failure, notebook)
        assert (result.status, result.notebook, result.failed_copy) == ("failed", None, None)
        assert result.reason.count("cannot be written") == 1
    monkeypatch.setattr(jobs, "write_atomically", full)
    Path(job.path).write_text('{"cells": [')
    result = worker.work(job, lambda **_: None, None)
    assert result.reason.startswith("malformed JSON")
    assert f"; and {job.note} cannot be written" in result.reason
    assert result.failed_copy is None


def test_a_full_disk_ends_the_run_in_one_line(tmp_path, command, monkeypatch, capsys):
    """Where what became of a page cannot be noted it counts as unfinished, and the next run recovers."""
    path = make(tmp_path / "01_any.ipynb", "1", metallab=SKIPPED)
    write, calls = summary.write_atomically, itertools.count(1)
    with monkeypatch.context() as patch:
        patch.setattr(summary, "write_atomically", lambda *given: full() if next(calls) == 2 else write(*given))
        assert command("--mode", "fast", path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "summary.json" in line
    entry = entries(tmp_path / "run")["01_any"]
    assert (entry["status"], entry["reason"]) == ("failed", UNFINISHED)
    assert command("--mode", "fast", path) == 0


def test_a_log_on_a_full_disk_does_not_stop_a_run(monkeypatch):
    with tempfile.TemporaryFile("w") as stream:
        terminal = SimpleNamespace(isatty=lambda: False, write=full, flush=full, fileno=stream.fileno)
        Console(terminal).say("a line")


def test_nothing_that_no_run_wrote_is_overwritten(tmp_path, command, monkeypatch, capsys):
    """METALLAB_OUT may name any folder, that of the lessons as well, while copies of them are run from elsewhere."""
    lessons, run = tmp_path / "notebooks", tmp_path / "run"
    copy = make(tmp_path / "copies" / "01_any.ipynb", "1", metallab=SKIPPED)
    lesson = make(lessons / "01_any.ipynb", "'a lesson'")
    before = lesson.read_bytes()
    monkeypatch.setenv("METALLAB_OUT", str(lessons))
    assert command("--mode", "fast", copy) == 2
    assert f"{lesson} is there already, and no run wrote it: move it away, or name" in capsys.readouterr().err
    assert [path.name for path in lessons.iterdir()] == ["01_any.ipynb"]
    assert lesson.read_bytes() == before

    monkeypatch.setenv("METALLAB_OUT", str(run))
    theirs = tmp_path / "theirs"
    theirs.write_text('keep me, "metallab"')
    names = ["01_any.ipynb", "failed/01_any.ipynb", "failed/01_any.txt", "failed/01_any.unreadable"]
    for path in (run / name for name in (*names, "results/01_any.json")):
        path.parent.mkdir(parents=True, exist_ok=True)
        for put in (lambda path: path.symlink_to(theirs), lambda path: path.write_text("keep me")):
            put(path)
            before = path.read_text()
            assert command("--mode", "fast", copy) == 2, path
            assert path.read_text() == before
            path.unlink()
    assert theirs.read_text() == 'keep me, "metallab"'
    (run / "results/01_any.json").write_text('{"metadata": {"metallab": "as a page that was run by hand leaves it"}}')
    assert command("--mode", "fast", copy) == 0
    assert not (run / "results/01_any.json").exists()
    (run / "01_any.ipynb").write_text("a run wrote it")
    assert command("--mode", "fast", copy) == 0
    assert not (run / "01_any.ipynb").exists()

    job = make_job(copy, "fast", "cpu", tmp_path / "later")
    job.executed.parent.mkdir()
    job.executed.write_text("keep me: it came while other pages ran")
    with pytest.raises(headless.UsageError, match="no run wrote it"):
        job.remove_stale()


def test_in_the_build_folder_everything_was_written_by_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    (tmp_path / "fast-cpu").mkdir()
    (tmp_path / "fast-cpu/01_any.ipynb").write_text("of an older version")
    make_job(tmp_path / "01_any.ipynb", "fast", "cpu", tmp_path / "fast-cpu").remove_stale()
    assert not (tmp_path / "fast-cpu/01_any.ipynb").exists()


# -------------------------------------------------------------------------------------------------- being stopped


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts the command line in a process and a session of its own, as a terminal would; into ``tmp_path/"run"``."""
    started: list[subprocess.Popen] = []

    def begin(*arguments: object) -> subprocess.Popen:
        environment = os.environ | {"METALLAB_OUT": str(tmp_path / "run")}
        command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
        run = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True)
        started.append(run)
        return run

    yield begin
    for run in started:  # only a failed test leaves one; its worker notices and leaves too
        run.kill()
        run.wait()


def test_ctrl_c_leaves_no_process_and_keeps_the_partial_notebook(tmp_path, start, command, capsys):
    made = [
        make(tmp_path / "01_good.ipynb", "1"),
        make(tmp_path / "02_long.ipynb", "print('done before')", whisper(tmp_path / "pids")),
        make(tmp_path / "03_later.ipynb", "1"),
    ]
    first = start(*made)
    pids = heard(tmp_path / "pids")
    assert command(made[0]) == 2  # a second run, into the same folder
    assert f"another run (pid {first.pid})" in capsys.readouterr().err
    os.killpg(first.pid, signal.SIGINT)  # what a terminal does
    printed, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == 130
    assert gone(*pids)
    entry_of = entries(tmp_path / "run")
    assert [(entry["status"], entry["reason"]) for entry in entry_of.values()] == [
        ("passed", ""),
        ("failed", "interrupted"),
    ]
    before, stopped = code(tmp_path / "run" / entry_of["02_long"]["failed_copy"])
    assert (text(before), text(stopped)) == ("done before\n", "interrupted")
    assert "1 notebooks were not begun" in printed


def test_a_killed_run_leaves_no_process_and_does_not_pass_for_a_good_one(tmp_path, start, command):
    long = make(tmp_path / "01_long.ipynb", "1")
    assert command(long) == 0
    make(long, "print('done before')", whisper(tmp_path / "pids"))
    run = start(long)
    pids = heard(tmp_path / "pids")
    run.kill()
    run.communicate()
    # The next run waits until the orphaned worker has let go of the folder.
    other = make(tmp_path / "02_other.ipynb", "1", metallab=SKIPPED)
    assert command(other) == 0
    assert gone(*pids)
    entry = entries(tmp_path / "run")["01_long"]
    assert (entry["status"], entry["reason"]) == ("failed", UNFINISHED)
    assert not (tmp_path / "run/01_long.ipynb").exists()
    before, stopped = code(tmp_path / "run/failed/01_long.ipynb")
    assert (text(before), text(stopped)) == ("done before\n", "interrupted")


# ----------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> list[str]:
    """A folder of empty files with notebooks' names, in the place of ``notebooks/``; the names in order."""
    names = ["00_check", "02_time", "02b_more", "02b_more_yet", "12_last"]
    for name in (*names, "draft"):
        (tmp_path / f"{name}.ipynb").touch()
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    return names


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["02"], [1]),
        (["02b"], [2, 3]),
        (["02b_more"], [2]),
        (["12", "00"], [0, 4]),
    ],
)
def test_only(shelf, only, chosen):
    assert [path.stem for path in cli.choose([], only)] == [shelf[index] for index in chosen]


@pytest.mark.parametrize("only", ["2", "03", "02_", "02_tim"])
def test_only_that_matches_nothing(shelf, only, command, capsys):
    assert command("--only", "00", "--only", only) == 2
    assert f"--only {only} matches no notebook; there are: {', '.join(shelf)}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--jobs", 2], ["--jobs", 0, "--mode", "fast"], ["--device", "tpu"]),
        *(["--timeout", -1], ["--cell-timeout", "inf"], ["--cell-timeout", "ten"]),
    ],
)
def test_mistakes_on_the_command_line(command, arguments):
    """Several at a time are for the fast mode alone, which measures nothing."""
    with pytest.raises(SystemExit) as ended:
        command(*arguments)
    assert ended.value.code == 2


def test_nothing_is_written_over_the_notebook_itself(tmp_path, command):
    path = make(tmp_path / "01_any.ipynb", "1")
    for folders in ({"out": tmp_path}, {"out": tmp_path / "out", "failed": tmp_path}):
        with pytest.raises(ValueError, match=r"01_any\.ipynb"):
            headless.run_notebook(path, **folders)
    assert path.exists()
    assert command(tmp_path / "a/01_x.ipynb", tmp_path / "b/01_x.ipynb") == 2, "two of one name"


def test_folders_follow_mode_and_device(monkeypatch, tmp_path):
    monkeypatch.delenv("METALLAB_OUT", raising=False)
    job = make_job(Path("/x/01_any.ipynb"), "full", "mps")
    assert (Path(job.out), Path(job.failed)) == (paths.BUILD / "full-mps", paths.FAILED / "full-mps")
    monkeypatch.setenv("METALLAB_OUT", str(tmp_path))
    job = make_job(Path("/x/01_any.ipynb"), "full", "mps")
    assert (Path(job.out), Path(job.failed)) == (tmp_path, tmp_path / "failed")


FAKE_DEVICE = """
import os
from types import SimpleNamespace
class DeviceUnavailable(RuntimeError): pass
def first_framework(): return "jax"
def pick(framework):
    print("a library says hello")
    assert framework == "jax"
    match os.environ.get("METALLAB_DEVICE"):
        case "mps": raise DeviceUnavailable("no Apple GPU here: use DEVICE=sim")
        case "cuda":
            os.write(2, b"\\377, which is no text\\n")
            raise OSError("the driver fell over")
        case "tpu": raise ValueError("there is no device 'tpu'")
        case "sim": return SimpleNamespace(kind="mps", label="simulated GPU", simulated=True)
        case other: return SimpleNamespace(kind="cpu", label=f"asked for {other}", simulated=False)
"""


def test_the_device_is_asked_for_in_another_process(tmp_path, monkeypatch, capsys):
    (tmp_path / "metallab").mkdir()
    (tmp_path / "metallab/__init__.py").touch()
    (tmp_path / "metallab/device.py").write_text(FAKE_DEVICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("METALLAB_DEVICE", raising=False)
    assert headless.resolve_device("sim") == {"device": "sim", "label": "simulated GPU", "simulated": True}
    assert headless.resolve_device("auto") == {"device": "cpu", "label": "asked for None", "simulated": False}
    assert headless.resolve_device("cpu")["label"] == "asked for cpu"
    anything = make(tmp_path / "01_any.ipynb", "1")
    assert headless.main(["--device", "mps", str(anything)]) == 2
    assert "no Apple GPU here: use DEVICE=sim" in capsys.readouterr().err
    assert headless.main(["--device", "cuda", str(anything)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "looking for a device failed: OSError: the driver fell over; metallab.device.pick() in Python" in line
    monkeypatch.setenv("METALLAB_DEVICE", "tpu")
    assert headless.main([str(anything)]) == 2
    assert capsys.readouterr().err == "metallab.headless: there is no device 'tpu'\n"


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(devices, "PICK", "import time\ntime.sleep(60)")
    monkeypatch.setattr(devices, "PICK_SECONDS", 0.5)
    with pytest.raises(headless.UsageError, match=r"took longer than 0.5 s: its driver may hang"):
        headless.resolve_device("cpu")


def test_the_real_device_answers():
    resolved = headless.resolve_device("cpu")
    assert (resolved["device"], resolved["simulated"]) == ("cpu", False)
    assert resolved["label"]


def test_a_run_notes_that_it_is_the_latest(command, tmp_path, monkeypatch):
    """For the report, which shall not go by clocks alone (`paths.latest`)."""
    monkeypatch.setattr(paths, "BUILD", tmp_path)
    assert command(make(tmp_path / "01_skipped.ipynb", "1", metallab=SKIPPED)) == 0
    assert (tmp_path / "order.txt").read_text() == "run\n"


def test_a_summary_of_unknown_origin_is_kept_aside(tmp_path, capsys):
    """Be it another program's or damaged; a deep one would overflow what reads it. Reading alone changes nothing."""
    result = headless.NotebookResult("01_any", "Any")
    misnamed = [json.dumps({"notebooks": [result.entry() | {"name": name}]}) for name in ([], 5)]
    strange = ("{", "[]", '{"notebooks": [{"name": "x"}]}', "[" * 100_000, *misnamed)
    for number, text in enumerate(strange, 1):
        (tmp_path / "summary.json").write_text(text)
        summary = SummaryWriter(tmp_path, "fast", CPU)
        assert (tmp_path / "summary.json").read_text() == text
        summary.add(result)
        assert list(entries(tmp_path)) == ["01_any"]
        assert f"now summary.{number}.json, and a new one is begun" in capsys.readouterr().err
        assert (tmp_path / f"summary.{number}.json").read_text() == text
    assert len(list(tmp_path.iterdir())) == 1 + len(strange)


def test_a_reader_never_finds_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def power_cut(source: Path, target: Path) -> None:
        assert (Path(source).read_text(), path.read_text()) == ("new", "old")
        raise InterruptedError

    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(InterruptedError):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_half_a_character_is_saved_and_read_again(tmp_path):
    result = headless.NotebookResult("a", "a", reason="ValueError: \udcff")
    SummaryWriter(tmp_path, "fast", {}).add(result)
    assert entries(tmp_path)["a"]["reason"] == result.reason


def test_a_terminal_that_lacks_a_character_ends_no_run():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(stream).say("it can’t")
    assert stream.buffer.getvalue() == b"it can\\u2019t\n"


def test_a_run_is_the_latest_whichever_way_its_folder_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "BUILD", tmp_path / "build")
    paths.note(paths.BUILD / "old")
    paths.note(paths.BUILD / ".." / "build" / "new")
    assert paths.latest({paths.BUILD / "old": 2.0, paths.BUILD / "new": 1.0}).name == "new"
