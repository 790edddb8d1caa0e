"""scikit-learn's handwritten digits, and small convolutional networks that read them.

The pictures are real and come with scikit-learn: 1797 digits of the UCI archive's *Optical Recognition of Handwritten
Digits*, 8 x 8 pixels. They are enlarged, so that a network has as much to compute as with a small photograph.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from metallab.device import PyTorchDevice, cpu

SIZE = 32
"""Pixels along a side of an enlarged picture."""

TESTED = 500
"""Pictures that training never sees."""


@dataclass(frozen=True)
class Digits:
    """Pictures, float32 (n, 1, `SIZE`, `SIZE`) from 0 to 1, and the digits on them, int64 (n,), on the CPU."""

    images: Tensor
    labels: Tensor


def load() -> tuple[Digits, Digits]:
    """Load the digits to train with, and `TESTED` others to test with.

    The split is the same each time, and each digit has the same share of both parts.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pictures = load_digits()
    small = torch.from_numpy(pictures.images).float()[:, None] / 16  # 0 to 16 in the file
    images = F.interpolate(small, size=(SIZE, SIZE), mode="bilinear")
    labels = torch.from_numpy(pictures.target).long()

    # indices are split, and not pictures: so one split is that of both images and labels
    parts = train_test_split(
        range(len(labels)), test_size=TESTED, stratify=pictures.target, random_state=0
    )
    seen, unseen = (Digits(images[part], labels[part]) for part in parts)
    return seen, unseen


def classifier(channels: int) -> nn.Sequential:
    """Make four convolutions with batch norm and ReLU, two poolings and a linear layer: (n, 1, h, w) -> (n, 10) scores.

    The first two convolutions have ``channels`` channels, the others twice as many.
    """

    def stage(before: int, after: int, size: int = 3) -> list[nn.Module]:
        return [
            nn.Conv2d(before, after, size, padding=size // 2, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *stage(1, channels, 5),
        *stage(channels, channels),
        nn.MaxPool2d(2),
        *stage(channels, 2 * channels),
        nn.MaxPool2d(2),
        *stage(2 * channels, 2 * channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, 10),
    )


def train(
    channels: int, digits: Digits, *, epochs: int, on: PyTorchDevice, batch: int = 64
) -> nn.Sequential:
    """Train a classifier on a device, from the same random numbers each time.

    A CPU computes with one thread: steps are so small that on a busy machine several would mostly wait for each other.
    The optimizer is AdamW with one rise and fall of the learning rate (Smith and Topin, *Super-Convergence*, 2018).

    Parameters
    ----------
    channels
        See `classifier`.
    digits
        What it learns from.
    epochs
        How often it sees each digit.
    on
        The device.
    batch
        Digits in a step; those that fill none are left out, other ones in each epoch.

    Returns
    -------
    nn.Sequential
        On the CPU, in evaluation mode, with weights that want no gradients.
    """
    # all random numbers are drawn on the CPU, so that they are the same on each device; devices=[]: a GPU draws none
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        network = classifier(channels)
        whole = len(digits.labels) // batch * batch  # digits that fill batches
        orders = [torch.randperm(len(digits.labels))[:whole] for _ in range(epochs)]

    network.to(on.torch_device, memory_format=torch.channels_last).train()
    images, labels = digits.images.to(on.torch_device), digits.labels.to(on.torch_device)
    steps = [chosen for order in orders for chosen in order.to(on.torch_device).split(batch)]
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=len(steps))

    one_thread: Any = cpu(threads=1)
    # also where whoever calls this has switched gradients off
    with one_thread.active(), torch.enable_grad():
        for chosen in steps:
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()

    return network.to("cpu", memory_format=torch.contiguous_format).eval().requires_grad_(False)


def fold_batch_norms(network: nn.Sequential) -> nn.Sequential:
    """Return a copy of a trained classifier with its batch norms folded into the convolutions before them."""
    layers: list[nn.Module] = []
    for layer in copy.deepcopy(network):
        if isinstance(layer, nn.BatchNorm2d):
            layers[-1] = fuse_conv_bn_eval(layers[-1], layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers).eval().requires_grad_(False)
