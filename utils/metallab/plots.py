"""Pictures, in one style: labelled axes with units, intervals drawn, colours that colour-blind readers can tell apart.

Every function that draws returns the figure, with the device in its title and its numbers in words in
``figure.get_label``, for readers who cannot see it. A notebook shows any figure as an ``<img>`` of HTML whose
alternative text is made from its title, axes and legend (`metallab.figure_words`), and of those words. Colours are
those of Okabe and Ito, *Color Universal Design*, 2008.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import html
import io
import itertools
import math
import textwrap
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from metallab import figure_words, units
from metallab.isolated import Skipped
from metallab.timing import Answer, Comparison, Measurement

if TYPE_CHECKING:
    from IPython.core.formatters import BaseFormatter

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, BLACK = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#000000",
)  # fmt: skip
GREY = "#7f7f7f"
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)

STYLE = dict(
    matplotlib.rc_params_from_file(
        Path(__file__).with_name("style.mplstyle"), use_default_template=False
    )
)
"""The settings of ``plt.style.use("metallab.style")``, with which pages draw."""


@contextlib.contextmanager
def picture(height: float) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure of our width and style, and its axes."""
    with plt.rc_context(STYLE):
        yield plt.subplots(figsize=(7.5, height))


def title(
    figure: Figure, text: str, devices: Iterable[str], simulated: bool = False, busy: bool = False
) -> None:
    """Say what the picture shows, and below on which devices; left-aligned over the whole width.

    Parameters
    ----------
    figure
        The picture.
    text
        What it shows.
    devices
        The hardware's names; each is named once.
    simulated
        Whether one of them is simulated.
    busy
        Whether other programs ran meanwhile.
    """
    below = " / ".join(dict.fromkeys(devices))
    if simulated:
        below = f"SIMULATED: {below}"
    if busy:
        below += "; BUSY\N{NO-BREAK SPACE}MACHINE: other programs ran meanwhile"

    lines = [*textwrap.wrap(text, 90), *textwrap.wrap(below, 90, break_long_words=False)]
    shown = "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")
    figure.suptitle(shown, x=0.01, ha="left", fontsize=10)


# ---- speed-ups -------------------------------------------------------------------------------------------------------


def speedups(comparisons: Sequence[Comparison]) -> Figure:
    """Draw speed-ups over each comparison's baseline with their 95 % intervals; grey where neither is faster.

    A variant whose speed-up is withheld is named with the reason, without a bar. Where all are, the times themselves
    are drawn, marked with the reason; of the simulated GPU, whose times say nothing, the reasons alone. RuntimeError
    while the block of a sentinel that watched one of them is still open.
    """
    answers = [(c, answer) for c in comparisons for answer in c.answers.values()]
    if answers and not any(answer.ratio for _, answer in answers):
        return _draw_times_without_speedups(comparisons)

    with picture(1.0 + 0.45 * len(answers)) as (figure, axes):
        for row, (_, answer) in enumerate(answers):
            speedup_row(axes, row, answer)
        rows(axes, [f"{c.name}: {answer.variant}" for c, answer in answers])
        _set_speedup_axis(axes)

        baselines = list(dict.fromkeys(c.baseline for c in comparisons))
        over = f"over {baselines[0]}" if len(baselines) == 1 else "over the baseline of each row"
        measured = [each for c in comparisons for each in c.measurements.values()]
        # of a busy machine the withheld speed-ups tell
        devices, simulated, _is_busy = _find_devices(measured)
        title(figure, f"Speed-up {over}", devices, simulated)

    return describe(figure, "; ".join(f"{c.name}: {answer}" for c, answer in answers))


def _set_speedup_axis(axes: Axes) -> None:
    """Make the horizontal axis one of speed-ups: twice as fast and half as fast are equally far from 1."""
    axes.axvline(1, color=BLACK, linewidth=1)
    axes.set_xscale("log", base=2)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.48), max(high, 2.1))  # so that 0.5, 1 and 2 are on it at least
    _label_powers_of_two(axes.xaxis)
    axes.set_xlabel("speed-up, with 95 % interval (right of 1: faster)")


