"""The headless runner: every way in which a notebook can end, and that nothing is left behind or mistaken.

Notebooks are made on the spot. Nothing here asserts on a duration; what a limit or a signal should stop would take
`FOREVER` without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from one_page import run_notebook

from metallab import headless, paths, processes
from metallab.headless import cli, runner, worker
from metallab.headless.cli import UNFINISHED, Summary
from metallab.notebook import Failure
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


@contextlib.contextmanager
def own_scratch() -> Iterator[Path]:
    """A temporary folder with a short path (sockets go there), which every run must leave empty."""
    with tempfile.TemporaryDirectory(prefix="ml") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        yield Path(folder)
        assert list(Path(folder).iterdir()) == []


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory) -> Iterator[Path]:
    tmp_path_factory.getbasetemp()  # pytest's own folder must not come to lie in it
    with own_scratch() as folder:
        yield folder


def make_command(patch: pytest.MonkeyPatch, folder: Path) -> Callable[..., int]:
    """Make a function that runs the command line in this process, into ``folder/"run"``."""
    patch.setattr(cli, "resolve_device", lambda name: CPU)
    patch.setenv("METALLAB_OUT", str(folder / "run"))
    patch.delenv("METALLAB_STRICT", raising=False)
    return lambda *arguments: headless.main([str(argument) for argument in arguments])


@pytest.fixture
def command(monkeypatch, tmp_path) -> Callable[..., int]:
    """Runs the command line in this process, into ``tmp_path/"run"``."""
    return make_command(monkeypatch, tmp_path)


@dataclasses.dataclass
class Run:
    """What a run of the command line left."""

    code: int
    printed: str
    folder: Path

    @property
    def entries(self) -> dict[str, dict]:
        return entries(self.folder)


def run_once(folder: Path, *arguments: object) -> Run:
    """Run the command line in fast mode, into ``folder/"run"``, for tests that look at one thing each."""
    with own_scratch(), pytest.MonkeyPatch.context() as patch:
        command = make_command(patch, folder)
        patch.chdir(folder)  # files are named from the root all the same
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = command("--mode", "fast", *arguments)
    return Run(code, printed.getvalue(), folder / "run")


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
    return "".join(text_of_output(output) for output in cell.outputs)


def text_of_output(output) -> str:
    result = output.get("data", {}).get("text/plain")
    return output.get("text") or result or output.get("evalue") or ""


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
    summary = json.loads((folder / "summary.json").read_text())
    return {entry["name"]: entry for entry in summary["notebooks"]}


# ------------------------------------------------------------------------------------------------ what passes


LOOK = """
import json, os, psutil, subprocess, sys
orphan = int(subprocess.check_output(["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"]))
empty = {} if sys.platform == "linux" else None  # a Mac finds what has kept its environment
away = subprocess.Popen(["sleep", "600"], start_new_session=True, env=empty).pid
worker = psutil.Process(os.getppid()).environ().get("METALLAB_DEVICE", "")
mine = {name: os.environ.get(f"METALLAB_{name}") for name in ("MODE", "DEVICE", "OUT")}
mine["kept"] = list(Out)
print(json.dumps({**mine, "python": sys.executable, "folder": os.getcwd(), "children": [orphan, away],
                  "worker": worker, "backend": os.environ.get("MPLBACKEND", ""), "profile": os.environ["IPYTHONDIR"]}))
"""
"""A cell that prints what its kernel sees, and leaves two processes."""


AT_THE_END = """
import atexit, pathlib
atexit.register(pathlib.Path(os.environ["METALLAB_OUT"], "ended").touch)
"""
"""Code that registers something to be called when its kernel ends."""


LEFT_OPEN = """
class Diary:
    def __init__(self):
        self.me = self
        self.file = open(os.path.join(os.environ["METALLAB_OUT"], "diary"), "w")
        self.file.write("dear diary")

    def __del__(self):
        self.file.close()

diary = Diary()
"""
"""Code that leaves a file to an object, which closes it at its own end and refers to itself."""


@dataclasses.dataclass
class Passed:
    """A run of a notebook that passes, into a folder with files of earlier runs."""

    result: headless.NotebookResult
    page: Path
    out: Path

    @functools.cached_property
    def cells(self) -> list:
        return code(self.result.notebook)

    @functools.cached_property
    def seen(self) -> dict:
        """What the kernel saw."""
        return json.loads(text(self.cells[0]))


def name_a_broken_kernel(folder: Path) -> None:
    """Write a kernel of Python's usual name, which cannot be started, where Jupyter looks first."""
    path = folder / "kernels/python3/kernel.json"
    path.parent.mkdir(parents=True)
    kernel = {"argv": ["false"], "display_name": "not ours", "language": "python"}
    path.write_text(json.dumps(kernel))


