"""The simulated MPS profiler accepts and refuses what PyTorch's does. Its log is read in test_mps_log.py."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
import torch

import metalsim
from metalsim import profiler


def test_it_starts_and_stops_as_pytorch_s():
    """Twice raises, a stop too many does not, and a wrong mode leaves on what stood before it."""
    made = profiler.Profiler({})
    for mode, options in (("interval", 2), ("event", 1), ("interval,event", 3), ("", 0), (",interval", 2)):
        made.start(mode, False)
        assert made.options == options
        made.stop()
    made.start("", True)
    assert made.options == 0
    made.start("interval", True)
    assert made.options == 6
    with pytest.raises(RuntimeError, match="already enabled"):
        made.start("event", False)
    made.stop()
    made.stop()
    with pytest.raises(RuntimeError, match=r"^Invalid Signpost trace mode: intervals$"):
        made.start("event,intervals", False)
    with pytest.raises(RuntimeError, match="already enabled"):
        made.start("event", False)


def test_variables_are_read_as_pytorch_reads_them():
    """In decimal or hexadecimal; too large raises; signposts by variable are on from the start."""
    assert not profiler.Profiler({profiler.LOG: "many"}).logs
    assert profiler.Profiler({profiler.LOG: "0x87"}).logged == 135
    assert profiler.Profiler({profiler.LOG: "8"}).logged == 8 + 16 + 32 + 64
    for name, value in ((profiler.LOG, "1024"), (profiler.SIGNPOSTS, "64")):
        with pytest.raises(metalsim.SimulationError, match=f"{value} passed to {name}"):
            profiler.Profiler({name: value})
    with pytest.raises(RuntimeError, match="already enabled"):
        profiler.Profiler({profiler.SIGNPOSTS: "6"}).start("interval", False)


def test_it_logs_what_was_asked_for_and_nothing_else():
    """Copies as they happen, and their table at the end, with sums."""
    text = io.StringIO()
    made = profiler.Profiler({profiler.LOG: str(2 + 32)}, text)
    made.hear(metalsim.Event("op", "aten::add.Tensor"))
    for size in (4, 1024, 2048):
        made.hear(metalsim.Event("copy", "aten::copy_", size, "to host", 1))
    made.hear(metalsim.Event("copy", "aten::copy_", 3 * 2**20, "to device", 1))
    lines = text.getvalue().splitlines()
    sizes = ["4 bytes", "1024 bytes", "2.00 KiB"]
    assert lines[:3] == [f"MemCopySync: MPS --> CPU (len={size})" for size in sizes]
    assert lines[3:] == ["MemCopySync: CPU --> MPS (len=3.00 MiB)"]
    made.print_stats()
    tables = text.getvalue().split("\n", 4)[4]
    assert "4 total copies (3.00 MiB), 1 scalar copies" in tables
    assert re.search(r"MPS to CPU +3 +3\.00 KiB +nan +nan +1 ", tables)
    assert "Operation" not in tables
    none = profiler.Profiler({profiler.LOG: "32"}, empty := io.StringIO())
    none.print_stats()
    assert empty.getvalue() == "There are no copies logged for profiling\n"


def test_a_capture_wants_its_variable_and_is_numbered(tmp_path, monkeypatch):
    """As a Mac's: a name with a number in front, one at a time; the note inside says that it is none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"Failed to start capture of 0000-x\.gputrace"):
        profiler.Profiler({}).start_capture("x")
    made = profiler.Profiler({profiler.CAPTURE: "1"})
    made.start_capture("x")
    assert made.capturing
    with pytest.raises(RuntimeError, match="Failed to start capture"):
        made.start_capture("y")
    made.stop_capture()
    assert not made.capturing
    made.start_capture("x")
    assert sorted(os.listdir()) == ["0000-x.gputrace", "0001-x.gputrace"]
    assert "simulated" in (tmp_path / "0000-x.gputrace" / "README.txt").read_text()


def test_the_bits_are_those_of_the_installed_pytorch():
    """Its header has them, on every machine; and the sums that the lesson names say what it says."""
    header = (Path(torch.__file__).parent / "include/ATen/mps/MPSProfiler.h").read_text()
    bits = {name: 1 << int(power) for name, power in re.findall(r"(\w+)\s*= \(1 << (\d+)\)", header)}
    assert (bits["ALL_SIGNPOST_EVENTS"], bits["ALL_SIGNPOST_INTERVALS"]) == (profiler.EVENTS, profiler.INTERVALS)
    assert bits["WAIT_UNTIL_COMPLETED"] == profiler.WAIT
    assert 2 * bits["USE_EVENTS"] - 1 == profiler.MOST_OPTIONS
    kinds = {"op": "OPERATION", "copy": "COPY", "fallback": "CPU_FALLBACK"}
    assert {kind: bits[f"{name}_INFO"] for kind, name in kinds.items()} == profiler.LOG_OF
    assert {kind: bits[f"{name}_STATS"] for kind, name in kinds.items()} == profiler.STATS_OF
    assert bits["ALL_STATS"] == profiler.ALL_STATS
    assert 2 * bits["INCLUDE_BUFFER_ID"] - 1 == profiler.MOST_LOGS
    assert sum(profiler.LOG_OF.values()) + bits["INCLUDE_GPU_TIME"] == 135
    assert profiler.ALL_STATS + bits["INCLUDE_GPU_TIME"] + bits["INCLUDE_KERNEL_TIME"] == 392
