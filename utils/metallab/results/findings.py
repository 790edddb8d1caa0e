"""Conclusions from results: of one machine, and of several side by side, for the report and notebook 12.

Machines are never compared by their times, only by ratios, each taken within one process on one machine: a variant's
speed-up over the baseline that ran in turn with it. Where a benchmark was measured in several processes, each process
counts once, with its median: two processes of the same code differ by memory layout, load and temperature. So advise
Georges, Buytaert and Eeckhout, *Statistically rigorous Java performance evaluation* (2007), and Kalibera and Jones,
*Rigorous benchmarking in reasonable time* (2013).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from metallab import paths, timing, units
from metallab.outcomes import VERDICTS
from metallab.records import Record, RecordError, believed, by_name, load
from metallab.timing import Answer, Measurement

REFERENCES = paths.ROOT / "data" / "results"
WITHHELD = {"outputs differ": "differ", "simulated": "simulated", "fast mode": "fast"}
"""The report's words for some reasons why a speed-up is withheld."""
_COUNTED = (*VERDICTS[:-1], "differ", "withheld")
WANTED = "no run yet: be the first (make bench; data/results/README.md)"

Row = tuple[str, tuple[str, ...]]
"""Label of a table's row, and its cell for each machine."""


@dataclass(frozen=True)
class Conclusion:
    """The conclusion about one variant of a comparison on one machine."""

    comparison: str
    answer: Answer
    """The speed-up of one process or of several, or why there is none."""
    processes: int = 1
    """How many say so."""
    lesson: str = ""
    baseline: str = ""
    parity: str = ""
    """How outputs were compared."""
    role: str = ""
    baseline_role: str = ""
    """Of variant and baseline: what they are on any machine."""
    measured: Measurement | None = None
    baseline_measured: Measurement | None = None
    """Of one process: what ran, and where."""

    @property
    def device(self) -> str:
        return self.measured.device if self.measured else ""

    @property
    def reason(self) -> str:
        """What explains ``answer.short``."""
        if self.answer.ratio is None:
            return self.answer.doubt.reason
        return self.answer.ratio.words() + (
            f", {self.processes} processes" if self.processes > 1 else ""
        )

    @property
    def outcome(self) -> str:
        """The verdict, or a word of `WITHHELD` for the reason why there is none: a style of the report."""
        return WITHHELD.get(self.answer.doubt.kind, self.answer.outcome)

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """Low end, median and high end of the speed-up; None where it is withheld, or has no upper end."""
        of = self.answer.ratio
        return (of.low, of.median, of.high) if of and of.has_interval else None

    @property
    def speed_up(self) -> str:
        return f"{units.times(self.ratio[1])}×" if self.ratio else ""

    @property
    def interval(self) -> str:
        return f"{units.times(self.ratio[0])} to {units.times(self.ratio[2])}" if self.ratio else ""

    @property
    def by_gpu(self) -> bool:
        """True for an accelerator's speed-up over the CPU."""
        sides = self.measured, self.baseline_measured
        return None not in sides and [side.kind == "cpu" for side in sides] == [False, True]

    @property
    def label(self) -> str:
        """What was compared with what, in the same words on every machine."""
        return f"{self.comparison}: {self.role} over {self.baseline_role}"


def conclusion_of(runs: Sequence[Record], baseline: Sequence[Record] = ()) -> Conclusion | None:
    """Return the conclusion about a compared variant, one record from each process; None for a baseline.

    A speed-up is given only of runs that `metallab.records.believed` accepts and that have samples enough.
    ``baseline`` are the records of its baseline, see `baselines`.
    """
    compared = runs[0].comparison
    if compared is None or compared.outcome == "baseline":
        return None
    about = {"lesson": runs[0].lesson, "baseline": compared.baseline, "parity": compared.parity}
    about |= {"role": compared.role or compared.variant, "measured": runs[0].measurement}
    base = baseline[-1] if baseline else None
    about["baseline_role"] = (base.comparison.role if base else "") or compared.baseline
    about["baseline_measured"] = base.measurement if base else None
    sound, doubt = believed(runs)
    answer = sound[0].answer if sound else Answer(compared.variant, None, doubt)
    if len(sound) > 1:
        low, median, high = _interval([run.comparison.median for run in sound])
        answer = replace(answer, ratio=replace(answer.ratio, low=low, median=median, high=high))
    return Conclusion(compared.name, answer, len(sound), **about)


# Processes may agree by accident better than processes do: none is taken to vary by less than 0.1 %.
_LEAST_DEVIATION = 0.001


