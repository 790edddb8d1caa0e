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
    if page.record.machine.git_revision[:7] not in executed.cells[0].source:
        yield "it does not name its revision"
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    if any(output.output_type == "error" for output in outputs):
        yield "it did not come to its end"
    if traces := redact.find_private("\n".join(pages.find_texts(outputs))):
        yield f"it names {traces}"
    if {kind for output in outputs for kind in output.get("data", ())} - {*plain.KEPT}:
        yield "an output is not for every viewer"
    if any(gap["what"] not in executed.cells[0].source for gap in page.entry.not_run):
        yield "it does not name a cell that did not run"
    drawn = page.picture and hashlib.sha256(page.picture.read_bytes()).hexdigest()
    if drawn != page.record.headline.sha256 or not (drawn or page.entry.not_run):
        yield "its picture is missing or another one"


def test_stored_pages_are_whole_and_name_no_machine():
    stored, faults = show.read_sets(), []
    for each in stored:
        files = [path for path in each.folder.rglob("*") if path.is_file()]
        texts = [
            path
            for path in files
            if path.suffix == ".json" and redact.find_private(path.read_text(encoding="utf-8"))
        ]
        faults += [f"{path}: it names a machine" for path in texts]
        if sum(path.stat().st_size for path in files) > MOST_BYTES:
            faults.append(f"{each.folder}: it is too large")
        for page in each.pages.values():
            faults += [f"{page.path}: {fault}" for fault in faults_of(page)]
    assert not faults, "\n".join(["make run DEVICE=cpu && make show RUN=build/full-cpu", *faults])


