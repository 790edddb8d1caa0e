"""Executed pages in the repository: which runs are shown, what is left of them, and the gallery."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import itertools
import json
import os
import random
import re
import shutil
from collections.abc import Iterator

import nbformat
import pytest
import test_documents
from nbformat import v4
from PIL import Image
from test_report import Run, code, entry, png, record, shown

from metallab import needs, paths, records, redact
from metallab.results import report
from metallab.results.publish import pages, plain, show

REVISION = "a" * 40
GAP = needs.MissingTool("the model was not converted", "make packages")
MOST_BYTES = 10_000_000  # of a set
STORED = sorted(path.parent for path in show.EXECUTED.glob("*/summary.json"))


# --- what is stored ---


def faults_of(page: show.Executed) -> Iterator[str]:
    """What is wrong with a stored page. One that is older than its notebook names its revision, and is no fault."""
    executed = nbformat.read(page.path, 4)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    top = executed.cells[0].source

    if page.record.machine.git_revision[:7] not in top:
        yield "it does not name its revision"
    if any(output.output_type == "error" for output in outputs):
        yield "it did not come to its end"
    if traces := redact.find_private("\n".join(pages.find_texts(outputs))):
        yield f"it names {traces}"
    if {kind for output in outputs for kind in output.get("data", ())} - {*plain.KEPT}:
        yield "an output is not for every viewer"
    if any(gap["what"] not in top for gap in page.entry.not_run):
        yield "it does not name a cell that did not run"

    drawn = page.picture and hashlib.sha256(page.picture.read_bytes()).hexdigest()
    if drawn != page.record.headline.sha256 or not (drawn or page.entry.not_run):
        yield "its picture is missing or another one"


def faults_of_set(stored) -> Iterator[str]:
    """What is wrong with the stored pages of a machine."""
    files = [path for path in stored.folder.rglob("*") if path.is_file()]
    for path in files:
        if path.suffix == ".json" and redact.find_private(path.read_text(encoding="utf-8")):
            yield f"{path}: it names a machine"
    if sum(path.stat().st_size for path in files) > MOST_BYTES:
        yield f"{stored.folder}: it is too large"

    for page in stored.pages.values():
        yield from (f"{page.path}: {fault}" for fault in faults_of(page))


def test_stored_pages_are_whole_and_name_no_machine():
    faults = [fault for each in show.read_sets() for fault in faults_of_set(each)]

    assert not faults, "\n".join(["make run DEVICE=cpu && make show RUN=build/full-cpu", *faults])


def test_readme_lists_each_page():
    names = [path.name for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]

    assert [*show.read_lessons()] == names


@pytest.fixture(scope="module")
def linked():
    """The folder and the name of each stored page that README leads to, in its order."""
    row = re.compile(r"^\|.*\(data/executed/(\w+)/(\w+)\.ipynb\)", re.MULTILINE)
    return row.findall(show.README.read_text(encoding="utf-8"))


def test_readme_leads_to_pages_that_ran_whole(linked):
    pages = {each.folder.name: each.pages for each in show.read_sets()}

    assert [name for folder, name in linked if not show.is_linked(pages[folder][name])] == []


def misled(linked, copies) -> Iterator[str]:
    """Yield the pages whose link in README does not lead to their best copy.

    A copy of an older notebook may keep its link: else whoever changes the code of a page, by which its copy becomes
    one of these, would have to change README and the gallery as well. ``make show`` leads all links to the best.

    Parameters
    ----------
    linked
        The folder of the copy that README leads to, for each page by its name.
    copies
        The stored copies of each page.
    """
    for name, stored in copies.items():
        best = show.choose_copy(stored)
        chosen = best.folder.name if best is not None else None
        led_to = [copy for copy in stored if copy.folder.name == linked.get(name)]
        is_older = any(not show.is_current(copy) for copy in led_to)
        if linked.get(name) != chosen and not is_older:
            yield f"{name}: {linked.get(name)} in place of {chosen}"


def test_readme_leads_to_the_best_copy_of_each_page_whose_code_has_not_changed(linked):
    names = [file.removesuffix(".ipynb") for file in show.read_lessons()]
    sets = [each.pages for each in show.read_sets()]
    copies = {name: [its[name] for its in sets if name in its] for name in names}

    faults = list(misled({name: folder for folder, name in linked}, copies))

    assert not faults, "\n".join(["make show", *faults])


def links_between(pages) -> Iterator[tuple[str, str, str]]:
    """Yield links of stored pages to stored pages: the page, the page that it leads to, and the heading."""
    for page in pages:
        for link in test_documents.targets(page):
            name, _, heading = link.partition("#")
            name = name or page.name
            if "/" not in name and name.endswith(".ipynb"):
                yield page.name, name, heading


@pytest.mark.parametrize("folder", STORED, ids=[folder.name for folder in STORED])
def test_links_between_stored_pages_lead_to_a_page_and_a_heading(folder):
    pages = sorted(folder.glob("*.ipynb"))
    anchors = {page.name: {"", *test_documents.anchors(page)} for page in pages}

    assert [
        f"{page}: {name}#{heading}"
        for page, name, heading in links_between(pages)
        if heading not in anchors.get(name, ())
    ] == [], "make show"


# --- what is made of a run ---

INTRODUCTION = (
    "# Measure it\n\nYou measure. You learn.\n\n"
    "See [the guide](../docs/teaching.md) and [the next](02_b.ipynb)"
)


def cells(*outputs: dict) -> list[dict]:
    return [v4.new_markdown_cell(INTRODUCTION), code("measure()", *outputs)]


def measured(name: str, revision: str | None = REVISION, env=(), **changes) -> list[records.Record]:
    """A page's records, with a headline."""
    digest = hashlib.sha256(png()).hexdigest()
    sentences = ("GPU | CPU: equal losses.",)
    headline = records.Headline(sentences, f"{name}.png", "bars; [a] and b", digest)

    one = record("eager", outcome="", **changes)
    described = dataclasses.replace(
        one.machine, git_revision=revision, git_dirty=False, environment=dict(env)
    )
    one = dataclasses.replace(one, lesson=name, name=f"{name}/eager")
    return [dataclasses.replace(one, machine=described, headline=headline)]


