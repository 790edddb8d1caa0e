"""Compiled Metal libraries and their kernels: the calling convention of torch.mps.compile_shader, on a CPU."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NoReturn

import torch

from metalsim import work
from metalsim.shader import binding, compiler, elf
from metalsim.shader import source as msl
from metalsim.shader.accesses import Accesses, accesses
from metalsim.shader.check import Report, check
from metalsim.shader.program import Program

MOST_SHARED_BYTES = 32768  # threadgroup memory of a kernel, on every Apple GPU
_LARGEST_GUARDED = 1 << 24  # bytes; larger memory is used in place
_INTERRUPTED = "interrupted"  # what the run time says when Ctrl-C ended a kernel
_ERRORS = 30  # c10::metal::error_message_count
_ERROR_BYTES, _ERROR_PARTS = 512, (("file", 0, 128), ("function", 128, 128), ("message", 256, 250))
_NOTHING_GIVEN = msl.Given()
_one_at_a_time = threading.RLock()  # the run time has one set of fibers


class UnknownKernel(AttributeError, RuntimeError):
    """A library has no kernel of that name: RuntimeError as in PyTorch, AttributeError for hasattr."""


def compile_shader(
    source: str,
    *,
    strided: bool = False,
    constants: Mapping[str | int, object] | None = None,
    threadgroup: Mapping[int, int] | None = None,
    kernels: Collection[str] | None = None,
) -> Library:
    """Compile Metal source, unchanged, for the CPU; the counterpart of torch.mps.compile_shader.

    Parameters
    ----------
    source
        In the Metal Shading Language.
    strided
        Tensors need not be contiguous: for generated code.
    constants
        Values of function constants by name or index: bool, int, float, a sequence for a vector. A Metal host sets
        them; None refuses a source that needs them, as torch.mps.compile_shader does.
    threadgroup
        Bytes of threadgroup parameters by index, as ``constants``.
    kernels
        Names of the kernels to compile; by default all.

    Returns
    -------
    Library
        Its kernels are its attributes. LIMITS.md says what it does not prove that they compile.

    Raises
    ------
    SyntaxError
        With the line, for source that does not compile or is not simulated.
    ValueError
        For unknown constants or kernels, and for a length that is not a multiple of 16.
    TypeError
        For a source that is no text, and for one name in place of a collection of them.
    NoCompiler
        Where there is no compiler for shaders.
    SimulationError
        On an x86 processor without AVX2 and FMA.
    """
    if not isinstance(source, str):
        raise TypeError(f"the source of a Metal library is text, not {type(source).__name__}")
    for index, size in (threadgroup or {}).items():
        if not isinstance(size, int) or size <= 0 or size % 16:
            raise ValueError(
                f"threadgroup={{{index}: {size!r}}}: Metal takes a positive multiple of 16 bytes"
            )
    if isinstance(kernels, str):
        raise TypeError(f"kernels is a collection of names, not one: kernels=[{kernels!r}]")

    given = msl.Given(constants, threadgroup, kernels)
    text = source.removeprefix("\ufeff")  # some editors write it before the text
    return Library(text, strided, given)


class Library:
    """The kernels of a Metal source, each an attribute."""

    def __init__(
        self, source: str, strided: bool = False, given: msl.Given = _NOTHING_GIVEN
    ) -> None:
        """Compile the source, unless the cache has it, and load the library. Errors as of `compile_shader`."""
        compiler.check_processor()

        name = f"kernels-{compiler.key(source, _fibers_asked(), given.key())}"
        folder = compiler.fill_once(name, functools.partial(_compile, source, given))
        described = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))

        self._strided = strided
        self._code = folder / "kernels.cpp"
        self._described = {kernel["name"]: kernel for kernel in described}
        self._numbers = {kernel["name"]: number for number, kernel in enumerate(described)}
        self._binary = folder / "kernels.so"
        self._runtime = _load(self._binary)

    def __getattr__(self, name: str) -> Kernel:
        """Return a kernel, which is an attribute from then on. UnknownKernel, with those there are, for another name.

        Names with two underscores at their beginning are Python's questions: no kernel answers to one.
        """
        if "_numbers" not in self.__dict__:  # being made, by copy for instance
            raise AttributeError(name)
        if name.startswith("__") or name not in self._numbers:
            there = ", ".join(self._numbers) or "none"
            raise UnknownKernel(
                f"Failed to create function state object for: {name}. The library has {there}"
            )

        kernel = Kernel(self, name)
        self.__dict__[name] = kernel
        return kernel

    def __dir__(self) -> list[str]:
        return list(self._numbers)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a compiled Metal library cannot be copied or pickled: keep its source, and compile that"
        )

    @functools.cached_property
    def _shared_bytes(self) -> dict[int, int]:
        """Return the bytes of threadgroup memory by kernel number, from the library's symbols.

        A kernel's number leads to the address of its function, the address to its mangled name, and this name is what
        those of the variables begin with that the function declares.
        """
        table = elf.symbols(self._binary)
        variables = [
            symbol for symbol in table if symbol.section == "metalsim_shared" and symbol.bytes
        ]
        functions = {
            symbol.address: symbol.name
            for symbol in table
            if symbol.name.startswith("_Z") and symbol.bytes
        }

        # where the library was loaded: one symbol's address in memory, less that in the file
        loaded = ctypes.addressof(ctypes.c_char.in_dll(self._runtime, "metalsim_run"))
        in_file = next(symbol.address for symbol in table if symbol.name == "metalsim_run")
        base = loaded - in_file

        sizes = {}
        for number in self._numbers.values():
            address = self._runtime.metalsim_kernel(number).contents.function - base
            # _Z?: a function without a symbol has a name that no variable's begins with
            is_own = _variables_of(functions.get(address, "_Z?"), number)
            sizes[number] = sum(symbol.bytes for symbol in variables if is_own(symbol.name))
        return sizes


def _variables_of(function: str, number: int) -> Callable[[str], bool]:
    """Return what tells whether a mangled name is that of a kernel's variable or threadgroup parameter."""
    inside = f"_Z{function[1:]}E"
    parameter = re.compile(rf"_ZL\d+metalsim_threadgroup_{number}_\d+$")

    def is_own(name: str) -> bool:
        return name.startswith(inside) or parameter.match(name) is not None

    return is_own


