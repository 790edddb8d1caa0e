"""Bind the arguments of a kernel call as torch.mps.compile_shader does: to buffers 0, 1, 2, ... in order.

Stricter than Metal on purpose: a wrong dtype, a short buffer and an unbound one raise RuntimeError.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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
FLOATING = "fhb"
"""The kinds whose bits no other kind can stand for."""
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
        word = WORDS[self.kind]
        return f"{self.scalar_bytes}-byte {word}" if self.kind in "iu" else word


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

    Parameters
    ----------
    args
        Tensors, numbers and lists of numbers, for buffers 0, 1, 2, ...
    threads
        How many in all, in up to three dimensions; None: one for each element of the first tensor.
    group_size
        How many in a group; None: as many as there may be.
    arg_casts
        What numbers become: a name of `CASTS` for all, or by index.
    strided
        Whether tensors need not be contiguous.
    most_threads
        The kernel's limit for a group.
    """
    total = _extent(threads)
    group = _extent(group_size)
    casts = _Casts(arg_casts)

    buffers: dict[int, Buffer] = {}
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            buffers[index] = _of_tensor(index, value, strided)
            total = [value.numel()] if total is None else total
        else:
            buffers[index] = casts.number(index, value)

    if total is None:
        raise RuntimeError("Number of threads is undefined or has wrong dimension")
    if group is None:
        group = _largest_group(total, most_threads)
    _check_group(total, group, most_threads)
    return Call(buffers, _three(total), _three(group))


def _largest_group(total: list[int], most_threads: int) -> list[int]:
    """Return the size of the groups where none is given: along the first dimension."""
    if len(total) == 1:
        return [min(total[0], most_threads)]
    return [most_threads, *[1] * (len(total) - 1)]


def _check_group(total: list[int], group: list[int], most_threads: int) -> None:
    """Raise what PyTorch and Metal do for a size of groups that cannot be."""
    if len(group) != len(total):
        raise RuntimeError(
            "Expected !group_size.has_value() || threads->size() == group_size->size() to be true, but got false. "
            f"threads has {len(total)} dimensions, group_size {len(group)}."
        )
    if math.prod(group) > most_threads:
        raise ValueError(f"Threadgroup size exceeds {most_threads} limit")
    if 0 in group and 0 not in total:
        raise ValueError("group_size must be at least 1 in each dimension")


def raw(address: int | None, length: int) -> Buffer:
    """Return memory as a command encoder binds it, of unknown type."""
    return Buffer(address or 0, length, RAW, 1, None)


def _extent(value: Any) -> list[int] | None:
    """Return the numbers of `threads` or `group_size`, None for None. RuntimeError for what these cannot be."""
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
    if any(not isinstance(number, int) or not 0 <= number < 2**32 for number in numbers):
        raise RuntimeError(f"threads and group_size are counts from 0 to 2**32 - 1, not {value!r}")
    return numbers


def _three(numbers: list[int]) -> tuple[int, int, int]:
    """Return up to three numbers as three."""
    x, y, z = [*numbers, 1, 1][:3]
    return x, y, z


def _of_tensor(index: int, tensor: torch.Tensor, strided: bool) -> Buffer:
    """Return the buffer of a tensor. Errors, which name the argument, as PyTorch's, and for what no kernel can see."""
    _check_tensor(index, tensor)

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
    scalar_bytes = width // 2 if tensor.is_complex() else width
    return Buffer(tensor.data_ptr(), length, kind, scalar_bytes, tensor)


def _check_tensor(index: int, tensor: torch.Tensor) -> None:
    """Raise for a tensor that is not what its memory holds, or that Metal has no dtype for."""
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
        kind = "conjugate" if tensor.is_conj() else "negative"
        way_out = "resolve_conj()" if tensor.is_conj() else "resolve_neg()"
        raise RuntimeError(
            f"argument {index} is the {kind} of what its memory holds, and a kernel sees memory: pass tensor.{way_out}"
        )


