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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metalsim import work
from metalsim.errors import InvalidGraph
from metalsim.graph import coreml
from metalsim.graph.tensors import NUMBER, TORCH, TYPES, MPSGraphTensor, Object, added, placeholder

CONSTANTS = {f"MPSDataType{name}": number for name, (number, _) in TYPES.items()} | {
    "MPSGraphPaddingStyleTF_VALID": 1, "MPSGraphPaddingStyleTF_SAME": 2, "MPSGraphTensorNamedDataLayoutNCHW": 0,
    "MPSGraphTensorNamedDataLayoutOIHW": 2, "MPSGraphFFTScalingModeNone": 0, "MPSGraphFFTScalingModeSize": 1,
    "MPSGraphFFTScalingModeUnitary": 2, "MPSGraphDeploymentPlatformMacOS": 0, "MTLResourceStorageModeShared": 0,
}  # fmt: skip


# ---- Foundation and Metal


class NSData(bytes):
    @classmethod
    def dataWithBytes_length_(cls, data, length):
        return cls(data[:length])


class NSURL:
    def __init__(self, path: str) -> None:
        self.file = Path(path)

    @classmethod
    def fileURLWithPath_(cls, path):
        return cls(path)


class Buffer(bytearray):
    """An MTLBuffer."""

    def contents(self):
        return SimpleNamespace(as_buffer=lambda length: memoryview(self)[:length])

    def length(self):
        return len(self)


class Device:
    """An MTLDevice, and its command queue."""

    def newCommandQueue(self):
        return self

    def newBufferWithLength_options_(self, length, _options):
        return Buffer(length)

    def newBufferWithBytes_length_options_(self, data, length, _options):
        return Buffer(data[:length])


# ---- operations


def _same(sizes: Sequence[int]) -> list[int]:
    """Return the padding, for `torch.nn.functional.pad`, that keeps the size under a window of these sizes."""
    return [side for size in reversed(sizes) for side in ((size - 1) // 2, size // 2)]


def _convolved(x: Tensor, weights: Tensor, how: Any) -> Tensor:
    padded = torch.nn.functional.pad(x, _same(weights.shape[2:])) if how.padding == 2 else x
    return torch.nn.functional.conv2d(padded, weights)


def _quantised(x: Tensor, scale: float, zero: float, number: int) -> Tensor:
    limits = torch.iinfo(TORCH[number])
    return (x / scale + zero).round().clamp(limits.min, limits.max).to(TORCH[number])


def _by_channel(x: Tensor, scales: Tensor, zero: float, number: int, axis: int) -> Tensor:
    shape = [-1 if each == axis % x.dim() else 1 for each in range(x.dim())]
    return (x.to(TORCH[number]) - zero) * scales.reshape(shape)


_SCALING = {0: ("backward", "forward"), 1: ("forward", "backward"), 2: ("ortho", "ortho")}


def _norm(how: Any, inverse: bool) -> str:
    return _SCALING[getattr(how, "scalingMode", 0)][inverse]


def _real(x: Tensor, axes: Sequence[int], how: Any) -> Tensor:
    sizes = [x.shape[axis] for axis in axes]
    sizes[-1] = 2 * (sizes[-1] - 1) + bool(getattr(how, "roundToOddHermitean", False))
    return torch.fft.irfftn(x, sizes, list(axes), _norm(how, True))


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "reLUWithTensor_name_": torch.relu,
    "sigmoidWithTensor_name_": torch.sigmoid,
    "additionWithPrimaryTensor_secondaryTensor_name_": torch.add,
    "subtractionWithPrimaryTensor_secondaryTensor_name_": torch.sub,
    "multiplicationWithPrimaryTensor_secondaryTensor_name_": torch.mul,
    "matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_": torch.matmul,
    "convolution2DWithSourceTensor_weightsTensor_descriptor_name_": _convolved,
    "meanOfTensor_axes_name_": lambda x, axes: x.mean(list(axes), keepdim=True),
    "reshapeTensor_withShape_name_": lambda x, shape: x.reshape(list(shape)),
    "quantizeTensor_scale_zeroPoint_dataType_name_": _quantised,
    "dequantizeTensor_scale_zeroPoint_dataType_name_": lambda x, scale, zero, number: (
        (x.to(TORCH[number]) - zero) * scale
    ),
    "dequantizeTensor_scaleTensor_zeroPoint_dataType_axis_name_": _by_channel,
    "realToHermiteanFFTWithTensor_axes_descriptor_name_": lambda x, axes, how: torch.fft.rfftn(
        x, dim=list(axes), norm=_norm(how, False)
    ),
    "HermiteanToRealFFTWithTensor_axes_descriptor_name_": _real,
    "realPartOfTensor_name_": lambda x: x.real.clone(),
    "imaginaryPartOfTensor_name_": lambda x: x.imag.clone(),
}
"""By PyObjC's selector, a function of the selector's arguments without the name."""


# ---- MPSGraph


class MPSGraphDevice(Object):
    @classmethod
    def deviceWithMTLDevice_(cls, _device):
        return cls()


class MPSGraphShapedType(Object):
    def initWithShape_dataType_(self, _shape, _number):
        return self


class MPSGraphConvolution2DOpDescriptor(Object):
    @classmethod
    def descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_paddingStyle_dataLayout_weightsLayout_(
        cls, *settings
    ):
        if list(settings[:5]) != [1] * 5 or settings[6:] != (0, 2) or settings[5] not in (1, 2):
            raise AttributeError(
                "of convolutions, strides, dilations and groups of 1 in NCHW and OIHW are simulated"
            )
        how = cls()
        how.padding = settings[5]
        return how


class MPSGraphFFTDescriptor(Object):
    pass


class MPSGraphExecutableSerializationDescriptor(Object):
    pass


class MPSGraph(Object):
    def placeholderWithShape_dataType_name_(self, shape, number, _name):
        return placeholder(shape, TORCH[number])

    def constantWithData_shape_dataType_(self, data, shape, number):
        value = torch.frombuffer(bytearray(data), dtype=TORCH[number])
        return MPSGraphTensor("constant", (), value.reshape([int(size) for size in shape]))

    def __getattr__(self, name):
        if name not in OPERATIONS:
            return super().__getattr__(name)
        return lambda *arguments: added(name, OPERATIONS[name], arguments[:-1])

    def compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        self, _device, feeds, targets, _operations, _how
    ):
        return MPSGraphExecutable.of(
            list(reversed(feeds)), list(targets)
        )  # an NSDictionary keeps no order


