"""Begin a new notebook, with its rows in README and the teacher's guide: ``make page NAME=03c_do_this``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from nbformat import v4, writes

from metallab import paths

LISTS = (("README.md", "notebooks/"), ("docs/teaching.md", "../notebooks/"))
SETUP = """\
import metallab.device  # before any framework: it prepares the device
import numpy as np
from metallab import timing

lab = metallab.device.pick()  # the device that this page measures
lab.banner()"""
RESULT = """\
numbers = np.random.default_rng(0).normal(size=100_000)
measured = timing.measure(lambda: np.sort(numbers), on=timing.Host(), name="sort")
print(measured)"""
CHECK = """\
from metallab import checks

answers = [double{number}(n) for n in (0, 1, -3)]
checks.exercise("Exercise {number}", answers, [0, 2, -6], "twice as much")"""
SAVE = """\
from metallab import records

headline = records.Headline([str(measured)])
saved = records.save("{name}", measured, on=lab, headline=headline)
print("Measurements, with this machine's description:", saved.name)"""


def cells(name: str, title: str) -> list:
    """The cells of the page: result, exercises with stub, solution and check, recap, and the file of results."""
    made = [
        v4.new_markdown_cell(f"# {title}\n\nWhich question is answered? What does one have at the end?", id="title"),
        v4.new_code_cell(SETUP, id="setup"),
        v4.new_code_cell(RESULT, id="result"),
        v4.new_markdown_cell("## What goes wrong\n\nShow it happening.", id="wrong"),
        v4.new_markdown_cell("## On your own\n\nReplace the `...`.", id="own"),
    ]
    for number in (1, 2):
        stub, right = (f"def double{number}(n):\n    return {value}" for value in ("...", "2 * n"))
        made += [
            v4.new_code_cell(stub, id=f"exercise-{number}", metadata={"tags": ["exercise"]}),
            v4.new_code_cell(right, id=f"solution-{number}", metadata={"tags": ["solution"]}),
            v4.new_code_cell(CHECK.format(number=number), id=f"check-{number}"),
        ]
    recap = v4.new_markdown_cell("## Recap\n\n- What to remember.\n\n**Next**:", id="recap")
    return [*made, recap, v4.new_code_cell(SAVE.format(name=name), id="save")]


def make(name: str) -> list[str]:
    """Write the notebook and its rows; return what is left to do. FileExistsError if a notebook has its number."""
    number, _, words = name.partition("_")
    title, file = words.replace("_", " ").capitalize(), paths.NOTEBOOKS / f"{name}.ipynb"
    if taken := [*paths.NOTEBOOKS.glob(f"{number}_*.ipynb")]:
        raise FileExistsError(f"{name}: {paths.shown(taken[0])} has this number already; take another")
    page = v4.new_notebook(cells=cells(name, title))
    page.metadata |= {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "metallab": {"needs": ["numpy"]},
    }
    for document, folder in LISTS:
        path = paths.ROOT / document
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [i for i, line in enumerate(lines) if re.match(rf"\| \w+ \| \[[^]]+\]\({folder}", line)]
        before = [i for i in rows if re.search(r"notebooks/([\w.]+)", lines[i])[1] < file.name]
        columns = lines[rows[0]].count("|") - 3
        row = f"| {number} | [{title}]({folder}{file.name}) |" + " to be written |" * columns + "\n"
        lines.insert(before[-1] + 1 if before else rows[0], row)
        paths.write_atomically(path, "".join(lines))
    paths.write_atomically(file, writes(page) + "\n")
    return [
        f"write {paths.shown(file)}, and what is to be written in {' and '.join(document for document, _ in LISTS)}",
        f"two wrong answers in tests/support/wrong_answers.txt, under {name!r}",
        "the link Next in the page before, and in this one; the number of pages in README.md",
        f"make test ONLY={number}",
        f"commit; then make run DEVICE=cpu ONLY={number} && make show RUN=build/full-cpu, and its link in README.md",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 2 if the notebook cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m metallab.new_page", description=__doc__.splitlines()[0])
    parser.add_argument("name", help="a new number or letter, and words that begin with a verb: 03c_do_this")
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
