"""An allowance: what fits is done, what does not is left out and said. Time is a clock that the tests turn."""

from __future__ import annotations

import math

import pytest

from metallab import allowance, timing

FULL = timing.Budget(min_seconds=0.5, max_seconds=8.0, min_samples=7)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def go_through(items, clock, *, seconds=None) -> list:
    """Return the items that were done, each of which takes some time: as many seconds as it says, if not told."""
    done = []
    for item in items:
        clock.now += item if seconds is None else seconds
        done.append(item)
    return done


# --- what is left ---


@pytest.mark.parametrize(
    ("later", "left"),
    [pytest.param(5, 15, id="a part is spent"), pytest.param(55, 0, id="more than all is spent")],
)
def test_time_is_counted_from_the_making_on(clock, later, left):
    part = allowance.Allowance(20, clock)
    clock.now += later
    assert part.left == left


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_an_allowance_of_no_time_is_refused(seconds):
    with pytest.raises(ValueError, match="more than 0"):
        allowance.Allowance(seconds)


# --- so many steps ---


@pytest.mark.parametrize(
    ("each", "count"), [pytest.param(0.01, 200, id="quick"), pytest.param(0.4, 50, id="slow")]
)
def test_as_many_steps_are_taken_as_there_is_time_for(clock, each, count):
    assert allowance.Allowance(20, clock).count("steps", each=each, wanted=200) == count


def test_nothing_that_was_left_out_is_said_as_well(clock):
    part = allowance.Allowance(20, clock)
    part.count("steps", each=0.01, wanted=200)
    assert str(part) == "Nothing was left out for time."


def test_steps_left_out_are_listed_with_their_cost(clock):
    part = allowance.Allowance(20, clock)
    part.count("steps", each=0.4, wanted=200)
    clock.now += 19
    part.count("films", each=3.0, wanted=1)

    assert str(part) == (
        "Left out for time (20 s for this part): 150 of 200 steps (400 ms each); 1 of 1 films (3 s each)."
    )


@pytest.mark.parametrize("each", [0.0, math.nan, math.inf])
def test_a_step_without_a_time_is_named(clock, each):
    with pytest.raises(ValueError, match=r"steps: .* measure one first"):
        allowance.Allowance(20, clock).count("steps", each=each, wanted=2)


# --- one item after the other ---


def test_items_go_on_while_one_more_fits(clock):
    part = allowance.Allowance(20, clock)
    done = go_through(part.items([1, 2, 4, 8, 16], "batches of"), clock)
    assert done == [1, 2, 4, 8], "after 15 s there are 5 left, and one more is taken to need 8"
    assert part.left_out == ["batches of 16 (the last one, 8, took 8 s)"]


def test_items_that_fit_are_all_done(clock):
    assert list(allowance.Allowance(9, clock).items("ab")) == ["a", "b"]


def test_the_first_items_are_done_in_any_case(clock):
    part = allowance.Allowance(1, clock)
    assert go_through(part.items("abc", least=2), clock, seconds=9) == ["a", "b"]


# --- budgets of comparisons ---


@pytest.mark.parametrize(
    ("comparisons", "variants", "seconds"),
    [
        pytest.param(1, 1, 8.0, id="one, which has enough"),
        pytest.param(10, 1, 2.0, id="ten"),
        pytest.param(2, 5, 2.0, id="two of five variants"),
    ],
)
def test_comparisons_share_what_is_left(clock, comparisons, variants, seconds):
    part = allowance.Allowance(20, clock)
    assert part.budget(comparisons, FULL, variants=variants).max_seconds == seconds


def test_a_comparison_with_enough_time_has_the_full_budget(clock):
    assert allowance.Allowance(20, clock).budget(full=FULL) == FULL


def test_a_share_below_the_least_time_of_a_budget_is_that_time(clock):
    share = allowance.Allowance(2, clock).budget(10, FULL)
    assert share == timing.Budget(min_seconds=0.2, max_seconds=0.2, min_samples=7)


def test_no_comparisons_to_come_share_as_one_does(clock):
    assert allowance.Allowance(2, clock).budget(0, FULL).max_seconds == 2.0


def test_where_no_time_is_left_a_comparison_has_the_shortest(clock):
    part = allowance.Allowance(20, clock)
    clock.now += 27
    assert part.budget(1, FULL).max_seconds == timing.SHORTEST


@pytest.mark.parametrize(
    ("mode", "usual"),
    [
        pytest.param("full", timing.FULL_COMPARISON, id="full"),
        pytest.param("fast", timing.FAST, id="fast"),
    ],
)
def test_a_budget_is_by_itself_that_of_the_mode(clock, monkeypatch, mode, usual):
    monkeypatch.setenv("METALLAB_MODE", mode)
    budget = allowance.Allowance(2, clock).budget(4)
    assert budget.min_samples == usual.min_samples
    assert budget.max_samples == usual.max_samples


# --- a sweep on a page ---


def test_a_sweep_leaves_out_what_there_is_no_time_for_and_says_it(clock, capsys):
    sweep = timing.within(20, [64, 256, 1024], "sizes", clock=clock)
    assert go_through(sweep, clock, seconds=15) == [64]
    assert "sizes 256, 1024 (the last one, 64, took 15 s)" in capsys.readouterr().out


def test_a_sweep_does_the_least_in_any_case(clock):
    sweep = timing.within(1, [1, 2, 3], least=2, clock=clock)
    assert go_through(sweep, clock, seconds=15) == [1, 2]


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


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [
        pytest.param(1, 0.5, 1, id="to a second"),
        pytest.param(0.1, 0.1, 0.1, id="below its least"),
        pytest.param(1e-9, timing.SHORTEST, timing.SHORTEST, id="below the shortest"),
    ],
)
def test_a_shorter_budget_never_falls_below_the_shortest(seconds, least, most):
    shorter = timing.shorten(timing.Budget(min_seconds=0.5, max_seconds=4), seconds)
    assert shorter.min_seconds == least
    assert shorter.max_seconds == most
