"""One page of what a run found: ``metallab report [run_folder]``.

``build/report/index.html`` loads nothing, and every value on it is escaped. Beside it, in ``pages``, lie the executed
notebooks as pages of HTML, to which its cards lead.
"""

from __future__ import annotations

import argparse
import base64
import functools
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from metallab import machine, needs, paths, redact, timing, units, wording
from metallab.notebook import (
    Expectation,
    closing_line,
    count_whole_cells,
    expectations,
    without_colours,
)
from metallab.outcomes import REACHED_THE_END, STATUSES, Status
from metallab.paths import write_atomically
from metallab.records import (
    Headline,
    Record,
    RecordError,
    find_left_out,
    headline_is_replaced,
    headline_of,
    load,
    read_picture,
)
from metallab.results import findings, readable
from metallab.results.findings import Conclusion, Unreadable
from metallab.results.publish import pages

if TYPE_CHECKING:
    import jinja2

SIMULATED = (
    f"SIMULATED: no Apple GPU took part; {wording.PHRASES['withheld']}: {timing.SIMULATED.detail}"
)

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
    not_run: tuple[dict[str, str | bool], ...] = ()
    """Cells that did not run because a tool is missing: ``where``, ``what``, and how to ``fix`` it."""
    judgements: tuple[dict[str, str], ...] = ()
    """What its checks said: ``exercise``, ``outcome`` (`metallab.outcomes.Judged`) and ``sentence``."""
    headline_is_withheld: bool | None = None
    """Of a stored page: whether its headline is that the machine was disturbed, and no speed-up is given. None of a
    run, whose records tell it."""
    headline_is_replaced: bool | None = None
    """Of a stored page: whether the sentences that it said of itself were replaced when it was stored, as its records
    did not give them. None of a run, and of a page that was stored when this was not kept."""
    headline_left_out: int | None = None
    """Of a stored page: how many of these sentences were left out for that. None as above."""
    withheld: int = 0
    """Of a stored page: how many of its speed-ups are withheld because something disturbed the machine."""

    @property
    def whole_cells(self) -> int | None:
        """How many cells ran and left nothing out; None if the run did not tell."""
        return None if self.executed is None else count_whole_cells(self.executed, self.not_run)

    @property
    def number(self) -> str:
        """Such as ``19``."""
        return self.name.split("_")[0]


@dataclass(frozen=True)
class RunSummary:
    """The contents of ``summary.json``, of a run or of a stored set (``data/executed/<machine>``)."""

    mode: str
    device: str
    label: str = ""
    simulated: bool = False
    started: datetime | None = None
    seconds: float | None = None
    """When the run began and how long it took. None of a stored set, whose pages ran on several days: each record says
    when, and each entry how long. Older sets have those of the run that was stored last, which no report shows."""
    notebooks: tuple[Notebook, ...] = ()

    @property
    def is_stored(self) -> bool:
        """Whether it is of a stored set: only the summary of one says what the headlines of its pages are."""
        return any(each.headline_is_withheld is not None for each in self.notebooks)

    @property
    def seconds_of_pages(self) -> float:
        """How long its pages took, each when it ran."""
        return sum(each.seconds or 0.0 for each in self.notebooks)

    @property
    def banners(self) -> list[tuple[str, str]]:
        """Style and text of the notes above all numbers."""
        notes = []
        if self.simulated:
            notes.append(("simulated", SIMULATED))
        if self.mode == "fast":
            notes.append(("fast", timing.FAST_MODE.sentence))
        return notes


def read_summary(run: Path) -> RunSummary:
    """Return a run's ``summary.json``, without folders of this machine. ReportError if it cannot be read."""
    path = run / "summary.json"
    try:
        summary = msgspec.json.decode(paths.read_regular(path, 2**24, follow=True), type=RunSummary)
    except (OSError, msgspec.MsgspecError) as problem:
        raise ReportError(
            f"{path} cannot be read ({problem}): name the folder of a run, or run: make run"
        ) from problem

    notebooks = tuple(
        replace(
            each,
            reason=redact.shorten_paths(each.reason),
            not_run=_without_paths(map(_with_fix, each.not_run)),
            judgements=_without_paths(each.judgements),
        )
        for each in summary.notebooks
    )
    is_simulated = summary.simulated or summary.device == "sim"
    return replace(summary, simulated=is_simulated, notebooks=notebooks)


