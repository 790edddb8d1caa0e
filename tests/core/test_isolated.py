"""Code in another process, once in a fresh interpreter and once in a notebook's second kernel."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.blocking import BlockingKernelClient

from metallab import isolated, needs
from metallab.isolated import process


def run(source, **given):
    return isolated.run(source, **{"timeout": 1800, **given})


# ---- a fresh interpreter ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def succeeded():
    """Code that prints, and sets what is asked for and more."""
    code = "import numpy as np\nprint('one')\nx, secret = np.arange(3.0), 1\nprint('two', end='')"
    return run(code, results=["x"])


def test_code_that_runs_to_its_end_is_ok(succeeded):
    assert succeeded.ok
    assert str(succeeded) == "ok"


def test_output_comes_back(succeeded):
    assert succeeded.printed == "one\ntwo"


def test_results_come_back(succeeded):
    assert np.array_equal(succeeded["x"], [0, 1, 2])


def test_what_was_not_asked_for_does_not_come_back(succeeded):
    with pytest.raises(isolated.ChildFailed, match="secret"):
        succeeded["secret"]


@pytest.fixture(scope="module")
def failed():
    """Code that prints, and raises in a function before it has set what is asked for."""
    return run("def f():\n    return 1 / 0\n\nprint('before')\nf()\n", results=["x"])


def test_an_exception_has_a_line(failed):
    assert failed.ended == "raised"
    assert str(failed) == "raised: ZeroDivisionError: division by zero"


def test_an_exception_is_known_by_its_classes(failed):
    assert failed.kinds[:2] == ("ZeroDivisionError", "ArithmeticError")


def test_an_exception_has_its_place(failed):
    """In the code that was given, and not in what runs it."""
    assert "line 5" in failed.detail
    assert "return 1 / 0" in failed.detail
    assert "metallab/isolated" not in failed.detail


def test_what_was_printed_before_an_exception_comes_back(failed):
    assert failed.printed == "before\n"


def test_a_result_that_an_exception_prevented_raises_it(failed):
    with pytest.raises(isolated.ChildFailed, match="division by zero"):
        failed["x"]


ODD = """
class Odd:
    def __reduce__(self):
        return (int, ("not a number",))
x = Odd()
"""


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param("import sys; sys.exit('no')", "SystemExit: no", id="exit"),
        pytest.param("x = lambda: 1", "NumPy arrays", id="cannot be sent"),
        pytest.param("y = 1", "without setting x", id="not set"),
        pytest.param(ODD, "invalid literal", id="cannot be read"),
    ],
)
def test_failures_have_a_reason(code, reason):
    outcome = run(code, results=["x"])
    assert outcome.ended == "raised"
    assert reason in outcome.reason


LEFT_OPEN = """
class Diary:
    def __init__(self):
        self.me = self
        self.file = open({path!r}, "w")
        self.file.write("dear diary")

    def __del__(self):
        self.file.close()

diary = Diary()
"""
"""Code that leaves a file to an object, which closes it at its own end and refers to itself."""
WANTED_AT_THE_END = """
import atexit
atexit.register(lambda: print(diary is not None))
"""


@pytest.mark.parametrize("device", [pytest.param(None, id="cpu"), pytest.param("mps", id="mps")])
@pytest.mark.parametrize(
    ("at_the_end", "printed"),
    [
        pytest.param("", "", id="garbage"),
        pytest.param(WANTED_AT_THE_END, "True\n", id="wanted by what is called at the end"),
    ],
)
def test_a_file_that_code_left_open_is_written(tmp_path, at_the_end, printed, device):
    """Until it is closed Python keeps in memory what is written, and garbage has to be collected to end the object."""
    diary = tmp_path / "diary"

    outcome = run(LEFT_OPEN.format(path=str(diary)) + at_the_end, device=device)

    assert outcome.printed == printed
    assert diary.read_text() == "dear diary"


AWAY = """
import os, subprocess
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "ended", "reason"),
    [
        pytest.param("", "ok", "", id="at its end"),
        pytest.param("1 / 0", "raised", "ZeroDivisionError: division by zero", id="exception"),
        pytest.param("os.abort()", "crashed", "the process was killed by SIGABRT", id="abort"),
        pytest.param(
            "os._exit(0)",
            "crashed",
            "the process exited with code 0 before it answered",
            id="exit",
        ),
    ],
)
def test_children_end_with_it_however_it_ends(ending, ended, reason):
    outcome = run(AWAY + ending)
    assert outcome.ended == ended
    assert outcome.reason == reason
    assert gone(int(outcome.printed))


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


