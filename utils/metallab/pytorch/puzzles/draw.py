"""The picture of a run: which thread reads and writes what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from metallab import plots
from metallab.pytorch.puzzles.record import OUTSIDE, READ, WRITE, Record
from metallab.pytorch.puzzles.run import Run, write_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_THREADS = 24
"""That are drawn, in all columns together."""
MOST_INTERVALS = 4
"""Columns: the first ones, and the last."""
MOST_WORDS = 12
"""Accesses that are told to whoever cannot see the picture."""
THREADS = "threads"

COLOURS = {READ: plots.BLUE, WRITE: plots.ORANGE, OUTSIDE: plots.RED}
VERBS = {READ: "reads", WRITE: "writes", OUTSIDE: "goes outside at"}


class Seen(NamedTuple):
    """An access of the first threadgroup."""

    line: np.void
    place: Any

    @property
    def interval(self) -> int:
        """The barriers that its thread had passed."""
        return int(self.line["interval"])

    @property
    def thread(self) -> int:
        """Its thread's number in the group."""
        return int(self.line["thread"])

    @property
    def kind(self) -> int:
        """`READ`, `WRITE` or `OUTSIDE`."""
        return int(self.line["kind"])


def show_run(run: Run) -> None:
    """Display the accesses of a run in a notebook, if there are any."""
    if run.record is None or not _list_seen(run, run.record):
        return

    from IPython.display import display

    figure = draw_run(run)
    display(figure)
    plt.close(figure)


def draw_run(run: Run) -> Figure:
    """Return a picture of the first threadgroup of a run.

    It has a column for each interval between barriers, in it from below the inputs, the threads, threadgroup memory and
    the result; a line for each read (blue) and write (orange). What lies outside of an array has a dashed red box, a
    result that is wrong a thick red one.

    Raises
    ------
    ValueError
        If the accesses of the run were not recorded.
    """
    record = run.record
    if record is None:
        raise ValueError("the accesses of this run were not recorded: there is nothing to draw")

    seen = _list_seen(run, record)
    intervals = _choose_intervals(seen)
    drawn = _choose_drawn(seen, intervals, record)
    shared = sorted({each.place.name for each in seen if each.place.buffer is None})
    inputs = run.names[1 : len(run.arrays)]
    # from below; the first input is the nearest to the threads
    rows = [*reversed(inputs), THREADS, *shared, run.names[0]]
    wrong = _find_wrong_results(run, record)

    with plt.rc_context(plots.STYLE | {"axes.grid": False}):
        size = (7.5, 0.8 + 0.6 * len(rows))
        figure, axes = plt.subplots(1, len(intervals), figsize=size, squeeze=False, sharey=True)
        for axis, interval in zip(axes[0], intervals, strict=True):
            of_interval = [each for each in drawn if each.interval == interval]
            _draw_interval(axis, rows, of_interval, record, wrong)
            if len(intervals) > 1:
                barriers = "barrier" if interval == 1 else "barriers"
                axis.set_title(f"after {interval} {barriers}")
        axes[0][0].set_yticks(range(len(rows)), rows)
        plots.title(figure, _make_heading(run, seen, drawn, wrong), [])

    return plots.describe(figure, _describe(run, record, seen))


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def _list_seen(run: Run, record: Record) -> list[Seen]:
    """Return the reads and writes of the first threadgroup, and its access outside of all memory, if there is one.

    That one ends a run. It is seen at the array that was meant, and left out where that is not clear. Reads of numbers,
    which lie in memory behind the arrays, are left out as well.
    """
    lines = record.accesses.lines
    first_group = lines[lines["group"] == 0]
    inside = first_group[first_group["kind"] <= WRITE]
    seen = [Seen(line, record.accesses.place(line)) for line in inside]

    # it has a line for each region, and is at most one
    outside = record.find_nearest(
        [*first_group[first_group["kind"] == OUTSIDE]],
        record.accesses.fault.line if record.accesses.fault else None,
    )
    if outside is not None:
        seen.append(Seen(*outside))

    arrays = len(run.arrays)
    return [each for each in seen if each.place.buffer is None or each.place.buffer < arrays]


def _choose_intervals(seen: list[Seen]) -> list[int]:
    """Return the intervals that are drawn: the first ones, and the last."""
    intervals = sorted({each.interval for each in seen})
    first, others = intervals[: MOST_INTERVALS - 1], intervals[MOST_INTERVALS - 1 :]
    return [*first, *others[-1:]]


