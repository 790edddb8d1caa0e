"""Who solved which exercise: ``make progress``, read from the outputs in saved pages. No code of a student's is run.

A check passed if the last judgement that is saved below its cell (`metallab.judgement`) is *right*. JupyterLab saves
every two minutes, and whoever can edit a file can edit that output: this shows who needs help, and is no mark.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from metallab import judgement, paths, workshop

MARKS = {
    "right": "+",
    "wrong": "x",
    "open": "~",
    "not attempted": "o",
    "not judged": "-",
    "not run": ".",
}
"""Of each outcome of a check: those of a judgement, and that its cell did not run."""
LARGEST = 64 << 20
"""Bytes of a page, at most."""


def of_page(notebook: Mapping) -> list[str]:
    """Return the outcome of each check of a page, in order: one of `MARKS`."""
    checks = [cell for cell in notebook["cells"] if workshop.CHECK.fullmatch(cell.get("id", ""))]
    return [_outcome(cell) for cell in checks]


def _outcome(cell: Mapping) -> str:
    """Return how a check went, by what it left in its cell."""
    # also where the check itself could not run, as with a name that no cell has made yet
    if any(output["output_type"] == "error" for output in cell.get("outputs", [])):
        return "wrong"

    judged = judgement.of_cell(cell)
    return "not run" if judged is None else judged.outcome


def of_folder(folder: Path) -> dict[str, list[str]]:
    """Return the outcomes of each page in a folder, by its number; a page that cannot be read has none."""
    # of two pages with one number that of the course counts, which comes last
    found = sorted(
        folder.glob("[0-9]*_*.ipynb"), key=lambda path: (paths.NOTEBOOKS / path.name).exists()
    )
    return {path.name.partition("_")[0]: _read(path) for path in found}


def _read(path: Path) -> list[str]:
    """Return the outcomes of a page; none if it cannot be read."""
    try:
        return of_page(json.loads(paths.read_regular(path, LARGEST)))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return []


def table(students: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Return a row for each student and a column for each page of which somebody ran a check, as text.

    Below stands how many students solved all exercises of each page.

    Parameters
    ----------
    students
        By student and page's number, the outcomes of its checks.
    """
    numbers = sorted({n for pages in students.values() for n in pages if _has_run(pages[n])})
    if not numbers:
        return "No check has run yet.\n"

    rows = [["", *numbers, "right"]]
    rows += [_row(name, pages, numbers) for name, pages in students.items()]
    solved = [_count_solved(n, students.values()) for n in numbers]
    rows.append(["all right", *map(str, solved), ""])

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    legend = ", ".join(f"{mark} {what}" for what, mark in {**MARKS, "no page": "?"}.items())
    return "\n".join([*lines, "", legend, ""])


def _has_run(outcomes: Sequence[str]) -> bool:
    """Return whether a check of a page was run."""
    return any(outcome != "not run" for outcome in outcomes)


def _is_solved(outcomes: Sequence[str] | None) -> bool:
    """Return whether all checks of a page are right; None stands for no page."""
    return bool(outcomes) and set(outcomes or ()) == {"right"}


def _count_solved(number: str, students: Iterable[Mapping[str, Sequence[str]]]) -> int:
    """Return how many students solved all exercises of a page."""
    return sum(_is_solved(pages.get(number)) for pages in students)


def _row(name: str, pages: Mapping[str, Sequence[str]], numbers: Sequence[str]) -> list[str]:
    """Return a student's row: the name, a mark for each check of each page, and how many are right."""
    marks = [_mark(pages.get(n, [])) for n in numbers]
    right = sum(list(outcomes).count("right") for outcomes in pages.values())
    shown_name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return [shown_name, *marks, str(right)]


def _mark(outcomes: Sequence[str]) -> str:
    """Return the marks of a page's checks; a question mark where there is no page."""
    return "".join(MARKS[outcome] for outcome in outcomes) or "?"


def main(arguments: Sequence[str]) -> int:
    """Print the table of a folder of pages, or of one with a folder for each student.

    Returns 0, or 2 where there are no pages.
    """
    folder = Path(arguments[0]) if arguments else _find_folder()
    if any(folder.glob("[0-9]*_*.ipynb")):
        students = {folder.name: of_folder(folder)}
    else:
        folders = sorted(each for each in folder.glob("*/") if not each.name.startswith("."))
        found = {each.name: of_folder(each) for each in folders}
        students = {name: pages for name, pages in found.items() if pages}

    if not students:
        print(
            f"There are no pages in {folder}: name a folder that has one for each student",
            file=sys.stderr,
        )
        return 2
    print(f"From the pages saved in {os.path.relpath(folder)}:\n\n{table(students)}", end="")
    return 0


def _find_folder() -> Path:
    """Return the folder of a class's students, or the reader's own where there is no class."""
    of_class = workshop.classroom() / "students"
    return of_class if of_class.is_dir() else workshop.WORKSHOP


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
