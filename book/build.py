"""A static site of executed notebooks, to read without a server and without a network: ``python book/build.py``.

The pages of one run or of several and the texts of this checkout are laid out as they lie in the checkout, so that the
links between them hold, and Sphinx makes the site. Any warning, a link that leads nowhere among them, makes it fail.
Executed pages may be older than what they link to and than what links to them: a link to a heading that is missing for
that reason leads to the top of its page. A notebook that a run did not execute has its page as well, without results,
and says why. Where there are several runs, each page leads to the same page on the other machines.
"""

from __future__ import annotations

import argparse
import functools
import posixpath
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
_SIMULATED = tuple(
    f"metalsim/{name}"
    for name in (
        "README",
        "objc/README",
        *(f"src/metalsim/{page}" for page in ("graph/README", "shader/LIMITS", "shader/FOREIGN")),
    )
)
_RUBBISH = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.ipynb")
_LINK = re.compile(r"""(\]\(|\shref=")(?=[^)"\s])([^)"#\s]*)(#[^)"\s]*)?""")
_OUR_OUTPUTS = (
    "application/vnd.metallab."  # what programs read of an output; people read the text beside it
)
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=lambda name: name.endswith(".html.j2"),
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

    @property
    def not_executed(self) -> dict[str, list[Chapter]]:
        """The notebooks that were not, by the reason."""
        by_reason: dict[str, list[Chapter]] = {}
        for chapter in self.chapters:
            if not chapter.executed:
                by_reason.setdefault(chapter.reason, []).append(chapter)
        return by_reason

    @property
    def captioned(self) -> bool:
        """Whether its pages say themselves what they ran on, as those that come with the project do."""
        return self.folder.is_relative_to(EXECUTED)

    @property
    def banners(self) -> list[str]:
        """What must be read before any number."""
        return [text for _, text in self.summary.banners]


def make(folders: Sequence[Path], book: Path = BOOK) -> Path:
    """Write the book of runs into a folder, in place of the book that is there, and return its first page.

    BookError if Sphinx has anything to warn of; it has said what, and the old book stays. report.ReportError if a run
    holds nothing, pages.PageError if one of its notebooks cannot be read.
    """
    from sphinx.cmd.build import build_main

    if book.exists() and not (book / ".buildinfo").exists():
        raise BookError(f"{book} is there and is no book: name another folder")
    with tempfile.TemporaryDirectory(prefix="metallab-book-") as work:
        source, site = Path(work, "pages"), Path(work, "site")
        for notice in lay_out(read_runs(folders), source):
            print(f"book: for maintainers: {notice}", file=sys.stderr)
        options = [
            "-q",
            "--fail-on-warning",
            "--keep-going",
            "--nitpicky",
            "-c",
            str(HERE),
            "-d",
            f"{work}/doctrees",
        ]
        if build_main([*options, "-b", "html", str(source), str(site)]):
            raise BookError(_UNFIT)
        if book.exists():
            shutil.rmtree(book)
        shutil.move(site, book)
    return book / "index.html"


