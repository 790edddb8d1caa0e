"""The objects of PyObjC's MPSGraph that the notebooks use: graphs are built, compiled, stored, loaded and run.

Classes and selectors are spelled as PyObjC spells them, and `OPERATIONS` has a line for each operation. What is absent
raises AttributeError, which names it. Values are PyTorch tensors on the CPU.

References
----------
Apple's headers of MetalPerformanceShadersGraph, as PyObjC 12.2.2 exports them.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from metalsim import work
from metalsim.errors import InvalidGraph
from metalsim.graph import coreml
from metalsim.graph.tensors import NUMBER, TORCH, TYPES, MPSGraphTensor, Object, add, placeholder

if TYPE_CHECKING:
    from typing import Self  # since Python 3.11; nothing of it is needed at run time

CONSTANTS = {f"MPSDataType{name}": number for name, (number, _) in TYPES.items()} | {
    "MPSGraphPaddingStyleTF_VALID": 1, "MPSGraphPaddingStyleTF_SAME": 2, "MPSGraphTensorNamedDataLayoutNCHW": 0,
    "MPSGraphTensorNamedDataLayoutOIHW": 2, "MPSGraphFFTScalingModeNone": 0, "MPSGraphFFTScalingModeSize": 1,
    "MPSGraphFFTScalingModeUnitary": 2, "MPSGraphDeploymentPlatformMacOS": 0, "MTLResourceStorageModeShared": 0,
}  # fmt: skip


# numbers of MPSGraphPaddingStyle and MPSGraphTensorNamedDataLayout
VALID, SAME = CONSTANTS["MPSGraphPaddingStyleTF_VALID"], CONSTANTS["MPSGraphPaddingStyleTF_SAME"]
NCHW = CONSTANTS["MPSGraphTensorNamedDataLayoutNCHW"]
OIHW = CONSTANTS["MPSGraphTensorNamedDataLayoutOIHW"]


# ---- Foundation and Metal


class NSData(bytes):
    """Bytes that PyObjC's functions take."""

    @classmethod
    def dataWithBytes_length_(cls, data: bytes, length: int) -> NSData:
        """Make one of the first `length` bytes."""
        return cls(data[:length])


class NSURL:
    """The address of a file or folder."""

    def __init__(self, path: str) -> None:
        self.file = Path(path)

    @classmethod
    def fileURLWithPath_(cls, path: str) -> NSURL:
        """Make the address of a path."""
        return cls(path)


class Buffer(bytearray):
    """An MTLBuffer."""

    def contents(self) -> SimpleNamespace:
        """Return what PyObjC gives for a pointer: its ``as_buffer(length)`` is a view of the memory."""
        return SimpleNamespace(as_buffer=lambda length: memoryview(self)[:length])

    def length(self) -> int:
        """Return the bytes that it has."""
        return len(self)


class Device:
    """An MTLDevice, and its command queue."""

    def newCommandQueue(self) -> Device:
        """Return its queue, which is the device itself: work is done when it is given."""
        return self

    def newBufferWithLength_options_(self, length: int, _options: int) -> Buffer:
        """Make a buffer of zeros."""
        return Buffer(length)

    def newBufferWithBytes_length_options_(self, data: bytes, length: int, _options: int) -> Buffer:
        """Make a buffer with a copy of some bytes."""
        return Buffer(data[:length])


# ---- operations


