"""How the book's pages are laid out for Sphinx, which only `make book` installs; tests/browser read what it makes."""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import json
import posixpath
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
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
    """A checkout of two lessons, a README and a guide, whose links lead to each other; nothing is executed yet."""
    root = tmp_path / "checkout"
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setattr(paths, "NOTEBOOKS", root / "notebooks")
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
    """Make a run's folder with notebooks of these names, and return it.

    Each has a cell that was not run for want of a tool. The summary lists them as passed, then ``entries``; ``summary``
    replaces what it says of the machine.
    """
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
    book.lay_out(book.read_runs(book.find_stored()), tmp_path / "laid_out")
    return tmp_path / "laid_out"


def text_of(path) -> str:
    return "\n".join(cell.source for cell in nbformat.read(path, 4).cells)


def fold_of(page: str) -> str:
    """What a page keeps folded: how it ran."""
    return page.partition("<details")[2].partition("</details>")[0]


def test_each_machine_has_a_copy_of_every_page(laid_out):
    pages = {path.relative_to(laid_out).as_posix() for path in laid_out.rglob("*.ipynb")}

    assert pages == {
        "notebooks/01_a.ipynb",
        "notebooks/02_b.ipynb",
        "notebooks/a_gpu/01_a.ipynb",
        "notebooks/a_gpu/02_b.ipynb",
    }


@pytest.mark.parametrize(
    ("folder", "here", "other"),
    [
        pytest.param(
            "notebooks",
            '<a href="01_a.html" aria-current="page">Some CPU</a>',
            '<a href="a_gpu/01_a.html">Some GPU</a>',
            id="first machine",
        ),
        pytest.param(
            "notebooks/a_gpu",
            '<a href="01_a.html" aria-current="page">Some GPU</a>',
            '<a href="../01_a.html">Some CPU</a>',
            id="second machine",
        ),
    ],
)
def test_each_machines_pages_lead_to_the_others(laid_out, folder, here, other):
    page = text_of(laid_out / folder / "01_a.ipynb")

    switch = page.partition("<nav")[2].partition("</nav>")[0]
    assert switch.count("<a ") == 2
    assert here in switch
    assert other in switch


@pytest.mark.parametrize(
    ("folder", "label"),
    [("notebooks", "Some CPU"), ("notebooks/a_gpu", "Some GPU")],
    ids=["first machine", "second machine"],
)
def test_a_page_tells_in_a_line_what_it_ran_on_and_how_to_run_a_copy(laid_out, folder, label):
    page = text_of(laid_out / folder / "01_a.ipynb")

    assert f"<summary>Executed on {label}" in page
    assert "make lab LAB=workshop/01_a.ipynb" in page


def test_a_page_that_a_machine_lacks_says_so_and_leads_to_one_that_ran_it(laid_out):
    lacking = text_of(laid_out / "notebooks/a_gpu/02_b.ipynb")

    assert "Not executed on Some GPU</strong>: no framework there." in lacking
    assert '<a href="../02_b.html">Some CPU</a>' in lacking


def test_the_list_of_a_machines_pages_says_which_it_lacks(laid_out):
    machine = (laid_out / "notebooks/a_gpu/index.md").read_text()

    assert "| 02 | [Time it: how?](02_b.ipynb) | not executed |" in machine


def test_a_page_that_one_machine_ran_has_no_switch(laid_out):
    assert "<nav" not in text_of(laid_out / "notebooks/02_b.ipynb")


def test_the_first_page_begins_with_where_to_begin(laid_out):
    _, _, rest = (laid_out / "index.md").read_text().partition("\n\n")

    assert rest.startswith('<p class="begin">Begin: <a href="notebooks/01_a.html">01 Time it</a>')


def test_the_first_page_says_at_its_end_what_ran_where(laid_out):
    _, where = (laid_out / "index.md").read_text().split("## Where these pages ran")

    assert "2 of 2 pages were executed on <strong>Some CPU</strong>" in where
    assert "02: no framework there." in where


def test_what_a_stored_page_says_of_its_run_is_folded_and_said_once(checkout, tmp_path):
    ran = run_in(checkout / "data/executed/cpu", "01_a")
    told = "> **Executed** on it.\n>\n> Trust [it](../../../docs/guide.md)."
    put(ran / "01_a.ipynb", f"# A page\n\n{told}\n\nYou see.")

    book.lay_out(book.read_runs([ran]), tmp_path / "laid_out")

    page = text_of(tmp_path / "laid_out/notebooks/01_a.ipynb")
    assert "> Trust [it](../docs/guide.md)." in fold_of(page)
    assert page.count("**Executed**") == 1
    assert page.partition("</details>")[2].strip() == "You see."


@pytest.mark.parametrize(
    ("folder", "up"),
    [("notebooks", ".."), ("notebooks/a_gpu", "../..")],
    ids=["first machine", "second machine"],
)
def test_links_of_a_page_lead_where_they_led(laid_out, folder, up):
    page = text_of(laid_out / folder / "01_a.ipynb")

    assert f"[home]({up}/index.md), [next](02_b.ipynb#a-part-two)" in page
    assert f"[guide]({up}/docs/guide.md#a)" in page
    assert "[w](https://x.org/a.md)" in page


