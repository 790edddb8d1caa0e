"""The exercises of page 61."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import exercise, expect, is_near


@exercise(
    "61.1",
    hint="of the first, 20 ms become 8 ms: only infer gets shorter",
)
def judge_frame_speedup(frame_speedup: Callable[..., Any]) -> bool:
    """Ask about frames of three stages and of five."""
    short = {"prepare": 0.002, "infer": 0.016, "select": 0.002}
    long = {"draw": 0.028, "prepare": 0.004, "transfer": 0.002, "infer": 0.012, "track": 0.002}
    cases = [(short, 4, 2.5), (long, 3, 1.2), (long, 0.5, 0.8), (long, 6, 48 / 38)]

    for stages, factor, wanted in cases:
        seconds = dict(stages)
        got, case = frame_speedup(seconds, factor), f"frame_speedup({stages}, {factor})"
        expect(case, got, wanted, holds=is_near(got, wanted, relative=0))
        assert seconds == stages, f"{case}: `seconds` is changed into {seconds}"
    return True


@exercise(
    "61.2",
    hint="first leave out what is too late; then the most frames a second",
)
def judge_best_batch(best_batch: Callable[..., Any]) -> bool:
    """Ask within several limits, of which one is too short for all."""
    measured = {1: 0.010, 2: 0.012, 4: 0.030, 8: 0.044}  # 8 has the most a second
    slow = {32: 90.0, 3: 5.0, 1: 2.5, 16: 28.0}
    cases: list[tuple[dict[int, float], float, int | None]] = [
        (measured, 1, 8),
        (measured, 0.044, 8),
        (measured, 0.04, 2),
        (measured, 0.029, 2),
        (measured, 0.011, 1),
        (measured, 0.001, None),
        (slow, 100, 3),
        (slow, 4, 1),
        ({3: 9.0, 16: 28.0, 32: 40.0}, 41, 32),
        ({}, 1, None),
        ({1: 0.01, 2: 0.05, 4: 0.02}, 0.03, 4),
    ]

    for times, limit, wanted in cases:
        seconds = dict(times)
        expect(f"best_batch({times}, {limit})", best_batch(seconds, limit), wanted)
        assert seconds == times, f"`seconds` is changed into {seconds}"
    return True


@exercise(
    "61.3",
    hint="add times, not ratios, and divide at the end",
)
def judge_whole_speed_up(whole_speed_up: Callable[..., Any]) -> bool:
    """Ask for the speed-up of several pipelines."""
    cases = [
        ([(0.09, 3.0), (0.01, 0.5)], 2.0),
        ([(0.003, 0.4)], 0.4),
        ([(0.01, 2.0), (0.02, 4.0)], 3.0),
        ([(7.0, 7.0), (1.0, 0.25)], 1.6),
        ([(0.6, 3.0), (0.1, 0.5), (0.4, 1.0)], 1.375),
        ([(0.0, 9.0), (0.3, 1.5), (0.3, 3.0), (0.6, 1.0)], 4 / 3),
    ]

    for stages, wanted in cases:
        given = list(stages)
        got = whole_speed_up(given)
        near = is_near(got, wanted, relative=0, absolute=1e-6)
        expect(f"whole_speed_up({stages})", got, wanted, holds=near)
        assert given == stages, f"of {stages} it leaves {given}"
    return True
