"""Cases at the edges of operators: the CPU passes them, and what does not is named in the table of notebook 65."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import torch

from metallab import device
from metallab.imaging import edges
from metallab.parity import Parity

CPU = device.cpu()


@pytest.mark.parametrize("operator", [name for name in edges.OPERATORS if name != "complex32"])
def test_the_cpu_agrees_with_numpy_at_every_edge(operator):
    outcomes = {case.name: case.outcome(CPU) for case in edges.cases(operator)}
    assert [name for name, outcome in outcomes.items() if not outcome.agrees] == []


@pytest.mark.filterwarnings("error:ComplexHalf")
def test_pairs_of_float16_are_right_or_refused():
    outcomes = {case.name: case.outcome(CPU) for case in edges.cases("complex32")}
    assert outcomes["|z|"].agrees
    assert not [each for each in outcomes.values() if each.outcome == "differs"]


@pytest.mark.parametrize(
    ("operator", "owner", "mistake"),
    [
        pytest.param(
            "sort",
            torch.Tensor,
            lambda x, dim, stable: torch.sort(x.nan_to_num(0), dim),
            id="a sort without NaN",
        ),
        pytest.param(
            "argsort",
            torch.Tensor,
            lambda x, dim, stable, descending=False: (-x if descending else x).sort(dim).indices,
            id="an argsort that is not stable",
        ),
        pytest.param(
            "cumsum",
            torch,
            lambda x, dim: x.nan_to_num(0).sum(dim, keepdim=True).expand_as(x),
            id="a cumulative sum of everything",
        ),
        pytest.param(
            "irfftn", torch.fft, lambda x, s, dim, norm: torch.zeros(4, 6, 5, 9), id="zeros"
        ),
        pytest.param(
            "conv3d", torch.nn.functional, lambda x, w: torch.zeros(1), id="another shape"
        ),
        pytest.param(
            "grid_sample",
            torch.nn.functional,
            functools.partial(torch.nn.functional.grid_sample, mode="nearest"),
            id="sampling of the nearest",
        ),
    ],
)
def test_a_wrong_operator_is_found(operator, owner, mistake, monkeypatch):
    monkeypatch.setattr(owner, operator, mistake)
    outcomes = [case.outcome(CPU) for case in edges.cases(operator)]
    assert any(each.outcome == "differs" for each in outcomes)


AGREES, REFUSED, DIFFERS = Parity("agrees"), Parity("refused", "no"), Parity("differs", "2 of 6")
SURVEY = {
    "sort": {"empty": REFUSED, "one element": REFUSED, "ties": AGREES, "NaN": DIFFERS},
    "cumsum": {"ties": AGREES, "empty": AGREES},
    "cumprod": {"ties": AGREES, "empty": AGREES},
    "fftn": {f"{n}-D": REFUSED for n in range(12)},
}


@pytest.fixture(scope="module")
def table():
    """The lines of the table of a survey."""
    return repr(edges.table(SURVEY, "a GPU")).splitlines()


def test_the_table_has_a_column_of_the_device(table):
    assert re.split(r"\s{2,}", table[0]) == ["operator", "a GPU", "what does not agree"]


def test_the_table_names_what_does_not_agree_with_wrong_results_first(table):
    sort = "1 of 4 agree   NaN: DIFFERS: 2 of 6; empty: refused: no (also: one element)"
    assert sort in table[1]


def test_the_table_names_the_first_and_the_last_of_many_cases(table):
    assert "0 of 12 agree  0-D: refused: no (also: 1-D; ...; 11-D)" in table[2]


def test_operators_that_agree_everywhere_stand_in_the_last_row(table):
    assert len(table) == 4
    assert re.split(r"\s{2,}", table[3]) == ["cumsum, cumprod", "all 4 agree"]


def test_a_case_computes_in_its_dtype():
    dtypes = []

    def noted(x):
        dtypes.append(x.dtype)
        return x

    outcome = edges.Case("pi", noted, lambda x: x, (np.array([np.pi]),), "float16").outcome(CPU)
    assert outcome.agrees
    assert dtypes == [torch.float16]
