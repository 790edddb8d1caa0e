"""The simulated MPS profiler accepts and refuses what PyTorch's does. Its log is read in test_mps_log.py."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import metalsim
from metalsim import profiler

MODES = ("interval", "event", "interval,event")


@pytest.mark.parametrize("mode", MODES)
def test_a_profiler_that_was_started_is_not_started_again_before_it_was_stopped(mode):
    made = profiler.Profiler({})
    made.start(mode, True)
    with pytest.raises(RuntimeError, match="already enabled"):
        made.start(mode, False)

    made.stop()
    made.start(mode, False)


def test_a_profiler_that_was_not_started_may_be_stopped():
    profiler.Profiler({}).stop()


def test_an_unknown_mode_is_refused():
    with pytest.raises(RuntimeError, match="Invalid Signpost trace mode: intervals"):
        profiler.Profiler({}).start("event,intervals", False)


def test_a_profiler_that_a_variable_starts_is_not_started_again():
    with pytest.raises(RuntimeError, match="already enabled"):
        profiler.Profiler({profiler.SIGNPOSTS: "6"}).start("interval", False)


class Logged(NamedTuple):
    """What was logged as it happened, and the tables at the end."""

    live: str
    tables: str


@pytest.fixture
def copies():
    """The log of copies alone: of three to the host, one to the device, and of an operator, which is left out."""
    text = io.StringIO()
    # 2: copies as they happen, and 32: their table
    made = profiler.Profiler({profiler.LOG: "0x22"}, text)
    made.hear(metalsim.Event("op", "aten::add.Tensor"))
    made.hear(metalsim.Event("copy", "aten::copy_", 4, "to host", 1))
    made.hear(metalsim.Event("copy", "aten::copy_", 1024, "to host", 1))
    made.hear(metalsim.Event("copy", "aten::copy_", 2048, "to host", 1))
    made.hear(metalsim.Event("copy", "aten::copy_", 3 * 2**20, "to device", 1))
    live = text.getvalue()
    made.print_stats()
    return Logged(live, text.getvalue()[len(live) :])


def test_copies_are_logged_as_they_happen(copies):
    lengths = re.findall(r"len=(.*)\)", copies.live)
    assert lengths == ["4 bytes", "1024 bytes", "2.00 KiB", "3.00 MiB"]


def test_a_table_at_the_end_has_the_sums_of_copies(copies):
    assert "4 total copies (3.00 MiB), 1 scalar copies" in copies.tables
    assert re.search(r"MPS to CPU +3 +3\.00 KiB +nan +nan +1 ", copies.tables)


def test_what_was_not_asked_for_is_not_logged(copies):
    assert "aten" not in copies.live + copies.tables


def test_a_bit_for_everything_stands_for_each_statistic():
    assert profiler.Profiler({profiler.LOG: "8"}).logged == 8 + sum(profiler.STATS_OF.values())


def test_a_variable_that_is_no_number_logs_nothing():
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


@pytest.fixture
def capturing(tmp_path, monkeypatch):
    """A profiler that may capture, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return profiler.Profiler({profiler.CAPTURE: "1"})


def test_a_capture_wants_its_variable():
    with pytest.raises(RuntimeError, match="Failed to start capture"):
        profiler.Profiler({}).start_capture("x")


def test_there_is_one_capture_at_a_time(capturing):
    capturing.start_capture("x")
    with pytest.raises(RuntimeError, match="Failed to start capture"):
        capturing.start_capture("y")


def test_captures_are_numbered(capturing, tmp_path):
    capturing.start_capture("x")
    capturing.stop_capture()
    capturing.start_capture("x")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["0000-x.gputrace", "0001-x.gputrace"]


def test_a_capture_says_that_it_is_none(capturing, tmp_path):
    capturing.start_capture("x")
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
