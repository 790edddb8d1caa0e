"""Which operators ask before they run under ``torch.use_deterministic_algorithms(True)``, and by which name.

Such an operator raises there, or warns where ``warn_only=True`` was said. PyTorch has the words, for every device, in
``Context::alertNotDeterministic``; what it is told is the name of the kernel, and the name is what stands here.

Names, kernels and conditions were read from the machine code of PyTorch's wheels for macOS (2.11 to 2.15): the calls of
that function in ``libtorch_cpu.dylib``, and the comparisons in front of them. ``put_`` is not here, because its kernel
is PyTorch's own for every device and asks here as well. None of it was run on a Mac.

The docstring of ``torch.use_deterministic_algorithms`` names `torch.nn.MaxPool2d`, too. In the wheel of 2.15 neither of
the two functions that compute its gradient asks (``mps_max_pool2d_backward`` and
``structured_max_pool2d_with_indices_backward_out_mps``), so that it runs here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metalsim.refusals import versions

Condition = Callable[..., bool]


@dataclass(frozen=True)
class Alert:
    """A kernel that asks whether it may run."""

    name: str
    """What PyTorch calls it in the exception, such as ``kthvalue MPS``."""
    asks: Condition
    """A function of the arguments of a call, by the names of its schema."""
    since: str = ""
    """The first version of PyTorch, such as ``2.13``, in which it asks; empty: all known ones."""


def _always(**_: Any) -> bool:
    """Say that each call asks."""
    return True


def _sums_fractions(tensor: Any) -> bool:
    """Return whether the order of a sum changes it: not for whole numbers."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _puts(self: Any, accumulate: bool = False, **_: Any) -> bool:
    """`index_put` asks where it adds."""
    return accumulate and _sums_fractions(self)


def _adds_by_index(self: Any, index: Any, source: Any, **_: Any) -> bool:
    """Under that setting index_add is an index_put with accumulate."""
    return bool(index.numel() and source.numel()) and _sums_fractions(self)


def _reduces_by_index(self: Any, reduce: str, **_: Any) -> bool:
    """The largest and the smallest are the same in any order."""
    return reduce in ("prod", "mean") and _sums_fractions(self)


def _scatters(self: Any, index: Any, reduce: str = "sum", src: Any = None, **_: Any) -> bool:
    """What is scattered asks where there is something, and its order counts."""
    if reduce in ("amin", "amax") or not self.numel() or not index.numel():
        return False
    if src is not None and not src.numel():
        return False
    return _sums_fractions(self)


def _scatters_with_reduce(reduce: str | None = None, **arguments: Any) -> bool:
    """`scatter` itself, which writes, or adds or multiplies where it is told so."""
    return reduce is not None and _scatters(reduce=reduce, **arguments)


def _grows(grad_output: Any, **_: Any) -> bool:
    """The gradient of a growing picture asks where there is one."""
    return bool(grad_output.numel())


ALERTS: Mapping[str, Alert] = {
    "aten::kthvalue": Alert("kthvalue MPS", _always),
    "aten::_index_put_impl_": Alert("index_put_with_accumulate_mps", _puts, since="2.13"),
    "aten::index_add": Alert("index_put_with_accumulate_mps", _adds_by_index, since="2.13"),
    "aten::index_reduce": Alert("index_reduce_mps", _reduces_by_index, since="2.13"),
    "aten::scatter": Alert("scatter_reduce_mps", _scatters_with_reduce, since="2.13"),
    "aten::scatter_add": Alert("scatter_reduce_mps", _scatters, since="2.13"),
    "aten::scatter_reduce": Alert("scatter_reduce_mps", _scatters, since="2.13"),
    **{
        f"aten::{operator}": Alert(name, _always, since="2.15")
        for operator, name in (
            ("embedding_dense_backward", "embedding_dense_backward_mps"),
            ("_embedding_bag_dense_backward", "_embedding_bag_dense_backward_mps"),
            (
                "_embedding_bag_per_sample_weights_backward",
                "_embedding_bag_per_sample_weights_backward_mps",
            ),
            ("grid_sampler_2d_backward", "grid_sampler_2d_backward_mps"),
            ("grid_sampler_3d_backward", "grid_sampler_3d_backward_mps"),
            ("adaptive_max_pool2d_backward", "adaptive_max_pool2d_backward"),
            ("max_pool3d_with_indices_backward", "max_pool3d_backward"),
            ("avg_pool3d_backward", "avg_pool3d_backward"),
        )
    },
    **{
        f"aten::{operator}": Alert(name, _grows, since="2.15")
        for operator, name in (
            ("upsample_bicubic2d_backward", "upsample_bicubic2d_backward"),
            ("_upsample_bilinear2d_aa_backward", "upsample_bilinear2d_aa_backward"),
            ("_upsample_bicubic2d_aa_backward", "upsample_bicubic2d_aa_backward"),
            ("upsample_nearest3d_backward", "upsample_nearest_3d_backward"),
            ("_upsample_nearest_exact3d_backward", "upsample_nearest_exact_3d_backward"),
            ("upsample_trilinear3d_backward", "upsample_trilinear_backward"),
        )
    },
}
"""By operator, without its overload and without the underscore of its in-place form."""

SILENT_THERE = ("aten::max_unpool2d", "aten::max_unpool3d")
"""Operators whose kernel for the CPU asks, and whose Metal kernel does not."""


def find(operator: str, version: str | None = None) -> Alert | None:
    """Return the alert of an operator such as ``aten::scatter_add_`` in a version, the installed one if None."""
    return _find(operator, version or versions.find_installed())


@functools.cache
def _find(operator: str, version: str) -> Alert | None:
    """Look an operator up, in a version that is named."""
    plain = operator.partition(".")[0]

    alert = ALERTS.get(plain) or ALERTS.get(plain.removesuffix("_"))
    if alert is None or not versions.is_between(version, alert.since, ""):
        return None
    return alert


def names_of(version: str) -> set[str]:
    """Return the names by which kernels ask in a version of PyTorch."""
    return {
        alert.name for alert in ALERTS.values() if versions.is_between(version, alert.since, "")
    }
