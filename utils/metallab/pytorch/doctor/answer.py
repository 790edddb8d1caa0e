"""What the doctor answers to one question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from metallab.tables import Table

Outcome = Literal["good", "attention", "bad", "unanswered"]
"""``bad``: it fails on an Apple GPU, computes wrongly there, or does not fit. ``attention``: it runs, and could be
better. ``unanswered``: the sentence says why."""
Ended = Literal["well", "raised", "crashed", "hung"]
"""As in `isolated.Outcome`; ``hung`` also where there was no time for a part of the question."""

QUESTIONS = (
    "Does it run on MPS?",
    "Is it right?",
    "Is it fast?",
    "Where does the time go?",
    "Does it fit?",
    "Which number format?",
)


@dataclass(frozen=True)
class Evidence:
    """What a sentence is based on: a table, or a text such as a program."""

    title: str
    table: Table | None = None
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and texts."""
        if self.table is None:
            return {"title": self.title, "text": self.text}
        return {"title": self.title, **{name: getattr(self.table, name) for name in ("headings", "rows", "note")}}

    def __str__(self) -> str:
        shown = self.text if self.table is None else repr(self.table)
        return "\n".join([f"{self.title}:", *(f"  {line}" for line in shown.splitlines())])


@dataclass(frozen=True)
class Answer:
    """One of the six."""

    question: str
    outcome: Outcome
    sentence: str
    """The answer in words, one point a line."""
    on: str = ""
    """What was asked: the hardware's name, or PyTorch's tables; empty if nothing was."""
    evidence: tuple[Evidence, ...] = ()
    seconds: float = 0.0
    """How long it took, including the start of its process."""
    ended: Ended = "well"
    """How its process ended; the answer is not complete unless ``well``."""

    @property
    def number(self) -> int:
        """From 1 to 6."""
        return QUESTIONS.index(self.question) + 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return vars(self) | {"evidence": [each.to_json() for each in self.evidence]}

    def __str__(self) -> str:
        lines = [self.question, *(f"  {line}" for line in self.sentence.splitlines())]
        lines += [f"  (asked of {self.on})"] if self.on else []
        return "\n".join([*lines, *(f"  {line}" for each in self.evidence for line in str(each).splitlines())])
