"""One page of what a run found: ``metallab report [run_folder]``.

``build/report/index.html`` loads nothing, and every value on it is escaped. It links to the executed notebooks in the
run's folder; ``make book RUN=`` makes pages of HTML of them.
"""

from __future__ import annotations

import argparse
import base64
import functools
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from metallab import machine, paths, private, timing, units
from metallab.notebook import without_colours
from metallab.outcomes import STATUSES, Status
from metallab.paths import write_atomically
from metallab.records import Headline, Record, RecordError, by_name, headline_of, load, read_picture
from metallab.results import findings
from metallab.results.findings import Conclusion, Unreadable

if TYPE_CHECKING:
    import jinja2

SIMULATED = f"SIMULATED: no Apple GPU took part; {timing.WORDS['withheld']}: {timing.SIMULATED.reason}"

TRACEBACK_LINES = 25


class ReportError(ValueError):
    """A run without a report; the message says why, and what to do."""


# --- a run's files ---


@dataclass(frozen=True)
class Notebook:
    """How one notebook of a run ended."""

    name: str
    title: str
    status: Status
    seconds: float | None = None
    reason: str = ""
    cells: int | None = None
    executed: int | None = None
    peak_rss_bytes: int | None = None
    failed_copy: str | None = None
    """The partial copy of a failed notebook, or a text; relative to the run's folder."""
    not_run: tuple[dict[str, str], ...] = ()
    """Cells that did not run because a tool is missing: ``where``, ``what``, and how to ``mend`` it."""

    @property
    def number(self) -> str:
        """Such as ``02b``."""
        return self.name.split("_")[0]


@dataclass(frozen=True)
class RunSummary:
    """The contents of ``summary.json``."""

    mode: str
    device: str
    label: str = ""
    simulated: bool = False
    started: datetime | None = None
    seconds: float | None = None
    notebooks: tuple[Notebook, ...] = ()


def read_summary(run: Path) -> RunSummary:
    """A run's ``summary.json``, without folders of this machine. ReportError if it cannot be read."""
    path = run / "summary.json"
    try:
        summary = msgspec.json.decode(paths.read_regular(path, 2**24, follow=True), type=RunSummary)
    except (OSError, msgspec.MsgspecError) as problem:
        raise ReportError(f"{path} cannot be read ({problem}): name the folder of a run, or run: make run") from problem
    notebooks = tuple(
        replace(
            each,
            reason=private.without_paths(each.reason),
            not_run=tuple({key: private.without_paths(text) for key, text in gap.items()} for gap in each.not_run),
        )
        for each in summary.notebooks
    )
    return replace(summary, simulated=summary.simulated or summary.device == "sim", notebooks=notebooks)


def latest_run(build: Path) -> Path:
    """The run that was begun last. ReportError if there is none."""
    runs = [path.parent for pattern in ("full-*", "fast-*") for path in build.glob(f"{pattern}/summary.json")]
    if not runs:
        raise ReportError(f"{build} holds no run to report on: run `make run` first")
    started = {run: read_summary(run).started for run in runs}
    return max(runs, key=lambda run: started[run].timestamp() if started[run] else 0.0)


# --- what the page shows ---


@dataclass
class Card:
    """A notebook on the page."""

    notebook: Notebook
    page: str = ""
    """The address of its executed notebook, or empty."""
    traceback: str = ""
    left: str = ""
    """Where the partial notebook of a failure lies, as a reader finds it."""
    drift: float = 0.0
    """How much longer the sentinel computation took after the notebook than before: 0.1 is 10 %."""
    headline: Headline | None = None
    picture: str = ""
    """The headline's picture as a data URI."""

    @property
    def drifted(self) -> timing.Doubt:
        """Not empty if the machine's speed moved too far."""
        return timing.doubt(drift=self.drift)


@dataclass
class Group:
    """A notebook's comparisons that ask one question of one baseline, in one table."""

    notebook: str
    baseline: str
    question: str
    parity: str
    conclusions: list[Conclusion] = field(default_factory=list)

    @property
    def devices(self) -> list[str]:
        """The devices of the variants, each once."""
        return list(dict.fromkeys(conclusion.device for conclusion in self.conclusions))

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
    """See `findings.trust`."""
    doubted: bool = False
    """True if some measurements are not reliable."""

    @property
    def banners(self) -> list[tuple[str, str]]:
        """Style and text of the notes above all numbers."""
        fast = [("fast", timing.FAST_MODE.words)] if self.summary.mode == "fast" else []
        return ([("simulated", SIMULATED)] if self.summary.simulated else []) + fast

    @property
    def again(self) -> list[str]:
        """Which pages failed, are incomplete or were skipped, and what to do about it; a sentence each."""
        sentences: dict[str, list[str]] = {}
        for notebook in (card.notebook for card in self.cards):
            why = "; ".join(dict.fromkeys(gap["mend"] for gap in notebook.not_run)) or notebook.reason
            if notebook.status == "failed":
                why = f"fix what is named below, and make run ONLY={notebook.number}"
            if notebook.status != "passed":
                sentences.setdefault(f"{notebook.status.capitalize()} ({why})", []).append(notebook.number)
        return [f"{what}: {', '.join(numbers)}." for what, numbers in sentences.items()]

    @property
    def in_short(self) -> list[str]:
        """The run's results in a few sentences."""
        return findings.in_short(self.machines[0]) if self.measurements else []

    @property
    def lessons(self) -> dict[str, list[Group]]:
        """The comparisons of each notebook."""
        by_lesson: dict[str, list[Group]] = {}
        for group in self.groups:
            by_lesson.setdefault(group.notebook, []).append(group)
        return by_lesson

    @property
    def counts(self) -> dict[str, int]:
        """The number of notebooks with each status."""
        statuses = [card.notebook.status for card in self.cards]
        return {status: statuses.count(status) for status in STATUSES if status in statuses}

    @property
    def tables(self) -> list[tuple[str, str, list[findings.Row]]]:
        """Title, note and rows of each table of machines, in the order of ``machines``."""
        tables = [
            ("What they are", "", findings.provenance(self.machines)),
            ("Every comparison", "Speed-up, verdict and 95 % interval.", findings.every(self.machines)),
        ]
        return [table for table in tables if table[2]]

    @property
    def unhappy(self) -> list[Card]:
        """The notebooks that failed, are incomplete or were skipped."""
        return [card for card in self.cards if card.notebook.status != "passed"]


