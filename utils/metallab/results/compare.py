"""Is the second of two files of results faster? Benchmark by benchmark, on one machine, as an answer and not a table.

**What is repeated is the process.** Two processes of the same code differ: by where the system puts their memory, by
what else runs, by how warm the chip is. Hundreds of samples of one process say nothing about that, so each process
counts once, with its median, and a side needs three (`MIN_RUNS`; ``make bench`` makes them). So advise Georges,
Buytaert and Eeckhout, *Statistically rigorous Java performance evaluation* (2007), and Kalibera and Jones, *Rigorous
benchmarking in reasonable time* (2013): repeat at the highest level that varies, give the ratio with its interval.

**The ratio** is the old time over the new one, so 2 means twice as fast: the ratio of the geometric means of the
processes' medians. **Its 95 % interval** is Welch's: Student's t of the difference of mean logarithms, with the degrees
of freedom of Welch and Satterthwaite, since the two sides need not be equally noisy. That takes the logarithms for
roughly normal; three processes cannot show whether they are.

**The answer** is FASTER or SLOWER if the whole interval lies beyond 1 by more than a factor (`FACTOR`), *and* an exact
rank test (Mann and Whitney's) tells the sides apart, which with three processes a side means that each of one is slower
than each of the other. A rank test and a factor are asv's way. The factor keeps a comparison of hundreds of benchmarks
from crying wolf: with three processes a side whose medians vary by 1 %, one unchanged benchmark in ten thousand becomes
SLOWER at most, and one in three hundred where they vary by 3 % (simulated, for normal and for long-tailed noise; where
processes come in two kinds, a fast and a slow one, it may be one in a hundred). It is SAME if the whole interval lies
within the factor, and UNSURE otherwise: more processes decide (``make bench RUNS=6``).

What no statistics of two files can see: that the machine itself changed between them. The gate compares speed-ups over
a baseline of the same process, which such a change leaves alone.

**What may not be concluded from is not compared.** `metallab.records.believed` decides, as in the report: a process on
a busy machine is left out where another was not. What could be believed in the first file and cannot in the second is
LOST (outputs differ, say), which is a finding like SLOWER; for the gate also a speed-up that is there no more. What
could not be believed in the first file gets no answer: WITHHELD.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from metallab import machine, paths, units
from metallab.records import Record, RecordError, believed, by_name, load
from metallab.timing import BUSY, DRIFT

Answer = Literal["LOST", "SLOWER", "FASTER", "WITHHELD", "UNSURE", "SAME"]

MIN_RUNS = 3
"""Processes that a side needs before anything is said of it."""
FACTOR = 1.02
"""A difference of less than 2 % is not called one."""
GATE_FACTOR = 1.05
"""A gate stops somebody's work: it asks for 5 %."""
RISK = 0.05

# Three processes may agree by accident better than processes do: none is taken to vary by less than 0.1 %.
_LEAST_VARIANCE = 0.001**2


class DifferentMachines(RecordError):
    """Absolute times of unlike machines were to be compared."""


@dataclass(frozen=True)
class Interval:
    """A ratio of times with its 95 % interval; from nothing to infinity where there are too few processes for one."""

    ratio: float
    low: float = 0.0
    high: float = math.inf

    def __str__(self) -> str:
        if not math.isfinite(self.high):
            return f"{units.times(self.ratio)} (no interval)"
        return f"{units.times(self.ratio)} ({units.times(self.low)} to {units.times(self.high)})"


_NO_SPEED = Interval(math.nan)


@dataclass(frozen=True)
class Change:
    """One benchmark in two files: how many times as fast the second is."""

    name: str
    speed: Interval
    answer: Answer
    runs: tuple[int, int]
    """Processes of the first and of the second."""
    why: str = ""
    """Why there is no answer, or what was lost."""

    @property
    def is_finding(self) -> bool:
        """True if the second file is worse: slower, or something could be said of the first and cannot of it."""
        return self.answer in ("LOST", "SLOWER")


def interval(values: Sequence[float]) -> Interval:
    """The geometric mean of one positive number from each process, with its 95 % interval (Student's t of the logs)."""
    logs = [math.log(value) for value in values]
    if len(logs) < 2:
        return Interval(values[0])
    return _interval(math.fsum(logs) / len(logs), math.sqrt(_variance(logs) / len(logs)), len(logs) - 1)


