"""Copies of models and of what they are given: on a device, or with each tensor changed, however deep it lies."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

ATOMIC = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
"""What is shared by a value and its copy, as `copy.deepcopy` shares it (but for methods)."""
NARROWED = {torch.float64: torch.float32, torch.complex128: torch.complex64}
"""What stands for the dtypes that no Apple GPU has."""


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
        # a scripted module is copied in C++, where autograd sees the copying: its copied weights are results
        if not weight.is_leaf:
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
        """Return what stands in the copy for a value that PyTorch's pytree does not go into.

        Tensors and modules are changed, and what may hold some is copied. Numbers, texts, functions and classes are
        shared by the value and its copy.
        """
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
            # known before what it holds is copied, which may hold the object again
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


def list_all_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value, however deep they lie, those of modules included.

    `map_tensors` goes through a value to copy it. The copy is not used: both functions hand back what they are given,
    and remember its tensors.
    """
    tensors: list[Tensor] = []

    def remember(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    def remember_weights(module: nn.Module) -> nn.Module:
        tensors.extend((*module.parameters(), *module.buffers()))
        return module

    map_tensors(remember, value, remember_weights)
    return tensors


def has_float64(value: Any) -> bool:
    """Return True if a tensor in a value, of modules as well, has a dtype that no Apple GPU has."""
    return any(tensor.dtype in NARROWED for tensor in list_all_tensors(value))


# ---- a function with tensors around it -----------------------------------------------------------------------------


def open_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, such as a loss, in whose surroundings `map_tensors` finds tensors, such as targets.

    It goes through the arguments of a `functools.partial`, so what the function has around it become arguments: the
    contents of its closure, those variables of its module that it names and that hold tensors, and the object whose
    method it is. A function with none of them is returned as it is; what a function holds that this one calls is not
    found.
    """
    if isinstance(function, types.MethodType):
        return functools.partial(open_function(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function

    contents = [cell.cell_contents for cell in function.__closure__ or ()]
    variables = {
        name: function.__globals__[name]
        for name in function.__code__.co_names
        if _holds_tensors(function.__globals__.get(name))
    }
    if not contents and not variables:
        return function
    return functools.partial(_call_with_surroundings, function, contents, variables)


def _holds_tensors(value: Any) -> bool:
    """Return True for a tensor, a module such as a criterion with weights, and a list, tuple or dict with one."""
    if isinstance(value, list | tuple):
        return any(map(_holds_tensors, value))
    if isinstance(value, dict):
        return any(map(_holds_tensors, value.values()))
    return isinstance(value, Tensor | nn.Module)


def _call_with_surroundings(
    function: types.FunctionType,
    contents: list[Any],
    variables: dict[str, Any],
    *arguments: Any,
) -> Any:
    """Call a function with another closure and other variables of its module, such as targets elsewhere."""
    changed = types.FunctionType(
        function.__code__,
        # the module's own dict, unless something in it is another: a function may count its calls there
        {**function.__globals__, **variables} if variables else function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(map(types.CellType, contents)),
    )
    changed.__kwdefaults__ = function.__kwdefaults__
    return changed(*arguments)


def narrow_tensors(function: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
    """Return a copy of a loss with float32 in place of float64 in what it holds, and complex64 of complex128.

    Parameters
    ----------
    function
        One that `open_function` has opened.
    model
        The model whose loss it is. Where the loss holds it, as one that adds the size of the weights may, the copy
        holds this model itself. Other modules that have such a dtype are copied.
    """
    # `copy.deepcopy` takes what is in its memo for the copy, so the model and its parts stand for themselves
    copies: dict[int, Any] = {id(module): module for module in model.modules()}

    def narrow(tensor: Tensor) -> Tensor:
        if tensor.dtype not in NARROWED:
            return tensor
        narrowed = tensor.detach().to(NARROWED[tensor.dtype])
        return narrowed.requires_grad_(tensor.requires_grad)

    def narrow_module(module: nn.Module) -> nn.Module:
        if not has_float64(module):
            return module
        return copy_model(module, copies)._apply(narrow)

    narrowed: Callable[..., Any] = map_tensors(narrow, function, narrow_module)
    return narrowed
