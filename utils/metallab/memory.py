"""How much memory a piece of work needed at its peak.

Three figures are kept apart. What tensors occupied comes from the allocator's own counters where the device has them.
What the driver holds is a pool, usually larger and not a peak of anything. On the CPU there are no counters: the
process's resident memory is sampled, which misses peaks shorter than the sampling interval and says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from metallab import units
from metallab.device import Accelerator

INTERVAL = 0.002
"""Seconds between two readings of the resident memory."""


@dataclass
class PeakMemory:
    """Peak memory of a ``with peak(on=lab) as memory:`` block, in bytes beyond what was in use at its start."""

    how: str
    """``"allocator"`` (exact) or ``"sampled"`` (resident memory of the process, read every few milliseconds)."""
    bytes: int | None = None
    pool_bytes: int | None = None
    """What the driver holds in its pool at the end, in all; None where there is no pool."""

    def __str__(self) -> str:
        if self.bytes is None:
            return "peak memory: the block has not ended"
        text = f"peak memory {units.size(self.bytes)} above the start ({self.how})"
        return text + (f", driver's pool {units.size(self.pool_bytes)}" if self.pool_bytes is not None else "")


@contextlib.contextmanager
def peak(*, on: Accelerator) -> Iterator[PeakMemory]:
    """Peak memory of the block on a device. Not for nesting: the allocator has one peak counter."""
    with _sampled_peak() if on.kind == "cpu" else _allocator_peak(on) as memory:
        yield memory


@contextlib.contextmanager
def _allocator_peak(on: Accelerator) -> Iterator[PeakMemory]:
    import torch

    on.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    start = torch.accelerator.memory_allocated()
    memory = PeakMemory("allocator")
    yield memory
    on.synchronize()
    memory.bytes = torch.accelerator.max_memory_allocated() - start
    memory.pool_bytes = torch.mps.driver_allocated_memory() if on.kind == "mps" else torch.accelerator.memory_reserved()


@contextlib.contextmanager
def _sampled_peak() -> Iterator[PeakMemory]:
    process = psutil.Process()
    start = highest = process.memory_info().rss
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
        highest = max(highest, process.memory_info().rss)
    finally:
        done.set()
        watcher.join()
        memory.bytes = highest - start