def _draw_times_without_speedups(comparisons: Sequence[Comparison]) -> Figure:
    """Draw medians with their quartiles, and beside each why it is not compared."""
    reasons = [f"{c.name}: {answer}" for c in comparisons for answer in c.answers.values()]
    every = [each for c in comparisons for each in c.measurements.values()]
    if any(each.simulated for each in every):
        return reason("\n".join(textwrap.wrap("; ".join(reasons), 110)))

    names: list[str] = []
    with picture(1.0 + 0.45 * len(every)) as (figure, axes):
        for comparison in comparisons:
            for variant, measured in comparison.measurements.items():
                _draw_time(axes, len(names), measured, comparison.answers.get(variant))
                names.append(f"{comparison.name}: {variant}")

        rows(axes, names)
        axes.set_xscale("log")
        _label_times(axes.xaxis)
        axes.set_xlabel("time a call (bars: quartiles), not to be compared")
        title(figure, "Times without a speed-up", *_find_devices(every))

    pairs = zip(names, every, strict=True)
    times = [f"{name}: {units.seconds(each.median)}" for name, each in pairs]
    return describe(figure, f"{'; '.join(reasons)}. {'; '.join(times)}")


def _draw_time(axes: Axes, row: int, measured: Measurement, answer: Answer | None) -> None:
    """Draw a median with its quartiles and its number, and right of the frame why it is not compared."""
    axes.hlines(row, *measured.quartiles, color=GREY, linewidth=2)
    axes.plot(measured.median, row, "o", color=GREY)

    axes.annotate(
        units.seconds(measured.median),
        (measured.median, row),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )
    if answer:
        _write_beside(axes, row, answer.label, RED)


def speedup_row(axes: Axes, row: int, answer: Answer) -> None:
    """Draw a speed-up with its interval, and its verdict, or why there is none, right of the frame.

    Parameters
    ----------
    axes
        With a logarithmic axis of speed-ups.
    row
        Its number, from the top.
    answer
        The speed-up, or the reason why there is none.
    """
    ratio = answer.ratio
    if not ratio:
        _write_beside(axes, row, answer.label, RED)
        return

    spread = None
    if ratio.has_interval:
        spread = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
    colour = {"faster": BLUE, "slower": RED}.get(ratio.verdict, GREY)
    axes.errorbar(ratio.median, row, xerr=spread, fmt="o", color=colour, capsize=4)
    _write_beside(axes, row, f"{units.times(ratio.median)}, {answer.label}", BLACK)


def _write_beside(axes: Axes, row: int, text: str, colour: str) -> None:
    """Write a text right of the frame."""
    beside = axes.get_yaxis_transform()
    axes.text(1.01, row, text, transform=beside, va="center", color=colour, fontsize=9)


# ---- times over a quantity, stages, losses ---------------------------------------------------------------------------


def curves(
    lines: Mapping[str, Mapping[float, Measurement]],
    *,
    xlabel: str,
    heading: str,
    marks: Mapping[str, float] | None = None,
    withheld: Iterable[float] = (),
) -> Figure:
    """Draw medians with quartile bands over a quantity, one line for each name, both axes logarithmic.

    Parameters
    ----------
    lines
        By name and quantity, what was measured.
    xlabel
        What the quantity is.
    heading
        The title.
    marks
        By label, a quantity at which a vertical line is drawn, such as a crossover size.
    withheld
        The quantities of which no speed-up is given: points are hollow there.

    Raises
    ------
    ValueError
        For a quantity that is not above 0.
    """
    withheld = set(withheld)
    every: list[Measurement] = []
    quantities: set[float] = set()
    for name, line in lines.items():
        every += line.values()
        quantities |= set(line)
        for x in line:
            if not x > 0:
                raise ValueError(
                    f"{name!r} at {x} has no place on a logarithmic axis: leave it out"
                )

    with picture(3.6) as (figure, axes):
        for (name, line), colour in zip(lines.items(), _cycle_colours(len(lines)), strict=True):
            _draw_curve(axes, name, line, colour)
        _draw_hollow_points(axes, lines.values(), withheld)
        for label, x in (marks or {}).items():
            axes.axvline(x, color=BLACK, linestyle="--", linewidth=1, label=label)

        _set_size_axis(axes, sorted(quantities), xlabel)
        axes.set_yscale("log")
        _label_times(axes.yaxis)
        axes.set_ylabel("time a call (band: quartiles)")
        axes.legend()
        title(figure, heading, *_find_devices(every))

    described = [f"{name}: {_describe_curve(line, withheld)}" for name, line in lines.items()]
    return describe(figure, f"time a call over {xlabel}: {'; '.join(described)}")


