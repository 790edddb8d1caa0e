"""A Core ML package as a program: what ``initWithCoreMLPackageAtURL`` does on a Mac with macOS 15.

An ML program (``.mlpackage``, made by coremltools) is a list of operations on named values. Each is added to a
simulated MPSGraph; the weights lie in a file beside it. The operations that small convolutional and dense networks are
converted to are known, others are refused by name.

The format: coremltools' ``Model.proto`` and ``MIL.proto``, the messages of which are loaded without coremltools itself,
which takes seconds; and its ``MILBlob`` storage, records of 64 bytes that say where a weight lies.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from metalsim.graph import contract, datatypes, descriptors
from metalsim.graph.construction import Construction
from metalsim.graph.errors import NotSimulated, PackageError
from metalsim.graph.program import Program
from metalsim.graph.tensors import MPSGraphTensor

MESSAGES = "metalsim_coreml_messages"
RECORD = struct.Struct("<IIQQ")  # of a weight: mark, type, size in bytes, where it lies
MARK = 0xDEADBEEF
DTYPES = {
    "BOOL": torch.bool, "FLOAT16": torch.float16, "FLOAT32": torch.float32, "INT8": torch.int8, "INT16": torch.int16,
    "INT32": torch.int32, "UINT8": torch.uint8, "UINT16": torch.uint16,
}  # fmt: skip
NCHW, OIHW = 0, 2
PAD_STYLES = {"valid": 1, "custom": 0, "same": 2, "same_lower": 4}

Value = MPSGraphTensor | Tensor | str
"""Of a named value: a tensor of the graph, or a constant."""


def read(folder: Path) -> Program:
    """The program of a package, its inputs in the order of the model's.

    `PackageError` for one that is missing or damaged, `NotSimulated` for what is no ML program or uses more than is
    known here, and without coremltools.
    """
    model_file = _model_file(folder)
    try:
        model = _model(model_file)
        if model.WhichOneof("Type") != "mlProgram":
            kind = model.WhichOneof("Type") or "empty model"
            raise NotSimulated(f"{folder.name} holds a Core ML {kind}: only ML programs are simulated")
        function = model.mlProgram.functions["main"]
        block = function.block_specializations[function.opset]
        return _program(function, block, model_file.parent)
    except (ValueError, KeyError, OSError, struct.error) as error:
        raise PackageError(f"{folder} is damaged: {error}") from error


def _model_file(folder: Path) -> Path:
    manifest = folder / "Manifest.json"
    if not manifest.is_file():
        raise PackageError(f"there is no Core ML package at {folder}: it has no Manifest.json")
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return folder / "Data" / content["itemInfoEntries"][content["rootModelIdentifier"]]["path"]
    except (KeyError, TypeError, ValueError) as error:
        raise PackageError(f"{manifest} is damaged: {error}") from error


def _messages(name: str) -> ModuleType:
    """A module of coremltools' messages, without what importing coremltools brings."""
    if MESSAGES not in sys.modules:
        spec = importlib.util.find_spec("coremltools")
        if spec is None or spec.origin is None:
            raise NotSimulated("reading a Core ML package takes coremltools, which is not installed")
        package = ModuleType(MESSAGES)
        package.__path__ = [str(Path(spec.origin).with_name("proto"))]
        sys.modules[MESSAGES] = package
    return importlib.import_module(f"{MESSAGES}.{name}")


def _model(file: Path) -> Any:
    """What a model file holds. ValueError for one that is damaged."""
    messages = _messages("Model_pb2")
    from google.protobuf.message import DecodeError  # comes with coremltools

    try:
        return messages.Model.FromString(file.read_bytes())
    except DecodeError as error:
        raise ValueError(f"{file.name}: {error}") from error


def _program(function: Any, block: Any, folder: Path) -> Program:
    graph = Construction.alloc().init()
    values: dict[str, Value] = {}
    placeholders = []
    for each in function.inputs:
        shape, dtype = _type(each.type.tensorType)
        placeholders.append(_call(graph, "placeholderWithShape:dataType:name:", shape, datatypes.MPS[dtype], each.name))
        values[each.name] = placeholders[-1]
    for operation in block.operations:
        arguments = {name: _argument(each, values, folder) for name, each in operation.inputs.items()}
        values[operation.outputs[0].name] = _added(graph, operation, arguments, folder)
    targets = [_tensor(graph, values[name]) for name in block.outputs]
    program, _ = graph._program(placeholders[::-1], targets)
    return program


