"""What a comparison in lockstep says: lines and a table, a picture, a file of results with both sides."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from metallab import machine, records, units
from metallab.records import Record
from metallab.tables import Table
from metallab.timing import Measurement
from metallab.versus.lockstep import Answer, Outcome, Pair, Settings
from metallab.versus.sides import Description, Side

WORST_FIRST: Sequence[Answer] = ("LOST", "SLOWER", "DIFFERS", "NEITHER", "NEW", "FASTER", "UNSURE", "SAME")
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


def sentence(outcome: Outcome) -> str:
    """One case in one line."""
    told = f"{outcome.answer:8}{outcome.case.name}: "
    if outcome.interval is None:
        return f"{told}{MEANS[outcome.answer]}: {outcome.reason}"
    rounds = sum(len(pair.a) for pair in outcome.pairs)
    count = f"{len(outcome.pairs)} pairs of processes, {rounds} rounds, {outcome.seconds:.0f} s"
    return f"{told}{_ratio(outcome)} ({count}){f'; {outcome.reason}' if outcome.reason else ''}"


def table(outcomes: Iterable[Outcome]) -> Table:
    """All cases, the worst first."""
    ordered = sorted(outcomes, key=lambda outcome: WORST_FIRST.index(outcome.answer))
    rows = [
        [
            outcome.answer,
            outcome.case.name,
            *(units.seconds(_median(outcome.pairs, side)) if outcome.pairs else "" for side in "ab"),
            _ratio(outcome) if outcome.interval else outcome.reason,
            len(outcome.pairs),
        ]
        for outcome in ordered
    ]
    return Table(["answer", "case", "A, a call", "B, a call", "B is as fast as A, times (95 %)", "pairs"], rows)


def summary(outcomes: Sequence[Outcome], factor: float) -> str:
    """How many of each answer, and what they mean."""
    counts = Counter(outcome.answer for outcome in outcomes)
    counted = ", ".join(f"{counts[answer]} {answer}" for answer in WORST_FIRST if counts[answer])
    meant = "; ".join(f"{answer}: {MEANS[answer]}" for answer in WORST_FIRST if counts[answer])
    return f"Cases: {counted}. {meant}. Within a factor of {factor:.4g} is the same."


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 if B is slower somewhere, or cannot do what A can; 2 if nothing could be compared or outputs differ; else 0."""
    if any(outcome.is_finding for outcome in outcomes):
        return 1
    comparable = any(outcome.interval for outcome in outcomes)
    return 0 if comparable and not any(outcome.answer == "DIFFERS" for outcome in outcomes) else 2


def save(
    path: Path,
    outcomes: Sequence[Outcome],
    sides: Mapping[str, Side],
    described: Mapping[str, Description],
    settings: Settings,
) -> Path | None:
    """Write the samples of both sides as pyperf's JSON, one run for each process; None where there are none.

    The benchmarks are ``versus/case/A`` and ``.../B``, each with its side's revision and versions.
    """
    here, start, rows = machine.describe(), datetime.now(UTC), []
    for outcome in outcomes:
        for number, pair in enumerate(outcome.pairs):
            taken = (start + timedelta(microseconds=number)).isoformat()  # each process has a moment of its own
            for index, name in enumerate(sides):
                its_machine = _machine_of(here, sides[name], described[name])
                measured = _measurement(outcome, pair, index, settings, described[name].label or here.chip or "CPU")
                rows.append(
                    Record("versus", f"versus/{outcome.case.name}/{name}", taken, measured, None, None, its_machine)
                )
    return records.write(path, rows) if rows else None


def draw(outcomes: Sequence[Outcome], heading: str, device: str):
    """A figure: each case's ratio with its interval, and the single pairs; None where there are no ratios."""
    import matplotlib.pyplot as plt

    from metallab import plots

    compared = [outcome for outcome in outcomes if outcome.interval]
    if not compared:
        return None
    colours = {"SLOWER": plots.RED, "FASTER": plots.GREEN, "SAME": plots.BLUE}
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.38 * len(compared)))
        for row, outcome in enumerate(compared):
            colour, of = colours.get(outcome.answer, plots.GREY), outcome.interval
            axes.plot([math.exp(pair.log) for pair in outcome.pairs], [row] * len(outcome.pairs), "|", color=plots.GREY)
            if of.low > 0:  # pairs enough for an interval
                axes.plot([of.low, of.high], [row, row], color=colour, linewidth=3, alpha=0.6)
            axes.plot(of.speed, row, "o", color=colour)
        axes.axvline(1, color=plots.BLACK, linewidth=1)
        axes.set_yticks(range(len(compared)), [f"{outcome.case.name}  {outcome.answer}" for outcome in compared])
        axes.set_ylim(len(compared) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("time of A / time of B: right of 1 B is faster")
        plots.title(figure, f"{heading} (95 % intervals; each stroke is a pair of processes)", [device])
    return plots.described(figure, "; ".join(sentence(outcome) for outcome in compared))


def _ratio(outcome: Outcome) -> str:
    of = outcome.interval
    if of.low == 0:
        return f"{of.speed:.3f} (no interval)"
    return f"{of.speed:.3f} ({of.low:.3f} to {of.high:.3f})"


def _median(pairs: Sequence[Pair], side: str) -> float:
    return statistics.median(statistics.median(getattr(pair, side)) for pair in pairs)


def _machine_of(here: machine.Machine, side: Side, described: Description) -> machine.Machine:
    """This machine, with what the side has installed and the revision that it is."""
    versions = {name: described.packages.get(name) for name in machine.PACKAGES}
    committed = {"git_revision": side.revision, "git_dirty": False} if side.revision else {}
    return replace(here, versions=versions, python=described.python, **committed)


def _measurement(outcome: Outcome, pair: Pair, index: int, settings: Settings, label: str) -> Measurement:
    return Measurement(
        name=outcome.case.name,
        question="throughput",
        samples=(pair.a, pair.b)[index],
        first_call=pair.first_calls[index],
        block=pair.calls,
        warmup_calls=0,
        stop_reason="rounds of a pair of processes",
        mode="full",
        device=label,
        simulated=False,
        kind=settings.device,
        threads=settings.threads or None,
    )