def stored() -> list[Path]:
    """The folders of the executed pages that come with the project. report.ReportError if there are none."""
    folders = sorted(path.parent for path in EXECUTED.glob("*/summary.json"))
    if not folders:
        raise report.ReportError(
            "data/executed holds no pages: run `make run` first, then name its folder: make book RUN=build/full-cpu"
        )
    return folders


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, the one with the most executed pages first: its pages are those that links lead to.

    BookError if two folders have one name, which names the pages of a run. report.ReportError if one has no page.
    """
    notebooks = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
    titles = {
        path: pages.read_notebook(path).cells[0].source.partition("\n")[0].lstrip("# ")
        for path in notebooks
    }
    runs = []
    for folder in folders:
        summary = report.read_summary(folder)
        run = Run(
            folder,
            summary,
            tuple(chapter(path, titles[path], folder, summary) for path in notebooks),
        )
        if not run.executed:
            raise report.ReportError(
                f"{folder} holds no executed notebook: run `make run` first (MODE=fast for a quick look)"
            )
        runs.append(run)
    for name, times in Counter(folder.name for folder in folders).items():
        if times > 1:
            raise BookError(f"{times} runs lie in folders that are called {name}: rename one")
    first, *others = sorted(runs, key=lambda run: (-len(run.executed), run.folder.name))
    return [
        first,
        *(
            Run(run.folder, run.summary, run.chapters, f"notebooks/{run.folder.name}")
            for run in others
        ),
    ]


def chapter(notebook: Path, title: str, run: Path, summary: report.RunSummary) -> Chapter:
    """The page of a notebook of the checkout: as the run executed it, or with the reason why it did not."""
    told = {entry.name: entry for entry in summary.notebooks}.get(notebook.stem)
    reason = " ".join(told.reason.split()) if told else ""
    if told is None or told.status in ("failed", "skipped") or not (run / notebook.name).is_file():
        fallback = (
            told.status
            if told and told.status in ("failed", "skipped")
            else "the run left this notebook out"
        )
        return Chapter(notebook, title, reason=reason or fallback)
    return Chapter(
        notebook, title, run / notebook.name, reason if told.status == "incomplete" else ""
    )


def lay_out(runs: Sequence[Run], folder: Path) -> list[str]:
    """Write the book's pages as Sphinx reads them: the notebooks of the runs, a copy of the rest of the checkout.

    Returns what maintainers should know: a sentence for each link that lost the heading which it named.
    """
    folder.mkdir(parents=True)
    for entry in paths.ROOT.iterdir():
        if entry.name not in _LEFT_OUT and (
            entry.name == ".github" or not entry.name.startswith(".")
        ):
            # copies, since Sphinx looks through links and would see files outside the book
            copy = (
                shutil.copy
                if entry.is_file()
                else functools.partial(shutil.copytree, ignore=_RUBBISH)
            )
            copy(entry, folder / entry.name)
    # what leads to a stored page leads to this book's own of that lesson, where the stored one is no part of it
    moved = {
        f"{page.relative_to(paths.ROOT)}": f"{runs[0].position}/{page.name}"
        for page in EXECUTED.glob("*/*.ipynb")
    }
    moved["README.md"] = "index.md"
    for run in runs:
        for executed in (each.executed for each in run.executed):
            if executed.is_relative_to(paths.ROOT):
                moved[f"{executed.relative_to(paths.ROOT)}"] = f"{run.position}/{executed.name}"
    for text in folder.rglob("*.md"):
        at = text.parent.relative_to(folder).as_posix()
        text.write_text(relink(text.read_text(encoding="utf-8"), at, at, moved), encoding="utf-8")
    for run in runs:
        (folder / run.position).mkdir()
        own = {
            f"notebooks/{each.notebook.name}": f"{run.position}/{each.notebook.name}"
            for each in run.chapters
        }
        for each in run.chapters:
            notebook = pages.read_notebook(each.executed or each.notebook)
            caption = take_caption(notebook) if run.captioned and each.executed else ""
            told = relink(caption, "notebooks", run.position, moved | own)
            page = page_of(notebook, box(each, run, runs, told), run.position, moved | own)
            if run is not runs[0]:
                page.metadata["nosearch"] = (
                    True  # a search finds each page once; the switch leads on
                )
            nbformat.write(page, folder / run.position / each.notebook.name)
    for run in runs[1:]:
        text = _TEMPLATES.get_template("machine.md.j2").render(run=run, box=box(None, run, [run]))
        (folder / run.position / "index.md").write_text(text, encoding="utf-8")
    (folder / "index.md").write_text(front_page(runs, moved), encoding="utf-8")
    return lead_to_pages(runs, folder)


def lead_to_pages(runs: Sequence[Run], folder: Path) -> list[str]:
    """Let a link to a missing heading lead to its page, in what is laid out; return a sentence for each such link.

    This is for executed pages, which may be of another day than what they link to and than what links to them. Between
    two texts of this checkout such a link is a mistake, and stays for Sphinx to tell.
    """
    ran = {f"{run.position}/{each.notebook.name}" for run in runs for each in run.executed}
    notebooks = {
        path.relative_to(folder).as_posix(): nbformat.read(path, 4)
        for path in (folder / "notebooks").rglob("*.ipynb")
    }
    texts = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.md")
    }

    anchors = {
        place: pages.anchors(pages.texts_of(page), pages.github_anchor)
        for place, page in notebooks.items()
    }
    anchors |= {place: pages.anchors([text], pages.github_anchor) for place, text in texts.items()}
    of_those_that_ran = {place: anchors[place] for place in ran}

    notices = []
    for place, text in texts.items():
        led, lost = without_missing_headings(text, place, of_those_that_ran)
        if lost:
            (folder / place).write_text(led, encoding="utf-8")
            notices += _notices(place, lost)
    for place, page in notebooks.items():
        known, found = anchors if place in ran else of_those_that_ran, []
        for cell in page.cells:
            if cell.cell_type == "markdown":
                cell.source, lost = without_missing_headings(cell.source, place, known)
                found += lost
        if found:
            nbformat.write(page, folder / place)
            notices += _notices(place, found)
    return notices


def _notices(place: str, lost: Sequence[str]) -> list[str]:
    return [
        f"{place} has a link to {link}, a heading that is not there: it leads to the page"
        for link in lost
    ]


def without_missing_headings(
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

    def lead(link: re.Match) -> str:
        before, target, anchor = link.groups(default="")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if "href" in before:
            there = next((page for page in anchors if _address(page) == there), there)
        if not target or not anchor or there not in anchors or anchor[1:] in anchors[there]:
            return link[0]
        lost.append(f"{target}{anchor}")
        return before + target

    return _LINK.sub(lead, text), lost


def _address(place: str) -> str:
    """The address of a page in the site."""
    return re.sub(r"\.(ipynb|md)$", ".html", place)


def front_page(runs: Sequence[Run], moved: Mapping[str, str]) -> str:
    """The README, with where to begin below its title, and at its end on what the pages ran; the contents of the book.

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
        runs=runs, parts=in_parts(runs[0].chapters), guides=guides, behind=behind
    )

    first, *_ = runs
    begin = _TEMPLATES.get_template("begin.html.j2").render(run=first, lesson=first.chapters[0])
    where = f"## Where these pages ran\n\n{box(None, first, runs)}\n"
    return f"{_below_title(text, begin)}\n\n{where}\n{contents}"