def _with_fix(gap: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was not run, with the fix under the key that it has today."""
    rest = {key: value for key, value in gap.items() if key != "mend"}
    return rest | {"fix": needs.read_fix(gap)}


def _without_paths(entries: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return entries of a summary whose texts name no folder of this machine."""
    shortened = []
    for entry in entries:
        texts = {key: value for key, value in entry.items() if isinstance(value, str)}
        shorter = {key: redact.shorten_paths(text) for key, text in texts.items()}
        shortened.append({**entry, **shorter})
    return tuple(shortened)


def _began(run: Path) -> float:
    """Return when a run was begun, in seconds; 0 if that is not known."""
    started = read_summary(run).started
    return started.timestamp() if started else 0.0


def latest_run(build: Path) -> Path:
    """Return the folder of the run that was begun last. ReportError if there is none, or a summary cannot be read."""
    runs = [
        path.parent
        for pattern in ("full-*", "fast-*")
        for path in build.glob(f"{pattern}/summary.json")
    ]
    if not runs:
        raise ReportError(f"{build} holds no run to report on: run `make run` first")
    return max(runs, key=_began)


# --- what the page shows ---


@dataclass
class Card:
    """A notebook on the page."""

    notebook: Notebook
    page: str = ""
    """The address of its executed page, or empty."""
    traceback: str = ""
    left: str = ""
    """Where the partial notebook of a failure lies, as a reader finds it."""
    disturbances: list[timing.Withheld] = field(default_factory=list)
    """What disturbed the machine, as its comparisons say it."""
    unmet: list[str] = field(default_factory=list)
    """What the page expects of a comparison and the run did not show."""
    headline: Headline | None = None
    about_headline: str = ""
    """Why the headline is not in the page's own words, or why there is none; empty if there is nothing to say."""
    picture: str = ""
    """The headline's picture as a data URI."""


def make(run: Path, folder: Path = paths.REPORT) -> tuple[Path, list[Unreadable]]:
    """Write the report on a run.

    Parameters
    ----------
    run
        The folder of the run.
    folder
        Where the report is written, with the executed pages beside it.

    Returns
    -------
    Path and list of Unreadable
        The page, and the files of results that cannot be read, which the page names as well.

    Raises
    ------
    ReportError
        If the run's summary, a failed notebook, or the picture of a headline cannot be read.
    """
    # what the run and the other machines have measured
    summary = read_summary(run)
    measurements, problems = _read_results(run)
    usable = [record for records in measurements.values() for record in records]
    machines, unreadable = findings.beside(findings.column(usable, "this run") if usable else None)
    problems += [Unreadable(f"data/results/{each.what}", each.reason) for each in unreadable]

    # how its notebooks ended
    cards = [
        _card(each, run, measurements.get(each.name, ()), is_stored=summary.is_stored)
        for each in summary.notebooks
    ]
    _write_pages(cards, run, folder)
    statuses = [notebook.status for notebook in summary.notebooks]

    # what was compared
    lessons = _find_tables(measurements)
    conclusions = [
        each for tables in lessons.values() for table in tables.values() for each in table
    ]

    text = _template().render(
        summary=summary,
        counts={status: statuses.count(status) for status in STATUSES if status in statuses},
        cards=cards,
        unhappy=[card for card in cards if card.notebook.status != "passed"],
        amiss=name_what_is_amiss(statuses, len(problems)),
        ran=describe_days(usable),
        again=again(summary),
        problems=problems,
        measurements=measurements,
        lessons=lessons,
        conclusions=conclusions,
        axis=Axis(conclusions),
        words=wording.PHRASES,
        trust=findings.trust(usable),
        is_disturbed=findings.Conditions.of(usable).is_disturbed,
        in_short=findings.in_short(machines[0]) if usable else [],
        machines=machines,
        provenance=findings.provenance(machines),
        every=findings.every(machines),
        recorded=bool(usable),
        machine=merge_rows([record.machine for record in usable] or [machine.describe()]),
    )
    index = folder / "index.html"
    write_atomically(index, text)
    return index, problems


@functools.cache
def _template() -> jinja2.Template:
    """Return the template of the report, which escapes every value and raises for one that it is not given."""
    import jinja2

    loader = jinja2.FileSystemLoader([Path(__file__).parent / "templates", paths.PALETTE.parent])
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "seconds": units.seconds, "size": units.size}
    return environment.get_template("report.html.j2")


def _read_results(run: Path) -> tuple[dict[str, Sequence[Record]], list[Unreadable]]:
    """Return the records of a run by page, and the files that cannot be read."""
    measurements: dict[str, Sequence[Record]] = {}
    problems = []
    for path in sorted(run.glob("results/*.json")):
        try:
            measurements[path.stem] = load(path)
        except RecordError as problem:
            reason = str(problem).removeprefix(f"{path}: ")
            problems.append(Unreadable(f"results/{path.name}", reason))
    return measurements, problems