README = """\
| [01](notebooks/01_a.ipynb) | [A](notebooks/01_a.ipynb) | 5 | how long a call takes |

| a task | [A](notebooks/01_a.ipynb) |

[Begin here](data/executed/another/01_a.ipynb)
"""
NEEDS = {"01_a": ["torch", "jax-metal"], "02_b": ["torch"]}
"""The packages that the pages of a run need."""


def write_page(path, *cells, packages=()):
    """A notebook of a checkout."""
    metadata = {"metallab": {"needs": list(packages)}}
    nbformat.write(v4.new_notebook(cells=list(cells), metadata=metadata), path)


class Finished(Run):
    """A run in full mode of two pages, and the checkout that it is of."""

    def __init__(self, root, patch):
        super().__init__(root)
        self.notebooks = root / "notebooks"
        self.executed = root / "data/executed"
        self.gallery = root / "gallery.md"
        self.notebooks.mkdir()

        patch.setattr(paths, "NOTEBOOKS", self.notebooks)
        patch.setattr(show, "EXECUTED", self.executed)
        patch.setattr(show, "GALLERY", self.gallery)
        patch.setattr(show, "README", root / "README.md")
        show.README.write_text(README)

        self.summary(entry("01_a"), entry("02_b"))
        for name, packages in NEEDS.items():
            self.page_of(name, shown(png()))
            self.results(name)
            write_page(self.notebooks / f"{name}.ipynb", *cells(), packages=packages)

    def page_of(self, name: str, *outputs: dict) -> None:
        self.notebook(name, v4.new_markdown_cell(f"# Title of {name}"), code("measure()", *outputs))

    def results(self, name: str, **changes) -> None:
        path = records.write(self.folder / "results" / f"{name}.json", measured(name, **changes))
        path.with_suffix(".png").write_bytes(png())

    def make(self):
        return show.make(self.folder, self.executed)

    def shown(self, name: str):
        folder, _ = self.make()
        return nbformat.read(folder / f"{name}.ipynb", 4)


@pytest.fixture
def run(tmp_path, monkeypatch):
    return Finished(tmp_path, monkeypatch)