class _Casts:
    """What arg_casts asks for: a name for all numbers, or {index: name}."""

    def __init__(self, asked: object) -> None:
        if asked is not None and not isinstance(asked, (str, dict)):
            raise RuntimeError(f"Unexpected caster arg type {type(asked).__name__}")
        self.default = asked if isinstance(asked, str) else ""
        self.by_index = asked if isinstance(asked, dict) else {}

    def number(self, index: int, value: object) -> Buffer:
        """Return the buffer for a number, or a list of them.

        The first number decides: with a float all are float, else int64, unless ``arg_casts`` names another type.
        RuntimeError, in PyTorch's words where it has some, for what is no number.
        """
        values: list[Any] = [*value] if isinstance(value, list | tuple) else [value]
        _check_numbers(index, values, is_list=isinstance(value, list | tuple))

        cast = self.by_index.get(index, self.default)
        if cast and cast not in CASTS:
            raise RuntimeError(f"Unsupported cast instruction {cast}; known are {', '.join(CASTS)}")

        first = values[0]
        is_float = isinstance(first, float)
        usual = torch.float32 if is_float else torch.int64
        numbers = [float(each) if is_float else int(each) for each in values]
        data = torch.tensor(numbers, dtype=CASTS[cast] if cast else usual, device="cpu")

        memory = _of_tensor(index, data, strided=False)
        # a whole number that nobody has cast may be bound to a narrower parameter, if it fits: `_check_buffer`
        number = first if len(values) == 1 and not cast else None
        return Buffer(memory.address, memory.bytes, memory.kind, memory.scalar_bytes, data, number)


def _check_numbers(index: int, values: list[Any], is_list: bool) -> None:
    """Raise RuntimeError for an argument of a kernel that is neither a number nor a list of numbers."""
    if not values:
        raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
    if isinstance(values[0], torch.Tensor):
        raise RuntimeError(
            f"argument {index} is a list of tensors: argument buffers are not simulated"
        )
    if not isinstance(values[0], int | float):
        raise RuntimeError("Unexpected argument types" if is_list else "Unsupported argument type")


# ---- what Metal would take, and what it would make of it -------------------------------------------------------------


def check_parameters(
    kernel: str, parameters: Sequence[Parameter], buffers: dict[int, Buffer]
) -> None:
    """Raise RuntimeError for a buffer that is missing, too short, or holds something else than the kernel declares."""
    for parameter in parameters:
        index = parameter.buffer
        # no buffer: a position, threadgroup memory, or one whose function constant is false
        if index < 0:
            continue
        if index not in buffers:
            raise RuntimeError(
                f"{kernel}: buffer({index}) is not bound, {len(buffers)} arguments were given"
            )
        _check_buffer(f"{kernel}: buffer({index})", parameter, buffers[index])


def _check_buffer(name: str, parameter: Parameter, buffer: Buffer) -> None:
    """Raise RuntimeError for a buffer that is too short, or holds something else than a parameter declares.

    Only a reference has a length. Floating-point numbers are compared by their kind, bools and whole numbers, be they
    signed or not, by their size. `name` begins the message.
    """
    want = chr(parameter.kind)
    if parameter.is_reference and buffer.bytes < parameter.bytes:
        raise RuntimeError(f"{name} has {buffer.bytes} bytes, the kernel reads {parameter.bytes}")
    # a structure and void may be anything
    if want in "sv" or buffer.kind == RAW:
        return

    is_either_floating = want in FLOATING or buffer.kind in FLOATING
    if is_either_floating and want != buffer.kind:
        raise RuntimeError(
            f"{name} holds {buffer.text}, the kernel declares {WORDS[want]}: Metal would reinterpret the bits. "
            "Numbers: float is float, int is int64; arg_casts and float(...) change that. Tensors: .to(dtype)"
        )

    if want in FLOATING or parameter.scalar_bytes == buffer.scalar_bytes:
        return

    # the low bytes of an int64 are the number
    if parameter.is_reference and isinstance(buffer.number, int):
        low, high = _limits(want, parameter.scalar_bytes)
        if low <= buffer.number < high:
            return
        raise RuntimeError(
            f"{name} is {buffer.number}, which {parameter.scalar_bytes} bytes cannot hold"
        )
    raise RuntimeError(
        f"{name} holds {buffer.text}, the kernel declares {parameter.scalar_bytes}-byte {WORDS[want]}"
    )


