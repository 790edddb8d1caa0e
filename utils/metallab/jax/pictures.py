"""The picture of notebook 07: handwritten digits with captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import plots
from metallab.device import Device


def digits(images: Any, captions: Sequence[str], marked: Sequence[bool], heading: str, *, on: Device) -> Figure:
    """Pictures of 8 x 8 pixels, (n, 64) from 0 to 1, each under its caption; those that are ``marked`` in colour.

    ``on`` is the device that chose them. ValueError unless there is a caption and a mark for each.
    """
    pictures = np.asarray(images).reshape(-1, 8, 8)
    columns = min(6, len(pictures))
    rows = -(-len(pictures) // columns)
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(7.5, 0.5 + 1.45 * rows), squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, picture, caption, mark in zip(axes.flat[: len(pictures)], pictures, captions, marked, strict=True):
            ax.imshow(picture, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            ax.set_title(caption, fontsize=8, color=plots.RED if mark else plots.BLACK, loc="center")
        plots.title(figure, heading, [on.label], on.simulated)
    described = [f"{caption}{' (marked)' * bool(mark)}" for caption, mark in zip(captions, marked, strict=True)]
    return plots.described(figure, f"{heading}: {', '.join(described)}")
