"""Small models and calls that a Mac refuses although each of their operators has a Metal kernel.

`tests/pytorch/test_coverage.py` wants each reported, `test_metalsim_device.py` wants each raised, with the same words.
Written by hand from what people report and from PyTorch's list for its Macs, not from the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from metalsim.refusals import versions


class Refused(NamedTuple):
    """A call, and what a Mac says of it."""

    model: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    words: str
    """How the message begins."""
    error: type[Exception] = RuntimeError
    since: str = ""
    """The first version of PyTorch that refuses it in these words; empty: all known ones up to `until`."""
    until: str = ""
    """The last version that does; empty: all later ones."""


IMAGE = torch.rand(1, 2, 12, 12)
VOLUME = torch.rand(1, 2, 4, 4, 4)
WHOLE = torch.arange(16).view(4, 4)
COMPLEX = torch.eye(3, dtype=torch.complex64)
INPUT_SIZES = "Adaptive pool MPS: input sizes must be divisible by output sizes. "
DROPOUT = "scaled_dot_product_attention for MPS does not support dropout."
FLOATING = "Convolution is supported only for Floating types"


def a_frozen_encoder_that_still_drops(x: torch.Tensor) -> torch.Tensor:
    """As in training a head on an encoder: no gradient is wanted of it, and nobody called .eval()."""
    layer = (
        nn.TransformerEncoderLayer(8, 2, dropout=0.1, batch_first=True, device=x.device)
        .train()
        .requires_grad_(False)
    )
    return layer(x)


def sampled_in_3d(mode: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what samples a volume in a mode of `torch.nn.functional.grid_sample`."""

    def sample(x: torch.Tensor) -> torch.Tensor:
        grid = torch.zeros(1, 2, 2, 2, 3, device=x.device)
        return F.grid_sample(x, grid, mode=mode, align_corners=False)

    return sample


