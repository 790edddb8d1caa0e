"""What PyTorch's MPS profiler logs, as entries.

``PYTORCH_MPS_LOG_PROFILE_INFO`` makes a Mac's PyTorch print operations, copies and fallbacks as they happen, and tables
of them when the process ends, to standard error. How the lines look was read off the sources of PyTorch 2.15
(``MPSProfiler.mm``) and not checked on a Mac. Whatever looks otherwise is passed over.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class LogEntry(NamedTuple):
    """A line printed as it happened (``live``), or a row of the tables at the end (``exit``)."""

    part: str
    kind: str
    """``op``, ``copy`` or ``fallback``."""
    name: str
    """An operation, or where a copy went: ``MPS to CPU``."""
    runs: int
    milliseconds: float | None
    """In all runs: of the GPU, for fallbacks of the CPU."""
    bytes: int | None
    """Copied in all runs, to a few digits."""


def parse(text: str) -> list[LogEntry]:
    """All that is understood of a log, in its order."""
    return [entry for line in text.splitlines() if (entry := _entry(line)) is not None]


_NUMBER = r"(?:nan|\d+\.\d+)"
_TIME = rf"(?P<time>{_NUMBER})"
_SIZE = r"(?P<size>\d+ bytes|\d+\.\d+ [KMG]i?B)"
_RUNS = r"(?P<runs>\d+)"
# How each kind of line looks. Behind a name stand, after a colon, the tensors with their shapes.
_FORMS = (
    (
        "live",
        "op",
        re.compile(rf"^aten::(?P<name>[^:\s]+).* \(id=[GK]\d+, run=\d+(?:.* gpu={_TIME} ms)?.*\)$"),
    ),
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
        re.compile(
            rf"^\w+Copy\w*: (?P<source>\w+).* --> (?P<target>\w+).* \(len={_SIZE}(?:.* gpu={_TIME} ms)?.*\)$"
        ),
    ),
    (
        "exit",
        "op",
        re.compile(rf"^ *[GK]\d+ +{_RUNS} +{_NUMBER} +{_NUMBER} +{_TIME} +(?P<name>[^:\s]+)"),
    ),
    (
        "exit",
        "fallback",
        re.compile(rf"^ *\d+ +{_RUNS} +{_NUMBER} +{_TIME} +{_SIZE} +(?P<name>\w+::\w+)"),
    ),
    (
        "exit",
        "copy",
        re.compile(
            rf"^ *(?P<source>\w+) to (?P<target>\w+) +{_RUNS} +{_SIZE} +{_NUMBER} +{_TIME} "
        ),
    ),
)
_SCALES = {
    "bytes": 1,
    "KB": 2**10,
    "KiB": 2**10,
    "MB": 2**20,
    "MiB": 2**20,
    "GB": 2**30,
    "GiB": 2**30,
}


def _entry(line: str) -> LogEntry | None:
    """Return what a line of the log says, or None for a line that has none of the `_FORMS`."""
    for part, kind, form in _FORMS:
        if match := form.match(line):
            has = match.groupdict()
            name = has.get("name") or f"{has['source']} to {has['target']}"  # a copy has no name
            time, size = has["time"], has.get("size")
            number, unit = size.split() if size else ("0", "bytes")
            return LogEntry(
                part,
                kind,
                f"aten::{name}" if kind == "op" else name,
                int(has.get("runs") or 1),
                None if time in (None, "nan") else float(time),
                round(float(number) * _SCALES[unit]) if size else None,
            )

    return None
