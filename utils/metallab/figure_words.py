"""A figure in words, made from its own title, axes and legend, for whoever cannot see it.

The words become the alternative text of the picture when a notebook shows it (`metallab.session`). They say what is
drawn; what to see in it says the page's caption, the cell tagged ``caption`` behind the picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure

MOST = 24
"""So many names of a row, a series or a text are listed; of more the number is told."""

UNNAMED = "a figure without a title, names of axes or a legend"


def describe_figure(figure: Figure) -> str:
    """Return a figure in words: its title, and of each of its axes the title, what it spans, and the series.

    Parameters
    ----------
    figure
        A figure of matplotlib. Its label ends the words: there `metallab.plots` keeps the numbers that it has drawn.

    Returns
    -------
    str
        Sentences on one line; empty for a figure that names nothing.
    """
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    parts = [_on_one_line(figure.get_suptitle())]
    for axes in figure.axes:
        parts.extend(_describe_axes(axes))
    already = " ".join(parts)
    parts.append(_list_names("series", [text for text in legends if text not in already]))
    sentences = [f"{part.removesuffix('.')}." for part in parts if part]
    return " ".join([*sentences, str(figure.get_label())]).strip()


def _describe_axes(axes: Axes) -> Iterator[str]:
    """Yield what axes show, each as a phrase; empty phrases for what they do not name."""
    titles = (axes.get_title(side) for side in ("left", "center", "right"))
    yield _on_one_line(", ".join(filter(None, titles)))

    if axes.axison:
        yield _describe_axis("x axis", axes.xaxis)
        yield _describe_axis("y axis", axes.yaxis)
    yield _list_names("series", _series(axes))
    for bars in _bars(axes):
        yield _list_names("bars", bars)
    texts = [text.get_text() for text in axes.texts]
    yield _list_names("text in the picture", [text for text in texts if not _is_number(text)])


def _describe_axis(name: str, axis: Axis) -> str:
    """Return what an axis is: its label, whether it is logarithmic, and the names that stand at its ticks."""
    label = _on_one_line(axis.get_label_text())
    names = _tick_names(axis)
    if not label and not names:
        return ""

    parts = [label] if label else []
    if axis.get_scale() == "log":
        parts.append("logarithmic")
    if names:
        parts.append(_join_names(names))
    return f"{name}: {', '.join(parts)}"


def _tick_names(axis: Axis) -> list[str]:
    """Return the names at an axis's ticks, if they are words that somebody gave; none for numbers."""
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator

    if not isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator):
        return []
    names = [text.get_text() for text in axis.get_ticklabels()]
    return [name for name in names if not _is_number(name)]


def _is_number(text: str) -> bool:
    """Return whether a text is a number, or several: as such, or as a formula of matplotlib."""
    return re.fullmatch(r"\$.*\$|[-+\N{MINUS SIGN}\d.,e%\s]*", text) is not None


def _series(axes: Axes) -> list[str]:
    """Return the names of lines, points and areas, as a legend would list them, with the ends of each line."""
    handles, labels = axes.get_legend_handles_labels()
    return [
        f"{label}{_ends_of_line(handle)}" for handle, label in zip(handles, labels, strict=True)
    ]


def _ends_of_line(handle: Any) -> str:
    """Return from where to where a line goes; nothing for what is no line, or has no numbers."""
    from matplotlib.lines import Line2D

    if not isinstance(handle, Line2D):
        return ""
    try:
        points = [(float(x), float(y)) for x, y in handle.get_xydata()]
    except (TypeError, ValueError):
        return ""  # it counts dates or names
    finite = [y for _, y in points if y == y]  # NaN is not itself
    if len(finite) < 2:
        return ""
    return f" (from {finite[0]:.3g} to {finite[-1]:.3g})"


def _bars(axes: Axes) -> Iterator[list[str]]:
    """Yield the bars of each set of bars that stands at names, with their lengths."""
    from matplotlib.container import BarContainer

    for container in axes.containers:
        if isinstance(container, BarContainer):
            yield _lengths(axes, container)


def _lengths(axes: Axes, bars: BarContainer) -> list[str]:
    """Return each bar of a set with the name at which it stands and where it ends, the first behind the set's label.

    Nothing for bars that stand at numbers, or that are more or fewer than the names. A bar that begins on another one
    ends where both do.
    """
    is_horizontal = bars.orientation == "horizontal"
    names = _tick_names(axes.yaxis if is_horizontal else axes.xaxis)
    lengths = [
        patch.get_x() + patch.get_width() if is_horizontal else patch.get_y() + patch.get_height()
        for patch in bars.patches
    ]
    if not lengths or len(names) != len(lengths):
        return []
    ends = [f"{name} to {end:.3g}" for name, end in zip(names, lengths, strict=True)]
    label = bars.get_label()
    # matplotlib calls sets without a label _container0 and so on
    if isinstance(label, str) and label and not label.startswith("_"):
        return [f"{label}: {ends[0]}", *ends[1:]]
    return ends


def _list_names(what: str, names: Sequence[str]) -> str:
    """Return names behind what they are, or an empty text if there are none."""
    told = [_on_one_line(name) for name in names]
    told = [name for name in told if name]
    if not told:
        return ""
    return f"{what}: {_join_names(told)}"


def _join_names(names: Sequence[str]) -> str:
    """Return names with commas between them, each once; of very many the number instead."""
    each = list(dict.fromkeys(names))
    if len(each) > MOST:
        return f"{len(each)} names from {each[0]} to {each[-1]}"
    return "; ".join(each)


def _on_one_line(text: str) -> str:
    """Return a text on one line; what a line break separates in a title stays apart."""
    lines = [line.strip() for line in text.split("\n")]
    return ", ".join(line for line in lines if line)
