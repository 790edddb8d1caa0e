"""Each subject has a cell that shows it, and one that did not run is found. `test_notebooks.py` runs the pages."""

from __future__ import annotations

import nbformat
import pytest
import scope
from nbformat.v4 import new_code_cell, new_output

from metallab import paths


def code_of(number):
    """The ids of the cells of code of a page."""
    (path,) = paths.NOTEBOOKS.glob(f"{number}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    return {cell.id for cell in cells if cell.cell_type == "code"}


@pytest.mark.parametrize(
    "subject", scope.SHOWN, ids=[subject.split()[0] for subject in scope.SHOWN]
)
def test_each_subject_of_the_course_is_shown_by_cells_that_exist(subject):
    pages = scope.SHOWN[subject]
    assert any(pages.values()), (
        f"no page has a cell for {subject}, of SUBJECTS in authoring/course.py"
    )

    asked = {number: set(names.split()) for number, names in pages.items()}
    assert {
        number: lost for number, names in asked.items() if (lost := names - code_of(number))
    } == {}


def cell(source, *outputs, executed=1, name="find"):
    return new_code_cell(source, id=name, execution_count=executed, outputs=list(outputs))


MAC = new_output(
    "stream", text="mpsgraphtool is not on this machine (it comes with Xcode, on a Mac)."
)


@pytest.fixture
def shown():
    """The cells of page 12 that show a subject, all of which ran."""
    return {name: cell("1", name=name) for name in scope.cells_of("12_find_the_wrong_layer")}


def test_of_a_page_that_ran_no_subject_is_lost(shown):
    assert scope.not_shown("12_find_the_wrong_layer", shown) == []


@pytest.mark.parametrize(
    "instead",
    [None, cell("1", executed=None), cell("%%isolated x --full"), cell("1", MAC)],
    ids=["gone", "not run", "left out in fast mode", "needs a Mac"],
)
def test_a_subject_that_is_no_longer_shown_is_named(shown, instead):
    del shown["find"]
    cells = shown if instead is None else shown | {"find": instead}

    (lost,) = scope.not_shown("12_find_the_wrong_layer", cells)

    assert lost.startswith("21 ")
