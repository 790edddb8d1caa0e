"""Rooflines: of the machine that was measured, of chips as they are reported, and where two machines cross."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from metallab import plots, units
from metallab.roofline import Machine, Reading, Work

SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7), (-0.7, -0.7))
"""Of a point, where its number may stand."""

LEAST_ROOM = 9.5
"""Printer's points from a number to the next one or to a point, so that both can be read."""


def draw_roofline(machine: Machine, readings: Sequence[Reading]) -> Figure:
    """Draw a machine's roofline, and where each call lies, by its number.

    Parameters
    ----------
    machine : Machine
        Its peak and bandwidth are the roof.
    readings : sequence of Reading
        A point each: filled where the prediction held, hollow where it did not.

    Returns
    -------
    matplotlib.figure.Figure
        The numbers are explained in the legend, in the order of the readings.
    """
    intensities = [each.work.intensity for each in readings] + [machine.ridge]
    x = np.geomspace(min(intensities) / 2, max(intensities) * 2, 200)

    with plots.picture(5.2) as (figure, axes):
        axes.loglog(x, [machine.attainable(each) for each in x], color=plots.BLACK, linewidth=2)
        axes.axvline(machine.ridge, color=plots.GREY, linestyle=":", linewidth=1)
        for number, each in enumerate(readings, 1):
            _draw_point(axes, number, each)
        _number_points(axes, [(each.work.intensity, each.rate) for each in readings])

        axes.set_xlabel("arithmetic intensity [FLOP/B]; dotted: ridge point")
        axes.set_ylabel("reached")
        _label_rates(axes)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, handlelength=1)

        plots.title(
            figure,
            "Roofline: filled points were predicted within 35 %, hollow ones were not",
            [machine.label],
            any(each.measurement.simulated for each in readings),
            any(each.measurement.is_busy for each in readings),
        )

    told = (
        f"{each.measurement.name} at {each.work.intensity:.3g} FLOP/B reaches {units.rate(each.rate, 'FLOP/s')}"
        for each in readings
    )

    return plots.describe(
        figure,
        f"peak {units.rate(machine.peak, 'FLOP/s')}, ridge point {machine.ridge:.3g} FLOP/B; {'; '.join(told)}",
    )


def _draw_point(axes: Axes, number: int, reading: Reading) -> None:
    """Draw where a call lies, with its number and its name in the legend; hollow where the prediction did not hold.

    Colours begin anew after the last: calls are told apart by the numbers that `_number_points` writes.
    """
    colour = plots.COLOURS[number % len(plots.COLOURS)]
    face = colour if reading.holds else "white"

    axes.plot(
        reading.work.intensity,
        reading.rate,
        marker="o",
        markersize=7,
        markerfacecolor=face,
        markeredgecolor=colour,
        linestyle="none",
        label=f"{number} {reading.measurement.name}",
    )


