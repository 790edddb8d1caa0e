"""The Python functions of torch that a build without Metal lacks, and how shaders are handed their tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from metalsim.errors import SimulationError

if TYPE_CHECKING:
    import torch

    from metalsim import shader
    from metalsim.profiler import Profiler

NAME = "Simulated Apple GPU"
CORES = 10


def apply(host_view: Callable[[torch.Tensor], torch.Tensor], profiler: Profiler) -> None:
    """Complete ``torch._C``, and the classes for streams and storages, and forget what was remembered without MPS.

    `host_view` gives the CPU's view of a tensor of the device, through which shaders get their memory; `profiler`
    answers for ``torch.mps.profiler``.
    """
    import torch

    # the binding that every build has: it refuses wrong types
    accept = torch._C._mps_profilerStartTrace

    def start(*arguments: Any) -> None:
        accept(*arguments)
        profiler.start(*arguments)

    functions = {
        "_has_mps": True,
        "_conv_determine_backend_memory_format": _make_layout(
            torch._C._conv_determine_backend_memory_format, torch._C._ConvBackend.Mkldnn
        ),
        "_mps_get_name": lambda: NAME,
        "_mps_get_core_count": lambda: CORES,
        # called here, and not in `Library`: the caller is found by its distance from this lambda
        "_mps_compileShader": lambda source: Library(source, host_view, _is_for_generated_code()),
        "_mps_profilerStartTrace": start,
        "_mps_profilerStopTrace": profiler.stop,
        "_mps_isCaptureEnabled": profiler.is_capture_enabled,
        "_mps_isCapturing": lambda: profiler.capturing,
        "_mps_startCapture": profiler.start_capture,
        "_mps_stopCapture": profiler.stop_capture,
        "_mps_loadMetalllib": _no_metallib,
        "_mps_loadMetallibFromPath": _no_metallib,
        "_mps_host_alias_storage": lambda storage: _host_storage(storage, host_view),
    }
    for name, value in functions.items():
        setattr(torch._C, name, value)

    _give_streams()
    _give_storages()
    _refuse_pointers_into_buffers()
    _refuse_other_processes()

    # functions that keep their first answer
    for remembered in (
        "is_available",
        "is_macos_or_newer",
        "is_macos13_or_newer",
        "get_name",
        "get_core_count",
    ):
        getattr(torch.backends.mps, remembered).cache_clear()


def _make_layout(layout: Callable[..., Any], cpu_backend: Any) -> Callable[..., Any]:
    """Return PyTorch's function for a convolution's layout, which for tensors of the device is the CPU's."""

    def determine(x: torch.Tensor, weight: torch.Tensor, backend: Any) -> Any:
        return layout(x, weight, cpu_backend if x.device.type == "mps" else backend)

    return determine


class Library:
    """A compiled shader source: its kernels are attributes, as those of ``torch.mps.compile_shader``."""

    def __init__(
        self, source: str, host_view: Callable[[torch.Tensor], torch.Tensor], strided: bool = False
    ) -> None:
        from metalsim import shader

        self._host_view = host_view
        self._library = shader.compile_shader(source, strided=strided)

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._library, name)
        return Kernel(kernel, self._host_view) if callable(kernel) else kernel

    def __dir__(self) -> list[str]:
        return dir(self._library)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._library.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"<simulated Metal library: {', '.join(dir(self)) or 'no kernels'}>"


