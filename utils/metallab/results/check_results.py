"""Can this file of results be shown beside others? ``make check-results FILE=...``, for who contributes one.

A file comes from a stranger: nothing in it is believed. It has to be a plain file of pyperf's JSON as the published
schema (``schema/results.schema.json``) describes it, with real runs in full mode, in plain letters, of devices that its
machine has; and every speed-up that it claims is computed again from its samples, as for every reader
(`metallab.records.load`). What is wrong is said in one line; of a good file is told what would be shown.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import stat
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from metallab import machine, paths, records, timing
from metallab.records import Record
from metallab.results import compare, findings

SCHEMA = paths.ROOT / "utils" / "metallab" / "results" / "schema" / "results.schema.json"


def check(path: Path) -> list[Record]:
    """The records of a file that may be shown. `records.RecordError` with the reason if it may not."""
    path = Path(path)
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise records.RecordError(f"{path}: not a plain file; send the file itself, no link and no folder")
    except FileNotFoundError as error:
        raise records.RecordError(f"{path}: there is no such file; {_what_there_is()}") from error
    except OSError as error:
        raise records.RecordError(f"{path}: {error.strerror or error}") from error
    found = records.load(path)
    reason = next(_against_schema(path), None) or next(_against_claims(found), None)
    if reason:
        raise records.RecordError(f"{path}: {reason}")
    return found


def _what_there_is() -> str:
    """Which files could have been meant."""
    files = [paths.shown(path) for path in sorted(paths.BUILD.glob("bench/*.json"))]
    if files:
        return f"make bench wrote {', '.join(files)}"
    return f"make bench measures, and names the file that it writes in {paths.shown(paths.BUILD / 'bench')}"


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
    for run in found:
        if run.measurement.simulated or run.measurement.mode != "full":
            yield f"{run.name}: only real times of full mode are shown; make bench takes them"
        if not run.machine.chip or not run.machine.os_name:
            yield f"{run.name}: chip or operating system is unknown, so nothing could be compared with it"
        if run.moment > datetime.now(UTC) + timedelta(days=1):
            yield f"{run.name}: it was taken in the future, {run.taken}"
        if strange := _strange_letter(run):
            yield f"{run.name}: {strange}, which may look like another one: write it in letters of ASCII"
        yield from (f"{run.name}: {fault}" for fault in _against_machine(run.machine, run.measurement.device))


def _strange_letter(run: Record) -> str:
    """A letter or digit beyond ASCII in anything that a record says, by name, and where it stands; empty if none."""
    of_run = dataclasses.replace(run, machine=None, measurement=dataclasses.replace(run.measurement, samples=()))
    said = {"the machine": str(run.machine), "the record": str(of_run)}
    for what, text in said.items():
        for letter in () if text.isascii() else text:
            if not letter.isascii() and _may_be_read_as_a_letter(letter):
                return f"{what} holds {letter!r} ({unicodedata.name(letter, 'a letter without a name')})"
    return ""


def _may_be_read_as_a_letter(sign: str) -> bool:
    """True for letters, digits, accents, and for signs that stand for a letter, such as a circled A."""
    plain = unicodedata.normalize("NFKC", sign)
    return any(one.isalnum() or unicodedata.category(one).startswith("M") for one in plain)


_OF_CHIP = re.compile(r" GPU|( \(products: Accelerate's own threads\))? CPU, \d+ threads?")
"""What `metallab.device` puts behind a chip's name."""


def _against_machine(described: machine.Machine, device: str) -> Iterator[str]:
    """A chip on a system that it does not run, and a device that the machine does not have."""
    chip, system = described.chip or "", described.os_name
    if chip.startswith("Apple ") and system != "macOS":
        yield f"its chip is {chip!r}, and its system {system!r}: an Apple chip's name is told by macOS alone"
    if device == timing.Host.label or (device.startswith(chip) and _OF_CHIP.fullmatch(device.removeprefix(chip))):
        return
    gpus = [re.sub(r"^\d+ × ", "", name) for name in (described.gpu or "").split(", ")]
    if described.gpu is None and system != "macOS" and not device.startswith("Apple "):
        return  # a GPU that nvidia-smi does not know
    if system == "macOS" or device not in gpus:
        yield f"its device is {device!r}, and its machine has the chip {chip!r} and the GPU {described.gpu!r}"


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
    print(f"GOOD: it can be shown, as data/results/{paths.results_file(one.title)}\n")
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
