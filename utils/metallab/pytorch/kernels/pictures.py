"""Pictures and tables of what kernels compute. Where a tool is missing they show the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from metallab import isolated, plots, timing, units
from metallab.pytorch.kernels import rule
from metallab.tables import Table
from metallab.timing import Comparison


def graph(x: Tensor, y: Tensor | isolated.Skipped, heading: str) -> Figure:
    """What a kernel on the Apple GPU made of ``x``, over ``x``: two tensors (n,) on the CPU, or the reason for none.

    >>> graph(x, y, "Softshrink, λ = 0.5")
    """
    if isinstance(y, isolated.Skipped):
        return plots.reason(repr(y))
    with plots.plt.rc_context(plots.STYLE):
        figure, axes = plots.plt.subplots(figsize=(7.5, 2.8))
        axes.plot(x, x, "--", color=plots.GREY, linewidth=1, label="x")
        axes.plot(x, y, color=plots.BLUE, linewidth=2, label="out")
        axes.set_xlabel("x")
        axes.legend()
        plots.title(figure, heading, [isolated.apple_gpu()])
    return plots.described(
        figure, f"out goes from {y.min():g} to {y.max():g} where x goes from {x.min():g} to {x.max():g}"
    )


def bandwidth(speed: Comparison, numbers: int, bytes_each: int) -> Figure:
    """How fast each variant goes through memory, if a call moved ``bytes_each`` for each number: GB/s, with quartiles.

    What gets no speed-up for a `timing.doubt` gets no bar either, but the reason: on a simulated device, for instance.
    """
    withheld, words = speed.withheld, []
    with plots.plt.rc_context(plots.STYLE):
        figure, axes = plots.plt.subplots(figsize=(7.5, 1.0 + 0.45 * len(speed.measurements)))
        for row, (name, measured) in enumerate(speed.measurements.items()):
            if reason := withheld.get(name) or timing.doubt(measured):
                kind = reason.split(":")[0]
                axes.text(0, row, f"  no rate: {kind}", va="center", color=plots.RED, fontsize=9)
                words.append(f"{name}: no rate, {kind}")
                continue
            lower, middle, upper = (numbers * bytes_each / measured.percentile(p) / 1e9 for p in (75, 50, 25))
            spread = [[middle - lower], [upper - middle]]
            axes.barh(row, middle, xerr=spread, color=plots.BLUE, capsize=3, height=0.6)
            axes.text(upper, row, f"  {units.rate(1e9 * middle, 'B/s')}", va="center", fontsize=9)
            words.append(f"{name}: {units.rate(1e9 * middle, 'B/s')}")
        axes.set_yticks(range(len(speed.measurements)), list(speed.measurements))
        axes.set_ylim(len(speed.measurements) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"GB/s, counting {bytes_each} bytes a number (line: quartiles)")
        if not axes.patches:
            axes.set_xticks([])  # without a bar they say nothing
        devices = [measured.device for measured in speed.measurements.values()]
        simulated = any(measured.simulated for measured in speed.measurements.values())
        plots.title(figure, "How near to a copy", devices, simulated)
    return plots.described(figure, "; ".join(words))


def values(columns: Mapping[str, Sequence[float] | Tensor], truth: str) -> Table:
    """Numbers in columns; those that differ in any bit from the column ``truth`` are marked.

    The first column is the input. All are of one length; columns of `isolated.Skipped` are left out.

    >>> values({"x": [0.3, math.nan], "right": [0.0, math.nan], "mine": [0.0, 0.0]}, truth="right")
    x    right  mine
    0.3  0      0
    nan  nan    0 (wrong)
    """
    made = {n: torch.as_tensor(c) for n, c in columns.items() if not isinstance(c, isolated.Skipped)}
    given, texts = next(iter(made)), {}
    for name, column in made.items():
        right = column if name == given else made[truth]
        equal = [rule.same_bits(*pair) for pair in zip(column.split(1), right.split(1), strict=True)]
        texts[name] = [f"{value:g}{' (wrong)' * (not is_equal)}" for value, is_equal in zip(column, equal, strict=True)]
    return Table(list(texts), list(zip(*texts.values(), strict=True)))
