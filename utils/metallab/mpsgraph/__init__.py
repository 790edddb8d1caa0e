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
    "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
"""The dtypes that Metal has, as NumPy calls them."""


def data_type(dtype: Any) -> int:
    """Return MPSGraph's number for a dtype of NumPy: ``data_type("int8")`` is ``MPSDataTypeInt8``.

    ValueError for a dtype that Metal does not have, such as float64.
    """
    name = np.dtype(dtype).name
    if name not in _NAMES:
        raise ValueError(
            f"Metal has no {name}; {', '.join(_NAMES)} are possible, so cast the array with astype"
        )
    return _types()[name]


def constant(graph: Any, array: np.ndarray) -> Any:
    """Put a copy of an array into a graph.

    Parameters
    ----------
    graph
        An MPSGraph.
    array
        Of a dtype that `data_type` knows.

    Returns
    -------
    MPSGraphTensor
        Of the array's shape and dtype.
    """
    from Foundation import NSData

    data = NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)
    return graph.constantWithData_shape_dataType_(data, list(array.shape), data_type(array.dtype))


def same_convolution() -> Any:
    """Return the descriptor of a 2-D convolution in steps of one whose result is as large as its input.

    Inputs are (pictures, channels, height, width), weights (outputs, inputs, height, width), as in PyTorch.
    """
    import MetalPerformanceShadersGraph as MPSGraph

    layouts = MPSGraph.MPSGraphTensorNamedDataLayoutNCHW, MPSGraph.MPSGraphTensorNamedDataLayoutOIHW
    padding = MPSGraph.MPSGraphPaddingStyleTF_SAME
    descriptor = MPSGraph.MPSGraphConvolution2DOpDescriptor
    make = descriptor.descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_paddingStyle_dataLayout_weightsLayout_  # noqa: E501
    return make(1, 1, 1, 1, 1, padding, *layouts)


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
        """Compute the outputs, and wait for them.

        Parameters
        ----------
        arrays
            One for each placeholder, in the order given to `compile`, with its shape and dtype.

        Returns
        -------
        list of numpy.ndarray
            The outputs in the order given to `compile`.

        Raises
        ------
        ValueError
            For another number of arrays than there are placeholders, and for a shape or dtype that is not the
            placeholder's.
        """
        import Metal

        if len(arrays) != len(self.inputs):
            raise ValueError(
                f"this program takes {len(self.inputs)} arrays, and {len(arrays)} were given"
            )

        pairs = zip(self.inputs, arrays, strict=True)
        inputs = {tensor: _buffer(tensor, array) for tensor, array in pairs}
        outputs = {tensor: _buffer(tensor) for tensor in self.outputs}
        feeds = [_data(tensor, inputs[tensor]) for tensor in self.feeds]
        results = [_data(tensor, outputs[tensor]) for tensor in self.targets]

        queue = Metal.MTLCreateSystemDefaultDevice().newCommandQueue()
        self.executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
            queue, feeds, results, None
        )
        return [_array(tensor, outputs[tensor]) for tensor in self.outputs]


def compile(graph: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Program:  # noqa: A001 - as in re.compile
    """Compile a graph for its placeholders' shapes, once: this is where MPSGraph fuses operations.

    Parameters
    ----------
    graph
        An MPSGraph.
    inputs
        Its placeholders, in the order in which arrays will be given.
    outputs
        The tensors that are to be computed.

    Returns
    -------
    Program
        It takes and returns arrays in these orders; the executable in it has orders of its own.
    """
    import Metal
    import MetalPerformanceShadersGraph as MPSGraph

    device = MPSGraph.MPSGraphDevice.deviceWithMTLDevice_(Metal.MTLCreateSystemDefaultDevice())
    feeds = {tensor: _to_shaped_type(tensor) for tensor in inputs}
    executable = (
        graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
            device, feeds, list(outputs), None, None
        )
    )
    orders = tuple(executable.feedTensors()), tuple(executable.targetTensors())
    return Program(executable, tuple(inputs), tuple(outputs), *orders)


def _to_shaped_type(tensor: Any) -> Any:
    """Return shape and dtype of a tensor, as the compiler takes them."""
    import MetalPerformanceShadersGraph as MPSGraph

    empty = MPSGraph.MPSGraphShapedType.alloc()
    return empty.initWithShape_dataType_(tensor.shape(), tensor.dataType())


def _types() -> dict[str, int]:
    """Return MPSGraph's number of each dtype; it writes ``UInt8`` where NumPy writes ``uint8``."""
    import MetalPerformanceShadersGraph as MPSGraph

    numbers = {}
    for name in _NAMES:
        word = name.replace("uint", "UInt") if name.startswith("u") else name.capitalize()
        numbers[name] = getattr(MPSGraph, f"MPSDataType{word}")
    return numbers


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape())


def dtype_of(tensor: Any) -> np.dtype:
    """Return the dtype of an MPSGraphTensor, as NumPy has it; ValueError for one that `data_type` does not take."""
    wanted = tensor.dataType()
    name = next((name for name, number in _types().items() if number == wanted), None)
    if name is None:
        raise ValueError(
            f"MPSGraph's data type {wanted:#x} is none of {', '.join(_NAMES)}: cast it in the graph"
        )
    return np.dtype(name)


def _buffer(tensor: Any, array: np.ndarray | None = None) -> Any:
    """Return memory that CPU and GPU share, for a tensor's numbers: with a copy of an array's, or empty.

    ValueError for an array of another shape or dtype than the tensor's: Metal would take its bytes for such numbers, or
    read beyond them.
    """
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
    """Return a tensor's numbers in a buffer, as a run takes them."""
    import MetalPerformanceShadersGraph as MPSGraph

    empty = MPSGraph.MPSGraphTensorData.alloc()
    return empty.initWithMTLBuffer_shape_dataType_(buffer, tensor.shape(), tensor.dataType())


def _array(tensor: Any, buffer: Any) -> np.ndarray:
    numbers = np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype_of(tensor))
    return numbers.reshape(_shape(tensor)).copy()