@pytest.fixture
def stored(run):
    """The folder of the machine, with the run's pages."""
    folder, refused = run.make()
    assert refused == {}
    return folder


def test_a_set_reads_like_the_folder_of_a_run(stored):
    statuses = {each.name: each.status for each in report.read_summary(stored).notebooks}

    assert stored.name == "some_cpu"
    assert statuses == {"01_a": "passed", "02_b": "passed"}


def test_a_set_keeps_the_headline_of_a_page_and_its_picture(stored):
    (kept,) = records.load(stored / "results" / "01_a.json")

    assert kept.headline.sentences == ("GPU | CPU: equal losses.",)
    picture = (stored / "results" / kept.headline.picture).read_bytes()
    assert hashlib.sha256(picture).hexdigest() == kept.headline.sha256


def test_a_stored_page_has_the_notebook_s_text_with_links_that_lead_there(stored):
    top, cell = nbformat.read(stored / "01_a.ipynb", 4).cells

    assert top.source.startswith("# Measure it\n")
    assert "(../../../docs/teaching.md) and [the next](02_b.ipynb)" in top.source
    assert cell.source == "measure()"


@pytest.mark.parametrize("word", ["Some CPU", "20 November 2026", "aaaaaaa"])
def test_a_stored_page_says_below_its_title_where_and_when_it_ran(stored, word):
    top, _ = nbformat.read(stored / "01_a.ipynb", 4).cells
    _, _, caption, *_ = top.source.split("\n")

    assert caption.startswith("> ")
    assert word in caption


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mode": "fast"}, "MODE=full"),
        ({"simulated": True}, "simulated"),
        ({"device": "sim"}, "simulated"),
        ({"notebooks": [entry("01_a", status="failed", reason="Boom")]}, "Boom"),
    ],
)
def test_a_run_is_refused_as_a_whole(run, changes, word, capsys):
    run.summary(entry("01_a"), **changes)
    assert show.main([str(run.folder)]) == 2
    assert word in capsys.readouterr().err
    assert not run.executed.exists()


PRIVATE = v4.new_output("stream", text="in /mnt/disk/somebody/data.txt")
UNKNOWN = v4.new_output("display_data", {"x/y": "?"})


def replace_by_a_pipe(run):
    (run.folder / "01_a.ipynb").unlink()
    os.mkfifo(run.folder / "01_a.ipynb")


DAMAGES = {
    "failed": (
        lambda run: run.summary(entry("01_a", status="failed", reason="Boom"), entry("02_b")),
        "Boom; make run",
    ),
    "a folder of somebody's": (lambda run: run.page_of("01_a", PRIVATE), "'/mnt/disk"),
    "an unknown output": (lambda run: run.page_of("01_a", UNKNOWN), "cell 1"),
    "fast mode": (lambda run: run.results("01_a", mode="fast"), "fast"),
    "a folder in a variable": (
        lambda run: run.results("01_a", env={"XLA_FLAGS": "/mnt/disk/a"}),
        "'/mnt/disk",
    ),
    "half a picture": (lambda run: run.page_of("01_a", shown(png(500, 500)[:50])), "picture"),
    "another picture": (
        lambda run: (run.folder / "results" / "01_a.png").write_bytes(png(4, 4)),
        "01_a.png",
    ),
    "no notebook": (lambda run: (run.folder / "01_a.ipynb").write_text("{"), "01_a.ipynb"),
    "another page's results": (
        lambda run: records.write(run.folder / "results" / "01_a.json", measured("02_b")),
        "another page's",
    ),
    "another device": (
        lambda run: run.results("01_a", env={"METALLAB_DEVICE": "cuda"}),
        "another device",
    ),
    "another page's notebook": (
        lambda run: shutil.copy(run.folder / "02_b.ipynb", run.folder / "01_a.ipynb"),
        "notebook is another page's",
    ),
    "a pipe": (replace_by_a_pipe, "regular"),
}
"""What may be wrong with a page of a run, and a word of the refusal."""


@pytest.mark.parametrize(("damage", "word"), DAMAGES.values(), ids=DAMAGES)
def test_one_page_is_refused_and_the_others_are_shown(run, damage, word):
    damage(run)

    folder, refused = run.make()

    assert [*refused] == ["01_a"]
    assert word in refused["01_a"]
    assert [*show.read_sets(run.executed)[0].pages] == ["02_b"]
    assert not (folder / "01_a.ipynb").exists()


