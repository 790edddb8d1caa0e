"""The exercises of page 60."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect, is_near

SQUARE, EMPTY, SMALL = (0, 0, 2, 2), (1, 1, 1, 1), (0.5, 0.5, 0.5003, 0.5004)


@exercise(
    "60.1",
    hint="what is shared has no negative width or height; empty boxes: no 0 / 0",
)
def judge_iou(iou: Callable[..., Any]) -> bool:
    """Ask about boxes that overlap, touch, lie apart, and are empty, in both orders."""
    cases = [
        (SQUARE, (1, 0, 3, 2), 1 / 3),
        (SQUARE, (0, 0, 1, 1), 1 / 4),
        (SQUARE, (5, 0, 7, 2), 0),
        (SQUARE, (0, 5, 2, 7), 0),
        (SQUARE, (2, 0, 4, 2), 0),  # they touch
        ((1.5, 2, 4.5, 3), (0.5, 1, 2, 3), 1 / 11),
        ((0, 0, 1, 1), (5, 5, 7, 7), 0),
        ((-20, -10, 20, 10), (-10, 0, 50, 20), 3 / 17),
        (SMALL, SMALL, 1),
        (SQUARE, EMPTY, 0),
        (EMPTY, EMPTY, 0),
    ]

    for one, two, wanted in cases:
        for a, b in ((one, two), (two, one)):
            got = iou(a, b)
            near = is_near(got, wanted, relative=0, absolute=1e-6)
            expect(f"iou({a}, {b})", got, wanted, holds=near)
    return True


@exercise(
    "60.2",
    hint="three frames in 1.2 s are 2.5; a mean of their rates is not a rate of anything",
)
def judge_frame_rate(frame_rate: Callable[..., Any]) -> bool:
    """Ask for the rates of logs, which hold the seconds of each frame: frames over all seconds, no mean of rates."""
    logs: list[tuple[list[float], float]] = [
        ([0.1, 0.1, 1.0], 2.5),  # the mean of the rates is 7
        ([30.0], 1 / 30),  # less than one a second: not rounded to 0
        ([0.25, 0.5, 0.125, 0.125, 1.0], 2.5),  # 4 by the median
        ([0.0625] * 8, 16),  # less than a second in all
        ([3.0, 0.1, 0.1], 0.9375),  # the slow one first
    ]

    for log, wanted in logs:
        seconds = list(log)
        got = frame_rate(seconds)
        near = is_near(got, wanted, relative=0)
        expect(f"frame_rate({log})", got, wanted, holds=near)
        assert seconds == log, f"only {seconds} is left of the log"
    return True
