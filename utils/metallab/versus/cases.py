"""Functions marked as cases, in a file of their own: what is timed on both sides.

    from metallab.versus import case

    @case(group="01", sizes={"n": (256, 1024)})
    def product(n, device):
        import torch

        a = torch.rand(n, n, device=device)
        return lambda: a @ a

The function is the set-up, which is not timed. It gets a value of each of its sizes, and ``device`` (``cpu``, ``cuda``,
``mps``) if it has that parameter, and returns the function that is timed. What that one returns is the output, which
has to agree on both sides before any time is compared: arrays of one dtype or numbers, or lists and dicts of them.

This module needs only Python: it is also read in environments without Metal Lab.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

_MARK = "versus_cases"
"""The attribute of a marked function that holds its cases."""


class CaseError(ValueError):
    """A file of cases that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Case:
    """One piece of work at one size."""

    name: str
    """The function's name, with its sizes in brackets: ``product[n=256]``."""
    set_up: Callable[..., Callable[[], Any]]
    group: str = ""
    """Such as the number of a lesson: ``make versus ONLY=19``. Cases of a group share their processes."""
    tolerance: str = "float32"
    """The dtype whose tolerance decides whether outputs agree, see `metallab.checks.TOLERANCES`."""
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self, device: str) -> Callable[[], Any]:
        """Do the set-up, and return the function to be timed. TypeError if it cannot be called."""
        wants_device = "device" in inspect.signature(self.set_up).parameters
        arguments = {**self.sizes, "device": device} if wants_device else self.sizes
        work = self.set_up(**arguments)

        if not callable(work):
            raise TypeError(
                f"the case gives a {type(work).__name__}: return the function to be timed"
            )
        return work


def case(
    function: Callable[..., Any] | None = None,
    /,
    *,
    group: str = "",
    tolerance: str = "float32",
    sizes: Mapping[str, Sequence[Any]] | None = None,
) -> Callable[..., Any]:
    """Mark a function as a case, with or without options: one case for each combination of its ``sizes``.

    Seed what is random.

    Parameters
    ----------
    function
        The set-up, if there are no options; it returns the function that is timed.
    group
        Such as the number of a lesson. Cases of a group share their processes.
    tolerance
        The name of a dtype of `metallab.checks.TOLERANCES`, which decides whether outputs agree.
    sizes
        By parameter of the set-up, the values that it takes: ``{"n": (256, 1024)}``.

    Returns
    -------
    callable
        The function itself, or with options a decorator.

    Raises
    ------
    CaseError
        If an option has no name, or sizes are no values.
    """

    def mark(set_up: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function its cases, one for each combination of the sizes, by which `load` finds it; return it."""
        # @case("13"): what stands there is no function
        if function is not None and function is not set_up:
            raise CaseError(
                f"{set_up.__name__}: options have names: write @case(group={function!r})"
            )

        combinations = _combine(set_up.__name__, sizes or {})
        marked = [
            Case(_name(set_up.__name__, combination), set_up, group, tolerance, combination)
            for combination in combinations
        ]
        setattr(set_up, _MARK, marked)
        return set_up

    return mark(function) if callable(function) else mark


def _combine(function: str, sizes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each combination of the sizes, a value of each by name; one without any where there are no sizes.

    CaseError where sizes are no values, naming the function.
    """
    combinations: list[dict[str, Any]] = [{}]

    for name, values in sizes.items():
        is_several = isinstance(values, Iterable) and not isinstance(values, str)
        several = tuple(values) if is_several else ()
        if not several:
            raise CaseError(
                f"{function}: sizes of {name} are {values!r}: write {{{name!r}: (1, 2)}}"
            )
        combinations = [row | {name: value} for row in combinations for value in several]
    return combinations


def _name(function: str, sizes: Mapping[str, Any]) -> str:
    """Return the name of a case: the function's, with its sizes in brackets."""
    inside = ",".join(f"{name}={value}" for name, value in sizes.items())
    return f"{function}[{inside}]" if inside else function


def _import(path: Path) -> ModuleType:
    """Import a file of cases. CaseError if it cannot be imported."""
    spec = importlib.util.spec_from_file_location(f"versus_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CaseError(f"{path}: Python cannot import it; give it a name that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module

    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        message = f"{path}: {type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            message += "; import what a case needs inside of its function"
        raise CaseError(message) from error
    return module


def load(path: Path | str) -> dict[str, Case]:
    """Return the cases of a file by name. CaseError if it cannot be imported, or has none, or one name twice."""
    path = Path(path).resolve()
    if not path.is_file() or path.suffix != ".py":
        raise CaseError(
            f"{path}: there is no such file of Python; name one with functions marked with @case"
        )

    functions = vars(_import(path)).values()
    marked = [one for function in functions for one in getattr(function, _MARK, ())]
    cases = {one.name: one for one in marked}
    if len(cases) < len(marked):
        raise CaseError(f"{path}: two cases have one name; give each function its own")
    if not cases:
        raise CaseError(f"{path}: it has no cases; mark functions with @case from metallab.versus")
    return cases
