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
from typing import Any

import numpy as np

from metallab import parity, tables
from metallab.device import Device
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

    def outcome(self, on: Device) -> str:
        """``agrees``, ``DIFFERS: ...`` or ``refused: ...``, as `metallab.parity.against_numpy`."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "ComplexHalf")  # PyTorch calls it experimental
            return parity.against_numpy(
                self.function, self.reference, *self.arrays, on=on, dtype=self.dtype
            )


def survey(*, on: Device) -> dict[str, dict[str, str]]:
    """The outcome of every case on a device, by operator and case: ``agrees``, ``DIFFERS: ...`` or ``refused: ...``.

    Asking a GPU's library for what it does not have may end the process.
    """
    return {name: {case.name: case.outcome(on) for case in cases(name)} for name in OPERATORS}


def table(survey: Mapping[str, Mapping[str, str]], device: str) -> tables.Table:
    """A row for each operator of which something does not agree, and one for all others."""
    rows, agreeing = [], {}
    for operator, outcomes in survey.items():
        agree = list(outcomes.values()).count(parity.AGREES)
        if agree == len(outcomes):
            agreeing[operator] = agree
        else:
            rows.append([operator, f"{agree} of {len(outcomes)} agree", _not_agreeing(outcomes)])
    if agreeing:
        rows.append([", ".join(agreeing), f"all {sum(agreeing.values())} agree", ""])
    return tables.Table(["operator", device, "what does not agree"], rows)


def _not_agreeing(outcomes: Mapping[str, str]) -> str:
    """The cases that differ or are refused, by name, with the device's words for the first of each."""
    parts = []
    for kind in ("differs", "refused"):
        first, *others = [
            name for name, outcome in outcomes.items() if outcome.lower().startswith(kind)
        ] or [""]
        if first:
            also = "; ".join(others if len(others) <= 9 else [others[0], "...", others[-1]])
            parts.append(f"{first}: {outcomes[first]}" + (f" (also: {also})" if others else ""))
    return "; ".join(parts)


def cases(operator: str) -> list[Case]:
    """The cases of one operator, one of `OPERATORS`; KeyError for another."""
    if operator in ("complex64", "complex32"):
        return _complex(operator)
    if operator.endswith("fftn"):
        return list(itertools.starmap(partial(_transform, operator), _SIZES))
    if operator in ("conv3d", "grid_sample"):
        return _solids(operator)
    return _rows(operator)


def _complex(operator: str) -> list[Case]:
    import torch

    z = np.random.default_rng(0).normal(size=(8, 24)).view(complex)  # 8 x 12
    dtype = {"complex64": "float32", "complex32": "float16"}[operator]
    functions = {
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
    return [Case(name, *functions[name], (z,), dtype) for name in functions]


_SIZES = list(itertools.product((1, 2, 3, 4), ("backward", "forward", "ortho"), (8, 9)))
"""Dimensions, scaling, and the size of the last axis: way back to an odd one was reported wrong (pytorch#126649)."""


def _transform(operator: str, dimensions: int, norm: str, last: int) -> Case:
    import torch

    rng = np.random.default_rng(0)
    shape, axes = (4, 6, 5, last), tuple(range(-dimensions, 0))
    real = rng.normal(size=shape)
    given = {"rfftn": real, "irfftn": np.fft.rfftn(real, axes=axes)}.get(
        operator, real + 1j * rng.normal(size=shape)
    )
    options = {"s": shape[-dimensions:], "norm": norm}
    return Case(
        f"{dimensions}-D, {norm}, {last} wide",
        partial(getattr(torch.fft, operator), dim=axes, **options),
        partial(getattr(np.fft, operator), axes=axes, **options),
        (given,),
    )


def _solids(operator: str) -> list[Case]:
    from torch.nn import functional as F

    rng = np.random.default_rng(0)
    video, weights = rng.random((2, 3, 4, 5, 6)), rng.random((2, 3, 2, 3, 3))
    small, grid = (
        rng.random((1, 2, 4, 5)),
        rng.uniform(-1.2, 1.2, (1, 6, 7, 2)),
    )  # some positions lie outside
    if operator == "conv3d":
        both = F.conv3d, references.convolution3d
        return [
            Case("plain", *both, (video, weights)),
            Case("empty", *both, (video[:0], weights)),
            Case("one element", *both, (video[:1, :1, :1, :1, :1], weights[:1, :1, :1, :1, :1])),
            Case("NaN", *both, (_with_nan(video), weights)),
        ]
    both = partial(F.grid_sample, align_corners=True), references.sampled_grid
    return [
        Case("plain", *both, (small, grid)),
        Case("empty", *both, (small, grid[:, :0])),
        Case("one element", *both, (small[:, :1, :1, :1], grid)),
        Case("halfway between two rows", *both, (small, np.zeros((1, 1, 1, 2)))),
        Case("NaN", *both, (_with_nan(small), grid)),
        Case("gradient by the positions", _gradient, _slope, (small, grid)),
    ]


def _gradient(picture: Any, grid: Any) -> Any:
    """How the sum of the sampled values changes with each position, by autograd."""
    import torch
    from torch.nn import functional as F

    grid = grid.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(F.grid_sample(picture, grid, align_corners=True).sum(), grid)[0]


def _slope(picture: np.ndarray, grid: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The same by finite differences: (n, h, w, 2)."""
    slopes = []
    for direction in step * np.eye(2):  # across, down
        apart = references.sampled_grid(picture, grid + direction) - references.sampled_grid(
            picture, grid - direction
        )
        slopes.append(apart.sum(axis=1) / (2 * step))
    return np.stack(slopes, axis=-1)


def _rows(operator: str) -> list[Case]:
    import torch

    functions = {
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
    ours, numpys = functions[operator]
    row = np.array([[3, np.nan, 1, 2, np.nan, 0]])
    given: dict[str, tuple[np.ndarray, int]] = {
        "empty": (row[:, :0], -1),
        "one element": (row[:, :1], -1),
        "ties": (row[:, [3, 2, 3, 2, 3]], -1),
        "NaN": (row, -1),
        "axis -2": (np.random.default_rng(0).random((3, 4)), -2),
    }
    along = lambda function, axis: lambda x: function(x, axis)
    made = [
        Case(name, along(ours, axis), along(numpys, axis), (x,))
        for name, (x, axis) in given.items()
    ]
    if operator == "argsort":
        downwards = lambda x: x.argsort(dim=-1, descending=True, stable=True)
        nan_first = lambda x: np.argsort(np.where(np.isnan(x), -np.inf, -x), kind="stable")
        made.append(Case("NaN, downwards", downwards, nan_first, (row,)))
    return made


def _with_nan(array: np.ndarray) -> np.ndarray:
    return np.where(np.arange(array.size).reshape(array.shape) == 7, np.nan, array)
