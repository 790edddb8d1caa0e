"""Results as files: pyperf's JSON, with the provenance of every number inside.

`python -m pyperf show`, `stats` and `compare_to` read them. What pyperf has no field for is kept as one JSON text in
the metadata under ``metallab``, and the machine's description under ``machine``; pyperf's metadata takes no lists.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyperf

from metallab import machine, paths
from metallab.device import Accelerator
from metallab.timing import Comparison, Measurement, Sentinel, median_interval

SCHEMA = 1


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
    """``baseline``, ``faster``, ``slower``, ``inconclusive`` or ``withheld``."""
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
    or an interruption leaves an earlier one as it was. ValueError if there is nothing to save or a name comes twice.
    """
    rows = [row for result in results for row in _rows(lesson, result)]
    if not rows:
        raise ValueError(f"{lesson}: nothing to save; give save() the measurements and comparisons of the page")
    described = machine.describe()
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    drift = sentinel.drift if sentinel else None
    records = [Record(lesson, name, taken, measured, compared, drift, described) for name, measured, compared in rows]
    kind = "sim" if on.simulated else on.kind
    mode = rows[0][1].mode
    path = (folder or paths.run_folder(mode, kind) / "results") / f"{lesson}.json"
    return write(path, records)


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write records to a file, whole or not at all."""
    records = list(records)
    names = [record.name for record in records]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{sorted(twice)} stand twice among the results; give each measurement its own name")
    suite = pyperf.BenchmarkSuite([_benchmark(record) for record in records])
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as folder:
        part = Path(folder) / path.name
        suite.dump(str(part))
        os.replace(part, path)
    return path


def load(path: Path | str) -> list[Record]:
    """The records of a file. `RecordError` if it is missing, damaged or not one of ours."""
    path = Path(path)
    try:
        suite = pyperf.BenchmarkSuite.load(str(path))
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such file; `make run` writes results under build/") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: not a pyperf file: {error}") from error
    return [_record(path, benchmark) for benchmark in suite.get_benchmarks()]


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
    verdict is safe. `DifferentMachines` if chip, operating system or framework versions differ: absolute times of
    unlike machines say nothing about code. `RecordError` if the files share nothing.
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
    if (ours := old.machine.identity()) != (theirs := new.machine.identity()):
        different = ", ".join(f"{a} / {b}" for a, b in zip(ours, theirs, strict=True) if a != b)
        raise DifferentMachines(
            f"{old.name}: absolute times of unlike machines are not compared ({different}); compare each one's ratios "
            "to its own baseline instead"
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
    named = {"name": comparison.name, "variant": variant, "baseline": comparison.baseline, "parity": comparison.parity}
    if variant == comparison.baseline:
        return Compared(**named, verdict="baseline")
    if variant in comparison.withheld:
        return Compared(**named, verdict="withheld", withheld=comparison.withheld[variant])
    ratio = comparison.ratios[variant]
    high = ratio.high if np.isfinite(ratio.high) else None
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


def _record(path: Path, benchmark: pyperf.Benchmark) -> Record:
    metadata = benchmark.get_metadata()
    try:
        about = json.loads(metadata["metallab"])
        if about.pop("schema") != SCHEMA:
            raise ValueError("written by another version of metallab")
        lesson, taken, drift, compared = (about.pop(k) for k in ("lesson", "taken", "sentinel_drift", "comparison"))
        run = benchmark.get_runs()[0]
        measured = Measurement(
            samples=tuple(run.values), first_call=run.warmups[0][1], block=metadata["loops"], **about
        )
        described = machine.Machine.from_json(metadata["machine"])
        comparison = Compared(**compared) if compared else None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RecordError(f"{path}: {benchmark.get_name()!r} is not a record of ours: {error}") from error
    return Record(lesson, benchmark.get_name(), taken, measured, comparison, drift, described)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.records compare A B``: 1 if anything is slower, 2 if the files cannot be compared."""
    parser = argparse.ArgumentParser(prog="python -m metallab.records", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("compare", help="two results files of one machine")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args(arguments)
    try:
        changes = compare(load(given.before), load(given.after))
    except RecordError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    for change in changes:
        print(f"{change.verdict:7} {change.ratio:6.2f} ({change.low:.2f} to {change.high:.2f})  {change.name}")
    return int(any(change.verdict == "SLOWER" for change in changes))


if __name__ == "__main__":
    sys.exit(main())
