"""The simulated MPS profiler accepts and refuses what PyTorch's does. Its log is read in test_mps_log.py."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch

import metalsim
from metalsim import profiler


def test_it_starts_and_stops_as_pytorch_s():
    """Twice raises, and so does a wrong mode; a stop too many does not."""
    made = profiler.Profiler({})
    for mode in ("interval", "event", "interval,event"):
        made.start(mode, True)
        with pytest.raises(RuntimeError, match="already enabled"):
            made.start(mode, False)
        made.stop()
    made.stop()
    with pytest.raises(RuntimeError, match="Invalid Signpost trace mode: intervals"):
        made.start("event,intervals", False)
    with pytest.raises(RuntimeError, match="already enabled"):
        profiler.Profiler({profiler.SIGNPOSTS: "6"}).start("interval", False)


def test_it_logs_what_was_asked_for_and_nothing_else():
    """Copies as they happen, and their table at the end, with sums."""
    text = io.StringIO()
    made = profiler.Profiler({profiler.LOG: "0x22"}, text)
    made.hear(metalsim.Event("op", "aten::add.Tensor"))
    for size in (4, 1024, 2048):
        made.hear(metalsim.Event("copy", "aten::copy_", size, "to host", 1))
    made.hear(metalsim.Event("copy", "aten::copy_", 3 * 2**20, "to device", 1))
    assert re.findall(r"len=(.*)\)", text.getvalue()) == [
        "4 bytes",
        "1024 bytes",
        "2.00 KiB",
        "3.00 MiB",
    ]
    made.print_stats()
    tables = text.getvalue()
    assert "4 total copies (3.00 MiB), 1 scalar copies" in tables
    assert re.search(r"MPS to CPU +3 +3\.00 KiB +nan +nan +1 ", tables)
    assert "aten" not in tables
    assert profiler.Profiler({profiler.LOG: "8"}).logged == 8 + sum(profiler.STATS_OF.values())
    assert not profiler.Profiler({profiler.LOG: "many"}).logged


@pytest.mark.parametrize(
    ("event", "entry"),
    [
        pytest.param(
            metalsim.Event("op", "aten::add.Tensor", tensors="MPS:Float[2]:MPS:Half[2]"),
            "aten::add:MPS:Float[2]:MPS:Half[2]",
            id="operator",
        ),
        pytest.param(
            metalsim.Event("copy", "aten::copy_", 8, "to device", 1, "CPU:Int[2] --> MPS:Int[2]"),
            "MemCopySync: CPU:Int[2] --> MPS:Int[2]",
            id="copy",
        ),
        pytest.param(
            metalsim.Event("fallback", "aten::mode", 24, copies=3, tensors="MPS:Float[2, 3]"),
            "CPU Fallback::aten::mode:MPS:Float[2, 3]",
            id="fallback",
        ),
    ],
)
def test_the_log_names_dtypes_and_shapes(event, entry):
    text = io.StringIO()
    all_kinds = sum(profiler.LOG_OF.values())
    profiler.Profiler({profiler.LOG: str(all_kinds)}, text).hear(event)
    assert text.getvalue().startswith(f"{entry} (")


def test_a_capture_wants_its_variable_and_is_numbered(tmp_path, monkeypatch):
    """As a Mac's: a name with a number in front, one at a time; the note inside says that it is none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="Failed to start capture"):
        profiler.Profiler({}).start_capture("x")
    made = profiler.Profiler({profiler.CAPTURE: "1"})
    made.start_capture("x")
    with pytest.raises(RuntimeError, match="Failed to start capture"):
        made.start_capture("y")
    made.stop_capture()
    made.start_capture("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0000-x.gputrace",
        "0001-x.gputrace",
    ]
    assert "simulated" in (tmp_path / "0000-x.gputrace" / "README.txt").read_text()


def test_the_bits_are_those_of_the_installed_pytorch():
    """Its header has them, on every machine."""
    header = (Path(torch.__file__).parent / "include/ATen/mps/MPSProfiler.h").read_text()
    bits = {
        name: 1 << int(power) for name, power in re.findall(r"(\w+)\s*= \(1 << (\d+)\)", header)
    }
    kinds = {"op": "OPERATION", "copy": "COPY", "fallback": "CPU_FALLBACK"}
    assert {kind: bits[f"{name}_INFO"] for kind, name in kinds.items()} == profiler.LOG_OF
    assert {kind: bits[f"{name}_STATS"] for kind, name in kinds.items()} == profiler.STATS_OF
    assert bits["ALL_STATS"] == profiler.ALL_STATS
