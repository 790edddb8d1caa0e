"""The accesses of one run, and the names of the threads and places in them."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from metallab.pytorch.puzzles.run import Run
    from metalsim.shader import Accesses

READ, WRITE, OUTSIDE, RACE = range(4)
"""Kinds of accesses, as `metalsim.shader.accesses` numbers them."""

NEAR = 1 << 18
"""An access so many elements away from an array may still have been meant for it."""

WIDEST = 16
"""Bytes of the widest element."""


class Sharing(NamedTuple):
    """What threads read that they have not written themselves."""

    unwritten: np.void | None
    """The first access that reads what no thread has written, of threadgroup memory or of the result."""
    is_found: bool
    """Whether a thread has read, before that, what another one has written to threadgroup memory."""


class Record:
    """The accesses of a run.

    A line of ``accesses.lines`` is one access, a *place* is a variable and a byte in it.
    """

    def __init__(self, run: Run, accesses: Accesses) -> None:
        self._run = run
        self.accesses = accesses

    # ---- which accesses

    def select(self, *kinds: int) -> list[np.void]:
        """Return the accesses of these kinds."""
        return [line for line in self.accesses.lines if line["kind"] in kinds]

    def select_buffer(self, index: int) -> np.ndarray:
        """Return the accesses inside a buffer, of which each has a region of its own."""
        return self.accesses.lines[self._is_inside(index)]

    def _is_inside(self, index: int) -> np.ndarray:
        """Return for each access whether it is inside a buffer."""
        regions = self.accesses.regions
        region = next(number for number, buffers in enumerate(regions) if index in buffers)
        lines = self.accesses.lines
        return (lines["region"] == region) & (lines["kind"] <= WRITE)

    def count_moved(self, index: int, kind: int) -> float:
        """Return how many numbers of a buffer are read, or written, for each result."""
        lines = self.select_buffer(index)
        num_bytes = float(lines["bytes"][lines["kind"] == kind].sum())
        return num_bytes / self._run.arrays[index].element_size() / self._run.expected.numel()

    def find_busiest(self) -> int:
        """Return how many reads and writes the thread makes that makes most of them."""
        lines = self.accesses.lines
        own = lines[lines["kind"] <= WRITE]
        threads = own["group"] * np.prod(self._run.group) + own["thread"]
        return int(np.bincount(threads).max())

    @functools.cached_property
    def sharing(self) -> Sharing:
        """What threads read that they have not written themselves, of threadgroup memory and of the result.

        The accesses are followed in the order in which the simulation ran the threads, each byte for itself, up to the
        first that reads a byte which no thread has written before. Inputs are left out: they were written before the
        run.
        """
        lines = self.accesses.lines
        # region -1 is threadgroup memory, buffer 0 the result
        followed = lines[(lines["region"] < 0) | self._is_inside(0)]

        # by the group, or -1 for the result, which all groups have in common, and the byte: who wrote it
        writers: dict[tuple[int, int], int] = {}
        is_shared = False
        for line in followed:
            is_local = line["region"] < 0
            group = int(line["group"]) if is_local else -1
            begin = int(line["offset"])
            keys = [(group, byte) for byte in range(begin, begin + int(line["bytes"]))]

            if line["kind"] == WRITE:
                writers.update(dict.fromkeys(keys, line["thread"]))
            elif not writers.keys() >= set(keys):
                return Sharing(line, is_shared)
            elif is_local and any(writers[key] != line["thread"] for key in keys):
                is_shared = True
        return Sharing(None, is_shared)

    def find_unwritten_result(self) -> int | None:
        """Return the number of the first result that no thread writes; None if each is written.

        A result counts as written if its first byte is.
        """
        written: set[int] = set()
        lines = self.select_buffer(0)
        for line in lines[lines["kind"] == WRITE]:
            begin = int(line["offset"])
            written.update(range(begin, begin + int(line["bytes"])))

        width = self._run.expected.element_size()
        for element in range(self._run.expected.numel()):
            if element * width not in written:
                return element
        return None

    def find_nearest(
        self, lines: Sequence[np.void], source_line: int | None
    ) -> tuple[np.void, Any] | None:
        """Return, for an access outside of all memory, what was meant; None if that is not clear.

        Meant was an array that the line of the source indexes, or one that begins within `NEAR` elements of the access;
        of several of them the one that begins nearest.

        Parameters
        ----------
        lines
            The access has a line for each region.
        source_line
            Where it stands in the source, from 1: what the text indexes there was meant.

        Returns
        -------
        tuple or None
            The access, as its line for the region of that array has it, and its place in that array.
        """
        pairs = [(line, self.accesses.place(line)) for line in lines]
        texts = self._run.source.split("\n")
        text = ""
        if source_line and source_line <= len(texts):
            text = texts[source_line - 1]

        indexed = [pair for pair in pairs if re.search(rf"\b{self.name(pair[1])}\s*\[", text)]
        near = [pair for pair in pairs if self._distance(pair) < NEAR]
        return min(indexed or near, key=self._distance, default=None)

    def _distance(self, pair: tuple[np.void, Any]) -> int:
        """Return how many elements an access is away from the beginning of an array."""
        return abs(self.find_element(pair[1]))

    # ---- threads

    def name_thread(self, line: np.void) -> str:
        """Return the thread of an access, by its position in the grid: ``thread 3``, ``thread (3, 0)``."""
        threads = self._run.threads
        axes = max((axis + 1 for axis in range(3) if threads[axis] > 1), default=1)
        position = ", ".join(map(str, self._find_position(line)[:axes]))
        return f"thread {position}" if axes == 1 else f"thread ({position})"

    def _find_position(self, line: np.void) -> tuple[int, ...]:
        """Return the position in the grid of the thread of an access.

        Where the grid is no multiple of a group, the groups at its edge are smaller, and so their threads are numbered.
        """
        totals = self._run.threads
        sides = self._run.group
        groups = [-(-total // side) for total, side in zip(totals, sides, strict=True)]
        group = _unflatten(int(line["group"]), groups)

        begins = [number * side for number, side in zip(group, sides, strict=True)]
        parts = zip(totals, begins, sides, strict=True)
        thread = _unflatten(
            int(line["thread"]), [min(side, total - begin) for total, begin, side in parts]
        )
        return tuple(begin + inside for begin, inside in zip(begins, thread, strict=True))

    # ---- places

    def name(self, place: Any) -> str:
        """Return the variable of a place."""
        return place.name if place.buffer is None else self._run.names[place.buffer]

    def name_element(self, place: Any) -> str:
        """Return the element of a place: ``a[3]``.

        Of a threadgroup array that the source declares with two sides in numbers it has a row and a column:
        ``tile[1][2]``.
        """
        element = place.byte // self._find_width(place)
        declared = None
        if place.buffer is None:
            # its declaration comes before its uses, so the first match is the declaration
            declared = re.search(rf"\b{place.name}((?:\s*\[\d+\])+)", self._run.source)

        sides = [int(side) for side in re.findall(r"\d+", declared[1])] if declared else []
        if len(sides) == 2:
            row, column = divmod(element, sides[1])
            return f"{place.name}[{row}][{column}]"
        return f"{self.name(place)}[{element}]"

    def find_element(self, place: Any) -> int:
        """Return which element a place is; a large one that an unsigned index below 0 became is below 0."""
        element = place.byte // self._find_width(place)
        return element - (1 << 32) if element >> 31 == 1 else element

    def count_elements(self, place: Any) -> int:
        """Return how many elements the variable of a place has."""
        if place.buffer is None:
            lengths = {name: length for _, length, name in self.accesses.shared}
            return lengths[place.name] // self._find_width(place)
        return self._bytes_of_buffer(place.buffer) // self._find_width(place)

    def _find_width(self, place: Any) -> int:
        """Return the bytes of an element of the variable of a place."""
        if place.buffer is not None:
            is_array = place.buffer < len(self._run.arrays)
            return self._run.arrays[place.buffer].element_size() if is_array else 8
        lines = self.accesses.lines
        return int(lines["bytes"][lines["region"] < 0].min(initial=WIDEST))

    def _bytes_of_buffer(self, index: int) -> int:
        """Return the bytes of an array, or of a number behind the arrays."""
        return self._run.arrays[index].nbytes if index < len(self._run.arrays) else 8

    def name_lines(self, *lines: np.void) -> str:
        """Return the lines of the source from which accesses come: `` (line 3)``; empty if they are not known."""
        return write_lines(*(self.accesses.source_line(line) for line in lines))


def write_lines(*numbers: int | None) -> str:
    """Return the numbers of lines for the end of a phrase: `` (lines 3 and 5)``; empty if none is known."""
    known = sorted({number for number in numbers if number})
    if not known:
        return ""
    word = "line" if len(known) == 1 else "lines"
    return f" ({word} {' and '.join(map(str, known))})"


def _unflatten(number: int, sides: Sequence[int]) -> tuple[int, int, int]:
    """Return a number as a position, x first."""
    return number % sides[0], number // sides[0] % sides[1], number // (sides[0] * sides[1])
