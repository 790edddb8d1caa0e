"""What a GPU would have to do for a kernel, counted in the accesses that the simulated GPU records.

::

    accesses = kernel.accesses(out, a, threads=64, group_size=32)   # of metalsim.shader
    gpu_counts.lines_a_read(accesses, buffer=1)

Counted, and not timed: which numbers the threads of a SIMD-group touch is the same on every GPU that runs the kernel.
How long a line is, and how many banks threadgroup memory has, is a *model*: 128 bytes and 32 banks of 4 bytes, as
reported of M1 and M2 (`LINE`, `BANKS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LANES = 32
"""Threads of a SIMD-group."""

LINE = 128
"""Bytes that memory delivers at once: philipturner/metal-benchmarks measured it on M1."""

BANKS = 32
"""Parts of threadgroup memory that answer at the same time, 4 bytes each: assumed, since Apple publishes none."""

REGISTER_BYTES = 208 * 1024
"""Of a core: philipturner/metal-benchmarks, M1 and M2."""

SHARED_BYTES = 60 * 1024
"""Threadgroup memory of a core, of which one group may take 32 KiB: philipturner/metal-benchmarks, M1 and M2."""

MOST_THREADS = 3072
"""At once on a core, however few registers they take: philipturner/metal-benchmarks."""

_READ, _WRITE = 0, 1


def lines_a_read(accesses: Any, buffer: int, *more: int) -> float:
    """Count the memory lines that a SIMD-group's read of a buffer touches, or of several.

    Parameters
    ----------
    accesses : metalsim.shader.accesses.Accesses
        Of one run of a kernel.
    buffer, *more : int
        The indices of the buffers among the kernel's arguments.

    Returns
    -------
    float
        Lines of `LINE` bytes, the mean over all reads: 1 where 32 threads read neighbours, 32 where each is elsewhere.

    Raises
    ------
    ValueError
        Nothing was read from the buffers.
    """
    return _lines(accesses, (buffer, *more), _READ)


def lines_a_write(accesses: Any, buffer: int, *more: int) -> float:
    """Count the memory lines that a SIMD-group's write to a buffer touches, as `lines_a_read` does."""
    return _lines(accesses, (buffer, *more), _WRITE)


def has_reads(accesses: Any, *buffers: int) -> bool:
    """Return whether a kernel has read any of some buffers."""
    return len(_select(accesses, buffers, _READ)) > 0


