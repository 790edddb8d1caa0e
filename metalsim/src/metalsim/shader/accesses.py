"""Which thread of a kernel reads and writes which element: what kernel.accesses() returns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metalsim.shader import binding, elf
from metalsim.shader.check import KernelFault, findings_in
from metalsim.shader.program import Program, source_line

KINDS = ("read", "write", "outside", "race")
_RECORDED = np.dtype(  # hooks::Recorded in runtime/hooks.h
    [(name, "u4") for name in ("group", "thread", "interval", "site", "kind", "bytes")]
    + [("region", "i8"), ("offset", "i8")]
)


@dataclass(frozen=True)
class Place:
    """Where an access was: index of the buffer (None: threadgroup memory), the variable's name there, byte in it."""

    buffer: int | None
    name: str
    byte: int


@dataclass(frozen=True)
class Accesses:
    """One run of a kernel, access by access, in the order in which the simulation ran its threads.

    Attributes
    ----------
    lines : numpy.ndarray
        A structured array with `group` and `thread` (numbers, x first), `interval` (barriers passed), `kind` (index of
        KINDS; a race is two lines, an access outside of all memory one for each region), `bytes`, `region` (-1:
        threadgroup memory) and `offset` in bytes.
    fault : KernelFault or None
        What ended or spoiled the run: an access outside of a buffer, a race, a barrier, a hang.
    memory : dict of int to bytes
        Each buffer after the run, by index; empty after a fault that ended it.
    """

    lines: np.ndarray
    fault: KernelFault | None
    memory: dict[int, bytes]
    regions: tuple[dict[int, int], ...]  # of each region, the offsets of its buffers
    shared: tuple[tuple[int, int, str], ...]  # of threadgroup memory: offset, bytes, name
    program: Path

    def place(self, line: np.void) -> Place:
        """Return which variable and byte a line of `lines` is about.

        Several buffers may share a region, and several variables the threadgroup memory: it is the last one that begins
        at the place or before it. An access in front of all is told of the first one, with a negative byte, and one
        behind its end with a byte that it does not have.
        """
        offset = int(line["offset"])
        at_least = max(offset, 0)  # an access may be in front of all

        if line["region"] < 0:
            before = [(begin, name) for begin, _, name in self.shared if begin <= at_least]
            begin, name = max(before, default=(0, "threadgroup"))
            return Place(None, name, offset - begin)

        buffers = self.regions[line["region"]]
        first = min(buffers.values())
        # counted as offsets are: from the first one on
        begins = ((begin - first, index) for index, begin in buffers.items())
        begin, index = max(each for each in begins if each[0] <= at_least)
        return Place(index, f"buffer({index})", offset - begin)

    def source_line(self, line: np.void) -> int | None:
        """Return the line of the Metal source, from 1, that a line of `lines` comes from."""
        number = source_line(self.program, f"0x{line['site']:x}").partition(":")[2]
        return int(number) or None


def accesses(program: Program, call: binding.Call, timeout: float, unset: str) -> Accesses:
    """Run a kernel once in a process of its own and return its accesses.

    A run that did not end in time has the fault ``hang``, and no lines. Of several faults the result has one: an access
    outside of a buffer, which ends the run, or else the first.

    Parameters
    ----------
    program, call
        The kernel, and how it is called.
    timeout
        Seconds that the run may take.
    unset
        What a thread's variables begin with: ``pattern``, which makes NaN, or ``zero``.
    """
    tool = f"accesses, {unset}"
    built = program.build(tool)
    outcome = program.run(tool, call, timeout)
    shared = _find_shared(built)

    count = len(outcome.record) // _RECORDED.itemsize
    lines = np.frombuffer(outcome.record, _RECORDED, count).copy()
    if shared:
        lines["region"] -= 1  # threadgroup memory, where there is some, is the first span

    faults = [KernelFault("hang", None, f"the kernel did not end within {timeout:g} s")]
    if outcome.status is not None:
        faults = findings_in(outcome)

    regions = binding.regions(call.buffers)
    # where a fault has ended the run, the files of its memory hold what it began with
    contents = outcome.memory if outcome.status == 0 else ()
    memory = {
        index: after[offset : offset + call.buffers[index].bytes]
        for region, after in zip(regions, contents, strict=False)
        for index, offset in region.buffers.items()
    }
    return Accesses(
        lines=lines,
        fault=min(faults, key=lambda fault: fault.kind != "address", default=None),
        memory=memory,
        regions=tuple(region.buffers for region in regions),
        shared=shared,
        program=built,
    )


def _find_shared(built: Path) -> tuple[tuple[int, int, str], ...]:
    """Return offset, bytes and name of each variable in threadgroup memory."""
    table = [one for one in elf.symbols(built) if one.section == "metalsim_shared" and one.bytes]
    start = min((one.address for one in table), default=0)
    return tuple(sorted((one.address - start, one.bytes, _name(one.name)) for one in table))


def _name(symbol: str) -> str:
    """Return the last part of a mangled name, such as `tile` of _ZZ6kernelPfE4tile."""
    match = re.search(r"E(\d+)([A-Za-z_]\w*)$", symbol)
    return match[2][: int(match[1])] if match else "threadgroup"
