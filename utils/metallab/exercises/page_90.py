"""The steps of page 90: the answers are the learner's own, and the tools judge them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import Judge, exercise
from metallab.project import Project

HINTS = (
    "file and function: 'my_project:example'; the file is beside this page",
    "answer 1 names operator, line and way out; page 11 has five",
    "most models: 'float32'; the same weights; dropout off, random numbers seeded",
    "it takes your inputs and returns a tuple: equal rows, zeros, an empty line",
    "a name from the tables of answer 4, such as 'exp', 'convolution' or '.item()'",
    "'inference' or, with a loss and without dropout, 'training step'",
    "'float32', 'bfloat16, autocast', ...; an error such as 1e-3",
    "8, 16, 24, 32, ...; a smaller batch in the factory needs less",
    "claim only what the steps printed",
)
"""Of each step, from the first on."""


def _make_judge(number: int) -> Judge:
    """Return what judges a step."""

    def judge(answer: Any, work: Project) -> bool:
        judge_answer: Callable[[Any], bool] = work.step(number)
        return judge_answer(answer)

    return judge


for _number, _hint in enumerate(HINTS, 1):
    exercise(f"90.{_number}", hint=_hint, word="Step")(_make_judge(_number))
