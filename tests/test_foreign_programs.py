"""What the script that runs other projects' programs makes of one that agrees, differs or raises."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent / "benchmarks"))
import foreign_programs


@pytest.fixture
def results():
    """What a program gives the first and the second time that it is called."""
    return []


@pytest.fixture
def outcome(results):
    return lambda: foreign_programs.outcome(lambda device: results.pop(0), ("cpu", "cpu"))


def test_results_that_agree_in_all_tensors(results, outcome):
    results += [{"a": [torch.ones(2)], "b": (3, torch.zeros(1))}] * 2
    assert outcome() == foreign_programs.AGREED


def test_a_number_that_differs_is_told(results, outcome):
    results += [[torch.ones(2), torch.ones(3)], [torch.ones(2), torch.tensor([1, 1, 1.1])]]
    assert outcome().startswith("differs: ")


@pytest.mark.parametrize("given", [[[], []], [[torch.ones(1)], []]])
def test_nothing_agrees_with_nothing(given, results, outcome):
    results += given
    assert outcome() == f"{len(given[0])} results on cpu, 0 on cpu"


def test_what_is_raised_is_told_in_a_line():
    def program(device):
        raise NotImplementedError(f"no {device}\nand more")

    assert foreign_programs.outcome(program, ("cpu", "cpu")) == "on cpu: NotImplementedError: no cpu"


def test_each_program_begins_with_the_same_seed():
    assert foreign_programs.outcome(lambda device: torch.randn(3), ("cpu", "cpu")) == foreign_programs.AGREED
