"""What a trace has recorded: the events of a step in their order, and its time beside the time without a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from metallab import plots, units

ON_GPU, ON_CPU, COPY = "operator on the GPU", "operator on the CPU", "copy between the two"
COLOURS = {ON_GPU: plots.BLUE, ON_CPU: plots.GREEN, COPY: plots.ORANGE}
"""How each kind of event is drawn, by its words in the legend."""


class TracedEvent(Protocol):
    """What is drawn of a `metallab.pytorch.trace.Event`."""

    @property
    def kind(self) -> str:
        """``op``, ``view``, ``copy`` or ``fallback``."""

    @property
    def device(self) -> str:
        """Where it ran."""

    @property
    def bytes(self) -> int:
        """What it read and wrote, or copied."""


@dataclass(frozen=True)
class TracedTime:
    """What one step takes, in seconds."""

    traced: float
    """While a trace waits for each operator."""
    untraced: float
    """By a timer, without a trace."""


def draw_steps(
    steps: Mapping[str, Sequence[TracedEvent]], label: str, *, simulated: bool = False
) -> Figure:
    """Draw the events of a step of each program side by side: their order and their bytes, and no times.

    Parameters
    ----------
    steps : mapping of str to sequence of TracedEvent
        The events of one step, by the name of the program. Views, which do no work, are left out.
    label : str
        The device's.
    simulated : bool
        Whether it is a simulated one.

    Returns
    -------
    matplotlib.figure.Figure
        A row for each program, a bar for each operator, and an orange line over the whole row for each copy.
    """
    shown = {name: _leave_out_views(events) for name, events in steps.items()}
    most = max((event.bytes for events in shown.values() for event in events), default=0)
    longest = max(map(len, shown.values()))

    with plots.picture(1.2 + 1.1 * len(shown)) as (figure, single):
        single.remove()
        rows = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (name, events) in zip(rows, shown.items(), strict=True):
            _draw_step(axes, name, events, most)

        rows[-1].set_xlim(-1, longest)
        rows[-1].set_xlabel("events of one step, in their order")
        rows[len(rows) // 2].set_ylabel("bytes read and written")
        patches = [Patch(color=colour, label=words) for words, colour in COLOURS.items()]
        figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=8)
        plots.title(figure, "One step: what runs, in which order", [label], simulated)

    told = "; ".join(_describe_step(name, events) for name, events in shown.items())
    return plots.describe(figure, told)


def _leave_out_views(events: Sequence[TracedEvent]) -> list[TracedEvent]:
    return [event for event in events if event.kind != "view"]


def _draw_step(axes: Axes, name: str, events: Sequence[TracedEvent], most: int) -> None:
    """Draw the events of one program in their order: a bar as high as its bytes, a line over the whole row for a copy.

    ``most`` are the bytes of the largest event of all programs, whose rows have one axis. It is logarithmic, so that an
    event without bytes is drawn with one.
    """
    for words, colour in COLOURS.items():
        places = [place for place, event in enumerate(events) if _describe_kind(event) == words]
        if words == COPY:
            for place in places:
                axes.axvline(place, color=colour, linewidth=2)
            continue
        heights = [max(events[place].bytes, 1) for place in places]
        axes.bar(places, heights, width=0.9, color=colour)

    axes.set_yscale("log")
    axes.set_ylim(1, 3 * max(most, 1))
    axes.set_yticks([1, 2**10, 2**20], ["1 B", "1 KiB", "1 MiB"])
    axes.minorticks_off()
    axes.set_title(name, fontsize=9)


def _describe_kind(event: TracedEvent) -> str:
    """Return the words for an event in the legend."""
    if event.kind == "copy":
        return COPY
    return ON_CPU if event.device == "cpu" else ON_GPU


def _describe_step(name: str, events: Sequence[TracedEvent]) -> str:
    """Say in words what a step has."""
    kinds = [_describe_kind(event) for event in events]
    moved = units.size(sum(event.bytes for event in events))
    counts = ", ".join(f"{words}: {kinds.count(words)}" for words in COLOURS if words in kinds)
    return f"{name}: {counts}; {moved}"


def draw_traced_times(
    times: Mapping[str, TracedTime], label: str, *, simulated: bool = False
) -> Figure:
    """Draw what a step takes while it is traced beside what it takes without a trace.

    Parameters
    ----------
    times : mapping of str to TracedTime
        By the name of the program.
    label : str
        The device's.
    simulated : bool
        Whether it is a simulated one.

    Returns
    -------
    matplotlib.figure.Figure
        Two bars for each program; what each takes stands at its end.
    """
    longest = max(max(each.traced, each.untraced) for each in times.values())
    scale, unit = units.of_seconds(longest)

    with plots.picture(1.2 + 0.7 * len(times)) as (figure, axes):
        for row, each in enumerate(times.values()):
            _draw_time(axes, row - 0.2, each.traced, scale, plots.ORANGE)
            _draw_time(axes, row + 0.2, each.untraced, scale, plots.BLUE)

        plots.rows(axes, list(times))
        axes.set_xlim(0, 1.2 * longest / scale)
        axes.set_xlabel(f"time a step [{unit}]")
        patches = [
            Patch(color=plots.ORANGE, label="while traced"),
            Patch(color=plots.BLUE, label="without a trace"),
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=2, fontsize=8)
        plots.title(figure, "What the trace itself costs", [label], simulated)

    told = "; ".join(
        f"{name}: {units.seconds(each.traced)} while traced, {units.seconds(each.untraced)} without"
        for name, each in times.items()
    )
    return plots.describe(figure, told)


def _draw_time(axes: Axes, place: float, seconds: float, scale: float, colour: str) -> None:
    """Draw one bar, with its time at its end."""
    axes.barh(place, seconds / scale, height=0.36, color=colour)
    axes.text(seconds / scale, place, f" {units.seconds(seconds)}", va="center", fontsize=8)
