"""What a comparison in lockstep says: lines and a table, a picture, a file of results with both sides."""

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
from metallab.versus.lockstep import Answer, Outcome, Pair, Settings
from metallab.versus.sides import Description, Side

MEANS: Mapping[Answer, str] = {
    "LOST": "only A can do it",
    "SLOWER": "B takes longer",
    "DIFFERS": "their outputs differ, so no times are compared",
    "NEITHER": "neither can do it",
    "NEW": "only B can do it",
    "FASTER": "B takes less time",
    "UNSURE": "it cannot be told",
    "SAME": "they take the same time",
}
"""The worst first."""

RATIO = "time A / time B: above 1 B is faster. Of samples taken in turns, so not that of the medians beside it."


_WRITTEN = {
    "versus.json": rb"\"lesson\": \"versus\"",
    "answers.json": b'"made_by": "metallab versus"',
    "versus.png": b"metallab versus",
}
"""The files of a run, and what each of them contains."""


def load_average(before: machine.Machine, after: machine.Machine) -> dict[str, Any]:
    """Return the load averages of a minute at both ends, the number of cores, and a note where that is less."""
    began, ended = ((each.load_average or [None])[0] for each in (before, after))
    highest, cores = max(began or 0.0, ended or 0.0), after.cores_logical or 1
    note = (
        f"The load average was {highest:.2f}, and there are {cores} cores: the longer sample is interrupted more often "
        "then, so a large ratio may be smaller than it looks."
    )
    return {"began": began, "ended": ended, "cores": cores, "note": note if highest > cores else ""}


def sentence(outcome: Outcome) -> str:
    """One case in one line."""
    told = f"{outcome.answer:8}{outcome.case.name}: "
    if outcome.interval is None:
        return f"{told}{MEANS[outcome.answer]}: {outcome.reason}"
    rounds = sum(len(pair.a) for pair in outcome.pairs)
    pairs = f"{len(outcome.pairs)} pair{'s' if len(outcome.pairs) > 1 else ''} of processes"
    count = f"{pairs}, {rounds} round{'s' if rounds > 1 else ''}, {outcome.seconds:.0f} s"
    return f"{told}{_ratio(outcome)} ({count}){f'; {outcome.reason}' if outcome.reason else ''}"


def table(outcomes: Iterable[Outcome]) -> Table:
    """All cases, the worst first."""
    ordered = sorted(outcomes, key=lambda outcome: list(MEANS).index(outcome.answer))
    rows = [
        [
            outcome.answer,
            outcome.case.name,
            *(units.seconds(_median(outcome.pairs, side)) if outcome.pairs else "" for side in "ab"),
            _ratio(outcome) if outcome.interval else "",
            len(outcome.pairs),
        ]
        for outcome in ordered
    ]
    headings = ["answer", "case", "A, a call", "B, a call", "time A / time B (95 %)", "pairs"]
    return Table(headings, rows, note=RATIO if any(outcome.interval for outcome in ordered) else "")


def summary(outcomes: Sequence[Outcome], factor: float) -> str:
    """How many of each answer, what they mean, and what may decide what is not decided."""
    counts = Counter(outcome.answer for outcome in outcomes)
    answers = [answer for answer in MEANS if counts[answer]]
    counted = ", ".join(f"{counts[answer]} {answer}" for answer in answers)
    meant = "; ".join(f"{answer}: {MEANS[answer]}" for answer in answers)
    told = f"Cases: {counted}. {meant}. Within a factor of {factor:.4g} is the same."
    undecided = [outcome for outcome in outcomes if outcome.answer == "UNSURE"]
    if not undecided:
        return told
    without = len(undecided) - sum(map(has_interval, undecided))
    how_many = f"{len(undecided)} of {len(outcomes)} were not decided"
    if without:
        how_many += f", {without} without an interval"
    return f"{told}\n{how_many}: more --seconds, a quieter machine or a larger --factor may decide."


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 if B is slower somewhere, or cannot do what A can; 2 if something could not be compared; else 0."""
    if any(outcome.is_finding for outcome in outcomes):
        return 1
    return 2 if not_compared(outcomes) else 0


def not_compared(outcomes: Sequence[Outcome]) -> list[str]:
    """Return why something could not be compared, each reason in words; empty where all could."""
    compared = [outcome for outcome in outcomes if outcome.interval]
    answers = {outcome.answer for outcome in outcomes}
    reasons = {
        "outputs differ": "DIFFERS" in answers,
        "neither side can do a case": "NEITHER" in answers,
        "too few pairs of processes for an interval": not all(map(has_interval, compared)),
    }
    return [reason for reason, holds in reasons.items() if holds] or ["no case could be timed on both sides"] * (
        not compared
    )


def has_interval(outcome: Outcome) -> bool:
    """False where nothing was compared, or in too few pairs."""
    return outcome.interval is not None and outcome.interval.low > 0


def assert_own(folder: Path) -> None:
    """OSError, with what to do, if a folder has a file of a run's name that no run has written."""
    for name, mark in _WRITTEN.items():
        file = folder / name
        if os.path.lexists(file) and not (file.is_file() and mark in file.read_bytes()):
            raise OSError(f"{file} is not of metallab versus, which would overwrite it: name another folder with --out")


