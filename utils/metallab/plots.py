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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

STYLE = {
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
}


@contextlib.contextmanager
def picture(height: float) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure of our width and style, and its axes."""
    with plt.rc_context(STYLE):
        yield plt.subplots(figsize=(7.5, height))


def title(
    figure: Figure, text: str, devices: Iterable[str], simulated: bool = False, busy: bool = False
) -> None:
    """Say what the picture shows, and below on which devices; left-aligned over the whole width."""
    below = f"{'SIMULATED: ' if simulated else ''}{' / '.join(dict.fromkeys(devices))}"
    below += "; BUSY\N{NO-BREAK SPACE}MACHINE: other programs ran meanwhile" if busy else ""
    lines = [*textwrap.wrap(text, 90), *textwrap.wrap(below, 90, break_long_words=False)]
    figure.suptitle(
        "\n".join(lines).replace("\N{NO-BREAK SPACE}", " "), x=0.01, ha="left", fontsize=10
    )


def speedups(comparisons: Sequence[Comparison]) -> Figure:
    """Draw speed-ups over each comparison's baseline with their 95 % intervals; grey where neither is faster.

    A variant whose speed-up is withheld is named with the reason, without a bar. Where all are, the times themselves
    are drawn, marked with the reason; of the simulated GPU, whose times say nothing, the reasons alone. RuntimeError as
    `metallab.timing.Comparison.drift`.
    """
    answers = [(c, answer) for c in comparisons for answer in c.answers.values()]
    if answers and not any(answer.ratio for _, answer in answers):
        return _times_without_speedups(comparisons)

    with picture(1.0 + 0.45 * len(answers)) as (figure, axes):
        for row, (_, answer) in enumerate(answers):
            speedup_row(axes, row, answer)
        axes.axvline(1, color=BLACK, linewidth=1)
        rows(axes, [f"{c.name}: {answer.variant}" for c, answer in answers])
        axes.set_xscale(
            "log", base=2
        )  # so that twice as fast and half as fast are equally far from 1
        low, high = axes.get_xlim()
        axes.set_xlim(
            min(low, 0.48), max(high, 2.1)
        )  # so that 0.5, 1 and 2 are on the axis at least
        _label_powers_of_two(axes.xaxis)
        axes.set_xlabel("speed-up, with 95 % interval (right of 1: faster)")
        devices, simulated, _ = _where([m for c in comparisons for m in c.measurements.values()])
        baselines = list(dict.fromkeys(c.baseline for c in comparisons))
        over = f"over {baselines[0]}" if len(baselines) == 1 else "over the baseline of each row"
        title(figure, f"Speed-up {over}", devices, simulated)
    return described(figure, "; ".join(f"{c.name}: {answer}" for c, answer in answers))


def _times_without_speedups(comparisons: Sequence[Comparison]) -> Figure:
    """Draw medians with their quartiles, and beside each why it is not compared."""
    said = "; ".join(f"{c.name}: {answer}" for c in comparisons for answer in c.answers.values())
    if any(each.simulated for c in comparisons for each in c.measurements.values()):
        return reason("\n".join(textwrap.wrap(said, 110)))

    timed = [
        (f"{c.name}: {variant}", each, c.answers.get(variant))
        for c in comparisons
        for variant, each in c.measurements.items()
    ]
    with picture(1.0 + 0.45 * len(timed)) as (figure, axes):
        beside = axes.get_yaxis_transform()  # right of the frame
        for row, (_, each, answer) in enumerate(timed):
            axes.hlines(row, *each.quartiles, color=GREY, linewidth=2)
            axes.plot(each.median, row, "o", color=GREY)
            axes.annotate(
                units.seconds(each.median),
                (each.median, row),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
            if answer:
                axes.text(
                    1.01, row, answer.label, transform=beside, va="center", color=RED, fontsize=9
                )

        rows(axes, [name for name, *_ in timed])
        axes.set_xscale("log")
        _time_axis(axes.xaxis)
        axes.set_xlabel("time a call (bars: quartiles), not to be compared")
        title(figure, "Times without a speed-up", *_where([each for _, each, _ in timed]))
    times = "; ".join(f"{name}: {units.seconds(each.median)}" for name, each, _ in timed)
    return described(figure, f"{said}. {times}")


def speedup_row(axes: Axes, row: int, answer: Answer) -> None:
    """Draw a speed-up with its interval, and its verdict, or why there is none, right of the frame."""
    ratio, words, colour = answer.ratio, answer.label, RED
    if ratio:
        words, colour = f"{units.times(ratio.median)}, {words}", BLACK
        marks = {"faster": BLUE, "slower": RED}.get(ratio.verdict, GREY)
        spread = (
            [[ratio.median - ratio.low], [ratio.high - ratio.median]]
            if ratio.has_interval
            else None
        )
        axes.errorbar(ratio.median, row, xerr=spread, fmt="o", color=marks, capsize=4)
    beside = axes.get_yaxis_transform()  # right of the frame
    axes.text(1.01, row, words, transform=beside, va="center", color=colour, fontsize=9)


def curves(
    lines: Mapping[str, Mapping[float, Measurement]],
    *,
    xlabel: str,
    heading: str,
    marks: Mapping[str, float] | None = None,
    withheld: Iterable[float] = (),
) -> Figure:
    """Draw medians with quartile bands over a quantity, one line for each name, both axes logarithmic.

    ``marks`` draws a vertical line at a quantity, such as a crossover size. At the quantities in ``withheld``, of which
    no speed-up is given, points are hollow. ValueError for a quantity that is not above 0.
    """
    withheld = set(withheld)
    for name, x in ((name, x) for name, line in lines.items() for x in line):
        if not x > 0:
            raise ValueError(f"{name!r} at {x} has no place on a logarithmic axis: leave it out")

    every = [measured for line in lines.values() for measured in line.values()]
    with picture(3.6) as (figure, axes):
        for (name, line), colour in zip(lines.items(), _cycled(len(lines)), strict=True):
            x = sorted(line)
            axes.plot(x, [line[i].median for i in x], color=colour, label=name, marker="o", ms=4)
            low, high = zip(*(line[i].quartiles for i in x), strict=True)
            axes.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)

        hollow = [(x, line[x].median) for line in lines.values() for x in line if x in withheld]
        if hollow:
            style = {"facecolors": "white", "edgecolors": BLACK, "s": 36, "zorder": 3}
            axes.scatter(*zip(*hollow, strict=True), label="no speed-up is given here", **style)
        for label, x in (marks or {}).items():
            axes.axvline(x, color=BLACK, linestyle="--", linewidth=1, label=label)

        _size_axis(axes, sorted({x for line in lines.values() for x in line}), xlabel)
        axes.set_yscale("log")
        _time_axis(axes.yaxis)
        axes.set_ylabel("time a call (band: quartiles)")
        axes.legend()
        title(figure, heading, *_where(every))
    of = {
        name: ", ".join(
            _at(measured, x) + (" (no speed-up is given)" if x in withheld else "")
            for x, measured in line.items()
        )
        for name, line in lines.items()
    }
    return described(
        figure,
        f"time a call over {xlabel}: {'; '.join(f'{name}: {each}' for name, each in of.items())}",
    )


def _at(measured: Measurement, x: float) -> str:
    flags = f" [{', '.join(measured.flags)}]" if measured.flags else ""
    return f"{units.seconds(float(measured.median))} at {x:g}{flags}"


def stages(
    pipelines: Mapping[str, Mapping[str, Measurement]], *, heading: str = "Where the time goes"
) -> Figure:
    """Draw a bar for each pipeline, with a piece as long as its median for each stage but ``total``."""
    names = list(
        dict.fromkeys(stage for parts in pipelines.values() for stage in parts if stage != "total")
    )
    scale, unit = units.of_seconds(
        max(part.median for parts in pipelines.values() for part in parts.values())
    )
    with picture(1.4 + 0.55 * len(pipelines)) as (figure, axes):
        starts = np.zeros(len(pipelines))
        for stage, colour in zip(names, _cycled(len(names)), strict=True):
            lengths = [
                parts[stage].median / scale if stage in parts else 0 for parts in pipelines.values()
            ]
            axes.barh(
                range(len(pipelines)),
                lengths,
                left=starts,
                color=colour,
                label=stage,
                edgecolor="white",
            )
            starts += lengths
        rows(axes, list(pipelines))
        axes.set_xlabel(f"medians of the stages' times, one after the other [{unit}]")
        figure.legend(loc="outside lower center", ncols=len(names))
        title(
            figure,
            heading,
            *_where([part for parts in pipelines.values() for part in parts.values()]),
        )
    sentences = (f"{name}: " + ", ".join(f"{stage} {units.seconds(part.median)}" for stage, part in parts.items())
            for name, parts in pipelines.items())  # fmt: skip
    return described(figure, "; ".join(sentences))


def reason(words: str) -> Figure:
    """Draw a line of words: the reason why there is no picture."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            figsize=(7.5, 0.6)
        )  # with axes: IPython draws no figure that has none
        axes.set_axis_off()
        figure.text(0.01, 0.5, words, va="center", color=RED)
    return described(figure, words)


