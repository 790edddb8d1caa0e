"""How an exercise is found by its number, and how an answer to it is judged.

A page has one line for each exercise, ``check("13.2", my_function)``. What the line asks stands in the module of the
page, ``page_13.py``: a function with the decorator `exercise`, and the hint beside it. The function is given the answer
and whatever else stands in the line. It raises AssertionError, by `expect` or for itself, with what the answer returned
and what was expected, and returns True.
"""

from __future__ import annotations

import functools
import importlib
import linecache
import re
import reprlib
import sys
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import numpy as np

from metallab import checks, isolated, units
from metallab.judgement import Judgement

NUMBER = re.compile(r"(\d\d)\.([1-9])")
"""A page, and an exercise on it."""

Judge = Callable[..., Any]

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxarray = 12
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlong = 60


class NotAttempted(Exception):
    """The answer is still the stub of the page: it is ``...``, or returns that."""


@dataclass(frozen=True)
class Right:
    """What an exercise returns that has more to say of a right answer than that it is right."""

    sentence: str


@dataclass(frozen=True)
class Open:
    """What an exercise returns if this machine's clock does not bear the answer out, which makes it no mistake."""

    sentence: str


@dataclass(frozen=True)
class Exercise:
    """An exercise of a page."""

    number: str
    """Such as ``13.2``."""
    hint: str
    judge: Judge
    word: str = "Exercise"
    """What the page calls it."""

    @property
    def name(self) -> str:
        """Such as ``Exercise 13.2``."""
        return f"{self.word} {self.number}"


_EXERCISES: dict[str, Exercise] = {}


def exercise(number: str, *, hint: str, word: str = "Exercise") -> Callable[[Judge], Judge]:
    """Make a function the one that judges an exercise.

    Parameters
    ----------
    number
        The page and the exercise on it, such as ``13.2``.
    hint
        What a learner is told who asks for it.
    word
        What the page calls it.
    """

    def enter(judge: Judge) -> Judge:
        _EXERCISES[number] = Exercise(number, hint, judge, word)
        return judge

    return enter


def find_exercise(number: str) -> Exercise:
    """Return an exercise; the module of its page is imported, in which it stands.

    Raises
    ------
    LookupError
        For what is no number such as ``13.2``, and for one that no page has.
    ImportError
        If the module needs a package that is missing, or raises it otherwise.
    """
    parts = NUMBER.fullmatch(number) if isinstance(number, str) else None
    if parts is None:
        raise LookupError(
            f"{number!r} is no number of an exercise: write page and exercise as a text, such as '13.2'"
        )

    page = parts[1]
    module = f"{__package__}.page_{page}"
    try:
        # its `exercise` decorators enter the exercises into the table
        importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module:  # a framework that this exercise needs
            raise
        raise LookupError(f"there is no exercise {number!r}: page {page} has none") from None

    if number not in _EXERCISES:
        known = ", ".join(sorted(one for one in _EXERCISES if one.startswith(f"{page}.")))
        raise LookupError(f"there is no exercise {number!r}: page {page} has {known}")
    return _EXERCISES[number]


def hint(number: str) -> None:
    """Print the hint of an exercise.

    Parameters
    ----------
    number
        Page and exercise, such as ``13.2``.

    Raises
    ------
    LookupError
        If no page has such an exercise.
    """
    asked = find_exercise(number)
    print(f"Hint for {asked.name.lower()}: {asked.hint}")


def check(number: str, answer: Any, *given: Any) -> Judgement:
    """Judge an answer to an exercise: return a sentence to show, which also tells programs how it was judged.

    Parameters
    ----------
    number
        Page and exercise, such as ``13.2``.
    answer
        What the exercise asks for: a function, a class, a value, or a list of several of them.
    *given
        What the page made that the check needs.

    Returns
    -------
    Judgement
        *right*; *not attempted* for ``...``, and for a function that returns ``...``; *open* where only this machine's
        clock does not bear the answer out; or *not judged* with the reason, such as a package that is missing.

    Raises
    ------
    metallab.checks.WrongAnswer
        In at most three lines with what was returned and what was expected, if the answer is refused or raises.
    LookupError
        If no page has such an exercise.
    TypeError
        If the exercise's own function returns nothing: a mistake of the page.
    """
    asked = find_exercise(number)
    # the cell with the check: which lines of a traceback are the learner's is told by its globals and its file name
    page = sys._getframe(1)
    # what the answer returned last, shown beside an error of the check
    returned: list[Any] = []
    try:
        judged = asked.judge(_watch(require_attempt(answer), returned), *given)
    except NotAttempted:
        return Judgement(asked.name, "not attempted", "not attempted yet")
    except checks.WrongAnswer:  # of the library of predictions, with all that there is to say
        raise
    except Exception as error:
        line = _find_line(error, page.f_globals, page.f_code.co_filename)
        if isinstance(error, ImportError) and not line:  # what the check itself needs
            return Judgement(asked.name, "not judged", f"not judged. {units.first_line(error)}")
        raise _refuse(asked, _describe_error(error, line, returned)) from error

    return _conclude(asked, judged, answer)


def _conclude(asked: Exercise, judged: Any, answer: Any) -> Judgement:
    """Return the judgement for what an exercise's function returned, or raise what is wrong."""
    if isinstance(judged, Judgement):
        return judged
    if isinstance(judged, isolated.Skipped):
        return Judgement(asked.name, "not judged", f"not judged. {judged}")
    if isinstance(judged, Open):
        return Judgement(asked.name, "open", f"open. {judged.sentence}")
    if isinstance(judged, Right):
        return Judgement(asked.name, "right", f"right. {judged.sentence}")

    if judged is None:
        raise TypeError(
            f"{asked.name}: the check returned nothing, which is neither right nor wrong; let it return True"
        )
    if getattr(judged, "ndim", None) == 0:  # a number of NumPy or of a framework
        judged = judged.item()
    if judged is not True:
        raise _refuse(asked, f"{show(answer)} is not it.")
    return Judgement(asked.name, "right", "right")


