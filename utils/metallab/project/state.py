"""What a project keeps in ``steps.json``: the doctor's reports, and each step with what it was given and found."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from metallab import doctor, paths, pytorch
from metallab.doctor.report import SCHEMA as DOCTOR_SCHEMA
from metallab.doctor.report import Report
from metallab.doctor.results import Asked
from metallab.outcomes import Status
from metallab.project import wording
from metalsim import refusals

Which = Literal["script", "moved"]
"""The two versions of a reader's model."""
STEPS = 9
SCHEMA = f"metallab project 2, {DOCTOR_SCHEMA}"
"""Of ``steps.json``."""


@dataclass(frozen=True)
class Finding:
    """What a step found."""

    summary: str
    places: tuple[Asked, ...] = ()
    """What was asked: hardware, or PyTorch's tables."""
    operators: Asked | None = None
    """What was asked of operators, if that was something else."""
    is_counted: bool = False
    """Nothing was asked: it was counted."""
    details: tuple[str, ...] = ()
    open_points: tuple[str, ...] = ()
    """What the step could not find out."""
    is_undecided: bool = False
    """Times were taken, and no speed-up may be given."""
    lacks_apple_gpu: bool = False
    """A part was not asked, because there was no Apple GPU, be it simulated."""


@dataclass
class Step:
    """One of the steps."""

    number: int
    given: str = ""
    finding: Finding | None = None
    """None if it is not done, or was refused."""
    refusal: str | None = None
    """Why it was refused; None if it was not."""
    digests: dict[str, str] = field(default_factory=dict)
    """Of the files that it depends on, by factory."""
    is_outdated: bool = False
    """It was done with an older version of a file."""

    @property
    def name(self) -> str:
        """What it asks."""
        return wording.step_name(self.number)

    @property
    def status(self) -> Status:
        """How it ended."""
        if self.refusal is not None:
            return "failed"
        if self.finding is None:
            return "skipped"
        return "incomplete" if self.is_outdated or self.finding.is_undecided else "passed"

    @property
    def words(self) -> str:
        """The status, and why it is that."""
        return wording.step_status(self)

    @property
    def on(self) -> str:
        """What was asked."""
        return self.on_short("")

    def on_short(self, cpu: str) -> str:
        """Return on what a step's finding rests, for a column of the report.

        That is *counted* where no device was asked; else the places that were asked, which are hardware or PyTorch's
        tables, and where the operators were asked if that was another place. It is empty if nothing was found.

        Parameters
        ----------
        cpu
            The label of this machine's CPU, in whose place *CPU* stands; empty to leave all labels as they are.
        """
        finding = self.finding
        if finding is None:
            return ""
        if finding.is_counted:
            return wording.PHRASES["counted"]

        places = wording.PHRASES["and"].join(_place(each, cpu) for each in finding.places)
        if finding.operators is None:
            return places
        operators = _place(finding.operators, cpu)
        if not places:
            return wording.PHRASES["operators of"].format(asked=operators)
        return wording.PHRASES["places and operators"].format(places=places, asked=operators)

    @property
    def lines(self) -> list[str]:
        """What it found, the most important first; or why it was refused."""
        if self.refusal is not None:
            return [self.refusal]
        if self.finding is None:
            return []
        return [self.finding.summary, *self.finding.details, *self.finding.open_points]


def _place(asked: Asked, cpu: str) -> str:
    return wording.shorten_place(asked, cpu) if cpu else doctor.wording.describe_asked(asked)


@dataclass(frozen=True)
class Basis:
    """What a report of the doctor depends on, beside the questions."""

    factory: str
    digest: str
    """Of the factory's file."""
    minutes: float
    torch: str
    library: str
    """A digest of the code that asked."""

    @classmethod
    def now(cls, factory: str, minutes: float) -> Basis:
        """Return what a report that is made now depends on."""
        torch_version, library = read_versions()
        return cls(factory, digest_of(factory), minutes, torch_version, library)


@dataclass(frozen=True)
class Examination:
    """A report of the doctor, and what it was made from."""

    report: Report
    basis: Basis


@dataclass
class State:
    """A project's examinations and steps."""

    examined: dict[Which, Examination] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        """Write the state, whole or not at all; OSError if it cannot be written."""
        data = {
            "schema": SCHEMA,
            "examined": {
                which: {"report": each.report.to_json(), "basis": msgspec.to_builtins(each.basis)}
                for which, each in self.examined.items()
            },
            "steps": [msgspec.to_builtins(step) for step in self.steps.values()],
        }
        paths.write_atomically(file, json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> State:
        """Return the state that `save` wrote; an empty one if there is no file.

        A file of another version of this library is renamed, not deleted, and that is printed; the state is empty then.

        Raises
        ------
        ValueError, TypeError, AttributeError
            If the file is no JSON, or something in it has another type.
        KeyError
            If a field is missing.
        OSError
            If the file cannot be read or renamed.
        """
        if not file.exists():
            return cls()

        data: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if data.get("schema") != SCHEMA:
            kept = file.rename(file.with_name("steps.older.json"))
            print(wording.PHRASES["begun anew"].format(file=file.name, kept=kept.name))
            return cls()

        examined = {}
        for which, each in data["examined"].items():
            basis = msgspec.convert(each["basis"], Basis)
            examined[which] = Examination(Report.from_json(each["report"]), basis)
        steps = msgspec.convert(data["steps"], list[Step])
        return cls(examined, {step.number: step for step in steps})


def digest_of(factory: str) -> str:
    """Return a digest of the file of a factory; empty if there is none, or it cannot be read.

    To find ``package.module`` Python imports the package. What that raises is raised here, but for ImportError,
    ValueError and OSError, such as of a library that does not load: they count as a file that cannot be read.
    """
    try:
        found = find_spec(factory.partition(":")[0])
        if found is None or found.origin is None:
            return ""
        return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
    except (ImportError, ValueError, OSError):
        return ""


@functools.cache
def read_versions() -> tuple[str, str]:
    """Return what an answer of the doctor depends on, beside the model: PyTorch's version, and a digest of our code."""
    digest = hashlib.sha256()
    folders = [Path(each.__file__ or "").parent for each in (doctor, pytorch, refusals)]
    # of the simulated GPU the whole package, in which the refusals are a folder: each part may change an answer
    for folder in [*folders[:2], folders[2].parent]:
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return str(torch.__version__), digest.hexdigest()