def losses(
    runs: Mapping[str, Sequence[Sequence[float]]],
    *,
    device: str,
    heading: str = "Loss curves",
    each: str = "epoch",
) -> Figure:
    """Draw training losses: the median over seeds as a line, and a band from the lowest to the highest.

    ``runs`` maps a name to numbers above 0, (seeds, epochs): cross-entropy in nats. ``each`` names the unit instead of
    epochs. What was skipped (`metallab.isolated.Skipped`) is left out, or shown if there is nothing else.
    """
    made = {
        name: seeds
        for name, seeds in runs.items()
        if not any(isinstance(s, Skipped) for s in seeds)
    }
    if runs and not made:
        return reason(repr(next(iter(runs.values()))[0]))
    runs = made
    with picture(3.2) as (figure, axes):
        looks = zip(_cycled(len(runs)), itertools.cycle(("-", "--", ":", "-.")), strict=False)
        for (name, seeds), (colour, style) in zip(runs.items(), looks, strict=True):
            epochs = np.arange(1, len(seeds[0]) + 1)
            axes.fill_between(
                epochs, np.min(seeds, 0), np.max(seeds, 0), color=colour, alpha=0.2, linewidth=0
            )
            axes.plot(
                epochs,
                np.median(seeds, 0),
                style,
                color=colour,
                label=name,
                marker="o",
                markersize=4,
            )
        axes.set_yscale("log")
        for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel(each)
        axes.set_ylabel("training loss")
        axes.legend(fontsize=8)
        several = any(len(seeds) > 1 for seeds in runs.values())
        title(
            figure,
            f"{heading} (line: median of seeds, band: all of them)" if several else heading,
            [device],
        )
    sentences = (f"{name}: {np.median(seeds, 0)[-1]:.3g}" for name, seeds in runs.items())
    return described(figure, f"median training loss at the end: {'; '.join(sentences)}")