def test_readme_lists_each_page_and_links_one_that_ran_whole():
    learned = show.read_lessons()
    assert [*learned] == [path.name for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]
    linked = re.findall(
        r"^\|.*\(data/executed/(\w+)/(\w+)\.ipynb\)",
        show.README.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    pages = {each.folder.name: each.pages for each in show.read_sets()}
    assert [name for folder, name in linked if not show.is_linked(pages[folder][name])] == []
    expected = []
    for file in learned:
        name = file.removesuffix(".ipynb")
        best = show.choose_copy([its[name] for its in pages.values() if name in its])
        expected += [(best.folder.name, name)] if best else []
    assert linked == expected, "make show"


@pytest.mark.parametrize("folder", STORED, ids=[folder.name for folder in STORED])
def test_links_between_stored_pages_lead_to_a_page_and_a_heading(folder):
    pages = sorted(folder.glob("*.ipynb"))
    anchors = {page.name: test_documents.anchors(page) for page in pages}
    dead = []
    for page in pages:
        for link in test_documents.targets(page):
            name, _, heading = link.partition("#")
            name = name or page.name
            if "/" in name or not name.endswith(".ipynb"):
                continue
            if name not in anchors or (heading and heading not in anchors[name]):
                dead.append(f"{page.name}: {link}")
    assert not dead, "\n".join(["make show", *dead])


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
    headline = records.Headline(
        ("GPU | CPU: equal losses.",), f"{name}.png", "bars; [a] and b", digest
    )
    one = record("eager", outcome="", **changes)
    described = dataclasses.replace(
        one.machine, git_revision=revision, git_dirty=False, environment=dict(env)
    )
    return [
        dataclasses.replace(
            one, lesson=name, name=f"{name}/eager", machine=described, headline=headline
        )
    ]


class Finished(Run):
    """A run in full mode of two pages, and the checkout that it is of."""

    def __init__(self, root, patch):
        super().__init__(root)
        self.notebooks, self.executed, self.gallery = (
            root / "notebooks",
            root / "data/executed",
            root / "gallery.md",
        )
        self.notebooks.mkdir()
        patch.setattr(paths, "NOTEBOOKS", self.notebooks)
        patch.setattr(show, "EXECUTED", self.executed)
        patch.setattr(show, "GALLERY", self.gallery)
        patch.setattr(show, "README", root / "README.md")
        show.README.write_text(
            "| [01](notebooks/01_a.ipynb) | [A](notebooks/01_a.ipynb) | 5 | how long a call takes |\n\n"
            "| a task | [A](notebooks/01_a.ipynb) |\n\n"
            "[Begin here](data/executed/another/01_a.ipynb)\n"
        )
        self.summary(entry("01_a"), entry("02_b"))
        for name in ("01_a", "02_b"):
            self.page_of(name, shown(png()))
            self.results(name)
            metadata = {
                "metallab": {"needs": ["torch", "jax-metal"] if name == "01_a" else ["torch"]}
            }
            nbformat.write(
                v4.new_notebook(cells=cells(), metadata=metadata), self.notebooks / f"{name}.ipynb"
            )

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


def test_a_set_reads_like_the_folder_of_a_run(run):
    folder, refused = run.make()
    assert (folder.name, refused) == ("some_cpu", {})
    summary = report.read_summary(folder)
    assert [(each.name, each.status) for each in summary.notebooks] == [
        ("01_a", "passed"),
        ("02_b", "passed"),
    ]
    (kept,) = records.load(folder / "results" / "01_a.json")
    assert kept.headline.sentences == ("GPU | CPU: equal losses.",)
    picture = (folder / "results" / kept.headline.picture).read_bytes()
    assert hashlib.sha256(picture).hexdigest() == kept.headline.sha256
    top, cell = nbformat.read(folder / "01_a.ipynb", 4).cells
    title, _, caption, _, rest = top.source.split("\n", 4)
    assert title == "# Measure it"
    assert caption.startswith("> ")
    assert all(word in caption for word in ("Some CPU", "20 November 2026", "aaaaaaa"))
    assert "(../../../docs/teaching.md) and [the next](02_b.ipynb)" in rest
    assert cell.source == "measure()"


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


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (
            lambda run: run.summary(entry("01_a", status="failed", reason="Boom"), entry("02_b")),
            "Boom; make run",
        ),
        (
            lambda run: run.page_of(
                "01_a", v4.new_output("stream", text="in /mnt/disk/somebody/data.txt")
            ),
            "'/mnt/disk",
        ),
        (lambda run: run.page_of("01_a", v4.new_output("display_data", {"x/y": "?"})), "cell 1"),
        (lambda run: run.results("01_a", mode="fast"), "fast"),
        (lambda run: run.results("01_a", env={"XLA_FLAGS": "/mnt/disk/a"}), "'/mnt/disk"),
        (lambda run: run.page_of("01_a", shown(png(500, 500)[:50])), "picture"),
        (lambda run: (run.folder / "results" / "01_a.png").write_bytes(png(4, 4)), "01_a.png"),
        (lambda run: (run.folder / "01_a.ipynb").write_text("{"), "01_a.ipynb"),
        (
            lambda run: records.write(run.folder / "results" / "01_a.json", measured("02_b")),
            "another page's",
        ),
        (lambda run: run.results("01_a", env={"METALLAB_DEVICE": "cuda"}), "another device"),
        (
            lambda run: shutil.copy(run.folder / "02_b.ipynb", run.folder / "01_a.ipynb"),
            "notebook is another page's",
        ),
        (
            lambda run: (
                (run.folder / "01_a.ipynb").unlink() or os.mkfifo(run.folder / "01_a.ipynb")
            ),
            "regular",
        ),
    ],
)
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
    assert (kept["01_a"].status, kept["01_a"].reason) == ("skipped", "needs Core AI")


def test_what_was_swapped_in_a_set_is_refused(run, capsys):
    change = lambda path, old, new: path.write_text(path.read_text().replace(old, new))
    for damage in (
        lambda folder: shutil.copy(folder / "02_b.ipynb", folder / "01_a.ipynb"),
        lambda folder: shutil.copy(folder / "results/02_b.json", folder / "results/01_a.json"),
        lambda folder: (folder / "results/01_a.png").write_bytes(png(9, 9)),
        lambda folder: change(folder / "01_a.ipynb", "Some CPU", "Another GPU"),
        lambda folder: change(folder / "01_a.ipynb", "aaaaaaa", "bbbbbbb"),
    ):
        damage(run.make()[0])
        assert (show.main([]), "01_a" in capsys.readouterr().err, run.gallery.exists()) == (
            2,
            True,
            False,
        )


