"""One file that a person reads and a program reads back: Markdown, with the same as JSON at its end.

It is made of what is in a journal, a file of lines of JSON to which each result is added as it comes; of a run that was
killed, ``python tests/conformance/report.py JOURNAL`` writes the report of what there is. Whatever a test recorded is
text from a machine: in fences that it cannot close, and in cells that it cannot leave.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.claims import LOOK, OUTCOMES, PRINTED, Claim, Outcome, Result
from conformance.privacy import Scrubber
from metallab import paths
from metallab.machine import Machine

SCHEMA = 2
_JSON = "```json\n"


class NotAReport(ValueError):
    """A file that `read` or `journal` cannot read; the message says why."""


@dataclass(frozen=True)
class Head:
    """Of what machine and day a run is."""

    machine: Machine
    simulated: bool
    made: str
    """The day: ``2026-11-21``."""

    @property
    def name(self) -> str:
        """What the report's file is called: ``verify-mac-apple-m2-2026-11-21.md``."""
        where = "simulated" if self.simulated else self.machine.chip or "mac"
        return f"verify-mac-{re.sub(r'[^a-z0-9]+', '-', where.lower()).strip('-')}-{self.made}.md"

    def as_json(self) -> dict[str, Any]:
        told = json.loads(self.machine.to_json())
        return {"schema": SCHEMA, "simulated": self.simulated, "made": self.made, "machine": told}


