"""Plausible wrong answers to the exercises of the pages: none may pass its check."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import puzzle_answers

ANSWERS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
"""Each below a line with its page and the number of the exercise."""

WRONG_ANSWERS: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
"""The answers by page and by the cell with the solution."""

for _page, _number, _answer in re.findall(
    r"^== (\w+) (\d)\n(.*?\n)(?=== |\Z)", ANSWERS, re.MULTILINE | re.DOTALL
):
    WRONG_ANSWERS[_page][f"solution-{_number}"].append(_answer)

PUZZLES = {"20_solve_metal_puzzles": 7, "21_share_threadgroup_memory": 8, "22_use_simd_groups": 6}
"""How many puzzles the pages have, in the order of puzzle_answers.txt."""

_names = iter(puzzle_answers.RIGHT)
for _page, _count in PUZZLES.items():
    for _number in range(1, _count + 1):
        _name = next(_names)
        _two = [
            f'{_name}_source = """\n{source}"""' for _, source in puzzle_answers.WRONG[_name][:2]
        ]
        WRONG_ANSWERS[_page][f"solution-{_number}"] += _two
