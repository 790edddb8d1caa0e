"""What PyTorch's MPS profiler logs, as entries of a table.

``PYTORCH_MPS_LOG_PROFILE_INFO``, set before Python starts, makes a Mac's PyTorch print operations, copies and
fallbacks as they happen, and tables of them when the process ends, to standard error. Which bit asks for what stands in
``include/ATen/mps/MPSProfiler.h`` of the installed PyTorch. How the lines look was read off the sources of PyTorch 2.15
(``MPSProfiler.mm``) and not checked on a Mac. So whatever does not look like this is passed over: keep the text.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Part = Literal["live", "exit"]
EntryKind = Literal["op", "copy", "fallback"]


@dataclass(frozen=True)
class LogEntry:
    """One line of the log, or one row of its tables."""

    part: Part
    """A line printed as it happened, or a row of the tables at the end."""
    kind: EntryKind
    name: str
    """An operation, or where a copy went: ``MPS to CPU``."""
    runs: int
    """1 for a line."""
    milliseconds: float | None
    """In all runs: of the GPU for operations and copies, of the CPU for fallbacks. None where the log has none."""
    bytes: int | None
    """Copied, in all runs; to a few digits, as the log has it. None for an operation."""


def parse(text: str) -> list[LogEntry]:
    """All that is understood of a log, in its order."""
    return [entry for line in text.splitlines() if (entry := _entry(line)) is not None]


def table(text: str) -> pd.DataFrame:
    """The rows of the tables at the end of a log; a dash where it has no number, as a simulated GPU has no times."""
    import pandas as pd

    rows = [asdict(entry) for entry in parse(text) if entry.part == "exit"]
    known = [{name: "–" if value is None else value for name, value in row.items() if name != "part"} for row in rows]
    return pd.DataFrame(known)


_NUMBER = r"(?:nan|\d+\.\d+)"
_TIME = rf"(?P<time>{_NUMBER})"
_SIZE = r"(?P<size>\d+ bytes|\d+\.\d+ [KMG]i?B)"
_RUNS = r"(?P<runs>\d+)"
# How each kind of line looks. Behind a name stand, after a colon, the tensors with their shapes.
_FORMS: tuple[tuple[Part, EntryKind, re.Pattern], ...] = (
    ("live", "op", re.compile(rf"^aten::(?P<name>[^:\s]+).* \(id=[GK]\d+, run=\d+(?:.* gpu={_TIME} ms)?.*\)$")),
    (
        "live",
        "fallback",
        re.compile(
            rf"^CPU Fallback::(?P<name>\w+::\w+).* \(id=\d+, run=\d+, CopyOverhead={_SIZE}(?:.* cpu={_TIME} ms)?.*\)$"
        ),
    ),
    (
        "live",
        "copy",
        re.compile(rf"^\w+Copy\w*: (?P<source>\w+).* --> (?P<target>\w+).* \(len={_SIZE}(?:.* gpu={_TIME} ms)?.*\)$"),
    ),
    ("exit", "op", re.compile(rf"^ *[GK]\d+ +{_RUNS} +{_NUMBER} +{_NUMBER} +{_TIME} +(?P<name>[^:\s]+)")),
    ("exit", "fallback", re.compile(rf"^ *\d+ +{_RUNS} +{_NUMBER} +{_TIME} +{_SIZE} +(?P<name>\w+::\w+)")),
    ("exit", "copy", re.compile(rf"^ *(?P<source>\w+) to (?P<target>\w+) +{_RUNS} +{_SIZE} +{_NUMBER} +{_TIME} ")),
)
_SCALES = {"bytes": 1, "KB": 2**10, "KiB": 2**10, "MB": 2**20, "MiB": 2**20, "GB": 2**30, "GiB": 2**30}


def _entry(line: str) -> LogEntry | None:
    for part, kind, form in _FORMS:
        if match := form.match(line):
            has = match.groupdict()
            name = has.get("name") or f"{has['source']} to {has['target']}"
            name = f"aten::{name}" if kind == "op" else name
            return LogEntry(part, kind, name, int(has.get("runs") or 1), _time(has["time"]), _size(has.get("size")))
    return None


def _time(text: str | None) -> float | None:
    return None if text in (None, "nan") else float(text)


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    number, unit = text.split()
    return round(float(number) * _SCALES[unit])
