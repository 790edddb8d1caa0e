"""A static site of executed notebooks, to read without a server and without a network: ``python book/build.py``.

The pages of one run or of several and the texts of this checkout are laid out as they lie in the checkout, so that the
links between them hold, and Sphinx makes the site. Any warning, a link that leads nowhere among them, makes it fail.
Executed pages may be older than what they link to and than what links to them: a link to a heading that is missing for
that reason leads to the top of its page. A notebook that a run did not execute has its page as well, without results,
and says why. Where there are several runs, each page leads to the same page on the other machines.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import jinja2
import nbformat

from metallab import paths, records
from metallab.authoring import course, published
from metallab.results import report
from metallab.results.publish import pages

HERE = Path(__file__).parent
BOOK = paths.BUILD / "book"
EXECUTED = paths.ROOT / "data" / "executed"
"""The executed pages that come with the project: a folder a machine, each as a run leaves its own."""

_LEFT_OUT = ("README.md", "notebooks", "build", "book")
_GUIDES = ("docs/*.md", "classroom/*.md")
_BEHIND = (
    "CONTRIBUTING",
    "CHANGELOG",
    "data/README",
    "data/executed/README",
    "data/results/README",
    "utils/metallab/language/data/README",
    "utils/metallab/reported/data/README",
)
_SIMULATED = (
    "metalsim/README",
    "metalsim/objc/README",
    "metalsim/src/metalsim/graph/README",
    "metalsim/src/metalsim/shader/LIMITS",
    "metalsim/src/metalsim/shader/FOREIGN",
)
_RUBBISH = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.ipynb")
_LINK = re.compile(r"""(\]\(|\shref=")(?=[^)"\s])([^)"#\s]*)(#[^)"\s]*)?""")
"""A link in Markdown or HTML: what stands before its target, the target, and from the # on the heading."""
_OUR_OUTPUTS = "application/vnd.metallab."
"""How the types of outputs begin that programs read; people read the text beside them."""
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=lambda name: name is not None and name.endswith(".html.j2"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


_UNFIT = """\
no book was made: what is named above makes it unfit to be shown. A book that was there before is unchanged.
These are faults of the checkout's texts or of a run, not of your command. Without a book, docs/gallery.md leads to the
pages as they ran; another revision of the checkout may be without the faults.
For maintainers: correct the text that is named, behind /pages/. In notebooks/ these are the executed pages: `make show`
renews text and links of those in data/executed; those of a run of your own are run again (make run ONLY=...)."""


class BookError(ValueError):
    """The book cannot be made or has faults; the message says what to do."""


@dataclass(frozen=True)
class Chapter:
    """A notebook of the checkout, and what a run made of it."""

    notebook: Path
    """The notebook of the checkout."""
    title: str
    executed: Path | None = None
    """The executed notebook, if the run has one."""
    reason: str = ""
    """Why the run has none; of one that is incomplete, what was not executed and what mends that."""

    @property
    def name(self) -> str:
        """The name of the file, such as ``01_time_it_right``."""
        return self.notebook.stem

    @property
    def number(self) -> str:
        """Such as ``19``."""
        return self.name.split("_")[0]

    @property
    def short(self) -> str:
        """The title up to its colon."""
        return self.title.partition(":")[0]


@dataclass(frozen=True)
class Run:
    """What one machine made of the notebooks, and where the book has it."""

    folder: Path
    summary: report.RunSummary
    chapters: tuple[Chapter, ...]
    position: str = "notebooks"
    """The folder of its pages in the book."""

    @property
    def label(self) -> str:
        """The device that it ran on."""
        return self.summary.label or self.summary.device

    @property
    def executed(self) -> list[Chapter]:
        """The notebooks that were executed."""
        return [chapter for chapter in self.chapters if chapter.executed]

    def has_executed(self, name: str) -> bool:
        """Return True if the notebook with this name was executed."""
        return any(chapter.name == name for chapter in self.executed)

    @property
    def not_executed(self) -> dict[str, list[Chapter]]:
        """The notebooks that were not, by the reason."""
        by_reason: dict[str, list[Chapter]] = {}
        for chapter in self.chapters:
            if not chapter.executed:
                by_reason.setdefault(chapter.reason, []).append(chapter)
        return by_reason

    @property
    def has_captions(self) -> bool:
        """Whether its pages say themselves what they ran on, as those that come with the project do."""
        return self.folder.is_relative_to(EXECUTED)

    @property
    def banners(self) -> list[str]:
        """What must be read before any number."""
        return [text for _, text in self.summary.banners]


# ---- the whole -------------------------------------------------------------------------------------------------------


def make(folders: Sequence[Path], book: Path = BOOK) -> Path:
    """Write the book of runs into a folder, in place of the book that is there, and return its first page.

    Parameters
    ----------
    folders
        Of the runs.
    book
        The folder of the book.

    Raises
    ------
    BookError
        Sphinx has anything to warn of, which it has said, or the folder holds something else. The old book stays.
    report.ReportError
        A run holds nothing.
    pages.PageError
        A notebook of a run cannot be read.
    """
    from sphinx.cmd.build import build_main

    if book.exists() and not (book / ".buildinfo").exists():  # which Sphinx leaves in each site
        raise BookError(f"{book} is there and is no book: name another folder")

    with tempfile.TemporaryDirectory(prefix="metallab-book-") as work:
        source, site = Path(work, "pages"), Path(work, "site")
        for notice in lay_out(read_runs(folders), source):
            print(f"book: for maintainers: {notice}", file=sys.stderr)

        strict = ["-q", "--fail-on-warning", "--keep-going", "--nitpicky"]
        places = ["-c", str(HERE), "-d", f"{work}/doctrees"]
        if build_main([*strict, *places, "-b", "html", str(source), str(site)]):
            raise BookError(_UNFIT)

        if book.exists():
            shutil.rmtree(book)
        shutil.move(site, book)
    return book / "index.html"


# ---- the runs --------------------------------------------------------------------------------------------------------


def find_stored() -> list[Path]:
    """Return the folders of the executed pages that come with the project. report.ReportError if there are none."""
    folders = sorted(path.parent for path in EXECUTED.glob("*/summary.json"))
    if not folders:
        raise report.ReportError(
            "data/executed holds no pages: run `make run` first, then name its folder: make book RUN=build/full-cpu"
        )
    return folders


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs in these folders, the one with the most executed pages first: links lead to its pages.

    BookError if two folders have one name, which names the pages of a run. report.ReportError if one has no page.
    """
    notebooks = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
    titles = {path: _read_title(path) for path in notebooks}
    runs = [_read_run(folder, titles) for folder in folders]

    for name, times in Counter(folder.name for folder in folders).items():
        if times > 1:
            raise BookError(f"{times} runs lie in folders that are called {name}: rename one")

    first, *others = sorted(runs, key=lambda run: (-len(run.executed), run.folder.name))
    return [first, *(replace(run, position=f"notebooks/{run.folder.name}") for run in others)]


def _read_title(notebook: Path) -> str:
    """Return the heading of a notebook."""
    first_cell = pages.read_notebook(notebook).cells[0]
    return str(first_cell.source).partition("\n")[0].lstrip("# ")


def _read_run(folder: Path, titles: Mapping[Path, str]) -> Run:
    """Return what a run made of the notebooks, which have these titles. report.ReportError if it executed none."""
    summary = report.read_summary(folder)
    chapters = [_read_chapter(path, title, folder, summary) for path, title in titles.items()]
    run = Run(folder, summary, tuple(chapters))
    if not run.executed:
        raise report.ReportError(
            f"{folder} holds no executed notebook: run `make run` first (MODE=fast for a quick look)"
        )
    return run


def _read_chapter(notebook: Path, title: str, run: Path, summary: report.RunSummary) -> Chapter:
    """Return a notebook's page: as the run executed it, or with the reason why there is no such page.

    A page that failed counts as not executed, even if the run has kept it. One that is incomplete was executed, and has
    the reason beside it.
    """
    told = {entry.name: entry for entry in summary.notebooks}.get(notebook.stem)
    if told is None:
        return Chapter(notebook, title, reason="the run left this notebook out")

    reason = " ".join(told.reason.split())
    executed = run / notebook.name
    if told.status in ("failed", "skipped"):
        return Chapter(notebook, title, reason=reason or told.status)
    if not executed.is_file():
        return Chapter(notebook, title, reason=reason or "the run left this notebook out")
    return Chapter(notebook, title, executed, reason if told.status == "incomplete" else "")


# ---- laying it out ---------------------------------------------------------------------------------------------------


def lay_out(runs: Sequence[Run], folder: Path) -> list[str]:
    """Write the book's pages as Sphinx reads them: the notebooks of the runs, a copy of the rest of the checkout.

    Returns what maintainers should know: a sentence for each link that lost the heading which it named.
    """
    folder.mkdir(parents=True)
    _copy_checkout(folder)

    moved = _find_moved(runs)
    for file in folder.rglob("*.md"):
        place = file.parent.relative_to(folder).as_posix()
        linked = relink(file.read_text(encoding="utf-8"), place, place, moved)
        file.write_text(linked, encoding="utf-8")

    for run in runs:
        _lay_out_run(run, runs, folder, moved)
    for run in runs[1:]:  # of the first one the front page lists the pages
        box = render_box(None, run, [run])
        text = _TEMPLATES.get_template("machine.md.j2").render(run=run, box=box)
        (folder / run.position / "index.md").write_text(text, encoding="utf-8")

    (folder / "index.md").write_text(render_front_page(runs, moved), encoding="utf-8")
    return lead_to_pages(runs, folder)


def _copy_checkout(folder: Path) -> None:
    """Copy what is no page: copies, since Sphinx looks through links and would see files outside the book."""
    for entry in paths.ROOT.iterdir():
        is_hidden = entry.name.startswith(".") and entry.name != ".github"
        if is_hidden or entry.name in _LEFT_OUT:
            continue
        if entry.is_file():
            shutil.copy(entry, folder / entry.name)
        else:
            shutil.copytree(entry, folder / entry.name, ignore=_RUBBISH)


def _find_moved(runs: Sequence[Run]) -> dict[str, str]:
    """Return where files of the checkout are in the book, by their paths from the root.

    What leads to a stored page that is no part of this book leads to the book's own page of that lesson: to the first
    run's, which has the most results (`read_runs`). What that run did not execute has its page there as well.
    """
    first = runs[0]
    moved = {
        page.relative_to(paths.ROOT).as_posix(): f"{first.position}/{page.name}"
        for page in EXECUTED.glob("*/*.ipynb")
    }
    moved["README.md"] = "index.md"

    # executed pages that are in this book; no link in the checkout leads to those of a run that lies outside of it
    for run in runs:
        for chapter in run.executed:
            page = chapter.executed
            if page is not None and page.is_relative_to(paths.ROOT):
                moved[page.relative_to(paths.ROOT).as_posix()] = f"{run.position}/{page.name}"
    return moved


def _lay_out_run(run: Run, runs: Sequence[Run], folder: Path, moved: Mapping[str, str]) -> None:
    """Write the pages of one of the book's runs, whose links to notebooks lead to its own pages."""
    (folder / run.position).mkdir()
    own = {
        f"notebooks/{each.notebook.name}": f"{run.position}/{each.notebook.name}"
        for each in run.chapters
    }
    targets = {**moved, **own}

    for lesson in run.chapters:
        notebook = pages.read_notebook(lesson.executed or lesson.notebook)
        caption = take_caption(notebook) if run.has_captions and lesson.executed else ""
        # by itself: `make_page` leads the links of the page, and puts the box into it afterwards
        linked = relink(caption, "notebooks", run.position, targets)
        page = make_page(notebook, render_box(lesson, run, runs, linked), run.position, targets)
        if run is not runs[0]:  # a search finds each page once; its box leads on
            page.metadata["nosearch"] = True
        nbformat.write(page, folder / run.position / lesson.notebook.name)


# ---- links to headings that are missing ------------------------------------------------------------------------------


def lead_to_pages(runs: Sequence[Run], folder: Path) -> list[str]:
    """Let a link to a missing heading lead to its page, in what is laid out; return a sentence for each such link.

    This is for executed pages, which may be of another day than what they link to and than what links to them. Between
    two texts of this checkout such a link is a mistake, and stays for Sphinx to tell: so of a text only the links to
    executed pages are looked at, and of an executed page all of them. Files with such links are written again.
    """
    notebooks = {
        path.relative_to(folder).as_posix(): nbformat.read(path, 4)
        for path in (folder / "notebooks").rglob("*.ipynb")
    }
    texts = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.md")
    }

    anchors = {
        place: pages.find_anchors(pages.read_texts(page), pages.make_github_anchor)
        for place, page in notebooks.items()
    }
    anchors |= {
        place: pages.find_anchors([text], pages.make_github_anchor) for place, text in texts.items()
    }
    ran = {f"{run.position}/{each.notebook.name}" for run in runs for each in run.executed}
    of_those_that_ran = {place: anchors[place] for place in ran}

    notices = []
    for place, text in texts.items():
        led, lost = lead_past_missing_headings(text, place, of_those_that_ran)
        if lost:
            (folder / place).write_text(led, encoding="utf-8")
            notices += _describe_lost(place, lost)
    for place, page in notebooks.items():
        lost = _lead_page(page, place, anchors if place in ran else of_those_that_ran)
        if lost:
            nbformat.write(page, folder / place)
            notices += _describe_lost(place, lost)
    return notices


