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
from metalsim.graph.tensors import MPSGraphTensor, add, placeholder

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
        return _read(folder)
    except SimulationError:
        raise
    except Exception as error:
        raise SimulationError(f"{folder} cannot be read as a Core ML package: {error!r}") from error


def _read(folder: Path) -> tuple[list[MPSGraphTensor], list[MPSGraphTensor]]:
    """Do what `read` does; whatever a damaged package makes go wrong is raised as it is."""
    manifest = json.loads((folder / "Manifest.json").read_text(encoding="utf-8"))
    entry = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
    file = folder / "Data" / entry["path"]

    model = _messages("Model_pb2").Model.FromString(file.read_bytes())
    function = model.mlProgram.functions["main"]
    block = function.block_specializations[function.opset]

    values: dict[str, Any] = {}
    for given in function.inputs:
        shape, dtype = _type(given.type.tensorType)
        values[given.name] = placeholder(shape, dtype)
    feeds = list(values.values())  # only these so far

    for operation in block.operations:
        values[operation.outputs[0].name] = _value_of(operation, values, file.parent)
    return feeds, [values[name] for name in block.outputs]


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
    """Return shape and dtype that a message describes."""
    name = _messages("MIL_pb2").DataType.Name(tensor_type.dataType)
    return [each.constant.size for each in tensor_type.dimensions], _DTYPES[name]


def _value_of(operation: Any, values: Mapping[str, Any], folder: Path) -> Any:
    """Return what an operation makes of the values before it: a tensor of the graph, or a constant.

    `values` has them by name; `folder` is where the file of weights is. SimulationError for an operation that is not in
    `OPERATIONS`, InvalidGraph where its arguments do not fit.
    """
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

    def compute(*arguments: Tensor) -> Tensor:
        by_name = dict(zip(tensors, arguments, strict=True))
        return OPERATIONS[operation.type](**by_name, **constants)

    return add(operation.type, compute, list(tensors.values()))


def _argument(binding: Any, values: Mapping[str, Any], folder: Path) -> Any:
    """Return the value that an argument names, or the constant that it is."""
    if binding.WhichOneof("binding") == "name":
        return values[binding.name]
    return _constant(binding.value, folder)


def _constant(value: Any, folder: Path) -> Tensor | str:
    """Return a constant: from the file of weights, or as it stands in the message, a text or numbers."""
    if value.WhichOneof("value") == "blobFileValue":
        shape, dtype = _type(value.type.tensorType)
        return _read_weight(value.blobFileValue, folder, dtype).reshape(shape)

    content = value.immediateValue.tensor
    kind = content.WhichOneof("value")
    if kind == "strings":
        text: str = content.strings.values[0]
        return text

    shape, dtype = _type(value.type.tensorType)
    if kind == "bytes":
        return torch.frombuffer(bytearray(content.bytes.values), dtype=dtype).reshape(shape)
    return torch.tensor(list(getattr(content, kind).values), dtype=dtype).reshape(shape)


def _read_weight(place: Any, folder: Path, dtype: torch.dtype) -> Tensor:
    """Return the numbers of a weight: a record before them says where they begin, and how many bytes they are."""
    with (folder / place.fileName.removeprefix("@model_path/")).open("rb") as file:
        file.seek(place.offset)
        _, _, size, start = _RECORD.unpack(file.read(_RECORD.size))

        file.seek(start)
        return torch.frombuffer(bytearray(file.read(size)), dtype=dtype)


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    pad_type: str,
    pad: Tensor,
    **settings: Tensor,
) -> Tensor:
    """Compute Core ML's ``conv``; its strides, dilations and number of groups are tensors as well.

    SimulationError for another padding than these three.
    """
    if pad_type not in ("custom", "valid", "same"):
        raise SimulationError(f"a Core ML convolution with padding {pad_type!r} is not simulated")
    if pad_type == "custom":
        # Core ML has a pair for each dimension, the first one first; PyTorch begins with the last dimension
        x = F.pad(x, pad.reshape(-1, 2).flip(0).flatten().tolist())

    return F.conv2d(
        x,
        weight,
        bias,
        stride=settings["strides"].tolist(),
        padding="same" if pad_type == "same" else 0,
        dilation=settings["dilations"].tolist(),
        groups=int(settings["groups"]),
    )


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y: x + y,
    "cast": lambda x, dtype: x.to(_CASTS[dtype]),
    "conv": _convolve,
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
