"""Conclusions from times that were measured side by side: a speed-up with its interval, or why there is none.

`metallab.timing` measures, and has every name of this module as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

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
from metallab.outcomes import Verdict

ParityCheck = Callable[[Any, Any], Any]
"""Raises AssertionError, or returns False, where outputs differ."""

Question = Literal["latency", "throughput"]
DoubtKind = Literal[
    "outputs differ",
    "simulated",
    "fast mode",
    "busy machine",
    "drifted",
    "inconclusive",
    "too few frames",
]

BUSY = 0.25
"""Cores used by other programs from which on a measurement is flagged."""

DRIFT = 0.10
"""How far a machine's speed may move during a run, in either direction."""

FEWEST_PAIRS = 6
"""Fewer give a median no interval at 95 % (`median_interval`)."""

MATTERS = 0.01
"""Differences below 1 % are reported as ``same``."""

FEW_SAMPLES = 10
"""Fewer are flagged in full mode."""

WORDS = {
    "faster": "is {times} times as fast{as_baseline}",
    "slower": "takes {times} times as long{as_baseline}",
    "same": "is as fast{as_baseline}, within {percent}",
    "inconclusive": "inconclusive, {words} ({times} times as fast, {note})",
    "may be both": "it may be slower or faster",
    "may be faster": "it may be faster, or as fast within {percent}",
    "may be slower": "it may be slower, or as fast within {percent}",
    "interval": "95 % interval {ends}, {pairs}",
    "too few": "{pairs}{seen}: too few for a 95 % interval, which needs {fewest}",
    "seen": ", {ends} times as fast",
    "too few, in short": "inconclusive: {pairs}; an interval needs {fewest}",
    "withheld": "no speed-up is given",
    "withheld, in short": "no speed-up",
    "not counted": "no speed-up is given at n = {sizes}",
    "simulated": "its times are not those of the hardware it imitates",
    "fast mode": "too few samples for a conclusion",
    "busy machine": "other programs used {others:.1f} cores meanwhile: close them and run again",
    "drifted": "a fixed computation took {change} time afterwards than before: let the machine rest and run again",
    "unknown": "no reason is given",
}
"""**The words for a speed-up, and for its absence**, wherever one is shown: `Answer`, `Ratio` and `Doubt` say them."""


@dataclass(frozen=True)
class Size:
    """How much work it was: ``Size(512, "rows and columns")``."""

    number: Amount
    unit: Line = ""


@dataclass(frozen=True)
class Measurement:
    """Samples of one function's time on one device, in seconds per call.

    A new field needs a default and a type of `metallab.fields`.
    """

    name: Name
    """For people; never parsed."""
    question: Question
    samples: Samples
    first_call: Seconds
    """The very first call, which may compile and allocate; not among the samples."""
    block: Positive
    """Calls in one sample: 1 for latency."""
    warmup_calls: Count
    stop_reason: Line
    mode: Mode
    device: Name
    """The hardware's name: the device's label."""
    simulated: bool
    others: Cores = 0.0
    """CPU cores that other programs used meanwhile; 0 if it was too short to know."""
    kind: Kind = "cpu"
    """PyTorch's name of the device: ``cpu``, ``mps``, ``cuda``; ``mps`` for the simulated Apple GPU."""
    threads: Positive | None = None
    """Of a CPU, if it was set."""
    dtype: Dtype | None = None
    """The number format of the work."""
    size: Size | None = None

    @property
    def n(self) -> int:
        """The number of samples."""
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
        """Reasons to doubt the number."""
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
    """The reason why there is no speed-up, as a text; empty if there is none."""

    kind: str | None
    """None for a reason of a kind of its own."""
    reason: str

    def __new__(cls, kind: str | None = None, reason: str = "") -> Doubt:
        doubt = super().__new__(cls, ": ".join(filter(None, (kind, reason))))
        doubt.kind, doubt.reason = kind, reason
        return doubt

    def __getnewargs__(self) -> tuple[str | None, str]:
        return self.kind, self.reason

    @property
    def words(self) -> str:
        """That there is no speed-up, and why: for a sentence."""
        return self and f"{WORDS['withheld']}: {self}"

    @property
    def short(self) -> str:
        """The same for a label, with the kind of the reason alone."""
        return self and f"{WORDS['withheld, in short']}: {self.kind or self.reason}"

    @property
    def passes(self) -> bool:
        """True if another run may be without it: the machine was busy, or its speed drifted."""
        return self.kind in ("busy machine", "drifted")


SIMULATED = Doubt("simulated", WORDS["simulated"])
FAST_MODE = Doubt("fast mode", WORDS["fast mode"])


def doubt(*measured: Measurement, drift: float | None = None) -> Doubt:
    """Return why nothing may be concluded from measurements; empty if there is no reason.

    **The one rule** of what pages, pictures, films and the report withhold, besides outputs that differ. ``drift`` is
    that of a sentinel around them.
    """
    if any(each.simulated for each in measured):
        return SIMULATED
    if any(each.mode != "full" for each in measured):
        return FAST_MODE
    if (others := max((each.others for each in measured), default=0.0)) > BUSY:
        return Doubt("busy machine", WORDS["busy machine"].format(others=others))
    if drift is not None and abs(drift) > DRIFT:
        change = f"{abs(drift):.0%} {'more' if drift > 0 else 'less'}"
        return Doubt("drifted", WORDS["drifted"].format(change=change))
    return Doubt()


