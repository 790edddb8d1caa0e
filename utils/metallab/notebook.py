"""Notebooks as files: reading and checking one, and what its cells say about how it went."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from metallab import needs, units
from metallab.device import NAMES
from metallab.paths import write_atomically

SKIP_TAG = "skip-headless"
LONGEST_REASON = 1000
MOST_PRINTED = 1 << 20
"""Characters that a cell may print, and that a traceback may have: more than anybody reads."""
MOST_SHOWN = 1 << 26
"""Characters of all that a page puts out, pictures and films among it: what a browser still opens."""
CUT = "application/vnd.metallab.cut+json"
"""Under this type an output of an executed notebook holds how many characters were cut away there."""


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


def read_notebook(path: Path):
    """The notebook as a NotebookNode without outputs; Failure if it is missing, malformed or invalid."""
    import nbformat

    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text)
    except FileNotFoundError:
        raise Failure(f"there is no file {path}") from None
    except OSError as error:
        raise Failure(f"{path} can't be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Failure(f"malformed JSON: {error}; restore the file from version control") from error
    check_shape(raw)
    try:
        nbformat.validate(raw)
        notebook = nbformat.reads(text, as_version=4)
    except (nbformat.ValidationError, RecursionError) as error:
        raise Failure(f"not a valid notebook: {units.first_line(error)}") from error
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def check_shape(raw: object) -> None:
    """Failure on what nbformat's validator stumbles over or silently repairs: shape, version, cell ids."""
    if not isinstance(raw, dict) or not isinstance(raw.get("cells"), list) or raw.get("nbformat") != 4:
        raise Failure("not a valid notebook: no cells in notebook format 4; open it in JupyterLab and save it")
    if not all(isinstance(cell, dict) and "cell_type" in cell and "source" in cell for cell in raw["cells"]):
        raise Failure("not a valid notebook: some of its cells have no type or no source")
    if not isinstance(minor := raw.get("nbformat_minor", 0), int):
        raise Failure(f"not a valid notebook: its nbformat_minor is {minor!r}; open it in JupyterLab and save it")
    if minor < 5:
        return
    ids = [cell.get("id") for cell in raw["cells"]]
    repeated = {str(one) for one in ids if ids.count(one) > 1}
    if None in ids or repeated:
        what = "cells without an id" if None in ids else f"the cell id {min(repeated)} twice"
        raise Failure(f"not a valid notebook: it has {what}; open it in JupyterLab and save it")


