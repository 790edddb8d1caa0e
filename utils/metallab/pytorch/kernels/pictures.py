"""Pictures and tables of what kernels compute. Where a cell made nothing for want of a tool, they show its reason."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from metallab import isolated, plots, timing, units
from metallab.pytorch.kernels import rule
from metallab.timing import Comparison


def _or_its_reason(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draws the reason where something to draw was not made: `isolated.Skipped`."""

    @functools.wraps(draw)
    def drawn(*given: Any) -> Figure:
        missing = next((value for value in given if isinstance(value, isolated.Skipped)), None)
        return plots.reason(repr(missing)) if missing is not None else draw(*given)

    return drawn


@_or_its_reason
def graph(x: Tensor, y: Tensor, heading: str) -> Figure:
    """What a kernel on the Apple GPU made of ``x``, over ``x``: two tensors (n,) on the CPU.

    >>> graph(x, y, "Softshrink, λ = 0.5")
    """
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


class Values:
    """Numbers in columns; those that differ in any bit from the column ``truth`` are marked.

    >>> Values({"x": [0.3, math.nan], "right": [0.0, math.nan], "mine": [0.0, 0.0]}, truth="right")
    x    right  mine
    0.3  0      0
    nan  nan    0 (wrong)
    """

    def __init__(self, columns: Mapping[str, Sequence[float] | Tensor], truth: str):
        """The first column is the input. All are of one length; columns of `isolated.Skipped` are left out."""
        made = {name: column for name, column in columns.items() if not isinstance(column, isolated.Skipped)}
        self.columns = {name: torch.as_tensor(column) for name, column in made.items()}
        self.truth = truth

    def wrong(self, name: str) -> list[bool]:
        """For each row whether a column differs from the truth; never for the input."""
        column, right = self.columns[name], self.columns[self.truth]
        if name == next(iter(self.columns)):
            return [False] * len(column)
        return [not rule.same_bits(*pair) for pair in zip(column.split(1), right.split(1), strict=True)]

    def _texts(self, mark: str) -> dict[str, list[str]]:
        return {
            name: [f"{value:g}{mark * wrong}" for value, wrong in zip(column.tolist(), self.wrong(name), strict=True)]
            for name, column in self.columns.items()
        }

    def __repr__(self) -> str:
        from metallab import tables

        texts = self._texts(" (wrong)")
        return repr(tables.Table(list(texts), list(zip(*texts.values(), strict=True))))

    def _repr_html_(self) -> str:
        import pandas as pd

        red = "color: #d55e00; font-weight: bold"
        style = pd.DataFrame(self._texts("")).style.hide(axis="index")
        return style.apply(lambda column: [red * wrong for wrong in self.wrong(column.name)]).to_html()
