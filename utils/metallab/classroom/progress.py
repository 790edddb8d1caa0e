"""Who solved which exercise: ``make progress``, read from the outputs in saved pages. No code of a student's is run.

A check passed if the last judgement that is saved below its cell (`metallab.judgement`) is *right*. At the hub a page
is saved some seconds after a change, and whoever can edit a file can edit that output: this shows who needs help, and
is no mark.

Students own what is read here, and it is read with the rights of whoever opened the hub. So no link is followed on the
way to a page, and nothing large is read.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metallab import judgement, paths
from metallab.authoring import workshop

MARKS = {
    "right": "+",
    "wrong": "x",
    "open": "~",
    "not attempted": "o",
    "not judged": "-",
    "not run": ".",
}
"""Of each outcome of a check: those of a judgement, and that its cell did not run."""
NO_PAGE = "?"
"""The mark of a page that is not there, or cannot be read."""
LARGEST = 32 << 20
"""Bytes of a page, at most: forty times as many as the largest page that ran whole."""
LONGEST = 300
"""Characters of a student's text that are shown, at most."""
TEACHER = "teacher"
"""The name in the list of passwords that is no student's."""

_PAGE = re.compile(r"[0-9][^_/]*_.*\.ipynb")


@dataclass(frozen=True)
class Check:
    """What the check of one exercise left in a saved page."""

    outcome: str
    """One of `MARKS`."""
    exercise: str = ""
    """What the page calls it; empty if the check did not come so far."""
    sentence: str = ""
    """What its reader saw; a student can have put any text there."""


@dataclass(frozen=True)
class Page:
    """A page of a student's as it was saved."""

    number: str
    """Such as ``13``."""
    checks: tuple[Check, ...] = ()
    """In the page's order; none if the page cannot be read."""
    saved: float = 0.0
    """When, in seconds since 1970."""


@dataclass(frozen=True)
class Student:
    """All that is known of a student."""

    name: str
    pages: Mapping[str, Page]
    """By number; none of a student who never came."""

    @property
    def has_come(self) -> bool:
        """Return True if there is a page."""
        return bool(self.pages)

    @property
    def right(self) -> int:
        """How many checks are right."""
        checks = [check for page in self.pages.values() for check in page.checks]
        return sum(check.outcome == "right" for check in checks)

    def has_solved(self, number: str) -> bool:
        """Return True if all checks of a page are right."""
        page = self.pages.get(number)
        if page is None or not page.checks:
            return False
        return all(check.outcome == "right" for check in page.checks)

    def marks(self, number: str) -> str:
        """Return a character of `MARKS` for each check of a page."""
        page = self.pages.get(number)
        if page is None or not page.checks:
            return NO_PAGE
        return "".join(MARKS[check.outcome] for check in page.checks)

    @property
    def last_wrong_answer(self) -> tuple[str, Check] | None:
        """Return the number of the page that was saved last of those with a wrong answer, and its last wrong check."""
        for page in sorted(self.pages.values(), key=lambda page: page.saved, reverse=True):
            wrong = [check for check in page.checks if check.outcome == "wrong"]
            if wrong:
                return page.number, wrong[-1]
        return None


class Reader:
    """Reads pages of students, and each saved state of a page once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[tuple[int, int], Page]] = {}

    def read_student(self, folder: Path) -> Student:
        """Read all pages of a student's folder. No page is read if the folder is a link, or none at all."""
        above = folder.parent
        try:
            with paths.open_inside(above, folder.name, os.O_RDONLY | os.O_DIRECTORY) as opened:
                names = [name for name in os.listdir(opened) if _PAGE.fullmatch(name)]
        except OSError:
            return Student(folder.name, {})

        pages: dict[str, Page] = {}
        # A page of the course takes the place of a student's own file with the same number.
        for name in sorted(names, key=lambda name: ((paths.NOTEBOOKS / name).exists(), name)):
            page = self._read_page(above, folder.name, name)
            pages[page.number] = page
        return Student(folder.name, pages)

    def _read_page(self, above: Path, student: str, name: str) -> Page:
        """Read one page; one that cannot be read has no checks."""
        number = name.partition("_")[0]
        try:
            with paths.open_inside(above, os.path.join(student, name)) as file:
                return self._read_opened(file, number)
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return Page(number)

    def _read_opened(self, file: int, number: str) -> Page:
        """Return the page in an open file; what is known if the file has not changed since it was read last.

        OSError for what is no regular file or too large, and what reading a damaged notebook raises.
        """
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if about.st_size > LARGEST:
            raise OSError(errno.EFBIG, "larger than any page")

        place, state = (about.st_dev, about.st_ino), (about.st_mtime_ns, about.st_size)
        if place in self._known and self._known[place][0] == state:
            return self._known[place][1]

        with os.fdopen(os.dup(file), "rb") as content:  # a copy, since the caller closes its own
            text = content.read(LARGEST)  # it may have grown since
        page = Page(number, tuple(read_checks(json.loads(text))), about.st_mtime)
        self._known[place] = state, page
        return page


def read_checks(notebook: Mapping) -> list[Check]:
    """Return what the checks of a page left in it, in order."""
    cells = [cell for cell in notebook["cells"] if workshop.CHECK.fullmatch(cell.get("id", ""))]
    return [_read_check(cell) for cell in cells]


