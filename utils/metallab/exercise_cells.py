"""Give the cells of exercises their ids, and move wrong answers from the pages to the tests: ``make format``.

Cells tagged ``exercise`` and ``solution`` are numbered in their order, and so is the check behind them. A solution is
folded where the page is opened. A wrong answer is written behind the check, in a cell tagged ``wrong``; the test of the
page tries it.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from metallab import paths

ROLES = {"exercise", "solution", "check"}
"""What the id of a cell begins with."""
CHECK = re.compile(r'^check\("', re.MULTILINE)
"""The line that checks an exercise."""


def tidy(pages: Path, answers: Path) -> None:
    """Number the exercises of all pages, and move their wrong answers into the file ``answers``."""
    listed = re.findall(
        r"^== .*?(?=^== |\Z)", answers.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )

    for path in sorted(pages.glob("[0-9]*.ipynb")):
        text = path.read_text(encoding="utf-8")
        page = nbformat.reads(text, 4)

        if moved := _tidy_page(page, path.stem):
            listed = sorted([*listed, *moved], key=lambda each: each.split("\n", 1)[0])
            paths.write_atomically(answers, "".join(listed))

        written = nbformat.writes(page) + "\n"
        if written != text:
            paths.write_atomically(path, written)


def _tidy_page(page: nbformat.NotebookNode, name: str) -> list[str]:
    """Number the exercises of a page, and take out its wrong answers; return those."""
    number = 0
    stay: list[nbformat.NotebookNode] = []
    moved: list[str] = []

    for cell in page.cells:
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type == "code" and CHECK.search(cell.source):
            tags.add("check")
        number += "exercise" in tags

        if "wrong" in tags:
            moved.append(f"== {name} {number}\n{cell.source.strip()}\n")
            continue
        stay.append(cell)
        if "solution" in tags and cell.cell_type == "code":
            cell.metadata["jupyter"] = {**cell.metadata.get("jupyter", {}), "source_hidden": True}
        role = tags & ROLES
        if cell.cell_type == "code" and number and role:
            cell.id = f"{role.pop()}-{number}"

    page.cells = stay
    return moved


if __name__ == "__main__":
    tidy(paths.NOTEBOOKS, paths.ROOT / "tests" / "support" / "wrong_answers.txt")
