"""Report a comparison: lines and a table, a picture, a file of results with both sides."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metallab import machine, records, units
from metallab.records import Record
from metallab.tables import Table
from metallab.timing import Measurement, Reason
from metallab.versus.lockstep import IN_PRINT, Outcome, Settings, SideTimes
from metallab.versus.sides import Side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Return the line of one case: its answer, the speed-up or why there is none, and what was measured for it."""
    speed_up = outcome.speed_up
    result = speed_up.withheld.sentence if speed_up.withheld else speed_up.ratio
    parts = [f"{outcome.answer:8}{outcome.case.name}: {result}"]

    if rounds := sum(len(pair.a) for pair in outcome.pairs):
        parts.append(f"rounds: {rounds}, {outcome.seconds:.0f} s")
    if outcome.stopped:
        parts.append(outcome.stopped)
    return "; ".join(parts)


def table(outcomes: Iterable[Outcome], load: float) -> Table:
    """Return a table of all cases, the worst first; a load average above the number of cores adds a note to ratios."""
    worst_first = list(IN_PRINT)
    ordered = sorted(outcomes, key=lambda outcome: worst_first.index(outcome.kind))
    headings = ["answer", "case", "A, a call", "B, a call", "time A / time B (95 %)", "pairs"]

    note = ""
    if any(outcome.speed_up.ratio for outcome in ordered):
        is_busy = load > (os.cpu_count() or 1)
        note = f"{RATIO}\n{BUSY}" if is_busy else RATIO
    return Table(headings, list(map(_row, ordered)), note)


def _row(outcome: Outcome) -> list[object]:
    """Return the row of one case: its times and their ratio, or nothing for them if there is none."""
    time_a, time_b, interval = "", "", ""

    if ratio := outcome.speed_up.ratio:
        time_a = _median_time(pair.a for pair in outcome.pairs)
        time_b = _median_time(pair.b for pair in outcome.pairs)
        interval = f"{ratio.median:.3f}"
        if ratio.has_interval:
            interval += f" ({ratio.low:.3f} to {ratio.high:.3f})"
    return [outcome.answer, outcome.case.name, time_a, time_b, interval, len(outcome.pairs)]


def _median_time(samples: Iterable[Sequence[float]]) -> str:
    """Return the median over processes of the median of their samples."""
    return units.seconds(statistics.median(map(statistics.median, samples)))


def summary(outcomes: Sequence[Outcome], factor: float) -> str:
    """Return how many cases have each answer, and what the answers mean."""
    counts = Counter(outcome.kind for outcome in outcomes)
    counted = [
        _describe_count(counts[kind], kind, word) for kind, word in IN_PRINT.items() if counts[kind]
    ]
    line = (
        f"Cases, of B against A: {', '.join(counted)}. Within a factor of {factor:.4g} is the same."
    )

    if counts["inconclusive"]:
        line += "\nUndecided: take more --seconds, a quieter machine or a larger --factor."
    return line


def _describe_count(count: int, kind: str, word: str) -> str:
    """Return how many cases have an answer, and what it means if its word does not say it."""
    return f"{count} {word}" if kind == word.lower() else f"{count} {word} ({kind})"


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 1 if B is slower or cannot do what A can, 2 if something or everything was not compared, else 0."""
    kinds = {outcome.kind for outcome in outcomes}
    if kinds & {"slower", Reason.ONLY_A}:
        return 1
    if kinds & {Reason.OUTPUTS_DIFFER, Reason.NEITHER}:
        return 2

    compared = [outcome.speed_up.ratio for outcome in outcomes if outcome.speed_up.ratio]
    is_clear = bool(compared) and all(each.has_interval for each in compared)
    return 0 if is_clear else 2


def assert_own(folder: Path) -> None:
    """Raise OSError if a folder has a file with a run's name, but without the text that each run writes into it."""
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
    differences = [dict(zip(different.headings, row, strict=True)) for row in different.rows]
    about = {
        "made_by": "metallab versus",
        "sides": {name: _describe_side(side) for name, side in described.items()},
        "differences": differences,
        "factor": settings.factor,
        "threads": settings.threads,
        "device": settings.device,
        "load_average": load,
        "cores": os.cpu_count(),
        "cases": list(map(_describe_outcome, outcomes)),
    }
    path.write_text(f"{json.dumps(about, indent=1)}\n", encoding="utf-8")


