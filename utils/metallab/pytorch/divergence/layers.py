"""A model's forward pass, backward pass and step on a device, and the error of each of its layers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metallab.pytorch.copies import copy_model, map_tensors, tensors_in
from metallab.pytorch.dispatch import call_loss, explain
from metallab.pytorch.divergence.calls import is_floating, to_float64
from metallab.pytorch.divergence.compare import root_mean_square
from metallab.pytorch.divergence.differences import NotCompared, Reason
from metallab.pytorch.divergence.report import LayerError
from metallab.pytorch.divergence.runs import RunMode, enter_gradients

if TYPE_CHECKING:
    from metallab.pytorch.divergence.comparer import OperatorComparer

NO_ERROR_OF_ZEROS = 1e-6
"""What is 0 on the CPU may be so far off without an infinite relative error."""
CPU_ERRORS = (RuntimeError, TypeError)
"""PyTorch's errors where the CPU has no kernel, or a model mixes in float32 of its own."""


@dataclass
class RecordedLayer:
    """What one call of a layer without layers inside computed, on the CPU."""

    name: str
    """As ``named_modules`` names it; its class if it is the model itself."""
    output: Tensor | None = None
    """The first floating tensor of its output."""
    gradient: Tensor | None = None
    """That of the loss by ``output``."""


@dataclass(frozen=True)
class TrainingRun:
    """What is computed on each device: a forward pass, a backward pass and a step.

    Model, inputs and loss are copied for each run, so that all runs begin alike: a model may keep statistics, and a
    loss may count its calls or keep an average. What a function has around it is copied if it was opened
    (`copies.open_function`).
    """

    model: nn.Module
    inputs: Sequence[Any] | dict[str, Any]
    loss: Callable[[Any], Tensor]
    """A function, or an object that is called; what it holds is copied to the device of a run with it."""
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None

    def compare(
        self, device: Any, comparer: OperatorComparer, record: bool = True
    ) -> list[RecordedLayer]:
        """Compute all of it on a copy of the model, or the forward pass without gradients; compare each operator.

        Parameters
        ----------
        device
            A device of PyTorch.
        comparer
            Sees each operator, and says in which mode the model is run.
        record
            Whether to return the layers.

        Returns
        -------
        list of RecordedLayer
            One for each call of a layer, in the order of the forward pass; empty unless ``record``.
        """
        mode = comparer.mode
        copied = self._copy_to(device)
        copied.enter(mode)
        layers = _record_layers(copied.model) if record else []

        if not mode.has_gradients:
            with enter_gradients(mode.gradients), comparer.watching():
                copied.compute_output()
            return layers

        optimizer = self._make_optimizer(copied)
        with comparer.watching():
            loss = copied.compute_loss()
            comparer.direction = "backward"
            backward(loss)

            if optimizer is not None:
                comparer.direction = "step"
                copied.step(optimizer)
        return layers

    def compute(self, device: Any, mode: RunMode) -> None:
        """Compute the same on a copy on a device, without looking at it; raise what model, loss or optimizer raise."""
        copied = self._copy_to(device)
        copied.enter(mode)
        if not mode.has_gradients:
            with enter_gradients(mode.gradients):
                copied.compute_output()
            return

        optimizer = self._make_optimizer(copied)
        backward(copied.compute_loss())
        if optimizer is not None:
            copied.step(optimizer)

    def record_on_cpu(self, in_float64: bool = False) -> list[RecordedLayer]:
        """Compute the forward and the backward pass on a copy on the CPU, and return its layers."""
        copied = self._copy_to("cpu", to_float64 if in_float64 else None)
        layers = _record_layers(copied.model)
        backward(copied.compute_loss())
        return layers

    def _make_optimizer(self, copied: _CopiedRun) -> torch.optim.Optimizer | None:
        """Return the optimizer of a copy's parameters; None without one."""
        return self.optimizer(copied.model.parameters()) if self.optimizer is not None else None

    def _copy_to(self, device: Any, change: Callable[[Tensor], Tensor] | None = None) -> _CopiedRun:
        """Return copies of the model, its inputs and its loss on a device, each tensor changed.

        A loss that holds the model, as one that adds the size of the weights may, holds the copy afterwards: the
        gradients would else go to weights that nobody looks at.
        """
        copies: dict[int, Any] = {}  # by identity of what was copied, as `copy.deepcopy` keeps them

        def move(tensor: Tensor) -> Tensor:
            there = move_to(tensor.detach(), device)
            if change is not None:
                there = change(there)
            return there.requires_grad_(tensor.requires_grad)

        def move_module(module: nn.Module) -> nn.Module:
            copied = copy_model(module, copies).to(device)
            if change is not None:
                for tensor in (*copied.parameters(), *copied.buffers()):
                    tensor.data = change(tensor.data)
            return copied

        return _CopiedRun(
            model=move_module(self.model),
            inputs=map_tensors(move, self.inputs),
            loss=map_tensors(move, self.loss, move_module),
        )


