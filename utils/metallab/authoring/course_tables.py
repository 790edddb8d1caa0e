"""Write what is made from the pages' own descriptions: tables, paths, and the lines *You need* and *Next* on the pages.

``make course`` writes them; ``python -m metallab.authoring.course_tables --check`` names what is not as it would be
written, and writes nothing. A page's description is ``metadata.metallab.course`` of its notebook, which
`metallab.authoring.course` explains.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import nbformat

from metallab import paths
from metallab.authoring import course, published
from metallab.authoring.course import Page, Route

BEGIN = "<!-- made by `make course`: {name} -->"
END = "<!-- end of {name} -->"
WIDTH = 118
"""Of a line of text on a page."""


class NoPlace(ValueError):
    """A document or page has no place for what is to be written; the message says what it has to have."""


# ---- documents -------------------------------------------------------------------------------------------------------


def replace_between(text: str, name: str, content: str) -> str:
    """Return a document with what stands between its two comments of a name replaced. NoPlace without the comments."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise NoPlace(f"the document wants the lines {begin} and {end}, around what is made")
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}"


def render_readme(text: str, pages: Sequence[Page]) -> str:
    """Return README with its entrances, its tables of pages, and today's numbers of notebooks and hours.

    The links to executed pages stay as they are: `make show` chooses them, with `link_copies`.
    """
    copies = dict(_COPY.findall(text))
    hours = round(sum(page.minutes for page in pages) / 60)
    parts = []

    for part, members in course.group(pages):
        rows = [_render_row(page, copies.get(page.file)) for page in members]
        table = ["| run | read, as it ran | min | its question |", "|---|---|---|---|", *rows]
        heading = f"### {part.digit} {part.title}"
        parts.append("\n".join([heading, "", part.about, "", *table]))

    counted = re.sub(r"\b\d+ notebooks", f"{len(pages)} notebooks", text, count=1)
    counted = re.sub(r"\b\d+ hours", f"{hours} hours", counted, count=1)
    entrances = published.describe_entrances(published.find_addresses(), len(pages))
    counted = replace_between(counted, "the entrances", entrances)
    return replace_between(counted, "the pages", "\n\n".join(parts))


_COPY = re.compile(
    r"^\| \[\w+\]\(notebooks/([\w.]+)\) \| \[[^]]*\]\((data/executed/[^)]*)\)", re.MULTILINE
)
"""A row of README that leads to a page as it ran: the notebook's file, and the copy."""

_ROW = r"^(\| \[\w+\]\(notebooks/{file}\) \| \[[^]]*\])\([^)]*\)(?= \|)"
"""A row of README, up to the link that its title is."""


def _render_row(page: Page, copy: str | None) -> str:
    """Return a page's row: the number leads to the notebook, the title to the page as it ran, where there is one."""
    run = f"[{page.number}](notebooks/{page.file})"
    read = f"[{page.short_title}]({copy or f'notebooks/{page.file}'})"
    return f"| {run} | {read} | {page.minutes} | {page.question} |"


def link_copies(text: str, copies: Mapping[str, str | None]) -> str:
    """Return README with the titles of pages, and what else leads to a page as it ran, leading to these copies.

    Parameters
    ----------
    text : str
        README.
    copies : mapping of str to str or None
        By the file of a notebook the path of its copy from the root; None leads to the notebook.
    """
    for file, copy in copies.items():
        where = copy or f"notebooks/{file}"
        name = re.escape(file)
        text = re.sub(_ROW.format(file=name), rf"\g<1>({where})", text, flags=re.MULTILINE)
        text = re.sub(rf"(?<=\]\()data/executed/\w+/{name}(?=\))", where, text)
    return text


def render_teaching(text: str, pages: Sequence[Page]) -> str:
    """Return the teacher's guide with its table of lessons."""
    rows = [
        f"| {page.number} | [{page.short_title}](../notebooks/{page.file}) | {page.minutes} | {page.exercises} | "
        f"{', '.join(page.after)} | {page.without_a_mac} |"
        for page in pages
    ]
    head = ["| | lesson | min | exercises | after | without a Mac |", "|---|---|---|---|---|---|"]
    return replace_between(text, "the lessons", "\n".join([*head, *rows]))


def render_routes(text: str, pages: Sequence[Page]) -> str:
    """Return the document of paths with a table for each."""
    parts = [
        _render_route(route, course.find_on_route(pages, route))
        for route in (*course.ROUTES, course.TALK)
    ]
    return replace_between(text, "the paths", "\n\n".join(parts))


def _render_route(route: Route, members: Sequence[Page]) -> str:
    """Return the heading, the sentence and the table of a path."""
    minutes = sum(page.minutes for page in members)
    rows = [
        f"| {page.number} | [{page.short_title}](../notebooks/{page.file}) | {page.minutes} | {page.question} |"
        for page in members
    ]
    about = f"{route.about} {minutes} minutes with all exercises."
    table = ["| | page | min | its question |", "|---|---|---|---|", *rows]
    return "\n".join([f"## {route.title}", "", about, "", *table])


