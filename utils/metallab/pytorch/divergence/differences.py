"""How a result of a device is wrong, and why one was not compared: values, whose ``str`` is in `wording`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from metallab.pytorch.divergence import wording

Number = bool | int | float | complex


class Cause(StrEnum):
    """Why values that are not the same count as wrong."""

    NOT_EQUAL = "not equal"
    """Integers and truth values must be equal."""
    NOT_FINITE = "not finite"
    """Infinite or NaN on one side only."""
    NOT_ROUNDING = "not rounding"
    """Further apart than rounding explains."""
    SCALED = "scaled"
    """Dropout keeps the right share, and scales it wrongly."""


@dataclass(frozen=True)
class WrongValues:
    """Some values differ too much; one of them is shown."""

    count: int
    """How many."""
    total: int
    """Of how many."""
    position: tuple[int, ...]
    """Indices of the one that is shown; empty in a tensor without dimensions."""
    value: Number
    right: Number
    cause: Cause
    error: float | None = None
    """With `Cause.NOT_ROUNDING`: the largest error, in the result's unit."""
    allowed: float | None = None
    """With `Cause.NOT_ROUNDING`: what rounding explains at most."""

    def __str__(self) -> str:
        return wording.wrong_values(self)

    @staticmethod
    def of(
        wrong: Tensor, exact: Tensor, value: Tensor, cause: Cause, shown: Tensor | None = None
    ) -> WrongValues:
        """Count wrong values, and take the first one of them to be shown; ``error`` and ``allowed`` stay None.

        Parameters
        ----------
        wrong
            Truth values, of the shape of the result.
        exact, value
            The right numbers and those of the device.
        cause
            Why they count as wrong.
        shown
            As ``wrong``, those to take one from, such as the one with the largest error; by default ``wrong``.

        Raises
        ------
        IndexError
            If no value is wrong, or none is to be shown.
        """
        candidates = wrong if shown is None else shown
        position = tuple(candidates.nonzero()[0].tolist())
        return WrongValues(
            count=int(wrong.sum()),
            total=value.numel(),
            position=position,
            value=value[position].item(),
            right=exact[position].item(),
            cause=cause,
        )


@dataclass(frozen=True)
class WrongKind:
    """A result of another dtype or shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    right_dtype: torch.dtype
    right_shape: tuple[int, ...]

    def __str__(self) -> str:
        return wording.wrong_kind(self)

    @staticmethod
    def of(right: Tensor, value: Tensor) -> WrongKind:
        """Return how a tensor differs from what it should be."""
        return WrongKind(value.dtype, tuple(value.shape), right.dtype, tuple(right.shape))


@dataclass(frozen=True)
class WrongPositions:
    """Positions that point at other values than they should, or that are there twice."""

    count: int
    total: int

    def __str__(self) -> str:
        return wording.wrong_positions(self)


@dataclass(frozen=True)
class WrongOrder:
    """Positions of a stable sort that do not keep the order of equal values."""

    count: int
    total: int

    def __str__(self) -> str:
        return wording.wrong_order(self)


@dataclass(frozen=True)
class PositionsOutside:
    """Positions outside of the tensor that they point into."""

    def __str__(self) -> str:
        return wording.PHRASES["positions outside"]


@dataclass(frozen=True)
class WrongShare:
    """Dropout that keeps another share of the values than it should."""

    kept: float
    right: float

    def __str__(self) -> str:
        return wording.wrong_share(self)


class DrawFault(StrEnum):
    """How random numbers are wrong, whatever they are."""

    OUTSIDE = "outside"
    """Outside of the range that they are drawn from."""
    IMPOSSIBLE = "impossible"
    """What has probability 0."""
    REPEATED = "drawn twice"
    """Twice what may be drawn once."""
    NAN = "drawn NaN"


@dataclass(frozen=True)
class WrongDraw:
    """Random numbers that cannot have been drawn."""

    fault: DrawFault
    count: int
    total: int

    def __str__(self) -> str:
        return wording.wrong_draw(self)

    @staticmethod
    def of(fault: DrawFault, wrong: Tensor) -> WrongDraw:
        """Count truth values."""
        return WrongDraw(fault, int(wrong.sum()), wrong.numel())


@dataclass(frozen=True)
class WrongWrite:
    """What an operator writes to one of several arguments is wrong."""

    argument: str
    difference: WrongValues | WrongKind

    def __str__(self) -> str:
        return wording.wrong_write(self)


@dataclass(frozen=True)
class StrayWrite:
    """An operator that changes memory where it has nothing to write."""

    argument: str
    count: int
    """Of elements."""

    def __str__(self) -> str:
        return wording.stray_write(self)


@dataclass(frozen=True)
class NewNaN:
    """A NaN that no argument has; the CPU has it as well."""

    def __str__(self) -> str:
        return wording.PHRASES["new NaN"]


Difference = (
    WrongValues
    | WrongKind
    | WrongPositions
    | WrongOrder
    | PositionsOutside
    | WrongShare
    | WrongDraw
    | WrongWrite
    | StrayWrite
    | NewNaN
)
"""How a result is wrong."""


# ---- what was not compared -------------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why something was not compared."""

    UNORDERED = "unordered"
    """Results that may be in any order, as of ``topk(sorted=False)``."""
    OTHER_COUNT = "other count"
    """Another number of results than on the CPU."""
    KEPT = "kept results"
    """Results behind those that are the same everywhere: what each device keeps for the gradient, in its own form."""
    INTEGERS = "integers"
    """Integers beside floating results that are no positions."""
    RANDOM = "random numbers"
    """Devices draw numbers of their own."""
    NOT_STRIDED = "not strided"
    """A sparse or a nested tensor."""
    ONLY_THERE = "only there"
    """An operator that the CPU does not have."""
    CPU_RAISES = "CPU raises"
    """PyTorch raises an exception in float64 on the CPU."""
    OWN_DTYPE = "own dtype"
    """A model in float64 makes a tensor of another dtype, which its layers refuse."""
    OTHER_LAYERS = "other layers"
    """The CPU went through other layers than the device."""


@dataclass(frozen=True)
class NotCompared:
    """Why an operator, a part of its results, or all layers were not compared."""

    reason: Reason
    message: str = ""
    """With `Reason.CPU_RAISES` and `Reason.OWN_DTYPE`: PyTorch's words, and where they come from."""
    counts: tuple[int, int] | None = None
    """The number of results on the device, and with `Reason.OTHER_COUNT` that on the CPU, with `Reason.KEPT` how many
    of them were compared."""

    def __str__(self) -> str:
        return wording.not_compared(self)