Tables = dict[tuple[str, str, str], list[Conclusion]]
"""The comparisons of a notebook by question, baseline and parity check."""


def _find_tables(measurements: Mapping[str, Sequence[Record]]) -> dict[str, Tables]:
    """Return the tables of each notebook that compares something, by its name."""
    of_each = {name: _tables(records) for name, records in measurements.items()}
    return {name: tables for name, tables in of_each.items() if tables}


def _tables(records: Sequence[Record]) -> Tables:
    """Return the comparisons of a notebook, a table for each question, baseline and parity check."""
    tables: Tables = {}
    for each in findings.conclusions(records):
        question = each.measured.question_in_words if each.measured else ""
        tables.setdefault((question, each.baseline, each.parity), []).append(each)
    return tables


def describe_headline(notebook: Notebook, records: Sequence[Record], *, is_stored: bool) -> str:
    """Return why a headline is not in the page's own words, or why there is none; empty if there is nothing to say.

    Parameters
    ----------
    notebook
        The page, and how it ended.
    records
        What its file of results holds; nothing if there is no such file, or none that can be read.
    is_stored
        Whether it is of a stored set, which keeps one record of each page.
    """
    if not records:
        return _explain_no_results(notebook)
    if headline_of(records) is None:
        return _explain_no_headline(records)
    if is_stored:
        return _describe_stored_headline(notebook, records)
    return _describe_headline_of_run(records)


def _explain_no_results(notebook: Notebook) -> str:
    """Return that a page has no headline since it has no results; empty if it did not run to its end."""
    if notebook.status not in REACHED_THE_END or notebook.executed == 0:
        return ""
    return (
        f"Without a headline: there are no results of this page that can be read "
        f"(results/{notebook.name}.json). Its last output says whether it saved any."
    )


def _explain_no_headline(records: Sequence[Record]) -> str:
    """Return why the results of a page have no headline."""
    last = max(records, key=lambda record: record.moment)
    if last.without_headline:
        return f"Without a headline: {last.without_headline}."
    return (
        "Without a headline: its results hold none. A page names its headline in its metadata "
        "(metadata.metallab.headline), and metallab.finish() saves it."
    )


def _describe_headline_of_run(records: Sequence[Record]) -> str:
    """Return which of a page's own sentences are not in its headline, in a run, which has all of its records."""
    left_out = len(find_left_out(records))
    if headline_is_replaced(records):
        return (
            "The page says something else of itself: a time, a rate or a speed-up that nothing in its results gives in "
            "these words. This is what they give."
        )
    if left_out:
        return (
            f"Sentences of the page's headline that are left out: {left_out}. They tell a time, a rate or a speed-up "
            "that nothing in its results gives in these words."
        )
    return ""


def _describe_stored_headline(notebook: Notebook, records: Sequence[Record]) -> str:
    """Return why the headline of a stored page is not in the page's own words; empty if it is, as far as was kept.

    Parameters
    ----------
    notebook
        What the set's summary says of the page, and of its headline when it was stored.
    records
        The one record that a set keeps of a page.
    """
    if notebook.headline_is_withheld:
        return (
            "A speed-up in the page's own headline is withheld, because the machine was disturbed; the page says by "
            "what."
        )
    if notebook.headline_is_replaced:
        return (
            "The page says something else of itself: a time, a rate or a speed-up that nothing in its results gave in "
            "these words when it was stored. This is one of its measurements."
        )

    if notebook.headline_left_out:
        return (
            f"Sentences of the page's headline that were left out when it was stored: {notebook.headline_left_out}. "
            "They tell a time, a rate or a speed-up that nothing in its results gave in these words."
        )

    shown, said = headline_of(records), records[0].headline
    if shown is not None and said is not None and shown.sentences != said.sentences:
        return (
            "When the page was stored its headline was another one, which was checked with all of its measurements; "
            "this folder keeps one of them, and only what that one gives is shown."
        )
    was_kept = notebook.headline_is_replaced is not None
    if not was_kept and shown is not None and _is_measurement(shown, records):
        return (
            "This is one of its measurements. Whether the page says so of itself was not kept when it was stored; "
            "the page tells."
        )
    return ""


def _is_measurement(shown: Headline, records: Sequence[Record]) -> bool:
    """Return whether a headline is one of the measurements in words, which may be cut."""
    if len(shown.sentences) != 1:
        return False
    said = shown.sentences[0].removesuffix("…")
    return any(str(each.measurement).startswith(said) for each in records)


