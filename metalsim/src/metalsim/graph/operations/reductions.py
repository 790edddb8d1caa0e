"""Reductions, sorting and cumulative operations. A reduced dimension stays, with one position."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from metalsim.graph.operations.registry import (
    AnyShape,
    Tensors,
    axes_of,
    axis_of,
    floating,
    operation,
    require,
)


def _sum(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes, keepdim=True, dtype=x.dtype)


def _product(x: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        x = x.prod(axis, keepdim=True, dtype=x.dtype)
    return x


def _ignoring_nan(
    reduce: Callable[[Tensor, list[int]], Tensor], largest: bool
) -> Callable[[Tensor, list[int]], Tensor]:
    def apply(x: Tensor, axes: list[int]) -> Tensor:
        if not x.is_floating_point():
            return reduce(x, axes)
        nan = torch.isnan(x)
        reduced = reduce(torch.where(nan, torch.full_like(x, -math.inf if largest else math.inf), x), axes)
        return torch.where(_all(nan, axes), math.nan, reduced)

    return apply


def _maximum(x: Tensor, axes: list[int]) -> Tensor:
    return x.amax(axes, keepdim=True)


def _minimum(x: Tensor, axes: list[int]) -> Tensor:
    return x.amin(axes, keepdim=True)


def _all(x: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        x = x.all(axis, keepdim=True)
    return x


def _any(x: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        x = x.any(axis, keepdim=True)
    return x


def _reduction(stem: str, reduce: Callable[[Tensor, list[int]], Tensor], of_truth: bool = False) -> None:
    def along_axes(tensor: Tensor, axes: AnyShape) -> Tensor:
        if of_truth:
            require(tensor.dtype == torch.bool, f"reduces truth values, not {tensor.dtype}")
        else:
            require(tensor.dtype != torch.bool, "reduces numbers, not truth values")
        chosen = axes_of(tensor, axes)
        return reduce(tensor, chosen) if chosen else tensor.clone()

    def along_axis(tensor: Tensor, axis: int) -> Tensor:
        return along_axes(tensor, (axis,))

    operation(f"{stem}WithTensor:axes:name:")(along_axes)
    operation(f"{stem}WithTensor:axis:name:")(along_axis)


_reduction("reductionSum", _sum)
_reduction("reductionProduct", _product)
_reduction("reductionMaximum", _ignoring_nan(_maximum, largest=True))
_reduction("reductionMinimum", _ignoring_nan(_minimum, largest=False))
_reduction("reductionMaximumPropagateNaN", _maximum)
_reduction("reductionMinimumPropagateNaN", _minimum)
_reduction("reductionAnd", _all, of_truth=True)
_reduction("reductionOr", _any, of_truth=True)


@operation("reductionArgMaximumWithTensor:axis:name:")
def arg_maximum(tensor: Tensor, axis: int) -> Tensor:
    return tensor.argmax(axis_of(tensor, axis), keepdim=True).to(torch.int32)


@operation("reductionArgMinimumWithTensor:axis:name:")
def arg_minimum(tensor: Tensor, axis: int) -> Tensor:
    return tensor.argmin(axis_of(tensor, axis), keepdim=True).to(torch.int32)


@operation("meanOfTensor:axes:name:")
def mean(tensor: Tensor, axes: AnyShape) -> Tensor:
    floating(tensor)
    return tensor.mean(axes_of(tensor, axes), keepdim=True)


@operation("varianceOfTensor:axes:name:")
def variance(tensor: Tensor, axes: AnyShape) -> Tensor:
    """The mean squared distance from the mean, without Bessel's correction."""
    floating(tensor)
    return tensor.var(axes_of(tensor, axes), keepdim=True, correction=0)


@operation("varianceOfTensor:meanTensor:axes:name:")
def variance_about(tensor: Tensor, mean: Tensor, axes: AnyShape) -> Tensor:
    floating(tensor, mean)
    return (tensor - mean).square().mean(axes_of(tensor, axes), keepdim=True)


# ---- sorting