class Journal:
    """The results of a run, each on disk before the next test begins."""

    def __init__(self, path: Path, head: Head, scrubber: Scrubber) -> None:
        self.path, self.head, self.scrubber = path, head, scrubber
        self.results: list[Result] = []
        self.trouble = ""
        """Why the file cannot be written; empty if it can. What was found before is in it."""
        self._add(head.as_json(), "w")

    def note(
        self,
        claim: Claim,
        outcome: Outcome,
        message: str,
        seconds: float,
        values: Mapping[str, Any],
        printed: str,
        detail: str,
    ) -> None:
        """Keep a result, without what is personal."""
        clean = self.scrubber
        texts = {"message": message[:1000], "printed": printed[-PRINTED:], "detail": detail[-PRINTED:]}
        texts = {name: clean.text(text) for name, text in texts.items()}
        ran = outcome != "not run" and seconds + len(printed) > 0
        words = {"name": clean.text(claim.name), "claim": claim.claim, "how": claim.how, "used_in": claim.used_in}
        result = Result(
            about=claim.about,
            outcome=outcome,
            evidence=claim.evidence if ran else "none",
            seconds=round(seconds, 2),
            values=clean.value(dict(values)),
            **words,
            **texts,
        )
        self.results.append(result)
        self._add(asdict(result), "a")

    def _add(self, data: Mapping[str, Any], how: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(how, encoding="utf-8") as file:
                file.write(f"{json.dumps(data)}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.trouble = f"{_shown(self.path)} cannot be written ({error.strerror}); make room there"

    def write(self, path: Path, minutes: float) -> str:
        """Write the report, and say where it is. If that cannot be, say it all here: minutes of work are not lost."""
        text = markdown(self.head.as_json(), [asdict(each) for each in self.results], minutes)
        counted = ", ".join(f"{n} {outcome}" for outcome, n in Counter(r.outcome for r in self.results).most_common())
        try:
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            self.trouble = self.trouble or f"{_shown(path)} cannot be written ({error.strerror})"
            return f"{text}\n{counted}.\n{self.trouble}: the report stands above; copy it from here"
        told = f"{counted}.\nThe report: {_shown(path)}"
        if self.head.simulated:
            return told
        return f"{told}\nRead it, then attach it to an issue: docs/first_hour_on_a_mac.md says where."

    def status(self, of_pytest: int) -> int:
        """The exit code: 0 if each claim is confirmed or not applicable, else 1; pytest's own for other mistakes."""
        if of_pytest not in (0, 1, 2):
            return of_pytest
        fine = all(result.outcome in ("confirmed", "not applicable") for result in self.results)
        return 0 if fine and not self.trouble else 1


def _shown(path: Path) -> Path:
    return path.resolve().relative_to(paths.ROOT) if path.resolve().is_relative_to(paths.ROOT) else path


def read(path: Path) -> dict[str, Any]:
    """The JSON in a report's file, as plain data: it comes from a stranger. `NotAReport` for another file."""
    try:
        _, marker, rest = path.read_text(encoding="utf-8").rpartition(_JSON)
        data = json.loads(rest.removesuffix("\n").removesuffix("```")) if marker else None
    except (ValueError, RecursionError) as error:
        raise NotAReport(f"{path.name}, or the JSON at its end, is damaged ({error}): ask for it again") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise NotAReport(f"{path.name} is no report of make verify-mac of this version")
    return data


def journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A journal's head and results, but for a last line that was cut off. `NotAReport` for another file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    try:
        head, *results = (json.loads(line) for line in lines if line.endswith("\n"))
    except ValueError as error:
        raise NotAReport(f"{path.name} is damaged, or no journal of make verify-mac ({error})") from error
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise NotAReport(f"{path.name} is no journal of make verify-mac of this version")
    return head, results


def markdown(head: Mapping[str, Any], results: Sequence[Mapping[str, Any]], minutes: float | None) -> str:
    """The report."""
    parts = [_head(head, minutes), _summary(results), _to_look_at(results), *_groups(results), _recorded(results)]
    data = {**head, "results": list(results)}
    parts.append(f"## The same as JSON\n\n{_JSON}{json.dumps(data, indent=1, allow_nan=False)}\n```")
    return "\n\n".join(parts) + "\n"


def _head(head: Mapping[str, Any], minutes: float | None) -> str:
    here = head["machine"]
    if head["simulated"]:
        first = (
            "> **SIMULATED.** No Mac took part. This shows that the tests work, and nothing about a Mac: those of a "
            "GPU ran on a simulated one, those of TensorFlow, JAX and MLX on this CPU."
        )
    else:
        where = [here["chip"] or "a Mac", f"{here['os_name'] or ''} {here['os_version'] or ''}"]
        first = f"> On {', '.join(map(_cell, where))}."
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items() if version)
    took = "in a run that was cut short" if minutes is None else f"in {minutes:.0f} minutes"
    return "\n".join(
        [
            "# Metal Lab on a Mac: what was found",
            "",
            first,
            "",
            f"Made on {head['made']}, {took}, at revision "
            f"{(here['git_revision'] or 'unknown')[:12]}{', with changes' if here['git_dirty'] else ''}. "
            "No name, host or home folder is in this file.",
            "",
            f"Python {here['python']}; {versions}.",
        ]
    )


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(result["outcome"] for result in results)
    rows = [f"| {outcome} | {counts[outcome]} |" for outcome in OUTCOMES if counts[outcome]]
    return "\n".join(["| outcome | claims |", "|---|---|", *rows])


def _to_look_at(results: Sequence[Mapping[str, Any]]) -> str:
    listed = [result for result in results if result["outcome"] in LOOK]
    return "## What wants a look\n\n" + (_table(listed) if listed else "Nothing.")


def _groups(results: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(f"{result['name'].partition('.')[0]}: {result['about']}", []).append(result)
    for group, of_group in groups.items():
        yield f"## {group}\n\n{_table(of_group)}"


def _table(results: Iterable[Mapping[str, Any]]) -> str:
    rows = ["| name | claim | outcome | what was found | relied on in |", "|---|---|---|---|---|"]
    for result in results:
        cells = (f"`{result['name']}`", result["claim"], label(result), result["message"][:200], result["used_in"])
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(rows)


def label(result: Mapping[str, Any]) -> str:
    """An outcome, and that there was no Mac where there was none: ``confirmed (simulated)``."""
    aside = {"simulated": " (simulated)", "CPU": " (no Mac's CPU)"}.get(result["evidence"], "")
    return result["outcome"] + aside


def _recorded(results: Sequence[Mapping[str, Any]]) -> str:
    kept = [result for result in results if result["values"] or result["printed"].strip() or result["detail"]]
    return "\n\n".join(["## What was recorded", *map(_record, kept)])


def _record(result: Mapping[str, Any]) -> str:
    lines = [f"### {_cell(result['name'])}: {label(result)}", "", _cell(f"{result['claim']} {result['how']}"), ""]
    lines.append(f"Relied on in: {_cell(result['used_in'])}. It took {result['seconds']:.1f} s.")
    told = {"printed": result["printed"], "what was raised": result["detail"]}
    if result["values"]:
        told["recorded"] = json.dumps(result["values"], indent=1, ensure_ascii=False)
    return "\n".join([*lines, *(_fenced(title, text) for title, text in told.items() if text.strip())])


def _fenced(title: str, text: str) -> str:
    """Text in a fence that is longer than any inside."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"\n{title}:\n\n{fence}text\n{text.strip()}\n{fence}"


def _cell(text: str) -> str:
    """Text inside of a line or a table's cell."""
    text = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("&", "&amp;").replace("<", "&lt;")


if __name__ == "__main__":
    (given,) = map(Path, sys.argv[1:])
    given.with_suffix(".md").write_text(markdown(*journal(given), None), encoding="utf-8", errors="backslashreplace")
    print(f"The report: {given.with_suffix('.md')}")
