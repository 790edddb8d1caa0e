"""Each picture has words for whoever cannot see it, and stands once: in a page that runs, HTML of it, a stored copy."""

from __future__ import annotations

import base64
import copy
import html
from collections.abc import Iterator
from html.parser import HTMLParser

import nbclient
import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat import v4

from metallab import paths
from metallab.results.publish import pages, plain
from metallab.results.publish.executed import EXECUTED

STORED = sorted(EXECUTED.glob("*/*.ipynb"))
WORDS = ['a line & "more"', "multiples of it", "of another process"]
CELLS = [
    """
from matplotlib import pyplot as plt
from metallab import plots
%load_ext metallab.isolated

def draw(words):
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.plot([1, 2])
    return plots.describe(figure, words)
""",
    f"draw({WORDS[0]!r})",
    f"plots.multiples(draw, [{WORDS[1]!r}])",
    f"""%%isolated
from matplotlib import pyplot as plt
from metallab import plots
figure, axes = plt.subplots(figsize=(2, 1))
axes.plot([1, 2])
display(plots.describe(figure, {WORDS[2]!r}))
""",
]


class Images(HTMLParser):
    """Source and alternative text of each picture in HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            about = dict(attrs)
            self.found.append((about["src"], about.get("alt")))


@pytest.fixture(scope="module")
def executed() -> nbformat.NotebookNode:
    """A page with plots, as a kernel ran it."""
    page = v4.new_notebook(cells=[v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(
        page, timeout=600, resources={"metadata": {"path": str(paths.NOTEBOOKS)}}
    ).execute()
    return page


def outputs_of(page: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    """Yield the outputs that hold data."""
    for cell in page.cells:
        yield from (output for output in cell.get("outputs", ()) if "data" in output)


def faults_of(output: nbformat.NotebookNode) -> Iterator[str]:
    """Say what is wrong with the pictures of a stored output: one each, with words, as a PNG and not in HTML."""
    kinds = [kind for kind in output.data if kind.startswith("image/")]
    if Images(output.data.get("text/html", "")).found:
        yield "a picture within HTML"
    if len(kinds) > 1 or (kinds and "text/html" in output.data):
        yield "a picture twice"
    for kind in kinds:
        if not output.metadata.get(kind, {}).get("alt", "").strip():
            yield "a picture without words"


def stored_faults(page: nbformat.NotebookNode) -> list[str]:
    """Return what is wrong with the pictures of a stored page."""
    faults: list[str] = []
    for cell in page.cells:
        outputs = [output for output in cell.get("outputs", ()) if "data" in output]
        for output in outputs:
            faults.extend(faults_of(output))
        pictures = [output.data["image/png"] for output in outputs if "image/png" in output.data]
        if len(set(pictures)) < len(pictures):
            faults.append("a cell shows a picture twice")
    return faults


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_picture_of_a_stored_page_stands_once_with_words(path):
    page = nbformat.read(path, 4)
    assert stored_faults(page) == []


def test_a_page_that_ran_has_each_picture_as_html_with_words_and_as_the_same_png(executed):
    shown = [output for output in outputs_of(executed) if "image/png" in output.data]

    assert [output.metadata["image/png"]["alt"] for output in shown] == WORDS
    sources = [f"data:image/png;base64,{each.data['image/png'].strip()}" for each in shown]
    in_html = [Images(output.data["text/html"]).found for output in shown]
    assert in_html == [[pair] for pair in zip(sources, WORDS, strict=True)]


def test_html_made_of_a_page_has_each_picture_once_with_words(executed):
    page, _ = HTMLExporter().from_notebook_node(copy.deepcopy(executed))
    assert [words for _, words in Images(page).found] == WORDS


def test_a_stored_copy_keeps_the_png_alone_and_its_words(executed, tmp_path):
    nbformat.write(executed, tmp_path / "page.ipynb")
    stored = plain.make_plain(pages.read_notebook(tmp_path / "page.ipynb"))
    assert [output.metadata["image/png"]["alt"] for output in outputs_of(stored)] == WORDS
    assert [list(output.data) for output in outputs_of(stored)] == [["image/png"]] * len(WORDS)
    assert stored_faults(stored) == []


def plain_output(text: str, alternative: str = "a line") -> list[nbformat.NotebookNode]:
    """Return what a stored copy keeps of a picture, with words in the metadata, beside a piece of HTML."""
    data = {"text/html": text, "image/png": base64.b64encode(_ONE_PIXEL).decode()}
    output = v4.new_output("display_data", data, metadata={"image/png": {"alt": alternative}})
    page = v4.new_notebook(cells=[v4.new_code_cell("show()", outputs=[output])])
    return plain.make_plain(page).cells[0].outputs


_ONE_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_SOURCE = f"data:image/png;base64,{base64.b64encode(_ONE_PIXEL).decode()}"


@pytest.mark.parametrize(
    "words", ["a line", 'of "a" & <b>', "a\nb"], ids=["plain", "signs", "lines"]
)
def test_html_that_is_the_picture_beside_it_goes(words):
    (kept,) = plain_output(f'<img alt="{html.escape(words)}" src="{_SOURCE}">', words)
    assert list(kept.data) == ["image/png"]
    assert kept.metadata["image/png"]["alt"] == words


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f'<p>seven</p><img alt="a line" src="{_SOURCE}">', "seven"),
        ("<p>seven</p>", "seven"),
    ],
    ids=["text-and-picture", "text"],
)
def test_html_that_says_more_than_the_picture_stays(text, left):
    kept = plain_output(text)
    assert any(left in output.data.get("text/html", "") for output in kept)


def test_a_picture_with_other_words_than_those_beside_it_stays():
    kept = plain_output(f'<img alt="another" src="{_SOURCE}">')
    assert [output.metadata["image/png"]["alt"] for output in kept] == ["another", "a line"]
