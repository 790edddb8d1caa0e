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


def test_lines_of_a_log_become_entries():
    """Without what is not known, and without lines of the program itself; old and new names of units."""
    assert mps_log.parse(LIVE) == [
        ("live", "copy", "CPU to MPS", 1, 0.25, 16384),
        ("live", "copy", "MPS to CPU", 1, None, 2),
        ("live", "op", "aten::sum_out_mps", 1, 0.010, None),
        ("live", "op", "aten::softshrink", 1, None, None),
        ("live", "fallback", "aten::rrelu_with_noise", 1, 0.5, 3 * 2**19),
        ("live", "fallback", "aten::mode", 1, None, 32),
    ]


def test_rows_of_a_logs_tables_become_entries():
    assert mps_log.parse(EXIT) == [
        ("exit", "op", "aten::sum_out_mps", 4, 0.050, None),
        ("exit", "op", "aten::softshrink", 12, None, None),
        ("exit", "fallback", "aten::rrelu_with_noise", 3, 0.300, 3 * 2**30),
        ("exit", "copy", "MPS to CPU", 9, 0.200, 65536),
    ]


def test_a_text_that_is_no_log_has_no_entries():
    assert mps_log.parse("nothing of this\nis a log\n") == []


PROFILED = """
import torch
x = torch.ones(8, 8).to('mps')
for _ in range(3):
    torch.nn.functional.rrelu(x)
print(x.sum().item())
"""


@pytest.fixture(scope="module")
def entries():
    """What the simulated profiler logs of a process of its own, as on the page."""
    if sys.platform == "darwin":
        pytest.skip("a Mac's log has Metal's names; the page shows it")
    settings = {"PYTORCH_MPS_LOG_PROFILE_INFO": "399", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    outcome = isolated.run(PROFILED, device="mps", environment=settings, timeout=1800)
    assert outcome.printed == "64.0\n", outcome.detail
    return mps_log.parse(outcome.detail)


def at_exit(entries) -> dict:
    """What the tables at the end say of each kind and name."""
    return {(entry.kind, entry.name): entry for entry in entries if entry.part == "exit"}


@pytest.mark.parametrize(
    ("kind", "name", "runs", "bytes_copied"),
    [
        # the noise is written and comes back
        pytest.param("fallback", "aten::rrelu_with_noise", 3, 3 * 4 * 256, id="fallback"),
        pytest.param("copy", "CPU to MPS", 1, 256, id="copy to the GPU"),
        pytest.param("copy", "MPS to CPU", 1, 4, id="copy to the CPU"),
        pytest.param("op", "aten::sum", 1, None, id="operator"),
    ],
)
def test_a_table_of_the_simulated_profiler_is_understood(entries, kind, name, runs, bytes_copied):
    entry = at_exit(entries)[kind, name]
    assert entry.runs == runs
    assert entry.bytes == bytes_copied


def test_the_simulated_profiler_logs_each_run_of_its_tables_as_a_line(entries):
    live = [(entry.kind, entry.name) for entry in entries if entry.part == "live"]
    rows = at_exit(entries)
    assert {key: live.count(key) for key in rows} == {key: row.runs for key, row in rows.items()}


def test_the_simulated_profiler_claims_no_times(entries):
    assert not any(entry.milliseconds for entry in entries)


def bits_of_the_header() -> dict[int, str]:
    """The names of the profiler's bits in PyTorch's header."""
    header = (Path(torch.__file__).parent / "include/ATen/mps/MPSProfiler.h").read_text()
    body = re.search(r"enum LogOptions.*?{(.*?)};", header, re.DOTALL)[1]
    return {2 ** int(power): name for name, power in re.findall(r"(\w+)\s*= \(1 << (\d+)\)", body)}


def bits_of_the_page() -> dict[int, str]:
    """What the table of page 14 says of each bit."""
    page = next(paths.NOTEBOOKS.glob("14_*.ipynb")).read_text(encoding="utf-8")
    told = dict(re.findall(r"\| ((?:\d+, )*\d+) \| ([^|]+) \|", page))
    return {
        number: text for numbers, text in told.items() for number in map(int, numbers.split(", "))
    }


WORDS = {
    "OPERATION": "operations",
    "COPY": "copies",
    "FALLBACK": "fallbacks",
    "STATS": "statistics",
    "TIME": "time",
}
"""What the page calls a part of a name of the header."""


def test_page_14_tells_the_bits_that_pytorch_s_header_has():
    assert bits_of_the_page().keys() == bits_of_the_header().keys()


@pytest.mark.parametrize(("number", "name"), bits_of_the_header().items())
def test_page_14_tells_what_a_bit_logs(number, name):
    expected = [word for part, word in WORDS.items() if part in name and name != "ALL_STATS"]
    assert [word for word in expected if word not in bits_of_the_page()[number]] == []
