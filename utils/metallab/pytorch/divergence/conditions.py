"""What a fault needs, and the fix that follows from it: values, whose ``str`` is in `wording`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from metallab.pytorch.divergence import wording


class View(StrEnum):
    """Why a tensor is not contiguous."""

    EXPANDED = "expanded"
    GAPS = "gaps"
    PERMUTED = "permuted"


@dataclass(frozen=True)
class NotFloat32:
    """The call has float16 or bfloat16."""

    def __str__(self) -> str:
        return wording.PHRASES["not float32"]


@dataclass(frozen=True)
class NoElements:
    """One of the tensors has a dimension of size 0."""

    def __str__(self) -> str:
        return wording.PHRASES["no elements"]


@dataclass(frozen=True)
class NotContiguous:
    """An argument is a view of memory in another order, or of a part of it."""

    argument: str
    view: View

    def __str__(self) -> str:
        return wording.not_contiguous(self)


@dataclass(frozen=True)
class NonzeroOffset:
    """An argument does not begin where its storage begins."""

    argument: str
    is_odd: bool
    """Whether an even offset is not enough."""

    def __str__(self) -> str:
        return wording.nonzero_offset(self)


@dataclass(frozen=True)
class MinElements:
    """Each argument has so many elements or more, whatever the shape."""

    count: int

    def __str__(self) -> str:
        return wording.min_elements(self)


@dataclass(frozen=True)
class MinSize:
    """An argument has such a size or a larger one along some dimensions."""

    argument: str
    dimensions: tuple[int, ...]
    size: int

    def __str__(self) -> str:
        return wording.min_size(self)


Condition = NotFloat32 | NoElements | NotContiguous | NonzeroOffset | MinElements | MinSize
"""Something without which a fault does not occur."""


# ---- what to do ------------------------------------------------------------------------------------------------------


class FixKind(StrEnum):
    """What to put in the wrong operator's place, or to do about one that is wrong at times."""

    LESS_WORK = "less work"
    """Give the GPU less work at a time."""
    FLOAT32 = "float32"
    SKIP_EMPTY = "skip empty"
    """Leave the operator out where there is nothing to compute."""
    FEWER_ELEMENTS = "fewer elements"
    CONTIGUOUS_WEIGHTS = "contiguous weights"
    COPY_ARGUMENTS = "copy arguments"
    DRAW_ON_CPU = "CPU draw"
    OTHER_OPERATORS = "other operators"


CopyMethod = Literal["clone", "contiguous"]


@dataclass(frozen=True)
class Fix:
    """What to do about a fault."""

    kind: FixKind
    copies: tuple[tuple[str, CopyMethod], ...] = ()
    """With `FixKind.COPY_ARGUMENTS`: which argument to copy, with which method of a tensor."""

    def __str__(self) -> str:
        return wording.fix(self)


def choose_fix(conditions: Sequence[Condition], is_step: bool = False) -> Fix:
    """Return the fix of a wrong kernel: what gives the operator a call that lacks one of the conditions.

    Of several conditions the one that is the easiest to avoid decides.

    Parameters
    ----------
    conditions
        What the fault needs; may be empty.
    is_step
        Whether an optimizer's step calls it, whose arguments nobody writes down.
    """
    if _has(conditions, NotFloat32):
        return Fix(FixKind.FLOAT32)
    if _has(conditions, NoElements):
        return Fix(FixKind.SKIP_EMPTY)
    if _has(conditions, MinElements) or _has(conditions, MinSize):
        return Fix(FixKind.FEWER_ELEMENTS)
    if not conditions:
        return Fix(FixKind.OTHER_OPERATORS)
    if is_step:
        return Fix(FixKind.CONTIGUOUS_WEIGHTS)
    return Fix(FixKind.COPY_ARGUMENTS, _copies(conditions))


def _has(conditions: Sequence[Condition], kind: type) -> bool:
    return any(isinstance(condition, kind) for condition in conditions)


def _copies(conditions: Sequence[Condition]) -> tuple[tuple[str, CopyMethod], ...]:
    """Return the arguments that are to be copied, each once."""
    methods: dict[str, CopyMethod] = {}
    for condition in conditions:
        if isinstance(condition, NonzeroOffset):
            # contiguous() moves a tensor to the start of its memory, too
            methods.setdefault(condition.argument, "clone")
        elif isinstance(condition, NotContiguous):
            methods[condition.argument] = "contiguous"
    return tuple(methods.items())
