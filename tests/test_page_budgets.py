"""Pages on a machine where a step is slow do fewer and say so. Steps' times are planted, cells are the pages' own."""

from __future__ import annotations

import contextlib
import functools
import math
import types

import nbformat
import numpy as np
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


def test_page_06_does_not_train_a_dtype_that_the_processor_lacks(clock, capsys, monkeypatch):
    seconds = {"float32": 0.002, "mixed_bfloat16": 0.02}
    measure = lambda call, name, **_: types.SimpleNamespace(median=seconds[name])
    monkeypatch.setattr(timing, "measure", measure)
    anything = types.SimpleNamespace(constant=lambda x: x, function=lambda step, **_: step, errors=None)
    anything.errors = types.SimpleNamespace(OpError=OSError)
    adam = types.SimpleNamespace(optimizers=types.SimpleNamespace(Adam=lambda rate: rate))
    lab = types.SimpleNamespace(kind="cpu", active=contextlib.nullcontext)
    space = {"tf": anything, "keras": adam, "lab": lab, "np": np, "digits": [], "labels": [], "width": 64}
    space |= {"policies": ("float32", "mixed_bfloat16", "mixed_float16"), "build": lambda *_, **__: None}
    space |= {"make_step": lambda model: print, "train": slice(0, 1280), "epochs": 10, "most_seeds": 3}
    run("06", clock, space, "train-run")
    assert (space["chosen"], space["seeds"]) == (["float32"], 3)
    assert "training in mixed_bfloat16 (a step takes 20 ms, 10.0 times float32's time)" in capsys.readouterr().out
    seconds["float32"], space["refused"] = 0.4, {}
    run("06", clock, space, "train-run")
    assert (space["chosen"], space["seeds"]) == (["float32"], 1)
    assert "1 of 3" not in (said := capsys.readouterr().out)
    assert "2 of 3 seeds of training (80 s each)" in said
