"""A model's forward pass, backward pass and step on a device, and the error of each of its layers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metallab.pytorch.copies import copy_model, map_tensors, tensors_in
from metallab.pytorch.dispatch import call_loss, explain
from metallab.pytorch.divergence.calls import is_floating, to_float64
from metallab.pytorch.divergence.compare import root_mean_square
from metallab.pytorch.divergence.differences import NotCompared, Reason
from metallab.pytorch.divergence.new_memory import filling_new_memory
from metallab.pytorch.divergence.report import LayerError
from metallab.pytorch.divergence.runs import RunMode, enter_gradients

if TYPE_CHECKING:
    from metallab.pytorch.divergence.comparer import OperatorComparer

NO_ERROR_OF_ZEROS = 1e-6
"""What is 0 on the CPU may be so far off without an infinite relative error."""


@dataclass
class RecordedLayer:
    """What one call of a layer without layers inside computed, on the CPU."""

    name: str
    """As ``named_modules`` names it; its class if it is the model itself."""
    output: Tensor | None = None
    """The first floating tensor of its output."""
    gradient: Tensor | None = None
    """That of the loss by ``output``."""


@dataclass
class RecordedRun:
    """What one run of a model computed, on the CPU."""

    layers: list[RecordedLayer] = field(default_factory=list)
    """One for each call of a layer, in the order of the forward pass."""
    outputs: list[Tensor] = field(default_factory=list)
    """The tensors that the model returned, however deep they lie."""
    has_random_numbers: bool = False
    """Whether operators drew some, which differ on every device."""

    def keep_outputs(self, output: Any) -> None:
        """Keep copies of what the model returned."""
        self.outputs = [
            tensor.detach().cpu().clone()
            for tensor in tensors_in(output)
            if not tensor.is_nested and tensor.layout == torch.strided
        ]


@dataclass(frozen=True)
class CPURuns:
    """A model as the CPU computes it."""

    exact: RecordedRun
    """In float64."""
    same_dtype: RecordedRun | None
    """In the model's dtype; None if the CPU has no kernel for it."""
    has_new_memory: bool = False
    """Whether the model asks for memory, as `torch.empty` returns it; 0 was written into it."""


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
    keeps_layers: bool = True
    """Whether a recorded run keeps what each layer computes, too, and not only what the model returns."""

    def compare(self, device: Any, comparer: OperatorComparer, record: bool = True) -> RecordedRun:
        """Compute all of it on a copy of the model, or the forward pass without gradients; compare each operator.

        Parameters
        ----------
        device
            A device of PyTorch.
        comparer
            Sees each operator, and says in which mode the model is run.
        record
            Whether to keep what the model returns, and what its layers compute (`keeps_layers`).

        Returns
        -------
        RecordedRun
            Empty unless ``record``.
        """
        mode = comparer.mode
        copied = self._copy_to(device)
        copied.enter(mode)
        recorded = self._record(copied.model) if record else RecordedRun()

        if not mode.has_gradients:
            with enter_gradients(mode.gradients), comparer.watching():
                copied.compute_output()
            return recorded

        optimizer = self._make_optimizer(copied)
        with comparer.watching():
            loss = copied.compute_loss()
            comparer.direction = "backward"
            backward(loss)

            if optimizer is not None:
                comparer.direction = "step"
                copied.step(optimizer)
        return recorded

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

    def record_on_cpu(self, in_float64: bool = False) -> RecordedRun:
        """Compute a copy on the CPU, and return what it computed; without layers only the forward pass is needed."""
        copied = self._copy_to("cpu", to_float64 if in_float64 else None)
        recorded = self._record(copied.model)
        if self.keeps_layers:
            backward(copied.compute_loss())
        else:
            copied.compute_output()
        return recorded

    def _record(self, model: nn.Module) -> RecordedRun:
        """Return what a copy of the model will compute, once it has run."""
        return _record_run(model) if self.keeps_layers else _record_outputs(model)

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
        _require_number(loss)
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


