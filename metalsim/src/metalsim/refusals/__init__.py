"""The outcome of a call on a Mac: its Metal kernel accepts the arguments, refuses them, or leaves them to the CPU.

`metalsim.operators` knows which operators have a kernel. `outcome` looks at shapes, dtypes and settings, so tensors may
be on any device, ``meta`` included. `rules` has what is refused, `detours` what is left to the CPU.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metalsim.refusals import detours, rules
from metalsim.refusals.detours import Detour

__all__ = ["Detour", "Refusal", "is_refusal", "looks_at_arguments", "outcome"]


@dataclass(frozen=True)
class Refusal:
    """A call that raises on a Mac although its operator has a Metal kernel."""

    words: str
    """The message of the exception."""
    error: type[Exception]
    way_out: str
    """What to do, for people: a part of a sentence."""


def looks_at_arguments(operator: str) -> bool:
    """Return True if calls of an operator such as ``aten::addr.out`` may be refused."""
    return any(name in rules.RULES or name in detours.RULES for name in _names(operator))


def outcome(
    operator: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Refusal | Detour | None:
    """Return the outcome of a call of an operator such as ``aten::_linalg_svd.U``; None if it runs on the GPU.

    ``args`` are in the order of the operator's schema.
    """
    if not looks_at_arguments(operator):
        return None
    arguments = {**dict(zip(_parameters(operator), args, strict=False)), **(kwargs or {})}
    for name in _names(operator):
        for rule in rules.RULES.get(name, ()):
            if fields := rule.refuses(**arguments):
                words = rule.words.format(**fields) if isinstance(fields, Mapping) else rule.words
                return Refusal(words, rule.error, rule.way_out)
        if name in detours.RULES:
            return detours.RULES[name](**arguments)
    return None


def is_refusal(error: BaseException) -> bool:
    """Return True if an exception is a refusal of a kernel."""
    return any(
        isinstance(error, kind) and words.fullmatch(str(error)) for kind, words in _patterns()
    )


@functools.cache
def _patterns() -> tuple[tuple[type[Exception], re.Pattern[str]], ...]:
    messages = {(rule.error, rule.words) for kept in rules.RULES.values() for rule in kept}
    return tuple(
        (kind, re.compile(".+".join(map(re.escape, re.split(r"{\w+}", words)))))
        for kind, words in messages
    )


@functools.cache
def _names(operator: str) -> tuple[str, ...]:
    """Return an operator without its overload, and the other form of one that works in place."""
    plain = operator.partition(".")[0]
    return (
        (plain, plain.removesuffix("_"))
        if plain.endswith("_") and not plain.endswith("__")
        else (plain,)
    )


@functools.cache
def _parameters(operator: str) -> tuple[str, ...]:
    import torch

    name, _, overload = operator.partition(".")
    schema = torch._C._get_schema(name, "" if overload == "default" else overload)
    return tuple(argument.name for argument in schema.arguments)
