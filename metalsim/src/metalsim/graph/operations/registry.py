"""The table of operations: a selector of MPSGraph, and a function on PyTorch tensors that computes it.

A function's annotations say what each argument of the selector is: a tensor, several, a shape, a number, a data type,
a descriptor. It is called twice: on zeros when the graph is built, which gives the result's shape and type or an error,
and on real values when the graph runs.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Tensors = Sequence[Tensor]
Shape = tuple[int, ...]
"""NSArray of NSNumber."""
AnyShape = tuple[int, ...] | None


class Properties(types.SimpleNamespace):
    """The values of a descriptor at the time when an operation was added."""


@dataclass(frozen=True)
class FromTensor:
    """An argument that is a tensor where another selector takes numbers: its values must be known, a constant."""

    kind: Any


class Descriptor:
    """Annotation of an argument that takes a descriptor of this class."""

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class Operation:
    """One selector of MPSGraph that is simulated."""

    selector: str
    function: Callable[..., Any]
    kinds: tuple[Any, ...]
    """What each argument of the selector is, the name at the end left out."""

    @property
    def words(self) -> list[str]:
        """The selector's words, one for each argument."""
        return self.selector.split(":")[: len(self.kinds)]

    def __call__(self, *arguments: Any) -> Tensor | Sequence[Tensor]:
        return self.function(*arguments)


OPERATIONS: dict[str, Operation] = {}


def operation(*selectors: str) -> Callable[[Callable], Callable]:
    """Register a function for selectors that take the same arguments, a name at the end."""

    def register(function: Callable) -> Callable:
        for selector in selectors:
            _add(selector, function)
        return function

    return register


def elementwise(table: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
    """Register functions of one tensor, ``<stem>WithTensor:name:``."""
    for stem, function in table.items():
        _add(f"{stem}WithTensor:name:", function, (Tensor,))


def _add(selector: str, function: Callable, kinds: tuple[Any, ...] | None = None) -> None:
    if kinds is None:
        hints = typing.get_type_hints(function, include_extras=True)
        kinds = tuple(hints[name] for name in inspect.signature(function).parameters)
    words = selector.split(":")[:-1]
    if words[-1] != "name" or len(words) != len(kinds) + 1:
        raise TypeError(f"{selector} takes {len(words) - 1} arguments and a name, the function {len(kinds)}")
    if selector in OPERATIONS:
        raise TypeError(f"{selector} is registered twice")
    OPERATIONS[selector] = Operation(selector, function, kinds)


IN_TENSORS = ("axis", "axes", "k", "withShape", "toShape", "size", "starts", "ends", "strides", "splitSizes",
              "numLower", "numUpper", "outputShape", "withMultiplier")  # fmt: skip


def add_tensor_variants(known: Collection[str]) -> None:
    """Register selectors that take numbers in tensors (``axisTensor:``) beside those that take them as they are."""
    for operation in list(OPERATIONS.values()):
        words = operation.selector.split(":")[:-1]
        variant = "".join(f"{word}Tensor:" if word in IN_TENSORS else f"{word}:" for word in words)
        if variant in known and variant not in OPERATIONS:
            kinds = (
                FromTensor(kind) if word in IN_TENSORS else kind
                for word, kind in zip(words, operation.kinds, strict=False)
            )
            _add(variant, operation.function, tuple(kinds))


# ---- what operations ask of their arguments; a ValueError becomes an InvalidGraph that names the operation


def require(condition: object, what: str) -> None:
    """ValueError, unless it holds."""
    if not condition:
        raise ValueError(what)


def same_dtype(*tensors: Tensor) -> None:
    """MPSGraph converts nothing by itself: operands have one data type."""
    from metalsim.graph import datatypes

    dtypes = {datatypes.name(tensor.dtype) for tensor in tensors}
    require(len(dtypes) == 1, f"operands must have one data type, not {' and '.join(sorted(dtypes))}; use castTensor")


def floating(*tensors: Tensor) -> None:
    """Operands are real floating point numbers of one type."""
    same_dtype(*tensors)
    require(tensors[0].is_floating_point(), f"needs floating point numbers, not {tensors[0].dtype}")


def axis_of(tensor: Tensor, axis: int) -> int:
    """An axis counted from the front. ValueError if there is no such."""
    require(-tensor.ndim <= axis < tensor.ndim, f"axis {axis} of a tensor of {tensor.ndim} dimensions")
    return axis % tensor.ndim


def axes_of(tensor: Tensor, axes: Sequence[int] | None) -> list[int]:
    """Axes counted from the front, all of them for None. ValueError for one named twice."""
    if axes is None:
        return list(range(tensor.ndim))
    positions = [axis_of(tensor, axis) for axis in axes]
    require(len(set(positions)) == len(positions), f"axes {list(axes)} name one twice")
    return positions
