"""What people do from one end to the other, nothing replaced: two small pages, a student's hour, documented lines."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tempfile
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from jupyter_client.manager import KernelManager
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from test_book_layout import book
from test_surface import PAGES, help_of, options

from metallab import __main__ as command
from metallab import paths, records, redact
from metallab.authoring import workshop
from metallab.results.publish import show

SETUP = """import metallab.device
from matplotlib import pyplot as plt
from metallab import timing
from metallab.exercises import check

lab = metallab.device.pick("cpu")
lab.banner()
product = timing.measure(lambda: sum(range(2000)), on=timing.Host(), name="sum")
figure, axes = plt.subplots()
axes.bar(["sum"], [product.median])
plt.show()"""
HEADLINE = {"sentences": [{"text": "The sum was measured."}], "picture": "figure"}


def page(name: str, other: str):
    """A page as short as a page can be: it measures, draws, asks one exercise, and saves."""
    cells = [
        new_markdown_cell(
            f"# Add it up\n\nThen comes [the other]({other}.ipynb); here is [the code](../README.md)."
        ),
        new_code_cell(SETUP, id="setup"),
        new_code_cell(
            "def bits_a_weight(group):\n    return ...",
            id="exercise-1",
            metadata={"tags": ["exercise"]},
        ),
        new_code_cell(
            "def bits_a_weight(group):\n    return 4 + 32 / group  # hidden",
            id="solution-1",
            metadata={"tags": ["solution"]},
        ),
        new_code_cell('check("31.1", bits_a_weight)', id="check-1"),
        new_code_cell("metallab.finish()", id="finish"),
    ]
    told = {
        "question": "How many?",
        "minutes": 5,
        "exercises": 2,
        "after": [],
        "without_a_mac": "all",
    }
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(
        cells=cells,
        metadata={
            "kernelspec": kernel,
            "metallab": {"needs": ["torch"], "headline": HEADLINE, "course": told},
        },
    )


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Two pages, and all that is written, in folders of their own."""
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    for name, other in (("01_add", "02_more"), ("02_more", "01_add")):
        nbformat.write(page(name, other), notebooks / f"{name}.ipynb")
    for name, folder in {
        "METALLAB_NOTEBOOKS": notebooks,
        "METALLAB_BUILD": tmp_path / "build",
    }.items():
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(paths, "NOTEBOOKS", notebooks)
    return tmp_path


def links_of(html: str) -> set[str]:
    """The files of this machine that a page of HTML leads to."""
    soup = BeautifulSoup(html, "html.parser")
    found = {each.get("href") or each.get("src") for each in soup.select("[href], [src]")}
    return {
        unquote(urlsplit(link).path) for link in found if link and not urlsplit(link).scheme
    } - {""}


