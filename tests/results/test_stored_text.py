"""The text of a stored page: a caption, today's text around the cells that ran, and links that lead somewhere."""

from __future__ import annotations

import re
import shutil

import nbformat
import pytest
from nbformat import v4
from run_folder import code
from stored_pages import GAP, write_page

from metallab.results.publish import show


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


def test_an_incomplete_page_says_so(incomplete_run):
    assert f"{GAP.what} (cell 1)" in incomplete_run.stored("01_a").cells[0].source


NEW_TEXT = "# Time it\n\nSee [it](../README.md)."


def test_a_stored_page_gets_today_s_text_and_keeps_outputs(finished_run, stored):
    title, measuring = nbformat.read(stored / "01_a.ipynb", 4).cells
    new = [v4.new_markdown_cell(NEW_TEXT), code("measure()"), v4.new_markdown_cell("So.")]
    write_page(finished_run.notebooks / "01_a.ipynb", *new)

    assert show.main([]) == 0

    top, cell, last = nbformat.read(stored / "01_a.ipynb", 4).cells
    caption = title.source.split("\n\n")[1]
    assert top.source == f"# Time it\n\n{caption}\n\nSee [it](../../../README.md)."
    assert last.source == "So."
    assert cell.outputs == measuring.outputs


def test_a_stored_page_of_other_code_than_today_s_keeps_its_text(finished_run, stored):
    before = (stored / "02_b.ipynb").read_text()
    write_page(
        finished_run.notebooks / "02_b.ipynb", v4.new_markdown_cell(NEW_TEXT), code("changed()")
    )

    assert show.main([]) == 0

    assert (stored / "02_b.ipynb").read_text() == before


@pytest.fixture
def linking(finished_run):
    """A function that puts a link into today's text of page 01, and returns where the stored page leads with it.

    Page 02 is stored as well, with one heading below its title. Page 03, the same, is in the checkout alone, as are a
    guide with that heading and a program.
    """
    text = v4.new_markdown_cell("# Measure it\n\n## Part: `two`")
    write_page(finished_run.notebooks / "02_b.ipynb", text, code("measure()"))
    finished_run.store()
    ran = finished_run.notebooks / "02_b.ipynb"
    shutil.copy(ran, ran.with_name("03_c.ipynb"))  # which did not run

    guide = finished_run.notebooks.parent / "docs" / "guide.md"
    guide.parent.mkdir()
    guide.write_text("# Guide\n\n## Part: `two`")
    (guide.parent / "a.py").touch()

    def shown_with(link: str) -> str:
        text = v4.new_markdown_cell(f"# A\n\n[x]({link})")
        write_page(finished_run.notebooks / "01_a.ipynb", text, code("measure()"))
        assert show.main([]) == 0
        (stored,) = finished_run.executed.glob("*/01_a.ipynb")
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


def test_a_heading_that_comes_back_is_linked_again(finished_run, linking):
    assert linking("02_b.ipynb#Newer") == "02_b.ipynb"
    newer = nbformat.read(finished_run.notebooks / "02_b.ipynb", 4)
    newer.cells[0].source += "\n\n## Newer"
    nbformat.write(newer, finished_run.notebooks / "02_b.ipynb")
    assert linking("02_b.ipynb#Newer") == "02_b.ipynb#Newer"


def test_a_page_of_other_code_than_today_s_keeps_its_text_but_not_a_link_to_nothing(
    finished_run, linking
):
    (stored,) = finished_run.executed.glob("*/02_b.ipynb")
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