@pytest.mark.parametrize(
    ("document", "links"),
    [
        pytest.param(
            "index.md",
            "[a](notebooks/01_a.ipynb) [b](notebooks/a_gpu/01_a.ipynb) "
            '<a href="notebooks/01_a.html">c</a>',
            id="README",
        ),
        pytest.param(
            "docs/guide.md",
            "[a](../notebooks/01_a.ipynb#a-part-two) [lab](../index.md)",
            id="a guide",
        ),
        pytest.param(
            "data/executed/README.md",
            "[a](../../notebooks/a_gpu/01_a.ipynb)",
            id="what tells of the stored pages",
        ),
    ],
)
def test_links_of_a_document_lead_where_they_led(laid_out, document, links):
    assert links in (laid_out / document).read_text()


def test_what_tells_of_the_stored_pages_is_among_the_contents(laid_out):
    assert "data/executed/README\n" in (laid_out / "index.md").read_text()


@pytest.mark.parametrize(
    ("link", "source", "place", "led"),
    [
        pytest.param(
            "[x](../../../README.md)", "notebooks", "notebooks", "[x](../index.md)", id="moved"
        ),
        pytest.param(
            "![x](../../../data/a.png)",
            "notebooks",
            "notebooks",
            "![x](../data/a.png)",
            id="picture",
        ),
        pytest.param(
            "[x](../../../docs/a.md#B)",
            "notebooks",
            "notebooks/a_gpu",
            "[x](../../docs/a.md#b)",
            id="heading",
        ),
        pytest.param(
            "[x](#A-part:-two) [y](mailto:a@b)",
            "docs",
            "docs",
            "[x](#a-part-two) [y](mailto:a@b)",
            id="no file",
        ),
    ],
)
def test_links_from_deeper_folders_work(link, source, place, led):
    assert book.relink(link, source, place, {"README.md": "index.md"}) == led


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
    newer = run_in(checkout / "data/executed/a_gpu", "01_a", "02_b")
    for folder in (older, newer):
        put(folder / "02_b.ipynb", "# B", "[x](01_a.ipynb#Part:-2)")

    runs = book.read_runs([older, newer])
    book.lay_out(runs, tmp_path / "laid_out")

    places = {run.folder.name: tmp_path / "laid_out" / run.position for run in runs}
    assert "](01_a.ipynb#part-2)" in text_of(places["cpu"] / "02_b.ipynb")
    assert "](01_a.ipynb)" in text_of(places["a_gpu"] / "02_b.ipynb")


def headings_of(page: Path) -> set[str]:
    """The names of a page's headings in the book, in notebooks too."""
    return {re.sub(r"[^\w-]", "", name.lower()) for name in test_documents.anchors(page)}


def headings_sought(pages: Iterable[Path]) -> Iterator[tuple[Path, str, Path, str]]:
    """Yield links to headings: the page, the link, and the page and heading that it leads to."""
    for page in pages:
        for target in test_documents.targets(page):
            file, _, heading = target.partition("#")
            if heading and not re.match("[a-z]+:", target):
                there = Path(posixpath.normpath(page.parent / file)) if file else page
                yield page, target, there, heading


def test_links_of_the_book_lead_to_headings(tmp_path):
    """Of the stored pages and of the guides; Sphinx would say so too, where the book's packages are installed."""
    laid_out = tmp_path / "laid_out"
    book.lay_out(book.read_runs(book.find_stored()), laid_out)
    guides, notebooks = laid_out.glob("docs/*.md"), laid_out.rglob("notebooks/**/*.ipynb")

    sought = list(headings_sought([laid_out / "index.md", *guides, *notebooks]))

    assert len(sought) > 100  # or they were not found
    assert [
        f"{page.relative_to(laid_out)}: {target}"
        for page, target, there, heading in sought
        if heading not in headings_of(there)
    ] == []


@pytest.mark.parametrize(
    ("folder", "is_unsearched"),
    [("notebooks", False), ("notebooks/a_gpu", True)],
    ids=["first machine", "second machine"],
)
def test_search_finds_each_page_once(laid_out, folder, is_unsearched):
    notebook = nbformat.read(laid_out / folder / "01_a.ipynb", 4)

    assert notebook.metadata.get("nosearch", False) is is_unsearched


@pytest.mark.parametrize("folder", ["notebooks", "notebooks/a_gpu"])
def test_of_a_cell_that_could_not_run_the_book_keeps_the_text(laid_out, folder):
    notebook = nbformat.read(laid_out / folder / "01_a.ipynb", 4)

    assert list(notebook.cells[1].outputs[0].data) == ["text/plain"]