def ratio(before: Sequence[float], after: Sequence[float]) -> Interval:
    """How many times as large the first numbers are, one from each process, with Welch's 95 % interval."""
    sides = [[math.log(value) for value in side] for side in (before, after)]
    mean = math.fsum(sides[0]) / len(before) - math.fsum(sides[1]) / len(after)
    if min(map(len, sides)) < 2:
        return Interval(math.exp(mean))
    parts = [_variance(side) / len(side) for side in sides]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    return _interval(mean, math.sqrt(sum(parts)), freedom)


def answer(before: Sequence[float], after: Sequence[float], factor: float = FACTOR) -> Answer:
    """What may be said of two sides with one time from each process; see the top of this module."""
    speed = ratio(before, after)
    if min(len(before), len(after)) < MIN_RUNS:
        return "UNSURE"
    if 1 / factor <= speed.low and speed.high <= factor:
        return "SAME"
    if not (speed.low > factor or speed.high < 1 / factor) or not _ranks_differ(before, after):
        return "UNSURE"
    return "FASTER" if speed.low > factor else "SLOWER"


def times(before: Iterable[Record], after: Iterable[Record], factor: float = FACTOR) -> list[Change]:
    """Compare the times of the benchmarks that two files share.

    LOST is what could be believed before and cannot afterwards, such as times of outputs that differ now.
    `DifferentMachines` if chip, operating system or framework versions differ or are unknown, or if the device, the
    mode or the question do, or if times are simulated or of fast mode. `RecordError` if the files share nothing.
    """
    return [
        _change(name, old, new, factor, lambda run: run.measurement.median)
        for name, (old, new) in _shared(before, after).items()
    ]


def speed_ups(before: Iterable[Record], after: Iterable[Record], factor: float = GATE_FACTOR) -> list[Change]:
    """Compare each variant's speed-up over the baseline of its own process, then and now.

    A speed-up that was given then, and is withheld now or is not there at all, is ``LOST``. Errors as those of `times`.
    """
    theirs = by_name(after)
    given = {name: runs for name, runs in by_name(before).items() if any(map(has_speed_up, runs))}
    if not given.keys() & theirs.keys():
        raise RecordError("the two files share no speed-up over a baseline")
    return [
        _change(name, runs, _over(runs[0].comparison.baseline, theirs.get(name, [])), factor, _relative_time)
        for name, runs in given.items()
    ]


def assert_reference(records: Sequence[Record]) -> None:
    """`RecordError` unless a gate can hold this machine against a file: asked before minutes of measuring.

    `DifferentMachines` if it is of another machine, or this one has other versions now.
    """
    given = [record for record in records if has_speed_up(record)]
    if not given:
        raise RecordError("it holds no speed-up to hold this machine against; make bench writes such a file")
    if not (believable := [record for record in given if not record.doubt]):
        counts = Counter(record.doubt.kind or record.doubt for record in given)
        doubts = ", ".join(f"{doubt}: {count}" for doubt, count in counts.items())
        raise RecordError(
            f"none of its {len(given)} speed-ups may be concluded from ({doubts}): measure it again, with nothing else "
            "running"
        )
    if different := believable[0].machine.differences(machine.describe()):
        raise DifferentMachines(f"it is not of this machine as it is now (the file's / now: {', '.join(different)})")


def of_lessons(records: Iterable[Record], only: Sequence[str]) -> list[Record]:
    """The records of these lessons, by number (03) or name; all where none is named."""
    return [r for r in records if not only or {r.lesson, r.lesson.split("_")[0]} & set(only)]


def _over(baseline: str, runs: Sequence[Record]) -> list[Record]:
    """Those runs that stand against this baseline."""
    compared = [run for run in runs if run.comparison and run.comparison.baseline == baseline]
    return [run for run in compared if run.comparison.variant != baseline]


def _relative_time(run: Record) -> float:
    """The time of a variant in times of its baseline."""
    return 1 / run.comparison.median


