"""Conclusions from results: of one machine, and of several side by side, for the report and notebook 64.

Machines are never compared by their times, only by ratios, each taken within one process on one machine: a variant's
speed-up over the baseline that ran in turn with it. Where a benchmark was measured in several processes, each process
counts once, with its median: two processes of the same code differ by memory layout, load and temperature. So advise
Georges, Buytaert and Eeckhout, *Statistically rigorous Java performance evaluation* (2007), and Kalibera and Jones,
*Rigorous benchmarking in reasonable time* (2013).
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from metallab import paths, timing, units, wording
from metallab.notebook import Expectation
from metallab.outcomes import VERDICTS
from metallab.records import Record, RecordError, by_name, load, usable_runs
from metallab.timing import Answer, Measurement, Reason, Withheld

REFERENCES = paths.ROOT / "data" / "results"
STYLES = {Reason.OUTPUTS_DIFFER: "differ", Reason.SIMULATED: "simulated", Reason.FAST_MODE: "fast"}
"""The report's styles for some reasons why a speed-up is withheld; the others have that of ``withheld``.

A style is a class of ``report.css`` and has a sign in ``signs`` of ``report.html.j2``."""
_NOT_JUDGED = (STYLES[Reason.SIMULATED], STYLES[Reason.FAST_MODE])
_COUNTED = tuple(
    outcome
    for outcome in (*VERDICTS[:-1], *STYLES.values(), "withheld")
    if outcome not in _NOT_JUDGED
)
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
    is_watched: bool = True
    """Whether a sentinel watched the machine's speed, in each of the processes."""

    @property
    def device(self) -> str:
        """The name of the hardware; empty if it is not known."""
        return self.measured.device if self.measured else ""

    @property
    def reason(self) -> str:
        """What explains ``answer.label``."""
        result = self.answer.result
        if isinstance(result, Withheld):
            return result.detail
        if self.processes > 1:
            return f"{result.phrase}, {self.processes} processes"
        return result.phrase

    @property
    def outcome(self) -> str:
        """The verdict, or how the report marks the reason why there is none: a class of its style sheet."""
        reason = self.answer.reason
        if reason is None:
            return self.answer.outcome
        return STYLES.get(reason, "withheld")

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """Low end, median and high end of the speed-up; None where it is withheld, or has no upper end."""
        of = self.answer.ratio
        return (of.low, of.median, of.high) if of and of.has_interval else None

    @property
    def speed_up(self) -> str:
        """The median, as the report shows it; empty where there is none."""
        return f"{units.times(self.ratio[1])}×" if self.ratio else ""

    @property
    def interval(self) -> str:
        """Both ends, as the report shows them; empty where there are none."""
        return f"{units.times(self.ratio[0])} to {units.times(self.ratio[2])}" if self.ratio else ""

    @property
    def by_gpu(self) -> bool:
        """True for an accelerator's speed-up over the CPU."""
        if self.measured is None or self.baseline_measured is None:
            return False
        return self.measured.kind != "cpu" and self.baseline_measured.kind == "cpu"

    @property
    def label(self) -> str:
        """What was compared with what, in the same words on every machine."""
        return f"{self.comparison}: {self.role} over {self.baseline_role}"


def conclusion_of(runs: Sequence[Record], baseline: Sequence[Record] = ()) -> Conclusion | None:
    """Return the conclusion about a compared variant; None for a baseline, and for a measurement that stands alone.

    A speed-up is given only of runs that `metallab.records.usable_runs` accepts.

    Parameters
    ----------
    runs
        The records of one benchmark, one from each process.
    baseline
        Those of its baseline, see `baselines`; empty if they are not known.
    """
    compared = runs[0].comparison
    if compared is None or compared.outcome == "baseline":
        return None

    usable, withheld = usable_runs(runs)
    answer = Answer(compared.variant, withheld) if withheld else _combine(usable)

    base = baseline[-1] if baseline else None
    baseline_role = base.comparison.role if base and base.comparison else ""
    return Conclusion(
        comparison=compared.name,
        answer=answer,
        processes=len(usable),
        lesson=runs[0].lesson,
        baseline=compared.baseline,
        parity=compared.parity,
        role=compared.role or compared.variant,
        baseline_role=baseline_role or compared.baseline,
        measured=runs[0].measurement,
        baseline_measured=base.measurement if base else None,
        is_watched=all(run.sentinel_drift is not None for run in usable or runs),
    )