def _require_number(loss: Any) -> None:
    """Raise TypeError unless a loss is a tensor of one number, which has a gradient."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"the loss returns a {type(loss).__name__}, which has no gradient: let it return a tensor of one number, "
            "such as output.mean(), without .item() or float()"
        )
    if loss.numel() != 1:
        raise TypeError(
            f"the loss returns a tensor of shape {tuple(loss.shape)}: let it return one number, such as loss.mean()"
        )


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


def run_on_cpu(run: TrainingRun) -> CPURuns | NotCompared:
    """Compute a model on the CPU twice: in float64, and in its own dtype, to know how large rounding is.

    Returns
    -------
    CPURuns or NotCompared
        Without a run in the model's dtype if the CPU has no kernel for it. `NotCompared` if it cannot compute in
        float64.
    """
    try:
        with filling_new_memory(0) as lines:
            exact = run.record_on_cpu(in_float64=True)
    except Exception as error:  # noqa: BLE001 - PyTorch's errors of dtypes, or a model's own, that wants float32
        reason = Reason.OWN_DTYPE if _is_of_dtypes(error) else Reason.CPU_RAISES
        return NotCompared(reason, str(explain(error)))

    try:
        with filling_new_memory(0):
            same_dtype = run.record_on_cpu()
    except Exception:  # noqa: BLE001 - the CPU has no kernel for it
        same_dtype = None
    return CPURuns(exact, same_dtype, has_new_memory=bool(lines))


def compute_layer_errors(
    on_device: RecordedRun, on_cpu: CPURuns
) -> tuple[LayerError, ...] | NotCompared:
    """Return the error of each layer, or why it is not known.

    Parameters
    ----------
    on_device
        What the device computed.
    on_cpu
        What is right, and how far rounding is off.

    Returns
    -------
    tuple of LayerError or NotCompared
        Without errors of rounding if the CPU cannot compute in the model's dtype. `NotCompared` if it goes through
        other layers, as a model may whose path depends on its numbers.
    """
    names = _list_names(on_device.layers)
    # the CPU has no kernel in this dtype: layers without numbers, whose error is NaN
    same_dtype = [RecordedLayer(name) for name in names]
    if on_cpu.same_dtype is not None:
        same_dtype = on_cpu.same_dtype.layers

    exact = on_cpu.exact.layers
    if _list_names(exact) != names or _list_names(same_dtype) != names:
        return NotCompared(Reason.OTHER_LAYERS)
    return tuple(map(_compute_layer_error, exact, on_device.layers, same_dtype))


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


def _record_run(model: nn.Module) -> RecordedRun:
    """Return what each layer of a model, once it has run, and the model itself add to what they computed."""
    layers: list[RecordedLayer] = []
    for name, module in model.named_modules():
        if not any(module.children()):
            hook = _recording_hook(name or type(module).__name__, layers)
            module.register_forward_hook(hook)

    recorded = _record_outputs(model)  # behind the hook of a model that is a layer itself
    recorded.layers = layers
    return recorded


def _record_outputs(model: nn.Module) -> RecordedRun:
    """Return what a model, once it has run, adds to its outputs."""
    recorded = RecordedRun()
    model.register_forward_hook(lambda _module, _inputs, output: recorded.keep_outputs(output))
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
        if tensor is None or _is_of_transform(tensor):
            return

        def record_gradient(gradient: Tensor | None) -> None:
            # None where the way back goes through this layer without its gradient being asked for, as where a force is
            # the gradient of an energy
            if gradient is not None and not _is_of_transform(gradient):
                layer.gradient = gradient.detach().to("cpu", copy=True)

        # a copy on the CPU, too: the next layer may work in place, as ReLU(inplace=True) does
        layer.output = tensor.detach().to("cpu", copy=True)
        if tensor.requires_grad:  # else PyTorch refuses the hook
            tensor.register_hook(record_gradient)

    return hook


def _is_of_transform(tensor: Tensor) -> bool:
    """Return True for what `torch.func` gives to a function, as vmap and jacrev do: its numbers cannot be read."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


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