def test_a_page_that_lacked_its_tool_is_left_out_with_the_reason(run):
    """As a skipped one: none of its cells ran, and it has no results."""
    lacking = entry("01_a", status="incomplete", reason="needs Core AI", executed=0)
    (run.folder / "results" / "01_a.json").unlink()
    run.summary(lacking, entry("02_b"))

    folder, refused = run.make()

    assert refused == {}
    assert not (folder / "01_a.ipynb").exists()
    kept = {each.name: each for each in report.read_summary(folder).notebooks}
    assert kept["01_a"].status == "skipped"
    assert kept["01_a"].reason == "needs Core AI"


def change(path, old, new):
    path.write_text(path.read_text().replace(old, new))


SWAPS = {
    "the notebook": lambda folder: shutil.copy(folder / "02_b.ipynb", folder / "01_a.ipynb"),
    "the results": lambda folder: shutil.copy(
        folder / "results/02_b.json", folder / "results/01_a.json"
    ),
    "the picture": lambda folder: (folder / "results/01_a.png").write_bytes(png(9, 9)),
    "the machine": lambda folder: change(folder / "01_a.ipynb", "Some CPU", "Another GPU"),
    "the revision": lambda folder: change(folder / "01_a.ipynb", "aaaaaaa", "bbbbbbb"),
}
"""What may be swapped in a set of stored pages."""


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_what_was_swapped_in_a_set_is_refused(run, stored, swap, capsys):
    swap(stored)

    assert show.main([]) == 2
    assert "01_a" in capsys.readouterr().err
    assert not run.gallery.exists()


def files_of(folder, page):
    """The files of a stored page, and what is in them."""
    return {path.name: path.read_bytes() for path in folder.rglob(f"{page}.*")}


@pytest.mark.parametrize(
    ("first", "refused"),
    [
        ([], []),
        ([entry("01_a")], ["01_a"]),
        ([entry("01_a", status="failed", reason="Boom")], ["01_a"]),
    ],
    ids=["not run", "with another picture", "failed"],
)
def test_a_page_that_is_not_renewed_stays_as_it_is(run, stored, first, refused):
    before = files_of(stored, "01_a")
    (run.folder / "results" / "01_a.png").write_bytes(png(4, 4))  # of another run
    run.summary(*first, entry("02_b"))

    assert [*run.make()[1]] == refused

    assert files_of(stored, "01_a") == before
    assert [*show.read_sets(run.executed)[0].pages] == ["01_a", "02_b"]


def test_a_page_that_ran_again_replaces_itself(run, stored):
    run.page_of("02_b", shown(png(5, 5)))
    run.summary(entry("02_b"))

    run.make()

    _, cell = nbformat.read(stored / "02_b.ipynb", 4).cells
    picture = base64.b64decode(cell.outputs[0].data["image/png"])
    assert Image.open(io.BytesIO(picture)).size == (5, 5)


NEW_TEXT = "# Time it\n\nSee [it](../README.md)."


def test_a_stored_page_gets_today_s_text_and_keeps_outputs(run, stored):
    title, measuring = nbformat.read(stored / "01_a.ipynb", 4).cells
    new = [v4.new_markdown_cell(NEW_TEXT), code("measure()"), v4.new_markdown_cell("So.")]
    write_page(run.notebooks / "01_a.ipynb", *new)

    assert show.main([]) == 0

    top, cell, last = nbformat.read(stored / "01_a.ipynb", 4).cells
    caption = title.source.split("\n\n")[1]
    assert top.source == f"# Time it\n\n{caption}\n\nSee [it](../../../README.md)."
    assert last.source == "So."
    assert cell.outputs == measuring.outputs


def test_a_stored_page_of_other_code_than_today_s_keeps_its_text(run, stored):
    before = (stored / "02_b.ipynb").read_text()
    write_page(run.notebooks / "02_b.ipynb", v4.new_markdown_cell(NEW_TEXT), code("changed()"))

    assert show.main([]) == 0

    assert (stored / "02_b.ipynb").read_text() == before