def _card(notebook: Notebook, run: Path, records: Sequence[Record], *, is_stored: bool) -> Card:
    """Return a notebook's card without the address of its page, which `_write_pages` adds.

    Parameters
    ----------
    notebook
        How it ended.
    run
        The folder of the run, where its executed notebook and the picture of its headline lie.
    records
        What its file of results holds; nothing without one that can be read.
    is_stored
        Whether the run is a stored set.

    Raises
    ------
    ReportError
        If the picture of its headline, or the notebook of a failure, cannot be read.
    """
    card = Card(notebook, disturbances=findings.list_disturbances(records))
    card.headline = headline_of(records) if records else None
    card.about_headline = describe_headline(notebook, records, is_stored=is_stored)

    path = run / (notebook.failed_copy or f"{notebook.name}.ipynb")
    if notebook.status in REACHED_THE_END and path.is_file():
        card.unmet = findings.unmet(_expectations(path), findings.conclusions(records))
    if path.is_file() and notebook.status == "failed":
        card.left, card.traceback = redact.shorten_paths(str(path)), traceback_tail(path)

    if card.headline and card.headline.picture:
        try:
            picture = read_picture(run / "results" / f"{notebook.name}.json", card.headline)
        except RecordError as problem:
            raise ReportError(str(problem)) from problem
        card.picture = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return card


def _write_pages(cards: Sequence[Card], run: Path, folder: Path) -> None:
    """Write each executed notebook as a page of HTML, and let its card lead there.

    Where a notebook cannot be read, the card leads to the file itself; where there is none, nowhere.

    Parameters
    ----------
    cards
        Of all notebooks; their ``page`` is set.
    run
        The folder of the run.
    folder
        That of the report: pages are written into ``pages`` in it, and addresses are seen from it.
    """
    files = {
        card.notebook.name: run / (card.notebook.failed_copy or f"{card.notebook.name}.ipynb")
        for card in cards
    }
    there = {name for name, file in files.items() if file.is_file()}

    for card in cards:
        name = card.notebook.name
        if name not in there:
            continue
        # a name comes from the run's summary, and may hold a path
        file, target = files[name], folder / "pages" / f"{Path(name).name}.html"
        card.page = quote(Path(os.path.relpath(target, folder)).as_posix())
        try:
            readable.write_page(file, target, card.notebook.title, there, "../index.html")
        except pages.PageError:
            card.page = quote(Path(os.path.relpath(file, folder)).as_posix())


def _expectations(path: Path) -> list[Expectation]:
    """Return what an executed page expects of its comparisons; nothing if the page cannot be read."""
    try:
        return expectations(pages.read_notebook(path))
    except pages.PageError:  # it is named where it is linked
        return []


def traceback_tail(path: Path) -> str:
    """Return the last `TRACEBACK_LINES` of the last error of a notebook, or of a text; empty if there was none.

    ReportError if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = _last_error(text)
    except (OSError, ValueError, AttributeError) as problem:
        raise ReportError(
            f"{path} cannot be read ({units.first_line(problem)}): run the page again"
        ) from problem

    lines = redact.shorten_paths(without_colours(text)).splitlines()
    if len(lines) > TRACEBACK_LINES:
        lines = ["...", *lines[-TRACEBACK_LINES:]]
    return "\n".join(lines)


def _last_error(text: str) -> str:
    """Return the traceback of the last error in a notebook's text; empty if there is none."""
    import nbformat

    outputs = [
        output for cell in nbformat.reads(text, 4).cells for output in cell.get("outputs", ())
    ]
    errors = [output for output in outputs if output.output_type == "error"]
    return "\n".join(errors[-1].traceback) if errors else ""


def name_what_is_amiss(statuses: Sequence[Status], unreadable: int) -> str:
    """Return how many pages ended otherwise than *passed*, by the word for it: a skip is no failure."""
    told = [
        f"{status} ({statuses.count(status)})"
        for status in ("failed", "incomplete", "skipped")
        if status in statuses
    ]
    if unreadable:
        told.append(f"not readable ({unreadable})")
    listed = ", ".join(told) or "nothing failed"
    return listed[:1].upper() + listed[1:]


def again(summary: RunSummary) -> list[str]:
    """Return which pages failed, are incomplete or were skipped, and what to do about it; a sentence each."""
    numbers: dict[str, list[str]] = {}
    for notebook in summary.notebooks:
        if notebook.status != "passed":
            what = f"{notebook.status.capitalize()}{_advice(notebook, summary)}"
            numbers.setdefault(what, []).append(notebook.number)
    sentences = [f"{what}: {', '.join(several)}." for what, several in numbers.items()]

    to_renew = [each for each in summary.notebooks if each.status == "incomplete" or each.withheld]
    if summary.is_stored and to_renew:
        sentences.append(_explain_renewing(to_renew[0], summary))
    return sentences


