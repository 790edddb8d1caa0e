"""A static site of the executed notebooks, to read without a server and without a network: ``python book/build.py``.

The pages of a run and the texts of this checkout are laid out as they lie in the checkout, so that the links between
them hold, and Sphinx makes the site. Any warning, a link that leads nowhere among them, makes it fail. A notebook that
the run did not execute has its page as well, without results, and says why.
"""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2
import nbformat
from sphinx.cmd.build import build_main

from metallab import paths, records
from metallab.results import pages, report

HERE = Path(__file__).parent
BOOK = paths.BUILD / "book"

_LEFT_OUT = ("README.md", "notebooks", "build", "book")
_GUIDES = ("docs/*.md", "classroom/*.md")
_RUBBISH = shutil.ignore_patterns("__pycache__", "*.egg-info")
_LINK = re.compile(r"\]\(([^)#\s]+)")
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=lambda name: name.endswith(".html.j2"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
)


class BookError(ValueError):
    """The book cannot be made or has faults; the message says what to do."""


@dataclass(frozen=True)
class Chapter:
    """A notebook of the checkout, and what the run made of it."""

    path: Path
    """The executed notebook, or that of the checkout if the run has none."""
    not_executed: str = ""
    """Why the run has none."""
    incomplete: str = ""
    """What the run did not execute of it for want of a tool, and what mends that."""

    @property
    def name(self) -> str:
        """The name of the file, such as ``01_time_it_right``."""
        return self.path.stem

    @property
    def number(self) -> str:
        """Such as ``02b``."""
        return self.name.split("_")[0]

    @property
    def short(self) -> str:
        """The title up to its colon."""
        return _title(self.path).partition(":")[0]


def make(run: Path, folder: Path = BOOK) -> Path:
    """Write the book of a run into a folder, in place of the book that is there, and return its first page.

    BookError if Sphinx has anything to warn of; it has said what, and the old book stays. report.ReportError if the run
    holds nothing, pages.PageError if one of its notebooks cannot be read.
    """
    if folder.exists() and not (folder / ".buildinfo").exists():
        raise BookError(f"{folder} is there and is no book: name another folder")
    with tempfile.TemporaryDirectory(prefix="metallab-book-") as work:
        source, site = Path(work, "pages"), Path(work, "site")
        lay_out(run, source)
        options = ["-q", "--fail-on-warning", "--keep-going", "--nitpicky", "-c", str(HERE), "-d", f"{work}/doctrees"]
        if build_main([*options, "-b", "html", str(source), str(site)]):
            raise BookError("the faults named above make it unfit to be shown; mend the pages, then try again")
        if folder.exists():
            shutil.rmtree(folder)
        shutil.move(site, folder)
    return folder / "index.html"


def lay_out(run: Path, folder: Path) -> None:
    """Write the book's pages as Sphinx reads them: the notebooks of a run, and a copy of the rest of the checkout."""
    summary, _ = report.read_summary(run)
    lessons = [lesson(path, run, summary) for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]
    if all(each.not_executed for each in lessons):
        raise report.ReportError(f"{run} holds no executed notebook: run `make run` first (MODE=fast for a quick look)")
    (folder / "notebooks").mkdir(parents=True)
    for entry in paths.ROOT.iterdir():
        if entry.name not in _LEFT_OUT and (entry.name == ".github" or not entry.name.startswith(".")):
            # copies, since Sphinx looks through links and would see files outside the book
            copy = shutil.copy if entry.is_file() else functools.partial(shutil.copytree, ignore=_RUBBISH)
            copy(entry, folder / entry.name)
    for each in lessons:
        notebook = pages.read_notebook(each.path)
        nbformat.write(page_of(notebook, executed(each, run, summary)), folder / "notebooks" / each.path.name)
    (folder / "index.md").write_text(front_page(lessons, executed(None, run, summary)), encoding="utf-8")


