"""Pages on a machine where a step is slow do fewer and say so. Steps' times are planted, cells are the pages' own."""

from __future__ import annotations

import contextlib
import functools
import math
import types

import nbformat
import pandas as pd
import pytest

from metallab import allowance, checks, paths, timing, units


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


def test_page_08_does_not_race_a_hopeless_rival(clock, capsys):
    taken = {"plain": 0.1, "quick": 0.05, "bfloat16": 1.0}
    rivals = {name: types.SimpleNamespace(name=name, dtype=name, place=Place()) for name in taken}
    space = {"rivals": rivals, "plain": "plain", "frames": list(range(8)), "checked": 8, "lab": Place()}
    space |= {"detect": lambda rival, frame: clock.after(taken[rival.name], [frame]), "pd": pd}
    space |= {"live": types.SimpleNamespace(progress=lambda items, what: items), "checks": checks, "time": Timer(clock)}
    space |= {"video": types.SimpleNamespace(assert_something=len), "boxes": types.SimpleNamespace(matches=Same)}
    run("08", clock, space, "correct-check", "correct-table")
    assert "the same 8 boxes on 8 frames" in space["verdicts"]["quick"]
    assert "the same 2 boxes on 2 frames" in space["verdicts"]["bfloat16"]
    assert space["hopeless"] == ["bfloat16"]
    assert "Not raced: bfloat16. A frame takes 1 s, 10.0 times plain's time." in capsys.readouterr().out


def test_page_08_films_what_fits(clock):
    pane = {"total": types.SimpleNamespace(median=0.3)}
    space = {"panes": ["a"], "split": {"a": pane}, "frames": list(range(60)), "names": {}}
    space |= {"live": types.SimpleNamespace(progress=lambda items, what: items), "time": Timer(clock)}
    space |= {
        "detect": lambda rival, frame: clock.after(0.3, []),
        "rivals": {"a": types.SimpleNamespace(place=Place())},
    }
    space |= {"boxes": types.SimpleNamespace(draw=lambda *_: "picture")}
    film = lambda panes, frames, on, baseline: [panes["a"](frame) for frame in frames]
    space |= {"video": types.SimpleNamespace(film=film), "functools": functools, "plain": "a"}
    run("08", clock, space, "film-run")
    assert len(space["shots"]) == len(space["filmed"]) == 30
    assert "30 of 60 frames of the film (300 ms each)" in str(space["within"])


class Place:
    simulated, active = False, contextlib.nullcontext


class Timer:
    def __init__(self, clock):
        self.perf_counter = clock


class Same:
    def __init__(self, dtype):
        self.at_the_edge = lambda expected, found: 0

    def __call__(self, expected, found):
        assert len(expected) == len(found)
