"""Operations that move values about: reshape, transpose, slice, pad, concatenate and the like."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from metalsim.graph.errors import NotSimulated
from metalsim.graph.operations.registry import (
    AnyShape,
    Shape,
    Tensors,
    axes_of,
    axis_of,
    operation,
    require,
    same_dtype,
)

# MPSGraphPaddingMode
CONSTANT, REFLECT, SYMMETRIC, CLAMP, ZERO, PERIODIC, ANTIPERIODIC = range(7)


@operation("reshapeTensor:withShape:name:")
def reshape(tensor: Tensor, shape: Shape) -> Tensor:
    return tensor.reshape(shape).clone()


@operation("transposeTensor:dimension:withDimension:name:")
def transpose(tensor: Tensor, first: int, second: int) -> Tensor:
    return tensor.transpose(axis_of(tensor, first), axis_of(tensor, second))


@operation("transposeTensor:permutation:name:")
def permute(tensor: Tensor, permutation: Shape) -> Tensor:
    require(len(permutation) == tensor.ndim, f"permutation {list(permutation)} of {tensor.ndim} dimensions")
    return tensor.permute(axes_of(tensor, permutation))


@operation("expandDimsOfTensor:axis:name:")
def expand_dimension(tensor: Tensor, axis: int) -> Tensor:
    return tensor.unsqueeze(axis)


@operation("expandDimsOfTensor:axes:name:")
def expand_dimensions(tensor: Tensor, axes: Shape) -> Tensor:
    rank = tensor.ndim + len(axes)
    require(all(-rank <= axis < rank for axis in axes), f"axes {list(axes)} of a result of {rank} dimensions")
    inserted = {axis % rank for axis in axes}
    require(len(inserted) == len(axes), f"axes {list(axes)} name one twice")
    sizes = iter(tensor.shape)
    return tensor.reshape([1 if axis in inserted else next(sizes) for axis in range(rank)])


def _squeezed(tensor: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        require(tensor.shape[axis] == 1, f"dimension {axis} has {tensor.shape[axis]} positions, and not 1")
    return tensor.reshape([size for axis, size in enumerate(tensor.shape) if axis not in axes])


@operation("squeezeTensor:name:")
def squeeze_all(tensor: Tensor) -> Tensor:
    return tensor.squeeze()


@operation("squeezeTensor:axis:name:")
def squeeze_one(tensor: Tensor, axis: int) -> Tensor:
    return _squeezed(tensor, [axis_of(tensor, axis)])


@operation("squeezeTensor:axes:name:")
def squeeze(tensor: Tensor, axes: AnyShape) -> Tensor:
    return squeeze_all(tensor) if axes is None else _squeezed(tensor, axes_of(tensor, axes))


@operation("flatten2DTensor:axis:name:")
def flatten(tensor: Tensor, axis: int) -> Tensor:
    require(-tensor.ndim <= axis <= tensor.ndim, f"axis {axis} of a tensor of {tensor.ndim} dimensions")
    axis += tensor.ndim if axis < 0 else 0
    return tensor.reshape(math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:]))


@operation("broadcastTensor:toShape:name:")
def broadcast(tensor: Tensor, shape: Shape) -> Tensor:
    return tensor.broadcast_to(shape).contiguous()


@operation("tileTensor:withMultiplier:name:")
def tile(tensor: Tensor, multiplier: Shape) -> Tensor:
    require(len(multiplier) == tensor.ndim, f"multiplier {list(multiplier)} of a tensor of {tensor.ndim} dimensions")
    return tensor.repeat(multiplier)


@operation("concatTensors:dimension:name:")
def concatenate(tensors: Tensors, dimension: int) -> Tensor:
    require(tensors, "needs one tensor at least")
    same_dtype(*tensors)
    return torch.cat(list(tensors), axis_of(tensors[0], dimension))


@operation("concatTensor:withTensor:dimension:name:")
def concatenate_two(first: Tensor, second: Tensor, dimension: int) -> Tensor:
    return concatenate([first, second], dimension)


@operation("concatTensors:dimension:interleave:name:")
def interleave(tensors: Tensors, dimension: int, interleave: bool) -> Tensor:
    if not interleave:
        return concatenate(tensors, dimension)
    same_dtype(*tensors)
    axis = axis_of(tensors[0], dimension)
    return torch.stack(list(tensors), axis + 1).flatten(axis, axis + 1)


@operation("stackTensors:axis:name:")
def stack(tensors: Tensors, axis: int) -> Tensor:
    require(tensors, "needs one tensor at least")
    same_dtype(*tensors)
    return torch.stack(list(tensors), axis)


@operation("splitTensor:numSplits:axis:name:")
def split_evenly(tensor: Tensor, count: int, axis: int) -> Tensors:
    axis = axis_of(tensor, axis)
    size = tensor.shape[axis]
    require(count > 0 and size % count == 0, f"{size} positions cannot be split into {count} equal parts")
    return list(tensor.split(size // count, axis))


@operation("splitTensor:splitSizes:axis:name:")
def split(tensor: Tensor, sizes: Shape, axis: int) -> Tensors:
    return list(tensor.split(list(sizes), axis_of(tensor, axis)))


@operation("reverseTensor:axes:name:")
def reverse(tensor: Tensor, axes: AnyShape) -> Tensor:
    return tensor.flip(axes_of(tensor, axes))


@operation("reverseTensor:name:")
def reverse_all(tensor: Tensor) -> Tensor:
    return tensor.flip(axes_of(tensor, None))


@operation("sliceTensor:dimension:start:length:name:")
def slice_one(tensor: Tensor, dimension: int, start: int, length: int) -> Tensor:
    axis = axis_of(tensor, dimension)
    size = tensor.shape[axis]
    start += size if start < 0 else 0
    require(start >= 0 and length >= 0 and start + length <= size, f"positions {start} to {start + length} of {size}")
    return tensor.narrow(axis, start, length)


@operation("sliceTensor:starts:ends:strides:name:")
def slice_strided(tensor: Tensor, starts: Shape, ends: Shape, strides: Shape) -> Tensor:
    return slice_masked(tensor, starts, ends, strides, 0, 0, 0)


@operation("sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:")
def slice_masked(
    tensor: Tensor, starts: Shape, ends: Shape, strides: Shape, start_mask: int, end_mask: int, squeeze_mask: int
) -> Tensor:
    """As in NumPy, bits of the masks standing for dimensions: no start, no end, one position that disappears."""
    for given in (starts, ends, strides):
        require(len(given) == tensor.ndim, f"{list(given)} for a tensor of {tensor.ndim} dimensions")
    require(all(strides), f"strides {list(strides)}")
    squeezed = []
    for axis, (start, end, stride) in enumerate(zip(starts, ends, strides, strict=True)):
        size = tensor.shape[axis]
        if squeeze_mask >> axis & 1:
            position = start + size if start < 0 else start
            require(0 <= position < size, f"position {start} of dimension {axis}, which has {size}")
            tensor = tensor.narrow(axis, position, 1)
            squeezed.append(axis)
            continue
        bounds = slice(None if start_mask >> axis & 1 else start, None if end_mask >> axis & 1 else end, stride)
        positions = range(size)[bounds]
        tensor = _picked(tensor, axis, torch.tensor(list(positions), dtype=torch.int64))
    return _squeezed(tensor, squeezed)


def _picked(tensor: Tensor, axis: int, positions: Tensor) -> Tensor:
    return tensor.index_select(axis, positions.to(tensor.device))


@operation("padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:name:")
def pad(tensor: Tensor, mode: int, left: Shape, right: Shape, value: float) -> Tensor:
    require(
        len(left) == len(right) == tensor.ndim, f"paddings {list(left)} and {list(right)} of {tensor.ndim} dimensions"
    )
    if mode in (CONSTANT, ZERO):
        widths = [width for axis in reversed(range(tensor.ndim)) for width in (left[axis], right[axis])]
        return F.pad(tensor, widths, value=value if mode == CONSTANT else 0.0)
    require(min(*left, *right, 0) == 0, "negative paddings are for the constant mode")
    for axis, (before, after) in enumerate(zip(left, right, strict=True)):
        if before or after:
            positions = torch.arange(-before, tensor.shape[axis] + after)
            tensor = _picked(tensor, axis, mapped(positions, tensor.shape[axis], mode))
    return tensor


def mapped(positions: Tensor, size: int, mode: int) -> Tensor:
    """Positions outside 0 .. size - 1 as positions inside, by MPSGraphPaddingMode."""
    if mode == CLAMP:
        return positions.clamp(0, size - 1)
    if mode == PERIODIC:
        return positions % size
    if mode == SYMMETRIC:  # 1 0 | 0 1 2 | 2 1
        positions = positions % (2 * size)
        return torch.where(positions < size, positions, 2 * size - 1 - positions)
    if mode == REFLECT:  # 2 1 | 0 1 2 | 1 0
        period = max(2 * (size - 1), 1)
        positions = positions % period
        return torch.where(positions < size, positions, period - positions)
    raise NotSimulated(
        f"MPSGraphPaddingMode {mode} is not simulated; constant, zero, reflect, symmetric, clamp, periodic are"
    )


@operation("oneHotWithIndicesTensor:depth:axis:dataType:onValue:offValue:name:")
def one_hot(indices: Tensor, depth: int, axis: int, dtype: torch.dtype, on: float, off: float) -> Tensor:
    require(not indices.is_floating_point(), "indices are whole numbers")
    positions = torch.arange(depth, device=indices.device).view([depth] + [1] * (indices.ndim - axis))
    hot = indices.long().unsqueeze(axis) == positions
    values = [torch.tensor(value, dtype=dtype, device=indices.device) for value in (on, off)]
    return torch.where(hot, *values)


@operation("oneHotWithIndicesTensor:depth:name:")
def one_hot_plain(indices: Tensor, depth: int) -> Tensor:
    return one_hot(indices, depth, indices.ndim, torch.float32, 1.0, 0.0)


@operation("oneHotWithIndicesTensor:depth:dataType:name:")
def one_hot_typed(indices: Tensor, depth: int, dtype: torch.dtype) -> Tensor:
    return one_hot(indices, depth, indices.ndim, dtype, 1.0, 0.0)


@operation("depthToSpace2DTensor:widthAxis:heightAxis:depthAxis:blockSize:usePixelShuffleOrder:name:")
def depth_to_space(
    tensor: Tensor, width_axis: int, height_axis: int, depth_axis: int, block: int, pixel_shuffle: bool
) -> Tensor:
    nchw, back = _as_nchw(tensor, width_axis, height_axis, depth_axis)
    n, c, h, w = nchw.shape
    require(block > 0 and c % block**2 == 0, f"{c} channels cannot be laid out in blocks of {block} x {block}")
    if pixel_shuffle:  # the channel is the slow part, as in PyTorch
        parts = nchw.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    else:  # the place in the block is the slow part, as in TensorFlow
        parts = nchw.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block).permute(back)


@operation("spaceToDepth2DTensor:widthAxis:heightAxis:depthAxis:blockSize:usePixelShuffleOrder:name:")
def space_to_depth(
    tensor: Tensor, width_axis: int, height_axis: int, depth_axis: int, block: int, pixel_shuffle: bool
) -> Tensor:
    nchw, back = _as_nchw(tensor, width_axis, height_axis, depth_axis)
    n, c, h, w = nchw.shape
    require(block > 0 and h % block == 0 == w % block, f"{h} x {w} cannot be cut into blocks of {block} x {block}")
    parts = nchw.reshape(n, c, h // block, block, w // block, block)
    order = (0, 1, 3, 5, 2, 4) if pixel_shuffle else (0, 3, 5, 1, 2, 4)
    return parts.permute(order).reshape(n, c * block**2, h // block, w // block).permute(back)


def _as_nchw(tensor: Tensor, width: int, height: int, depth: int) -> tuple[Tensor, list[int]]:
    """The tensor as batch, channels, height, width, and the permutation that leads back."""
    require(tensor.ndim == 4, f"needs 4 dimensions, not {tensor.ndim}")
    axes = axes_of(tensor, [depth, height, width])
    batch = ({0, 1, 2, 3} - set(axes)).pop()
    order = [batch, *axes]
    return tensor.permute(order), [order.index(axis) for axis in range(4)]


@operation("bandPartWithTensor:numLower:numUpper:name:")
def band_part(tensor: Tensor, lower: int, upper: int) -> Tensor:
    """Keeps so many diagonals below and above the main one; all of them for a negative number."""
    require(tensor.ndim >= 2, "needs matrices")
    kept = tensor if lower < 0 else tensor.triu(-lower)
    return kept.clone() if upper < 0 else kept.tril(upper)


@operation("coordinateAlongAxis:withShape:name:")
def coordinate(axis: int, shape: Shape) -> Tensor:
    require(-len(shape) <= axis < len(shape), f"axis {axis} of shape {list(shape)}")
    positions = torch.arange(shape[axis], dtype=torch.int32)
    return positions.view([-1 if i == axis % len(shape) else 1 for i in range(len(shape))]).expand(shape)


@operation("shapeOfTensor:name:")
def shape_of(tensor: Tensor) -> Tensor:
    return torch.tensor(tensor.shape, dtype=torch.int32)