def front_page(lessons: Sequence[Chapter], box: str) -> str:
    """The README, with a box below its title and the contents of the book."""
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8")
    guides = [
        path.relative_to(paths.ROOT).with_suffix("") for glob in _GUIDES for path in sorted(paths.ROOT.glob(glob))
    ]
    contents = _TEMPLATES.get_template("contents.md.j2").render(lessons=lessons, guides=guides)
    return _below_title(text, box) + contents


def lesson(path: Path, run: Path, summary: report.RunSummary) -> Chapter:
    """The page of a notebook of the checkout: as the run executed it, or as it is, with the reason."""
    told = {notebook.name: notebook for notebook in summary.notebooks}.get(path.stem)
    if told is None or not (run / path.name).is_file():
        reason = told.reason if told else ""
        return Chapter(path, " ".join(reason.split()) or "the run left this notebook out")
    if told.status in ("failed", "skipped"):
        return Chapter(path, " ".join(told.reason.split()) or told.status)
    incomplete = " ".join(told.reason.split()) if told.status == "incomplete" else ""
    return Chapter(run / path.name, incomplete=incomplete)


def executed(lesson: Chapter | None, run: Path, summary: report.RunSummary) -> str:
    """What stands below a page's title, as HTML: what it ran on, what must be known of its numbers, or why it did not.

    Without a lesson, what the whole run has in common.
    """
    taken, rows, warnings = "", [], [text for _, text in report.Page(summary).banners]
    if lesson and lesson.incomplete:
        warnings.append(f"incomplete: {lesson.incomplete}")
    if lesson and not lesson.not_executed:
        taken, rows = provenance(run / "results" / f"{lesson.name}.json")
    return _TEMPLATES.get_template("executed.html.j2").render(
        what="This page was" if lesson else "The lessons were",
        label=summary.label or summary.device,
        warnings=warnings,
        not_executed=lesson.not_executed if lesson else "",
        taken=taken,
        rows=rows,
    )


def provenance(results: Path) -> tuple[str, list[tuple[str, str]]]:
    """The day that a notebook's results were saved, and label and value of all that is known of the machine."""
    try:
        record = records.load(results)[-1]
    except records.RecordError:
        return "", []  # some pages save nothing; what a file of results lacks is for the report to tell
    day = datetime.fromisoformat(record.taken)
    return f"{day.day} {day:%B %Y}", record.machine.rows()


def page_of(notebook: nbformat.NotebookNode, box: str) -> nbformat.NotebookNode:
    """A notebook as Sphinx shall read it: a box below its title, its solutions folded, its links within the book."""
    first, *_ = notebook.cells
    first.source = _below_title(first.source, box)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "solution" in tags:
            cell.metadata.tags = [*tags, "hide-cell"]
            cell.metadata.mystnb = {"code_prompt_show": "Solution"}
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(_to_front_page, cell.source)
    return notebook


def _to_front_page(link: re.Match) -> str:
    """The README is the book's first page, which must be called index."""
    return "](../index.md" if link[1] == "../README.md" else link[0]


def _below_title(text: str, box: str) -> str:
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{box}\n{rest}"


def _title(notebook: Path) -> str:
    return pages.read_notebook(notebook).cells[0].source.partition("\n")[0].lstrip("# ")


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 if the book cannot be made or has faults; 2 if there is nothing to make it of."""
    parser = argparse.ArgumentParser(prog="python book/build.py", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", help="folder of a run; by default the latest under build/")
    parser.add_argument("--into", type=Path, default=BOOK, help="where it is written, in place of an older book")
    given = parser.parse_args(arguments)
    try:
        page = make(given.run.resolve() if given.run else report.latest_run(paths.BUILD), given.into.resolve())
    except (BookError, report.ReportError, pages.PageError) as problem:
        print(f"book: {problem}", file=sys.stderr)
        return 1 if isinstance(problem, BookError) else 2
    print(f"book: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