class Kernel:
    """A kernel that takes tensors of the simulated device."""

    def __init__(
        self, kernel: shader.Kernel, host_view: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._kernel = kernel
        self._host_view = host_view

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Bind the arguments in order; RuntimeError for a tensor that is on the CPU, unless it is one number."""
        return self._kernel(*map(self._on_host, arguments), **keywords)

    def check(self, *arguments: Any, **keywords: Any) -> Any:
        """Return what `metalsim.shader.Kernel.check` finds for these arguments."""
        return self._kernel.check(*map(self._on_host, arguments), **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._kernel.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(self._kernel)

    def _on_host(self, argument: Any) -> Any:
        """Return an argument with views of the CPU in place of tensors of the device."""
        import torch

        if isinstance(argument, (list, tuple)):
            return type(argument)(map(self._on_host, argument))
        if not isinstance(argument, torch.Tensor):
            return argument
        if argument.device.type != "mps" and argument.dim() > 0:
            raise RuntimeError("Passed CPU tensor to MPS op")
        return self._host_view(argument.detach())


def _is_for_generated_code() -> bool:
    """Return whether torch.compile asks, whose kernels are made for the strides of their tensors."""
    caller = sys._getframe(3)  # of torch.mps.compile_shader, which calls the lambda above
    module = str(caller.f_globals.get("__name__", ""))
    return module.startswith("torch._inductor.")


def _host_storage(storage: Any, host_view: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the CPU's storage that a storage of the device owns."""
    import torch

    over = torch.empty(0, dtype=torch.uint8, device="mps").set_(storage, 0, (storage.nbytes(),))
    return host_view(over).untyped_storage()


def _no_metallib(_source: object) -> None:
    """Refuse compiled Metal code."""
    raise SimulationError(
        "a .metallib holds code for Apple GPUs, which the simulation cannot run: use compile_shader"
    )


def _give_streams() -> None:
    """Give streams that can be made and selected; all work is done in order, whichever is current.

    PyTorch has them since 2.15.
    """
    import torch

    if not hasattr(torch._C, "_MPSStreamBase"):
        return

    base = torch._C._MPSStreamBase
    # torch.mps.Stream is derived from this very class already: so it gets the methods, and is not replaced
    for name, value in vars(_Stream).items():
        if callable(value) or isinstance(value, property):
            setattr(base, name, value)

    def find_current() -> Any:
        return base(stream_id=_Stream.current)

    torch._C._mps_getCurrentStream = find_current
    torch._C._mps_setStream = _select_stream


class _Stream:
    """What PyTorch's base class of streams lacks in a build without Metal; it is given these methods."""

    last = 0
    """The number of the stream that was made last; 0 is the default one."""
    current = 0
    """The number of the one that is selected."""
    _stream_id: int

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, priority: int = 0, *, stream_id: int | None = None, **_: Any) -> None:
        if stream_id is None:
            _Stream.last += 1
            stream_id = _Stream.last
        self._stream_id = stream_id

    @property
    def stream_id(self) -> int:
        return self._stream_id

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("mps", 0)

    def synchronize(self) -> None:
        import torch

        torch.mps.synchronize()

    def query(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        import torch

        if not isinstance(other, torch._C._MPSStreamBase):
            return False
        return self._stream_id == other._stream_id

    def __hash__(self) -> int:
        return hash(self._stream_id)


def _select_stream(stream: _Stream) -> None:
    """Make a stream the current one."""
    _Stream.current = stream._stream_id


def _give_storages() -> None:
    """Give ``torch.UntypedStorage(size, device="mps")``, which loading a file calls, and with a list of bytes."""
    import torch

    plain = torch.UntypedStorage.__new__

    def new(cls: type, *arguments: Any, device: Any = None, **keywords: Any) -> Any:
        if device is None:
            return plain(cls, *arguments, **keywords)
        if torch.device(device).type != "mps":
            return plain(cls, *arguments, device=device, **keywords)

        size_or_bytes = arguments[0] if arguments else keywords.get("size", 0)
        make = torch.tensor if isinstance(size_or_bytes, Sequence) else torch.empty
        return make(size_or_bytes, dtype=torch.uint8, device="mps").untyped_storage()

    torch.UntypedStorage.__new__ = new


def _refuse_pointers_into_buffers() -> None:
    """Refuse what torch does with the data pointer of a storage and what crashes on a Mac, where it is an object's.

    A slice that begins behind the first byte adds to the pointer, and ``byteswap`` of numbers of more than a byte
    writes to what it points at. On a Mac the pointer is that of an MTLBuffer, so neither has a meaning; here, where it
    is an address, both would work. So they raise RuntimeError for storages of the device.
    """
    import torch

    part = torch.UntypedStorage.__getitem__
    swap = torch.UntypedStorage._byteswap

    def begins_later(index: Any, length: int) -> bool:
        return isinstance(index, slice) and index.indices(length)[0] > 0

    def getitem(self: Any, index: Any) -> Any:
        if self.device.type == "mps" and begins_later(index, len(self)):
            raise RuntimeError(
                "a part of an mps storage that does not begin at 0 has a pointer that is no MTLBuffer (a Mac crashes): "
                "take storage.cpu()[...]"
            )
        return part(self, index)

    def byteswap(self: Any, size: int) -> None:
        if self.device.type == "mps" and size > 1:
            raise RuntimeError(
                "byteswap of an mps storage would write into the MTLBuffer object (a Mac crashes)"
            )
        swap(self, size)

    torch.UntypedStorage.__getitem__ = getitem
    torch.UntypedStorage._byteswap = byteswap


def _refuse_other_processes() -> None:
    """Refuse to share what a Mac cannot: it shares by file name, also the empty storages that Linux would copy.

    Of a storage of the device that is RuntimeError, in PyTorch's words. A DataLoader's worker writes them to stderr and
    ends with 1, which its parent notices: in a worker tensors are sent by a thread, whose exception would reach nobody,
    and the parent would wait.
    """
    from multiprocessing import reduction

    import torch
    from torch.multiprocessing import reductions

    plain = reductions.reduce_storage

    def reduce_storage(storage: Any) -> Any:
        if storage.device.type == "mps":
            if torch.utils.data.get_worker_info():
                sys.stderr.write(
                    "_share_filename_: only available on CPU. A DataLoader's worker cannot pass mps tensors on: move "
                    "them to mps in the parent\n"
                )
                os._exit(1)
            storage._share_filename_cpu_()  # raises
        return plain(storage)

    reductions.reduce_storage = reduce_storage
    # torch has registered its own function with the pickler, which does not look it up by its name
    reduction.register(torch.UntypedStorage, reduce_storage)