def multiples(draw: Callable[[Any], Figure], values: Iterable[object]) -> Picture:
    """Return one picture of several: what ``draw`` returns for each of the values, two in a row.

    >>> multiples(lambda power: my_picture(2**power), [1, 2, 4, 8])
    """
    pictures, words = [], []
    for value in values:
        figure = draw(value)
        figure.savefig(file := io.BytesIO(), format="png", bbox_inches="tight")
        plt.close(figure)
        pictures.append(plt.imread(io.BytesIO(file.getvalue())))
        words.append(figure_words.describe_figure(figure) or str(value))
    height, width, _ = np.max([picture.shape for picture in pictures], axis=0)
    tiles = [
        np.pad(p, [(0, height - len(p)), (0, width - len(p[0])), (0, 0)], constant_values=1)
        for p in pictures
    ]
    tiles += [np.ones_like(tiles[0])] * (len(tiles) % 2)
    plt.imsave(
        file := io.BytesIO(),
        np.vstack([np.hstack(tiles[at : at + 2]) for at in range(0, len(tiles), 2)]),
    )
    return Picture(file.getvalue(), " ".join(words))


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


def _size_axis(axes: Axes, sizes: Sequence[float], label: str) -> None:
    """A logarithmic horizontal axis of sizes, labelled where something was measured."""
    axes.set_xscale("log", base=2)
    if len(sizes) <= 8:
        axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _size(value)))
    axes.set_xlabel(label)


def _time_axis(axis: Axis) -> None:
    """Label a logarithmic axis with units: all ticks in a short range, only 2 and 5 in a longer one."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: units.seconds(value)))
    low, high = axis.get_view_interval()
    labelled = range(1, 10) if high < 12 * low else (2, 5) if high < 1000 * low else ()

    def minor(value: float, _) -> str:
        leading = round(value / 10 ** math.floor(math.log10(value) + 1e-9))
        return units.seconds(value) if leading in labelled else ""

    axis.set_minor_formatter(FuncFormatter(minor))


def _cycled(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _where(measurements: Sequence[Measurement]) -> tuple[list[str], bool, bool]:
    """The devices' names, whether any is simulated, and whether other programs were busy meanwhile."""
    devices, busy = (
        [measured.device for measured in measurements],
        any(m.is_busy for m in measurements),
    )
    return devices, any(measured.simulated for measured in measurements), busy


def _size(value: float) -> str:
    """A size on an axis: large powers of two as such."""
    power = round(math.log2(value)) if value > 0 else 0
    return f"$2^{{{power}}}$" if value >= 2**14 and value == 2.0**power else f"{value:g}"


def described(figure: Figure, words: str) -> Figure:
    """Give a finished figure the numbers that it shows in words, for whoever cannot see it, and return it.

    The words become the figure's label. Where a notebook shows the figure, they end its alternative text.
    """
    figure.set_label(words)
    figure._repr_mimebundle_ = functools.partial(
        _show_figure, figure
    )  # IPython asks for it by this name
    plt.close(figure)  # shown once, as the cell's result, and not again by the inline backend
    return figure


def alternative_text(figure: Figure) -> str:
    """Return a figure in words: its title, axes and series, and the numbers that `described` gave it."""
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
    encoded = (
        _encode(picture.encode()) if kind == "image/svg+xml" else picture
    )  # IPython has SVG as it is
    width = (
        f' width="{sizes[kind]["width"]}"' if "width" in sizes[kind] else ""
    )  # half the pixels, for "retina"
    shown = f'<img alt="{html.escape(words)}" src="data:{kind};base64,{encoded}"{width}>'

    return {"text/html": shown, **data}, metadata


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
