"""Bind the arguments of a kernel call as torch.mps.compile_shader does: to buffers 0, 1, 2, ... in order.

Stricter than Metal on purpose: a wrong dtype, a short buffer and an unbound one raise RuntimeError.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

MOST_BUFFERS = 31
CASTS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}
WORDS = {
    "f": "float",
    "h": "half",
    "b": "bfloat",
    "B": "bool",
    "i": "integer",
    "u": "unsigned integer",
    "s": "struct",
}
RAW = "r"  # bytes of which nothing more is known
_KINDS = {
    torch.float32: "f",
    torch.float16: "h",
    torch.bfloat16: "b",
    torch.bool: "B",
    torch.complex64: "f",
    torch.complex32: "h",
}


class Parameter(ctypes.Structure):
    """One parameter of a compiled kernel: MetalsimParameter in abi.h, which explains the fields."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("buffer", "is_reference", "kind", "scalar_bytes", "bytes", "is_const")
    )


@dataclass(frozen=True)
class Buffer:
    """Memory that a kernel sees: its address and length in bytes, and what its scalars are (see abi.h)."""

    address: int
    bytes: int
    kind: str
    scalar_bytes: int
    owner: object  # keeps the memory alive
    number: int | float | None = None  # the Python number that it was made of

    @property
    def text(self) -> str:
        """What it holds, for messages."""
        return (
            f"{self.scalar_bytes}-byte {WORDS[self.kind]}"
            if self.kind in "iu"
            else WORDS[self.kind]
        )


@dataclass(frozen=True)
class Call:
    """A kernel call: its buffers by index, and how many threads in all and in a group, in x, y and z."""

    buffers: dict[int, Buffer]
    threads: tuple[int, int, int]
    group_size: tuple[int, int, int]


def bind(
    args: Sequence[object],
    threads: object,
    group_size: object,
    arg_casts: object,
    strided: bool,
    most_threads: int = 1024,
) -> Call:
    """Return the call of `kernel(*args, threads=..., group_size=..., arg_casts=...)`. Errors as PyTorch's.

    `most_threads` is the kernel's limit for a group; with `strided`, tensors need not be contiguous.
    """
    total, group, casts = _extent(threads), _extent(group_size), _Casts(arg_casts)
    buffers = {}
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            buffers[index] = _of_tensor(index, value, strided)
            total = [value.numel()] if total is None else total
        else:
            buffers[index] = casts.number(index, value)
    if total is None:
        raise RuntimeError("Number of threads is undefined or has wrong dimension")
    if group is not None and len(group) != len(total):
        raise RuntimeError(
            "Expected !group_size.has_value() || threads->size() == group_size->size() to be true, but got false. "
            f"threads has {len(total)} dimensions, group_size {len(group)}."
        )
    if group is None:
        group = [
            min(total[0], most_threads) if len(total) == 1 else most_threads,
            *[1] * (len(total) - 1),
        ]
    if math.prod(group) > most_threads:
        raise ValueError(f"Threadgroup size exceeds {most_threads} limit")
    if 0 in group and 0 not in total:
        raise ValueError("group_size must be at least 1 in each dimension")
    return Call(buffers, _three(total), _three(group))


def raw(address: int | None, length: int) -> Buffer:
    """Return memory as a command encoder binds it, of unknown type."""
    return Buffer(address or 0, length, RAW, 1, None)


def _extent(value: object) -> list[int] | None:
    if value is None:
        return None
    try:
        numbers = [value] if isinstance(value, int) else list(value)
    except TypeError:
        kind = type(value).__name__
        raise RuntimeError(
            f"threads and group_size are an int, or up to three of them, not a {kind}"
        ) from None
    if not 0 < len(numbers) < 4:
        raise RuntimeError("Expected vec.size() > 0 && vec.size() < 4 to be true, but got false.")
    if any(not isinstance(n, int) or n < 0 or n >= 2**32 for n in numbers):
        raise RuntimeError(f"threads and group_size are counts from 0 to 2**32 - 1, not {value!r}")
    return numbers


def _three(numbers: list[int]) -> tuple[int, int, int]:
    return tuple([*numbers, 1, 1][:3])


def _of_tensor(index: int, tensor: torch.Tensor, strided: bool) -> Buffer:
    if tensor.dtype in (torch.float64, torch.complex128):
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
            "Please use float32 instead."
        )
    if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "mps"):
        raise RuntimeError(
            f"argument {index} is not a dense tensor in memory: {tensor.layout}, {tensor.device}"
        )
    if tensor.is_conj() or tensor.is_neg():
        kind, way_out = (
            ("conjugate", "resolve_conj()") if tensor.is_conj() else ("negative", "resolve_neg()")
        )
        raise RuntimeError(
            f"argument {index} is the {kind} of what its memory holds, and a kernel sees memory: pass tensor.{way_out}"
        )
    width = tensor.element_size()
    if tensor.is_contiguous():
        length = tensor.numel() * width
    elif strided:
        length = tensor.untyped_storage().nbytes() - tensor.storage_offset() * width
    else:
        raise RuntimeError(
            f"argument {index} has strides {tuple(tensor.stride())} for shape {tuple(tensor.shape)}: a kernel sees "
            "memory, not strides. Pass tensor.contiguous()"
        )
    kind = _KINDS.get(tensor.dtype) or ("i" if tensor.dtype.is_signed else "u")
    return Buffer(
        tensor.data_ptr(), length, kind, width // (2 if tensor.is_complex() else 1), tensor
    )