_OF_ALL_VERSIONS = {
    "uneven pooling": Refused(nn.AdaptiveAvgPool2d(5), (IMAGE,), INPUT_SIZES),
    "uneven pooling in 1d": Refused(nn.AdaptiveAvgPool1d(3), (torch.rand(1, 2, 10),), INPUT_SIZES),
    "uneven growing": Refused(
        nn.AdaptiveAvgPool2d(16), (IMAGE,), "Adaptive pool MPS: output sizes must be divisible by input sizes. "
    ),
    "one side grows": Refused(
        nn.AdaptiveAvgPool2d((6, 24)), (IMAGE,), "Adaptive pool MPS: Input height and width must both be greater than"
    ),
    "convolution of whole numbers": Refused(
        lambda x: F.conv2d(x, torch.ones(1, 2, 3, 3, dtype=torch.long, device=x.device)), (IMAGE.long(),), FLOATING
    ),
    "half transposed convolution in 3d": Refused(
        nn.ConvTranspose3d(2, 2, 2).half(), (VOLUME.half(),),
        "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
    ),
    "attention with dropout": Refused(
        lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), (torch.rand(1, 2, 3, 8),), DROPOUT,
        NotImplementedError, "2.13",
    ),
    "a frozen encoder that still drops": Refused(
        a_frozen_encoder_that_still_drops, (torch.rand(1, 3, 8),), DROPOUT, NotImplementedError, "2.13"
    ),
    "an LSTM with projections": Refused(
        nn.LSTM(4, 8, proj_size=3), (torch.rand(2, 1, 4),), "LSTM with projections is not currently supported with MPS."
    ),
    "linear of whole numbers": Refused(
        lambda x: F.linear(x, x), (WHOLE,), "MPS device does not support linear for non-float inputs"
    ),
    "an outer product of whole numbers": Refused(
        lambda x: torch.addr(x, x[0], x[1]), (WHOLE,), "MPS device does not support addr for non-float input"
    ),
    "a Fourier transform of 5 dimensions": Refused(
        torch.fft.fftn, (VOLUME,), "MPS FFT only supports transforming up to 4 dimensions, but got 5 dimensions",
        since="2.14",
    ),
    "nearest sampling in 3d": Refused(
        sampled_in_3d("nearest"), (VOLUME,), "grid_sampler_3d: Unsupported Nearest interpolation", until="2.12",
    ),
    "bicubic sampling in 3d": Refused(
        sampled_in_3d("bicubic"), (VOLUME,), "grid_sampler_3d: Unsupported Bicubic interpolation", since="2.15",
    ),
    "a complex inverse": Refused(torch.linalg.inv, (COMPLEX,), "linalg_inv: not supported for complex types yet!"),
    "a complex inverse by Cholesky": Refused(
        torch.cholesky_inverse, (COMPLEX,), "cholesky_inverse: MPS only supports float type!"
    ),
    "a factorisation without pivoting": Refused(
        lambda a: torch.linalg.lu_factor_ex(a, pivot=False), (torch.eye(3),),
        "linalg.lu_factor(): MPS doesn't allow pivot == False.",
    ),
    "a picture of bytes, antialiased": Refused(
        lambda x: F.interpolate(x, (6, 6), mode="bilinear", antialias=True), (IMAGE.to(torch.uint8),),
        "_upsample_bilineard2d_aa_out_mps only supports floating-point dtypes",
    ),
    "a picture of bytes, bicubic": Refused(
        lambda x: F.interpolate(x, (6, 6), mode="bicubic"), (IMAGE.to(torch.uint8),),
        "Failed to create function state object for: upsample_bicubic2d_uchar",
    ),
    "a loss of whole numbers": Refused(
        lambda x: F.huber_loss(x, x + 1), (WHOLE,), "MPS doesn't know how to do square_i64", NotImplementedError
    ),
    "whole numbers reduced by index": Refused(
        lambda x: torch.zeros_like(x).index_reduce(0, x[0] % 4, x, "amax"), (WHOLE,),
        "index_reduce for MPS does not support torch.long dtype", since="2.12",
    ),
    "a median of bools": Refused(
        lambda x: torch.median(x > 7), (WHOLE,), "median_mps not implemented for Bool", NotImplementedError, "2.14"
    ),
    "a sound of more than 65536 samples": Refused(
        nn.Conv1d(1, 1, 3), (torch.zeros(1, 1, 65540),), "Output channels > 65536 not supported at the MPS device. ",
        NotImplementedError,
    ),
    "regions in bfloat16": Refused(
        lambda x: torchvision.ops.roi_align(x.bfloat16(), torch.zeros(1, 5, device=x.device).bfloat16(), 2), (IMAGE,),
        "aoti_torch_mps_get_kernel_function( shaderLibrary(), kernel.c_str(), &func) API call failed at ", since="2.14",
    ),
    "a linear layer of complex numbers": Refused(
        lambda x: F.linear(x, x), (COMPLEX,), "mps linear does not support complex types", until="2.11",
    ),
    "complex numbers gathered": Refused(
        lambda x: x.gather(0, torch.zeros(3, 3, dtype=torch.long, device=x.device)), (COMPLEX,),
        "gather(): Yet not supported for complex", until="2.11",
    ),
    "the largest of whole numbers, scattered": Refused(
        lambda x: x.scatter_reduce(0, x % 4, x, "amax"), (WHOLE,), "not supported for torch.int64", until="2.12",
    ),
    "complex random numbers": Refused(
        lambda x: x.random_(), (COMPLEX,), "random_mps_ handles only integral", until="2.12",
    ),
    "logarithmic whole numbers": Refused(
        lambda x: torch.logspace(0, 3, 4, dtype=torch.int32, device=x.device), (WHOLE,),
        "logspace is not implemented for integral dtypes on MPS", NotImplementedError, "2.15",
    ),
}  # fmt: skip
REFUSED = {
    name: each
    for name, each in _OF_ALL_VERSIONS.items()
    if versions.is_between(torch.__version__, each.since, each.until)
}
"""Those of the PyTorch that is installed."""
