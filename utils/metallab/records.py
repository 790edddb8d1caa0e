"""Results as files: pyperf's JSON, with the provenance of every number inside.

`python -m pyperf show`, `stats` and `compare_to` read them. What pyperf has no field for is kept as one JSON text in
the metadata under ``metallab``, and the machine's description under ``machine``; pyperf's metadata takes no lists.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import reprlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyperf

from metallab import machine, mode, paths
from metallab.device import Accelerator
from metallab.mode import MODES
from metallab.timing import Comparison, Measurement, Sentinel, median_interval

SCHEMA = 1

# Files come from strangers: more than any honest one has is not read.
_BYTES_LIMIT = 64 * 2**20
_RECORDS_LIMIT = 1000
_TEXT_LIMIT = 1000


class RecordError(ValueError):
    """A results file that cannot be used; the message names the file and the reason."""


class DifferentMachines(RecordError):
    """Absolute times of unlike machines were to be compared."""


@dataclass(frozen=True)
class Compared:
    """What a comparison said of one of its variants."""

    name: str
    variant: str
    baseline: str
    verdict: str
    """``baseline``, ``faster``, ``slower``, ``same``, ``inconclusive`` or ``withheld``."""
    median: float | None = None
    """The speed-up over the baseline with its 95 % interval; None for the baseline and where it is withheld."""
    low: float | None = None
    high: float | None = None
    """None where too few pairs give no upper end."""
    withheld: str = ""
    parity: str = ""


@dataclass(frozen=True)
class Record:
    """One measurement as it stands in a file."""

    lesson: str
    name: str
    """Unique in its file: ``lesson/measurement`` or ``lesson/comparison/variant``."""
    taken: str
    """When, as ISO 8601 in UTC."""
    measurement: Measurement
    comparison: Compared | None
    sentinel_drift: float | None
    machine: machine.Machine


def save(
    lesson: str,
    *results: Measurement | Comparison,
    on: Accelerator,
    sentinel: Sentinel | None = None,
    folder: Path | None = None,
) -> Path:
    """Write a lesson's results, and return the file: ``build/<mode>-<device>/results/<lesson>.json``.

    ``on`` is the device that the page ran on, and names the folder. The file appears whole or not at all: a full disk
    or an interruption leaves an earlier one as it was. ValueError if there is nothing to save, a name comes twice, or a
    value could not be read back.
    """
    if not _LESSON.fullmatch(lesson):
        raise ValueError(f"{lesson!r} cannot name a file; a lesson's name has letters, digits, '_', '-' and '.'")
    rows = [row for result in results for row in _rows(lesson, result)]
    if not rows:
        raise ValueError(f"{lesson}: nothing to save; give save() the measurements and comparisons of the page")
    described = machine.describe()
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    drift = sentinel.drift if sentinel else None
    records = [Record(lesson, name, taken, measured, compared, drift, described) for name, measured, compared in rows]
    path = (folder or _folder(rows[0][1].mode, on) / "results") / f"{lesson}.json"
    return write(path, records)


def run_folder(on: Accelerator) -> Path:
    """Where a page on a device puts the files that it makes: ``build/<mode>-<device>``."""
    return _folder(mode.current(), on)


def _folder(of_mode: str, on: Accelerator) -> Path:
    return paths.run_folder(of_mode, "sim" if on.simulated else on.kind)


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write records to a file, whole or not at all. ValueError if they could not be read back as they are."""
    records, path = list(records), Path(path)
    if not records:
        raise ValueError(f"{path}: there are no records to write")
    names = [record.name for record in records]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{sorted(twice)} stand twice among the results; give each measurement its own name")
    text = io.StringIO()
    pyperf.BenchmarkSuite([_benchmark(record) for record in records]).dump(text)
    try:
        _parse(path, text.getvalue())  # what is written today must be readable tomorrow
    except RecordError as error:
        raise ValueError(f"nothing is written, because it could not be read back: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as folder:
        part = Path(folder) / path.name
        part.write_text(text.getvalue(), encoding="utf-8")
        os.replace(part, path)
    return path


def load(path: Path | str) -> list[Record]:
    """The records of a file. `RecordError` if it is missing, damaged or not one of ours."""
    path = Path(path)
    if not path.exists():
        raise RecordError(f"{path}: there is no such file; `make run` writes results under build/")
    if not path.is_file() or path.stat().st_size > _BYTES_LIMIT:
        raise RecordError(f"{path}: not a file of at most {_BYTES_LIMIT // 2**20} MiB")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {_reason(error)}") from error
    return _parse(path, text)


def merge(files: Iterable[Path | str], into: Path) -> Path:
    """One file from several; a name that stands in two of them is an error."""
    return write(into, [record for file in files for record in load(file)])


@dataclass(frozen=True)
class Change:
    """One benchmark in two files: how many times as fast the second is."""

    name: str
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 1:
            return "FASTER"
        return "SLOWER" if self.high < 1 else "UNSURE"


def compare(before: Sequence[Record], after: Sequence[Record]) -> list[Change]:
    """Compare the benchmarks that two files share, on like machines only.

    The interval is that of the two medians' 95 % intervals taken at their extremes: wider than necessary, so that a
    verdict is safe. `DifferentMachines` if chip, operating system or framework versions differ or are unknown: absolute
    times of unlike machines say nothing about code. `RecordError` if the files share nothing.
    """
    theirs = {record.name: record for record in after}
    pairs = [(record, theirs[record.name]) for record in before if record.name in theirs]
    if not pairs:
        raise RecordError("the two files share no benchmark")
    changes = []
    for old, new in pairs:
        _assert_comparable(old, new)
        (a, b), (c, d) = (median_interval(r.measurement.samples) for r in (old, new))
        ratio = old.measurement.median / new.measurement.median
        changes.append(Change(old.name, ratio, a / d, b / c if c else float("inf")))
    return changes


def _assert_comparable(old: Record, new: Record) -> None:
    if different := old.machine.differences(new.machine):
        raise DifferentMachines(
            f"{old.name}: absolute times of unlike machines are not compared ({', '.join(different)}); compare each "
            "one's ratios to its own baseline instead"
        )
    for what in ("device", "mode", "question", "simulated"):
        if getattr(old.measurement, what) != getattr(new.measurement, what):
            raise DifferentMachines(
                f"{old.name}: {what} differs: {getattr(old.measurement, what)} / {getattr(new.measurement, what)}"
            )
    if old.measurement.simulated:
        raise DifferentMachines(f"{old.name}: simulated times are not compared")


def _rows(lesson: str, result: Measurement | Comparison) -> list[tuple[str, Measurement, Compared | None]]:
    if isinstance(result, Measurement):
        return [(f"{lesson}/{result.name}", result, None)]
    return [
        (f"{lesson}/{result.name}/{variant}", measured, _compared(result, variant))
        for variant, measured in result.measurements.items()
    ]


def _compared(comparison: Comparison, variant: str) -> Compared:
    named = {"name": comparison.name, "variant": variant, "baseline": comparison.baseline}
    named["parity"] = _one_line(comparison.parity)
    if variant == comparison.baseline:
        return Compared(**named, verdict="baseline")
    if variant in comparison.withheld:
        return Compared(**named, verdict="withheld", withheld=_one_line(comparison.withheld[variant]))
    ratio = comparison.ratios[variant]
    high = ratio.high if math.isfinite(ratio.high) else None
    return Compared(**named, verdict=ratio.verdict, median=ratio.median, low=ratio.low, high=high)


def _benchmark(record: Record) -> pyperf.Benchmark:
    measured = record.measurement
    about = {
        "schema": SCHEMA,
        "lesson": record.lesson,
        "taken": record.taken,
        "sentinel_drift": record.sentinel_drift,
        "comparison": asdict(record.comparison) if record.comparison else None,
        **{key: value for key, value in asdict(measured).items() if key not in ("samples", "first_call", "block")},
    }
    metadata = {
        "name": record.name,
        "unit": "second",
        "loops": measured.block,
        "metallab": json.dumps(about),
        "machine": record.machine.to_json(),
    }
    run = pyperf.Run(
        list(measured.samples), warmups=[(1, measured.first_call)], metadata=metadata, collect_metadata=False
    )
    return pyperf.Benchmark([run])


def _one_line(text: str) -> str:
    """A message of somebody's check as one line of printable text, which is what `load` accepts."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= _TEXT_LIMIT else shown[: _TEXT_LIMIT - 1] + "…"


def _reason(error: BaseException) -> str:
    """Why something failed, short enough and safe for a terminal: the text may stem from a stranger's file."""
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return _one_line(text)[:300]


_FAULTS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""What pyperf, json and the rules below raise on a file that is not as it should be."""


def _parse(path: Path, text: str) -> list[Record]:
    try:
        benchmarks = _json(text)["benchmarks"]
        if len(benchmarks) > _RECORDS_LIMIT:  # pyperf's time goes with the square
            raise ValueError(f"{len(benchmarks)} benchmarks, more than the {_RECORDS_LIMIT} allowed")
        suite = pyperf.BenchmarkSuite.loads(text)
    except _FAULTS as error:
        raise RecordError(f"{path}: not a pyperf file: {_reason(error)}") from error
    found = []
    for benchmark in suite.get_benchmarks():
        try:
            found.append(_record(benchmark))
        except _FAULTS as error:
            name = reprlib.repr(benchmark.get_name())
            raise RecordError(f"{path}: {name} is not a record of ours: {_reason(error)}") from error
    return found


def _record(benchmark: pyperf.Benchmark) -> Record:
    metadata = benchmark.get_metadata()
    about = _json(metadata["metallab"])
    if not isinstance(about, dict) or about.pop("schema", None) != SCHEMA:
        raise ValueError("it was written by another version of metallab")
    if benchmark.get_nrun() != 1 or benchmark.get_unit() != "second":
        raise ValueError("it must hold one run, in seconds")
    run = benchmark.get_runs()[0]
    about |= {"samples": list(run.values), "first_call": run.warmups[0][1], "block": metadata["loops"]}
    about |= {"record": benchmark.get_name()}
    _check(about, _ABOUT | _MEASURED)
    if about["comparison"] is not None:
        _check(about["comparison"], _COMPARED)
    measured = {key: about[key] for key in _MEASURED} | {"samples": tuple(about["samples"])}
    return Record(
        lesson=about["lesson"],
        name=about["record"],
        taken=about["taken"],
        measurement=Measurement(**measured),
        comparison=about["comparison"] and Compared(**about["comparison"]),
        sentinel_drift=about["sentinel_drift"],
        machine=machine.Machine.from_json(metadata["machine"]),
    )


def _json(text: str) -> Any:
    """JSON proper: Python's own reader lets NaN and Infinity pass."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    return json.loads(text, parse_constant=refuse)


_Rule = tuple[str, Callable[[Any], Any]]


def _check(given: Mapping[str, Any], rules: Mapping[str, _Rule]) -> None:
    """ValueError unless the fields are those of the rules and every value is accepted."""
    if not isinstance(given, Mapping) or (wrong := sorted(given.keys() ^ rules.keys())):
        raise ValueError("it has not the fields of a record" + (f": {wrong[0]!r}" if isinstance(given, dict) else ""))
    for name, (kind, accepts) in rules.items():
        if not accepts(given[name]):
            raise ValueError(f"{name} must be {kind}, not {reprlib.repr(given[name])}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _TEXT_LIMIT and value.isprintable()


def _is_name(value: Any) -> bool:
    return _is_text(value) and value.strip() == value != ""


def _is_duration(value: Any) -> bool:
    """Seconds: a clock's step over the largest block is not below, a machine's life not above."""
    return type(value) in (int, float) and 1e-18 < value < 1e9


def _is_ratio(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < 1e27)


_LESSON = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NAME: _Rule = ("a name of printable characters", _is_name)
_TEXT: _Rule = ("one line of text", _is_text)
_DURATION: _Rule = ("a duration in seconds", _is_duration)
_RATIO: _Rule = ("a ratio of times, or nothing", _is_ratio)
_FLAG: _Rule = ("true or false", lambda value: isinstance(value, bool))
_VERDICTS = ("baseline", "faster", "slower", "same", "inconclusive", "withheld")
_ABOUT: dict[str, _Rule] = {
    "record": _NAME,
    "lesson": ("a lesson's name", lambda value: isinstance(value, str) and _LESSON.fullmatch(value)),
    "taken": ("a time in ISO 8601", lambda value: _is_name(value) and datetime.fromisoformat(value)),
    "sentinel_drift": (
        "a drift above -1, or nothing",
        lambda value: value is None or (type(value) in (int, float) and -1 < value < 1e27),
    ),
    "comparison": ("an object, or nothing", lambda value: value is None or isinstance(value, dict)),
}
_MEASURED: dict[str, _Rule] = {
    "name": _NAME,
    "question": ("'latency' or 'throughput'", lambda value: value in ("latency", "throughput")),
    "samples": ("durations in seconds", lambda value: value and all(map(_is_duration, value))),
    "first_call": _DURATION,
    "block": ("a number of calls", lambda value: type(value) is int and 0 < value < 2**53),
    "warmup_calls": ("a number of calls", lambda value: type(value) is int and 0 <= value < 2**53),
    "stop_reason": _TEXT,
    "mode": (f"one of {', '.join(MODES)}", lambda value: value in MODES),
    "device": _NAME,
    "simulated": _FLAG,
    "others": ("a number of cores", lambda value: type(value) in (int, float) and 0 <= value < 1e6),
}
_COMPARED: dict[str, _Rule] = {
    "name": _NAME,
    "variant": _NAME,
    "baseline": _NAME,
    "verdict": (f"one of {', '.join(_VERDICTS)}", lambda value: value in _VERDICTS),
    "median": _RATIO,
    "low": _RATIO,
    "high": _RATIO,
    "withheld": _TEXT,
    "parity": _TEXT,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.records compare A B``: 1 if anything is slower, 2 if the files cannot be compared.

    A ratio of 2 means that B is twice as fast.
    """
    parser = argparse.ArgumentParser(prog="python -m metallab.records", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("compare", help="two results files of one machine")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args(arguments)
    try:
        before, after = load(given.before), load(given.after)
        changes = compare(before, after)
    except RecordError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    for change in changes:
        print(f"{change.verdict:7} {change.ratio:6.2f} ({change.low:.2f} to {change.high:.2f})  {change.name}")
    shared = {change.name for change in changes}
    for path, records in ((given.before, before), (given.after, after)):
        for name in sorted({record.name for record in records} - shared):
            print(f"only in {path}: {name}")
    return int(any(change.verdict == "SLOWER" for change in changes))


if __name__ == "__main__":
    sys.exit(main())
