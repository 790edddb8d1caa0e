"""Store the executed pages of a run in the set of its machine, and refuse what may not be shown.

A page of a finished run in full mode replaces itself, the others of the set stay. Its outputs are made plain (`plain`),
and its text is today's (`stored_text`), as long as today's notebook has the code that ran.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import nbformat

from metallab import notebook, paths, records, redact
from metallab.machine import Machine
from metallab.records import Record
from metallab.results import findings, report
from metallab.results.publish import caption, executed, pages, plain, stored_text
from metallab.results.publish.executed import ShowError


def store_run(run: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """Put the pages of a run into the set of its machine.

    Parameters
    ----------
    run
        The folder of a finished run.
    folder
        The folder of the sets.

    Returns
    -------
    path and dict
        The folder of the set, and by name why a page of the run was refused.

    Raises
    ------
    ShowError
        If the run is in fast mode or simulated, or no page of it may be shown.
    ReportError
        If its summary, or that of the set, cannot be read.
    """
    summary = report.read_summary(run)
    if summary.simulated:
        raise ShowError(f"{run} was simulated: show the run of a real device")
    if summary.mode != "full":
        raise ShowError(f"{run} is a run in {summary.mode} mode: make run MODE=full")

    target = folder / executed.name_set(summary.label)
    stored_before = _read_stored(target)
    added: dict[str, report.Notebook] = {}
    refused: dict[str, str] = {}
    why_missing: dict[str, str] = {}

    for entry in summary.notebooks:
        if entry.status == "skipped" or _ran_without_its_tool(entry):
            why_missing[entry.name] = entry.reason
            continue

        try:
            added[entry.name] = _summarize(entry, _write_page(entry, run, summary, target))
        except (ShowError, plain.PlainError, pages.PageError, records.RecordError) as problem:
            refused[entry.name] = f"{entry.name}: {redact.shorten_paths(str(problem))}"
            why_missing[entry.name] = "what it did there may not be shown"
            if entry.status == "failed":
                why_missing[entry.name] = "it failed there"

    if not added:
        reasons = list(refused.values()) or ["it has none"]
        raise ShowError(f"no page of it may be shown: {'; '.join(reasons)}")
    _write_summary(target, summary, stored_before | added, why_missing)
    return target, refused


def _ran_without_its_tool(entry: report.Notebook) -> bool:
    """Return whether none of a page's cells ran, since the tool that it is about was missing."""
    return entry.status == "incomplete" and entry.executed == 0


def _read_stored(target: Path) -> dict[str, report.Notebook]:
    """Return the pages that a set has, by name."""
    if not (target / "summary.json").exists():
        return {}
    entries = report.read_summary(target).notebooks
    return {entry.name: entry for entry in entries if entry.status != "skipped"}


def _summarize(entry: report.Notebook, measured: Sequence[Record]) -> report.Notebook:
    """Return what a set's summary says of a page."""
    return replace(
        entry,
        failed_copy=None,
        headline_is_withheld=records.headline_is_withheld(measured),
        headline_is_replaced=records.headline_is_replaced(measured),
        headline_left_out=len(records.find_left_out(measured)),
        withheld=findings.count_lost_speed_ups(measured),
    )


def _write_page(
    entry: report.Notebook, run: Path, summary: report.RunSummary, target: Path
) -> list[Record]:
    """Write one page of a run with its record and its picture into a set, and return all its records.

    ShowError, PlainError, PageError or RecordError if it may not be shown. Then the set has the page as before.
    """
    name = entry.name  # a stranger's summary may hold a path
    advice = f"make run ONLY={entry.number}"
    original = paths.NOTEBOOKS / f"{name}.ipynb"
    results = run / "results" / f"{name}.json"

    if entry.status == "failed":
        raise ShowError(f"it failed: {entry.reason}; {advice}")
    if not original.exists() or "/" in name:
        raise ShowError("there is no such notebook any more")

    page = plain.make_plain(pages.read_notebook(run / f"{name}.ipynb"))
    if (notebook.title_of(page) or name) != entry.title:
        raise ShowError(f"its notebook is another page's; {advice}")
    measured = records.load(results)
    for each in measured:
        if fault := _find_fault(each, name, summary.device):
            raise ShowError(f"its results are {fault}; {advice}")

    today = nbformat.read(original, 4)
    words = caption.write_caption(
        entry, measured, summary.label, today.metadata["metallab"]["needs"]
    )
    has_today_s_code = pages.read_code(page) == pages.read_code(today)
    stored_text.put_text_around(page, today if has_today_s_code else page, words)

    _write_record(target / "results" / f"{name}.json", results, measured)
    paths.write_atomically(target / f"{name}.ipynb", nbformat.writes(page) + "\n")
    return measured


