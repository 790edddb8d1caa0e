"""Operators where they are wrong most easily: nothing, one element, ties, NaN, odd sizes, pairs of 16 bits.

The same cases are asked of an Apple GPU by ``test_operators_agree_at_their_edges``, a test in
``tests/conformance/test_mps.py``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from metallab import parity, tables
from metallab.device import PyTorchDevice
from metallab.imaging import references

OPERATORS = (
    "complex64", "complex32", "fftn", "ifftn", "rfftn", "irfftn", "conv3d", "grid_sample", "sort", "argsort", "cumsum",
    "cumprod", "cummin", "cummax",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A call and what NumPy makes of it: ``function`` of tensors, ``reference`` of the same numbers in float64."""

    name: str
    function: Callable[..., Any]
    reference: Callable[..., np.ndarray]
    arrays: tuple[np.ndarray, ...]
    dtype: str = "float32"

    def outcome(self, on: PyTorchDevice) -> parity.Parity:
        """Return what comes out on a device, as `metallab.parity.against_numpy`."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "ComplexHalf")  # PyTorch calls it experimental
            return parity.against_numpy(
                self.function, self.reference, *self.arrays, on=on, dtype=self.dtype
            )


def survey(*, on: PyTorchDevice) -> dict[str, dict[str, parity.Parity]]:
    """Return the outcome of every case on a device.

    Asking a GPU's library for what it does not have may end the process.

    Returns
    -------
    dict
        By operator, then by case.
    """
    outcomes: dict[str, dict[str, parity.Parity]] = {}
    for operator in OPERATORS:
        outcomes[operator] = {case.name: case.outcome(on) for case in cases(operator)}
    return outcomes


def table(survey: Mapping[str, Mapping[str, parity.Parity]], device: str) -> tables.Table:
    """Return a row for each operator of which something does not agree, and one for all others.

    Parameters
    ----------
    survey
        By operator and case, the outcome (`survey`).
    device
        The heading of its column.
    """
    rows: list[list[str]] = []
    agreeing: dict[str, int] = {}
    for operator, outcomes in survey.items():
        agree = sum(outcome.agrees for outcome in outcomes.values())
        if agree == len(outcomes):
            agreeing[operator] = agree
        else:
            others = _describe_others(outcomes)
            rows.append([operator, f"{agree} of {len(outcomes)} agree", others])

    if agreeing:
        rows.append([", ".join(agreeing), f"all {sum(agreeing.values())} agree", ""])
    return tables.Table(["operator", device, "what does not agree"], rows)


def _describe_others(outcomes: Mapping[str, parity.Parity]) -> str:
    """Return the cases that differ, then those that are refused, by name, with the words for the first of each.

    Of ten and more others only the second and the last are named.
    """
    parts = []
    for kind in ("differs", "refused"):
        names = [name for name, outcome in outcomes.items() if outcome.outcome == kind]
        if not names:
            continue

        first, *others = names
        part = f"{first}: {outcomes[first]}"
        if others:
            listed = others if len(others) <= 9 else [others[0], "...", others[-1]]
            part += f" (also: {'; '.join(listed)})"
        parts.append(part)
    return "; ".join(parts)


def cases(operator: str) -> list[Case]:
    """Return the cases of one operator, one of `OPERATORS`; KeyError for another."""
    if operator in ("complex64", "complex32"):
        return _make_complex(operator)
    if operator.endswith("fftn"):
        return list(itertools.starmap(partial(_make_transform, operator), _SIZES))
    if operator == "conv3d":
        return _make_convolutions()
    if operator == "grid_sample":
        return _make_grids()
    return _make_rows(operator)


def _make_complex(operator: str) -> list[Case]:
    """Return functions of complex numbers, in the parts that the operator names."""
    import torch

    z = np.random.default_rng(0).normal(size=(8, 24)).view(complex)  # 8 x 12
    dtype = {"complex64": "float32", "complex32": "float16"}[operator]
    functions: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "|z|": (torch.abs, np.abs),
        "angle": (torch.angle, np.angle),
        "conjugate": (torch.conj_physical, np.conj),
        "square": (torch.square, np.square),
        "1 / z": (torch.reciprocal, np.reciprocal),
        "sum": (torch.sum, np.sum),
        "matrix product": (lambda z: z @ z.mT, lambda z: z @ z.T),
        "FFT of 12": (torch.fft.fft, np.fft.fft),
        "FFT of 8": (partial(torch.fft.fft, dim=0), partial(np.fft.fft, axis=0)),
    }
    return [
        Case(name, function, reference, (z,), dtype)
        for name, (function, reference) in functions.items()
    ]


_SIZES = list(itertools.product((1, 2, 3, 4), ("backward", "forward", "ortho"), (8, 9)))
"""Dimensions, scaling, and the size of the last axis: way back to an odd one was reported wrong (pytorch#126649)."""


def _make_transform(operator: str, dimensions: int, norm: str, last: int) -> Case:
    """Return a Fourier transform over the last dimensions, of an array whose last axis is so long.

    The way back from a spectrum of real numbers (``irfftn``) begins with such a spectrum, and gives an axis of that
    length. The others take complex numbers, but for ``rfftn``, which takes real ones.
    """
    import torch

    rng = np.random.default_rng(0)
    shape = (4, 6, 5, last)
    axes = tuple(range(-dimensions, 0))
    real = rng.normal(size=shape)
    imaginary = rng.normal(size=shape)
    numbers = real + 1j * imaginary
    if operator == "rfftn":
        numbers = real
    elif operator == "irfftn":
        numbers = np.fft.rfftn(real, axes=axes)

    # half a spectrum does not tell whether the axis that it came from was odd or even: the sizes do
    transformed = shape[-dimensions:]
    return Case(
        f"{dimensions}-D, {norm}, {last} wide",
        partial(getattr(torch.fft, operator), dim=axes, s=transformed, norm=norm),
        partial(getattr(np.fft, operator), axes=axes, s=transformed, norm=norm),
        (numbers,),
    )


class _Arrays(NamedTuple):
    """What is convolved, and what is sampled."""

    video: np.ndarray
    weights: np.ndarray
    picture: np.ndarray
    grid: np.ndarray
    """Positions of which some lie outside of the picture."""


def _draw_arrays() -> _Arrays:
    rng = np.random.default_rng(0)
    return _Arrays(
        video=rng.random((2, 3, 4, 5, 6)),
        weights=rng.random((2, 3, 2, 3, 3)),
        picture=rng.random((1, 2, 4, 5)),
        grid=rng.uniform(-1.2, 1.2, (1, 6, 7, 2)),
    )


def _make_convolutions() -> list[Case]:
    """Return convolutions of videos."""
    from torch.nn import functional as F

    video, weights, *_ = _draw_arrays()
    one_video, one_weight = video[:1, :1, :1, :1, :1], weights[:1, :1, :1, :1, :1]
    arrays = {
        "plain": (video, weights),
        "empty": (video[:0], weights),
        "one element": (one_video, one_weight),
        "NaN": (_with_nan(video), weights),
    }
    return [Case(name, F.conv3d, references.convolution3d, each) for name, each in arrays.items()]


def _make_grids() -> list[Case]:
    """Return samples of pictures at positions, and their gradient."""
    from torch.nn import functional as F

    *_, picture, grid = _draw_arrays()
    arrays = {
        "plain": (picture, grid),
        "empty": (picture, grid[:, :0]),
        "one element": (picture[:, :1, :1, :1], grid),
        "halfway between two rows": (picture, np.zeros((1, 1, 1, 2))),
        "NaN": (_with_nan(picture), grid),
    }
    sample = partial(F.grid_sample, align_corners=True)
    cases = [Case(name, sample, references.sample_grid, each) for name, each in arrays.items()]
    return [*cases, Case("gradient by the positions", _gradient, _slope, (picture, grid))]


def _gradient(picture: Any, grid: Any) -> Any:
    """Return how the sum of the sampled values changes with each position, by autograd."""
    import torch
    from torch.nn import functional as F

    grid = grid.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(F.grid_sample(picture, grid, align_corners=True).sum(), grid)[0]


def _slope(picture: np.ndarray, grid: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the same by finite differences: (n, h, w, 2)."""
    slopes = []
    for direction in step * np.eye(2):  # across, down
        ahead = references.sample_grid(picture, grid + direction)
        behind = references.sample_grid(picture, grid - direction)
        apart = ahead - behind
        slopes.append(apart.sum(axis=1) / (2 * step))
    return np.stack(slopes, axis=-1)


def _make_rows(operator: str) -> list[Case]:
    """Return sorts, or running results such as cumulative sums, of small arrays along one axis."""
    import torch

    functions: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "sort": (lambda x, dim: x.sort(dim=dim, stable=True).values, np.sort),
        "argsort": (
            lambda x, dim: x.argsort(dim=dim, stable=True),
            partial(np.argsort, kind="stable"),
        ),
        "cumsum": (torch.cumsum, np.cumsum),
        "cumprod": (torch.cumprod, np.cumprod),
        "cummin": (lambda x, dim: x.cummin(dim).values, np.minimum.accumulate),
        "cummax": (lambda x, dim: x.cummax(dim).values, np.maximum.accumulate),
    }
    function, reference = functions[operator]

    row = np.array([[3, np.nan, 1, 2, np.nan, 0]])
    # an array, and the axis along which it is sorted or added up
    arrays: dict[str, tuple[np.ndarray, int]] = {
        "empty": (row[:, :0], -1),
        "one element": (row[:, :1], -1),
        "ties": (row[:, [3, 2, 3, 2, 3]], -1),  # 2 1 2 1 2
        "NaN": (row, -1),
        "axis -2": (np.random.default_rng(0).random((3, 4)), -2),
    }
    made = [
        Case(name, _along(function, axis), _along(reference, axis), (x,))
        for name, (x, axis) in arrays.items()
    ]

    # people write NumPy's argsort(-x) for it, which puts NaN last
    if operator == "argsort":
        made.append(Case("NaN, downwards", _sort_downwards, _sort_nan_first, (row,)))
    return made


def _along(function: Callable[..., Any], axis: int) -> Callable[[Any], Any]:
    """Return a function of an array and an axis as one of the array."""
    return lambda x: function(x, axis)


def _sort_downwards(x: Any) -> Any:
    return x.argsort(dim=-1, descending=True, stable=True)


def _sort_nan_first(x: np.ndarray) -> np.ndarray:
    """Return the order downwards as PyTorch has it, which takes NaN for larger than any number."""
    return np.argsort(np.where(np.isnan(x), -np.inf, -x), kind="stable")


def _with_nan(array: np.ndarray) -> np.ndarray:
    return np.where(np.arange(array.size).reshape(array.shape) == 7, np.nan, array)
