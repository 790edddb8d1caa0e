"""Foundation and Metal, loaded: between the device in C++, Objective-C, and the shaders, which run in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metalsim_objc import toolchain

SAID_BYTES = 1 << 16
_FAILED = 0


class Argument(ctypes.Structure):
    """What is bound to a buffer index: Argument in abi.h."""

    _fields_ = (
        ("index", ctypes.c_uint64),
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    )


class PipelineLimits(ctypes.Structure):
    """PipelineLimits in abi.h."""

    _fields_ = (("most_threads", ctypes.c_uint64), ("threadgroup_bytes", ctypes.c_uint64))


_NUMBER = ctypes.c_int64  # of a library or pipeline
_SAID = ctypes.c_void_p  # where to say what went wrong
_THREE = ctypes.POINTER(ctypes.c_uint32 * 3)
_LIBRARY = ctypes.CFUNCTYPE(_NUMBER, ctypes.c_char_p, _SAID)
_PIPELINE = ctypes.CFUNCTYPE(
    _NUMBER, _NUMBER, ctypes.c_char_p, ctypes.POINTER(PipelineLimits), _SAID
)
_LAUNCH = ctypes.CFUNCTYPE(
    _NUMBER, _NUMBER, ctypes.POINTER(Argument), ctypes.c_uint64, _THREE, _THREE, _SAID
)


class Shaders(ctypes.Structure):
    """Shaders in abi.h."""

    _fields_ = (("library", _LIBRARY), ("pipeline", _PIPELINE), ("launch", _LAUNCH))


class Bridge:
    """The loaded run time. It stays for the life of the process: Objective-C classes cannot be unloaded."""

    def __init__(self, connect: Callable[[int], None]) -> None:
        """Build if needed, load, and ``connect`` the device with the address of the run time's stream."""
        self.tools = toolchain.find()
        self.path: Path = toolchain.build_runtime(self.tools)
        self._made: list[Any] = [None]  # libraries and pipelines by their number; 0 is none
        self._table = Shaders(
            _LIBRARY(self._make_library),
            _PIPELINE(self._make_pipeline),
            _LAUNCH(self._launch),
        )

        self._runtime = ctypes.CDLL(str(self.path))
        self._runtime.metalsim_connect.restype = ctypes.c_void_p
        connect(self._runtime.metalsim_connect(ctypes.byref(self._table)))

    def _make_library(self, source: bytes, answer: int) -> int:
        """Compile a source, and return the library's number; the answer is the names of its kernels."""
        from metalsim import shader

        def make() -> int:
            library = shader.compile_shader(source.decode())
            _say(answer, "\n".join(dir(library)))
            return self._keep(library)

        return _answer(make, answer)

    def _make_pipeline(self, library: int, name: bytes, limits: Any, answer: int) -> int:
        """Return the number of a kernel of a library, and fill in its limits."""

        def make() -> int:
            kernel = getattr(self._made[library], name.decode())
            limits[0] = PipelineLimits(
                kernel.max_threads_per_threadgroup, kernel.static_thread_group_memory_length
            )
            return self._keep(kernel)

        return _answer(make, answer)

    def _launch(
        self, pipeline: int, arguments: Any, count: int, threads: Any, group_size: Any, answer: int
    ) -> int:
        """Run a kernel with the `count` buffers that are bound to it, and return its number.

        0, with the reason in the answer, if that fails, as of the other two functions that C calls.
        """
        from metalsim.shader import binding

        def make() -> int:
            bound = {
                each.index: binding.raw(each.address, each.bytes) for each in arguments[:count]
            }
            self._made[pipeline].launch(bound, tuple(threads[0]), tuple(group_size[0]))
            return pipeline

        return _answer(make, answer)

    def _keep(self, made: Any) -> int:
        """Keep a library or a pipeline, and return its number."""
        self._made.append(made)
        return len(self._made) - 1


def _answer(make: Callable[[], int], answer: int) -> int:
    """Return what a function makes; an exception becomes text, since it cannot pass through C."""
    try:
        return make()
    except SyntaxError as error:  # what Apple's compiler would say
        _say(answer, error.msg)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told on the other side
        _say(answer, str(error) or type(error).__name__)
    return _FAILED


def _say(answer: int, text: str) -> None:
    """Write a text to where the other side reads it."""
    data = text.encode()[: SAID_BYTES - 1] + b"\0"
    ctypes.memmove(answer, data, len(data))
