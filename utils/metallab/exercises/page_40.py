"""The exercises of page 40."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect


@exercise(
    "40.1",
    hint="read the clock before and after each stage, and subtract",
)
def judge_split(split: Callable[..., Any]) -> bool:
    """Give it stages that move a planted clock, and compare the seconds of each.

    It has to run them in their order, each once, and to leave the dict of stages as it is.
    """
    planted = {"import": 2.0, "read": 0.0, "load": 0.03125, "first call": 5.0}
    now, called = [100.0], []

    def run_stage(name: str) -> None:
        called.append(name)
        now[0] += planted[name]

    stages = {name: functools.partial(run_stage, name) for name in planted}
    seconds = split(stages, lambda: now[0])

    assert called == list(planted), f"called were {called}, expected {list(planted)}"
    assert list(stages) == called, f"only {list(stages)} is left in `stages`"
    expect("split(stages, clock)", seconds, planted)
    return True


@exercise(
    "40.2",
    hint="9 s behind, 0.25 gained each time: ahead after 37; a tie is not ahead",
)
def judge_pays_after(pays_after: Callable[..., Any]) -> bool:
    """Ask about pairs of which one is ahead at once, later, or never."""
    cases = [
        ((1, 0.5), (10, 0.25), 37),
        ((1, 0.5), (1.2, 0.25), 1),
        ((2, 0.5), (1, 0.25), 0),
        ((2, 0.5), (1, 0.75), 0),
        ((1, 0.5), (1, 0.25), 1),  # the first answers come equally soon
        ((1, 0.5), (1, 0.5), None),
        ((1, 0.5), (2, 0.5), None),
        ((1, 0.5), (2, 0.75), None),
        ((1, 0.5), (2.75, 0.25), 8),
        ((1, 2), (4.97, 1), 4),
        ((1, 0.5), (3000001, 0.25), 12000001),
    ]

    for early, quick, wanted in cases:
        got = pays_after(early, quick)
        is_whole = str(got) == str(wanted)  # 37.0 is no whole number
        expect(f"pays_after({early}, {quick})", got, wanted, holds=is_whole)
    return True
