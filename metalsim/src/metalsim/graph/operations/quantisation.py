"""Quantise and dequantise: q = round(x / scale) + zero point, and x = (q - zero point) * scale."""

from __future__ import annotations

import torch
from torch import Tensor

from metalsim.graph.errors import NotSimulated
from metalsim.graph.operations.registry import axis_of, operation, require

QUANTISED = (torch.int8, torch.uint8)


def _quantised(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | float, dtype: torch.dtype, axis: int = 0
) -> Tensor:
    """Saturated to the data type; halves are rounded to even. Scales and zero points in tensors are along an axis."""
    require(x.is_floating_point(), f"quantises floating point numbers, not {x.dtype}")
    require(dtype in QUANTISED, f"quantises to int8 or uint8, not {dtype}")
    _checked(x.dtype, scale, zero_point, dtype)
    limits = torch.iinfo(dtype)
    steps = torch.round(x.float() / _along(x, scale, axis, "the scale"))
    steps += _along(x, zero_point, axis, "the zero point")
    return torch.nan_to_num(steps, nan=0.0).clamp(limits.min, limits.max).to(dtype)


def _dequantised(
    q: Tensor, scale: Tensor | float, zero_point: Tensor | float, dtype: torch.dtype, axis: int = 0
) -> Tensor:
    require(q.dtype in QUANTISED, f"dequantises int8 or uint8, not {q.dtype}")
    require(dtype.is_floating_point, f"dequantises to floating point numbers, not {dtype}")
    _checked(dtype, scale, zero_point, q.dtype)
    steps = q.float() - _along(q, zero_point, axis, "the zero point")
    return (steps * _along(q, scale, axis, "the scale")).to(dtype)


def _checked(real: torch.dtype, scale: Tensor | float, zero_point: Tensor | float, quantised: torch.dtype) -> None:
    """The scale is of the real type, the zero point is converted to the quantised one."""
    if isinstance(scale, Tensor):
        require(scale.dtype == real, f"the scale is {scale.dtype}, the numbers are {real}: they must be one type")
    else:
        require(scale > 0, f"the scale is {scale:g}; it must be above 0")
    limits = torch.iinfo(quantised)
    if not isinstance(zero_point, Tensor) and zero_point not in range(limits.min, limits.max + 1):
        raise NotSimulated(
            f"a zero point of {zero_point:g}, which a Mac converts to {quantised} somehow: "
            f"give a whole number from {limits.min} to {limits.max}"
        )


def _along(tensor: Tensor, values: Tensor | float, axis: int, what: str) -> Tensor | float:
    """One number for everything, or one for each position of an axis: in float32, to be broadcast to the tensor."""
    if not isinstance(values, Tensor):
        return values
    axis = axis_of(tensor, axis)
    require(values.ndim <= 1, f"{what} has {values.ndim} dimensions; it has one value for each position of the axis")
    if values.ndim == 0:
        return values.float()
    size = tensor.shape[axis]
    require(
        values.shape[0] == size, f"{what} has {values.shape[0]} values, the tensor {size} positions along axis {axis}"
    )
    shape = [1] * tensor.ndim
    shape[axis] = size
    return values.float().view(shape)


@operation("quantizeTensor:scale:zeroPoint:dataType:name:")
def quantize(tensor: Tensor, scale: float, zero_point: float, dtype: torch.dtype) -> Tensor:
    return _quantised(tensor, scale, zero_point, dtype)


@operation("dequantizeTensor:scale:zeroPoint:dataType:name:")
def dequantize(tensor: Tensor, scale: float, zero_point: float, dtype: torch.dtype) -> Tensor:
    return _dequantised(tensor, scale, zero_point, dtype)


@operation("quantizeTensor:scaleTensor:zeroPoint:dataType:axis:name:")
def quantize_per_axis(tensor: Tensor, scale: Tensor, zero_point: float, dtype: torch.dtype, axis: int) -> Tensor:
    return _quantised(tensor, scale, zero_point, dtype, axis)


@operation("dequantizeTensor:scaleTensor:zeroPoint:dataType:axis:name:")
def dequantize_per_axis(tensor: Tensor, scale: Tensor, zero_point: float, dtype: torch.dtype, axis: int) -> Tensor:
    return _dequantised(tensor, scale, zero_point, dtype, axis)


@operation("quantizeTensor:scaleTensor:zeroPointTensor:dataType:axis:name:")
def quantize_by_tensors(tensor: Tensor, scale: Tensor, zero_point: Tensor, dtype: torch.dtype, axis: int) -> Tensor:
    return _quantised(tensor, scale, zero_point, dtype, axis)


@operation("dequantizeTensor:scaleTensor:zeroPointTensor:dataType:axis:name:")
def dequantize_by_tensors(tensor: Tensor, scale: Tensor, zero_point: Tensor, dtype: torch.dtype, axis: int) -> Tensor:
    return _dequantised(tensor, scale, zero_point, dtype, axis)