def _added(graph: Any, operation: Any, arguments: Mapping[str, Any], folder: Path) -> Value:
    if operation.type == "const":
        return _constant(operation.attributes["val"], folder)
    if operation.type not in OPERATIONS:
        raise NotSimulated(
            f"the Core ML operation {operation.type!r} is not simulated; {', '.join(sorted(OPERATIONS))} are"
        )
    add = OPERATIONS[operation.type]
    try:
        inspect.signature(add).bind(None, **arguments)
    except TypeError:
        raise NotSimulated(
            f"the Core ML operation {operation.type!r} of {', '.join(arguments)} is not simulated"
        ) from None
    return add(_Builder(graph), **arguments)


def _argument(argument: Any, values: Mapping[str, Value], folder: Path) -> Any:
    """A value, or a list of them for an argument of several."""
    values_given = [
        values[each.name] if each.WhichOneof("binding") == "name" else _constant(each.value, folder)
        for each in argument.arguments
    ]
    return values_given[0] if len(values_given) == 1 else values_given


# ---- constants


def _type(tensor_type: Any) -> tuple[list[int], torch.dtype]:
    kinds = _messages("MIL_pb2").DataType
    name = kinds.Name(tensor_type.dataType)
    if name not in DTYPES:
        raise NotSimulated(f"the Core ML data type {name} is not simulated")
    if any(each.WhichOneof("dimension") != "constant" for each in tensor_type.dimensions):
        raise NotSimulated("a Core ML model with flexible shapes is not simulated")
    return [each.constant.size for each in tensor_type.dimensions], DTYPES[name]


def _constant(value: Any, folder: Path) -> Tensor | str:
    if value.WhichOneof("value") == "blobFileValue":
        shape, dtype = _type(value.type.tensorType)
        file = folder / value.blobFileValue.fileName.removeprefix("@model_path/")
        return datatypes.from_memory(_weight(file, value.blobFileValue.offset), tuple(shape), dtype)
    content = value.immediateValue.tensor
    kind = content.WhichOneof("value")
    if kind == "strings":
        return content.strings.values[0]
    shape, dtype = _type(value.type.tensorType)
    if kind == "bytes":
        return datatypes.from_memory(content.bytes.values, tuple(shape), dtype)
    return torch.tensor(list(getattr(content, kind).values), dtype=dtype).reshape(shape)


