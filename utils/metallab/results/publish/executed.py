"""The executed pages that the repository keeps, of each machine a set: read, and checked for what belongs together.

A set, ``data/executed/<machine>``, reads like a run's folder: ``NN_name.ipynb``, ``summary.json``, and in ``results``
for each page the PNG of its headline and one record, with headline and machine. `store` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nbformat

from metallab import paths, records
from metallab.records import Record
from metallab.results import report
from metallab.results.publish import caption

EXECUTED = paths.ROOT / "data" / "executed"
PICTURE_WIDTH = 640
"""Of a headline's picture, in pixels."""


class ShowError(ValueError):
    """A run or a page that is not shown; the message says why, and what to do."""


@dataclass(frozen=True)
class ExecutedPage:
    """A page of a set: how it ended, and its record."""

    folder: Path
    entry: report.Notebook
    record: Record

    @property
    def path(self) -> Path:
        """The executed notebook."""
        return self.folder / f"{self.entry.name}.ipynb"

    @property
    def picture(self) -> Path | None:
        """That of its headline."""
        headline = self.record.headline
        return self.folder / "results" / headline.picture if headline and headline.picture else None


@dataclass(frozen=True)
class ExecutedSet:
    """The executed pages of one machine."""

    folder: Path
    summary: report.RunSummary
    pages: dict[str, ExecutedPage]
    """By the names of the notebooks."""


def name_set(label: str) -> str:
    """Return the name of the folder in which the pages of a machine are stored, such as ``some_cpu``."""
    return Path(paths.results_file(label)).stem


def read_sets(folder: Path = EXECUTED) -> list[ExecutedSet]:
    """Return the stored sets, those of a GPU first. RecordError, ReportError or ShowError if one is not as shown."""
    sets = []
    for target in sorted(path.parent for path in folder.glob("*/summary.json")):
        summary = report.read_summary(target)
        shown: dict[str, ExecutedPage] = {}
        for entry in summary.notebooks:
            if entry.status != "skipped":
                record = records.load(target / "results" / f"{entry.name}.json")[0]
                page = ExecutedPage(target, entry, record)
                _check_stored(page)
                shown[entry.name] = page
        sets.append(ExecutedSet(target, summary, shown))

    return sorted(sets, key=lambda each: each.summary.device == "cpu")


def _check_stored(page: ExecutedPage) -> None:
    """Raise ShowError or RecordError if notebook, record and picture are not of this page, machine and revision."""
    name, record = page.entry.name, page.record
    first_cell = nbformat.read(page.path, 4).cells[0].source
    label = caption.read_label(first_cell)

    is_of_machine = label is not None and name_set(label) == page.folder.name
    is_of_page = f"[notebooks/{name}.ipynb]" in first_cell and record.lesson == name
    is_of_revision = caption.describe_revision(record.machine) in first_cell
    if not is_of_machine or not is_of_page or not is_of_revision:
        raise ShowError(
            f"{paths.shorten(page.path)} and its file in results do not belong together: show it again"
        )
    if page.picture and record.headline:
        records.read_picture(page.folder / "results" / f"{name}.json", record.headline)


def is_disturbed(record: Record) -> bool:
    """Return True if something disturbed the machine that another run may be without (`Record.disturbance`)."""
    return record.disturbance is not None
