"""What may be said of times that were measured side by side: a speed-up with its interval, or why there is none.

`metallab.timing` measures, and offers every name of this module as its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from metallab import units
from metallab.fields import Amount, Cores, Count, Dtype, Kind, Line, Name, Positive, Samples, Seconds
from metallab.mode import Mode

ParityCheck = Callable[[Any, Any], Any]
"""Raises AssertionError where outputs differ. It may return True or False as well, as `np.allclose` does."""

Question = Literal["latency", "throughput"]
Verdict = Literal["faster", "slower", "same", "inconclusive"]
DoubtKind = Literal[
    "outputs differ", "simulated", "fast mode", "busy machine", "drifted", "inconclusive", "too few frames"
]

BUSY = 0.25
"""Cores that other programs may use before a measurement is flagged."""

DRIFT = 0.10
"""How far a machine's speed may move during a run, in either direction."""

FEWEST_PAIRS = 6
"""Fewer give a median no interval at 95 % (`median_interval`)."""

MATTERS = 0.01
"""A difference below 1 % is real on a quiet machine and negligible."""

FEW_SAMPLES = 10
"""A measurement in full mode has as many at least, unless its calls are slow."""


@dataclass(frozen=True)
class Size:
    """How much work it was: ``Size(512, "rows and columns")``."""

    number: Amount
    unit: Line = ""


@dataclass(frozen=True)
class Measurement:
    """Samples of one function's time on one device. All times are seconds per call.

    A new field needs a default and a type of `metallab.fields`, and is then written, checked and read back.
    """

    name: Name
    """For people: nothing is ever read out of it."""
    question: Question
    samples: Samples
    first_call: Seconds
    """The very first call, which may compile, allocate and fill caches; never among the samples."""
    block: Positive
    """Calls in one sample: 1 for latency."""
    warmup_calls: Count
    stop_reason: Line
    mode: Mode
    device: Name
    """The hardware's name: the device's label."""
    simulated: bool
    others: Cores = 0.0
    """How many CPU cores other programs kept busy meanwhile; 0 where it was too short to tell."""
    kind: Kind = "cpu"
    """What computed, as PyTorch names it: ``cpu``, ``mps``, ``cuda``; the simulated Apple GPU is an ``mps``, too."""
    threads: Positive | None = None
    """Of a CPU: how many threads it was given, where that was set."""
    dtype: Dtype | None = None
    """The number format of the work, where one was named."""
    size: Size | None = None

    @property
    def n(self) -> int:
        """How many samples were kept."""
        return len(self.samples)

    @property
    def median(self) -> float:
        return self.percentile(50)

    @property
    def quartiles(self) -> tuple[float, float]:
        return self.percentile(25), self.percentile(75)

    def percentile(self, percent: float) -> float:
        """A percentile of the samples, interpolated linearly."""
        return float(np.percentile(self.samples, percent))

    @property
    def noise(self) -> float:
        """Interquartile range over median, without unit."""
        return noise(self.samples)

    @property
    def flags(self) -> tuple[str, ...]:
        """What a reader must know before trusting the number."""
        flags = []
        if self.noise > 0.25:
            flags.append("unreliable")
        elif self.noise > 0.10:
            flags.append("noisy")
        if self.mode == "fast":
            flags.append("fast mode")
        elif self.n < FEW_SAMPLES:
            flags.append("few samples")
        if self.others > BUSY:
            flags.append("busy machine")
        if self.simulated:
            flags.append("simulated")
        return tuple(flags)

    def __str__(self) -> str:
        low, high = self.quartiles
        text = (
            f"{self.name}: {units.seconds(self.median)} a call, {self.question}, on {self.device} "
            f"(quartiles {units.seconds(low)} to {units.seconds(high)}, {self.n} samples"
            f"{f', each of {self.block} calls' if self.block > 1 else ''}, first call {units.seconds(self.first_call)})"
        )
        return text + (f" [{', '.join(self.flags)}]" if self.flags else "")


def noise(samples: Sequence[float]) -> float:
    """Return the interquartile range over the median."""
    low, median, high = np.percentile(samples, (25, 50, 75))
    return float((high - low) / median)


