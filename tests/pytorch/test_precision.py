"""What the forward pass keeps is counted, and digits are scikit-learn's."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from metallab.pytorch import precision


def test_what_is_kept_is_counted_once_and_without_the_weights():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    x = torch.randn(2, 8)

    def loss():
        out = model(x)
        return (out * out.exp()).sum()

    # the input, what the first layer gives to the second, the output, its exponential: float32
    assert precision.count_kept_bytes(model, loss) == 4 * (2 * 8 + 3 * 2 * 4)


def test_digits_are_scikit_learns_from_0_to_1():
    data = precision.digits()
    pixels, classes = load_digits(return_X_y=True)
    pictures = torch.cat([data.train[0], data.test[0]]).flatten(1)
    assert np.array_equal(pictures.numpy(), (pixels / 16).astype("float32"))
    assert np.array_equal(torch.cat([data.train[1], data.test[1]]).numpy(), classes)


def test_digits_are_split_into_training_and_test():
    data = precision.digits()
    assert data.train[0].shape == (1257, 1, 8, 8)
    assert data.test[0].shape == (540, 1, 8, 8)
