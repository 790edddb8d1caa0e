"""What the forward pass keeps for the backward pass, and digits to train with."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


def count_kept_bytes(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Count the bytes that a forward pass keeps for its backward pass, without the model's own weights and buffers.

    Each piece of memory counts once. It is an exact count, on any device and on ``meta``; what an operator takes for
    itself meanwhile is not in it.

    Parameters
    ----------
    model
        Whose weights and buffers are not counted.
    loss
        Computes the model's loss.

    Returns
    -------
    int
        Bytes.
    """
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    bytes_of: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        bytes_of[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = loss()  # holds on to all of it, so that no memory is used twice
        total = sum(size for storage, size in bytes_of.items() if storage not in own)
        del graph
    return total


def _storage(tensor: Tensor) -> int:
    """Return which piece of memory it is: also on the ``meta`` device, where none has an address."""
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class Data:
    """Pictures (n, 1, 8, 8) in float32 and their classes (n,), to train on and to test with, on one device."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(device: torch.device | str = "cpu") -> Data:
    """Load real handwritten digits, which come with scikit-learn: 1257 to train on, the last 540 for the test.

    >>> images, labels = digits().train
    >>> tuple(images.shape), labels[:3].tolist()
    ((1257, 1, 8, 8), [0, 1, 2])
    """
    # its load_digits reads the same file, but to import it takes a second
    file = importlib.metadata.distribution("scikit-learn").locate_file(
        "sklearn/datasets/data/digits.csv.gz"
    )
    rows = np.loadtxt(str(file), np.float32, delimiter=",")

    images = torch.tensor(rows[:, :-1] / 16).reshape(-1, 1, 8, 8).to(device)  # 0 to 16 in the file
    labels = torch.tensor(rows[:, -1]).long().to(device)
    return Data((images[:1257], labels[:1257]), (images[1257:], labels[1257:]))
