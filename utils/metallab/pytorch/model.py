"""A model of the reader's, with its inputs and its loss: load it, move it, cast it, and give it another batch."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metallab.pytorch.copies import (
    NARROWED,
    copy_model,
    has_float64,
    list_all_tensors,
    map_tensors,
    open_function,
    tensors_in,
)
from metallab.pytorch.dispatch import call_loss, explain
from metallab.pytorch.divergence import backward, mean_square
from metallab.pytorch.errors import NotAModel

RETURNS = "(model, inputs) or (model, inputs, loss)"
DOES_NOT_RUN = "the model does not run with its inputs on the CPU"
NEEDS_GRADIENTS = (
    "the model runs with gradients alone, and inference is asked about under torch.no_grad(), where it raises {error}: "
    "write `with torch.enable_grad():` around what computes gradients in its forward"
)
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
        inputs, named = map_tensors(change, (self.inputs, self.named))
        return replace(self, inputs=inputs, named=named)

    def with_batch(self, rows: int) -> ModelUnderTest:
        """Return the model with another number of rows in each input that has `batch` of them.

        A smaller batch has the first rows, and a larger one repeats them, so that its numbers are such as the model
        expects. Other inputs stay as they are.
        """
        batch = self.batch

        def repeat_rows(tensor: Tensor) -> Tensor:
            if not tensor.dim() or len(tensor) != batch:
                return tensor
            return tensor[torch.arange(rows, device=tensor.device) % batch]

        return self.with_inputs(repeat_rows)

    def copy(self) -> ModelUnderTest:
        """Return a deep copy of the model with the same inputs and loss, so that its weights and mode may be changed.

        A loss that holds the model, for example to add a penalty on its weights, holds the copy then. Other modules and
        tensors that a loss holds, such as targets, are shared.
        """
        copies: dict[int, Any] = {}  # by identity of what was copied, as `copy.deepcopy` keeps them
        model = copy_model(self.model, copies)

        def find_copy(module: nn.Module) -> nn.Module:
            return copies.get(id(module), module)

        loss = map_tensors(lambda tensor: tensor, self.loss, find_copy)
        return replace(self, model=model, loss=loss)

    def to(self, device: torch.device | str) -> ModelUnderTest:
        """Return a copy on a device; this one stays where it is."""
        return self.cast(lambda tensor: tensor.to(device))

    def cast(self, change: Callable[[Tensor], Tensor]) -> ModelUnderTest:
        """Return a copy with each weight, buffer, input and tensor of the loss changed; this one stays as it is.

        Modules that the loss holds are changed as well; one that holds the model holds the copy then. The model's
        weights go through ``change`` twice there, so the second time it must change nothing, as a move or a new dtype
        does not.
        """
        # shared, so that the model is copied once, also where the loss holds it
        copies: dict[int, Any] = {}

        def change_module(module: nn.Module) -> nn.Module:
            return copy_model(module, copies)._apply(change)

        def change_tensor(tensor: Tensor) -> Tensor:
            # else an input that requires a gradient would become a result of this change, which has a graph and no
            # `.grad`, and cannot be copied again
            return change(tensor.detach()).requires_grad_(tensor.requires_grad)

        model, loss, inputs, named = map_tensors(
            change_tensor, (self.model, self.loss, self.inputs, self.named), change_module
        )
        return replace(self, model=model, loss=loss, inputs=inputs, named=named)

    def without_float64(self) -> ModelUnderTest:
        """Return a copy with float32 in place of float64, and complex64 of complex128; this one if it has neither."""
        if not has_float64((self.model, self.loss, self.inputs, self.named)):
            return self
        return self.cast(lambda tensor: tensor.to(NARROWED.get(tensor.dtype, tensor.dtype)))

    # ---- what it computes ----------------------------------------------------------------------------------------

    def outputs(self) -> Any:
        """Call the model in its current mode."""
        return self.model(*self.inputs, **self.named)

    def value(self) -> Tensor:
        """Return the loss of the outputs."""
        value: Tensor = call_loss(self.loss, self.outputs())
        return value

    def inference(self) -> Callable[[], Any]:
        """Return a function that computes the outputs of a copy without gradients, in evaluation mode.

        The function raises what the model raises.
        """
        copy = self.copy()
        copy.model.eval()
        return torch.no_grad()(copy.outputs)

    def gradients(self, evaluating: bool = False) -> dict[str, Tensor]:
        """Compute the gradients of the loss on a copy, whose weights are this one's.

        Parameters
        ----------
        evaluating
            Compute them in evaluation mode, without dropout; by default in the model's own mode.

        Returns
        -------
        dict
            By name, those of the weights that get one; empty if the loss depends on no weight.

        Raises
        ------
        Exception
            Whatever the model or its loss raises.
        """
        copy = self.copy()  # so that this one's `.grad` stays as it is
        if evaluating:
            copy.model.eval()
        backward(copy.value())

        return {
            name: weight.grad
            for name, weight in copy.model.named_parameters()
            if weight.grad is not None
        }

    def training_step(self) -> Callable[[], Tensor]:
        """Return a function that makes one step of SGD on a copy, and returns the loss.

        The learning rate is 0, so that the weights stay and each step is the same work. The function raises what the
        model raises, and RuntimeError if the loss has no gradient (see `can_train`).
        """
        copy = self.copy()

        def step() -> Tensor:
            copy.model.zero_grad(set_to_none=True)
            loss = copy.value()
            loss.backward()

            # by hand: `torch.optim` loads PyTorch's compiler, which takes seconds
            with torch.no_grad():
                for weight in copy.model.parameters():
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
        """True if the loss has a gradient; also if the model raises, which whoever runs it then sees."""
        try:
            return self.value().requires_grad
        except Exception:  # noqa: BLE001 - a model may raise anything
            return True

    @property
    def batch(self) -> int:
        """Rows of the first tensor among the inputs; 0 if there is none."""
        given = (*self.inputs, *self.named.values())
        rows = (len(each) for each in given if isinstance(each, Tensor) and each.dim())
        return next(rows, 0)

    @property
    def can_change_batch(self) -> bool:
        """True if the model runs with one row and with twice its batch, and each output has rows in proportion."""
        if not self.batch:
            return False

        doubled = 2 * self.batch
        try:
            rows_of_one = _count_rows(self.with_batch(1).inference()())
            rows_of_doubled = _count_rows(self.with_batch(doubled).inference()())
        except Exception:  # noqa: BLE001 - a model may raise anything for another batch
            return False

        # Two batches tell an output whose rows follow from one that always has as many. An output may have several rows
        # for each of the inputs, such as one for each word of a sentence.
        expected = [doubled * rows for rows in rows_of_one]
        return bool(rows_of_one) and rows_of_doubled == expected


def _count_rows(outputs: Any) -> list[int]:
    """Return the number of rows of each tensor among outputs; 0 of one that is a single number."""
    return [len(tensor) if tensor.dim() else 0 for tensor in tensors_in(outputs)]


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
    """Import a factory and call it, and return the model that it makes.

    Parameters
    ----------
    factory
        ``package.module:factory``, a function without arguments.

    Raises
    ------
    NotAModel
        If the name is no such name, the module cannot be imported, it has no such function, the function raises, or its
        result is none that `as_model` takes. The message says what to do.
    """
    module, _, name = factory.partition(":")
    if not module or not name or module.endswith(".py") or os.sep in module:
        example = module.removesuffix(".py").replace(os.sep, ".") or "package.module"
        raise NotAModel(
            f"{factory!r} names no factory: write {example}:{name or 'NAME'}, with the name of a function in it"
        )

    torch.set_default_dtype(torch.float32)  # another script of this process may have changed it
    with raising_not_a_model(f"{module} cannot be imported"):
        function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise NotAModel(f"{module} has no function {name}: name one, package.module:factory")

    with raising_not_a_model(f"{factory} must take no argument and return {RETURNS}; it raised"):
        result = function()
    return as_model(result, factory)


def as_model(result: Any, factory: str) -> ModelUnderTest:
    """Return a factory's result as a model.

    Parameters
    ----------
    result
        ``(model, inputs)`` or ``(model, inputs, loss)``; without a loss the mean square of the outputs is taken.
    factory
        What made it, for messages.

    Raises
    ------
    NotAModel
        If it is something else, the model's weights lie on another device, there is no tensor among the inputs, or a
        model with lazy layers does not run. Any other model is not run here.
    """
    model, inputs, loss = _split_result(result, factory)
    plain, named = _split_inputs(inputs)
    # A loss function is opened for `cast`, which changes the tensors around it, such as targets, with the model's.
    # Modules among them stay as they are here, since `map_tensors` leaves them alone.
    loss, plain, named = map_tensors(
        _detach_if_result, (open_function(loss or mean_square), plain, named)
    )

    weights = list_all_tensors(model)
    _require_cpu(weights)
    if not tensors_in((plain, named)):
        raise NotAModel(
            f"{factory} gives no tensor among the inputs: let it return (model, a tuple of inputs)"
        )

    # the first call of a model with lazy layers gives the weights their sizes, without which they cannot be copied
    if any(map(is_lazy, weights)):
        with raising_not_a_model(DOES_NOT_RUN), torch.no_grad():
            model(*plain, **named)
    package = factory.partition(":")[0].partition(".")[0]
    return ModelUnderTest(model, loss, plain, named, package)


def _split_result(result: Any, factory: str) -> tuple[nn.Module, Any, Loss | None]:
    """Return the parts of a factory's result.

    Returns
    -------
    model : nn.Module
        A function in place of one is made a module without weights.
    inputs
        As the factory gave them.
    loss : callable or None
        None if the factory gave none.

    Raises
    ------
    NotAModel
        If it is no tuple of two or three, if model or loss cannot be called, or if one of them is a class in place of
        an object of it. The message says what it is.
    """
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not callable(result[0]):
        parts = result if isinstance(result, tuple) else (result,)
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise NotAModel(
            f"{factory} returns {kinds}: let it return {RETURNS} with an nn.Module or a function"
        )

    model, inputs, loss = (*result, None)[:3]  # None is the loss where there are two
    if isinstance(model, type):  # callable as well, and would be taken for a function
        name = model.__name__
        raise NotAModel(f"{factory} returns the class {name}: return an object, {name}(...)")
    if isinstance(loss, type):
        raise NotAModel(
            f"{factory} returns the class {loss.__name__} as the loss: give a function of the output"
        )
    if loss is not None and not callable(loss):
        raise NotAModel(
            f"{factory} returns a {type(loss).__name__} as the loss: give a function of the output"
        )

    if not isinstance(model, nn.Module):
        # a class of the function's own name, which the report then names
        name = getattr(model, "__name__", type(model).__name__)
        model = type(name, (Function,), {})(model)
    return model, inputs, loss


def _split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs by place and those by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)  # PyTorch traverses no other mapping
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _detach_if_result(tensor: Tensor) -> Tensor:
    """Return a tensor detached if it is the result of a computation, since PyTorch cannot copy those; else as it is."""
    return tensor if tensor.is_leaf else tensor.detach()


def _require_cpu(weights: Sequence[Tensor]) -> None:
    """Raise NotAModel if weights lie on another device than the CPU; on ``meta`` they are lazy or have no numbers."""
    if devices := {tensor.device.type for tensor in weights} - {"cpu", "meta"}:
        raise NotAModel(
            f"the model lies on {', '.join(sorted(devices))}: let the factory leave it on the CPU"
        )


def assert_loss(subject: ModelUnderTest) -> None:
    """Check the loss that a factory gave, if it gave one, with the outputs of the model on the CPU.

    A model that raises in the mode that it has, training or evaluation, passes: the doctor's answers tell that.

    Raises
    ------
    NotAModel
        If the loss raises, is no tensor of one number, or has no gradient, though there are weights to train.
    """
    if not subject.has_loss:
        return
    try:
        outputs = subject.outputs()
    except Exception:  # noqa: BLE001 - a model may raise anything
        return

    with raising_not_a_model("the loss does not run with these outputs on the CPU"):
        loss = subject.loss(outputs)
    if not isinstance(loss, Tensor):
        raise NotAModel(
            f"the loss gives a {type(loss).__name__}, which has no gradient: let it return a tensor of one number, "
            "such as output.mean(), without .item() or float()"
        )
    if loss.numel() != 1:
        raise NotAModel(
            f"the loss gives a tensor of {tuple(loss.shape)}: let it return one number, such as loss.mean()"
        )

    can_learn = any(weight.requires_grad for weight in subject.model.parameters())
    if can_learn and not loss.requires_grad:
        raise NotAModel(
            "the loss depends on no weight (is something detached?): fix it, or leave it out"
        )
