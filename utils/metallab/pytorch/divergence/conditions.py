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


@dataclass(frozen=True)
class OnCPU:
    """An argument lies on the CPU."""

    argument: str

    def __str__(self) -> str:
        return wording.on_cpu(self)


@dataclass(frozen=True)
class HoldsNaN:
    """An argument holds NaN."""

    argument: str
    is_unwritten: bool = False
    """It is memory that nobody has written to, as ``torch.empty`` returns it."""

    def __str__(self) -> str:
        return wording.holds_nan(self)


@dataclass(frozen=True)
class HoldsInteger:
    """An argument holds such an integer or a larger one."""

    argument: str
    value: int

    def __str__(self) -> str:
        return wording.holds_integer(self)


@dataclass(frozen=True)
class HiddenRow:
    """A row of an argument, along its last dimension, is False or minus infinity throughout, as of a mask."""

    argument: str

    def __str__(self) -> str:
        return wording.hidden_row(self)


@dataclass(frozen=True)
class Setting:
    """A setting has a value that is not its default."""

    argument: str
    value: bool | int | float | str

    def __str__(self) -> str:
        return wording.setting(self)


Condition = (
    NotFloat32
    | NoElements
    | NotContiguous
    | NonzeroOffset
    | MinElements
    | MinSize
    | OnCPU
    | HoldsNaN
    | HoldsInteger
    | HiddenRow
    | Setting
)
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
    NUMBER = "number"
    """Give a number, or a tensor on the device, in place of a tensor on the CPU."""
    WRITE_FIRST = "write first"
    """Give memory that is written to."""
    NO_NAN = "no NaN"
    SMALL_INTEGERS = "small integers"
    ONE_KEY = "one key"
    """Let a mask keep something in each row."""
    DRAW_ON_CPU = "CPU draw"
    FILL_MEMORY = "fill memory"
    """Write to memory before it is read."""
    FIND_SOURCE = "find source"
    """Look for the value that no compared operator made."""
    OTHER_OPERATORS = "other operators"


CopyMethod = Literal["clone", "contiguous"]


@dataclass(frozen=True)
class Fix:
    """What to do about a fault."""

    kind: FixKind
    copies: tuple[tuple[str, CopyMethod], ...] = ()
    """With `FixKind.COPY_ARGUMENTS`: which argument to copy, with which method of a tensor."""
    argument: str | None = None
    """Which argument to change in another way."""

    def __str__(self) -> str:
        return wording.fix(self)


def choose_fix(conditions: Sequence[Condition], is_step: bool = False) -> Fix:
    """Return the fix of a wrong kernel: what gives the operator a call that lacks one of the conditions.

    Of several conditions the one that is the easiest to avoid decides: first a dtype or a size, which one changes in a
    word; then where an argument lies and what it holds; then a layout, which takes a copy.

    Parameters
    ----------
    conditions
        What the fault needs; may be empty.
    is_step
        Whether an optimizer's step calls it, whose arguments nobody writes down.
    """
    fix = _choose_fix_of_kinds(conditions) or _choose_fix_of_values(conditions)
    if fix is not None:
        return fix
    copies = _copies(conditions)
    if not copies:
        return Fix(FixKind.OTHER_OPERATORS)
    if is_step:
        return Fix(FixKind.CONTIGUOUS_WEIGHTS)
    return Fix(FixKind.COPY_ARGUMENTS, copies)


def _choose_fix_of_kinds(conditions: Sequence[Condition]) -> Fix | None:
    """Return the fix of a fault that depends on a dtype or a size; None of others."""
    if _has(conditions, NotFloat32):
        return Fix(FixKind.FLOAT32)
    if _has(conditions, NoElements):
        return Fix(FixKind.SKIP_EMPTY)
    if _has(conditions, MinElements) or _has(conditions, MinSize):
        return Fix(FixKind.FEWER_ELEMENTS)
    return None


def _choose_fix_of_values(conditions: Sequence[Condition]) -> Fix | None:
    """Return the fix of a fault that depends on where an argument lies or on what it holds; None of others."""
    for condition in conditions:
        if isinstance(condition, OnCPU):
            return Fix(FixKind.NUMBER, argument=condition.argument)
        if isinstance(condition, HoldsNaN):
            kind = FixKind.WRITE_FIRST if condition.is_unwritten else FixKind.NO_NAN
            return Fix(kind, argument=condition.argument)
        if isinstance(condition, HoldsInteger):
            return Fix(FixKind.SMALL_INTEGERS, argument=condition.argument)
        if isinstance(condition, HiddenRow):
            return Fix(FixKind.ONE_KEY, argument=condition.argument)
    return None


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
