"""Results as files: pyperf's JSON, with the provenance of every number inside.

`python -m pyperf show`, `stats` and `compare_to` read them. A benchmark of pyperf holds one run for each process that
measured it. What pyperf has no field for is kept as one JSON text in a run's metadata under ``metallab``, and the
machine's description under ``machine``; pyperf's metadata takes no lists.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import math
import os
import re
import reprlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyperf

from metallab import machine, mode, paths
from metallab.device import Accelerator
from metallab.mode import MODES
from metallab.timing import Comparison, Measurement, Sentinel, compare_samples, doubt, passes

SCHEMA = 1

# Files come from strangers: more than any honest one has is not read.
_BYTES_LIMIT = 64 * 2**20
_BENCHMARKS_LIMIT = 1000
_RUNS_LIMIT = 100


class RecordError(ValueError):
    """A results file that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Compared:
    """What a comparison said of one of its variants."""

    name: str
    variant: str
    baseline: str
    verdict: str
    """``baseline``, ``faster``, ``slower``, ``same``, ``inconclusive`` or ``withheld``."""
    median: float | None = None
    """The speed-up over the baseline with its 95 % interval; None for the baseline, and where outputs differ or a place
    is simulated. A speed-up that was withheld for another reason is kept, and is not to be shown: see `Record.doubt`.
    """
    low: float | None = None
    high: float | None = None
    """None where too few pairs give no upper end."""
    withheld: str = ""
    """Why no speed-up is given; empty where one is."""
    parity: str = ""
    """What was checked before any time was compared."""


@dataclass(frozen=True)
class Record:
    """One measurement of one process, as it stands in a file."""

    lesson: str
    name: str
    """``lesson/measurement`` or ``lesson/comparison/variant``. Records of one name are of one process each."""
    taken: str
    """When, as ISO 8601 in UTC."""
    measurement: Measurement
    comparison: Compared | None
    sentinel_drift: float | None
    """How much longer a fixed piece of work took afterwards than before: 0.1 is 10 %. None if none was timed."""
    machine: machine.Machine

    @property
    def short_name(self) -> str:
        """The name within its lesson."""
        return self.name.removeprefix(f"{self.lesson}/")

    @property
    def moment(self) -> datetime:
        """``taken`` as a time with its zone: UTC where it names none."""
        given = datetime.fromisoformat(self.taken)
        return given if given.tzinfo else given.replace(tzinfo=UTC)

    @property
    def doubt(self) -> str:
        """Why no conclusion may be drawn from it; empty if nothing speaks against it.

        What the page withheld when it was measured (outputs that differ, a drift), or what the measurement itself says,
        by `metallab.timing.doubt`: the rule is one for pages and for whoever reads the file.
        """
        compared = self.comparison
        if compared and (compared.withheld or compared.verdict == "withheld"):
            return compared.withheld or "no reason is given"
        return doubt(self.measurement)


def save(
    lesson: str,
    *results: Measurement | Comparison,
    on: Accelerator,
    sentinel: Sentinel | None = None,
    folder: Path | None = None,
) -> Path:
    """Write a lesson's results, and return the file: ``build/<mode>-<device>/results/<lesson>.json``.

    ``on`` is the device that the page ran on, and names the folder; ``sentinel`` is for results that were not compared
    in a sentinel's block, which know theirs. The file appears whole or not at all: a full disk
    or an interruption leaves an earlier one as it was. ValueError as `gather`, or if a value could not be read back.
    """
    records = gather(lesson, *results, sentinel=sentinel)
    run = _folder(records[0].measurement.mode, on)
    path = write((folder or run / "results") / f"{lesson}.json", records)
    if folder is None and not os.environ.get("METALLAB_OUT"):  # by hand: whoever names a folder notes its run
        paths.note(run)
    return path


