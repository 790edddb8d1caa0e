"""What a graph computes, apart from the objects that it was built with: it can be stored, read back and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metalsim.graph import datatypes
from metalsim.graph.errors import InvalidGraph, NotSimulated
from metalsim.graph.operations import OPERATIONS


@dataclass(frozen=True)
class Ref:
    """A value: the inputs come first, then the constants, then the results of the steps, in order."""

    number: int


@dataclass(frozen=True)
class Input:
    """What a placeholder takes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Step:
    """One operation. Among the arguments a `Ref`, or a tuple of them, stands for tensors."""

    selector: str
    arguments: tuple[Any, ...]
    results: int


@dataclass(frozen=True)
class Program:
    """Steps in an order in which they can be run."""

    inputs: tuple[Input, ...]
    constants: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Ref, ...]

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for these inputs, which have the shapes and types that the program wants."""
        values = [*inputs, *self.constants]
        with torch.no_grad():
            for step in self.steps:
                values += results(step.selector, [_resolved(each, values) for each in step.arguments])
        return [values[ref.number] for ref in self.outputs]

    def blank_outputs(self) -> list[Tensor]:
        """The outputs for zeros: they show shapes and types."""
        return self.run([datatypes.blank(each.shape, each.dtype) for each in self.inputs])

    def check(self, position: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        """`InvalidGraph` if an input is not of the shape and type that the program was built for."""
        wanted = self.inputs[position]
        if tuple(shape) != wanted.shape or dtype != wanted.dtype:
            raise InvalidGraph(
                f"input {position} ({wanted.name or 'no name'}) is {list(wanted.shape)} of "
                f"{datatypes.name(wanted.dtype)}, and was given {list(shape)} of {datatypes.name(dtype)}"
            )

    def verify(self) -> None:
        """ValueError for an operation that there is not, or a value that is used before it is there."""
        there = len(self.inputs) + len(self.constants)
        for step in self.steps:
            if step.selector not in OPERATIONS:
                raise ValueError(f"there is no operation {step.selector!r}")
            if any(ref.number not in range(there) for ref in refs(step.arguments)):
                raise ValueError(f"{step.selector} uses a value that is not there")
            there += step.results
        if any(ref.number not in range(there) for ref in self.outputs):
            raise ValueError("an output is not there")


def refs(arguments: Sequence[Any]) -> list[Ref]:
    """All values that arguments name."""
    flat = (each for value in arguments for each in (value if isinstance(value, tuple) else (value,)))
    return [each for each in flat if isinstance(each, Ref)]


def results(selector: str, arguments: Sequence[Any]) -> list[Tensor]:
    """What an operation makes of tensors. `InvalidGraph` if it does not take them."""
    try:
        made = OPERATIONS[selector](*arguments)
    except NotSimulated:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if isinstance(error, NotImplementedError):  # PyTorch's CPU has no kernel for this type
            raise NotSimulated(f"{selector} of this type is not simulated: {first}") from None
        raise InvalidGraph(f"{selector} {_told(arguments)}: {first}") from None
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _resolved(argument: Any, values: Sequence[Tensor]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.number]
    if isinstance(argument, tuple) and argument and isinstance(argument[0], Ref):
        return [values[ref.number] for ref in argument]
    return argument


def _told(arguments: Sequence[Any]) -> str:
    """The shapes of the tensors among the arguments."""
    flat = [
        each for argument in arguments for each in (argument if isinstance(argument, (list, tuple)) else [argument])
    ]
    shapes = [f"{list(each.shape)}" for each in flat if isinstance(each, Tensor)]
    return f"of {' and '.join(shapes)}" if shapes else "without tensors"
