"""The caption below the title of an executed page: on what, when and of which revision it ran, and what is missing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from metallab import paths, redact
from metallab.machine import Machine
from metallab.records import Record
from metallab.results import findings, report


def write_caption(
    entry: report.Notebook, measured: Sequence[Record], label: str, needed: Sequence[str]
) -> str:
    """Return the caption of an executed page: on what, when and of which revision it ran, what is missing.

    Parameters
    ----------
    entry
        How the page ended.
    measured
        Its records, all of full mode, which `store` has made sure of; the newest one says when the page ran, and on
        which packages.
    label
        The machine.
    needed
        The packages that the page needs. Of them, and of those whose names begin so, such as jaxlib beside jax, other
        versions than the locked ones are named.

    Returns
    -------
    str
        Markdown: lines of a quotation, as `read_caption` and `read_label` find them again.
    """
    last = max(measured, key=lambda record: record.moment)
    name = f"{entry.name}.ipynb"
    day = f"{last.moment.day} {last.moment:%B %Y}"
    lines = [
        f"**Executed** on {label}, {day}, in full mode, {describe_revision(last.machine)}. "
        f"Pictures are compressed. To run it yourself: [notebooks/{name}](../../../notebooks/{name})."
    ]

    unlocked = _find_unlocked(last.machine)
    # jaxlib belongs to jax, tensorflow-metal to tensorflow
    differing = [each for each in unlocked if each.startswith(tuple(needed))]
    if differing:
        lines.append(f"Other versions than the locked ones: {'; '.join(differing)}.")

    lines.append(findings.trust(measured))
    if entry.not_run:
        lines.append(f"**Incomplete.** {_describe_gaps(entry)}.")
    return "\n>\n".join(f"> {redact.shorten_paths(line)}" for line in lines if line)


def read_caption(source: str) -> str:
    """Return the caption that stands below the title in the first cell of an executed page."""
    _, _, *lines = source.split("\n")
    return "\n".join(itertools.takewhile(lambda line: line.startswith(">"), lines))


def read_label(source: str) -> str | None:
    """Return the machine that the caption in a first cell names; None if there is no caption."""
    found = re.search(r"^> \*\*Executed\*\* on (.+), \d+ \w+ \d{4}, ", source, re.MULTILINE)
    return found[1] if found is not None else None


def _describe_gaps(entry: report.Notebook) -> str:
    """Return what was not run, each reason once with its cells."""
    cells: dict[str, list[str]] = {}
    for gap in entry.not_run:
        where = str(gap["where"]).partition(" (")[0]
        cells.setdefault(str(gap["what"]), []).append(where)
    return "Not run: " + "; ".join(f"{what} ({', '.join(where)})" for what, where in cells.items())


def describe_revision(described: Machine) -> str:
    """Return the revision at which a page ran, in words."""
    if not described.git_revision:
        return "of an unknown revision"
    words = f"at revision {described.git_revision[:7]}"
    return f"{words} with changes" if described.git_dirty else words


def _find_unlocked(described: Machine) -> list[str]:
    """Return the packages of a machine with other versions than the locked ones, in words."""
    constraints = paths.CONSTRAINTS.read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", constraints, re.MULTILINE))
    return [
        f"{package} {version} (locked: {locked[package]})"
        for package, version in described.versions.items()
        if version and package in locked and version.split("+")[0] != locked[package]
    ]
