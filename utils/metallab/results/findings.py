"""What results say: of one machine, and of several side by side. The report and notebook 12 show what is found here.

Machines are never compared by their times. What stands side by side are ratios, each taken within one process on one
machine: a variant's speed-up over the baseline that ran in turn with it. Where a benchmark was measured in several
processes, each process counts once (see `metallab.results.compare`).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from metallab import machine, paths, timing, units
from metallab.records import Record, RecordError, believed, by_name, load
from metallab.results import compare

REFERENCES = paths.ROOT / "data" / "results"
WANTED = "no run yet: be the first (make bench; data/results/README.md)"
LOW_PRECISION = re.compile(r"b?float16|bf16|fp16|int8|half", re.IGNORECASE)

Row = tuple[str, tuple[str, ...]]
"""What a line of a table is about, and its cell for each machine."""


@dataclass(frozen=True)
class Verdict:
    """What may be said of one variant of a comparison on one machine."""

    comparison: str
    variant: str
    kind: str
    """A style: one of `timing.Verdict`, ``differ``, ``fast``, ``simulated`` or ``withheld``."""
    said: str
    reason: str = ""
    ratio: tuple[float, float, float] | None = None
    """Low end, median and high end of the speed-up; None where none may be given."""
    lesson: str = ""
    baseline: str = ""
    device: str = ""
    baseline_device: str = ""

    @property
    def speed_up(self) -> str:
        return f"{units.times(self.ratio[1])}×" if self.ratio else ""

    @property
    def interval(self) -> str:
        return f"{units.times(self.ratio[0])} to {units.times(self.ratio[2])}" if self.ratio else ""

    @property
    def by_gpu(self) -> bool:
        """True for an accelerator's speed-up over the CPU."""
        return not is_cpu(self.device) and is_cpu(self.baseline_device)

    @property
    def label(self) -> str:
        """What was compared with what, in the same words on every machine."""
        return f"{self.comparison}: {_role(self.variant)} over {_role(self.baseline)}"


def verdict_of(runs: Sequence[Record], baseline: Sequence[Record] = ()) -> Verdict | None:
    """What may be said of a compared variant, one record from each process; None for a baseline or a lone measurement.

    A speed-up is given only of runs that may be believed (`metallab.records.believed`) and had samples enough.
    ``baseline`` are the records of its baseline, see `baselines`: they tell what each pair showed, where those are few.
    """
    compared, measured = runs[0].comparison, runs[0].measurement
    if compared is None or compared.verdict == "baseline":
        return None
    about = {"lesson": runs[0].lesson, "baseline": compared.baseline, "device": measured.device}
    about["baseline_device"] = baseline[-1].measurement.device if baseline else ""
    sound, doubt = believed(runs)
    kind, said, reason, ratio = _refused(doubt) if doubt else _judged(sound, baseline)
    return Verdict(compared.name, compared.variant, kind, said, reason, ratio, **about)


_Judged = tuple[str, str, str, tuple[float, float, float] | None]
"""Kind, words, reason and ratio."""
_KIND_OF_DOUBT = {"outputs differ": "differ", "simulated": "simulated", "fast mode": "fast"}
"""Whatever else speaks against a speed-up is ``withheld``."""


def _refused(doubt: str) -> _Judged:
    """Kind, words and reason of what gets no speed-up."""
    head, _, reason = doubt.partition(":")
    if head == "simulated":
        return "simulated", "simulated", "no speed-up is given", None
    if head == "fast mode":
        return "fast", f"{head}: no conclusion", "", None
    if head in _KIND_OF_DOUBT or timing.passes(doubt):
        return _KIND_OF_DOUBT.get(head, "withheld"), f"{head}: no speed-up is given", reason.strip(), None
    return "withheld", "no speed-up is given", doubt, None


