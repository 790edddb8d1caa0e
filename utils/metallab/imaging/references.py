"""Operators that NumPy does not have, written with it the plain way, in float64: slow, and easy to believe.

Lessons hold a device's results against them (`metallab.parity`).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def convolution3d(video: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute what `torch.nn.functional.conv3d` does without padding, stride or bias.

    Parameters
    ----------
    video
        (n, channels, time, height, width).
    weights
        (outputs, channels, t, h, w); they are not flipped.

    Returns
    -------
    numpy.ndarray
        (n, outputs, time - t + 1, height - h + 1, width - w + 1).
    """
    window: Any = weights.shape[2:]
    axes: Any = (2, 3, 4)  # NumPy takes several, and its types say that it takes one
    windows = np.lib.stride_tricks.sliding_window_view(video, window, axis=axes)
    return np.einsum("nctyxijk,ocijk->notyx", windows, weights)


def sample_grid(picture: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Compute what `torch.nn.functional.grid_sample` does with ``align_corners=True``: bilinear, zeros outside.

    Parameters
    ----------
    picture
        (n, channels, height, width).
    grid
        (n, h, w, 2): positions across and down, of which -1 and 1 are the middles of the outermost pixels.

    Returns
    -------
    numpy.ndarray
        (n, channels, h, w).
    """
    from scipy import ndimage

    height, width = picture.shape[2:]
    sampled = np.empty((*picture.shape[:2], *grid.shape[1:3]))
    for channels, points, planes in zip(picture, grid, sampled, strict=True):
        rows = (points[..., 1] + 1) / 2 * (height - 1)
        columns = (points[..., 0] + 1) / 2 * (width - 1)

        for channel, plane in zip(channels, planes, strict=True):
            # grid-constant: beside the outermost pixels it passes into the zeros outside, where "constant" would jump
            plane[:] = ndimage.map_coordinates(
                channel, [rows, columns], order=1, mode="grid-constant"
            )
    return sampled
