"""Executed pages for the repository, and the pictures in README: ``python -m metallab.results.show RUN ...``.

A set, ``data/executed/<machine>``, reads like a run's folder: ``NN_name.ipynb``, ``summary.json``, and in ``results``
for each page the PNG of its headline and one record, with headline and machine. It is made from finished runs in full
mode of that machine: a page of a later run replaces itself, and the other pages stay.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import nbformat

from metallab import machine, notebook, paths, records, timing, units
from metallab.records import Record
from metallab.results import findings, pages, plain, report

EXECUTED = paths.ROOT / "data" / "executed"
README = paths.ROOT / "README.md"
MOST_BYTES = 10_000_000
"""Of a set."""
PICTURE_WIDTH = 640
"""Of a headline's picture, in pixels."""
FIRST = ("01", "02b", "04", "05", "08", "11")
"""The pages whose pictures README shows at once; the others unfold."""

BEGIN, END = "<!-- pictures of the pages: made by `make show` -->", "<!-- end of the pictures -->"
_ROW = re.compile(r"^(\| \w+ \| \[[^]]+\]\(notebooks/([^)]+)\.ipynb\))[^|]*\|", re.MULTILINE)
_COLUMNS = 2


class ShowError(ValueError):
    """A run, or a page of it, that is not shown; the message says why, and what to do."""


@dataclass(frozen=True)
class Executed:
    """A page of a set: how it ended, and its record."""

    folder: Path
    entry: report.Notebook
    record: Record

    @property
    def number(self) -> str:
        """Such as ``02b``."""
        return self.entry.name.split("_")[0]

    @property
    def path(self) -> Path:
        return self.folder / f"{self.entry.name}.ipynb"

    @property
    def doubted(self) -> bool:
        """Whether its machine was busy, or its speed drifted, while something of it was measured."""
        return _doubted(self.record)

    @property
    def picture(self) -> Path | None:
        """That of its headline."""
        headline = self.record.headline
        return self.folder / "results" / headline.picture if headline and headline.picture else None


@dataclass(frozen=True)
class ExecutedSet:
    """The executed pages of one machine, and those that it lacks, each with the reason."""

    folder: Path
    summary: report.RunSummary
    pages: dict[str, Executed]
    """By the names of the notebooks."""

    @property
    def short(self) -> str:
        """The machine in a word or two."""
        return "CPU" if self.summary.device == "cpu" else self.summary.label

    @property
    def lacking(self) -> list[report.Notebook]:
        return [entry for entry in self.summary.notebooks if entry.status == "skipped"]


@dataclass
class _Draft:
    """What a set is made of."""

    shown: dict[str, report.Notebook] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    stored: dict[str, report.Notebook] = field(default_factory=dict)
    """The pages that the set has from before."""


def make(runs: Sequence[Path], folder: Path = EXECUTED) -> tuple[Path, dict[str, str]]:
    """Put the pages of runs into the set of their machine, and return its folder and the reason for each refused page.

    ShowError if nothing is written: a run is not finished, fast or simulated, the runs are of several machines, no page
    may be shown, or the set would be too large.
    """
    runs = [run.resolve() for run in runs]
    summaries = [_finished(run) for run in runs]
    labels = {summary.label for summary in summaries}
    if len(labels) > 1:
        raise ShowError(
            f"the runs are of several machines, {' and '.join(sorted(labels))}: show each of them by itself"
        )
    with tempfile.TemporaryDirectory(prefix="metallab-show-") as work:
        target, made = folder / Path(paths.results_file(summaries[-1].label)).stem, Path(work, "set")
        draft = _draft_of(target, made)
        for run, summary in zip(runs, summaries, strict=True):
            for entry in summary.notebooks:
                _try_page(draft, entry, run, summary, made)
        if not draft.shown:
            raise ShowError("no page of it may be shown: " + "; ".join(draft.refused.values() or ["it has none"]))
        _write_summary(made, summaries[-1], draft)
        _assert_small(made)
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(made, target)
    return target, draft.refused


def _draft_of(target: Path, made: Path) -> _Draft:
    """Copy the stored set, less the pages that the checkout no longer has. ShowError if its folder holds no set."""
    if not target.exists():
        made.mkdir()
        return _Draft()
    summary, problems = report.read_summary(target)
    if problems:
        raise ShowError(f"{target} is there and is no set of executed pages: move it away")
    shutil.copytree(target, made)
    lacking = {entry.name: entry.reason for entry in summary.notebooks if entry.status == "skipped"}
    there = {path.stem for path in paths.NOTEBOOKS.glob("[0-9]*.ipynb")}
    stored = {entry.name: entry for entry in summary.notebooks if entry.name in there - lacking.keys()}
    for file in (*made.glob("*.ipynb"), *made.glob("results/*")):
        if file.stem not in stored:
            file.unlink()
    return _Draft(lacking=lacking, stored=stored)