def _draw_curve(axes: Axes, name: str, line: Mapping[float, Measurement], colour: str) -> None:
    """Draw medians as a line with points, and quartiles as a band."""
    quantities = sorted(line)
    medians = [line[x].median for x in quantities]
    axes.plot(quantities, medians, color=colour, label=name, marker="o", ms=4)

    low, high = zip(*(line[x].quartiles for x in quantities), strict=True)
    axes.fill_between(quantities, low, high, color=colour, alpha=0.25, linewidth=0)


def _draw_hollow_points(
    axes: Axes, lines: Iterable[Mapping[float, Measurement]], withheld: set[float]
) -> None:
    """Draw points over those of which no speed-up is given."""
    points = [(x, line[x].median) for line in lines for x in line if x in withheld]
    if points:
        axes.scatter(
            *zip(*points, strict=True),
            label="no speed-up is given here",
            facecolors="white",
            edgecolors=BLACK,
            s=36,
            zorder=3,
        )


def _describe_curve(line: Mapping[float, Measurement], withheld: set[float]) -> str:
    """Return the times of a line in words."""
    points = []
    for x, measured in line.items():
        point = f"{units.seconds(float(measured.median))} at {x:g}"
        if measured.flags:
            point += f" [{', '.join(measured.flags)}]"
        if x in withheld:
            point += " (no speed-up is given)"
        points.append(point)
    return ", ".join(points)


def stages(
    pipelines: Mapping[str, Mapping[str, Measurement]], *, heading: str = "Where the time goes"
) -> Figure:
    """Draw a bar for each pipeline, with a piece as long as its median for each stage but ``total``.

    Parameters
    ----------
    pipelines
        By the name of a pipeline and of a stage, what was measured.
    heading
        The title.
    """
    every = [part for parts in pipelines.values() for part in parts.values()]
    names = dict.fromkeys(stage for parts in pipelines.values() for stage in parts)
    names.pop("total", None)
    scale, unit = units.of_seconds(max(part.median for part in every))

    with picture(1.4 + 0.55 * len(pipelines)) as (figure, axes):
        ends = np.zeros(len(pipelines))
        for stage, colour in zip(names, _cycle_colours(len(names)), strict=True):
            lengths = [
                parts[stage].median / scale if stage in parts else 0 for parts in pipelines.values()
            ]
            bars = range(len(pipelines))
            axes.barh(bars, lengths, left=ends, label=stage, color=colour, edgecolor="white")
            ends += lengths

        rows(axes, list(pipelines))
        axes.set_xlabel(f"medians of the stages' times, one after the other [{unit}]")
        figure.legend(loc="outside lower center", ncols=len(names))
        title(figure, heading, *_find_devices(every))

    sentences = [f"{name}: {_describe_stages(parts)}" for name, parts in pipelines.items()]
    return describe(figure, "; ".join(sentences))


def _describe_stages(parts: Mapping[str, Measurement]) -> str:
    """Return the times of stages in words."""
    return ", ".join(f"{stage} {units.seconds(part.median)}" for stage, part in parts.items())


