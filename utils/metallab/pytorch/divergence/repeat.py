"""Make calls again that were right once, with other numbers: faults may come and go."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab.device import PyTorchDevice
from metallab.pytorch.divergence.calls import Call, is_floating
from metallab.pytorch.divergence.compare import (
    Reference,
    compare,
    compare_dropout,
    compute_reference,
    results,
)
from metallab.pytorch.divergence.differences import Difference
from metallab.pytorch.divergence.draws import compare_draw
from metallab.pytorch.divergence.report import Direction
from metallab.pytorch.divergence.runs import RunMode

BURST = 10
"""Calls that are made one after the other before anything waits for them."""
FACTORS = (1.0, 0.75, 0.875, 0.625)
"""Floating arguments are multiplied with these in turn: what is sorted, positive or a probability stays so."""
MOST_BYTES = 2**26
"""Of the arguments and results of a call that is made again; more take too long."""
MOST_BYTES_IN_ROW = 2**24
"""Of those of a call whose copies are placed before the first of a burst is made."""
MOST_KEPT_BYTES = 2**28
"""Of the arguments of all these calls."""


@dataclass(frozen=True)
class Sample:
    """A call that was right, to be made again."""

    frame: Call
    """The call without its numbers: each tensor is an empty one, which tells the device and the dtype it had."""
    before: Call
    """The call with the numbers that it was given, on the CPU."""
    module: str
    direction: Direction
    mode: RunMode
    is_random: bool
    num_bytes: int
    """Of its arguments and results."""


@dataclass(frozen=True)
class Repetition:
    """What came of making calls again."""

    kinds: int = 0
    """Of calls that were made again."""
    calls: int = 0
    """How many were made and compared."""
    sample: Sample | None = None
    """The first that was wrong."""
    difference: Difference | None = None
    """How."""
    wrong: int = 0
    """How many calls of it were wrong."""
    right: int = 0
    """How many were right."""


def make_sample(call: Call, before: Call, result: Any, **where: Any) -> Sample | None:
    """Return a call to be made again; None if it is large, or its tensors have no plain memory.

    To be made again it needs its numbers, and where they were: which tensors lay on the device and which on the CPU,
    where an index may stay. The numbers are kept on the CPU (``before``), and the places in a copy of the call whose
    tensors are empty (``frame``, made by `Tensor.new_empty`, which keeps device and dtype). So the samples of a large
    model take no memory of the GPU, which the model may need.

    Parameters
    ----------
    call, before
        The call on the device, after it was made, and on the CPU with what it was given.
    result
        What it returned.
    where
        The fields of `Sample` that say where it was called, and whether it draws random numbers: module, direction,
        mode, is_random.
    """
    tensors = [*before.tensors, *(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))]
    if any(tensor.layout != torch.strided or tensor.is_nested for tensor in tensors):
        return None
    num_bytes = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    if num_bytes > MOST_BYTES:
        return None

    frame = call.replace(Tensor, lambda tensor: tensor.new_empty(0))
    return Sample(frame, before, num_bytes=num_bytes, **where)


def repeat_calls(
    samples: Iterable[Sample],
    on: PyTorchDevice,
    rounds: int,
    until: float,
    show_progress: Callable[[int], object],
) -> Repetition:
    """Make calls again in bursts, the small ones first, until one is wrong.

    Parameters
    ----------
    samples
        The calls.
    on
        The device.
    rounds
        How many bursts of each call there are, each with other numbers.
    until
        When to stop, by `time.monotonic`.
    show_progress
        Is called with the number of calls, after each burst.

    Returns
    -------
    Repetition
        How many calls were made, and the first that was wrong, with how many of its burst were wrong and right.
    """
    in_order = sorted(samples, key=lambda sample: sample.num_bytes)
    repeated: set[int] = set()  # places in this order
    calls = 0
    # a burst of each call, before any has its second one
    for number, (place, sample) in itertools.product(range(rounds), enumerate(in_order)):
        if time.monotonic() >= until:
            break

        factor = FACTORS[number % len(FACTORS)]
        differences = _compare_burst(sample, on, factor)
        calls += len(differences)
        show_progress(calls)
        if differences:
            repeated.add(place)
        wrong = [difference for difference in differences if difference is not None]
        if wrong:
            right = len(differences) - len(wrong)
            if factor == 1:  # with these numbers it was right when it was compared first
                right += 1
            return Repetition(len(repeated), calls, sample, wrong[0], len(wrong), right)
    return Repetition(len(repeated), calls)


def _compare_burst(sample: Sample, on: PyTorchDevice, factor: float) -> list[Difference | None]:
    """Return how each call of a burst differs; nothing if it cannot be made or compared with these numbers.

    A burst is one call several times in a row, without waiting in between (`_make_burst`), since some faults come up
    only then.
    """
    values = sample.before.copy_to_cpu(lambda storage: _scale(storage, factor))
    try:
        # pairs: a call with arguments of its own, and its result
        made = _make_burst(values, sample, on)
    except RuntimeError:  # no memory, or numbers that the operator refuses
        return []
    if sample.is_random:
        return [
            compare_dropout(values, returned) or compare_draw(values, returned)
            for _, returned in made
        ]

    first_results, first_after = _bring_to_cpu(*made[0])
    reference = compute_reference(values, first_results)
    if not isinstance(reference, Reference):
        return []

    differences = [compare(reference, first_after, first_results).difference]
    first = [*first_results, *first_after.tensors]
    for placed, returned in made[1:]:
        again, after = _bring_to_cpu(placed, returned)
        # what equals a right one is right, which takes less time than to compare it with float64
        if differences[0] is None and _is_equal(first, [*again, *after.tensors]):
            differences.append(None)
        else:
            differences.append(compare(reference, after, again).difference)
    return differences


def _bring_to_cpu(placed: Call, returned: Any) -> tuple[list[Tensor], Call]:
    """Return the results of a call, and its arguments afterwards."""
    return results(returned), placed.copy_to_cpu()


def _make_burst(values: Call, sample: Sample, on: PyTorchDevice) -> list[tuple[Call, Any]]:
    """Make a call several times in a row, and return each with its result.

    Each has arguments of its own, because operators may write to them without saying so, as batch normalization does to
    its statistics. They are placed before the first call, unless they are large.
    """

    def call(placed: Call) -> tuple[Call, Any]:
        return placed, placed.operator(*placed.args, **placed.kwargs)

    if sample.num_bytes > MOST_BYTES_IN_ROW:
        made = [call(values.place_like(sample.frame)) for _ in range(BURST)]
    else:
        made = list(map(call, [values.place_like(sample.frame) for _ in range(BURST)]))
    on.synchronize()
    return made


def _scale(storage: Tensor, factor: float) -> Tensor:
    return storage * factor if is_floating(storage) and factor != 1 else storage


def _is_equal(first: list[Tensor], again: list[Tensor]) -> bool:
    """Return True if tensors have the same values, and no NaN."""
    if len(first) != len(again):
        return False
    pairs = zip(first, again, strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
