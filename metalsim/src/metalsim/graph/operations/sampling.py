"""Grid sampling and resizing: values between pixels, and outside of the picture."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metalsim.graph.errors import NotSimulated
from metalsim.graph.operations.registry import Shape, floating, operation, require
from metalsim.graph.operations.shapes import CLAMP, CONSTANT, REFLECT, SYMMETRIC, ZERO, mapped

# MPSGraphResizeMode
NEAREST, BILINEAR = range(2)
LAYOUTS = {0: "NCHW", 1: "NHWC", 4: "CHW", 5: "HWC", 6: "HW"}


def _even(x: Tensor) -> Tensor:
    return torch.round(x)


def _odd(x: Tensor) -> Tensor:
    """To the nearest whole number, halves to the odd one."""
    halves = x - torch.floor(x) == 0.5
    return torch.where(halves, 2 * torch.floor(x / 2) + 1, torch.round(x))


# MPSGraphResizeNearestRoundingMode: prefer ceil, prefer floor, ceil, floor, to even, to odd
ROUNDING: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: torch.floor(x + 0.5),
    lambda x: torch.ceil(x - 0.5),
    torch.ceil,
    torch.floor,
    _even,
    _odd,
)


def _to_nchw(tensor: Tensor, layout: int) -> Tensor:
    """A picture as batch, channels, height, width."""
    name = LAYOUTS.get(layout)
    require(name is not None, f"MPSGraphTensorNamedDataLayout {layout} is none of a picture")
    require(tensor.ndim == len(name), f"{name} has {len(name)} dimensions, the tensor {tensor.ndim}")
    tensor = tensor.permute([name.index(letter) for letter in "NCHW" if letter in name])
    while tensor.ndim < 4:
        tensor = tensor.unsqueeze(0)
    return tensor


def _from_nchw(tensor: Tensor, layout: int) -> Tensor:
    name = LAYOUTS[layout]
    kept = [letter for letter in "NCHW" if letter in name]
    tensor = tensor.reshape(tensor.shape[4 - len(name) :])
    return tensor.permute([kept.index(letter) for letter in name]).contiguous()


def _at(x: Tensor, rows: Tensor, columns: Tensor, padding: int, value: float) -> Tensor:
    """Pixels of (N, C, H, W) at whole rows and columns (N, h, w), which may lie outside: (N, C, h, w)."""
    n, channels, height, width = x.shape
    outside = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)
    mode = CLAMP if padding in (CONSTANT, ZERO) else padding
    positions = mapped(rows, height, mode) * width + mapped(columns, width, mode)
    picked = x.flatten(2).gather(2, positions.flatten(1).unsqueeze(1).expand(n, channels, -1))
    picked = picked.view(n, channels, *rows.shape[1:])
    if padding not in (CONSTANT, ZERO):
        return picked
    return torch.where(outside.unsqueeze(1), torch.full_like(picked, value if padding == CONSTANT else 0.0), picked)


def _bilinear(x: Tensor, y_at: Tensor, x_at: Tensor, padding: int, value: float) -> Tensor:
    top, left = torch.floor(y_at), torch.floor(x_at)
    down, right = ((y_at - top).to(x.dtype).unsqueeze(1), (x_at - left).to(x.dtype).unsqueeze(1))
    rows, columns = top.long(), left.long()

    def corner(i: int, j: int) -> Tensor:
        return _at(x, rows + i, columns + j, padding, value)

    upper = corner(0, 0) * (1 - right) + corner(0, 1) * right
    lower = corner(1, 0) * (1 - right) + corner(1, 1) * right
    return upper * (1 - down) + lower * down


def _nearest(x: Tensor, y_at: Tensor, x_at: Tensor, padding: int, value: float, rounding: int) -> Tensor:
    require(0 <= rounding < len(ROUNDING), f"there is no MPSGraphResizeNearestRoundingMode {rounding}")
    round_ = ROUNDING[rounding]
    return _at(x, round_(y_at).long(), round_(x_at).long(), padding, value)


def _pixels(grid: Tensor, size: int, out: int, axis: int, normalized: bool, relative: bool, aligned: bool) -> Tensor:
    """Coordinates along one axis, as positions between pixels: 0 is the centre of the first one.

    With ``aligned`` -1 and 1 are the centres of the edge pixels, else their outer edges.
    """
    span = (size - 1) if aligned else size
    if not relative:
        if normalized:
            return (grid + 1) * span / 2 - (0 if aligned else 0.5)
        if not aligned:
            raise NotSimulated(
                "coordinates in pixels with alignCorners NO: the header does not say whether 0 is the centre of the "
                "first pixel; use alignCorners YES, or normalised coordinates"
            )
        return grid
    if not normalized and size != out:
        raise NotSimulated("relative coordinates in pixels between pictures of different sizes: give normalised ones")
    shape = [1, 1, 1]
    shape[axis] = out
    position = torch.arange(out, dtype=grid.dtype, device=grid.device).view(shape)
    base = position * (size - 1) / max(out - 1, 1) if aligned else (position + 0.5) * size / out - 0.5
    return base + (grid * span / 2 if normalized else grid)


def _sampled(
    source: Tensor, grid: Tensor, layout: int, normalized: bool, relative: bool, aligned: bool, padding: int,
    value: float, rounding: int | None,
) -> Tensor:  # fmt: skip
    floating(source, grid)
    require(layout in (0, 1), "the layout is NCHW or NHWC")
    require(
        padding in (CONSTANT, REFLECT, SYMMETRIC, CLAMP, ZERO), f"MPSGraphPaddingMode {padding} is not for sampling"
    )
    x = _to_nchw(source, layout)
    require(
        grid.ndim == 4 and grid.shape[0] == x.shape[0] and grid.shape[3] == 2,
        f"coordinates are (N, height, width, 2) with N = {x.shape[0]}, not {list(grid.shape)}",
    )
    across = _pixels(grid[..., 0], x.shape[3], grid.shape[2], 2, normalized, relative, aligned)
    down = _pixels(grid[..., 1], x.shape[2], grid.shape[1], 1, normalized, relative, aligned)
    if rounding is None:
        return _from_nchw(_bilinear(x, down, across, padding, value), layout)
    return _from_nchw(_nearest(x, down, across, padding, value, rounding), layout)


@operation(
    "sampleGridWithSourceTensor:coordinateTensor:layout:normalizeCoordinates:relativeCoordinates:alignCorners:"
    "paddingMode:samplingMode:constantValue:name:"
)
def sample_grid(
    source: Tensor, coordinates: Tensor, layout: int, normalized: bool, relative: bool, aligned: bool, padding: int,
    mode: int, value: float,
) -> Tensor:  # fmt: skip
    """The first of the two coordinates goes across, the second down."""
    require(mode in (NEAREST, BILINEAR), f"there is no MPSGraphResizeMode {mode}")
    rounding = 0 if mode == NEAREST else None
    return _sampled(source, coordinates, layout, normalized, relative, aligned, padding, value, rounding)


@operation(
    "sampleGridWithSourceTensor:coordinateTensor:layout:normalizeCoordinates:relativeCoordinates:alignCorners:"
    "paddingMode:nearestRoundingMode:constantValue:name:"
)
def sample_grid_nearest(
    source: Tensor, coordinates: Tensor, layout: int, normalized: bool, relative: bool, aligned: bool, padding: int,
    rounding: int, value: float,
) -> Tensor:  # fmt: skip
    return _sampled(source, coordinates, layout, normalized, relative, aligned, padding, value, rounding)


def _source_positions(size: int, out: int, centred: bool, aligned: bool) -> Tensor:
    """Where each position of the result lies in the picture."""
    position = torch.arange(out, dtype=torch.float32)
    if aligned:
        return position * ((size - 1) / max(out - 1, 1))
    return (position + 0.5) * (size / out) - 0.5 if centred else position * (size / out)


def _resized(tensor: Tensor, size: Shape, layout: int, centred: bool, aligned: bool, rounding: int | None) -> Tensor:
    require(len(size) == 2 and min(size) > 0, f"the new size is [height, width], not {list(size)}")
    x = _to_nchw(tensor, layout)
    down = _source_positions(x.shape[2], size[0], centred, aligned).view(1, -1, 1).expand(x.shape[0], *size)
    across = _source_positions(x.shape[3], size[1], centred, aligned).view(1, 1, -1).expand(x.shape[0], *size)
    if rounding is not None:
        return _from_nchw(_nearest(x, down, across, CLAMP, 0.0, rounding), layout)
    floating(tensor)
    return _from_nchw(_bilinear(x, down, across, CLAMP, 0.0), layout)


@operation("resizeTensor:size:mode:centerResult:alignCorners:layout:name:")
def resize(tensor: Tensor, size: Shape, mode: int, centred: bool, aligned: bool, layout: int) -> Tensor:
    require(mode in (NEAREST, BILINEAR), f"there is no MPSGraphResizeMode {mode}")
    return _resized(tensor, size, layout, centred, aligned, 0 if mode == NEAREST else None)
