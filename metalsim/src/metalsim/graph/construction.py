"""A graph under construction: its tensors, its operations, and the program that leads from feeds to targets."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from metalsim.graph import contract, datatypes, descriptors, program
from metalsim.graph.bridge import Object, ObjectType, expect
from metalsim.graph.errors import InvalidGraph, NotSimulated
from metalsim.graph.foundation import NSArray, data_of
from metalsim.graph.operations import OPERATIONS, Operation
from metalsim.graph.operations.registry import AnyShape, Descriptor, FromTensor, Shape, Tensors
from metalsim.graph.program import Input, Program, Ref, Step
from metalsim.graph.tensors import MPSGraphOperation, MPSGraphTensor, shape_of, size_of

PLACEHOLDER, CONSTANT = "placeholder", "constant"


def _adder(operation: Operation) -> Callable:
    """The method of MPSGraph that adds an operation."""

    def add(self: Construction, *arguments: Any) -> Any:
        *values, name = arguments
        words = operation.words
        converted = [
            _converted(value, kind, f"{word}: of {operation.selector}", self)
            for value, kind, word in zip(values, operation.kinds, words, strict=True)
        ]
        return self._add(operation.selector, converted, name)

    add.__name__ = contract.python_name(operation.selector)
    return add


def _converted(value: Any, kind: Any, what: str, graph: Construction) -> Any:
    """An argument as an operation wants it."""
    if kind is Tensor:
        return own(graph, expect(value, MPSGraphTensor, what))
    if kind == Tensor | None:
        return None if value is None else own(graph, expect(value, MPSGraphTensor, what))
    if kind == Tensors:
        return tuple(own(graph, expect(each, MPSGraphTensor, f"each of {what}")) for each in listed(value, what))
    if kind == Shape:
        return shape_of(value, what)
    if kind == AnyShape:
        return None if value is None else shape_of(value, what)
    if isinstance(kind, FromTensor):
        return _known(own(graph, expect(value, MPSGraphTensor, what)), kind.kind, what)
    if kind is torch.dtype:
        return datatypes.torch_dtype(value)
    if typing.get_origin(kind) is typing.Annotated:
        described: Descriptor = kind.__metadata__[0]
        return expect(value, descriptors.CLASSES[described.name], what)._properties()
    return value


def _known(tensor: MPSGraphTensor, kind: Any, what: str) -> Any:
    """Whole numbers out of a constant tensor."""
    if tensor._operation._selector != CONSTANT:
        raise NotSimulated(f"{what} is computed or fed: only constants are simulated, as shapes must be known")
    numbers = tuple(int(each) for each in tensor._operation._value.flatten().tolist())
    if kind is not int:
        return numbers
    if len(numbers) != 1:
        raise InvalidGraph(f"{what} holds {len(numbers)} numbers, and not one")
    return numbers[0]


def listed(value: Any, what: str) -> list[Any]:
    """The elements of a list. TypeError for what is none."""
    if isinstance(value, (str, bytes, Object)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} is a list, got '{type(value).__name__}'")
    return list(value)


def own(graph: Construction, tensor: MPSGraphTensor) -> MPSGraphTensor:
    """The tensor. InvalidGraph if it belongs to another graph."""
    if tensor._operation._graph is not graph:
        raise InvalidGraph(f"{tensor} belongs to another graph")
    return tensor


def _checked_name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"a name is a str or None, got '{type(name).__name__}'")
    return name


class GraphType(ObjectType):
    """Gives a class, and those derived from it, a method for each operation of the table."""

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], **more: Any):
        adders = {contract.python_name(selector): _adder(operation) for selector, operation in OPERATIONS.items()}
        inherited = any(isinstance(base, GraphType) for base in bases)
        return super().__new__(mcs, name, bases, space if inherited else {**adders, **space}, **more)


class Construction(Object, metaclass=GraphType, contract_name="MPSGraph"):
    """What of MPSGraph builds; a Core ML package is read into one."""

    def init(self) -> Construction:
        return self._ready(placeholders=[], options=1)

    def options(self) -> int:
        return self._options

    def setOptions_(self, options: int) -> None:
        self._options = options

    def placeholderTensors(self) -> NSArray:
        return NSArray(self._placeholders)

    # ---- tensors that nothing computes

    def placeholderWithShape_dataType_name_(self, shape: Any, data_type: int, name: Any) -> MPSGraphTensor:
        blank = datatypes.blank(size_of(shape, "the shape of a placeholder"), datatypes.torch_dtype(data_type))
        (made,) = self._operation(PLACEHOLDER, (), [blank], name)
        self._placeholders.append(made)
        return made

    def placeholderWithShape_name_(self, shape: Any, name: Any) -> MPSGraphTensor:
        return self.placeholderWithShape_dataType_name_(shape, datatypes.MPS[torch.float32], name)

    def constantWithData_shape_dataType_(self, data: Any, shape: Any, data_type: int) -> MPSGraphTensor:
        content = data_of(data, "the data of a constant")
        size, dtype = size_of(shape, "the shape of a constant"), datatypes.torch_dtype(data_type)
        wanted = torch.Size(size).numel() * dtype.itemsize
        if len(content) != wanted:
            raise InvalidGraph(
                f"a constant of shape {list(size)} of {datatypes.name(dtype)} takes {wanted} bytes, "
                f"and was given {len(content)}"
            )
        return self._constant(datatypes.from_memory(content, size, dtype))

    def constantWithScalar_dataType_(self, value: float, data_type: int) -> MPSGraphTensor:
        return self.constantWithScalar_shape_dataType_(value, (), data_type)

    def constantWithScalar_shape_dataType_(self, value: float, shape: Any, data_type: int) -> MPSGraphTensor:
        dtype = datatypes.torch_dtype(data_type)
        return self._constant(_filled(shape, value if dtype.is_floating_point else int(value), dtype))

    def constantWithRealPart_imaginaryPart_(self, real: float, imaginary: float) -> MPSGraphTensor:
        return self._constant(_filled((), complex(real, imaginary), torch.complex64))

    def constantWithRealPart_imaginaryPart_dataType_(
        self, real: float, imaginary: float, data_type: int
    ) -> MPSGraphTensor:
        return self.constantWithRealPart_imaginaryPart_shape_dataType_(real, imaginary, (), data_type)

    def constantWithRealPart_imaginaryPart_shape_dataType_(
        self, real: float, imaginary: float, shape: Any, data_type: int
    ) -> MPSGraphTensor:
        dtype = datatypes.torch_dtype(data_type)
        if not dtype.is_complex:
            raise InvalidGraph(f"a complex constant of type {datatypes.name(dtype)}")
        return self._constant(_filled(shape, complex(real, imaginary), dtype))

    # ---- within

    def _add(self, selector: str, arguments: list[Any], name: Any) -> Any:
        """Add an operation; its tensor, or an array of them."""
        blanks = program.results(selector, [_each(_blank, value) for value in arguments])
        made = self._operation(selector, tuple(arguments), blanks, name)
        several = contract.methods("MPSGraph")[contract.python_name(selector), False].returns.startswith("NSArray")
        return NSArray(made) if several else made[0]

    def _constant(self, value: Tensor) -> MPSGraphTensor:
        (made,) = self._operation(CONSTANT, (), [value], None)
        made._operation._value = value.contiguous()
        return made

    def _operation(self, selector: str, arguments: tuple[Any, ...], results: list[Tensor], name: Any) -> list[Any]:
        operation = MPSGraphOperation._made(
            graph=self,
            selector=selector,
            arguments=arguments,
            name=_checked_name(name),
            inputs=_tensors(arguments),
            outputs=[],
        )
        operation._outputs += [
            MPSGraphTensor._made(operation=operation, shape=tuple(each.shape), dtype=each.dtype) for each in results
        ]
        return operation._outputs

    def _program(self, fed: Sequence[MPSGraphTensor], targets: Sequence[MPSGraphTensor]) -> tuple[Program, list[Any]]:
        """What leads from the feeds to the targets, and the feeds in the order in which it takes them.

        An NSDictionary has no order: the feeds are taken in another one than they were given in, so that a program
        that does not ask for it (``feedTensors()``) shows it.
        """
        if not targets:
            raise InvalidGraph("there are no target tensors")
        order = [own(self, tensor) for tensor in reversed(fed)]
        operations = _sorted(targets, set(order))
        constants = [operation for operation in operations if operation._selector == CONSTANT]
        steps = [operation for operation in operations if operation._selector != CONSTANT]
        refs: dict[MPSGraphTensor, Ref] = {}
        values = [*order, *(each for operation in (*constants, *steps) for each in operation._outputs)]
        for number, tensor in enumerate(values):
            refs.setdefault(tensor, Ref(number))  # one of several results may be fed: then the step makes it in vain
        made = Program(
            inputs=tuple(Input(t._operation._name or "", t._shape, t._dtype) for t in order),
            constants=tuple(operation._value for operation in constants),
            steps=tuple(
                Step(o._selector, tuple(_each(refs.__getitem__, value) for value in o._arguments), len(o._outputs))
                for o in steps
            ),
            outputs=tuple(refs[tensor] for tensor in targets),
        )
        return made, order


def _filled(shape: Any, value: complex, dtype: torch.dtype) -> Tensor:
    size = size_of(shape, "the shape of a constant")
    if dtype == torch.complex32:
        return torch.full(size, value, dtype=torch.complex64).to(dtype)
    return torch.full(size, value, dtype=dtype)


def _blank(tensor: MPSGraphTensor) -> Tensor:
    return datatypes.blank(tensor._shape, tensor._dtype)


def _each(function: Callable[[Any], Any], argument: Any) -> Any:
    """An argument with a function applied to the tensors in it."""
    if isinstance(argument, MPSGraphTensor):
        return function(argument)
    if isinstance(argument, tuple) and argument and isinstance(argument[0], MPSGraphTensor):
        return type(argument)(function(each) for each in argument)
    return argument


def _tensors(arguments: Iterable[Any]) -> list[MPSGraphTensor]:
    flat = (each for value in arguments for each in (value if isinstance(value, tuple) else (value,)))
    return [each for each in flat if isinstance(each, MPSGraphTensor)]


def _sorted(targets: Sequence[MPSGraphTensor], fed: set[MPSGraphTensor]) -> list[MPSGraphOperation]:
    """The operations that the targets need, each after those that it needs."""
    order: dict[MPSGraphOperation, None] = {}
    waiting = [(tensor, False) for tensor in reversed(targets)]
    while waiting:
        tensor, ready = waiting.pop()
        operation = tensor._operation
        if tensor in fed or operation in order:
            continue
        if operation._selector == PLACEHOLDER:
            raise InvalidGraph(f"the placeholder {operation._name or tensor} is needed and was not fed")
        if ready:
            order[operation] = None
            continue
        waiting.append((tensor, True))
        waiting += [(each, False) for each in reversed(operation._inputs)]
    return list(order)
