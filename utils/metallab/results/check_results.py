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
    """The records of a file that may be shown. `records.RecordError` with the reason if it may not."""
    runs = records.load(path)
    if found := records.find_foreign_texts(path, runs):
        what = machine.one_line(", ".join(map(repr, found)))[:300]
        raise records.RecordError(
            f"{path}: it holds {what}, which metallab does not write: send what make bench wrote"
        )
    for run in runs:
        if run.measurement.simulated or run.measurement.mode != "full":
            raise records.RecordError(
                f"{path}: {run.name}: only real times of full mode are shown: make bench"
            )
        if not run.machine.chip or not run.machine.os_name:
            raise records.RecordError(
                f"{path}: {run.name}: chip or operating system is unknown, so nothing compares"
            )
        if (
            len(
                {
                    (each.machine.chip, each.machine.gpu, each.machine.git_revision)
                    for each in (run, runs[0])
                }
            )
            > 1
        ):
            raise records.RecordError(
                f"{path}: {run.name}: of another machine or revision than the first: make bench"
            )
    return runs


def add(path: Path) -> str:
    """Copy a file that may be shown into ``data/results`` and name it in ``data/README.md``; return its new name.

    `records.RecordError` if it may not be shown or names a folder, or if there is one of such a machine; OSError if
    ``path`` is a link.
    """
    readme, folder = paths.ROOT / "data" / "README.md", paths.ROOT / "data" / "results"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".sent-") as place:
        copy = Path(place, "sent.json")
        copy.write_bytes(content := paths.read_regular(path))
        runs = check(copy)  # what was copied, whatever becomes of the original
        name, described = paths.results_file(findings.column(runs, "").title), runs[0].machine
        if traces := redact.find_private(f"{content.decode()} {runs}"):
            raise records.RecordError(
                f"{path}: it names {traces[0]!r}, which is of one machine only"
            )
        if not re.fullmatch(r"[a-z]\w{1,80}\.json", name, re.ASCII) or os.path.lexists(
            folder / name
        ):
            raise records.RecordError(
                f"{path}: data/results/{name} is there already, or is no name for a file"
            )
        os.link(copy, folder / name)  # fails where there is one by now
    words = [described.chip, described.os_name, described.os_version, "Python", described.python]
    machine = re.sub(r"[^\w.,()-]+", " ", " ".join(filter(None, words)))[:200]
    made = f"`make bench` on {runs[-1].taken[:10]}, {len(records.by_name(runs))} benchmarks, sent by its owner"
    text = readme.read_text(encoding="utf-8")
    for mark, line in (
        (
            "| file | machine | how |\n|---|---|---|\n",
            f"| `results/{name}` | {machine} | {made} |\n",
        ),
        ("sha256:\n\n```\n", f"{hashlib.sha256(content).hexdigest()}  results/{name}\n"),
    ):
        text = text.replace(mark, mark + line, 1)
    paths.write_atomically(readme, text)
    return name


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.results.check_results [--add] FILE``: 0 if it may be shown, 1 and why not, 2 without one."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if adding := given[:1] == ["--add"]:
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
        added = add(Path(given[0])) if adding else ""
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
    """What would be shown of a good file, and what it tells of who made it."""
    print(f"GOOD: it can be shown, as data/results/{paths.results_file(one.title)}\n")
    print(
        "What it is",
        *(f"  {label}: {cells[0]}" for label, cells in findings.provenance([one])),
        "",
        sep="\n",
    )
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
    """What is no fault and takes away from the numbers."""
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