class _Casts:
    """What arg_casts asks for: a name for all numbers, or {index: name}."""

    def __init__(self, asked: object) -> None:
        if asked is not None and not isinstance(asked, (str, dict)):
            raise RuntimeError(f"Unexpected caster arg type {type(asked).__name__}")
        self.default = asked if isinstance(asked, str) else ""
        self.by_index = asked if isinstance(asked, dict) else {}

    def number(self, index: int, value: object) -> Buffer:
        """Return the buffer for a number, or a list of them. float is float, int is int64, unless cast."""
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
        if isinstance(values[0], torch.Tensor):
            raise RuntimeError(
                f"argument {index} is a list of tensors: argument buffers are not simulated"
            )
        if not isinstance(values[0], (int, float)):
            listed = isinstance(value, (list, tuple))
            raise RuntimeError(
                "Unexpected argument types" if listed else "Unsupported argument type"
            )
        name = self.by_index.get(index, self.default)
        if name and name not in CASTS:
            raise RuntimeError(f"Unsupported cast instruction {name}; known are {', '.join(CASTS)}")
        kind = float if isinstance(values[0], float) else int
        dtype = CASTS[name] if name else torch.float32 if kind is float else torch.int64
        data = torch.tensor([kind(v) for v in values], dtype=dtype, device="cpu")
        number = values[0] if len(values) == 1 and not name else None
        made = _of_tensor(index, data, strided=False)
        return Buffer(made.address, made.bytes, made.kind, made.scalar_bytes, data, number)


# ---- what Metal would take, and what it would make of it -------------------------------------------------------------


def check_parameters(
    kernel: str, parameters: Sequence[Parameter], buffers: dict[int, Buffer]
) -> None:
    """RuntimeError for a buffer that is missing, too short, or holds something else than the kernel declares."""
    for parameter in parameters:
        index = parameter.buffer
        if index < 0:
            continue
        if index not in buffers:
            raise RuntimeError(
                f"{kernel}: buffer({index}) is not bound, {len(buffers)} arguments were given"
            )
        _check_buffer(f"{kernel}: buffer({index})", parameter, buffers[index])


def _check_buffer(name: str, parameter: Parameter, buffer: Buffer) -> None:
    want, have = chr(parameter.kind), buffer.kind
    if parameter.is_reference and buffer.bytes < parameter.bytes:
        raise RuntimeError(f"{name} has {buffer.bytes} bytes, the kernel reads {parameter.bytes}")
    if want in "sv" or have == RAW:
        return
    floating = "fhb"
    if (want in floating or have in floating) and want != have:
        raise RuntimeError(
            f"{name} holds {buffer.text}, the kernel declares {WORDS[want]}: Metal would reinterpret the bits. "
            "Numbers: float is float, int is int64; arg_casts and float(...) change that. Tensors: .to(dtype)"
        )
    if want in floating or parameter.scalar_bytes == buffer.scalar_bytes:
        return
    if parameter.is_reference and isinstance(
        buffer.number, int
    ):  # the low bytes of an int64 are the number
        bits = 8 * parameter.scalar_bytes
        low, high = (
            (0, 2 if want == "B" else 2**bits)
            if want in "uB"
            else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        )
        if low <= buffer.number < high:
            return
        raise RuntimeError(
            f"{name} is {buffer.number}, which {parameter.scalar_bytes} bytes cannot hold"
        )
    raise RuntimeError(
        f"{name} holds {buffer.text}, the kernel declares {parameter.scalar_bytes}-byte {WORDS[want]}"
    )


# ---- memory ----------------------------------------------------------------------------------------------------------


def snapshots(parameters: Sequence[Parameter], buffers: dict[int, Buffer]) -> dict[int, Buffer]:
    """Return copies of the buffers that a kernel only reads, where they overlap with one that it writes.

    torch.compile passes a running mean as both, and each of its threads reads the old one.
    """
    read = {parameter.buffer for parameter in parameters if parameter.is_const} & buffers.keys()
    written, copies = [buffers[index] for index in buffers.keys() - read], {}
    for index in read:
        old = buffers[index]
        if any(
            old.address < new.address + new.bytes and new.address < old.address + old.bytes
            for new in written
        ):
            data = ctypes.create_string_buffer(ctypes.string_at(old.address, old.bytes), old.bytes)
            copies[index] = replace(old, address=ctypes.addressof(data), owner=data)
    return copies


