"""Find the first operator that computes wrongly on a device, in a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metallab.device import PyTorchDevice
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.divergence.calls import is_floating
from metallab.pytorch.divergence.comparer import OperatorComparer
from metallab.pytorch.divergence.differences import NotCompared
from metallab.pytorch.divergence.layers import TrainingRun, compute_layer_errors, mean_square
from metallab.pytorch.divergence.minimize import minimize
from metallab.pytorch.divergence.report import Report


def find(
    model: nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None = None,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    on: PyTorchDevice,
    seconds: float = math.inf,
    layers: bool = True,
) -> Report:
    """Run ``loss(model(*inputs)).backward()`` on a copy on a device, and find the first operator that is wrong there.

    Parameters
    ----------
    model
        Stays as it is. It is run in its mode (training or evaluation) and its dtypes, float16 and bfloat16 included.
    inputs
        A tuple of arguments, or a dict of those that have names.
    loss
        Takes the model's output and returns one number; by default the mean square of all floating outputs.
    optimizer
        Such as ``torch.optim.AdamW``: is given the copy's parameters and takes one step, which is compared as well.
    on
        The device.
    seconds
        After these no more calls are compared; the run that has begun is finished.
    layers
        Whether to compute the errors of layers, which takes two more runs on the CPU.

    Returns
    -------
    Report
        What is wrong, where, what the fault needs, and a program that shows it.

    Raises
    ------
    TypeError
        If ``inputs`` is neither a tuple nor a dict.
    ValueError
        If the model has no floating parameter and no floating input, or float64 where the device has none.

    Notes
    -----
    On an NVIDIA GPU set ``torch.backends.cudnn.allow_tf32 = False`` first: convolutions in TensorFloat-32 are further
    off than float32 explains.

    Examples
    --------
    >>> from metallab import device
    >>> from metallab.pytorch import divergence
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    >>> report = divergence.find(model, (torch.ones(3, 4),), on=device.cpu())
    >>> print(report.kind)
    agrees
    """
    if not isinstance(inputs, list | tuple | Mapping):
        raise TypeError(
            f"inputs is a {type(inputs).__name__}: give a tuple of what the model is called with, (x,)"
        )
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)  # PyTorch goes through no other mapping
    _check_dtypes(model, inputs, on)

    run = TrainingRun(model, inputs, loss or mean_square, optimizer)
    comparer = OperatorComparer(on, seconds)
    on_device = run.compare(on.torch_device, comparer, record=layers)
    report = comparer.report

    if comparer.always_wrong_call is not None:
        conditions, program = minimize(
            comparer.always_wrong_call, on.torch_device, comparer.began + seconds
        )
        report = dataclasses.replace(report, conditions=conditions, program=program)
    if not layers:
        return report

    errors = compute_layer_errors(run, on_device)
    if isinstance(errors, NotCompared):
        return dataclasses.replace(report, layers_not_compared=errors)
    return dataclasses.replace(report, layers=errors)


def _check_dtypes(model: nn.Module, inputs: Any, on: PyTorchDevice) -> None:
    """Raise ValueError if a model and its inputs have no floating tensor, or one that the device cannot have."""
    tensors = (*model.parameters(), *tensors_in(inputs))
    dtypes = {tensor.dtype for tensor in tensors if is_floating(tensor)}

    if not dtypes:
        raise ValueError(
            "the model has no floating parameter and no floating input: there is nothing to compare"
        )
    if on.kind == "mps" and dtypes & {torch.float64, torch.complex128}:
        raise ValueError("no Apple GPU has float64: give model.float() and inputs in float32")