def leave_files(out: Path, *names: str) -> None:
    """Write files, as an earlier run would have left them."""
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("old")


@pytest.fixture(scope="module")
def passed(tmp_path_factory) -> Passed:
    """Run a notebook of which two cells are replaced, where much could be taken for what it is not.

    Its folder has files of earlier runs, Jupyter would find a broken kernel first, and the environment names another
    device and another way to draw.
    """
    folder = tmp_path_factory.mktemp("passed")
    raises = {"source": "1 / 0", "id": "replaced"}, {"source": "1 / 0", "id": "emptied"}
    hog = "hog = bytearray(300 << 20); del hog"
    cells = [LOOK, *raises, "  \n", hog, AT_THE_END + LEFT_OPEN]
    page = make(folder / "lesson" / "01_good.ipynb", *cells, title="Pass a test")
    out = folder / "out"
    leave_files(out, "01_good.ipynb", "results/01_good.json", "failed/01_good.ipynb")
    leave_files(out, "results/02_other.json")
    (out / ".lock").touch()
    name_a_broken_kernel(folder / "jupyter")

    with own_scratch(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        patch.setenv("MPLBACKEND", "agg")
        patch.setenv("METALLAB_DEVICE", "mps")
        result = run_notebook(page, out=out, replace={"replaced": "6 * 7", "emptied": ""})
    return Passed(result, page, out)


def test_a_notebook_that_passes_has_no_reason_and_no_failed_copy(passed):
    assert passed.result.status == "passed"
    assert passed.result.reason == ""
    assert passed.result.failed_copy is None
    assert passed.result.cell is None


def test_a_result_names_the_notebook_and_counts_its_cells(passed):
    assert passed.result.name == "01_good"
    assert passed.result.title == "Pass a test"
    assert passed.result.cells == 4
    assert passed.result.executed == 4


def test_what_a_page_registered_for_the_end_of_its_kernel_is_called(passed):
    assert (passed.out / "ended").exists()


def test_a_file_that_a_page_left_open_is_written_when_its_kernel_ends(passed):
    """Until it is closed Python keeps in memory what is written, and garbage has to be collected to end the object."""
    assert (passed.out / "diary").read_text() == "dear diary"


def test_a_page_does_not_meet_what_was_run_in_its_kernel_before(passed):
    assert passed.seen["kept"] == []


def test_a_result_has_the_time_and_the_peak_of_memory(passed):
    assert passed.result.seconds > 0
    assert passed.result.peak_rss_bytes > 300 << 20


def test_the_executed_notebook_lies_in_the_folder_of_the_run(passed):
    assert passed.result.notebook == passed.out / "01_good.ipynb"


def test_a_kernel_is_told_mode_device_and_folder(passed):
    assert passed.seen["MODE"] == "fast"
    assert passed.seen["DEVICE"] == "cpu"
    assert passed.seen["OUT"] == str(passed.out)


def test_a_worker_is_told_no_device(passed):
    """Or importing metallab would arm the simulation there too."""
    assert passed.seen["worker"] == ""


def test_a_kernel_is_this_python_whatever_kernels_there_are(passed):
    assert passed.seen["python"] == os.path.abspath(sys.executable)


def test_a_kernel_runs_in_the_folder_of_its_notebook(passed):
    assert Path(passed.seen["folder"]) == passed.page.parent


def test_a_kernel_draws_into_the_notebook_whatever_the_environment_says(passed):
    assert "inline" in passed.seen["backend"]


def test_a_kernel_has_a_fresh_profile_that_goes_with_it(passed):
    assert not Path(passed.seen["profile"]).exists()


def test_processes_that_a_notebook_left_are_ended(passed):
    """One whose parent has ended, and one in a session of its own."""
    assert gone(*passed.seen["children"])


def test_cells_are_replaced_and_emptied_by_id(passed):
    assert text(passed.cells[1]) == "42"
    assert [cell.execution_count for cell in passed.cells] == [1, 2, None, None, 3, 4]


def test_what_an_earlier_run_left_of_the_notebook_is_removed(passed):
    assert not (passed.out / "results/01_good.json").exists()
    assert not (passed.out / "failed/01_good.ipynb").exists()


def test_what_an_earlier_run_left_of_another_notebook_is_kept(passed):
    assert (passed.out / "results/02_other.json").read_text() == "old"


def test_the_parent_stays_light():
    heavy = ["torch", "nbconvert", "nbformat", "nbclient", "jupyter_client", "numpy", "tensorflow"]
    check = f"import sys, metallab.headless; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout == "[]\n"


# ------------------------------------------------------------------------------------------- what is incomplete

PLANTED = """
import dataclasses
from metallab import needs
needs.TOOLS["c++"] = dataclasses.replace(needs.TOOLS["c++"], is_here=lambda: False, fix=lambda: "buy it")
"""
"""A cell that takes a tool away."""


LOAD = "%load_ext metallab.isolated"
GAPS = [
    {
        "where": "cell 3 (Make a test)",
        "what": "this cell needs a C++ compiler, which this machine lacks",
        "fix": "buy it",
    },
    {
        "where": "cell 4 (Make a test)",
        "what": "the model was not converted",
        "fix": "install Xcode",
    },
]
"""What `lenient` did not run, as the summary has it."""


@pytest.fixture(scope="module")
def lenient(tmp_path_factory) -> Run:
    """Run a notebook that lacks its tools, and one that has them."""
    folder = tmp_path_factory.mktemp("lenient")
    gap = "needs.incomplete('the model was not converted', 'install Xcode')"
    needing = "%%isolated --needs c++\n1 / 0"
    lacking = make(folder / "01_lacking.ipynb", PLANTED, LOAD, needing, gap, "1 + 1")
    having = "%%isolated x --needs coremltools\nx = 6 * 7"
    whole = make(folder / "02_whole.ipynb", LOAD, having, "x")
    return run_once(folder, lacking, whole)


def test_a_notebook_without_a_tool_is_incomplete_and_the_run_ends_well(lenient):
    entry = lenient.entries["01_lacking"]
    assert lenient.code == 0
    assert entry["status"] == "incomplete"
    assert entry["executed"] == entry["cells"] == 5


def test_a_summary_lists_what_was_not_run_and_how_to_fix_it(lenient):
    entry = lenient.entries["01_lacking"]
    assert entry["not_run"] == GAPS
    assert "To fix it: buy it, install Xcode" in entry["reason"]


def test_the_console_says_how_to_fix_what_was_not_run(lenient):
    assert "  to fix it: buy it" in lenient.printed.splitlines()


def test_the_table_counts_no_cell_as_run_that_was_not(lenient):
    (row,) = (line for line in lenient.printed.splitlines() if " 3/5 " in line)

    assert "01_lacking" in row


def test_the_console_names_what_many_cells_lack_once(capsys):
    gaps = [{"where": f"cell {number}", "what": "no g++", "fix": "buy it"} for number in (3, 5)]

    cli.print_table([runner.NotebookResult("01_a", not_run=gaps)], Path("out"), 1)

    printed = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in printed if "no g++" in line or "cell " in line] == [
        *("no g++:", "cell 3", "cell 5"),
    ]


