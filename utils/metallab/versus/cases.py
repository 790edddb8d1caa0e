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
from typing import Any


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
        work = self.set_up(**self.sizes, **({"device": device} if wants_device else {}))
        if not callable(work):
            raise TypeError(
                f"the case gives a {type(work).__name__}: return the function to be timed"
            )
        return work


def case(
    function: Callable | None = None,
    /,
    *,
    group: str = "",
    tolerance: str = "float32",
    sizes: Mapping[str, Sequence[Any]] | None = None,
) -> Callable:
    """Mark a function as a case, with or without options: one case for each combination of its ``sizes``.

    ``tolerance`` names a dtype of `metallab.checks.TOLERANCES`. Seed what is random. CaseError for wrong options.
    """

    def mark(set_up: Callable) -> Callable:
        if function is not None and function is not set_up:
            raise CaseError(
                f"{set_up.__name__}: options have names: write @case(group={function!r})"
            )
        rows: list[dict[str, Any]] = [{}]
        for name, several in (sizes or {}).items():
            if (
                isinstance(several, str)
                or not isinstance(several, Iterable)
                or not (values := tuple(several))
            ):
                raise CaseError(
                    f"{set_up.__name__}: sizes of {name} are {several!r}: write {{{name!r}: (1, 2)}}"
                )
            rows = [row | {name: value} for row in rows for value in values]
        set_up.versus_cases = []
        for row in rows:
            inside = ",".join(f"{name}={value}" for name, value in row.items())
            name = f"{set_up.__name__}[{inside}]" if inside else set_up.__name__
            set_up.versus_cases.append(Case(name, set_up, group, tolerance, row))
        return set_up

    return mark(function) if callable(function) else mark


def load(path: Path | str) -> dict[str, Case]:
    """Return the cases of a file by name. CaseError if it cannot be imported, or has none, or one name twice."""
    path = Path(path).resolve()
    if not path.is_file() or path.suffix != ".py":
        raise CaseError(
            f"{path}: there is no such file of Python; name one with functions marked with @case"
        )
    spec = importlib.util.spec_from_file_location(f"versus_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        advice = (
            "; import what a case needs inside of its function"
            if isinstance(error, ImportError)
            else ""
        )
        raise CaseError(f"{path}: {type(error).__name__}: {error}{advice}") from error
    marked = [
        one for function in vars(module).values() for one in getattr(function, "versus_cases", ())
    ]
    cases = {one.name: one for one in marked}
    if len(cases) < len(marked):
        raise CaseError(f"{path}: two cases have one name; give each function its own")
    if not cases:
        raise CaseError(f"{path}: it has no cases; mark functions with @case from metallab.versus")
    return cases
