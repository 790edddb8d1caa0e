"""Pages run by nbconvert alone, without this project's runner: to a notebook, to HTML, in place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import nbformat
import pytest

from metallab import needs, paths, records

FAST = {"METALLAB_MODE": "fast", "METALLAB_DEVICE": "cpu"}
LIMIT = 1800  # seconds, against a hang


def nbconvert(
    *arguments: str | Path, out: Path, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run ``jupyter nbconvert --execute``, with results in a folder, from a folder that is not the checkout."""
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--execute", *map(str, arguments)]
    ours = {name: told for name, told in os.environ.items() if name != "METALLAB_STRICT"}
    return subprocess.run(
        command,
        cwd=out.parent,
        env=ours | FAST | {"METALLAB_OUT": str(out)} | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def executed(path: Path) -> list:
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code" and cell.execution_count]


def test_a_page_runs_to_a_notebook(tmp_path):
    page = paths.NOTEBOOKS / "00_check_your_machine.ipynb"
    done = nbconvert(
        "--to", "notebook", page, "--output-dir", tmp_path / "made", out=tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    assert len(executed(tmp_path / "made" / page.name)) > 5
    assert records.load(tmp_path / "out" / "results" / f"{page.stem}.json")


def test_a_page_runs_to_html_and_pictures_keep_their_description(tmp_path):
    page = paths.NOTEBOOKS / "64_compare_machines.ipynb"
    how = ("--to", "html", "--template", "classic", page, "--output-dir", tmp_path / "made")
    done = nbconvert(*how, out=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "made" / f"{page.stem}.html").read_text("utf-8")
    described = re.findall(r'<img[^>]*alt="([^"]*)"', shown)
    assert described
    assert not any("No description" in words for words in described)
    assert records.load(tmp_path / "out" / "results" / f"{page.stem}.json")


def test_a_page_runs_in_place(tmp_path):
    """In a copy of the folder: a page of the checkout would change."""
    shutil.copytree(paths.NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("[!0]*"))
    page = tmp_path / "notebooks" / "01_time_it_right.ipynb"
    shutil.copy(paths.NOTEBOOKS / page.name, page)
    done = nbconvert("--to", "notebook", "--inplace", page, out=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len(executed(page)) > 5
    assert records.load(tmp_path / "out" / "results" / f"{page.stem}.json")


@pytest.fixture
def no_compiler(tmp_path) -> dict[str, str]:
    """A PATH on which there is no program at all."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin")}


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has an Apple GPU without a compiler")
def test_what_did_not_run_is_said_on_the_console_and_fails_a_strict_run(tmp_path, no_compiler):
    """nbconvert stops at the first error, so the last cell raises, and names every one that did not run."""
    page = paths.NOTEBOOKS / "10_run_pytorch_on_mps.ipynb"
    how = ("--to", "notebook", page, "--output-dir", tmp_path / "made")

    lenient = nbconvert(*how, out=tmp_path / "out", environment=no_compiler)
    assert lenient.returncode == 0, lenient.stderr
    left_out = [
        cell.execution_count
        for cell in executed(tmp_path / "made" / page.name)
        if any(needs.MIME in output.get("data", {}) for output in cell.outputs)
    ]
    assert left_out
    told = re.findall(r"cell (\d+): this cell needs an Apple GPU", lenient.stderr)
    assert [int(number) for number in told] == left_out

    strict = nbconvert(
        *how, out=tmp_path / "out", environment=no_compiler | {"METALLAB_STRICT": "1"}
    )
    assert strict.returncode == 1
    raised = strict.stderr.partition("NotRun: ")[2]
    for number in left_out:
        assert f"cell {number}: this cell needs an Apple GPU" in raised