def _describe_side(side: Side) -> dict[str, Any]:
    """Return a side as the JSON has it."""
    revision, is_dirty = side.state
    return {
        "text": side.text,
        "git_revision": revision,
        "git_dirty": is_dirty,
        "python": str(side.python),
        "variables": dict(side.variables),
    }


def _describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return a case's answer as the JSON has it; without an interval its ends, 0 and infinity, are null."""
    ratio = outcome.speed_up.ratio
    has_interval = ratio is not None and ratio.has_interval
    return {
        "name": outcome.case.name,
        "answer": outcome.answer,
        "reason": outcome.reason,
        "speed": ratio.median if ratio else None,
        "low": ratio.low if ratio and has_interval else None,
        "high": ratio.high if ratio and has_interval else None,
        "pairs": len(outcome.pairs),
        "seconds": outcome.seconds,
    }


def save(
    path: Path, outcomes: Sequence[Outcome], described: Mapping[str, Side], settings: Settings
) -> Path | None:
    """Write the samples of both sides as pyperf's JSON, one run for each process, and return the file.

    None, and no file, where there are no samples.

    The benchmarks are ``versus/case/A`` and ``.../B``, each with its side's revision and versions.
    """
    here, start = machine.describe(), datetime.now(UTC)
    rows: list[Record] = []

    for name, side in described.items():
        its_machine = _machine_of(side, here)
        label = side.label or here.chip or "CPU"
        for outcome in outcomes:
            for number, pair in enumerate(outcome.pairs):
                measured = _measurement(
                    outcome.case.name, pair.of_side(name), pair.calls, label, settings
                )
                # each process has a moment of its own
                taken = (start + timedelta(microseconds=number)).isoformat()
                title = f"versus/{outcome.case.name}/{name}"
                rows.append(Record("versus", title, taken, measured, None, None, its_machine))

    return records.write(path, rows) if rows else None


def _machine_of(side: Side, here: machine.Machine) -> machine.Machine:
    """Return this machine with a side's versions and revision."""
    revision, is_dirty = side.state
    versions = {package: side.packages.get(package) for package in machine.PACKAGES}
    return replace(
        here, versions=versions, python=side.version, git_revision=revision, git_dirty=is_dirty
    )


def _measurement(
    case: str, times: SideTimes, calls: int, label: str, settings: Settings
) -> Measurement:
    """Return what one process of a side measured."""
    return Measurement(
        case,
        "throughput",
        times.samples,
        times.first_call,
        calls,
        warmup_calls=0,
        stop_reason="rounds of a pair of processes; what other programs did was not measured",
        mode="full",
        device=label,
        simulated=False,
        kind=settings.device,
        threads=settings.threads or None,
    )


def draw(outcomes: Sequence[Outcome], heading: str, device: str) -> Figure | None:
    """Draw each case's ratio with its interval, and the single pairs; None where there are no ratios."""
    from metallab import plots

    compared = [(outcome, ratio) for outcome in outcomes if (ratio := outcome.speed_up.ratio)]
    if not compared:
        return None

    with plots.picture(1.4 + 0.45 * len(compared)) as (figure, axes):
        for row, (outcome, ratio) in enumerate(compared):
            height = list(itertools.repeat(row, len(outcome.pairs)))
            axes.plot(ratio.pairs, height, "|", color=plots.BLACK)
            plots.speedup_row(axes, row, outcome.speed_up)

        axes.axvline(1, color=plots.BLACK, linewidth=1)
        axes.set_xscale("log")
        # ratios as they are said, and not as powers of ten
        for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            set_formatter(lambda ratio, _: f"{ratio:.3g}")
        # at least 2 % to both sides of 1, so that a smaller difference looks small
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.98), max(high, 1.02))

        names = ["\n".join(textwrap.wrap(outcome.case.name, 32)) for outcome, _ in compared]
        plots.rows(axes, names, fontsize=9)
        axes.set_xlabel("time of A / time of B: right of 1 B is faster")
        meaning = "(95 % intervals; each stroke is a pair of processes)"
        plots.title(figure, f"{heading} {meaning}", [device])

    return plots.describe(figure, "; ".join(map(sentence, outcomes)))