def test_headings_are_named_as_a_viewer_names_them():
    text = (
        "# A `b_c` and **d**: [e](f.md)?\n\n```sh\n# no heading\n```\n\nUnderlined &amp; wide\n---"
    )
    jupyter = {"A-b_c-and-d:-e?", "Underlined-&-wide"}
    assert pages.find_anchors([text], pages.make_jupyter_anchor) == jupyter
    assert pages.find_anchors([text], pages.make_github_anchor) == {
        "a-b_c-and-d-e",
        "underlined--wide",
    }


def test_headings_of_one_name_are_numbered():
    assert pages.find_anchors(["# A\n\n## B", "## B\n\n## B"], pages.make_github_anchor) == {
        "a",
        "b",
        "b-1",
        "b-2",
    }


@pytest.fixture
def linking(run):
    """A stored page 01 whose text of today can be given links, and a page 02 that has one heading below its title."""
    text = v4.new_markdown_cell("# Measure it\n\n## Part: `two`")
    write_page(run.notebooks / "02_b.ipynb", text, code("measure()"))
    run.make()
    shutil.copy(run.notebooks / "02_b.ipynb", run.notebooks / "03_c.ipynb")  # which did not run

    guide = run.notebooks.parent / "docs" / "guide.md"
    guide.parent.mkdir()
    guide.write_text("# Guide\n\n## Part: `two`")
    (guide.parent / "a.py").touch()

    def shown_with(link: str) -> str:
        text = v4.new_markdown_cell(f"# A\n\n[x]({link})")
        write_page(run.notebooks / "01_a.ipynb", text, code("measure()"))
        assert show.main([]) == 0
        (stored,) = run.executed.glob("*/01_a.ipynb")
        return re.findall(r"\[x\]\((.*)\)", nbformat.read(stored, 4).cells[0].source)[0]

    return shown_with


@pytest.mark.parametrize(
    ("link", "led"),
    [
        pytest.param("02_b.ipynb#Part:-two", "02_b.ipynb#Part:-two", id="a heading that is there"),
        pytest.param("02_b.ipynb#Newer", "02_b.ipynb", id="a heading that the stored page lacks"),
        pytest.param(
            "03_c.ipynb", "../../../notebooks/03_c.ipynb", id="a page that the machine lacks"
        ),
        pytest.param(
            "03_c.ipynb#Part:-two", "../../../notebooks/03_c.ipynb#Part:-two", id="and its heading"
        ),
        pytest.param(
            "03_c.ipynb#Newer",
            "../../../notebooks/03_c.ipynb",
            id="and a heading that is not there",
        ),
        pytest.param("04_gone.ipynb", "04_gone.ipynb", id="a page that no longer is"),
        pytest.param(
            "../docs/guide.md#part-two", "../../../docs/guide.md#part-two", id="a guide's heading"
        ),
        pytest.param(
            "../docs/guide.md#gone", "../../../docs/guide.md", id="a heading that the guide lacks"
        ),
        pytest.param(
            "../docs/gone.md#gone", "../../../docs/gone.md#gone", id="a file that is not there"
        ),
        pytest.param("../docs/a.py#L1", "../../../docs/a.py#L1", id="a line of a program"),
        pytest.param("https://x.example/a.md#b", "https://x.example/a.md#b", id="another site"),
        pytest.param("#of-its-own", "#of-its-own", id="within the page"),
    ],
)
def test_a_link_of_a_stored_page_leads_to_what_is_stored(linking, link, led):
    assert linking(link) == led


@pytest.mark.parametrize(
    ("link", "led"),
    [("02_b.ipynb#Newer", "02_b.ipynb"), ("03_c.ipynb", "../../../notebooks/03_c.ipynb")],
    ids=["without its heading", "into the checkout"],
)
def test_a_link_that_was_changed_stays_so_when_pages_are_shown_again(linking, link, led):
    linking(link)

    assert linking(link) == led


def test_a_heading_that_comes_back_is_linked_again(run, linking):
    assert linking("02_b.ipynb#Newer") == "02_b.ipynb"
    newer = nbformat.read(run.notebooks / "02_b.ipynb", 4)
    newer.cells[0].source += "\n\n## Newer"
    nbformat.write(newer, run.notebooks / "02_b.ipynb")
    assert linking("02_b.ipynb#Newer") == "02_b.ipynb#Newer"