def test_a_line_of_progress_ends_with_a_word():
    line = cli.line_of(runner.NotebookResult("01_a", reason="word " * 50))

    assert line.endswith(" word ...")


def test_a_line_of_progress_says_of_an_incomplete_page_how_to_fix_it():
    result = runner.NotebookResult("01_a", status="incomplete", cells=5, executed=5, not_run=GAPS)

    assert cli.line_of(result).endswith("3 of 5 cells ran; to fix it: buy it, install Xcode")


def test_the_last_line_counts_incomplete_pages_and_says_how_to_be_strict(lenient):
    last = lenient.printed.splitlines()[-1]
    assert last.startswith("1 page is incomplete")
    assert "STRICT=1" in last


def test_a_cell_that_was_not_run_shows_what_is_missing(lenient):
    cell = code(lenient.folder / "01_lacking.ipynb")[2]
    assert text(cell) == f"NOT RUN: {GAPS[0]['what']}.\nTo fix it: buy it"


def test_a_notebook_that_has_its_tools_passes_without_a_reason(lenient):
    entry = lenient.entries["02_whole"]
    assert entry["status"] == "passed"
    assert entry["reason"] == ""
    assert entry["not_run"] == []
    assert "42" in text(code(lenient.folder / "02_whole.ipynb")[2])


LACKING = PLANTED, LOAD, "%%isolated --needs c++\n1 / 0", "1 + 1"
"""Cells of a page that leaves its third one out."""


@pytest.fixture(scope="module")
def strict(tmp_path_factory) -> Run:
    """Run a notebook that lacks a tool, and one that does not, strictly."""
    folder = tmp_path_factory.mktemp("strict")
    lacking = make(folder / "01_lacking.ipynb", *LACKING)
    whole = make(folder / "02_whole.ipynb", "1 + 1")
    return run_once(folder, "--strict", lacking, whole)


