"""Executed notebooks to be shown to others: `read_notebook` leaves out the folders of this machine.

`find_anchors` are the names of headings, by which links to a part of a page find it.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metallab import paths, redact, units

if TYPE_CHECKING:
    from nbformat import NotebookNode


class PageError(ValueError):
    """A notebook that cannot be read or shown; the message says why."""


def read_notebook(path: Path) -> NotebookNode:
    """Return a notebook of format 4 whose outputs name no folder of this machine. PageError if it cannot be read."""
    import nbformat

    try:
        notebook = nbformat.reads(paths.read_regular(path, follow=True).decode(), 4)
        nbformat.validate(notebook)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as problem:
        raise PageError(
            f"{path.name} cannot be read ({units.first_line(problem)}): run the page again"
        ) from problem

    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [_change_texts(output, redact.shorten_paths) for output in cell.outputs]
    return notebook


def find_texts(value: Any) -> Iterator[str]:
    """Yield every text of an output, or of a list of them, but for pictures."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    _change_texts(value, keep)
    yield from found


def _change_texts(value: Any, change: Callable[[str], str], kind: str = "") -> Any:
    """Return a copy of an output with each of its texts changed, but for pictures."""
    if isinstance(value, str):
        return value if kind.startswith("image/") else change(value)
    if isinstance(value, dict):
        return type(value)({key: _change_texts(each, change, key) for key, each in value.items()})
    if isinstance(value, list):
        return [_change_texts(each, change) for each in value]
    return value


def read_texts(notebook: NotebookNode) -> list[str]:
    """Return the Markdown of a notebook's text cells."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def read_code(notebook: NotebookNode) -> list[str]:
    """Return the sources of a notebook's code cells."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


# --- headings, and the links that lead to them ---


def find_headings(text: str) -> list[str]:
    """Return the words of a Markdown text's headings, in their order and without markup."""
    import mistune

    parse = mistune.create_markdown(renderer=None)
    tokens: Any = parse(text)  # with no renderer, which its type does not say
    found = [token for token in _walk_tokens(tokens) if token["type"] == "heading"]
    return [_read_words(heading) for heading in found]


def _walk_tokens(tokens: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the tokens of a parsed text, those inside of others too."""
    for token in tokens:
        yield token
        yield from _walk_tokens(token.get("children", ()))


def _read_words(heading: dict[str, Any]) -> str:
    """Return what a reader sees of a heading."""
    parts = [
        token
        for token in _walk_tokens(heading["children"])
        if token["type"] in ("text", "codespan")
    ]
    return html.unescape("".join(part["raw"] for part in parts))


def make_jupyter_anchor(heading: str) -> str:
    """Return the name by which JupyterLab finds a heading of a notebook, such as ``Deeper:-five-networks``."""
    return heading.replace(" ", "-")


def make_github_anchor(heading: str) -> str:
    """Return the name by which GitHub and the book find a heading, such as ``deeper-five-networks``."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def find_anchors(texts: Iterable[str], make_anchor: Callable[[str], str]) -> frozenset[str]:
    """Return the names of all headings of a page.

    Parameters
    ----------
    texts
        The page's Markdown, of a notebook each text cell.
    make_anchor
        `make_jupyter_anchor` or `make_github_anchor`. Headings with one name are numbered from the second on: ``a``,
        ``a-1``.
    """
    found: list[str] = []
    seen: Counter[str] = Counter()
    for heading in (heading for text in texts for heading in find_headings(text)):
        name = make_anchor(heading)
        found.append(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)
