"""Report a comparison: lines and a table, a picture, a file of results with both sides."""

from __future__ import annotations

import json
import math
import os
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from metallab import machine, records, units
from metallab.records import Record
from metallab.tables import Table
from metallab.timing import Measurement
from metallab.versus.lockstep import IN_PRINT, Outcome, Pair, Settings
from metallab.versus.sides import Description, Side

RATIO = "time A / time B: above 1 B is faster; from paired samples, so not the ratio of the medians."
BUSY = "The load average was above the number of cores: a large ratio may be smaller than it looks."

_WRITTEN = {
    "versus.json": rb"\"lesson\": \"versus\"",
    "answers.json": b'"made_by": "metallab versus"',
    "versus.png": b"metallab versus",
}
"""The files of a run, and text that each of them contains."""


def load_average(before: machine.Machine, after: machine.Machine) -> dict[str, Any]:
    """Return the load averages at both ends, the number of cores, and a note if that is less."""
    began, ended = ((each.load_average or [None])[0] for each in (before, after))
    cores = after.cores_logical or 1
    return {"began": began, "ended": ended, "cores": cores, "note": BUSY if max(began or 0, ended or 0) > cores else ""}


def sentence(outcome: Outcome) -> str:
    """Return the line of one case."""
    told = f"{outcome.answer:8}{outcome.case.name}: {outcome.speed_up.ratio or outcome.speed_up.doubt.words}"
    rounds = sum(len(pair.a) for pair in outcome.pairs)
    count = f"rounds: {rounds}, {outcome.seconds:.0f} s" if rounds else ""
    return "; ".join(filter(None, (told, count, outcome.stopped)))


def table(outcomes: Iterable[Outcome]) -> Table:
    """Return a table of all cases, the worst first."""
    ordered = sorted(outcomes, key=lambda outcome: list(IN_PRINT.values()).index(outcome.answer))
    rows = [
        [
            outcome.answer,
            outcome.case.name,
            *(units.seconds(_median(outcome.pairs, side)) if outcome.pairs else "" for side in "ab"),
            _ratio(outcome) if outcome.speed_up.ratio else "",
            len(outcome.pairs),
        ]
        for outcome in ordered
    ]
    headings = ["answer", "case", "A, a call", "B, a call", "time A / time B (95 %)", "pairs"]
    return Table(headings, rows, note=RATIO if any(outcome.speed_up.ratio for outcome in ordered) else "")


def summary(outcomes: Sequence[Outcome], factor: float) -> str:
    """Return how many cases have each answer, and what the answers mean."""
    counts = Counter(outcome.answer for outcome in outcomes)
    answers = [(answer, means) for means, answer in IN_PRINT.items() if counts[answer]]
    counted = ", ".join(
        f"{counts[answer]} {answer}" + f" ({means})" * (means != answer.lower()) for answer, means in answers
    )
    text = f"Cases, of B against A: {counted}. Within a factor of {factor:.4g} is the same."
    if counts["UNSURE"]:
        text += "\nUndecided: take more --seconds, a quieter machine or a larger --factor."
    return text


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
            raise OSError(f"{file} was not written by metallab versus: name another folder with --out")


def save_answers(
    path: Path,
    outcomes: Sequence[Outcome],
    described: Mapping[str, Description],
    different: Table,
    settings: Settings,
    load: Mapping[str, Any],
) -> Path:
    """Write the sides, their differences, and each case's answer and interval as JSON."""
    about = {
        "made_by": "metallab versus",
        "sides": {name: _about(description.side) for name, description in described.items()},
        "differences": [dict(zip(different.headings, row, strict=True)) for row in different.rows],
        "factor": settings.factor,
        "threads": settings.threads,
        "device": settings.device,
        "load_average": dict(load),
        "cases": [_answer(outcome) for outcome in outcomes],
    }
    path.write_text(f"{json.dumps(about, indent=1)}\n", encoding="utf-8")
    return path


def _about(side: Side) -> dict[str, object]:
    revision, is_dirty = side.state
    state = {"git_revision": revision, "git_dirty": is_dirty}
    return {"text": side.text, **state, "python": str(side.python), "variables": dict(side.variables)}


