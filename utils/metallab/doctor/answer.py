"""The answer to one question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from metallab.doctor import evidence, wording
from metallab.doctor.evidence import Evidence
from metallab.doctor.questions import Problem, Question, R, find_question
from metallab.doctor.results import (
    Asked,
    Caveat,
    CorrectnessResult,
    NoAnswer,
    SupportResult,
    Trouble,
)
from metallab.outcomes import Ended, Status

NOTHING = Asked()


@dataclass(frozen=True)
class Answer(Generic[R]):
    """The answer to a question, or why there is none."""

    question: Question[R]
    status: Status
    result: R | NoAnswer
    asked: Asked = NOTHING
    """What it was asked of."""
    caveats: tuple[Caveat, ...] = ()
    """What limits it, such as that its times are not an Apple GPU's."""
    seconds: float = 0.0
    """Including the start of its process."""
    ended: Ended = "ok"
    """How its process ended; ``timeout`` also where it answered that time ran out."""

    @property
    def number(self) -> int:
        """The question's."""
        return self.question.number

    @property
    def trouble(self) -> Trouble | None:
        """What its status does not say."""
        if isinstance(self.result, SupportResult | CorrectnessResult):
            return self.result.trouble
        return None

    @property
    def problem(self) -> Problem:
        """What it means for the reader, if it has not passed."""
        return self.question.problem(self.status, self.trouble)

    @property
    def lines(self) -> list[str]:
        """The answer in words, one point a line, the most important first."""
        return [*wording.describe(self.result), *map(wording.caveat, self.caveats)]

    @property
    def sentence(self) -> str:
        """`lines` as one text."""
        return "\n".join(self.lines)

    @property
    def on(self) -> str:
        """`asked` in words: the hardware's name, or PyTorch's tables; empty if nothing was asked."""
        return wording.describe_asked(self.asked)

    @property
    def evidence(self) -> list[Evidence]:
        """Its tables and texts."""
        return evidence.collect(self.result)

    def to_json(self) -> dict[str, Any]:
        """Return an answer of ``doctor.json`` as plain values.

        Programs read ``result`` or, if there is none, ``no_answer``; the other of the two is None. Question, number,
        sentence, ``on`` and evidence are for people, and `from_json` does not read them.
        """
        has_result = not isinstance(self.result, NoAnswer)
        result = msgspec.to_builtins(self.result)

        return {
            "question": self.question.text,
            "key": self.question.key,
            "number": self.number,
            "status": self.status,
            "sentence": self.sentence,
            "result": result if has_result else None,
            "no_answer": None if has_result else result,
            "asked": msgspec.to_builtins(self.asked),
            "on": self.on,
            "caveats": list(self.caveats),
            "evidence": [each.to_json() for each in self.evidence],
            "seconds": self.seconds,
            "ended": self.ended,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """Return the answer that `to_json` was called of.

        Raises
        ------
        KeyError
            If a field is missing, or there is no such question.
        TypeError
            If it is no mapping, or its caveats are no list.
        ValueError
            If a caveat is none of those that there are.
        msgspec.ValidationError
            If a field of ``result``, ``no_answer`` or ``asked`` is missing or has another type; the other fields are
            taken as they are.
        """
        question = find_question(data["key"])
        if data["result"] is not None:
            result = msgspec.convert(data["result"], question.result_type)
        else:
            result = msgspec.convert(data["no_answer"], NoAnswer)

        return cls(
            question,
            data["status"],
            result,
            asked=msgspec.convert(data["asked"], Asked),
            caveats=tuple(map(Caveat, data["caveats"])),
            seconds=data["seconds"],
            ended=data["ended"],
        )

    def __str__(self) -> str:
        lines = [self.question.text, *(f"  {line}" for line in self.lines)]
        if self.on:
            lines.append(f"  {wording.PHRASES['asked of'].format(asked=self.on)}")
        for each in self.evidence:
            lines += [f"  {line}" for line in str(each).splitlines()]
        return "\n".join(lines)