@dataclass(frozen=True)
class Region:
    """Memory that some buffers share: two views of one tensor must stay one memory."""

    address: int
    bytes: int
    buffers: dict[int, int]  # index -> offset in bytes

    @property
    def skew(self) -> int:
        """Bytes from a multiple of 64 to where it begins: a copy keeps it, for vectors that need alignment."""
        return self.address % 64

    def read(self) -> bytes:
        """What is in it."""
        return ctypes.string_at(self.address, self.bytes)


def regions(buffers: dict[int, Buffer]) -> list[Region]:
    """The buffers' memory, overlapping ones together."""
    spans = sorted(
        (buffer.address, buffer.address + buffer.bytes, index) for index, buffer in buffers.items()
    )
    groups: list[list[tuple[int, int, int]]] = []
    end = -1
    for span in spans:
        if span[0] < end and groups:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, span[1])
    made = []
    for group in groups:
        begin, stop = group[0][0], max(span[1] for span in group)
        made.append(
            Region(begin, stop - begin, {index: address - begin for address, _, index in group})
        )
    return made


# Bytes of address space around a copy that cannot be touched: as far as a 32-bit index of 16 bytes reaches, and where
# the system refuses so much, less.
_AROUND = ((1 << 35, 1 << 36), (1 << 26, 1 << 30))
_PAGE = 4096
_ZONE = _PAGE
_vacated: int | None = None
"""Where the last copy lay that was given back. The next one may lie there: an emulator (qemu-user) keeps a table of all
addresses that were ever reserved, which else grows with each launch."""


class Guarded:
    """A copy of a region for the kernel to work on, so that writing outside of it is noticed and harmless.

    Around it are zones of bytes that make NaN, and then unmapped memory as far as a 32-bit index reaches.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        inner = -(-(region.skew + region.bytes + 2 * _ZONE) // _PAGE) * _PAGE
        self._base, before, self._all = _reserve(inner)
        self._end = self._base + before + inner
        if _libc().mprotect(self._base + before, inner, mmap.PROT_READ | mmap.PROT_WRITE):
            self.free()
            raise MemoryError(f"no memory for a copy of {region.bytes} bytes")
        self.address = self._base + before + _ZONE + region.skew
        for begin, length in self._zones():
            ctypes.memset(begin, 0xFF, length)
        ctypes.memmove(self.address, region.address, region.bytes)

    def _zones(self) -> tuple[tuple[int, int], tuple[int, int]]:
        end = self.address + self.region.bytes
        return (self.address - _ZONE, _ZONE), (end, self._end - end)

    def take_back(self, kernel: str) -> None:
        """Copy the results back. RuntimeError if something was written outside of them."""
        if any(
            ctypes.string_at(begin, length) != b"\xff" * length for begin, length in self._zones()
        ):
            numbers = ", ".join(f"buffer({index})" for index in sorted(self.region.buffers))
            raise RuntimeError(
                f"{kernel}: wrote outside of {numbers}, {self.region.bytes} bytes long. Nothing was kept of it; "
                f"{kernel}.check(...) with the same arguments names the line"
            )
        ctypes.memmove(self.region.address, self.address, self.region.bytes)

    def free(self) -> None:
        """Gives the copy's memory back."""
        global _vacated
        _libc().munmap(self._base, self._all)
        _vacated = self._base


@functools.lru_cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    library.mmap.restype = pointer
    library.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    library.mprotect.argtypes = (pointer, size, number)
    library.munmap.argtypes = (pointer, size)
    return library


def _reserve(inner: int) -> tuple[int, int, int]:
    """Reserve address space; return its begin, the bytes before the inner part, and all bytes."""
    private, anonymous, no_reserve = (
        mmap.MAP_PRIVATE,
        mmap.MAP_ANONYMOUS,
        getattr(mmap, "MAP_NORESERVE", 0),
    )
    for before, after in _AROUND:
        length = before + inner + after
        address = _libc().mmap(_vacated, length, 0, private | anonymous | no_reserve, -1, 0)
        if address not in (None, ctypes.c_void_p(-1).value):
            return address, before, length
    raise MemoryError(
        f"no address space for a guarded copy ({length >> 20} MiB); is there a limit (ulimit -v)?"
    )


def pointers(addresses: dict[int, int]) -> ctypes.Array:
    """void*[64] for the run time."""
    made = (ctypes.c_void_p * 64)()
    for index, address in addresses.items():
        made[index] = address
    return made


def shifted(region: Region, address: int) -> dict[int, int]:
    """Addresses of a region's buffers when the region begins at an address."""
    return {index: address + offset for index, offset in region.buffers.items()}
