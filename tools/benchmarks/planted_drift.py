"""Is a speed-up ever taken from two speeds of a machine, and is one given where there is none?

    python tools/benchmarks/planted_drift.py [--count 50] [--same 300]

On this machine's CPU, at rest, a function is compared with itself under a clock that begins to run faster:

- **A step**: amid the rounds everything takes 30 % longer, or just more than the threshold of a drift, and stays so.
  The rounds that count must all be of one side of the step, or the speed-up must be withheld.
- **No end**: everything takes 30 % longer, or just more than the threshold, again and again. It must be withheld.
- **Nothing**: how many of ``--same`` comparisons are called faster or slower?

A step of another sign that the machine itself makes at the same moment can hide a planted one; so the speed of the
sentinel in all of these comparisons is printed, too. Shares stand with their exact (Clopper-Pearson) 95 % intervals.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import binomtest

from metallab import device, timing
from metallab.timing import DRIFT

JUST_ABOVE = DRIFT + 0.02
"""A sentinel's own noise is below 2 % on a machine at rest."""

AMID_ROUNDS = 0.7
"""Seconds after the first call: rounds are being taken by then, and some must still come."""

EVERY = 0.35
"""Seconds between the steps of a drift without end: less than a stretch of rounds."""

STEPS = 8
"""After so many of them the speed is the first one again, so that calls do not become endless."""


class PlantedClock:
    """The real clock, which runs faster at times: by ``factor(seconds that it has shown)``.

    Times at the usual speed are even numbers of nanoseconds, and others are odd, so that a sample tells its side.
    """

    def __init__(self, factor: Callable[[float], float]) -> None:
        self.factor = factor
        self.last = time.perf_counter_ns()
        self.shown = 0
        self.is_odd = False

    def __call__(self) -> int:
        """Return what the clock shows, in nanoseconds."""
        now = time.perf_counter_ns()
        factor = self.factor(self.shown / 1e9)
        self.shown += round((now - self.last) * factor)
        self.last = now
        # a sample is the difference of two readings: at another speed they are odd and even by turns
        self.is_odd = factor != 1 and not self.is_odd
        return self.shown // 2 * 2 + self.is_odd


def step(drift: float) -> Callable[[float], float]:
    """Return the factor of a clock with one step amid the rounds."""
    return lambda seconds: 1.0 if seconds < AMID_ROUNDS else 1 + drift


def without_end(drift: float) -> Callable[[float], float]:
    """Return the factor of a clock that never settles."""
    return lambda seconds: (1 + drift) ** (int(seconds / EVERY) % STEPS)


def compare(factor: Callable[[float], float]) -> timing.Comparison:
    """Compare a small function with itself under a planted clock."""
    numbers = torch.rand(200_000)

    def work() -> torch.Tensor:
        return numbers.sqrt().sum()

    return timing.compare(
        {"one": work, "other": work},
        on=device.cpu(),
        baseline="one",
        parity=timing.Unchecked("the same function twice"),
        clock=PlantedClock(factor),
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a comparison of a function with itself under a planted clock."""

    is_given: bool
    """Whether there is a speed-up."""
    sides: int
    """Of a step, 1 or 2: those of which its rounds are."""
    words: str
    """Why there is no speed-up, or else the verdict."""

    def __str__(self) -> str:
        if not self.is_given:
            return f"withheld, {self.words}"
        return f"given from {self.sides} side{'s' if self.sides == 2 else ''}, {self.words}"


def judge(compared: timing.Comparison) -> Outcome:
    """Return what became of a comparison."""
    answer = compared.answers["other"]
    # the planted clock shows an odd number of nanoseconds at its other speed
    sides = {round(seconds * 1e9) % 2 for seconds in compared["one"].samples}
    return Outcome(answer.reason is None, len(sides), str(answer.reason or answer.outcome))


def share(count: int, of: int) -> str:
    """Return so many of so many with the exact interval of the share."""
    ends = binomtest(count, of).proportion_ci(method="exact")
    return f"{count} of {of} ({ends.low:.0%} to {ends.high:.0%})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how often a speed-up was right, and how often one was given where there is none."""
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/planted_drift.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--count", type=int, default=50, help="comparisons with each drift (default: %(default)s)"
    )
    parser.add_argument(
        "--same", type=int, default=300, help="comparisons without one (default: %(default)s)"
    )
    given = parser.parse_args(arguments)

    for drift in (0.30, JUST_ABOVE):
        found = [judge(compare(step(drift))) for _ in range(given.count)]
        wrong = sum(each.is_given and each.sides == 2 for each in found)
        show(f"{drift:.0%} planted, step", found, wrong)

    for drift in (0.30, JUST_ABOVE):
        found = [judge(compare(without_end(drift))) for _ in range(given.count)]
        show(f"{drift:.0%} planted, without end", found, sum(each.is_given for each in found))

    compared = [compare(run_on_time) for _ in range(given.same)]
    outcomes = Counter(each.answers["other"].outcome for each in compared)
    wrong = outcomes["faster"] + outcomes["slower"]
    print(f"nothing planted: {share(wrong, given.same)} get a speed-up; {dict(outcomes)}")
    moved = [abs(watch.drift) for each in compared for watch in each.sentinels]
    print(f"the largest change of speed in rounds that count: {max(moved):.0%}")


def run_on_time(_: float) -> float:
    """Return the factor of the real clock."""
    return 1.0


def show(title: str, found: Sequence[Outcome], wrong: int) -> None:
    """Print how many comparisons were right, and what became of all."""
    right = share(len(found) - wrong, len(found))
    print(f"{title}: {right} are right; {dict(Counter(map(str, found)))}", flush=True)


if __name__ == "__main__":
    main()
