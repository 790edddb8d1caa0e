"""A command that is run leaves nothing behind, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from metallab import headless, processes
from metallab.headless import runner

LEAVE = """
import subprocess, sys
child = subprocess.Popen(["sleep", "600"], **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL))
open(sys.argv[1], "w").write(str(child.pid))
"""
"""Leaves a process running, whose number it writes into a file."""
HANG = f"{LEAVE}\nchild.wait()"


def has_ended(number: Path) -> bool:
    """Return True if the process with the number in this file has ended."""
    try:
        return psutil.Process(int(number.read_text())).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def number(tmp_path) -> Path:
    return tmp_path / "number"


def test_output_and_exit_code_are_returned():
    code = "import sys; print(sys.stdin.read()); sys.exit(3)"
    done = processes.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "\n", None)


def test_what_a_command_left_running_is_ended(number):
    assert processes.run([sys.executable, "-c", LEAVE, number]).returncode == 0
    assert has_ended(number)


@pytest.mark.parametrize("error", [KeyboardInterrupt, subprocess.TimeoutExpired("python", 1)])
def test_a_command_that_is_stopped_ends_with_its_child(number, monkeypatch, error):
    """Interrupted, or out of time, once the child runs."""

    def communicate(process: subprocess.Popen, timeout: float | None = None):
        while not (number.exists() and number.read_text()):
            assert process.poll() is None
        raise error

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        processes.run([sys.executable, "-c", HANG, number])
    assert has_ended(number)


def test_a_search_for_a_device_leaves_nothing_running(number, monkeypatch):
    """As on the simulated GPU, which is compiled on first use."""
    monkeypatch.setattr(runner, "PICK", LEAVE.replace("sys.argv[1]", repr(str(number))))
    with pytest.raises(headless.UsageError):
        headless.resolve_device("cpu")
    assert has_ended(number)