def in_parts(chapters: Sequence[Chapter]) -> list[tuple[course.Part, list[Chapter]]]:
    """Return the parts of the course that have pages, each with its pages."""
    members = [
        (part, [each for each in chapters if each.number.startswith(part.digit)])
        for part in course.PARTS
    ]
    return [(part, pages) for part, pages in members if pages]


def box(lesson: Chapter | None, run: Run, runs: Sequence[Run], caption: str = "") -> str:
    """What stands below a page's title, as HTML: on what it ran, in a line that unfolds, and links to other machines.

    What must be known of its numbers, or why it did not run, is not folded. Without a lesson, what whole runs have in
    common.

    Parameters
    ----------
    lesson, run, runs
        The page, the run that it is of, and all runs of the book.
    caption : str
        What the page says itself of how it ran, as Markdown.
    """
    taken, rows = "", []
    if lesson and lesson.executed:
        taken, rows = provenance(run.folder / "results" / f"{lesson.name}.json")
    addresses = published.find_addresses()
    return _TEMPLATES.get_template("executed.html.j2").render(
        lesson=lesson,
        run=run,
        runs=runs,
        caption=caption,
        switch=_switch(lesson, run, runs) if lesson else [],
        taken=taken,
        rows=rows,
        repository=addresses.repository if addresses else "",
        source=addresses.file(f"notebooks/{lesson.notebook.name}") if addresses and lesson else "",
    )