def _change(
    name: str, old: Sequence[Record], new: Sequence[Record], factor: float, time_of: Callable[[Record], float]
) -> Change:
    """One benchmark then and now, by the runs of it that may be believed and a time, or a relative one, of each."""
    if old and new:
        _assert_comparable(old[0], new[0])
    (then, doubt_then), (now, doubt_now) = believed(old), believed(new) if new else ([], "it is not there any more")
    runs = (len(old), len(new))
    if doubt_then:
        return Change(name, _NO_SPEED, "WITHHELD", runs, f"in the first file: {doubt_then}")
    if doubt_now:
        return Change(name, _NO_SPEED, "LOST", runs, doubt_now)
    sides = [[time_of(run) for run in side] for side in (then, now)]
    return Change(name, ratio(*sides), answer(*sides, factor), (len(then), len(now)))


def has_speed_up(run: Record) -> bool:
    """Whether a record holds a speed-up over a baseline, be it to be believed or not."""
    return run.comparison is not None and bool(run.comparison.median)


def _shared(before: Iterable[Record], after: Iterable[Record]) -> dict[str, tuple[list[Record], list[Record]]]:
    theirs = by_name(after)
    shared = {name: (runs, theirs[name]) for name, runs in by_name(before).items() if name in theirs}
    if not shared:
        raise RecordError("the two files share no benchmark")
    return shared


def _assert_comparable(old: Record, new: Record) -> None:
    if different := old.machine.differences(new.machine):
        raise DifferentMachines(
            f"{old.name}: absolute times of unlike machines are not compared ({', '.join(different)})"
        )
    for what in ("device", "mode", "question", "simulated"):
        one, other = getattr(old.measurement, what), getattr(new.measurement, what)
        if one != other:
            raise DifferentMachines(f"{old.name}: {what} differs: {one} / {other}")
    if old.measurement.simulated:
        raise DifferentMachines(f"{old.name}: simulated times are not compared")
    if old.measurement.mode != "full":
        raise DifferentMachines(f"{old.name}: times of {old.measurement.mode} mode are not compared")


def _variance(logs: Sequence[float]) -> float:
    return max(statistics.variance(logs), _LEAST_VARIANCE)


def _interval(mean: float, error: float, freedom: float) -> Interval:
    """The interval of a mean logarithm, by Student's t, as a ratio."""
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, 1 - RISK / 2)) * error
    return Interval(*(math.exp(min(log, 700.0)) for log in (mean, mean - half, mean + half)))  # e^710 is no float


