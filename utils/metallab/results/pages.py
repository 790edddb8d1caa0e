"""Executed notebooks to be shown to others: `read_notebook` leaves out the folders of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metallab import paths, private, units

if TYPE_CHECKING:
    from nbformat import NotebookNode


class PageError(ValueError):
    """A notebook that cannot be read or shown; the message says why."""


def read_notebook(path: Path) -> NotebookNode:
    """A notebook of format 4 whose outputs name no folder of this machine. PageError if it cannot be read."""
    import nbformat

    try:
        notebook = nbformat.reads(paths.read_regular(path, follow=True).decode(), 4)
        nbformat.validate(notebook)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as problem:
        raise PageError(f"{path.name} cannot be read ({units.first_line(problem)}): run the page again") from problem
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [_with_words(output, private.without_paths) for output in cell.outputs]
    return notebook


def words(value: Any) -> Iterator[str]:
    """Every text of an output, or of a list of them, but for pictures."""
    found: list[str] = []
    _with_words(value, lambda text: found.append(text) or text)
    yield from found


def _with_words(value: Any, change: Callable[[str], str], kind: str = "") -> Any:
    """A copy of an output with each of its texts changed, but for pictures."""
    if isinstance(value, str):
        return value if kind.startswith("image/") else change(value)
    if isinstance(value, dict):
        return type(value)({key: _with_words(each, change, key) for key, each in value.items()})
    return [_with_words(each, change) for each in value] if isinstance(value, list) else value