def _judged_by_pairs(run: Record, baseline: Sequence[Record]) -> _Judged:
    """Where pairs are too few for an interval: what each of them showed, as the page said it (`timing.Ratio`)."""
    ours, compared = run.measurement.samples, run.comparison
    theirs = next((base.measurement.samples for base in baseline if base.taken == run.taken), ())
    pairs = tuple(b / a for a, b in zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else ()
    ratio = timing.Ratio(compared.variant, compared.baseline, compared.median, 0.0, math.inf, len(ours), pairs)
    reason = ratio.without_interval.removeprefix("inconclusive: ")
    return "inconclusive", ratio.in_every_pair or "inconclusive", reason, None


def _judged(sound: Sequence[Record], baseline: Sequence[Record]) -> _Judged:
    """The verdict of one process is read off its interval, that of several off the interval of their medians."""
    one = sound[0].comparison
    low, median, high = one.low, one.median, one.high
    if len(sound) > 1:
        of_processes = compare.interval([run.comparison.median for run in sound])
        low, median, high = of_processes.low, of_processes.ratio, of_processes.high
    elif high is None:
        return _judged_by_pairs(sound[0], baseline)
    kind = timing.verdict(low, high)
    explained = {
        "faster": f"{units.times(median)} times as fast",
        "slower": f"takes {units.times(1 / median)} times as long",
        "same": f"the difference is below {timing.MATTERS:.0%}",
        "inconclusive": timing.undecided(low, high),
    }
    among = f", {len(sound)} processes" if len(sound) > 1 else ""
    return kind, kind, explained[kind] + among, (low, median, high)


def trust(records: Sequence[Record]) -> str:
    """Whether what was measured may be believed, in a line or two, and what to run again.

    Empty if nothing was measured for real and in full mode.
    """
    real = [record for record in records if record.measurement.mode == "full" and not record.measurement.simulated]
    if not real:
        return ""
    busy = [record for record in real if record.measurement.others > timing.BUSY]
    drifted = [record for record in real if abs(record.sentinel_drift or 0) > timing.DRIFT]
    if not busy and not drifted:
        return f"All {len(real)} measurements were made on a quiet, steady machine."
    doubts = ((busy, "while other programs were busy"), (drifted, "while the machine's speed drifted"))
    made = " and ".join(f"{len(found)} of {len(real)} {how}" for found, how in doubts if found)
    every = verdicts(real)
    lost = sum(verdict.kind == "withheld" for verdict in every)
    lessons = sorted({record.lesson.split("_")[0] for record in [*busy, *drifted]})
    again = ["make run"] if len(lessons) > 4 else [f"make run ONLY={number}" for number in lessons]
    return (
        f"Measured {made}: of {len(every)} speed-ups {lost or 'none'} had to be withheld for it. "
        f"Close other programs and run again: {'; '.join(again)}."
    )


def verdicts(records: Iterable[Record]) -> list[Verdict]:
    """What may be said of every compared variant."""
    records = list(records)
    bases = baselines(records)
    found = [verdict_of(runs, bases.get(comparison_of(runs[0]), ())) for runs in by_name(records).values()]
    return [verdict for verdict in found if verdict is not None]


def baselines(records: Iterable[Record]) -> dict[tuple[str, str] | None, list[Record]]:
    """The records of each comparison's baseline, by `comparison_of`."""
    found: dict[tuple[str, str] | None, list[Record]] = {}
    for record in records:
        if record.comparison and record.comparison.variant == record.comparison.baseline:
            found.setdefault(comparison_of(record), []).append(record)
    return found


def comparison_of(record: Record) -> tuple[str, str] | None:
    """The comparison that a record belongs to: lesson and name; None if to none."""
    return record.comparison and (record.lesson, record.comparison.name)


def is_cpu(device: str) -> bool:
    """Whether this is a CPU's label, such as ``Apple M2 CPU, 8 threads``, or that of plain Python."""
    return device == timing.Host.label or re.search(r" CPU, \d+ threads?$", device) is not None


def _role(variant: str) -> str:
    """A variant's name without what only its machine has: ``cuda, float16`` is ``GPU, float16``."""
    role = re.sub(r"^(mps|cuda)\b", "GPU", variant)
    return re.sub(r"\bCPU, (?!1 thread\b)\d+ threads\b", "CPU", role)


# --- machines ---


@dataclass(frozen=True)
class Column:
    """A machine in a table of several: where its results come from, and what they say."""

    title: str
    origin: str
    records: tuple[Record, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def simulated(self) -> bool:
        """True if any of its times are of the simulated GPU."""
        return any(record.measurement.simulated for record in self.records)

    @property
    def head(self) -> str:
        """Its title with what must not be overlooked."""
        return f"SIMULATED {self.title}" if self.simulated else self.title


@dataclass(frozen=True)
class Problem:
    """Something that could not be read, and why."""

    what: str
    reason: str


def column(records: Sequence[Record], origin: str) -> Column:
    """A machine from its records, named after what was measured: an accelerator before a CPU."""
    devices = list(dict.fromkeys(record.measurement.device for record in records))
    named = sorted(devices, key=lambda device: (is_cpu(device), -_threads(device)))
    return Column(named[0], origin, tuple(records), tuple(verdicts(records)))


def distinct(columns: Iterable[Column]) -> list[Column]:
    """The same columns; of those with one title the second is called ``title (2)``: two machines may be of one kind."""
    seen: Counter[str] = Counter()
    named = []
    for one in columns:
        seen[one.title] += 1
        number = seen[one.title]
        named.append(replace(one, title=f"{one.title} ({number})") if number > 1 else one)
    return named


def _threads(device: str) -> int:
    found = re.search(r"(\d+) threads?$", device)
    return int(found[1]) if found else 0


def references() -> tuple[list[Column], list[Problem]]:
    """The machines whose results come with the project, and the files among them that cannot be used."""
    columns, problems = [], []
    for path in sorted(REFERENCES.glob("*.json")):
        try:
            columns.append(column(load(path), f"reference run, {path.name}"))
        except RecordError as error:
            problems.append(Problem(path.name, str(error).removeprefix(f"{path}: ")))
    return columns, problems


def with_now(now: Column) -> Column:
    """This machine's latest run, with what a page has measured just ``now`` instead of that lesson's older results.

    ``now`` alone if there is no such run, or it is another device's.
    """
    before = latest()
    if before is None or before.title != now.title:
        return now
    lessons = {record.lesson for record in now.records}
    kept = [record for record in before.records if record.lesson not in lessons]
    return column([*kept, *now.records], f"{before.origin}; {', '.join(sorted(lessons))}: {now.origin}")


def latest() -> Column | None:
    """This machine's latest run in full mode, by ``make bench`` or ``make run``; None if there is none."""
    here, found = machine.describe(), {}
    for place, files in _runs(paths.BUILD):
        records = [record for path in files for record in _readable(path)]
        if any(_is_of(record, here) for record in records):
            found[place] = records
    if not found:
        return None
    last = paths.latest({place: _last_taken(records) for place, records in found.items()})
    return column(found[last], f"this machine, {last.relative_to(paths.BUILD)}")


def _last_taken(records: Iterable[Record]) -> float:
    """When the last of them says that it was taken, in seconds since 1970."""
    return max(record.moment.timestamp() for record in records)


def _runs(build: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The runs under a folder, by file or folder, each with the files that hold its results."""
    for path in build.glob("bench/*.json"):
        yield path, [path]
    for folder in build.glob("full-*"):
        yield folder, sorted(folder.glob("results/*.json"))


def _readable(path: Path) -> list[Record]:
    try:
        return load(path)
    except RecordError:  # the report names what it cannot read; here it is one file less to choose from
        return []


def _is_of(record: Record, here: machine.Machine) -> bool:
    """Whether a record was made on this machine, for real and in full mode."""
    there, measured = record.machine, record.measurement
    same = (there.chip, there.cores_logical, there.memory_bytes) == (here.chip, here.cores_logical, here.memory_bytes)
    return same and measured.mode == "full" and not measured.simulated


def wanted(columns: Iterable[Column]) -> list[Column]:
    """A column for the machine that everybody asks about and nobody has measured: an Apple GPU, if none is there."""
    measured = [record for one in columns for record in one.records if record.machine.os_name == "macOS"]
    real = [record for record in measured if not record.measurement.simulated and not is_cpu(record.measurement.device)]
    return [] if real else [Column("Apple GPU", WANTED)]


# --- tables of machines: a row's cells stand in the order of the columns ---


def provenance(columns: Sequence[Column]) -> list[Row]:
    """What each machine is, and how its results were made."""
    made = [_provenance(one) for one in columns]
    labels = list(dict.fromkeys(label for rows in made for label in rows))
    return [(label, tuple(rows.get(label, "–") for rows in made)) for label in labels]


def _provenance(one: Column) -> dict[str, str]:
    rows = {"results": one.origin}
    if not one.records:
        return rows
    real = "SIMULATED: no time of it is compared" if one.simulated else "real hardware"
    described, runs = one.records[-1].machine, {len(runs) for runs in by_name(one.records).values()}
    told = dict(described.rows())
    rows |= {"measured on": real} | {name: told[name] for name in ("Chip", "CPU cores", "Memory", "GPU", "System")}
    versions = [f"{name} {described.versions[name]}" for name in _FRAMEWORKS if described.versions.get(name)]
    rows |= {"frameworks": ", ".join(versions) or "none"}
    rows |= {"when": ", ".join(dict.fromkeys(record.taken[:10] for record in one.records))}
    rows |= {"lessons": str(len({record.lesson for record in one.records}))}
    rows |= {"benchmarks": str(len(by_name(one.records)))}
    rows |= {"processes for each": " to ".join(map(str, dict.fromkeys((min(runs), max(runs)))))}
    busy = sum("busy machine" in record.measurement.flags for record in one.records)
    return rows | {"measured while busy": f"{busy} of {len(one.records)}"}


_FRAMEWORKS = ("torch", "tensorflow", "jax", "onnxruntime")


def by_lesson(columns: Sequence[Column], by_gpu: bool) -> list[Row]:
    """For each lesson the range of speed-ups: of a GPU over its own CPU, or of one way over another on one device."""
    lessons = sorted({verdict.lesson for one in columns for verdict in one.verdicts if verdict.by_gpu == by_gpu})
    return [(lesson, tuple(_range(one, lesson, by_gpu) for one in columns)) for lesson in lessons]


def _range(one: Column, lesson: str, by_gpu: bool) -> str:
    mine = [verdict for verdict in one.verdicts if (verdict.lesson, verdict.by_gpu) == (lesson, by_gpu)]
    ratios = sorted(verdict.ratio[1] for verdict in mine if verdict.ratio)
    if not ratios:
        return _why_none(one, mine)
    ends = " to ".join(dict.fromkeys(units.times(end) for end in (ratios[0], ratios[-1])))
    counts = [f"{sum(v.kind == kind for v in mine)} {kind}" for kind in _KINDS if any(v.kind == kind for v in mine)]
    middle = f", median {units.times(statistics.median(ratios))}" if len(ratios) > 2 else ""
    return f"{ends}{middle} ({', '.join(counts)})"


_KINDS = ("faster", "slower", "same", "inconclusive", "differ", "withheld")


def _why_none(one: Column, mine: Sequence[Verdict]) -> str:
    """What a cell says where there is no speed-up."""
    if one.simulated:
        return "SIMULATED: none given"
    return next((verdict.said for verdict in mine), "–")


def crossovers(columns: Sequence[Column]) -> list[Row]:
    """From which size on one side of a comparison is faster: at that size and at every larger one that was measured.

    Read from comparisons whose names differ in their first number only, which is the size, such as
    ``matrix product, n = 64`` and ``31 x 31``, where there are three at least.
    """
    return _rows(columns, [_crossovers(one.verdicts) for one in columns])


def _crossovers(of: Iterable[Verdict]) -> dict[str, str]:
    """What is said of each kind of work, on one machine."""
    series: dict[str, dict[int, str]] = {}
    for verdict in of:
        size = re.search(r"\b\d{1,15}\b", verdict.comparison)
        if size and verdict.kind in _KINDS:
            square = lambda found: "n x n" if found[1] else "n"
            work = re.sub(rf"\b(?:n = )?{size[0]}\b( x {size[0]}\b)?", square, verdict.comparison, count=1)
            row = f"{_number(verdict)} {work}: {_role(verdict.variant)} over {_role(verdict.baseline)}"
            series.setdefault(row, {})[int(size[0])] = verdict.kind
    return {row: _said_of(kinds) for row, kinds in series.items() if len(kinds) >= 3}


def _said_of(kinds: dict[int, str]) -> str:
    last = max(kinds)
    if kinds[last] not in ("faster", "slower"):
        return f"{'outputs differ' if kinds[last] == 'differ' else kinds[last]} at the largest, n = {last}"
    size = timing.crossover({n: kind == kinds[last] for n, kind in kinds.items()})
    where = f"from n = {size} on" if size > min(kinds) else f"at every size, {size} to {last}"
    return f"{kinds[last]} {where}"


def dtypes(columns: Sequence[Column]) -> list[Row]:
    """What low precision brings on the same device: speed-up and verdict for each comparison."""
    found = [{f"{_number(v)} {v.label}": _cell(v) for v in one.verdicts if _is_of_dtypes(v)} for one in columns]
    return _rows(columns, found)


def _is_of_dtypes(verdict: Verdict) -> bool:
    low = LOW_PRECISION.search(verdict.variant) and not LOW_PRECISION.search(verdict.baseline)
    return bool(low) and verdict.device == verdict.baseline_device


def every(columns: Sequence[Column]) -> list[Row]:
    """Every speed-up, and why some have none."""
    return _rows(columns, [{f"{_number(v)} {v.label}": _cell(v) for v in one.verdicts} for one in columns])


def _rows(columns: Sequence[Column], found: Sequence[Mapping[str, str]]) -> list[Row]:
    """The rows of a table from what is said on each machine, by row."""
    labels = sorted({row for said in found for row in said}, key=_in_order)
    pairs = list(zip(columns, found, strict=True))
    return [(row, tuple(said.get(row) or _why_none(one, ()) for one, said in pairs)) for row in labels]


def _in_order(label: str) -> list[str | int]:
    """A key to sort by that has ``batch of 2`` before ``batch of 16``."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", label)]


def _number(verdict: Verdict) -> str:
    """The lesson's number."""
    return verdict.lesson.split("_")[0]


def _cell(verdict: Verdict) -> str:
    return f"{verdict.speed_up} {verdict.kind} ({verdict.interval})" if verdict.ratio else verdict.said
