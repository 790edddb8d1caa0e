"""What a test claims of a Mac, and what came of it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

Outcome = Literal["confirmed", "refuted", "raised", "crashed", "timed out", "not applicable", "not run"]
OUTCOMES: tuple[Outcome, ...] = (
    *("confirmed", "refuted", "raised", "crashed", "timed out"),
    *("not applicable", "not run"),
)
LOOK: tuple[Outcome, ...] = ("refuted", "raised", "crashed", "timed out")
"""Outcomes that want a look."""
Hardware = Literal["gpu", "cpu", "tensorflow", "jax", "mlx", "mac"]
"""What a claim is about: an Apple GPU through PyTorch or MPSGraph, which is simulated where there is no Mac; this
processor; what TensorFlow, JAX or MLX compute on, which is the CPU where their GPU is not; or what only a Mac has."""
ON_A_MAC = sys.platform == "darwin"
LAST = ("converting", "inductor", "jax", "tensorflow", "operators")
"""Groups that take minutes: what is quick and basic comes first."""
PRINTED = 6000
"""Characters that are kept of what a test printed, and of its traceback."""


@dataclass(frozen=True)
class Claim:
    """A test, in the words of who relies on it."""

    name: str
    """Its group and function: ``mps.float64_is_refused``."""
    about: str
    """What its group is about."""
    claim: str
    how: str
    used_in: str
    """Where this project relies on it."""
    on: Hardware = "gpu"
    seconds: float = 60
    """After which it is stopped."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set before its process starts, which it then has to itself."""
    slow: bool = False
    """Whether it is asked by ``make verify-mac`` alone: it takes long, and its page shows the same in ``make test``."""

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def alone(self) -> bool:
        """Whether it has a process to itself."""
        return bool(self.environment)

    @property
    def evidence(self) -> Literal["Mac", "simulated", "CPU"]:
        """What stands behind a result: a Mac; or a simulation, or a CPU in a GPU's place, which say that the test's
        code works and nothing about a Mac."""
        if ON_A_MAC:
            return "Mac"
        return "simulated" if self.on == "gpu" else "CPU"


@dataclass(frozen=True)
class Result:
    """What came of a claim."""

    name: str
    about: str
    claim: str
    how: str
    used_in: str
    outcome: Outcome
    message: str
    """A line: what was found, or how it ended."""
    evidence: Literal["Mac", "simulated", "CPU", "none"]
    seconds: float = 0.0
    values: Mapping[str, Any] = field(default_factory=dict)
    """What was read off: plain numbers, words, lists and dictionaries."""
    printed: str = ""
    detail: str = ""
    """A traceback."""


def claim(item: pytest.Item) -> Claim:
    """What a test claims, by its marks `claim`, the nearest first, and its docstring or name.

    `pytest.UsageError` for a test that does not say who relies on it.
    """
    marks: dict[str, Any] = {}
    for mark in item.iter_markers("claim"):
        marks = mark.kwargs | marks
    if not marks.get("used_in"):
        raise pytest.UsageError(f"{item.nodeid} is no claim: say where it is relied on, pytest.mark.claim(used_in=...)")
    words, _, how = (inspect.getdoc(item.function) or "").partition("\n\n")
    name = item.name.removeprefix("test_")
    words = " ".join(words.split()) or f"{name.replace('_', ' ')}."
    about = (item.module.__doc__ or "").strip().partition("\n")[0].rstrip(".:")
    return Claim(f"{item.path.stem.removeprefix('test_')}.{name}", about, words, " ".join(how.split()), **marks)


def plain(value: Any) -> Any:
    """What JSON can hold; anything else as its text, NaN and infinities too."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def of_reports(reports: list[pytest.TestReport]) -> tuple[Outcome, str, str]:
    """The outcome of a test by its reports, a line of what was found, and its traceback."""
    for report in reports:
        if report.failed:
            kept = dict(report.user_properties)
            line = kept.get("raised") or str(report.longrepr).strip().splitlines()[-1]
            return kept.get("outcome", "raised"), line, report.longreprtext
        if report.skipped:
            outcome = dict(report.user_properties).get("outcome", "not applicable")
            return outcome, report.longrepr[2].removeprefix("Skipped: "), ""
    values = values_of(reports)
    texts = [f"{key}: {value}" for key, value in values.items() if len(str(value)) < 100]
    return "confirmed", "; ".join(texts) or "as claimed", ""


def values_of(reports: list[pytest.TestReport]) -> dict[str, Any]:
    """What the fixture ``evidence`` was told."""
    return dict(pair for report in reports for name, pair in report.user_properties if name == "evidence")


def not_asked(item: pytest.Item, why: str, outcome: Outcome) -> pytest.TestReport:
    """The report of a test that is not run, and why."""
    where = (str(item.path), item.location[1], f"Skipped: {why}")
    told = [("outcome", outcome)]
    return pytest.TestReport(item.nodeid, item.location, {}, "skipped", where, "setup", user_properties=told)


def device(name: str) -> Literal["mps", "sim"]:
    """Which Apple GPU a run uses, from ``auto``, ``mps`` or ``sim``. `pytest.UsageError` for one that is not here."""
    here = "mps" if ON_A_MAC else "sim"
    if name not in ("auto", "mps", "sim"):
        raise pytest.UsageError(f"there is no device {name!r} to verify: auto, mps and sim are possible")
    if name not in ("auto", here):
        there = {"mps": "this is a Mac, whose GPU is not simulated", "sim": "this is no Mac"}[here]
        raise pytest.UsageError(f"{name} was asked for, but {there}: leave DEVICE out, or say DEVICE={here}")
    return here


def chosen(items: list[pytest.Item], words: set[str]) -> list[pytest.Item]:
    """The tests of these groups or names. `pytest.UsageError`, with what there is, for a word that is neither."""
    names = {item.nodeid: _names(item) for item in items}
    groups = sorted({group for group, *_ in names.values()})
    for word in sorted(words):
        if not any(word in known for known in names.values()):
            raise pytest.UsageError(
                f"ONLY={word} is no group and no test: groups are {', '.join(groups)}; "
                "pytest tests/conformance --collect-only names all tests"
            )
    return [item for item in items if words & set(names[item.nodeid])]


def _names(item: pytest.Item) -> list[str]:
    """A group and its tests go by name; one of several cases of a test by its own as well as by theirs."""
    name = claim(item).name
    together = name.partition("[")[0]
    return [name.partition(".")[0], name, together, name.partition(".")[2], together.partition(".")[2]]


def rank(group: str) -> int:
    """The place of a group among the others."""
    return 1 + LAST.index(group) if group in LAST else 0
