"""The basis of an answer, for people: tables of a result's numbers, and texts such as a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from metallab import units
from metallab.doctor import wording
from metallab.doctor.results import (
    BatchTimes,
    ComparedRun,
    CorrectnessResult,
    FootprintResult,
    FormatsResult,
    NoAnswer,
    ProfileResult,
    SpeedResult,
    SupportResult,
    TimedTask,
)
from metallab.tables import Table

MOST_OPERATORS = 12
"""Operators whose times are listed."""


@dataclass(frozen=True)
class Evidence:
    """A table or a text, with a title."""

    title: str
    table: Table | None = None
    text: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain lists and texts."""
        if self.table is None:
            return {"title": self.title, "text": self.text}
        return {
            "title": self.title,
            "headings": self.table.headings,
            "rows": self.table.rows,
            "note": self.table.note,
        }

    def __str__(self) -> str:
        shown = repr(self.table) if self.text is None else self.text
        return "\n".join([f"{self.title}:", *(f"  {line}" for line in shown.splitlines())])


@singledispatch
def collect(result: Any) -> list[Evidence]:  # noqa: ARG001 - the class decides
    """Return the tables and texts of a result; none of one that has none."""
    return []


@collect.register
def _collect_no_answer(result: NoAnswer) -> list[Evidence]:
    return [Evidence("What it printed last", text=result.printed)] if result.printed else []


@collect.register
def _collect_support(result: SupportResult) -> list[Evidence]:
    """Return a table of the operators that do not run on the GPU; nothing if all do."""
    if not result.operators:
        return []

    rows = [
        (each.name, wording.obstacle(each), *wording.places(each), each.way_out)
        for each in result.operators
    ]
    table = Table(["operator", "on MPS", "called by", "at", "way out"], rows)
    return [Evidence("Operators that do not run on the GPU", table)]


@collect.register
def _collect_correctness(result: CorrectnessResult) -> list[Evidence]:
    """Return what is wrong, an operator with its program if there is one, then tables of what was and was not compared.

    Where no call was compared and none is wrong there are no tables: there was no time, or the model raised at once.
    """
    evidence = []
    if result.wrong is not None:
        evidence.append(Evidence("The first wrong operator", text=result.wrong.details))
        if result.wrong.program:
            evidence.append(Evidence("A program that shows it", text=result.wrong.program))
    if result.other_output is not None:
        evidence.append(Evidence("What differs", text=result.other_output.details))
    if not result.compared and result.wrong is None:
        return evidence

    rows = [_make_row_of_run(run) for run in result.runs]
    note = wording.not_tried(result.not_tried)
    table = Table([*rows[0]], [[*row.values()] for row in rows], note)
    evidence.append(Evidence("Compared", table))

    if result.not_compared:
        table = Table(["operator", "why"], [*result.not_compared.items()])
        evidence.append(Evidence("Not compared", table))
    return evidence


def _make_row_of_run(run: ComparedRun) -> dict[str, object]:
    """Return what the table has of one run, by heading; rows above it are runs that came before."""
    return {
        "how": wording.way(run.way),
        "calls": f"{run.calls:,}",
        "compared": f"{run.compared:,}",
        "compared above": f"{run.known:,}",  # calls of a kind that a run of a row above has compared
        "again": f"{run.repeated:,}",  # calls of the rows above, which were made with other numbers
        "result": run.outcome if run.is_compared else "not compared",
        "rounding": f"{run.largest:.1e}",  # what agrees differs by rounding alone
    }


@collect.register
def _collect_speed(result: SpeedResult) -> list[Evidence]:
    """Return all times: of inference, over batches, and of a training step, as far as they were taken."""
    evidence = [_show_times(task) for task in result.inference]
    if isinstance(result.batches, BatchTimes):
        evidence.append(Evidence("Over batches", _table_of_batches(result.batches)))
    if result.training is not None:
        evidence.append(_show_times(result.training))
    return evidence


def _show_times(timed: TimedTask) -> Evidence:
    task = "training step" if timed.task == "training" else timed.task
    return Evidence(f"Measured, {task}", text=timed.details)


def _table_of_batches(batches: BatchTimes) -> Table:
    """Return a table with a row for each batch and the time on each device."""

    def rows() -> Iterator[tuple[object, ...]]:
        for number, batch in enumerate(batches.batches):
            times = (units.seconds(line[number]) for line in batches.seconds.values())
            yield f"{batch:,}", *times

    return Table(["batch", *batches.seconds], list(rows()))


@collect.register
def _collect_profile(result: ProfileResult) -> list[Evidence]:
    """Return a table of the operators that take the longest, and one of copies and fallbacks if there are any."""
    rows = [
        (
            each.name,
            each.kind,
            # the names that the trace has, where not all are of layers, such as a part of the loss; empty of none
            wording.name_layers(each.layers) or each.modules,
            f"{each.calls:,}",
            f"{1e3 * each.seconds:.7g}",
            f"{each.share:.0%}",
        )
        for each in result.operators[:MOST_OPERATORS]
    ]
    headings = ["operator", "kind", "called by", "calls", "total [ms]", "share"]
    title = f"The longest of {wording.name_traced_task(result.task)}"
    if result.flags:
        title += f" [{', '.join(result.flags)}]"
    evidence = [Evidence(title, Table(headings, rows))]

    if result.transfers:
        evidence.append(Evidence("Copies and fallbacks", _table_of_transfers(result)))
    return evidence


def _table_of_transfers(result: ProfileResult) -> Table:
    """Return a table with a row for each place in the code that copies or falls back."""
    rows = []
    for each in result.transfers or ():
        unknown = wording.PHRASES["unknown time"]
        time = unknown if each.seconds is None else f"{1e3 * each.seconds:.3g}"
        place = (each.name, each.direction, wording.module(each), each.line)
        rows.append((*place, f"{each.calls:,}", units.size(each.bytes), time))
    return Table(["operator", "which way", "called by", "at", "calls", "bytes", "ms"], rows)


@collect.register
def _collect_footprint(result: FootprintResult) -> list[Evidence]:
    """Return a table of what takes memory, each with how it is known: counted, or measured as a peak."""
    by_peak = "by the peak of a step" if result.is_by_peak else "counted"
    parts = [
        ("weights", result.weights, "counted"),
        ("gradients", result.gradients, "counted"),
        ("AdamW", result.optimizer, "counted"),
        (f"activations, batch of {result.rows:,}", result.activations, by_peak),
        ("training in all", result.needed, "their sum"),
    ]
    for task, peak in result.peaks.items():
        # AdamW's numbers are counted above, and the step that was run keeps none
        name = "a step of SGD" if task == "training" else task
        parts.append((f"peak of {name}, beyond the weights", peak, "PyTorch's allocator"))

    rows = [(name, units.size(size), how) for name, size, how in parts]
    note = "" if result.peaks else wording.PHRASES["no peak"]
    return [Evidence("Memory", Table(["part", "size", "how"], rows, note))]


@collect.register
def _collect_formats(result: FormatsResult) -> list[Evidence]:
    """Return a table with a row for each number format: its error, its time, and its memory."""
    rows = [
        (run.name, wording.error(run), wording.inference(run), wording.show_kept_bytes(run))
        for run in result.formats
    ]
    headings = ["format", "error of the outputs", "inference", "kept for the backward pass"]
    return [Evidence("Formats", Table(headings, rows, result.left_out))]
