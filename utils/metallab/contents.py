"""The parts of the course, and the page of contents that JupyterLab shows a learner first.

`PARTS` is the one place that groups the pages. What else the page of contents says is read where it is kept: titles and
what one learns in the README's table of pages, minutes and *after* in the table of docs/teaching.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metallab import paths

FILE = "Contents.md"
"""The page of contents, at the top of a folder of student copies."""


@dataclass(frozen=True)
class Part:
    """Pages that belong together."""

    title: str
    about: str
    """What one can do after it: a sentence."""
    numbers: tuple[str, ...]
    """The two digits with which its pages' numbers begin: "04" takes 04b as well."""


PARTS = (
    Part(
        "Begin here",
        "Know your machine, time right, run on the GPU, and know beforehand what will not run there.",
        ("00", "01", "02"),
    ),
    Part(
        "Profile, and write kernels",
        "See where the time goes, then write what is missing in Metal.",
        ("03", "04"),
    ),
    Part(
        "Number formats",
        "Train and run in 16 and in 8 bits, and know what that costs.",
        ("05", "06", "10"),
    ),
    Part("JAX and MLX", "The same work in two other frameworks.", ("07", "14")),
    Part(
        "Detect objects",
        "A whole application, from the film to the boxes, stage by stage.",
        ("08",),
    ),
    Part(
        "Ship a model",
        "Load it sooner, compile it for Apple's chips, and ask for the Neural Engine.",
        ("09",),
    ),
    Part(
        "Check results",
        "Find what computes wrongly, and say what holds on other machines.",
        ("11", "12", "13"),
    ),
    Part("Language models", "Run one, shrink it, and adapt it to a text of your own.", ("15",)),
    Part(
        "Metal puzzles",
        "Write one kernel after the other; each gets a verdict in one sentence.",
        ("16",),
    ),
    Part("Your own project", "From a script of yours to a program for the Mac.", ("17",)),
)


@dataclass(frozen=True)
class Lesson:
    """A page of the course, as the tables describe it."""

    number: str
    """Such as ``04b``."""
    title: str
    file: str
    """The notebook's name."""
    learned: str
    """What one learns, as Markdown."""
    minutes: int | None
    """In a room, with its exercises. None if the teacher's guide does not say yet."""
    after: str
    """Numbers of the pages whose ideas it takes for granted, with commas between."""


def read_lessons(root: Path = paths.ROOT) -> list[Lesson]:
    """Return the pages that a checkout's README lists, in its order.

    OSError if README.md or docs/teaching.md cannot be read.
    """
    listed = _rows(root / "README.md", columns=3)
    planned = {cells[0]: cells for cells in _rows(root / "docs" / "teaching.md", columns=6)}

    lessons = []
    for number, linked, learned in listed:
        found = re.match(r"\[([^]]+)\]\(notebooks/([\w.]+)\)", linked)
        if not found:  # a row of another table
            continue
        _, _, minutes, _, after, _ = planned.get(number, (number, "", "", "", "", ""))
        lessons.append(
            Lesson(
                number=number,
                title=found[1],
                file=found[2],
                learned=learned,
                minutes=int(minutes) if minutes.isdecimal() else None,
                after=after,
            )
        )
    return lessons


def _rows(path: Path, columns: int) -> list[list[str]]:
    """Return the cells of the rows that begin with a page's number, of all tables with so many columns."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == columns and re.fullmatch(r"\d\d[a-z]?", cells[0]):
            rows.append(cells)
    return rows


def group(lessons: Sequence[Lesson]) -> list[tuple[Part, list[Lesson]]]:
    """Return the parts with their pages; pages that no part names yet come last, in a part of their own."""
    named = {number for part in PARTS for number in part.numbers}
    others = sorted({lesson.number[:2] for lesson in lessons} - named)
    parts = [*PARTS, Part("More pages", "They belong to no part yet.", tuple(others))]

    grouped = [
        (part, [lesson for lesson in lessons if lesson.number[:2] in part.numbers])
        for part in parts
    ]
    return [(part, pages) for part, pages in grouped if pages]


def render(lessons: Sequence[Lesson], documents: Mapping[str, str]) -> str:
    """Return the page of contents as Markdown, with links to the copies beside it.

    Parameters
    ----------
    lessons
        The pages, in the order in which they are numbered.
    documents
        Titles of the documents that lie beside the copies, by their paths there.
    """
    parts = [_introduction(lessons)]
    for part, pages in group(lessons):
        parts.append(f"## {part.title}\n\n{part.about}{_sum(pages)}\n\n{_table(pages)}")
    listed = "\n".join(f"- [{title}]({path})" for path, title in documents.items())
    parts.append(f"## To look things up\n\n{listed}\n\n{_SOURCE}")
    return "\n\n".join(parts) + "\n"


def _introduction(lessons: Sequence[Lesson]) -> str:
    """Say where to begin and how a page works."""
    first, *others = lessons
    following = " and ".join(
        f"[{lesson.number} {lesson.title}]({lesson.file})" for lesson in others[:2]
    )
    begin = f"**Begin with [{first.number} {first.title}]({first.file}).**"
    if following:
        begin += f" Then take {following}. After these you can go to any part."
    return f"# Metal Lab: contents\n\n{begin}\n\n{_HOW}"


_HOW = """\
- **Run** a cell with Shift+Enter, or all of them: the menu *Run*, *Run All Cells*.
- **Exercises** stand at the end of a page: replace the `...`, run that cell, then run the check below it, which says
  whether your answer is right. A *Hint* unfolds when you click on it.
- **Your work stays.** These are your own copies, and nothing overwrites a page that you ran or changed. To begin a page
  anew, rename yours: a new one is there when JupyterLab is started the next time.

*min* are the minutes that a page takes in a class with its exercises, a plan. Every page runs on its own; *after* names
the pages whose ideas it takes for granted."""

_SOURCE = """\
The folders `utils` and `metalsim` hold a copy of the source code, to read: a change there has no effect."""


def _sum(lessons: Sequence[Lesson]) -> str:
    """Say how long a part takes; nothing if a page's minutes are not known."""
    minutes = [lesson.minutes for lesson in lessons]
    if None in minutes:
        return ""
    return f" {sum(minutes)} minutes."


def _table(lessons: Sequence[Lesson]) -> str:
    """Return a table with a row for each page."""
    rows = ["| | page | min | after | you learn |", "|---|---|---|---|---|"]
    for lesson in lessons:
        minutes = "" if lesson.minutes is None else lesson.minutes
        page = f"[{lesson.title}]({lesson.file})"
        rows.append(f"| {lesson.number} | {page} | {minutes} | {lesson.after} | {lesson.learned} |")
    return "\n".join(rows)