def reason(words: str) -> Figure:
    """Draw a line of words: the reason why there is no picture."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 0.6))  # IPython draws no figure without axes
        axes.set_axis_off()
        figure.text(0.01, 0.5, words, va="center", color=RED)
    return describe(figure, words)


def losses(
    runs: Mapping[str, Sequence[Sequence[float]]],
    *,
    device: str,
    heading: str = "Loss curves",
    each: str = "epoch",
) -> Figure:
    """Draw training losses: the median over seeds as a line, and a band from the lowest to the highest.

    Parameters
    ----------
    runs
        By name, numbers above 0, (seeds, epochs): cross-entropy in nats. What was skipped
        (`metallab.isolated.Skipped`) is left out, or shown if there is nothing else.
    device
        The hardware's name.
    heading
        The title.
    each
        The unit, instead of epochs.
    """
    ran = {name: seeds for name, seeds in runs.items() if not _is_skipped(seeds)}
    if runs and not ran:
        skipped = next(each for each in next(iter(runs.values())) if _is_skipped([each]))
        return reason(repr(skipped))

    with picture(3.2) as (figure, axes):
        looks = zip(_cycle_colours(len(ran)), itertools.cycle(("-", "--", ":", "-.")), strict=False)
        for (name, seeds), (colour, style) in zip(ran.items(), looks, strict=True):
            _draw_losses(axes, name, seeds, colour, style)
        _set_loss_axes(axes, each)
        axes.legend(fontsize=8)

        if any(len(seeds) > 1 for seeds in ran.values()):
            heading = f"{heading} (line: median of seeds, band: all of them)"
        title(figure, heading, [device])

    sentences = [f"{name}: {np.median(seeds, 0)[-1]:.3g}" for name, seeds in ran.items()]
    return describe(figure, f"median training loss at the end: {'; '.join(sentences)}")


def _is_skipped(seeds: Sequence[object]) -> bool:
    return any(isinstance(each, Skipped) for each in seeds)


def _draw_losses(
    axes: Axes, name: str, seeds: Sequence[Sequence[float]], colour: str, style: str
) -> None:
    """Draw the median over seeds as a line, and all seeds as a band."""
    epochs = np.arange(1, len(seeds[0]) + 1)
    low, high = np.min(seeds, 0), np.max(seeds, 0)
    axes.fill_between(epochs, low, high, color=colour, alpha=0.2, linewidth=0)

    median = np.median(seeds, 0)
    axes.plot(epochs, median, style, color=colour, label=name, marker="o", markersize=4)


def _set_loss_axes(axes: Axes, each: str) -> None:
    """Make the axes those of losses, logarithmic, over whole numbers of epochs."""
    axes.set_yscale("log")
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.set_ylabel("training loss")

    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(each)


def multiples(draw: Callable[[Any], Figure], values: Iterable[object]) -> Picture:
    """Return one picture of several, two in a row.

    Parameters
    ----------
    draw
        Makes a figure of a value.
    values
        Each is drawn.

    Examples
    --------
    >>> multiples(lambda power: my_picture(2**power), [1, 2, 4, 8])
    """
    pixels: list[np.ndarray] = []
    words: list[str] = []
    for value in values:
        figure = draw(value)
        figure.savefig(file := io.BytesIO(), format="png", bbox_inches="tight")
        plt.close(figure)
        pixels.append(plt.imread(io.BytesIO(file.getvalue())))
        words.append(figure_words.describe_figure(figure) or str(value))

    plt.imsave(file := io.BytesIO(), _tile(pixels))
    return Picture(file.getvalue(), " ".join(words))


def _tile(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return pictures (height, width, 4) as one, two in a row, on white."""
    height, width, _ = np.max([picture.shape for picture in pictures], axis=0)
    tiles: list[np.ndarray] = []
    for picture in pictures:
        below, beside = height - len(picture), width - len(picture[0])
        tiles.append(np.pad(picture, [(0, below), (0, beside), (0, 0)], constant_values=1))
    if len(tiles) % 2:
        tiles.append(np.ones_like(tiles[0]))

    in_rows = [np.hstack(tiles[first : first + 2]) for first in range(0, len(tiles), 2)]
    return np.vstack(in_rows)