def _lead_page(
    page: nbformat.NotebookNode, place: str, anchors: Mapping[str, Collection[str]]
) -> list[str]:
    """Let the links of a notebook lead past missing headings, in place; return the links that had them."""
    found = []
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source, lost = lead_past_missing_headings(cell.source, place, anchors)
            found += lost
    return found


def _describe_lost(place: str, lost: Sequence[str]) -> list[str]:
    """Return a sentence for each link of a page that lost its heading."""
    return [
        f"{place} has a link to {link}, a heading that is not there: it leads to the page"
        for link in lost
    ]


def lead_past_missing_headings(
    text: str, place: str, anchors: Mapping[str, Collection[str]]
) -> tuple[str, list[str]]:
    """Return a text whose links to missing headings lead to their pages, and the links that it had to them.

    Parameters
    ----------
    text
        Markdown or HTML, with links within the book, as `relink` writes them.
    place
        Where the text is in the book, such as ``notebooks/01_time_it_right.ipynb``.
    anchors
        The headings of pages, by their places. Links to other pages, and those within the text's own, stay as they are.
    """
    lost = []

    def lead(link: re.Match[str]) -> str:
        before, target, anchor = link.groups(default="")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if "href" in before:  # HTML names the page of the site
            there = next((page for page in anchors if _address(page) == there), there)

        if not target or not anchor or there not in anchors or anchor[1:] in anchors[there]:
            return link[0]
        lost.append(f"{target}{anchor}")
        return before + target

    return _LINK.sub(lead, text), lost


