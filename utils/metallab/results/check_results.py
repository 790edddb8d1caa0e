"""Can this file of results be shown beside others? ``make check-results FILE=...``, for who contributes one.

A file comes from a stranger: nothing in it is believed. It has to be what `metallab.records` reads, which holds it
against the schema (``--schema`` prints it) and computes every speed-up again from its samples, as for every reader.
Beyond that it has to be a plain file with real runs in full mode, in plain letters, of devices that its machine has.
What is wrong is said in one line; of a good file is told what would be shown.
"""

from __future__ import annotations

import dataclasses
import json
import re
import stat
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from metallab import machine, paths, records, timing
from metallab.device.base import PRODUCTS_APART, cpu_label
from metallab.records import Record
from metallab.results import findings


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
    runs = records.load(path)
    if reason := next(_against_claims(runs), None):
        raise records.RecordError(f"{path}: {reason}")
    return runs


def _what_there_is() -> str:
    """Which files could have been meant."""
    files = [paths.shown(path) for path in sorted(paths.BUILD.glob("bench/*.json"))]
    if files:
        return f"make bench wrote {', '.join(files)}"
    return f"make bench measures, and names the file that it writes in {paths.shown(paths.BUILD / 'bench')}"


def _against_claims(runs: Sequence[Record]) -> Iterator[str]:
    """What a file says of itself and its own numbers do not."""
    for run in runs:
        if run.measurement.simulated or run.measurement.mode != "full":
            yield f"{run.name}: only real times of full mode are shown; make bench takes them"
        if not run.machine.chip or not run.machine.os_name:
            yield f"{run.name}: chip or operating system is unknown, so nothing could be compared with it"
        if run.moment > datetime.now(UTC) + timedelta(days=1):
            yield f"{run.name}: it was taken in the future, {run.taken}"
        if marked := [name for name in _names(run) if "<" in name or ">" in name]:
            yield f"{run.name}: {marked[0]!r} holds < or >: name it in words"
        if strange := _strange_letter(run):
            yield f"{run.name}: {strange}"
        yield from (f"{run.name}: {fault}" for fault in _against_machine(run.machine, run.measurement))


def _names(run: Record) -> Iterator[str]:
    """What is called by a name: measurement, comparison and variants, device, machine."""
    parts = (run, run.measurement, run.comparison, run.machine)
    names = ("name", "device", "variant", "baseline", "role", "series", "chip", "gpu", "os_name", "os_version")
    return (value for part in parts for name in names if (value := getattr(part, name, None)))


def _strange_letter(run: Record) -> str:
    """A letter or digit beyond ASCII in anything that a record says, by name, and where it stands; empty if none."""
    of_run = dataclasses.replace(run, machine=None, measurement=dataclasses.replace(run.measurement, samples=()))
    texts = {"the machine": dataclasses.asdict(run.machine), "the record": dataclasses.asdict(of_run)}
    for what, text in ((what, json.dumps(told, ensure_ascii=False)) for what, told in texts.items()):
        for letter in () if text.isascii() else text:
            if not letter.isascii() and _may_be_read_as_a_letter(letter):
                named = f"{letter!r} ({unicodedata.name(letter, 'a letter without a name')})"
                return f"{what} holds {named}, which may look like another one: write it in letters of ASCII"
    return ""


def _may_be_read_as_a_letter(sign: str) -> bool:
    """True for letters, digits, accents, and for signs that stand for a letter, such as a circled A."""
    plain = unicodedata.normalize("NFKC", sign)
    return any(one.isalnum() or unicodedata.category(one).startswith("M") for one in plain)


def _against_machine(described: machine.Machine, measured: timing.Measurement) -> Iterator[str]:
    """A chip on a system that it does not run, and a device that the machine does not have."""
    chip, system = described.chip or "", described.os_name
    if chip.startswith("Apple ") and system != "macOS":
        yield f"its chip is {chip!r}, and its system {system!r}: an Apple chip's name is told by macOS alone"
    if not _has(described, measured):
        told = f"its device is {measured.device!r} ({measured.kind})"
        if measured.kind == "cpu":
            yield f"{told}, and its machine's is called {cpu_label(measured.threads or 0, of=chip)!r}"
        else:
            yield f"{told}, and its machine has the chip {chip!r} and the GPU {described.gpu!r}"


def _has(described: machine.Machine, measured: timing.Measurement) -> bool:
    """Whether a machine has the device that a measurement names, of the kind that it is said to be."""
    of_a_mac, chip = described.os_name == "macOS", described.chip or ""
    if measured.kind == "cpu":
        labels = [cpu_label(measured.threads or 0, apart, chip) for apart in ("", PRODUCTS_APART)]
        return measured.device in (timing.Host.label, *labels)
    if of_a_mac or measured.kind == "mps":
        return of_a_mac and measured.kind == "mps" and measured.device == f"{chip} GPU"
    gpus = [re.sub(r"^\d+ × ", "", name) for name in (described.gpu or "").split(", ")]
    if described.gpu is None:  # a GPU that nvidia-smi does not know
        return not measured.device.startswith("Apple ")
    return measured.device in gpus


# --- the command ---


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.results.check_results FILE``: 0 if it may be shown, 1 and why if not, 2 without a file."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--schema"]:
        print(json.dumps(records.schema(), indent=1))
        return 0
    if len(given) != 1:
        print("check-results: name one file: make check-results FILE=build/bench/your_machine.json", file=sys.stderr)
        return 2
    try:
        runs = check(Path(given[0]))
    except records.RecordError as error:
        print(f"REFUSED {error}", file=sys.stderr)
        return 1
    _show(findings.column(runs, f"{given[0]}"))
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


_PROCESSES = 3


def _notes(runs: Sequence[Record]) -> Iterator[str]:
    """What is no fault and takes away from the numbers."""
    counts = [len(each) for each in records.by_name(runs).values()]
    if few := sum(number < _PROCESSES for number in counts):
        yield f"{few} of {len(counts)} benchmarks were measured in fewer than {_PROCESSES} processes: make bench"
    if busy := sum(run.measurement.others > timing.BUSY for run in runs):
        yield f"{busy} of {len(runs)} measurements were made while other programs ran: close them and run again"
    if any(run.machine.git_dirty for run in runs):
        yield "the code was changed since its revision"
    if any(run.machine.power_source == "battery" or run.machine.low_power_mode for run in runs):
        yield "on battery or in low-power mode: plug in and run again"


if __name__ == "__main__":
    sys.exit(main())
