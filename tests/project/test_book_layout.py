"""How the book's pages are laid out for Sphinx, which only `make book` installs; tests/browser read what it makes."""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import json
import posixpath
import re
import shutil
import sys
import types
from pathlib import Path

import nbformat
import pytest
import test_documents
from nbformat import v4

from metallab import paths, timing
from metallab.results import report


def _build():
    spec = importlib.util.spec_from_file_location("book_build", paths.ROOT / "book/build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks its annotations up
    spec.loader.exec_module(module)
    return module


book = _build()

TEXT = (
    "# Time it: how?\n\n## A part: two\n\n"
    "[home](../README.md), [next](02_b.ipynb#A-part:-two), [guide](../docs/guide.md#a) [w](https://x.org/a.md)"
)


def entry(name: str, status: str = "passed", reason: str = "") -> dict:
    return {"name": name, "title": name, "status": status, "reason": reason}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of two lessons, a guide, and nothing executed yet."""
    root = tmp_path / "checkout"
    for name, path in {"ROOT": ".", "NOTEBOOKS": "notebooks"}.items():
        monkeypatch.setattr(paths, name, root / path)
    monkeypatch.setattr(book, "EXECUTED", root / "data/executed")
    monkeypatch.setattr(book.published, "find_addresses", lambda: None)
    for name in ("notebooks", "docs", "data/executed"):
        (root / name).mkdir(parents=True)
    for name in ("01_a", "02_b"):
        nbformat.write(
            v4.new_notebook(cells=[v4.new_markdown_cell(TEXT)]),
            root / "notebooks" / f"{name}.ipynb",
        )
    (root / "README.md").write_text(
        "# Lab\n\n[a](notebooks/01_a.ipynb) [b](data/executed/a_gpu/01_a.ipynb) "
        '<a href="data/executed/cpu/01_a.ipynb">c</a>\n'
    )
    (root / "docs/guide.md").write_text(
        "# Guide\n\n## A\n\n[a](../notebooks/01_a.ipynb#A-part:-two) [lab](../README.md)\n"
    )
    return root


def run_in(folder, *names, entries=(), **summary):
    """A run's folder with these notebooks, each with an output."""
    folder.mkdir(parents=True)
    for name in names:
        incomplete = {"application/vnd.metallab.incomplete+json": {}, "text/plain": "NOT RUN"}
        cell = v4.new_code_cell("1", outputs=[v4.new_output("display_data", data=incomplete)])
        nbformat.write(
            v4.new_notebook(cells=[v4.new_markdown_cell(TEXT), cell]), folder / f"{name}.ipynb"
        )
    known = {"mode": "full", "device": "cpu", "label": "Some CPU", "simulated": False}
    given = {"notebooks": [*map(entry, names), *entries]}
    (folder / "summary.json").write_text(json.dumps(known | summary | given))
    return folder


@pytest.fixture
def laid_out(checkout, tmp_path):
    """The book's pages of two stored machines; the second lacks a page."""
    lacks = [entry("02_b", "skipped", "no framework\n there")]
    run_in(checkout / "data/executed/a_gpu", "01_a", entries=lacks, label="Some GPU", device="cuda")
    run_in(checkout / "data/executed/cpu", "01_a", "02_b")
    (checkout / "data/executed/README.md").write_text("# Executed\n\n[a](a_gpu/01_a.ipynb)\n")
    book.lay_out(book.read_runs(book.stored()), tmp_path / "laid_out")
    return tmp_path / "laid_out"


def text_of(path) -> str:
    return "\n".join(cell.source for cell in nbformat.read(path, 4).cells)


def test_each_machines_pages_lead_to_the_others(laid_out):
    pages = sorted(path.relative_to(laid_out).as_posix() for path in laid_out.rglob("*.ipynb"))
    folders = ("notebooks", "notebooks/a_gpu")
    assert pages == sorted(
        f"{folder}/{name}.ipynb" for folder in folders for name in ("01_a", "02_b")
    )
    here, there = (text_of(laid_out / folder / "01_a.ipynb") for folder in folders)
    assert (
        '<a href="01_a.html" aria-current="page">Some CPU</a>\n<a href="a_gpu/01_a.html">Some GPU</a>'
        in here
    )
    assert (
        '<a href="../01_a.html">Some CPU</a>\n<a href="01_a.html" aria-current="page">Some GPU</a>'
        in there
    )


def test_a_page_tells_in_a_line_what_it_ran_on_and_how_to_run_a_copy(laid_out):
    for folder, label in (("notebooks", "Some CPU"), ("notebooks/a_gpu", "Some GPU")):
        page = text_of(laid_out / folder / "01_a.ipynb")
        assert f"<summary>Executed on {label}" in page
        assert "make lab LAB=workshop/01_a.ipynb" in page


def test_a_page_that_a_machine_lacks_says_so_and_leads_to_one_that_ran_it(laid_out):
    lacking = text_of(laid_out / "notebooks/a_gpu/02_b.ipynb")
    assert "Not executed on Some GPU</strong>: no framework there." in lacking
    assert '<a href="../02_b.html">Some CPU</a>' in lacking
    machine = (laid_out / "notebooks/a_gpu/index.md").read_text()
    assert "| 02 | [Time it: how?](02_b.ipynb) | not executed |" in machine


def test_a_page_that_one_machine_ran_has_no_switch(laid_out):
    assert "<nav" not in text_of(laid_out / "notebooks/02_b.ipynb")


def test_the_first_page_says_where_to_begin_and_at_its_end_what_ran(laid_out):
    front = (laid_out / "index.md").read_text()
    _, _, rest = front.partition("\n\n")
    assert rest.startswith('<p class="begin">Begin: <a href="notebooks/01_a.html">01 Time it</a>')
    _, where = front.split("## Where these pages ran")
    assert "2 of 2 pages were executed on <strong>Some CPU</strong>" in where
    assert "02: no framework there." in where


def test_what_a_stored_page_says_of_its_run_is_folded_and_said_once(checkout, tmp_path):
    ran = run_in(checkout / "data/executed/cpu", "01_a")
    put(
        ran / "01_a.ipynb",
        "# A page\n\n> **Executed** on it.\n>\n> Trust [it](../../../docs/guide.md).\n\nYou see.",
    )
    book.lay_out(book.read_runs([ran]), tmp_path / "laid_out")
    page = text_of(tmp_path / "laid_out/notebooks/01_a.ipynb")
    folded = page.partition("<details")[2].partition("</details>")[0]
    assert "> Trust [it](../docs/guide.md)." in folded
    assert page.count("**Executed**") == 1
    assert page.partition("</details>")[2].strip() == "You see."


def test_links_lead_where_they_led(laid_out):
    for folder, up in (("notebooks", ".."), ("notebooks/a_gpu", "../..")):
        page = text_of(laid_out / folder / "01_a.ipynb")
        assert (
            f"[home]({up}/index.md), [next](02_b.ipynb#a-part-two), [guide]({up}/docs/guide.md#a)"
            in page
        )
        assert "[w](https://x.org/a.md)" in page
    front = (laid_out / "index.md").read_text()
    assert (
        '[a](notebooks/01_a.ipynb) [b](notebooks/a_gpu/01_a.ipynb) <a href="notebooks/01_a.html">c</a>'
        in front
    )
    assert (
        "[a](../notebooks/01_a.ipynb#a-part-two) [lab](../index.md)"
        in (laid_out / "docs/guide.md").read_text()
    )
    assert (
        "[a](../../notebooks/a_gpu/01_a.ipynb)"
        in (laid_out / "data/executed/README.md").read_text()
    )
    assert "data/executed/README\n" in front


def test_links_from_deeper_folders_work():
    moved = {"README.md": "index.md"}
    assert (
        book.relink("[x](../../../README.md)", "notebooks", "notebooks", moved)
        == "[x](../index.md)"
    )
    assert (
        book.relink("![x](../../../data/a.png)", "notebooks", "notebooks", {})
        == "![x](../data/a.png)"
    )
    assert (
        book.relink("[x](../../../docs/a.md#B)", "notebooks", "notebooks/a_gpu", moved)
        == "[x](../../docs/a.md#b)"
    )
    assert (
        book.relink("[x](#A-part:-two) [y](mailto:a@b)", "docs", "docs", {})
        == "[x](#a-part-two) [y](mailto:a@b)"
    )


def put(path: Path, *texts: str) -> None:
    """Write a guide, or a notebook with these texts."""
    if path.suffix == ".md":
        path.write_text("\n\n".join(texts))
    else:
        nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell(text) for text in texts]), path)


