"""Results as files: pyperf's JSON, with the provenance of every number inside.

`python -m pyperf show`, `stats` and `compare_to` read them. A benchmark of pyperf holds one run for each process that
measured it. What pyperf has no field for is kept as JSON texts in a run's metadata: a `Record` under ``metallab``, the
machine's description under ``machine``, the page's findings under ``headline``.

**The classes are the schema**: `Record`, `Compared` and `Headline` here, `metallab.timing.Measurement`,
`metallab.machine.Machine`. msgspec checks them: a new field with a default and a type of `metallab.fields` is written,
read back and in the published schema (``python -m metallab.results.check_results --schema``) without another line.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import pyperf
from msgspec import Meta

from metallab import device, figure_words, isolated, machine, mode, paths, wording
from metallab.device import Device
from metallab.fields import (
    SENTENCE_LIMIT,
    Drift,
    LessonName,
    Line,
    Name,
    Positive,
    RatioValue,
    Samples,
    Seconds,
    Sentence,
)
from metallab.outcomes import Verdict
from metallab.timing import (
    Answer,
    Comparison,
    Measurement,
    Ratio,
    Reason,
    Withheld,
    choose_sampling,
    pair_samples,
    why_withheld,
)

SCHEMA = 2
"""The version of the format; it grows when an older reader would misunderstand a newer file."""

# limits for the files of strangers
_BYTES_LIMIT = 64 * 2**20
_BENCHMARKS_LIMIT = 1000
_RUNS_LIMIT = 100
PICTURE_BYTES = 4 * 2**20
"""What a page's picture may have, at most."""


class RecordError(ValueError):
    """A results file that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Compared:
    """The result of a comparison for one of its variants."""

    name: Name
    variant: Name
    baseline: Name
    outcome: Literal["baseline", Verdict]
    median: RatioValue | None = None
    """The speed-up over the baseline with its 95 % interval; None for the baseline, where outputs differ, and of a
    simulated device. A speed-up that was withheld for another reason is kept: see `Record.withheld`."""
    low: RatioValue | None = None
    high: RatioValue | None = None
    """None where too few pairs give no upper end."""
    doubt: Reason | None = None
    """Why no speed-up is given; None where one is, and for a reason that only ``withheld`` says."""
    withheld: Line = ""
    """The detail of the reason."""
    parity: Line = ""
    """What was checked before any time was compared."""
    role: Line = ""
    """What the variant is on any machine, ``GPU, float16``; empty if that is its name."""
    series: Line = ""
    """The name of comparisons that differ in size only, with n for the size: ``matrix product, n``."""


PictureName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.png$")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Headline:
    """A page's findings: up to three sentences and a picture."""

    sentences: Annotated[tuple[Sentence, ...], Meta(min_length=1, max_length=3)]
    picture: PictureName | None = None
    """The PNG beside the file of results. A page gives a figure of matplotlib, or the path of a PNG."""
    alternative_text: Line = ""
    """The picture in words; of a figure they are made (`figure_words.describe_figure`)."""
    sha256: Digest | None = None
    """Of the picture."""


