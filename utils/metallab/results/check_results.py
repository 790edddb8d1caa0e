"""Can this file of results be shown beside others? ``make check-results FILE=...``, for who contributes one.

A file comes from a stranger: nothing in it is believed. It has to be a plain file of pyperf's JSON as the published
schema (``schema/results.schema.json``) describes it, with real runs in full mode, and every speed-up that it claims is
computed again from its samples. What is wrong is said in one line; of a good file is told what would be shown.
"""

from __future__ import annotations

import functools
import json
import math
import stat
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from metallab import paths, records, timing
from metallab.records import Record
from metallab.results import bench, compare, findings

SCHEMA = paths.ROOT / "utils" / "metallab" / "results" / "schema" / "results.schema.json"


def check(path: Path) -> list[Record]:
    """The records of a file that may be shown. `records.RecordError` with the reason if it may not."""
    path = Path(path)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise records.RecordError(f"{path}: not a plain file; send the file itself, no link and no folder")
    except OSError as error:
        raise records.RecordError(f"{path}: {error.strerror or error}") from error
    found = records.load(path)
    reason = next(_against_schema(path), None) or next(_against_claims(found), None)
    if reason:
        raise records.RecordError(f"{path}: {reason}")
    return found


def _against_schema(path: Path) -> Iterator[str]:
    """What the schema does not allow: in the file, and in the JSON texts inside its metadata."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for benchmark in data["benchmarks"]:
        for run in benchmark["runs"]:  # the schema asks the same of every sample: the extremes stand for all
            run["values"] = [min(run["values"]), max(run["values"])]
    yield from _faults(data)
    levels = [data, *data["benchmarks"], *(run for benchmark in data["benchmarks"] for run in benchmark["runs"])]
    for kind, part in (("metallab", "measurement"), ("machine", "machine")):
        texts = dict.fromkeys(level["metadata"][kind] for level in levels if kind in level.get("metadata", {}))
        for text in texts:
            yield from (f"in {kind}: {fault}" for fault in _faults(json.loads(text), part))


def _faults(instance: Any, part: str = "") -> Iterator[str]:
    """Where and how something breaks the schema, or one of its definitions: the worst of it."""
    from jsonschema.exceptions import best_match

    if error := best_match(_validator(part).iter_errors(instance)):
        yield f"{error.json_path} is not as the schema says: {_short(error.message)}"


@functools.cache
def _validator(part: str):
    from jsonschema import Draft202012Validator

    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return Draft202012Validator({"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]} if part else schema)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:100]} … {text[-99:]}"


def _against_claims(found: Sequence[Record]) -> Iterator[str]:
    """What a file says of itself and its own numbers do not."""
    runs = {(run.name, run.taken): run for run in found}
    for run in found:
        if run.measurement.simulated or run.measurement.mode != "full":
            yield f"{run.name}: only real times of full mode are shown; make bench takes them"
        if not run.machine.chip or not run.machine.os_name:
            yield f"{run.name}: chip or operating system is unknown, so nothing could be compared with it"
        if datetime.fromisoformat(run.taken).replace(tzinfo=UTC) > datetime.now(UTC) + timedelta(days=1):
            yield f"{run.name}: it was taken in the future, {run.taken}"
        if compare.has_speed_up(run):
            baseline = f"{run.lesson}/{run.comparison.name}/{run.comparison.baseline}"
            yield from _against_samples(run, runs.get((baseline, run.taken)))


def _against_samples(run: Record, baseline: Record | None) -> Iterator[str]:
    """Compute a speed-up again: the median of the paired ratios, and its exact interval."""
    if baseline is None:
        yield f"{run.name}: it claims a speed-up over {run.comparison.baseline}, which the file does not hold"
        return
    ours, theirs = run.measurement.samples, baseline.measurement.samples
    if len(ours) != len(theirs):
        yield f"{run.name}: it claims a speed-up, but has {len(ours)} samples for {len(theirs)} of its baseline"
        return
    pairs = np.divide(theirs, ours)
    low, high = timing.median_interval(pairs)
    claimed = (run.comparison.low, run.comparison.median, run.comparison.high or math.inf)
    if None in claimed or not np.allclose(claimed, (low, np.median(pairs), high), rtol=1e-6, atol=0):
        yield f"{run.name}: it claims a speed-up of {claimed[1]:.4g}, but its samples say {np.median(pairs):.4g}"


# --- the command ---


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.results.check_results FILE``: 0 if it may be shown, 1 and why if not, 2 without a file."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        print("check-results: name one file: make check-results FILE=build/bench/your_machine.json", file=sys.stderr)
        return 2
    try:
        found = check(Path(given[0]))
    except records.RecordError as error:
        print(f"REFUSED {error}", file=sys.stderr)
        return 1
    _show(findings.column(found, f"{given[0]}"))
    return 0


def _show(one: findings.Column) -> None:
    """What would be shown of a good file, and what it tells of who made it."""
    print(f"GOOD: it can be shown, as data/results/{bench.file_name(one.title)}\n")
    tables = {
        "What it is": findings.provenance([one]),
        "The GPU against its own CPU, by lesson": findings.by_lesson([one], by_gpu=True),
        "One way against another on one device, by lesson": findings.by_lesson([one], by_gpu=False),
        "Crossover sizes": findings.crossovers([one]),
        "Low precision": findings.dtypes([one]),
    }
    for title, rows in tables.items():
        if rows:
            print(title, *(f"  {label}: {cells[0]}" for label, cells in rows), "", sep="\n")
    settings = {f"{name}={value}" for record in one.records for name, value in record.machine.environment.items()}
    print(f"Settings that go along, for you to look at: {', '.join(sorted(settings)) or 'none'}")
    for note in _notes(one.records):
        print(f"Note: {note}")


def _notes(found: Sequence[Record]) -> Iterator[str]:
    """What is no fault and takes away from the numbers."""
    runs = [len(each) for each in records.by_name(found).values()]
    if few := sum(number < compare.MIN_RUNS for number in runs):
        fewest = f"fewer than {compare.MIN_RUNS} processes, the fewest to compare later"
        yield f"{few} of {len(runs)} benchmarks were measured in {fewest}; make bench runs {compare.MIN_RUNS}"
    if busy := sum("busy machine" in run.measurement.flags for run in found):
        yield f"{busy} of {len(found)} measurements were made while other programs ran: close them and run again"
    if any(run.machine.git_dirty for run in found):
        yield "the code was changed since its revision"
    if any(run.machine.power_source == "battery" or run.machine.low_power_mode for run in found):
        yield "on battery or in low-power mode: plug in and run again"


if __name__ == "__main__":
    sys.exit(main())
