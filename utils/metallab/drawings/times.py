"""Samples over time, the time line of a call, latency and throughput."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metallab import plots, units
from metallab.drawings.canvas import box, canvas, write
from metallab.timing import Measurement


def draw_samples(measured: Measurement) -> Figure:
    """Draw the samples of a measurement in their order, with the band of its quartiles.

    Parameters
    ----------
    measured : Measurement
        Of one call, timed again and again.

    Returns
    -------
    matplotlib.figure.Figure
        A point below the band is a call while the machine was faster, one above it while it was slower.
    """
    scale, unit = units.of_seconds(measured.median)
    low, high = measured.quartiles

    with plots.picture(2.8) as (figure, axes):
        axes.axhspan(low / scale, high / scale, color=plots.SKY, alpha=0.35, linewidth=0)
        axes.axhline(measured.median / scale, color=plots.BLUE, linewidth=1)
        axes.plot(np.asarray(measured.samples) / scale, "o", ms=3, color=plots.BLACK)

        axes.set_xlabel("sample, in the order of measuring")
        axes.set_ylabel(f"time a call [{unit}]")

        plots.title(
            figure,
            f"{measured.name}, again and again (line: median, band: quartiles)",
            [measured.device],
            measured.simulated,
            measured.is_busy,
        )

    return plots.describe(
        figure,
        f"{measured.n} samples, median {units.seconds(measured.median)}, half of them between "
        f"{units.seconds(low)} and {units.seconds(high)}, the longest {units.seconds(max(measured.samples))}",
    )


@dataclass(frozen=True)
class CallTimes:
    """What one call takes, in seconds."""

    prepare: float
    """Python and PyTorch, until the work is handed over."""
    work: float
    """The GPU."""
    wake: float
    """What a wait adds besides the GPU's work, until the program knows that the GPU has ended."""


def draw_time_line(times: CallTimes, calls: int = 4) -> Figure:
    """Draw the same calls twice: each waited for, and one wait behind all of them.

    Parameters
    ----------
    times : CallTimes
        Of each call.
    calls : int
        How many.

    Returns
    -------
    matplotlib.figure.Figure
        Two rows each for the program and the GPU; how long both take stands right of them.
    """
    waited = calls * (times.prepare + times.work + times.wake)
    chained = _end_of_chain(times, calls) + times.wake

    with canvas(inches=3.0, width=12.6, height=8.0) as (figure, axes):
        scale = 8.0 / waited
        _draw_calls(axes, 0.6, scale, times, calls, wait_each=True)
        _draw_calls(axes, 4.6, scale, times, calls, wait_each=False)
        for top, name, seconds in (
            (0.6, "waited for each", waited),
            (4.6, "one wait at the end", chained),
        ):
            write(axes, (0.1, top - 0.3), name, fontsize=9)
            write(axes, (2.0 + seconds * scale + 0.2, top + 1.3), units.seconds(seconds))

        plots.title(
            figure,
            f"{calls} calls: blue the program prepares, orange the GPU computes, grey the program waits",
            ["a drawing"],
        )

    return plots.describe(
        figure,
        f"{calls} calls of {units.seconds(times.work)} take {units.seconds(waited)} if each is waited for, and "
        f"{units.seconds(chained)} with one wait at the end; in each wait {units.seconds(times.wake)} pass in which "
        "the GPU does not compute",
    )


def _end_of_chain(times: CallTimes, calls: int) -> float:
    """Seconds until the GPU has ended, if nobody waits in between."""
    free = 0.0

    for call in range(calls):
        free = max(free, (call + 1) * times.prepare) + times.work
    return free


def _draw_calls(
    axes: Axes, top: float, scale: float, times: CallTimes, calls: int, *, wait_each: bool
) -> None:
    """Draw the program's row and the GPU's below it, with the time to the right: ``scale`` is the width of a second.

    With ``wait_each`` the program waits for each call before it prepares the next, else once, behind the last. The GPU
    begins a call when it is prepared and the one before has ended.
    """
    left, height = 2.0, 1.1
    write(axes, (left - 0.15, top + height / 2), "program", align="right")
    write(axes, (left - 0.15, top + 1.5 * height + 0.1), "GPU", align="right")
    # seconds: until when each of the two has something to do
    program, gpu = 0.0, 0.0

    for _ in range(calls):
        corner = (left + program * scale, top)
        box(axes, corner, (times.prepare * scale, height), colour=plots.BLUE)
        program += times.prepare

        gpu = max(gpu, program)
        corner = (left + gpu * scale, top + height + 0.1)
        box(axes, corner, (times.work * scale, height), colour=plots.ORANGE)
        gpu += times.work
        if wait_each:
            waits = (gpu + times.wake - program) * scale
            box(axes, (left + program * scale, top), (waits, height), "waits")
            program = gpu + times.wake

    if not wait_each:
        end = gpu + times.wake
        box(axes, (left + program * scale, top), ((end - program) * scale, height), "waits")


def draw_latency_and_throughput(times: CallTimes, calls: int = 4) -> Figure:
    """Draw latency and throughput as boxes that follow each other, and boxes that overlap.

    Parameters
    ----------
    times : CallTimes
        Of each call; the program prepares the next while the GPU works.
    calls : int
        How many are drawn in a row.

    Returns
    -------
    matplotlib.figure.Figure
        What one call takes by either question stands right of its boxes.
    """
    latency = times.prepare + times.work
    throughput = _end_of_chain(times, calls) / calls

    with canvas(inches=2.2, width=12.6, height=5.6) as (figure, axes):
        scale = 7.6 / (calls * latency)
        for row, (name, seconds) in enumerate((("latency", latency), ("throughput", throughput))):
            top = 0.4 + 2.7 * row
            write(axes, (1.8, top + 1.1), name, align="right", fontsize=9)
            write(axes, (9.9, top + 1.1), f"{units.seconds(seconds)} a call", fontsize=9)

        # of overlapping calls, in seconds: when the device has ended the last one, and the program prepared it
        free, started = 0.0, 0.0

        for call in range(calls):
            # the row of latency: one call behind the other
            after = 2.0 + call * latency * scale
            box(axes, (after, 0.5), (times.prepare * scale, 2.0), colour=plots.BLUE)
            box(
                axes,
                (after + times.prepare * scale, 0.5),
                (times.work * scale, 2.0),
                colour=plots.ORANGE,
            )
            # the row of throughput: the device begins what is prepared as soon as it is free
            box(
                axes, (2.0 + started * scale, 3.2), (times.prepare * scale, 0.95), colour=plots.BLUE
            )
            started += times.prepare
            free = max(free, started)
            box(axes, (2.0 + free * scale, 4.25), (times.work * scale, 0.95), colour=plots.ORANGE)
            free += times.work

        plots.title(
            figure,
            "Blue: the program prepares a call; orange: the device computes it",
            ["a drawing"],
        )

    return plots.describe(
        figure,
        f"latency {units.seconds(latency)}: one call after the other; throughput {units.seconds(throughput)} a call: "
        "the next is prepared while the device works",
    )