def rows(axes: Axes, names: Sequence[str], **style: object) -> None:
    """Give axes a row for each name, from top to bottom."""
    axes.set_yticks(range(len(names)), names, **style)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _label_powers_of_two(axis: Axis, most: int = 8) -> None:
    """Label about ``most`` powers of two on a logarithmic axis, evenly spaced, with 1 among them if it is in view."""
    low, high = axis.get_view_interval()
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, math.ceil((last - first + 1) / most))
    axis.set_ticks([2.0**power for power in range(first, last + 1) if power % step == 0])
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"1/{1 / value:g}" if value < 1 else f"{value:g}")
    )
    axis.set_minor_locator(NullLocator())


def _set_size_axis(axes: Axes, sizes: Sequence[float], label: str) -> None:
    """Make the horizontal axis one of sizes, logarithmic, labelled where something was measured."""
    axes.set_xscale("log", base=2)
    if len(sizes) <= 8:
        axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _size(value)))
    axes.set_xlabel(label)


_APART = {"x": 0.2, "y": 0.06}
"""How far labels stand apart at least, as a share of an axis: beside each other they need more room than one above the
other."""


def _label_times(axis: Axis) -> None:
    """Label a logarithmic axis with units: as many ticks as there is room for."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: units.seconds(value)))
    low, high = axis.get_view_interval()
    labelled = _choose_digits(low, high, _APART[axis.axis_name])

    def label_minor(value: float, _: object) -> str:
        leading = round(value / 10 ** math.floor(math.log10(value) + 1e-9))
        return units.seconds(value) if leading in labelled else ""

    axis.set_minor_formatter(FuncFormatter(label_minor))


def _choose_digits(low: float, high: float, apart: float) -> Collection[int]:
    """Return the leading digits of the ticks between two decades that are labelled, so that labels do not touch.

    Parameters
    ----------
    low, high
        The ends of the axis.
    apart
        How far labels have to stand apart, as a share of the axis.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in (range(2, 10), (2, 3, 5), (2, 5), (3,)):
        ticks = np.sort([digit * 10.0**decade for digit in (1, *digits) for decade in decades])
        seen = np.log(ticks[(ticks >= low) & (ticks <= high)])
        if np.all(np.diff(seen) >= apart * math.log(high / low)):
            return digits
    return ()


def _cycle_colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _find_devices(measurements: Sequence[Measurement]) -> tuple[list[str], bool, bool]:
    """Return the devices' names, whether any is simulated, and whether other programs were busy meanwhile."""
    devices = [measured.device for measured in measurements]
    is_simulated = any(measured.simulated for measured in measurements)
    is_busy = any(measured.is_busy for measured in measurements)
    return devices, is_simulated, is_busy


def _size(value: float) -> str:
    """Return a size for an axis: large powers of two as such."""
    power = round(math.log2(value)) if value > 0 else 0
    is_large_power = value >= 2**14 and value == 2.0**power
    return f"$2^{{{power}}}$" if is_large_power else f"{value:g}"


# ---- words, and how a notebook shows a figure ------------------------------------------------------------------------


def describe(figure: Figure, words: str) -> Figure:
    """Give a finished figure the numbers that it shows in words, for whoever cannot see it, and return it.

    The words become the figure's label. Where a notebook shows the figure, they end its alternative text.

    Parameters
    ----------
    figure
        The picture.
    words
        Its numbers: ``eager: 1.5 ms at 64``.
    """
    figure.set_label(words)
    shown: Any = figure
    shown._repr_mimebundle_ = functools.partial(
        _show_figure, figure
    )  # IPython asks for it by this name
    plt.close(figure)  # shown once, as the cell's result, and not again by the inline backend
    return figure


