"""Pages on a machine where a step is slow do fewer and say so. Steps' times are planted, cells are the pages' own."""

from __future__ import annotations

import functools
import math
import types

import nbformat
import pytest

from metallab import allowance, paths, timing, units


class Clock:
    """Seconds that pass when a step says so."""

    now = 0.0

    def __call__(self):
        return self.now

    def after(self, seconds, result=None):
        self.now += seconds
        return result


@pytest.fixture
def clock():
    return Clock()


def run(page, clock, space, *names):
    """Execute some cells of a page with allowances that follow a clock."""
    (path,) = paths.NOTEBOOKS.glob(f"{page}_*.ipynb")
    cells = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    timed = types.SimpleNamespace(Allowance=lambda seconds: allowance.Allowance(seconds, clock))
    space |= {"allowance": timed, "timing": timing, "units": units, "math": math, "functools": functools}
    space |= {"by_mode": lambda full, fast: full, "display": lambda shown: None}
    for name in names:
        exec(compile(cells[name], name, "exec"), space)
    return space
