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
        """Return which variable and byte a line of `lines` is about."""
        offset = int(line["offset"])
        if line["region"] < 0:
            begin, name = max(
                ((b, n) for b, _, n in self.shared if b <= max(offset, 0)),
                default=(0, "threadgroup"),
            )
            return Place(None, name, offset - begin)
        buffers = self.regions[line["region"]]
        first = min(buffers.values())
        begin, index = max(
            (o - first, i) for i, o in buffers.items() if o - first <= max(offset, 0)
        )
        return Place(index, f"buffer({index})", offset - begin)

    def source_line(self, line: np.void) -> int | None:
        """Return the line of the Metal source, from 1, that a line of `lines` comes from."""
        number = source_line(self.program, f"0x{line['site']:x}").partition(":")[2]
        return int(number) or None


def accesses(program: Program, call: binding.Call, timeout: float, unset: str) -> Accesses:
    """Run a kernel once in a process of its own and return its accesses; `timeout` in seconds."""
    regions, built = binding.regions(call.buffers), program.build(tool := f"accesses, {unset}")
    outcome = program.run(tool, call, timeout)
    shared = _shared(built)
    lines = np.frombuffer(
        outcome.record, _RECORDED, len(outcome.record) // _RECORDED.itemsize
    ).copy()
    lines["region"] -= bool(shared)  # threadgroup memory, where there is some, is the first span
    if outcome.status is None:
        faults = [KernelFault("hang", None, f"the kernel did not end within {timeout:g} s")]
    else:
        faults = findings_in(outcome)
    memory = {
        index: after[offset : offset + call.buffers[index].bytes]
        for region, after in zip(regions, outcome.memory, strict=False)
        for index, offset in region.buffers.items()
    }
    first = min(faults, key=lambda fault: fault.kind != "address", default=None)
    return Accesses(
        lines, first, memory, tuple(region.buffers for region in regions), shared, built
    )


def _shared(built: Path) -> tuple[tuple[int, int, str], ...]:
    """Offset, bytes and name of each variable in threadgroup memory."""
    table = [one for one in elf.symbols(built) if one.section == "metalsim_shared" and one.bytes]
    start = min((one.address for one in table), default=0)
    return tuple(sorted((one.address - start, one.bytes, _name(one.name)) for one in table))


def _name(symbol: str) -> str:
    """The last part of a mangled name, such as `tile` of _ZZ6kernelPfE4tile."""
    match = re.search(r"E(\d+)([A-Za-z_]\w*)$", symbol)
    return match[2][: int(match[1])] if match else "threadgroup"
