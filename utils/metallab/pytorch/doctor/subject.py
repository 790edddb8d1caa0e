"""The model that is examined, with its inputs and its loss, on a device, in other formats and batches."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metallab.pytorch.blame import mean_square
from metallab.pytorch.copies import copied, mapped, tensors_in
from metallab.pytorch.dispatch import explain
from metallab.pytorch.doctor.answer import NotAModel

RETURNS = "(model, inputs) or (model, inputs, loss)"
DOES_NOT_RUN = "the model does not run with its inputs on the CPU"
NARROWED = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def narrowed(tensor: Tensor) -> Tensor:
    """Return a tensor in a dtype that an Apple GPU has: float32 in place of float64."""
    return tensor.to(NARROWED.get(tensor.dtype, tensor.dtype))


class Loss:
    """A loss function that computes where the model's outputs are.

    Its own tensors are copied there: those of a module, and those in a function's closure, such as targets.
    """

    def __init__(self, function: Callable[[Any], Tensor], change: Callable[[Tensor], Tensor] = lambda t: t) -> None:
        self.function, self.change = function, change
        self.cells = [cell for cell in getattr(function, "__closure__", None) or () if _holds_tensors(cell)]
        self.held = function if isinstance(function, nn.Module) else [cell.cell_contents for cell in self.cells]
        self._there: dict[Any, Any] = {}  # copies, by device

    def __call__(self, outputs: Any) -> Tensor:
        """Return the loss, one number."""
        places = ["meta" if tensor.is_meta else tensor.device for tensor in tensors_in(outputs)]
        place = next((each for each in places if str(each) != "cpu"), torch.device("cpu"))
        if place not in self._there:
            self._there[place] = mapped(
                lambda tensor: self.change(tensor.detach()).to(place),
                self.held,
                lambda module: _cast(copied(module), self.change).to(place),
            )
        if isinstance(self.function, nn.Module):
            return self._there[place](outputs)
        for cell, held in zip(self.cells, self._there[place], strict=True):
            cell.cell_contents = held
        return self.function(outputs)


def _cast(model: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = change(tensor.data)
    return model


def _holds_tensors(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, nn.Module) or bool(tensors_in(cell.cell_contents))
    except ValueError:  # no value yet
        return False


@dataclass
class Subject:
    """A model with its inputs and its loss."""

    model: nn.Module
    loss: Loss
    inputs: tuple[Any, ...]
    named: dict[str, Any]
    package: str
    """Of the factory."""

    @property
    def has_loss(self) -> bool:
        """True if the factory returned a loss."""
        return self.loss.function is not mean_square

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> Subject:
        """Return the same model with each tensor among the inputs changed."""
        inputs, named = mapped(change, (self.inputs, self.named))
        return replace(self, inputs=inputs, named=named)

    def copy(self) -> Subject:
        """Return a copy of the model with the same inputs."""
        return replace(self, model=copied(self.model))

    def to(self, device: torch.device | str) -> Subject:
        """Return a copy on a device; this one stays where it is."""
        there = self.with_inputs(lambda tensor: tensor.detach().to(device))
        return replace(there, model=copied(self.model).to(device))

    def cast(self, change: Callable[[Tensor], Tensor]) -> Subject:
        """Return a copy with each weight, buffer and input changed."""
        return replace(self.with_inputs(change), model=_cast(copied(self.model), change))

    def without_float64(self) -> Subject:
        """Return a copy in float32; this one if it has no float64."""
        losses = self.loss.held if isinstance(self.loss.held, list) else [self.loss.held]
        modules = [self.model, *(each for each in losses if isinstance(each, nn.Module))]
        held = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        if not any(t.dtype in NARROWED for t in (*held, *tensors_in((self.inputs, self.named, self.loss.held)))):
            return self
        return replace(self.cast(narrowed), loss=Loss(self.loss.function, narrowed))

    def outputs(self) -> Any:
        """Call the model in its current mode."""
        return self.model(*self.inputs, **self.named)

    def value(self) -> Tensor:
        """Return the loss of the outputs."""
        return self.loss(self.outputs())

    @property
    def trains(self) -> bool:
        """True if the loss has a gradient."""
        return self.value().requires_grad

    def inference(self) -> Callable[[], Any]:
        """Return a function that computes the outputs without gradients, in evaluation mode."""
        model = copied(self.model).eval()

        def infer() -> Any:
            with torch.no_grad():
                return model(*self.inputs, **self.named)

        return infer

    def training_step(self) -> Callable[[], Tensor]:
        """Return a function that makes one step of SGD on a copy; the rate is 0, so each step is the same work."""
        there = self.copy()
        optimizer = torch.optim.SGD(there.model.parameters(), lr=0.0)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = there.value()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def without_gradient(self) -> list[str]:
        """Return the names of trainable weights that get no gradient; none if nothing can be trained."""
        there = self.copy()
        loss = there.value()
        if not loss.requires_grad:
            return []
        loss.backward()
        return [name for name, weight in there.model.named_parameters() if weight.requires_grad and weight.grad is None]

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
            batches = (1, self.batch, 2 * self.batch)
            first, once, twice = (_rows(self.with_batch(rows).inference()()) for rows in batches)
        except Exception:  # noqa: BLE001 - a model may raise anything for another batch
            return False
        larger = [self.batch * rows for rows in first] == once and twice == [2 * rows for rows in once]
        return bool(once) and larger


def _rows(outputs: Any) -> list[int]:
    return [len(t) if t.dim() else 0 for t in tensors_in(outputs)]


def made(factory: str) -> Subject:
    """Call ``package.module:factory``. NotAModel if its result cannot be examined."""
    module, _, name = factory.partition(":")
    if not module or not name or module.endswith(".py") or os.sep in module:
        raise NotAModel(f"{factory!r} names no factory: write package.module:factory")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise NotAModel(f"{module} cannot be imported ({explain(error)})") from error
    if not callable(function):
        raise NotAModel(f"{module} has no function {name}: name one, package.module:factory")
    try:
        result = function()
    except (Exception, SystemExit) as error:
        raise NotAModel(f"{factory} raised {explain(error)}: it takes nothing and returns {RETURNS}") from error
    return checked(result, factory)


def checked(result: Any, factory: str) -> Subject:
    """Return a factory's result as a subject. NotAModel if it is none."""
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not isinstance(result[0], nn.Module):
        kinds = ", ".join(type(part).__name__ for part in (result if isinstance(result, tuple) else (result,)))
        raise NotAModel(f"{factory} returns {kinds}: let it return {RETURNS} with an nn.Module")
    model, inputs, loss = (*result, None)[:3]
    if loss is not None and not callable(loss):
        raise NotAModel(f"{factory} returns a {type(loss).__name__} as the loss: give a function of the output")
    named = dict(inputs) if isinstance(inputs, Mapping) else {}  # PyTorch traverses no other mapping
    plain = () if named else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    plain, named = mapped(lambda tensor: tensor if tensor.is_leaf else tensor.detach(), (plain, named))
    weights = (*model.parameters(), *model.buffers())
    if devices := {t.device.type for t in weights} - {"cpu", "meta"}:
        raise NotAModel(f"the model lies on {', '.join(sorted(devices))}: let the factory leave it on the CPU")
    if not tensors_in((plain, named)):
        raise NotAModel(f"{factory} gives no tensor among the inputs: let it return (model, a tuple of inputs)")
    if any(map(is_lazy, weights)):  # its first call gives the weights their sizes
        try:
            with torch.no_grad():
                model(*plain, **named)
        except Exception as error:
            raise NotAModel(f"{DOES_NOT_RUN}: {explain(error)}") from error
    return Subject(model, Loss(loss or mean_square), plain, named, package=factory.partition(":")[0].partition(".")[0])


def assert_loss(subject: Subject) -> None:
    """NotAModel if the loss raises, is not one number, or depends on no weight."""
    try:
        outputs = subject.outputs()
    except Exception:  # noqa: BLE001 - that is an answer
        return
    try:
        loss = subject.loss(outputs)
    except Exception as error:
        if not subject.has_loss:  # the mean square, which not all outputs have
            return
        raise NotAModel(f"the loss does not run with these outputs on the CPU: {explain(error)}") from error
    what = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise NotAModel(f"the loss gives {what}: let it return one number, such as loss.mean()")
    if subject.has_loss and not loss.requires_grad and any(p.requires_grad for p in subject.model.parameters()):
        raise NotAModel("the loss depends on no weight (is something detached?): fix it, or leave it out")
