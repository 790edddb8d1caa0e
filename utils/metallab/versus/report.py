"""Report a comparison: lines and a table, a picture, a file of results with both sides."""

from __future__ import annotations

import json
import os
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from metallab import machine, records, units
from metallab.records import Record
from metallab.tables import Table
from metallab.timing import Measurement
from metallab.versus.lockstep import IN_PRINT, Outcome, Settings
from metallab.versus.sides import Side

RATIO = (
    "time A / time B: above 1 B is faster; from paired samples, so not the ratio of the medians."
)
BUSY = "The load average was above the number of cores: a large ratio may be smaller than it looks."

_WRITTEN = {
    "versus.json": rb"\"lesson\": \"versus\"",
    "answers.json": b'"made_by": "metallab versus"',
    "versus.png": b"metallab versus",
}
"""The files of a run, and text that each of them contains."""


def sentence(outcome: Outcome) -> str:
    """Return the line of one case."""
    speed_up = outcome.speed_up
    said = speed_up.withheld.sentence if speed_up.withheld else speed_up.ratio
    told = f"{outcome.answer:8}{outcome.case.name}: {said}"
    rounds = sum(len(pair.a) for pair in outcome.pairs)
    count = f"rounds: {rounds}, {outcome.seconds:.0f} s" if rounds else ""
    return "; ".join(filter(None, (told, count, outcome.stopped)))


def table(outcomes: Iterable[Outcome], load: float) -> Table:
    """Return a table of all cases, the worst first; a load average above the number of cores adds a note to ratios."""
    ordered = sorted(outcomes, key=lambda outcome: list(IN_PRINT.values()).index(outcome.answer))
    rows = []
    for outcome in ordered:
        times, of = ["", ""], outcome.speed_up.ratio
        if of:
            samples = ([pair.a for pair in outcome.pairs], [pair.b for pair in outcome.pairs])
            times = [
                units.seconds(statistics.median(map(statistics.median, each))) for each in samples
            ]
        ratio = (
            f"{of.median:.3f}" + f" ({of.low:.3f} to {of.high:.3f})" * of.has_interval if of else ""
        )
        rows.append([outcome.answer, outcome.case.name, *times, ratio, len(outcome.pairs)])
    headings = ["answer", "case", "A, a call", "B, a call", "time A / time B (95 %)", "pairs"]
    note = f"{RATIO}\n{BUSY}" if load > (os.cpu_count() or 1) else RATIO
    return Table(headings, rows, note if any(outcome.speed_up.ratio for outcome in ordered) else "")


def summary(outcomes: Sequence[Outcome], factor: float) -> str:
    """Return how many cases have each answer, and what the answers mean."""
    counts = Counter(outcome.answer for outcome in outcomes)
    counted = ", ".join(
        f"{counts[answer]} {answer}" + f" ({means})" * (means != answer.lower())
        for means, answer in IN_PRINT.items()
        if counts[answer]
    )
    undecided = "\nUndecided: take more --seconds, a quieter machine or a larger --factor." * bool(
        counts["UNSURE"]
    )
    return (
        f"Cases, of B against A: {counted}. Within a factor of {factor:.4g} is the same.{undecided}"
    )


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 if B is slower or cannot do what A can, 2 if something or everything could not be compared, else 0."""
    answers = {outcome.answer for outcome in outcomes}
    if answers & {"SLOWER", "LOST"}:
        return 1
    compared = [outcome.speed_up.ratio for outcome in outcomes if outcome.speed_up.ratio]
    refused = answers & {"DIFFERS", "NEITHER"}
    return 2 if refused or not compared or not all(each.has_interval for each in compared) else 0


def assert_own(folder: Path) -> None:
    """OSError if a folder has a file with a run's name that no run has written."""
    for name, mark in _WRITTEN.items():
        file = folder / name
        if os.path.lexists(file) and not (file.is_file() and mark in file.read_bytes()):
            raise OSError(
                f"{file} was not written by metallab versus: name another folder with --out"
            )


