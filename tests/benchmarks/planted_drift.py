"""Is a speed-up withheld where the speed of the machine changes, and none given where there is none?

    python tests/benchmarks/planted_drift.py [--count 50] [--same 300]

On this machine's CPU, at rest: while a comparison takes its rounds, its clock begins to run faster, so that everything
takes 30 % longer, or just more than the threshold of a drift. How many of ``--count`` comparisons each are withheld?
Then a function is compared with itself ``--same`` times: how many of those that are not withheld are called faster or
slower? The shares stand with their exact (Clopper-Pearson) 95 % intervals.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import torch
from scipy.stats import binomtest

from metallab import device, timing
from metallab.verdicts import DRIFT

JUST_ABOVE = DRIFT + 0.02
"""A sentinel's own noise is below 2 %."""


AMID_ROUNDS = 0.9
"""Seconds after the first call of a variant: a sentinel has been timed by then, and the rounds take a second more."""


class PlantedClock:
    """The real clock, which runs faster from some time after `begin` on."""

    def __init__(self, drift: float) -> None:
        self.factor = 1 + drift
        self.planted_at: int | None = None

    def begin(self) -> None:
        """Call it as often as you like: the first time counts."""
        if self.planted_at is None:
            self.planted_at = time.perf_counter_ns() + round(AMID_ROUNDS * 1e9)

    def __call__(self) -> int:
        now = time.perf_counter_ns()
        if self.planted_at is None or now < self.planted_at:
            return now
        return self.planted_at + round((now - self.planted_at) * self.factor)


def compare(drift: float = 0.0) -> timing.Answer:
    """Compare a small function with itself; amid its rounds the machine seems to become slower by ``drift``."""
    on = device.cpu()
    clock = PlantedClock(drift)
    numbers = torch.rand(200_000)

    def one() -> torch.Tensor:
        clock.begin()
        return numbers.sqrt().sum()

    def other() -> torch.Tensor:
        return numbers.sqrt().sum()

    compared = timing.compare(
        {"one": one, "other": other},
        on=on,
        baseline="one",
        parity=timing.Unchecked("the same function twice"),
        clock=clock,
    )
    return compared.answers["other"]


def share(count: int, of: int) -> str:
    """Return so many of so many with the exact interval of the share."""
    ends = binomtest(count, of).proportion_ci(method="exact")
    return f"{count} of {of} ({ends.low:.0%} to {ends.high:.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--same", type=int, default=300)
    given = parser.parse_args()

    for drift in (0.30, JUST_ABOVE):
        reasons = Counter(compare(drift).reason for _ in range(given.count))
        withheld = reasons[timing.Reason.DRIFTED]
        busy = reasons[timing.Reason.BUSY_MACHINE]
        print(
            f"{drift:.0%} planted: {share(withheld, given.count)} withheld as drifted, "
            f"{busy} as busy",
            flush=True,
        )

    outcomes = Counter(compare().outcome for _ in range(given.same))
    wrong = outcomes["faster"] + outcomes["slower"]
    print(f"nothing planted: {share(wrong, given.same)} get a speed-up; {dict(outcomes)}")


if __name__ == "__main__":
    main()