def _weight(file: Path, offset: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        mark, _, size, start = RECORD.unpack(stream.read(RECORD.size))
        if mark != MARK:
            raise ValueError(f"{file.name} has no weight at {offset}")
        stream.seek(start)
        return stream.read(size)


# ---- operations of the Model Intermediate Language, by those of MPSGraph


def _call(graph: Any, selector: str, *arguments: Any) -> Any:
    return getattr(graph, contract.python_name(selector))(*arguments)


def _tensor(graph: Any, value: Value, like: MPSGraphTensor | None = None) -> MPSGraphTensor:
    """A tensor of the graph, made of a constant if it is none yet."""
    if isinstance(value, MPSGraphTensor):
        return value
    return graph._constant(value if like is None or not value.is_floating_point() else value.to(like._dtype))


class _Builder:
    """Adds operations to a graph, constants being turned into tensors."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __call__(self, selector: str, *arguments: Any) -> Any:
        like = next((each for each in arguments if isinstance(each, MPSGraphTensor)), None)
        tensors = (_tensor(self.graph, each, like) if isinstance(each, Tensor) else each for each in arguments)
        return _call(self.graph, selector, *tensors, None)

    def scalar(self, like: MPSGraphTensor, value: float) -> MPSGraphTensor:
        return _call(self.graph, "constantWithScalar:dataType:", value, datatypes.MPS[like._dtype])


def _numbers(value: Tensor) -> list[int]:
    return [int(each) for each in value.flatten().tolist()]


def _sides(pad: Tensor) -> tuple[int, int, int, int]:
    """Core ML's top, bottom, left, right in MPSGraph's order: left, right, top, bottom."""
    top, bottom, left, right = _numbers(pad)
    return left, right, top, bottom


def _descriptor(kind: str, selector: str, *values: int) -> Any:
    """A descriptor, made by a selector of its class."""
    return getattr(descriptors.CLASSES[kind], contract.python_name(selector))(*values)


def _check_window(what: str, dimensions: int, pad_type: str) -> None:
    """`NotSimulated` unless the window moves over two dimensions that are padded in a known way."""
    if dimensions != 2 or pad_type not in PAD_STYLES:
        raise NotSimulated(
            f"a Core ML {what} over {dimensions} dimensions with padding {pad_type!r} is not simulated; over 2 with "
            f"{', '.join(PAD_STYLES)} it is"
        )


def _unary(stem: str) -> Callable[..., Any]:
    return lambda b, x: b(f"{stem}WithTensor:name:", x)


def _binary(stem: str) -> Callable[..., Any]:
    return lambda b, x, y: b(f"{stem}WithPrimaryTensor:secondaryTensor:name:", x, y)


def _convolution(
    b: _Builder,
    x: Any,
    weight: Any,
    strides: Any,
    pad_type: str,
    pad: Any,
    dilations: Any,
    groups: Any,
    bias: Any = None,
) -> Any:
    _check_window("convolution", weight.ndim - 2, pad_type)
    (down, across), (tall, wide) = _numbers(strides), _numbers(dilations)
    descriptor = _descriptor(
        "MPSGraphConvolution2DOpDescriptor",
        "descriptorWithStrideInX:strideInY:dilationRateInX:dilationRateInY:groups:paddingLeft:paddingRight:paddingTop:"
        "paddingBottom:paddingStyle:dataLayout:weightsLayout:",
        *(across, down, wide, tall, int(groups), *_sides(pad), PAD_STYLES[pad_type], NCHW, OIHW),
    )
    y = b("convolution2DWithSourceTensor:weightsTensor:descriptor:name:", x, weight, descriptor)
    return y if bias is None else _binary("addition")(b, y, bias.reshape(1, -1, 1, 1))


def _pooling(kind: str) -> Callable[..., Any]:
    def add(
        b: _Builder, x: Any, kernel_sizes: Any, strides: Any, pad_type: str, pad: Any, ceil_mode: Any = None,
        exclude_padding_from_average: Any = None,
    ) -> Any:  # fmt: skip
        _check_window("pooling", kernel_sizes.numel(), pad_type)
        (tall, wide), (down, across) = _numbers(kernel_sizes), _numbers(strides)
        descriptor = _descriptor(
            "MPSGraphPooling2DOpDescriptor",
            "descriptorWithKernelWidth:kernelHeight:strideInX:strideInY:dilationRateInX:dilationRateInY:paddingLeft:"
            "paddingRight:paddingTop:paddingBottom:paddingStyle:dataLayout:",
            *(wide, tall, across, down, 1, 1, *_sides(pad), PAD_STYLES[pad_type], NCHW),
        )
        descriptor.setCeilMode_(bool(ceil_mode))
        descriptor.setIncludeZeroPadToAverage_(
            exclude_padding_from_average is not None and not exclude_padding_from_average
        )
        return b(f"{kind}Pooling2DWithSourceTensor:descriptor:name:", x, descriptor)

    return add


def _linear(b: _Builder, x: Any, weight: Any, bias: Any = None) -> Any:
    y = b("matrixMultiplicationWithPrimaryTensor:secondaryTensor:name:", x, weight.t())
    return y if bias is None else _binary("addition")(b, y, bias)


def _matmul(b: _Builder, x: Any, y: Any, transpose_x: Any = None, transpose_y: Any = None) -> Any:
    x, y = _tensor(b.graph, x), _tensor(b.graph, y)
    operands = [
        b("transposeTensor:dimension:withDimension:name:", each, len(each._shape) - 2, len(each._shape) - 1)
        if turned
        else each
        for each, turned in ((x, transpose_x), (y, transpose_y))
    ]
    return b("matrixMultiplicationWithPrimaryTensor:secondaryTensor:name:", *operands)


def _gelu(b: _Builder, x: Any, mode: str) -> Any:
    """x * (1 + erf(x / sqrt(2))) / 2"""
    if mode != "EXACT":
        raise NotSimulated(f"the Core ML gelu of mode {mode!r} is not simulated, EXACT is")
    bell = _unary("erf")(b, _binary("multiplication")(b, x, b.scalar(x, 0.5**0.5)))
    half = _binary("multiplication")(b, x, b.scalar(x, 0.5))
    return _binary("multiplication")(b, half, _binary("addition")(b, bell, b.scalar(x, 1.0)))


def _silu(b: _Builder, x: Any) -> Any:
    return _binary("multiplication")(b, x, _unary("sigmoid")(b, x))


def _layer_norm(b: _Builder, x: Any, axes: Any, epsilon: Any, gamma: Any = None, beta: Any = None) -> Any:
    mean = b("meanOfTensor:axes:name:", x, _numbers(axes))
    variance = b("varianceOfTensor:axes:name:", x, _numbers(axes))
    return _normalised(b, x, mean, variance, gamma, beta, epsilon)


def _batch_norm(
    b: _Builder, x: Any, mean: Any, variance: Any, epsilon: Any, gamma: Any = None, beta: Any = None
) -> Any:
    shape = [1, -1] + [1] * (len(x._shape) - 2)
    parts = [None if each is None else each.reshape(shape) for each in (mean, variance, gamma, beta)]
    return _normalised(b, x, *parts, epsilon)


def _normalised(b: _Builder, x: Any, mean: Any, variance: Any, gamma: Any, beta: Any, epsilon: Any) -> Any:
    selector = "normalizationWithTensor:meanTensor:varianceTensor:gammaTensor:betaTensor:epsilon:name:"
    return b(selector, x, mean, variance, gamma, beta, float(epsilon))


def _concat(b: _Builder, values: Any, axis: Any, interleave: Any) -> Any:
    """``values`` is a list, or the one value of it."""
    given = values if isinstance(values, list) else [values]
    like = next((each for each in given if isinstance(each, MPSGraphTensor)), None)
    tensors = [_tensor(b.graph, each, like) for each in given]
    return b("concatTensors:dimension:interleave:name:", tensors, int(axis), bool(interleave))


def _reduction(selector: str) -> Callable[..., Any]:
    def add(b: _Builder, x: Any, axes: Any, keep_dims: Any) -> Any:
        y = b(selector, x, _numbers(axes))
        return y if keep_dims else b("squeezeTensor:axes:name:", y, _numbers(axes))

    return add


def _cast(b: _Builder, x: Any, dtype: str) -> Any:
    names = {"fp16": torch.float16, "fp32": torch.float32, "int32": torch.int32, "bool": torch.bool}
    if dtype not in names:
        raise NotSimulated(f"the Core ML cast to {dtype!r} is not simulated; {', '.join(names)} are")
    return b("castTensor:toType:name:", x, datatypes.MPS[names[dtype]])


OPERATIONS: dict[str, Callable[..., Any]] = {
    "conv": _convolution,
    "linear": _linear,
    "matmul": _matmul,
    "max_pool": _pooling("max"),
    "avg_pool": _pooling("avg"),
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "silu": _silu,
    "relu": _unary("reLU"),
    "sigmoid": _unary("sigmoid"),
    "tanh": _unary("tanh"),
    "exp": _unary("exponent"),
    "sqrt": _unary("squareRoot"),
    "add": _binary("addition"),
    "sub": _binary("subtraction"),
    "mul": _binary("multiplication"),
    "real_div": _binary("division"),
    "maximum": _binary("maximumWithNaNPropagation"),
    "minimum": _binary("minimumWithNaNPropagation"),
    "softmax": lambda b, x, axis: b("softMaxWithTensor:axis:name:", x, int(axis)),
    "reshape": lambda b, x, shape: b("reshapeTensor:withShape:name:", x, _numbers(shape)),
    "transpose": lambda b, x, perm: b(
        "transposeTensor:permutation:name:", x, [axis % len(x._shape) for axis in _numbers(perm)]
    ),
    "expand_dims": lambda b, x, axes: b("expandDimsOfTensor:axes:name:", x, _numbers(axes)),
    "squeeze": lambda b, x, axes: b("squeezeTensor:axes:name:", x, _numbers(axes)),
    "concat": _concat,
    "reduce_mean": _reduction("meanOfTensor:axes:name:"),
    "reduce_sum": _reduction("reductionSumWithTensor:axes:name:"),
    "reduce_max": _reduction("reductionMaximumWithTensor:axes:name:"),
    "cast": _cast,
}