HANGING = """
import subprocess, time
print("started", flush=True)
subprocess.run("sleep 600 > /dev/null 2>&1 & echo $! > '{number}'", shell=True)
time.sleep(600)
"""
"""Starts a process, writes its number into a file, and does not end."""


def let_time_be_up(monkeypatch, *, seconds: float, is_ready: Callable[[], bool]) -> None:
    """Let a wait of so many seconds for a process be over as soon as something is ready."""
    wait = subprocess.Popen.wait

    def impatient(child, timeout=None):
        if timeout != seconds:
            return wait(child, timeout)
        while not is_ready():
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(child.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", impatient)


def test_a_hanging_child_is_stopped_with_its_children(tmp_path, monkeypatch):
    """Its time is up here as soon as it has started one, so that nobody waits for 5000 s."""
    number = tmp_path / "number"

    def has_started_one():
        return number.exists() and number.read_text().endswith("\n")

    let_time_be_up(monkeypatch, seconds=5000, is_ready=has_started_one)
    outcome = isolated.run(HANGING.format(number=number), timeout=5000)

    assert outcome.ended == "timeout"
    assert outcome.printed == "started\n"
    assert "5000 s" in outcome.reason
    assert gone(int(number.read_text()))


FOLDERS = "import sys\nfolders = [path for path in sys.path if path in ('/usual', '/given')]"


@pytest.mark.parametrize(
    ("environment", "folders"),
    [
        pytest.param({"PYTHONPATH": "/given"}, ["/given", "/usual"], id="given"),
        pytest.param({}, ["/usual"], id="not given"),
    ],
)
def test_pythonpath_is_added_to_the_one_there_is(monkeypatch, environment, folders):
    monkeypatch.setenv("PYTHONPATH", "/usual", prepend=os.pathsep)
    outcome = run(FOLDERS, results=["folders"], environment=environment)
    assert outcome["folders"] == folders


# ---- threads and device ----------------------------------------------------------------------------------------------

THREADS = f"""
import os
variables = [os.environ.get(name) for name in {list(isolated.ONE_THREAD)}]
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
"""


@pytest.fixture(scope="module")
def run_with():
    """Ask a child with so many threads what it was told; each number is asked once."""

    @functools.cache
    def run_with(threads: int | None) -> isolated.Outcome:
        with pytest.MonkeyPatch.context() as patch:
            for name in isolated.ONE_THREAD:
                patch.delenv(name, raising=False)
            return run(THREADS, results=["variables", "cores"], threads=threads)

    return run_with


@pytest.mark.parametrize(
    ("threads", "value"),
    [pytest.param(1, "1", id="one"), pytest.param(None, None, id="as many as usual")],
)
def test_one_thread_is_told_to_every_framework_by_its_variable(run_with, threads, value):
    """Variables count where no core can be assigned, as on a Mac."""
    assert run_with(threads)["variables"] == [value] * 6


@pytest.mark.skipif(sys.platform != "linux", reason="cores cannot be assigned")
def test_one_thread_has_one_core(run_with):
    assert run_with(1)["cores"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="cores cannot be assigned")
def test_as_many_threads_as_usual_have_every_core(run_with):
    assert run_with(None)["cores"] == len(os.sched_getaffinity(0))


def test_a_number_of_threads_that_cannot_be_set_is_refused():
    with pytest.raises(ValueError, match="threads is 4"):
        isolated.run("", threads=4)


@pytest.mark.parametrize(
    ("platform", "kind"),
    [pytest.param("linux", "sim", id="Linux"), pytest.param("darwin", "mps", id="macOS")],
)
def test_mps_is_the_real_gpu_on_a_mac_only(monkeypatch, platform, kind):
    monkeypatch.setattr(sys, "platform", platform)
    assert process.build_environment("mps", None, {})["METALLAB_DEVICE"] == kind


def test_without_a_device_it_is_that_of_the_run(monkeypatch):
    monkeypatch.setenv("METALLAB_DEVICE", "cpu")
    assert process.build_environment(None, None, {})["METALLAB_DEVICE"] == "cpu"


def test_a_device_that_a_child_cannot_have_is_refused():
    with pytest.raises(ValueError, match="device is 'cuda'"):
        isolated.run("", device="cuda")


# ---- a notebook's second kernel --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def the_shell():
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "metallab.isolated")
    yield shell
    isolated.end_kernel()
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(the_shell):
    the_shell.user_ns.pop("x", None)
    return the_shell