@dataclass(frozen=True)
class Record:
    """One measurement of one process."""

    lesson: LessonName
    name: Name
    """``lesson/measurement`` or ``lesson/comparison/variant``. Records of one name are of one process each."""
    taken: Name
    """When, as ISO 8601 in UTC."""
    measurement: Measurement
    comparison: Compared | None
    sentinel_drift: Drift | None
    """How much longer a fixed piece of work on the page's device took after the comparison than before it: 0.1 is 10 %.
    None if nobody watched. In files of before 29 November 2026 it may be that of the whole page, as ``page_drift``."""
    machine: machine.Machine
    headline: Headline | None = None
    """That of its page."""
    page_drift: Drift | None = None
    """The same of a fixed piece of work on the CPU around the whole page, by `make bench`. It withholds nothing,
    because the pairs of one round share the drift; the report advises to run the page again."""

    @property
    def moment(self) -> datetime:
        """``taken`` as a time with its zone: UTC where it names none."""
        given = datetime.fromisoformat(self.taken)
        return given if given.tzinfo else given.replace(tzinfo=UTC)

    @property
    def withheld(self) -> Withheld | None:
        """Why no conclusion may be drawn from it; None if nothing speaks against one.

        What the page withheld when it was measured, else what `metallab.timing.why_withheld` says of the measurement
        and of the sentinel around it.
        """
        stated = self.comparison and _stated_reason(self.comparison)
        return stated or why_withheld(self.measurement, drift=self.sentinel_drift)

    @property
    def answer(self) -> Answer | None:
        """The speed-up of its comparison, or why there is none; None for a baseline and where nothing was compared."""
        compared = self.comparison
        if compared is None or compared.outcome == "baseline":
            return None
        if withheld := self.withheld:
            return Answer(compared.variant, withheld)

        high = math.inf if compared.high is None else compared.high
        ratio = Ratio(
            compared.variant,
            compared.baseline,
            compared.median,
            compared.low,
            high,
            n=self.measurement.n,
            sampling=choose_sampling(self.measurement.cold),
        )
        return Answer(compared.variant, ratio)

    @property
    def has_lost_its_speed_up(self) -> bool:
        """True if a speed-up is withheld for a reason that another run may be without: a busy or drifting machine."""
        answer = self.answer
        return bool(answer and answer.withheld and answer.withheld.is_transient)


def save(
    lesson: str,
    *results: Measurement | Comparison,
    on: Device,
    headline: Headline | None = None,
    folder: Path | None = None,
) -> Path:
    """Write a lesson's results, and return the file: ``build/<mode>-<device>/results/<lesson>.json``.

    A program calls it; of a notebook the results are saved after each cell (`metallab.session`).

    Parameters
    ----------
    lesson
        The page's name.
    *results
        What it measured.
    on
        The device that the page ran on, which names the folder.
    headline
        What the page found; its picture is written beside the file.
    folder
        Where to write instead.

    Raises
    ------
    ValueError
        As `gather`, or if a value could not be read back.
    OSError
        If the file cannot be written; an earlier one is left as it was.
    """
    records = gather(lesson, *results)
    folder = folder or run_folder(on, records[0].measurement.mode) / "results"
    return _store(folder / f"{lesson}.json", records, headline)


def save_page(
    lesson: str, results: Sequence[Measurement | Comparison], headline: Headline | None
) -> Path:
    """Write the results of a page so far, as `save`, in the folder of the device that the page picked first.

    Parameters
    ----------
    lesson
        The page's name.
    results
        What it measured; a page that picked no device ran on that of the first.
    headline
        What the page found, if it has found it yet.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError, OSError
        As `save`.
    """
    records = gather(lesson, *results)
    first = records[0].measurement
    if device.picked:
        folder = run_folder(device.picked[0], first.mode)
    else:
        folder = paths.run_folder(first.mode, "sim" if first.simulated else first.kind)
    return _store(folder / "results" / f"{lesson}.json", records, headline)


def _store(path: Path, records: list[Record], headline: Headline | None) -> Path:
    """Write records, with the headline in each of them and its picture beside the file; return the file."""
    if headline:
        kept = _with_picture_beside(path, headline)
        records = [replace(record, headline=kept) for record in records]
    return write(path, records)


