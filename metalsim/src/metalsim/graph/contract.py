"""What exists: the selectors of Metal and MPSGraph, their arguments and the macOS that brought each.

Read from ``selectors.json``, which is a rearrangement of PyObjC's metadata (MIT licence, LICENSE-PyObjC.txt). A name in
Python is the selector with ``:`` replaced by ``_``, as PyObjC spells it.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from metalsim.graph.errors import NeedsNewerMacOS

SOURCE = Path(str(resources.files("metalsim.graph") / "selectors.json"))
MACOS_VARIABLE = "METALSIM_MACOS"
DEFAULT_MACOS = "15.0"


@dataclass(frozen=True)
class Method:
    """One selector of a class or protocol."""

    owner: str
    selector: str
    of_class: bool
    """True for a class method (``+``), False for an instance method (``-``)."""
    arguments: tuple[str, ...]
    """Objective-C type encodings: ``@`` object, ``Q`` ``I`` ``q`` whole numbers, ``d`` ``f`` floats, ``Z`` BOOL."""
    returns: str
    since: tuple[int, ...]
    """The first macOS that has it; () if the metadata does not say."""

    @property
    def name(self) -> str:
        """As Python spells it."""
        return python_name(self.selector)

    def __str__(self) -> str:
        return f"{'+' if self.of_class else '-'}[{self.owner} {self.selector}]"


def python_name(selector: str) -> str:
    """``sortWithTensor:axis:name:`` is ``sortWithTensor_axis_name_`` in Python."""
    return selector.replace(":", "_")


def constants() -> Mapping[str, int]:
    """``MPSDataTypeFloat32`` and the other constants of MetalPerformanceShaders and MetalPerformanceShadersGraph."""
    return _read()["constants"]


def class_names() -> list[str]:
    """All classes and protocols that the contract knows."""
    return list(_read()["classes"])


@functools.cache
def methods(owner: str) -> Mapping[tuple[str, bool], Method]:
    """All methods of a class, inherited ones included, by name in Python and whether it is a class method."""
    known: dict[tuple[str, bool], Method] = {}
    for name in _ancestors(owner):
        for signed, (returns, arguments, since) in _read()["classes"][name]["methods"].items():
            method = Method(
                owner=owner,
                selector=signed[1:],
                of_class=signed[0] == "+",
                arguments=tuple(arguments.split()),
                returns=returns,
                since=version(since) if since else (),
            )
            known.setdefault((method.name, method.of_class), method)
    return known


def since(owner: str) -> tuple[int, ...]:
    """The first macOS that has a class: that of its oldest method; () if the metadata does not say."""
    own = _read()["classes"][owner]["methods"].values()
    return min((version(first) for _, _, first in own if first), default=())


def version(text: str) -> tuple[int, ...]:
    """``"13.1"`` as (13, 1), ``"15.0.0"`` as (15,): zeros at the end do not count. ValueError for anything else."""
    try:
        numbers = [int(part) for part in text.split(".")]
    except ValueError:
        raise ValueError(f"{text!r} is no macOS version; write it as '15.0'") from None
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def version_text(numbers: tuple[int, ...]) -> str:
    """(15,) as ``"15.0"``."""
    return ".".join(map(str, numbers if len(numbers) > 1 else (*numbers, 0)))


def macos() -> tuple[int, ...]:
    """The macOS that is simulated."""
    return _macos


def set_macos(text: str) -> None:
    """Simulate another macOS, ``"13.1"``: what came later is then not there. ValueError for what is no version."""
    global _macos
    _macos = version(text)


def there(method: Method) -> bool:
    """True if the simulated macOS has this method."""
    return method.since <= _macos


def missing(owner: str, name: str, of_class: bool) -> AttributeError:
    """Why a class has no such attribute: a later macOS brought it, or nothing is called so; the nearest that is."""
    known = methods(owner)
    method = known.get((name, of_class))
    if method is not None and not there(method):
        return NeedsNewerMacOS(
            f"{method} needs macOS {version_text(method.since)}; this is a simulated macOS {version_text(_macos)}"
        )
    if (name, not of_class) in known:
        kind = "an instance" if of_class else "a class"
        return AttributeError(f"'{owner}' has {name} as {kind} method, and not as the other kind")
    names = [name for name, kind in known if kind == of_class]
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"; the nearest is {nearest[0]}" if nearest else ""
    return AttributeError(f"'{owner}' object has no attribute '{name}'{hint}")


def missing_class(name: str) -> AttributeError | None:
    """Why the simulated macOS does not have a class that the contract knows, or None."""
    first = since(name)
    if first <= _macos:
        return None
    return NeedsNewerMacOS(
        f"{name} needs macOS {version_text(first)}; this is a simulated macOS {version_text(_macos)}"
    )


def _ancestors(owner: str) -> Iterator[str]:
    """A class, its superclasses, and the protocols of each, as far as the contract knows them."""
    entry = _read()["classes"].get(owner)
    if entry is None:
        return
    yield owner
    for parent in (*entry["protocols"], entry["super"]):
        if parent:
            yield from _ancestors(parent)


def _macos_of_environment() -> tuple[int, ...]:
    try:
        return version(os.environ.get(MACOS_VARIABLE) or DEFAULT_MACOS)
    except ValueError as error:
        raise ValueError(f"{MACOS_VARIABLE}: {error}") from None


_macos = _macos_of_environment()


@functools.cache
def _read() -> dict[str, Any]:
    return json.loads(SOURCE.read_text(encoding="utf-8"))
