"""The doctor's questions: one table, from which everything else takes number, text, order, place and advice.

A new question is a row here, a class of results in `metallab.doctor.results`, and a module of this package with the
question's key as its name, whose ``answer(subject, limits)`` returns an `metallab.doctor.answer.Answer`. Its words are
registered in `metallab.doctor.wording`, and its tables, if it has any, in `metallab.doctor.evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metallab.doctor.results import (
    CorrectnessResult,
    FootprintResult,
    FormatsResult,
    ProfileResult,
    SpeedResult,
    SupportResult,
    Trouble,
)
from metallab.outcomes import Status

R = TypeVar("R")


@dataclass(frozen=True)
class Problem:
    """What an answer of some status means for the reader; ``{number}`` is the answer's."""

    what: str
    advice: str


NO_ANSWER = Problem("question {number} has no answer", "read there why")
"""What a status means that a question's row does not name."""


@dataclass(frozen=True)
class Question(Generic[R]):
    """One question about a model, whose answers hold an ``R``."""

    key: str
    """The module of this package that answers it, and its name in ``doctor.json``."""
    number: int
    """Its place on the page, from 1."""
    text: str
    result_type: type[R]
    turn: int
    """Its place in the order of asking: first those whose work does not depend on the time that they have."""
    needs_apple_gpu: bool = False
    """It is asked of an Apple GPU, real or simulated, also where an NVIDIA GPU is."""
    uses_apple_gpu: bool = False
    """It is asked of an Apple GPU, real or simulated, where no NVIDIA GPU is."""
    allows_fallback: bool = True
    """Operators that MPS lacks may run on the CPU meanwhile."""
    problems: Mapping[Status | Trouble, Problem] = field(default_factory=dict, hash=False)
    """What each status means that is not ``passed``, and each trouble that says more."""

    def problem(self, status: Status, trouble: Trouble | None = None) -> Problem:
        """Return what a status means, or the trouble if that says more, with the number in place."""
        meant = self.problems.get(status, NO_ANSWER)
        if trouble is not None:
            meant = self.problems.get(trouble, meant)
        return Problem(
            meant.what.format(number=self.number), meant.advice.format(number=self.number)
        )

    def __str__(self) -> str:
        return self.text


SUPPORT = Question(
    key="support",
    number=1,
    text="Does it run on MPS?",
    result_type=SupportResult,
    turn=1,
    needs_apple_gpu=True,
    allows_fallback=False,
    problems={
        "failed": Problem(
            "it does not run on an Apple GPU as it is", "see answer {number} for what to do"
        ),
        "incomplete": Problem(
            "some of it may leave the Apple GPU", "look at the operators in answer {number}"
        ),
        Trouble.CONTRADICTED: Problem(
            "it runs on an Apple GPU, though the tables of operators say otherwise",
            "look in answer {number} at what they name",
        ),
        Trouble.PARTLY_KNOWN: Problem(
            "whether all of it runs on an Apple GPU is not known",
            "read in answer {number} what cannot be predicted, and try the model on a Mac",
        ),
        Trouble.UNEXPLAINED: Problem(
            "it raises on an Apple GPU, though its operators run there",
            "look at the line in answer {number}, and run again: a fault may come and go",
        ),
    },
)
CORRECTNESS = Question(
    key="correctness",
    number=2,
    text="Is it right?",
    result_type=CorrectnessResult,
    turn=4,
    needs_apple_gpu=True,
    problems={
        "failed": Problem(
            "it computes wrongly on an Apple GPU",
            "take the way out in answer {number}, and report its program",
        ),
        Trouble.NO_PROGRAM: Problem(
            "it computes wrongly on an Apple GPU", "take the way out in answer {number}"
        ),
        Trouble.OTHER_OUTPUT: Problem(
            "it returns something else on an Apple GPU than on the CPU, though each operator agrees",
            "read in answer {number} where that may come from",
        ),
        "incomplete": Problem("not all of it is known to be right", "read in answer {number} why"),
    },
)
SPEED = Question(
    key="speed",
    number=3,
    text="Is it fast?",
    result_type=SpeedResult,
    turn=6,
    problems={
        "incomplete": Problem("not every time may be compared", "read in answer {number} why")
    },
)
PROFILE = Question(
    key="profile",
    number=4,
    text="Where does the time go?",
    result_type=ProfileResult,
    turn=3,
    uses_apple_gpu=True,
    problems={
        "incomplete": Problem(
            "its steps copy between CPU and GPU",
            "remove the copies at the lines in answer {number}",
        )
    },
)
FOOTPRINT = Question(
    key="footprint",
    number=5,
    text="Does it fit?",
    result_type=FootprintResult,
    turn=2,
    problems={
        "failed": Problem(
            "it does not fit into memory", "take the batch of answer {number}, or a smaller model"
        ),
        "incomplete": Problem("other programs hold memory that it needs", "close them"),
    },
)
FORMATS = Question(
    key="formats",
    number=6,
    text="Which number format?",
    result_type=FormatsResult,
    turn=5,
    problems={
        "incomplete": Problem(
            "a small number format fails", "take one that answer {number} finds sound"
        )
    },
)

QUESTIONS: list[Question[Any]] = [SUPPORT, CORRECTNESS, SPEED, PROFILE, FOOTPRINT, FORMATS]


def find_question(key: str) -> Question[Any]:
    """Return the question with a key. KeyError if there is none."""
    for question in QUESTIONS:
        if question.key == key:
            return question
    raise KeyError(key)


def in_asking_order() -> list[Question[Any]]:
    """Return all questions in the order in which they are asked."""
    return sorted(QUESTIONS, key=lambda question: question.turn)