@pytest.fixture
def new_shell(shell):
    """A shell that has met nothing yet, and leaves one that has met nothing."""
    isolated.load_ipython_extension(shell)
    yield shell
    isolated.load_ipython_extension(shell)


def cell(shell, line, text="1"):
    shell.run_cell_magic("isolated", line, text)


def test_a_cell_runs_in_another_process_and_brings_its_results_back(shell, capsys):
    cell(shell, "x pid", "import os\nx, pid, hidden = [2], os.getpid(), 1\nprint('hello')")
    assert shell.user_ns["x"] == [2]
    assert shell.user_ns["pid"] != os.getpid()
    assert "hidden" not in shell.user_ns
    assert capsys.readouterr().out == "hello\n"


def test_cells_share_a_kernel_and_its_variables(shell):
    cell(shell, "x", "import os\nhidden, x = 1, os.getpid()")
    first = shell.user_ns["x"]
    cell(shell, "x y", "x, y = os.getpid(), hidden + 1")
    assert shell.user_ns["x"] == first
    assert shell.user_ns["y"] == 2


def test_another_working_directory_has_another_kernel(shell, monkeypatch, tmp_path):
    cell(shell, "x", "import os\nx = os.getpid()")
    first = shell.user_ns["x"]

    monkeypatch.chdir(tmp_path)
    cell(shell, "x", "import os\nx = os.getcwd()")

    assert gone(first)
    assert shell.user_ns["x"] == os.getcwd()


def test_other_options_have_another_kernel(shell):
    cell(shell, "x", "import os\nx = os.getpid()")
    first = shell.user_ns["x"]

    text = "import os\nx = [os.environ.get(name) for name in ('NAME', 'NPROC')]"
    cell(shell, "x --threads 1 --set NAME='a b'", text)

    assert gone(first)
    assert shell.user_ns["x"] == ["a b", "1"]


def test_a_channel_that_connects_late_loses_no_message(shell, monkeypatch):
    """As on a busy machine: the channel of outputs connects 2.5 s after that of requests."""
    connect = BlockingKernelClient.connect_iopub

    def late(client, identity=None):
        # the kernel does not listen yet, so the first attempt fails, and the next one is made after so many ms
        client.context.setsockopt(zmq.RECONNECT_IVL, 2500)
        socket = connect(client, identity)
        client.context.setsockopt(zmq.RECONNECT_IVL, 100)  # ZeroMQ's own, for the channels after it
        return socket

    monkeypatch.setattr(BlockingKernelClient, "connect_iopub", late)
    cell(shell, "x --set WHERE=late", "import os; x = os.environ['WHERE']")  # in a new kernel
    assert shell.user_ns["x"] == "late"


SHOWING = """
import os, sys, warnings
from IPython.display import HTML
from matplotlib import pyplot
warnings.warn("it falls back")
os.system("echo native")
pyplot.plot([1])
pyplot.show()
HTML("<b>last</b>")
"""