class Doubt(str):
    """Why nothing may be concluded: kind and reason as one text; empty, and so false, if nothing speaks against it."""

    kind: DoubtKind | None
    """None for a reason of a kind of its own."""
    reason: str

    def __new__(cls, kind: DoubtKind | None = None, reason: str = "") -> Doubt:
        doubt = super().__new__(cls, ": ".join(filter(None, (kind, reason))))
        doubt.kind, doubt.reason = kind, reason
        return doubt

    def __getnewargs__(self) -> tuple[DoubtKind | None, str]:
        return self.kind, self.reason

    @property
    def short(self) -> str:
        """The kind alone, or the reason of one without a kind."""
        return self.kind or self.reason

    @property
    def passes(self) -> bool:
        """True if another run may well be without it: the machine was busy, or its speed drifted."""
        return self.kind in ("busy machine", "drifted")


SIMULATED = Doubt("simulated", "its times are not those of the hardware it imitates")


def doubt(*measured: Measurement, drift: float | None = None) -> Doubt:
    """Return why nothing may be concluded from measurements that belong together; empty if nothing speaks against it.

    **The one rule** of what pages, pictures, films and the report withhold, besides outputs that differ.

    Parameters
    ----------
    *measured
        The measurements.
    drift
        That of a sentinel around them, if there was one.
    """
    if any(each.simulated for each in measured):
        return SIMULATED
    if any(each.mode != "full" for each in measured):
        return Doubt("fast mode", "a look whether it runs, and no conclusion")
    if (others := max((each.others for each in measured), default=0.0)) > BUSY:
        return Doubt("busy machine", f"other programs used {others:.1f} cores meanwhile: close them and run again")
    if drift is not None and abs(drift) > DRIFT:
        change = f"{abs(drift):.0%} {'more' if drift > 0 else 'less'} time"
        reason = f"a fixed computation took {change} afterwards than before: let the machine rest and run again"
        return Doubt("drifted", reason)
    return Doubt()


def verdict(low: float, high: float) -> Verdict:
    """Return what a 95 % interval of a speed-up shows.

    ``faster`` or ``slower`` if all of it lies beyond 1 by more than 1 %, ``same`` if all of it lies within 1 %, and
    ``inconclusive`` otherwise: more or quieter samples are needed.
    """
    if low > 1 + MATTERS:
        return "faster"
    if high < 1 / (1 + MATTERS):
        return "slower"
    return "same" if low >= 1 / (1 + MATTERS) and high <= 1 + MATTERS else "inconclusive"


