"""What a model returns on a device, against the CPU: it may differ though each operator agrees.

Each operator is compared by the numbers that the device gave it. So what comes in from elsewhere is seen by none:
memory that nobody wrote to, a branch of the model on its device, random numbers of NumPy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from metallab import checks
from metallab.pytorch.divergence.calls import is_floating, to_float64
from metallab.pytorch.divergence.compare import root_mean_square
from metallab.pytorch.divergence.differences import Cause, WrongKind, WrongValues
from metallab.pytorch.divergence.layers import CPURuns, RecordedRun, TrainingRun
from metallab.pytorch.divergence.new_memory import filling_new_memory, has_new_nan
from metallab.pytorch.divergence.report import LayerError, Unexplained, UnexplainedLayer

TOLERANCES = 10
"""An error of a whole model is unexplained from so many tolerances of one operator on: rounding adds up on the way."""
CPU_ERROR_FACTOR = 100
"""And from so many times the error of the CPU in the model's dtype, which is large where a model magnifies errors."""


def find_unexplained(
    run: TrainingRun,
    on_device: RecordedRun,
    on_cpu: CPURuns,
    layers: Sequence[LayerError],
) -> Unexplained | None:
    """Return how a model's output, or what a layer computes, differs though no operator is wrong; None if it does not.

    Parameters
    ----------
    run
        The model with its inputs; is run on the CPU once more if it asks for memory.
    on_device
        What the device computed, without random numbers of its own.
    on_cpu
        What is right, and how far rounding is off.
    layers
        The errors of layers; empty if the CPU went through others.
    """
    output = _compare_outputs(on_device.outputs, on_cpu)
    layer = _find_layer(layers, on_device)
    lines = _list_unwritten_lines(run, on_cpu)
    if output is None and layer is None and not lines:
        return None
    return Unexplained(output, layer, lines)


# ---- what differs ----------------------------------------------------------------------------------------------------


def _compare_outputs(given: Sequence[Tensor], on_cpu: CPURuns) -> WrongValues | WrongKind | None:
    """Return how the first output that differs does; integers are not compared, since rounding may turn a decision."""
    exact = on_cpu.exact.outputs
    rounded = on_cpu.same_dtype.outputs if on_cpu.same_dtype is not None else []
    if len(given) != len(exact):
        return None  # the errors of layers tell that the CPU took another way

    for number, (right, value) in enumerate(zip(exact, given, strict=True)):
        if right.shape != value.shape:
            return WrongKind.of(rounded[number] if rounded else right, value)
        if not is_floating(value) or not is_floating(right) or not value.numel():
            continue
        difference = _compare_output(right, value, rounded[number] if rounded else None)
        if difference is not None:
            return difference
    return None


def _compare_output(right: Tensor, value: Tensor, rounded: Tensor | None) -> WrongValues | None:
    """Return how an output differs by more than rounding explains; None if it does not.

    Parameters
    ----------
    right, value
        What the CPU returns in float64, and the device.
    rounded
        What the CPU returns in the model's dtype, to know how large rounding is; None if that is not known.
    """
    dtype = value.dtype
    right, value = to_float64(right), to_float64(value)
    error = _errors(right, value)
    on_cpu = torch.zeros(())
    if rounded is not None and rounded.shape == right.shape:
        on_cpu = _errors(right, to_float64(rounded)).max()

    size = root_mean_square(right[right.isfinite()])
    allowed = max(_relative_limit(dtype) * size, CPU_ERROR_FACTOR * on_cpu.item())
    wrong = error > allowed
    if not wrong.any():
        return None

    largest = error.max()
    if largest.isinf():
        return WrongValues.of(error.isinf(), right, value, Cause.NOT_FINITE)
    difference = WrongValues.of(wrong, right, value, Cause.NOT_ROUNDING, shown=error == largest)
    return dataclasses.replace(difference, error=largest.item(), allowed=allowed)


def _errors(right: Tensor, value: Tensor) -> Tensor:
    """Return the error of each value; infinite where one side alone is NaN or infinite."""
    is_same = (right == value) | (right.isnan() & value.isnan())
    error = (value - right).abs()
    return error.masked_fill(error.isnan(), math.inf).masked_fill(is_same, 0.0)


def _relative_limit(dtype: torch.dtype) -> float:
    """Return the error, over the root mean square, that is unexplained in a dtype; infinite in one of 8 bits."""
    try:
        return TOLERANCES * checks.tolerance(dtype).relative
    except ValueError:
        return math.inf


def _find_layer(layers: Sequence[LayerError], on_device: RecordedRun) -> UnexplainedLayer | None:
    """Return the first layer whose error rounding does not explain: of the forward pass, or else of the backward pass.

    The backward pass goes through the layers from the last to the first.
    """
    limits = [
        _relative_limit(layer.output.dtype) if layer.output is not None else math.inf
        for layer in on_device.layers
    ]
    # not strict: ``layers`` is empty where they could not be compared
    errors = list(zip(layers, limits, strict=False))

    for number, (layer, limit) in enumerate(errors):
        if _is_unexplained(layer.forward, layer.forward_cpu, limit):
            before = layers[number - 1].module if number else None
            return UnexplainedLayer(layer, "forward", before)
    for layer, limit in reversed(errors):
        if _is_unexplained(layer.backward, layer.backward_cpu, limit):
            return UnexplainedLayer(layer, "backward")
    return None


def _is_unexplained(error: float, on_cpu: float, limit: float) -> bool:
    """Return True for an error that neither a dtype's rounding nor that of the CPU explains; NaN is not known."""
    if not math.isnan(on_cpu):
        limit = max(limit, CPU_ERROR_FACTOR * on_cpu)
    return error > limit


# ---- where it may come from ------------------------------------------------------------------------------------------


def _list_unwritten_lines(run: TrainingRun, on_cpu: CPURuns) -> tuple[str, ...]:
    """Return the lines that ask for memory which is read before it is written; none if that is not so.

    The model is run on the CPU with NaN in all new memory: an output that is NaN there, and not with 0 in it, depends
    on what nobody wrote.
    """
    if not on_cpu.has_new_memory:
        return ()
    try:
        with filling_new_memory(math.nan) as lines:
            filled = run.record_on_cpu().outputs
    except Exception:  # noqa: BLE001 - a model may look at its numbers, and raise at NaN
        return ()
    zeroed = on_cpu.same_dtype if on_cpu.same_dtype is not None else on_cpu.exact
    return tuple(lines) if has_new_nan(filled, zeroed.outputs) else ()
