"""The outcome of a call on a Mac: its Metal kernel accepts the arguments, refuses them, or leaves them to the CPU.

`metalsim.operators` knows which operators have a kernel. `outcome` looks at shapes, dtypes and settings, so tensors may
be on any device, ``meta`` included. `rules` has what is refused, `detours` what is left to the CPU, `alerts` what is
not deterministic, and `left_on_cpu` the words for a tensor that is not on the device. Each goes by the version of
PyTorch: of the one that is installed if none is given.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metalsim.refusals import alerts, detours, left_on_cpu, rules, versions
from metalsim.refusals.detours import Detour

__all__ = [
    "Detour",
    "Refusal",
    "alert",
    "asks_whether_deterministic",
    "describe_left_on_cpu",
    "is_refusal",
    "looks_at_arguments",
    "outcome",
]


@dataclass(frozen=True)
class Refusal:
    """A call that raises on a Mac although its operator has a Metal kernel."""

    words: str
    """The message of the exception."""
    error: type[Exception]
    way_out: str
    """What to do, for people: a part of a sentence."""


def looks_at_arguments(operator: str, version: str | None = None) -> bool:
    """Return True if calls of an operator may be refused, or left to the CPU.

    Parameters
    ----------
    operator
        Such as ``aten::addr.out``, with or without its overload.
    version
        Of PyTorch, such as ``2.13.0``: the installed one if None.
    """
    refused, computed_elsewhere = _of_version(version or versions.find_installed())
    return any(name in refused or name in computed_elsewhere for name in _names(operator))


def outcome(
    operator: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    version: str | None = None,
) -> Refusal | Detour | None:
    """Return the outcome of a call of an operator such as ``aten::_linalg_svd.U``; None if it runs on the GPU.

    Parameters
    ----------
    operator
        With or without its overload.
    args, kwargs
        The call's; `args` in the order of the operator's schema.
    version
        Of PyTorch, such as ``2.13.0``: the installed one if None.
    """
    if not looks_at_arguments(operator, version):
        return None

    refused, computed_elsewhere = _of_version(version or versions.find_installed())
    arguments = _name_arguments(operator, args, kwargs)

    for name in _names(operator):
        for rule in refused.get(name, ()):
            if fields := rule.refuses(**arguments):
                words = rule.words
                if isinstance(fields, Mapping):  # and not True: words without fields
                    words = words.format_map(fields)
                return Refusal(words, rule.error, rule.way_out)
        if name in computed_elsewhere:
            return computed_elsewhere[name](**arguments)
    return None


def asks_whether_deterministic(operator: str, version: str | None = None) -> bool:
    """Return True if calls of an operator may raise under ``torch.use_deterministic_algorithms(True)``.

    Parameters
    ----------
    operator
        With or without its overload.
    version
        Of PyTorch, such as ``2.13.0``: the installed one if None.
    """
    return alerts.find(operator, version) is not None


def alert(
    operator: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    version: str | None = None,
) -> str | None:
    """Return by which name the kernel of a call says that it is not deterministic; None if it is.

    Parameters
    ----------
    operator
        With or without its overload.
    args, kwargs
        The call's; `args` in the order of the operator's schema.
    version
        Of PyTorch, such as ``2.13.0``: the installed one if None.
    """
    found = alerts.find(operator, version)
    if found is None or not found.asks(**_name_arguments(operator, args, kwargs)):
        return None
    return found.name


def describe_left_on_cpu(operator: str, args: Sequence[Any], version: str | None = None) -> str:
    """Return the message of a call that has tensors of the device and, wrongly, one of the CPU.

    Parameters
    ----------
    operator
        With or without its overload.
    args
        The call's, in the order of the operator's schema.
    version
        Of PyTorch, such as ``2.13.0``: the installed one if None.
    """
    return left_on_cpu.words(operator, _name_arguments(operator, args, None), version)


def is_refusal(error: BaseException, version: str | None = None) -> bool:
    """Return True if an exception is a refusal of a kernel: it has the type and the words of one.

    Parameters
    ----------
    error
        Whatever a call raised.
    version
        Of the PyTorch whose refusals are known, such as ``2.13.0``: the installed one if None.
    """
    return any(
        isinstance(error, kind) and words.fullmatch(str(error))
        for kind, words in _patterns(version or versions.find_installed())
    )


def _name_arguments(
    operator: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the arguments of a call by the names of the operator's schema."""
    return {**dict(zip(_parameters(operator), args, strict=False)), **(kwargs or {})}


@functools.cache
def _of_version(
    version: str,
) -> tuple[Mapping[str, Sequence[rules.Rule]], Mapping[str, detours.Predicate]]:
    """Return what is refused and what is computed elsewhere in a version of PyTorch, by operator."""
    return rules.for_version(version), detours.for_version(version)


@functools.cache
def _patterns(version: str) -> tuple[tuple[type[Exception], re.Pattern[str]], ...]:
    """Return the type and the words of each refusal of a version; what stands in a field matches anything."""
    refused, _ = _of_version(version)
    messages = {(rule.error, rule.words) for kept in refused.values() for rule in kept}
    return tuple(
        (kind, re.compile(".+".join(map(re.escape, re.split(r"{\w+}", words)))))
        for kind, words in messages
    )


@functools.cache
def _names(operator: str) -> tuple[str, ...]:
    """Return an operator without its overload, and the other form of one that works in place."""
    plain = operator.partition(".")[0]
    is_in_place = plain.endswith("_") and not plain.endswith("__")
    return (plain, plain.removesuffix("_")) if is_in_place else (plain,)


@functools.cache
def _parameters(operator: str) -> tuple[str, ...]:
    """Return the names of an operator's parameters, in the order of its schema."""
    import torch

    name, _, overload = operator.partition(".")
    schema = torch._C._get_schema(name, "" if overload == "default" else overload)
    return tuple(argument.name for argument in schema.arguments)
