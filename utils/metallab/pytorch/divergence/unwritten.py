"""Results of which an operator writes a part only: the rest is memory as it was, which says nothing about a kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metallab.pytorch.divergence.calls import Call


def clear_unwritten(call: Call, returned: list[Tensor]) -> list[Tensor]:
    """Return the results of a call with 0 where its operator writes nothing, so that they can be compared.

    What lies there is what the memory held before, other numbers in each call, on the CPU as on a device.

    Parameters
    ----------
    call
        With what it was given, on the CPU.
    returned
        What it returned, on the CPU, in any dtype; it stays as it is.
    """
    if call.name not in _WRITTEN_PARTS:
        return returned

    number, find_written = _WRITTEN_PARTS[call.name]
    if number >= len(returned):
        return returned
    written = find_written(call, returned[number])
    if written is None:
        return returned
    cleared = returned[number].masked_fill(~written, 0)
    return [*returned[:number], cleared, *returned[number + 1 :]]


def clear_expected_infinities(call: Call, returned: list[Tensor]) -> list[Tensor]:
    """Return the results of a call without the infinities that belong to what an operator keeps for its gradient.

    CTC keeps logarithms of probabilities, and where a path cannot be at that time the probability is 0, whose logarithm
    is minus infinity: in every call, also in right ones. An infinite loss stays.
    """
    if call.name != CTC or len(returned) < 2:
        return returned
    loss, log_alpha, *others = returned
    return [loss, log_alpha.masked_fill(log_alpha == -torch.inf, 0), *others]


def count_written_whole(call: Call) -> int | None:
    """Return how many results come before the one that is written in part; None where all are written whole."""
    return _WRITTEN_PARTS[call.name][0] if call.name in _WRITTEN_PARTS else None


def _find_written_of_ctc(call: Call, log_alpha: Tensor) -> Tensor | None:
    """Return which elements of ``log_alpha`` the operator writes; None if the result has not the shape of one.

    It has a row for each item of the batch, each step of the time and each of the states that a path goes through: the
    labels of the target, with a blank before, between and behind them, 2 n + 1 of n labels. An item that is shorter
    than the longest leaves the steps behind its end, and the states behind its target, as they were.
    """
    lengths = [torch.as_tensor(call.settings[name]) for name in ("input_lengths", "target_lengths")]
    if log_alpha.dim() != 3 or any(len(each) != len(log_alpha) for each in lengths):
        return None

    steps, states = (each.reshape(-1, 1, 1) for each in lengths)
    is_step = torch.arange(log_alpha.shape[1]).reshape(1, -1, 1) < steps
    is_state = torch.arange(log_alpha.shape[2]).reshape(1, 1, -1) < 2 * states + 1
    return is_step & is_state


CTC = "aten::_ctc_loss"

FindWritten = Callable[[Call, Tensor], Tensor | None]
"""Returns which elements of a result are written, as truth values of its shape."""
_WRITTEN_PARTS: dict[str, tuple[int, FindWritten]] = {CTC: (1, _find_written_of_ctc)}
"""By operator: the place among its results of the one that is written in part, and which part that is."""