class Kernel:
    """A kernel of a library, called like PyTorch's: kernel(*args, threads=None, group_size=None, arg_casts=None)."""

    thread_execution_width = 32

    def __init__(self, library: Library, name: str) -> None:
        """Look up what the compiled library says of the kernel. RuntimeError for more than Metal would take of it."""
        self.name = name
        self._library = library
        self.max_threads_per_threadgroup = library._described[name]["most_threads"]
        self._number = library._numbers[name]
        described = library._runtime.metalsim_kernel(self._number).contents
        self._parameters = [
            described.parameters[index] for index in range(described.parameter_count)
        ]

        last = max((parameter.buffer for parameter in self._parameters), default=0)
        if last >= binding.MOST_BUFFERS:
            raise RuntimeError(
                f"{name}: buffer({last}) does not exist, Metal has buffers 0 to {binding.MOST_BUFFERS - 1}"
            )
        if (shared := self.static_thread_group_memory_length) > MOST_SHARED_BYTES:
            raise RuntimeError(
                f"Failed to created pipeline state object, error: {name} uses {shared} bytes of threadgroup memory, "
                f"{MOST_SHARED_BYTES} are there"
            )

    @property
    def static_thread_group_memory_length(self) -> int:
        """Return the bytes of threadgroup memory, with its parameters."""
        return self._library._shared_bytes[self._number]

    def __call__(
        self,
        *args: object,
        threads: int | tuple[int, ...] | None = None,
        group_size: int | tuple[int, ...] | None = None,
        arg_casts: str | dict[int, str] | None = None,
        error_buf_idx: int | None = None,
    ) -> None:
        """Run the kernel.

        Parameters
        ----------
        args
            For buffers 0, 1, ... in order: contiguous tensors, float (as float), int (as int64), lists of them.
        threads
            How many, in up to three dimensions; by default the first tensor's number of elements.
        group_size
            How many in a group; by default all of them, 1024 at most.
        arg_casts
            What numbers become: fp16, bf16, int32, int16, int8 or uint8, or {index: one of them}.
        error_buf_idx
            The buffer for TORCH_REPORT_ERROR.

        Raises
        ------
        RuntimeError, ValueError, TypeError
            As PyTorch does.
        RuntimeError
            For what Metal accepts silently: a wrong dtype, an unbound or short buffer, writing outside of a buffer, a
            barrier that not every thread reaches.
        """
        errors = None
        added: dict[int, binding.Buffer] = {}
        if error_buf_idx is not None:
            # an ErrorMessages of c10/metal/error.h: how many there are, and room for the most that there may be
            errors = torch.zeros(4 + _ERRORS * _ERROR_BYTES, dtype=torch.uint8, device="cpu")
            memory = binding.Buffer(errors.data_ptr(), errors.numel(), "u", 1, errors)
            added[error_buf_idx] = memory

        call = self._bind(args, threads, group_size, arg_casts, added)
        if 0 not in call.threads:
            self._run(call)
        if errors is not None:
            _raise_reported(errors.numpy().tobytes())

    def launch(
        self,
        buffers: dict[int, binding.Buffer],
        threads: tuple[int, int, int],
        group_size: tuple[int, int, int],
    ) -> None:
        """Run the kernel as a command encoder does, with buffers by index (`binding.raw`); dtypes are not checked."""
        binding.check_parameters(self.name, self._parameters, buffers)
        self._run(binding.Call(buffers, threads, group_size))

    def check(
        self,
        *args: object,
        threads: int | tuple[int, ...] | None = None,
        group_size: int | tuple[int, ...] | None = None,
        arg_casts: str | dict[int, str] | None = None,
        timeout: float = 120.0,
    ) -> Report:
        """Run the kernel many times in other processes, and report its faults.

        Under the address and undefined-behaviour sanitizers, watched for races, in several orders of its threads and
        over several kinds of garbage in threadgroup memory.

        Parameters
        ----------
        args, threads, group_size, arg_casts
            As for a call. The arguments keep their values.
        timeout
            Seconds for each run.
        """
        call = self._bind(args, threads, group_size, arg_casts)
        return check(self.name, self._program(), call, timeout)

    def accesses(
        self,
        *args: object,
        threads: int | tuple[int, ...] | None = None,
        group_size: int | tuple[int, ...] | None = None,
        arg_casts: str | dict[int, str] | None = None,
        timeout: float = 120.0,
        unset: Literal["pattern", "zero"] = "pattern",
    ) -> Accesses:
        """Run the kernel once in another process, as `check` does, and return which thread read and wrote what.

        Parameters
        ----------
        args, threads, group_size, arg_casts
            As for a call. The arguments keep their values; `Accesses.memory` has what the run made of them.
        timeout
            Seconds.
        unset
            What a thread's variables begin with: ``pattern``, which makes NaN, or ``zero``. If the two differ, one is
            read before it is set.
        """
        call = self._bind(args, threads, group_size, arg_casts)
        return accesses(self._program(), call, timeout, unset)

    def _program(self) -> Program:
        """Return the kernel as a program of its own."""
        meets = self._library._described[self.name]["meets"]
        return Program(self._library._code, self._number, meets)

    def _bind(
        self,
        args: tuple[object, ...],
        threads: object,
        group_size: object,
        arg_casts: object,
        added: Mapping[int, binding.Buffer] = MappingProxyType({}),
    ) -> binding.Call:
        """Return the call of the kernel with these arguments, and with buffers that are no arguments."""
        most = self.max_threads_per_threadgroup
        call = binding.bind(args, threads, group_size, arg_casts, self._library._strided, most)
        call.buffers.update(added)
        binding.check_parameters(self.name, self._parameters, call.buffers)
        if self._library._strided:
            call.buffers.update(binding.snapshots(self._parameters, call.buffers))
        return call

    def _run(self, call: binding.Call) -> None:
        """Run a call on guarded copies of its memory, and copy the results back; large memory is used in place.

        RuntimeError as of `_launch`, and if something was written outside of a copy: then that one is not copied back.
        """
        addresses: dict[int, int] = {}
        guarded: list[binding.Guarded] = []
        try:
            for region in binding.regions(call.buffers):
                address = region.address
                if region.bytes <= _LARGEST_GUARDED:
                    guarded.append(binding.Guarded(region))
                    address = guarded[-1].address
                addresses |= binding.place(region, address)

            self._launch(call, addresses)

            for copy in guarded:
                copy.take_back(self.name)
        finally:
            for copy in guarded:
                copy.free()

    def _launch(self, call: binding.Call, addresses: dict[int, int]) -> None:
        """Have the run time execute all threads. RuntimeError for what a kernel may not do, and after Ctrl-C."""
        work.note()
        runtime = self._library._runtime
        meets = self._library._described[self.name]["meets"]
        grid = (ctypes.c_uint32 * 3)(*call.threads)
        group = (ctypes.c_uint32 * 3)(*call.group_size)

        with _one_at_a_time:
            try:
                runtime.metalsim_watch()  # as it returns, Python raises for a Ctrl-C that came before
                failed = runtime.metalsim_run(
                    self._number, binding.pointers(addresses), grid, group, int(meets), 0, 0xFF
                )
            finally:
                runtime.metalsim_unwatch()
            message = runtime.metalsim_error().decode() if failed else ""

        if not failed:
            return
        if message == _INTERRUPTED:
            # the run time passed SIGINT on: Python's own handler raises where it may
            raise RuntimeError(f"{self.name}: {message}")
        raise RuntimeError(
            f"{self.name}: {message}. {self.name}.check(...) with the same arguments names the line"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a compiled Metal kernel cannot be copied or pickled: keep its source, and compile that"
        )

    def __repr__(self) -> str:
        return f"<simulated Metal kernel {self.name}>"