def test_an_incomplete_notebook_fails_a_strict_run(strict):
    statuses = {name: entry["status"] for name, entry in strict.entries.items()}
    assert strict.code == 1
    assert statuses == {"01_lacking": "failed", "02_whole": "passed"}


def test_a_strict_run_says_which_cell_was_not_run_and_how_to_fix_it(strict):
    assert "cell 3 (Make a test)" in strict.entries["01_lacking"]["reason"]
    assert "cell 3 (Make a test): this cell needs a C++ compiler" in strict.printed
    assert "to fix it: buy it" in strict.printed


@pytest.mark.parametrize(
    ("options", "code"),
    [pytest.param([], 1, id="alone"), pytest.param(["--strict=0"], 0, id="the option counts")],
)
def test_the_variable_asks_for_a_strict_run_as_well(tmp_path, command, monkeypatch, options, code):
    lacking = make(tmp_path / "01_lacking.ipynb", *LACKING)
    monkeypatch.setenv("METALLAB_STRICT", "1")
    assert command("--mode", "fast", *options, lacking) == code


STRICT_WORDS = [("", False), ("0", False), ("no", False), ("1", True)]


@pytest.mark.parametrize(("told", "is_strict"), STRICT_WORDS)
def test_the_option_takes_these_words(told, is_strict):
    assert cli.parse([f"--strict={told}", "one.ipynb"]).strict == is_strict


@pytest.mark.parametrize(("told", "is_strict"), STRICT_WORDS)
def test_the_variable_takes_the_same_words(monkeypatch, told, is_strict):
    monkeypatch.setenv("METALLAB_STRICT", told)
    assert cli.parse(["one.ipynb"]).strict == is_strict


def test_the_option_without_a_word_takes_no_page_for_one():
    options = cli.parse(["--strict", "one.ipynb"])
    assert options.strict
    assert [path.name for path in options.paths] == ["one.ipynb"]


@pytest.mark.parametrize("told", ["yes", "true", "O"])
def test_another_word_of_the_option_is_refused_with_its_name(capsys, told):
    with pytest.raises(SystemExit, match="2"):
        cli.parse([f"--strict={told}"])
    assert f"--strict is '{told}'; set it to 1" in capsys.readouterr().err


@pytest.mark.parametrize("told", ["yes", "true", "O"])
def test_another_word_of_the_variable_is_refused_with_its_name(monkeypatch, capsys, told):
    monkeypatch.setenv("METALLAB_STRICT", told)
    with pytest.raises(SystemExit, match="2"):
        cli.parse([])
    assert f"METALLAB_STRICT is '{told}'; set it to 1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def without_core_ai(tmp_path_factory) -> Run:
    """Run, strictly, a notebook that lacks a tool which there is not for this machine."""
    folder = tmp_path_factory.mktemp("without_core_ai")
    gap = (
        "from metallab import needs\nneeds.bootstrap.loads_core_ai = lambda: False\n"
        "needs.incomplete('a step', 'buy it', without='coreai')"
    )
    return run_once(folder, "--strict", make(folder / "01_without.ipynb", gap, "1 + 1"))


def test_a_strict_run_does_without_what_not_every_machine_can_have(without_core_ai):
    entry = without_core_ai.entries["01_without"]
    assert without_core_ai.code == 0
    assert entry["status"] == "incomplete"
    assert entry["not_run"][0]["optional"]


def test_what_fails_no_strict_run_is_counted_without_advice_to_be_strict(without_core_ai):
    last = without_core_ai.printed.splitlines()[-1]
    assert last == "1 page is incomplete, see above"


def test_a_report_knows_what_not_every_machine_can_have(without_core_ai):
    (shown,) = report.read_summary(without_core_ai.folder).notebooks
    assert shown.not_run[0]["optional"]


def test_a_page_whose_tool_is_unknown_fails(tmp_path, command):
    page = make(tmp_path / "01_wrong.ipynb", "1 + 1", metallab={"tools": ["a hammer"]})
    assert command("--mode", "fast", page) == 1
    (entry,) = entries(tmp_path / "run").values()
    assert "metadata.metallab.tools is ['a hammer']" in entry["reason"]