@pytest.fixture
def older(checkout):
    """The pages of a machine, with one heading each, and guides without any: links to other headings lead nowhere."""
    ran = run_in(checkout / "data/executed/cpu", "01_a", "02_b")
    for name in ("01_a", "02_b"):
        put(ran / f"{name}.ipynb", "# A page", "## `Part`: 2")
    for name in ("guide", "other"):
        put(checkout / "docs" / f"{name}.md", "# A guide")
    return ran


@pytest.mark.parametrize(
    ("place", "link", "led"),
    [
        pytest.param(
            "notebooks/02_b.ipynb",
            "[x](01_a.ipynb#Gone)",
            "[x](01_a.ipynb)",
            id="from page to page",
        ),
        pytest.param(
            "notebooks/02_b.ipynb",
            "[x](../docs/other.md#gone)",
            "[x](../docs/other.md)",
            id="page to guide",
        ),
        pytest.param(
            "docs/guide.md",
            "[x](../notebooks/01_a.ipynb#Gone)",
            "[x](../notebooks/01_a.ipynb)",
            id="guide",
        ),
        pytest.param(
            "docs/guide.md",
            '<a href="../notebooks/01_a.ipynb#G">',
            '<a href="../notebooks/01_a.html">',
            id="HTML",
        ),
    ],
)
def test_a_heading_that_an_older_page_lacks_is_left_out_of_a_link(
    checkout, older, tmp_path, place, link, led
):
    put(older / "02_b.ipynb" if "02_b" in place else checkout / place, "# A page", link)
    notices = book.lay_out(book.read_runs([older]), tmp_path / "laid_out")
    assert led in test_documents.prose(tmp_path / "laid_out" / place)
    assert len(notices) == 1
    assert place in notices[0]


