"""The model that is examined: made by a factory, checked, and run on a device, with its loss and with other batches."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map_only

from metallab.pytorch import blame
from metallab.pytorch.copies import copied, mapped, tensors_in
from metallab.pytorch.dispatch import explain

RETURNS = "(model, inputs) or (model, inputs, loss)"
"""What a factory has to."""
DOES_NOT_RUN = "the model does not run with its inputs on the CPU"
NARROWED = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class NotAModel(ValueError):
    """What a factory made cannot be examined; the message says what it has to make."""


class WithLoss(nn.Module):
    """A model and its loss as one module, which moves together.

    Tensors that the loss has around it, such as targets, be it in a dict, are its buffers, so that they are where the
    outputs are.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any], Tensor] | None) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.loss = loss or blame.mean_square
        cells = [] if isinstance(loss, nn.Module) else getattr(loss, "__closure__", None) or ()
        self.cells = _Shared(cell for cell in cells if _tensors_of(cell))
        for number, tensor in enumerate(tensor for cell in self.cells for tensor in _tensors_of(cell)):
            self.register_buffer(f"around{number}", tensor)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The loss, one number."""
        return self.loss_of(self.model(*inputs, **named))

    def loss_of(self, outputs: Any) -> Tensor:
        """The loss of what the model gives."""
        numbers = itertools.count()
        for cell in self.cells:
            around = tree_map_only(Tensor, lambda _: getattr(self, f"around{next(numbers)}"), cell.cell_contents)
            cell.cell_contents = around
        return self.loss(outputs)


class _Shared(list):
    """Cells of a function, which a copy of the module shares, as it shares the function."""

    def __deepcopy__(self, memo: dict) -> _Shared:
        return self


def _tensors_of(cell: Any) -> list[Tensor]:
    try:
        return [leaf for leaf in tree_leaves(cell.cell_contents) if isinstance(leaf, Tensor)]
    except ValueError:  # a name that has no value yet
        return []


@dataclass
class Subject:
    """A model with its inputs and its loss, on the CPU at first."""

    whole: WithLoss
    inputs: tuple[Any, ...]
    named: dict[str, Any]
    package: str
    """Which has the factory."""

    @property
    def model(self) -> nn.Module:
        """Without its loss."""
        return self.whole.model

    @property
    def has_loss(self) -> bool:
        """Whether the factory gave one."""
        return self.whole.loss is not blame.mean_square

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    @property
    def arguments(self) -> tuple[Any, ...] | dict[str, Any]:
        """The inputs, as `blame.find` takes them."""
        return self.named or self.inputs

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> Subject:
        """The same model with each tensor among the inputs changed."""
        inputs, named = mapped(change, (self.inputs, self.named))
        return replace(self, inputs=inputs, named=named)

    def to(self, device: torch.device | str) -> Subject:
        """A copy on a device; this one stays where it is."""
        there = self.with_inputs(lambda tensor: tensor.detach().to(device))
        return replace(there, whole=copied(self.whole).to(device))

    def cast(self, change: Callable[[Tensor], Tensor]) -> Subject:
        """A copy with each weight, buffer and input changed."""
        whole = copied(self.whole)
        for tensor in (*whole.parameters(), *whole.buffers()):
            tensor.data = change(tensor.data)
        return replace(self.with_inputs(change), whole=whole)

    def without_float64(self) -> Subject:
        """A copy with float32 in its place, which an Apple GPU has; this one where it has no float64."""
        held = (*self.whole.parameters(), *self.whole.buffers(), *tensors_in((self.inputs, self.named)))
        if not any(each.dtype in NARROWED for each in held):
            return self
        return self.cast(lambda tensor: tensor.to(NARROWED.get(tensor.dtype, tensor.dtype)))

    def outputs(self) -> Any:
        """Of the model as it is."""
        return self.model(*self.inputs, **self.named)

    def value(self) -> Tensor:
        """Of the loss."""
        return self.whole(*self.inputs, **self.named)

    @property
    def trains(self) -> bool:
        """Whether the loss has a gradient."""
        return self.value().requires_grad

    def inference(self) -> Callable[[], Any]:
        """A function that computes the outputs, without gradients, on a copy in evaluation mode."""
        model = copied(self.model).eval()

        def infer() -> Any:
            with torch.no_grad():
                return model(*self.inputs, **self.named)

        return infer

    def training_step(self) -> Callable[[], Tensor]:
        """A function that makes one step of SGD with a rate of 0, on a copy in its own mode, and returns the loss.

        Nothing is learned, so that each step is the same work.
        """
        whole = copied(self.whole)
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.0)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = whole(*self.inputs, **self.named)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    @property
    def batch(self) -> int:
        """Rows of the first input that is a tensor; 0 if there is none, as where it is a list of pictures."""
        given = (*self.inputs, *self.named.values())
        return next((len(each) for each in given if isinstance(each, Tensor) and each.dim()), 0)

    def with_batch(self, rows: int) -> Subject:
        """The same model with so many rows in each input that has `batch` of them, repeated or left out."""
        batch = self.batch

        def change(tensor: Tensor) -> Tensor:
            if not tensor.dim() or len(tensor) != batch:
                return tensor
            return tensor[torch.arange(rows, device=tensor.device) % batch]

        return self.with_inputs(change)

    @property
    def scales(self) -> bool:
        """Whether one row among the inputs, and twice the rows, make as many more or fewer rows of each output."""
        if not self.batch:
            return False
        try:
            batches = (1, self.batch, 2 * self.batch)
            first, once, twice = (_rows(self.with_batch(rows).inference()()) for rows in batches)
        except Exception:  # noqa: BLE001 - whatever a model raises that takes no other batch
            return False
        larger = [self.batch * rows for rows in first] == once and twice == [2 * rows for rows in once]
        return bool(once) and larger


def _rows(outputs: Any) -> list[int]:
    return [len(t) if t.dim() else 0 for t in tensors_in(outputs)]


def made(factory: str) -> Subject:
    """What ``package.module:factory`` makes; NotAModel, with what to do, if that cannot be examined."""
    module, _, name = factory.partition(":")
    if not module or not name:
        raise NotAModel(f"{factory!r} names no factory: write package.module:factory")
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if module.endswith(".py") or os.sep in module:
            raise NotAModel(f"{module} is a file: {_module_in_words(module)}:{name}") from error
        raise NotAModel(f"{module} cannot be imported ({explain(error)})") from error
    if not callable(function := getattr(imported, name, None)):
        raise NotAModel(f"{module} has no function {name}: name one, package.module:factory")
    if wanted := _wanted(function):
        raise NotAModel(f"{factory} wants {', '.join(wanted)}: a factory takes nothing and returns {RETURNS}")
    try:
        result = function()
    except SystemExit as error:
        raise NotAModel(f"{factory} ends the process ({explain(error)}): let it return {RETURNS}") from error
    except Exception as error:
        raise NotAModel(f"{factory} raised {explain(error)}") from error
    return checked(result, factory)


def _module_in_words(file: str) -> str:
    """How to name the module that a file is, which is looked for from the current folder on."""
    *folders, name = Path(os.path.relpath(file)).parts
    module = name.removesuffix(".py")
    if os.pardir in folders:
        return f"go to its folder and write {module}"
    return f"write {'.'.join([*folders, module])}"


def _wanted(function: Callable) -> list[str]:
    """The arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some that are written in C nobody knows
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in several]