def test_a_page_of_other_code_than_today_s_keeps_its_text_but_not_a_link_to_nothing(run, linking):
    (stored,) = run.executed.glob("*/02_b.ipynb")
    older = nbformat.read(stored, 4)
    older.cells[0].source += "\n\n[x](01_a.ipynb#Gone)"
    older.cells[1].source = "older()"
    nbformat.write(older, stored)

    linking("02_b.ipynb")

    older.cells[0].source = older.cells[0].source.replace("#Gone", "")
    assert nbformat.read(stored, 4) == older


def test_the_command_names_a_heading_that_is_no_longer_linked(linking, capsys):
    linking("02_b.ipynb#Newer")
    assert "02_b.ipynb#Newer" in capsys.readouterr().err


# --- the gallery ---


@pytest.fixture
def of_two_machines(run):
    """A run whose two pages are stored, of which a GPU has run the second as well."""
    run.make()
    run.summary(entry("02_b"), device="cuda", label="Some GPU")
    run.make()
    return run


def gallery_of(run):
    return show.render_gallery(show.read_sets(run.executed), "e")


def test_the_gallery_shows_a_page_with_its_question_its_machine_and_its_picture(of_two_machines):
    _, first, _ = gallery_of(of_two_machines).split("\n## ")

    assert "How long a call takes. *[Some CPU](e/some_cpu/01_a.ipynb), at revision aaaaaaa" in first
    assert "](e/some_cpu/results/01_a.png)](e/some_cpu/01_a.ipynb)" in first


def test_the_gallery_shows_the_copy_of_a_gpu_first(of_two_machines):
    _, _, second = gallery_of(of_two_machines).split("\n## ")

    assert "](e/some_gpu/results/02_b.png)](e/some_gpu/02_b.ipynb)" in second
    gpu, cpu = (second.index(f"](e/some_{name}/02_b.ipynb)") for name in ("gpu", "cpu"))
    assert gpu < cpu


def test_the_gallery_shows_the_copy_of_a_quiet_machine_before_that_of_a_busy_gpu(of_two_machines):
    of_two_machines.results("02_b", others=9.0)
    of_two_machines.make()

    assert "](e/some_cpu/02_b.ipynb)\n" in gallery_of(of_two_machines)


def caption():
    """A cell that says what the picture before it shows."""
    text = "Two [lines](../a.md) cross at *n* = 8. If they do not, look again."
    return v4.new_markdown_cell(text, metadata={"tags": ["caption"]})


def draw(words):
    """A cell that shows a picture with these words."""
    output = shown(png())
    output["metadata"] = {"image/png": {"alt": words}}
    return code("plot()", output)


def find_with(page, headline):
    """The picture of a stored page in the gallery, if its headline were another one."""
    record = dataclasses.replace(page.record, headline=headline)
    return show.find_picture(dataclasses.replace(page, record=record))


@pytest.fixture
def picture_of(run, stored):
    """Return a function that adds cells to a stored page, and gives its picture in the gallery."""
    page = show.read_sets(run.executed)[0].pages["01_a"]

    def find(*cells, headline):
        """``headline``: the words of the headline's own picture."""
        stored_page = nbformat.read(page.path, 4)
        stored_page.cells += cells
        nbformat.write(stored_page, page.path)
        return find_with(page, dataclasses.replace(page.record.headline, alternative_text=headline))

    return find


INTERVALS = "Speed-up over eager. x axis"


def test_the_gallery_shows_the_headline_s_picture_and_what_its_caption_says(picture_of):
    cells = draw(INTERVALS), caption(), draw("a curve"), caption()

    found = picture_of(*cells, headline="a curve")

    assert found.content is None, "which is the headline's own"
    assert found.says == "Two lines cross at *n* = 8."


def test_the_gallery_shows_no_picture_of_a_few_intervals(picture_of):
    words = f"{INTERVALS}: speed-up"

    assert picture_of(draw(INTERVALS), caption(), draw(words), caption(), headline=words) is None


def test_another_picture_takes_the_place_of_a_few_intervals(picture_of):
    cells = draw("no caption"), draw("a curve"), caption()

    found = picture_of(*cells, headline="Speed-up over eager")

    assert found.alternative_text == "a curve"
    assert found.content == png()


