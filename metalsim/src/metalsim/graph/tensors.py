"""Tensors of a simulated graph: each has an operation, arguments, and an example of its shape and dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metalsim.errors import InvalidGraph

if TYPE_CHECKING:
    from typing import Self  # since Python 3.11; nothing of it is needed at run time

TYPES = {
    "Float32": (0x10000020, torch.float32), "Float16": (0x10000010, torch.float16),
    "BFloat16": (0x90000010, torch.bfloat16), "Int8": (0x20000008, torch.int8), "Int16": (0x20000010, torch.int16),
    "Int32": (0x20000020, torch.int32), "Int64": (0x20000040, torch.int64), "UInt8": (0x8, torch.uint8),
    "UInt16": (0x10, torch.uint16), "UInt32": (0x20, torch.uint32), "UInt64": (0x40, torch.uint64),
    "Bool": (0x80000008, torch.bool), "ComplexFloat32": (0x11000040, torch.complex64),
}  # fmt: skip
TORCH = dict(TYPES.values())
"""PyTorch's dtype for each number of ``MPSDataType``."""
NUMBER = {dtype: number for number, dtype in TORCH.items()}


class Object:
    """``Class.alloc().init()``, and ``setName_(value)`` for any property."""

    @classmethod
    def alloc(cls) -> Self:
        """Make an object, on which a method whose name begins with ``init`` is called."""
        return cls.__new__(cls)

    @classmethod
    def descriptor(cls) -> Self:
        """Make an object with the settings that it begins with."""
        return cls()

    def init(self) -> Self:
        """Return the object as it is."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set") and name.endswith("_"):
            return functools.partial(setattr, self, name[3].lower() + name[4:-1])
        raise AttributeError(f"{type(self).__name__} has no selector {name} on the simulated GPU")


class MPSGraphTensor(Object):
    """A value of a graph: its operation and arguments, and an example of zeros, which has its shape and dtype.

    `function` computes it from the values of its arguments. None for a constant, which is its example, and for a
    placeholder, which is fed.
    """

    def __init__(
        self,
        operation: str,
        arguments: Sequence[Any],
        example: Tensor,
        function: Callable[..., Tensor] | None = None,
    ) -> None:
        self.operation = operation
        self.arguments = arguments
        self.example = example
        self.function = function

    def shape(self) -> list[int]:
        """Return its shape."""
        return list(self.example.shape)

    def dataType(self) -> int:
        """Return the number of its dtype in ``MPSDataType``."""
        return NUMBER[self.example.dtype]


def add(
    operation: str, function: Callable[..., Tensor], arguments: Sequence[Any]
) -> MPSGraphTensor:
    """Return the tensor of an operation. InvalidGraph where its arguments do not fit."""
    examples = [each.example if isinstance(each, MPSGraphTensor) else each for each in arguments]
    try:
        return MPSGraphTensor(operation, arguments, function(*examples), function)
    except (RuntimeError, ValueError, IndexError) as error:
        raise InvalidGraph(f"{operation}: {error} (a Mac ends the process here)") from None


def placeholder(shape: Sequence[int], dtype: torch.dtype) -> MPSGraphTensor:
    """Return a tensor that is fed when the graph runs."""
    example = torch.zeros([int(size) for size in shape], dtype=dtype)
    return MPSGraphTensor("placeholder", (), example)