def _address(place: str) -> str:
    """Return the address of a page in the site."""
    return re.sub(r"\.(ipynb|md)$", ".html", place)


# ---- the front page and the boxes below titles -----------------------------------------------------------------------


def render_front_page(runs: Sequence[Run], moved: Mapping[str, str]) -> str:
    """Return README with where to begin below its title, on what the pages ran at its end, and the book's contents.

    What must be read before any number stands at the top as well.
    """
    text = relink((paths.ROOT / "README.md").read_text(encoding="utf-8"), ".", ".", moved)
    guides = [
        path.relative_to(paths.ROOT).with_suffix("")
        for glob in _GUIDES
        for path in sorted(paths.ROOT.glob(glob))
    ]
    behind = [name for name in (*_BEHIND, *_SIMULATED) if (paths.ROOT / f"{name}.md").is_file()]
    contents = _TEMPLATES.get_template("contents.md.j2").render(
        runs=runs, parts=group_by_part(runs[0].chapters), guides=guides, behind=behind
    )

    first, *_ = runs
    begin = _TEMPLATES.get_template("begin.html.j2").render(run=first, lesson=first.chapters[0])
    where = f"## Where these pages ran\n\n{render_box(None, first, runs)}\n"
    return f"{_put_below_title(text, begin)}\n\n{where}\n{contents}"