def _read_check(cell: Mapping) -> Check:
    """Say how a check went, by what it left in its cell."""
    judged = judgement.of_cell(cell)
    errors = [output for output in cell.get("outputs", []) if output["output_type"] == "error"]

    if errors and judged is not None and judged.outcome == "wrong":
        return Check("wrong", _shorten(judged.exercise), _shorten(judged.sentence))
    if errors:  # the check itself could not run, as with a name that no cell has made yet
        name, what = errors[-1].get("ename", ""), errors[-1].get("evalue", "")
        return Check("wrong", sentence=_shorten(f"{name}: {what}"))
    if judged is None:
        return Check("not run")
    return Check(judged.outcome, _shorten(judged.exercise), _shorten(judged.sentence))


def _shorten(text: str) -> str:
    """Return a text of a student's in one line that can do nothing to a terminal, cut to `LONGEST` characters."""
    line = " ".join(text[: 10 * LONGEST].split())
    plain = "".join(c if c.isprintable() else NO_PAGE for c in line)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 3] + "..."


# ---- the class ---------------------------------------------------------------------------------------------------


def read_passwords(file: Path) -> dict[str, str]:
    """Return the passwords of a class by name, from the file with a line for each; nothing if there is no file."""
    if not file.exists():
        return {}
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    return {words[0].lower(): words[1] for words in lines if len(words) == 2}


def read_class(
    folder: Path, names: Sequence[str] = (), reader: Reader | None = None
) -> list[Student]:
    """Read the students of a folder that holds one for each, in the order of their names.

    Parameters
    ----------
    folder
        Holds a folder for each student who has come.
    names
        Of the class: those who have no folder are in the list as well.
    reader
        Remembers what it has read before.
    """
    reader = reader or Reader()
    folders = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    students = [reader.read_student(folder / name) for name in sorted(folders.union(names))]
    return [student for student in students if student.has_come or student.name in names]


def read_room(room: Path, reader: Reader | None = None) -> list[Student]:
    """Read everybody of the class at the hub whose folder this is, also those who never came."""
    names = [name for name in read_passwords(room / "passwords") if name != TEACHER]
    of_class = read_class(room / "students", names, reader)
    return [student for student in of_class if student.name != TEACHER]


# ---- what is printed ---------------------------------------------------------------------------------------------


def find_columns(students: Sequence[Student]) -> list[str]:
    """Return the numbers of the pages of which somebody ran a check."""
    pages = (page for student in students for page in student.pages.values())
    return sorted({page.number for page in pages if _has_run(page)})


def _has_run(page: Page) -> bool:
    """Say whether a check of a page has run."""
    return any(check.outcome != "not run" for check in page.checks)


def render_table(students: Sequence[Student]) -> str:
    """Return a row for each student, below it how many solved each page, and where each answered wrongly last."""
    numbers = find_columns(students)
    lines = [*_render_lines(students, numbers), ""] if numbers else ["No check has run yet."]

    wrong = [(student, student.last_wrong_answer) for student in students]
    told = [f"{_shorten(student.name)}, {describe_wrong(*last)}" for student, last in wrong if last]
    if told:
        lines += ["The last wrong answer of each:", *told, ""]

    absent = [_shorten(student.name) for student in students if not student.has_come]
    if absent:
        lines += [f"Never came: {', '.join(absent)}.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _render_lines(students: Sequence[Student], numbers: Sequence[str]) -> list[str]:
    """Return the table's lines, and what its marks mean.

    A row for each student who has come, with the marks of each page and how many checks are right, and below them how
    many have solved each page.
    """
    rows = [["", *numbers, "right"]]
    for student in students:
        if student.has_come:
            marks = map(student.marks, numbers)
            rows.append([_shorten(student.name), *marks, str(student.right)])

    solved = map(functools.partial(_count_solved, students), numbers)
    rows.append(["all right", *map(str, solved), ""])

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [*lines, "", describe_marks()]


def _count_solved(students: Sequence[Student], number: str) -> int:
    """Return how many students have solved a page."""
    return sum(student.has_solved(number) for student in students)


def describe_marks() -> str:
    """Say what each mark means."""
    return ", ".join(f"{mark} {what}" for what, mark in {**MARKS, "no page": NO_PAGE}.items())


def describe_wrong(number: str, check: Check) -> str:
    """Say where a student answered wrongly, and what the check said."""
    what = f"page {number}, {check.exercise}" if check.exercise else f"page {number}"
    return f"{what}: {check.sentence}"


def main(arguments: Sequence[str]) -> int:
    """Print the table of a class. Return 0, or 2 where there are no pages.

    Without an argument it is the class of the hub, or where there is none the student copies of this checkout; an
    argument names a folder of one student, or of one for each.
    """
    room = workshop.find_classroom()
    if not arguments and (room / "students").is_dir():
        folder, students = room / "students", read_room(room)
    else:
        folder = Path(arguments[0]) if arguments else workshop.WORKSHOP
        students = _read_named(folder)

    if not students:
        print(
            f"There are no pages in {folder}: name a folder that has one for each student",
            file=sys.stderr,
        )
        return 2

    shown = os.path.relpath(folder)
    print(f"From the pages saved in {shown}:\n\n{render_table(students)}", end="")
    return 0


def _read_named(folder: Path) -> list[Student]:
    """Read the folder that somebody named: of one student, or of one for each."""
    if not folder.is_dir():
        return []
    if any(folder.glob("[0-9]*_*.ipynb")):
        return [Reader().read_student(folder.resolve())]
    return read_class(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
