"""The kinds of calls that were compared: each in one run of a model, and not again in those that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from metallab.pytorch.divergence.calls import Call
from metallab.pytorch.divergence.layouts import Layout
from metallab.pytorch.divergence.repeat import MOST_KEPT_BYTES, Sample

CallKind = tuple[str, str, tuple[int, ...]]
"""An operator, its arguments with layouts in place of tensors, and which tensors share memory."""
Holds = tuple[tuple[bool, bool], ...]
"""Of each tensor whether it holds an infinity, and whether it holds a NaN."""


@dataclass
class ComparedCalls:
    """The kinds of calls that earlier runs have compared.

    Two calls are of one kind if operator, settings, shapes, dtypes and layouts are the same. Within a run each call is
    compared: its numbers are others.
    """

    _earlier: dict[CallKind, set[Holds]] = field(default_factory=dict)
    _this_run: dict[CallKind, set[Holds]] = field(default_factory=dict)
    _samples: dict[CallKind, Sample] = field(default_factory=dict)
    _sample_bytes: int = 0

    def begin_run(self) -> None:
        """Take the calls of the last run as known."""
        for kind, holds in self._this_run.items():
            self._earlier.setdefault(kind, set()).update(holds)
        self._this_run = {}

    def is_known(self, kind: CallKind | None) -> bool:
        """Return True if a call of a kind was compared in an earlier run, whatever it held."""
        return kind in self._earlier

    def has_held(self, kind: CallKind | None, holds: Holds) -> bool:
        """Return True if a call of a kind with infinities and NaN in the same arguments was compared before."""
        return kind is not None and holds in self._earlier.get(kind, ())

    @property
    def samples(self) -> tuple[Sample, ...]:
        """A call of each kind that was right, as far as there is room for them."""
        return tuple(self._samples.values())

    def wants_sample(self, kind: CallKind | None) -> bool:
        """Return True if no call of a kind is kept, and there is room."""
        has_room = self._sample_bytes < MOST_KEPT_BYTES
        return kind is not None and kind not in self._samples and has_room

    def keep(self, kind: CallKind | None, sample: Sample | None) -> None:
        """Keep a call of a kind that was right, to make it again."""
        if kind is not None and sample is not None:
            self._samples[kind] = sample
            self._sample_bytes += sample.num_bytes

    def add(self, kind: CallKind | None, holds: Holds) -> None:
        """Note a call that was compared."""
        if kind is not None:
            self._this_run.setdefault(kind, set()).add(holds)


def kind_of(call: Call) -> CallKind | None:
    """Return the kind of a call; None if that is not known, as of sparse tensors."""
    tensors = call.tensors
    if not all(map(_has_layout, tensors)):
        return None

    described = call.replace(Tensor, _describe)
    return (
        call.operator.name(),
        repr((described.args, described.kwargs)),
        _find_shared_memory(tensors),
    )


def _has_layout(tensor: Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and not tensor.is_quantized
    return is_plain and not tensor.is_nested


def _describe(tensor: Tensor) -> Any:
    """Return what of a tensor decides which kernel runs."""
    is_lazy = tensor.is_conj(), tensor.is_neg()
    return tensor.device.type, Layout.of(tensor), is_lazy


def _find_shared_memory(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return for each tensor the number of the first one that lies in the same memory."""
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return tuple(map(addresses.index, addresses))