@pytest.mark.parametrize(
    ("place", "link", "led"),
    [
        pytest.param(
            "notebooks/02_b.ipynb",
            "[x](01_a.ipynb#Part:-2)",
            "[x](01_a.ipynb#part-2)",
            id="it is there",
        ),
        pytest.param("notebooks/02_b.ipynb", "[x](#Gone)", "[x](#gone)", id="of the page itself"),
        pytest.param(
            "docs/guide.md", "[x](other.md#gone)", "[x](other.md#gone)", id="between texts of today"
        ),
    ],
)
def test_other_links_keep_their_heading(checkout, older, tmp_path, place, link, led):
    put(older / "02_b.ipynb" if "02_b" in place else checkout / place, "# A page", link)
    notices = book.lay_out(book.read_runs([older]), tmp_path / "laid_out")
    assert led in test_documents.prose(tmp_path / "laid_out" / place)
    assert notices == []


def test_a_heading_is_looked_for_on_the_same_machine(checkout, older, tmp_path):
    other = run_in(checkout / "data/executed/a_gpu", "01_a", "02_b")
    for folder in (older, other):
        put(folder / "02_b.ipynb", "# B", "[x](01_a.ipynb#Part:-2)")
    first, second = book.read_runs([older, other])
    book.lay_out([first, second], tmp_path / "laid_out")
    texts = {
        run.folder.name: text_of(tmp_path / "laid_out" / run.position / "02_b.ipynb")
        for run in (first, second)
    }
    assert "](01_a.ipynb#part-2)" in texts["cpu"]
    assert "](01_a.ipynb)" in texts["a_gpu"]


def headings_of(page: Path) -> set[str]:
    """The names of a page's headings in the book, in notebooks too."""
    return {re.sub(r"[^\w-]", "", name.lower()) for name in test_documents.anchors(page)}


def test_links_of_the_book_lead_to_headings(tmp_path):
    """What Sphinx says of the pages that come with the project, without Sphinx."""
    laid_out = tmp_path / "laid_out"
    book.lay_out(book.read_runs(book.stored()), laid_out)
    pages = [
        laid_out / "index.md",
        *laid_out.glob("docs/*.md"),
        *laid_out.rglob("notebooks/**/*.ipynb"),
    ]
    dead, sought = [], 0
    for page in pages:
        for target in test_documents.targets(page):
            file, _, heading = target.partition("#")
            if not heading or re.match("[a-z]+:", target):
                continue
            sought += 1
            there = Path(posixpath.normpath(page.parent / file)) if file else page
            if heading not in headings_of(there):
                dead.append(f"{page.relative_to(laid_out)}: {target}")
    assert sought > 100
    assert not dead


