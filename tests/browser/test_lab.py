"""``make lab`` as a learner meets it: in a browser, on copies of the notebooks, in fast mode on the CPU.

Notebooks 00 and 01 run from top to bottom and show their plots; on a student's copy a wrong answer goes red and a right
one green. The first page and what it links to open, and every link of these. The machine may be slow: nothing here
asserts on a time.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import chrome
import nbformat
import pytest
import requests
from lab_links import IN_THE_GALLERY, JUPYTERLAB_S_OWN, READ, SHUT_DOWN_CLOSED, TRACKER, Reader
from playwright.sync_api import Locator, Page, expect
from wrong_answers import WRONG_ANSWERS

from metallab import paths
from metallab.authoring import contents, workshop
from metallab.processes import find_process, kill_family

PAGES = ("00_check_your_machine", "01_time_it_right")
STUDENT = "00_check_your_machine"
EXERCISE = "2"

A_START, A_RUN = 600.0, 600_000
"""Seconds that ``make lab`` may take to start, and milliseconds that a notebook may take to run."""
expect.set_options(timeout=600_000)  # milliseconds for all else: the machine may be busy
WAITING, RAN = "[*]:", re.compile(r"^\[\d+\]:$")
"""What stands beside a cell."""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab."""

    address: str
    token: str
    folder: Path
    """What it serves."""

    def open(self, page: Page, notebook: str) -> Locator:
        """Open a notebook, named by its path in the folder, as by a link; return its panel when all cells are there.

        JupyterLab forgets what an earlier test has left open: that is what ``reset`` asks for.
        """
        page.set_default_timeout(600_000)
        page.goto(f"{self.address}/lab/tree/{notebook}?reset&token={self.token}")
        panel = page.locator(".jp-NotebookPanel:visible")
        expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()
        # cells come one after the other; what is asked for earlier may be lost
        expect(panel.locator(".jp-Cell")).to_have_count(
            len(nbformat.read(self.folder / notebook, 4).cells)
        )
        return panel


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """``make lab LAB=folder``, the folder with copies of notebooks and pictures, with the settings of nobody."""
    folder = tmp_path_factory.mktemp("lab")
    served = folder / "served"
    (served / "notebooks").mkdir(parents=True)
    for name in PAGES:
        shutil.copy(paths.NOTEBOOKS / f"{name}.ipynb", served / "notebooks")
    shutil.copytree(paths.ROOT / "data" / "images", served / "data" / "images")
    workshop.make([paths.NOTEBOOKS / f"{STUDENT}.ipynb"], served / "workshop")
    with serving(folder, served, f"LAB={served}") as started:
        yield started


@pytest.fixture(scope="module")
def learners_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """``make lab`` as it is, whose kernels end when their pages are closed."""
    folder = tmp_path_factory.mktemp("learner")
    settings = folder / "settings" / f"{TRACKER.replace(':', '/')}.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(SHUT_DOWN_CLOSED))
    with serving(folder, workshop.WORKSHOP) as started:
        yield started


@contextlib.contextmanager
def serving(folder: Path, served: Path, *given: str) -> Iterator[Lab]:
    """Yield ``make lab`` with what is given, and end it with the block; its settings and its log are in a folder.

    ``served`` is the folder that it serves, for those who look into its files. The test fails if it does not start.
    """
    log = folder / "log"

    with log.open("wb") as output:
        server = subprocess.Popen(
            ["make", "lab", *given, f"LABFLAGS={_options()}"],
            cwd=paths.ROOT,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a signal reaches make and all that it starts
        )
    family = find_process(server.pid)

    try:
        yield Lab(*_address(server, log), served)
    finally:
        # Ctrl-C; without a terminal nobody is asked whether it is meant
        os.killpg(server.pid, signal.SIGINT)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            kill_family(family)
            server.wait()


def _options() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = " --allow-root" if os.geteuid() == 0 else ""
    return f"--no-browser --port={port} --ServerApp.port_retries=0{root}"


