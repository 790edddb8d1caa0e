"""Records as pyperf's JSON, and back: what is read was checked, and every speed-up is computed again."""

from __future__ import annotations

import contextlib
import io
import json
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import pyperf
from msgspec import Meta

from metallab import machine, paths
from metallab.fields import Name, Positive, Samples, Seconds
from metallab.outcomes import Verdict
from metallab.records.record import Compared, Headline, Record, RecordError, by_name
from metallab.timing import Comparison, Reason, pair_samples

SCHEMA = 2
"""The version of the format; it grows when an older reader would misunderstand a newer file."""

OLDER_KEYS = {"doubt": "reason", "withheld": "detail"}
"""Keys of a comparison in files of before 30 November 2026, and what they are called now."""

# limits for the files of strangers
_BYTES_LIMIT = 64 * 2**20
_BENCHMARKS_LIMIT = 1000
_RUNS_LIMIT = 100


# ---- pyperf's structure and ours, by their types -----------------------------------------------------------------


@dataclass
class _Process:
    """A run of pyperf's: one process."""

    values: Samples
    """Samples of a comparison's variants are paired by position."""
    warmups: Annotated[tuple[tuple[Literal[1], Seconds], ...], Meta(min_length=1, max_length=1)]
    """The very first call."""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Benchmark:
    """A benchmark of pyperf's: one run for each process that measured it."""

    runs: Annotated[tuple[_Process, ...], Meta(min_length=1, max_length=_RUNS_LIMIT)]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class _File:
    """pyperf's JSON format, as Metal Lab writes it. Metadata hold for all that is below them."""

    version: Literal["1.0"]
    benchmarks: Annotated[tuple[_Benchmark, ...], Meta(min_length=1, max_length=_BENCHMARKS_LIMIT)]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Metadata:
    """The metadata of a process, its benchmark and its file together."""

    name: Name
    unit: Literal["second"]
    loops: Positive
    metallab: str
    """JSON text: the rest of the record."""
    machine: str
    """JSON text: the machine at that moment."""
    headline: str | None = None
    """JSON text: the page's findings."""


def schema() -> dict[str, Any]:
    """Return the JSON schemas of a file, and of the JSON texts in its metadata."""
    parts = {
        "file": _File,
        "metadata": _Metadata,
        "metallab": Record,
        "machine": machine.Machine,
        "headline": Headline,
    }
    return {name: msgspec.json.schema(part) for name, part in parts.items()}


# ---- writing -----------------------------------------------------------------------------------------------------


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write records to a file, whole or not at all; those of one name become the runs of one benchmark.

    Parameters
    ----------
    path
        The file; its folder is made.
    records
        At least one.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If there are none, or `load` would not accept them.
    OSError
        If the file cannot be written; an earlier one is left as it was.
    """
    path = Path(path)
    benchmarks = by_name(records)
    if not benchmarks:
        raise ValueError(f"{path}: there are no records to write")

    text = _as_text(benchmarks)
    try:
        _parse(path, text)  # what is written today must be readable tomorrow
    except RecordError as error:
        raise ValueError(
            f"nothing is written, because it could not be read back: {error}"
        ) from error
    return put(path, text.encode())


def put(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all. OSError, with what to do, if it cannot be written."""
    try:
        paths.write_atomically(path, content)
    except OSError as error:
        advice = "make room, or name another place, folder= or METALLAB_BUILD"
        raise OSError(
            error.errno, f"{path} cannot be written ({error.strerror}): {advice}"
        ) from error
    return path


def merge(files: Iterable[Path | str], into: Path) -> Path:
    """Merge files into one: equal names become the runs of one benchmark.

    Parameters
    ----------
    files
        Of records.
    into
        The file that is written.

    Raises
    ------
    RecordError, ValueError, OSError
        As `load` and `write`.
    """
    return write(into, [record for file in files for record in load(file)])