def _same_padding(sizes: Sequence[int]) -> list[int]:
    """Return the padding, for `torch.nn.functional.pad`, that keeps the size under a window of these sizes."""
    return [side for size in reversed(sizes) for side in ((size - 1) // 2, size // 2)]


def _convolve(x: Tensor, weights: Tensor, how: Any) -> Tensor:
    """Compute a convolution with a stride of 1, padded to keep its size where the descriptor says so."""
    if how.padding == SAME:
        x = torch.nn.functional.pad(x, _same_padding(weights.shape[2:]))
    return torch.nn.functional.conv2d(x, weights)


def _quantize(x: Tensor, scale: float, zero: float, number: int) -> Tensor:
    """Return integers of a dtype, for numbers that are `scale` apart."""
    limits = torch.iinfo(TORCH[number])
    return (x / scale + zero).round().clamp(limits.min, limits.max).to(TORCH[number])


def _dequantize(x: Tensor, scale: float, zero: float, number: int) -> Tensor:
    """Return the numbers that integers stand for."""
    return (x.to(TORCH[number]) - zero) * scale


def _dequantize_by_channel(
    x: Tensor, scales: Tensor, zero: float, number: int, axis: int
) -> Tensor:
    """Return the numbers that integers stand for, with a scale for each place of an axis."""
    shape = [1] * x.dim()
    shape[axis % x.dim()] = -1
    return (x.to(TORCH[number]) - zero) * scales.reshape(shape)


_SCALING = {0: ("backward", "forward"), 1: ("forward", "backward"), 2: ("ortho", "ortho")}
"""PyTorch's norm for each number of ``MPSGraphFFTScalingMode``, forwards and inverse."""


def _norm(how: Any, *, is_inverse: bool) -> str:
    """Return PyTorch's norm for a Fourier transform with this descriptor."""
    return _SCALING[getattr(how, "scalingMode", 0)][is_inverse]


def _transform_real(x: Tensor, axes: Sequence[int], how: Any) -> Tensor:
    """Return the Fourier transform of real numbers, without the half that mirrors the other."""
    return torch.fft.rfftn(x, dim=list(axes), norm=_norm(how, is_inverse=False))


def _invert_to_real(x: Tensor, axes: Sequence[int], how: Any) -> Tensor:
    """Return the real numbers of a Fourier transform, of which one half is given."""
    sizes = [x.shape[axis] for axis in axes]
    sizes[-1] = 2 * (sizes[-1] - 1)
    if getattr(how, "roundToOddHermitean", False):
        sizes[-1] += 1

    return torch.fft.irfftn(x, sizes, list(axes), _norm(how, is_inverse=True))


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "reLUWithTensor_name_": torch.relu,
    "sigmoidWithTensor_name_": torch.sigmoid,
    "additionWithPrimaryTensor_secondaryTensor_name_": torch.add,
    "subtractionWithPrimaryTensor_secondaryTensor_name_": torch.sub,
    "multiplicationWithPrimaryTensor_secondaryTensor_name_": torch.mul,
    "matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_": torch.matmul,
    "convolution2DWithSourceTensor_weightsTensor_descriptor_name_": _convolve,
    "meanOfTensor_axes_name_": lambda x, axes: x.mean(list(axes), keepdim=True),
    "reshapeTensor_withShape_name_": lambda x, shape: x.reshape(list(shape)),
    "quantizeTensor_scale_zeroPoint_dataType_name_": _quantize,
    "dequantizeTensor_scale_zeroPoint_dataType_name_": _dequantize,
    "dequantizeTensor_scaleTensor_zeroPoint_dataType_axis_name_": _dequantize_by_channel,
    "realToHermiteanFFTWithTensor_axes_descriptor_name_": _transform_real,
    "HermiteanToRealFFTWithTensor_axes_descriptor_name_": _invert_to_real,
    "realPartOfTensor_name_": lambda x: x.real.clone(),
    "imaginaryPartOfTensor_name_": lambda x: x.imag.clone(),
}
"""By PyObjC's selector, a function of the selector's arguments without the name."""


# ---- MPSGraph


class MPSGraphDevice(Object):
    """The device that a graph is compiled for."""

    @classmethod
    def deviceWithMTLDevice_(cls, _device: Device) -> MPSGraphDevice:
        """Make it of an MTLDevice."""
        return cls()


class MPSGraphShapedType(Object):
    """Shape and dtype, which compiling wants to be told again."""

    def initWithShape_dataType_(self, _shape: Sequence[int], _number: int) -> Self:
        """Take them."""
        return self


class MPSGraphConvolution2DOpDescriptor(Object):
    """The settings of a convolution."""

    padding: int

    @classmethod
    def descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_paddingStyle_dataLayout_weightsLayout_(
        cls, *settings: int
    ) -> MPSGraphConvolution2DOpDescriptor:
        """Make one of all settings, in the order of the name.

        AttributeError, as of whatever is absent here, for settings that are not simulated.
        """
        *strides_dilations_and_groups, padding, data_layout, weights_layout = settings
        is_simple = strides_dilations_and_groups == [1] * 5
        if (
            not is_simple
            or (data_layout, weights_layout) != (NCHW, OIHW)
            or padding not in (VALID, SAME)
        ):
            raise AttributeError(
                "of convolutions, strides, dilations and groups of 1 in NCHW and OIHW are simulated"
            )

        how = cls()
        how.padding = padding
        return how


class MPSGraphFFTDescriptor(Object):
    """The settings of a Fourier transform."""


class MPSGraphExecutableSerializationDescriptor(Object):
    """How an executable is stored."""


class MPSGraph(Object):
    """A graph that is being built. Its tensors know of what they are made, so that it holds nothing itself."""

    def placeholderWithShape_dataType_name_(
        self, shape: Sequence[int], number: int, _name: str | None
    ) -> MPSGraphTensor:
        """Return a tensor that is fed when the graph runs."""
        return placeholder(shape, TORCH[number])

    def constantWithData_shape_dataType_(
        self, data: bytes, shape: Sequence[int], number: int
    ) -> MPSGraphTensor:
        """Return a tensor with these values."""
        value = torch.frombuffer(bytearray(data), dtype=TORCH[number])
        return MPSGraphTensor("constant", (), value.reshape([int(size) for size in shape]))

    def __getattr__(self, name: str) -> Any:
        if name not in OPERATIONS:
            return super().__getattr__(name)
        return lambda *arguments: add(name, OPERATIONS[name], arguments[:-1])

    def compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        self,
        _device: MPSGraphDevice,
        feeds: Mapping[MPSGraphTensor, MPSGraphShapedType],
        targets: Sequence[MPSGraphTensor],
        _operations: Any,
        _how: Any,
    ) -> MPSGraphExecutable:
        """Return what computes the targets from the feeds."""
        # backwards, since an NSDictionary keeps no order: who relies on that of Python's is found out
        return MPSGraphExecutable.of(list(reversed(list(feeds))), list(targets))


