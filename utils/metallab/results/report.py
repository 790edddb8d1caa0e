"""One page that tells what a run found: ``metallab report [run_folder]``.

``build/report/index.html`` holds everything it shows and asks the network for nothing; beside it stands each executed
notebook as a page of its own. Everything read here may come from a stranger or from a run that was cut short: what
cannot be read is named on the page with its reason, the rest goes on, and every value is escaped.

The executed notebooks are not rendered as the book's: Sphinx is installed by `make book` alone, it wants the whole
checkout, and it refuses a page with a fault, while the report is made after every run, of whatever there is.
"""

from __future__ import annotations

import argparse
import base64
import functools
import html
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metallab import machine, paths, units
from metallab.paths import write_atomically
from metallab.records import Headline, Record, RecordError, by_name, headline_of, load, read_picture
from metallab.results import findings, pages
from metallab.results.findings import Conclusion, Unreadable
from metallab.timing import DRIFT

if TYPE_CHECKING:
    import jinja2
    from nbformat import NotebookNode

SIMULATED = (
    "SIMULATED: no Apple GPU took part. Times on this page are not Metal times, and no speed-up is given for them."
)
FAST = "fast mode: three samples, no conclusions"

TRACEBACK_LINES = 25
_STATUSES = ("passed", "incomplete", "failed", "skipped")
_NAME = re.compile(r"(?!(?i:index)$)[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PNG_ENDS = b"\0\0\0\0IEND\xaeB`\x82"
_MOST_PIXELS = 10_000


class ReportError(ValueError):
    """Something that cannot be reported on; the message says why, and what to do."""


# --- what a run left behind ---


@dataclass(frozen=True)
class Notebook:
    """How one notebook of a run ended."""

    name: str
    title: str
    status: str
    """``passed``, ``incomplete`` (without a tool that is missing), ``failed``, ``skipped``, or ``unknown`` where no
    summary tells."""
    seconds: float | None = None
    reason: str = ""
    cells: int | None = None
    executed: int | None = None
    peak_rss_bytes: int | None = None
    failed_copy: str = ""
    """What a failed notebook left: its partial copy, or a text; relative to the run's folder."""
    not_run: tuple[dict[str, str], ...] = ()
    """What was not run for want of a tool: ``where``, ``what``, and how to ``mend`` it."""

    @property
    def number(self) -> str:
        """Such as ``02b``."""
        return self.name.split("_")[0]


@dataclass(frozen=True)
class RunSummary:
    """What a run says of itself."""

    mode: str
    device: str
    label: str
    simulated: bool
    started: datetime | None
    seconds: float | None
    notebooks: tuple[Notebook, ...]


def read_summary(run: Path) -> tuple[RunSummary, list[Unreadable]]:
    """A run's ``summary.json``; in its place, if it is missing or damaged, what the folder itself tells."""
    try:
        given = _object(run / "summary.json")
        entries = _take(given, "notebooks", list)
        summary = _summary(given)
    except ReportError as problem:
        return _summary_of_folder(run), [Unreadable("summary.json", str(problem))]
    notebooks, problems = {}, []
    for entry in entries:
        try:
            notebook = _notebook(entry)
            if notebook.name in notebooks:
                raise ReportError("stands twice in the summary; the first is shown")
            notebooks[notebook.name] = notebook
        except ReportError as problem:
            name = entry.get("name") if isinstance(entry, dict) else entry
            problems.append(Unreadable(f"summary.json, notebook {str(name)[:100]}", str(problem)))
    return RunSummary(**summary, notebooks=tuple(notebooks.values())), problems


def _summary(given: dict[str, Any]) -> dict[str, Any]:
    device = _take(given, "device", str)
    return {
        "mode": _take(given, "mode", str),
        "device": device,
        "label": _take(given, "label", str, ""),
        # either says it; a simulated run must never pass for a real one
        "simulated": _take(given, "simulated", bool, False) or device == "sim",
        "started": _moment(given.get("started")),
        "seconds": _number(given, "seconds"),
    }


def _notebook(entry: Any) -> Notebook:
    if not isinstance(entry, dict):
        raise ReportError("not an object")
    name, status = _take(entry, "name", str), _take(entry, "status", str)
    if not _NAME.fullmatch(name):
        raise ReportError("its name cannot be a page's: use letters, digits, - and _, and not 'index'")
    if status not in _STATUSES:
        raise ReportError(f"status is {status!r}, not one of {', '.join(_STATUSES)}")
    return Notebook(
        name=name,
        title=_take(entry, "title", str, "") or name,
        status=status,
        seconds=_number(entry, "seconds"),
        reason=machine.without_home(_take(entry, "reason", str, "")),
        cells=_number(entry, "cells"),
        executed=_number(entry, "executed"),
        peak_rss_bytes=_number(entry, "peak_rss_bytes"),
        failed_copy=_take(entry, "failed_copy", str, ""),
        not_run=tuple(map(_gap, _take(entry, "not_run", list, []))),
    )


def _gap(given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise ReportError("an entry of not_run is not an object")
    return {name: machine.without_home(_take(given, name, str, "")) for name in ("where", "what", "mend")}


def _summary_of_folder(run: Path) -> RunSummary:
    """The folder's name holds mode and device (`paths.run_folder`), its notebooks tell their names."""
    mode, _, device = run.name.partition("-")
    names = sorted(path.stem for path in run.glob("*.ipynb") if _NAME.fullmatch(path.stem))
    return RunSummary(
        mode=mode if mode in ("full", "fast") else "unknown",
        device=device or "unknown",
        label="",
        simulated=device == "sim",
        started=None,
        seconds=None,
        notebooks=tuple(Notebook(name, name, "unknown") for name in names),
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        given = json.loads(paths.read_regular(path))
    except FileNotFoundError as problem:
        raise ReportError("there is no such file; did the run stop before its end?") from problem
    except OSError as problem:
        raise ReportError(f"cannot be read: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise ReportError(f"is not JSON: {problem}") from problem
    if not isinstance(given, dict):
        raise ReportError(f"holds {type(given).__name__} where an object was expected")
    return given


_REQUIRED = object()


def _take(given: dict[str, Any], name: str, kind: type, default: Any = _REQUIRED) -> Any:
    """A field of a certain type; the default, if there is one, where it is missing or null."""
    value = given.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, kind):
        raise ReportError(f"{name} must be {kind.__name__}, is {type(value).__name__}")
    return value


def _number(given: dict[str, Any], name: str) -> Any:
    """A number from 0 up, or None."""
    value = given.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1e18:  # NaN is in no range
        raise ReportError(f"{name} must be a number from 0 up, is {str(value)[:40]!r}")
    return value


def _moment(value: Any) -> datetime | None:
    """ISO 8601, or seconds since 1970; without a time zone it is this machine's."""
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value).astimezone()
        if type(value) in (int, float):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError) as problem:
        raise ReportError(f"started is no time: {problem}") from problem
    if value is None:
        return None
    raise ReportError(f"started must be a time in ISO 8601, is {type(value).__name__}")


def latest_run(build: Path) -> Path:
    """The run that was begun last, see `paths.latest`. ReportError if there is none."""
    runs = [path.parent for pattern in ("full-*", "fast-*") for path in build.glob(f"{pattern}/summary.json")]
    if not runs:
        raise ReportError(f"{build} holds no run to report on: run `make run` first")
    return paths.latest({run: _started(run) for run in runs})


def _started(run: Path) -> float:
    """Seconds since 1970; of a damaged summary, when it was written."""
    started = read_summary(run)[0].started
    return started.timestamp() if started else (run / "summary.json").stat().st_mtime


# --- what the page shows ---


@dataclass(frozen=True)
class Picture:
    """A PNG as a data URI. Width and height are pixels."""

    source: str
    alt: str
    width: int
    height: int


@dataclass
class Card:
    """A notebook on the page."""

    notebook: Notebook
    page: str = ""
    """The file of its executed page, or empty."""
    traceback: str = ""
    left: str = ""
    """Where the partial notebook of a failure lies, as a reader finds it."""
    drift: float | None = None
    """How much longer the sentinel computation took after the notebook than before: 0.1 is 10 %."""
    headline: Headline | None = None
    headline_picture: Picture | None = None

    @property
    def drifted(self) -> bool:
        """True if the machine's speed moved so far that the notebook's numbers are in doubt."""
        return self.drift is not None and abs(self.drift) > DRIFT


@dataclass
class Group:
    """A notebook's comparisons that ask one question of one baseline, in one table."""

    notebook: str
    baseline: str
    question: str
    parity: str
    devices: dict[str, None] = field(default_factory=dict)
    """The devices of the variants, in order and each once."""
    conclusions: list[Conclusion] = field(default_factory=list)

    @property
    def drawn(self) -> bool:
        """True if any variant has an interval to draw."""
        return any(conclusion.ratio for conclusion in self.conclusions)


@dataclass
class ReportPage:
    """All that the template is given."""

    summary: RunSummary
    cards: list[Card] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    measurements: dict[str, list[Record]] = field(default_factory=dict)
    """The usable records of each notebook, by its name."""
    machine: list[tuple[str, str]] = field(default_factory=list)
    machine_from_records: bool = False
    machines: list[findings.Column] = field(default_factory=list)
    """This run's machine first, if it measured anything, then those whose results come with the project."""
    problems: list[Unreadable] = field(default_factory=list)
    trust: str = ""
    """Whether what was measured may be believed, and what to run again: see `findings.trust`."""
    doubted: bool = False
    """True if some of it may not."""

    @property
    def banners(self) -> list[tuple[str, str]]:
        """Style and text of what must be read before any number."""
        fast = [("fast", FAST)] if self.summary.mode == "fast" else []
        return ([("simulated", SIMULATED)] if self.summary.simulated else []) + fast

    @property
    def again(self) -> list[str]:
        """Which pages are not wholly here, and what to do about it, a sentence each."""
        failed = [card.notebook.number for card in self.cards if card.notebook.status == "failed"]
        sentences = []
        if failed:
            commands = ["make run"] if len(failed) > 4 else [f"make run ONLY={number}" for number in failed]
            sentences.append(
                f"Failed: {', '.join(failed)}. Mend what is named below and run again: {'; '.join(commands)}."
            )
        lacking: dict[tuple[str, str], list[str]] = {}
        for notebook in (card.notebook for card in self.cards):
            mends = dict.fromkeys(gap["mend"] for gap in notebook.not_run)
            if notebook.status == "incomplete":
                lacking.setdefault(("Incomplete", "; ".join(mends) or notebook.reason), []).append(notebook.number)
            elif notebook.status == "skipped":
                lacking.setdefault(("Skipped", notebook.reason or "no reason was given"), []).append(notebook.number)
        return sentences + [f"{how}: {', '.join(pages)} ({why})." for (how, why), pages in lacking.items()]

    @property
    def in_short(self) -> list[str]:
        """What this run found, in a minute."""
        return findings.in_short(self.machines[0]) if self.measurements else []

    @property
    def beside(self) -> list[findings.Row]:
        """Of each page that another machine has run as well a comparison, beside that machine's."""
        return findings.side_by_side(self.machines) if self.measurements else []

    @property
    def lessons(self) -> dict[str, list[Group]]:
        """The comparisons of each notebook."""
        by_lesson: dict[str, list[Group]] = {}
        for group in self.groups:
            by_lesson.setdefault(group.notebook, []).append(group)
        return by_lesson

    @property
    def counts(self) -> dict[str, int]:
        statuses = [card.notebook.status for card in self.cards]
        return {status: statuses.count(status) for status in (*_STATUSES, "unknown") if status in statuses}

    @property
    def tables(self) -> list[MachinesTable]:
        """The machines side by side."""
        return [MachinesTable(*words, rows) for *words, rows in _tables(self.machines) if rows]

    @property
    def unhappy(self) -> list[Card]:
        """The notebooks that failed, are incomplete or were skipped."""
        return [card for card in self.cards if card.notebook.status in ("failed", "incomplete", "skipped")]


@dataclass(frozen=True)
class MachinesTable:
    """Something told of each machine: a cell a machine, in the order of `ReportPage.machines`."""

    title: str
    note: str
    rows: list[findings.Row]


def _tables(machines: Sequence[findings.Column]) -> Iterator[tuple[str, str, list[findings.Row]]]:
    """Title, note and rows of each table of machines."""
    yield "What they are", "", findings.provenance(machines)
    gpu = "Each GPU against the CPU of its own machine: lowest to highest speed-up, and how many of each verdict."
    yield "The GPU, by lesson", gpu, findings.by_lesson(machines, by_gpu=True)
    ways = "Ways to do the same work on one device, against the baseline that the lesson names."
    yield "On one device, by lesson", ways, findings.by_lesson(machines, by_gpu=False)
    sizes = "From which size on one side is faster: at that size and at every larger one that was measured."
    yield "Crossover sizes", sizes, findings.crossovers(machines)
    yield "Low precision", "The same work in fewer bits, on the same device.", findings.dtypes(machines)
    yield "Every comparison", "Speed-up, verdict and 95 % interval.", findings.every(machines)


def make(run: Path, folder: Path = paths.REPORT) -> Path:
    """Write the report on a run into a folder, and return its index page.

    Pages of an earlier report are removed, and nothing else. ReportError if the run holds neither a summary nor
    notebooks nor results, and if something that no report wrote lies where a page would go.
    """
    if not (run / "summary.json").exists() and not any(run.glob("*.ipynb")) and not any(run.glob("results/*.json")):
        raise ReportError(f"{run} holds nothing to report on: run `make run` first")
    summary, problems = read_summary(run)
    page = ReportPage(summary, problems=problems)
    if folder.is_symlink():
        raise ReportError(f"{folder} is a link: nothing is deleted or written through it; remove the link")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.html"):
        if _is_page(old):
            old.unlink()  # of an earlier run, perhaps with other notebooks
    _add_notebooks(page, run, folder)
    _add_records(page, run)
    return _write(folder / "index.html", render(page))


def render(page: ReportPage) -> str:
    """The page as HTML."""
    return _template().render(page=page, axis=Axis.around(page.groups), policy=pages.POLICY)


@functools.cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pages.TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_showable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "seconds": units.seconds, "size": units.size}
    return environment.get_template("report.html.j2")


def _showable(value: Any) -> Any:
    """A text without characters that a reader cannot see: they could turn a line around or break the file."""
    if type(value) is not str:
        return value
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in value
    )


def _write(path: Path, text: str) -> Path:
    if os.path.lexists(path) and not _is_page(path):
        raise ReportError(f"{path} is there already, and no report wrote it: move it away")
    write_atomically(path, text.encode(errors="replace").decode())  # half of a surrogate pair has no UTF-8
    return path


def _is_page(path: Path) -> bool:
    """Whether a file is a page of a report, by the policy that every one of them has near its beginning."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return pages.POLICY in html.unescape(file.read(4096))


# --- notebooks ---


def _add_notebooks(page: ReportPage, run: Path, folder: Path) -> None:
    names = [notebook.name for notebook in page.summary.notebooks]
    for notebook in page.summary.notebooks:
        card = Card(notebook)
        page.cards.append(card)
        try:
            if notebook.status != "skipped":
                _fill(card, page, run, folder, names)
        except (pages.PageError, ReportError) as problem:
            page.problems.append(Unreadable(notebook.name, str(problem)))


def _fill(card: Card, page: ReportPage, run: Path, folder: Path, names: Sequence[str]) -> None:
    """Traceback and page of a notebook that ran, be it to its end or not."""
    name = card.notebook.name
    path = _left_by(card.notebook, run)
    if card.notebook.status == "failed":
        card.left = _shown(path)
        if path.suffix != ".ipynb":  # nothing to convert: the runner left a text that says what happened
            card.traceback = _last_lines(_text(path))
            return
    executed = pages.read_notebook(path)
    card.traceback = traceback_tail(executed)
    banner = " ".join(text for _, text in page.banners)
    card.page = _write(folder / f"{name}.html", pages.to_html(executed, name, banner=banner, pages=names)).name


def _left_by(notebook: Notebook, run: Path) -> Path:
    """The file that holds what a notebook put out. ReportError if a summary points out of the run's folders."""
    if notebook.status != "failed" or not notebook.failed_copy:
        return run / f"{notebook.name}.ipynb"
    try:
        path = (run / notebook.failed_copy).resolve()
    except (OSError, ValueError) as problem:
        raise ReportError(f"its partial copy {notebook.failed_copy[:200]!r} is no path: {problem}") from problem
    if not any(path.is_relative_to(folder.resolve()) for folder in (paths.FAILED, run)):
        raise ReportError(f"its partial copy {notebook.failed_copy[:200]!r} lies outside the run's folders")
    return path


def _shown(path: Path) -> str:
    """A path within the checkout; of another one only the name, which tells nothing of this machine."""
    return path.relative_to(paths.ROOT).as_posix() if path.is_relative_to(paths.ROOT) else path.name


def _text(path: Path) -> str:
    try:
        return paths.read_regular(path).decode(errors="replace")
    except OSError as problem:
        raise ReportError(f"what it left cannot be read: {problem.strerror}") from problem


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG whose every chunk is whole. ReportError if it is anything else."""
    from PIL.PngImagePlugin import PngImageFile  # Image.open is another library's where ultralytics was imported

    try:
        with PngImageFile(io.BytesIO(data)) as picture:
            size = picture.size
            picture.verify()
    except (OSError, ValueError, SyntaxError) as problem:
        raise ReportError("not a PNG file, or a damaged one") from problem
    if not data.endswith(_PNG_ENDS) or not all(0 < side <= _MOST_PIXELS for side in size):
        raise ReportError(f"the PNG file does not end where it should, or a side is not 1 to {_MOST_PIXELS} pixels")
    return size


def traceback_tail(notebook: NotebookNode) -> str:
    """The last lines of the last error, without terminal colours; empty if there was none."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    errors = [output for output in outputs if output.output_type == "error"]
    if not errors:
        return ""
    return _last_lines("\n".join(errors[-1].traceback) or f"{errors[-1].ename}: {errors[-1].evalue}")


def _last_lines(text: str) -> str:
    lines = machine.without_home(_ANSI.sub("", text)).splitlines()
    return "\n".join((["..."] if len(lines) > TRACEBACK_LINES else []) + lines[-TRACEBACK_LINES:])


# --- records ---


def _add_records(page: ReportPage, run: Path) -> None:
    machines: list[tuple[str, machine.Machine]] = []
    usable: list[Record] = []
    for path in sorted(run.glob("results/*.json")):
        try:
            records = load(path)
        except RecordError as problem:
            page.problems.append(Unreadable(f"results/{path.name}", str(problem).removeprefix(f"{path}: ")))
            continue
        bases = findings.baselines(records)
        for runs in by_name(records).values():
            _add_benchmark(page, path.stem, runs, bases.get(findings.comparison_of(runs[0]), ()))
            machines.append((path.stem, runs[0].machine))
        usable += records
        _tell_drift(page, path.stem, records)
        _tell_headline(page, path, records)
    page.machine = merged_rows(machines or [("", machine.describe())])
    page.machine_from_records = bool(machines)
    page.trust = findings.trust(usable)
    page.doubted = any(findings.doubted(usable))
    _add_machines(page, usable)


def _add_benchmark(page: ReportPage, notebook: str, runs: Sequence[Record], baseline: Sequence[Record]) -> None:
    conclusion = findings.conclusion_of(runs, baseline)
    page.measurements.setdefault(notebook, []).extend(runs)
    if conclusion is None:
        return
    group = _group(page, notebook, runs[0])
    group.devices[conclusion.device] = None
    group.conclusions.append(conclusion)


def _add_machines(page: ReportPage, usable: Sequence[Record]) -> None:
    """This run beside the results that come with the project."""
    columns, unreadable = findings.references()
    mine = [findings.column(usable, "this run")] if usable else []
    here = [replace(one, title=f"here, {one.title}") for one in mine]
    stored = [replace(one, title=f"{one.title} (stored)") for one in findings.distinct(columns)]
    page.machines = [*here, *stored, *findings.wanted([*mine, *columns])]
    page.problems += [Unreadable(f"data/results/{each.what}", each.reason) for each in unreadable]


def _group(page: ReportPage, notebook: str, record: Record) -> Group:
    """The page's group that a record belongs to, made if it is the first."""
    compared = record.comparison
    key = (notebook, compared.baseline, record.measurement.question, compared.parity)
    for group in page.groups:
        if (group.notebook, group.baseline, group.question, group.parity) == key:
            return group
    page.groups.append(Group(*key))
    return page.groups[-1]


def _tell_drift(page: ReportPage, name: str, records: Sequence[Record]) -> None:
    """Put the sentinel's drift on the card of its notebook. Three samples of fast mode cannot tell it from noise."""
    drifts = [record.sentinel_drift for record in records if record.measurement.mode == "full"]
    known = [drift for drift in drifts if drift is not None]
    for card in page.cards:
        if card.notebook.name == name and known:
            card.drift = max(known, key=abs)


def _tell_headline(page: ReportPage, path: Path, records: Sequence[Record]) -> None:
    """Put what a page found, as it was last saved, on the card of its notebook."""
    last = headline_of(records)
    for card in page.cards if last else ():
        if card.notebook.name == path.stem:
            card.headline = last
            try:
                card.headline_picture = _headline_picture(path, last)
            except (RecordError, ReportError) as problem:
                page.problems.append(Unreadable(f"results/{path.stem}, picture of its headline", str(problem)))


def _headline_picture(results: Path, headline: Headline) -> Picture | None:
    if headline.picture is None:
        return None
    data = read_picture(results, headline)
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return Picture(source, headline.alternative_text, *png_size(data))


def merged_rows(machines: Sequence[tuple[str, machine.Machine]]) -> list[tuple[str, str]]:
    """The provenance of all records in one table; where they differ, each value with the notebooks it belongs to."""
    told: dict[str, dict[str, dict[str, None]]] = {}  # label, value, notebooks: dictionaries keep the order
    for name, described in machines:
        for label, value in described.rows():
            told.setdefault(label, {}).setdefault(value, {})[name] = None
    loads = [described.load_average[0] for _, described in machines if described.load_average]
    rows = []
    for label, values in told.items():
        if label == machine.LOAD_AVERAGE and loads:
            low, high = f"{min(loads):.2f}", f"{max(loads):.2f}"
            span = low if low == high else f"{low} to {high}"
            rows.append(("Load average", f"{span} (over a minute, when results were saved)"))
        elif len(values) == 1:
            rows.append((label, *values))
        else:
            rows.append((label, "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())))
    return rows


# --- numbers for a reader ---


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of speed-ups, from one power of two to another."""

    low: int
    high: int

    @classmethod
    def around(cls, groups: Iterable[Group]) -> Axis:
        """The axis that holds 1/2 to 2 and every interval, within 1/64 to 1024."""
        ends = [end for group in groups for each in group.conclusions for end in each.ratio or ()]
        exponents = [math.log2(min(max(end, 2**-6), 2**10)) for end in ends]
        return cls(math.floor(min([-1.0, *exponents])), math.ceil(max([1.0, *exponents])))

    def at(self, value: float) -> float:
        """Where a speed-up lies on the axis, in per cent of its length."""
        exponent = math.log2(value) if value > 0 else -math.inf
        return round(100 * min(max((exponent - self.low) / (self.high - self.low), 0.0), 1.0), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Position and name of at most about seven powers of two, 1 among them."""
        step = math.ceil((self.high - self.low) / 7)
        exponents = [exponent for exponent in range(self.low, self.high + 1) if exponent % step == 0]
        return [(self.at(2.0**power), f"{2**power}" if power >= 0 else f"1/{2**-power}") for power in exponents]


def duration(seconds: float) -> str:
    """Seconds as a reader says them: ``0.3 s``, ``42 s``, ``3 min 5 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """``metallab report``: 0, or 2 if there is nothing to report on, or it cannot be written."""
    parser.add_argument("run", type=Path, nargs="?", help="folder of a run; by default the latest under build/")
    run = parser.parse_args(arguments).run
    try:
        path = make(run.resolve() if run else latest_run(paths.BUILD), paths.REPORT)
    except ReportError as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        where = problem.filename or paths.REPORT
        print(
            f"report: {where}: {problem.strerror}; make room there, and see that you may write to it", file=sys.stderr
        )
        return 2
    print(f"report: {path}")
    return 0