def _find_fault(record: Record, name: str, device: str) -> str | None:
    """Return why a record is not one of a page on a device in full mode."""
    measurement = record.measurement
    if measurement.simulated or measurement.mode != "full" or record.lesson != name:
        return "simulated, of fast mode or another page's"
    if record.machine.environment.get("METALLAB_DEVICE", device) != device:
        return "of another device"
    return None


def _write_record(target: Path, results: Path, measured: Sequence[Record]) -> None:
    """Write one small record, a disturbed one if there is any, with the page's headline and its picture.

    It is of a baseline or of a lone measurement, because a comparison is believed only beside both of its sides. So a
    reason that needs both is not in it: the page's caption, its headline and ``withheld`` in the summary tell it.

    Parameters
    ----------
    target
        The file that is written, and beside it the picture as a PNG.
    results
        The file that the run wrote, beside which lies the headline's picture.
    measured
        What is in that file.

    Raises
    ------
    ShowError
        If the record names the machine that it ran on.
    """
    alone = [
        each
        for each in measured
        if each.comparison is None or each.comparison.outcome == "baseline"
    ]
    kept = min(alone, key=lambda each: (not executed.is_disturbed(each), each.measurement.n))
    headline = records.headline_of(measured)
    drawn = target.with_suffix(".png")
    if traces := redact.find_private(f"{kept.machine.to_json()} {headline}"):
        raise ShowError(f"its results name {traces[0]!r}, which is of the machine that it ran on")

    target.parent.mkdir(parents=True, exist_ok=True)
    if headline and headline.picture:
        original = records.read_picture(results, headline)
        picture = plain.make_small_png(original, executed.PICTURE_WIDTH)
        drawn.write_bytes(picture)
        headline = replace(headline, picture=drawn.name, sha256=hashlib.sha256(picture).hexdigest())
    else:
        drawn.unlink(missing_ok=True)

    records.write(target, [replace(kept, headline=headline)])


def _write_summary(
    target: Path,
    summary: report.RunSummary,
    shown: dict[str, report.Notebook],
    why_missing: dict[str, str],
) -> None:
    """Write a set's summary.json: an entry for each of today's notebooks, of those without a page why they have none.

    Parameters
    ----------
    target
        The folder of the set.
    summary
        Of the run that was stored last: device, label and mode are taken from it.
    shown
        The pages of the set, by name.
    why_missing
        Why pages of this run were not stored, by name. Of others it is told which of their packages were missing.
    """
    described = [records.load(target / "results" / f"{name}.json")[0].machine for name in shown]

    entries = []
    for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")):
        entry = shown.get(path.stem)
        if entry is None:
            original = nbformat.read(path, 4)
            reason = why_missing.get(path.stem) or _explain_not_run(original, described)
            title = notebook.title_of(original)
            entry = report.Notebook(path.stem, title, "skipped", reason=reason)
        entries.append(asdict(entry))

    # pages of a set ran on several days: each record says when, and each entry how long
    content = {**asdict(summary), "started": None, "seconds": None, "notebooks": entries}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    paths.write_atomically(target / "summary.json", text + "\n")


def _explain_not_run(original: nbformat.NotebookNode, described: Sequence[Machine]) -> str:
    """Return that a notebook did not run on a machine, and which packages that it names were missing there.

    Parameters
    ----------
    original
        The notebook of today.
    described
        The machine, as each stored page met it: a package may have come or gone between two of them.
    """
    needed = original.metadata["metallab"]["needs"]
    missing = [name for name in needed if _was_never_installed(name, described)]
    if not missing:
        return "it was not run there"
    verb = "was" if len(missing) == 1 else "were"
    return f"it was not run there, where {' and '.join(missing)} {verb} not installed"


def _was_never_installed(package: str, described: Sequence[Machine]) -> bool:
    """Return whether records tell of a package, and all of them that it is missing."""
    versions = [each.versions[package] for each in described if package in each.versions]
    return bool(versions) and not any(versions)
