"""Copies of models and of what they are given: on a device, or with each tensor changed, however deep it lies."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

ATOMIC = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
"""What is shared by a value and its copy, as `copy.deepcopy` shares it (but for methods)."""


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a model, also of one that keeps results, as `torch.nn.utils.weight_norm` does.

    Parameters
    ----------
    model
        Stays as it is.
    memo
        `copy.deepcopy`'s: by the ``id`` of an object, what stands for it in the copy.

    Returns
    -------
    nn.Module
        Tensors that are results of others are detached in it: ``deepcopy`` refuses them.
    """
    memo = {} if memo is None else memo
    for tensor in tensors_in([vars(module) for module in model.modules()]):
        if not tensor.is_leaf and id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)

    copied: nn.Module = copy.deepcopy(model, memo)
    for weight in copied.parameters():
        if not weight.is_leaf:  # of a scripted module, which is copied in C++
            weight.detach_().requires_grad_()
    return copied


def _keep(module: nn.Module) -> nn.Module:
    """Return a module as it is."""
    return module


def map_tensors(
    change: Callable[[Tensor], Any],
    value: Any,
    change_module: Callable[[nn.Module], Any] = _keep,
) -> Any:
    """Return a copy of a value in which each tensor is changed.

    Parameters
    ----------
    change
        A tensor -> what stands in its place.
    value
        Tensors, and containers, dataclasses, partial functions and other objects that hold some, however deep. What
        cannot be copied, such as a lock, is in the copy as it is.
    change_module
        A module -> what stands in its place; by default itself. A module's own tensors are not looked at.
    """
    return _TensorMap(change, change_module).map(value)


class _TensorMap:
    """Copies a value; an object that the value holds twice is copied once."""

    def __init__(
        self, change: Callable[[Tensor], Any], change_module: Callable[[nn.Module], Any]
    ) -> None:
        self._change = change
        self._change_module = change_module
        self._copies: dict[int, Any] = {}
        """By the ``id`` of an object. Set before its attributes are copied, because they may hold the object."""

    def map(self, value: Any) -> Any:
        """Return a copy of a value; PyTorch's pytree goes through tuples, lists and dicts."""
        return tree_map(self._map_leaf, value)

    def _map_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self._change(leaf)
        if isinstance(leaf, nn.Module):
            return self._change_module(leaf)
        if isinstance(leaf, set | frozenset):
            return type(leaf)(map(self._map_leaf, leaf))
        if isinstance(leaf, functools.partial):
            function, arguments, named = self.map((leaf.func, leaf.args, leaf.keywords))
            return functools.partial(function, *arguments, **named)

        if isinstance(leaf, ATOMIC) or not _holds_something(leaf):
            return leaf
        if id(leaf) not in self._copies:
            self._copies[id(leaf)] = self._copy_object(leaf)
        return self._copies[id(leaf)]

    def _copy_object(self, original: Any) -> Any:
        """Return a copy of an object, or itself where it cannot be copied."""
        try:
            copied = self._copies[id(original)] = copy.copy(original)
            for key, held in _list_items(original):
                copied[key] = self.map(held)
            for name in _list_attributes(original):
                # a frozen dataclass refuses an assignment
                object.__setattr__(copied, name, self.map(getattr(original, name)))
        except Exception:  # noqa: BLE001 - whatever an object of somebody else's raises, such as a lock
            return original
        return copied


def _holds_something(value: Any) -> bool:
    """Return True for an object that may hold others; False for numbers, texts and None."""
    return isinstance(value, dict | list) or hasattr(value, "__dict__") or bool(_list_slots(value))


def _list_items(value: Any) -> list[tuple[Any, Any]]:
    """Return keys and items of a subclass of dict or list, which pytree does not know."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _list_attributes(value: Any) -> list[str]:
    return [*_list_slots(value), *getattr(value, "__dict__", ())]


def _list_slots(value: Any) -> list[str]:
    """Return the names of the attributes that an object has in slots of its classes."""
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [name for name in names if not name.startswith("__") and hasattr(value, name)]


def tensors_in(value: Any) -> list[Tensor]:
    """Return every tensor in a value, however deep it lies, but those of modules."""
    found: list[Tensor] = []

    def remember(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(remember, value)
    return found
