"""The references of lessons agree with PyTorch's CPU in float64, which is not what lessons hold against them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from metallab.imaging import references

RNG = np.random.default_rng(0)


def same(ours, theirs):
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-12)


VIDEO, WEIGHTS = RNG.normal(size=(2, 3, 4, 6, 7)), RNG.normal(size=(5, 3, 2, 3, 2))


@pytest.mark.parametrize(
    "video",
    [
        pytest.param(VIDEO, id="numbers"),
        pytest.param(VIDEO[:0], id="nothing"),
        pytest.param(np.where(VIDEO > 1.5, np.nan, VIDEO), id="NaN"),
    ],
)
def test_convolution_in_three_dimensions(video):
    theirs = F.conv3d(torch.tensor(video), torch.tensor(WEIGHTS))
    same(references.convolution3d(video, WEIGHTS), theirs)


PICTURE, GRID = RNG.normal(size=(2, 3, 5, 4)), RNG.uniform(-1.5, 1.5, (2, 6, 8, 2))


@pytest.mark.parametrize(
    ("picture", "places"),
    [
        pytest.param(PICTURE, GRID, id="numbers"),
        pytest.param(PICTURE[..., :1, :1], GRID, id="one pixel"),
        pytest.param(PICTURE, GRID[:, :0], id="no places"),
        pytest.param(np.where(PICTURE > 1.5, np.nan, PICTURE), GRID, id="NaN"),
    ],
)
def test_sampling_between_and_outside_of_the_pixels(picture, places):
    theirs = F.grid_sample(torch.tensor(picture), torch.tensor(places), align_corners=True)
    same(references.sample_grid(picture, places), theirs)