def save_answers(
    path: Path,
    outcomes: Sequence[Outcome],
    described: Mapping[str, Description],
    different: Table,
    settings: Settings,
    load: Mapping[str, Any],
) -> Path:
    """Write as JSON what the samples alone do not tell: the sides, what differs, each case's answer and interval."""
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
    """Ends of an interval that there are not are null."""
    of = outcome.interval
    ends = {"low": of.low, "high": of.high} if has_interval(outcome) else {"low": None, "high": None}
    told = {"name": outcome.case.name, "answer": outcome.answer, "reason": outcome.reason}
    return {**told, "speed": of and of.speed, **ends, "pairs": len(outcome.pairs), "seconds": outcome.seconds}


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
    """A figure: each case's ratio with its interval, and the single pairs; None where there are no ratios.

    Cases without a ratio are named below.
    """
    import matplotlib.pyplot as plt

    from metallab import plots

    compared = [outcome for outcome in outcomes if outcome.interval]
    if not compared:
        return None
    colours = {"SLOWER": plots.RED, "FASTER": plots.GREEN, "SAME": plots.BLUE, "UNSURE": plots.ORANGE}
    without = ", ".join(f"{outcome.case.name} {outcome.answer}" for outcome in outcomes if not outcome.interval)
    below = textwrap.wrap(f"Without a ratio: {without}", 100) if without else []
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 1.4 + 0.45 * len(compared) + 0.17 * len(below)))
        names = []
        for row, outcome in enumerate(compared):
            colour, of, is_told = colours[outcome.answer], outcome.interval, has_interval(outcome)
            single = [pair.log for pair in outcome.pairs]
            axes.plot(single, [row] * len(single), "|", color=plots.GREY)
            if is_told:
                axes.plot([math.log(of.low), math.log(of.high)], [row, row], color=colour, linewidth=3, alpha=0.6)
            axes.plot(math.log(of.speed), row, "o", color=colour, fillstyle="full" if is_told else "none")
            answer = outcome.answer if is_told else f"{outcome.answer}, no interval"
            names.append("\n".join([*textwrap.wrap(outcome.case.name, 32), answer]))
        axes.axvline(0, color=plots.BLACK, linewidth=1)
        axes.set_xscale("asinh", linear_width=0.05)  # drawn together far from 1, where one ratio would hide the others
        axes.xaxis.set_major_formatter(lambda log, _: f"{math.exp(log):.4g}")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, math.log(0.98)), max(high, math.log(1.02)))
        axes.set_yticks(range(len(compared)), names, fontsize=9)
        axes.set_ylim(len(compared) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("time of A / time of B: right of 1 B is faster")
        figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=9)
        plots.title(figure, f"{heading} (95 % intervals; each stroke is a pair of processes)", [device])
    return plots.described(figure, "; ".join(map(sentence, outcomes)))


def _ratio(outcome: Outcome) -> str:
    of = outcome.interval
    if not has_interval(outcome):
        return f"{of.speed:.3f} (no interval)"
    return f"{of.speed:.3f} ({of.low:.3f} to {of.high:.3f})"


def _median(pairs: Sequence[Pair], side: str) -> float:
    return statistics.median(statistics.median(getattr(pair, side)) for pair in pairs)


def _machine_of(here: machine.Machine, description: Description) -> machine.Machine:
    """This machine, with what the side has installed and the revision that it is."""
    versions = {name: description.packages.get(name) for name in machine.PACKAGES}
    revision, is_dirty = description.side.state
    return replace(here, versions=versions, python=description.python, git_revision=revision, git_dirty=is_dirty)


def _measurement(outcome: Outcome, pair: Pair, index: int, settings: Settings, label: str) -> Measurement:
    return Measurement(
        name=outcome.case.name,
        question="throughput",
        samples=(pair.a, pair.b)[index],
        first_call=pair.first_calls[index],
        block=pair.calls,
        warmup_calls=0,
        stop_reason="rounds of a pair of processes; what other programs did was not measured",
        mode="full",
        device=label,
        simulated=False,
        kind=settings.device,
        threads=settings.threads or None,
    )