def test_search_finds_each_page_once(laid_out):
    for folder, unsearched in (("notebooks", False), ("notebooks/a_gpu", True)):
        notebook = nbformat.read(laid_out / folder / "01_a.ipynb", 4)
        assert list(notebook.cells[1].outputs[0].data) == ["text/plain"]
        assert notebook.metadata.get("nosearch", False) is unsearched


def test_a_run_of_ones_own_has_no_switch(checkout, tmp_path):
    mine = run_in(tmp_path / "full-cpu", "01_a", mode="fast")
    run_in(checkout / "data/executed/a_gpu", "01_a")
    book.lay_out(book.read_runs([mine]), tmp_path / "laid_out")
    page = text_of(tmp_path / "laid_out/notebooks/01_a.ipynb")
    assert "<nav" not in page
    assert timing.FAST_MODE.detail in page
    assert "<summary>Executed on Some CPU</summary>" in page
    front = (tmp_path / "laid_out/index.md").read_text()
    assert "02: the run left this notebook out." in front
    assert "[b](notebooks/01_a.ipynb)" in front, (
        "a stored page is no part of it: the link leads to this run's own"
    )


def test_the_public_address_is_told_where_it_is_known(checkout, tmp_path, monkeypatch):
    mine = run_in(tmp_path / "full-cpu", "01_a")
    (run,) = book.read_runs([mine])
    lesson = run.chapters[0]
    assert "git clone" not in book.box(None, run, [run])
    monkeypatch.setattr(
        book.published,
        "find_addresses",
        lambda: book.published.Addresses("https://host.example/some/lab"),
    )
    assert "git clone https://host.example/some/lab metal-lab" in book.box(None, run, [run])
    assert 'some/lab/blob/main/notebooks/01_a.ipynb">the notebook' in book.box(lesson, run, [run])


def test_faults_leave_the_old_book_and_are_told_to_readers_and_maintainers(
    checkout, tmp_path, monkeypatch, capsys
):
    old = tmp_path / "book/index.html"
    old.parent.mkdir()
    for path in (old, old.parent / ".buildinfo"):
        path.write_text("old")
    sphinx = types.SimpleNamespace(build_main=lambda options: 1)  # as after a warning
    monkeypatch.setitem(sys.modules, "sphinx.cmd.build", sphinx)
    mine = run_in(tmp_path / "full-cpu", "01_a")
    assert book.main([str(mine), "--into", str(old.parent)]) == 1
    told = capsys.readouterr().err
    assert "docs/gallery.md" in told, "where a reader finds the pages"
    assert "make show" in told, "what a maintainer can do"
    assert old.read_text() == "old"


def test_nothing_to_make_a_book_of_is_told_with_what_to_do(checkout, tmp_path):
    with pytest.raises(report.ReportError, match="make book RUN=build/full-cpu"):
        book.stored()
    one, other = (run_in(tmp_path / folder / "full-cpu", "01_a") for folder in ("one", "other"))
    with pytest.raises(
        book.BookError, match="2 runs lie in folders that are called full-cpu: rename one"
    ):
        book.read_runs([one, other])
    shutil.rmtree(one)
    with pytest.raises(report.ReportError, match="make run"):
        book.read_runs([one])


def _is_in_the_book():
    """Return a function that tells of a place in the checkout whether Sphinx reads it, by book/conf.py."""
    tree = ast.parse((paths.ROOT / "book/conf.py").read_text(encoding="utf-8"))
    (patterns,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "include_patterns"
    )
    # README becomes the index
    return lambda place: any(fnmatch.fnmatch(place, each) for each in ["README.md", *patterns])


def test_a_text_of_the_book_leads_to_no_text_outside_of_it():
    """Sphinx calls such a link an unknown document, but only where the book's packages are installed."""
    included, outside = _is_in_the_book(), {}
    for document in test_documents.DOCUMENTS:
        if not included(str(document.relative_to(paths.ROOT))):
            continue
        for target in test_documents.targets(document):
            place = (document.parent / target.partition("#")[0]).resolve()
            if place.suffix == ".md" and place.is_relative_to(paths.ROOT):
                named = str(place.relative_to(paths.ROOT))
                if not included(named):
                    outside.setdefault(str(document.relative_to(paths.ROOT)), []).append(named)
    assert not outside, (
        "add them to include_patterns in book/conf.py and to the contents in book/build.py"
    )