class MPSGraphExecutable(Object):
    """A graph that can be run and stored."""

    feeds: list[MPSGraphTensor]
    targets: list[MPSGraphTensor]
    is_stored = False
    """Whether it was read from a package; PyObjC then tells neither feeds nor targets."""

    @classmethod
    def of(cls, feeds: list[MPSGraphTensor], targets: list[MPSGraphTensor]) -> MPSGraphExecutable:
        """Make one of a graph's tensors."""
        made = cls()
        made.feeds = feeds
        made.targets = targets
        return made

    def feedTensors(self) -> list[MPSGraphTensor] | None:
        """Return the placeholders, in the order in which they are fed."""
        return None if self.is_stored else self.feeds

    def targetTensors(self) -> list[MPSGraphTensor] | None:
        """Return the tensors that are computed."""
        return None if self.is_stored else self.targets

    def runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        self,
        _queue: Device,
        inputs: Sequence[MPSGraphTensorData],
        results: Sequence[MPSGraphTensorData] | None,
        _how: Any,
    ) -> Sequence[MPSGraphTensorData]:
        """Compute the targets, into the memory of `results` where there are some, and return them.

        InvalidGraph where the inputs have not the shapes and dtypes of the feeds, in their order, and for a target that
        needs a placeholder which is not among the feeds.
        """
        work.note()

        wanted = [(each.shape(), each.example.dtype) for each in self.feeds]
        if [(list(data.shape), data.dtype) for data in inputs] != wanted:
            raise InvalidGraph(f"the inputs are not {wanted} (a Mac ends the process here)")

        values = {feed: data.tensor() for feed, data in zip(self.feeds, inputs, strict=True)}
        made = [MPSGraphTensorData.of(_compute(target, values)) for target in self.targets]
        if not results:
            return made

        for given, result in zip(results, made, strict=True):
            given.memory[:] = result.memory
        return results

    def serializeToMPSGraphPackageAtURL_descriptor_(self, url: NSURL, _how: Any) -> None:
        """Store it as a package: a graph in JSON, and the constants beside it.

        The package is a folder, whose files are overwritten. Each tensor has a number there, larger than those of its
        arguments, so that it can be read in one pass.
        """
        tensors = _sort(self.targets, self.feeds)
        order = {tensor: index for index, tensor in enumerate(tensors)}
        content = {
            "feeds": [order[each] for each in self.feeds],
            "targets": [order[each] for each in self.targets],
            "nodes": [_write_node(tensor, order) for tensor in order],
        }

        url.file.mkdir(exist_ok=True)
        (url.file / "graph.json").write_text(json.dumps(content), encoding="utf-8")
        with zipfile.ZipFile(url.file / "constants.zip", "w") as constants:
            for tensor, index in order.items():
                if tensor.operation == "constant":
                    constants.writestr(str(index), _bytes(tensor.example))

    def initWithMPSGraphPackageAtURL_compilationDescriptor_(self, url: NSURL, _how: Any) -> Self:
        """Read a package that was stored, and return the executable, which tells neither feeds nor targets."""
        content = json.loads((url.file / "graph.json").read_text(encoding="utf-8"))
        made: list[MPSGraphTensor] = []
        with zipfile.ZipFile(url.file / "constants.zip") as constants:
            for index, node in enumerate(content["nodes"]):
                data = constants.read(str(index)) if node["operation"] == "constant" else b""
                made.append(_read_node(node, made, data))

        self.feeds = [made[index] for index in content["feeds"]]
        self.targets = [made[index] for index in content["targets"]]
        self.is_stored = True
        return self

    def initWithCoreMLPackageAtURL_compilationDescriptor_(self, url: NSURL, _how: Any) -> Self:
        """Read a Core ML package."""
        self.feeds, self.targets = coreml.read(url.file)
        self.is_stored = True
        return self


