"""What was measured: the samples of one function's time on one device, and what speaks against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from metallab import units
from metallab.fields import (
    Amount,
    Cores,
    Count,
    Dtype,
    Kind,
    Line,
    Name,
    Positive,
    Samples,
    Seconds,
)
from metallab.mode import Mode

Question = Literal["latency", "throughput"]
"""``latency``: how long one call takes whose result is waited for. ``throughput``: how long each of many takes that are
waited for together."""

BUSY = 0.25
"""Cores used by other programs above which a measurement is flagged, and no speed-up is given (`why_withheld`).

A comparison then also takes a stretch of its rounds again (`rounds`), and exercise 01.3 is not judged. Page 01 and the
teacher's documents say the number; a test compares them."""

FEW_SAMPLES = 10
"""Fewer are flagged in full mode."""

NOISY, UNRELIABLE = 0.10, 0.25
"""Interquartile range over median, from which on a measurement is flagged.

It is flagged only, and withholds nothing: the pairs of one round vary together, and a speed-up has an interval of its
own, which is wide where they do not. `metallab.fitness` finds a machine above `UNRELIABLE` unfit for measuring."""


@dataclass(frozen=True)
class Size:
    """How much work it was: ``Size(512, "rows and columns")``."""

    number: Amount
    unit: Line = ""
    """What is counted, in words; empty if the name of the comparison says it."""


@dataclass(frozen=True)
class Measurement:
    """Samples of one function's time on one device, in seconds per call; `print` it for a summary in words.

    `measure` and `compare` make them with `metallab.timing.sampler.Sampler.measurement`; `metallab.launches` and
    `metallab.versus.report`, which start processes, make them themselves. They are saved with each field under its
    name, so a new field needs a default and a type of `metallab.fields`. The default is what a file that was written
    before says, and what those two modules say that leave the field out.
    """

    name: Name
    """For people; never parsed."""
    question: Question
    samples: Samples
    """Seconds a call, in the order in which they were taken."""
    first_call: Seconds
    """The very first call, which may compile and allocate; not among the samples."""
    block: Positive
    """Calls in one sample: 1 for latency."""
    warmup_calls: Count
    stop_reason: Line
    """What ended the measurement, in words."""
    mode: Mode
    """``full`` or ``fast``, which takes too few samples for a conclusion."""
    device: Name
    """The hardware's name: the device's label."""
    simulated: bool
    """True if it worked on the simulated GPU: the times say nothing about any hardware."""
    others: Cores = 0.0
    """CPU cores that other programs used meanwhile; 0 if it was too short to know."""
    kind: Kind = "cpu"
    """PyTorch's name of the device: ``cpu``, ``mps``, ``cuda``; ``mps`` for the simulated Apple GPU."""
    threads: Positive | None = None
    """Of a CPU, if it was set."""
    dtype: Dtype | None = None
    """The number format of the work."""
    size: Size | None = None
    """The amount of work, in a series of measurements that differ in it."""
    cold: bool = False
    """True if the device's caches were cleared before each sample."""

    def __post_init__(self) -> None:
        # whatever is said of times of the simulated GPU says that they are
        if self.simulated:
            marked = tuple(map(units.SimulatedNumber, self.samples))
            object.__setattr__(self, "samples", marked)
            object.__setattr__(self, "first_call", units.SimulatedNumber(self.first_call))

    @property
    def question_in_words(self) -> str:
        """The question, and that caches were cold where they were."""
        return f"{self.question} with cold caches" if self.cold else self.question

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.samples)

    @property
    def median(self) -> float:
        """Seconds a call."""
        return self.percentile(50)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Seconds a call: a quarter of the samples are below the first, a quarter above the second."""
        return self.percentile(25), self.percentile(75)

    def percentile(self, percent: float) -> float:
        """Return a percentile of the samples, in seconds a call.

        Parameters
        ----------
        percent
            From 0, for the shortest, to 100, for the longest; interpolated linearly.

        Returns
        -------
        float
            Of the simulated GPU a `units.SimulatedNumber`, whose text says so.
        """
        value = float(np.percentile(self.samples, percent))
        return units.SimulatedNumber(value) if self.simulated else value

    @property
    def noise(self) -> float:
        """Interquartile range over median, without unit."""
        return noise(self.samples)

    @property
    def is_busy(self) -> bool:
        """True if other programs used the machine meanwhile."""
        return self.others > BUSY

    @property
    def varies(self) -> bool:
        """True if the samples vary by more than `NOISY`, which is told and withholds nothing."""
        return self.noise > NOISY

    @property
    def flags(self) -> tuple[str, ...]:
        """What speaks against the number, for people; `why_withheld` decides."""
        flags = []
        if self.noise > UNRELIABLE:
            flags.append("unreliable")
        elif self.varies:
            flags.append("noisy")

        if self.mode == "fast":
            flags.append("fast mode")
        elif self.n < FEW_SAMPLES:
            flags.append("few samples")

        if self.is_busy:
            flags.append("busy machine")
        if self.simulated:
            flags.append("simulated")
        return tuple(flags)

    def __str__(self) -> str:
        # plain numbers, since the flags say what they are
        low, median, high = (float(self.percentile(percent)) for percent in (25, 50, 75))

        details = [
            f"quartiles {units.seconds(low)} to {units.seconds(high)}",
            f"{self.n} samples",
            f"first call {units.seconds(float(self.first_call))}",
        ]
        if self.block > 1:
            details.insert(2, f"each of {self.block} calls")

        text = (
            f"{self.name}: {units.seconds(median)} a call, {self.question_in_words}, on {self.device} "
            f"({', '.join(details)})"
        )
        if self.flags:
            text += f" [{', '.join(self.flags)}]"
        return text


def noise(samples: Sequence[float]) -> float:
    """Return how far samples spread: their interquartile range over their median, without unit.

    Parameters
    ----------
    samples
        Times, all in the same unit; at least one.
    """
    low, median, high = np.percentile(samples, (25, 50, 75))
    return float((high - low) / median)
