"""A trial: one claim about Macs, how it is looked into, and what came of it.

A trial is a function without arguments. The first paragraph of its docstring is the claim; what follows says how it is
looked into. It runs in a process and a folder of its own (the current one), imports what it needs inside, and returns
a `Finding`; it never decides in silence. A `metallab.checks.Mismatch` that it raises refutes its claim::

    @trial(on="gpu", used_in="notebook 02")
    def sums_are_right() -> Finding:
        \"\"\"A sum on the GPU is the CPU's.

        Of a million ones.
        \"\"\"
        total = torch.ones(10**6, device="mps").sum().item()
        return judged(total == 10**6, f"the sum is {total:g}", total=total)
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["confirmed", "refuted", "not applicable"]
Outcome = Literal["confirmed", "refuted", "raised", "crashed", "timed out", "not applicable", "not run"]
OUTCOMES: tuple[Outcome, ...] = (
    "confirmed",
    "refuted",
    "raised",
    "crashed",
    "timed out",
    "not applicable",
    "not run",
)
Hardware = Literal["gpu", "cpu", "tensorflow", "jax", "mac"]
"""What a trial is about: an Apple GPU through PyTorch or MPSGraph, which may be simulated; this processor; what
TensorFlow or JAX compute on, which is the CPU where their plugin is not; or what only a Mac has."""


@dataclass(frozen=True)
class Finding:
    """What a trial found about its claim."""

    verdict: Verdict
    said: str
    """A line: what was seen, or why nothing could be."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What was read off, for whoever reads the report: plain numbers, words, lists and dictionaries."""


@dataclass(frozen=True)
class Trial:
    """A claim, and the function that looks into it."""

    name: str
    """Its module and function: ``mps.float64_is_refused``."""
    claim: str
    how: str
    used_in: str
    """Where this project relies on the claim."""
    on: Hardware
    function: Callable[[], Finding]
    seconds: float
    """After which it is stopped."""
    environment: Mapping[str, str]
    """Variables that are set before its process starts."""

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]


TRIALS: dict[str, Trial] = {}
"""All trials by name, in the order in which their modules were imported: see `metallab.verify_mac.catalogue`."""


def trial(
    *, on: Hardware, used_in: str, seconds: float = 60, environment: Mapping[str, str] | None = None
) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Register a function as a trial. ValueError for a function without a docstring, which would claim nothing."""

    def register(function: Callable[[], Finding]) -> Callable[[], Finding]:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        claim, _, how = (inspect.getdoc(function) or "").partition("\n\n")
        if not claim:
            raise ValueError(f"the trial {name} claims nothing: say in its docstring what it looks into")
        texts = (" ".join(text.split()) for text in (claim, how))
        TRIALS[name] = Trial(name, *texts, used_in, on, function, seconds, environment or {})
        return function

    return register


def judged(holds: bool, said: str, /, **values: Any) -> Finding:
    """``confirmed`` or ``refuted``."""
    return Finding("confirmed" if holds else "refuted", said, _plain(values))


def not_applicable(reason: str, /, **values: Any) -> Finding:
    """Nothing can be said about the claim here, and why."""
    return Finding("not applicable", reason, _plain(values))


def simulated() -> bool:
    """Does this trial run on the simulated Apple GPU?"""
    return os.environ.get("METALLAB_DEVICE") == "sim"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold; anything else as its text, NaN and infinities too."""
    return json.loads(json.dumps(values, default=str), parse_constant=str)