def _number_points(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Write its number beside each point, where it is farthest from other points and from the numbers before."""
    # distances are those on paper: the axes need their limits first, which matplotlib sets when it draws
    axes.autoscale_view()
    pixels_a_point = axes.figure.dpi / 72
    places = axes.transData.transform(points) / pixels_a_point
    sides = [distance * np.array(side) for distance in (10, 18) for side in SIDES]
    taken = list(places)

    for number, (point, place) in enumerate(zip(points, places, strict=True), 1):
        free = [_find_room(place + side, taken) for side in sides]
        # what is near is better, where it is free enough to be read
        best = next((k for k, room in enumerate(free) if room >= LEAST_ROOM), int(np.argmax(free)))
        taken.append(place + sides[best])
        axes.annotate(
            str(number),
            point,
            xytext=tuple(sides[best]),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
        )


def _label_rates(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.rate(value, "FLOP/s")))


def _find_room(place: NDArray[np.float64], taken: Sequence[NDArray[np.float64]]) -> float:
    """Return how far the nearest of the places that are taken is away."""
    return min(float(np.hypot(*(place - other))) for other in taken)


@dataclass(frozen=True)
class Roof:
    """A chip's peak and bandwidth, as they are reported."""

    name: str
    peak: float
    """FLOP/s."""
    bandwidth: float
    """B/s."""
    has_matrix_units: bool = False
    """Drawn dashed."""


def draw_roofs_of_chips(roofs: Sequence[Roof], places: Mapping[str, float]) -> Figure:
    """Draw the rooflines of several chips, and at which intensity different work lies.

    Parameters
    ----------
    roofs : sequence of Roof
        Of chips; at most six are told apart.
    places : mapping of str to float
        Arithmetic intensity in FLOP/B, by the name of the work.

    Returns
    -------
    matplotlib.figure.Figure
        Each place is a vertical line with its name at the bottom.
    """
    x = np.geomspace(min(places.values()) / 2, max(places.values()) * 3, 200)
    # below all roofs, with room for the names
    lowest = min(each.bandwidth for each in roofs) * x[0] / 40

    with plots.picture(4.8) as (figure, axes):
        for each, colour in zip(roofs, plots.COLOURS, strict=False):
            rates = np.minimum(each.peak, each.bandwidth * x)
            style = "--" if each.has_matrix_units else "-"
            axes.loglog(x, rates, style, color=colour, linewidth=2, label=each.name)

        for name, intensity in places.items():
            axes.axvline(intensity, color="#bbbbbb", linewidth=0.8, zorder=0)
            axes.text(
                intensity, lowest * 1.2, name, rotation=90, va="bottom", ha="right", fontsize=8
            )
        axes.set_ylim(bottom=lowest)

        axes.set_xlabel("arithmetic intensity [FLOP/B]")
        axes.set_ylabel("peak (low end)")
        _label_rates(axes)
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)

        plots.title(
            figure,
            "Rooflines of the GPUs of Apple's chips, by arithmetic intensity",
            ["reported by others, on a label or calculated from cores and clock"],
        )

    told = (
        f"{each.name}: peak {units.rate(each.peak, 'FLOP/s')}, ridge point "
        f"{each.peak / each.bandwidth:.3g} FLOP/B"
        for each in roofs
    )

    return plots.describe(figure, "; ".join(told))


def draw_crossover(
    machines: Sequence[Machine],
    work: Callable[[int], Work],
    measured: Sequence[Mapping[int, float]],
    crossing: int | None,
) -> Figure:
    """Draw the predicted time of work over its size on two machines, and the times that were measured.

    Parameters
    ----------
    machines : sequence of Machine
        Two: a line each.
    work : callable
        What there is to do at a size.
    measured : sequence of mapping
        For each machine seconds by size: the points.
    crossing : int or None
        The size from which on the second machine wins, as predicted.

    Returns
    -------
    matplotlib.figure.Figure
        Where the lines cross is marked.
    """
    sizes = [size for times in measured for size in times]
    x = np.unique(np.geomspace(min(sizes), max(sizes), 120).astype(int))

    with plots.picture(3.6) as (figure, axes):
        for machine, times, colour in zip(machines, measured, plots.COLOURS, strict=False):
            predicted = [machine.predict(work(int(size))).seconds for size in x]
            axes.loglog(x, predicted, color=colour, label=f"{machine.label}: predicted")
            axes.plot(list(times), list(times.values()), "o", color=colour, label="and measured")
        if crossing is not None:
            axes.axvline(
                crossing,
                color=plots.BLACK,
                linestyle="--",
                linewidth=1,
                label=f"predicted to cross at n = {crossing}",
            )

        axes.set_xlabel("n")
        axes.set_ylabel("time a call")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: units.seconds(value)))
        axes.legend(fontsize=8)

        plots.title(
            figure, "Who wins, from which size on?", [machine.label for machine in machines]
        )
    where = "they do not cross" if crossing is None else f"they cross at n = {crossing}"

    return plots.describe(figure, f"predicted times of {len(machines)} machines: {where}")