class MPSGraphExecutable(Object):
    feeds: list[MPSGraphTensor]
    targets: list[MPSGraphTensor]
    is_stored = False

    @classmethod
    def of(cls, feeds, targets):
        made = cls()
        made.feeds, made.targets = feeds, targets
        return made

    def feedTensors(self):
        return None if self.is_stored else self.feeds

    def targetTensors(self):
        return None if self.is_stored else self.targets

    def runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        self, _queue, inputs, results, _how
    ):
        work.note()
        wanted = [(each.shape(), each.example.dtype) for each in self.feeds]
        if [(list(data.shape), data.dtype) for data in inputs] != wanted:
            raise InvalidGraph(f"the inputs are not {wanted} (a Mac ends the process here)")
        values = {feed: data.tensor() for feed, data in zip(self.feeds, inputs, strict=True)}
        made = [MPSGraphTensorData.of(_value(target, values)) for target in self.targets]
        for given, result in zip(results or (), made, strict=bool(results)):
            given.memory[:] = result.memory
        return results or made

    def serializeToMPSGraphPackageAtURL_descriptor_(self, url, _how):
        order = {tensor: index for index, tensor in enumerate(_reached(self.targets, self.feeds))}
        nodes = [
            {
                "operation": tensor.operation,
                "arguments": [_written(each, order) for each in tensor.arguments],
                "shape": tensor.shape(),
                "type": tensor.dataType(),
            }
            for tensor in order
        ]
        ends = {
            "feeds": [order[each] for each in self.feeds],
            "targets": [order[each] for each in self.targets],
        }
        url.file.mkdir(exist_ok=True)
        (url.file / "graph.json").write_text(json.dumps(ends | {"nodes": nodes}), encoding="utf-8")
        with zipfile.ZipFile(url.file / "constants.zip", "w") as constants:
            for tensor, index in order.items():
                if tensor.operation == "constant":
                    constants.writestr(str(index), _bytes(tensor.example))

    def initWithMPSGraphPackageAtURL_compilationDescriptor_(self, url, _how):
        content = json.loads((url.file / "graph.json").read_text(encoding="utf-8"))
        made: list[MPSGraphTensor] = []
        with zipfile.ZipFile(url.file / "constants.zip") as constants:
            for index, node in enumerate(content["nodes"]):
                if node["operation"] == "constant":
                    data = constants.read(str(index))
                    made.append(
                        MPSGraph().constantWithData_shape_dataType_(
                            data, node["shape"], node["type"]
                        )
                    )
                elif node["operation"] == "placeholder":
                    made.append(placeholder(node["shape"], TORCH[node["type"]]))
                else:
                    arguments = [_read(each, made) for each in node["arguments"]]
                    made.append(added(node["operation"], OPERATIONS[node["operation"]], arguments))
        self.feeds, self.targets = (
            [made[index] for index in content[key]] for key in ("feeds", "targets")
        )
        self.is_stored = True
        return self

    def initWithCoreMLPackageAtURL_compilationDescriptor_(self, url, _how):
        self.feeds, self.targets = coreml.read(url.file)
        self.is_stored = True
        return self


