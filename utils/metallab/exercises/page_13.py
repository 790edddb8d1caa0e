"""The exercises of page 13."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch

from metallab import isolated, mode, timing
from metallab.exercises.judging import exercise, expect, expect_that, is_near
from metallab.exercises.predictions import judge_formula
from metallab.judgement import Judgement
from metallab.roofline import Bench, Work

CpuSeconds = Callable[[float, float, float, float, float], Any]
"""Of bytes, overhead, rate in the cache, rate outside, and size of the cache."""

VERDICTS = ("slower", "not faster", "inconclusive", "unsure", "faster", "faster")


@exercise(
    "13.1",
    hint="count what is read and what is written; then do the same without new memory",
)
def judge_relu(
    relu_seconds: Callable[[Any, torch.Tensor], Any],
    because: Any,
    without_it: Callable[[torch.Tensor, torch.Tensor], Any],
    bench: Bench,
    x: torch.Tensor,
) -> Judgement | isolated.Skipped:
    """Measure ``torch.relu(x)``, and the experiment that is to explain where the formula fails.

    `judge_formula` says when the formula or the experiment is right, and when the answer is *open*.
    """
    seconds = relu_seconds(bench.machine, x)
    is_time = isinstance(seconds, int | float) and 0 < seconds < math.inf
    expect_that(is_time, "relu_seconds(machine, x)", seconds, "seconds, a number above 0")

    # the experiment gets a copy, which it may write over: that needs no new memory either
    given, result = x.clone(), torch.empty_like(x)
    is_tried = _try_experiment(lambda: without_it(given, result), wanted=torch.relu(x))
    instead = (lambda: without_it(given, result)) if is_tried else None

    def measure(call: Callable[[], Any]) -> tuple[float, Any]:
        work = Work(x.numel(), 2 * x.nbytes)
        reading = bench.measure(call, work, "exercise", _choose_budget())
        return reading.measurement.median, call()

    # after the answers are checked, which needs no clock
    if bench.on.simulated:
        return isolated.Skipped("The simulated GPU has no times of its own.")
    return judge_formula(
        "13.1", seconds, lambda: torch.relu(x), because=because, instead=instead, measure=measure
    )


def _try_experiment(experiment: Callable[[], Any], wanted: torch.Tensor) -> bool:
    """Return whether there is an experiment: not if it returns ``...``.

    AssertionError if it returns anything else than what is wanted.
    """
    got = experiment()
    if got is ...:
        return False

    is_same = isinstance(got, torch.Tensor) and torch.equal(wanted, got)
    expect_that(is_same, "without_it(x, result)", got, "the numbers of torch.relu(x)")
    return True


def _choose_budget() -> timing.Budget:
    """Return a second, since a page has a minute."""
    return mode.by_mode(full=timing.Budget(max_seconds=1.0), fast=timing.FAST)


@exercise("13.2", hint="overhead + bytes / rate, with the rate of the place where the bytes lie")
def judge_two_rates(cpu_seconds: CpuSeconds) -> bool:
    """Ask for bytes on both sides of the cache's size."""
    overhead, cached, uncached, cache = 3e-6, 200e9, 20e9, 1e6
    for moved in (0.0, 1e3, 1e6, 1.1e6, 64e6):
        got = cpu_seconds(moved, overhead, cached, uncached, cache)
        wanted = overhead + moved / (cached if moved <= cache else uncached)
        case = f"cpu_seconds({moved:g}, 3e-6, 200e9, 20e9, 1e6)"
        expect(case, got, wanted, holds=is_near(got, wanted, absolute=0.0))
    return True


def _draw_verdicts(seed: int) -> list[tuple[int, str]]:
    """Return up to six sizes with verdicts; the last ones are often faster."""
    draw = random.Random(seed)
    sizes = sorted({draw.randint(0, 9) for _ in range(draw.randint(0, 6))})
    verdicts = [(size, draw.choice(VERDICTS)) for size in sizes]
    won = draw.randint(0, len(sizes))
    return verdicts[:won] + [(size, "faster") for size in sizes[won:]]


@exercise(
    "13.3",
    hint="one lucky win in the middle does not count, and unsure is no win",
)
def judge_first_win(first_win: Callable[..., Any]) -> bool:
    """Ask for the first size from which on all are won, in sixty series."""
    for verdicts in map(_draw_verdicts, range(60)):
        lost = [size for size, verdict in verdicts if verdict != "faster"]
        wins = [size for size, _ in verdicts if not lost or size > lost[-1]]
        given = list(verdicts)
        expect(f"first_win({verdicts})", first_win(given), min(wins, default=None))
        assert given == verdicts, f"of {verdicts} it leaves {given}"
    return True