def _refuse(asked: Exercise, sentence: str) -> checks.WrongAnswer:
    """Return the error for a wrong answer; it says how to get the hint, and not yet the hint."""
    return checks.wrong_answer(asked.name, f'{sentence} For a hint: hint("{asked.number}")')


def require_attempt(value: Any) -> Any:
    """Return a value that a learner made. NotAttempted for ``...``, and for a list or pair with one in it."""
    parts = value if isinstance(value, list | tuple) else [value]
    if any(part is ... for part in parts):
        raise NotAttempted
    return value


def _watch(answer: Any, returned: list[Any]) -> Any:
    """Return a learner's function so that it raises `NotAttempted` where it returns ``...``.

    What it returned last is left in a list.
    """
    if not isinstance(answer, types.FunctionType):
        return answer

    @functools.wraps(answer)
    def call(*arguments: Any, **named: Any) -> Any:
        returned[:] = [require_attempt(answer(*arguments, **named))]
        return returned[0]

    return call


def expect(case: str, got: Any, wanted: Any, *, holds: bool | None = None) -> None:
    """Raise AssertionError, with both values, unless an answer returned what is right.

    Parameters
    ----------
    case
        The call, such as ``at_least('2.9', '2.10')``.
    got
        What it returned.
    wanted
        What is right.
    holds
        Whether ``got`` is accepted; by default if the two are equal.
    """
    accepted = is_same(got, wanted) if holds is None else holds
    expect_that(accepted, case, got, show(wanted))


def expect_that(holds: bool, case: str, got: Any, words: str) -> None:
    """Raise AssertionError unless an answer returned what is right, such as ``a module``.

    Parameters
    ----------
    holds
        Whether what it returned is accepted.
    case
        The call.
    got
        What it returned.
    words
        What is expected.
    """
    if not holds:
        raise AssertionError(f"{case} returned {show(got)}, expected {words}")


def is_same(got: Any, wanted: Any) -> bool:
    """Return whether two values are equal; values that cannot be compared are not."""
    try:
        return bool(got == wanted)
    except (TypeError, ValueError, RuntimeError):
        return False


def is_near(got: Any, wanted: float, *, relative: float = 1e-6, absolute: float = 1e-9) -> bool:
    """Return whether a number is near another one; what is no number is not."""
    try:
        return bool(abs(got - wanted) <= absolute + relative * abs(wanted))
    except (TypeError, ValueError, RuntimeError):
        return False


def show(value: Any) -> str:
    """Return a value in few words: an array as a list, a number of a framework as a plain one.

    Of a list the first twelve elements are shown.
    """
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "untyped_storage"):  # PyTorch's
        # one more than is shown in each dimension: as a list an array of millions would take gigabytes
        part = value[(slice(_SHORT.maxlist + 1),) * value.ndim] if value.ndim else value
        value = part.tolist()
    if isinstance(value, type | types.FunctionType):
        return value.__name__
    return _SHORT.repr(value)


def _describe_error(error: Exception, line: str, returned: list[Any]) -> str:
    """Return what is shown of an error: what it says, and in which line of the learner's it was raised.

    ``line`` is that line in words, empty where the check itself raised the error. Its kind is told as well, unless the
    check or another module of this library raised it, whose words are written for learners. Where the check could not
    use what the learner's function returned last, if anything (``returned``), that is shown.
    """
    from_check = isinstance(error, AssertionError) or type(error).__module__.startswith("metallab")
    is_own = from_check and not line
    # a check says what it has to in so many characters; of other errors the beginning is enough for a message
    said = textwrap.shorten(str(error), 900 if is_own else 200, placeholder=" ...")
    if not (is_own and said):
        said = f"{type(error).__name__}: {said}".removesuffix(": ")

    if line:
        return f"{said}\n{line}\nCall it in a cell of its own to see more."
    if returned and not from_check:
        return f"It returned {show(returned[0])}, which cannot be used: {said.rstrip('.')}."
    return f"{said.rstrip('.')}."


def _find_line(error: Exception, space: Mapping[str, Any], check_cell: str) -> str:
    """Return the line in words at which an error left the newest of the page's cells that it went through.

    That is the learner's own, also where it calls what an older cell defines. The result is empty where the error went
    through no cell but that of the check, and where an exercise's own function raised AssertionError, which says all by
    itself.

    Parameters
    ----------
    error
        What a check raised, with its traceback.
    space
        The page's globals, in which its cells run.
    check_cell
        The file name of the cell with the check, which is left out.
    """
    frames = [
        (frame.f_code.co_filename, number, frame.f_globals)
        for frame, number in walk_tb(error.__traceback__)
    ]
    passed = {name for name, _, own in frames if own is space and name != check_cell}
    # `linecache` has the cells in the order in which they were run
    cells = [name for name in linecache.cache if name in passed]
    last = str(frames[-1][2].get("__name__", ""))
    if not cells or (isinstance(error, AssertionError) and last.startswith(__package__)):
        return ""

    # the last frame of that cell is the one in which the error came closest to where it was raised
    number = [at for name, at, _ in frames if name == cells[-1]][-1]
    return f"Line {number} of your cell: {linecache.getline(cells[-1], number).strip()}"
