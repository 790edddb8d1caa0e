"""One file that a person reads and a program reads back: Markdown, with the same as JSON at its end.

Whatever a trial recorded is text from a machine: in fences that it cannot close, and in cells that it cannot leave.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from metallab.machine import Machine
from metallab.verify_mac.catalogue import GROUPS
from metallab.verify_mac.runner import Result
from metallab.verify_mac.trial import OUTCOMES

SCHEMA = 1
_JSON = "```json\n"
LOOK = ("refuted", "raised", "crashed", "timed out")
"""Outcomes that want a look."""


class NotAReport(ValueError):
    """A file that `read` cannot read; the message says why."""


@dataclass(frozen=True)
class Report:
    """All results of one run, with the machine's description."""

    machine: Machine
    simulated: bool
    made: str
    """The day: ``2026-11-21``."""
    minutes: float
    results: tuple[Result, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many trials ended in each way."""
        return Counter(result.outcome for result in self.results)

    @property
    def name(self) -> str:
        """What its file is called: ``verify-mac-apple-m2-2026-11-21.md``."""
        where = "simulated" if self.simulated else self.machine.chip or "mac"
        return f"verify-mac-{re.sub(r'[^a-z0-9]+', '-', where.lower()).strip('-')}-{self.made}.md"

    def __str__(self) -> str:
        parts = [_head(self), _summary(self), _to_look_at(self), *_groups(self), _recorded(self), _as_json(self)]
        return "\n\n".join(part for part in parts if part) + "\n"


def read(path: Path) -> dict[str, Any]:
    """The JSON in a report's file, as plain data: it comes from a stranger. `NotAReport` for another file."""
    try:
        _, found, rest = path.read_text(encoding="utf-8").rpartition(_JSON)
        data = json.loads(rest.removesuffix("\n").removesuffix("```")) if found else None
    except ValueError as error:
        raise NotAReport(f"{path.name}, or the JSON at its end, is damaged ({error}): ask for it again") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise NotAReport(f"{path.name} is no report of make verify-mac of this version")
    return data


def _head(report: Report) -> str:
    here = report.machine
    if report.simulated:
        first = (
            "> **SIMULATED.** No Mac took part. This shows that the trials' code works, and nothing about a Mac: "
            "trials of a GPU ran on a simulated one, those of TensorFlow and JAX on this CPU."
        )
    else:
        first = f"> On {_cell(here.chip or 'a Mac')}, {_cell(here.os_name or '')} {_cell(here.os_version or '')}."
    versions = ", ".join(f"{name} {version}" for name, version in here.versions.items() if version)
    return "\n".join(
        [
            "# Metal Lab on a Mac: what was found",
            "",
            first,
            "",
            f"Made on {report.made}, in {report.minutes:.0f} minutes, at revision "
            f"{(here.git_revision or 'unknown')[:12]}{', with changes' if here.git_dirty else ''}. "
            "No name, host or home folder is in this file.",
            "",
            f"Python {here.python}; {versions}.",
        ]
    )


def _summary(report: Report) -> str:
    rows = [f"| {outcome} | {report.counts[outcome]} |" for outcome in OUTCOMES if report.counts[outcome]]
    return "\n".join(["| outcome | trials |", "|---|---|", *rows])


def _to_look_at(report: Report) -> str:
    found = [result for result in report.results if result.outcome in LOOK]
    if not found:
        return "## What wants a look\n\nNothing."
    return "## What wants a look\n\n" + _table(found)


def _groups(report: Report) -> Iterable[str]:
    for group, about in GROUPS.items():
        if found := [result for result in report.results if result.name.partition(".")[0] == group]:
            yield f"## {group}: {about}\n\n{_table(found)}"


def _table(results: Iterable[Result]) -> str:
    rows = ["| trial | claim | outcome | what was found | on |", "|---|---|---|---|---|"]
    for result in results:
        cells = (f"`{result.name}`", result.claim, outcome(result), result.said[:200], result.ran_on)
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(rows)


def outcome(result: Result) -> str:
    """An outcome, and that there was no Mac where there was none: ``confirmed (simulated)``."""
    aside = {"simulated": " (simulated)", "CPU": " (no Mac's CPU)"}.get(result.evidence, "")
    return result.outcome + aside


def _recorded(report: Report) -> str:
    return "## What was recorded\n\n" + "\n\n".join(_record(result) for result in report.results if result.seconds)


def _record(result: Result) -> str:
    lines = [f"### {result.name}: {outcome(result)}", "", f"{_cell(result.claim)} {_cell(result.how)}".rstrip()]
    lines += ["", f"Relied on in: {_cell(result.used_in)}. It took {result.seconds:.1f} s."]
    said = {"found": result.said, "printed": result.printed, "said on standard error": result.detail}
    if result.values:
        said["values"] = json.dumps(result.values, indent=1, ensure_ascii=False)
    return "\n".join([*lines, *(_fenced(title, text) for title, text in said.items() if text.strip())])


def _fenced(title: str, text: str) -> str:
    """Text in a fence that is longer than any inside."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"\n{title}:\n\n{fence}text\n{text.strip()}\n{fence}"


def _as_json(report: Report) -> str:
    data: Mapping[str, Any] = {
        "schema": SCHEMA,
        "simulated": report.simulated,
        "made": report.made,
        "minutes": round(report.minutes, 1),
        "machine": json.loads(report.machine.to_json()),
        "results": [asdict(result) for result in report.results],
    }
    return f"## The same as JSON\n\n{_JSON}{json.dumps(data, indent=1, allow_nan=False)}\n```"


def _cell(text: str) -> str:
    """Text inside of a line or a table's cell."""
    text = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("&", "&amp;").replace("<", "&lt;")
