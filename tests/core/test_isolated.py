"""Code in another process, once in a fresh interpreter and once in a notebook's second kernel."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

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


def test_output_and_results_come_back():
    code = "import numpy as np\nprint('one')\nx, secret = np.arange(3.0), 1\nprint('two', end='')"
    outcome = run(code, results=["x"])
    assert outcome.ok
    assert (str(outcome), outcome.printed) == ("ok", "one\ntwo")
    assert np.array_equal(outcome["x"], [0, 1, 2])
    with pytest.raises(isolated.ChildFailed, match="secret"):
        outcome["secret"]


def test_an_exception_has_a_line_and_its_place():
    outcome = run("def f():\n    return 1 / 0\n\nprint('before')\nf()\n", results=["x"])
    assert (outcome.ended, outcome.printed) == ("raised", "before\n")
    assert str(outcome) == "raised: ZeroDivisionError: division by zero"
    assert outcome.kinds[:2] == ("ZeroDivisionError", "ArithmeticError")
    assert "line 5" in outcome.detail
    assert "return 1 / 0" in outcome.detail
    assert "metallab/isolated" not in outcome.detail
    with pytest.raises(isolated.ChildFailed, match="division by zero"):
        outcome["x"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('no')", "SystemExit: no"),
        ("x = lambda: 1", "NumPy arrays"),
        ("y = 1", "without setting x"),
        (
            "class Odd:\n    def __reduce__(self):\n        return (int, ('not a number',))\nx = Odd()",
            "invalid literal",
        ),
    ],
)
def test_failures_have_a_reason(code, reason):
    outcome = run(code, results=["x"])
    assert outcome.ended == "raised"
    assert reason in outcome.reason


AWAY = """
import os, subprocess
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "ended", "reason"),
    [
        ("", "ok", ""),
        ("1 / 0", "raised", "ZeroDivisionError: division by zero"),
        ("os.abort()", "crashed", "the process was killed by SIGABRT"),
        ("os._exit(0)", "crashed", "the process exited with code 0 before it answered"),
    ],
)
def test_children_end_with_it_however_it_ends(ending, ended, reason):
    outcome = run(AWAY + ending)
    assert (outcome.ended, outcome.reason) == (ended, reason)
    assert gone(int(outcome.printed))


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_hanging_child_is_stopped_with_its_children(tmp_path, monkeypatch):
    """Its time is up once it has started one."""
    number = tmp_path / "number"
    code = f"""
import subprocess, time
print("started", flush=True)
subprocess.run("sleep 600 > /dev/null 2>&1 & echo $! > '{number}'", shell=True)
time.sleep(600)
"""
    wait = subprocess.Popen.wait

    def impatient(child, timeout=None):
        if timeout == 5000:
            while not (number.exists() and number.read_text().endswith("\n")):
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(code, timeout)
        return wait(child, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", impatient)
    outcome = isolated.run(code, timeout=5000)
    assert (outcome.ended, outcome.printed) == ("timeout", "started\n")
    assert "5000 s" in outcome.reason
    assert gone(int(number.read_text()))


def test_pythonpath_is_added_to_the_one_there_is(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/usual", prepend=os.pathsep)
    code = "import sys\nfolders = [path for path in sys.path if path in ('/usual', '/given')]"
    assert run(code, results=["folders"], environment={"PYTHONPATH": "/given"})["folders"] == [
        "/given",
        "/usual",
    ]
    assert run(code, results=["folders"])["folders"] == ["/usual"]


def test_one_thread_is_set_for_every_framework(monkeypatch):
    """By variables, which count where no core can be assigned, as on a Mac, and by the core."""
    for name in isolated.ONE_THREAD:
        monkeypatch.delenv(name, raising=False)
    code = f"""
import os
variables = [os.environ.get(name) for name in {list(isolated.ONE_THREAD)}]
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
"""
    one, all_of_them = (
        run(code, results=["variables", "cores"], threads=threads) for threads in (1, None)
    )
    assert (one["variables"], all_of_them["variables"]) == (["1"] * 6, [None] * 6)
    if sys.platform == "linux":
        assert (one["cores"], all_of_them["cores"]) == (1, len(os.sched_getaffinity(0)))
    with pytest.raises(ValueError, match="threads is 4"):
        isolated.run("", threads=4)


def test_mps_is_the_real_gpu_on_a_mac_only(monkeypatch):
    for platform, kind in (("linux", "sim"), ("darwin", "mps")):
        monkeypatch.setattr(sys, "platform", platform)
        assert process.build_environment("mps", None, {})["METALLAB_DEVICE"] == kind
    monkeypatch.setenv("METALLAB_DEVICE", "cpu")
    assert process.build_environment(None, None, {})["METALLAB_DEVICE"] == "cpu"
    with pytest.raises(ValueError, match="device is 'cuda'"):
        isolated.run("", device="cuda")


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


def test_cells_share_a_kernel_and_bring_results_back(shell, capsys):
    cell(shell, "x pid", "import os\nx, pid, hidden = [2], os.getpid(), 1\nprint('hello')")
    assert shell.user_ns["x"] == [2]
    assert shell.user_ns["pid"] != os.getpid()
    assert "hidden" not in shell.user_ns
    assert capsys.readouterr().out == "hello\n"
    cell(shell, "x again", "x, again = x + [hidden], os.getpid()")
    assert shell.user_ns["x"] == [2, 1]
    assert shell.user_ns["again"] == shell.user_ns["pid"]


def test_other_options_have_another_kernel(shell, monkeypatch, tmp_path):
    seen = (
        "import os\nx = os.getpid(), os.environ.get('NAME'), os.environ.get('NPROC'), os.getcwd()"
    )
    cell(shell, "x", seen)
    first, *_ = shell.user_ns["x"]
    cell(shell, "x --threads 1 --set NAME='a b'", seen)
    second, *settings, folder = shell.user_ns["x"]
    assert settings == ["a b", "1"]
    assert gone(first)
    monkeypatch.chdir(tmp_path)
    cell(shell, "x --threads 1 --set NAME='a b'", seen)
    assert gone(second)
    assert shell.user_ns["x"][-1] == os.getcwd() != folder


def test_a_channel_that_connects_late_loses_no_message(shell, monkeypatch):
    connect = BlockingKernelClient.connect_iopub

    def late(client, identity=None):
        client.context.setsockopt(
            zmq.RECONNECT_IVL, 2500
        )  # milliseconds; the kernel does not listen yet
        socket = connect(client, identity)
        client.context.setsockopt(zmq.RECONNECT_IVL, 100)
        return socket

    monkeypatch.setattr(BlockingKernelClient, "connect_iopub", late)
    cell(shell, "x --set WHERE=late", "import os; x = os.environ['WHERE']")
    assert shell.user_ns["x"] == "late"


def test_output_warnings_and_figures_appear(shell, capfd, monkeypatch):
    published = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, *_, **__: published.append(data))
    text = """
import os, sys, warnings
from IPython.display import HTML
from matplotlib import pyplot
warnings.warn("it falls back")
os.system("echo native")
pyplot.plot([1])
pyplot.show()
HTML("<b>last</b>")
"""
    cell(shell, "--set MPLBACKEND=module://matplotlib_inline.backend_inline", text)
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


@pytest.mark.parametrize("ending", ["", "1 / 0"])
def test_what_a_cell_started_ends_with_it(shell, capsys, ending):
    """The kernel goes on."""
    text = "import subprocess, sys\nempty = {} if sys.platform == 'linux' else None\n"
    text += "print(subprocess.Popen(['sleep', '600'], start_new_session=True, env=empty).pid)\n"
    expected = "--raises ZeroDivisionError" if ending else ""
    cell(shell, expected, text + ending)
    assert gone(int(capsys.readouterr().out.split()[0]))
    cell(shell, "", "print(sys.platform)")
    assert capsys.readouterr().out == f"{sys.platform}\n"


def test_a_failure_that_is_taught_has_to_come(shell, capsys):
    for kind in ("NotImplementedError", "RuntimeError"):  # the second is the base of the first
        cell(shell, f"--raises {kind}", "raise NotImplementedError('no kernel')")
        assert "NotImplementedError: no kernel" in capsys.readouterr().out
    with pytest.raises(isolated.ChildFailed, match="without raising"):
        cell(shell, "--raises NotImplementedError", "1 + 1")
    with pytest.raises(isolated.ChildFailed, match=r"^KeyError: 'x' .*NotImplementedError"):
        cell(shell, "--raises NotImplementedError", "raise KeyError('x')")
    with pytest.raises(isolated.ChildFailed, match="cannot be sent back"):
        cell(shell, "x --raises TypeError", "import threading; x = threading.Lock()")


def test_fast_mode_skips_long_cells(shell, capsys, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    cell(shell, "x --full", "print('it ran')")
    assert "it ran" not in capsys.readouterr().out
    assert isinstance(shell.user_ns["x"], isolated.Skipped)
    monkeypatch.setenv("METALLAB_MODE", "full")
    cell(shell, "x --full", "x = print('it ran')")
    assert capsys.readouterr().out == "it ran\n"


def test_a_cell_whose_tool_is_missing_is_skipped(shell, capsys, monkeypatch):
    absent = {"coremltools": "make tools", "apple-gpu": "buy one"}
    for name, fix in absent.items():
        tool = dataclasses.replace(
            needs.TOOLS[name], is_here=lambda: False, fix=lambda fix=fix: fix
        )
        monkeypatch.setitem(needs.TOOLS, name, tool)
    for line, fix in (("x --needs coremltools", "make tools"), ("x --device mps", "buy one")):
        shell.user_ns["x"] = "old"
        cell(shell, line, "x = print('it ran')")
        printed = capsys.readouterr().out
        assert "it ran" not in printed
        assert fix in printed
        skipped = shell.user_ns["x"]
        assert "this cell needs" in str(skipped.picture("heading"))
        assert skipped["key"] is skipped
        assert (list(skipped), hasattr(skipped, "_repr_html_")) == ([], False)


@pytest.mark.skipif(sys.platform == "darwin", reason="nothing is simulated there")
def test_without_the_simulated_gpu_later_cells_are_skipped(new_shell, monkeypatch):
    here = dataclasses.replace(needs.TOOLS["apple-gpu"], is_here=lambda: True)
    monkeypatch.setitem(needs.TOOLS, "apple-gpu", here)
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
        "'y",
        "2x",
        "--divice mps",
        "--device cuda",
        "--threads 3",
        "--set NAME",
        "--needs clangg",
        "--raises",
    ],
)
def test_a_magic_line_that_is_wrong_shows_the_options(shell, line):
    with pytest.raises(ValueError, match=r"does not understand .*--device"):
        cell(shell, line)


@pytest.mark.parametrize("how", ["exit", "SIGKILL"])
def test_the_second_kernel_ends_with_the_first(tmp_path, how):
    """As after a restart in JupyterLab, whether the notebook's process ends or is killed."""
    program = f"""
import os, signal
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "metallab.isolated")
shell.run_cell_magic("isolated", "pid", "import os; pid = os.getpid()")
print(shell.user_ns["pid"], flush=True)
if {how!r} == "SIGKILL":
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, timeout=600
    )
    (number,) = ended.stdout.split()
    deadline = time.monotonic() + 600
    while not gone(int(number)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if how == "exit":
        assert not list(tmp_path.glob("metallab-kernel-*"))
