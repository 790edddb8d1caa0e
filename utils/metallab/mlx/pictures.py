"""The picture of notebook 14: how far apart runs of one training are that should be the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import plots


def distances(
    runs: Mapping[str, Sequence[float]],
    reference: Mapping[str, Sequence[float]],
    *,
    heading: str,
    devices: Mapping[str, str],
) -> Figure:
    """How far the losses of each run are from the ``reference``'s at each step, on a logarithmic axis.

    ``runs`` and ``reference`` map a name to losses in nats, one for each step; the reference is one run. ``devices``
    maps the names to labels of devices. Where two losses are equal the line is broken. ValueError for a run that is not
    as long as the reference.
    """
    ((reference_name, expected),) = reference.items()
    off = {}
    for name, losses in runs.items():
        if len(losses) != len(expected):
            raise ValueError(f"{name} has {len(losses)} losses and {reference_name} {len(expected)}: train as long")
        off[name] = np.abs(np.subtract(losses, expected))
    names: dict[str, list[str]] = {}
    for name, device in devices.items():
        names.setdefault(device, []).append(name)
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.2))
        for (name, distance), colour in zip(off.items(), (plots.ORANGE, plots.SKY, plots.BLACK), strict=False):
            axes.plot(np.where(distance > 0, distance, np.nan), "o-", color=colour, label=name, markersize=4)
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(f"distance of the loss\nfrom {reference_name}'s (nats)")
        axes.legend(fontsize=8)
        plots.title(figure, heading, [f"{device} ({', '.join(names[device])})" for device in names])
    most = "; ".join(f"{name} at most {distance.max():.0e}" for name, distance in off.items())
    return plots.described(figure, f"losses beside those of {reference_name}: {most} nats apart")