def undecided(low: float, high: float) -> str:
    """Return in words what an inconclusive interval leaves open."""
    if low < 1 / (1 + MATTERS) and high > 1 + MATTERS:
        return "it may be slower or faster"
    return f"it may be {'faster' if high > 1 + MATTERS else 'slower'}, or as fast within {MATTERS:.0%}"


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a median: two order statistics of independent values, whatever the distribution.

    The number of samples below the true median is binomial(n, 1/2), so the k-th smallest and the k-th largest of n
    enclose it with probability 1 - 2 P(X < k). k is the largest with at least ``confidence``. Fewer than six values
    give no such interval at 95 %: the result is then (0, inf). Source: any text on order statistics, e.g. David and
    Nagaraja, *Order Statistics*, section 7.1.
    """
    n, k, tail = len(values), 0, 0.0
    while k < n // 2:
        tail += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
        if 1 - 2 * tail < confidence:
            break
        k += 1
    if k == 0:
        return 0.0, math.inf
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k]


def crossover(won: Mapping[float, bool | None]) -> float | None:
    """Return the smallest size from which all larger ones are won; None if the largest is not.

    Sizes without a verdict are None, and are not counted: `not_counted` names them.
    """
    lost = [size for size, wins in won.items() if wins is False]
    return min((size for size, wins in won.items() if wins and size > max(lost, default=-1)), default=None)


def not_counted(won: Mapping[float, bool | None]) -> str:
    """Return a note for a `crossover`: the sizes without a verdict, in brackets; empty if there are none.

    >>> not_counted({256: True, 512: None, 1024: True})
    ' (nothing may be said of n = 512)'
    """
    sizes = [f"{size:.15g}" for size, wins in won.items() if wins is None]
    return f" (nothing may be said of n = {', '.join(sizes)})" if sizes else ""


@dataclass(frozen=True)
class Ratio:
    """A variant's speed-up over the baseline: the median of paired ratios with its exact 95 % interval."""

    variant: str
    baseline: str
    median: float
    low: float
    high: float
    n: int
    pairs: tuple[float, ...] = field(default=(), repr=False)
    """The paired ratios themselves, where they are known."""
    comparison: str = ""
    """The name of its comparison."""

    @classmethod
    def of(
        cls, name: str, variant: str, baseline: str, times: Sequence[float], baseline_times: Sequence[float]
    ) -> Ratio:
        """Return the speed-up that the times of a comparison give, of which those at one place belong together."""
        paired = tuple(theirs / ours for ours, theirs in zip(times, baseline_times, strict=True))
        return cls(variant, baseline, float(np.median(paired)), *median_interval(paired), len(paired), paired, name)

    @property
    def verdict(self) -> Verdict:
        """See `verdict`."""
        return verdict(self.low, self.high)

    @property
    def side(self) -> Literal["faster", "slower", ""]:
        """What all pairs show where they are too few for an interval; empty otherwise."""
        if math.isfinite(self.high) or not self.pairs or min(self.pairs) <= 1 <= max(self.pairs):
            return ""
        return "faster" if min(self.pairs) > 1 else "slower"

    @property
    def what_pairs_showed(self) -> str:
        """What the pairs showed where they are too few for an interval."""
        pairs = f"{self.n} pair{'s' * (self.n != 1)}"
        if self.pairs:
            slower = self.side == "slower"
            ends = sorted(1 / pair if slower else pair for pair in self.pairs)
            span = " to ".join(dict.fromkeys(map(units.times, (ends[0], ends[-1]))))
            pairs += f", {span} times as {'long' if slower else 'fast'}"
        return f"{pairs}: too few for a 95 % interval, which needs {FEWEST_PAIRS}"

    def __str__(self) -> str:
        if not math.isfinite(self.high):
            return f"{self.variant} against {self.baseline}: {self.what_pairs_showed}"
        ends = (self.low, self.median, self.high)
        if self.verdict == "slower":
            ends = [1 / end for end in reversed(ends)]
        low, median, high = map(units.times, ends)
        said = {
            "faster": f"{self.variant} is {median} times as fast as {self.baseline} (",
            "slower": f"{self.variant} takes {median} times as long as {self.baseline} (",
            "same": f"{self.variant} is as fast as {self.baseline}, within {MATTERS:.0%} (",
            "inconclusive": f"{self.variant} against {self.baseline}: inconclusive, {undecided(self.low, self.high)} "
            f"({median} times as fast, ",
        }
        return f"{said[self.verdict]}95 % interval {low} to {high}, {self.n} pairs)"


@dataclass(frozen=True)
class Answer:
    """A variant's speed-up over the baseline, or why there is none; as a text, a sentence."""

    variant: str
    ratio: Ratio | None
    """None where no speed-up may be given."""
    doubt: Doubt

    @property
    def outcome(self) -> Verdict | Literal["withheld"]:
        """The verdict, or ``withheld``."""
        return self.ratio.verdict if self.ratio else "withheld"

    def __str__(self) -> str:
        return str(self.ratio or f"{self.variant}: no speed-up is given: {self.doubt}")


@dataclass(frozen=True)
class Unchecked:
    """A parity check that checks nothing, and says why that is right: ``Unchecked("the same function twice")``."""

    reason: str

    def __call__(self, reference: Any, result: Any) -> None:
        """Accept anything."""

    def __str__(self) -> str:
        return f"outputs not compared: {self.reason}"


def describe_check(parity: ParityCheck) -> str:
    """Return what a parity check compares: its own text, or the name of a function."""
    name = getattr(parity, "__name__", "<lambda>")
    if name == "<lambda>" and type(parity).__str__ is not object.__str__:
        return str(parity)
    return f"outputs checked by {'a function of yours' if name == '<lambda>' else name}"


def difference_of(parity: ParityCheck, reference: Any, result: Any) -> str:
    """Return the difference of two results by a parity check; empty if they agree."""
    try:
        answer = parity(reference, result)
    except AssertionError as difference:
        return " ".join(str(difference).split()) or "the check says no more"
    if answer is None or bool(answer == True):  # noqa: E712 - not its truth: a text or an error's size is true, too
        return ""
    return f"the check returned {answer!r}"