FAILING = {
    "%%isolated\nprint('before')\n1 / 0": "ZeroDivisionError: division by zero (this cell's own process: raised",
    "%%isolated\nimport os\nos.abort()": "the process was killed by SIGABRT (this cell's own process: crashed",
    "%%isolated --raises KeyError\n1 + 1": "this cell should raise KeyError, and ended without raising",
    "%%isolated --needs coremltools\n1 / 0": "ZeroDivisionError",
}
"""Isolated cells that fail, with the reason."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> headless.NotebookResult:
    """Run a notebook of isolated cells that fail, and a last one that raises as it should."""
    folder = tmp_path_factory.mktemp("broken")
    as_it_should = "%%isolated --raises ZeroDivisionError\n1 / 0"
    page = make(folder / "01_broken.ipynb", LOAD, *FAILING, as_it_should)
    with own_scratch():
        return run_notebook(page, out=folder / "out", allow_errors=True)


def test_an_isolated_cell_that_fails_fails_its_notebook(broken):
    assert broken.status == "failed"
    assert broken.cell == 2
    assert broken.reason.startswith("cell 2: ChildFailed: ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("number", "reason"),
    list(enumerate(FAILING.values(), 1)),
    ids=["it raises", "it aborts", "it does not raise", "its tool is there"],
)
def test_an_isolated_cell_that_fails_shows_the_reason(broken, number, reason):
    outputs = code(broken.notebook)[number].outputs
    (error,) = (output for output in outputs if output.output_type == "error")
    assert error.ename == "ChildFailed"
    assert reason in error.evalue


def test_what_an_isolated_cell_printed_before_it_failed_is_shown(broken):
    assert text(code(broken.notebook)[1]).startswith("before\n")


def test_an_isolated_cell_that_raises_as_it_should_says_so(broken):
    shown = text(code(broken.notebook)[-1])
    assert "is meant to raise ZeroDivisionError, and did" in shown


# ------------------------------------------------------------------------------------------------- what fails


FIRST = "print('done before')"
RAISES = "def f():\n    raise ValueError('boo')\nf()"
ABORTS = "import os\ndef fall():\n    os.abort()\nfall()"
LAST = {
    "source": "2",
    "execution_count": 3,
    "outputs": [nbformat.v4.new_output("stream", text="stale")],
}
"""A cell with an output of an earlier run."""

REASONS = {
    "02_malformed": "not a valid notebook",
    "04_raises": "cell 2: ValueError: boo",
    "07_aborts": "cell 2: the kernel was killed by SIGABRT",
    "09_kernel": "unknown kernel 'ir'",
}
"""Why these notebooks fail."""

STATUSES = dict.fromkeys(REASONS, "failed") | {"01_good": "passed", "10_skipped": "skipped"}


def make_every_kind(folder: Path) -> list[Path]:
    """Write a notebook that passes, one that is skipped, and those that fail for the `REASONS`; return their paths."""
    folder.mkdir()
    malformed = folder / "02_malformed.ipynb"
    malformed.write_text('{"cells": [')
    return [
        make(folder / "01_good.ipynb", "1 + 1", title="Add"),
        malformed,
        make(folder / "04_raises.ipynb", FIRST, RAISES, LAST),
        make(folder / "07_aborts.ipynb", FIRST, ABORTS, LAST),
        make(folder / "09_kernel.ipynb", "1", kernelspec={"name": "ir", "display_name": "R"}),
        make(folder / "10_skipped.ipynb", "1 / 0", metallab=SKIPPED),
    ]


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory) -> Run:
    """One run that meets every kind of failure, and goes on."""
    folder = tmp_path_factory.mktemp("every_kind")
    return run_once(folder, *make_every_kind(folder / "notebooks"))


def test_a_run_with_a_failure_goes_on_and_ends_with_1(every_kind):
    assert every_kind.code == 1
    assert list(every_kind.entries) == sorted(STATUSES), "in the order in which they were given"


@pytest.mark.parametrize(("name", "status"), STATUSES.items(), ids=STATUSES)
def test_a_notebook_has_its_status(every_kind, name, status):
    assert every_kind.entries[name]["status"] == status


def test_a_summary_says_what_ran_where_and_when(every_kind):
    summary = json.loads((every_kind.folder / "summary.json").read_text())
    *about, notebooks = summary
    assert about == ["mode", "device", "label", "simulated", "started", "seconds"]
    assert notebooks == "notebooks"
    assert summary["mode"] == "fast"
    assert {name: summary[name] for name in CPU} == CPU
    assert summary["started"].endswith("+00:00")


def test_a_notebook_that_is_skipped_is_told_with_its_reason(every_kind):
    assert every_kind.entries["10_skipped"]["reason"] == "needs a GPU"
    assert "10_skipped was skipped: needs a GPU" in every_kind.printed.splitlines()


def test_a_notebook_that_passed_beside_failures_has_its_title_and_no_reason(every_kind):
    entry = every_kind.entries["01_good"]
    assert entry["title"] == "Add"
    assert entry["reason"] == ""


@pytest.mark.parametrize(("name", "reason"), REASONS.items(), ids=REASONS)
def test_a_notebook_that_fails_is_told_with_its_reason_and_its_copy(every_kind, name, reason):
    entry = every_kind.entries[name]
    copy = every_kind.folder / entry["failed_copy"]
    assert entry["reason"].startswith(reason)
    assert copy.parent == every_kind.folder / "failed"
    assert f"{name}: {reason}" in every_kind.printed
    assert f"{copy}\n" in every_kind.printed


def test_notebooks_that_passed_alone_lie_in_the_folder_of_the_run(every_kind):
    copies = list(every_kind.folder.glob("*.ipynb"))
    assert copies == [every_kind.folder / "01_good.ipynb"]


@pytest.mark.parametrize(
    ("name", "executed", "error"),
    [
        pytest.param("04_raises", 2, "boo", id="raises"),
        pytest.param("07_aborts", 1, "the kernel was killed by SIGABRT", id="aborts"),
    ],
)
def test_a_failed_copy_has_what_ran_the_error_and_nothing_behind_it(
    every_kind, name, executed, error
):
    before, stopped, after = code(every_kind.folder / f"failed/{name}.ipynb")
    errors = [output for output in stopped.outputs if output.output_type == "error"]

    assert text(before) == "done before\n"
    assert error in errors[-1].evalue
    assert after.outputs == []
    assert after.execution_count is None
    assert every_kind.entries[name]["cells"] == 3
    assert every_kind.entries[name]["executed"] == executed


def test_without_its_kernel_no_cell_of_a_notebook_is_executed(every_kind):
    assert every_kind.entries["09_kernel"]["executed"] == 0


def test_where_a_kernel_was_killed_its_copy_says_in_which_function(every_kind):
    stopped = code(every_kind.folder / "failed/07_aborts.ipynb")[1]
    assert "in fall" in "\n".join(stopped.outputs[-1].traceback)


@pytest.mark.parametrize("where", ["in fall", "in f()"])
def test_the_console_says_in_which_function_a_notebook_failed(every_kind, where):
    assert where in every_kind.printed


def test_a_notebook_that_passes_later_replaces_its_failure_and_nothing_else(every_kind, tmp_path):
    shutil.copytree(every_kind.folder, tmp_path / "run")
    mended = make(tmp_path / "04_raises.ipynb", "print('mended')")
    later = run_once(tmp_path, mended)

    name = "04_raises"
    changed = later.entries[name]
    assert changed["status"] == "passed"
    assert changed["failed_copy"] is None
    assert not (later.folder / "failed/04_raises.ipynb").exists()
    assert later.entries == every_kind.entries | {name: changed}


def test_a_cell_that_hangs_is_interrupted(tmp_path, command):
    """It would hang longer than any limit, so the limit may be short."""
    hang = f"import time\ndef nap():\n    while True: time.sleep({FOREVER})\nnap()"
    long = make(tmp_path / "01_hangs.ipynb", hang, "3")
    assert command("--mode", "fast", "--timeout", 0, "--cell-timeout", 1, long) == 1

    reason = entries(tmp_path / "run")["01_hangs"]["reason"]
    hung, after = code(tmp_path / "run/failed/01_hangs.ipynb")
    assert reason == "cell 1 took longer than 1 s (--cell-timeout)"
    assert hung.outputs[-1].ename == "NotebookStopped"
    assert after.outputs == []


@pytest.mark.parametrize(
    ("rest", "limit"),
    [
        pytest.param(FOREVER, "5 s (--cell-timeout)", id="the cell's"),
        pytest.param(0, "600 s (--timeout)", id="the page's"),
    ],
)
def test_a_cell_is_stopped_for_the_limit_that_was_reached_first(tmp_path, monkeypatch, rest, limit):
    """Interrupting it takes up to ten seconds, in which the page's time may be up as well."""
    hang = "hang()  # not for want of an IOPub message"
    notebook = nbformat.read(make(tmp_path / "01_hangs.ipynb", hang), 4)
    made = runner.make_job(tmp_path / "01_hangs.ipynb", "fast", "cpu", out=tmp_path / "out")
    job = dataclasses.replace(made, cell_timeout=5, timeout=FOREVER, scratch=str(tmp_path))
    page = worker.Page(job, notebook, runner.NotebookResult("01_hangs"))
    page.deadline = time.monotonic() + rest

    async def time_out(page, cell, *__):
        page.seconds_for(cell)  # as nbclient asks for it before the cell runs
        why = "Cell execution timed out"
        raise CellTimeoutError.error_from_timeout_and_cell(why, job.cell_timeout, cell)

    async def interrupt(page, _):
        page.deadline = time.monotonic()

    monkeypatch.setattr(NotebookClient, "async_execute_cell", time_out)
    monkeypatch.setattr(worker.Page, "interrupt", interrupt)
    monkeypatch.setattr(worker.Page, "kernel_pid", 0)

    with pytest.raises(Failure, match=re.escape(limit)):
        asyncio.run(page.async_execute_cell(notebook.cells[1], 1))


