"""Executed pages for the repository, and the gallery of them: ``python -m metallab.results.publish.show RUN ...``.

A set, ``data/executed/<machine>``, reads like a run's folder: ``NN_name.ipynb``, ``summary.json``, and in ``results``
for each page the PNG of its headline and one record, with headline and machine. A page of a finished run in full mode
replaces itself, the others stay. The gallery, ``docs/gallery.md``, is written anew, and rows of README get their links.
Stored pages may be of different days: a link between them to what is not there is led to what is.
"""

from __future__ import annotations

import argparse
import base64
import copy
import functools
import hashlib
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import nbformat

from metallab import notebook, paths, records, redact, timing
from metallab.authoring import course_tables
from metallab.machine import Machine
from metallab.records import Record
from metallab.results import findings, report
from metallab.results.publish import pages, plain

EXECUTED = paths.ROOT / "data" / "executed"
GALLERY = paths.ROOT / "docs" / "gallery.md"
README = paths.ROOT / "README.md"
GALLERY_PICTURE = "_gallery.png"
"""How the name of a picture ends that the gallery shows in place of a headline's."""
PICTURE_WIDTH = 640
"""Of a headline's picture, in pixels."""


_LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=\))")


class ShowError(ValueError):
    """A run or a page that is not shown; the message says why, and what to do."""


@dataclass(frozen=True)
class Executed:
    """A page of a set: how it ended, and its record."""

    folder: Path
    entry: report.Notebook
    record: Record

    @property
    def path(self) -> Path:
        """The executed notebook."""
        return self.folder / f"{self.entry.name}.ipynb"

    @property
    def picture(self) -> Path | None:
        """That of its headline."""
        headline = self.record.headline
        return self.folder / "results" / headline.picture if headline and headline.picture else None


@dataclass(frozen=True)
class ExecutedSet:
    """The executed pages of one machine."""

    folder: Path
    summary: report.RunSummary
    pages: dict[str, Executed]
    """By the names of the notebooks."""


def make(run: Path, folder: Path = EXECUTED) -> tuple[Path, dict[str, str]]:
    """Put the pages of a run into the set of its machine; return the set's folder, and the reason for each refusal.

    ShowError if the run is in fast mode or simulated, or no page may be shown.
    """
    summary = report.read_summary(run)
    if summary.simulated:
        raise ShowError(f"{run} was simulated: show the run of a real device")
    if summary.mode != "full":
        raise ShowError(f"{run} is a run in {summary.mode} mode: make run MODE=full")
    target = folder / Path(paths.results_file(summary.label)).stem

    shown = _read_shown(target)
    added: dict[str, report.Notebook] = {}
    refused: dict[str, str] = {}
    why: dict[str, str] = {}
    for entry in summary.notebooks:
        if entry.status == "skipped" or _ran_without_its_tool(entry):
            why[entry.name] = entry.reason
            continue
        try:
            added[entry.name] = _summarize(entry, _write_page(entry, run, summary, target))
        except (ShowError, plain.PlainError, pages.PageError, records.RecordError) as problem:
            refused[entry.name] = f"{entry.name}: {redact.shorten_paths(str(problem))}"
            why[entry.name] = "what it did there may not be shown"
            if entry.status == "failed":
                why[entry.name] = "it failed there"

    if not added:
        reasons = list(refused.values()) or ["it has none"]
        raise ShowError(f"no page of it may be shown: {'; '.join(reasons)}")
    _write_summary(target, summary, shown | added, why)
    return target, refused


def _ran_without_its_tool(entry: report.Notebook) -> bool:
    """Return whether none of a page's cells ran, since the tool that it is about was missing."""
    return entry.status == "incomplete" and entry.executed == 0


def _read_shown(target: Path) -> dict[str, report.Notebook]:
    """Return the pages that a set has, by name."""
    if not (target / "summary.json").exists():
        return {}
    entries = report.read_summary(target).notebooks
    return {entry.name: entry for entry in entries if entry.status != "skipped"}


def _summarize(entry: report.Notebook, measured: Sequence[Record]) -> report.Notebook:
    """Return what a set's summary says of a page."""
    return replace(
        entry,
        failed_copy=None,
        headline_is_withheld=records.headline_is_withheld(measured),
        withheld=sum(each.has_lost_its_speed_up for each in measured),
    )