def test_a_page_replaces_itself_and_other_pages_stay(run):
    folder, _ = run.make()
    before = {path.name: path.read_bytes() for path in folder.rglob("01_a.*")}
    run.page_of("02_b", shown(png(5, 5)))
    (run.folder / "results" / "01_a.png").write_bytes(png(4, 4))  # of another run: refused
    for first in ([], [entry("01_a")], [entry("01_a", status="failed", reason="Boom")]):
        run.summary(*first, entry("02_b"))
        assert [*run.make()[1]] == ["01_a"] * len(first)
        assert {path.name: path.read_bytes() for path in folder.rglob("01_a.*")} == before
    picture = base64.b64decode(
        nbformat.read(folder / "02_b.ipynb", 4).cells[1].outputs[0].data["image/png"]
    )
    assert Image.open(io.BytesIO(picture)).size == (5, 5)
    assert [*show.read_sets(run.executed)[0].pages] == ["01_a", "02_b"]


def test_a_stored_page_gets_today_s_text_and_keeps_outputs(run):
    folder, _ = run.make()
    before = nbformat.read(folder / "01_a.ipynb", 4)
    for name, program in (("01_a", "measure()"), ("02_b", "changed()")):
        new = [
            v4.new_markdown_cell("# Time it\n\nSee [it](../README.md)."),
            code(program),
            v4.new_markdown_cell("So."),
        ]
        metadata = {"metallab": {"needs": []}}
        nbformat.write(
            v4.new_notebook(cells=new, metadata=metadata), run.notebooks / f"{name}.ipynb"
        )
    other = (folder / "02_b.ipynb").read_text()
    assert show.main([]) == 0
    top, cell, last = nbformat.read(folder / "01_a.ipynb", 4).cells
    caption = before.cells[0].source.split("\n\n")[1]
    assert (top.source, last.source) == (
        f"# Time it\n\n{caption}\n\nSee [it](../../../README.md).",
        "So.",
    )
    assert cell.outputs == before.cells[1].outputs
    assert (folder / "02_b.ipynb").read_text() == other, "of other code the text stays as well"


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
    metadata = {"metallab": {"needs": []}}
    nbformat.write(
        v4.new_notebook(cells=[text, code("measure()")], metadata=metadata),
        run.notebooks / "02_b.ipynb",
    )
    run.make()
    shutil.copy(run.notebooks / "02_b.ipynb", run.notebooks / "03_c.ipynb")  # which did not run
    guide = run.notebooks.parent / "docs" / "guide.md"
    guide.parent.mkdir()
    guide.write_text("# Guide\n\n## Part: `two`")
    (guide.parent / "a.py").touch()

    def shown_with(link: str) -> str:
        page = v4.new_notebook(
            cells=[v4.new_markdown_cell(f"# A\n\n[x]({link})"), code("measure()")]
        )
        page.metadata = metadata
        nbformat.write(page, run.notebooks / "01_a.ipynb")
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
    for _ in range(2):
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


def test_the_gallery_shows_each_page_of_a_gpu_first(run):
    run.make()
    run.summary(entry("02_b"), device="cuda", label="Some GPU")
    run.make()
    first, second = show.render_gallery(show.read_sets(run.executed), "e").split("\n## ")[1:]
    assert "How long a call takes. *[Some CPU](e/some_cpu/01_a.ipynb), at revision aaaaaaa" in first
    assert "](e/some_cpu/results/01_a.png)](e/some_cpu/01_a.ipynb)" in first
    assert "](e/some_gpu/results/02_b.png)](e/some_gpu/02_b.ipynb)" in second
    assert second.index("[Some GPU](e/some_gpu/02_b.ipynb)") < second.index(
        "[Some CPU](e/some_cpu/02_b.ipynb)"
    )
    run.results("02_b", others=9.0)
    run.make()
    text = show.render_gallery(show.read_sets(run.executed), "e")
    assert "](e/some_cpu/02_b.ipynb)\n" in text, "a quiet machine comes first"


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


