"""What the forward pass keeps in each number format, and digits to train with."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from metallab import units

FORMATS = (torch.float32, torch.float16, torch.bfloat16)


def kept_for_backward(model: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes that computing ``loss()`` keeps for its backward pass, without the model's own weights and buffers.

    Each piece of memory counts once. An exact count on any device; what an operator takes for itself meanwhile is not
    in it.
    """
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = loss()  # holds on to all of it, so that no memory is used twice
        total = sum(size for storage, size in kept.items() if storage not in own)
        del graph
    return total


def kept_in_formats(model: nn.Module, loss: Callable[[nn.Module, torch.dtype], Tensor]) -> dict[str, int]:
    """Bytes that ``loss(model, dtype)`` keeps in each of `FORMATS`, counted as `kept_for_backward` does.

    >>> kept_in_formats(model, loss)
    {'float32': 19099648, 'float16': 9549824, 'bfloat16': 9549824}
    """
    return {
        units.dtype_name(dtype): kept_for_backward(model, functools.partial(loss, model, dtype)) for dtype in FORMATS
    }


def _storage(tensor: Tensor) -> int:
    """Which piece of memory: also on the ``meta`` device, where none has an address."""
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class Data:
    """Pictures (n, 1, 8, 8) in float32 and their classes (n,), to train on and to test with, on one device."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def digits(device: torch.device | str = "cpu") -> Data:
    """Real handwritten digits, which come with scikit-learn: 1257 to train on, the last 540 of the 1797 for the test.

    >>> images, labels = digits().train
    >>> tuple(images.shape), labels[:3].tolist()
    ((1257, 1, 8, 8), [0, 1, 2])
    """
    # its load_digits reads the same file, but to import it takes a second
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(file, np.float32, delimiter=",")
    images = torch.tensor(rows[:, :-1] / 16).reshape(-1, 1, 8, 8).to(device)  # 0 to 16 in the file
    labels = torch.tensor(rows[:, -1]).long().to(device)
    return Data((images[:1257], labels[:1257]), (images[1257:], labels[1257:]))
