"""Right and wrong answers to the Metal puzzles, from puzzle_answers.txt, which says how they are written."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

RIGHT: dict[str, str] = {}
"""Kernels by the name of their puzzle."""
WRONG: dict[str, list[tuple[str, str]]] = defaultdict(list)
"""Kind of verdict and kernel, by the name of the puzzle."""

_TEXT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
for _name, _kind, _body in re.findall(
    r"^== (\w+) \| ([\w ]+)\n(.*?)(?=^== |\Z)", _TEXT, re.MULTILINE | re.DOTALL
):
    if _kind == "right":
        RIGHT[_name] = _body.rstrip() + "\n"
        continue
    _before, _after = re.fullmatch(r"- (.*?)\n\+ ?(.*?)\n+", _body, re.DOTALL).groups()
    assert RIGHT[_name].count(_before) == 1, f"{_name}: {_before!r} does not occur once"
    WRONG[_name].append((_kind, RIGHT[_name].replace(_before, _after)))
