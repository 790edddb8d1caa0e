"""The executed pages in the repository: whole, of no named machine, linked, and refused if one was swapped."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator

import nbformat
import pytest
import test_documents
from run_folder import png
from stored_pages import copy_of

from metallab import paths, redact
from metallab.results.publish import caption, copies, executed, gallery, pages, plain, show

MOST_BYTES = 10_000_000  # of a set
STORED = sorted(path.parent for path in executed.EXECUTED.glob("*/summary.json"))


def count_in_caption(first_cell: str) -> int:
    """How many speed-ups a stored page's caption calls withheld; it has a number where the machine was disturbed."""
    found = re.search(r"(\d+) of them withheld", caption.read_caption(first_cell))
    return int(found[1]) if found is not None else 0


def faults_of(page: executed.ExecutedPage) -> Iterator[str]:
    """Yield what is wrong with a stored page, by its own text, its entry in summary.json, its record and its picture.

    That it is older than its notebook is no fault, since it names the revision that it is of.
    """
    cells = nbformat.read(page.path, 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    top = cells[0].source  # with the caption

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

    if page.entry.withheld != count_in_caption(top):
        yield f"its caption and summary.json ({page.entry.withheld}) withhold unlike numbers of speed-ups"

    drawn = page.picture and hashlib.sha256(page.picture.read_bytes()).hexdigest()
    headline = page.record.headline
    told = headline.sha256 if headline is not None else None
    # a cell that did not run may be the one that draws it
    may_lack_picture = bool(page.entry.not_run)
    if drawn != told or not (drawn or may_lack_picture):
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
    faults = [fault for each in executed.read_sets() for fault in faults_of_set(each)]

    assert not faults, "\n".join(["make run DEVICE=cpu && make show RUN=build/full-cpu", *faults])


def test_readme_lists_each_page():
    names = [path.name for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))]

    assert [*gallery.read_lessons()] == names


@pytest.fixture(scope="module")
def linked():
    """The folder and the name of each stored page that README leads to, in its order."""
    row = re.compile(r"^\|.*\(data/executed/(\w+)/(\w+)\.ipynb\)", re.MULTILINE)
    return row.findall(gallery.README.read_text(encoding="utf-8"))


def test_readme_leads_to_pages_that_ran_whole(linked):
    stored = {each.folder.name: each.pages for each in executed.read_sets()}

    assert [name for folder, name in linked if not copies.is_linked(stored[folder][name])] == []


def misled(linked, copies_of) -> Iterator[str]:
    """Yield the pages whose link in README does not lead to their best copy.

    A copy of an older notebook may keep its link: else whoever changes the code of a page, by which its copy becomes
    one of these, would have to change README and the gallery as well. ``make show`` leads all links to the best.

    Parameters
    ----------
    linked
        The folder of the copy that README leads to, for each page by its name.
    copies_of
        The stored copies of each page.
    """
    for name, stored in copies_of.items():
        best = copies.choose_copy(stored)
        chosen = best.folder.name if best is not None else None
        led_to = [copy for copy in stored if copy.folder.name == linked.get(name)]
        is_older = any(not copies.is_current(copy) for copy in led_to)
        if linked.get(name) != chosen and not is_older:
            yield f"{name}: {linked.get(name)} in place of {chosen}"


def test_readme_leads_to_the_best_copy_of_each_page_whose_code_has_not_changed(linked):
    names = [file.removesuffix(".ipynb") for file in gallery.read_lessons()]
    sets = [each.pages for each in executed.read_sets()]
    copies_of = {name: [its[name] for its in sets if name in its] for name in names}

    faults = list(misled({name: folder for folder, name in linked}, copies_of))

    assert not faults, "\n".join(["make show", *faults])


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
    stored = [copy_of(stored_page, "best"), copy_of(stored_page, "other", withheld=3)]
    monkeypatch.setattr(copies, "is_current", lambda page: page.folder.name in current)
    linked = {} if led_to is None else {"01_a": led_to}

    assert len(list(misled(linked, {"01_a": stored}))) == faults


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
def test_what_was_swapped_in_a_set_is_refused(finished_run, stored, swap, capsys):
    swap(stored)

    assert show.main([]) == 2
    assert "01_a" in capsys.readouterr().err
    assert not finished_run.gallery.exists()