@pytest.fixture
def incomplete(run):
    """A run whose first page lacked a tool for a cell."""
    gap = {"where": "cell 1 (Measure it)", "what": GAP.what, "fix": GAP.fix}
    run.summary(entry("01_a", status="incomplete", reason="not run", not_run=[gap]), entry("02_b"))
    run.page_of("01_a", v4.new_output("display_data", GAP._repr_mimebundle_()))
    return run


def test_an_incomplete_page_says_so(incomplete):
    assert f"{GAP.what} (cell 1)" in incomplete.shown("01_a").cells[0].source


def test_an_incomplete_page_is_not_in_the_gallery(incomplete):
    incomplete.make()

    text = gallery_of(incomplete)
    assert "01_a" not in text
    assert "02_b" in text


def copy_of(page, folder, **changes):
    """A copy of a stored page as another machine's, with another entry of its summary."""
    return dataclasses.replace(
        page,
        folder=page.folder.with_name(folder),
        entry=dataclasses.replace(page.entry, **changes),
    )


@pytest.fixture
def stored_page(run):
    run.shown("01_a")
    (executed_set,) = show.read_sets(run.executed)
    return executed_set.pages["01_a"]


GAPS = ({"where": "cell 1", "what": "it", "fix": "make it"},)


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        pytest.param({}, {}, "some_cpu", id="of-equals-the-first"),
        pytest.param({"not_run": GAPS}, {"withheld": 5}, "other", id="one-that-ran-whole"),
        pytest.param(
            {"headline_is_withheld": True}, {"withheld": 5}, "other", id="with-a-headline"
        ),
        pytest.param({"withheld": 2}, {"withheld": 1}, "other", id="fewest-withheld"),
        pytest.param({"not_run": GAPS}, {"headline_is_withheld": True}, None, id="neither"),
    ],
)
def test_readers_are_led_to_the_best_copy(stored_page, monkeypatch, first, second, best):
    monkeypatch.setattr(show, "is_current", lambda page: True)
    copies = [copy_of(stored_page, "some_cpu", **first), copy_of(stored_page, "other", **second)]
    chosen = show.choose_copy(copies)
    assert (chosen and chosen.folder.name) == best


def test_a_copy_of_today_s_code_comes_before_an_older_one(stored_page, monkeypatch):
    copies = [copy_of(stored_page, "old"), copy_of(stored_page, "new", withheld=3)]
    monkeypatch.setattr(show, "is_current", lambda page: page.folder.name == "new")
    assert show.choose_copy(copies).folder.name == "new"


@pytest.mark.parametrize(
    ("current", "led_to", "faults"),
    [
        pytest.param({"best", "other"}, "best", 0, id="the-best"),
        pytest.param({"best", "other"}, "other", 1, id="another"),
        pytest.param({"best", "other"}, None, 1, id="none"),
        pytest.param({"best"}, "other", 0, id="one-whose-page-has-changed"),
        pytest.param(set(), "other", 0, id="one-of-two-whose-page-has-changed"),
    ],
)
def test_a_link_is_wrong_where_a_copy_of_today_s_code_is_not_the_best(
    stored_page, monkeypatch, current, led_to, faults
):
    copies = [copy_of(stored_page, "best"), copy_of(stored_page, "other", withheld=3)]
    monkeypatch.setattr(show, "is_current", lambda page: page.folder.name in current)
    linked = {} if led_to is None else {"01_a": led_to}

    assert len(list(misled(linked, {"01_a": copies}))) == faults


@pytest.fixture
def withheld_later(run):
    """A run whose page was shown, and whose headline was withheld the next time."""
    run.shown("01_a")
    show.update(run.executed, run.gallery)
    summary = run.executed / "some_cpu" / "summary.json"
    told = json.loads(summary.read_text())

    for each in told["notebooks"]:
        each["headline_is_withheld"] = True
    summary.write_text(json.dumps(told))
    show.update(run.executed, run.gallery)
    return run


def test_a_page_whose_headline_is_withheld_loses_its_link(withheld_later):
    assert "data/executed" not in show.README.read_text()
    assert "01_a" not in withheld_later.gallery.read_text()


