"""A photograph, and pictures side by side, for lessons about pictures."""

from __future__ import annotations

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
    """A photograph as (1, 3, height, width), float32 from 0 to 1: 384 x 512 pixels, or each ``every``-th of them.

    If None each fourth in fast mode, and all in full mode. It is ``china.jpg`` by danielbuechele (CC BY 2.0), which
    comes with scikit-learn.
    """
    import torch
    from sklearn.datasets import load_sample_image

    every = every or mode.by_mode(full=1, fast=4)
    pixels = load_sample_image("china.jpg")[:384:every, 64:576:every]  # bytes, (height, width, 3)
    return torch.tensor(pixels, device=device).permute(2, 0, 1)[None].float() / 255


def out_of_focus(picture: Tensor, pixels: int) -> tuple[Tensor, Tensor]:
    """A disk's spectrum and a picture blurred by it: H, (height, width // 2 + 1), and a tensor like ``picture``.

    The disk is ``pixels`` across and its weights add up to 1. The blur wraps around the border, and noise of half a
    level of 255 (standard deviation, always the same) is added to it.
    """
    import torch

    height, width = picture.shape[-2:]
    down, across = (torch.fft.fftfreq(n, 1 / n) for n in (height, width))  # pixels from 0, 0, also over the border
    disk = (pixels / 2 - torch.hypot(down[:, None], across)).clamp(0, 1)
    H = torch.fft.rfft2((disk / disk.sum()).to(picture.device))
    noise = 0.5 / 255 * torch.randn(picture.shape, generator=torch.Generator().manual_seed(0))
    return H, torch.fft.irfft2(torch.fft.rfft2(picture) * H, s=(height, width)) + noise.to(picture.device)


def psnr(truth: Tensor, result: Tensor) -> float:
    """How near a picture is to another, in decibels: the peak, 1, squared, over the mean squared error.

    10 dB more are a tenth of the squared error; infinite for equal pictures.
    """
    return -10 * (result - truth).square().mean().log10().item()


def spectrum(picture: Tensor) -> Tensor:
    """A picture, (..., height, width), as the waves of its grey: how strong each is, on a logarithmic scale, 0 to 1.

    The slowest wave is in the middle, the finest in the corners. White is the strongest of them, black a
    ten-millionth of it, or less.
    """
    import torch

    grey = picture.reshape(-1, *picture.shape[-2:]).mean(dim=0)
    strength = torch.fft.fftshift(torch.fft.fft2(grey).abs())
    decades = (strength / strength.max()).clamp(min=1e-7).log10()
    return 1 + decades / 7


def show(panels: Mapping[str, Any], heading: str, *, on: Device, zoom: float = 1) -> Figure:
    """Draw pictures beside each other, each with its name above; of each the middle, ``zoom`` times as large.

    A picture is a tensor or an array: (height, width), (height, width, 3), (3, height, width) or a batch of one such.
    Its values go from 0, black, to 1, and what lies beyond is cut. ``on`` is the device that made them, and stands in
    the title. ValueError for another shape.
    """
    pictures = {name: _pixels(name, panel, zoom) for name, panel in panels.items()}
    columns = len(pictures) if len(pictures) < 4 else 2
    rows = -(-len(pictures) // columns)
    across = [pixels.shape[1] / pixels.shape[0] for pixels in pictures.values()][:columns]  # at equal height
    with plt.rc_context(plots.STYLE):
        size = 7.5, 0.6 + rows * (0.3 + 7.5 / sum(across))
        figure, axes = plt.subplots(rows, columns, figsize=size, width_ratios=across, squeeze=False)
        for panel in axes.flat:
            panel.set_axis_off()
        for panel, (name, pixels) in zip(axes.flat, pictures.items(), strict=False):
            panel.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            panel.set_title(name, fontsize=9)
        plots.title(figure, heading, [on.label], on.simulated)
    sizes = ", ".join(f"{name} ({pixels.shape[0]} x {pixels.shape[1]})" for name, pixels in pictures.items())
    return plots.described(figure, f"{heading}: {sizes}")


def _pixels(name: str, panel: Any, zoom: float) -> np.ndarray:
    """The middle of a picture as matplotlib takes it."""
    array = np.asarray(panel.detach().cpu() if hasattr(panel, "detach") else panel)
    while array.ndim > 2 and array.shape[0] == 1:  # a batch of one, of one grey picture perhaps
        array = array[0]
    if array.ndim == 3 and array.shape[0] == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim != 2 and array.shape[2:] != (3,):
        raise ValueError(f"{name!r} has shape {array.shape}; a picture is (height, width), with 3 colours or without")
    high, wide = (round(size * (1 - 1 / zoom) / 2) for size in array.shape[:2])
    return array[high : array.shape[0] - high, wide : array.shape[1] - wide].clip(0, 1)