def verdict(low: float, high: float, factor: float = 1 + MATTERS) -> Verdict:
    """Return the verdict of a 95 % interval of a speed-up.

    ``faster`` or ``slower`` if all of it is beyond ``factor``, in either direction, ``same`` if all of it is within.
    """
    if low > factor:
        return "faster"
    if high < 1 / factor:
        return "slower"
    return "same" if low >= 1 / factor and high <= factor else "inconclusive"


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a median: two order statistics of independent values, whatever the distribution.

    The number of samples below the true median is binomial(n, 1/2), so the k-th smallest and the k-th largest of n
    enclose it with probability 1 - 2 P(X < k). k is the largest with at least ``confidence``. Fewer than six values
    give none at 95 %, and (0, inf). Source: David and Nagaraja, *Order Statistics*, section 7.1.
    """
    n, k, tail = len(values), 0, 0.0
    while k < n // 2:
        tail += math.exp(
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
        )
        if 1 - 2 * tail < confidence:
            break
        k += 1
    if k == 0:
        return 0.0, math.inf
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k]


def crossover(won: Mapping[float, bool | None]) -> float | None:
    """Return the smallest size from which all larger ones are won; None if the largest is not.

    Sizes whose value is None are ignored: `not_counted` names them.
    """
    lost = [size for size, wins in won.items() if wins is False]
    return min(
        (size for size, wins in won.items() if wins and size > max(lost, default=-1)), default=None
    )


def not_counted(won: Mapping[float, bool | None]) -> str:
    """Return a note for a `crossover` on the sizes without a verdict.

    >>> not_counted({256: True, 512: None, 1024: True})
    ' (no speed-up is given at n = 512)'
    """
    sizes = [f"{size:.15g}" for size, wins in won.items() if wins is None]
    return f" ({WORDS['not counted'].format(sizes=', '.join(sizes))})" if sizes else ""


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
    """The paired ratios, if known."""
    factor: float = 1 + MATTERS
    """See `verdict`."""
    PAIRS: ClassVar[tuple[str, str]] = ("pair", "pairs")
    FEWEST: ClassVar[int] = FEWEST_PAIRS
    DIGITS: ClassVar[int] = 2
    """Of a number in words, behind the point."""

    @classmethod
    def of(
        cls, variant: str, baseline: str, times: Sequence[float], baseline_times: Sequence[float]
    ) -> Ratio:
        """Return the speed-up of times that are paired by position."""
        paired = tuple(theirs / ours for ours, theirs in zip(times, baseline_times, strict=True))
        return cls(
            variant,
            baseline,
            float(np.median(paired)),
            *median_interval(paired),
            len(paired),
            paired,
        )

    @property
    def verdict(self) -> Verdict:
        """See `verdict`."""
        return verdict(self.low, self.high, self.factor)

    @property
    def has_interval(self) -> bool:
        """False if the pairs are too few for one."""
        return math.isfinite(self.high)

    @property
    def short(self) -> str:
        """For a label: the verdict, or what it lacks."""
        return self.verdict if self.has_interval else self._said("too few, in short")

    @property
    def ends(self) -> str:
        """Those of the interval: of times as long where that is said."""
        ends = (1 / self.high, 1 / self.low) if self.verdict == "slower" else (self.low, self.high)
        return " to ".join(units.times(end, self.DIGITS) for end in ends)

    def words(self, as_baseline: str = "") -> str:
        """Return what it says of the variant, such as ``is 1.30 times as fast``, or what it leaves open."""
        key, slower, faster = self.verdict, self.low < 1 / self.factor, self.high > self.factor
        if not self.has_interval:
            pairs = dict.fromkeys(
                units.times(end, self.DIGITS) for end in sorted(self.pairs)[:: max(1, self.n - 1)]
            )
            return self._said(
                "too few", seen=self._said("seen", ends=" to ".join(pairs)) if pairs else ""
            )
        if key == "inconclusive":
            key = (
                "may be both"
                if slower and faster
                else "may be faster"
                if faster
                else "may be slower"
            )
        return self._said(key, as_baseline=as_baseline)

    def sentence(self, note: str = "") -> str:
        """Return it in words; ``note`` says what it was taken from, in place of the interval."""
        note, against = (
            note or self._said("interval", ends=self.ends),
            f"{self.variant} against {self.baseline}: ",
        )
        if not self.has_interval:
            return against + self.words()
        if self.verdict == "inconclusive":
            return against + self._said("inconclusive", words=self.words(), note=note)
        return f"{self.variant} {self.words(f' as {self.baseline}')} ({note})"

    def _said(self, key: str, **more: str) -> str:
        times = units.times(1 / self.median if key == "slower" else self.median, self.DIGITS)
        pairs, percent = f"{self.n} {self.PAIRS[self.n != 1]}", f"{100 * (self.factor - 1):.3g}%"
        return WORDS[key].format(
            times=times, pairs=pairs, percent=percent, fewest=self.FEWEST, **more
        )

    def __str__(self) -> str:
        return self.sentence()


@dataclass(frozen=True)
class Answer:
    """A variant's speed-up over the baseline, or why there is none: ``str`` is a sentence, ``short`` a label.

    Whatever shows a speed-up or its absence prints one of these texts, which `WORDS` has, and none of its own.
    """

    variant: str
    ratio: Ratio | None
    """None where it is withheld."""
    doubt: Doubt = field(default_factory=Doubt)

    @property
    def outcome(self) -> Verdict:
        """The verdict; ``withheld`` where there is a `doubt`."""
        return self.ratio.verdict if self.ratio else "withheld"

    @property
    def short(self) -> str:
        """The verdict, or that there is no speed-up and the kind of reason."""
        return (self.ratio or self.doubt).short

    def __str__(self) -> str:
        return str(self.ratio or f"{self.variant}: {self.doubt.words}")


@dataclass(frozen=True)
class Unchecked:
    """A parity check that accepts anything, with the reason: ``Unchecked("the same function twice")``."""

    reason: str

    def __call__(self, reference: Any, result: Any) -> None:
        """Accept anything."""

    def __str__(self) -> str:
        return f"outputs not compared: {self.reason}"


def describe_check(parity: ParityCheck) -> str:
    """Return the description of a parity check: its text, or the name of a function."""
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
    if answer is None or bool(answer == True):  # noqa: E712 - a text or an error's size is truthy, too
        return ""
    return f"the check returned {answer!r}"


@dataclass
class Sentinel:
    """A fixed computation timed before and after a run; if it drifted, speed-ups in between are withheld."""

    watching: ClassVar[list[Sentinel]] = []
    """The sentinels with open ``with`` blocks."""
    before: Measurement
    after: Measurement | None = None

    @property
    def drift(self) -> float:
        """Relative change of the computation's time: 0.1 is 10 % longer."""
        if self.after is None:
            raise RuntimeError(
                "the sentinel measures again when its `with` block ends: ask for speed-ups after it"
            )
        return self.after.median / self.before.median - 1

    @property
    def throttled(self) -> bool:
        """True if the time moved by more than 10 %; never in fast mode."""
        return self.before.mode == "full" and abs(self.drift) > DRIFT

    def __str__(self) -> str:
        in_between = (
            doubt(drift=self.drift).short if self.before.mode == "full" else FAST_MODE.short
        )
        return f"sentinel on {self.before.device}: {self.drift:+.1%} ({in_between or 'steady'})"


