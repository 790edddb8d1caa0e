"""The gallery of executed pages: which copy and which picture it shows."""

from __future__ import annotations

import dataclasses

import nbformat
import pytest
from nbformat import v4
from run_folder import code, entry, picture_output, png
from stored_pages import gallery_of

from metallab.results.publish import executed, gallery


@pytest.fixture
def of_two_machines(finished_run):
    """A run whose two pages are stored, of which a GPU has run the second as well."""
    finished_run.store()
    finished_run.summary(entry("02_b"), device="cuda", label="Some GPU")
    finished_run.store()
    return finished_run


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
    of_two_machines.store()

    assert "](e/some_cpu/02_b.ipynb)\n" in gallery_of(of_two_machines)


def test_an_incomplete_page_is_not_in_the_gallery(incomplete_run):
    incomplete_run.store()

    text = gallery_of(incomplete_run)
    assert "01_a" not in text
    assert "02_b" in text


def caption():
    """A cell that says what the picture before it shows."""
    text = "Two [lines](../a.md) cross at *n* = 8. If they do not, look again."
    return v4.new_markdown_cell(text, metadata={"tags": ["caption"]})


def draw(words):
    """A cell that shows a picture with these words."""
    output = picture_output(png())
    output["metadata"] = {"image/png": {"alt": words}}
    return code("plot()", output)


def find_with(page, headline):
    """The picture of a stored page in the gallery, if its headline were another one."""
    record = dataclasses.replace(page.record, headline=headline)
    return gallery.find_picture(dataclasses.replace(page, record=record))


@pytest.fixture
def picture_of(finished_run, stored):
    """Return a function that adds cells to a stored page, and gives its picture in the gallery."""
    page = executed.read_sets(finished_run.executed)[0].pages["01_a"]

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
