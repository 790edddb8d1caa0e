"""Plausible wrong answers to the exercises of the pages: none may pass its check."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ANSWERS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
"""Each below a line with its page and the number of the exercise."""

WRONG_ANSWERS: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
"""The answers by page and by the cell with the solution."""

for _page, _number, _answer in re.findall(r"^== (\w+) (\d)\n(.*?\n)(?=== |\Z)", ANSWERS, re.MULTILINE | re.DOTALL):
    WRONG_ANSWERS[_page][f"solution-{_number}"].append(_answer)
