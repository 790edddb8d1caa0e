"""Checks in a child process (support/children.py): a child that does not end well has passed nothing."""

from __future__ import annotations

import os

import children
import pytest

REPORTS = """
import json, pathlib, sys
pathlib.Path(sys.argv[2]).write_text(json.dumps({"reached": "passed", "wrong": "AssertionError"}))
"""
"""A session that has made two of its checks, of which one has failed."""
NAMES = ("reached", "wrong", "later")


@pytest.fixture
def run_session(tmp_path, monkeypatch):
    """A function that runs a session of some text, and returns what came of each check."""
    monkeypatch.setattr(children, "shared", None)

    def run_session(text: str) -> dict[str, str]:
        file = tmp_path / "session.py"
        file.write_text(text)
        return children.run(str(file), "session", NAMES, os.environ)

    return run_session


def test_a_child_that_ends_well_tells_what_came_of_each_check(run_session):
    outcomes = run_session(REPORTS)
    assert outcomes["reached"] == children.PASSED
    assert outcomes["wrong"] == "AssertionError"
    assert outcomes["later"].startswith("the child ended with 0")


def test_a_child_that_ends_badly_has_passed_nothing(run_session):
    outcomes = run_session(f"{REPORTS}\nraise SystemExit(3)")
    assert outcomes["reached"].startswith("the child ended with 3")
    assert outcomes["wrong"] == "AssertionError"
    assert outcomes["later"].startswith("the child ended with 3")


def test_a_child_that_hangs_has_passed_nothing(run_session, monkeypatch):
    """It is told of each check that did not fail before, and not of the first one alone that somebody looks at."""
    monkeypatch.setattr(children, "LIMIT", 1)
    outcomes = run_session(f"{REPORTS}\nimport time\ntime.sleep(600)")
    assert outcomes["reached"] == "the child did not end within 1 s"
    assert outcomes["later"] == "the child did not end within 1 s"
