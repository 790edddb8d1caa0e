"""The references of lessons agree with PyTorch's CPU in float64, which is not what lessons hold against them."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from metallab.imaging import references

RNG = np.random.default_rng(0)


def same(ours, theirs):
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-12)


def test_convolution_in_three_dimensions():
    video, weights = RNG.normal(size=(2, 3, 4, 6, 7)), RNG.normal(size=(5, 3, 2, 3, 2))
    for given in (video, video[:0], np.where(video > 1.5, np.nan, video)):
        same(
            references.convolution3d(given, weights),
            F.conv3d(torch.tensor(given), torch.tensor(weights)),
        )


def test_sampling_between_and_outside_of_the_pixels():
    picture, grid = RNG.normal(size=(2, 3, 5, 4)), RNG.uniform(-1.5, 1.5, (2, 6, 8, 2))
    holes = np.where(picture > 1.5, np.nan, picture)
    for given, places in (
        (picture, grid),
        (picture[..., :1, :1], grid),
        (picture, grid[:, :0]),
        (holes, grid),
    ):
        theirs = F.grid_sample(torch.tensor(given), torch.tensor(places), align_corners=True)
        same(references.sample_grid(given, places), theirs)
