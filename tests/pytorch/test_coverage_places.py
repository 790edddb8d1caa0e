"""Coverage names every place on request, and says what very many calls cost."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from metallab.__main__ import main as command
from metallab.pytorch.coverage import mps_coverage, report, shell


class TwoMasks(nn.Module):
    """Makes a tensor on the CPU on two lines."""

    def forward(self, x):
        x = x * torch.ones(4)
        return x + torch.zeros(4)


@pytest.fixture
def masks(monkeypatch):
    """A module with a factory of a model that leaves two tensors on the CPU, and of one that leaves none."""
    factories = types.ModuleType("masks")

    def make_two():
        return TwoMasks(), torch.randn(2, 4)

    def make_none():
        return nn.Linear(4, 4), torch.randn(2, 4)

    factories.two, factories.none = make_two, make_none
    monkeypatch.setitem(sys.modules, "masks", factories)


def test_every_line_that_leaves_a_tensor_on_the_cpu_is_listed():
    places = mps_coverage(TwoMasks(), torch.randn(2, 4)).list_places()

    assert len(places) == 2
    assert "aten::mul.Tensor" in places[0]
    assert "aten::add.Tensor" in places[1]
    assert all("test_coverage_places.py" in place for place in places)


def test_an_operator_that_is_missing_is_listed_with_all_modules_that_call_it():
    model = nn.Sequential(*[nn.RReLU() for _ in range(5)]).train()

    [place] = mps_coverage(model, torch.randn(2)).list_places()

    assert "rrelu_with_noise" in place
    assert "in 0, 1, 2, 3, 4" in place


def test_the_command_lists_places_when_it_is_asked_to(masks, capsys):
    assert command(["coverage", "masks:two", "--places"]) == 1
    assert (
        capsys.readouterr().out.count("a tensor stays on the CPU") == 3
    )  # the answer, and two places


def test_the_command_says_that_there_is_no_place_and_who_knows_of_copies(masks, capsys):
    """A copy to the CPU runs on MPS, so that coverage knows nothing of what leaves the GPU."""
    assert command(["coverage", "masks:none", "--places"]) == 0
    printed = capsys.readouterr().out
    assert "metallab trace" in printed
    assert "leaves the GPU" not in printed


def test_a_gru_that_makes_very_many_calls_is_told_what_they_cost():
    covered = mps_coverage(nn.GRU(4, 4), torch.randn(200, 1, 4))

    assert covered.calls >= report.MANY_CALLS
    assert f"{covered.calls:,} calls in one run" in str(covered)


def test_an_lstm_of_the_same_length_is_one_operator_and_is_told_nothing():
    covered = mps_coverage(nn.LSTM(4, 4), torch.randn(200, 1, 4))

    assert covered.advice_on_calls == ""


def test_a_float64_buffer_is_a_place_although_its_line_ran_before():
    model = nn.BatchNorm1d(4).double()
    [place] = mps_coverage(model, torch.randn(2, 4)).list_places()
    assert "running_mean" in place
    assert "not known" not in place


class ReadsAndDraws(nn.Module):
    """Takes a tensor on the GPU for an array, and then asks for a generator of its device."""

    def forward(self, x):
        x.detach().numpy()
        torch.Generator(x.device)
        return x + 1


def test_what_one_trace_has_found_is_kept_where_the_next_one_ends_otherwise():
    covered = mps_coverage(ReadsAndDraws(), torch.randn(2))

    assert [problem.kind for problem in covered.problems] == ["array"]


class Draws(nn.Module):
    """Cannot be followed without a Mac, and leaves a tensor on the CPU."""

    def forward(self, x):
        return x[x.nonzero()[:, 0]] + torch.rand(4, generator=torch.Generator(x.device))


class DrawsAndChooses(Draws):
    """Calls an operator that is missing as well."""

    def forward(self, x):
        return torch.mode(super().forward(x)).values


def test_a_no_says_that_a_tensor_left_on_the_cpu_was_not_looked_for():
    covered = mps_coverage(DrawsAndChooses(), torch.randn(2, 4))

    assert covered.answer.startswith("No: mode")
    assert "left on the CPU" in covered.answer


def test_places_do_not_say_that_there_is_none_where_none_was_looked_for(monkeypatch, capsys):
    def one():
        return Draws(), torch.randn(2, 4)

    factories = types.ModuleType("draws")
    factories.one = one
    monkeypatch.setitem(sys.modules, "draws", factories)

    assert command(["coverage", "draws:one", "--places"]) == 2
    assert shell.NO_PLACE not in capsys.readouterr().out
