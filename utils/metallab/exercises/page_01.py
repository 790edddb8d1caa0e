"""The exercises of page 01."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from metallab import isolated, timing
from metallab.exercises.judging import (
    Open,
    Right,
    exercise,
    expect,
    expect_that,
    is_near,
    require_attempt,
)
from metallab.fake_device import FakeDevice

KERNEL = 0.008
"""Seconds that a kernel takes on the planted device."""


def _call(honest_latency: Callable[..., Any], kernel: float) -> tuple[Any, list[str]]:
    """Return what the answer says of a kernel of so many seconds on a device that is busy when it begins.

    The second value is what it did, in its order: ``launch`` and ``wait``.
    """
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
    """Ask for the seconds of kernels whose times are planted, on a device that is still busy.

    It has to wait, launch once and wait. No time may be shorter than its kernel, nor may all be rounded. A longer one
    is no mistake, since another program may be the reason; the answer is *open* if all but the first are longer by
    three times `KERNEL`.
    """
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
    # the least, since a busy machine disturbs one call, but hardly all of them
    least = min(late[1:])
    if least >= 3 * KERNEL:
        return Open(
            f"Each time is {least:.3f} s longer than its kernel, or more. Another program may be busy: run it again."
        )
    return True


def _drift(seed: int) -> tuple[list[float], list[float], float]:
    """Return the times of two programs in 3 to 20 rounds, and the speed-up of the second over the first.

    From round to round both get 10 % slower, so that only times of one round may be compared. In fewer than half of the
    rounds one of the two was disturbed, and takes 3 to 9 times as long, which the median of all ratios leaves out.
    """
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
    """Ask for the speed-up, within 0.5 %, of rounds that drift, of which some are disturbed."""
    baseline = [10.0, 11.0, 12.1, 13.3, 14.6, 16.1, 17.7, 90.0]
    variant = [8.0, 60.0, 9.7, 10.6, 11.7, 12.9, 14.2, 15.6]
    cases = [(baseline, variant, 1.25), *map(_drift, range(30))]

    for one, other, truth in cases:
        got = speed_up(list(one), list(other))
        near = is_near(got, truth, relative=0.005)
        expect(f"speed_up of {len(one)} rounds", got, truth, holds=near)
    return True


PAUSE = 0.1
"""Seconds that the program of the third exercise does nothing before each call."""

TURNS = 2
"""How often calls with the pause and calls without it take turns."""

CALLS = 5
"""Calls with the pause in a turn, and as many without."""

CLOSE = 2.0
"""A prediction that is off by this factor at most holds."""

AfterPause = Callable[
    [Callable[[], Any], Callable[[], Any], Callable[[float], None], Callable[[], float]], Any
]
"""Of a call, what waits for the device, what sleeps and what reads the clock: the seconds of one call after a pause."""


class _PlantedWorld:
    """A device with a clock that moves only by its kernels and by sleeping."""

    def __init__(self) -> None:
        self.now, self.busy_until = 100.0, 100.0 + 20 * KERNEL  # left over from somebody else
        self.calls = 0
        self.rest = 0.0
        """Seconds for which the device had nothing to do before the last call."""

    def launch(self) -> None:
        self.calls += 1
        self.rest = max(0.0, self.now - self.busy_until)
        self.busy_until = max(self.now, self.busy_until) + KERNEL

    def synchronize(self) -> None:
        self.now = max(self.now, self.busy_until)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


@exercise("01.3", hint="wait, sleep, read the clock, call, wait, read the clock")
def judge_pause(
    guess: Callable[[], Any],
    time_after_pause: AfterPause,
    call: Callable[[], Any],
    on: timing.DeviceLike,
) -> Right | Open | isolated.Skipped:
    """Ask how many times as long a call takes after a pause, and for a function that times such a call.

    The function is tried on a planted device: it has to let that finish, then sleep, and time one call and no more.
    With it ``call`` is timed on this machine, after pauses and without them. A prediction that is off by a factor of
    `CLOSE` at most is right, and every other *open*, as is one while other programs were busy.
    """
    predicted = guess()
    is_number = isinstance(predicted, int | float) and not isinstance(predicted, bool)
    is_factor = is_number and math.isfinite(predicted) and predicted > 0
    expect_that(is_factor, "guess()", predicted, "a number above 0: 2 is twice as long")

    world = _PlantedWorld()
    # `check` looks for an open ``...`` in its first function alone
    got = require_attempt(
        time_after_pause(world.launch, world.synchronize, world.sleep, world.clock)
    )
    assert world.calls == 1, f"time_after_pause makes {world.calls} calls, and should make one"
    is_right = is_near(got, KERNEL)
    expect(f"time_after_pause of a call of {KERNEL:g} s", got, KERNEL, holds=is_right)
    is_rested = is_near(world.rest, PAUSE)
    expect("the device's rest before the call", world.rest, PAUSE, holds=is_rested)

    if on.simulated:
        return isolated.Skipped("The simulated GPU has no times of its own.")
    with timing.quiet() as load:
        measured = measure_pause(time_after_pause, call, on)
        others = load.cores()
    if others > timing.BUSY:
        return Open(
            f"Other programs used {others:.1f} cores while your calls were timed. Close them and run the check again."
        )
    return _compare_guess(predicted, measured)


def measure_pause(
    time_after_pause: AfterPause, call: Callable[[], Any], on: timing.DeviceLike
) -> float:
    """Return how many times as long a call takes after a pause as in a row, on a device of this machine."""
    paused: list[float] = []
    in_a_row: list[float] = []
    for _ in range(TURNS):  # in turns: whatever slows the machine down slows both
        for sleep, seconds in ((time.sleep, paused), (_return_at_once, in_a_row)):
            for _ in range(CALLS):
                seconds.append(time_after_pause(call, on.synchronize, sleep, time.perf_counter))

    return statistics.median(paused) / statistics.median(in_a_row)


def _return_at_once(seconds: float) -> None:
    """Stand in for a sleep."""


def _compare_guess(predicted: float, measured: float) -> Right | Open:
    """Return whether a prediction holds; that it does not is this machine's affair, and no mistake."""
    said = f"Predicted {predicted:.3g}, measured {measured:.3g} times as long after {PAUSE:g} s."
    if max(predicted / measured, measured / predicted) <= CLOSE:
        return Right(said)
    return Open(
        f"{said} What does the processor do in the pause, and how long does your own pause?"
    )
