"""Look at results of timed calls, so that a call which computed nothing is no fast one.

PyTorch returns silently from a GPU job that macOS aborts: the call is short, and its result is what lay in that memory
before. If the first and the last result of a comparison are right, nothing else would show it.

Source: https://github.com/pytorch/pytorch/pull/193571.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from metallab import wording
from metallab.verdicts import (
    FEWEST_PAIRS,
    ParityCheck,
    Reason,
    Withheld,
    difference_of,
)

INSPECTION = 0.03
"""Share of a comparison's time that may be spent on results between the first and the last, beyond one look."""

SAMPLED = 2**16
"""Values of an array that are compared in a look beyond the first one, about; of a smaller array all."""

KEPT_BYTES = 2**28
"""Bytes of results that are held at a time for a look, or for a row of calls, at most."""


class Inspections:
    """Compares results of timed calls with the baseline's first one, in rounds drawn at random.

    One of the first rounds is inspected in any case, by the parity check of each variant. Then as many are as
    `INSPECTION` of the time permits, at distances that vary at random around an even one, so that no abort can hide in
    a cycle.

    A parity check may take many times as long as the call, and would leave time for no second look. So a later result
    is first compared with the variant's own first one, which was found right: value by value, on the device, at
    `SAMPLED` places spread evenly over each array. Only where they differ is the parity check asked, and then it alone
    decides: a function that rounds in another order each time is none that was aborted.

    Parameters
    ----------
    baseline
        Its name.
    judges
        The parity check of each variant that is looked at.
    first_results
        What each variant, and the baseline, returned at first: found right, except for the baseline's, which is the
        reference.
    certain
        The first look is at one of so many rounds, from the first one on.
    clock
        Returns nanoseconds.
    rng
        Draws the rounds.
    """

    def __init__(
        self,
        baseline: str,
        judges: Mapping[str, ParityCheck],
        first_results: Mapping[str, Any],
        certain: int,
        clock: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self.baseline, self.judges = baseline, judges
        self.clock, self.rng = clock, rng
        self.reference = copy_result(first_results[baseline]) if judges else None
        """The baseline's first result, which later calls cannot change."""
        self.right_values = _right_values(first_results) if judges else {}
        """Some values of each variant's first result, where they can be compared on its device."""
        self.refused: dict[str, Withheld] = {}
        self.differed_in: dict[str, int] = {}
        """The round in which each of these was found."""

        self.round = 0
        """The number of the round that is taken now, counted from 1."""
        self.certain_round = rng.randint(1, min(FEWEST_PAIRS, certain))
        self.is_due = False
        self.next_time = 0.0
        """The seconds after which another round is inspected."""
        self.seconds_of_round = 0.0
        """Spent on looking in the round that is taken now."""
        self.seconds_beyond = 0.0
        """Spent on looking in all rounds but the certain one."""
        self.began = clock()

    def begin_round(self) -> None:
        """Decide whether the round that begins is inspected."""
        self.round += 1
        self.seconds_of_round = 0.0

        passed = self._seconds_passed()
        has_time = self.seconds_beyond <= INSPECTION * passed
        is_later = self.round > self.certain_round and passed >= self.next_time and has_time
        self.is_due = bool(self.judges) and (self.round == self.certain_round or is_later)

    def prepare(self, overwrite_freed: Callable[[], None]) -> None:
        """Make sure that the result of the call to be inspected is its own, and not left over in its memory."""
        with self._count_time():
            overwrite_freed()

    def compare(self, variant: str, result: Any) -> None:
        """Compare what the last timed call of a variant returned, before another call can write over it."""
        with self._count_time():
            is_right = variant in self.right_values and _has_values(
                result, self.right_values[variant]
            )

        if not is_right:
            with self._count_time():
                self._judge(variant, result)
        elif self.round == self.certain_round:
            self._judge(variant, result)  # all values; not counted, since no later round does it

    def end_round(self) -> None:
        """Draw when to look again."""
        if not self.is_due:
            return

        if self.round != self.certain_round:
            self.seconds_beyond += self.seconds_of_round
        distance = self.seconds_of_round / INSPECTION * self.rng.uniform(0.5, 1.5)
        self.next_time = self._seconds_passed() + distance

    def _seconds_passed(self) -> float:
        return (self.clock() - self.began) / 1e9

    @contextlib.contextmanager
    def _count_time(self) -> Iterator[None]:
        """Add the time of what is done inside to that of the round."""
        start = self.clock()
        yield
        self.seconds_of_round += (self.clock() - start) / 1e9

    def _judge(self, variant: str, result: Any) -> None:
        """Ask the variant's parity check, or, of the baseline's result, that of each variant."""
        judged = self.judges if variant == self.baseline else [variant]
        for key in judged:
            if key not in self.judges or key in self.refused:
                continue
            if difference := difference_of(self.judges[key], self.reference, result):
                whose = f"'{variant}' itself" if variant == self.baseline else "it"
                detail = wording.differs_in_a_round(whose, self.round, difference)
                self.refused[key] = Withheld(Reason.OUTPUTS_DIFFER, detail)
                self.differed_in[key] = self.round


# ---- values that are quickly compared ----------------------------------------------------------------------------


def _right_values(first_results: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return some values of each result that has them (`_values_of`), and no NaN among them.

    What is compiled or loaded for a comparison is so before the first round.
    """
    found = {}
    for variant, result in first_results.items():
        with contextlib.suppress(Exception):  # a result of any type: the parity check knows it
            values = _values_of(result)
            if _has_values(result, values):
                found[variant] = values
    return found


def _has_values(result: Any, known: list[Any]) -> bool:
    """Return whether a result has these values, at the places where they were taken."""
    try:
        return _are_equal(known, _values_of(result))
    except Exception:  # noqa: BLE001 - another type than at first: the parity check knows it
        return False


def _values_of(result: Any) -> list[Any]:
    """Return each part that is a number or a text, and of each array its shape and evenly spaced values, copied.

    An exception of any type is raised for anything else.
    """
    return [_values_of_part(part) for part in leaves(result)]


def _values_of_part(part: Any) -> Any:
    if part is None or isinstance(part, int | float | complex | str):
        return part

    if hasattr(part, "detach"):
        part = part.detach()
    array = part if hasattr(part, "reshape") else np.asarray(part)
    if array.dtype == object:
        raise TypeError(f"{type(part).__name__} is no array of numbers")
    values = array.reshape(-1)
    if len(values) >= 2 * SAMPLED:
        values = values[:: len(values) // SAMPLED]
    shape = tuple(array.shape)
    return shape, values.clone() if hasattr(values, "clone") else copy.copy(values)


def _are_equal(known: list[Any], values: list[Any]) -> bool:
    return len(known) == len(values) and all(map(_is_equal, known, values))


def _is_equal(known: Any, value: Any) -> bool:
    """Compare numbers, or the shapes and values of arrays of any framework."""
    if not isinstance(known, tuple):
        return type(known) is type(value) and known == value
    if not isinstance(value, tuple):
        return False

    (known_shape, known_values), (shape, values) = known, value
    if known_shape != shape or known_values.dtype != values.dtype:
        return False
    return bool((known_values == values).all())


# ---- results of any framework ------------------------------------------------------------------------------------


def leaves(result: Any) -> Iterator[Any]:
    """Yield the parts of a nested result."""
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from leaves(item)
    else:
        yield result


def copy_result(result: Any) -> Any:
    """Return a copy that later calls cannot change, or the result if it cannot be copied."""
    try:
        tensors = [
            leaf for leaf in leaves(result) if hasattr(leaf, "detach") and hasattr(leaf, "clone")
        ]
        # tensors with a gradient cannot be copied deeply
        return copy.deepcopy(result, {id(tensor): tensor.detach().clone() for tensor in tensors})
    except Exception:  # noqa: BLE001 - a result of any type
        return result


def memory_of(result: Any) -> list[int]:
    """Return the bytes of each piece of memory that a result lies in, of a view those of the whole.

    What has no memory of its own, such as a number, is left out, and so are sparse tensors.
    """
    sizes: dict[Any, int] = {}
    for leaf in leaves(result):
        with contextlib.suppress(Exception):  # an array of any framework, which may refuse to tell
            if hasattr(leaf, "untyped_storage"):
                storage = leaf.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            elif hasattr(leaf, "nbytes"):
                sizes[id(leaf)] = int(leaf.nbytes)
    return [size for size in sizes.values() if size > 0]
