"""What an Apple chip consists of, how work is cut into threads, and what a copy is in one memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metallab import plots, units
from metallab.drawings.canvas import arrow, box, canvas, write


@dataclass(frozen=True)
class ChipParts:
    """What is drawn of a chip."""

    name: str
    gpu_cores: int
    bandwidth: float
    """Between memory and chip, in bytes a second."""
    memory: str
    """Such as ``8 or 16 GB``."""


def draw_chip(chips: Sequence[ChipParts]) -> Figure:
    """Draw chips side by side: their parts, and the way to the one memory, as wide as its bandwidth.

    Parameters
    ----------
    chips : sequence of ChipParts
        One or two.

    Returns
    -------
    matplotlib.figure.Figure
        A GPU core is a small square.
    """
    widest = max(each.bandwidth for each in chips)

    with canvas(inches=3.4, width=10.0 * len(chips), height=9.2) as (figure, axes):
        for number, each in enumerate(chips):
            _draw_one_chip(axes, 10.0 * number + 0.4, each, 1.6 * each.bandwidth / widest)

        plots.title(
            figure,
            "A chip: processors of three kinds, and one memory for all of them",
            ["a drawing; numbers reported by others"],
        )

    told = [
        f"{each.name}: CPU cores with a unit for matrix products in each cluster, {each.gpu_cores} GPU cores, a Neural "
        f"Engine, a cache for the whole chip, and memory at {units.rate(each.bandwidth, 'B/s')}"
        for each in chips
    ]

    return plots.describe(figure, "; ".join(told))


def _draw_one_chip(axes: Axes, left: float, chip: ChipParts, width: float) -> None:
    """Draw a chip nine places wide from ``left`` on: processors above, the cache below them, and last the memory.

    ``width`` is that of the way between cache and memory. GPU cores stand in rows of eight.
    """
    write(axes, (left, 0.4), chip.name, fontsize=10)
    box(axes, (left, 0.9), (2.7, 3.0), "CPU cores,\na matrix unit\na cluster", colour=plots.BLUE)
    box(axes, (left + 3.0, 0.9), (3.6, 3.0), colour=plots.ORANGE)
    write(axes, (left + 4.8, 1.35), f"GPU, {chip.gpu_cores} cores", align="center")
    box(axes, (left + 6.9, 0.9), (2.1, 3.0), "Neural\nEngine", colour=plots.GREEN)

    side = 0.3
    for core in range(chip.gpu_cores):
        row, column = divmod(core, 8)
        corner = (left + 3.2 + 0.41 * column, 1.8 + 0.41 * row)
        box(axes, corner, (side, side), colour=plots.ORANGE)

    box(axes, (left, 4.3), (9.0, 0.9), "cache of the whole chip", colour=plots.GREY)
    box(axes, (left + 4.5 - width / 2, 5.2), (width, 2.3), colour=plots.SKY)
    write(axes, (left + 6.1, 6.3), units.rate(chip.bandwidth, "B/s"))
    box(axes, (left, 7.5), (9.0, 1.1), f"one memory, {chip.memory}", colour=plots.PURPLE)


@dataclass(frozen=True)
class GridParts:
    """How a grid of threads is cut, and what a core has for them."""

    threads: int
    group: int
    """Threads of a threadgroup."""
    lanes: int
    """Threads of a SIMD-group."""
    register_bytes: int
    """Of a core."""
    shared_bytes: int
    """Threadgroup memory that a group can have."""


def draw_grid(parts: GridParts) -> Figure:
    """Draw grid, threadgroup, SIMD-group and thread: above how many there are of each, below what each has or runs on.

    Parameters
    ----------
    parts : GridParts
        Of an M1 or an M2, as the line below the title says. With whole groups: the numbers are rounded down.

    Returns
    -------
    matplotlib.figure.Figure
        A column for each step from the grid to the thread.
    """
    groups, simd_groups = parts.threads // parts.group, parts.group // parts.lanes
    columns = (
        ("grid", f"{parts.threads} threads", "device memory,\nall can read it", plots.PURPLE),
        (
            "threadgroup",
            f"{groups} in the grid,\n{parts.group} threads each",
            f"a core; up to\n{units.size(parts.shared_bytes)} of\nthreadgroup memory",
            plots.ORANGE,
        ),
        (
            "SIMD-group",
            f"{simd_groups} in a group,\n{parts.lanes} threads each",
            "walks through the\nprogram in step",
            plots.BLUE,
        ),
        (
            "thread, or lane",
            f"{parts.lanes} in a\nSIMD-group",
            f"registers: its share\nof {units.size(parts.register_bytes)} a core",
            plots.GREEN,
        ),
    )

    with canvas(inches=2.6, width=20.0, height=6.4) as (figure, axes):
        for number, (name, count, has, colour) in enumerate(columns):
            left = 5.0 * number + 0.2
            write(axes, (left + 2.0, 0.4), name, align="center", fontsize=9)
            box(axes, (left, 0.9), (4.1, 1.9), count, colour=colour)
            box(axes, (left, 3.9), (4.1, 2.2), has)
            arrow(axes, (left + 2.05, 2.9), (left + 2.05, 3.8))
            if number:
                arrow(axes, (left - 0.8, 1.85), (left - 0.1, 1.85))

        plots.title(
            figure,
            "From the grid to the thread (above), and what each of them has (below)",
            ["a drawing; sizes reported of M1 and M2"],
        )

    words = "; ".join(
        f"{name}: {count}, {holds}".replace("\n", " ") for name, count, holds, _ in columns
    )

    return plots.describe(figure, words)


def draw_one_memory(size_bytes: int, copies: Sequence[str], shares: Sequence[str]) -> Figure:
    """Draw what copies a tensor inside the one memory, and what only gives it a second name.

    Parameters
    ----------
    size_bytes : int
        Of the tensor.
    copies, shares : sequence of str
        Calls that make a second tensor, and calls that return a view of the first.

    Returns
    -------
    matplotlib.figure.Figure
        The copy on the left, the view on the right.
    """
    size = units.size(size_bytes)

    with canvas(inches=2.6, width=20.0, height=6.6) as (figure, axes):
        write(axes, (4.6, 0.4), "copies", align="center", fontsize=9)
        box(axes, (0.2, 2.9), (9.0, 3.2), colour=plots.PURPLE)
        box(axes, (0.7, 3.3), (3.3, 1.6), f"x\n{size}", colour=plots.ORANGE)
        box(axes, (5.4, 3.3), (3.3, 1.6), f"second tensor\n{size}", colour=plots.BLUE)
        arrow(axes, (4.1, 4.1), (5.3, 4.1))
        write(axes, (4.7, 5.5), "one memory", align="center")
        write(axes, (4.6, 1.7), "\n".join(copies), align="center")

        write(axes, (15.2, 0.4), "shares", align="center", fontsize=9)
        box(axes, (10.7, 2.9), (9.0, 3.2), colour=plots.PURPLE)
        box(axes, (13.2, 3.3), (4.0, 1.6), f"x, and its view\n{size}", colour=plots.ORANGE)
        write(axes, (15.2, 5.5), "one memory", align="center")
        write(axes, (15.2, 1.7), "\n".join(shares), align="center")

        plots.title(figure, "One memory, and still a copy", ["a drawing"])

    return plots.describe(
        figure,
        f"{', '.join(copies)}: a second tensor of {size} in the same memory; "
        f"{', '.join(shares)}: a second name for the same {size}",
    )
