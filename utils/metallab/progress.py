"""Who solved which exercise: ``make progress``, read from the outputs in saved pages. No code of a student's is run.

A check passed if the last judgement that is saved below its cell (`metallab.judgement`) is *right*. JupyterLab saves
every two minutes, and whoever can edit a file can edit that output: this shows who needs help, and is no mark.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
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
    """The outcome of each check of a page, in order: one of `MARKS`."""
    checks = [cell for cell in notebook["cells"] if workshop.CHECK.fullmatch(cell.get("id", ""))]
    return [_outcome(cell) for cell in checks]


def _outcome(cell: Mapping) -> str:
    """How a check went, by what it left in its cell."""
    if any(output["output_type"] == "error" for output in cell.get("outputs", [])):
        return "wrong"  # also where the check itself could not run, as with a name that no cell has made yet

    judged = judgement.of_cell(cell)
    return "not run" if judged is None else judged.outcome


def of_folder(folder: Path) -> dict[str, list[str]]:
    """The outcomes of each page in a folder, by the page's number; of a page that cannot be read there are none."""
    pages = {}
    for path in sorted(
        folder.glob("[0-9]*_*.ipynb"), key=lambda path: (paths.NOTEBOOKS / path.name).exists()
    ):
        try:
            pages[path.name.partition("_")[0]] = of_page(
                json.loads(paths.read_regular(path, LARGEST))
            )
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            pages[path.name.partition("_")[0]] = []
    return pages


def table(students: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """A row for each student and a column for each page of which somebody ran a check; below, how many solved all."""
    ran = {n for pages in students.values() for n, found in pages.items() if {*found} - {"not run"}}
    if not ran:
        return "No check has run yet.\n"
    rows = [["", *sorted(ran), "right"]]
    for name, pages in students.items():
        marks = [
            "".join(MARKS[outcome] for outcome in pages.get(number, [])) or "?"
            for number in rows[0][1:-1]
        ]
        count = sum(outcome == "right" for found in pages.values() for outcome in found)
        rows.append(["".join(c if c.isprintable() else "?" for c in name), *marks, str(count)])
    solved = [
        sum({*pages.get(n, ["?"])} == {"right"} for pages in students.values())
        for n in rows[0][1:-1]
    ]
    rows.append(["all right", *map(str, solved), ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(
        [
            *lines,
            "",
            ", ".join(f"{mark} {what}" for what, mark in {**MARKS, "no page": "?"}.items()),
            "",
        ]
    )


def main(arguments: Sequence[str]) -> int:
    """0, or 2 where there are no pages."""
    of_class = workshop.classroom() / "students"
    folder = (
        Path(arguments[0]) if arguments else of_class if of_class.is_dir() else workshop.WORKSHOP
    )
    if any(folder.glob("[0-9]*_*.ipynb")):
        students = {folder.name: of_folder(folder)}
    else:
        folders = sorted(each for each in folder.glob("*/") if not each.name.startswith("."))
        students = {each.name: pages for each in folders if (pages := of_folder(each))}
    if not students:
        print(
            f"There are no pages in {folder}: name a folder that has one for each student",
            file=sys.stderr,
        )
        return 2
    print(f"From the pages saved in {os.path.relpath(folder)}:\n\n{table(students)}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
