"""What the doctor answers to one question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from metallab.tables import Table

Outcome = Literal["good", "attention", "bad", "unanswered"]
"""``bad``: it fails on an Apple GPU, computes wrongly there, or does not fit. ``attention``: it runs, and could be
better. ``unanswered``: the sentence says why."""

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
    """What a sentence rests on: a table, or a text such as a program."""

    title: str
    table: Table | None = None
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain lists and texts."""
        if self.table is None:
            return {"title": self.title, "text": self.text}
        return {
            "title": self.title,
            "headings": self.table.headings,
            "rows": self.table.rows,
            "note": self.table.note,
        }

    def __str__(self) -> str:
        shown = self.text if self.table is None else repr(self.table)
        return "\n".join([f"{self.title}:", *(f"  {line}" for line in shown.splitlines())])


@dataclass(frozen=True)
class Answer:
    """One of the six."""

    question: str
    outcome: Outcome
    sentence: str
    on: str = ""
    """What was asked: the hardware's name, or PyTorch's tables; empty where nothing was."""
    evidence: tuple[Evidence, ...] = ()
    seconds: float = 0.0
    """That it took, with starting its process."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return vars(self) | {"evidence": [each.to_json() for each in self.evidence]}

    def __str__(self) -> str:
        lines = [f"{self.question} {self.sentence}"]
        lines += [f"  (asked of {self.on})"] if self.on else []
        return "\n".join([*lines, *(f"  {line}" for each in self.evidence for line in str(each).splitlines())])