@dataclass(frozen=True)
class _CopiedRun:
    """A model with its inputs and its loss, on one device."""

    model: nn.Module
    inputs: Any
    loss: Callable[[Any], Tensor]

    def enter(self, mode: RunMode) -> None:
        """Put the model into training or evaluation mode."""
        if self.model.training != mode.is_training:  # parts of it may have a mode of their own
            self.model.train(mode.is_training)

    def compute_output(self) -> Any:
        """Call the model."""
        if isinstance(self.inputs, dict):
            return self.model(**self.inputs)
        return self.model(*self.inputs)

    def compute_loss(self) -> Tensor:
        """Call the model, and the loss with what it returns."""
        loss: Tensor = call_loss(self.loss, self.compute_output())
        return loss

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step after the backward pass.

        Only an optimizer that cannot do without, as LBFGS, is given a function that computes the loss and the gradients
        again: any other would call it too, and each operator would be compared twice.
        """

        def compute_again() -> Tensor:
            optimizer.zero_grad()
            loss = self.compute_loss()
            backward(loss)
            return loss

        parameter = inspect.signature(optimizer.step).parameters.get("closure")
        needs_closure = parameter is not None and parameter.default is parameter.empty
        if needs_closure:
            optimizer.step(compute_again)
        else:
            optimizer.step()


def move_to(tensor: Tensor, device: Any) -> Tensor:
    """Return a tensor on a device at the same offset in its memory, since kernels may be wrong at an offset only.

    `Tensor.to` places it at the start, so it is copied into memory that begins so many elements earlier.
    """
    there = tensor.to(device)
    offset = tensor.storage_offset()
    if there.storage_offset() == offset or not there.numel():
        return there

    sizes = zip(there.shape, there.stride(), strict=True)
    last_position = sum((count - 1) * stride for count, stride in sizes)
    storage = there.new_zeros(offset + last_position + 1)
    return storage.as_strided(there.shape, there.stride(), offset).copy_(there)


def backward(loss: Tensor) -> None:
    """Compute the gradients of a loss, if it has any: a model without weights may have none."""
    if loss.requires_grad:
        loss.backward()


def mean_square(output: Any) -> Tensor:
    """Return a loss for a model that has none of its own.

    Parameters
    ----------
    output
        What a model returned: tensors, however deep they lie.

    Returns
    -------
    Tensor
        A number: the sum of the mean squares of all floating and complex tensors; 0 if there are none.
    """
    floating = [tensor for tensor in tensors_in(output) if is_floating(tensor)]
    if not floating:
        return torch.zeros(())

    real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in floating]
    return sum(tensor.square().mean() for tensor in real)


def compute_layer_errors(
    run: TrainingRun, on_device: Sequence[RecordedLayer]
) -> tuple[LayerError, ...] | NotCompared:
    """Return the error of each layer, or why it is not known.

    Parameters
    ----------
    run
        Is computed on the CPU twice: in float64, and in the model's dtype, to know how large rounding is.
    on_device
        The layers as the device computed them.

    Returns
    -------
    tuple of LayerError or NotCompared
        Without errors of rounding if the CPU cannot compute in the model's dtype. `NotCompared` if it cannot in
        float64, or goes through other layers, as a model may whose path depends on its numbers.
    """
    try:
        exact = run.record_on_cpu(in_float64=True)
    except CPU_ERRORS as error:
        reason = Reason.OWN_DTYPE if _is_of_dtypes(error) else Reason.CPU_RAISES
        return NotCompared(reason, str(explain(error)))

    names = _list_names(on_device)
    try:
        same_dtype = run.record_on_cpu()
    except CPU_ERRORS:
        # the CPU has no kernel in this dtype: layers without numbers, whose error is NaN
        same_dtype = [RecordedLayer(name) for name in names]

    if _list_names(exact) != names or _list_names(same_dtype) != names:
        return NotCompared(Reason.OTHER_LAYERS)
    return tuple(map(_compute_layer_error, exact, on_device, same_dtype))


def _is_of_dtypes(error: Exception) -> bool:
    """Return True if PyTorch's words are of dtypes that do not fit together, as of a product or of a layer's state."""
    words = str(error)
    return "dtype" in words or "scalar type" in words


def relative_error(exact: Tensor | None, result: Tensor | None) -> float:
    """Return the largest difference over the root mean square of the right values.

    Parameters
    ----------
    exact, result
        Tensors of one shape.

    Returns
    -------
    float
        Infinite where one is NaN or infinite and the other is not; NaN if one is missing, empty or of another shape.
        Where all right values are 0 there is nothing to relate to: a small difference is returned as it is, and a
        larger one is infinite.
    """
    if exact is None or result is None or not exact.numel() or exact.shape != result.shape:
        return math.nan

    # equal infinities and NaN on both sides count as no difference, though their difference is NaN
    exact, result = to_float64(exact), to_float64(result)
    is_same = (exact == result) | (exact.isnan() & result.isnan())
    difference = (exact - result).abs().masked_fill(is_same, 0.0).max().item()
    if math.isnan(difference):
        return math.inf

    size = root_mean_square(exact[exact.isfinite()])
    if size:
        return difference / size
    return math.inf if difference > NO_ERROR_OF_ZEROS else difference


def _list_names(layers: Sequence[RecordedLayer]) -> list[str]:
    return [layer.name for layer in layers]


def _record_layers(model: nn.Module) -> list[RecordedLayer]:
    """Return a list that each layer of a model, once it has run, adds what it computed to."""
    recorded: list[RecordedLayer] = []
    for name, module in model.named_modules():
        if not any(module.children()):
            module.register_forward_hook(_recording_hook(name or type(module).__name__, recorded))
    return recorded


def _recording_hook(name: str, recorded: list[RecordedLayer]) -> Callable[..., None]:
    """Return a forward hook that appends what a call of a layer computes to a list.

    That is its output, on the CPU, and the gradient by it as soon as the backward pass has come there.
    """

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        """Record the first floating tensor of a layer's output; a layer without one is recorded by its name alone."""
        layer = RecordedLayer(name)
        recorded.append(layer)
        tensor = next(filter(is_floating, tensors_in(output)), None)
        if tensor is None:
            return

        def record_gradient(gradient: Tensor | None) -> None:
            # None where the way back goes through this layer without its gradient being asked for, as where a force is
            # the gradient of an energy
            if gradient is not None:
                layer.gradient = gradient.detach().cpu()

        layer.output = tensor.detach().cpu()
        if tensor.requires_grad:  # else PyTorch refuses the hook
            tensor.register_hook(record_gradient)

    return hook


def _compute_layer_error(
    exact: RecordedLayer, on_device: RecordedLayer, same_dtype: RecordedLayer
) -> LayerError:
    """Return the errors of a layer on the device, and on the CPU in the model's dtype."""
    return LayerError(
        module=on_device.name,
        forward=relative_error(exact.output, on_device.output),
        backward=relative_error(exact.gradient, on_device.gradient),
        forward_cpu=relative_error(exact.output, same_dtype.output),
        backward_cpu=relative_error(exact.gradient, same_dtype.gradient),
    )