def _value(tensor: MPSGraphTensor, values: dict[MPSGraphTensor, Tensor]) -> Tensor:
    """Compute a tensor of a graph from the values of its placeholders, which are kept with all others."""
    if tensor not in values:
        if tensor.operation == "placeholder":
            raise InvalidGraph("a placeholder was not fed (a Mac ends the process here)")
        if tensor.operation == "constant":
            return tensor.example
        given = [
            _value(each, values) if isinstance(each, MPSGraphTensor) else each
            for each in tensor.arguments
        ]
        values[tensor] = tensor.function(*given)
    return values[tensor]


def _reached(
    targets: Sequence[MPSGraphTensor], feeds: Sequence[MPSGraphTensor]
) -> Iterator[MPSGraphTensor]:
    """Yield the tensors that a graph is made of, each after those that it needs."""
    seen: set[MPSGraphTensor] = set()
    waiting = [*reversed(targets), *reversed(feeds)]
    while waiting:
        tensor = waiting[-1]
        needed = [
            each
            for each in tensor.arguments
            if isinstance(each, MPSGraphTensor) and each not in seen
        ]
        waiting += needed
        if not needed:
            if tensor not in seen:
                yield tensor
            seen.add(waiting.pop())


def _written(argument: Any, order: Mapping[MPSGraphTensor, int]) -> dict[str, Any]:
    if isinstance(argument, MPSGraphTensor):
        return {"tensor": order[argument]}
    return {"descriptor": vars(argument)} if isinstance(argument, Object) else {"value": argument}


def _read(argument: Mapping[str, Any], made: Sequence[MPSGraphTensor]) -> Any:
    if "tensor" in argument:
        return made[argument["tensor"]]
    if "descriptor" in argument:
        (restored := Object()).__dict__.update(argument["descriptor"])
        return restored
    return argument["value"]


def _bytes(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class MPSGraphTensorData(Object):
    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: memoryview

    @classmethod
    def of(cls, value: Tensor):
        return cls().initWithMTLBuffer_shape_dataType_(
            bytearray(_bytes(value)), value.shape, NUMBER[value.dtype]
        )

    def initWithMTLBuffer_shape_dataType_(self, buffer, shape, number):
        self.shape, self.dtype, self.memory = (
            tuple(map(int, shape)),
            TORCH[number],
            memoryview(buffer),
        )
        return self

    def initWithDevice_data_shape_dataType_(self, _device, data, shape, number):
        return self.initWithMTLBuffer_shape_dataType_(bytearray(data), shape, number)

    def tensor(self) -> Tensor:
        return torch.frombuffer(self.memory, dtype=self.dtype).reshape(self.shape).clone()

    def mpsndarray(self):
        read = lambda array, _strides: np.copyto(array, self.tensor().numpy().reshape(array.shape))
        return SimpleNamespace(readBytes_strideBytes_=read)


CONTENT: dict[str, dict[str, Any]] = {
    "Foundation": {"NSData": NSData, "NSURL": NSURL},
    "Metal": {"MTLCreateSystemDefaultDevice": Device, **CONSTANTS},
    "MetalPerformanceShaders": CONSTANTS,
    "MetalPerformanceShadersGraph": CONSTANTS
    | {name: each for name, each in globals().items() if name[:3] == "MPS"},
    "objc": {"autorelease_pool": contextlib.nullcontext},
}
"""What each module of PyObjC has."""