def test_a_page_whose_headline_is_withheld_can_still_be_opened(withheld_later):
    row, *_ = show.README.read_text().splitlines()
    assert row.startswith("| [01](notebooks/01_a.ipynb) | [A](notebooks/01_a.ipynb) | 5 |")


@pytest.fixture
def failed(run):
    """The folder of a run of which one page has failed."""
    run.summary(entry("01_a"), entry("02_b", status="failed", reason="Boom"))
    return str(run.folder)


def test_the_command_names_what_it_refused_and_shows_the_rest(run, failed, capsys):
    assert show.main([failed]) == 1

    assert "make run ONLY=02" in capsys.readouterr().err
    assert "some_cpu/01_a.ipynb" in run.gallery.read_text()


def test_the_command_leads_from_readme_to_a_stored_page(failed):
    show.main([failed])

    row, _, task, _, begin = show.README.read_text().splitlines()
    assert "[A](data/executed/some_cpu/01_a.ipynb) | 5 | how" in row
    assert task == "| a task | [A](notebooks/01_a.ipynb) |"
    assert begin == "[Begin here](data/executed/some_cpu/01_a.ipynb)"


def test_readme_stays_as_it_is_when_nothing_has_changed(failed):
    show.main([failed])
    before = show.README.read_text()

    assert show.main([]) == 0

    assert show.README.read_text() == before


# --- outputs as a viewer shows them ---


def test_html_keeps_its_words_and_what_was_coloured_is_bold():
    html = (
        "<style>#T_1_row0_col1, #T_1_row1_col0 { color: red }</style><table id='T_1' class='t'><tr>"
        "<td id='T_1_row0_col0' style='x'>1</td><td id='T_1_row0_col1' colspan='2' onclick='go()'>2</td></tr></table>"
        "<script>go()</script><svg><p>kept</p></svg>"
    )
    pictures, made = plain.make_html_plain(html)
    assert pictures == []
    assert made == '<table><tr><td>1</td><td colspan="2"><b>2</b></td></tr></table><p>kept</p>'


def encode(picture: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


RARE = (250, 40, 40)


@pytest.fixture(scope="module")
def noisy() -> bytes:
    """A picture with many dark colours in its upper half, one bright point among them, and nothing below."""
    dark = random.Random(1)
    picture = Image.new("RGBA", (300, 200), (0, 0, 0, 0))
    for pixel in itertools.product(range(300), range(100)):
        picture.putpixel(pixel, (*dark.choices(range(120), k=3), 255))
    picture.putpixel((1, 1), (*RARE, 255))
    return encode(picture, "PNG")


def test_a_picture_has_few_colours(noisy):
    made = decode(plain.make_small_png(noisy))

    assert made.mode == "P"
    assert made.size == (300, 200)
    assert len(made.getcolors()) <= plain.COLOURS


def test_a_picture_keeps_a_rare_colour_and_stands_on_white(noisy):
    made = decode(plain.make_small_png(noisy)).convert("RGB")

    assert made.getpixel((100, 150)) == (255, 255, 255)
    differences = [abs(one - two) for one, two in zip(made.getpixel((1, 1)), RARE, strict=True)]
    assert max(differences) < 16


def test_a_picture_is_made_as_wide_as_it_is_asked_for(noisy):
    assert decode(plain.make_small_png(noisy, width=150)).size == (150, 100)


@pytest.fixture(scope="module")
def film() -> Image.Image:
    """What a film of 30 pictures and three seconds becomes."""
    first, *rest = (Image.new("RGB", (800, 10), (number * 8, 0, 0)) for number in range(30))
    options = {"save_all": True, "append_images": rest, "duration": 100, "lossless": True}
    return decode(plain.make_small_png(encode(first, "WEBP", **options)))


def duration_of(film: Image.Image, number: int) -> float:
    film.seek(number)
    return film.info["duration"]


def test_a_film_becomes_a_small_png_of_few_pictures(film):
    assert film.format == "PNG"
    assert film.n_frames == plain.MOST_FRAMES
    assert film.width == plain.FILM_WIDTH


def test_a_film_takes_as_long_as_before(film):
    assert sum(duration_of(film, number) for number in range(film.n_frames)) == 3000