def gather(lesson: str, *results: Measurement | Comparison) -> list[Record]:
    """Return a lesson's results as records of this process, with the machine as it is now.

    ValueError if there is nothing, the lesson cannot name a file, or a measurement's name comes twice.
    """
    if not re.match(_LESSON.pattern, lesson):
        raise ValueError(
            f"{lesson!r} cannot name a file; a lesson's name has letters, digits, '_', '-' and '.'"
        )
    rows = [row for result in results for row in _rows(lesson, result)]
    if not rows:
        raise ValueError(
            f"{lesson}: nothing to save; give save() the measurements and comparisons of the page"
        )
    names = [name for name, *_ in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(
            f"{sorted(twice)} stand twice among the results; give each measurement its own name"
        )
    described = machine.describe()
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    return [
        Record(lesson, name, taken, measured, compared, drift, described)
        for name, measured, compared, drift in rows
    ]


def run_folder(on: Device, of_mode: str = "") -> Path:
    """Return the folder where a page on a device puts the files that it makes: ``build/<mode>-<device>``."""
    return paths.run_folder(of_mode or mode.current(), "sim" if on.simulated else on.kind)


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write records to a file, whole or not at all; those of one name become the runs of one benchmark.

    ValueError if `load` would not accept them.
    """
    path, benchmarks = Path(path), by_name(records)
    if not benchmarks:
        raise ValueError(f"{path}: there are no records to write")
    text = _as_text(benchmarks)
    try:
        _parse(path, text)  # what is written today must be readable tomorrow
    except RecordError as error:
        raise ValueError(
            f"nothing is written, because it could not be read back: {error}"
        ) from error
    return _put(path, text.encode())


def _as_text(benchmarks: Mapping[str, Sequence[Record]]) -> str:
    text = io.StringIO()
    pyperf.BenchmarkSuite(
        [pyperf.Benchmark(list(map(_run, runs))) for runs in benchmarks.values()]
    ).dump(text)
    return text.getvalue()


def foreign(path: Path, runs: Iterable[Record]) -> list[str]:
    """Return the names and texts of a file that `write` would not have written for the records that `load` read."""
    ours = {*_texts(json.loads(_as_text(by_name(runs)))), *get_args(Verdict)}
    given = json.loads(
        path.read_text("utf-8"), object_pairs_hook=list
    )  # of a name that comes twice each value
    return [text for text in dict.fromkeys(_texts(given)) if text not in ours]


def _texts(value: Any) -> Iterator[str]:
    """Yield every name and text in a JSON value, also in the JSON texts that it holds."""
    if isinstance(value, str) and value.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value, object_pairs_hook=list)
    if isinstance(value, str):
        yield value
    for each in (
        value.items()
        if isinstance(value, dict)
        else value
        if isinstance(value, list | tuple)
        else ()
    ):
        yield from _texts(each)


def _put(path: Path, content: bytes) -> Path:
    try:
        paths.write_atomically(path, content)
    except OSError as error:
        advice = "make room, or name another place, folder= or METALLAB_BUILD"
        raise OSError(
            error.errno, f"{path} cannot be written ({error.strerror}): {advice}"
        ) from error
    return path


def _with_picture_beside(path: Path, headline: Headline) -> Headline:
    """Write a headline's picture beside a file, and return the headline as the file keeps it. ValueError for others."""
    if isinstance(headline.sentences, str) or not 1 <= len(headline.sentences) <= 3:
        raise ValueError(f"a headline has one to three sentences, not {headline.sentences!r}")
    sentences, picture = tuple(map(_shortened, headline.sentences)), headline.picture
    if picture is None or isinstance(picture, isolated.Skipped):
        return Headline(sentences)
    words = headline.alternative_text
    if isinstance(picture, (str, Path)):
        content = Path(picture).read_bytes()
    else:
        words = words or figure_words.describe_figure(picture)
        picture.savefig(drawn := io.BytesIO(), format="png")
        content = drawn.getvalue()
    if not words or not content.startswith(b"\x89PNG") or len(content) > PICTURE_BYTES:
        most = PICTURE_BYTES // 2**20
        raise ValueError(
            f"a headline's picture is a PNG of at most {most} MiB with words for it: alternative_text="
        )
    file = _put(path.with_suffix(".png"), content)
    return Headline(
        sentences, file.name, machine.one_line(words), hashlib.sha256(content).hexdigest()
    )


def load(path: Path | str) -> list[Record]:
    """Return the records of a file: benchmark by benchmark, run by run.

    **Every speed-up is computed again** from the samples. `RecordError` if the file is missing, damaged or not one of
    ours, if a benchmark mixes runs of another revision, machine or work, or if a speed-up does not follow from its
    samples.
    """
    path = Path(path)
    try:
        if len(content := paths.read_regular(path, _BYTES_LIMIT + 1, follow=True)) > _BYTES_LIMIT:
            raise RecordError(f"{path}: larger than {_BYTES_LIMIT // 2**20} MiB")
        text = content.decode()
    except FileNotFoundError as error:
        raise RecordError(
            f"{path}: there is no such file; `make run` and `make bench` write results"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {_reason(error)}") from error
    return _parse(path, text)


_CLAIM = re.compile(r"(?<![\w.])\d|\b(?:fast|slow|quick|speed|times|twice)", re.IGNORECASE)
"""A number that stands by itself, or a word that compares speeds."""


def headline_of(records: Sequence[Record]) -> Headline | None:
    """Return the headline that a file's last process saved, with the sentences that its samples support.

    A sentence of the page is kept if, besides what the comparisons of the file give, it has neither a number nor a word
    about speed. If none is kept, the first comparison's is taken, or else the first measurement in words.
    """
    last = max(records, key=lambda record: record.moment)
    if last.headline is None:
        return None
    given = [text for _, texts in _answers_of_last_process(records) for text in texts]

    def is_supported(sentence: str) -> bool:
        for each in given:
            sentence = sentence.replace(each, "")
        return not _CLAIM.search(sentence)

    kept = tuple(filter(is_supported, last.headline.sentences))
    return replace(
        last.headline,
        sentences=kept or (_shortened(given[0] if given else str(records[0].measurement)),),
    )


def headline_is_withheld(records: Sequence[Record]) -> bool:
    """Return True if a file's headline, as `headline_of` gives it, is that the machine was busy or drifted.

    That outputs differ is a finding, which another run has as well.
    """
    headline = headline_of(records)
    if headline is None:
        return False

    lost = [
        _shortened(text).removesuffix("…")
        for answer, texts in _answers_of_last_process(records)
        if answer.withheld and answer.withheld.is_transient
        for text in texts
    ]
    return any(text in sentence for text in lost for sentence in headline.sentences)


def _answers_of_last_process(records: Sequence[Record]) -> list[tuple[Answer, tuple[str, str]]]:
    """Return the speed-ups of the last process, or why there are none, each as a page may have put it in words."""
    last = max(records, key=lambda record: record.moment)
    runs = {record.name: record for record in records if record.taken == last.taken}
    answers = []
    for run in runs.values():
        compared = run.comparison
        if compared is None or compared.outcome == "baseline":
            continue
        base = runs[f"{run.lesson}/{compared.name}/{compared.baseline}"]
        answer = run.answer if run.withheld else _comparison_of(run, base).answers[compared.variant]
        answers.append((answer, (f"{compared.name}: {answer}", str(answer))))
    return answers


def _shortened(sentence: object) -> str:
    """Return a sentence as one line, cut where it quotes long outputs."""
    line = machine.one_line(str(sentence))
    return line if len(line) <= SENTENCE_LIMIT else f"{line[: SENTENCE_LIMIT - 1]}…"


def read_picture(results: Path, headline: Headline) -> bytes:
    """Return the picture that `save` wrote beside a file of results. RecordError if another one, or none, is there."""
    file = results.with_suffix(".png")
    try:
        content = paths.read_regular(file, PICTURE_BYTES)
    except OSError as error:
        raise RecordError(
            f"the picture {file.name} cannot be read ({error.strerror}): run the page again"
        ) from error
    if (file.name, hashlib.sha256(content).hexdigest()) != (headline.picture, headline.sha256):
        raise RecordError(
            f"{file.name} is not the picture that was saved with the results: run the page again"
        )
    return content


_GRAVEST_FIRST = (Reason.OUTPUTS_DIFFER, Reason.SIMULATED, Reason.FAST_MODE)
"""Which of several reasons of one benchmark is told; all others come after these."""


def usable_runs(runs: Sequence[Record]) -> tuple[list[Record], Withheld | None]:
    """Return the runs of one benchmark that conclusions may be drawn from, or why there are none.

    A process whose machine was busy or drifted is left out if another's was not. Any other reason excludes all.

    Parameters
    ----------
    runs
        One record from each process.

    Returns
    -------
    list of Record, Withheld or None
        The runs and None, or an empty list and the gravest reason.
    """
    reasons = [run.withheld for run in runs]

    lasting = [reason for reason in reasons if reason and not reason.is_transient]
    if lasting:
        return [], min(lasting, key=_gravity)

    usable = [run for run, reason in zip(runs, reasons, strict=True) if reason is None]
    if usable:
        return usable, None
    return [], reasons[0]


def _gravity(withheld: Withheld) -> int:
    """Return the place of a reason among the gravest, 0 for the first."""
    try:
        return _GRAVEST_FIRST.index(withheld.reason)
    except ValueError:
        return len(_GRAVEST_FIRST)


(_LESSON,) = LessonName.__metadata__


def _stated_reason(compared: Compared) -> Withheld | None:
    """Return why the page withheld a speed-up, as the file says; None if it did not."""
    if compared.doubt or compared.withheld:
        return Withheld(compared.doubt or Reason.OTHER, compared.withheld)
    if compared.outcome == "withheld":
        return Withheld(Reason.OTHER, wording.PHRASES["unknown"])
    return None


def merge(files: Iterable[Path | str], into: Path) -> Path:
    """Merge files into one: equal names become the runs of one benchmark. Errors as those of `load` and `write`."""
    return write(into, [record for file in files for record in load(file)])


def by_name(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs of each benchmark, in the order given."""
    benchmarks: dict[str, list[Record]] = {}
    for record in records:
        benchmarks.setdefault(record.name, []).append(record)
    return benchmarks


_Row = tuple[str, Measurement, Compared | None, float | None]
"""Name, times, the result of a comparison, and the drift of a sentinel around it."""


def _rows(lesson: str, result: Measurement | Comparison) -> list[_Row]:
    if isinstance(result, Measurement):
        return [(f"{lesson}/{result.name}", result, None, None)]
    return [
        (f"{lesson}/{result.name}/{variant}", measured, _compared(result, variant), result.drift)
        for variant, measured in result.measurements.items()
    ]


def _compared(comparison: Comparison, variant: str) -> Compared:
    """Return what the file keeps of a comparison for one of its variants."""
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
    if withheld := answer.withheld:
        reason = None if withheld.reason is Reason.OTHER else withheld.reason
        compared = replace(compared, doubt=reason, withheld=machine.one_line(withheld.detail))
    if ratio := comparison.paired.get(
        variant
    ):  # also of a speed-up that is withheld: a later reader may need it
        high = ratio.high if ratio.has_interval else None
        compared = replace(compared, median=ratio.median, low=ratio.low, high=high)
    return compared


def _run(record: Record) -> pyperf.Run:
    """Return a record as pyperf's run: in its fields, and the rest as JSON."""
    measured, about = record.measurement, asdict(replace(record, machine=None))
    for name in ("samples", "first_call", "block"):
        del about["measurement"][name]
    headline = about.pop("headline")
    del about["name"], about["machine"]
    metadata = {
        "name": record.name,
        "unit": "second",
        "loops": measured.block,
        "metallab": json.dumps({"schema": SCHEMA, **about}),
        "machine": record.machine.to_json(),
        **({"headline": json.dumps(headline)} if headline else {}),
    }
    first = [(1, measured.first_call)]
    return pyperf.Run(
        list(measured.samples), warmups=first, metadata=metadata, collect_metadata=False
    )


def _reason(error: BaseException) -> str:
    """Return an error in a line that is safe for a terminal: it may quote a stranger's file."""
    return machine.one_line(str(error))[:300]


# --- reading: pyperf's structure and ours by their types, then what no type can say ---


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
    """JSON schemas of a file, and of the JSON texts in its metadata."""
    parts = {
        "file": _File,
        "metadata": _Metadata,
        "metallab": Record,
        "machine": machine.Machine,
        "headline": Headline,
    }
    return {name: msgspec.json.schema(part) for name, part in parts.items()}


def _parse(path: Path, text: str) -> list[Record]:
    try:
        file = msgspec.json.decode(text, type=_File)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not a pyperf file: {_reason(error)}") from error
    records: list[Record] = []
    for number, benchmark in enumerate(file.benchmarks):
        metadata = file.metadata | benchmark.metadata
        try:
            runs = [_record(metadata | process.metadata, process) for process in benchmark.runs]
            if len({_work(run) for run in runs}) > 1:
                raise ValueError("it mixes runs of different work, machines or revisions")
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordError(
                f"{path}: benchmark {number} is not a record of ours: {_reason(error)}"
            ) from error
        records += runs
    try:
        runs = {(record.name, record.moment): record for record in records}
        if len(runs) < len(records):
            raise ValueError(
                "the same run is in it twice, or two that were saved within one second"
            )
        return [_computed(record, runs) for record in records]
    except (ValueError, OverflowError) as error:  # a moment before the year 1
        raise RecordError(f"{path}: {_reason(error)}") from error


def _record(metadata: Mapping[str, Any], process: _Process) -> Record:
    given = msgspec.convert(metadata, _Metadata)
    about = msgspec.json.decode(given.metallab, type=dict[str, Any])
    if about.get("schema") != SCHEMA:
        raise ValueError("it was written by another version of metallab: update, or measure again")
    timed = {"samples": process.values, "first_call": process.warmups[0][1], "block": given.loops}
    about["measurement"] = msgspec.convert(about.get("measurement"), dict[str, Any]) | timed
    _check_reason(about.get("comparison"))
    about |= {"name": given.name, "machine": msgspec.json.decode(given.machine)}
    about["headline"] = given.headline and msgspec.json.decode(given.headline)
    read = msgspec.convert(about, Record)
    variables = (*machine.VARIABLES, *machine.OLDER_VARIABLES)
    known = {
        "environment": variables,
        "versions": machine.PACKAGES,
    }  # another name may be anybody's
    kept = {
        part: {k: v for k, v in getattr(read.machine, part).items() if k in names}
        for part, names in known.items()
    }
    return replace(read, machine=replace(read.machine, **kept))


def _check_reason(compared: Any) -> None:
    """Raise a ValueError for a reason to withhold a speed-up that there is not, and say which there are."""
    reason = compared.get("doubt") if isinstance(compared, dict) else None
    if reason is not None and reason not in list(Reason):
        raise ValueError(
            f"doubt is {reprlib.repr(reason)}, which is no reason to withhold a speed-up; "
            f"there are {', '.join(Reason)}: "
            "correct it, or update metallab if the file is of a newer one"
        )


def _work(run: Record) -> tuple[Any, ...]:
    """What the runs of one benchmark have in common."""
    measured, compared, made = run.measurement, run.comparison, run.machine
    names = (
        run.lesson,
        run.name,
        measured.name,
        compared and (compared.name, compared.variant, compared.baseline),
    )
    what = (
        measured.question,
        measured.dtype,
        measured.size,
        measured.cold,
        compared and (compared.role, compared.series),
    )
    where = (
        measured.device,
        measured.kind,
        measured.simulated,
        measured.mode,
        made.chip,
        made.git_revision,
    )
    return *names, *what, *where, *made.versions.items()


def _computed(run: Record, runs: Mapping[tuple[str, datetime], Record]) -> Record:
    """Return a record with its comparison computed from the samples. ValueError if the file claims another speed-up."""
    claimed = run.comparison
    if claimed is None:
        return run
    named = f"{run.lesson}/{claimed.name}/"
    base = runs.get((named + claimed.baseline, run.moment))
    if base is None or run.name != named + claimed.variant:
        raise ValueError(
            f"{run.name!r} claims to be {named + claimed.variant!r} beside {claimed.baseline!r}: not here"
        )
    computed = _compared(_comparison_of(run, base), claimed.variant)
    ours, theirs = ((each.median, each.low, each.high) for each in (computed, claimed))
    alike = (
        a is b if None in (a, b) else math.isclose(a, b, rel_tol=1e-6)
        for a, b in zip(ours, theirs, strict=True)
    )
    if not all(alike):
        ours, theirs = (
            ", ".join("none" if end is None else f"{end:.4g}" for end in ends)
            for ends in (ours, theirs)
        )
        raise ValueError(
            f"{run.name!r} claims a speed-up (median, ends) of {theirs}, but its samples say {ours}"
        )
    return replace(run, comparison=computed)


def _comparison_of(run: Record, base: Record) -> Comparison:
    """Return the comparison of a variant with its baseline, from their samples."""
    claimed, ours, theirs = run.comparison, run.measurement, base.measurement
    if (ours.n, ours.question) != (theirs.n, theirs.question):
        raise ValueError(f"{run.name!r} cannot be compared: its baseline has other samples")
    sides = {claimed.baseline: theirs, claimed.variant: ours}
    made = pair_samples(sides, baseline=claimed.baseline, name=claimed.name, parity=claimed.parity)

    stated = _stated_reason(claimed)
    return replace(
        made,
        paired={} if stated and claimed.median is None else made.paired,
        refused={claimed.variant: stated} if stated else {},
        sentinels=(),
        series=claimed.series,
        roles={claimed.variant: claimed.role},
    )
