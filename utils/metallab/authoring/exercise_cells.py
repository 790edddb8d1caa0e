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
    """Number the exercises of all pages, and move their wrong answers into the file ``answers``.

    That holds each answer below a line such as ``== 13_predict_a_calls_time 2``, with the page and the number of the
    exercise. A page in which nothing changes is not written.
    """
    listed = re.findall(
        r"^== .*?(?=^== |\Z)", answers.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )

    for path in sorted(pages.glob("[0-9]*.ipynb")):
        text = path.read_text(encoding="utf-8")
        page = nbformat.reads(text, 4)

        if moved := _tidy_page(page, path.stem):
            for answer in moved:
                listed.insert(_find_place(listed, answer), answer)
            paths.write_atomically(answers, "".join(listed))

        written = nbformat.writes(page) + "\n"
        if written != text:
            paths.write_atomically(path, written)


def _find_place(listed: list[str], answer: str) -> int:
    """Return where an answer belongs: behind the last one of its exercise, or of the nearest exercise before it.

    The others stay where they are, whatever their order, so that a difference shows the new answers alone.
    """
    heading = answer.partition("\n")[0]
    headings = [each.partition("\n")[0] for each in listed]
    before = [each for each in headings if each <= heading]
    if not before:
        return 0

    nearest = max(before)
    return max(place for place, each in enumerate(headings, 1) if each == nearest)


def _tidy_page(page: nbformat.NotebookNode, name: str) -> list[str]:
    """Number the exercises of a page, and take out its wrong answers; return those as the file of answers has them.

    A cell gets its role and number for an id, such as ``check-2``; a solution is folded as well.
    """
    number = 0  # of the exercise that the cells belong to
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