def alternative_text(figure: Figure) -> str:
    """Return a figure in words: its title, axes and series, and the numbers that `describe` gave it."""
    return figure_words.describe_figure(figure) or figure_words.UNNAMED


def show(figure: Figure) -> tuple[dict[str, str], dict[str, dict]]:
    """Return a figure as a notebook shows it, data and metadata by MIME type, with its alternative text in both."""
    return _show_figure(figure)


@dataclass(frozen=True)
class Picture:
    """A PNG with words for whoever cannot see it; a notebook shows it with them."""

    data: bytes
    """The PNG."""
    words: str
    """Its alternative text."""

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, str], dict[str, dict]]:
        return _bundle({"image/png": _encode(self.data)}, {"image/png": {}}, self.words)


_FORMATS = ("image/svg+xml", "image/png", "image/jpeg")
"""What IPython may be set to draw figures as (``%config InlineBackend.figure_formats``), the sharpest first."""


def _show_figure(figure: Figure, **_: object) -> tuple[dict[str, str], dict[str, dict]]:
    """Return data and metadata of a figure by MIME type: HTML with its words, and each format that is drawn here.

    IPython calls it with what it includes and excludes, which makes no difference.
    """
    data: dict[str, str] = {}
    sizes: dict[str, dict] = {}
    for kind, draw in _find_printers(figure).items():
        drawn = draw(figure)
        # IPython's printers return the picture, or the picture and how large to show it, or None for an empty figure
        picture, size = drawn if isinstance(drawn, tuple) else (drawn, {})
        if picture is not None:
            data[kind] = _encode(picture) if isinstance(picture, bytes) else picture
            sizes[kind] = size

    return _bundle(data, sizes, alternative_text(figure))


def _find_printers(figure: Figure) -> dict[str, Callable[[Figure], Any]]:
    """Return what draws a figure, by MIME type: what this notebook is set to, or else a PNG."""
    from IPython import get_ipython
    from IPython.core.pylabtools import print_figure

    printers: dict[str, Callable[[Figure], Any]] = {}
    shell = get_ipython()
    for kind in _FORMATS if shell else ():
        formatter = shell.display_formatter.formatters[kind]
        try:
            printers[kind] = formatter.lookup_by_type(type(figure))
        except KeyError:
            continue  # it is not set to this one
        # IPython asks each formatter again after it has shown the figure as we do: it need not draw a second time
        _keep_from_drawing(formatter, figure)

    return printers or {"image/png": functools.partial(print_figure, base64=True)}


def _keep_from_drawing(formatter: BaseFormatter, figure: Figure) -> None:
    """Let a formatter take this figure's picture from `_show_figure`, in place of drawing it a second time."""
    if id(figure) in formatter.singleton_printers:
        return
    formatter.singleton_printers[id(figure)] = _draw_nothing

    # later another object may have this number
    weakref.finalize(figure, formatter.singleton_printers.pop, id(figure), None).atexit = False


def _draw_nothing(_: Figure) -> None:
    """Return None, with which IPython keeps what it has."""


def _bundle(
    data: Mapping[str, str], sizes: Mapping[str, dict], words: str
) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return data and metadata of one picture: HTML with its words, and beside it the picture in each of its formats.

    JupyterLab, and nbconvert by default, show the HTML and pass over the words that stand in the metadata; programs
    that read only pictures find them there.
    """
    if not data:
        return {}, {}
    metadata = {kind: {**sizes[kind], "alt": words} for kind in data}

    kind, picture = next(iter(data.items()))
    encoded = picture
    if kind == "image/svg+xml":  # which IPython has as it is, and others in base64
        encoded = _encode(picture.encode())
    width = ""
    if "width" in sizes[kind]:  # half the pixels, for "retina"
        width = f' width="{sizes[kind]["width"]}"'
    shown = f'<img alt="{html.escape(words)}" src="data:{kind};base64,{encoded}"{width}>'

    return {"text/html": shown, **data}, metadata


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
