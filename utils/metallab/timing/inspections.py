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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from metallab import simulation, units, wording
from metallab.timing.outputs import ParityCheck, difference_of
from metallab.timing.verdicts import FEWEST_PAIRS, Reason, Withheld

INSPECTION = 0.03
"""Share of a comparison's time that may be spent on results between the first and the last, beyond one look."""

SAMPLED = 2**16
"""Values of an array that are compared in a look beyond the first one, about; of a smaller array all."""

NEAR = 0.01
"""How far a result that the parity check accepted may be from the variant's first one, as a share of the mean size of
its values, to become a measure for later ones. Sums that are added in another order each time differ by far less, and
random numbers, or what lay in the memory, by more."""

AS_NEAR = 4
"""A later result is taken for a right one if no value is so many times as far away as in those that were accepted: the
largest of a few differences varies itself."""

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

    Of such a function every result differs. So where the parity check accepts one that is near the first (`NEAR`), its
    distance is remembered, and results that are about as near (`AS_NEAR`) need no parity check any more. There remain
    functions whose results are far apart each time, such as random numbers. Theirs are judged by the parity check
    alone, as often as `INSPECTION` permits: if it is slow, that is once, and an abort after it that has ended before
    the last call is not seen.

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
        The first look is at one of so many rounds, from the first one on, and of `FEWEST_PAIRS` if it is more: so it
        comes before a short comparison ends.
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
        """Of each variant whose results can be compared on its device: what is known of right ones."""
        self.refused: dict[str, Withheld] = {}
        self.differed_in: dict[str, int] = {}
        """The round in which each of these was found."""

        self.round = 0
        """The number of the round that is taken now, counted from 1."""
        self.certain_round = rng.randint(1, min(FEWEST_PAIRS, certain))
        self.is_due = False
        """Whether this round is inspected."""
        self.next_round = 0.0
        """The round from which on another one is inspected."""
        self.usual_seconds = 0.0
        """What a round took on average, up to the last one that was inspected, without looking."""
        self.seconds_of_look = 0.0
        """What the next look at the results of a round will take, by this one: a parity check counts only if the
        next look will need it again, and not if it has taught what right results are like."""
        self.seconds_looking = 0.0
        """Spent on looking in all rounds."""
        self.seconds_of_certain_look = 0.0
        """Spent on looking in the certain round, which no limit of time keeps from being inspected."""
        self.began = clock()

    def begin_round(self) -> None:
        """Decide whether the round that begins is inspected."""
        if self.round == 0:
            self.began = self.clock()
        self.round += 1
        self.seconds_of_look = 0.0

        # rounds are counted, and not seconds: those of aborted calls take next to none
        seconds_beyond = self.seconds_looking - self.seconds_of_certain_look
        has_time = seconds_beyond <= INSPECTION * self.usual_seconds * self.round
        is_later = self.round > self.certain_round and self.round >= self.next_round and has_time
        self.is_due = bool(self.judges) and (self.round == self.certain_round or is_later)

    def prepare(self, overwrite_freed: Callable[[], None]) -> None:
        """Make sure that the result of the call to be inspected is its own, and not left over in its memory."""
        start = self.clock()
        overwrite_freed()
        seconds = self._seconds_since(start)
        self.seconds_looking += seconds
        self.seconds_of_look += seconds

    def compare(self, variant: str, result: Any) -> None:
        """Compare what the last timed call of a variant returned, before another call can write over it."""
        start = self.clock()
        known = self.right_values.get(variant)
        values = _values_or_none(result) if known is not None else None
        is_known = known is not None and known.includes(values)
        quick_seconds = self._seconds_since(start)

        if not is_known or self.round == self.certain_round:
            is_accepted = self._judge(variant, result)
            if not is_known and is_accepted and known is not None:
                is_known = known.learn(values)

        seconds = self._seconds_since(start)
        self.seconds_looking += seconds
        self.seconds_of_look += quick_seconds if is_known else seconds

    def end_round(self) -> None:
        """Draw when to look again."""
        if not self.is_due:
            return

        if self.round == self.certain_round:
            self.seconds_of_certain_look = self.seconds_looking
        seconds = self._seconds_since(self.began) - self.seconds_looking
        self.usual_seconds = max(seconds / self.round, 1e-9)
        distance = self.seconds_of_look / INSPECTION / self.usual_seconds
        self.next_round = self.round + distance * self.rng.uniform(0.5, 1.5)

    def _seconds_since(self, start: int) -> float:
        return (self.clock() - start) / 1e9

    def _judge(self, variant: str, result: Any) -> bool:
        """Ask the variant's parity check, or, of the baseline's result, that of each variant.

        Return whether one was asked and all that were accept the result.
        """
        judged = self.judges if variant == self.baseline else [variant]
        asked = [key for key in judged if key in self.judges and key not in self.refused]
        for key in asked:
            difference = difference_of(self.judges[key], self.reference, result)
            if difference is not None:
                whose = f"'{variant}' itself" if variant == self.baseline else "it"
                detail = wording.describe_difference(whose, self.round, difference)
                self.refused[key] = Withheld(Reason.OUTPUTS_DIFFER, detail)
                self.differed_in[key] = self.round
        return bool(asked) and not any(key in self.refused for key in asked)


# ---- values that are quickly compared ----------------------------------------------------------------------------


