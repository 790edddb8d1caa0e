"""Tensors of a graph, the data that is fed to it, and what comes out."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from metalsim.graph import datatypes
from metalsim.graph.bridge import Object, expect
from metalsim.graph.errors import InvalidGraph, NotSimulated
from metalsim.graph.foundation import NSArray, data_of
from metalsim.graph.metal import MTLBuffer, MTLDevice


def shape_of(value: Any, what: str) -> tuple[int, ...]:
    """Whole numbers out of a list, as PyObjC hands a list over as NSArray of NSNumber."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} is a list of whole numbers, got '{type(value).__name__}'")
    try:
        return tuple(operator.index(size) for size in value)
    except TypeError:
        raise TypeError(f"{what} is a list of whole numbers, got {value!r}") from None


def size_of(value: Any, what: str) -> tuple[int, ...]:
    """The shape of a tensor: no negative size, and not unknown."""
    if value is None or -1 in (shape := shape_of(value, what)):
        raise NotSimulated(f"{what} is unknown (None or -1): shapes that are known only at run time are not simulated")
    if min(shape, default=0) < 0:
        raise InvalidGraph(f"{what} {list(shape)} has a negative size")
    return shape


class MPSGraphDevice(Object):
    """The device that a graph is compiled for."""

    @classmethod
    def deviceWithMTLDevice_(cls, device: Any) -> MPSGraphDevice:
        return cls._made(device=expect(device, MTLDevice, "the device"))

    def metalDevice(self) -> MTLDevice:
        return self._device

    def type(self) -> int:
        return 0


class MPSGraphType(Object):
    """What a tensor is."""


class MPSGraphShapedType(MPSGraphType):
    """A shape and a data type."""

    def initWithShape_dataType_(self, shape: Any, data_type: int) -> MPSGraphShapedType:
        return self._ready(shape=size_of(shape, "the shape"), dtype=datatypes.torch_dtype(data_type))

    def shape(self) -> NSArray:
        return NSArray(self._shape)

    def dataType(self) -> int:
        return datatypes.MPS[self._dtype]

    def isEqualTo_(self, other: Any) -> bool:
        return isinstance(other, MPSGraphShapedType) and (self._shape, self._dtype) == (other._shape, other._dtype)

    def setShape_(self, shape: Any) -> None:
        self._shape = size_of(shape, "the shape")

    def setDataType_(self, data_type: int) -> None:
        self._dtype = datatypes.torch_dtype(data_type)


class MPSGraphTensor(Object):
    """A value that a graph will have: it has a shape and a type, and no numbers."""

    def init(self) -> None:
        raise TypeError("an MPSGraphTensor is made by a method of MPSGraph, and not by itself")

    def shape(self) -> NSArray:
        return NSArray(self._shape)

    def dataType(self) -> int:
        return datatypes.MPS[self._dtype]

    def operation(self) -> Any:
        return self._operation

    def __repr__(self) -> str:
        name = self._operation._name
        return f"<simulated MPSGraphTensor {name or ''} {list(self._shape)} {datatypes.name(self._dtype)}>"


class MPSGraphOperation(Object):
    """What makes tensors of tensors."""

    def init(self) -> None:
        raise TypeError("an MPSGraphOperation is made by a method of MPSGraph, and not by itself")

    def inputTensors(self) -> NSArray:
        return NSArray(self._inputs)

    def outputTensors(self) -> NSArray:
        return NSArray(self._outputs)

    def controlDependencies(self) -> NSArray:
        return NSArray()

    def graph(self) -> Any:
        return self._graph

    def name(self) -> str:
        return self._name or ""


