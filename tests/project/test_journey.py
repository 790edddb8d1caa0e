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
from metallab.results.publish import show, store

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


def code(text: str, name: str, *tags: str):
    return new_code_cell(text, id=name, metadata={"tags": list(tags)} if tags else {})


def page(name: str, other: str):
    """Return a page as short as a page can be: it measures, draws, asks one exercise, saves, and leads to another page.

    The exercise is one of page 31's, so that `check` knows it.
    """
    links = f"Then comes [the other]({other}.ipynb); here is [the code](../README.md)."
    stub = "def bits_a_weight(group):\n    return ..."
    solution = "def bits_a_weight(group):\n    return 4 + 32 / group  # hidden"
    cells = [
        new_markdown_cell(f"# Add it up\n\n{links}"),
        code(SETUP, "setup"),
        code(stub, "exercise-1", "exercise"),
        code(solution, "solution-1", "solution"),
        code('check("31.1", bits_a_weight)', "check-1"),
        code("metallab.finish()", "finish"),
    ]

    # what the course's table would say of it; nothing here compares that with the page
    told = {"question": "How many?", "minutes": 5, "exercises": 2, "after": []}
    told["without_a_mac"] = "all"
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "metallab": {"needs": ["torch"], "headline": HEADLINE, "course": told},
    }
    return new_notebook(cells=cells, metadata=metadata)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder with two pages, where this process and those that it starts write what they make."""
    folder = tmp_path_factory.mktemp("journey")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    for name, other in (("01_add", "02_more"), ("02_more", "01_add")):
        nbformat.write(page(name, other), notebooks / f"{name}.ipynb")

    # processes that are started read the variables; in this one `paths` has read them already
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METALLAB_NOTEBOOKS", str(notebooks))
        patch.setenv("METALLAB_BUILD", str(folder / "build"))
        patch.setattr(paths, "NOTEBOOKS", notebooks)
        yield folder


def links_of(html: str) -> set[str]:
    """The files of this machine that a page of HTML leads to."""
    soup = BeautifulSoup(html, "html.parser")
    found = {each.get("href") or each.get("src") for each in soup.select("[href], [src]")}
    return {
        unquote(urlsplit(link).path) for link in found if link and not urlsplit(link).scheme
    } - {""}


def run_module(*words: str, cwd) -> None:
    """Run a module of metallab, which has to succeed."""
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(checkout):
    """The folder of a run of one page, whose report is made."""
    run_module("metallab.headless", "--device", "cpu", "--only", "02", cwd=checkout)
    run_module("metallab", "report", cwd=checkout)
    return checkout / "build" / "full-cpu"


def test_a_run_is_of_the_page_that_was_asked_for(run):
    summary = json.loads((run / "summary.json").read_text())

    statuses = {entry["name"]: entry["status"] for entry in summary["notebooks"]}
    assert statuses == {"02_more": "passed"}


def test_a_report_has_the_headline_of_a_run_and_no_link_that_leads_nowhere(run):
    report = run.parent / "report" / "index.html"
    html = report.read_text("utf-8")

    assert "The sum was measured." in html
    assert [link for link in links_of(html) if not (report.parent / link).exists()] == []


@pytest.fixture(scope="module")
def stored(run, checkout):
    """The folder of the machine whose executed pages were stored."""
    folder, refused = store.store_run(run, checkout / "executed")
    show.update(checkout / "executed", checkout / "gallery.md")
    assert refused == {}
    return folder


def test_a_stored_page_keeps_its_results_and_is_in_the_gallery(stored, checkout):
    assert len(records.load(stored / "results" / "02_more.json")) == 1
    gallery = (checkout / "gallery.md").read_text()
    assert f"executed/{stored.name}/02_more.ipynb" in gallery


def test_what_is_stored_of_a_run_is_nothing_private(stored):
    files = [path for path in stored.rglob("*.*") if path.suffix in (".json", ".ipynb")]
    texts = [path.read_text("utf-8") for path in files]

    assert texts
    assert redact.find_private("\n".join(texts)) == []


def test_a_run_becomes_a_book(run, checkout):
    book.lay_out(book.read_runs([run]), checkout / "book")

    laid_out = nbformat.read(checkout / "book" / "notebooks" / "02_more.ipynb", 4)
    counts = [cell.execution_count for cell in laid_out.cells if cell.cell_type == "code"]
    assert counts == [1, 2, 3, 4, 5]
    assert "Add it up" in laid_out.cells[0].source


def test_a_workshop_has_a_copy_of_each_page_without_its_solutions(checkout):
    copies, _ = workshop.make(sorted(paths.NOTEBOOKS.glob("*.ipynb")), checkout / "copies")

    assert [path.name for path in copies] == ["01_add.ipynb", "02_more.ipynb"]
    assert [path.name for path in copies if "# hidden" in path.read_text()] == []


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


@pytest.fixture(scope="module")
def student(checkout):
    """One who has a student copy, with everything that the page has set up."""
    (path, _), _ = workshop.make(sorted(paths.NOTEBOOKS.glob("*.ipynb")), checkout / "workshop")
    student = Student(path)
    student.run("setup")
    yield student
    student.kernel.stop_channels()
    student.manager.shutdown_kernel(now=True)
    student.sockets.cleanup()


RIGHT = "def bits_a_weight(group):\n    return 4 + 16 / group * 2  # mine"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (None, "not attempted yet"),
        ("def bits_a_weight(group):\n    return 4", "returned 4, expected 6"),
        (RIGHT, "Exercise 31.1: right"),
    ],
    ids=["untouched", "wrong", "right"],
)
def test_a_check_tells_a_student_how_far_an_answer_is(student, typed, told):
    student.run("exercise-1", typed or "def bits_a_weight(group):\n    return ...")

    assert told in student.run("check-1")


def test_a_student_goes_on_after_a_restart(student):
    student.restart()
    assert "NameError" in student.run("check-1")

    student.run("setup")
    student.run("exercise-1", RIGHT)
    assert "Exercise 31.1: right" in student.run("check-1")


def test_a_student_s_saved_work_stays_when_copies_are_made_again(student):
    student.run("exercise-1", RIGHT)
    student.save()
    work = student.path.read_bytes()

    run_module("metallab.authoring.workshop", str(student.path.parent), cwd=None)

    assert student.path.read_bytes() == work
    assert b"# mine" in work


DOCUMENTED = re.compile(
    r"^(?:\.venv/bin/)?((?:metallab|python -m metal\w+(?:\.\w+)*) .*?)(?: +#.*)?$", re.MULTILINE
)


def documented_lines() -> set[str]:
    """The commands of ``metallab`` and of this project's modules that documents print."""
    texts = [(paths.ROOT / name).read_text("utf-8") for name in PAGES]
    return {line for text in texts for line in DOCUMENTED.findall(text)}


LINES = {line: shlex.split(line) for line in sorted(documented_lines())}
"""Their words. Those of make: tests/project/test_documents.py."""

OF_METALLAB = {line: words for line, words in LINES.items() if words[0] == "metallab"}


def test_every_command_of_metallab_is_documented_and_no_other():
    names = {words[1] for words in OF_METALLAB.values()}

    assert names == {each.name for each in command.COMMANDS}


@pytest.mark.parametrize("words", OF_METALLAB.values(), ids=OF_METALLAB)
def test_the_options_of_a_documented_command_exist(words):
    _, name, *rest = words

    assert set(filter(options, rest)) <= options(help_of(name))


def test_a_documented_module_exists():
    """What stands behind ``python -m``."""
    modules = {words[2] for line, words in LINES.items() if line not in OF_METALLAB}

    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []
