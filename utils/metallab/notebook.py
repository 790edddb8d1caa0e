"""Notebooks as files: reading and checking one, and what its cells say about how it went."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metallab import judgement, needs, units
from metallab.device import DEVICE_NAMES
from metallab.outcomes import Verdict
from metallab.paths import write_atomically

if TYPE_CHECKING:
    from nbformat import NotebookNode

LONGEST_REASON = 1000
EXPECTED: tuple[Verdict, ...] = ("faster", "slower", "same")
"""What a page may expect of a comparison."""


@dataclass(eq=False)
class Failure(Exception):
    """A notebook cannot be run, or does not come to its end, or shows an error.

    The reason, the number of the cell and its place in the file, and the traceback, without colours.
    """

    reason: str
    cell: int | None = None
    index: int | None = None
    traceback: str = ""

    def __str__(self) -> str:
        return self.reason


def read_notebook(path: Path) -> NotebookNode:
    """Return the notebook as a NotebookNode without outputs; Failure if it is missing or not a notebook of format 4."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise Failure(f"there is no file {path}") from None
    except Exception as error:  # a damaged file fails nbformat in many ways
        raise Failure(
            f"not a valid notebook: {units.first_line(error)}; restore it from version control"
        ) from error

    name = notebook.metadata.get("kernelspec", {}).get("name", "python3")
    if name != "python3":
        raise Failure(
            f"unknown kernel {name!r}: set metadata.kernelspec.name to 'python3', which every notebook uses"
        )

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def save(notebook: Mapping, path: Path) -> None:
    """Write a notebook, a NotebookNode or plain JSON, atomically."""
    write_atomically(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def title_of(notebook: NotebookNode) -> str:
    """Return the text of its H1, or an empty string."""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        heading = re.search(r"^# +(.+?) *$", cell.source, re.MULTILINE)
        if heading:
            return heading[1]
    return ""


def skip_reason(notebook: NotebookNode, device: str) -> str:
    """Return why this notebook is skipped on this device, or an empty string; Failure if the skip is not well-formed.

    It lists devices that cannot compute what the page is about, with the ``reason``, or in ``without`` tools that not
    every machine can have (`needs.OPTIONAL`), which have a reason of their own. A tool that this machine can have and
    that is merely not installed does not skip a page: `lacking_tools` reports it, and every tool that is not optional.
    """
    skip = notebook.metadata.get("metallab", {}).get("skip")
    if skip is None:
        return ""

    try:
        devices, optional = list(skip["device"]), list(skip.get("without", []))
        reason = skip["reason"].strip()
        if not reason or not set(devices) <= set(DEVICE_NAMES):
            raise ValueError(
                f"device is a list of {', '.join(DEVICE_NAMES)}, and reason is not empty"
            )
        absent = _find_absent(optional)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Failure(
            f"metadata.metallab.skip wants device and reason, and may have without: {error}"
        ) from None

    if device in devices:
        return str(reason)
    return "; ".join(
        f"this page needs {tool.name}, which cannot be had here: {tool.why_not_here()}"
        for tool in absent
    )


def _find_absent(optional: Sequence[str]) -> list[needs.Tool]:
    """Return those of some optional tools that this machine cannot have. ValueError for one that is not optional."""
    if not set(optional) <= set(needs.OPTIONAL):
        raise ValueError(
            f"without is a list of {', '.join(needs.OPTIONAL)}: name other tools in metadata.metallab.tools, "
            "for a page that lacks them is not skipped but incomplete"
        )
    return [tool for tool in needs.missing(optional) if tool.may_be_absent]


def lacking_tools(notebook: NotebookNode) -> list[needs.MissingTool]:
    """Return the tools that a page as a whole needs and this machine lacks; Failure for one that does not exist.

    They stand in ``metadata.metallab.tools`` by their names in `needs.TOOLS`, or in ``skip.without``, if this machine
    can have them (`skip_reason`).
    """
    told = notebook.metadata.get("metallab", {})
    names, optional = told.get("tools", []), told.get("skip", {}).get("without", [])
    try:
        return [tool.report_for("this page") for tool in needs.missing([*names, *optional])]
    except (KeyError, TypeError):
        raise Failure(
            f"metadata.metallab.tools is {names!r}: it is a list of {', '.join(needs.TOOLS)}"
        ) from None


def leave_out(notebook: NotebookNode, lacking: Iterable[needs.MissingTool]) -> None:
    """Show in a page that is not run at all, in its first cell with code, what it lacks."""
    first = next(cell for cell in notebook.cells if is_code(cell))
    for each in lacking:
        shown = {"output_type": "display_data", "data": each._repr_mimebundle_(), "metadata": {}}
        first.outputs.append(type(first)(shown))


def is_code(cell: Mapping) -> bool:
    """Return whether there is something in this cell to execute; source may be a string or lines."""
    return cell["cell_type"] == "code" and bool("".join(cell["source"]).strip())


def number_cells(notebook: NotebookNode) -> Iterator[tuple[int, int, NotebookNode]]:
    """Yield the code cells that are not blank: each with its number, as a reader counts, and its place in the file."""
    code_cells = ((index, cell) for index, cell in enumerate(notebook.cells) if is_code(cell))
    for number, (index, cell) in enumerate(code_cells, 1):
        yield number, index, cell


def fault(notebook: NotebookNode) -> Failure | None:
    """Return the first error among the outputs, or the first cell with code that was not executed in order, or None."""
    last = 0
    unexecuted: Failure | None = None
    for number, index, cell in number_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error":
                what = f"{output.ename}: {output.evalue}".splitlines()[0][:LONGEST_REASON]
                traceback = without_colours("\n".join(output.traceback))
                return Failure(f"cell {number}: {what}", number, index, traceback)

        count = cell.get("execution_count") or 0
        if count <= last and unexecuted is None:
            unexecuted = Failure(f"cell {number} was not executed, or not in order", number, index)
        last = count
    return unexecuted


def not_run(notebook: NotebookNode) -> list[dict[str, Any]]:
    """Return what its cells say that they did not run (`metallab.needs`), with the cell and the heading above it."""
    gaps = []
    heading, number = "", 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#+ +(.+?) *$", cell.source, re.MULTILINE)
            heading = headings[-1] if headings else heading

        number += is_code(cell)
        where = f"cell {number} ({heading})" if heading else f"cell {number}"
        for output in cell.get("outputs", []):
            if gap := output.get("data", {}).get(needs.MIME):
                gaps.append(_describe_gap(gap, where))
    return gaps


def _describe_gap(gap: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return what is told of something that did not run there."""
    told = {"where": where, "what": str(gap["what"]), "fix": needs.read_fix(gap)}
    return {**told, "optional": True} if gap.get("optional") else told


def group_gaps(gaps: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return where each thing was not run: the cells by what they say, since many cells may lack one tool."""
    cells: dict[str, list[str]] = {}
    for gap in gaps:
        cells.setdefault(str(gap["what"]), []).append(str(gap["where"]))
    return cells


def count_whole_cells(executed: int, gaps: Iterable[Mapping[str, Any]]) -> int:
    """Return how many cells ran and left nothing out.

    Parameters
    ----------
    executed
        How many cells were executed. One that lacks its tool is among them: it was executed, and said so.
    gaps
        What the page did not run (`not_run`). If it was not run at all, its first cell says so for all.
    """
    left_out = {gap["where"] for gap in gaps}
    return max(executed - len(left_out), 0)


def closing_line(
    gaps_of_pages: Iterable[Sequence[Mapping]], *, where: str = "see above", ran_here: bool = True
) -> str:
    """Return the last line of a run: how many of its pages are incomplete. Empty if none is.

    Parameters
    ----------
    gaps_of_pages
        What each incomplete page did not run (`not_run`).
    where
        Where it is said what is missing.
    ran_here
        Whether a strict run here would tell of the same gaps; not of pages that are stored.
    """
    pages = list(gaps_of_pages)
    if not pages:
        return ""

    count = "1 page is" if len(pages) == 1 else f"{len(pages)} pages are"
    is_required = any(not gap.get("optional") for gaps in pages for gap in gaps)
    if not ran_here or not is_required:
        return f"{count} incomplete, {where}"
    return f"{count} incomplete, {where}; a strict run (make run STRICT=1) fails then"


def judgements(notebook: NotebookNode) -> list[dict[str, str]]:
    """Return what its checks said of the exercises, in order: each ``exercise``, ``outcome`` and ``sentence``."""
    judged = map(judgement.of_cell, notebook.cells)
    return [each.data() for each in judged if each is not None]


@dataclass(frozen=True)
class Expectation:
    """What a page says that a comparison must show on any machine; in the metadata of the cell that measures it."""

    comparison: str
    """Its name in the page's results."""
    variant: str
    expected: Verdict


def expectations(notebook: NotebookNode) -> list[Expectation]:
    """Return what the cells of a page expect; `Failure` for metadata that are not understood.

    A cell says it as ``"metallab": {"expects": "faster", "comparison": "softshrink", "variant": "built in"}``, with one
    of the verdicts ``faster``, ``slower`` and ``same``.
    """
    found = []
    for cell in notebook.cells:
        told = cell.metadata.get("metallab")
        if not isinstance(told, Mapping) or "expects" not in told:
            continue
        if told["expects"] not in EXPECTED or not {"comparison", "variant"} <= told.keys():
            raise Failure(
                f"cell {cell.get('id', '')!r}: metadata.metallab.expects is one of {', '.join(EXPECTED)}, "
                "with the names of a comparison and of its variant beside it"
            )
        found.append(Expectation(told["comparison"], told["variant"], told["expects"]))
    return found


def show_failure(notebook: Mapping, failure: Failure) -> None:
    """Put the reason, as an error output, into the cell where it stopped, or the first; works on plain JSON too.

    A cell that raised has its error already; a dead kernel or worker leaves none by itself.
    """
    cells = notebook["cells"]
    first = next((cell for cell in cells if is_code(cell)), None)
    cell = cells[failure.index] if failure.index is not None else first
    if cell is None:
        return

    has_raised = any(output["output_type"] == "error" for output in cell["outputs"])
    if not (failure.traceback and has_raised):
        cell["outputs"].append(type(cell)(make_error_output(failure.reason, failure.traceback)))


def make_error_output(reason: str, details: str = "") -> dict[str, Any]:
    """Return an output of type error that says what stopped a cell which could not say it itself."""
    traceback = [f"NotebookStopped: {reason}", *details.splitlines()]
    return {
        "output_type": "error",
        "ename": "NotebookStopped",
        "evalue": reason,
        "traceback": traceback,
    }


def without_colours(text: str) -> str:
    """Return the text without terminal escape sequences."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
