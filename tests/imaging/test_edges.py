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
    ("operator", "name", "mistake"),
    [
        ("sort", "sort", lambda x, dim, stable: torch.sort(x.nan_to_num(0), dim)),
        (
            "argsort",
            "argsort",
            lambda x, dim, stable, descending=False: (-x if descending else x).sort(dim).indices,
        ),
        ("cumsum", None, lambda x, dim: x.nan_to_num(0).sum(dim, keepdim=True).expand_as(x)),
        ("irfftn", None, lambda x, s, dim, norm: torch.zeros(4, 6, 5, 9)),
        ("conv3d", None, lambda x, w: torch.zeros(1)),
        ("grid_sample", None, functools.partial(torch.nn.functional.grid_sample, mode="nearest")),
    ],
)
def test_a_wrong_operator_is_found(operator, name, mistake, monkeypatch):
    owner = {
        "irfftn": torch.fft,
        "conv3d": torch.nn.functional,
        "grid_sample": torch.nn.functional,
    }.get(operator, torch.Tensor if name else torch)
    monkeypatch.setattr(owner, operator, mistake)
    outcomes = [case.outcome(CPU) for case in edges.cases(operator)]
    assert any(each.outcome == "differs" for each in outcomes)


def test_the_table_names_what_does_not_agree():
    no, yes = Parity("refused", "no"), Parity("agrees")
    refused = dict.fromkeys(["empty", "one element"], no)
    many = {f"{n}-D": no for n in range(12)}
    both = {"ties": yes, "empty": yes}
    cases = refused | {"ties": yes, "NaN": Parity("differs", "2 of 6")}
    survey = {"sort": cases, "cumsum": both, "cumprod": both, "fftn": many}
    head, sort, fftn, others = repr(edges.table(survey, "a GPU")).splitlines()
    assert re.split(r"\s{2,}", head) == ["operator", "a GPU", "what does not agree"]
    assert "1 of 4 agree   NaN: DIFFERS: 2 of 6; empty: refused: no (also: one element)" in sort
    assert "0 of 12 agree  0-D: refused: no (also: 1-D; ...; 11-D)" in fftn
    assert re.split(r"\s{2,}", others) == ["cumsum, cumprod", "all 4 agree"]


def test_a_case_computes_in_its_dtype():
    dtypes = []

    def noted(x):
        dtypes.append(x.dtype)
        return x

    outcome = edges.Case("pi", noted, lambda x: x, (np.array([np.pi]),), "float16").outcome(CPU)
    assert outcome.agrees
    assert dtypes == [torch.float16]
