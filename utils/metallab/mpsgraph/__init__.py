"""What a program for MPSGraph needs besides its graph: constants and inputs of NumPy arrays, and results as such.

PyObjC's modules are imported inside functions: they are there on a Mac, and in a cell ``%%isolated --device mps``
anywhere. A graph that is wrong ends the process on a Mac, so use this in such a cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_NAMES = (
    "float32",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
)


def data_type(dtype: Any) -> int:
    """MPSGraph's number for a dtype of NumPy: ``data_type("int8")`` is ``MPSDataTypeInt8``.

    ValueError for a dtype that Metal does not have, such as float64.
    """
    return _types()[_known(np.dtype(dtype).name)]


def constant(graph: Any, array: np.ndarray) -> Any:
    """An MPSGraphTensor that holds a copy of an array."""
    from Foundation import NSData

    data = NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)
    return graph.constantWithData_shape_dataType_(data, list(array.shape), data_type(array.dtype))


def same_convolution() -> Any:
    """The descriptor of a 2-D convolution in steps of one whose result is as large as its input.

    Inputs are (pictures, channels, height, width), weights (outputs, inputs, height, width), as in PyTorch.
    """
    import MetalPerformanceShadersGraph as mps

    layouts = mps.MPSGraphTensorNamedDataLayoutNCHW, mps.MPSGraphTensorNamedDataLayoutOIHW
    descriptor = mps.MPSGraphConvolution2DOpDescriptor
    make = descriptor.descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_paddingStyle_dataLayout_weightsLayout_  # noqa: E501
    return make(1, 1, 1, 1, 1, mps.MPSGraphPaddingStyleTF_SAME, *layouts)


@dataclass(frozen=True)
class Program:
    """A compiled graph: call it with an array for each placeholder, in the order given to `compile`."""

    executable: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    feeds: tuple[Any, ...]
    """The inputs in the executable's own order."""
    targets: tuple[Any, ...]
    """The outputs in the executable's own order."""

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The outputs in the order given to `compile`; it waits for them.

        ValueError for another number of arrays than there are placeholders, and for a shape or dtype that is not the
        placeholder's.
        """
        import Metal

        if len(arrays) != len(self.inputs):
            raise ValueError(
                f"this program takes {len(self.inputs)} arrays, and {len(arrays)} were given"
            )
        given = {
            tensor: _buffer(tensor, array)
            for tensor, array in zip(self.inputs, arrays, strict=True)
        }
        made = {tensor: _buffer(tensor) for tensor in self.outputs}
        feeds = [_data(tensor, given[tensor]) for tensor in self.feeds]
        results = [_data(tensor, made[tensor]) for tensor in self.targets]
        queue = Metal.MTLCreateSystemDefaultDevice().newCommandQueue()
        self.executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
            queue, feeds, results, None
        )
        return [_array(tensor, made[tensor]) for tensor in self.outputs]


def compile(graph: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Program:
    """Compile a graph for its placeholders' shapes, once: this is where MPSGraph fuses operations."""
    import Metal
    import MetalPerformanceShadersGraph as mps

    device = mps.MPSGraphDevice.deviceWithMTLDevice_(Metal.MTLCreateSystemDefaultDevice())
    kind = lambda tensor: mps.MPSGraphShapedType.alloc().initWithShape_dataType_(
        tensor.shape(), tensor.dataType()
    )
    executable = (
        graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
            device, {tensor: kind(tensor) for tensor in inputs}, list(outputs), None, None
        )
    )
    orders = tuple(executable.feedTensors()), tuple(executable.targetTensors())
    return Program(executable, tuple(inputs), tuple(outputs), *orders)


def _types() -> dict[str, int]:
    import MetalPerformanceShadersGraph as mps

    spelled = {name: "UInt" + name[4:] if name[0] == "u" else name.capitalize() for name in _NAMES}
    return {name: getattr(mps, f"MPSDataType{word}") for name, word in spelled.items()}


def _known(name: str) -> str:
    if name not in _NAMES:
        raise ValueError(
            f"Metal has no {name}; {', '.join(_NAMES)} are possible, so cast the array with astype"
        )
    return name


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape())


def dtype_of(tensor: Any) -> np.dtype:
    """The dtype of an MPSGraphTensor, as NumPy has it. ValueError for one that `data_type` does not take either."""
    wanted = tensor.dataType()
    name = next((name for name, number in _types().items() if number == wanted), None)
    if name is None:
        raise ValueError(
            f"MPSGraph's data type {wanted:#x} is none of {', '.join(_NAMES)}: cast it in the graph"
        )
    return np.dtype(name)


def _buffer(tensor: Any, array: np.ndarray | None = None) -> Any:
    """Memory that CPU and GPU share, for a tensor's numbers: with those of an array, or empty."""
    import Metal

    device, shape, dtype = Metal.MTLCreateSystemDefaultDevice(), _shape(tensor), dtype_of(tensor)
    if array is None:
        size = math.prod(shape) * dtype.itemsize
        return device.newBufferWithLength_options_(size, Metal.MTLResourceStorageModeShared)
    if (array.shape, array.dtype) != (shape, dtype):
        raise ValueError(
            f"this input is {dtype} of shape {shape}, and an array {array.dtype} {array.shape} was given"
        )
    return device.newBufferWithBytes_length_options_(
        array.tobytes(), array.nbytes, Metal.MTLResourceStorageModeShared
    )


def _data(tensor: Any, buffer: Any) -> Any:
    """A tensor's numbers in a buffer, as a run takes them."""
    import MetalPerformanceShadersGraph as mps

    empty = mps.MPSGraphTensorData.alloc()
    return empty.initWithMTLBuffer_shape_dataType_(buffer, tensor.shape(), tensor.dataType())


def _array(tensor: Any, buffer: Any) -> np.ndarray:
    numbers = np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype_of(tensor))
    return numbers.reshape(_shape(tensor)).copy()
