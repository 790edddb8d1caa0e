"""Can this file of results be shown beside others? ``make check-results FILE=...``, for who contributes one.

It has to be what `metallab.records` reads, which checks the schema (``--schema`` prints it) and computes every speed-up
again from its samples, as for every reader. Beyond that it has to hold real runs in full mode of a named machine. A
file that is refused gets one line with the reason; of a good one the command prints what would be shown. With ``ADD=1``
it joins ``data/results``, with its rows and its checksum in ``data/README.md``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from metallab import machine, paths, records, redact
from metallab.records import Record
from metallab.results import findings


def check(path: Path) -> list[Record]:
    """Return the records of a file that may be shown. `records.RecordError` with the reason if it may not."""
    runs = records.load(path)
    if found := records.find_foreign_texts(path, runs):
        what = machine.one_line(", ".join(map(repr, found)))[:300]
        raise records.RecordError(
            f"{path}: it holds {what}, which metallab does not write: send what make bench wrote"
        )

    for run in runs:
        if fault := _find_fault(run, runs[0]):
            raise records.RecordError(f"{path}: {run.name}: {fault}")
    return runs


def _find_fault(run: Record, first: Record) -> str | None:
    """Return why a record may not be shown, or not beside the first one of its file."""
    if run.measurement.simulated or run.measurement.mode != "full":
        return "only real times of full mode are shown: make bench"
    if not run.machine.chip or not run.machine.os_name:
        return "chip or operating system is unknown, so nothing compares"
    if _identity(run.machine) != _identity(first.machine):
        return "of another machine or revision than the first: make bench"
    return None


def _identity(described: machine.Machine) -> tuple[str | None, ...]:
    """Return what the records of one file have in common."""
    return described.chip, described.gpu, described.git_revision


def add(path: Path) -> str:
    """Copy a file that may be shown into ``data/results`` and name it in ``data/README.md``; return its new name.

    `records.RecordError` if it may not be shown or names a folder, or if there is one of such a machine; OSError if
    ``path`` is a link. Then nothing is changed.
    """
    readme, folder = paths.ROOT / "data" / "README.md", paths.ROOT / "data" / "results"

    with tempfile.TemporaryDirectory(dir=folder, prefix=".sent-") as place:
        copy = Path(place, "sent.json")
        content = paths.read_regular(path)
        copy.write_bytes(content)
        runs = check(copy)  # what was copied, whatever becomes of the original
        if traces := redact.find_private(f"{content.decode()} {runs}"):
            raise records.RecordError(
                f"{path}: it names {traces[0]!r}, which is of one machine only"
            )

        name = paths.results_file(findings.column(runs, "").title)
        is_name = re.fullmatch(r"[a-z]\w{1,80}\.json", name, re.ASCII)
        if not is_name or os.path.lexists(folder / name):
            raise records.RecordError(
                f"{path}: data/results/{name} is there already, or is no name for a file"
            )
        os.link(copy, folder / name)  # fails where there is one by now

    text = readme.read_text(encoding="utf-8")
    # a row is added below the head of the table, and a line at the top of the checksums
    table, sums = "| file | machine | how |\n|---|---|---|\n", "sha256:\n\n```\n"
    text = text.replace(table, f"{table}| `results/{name}` | {_describe_origin(runs)} |\n", 1)
    checksum = hashlib.sha256(content).hexdigest()
    text = text.replace(sums, f"{sums}{checksum}  results/{name}\n", 1)
    paths.write_atomically(readme, text)
    return name


def _describe_origin(runs: Sequence[Record]) -> str:
    """Return two cells of the table of files: the machine, and how its numbers were made."""
    described = runs[0].machine
    words = [described.chip, described.os_name, described.os_version, "Python", described.python]
    owner = re.sub(r"[^\w.,()-]+", " ", " ".join(filter(None, words)))[:200]

    count = len(records.by_name(runs))
    return f"{owner} | `make bench` on {runs[-1].taken[:10]}, {count} benchmarks, sent by its owner"


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what a file would show; return 0 if it may be shown, 1, after why not, if it may not, and 2 without a file.

    ``python -m metallab.results.check_results [--add] FILE``, where ``--add`` takes the file into ``data/results``, or
    ``--schema``, which prints the format of such files.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    adds = given[:1] == ["--add"]
    if adds:
        del given[0]
    if given == ["--schema"]:
        print(json.dumps(records.schema(), indent=1))
        return 0
    if len(given) != 1:
        print(
            "check-results: name one file: make check-results FILE=build/bench/your_machine.json",
            file=sys.stderr,
        )
        return 2

    try:
        runs = check(Path(given[0]))
        added = add(Path(given[0])) if adds else ""
    except (records.RecordError, OSError) as error:
        print(f"REFUSED {error}", file=sys.stderr)
        return 1

    _show(findings.column(runs, f"{given[0]}"))
    if added:
        print(
            f"Added: data/results/{added}, and its rows and sha256 in data/README.md. Read git diff, then commit."
        )
    return 0


def _show(one: findings.Column) -> None:
    """Print what would be shown of a good file, and what it tells of who made it."""
    print(f"GOOD: it can be shown, as data/results/{paths.results_file(one.title)}\n")
    print("What it is")
    for label, cells in findings.provenance([one]):
        print(f"  {label}: {cells[0]}")
    print()

    print(*findings.in_short(one), "", sep="\n")
    settings = {
        f"{name}={value}"
        for record in one.records
        for name, value in record.machine.environment.items()
    }
    print(f"Settings that go along, for you to look at: {', '.join(sorted(settings)) or 'none'}")
    for note in _notes(one.records):
        print(f"Note: {note}")


def _notes(runs: Sequence[Record]) -> Iterator[str]:
    """Yield what is no fault and takes away from the numbers."""
    counts = [len(each) for each in records.by_name(runs).values()]
    if few := sum(number < 3 for number in counts):
        yield f"{few} of {len(counts)} benchmarks were measured in fewer than 3 processes: make bench"
    if busy := sum(run.measurement.is_busy for run in runs):
        yield f"{busy} of {len(runs)} measurements were made while other programs ran: close them and run again"
    if any(run.machine.git_dirty for run in runs):
        yield "the code was changed since its revision"
    if any(run.machine.power_source == "battery" or run.machine.low_power_mode for run in runs):
        yield "on battery or in low-power mode: plug in and run again"


if __name__ == "__main__":
    sys.exit(main())
