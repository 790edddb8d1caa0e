"""Begin a new notebook, with its exercises, rows, paragraph and the links to it: ``make page NAME=15_do_this``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbformat import NotebookNode, read, v4, writes

from metallab import paths
from metallab.authoring import course, course_tables

UNWRITTEN = "TO BE WRITTEN"
"""What each text of a new page has that somebody has to write; a test finds it wherever it is left."""

SETUP = """\
import metallab.device  # before any framework: it prepares the device
import matplotlib.pyplot as plt
import torch
from metallab import timing

plt.style.use("metallab.style")
lab = metallab.device.pick()  # the device that this page measures
device = lab.torch_device  # in a script of yours: torch.device("mps")
lab.banner()"""
RESULT = """\
# TO BE WRITTEN: your result in place of this one, in so few lines
count = 100_000  # fast: 1000
numbers = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(device)
measured = timing.measure(lambda: numbers.sort(), on=lab, name="sort")
print(measured)
figure, axes = plt.subplots(figsize=(7.5, 3), layout="constrained")
axes.plot(numbers.sort().values.cpu(), label="sorted")
axes.set(title="A hundred thousand numbers", xlabel="place", ylabel="number")
plt.show()"""
CAPTION = """\
TO BE WRITTEN, of your picture: The numbers, sorted. If you see a line that never falls, the sort is right."""
OWN = """\
## On your own

Type your answer in place of `...`, and run that cell; then run the line with `check` below it. A wrong answer
goes red, and you see what it returned and what was expected. For a hint run `hint("{page}.1")`."""
IMPORT = "from metallab.exercises import check, hint"
MODULE = '''\
"""The exercises of page {page}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect


@exercise(
    "{page}.1",
    hint="TO BE WRITTEN: what helps without giving the answer away",
)
def judge_double1(double1: Callable[..., Any]) -> bool:
    """Ask for the double of numbers, 0 and negative ones among them."""
    for number in (0, 1, -3):
        expect(f"double1({{number}})", double1(number), 2 * number)
    return True


@exercise(
    "{page}.2",
    hint="TO BE WRITTEN: what helps without giving the answer away",
)
def judge_double2(double2: Callable[..., Any]) -> bool:
    """Ask for the double of numbers, 0 and negative ones among them."""
    for number in (0, 1, -3):
        expect(f"double2({{number}})", double2(number), 2 * number)
    return True
