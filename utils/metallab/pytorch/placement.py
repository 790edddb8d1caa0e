"""Which tensors of a trace on the CPU would lie on the GPU, and which on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Place(StrEnum):
    """Where a tensor would lie."""

    GPU = "GPU"
    CPU = "CPU"


class Placement:
    """The places of memory, which all views of it share.

    A weak reference keeps an address from being given to other memory, and no memory alive.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[Place, StorageWeakRef]] = {}

    def set(self, tensors: Iterable[Tensor], place: Place) -> None:
        """Note where the memory of tensors would lie."""
        for tensor in filter(_has_memory, map(_unwrap, tensors)):
            reference = StorageWeakRef(tensor.untyped_storage())
            self._places[reference.cdata] = (place, reference)

    def get(self, tensor: Tensor) -> Place | None:
        """Return where a tensor would lie; None if that is not known."""
        tensor = _unwrap(tensor)
        if not _has_memory(tensor):
            return None
        place, _ = self._places.get(StorageWeakRef(tensor.untyped_storage()).cdata, (None, None))
        return place


def _unwrap(tensor: Tensor) -> Tensor:
    """Return the tensor that has the memory, where `torch.func.vmap`, `grad` or the like have put it into others."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _has_memory(tensor: Tensor) -> bool:
    """Return False for sparse and nested tensors, which consist of others."""
    return tensor.layout == torch.strided and not tensor.is_nested
