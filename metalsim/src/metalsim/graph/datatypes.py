"""MPSDataType and PyTorch's dtype."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from metalsim.graph import contract
from metalsim.graph.errors import NotSimulated

_BY_NAME = {
    "Float32": torch.float32,
    "Float16": torch.float16,
    "BFloat16": torch.bfloat16,
    "ComplexFloat32": torch.complex64,
    "ComplexFloat16": torch.complex32,
    "Bool": torch.bool,
    "Int8": torch.int8,
    "Int16": torch.int16,
    "Int32": torch.int32,
    "Int64": torch.int64,
    "UInt8": torch.uint8,
    "UInt16": torch.uint16,
    "UInt32": torch.uint32,
    "UInt64": torch.uint64,
}
with warnings.catch_warnings():  # PyTorch calls complex32 experimental, once, when the first one is made
    warnings.simplefilter("ignore")
    torch.zeros(1, dtype=torch.complex32)

TORCH = {contract.constants()[f"MPSDataType{name}"]: dtype for name, dtype in _BY_NAME.items()}
MPS = {dtype: value for value, dtype in TORCH.items()}
NAMES = {value: name for name, value in contract.constants().items() if name.startswith("MPSDataType")}


def torch_dtype(value: int) -> torch.dtype:
    """PyTorch's dtype of an MPSDataType. `NotSimulated` for int4 and the like, ValueError for no type at all."""
    if value in TORCH:
        return TORCH[value]
    if value in NAMES:
        raise NotSimulated(f"{NAMES[value]} is not simulated; {', '.join(sorted(_BY_NAME))} are")
    raise ValueError(f"{value:#x} is no MPSDataType; take the constants, such as MPSDataTypeFloat32")


def name(dtype: torch.dtype) -> str:
    """``MPSDataTypeFloat32`` for torch.float32."""
    return NAMES[MPS[dtype]]


def blank(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros that takes no memory, to learn from what an operation makes of it.

    Tensors on PyTorch's ``meta`` device would do, but the first one imports PyTorch's compiler, which takes seconds.
    """
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


def from_memory(memory: bytearray | bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor over the same memory (of bytes: over a copy). ValueError if it is too short."""
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize > len(memory):
        raise ValueError(
            f"shape {list(shape)} of {name(dtype)} takes {count * dtype.itemsize} bytes, not {len(memory)}"
        )
    if not count:
        return torch.empty(shape, dtype=dtype)
    if not isinstance(memory, bytearray):
        memory = bytearray(memory)
    return torch.frombuffer(memory, dtype=torch.uint8, count=count * dtype.itemsize).view(dtype).view(shape)


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The values, one after the other, the last dimension fastest."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
