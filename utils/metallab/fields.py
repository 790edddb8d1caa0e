"""The types of a record's fields, and the one place that holds somebody's data against them.

A dataclass whose fields have these types is its own schema: `read` makes one from plain JSON data and refuses what
does not fit, and `schema` says the same as a JSON schema. Both are msgspec's work, which is imported when something is
read; measuring needs none of it. What no type can say (does a speed-up follow from its samples?) is checked by
whoever reads, see `metallab.records`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

TEXT_LIMIT = 1000
"""Characters that one text of a record may have."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a value may be, in the words of `msgspec.Meta`."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


Line = Annotated[str, Bounds(max_length=TEXT_LIMIT)]
"""One line of text, which may be empty. No text in a record may hold what cannot be printed, see `read`."""
Name = Annotated[str, Bounds(min_length=1, max_length=TEXT_LIMIT, pattern=r"^\S(.*\S)?$")]
"""A line that is not empty and has no space around it."""
LessonName = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Kind = Annotated[str, Bounds(pattern=r"^[a-z][a-z0-9]{0,19}$")]
"""What computes, as PyTorch names its devices."""
Dtype = Literal["float64", "float32", "float16", "bfloat16", "int8", "uint8"]
"""A number format, as PyTorch and NumPy name it."""
Seconds = Annotated[float, Bounds(gt=1e-18, lt=1e9)]
"""A duration: a clock's step over the largest block is not below, a machine's life not above."""
Samples = Annotated[tuple[Seconds, ...], Bounds(min_length=1)]
Count = Annotated[int, Bounds(ge=0, lt=2**53)]
Positive = Annotated[int, Bounds(gt=0, lt=2**53)]
Amount = Annotated[float, Bounds(ge=0, lt=1e18)]
Cores = Annotated[float, Bounds(ge=0, lt=1e6)]
RatioValue = Annotated[float, Bounds(ge=0, lt=1e27)]
Drift = Annotated[float, Bounds(gt=-1, lt=1e27)]
Load = Annotated[float, Bounds(ge=0, lt=1e9)]


class FieldError(ValueError):
    """Data that is no record of its kind; the message says where and why."""


def read(kind: type[T], given: Any, **known: Any) -> T:
    """A dataclass of such fields from plain data, such as JSON gives. Fields with a default may be missing.

    What is ``known`` already stands for these fields, which the data then may not have.

    `FieldError`, with the place and the reason in one line, if a field is unknown, missing, of another type or out of
    its bounds, or if a text holds what cannot be printed. ImportError, with what to do, without msgspec.
    """
    msgspec = _msgspec()
    try:
        read_in = msgspec.convert(given, _struct(kind, frozenset(known)))
    except msgspec.ValidationError as error:
        raise FieldError(str(error).replace("`$.", "`").replace(" - at `$`", "")) from error
    _assert_printable(given)
    return _made(read_in, **known)


def can_read() -> bool:
    """Whether msgspec is installed: it reads, and measuring does without it."""
    try:
        return bool(_msgspec())
    except ImportError:
        return False


def schema(kind: type) -> dict[str, Any]:
    """The JSON schema of a dataclass of such fields, with the documentation of its class."""
    return _msgspec().json.schema(_struct(kind))


def _msgspec() -> types.ModuleType:
    try:
        import msgspec
    except ImportError as error:
        raise ImportError("reading results needs msgspec, which is not installed: pip install msgspec") from error
    return msgspec


def _assert_printable(given: Any, where: str = "it") -> None:
    """No escapes for a terminal, no second line, nothing that turns a line around: in no text, nor in a name."""
    if isinstance(given, str):
        if not given.isprintable():
            raise FieldError(f"{where} holds what cannot be printed: {given[:80]!a}")
    elif isinstance(given, Mapping):
        for name, value in given.items():
            _assert_printable(name, f"a name in {where}")
            _assert_printable(value, f"`{name}`")
    elif isinstance(given, (list, tuple)) and given and not isinstance(given[0], float):  # samples: thousands
        for value in given:
            _assert_printable(value, where)


@functools.cache
def _struct(kind: type, known: frozenset[str] = frozenset()) -> type:
    """A structure of msgspec with the fields of a dataclass but those that are known, which takes no others."""
    hints = get_type_hints(kind, include_extras=True)
    fields = []
    for field in [field for field in dataclasses.fields(kind) if field.name not in known]:
        fields.append((field.name, _checked(hints[field.name])))
        if field.default is not dataclasses.MISSING:
            fields[-1] += (field.default,)
        elif field.default_factory is not dataclasses.MISSING:
            fields[-1] += (_msgspec().field(default_factory=field.default_factory),)
    namespace = {"__doc__": (kind.__doc__ or "").split("\n\n")[0], "made_into": staticmethod(kind)}
    return _msgspec().defstruct(kind.__name__, fields, namespace=namespace, forbid_unknown_fields=True, frozen=True)


def _checked(hint: Any) -> Any:
    """A type with what msgspec checks in place of our plain mappings, and structures in place of dataclasses."""
    if get_origin(hint) is Annotated:
        (bounds,) = hint.__metadata__
        return Annotated[_checked(hint.__origin__), _msgspec().Meta(**dataclasses.asdict(bounds))]
    if dataclasses.is_dataclass(hint):
        return _struct(hint)
    if get_origin(hint) is Literal or not get_args(hint):
        return hint
    kind = Union if get_origin(hint) is types.UnionType else get_origin(hint)
    return kind[tuple(map(_checked, get_args(hint)))]


def _made(value: Any, **known: Any) -> Any:
    """The dataclass that a structure stands for, with all that it holds."""
    if not hasattr(value, "__struct_fields__"):
        return value
    return type(value).made_into(**{name: _made(getattr(value, name)) for name in value.__struct_fields__}, **known)