@operation("sortWithTensor:axis:descending:name:")
def sort(tensor: Tensor, axis: int, descending: bool) -> Tensor:
    return torch.sort(tensor, dim=axis_of(tensor, axis), descending=descending, stable=True).values


@operation("sortWithTensor:axis:name:")
def sort_ascending(tensor: Tensor, axis: int) -> Tensor:
    return sort(tensor, axis, False)


@operation("argSortWithTensor:axis:descending:name:")
def arg_sort(tensor: Tensor, axis: int, descending: bool) -> Tensor:
    return torch.sort(tensor, dim=axis_of(tensor, axis), descending=descending, stable=True).indices.to(torch.int32)


@operation("argSortWithTensor:axis:name:")
def arg_sort_ascending(tensor: Tensor, axis: int) -> Tensor:
    return arg_sort(tensor, axis, False)


def _extremes(tensor: Tensor, axis: int, k: int, largest: bool) -> Tensors:
    axis = axis_of(tensor, axis)
    require(0 < k <= tensor.shape[axis], f"{k} values of {tensor.shape[axis]}")
    values, indices = torch.sort(tensor, dim=axis, descending=largest, stable=True)
    return [values.narrow(axis, 0, k), indices.narrow(axis, 0, k).to(torch.int32)]


@operation("topKWithSourceTensor:axis:k:name:")
def top_k(source: Tensor, axis: int, k: int) -> Tensors:
    """The values and where they were."""
    return _extremes(source, axis, k, largest=True)


@operation("topKWithSourceTensor:k:name:")
def top_k_of_rows(source: Tensor, k: int) -> Tensors:
    return _extremes(source, -1, k, largest=True)


@operation("bottomKWithSourceTensor:axis:k:name:")
def bottom_k(source: Tensor, axis: int, k: int) -> Tensors:
    return _extremes(source, axis, k, largest=False)


# ---- cumulative operations


def _limits(x: Tensor) -> torch.finfo | torch.iinfo:
    return torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)


def _cumulative(stem: str, scan: Callable[[Tensor, int], Tensor], start: Callable[[Tensor], float]) -> None:
    def apply(tensor: Tensor, axis: int, exclusive: bool, reverse: bool) -> Tensor:
        require(tensor.dtype != torch.bool and not tensor.is_complex(), f"is not defined for {tensor.dtype}")
        axis = axis_of(tensor, axis)
        x = tensor.flip(axis) if reverse else tensor
        if exclusive and x.shape[axis]:  # the neutral value first, and the last one left out
            first = torch.full_like(x.narrow(axis, 0, 1), start(x))
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        y = scan(x, axis)
        return y.flip(axis) if reverse else y

    def plain(tensor: Tensor, axis: int) -> Tensor:
        return apply(tensor, axis, False, False)

    operation(f"{stem}WithTensor:axis:exclusive:reverse:name:")(apply)
    operation(f"{stem}WithTensor:axis:name:")(plain)


_cumulative("cumulativeSum", lambda x, axis: x.cumsum(axis, dtype=x.dtype), lambda x: 0)
_cumulative("cumulativeProduct", lambda x, axis: x.cumprod(axis, dtype=x.dtype), lambda x: 1)
_cumulative("cumulativeMaximum", lambda x, axis: x.cummax(axis).values, lambda x: _limits(x).min)
_cumulative("cumulativeMinimum", lambda x, axis: x.cummin(axis).values, lambda x: _limits(x).max)


@operation("softMaxCrossEntropyWithSourceTensor:labelsTensor:axis:reductionType:name:")
def cross_entropy(source: Tensor, labels: Tensor, axis: int, reduction: int) -> Tensor:
    """-sum(labels * log(softmax(source))); reduction none 0, sum 1, mean 2."""
    floating(source, labels)
    require(source.shape == labels.shape, f"source {list(source.shape)} and labels {list(labels.shape)}")
    loss = -(labels * torch.log_softmax(source, axis_of(source, axis))).sum(axis, keepdim=True)
    require(reduction in (0, 1, 2), f"there is no MPSGraphLossReductionType {reduction}")
    return {0: loss, 1: loss.sum().reshape(1), 2: loss.mean().reshape(1)}[reduction]
