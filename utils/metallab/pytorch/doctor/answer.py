"""What the doctor answers to one question."""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from metallab.tables import Table

Outcome = Literal["good", "attention", "bad", "unanswered"]
"""``bad``: it fails on an Apple GPU, computes wrongly there, or does not fit. ``attention``: it runs, and could be
better. ``unanswered``: the sentence says why."""
Ended = Literal["well", "raised", "crashed", "hung", "not started"]
"""As in `isolated.Outcome`; ``hung`` also where a part of the question had no time."""

QUESTIONS = (
    "Does it run on MPS?",
    "Is it right?",
    "Is it fast?",
    "Where does the time go?",
    "Does it fit?",
    "Which number format?",
)

TWO_STOPS = re.compile(r"(?<!\.)([.!?])\.(?=\s|$)")


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
    """What there is to say, each part of it on a line."""
    on: str = ""
    """What was asked: the hardware's name, or PyTorch's tables; empty where nothing was."""
    evidence: tuple[Evidence, ...] = ()
    seconds: float = 0.0
    """That it took, with starting its process."""
    ended: Ended = "well"
    """How its process ended; the answer is not whole unless ``well``."""

    def __post_init__(self) -> None:
        # it quotes what others raise, which may end with a stop or a mark of its own
        object.__setattr__(self, "sentence", TWO_STOPS.sub(r"\1", self.sentence))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return vars(self) | {"evidence": [each.to_json() for each in self.evidence]}

    def __str__(self) -> str:
        lines = [self.question, *(f"  {line}" for line in self.sentence.splitlines())]
        lines += [f"  (asked of {self.on})"] if self.on else []
        return "\n".join([*lines, *(f"  {line}" for each in self.evidence for line in str(each).splitlines())])


def broken_off(question: str, draft: Answer | None, ended: Ended, why: str, *evidence: Evidence) -> Answer:
    """The answer of a process that did not come to its end: what it had (its ``draft``), if anything, and why.

    What is ``bad`` already stays so.
    """
    if draft is None:
        return Answer(question, "unanswered", f"No answer: {why}.", evidence=evidence, ended=ended)
    outcome = "bad" if draft.outcome == "bad" else "attention" if ended == "hung" else "unanswered"
    sentence = f"{draft.sentence}\nThat is all, for {why}."
    return replace(draft, outcome=outcome, sentence=sentence, evidence=(*draft.evidence, *evidence), ended=ended)


_draft: Path | None = None


@contextlib.contextmanager
def drafting(file: Path) -> Iterator[None]:
    """In here `so_far` writes into this file."""
    global _draft
    _draft = file
    try:
        yield
    finally:
        _draft = None


def so_far(answer: Answer) -> None:
    """Keep what is known by now: the reader gets it if this process does not come to the whole answer."""
    if _draft is not None:
        part = _draft.with_suffix(".part")
        part.write_bytes(pickle.dumps(answer))
        part.replace(_draft)


def draft_in(file: Path) -> Answer | None:
    """What another process kept last; None if nothing."""
    return pickle.loads(file.read_bytes()) if file.exists() else None