def _finished(run: Path) -> report.RunSummary:
    summary, problems = report.read_summary(run)
    if problems:
        raise ShowError(f"{run}: {problems[0].what}: {problems[0].reason}; name the folder of a finished run")
    if summary.simulated:
        raise ShowError(f"{run} was simulated: what it measured is of no GPU; show the run of a real device")
    if summary.mode != "full":
        raise ShowError(f"{run} is a run in {summary.mode} mode, of which nothing follows: make run MODE=full")
    return summary


def _try_page(draft: _Draft, entry: report.Notebook, run: Path, summary: report.RunSummary, made: Path) -> None:
    """Put a page among those that are shown, or say why it is not; an earlier one stays then."""
    name = entry.name
    if entry.status == "skipped":
        draft.lacking[name] = entry.reason or "skipped"
        return
    try:
        _write_page(entry, run, summary, made)
    except (ShowError, plain.PlainError, pages.PageError, records.RecordError) as problem:
        if name not in draft.shown:
            draft.refused[name] = f"{name}: {plain.without_paths(str(problem))}"
            draft.lacking[name] = (
                "it failed there" if entry.status == "failed" else "what it did there may not be shown"
            )
        return
    draft.shown[name] = entry
    draft.refused.pop(name, None)


def _write_page(entry: report.Notebook, run: Path, summary: report.RunSummary, made: Path) -> None:
    """Write one page with its record and its picture. ShowError if it may not be shown."""
    name, again = entry.name, f"make run ONLY={entry.name.split('_')[0]}"
    if entry.status == "failed":
        raise ShowError(f"it failed: {units.first_line(entry.reason) if entry.reason else 'see the run'}; {again}")
    executed = pages.read_notebook(run / f"{name}.ipynb")
    _assert_as_told(executed, entry, again)
    results = run / "results" / f"{name}.json"
    if results.resolve() != results:
        raise ShowError(f"results/{name}.json is reached through a link, which is not followed; {again}")
    measured = records.load(results)
    if any(each.lesson != name for each in measured):
        raise ShowError(f"results/{name}.json is of another page; {again}")
    if any(each.measurement.simulated or each.measurement.mode != "full" for each in measured):
        raise ShowError(f"its results are simulated or of fast mode, although the run says otherwise; {again}")
    original = paths.NOTEBOOKS / f"{name}.ipynb"
    if not original.exists():
        raise ShowError("there is no such notebook any more; leave it out")
    today = nbformat.read(original, 4)
    changed = code(executed) != code(today)
    if changed and summary.device == "cpu":
        raise ShowError(f"its code has changed since it ran; {again}")
    if changed and not measured[-1].machine.git_revision:
        raise ShowError(f"its code has changed since it ran, and nobody knows of which revision it is; {again}")
    plain.make_plain(executed)
    words = caption(entry, measured, summary.label, today.metadata["metallab"]["needs"])
    _write_text(executed, executed if changed else today, words)
    _write_record(made / "results" / f"{name}.json", results, measured)
    paths.write_atomically(made / f"{name}.ipynb", nbformat.writes(executed) + "\n")