def group_by_part(chapters: Sequence[Chapter]) -> list[tuple[course.Part, list[Chapter]]]:
    """Return the parts of the course that have pages, each with its pages."""
    parts = []
    for part in course.PARTS:
        members = [each for each in chapters if each.number.startswith(part.digit)]
        if members:
            parts.append((part, members))
    return parts


def render_box(lesson: Chapter | None, run: Run, runs: Sequence[Run], caption: str = "") -> str:
    """Return what stands below a page's title, as HTML: on what it ran, which unfolds, and links to other machines.

    What must be known of its numbers, or why it did not run, is not folded. Without a lesson, what whole runs have in
    common.

    Parameters
    ----------
    lesson, run, runs
        The page, the run that it is of, and all runs of the book.
    caption : str
        What the page says itself of how it ran, as Markdown.
    """
    day = ""
    rows: list[tuple[str, str]] = []
    if lesson and lesson.executed:
        day, rows = read_provenance(run.folder / "results" / f"{lesson.name}.json")

    addresses = published.find_addresses()
    source = ""
    if addresses and lesson:
        source = addresses.file(f"notebooks/{lesson.notebook.name}")

    return _TEMPLATES.get_template("executed.html.j2").render(
        lesson=lesson,
        run=run,
        runs=runs,
        caption=caption,
        switch=_link_machines(lesson, run, runs) if lesson else [],
        taken=day,
        rows=rows,
        repository=addresses.repository if addresses else "",
        source=source,
    )


def _link_machines(lesson: Chapter, run: Run, runs: Sequence[Run]) -> list[tuple[str, str, bool]]:
    """Return the same page on each machine that executed it: label, address, whether it is this one.

    Empty where there is nothing to choose from.
    """
    executed = [each for each in runs if each.has_executed(lesson.name)]
    if executed in ([], [run]):
        return []

    links = []
    for each in executed:
        address = posixpath.relpath(f"{each.position}/{lesson.name}.html", run.position)
        links.append((each.label, address, each is run))
    return links