@dataclass(frozen=True)
class Comparison:
    """Variants measured side by side, and the conclusions about each against the baseline."""

    name: str
    question: Question
    baseline: str
    measurements: Mapping[str, Measurement]
    paired: Mapping[str, Ratio]
    """Ratios of real variants with equal outputs; `ratios` are those that may be shown."""
    refused: Mapping[str, Doubt] = field(default_factory=dict)
    """Variants whose times were not compared, and why."""
    parity: str = ""
    """The check of the first and last outputs."""
    watches: tuple[Sentinel, ...] = ()
    """The sentinels around it."""
    series: str = ""
    """The name of comparisons that differ in size only: ``matrix product, n``."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """What a variant is on any machine, such as ``GPU, float16``."""

    def __getitem__(self, variant: str) -> Measurement:
        return self.measurements[variant]

    @property
    def drift(self) -> float | None:
        """The largest drift of a sentinel around it, or None. RuntimeError while a sentinel's block is open."""
        return max((watch.drift for watch in self.watches), key=abs, default=None)

    @property
    def answers(self) -> dict[str, Answer]:
        """For each variant the speed-up, or why it is withheld."""
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
        restless = any(
            {"noisy", "unreliable"}.intersection(m.flags) for m in self.measurements.values()
        )
        aside = "(Times vary; a speed-up is of pairs taken in one round, which vary together.)"
        lines = [
            *map(str, self.measurements.values()),
            *self.sentences,
            *[aside] * bool(restless and self.ratios),
        ]
        return "\n".join([head, *(f"  {line}" for line in lines)])


def compare_samples(
    measurements: Mapping[str, Measurement], *, baseline: str, name: str, parity: str
) -> Comparison:
    """Return a comparison of samples that were taken elsewhere and are paired by position.

    ``parity`` describes how outputs were compared before. ValueError for different numbers of samples.
    """
    base = measurements[baseline]
    if len({measured.n for measured in measurements.values()}) > 1:
        raise ValueError(
            f"{name}: samples are paired, so each variant needs as many as {baseline}, {base.n}"
        )
    return Comparison(
        name=name,
        question=base.question,
        baseline=baseline,
        measurements=dict(measurements),
        paired={
            key: Ratio.of(key, baseline, measured.samples, base.samples)
            for key, measured in measurements.items()
            if key != baseline and not (measured.simulated or base.simulated)
        },
        parity=parity,
        watches=tuple(Sentinel.watching),
    )
