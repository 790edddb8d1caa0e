"""Does a network that is trained in another way learn as well? Compared seed by seed, by a test that can fail.

Lessons train one network several times in several number formats, each time from the same seeds (`Training`);
`compare` tests whether one is worse than the other, and `advice` puts that beside the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from metallab import mode, timing, units
from metallab.allowance import Allowance
from metallab.timing import Ratio, median_interval

Run = tuple[Sequence[float], float]
"""One training: the mean loss of each epoch, and the share of the test that is recognised at the end."""


@dataclass(frozen=True)
class Training:
    """Runs of one network in one dtype, one for each seed."""

    name: str
    losses: np.ndarray
    """Mean training loss, (seeds, epochs)."""
    accuracies: np.ndarray
    """Share of the test recognised at the end, (seeds,)."""

    @classmethod
    def of(cls, name: str, runs: Iterable[Run]) -> Training:
        """From one run for each seed."""
        losses, accuracies = zip(*runs, strict=True)
        return cls(name, np.array(losses), np.array(accuracies))

    def __str__(self) -> str:
        each = self.accuracies
        spread = f"median of {_seeds(len(each))}, {each.min():.1%} to {each.max():.1%}"
        return f"{self.name}: {np.median(each):.1%} recognised ({spread})"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Trainings:
    """Trainings of several kinds from the same seeds, by name, and what was left out for time."""

    runs: Mapping[str, Training]
    left_out: str

    def __getitem__(self, name: str) -> Training:
        return self.runs[name]

    @property
    def losses(self) -> dict[str, np.ndarray]:
        """Mean training loss of each kind, (seeds, epochs), for `metallab.plots.losses`."""
        return {name: training.losses for name, training in self.runs.items()}

    def __repr__(self) -> str:
        return units.lines(*self.runs.values(), self.left_out)


def assert_trainable(examples: int, *, seeds: int, epochs: int, batch: int) -> None:
    """ValueError for less than one seed, epoch or batch, and for fewer ``examples`` than a batch."""
    for name, count in {"seeds": seeds, "epochs": epochs, "batch": batch}.items():
        if count < 1:
            raise ValueError(f"{name} is {count}: a training needs at least 1")
    if examples < batch:
        raise ValueError(f"{examples} pictures do not fill a batch of {batch}: take a smaller batch")


def train_in_turns(
    kinds: Iterable[str],
    train: Callable[[str, int], Run],
    *,
    seeds: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Trainings:
    """``train(kind, seed)`` of each kind from the first seed, then of each from the next, while there is time.

    So the kinds have the same seeds, however fast the machine is: the first in any case, and another one if what the
    last took still fits into ``seconds``; in fast mode two at most.
    """
    within = Allowance(seconds, clock)
    runs: dict[str, list[Run]] = {kind: [] for kind in kinds}
    for seed in within.items(range(mode.by_mode(full=seeds, fast=min(seeds, 2))), "seeds numbered"):
        for kind, of_kind in runs.items():
            of_kind.append(train(kind, seed))
    return Trainings({kind: Training.of(kind, of_kind) for kind, of_kind in runs.items()}, str(within))


Conclusion = Literal["no loss", "loss", "inconclusive"]


@dataclass(frozen=True)
class Quality:
    """Test accuracy against the reference's, seed by seed. Differences are in points: pictures in a hundred."""

    name: str
    median: float
    """Of the differences; below 0 is worse."""
    low: float
    high: float
    """The exact interval of that median, `metallab.timing.median_interval`, at 95 %."""
    margin: float
    seeds: int
    doubt: str = ""
    """Why nothing can be concluded, whatever the interval."""

    @property
    def conclusion(self) -> Conclusion:
        """``no loss`` if all of the interval is above minus the margin, ``loss`` if all of it is below."""
        if self.doubt:
            return "inconclusive"
        if self.low > -self.margin:
            return "no loss"
        return "loss" if self.high < -self.margin else "inconclusive"

    def __str__(self) -> str:
        margin = f"{self.margin:g} point{'s' if self.margin != 1 else ''}"
        sentence = f"{self.name}: {self.conclusion} of more than {margin}"
        if self.conclusion == "inconclusive":
            sentence = f"{self.name}: inconclusive ({self.doubt or f'a loss of {margin} lies in the interval'})"
        interval = f", 95 % interval {self.low:+.1f} to {self.high:+.1f}" if math.isfinite(self.low) else ""
        return f"{sentence}: median difference {self.median:+.1f} points{interval}, {_seeds(self.seeds)}"


def compare(reference: Training, candidate: Training, margin: float = 1.0, least: float = 0.7) -> Quality:
    """Is ``candidate`` worse than ``reference`` by more than ``margin`` points? A test of non-inferiority.

    Runs with the same seed are paired. ``no loss`` has to be shown: the whole interval of the median difference lies
    above minus the margin; six seeds at least are needed for one. A reference that recognises less than ``least`` of
    the test allows no conclusion: two networks that learned nothing are equally good. The idea: Piaggio and others,
    *Reporting of Noninferiority and Equivalence Randomized Trials*, JAMA 2012. ValueError for unlike seeds.
    """
    if len(reference.accuracies) != len(candidate.accuracies):
        raise ValueError(
            f"{candidate.name} has {len(candidate.accuracies)} seeds, {reference.name} {len(reference.accuracies)}"
        )
    points = 100 * (candidate.accuracies - reference.accuracies)
    low, high = median_interval(points)
    doubt = ""
    if not math.isfinite(high):
        low, high, doubt = -math.inf, math.inf, f"an interval needs {_seeds(timing.FEWEST_PAIRS)}"
    elif (reached := float(np.median(reference.accuracies))) < least:
        doubt = f"{reference.name} itself recognises only {reached:.0%}"
    return Quality(candidate.name, float(np.median(points)), low, high, margin, len(points), doubt)


def advice(ratio: Ratio | None, quality: Quality) -> str:
    """What to do with a dtype on this device, in words: ``ratio`` is its speed-up over float32, None if withheld.

    >>> advice(speed.ratios.get("bfloat16"), compare(trained["float32"], trained["bfloat16"]))
    'bfloat16 costs time: float32 is the better choice here'
    """
    name = quality.name
    if quality.conclusion == "loss":
        return f"do not use {name}: quality is lost"
    if ratio is None:
        return f"no advice on {name}: its time may not be compared"
    verdict = ratio.side or ratio.verdict
    if verdict == "faster":
        doubt = "" if quality.conclusion == "no loss" else ", but that quality holds is not shown"
        return f"use {name}: it is faster{doubt}"
    time_ = {"slower": "costs time", "same": "is no faster"}.get(verdict, "is not shown to be faster")
    return f"{name} {time_}: float32 is the better choice here"