@pytest.fixture
def of_my_run(checkout, tmp_path):
    """The book's pages of a run of one's own in fast mode, beside a stored run."""
    mine = run_in(tmp_path / "full-cpu", "01_a", mode="fast")
    run_in(checkout / "data/executed/a_gpu", "01_a")
    book.lay_out(book.read_runs([mine]), tmp_path / "laid_out")
    return tmp_path / "laid_out"


def test_a_page_of_a_run_of_ones_own_has_no_switch(of_my_run):
    page = text_of(of_my_run / "notebooks/01_a.ipynb")

    assert "<nav" not in page
    assert "<summary>Executed on Some CPU</summary>" in page


def test_a_page_that_ran_in_fast_mode_says_so(of_my_run):
    assert timing.FAST_MODE.detail in text_of(of_my_run / "notebooks/01_a.ipynb")


def test_a_page_that_a_run_of_ones_own_left_out_is_told(of_my_run):
    assert "02: the run left this notebook out." in (of_my_run / "index.md").read_text()


def test_a_link_to_a_stored_page_leads_to_a_run_of_ones_own(of_my_run):
    """A stored page is no part of the book then."""
    assert "[b](notebooks/01_a.ipynb)" in (of_my_run / "index.md").read_text()


def test_the_public_address_is_told_where_it_is_known(checkout, tmp_path, monkeypatch):
    (run,) = book.read_runs([run_in(tmp_path / "full-cpu", "01_a")])
    address = book.published.Addresses("https://host.example/some/lab")
    monkeypatch.setattr(book.published, "find_addresses", lambda: address)

    assert "git clone https://host.example/some/lab metal-lab" in book.render_box(None, run, [run])
    lesson = book.render_box(run.chapters[0], run, [run])
    assert 'some/lab/blob/main/notebooks/01_a.ipynb">the notebook' in lesson


def test_without_a_public_address_nobody_is_told_to_clone(checkout, tmp_path):
    (run,) = book.read_runs([run_in(tmp_path / "full-cpu", "01_a")])

    assert "git clone" not in book.render_box(None, run, [run])


def test_faults_leave_the_old_book_and_are_told_to_readers_and_maintainers(
    checkout, tmp_path, monkeypatch, capsys
):
    """A book that Sphinx does not finish leaves the old one in its place, and the error says what to do without it."""
    old = tmp_path / "book/index.html"
    old.parent.mkdir()
    # without the second the folder is no book, and is not replaced
    for path in (
        old,
        old.parent / ".buildinfo",
    ):
        path.write_text("old")
    sphinx = types.SimpleNamespace(build_main=lambda options: 1)  # as after a warning
    monkeypatch.setitem(sys.modules, "sphinx.cmd.build", sphinx)
    mine = run_in(tmp_path / "full-cpu", "01_a")

    assert book.main([str(mine), "--into", str(old.parent)]) == 1

    assert old.read_text() == "old"
    told = capsys.readouterr().err
    assert "docs/gallery.md" in told, "where a reader finds the pages"
    assert "make show" in told, "what a maintainer can do"


def test_without_stored_pages_it_is_told_how_to_make_a_book_of_a_run(checkout):
    with pytest.raises(report.ReportError, match="make book RUN=build/full-cpu"):
        book.find_stored()


def test_runs_in_folders_of_one_name_are_refused(checkout, tmp_path):
    one, other = (run_in(tmp_path / folder / "full-cpu", "01_a") for folder in ("one", "other"))

    with pytest.raises(book.BookError, match="2 runs lie in folders that are called full-cpu"):
        book.read_runs([one, other])


def test_of_a_run_that_is_gone_it_is_told_how_to_make_one(checkout, tmp_path):
    with pytest.raises(report.ReportError, match="make run"):
        book.read_runs([tmp_path / "full-cpu"])


def _is_in_the_book() -> Callable[[str], bool]:
    """Return a function that tells of a place in the checkout whether Sphinx reads it, by book/conf.py."""
    tree = ast.parse((paths.ROOT / "book/conf.py").read_text(encoding="utf-8"))
    (patterns,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "include_patterns"
    )
    # README becomes the index
    return lambda place: any(fnmatch.fnmatch(place, each) for each in ["README.md", *patterns])


def texts_led_to(document: Path) -> Iterator[str]:
    """Yield the Markdown documents of the checkout that one leads to."""
    for target in test_documents.targets(document):
        place = (document.parent / target.partition("#")[0]).resolve()
        if place.suffix == ".md" and place.is_relative_to(paths.ROOT):
            yield str(place.relative_to(paths.ROOT))


def test_a_text_of_the_book_leads_to_no_text_outside_of_it():
    """Sphinx calls such a link an unknown document, but only where the book's packages are installed."""
    is_included = _is_in_the_book()
    places = {str(path.relative_to(paths.ROOT)): path for path in test_documents.DOCUMENTS}

    outside = [
        f"{name} leads to {other}"
        for name, document in places.items()
        if is_included(name)
        for other in texts_led_to(document)
        if not is_included(other)
    ]
    assert outside == [], (
        "add them to include_patterns in book/conf.py and to the contents of book/build.py"
    )
