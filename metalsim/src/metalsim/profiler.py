"""PyTorch's MPS profiler: what ``torch.mps.profiler`` accepts, and what ``PYTORCH_MPS_LOG_PROFILE_INFO`` prints.

Written after the class ``MPSProfiler``, whose header PyTorch ships in ``include/ATen/mps``. Signposts themselves go
nowhere: what shows them, Instruments, runs on a Mac only.

What it does not know: times, which stand as ``nan`` in the log; tensors' shapes; which operators are Metal kernels and
which are graphs, so that all are called kernels (``K``).
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from metalsim.errors import SimulationError

LOG, SIGNPOSTS, CAPTURE = "PYTORCH_MPS_LOG_PROFILE_INFO", "PYTORCH_MPS_TRACE_SIGNPOSTS", "MTL_CAPTURE_ENABLED"
# enum ProfileOptions, of which the lower 16 bits of SIGNPOSTS are made
EVENTS, INTERVALS, WAIT, MOST_OPTIONS = 1, 2, 4, 63
# enum LogOptions
LOG_OF = {"op": 1, "copy": 2, "fallback": 4}
STATS_OF = {"op": 16, "copy": 32, "fallback": 64}
ALL_STATS, MOST_LOGS = 8, 1023


class Heard(Protocol):
    """What is logged: `metalsim.Event`."""

    kind: str
    name: str
    bytes: int
    direction: str


@dataclass
class Row:
    """What a table at exit says of one operator or one kind of copy."""

    number: int
    runs: int = 0
    bytes: int = 0
    scalars: int = 0


class Profiler:
    """The state of one process's profiler. SimulationError for options that a Mac refuses at the first operator."""

    def __init__(self, environment: Mapping[str, str] = os.environ, log: TextIO | None = None) -> None:
        self.environment, self._log = environment, log
        self.logged = _number(environment.get(LOG, ""))
        self.options = _number(environment.get(SIGNPOSTS, "")) & 0xFFFF
        if self.logged > MOST_LOGS:
            raise SimulationError(f"invalid log options {self.logged} passed to {LOG}")
        if self.options > MOST_OPTIONS:
            raise SimulationError(f"invalid profiling options {self.options} passed to {SIGNPOSTS}")
        if self.logged & ALL_STATS:
            self.logged |= sum(STATS_OF.values())
        self.rows: dict[str, dict[str, Row]] = {kind: {} for kind in LOG_OF}
        self.capturing = False
        self.captures = 0

    @property
    def logs(self) -> bool:
        """True if something is to be logged."""
        return bool(self.logged)

    def start(self, mode: str, wait_until_completed: bool) -> None:
        """Begin to emit signposts. RuntimeError if it is doing so, and for a mode that does not exist."""
        if self.options:
            raise RuntimeError("Tracing Signposts is already enabled ")
        for token in filter(None, mode.split(",")):
            if token not in ("interval", "event"):
                raise RuntimeError(f"Invalid Signpost trace mode: {token}")
            self.options |= INTERVALS if token == "interval" else EVENTS
        if self.options and wait_until_completed:
            self.options |= WAIT

    def stop(self) -> None:
        """End it; nothing happens if it had not begun."""
        self.options = 0

    def capture_enabled(self) -> bool:
        """Metal asks the environment."""
        return self.environment.get(CAPTURE) == "1"

    def start_capture(self, name: str) -> None:
        """Begin a capture, which here is a folder with a note in it. RuntimeError if that is not enabled."""
        folder = Path(f"{self.captures:04d}-{name}.gputrace")
        if self.capturing or not self.capture_enabled():
            why = "a capture is being made" if self.capturing else "capturing is not supported"
            raise RuntimeError(f"Failed to start capture of {folder} error {why}")
        folder.mkdir()
        (folder / "README.txt").write_text("Made by a simulated Apple GPU, which has no Metal to capture.\n")
        self.capturing = True
        self.captures += 1

    def stop_capture(self) -> None:
        """End a capture; nothing happens if there is none."""
        self.capturing = False

    def hear(self, event: Heard) -> None:
        """Count what happened, and log it if that is asked for."""
        key = _sides(event) if event.kind == "copy" else event.name
        rows = self.rows[event.kind]
        row = rows.setdefault(key, Row(len(rows) + 1))
        row.runs += 1
        row.bytes += event.bytes
        row.scalars += event.kind == "copy" and event.bytes <= 8
        if self.logged & LOG_OF[event.kind]:
            self._print(_line(event, row))

    def print_stats(self) -> None:
        """The tables that stand at the end of a process's log."""
        tables = {"op": self._operations, "fallback": self._fallbacks, "copy": self._copies}
        for kind, lines in tables.items():
            if self.logged & STATS_OF[kind]:
                self._print("\n".join(lines()))

    def _operations(self) -> list[str]:
        if not (rows := self.rows["op"]):
            return ["There are no MPS operations logged for profiling"]
        columns = _cells((6, 7, 15, 14, 15), ("ID", "#Runs", "Mean KRNL(ms)", "Mean GPU(ms)", "Total GPU(ms)"), "|")
        head = _headed(f" MPS Operations Profiling: 0 graphs, {len(rows)} kernels ", 200, f"{columns}| Operation Name")
        values = ((f"K{row.number}", row.runs, "nan", "nan", "nan") for row in rows.values())
        return head + [f"{_cells((7, 8, 16, 15, 16), v)} {_key(n)}" for v, n in zip(values, rows, strict=True)]

    def _fallbacks(self) -> list[str]:
        if not (rows := self.rows["fallback"]):
            return ["There are no CPU Fallbacks logged for profiling"]
        runs, moved = (sum(getattr(row, name) for row in rows.values()) for name in ("runs", "bytes"))
        columns = _cells((5, 7, 14, 15, 15), ("ID", "#Runs", "Mean CPU(ms)", "Total CPU(ms)", "Copy Overhead"), "|")
        line = f" CPU Fallback Profiling: Total {runs} Runs, nan ms, {_size(moved)} Copies "
        values = ((row.number, row.runs, "nan", "nan", _size(row.bytes)) for row in rows.values())
        lines = [f"{_cells((6, 8, 15, 16, 16), v)} {_base(name)}" for v, name in zip(values, rows, strict=True)]
        return _headed(line, 150, f"{columns}| Operation Name") + lines

    def _copies(self) -> list[str]:
        if not (rows := self.rows["copy"]):
            return ["There are no copies logged for profiling"]
        total, moved, scalars = (
            sum(getattr(row, name) for row in rows.values()) for name in ("runs", "bytes", "scalars")
        )
        names = (
            "Kind",
            "Total#",
            "Total Size",
            "Total KRNL(ms)",
            "Total GPU(ms)",
            "Scalars",
            "Scalars GPU",
            "Blocking",
        )
        columns = _cells((12, 10, 17, 16, 15, 9, 13, 10, 8), (*names, "memcpy"), "|")
        line = f" MPS Copy Profiling: {total} total copies ({_size(moved)}), {scalars} scalar copies "
        widths = (13, 11, 18, 17, 16, 10, 14, 11, 9)
        values = (
            (kind.replace(" --> ", " to "), r.runs, _size(r.bytes), "nan", "nan", r.scalars, "nan %", r.runs, r.runs)
            for kind, r in rows.items()
        )
        return _headed(line, 160, columns) + [_cells(widths, value) for value in values]

    def _print(self, text: str) -> None:
        print(text, file=self._log or sys.stderr)