def _interval(medians: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of one number from each process between its 95 % limits (Student's t of the logarithms)."""
    from scipy.special import stdtrit

    logs = [math.log(median) for median in medians]
    half = (
        stdtrit(len(logs) - 1, 0.975)
        * max(statistics.stdev(logs), _LEAST_DEVIATION)
        / math.sqrt(len(logs))
    )
    mean = statistics.fmean(logs)
    return tuple(
        math.exp(min(log, 700.0)) for log in (mean - half, mean, mean + half)
    )  # e^710 is no float


def trust(records: Sequence[Record]) -> str:
    """Return in a line or two whether results are reliable, and what to run again.

    Empty if nothing was measured for real and in full mode.
    """
    if not (real := _real(records)):
        return ""
    busy, drifted = doubted(real)
    if not busy and not drifted:
        noisy = [
            record.name
            for record in real
            if {"noisy", "unreliable"} & set(record.measurement.flags)
        ]
        which = (
            f" ({', '.join(sorted({name.partition('/')[2] for name in noisy}))})"
            if len(noisy) < 4
            else ""
        )
        spread = (
            f", but {len(noisy)} times{which} vary by more than 10 %: trust their intervals"
            if noisy
            else ""
        )
        return f"Measurements: {len(real)}. No other program was busy and the machine's speed was constant{spread}."
    every = conclusions(real)
    withheld = sum(conclusion.outcome == "withheld" for conclusion in every)
    lessons = sorted({record.lesson.split("_")[0] for record in [*busy, *drifted]})
    again = ["make run"] if len(lessons) > 4 else [f"make run ONLY={number}" for number in lessons]
    why = [f"{len(busy)} while other programs were busy"] * bool(busy)
    why += [f"{len(drifted)} while the machine's speed drifted"] * bool(drifted)
    lost = f"Speed-ups: {len(every)}, {withheld} of them withheld. " if every else ""
    return (
        f"Measurements: {len(real)}, of them {', '.join(why)}. {lost}"
        f"{'Close other programs' if busy else 'Let the machine rest'} and run again: {'; '.join(again)}."
    )


def doubted(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records of a busy machine, and those of a drifting one; of real hardware in full mode."""
    real = _real(records)
    busy = [record for record in real if record.measurement.others > timing.BUSY]
    return busy, [record for record in real if abs(record.sentinel_drift or 0) > timing.DRIFT]


def _real(records: Sequence[Record]) -> list[Record]:
    return [
        record
        for record in records
        if record.measurement.mode == "full" and not record.measurement.simulated
    ]


def conclusions(records: Iterable[Record]) -> list[Conclusion]:
    """Return the conclusions about all compared variants."""
    records = list(records)
    bases = baselines(records)
    every = [
        conclusion_of(runs, bases.get(comparison_of(runs[0]), ()))
        for runs in by_name(records).values()
    ]
    return [conclusion for conclusion in every if conclusion is not None]


def baselines(records: Iterable[Record]) -> dict[tuple[str, str] | None, list[Record]]:
    """Return the records of each comparison's baseline, by `comparison_of`."""
    of_comparison: dict[tuple[str, str] | None, list[Record]] = {}
    for record in records:
        if record.comparison and record.comparison.variant == record.comparison.baseline:
            of_comparison.setdefault(comparison_of(record), []).append(record)
    return of_comparison


def comparison_of(record: Record) -> tuple[str, str] | None:
    """Return lesson and name of the comparison that a record belongs to; None for a lone measurement."""
    return record.comparison and (record.lesson, record.comparison.name)


# --- machines ---


@dataclass(frozen=True)
class Column:
    """A machine in a table of several, with its results."""

    title: str
    origin: str
    records: tuple[Record, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()

    @property
    def simulated(self) -> bool:
        """True if any of its times are of the simulated GPU."""
        return any(record.measurement.simulated for record in self.records)


@dataclass(frozen=True)
class Unreadable:
    """A file that could not be read, and why."""

    what: str
    reason: str


def column(records: Sequence[Record], origin: str) -> Column:
    """Return a machine's column, named after the accelerator that was measured, or else the CPU."""
    first = min(
        (record.measurement for record in records),
        key=lambda m: (m.kind == "cpu", -(m.threads or 0)),
    )
    return Column(first.device, origin, tuple(records), tuple(conclusions(records)))


def references() -> tuple[list[Column], list[Unreadable]]:
    """Return the machines in ``data/results``, and the files there that cannot be used."""
    columns, unreadable = [], []
    for path in sorted(REFERENCES.glob("*.json")):
        try:
            columns.append(column(load(path), f"reference run, {path.name}"))
        except RecordError as error:
            unreadable.append(Unreadable(path.name, str(error).removeprefix(f"{path}: ")))
    return columns, unreadable


def beside(mine: Column | None) -> tuple[list[Column], list[Unreadable]]:
    """Return a machine beside the stored ones, and a column for one that is wanted."""
    stored, unreadable = references()
    here = [replace(mine, title=f"here, {mine.title}")] if mine else []
    kept = [replace(one, title=f"{one.title} (stored)") for one in stored]
    return [*here, *kept, *wanted([*here, *kept])], unreadable


def wanted(columns: Iterable[Column]) -> list[Column]:
    """Return an empty column for an Apple GPU, unless one was measured."""
    measured = [
        record for one in columns for record in one.records if record.machine.os_name == "macOS"
    ]
    real = [
        record
        for record in measured
        if not record.measurement.simulated and record.measurement.kind != "cpu"
    ]
    return [] if real else [Column("Apple GPU", WANTED)]


# --- tables of machines: a row's cells stand in the order of the columns ---


def provenance(columns: Sequence[Column]) -> list[Row]:
    """Return the rows that describe the machines and how their results were made."""
    made = [_provenance(one) for one in columns]
    labels = list(dict.fromkeys(label for rows in made for label in rows))
    return [(label, tuple(rows.get(label, "–") for rows in made)) for label in labels]


def _provenance(one: Column) -> dict[str, str]:
    rows = {"results": one.origin}
    if not one.records:
        return rows
    real = f"SIMULATED: {timing.SIMULATED.reason}" if one.simulated else "real hardware"
    described, runs = one.records[-1].machine, {len(runs) for runs in by_name(one.records).values()}
    told = dict(described.rows())
    rows |= {"measured on": real} | {
        name: told[name] for name in ("Chip", "CPU cores", "Memory", "GPU", "System")
    }
    versions = [
        f"{name} {described.versions[name]}" for name in _FRAMEWORKS if described.versions.get(name)
    ]
    rows |= {"frameworks": ", ".join(versions) or "none"}
    rows |= {"when": ", ".join(dict.fromkeys(record.taken[:10] for record in one.records))}
    rows |= {"lessons": str(len({record.lesson for record in one.records}))}
    rows |= {"benchmarks": str(len(by_name(one.records)))}
    rows |= {"processes for each": " to ".join(map(str, dict.fromkeys((min(runs), max(runs)))))}
    busy = sum(record.measurement.others > timing.BUSY for record in one.records)
    return rows | {"measured while busy": f"{busy} of {len(one.records)}"}


_FRAMEWORKS = ("torch", "tensorflow", "jax", "mlx", "onnxruntime")


def in_short(one: Column) -> list[str]:
    """Return a machine's results in a few sentences; none if nothing was compared for real and in full mode."""
    judged = [each for each in one.conclusions if each.outcome in _COUNTED]
    if not judged:
        return []
    gpu = [each for each in judged if each.by_gpu]
    sentences = [
        f"GPU over this machine's CPU: {_spread(gpu)}."
        if gpu
        else "No GPU was measured against a CPU."
    ]
    best: dict[str, Conclusion] = {}  # of each lesson
    for each in judged:
        gains = each.outcome == "faster" and each.ratio
        if gains and (each.lesson not in best or each.ratio[1] > best[each.lesson].ratio[1]):
            best[each.lesson] = each
    if largest := sorted(best.values(), key=lambda each: each.ratio[1], reverse=True)[:3]:
        sentences.append(
            f"The largest gains: {'; '.join(f'{each.speed_up} ({_row(each)})' for each in largest)}."
        )
    return sentences


def _spread(conclusions: Sequence[Conclusion]) -> str:
    """Return the range of speed-ups, and how often each verdict: ``0.13 to 65.8 (29 faster, 9 slower)``."""
    ratios = [each.ratio[1] for each in conclusions if each.ratio]
    verdicts = Counter(each.outcome for each in conclusions)
    counts = ", ".join(
        f"{verdicts[outcome]} {outcome}" for outcome in _COUNTED if verdicts[outcome]
    )
    ends = (
        " to ".join(dict.fromkeys(map(units.times, (min(ratios), max(ratios))))) if ratios else ""
    )
    return f"{ends or timing.WORDS['withheld, in short']} ({counts})"


def every(columns: Sequence[Column]) -> list[Row]:
    """Return all speed-ups, and why some have none."""
    cells = [_cells(one.conclusions) for one in columns]
    in_order = lambda label: [
        int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", label)
    ]
    labels = sorted(
        {row for of_one in cells for row in of_one}, key=in_order
    )  # "batch of 2" before "batch of 16"
    nothing = [timing.SIMULATED.short if one.simulated else "–" for one in columns]
    pairs = list(zip(cells, nothing, strict=True))
    return [(row, tuple(of_one.get(row) or none for of_one, none in pairs)) for row in labels]


def _cells(conclusions: Iterable[Conclusion]) -> dict[str, str]:
    """Return the cells of one machine, by row."""
    given = lambda each: (
        f"{each.speed_up} {each.outcome} ({each.interval})" if each.ratio else each.answer.short
    )
    return {_row(each): given(each) for each in conclusions}


def _row(conclusion: Conclusion) -> str:
    """Return the lesson's number and what was compared, the same on every machine."""
    return f"{conclusion.lesson.split('_')[0]} {conclusion.label}"