def _environment(folder: Path) -> dict[str, str]:
    of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "LAB", "LABFLAGS")
    places = {f"JUPYTER_{name}_DIR": name.lower() for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {f"JUPYTERLAB_{name}_DIR": name.lower() for name in ("SETTINGS", "WORKSPACES")} | {
        "METALLAB_OUT": "out"
    }
    inherited = {name: value for name, value in os.environ.items() if name not in of_make}
    own = {name: str(folder / place) for name, place in places.items()}
    return inherited | own | {"METALLAB_MODE": "fast", "METALLAB_DEVICE": "cpu"}


def _address(server: subprocess.Popen, log: Path) -> tuple[str, str]:
    """What the server prints for its user to click on: where it is, and the token."""
    end = time.monotonic() + A_START
    while time.monotonic() < end and server.poll() is None:
        if match := re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", log.read_text()):
            return match.groups()
        time.sleep(0.5)
    pytest.fail(f"make lab did not start:\n{log.read_text()}")


def run_all(page: Page, panel: Locator) -> None:
    """Run > Run All Cells, and wait until the last cell has had its turn, or will not get one."""
    page.get_by_role("menubar").get_by_text("Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    last = panel.locator(".jp-CodeCell .jp-InputPrompt").last
    expect(last).to_have_text(WAITING)
    expect(last).not_to_have_text(WAITING, timeout=A_RUN)


def the_cell(panel: Locator, text: str) -> Locator:
    """The code cell that holds a piece of text."""
    return panel.locator(".jp-CodeCell").filter(
        has=panel.page.locator(".jp-InputArea-editor", has_text=text)
    )


def run(page: Page, cell: Locator) -> None:
    """Run one cell as with Shift+Enter and wait until it has run."""
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.text_content()
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(prompt).not_to_have_text(before)
    expect(prompt).to_have_text(RAN, timeout=A_RUN)


def answer(page: Page, cell: Locator, text: str) -> None:
    """Type over what stands in a cell, and run it."""
    cell.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)
    run(page, cell)


def bring_into_view(element: Locator) -> None:
    """Scroll until it is seen: JupyterLab scrolls back to the last cell while outputs above it get their height."""
    for _ in range(60):
        element.scroll_into_view_if_needed()
        with contextlib.suppress(AssertionError):
            expect(element).to_be_in_viewport(timeout=1000)
            return
    pytest.fail("it cannot be scrolled into view")


def errors(within: Locator) -> Locator:
    """The errors that are shown. Warnings stand on the same red, as all of standard error does."""
    error = re.compile(
        r"Traceback \(most recent call|^\s*WrongAnswer: "
    )  # the latter is shown without a traceback
    return within.locator('[data-mime-type="application/vnd.jupyter.stderr"]', has_text=error)


def colour(element: Locator, which: str) -> tuple[int, int, int]:
    """Red, green and blue, of 255, of one of an element's colours."""
    text = element.evaluate(f"element => getComputedStyle(element).{which}")
    red, green, blue, *_ = map(int, re.findall(r"\d+", text))
    return red, green, blue


@pytest.fixture(scope="module")
def executed(lab, browser) -> Iterator[Callable[[str], Locator]]:
    """Return a function that gives the panel of a notebook in which all cells have run; each is run once."""
    with contextlib.ExitStack() as opened:

        @functools.cache
        def run_notebook(name: str) -> Locator:
            page = opened.enter_context(chrome.watched(browser))
            panel = lab.open(page, f"notebooks/{name}.ipynb")
            run_all(page, panel)
            return panel

        yield run_notebook


@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_runs_from_top_to_bottom(executed, name):
    panel = executed(name)

    assert errors(panel).all_text_contents() == []
    prompts = panel.locator(".jp-CodeCell .jp-InputPrompt").all_text_contents()
    # A folded solution stands there without its number; that it ran, the check behind it says.
    folded = [cell.metadata.get("jupyter", {}).get("source_hidden", False) for cell in code(name)]
    assert [not RAN.match(prompt) for prompt in prompts] == folded


def size_when_seen(picture: Locator) -> int:
    """The width or the height of a picture, whichever is smaller, once a reader has scrolled to it."""
    bring_into_view(picture)
    expect(picture).to_have_js_property("complete", True)
    return picture.evaluate("image => Math.min(image.naturalWidth, image.naturalHeight)")


def width_when_seen(picture: Locator) -> int:
    """The width of a picture once a reader has scrolled to it."""
    picture.scroll_into_view_if_needed()
    expect(picture).to_have_js_property("complete", True)
    return picture.evaluate("image => image.naturalWidth")


def plots_in(panel: Locator) -> Locator:
    return panel.locator(".jp-OutputArea img")


@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_shows_a_plot_for_each_cell_that_draws(executed, name):
    plots = plots_in(executed(name))

    sources = [cell.source for cell in code(name)]
    drawing = [text for text in sources if "plots." in text or "plt.subplots" in text]
    assert plots.count() >= len(drawing) > 0
    assert min(map(size_when_seen, plots.all())) > 100


@pytest.mark.parametrize("name", PAGES)
def test_each_plot_of_a_notebook_stands_once_and_has_words(executed, name):
    plots = plots_in(executed(name))

    about = plots.evaluate_all("all => all.map(image => [image.src, image.alt])")
    assert [source for source, words in about if not words.strip()] == []
    assert len({source for source, _ in about}) == len(about)


def test_opening_a_copy_changes_nothing(page, lab):
    """So that closing it asks nothing."""
    lab.open(page, f"workshop/{STUDENT}.ipynb")
    expect(page.locator(".lm-TabBar-tab.jp-mod-dirty")).to_have_count(0)


@dataclass(frozen=True)
class Exercise:
    """An exercise in the student's copy, all of whose cells have run."""

    page: Page
    panel: Locator
    sources: dict[str, str]

    folded: int
    """How many cells were folded when the page was opened."""
    untouched: int
    """How many exercises were not attempted when it had run."""

    @property
    def stub(self) -> Locator:
        return the_cell(self.panel, self.sources[f"exercise-{EXERCISE}"].splitlines()[0])

    @property
    def check(self) -> Locator:
        return the_cell(self.panel, f'check("{NUMBER}"')

    def solve(self, text: str) -> None:
        """Type an answer over the stub, and check it."""
        answer(self.page, self.stub, text)
        run(self.page, self.check)


NUMBER = f"{STUDENT[:2]}.{EXERCISE}"


@pytest.fixture(scope="module")
def exercise(lab, browser) -> Iterator[Exercise]:
    """The page is opened and run once; each test types an answer of its own."""
    sources = {cell.id: cell.source for cell in code(STUDENT)}
    with chrome.watched(browser) as page:
        panel = lab.open(page, f"workshop/{STUDENT}.ipynb")
        folded = panel.locator(".jp-CodeCell .jp-InputPlaceholder").count()
        run_all(page, panel)

        untouched = panel.locator(".jp-OutputArea", has_text="not attempted yet").count()
        made = Exercise(page, panel, sources, folded=folded, untouched=untouched)
        expect(made.stub).to_have_count(1)
        yield made


def test_a_copy_folds_nothing_and_its_exercises_are_not_attempted(exercise):
    """It holds the stubs and not the solutions."""
    assert exercise.folded == 0
    assert exercise.untouched == 2


def test_a_wrong_answer_goes_red_and_says_what_was_expected(exercise):
    exercise.solve(WRONG_ANSWERS[STUDENT][f"solution-{EXERCISE}"][0])

    shown = errors(exercise.check)
    expect(shown).to_contain_text(re.compile(r"^\s*WrongAnswer: Exercise .* expected "))
    expect(shown).not_to_contain_text("Traceback")
    red, green, _ = colour(shown, "backgroundColor")
    assert red > green + 20


def test_a_right_answer_after_a_wrong_one_goes_green(exercise):
    exercise.solve(WRONG_ANSWERS[STUDENT][f"solution-{EXERCISE}"][0])
    exercise.solve(exercise.sources[f"solution-{EXERCISE}"])

    expect(errors(exercise.check)).to_have_count(0)
    right = re.compile(rf"^Exercise {NUMBER}: right\b")
    verdict = exercise.check.locator(".jp-OutputArea div", has_text=right).last
    red, green, _ = colour(verdict, "borderLeftColor")
    assert green > red + 20


LINK = re.compile(r"\]\((\.\./[^)#]+)")
"""A link of a notebook to what lies beside the folder of notebooks."""


def test_pictures_and_documents_are_found_from_notebooks(tmp_path):
    texts = [page.read_text(encoding="utf-8") for page in paths.NOTEBOOKS.glob("*.ipynb")]
    targets = sorted({target for text in texts for target in LINK.findall(text)})

    with serving(tmp_path, paths.ROOT, "LAB=notebooks") as lab:
        folder = f"{lab.address}/files/notebooks/"
        addresses = {name: f"{urljoin(folder, name)}?token={lab.token}" for name in targets}
        answers = {name: requests.get(url, timeout=600) for name, url in addresses.items()}

    assert answers
    assert [name for name, answer in answers.items() if not answer.ok] == []


@pytest.fixture(scope="module")
def ask(learners_lab) -> Callable[[str], requests.Response]:
    """Return a function that asks a learner's JupyterLab for something."""
    lab = learners_lab
    return lambda path: requests.get(f"{lab.address}/{path}?token={lab.token}", timeout=600)


def test_make_lab_serves_copies_and_documents(ask):
    names = {each["name"] for each in ask("api/contents/").json()["content"]}

    assert {contents.FILE, "README.md", "docs", "00_check_your_machine.ipynb"} <= names
    assert not {"notebooks", "tests"} & names
    assert ask("api/contents/docs/questions.md").ok


@pytest.mark.parametrize(
    "path",
    ["api/contents/docs/teaching.md", "files/..%2Fnotebooks/00_check_your_machine.ipynb"],
    ids=["a document for teachers", "a page outside of the folder"],
)
def test_make_lab_serves_no_solution(ask, path):
    assert not ask(path).ok


@pytest.fixture
def reader(browser, learners_lab):
    """Somebody at a desktop who has just opened what ``make lab`` prints."""
    with chrome.watched(browser, excused=JUPYTERLAB_S_OWN) as page:
        page.set_default_timeout(600_000)
        page.goto(f"{learners_lab.address}/?token={learners_lab.token}")
        yield Reader(page, learners_lab.address, learners_lab.folder)


def test_make_lab_opens_at_the_contents(reader):
    shown = reader.see(contents.FILE)
    expect(shown.get_by_role("heading", level=1)).to_be_in_viewport()
    expect(shown.get_by_role("link", name="00 Check your machine")).to_be_in_viewport()


@pytest.mark.parametrize("name", READ)
def test_each_link_opens_what_it_names(reader, name):
    reader.open(name)
    assert len(reader.follow_all(name)) >= READ[name]


@pytest.mark.parametrize(
    ("name", "count"),
    [("README.md", 1), ("docs/gallery.md", IN_THE_GALLERY), ("60_detect_with_yolov5.ipynb", 1)],
)
def test_pictures_of_documents_and_copies_are_seen(reader, name, count):
    pictures = reader.open(name).locator("img")
    expect(pictures).to_have_count(count)

    assert min(map(width_when_seen, pictures.all())) > 100


def test_nothing_is_served_without_the_token(page, lab):
    page.goto(f"{lab.address}/lab")
    assert "/login" in page.url
    assert page.request.get(f"{lab.address}/api/contents").status == 403


def code(name: str) -> list[nbformat.NotebookNode]:
    """The code cells of a notebook of the repository."""
    return [
        cell
        for cell in nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", 4).cells
        if cell.cell_type == "code"
    ]