def _limits(kind: str, scalar_bytes: int) -> tuple[int, int]:
    """Return the smallest whole number of a kind, and the one above the largest."""
    bits = 8 * scalar_bytes
    if kind == "B":
        return 0, 2
    if kind == "u":
        return 0, 2**bits
    return -(2 ** (bits - 1)), 2 ** (bits - 1)


# ---- memory ----------------------------------------------------------------------------------------------------------


def snapshots(parameters: Sequence[Parameter], buffers: dict[int, Buffer]) -> dict[int, Buffer]:
    """Return copies of the buffers that a kernel only reads, where they overlap with one that it writes.

    torch.compile passes a running mean as both, and each of its threads reads the old one.
    """
    read = {parameter.buffer for parameter in parameters if parameter.is_const} & buffers.keys()
    written = [buffers[index] for index in buffers.keys() - read]

    copies = {}
    for index in read:
        old = buffers[index]
        if any(_overlap(old, new) for new in written):
            data = ctypes.create_string_buffer(ctypes.string_at(old.address, old.bytes), old.bytes)
            copies[index] = replace(old, address=ctypes.addressof(data), owner=data)
    return copies


def _overlap(one: Buffer, other: Buffer) -> bool:
    """Return whether two buffers share memory."""
    begins_before_end = one.address < other.address + other.bytes
    return begins_before_end and other.address < one.address + one.bytes


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

    def read(self) -> builtins.bytes:
        """Return what is in it."""
        return ctypes.string_at(self.address, self.bytes)


def regions(buffers: dict[int, Buffer]) -> list[Region]:
    """Return the buffers' memory, overlapping ones together."""
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

    return [_join(group) for group in groups]


def _join(spans: list[tuple[int, int, int]]) -> Region:
    """Return the region of buffers that overlap: begin, end and index of each, the first one first."""
    begin = spans[0][0]
    end = max(span[1] for span in spans)
    return Region(begin, end - begin, {index: address - begin for address, _, index in spans})


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
        """Copy the region. MemoryError without address space or memory for it.

        From `_base` on lie memory that cannot be touched, the pages that are used (a zone, bytes that keep the region's
        distance from a multiple of 64, the copy, a zone up to `_end`), and memory that cannot be touched again.
        """
        self.region = region
        pages = math.ceil((region.skew + region.bytes + 2 * _ZONE) / _PAGE)
        inner = pages * _PAGE

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
        """Return where the zones before and behind the copy begin, and how many bytes they have."""
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
        """Give the copy's memory back."""
        global _vacated
        _libc().munmap(self._base, self._all)
        _vacated = self._base


@functools.lru_cache
def _libc() -> ctypes.CDLL:
    """Return the C library, which knows the types of the three functions for address space."""
    library = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int

    library.mmap.restype = pointer
    library.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    library.mprotect.argtypes = (pointer, size, number)
    library.munmap.argtypes = (pointer, size)
    return library


def _reserve(inner: int) -> tuple[int, int, int]:
    """Reserve address space; return its begin, the bytes before the inner part, and all bytes."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)

    for before, after in _AROUND:
        length = before + inner + after
        address = _libc().mmap(_vacated, length, 0, flags, -1, 0)
        if address not in (None, ctypes.c_void_p(-1).value):
            return address, before, length

    raise MemoryError(
        f"no address space for a guarded copy ({length >> 20} MiB); is there a limit (ulimit -v)?"
    )


def pointers(addresses: dict[int, int]) -> ctypes.Array:
    """Return addresses by index as the run time takes them: void*[64]."""
    made = (ctypes.c_void_p * 64)()
    for index, address in addresses.items():
        made[index] = address
    return made


def place(region: Region, address: int) -> dict[int, int]:
    """Return the addresses of a region's buffers when the region begins at an address."""
    return {index: address + offset for index, offset in region.buffers.items()}
