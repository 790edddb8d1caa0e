"""Give the cells of exercises their ids, and move wrong answers from the pages to the tests: ``make format``.

Cells tagged ``exercise`` and ``solution`` are numbered in their order, and so is the check behind them. A wrong answer
is written behind the check, in a cell tagged ``wrong``; the test of the page tries it.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

from metallab import paths


def tidy(pages: Path, answers: Path) -> None:
    """Number the exercises of all pages, and move their wrong answers into the file ``answers``."""
    known = re.findall(
        r"^== .*?(?=^== |\Z)", answers.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for path in sorted(pages.glob("[0-9]*.ipynb")):
        page, number, kept, moved = (
            nbformat.reads(text := path.read_text(encoding="utf-8"), 4),
            0,
            [],
            [],
        )
        for cell in page.cells:
            tags = {*cell.metadata.get("tags", [])} | (
                {"check"} if "checks.exercise(" in cell.source else set()
            )
            number += "exercise" in tags
            if "wrong" in tags:
                moved.append(f"== {path.stem} {number}\n{cell.source.strip()}\n")
                continue
            kept.append(cell)
            if (
                cell.cell_type == "code"
                and number
                and (role := tags & {"exercise", "solution", "check"})
            ):
                cell.id = f"{role.pop()}-{number}"
        if moved:
            known = sorted([*known, *moved], key=lambda each: each.split("\n", 1)[0])
            paths.write_atomically(answers, "".join(known))
        page.cells = kept
        if text != (written := nbformat.writes(page) + "\n"):
            paths.write_atomically(path, written)


if __name__ == "__main__":
    tidy(paths.NOTEBOOKS, paths.ROOT / "tests" / "support" / "wrong_answers.txt")
