"""The project's cases for `make versus`: each can be set up, computes something, and the same again."""

from __future__ import annotations

import pytest

from metallab import checks
from metallab.versus import cases, worker
from metallab.versus.command import CASES

ALL = cases.load(CASES)


@pytest.mark.parametrize("name", ALL)
def test_a_case_computes_the_same_twice(name, tmp_path):
    """Set up twice, as the sides do it; what it draws at random must be seeded."""
    outputs = []
    for number in range(2):
        file = tmp_path / f"{number}.npz"
        worker.save_output(ALL[name].prepare("cpu")(), file)
        outputs.append(worker.load_output(file))
    checks.assert_close(*outputs, ALL[name].tolerance)


def test_groups_are_lessons():
    lessons = {path.name.split("_")[0] for path in (CASES.parents[1] / "notebooks").glob("*.ipynb")}
    assert {one.group for one in ALL.values()} <= lessons
    assert all(one.group for one in ALL.values())