# Processes may agree by accident better than processes do: none is taken to vary by less than 0.1 %.
_LEAST_DEVIATION = 0.001


def _combine(usable: Sequence[Record]) -> Answer:
    """Return the speed-up of the processes that count: that of a single one, or their mean with its interval."""
    answers = [run.answer for run in usable if run.answer is not None]
    first, ratio = answers[0], answers[0].ratio
    if len(answers) == 1 or ratio is None:
        return first

    medians = [each.ratio.median for each in answers if each.ratio is not None]
    low, median, high = _interval(medians)
    return replace(first, result=replace(ratio, low=low, median=median, high=high))


def _interval(medians: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of one number from each process between its 95 % limits.

    They are Student's, of the logarithms.
    """
    from scipy.special import stdtrit

    logs = [math.log(median) for median in medians]
    deviation = max(statistics.stdev(logs), _LEAST_DEVIATION)
    half = stdtrit(len(logs) - 1, 0.975) * deviation / math.sqrt(len(logs))
    mean = statistics.fmean(logs)

    most = 700.0  # e^710 is no float
    low, high = math.exp(min(mean - half, most)), math.exp(min(mean + half, most))
    return low, math.exp(min(mean, most)), high


@dataclass(frozen=True)
class Conditions:
    """What the machine was like while records were taken; those of real hardware in full mode count."""

    measured: tuple[Record, ...]
    busy: tuple[Record, ...]
    """Other programs were at work: what `Record.disturbance` says, as for the next one."""
    drifted: tuple[Record, ...]
    """A sentinel's time moved too far, and nothing that is asked about before speaks against them."""
    page_drifted: tuple[Record, ...]
    """No sentinel's did, but that of a piece of work around the whole page."""
    unwatched: tuple[Record, ...]
    """There was no sentinel, so nobody knows."""
    noisy: tuple[Record, ...]
    """Times vary by more than `timing.NOISY`, which is told and withholds nothing."""
    disturbed_otherwise: tuple[Record, ...]
    """A speed-up is withheld for another reason that may pass, which has no words of its own here."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> Conditions:
        """Sort the records of real hardware in full mode by what disturbed the machine, and what is known of its speed.

        A record may be in several of these groups, and in none.
        """
        measured = tuple(filter(_counts, records))
        disturbed: dict[Reason, list[Record]] = {}
        for each in measured:
            if each.disturbance is not None:
                disturbed.setdefault(each.disturbance.reason, []).append(each)

        busy = disturbed.pop(Reason.BUSY_MACHINE, [])
        drifted = disturbed.pop(Reason.DRIFTED, [])
        otherwise = itertools.chain.from_iterable(disturbed.values())
        return cls(
            measured,
            busy=tuple(busy),
            drifted=tuple(drifted),
            page_drifted=tuple(filter(_has_page_drift_alone, measured)),
            unwatched=tuple(each for each in measured if each.sentinel_drift is None),
            noisy=tuple(each for each in measured if each.measurement.varies),
            disturbed_otherwise=tuple(otherwise),
        )

    @property
    def is_disturbed(self) -> bool:
        """True if something should be run again."""
        return bool(self.busy or self.drifted or self.page_drifted or self.disturbed_otherwise)


def _counts(record: Record) -> bool:
    """Say whether a record is of real hardware in full mode."""
    return record.measurement.mode == "full" and not record.measurement.simulated


def _has_page_drift_alone(record: Record) -> bool:
    """Say whether the speed moved too far around a page, and not around the comparison."""
    return timing.has_drifted(record.page_drift) and not timing.has_drifted(record.sentinel_drift)


def list_disturbances(records: Iterable[Record]) -> list[Withheld]:
    """Return what disturbed the machine while records of one page were taken, each reason once, as `trust` counts it.

    Parameters
    ----------
    records
        Those of one page. Of several with one reason the first is told.
    """
    found: dict[Reason, Withheld] = {}
    for each in filter(_counts, records):
        if each.disturbance is not None:
            found.setdefault(each.disturbance.reason, each.disturbance)
    return list(found.values())


def trust(records: Sequence[Record]) -> str:
    """Return in a line or two whether results are reliable, and what to run again.

    Empty if nothing was measured for real and in full mode.
    """
    conditions = Conditions.of(records)
    if not conditions.measured:
        return ""
    if conditions.is_disturbed:
        return _describe_disturbance(conditions)
    return _describe_quiet(conditions)


def conclusions(records: Iterable[Record]) -> list[Conclusion]:
    """Return the conclusions about all compared variants."""
    records = list(records)
    bases = baselines(records)
    every = [
        conclusion_of(runs, bases.get(comparison_of(runs[0]), ()))
        for runs in by_name(records).values()
    ]
    return [conclusion for conclusion in every if conclusion is not None]


def count_lost_speed_ups(records: Iterable[Record]) -> int:
    """Return how many speed-ups are withheld for a reason that another run may be without, such as a busy machine."""
    return _count_lost(conclusions(records))


def _count_lost(conclusions: Iterable[Conclusion]) -> int:
    """Return how many conclusions are withheld for a reason that may pass."""
    reasons = [each.answer.withheld for each in conclusions]
    return sum(reason is not None and reason.is_transient for reason in reasons)


def _describe_quiet(conditions: Conditions) -> str:
    """Return that no other program was busy, what is known of the machine's speed, and which times vary."""
    total, unwatched = len(conditions.measured), len(conditions.unwatched)
    if not unwatched:
        steady = " and the machine's speed was constant"
    elif unwatched == total:
        steady = "; the machine's speed was not watched"
    else:
        steady = (
            f" and the machine's speed was constant around {total - unwatched} of them; "
            f"around {unwatched} it was not watched"
        )
    text = f"Measurements: {total}. No other program was busy{steady}"

    if not conditions.noisy:
        return f"{text}."
    count = len(conditions.noisy)
    names = sorted({record.name.partition("/")[2] for record in conditions.noisy})
    which = f" ({'; '.join(names)})" if count < 4 else ""
    vary = f"1 time{which} varies" if count == 1 else f"{count} times{which} vary"
    return f"{text}, but {vary} by more than {100 * timing.NOISY:.3g} %: trust the intervals."


def _describe_disturbance(conditions: Conditions) -> str:
    """Return what was wrong with the machine, what was lost by it, and what to run again.

    Of conditions that `Conditions.is_disturbed`. Pages are named up to four; beyond, all are to be run again.
    """
    faults = []
    if conditions.busy:
        faults.append(f"{len(conditions.busy)} while other programs were busy")
    if conditions.drifted:
        faults.append(f"{len(conditions.drifted)} while the machine's speed drifted")
    if conditions.page_drifted:
        faults.append(
            f"{len(conditions.page_drifted)} on pages around which the speed of the CPU drifted, "
            "which withholds nothing"
        )
    if conditions.disturbed_otherwise:
        faults.append(f"{len(conditions.disturbed_otherwise)} disturbed, as each comparison says")

    lost = ""
    if every := conclusions(conditions.measured):
        lost = f" Speed-ups: {len(every)}, {_count_lost(every)} of them withheld."

    disturbed = (
        *conditions.busy,
        *conditions.drifted,
        *conditions.page_drifted,
        *conditions.disturbed_otherwise,
    )
    lessons = sorted({record.lesson.split("_")[0] for record in disturbed})
    commands = ["make run"]
    if len(lessons) <= 4:
        commands = [f"make run ONLY={number}" for number in lessons]
    return (
        f"Measurements: {len(conditions.measured)}, of them {', '.join(faults)}.{lost} "
        f"{_advise(conditions)}: {'; '.join(commands)}."
    )


def _advise(conditions: Conditions) -> str:
    """Return what to do about a disturbed machine, and that all is to be run again.

    Rest helps a machine that became slower. One that became faster had been slow when it began, and rest would bring
    that back.
    """
    drifts = [each.sentinel_drift or 0.0 for each in conditions.drifted]
    drifts += [each.page_drift or 0.0 for each in conditions.page_drifted]

    steps = []
    if conditions.busy:
        steps.append("close other programs")
    if any(drift > 0 for drift in drifts):
        steps.append("let the machine rest")
    if conditions.disturbed_otherwise:
        steps.append("do what each comparison says")
    before = f"{', '.join(steps)} and " if steps else ""
    return f"{before}run again".capitalize()


def unmet(expected: Iterable[Expectation], found: Sequence[Conclusion]) -> list[str]:
    """Return a sentence for each expectation of a page that its results do not meet.

    One whose speed-up is withheld, or whose interval decides nothing, is neither met nor unmet: the sentence says so.
    One whose comparison was not measured on this machine, or on the simulated GPU or in fast mode, is passed over.
    """
    sentences = []
    for each in expected:
        for conclusion in found:
            if _contradicts(conclusion, each):
                sentences.append(
                    f"{each.comparison}, {each.variant}: expected to be {each.expected}, "
                    f"and found {conclusion.answer.label}"
                )
    return sentences


def baselines(records: Iterable[Record]) -> dict[tuple[str, str] | None, list[Record]]:
    """Return the records of each comparison's baseline, by `comparison_of`."""
    of_comparison: dict[tuple[str, str] | None, list[Record]] = {}
    for record in records:
        if record.comparison and record.comparison.variant == record.comparison.baseline:
            of_comparison.setdefault(comparison_of(record), []).append(record)
    return of_comparison


def _contradicts(conclusion: Conclusion, expected: Expectation) -> bool:
    """Say whether a conclusion is about what a page expects, and another one."""
    answer = conclusion.answer
    if (conclusion.comparison, answer.variant) != (expected.comparison, expected.variant):
        return False
    if answer.reason in (Reason.SIMULATED, Reason.FAST_MODE):
        return False
    return answer.outcome != expected.expected


def comparison_of(record: Record) -> tuple[str, str] | None:
    """Return lesson and name of the comparison that a record belongs to; None for a lone measurement."""
    if record.comparison is None:
        return None
    return record.lesson, record.comparison.name


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
    """Return a machine beside the stored ones, and a column for one that is missing."""
    stored, unreadable = references()
    here = [replace(mine, title=f"here, {mine.title}")] if mine else []
    kept = [replace(one, title=f"{one.title} (stored)") for one in stored]
    return [*here, *kept, *missing_machines([*here, *kept])], unreadable


# --- tables of machines: a row's cells stand in the order of the columns ---


def missing_machines(columns: Iterable[Column]) -> list[Column]:
    """Return an empty column for an Apple GPU, unless one was measured."""
    measured = [record for one in columns for record in one.records]
    is_there = any(map(_is_of_an_apple_gpu, measured))
    return [] if is_there else [Column("Apple GPU", WANTED)]


def _is_of_an_apple_gpu(record: Record) -> bool:
    """Say whether a record is of the GPU of a Mac."""
    measurement = record.measurement
    is_real_gpu = not measurement.simulated and measurement.kind != "cpu"
    return record.machine.os_name == "macOS" and is_real_gpu


def provenance(columns: Sequence[Column]) -> list[Row]:
    """Return the rows that describe the machines and how their results were made."""
    described = list(map(_provenance, columns))
    labels = dict.fromkeys(label for rows in described for label in rows)

    rows = []
    for label in labels:
        cells = [of_machine.get(label, "–") for of_machine in described]
        rows.append((label, tuple(cells)))
    return rows


def _provenance(one: Column) -> dict[str, str]:
    """Return what is known of a machine, by the labels of the rows; of one that nobody measured that this is so.

    Chip, system and versions are those of its last record.
    """
    if not one.records:
        return {"results": one.origin}

    machine = one.records[-1].machine
    facts = dict(machine.rows())
    versions = [
        f"{name} {machine.versions[name]}" for name in _FRAMEWORKS if machine.versions.get(name)
    ]
    processes = [len(runs) for runs in by_name(one.records).values()]
    fewest_and_most = dict.fromkeys((min(processes), max(processes)))
    busy = sum(record.measurement.is_busy for record in one.records)

    return {
        "results": one.origin,
        "measured on": _describe_hardware(one),
        "Chip": facts["Chip"],
        "CPU cores": facts["CPU cores"],
        "Memory": facts["Memory"],
        "GPU": facts["GPU"],
        "System": facts["System"],
        "frameworks": ", ".join(versions) or "none",
        "when": ", ".join(dict.fromkeys(record.taken[:10] for record in one.records)),
        "lessons": str(len({record.lesson for record in one.records})),
        "benchmarks": str(len(processes)),
        "processes for each": " to ".join(map(str, fewest_and_most)),
        "measured while busy": f"{busy} of {len(one.records)}",
    }


_FRAMEWORKS = ("torch", "tensorflow", "jax", "mlx", "onnxruntime")


def _describe_hardware(one: Column) -> str:
    """Return whether times are of real hardware."""
    return f"SIMULATED: {timing.SIMULATED.detail}" if one.simulated else "real hardware"


def in_short(one: Column) -> list[str]:
    """Return a machine's results in a few sentences; none if nothing was compared for real and in full mode."""
    judged = [each for each in one.conclusions if each.outcome in _COUNTED]
    if not judged:
        return []

    sentence = "No GPU was measured against a CPU."
    if gpu := [each for each in judged if each.by_gpu]:
        sentence = f"GPU over this machine's CPU: {_spread(gpu)}."

    largest = _largest_gains(judged)
    if not largest:
        return [sentence]
    gains = [f"{each.speed_up} ({_row(each)})" for each in largest]
    return [sentence, f"The largest gains: {'; '.join(gains)}."]


def _largest_gains(judged: Iterable[Conclusion]) -> list[Conclusion]:
    """Return the three largest speed-ups, of three lessons."""
    faster = [each for each in judged if each.outcome == "faster" and each.ratio]
    faster.sort(key=_median, reverse=True)

    best: dict[str, Conclusion] = {}
    for each in faster:
        best.setdefault(each.lesson, each)
    return list(best.values())[:3]


def _median(conclusion: Conclusion) -> float:
    """Return the median speed-up; 0 where there is none."""
    return conclusion.ratio[1] if conclusion.ratio else 0.0


def _spread(conclusions: Sequence[Conclusion]) -> str:
    """Return the range of speed-ups, and how often each verdict: ``0.13 to 65.8 (29 faster, 9 slower)``."""
    verdicts = Counter(each.outcome for each in conclusions)
    counts = ", ".join(
        f"{verdicts[outcome]} {outcome}" for outcome in _COUNTED if verdicts[outcome]
    )

    ratios = [each.ratio[1] for each in conclusions if each.ratio]
    if not ratios:
        return f"{wording.PHRASES['withheld, in short']} ({counts})"
    ends = dict.fromkeys(map(units.times, (min(ratios), max(ratios))))
    return f"{' to '.join(ends)} ({counts})"


def every(columns: Sequence[Column]) -> list[Row]:
    """Return a row for each comparison of any of the machines: on each its speed-up, or why it has none.

    A machine that did not make the comparison has a dash there, or, if it was simulated, that it was.
    """
    cells = [_cells(one.conclusions) for one in columns]
    nothing = [timing.SIMULATED.label if one.simulated else "–" for one in columns]
    labels = sorted({label for of_one in cells for label in of_one}, key=_in_order)

    rows = []
    for label in labels:
        row = [of_one.get(label) or none for of_one, none in zip(cells, nothing, strict=True)]
        rows.append((label, tuple(row)))
    return rows


def _in_order(label: str) -> list[tuple[int, str]]:
    """Return a key by which "batch of 2" comes before "batch of 16"."""
    parts = re.split(r"(\d+)", label)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _cells(conclusions: Iterable[Conclusion]) -> dict[str, str]:
    """Return the cells of one machine, by row."""
    return {_row(each): _cell(each) for each in conclusions}


def _cell(conclusion: Conclusion) -> str:
    """Return a speed-up with its verdict and interval, or why there is none."""
    if conclusion.ratio is None:
        return conclusion.answer.label
    return f"{conclusion.speed_up} {conclusion.outcome} ({conclusion.interval})"


def _row(conclusion: Conclusion) -> str:
    """Return the lesson's number and what was compared, the same on every machine."""
    return f"{conclusion.lesson.split('_')[0]} {conclusion.label}"
