"""signposts, captures and the log of PyTorch's profiler"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.mps import profiler

from conformance import mps_log
from conformance.claims import ON_A_MAC, find_tool
from metallab import isolated

LOGGED = """
import torch
from torch.nn import functional as F

x = torch.randn(64, 256).to("mps")
for _ in range(2):
    x = F.softshrink(F.rrelu(x))
print(x.sum().item() != 0)
"""
SIGNPOSTS = """
import torch
from metallab.pytorch import kernels

library = torch.mps.compile_shader(kernels.source("softshrink.metal"))
x, ones = torch.randn(1000).to("mps"), torch.ones(1000).to("mps")
out = torch.empty_like(x)
torch.mps.synchronize()
for _ in range(20):
    torch.mps.profiler.start(mode="interval", wait_until_completed=True)
    {work}
    torch.mps.synchronize()
    torch.mps.profiler.stop()
"""
OURS, THEIRS = (
    "library.softshrink_forward_float(out, x, 0.5)",
    "torch.nn.functional.softshrink(x, 0.5)",
)
SUBSYSTEM = "PyTorchMPS"
PAUSE = 2.0
"""Seconds before and after what `log stream` shall hear."""


@pytest.mark.claim(used_in="notebook 14: the log", seconds=90, slow=True)
def test_log_is_understood(evidence):
    """The log of PYTORCH_MPS_LOG_PROFILE_INFO=399 has the lines that `mps_log` reads: operations, copies, fallbacks.

    The cell of notebook 14, in a process of its own. The log's text as it came is in ``log``; lines that hold
    something and were not understood are in ``passed over``, without headings and rules.
    """
    settings = {"PYTORCH_MPS_LOG_PROFILE_INFO": "399", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    ran = isolated.run(LOGGED, device="mps", environment=settings, timeout=80)
    evidence("log", ran.detail[:8000])

    assert ran.ok
    entries = mps_log.parse(ran.detail)
    kinds = Counter(f"{entry.part} {entry.kind}" for entry in entries)
    timed = sum(entry.milliseconds is not None for entry in entries)
    lines = [line for line in ran.detail.splitlines() if re.search(r"\w", line)]
    evidence("understood", kinds)
    evidence("with a time", timed)
    evidence("passed over", [line for line in lines if not mps_log.parse(line)][:40])
    wanted = {f"{part} {kind}" for part in ("live", "exit") for kind in ("op", "copy", "fallback")}
    assert not wanted - set(kinds)
    assert timed or not ON_A_MAC  # the simulation logs no times


@pytest.mark.claim(used_in="notebook 14, the talk's start and stop")
@pytest.mark.parametrize("mode", ["interval", "event", "interval,event"])
def test_profiler_starts_and_stops(mode):
    """The talk's ``profiler.start`` and ``stop`` work in each mode; a second start is a RuntimeError."""
    profiler.start(mode=mode, wait_until_completed=True)
    try:
        torch.ones(8).to("mps").mul(2).sum().item()
        with pytest.raises(RuntimeError):
            profiler.start(mode=mode)
    finally:
        profiler.stop()


@pytest.mark.claim(used_in="notebook 14, the talk's start and stop")
def test_profiler_refuses_an_unknown_mode():
    """A mode of the profiler that does not exist is a RuntimeError."""
    with pytest.raises(RuntimeError):
        profiler.start(mode="everything")
    profiler.stop()


@pytest.mark.claim(used_in="notebook 14", environment={"MTL_CAPTURE_ENABLED": "1"})
def test_capture_is_written():
    """With MTL_CAPTURE_ENABLED=1 ``metal_capture`` writes a .gputrace where Python runs."""
    x = torch.ones(8).to("mps")
    assert profiler.is_metal_capture_enabled()
    with profiler.metal_capture("verify"):
        (x * 2).sum().item()
    assert len(list(Path().glob("*.gputrace"))) == 1


@pytest.mark.claim(on="mac", used_in="notebook 14, signposts", seconds=150)
def test_signposts_of_operators_are_seen(evidence):
    """``profiler.start`` emits signposts of PyTorch's operators under the subsystem PyTorchMPS.

    Twenty calls of Softshrink; macOS's own ``log stream`` listens to signposts meanwhile.
    """
    heard = _heard(THEIRS)
    names = Counter(re.findall(r"PyTorch\w+", heard.replace(SUBSYSTEM, "")))
    evidence("heard", names)
    evidence("example", heard[:3000])
    assert names


@pytest.mark.claim(on="mac", used_in="notebook 14: what no trace of this kind can see", seconds=150)
def test_signposts_of_own_kernels_are_not_seen(evidence):
    """Kernels that ``compile_shader`` launches emit no signposts.

    As for operators; only copies and the like may be heard.
    """
    heard = _heard(OURS)
    names = Counter(re.findall(r"softshrink\w*|PyTorchKernel\w*", heard))
    evidence("heard", names)
    evidence("example", heard[:3000])
    assert not names


@pytest.mark.claim(on="mac", used_in="notebook 14, Instruments step by step", seconds=240)
def test_instruments_records_them(evidence):
    """Instruments' command line records os_signpost of a Python process, and its table names PyTorchMPS.

    xctrace comes with the whole Xcode.
    """
    if not (xctrace := find_tool("xctrace")):
        pytest.skip("xctrace is not here; it comes with Xcode, not with the command-line tools")
    Path("work.py").write_text(SIGNPOSTS.format(work=THEIRS))
    launch = ["--launch", "--", sys.executable, str(Path("work.py").resolve())]
    record = [
        xctrace,
        "record",
        "--instrument",
        "os_signpost",
        "--output",
        "run.trace",
        "--time-limit",
        "60s",
    ]
    evidence("record", _ran([*record, "--no-prompt", *launch], 150)[-1500:])
    query = '/trace-toc/run[@number="1"]/data/table[@schema="os-signpost"]'
    exported = _ran([xctrace, "export", "--input", "run.trace", "--xpath", query], 60)
    evidence("export", exported[:3000])
    evidence(f"rows that name {SUBSYSTEM}", exported.count(SUBSYSTEM))

    assert SUBSYSTEM in exported


def _heard(work: str) -> str:
    """What ``log stream`` hears while a process works; not applicable, and why, if it cannot be asked."""
    if not (log := shutil.which("log")):
        pytest.skip("macOS's log command is not here")
    with _listening(log, Path("heard.txt")) as listener:
        if listener.poll() is not None:
            pytest.skip(f"log stream ended at once: {Path('heard.txt').read_text()[:300]}")
        ran = isolated.run(SIGNPOSTS.format(work=work), device="mps", timeout=60)
    assert ran.ok, ran.detail
    return Path("heard.txt").read_text(errors="replace")


@contextlib.contextmanager
def _listening(log: str, into: Path) -> Iterator[subprocess.Popen]:
    """Have ``log stream`` write PyTorch's signposts into a file while a block works, and yield its process.

    The process may have ended by itself, which the caller has to look at; else it is ended after the block.
    """
    command = [
        log,
        "stream",
        "--signpost",
        "--level",
        "debug",
        "--predicate",
        f'subsystem == "{SUBSYSTEM}"',
    ]

    with (
        into.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as listener,
    ):
        try:
            time.sleep(PAUSE)  # it takes a moment until it listens
            yield listener
            time.sleep(PAUSE)  # and entries come late
        finally:
            listener.terminate()


def _ran(command: list[str], seconds: float) -> str:
    """Return what a command prints and its exit code, or that it was stopped after so many seconds."""
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:g} s"
    return f"{ran.stdout}{ran.stderr}\nexit code {ran.returncode}"