def _answer(outcome: Outcome) -> dict[str, object]:
    of, whole = outcome.speed_up.ratio, bool(outcome.speed_up.ratio and outcome.speed_up.ratio.has_interval)
    return {
        "name": outcome.case.name, "answer": outcome.answer, "reason": outcome.reason, "speed": of and of.median,
        "low": of.low if whole else None, "high": of.high if whole else None, "pairs": len(outcome.pairs),
        "seconds": outcome.seconds,
    }  # fmt: skip


def save(
    path: Path, outcomes: Sequence[Outcome], described: Mapping[str, Description], settings: Settings
) -> Path | None:
    """Write the samples of both sides as pyperf's JSON, one run for each process; None where there are none.

    The benchmarks are ``versus/case/A`` and ``.../B``, each with its side's revision and versions.
    """
    here, start, rows = machine.describe(), datetime.now(UTC), []
    machines = {name: _machine_of(here, description) for name, description in described.items()}
    for outcome in outcomes:
        for number, pair in enumerate(outcome.pairs):
            taken = (start + timedelta(microseconds=number)).isoformat()  # each process has a moment of its own
            for index, name in enumerate(described):
                measured = _measurement(outcome, pair, index, settings, described[name].label or here.chip or "CPU")
                benchmark = f"versus/{outcome.case.name}/{name}"
                rows.append(Record("versus", benchmark, taken, measured, None, None, machines[name]))
    return records.write(path, rows) if rows else None


def draw(outcomes: Sequence[Outcome], heading: str, device: str):
    """Draw each case's ratio with its interval, and the single pairs; None where there are no ratios."""
    from metallab import plots

    compared = [outcome for outcome in outcomes if outcome.speed_up.ratio]
    if not compared:
        return None
    colours = {"slower": plots.RED, "faster": plots.GREEN, "same": plots.BLUE, "inconclusive": plots.ORANGE}
    with plots.picture(1.4 + 0.45 * len(compared)) as (figure, axes):
        for row, outcome in enumerate(compared):
            colour, of = colours[outcome.speed_up.ratio.verdict], outcome.speed_up.ratio
            axes.plot([math.exp(pair.log) for pair in outcome.pairs], [row] * len(outcome.pairs), "|", color=plots.GREY)
            if of.has_interval:
                axes.plot([of.low, of.high], [row, row], color=colour, linewidth=3, alpha=0.6)
            axes.plot(of.median, row, "o", color=colour)
        axes.axvline(1, color=plots.BLACK, linewidth=1)
        axes.set_xscale("log")
        for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            set_formatter(lambda ratio, _: f"{ratio:.3g}")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.98), max(high, 1.02))
        names = ["\n".join([*textwrap.wrap(each.case.name, 32), each.answer]) for each in compared]
        plots.rows(axes, names, fontsize=9)
        axes.set_xlabel("time of A / time of B: right of 1 B is faster")
        plots.title(figure, f"{heading} (95 % intervals; each stroke is a pair of processes)", [device])
    return plots.described(figure, "; ".join(map(sentence, outcomes)))


def _ratio(outcome: Outcome) -> str:
    of = outcome.speed_up.ratio
    return f"{of.median:.3f} ({of.low:.3f} to {of.high:.3f})" if of.has_interval else f"{of.median:.3f}"


def _median(pairs: Sequence[Pair], side: str) -> float:
    return statistics.median(statistics.median(getattr(pair, side)) for pair in pairs)


def _machine_of(here: machine.Machine, description: Description) -> machine.Machine:
    """Return this machine with a side's packages and revision."""
    versions = {name: description.packages.get(name) for name in machine.PACKAGES}
    revision, is_dirty = description.side.state
    return replace(here, versions=versions, python=description.python, git_revision=revision, git_dirty=is_dirty)


def _measurement(outcome: Outcome, pair: Pair, index: int, settings: Settings, label: str) -> Measurement:
    return Measurement(
        name=outcome.case.name, question="throughput", samples=(pair.a, pair.b)[index],
        first_call=pair.first_calls[index], block=pair.calls, warmup_calls=0,
        stop_reason="rounds of a pair of processes; what other programs did was not measured", mode="full",
        device=label, simulated=False, kind=settings.device, threads=settings.threads or None,
    )  # fmt: skip