@pytest.mark.parametrize(
    ("words", "is_headline", "says"),
    [
        pytest.param("a curve", True, "Two lines cross at *n* = 8.", id="a-curve"),
        pytest.param("Speed-up over eager. x axis: speed-up", False, "", id="intervals"),
    ],
)
def test_the_gallery_shows_what_a_page_is_about_and_what_it_says(words, is_headline, says, run):
    run.make()
    page = show.read_sets(run.executed)[0].pages["01_a"]
    stored = nbformat.read(page.path, 4)
    stored.cells += [draw("Speed-up over eager. x axis"), caption(), draw(words), caption()]
    nbformat.write(stored, page.path)
    headline = dataclasses.replace(page.record.headline, alternative_text=words)
    found = find_with(page, headline)
    assert (found is not None) == is_headline
    assert not is_headline or (found.content, found.says) == (None, says)


def test_another_picture_takes_the_place_of_a_few_intervals(run):
    run.make()
    page = show.read_sets(run.executed)[0].pages["01_a"]
    stored = nbformat.read(page.path, 4)
    stored.cells += [draw("no caption"), draw("a curve"), caption()]
    nbformat.write(stored, page.path)
    headline = dataclasses.replace(page.record.headline, alternative_text="Speed-up over eager")
    found = find_with(page, headline)
    assert found.alternative_text == "a curve"
    assert found.content == png()


def test_an_incomplete_page_says_so_and_is_not_in_the_gallery(run):
    gap = {"where": "cell 1 (Measure it)", "what": GAP.what, "fix": GAP.fix}
    run.summary(entry("01_a", status="incomplete", reason="not run", not_run=[gap]), entry("02_b"))
    run.page_of("01_a", v4.new_output("display_data", GAP._repr_mimebundle_()))
    assert f"{GAP.what} (cell 1)" in run.shown("01_a").cells[0].source
    text = show.render_gallery(show.read_sets(run.executed))
    assert ("01_a" in text, "02_b" in text) == (False, True)


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


def test_the_command_names_what_it_refused(run, capsys):
    run.summary(entry("01_a"), entry("02_b", status="failed", reason="Boom"))
    assert show.main([str(run.folder)]) == 1
    assert "make run ONLY=02" in capsys.readouterr().err
    assert "some_cpu/01_a.ipynb" in run.gallery.read_text()
    for _ in range(2):
        row, _, task, _, begin = show.README.read_text().splitlines()
        assert "[A](data/executed/some_cpu/01_a.ipynb) | 5 | how" in row
        assert task == "| a task | [A](notebooks/01_a.ipynb) |"
        assert begin == "[Begin here](data/executed/some_cpu/01_a.ipynb)"
        assert show.main([]) == 0


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


def test_a_picture_has_few_colours_and_keeps_rare_ones():
    dark = random.Random(1)
    picture = Image.new("RGBA", (300, 200), (0, 0, 0, 0))
    for pixel in itertools.product(range(300), range(100)):
        picture.putpixel(pixel, (*dark.choices(range(120), k=3), 255))
    picture.putpixel((1, 1), (250, 40, 40, 255))
    given = io.BytesIO()
    picture.save(given, "PNG")
    made = Image.open(io.BytesIO(plain.make_small_png(given.getvalue())))
    assert (made.mode, made.size) == ("P", (300, 200))
    assert len(made.getcolors()) <= plain.COLOURS
    made = made.convert("RGB")
    assert made.getpixel((100, 150)) == (255, 255, 255)
    assert (
        max(abs(one - two) for one, two in zip(made.getpixel((1, 1)), (250, 40, 40), strict=True))
        < 16
    )
    assert Image.open(io.BytesIO(plain.make_small_png(given.getvalue(), width=150))).size == (
        150,
        100,
    )


def test_a_film_becomes_a_short_one_that_takes_as_long():
    frames = [Image.new("RGB", (800, 10), (number * 8, 0, 0)) for number in range(30)]
    given = io.BytesIO()
    frames[0].save(
        given, "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True
    )
    made = Image.open(io.BytesIO(plain.make_small_png(given.getvalue())))
    assert (made.format, made.n_frames, made.width) == ("PNG", plain.MOST_FRAMES, plain.FILM_WIDTH)
    lengths = []
    for number in range(made.n_frames):
        made.seek(number)
        lengths.append(made.info["duration"])
    assert sum(lengths) == 3000