def test_a_killed_worker_leaves_what_was_done(tmp_path):
    kill = f"import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep({FOREVER})"
    path = make(tmp_path / "01_orphan.ipynb", "import os\nprint(os.getpid())", kill, "3")
    result = run_notebook(path, out=tmp_path / "out")
    first, stopped, _ = code(result.notebook)

    assert result.reason.startswith("cell 2: the worker process was killed by SIGKILL")
    assert result.title == "Make a test"
    assert [result.cells, result.executed, result.cell] == [3, 1, 2]
    assert gone(int(text(first)))
    assert text(stopped) == result.reason
    nbformat.validate(nbformat.read(result.notebook, 4))


@pytest.fixture
def break_module(tmp_path, monkeypatch) -> Callable[[str], None]:
    """A function that makes a module one that cannot be imported."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def break_module(name: str) -> None:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is broken here')")

    return break_module


def test_a_kernel_that_breaks_says_why(tmp_path, break_module):
    break_module("ipykernel_launcher")
    result = run_notebook(make(tmp_path / "01_any.ipynb", "1"), out=tmp_path / "out")
    assert result.reason.startswith("no kernel: ")
    assert "ipykernel_launcher is broken here" in result.traceback


def test_a_worker_that_breaks_says_why(tmp_path, break_module):
    path = make(tmp_path / "01_any.ipynb", "1")
    break_module("nbformat")
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


@contextlib.contextmanager
def start(folder: Path, *arguments: object) -> Iterator[subprocess.Popen]:
    """Start the command line in a process and a session of its own, as a terminal would; into ``folder/"run"``."""
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    environment = os.environ | {"METALLAB_OUT": str(folder / "run")}
    run = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True
    )
    try:
        yield run
    finally:  # only a failed test leaves one; its worker notices and leaves too
        run.kill()
        run.wait()


@dataclasses.dataclass
class Interrupted(Run):
    """A run that Ctrl-C ended, and a second one that was started meanwhile."""

    pids: list[int]
    """Of kernel, worker and child."""
    second: Run


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Interrupted:
    """Interrupt a run in its second notebook of three, after another run was refused its folder meanwhile."""
    folder = tmp_path_factory.mktemp("interrupted")
    pids = folder / "pids"
    made = [
        make(folder / "01_good.ipynb", "1"),
        make(folder / "02_long.ipynb", FIRST, whisper(pids)),
        make(folder / "03_later.ipynb", "1"),
    ]

    with own_scratch(), start(folder, *made) as first:
        heard(pids)  # the second notebook runs
        with contextlib.redirect_stderr(io.StringIO()) as refused:
            second = run_once(folder, made[0])
        os.killpg(first.pid, signal.SIGINT)  # what a terminal does
        printed, _ = first.communicate(timeout=PATIENCE)
        assert gone(*heard(pids)), "a process is left"

    second.printed = refused.getvalue()
    return Interrupted(first.returncode, printed, folder / "run", heard(pids), second)


def test_ctrl_c_ends_a_run_with_130_and_says_what_was_not_begun(interrupted):
    assert interrupted.code == 130
    assert "not begun: 1 notebook\n" in interrupted.printed


def test_ctrl_c_leaves_no_process(interrupted):
    assert gone(*interrupted.pids)


def test_ctrl_c_fails_the_notebook_that_runs_and_keeps_what_passed(interrupted):
    reasons = {name: entry["reason"] for name, entry in interrupted.entries.items()}
    statuses = [entry["status"] for entry in interrupted.entries.values()]
    assert reasons == {"01_good": "", "02_long": "interrupted"}
    assert statuses == ["passed", "failed"]


def test_ctrl_c_keeps_the_notebook_as_far_as_it_ran(interrupted):
    copy = interrupted.folder / interrupted.entries["02_long"]["failed_copy"]
    before, stopped = code(copy)
    assert text(before) == "done before\n"
    assert text(stopped) == "interrupted"


def test_a_second_run_into_the_same_folder_is_refused(interrupted):
    assert interrupted.second.code == 2
    assert "another run" in interrupted.second.printed


def test_a_killed_run_leaves_no_process_and_did_not_pass(tmp_path, command):
    """Though the notebook had passed before, and though a later run of another one writes the summary anew."""
    long = make(tmp_path / "01_long.ipynb", "1")
    assert command(long) == 0

    make(long, FIRST, whisper(tmp_path / "pids"))
    with start(tmp_path, long) as run:
        pids = heard(tmp_path / "pids")
        run.kill()
        run.communicate()
    other = make(tmp_path / "02_other.ipynb", "1", metallab=SKIPPED)
    assert command(other) == 0

    assert gone(*pids)
    assert_did_not_pass(tmp_path / "run", "01_long")


def assert_did_not_pass(folder: Path, name: str) -> None:
    """Assert that a notebook of a run that was killed has failed, and that its copy has what ran."""
    entry = entries(folder)[name]
    assert entry["status"] == "failed"
    assert entry["reason"] == UNFINISHED
    assert not (folder / f"{name}.ipynb").exists()
    before, _ = code(folder / f"failed/{name}.ipynb")
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
        pytest.param([], [0, 1, 2, 3, 4], id="all"),
        pytest.param(["02"], [1], id="a number"),
        pytest.param(["02b"], [2, 3], id="a number of two"),
        pytest.param(["02b_more"], [2], id="a name"),
        pytest.param(["12", "00"], [0, 4], id="two, in order"),
    ],
)
def test_only_chooses_notebooks_by_number_or_name(shelf, only, chosen):
    assert [path.stem for path in cli.choose([], only)] == [shelf[index] for index in chosen]


@pytest.mark.parametrize("only", ["2", "03", "02_", "02_tim"])
def test_only_that_matches_nothing_is_refused_with_what_there_is(shelf, only, command, capsys):
    assert command("--only", "00", "--only", only) == 2
    said = capsys.readouterr().err
    assert f"--only {only} matches no notebook" in said
    assert [line.strip() for line in said.splitlines()[1:]] == shelf


@pytest.mark.parametrize(
    ("out", "failed"),
    [pytest.param("", None, id="executed"), pytest.param("out", "", id="failed")],
)
def test_nothing_is_written_over_the_notebook_itself(tmp_path, out, failed):
    path = make(tmp_path / "01_any.ipynb", "1")
    before = path.read_bytes()
    folder_of_failed = None if failed is None else tmp_path / failed
    with pytest.raises(ValueError, match=r"01_any\.ipynb"):
        run_notebook(path, out=tmp_path / out, failed=folder_of_failed)
    assert path.read_bytes() == before


def test_two_notebooks_of_one_name_are_refused(tmp_path, command):
    assert command(tmp_path / "a/01_x.ipynb", tmp_path / "b/01_x.ipynb") == 2


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


@pytest.fixture
def fake_device(monkeypatch) -> None:
    """Another process finds a device as `FAKE_DEVICE` says, and nobody has asked for one."""
    monkeypatch.setattr(runner, "PICK", FAKE_DEVICE + runner.PICK)
    monkeypatch.delenv("METALLAB_DEVICE", raising=False)


def test_the_best_device_is_asked_for_in_another_process(fake_device):
    found = headless.resolve_device("auto")
    assert found == {"device": "cpu", "label": "asked for None", "simulated": False}


def test_a_device_is_asked_for_by_its_name(fake_device):
    assert headless.resolve_device("cpu")["label"] == "asked for cpu"


@pytest.fixture
def refuse(fake_device, tmp_path, capsys) -> Callable[..., str]:
    """A function that runs a notebook with options that are refused; it returns the error."""

    def refuse(*options: str) -> str:
        assert headless.main([*options, str(make(tmp_path / "01_any.ipynb", "1"))]) == 2
        return capsys.readouterr().err

    return refuse


def test_a_device_that_is_not_here_is_refused_in_its_own_words(refuse):
    assert "no Apple GPU here: use DEVICE=sim" in refuse("--device", "mps")


def test_a_search_for_a_device_that_fails_is_told_in_a_line(refuse):
    (line,) = refuse("--device", "cuda").splitlines()
    assert "looking for a device failed: OSError: the driver fell over" in line


def test_a_device_that_the_variable_names_and_that_there_is_not_is_refused(refuse, monkeypatch):
    monkeypatch.setenv("METALLAB_DEVICE", "tpu")
    assert refuse() == "metallab.headless: there is no device 'tpu'\n"


@pytest.mark.parametrize(
    "strange",
    ["{", "[]", '{"notebooks": [{"name": "x"}]}'],
    ids=["no JSON", "a list", "other fields"],
)
def test_a_summary_of_unknown_origin_is_not_overwritten(tmp_path, strange):
    (tmp_path / "summary.json").write_text(strange)
    with pytest.raises(headless.UsageError, match="move it away"):
        Summary(tmp_path, "fast", CPU)
    assert (tmp_path / "summary.json").read_text() == strange
