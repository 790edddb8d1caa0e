"""What can be told of random numbers that two devices do not share: their range, and what has probability 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from metallab.pytorch.divergence.calls import Call, is_floating
from metallab.pytorch.divergence.compare import any_element, results
from metallab.pytorch.divergence.differences import DrawFault, WrongDraw

Range = tuple[float, float]
"""The smallest and the largest number that may be drawn."""


def compare_draw(call: Call, returned: Any) -> WrongDraw | None:
    """Return what is wrong with random numbers, whatever they are.

    Parameters
    ----------
    call
        With what it was given, on the CPU.
    returned
        What the device returned.

    Returns
    -------
    WrongDraw or None
        None if nothing is wrong, and of operators of which nothing is known.
    """
    name = call.short_name.removesuffix("_")
    drawn = results(returned)
    if not drawn or not drawn[0].numel():
        return None
    if name == "multinomial":
        return _compare_places(call, drawn[0])
    if name == "randperm":
        return _compare_permutation(drawn[0])

    find_range = RANGES.get(name)
    if find_range is None:
        return None
    low, high = find_range(call.settings)
    return _count_nan(call, drawn[0]) or _count_outside(call, drawn[0], low, high)


def _compare_places(call: Call, drawn: Tensor) -> WrongDraw | None:
    """Return what is wrong with places that were drawn with given probabilities."""
    weights = call.tensors[0]
    outside = (drawn < 0) | (drawn >= weights.shape[-1])
    if outside.any():
        return WrongDraw.of(DrawFault.OUTSIDE, outside)

    impossible = weights.gather(-1, drawn) == 0
    if impossible.any():
        return WrongDraw.of(DrawFault.IMPOSSIBLE, impossible)
    return None if call.settings["replacement"] else _count_repeated(drawn)


def _compare_permutation(drawn: Tensor) -> WrongDraw | None:
    outside = (drawn < 0) | (drawn >= drawn.numel())
    return WrongDraw.of(DrawFault.OUTSIDE, outside) if outside.any() else _count_repeated(drawn)


def _count_repeated(drawn: Tensor) -> WrongDraw | None:
    """Return how many numbers along the last dimension are there twice."""
    repeated = drawn.sort(-1).values.diff() == 0
    return WrongDraw.of(DrawFault.REPEATED, repeated) if repeated.any() else None


def _count_nan(call: Call, drawn: Tensor) -> WrongDraw | None:
    """Return how many numbers are NaN where no argument has one."""
    given = [tensor for name, tensor in call.named_tensors if name not in call.written_arguments]
    if not any_element(drawn, torch.isnan):
        return None
    if any(any_element(tensor, torch.isnan) for tensor in given):
        return None
    return WrongDraw.of(DrawFault.NAN, drawn.isnan())


def _count_outside(call: Call, drawn: Tensor, low: float, high: float) -> WrongDraw | None:
    """Return how many numbers lie outside of a range, or have probability 0; NaN counts as inside, see `_count_nan`.

    Both ends belong to the range: where PyTorch leaves one out, rounding to a small dtype may still give it.
    """
    outside = (drawn < low) | (drawn > high)
    if is_floating(drawn) and math.isinf(high):
        outside |= drawn.isinf()  # which no comparison finds: infinity is not above infinity
    if outside.any():
        return WrongDraw.of(DrawFault.OUTSIDE, outside)
    if not call.short_name.startswith("bernoulli"):
        return None

    # ``bernoulli(input)`` has no p: each number of the input is a probability
    share = torch.as_tensor(call.settings.get("p", call.tensors[0]), dtype=torch.float64)
    drawn = drawn.to(torch.float64)
    impossible = ((drawn != 0) & (share == 0)) | ((drawn != 1) & (share == 1))
    impossible |= (drawn != 0) & (drawn != 1)
    return WrongDraw.of(DrawFault.IMPOSSIBLE, impossible) if impossible.any() else None


# ---- which numbers an operator may draw ------------------------------------------------------------------------------


def _unit(_: dict[str, Any]) -> Range:
    return 0.0, 1.0


def _not_negative(_: dict[str, Any]) -> Range:
    return 0.0, math.inf


def _from_one(_: dict[str, Any]) -> Range:
    return 1.0, math.inf


def _uniform(settings: dict[str, Any]) -> Range:
    return settings["from"], settings["to"]


def _integers(settings: dict[str, Any]) -> Range:
    """Return the range of ``randint``, or of ``random_``, which may have no end."""
    low = settings.get("low", settings.get("from"))
    high = settings.get("high", settings.get("to"))
    return low or 0, math.inf if high is None else high - 1


def _any(_: dict[str, Any]) -> Range:
    return -math.inf, math.inf


RANGES: dict[str, Callable[[dict[str, Any]], Range]] = {
    "rand": _unit,
    "rand_like": _unit,
    "bernoulli": _unit,
    "uniform": _uniform,
    "randint": _integers,
    "randint_like": _integers,
    "random": _integers,
    "exponential": _not_negative,
    "log_normal": _not_negative,
    "poisson": _not_negative,
    "geometric": _from_one,
    "randn": _any,
    "randn_like": _any,
    "normal": _any,
}
"""By operator, without the underscore of one that writes to its argument."""
