"""PyTorch's MPS profiler: its log, its signposts, and Metal captures."""

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

from metallab.verify_mac.trial import Finding, judged, not_applicable, simulated, trial

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
OURS, THEIRS = "library.softshrink_forward_float(out, x, 0.5)", "torch.nn.functional.softshrink(x, 0.5)"
SUBSYSTEM = "PyTorchMPS"
PAUSE = 2.0
"""Seconds before and after what `log stream` shall hear."""


@trial(on="gpu", used_in="notebook 03, metallab.pytorch.mps_log", seconds=90)
def log_is_understood() -> Finding:
    """The log of PYTORCH_MPS_LOG_PROFILE_INFO=399 has the lines that `mps_log` reads: operations, copies, fallbacks.

    The cell of notebook 03, in a process of its own. The log's text as it came is in ``log``; lines that hold
    something and were not understood are in ``passed over``, without headings and rules.
    """
    from metallab import isolated
    from metallab.pytorch import mps_log

    settings = {"PYTORCH_MPS_LOG_PROFILE_INFO": "399", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    ran = isolated.run(LOGGED, device="mps", environment=settings, timeout=80)
    if not ran.ok:
        return judged(False, f"the process that logs {ran}", log=ran.detail)
    entries = mps_log.parse(ran.detail)
    kinds = Counter(f"{entry.part} {entry.kind}" for entry in entries)
    wanted = {f"{part} {kind}" for part in ("live", "exit") for kind in ("op", "copy", "fallback")}
    lines = [line for line in ran.detail.splitlines() if re.search(r"\w", line)]
    over = [line for line in lines if not mps_log.parse(line)]
    timed = sum(entry.milliseconds is not None for entry in entries)
    said = f"{len(entries)} lines understood, {timed} with a time; {len(over)} passed over; missing: "
    said += ", ".join(sorted(wanted - set(kinds))) or "nothing"
    values = {"understood": kinds, "with a time": timed, "passed over": over[:40], "log": ran.detail[:8000]}
    return judged(wanted <= set(kinds) and (simulated() or timed > 0), said, **values)


@trial(on="gpu", used_in="notebook 03, the talk's start and stop")
def profiler_starts_and_stops() -> Finding:
    """The talk's ``profiler.start`` and ``stop`` work in each mode; a second start and a wrong mode raise.

    After starting, starting again is a RuntimeError; so is a mode that does not exist.
    """
    import torch
    from torch.mps import profiler

    x, said = torch.ones(8).to("mps"), {}
    for mode in ("interval", "event", "interval,event"):
        profiler.start(mode=mode, wait_until_completed=True)
        (x * 2).sum().item()
        said[f"start {mode} again"] = _error(lambda mode=mode: profiler.start(mode=mode))
        profiler.stop()
    said["no such mode"] = _error(lambda: profiler.start(mode="everything"))
    profiler.stop()
    refused = sum(text.startswith("RuntimeError") for text in said.values())
    return judged(refused == len(said), f"{refused} of {len(said)} raised RuntimeError", said=said)


@trial(on="gpu", used_in="notebook 03", environment={"MTL_CAPTURE_ENABLED": "1"})
def capture_is_written() -> Finding:
    """With MTL_CAPTURE_ENABLED=1 ``metal_capture`` writes a .gputrace where Python runs."""
    import torch
    from torch.mps import profiler

    x = torch.ones(8).to("mps")
    enabled = profiler.is_metal_capture_enabled()
    with profiler.metal_capture("verify"):
        (x * 2).sum().item()
    made = [path.name for path in Path().glob("*.gputrace")]
    return judged(enabled and len(made) == 1, f"enabled: {enabled}, made {made}")


@trial(on="mac", used_in="notebook 03, signposts", seconds=150)
def signposts_of_operators_are_seen() -> Finding:
    """``profiler.start`` emits signposts of PyTorch's operators under the subsystem PyTorchMPS.

    Twenty calls of Softshrink; macOS's own ``log stream`` listens to signposts meanwhile.
    """
    heard = _heard(THEIRS)
    if isinstance(heard, Finding):
        return heard
    names = Counter(re.findall(r"PyTorch\w+", heard.replace(SUBSYSTEM, "")))
    return judged(bool(names), f"heard: {dict(names) or 'nothing'}", names=names, example=heard[:3000])


@trial(on="mac", used_in="notebook 03: what no trace of this kind can see", seconds=150)
def signposts_of_own_kernels_are_not_seen() -> Finding:
    """Kernels that ``compile_shader`` launches emit no signposts.

    As for operators; only copies and the like may be heard.
    """
    heard = _heard(OURS)
    if isinstance(heard, Finding):
        return heard
    names = Counter(re.findall(r"softshrink\w*|PyTorchKernel\w*", heard))
    return judged(not names, f"heard: {dict(names) or 'none of ours'}", names=names, example=heard[:3000])


@trial(on="mac", used_in="notebook 03, Instruments step by step", seconds=240)
def instruments_records_them() -> Finding:
    """Instruments' command line records os_signpost of a Python process, and its table names PyTorchMPS.

    xctrace comes with the whole Xcode.
    """
    from metallab import converters

    if not (xctrace := converters.find_tool("xctrace")):
        return not_applicable("xctrace is not here; it comes with Xcode, not with the command-line tools")
    Path("work.py").write_text(SIGNPOSTS.format(work=THEIRS))
    launch = ["--launch", "--", sys.executable, str(Path("work.py").resolve())]
    record = [xctrace, "record", "--instrument", "os_signpost", "--output", "run.trace", "--time-limit", "60s"]
    recorded = _ran([*record, "--no-prompt", *launch], 150)
    query = '/trace-toc/run[@number="1"]/data/table[@schema="os-signpost"]'
    exported = _ran([xctrace, "export", "--input", "run.trace", "--xpath", query], 60)
    count = exported.count(SUBSYSTEM)
    said = f"{count} rows name {SUBSYSTEM}"
    return judged(count > 0, said, record=recorded[-1500:], export=exported[:3000])


def _heard(work: str) -> Finding | str:
    """What ``log stream`` hears while a process works; why it cannot be asked."""
    from metallab import isolated

    if not (log := shutil.which("log")):
        return not_applicable("macOS's log command is not here")
    with _listening(log, Path("heard.txt")) as listener:
        if listener.poll() is not None:
            return not_applicable(f"log stream ended at once: {Path('heard.txt').read_text()[:300]}")
        ran = isolated.run(SIGNPOSTS.format(work=work), device="mps", timeout=60)
    if not ran.ok:
        return judged(False, f"the process that works {ran}", detail=ran.detail)
    return Path("heard.txt").read_text(errors="replace")


@contextlib.contextmanager
def _listening(log: str, into: Path) -> Iterator[subprocess.Popen]:
    command = [log, "stream", "--signpost", "--level", "debug", "--predicate", f'subsystem == "{SUBSYSTEM}"']
    with into.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as listener:
        try:
            time.sleep(PAUSE)  # it takes a moment until it listens
            yield listener
            time.sleep(PAUSE)  # and entries come late
        finally:
            listener.terminate()


def _error(action) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was asked for
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _ran(command: list[str], seconds: float) -> str:
    """What a command says, and how it ended."""
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:g} s"
    return f"{ran.stdout}{ran.stderr}\nexit code {ran.returncode}"
