"""An allowance: what fits is done, what does not is left out and said. Time is a clock that the tests turn."""

from __future__ import annotations

import math

import pytest

from metallab import allowance, timing


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_time_is_counted_from_the_making_on(clock):
    part = allowance.Allowance(20, clock)
    clock.now += 5
    assert part.left == 15
    clock.now += 50
    assert part.left == 0
    for nothing in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="more than 0"):
            allowance.Allowance(nothing)


def test_slow_steps_are_fewer_and_it_is_said(clock):
    part = allowance.Allowance(20, clock)
    assert part.count("steps", each=0.01, wanted=200) == 200
    assert str(part) == "Nothing was left out for time."
    assert part.count("steps", each=0.4, wanted=200) == 50
    clock.now += 19
    assert part.count("films", each=3.0, wanted=1) == 0
    assert str(part) == (
        "Left out for time (20 s for this part): 150 of 200 steps (400 ms each); 1 of 1 films (3 s each)."
    )
    for no_time in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"steps: .* measure one first"):
            part.count("steps", each=no_time, wanted=2)


def test_items_go_on_while_one_more_fits(clock):
    part, done = allowance.Allowance(20, clock), []
    for size in part.items([1, 2, 4, 8, 16], "batches of"):
        clock.now += size
        done.append(size)
    assert done == [1, 2, 4, 8], "after 15 s there are 5 left, and one more is taken to need 8"
    assert part.left_out == ["batches of 16 (the last one, 8, took 8 s)"]
    assert list(allowance.Allowance(9, clock).items("ab")) == ["a", "b"]


def test_the_first_are_done_in_any_case(clock):
    part, done = allowance.Allowance(1, clock), []
    for item in part.items("abc", least=2):
        clock.now += 9
        done.append(item)
    assert done == ["a", "b"]


def test_comparisons_share_what_is_left(clock, monkeypatch):
    part, full = (
        allowance.Allowance(20, clock),
        timing.Budget(min_seconds=0.5, max_seconds=8.0, min_samples=7),
    )
    assert part.budget(full=full) == full
    assert part.budget(10, full).max_seconds == 2.0
    assert part.budget(2, full, variants=5).max_seconds == 2.0
    clock.now += 18
    assert part.budget(10, full) == timing.Budget(min_seconds=0.2, max_seconds=0.2, min_samples=7)
    assert part.budget(0, full).max_seconds == 2.0
    monkeypatch.setenv("METALLAB_MODE", "full")
    assert part.budget(4).min_samples == timing.FULL_COMPARISON.min_samples
    monkeypatch.setenv("METALLAB_MODE", "fast")
    assert part.budget(4).max_samples == timing.FAST.max_samples
    clock.now += 9
    assert part.budget(1, full).max_seconds == timing.SHORTEST


# --- a sweep on a page ---


def test_a_sweep_leaves_out_what_there_is_no_time_for_and_says_it(clock, capsys):
    done = []
    for size in timing.within(20, [64, 256, 1024], "sizes", clock=clock):
        done.append(size)
        clock.now += 15
    assert done == [64]
    assert "sizes 256, 1024 (the last one, 64, took 15 s)" in capsys.readouterr().out


def test_a_sweep_does_the_least_in_any_case(clock):
    done = []
    for size in timing.within(1, [1, 2, 3], least=2, clock=clock):
        done.append(size)
        clock.now += 15
    assert done == [1, 2]


def test_a_sweep_that_has_time_says_nothing(clock, capsys):
    assert list(timing.within(20, "abc", clock=clock)) == ["a", "b", "c"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_no_time_is_refused_before_anything_is_measured(seconds):
    variants = {"a": lambda: 1, "b": lambda: 1}
    with pytest.raises(ValueError, match="give seconds, more than 0"):
        timing.compare(
            variants, on=timing.Host(), baseline="a", parity=lambda *_: True, seconds=seconds
        )


def test_a_shorter_budget_never_falls_below_the_shortest():
    budget = timing.shorten(timing.Budget(min_seconds=0.5, max_seconds=4), 1)
    assert (budget.min_seconds, budget.max_seconds) == (0.5, 1)
    assert timing.shorten(timing.FULL, 1e-9).max_seconds == timing.SHORTEST