def save_answers(
    path: Path,
    outcomes: Sequence[Outcome],
    described: Mapping[str, Side],
    different: Table,
    settings: Settings,
    load: float,
) -> None:
    """Write the sides, their differences, and each case's answer and interval as JSON."""
    sides, rows = {}, []
    for name, side in described.items():
        state = dict(zip(("git_revision", "git_dirty"), side.state, strict=True))
        sides[name] = {
            "text": side.text,
            **state,
            "python": str(side.python),
            "variables": dict(side.variables),
        }
    for outcome in outcomes:
        of = outcome.speed_up.ratio
        low, high = (of.low, of.high) if of and of.has_interval else (None, None)
        row = {
            "name": outcome.case.name,
            "answer": outcome.answer,
            "reason": outcome.reason,
            "speed": of and of.median,
        }
        rows.append(
            row
            | {"low": low, "high": high, "pairs": len(outcome.pairs), "seconds": outcome.seconds}
        )
    about = {
        "made_by": "metallab versus",
        "sides": sides,
        "differences": [dict(zip(different.headings, row, strict=True)) for row in different.rows],
        "factor": settings.factor,
        "threads": settings.threads,
        "device": settings.device,
        "load_average": load,
        "cores": os.cpu_count(),
        "cases": rows,
    }
    path.write_text(f"{json.dumps(about, indent=1)}\n", encoding="utf-8")


def save(
    path: Path, outcomes: Sequence[Outcome], described: Mapping[str, Side], settings: Settings
) -> Path | None:
    """Write the samples of both sides as pyperf's JSON, one run for each process; None where there are none.

    The benchmarks are ``versus/case/A`` and ``.../B``, each with its side's revision and versions.
    """
    here, start, rows = machine.describe(), datetime.now(UTC), []
    for index, (name, its) in enumerate(described.items()):
        revision, is_dirty = its.state
        versions = {package: its.packages.get(package) for package in machine.PACKAGES}
        machine_of = replace(
            here, versions=versions, python=its.version, git_revision=revision, git_dirty=is_dirty
        )
        about = {
            "warmup_calls": 0,
            "mode": "full",
            "simulated": False,
            "device": its.label or here.chip or "CPU",
        }
        about |= {"kind": settings.device, "threads": settings.threads or None}
        about["stop_reason"] = (
            "rounds of a pair of processes; what other programs did was not measured"
        )
        for case, number, pair in (
            (each.case.name, *row) for each in outcomes for row in enumerate(each.pairs)
        ):
            taken = (
                start + timedelta(microseconds=number)
            ).isoformat()  # each process has a moment of its own
            samples, first = (pair.a, pair.b)[index], pair.first_calls[index]
            measured = Measurement(case, "throughput", samples, first, pair.calls, **about)
            rows.append(
                Record("versus", f"versus/{case}/{name}", taken, measured, None, None, machine_of)
            )
    return records.write(path, rows) if rows else None


def draw(outcomes: Sequence[Outcome], heading: str, device: str):
    """Draw each case's ratio with its interval, and the single pairs; None where there are no ratios."""
    from metallab import plots

    compared = [outcome for outcome in outcomes if outcome.speed_up.ratio]
    if not compared:
        return None
    with plots.picture(1.4 + 0.45 * len(compared)) as (figure, axes):
        for row, outcome in enumerate(compared):
            axes.plot(
                outcome.speed_up.ratio.pairs, [row] * len(outcome.pairs), "|", color=plots.BLACK
            )
            plots.speedup_row(axes, row, outcome.speed_up)
        axes.axvline(1, color=plots.BLACK, linewidth=1)
        axes.set_xscale("log")
        for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            set_formatter(lambda ratio, _: f"{ratio:.3g}")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.98), max(high, 1.02))
        plots.rows(
            axes, ["\n".join(textwrap.wrap(each.case.name, 32)) for each in compared], fontsize=9
        )
        axes.set_xlabel("time of A / time of B: right of 1 B is faster")
        plots.title(
            figure, f"{heading} (95 % intervals; each stroke is a pair of processes)", [device]
        )
    return plots.describe(figure, "; ".join(map(sentence, outcomes)))
