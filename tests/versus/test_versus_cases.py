"""The project's cases for `make versus`: each can be set up, computes something, and the same again."""

from __future__ import annotations

import pytest

from metallab import checks
from metallab.versus import cases, worker
from metallab.versus.command import CASES

ALL = cases.load(CASES)


def compute(name, file):
    """Set a case up as a side does it, and return its output as the sides exchange it."""
    worker.save_output(ALL[name].prepare("cpu")(), file)
    return worker.load_output(file)


@pytest.mark.parametrize("name", ALL)
def test_a_case_computes_the_same_twice(name, tmp_path):
    """So what it draws at random must be seeded."""
    first = compute(name, tmp_path / "first.npz")
    second = compute(name, tmp_path / "second.npz")
    checks.assert_close(first, second, ALL[name].tolerance)


def test_each_case_belongs_to_a_lesson():
    lessons = {path.name.split("_")[0] for path in (CASES.parents[1] / "notebooks").glob("*.ipynb")}
    assert {one.group for one in ALL.values()} <= lessons