class _SomeOfArray(NamedTuple):
    """What is kept of an array, to know an equal one by."""

    shape: tuple[int, ...]
    """Of the whole array."""
    values: Any
    """Evenly spaced ones, flat: an array of the same framework."""


@dataclass
class _RightValues:
    """Some values of a variant's first result, and how far those of other right results are from them.

    Values are a list with one entry for each part of a result, as `_values_of` gives them.
    """

    first: list[Any]
    distances: list[float] = field(init=False)
    """Of each part of the result: how far a value may be from the first one's."""

    def __post_init__(self) -> None:
        self.distances = [0.0] * len(self.first)

    def includes(self, values: list[Any] | None) -> bool:
        """Return whether values of a result are these, or as near as those that were accepted."""
        if values is None or len(values) != len(self.first):
            return False
        try:
            return all(map(_is_like, self.first, values, self.distances))
        except Exception:  # noqa: BLE001 - another type than at first: the parity check knows it
            return False

    def learn(self, values: list[Any] | None) -> bool:
        """Take values that the parity check accepted as a measure for later ones.

        Return whether they serve as one: they are near the first ones, and like ones are known from now on.
        """
        if values is None or len(values) != len(self.first):
            return False
        try:
            distances = [_distance(*parts) for parts in zip(self.first, values, strict=True)]
        except Exception:  # noqa: BLE001 - another type than at first
            return False

        known_distances = [distance for distance in distances if distance is not None]
        if len(known_distances) < len(distances):
            return False
        self.distances = [
            max(before, AS_NEAR * distance)
            for before, distance in zip(self.distances, known_distances, strict=True)
        ]
        # compared at a distance here for the first time: what a device compiles for it does not slow a later look
        return self.includes(values)


def _right_values(first_results: Mapping[str, Any]) -> dict[str, _RightValues]:
    """Return some values of each result that has them (`_values_of`), and no NaN among them.

    Each is compared with itself, which leaves those with NaN out. What a device compiles or loads for a comparison is
    there before the first round.
    """
    found = {}
    for variant, result in first_results.items():
        with contextlib.suppress(Exception):  # a result of any type: the parity check knows it
            known = _RightValues(_values_of(result))
            if known.includes(_values_of(result)):
                found[variant] = known
    return found


def _values_or_none(result: Any) -> list[Any] | None:
    """Return some values of a result, or None if it has another type than can be compared quickly."""
    try:
        return _values_of(result)
    except Exception:  # noqa: BLE001 - a result of any type: the parity check knows it
        return None


def _values_of(result: Any) -> list[Any]:
    """Return each part that is a whole number or a text, and of others shape and evenly spaced values, copied.

    An exception of any type is raised for anything else.
    """
    return [_values_of_part(part) for part in leaves(result)]


def _values_of_part(part: Any) -> Any:
    if part is None or isinstance(part, int | str):
        return part

    if hasattr(part, "detach"):
        part = part.detach()
    array = part if hasattr(part, "reshape") else np.asarray(part)
    if array.dtype == object:
        raise TypeError(f"{type(part).__name__} is no array of numbers")
    values = array.reshape(-1)
    if len(values) >= 2 * SAMPLED:
        values = values[:: len(values) // SAMPLED]
    own_values = values.clone() if hasattr(values, "clone") else copy.copy(values)
    return _SomeOfArray(tuple(array.shape), own_values)


def _is_like(known: Any, value: Any, distance: float) -> bool:
    """Return whether a part of a result, as `_values_of_part` gives it, is the known one, or an array near to it.

    Texts and whole numbers have to be equal; floating arrays, of any framework, may be a distance apart. False may be
    wrong, as of an infinity beside a small difference, and only costs a parity check. Arrays with NaN are never known.
    """
    if not isinstance(known, _SomeOfArray):
        return type(known) is type(value) and known == value
    if not _has_same_form(known, value):
        return False

    known_values, values = known.values, value.values
    if bool((known_values == values).all()):
        return True
    if distance == 0:
        return False
    with np.errstate(all="ignore"):
        return bool((abs(values - known_values) <= distance).all())


def _has_same_form(known: _SomeOfArray, value: Any) -> bool:
    """Return whether a value is that of an array, too, of the same shape and dtype."""
    if not isinstance(value, _SomeOfArray):
        return False
    return known.shape == value.shape and known.values.dtype == value.values.dtype


def _distance(known: Any, value: Any) -> float | None:
    """Return the largest difference of two arrays of floating numbers; None if they are not near (`NEAR`)."""
    if not isinstance(known, _SomeOfArray):
        return 0.0 if _is_like(known, value, 0.0) else None
    if not _has_same_form(known, value):
        return None

    known_values, values = known.values, value.values
    if bool((known_values == values).all()):
        return 0.0
    if not units.dtype_name(values.dtype).startswith(("float", "bfloat", "complex")):
        return None  # of whole numbers without sign a difference is none

    with np.errstate(all="ignore"):
        largest = float(abs(values - known_values).max())
        mean_size = float(abs(known_values).mean())
    return largest if largest <= NEAR * mean_size < float("inf") else None


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


def is_on_simulated_gpu(result: Any) -> bool:
    """Return whether a part of a result is a tensor on the simulated GPU."""
    if not simulation.running():
        return False
    devices = (getattr(leaf, "device", None) for leaf in leaves(result))
    return any(getattr(device, "type", None) == "mps" for device in devices)


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
