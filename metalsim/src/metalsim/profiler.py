"""PyTorch's MPS profiler: what ``torch.mps.profiler`` accepts, and what ``PYTORCH_MPS_LOG_PROFILE_INFO`` prints.

Written after the class ``MPSProfiler``, whose header PyTorch ships in ``include/ATen/mps``. Signposts themselves go
nowhere: what shows them, Instruments, runs on a Mac only.

What it does not know: times, which stand as ``nan`` in the log; which operators are Metal kernels and which are graphs,
so that all are called kernels (``K``); how a Mac calls a kernel (``add_kernel_strided``) and which of the tensors it
names, so that an operator has its own name and all the tensors that it was given.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

LOG, SIGNPOSTS, CAPTURE = (
    "PYTORCH_MPS_LOG_PROFILE_INFO",
    "PYTORCH_MPS_TRACE_SIGNPOSTS",
    "MTL_CAPTURE_ENABLED",
)
# enum LogOptions
LOG_OF = {"op": 1, "copy": 2, "fallback": 4}
STATS_OF = {"op": 16, "copy": 32, "fallback": 64}
ALL_STATS = 8


@dataclass
class Row:
    """What a table at exit says of one operator or one kind of copy."""

    number: int
    runs: int = 0
    bytes: int = 0
    scalars: int = 0


class Profiler:
    """The state of one process's profiler."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, log: TextIO | None = None
    ) -> None:
        self.environment, self._log = environment, log
        self.logged = _number(environment.get(LOG, ""))
        if self.logged & ALL_STATS:
            self.logged |= sum(STATS_OF.values())
        self.rows: dict[str, dict[str, Row]] = {kind: {} for kind in LOG_OF}
        self.tracing = bool(_number(environment.get(SIGNPOSTS, "")))
        self.capturing = False

    def start(self, mode: str, wait_until_completed: bool) -> None:
        """Begin to emit signposts. RuntimeError if it is doing so, and for a mode that does not exist.

        `mode` is ``interval``, ``event``, or both with a comma between them; an empty one begins nothing. Whether work
        is waited for changes nothing here, where it is done when a call returns. The words are PyTorch's, even with the
        blank at the end of one.
        """
        if self.tracing:
            raise RuntimeError("Tracing Signposts is already enabled ")
        tokens = [token for token in mode.split(",") if token]
        for token in tokens:
            if token not in ("interval", "event"):
                raise RuntimeError(f"Invalid Signpost trace mode: {token}")
        self.tracing = bool(tokens)

    def stop(self) -> None:
        """End it; nothing happens if it had not begun."""
        self.tracing = False

    def is_capture_enabled(self) -> bool:
        """Return whether Metal would make captures: it asks the environment."""
        return self.environment.get(CAPTURE) == "1"

    def start_capture(self, name: str) -> None:
        """Begin a capture, which here is a folder with a note in it, in the working directory.

        The folder is called ``0000-NAME.gputrace``, and numbered by the captures that lie there. RuntimeError if
        another capture is being made, or captures are not enabled.
        """
        if self.capturing:
            raise RuntimeError(f"Failed to start capture of {name} error a capture is being made")
        if not self.is_capture_enabled():
            raise RuntimeError(
                f"Failed to start capture of {name} error capturing is not supported"
            )

        folder = Path(f"{len(list(Path().glob('*.gputrace'))):04d}-{name}.gputrace")
        folder.mkdir()
        (folder / "README.txt").write_text(
            "Made by a simulated Apple GPU, which has no Metal to capture.\n"
        )
        self.capturing = True

    def stop_capture(self) -> None:
        """End a capture; nothing happens if there is none."""
        self.capturing = False

    def hear(self, event: Any) -> None:
        """Count a `metalsim.Event` in the table of its kind, and print its line if the live log of it is wanted."""
        key = _sides(event) if event.kind == "copy" else event.name
        rows = self.rows[event.kind]
        row = rows.setdefault(key, Row(len(rows) + 1))

        row.runs += 1
        row.bytes += event.bytes
        # the copy of one number, as PyTorch's header tells it: by the size of an int64
        if event.kind == "copy" and event.bytes <= 8:
            row.scalars += 1

        if self.logged & LOG_OF[event.kind]:
            self._print(_line(event, row))

    def print_stats(self) -> None:
        """Print the tables that stand at the end of a process's log: of what was asked for, and has happened."""
        for kind, title in TITLES.items():
            rows = self.rows[kind]
            if not rows or not self.logged & STATS_OF[kind]:
                continue

            what = f" {title} Profiling: {_sums(kind, rows.values())} "
            self._print(f"\n{what:-^150}\n{HEADINGS[kind]}")
            for name, row in rows.items():
                self._print(_cells(kind, name, row))

    def _print(self, text: str) -> None:
        print(text, file=self._log or sys.stderr)