def _as_text(benchmarks: Mapping[str, Sequence[Record]]) -> str:
    """Return the text of a file."""
    suite = pyperf.BenchmarkSuite(
        [pyperf.Benchmark(list(map(_as_run, runs))) for runs in benchmarks.values()]
    )
    text = io.StringIO()
    suite.dump(text)
    return text.getvalue()


def _as_run(record: Record) -> pyperf.Run:
    """Return a record as pyperf's run: what pyperf has fields for in these, and the rest as JSON in its metadata."""
    rest = asdict(record)
    for stored_elsewhere in ("name", "machine", "headline"):
        del rest[stored_elsewhere]
    for field_of_pyperf in ("samples", "first_call", "block"):
        del rest["measurement"][field_of_pyperf]

    measured = record.measurement
    metadata = {
        "name": record.name,
        "unit": "second",
        "loops": measured.block,
        "metallab": json.dumps({"schema": SCHEMA, **rest}),
        "machine": record.machine.to_json(),
    }
    if record.headline is not None:
        metadata["headline"] = json.dumps(asdict(record.headline))

    return pyperf.Run(
        list(measured.samples),
        warmups=[(1, measured.first_call)],
        metadata=metadata,
        collect_metadata=False,  # pyperf would describe this process, which may not be the one that measured
    )


# ---- reading -----------------------------------------------------------------------------------------------------