def test_output_warnings_and_figures_appear(shell, capfd, monkeypatch):
    published = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, *_, **__: published.append(data))

    cell(shell, "--set MPLBACKEND=module://matplotlib_inline.backend_inline", SHOWING)

    shown = capfd.readouterr()
    assert "native" in shown.out
    assert "it falls back" in shown.err
    assert "image/png" in published[0]
    assert published[1]["text/html"] == "<b>last</b>"


def test_a_crash_is_one_sentence_and_the_next_cell_runs(shell, capsys):
    shell.user_ns["x"] = "old"
    with pytest.raises(isolated.ChildFailed, match="killed by SIGABRT"):
        cell(shell, "x", "import os; os.write(1, b'before'); os.abort()")
    assert "before" in capsys.readouterr().out
    assert "x" not in shell.user_ns
    cell(shell, "x", "x = 'os' in globals()")
    assert shell.user_ns["x"] is False


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("time.sleep(600)", id="silent"),
        pytest.param(
            "for _ in range(2000): print('on', flush=True); time.sleep(0.01)", id="printing"
        ),
    ],
)
def test_a_cell_that_takes_too_long_is_stopped(shell, text):
    cell(shell, "x", "import os; x = os.getpid()")
    with pytest.raises(isolated.ChildFailed, match=r"longer than 0\.1 s"):
        cell(shell, "--timeout 0.1", f"import time\n{text}")
    assert gone(shell.user_ns["x"])


STARTING = """
import subprocess, sys
empty = {} if sys.platform == "linux" else None
print(subprocess.Popen(["sleep", "600"], start_new_session=True, env=empty).pid)
"""


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        pytest.param("", "", id="at its end"),
        pytest.param("--raises ZeroDivisionError", "1 / 0", id="exception"),
    ],
)
def test_what_a_cell_started_ends_with_it_and_the_kernel_goes_on(shell, capsys, options, ending):
    cell(shell, options, STARTING + ending)
    assert gone(int(capsys.readouterr().out.split()[0]))

    cell(shell, "", "print(sys.platform)")
    assert capsys.readouterr().out == f"{sys.platform}\n"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("NotImplementedError", id="its class"),
        pytest.param("RuntimeError", id="its base class"),
    ],
)
def test_a_failure_that_is_taught_is_shown(shell, capsys, kind):
    cell(shell, f"--raises {kind}", "raise NotImplementedError('no kernel')")
    assert "NotImplementedError: no kernel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        pytest.param("--raises NotImplementedError", "1 + 1", "without raising", id="no failure"),
        pytest.param(
            "--raises NotImplementedError",
            "raise KeyError('x')",
            r"^KeyError: 'x' .*NotImplementedError",
            id="another failure",
        ),
        pytest.param(
            "x --raises TypeError",
            "import threading; x = threading.Lock()",
            "cannot be sent back",
            id="only the result fails",
        ),
    ],
)
def test_a_failure_that_is_taught_has_to_come(shell, line, text, reason):
    with pytest.raises(isolated.ChildFailed, match=reason):
        cell(shell, line, text)


