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
    the result; a line for each read (blue) and write (orange).
    """
    record = run.record
    if record is None:
        raise ValueError("the accesses of this run were not recorded: there is nothing to draw")

    seen = _list_seen(run, record)
    intervals = _choose_intervals(seen)
    drawn = _choose_drawn(seen, intervals, record)
    shared = sorted({each.place.name for each in seen if each.place.buffer is None})
    inputs = run.names[1 : len(run.arrays)]
    rows = [*reversed(inputs), THREADS, *shared, run.names[0]]

    with plt.rc_context(plots.STYLE | {"axes.grid": False}):
        size = (7.5, 0.8 + 0.6 * len(rows))
        figure, axes = plt.subplots(1, len(intervals), figsize=size, squeeze=False, sharey=True)
        for axis, interval in zip(axes[0], intervals, strict=True):
            _draw_interval(
                axis, rows, [each for each in drawn if each.interval == interval], record
            )
            if len(intervals) > 1:
                barriers = "barrier" if interval == 1 else "barriers"
                axis.set_title(f"after {interval} {barriers}")
        axes[0][0].set_yticks(range(len(rows)), rows)
        plots.title(figure, _make_heading(run, seen, len(drawn)), [])

    return plots.describe(figure, _describe(run, record, seen))


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def _list_seen(run: Run, record: Record) -> list[Seen]:
    """Return the accesses of the first threadgroup to arrays, and the one outside of them."""
    lines = record.accesses.lines
    first_group = lines[lines["group"] == 0]
    inside = first_group[first_group["kind"] <= WRITE]
    seen = [Seen(line, record.accesses.place(line)) for line in inside]

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
    """Return the accesses for which there is room."""
    most = MOST_THREADS // len(intervals)
    drawn = []
    for each in seen:
        is_near = -2 <= record.find_element(each.place) < 2 * most
        if each.thread < most and each.interval in intervals and is_near:
            drawn.append(each)
    return drawn


def _make_heading(run: Run, seen: list[Seen], drawn: int) -> str:
    heading = f"{run.puzzle.name}, size {write_size(run.size)}"
    if drawn < len(seen):
        heading += ", not all drawn"
    heading += ": who reads (blue) and writes (orange) what"
    if any(each.kind == OUTSIDE for each in seen):
        heading += ", or outside (red)"
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


def _draw_interval(axis: Axes, rows: list[str], seen: list[Seen], record: Record) -> None:
    """Draw the accesses between two barriers."""
    middle = rows.index(THREADS)
    cells: dict[int, dict[int, str]] = {row: {} for row in range(len(rows))}
    for each in seen:
        element = record.find_element(each.place)
        row = rows.index(record.name(each.place))
        step = 0.2 if row > middle else -0.2
        axis.plot(
            [each.thread, element],
            [middle + step, row - step],
            color=COLOURS[each.kind],
            linewidth=0.9,
            alpha=0.8,
        )
        cells[row][element] = str(element)
        cells[middle][each.thread] = re.sub(r"[^\d,]", "", record.name_thread(each.line))

    for row, texts in cells.items():
        _draw_cells(axis, row, texts, marker="o" if row == middle else "s")
    axis.set_ylim(-0.5, len(rows) - 0.5)
    axis.set_xticks([])
    axis.spines[["left", "bottom"]].set_visible(False)


def _draw_cells(axis: Axes, row: int, texts: dict[int, str], marker: str) -> None:
    """Draw threads or elements as marks with their numbers."""
    axis.plot(
        [*texts],
        [row] * len(texts),
        marker,
        color="white",
        markeredgecolor=plots.GREY,
        markersize=11,
    )
    for position, text in texts.items():
        size = 6 if len(text) > 2 else 7
        axis.text(position, row, text, ha="center", va="center", fontsize=size)