def load(path: Path | str) -> list[Record]:
    """Return the records of a file: benchmark by benchmark, run by run.

    **Every speed-up is computed again** from the samples.

    Parameters
    ----------
    path
        A file that `save`, `write` or `make bench` wrote, on this machine or another one.

    Returns
    -------
    list of Record
        At least one; times are in seconds.

    Raises
    ------
    RecordError
        If the file is missing, damaged or not one of ours, if a benchmark mixes runs of another revision, machine or
        work, or if a speed-up does not follow from its samples.
    """
    path = Path(path)
    try:
        content = paths.read_regular(path, _BYTES_LIMIT + 1, follow=True)
        if len(content) > _BYTES_LIMIT:
            raise RecordError(f"{path}: larger than {_BYTES_LIMIT // 2**20} MiB")
        text = content.decode()
    except FileNotFoundError as error:
        raise RecordError(
            f"{path}: there is no such file; `make run` and `make bench` write results"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {_describe(error)}") from error

    return _parse(path, text)


def _describe(error: BaseException) -> str:
    """Return an error in a line that is safe for a terminal: it may quote a stranger's file."""
    return machine.one_line(str(error))[:300]


def _parse(path: Path, text: str) -> list[Record]:
    """Return the records in a file's text, with speed-ups computed again. `RecordError`, with the path, if it has none.

    Whatever a stranger's file raises becomes a `RecordError` with that reason.
    """
    try:
        file = msgspec.json.decode(text, type=_File)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not a pyperf file: {_describe(error)}") from error

    records: list[Record] = []
    for number, benchmark in enumerate(file.benchmarks):
        try:
            records += _read_benchmark(file.metadata | benchmark.metadata, benchmark.runs)
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordError(
                f"{path}: benchmark {number} is not a record of ours: {_describe(error)}"
            ) from error

    try:
        return _compute_speed_ups(records)
    except (ValueError, OverflowError) as error:  # a moment before the year 1
        raise RecordError(f"{path}: {_describe(error)}") from error


def _read_benchmark(metadata: Mapping[str, Any], processes: Sequence[_Process]) -> list[Record]:
    """Return the records of a benchmark. ValueError if they are of different work."""
    runs = [_read_record({**metadata, **process.metadata}, process) for process in processes]
    if len({_describe_work(run) for run in runs}) > 1:
        raise ValueError("it mixes runs of different work, machines or revisions")
    return runs


def _read_record(metadata: Mapping[str, Any], process: _Process) -> Record:
    """Return a record as the file has it: from pyperf's fields and the JSON texts in the metadata (`_as_run`).

    ValueError and TypeError if it is none of ours.
    """
    stored = msgspec.convert(metadata, _Metadata)
    fields = msgspec.json.decode(stored.metallab, type=dict[str, Any])
    if fields.get("schema") != SCHEMA:
        raise ValueError("it was written by another version of metallab: update, or measure again")

    measurement = msgspec.convert(fields.get("measurement"), dict[str, Any])
    fields["measurement"] = {
        **measurement,
        "samples": process.values,
        "first_call": process.warmups[0][1],
        "block": stored.loops,
    }
    fields["comparison"] = _read_comparison(fields.get("comparison"))
    fields["name"] = stored.name
    fields["machine"] = msgspec.json.decode(stored.machine)
    fields["headline"] = None
    if stored.headline:
        fields["headline"] = msgspec.json.decode(stored.headline)

    record = msgspec.convert(fields, Record)
    return replace(record, machine=_without_foreign_names(record.machine))


def _read_comparison(stored: Any) -> Any:
    """Return a comparison under the names that its keys have now. ValueError for a reason that there is not."""
    if not isinstance(stored, dict):  # None of a lone measurement; msgspec refuses anything else
        return stored

    compared = dict(stored)
    for older, newer in OLDER_KEYS.items():
        if older in compared:
            compared.setdefault(newer, compared.pop(older))

    reason = compared.get("reason")
    if reason is not None and reason not in list(Reason):
        raise ValueError(
            f"reason is {reprlib.repr(reason)}, which is none to withhold a speed-up; "
            f"there are {', '.join(Reason)}: "
            "correct it, or update metallab if the file is of a newer one"
        )
    return compared


def _without_foreign_names(described: machine.Machine) -> machine.Machine:
    """Return a machine without variables and packages that we would not have written: they may be anybody's."""
    variables = (*machine.VARIABLES, *machine.OLDER_VARIABLES)
    environment = {k: v for k, v in described.environment.items() if k in variables}
    versions = {k: v for k, v in described.versions.items() if k in machine.PACKAGES}
    return replace(described, environment=environment, versions=versions)


def _describe_work(run: Record) -> tuple[Any, ...]:
    """Return what the runs of one benchmark have in common."""
    measured, compared, made = run.measurement, run.comparison, run.machine

    names: tuple[Any, ...] = (run.lesson, run.name, measured.name)
    work: tuple[Any, ...] = (measured.question, measured.dtype, measured.size, measured.cold)
    if compared is not None:
        names += (compared.name, compared.variant, compared.baseline)
        work += (compared.role, compared.series)

    place = (measured.device, measured.kind, measured.simulated, measured.mode)
    return names, work, place, made.chip, made.git_revision, tuple(made.versions.items())


# ---- speed-ups are computed, not believed ------------------------------------------------------------------------


def _compute_speed_ups(records: Sequence[Record]) -> list[Record]:
    """Return records with their comparisons computed from the samples. ValueError if one claims another speed-up."""
    runs = {(record.name, record.moment): record for record in records}
    if len(runs) < len(records):
        raise ValueError("the same run is in it twice, or two that were saved within one second")
    return [_compute_speed_up(record, runs) for record in records]


def _compute_speed_up(run: Record, runs: Mapping[tuple[str, datetime], Record]) -> Record:
    """Return a record with its comparison computed from the samples of both sides; a lone measurement as it is.

    ValueError if its baseline of the same moment is not there, or if it claims another speed-up than it computes.

    Parameters
    ----------
    run
        The record.
    runs
        All records of the file, by name and moment.
    """
    claimed = run.comparison
    if claimed is None:
        return run

    prefix = f"{run.lesson}/{claimed.name}/"
    base = runs.get((prefix + claimed.baseline, run.moment))
    if base is None or run.name != prefix + claimed.variant:
        raise ValueError(
            f"{run.name!r} claims to be {prefix + claimed.variant!r} beside {claimed.baseline!r}: not here"
        )

    computed = describe_variant(compare_runs(run, base), claimed.variant)
    if not _is_same_speed_up(computed, claimed):
        raise ValueError(
            f"{run.name!r} claims a speed-up (median, ends) of {_numbers(claimed)}, "
            f"but its samples say {_numbers(computed)}"
        )
    return replace(run, comparison=computed)


def _is_same_speed_up(one: Compared, other: Compared) -> bool:
    """Return whether two speed-ups have the same median and ends, but for rounding."""
    for ours, theirs in (
        (one.median, other.median),
        (one.low, other.low),
        (one.high, other.high),
    ):
        if ours is None or theirs is None:
            if ours is not theirs:
                return False
        elif not math.isclose(ours, theirs, rel_tol=1e-6):
            return False
    return True


def _numbers(compared: Compared) -> str:
    """Return the numbers of a speed-up, for a message."""
    numbers = (compared.median, compared.low, compared.high)
    return ", ".join("none" if number is None else f"{number:.4g}" for number in numbers)


def compare_runs(run: Record, base: Record) -> Comparison:
    """Return the comparison of a variant with its baseline, from their samples.

    Parameters
    ----------
    run
        Of the variant; it has a comparison.
    base
        Of its baseline, in the same process.

    Raises
    ------
    ValueError
        If their samples cannot be paired.
    """
    claimed, ours, theirs = run.comparison, run.measurement, base.measurement
    assert claimed is not None
    if (ours.n, ours.question) != (theirs.n, theirs.question):
        raise ValueError(f"{run.name!r} cannot be compared: its baseline has other samples")

    compared = pair_samples(
        {claimed.baseline: theirs, claimed.variant: ours},
        baseline=claimed.baseline,
        name=claimed.name,
        parity=claimed.parity,
    )
    stated = claimed.withheld
    # what was withheld for its outputs, or as simulated, has no ratio; for a reason that may pass it has one
    has_ratio = stated is None or claimed.median is not None
    return replace(
        compared,
        paired=compared.paired if has_ratio else {},
        refused={claimed.variant: stated} if stated else {},
        sentinels=(),  # those that are open now watch other work; what the run's own have found is in ``stated``
        series=claimed.series,
        roles={claimed.variant: claimed.role},
    )


def describe_variant(comparison: Comparison, variant: str) -> Compared:
    """Return what a file keeps of a comparison for one of its variants: its outcome, and median and ends if it has any.

    Of the baseline the outcome says only that it is one.
    """
    compared = Compared(
        name=comparison.name,
        variant=variant,
        baseline=comparison.baseline,
        outcome="baseline",
        parity=machine.one_line(comparison.parity),
        role=comparison.roles.get(variant, ""),
        series=comparison.series,
    )
    if variant == comparison.baseline:
        return compared

    answer = comparison.answers[variant]
    compared = replace(compared, outcome=answer.outcome)
    withheld = answer.withheld
    if withheld is not None:
        # `Reason.OTHER` has no name in a file: its words alone say it
        reason = None if withheld.reason is Reason.OTHER else withheld.reason
        compared = replace(compared, reason=reason, detail=machine.one_line(withheld.detail))

    # also of a speed-up that is withheld: a later reader may need it
    ratio = comparison.paired.get(variant)
    if ratio is not None:
        high = ratio.high if ratio.has_interval else None
        compared = replace(compared, median=ratio.median, low=ratio.low, high=high)
    return compared


# ---- what a stranger's file says besides -------------------------------------------------------------------------


def find_foreign_texts(path: Path, runs: Iterable[Record]) -> list[str]:
    """Return the names and texts of a file that `write` would not have written for its records.

    Parameters
    ----------
    path
        A file that `load` has read.
    runs
        What it read.
    """
    ours = {*_texts(json.loads(_as_text(by_name(runs)))), *get_args(Verdict), *OLDER_KEYS}
    # as pairs, since of a name that comes twice each value counts
    given = json.loads(path.read_text("utf-8"), object_pairs_hook=list)
    return [text for text in dict.fromkeys(_texts(given)) if text not in ours]


def _texts(value: Any) -> Iterator[str]:
    """Yield every name and text in a JSON value, also in the JSON texts that it holds."""
    if isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value, object_pairs_hook=list)

    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.items()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
