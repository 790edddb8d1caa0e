"""The picture of notebook 14: curves that lie on each other, and can be seen to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import plots

WIDTHS, COLOURS = (7, 4, 1.5), (plots.SKY, plots.ORANGE, plots.BLACK)


def one_over_another(losses: Mapping[str, Sequence[float]], *, heading: str, devices: Iterable[str]) -> Figure:
    """Up to three runs' losses by step, the first widest and below the others. ValueError for more runs."""
    if len(losses) > len(WIDTHS):
        raise ValueError(f"{len(losses)} runs cannot be told apart here: draw {len(WIDTHS)} at most")
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.2))
        for (name, run), width, colour in zip(losses.items(), WIDTHS, COLOURS, strict=False):
            axes.plot(np.arange(len(run)), run, color=colour, linewidth=width, label=name, solid_capstyle="round")
        axes.set_xlabel("step")
        axes.set_ylabel("training loss (nats)")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
        plots.title(figure, heading, dict.fromkeys(devices))
    ends = "; ".join(f"{name} ends at {run[-1]:.4f}" for name, run in losses.items())
    return plots.described(figure, f"{heading}: {ends}")