def from_environment() -> Profiler:
    """Return this process's profiler; its tables are printed when Python exits."""
    profiler = Profiler()
    if profiler.logged:
        atexit.register(profiler.print_stats)
    return profiler


def _number(text: str) -> int:
    """Read a number in decimal or, with its prefix, in hexadecimal; return 0 for anything else."""
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _line(event: Any, row: Row) -> str:
    """Return an entry of the live log."""
    if event.kind == "copy":
        return f"MemCopySync: {event.tensors or _sides(event)} (len={_size(event.bytes)})"

    tensors = f":{event.tensors}" if event.tensors else ""
    if event.kind == "op":
        return f"aten::{_key(event.name)}{tensors} (id=K{row.number}, run={row.runs})"

    overhead = f"CopyOverhead={_size(event.bytes)}"
    return (
        f"CPU Fallback::{_base(event.name)}{tensors} (id={row.number}, run={row.runs}, {overhead})"
    )


def _sides(event: Any) -> str:
    """Return from where to where a copy goes."""
    return "CPU --> MPS" if event.direction == "to device" else "MPS --> CPU"


def _base(name: str) -> str:
    """Return ``aten::add`` of ``aten::add.Tensor``."""
    return name.partition(".")[0]


def _key(name: str) -> str:
    """Return ``add`` of ``aten::add.Tensor``."""
    return _base(name).removeprefix("aten::")


TITLES = {"op": "MPS Operations", "fallback": "CPU Fallback", "copy": "MPS Copy"}
HEADINGS = {
    "op": "  ID  | #Runs | Mean KRNL(ms) | Mean GPU(ms) | Total GPU(ms) | Operation Name",
    "fallback": " ID  | #Runs | Mean CPU(ms) | Total CPU(ms) | Copy Overhead | Operation Name",
    "copy": "    Kind    |  Total#  | Total Size | Total KRNL(ms) | Total GPU(ms) | Scalars | Scalars GPU",
}


def _sums(kind: str, rows: Collection[Row]) -> str:
    """Return what the heading of a table counts."""
    if kind == "op":
        return f"0 graphs, {len(rows)} kernels"

    runs = sum(row.runs for row in rows)
    moved = sum(row.bytes for row in rows)
    if kind == "copy":
        scalars = sum(row.scalars for row in rows)
        return f"{runs} total copies ({_size(moved)}), {scalars} scalar copies"
    return f"Total {runs} Runs, nan ms, {_size(moved)} Copies"


def _cells(kind: str, name: str, row: Row) -> str:
    """Return a row of a table at exit."""
    if kind == "op":
        return f"{f'K{row.number}':^7}{row.runs:^8}{'nan':^16}{'nan':^15}{'nan':^16} {_key(name)}"
    if kind == "copy":
        cells = f"{row.runs:^11}{_size(row.bytes):^13}{'nan':^17}{'nan':^16}{row.scalars:^10}{'nan %':^14}"
        return f"{name.replace(' --> ', ' to '):^13}{cells}"
    return f"{row.number:^6}{row.runs:^8}{'nan':^15}{'nan':^16}{_size(row.bytes):^16} {_base(name)}"


def _size(value: int) -> str:
    """Return a number of bytes in the unit that PyTorch prints it in."""
    for unit, scale in (("bytes", 1), ("KiB", 2**10), ("MiB", 2**20)):
        if value <= 1024 * scale:
            return f"{value} bytes" if scale == 1 else f"{value / scale:.2f} {unit}"
    return f"{value / 2**30:.2f} GiB"
