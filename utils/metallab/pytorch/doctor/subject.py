"""The model that is examined, with its inputs and its loss, on a device, in other formats and batches."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metallab.pytorch.copies import copied, mapped, tensors_in
from metallab.pytorch.dispatch import explain
from metallab.pytorch.divergence import backward, mean_square
from metallab.pytorch.doctor.answer import NotAModel

RETURNS = "(model, inputs) or (model, inputs, loss)"
DOES_NOT_RUN = "the model does not run with its inputs on the CPU"
NARROWED = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class Function(nn.Module):
    """A function of tensors as a module without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the function."""
        return self.function(*inputs, **named)


@dataclass
class Subject:
    """A model with its inputs and its loss."""

    model: nn.Module
    loss: Callable[[Any], Tensor]
    inputs: tuple[Any, ...]
    named: dict[str, Any]
    package: str
    """Of the factory."""

    @property
    def has_loss(self) -> bool:
        """True if the factory returned a loss."""
        return self.loss is not mean_square

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> Subject:
        """Return the same model with each tensor among the inputs changed."""
        inputs, named = mapped(change, (self.inputs, self.named))
        return replace(self, inputs=inputs, named=named)

    def copy(self) -> Subject:
        """Return a copy of the model with the same inputs."""
        return replace(self, model=copied(self.model))

    def to(self, device: torch.device | str) -> Subject:
        """Return a copy on a device; this one stays where it is."""
        return self.cast(lambda tensor: tensor.to(device))

    def cast(self, change: Callable[[Tensor], Tensor]) -> Subject:
        """Return a copy with each weight, buffer, input and tensor of the loss changed."""
        module = lambda module: copied(module)._apply(change)
        parts = self.model, self.loss, self.inputs, self.named
        model, loss, inputs, named = mapped(lambda tensor: change(tensor.detach()), parts, module)
        return replace(self, model=model, loss=loss, inputs=inputs, named=named)

    def without_float64(self) -> Subject:
        """Return a copy in float32; this one if it has no float64."""
        dtypes = {
            tensor.dtype
            for tensor in _all_tensors((self.model, self.loss, self.inputs, self.named))
        }
        return (
            self.cast(lambda t: t.to(NARROWED.get(t.dtype, t.dtype)))
            if dtypes & NARROWED.keys()
            else self
        )

    def outputs(self) -> Any:
        """Call the model in its current mode."""
        return self.model(*self.inputs, **self.named)

    def value(self) -> Tensor:
        """Return the loss of the outputs."""
        return self.loss(self.outputs())

    @property
    def trains(self) -> bool:
        """True if the loss has a gradient; also if the model raises."""
        try:
            return self.value().requires_grad
        except Exception:  # noqa: BLE001 - who asks will see it
            return True

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
            with (
                torch.no_grad()
            ):  # by hand: `torch.optim` loads PyTorch's compiler, which takes seconds
                for weight in (each for each in there.model.parameters() if each.grad is not None):
                    weight.add_(weight.grad, alpha=0.0)
            return loss.detach()

        return step

    @property
    def batch(self) -> int:
        """Rows of the first tensor among the inputs; 0 if there is none."""
        given = (*self.inputs, *self.named.values())
        return next((len(each) for each in given if isinstance(each, Tensor) and each.dim()), 0)

    def with_batch(self, rows: int) -> Subject:
        """Return the model with another number of rows in each input that has `batch` of them."""
        batch = self.batch

        def change(tensor: Tensor) -> Tensor:
            if not tensor.dim() or len(tensor) != batch:
                return tensor
            return tensor[torch.arange(rows, device=tensor.device) % batch]

        return self.with_inputs(change)

    @property
    def scales(self) -> bool:
        """True if the rows of each output follow those of the inputs."""
        if not self.batch:
            return False
        try:
            one, many = (_rows(self.with_batch(rows).inference()()) for rows in (1, 2 * self.batch))
        except Exception:  # noqa: BLE001 - a model may raise anything for another batch
            return False
        return bool(one) and many == [2 * self.batch * rows for rows in one]


def _rows(outputs: Any) -> list[int]:
    return [len(t) if t.dim() else 0 for t in tensors_in(outputs)]


def _all_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value, those of modules included."""
    found: list[Tensor] = []
    in_module = lambda module: found.extend((*module.parameters(), *module.buffers())) or module
    mapped(lambda tensor: found.append(tensor) or tensor, value, in_module)
    return found