def check_replaced(path: Path, replace: Mapping[str, str]) -> None:
    """ValueError if the notebook lacks one of these cells: a test that injects nothing must not pass for one."""
    if not replace:
        return
    ids = {cell.get("id") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    if missing := set(replace) - ids:
        raise ValueError(f"{path.name} has no cell with the id {', '.join(sorted(missing))}")


class OutputLimit:
    """Counts what a page puts out and cuts what is too much, cell by cell: `begin`, `fit` for each output, `end`."""

    def __init__(self) -> None:
        self.shown = self.printed = self.dropped = 0

    def begin(self) -> None:
        """A cell begins, or clears what it has put out so far."""
        self.printed = self.dropped = 0

    def fit(self, output: dict) -> bool:
        """Cuts an output to the room that there is; False if nothing of it is left. An error always is."""
        room = max(0, MOST_SHOWN - self.shown)
        match output["output_type"]:
            case "stream":
                text = "".join(output["text"])
                output["text"] = text[: min(room, max(0, MOST_PRINTED - self.printed))]
                size, kept = len(text), len(output["text"])
                self.printed += kept
            case "error":
                text = "\n".join(output["traceback"])
                if len(text) > MOST_PRINTED:
                    output["traceback"] = [text[-MOST_PRINTED:]]
                output["evalue"] = output["evalue"][:MOST_PRINTED]
                size, kept = len(text), min(len(text), MOST_PRINTED)
            case _:
                size = kept = len(json.dumps(output["data"]))
                if size > room and CUT not in output["data"]:
                    output["data"], kept = {"text/plain": "(cut away)"}, 0
        self.shown += kept
        self.dropped += size - kept
        return kept > 0 or output["output_type"] == "error"

    def end(self, cell: dict) -> None:
        """Says below a cell how much was cut away."""
        if self.dropped:
            words = f"CUT: {self.dropped} characters more were put out here than a page keeps. Write them to a file."
            data = {"text/plain": words, CUT: {"dropped": self.dropped}}
            cell["outputs"].append(type(cell)(output_type="display_data", data=data, metadata={}))


def cut_outputs(notebook: Mapping) -> None:
    """Cuts what any cell of an executed notebook put out too much of, and says so there."""
    limit = OutputLimit()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            limit.begin()
            cell["outputs"] = [output for output in cell["outputs"] if limit.fit(output)]
            limit.end(cell)


def cuts(notebook: Mapping) -> Iterator[tuple[int, str]]:
    """The cells below which something was cut away: the number and what is said there."""
    for number, _, cell in numbered(notebook):
        for output in cell["outputs"]:
            if CUT in output.get("data", {}):
                yield number, str(output["data"].get("text/plain", "CUT"))


def save(notebook: Mapping, path: Path) -> None:
    """Writes a notebook, a NotebookNode or plain JSON, atomically."""
    write_atomically(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def title_of(notebook) -> str:
    """The text of its H1, or an empty string."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (heading := re.search(r"^# +(.+?) *$", cell.source, re.MULTILINE)):
            return heading[1]
    return ""


def skip_reason(notebook, device: str) -> str:
    """Why this notebook is skipped on this device, or an empty string; Failure if the skip is not well-formed.

    It names devices, or in ``without`` packages that set-up cannot install on every machine: skipped where one lacks.
    """
    ours = notebook.metadata.get("metallab", {})
    skip = ours.get("skip") if isinstance(ours, dict) else None
    if skip is None:
        return ""
    devices = skip.get("device") if isinstance(skip, dict) else None
    packages = skip.get("without", []) if isinstance(skip, dict) else None
    if not isinstance(packages, list) or not all(isinstance(name, str) for name in packages):
        raise Failure("metadata.metallab.skip.without must be a list of packages")
    if not isinstance(devices, list) or any(name not in NAMES[1:] for name in devices):
        raise Failure(f"metadata.metallab.skip.device must be a list of {', '.join(NAMES[1:])}")
    reason = skip.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise Failure("metadata.metallab.skip gives no reason; write one, it is what readers are told")
    lacks = any(importlib.util.find_spec(name) is None for name in packages)
    return reason if device in devices or lacks else ""


def check_kernel_name(notebook) -> None:
    """Failure unless the notebook names the kernel that runs here: python3, in this interpreter."""
    name = notebook.metadata.get("kernelspec", {}).get("name", "python3")
    if name != "python3":
        raise Failure(f"unknown kernel {name!r}: set metadata.kernelspec.name to 'python3', which every notebook uses")


def check_skipped_cells(notebook) -> None:
    """Failure if a cell is tagged skip-headless without saying why."""
    for number, _, cell in numbered(notebook):
        if SKIP_TAG in cell.metadata.get("tags", []) and not str(cell.metadata.get("reason", "")).strip():
            raise Failure(f"cell {number} is tagged {SKIP_TAG} but its metadata has no reason; write one")


def is_code(cell: Mapping) -> bool:
    """Whether there is something in this cell to execute; source may be a string or lines."""
    return cell["cell_type"] == "code" and bool("".join(cell["source"]).strip())


def numbered(notebook) -> Iterator[tuple[int, int, Mapping]]:
    """The code cells that are not blank: each with its number, as a reader counts, and its place in the file."""
    code_cells = ((index, cell) for index, cell in enumerate(notebook.cells) if is_code(cell))
    return ((number, index, cell) for number, (index, cell) in enumerate(code_cells, 1))


def first_error(notebook) -> Failure | None:
    """The first error output in a cell that may not raise."""
    for number, index, cell in numbered(notebook):
        if "raises-exception" in cell.metadata.get("tags", []):
            continue
        for output in cell.outputs:
            if output.output_type == "error":
                what = f"{output.ename}: {output.evalue}".splitlines()[0][:LONGEST_REASON]
                traceback = without_colours("\n".join(output.traceback))
                return Failure(f"cell {number}: {what}", number, index, traceback)
    return None


def first_unexecuted(notebook) -> Failure | None:
    """The first cell with code that has no execution count, or one that does not increase: nothing ran it in order."""
    last = 0
    for number, index, cell in numbered(notebook):
        if SKIP_TAG in cell.metadata.get("tags", []):
            continue
        count = cell.get("execution_count")
        if count is None:
            return Failure(f"cell {number} was not executed", number, index)
        if count <= last:
            reason = f"cell {number} was not executed in order: its count is {count}, after {last}"
            return Failure(reason, number, index)
        last = count
    return None


def not_run(notebook) -> list[dict[str, str]]:
    """What its cells say that they did not run (`metallab.needs`): each with the cell and the heading above it."""
    gaps, heading, number = [], "", 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (headings := re.findall(r"^#+ +(.+?) *$", cell.source, re.MULTILINE)):
            heading = headings[-1]
        number += is_code(cell)
        for output in cell.get("outputs", []):
            if gap := output.get("data", {}).get(needs.MIME):
                where = f"cell {number} ({heading})" if heading else f"cell {number}"
                gaps.append({"where": where, "what": str(gap["what"]), "mend": str(gap["mend"])})
    return gaps


def show_failure(notebook: Mapping, failure: Failure) -> None:
    """Puts the reason, as an error output, into the cell where it stopped, or the first; works on plain JSON too.

    A cell that raised has its error already; a dead kernel or worker leaves none by itself.
    """
    cells = notebook["cells"]
    first = next((cell for cell in cells if is_code(cell)), None)
    cell = cells[failure.index] if failure.index is not None else first
    if cell is None or (failure.traceback and any(out["output_type"] == "error" for out in cell["outputs"])):
        return
    cell["outputs"].append(type(cell)(stopped_output(failure.reason, failure.traceback)))


def stopped_output(reason: str, details: str = "") -> dict:
    """An output of type error that says what stopped a cell which could not say it itself."""
    traceback = [f"NotebookStopped: {reason}", *details.splitlines()]
    return {"output_type": "error", "ename": "NotebookStopped", "evalue": reason, "traceback": traceback}


def without_colours(text: str) -> str:
    """The text without terminal escape sequences."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
