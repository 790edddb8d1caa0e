"""Put today's text around the cells of an executed page, and lead its links to what is there.

Stored pages may be of different days: a link between them to what is not there is led to what is.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from metallab import paths
from metallab.results.publish import caption, pages
from metallab.results.publish.executed import ExecutedPage

_LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=\))")


def put_text_around(executed: NotebookNode, text: NotebookNode, words: str) -> None:
    """Put another notebook's text around the code cells of an executed one, which is changed in place.

    Parameters
    ----------
    executed
        A notebook that ran, with its outputs.
    text
        A notebook of the same code, in the folder of notebooks.
    words
        The caption that is put below the title.
    """
    # each code cell of the text gives its place to the one that ran
    code = iter([cell for cell in executed.cells if cell.cell_type == "code"])
    cells = [next(code) if cell.cell_type == "code" else copy.deepcopy(cell) for cell in text.cells]

    for cell in cells:
        if cell.cell_type == "markdown":
            # a stored page lies two folders deeper than a notebook
            cell.source = cell.source.replace("](../", "](../../../")

    title, _, rest = cells[0].source.partition("\n")
    cells[0].source = f"{title}\n\n{words}\n{rest}"
    executed.cells = cells


def renew_text(page: ExecutedPage) -> str:
    """Return a stored page as the text of a notebook, around its cells the text of today's, if that has the same code.

    Otherwise, and where there is no such notebook any more, the stored page as it is.
    """
    stored = page.path.read_text(encoding="utf-8")
    original = paths.NOTEBOOKS / page.path.name
    if not original.exists():
        return stored

    executed, today = nbformat.reads(stored, 4), nbformat.read(original, 4)
    if pages.read_code(executed) != pages.read_code(today):
        return stored

    put_text_around(executed, today, caption.read_caption(executed.cells[0].source))
    return nbformat.writes(executed) + "\n"


def update_pages(stored: Sequence[ExecutedPage]) -> list[str]:
    """Write today's text into stored pages, as far as their code is today's, and let links lead to what is stored.

    Returns a sentence for each link whose heading is not there.
    """
    # all texts, before the first link is followed: it may lead to any of them
    renewed = {page.path.resolve(): renew_text(page) for page in stored}

    @functools.cache
    def find_anchors(path: Path) -> frozenset[str]:
        text = renewed[path] if path in renewed else path.read_text(encoding="utf-8")
        return _find_anchors(path, text)

    sentences = []
    for path, text in renewed.items():
        executed = nbformat.reads(text, 4)
        before = pages.read_texts(executed)
        lost = mend_links(executed, path.parent, find_anchors)

        # where no link was led elsewhere, the very text, so that a file without a change stays as it was
        has_changed = pages.read_texts(executed) != before
        paths.write_atomically(path, nbformat.writes(executed) + "\n" if has_changed else text)
        sentences += [
            f"{paths.shorten(path)}: no heading {link}: the link leads to the page" for link in lost
        ]
    return sentences


def _find_anchors(path: Path, text: str) -> frozenset[str]:
    """Return the names of the headings of a notebook or a guide, as its viewer makes them."""
    if path.suffix == ".ipynb":
        texts = pages.read_texts(nbformat.reads(text, 4))
        return pages.find_anchors(texts, pages.make_jupyter_anchor)
    return pages.find_anchors([text], pages.make_github_anchor)


def mend_links(
    executed: NotebookNode, folder: Path, find_anchors: Callable[[Path], Collection[str]]
) -> list[str]:
    """Lead a stored page's links to what is there, and return those that lost the heading which they named.

    A link to a page that did not run on this machine leads to the notebook; one to a heading that is missing, of a page
    or of a guide, to the top of it. Links within the page stay as they are.

    Parameters
    ----------
    executed
        The page; its text is changed in place.
    folder
        The folder that it is stored in.
    find_anchors
        Returns the names of the headings of a notebook or guide that is there.
    """
    lost: list[str] = []

    def lead(link: re.Match[str]) -> str:
        """Return the target of a link and its heading, each replaced where it is not there."""
        target, anchor = link.groups(default="")
        notebook_of_today = f"../../../notebooks/{target}"
        is_page = re.fullmatch(r"\w+\.ipynb", target)
        if is_page and not (folder / target).exists() and (folder / notebook_of_today).exists():
            target = notebook_of_today

        there = folder / target
        has_headings = there.suffix in (".ipynb", ".md") and there.is_file()
        if anchor and has_headings and anchor[1:] not in find_anchors(there.resolve()):
            lost.append(f"{target}{anchor}")
            anchor = ""
        return target + anchor

    for cell in executed.cells:
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(lead, cell.source)
    return lost
