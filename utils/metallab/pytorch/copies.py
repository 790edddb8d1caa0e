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


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a model, also of one that keeps results, as `torch.nn.utils.weight_norm` does.

    Tensors that are results of others are detached in the copy: ``deepcopy`` refuses them. ``memo`` is ``deepcopy``'s.
    """
    memo = {} if memo is None else memo
    for tensor in tensors_in([vars(module) for module in model.modules()]):
        if not tensor.is_leaf and id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    made = copy.deepcopy(model, memo)
    for weight in made.parameters():
        if not weight.is_leaf:  # of a scripted module, which is copied in C++
            weight.detach_().requires_grad_()
    return made


def mapped(do: Callable, value: Any, do_module: Callable = lambda module: module) -> Any:
    """Return a copy of a value, with its containers, dataclasses and objects, in which ``do`` replaces each tensor."""
    objects: dict[int, Any] = {}

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return do(leaf)
        if isinstance(leaf, nn.Module):
            return do_module(leaf)
        if isinstance(leaf, set | frozenset):
            return type(leaf)(map(one, leaf))
        if isinstance(leaf, functools.partial):
            function, arguments, named = tree_map(one, (leaf.func, leaf.args, leaf.keywords))
            return functools.partial(function, *arguments, **named)
        slots = [
            name for each in type(leaf).__mro__ for name in _slots(each) if hasattr(leaf, name)
        ]
        of_containers = isinstance(leaf, dict | list)  # subclasses, which pytree does not know
        if isinstance(leaf, ATOMIC) or not (of_containers or slots or hasattr(leaf, "__dict__")):
            return leaf
        if id(leaf) not in objects:
            try:
                objects[id(leaf)] = made = copy.copy(leaf)
                if of_containers:
                    for key, held in list(
                        leaf.items() if isinstance(leaf, dict) else enumerate(leaf)
                    ):
                        made[key] = tree_map(one, held)
                for name in [*slots, *getattr(leaf, "__dict__", ())]:
                    object.__setattr__(made, name, tree_map(one, getattr(leaf, name)))
            except Exception:  # noqa: BLE001 - what cannot be copied, such as a lock, is given as it is
                objects[id(leaf)] = leaf
        return objects[id(leaf)]

    return tree_map(one, value)


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return tuple(
        name
        for name in ((names,) if isinstance(names, str) else names)
        if not name.startswith("__")
    )


def tensors_in(value: Any) -> list[Tensor]:
    """Return every tensor in a value, however deep it lies, but those of modules."""
    found: list[Tensor] = []
    mapped(lambda tensor: found.append(tensor) or tensor, value)
    return found
