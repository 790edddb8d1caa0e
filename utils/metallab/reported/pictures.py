"""Pictures of what others reported: always hatched, always labelled, never beside a ratio of ours."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from metallab import plots
from metallab.reported import LABEL, Entry

HATCH = "////"
"""Marks every value that was not measured here."""


def bar(axes: Axes, row: float, entry: Entry, label: str | None = None) -> BarContainer:
    """Draw a reported value as a hatched bar, for a picture that has rows of its own.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        Its horizontal axis is in the unit of the value.
    row : float
        Where the bar lies.
    entry : Entry
        What is drawn.
    label : str, optional
        What the legend says; the first bar of a picture needs `LABEL`.
    """
    # no face, and a grey in the middle: seen on a white ground and on a dark one
    return axes.barh(
        row,
        entry.quantity.value,
        height=0.62,
        facecolor="none",
        edgecolor=plots.GREY,
        hatch=HATCH,
        linewidth=1,
        label=label,
    )


def bars(entries: Sequence[Entry], heading: str) -> Figure:
    """Draw reported values, a hatched bar each.

    Parameters
    ----------
    entries : sequence of Entry
        At least one, all in one unit.
    heading : str
        What the picture shows.

    Returns
    -------
    matplotlib.figure.Figure
        Its description has the value, chip, versions and address of each bar.

    Raises
    ------
    ValueError
        There is nothing to draw, or the units differ.
    """
    if not entries:
        raise ValueError("there is nothing to draw: no measurement was given")
    measured_in = {entry.quantity.unit for entry in entries}
    if len(measured_in) > 1:
        raise ValueError(
            f"one picture has one unit, and these have {', '.join(sorted(measured_in))}: draw each by itself"
        )

    (unit,) = measured_in
    names = _names(entries)
    with plots.picture(1.2 + 0.34 * len(entries)) as (figure, axes):
        for row, entry in enumerate(entries):
            bar(axes, row, entry, LABEL if row == 0 else None)
            axes.annotate(
                f"{entry.quantity.value:g}",
                (entry.quantity.value, row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        plots.rows(axes, names)
        axes.grid(visible=False)  # each bar has its number
        axes.set_xlim(0, 1.12 * max(entry.quantity.value for entry in entries))
        axes.set_xlabel(f"[{unit}]")
        figure.legend(loc="outside lower center")
        plots.title(figure, heading, [f"{LABEL}, on their own Macs"])
    told = (
        f"{name}: {entry.quantity.value:g} {unit} ({entry.where})"
        for name, entry in zip(names, entries, strict=True)
    )
    return plots.describe(figure, f"{LABEL}: {'; '.join(told)}")


def _names(entries: Sequence[Entry]) -> list[str]:
    """What tells a bar from the others: with its framework where that is needed."""
    short = [_name(entry) for entry in entries]
    return [
        f"{name}, {entry.framework}" if short.count(name) > 1 else name
        for name, entry in zip(short, entries, strict=True)
    ]


def _name(entry: Entry) -> str:
    computed_by = "" if entry.processor == "GPU" else entry.processor
    return ", ".join(filter(None, [f"{entry.chip} {computed_by}".strip(), entry.dtype, entry.size]))
