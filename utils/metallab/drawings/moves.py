"""What a program moves between the CPU and the GPU, and when."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metallab import plots, units
from metallab.drawings.canvas import arrow, box, canvas, write


@dataclass(frozen=True)
class Moves:
    """What is moved by a training loop, in bytes."""

    model: int
    """Once, before the first step."""
    batch: int
    """In each step."""
    losses: int
    """Once, after the last step."""
    steps: int
    """How many are drawn."""


CPU_TOP, GPU_TOP, HIGH = 1.0, 4.4, 1.6
WIDE = 3.0
"""Of a box."""


def draw_moves(moves: Moves) -> Figure:
    """Draw a training loop over time: what lies in the CPU's tensors, what in the GPU's, and each copy between them.

    Parameters
    ----------
    moves : Moves
        With at least one step.

    Returns
    -------
    matplotlib.figure.Figure
        The CPU's row above, the GPU's below; an arrow is a copy.
    """
    model, batch, losses = (units.size(each) for each in (moves.model, moves.batch, moves.losses))
    columns = moves.steps + 2

    with canvas(inches=3.0, width=2.2 + 3.6 * columns, height=7.6) as (figure, axes):
        write(axes, (0.1, CPU_TOP + HIGH / 2), "CPU", fontsize=9)
        write(axes, (0.1, GPU_TOP + HIGH / 2), "GPU", fontsize=9)
        words = f"model\n{model}"
        _draw_copy(axes, 0, words, words, plots.PURPLE)
        write(axes, (_middle(0), 7.0), "once", align="center")

        for step in range(1, moves.steps + 1):
            _draw_copy(axes, step, f"batch {step}\n{batch}", f"step {step}", plots.BLUE)
            write(axes, (_middle(step), 7.0), "each step", align="center")

        last, words = moves.steps + 1, f"losses\n{losses}"
        _draw_copy(axes, last, words, words, plots.GREEN, down=False)
        write(axes, (_middle(last), 7.0), "once, and waits", align="center")

        plots.title(figure, "What moves when: an arrow is a copy", ["a drawing"])

    return plots.describe(
        figure,
        f"the model, {model}, goes to the GPU once; then a batch of {batch} before each of {moves.steps} steps; "
        f"at the end the losses, {losses}, come back, and the program waits for them",
    )


def _left(column: int) -> float:
    return 2.0 + 3.6 * column


def _middle(column: int) -> float:
    return _left(column) + WIDE / 2


def _draw_copy(
    axes: Axes, column: int, on_cpu: str, on_gpu: str, colour: str, *, down: bool = True
) -> None:
    """Draw what lies in both rows in a column, and the copy between them: to the GPU, or from it unless ``down``."""
    size = (WIDE, HIGH)
    box(axes, (_left(column), CPU_TOP), size, on_cpu, colour=colour)
    box(axes, (_left(column), GPU_TOP), size, on_gpu, colour=plots.ORANGE)

    upper, lower = (_middle(column), CPU_TOP + HIGH + 0.1), (_middle(column), GPU_TOP - 0.1)
    if down:
        arrow(axes, upper, lower)
        return
    arrow(axes, lower, upper)
