"""Which lines of memory the threads of a SIMD-group touch, and how many threads a core holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metallab import plots, units
from metallab.drawings.canvas import arrow, box, canvas, write

EVERY = 4
"""Of so many threads one is drawn: all of them would hide their arrows."""


@dataclass(frozen=True)
class Strides:
    """What was counted of reads ``a[i * stride]``."""

    lines: Mapping[int, float]
    """Lines that a SIMD-group's read touches, by the stride."""
    lanes: int
    line_bytes: int
    number_bytes: int = 4


def draw_lines(counted: Strides) -> Figure:
    """Draw lines of memory as boxes and threads as arrows into them, a row for each stride.

    Parameters
    ----------
    counted : Strides
        Three strides are readable.

    Returns
    -------
    matplotlib.figure.Figure
        Some threads of a SIMD-group, and the lines that they touch; how many all of them touch stands beside.
    """
    rows = len(counted.lines)
    with canvas(inches=0.9 + 1.15 * rows, width=24.0, height=4.0 * rows) as (figure, axes):
        for row, (stride, lines) in enumerate(counted.lines.items()):
            _draw_stride(axes, 4.0 * row, stride, lines, counted)

        plots.title(
            figure,
            f"Lines of {counted.line_bytes} bytes that a SIMD-group's read touches; "
            f"every {EVERY}th of {counted.lanes} threads is drawn",
            ["counted on the simulated GPU; the length of a line is a model"],
        )

    told = (f"stride {stride}: {lines:g} lines" for stride, lines in counted.lines.items())

    return plots.describe(figure, "; ".join(told))


def _draw_stride(axes: Axes, top: float, stride: int, lines: float, counted: Strides) -> None:
    """Draw one stride: a row of lines of memory, and an arrow from each drawn thread to the byte that it reads.

    Parameters
    ----------
    axes
        Whose vertical axis points down.
    top
        Where the row begins.
    stride
        Numbers from the one of a thread to that of the next.
    lines
        How many lines all threads touch together.
    counted
        The threads, and the bytes of a number and of a line.
    """
    left, width = 3.4, 2.1  # of the first line's box
    write(axes, (0.1, top + 0.9), f"stride {stride}", fontsize=9)
    noun = "line" if lines == 1 else "lines"
    write(axes, (20.4, top + 1.8), f"{lines:g} {noun}\nfor all {counted.lanes}", fontsize=9)

    drawn = range(0, counted.lanes, EVERY)
    read = {
        lane: divmod(lane * stride * counted.number_bytes, counted.line_bytes) for lane in drawn
    }
    touched = sorted({line for line, _byte in read.values()})

    # behind the lines that are touched come the next ones, empty, so that each row has as many boxes
    missing = len(drawn) - len(touched)
    shown = [*touched, *range(touched[-1] + 1, touched[-1] + 1 + missing)]
    for place, line in enumerate(shown):
        colour = plots.SKY if line in touched else plots.GREY
        words = f"line {line}" if line in touched else ""
        box(axes, (left + place * width, top + 2.2), (width - 0.15, 0.9), words, colour=colour)

    for place, (lane, (line, byte)) in enumerate(read.items()):
        start = (left + (place + 0.5) * width, top + 0.9)
        left_of_line = left + shown.index(line) * width
        end = (left_of_line + (width - 0.3) * (byte / counted.line_bytes) + 0.1, top + 2.1)
        write(axes, (start[0], top + 0.5), str(lane), align="center")
        arrow(axes, start, end, colour=plots.BLUE, width=0.8)


@dataclass(frozen=True)
class Held:
    """A kernel, and how many of its groups a core holds."""

    name: str
    group_bytes: int
    """Registers that a group takes."""
    groups: int
    threads: int
    limit: str


def draw_occupancy(kernels: Sequence[Held], register_bytes: int) -> Figure:
    """Draw a core's registers as a bar, filled by the groups that it holds, for several kernels.

    Parameters
    ----------
    kernels : sequence of Held
        From `metallab.pytorch.gpu_counts.occupancy`.
    register_bytes : int
        Of a core.

    Returns
    -------
    matplotlib.figure.Figure
        Threads and what is used up first stand right of each bar.
    """
    with plots.picture(1.2 + 0.5 * len(kernels)) as (figure, axes):
        for row, each in enumerate(kernels):
            for group in range(each.groups):
                axes.barh(
                    row,
                    each.group_bytes / 1024,
                    left=group * each.group_bytes / 1024,
                    facecolor=(plots.BLUE, 0.35),
                    edgecolor=plots.BLUE,
                )
            axes.text(
                1.02,
                row,
                f"{each.threads} threads,\nlimit: {each.limit}",
                transform=axes.get_yaxis_transform(),
                va="center",
                color=plots.BLACK,
                fontsize=8,
            )
        plots.rows(axes, [each.name for each in kernels])
        axes.axvline(register_bytes / 1024, color=plots.BLACK, linestyle="--", linewidth=1)

        axes.set_xlabel(f"registers in use [KiB], of {units.size(register_bytes)} a core (dashed)")

        plots.title(
            figure,
            "Groups that fit into a core",
            ["calculated from sizes reported of M1 and M2"],
        )

    told = (
        f"{each.name}: {each.groups} groups, {each.threads} threads, limit {each.limit}"
        for each in kernels
    )

    return plots.describe(figure, "; ".join(told))
