"""Pages run by nbconvert alone, without this project's runner: to a notebook, to HTML, in place."""

from __future__ import annotations

import dataclasses
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


NEEDS_A_COMPILER = paths.NOTEBOOKS / "10_run_pytorch_on_mps.ipynb"


def run_without_compiler(
    folder: Path, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run a page that needs a compiler on a PATH on which there is no program at all."""
    (folder / "bin").mkdir()
    how = ("--to", "notebook", NEEDS_A_COMPILER, "--output-dir", folder / "made")
    path = {"PATH": str(folder / "bin")}
    return nbconvert(*how, out=folder / "out", environment=path | environment)


def find_left_out(page: Path) -> list[int]:
    """The numbers of the cells of an executed page that were not run."""
    return [
        cell.execution_count
        for cell in executed(page)
        if any(needs.MIME in output.get("data", {}) for output in cell.outputs)
    ]


TOLD = r"cell (\d+): this cell needs an Apple GPU"
NOT_ON_A_MAC = pytest.mark.skipif(
    sys.platform == "darwin", reason="a Mac has an Apple GPU without a compiler"
)


@dataclasses.dataclass
class Lenient:
    """A run that is not strict, and the cells that it left out."""

    done: subprocess.CompletedProcess[str]
    left_out: list[int]


@pytest.fixture(scope="module")
def lenient(tmp_path_factory) -> Lenient:
    folder = tmp_path_factory.mktemp("lenient")
    done = run_without_compiler(folder)
    assert done.returncode == 0, done.stderr
    return Lenient(done, find_left_out(folder / "made" / NEEDS_A_COMPILER.name))


@NOT_ON_A_MAC
def test_what_did_not_run_is_said_on_the_console(lenient):
    told = re.findall(TOLD, lenient.done.stderr)
    assert lenient.left_out
    assert list(map(int, told)) == lenient.left_out


@NOT_ON_A_MAC
def test_what_did_not_run_fails_a_strict_run(tmp_path, lenient):
    """nbconvert stops at the first error, so the last cell raises, and names every one that did not run."""
    done = run_without_compiler(tmp_path, {"METALLAB_STRICT": "1"})
    raised = done.stderr.partition("NotRun: ")[2]
    assert done.returncode == 1
    assert set(lenient.left_out) <= set(map(int, re.findall(TOLD, raised)))