'''
FINISH = "metallab.finish()"
HEADLINE = {"sentences": ["measured"], "picture": "figure"}


def make_cells(name: str, title: str) -> list[NotebookNode]:
    """Return the cells of the page: title, set-up, an example of a result, what goes wrong, two exercises, recap, end.

    What somebody has to write in them says `UNWRITTEN`.
    """
    page = name.partition("_")[0]
    promise = (
        f"# {title}\n\n{UNWRITTEN}, in two sentences: what one can do or knows at the end, and how."
    )
    wrong = f"## What goes wrong\n\n{UNWRITTEN}, with a cell behind it that shows it happening."
    recap = f"## Recap\n\n- {UNWRITTEN}: what to remember.\n\n**Next**: made by make course."

    return [
        v4.new_markdown_cell(promise, id="title"),
        v4.new_code_cell(SETUP, id="setup"),
        v4.new_code_cell(RESULT, id="result"),
        v4.new_markdown_cell(CAPTION, id="result-caption", metadata={"tags": ["caption"]}),
        v4.new_markdown_cell(wrong, id="wrong"),
        v4.new_markdown_cell(OWN.format(page=page), id="own"),
        v4.new_code_cell(IMPORT, id="own-check"),
        *make_exercise(page, 1),
        *make_exercise(page, 2),
        v4.new_markdown_cell(recap, id="recap"),
        v4.new_code_cell(FINISH, id="finish"),
    ]


def make_exercise(page: str, number: int) -> list[NotebookNode]:
    """Return the cells of an exercise: task, stub, solution, the line that checks it, and a wrong answer for the tests.

    The solution is folded where the page is opened, and `make format` moves the wrong answer out of the page.
    """
    task = f"**Exercise {number}.** {UNWRITTEN}: what `double{number}(n)` returns."
    define = f"def double{number}(n):\n    return "
    solution = _make_cell("solution", number, f"# a solution\n{define}2 * n")
    solution.metadata["jupyter"] = {"source_hidden": True}
    check = f'check("{page}.{number}", double{number})'

    return [
        v4.new_markdown_cell(task, id=f"own-{number}"),
        _make_cell("exercise", number, f"{define}..."),
        solution,
        v4.new_code_cell(check, id=f"check-{number}"),
        _make_cell("wrong", number, f"{define}n + 2"),
    ]


def _make_cell(tag: str, number: int, code: str) -> NotebookNode:
    return v4.new_code_cell(code, id=f"{tag}-{number}", metadata={"tags": [tag]})


def describe() -> dict[str, Any]:
    """Return what the page says of itself, to be filled in; see `metallab.authoring.course`.

    The minutes are those of the median page.
    """
    return {
        "question": f"{UNWRITTEN}: which question does this page answer?",
        "minutes": 40,
        "exercises": 10,
        "after": ["01"],
        "without_a_mac": UNWRITTEN,
        "subjects": {},
        "routes": [],
    }


def make(name: str) -> list[str]:
    """Write the notebook, what checks its exercises, and what names it; return what is left to do.

    What is written: the notebook itself, a module in `metallab.exercises`, a paragraph in the teacher's guide, and the
    tables and lines that `course_tables` makes. FileExistsError if the page's number is taken or was,
    course.CourseError if it is that of no part.
    """
    pages = course.read()
    number, _, words = name.partition("_")
    _assert_free(name, pages)
    before = [page for page in pages if page.name < name][-1]

    # kernel and language are those of the page before it
    metadata = read(paths.NOTEBOOKS / before.file, 4).metadata | {
        "metallab": {"needs": ["torch"], "headline": HEADLINE, "course": describe()}
    }
    title = words.replace("_", " ").capitalize()
    page = v4.new_notebook(cells=make_cells(name, title), metadata=metadata)
    file = paths.NOTEBOOKS / f"{name}.ipynb"
    paths.write_atomically(file, writes(page) + "\n")

    module = paths.ROOT / "utils" / "metallab" / "exercises" / f"page_{number}.py"
    paths.write_atomically(module, MODULE.format(page=number))
    _add_paragraph(before.number, number)
    course_tables.write()

    return [
        f"whatever has the words {UNWRITTEN}, and what is only an example of its kind (the result, double1, double2):",
        f"in {paths.shorten(file)} the page, and what it says of itself in metadata.metallab.course; then make course",
        f"in {paths.shorten(module)} what each exercise asks, and its hint",
        "in docs/teaching.md the page's paragraph, and in docs/quiz.md a question if the page is on a path there",
        f"make format; commit; make run show test ONLY={number} DEVICE=cpu RUN=build/full-cpu; commit",
    ]


def find_unwritten(file: Path) -> list[str]:
    """Return the lines of a page, a module or a document that `make page` has left to be written.

    A sentence about these words has them in italics, and is none.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if UNWRITTEN in line.replace(f"*{UNWRITTEN}*", "")]


def _assert_free(name: str, pages: Sequence[course.Page]) -> None:
    """Raise FileExistsError if the number of a page is taken or was, course.CourseError if it is that of no part."""
    number = name.partition("_")[0]
    if taken := [page for page in pages if page.number == number]:
        raise FileExistsError(f"{name}: notebooks/{taken[0].file} has this number; take another")
    if number in course.RETIRED:
        raise FileExistsError(f"{name}: {course.describe_retired(number)}; take another")
    if number[0] not in {part.digit for part in course.PARTS}:
        digits = ", ".join(f"{part.digit} {part.title}" for part in course.PARTS)
        raise course.CourseError(f"{name}: the first digit is that of a part: {digits}")


def _add_paragraph(before: str, number: str) -> None:
    """Add the page's paragraph to the teacher's guide, behind that of the page before."""
    guide = paths.ROOT / "docs" / "teaching.md"
    paragraph = rf"^\*\*{before}\.\*\* (?:.+\n)+\n"  # of Lesson by lesson
    asked = f"**{number}.** *Ask:* {UNWRITTEN}. *Watch for:* {UNWRITTEN}. *1:* {UNWRITTEN}. *2:* {UNWRITTEN}.\n\n"
    text = guide.read_text(encoding="utf-8")
    paths.write_atomically(guide, re.sub(paragraph, rf"\g<0>{asked}", text, flags=re.MULTILINE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Begin a page, print what is left to do, and return 0. SystemExit with 2 and a message if it cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m metallab.authoring.new_page", description=__doc__.splitlines()[0]
    )
    parser.add_argument("name", help="a free number, and words that begin with a verb: 15_do_this")
    name = parser.parse_args(arguments).name

    if not re.fullmatch(r"\d\d(_[a-z0-9]+)+", name):
        parser.error(f"{name!r} is no name of a notebook: 15_do_this, for example")
    try:
        left = make(name)
    except (FileExistsError, course.CourseError) as problem:
        parser.error(str(problem))
    print("Left to do:", *left, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