# ---- lines on pages --------------------------------------------------------------------------------------------------


def write_lines(notebook: nbformat.NotebookNode, page: Page, pages: Sequence[Page]) -> None:
    """Write the lines *You need* and *Next* into a notebook, which is changed. NoPlace if it has no cell for *Next*.

    The first goes into the first cell, where there is none yet behind the heading and the promise.
    """
    title = notebook.cells[0]
    title.source = _put_paragraph(title.source, "*You need ", describe_needs(page, pages), at=2)

    recaps = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "markdown" and "**Next**: " in cell.source
    ]
    if len(recaps) != 1:
        raise NoPlace(
            f"{page.file}: one cell has a paragraph that begins with **Next**, and {len(recaps)} do"
        )
    (recap,) = recaps
    recap.source = _put_paragraph(recap.source, "**Next**: ", link_neighbours(page, pages), at=None)


def describe_needs(page: Page, pages: Sequence[Page]) -> str:
    """Return the sentences on what a page takes for granted, and how long it takes."""
    by_number = {each.number: each for each in pages}
    before = [_link(by_number[number]) for number in page.after]
    first = f"You need {_join(before)}." if before else "You need no other page."

    reading = page.minutes - page.exercises
    plan = f"Plan {reading} minutes"
    if page.exercises:
        plan += f", and {page.exercises} for the exercises"
    return _wrap(f"*{first} {plan}.*")


def link_neighbours(page: Page, pages: Sequence[Page]) -> str:
    """Return the links to the pages before and after."""
    at = [each.number for each in pages].index(page.number)
    following = _link(pages[at + 1]) if at + 1 < len(pages) else "[all pages](../README.md#pages)"
    line = f"**Next**: {following}."
    if at > 0:
        line += f" **Previous**: {_link(pages[at - 1])}."
    return _wrap(line)


def _put_paragraph(text: str, beginning: str, paragraph: str, at: int | None) -> str:
    """Return a text whose paragraph with this beginning is another; without one it is put in at a place."""
    paragraphs = text.split("\n\n")
    places = [i for i, each in enumerate(paragraphs) if each.startswith(beginning)]
    if places:
        paragraphs[places[0]] = paragraph
    elif at is not None:
        paragraphs.insert(at, paragraph)
    else:
        raise NoPlace(f"no paragraph begins with {beginning!r}")
    return "\n\n".join(paragraphs)


def _link(page: Page) -> str:
    return f"[{page.short_title}]({page.file})"


def _join(links: Sequence[str]) -> str:
    """Return links with commas, and an *and* before the last."""
    *first, last = links
    return f"{', '.join(first)} and {last}" if first else last


def _wrap(text: str) -> str:
    """Return a paragraph in lines; a link is broken between its words at most."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


# ---- all of it -------------------------------------------------------------------------------------------------------


def render(pages: Sequence[Page]) -> Iterable[tuple[Path, str]]:
    """Yield each file that is made, wholly or in part, with its text: documents, then pages. Nothing is written.

    NoPlace if a document or page has no place for what is made, `published.BadAddress` for a wrong address.
    """
    writers: dict[str, Callable[[str, Sequence[Page]], str]] = {
        "README.md": render_readme,
        "docs/teaching.md": render_teaching,
        "docs/paths.md": render_routes,
    }
    for name, write in writers.items():
        path = paths.ROOT / name
        yield path, write(path.read_text(encoding="utf-8"), pages)

    for page in pages:
        path = paths.NOTEBOOKS / page.file
        notebook = nbformat.read(path, nbformat.NO_CONVERT)
        write_lines(notebook, page, pages)
        yield path, nbformat.writes(notebook) + "\n"


def main(given: list[str] | None = None) -> int:
    """Return 0 if all is written, or with --check if all is as it would be written; 1 if not; 2 if it cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m metallab.authoring.course_tables", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, name what would change"
    )
    wish = parser.parse_args(given)

    try:
        changed = find_stale() if wish.check else write()
    except (course.CourseError, NoPlace, published.BadAddress) as fault:
        print(f"course: {fault}", file=sys.stderr)
        return 2

    for path in changed:
        print(
            f"{paths.shorten(path)}: {'not as it is made; run make course' if wish.check else 'written'}"
        )
    return 1 if changed and wish.check else 0


def find_stale() -> list[Path]:
    """Return the files that are not as they would be written. CourseError, NoPlace or BadAddress if they cannot be."""
    return [
        path for path, text in render(course.read()) if path.read_text(encoding="utf-8") != text
    ]


def write() -> list[Path]:
    """Write what has changed, and return those files. CourseError, NoPlace or BadAddress if they cannot be written.

    All of it is made before the first file is written.
    """
    changed = [
        (path, text)
        for path, text in render(course.read())
        if path.read_text(encoding="utf-8") != text
    ]
    for path, text in changed:
        paths.write_atomically(path, text)
    return [path for path, _ in changed]


if __name__ == "__main__":
    sys.exit(main())
