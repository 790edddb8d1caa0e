"""The cells that show the subjects of the course: none of these may be lost.

`metallab.authoring.course.SUBJECTS` lists the subjects, and each page says which of them it shows
(``metadata.metallab.course.subjects``).
`tests/project/test_notebooks.py` runs each page once and passes its cells to `not_shown`.
"""

from __future__ import annotations

import re

from metallab import needs
from metallab.authoring import course

SHOWN = course.collect_subjects(course.read())
"""Each subject, with the ids of the cells that show it, by the number of the page."""

ON_A_MAC = {"tool-run"}
"""Cells that only a Mac runs; elsewhere their output says so."""

MAY_LACK = "--needs objective-c++"
"""The one tool that a machine may lack: Linux needs g++ and ziglang for it, a Mac Xcode's command-line tools."""

_NEEDS_A_MAC = re.compile(r"not on this machine|(?:needs|only on) a Mac")


def cells_of(stem: str) -> dict[str, str]:
    """The subject of each cell of a page that shows one."""
    number = stem.split("_")[0]
    return {
        name: subject for subject, pages in SHOWN.items() for name in pages.get(number, "").split()
    }


def state(cell) -> str:
    """Return how an executed cell ended, by its outputs.

    ``failed`` if it raised or was not executed. ``lacks a tool`` if it was left out for the one tool that a machine may
    lack (`MAY_LACK`), and ``not run`` if it was for another one, or is for full mode alone. ``needs a Mac`` if its
    output says so, and else ``passed``.
    """
    raised = any(output.output_type == "error" for output in cell.outputs)
    if cell.execution_count is None or raised:
        return "failed"

    told_what_is_missing = any(needs.MIME in output.get("data", {}) for output in cell.outputs)
    if told_what_is_missing:
        return "lacks a tool" if MAY_LACK in cell.source else "not run"
    if re.match(r"%%isolated.* --full\b", cell.source):  # which fast mode leaves out
        return "not run"

    text = " ".join(f"{output.get('text', '')}{output.get('data', '')}" for output in cell.outputs)
    return "needs a Mac" if _NEEDS_A_MAC.search(text) else "passed"


def not_shown(stem: str, cells: dict) -> list[str]:
    """The subjects that an executed page should show and does not; ``cells`` by their ids."""
    lost = []
    for name, subject in cells_of(stem).items():
        good = {"passed", "lacks a tool"}
        if name in ON_A_MAC:
            good.add("needs a Mac")

        found = state(cells[name]) if name in cells else "not there"
        if found not in good:
            lost.append(f"{subject}: {name} {found}")
    return lost