def gather(lesson: str, *results: Measurement | Comparison, sentinel: Sentinel | None = None) -> list[Record]:
    """A lesson's results as records of this process, with the machine as it is now.

    ValueError if there is nothing, the lesson cannot name a file, or a measurement's name comes twice.
    """
    if not _LESSON.fullmatch(lesson):
        raise ValueError(f"{lesson!r} cannot name a file; a lesson's name has letters, digits, '_', '-' and '.'")
    rows = [row for result in results for row in _rows(lesson, result)]
    if not rows:
        raise ValueError(f"{lesson}: nothing to save; give save() the measurements and comparisons of the page")
    names = [name for name, *_ in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{sorted(twice)} stand twice among the results; give each measurement its own name")
    described, of_page = machine.describe(), sentinel.drift if sentinel else None
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    return [
        Record(lesson, name, taken, measured, compared, of_page if drift is None else drift, described)
        for name, measured, compared, drift in rows
    ]


def run_folder(on: Accelerator) -> Path:
    """Where a page on a device puts the files that it makes: ``build/<mode>-<device>``."""
    return _folder(mode.current(), on)


def _folder(of_mode: str, on: Accelerator) -> Path:
    return paths.run_folder(of_mode, "sim" if on.simulated else on.kind)


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write records to a file, whole or not at all.

    Those of one name become the runs of one benchmark. ValueError if they could not be read back as they are, or if
    runs do not belong together: see `load`.
    """
    path, benchmarks = Path(path), by_name(records)
    if not benchmarks:
        raise ValueError(f"{path}: there are no records to write")
    text = io.StringIO()
    pyperf.BenchmarkSuite([pyperf.Benchmark(list(map(_run, runs))) for runs in benchmarks.values()]).dump(text)
    try:
        _parse(path, text.getvalue())  # what is written today must be readable tomorrow
    except RecordError as error:
        raise ValueError(f"nothing is written, because it could not be read back: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as folder:
        part = Path(folder) / path.name
        part.write_text(text.getvalue(), encoding="utf-8")
        os.replace(part, path)
    return path


def load(path: Path | str) -> list[Record]:
    """The records of a file: benchmark by benchmark, run by run.

    **Every speed-up is computed again** from the samples, here and nowhere else, so that whoever reads a file is given
    what its numbers say. `RecordError` if it is missing, damaged or not one of ours, if a benchmark mixes runs: of
    another revision, of another machine or of another state of it; or holds the same run twice; or if the file claims
    a speed-up that does not follow from its samples.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise RecordError(f"{path}: there is no such file; `make run` writes results under build/")
        if not path.is_file() or path.stat().st_size > _BYTES_LIMIT:
            raise RecordError(f"{path}: not a file of at most {_BYTES_LIMIT // 2**20} MiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {_reason(error)}") from error
    return _parse(path, text)


def believed(runs: Sequence[Record]) -> tuple[list[Record], str]:
    """The runs of one benchmark that conclusions may be drawn from; or none, and the gravest reason why.

    A process whose machine was busy or drifted is left out where another's was not; any other doubt silences all.
    """
    doubts = [run.doubt for run in runs]
    sound = [run for run, doubtful in zip(runs, doubts, strict=True) if not doubtful]
    lasting = sorted((reason for reason in doubts if reason and not passes(reason)), key=_gravity)
    if lasting or not sound:
        return [], (lasting or doubts)[0]
    return sound, ""


_GRAVEST_FIRST = ("outputs differ", "simulated", "fast mode")


def _gravity(reason: str) -> int:
    kind = reason.split(":", 1)[0]
    return _GRAVEST_FIRST.index(kind) if kind in _GRAVEST_FIRST else len(_GRAVEST_FIRST)


def merge(files: Iterable[Path | str], into: Path) -> Path:
    """One file from several: what has one name in several of them becomes the runs of one benchmark.

    Errors as those of `load` and `write`.
    """
    return write(into, [record for file in files for record in load(file)])


def by_name(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs of each benchmark, in the order given."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.name, []).append(record)
    return found


_Row = tuple[str, Measurement, Compared | None, float | None]
"""Name, times, what a comparison said, and the drift that a sentinel saw around it."""


def _rows(lesson: str, result: Measurement | Comparison) -> list[_Row]:
    if isinstance(result, Measurement):
        return [(f"{lesson}/{result.name}", result, None, None)]
    return [
        (f"{lesson}/{result.name}/{variant}", measured, _compared(result, variant), result.drift)
        for variant, measured in result.measurements.items()
    ]


def _compared(comparison: Comparison, variant: str) -> Compared:
    named = {"name": comparison.name, "variant": variant, "baseline": comparison.baseline}
    named["parity"] = machine.one_line(comparison.parity)
    if variant == comparison.baseline:
        return Compared(**named, verdict="baseline")
    reason, ratio = comparison.withheld.get(variant, ""), comparison.paired.get(variant)
    named["withheld"] = machine.one_line(reason)
    if ratio is None:
        return Compared(**named, verdict="withheld")
    high = ratio.high if math.isfinite(ratio.high) else None
    ends = {"median": ratio.median, "low": ratio.low, "high": high}
    return Compared(**named, verdict="withheld" if reason else ratio.verdict, **ends)


def _run(record: Record) -> pyperf.Run:
    measured = record.measurement
    about = {
        "schema": SCHEMA,
        "lesson": record.lesson,
        "taken": record.taken,
        "sentinel_drift": record.sentinel_drift,
        "comparison": asdict(record.comparison) if record.comparison else None,
        **{key: value for key, value in asdict(measured).items() if key not in ("samples", "first_call", "block")},
    }
    metadata = {
        "name": record.name,
        "unit": "second",
        "loops": measured.block,
        "metallab": json.dumps(about),
        "machine": record.machine.to_json(),
    }
    first = [(1, measured.first_call)]
    return pyperf.Run(list(measured.samples), warmups=first, metadata=metadata, collect_metadata=False)


def _reason(error: BaseException) -> str:
    """Why something failed, short enough and safe for a terminal: the text may stem from a stranger's file."""
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return machine.one_line(text)[:300]


_FAULTS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""What pyperf, json and the rules below raise on a file that is not as it should be."""


def _parse(path: Path, text: str) -> list[Record]:
    try:
        benchmarks = _json(text)["benchmarks"]
        if len(benchmarks) > _BENCHMARKS_LIMIT:  # pyperf's time goes with the square
            raise ValueError(f"{len(benchmarks)} benchmarks, more than the {_BENCHMARKS_LIMIT} allowed")
        if any(len(benchmark["runs"]) > _RUNS_LIMIT for benchmark in benchmarks):
            raise ValueError(f"a benchmark has more than the {_RUNS_LIMIT} runs allowed")
        suite = pyperf.BenchmarkSuite.loads(text)
    except _FAULTS as error:
        raise RecordError(f"{path}: not a pyperf file: {_reason(error)}") from error
    found = []
    for benchmark in suite.get_benchmarks():
        try:
            runs = [_record(run) for run in benchmark.get_runs()]
            _assert_one_benchmark(runs)
        except _FAULTS as error:
            name = reprlib.repr(benchmark.get_name())
            raise RecordError(f"{path}: {name} is not a record of ours: {_reason(error)}") from error
        found += runs
    runs = {(record.name, record.taken): record for record in found}
    try:
        return [_computed(record, runs) for record in found]
    except _FAULTS as error:
        raise RecordError(f"{path}: {_reason(error)}") from error


def _computed(run: Record, runs: Mapping[tuple[str, str], Record]) -> Record:
    """A record with what is said of its comparison computed from the samples, as `gather` does where they are taken.

    What it was refused for (outputs that differ) is kept. ValueError if a file claims anything else.
    """
    claimed = run.comparison
    if claimed is None:
        return run
    named = f"{run.lesson}/{claimed.name}/"
    if run.name != named + claimed.variant:
        raise ValueError(f"{run.name!r} claims to be {named + claimed.variant!r}")
    if (claimed.variant == claimed.baseline) != (claimed.verdict == "baseline"):
        raise ValueError(f"{run.name!r} claims to be the baseline, or is it and claims a verdict")
    if claimed.verdict == "baseline" and claimed.withheld:
        raise ValueError(f"{run.name!r} is the baseline, of which nothing can be withheld")
    base = runs.get((named + claimed.baseline, run.taken))
    if base is None:
        raise ValueError(f"{run.name!r} is compared with {claimed.baseline!r}, which the file does not hold")
    said = _compared(_comparison_of(run, base), claimed.variant)
    ours, theirs = ((each.median, each.low, each.high) for each in (said, claimed))
    if not _alike(ours, theirs):
        ours, theirs = ("none" if each.median is None else f"{each.median:.4g}" for each in (said, claimed))
        if ours == theirs:
            raise ValueError(f"{run.name!r} claims another interval of its speed-up than its samples say")
        raise ValueError(f"{run.name!r} claims a speed-up of {theirs}, but its samples say {ours}")
    return replace(run, comparison=said)


def _comparison_of(run: Record, base: Record) -> Comparison:
    """A variant beside its baseline, as `metallab.timing` compares samples that belong together."""
    claimed, ours, theirs = run.comparison, run.measurement, base.measurement
    if (ours.n, ours.question) != (theirs.n, theirs.question):
        raise ValueError(
            f"{run.name!r} cannot be compared: {ours.n} samples of {ours.question}, but {theirs.n} of "
            f"{theirs.question} of its baseline"
        )
    sides = {claimed.baseline: theirs, claimed.variant: ours}
    made = compare_samples(sides, baseline=claimed.baseline, name=claimed.name, parity=claimed.parity)
    reason = claimed.withheld or ("no reason is given" if claimed.verdict == "withheld" else "")
    paired = {} if reason and claimed.median is None else made.paired
    # no sentinel that is open now has to do with it
    return replace(made, paired=paired, refused={claimed.variant: reason} if reason else {}, watches=())


def _alike(ours: Sequence[float | None], theirs: Sequence[float | None]) -> bool:
    """Whether two speed-ups with their intervals are the same, but for the last digits; None is like None alone."""
    pairs = zip(ours, theirs, strict=True)
    return all(a is b if None in (a, b) else math.isclose(a, b, rel_tol=1e-6) for a, b in pairs)


def _record(run: pyperf.Run) -> Record:
    metadata = run.get_metadata()
    about = _json(metadata["metallab"])
    if not isinstance(about, dict) or about.pop("schema", None) != SCHEMA:
        raise ValueError("it was written by another version of metallab")
    if metadata.get("unit") != "second":
        raise ValueError("it must be in seconds")
    about |= {"samples": list(run.values), "first_call": run.warmups[0][1], "block": metadata["loops"]}
    about |= {"record": metadata["name"]}
    _check(about, _ABOUT | _MEASURED)
    if "simulated" in about["device"].lower() and not about["simulated"]:
        raise ValueError("its device is called simulated, and it is not marked as such")
    if about["comparison"] is not None:
        _check(about["comparison"], _COMPARED)
    measured = {key: about[key] for key in _MEASURED} | {"samples": tuple(about["samples"])}
    return Record(
        lesson=about["lesson"],
        name=about["record"],
        taken=about["taken"],
        measurement=Measurement(**measured),
        comparison=about["comparison"] and Compared(**about["comparison"]),
        sentinel_drift=about["sentinel_drift"],
        machine=_machine(metadata["machine"]),
    )


@functools.lru_cache(maxsize=64)  # hundreds of records have the same
def _machine(text: str) -> machine.Machine:
    return machine.Machine.from_json(text)


def _assert_one_benchmark(runs: Sequence[Record]) -> None:
    """ValueError if these are not runs of the same work, in one state of code and machine, each its own."""
    if len({run.moment for run in runs}) < len(runs):  # one moment can be written in many ways
        raise ValueError("it holds the same run twice, or two that were saved within one second")
    for one, other in itertools.combinations(runs, 2):
        if one.machine is not other.machine and (different := _changed(one.machine, other.machine)):
            raise ValueError(f"it mixes runs: {different} is not the same in all of them")
        if _work(one) != _work(other):
            raise ValueError("it mixes runs of different work: lesson, names, question, device or mode differ")


def _changed(one: machine.Machine, other: machine.Machine) -> str | None:
    """What a machine, its settings or the code have no longer in common; the load may change, unknown fits all."""
    for field in dataclasses.fields(machine.Machine):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name != "load_average" and ours != theirs and None not in (ours, theirs):
            return field.name
    return None


def _work(run: Record) -> tuple[Any, ...]:
    measured, compared = run.measurement, run.comparison
    names = (run.lesson, measured.name, compared and (compared.name, compared.variant, compared.baseline))
    return *names, measured.question, measured.device, measured.simulated, measured.mode


def _json(text: str) -> Any:
    """JSON proper: Python's own reader lets NaN and Infinity pass, and of a name that comes twice takes the last."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(f"an object has one of these names twice: {reprlib.repr([name for name, _ in pairs])}")
        return found

    return json.loads(text, parse_constant=refuse, object_pairs_hook=distinct)


_Rule = tuple[str, Callable[[Any], Any]]


def _check(given: Mapping[str, Any], rules: Mapping[str, _Rule]) -> None:
    """ValueError unless the fields are those of the rules and every value is accepted."""
    if not isinstance(given, Mapping) or (wrong := sorted(given.keys() ^ rules.keys())):
        raise ValueError("it has not the fields of a record" + (f": {wrong[0]!r}" if isinstance(given, dict) else ""))
    for name, (kind, accepts) in rules.items():
        if not accepts(given[name]):
            raise ValueError(f"{name} must be {kind}, not {reprlib.repr(given[name])}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= machine.TEXT_LIMIT and value.isprintable()


def _is_name(value: Any) -> bool:
    return _is_text(value) and value.strip() == value != ""


def _is_duration(value: Any) -> bool:
    """Seconds: a clock's step over the largest block is not below, a machine's life not above."""
    return type(value) in (int, float) and 1e-18 < value < 1e9


def _is_ratio(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < 1e27)


_LESSON = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NAME: _Rule = ("a name of printable characters", _is_name)
_TEXT: _Rule = ("one line of text", _is_text)
_DURATION: _Rule = ("a duration in seconds", _is_duration)
_RATIO: _Rule = ("a ratio of times, or nothing", _is_ratio)
_FLAG: _Rule = ("true or false", lambda value: isinstance(value, bool))
_VERDICTS = ("baseline", "faster", "slower", "same", "inconclusive", "withheld")
_ABOUT: dict[str, _Rule] = {
    "record": _NAME,
    "lesson": ("a lesson's name", lambda value: isinstance(value, str) and _LESSON.fullmatch(value)),
    "taken": ("a time in ISO 8601", lambda value: _is_name(value) and datetime.fromisoformat(value)),
    "sentinel_drift": (
        "a drift above -1, or nothing",
        lambda value: value is None or (type(value) in (int, float) and -1 < value < 1e27),
    ),
    "comparison": ("an object, or nothing", lambda value: value is None or isinstance(value, dict)),
}
_MEASURED: dict[str, _Rule] = {
    "name": _NAME,
    "question": ("'latency' or 'throughput'", lambda value: value in ("latency", "throughput")),
    "samples": ("durations in seconds", lambda value: value and all(map(_is_duration, value))),
    "first_call": _DURATION,
    "block": ("a number of calls", lambda value: type(value) is int and 0 < value < 2**53),
    "warmup_calls": ("a number of calls", lambda value: type(value) is int and 0 <= value < 2**53),
    "stop_reason": _TEXT,
    "mode": (f"one of {', '.join(MODES)}", lambda value: value in MODES),
    "device": _NAME,
    "simulated": _FLAG,
    "others": ("a number of cores", lambda value: type(value) in (int, float) and 0 <= value < 1e6),
}
_COMPARED: dict[str, _Rule] = {
    "name": _NAME,
    "variant": _NAME,
    "baseline": _NAME,
    "verdict": (f"one of {', '.join(_VERDICTS)}", lambda value: value in _VERDICTS),
    "median": _RATIO,
    "low": _RATIO,
    "high": _RATIO,
    "withheld": _TEXT,
    "parity": _TEXT,
}