def checked(result: Any, factory: str) -> Subject:
    """The subject that a factory's result is; NotAModel, with what to do, if it is none."""
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise NotAModel(f"{factory} returns {what}: let it return {RETURNS}")
    model, inputs, loss = (*result, None)[:3]
    if not isinstance(model, nn.Module):
        raise NotAModel(f"{factory} returns a {type(model).__name__} where the model belongs: give an nn.Module")
    if loss is not None and not callable(loss):
        raise NotAModel(f"{factory} returns a {type(loss).__name__} as the loss: give a function of the output")
    named = dict(inputs) if isinstance(inputs, Mapping) else {}  # PyTorch goes through no other mapping
    plain = () if named else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    plain, named = mapped(lambda tensor: tensor if tensor.is_leaf else tensor.detach(), (plain, named))
    devices = {t.device.type for t in (*model.parameters(), *model.buffers()) if t.device.type != "meta"}
    if devices - {"cpu"}:
        raise NotAModel(f"the model lies on {', '.join(sorted(devices))}: let the factory leave it on the CPU")
    if not tensors_in((plain, named)):
        raise NotAModel(f"{factory} gives no tensor among the inputs: let it return (model, a tuple of inputs)")
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):  # its first call gives the weights their sizes
        try:
            with torch.no_grad():
                model(*plain, **named)
        except Exception as error:
            raise NotAModel(f"{DOES_NOT_RUN}: {explain(error)}") from error
    return Subject(WithLoss(model, loss), plain, named, package=factory.partition(":")[0].partition(".")[0])