# ---- the compiled library --------------------------------------------------------------------------------------------


class _Described(ctypes.Structure):
    """MetalsimKernel in abi.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("thread", ctypes.c_void_p),
        ("row", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(binding.Parameter)),
        ("parameter_count", ctypes.c_int),
        ("function", ctypes.c_void_p),
    )


def _fibers_asked() -> str:
    """Return what METALSIM_FIBERS says: 1 has all kernels run as those whose threads meet."""
    return os.environ.get("METALSIM_FIBERS", "")


def _compile(source: str, given: msl.Given, folder: Path) -> None:
    """Fill a folder of the cache: the C++, its library, and its kernels."""
    translation = msl.translate(compiler.preprocess(source), given)
    (folder / "kernels.cpp").write_text(translation.code, encoding="utf-8")
    compiler.compile_library(translation.code, folder / "kernels.so")

    kernels = [asdict(kernel) for kernel in translation.kernels]
    if _fibers_asked() == "1":
        for kernel in kernels:
            kernel["meets"] = True
    (folder / "kernels.json").write_text(json.dumps(kernels), encoding="utf-8")


def _load(binary: Path) -> ctypes.CDLL:
    """Load a compiled library, with the types of what it returns."""
    runtime = ctypes.CDLL(str(binary))
    runtime.metalsim_error.restype = ctypes.c_char_p
    runtime.metalsim_kernel.restype = ctypes.POINTER(_Described)
    return runtime


def _raise_reported(data: bytes) -> None:
    """Raise the first thing that a kernel reported with TORCH_REPORT_ERROR, as PyTorch's error, if it reported any.

    `data` is an ErrorMessages of c10/metal/error.h: a count, then for each message file, function, text and line.
    """
    count = int.from_bytes(data[:4], "little")
    if not count:
        return

    first = {
        name: data[4 + at :][:size].split(b"\0")[0].decode() for name, at, size in _ERROR_PARTS
    }
    line = int.from_bytes(data[4 + 508 : 4 + 512], "little")  # the last four bytes of a message
    error = getattr(torch, "AcceleratorError", RuntimeError)
    raise error(f"{first['file']}:{line}: {first['message']} (reported by {count} threads)")
