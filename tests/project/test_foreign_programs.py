"""What the script that runs other projects' programs makes of one that agrees, differs or raises."""

from __future__ import annotations

import foreign_programs
import pytest
import torch


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ({"a": [torch.ones(2)], "b": (3, torch.zeros(1))}, [torch.ones(2), torch.zeros(1)], foreign_programs.AGREED),
        ([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.tensor([1, 1, 1.1])], "differs: "),
        ([torch.ones(1)], [], "1 results on cpu, 0 on "),
        ([], [], "0 results"),
    ],
)
def test_results_are_compared_in_all_tensors(first, second, says):
    results = [first, second]
    assert foreign_programs.outcome(lambda device: results.pop(0), ("cpu", "cpu")).startswith(says)


def test_each_begins_with_the_same_seed_and_may_raise():
    assert foreign_programs.outcome(lambda device: torch.randn(3), ("cpu", "cpu")) == foreign_programs.AGREED
    assert foreign_programs.outcome(lambda device: torch.ones(2).view(3), ("cpu", "cpu")).startswith("on cpu: Runtime")