def _choose_drawn(seen: list[Seen], intervals: list[int], record: Record) -> list[Seen]:
    """Return the accesses for which there is room, in columns for these intervals.

    They are those of the first threads to the elements at the beginning of an array, from two places in front of it, so
    that an access before the first element is seen.
    """
    most = MOST_THREADS // len(intervals)
    drawn = []
    for each in seen:
        is_near = -2 <= record.find_element(each.place) < 2 * most
        if each.thread < most and each.interval in intervals and is_near:
            drawn.append(each)
    return drawn


def _find_wrong_results(run: Run, record: Record) -> set[int]:
    """Return the numbers of the results that are wrong; none of a run that a fault ended before they were made."""
    if record.accesses.fault is not None:
        return set()
    agrees = run.puzzle.agrees(run.result.flatten(), run.expected.flatten())
    return set((~agrees).nonzero().flatten().tolist())


def _make_heading(run: Run, seen: list[Seen], drawn: list[Seen], wrong: set[int]) -> str:
    heading = f"{run.puzzle.name}, size {write_size(run.size)}"
    if len(drawn) < len(seen):
        heading += ", not all drawn"
    heading += ": who reads (blue) and writes (orange) what"
    if any(each.kind == OUTSIDE for each in seen):
        heading += ", or goes outside of an array (red, dashed)"
    if wrong:
        heading += "; red box: a wrong result"
    return heading


def _describe(run: Run, record: Record, seen: list[Seen]) -> str:
    """Return the accesses in words."""
    sentences = [
        f"{record.name_thread(each.line)} {VERBS[each.kind]} {record.name_element(each.place)}"
        for each in seen
    ]
    told = ", ".join(sentences[:MOST_WORDS])
    if len(sentences) > MOST_WORDS:
        told += f", and {len(sentences) - MOST_WORDS} more accesses"
    return f"Accesses of the first threadgroup of {run.puzzle.name}: {told}."


# ---- one column ------------------------------------------------------------------------------------------------------


def _draw_interval(
    axis: Axes, rows: list[str], seen: list[Seen], record: Record, wrong: set[int]
) -> None:
    """Draw the accesses between two barriers, and the threads and elements that they are about.

    Parameters
    ----------
    axis, rows
        The column, and what stands in each of its rows, from below: a variable or `THREADS`. The last is the result.
    seen, record
        The accesses, and what names their threads and places.
    wrong
        The numbers of results that are wrong.
    """
    middle = rows.index(THREADS)
    cells: dict[int, dict[int, _Cell]] = {row: {} for row in range(len(rows))}
    for each in seen:
        element = record.find_element(each.place)
        row = rows.index(record.name(each.place))
        # so that a line begins and ends at the edges of the marks
        step = 0.2 if row > middle else -0.2
        (line,) = axis.plot([each.thread, element], [middle + step, row - step])
        line.set(color=COLOURS[each.kind], linewidth=0.9, alpha=0.8)
        if each.kind == OUTSIDE:  # red beside orange is seen by its dashes, too
            line.set(linewidth=2, linestyle="--", alpha=1)

        is_wrong = row == len(rows) - 1 and element in wrong
        cells[row][element] = _Cell(str(element), each.kind == OUTSIDE, is_wrong)
        thread = re.sub(r"[^\d,]", "", record.name_thread(each.line))  # `3,0` of `thread (3, 0)`
        cells[middle][each.thread] = _Cell(thread)

    for row, of_row in cells.items():
        for position, cell in of_row.items():
            _draw_cell(axis, position, row, cell, marker="o" if row == middle else "s")
    axis.set_ylim(-0.5, len(rows) - 0.5)
    axis.set_xticks([])
    axis.spines[["left", "bottom"]].set_visible(False)


class _Cell(NamedTuple):
    """A thread, or an element of an array."""

    text: str
    is_outside: bool = False
    """Whether the array has no such element."""
    is_wrong: bool = False
    """Whether it is a result that is not the expected one."""


def _draw_cell(axis: Axes, x: int, y: int, cell: _Cell, marker: str) -> None:
    """Draw a thread or an element as a mark with its number."""
    written = axis.text(x, y, cell.text, ha="center", va="center")
    written.set_fontsize(6 if len(cell.text) > 2 else 7)
    if cell.is_outside:  # a marker's edge cannot be dashed, the box of a text can
        written.set_text(f"{cell.text} \N{MULTIPLICATION SIGN}")
        written.set_color(plots.RED)
        written.set_bbox(
            {"boxstyle": "square", "facecolor": "white", "edgecolor": plots.RED, "linestyle": "--"}
        )
        return

    edge = plots.RED if cell.is_wrong else plots.GREY
    width = 2 if cell.is_wrong else 1
    axis.plot(
        x, y, marker, color="white", markeredgecolor=edge, markeredgewidth=width, markersize=11
    )
