"""The search for a device leaves nothing behind."""

from __future__ import annotations

import psutil
import pytest

from metallab import headless
from metallab.headless import runner

LEAVE = """
import subprocess
child = subprocess.Popen(["sleep", "600"], **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL))
open({path!r}, "w").write(str(child.pid))
"""
"""Leaves a process running, whose number it writes into a file."""


def test_a_search_for_a_device_leaves_nothing_running(tmp_path, monkeypatch):
    """As on the simulated GPU, which is compiled on first use."""
    number = tmp_path / "number"
    monkeypatch.setattr(runner, "PICK", LEAVE.format(path=str(number)))
    with pytest.raises(headless.UsageError):
        headless.resolve_device("cpu")
    pid = int(number.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