@dataclass
class Sentinel:
    """A fixed computation timed before and after a long run: has the machine slowed down meanwhile?

    What was compared in between is given no speed-up if it has, see `doubt`.
    """

    watching: ClassVar[list[Sentinel]] = []
    """Those whose ``with`` blocks are open: a comparison belongs to them."""
    before: Measurement
    after: Measurement | None = None

    @property
    def drift(self) -> float:
        """How much longer the computation took afterwards: 0.1 is 10 % longer."""
        if self.after is None:
            raise RuntimeError(
                "the sentinel's second measurement is made when its `with` block ends: ask for drift, speed-ups and "
                "verdicts then"
            )
        return self.after.median / self.before.median - 1

    @property
    def throttled(self) -> bool:
        """True if the time moved by more than 10 % in either direction; three samples of fast mode cannot tell."""
        return self.before.mode == "full" and abs(self.drift) > DRIFT

    def __str__(self) -> str:
        steady = "steady" if self.before.mode == "full" else "fast mode: too few samples to tell"
        outcome = "DRIFTED: what was measured in between is not compared" if self.throttled else steady
        return f"sentinel on {self.before.device}: {self.drift:+.1%} ({outcome})"


@dataclass(frozen=True)
class Comparison:
    """Variants measured side by side, and what may be said of each against the baseline."""

    name: str
    question: Question
    baseline: str
    measurements: Mapping[str, Measurement]
    paired: Mapping[str, Ratio]
    """What the times of real variants with equal outputs gave. Use `ratios` for what may be shown."""
    refused: Mapping[str, Doubt] = field(default_factory=dict)
    """Variants whose times were not compared, and why: outputs that differ, or a simulated device."""
    parity: str = ""
    """What was checked of the first outputs and of the last ones."""
    watches: tuple[Sentinel, ...] = ()
    """The sentinels in whose ``with`` blocks it was measured."""
    series: str = ""
    """What comparisons that differ in size only have in common, with n for the size: ``matrix product, n``."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """What a variant is on any machine, ``GPU, float16``, where its name has what only this one has."""

    def __getitem__(self, variant: str) -> Measurement:
        return self.measurements[variant]

    @property
    def drift(self) -> float | None:
        """The largest drift that a sentinel around it measured; None without a sentinel.

        RuntimeError as long as the ``with`` block of a sentinel is open, as for all that follows from it.
        """
        return max((watch.drift for watch in self.watches), key=abs, default=None)

    @property
    def answers(self) -> dict[str, Answer]:
        """For each variant the speed-up that may be shown, drawn or averaged, or why there is none."""
        drift, base = self.drift, self.measurements[self.baseline]
        answers = {}
        for variant, measured in self.measurements.items():
            if variant != self.baseline:
                why = self.refused.get(variant) or doubt(base, measured, drift=drift)
                answers[variant] = Answer(variant, None if why else self.paired.get(variant), why)
        return answers

    @property
    def withheld(self) -> dict[str, Doubt]:
        """Variants without a speed-up, and why."""
        return {variant: answer.doubt for variant, answer in self.answers.items() if answer.doubt}

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The speed-ups that are not withheld."""
        return {variant: answer.ratio for variant, answer in self.answers.items() if answer.ratio}

    @property
    def sentences(self) -> list[str]:
        """`answers` in words."""
        return list(map(str, self.answers.values()))

    @property
    def headlines(self) -> list[str]:
        """`sentences`, each behind the comparison's name."""
        return [f"{self.name}: {sentence}" for sentence in self.sentences]

    def __str__(self) -> str:
        head = f"{self.name} ({self.question}, baseline {self.baseline}; {self.parity})"
        restless = any({"noisy", "unreliable"}.intersection(m.flags) for m in self.measurements.values())
        aside = "(Times vary; a speed-up is of pairs taken in one round, which vary together.)"
        lines = [*map(str, self.measurements.values()), *self.sentences, *[aside] * bool(restless and self.ratios)]
        return "\n".join([head, *(f"  {line}" for line in lines)])


def compare_samples(measurements: Mapping[str, Measurement], *, baseline: str, name: str, parity: str) -> Comparison:
    """A comparison of samples that were taken elsewhere, in turns: the n-th of each belong together.

    ``parity`` says what was compared before; outputs that differ have no place here. KeyError if the baseline is not
    among the measurements, ValueError if they have not all the same number of samples.
    """
    base = measurements[baseline]
    if len({measured.n for measured in measurements.values()}) > 1:
        raise ValueError(f"{name}: samples are paired, so each variant needs as many as {baseline}, {base.n}")
    return Comparison(
        name=name,
        question=base.question,
        baseline=baseline,
        measurements=dict(measurements),
        paired={
            key: Ratio.of(name, key, baseline, measured.samples, base.samples)
            for key, measured in measurements.items()
            if key != baseline and not (measured.simulated or base.simulated)
        },
        parity=parity,
        watches=tuple(Sentinel.watching),
    )
