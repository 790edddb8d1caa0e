"""One file that a person reads and a program reads back: Markdown, with the same as JSON at its end.

It is made of a journal, a file of lines of JSON: the machine and the claims, then each result. Whatever a test recorded
is text from a machine: in fences that it cannot close, and in cells that it cannot leave, without private names.
"""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.claims import ON_A_MAC, Claim
from metallab import machine, redact

SCHEMA = 2
OUTCOMES = ("confirmed", "refuted", "raised", "crashed", "timed out", "not applicable", "not run")
LOOK = OUTCOMES[1:5]
"""Outcomes to look at."""
PRINTED = 6000
"""Characters that are kept of what a test printed, and of its traceback."""


def file_name(described: machine.Machine) -> str:
    """Return the name of today's report: ``verify-mac-apple-m2-2026-11-21.md``."""
    where = (described.chip or "mac") if ON_A_MAC else "simulated"
    return f"verify-mac-{re.sub(r'[^a-z0-9]+', '-', where.lower()).strip('-')}-{datetime.date.today()}.md"


def start(journal: Path, described: machine.Machine, claims: Mapping[str, Claim]) -> None:
    """Begin a journal."""
    kept = ("name", "about", "claim", "how", "used_in", "evidence", "seconds")
    about = {
        nodeid: {name: getattr(claim, name) for name in kept} for nodeid, claim in claims.items()
    }
    head = {"schema": SCHEMA, "simulated": not ON_A_MAC, "made": str(datetime.date.today())}
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text(
        json.dumps({**head, "machine": json.loads(described.to_json()), "claims": about}) + "\n"
    )


def read_journal(journal: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the first line of a journal without its claims, and a result for each of these claims, in their order.

    A result has what was claimed and what came of it, without private names and long texts: *not run* if the journal
    has no line of it. A last line that was cut off, as by a run that was killed, is left out.
    """
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    head, *noted = (json.loads(line) for line in lines if line.endswith("\n"))
    found = {each.pop("nodeid"): each for each in noted}
    results = []
    for nodeid, claim in head.pop("claims").items():
        nothing = {"outcome": "not run", "message": "the time was up, or the run was interrupted"}
        limit = claim.pop("seconds")
        result = {
            "seconds": 0.0,
            "values": {},
            "printed": "",
            "detail": "",
            **claim,
            **found.get(nodeid, nothing),
        }
        # what does not return to Python at its time limit has its process ended somewhat later
        if result["outcome"] == "crashed" and result["seconds"] > limit:
            result["outcome"] = "timed out"
        if result["outcome"] in ("not run", "not applicable"):
            result["evidence"] = "none"  # no machine said anything
        result |= {name: result[name][-PRINTED:] for name in ("printed", "detail")}
        results.append(
            public(
                {
                    **result,
                    "message": result["message"][:1000],
                    "seconds": round(result["seconds"], 2),
                }
            )
        )

    return head, results


def public(value: Any) -> Any:
    """Return a value whose texts, everywhere inside, have no private paths and names."""
    if isinstance(value, str):
        return redact.scrub(value)
    if isinstance(value, dict):
        return {public(key): public(item) for key, item in value.items()}
    return [public(item) for item in value] if isinstance(value, list) else value


def read(path: Path) -> dict[str, Any]:
    """Return the JSON at the end of a report. ValueError for another file."""
    _, _, data = path.read_text(encoding="utf-8").rpartition("```json\n")
    return json.loads(data.removesuffix("```\n"))


def markdown(head: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Return the report: outcomes counted, what wants a look, a table of each group, records, and all of it as JSON.

    ``head`` and ``results`` are what `read_journal` returns; `read` finds them again in the text.
    """
    counts = Counter(result["outcome"] for result in results)
    summary = [f"| {outcome} | {counts[outcome]} |" for outcome in OUTCOMES if counts[outcome]]
    look = [result for result in results if result["outcome"] in LOOK]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(f"{result['name'].partition('.')[0]}: {result['about']}", []).append(
            result
        )
    recorded = [
        result
        for result in results
        if result["values"] or result["printed"].strip() or result["detail"]
    ]
    data = json.dumps({**head, "results": list(results)}, indent=1, allow_nan=False)
    parts = [
        _head(head),
        "\n".join(["| outcome | claims |", "|---|---|", *summary]),
        "## What wants a look\n\n" + (_table(look) if look else "Nothing."),
        *(f"## {group}\n\n{_table(of_group)}" for group, of_group in groups.items()),
        "## What was recorded",
        *map(_record, recorded),
        f"## The same as JSON\n\n```json\n{data}\n```",
    ]

    return "\n\n".join(parts) + "\n"


def _head(head: Mapping[str, Any]) -> str:
    """Return the title, the machine or that it was simulated, and what the report was made with."""
    here = head["machine"]
    first = f"> On {_cell(here['chip'] or 'a Mac')}, {_cell(here['os_name'] or '')} {_cell(here['os_version'] or '')}."
    if head["simulated"]:
        first = (
            "> **SIMULATED.** No Mac took part. This shows that the tests work, and nothing about a Mac: those of a "
            "GPU ran on a simulated one, those of TensorFlow, JAX and MLX on this CPU."
        )
    versions = ", ".join(
        f"{name} {version}" for name, version in here["versions"].items() if version
    )
    changes = ", with changes" if here["git_dirty"] else ""
    made = (
        f"Made on {head['made']}, at revision {(here['git_revision'] or 'unknown')[:12]}{changes}. "
    )

    return "\n\n".join(
        [
            "# Metal Lab on a Mac: what was found",
            first,
            made + "No name, host or home folder is in this file.",
            f"Python {here['python']}; {versions}.",
        ]
    )


def _table(results: Iterable[Mapping[str, Any]]) -> str:
    rows = ["| name | claim | outcome | what was found | relied on in |", "|---|---|---|---|---|"]
    for result in results:
        cells = (
            f"`{result['name']}`",
            result["claim"],
            _label(result),
            result["message"][:200],
            result["used_in"],
        )
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(rows)


def _label(result: Mapping[str, Any]) -> str:
    """Return an outcome, and that there was no Mac where there was none: ``confirmed (simulated)``."""
    aside = {"simulated": " (simulated)", "CPU": " (no Mac's CPU)"}.get(result["evidence"], "")
    return result["outcome"] + aside


def _record(result: Mapping[str, Any]) -> str:
    """Return a section on one claim: its words, and what the test printed, recorded and raised, as far as it did."""
    lines = [
        f"### {_cell(result['name'])}: {_label(result)}",
        "",
        _cell(f"{result['claim']} {result['how']}"),
        "",
    ]
    lines.append(f"Relied on in: {_cell(result['used_in'])}. It took {result['seconds']:.1f} s.")
    texts = {"printed": result["printed"], "what was raised": result["detail"]}
    if result["values"]:
        texts["recorded"] = json.dumps(result["values"], indent=1, ensure_ascii=False)
    return "\n".join(
        [*lines, *(_fenced(title, text) for title, text in texts.items() if text.strip())]
    )


def _fenced(title: str, text: str) -> str:
    """Return text in a fence that is longer than any inside."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"\n{title}:\n\n{fence}text\n{text.strip()}\n{fence}"


def _cell(text: str) -> str:
    """Return text for a line or a table's cell."""
    text = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("&", "&amp;").replace("<", "&lt;")