def _compute(tensor: MPSGraphTensor, values: dict[MPSGraphTensor, Tensor]) -> Tensor:
    """Return the value of a tensor of a graph.

    `values` has those of the placeholders that were fed. What is computed on the way is added, so that a tensor which
    several others need is computed once. InvalidGraph for a placeholder that was not fed.
    """
    if tensor in values:
        return values[tensor]
    if tensor.operation == "constant":
        return tensor.example
    if tensor.function is None:
        raise InvalidGraph("a placeholder was not fed (a Mac ends the process here)")

    given = [
        _compute(each, values) if isinstance(each, MPSGraphTensor) else each
        for each in tensor.arguments
    ]
    values[tensor] = tensor.function(*given)
    return values[tensor]


def _sort(
    targets: Sequence[MPSGraphTensor], feeds: Sequence[MPSGraphTensor]
) -> Iterator[MPSGraphTensor]:
    """Yield the tensors that a graph is made of, each once and after those that it needs; the feeds come first."""
    seen: set[MPSGraphTensor] = set()
    # a stack, whose last one is looked at: it stays there until what it needs was yielded
    waiting = [*reversed(targets), *reversed(feeds)]
    while waiting:
        tensor = waiting[-1]
        tensors = (each for each in tensor.arguments if isinstance(each, MPSGraphTensor))
        needed = [each for each in tensors if each not in seen]
        if needed:
            waiting += needed
            continue

        if tensor not in seen:  # several tensors may have put it on the stack
            yield tensor
        seen.add(waiting.pop())


