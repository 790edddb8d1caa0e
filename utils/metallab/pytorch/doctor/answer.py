"""The answer to one question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from metallab import isolated
from metallab.outcomes import Ended, Status
from metallab.tables import Table

IN_PRINT: dict[Status, str] = {
    "failed": "bad",  # it fails on an Apple GPU, is wrong there, or does not fit
    "skipped": "unanswered",
    "incomplete": "attention",  # it could be better
    "passed": "good",
}
"""The words of the page and of ``doctor.json``, the worst first."""

QUESTIONS = (
    "Does it run on MPS?", "Is it right?", "Is it fast?", "Where does the time go?", "Does it fit?",
    "Which number format?",
)  # fmt: skip


class NotAModel(ValueError):
    """A factory's result that cannot be examined; the message says what it has to return."""


@dataclass(frozen=True)
class Evidence:
    """The basis of a sentence: a table, or a text such as a program."""

    title: str
    table: Table | None = None
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and texts."""
        if self.table is None:
            return {"title": self.title, "text": self.text}
        return {
            "title": self.title,
            **{name: getattr(self.table, name) for name in ("headings", "rows", "note")},
        }

    def __str__(self) -> str:
        shown = self.text if self.table is None else repr(self.table)
        return "\n".join([f"{self.title}:", *(f"  {line}" for line in shown.splitlines())])


@dataclass(frozen=True)
class Answer:
    """One of the six."""

    question: str
    status: Status
    sentence: str
    """The answer in words, one point a line."""
    on: str = ""
    """The hardware's name, or PyTorch's tables."""
    evidence: tuple[Evidence, ...] = ()
    seconds: float = 0.0
    """Including the start of its process."""
    ended: Ended = "ok"
    """How its process ended; ``timeout`` also where it answered that time ran out."""

    @property
    def outcome(self) -> str:
        """``status`` as it is printed: good, attention, bad or unanswered."""
        return IN_PRINT[self.status]

    @property
    def number(self) -> int:
        """From 1 to 6."""
        return QUESTIONS.index(self.question) + 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values, in the words of the page."""
        fields = {
            "outcome" if name == "status" else name: value for name, value in vars(self).items()
        }
        ended = isolated.IN_PRINT.get(self.ended, self.ended)
        return fields | {
            "outcome": self.outcome,
            "ended": ended,
            "evidence": [e.to_json() for e in self.evidence],
        }

    def __str__(self) -> str:
        lines = [self.question, *(f"  {line}" for line in self.sentence.splitlines())]
        lines += [f"  (asked of {self.on})"] if self.on else []
        return "\n".join(
            [*lines, *(f"  {line}" for each in self.evidence for line in str(each).splitlines())]
        )