class MPSGraphTensorData(Object):
    """Numbers in memory, with a shape and a type."""

    def initWithMTLBuffer_shape_dataType_(self, buffer: Any, shape: Any, data_type: int) -> MPSGraphTensorData:
        expect(buffer, MTLBuffer, "the buffer")
        return self._over(buffer._memory, shape, data_type, "the buffer")

    def initWithMTLBuffer_shape_dataType_rowBytes_(
        self, buffer: Any, shape: Any, data_type: int, row_bytes: int
    ) -> MPSGraphTensorData:
        size = size_of(shape, "the shape")
        if size and row_bytes != size[-1] * datatypes.torch_dtype(data_type).itemsize:
            raise NotSimulated("rows with gaps between them are not simulated: pack the values")
        return self.initWithMTLBuffer_shape_dataType_(buffer, shape, data_type)

    def initWithDevice_data_shape_dataType_(
        self, device: Any, data: Any, shape: Any, data_type: int
    ) -> MPSGraphTensorData:
        expect(device, MPSGraphDevice, "the device")
        return self._over(bytearray(data_of(data, "data")), shape, data_type, "the data")

    def initWithMPSNDArray_(self, array: Any) -> MPSGraphTensorData:
        values = expect(array, MPSNDArray, "the array")._values
        return self._ready(values=values)

    def shape(self) -> NSArray:
        return NSArray(self._values.shape)

    def dataType(self) -> int:
        return datatypes.MPS[self._values.dtype]

    def mpsndarray(self) -> MPSNDArray:
        return MPSNDArray._made(values=self._values)

    def device(self) -> MPSGraphDevice:
        from metalsim.graph import metal

        return MPSGraphDevice.deviceWithMTLDevice_(metal.MTLCreateSystemDefaultDevice())

    @classmethod
    def _result(cls, value: torch.Tensor) -> MPSGraphTensorData:
        """In memory of its own: what an operation makes may lie in its input's."""
        return cls._made(values=value.clone(memory_format=torch.contiguous_format))

    def _over(self, memory: bytearray, shape: Any, data_type: int, what: str) -> MPSGraphTensorData:
        dtype = datatypes.torch_dtype(data_type)
        size = size_of(shape, "the shape")
        try:
            return self._ready(values=datatypes.from_memory(memory, size, dtype))
        except ValueError as error:
            raise InvalidGraph(f"{what} is too short: {error}") from None

    def __repr__(self) -> str:
        return f"<simulated MPSGraphTensorData {list(self._values.shape)} {datatypes.name(self._values.dtype)}>"


def fill(data: MPSGraphTensorData, value: torch.Tensor, what: str) -> None:
    """Write a result into memory that the program provided. `InvalidGraph` if it is not of its shape and type."""
    have = data._values
    if have.shape != value.shape or have.dtype != value.dtype:
        raise InvalidGraph(
            f"the result of {what} is {list(value.shape)} of {datatypes.name(value.dtype)}, the memory for it is "
            f"{list(have.shape)} of {datatypes.name(have.dtype)}"
        )
    have.copy_(value)


class MPSNDArrayDescriptor(Object):
    """Shape and type of an MPSNDArray."""

    @classmethod
    def descriptorWithDataType_shape_(cls, data_type: int, shape: Any) -> MPSNDArrayDescriptor:
        return cls._made(shape=size_of(shape, "the shape"), dtype=datatypes.torch_dtype(data_type))

    def dataType(self) -> int:
        return datatypes.MPS[self._dtype]

    def getShape(self) -> NSArray:
        return NSArray(self._shape)

    def numberOfDimensions(self) -> int:
        return len(self._shape)


class MPSNDArray(Object):
    """Numbers in the GPU's memory."""

    def initWithDevice_descriptor_(self, device: Any, descriptor: Any) -> MPSNDArray:
        expect(device, MTLDevice, "the device")
        expect(descriptor, MPSNDArrayDescriptor, "the descriptor")
        return self._ready(values=torch.zeros(descriptor._shape, dtype=descriptor._dtype))

    def init(self) -> None:
        raise TypeError("write MPSNDArray.alloc().initWithDevice_descriptor_(device, descriptor)")

    def dataType(self) -> int:
        return datatypes.MPS[self._values.dtype]

    def dataTypeSize(self) -> int:
        return self._values.dtype.itemsize

    def numberOfDimensions(self) -> int:
        return self._values.ndim

    def lengthOfDimension_(self, dimension: int) -> int:
        """Counted from the fastest dimension, which is the last one of a shape."""
        return self._values.shape[-1 - dimension] if dimension < self._values.ndim else 1

    def descriptor(self) -> MPSNDArrayDescriptor:
        return MPSNDArrayDescriptor.descriptorWithDataType_shape_(self.dataType(), self._values.shape)

    def readBytes_strideBytes_(self, buffer: Any, strides: Any) -> Any:
        """Copy all values into a writable buffer: a bytearray, a NumPy array."""
        _packed(strides)
        data = datatypes.to_bytes(self._values)
        view = memoryview(buffer).cast("B")
        if view.readonly or len(view) < len(data):
            raise ValueError(
                f"{len(data)} bytes are to be written, and the buffer takes {0 if view.readonly else len(view)}"
            )
        view[: len(data)] = data
        return buffer

    def writeBytes_strideBytes_(self, data: Any, strides: Any) -> None:
        _packed(strides)
        view = memoryview(data).cast("B")
        self._values.copy_(datatypes.from_memory(bytearray(view), tuple(self._values.shape), self._values.dtype))


def _packed(strides: Any) -> None:
    if strides is not None:
        raise NotSimulated("strideBytes other than None are not simulated: values lie one after the other")
