"""How much memory a piece of work needed at its peak.

Three figures are kept apart. What tensors occupied comes from the allocator's own counters where the device has them.
What the driver holds is a pool, usually larger and not a peak of anything. On the CPU there are no counters: the
process's resident memory is sampled, and the system asked for the highest it has ever been. A peak is missed only if it
is short *and* lower than one that the process had before.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from metallab import units
from metallab.device import Device

INTERVAL = 0.002
"""Seconds between two readings of the resident memory."""


def metal_limit(installed: int, macos: int = 15) -> int:
    """Bytes that Metal recommends for the GPU of a Mac with ``installed`` bytes of memory, as logs of it report.

    Up to macOS 15 two thirds up to 32 GiB (exo#1672), three quarters above (llama.cpp#1870). On macOS 26 74 % up to
    24 GiB (llmfit#754), 78 % to 48, 81 % to 64, and 84 % above (antirez/ds4#893). ``sudo sysctl iogpu.wired_limit_mb``
    changes it. On a Mac ``torch.mps.recommended_max_memory()`` returns its own.
    """
    shares, otherwise = (
        ([(24, 0.74), (48, 0.78), (64, 0.81)], 0.84) if macos >= 26 else ([(32, 2 / 3)], 3 / 4)
    )
    return int(
        installed * next((share for most, share in shares if installed <= most * 2**30), otherwise)
    )


@dataclass
class PeakMemory:
    """Peak memory of a ``with peak(on=lab) as memory:`` block, in bytes beyond what was in use at its start."""

    how: str
    """``"allocator"`` (exact) or ``"sampled"`` (resident memory of the whole process, other threads' too)."""
    bytes: int | None = None
    pool_bytes: int | None = None
    """What the driver holds in its pool at the end, in all; None where there is no pool."""

    def __str__(self) -> str:
        if self.bytes is None:
            return "peak memory: the block has not ended"
        # memory freed before and kept by the process is reused unseen
        least = "at least " if self.how == "sampled" else ""
        text = f"peak memory {least}{units.size(self.bytes)} above the start ({self.how})"
        return text + (
            f", driver's pool {units.size(self.pool_bytes)}" if self.pool_bytes is not None else ""
        )


@contextlib.contextmanager
def peak(*, on: Device) -> Iterator[PeakMemory]:
    """Peak memory of the block on a device, known when it ends, also by an exception such as "out of memory".

    Not for nesting: the allocator has one peak counter. TensorFlow has such counters on some GPUs; on an Apple GPU,
    whose memory is the CPU's, the process is sampled where it has none. ValueError for a GPU whose memory cannot be
    seen at all, as JAX's.
    """
    with _how(on) as memory:
        yield memory


def _how(on: Device) -> contextlib.AbstractContextManager[PeakMemory]:
    if on.kind == "cpu":
        return _sampled_peak()
    if on.framework == "torch":
        return _allocator_peak(on, _torch_counters(on))
    if on.framework == "tensorflow" and (counters := _tensorflow_counters()):
        return _allocator_peak(on, counters)
    if on.kind == "mps":
        return _sampled_peak()
    raise ValueError(
        f"{on.framework} does not tell the peak memory of a part of a program on {on.label}"
    )


@dataclass(frozen=True)
class _Counters:
    """What an allocator tells, in bytes."""

    reset: Callable[[], object]
    allocated: Callable[[], int]
    highest: Callable[[], int]
    pool: Callable[[], int | None]


def _torch_counters(on: Device) -> _Counters:
    import torch

    told = torch.accelerator
    pool = torch.mps.driver_allocated_memory if on.kind == "mps" else told.memory_reserved
    return _Counters(
        told.reset_peak_memory_stats, told.memory_allocated, told.max_memory_allocated, pool
    )


def _tensorflow_counters() -> _Counters | None:
    """None where the GPU's allocator, a plugin's for instance, does not count."""
    from tensorflow import config

    told = config.experimental
    try:
        told.get_memory_info("GPU:0")
    except ValueError:
        return None
    info = lambda which: lambda: told.get_memory_info("GPU:0")[which]
    return _Counters(
        lambda: told.reset_memory_stats("GPU:0"), info("current"), info("peak"), lambda: None
    )


@contextlib.contextmanager
def _allocator_peak(on: Device, counters: _Counters) -> Iterator[PeakMemory]:
    on.synchronize()
    counters.reset()
    start = counters.allocated()
    memory = PeakMemory("allocator")
    try:
        yield memory
        on.synchronize()
    finally:
        memory.bytes = counters.highest() - start
        memory.pool_bytes = counters.pool()


@contextlib.contextmanager
def _sampled_peak() -> Iterator[PeakMemory]:
    process = psutil.Process()
    start = highest = process.memory_info().rss
    ever = _highest_ever()
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(INTERVAL):
            highest = max(highest, process.memory_info().rss)

    watcher = threading.Thread(target=watch, name="peak-memory", daemon=True)
    memory = PeakMemory("sampled")
    watcher.start()
    try:
        yield memory
    finally:
        done.set()
        watcher.join()
        highest = max(highest, process.memory_info().rss)
        # the watcher does not run while one long call keeps Python's lock; a new record of the system's is from here
        if (record := _highest_ever()) > ever:
            highest = max(highest, record)
        memory.bytes = highest - start


def _highest_ever() -> int:
    """The highest resident memory that this process has had, in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
