"""Whether two functions return the same: the parity check, without which there is no speed-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ParityCheck = Callable[[Any, Any], Any]
"""``parity(reference, result)`` raises AssertionError, or returns anything but True or None, where outputs differ."""


@dataclass(frozen=True)
class Unchecked:
    """A parity check that accepts anything: ``parity=timing.Unchecked("the same function twice")``."""

    reason: str
    """Why nothing has to be compared; it is printed and saved with the speed-up."""

    def __call__(self, reference: Any, result: Any) -> None:
        """Accept anything."""

    def __str__(self) -> str:
        return f"outputs not compared: {self.reason}"


def describe_check(parity: ParityCheck) -> str:
    """Return the description of a parity check: its text, or the name of a function."""
    name = getattr(parity, "__name__", "<lambda>")
    says_what_it_is = getattr(type(parity), "__str__", None) is not object.__str__
    if name == "<lambda>" and says_what_it_is:
        return str(parity)

    whose = "a function of yours" if name == "<lambda>" else name
    return f"outputs checked by {whose}"


def difference_of(parity: ParityCheck, reference: Any, result: Any) -> str | None:
    """Return how two results differ by a parity check; None if they agree.

    Parameters
    ----------
    parity
        The check.
    reference, result
        What the baseline returned, and what a variant did.
    """
    try:
        answer = parity(reference, result)
    except AssertionError as difference:
        return " ".join(str(difference).split()) or "the check says no more"

    # not its truth, since a text or the size of an error is true as well
    if answer is None or bool(answer == True):  # noqa: E712
        return None
    return f"the check returned {answer!r}"
