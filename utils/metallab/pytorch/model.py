"""A model of the reader's, with its inputs and its loss: load it, move it, cast it, and give it another batch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metallab.pytorch.copies import copied, mapped, tensors_in
from metallab.pytorch.dispatch import explain
from metallab.pytorch.divergence import backward, mean_square
from metallab.pytorch.errors import NotAModel

RETURNS = "(model, inputs) or (model, inputs, loss)"
DOES_NOT_RUN = "the model does not run with its inputs on the CPU"
NARROWED = {torch.float64: torch.float32, torch.complex128: torch.complex64}

Loss = Callable[[Any], Tensor]


class Function(nn.Module):
    """A function of tensors as a module without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the function."""
        return self.function(*inputs, **named)


@dataclass
class ModelUnderTest:
    """A model with its inputs and its loss."""

    model: nn.Module
    loss: Loss
    inputs: tuple[Any, ...]
    named: dict[str, Any]
    package: str
    """The top-level package of the factory."""

    # ---- another one ---------------------------------------------------------------------------------------------

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> ModelUnderTest:
        """Return the same model with each tensor among the inputs changed."""
        inputs, named = mapped(change, (self.inputs, self.named))
        return replace(self, inputs=inputs, named=named)

    def with_batch(self, rows: int) -> ModelUnderTest:
        """Return the model with another number of rows in each input that has `batch` of them."""
        batch = self.batch

        def change(tensor: Tensor) -> Tensor:
            if not tensor.dim() or len(tensor) != batch:
                return tensor
            return tensor[torch.arange(rows, device=tensor.device) % batch]

        return self.with_inputs(change)

    def copy(self) -> ModelUnderTest:
        """Return a copy of the model with the same inputs."""
        return replace(self, model=copied(self.model))

    def to(self, device: torch.device | str) -> ModelUnderTest:
        """Return a copy on a device; this one stays where it is."""
        return self.cast(lambda tensor: tensor.to(device))

    def cast(self, change: Callable[[Tensor], Tensor]) -> ModelUnderTest:
        """Return a copy with each weight, buffer, input and tensor of the loss changed."""

        def change_module(module: nn.Module) -> nn.Module:
            return copied(module)._apply(change)

        model, loss, inputs, named = mapped(
            lambda tensor: change(tensor.detach()),
            (self.model, self.loss, self.inputs, self.named),
            change_module,
        )
        return replace(self, model=model, loss=loss, inputs=inputs, named=named)

    def without_float64(self) -> ModelUnderTest:
        """Return a copy in float32; this one if it has no float64."""
        tensors = _all_tensors((self.model, self.loss, self.inputs, self.named))
        if not {tensor.dtype for tensor in tensors} & NARROWED.keys():
            return self
        return self.cast(lambda tensor: tensor.to(NARROWED.get(tensor.dtype, tensor.dtype)))

    # ---- what it computes ----------------------------------------------------------------------------------------

    def outputs(self) -> Any:
        """Call the model in its current mode."""
        return self.model(*self.inputs, **self.named)

    def value(self) -> Tensor:
        """Return the loss of the outputs."""
        return self.loss(self.outputs())

    def inference(self) -> Callable[[], Any]:
        """Return a function that computes the outputs without gradients, in evaluation mode."""
        there = self.copy()
        there.model.eval()
        return torch.no_grad()(there.outputs)

    def gradients(self, evaluating: bool = False) -> dict[str, Tensor]:
        """Return the gradients of the loss by the names of the weights that have one, of a copy."""
        there = self.copy()
        if evaluating:
            there.model.eval()
        backward(there.value())

        return {
            name: weight.grad
            for name, weight in there.model.named_parameters()
            if weight.grad is not None
        }

    def training_step(self) -> Callable[[], Tensor]:
        """Return a function that makes one step of SGD on a copy; the rate is 0, so each step is the same work."""
        there = self.copy()

        def step() -> Tensor:
            there.model.zero_grad(set_to_none=True)
            loss = there.value()
            loss.backward()

            # by hand: `torch.optim` loads PyTorch's compiler, which takes seconds
            with torch.no_grad():
                for weight in there.model.parameters():
                    if weight.grad is not None:
                        weight.add_(weight.grad, alpha=0.0)
            return loss.detach()

        return step

    # ---- what it is ----------------------------------------------------------------------------------------------

    @property
    def has_loss(self) -> bool:
        """True if the factory returned a loss."""
        return self.loss is not mean_square

    @property
    def can_train(self) -> bool:
        """True if the loss has a gradient; also if the model raises."""
        try:
            return self.value().requires_grad
        except Exception:  # noqa: BLE001 - who asks will see it
            return True

    @property
    def batch(self) -> int:
        """Rows of the first tensor among the inputs; 0 if there is none."""
        given = (*self.inputs, *self.named.values())
        rows = (len(each) for each in given if isinstance(each, Tensor) and each.dim())
        return next(rows, 0)

    @property
    def can_change_batch(self) -> bool:
        """True if the rows of each output follow those of the inputs."""
        if not self.batch:
            return False

        try:
            one = _rows(self.with_batch(1).inference()())
            many = _rows(self.with_batch(2 * self.batch).inference()())
        except Exception:  # noqa: BLE001 - a model may raise anything for another batch
            return False
        return bool(one) and many == [2 * self.batch * rows for rows in one]


def _rows(outputs: Any) -> list[int]:
    return [len(tensor) if tensor.dim() else 0 for tensor in tensors_in(outputs)]


def _all_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value, those of modules included."""
    found: list[Tensor] = []

    def see(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    def see_module(module: nn.Module) -> nn.Module:
        found.extend((*module.parameters(), *module.buffers()))
        return module

    mapped(see, value, see_module)
    return found


# ---- a loss with tensors around it ---------------------------------------------------------------------------------


def _open_closure(loss: Loss) -> Loss:
    """Return a loss function in whose closure `mapped` finds tensors, such as targets."""
    if not isinstance(loss, types.FunctionType) or not loss.__closure__:
        return loss
    return functools.partial(
        _call_with_closure, loss, [cell.cell_contents for cell in loss.__closure__]
    )


def _call_with_closure(loss: types.FunctionType, contents: list[Any], outputs: Any) -> Tensor:
    """Call a function with these contents in its closure."""
    function = types.FunctionType(
        loss.__code__,
        loss.__globals__,
        loss.__name__,
        loss.__defaults__,
        tuple(map(types.CellType, contents)),
    )
    function.__kwdefaults__ = loss.__kwdefaults__
    return function(outputs)


# ---- from a factory ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def raising_not_a_model(words: str) -> Iterator[None]:
    """Turn an exception of the user's code into NotAModel; ``words`` begin its message."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise NotAModel(f"{words}: {explain(error)}") from error


def unload_module(factory: str) -> None:
    """Import the module of a factory anew the next time: it may have been edited."""
    importlib.invalidate_caches()
    sys.modules.pop(factory.partition(":")[0], None)


def load_model(factory: str) -> ModelUnderTest:
    """Call ``package.module:factory``, and return what it makes.

    Raises
    ------
    NotAModel
        If there is no such function, or its result cannot be examined.
    """
    module, _, name = factory.partition(":")
    if not module or not name or module.endswith(".py") or os.sep in module:
        raise NotAModel(f"{factory!r} names no factory: write package.module:factory")

    torch.set_default_dtype(torch.float32)  # another script of this process may have changed it
    with raising_not_a_model(f"{module} cannot be imported"):
        function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise NotAModel(f"{module} has no function {name}: name one, package.module:factory")

    with raising_not_a_model(f"{factory} takes nothing and returns {RETURNS}, and it raised"):
        result = function()
    return as_model(result, factory)


def as_model(result: Any, factory: str) -> ModelUnderTest:
    """Return a factory's result as a model.

    Parameters
    ----------
    result
        ``(model, inputs)`` or ``(model, inputs, loss)``.
    factory
        What made it, for messages.

    Raises
    ------
    NotAModel
        If it is something else, lies on another device, has no tensor among the inputs, or does not run.
    """
    model, inputs, loss = _split_result(result, factory)
    plain, named = _split_inputs(inputs)
    loss, plain, named = mapped(_detach_result, (_open_closure(loss or mean_square), plain, named))
    weights = _all_tensors(model)
    _require_cpu(weights)
    if not tensors_in((plain, named)):
        raise NotAModel(
            f"{factory} gives no tensor among the inputs: let it return (model, a tuple of inputs)"
        )

    if any(map(is_lazy, weights)):  # its first call gives the weights their sizes
        with raising_not_a_model(DOES_NOT_RUN), torch.no_grad():
            model(*plain, **named)
    package = factory.partition(":")[0].partition(".")[0]
    return ModelUnderTest(model, loss, plain, named, package)


def _split_result(result: Any, factory: str) -> tuple[nn.Module, Any, Loss | None]:
    """Return the model as a module, the inputs and the loss of a factory's result. NotAModel if it has others."""
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not callable(result[0]):
        parts = result if isinstance(result, tuple) else (result,)
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise NotAModel(
            f"{factory} returns {kinds}: let it return {RETURNS} with an nn.Module or a function"
        )

    model, inputs, loss = (*result, None)[:3]
    if loss is not None and not callable(loss):
        raise NotAModel(
            f"{factory} returns a {type(loss).__name__} as the loss: give a function of the output"
        )
    if not isinstance(model, nn.Module):
        name = getattr(model, "__name__", type(model).__name__)
        model = type(name, (Function,), {})(model)
    return model, inputs, loss


def _split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs by place and those by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)  # PyTorch traverses no other mapping
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _detach_result(tensor: Tensor) -> Tensor:
    """Return a tensor that is no result of a computation, which could not be copied."""
    return tensor if tensor.is_leaf else tensor.detach()


def _require_cpu(weights: Sequence[Tensor]) -> None:
    """NotAModel if weights lie on another device than the CPU."""
    if devices := {tensor.device.type for tensor in weights} - {"cpu", "meta"}:
        raise NotAModel(
            f"the model lies on {', '.join(sorted(devices))}: let the factory leave it on the CPU"
        )


def assert_loss(subject: ModelUnderTest) -> None:
    """NotAModel if the factory's loss raises, is not one number, or depends on no weight."""
    if not subject.has_loss:
        return
    try:
        outputs = subject.outputs()
    except Exception:  # noqa: BLE001 - that is an answer
        return

    with raising_not_a_model("the loss does not run with these outputs on the CPU"):
        loss = subject.loss(outputs)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a {type(loss).__name__}"
        if isinstance(loss, Tensor):
            what = f"a tensor of {tuple(loss.shape)}"
        raise NotAModel(f"the loss gives {what}: let it return one number, such as loss.mean()")
    if not loss.requires_grad and any(p.requires_grad for p in subject.model.parameters()):
        raise NotAModel(
            "the loss depends on no weight (is something detached?): fix it, or leave it out"
        )