def _ranks_differ(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether an exact rank test tells the sides apart, as surely as so few numbers can."""
    from scipy.stats import mannwhitneyu

    surest = 2 / math.comb(len(before) + len(after), len(before))
    return mannwhitneyu(before, after, method="exact").pvalue <= max(RISK, surest) * (1 + 1e-9)


# --- the command ---


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m metallab.results.compare times A B`` and ``... gate REF [NOW]``; now is the latest of ``make bench``.

    0 if nothing is slower, 1 if something is or was lost, 2 if they cannot be compared, or nothing of the first may be
    concluded from (a busy machine). ``... reference REF`` only tells, by 0 or 2, whether a gate can be held against
    that file here.
    """
    given = _parser().parse_args(arguments)
    if given.command == "reference":
        return _tell_of_reference(given)
    try:
        given.after = given.after or latest()
        before, after = (of_lessons(load(file), given.only) for file in (given.before, given.after))
        changes = given.compare(before, after, given.factor)
    except DifferentMachines as error:
        print(f"{given.command}: {error}", file=sys.stderr)
        _offer_ratios(before, after)
        return 2
    except RecordError as error:
        print(f"{given.command}: {error}", file=sys.stderr)
        return 2
    _show(changes)
    _show_unshared({str(given.before): before, str(given.after): after}, {change.name for change in changes})
    print(_summary(changes, given.factor, given.of))
    _show_doubts([*before, *after])
    if any(change.is_finding for change in changes):
        return 1
    if all(change.answer == "WITHHELD" for change in changes):
        print(f"{given.command}: nothing of {given.before} may be concluded from: measure it again", file=sys.stderr)
        return 2
    if not any(min(change.runs) >= MIN_RUNS for change in changes):
        print(f"{given.command}: a side needs {MIN_RUNS} processes to say more; make bench runs them", file=sys.stderr)
        return 2
    return 0


def _tell_of_reference(given: argparse.Namespace) -> int:
    try:
        assert_reference(of_lessons(load(given.before), given.only))
    except RecordError as error:
        reason = str(error) if str(given.before) in str(error) else f"{given.before}: {error}"
        print(f"gate: {reason}", file=sys.stderr)
        return 2
    return 0


def latest() -> Path:
    """The file that ``make bench`` wrote last, see `paths.latest`. `RecordError` if there is none."""
    files = [path for path in paths.BUILD.glob("bench/*.json") if not path.name.startswith("fast_")]
    if not files:
        raise RecordError("nothing was measured here yet: make bench")
    return paths.latest({path: path.stat().st_mtime for path in files})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m metallab.results.compare", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, compare, factor, of, help_text in (
        ("times", times, FACTOR, "time", "the times of two files of one machine"),
        ("gate", speed_ups, GATE_FACTOR, "speed-up over the baseline", "speed-ups within a process, then and now"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("before", type=Path)
        command.add_argument("after", type=Path, nargs="?" if name == "gate" else None)
        command.add_argument("--only", action="append", default=[], metavar="03", help="only this lesson")
        command.add_argument("--factor", type=_factor, default=factor, help=f"what is called a difference ({factor})")
        command.set_defaults(compare=compare, of=of)
    command = commands.add_parser("reference", help="can a gate be held against this file, on this machine?")
    command.add_argument("before", type=Path)
    command.add_argument("--only", action="append", default=[], metavar="03", help="only this lesson")
    return parser


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan  # which lies in no range
    if not 1 <= factor < 100:
        raise argparse.ArgumentTypeError("a factor is a number from 1 to below 100, such as 1.05 for 5 %")
    return factor


_WORST_FIRST: Sequence[Answer] = ("LOST", "SLOWER", "FASTER", "WITHHELD", "UNSURE", "SAME")


def _show(changes: Sequence[Change]) -> None:
    print(f"{'answer':9}{'ratio (95 % interval)':26}{'processes':11}benchmark")
    for change in sorted(changes, key=lambda change: _WORST_FIRST.index(change.answer)):
        speed = "" if change.speed is _NO_SPEED else change.speed
        name = f"{change.name}: {change.why}" if change.why else change.name
        print(f"{change.answer:9}{speed!s:26}{' and '.join(map(str, change.runs)):11}{name}")


def _show_unshared(files: Mapping[str, Sequence[Record]], shown: set[str]) -> None:
    names = {file: {record.name for record in records} for file, records in files.items()}
    for file, its in names.items():
        for name in sorted(its - set.intersection(*names.values()) - shown):
            print(f"only in {file}: {name}")


def _summary(changes: Sequence[Change], factor: float, of: str) -> str:
    counts = Counter(change.answer for change in changes)
    counted = ", ".join(f"{counts[answer]} {answer}" for answer in _WORST_FIRST if counts[answer])
    return (
        f"{len(changes)} compared by {of}: {counted}. 2 means twice as fast; within a factor of {factor:g} is the same."
    )


def _show_doubts(records: Sequence[Record]) -> None:
    """Say what makes answers doubtful: other programs, a machine that changed its speed."""
    busy = {record.name for record in records if record.measurement.others > BUSY}
    drifted = {record.name for record in records if abs(record.sentinel_drift or 0) > DRIFT}
    if busy:
        print(f"Doubtful: while {len(busy)} of the benchmarks were measured, other programs ran.")
    if drifted:
        print(f"Doubtful: around {len(drifted)} of them the machine's speed moved by more than {DRIFT:.0%}.")


def _offer_ratios(before: Sequence[Record], after: Sequence[Record]) -> None:
    """Each one's own speed-ups, beside each other and without an answer."""
    rows = []
    for name, sides in _shared(before, after).items():
        given = [[run.comparison.median for run in believed(runs)[0] if has_speed_up(run)] for runs in sides]
        if all(given):
            rows.append((name, *(str(interval(side)) for side in given)))
    if not rows:
        return
    print("Each one's own speed-up over its own baseline, first and second; which machine is better is not said:")
    for name, one, other in rows:
        print(f"{one:26}{other:26}{name}")


if __name__ == "__main__":
    sys.exit(main())