def _write_page(
    entry: report.Notebook, run: Path, summary: report.RunSummary, target: Path
) -> list[Record]:
    """Write one page with its record and its picture; return its records. ShowError if it may not be shown."""
    name, advice = entry.name, f"make run ONLY={entry.number}"
    if entry.status == "failed":
        raise ShowError(f"it failed: {entry.reason}; {advice}")
    original, results = paths.NOTEBOOKS / f"{name}.ipynb", run / "results" / f"{name}.json"
    if not original.exists() or "/" in name:
        raise ShowError("there is no such notebook any more")

    executed = plain.make_plain(pages.read_notebook(run / f"{name}.ipynb"))
    if (notebook.title_of(executed) or name) != entry.title:
        raise ShowError(f"its notebook is another page's; {advice}")
    measured = records.load(results)
    for each in measured:
        if fault := _find_fault(each, name, summary.device):
            raise ShowError(f"its results are {fault}; {advice}")

    today = nbformat.read(original, 4)
    words = write_caption(entry, measured, summary.label, today.metadata["metallab"]["needs"])
    _write_text(executed, today if read_code(executed) == read_code(today) else executed, words)
    _write_record(target / "results" / f"{name}.json", results, measured)
    paths.write_atomically(target / f"{name}.ipynb", nbformat.writes(executed) + "\n")
    return measured


