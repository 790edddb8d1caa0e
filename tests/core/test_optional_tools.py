"""What a page may lack: skipped without what not every machine can have, incomplete without anything else.

That an incomplete page fails a strict run is tested with the runner (test_headless.py) and with nbconvert.
"""

from __future__ import annotations

import dataclasses

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


@pytest.fixture
def core_ai(monkeypatch, tmp_path):
    """Tells this process whether there is a wheel of Core AI, and whether its installation failed."""

    def tell(*, has_wheel: bool, failed: bool) -> None:
        mark = tmp_path / "failed"
        if failed:
            mark.touch()
        monkeypatch.setattr(needs, "CORE_AI_FAILED", mark)
        monkeypatch.setattr(needs.bootstrap, "loads_core_ai", lambda: has_wheel)

    return tell


PAGE_ABOUT_CORE_AI = {"device": ["sim"], "without": ["coreai"], "reason": "it is not simulated"}


@pytest.mark.parametrize(
    ("has_wheel", "failed", "why"),
    [
        pytest.param(False, False, "glibc 2.34", id="there is no wheel"),
        pytest.param(True, True, "make setup COREAI=1 tries again", id="its installation failed"),
    ],
)
def test_a_page_is_skipped_where_its_tool_cannot_be_had_and_says_why(
    without, core_ai, has_wheel, failed, why
):
    page = new_notebook(metadata={"metallab": {"skip": PAGE_ABOUT_CORE_AI}})
    without("coreai")
    core_ai(has_wheel=has_wheel, failed=failed)
    assert why in notebook.skip_reason(page, "cpu")
    assert notebook.skip_reason(page, "sim") == "it is not simulated"


def test_a_page_is_incomplete_where_its_tool_could_be_had_and_names_the_command(without, core_ai):
    page = new_notebook(metadata={"metallab": {"skip": PAGE_ABOUT_CORE_AI}})
    command = needs.TOOLS["coreai"].fix()
    without("coreai")
    core_ai(has_wheel=True, failed=False)
    assert notebook.skip_reason(page, "cpu") == ""
    (lacking,) = notebook.lacking_tools(page)
    assert not lacking.optional, "a strict run fails"
    assert command == "make setup COREAI=1"


@pytest.mark.parametrize("loads", [True, False])
def test_mlx_may_be_absent_only_where_set_up_cannot_install_it(without, monkeypatch, loads):
    monkeypatch.setattr(needs.bootstrap, "loads_mlx", lambda: loads)
    without("mlx")
    page = nbformat.read(paths.NOTEBOOKS / "50_train_with_mlx.ipynb", as_version=4)
    assert bool(notebook.skip_reason(page, "cpu")) == (not loads)

    (lacking,) = notebook.lacking_tools(page)
    assert lacking.optional == (not loads), "where it can be had, a strict run fails"
    assert "MLX" in lacking.what


@pytest.mark.parametrize("name", sorted(needs.TOOLS.keys() - set(needs.OPTIONAL)))
def test_what_any_machine_can_have_may_not_be_absent(name):
    assert not needs.TOOLS[name].may_be_absent


@pytest.mark.parametrize(
    ("system", "machine", "version", "has_wheel"),
    [
        pytest.param("Linux", "x86_64", "2.34", True, id="Linux"),
        pytest.param("Linux", "x86_64", "2.31", False, id="older Linux"),
        pytest.param("Linux", "aarch64", "2.39", False, id="Linux on ARM"),
        pytest.param("Darwin", "arm64", "26.0", True, id="macOS 26"),
        pytest.param("Darwin", "arm64", "15.6", False, id="macOS 15"),
    ],
)
def test_core_ai_has_wheels_for_some_systems(monkeypatch, system, machine, version, has_wheel):
    monkeypatch.setattr(needs.bootstrap.platform, "system", lambda: system)
    monkeypatch.setattr(needs.bootstrap.platform, "machine", lambda: machine)
    monkeypatch.setattr(needs.bootstrap.platform, "libc_ver", lambda: ("glibc", version))
    monkeypatch.setattr(needs.bootstrap.platform, "mac_ver", lambda: (version, (), machine))
    assert needs.bootstrap.loads_core_ai() == has_wheel


@pytest.mark.parametrize(
    ("loads", "fix"),
    [
        pytest.param(True, needs.SETUP, id="its wheel loads"),
        pytest.param(False, needs.NEWER_LINUX, id="the system is too old"),
    ],
)
def test_the_fix_for_mlx_is_set_up_where_its_wheel_loads(monkeypatch, loads, fix):
    monkeypatch.setattr(needs.bootstrap, "loads_mlx", lambda: loads)
    assert needs.TOOLS["mlx"].fix() == fix


def test_a_page_that_lacks_its_tool_is_incomplete_before_its_first_cell(without):
    path = paths.NOTEBOOKS / "23_launch_a_kernel_from_pytorch.ipynb"
    page = nbformat.read(path, as_version=4)
    assert notebook.skip_reason(page, "cpu") == ""
    without("c++")
    notebook.leave_out(page, notebook.lacking_tools(page))
    (gap,) = notebook.not_run(page)
    assert gap["where"].startswith("cell 1 ")
    assert gap["what"] == "this page needs a C++ compiler, which this machine lacks"
    assert gap["fix"] == "buy it"
    nbformat.validate(page)


PAGES = sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_ends_with_what_closes_it(path):
    """Elsewhere than in the runner nothing else notices that a page is incomplete."""
    cells = filter(notebook.is_code, nbformat.read(path, as_version=4).cells)
    *_, last = cells
    assert last.source == "metallab.finish()"
