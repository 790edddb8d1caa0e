"""The exercises of page 01."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from metallab.exercises.judging import Open, exercise, expect, expect_that, is_near
from metallab.fake_device import FakeDevice

KERNEL = 0.008
"""Seconds that a kernel takes on the planted device."""


def _call(honest_latency: Callable[..., Any], kernel: float) -> tuple[Any, list[str]]:
    """Return what the answer says of a kernel that takes so long, and what it did."""
    log: list[str] = []
    with FakeDevice() as device:
        device.launch(10 * KERNEL)  # left over from somebody else

        def launch() -> None:
            log.append("launch")
            device.launch(kernel)

        def wait() -> None:
            log.append("wait")
            device.synchronize()

        return honest_latency(launch, wait), log


@exercise(
    "01.1",
    hint="one launch; wait before the first reading and before the second",
)
def judge_honest_latency(honest_latency: Callable[..., Any]) -> bool | Open:
    """Time kernels whose times are planted, on a device that is still busy; that all are late is this machine's."""
    kernels = [times * KERNEL for times in (0, 4, 6, 5, 7)]
    calls = [_call(honest_latency, kernel) for kernel in kernels]

    for got, log in calls:
        is_once = log.count("launch") == 1 and log[0] == log[-1] == "wait"
        assert is_once, f"it does {log}, and should wait, launch once and wait"
        is_number = isinstance(got, float | int)
        expect_that(is_number, "honest_latency(launch, synchronize)", got, "seconds")

    answers = [got for got, _ in calls]
    is_rounded = all(seconds == round(seconds, 3) for seconds in answers)
    assert not is_rounded, "it is rounded to milliseconds: a call may take less"

    late = [seconds - kernel for seconds, kernel in zip(answers, kernels, strict=True)]
    for seconds, kernel, off in zip(answers, kernels, late, strict=True):
        expect_that(off >= 0, f"for a kernel of {kernel:g} s it", seconds, "no shorter time")
    # a busy machine disturbs one call, but hardly all of them
    least = min(late[1:])
    if least >= 3 * KERNEL:
        return Open(
            f"Each time is {least:.3f} s longer than its kernel, or more. Another program may be busy: run it again."
        )
    return True


def _drift(seed: int) -> tuple[list[float], list[float], float]:
    """Return times with a known speed-up; fewer than half of the rounds are disturbed."""
    draw = random.Random(seed)
    count, truth = draw.randint(3, 20), draw.uniform(0.5, 2)
    slow = [8 * 1.1**k * draw.uniform(0.999, 1.001) for k in range(count)]
    times = [truth * seconds for seconds in slow], slow

    rounds = sorted(range(count), key=lambda _: draw.random())
    for k in rounds[: (count - 1) // 2]:
        draw.choice(times)[k] *= draw.uniform(3, 9)
    return *times, truth


@exercise(
    "01.2",
    hint="pair the rounds first, then take the median",
)
def judge_speed_up(speed_up: Callable[..., Any]) -> bool:
    """Ask for the speed-up of rounds that drift, of which some are disturbed."""
    baseline = [10.0, 11.0, 12.1, 13.3, 14.6, 16.1, 17.7, 90.0]
    variant = [8.0, 60.0, 9.7, 10.6, 11.7, 12.9, 14.2, 15.6]
    cases = [(baseline, variant, 1.25), *map(_drift, range(30))]

    for one, other, truth in cases:
        got = speed_up(list(one), list(other))
        near = is_near(got, truth, relative=0.005)
        expect(f"speed_up of {len(one)} rounds", got, truth, holds=near)
    return True
