"""The page of contents that JupyterLab shows a learner first, made from what the pages say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metallab.authoring import course
from metallab.authoring.course import Page

FILE = "Contents.md"
"""The page of contents, at the top of a folder of student copies."""


def render(pages: Sequence[Page], documents: Mapping[str, str]) -> str:
    """Return the page of contents as Markdown, with links to the copies beside it.

    Parameters
    ----------
    pages
        The pages, in the order in which they are numbered.
    documents
        Titles of the documents that lie beside the copies, by their paths there.
    """
    parts = [_introduce(pages)]
    for part, members in course.group(pages):
        minutes = sum(page.minutes for page in members)
        head = f"## {part.title}\n\n{part.about} {minutes} minutes."
        parts.append(f"{head}\n\n{_render_table(members)}")
    listed = "\n".join(f"- [{title}]({path})" for path, title in documents.items())
    parts.append(f"## To look things up\n\n{listed}\n\n{_SOURCE}")
    return "\n\n".join(parts) + "\n"


def _introduce(pages: Sequence[Page]) -> str:
    """Say where to begin and how a page works."""
    first, *others = pages
    following = " and ".join(
        f"[{page.number} {page.short_title}]({page.file})" for page in others[:2]
    )
    begin = f"**Begin with [{first.number} {first.short_title}]({first.file}).**"
    if following:
        begin += f" Then take {following}. After these you can go to any part."
    return f"# Metal Lab: contents\n\n{begin}\n\n{_HOW}"


_HOW = """\
- **Run** a cell with Shift+Enter, or all of them: the menu *Run*, *Run All Cells*.
- **A cell that runs** has `[*]` beside it. Point at the circle beside *Python 3*, at the top right: it counts the
  seconds.
- **Exercises** stand at the end of a page: replace the `...`, run that cell, then run the check below it, which says
  whether your answer is right. A *Hint* unfolds when you click on it.
- **Your work stays.** These are your own copies, and nothing overwrites a page that you ran or changed. To begin a page
  anew, rename yours: a new one is there when JupyterLab is started the next time.

*min* are the minutes that a page takes in a class with its exercises, a plan. Every page runs on its own; *after* names
the pages whose ideas it takes for granted."""

_SOURCE = """\
The folders `utils` and `metalsim` hold a copy of the source code, to read: a change there has no effect."""


def _render_table(pages: Sequence[Page]) -> str:
    """Return a table with a row for each page."""
    rows = ["| | page | min | after | its question |", "|---|---|---|---|---|"]
    for page in pages:
        link = f"[{page.short_title}]({page.file})"
        after = ", ".join(page.after)
        rows.append(f"| {page.number} | {link} | {page.minutes} | {after} | {page.question} |")
    return "\n".join(rows)
