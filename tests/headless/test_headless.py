"""The headless runner: every way in which a notebook can end, and that nothing is left behind or mistaken.

Notebooks are made on the spot. Nothing here asserts on a duration; what a limit or a signal should stop would take
`FOREVER` without it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from one_page import run_notebook

from metallab import headless, paths, processes
from metallab.headless import cli, runner
from metallab.headless.cli import UNFINISHED, Summary
from metallab.results import report

FOREVER = 600
PATIENCE = 1800
"""Seconds after which something that should happen is taken for not happening."""
CPU = {"device": "cpu", "label": "a CPU in a test", "simulated": False}
SKIPPED = {"skip": {"device": ["cpu"], "reason": "needs a GPU"}}
"""The metadata of a notebook that is not run on it."""
COMMAND = f"""
import signal, sys
from metallab.headless import cli, runner
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
    monkeypatch.delenv("METALLAB_STRICT", raising=False)
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
        parts.append(
            output.get("text") or output.get("data", {}).get("text/plain") or output.get("evalue")
        )
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


def gone(*pids: int) -> bool:
    """True if these processes have ended, or end within `PATIENCE`; a zombie has ended."""
    deadline = time.monotonic() + PATIENCE
    while any(
        process and processes.is_alive(process) for process in map(processes.find_process, pids)
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def entries(folder: Path) -> dict[str, dict]:
    """The entries of a folder's summary, by name."""
    return {
        entry["name"]: entry
        for entry in json.loads((folder / "summary.json").read_text())["notebooks"]
    }


# ------------------------------------------------------------------------------------------------ what passes


def test_a_notebook_that_passes(tmp_path, monkeypatch):
    """Everything about a good run, in one kernel."""
    bad_kernel = tmp_path / "jupyter/kernels/python3/kernel.json"
    bad_kernel.parent.mkdir(parents=True)
    bad_kernel.write_text(
        json.dumps({"argv": ["false"], "display_name": "not ours", "language": "python"})
    )
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
    (out / ".lock").touch()
    result = run_notebook(path, out=out, replace={"replaced": "6 * 7", "emptied": ""})
    assert (result.status, result.reason, result.failed_copy, result.cell) == (
        "passed",
        "",
        None,
        None,
    )
    assert (result.name, result.title, result.cells, result.executed) == (
        "01_good",
        "Pass a test",
        3,
        3,
    )
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
    assert [cell.execution_count for cell in cells] == [1, 2, None, None, 3]
    assert not any(file.exists() for file in stale[1:])
    assert other.read_text() == "old"


def test_the_parent_stays_light():
    heavy = "torch nbconvert nbformat nbclient jupyter_client numpy tensorflow"
    check = (
        f"import sys, metallab.headless; print([m for m in {heavy.split()} if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout.strip()
        == "[]"
    )


# ------------------------------------------------------------------------------------------- what is incomplete

PLANTED = """
import dataclasses
from metallab import needs
needs.TOOLS["c++"] = dataclasses.replace(needs.TOOLS["c++"], is_here=lambda: False, fix=lambda: "buy it")
"""
"""A cell that takes a tool away."""


def test_a_notebook_without_a_tool_is_incomplete(tmp_path, command, capsys):
    """The run ends well; summary and console say what was not run, and how to mend it. Without a gap they do not."""
    load, run = "%load_ext metallab.isolated", tmp_path / "run"
    gap = "needs.incomplete('the model was not converted', 'install Xcode')"
    lacking = make(
        tmp_path / "01_lacking.ipynb", PLANTED, load, "%%isolated --needs c++\n1 / 0", gap, "1 + 1"
    )
    whole = make(
        tmp_path / "02_whole.ipynb", load, "%%isolated x --needs coremltools\nx = 6 * 7", "x"
    )
    assert command("--mode", "fast", lacking, whole) == 0
    lines = capsys.readouterr().out.splitlines()
    entry_of = entries(run)
    cells = [
        (
            "cell 3 (Make a test)",
            "this cell needs a C++ compiler, which this machine lacks",
            "buy it",
        )
    ]
    cells += [("cell 4 (Make a test)", "the model was not converted", "install Xcode")]
    wanted = [dict(zip(("where", "what", "fix"), cell, strict=True)) for cell in cells]
    assert (entry_of["01_lacking"]["status"], entry_of["01_lacking"]["not_run"]) == (
        "incomplete",
        wanted,
    )
    assert entry_of["01_lacking"]["executed"] == entry_of["01_lacking"]["cells"] == 5
    assert "To fix it: buy it, install Xcode" in entry_of["01_lacking"]["reason"]
    assert [entry_of["02_whole"][name] for name in ("status", "reason", "not_run")] == [
        "passed",
        "",
        [],
    ]
    assert "  to fix it: buy it" in lines
    shown = code(run / "01_lacking.ipynb")[2]
    assert text(shown) == f"NOT RUN: {wanted[0]['what']}.\nTo fix it: buy it"
    assert "42" in text(code(run / "02_whole.ipynb")[2])


LACKING = PLANTED, "%load_ext metallab.isolated", "%%isolated --needs c++\n1 / 0", "1 + 1"
"""Cells of a page that leaves its third one out."""


def test_what_did_not_run_fails_a_strict_run_and_is_counted_in_another(tmp_path, command, capsys):
    lacking = make(tmp_path / "01_lacking.ipynb", *LACKING)
    whole = make(tmp_path / "02_whole.ipynb", "1 + 1")

    assert command("--mode", "fast", lacking, whole) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("1 page is incomplete")
    assert "STRICT=1" in last

    assert command("--mode", "fast", "--strict", lacking, whole) == 1
    entry_of = entries(tmp_path / "run")
    assert {name: entry["status"] for name, entry in entry_of.items()} == {
        "01_lacking": "failed",
        "02_whole": "passed",
    }
    assert "cell 3 (Make a test)" in entry_of["01_lacking"]["reason"]
    printed = capsys.readouterr().out
    assert "cell 3 (Make a test): this cell needs a C++ compiler" in printed
    assert "to fix it: buy it" in printed


def test_the_variable_asks_for_a_strict_run_as_well(tmp_path, command, monkeypatch, capsys):
    lacking = make(tmp_path / "01_lacking.ipynb", *LACKING)
    monkeypatch.setenv("METALLAB_STRICT", "1")
    assert command("--mode", "fast", lacking) == 1
    assert command("--mode", "fast", "--strict=0", lacking) == 0, "the option counts"


STRICT_WORDS = [("", False), ("0", False), ("no", False), ("1", True)]


@pytest.mark.parametrize(("told", "is_strict"), STRICT_WORDS)
def test_variable_and_option_take_the_same_words(monkeypatch, told, is_strict):
    assert cli.parse([f"--strict={told}", "one.ipynb"]).strict == is_strict
    monkeypatch.setenv("METALLAB_STRICT", told)
    assert cli.parse(["one.ipynb"]).strict == is_strict


def test_the_option_without_a_word_takes_no_page_for_one():
    options = cli.parse(["--strict", "one.ipynb"])
    assert options.strict
    assert [path.name for path in options.paths] == ["one.ipynb"]


@pytest.mark.parametrize("told", ["yes", "true", "O"])
def test_another_word_is_refused_with_the_name_of_who_was_told(monkeypatch, capsys, told):
    with pytest.raises(SystemExit, match="2"):
        cli.parse([f"--strict={told}"])
    assert f"--strict is '{told}'; set it to 1" in capsys.readouterr().err
    monkeypatch.setenv("METALLAB_STRICT", told)
    with pytest.raises(SystemExit, match="2"):
        cli.parse([])
    assert f"METALLAB_STRICT is '{told}'; set it to 1" in capsys.readouterr().err


def test_a_strict_run_does_without_what_not_every_machine_can_have(tmp_path, command, capsys):
    gap = (
        "from metallab import needs\nneeds.bootstrap.loads_core_ai = lambda: False\n"
        "needs.incomplete('a step', 'buy it', without='coreai')"
    )
    page = make(tmp_path / "01_without_core_ai.ipynb", gap, "1 + 1")
    assert command("--mode", "fast", "--strict", page) == 0
    (entry,) = entries(tmp_path / "run").values()
    assert (entry["status"], entry["not_run"][0]["optional"]) == ("incomplete", True)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "1 page is incomplete, see above", "nothing of it fails a strict run"
    (shown,) = report.read_summary(tmp_path / "run").notebooks
    assert shown.not_run[0]["optional"]


def test_a_page_whose_tool_is_unknown_fails(tmp_path, command):
    page = make(tmp_path / "01_wrong.ipynb", "1 + 1", metallab={"tools": ["a hammer"]})
    assert command("--mode", "fast", page) == 1
    (entry,) = entries(tmp_path / "run").values()
    assert "metadata.metallab.tools is ['a hammer']" in entry["reason"]


def test_an_isolated_cell_that_fails_fails_its_notebook(tmp_path):
    """As one does that should raise and does not, and one whose tool is there and that fails."""
    failing = {
        "%%isolated\nprint('before')\n1 / 0": "ZeroDivisionError: division by zero (this cell's own process: raised",
        "%%isolated\nimport os\nos.abort()": "the process was killed by SIGABRT (this cell's own process: crashed",
        "%%isolated --raises KeyError\n1 + 1": "this cell should raise KeyError, and ended without raising",
        "%%isolated --needs coremltools\n1 / 0": "ZeroDivisionError",
    }
    as_it_should = "%%isolated --raises ZeroDivisionError\n1 / 0"
    path = make(tmp_path / "01_broken.ipynb", "%load_ext metallab.isolated", *failing, as_it_should)
    result = run_notebook(path, out=tmp_path / "out", allow_errors=True)
    assert (result.status, result.cell) == ("failed", 2)
    assert result.reason.startswith("cell 2: ChildFailed: ZeroDivisionError: division by zero")
    ran = code(result.notebook)
    for cell, reason in zip(ran[1:-1], failing.values(), strict=True):
        (error,) = (output for output in cell.outputs if output.output_type == "error")
        assert error.ename == "ChildFailed"
        assert reason in error.evalue
    assert text(ran[1]).startswith("before\n")
    assert "is meant to raise ZeroDivisionError, and did" in text(ran[-1])


# ------------------------------------------------------------------------------------------------- what fails


def test_one_run_meets_every_kind_of_failure_and_goes_on(tmp_path, command, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # whose files are named from the root all the same
    folder = tmp_path / "notebooks"
    (folder / "02_malformed.ipynb").parent.mkdir()
    (folder / "02_malformed.ipynb").write_text('{"cells": [')
    first = "print('done before')"
    last = {
        "source": "2",
        "execution_count": 3,
        "outputs": [nbformat.v4.new_output("stream", text="stale")],
    }
    made = [
        make(folder / "01_good.ipynb", "1 + 1", title="Add"),
        folder / "02_malformed.ipynb",
        make(folder / "04_raises.ipynb", first, "def f():\n    raise ValueError('boo')\nf()", last),
        make(
            folder / "07_aborts.ipynb",
            first,
            "import os\ndef fall():\n    os.abort()\nfall()",
            last,
        ),
        make(folder / "09_kernel.ipynb", "1", kernelspec={"name": "ir", "display_name": "R"}),
        make(folder / "10_skipped.ipynb", "1 / 0", metallab=SKIPPED),
    ]
    reasons = {
        "02_malformed": "not a valid notebook",
        "04_raises": "cell 2: ValueError: boo",
        "07_aborts": "cell 2: the kernel was killed by SIGABRT",
        "09_kernel": "unknown kernel 'ir'",
    }
    assert command("--mode", "fast", *made) == 1
    run, printed = tmp_path / "run", capsys.readouterr().out

    summary = json.loads((run / "summary.json").read_text())
    assert list(summary) == [
        "mode",
        "device",
        "label",
        "simulated",
        "started",
        "seconds",
        "notebooks",
    ]
    assert (summary["mode"], summary["device"], summary["label"]) == ("fast", "cpu", CPU["label"])
    assert summary["started"].endswith("+00:00")
    assert summary["simulated"] is False
    entry_of = entries(run)
    assert list(entry_of) == [path.stem for path in made]
    assert {name: entry["status"] for name, entry in entry_of.items()} == dict.fromkeys(
        entry_of, "failed"
    ) | {
        "01_good": "passed",
        "10_skipped": "skipped",
    }
    assert entry_of["10_skipped"]["reason"] == "needs a GPU"
    assert "10_skipped was skipped: needs a GPU" in printed.splitlines()
    assert (entry_of["01_good"]["title"], entry_of["01_good"]["reason"]) == ("Add", "")
    for name, reason in reasons.items():
        assert entry_of[name]["reason"].startswith(reason), name
        assert (run / entry_of[name]["failed_copy"]).parent == run / "failed"
        assert f"{name}: {reason}" in printed
        assert f"{run / entry_of[name]['failed_copy']}\n" in printed
    assert list(run.glob("*.ipynb")) == [run / "01_good.ipynb"]

    for name in ("04_raises", "07_aborts"):
        before, stopped, after = code(run / f"failed/{name}.ipynb")
        assert text(before) == "done before\n", name
        errors = [output for output in stopped.outputs if output.output_type == "error"]
        assert (
            reasons[name].removeprefix("cell 2: ").removeprefix("ValueError: ") in errors[-1].evalue
        )
        assert (after.outputs, after.execution_count) == ([], None)
        executed = 2 if name == "04_raises" else 1
        assert (entry_of[name]["cells"], entry_of[name]["executed"]) == (3, executed)
    assert entry_of["09_kernel"]["executed"] == 0
    assert "in fall" in "\n".join(code(run / "failed/07_aborts.ipynb")[1].outputs[-1].traceback)
    assert all(where in printed for where in ("in fall", "in f()"))

    make(folder / "04_raises.ipynb", "print('mended')")
    assert command("--mode", "fast", made[2]) == 0
    later = entries(run)
    assert (later["04_raises"]["status"], later["04_raises"]["failed_copy"]) == ("passed", None)
    assert not (run / "failed/04_raises.ipynb").exists()
    assert {name: entry for name, entry in later.items() if name != "04_raises"} == {
        name: entry for name, entry in entry_of.items() if name != "04_raises"
    }


def test_a_cell_that_hangs_is_interrupted(tmp_path, command):
    """It would hang longer than any limit, so the limit may be short."""
    hang = f"import time\ndef nap():\n    while True: time.sleep({FOREVER})\nnap()"
    long = make(tmp_path / "01_hangs.ipynb", hang, "3")
    assert command("--mode", "fast", "--timeout", 0, "--cell-timeout", 1, long) == 1
    assert (
        entries(tmp_path / "run")["01_hangs"]["reason"]
        == "cell 1 took longer than 1 s (--cell-timeout)"
    )
    hung, after = code(tmp_path / "run/failed/01_hangs.ipynb")
    assert after.outputs == []
    assert hung.outputs[-1].ename == "NotebookStopped"


def test_a_killed_worker_leaves_what_was_done(tmp_path):
    kill = f"import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep({FOREVER})"
    path = make(tmp_path / "01_orphan.ipynb", "import os\nprint(os.getpid())", kill, "3")
    result = run_notebook(path, out=tmp_path / "out")
    assert result.reason.startswith("cell 2: the worker process was killed by SIGKILL")
    assert (result.title, result.cells, result.executed, result.cell) == ("Make a test", 3, 1, 2)
    first, stopped, _ = code(result.notebook)
    assert gone(int(text(first)))
    assert text(stopped) == result.reason
    nbformat.validate(nbformat.read(result.notebook, 4))


def test_a_worker_that_breaks_says_why_and_so_does_a_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    path = make(tmp_path / "01_any.ipynb", "1")
    kernel = tmp_path / "ipykernel_launcher.py"
    kernel.write_text("raise ImportError('ipykernel is broken here')")
    result = run_notebook(path, out=tmp_path / "out")
    assert result.reason.startswith("no kernel: ")
    assert "ipykernel is broken here" in result.traceback
    kernel.unlink()
    (tmp_path / "nbformat.py").write_text("raise ImportError('nbformat is broken here')")
    result = run_notebook(path, out=tmp_path / "out")
    assert result.reason == "the worker process exited with code 1"
    assert "nbformat is broken here" in result.traceback
    assert "nbformat is broken here" in (tmp_path / "out" / result.failed_copy).read_text()
    assert result.notebook is None


# ------------------------------------------------------------------------------------------- what is left running


def test_nothing_that_no_run_wrote_is_overwritten(tmp_path, command, monkeypatch):
    """METALLAB_OUT may name any folder, that of the lessons as well, while copies of them are run from elsewhere."""
    lessons = tmp_path / "notebooks"
    copy = make(tmp_path / "copies" / "01_any.ipynb", "1", metallab=SKIPPED)
    lesson = make(lessons / "01_any.ipynb", "'a lesson'")
    before = lesson.read_bytes()
    monkeypatch.setenv("METALLAB_OUT", str(lessons))
    assert command("--mode", "fast", copy) == 2
    assert [path.name for path in lessons.iterdir()] == ["01_any.ipynb"]
    assert lesson.read_bytes() == before


# -------------------------------------------------------------------------------------------------- being stopped


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts the command line in a process and a session of its own, as a terminal would; into ``tmp_path/"run"``."""
    started: list[subprocess.Popen] = []

    def begin(*arguments: object) -> subprocess.Popen:
        environment = os.environ | {"METALLAB_OUT": str(tmp_path / "run")}
        command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
        run = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True
        )
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
    assert "another run" in capsys.readouterr().err
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
    assert "not begun: 1 notebook\n" in printed


def test_a_killed_run_leaves_no_process_and_did_not_pass(tmp_path, start, command):
    long = make(tmp_path / "01_long.ipynb", "1")
    assert command(long) == 0
    make(long, "print('done before')", whisper(tmp_path / "pids"))
    run = start(long)
    pids = heard(tmp_path / "pids")
    run.kill()
    run.communicate()
    other = make(tmp_path / "02_other.ipynb", "1", metallab=SKIPPED)
    assert command(other) == 0
    assert gone(*pids)
    entry = entries(tmp_path / "run")["01_long"]
    assert (entry["status"], entry["reason"]) == ("failed", UNFINISHED)
    assert not (tmp_path / "run/01_long.ipynb").exists()
    before, _ = code(tmp_path / "run/failed/01_long.ipynb")
    assert text(before) == "done before\n"


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
    said = capsys.readouterr().err
    assert f"--only {only} matches no notebook" in said
    assert [line.strip() for line in said.splitlines()[1:]] == shelf


def test_nothing_is_written_over_the_notebook_itself(tmp_path, command):
    path = make(tmp_path / "01_any.ipynb", "1")
    for folders in ({"out": tmp_path}, {"out": tmp_path / "out", "failed": tmp_path}):
        with pytest.raises(ValueError, match=r"01_any\.ipynb"):
            run_notebook(path, **folders)
    assert path.exists()
    assert command(tmp_path / "a/01_x.ipynb", tmp_path / "b/01_x.ipynb") == 2, "two of one name"


FAKE_DEVICE = """
import os, metallab
from types import SimpleNamespace
class DeviceUnavailable(RuntimeError): pass
def pick(framework):
    print("a library says hello")
    assert framework == "jax"
    match os.environ.get("METALLAB_DEVICE"):
        case "mps": raise DeviceUnavailable("no Apple GPU here: use DEVICE=sim")
        case "cuda":
            os.write(2, b"\\377, which is no text\\n")
            raise OSError("the driver fell over")
        case "tpu": raise ValueError("there is no device 'tpu'")
        case other: return SimpleNamespace(kind="cpu", label=f"asked for {other}", simulated=False)
metallab.device = SimpleNamespace(DeviceUnavailable=DeviceUnavailable, first_framework=lambda: "jax", pick=pick)
"""


def test_the_device_is_asked_for_in_another_process(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "PICK", FAKE_DEVICE + runner.PICK)
    monkeypatch.delenv("METALLAB_DEVICE", raising=False)
    assert headless.resolve_device("auto") == {
        "device": "cpu",
        "label": "asked for None",
        "simulated": False,
    }
    assert headless.resolve_device("cpu")["label"] == "asked for cpu"
    anything = make(tmp_path / "01_any.ipynb", "1")
    assert headless.main(["--device", "mps", str(anything)]) == 2
    assert "no Apple GPU here: use DEVICE=sim" in capsys.readouterr().err
    assert headless.main(["--device", "cuda", str(anything)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "looking for a device failed: OSError: the driver fell over" in line
    monkeypatch.setenv("METALLAB_DEVICE", "tpu")
    assert headless.main([str(anything)]) == 2
    assert capsys.readouterr().err == "metallab.headless: there is no device 'tpu'\n"


@pytest.mark.parametrize("strange", ["{", "[]", '{"notebooks": [{"name": "x"}]}'])
def test_a_summary_of_unknown_origin_is_not_overwritten(tmp_path, strange):
    (tmp_path / "summary.json").write_text(strange)
    with pytest.raises(headless.UsageError, match="move it away"):
        Summary(tmp_path, "fast", CPU)
    assert (tmp_path / "summary.json").read_text() == strange
