"""What a page may lack: skipped without what not every machine can have, incomplete without anything else.

That an incomplete page fails a strict run is tested with the runner (test_headless.py) and with nbconvert.
"""

from __future__ import annotations

import dataclasses
import re

import nbformat
import pytest
from nbformat.v4 import new_notebook

from metallab import needs, notebook, paths


@pytest.fixture
def without(monkeypatch):
    """Takes a tool from this process, which decides what is skipped in worker processes' place."""

    def take(name: str) -> None:
        gone = dataclasses.replace(needs.TOOLS[name], is_here=lambda: False, fix=lambda: "buy it")
        monkeypatch.setitem(needs.TOOLS, name, gone)

    return take


@pytest.mark.parametrize("tool", ["c++", "apple-gpu", "coremltools"])
def test_no_page_may_be_skipped_for_want_of_what_any_machine_can_have(tool):
    skip = {"device": [], "without": [tool], "reason": "it is not here"}
    with pytest.raises(notebook.Failure, match=r"without is a list of coreai, mlx"):
        notebook.skip_reason(new_notebook(metadata={"metallab": {"skip": skip}}), "cpu")
    with pytest.raises(ValueError, match="cannot do without"):
        needs.incomplete("a step", "buy it", without=tool)


def test_a_page_is_skipped_without_an_optional_tool_and_says_so(without):
    skip = {"device": [], "without": ["coreai"], "reason": "Core AI is not here"}
    page = new_notebook(metadata={"metallab": {"skip": skip}})
    without("coreai")
    assert notebook.skip_reason(page, "cpu") == "Core AI is not here"


@pytest.mark.parametrize("loads", [True, False])
def test_mlx_may_be_absent_only_where_set_up_cannot_install_it(without, monkeypatch, loads):
    monkeypatch.setattr(needs.bootstrap, "loads_mlx", lambda: loads)
    without("mlx")
    page = nbformat.read(paths.NOTEBOOKS / "50_train_with_mlx.ipynb", as_version=4)
    assert bool(notebook.skip_reason(page, "cpu")) == (not loads)

    (lacking,) = notebook.lacking_tools(page)
    assert lacking.optional == (not loads), "where it can be had, a strict run fails"
    assert "MLX" in lacking.what


def test_core_ai_may_be_absent_anywhere_since_it_is_installed_on_request():
    assert needs.TOOLS["coreai"].may_be_absent()
    others = needs.TOOLS.keys() - set(needs.OPTIONAL)
    assert not any(needs.TOOLS[name].may_be_absent() for name in others)


def test_the_fix_for_mlx_is_set_up_where_its_wheel_loads(monkeypatch):
    fixes = {}
    for loads in (True, False):
        monkeypatch.setattr(needs.bootstrap, "loads_mlx", lambda loads=loads: loads)
        fixes[loads] = needs.TOOLS["mlx"].fix()
    assert fixes == {True: needs.SETUP, False: needs.NEWER_LINUX}


def test_a_page_that_lacks_its_tool_is_incomplete_before_its_first_cell(without):
    path = paths.NOTEBOOKS / "23_launch_a_kernel_from_pytorch.ipynb"
    page = nbformat.read(path, as_version=4)
    assert notebook.skip_reason(page, "cpu") == ""
    without("c++")
    notebook.leave_out(page, notebook.lacking_tools(page))
    (gap,) = notebook.not_run(page)
    assert gap["where"].startswith("cell 1 ")
    assert gap["what"] == "this page needs a C++ compiler, which this machine lacks"
    assert gap["mend"] == "buy it"
    nbformat.validate(page)


def test_only_core_ai_and_mlx_are_optional():
    assert needs.OPTIONAL == ("coreai", "mlx")


def test_each_page_ends_with_what_closes_it():
    """Elsewhere than in the runner nothing else notices that a page is incomplete."""
    for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb")):
        cells = [c for c in nbformat.read(path, as_version=4).cells if notebook.is_code(c)]
        lines = cells[-1].source.splitlines()
        saves_always = any(line.startswith("saved = records.save(") for line in lines)
        if not saves_always:
            assert "    needs.close_page(" in cells[-1].source, (
                f"{path.name}: where it saves nothing"
            )
            code = "\n".join(cell.source for cell in cells)
            assert re.search(r"^from metallab import .*\bneeds\b", code, re.MULTILINE), path.name
