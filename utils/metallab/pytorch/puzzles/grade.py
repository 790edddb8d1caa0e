"""The first fault of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metallab.pytorch.puzzles.record import OUTSIDE, RACE, READ, WRITE, Record, write_lines
from metallab.pytorch.puzzles.run import Run, write_size
from metallab.pytorch.puzzles.verdict import Kind, Wrong

if TYPE_CHECKING:
    from torch import Tensor

KINDS: dict[str, Kind] = {
    "address": "out of bounds",
    "race": "race",
    "barrier": "divergent barrier",
    "hang": "does not end",
}
"""What each fault of the simulation is called; another one means that the kernel does not end."""


def judge(run: Run) -> None:
    """Raise `Wrong` for the first fault of a run.

    It is looked for in this order: what ended or spoiled the run, a read of what no thread has written, an input that
    is written, a result that is not, a wrong value, and, of a kernel that is right, its speed.

    Without a record of accesses, as on a Mac's GPU, only the values are judged.
    """
    if run.record is not None:
        _judge_fault(run, run.record)
        _judge_reads(run, run.record)
        _judge_writes(run, run.record)

    _judge_values(run)
    if run.record is not None:
        _judge_speed(run, run.record)


def _at(run: Run) -> str:
    """Return the size, with which a sentence begins."""
    return f"at size {write_size(run.size)}"


# ---- accesses --------------------------------------------------------------------------------------------------------


def _judge_fault(run: Run, record: Record) -> None:
    """Raise `Wrong` for what ended or spoiled the run: with threads and elements by name as far as they were recorded.

    Otherwise with the simulation's own words.
    """
    fault = record.accesses.fault
    if fault is None:
        return

    kind = KINDS.get(fault.kind, "does not end")
    if kind == "out of bounds":
        _judge_outside(run, record, fault)
    if kind == "race":
        _judge_race(run, record)
    # an `if` around the barrier is enough: the others need not have returned
    message = fault.message.replace("the others have returned", "the others do not reach it")
    raise Wrong(kind, f"{_at(run)} {message}{write_lines(fault.line)}.")


def _judge_outside(run: Run, record: Record, fault: Any) -> None:
    """Raise `Wrong` for an access outside of all memory, with its thread and its element; return if none was recorded.

    The element is one of the array that was meant, as far as that is clear (`Record.find_nearest`).
    """
    lines = record.select(OUTSIDE)
    if not lines:
        return

    verb = "reads" if "read" in fault.message else "writes"
    where = write_lines(fault.line)
    nearest = record.find_nearest(lines, fault.line)
    if nearest is None:
        thread = record.name_thread(lines[0])
        raise Wrong("out of bounds", f"{_at(run)} {thread} {verb} outside of every array{where}.")

    line, place = nearest
    element = record.find_element(place)
    # an index below 0 of an unsigned type is a place behind the array, with a number that says nothing
    signed = f", which is {element} as an int" if element < 0 <= place.byte else ""
    last = record.count_elements(place) - 1
    raise Wrong(
        "out of bounds",
        f"{_at(run)} {record.name_thread(line)} {verb} {record.name_element(place)}{where}{signed}; "
        f"{record.name(place)} ends with element {last}.",
    )


def _judge_race(run: Run, record: Record) -> None:
    """Raise `Wrong` for two accesses in no defined order, with both threads; return unless both were recorded."""
    lines = record.select(RACE)
    if len(lines) < 2:
        return

    # a race is recorded as two accesses: the one that met it, then the earlier one
    now, before = lines[:2]
    threads = f"{record.name_thread(before)} and {record.name_thread(now)}"
    element = record.name_element(record.accesses.place(now))
    raise Wrong(
        "race",
        f"{_at(run)} {threads} use {element} in no defined order, and at least one writes it"
        f"{record.name_lines(before, now)}.",
    )


def _judge_reads(run: Run, record: Record) -> None:
    """Raise `Wrong` for the first access that reads threadgroup memory, or a result, that no thread has written."""
    unwritten = record.sharing.unwritten
    if unwritten is None:
        return

    element = record.name_element(record.accesses.place(unwritten))
    raise Wrong(
        "uninitialised",
        f"{_at(run)} {record.name_thread(unwritten)} reads {element}, which no thread has written"
        f"{record.name_lines(unwritten)}.",
    )


def _judge_writes(run: Run, record: Record) -> None:
    """Raise `Wrong` for an input that is written, then for a result that is not."""
    for index in range(1, len(run.arrays)):
        lines = record.select_buffer(index)
        written = lines[lines["kind"] == WRITE]
        if len(written):
            first = written[0]
            element = record.name_element(record.accesses.place(first))
            where = record.name_lines(first)
            thread = record.name_thread(first)
            raise Wrong(
                "wrong value", f"{_at(run)} {thread} writes {element}{where}, which is an input."
            )

    missing = record.find_unwritten_result()
    if missing is not None:
        raise Wrong("uninitialised", f"{_at(run)} no thread writes {run.name_result(missing)}.")


# ---- values and speed ------------------------------------------------------------------------------------------------


def _judge_values(run: Run) -> None:
    """Raise `Wrong` for results that are not those of the reference, with the first of them.

    The reason is a variable without a value if a second run, in which such variables are 0, leaves other numbers.
    """
    result, expected = run.result.flatten(), run.expected.flatten()
    agrees = run.puzzle.agrees(result, expected)
    if bool(agrees.all()):
        return

    kind: Kind = "wrong value"
    why = f"{int((~agrees).sum())} of {len(agrees)} are wrong."
    if run.record and run.record_accesses(unset="zero").memory != run.record.accesses.memory:
        kind = "uninitialised"
        why = "a thread reads a variable of its own that it has not set."

    first = int((~agrees).nonzero()[0])
    made, wanted = _write_apart(result[first], expected[first])
    raise Wrong(
        kind, f"{_at(run)} {run.name_result(first)} is {made}, and should be {wanted}; {why}"
    )


def _write_apart(made: Tensor, wanted: Tensor) -> tuple[str, str]:
    """Return two different numbers, each in a tensor, as texts that differ.

    Seven digits of a float32 say how large it is, and nine tell it from its neighbours.
    """
    if not wanted.is_floating_point():
        return str(int(made)), str(int(wanted))

    short = f"{made.item():.7g}", f"{wanted.item():.7g}"
    if short[0] != short[1]:
        return short
    return f"{made.item():.9g}", f"{wanted.item():.9g}"


def _judge_speed(run: Run, record: Record) -> None:
    """Raise `Wrong` for a kernel that reads too often, or whose busiest thread does too much.

    How much is enough, `most_reads` and `steps`, the puzzle says.
    """
    slow = f"right, but too slow: {_at(run)}"
    most = run.puzzle.most_reads
    for index in range(1, len(run.arrays)):
        # the limit is that of the first input; another one with its shape is read as often, such as a second matrix
        if run.arrays[index].shape != run.arrays[1].shape:
            continue
        reads = record.count_moved(index, READ)
        if reads > most:
            read = f"it reads {reads:.3g} numbers of {run.names[index]} from device memory for each result"
            raise Wrong("too slow", f"{slow} {read}, and {most:.3g} are enough.")

    few = run.puzzle.steps
    if few and run.size == run.puzzle.sizes[0]:  # at which `steps` was counted
        accesses = record.find_busiest()
        if accesses >= 2 * few:
            raise Wrong(
                "too slow", f"{slow} one thread makes {accesses} accesses, and {few} are enough."
            )