def _opened(loss: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """Return a loss function in whose closure `mapped` finds tensors, such as targets."""
    if not isinstance(loss, types.FunctionType) or not loss.__closure__:
        return loss
    return functools.partial(_closed, loss, [cell.cell_contents for cell in loss.__closure__])


def _closed(loss: types.FunctionType, contents: list[Any], outputs: Any) -> Tensor:
    """Call a function with these contents in its closure."""
    cells = tuple(map(types.CellType, contents))
    function = types.FunctionType(
        loss.__code__, loss.__globals__, loss.__name__, loss.__defaults__, cells
    )
    function.__kwdefaults__ = loss.__kwdefaults__
    return function(outputs)


@contextlib.contextmanager
def refusing(words: str) -> Iterator[None]:
    """Turn an exception of the user's code into NotAModel; ``words`` begin its message."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise NotAModel(f"{words}: {explain(error)}") from error


def forget(factory: str) -> None:
    """Import the module of a factory anew the next time: it may have been edited."""
    importlib.invalidate_caches()
    sys.modules.pop(factory.partition(":")[0], None)


def made(factory: str) -> Subject:
    """Call ``package.module:factory``. NotAModel if its result cannot be examined."""
    module, _, name = factory.partition(":")
    if not module or not name or module.endswith(".py") or os.sep in module:
        raise NotAModel(f"{factory!r} names no factory: write package.module:factory")
    torch.set_default_dtype(torch.float32)  # another script of this process may have changed it
    with refusing(f"{module} cannot be imported"):
        function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise NotAModel(f"{module} has no function {name}: name one, package.module:factory")
    with refusing(f"{factory} takes nothing and returns {RETURNS}, and it raised"):
        result = function()
    return checked(result, factory)


def checked(result: Any, factory: str) -> Subject:
    """Return a factory's result as a subject. NotAModel if it is none."""
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not callable(result[0]):
        kinds = ", ".join(
            type(part).__name__ for part in (result if isinstance(result, tuple) else (result,))
        )
        raise NotAModel(
            f"{factory} returns {kinds}: let it return {RETURNS} with an nn.Module or a function"
        )
    model, inputs, loss = (*result, None)[:3]
    if not isinstance(model, nn.Module):
        name = getattr(model, "__name__", type(model).__name__)
        model = type(name, (Function,), {})(model)
    if loss is not None and not callable(loss):
        raise NotAModel(
            f"{factory} returns a {type(loss).__name__} as the loss: give a function of the output"
        )
    named = (
        dict(inputs) if isinstance(inputs, Mapping) else {}
    )  # PyTorch traverses no other mapping
    plain = () if named else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    parts = (_opened(loss or mean_square), plain, named)
    loss, plain, named = mapped(lambda tensor: tensor if tensor.is_leaf else tensor.detach(), parts)
    weights = _all_tensors(model)
    if devices := {tensor.device.type for tensor in weights} - {"cpu", "meta"}:
        raise NotAModel(
            f"the model lies on {', '.join(sorted(devices))}: let the factory leave it on the CPU"
        )
    if not tensors_in((plain, named)):
        raise NotAModel(
            f"{factory} gives no tensor among the inputs: let it return (model, a tuple of inputs)"
        )
    if any(map(is_lazy, weights)):  # its first call gives the weights their sizes
        with refusing(DOES_NOT_RUN), torch.no_grad():
            model(*plain, **named)
    return Subject(model, loss, plain, named, package=factory.partition(":")[0].partition(".")[0])


def assert_loss(subject: Subject) -> None:
    """NotAModel if the factory's loss raises, is not one number, or depends on no weight."""
    if not subject.has_loss:
        return
    try:
        outputs = subject.outputs()
    except Exception:  # noqa: BLE001 - that is an answer
        return
    with refusing("the loss does not run with these outputs on the CPU"):
        loss = subject.loss(outputs)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = (
            f"a tensor of {tuple(loss.shape)}"
            if isinstance(loss, Tensor)
            else f"a {type(loss).__name__}"
        )
        raise NotAModel(f"the loss gives {what}: let it return one number, such as loss.mean()")
    if not loss.requires_grad and any(p.requires_grad for p in subject.model.parameters()):
        raise NotAModel(
            "the loss depends on no weight (is something detached?): fix it, or leave it out"
        )
