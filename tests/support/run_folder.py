"""A run's folder for tests: notebooks with their outputs, a summary, and records."""

from __future__ import annotations

import base64
import io
import json

import nbformat
from bs4 import BeautifulSoup
from measurements import make_measurement
from nbformat import v4
from PIL import Image
from results_files import honest

from metallab import machine, records
from metallab.results import report


def png(width: int = 3, height: int = 2) -> bytes:
    """A grey PNG."""
    file = io.BytesIO()
    Image.new("L", (width, height), 128).save(file, "PNG")
    return file.getvalue()


def picture_output(data: bytes) -> dict:
    """An output with a picture."""
    return v4.new_output(
        "display_data",
        data={"image/png": base64.b64encode(data).decode(), "text/plain": "<Figure>"},
    )


def code(source: str, *outputs: dict) -> dict:
    return v4.new_code_cell(source, execution_count=1, outputs=list(outputs))


def error(*traceback: str) -> dict:
    return v4.new_output(
        "error", ename="ZeroDivisionError", evalue="division by zero", traceback=list(traceback)
    )


def notebook(*cells: dict):
    """A notebook of the given cells, with the metadata of one that has run; by default with a heading and a picture."""
    cells = cells or (
        v4.new_markdown_cell("# Title\n\n## How `fast`?"),
        code("plot()", picture_output(png())),
    )
    return v4.new_notebook(
        cells=list(cells),
        metadata={
            "language_info": {"name": "python"},
            "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
        },
    )


def entry(name: str, **changes) -> dict:
    """A notebook's entry in summary.json."""
    known = {"name": name, "title": f"Title of {name}", "status": "passed", "seconds": 12.0}
    known |= {"reason": "", "cells": 4, "executed": 4, "peak_rss_bytes": 3 * 2**20}
    return known | {"failed_copy": None} | changes


def record(
    name: str,
    ratio=None,
    *,
    samples=(0.001, 0.00101, 0.00102) * 8,
    first_call=0.5,
    outcome="faster",
    reason=None,
    detail="",
    **changes,
) -> records.Record:
    """A record of lesson 01_a: of a variant of the comparison ``matmul``, or of a measurement that stands alone.

    It is a variant's if a ratio (low, median, high), a reason or a detail is given, or if it is the baseline.
    ``changes`` are fields of `Measurement`.
    """
    compared = None
    if ratio or reason or detail or outcome == "baseline":
        low, median, high = ratio or (None, None, None)
        compared = records.Compared(
            name="matmul",
            variant=name,
            baseline="eager",
            outcome=outcome,
            median=median,
            low=low,
            high=high,
            reason=reason,
            detail=detail,
            parity="outputs agree",
        )

    measured = make_measurement(name, samples, first_call=first_call, **changes)
    full = f"01_a/matmul/{name}" if compared else f"01_a/{name}"
    taken = "2026-11-20T10:00:00+00:00"
    return records.Record("01_a", full, taken, measured, compared, None, machine.describe())


class Run:
    """A run's folder under build/, to be filled and reported on."""

    def __init__(self, root):
        self.folder = root / "build" / "full-cpu"
        self.report = root / "build" / "report"
        self.folder.mkdir(parents=True)

    def summary(self, *entries: dict, **changes) -> None:
        known = {"mode": "full", "device": "cpu", "label": "Some CPU", "simulated": False}
        known |= {
            "started": "2026-11-20T10:00:00+00:00",
            "seconds": 187.2,
            "notebooks": list(entries),
        }
        (self.folder / "summary.json").write_text(json.dumps(known | changes))

    def notebook(self, name: str, *cells: dict, folder: str = ".") -> None:
        (self.folder / folder).mkdir(exist_ok=True)
        nbformat.write(notebook(*cells), self.folder / folder / f"{name}.ipynb")

    def records(self, *made: records.Record, name: str = "01_a"):
        """Write records, with the baselines that they need, and return the file."""
        return records.write(self.folder / "results" / f"{name}.json", honest(made))

    def page(self) -> BeautifulSoup:
        """The page of a new report."""
        index, _ = report.make(self.folder, self.report)
        return BeautifulSoup(index.read_text(encoding="utf-8"), "html.parser")
