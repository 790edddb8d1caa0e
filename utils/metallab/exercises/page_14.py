"""The exercises of page 14."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import torch

from metallab import isolated
from metallab.device import PyTorchDevice
from metallab.exercises.judging import Open, Right, exercise, expect, expect_that
from metallab.pytorch import trace

FIVE = 5
"""So many operators are named."""
ENOUGH = 0.9
"""The part of the time of the five longest that those named have to take."""
COUNTS = (1, 6)
"""How many characters a loop is asked for."""

Loop = Callable[[Any, torch.Tensor, int], Any]
"""Takes a model, tokens and how many are to be added; returns all tokens."""


@exercise(
    "14.1",
    hint="add up duration by short name over step.events, without those whose kind is view",
)
def judge_five(five: Any, step: trace.Trace) -> Right | Open | isolated.Skipped:
    """Compare the five operators that were named with those that take the longest in the traced step.

    They are right if they take `ENOUGH` of the time of the five longest, and else *open*, since times are this
    machine's. Names that the step does not have, or has of views alone, which compute nothing, are wrong.
    """
    is_five = isinstance(five, list | tuple) and len(five) == FIVE
    if not is_five or not all(isinstance(name, str) for name in five):
        raise AssertionError(f"five is {five!r}, expected five names, each a text such as 'mul'")
    if len(set(five)) < FIVE:
        raise AssertionError(f"five is {five!r}, expected five different names")

    seconds = add_up(event for event in step.events if event.kind != "view")
    for name in five:
        if name not in seconds:
            raise AssertionError(
                f"the step has no operator {name!r} but views; the table shows them"
            )
    if step.simulated:
        return isolated.Skipped("The simulated GPU has no times of its own.")

    longest = list(seconds)[:FIVE]
    share = sum(seconds[name] for name in five) / sum(seconds[name] for name in longest)
    told = f"the longest are {', '.join(longest)}; yours take {share:.0%} of their time"
    if share < ENOUGH:
        missed = next(name for name in longest if name not in five)
        return Open(f"{told}. Why is {missed} so long: how often is it called, and on what?")
    return Right(f"{told}.")


def add_up(events: Iterable[trace.Event]) -> dict[str, float]:
    """Return the seconds of each operator, all its calls together, by its short name; the longest first."""
    seconds: dict[str, float] = collections.defaultdict(float)
    for event in events:
        seconds[event.short] += event.duration
    return dict(sorted(seconds.items(), key=lambda item: item[1], reverse=True))


@exercise(
    "14.2",
    hint="which of the three lines need the scores on the CPU? scatter takes the last three tokens as they are",
)
def judge_loop(
    stay_on_device: Loop, as_found: Loop, model: Any, tokens: torch.Tensor, on: PyTorchDevice
) -> bool:
    """Compare the tokens with those of the loop as found, and count the copies of a trace.

    Parameters
    ----------
    stay_on_device
        The learner's loop.
    as_found
        The loop that copies.
    model, tokens
        What both are given, on the device.
    on
        A GPU, be it simulated, on which copies are seen.
    """
    for count in COUNTS:
        case = f"stay_on_device(model, tokens, {count})"
        wanted = as_found(model, tokens, count)
        with trace.record(on=on) as recorded:
            got = stay_on_device(model, tokens, count)

        expect_that(isinstance(got, torch.Tensor), case, got, "a tensor of tokens")
        expect(f"{case}, as shape,", tuple(got.shape), tuple(wanted.shape))
        is_same = torch.equal(got.cpu(), wanted.cpu())
        expect(f"{case}, as tokens,", got[0].tolist(), wanted[0].tolist(), holds=is_same)

        copies = recorded.having("copy", "fallback")
        assert not copies, f"{case} returns the right tokens, and copies {len(copies)} times"
    return True