def make(run: Path, folder: Path = paths.REPORT) -> tuple[Path, list[Unreadable]]:
    """Write the report on a run; return the page, and the files of results that cannot be read.

    ReportError if the run's summary, or a failed notebook, cannot be read.
    """
    page = ReportPage(read_summary(run))
    page.cards = [_card(notebook, run, folder) for notebook in page.summary.notebooks]
    _add_records(page, run)
    index = folder / "index.html"
    write_atomically(index, render(page))
    return index, page.problems


def render(page: ReportPage) -> str:
    """The page as HTML."""
    return _template().render(page=page, axis=Axis.around(page.groups), words=timing.WORDS)


@functools.cache
def _template() -> jinja2.Template:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"duration": duration, "seconds": units.seconds, "size": units.size}
    return environment.get_template("report.html.j2")


def _card(notebook: Notebook, run: Path, folder: Path) -> Card:
    """Return a notebook's card, with a link to its copy, and the end of its traceback if it failed."""
    card, path = Card(notebook), run / (notebook.failed_copy or f"{notebook.name}.ipynb")
    if not path.is_file():
        return card
    card.page = quote(Path(os.path.relpath(path, folder)).as_posix())
    if notebook.status == "failed":
        card.left = private.without_paths(str(path))
        card.traceback = traceback_tail(path)
    return card


def traceback_tail(path: Path) -> str:
    """Return the last lines of the last error of a notebook, or of a text; empty if there was none."""
    import nbformat

    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            outputs = [output for cell in nbformat.reads(text, 4).cells for output in cell.get("outputs", ())]
            errors = [output for output in outputs if output.output_type == "error"]
            text = "\n".join(errors[-1].traceback) if errors else ""
    except (OSError, ValueError, AttributeError) as problem:
        raise ReportError(f"{path} cannot be read ({units.first_line(problem)}): run the page again") from problem
    lines = private.without_paths(without_colours(text)).splitlines()
    return "\n".join((["..."] if len(lines) > TRACEBACK_LINES else []) + lines[-TRACEBACK_LINES:])


# --- records ---


def _add_records(page: ReportPage, run: Path) -> None:
    machines: list[machine.Machine] = []
    usable: list[Record] = []
    for path in sorted(run.glob("results/*.json")):
        try:
            records = load(path)
        except RecordError as problem:
            page.problems.append(Unreadable(f"results/{path.name}", str(problem).removeprefix(f"{path}: ")))
            continue
        usable += records
        page.measurements[path.stem] = records
        bases = findings.baselines(records)
        for runs in by_name(records).values():
            machines.append(runs[0].machine)
            if conclusion := findings.conclusion_of(runs, bases.get(findings.comparison_of(runs[0]), ())):
                _group(page, path.stem, runs[0]).conclusions.append(conclusion)
        for card in page.cards:
            if card.notebook.name == path.stem:
                _fill(card, path, records)
    page.machine = merged_rows(machines or [machine.describe()])
    page.machine_from_records = bool(machines)
    page.trust = findings.trust(usable)
    page.doubted = any(findings.doubted(usable))
    page.machines, unreadable = findings.beside(findings.column(usable, "this run") if usable else None)
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


def _fill(card: Card, path: Path, records: Sequence[Record]) -> None:
    """Put a notebook's headline on its card, and how far the machine's speed drifted, in full mode."""
    drifts = [record.sentinel_drift or 0.0 for record in records if record.measurement.mode == "full"]
    card.drift = max(drifts, key=abs, default=0.0)
    card.headline = headline_of(records)
    if card.headline and card.headline.picture:
        try:
            picture = read_picture(path, card.headline)
        except RecordError as problem:
            raise ReportError(str(problem)) from problem
        card.picture = f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def merged_rows(machines: Sequence[machine.Machine]) -> list[tuple[str, str]]:
    """Return the provenance of all records in one table, with every value where they differ."""
    described = [dict(each.rows()) for each in machines]
    labels = [label for label in described[0] if label != machine.LOAD_AVERAGE]
    return [(label, "; ".join(dict.fromkeys(rows[label] for rows in described))) for label in labels]


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
    """``metallab report``: 0, or 2 if it cannot be made, or a file of results cannot be read."""
    parser.add_argument("run", type=Path, nargs="?", help="folder of a run; by default the latest under build/")
    run = parser.parse_args(arguments).run
    try:
        path, problems = make(run.resolve() if run else latest_run(paths.BUILD), paths.REPORT)
    except (ReportError, OSError) as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 2
    print(f"report: {path}")
    for problem in problems:
        print(f"report: left out: {problem.what}: {problem.reason}", file=sys.stderr)
    return 2 if problems else 0
