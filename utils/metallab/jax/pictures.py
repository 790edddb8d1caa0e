"""The picture of notebook 07: handwritten digits under their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import plots
from metallab.device import Device


def digits(images: Any, labels: Any, truth: Any, chosen: Sequence[int], *, heading: str, on: Device) -> Figure:
    """Those ``chosen`` of pictures of 8 x 8 pixels, (n, 64) from 0 to 1, each under its label; wrong ones in colour.

    ``labels`` and ``truth`` are whole numbers (n,): a label that differs from the truth is wrong. ``on`` is the device
    that chose. IndexError for a number that is not there.
    """
    pictures = np.asarray(images)[list(chosen)].reshape(-1, 8, 8)
    columns = min(6, len(pictures))
    rows = -(-len(pictures) // columns)
    captions = []
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(7.5, 0.5 + 1.45 * rows), squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, picture, i in zip(axes.flat, pictures, chosen, strict=False):
            wrong = int(labels[i]) != int(truth[i])
            captions.append(f"labelled {int(labels[i])}" + (f", is {int(truth[i])}" if wrong else ""))
            ax.imshow(picture, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            ax.set_title(captions[-1], fontsize=8, color=plots.RED if wrong else plots.BLACK, loc="center")
        plots.title(figure, heading, [on.label], on.simulated)
    return plots.described(figure, f"{heading}: {'; '.join(captions)}")
