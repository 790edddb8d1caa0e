"""Operators that NumPy does not have, written with it the plain way, in float64: slow, and easy to believe.

Lessons hold a device's results against them (`metallab.parity`).
"""

from __future__ import annotations

import numpy as np


def convolution3d(video: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What `torch.nn.functional.conv3d` computes without padding, stride or bias.

    ``video`` is (n, channels, time, height, width), ``weights`` (outputs, channels, t, h, w), which are not flipped;
    the result is (n, outputs, time - t + 1, height - h + 1, width - w + 1).
    """
    windows = np.lib.stride_tricks.sliding_window_view(video, weights.shape[2:], axis=(2, 3, 4))
    return np.einsum("nctyxijk,ocijk->notyx", windows, weights)


def sampled_grid(picture: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """What `torch.nn.functional.grid_sample` computes with ``align_corners=True``: bilinear, zeros outside.

    ``picture`` is (n, channels, height, width); ``grid`` is (n, h, w, 2), positions across and down, of which -1 and 1
    are the middles of the outermost pixels. The result is (n, channels, h, w).
    """
    from scipy import ndimage

    high, wide = picture.shape[2:]
    made = np.empty((*picture.shape[:2], *grid.shape[1:3]))
    for one, points, result in zip(picture, grid, made, strict=True):
        rows_columns = [
            (points[..., 1] + 1) / 2 * (high - 1),
            (points[..., 0] + 1) / 2 * (wide - 1),
        ]
        for channel, plane in zip(one, result, strict=True):
            plane[:] = ndimage.map_coordinates(channel, rows_columns, order=1, mode="grid-constant")
    return made