def _write_node(tensor: MPSGraphTensor, order: Mapping[MPSGraphTensor, int]) -> dict[str, Any]:
    """Return what is stored of a tensor; others are named by their number."""
    return {
        "operation": tensor.operation,
        "arguments": [_write_argument(each, order) for each in tensor.arguments],
        "shape": tensor.shape(),
        "type": tensor.dataType(),
    }


def _write_argument(argument: Any, order: Mapping[MPSGraphTensor, int]) -> dict[str, Any]:
    """Return what is stored of an argument."""
    if isinstance(argument, MPSGraphTensor):
        return {"tensor": order[argument]}
    if isinstance(argument, Object):
        return {"descriptor": vars(argument)}
    return {"value": argument}


def _read_node(
    node: Mapping[str, Any], made: Sequence[MPSGraphTensor], data: bytes
) -> MPSGraphTensor:
    """Return the tensor that was stored; `made` has those before it, `data` a constant's values."""
    operation = node["operation"]
    if operation == "constant":
        return MPSGraph().constantWithData_shape_dataType_(data, node["shape"], node["type"])
    if operation == "placeholder":
        return placeholder(node["shape"], TORCH[node["type"]])

    arguments = [_read_argument(each, made) for each in node["arguments"]]
    return add(operation, OPERATIONS[operation], arguments)


def _read_argument(argument: Mapping[str, Any], made: Sequence[MPSGraphTensor]) -> Any:
    """Return the argument that was stored."""
    if "tensor" in argument:
        return made[argument["tensor"]]
    if "descriptor" in argument:
        descriptor = Object()
        vars(descriptor).update(argument["descriptor"])
        return descriptor
    return argument["value"]


def _bytes(value: Tensor) -> bytes:
    """Return the bytes of a tensor in the order of its elements."""
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class MPSGraphTensorData(Object):
    """What is fed to a graph, and what comes out: memory with a shape and a dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: memoryview

    @classmethod
    def of(cls, value: Tensor) -> MPSGraphTensorData:
        """Make one with a tensor's values."""
        return cls().initWithMTLBuffer_shape_dataType_(
            bytearray(_bytes(value)), value.shape, NUMBER[value.dtype]
        )

    def initWithMTLBuffer_shape_dataType_(
        self, buffer: bytearray, shape: Sequence[int], number: int
    ) -> Self:
        """Take a buffer's memory, which is not copied."""
        self.shape = tuple(map(int, shape))
        self.dtype = TORCH[number]
        self.memory = memoryview(buffer)
        return self

    def initWithDevice_data_shape_dataType_(
        self, _device: MPSGraphDevice, data: bytes, shape: Sequence[int], number: int
    ) -> Self:
        """Take a copy of some bytes."""
        return self.initWithMTLBuffer_shape_dataType_(bytearray(data), shape, number)

    def tensor(self) -> Tensor:
        """Return a copy as a tensor."""
        return torch.frombuffer(self.memory, dtype=self.dtype).reshape(self.shape).clone()

    def mpsndarray(self) -> SimpleNamespace:
        """Return what can be read into an array of NumPy, in the order of its elements."""

        def read(array: np.ndarray, _strides: Any) -> None:
            np.copyto(array, self.tensor().numpy().reshape(array.shape))

        return SimpleNamespace(readBytes_strideBytes_=read)


_CLASSES = {name: each for name, each in globals().items() if name.startswith("MPS")}
CONTENT: dict[str, dict[str, Any]] = {
    "Foundation": {"NSData": NSData, "NSURL": NSURL},
    "Metal": {"MTLCreateSystemDefaultDevice": Device, **CONSTANTS},
    "MetalPerformanceShaders": CONSTANTS,
    "MetalPerformanceShadersGraph": CONSTANTS | _CLASSES,
    "objc": {"autorelease_pool": contextlib.nullcontext},
}
"""What each module of PyObjC has."""