def from_environment() -> Profiler:
    """This process's profiler; its tables are printed when Python exits."""
    profiler = Profiler()
    if profiler.logs:
        atexit.register(profiler.print_stats)
    return profiler


def _number(text: str) -> int:
    """A number in decimal or, with its prefix, in hexadecimal; 0 for anything else."""
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _line(event: Heard, row: Row) -> str:
    """An entry of the live log."""
    if event.kind == "op":
        return f"aten::{_key(event.name)} (id=K{row.number}, run={row.runs})"
    if event.kind == "copy":
        return f"MemCopySync: {_sides(event)} (len={_size(event.bytes)})"
    return f"CPU Fallback::{_base(event.name)} (id={row.number}, run={row.runs}, CopyOverhead={_size(event.bytes)})"


def _sides(event: Heard) -> str:
    return "CPU --> MPS" if event.direction == "to device" else "MPS --> CPU"


def _base(name: str) -> str:
    """``aten::add`` of ``aten::add.Tensor``."""
    return name.partition(".")[0]


def _key(name: str) -> str:
    """``add`` of ``aten::add.Tensor``."""
    return _base(name).removeprefix("aten::")


def _cells(widths: tuple[int, ...], values: tuple[object, ...], between: str = "") -> str:
    return between.join(f"{value!s:^{width}}" for width, value in zip(widths, values, strict=True))


def _headed(title: str, width: int, columns: str) -> list[str]:
    return ["", f"{title:-^{width}}", columns, "-" * width]


def _size(value: int) -> str:
    for unit, scale in (("bytes", 1), ("KiB", 2**10), ("MiB", 2**20)):
        if value <= 1024 * scale:
            return f"{value} bytes" if scale == 1 else f"{value / scale:.2f} {unit}"
    return f"{value / 2**30:.2f} GiB"
