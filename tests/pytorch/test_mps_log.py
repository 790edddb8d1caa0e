"""The log of PyTorch's MPS profiler is understood, as its sources print it and as the simulated profiler does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from conformance import mps_log

from metallab import isolated, paths

# Lines in the form that MPSProfiler.mm gives them, with and without times.
LIVE = """\
Some other line of the program: aten::add (id=..)
BlitCopySync: CPU:Float[64, 64] --> MPS:Float[64, 64] (len=16.00 KB, gpu=0.250 ms, cpu=0.125 ms)
MemCopy: MPS(buf#3:1):Half[] --> CPU:0x16f3a1c00 (len=2 bytes)
aten::sum_out_mps:0,1::f32[64,64]:0:4::f32[Scalar]: (id=G2, run=1, gpu=0.010 ms, cpu=2.769 ms)
aten::softshrink:MPS:Float[64, 64]:undefined (id=K1, run=12)
CPU Fallback::aten::rrelu_with_noise:MPS:Float[64]:MPS:Float[64] (id=1, run=3, CopyOverhead=1.50 MiB, cpu=0.5 ms)
CPU Fallback::aten::mode:MPS:Int[4] (id=2, run=1, CopyOverhead=32 bytes)
"""
EXIT = """
-------------------------- MPS Operations Profiling: 1 graphs, 1 kernels --------------------------
  ID  | #Runs | Mean KRNL(ms) | Mean GPU(ms) | Total GPU(ms) | Operation Name
----------------------------------------------------------------------------------------------------
  G2      4           0.001           0.013          0.050      sum_out_mps:0,1::f32[64, 64]
  K1      12           nan             nan            nan        softshrink
-------- CPU Fallback Profiling: Total 3 Runs, 0.30 ms, 3.00 GB Copies --------
 ID  | #Runs | Mean CPU(ms) | Total CPU(ms) | Copy Overhead | Operation Name
  1      3         0.100           0.300          3.00 GB      aten::rrelu_with_noise
--------- MPS Copy Profiling: 9 total copies (64.00 KiB), 2 scalar copies ---------
    Kind    |  Total#  |   Total Size    | Total KRNL(ms) | Total GPU(ms) | Scalars | Scalars GPU | Blocking | memcpy
 MPS to CPU       9         64.00 KiB         0.100           0.200           2       12.00 %        9         1
"""


def test_a_log_becomes_entries():
    """Each line and each row of a table, without what it does not know; old and new names of units."""
    assert mps_log.parse(LIVE) == [
        ("live", "copy", "CPU to MPS", 1, 0.25, 16384),
        ("live", "copy", "MPS to CPU", 1, None, 2),
        ("live", "op", "aten::sum_out_mps", 1, 0.010, None),
        ("live", "op", "aten::softshrink", 1, None, None),
        ("live", "fallback", "aten::rrelu_with_noise", 1, 0.5, 3 * 2**19),
        ("live", "fallback", "aten::mode", 1, None, 32),
    ]
    assert mps_log.parse(EXIT) == [
        ("exit", "op", "aten::sum_out_mps", 4, 0.050, None),
        ("exit", "op", "aten::softshrink", 12, None, None),
        ("exit", "fallback", "aten::rrelu_with_noise", 3, 0.300, 3 * 2**30),
        ("exit", "copy", "MPS to CPU", 9, 0.200, 65536),
    ]
    assert mps_log.parse("nothing of this\nis a log\n") == []


@pytest.mark.skipif(
    sys.platform == "darwin", reason="a Mac's log has Metal's names; the page shows it"
)
def test_the_simulated_profiler_s_log_is_understood():
    """Of a process of its own, as on the page: what ran, what was copied, what fell back, live and at the end."""
    code = (
        "import torch\nx = torch.ones(8, 8).to('mps')\n"
        "for _ in range(3):\n    torch.nn.functional.rrelu(x)\nprint(x.sum().item())"
    )
    settings = {"PYTORCH_MPS_LOG_PROFILE_INFO": "399", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    outcome = isolated.run(code, device="mps", environment=settings, timeout=1800)
    assert outcome.printed == "64.0\n", outcome.detail
    entries = mps_log.parse(outcome.detail)
    exit_rows = {
        (entry.kind, entry.name): (entry.runs, entry.bytes)
        for entry in entries
        if entry.part == "exit"
    }
    assert exit_rows["fallback", "aten::rrelu_with_noise"] == (
        3,
        3 * 4 * 256,
    )  # the noise is written and comes back
    assert exit_rows["copy", "CPU to MPS"] == (1, 256)
    assert exit_rows["copy", "MPS to CPU"] == (1, 4)
    assert exit_rows["op", "aten::sum"] == (1, None)
    live = [(entry.kind, entry.name) for entry in entries if entry.part == "live"]
    assert {key: live.count(key) for key in exit_rows} == {
        key: runs for key, (runs, _) in exit_rows.items()
    }
    assert not any(entry.milliseconds for entry in entries), "the simulation knows no times"


def test_page_14_tells_the_bits_that_pytorch_s_header_does():
    header = (Path(torch.__file__).parent / "include/ATen/mps/MPSProfiler.h").read_text()
    body = re.search(r"enum LogOptions.*?{(.*?)};", header, re.DOTALL)[1]
    bits = {2 ** int(power): name for name, power in re.findall(r"(\w+)\s*= \(1 << (\d+)\)", body)}
    page = next(paths.NOTEBOOKS.glob("14_*.ipynb")).read_text(encoding="utf-8")
    told = dict(re.findall(r"\| ((?:\d+, )*\d+) \| ([^|]+) \|", page))
    words = {
        number: text for numbers, text in told.items() for number in map(int, numbers.split(", "))
    }
    assert words.keys() == bits.keys()
    about = {
        "OPERATION": "operations",
        "COPY": "copies",
        "FALLBACK": "fallbacks",
        "STATS": "statistics",
        "TIME": "time",
    }
    for number, name in bits.items():
        expected = [word for part, word in about.items() if part in name and name != "ALL_STATS"]
        assert all(word in words[number] for word in expected), (number, name)