def _explain_renewing(page: Notebook, summary: RunSummary) -> str:
    """Return how a page of a stored set is renewed, since nothing that is done here changes what was stored."""
    first = f"let {summary.label} rest"
    if page.status == "incomplete":
        first = f"bring what it lacked to {summary.label}"

    folder = f"build/{summary.mode}-{summary.device}"
    return (
        "Nothing that is installed or run here changes a stored page. "
        f"To renew one, such as {page.number}, {first}, and there: make run ONLY={page.number}, "
        f"then make show RUN={folder}."
    )


class Axis:
    """A logarithmic axis of speed-ups, between two powers of two."""

    def __init__(self, conclusions: Iterable[Conclusion]) -> None:
        """It holds 1/2 to 2 and every interval, within 1/64 to 1024."""
        ends = [
            math.log2(min(max(end, 2**-6), 2**10))
            for each in conclusions
            for end in each.ratio or ()
        ]
        self.low, self.high = math.floor(min([-1.0, *ends])), math.ceil(max([1.0, *ends]))

    def at(self, value: float) -> float:
        """Return the position of a speed-up, in per cent of the axis's length."""
        exponent = math.log2(min(max(value, 2.0**self.low), 2.0**self.high))
        return round(100 * (exponent - self.low) / (self.high - self.low), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Position and name of at most about seven powers of two, 1 among them."""
        step = math.ceil((self.high - self.low) / 7)
        exponents = [
            exponent for exponent in range(self.low, self.high + 1) if exponent % step == 0
        ]
        return [
            (self.at(2.0**power), f"{2**power}" if power >= 0 else f"1/{2**-power}")
            for power in exponents
        ]


def _advice(notebook: Notebook, summary: RunSummary) -> str:
    """Return in brackets what to do about a page that did not pass, or why it did not; empty if that is said below."""
    if notebook.status == "failed":
        return f" (fix what is named below, and make run ONLY={notebook.number})"
    if notebook.status == "incomplete" and summary.is_stored:
        return ""
    fixes = dict.fromkeys(str(gap["fix"]) for gap in notebook.not_run)
    return f" ({'; '.join(fixes) or notebook.reason})"


def describe_days(records: Sequence[Record]) -> str:
    """Return the days on which records were taken: one, or the first and the last; empty if there are none."""
    days = sorted({f"{record.moment:%Y-%m-%d}" for record in records})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""


def merge_rows(machines: Sequence[machine.Machine]) -> list[tuple[str, str]]:
    """Return the provenance of all records in one table, with every value where they differ.

    What changes from moment to moment has no row: each record has another value.
    """
    described = [dict(each.rows()) for each in machines]
    momentary = set(machine.find_momentary().values())

    rows = []
    for label in described[0]:
        if label not in momentary:
            values = dict.fromkeys(of_one[label] for of_one in described)
            rows.append((label, "; ".join(values)))
    return rows


def duration(seconds: float) -> str:
    """Return seconds as a reader says them: ``0.3 s``, ``42 s``, ``3 min 5 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Run ``metallab report``, and return its exit code.

    It ends with how many pages of the run are incomplete, since `make run` ends with it.

    Parameters
    ----------
    parser
        Without arguments yet.
    arguments
        What stands behind the command's name.

    Returns
    -------
    int
        0; 2 if the report cannot be made, or a file of results cannot be read.

    Raises
    ------
    SystemExit
        With 2, if the arguments are wrong, and with 0 after ``--help``, as `argparse` does.
    """
    parser.add_argument(
        "run", type=Path, nargs="?", help="folder of a run; by default the latest under build/"
    )
    run = parser.parse_args(arguments).run

    try:
        run = run.resolve() if run else latest_run(paths.BUILD)
        path, unreadable = make(run, paths.REPORT)
        summary = read_summary(run)
    except (ReportError, OSError) as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 2

    print(f"report: {path}")
    for each in unreadable:
        print(f"report: left out: {each.what}: {each.reason}", file=sys.stderr)
    gaps = [page.not_run for page in summary.notebooks if page.status == "incomplete"]
    closing = closing_line(gaps, where="the report says why", ran_here=not summary.is_stored)
    if closing:
        print(closing)
    return 2 if unreadable else 0
