"""A photograph, and pictures side by side, for lessons about pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from metallab import mode, plots
from metallab.device import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def photograph(device: torch.device, every: int | None = None) -> Tensor:
    """Load a photograph: ``china.jpg`` by danielbuechele (CC BY 2.0), which comes with scikit-learn.

    Parameters
    ----------
    device
        Where it is put.
    every
        Of its 384 x 512 pixels each so-manieth in both directions; by default each fourth in fast mode, and all in
        full mode.

    Returns
    -------
    Tensor
        (1, 3, height, width), float32 from 0 to 1.
    """
    import torch
    from sklearn.datasets import load_sample_image

    every = every or mode.by_mode(full=1, fast=4)
    pixels = load_sample_image("china.jpg")[:384:every, 64:576:every]  # bytes, (height, width, 3)
    return torch.tensor(pixels, device=device).permute(2, 0, 1)[None].float() / 255


def show(panels: Mapping[str, Any], heading: str, *, on: Device, zoom: float = 1) -> Figure:
    """Draw pictures beside each other, each with its name above.

    Parameters
    ----------
    panels
        A picture by its name, a tensor or an array: (height, width), (height, width, 3), (3, height, width) or a batch
        of one such. Its values go from 0, black, to 1, and what lies beyond is cut.
    heading
        The title.
    on
        The device that made them, which stands in the title.
    zoom
        Of each picture the middle is shown, so many times as large.

    Returns
    -------
    matplotlib.figure.Figure
        Up to three pictures in one row, four and more in two columns.

    Raises
    ------
    ValueError
        For another shape.
    """
    pictures = {name: _pixels(name, panel, zoom) for name, panel in panels.items()}
    columns = len(pictures) if len(pictures) < 4 else 2
    rows = math.ceil(len(pictures) / columns)
    ratios = [pixels.shape[1] / pixels.shape[0] for pixels in pictures.values()]
    # widths of the columns, by the first row: so that all have one height
    across = ratios[:columns]

    with plt.rc_context(plots.STYLE):
        # 7.5 inches wide; a row is as high as its pictures then, with their names above
        size = 7.5, 0.6 + rows * (0.3 + 7.5 / sum(across))
        figure, axes = plt.subplots(rows, columns, figsize=size, width_ratios=across, squeeze=False)
        for panel in axes.flat:
            panel.set_axis_off()

        # an odd number of pictures leaves a place empty
        for panel, (name, pixels) in zip(axes.flat, pictures.items(), strict=False):
            panel.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            panel.set_title(name, fontsize=9)
        plots.title(figure, heading, [on.label], on.simulated)

    sizes = ", ".join(
        f"{name} ({pixels.shape[0]} x {pixels.shape[1]})" for name, pixels in pictures.items()
    )
    return plots.describe(figure, f"{heading}: {sizes}")


def _pixels(name: str, panel: Any, zoom: float) -> np.ndarray:
    """Return the middle of a picture as matplotlib takes it: (height, width) or (height, width, 3), from 0 to 1.

    ``zoom`` says how many times as high and as wide the whole picture is. ValueError, with the picture's name, for
    another shape than `show` takes.
    """
    array = np.asarray(panel.detach().cpu() if hasattr(panel, "detach") else panel)
    while array.ndim > 2 and array.shape[0] == 1:  # a batch of one, of one grey picture perhaps
        array = array[0]
    if array.ndim == 3 and array.shape[0] == 3:
        array = array.transpose(1, 2, 0)

    if array.ndim != 2 and array.shape[2:] != (3,):
        raise ValueError(
            f"{name!r} has shape {array.shape}; a picture is (height, width), with 3 colours or without"
        )

    height, width = array.shape[:2]
    above = round(height * (1 - 1 / zoom) / 2)
    beside = round(width * (1 - 1 / zoom) / 2)
    return array[above : height - above, beside : width - beside].clip(0, 1)