def test_run_report_show_book_workshop(checkout):
    run, report = checkout / "build" / "full-cpu", checkout / "build" / "report" / "index.html"
    for asked in (["metallab.headless", "--device", "cpu", "--only", "02"], ["metallab", "report"]):
        done = subprocess.run(
            [sys.executable, "-m", *asked], cwd=checkout, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert [(entry["name"], entry["status"]) for entry in summary["notebooks"]] == [
        ("02_more", "passed")
    ]
    html = report.read_text("utf-8")
    assert "The sum was measured." in html
    assert [link for link in links_of(html) if not (report.parent / link).exists()] == []

    executed, gallery = checkout / "executed", checkout / "gallery.md"
    folder, refused = show.make(run, executed)
    show.update(executed, gallery)
    assert refused == {}
    assert f"executed/{folder.name}/02_more.ipynb" in gallery.read_text()
    assert len(records.load(folder / "results" / "02_more.json")) == 1
    texts = [
        path.read_text("utf-8")
        for path in folder.rglob("*.*")
        if path.suffix in (".json", ".ipynb")
    ]
    assert redact.find_private("\n".join(texts)) == []

    book.lay_out(book.read_runs([run]), checkout / "book")
    laid_out = nbformat.read(checkout / "book" / "notebooks" / "02_more.ipynb", 4)
    assert [cell.execution_count for cell in laid_out.cells if cell.cell_type == "code"] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert "Add it up" in laid_out.cells[0].source

    copies, _ = workshop.make(sorted(paths.NOTEBOOKS.glob("*.ipynb")), checkout / "workshop")
    assert [path.name for path in copies] == ["01_add.ipynb", "02_more.ipynb"]
    assert all("# hidden" not in path.read_text() for path in copies)


class Student:
    """Somebody with a student copy in JupyterLab: one kernel, cells run one at a time, saved by hand."""

    def __init__(self, path) -> None:
        self.path, self.page = path, nbformat.read(path, 4)
        self.sockets = tempfile.TemporaryDirectory()  # and no port that another test may take
        self.manager = KernelManager(transport="ipc", ip=f"{self.sockets.name}/k")
        self.manager.start_kernel(cwd=str(path.parent))
        self.kernel = self.manager.blocking_client()
        self.kernel.start_channels()
        self.kernel.wait_for_ready(timeout=600)

    def run(self, name: str, typed: str | None = None) -> str:
        """Run a cell, with something else typed into it; everything that it shows, as text."""
        (cell,) = (cell for cell in self.page.cells if cell.id == name)
        cell.source, shown = typed or cell.source, []
        self.kernel.execute_interactive(
            cell.source, timeout=600, output_hook=lambda m: shown.append(str(m["content"]))
        )
        return "".join(shown)

    def save(self) -> None:
        nbformat.write(self.page, self.path)

    def restart(self) -> None:
        self.manager.restart_kernel(now=True)
        self.kernel.wait_for_ready(timeout=600)


@pytest.fixture
def student(checkout):
    (path, _), _ = workshop.make(sorted(paths.NOTEBOOKS.glob("*.ipynb")), checkout / "workshop")
    student = Student(path)
    yield student
    student.kernel.stop_channels()
    student.manager.shutdown_kernel(now=True)
    student.sockets.cleanup()


def test_a_student_s_hour_with_a_restart(student):
    student.run("setup")
    student.run("exercise-1")
    assert "not attempted yet" in student.run("check-1")
    student.run("exercise-1", "def bits_a_weight(group):\n    return 4")
    assert "returned 4, expected 6" in student.run("check-1")
    student.run("exercise-1", "def bits_a_weight(group):\n    return 4 + 16 / group * 2  # mine")
    assert "Exercise 31.1: right" in student.run("check-1")
    student.save()

    student.restart()
    assert "NameError" in student.run("check-1")
    for name in ("setup", "exercise-1"):
        student.run(name)
    assert "Exercise 31.1: right" in student.run("check-1")

    work = student.path.read_bytes()
    again = [sys.executable, "-m", "metallab.authoring.workshop", student.path.parent]
    assert subprocess.run(again, capture_output=True, text=True).returncode == 0
    assert student.path.read_bytes() == work
    assert b"# mine" in work


DOCUMENTED = re.compile(
    r"^(?:\.venv/bin/)?((?:metallab|python -m metal\w+(?:\.\w+)*) .*?)(?: +#.*)?$", re.MULTILINE
)


def test_documented_commands_and_their_options_exist():
    """Of ``metallab`` and this project's modules. Those of make: tests/project/test_documents.py."""
    lines = {
        line
        for name in PAGES
        for line in DOCUMENTED.findall((paths.ROOT / name).read_text("utf-8"))
    }
    known = {each.name for each in command.COMMANDS}
    assert {shlex.split(line)[1] for line in lines if line.startswith("metallab ")} == known
    for line in lines:
        program, name, *rest = shlex.split(line)
        if program == "metallab":
            assert set(filter(options, rest)) <= options(help_of(name)), line
        else:
            assert importlib.util.find_spec(rest[0]), line
