"""What to do about an operator, by what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from metallab import plots
from metallab.drawings.canvas import arrow, box, canvas, write


@dataclass(frozen=True)
class Answer:
    """One answer to the question at the root."""

    name: str
    """Such as ``missing``."""
    means: str
    """What happens on the GPU, in at most two short lines."""
    ways: str
    """What to do, in the order of trying, a line each."""
    colour: str


ANSWERS = (
    Answer(
        "missing",
        "no kernel:\nit raises",
        "1 the variable\n2 another operator\n3 build it\n4 this call on the CPU\n5 your own kernel",
        plots.ORANGE,
    ),
    Answer(
        "refused",
        "a kernel, but not\nfor these arguments",
        "look at the argument\n2 another operator\n3 build it\n4 this call on the CPU\n5 your own kernel",
        plots.PURPLE,
    ),
    Answer(
        "falls back",
        "PyTorch runs it\non the CPU",
        "once: leave it\nin a loop:\n2 another operator\n3 build it",
        plots.SKY,
    ),
    Answer(
        "native, and slow",
        "a kernel that takes\nlonger than the CPU",
        "time both\n2 another operator\n3 build it\n4 this call on the CPU",
        plots.GREEN,
    ),
)


def draw_ways_out(examples: Mapping[str, str]) -> Figure:
    """Draw the tree from what coverage and a timer say of an operator to what can be done about it.

    Parameters
    ----------
    examples : mapping of str to str
        An operator for each answer, by the names of `ANSWERS`.

    Returns
    -------
    matplotlib.figure.Figure
        A column for each answer; the ways have the numbers of page 11's table.
    """
    with canvas(inches=3.8, width=20.4, height=10.2) as (figure, axes):
        root = "What do coverage and a timer say of the operator?"
        box(axes, (0.2, 0.2), (20.0, 1.0), root)

        for number, answer in enumerate(ANSWERS):
            left = 5.1 * number + 0.2
            middle = left + 2.35
            arrow(axes, (middle, 1.3), (middle, 2.1))
            box(axes, (left, 2.2), (4.7, 1.0), answer.name, colour=answer.colour)
            write(axes, (middle, 4.0), answer.means, align="center")
            write(axes, (middle, 5.3), examples[answer.name], align="center", colour=plots.BLUE)
            arrow(axes, (middle, 5.8), (middle, 6.4))
            box(axes, (left, 6.5), (4.7, 3.5), answer.ways, colour=answer.colour)

        plots.title(figure, "An operator that does not run well, and the ways out", ["a drawing"])

    told = []
    for answer in ANSWERS:
        means, ways = answer.means.replace("\n", " "), answer.ways.replace("\n", ", ")
        told.append(f"{answer.name} ({examples[answer.name]}): {means}; {ways}")
    return plots.describe(figure, "; ".join(told))
