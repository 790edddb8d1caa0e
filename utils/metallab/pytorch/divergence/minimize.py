"""Make a wrong call smaller while a device computes it wrongly, and find what the fault needs."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from metallab.outcomes import Agreement
from metallab.pytorch.divergence.calls import Call
from metallab.pytorch.divergence.conditions import (
    Condition,
    HiddenRow,
    HoldsInteger,
    HoldsNaN,
    MinElements,
    MinSize,
    NoElements,
    NonzeroOffset,
    NotContiguous,
    NotFloat32,
    OnCPU,
    Setting,
    View,
)
from metallab.pytorch.divergence.layouts import DISTRIBUTIONS, Distribution, Layout
from metallab.pytorch.divergence.program import write_program

SEEDS = 3
"""A condition has to hold with the random numbers of so many seeds."""
LARGE = 16
"""The smallest size that counts as a condition."""
LARGE_INTEGER = 2**10
"""The smallest integer that does."""


def minimize(
    call: Call, device: torch.device, until: float = math.inf
) -> tuple[tuple[Condition, ...], str]:
    """Make a wrong call as simple as it can be while it stays wrong, and find what the fault needs.

    Parameters
    ----------
    call
        With a `Layout` in place of each tensor.
    device
        The one that computes it wrongly.
    until
        When to stop trying calls, in seconds of `time.monotonic`.

    Returns
    -------
    conditions : tuple of Condition
        What the fault needs: each was seen on both sides, wrong with it and right without it. Those that there was no
        time to see are missing.
    program : str
        At most 20 lines, of the simplest wrong call that there was time for; empty, as are the conditions, if random
        numbers do not show the fault, or time was over before they did.
    """
    # the call's own numbers are not in the program, which stays short: random ones have to show the fault
    oracle = _Oracle(device, until)
    wrong = _draw_random_numbers(call, oracle)
    if wrong is None:
        return (), ""

    # layouts and dtypes first, then the sizes, the largest first, since fewer elements are quicker to try
    wrong = _simplify(wrong, oracle)
    wrong = _flatten(wrong, oracle)
    # integers before sizes: with many integers in a row one sees from which value on it is wrong; with two left that
    # depends on which two
    for index, layout in enumerate(wrong.tensors):
        # 0 stands for a tensor of other numbers, too, and below 1 nothing is tried
        if layout.integers[1] > 1:
            wrong = _bound_integers(wrong, index, _smallest_largest(wrong, index, oracle))
    for size in _list_sizes(wrong, at_least=2):
        wrong = _resize(wrong, size, _smallest_wrong(wrong, size, oracle))
    return _find_conditions(wrong, oracle), write_program(wrong, str(device))


@dataclass(frozen=True)
class _Oracle:
    """Tells whether a device computes a call wrongly, until a time of `time.monotonic`."""

    device: torch.device
    until: float

    def outcome(self, call: Call, seed: int = 0) -> Agreement:
        """Run a call's program: ``differs``, ``agrees``, or ``refused`` if it does not run or time is over.

        It is run on the CPU first. A call that differs from float64 there as well, because it rounds more than the
        program allows, says nothing about the device, and is refused.
        """
        if time.monotonic() >= self.until:
            return "refused"

        on_cpu = _run_program(call, "cpu", seed)
        if on_cpu != "agrees":
            return "refused"
        return _run_program(call, str(self.device), seed)

    def is_wrong(self, call: Call) -> bool:
        """Return True if the device computes a call wrongly with the first seed."""
        return self.outcome(call) == "differs"

    def separates(self, wrong: Call, right: Call) -> bool:
        """Return True if one is wrong and the other right, with all seeds."""
        return all(
            self.outcome(wrong, seed) == "differs" and self.outcome(right, seed) == "agrees"
            for seed in range(SEEDS)
        )


def _run_program(call: Call, device: str, seed: int) -> Agreement:
    """Run a call's program: ``differs`` if its assertion fails, ``refused`` if it raises anything else.

    That is the case for sizes that do not fit together, or an argument that has no source text.
    """
    # the program sets the seed, which is the caller's random state as well
    with torch.random.fork_rng(devices=[]):
        try:
            exec(write_program(call, device, seed), {})
        except AssertionError:
            return "differs"
        except Exception:  # noqa: BLE001 - whatever PyTorch raises
            return "refused"
    return "agrees"


# ---- smaller calls ---------------------------------------------------------------------------------------------------


def _draw_random_numbers(call: Call, oracle: _Oracle) -> Call | None:
    """Return the call with numbers that show the fault; None if none does, or time is over.

    They are from a distribution, first without what the arguments hold, such as NaN or large integers.
    """
    plain = call.replace(Layout, lambda layout: layout.plain)
    calls = [plain] if plain == call else [plain, call]
    candidates = (_distribute(each, name) for each in calls for name in DISTRIBUTIONS)
    return next(filter(oracle.is_wrong, candidates), None)


def _distribute(call: Call, distribution: Distribution) -> Call:
    """Return the call with numbers from a distribution."""
    return call.replace(
        Layout, lambda layout: dataclasses.replace(layout, distribution=distribution)
    )


def _simplify(wrong: Call, oracle: _Oracle) -> Call:
    """Leave out one property after the other, as long as the call stays wrong: what is left may be what it needs."""
    while True:
        simpler = [*_with_short_lists(wrong), *(other for _, other in _without_conditions(wrong))]
        still_wrong = next(filter(oracle.is_wrong, simpler), None)
        if still_wrong is None:
            return wrong
        wrong = still_wrong


def _flatten(wrong: Call, oracle: _Oracle) -> Call:
    """Return an elementwise call with vectors, if it is wrong with vectors, rows and columns alike.

    Then only the number of elements can matter. A call whose tensors have several shapes, or lie in other ways, is
    returned as it is.
    """
    shape = wrong.tensors[0].shape
    is_elementwise = all(layout.shape == shape and layout.is_contiguous for layout in wrong.tensors)
    if not is_elementwise or len(shape) < 2:
        return wrong

    shapes = _vector_row_column(wrong, math.prod(shape))
    return shapes[0] if all(map(oracle.is_wrong, shapes)) else wrong


def _smallest_wrong(wrong: Call, size: int, oracle: _Oracle) -> int:
    """Return the smallest number, by bisection, that in place of ``size`` leaves the call wrong."""
    return _bisect(size, lambda number: oracle.is_wrong(_resize(wrong, size, number)))


def _smallest_largest(wrong: Call, index: int, oracle: _Oracle) -> int:
    """Return the smallest number, by bisection, that as the largest integer of an argument leaves the call wrong."""
    largest = wrong.tensors[index].integers[1]
    return _bisect(largest, lambda number: oracle.is_wrong(_bound_integers(wrong, index, number)))


def _bisect(largest: int, is_wrong: Callable[[int], bool]) -> int:
    """Return the smallest number from 1 up to ``largest``, which is wrong, that is wrong.

    It is found as if each larger one were wrong and each smaller one right. After time is over no call counts as wrong,
    so the smallest that was seen is returned.
    """
    right, smallest = 0, largest
    while smallest - right > 1:
        # 1 is tried first, since most sizes do not matter
        is_first = right == 0 and smallest == largest
        middle = 1 if is_first else (right + smallest) // 2
        if is_wrong(middle):
            smallest = middle
        else:
            right = middle
    return smallest


def _with_short_lists(call: Call) -> Iterator[Call]:
    """Yield calls with one tensor in place of each list."""
    lists = [value for value in call.arguments.values() if isinstance(value, list | tuple)]
    longest = max(map(len, lists), default=0)

    for number in range(longest):
        args = tuple(_shorten(value, number) for value in call.args)
        kwargs = {name: _shorten(value, number) for name, value in call.kwargs.items()}
        shorter = Call(call.operator, args, kwargs)
        # lists may be of different lengths, so one may have nothing left, or no list was of tensors
        if 0 < len(shorter.tensors) < len(call.tensors):
            yield shorter


def _shorten(value: Any, number: int) -> Any:
    """Return a list of tensors with one of them, and any other argument as it is."""
    is_list = isinstance(value, list | tuple) and len(value) > 1 and isinstance(value[0], Layout)
    return list(value[number : number + 1]) if is_list else value


# ---- conditions ------------------------------------------------------------------------------------------------------


def _find_conditions(wrong: Call, oracle: _Oracle) -> tuple[Condition, ...]:
    """Return what the fault of a call needs, as seen on both sides."""
    conditions = [
        condition
        for condition, other in _without_conditions(wrong)
        if oracle.separates(wrong, other)
    ]
    for condition, pairs in _limits(wrong):
        if all(oracle.separates(reaching, below) for reaching, below in pairs):
            conditions.append(condition)
    return tuple(conditions)


def _without_conditions(call: Call) -> Iterator[tuple[Condition, Call]]:
    """Yield simpler calls, each with the condition that it lacks: if it is right, the fault may need that condition.

    A property that the call does not have yields nothing.
    """
    in_float32 = call.replace(Layout, _in_float32)
    if in_float32 != call:
        yield NotFloat32(), in_float32

    with_elements = call.replace(Layout, _with_elements)
    if with_elements != call:
        yield NoElements(), with_elements

    for name, value, default in _list_settings(call):
        yield Setting(name, value), _set(call, name, default)

    for index, (name, layout) in enumerate(call.named_tensors):
        for condition, simpler in _simpler_layouts(name, layout):
            if simpler != layout:
                yield condition, _replace_layout(call, index, simpler)


def _simpler_layouts(name: str, layout: Layout) -> Iterator[tuple[Condition, Layout]]:
    """Yield simpler layouts of an argument, which may be the same, each with the condition that it lacks."""
    order = tuple(range(len(layout.shape)))
    yield NotContiguous(name, View.EXPANDED), dataclasses.replace(layout, expanded=())
    yield NotContiguous(name, View.GAPS), dataclasses.replace(layout, has_gaps=False)
    yield NotContiguous(name, View.PERMUTED), dataclasses.replace(layout, order=order)

    # an odd offset is made even, not 0, which tells whether an even one is enough for the fault
    is_odd = layout.offset % 2 == 1
    offset = 2 if is_odd else 0
    yield NonzeroOffset(name, is_odd), dataclasses.replace(layout, offset=offset)

    yield OnCPU(name), dataclasses.replace(layout, is_on_cpu=False)
    yield HoldsNaN(name, layout.is_unwritten), dataclasses.replace(layout, has_nan=False)
    yield HiddenRow(name), dataclasses.replace(layout, has_hidden_row=False)


def _list_settings(call: Call) -> list[tuple[str, Any, Any]]:
    """Return the name, the value and the default of each setting that has another value.

    One whose default is None is left out: that means something else than a value, and need not be taken in its place.
    """
    given = call.arguments
    settings = []
    for argument in call.operator._schema.arguments:
        value, default = given.get(argument.name), argument.default_value
        has_default = argument.name in given and default is not None
        if has_default and isinstance(value, bool | int | float | str) and value != default:
            settings.append((argument.name, value, default))
    return settings


def _set(call: Call, name: str, value: Any) -> Call:
    """Return the call with another value of a setting."""
    names = [argument.name for argument in call.operator._schema.arguments]
    place = names.index(name)
    if place >= len(call.args):
        return Call(call.operator, call.args, call.kwargs | {name: value})
    args = (*call.args[:place], value, *call.args[place + 1 :])
    return Call(call.operator, args, call.kwargs)


def _bound_integers(call: Call, index: int, largest: int) -> Call:
    """Return the call with another largest integer in one tensor, and no smallest one above it."""
    layout = call.tensors[index]
    bounded = dataclasses.replace(layout, integers=(min(layout.integers[0], largest), largest))
    return _replace_layout(call, index, bounded)


def _limits(call: Call) -> Iterator[tuple[Condition, list[tuple[Call, Call]]]]:
    """Yield sizes that may be conditions, with pairs of calls: one reaches the size, the other is one below it.

    If all tensors are vectors of one size, it is the number of elements that may matter: a vector, a row and a column
    of so many are tried. Else it is the size of a dimension, tried in the call as it is. The largest integer of an
    argument comes first.
    """
    for index, (name, layout) in enumerate(call.named_tensors):
        largest = layout.integers[1]
        if largest >= LARGE_INTEGER:
            below = _bound_integers(call, index, largest - 1)
            yield HoldsInteger(name, largest), [(call, below)]

    sizes = _list_sizes(call, at_least=LARGE)
    if sizes and {layout.shape for layout in call.tensors} == {(sizes[0],)}:
        count = sizes[0]
        reaching = _vector_row_column(call, count)
        fewer = _vector_row_column(call, count - 1)
        yield MinElements(count), list(zip(reaching, fewer, strict=True))
        return

    for size in sizes:
        # named after the first argument that has it
        named = call.named_tensors
        name, shape = next((name, each.shape) for name, each in named if size in each.shape)
        dimensions = tuple(d for d, n in enumerate(shape) if n == size)
        yield MinSize(name, dimensions, size), [(call, _resize(call, size, size - 1))]


# ---- calls with other layouts ----------------------------------------------------------------------------------------


def _list_sizes(call: Call, at_least: int) -> list[int]:
    """Return the sizes of all dimensions, each once, the largest first."""
    sizes = {size for layout in call.tensors for size in layout.shape if size >= at_least}
    return sorted(sizes, reverse=True)


def _vector_row_column(call: Call, count: int) -> list[Call]:
    """Return the call with contiguous tensors of so many elements, as a vector, a row and a column."""
    return [_reshape(call, shape) for shape in ((count,), (1, count), (count, 1))]


def _reshape(call: Call, shape: tuple[int, ...]) -> Call:
    order = tuple(range(len(shape)))
    return call.replace(
        Layout, lambda layout: dataclasses.replace(layout, shape=shape, order=order)
    )


def _resize(call: Call, old: int, new: int) -> Call:
    """Return the call with another size in place of one, wherever that is."""

    def resize(layout: Layout) -> Layout:
        shape = tuple(new if size == old else size for size in layout.shape)
        return dataclasses.replace(layout, shape=shape)

    return call.replace(Layout, resize)


def _replace_layout(call: Call, index: int, replacement: Layout) -> Call:
    """Return the call with another layout of one tensor."""
    count = itertools.count()
    return call.replace(Layout, lambda layout: replacement if next(count) == index else layout)


def _in_float32(layout: Layout) -> Layout:
    is_half = layout.dtype in (torch.float16, torch.bfloat16)
    return dataclasses.replace(layout, dtype=torch.float32) if is_half else layout


def _with_elements(layout: Layout) -> Layout:
    return dataclasses.replace(layout, shape=tuple(size or 1 for size in layout.shape))
