"""A Core ML package as a graph: ``initWithCoreMLPackageAtURL``, which a Mac has since macOS 15.

An ML program (``.mlpackage``, made by coremltools) is a list of operations on named values. Its format is that of
coremltools' ``Model.proto`` and ``MIL.proto``, whose messages are loaded without the rest of coremltools; weights are
in a file beside it, each behind a record of 64 bytes.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from metalsim.errors import SimulationError
from metalsim.graph.tensors import MPSGraphTensor, added, placeholder

_MESSAGES = "metalsim_coreml_messages"
_RECORD = struct.Struct("<IIQQ")  # of a weight: mark, type, size in bytes, position
_DTYPES = {
    "BOOL": torch.bool, "FLOAT16": torch.float16, "FLOAT32": torch.float32, "INT8": torch.int8, "INT32": torch.int32,
    "UINT8": torch.uint8, "UINT16": torch.uint16,
}  # fmt: skip
_CASTS = {"fp16": torch.float16, "fp32": torch.float32, "int32": torch.int32, "bool": torch.bool}


def read(folder: Path) -> tuple[list[MPSGraphTensor], list[MPSGraphTensor]]:
    """Read a package.

    Parameters
    ----------
    folder : Path
        The ``.mlpackage``.

    Returns
    -------
    tuple of two lists of MPSGraphTensor
        The inputs and the outputs, in the model's order.

    Raises
    ------
    SimulationError
        If the package is missing or damaged, uses an operation that is not in `OPERATIONS`, or without coremltools.
    """
    try:
        manifest = json.loads((folder / "Manifest.json").read_text(encoding="utf-8"))
        file = (
            folder / "Data" / manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
        )
        function = (
            _messages("Model_pb2").Model.FromString(file.read_bytes()).mlProgram.functions["main"]
        )
        block = function.block_specializations[function.opset]
        values: dict[str, Any] = {
            each.name: placeholder(*_type(each.type.tensorType)) for each in function.inputs
        }
        feeds = list(values.values())
        for operation in block.operations:
            values[operation.outputs[0].name] = _value_of(operation, values, file.parent)
        return feeds, [values[name] for name in block.outputs]
    except SimulationError:
        raise
    except Exception as error:
        raise SimulationError(f"{folder} cannot be read as a Core ML package: {error!r}") from error


def _messages(name: str) -> ModuleType:
    """Return a module of coremltools' messages, without importing coremltools, which takes seconds."""
    if _MESSAGES not in sys.modules:
        spec = importlib.util.find_spec("coremltools")
        if spec is None or spec.origin is None:
            raise SimulationError(
                "reading a Core ML package takes coremltools, which is not installed"
            )
        package = ModuleType(_MESSAGES)
        package.__path__ = [str(Path(spec.origin).with_name("proto"))]
        sys.modules[_MESSAGES] = package
    return importlib.import_module(f"{_MESSAGES}.{name}")


def _type(tensor_type: Any) -> tuple[list[int], torch.dtype]:
    name = _messages("MIL_pb2").DataType.Name(tensor_type.dataType)
    return [each.constant.size for each in tensor_type.dimensions], _DTYPES[name]


def _value_of(operation: Any, values: Mapping[str, Any], folder: Path) -> Any:
    if operation.type == "const":
        return _constant(operation.attributes["val"], folder)
    if operation.type not in OPERATIONS:
        raise SimulationError(
            f"Core ML's {operation.type!r} is not simulated; {', '.join(OPERATIONS)} are"
        )
    given = {
        name: _argument(each.arguments[0], values, folder)
        for name, each in operation.inputs.items()
    }
    # tensors by position, so that the graph sees them; constants are a part of the function
    tensors = {name: each for name, each in given.items() if isinstance(each, MPSGraphTensor)}
    constants = {name: each for name, each in given.items() if name not in tensors}
    function = lambda *arguments: OPERATIONS[operation.type](
        **dict(zip(tensors, arguments, strict=True)), **constants
    )
    return added(operation.type, function, list(tensors.values()))


def _argument(binding: Any, values: Mapping[str, Any], folder: Path) -> Any:
    return (
        values[binding.name]
        if binding.WhichOneof("binding") == "name"
        else _constant(binding.value, folder)
    )


def _constant(value: Any, folder: Path) -> Tensor | str:
    if value.WhichOneof("value") == "blobFileValue":
        shape, dtype = _type(value.type.tensorType)
        with (folder / value.blobFileValue.fileName.removeprefix("@model_path/")).open(
            "rb"
        ) as file:
            file.seek(value.blobFileValue.offset)
            _, _, size, start = _RECORD.unpack(file.read(_RECORD.size))
            file.seek(start)
            return torch.frombuffer(bytearray(file.read(size)), dtype=dtype).reshape(shape)
    content = value.immediateValue.tensor
    kind = content.WhichOneof("value")
    if kind == "strings":
        return content.strings.values[0]
    shape, dtype = _type(value.type.tensorType)
    if kind == "bytes":
        return torch.frombuffer(bytearray(content.bytes.values), dtype=dtype).reshape(shape)
    return torch.tensor(list(getattr(content, kind).values), dtype=dtype).reshape(shape)


def _convolved(x, weight, strides, pad_type, pad, dilations, groups, bias=None) -> Tensor:
    padding = pad.reshape(-1, 2).flip(0).flatten().tolist() if pad_type == "custom" else None
    if padding is None and pad_type not in ("valid", "same"):
        raise SimulationError(f"a Core ML convolution with padding {pad_type!r} is not simulated")
    x = x if padding is None else F.pad(x, padding)
    how = {"stride": strides.tolist(), "dilation": dilations.tolist(), "groups": int(groups)}
    return F.conv2d(x, weight, bias, padding="same" if pad_type == "same" else 0, **how)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y: x + y,
    "cast": lambda x, dtype: x.to(_CASTS[dtype]),
    "conv": _convolved,
    "linear": lambda x, weight, bias=None: F.linear(x, weight, bias),
    "mul": lambda x, y: x * y,
    "reduce_mean": lambda x, axes, keep_dims: x.mean(axes.tolist(), keepdim=bool(keep_dims)),
    "relu": lambda x: x.relu(),
    "reshape": lambda x, shape: x.reshape(shape.tolist()),
    "sigmoid": lambda x: x.sigmoid(),
    "softmax": lambda x, axis: x.softmax(int(axis)),
    "squeeze": lambda x, axes: x.squeeze(axes.tolist()),
}
"""By Core ML's name, a function of the operation's arguments by name."""
