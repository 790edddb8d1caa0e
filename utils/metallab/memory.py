"""How much memory a piece of work needed at its peak.

Three figures are kept apart. What tensors occupied comes from the allocator's own counters where the device has them.
What the driver holds is a pool, usually larger and not a peak of anything. On the CPU there are no counters: the
process's resident memory is sampled, and the system asked for the highest it has ever been. A peak is missed only if it
is short *and* lower than one that the process had before.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from metallab import units
from metallab.device import Device

INTERVAL = 0.002
"""Seconds between two readings of the resident memory."""


_SHARES_OF_15 = ((32, 2 / 3), (math.inf, 3 / 4))
_SHARES_OF_26 = ((24, 0.74), (48, 0.78), (64, 0.81), (math.inf, 0.84))
"""Up to so many GiB of memory Metal recommends this share of it, by the version of macOS."""


def metal_limit(installed: int, macos: int = 15) -> int:
    """Return the bytes that Metal recommends for the GPU of a Mac, as logs of it report.

    Up to macOS 15 two thirds up to 32 GiB (exo#1672), three quarters above (llama.cpp#1870). On macOS 26 74 % up to
    24 GiB (llmfit#754), 78 % to 48, 81 % to 64, and 84 % above (antirez/ds4#893). ``sudo sysctl iogpu.wired_limit_mb``
    changes it. On a Mac ``torch.mps.recommended_max_memory()`` returns its own.

    Parameters
    ----------
    installed
        Bytes of memory that the Mac has.
    macos
        The number of its macOS: 15, or 26.
    """
    shares = _SHARES_OF_26 if macos >= 26 else _SHARES_OF_15
    share = next(share for most, share in shares if installed <= most * 2**30)
    return int(installed * share)


@dataclass
class PeakMemory:
    """Peak memory of a ``with peak(on=lab) as memory:`` block, in bytes beyond what was in use at its start."""

    how: str
    """``"allocator"`` (exact) or ``"sampled"`` (resident memory of the whole process, other threads' too)."""
    bytes: int | None = None
    """None until the block has ended."""
    pool_bytes: int | None = None
    """What the driver holds in its pool at the end, in all; None where there is no pool."""

    def __str__(self) -> str:
        if self.bytes is None:
            return "peak memory: the block has not ended"

        # memory freed before and kept by the process is reused unseen
        least = "at least " if self.how == "sampled" else ""
        text = f"peak memory {least}{units.size(self.bytes)} above the start ({self.how})"
        if self.pool_bytes is not None:
            text += f", driver's pool {units.size(self.pool_bytes)}"
        return text


@contextlib.contextmanager
def peak(*, on: Device) -> Iterator[PeakMemory]:
    """Measure the peak memory of a ``with`` block on a device.

    It is known when the block ends, also by an exception such as "out of memory". Blocks are not nested: the allocator
    has one peak counter. TensorFlow has such counters on some GPUs; on an Apple GPU, whose memory is the CPU's, the
    process is sampled where it has none.

    Parameters
    ----------
    on
        The device, as `metallab.device.pick` returns it.

    Yields
    ------
    PeakMemory
        Its ``bytes`` are None until the block has ended.

    Raises
    ------
    ValueError
        For a GPU whose memory cannot be seen at all, as JAX's.

    Examples
    --------
    >>> with memory.peak(on=lab) as used:
    ...     y = model(x)
    >>> print(used)
    peak memory 1.5 GiB above the start (allocator), driver's pool 2 GiB
    """
    with _choose_way(on) as memory:
        yield memory


def _choose_way(on: Device) -> contextlib.AbstractContextManager[PeakMemory]:
    """Return the way to find the peak on a device: by its allocator where that counts, else by samples.

    Samples are of the process, whose memory an Apple GPU shares, and no other GPU does: ValueError for that one.
    """
    if on.kind == "cpu":
        return _sample_peak()
    if on.framework == "torch":
        return _read_peak(on, _find_torch_counters(on))

    if on.framework == "tensorflow":
        counters = _find_tensorflow_counters()
        if counters is not None:
            return _read_peak(on, counters)
    if on.kind == "mps":
        return _sample_peak()
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


def _find_torch_counters(on: Device) -> _Counters:
    """Return the counters of PyTorch's allocator of a GPU."""
    import torch

    api = torch.accelerator
    pool = torch.mps.driver_allocated_memory if on.kind == "mps" else api.memory_reserved
    return _Counters(
        reset=api.reset_peak_memory_stats,
        allocated=api.memory_allocated,
        highest=api.max_memory_allocated,
        pool=pool,
    )


def _find_tensorflow_counters() -> _Counters | None:
    """Return the counters of TensorFlow's GPU; None where its allocator, a plugin's for instance, does not count."""
    from tensorflow import config

    api = config.experimental
    try:
        api.get_memory_info("GPU:0")
    except ValueError:
        return None

    return _Counters(
        reset=lambda: api.reset_memory_stats("GPU:0"),
        allocated=lambda: api.get_memory_info("GPU:0")["current"],
        highest=lambda: api.get_memory_info("GPU:0")["peak"],
        pool=lambda: None,
    )


@contextlib.contextmanager
def _read_peak(on: Device, counters: _Counters) -> Iterator[PeakMemory]:
    """Find the peak of a block by an allocator's counters."""
    on.synchronize()  # what was launched before is no part of the block
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
def _sample_peak() -> Iterator[PeakMemory]:
    """Find the peak of a block by samples of the process's resident memory.

    A thread takes one every `INTERVAL` seconds, and one is taken at the end. If the highest that the process has ever
    had has risen meanwhile, that counts as well.
    """
    process = psutil.Process()
    start = highest = process.memory_info().rss
    ever = _read_highest_ever()
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
        record = _read_highest_ever()
        if record > ever:
            highest = max(highest, record)
        memory.bytes = highest - start


def _read_highest_ever() -> int:
    """Return the highest resident memory that this process has had, in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
