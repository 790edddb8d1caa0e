"""Which links of a folder that JupyterLab serves lead nowhere, told without a browser.

It looks with a Markdown parser, and not with what wrote the links. JupyterLab names headings in its own way and finds
them in its own way, tried in a browser (tests/browser/test_lab.py): in Markdown by an anchor's id, or by its own name
if an address holds that as it is; in a notebook that is not open yet only by the cell.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import nbformat
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt

_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
_CHANGED_IN_ADDRESSES = re.compile(r'[ "<>`]|[^\x00-\x7f]')


def dead_links(folder: Path) -> list[str]:
    """Return the links and pictures of a folder's Markdown and notebooks that lead to no file or heading in it."""
    places = functools.cache(_places)
    return [
        f"{path.relative_to(folder)}: {target}"
        for path in texts_in(folder)
        for target in _dead(path, folder, places)
    ]


def texts_in(folder: Path) -> list[Path]:
    """Return the Markdown files and notebooks that JupyterLab shows of a folder; hidden ones it does not."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix in (".md", ".ipynb")]
    return [
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def links_of(path: Path) -> list[str]:
    """Return where the links and pictures of Markdown or of a notebook's text lead, HTML among them."""
    found = []
    for text in _texts(path):
        html = MarkdownIt("commonmark").enable("table").render(text)
        for element in BeautifulSoup(html, "html.parser").select("[href], [src]"):
            found.append(unquote(element.get("href") or element["src"]))
    return found


def _dead(path: Path, folder: Path, places: Callable[..., set[str]]) -> Iterator[str]:
    """Find the dead links of one file."""
    for target in links_of(path):
        if _ELSEWHERE.match(target):
            continue
        name, _, fragment = target.partition("#")
        there = (path.parent / name).resolve() if name else path.resolve()
        is_inside = there.is_relative_to(folder.resolve()) and there.is_file()
        if not is_inside or (
            fragment and fragment not in places(there, is_open=there == path.resolve())
        ):
            yield target


def _places(path: Path, *, is_open: bool) -> set[str]:
    """Return what may stand behind the # of a link to a file, so that JupyterLab shows a heading of it.

    In Markdown those are the anchors of its headings, and the headings themselves as far as an address keeps them. In a
    notebook they are its headings if it is open, as it is for its own links, and else its cells that have one.
    """
    names = {heading.replace(" ", "-") for text in _texts(path) for heading, _ in _headings(text)}
    if path.suffix != ".ipynb":
        anchors = {name for text in _texts(path) for _, name in _headings(text)}
        return anchors | {name for name in names if not _CHANGED_IN_ADDRESSES.search(name)}
    if is_open:
        return names

    cells = nbformat.read(path, 4).cells
    return {
        f"cell-id={cell.id}"
        for cell in cells
        if cell.cell_type == "markdown" and [*_headings(cell.source)]
    }


def _headings(text: str) -> Iterator[tuple[str, str]]:
    """Find the words of each heading, and the id of the anchor in it."""
    html = MarkdownIt("commonmark").enable("table").render(text)
    for heading in BeautifulSoup(html, "html.parser").select("h1, h2, h3, h4, h5, h6"):
        anchor = heading.select_one("[id]")
        yield heading.get_text(), anchor["id"] if anchor else ""


def _texts(path: Path) -> list[str]:
    """Return the Markdown of a file, of a notebook that of each cell."""
    if path.suffix == ".md":
        return [path.read_text(encoding="utf-8")]
    if path.suffix == ".ipynb":
        return [
            cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"
        ]
    return []
