"""Matrix products, convolutions, pooling, normalisation, attention."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from metalsim.graph.errors import NotSimulated
from metalsim.graph.operations.registry import Descriptor, Properties, floating, operation, require, same_dtype

Convolution2D = Annotated[Properties, Descriptor("MPSGraphConvolution2DOpDescriptor")]
Convolution3D = Annotated[Properties, Descriptor("MPSGraphConvolution3DOpDescriptor")]
Pooling2D = Annotated[Properties, Descriptor("MPSGraphPooling2DOpDescriptor")]

# MPSGraphPaddingStyle
EXPLICIT, VALID, SAME, EXPLICIT_OFFSET, SAME_LOWER = range(5)
# MPSGraphTensorNamedDataLayout: the permutation to PyTorch's order, and the way back
DATA = {0: "NCHW", 1: "NHWC", 7: "NCDHW", 8: "NDHWC"}
WEIGHTS = {2: "OIHW", 3: "HWIO", 9: "OIDHW", 10: "DHWIO"}


@operation("matrixMultiplicationWithPrimaryTensor:secondaryTensor:name:")
def matrix_product(primary: Tensor, secondary: Tensor) -> Tensor:
    same_dtype(primary, secondary)
    require(
        primary.is_floating_point() or primary.is_complex(), f"multiplies real or complex matrices, not {primary.dtype}"
    )
    require(min(primary.ndim, secondary.ndim) >= 2, "multiplies matrices: both operands need 2 dimensions or more")
    return primary @ secondary


def _from(tensor: Tensor, layout: int, layouts: dict[int, str], standard: str) -> Tensor:
    """A tensor in the order of dimensions that PyTorch wants."""
    have = layouts.get(layout, "")
    require(sorted(have) == sorted(standard), f"a layout for {standard}, not MPSGraphTensorNamedDataLayout {layout}")
    require(tensor.ndim == len(standard), f"{have} has {len(standard)} dimensions, the tensor {tensor.ndim}")
    return tensor.permute([have.index(letter) for letter in standard])


def _back(tensor: Tensor, layout: int, layouts: dict[int, str], standard: str) -> Tensor:
    return tensor.permute([standard.index(letter) for letter in layouts[layout]]).contiguous()


def paddings(style: int, sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int],
             explicit: list[tuple[int, int]]) -> list[tuple[int, int]]:  # fmt: skip
    """What is added before and after each spatial dimension, by MPSGraphPaddingStyle."""
    if style == EXPLICIT:
        return explicit
    if style == VALID:
        return [(0, 0)] * len(sizes)
    if style not in (SAME, SAME_LOWER):
        raise NotSimulated(
            f"MPSGraphPaddingStyle {style} is not simulated; Explicit, TF_VALID, TF_SAME and ONNX_SAME_LOWER are"
        )
    sides = []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        sides.append((small, large) if style == SAME else (large, small))
    return sides


def _widths(pads: list[tuple[int, int]]) -> list[int]:
    """In the order of torch.nn.functional.pad: the last dimension first."""
    return [width for pair in reversed(pads) for width in pair]


def _explicit(d: Properties, spatial: int) -> list[tuple[int, int]]:
    planar = [(d.paddingTop, d.paddingBottom), (d.paddingLeft, d.paddingRight)]
    return planar if spatial == 2 else [(d.paddingFront, d.paddingBack), *planar]


def _convolution(source: Tensor, weights: Tensor, d: Properties, spatial: int) -> Tensor:
    floating(source, weights)
    standard = "NCHW" if spatial == 2 else "NCDHW"
    x = _from(source, d.dataLayout, DATA, standard)
    w = _from(weights, d.weightsLayout, WEIGHTS, standard.replace("N", "O").replace("C", "I"))
    axes = "YX" if spatial == 2 else "ZYX"
    strides = [getattr(d, f"strideIn{axis}") for axis in axes]
    dilations = [getattr(d, f"dilationRateIn{axis}") for axis in axes]
    require(
        x.shape[1] == w.shape[1] * d.groups, f"{x.shape[1]} channels, weights for {w.shape[1]} in {d.groups} groups"
    )
    require(w.shape[0] % d.groups == 0, f"{w.shape[0]} output channels in {d.groups} groups")
    require(min(*strides, *dilations, d.groups) > 0, "strides, dilation rates and groups are at least 1")
    pads = paddings(d.paddingStyle, list(x.shape[2:]), list(w.shape[2:]), strides, dilations, _explicit(d, spatial))
    convolve = F.conv2d if spatial == 2 else F.conv3d
    y = convolve(F.pad(x, _widths(pads)), w, stride=strides, dilation=dilations, groups=d.groups)
    return _back(y, d.dataLayout, DATA, standard)


@operation("convolution2DWithSourceTensor:weightsTensor:descriptor:name:")
def convolution_2d(source: Tensor, weights: Tensor, descriptor: Convolution2D) -> Tensor:
    return _convolution(source, weights, descriptor, 2)


@operation("convolution3DWithSourceTensor:weightsTensor:descriptor:name:")
def convolution_3d(source: Tensor, weights: Tensor, descriptor: Convolution3D) -> Tensor:
    return _convolution(source, weights, descriptor, 3)


def _pooling(d: Properties) -> tuple[list[int], list[int], list[int]]:
    """Kernel, strides and dilations, height before width."""
    return (
        [d.kernelHeight, d.kernelWidth],
        [d.strideInY, d.strideInX],
        [d.dilationRateInY, d.dilationRateInX],
    )


def _pooling_pads(x: Tensor, d: Properties) -> list[tuple[int, int]]:
    kernel, strides, dilations = _pooling(d)
    require(min(*kernel, *strides, *dilations) > 0, "kernel, strides and dilation rates are at least 1")
    return paddings(d.paddingStyle, list(x.shape[2:]), kernel, strides, dilations, _explicit(d, 2))


@operation("maxPooling2DWithSourceTensor:descriptor:name:")
def max_pooling(source: Tensor, descriptor: Pooling2D) -> Tensor:
    floating(source)
    x = _from(source, descriptor.dataLayout, DATA, "NCHW")
    kernel, strides, dilations = _pooling(descriptor)
    padded = F.pad(x, _widths(_pooling_pads(x, descriptor)), value=-math.inf)
    y = F.max_pool2d(padded, kernel, strides, dilation=dilations, ceil_mode=descriptor.ceilMode)
    return _back(y, descriptor.dataLayout, DATA, "NCHW")


@operation("avgPooling2DWithSourceTensor:descriptor:name:")
def average_pooling(source: Tensor, descriptor: Pooling2D) -> Tensor:
    """Over the values inside the picture; over zeros of the padding as well with includeZeroPadToAverage."""
    floating(source)
    kernel, strides, dilations = _pooling(descriptor)
    if dilations != [1, 1] or descriptor.ceilMode:
        raise NotSimulated("average pooling with dilation or in ceil mode is not simulated")
    x = _from(source, descriptor.dataLayout, DATA, "NCHW")
    widths = _widths(_pooling_pads(x, descriptor))
    y = F.avg_pool2d(F.pad(x, widths), kernel, strides)
    if not descriptor.includeZeroPadToAverage:
        y = y / F.avg_pool2d(F.pad(torch.ones_like(x), widths), kernel, strides)
    return _back(y, descriptor.dataLayout, DATA, "NCHW")


@operation("normalizationWithTensor:meanTensor:varianceTensor:gammaTensor:betaTensor:epsilon:name:")
def normalization(
    tensor: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor | None, beta: Tensor | None, epsilon: float
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta"""
    floating(*(each for each in (tensor, mean, variance, gamma, beta) if each is not None))
    y = (tensor - mean) * torch.rsqrt(variance + epsilon)
    y = y if gamma is None else y * gamma
    y = y if beta is None else y + beta
    require(y.shape == tensor.shape, "mean, variance, gamma and beta are broadcast to the tensor, and not it to them")
    return y


@operation("scaledDotProductAttentionWithQueryTensor:keyTensor:valueTensor:maskTensor:scale:name:")
def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value"""
    floating(query, key, value)
    weights = query @ key.transpose(-1, -2) * scale
    return torch.softmax(weights if mask is None else weights + mask, -1) @ value


@operation("scaledDotProductAttentionWithQueryTensor:keyTensor:valueTensor:scale:name:")
def attention_without_mask(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return attention(query, key, value, None, scale)


@operation("inverseOfTensor:name:")
def inverse(tensor: Tensor) -> Tensor:
    floating(tensor)
    return torch.linalg.inv_ex(tensor).inverse
