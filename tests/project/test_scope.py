"""Each row of the scope has a cell, and a cell that did not run is found. `test_notebooks.py` runs the pages."""

from __future__ import annotations

import nbformat
import pytest
import scope
from nbformat.v4 import new_code_cell, new_output

from metallab import paths


def test_every_row_has_a_cell_that_exists():
    assert [row.split()[0] for row in scope.ROWS] == ["1", "2", "2b", *map(str, range(3, 27))]
    for row, pages in scope.ROWS.items():
        assert any(pages.values()), row
        for number, names in pages.items():
            (path,) = paths.NOTEBOOKS.glob(f"{number}_*.ipynb")
            ids = {
                cell.id
                for cell in nbformat.read(path, as_version=4).cells
                if cell.cell_type == "code"
            }
            assert set(names.split()) <= ids, f"row {row}"


def cell(source, *outputs, executed=1, name="find"):
    return new_code_cell(source, id=name, execution_count=executed, outputs=list(outputs))


MAC = new_output(
    "stream", text="mpsgraphtool is not on this machine (it comes with Xcode, on a Mac)."
)


@pytest.mark.parametrize(
    "lost", [None, cell("1", executed=None), cell("%%isolated x --full"), cell("1", MAC)]
)
def test_a_row_that_is_no_longer_shown_is_named(lost):
    cells = {name: cell("1", name=name) for name in scope.cells_of("12_find_the_wrong_layer")}
    assert scope.not_shown("12_find_the_wrong_layer", cells) == []
    cells["find"] = lost
    if lost is None:
        del cells["find"]
    (row,) = scope.not_shown("12_find_the_wrong_layer", cells)
    assert row.startswith("21 ")