def test_fast_mode_skips_long_cells(shell, capsys, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    cell(shell, "x --full", "print('it ran')")
    assert "it ran" not in capsys.readouterr().out
    assert isinstance(shell.user_ns["x"], isolated.Skipped)


def test_full_mode_runs_long_cells(shell, capsys, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "full")
    cell(shell, "x --full", "x = print('it ran')")
    assert capsys.readouterr().out == "it ran\n"


def replace_tool(monkeypatch, name: str, **changes) -> None:
    monkeypatch.setitem(needs.TOOLS, name, dataclasses.replace(needs.TOOLS[name], **changes))


@pytest.mark.parametrize(
    ("line", "tool"),
    [
        pytest.param("x --needs coremltools", "coremltools", id="a tool"),
        pytest.param("x --device mps", "apple-gpu", id="a GPU"),
    ],
)
def test_a_cell_whose_tool_is_missing_is_skipped_and_says_what_to_do(
    shell, capsys, monkeypatch, line, tool
):
    replace_tool(monkeypatch, tool, is_here=lambda: False, fix=lambda: "buy one")
    shell.user_ns["x"] = "old"

    cell(shell, line, "x = print('it ran')")

    printed = capsys.readouterr().out
    assert "it ran" not in printed
    assert "buy one" in printed
    assert isinstance(shell.user_ns["x"], isolated.Skipped)


def test_a_result_of_a_skipped_cell_can_be_used_like_any_other(shell, monkeypatch):
    """As a table, a picture and a list: later cells run."""
    replace_tool(monkeypatch, "coremltools", is_here=lambda: False, fix=lambda: "make tools")
    cell(shell, "x --needs coremltools", "x = 1")

    skipped = shell.user_ns["x"]
    assert "this cell needs" in str(skipped.picture("heading"))
    assert skipped["key"] is skipped
    assert list(skipped) == []
    assert not hasattr(skipped, "_repr_html_")


@pytest.mark.skipif(sys.platform == "darwin", reason="nothing is simulated there")
def test_without_the_simulated_gpu_later_cells_are_skipped(new_shell, monkeypatch):
    replace_tool(monkeypatch, "apple-gpu", is_here=lambda: True)
    monkeypatch.setattr("metalsim.device.TORCH", "2.0.0")
    refusal = (
        "from metalsim.errors import SimulationError\nraise SimulationError('another PyTorch')"
    )

    cell(new_shell, "--device mps", refusal)
    cell(new_shell, "x --device mps", "x = what_the_first_cell_defines()")
    assert "2.0.0" in str(new_shell.user_ns["x"])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("'y", id="a quotation mark too many"),
        pytest.param("2x", id="no name"),
        pytest.param("--divice mps", id="a mistyped option"),
        pytest.param("--device cuda", id="a device it cannot have"),
        pytest.param("--threads 3", id="a number of threads that it cannot have"),
        pytest.param("--set NAME", id="a variable without value"),
        pytest.param("--needs clangg", id="a mistyped tool"),
        pytest.param("--raises", id="no exception"),
    ],
)
def test_a_magic_line_that_is_wrong_shows_the_options(shell, line):
    with pytest.raises(ValueError, match=r"does not understand .*--device"):
        cell(shell, line)


NOTEBOOK = """
import os, signal
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "metallab.isolated")
shell.run_cell_magic("isolated", "pid", "import os; pid = os.getpid()")
print(shell.user_ns["pid"], flush=True)
"""
"""What a notebook's process does: it starts a second kernel, and here tells its number."""
KILLED = NOTEBOOK + "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(scope="module")
def run_notebook(tmp_path_factory):
    """Return a function that runs a notebook's process to its end, once for each program.

    It returns the process number of the second kernel that this started, and the folder of its files.
    """

    @functools.cache
    def run_notebook(program: str) -> tuple[int, Path]:
        folder = tmp_path_factory.mktemp("files")
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            timeout=600,
        )
        return int(done.stdout), folder

    return run_notebook


def wait_until_gone(pid: int) -> bool:
    """Wait for the end of a process; return whether it came within ten minutes."""
    deadline = time.monotonic() + 600
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return gone(pid)


@pytest.mark.parametrize(
    "program", [pytest.param(NOTEBOOK, id="exit"), pytest.param(KILLED, id="SIGKILL")]
)
def test_the_second_kernel_ends_with_the_first(run_notebook, program):
    """As after a restart in JupyterLab, whether the notebook's process ends or is killed."""
    kernel, _ = run_notebook(program)
    assert wait_until_gone(kernel)


def test_a_second_kernel_that_ended_leaves_no_files(run_notebook):
    kernel, folder = run_notebook(NOTEBOOK)
    assert wait_until_gone(kernel)
    assert not list(folder.glob("metallab-kernel-*"))