def _write_text(executed: nbformat.NotebookNode, text: nbformat.NotebookNode, words: str) -> None:
    """Around an executed notebook's code another's text, with its links from here, and a caption under its title."""
    ran = iter([cell for cell in executed.cells if cell.cell_type == "code"])
    executed.cells = [next(ran) if cell.cell_type == "code" else copy.deepcopy(cell) for cell in text.cells]
    for cell in executed.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](../", "](../../../")
    title, _, rest = executed.cells[0].source.partition("\n")
    executed.cells[0].source = f"{title}\n\n{words}\n{rest}"


def renew(page: Executed) -> str:
    """The file of a stored page with the text of today's notebook, if that has the same code still: as it should be."""
    stored = page.path.read_text(encoding="utf-8")
    executed, original = nbformat.reads(stored, 4), paths.NOTEBOOKS / page.path.name
    if not original.exists() or code(executed) != code(today := nbformat.read(original, 4)):
        return stored
    _, _, *lines = executed.cells[0].source.split("\n")
    words = "\n".join(itertools.takewhile(lambda line: line.startswith(">"), lines))
    _write_text(executed, today, words)
    return nbformat.writes(executed) + "\n"


def _assert_as_told(executed: nbformat.NotebookNode, entry: report.Notebook, again: str) -> None:
    """ShowError if a page did not come to its end, or is incomplete and its summary does not say so."""
    fault = notebook.fault(executed)
    if fault:
        raise ShowError(f"{fault.reason}, although the run calls the page {entry.status}; {again}")
    gaps = notebook.not_run(executed)
    if bool(gaps) != (entry.status == "incomplete") or len(gaps) != len(entry.not_run):
        told = f"{len(entry.not_run)} parts not run" if entry.not_run else entry.status
        raise ShowError(f"cells of it name {len(gaps)} parts that were not run, its summary says {told}; {again}")


def code(executed: nbformat.NotebookNode) -> list[str]:
    """The texts of a notebook's code cells."""
    return ["".join(cell.source) for cell in executed.cells if cell.cell_type == "code"]


def caption(entry: report.Notebook, measured: Sequence[Record], label: str, needed: Sequence[str]) -> str:
    """What stands under the title of an executed page: on what, when and of which revision it ran, what is missing.

    Of the packages that it needs, and what belongs to them, those are named that are not the locked ones.
    """
    last = max(measured, key=lambda record: record.moment)
    name = f"{entry.name}.ipynb"
    lines = [
        f"**Executed** on {label}, {_day(last)}, in full mode, {_revision(last.machine)}. "
        f"Pictures are compressed. To run it yourself: [notebooks/{name}](../../../notebooks/{name})."
    ]
    if differing := [each for each in unlocked(last.machine) if each.startswith(tuple(needed))]:
        lines.append(f"Other versions than the locked ones: {'; '.join(differing)}.")
    lines.append(findings.trust(measured))
    if entry.not_run:
        lines.append(f"**Incomplete.** {_not_run(entry)}.")
    return "\n>\n".join(f"> {plain.without_paths(line)}" for line in lines if line)


def _not_run(entry: report.Notebook) -> str:
    """What was not run, each reason once with its cells."""
    cells: dict[str, list[str]] = {}
    for gap in entry.not_run:
        cells.setdefault(gap["what"], []).append(gap["where"].partition(" (")[0].removeprefix("cell "))
    return "Not run: " + "; ".join(
        f"{what} (cell{'s' * (len(numbers) > 1)} {', '.join(numbers)})" for what, numbers in cells.items()
    )


def _day(record: Record) -> str:
    return f"{record.moment.day} {record.moment:%B %Y}"


def _revision(described: machine.Machine) -> str:
    if not described.git_revision:
        return "of an unknown revision"
    return f"at revision {described.git_revision[:7]}{' with changes' if described.git_dirty else ''}"


def unlocked(described: machine.Machine) -> list[str]:
    """The packages of a machine whose versions are not the locked ones, in words."""
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", paths.CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE))
    return [
        f"{package} {version} (locked: {locked[package]})"
        for package, version in described.versions.items()
        if version and package in locked and version.split("+")[0] != locked[package]
    ]


def _write_record(target: Path, results: Path, measured: Sequence[Record]) -> None:
    """Write a small record that stands alone, with the page's headline, and the headline's picture, small.

    It is a doubted one, if there is any.
    """
    alone = [each for each in measured if each.comparison is None or each.comparison.outcome == "baseline"]
    kept = min(alone, key=lambda each: (not _doubted(each), each.measurement.n))
    headline = records.headline_of(measured)
    if traces := plain.leaks(f"{kept.machine.to_json()} {headline}"):
        raise ShowError(f"its results name {traces[0]!r}, which is of the machine that it ran on")
    target.parent.mkdir(exist_ok=True)
    drawn = target.with_suffix(".png")
    if headline and headline.picture:
        picture = plain.small_png(records.read_picture(results, headline), PICTURE_WIDTH)
        drawn.write_bytes(picture)
        headline = replace(headline, picture=drawn.name, sha256=hashlib.sha256(picture).hexdigest())
    else:
        drawn.unlink(missing_ok=True)
    records.write(target, [replace(kept, headline=headline)])


def _doubted(record: Record) -> bool:
    return timing.doubt(record.measurement, drift=record.sentinel_drift).passes


def _write_summary(made: Path, summary: report.RunSummary, draft: _Draft) -> None:
    """Write summary.json: the pages that are shown, and each notebook of the checkout that is not, with the reason."""
    shown = {name: replace(entry, failed_copy="") for name, entry in (draft.stored | draft.shown).items()}
    described = next(records.load(made / "results" / f"{name}.json")[0].machine for name in draft.shown)
    entries = []
    for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")):
        original = nbformat.read(path, 4)
        why = draft.lacking.get(path.stem) or _why_lacking(original, described)
        lacks = report.Notebook(path.stem, notebook.title_of(original), "skipped", reason=why)
        entries.append(asdict(shown.get(path.stem, lacks)))
    started = summary.started.isoformat() if summary.started else None
    text = json.dumps({**asdict(summary), "started": started, "notebooks": entries}, indent=1, ensure_ascii=False)
    paths.write_atomically(made / "summary.json", plain.without_paths(text) + "\n")


def _why_lacking(original: nbformat.NotebookNode, described: machine.Machine) -> str:
    """Why a machine's set does not have a page that none of its runs has."""
    missing = [name for name in original.metadata["metallab"]["needs"] if described.versions.get(name, "") is None]
    if missing:
        return f"{' and '.join(missing)} was not installed there"
    return "it was not run there"


def _assert_small(made: Path) -> None:
    sizes = {path: path.stat().st_size for path in made.rglob("*") if path.is_file()}
    if sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise ShowError(
            f"the set has {units.size(sum(sizes.values()))}, more than {units.size(MOST_BYTES)}: "
            f"let {largest.name}, the largest with {units.size(sizes[largest])}, draw smaller pictures"
        )


# --- what README and the sets' own page show ---


def read_sets(folder: Path = EXECUTED) -> list[ExecutedSet]:
    """The sets that are stored, those of a GPU first. RecordError or ShowError if one cannot be read."""
    sets = []
    for path in sorted(folder.glob("*/summary.json")):
        summary, problems = report.read_summary(path.parent)
        if problems:
            raise ShowError(f"{path}: {problems[0].reason}; make the set again: make show RUN=build/full-cpu")
        shown = {}
        for entry in summary.notebooks:
            if entry.status != "skipped":
                record = records.load(path.parent / "results" / f"{entry.name}.json")[0]
                shown[entry.name] = Executed(path.parent, entry, record)
        sets.append(ExecutedSet(path.parent, summary, shown))
    return sorted(sets, key=lambda each: each.summary.device == "cpu")


def update(folder: Path = EXECUTED, readme: Path = README) -> None:
    """Write today's text into the stored pages, and what README and ``data/executed/README.md`` show of the sets."""
    sets = read_sets(folder)
    for page in (page for each in sets for page in each.pages.values()):
        paths.write_atomically(page.path, renew(page))
    paths.write_atomically(readme, with_pages(readme.read_text(encoding="utf-8"), sets))
    paths.write_atomically(folder / "README.md", index(sets))


def with_pages(readme: str, sets: Sequence[ExecutedSet]) -> str:
    """README's text with the pictures of the pages, and links to executed pages in the table of the notebooks.

    ShowError if it has no place for them.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ShowError(f"README.md needs the lines {BEGIN} and {END}: the pictures stand between them")
    linked = _ROW.sub(lambda row: f"{row[1]}{_links(row[2], sets)} |", after)
    return f"{before}{BEGIN}\n{gallery(sets)}\n{END}{linked}"


def _links(name: str, sets: Sequence[ExecutedSet]) -> str:
    """The page as each machine ran it, behind a line break."""
    shown = [(each.short, each.pages[name]) for each in sets if name in each.pages]
    links = [f"[{machine_name}]({_from_root(page, page.path)})" for machine_name, page in shown]
    return f"<br>{', '.join(links)}" if links else ""


def _from_root(page: Executed, file: Path) -> str:
    """A file of a page's set, as README at the top of the checkout names it."""
    return f"data/executed/{file.relative_to(page.folder.parent).as_posix()}"


def gallery(sets: Sequence[ExecutedSet]) -> str:
    """A picture a page with its first sentence and its machine, as a Markdown table; the less striking ones unfold.

    A page is shown as a quiet machine ran it rather than a busy one, then as a GPU rather than a CPU, then as the
    machine did that ran all of it.
    """
    names = sorted({name for each in sets for name in each.pages})
    cells = {}
    for name in names:
        having = [each for each in sets if name in each.pages and each.pages[name].picture]
        if having:
            best = min(having, key=lambda each: _rank(each, each.pages[name]))
            cells[name.split("_")[0]] = _cell(best.pages[name], best.summary.label)
    first = [cell for number, cell in cells.items() if number in FIRST]
    others = [cell for number, cell in cells.items() if number not in FIRST]
    if not first or not others:
        return "\n\n".join([_LEADS, _table([*first, *others])]) if cells else ""
    unfolding = f"<details>\n<summary>{len(others)} more pages, each with its picture</summary>\n\n{_table(others)}\n\n"
    return f"{_LEADS}\n\n{_table(first)}\n\n{unfolding}</details>"


_LEADS = """\
Each picture leads to its page as it ran, to read before installing anything. No Mac has run them yet:
[yours would be the first](docs/first_hour_on_a_mac.md)."""


def _rank(each: ExecutedSet, page: Executed) -> tuple[bool, ...]:
    return page.doubted, each.summary.device == "cpu", bool(page.entry.not_run)


def _cell(page: Executed, label: str) -> str:
    headline, link = page.record.headline, _from_root(page, page.path)
    title = page.entry.title.partition(":")[0]
    picture = f"[![{_alternative(headline.alternative_text)}]({_from_root(page, page.picture)})]({link})"
    sentence = _escaped(headline.sentences[0].rstrip("."))
    return f"{picture}<br>[**{page.number} {title}**]({link}): {sentence}. *{_escaped(label)}*"


def _alternative(text: str, longest: int = 160) -> str:
    """The first words of a picture's description, as README can hold them."""
    words = text if len(text) <= longest else f"{text[:longest].rpartition(' ')[0].rstrip(';,:')} ..."
    return _escaped(words).replace("[", "(").replace("]", ")")


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*`<])", r"\\\1", text)


def _table(cells: Sequence[str]) -> str:
    rows = [cells[start : start + _COLUMNS] for start in range(0, len(cells), _COLUMNS)]
    lines = [f"| {' | '.join([*row, *[''] * (_COLUMNS - len(row))])} |" for row in rows]
    return "\n".join(["| " * _COLUMNS + "|", "|---" * _COLUMNS + "|", *lines]) if lines else ""


def index(sets: Sequence[ExecutedSet]) -> str:
    """The text of ``data/executed/README.md``: what each set is, and which pages it lacks."""
    return "\n".join([_INTRODUCTION, *(line for each in sets for line in _of_set(each))]) + "\n"


_INTRODUCTION = """\
# Executed pages

The notebooks as they ran, in full mode, for whoever wants to read before installing anything. `make show` writes this
folder from a finished run, and never by hand: `make run`, then `make show RUN=build/full-cpu`. Each page says under its
title when, where and at which revision it ran; a set of another machine may be older than the notebooks. Around code
that has not changed since, the text is today's.

Against the run, pictures have fewer colours, films fewer frames, tables no colours (what was coloured is bold), and
paths begin at the checkout. `results` holds the picture of each page's headline and one of its measurements, which
carries headline and machine: all measurements are in [data/results](../results/README.md)."""


def _of_set(each: ExecutedSet) -> Iterator[str]:
    yield f"\n## {each.summary.label}\n"
    versions = {name: unlocked(page.record.machine) for name, page in each.pages.items()}
    alike = len({tuple(differing) for differing in versions.values()}) == 1
    if alike and (differing := next(iter(versions.values()))):
        yield f"Other versions than the locked ones: {'; '.join(differing)}.\n"
    yield "| page | day | what to know |\n|---|---|---|"
    for name, page in each.pages.items():
        told = [_revision(page.record.machine), *([] if alike else versions[name])]
        told += ["on a busy machine"] if page.doubted else []
        told += [_not_run(page.entry)] if page.entry.not_run else []
        link = f"[{page.number}]({each.folder.name}/{page.path.name})"
        yield f"| {link} | {_day(page.record)} | {_escaped('; '.join(told))} |"
    if each.lacking:
        lacks = [f"{entry.name.split('_')[0]} ({entry.reason})" for entry in each.lacking]
        yield f"\nNot shown: {'; '.join(lacks)}."


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 if pages of a run were refused; 2 if nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m metallab.results.show", description=__doc__.splitlines()[0])
    what = "folder of a finished run in full mode; without one, text and README are written anew for the stored sets"
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help=what)
    runs = parser.parse_args(arguments).runs
    refused: dict[str, str] = {}
    try:
        if runs:
            folder, refused = make(runs, EXECUTED)
            print(f"show: {paths.shown(folder)}")
        update(EXECUTED, README)
    except (ShowError, records.RecordError) as problem:
        print(f"show: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(
            f"show: {problem.filename}: {problem.strerror}; make room there, and see that you may write to it",
            file=sys.stderr,
        )
        return 2
    for reason in refused.values():
        print(f"show: not shown: {reason}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
