"""Metal, as far as MPSGraph needs it: the device, queues, and buffers in host memory."""

from __future__ import annotations

from typing import Any

from metalsim.graph.bridge import Object
from metalsim.graph.errors import NotSimulated

SHARED, MANAGED, PRIVATE = 0, 1, 2
CONSTANTS = {
    "MTLResourceCPUCacheModeDefaultCache": 0,
    "MTLResourceCPUCacheModeWriteCombined": 1,
    "MTLResourceStorageModeShared": SHARED << 4,
    "MTLResourceStorageModeManaged": MANAGED << 4,
    "MTLResourceStorageModePrivate": PRIVATE << 4,
    "MTLStorageModeShared": SHARED,
    "MTLStorageModeManaged": MANAGED,
    "MTLStorageModePrivate": PRIVATE,
    "MTLCommandBufferStatusNotEnqueued": 0,
    "MTLCommandBufferStatusCompleted": 4,
}
MAX_BUFFER = 8 << 30


class Pointer:
    """What ``contents()`` returns, ``objc.varlist``: memory whose length it does not know."""

    def __init__(self, memory: bytearray) -> None:
        self._memory = memory

    def as_buffer(self, length: int) -> memoryview:
        """The first bytes, which can be read and written. ValueError beyond the end, where a Mac reads other memory."""
        if not 0 <= length <= len(self._memory):
            raise ValueError(
                f"the buffer has {len(self._memory)} bytes, and {length} are asked for; a Mac would not check"
            )
        return memoryview(self._memory)[:length]

    def __repr__(self) -> str:
        return "<simulated objc.varlist of a buffer's memory; use as_buffer(length)>"


class MTLDevice(Object):
    """The one simulated device."""

    def name(self) -> str:
        return "Simulated Apple GPU"

    def hasUnifiedMemory(self) -> bool:
        return True

    def isLowPower(self) -> bool:
        return False

    def maxBufferLength(self) -> int:
        return MAX_BUFFER

    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue._made(device=self)

    def newBufferWithLength_options_(self, length: int, options: int) -> MTLBuffer | None:
        if not 0 < length <= MAX_BUFFER:
            return None  # as Metal does
        return MTLBuffer._made(device=self, memory=bytearray(length), mode=options >> 4 & 15)

    def newBufferWithBytes_length_options_(self, data: Any, length: int, options: int) -> MTLBuffer | None:
        view = memoryview(data).cast("B")
        if length > len(view):
            raise ValueError(f"depythonifying a buffer of {len(view)} bytes, of which {length} are to be copied")
        made = self.newBufferWithLength_options_(length, options)
        if made is not None:
            made._memory[:] = view[:length]
        return made


class MTLCommandQueue(Object):
    """Work is done when the call that hands it over returns."""

    def device(self) -> MTLDevice:
        return self._device

    def commandBuffer(self) -> Any:
        raise NotSimulated(
            "command buffers are not simulated: run graphs and executables with runWithMTLCommandQueue_..., which waits"
        )


class MTLBuffer(Object):
    """Memory that CPU and GPU share."""

    def length(self) -> int:
        return len(self._memory)

    def device(self) -> MTLDevice:
        return self._device

    def storageMode(self) -> int:
        return self._mode

    def contents(self) -> Pointer | None:
        """None for a private buffer, which the CPU cannot reach."""
        return None if self._mode == PRIVATE else Pointer(self._memory)


_device = MTLDevice._made()


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The simulated device, always the same."""
    return _device


def MTLCopyAllDevices() -> list[MTLDevice]:
    """The simulated device, in a list."""
    return [_device]
