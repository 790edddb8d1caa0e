"""What a check says of an answer: a sentence for whoever reads the page, and an output for programs.

A cell that checks an exercise leaves an output of the type `MIME`: which exercise it was, how the answer was judged,
and the sentence that its reader saw. `metallab.classroom.progress`, the summary of a run and the report read that
output. None of them reads the text beside it, which may be worded anew, and is worded in another way on the pages of
puzzles.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping
from typing import get_args

from metallab.outcomes import Judged

MIME = "application/vnd.metallab.check+json"
"""Under this type an executed notebook's output holds ``{"exercise": ..., "outcome": ..., "sentence": ...}``."""

_BARS: Mapping[Judged, str] = {
    "right": "border-left:.4em solid #009e73;padding:.5em 1em;font-weight:600",
    "open": "border-left:.4em solid #e69f00;padding:.5em 1em;font-weight:600",
    "not attempted": "border-left:.4em dashed #7f7f7f;padding:.5em 1em",
    "not judged": "border-left:.4em solid #7f7f7f;padding:.5em 1em",
}
"""How a notebook shows a judgement; a wrong answer is shown as the error that it is."""


class Judgement(str):
    """How an answer was judged: text, which a notebook shows with a coloured bar, and which programs read as data.

    Parameters
    ----------
    exercise
        What the page calls it, such as ``Exercise 13.2``.
    outcome
        A word of `metallab.outcomes.Judged`.
    sentence
        What its reader is told, without the exercise's name.
    """

    exercise: str
    """What the page calls it."""
    outcome: Judged
    """How the answer was judged."""
    sentence: str
    """What its reader is told."""

    def __new__(cls, exercise: str, outcome: Judged, sentence: str) -> Judgement:
        """Make the text of the exercise and the sentence."""
        judgement = super().__new__(cls, f"{exercise}: {sentence}")
        judgement.exercise = exercise
        judgement.outcome = outcome
        judgement.sentence = sentence
        return judgement

    # a text pickles and copies itself with one argument
    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        return (self.exercise, self.outcome, self.sentence)

    def data(self) -> dict[str, str]:
        """Return what programs read: ``exercise``, ``outcome`` and ``sentence``."""
        return {"exercise": self.exercise, "outcome": self.outcome, "sentence": self.sentence}

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, object]:
        bundle: dict[str, object] = {MIME: self.data()}
        if self.outcome == "wrong":  # its reader sees the error that follows
            return bundle

        text = html.escape(self, quote=False)
        bundle["text/plain"] = str(self)
        bundle["text/html"] = f'<div style="{_BARS[self.outcome]}">{text}</div>'
        return bundle


def publish(judgement: Judgement) -> None:
    """Leave a judgement in the notebook's cell that runs now, where it is not the cell's result: an error follows.

    It is for programs alone, since the error tells its reader the same, and so it is displayed without a text. Outside
    of notebooks nothing happens, because only a saved page is read later.
    """
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        return
    ipython.display.display(judgement._repr_mimebundle_(), raw=True)


def of_cell(cell: Mapping) -> Judgement | None:
    """Return the last judgement that a saved cell holds; None if no check came to an end there.

    Parameters
    ----------
    cell
        A code cell of a notebook of format 4, as nbformat or ``json`` reads it. What it holds may be damaged, or made
        up by whoever saved it: such an output is passed over.
    """
    last = None
    for output in cell.get("outputs", []):
        shown = output.get("data")
        data = shown.get(MIME) if isinstance(shown, Mapping) else None
        if not isinstance(data, Mapping) or data.get("outcome") not in get_args(Judged):
            continue
        last = Judgement(
            str(data.get("exercise", "")), data["outcome"], str(data.get("sentence", ""))
        )
    return last