def _switch(lesson: Chapter, run: Run, runs: Sequence[Run]) -> list[tuple[str, str, bool]]:
    """The same page on each machine that executed it: label, address, whether it is this one.

    Empty where there is nothing to choose from.
    """
    executed = [each for each in runs if lesson.name in {chapter.name for chapter in each.executed}]
    if executed in ([], [run]):
        return []
    return [
        (
            each.label,
            posixpath.relpath(f"{each.position}/{lesson.name}.html", run.position),
            each is run,
        )
        for each in executed
    ]


def provenance(results: Path) -> tuple[str, list[tuple[str, str]]]:
    """The day that a notebook's results were saved, and label and value of all that is known of the machine."""
    try:
        record = records.load(results)[-1]
    except records.RecordError:
        return (
            "",
            [],
        )  # some pages save nothing; what a file of results lacks is for the report to tell
    day = datetime.fromisoformat(record.taken)
    return f"{day.day} {day:%B %Y}", record.machine.rows()


def page_of(
    notebook: nbformat.NotebookNode, box: str, position: str, moved: Mapping[str, str]
) -> nbformat.NotebookNode:
    """A notebook as Sphinx shall read it: a box below its title, its solutions folded, its links within the book."""
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "solution" in tags:
            cell.metadata.tags = [*tags, "hide-cell"]
            cell.metadata.mystnb = {"code_prompt_show": "Solution"}
        if cell.cell_type == "markdown":
            cell.source = relink(cell.source, "notebooks", position, moved)
        for output in cell.get("outputs", []):
            for kind in [kind for kind in output.get("data", {}) if kind.startswith(_OUR_OUTPUTS)]:
                del output.data[kind]
    first, *_ = notebook.cells
    first.source = _below_title(first.source, box)
    return notebook


def take_caption(notebook: nbformat.NotebookNode) -> str:
    """Take the caption of a stored page, a quotation below its title, out of it and return it."""
    first, *_ = notebook.cells
    title, _, rest = first.source.partition("\n")
    quoted, others = [], rest.lstrip("\n").split("\n")
    while others and others[0].startswith(">"):
        quoted.append(others.pop(0))
    if quoted:
        first.source = "\n".join([title, *others])
    return "\n".join(quoted)


def relink(text: str, origin: str, position: str, moved: Mapping[str, str]) -> str:
    """A text whose links lead where they led, after it went from one folder of the checkout to another of the book.

    ``moved`` says where files of the checkout are in the book, both as paths from the root. What leads out of the
    checkout was written for a folder that lies deeper, as executed pages do: it is taken from the root.
    """

    def lead(link: re.Match) -> str:
        before, target, anchor = link.groups(default="")
        if re.match(r"[a-z]+:", target):
            return link[0]
        anchor = re.sub(
            r"[^\w#-]", "", anchor.lower()
        )  # as on GitHub; in a notebook they keep capitals and colons
        path = re.sub(r"^(\.\./)+", "", posixpath.normpath(posixpath.join(origin, target)))
        if not target:
            return before + anchor
        there = posixpath.relpath(moved.get(path, path), position)
        return before + (_address(there) if "href" in before else there) + anchor

    return _LINK.sub(lead, text)


def _below_title(text: str, box: str) -> str:
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{box}\n{rest}"


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 if the book cannot be made or has faults; 2 if there is nothing to make it of."""
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
        page = make([run.resolve() for run in given.runs] or stored(), given.into.resolve())
    except (BookError, report.ReportError, pages.PageError) as problem:
        print(f"book: {problem}", file=sys.stderr)
        return 1 if isinstance(problem, BookError) else 2
    print(f"book: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
