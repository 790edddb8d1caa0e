"""Cells of notebook 42 in a process of their own, as an environment of its own is in front there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nbformat

from metallab import isolated, paths

PAGE = paths.NOTEBOOKS / "42_ship_with_core_ai.ipynb"
CELLS = {
    cell.id: cell.source
    for cell in nbformat.read(PAGE, as_version=4).cells
    if cell.cell_type == "code"
}


def run(
    folder: Path, *parts: str, results: Sequence[str], timeout: float = 300
) -> isolated.Outcome:
    """Execute the page's set-up, its first two cells, and then parts: cells by their ids, or other text.

    Files go into a folder, in the place of the page's own under ``build/``. The outcome has ``answers``, a list of what
    the expressions ``results`` are worth at the end.
    """
    setup = CELLS["setup"].replace(
        "lab.banner()", f"from pathlib import Path\nfolder = Path({str(folder)!r})"
    )
    texts = [
        setup,
        CELLS["first-code"],
        CELLS["first-functions"],
        *(CELLS.get(part, part) for part in parts),
    ]

    # in a coroutine, since a notebook's cells may wait for one (``await``) and a program may not
    body = "\n".join(f"    {line}" for text in texts for line in text.splitlines())
    program = (
        f"import asyncio\nasync def page():\n{body}\n    return [{', '.join(results)}]\n"
        "answers = asyncio.run(page())"
    )
    return isolated.run(
        program, results=["answers"], environment={"METALLAB_MODE": "fast"}, timeout=timeout
    )
