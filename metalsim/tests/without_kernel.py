"""Calls of operators that have no Metal kernel: the one table of all tests that run without a Mac.

`test_metalsim_device.py` wants each raised; `tests/pytorch/test_coverage.py` wants each reported, and the operator's
status to be *missing*. Listed by hand from what people report, and not from PyTorch's table, which is judged by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from metalsim.refusals import versions


class WithoutKernel(NamedTuple):
    """A call that raises NotImplementedError on a Mac."""

    model: Callable[[torch.Tensor], Any]
    input: torch.Tensor
    until: str = ""
    """The last version of PyTorch in which the operator has no kernel, such as ``2.15``; empty: all known ones."""


MATRIX = torch.rand(3, 3)
IMAGE = torch.rand(1, 2, 6, 6)
VOLUME = torch.rand(1, 2, 4, 4, 4)

_OF_ALL_VERSIONS = {
    "aten::rrelu_with_noise": WithoutKernel(nn.RReLU(), MATRIX),
    "aten::linalg_eig": WithoutKernel(torch.linalg.eig, MATRIX),
    "aten::mode": WithoutKernel(torch.mode, MATRIX),
    "aten::special_ndtri.out": WithoutKernel(torch.special.ndtri, MATRIX),
    "aten::special_log_ndtr.out": WithoutKernel(torch.special.log_ndtr, MATRIX),
    "aten::multi_margin_loss": WithoutKernel(lambda x: F.multi_margin_loss(x, x.argmax(1)), MATRIX),
    "aten::multilabel_margin_loss_forward": WithoutKernel(
        lambda x: F.multilabel_margin_loss(x, x.argsort(1)), MATRIX
    ),
    "aten::_adaptive_avg_pool3d": WithoutKernel(nn.AdaptiveAvgPool3d(2), VOLUME),
    "aten::adaptive_max_pool3d.out": WithoutKernel(nn.AdaptiveMaxPool3d(2), VOLUME),
    "aten::fractional_max_pool2d.output": WithoutKernel(
        nn.FractionalMaxPool2d(2, output_size=3), IMAGE
    ),
    "aten::fractional_max_pool3d.output": WithoutKernel(
        nn.FractionalMaxPool3d(2, output_size=2), VOLUME
    ),
}
WITHOUT_KERNEL = {
    operator: call
    for operator, call in _OF_ALL_VERSIONS.items()
    if versions.is_between(torch.__version__, "", call.until)
}
"""By operator, as the message on a Mac names it: those of the PyTorch that is installed."""