def read_provenance(results: Path) -> tuple[str, list[tuple[str, str]]]:
    """Return the day that a page's results were saved, and label and value of all that is known of the machine.

    Both are empty where nothing can be read: some pages save nothing, and what a file of results lacks is for the
    report to tell.
    """
    try:
        record = records.load(results)[-1]
    except records.RecordError:
        return "", []
    day = datetime.fromisoformat(record.taken)
    return f"{day.day} {day:%B %Y}", record.machine.rows()


# ---- a page ----------------------------------------------------------------------------------------------------------


def make_page(
    notebook: nbformat.NotebookNode, box: str, position: str, moved: Mapping[str, str]
) -> nbformat.NotebookNode:
    """Change a notebook to what Sphinx shall read: a box below its title, solutions folded, links within the book."""
    for cell in notebook.cells:
        _fold_solution(cell)
        if cell.cell_type == "markdown":
            cell.source = relink(cell.source, "notebooks", position, moved)
        for output in cell.get("outputs", []):
            _drop_our_outputs(output)

    first, *_ = notebook.cells
    first.source = _put_below_title(first.source, box)
    return notebook


def _fold_solution(cell: nbformat.NotebookNode) -> None:
    """Fold a cell that is a solution, under that word."""
    tags = cell.metadata.get("tags", [])
    if "solution" in tags:
        cell.metadata.tags = [*tags, "hide-cell"]
        cell.metadata.mystnb = {"code_prompt_show": "Solution"}


def _drop_our_outputs(output: nbformat.NotebookNode) -> None:
    """Remove from an output what only programs read."""
    for kind in list(output.get("data", {})):
        if kind.startswith(_OUR_OUTPUTS):
            del output.data[kind]


def take_caption(notebook: nbformat.NotebookNode) -> str:
    """Take the caption of a stored page, a quotation below its title, out of it and return it."""
    first, *_ = notebook.cells
    title, _, rest = first.source.partition("\n")
    quoted: list[str] = []
    others = rest.lstrip("\n").split("\n")
    while others and others[0].startswith(">"):
        quoted.append(others.pop(0))

    if quoted:
        first.source = "\n".join([title, *others])
    return "\n".join(quoted)


def relink(text: str, origin: str, position: str, moved: Mapping[str, str]) -> str:
    """Return a text whose links lead where they led, after it went from a folder of the checkout to one of the book.

    What leads out of the checkout was written for a folder that lies deeper, as executed pages do: it is taken from
    the root.

    Parameters
    ----------
    text
        Markdown or HTML.
    origin, position
        The folder of the checkout, and that of the book.
    moved
        Where files of the checkout are in the book, both as paths from the root.
    """

    def lead(link: re.Match[str]) -> str:
        before, target, anchor = link.groups(default="")
        if re.match(r"[a-z]+:", target):
            return link[0]

        # as on GitHub; in a notebook they keep capitals and colons
        anchor = re.sub(r"[^\w#-]", "", anchor.lower())
        if not target:
            return before + anchor

        path = re.sub(r"^(\.\./)+", "", posixpath.normpath(posixpath.join(origin, target)))
        there = posixpath.relpath(moved.get(path, path), position)
        return before + (_address(there) if "href" in before else there) + anchor

    return _LINK.sub(lead, text)


def _put_below_title(text: str, box: str) -> str:
    """Return a text with a box below its first line."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{box}\n{rest}"


# ---- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the book, print where its first page lies, and return 0; else print why there is none, and return 1 or 2.

    1 if Sphinx warns of anything, two folders of runs have one name, or the book's folder holds something else; 2 if a
    notebook or a run cannot be read, holds no executed page, or no run is stored. An older book stays then.
    """
    parser = argparse.ArgumentParser(
        prog="python book/build.py", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "runs", type=Path, nargs="*", help="folders of runs; by default all in data/executed"
    )
    parser.add_argument(
        "--into", type=Path, default=BOOK, help="where it is written, in place of an older book"
    )
    given = parser.parse_args(arguments)

    try:
        # absolute: stored runs are known by their place in data/executed, and a run is named by its folder
        folders = [run.resolve() for run in given.runs] or find_stored()
        page = make(folders, given.into.resolve())
    except (BookError, report.ReportError, pages.PageError) as problem:
        print(f"book: {problem}", file=sys.stderr)
        return 1 if isinstance(problem, BookError) else 2

    print(f"book: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
