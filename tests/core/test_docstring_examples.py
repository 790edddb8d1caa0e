"""What docstrings show as examples runs as it stands: a newcomer copies it from ``help``."""

from __future__ import annotations

import doctest
import inspect

import pytest

from metallab import timing, units

SHOWN = [
    timing.compare,
    timing.crossover,
    timing.measure,
    timing.median_interval,
    timing.not_counted,
    units.SimulatedNumber,
    units.lines,
    units.rate,
]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.__qualname__)
def test_an_example_runs_and_prints_what_it_says(shown, monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    names = vars(inspect.getmodule(shown)).copy()
    (example, *_) = doctest.DocTestFinder().find(shown, globs=names)
    assert example.examples

    result = doctest.DocTestRunner().run(example)
    assert result.failed == 0
