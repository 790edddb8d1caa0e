"""Fixtures of the tests of executed pages."""

from __future__ import annotations

import pytest
from nbformat import v4
from run_folder import entry
from stored_pages import GAP, FinishedRun

from metallab.results.publish import executed


@pytest.fixture
def finished_run(tmp_path, monkeypatch):
    """A finished run of two pages, and the checkout that it is of."""
    return FinishedRun(tmp_path, monkeypatch)


@pytest.fixture
def stored(finished_run):
    """The folder of the machine, with the run's pages."""
    folder, refused = finished_run.store()
    assert refused == {}
    return folder


@pytest.fixture
def stored_page(finished_run):
    """The first page of the run, as it is stored."""
    finished_run.stored("01_a")
    (executed_set,) = executed.read_sets(finished_run.executed)
    return executed_set.pages["01_a"]


@pytest.fixture
def incomplete_run(finished_run):
    """A run whose first page lacked a tool for a cell."""
    gap = {"where": "cell 1 (Measure it)", "what": GAP.what, "fix": GAP.fix}
    finished_run.summary(
        entry("01_a", status="incomplete", reason="not run", not_run=[gap]), entry("02_b")
    )
    finished_run.page_of("01_a", v4.new_output("display_data", GAP._repr_mimebundle_()))
    return finished_run
