"""What is said of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "right",
    "does not compile",
    "wrong call",
    "out of bounds",
    "race",
    "divergent barrier",
    "does not end",
    "uninitialised",
    "wrong value",
    "too slow",
]
"""What a kernel can be; `grade.judge` says in which order it is asked."""


@dataclass(frozen=True)
class Score:
    """What a kernel costs."""

    reads: float
    """Numbers read from device memory, for each result."""
    writes: float
    """Numbers written to it, for each result."""
    barriers: int = 0
    """The most that a thread passes."""
    shared: int = 0
    """Bytes of threadgroup memory."""

    def __str__(self) -> str:
        reads, writes = _count(self.reads, "read"), _count(self.writes, "write")
        barriers = _count(self.barriers, "barrier")
        return f"{reads} and {writes} for each result, {barriers}, {self.shared} bytes of threadgroup memory"


def _count(number: float, what: str) -> str:
    return f"{number:.3g} {what}" if number == 1 else f"{number:.3g} {what}s"


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel is right, or the first thing that is wrong with it, in a sentence."""

    kind: Kind
    sentence: str
    score: Score | None = None


class Wrong(Exception):
    """Something is wrong with a kernel."""

    def __init__(self, kind: Kind, sentence: str) -> None:
        super().__init__(sentence)
        self.verdict = Verdict(kind, sentence)