def _write_text(executed: nbformat.NotebookNode, text: nbformat.NotebookNode, words: str) -> None:
    """Put another notebook's text around executed code, and a caption under its title."""
    ran = iter([cell for cell in executed.cells if cell.cell_type == "code"])
    executed.cells = [
        next(ran) if cell.cell_type == "code" else copy.deepcopy(cell) for cell in text.cells
    ]
    for cell in executed.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](../", "](../../../")
    title, _, rest = executed.cells[0].source.partition("\n")
    executed.cells[0].source = f"{title}\n\n{words}\n{rest}"


def renew(page: Executed) -> str:
    """Return a stored page with the text of today's notebook, if that has the same code."""
    stored = page.path.read_text(encoding="utf-8")
    executed, original = nbformat.reads(stored, 4), paths.NOTEBOOKS / page.path.name
    if not original.exists() or read_code(executed) != read_code(
        today := nbformat.read(original, 4)
    ):
        return stored
    _, _, *lines = executed.cells[0].source.split("\n")
    words = "\n".join(itertools.takewhile(lambda line: line.startswith(">"), lines))
    _write_text(executed, today, words)
    return nbformat.writes(executed) + "\n"


def _find_fault(record: Record, name: str, device: str) -> str | None:
    """Return why a record is not one of a page on a device in full mode."""
    measurement = record.measurement
    if measurement.simulated or measurement.mode != "full" or record.lesson != name:
        return "simulated, of fast mode or another page's"
    if record.machine.environment.get("METALLAB_DEVICE", device) != device:
        return "of another device"
    return None


def mend_links(
    executed: nbformat.NotebookNode, folder: Path, anchors_of: Callable[[Path], Collection[str]]
) -> list[str]:
    """Lead a stored page's links to what is there, and return those that lost the heading which they named.

    A link to a page that did not run on this machine leads to the notebook; one to a heading that is missing, of a page
    or of a guide, to the top of it.

    Parameters
    ----------
    executed
        The page; its text is changed in place.
    folder
        The folder that it is stored in.
    anchors_of
        The names of the headings of a notebook or guide that is there.
    """
    lost = []

    def lead(link: re.Match[str]) -> str:
        target, anchor = link.groups(default="")
        notebook_of_today = f"../../../notebooks/{target}"
        is_page = re.fullmatch(r"\w+\.ipynb", target)
        if is_page and not (folder / target).exists() and (folder / notebook_of_today).exists():
            target = notebook_of_today

        there = folder / target
        has_headings = there.suffix in (".ipynb", ".md") and there.is_file()
        if anchor and has_headings and anchor[1:] not in anchors_of(there.resolve()):
            lost.append(f"{target}{anchor}")
            anchor = ""
        return target + anchor

    for cell in executed.cells:
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(lead, cell.source)
    return lost


def read_code(executed: nbformat.NotebookNode) -> list[str]:
    """Return the sources of a notebook's code cells."""
    return [cell.source for cell in executed.cells if cell.cell_type == "code"]


def write_caption(
    entry: report.Notebook, measured: Sequence[Record], label: str, needed: Sequence[str]
) -> str:
    """Return the caption of an executed page: on what, when and of which revision it ran, what is missing.

    ``needed`` are packages of which another version than the locked one is named.
    """
    last = max(measured, key=lambda record: record.moment)
    name = f"{entry.name}.ipynb"
    day, at = f"{last.moment.day} {last.moment:%B %Y}", describe_revision(last.machine)
    lines = [
        f"**Executed** on {label}, {day}, in full mode, {at}. "
        f"Pictures are compressed. To run it yourself: [notebooks/{name}](../../../notebooks/{name})."
    ]

    if differing := [
        each for each in find_unlocked(last.machine) if each.startswith(tuple(needed))
    ]:
        lines.append(f"Other versions than the locked ones: {'; '.join(differing)}.")
    lines.append(findings.trust(measured))
    if entry.not_run:
        lines.append(f"**Incomplete.** {_describe_gaps(entry)}.")
    return "\n>\n".join(f"> {redact.shorten_paths(line)}" for line in lines if line)


def _describe_gaps(entry: report.Notebook) -> str:
    """Return what was not run, each reason once with its cells."""
    cells: dict[str, list[str]] = {}
    for gap in entry.not_run:
        where = str(gap["where"]).partition(" (")[0]
        cells.setdefault(str(gap["what"]), []).append(where)
    return "Not run: " + "; ".join(f"{what} ({', '.join(where)})" for what, where in cells.items())


def describe_revision(described: Machine) -> str:
    """Return the revision at which a page ran, in words."""
    if not described.git_revision:
        return "of an unknown revision"
    words = f"at revision {described.git_revision[:7]}"
    return f"{words} with changes" if described.git_dirty else words


def find_unlocked(described: Machine) -> list[str]:
    """Return the packages of a machine with other versions than the locked ones, in words."""
    constraints = paths.CONSTRAINTS.read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", constraints, re.MULTILINE))
    return [
        f"{package} {version} (locked: {locked[package]})"
        for package, version in described.versions.items()
        if version and package in locked and version.split("+")[0] != locked[package]
    ]


def _write_record(target: Path, results: Path, measured: Sequence[Record]) -> None:
    """Write one small record, a disturbed one if there is any, with the page's headline and its picture."""
    alone = [
        each
        for each in measured
        if each.comparison is None or each.comparison.outcome == "baseline"
    ]
    kept = min(alone, key=lambda each: (not _is_disturbed(each), each.measurement.n))
    headline, drawn = records.headline_of(measured), target.with_suffix(".png")
    if traces := redact.find_private(f"{kept.machine.to_json()} {headline}"):
        raise ShowError(f"its results name {traces[0]!r}, which is of the machine that it ran on")

    target.parent.mkdir(parents=True, exist_ok=True)
    if headline and headline.picture:
        picture = plain.make_small_png(records.read_picture(results, headline), PICTURE_WIDTH)
        drawn.write_bytes(picture)
        headline = replace(headline, picture=drawn.name, sha256=hashlib.sha256(picture).hexdigest())
    else:
        drawn.unlink(missing_ok=True)
    records.write(target, [replace(kept, headline=headline)])


def _is_disturbed(record: Record) -> bool:
    """Return True if the machine was busy, or its speed drifted."""
    withheld = timing.why_withheld(record.measurement, drift=record.sentinel_drift)
    return withheld is not None and withheld.is_transient


def _write_summary(
    target: Path, summary: report.RunSummary, shown: dict[str, report.Notebook], why: dict[str, str]
) -> None:
    """Write summary.json: the pages that are shown, and why other notebooks are not."""
    described = records.load(target / "results" / f"{[*shown][-1]}.json")[0].machine

    entries = []
    for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")):
        entry = shown.get(path.stem)
        if entry is None:
            original = nbformat.read(path, 4)
            reason = why.get(path.stem) or _explain_not_run(original, described)
            title = notebook.title_of(original)
            entry = report.Notebook(path.stem, title, "skipped", reason=reason)
        entries.append(asdict(entry))

    started = summary.started.isoformat() if summary.started else None
    content = {**asdict(summary), "started": started, "notebooks": entries}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    paths.write_atomically(target / "summary.json", text + "\n")


def _explain_not_run(original: nbformat.NotebookNode, described: Machine) -> str:
    """Return why a notebook did not run on a machine, as far as its packages tell."""
    needed = original.metadata["metallab"]["needs"]
    missing = [name for name in needed if described.versions.get(name, "") is None]
    return f"{' and '.join(missing)} was not installed there" if missing else "it was not run there"


# --- the gallery ---


def read_sets(folder: Path = EXECUTED) -> list[ExecutedSet]:
    """Return the stored sets, those of a GPU first. RecordError, ReportError or ShowError if one is not as shown."""
    sets = []
    for target in sorted(path.parent for path in folder.glob("*/summary.json")):
        summary = report.read_summary(target)
        shown: dict[str, Executed] = {}
        for entry in summary.notebooks:
            if entry.status != "skipped":
                record = records.load(target / "results" / f"{entry.name}.json")[0]
                shown[entry.name] = Executed(target, entry, record)
                _check_stored(shown[entry.name])
        sets.append(ExecutedSet(target, summary, shown))

    return sorted(sets, key=lambda each: each.summary.device == "cpu")


def _check_stored(page: Executed) -> None:
    """Raise ShowError or RecordError if notebook, record and picture are not of this page, machine and revision."""
    name, record = page.entry.name, page.record
    first_cell = nbformat.read(page.path, 4).cells[0].source
    on = re.search(r"^> \*\*Executed\*\* on (.+), \d+ \w+ \d{4}, ", first_cell, re.MULTILINE)

    is_of_machine = on and Path(paths.results_file(on[1])).stem == page.folder.name
    is_of_page = f"[notebooks/{name}.ipynb]" in first_cell and record.lesson == name
    if not is_of_machine or not is_of_page or describe_revision(record.machine) not in first_cell:
        raise ShowError(
            f"{paths.shorten(page.path)} and its file in results do not belong together: show it again"
        )
    if page.picture and record.headline:
        records.read_picture(page.folder / "results" / f"{name}.json", record.headline)


def update(folder: Path = EXECUTED, file: Path = GALLERY) -> list[str]:
    """Write today's text into the stored pages, and the gallery; lead README's rows to what `choose_copy` chooses.

    Returns a sentence for each link that lost the heading which it named, because a page or guide does not have it.
    """
    sets = read_sets(folder)
    lost = _write_pages([page for each in sets for page in each.pages.values()])
    _write_pictures(sets)
    paths.write_atomically(file, render_gallery(sets, f"../data/{folder.name}"))
    paths.write_atomically(README, _link_readme(README.read_text(encoding="utf-8"), sets))
    return lost


def _link_readme(text: str, sets: Sequence[ExecutedSet]) -> str:
    """Return README whose titles of pages lead to stored copies, as far as `choose_copy` finds one."""
    copies: dict[str, str | None] = {}
    for name in {name for each in sets for name in each.pages}:
        best = choose_copy([each.pages[name] for each in sets if name in each.pages])
        copies[f"{name}.ipynb"] = None
        if best is not None:
            folder = f"data/{best.folder.parent.name}/{best.folder.name}"
            copies[f"{name}.ipynb"] = f"{folder}/{best.path.name}"
    return course_tables.link_copies(text, copies)


def choose_copy(copies: Sequence[Executed]) -> Executed | None:
    """Return the copy of a page that readers are led to; None if none ran whole and has a headline to give.

    One of today's code comes first, then the one that withholds the fewest speed-ups, then one of a quiet machine. Of
    equals the first is taken: the copy of a GPU, in the order of `read_sets`.
    """
    return min(filter(is_linked, copies), key=_list_shortcomings, default=None)


def is_linked(page: Executed) -> bool:
    """Return True if a copy may be led to: it ran whole, and its headline is not that no speed-up is given."""
    return not page.entry.not_run and not page.entry.headline_is_withheld


def _list_shortcomings(page: Executed) -> tuple[bool, int, bool]:
    """Return what speaks against a copy, the gravest first."""
    return not is_current(page), page.entry.withheld, _is_disturbed(page.record)


def is_current(page: Executed) -> bool:
    """Return True if a stored page ran the code of today's notebook."""
    original = paths.NOTEBOOKS / page.path.name
    if not original.exists():
        return False
    return read_code(nbformat.read(page.path, 4)) == read_code(nbformat.read(original, 4))


def _write_pages(stored: Sequence[Executed]) -> list[str]:
    """Write today's text into stored pages, and let its links lead to what is stored; a sentence for each lost heading.

    All texts are renewed before the first link is followed, as that may lead to any of them.
    """
    renewed = {page.path.resolve(): renew(page) for page in stored}

    @functools.cache
    def anchors_of(path: Path) -> frozenset[str]:
        text = renewed[path] if path in renewed else path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            return pages.find_anchors(
                pages.read_texts(nbformat.reads(text, 4)), pages.make_jupyter_anchor
            )
        return pages.find_anchors([text], pages.make_github_anchor)

    sentences = []
    for path, text in renewed.items():
        executed = nbformat.reads(text, 4)
        before = pages.read_texts(executed)
        lost = mend_links(executed, path.parent, anchors_of)
        has_changed = pages.read_texts(executed) != before
        paths.write_atomically(path, nbformat.writes(executed) + "\n" if has_changed else text)
        sentences += [
            f"{paths.shorten(path)}: no heading {link}: the link leads to the page" for link in lost
        ]
    return sentences


def render_gallery(sets: Sequence[ExecutedSet], there: str = "../data/executed") -> str:
    """Return the gallery: each page's picture, what it teaches, and links to each machine that ran all of it.

    The picture is that of the copy that `choose_copy` chooses, by `find_picture`. ``there`` is the folder of the sets.
    """
    parts, learned = [_INTRODUCTION], read_lessons()
    for name, linked in _find_linked(sets).items():
        page = choose_copy([each.pages[name] for each in linked])
        if page is None:
            continue

        links = [
            f"[{each.summary.label}]({there}/{each.folder.name}/{name}.ipynb), "
            f"{describe_revision(each.pages[name].record.machine)}"
            for each in linked
        ]
        what = learned.get(f"{name}.ipynb", "")
        parts.append(_render_part(page, what, f"{there}/{page.folder.name}", "; ".join(links)))

    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
# Gallery

The notebooks as they ran, to read before installing anything. No Mac has run them yet:
[yours would be the first](first_hour_on_a_mac.md). `make show` writes this page; what it links to was run in full mode,
from the first cell to the last."""


def _find_linked(sets: Sequence[ExecutedSet]) -> dict[str, list[ExecutedSet]]:
    """Return the sets that a reader is led to, for each of today's pages by its name."""
    names = [path.stem for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]

    linked: dict[str, list[ExecutedSet]] = {name: [] for name in names}
    for each in sets:
        for name, page in each.pages.items():
            if name in linked and is_linked(page):
                linked[name].append(each)
    return linked


def _render_part(page: Executed, learned: str, folder: str, links: str) -> str:
    """Return a page's part of the gallery: title, picture and what it says, what one learns, links."""
    lines = [f"## {page.entry.number} {page.entry.title.partition(':')[0]}"]

    picture = find_picture(page)
    if picture is not None:
        shortened = textwrap.shorten(picture.alternative_text, 160, placeholder=" ...")
        # Between the brackets of a picture's link, units such as [ms] stand in round ones.
        words = re.sub(r"[\\|*`<>]", " ", shortened.replace("[", "(").replace("]", ")"))
        lines.append(f"[![{words}]({folder}/results/{picture.name})]({folder}/{page.path.name})")
        if picture.says:
            lines.append(picture.says)

    end = "" if learned.endswith("?") else "."
    lines.append(f"{learned[:1].upper()}{learned[1:]}{end} *{links}*")
    return "\n\n".join(lines)


# --- a page's picture in the gallery ---


@dataclass(frozen=True)
class Picture:
    """What the gallery shows of a page."""

    name: str
    """Of the file, in the folder ``results`` of the page's set."""
    alternative_text: str
    says: str
    """The first sentence of its caption; empty if it has none."""
    content: bytes | None = None
    """The PNG; None for that of the headline, whose file is there."""


def find_picture(page: Executed) -> Picture | None:
    """Return the picture that a page is about; None if all that it has are intervals of speed-ups.

    That is the picture of its headline. A few intervals say little to somebody who looks around, so in their place
    stands the page's first other picture, one with a caption if there is any.
    """
    drawn = _read_pictures(page)
    headline = page.record.headline
    if page.picture and headline and not _shows_intervals(headline.alternative_text):
        words = headline.alternative_text
        same = [each for each in drawn if _read_title(each.alternative_text) == _read_title(words)]
        says = same[0].says if same else ""
        return Picture(page.picture.name, words, says)

    others = [each for each in drawn if not _shows_intervals(each.alternative_text)]
    return min(others, key=_lacks_caption, default=None)


def _read_title(words: str) -> str:
    """Return the title of a picture, with which its alternative text begins; a headline's ends in other numbers."""
    return words.partition(". ")[0]


def _shows_intervals(words: str) -> bool:
    """Return whether a picture is one of intervals of speed-ups, by its alternative text (`plots.speed_ups`)."""
    return words.startswith("Speed-up over") or " times as " in words


def _lacks_caption(picture: Picture) -> bool:
    return not picture.says


def _read_pictures(page: Executed) -> list[Picture]:
    """Return the pictures of a stored page, with their words and captions."""
    name = f"{page.entry.name}{GALLERY_PICTURE}"
    cells = nbformat.read(page.path, 4).cells
    drawn = []
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        says = ""
        if after is not None and "caption" in after.metadata.get("tags", ()):
            says = _find_first_sentence(after.source)

        for output in cell.get("outputs", ()):
            content = output.get("data", {}).get("image/png")
            words = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            if content and words:
                drawn.append(Picture(name, words, says, base64.b64decode(content)))
    return drawn


def _find_first_sentence(text: str) -> str:
    """Return the first sentence of a caption, its links as their words."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    return re.split(r"(?<=[.?!]) (?=[A-Z*`])", words)[0]


def _write_pictures(sets: Sequence[ExecutedSet]) -> None:
    """Write the pictures of the gallery that are no headline's, and remove those of earlier galleries."""
    written = set()
    for name, linked in _find_linked(sets).items():
        page = choose_copy([each.pages[name] for each in linked])
        picture = find_picture(page) if page is not None else None
        if page is None or picture is None or picture.content is None:
            continue

        target = page.folder / "results" / picture.name
        paths.write_atomically(target, plain.make_small_png(picture.content, PICTURE_WIDTH))
        written.add(target)

    for folder in {each.folder for each in sets}:
        for path in (folder / "results").glob(f"*{GALLERY_PICTURE}"):
            if path not in written:
                path.unlink()


def read_lessons() -> dict[str, str]:
    """Return what one learns on each page, from README, by file name."""
    rows = re.findall(
        r"^\| \[\w+\]\(notebooks/([\w.]+)\) \|.*\| (.*) \|$",
        README.read_text("utf-8"),
        re.MULTILINE,
    )
    return dict(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0; 1 if pages of a run were refused; 2 if nothing was written."""
    parser = argparse.ArgumentParser(
        prog="python -m metallab.results.publish.show", description=__doc__.splitlines()[0]
    )
    what = "folder of a finished run in full mode; without one, the stored pages' text and the gallery are renewed"
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help=what)
    runs = parser.parse_args(arguments).runs

    refused: dict[str, str] = {}
    try:
        for run in runs:
            folder, reasons = make(run.resolve(), EXECUTED)
            refused |= reasons
            print(f"show: {paths.shorten(folder)}")
        for lost in update(EXECUTED, GALLERY):
            print(f"show: {lost}", file=sys.stderr)
    except (ShowError, report.ReportError, records.RecordError, OSError) as problem:
        print(f"show: {problem}", file=sys.stderr)
        return 2

    for reason in refused.values():
        print(f"show: not shown: {reason}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