def _lines(accesses: Any, buffers: Sequence[int], kind: int) -> float:
    own = _select(accesses, buffers, kind)
    if not len(own):
        asked = ", ".join(map(str, buffers))
        raise ValueError(f"the kernel does not touch buffer {asked} in this way: count another")

    instruction, count = _number_instructions(own)
    touched = np.stack([instruction, own["region"], own["offset"] // LINE], axis=1)
    return len(np.unique(touched, axis=0)) / count


def _select(accesses: Any, buffers: Sequence[int], kind: int) -> np.ndarray:
    """Return the recorded accesses of a kind to some buffers."""
    regions = [_region_of(accesses, buffer) for buffer in buffers]
    recorded = accesses.lines
    return recorded[(recorded["kind"] == kind) & np.isin(recorded["region"], regions)]


def _region_of(accesses: Any, buffer: int) -> int:
    for region, buffers in enumerate(accesses.regions):
        if buffer in buffers:
            return region
    raise ValueError(f"the kernel has no buffer {buffer}: count one of its arguments from 0")


def _number_instructions(own: np.ndarray) -> tuple[np.ndarray, int]:
    """Find out which accesses belong to one instruction of a SIMD-group.

    They do where its threads access memory at one place of the program (``site``), each of them for the n-th time.

    Returns
    -------
    numpy.ndarray, int
        For each access the number of its instruction, and how many instructions there are.
    """
    # for the n-th time: sorted by thread and place, a thread's accesses at a place follow each other in their order
    thread = np.stack([own["group"], own["thread"], own["site"]], axis=1)
    order = np.lexsort((np.arange(len(own)), own["site"], own["thread"], own["group"]))
    ordered = thread[order]
    is_first = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)]
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(own)), 0))
    repeat = np.empty(len(own), int)
    repeat[order] = np.arange(len(own)) - begins

    simd_group = np.stack([own["group"], own["thread"] // LANES, own["site"], repeat], axis=1)
    names, instruction = np.unique(simd_group, axis=0, return_inverse=True)
    return instruction.ravel(), len(names)


@dataclass(frozen=True)
class Walk:
    """What the SIMD-groups of a kernel walked through, of the instructions that touch memory."""

    instructions: float
    """For each SIMD-group."""
    busy_lanes: float
    """In each of these instructions, of `LANES`."""


def walk(accesses: Any) -> Walk:
    """Count the memory instructions that a SIMD-group walks, and the threads that take part in each.

    Parameters
    ----------
    accesses : metalsim.shader.accesses.Accesses
        Of one run of a kernel.

    Returns
    -------
    Walk
        Means over all SIMD-groups, and over all instructions. Where a branch splits a SIMD-group both sides are walked,
        each by a part of the threads.

    Raises
    ------
    ValueError
        The kernel touches no memory.
    """
    # reads and writes alone: the kinds behind them record faults
    own = accesses.lines[accesses.lines["kind"] <= _WRITE]
    if not len(own):
        raise ValueError("the kernel touches no memory: there are no instructions to count")

    _, count = _number_instructions(own)
    groups = np.unique(np.stack([own["group"], own["thread"] // LANES], axis=1), axis=0)
    return Walk(count / len(groups), len(own) / count)


def turns_a_read(accesses: Any) -> float:
    """Count the turns that a SIMD-group's read of threadgroup memory takes, in a model of `BANKS` banks of 4 bytes.

    Parameters
    ----------
    accesses : metalsim.shader.accesses.Accesses
        Of one run of a kernel.

    Returns
    -------
    float
        The mean over all reads of the most different words that lie in one bank: 1 without a conflict, 32 at worst.

    Raises
    ------
    ValueError
        The kernel reads no threadgroup memory.
    """
    recorded = accesses.lines
    # a buffer's region counts from 0, and threadgroup memory has -1
    own = recorded[(recorded["kind"] == _READ) & (recorded["region"] < 0)]
    if not len(own):
        raise ValueError("the kernel reads no threadgroup memory: there are no banks to count")

    instruction, count = _number_instructions(own)
    # a word that several threads read counts once: in the model, only different words wait for each other
    words = np.unique(np.stack([instruction, own["offset"] // 4], axis=1), axis=0)
    in_bank = np.zeros((count, BANKS), int)
    np.add.at(in_bank, (words[:, 0], words[:, 1] % BANKS), 1)
    return float(in_bank.max(axis=1).mean())


@dataclass(frozen=True)
class Occupancy:
    """How many threads of a kernel a core holds at once."""

    groups: int
    threads: int
    limit: str
    """What is used up first: ``registers``, ``threadgroup memory`` or ``threads``."""


def occupancy(threads: int, registers: int, shared_bytes: int = 0) -> Occupancy:
    """Calculate how many groups of a kernel fit into a core, with the sizes that are reported of M1 and M2.

    Parameters
    ----------
    threads : int
        Of a threadgroup.
    registers : int
        Of 32 bits that a thread takes.
    shared_bytes : int
        Threadgroup memory of a group.

    Returns
    -------
    Occupancy
        Whole groups alone.

    Raises
    ------
    ValueError
        A number that is not above 0, or a group that fits into no core.
    """
    if min(threads, registers) < 1 or shared_bytes < 0:
        raise ValueError("a kernel has at least one thread and one register: give numbers above 0")

    fits = {
        "registers": REGISTER_BYTES // (4 * registers * threads),
        "threads": MOST_THREADS // threads,
    }
    if shared_bytes:
        fits["threadgroup memory"] = SHARED_BYTES // shared_bytes

    limit = min(fits, key=lambda name: fits[name])
    if fits[limit] == 0:
        raise ValueError(f"a group of this kernel does not fit into a core: too many {limit}")
    return Occupancy(fits[limit], fits[limit] * threads, limit)
