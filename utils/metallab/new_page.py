"""Begin a new notebook, with its rows, its paragraph and the links to it: ``make page NAME=03c_do_this``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from nbformat import read, v4, writes

from metallab import paths

LISTS = (("README.md", "notebooks/"), ("docs/teaching.md", "../notebooks/"))
SETUP = """\
import metallab.device  # before any framework: it prepares the device
import matplotlib.pyplot as plt
import numpy as np
from metallab import plots, timing

lab = metallab.device.pick()  # the device that this page measures
lab.banner()"""
RESULT = """\
numbers = np.random.default_rng(0).normal(size=100_000)
measured = timing.measure(lambda: np.sort(numbers), on=timing.Host(), name="sort")
print(measured)
figure, axes = plt.subplots(figsize=(7.5, 3), layout="constrained")
axes.plot(np.sort(numbers))
plots.described(figure, "The numbers, sorted")"""
CHECK = """\
from metallab import checks

answers = lambda: [double{number}(n) for n in (0, 1, -3)]
checks.exercise("Exercise {number}", answers, [0, 2, -6], "twice as much")"""
SAVE = """\
from metallab import records

headline = records.Headline([str(measured)], figure)
saved = records.save("{name}", measured, on=lab, headline=headline)
print("Measurements, with this machine's description:", saved.name)"""


def cells(name: str, title: str, following: str) -> list:
    """The cells of the page: result, exercises with stub, solution, check and wrong answer, recap, file of results."""
    made = [
        v4.new_markdown_cell(
            f"# {title}\n\nWhich question is answered? What does one have at the end?", id="title"
        ),
        v4.new_code_cell(SETUP, id="setup"),
        v4.new_code_cell(RESULT, id="result"),
        v4.new_markdown_cell("## What goes wrong\n\nShow it happening.", id="wrong"),
        v4.new_markdown_cell("## On your own\n\nReplace the `...`.", id="own"),
    ]
    for number in (1, 2):
        stub, right, wrong = (
            f"def double{number}(n):\n    return {value}" for value in ("...", "2 * n", "n + 2")
        )
        made += [
            v4.new_code_cell(stub, id=f"exercise-{number}", metadata={"tags": ["exercise"]}),
            v4.new_code_cell(
                f"# a solution\n{right}", id=f"solution-{number}", metadata={"tags": ["solution"]}
            ),
            v4.new_code_cell(CHECK.format(number=number), id=f"check-{number}"),
            v4.new_code_cell(wrong, id=f"wrong-{number}", metadata={"tags": ["wrong"]}),
        ]
    recap = v4.new_markdown_cell(
        f"## Recap\n\n- What to remember.\n\n**Next**: {following}.", id="recap"
    )
    return [*made, recap, v4.new_code_cell(SAVE.format(name=name), id="save")]


def make(name: str) -> list[str]:
    """Write the notebook and what names it; return what is left to do. FileExistsError if its number is taken."""
    number, _, words = name.partition("_")
    title, file = words.replace("_", " ").capitalize(), paths.NOTEBOOKS / f"{name}.ipynb"
    pages = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))
    if taken := [page for page in pages if page.name.startswith(f"{number}_")]:
        raise FileExistsError(
            f"{name}: {paths.shown(taken[0])} has this number already; take another"
        )
    before = [page for page in pages if page.name < file.name][-1]
    previous, link = read(before, 4), f"[{title}]({file.name})"
    (recap,) = (cell for cell in previous.cells if "**Next**" in cell.source)
    following = re.search(r"\*\*Next\*\*[^[]*(\[[^]]*\]\([^)]*\))", recap.source)[1]
    recap.source = recap.source.replace(following, link, 1)
    metadata = previous.metadata | {"metallab": {"needs": ["numpy"]}}
    page = v4.new_notebook(cells=cells(name, title, following), metadata=metadata)
    for document, folder in LISTS:
        path = paths.ROOT / document
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        old = re.compile(rf"\| \w+ \| \[[^]]+\]\({folder}{before.name}\)")
        row = next(i for i, line in enumerate(lines) if old.match(line))
        cells_left = " to be written |" * (lines[row].count("|") - 3)
        lines.insert(row + 1, f"| {number} | [{title}]({folder}{file.name}) |{cells_left}\n")
        text = "".join(lines).replace(
            f"\n{len(pages)} notebooks", f"\n{len(pages) + 1} notebooks", 1
        )
        paragraph = (
            rf"^\*\*{before.name.partition('_')[0]}\.\*\* (?:.+\n)+\n"  # of Lesson by lesson
        )
        asked = f"**{number}.** *Ask:* to be written. *Watch for:* ... *1:* ... *2:* ...\n\n"
        paths.write_atomically(path, re.sub(paragraph, rf"\g<0>{asked}", text, flags=re.MULTILINE))
    paths.write_atomically(before, writes(previous) + "\n")
    paths.write_atomically(file, writes(page) + "\n")
    return [
        f"write {paths.shown(file)}, to which {paths.shown(before)} leads: do the words behind its link fit?",
        *(f"in {document} what is to be written" for document, _ in LISTS),
        f"make format; commit; make run show test ONLY={number} DEVICE=cpu RUN=build/full-cpu; commit",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 if the notebook cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m metallab.new_page", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "name", help="a new number or letter, and words that begin with a verb: 03c_do_this"
    )
    name = parser.parse_args(arguments).name
    if not re.fullmatch(r"\d\d[a-z]?(_[a-z0-9]+)+", name):
        parser.error(f"{name!r} is no name of a notebook: 03c_do_this, for example")
    try:
        left = make(name)
    except FileExistsError as problem:
        parser.error(str(problem))
    print("Left to do:", *left, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
