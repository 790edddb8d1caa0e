"""Boxes, arrows and words on a canvas without axes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from metallab import plots

PALE = 0.18
"""How much of its colour a box is filled with: words on it stay readable."""

SMALL = 8
"""Size of the words in boxes."""


@contextlib.contextmanager
def canvas(*, inches: float, width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Make axes without frame, so many ``inches`` high, on which places go from (0, 0) at the left upper corner.

    ``width`` and ``height`` are the place of the right lower one: x goes to the right, and y downwards.
    """
    with plots.picture(inches) as (figure, axes):
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        yield figure, axes


def box(
    axes: Axes,
    corner: tuple[float, float],
    size: tuple[float, float],
    words: str = "",
    *,
    colour: str = plots.GREY,
) -> Rectangle:
    """Draw a pale box with words in its middle; ``corner`` is its left upper one."""
    patch = Rectangle(corner, *size, facecolor=(colour, PALE), edgecolor=colour)
    axes.add_patch(patch)
    if words:
        middle = corner[0] + size[0] / 2, corner[1] + size[1] / 2
        axes.text(*middle, words, ha="center", va="center", fontsize=SMALL)
    return patch


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    colour: str = plots.BLACK,
    width: float = 1.2,
) -> None:
    """Draw an arrow from one place to another."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            linewidth=width,
            color=colour,
            shrinkA=0,
            shrinkB=0,
        )
    )


def write(
    axes: Axes,
    place: tuple[float, float],
    words: str,
    *,
    align: str = "left",
    colour: str = plots.BLACK,
    fontsize: float = SMALL,
) -> None:
    """Write words beside a place, in the middle of its height."""
    axes.text(*place, words, ha=align, va="center", color=colour, fontsize=fontsize)
