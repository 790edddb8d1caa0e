"""every operator of PyTorch's own database, against the CPU and against what coverage predicts"""

from __future__ import annotations

import re

import pytest

from conformance import operator_database as database
from conformance.claims import ON_A_MAC
from metallab import units

CANNOT_AGREE = re.compile(
    r"(\b|_)(bernoulli|cauchy|dropout(?!_backward)|empty|exponential|geometric|multinomial|normal\b|rand|rrelu|uniform)"
)
"""In the name of an entry: it draws numbers, from another generator on each side, or reads memory that nobody wrote."""
FINE = ("agrees", "missing as foretold", "refused")
HERE = 1 if ON_A_MAC else 24
"""Of so many entries one is asked: on the simulated GPU tools/benchmarks/simulated_operators.py asks all."""


@pytest.mark.claim(
    on="gpu", used_in="notebook 10, metallab.pytorch.coverage, metalsim/README.md", seconds=60
)
@pytest.mark.parametrize("name", database.names()[::HERE])
def test_database_agrees_and_is_foretold(name, evidence):
    """An operator of PyTorch's database agrees with the CPU, or raises if coverage says that it has no kernel.

    Two samples in float32, forward and backward. What draws random numbers, or reads memory that nobody wrote, cannot
    agree.
    """
    asked = database.ask(name)
    if asked.answer == "skipped":
        pytest.skip(asked.reason)
    evidence("came of it", f"{asked.answer} {units.first_line(asked.reason)}".strip())
    if asked.answer == "differs" and CANNOT_AGREE.search(name):
        pytest.skip(f"it differs, as it must: {asked.reason}")
    assert asked.answer in FINE, asked.reason
