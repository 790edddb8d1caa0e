"""Gather and scatter: values picked and put by index."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metalsim.graph.errors import NotSimulated
from metalsim.graph.operations.registry import Shape, axis_of, operation, require, same_dtype

# MPSGraphScatterMode
ADD, SUBTRACT, MULTIPLY, DIVIDE, MINIMUM, MAXIMUM, SET = range(7)
REDUCTIONS = {ADD: "sum", SUBTRACT: "sum", MULTIPLY: "prod", DIVIDE: "prod", MINIMUM: "amin", MAXIMUM: "amax"}


def _indices(indices: Tensor, size: int) -> Tensor:
    """Whole numbers from 0. Out of range they are an error here; what a Mac does with them is not known."""
    whole = not indices.is_floating_point() and indices.dtype != torch.bool
    require(whole, f"indices are whole numbers, not {indices.dtype}")
    positions = indices.long()
    if positions.numel() and (int(positions.min()) < 0 or int(positions.max()) >= size):
        raise NotSimulated(f"an index is outside 0 to {size - 1}; what a Mac then does is not simulated")
    return positions


@operation("gatherAlongAxis:withUpdatesTensor:indicesTensor:name:")
def gather_along(axis: int, values: Tensor, indices: Tensor) -> Tensor:
    axis = axis_of(values, axis)
    return torch.gather(values, axis, _indices(indices, values.shape[axis]))


@operation("gatherWithUpdatesTensor:indicesTensor:axis:batchDimensions:name:")
def gather(values: Tensor, indices: Tensor, axis: int, batch: int) -> Tensor:
    axis = axis_of(values, axis)
    require(batch <= axis and batch <= indices.ndim, f"{batch} batch dimensions, axis {axis}")
    require(values.shape[:batch] == indices.shape[:batch], "the batch dimensions of values and indices differ")
    positions = _indices(indices, values.shape[axis])
    if batch:
        rows = [gather(one, at, axis - 1, batch - 1) for one, at in zip(values, positions, strict=True)]
        return torch.stack(rows)
    picked = values.index_select(axis, positions.flatten())
    return picked.reshape(*values.shape[:axis], *indices.shape, *values.shape[axis + 1 :])


@operation("gatherNDWithUpdatesTensor:indicesTensor:batchDimensions:name:")
def gather_nd(values: Tensor, indices: Tensor, batch: int) -> Tensor:
    if batch:
        require(values.shape[:1] == indices.shape[:1], "the batch dimensions of values and indices differ")
        return torch.stack([gather_nd(one, at, batch - 1) for one, at in zip(values, indices, strict=True)])
    flat, rest = _flat_positions(indices, tuple(values.shape))
    return values.reshape(-1, *rest)[flat.flatten()].reshape(*indices.shape[:-1], *rest)


def _flat_positions(indices: Tensor, shape: Shape) -> tuple[Tensor, Shape]:
    """Index vectors (..., K) as positions in the first K dimensions laid flat, and the dimensions that remain."""
    depth = indices.shape[-1]
    require(0 < depth <= len(shape), f"index vectors of {depth} numbers into {len(shape)} dimensions")
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64)
    for axis in range(depth):
        flat = flat * shape[axis] + _indices(indices[..., axis], shape[axis])
    return flat, shape[depth:]


def _change(updates: Tensor, mode: int) -> Tensor:
    """What is added or multiplied, for the modes that subtract and divide as well."""
    require(mode in REDUCTIONS, f"there is no MPSGraphScatterMode {mode}")
    return {SUBTRACT: torch.neg, DIVIDE: torch.reciprocal}.get(mode, torch.clone)(updates)


def _put(data: Tensor, positions: Tensor, updates: Tensor, mode: int) -> Tensor:
    """Rows of (P, R) changed by rows of (Q, R), the positions of which are (Q,)."""
    rows = positions.unsqueeze(1).expand_as(updates)
    return scatter_along(0, data, updates, rows, mode)


@operation("scatterNDWithDataTensor:updatesTensor:indicesTensor:batchDimensions:mode:name:")
def scatter_nd(data: Tensor, updates: Tensor, indices: Tensor, batch: int, mode: int) -> Tensor:
    if batch:
        rows = zip(data, updates, indices, strict=True)
        return torch.stack([scatter_nd(*row, batch - 1, mode) for row in rows])
    flat, rest = _flat_positions(indices, tuple(data.shape))
    wanted = (*indices.shape[:-1], *rest)
    require(tuple(updates.shape) == wanted, f"updates are {list(updates.shape)}, the indices want {list(wanted)}")
    width = math.prod(rest)
    changed = _put(data.reshape(-1, width), flat.flatten(), updates.reshape(-1, width), mode)
    return changed.reshape(data.shape)


@operation("scatterNDWithUpdatesTensor:indicesTensor:shape:batchDimensions:mode:name:")
def scatter_nd_into_zeros(updates: Tensor, indices: Tensor, shape: Shape, batch: int, mode: int) -> Tensor:
    return scatter_nd(torch.zeros(shape, dtype=updates.dtype), updates, indices, batch, mode)


@operation("scatterNDWithUpdatesTensor:indicesTensor:shape:batchDimensions:name:")
def scatter_nd_added(updates: Tensor, indices: Tensor, shape: Shape, batch: int) -> Tensor:
    return scatter_nd_into_zeros(updates, indices, shape, batch, ADD)


@operation("scatterWithDataTensor:updatesTensor:indicesTensor:axis:mode:name:")
def scatter(data: Tensor, updates: Tensor, indices: Tensor, axis: int, mode: int) -> Tensor:
    """Slices along an axis, one for each index."""
    axis = axis_of(data, axis)
    require(indices.ndim == 1, f"one index for each slice, not a tensor of {indices.ndim} dimensions")
    front = data.movedim(axis, 0)
    slices = updates.movedim(axis, 0)
    fits = slices.shape[1:] == front.shape[1:] and slices.shape[0] == len(indices)
    require(fits, "updates do not fit data and indices")
    positions = _indices(indices, front.shape[0])
    return (
        _put(front.reshape(len(front), -1), positions, slices.reshape(len(slices), -1), mode)
        .reshape(front.shape)
        .movedim(0, axis)
    )


@operation("scatterAlongAxis:withDataTensor:updatesTensor:indicesTensor:mode:name:")
def scatter_along(axis: int, data: Tensor, updates: Tensor, indices: Tensor, mode: int) -> Tensor:
    same_dtype(data, updates)
    axis = axis_of(data, axis)
    require(updates.shape == indices.shape, f"updates {list(updates.shape)} and indices {list(indices.shape)}")
    positions = _indices(indices, data.shape[axis])
    if mode == SET:
        return data.scatter(axis, positions, updates)
    return data.scatter_reduce(axis, positions, _change(updates, mode), REDUCTIONS[mode])


@operation("scatterAlongAxis:withUpdatesTensor:indicesTensor:shape:mode:name:")
def scatter_along_into_zeros(axis: int, updates: Tensor, indices: Tensor, shape: Shape, mode: int) -> Tensor:
    return scatter_along(axis, torch.zeros(shape, dtype=updates.dtype), updates, indices, mode)
