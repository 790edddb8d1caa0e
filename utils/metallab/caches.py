"""Clear the caches of a processor, so that the next call finds its data in memory and not in a cache.

Nobody can tell a cache to forget. But a cache holds only so much, and what is read last takes the place of what was
read before. So whoever reads a buffer that is larger than the cache leaves nothing else in it. The buffer is written
once, because memory that was never written may be one page of zeros over and over, and afterwards only read: what is
written would have to be carried back to memory while the next call is timed.

A device that can clear its caches has a method ``cache_clearer()``, which returns a function without arguments:
`metallab.timing.compare` calls it before each sample that is to be cold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from metallab import units

TIMES = 1.5
"""The buffer has so many times the size of the cache: caches do not always drop what is oldest. A server's may have
hundreds of MiB, and a student's container there has 2 GiB for everything."""

UNKNOWN = 2**28
"""Bytes of a buffer, at least, and where the size of the cache is not known. On a Mac no program is told the size of
the cache that CPU and GPU share; 96 MB on an M1 Ultra is the largest that was reported.

Source: https://github.com/philipturner/applegpuinfo.
"""

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""Where Linux describes the caches of the first core."""

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class CachesNotCleared(ValueError):
    """The caches of a device cannot be cleared; the message says what to do instead."""


def find_cpu_cache() -> int | None:
    """Return the bytes of the CPU's largest cache, as Linux tells; None where nobody does."""
    sizes = []
    for file in CPU_CACHES.glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG])", file.read_text("ascii", "replace").strip())
        if found:
            sizes.append(int(found[1]) * _UNITS[found[2]])
    return max(sizes, default=None)


def size_buffer(cache: int | None) -> int:
    """Return the bytes of a buffer that takes the place of everything in a cache.

    Parameters
    ----------
    cache
        The bytes of the cache; None if they are not known.

    Returns
    -------
    int
        `TIMES` the cache, and at least `UNKNOWN`.
    """
    return max(UNKNOWN, int(TIMES * (cache or 0)))


def require_memory(buffer: int) -> None:
    """Refuse a buffer of so many bytes that would take more than half of the memory that is free.

    Raises
    ------
    CachesNotCleared
        If it would.
    """
    free = psutil.virtual_memory().available
    if 2 * buffer > free:
        raise CachesNotCleared(
            f"to clear the caches takes a buffer of {units.size(buffer)}, more than half of the {units.size(free)} of "
            "memory that are free: close other programs, or leave cold=True out"
        )


def make_numpy_clearer() -> Callable[[], Any]:
    """Return what clears the caches of the thread that calls it, and those that all cores share.

    Raises
    ------
    CachesNotCleared
        If there is too little memory for the buffer.
    """
    import numpy as np  # here, since what runs notebooks imports this module, and needs no NumPy

    size = size_buffer(find_cpu_cache())
    require_memory(size)
    buffer = np.ones(size // 4, np.float32)
    return buffer.sum
