"""The exercises of page 14."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from metallab.exercises.judging import exercise, expect, expect_that

NAMES = ("linear", "sort", "_to_copy", "relu")
LANES = ("mps", "copies", "CPU", "")


class Event(NamedTuple):
    """What an operator did, as the page's trace has it."""

    name: str
    lane: str
    duration: float


def _draw_events(seed: int) -> list[Event]:
    """Return up to 12 events; an operator may be in several lanes."""
    draw = random.Random(seed)
    events = [Event("sort", "CPU", 0.008)]
    for _ in range(draw.randint(0, 11)):
        seconds = draw.uniform(0, 0.02)
        events.append(Event(draw.choice(NAMES), draw.choice(LANES), seconds))
    return events


@exercise(
    "14.1",
    hint="add up by name first; what runs on the GPU does not keep it waiting",
)
def judge_culprit(culprit: Callable[..., Any]) -> bool:
    """Ask who kept the GPU waiting, in a hundred traces."""
    for events in map(_draw_events, range(100)):
        waited = dict.fromkeys(NAMES, 0.0)  # milliseconds
        for name, lane, seconds in events:
            if lane in ("copies", "CPU"):
                waited[name] += 1000 * seconds

        told = ", ".join(f"{waited[name]:.1f} ms for {name}" for name in NAMES)
        wanted = max(NAMES, key=lambda name: waited[name])
        expect(f"the GPU waited {told}: culprit", culprit(list(events)), wanted)
    return True


@exercise(
    "14.2",
    hint="2 for the copies, 4 for the fallbacks, and which one for the time?",
)
def judge_log_setting(log_setting: Callable[..., Any]) -> bool:
    """Ask for the number, and do not tell the right one."""
    number = log_setting()
    expect_that(isinstance(number, int), "log_setting()", number, "a whole number")
    assert number == 134, f"log_setting() returned {number}, which logs something else"
    return True
