"""Conclusions from times that were measured side by side: a speed-up with its interval, or why there is none.

`metallab.timing` measures, and has every name of this module as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

import numpy as np

from metallab import units, wording
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

NOISY, UNRELIABLE = 0.10, 0.25
"""Interquartile range over median, from which on a measurement is flagged."""


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
    cold: bool = False
    """True if the device's caches were cleared before each sample."""

    def __post_init__(self) -> None:
        if self.simulated:  # then whatever is said of its times says that
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
        return self.percentile(50)

    @property
    def quartiles(self) -> tuple[float, float]:
        return self.percentile(25), self.percentile(75)

    def percentile(self, percent: float) -> float:
        """A percentile of the samples, interpolated linearly; of the simulated GPU a `units.SimulatedNumber`."""
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
        """True if the samples vary by more than 10 %."""
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
        first_call = units.seconds(float(self.first_call))
        text = (
            f"{self.name}: {units.seconds(median)} a call, {self.question_in_words}, on {self.device} "
            f"(quartiles {units.seconds(low)} to {units.seconds(high)}, {self.n} samples"
            f"{f', each of {self.block} calls' if self.block > 1 else ''}, first call {first_call})"
        )
        return text + (f" [{', '.join(self.flags)}]" if self.flags else "")


def noise(samples: Sequence[float]) -> float:
    """Return the interquartile range over the median."""
    low, median, high = np.percentile(samples, (25, 50, 75))
    return float((high - low) / median)


class Reason(StrEnum):
    """Why no speed-up is given. The values stand in files of results."""

    OUTPUTS_DIFFER = "outputs differ"
    SIMULATED = "simulated"
    FAST_MODE = "fast mode"
    BUSY_MACHINE = "busy machine"
    DRIFTED = "drifted"
    ONLY_A = "only A can do it"
    """In `metallab.versus`, as the next two."""
    ONLY_B = "only B can do it"
    NEITHER = "neither can do it"
    OTHER = "other"
    """None of these: the detail is all that is known, such as the text of a stranger's file."""


@dataclass(frozen=True)
class Withheld:
    """Why a speed-up is not given; `str` is ``reason: detail``."""

    reason: Reason
    detail: str = ""
    """What happened and what to do, in words."""

    @property
    def is_transient(self) -> bool:
        """True if another run may be without it."""
        return self.reason in (Reason.BUSY_MACHINE, Reason.DRIFTED)

    @property
    def named_reason(self) -> str:
        """The reason as a text; empty for `Reason.OTHER`."""
        return "" if self.reason is Reason.OTHER else self.reason.value

    @property
    def sentence(self) -> str:
        """See `metallab.wording.withheld_sentence`."""
        return wording.withheld_sentence(self)

    @property
    def label(self) -> str:
        """See `metallab.wording.withheld_label`."""
        return wording.withheld_label(self)

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.named_reason, self.detail)))


SIMULATED = Withheld(Reason.SIMULATED, wording.PHRASES["simulated"])
FAST_MODE = Withheld(Reason.FAST_MODE, wording.PHRASES["fast mode"])


def has_drifted(drift: float | None) -> bool:
    """Return True if a machine's speed moved too far, in either direction; False if nobody watched it."""
    return drift is not None and abs(drift) > DRIFT


def why_withheld(*measurements: Measurement, drift: float | None = None) -> Withheld | None:
    """Return why nothing may be concluded from measurements.

    **The one rule** of what pages, pictures, films, files and the report withhold, besides outputs that differ.

    Parameters
    ----------
    *measurements
        What a conclusion would be drawn from.
    drift
        Relative change of the time of a sentinel around them, 0.1 for 10 % more; None if there was no sentinel.

    Returns
    -------
    Withheld or None
        None if nothing speaks against a conclusion.
    """
    if any(measured.simulated for measured in measurements):
        return SIMULATED
    if any(measured.mode != "full" for measured in measurements):
        return FAST_MODE

    busiest = max(measurements, key=lambda measured: measured.others, default=None)
    if busiest is not None and busiest.is_busy:
        return Withheld(Reason.BUSY_MACHINE, wording.busy(busiest.others))

    if drift is not None and has_drifted(drift):
        return Withheld(Reason.DRIFTED, wording.drifted(drift))
    return None


def verdict(low: float, high: float, factor: float = 1 + MATTERS) -> Verdict:
    """Return the verdict of a 95 % interval of a speed-up.

    ``faster`` or ``slower`` if all of it is beyond ``factor``, in either direction, ``same`` if all of it is within.
    """
    if low > factor:
        return "faster"
    if high < 1 / factor:
        return "slower"
    if low >= 1 / factor and high <= factor:
        return "same"
    return "inconclusive"


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a median: two order statistics of independent values, whatever the distribution.

    The number of samples below the true median is binomial(n, 1/2), so the k-th smallest and the k-th largest of n
    enclose it with probability 1 - 2 P(X < k). k is the largest with at least ``confidence``. Fewer than six values
    give none at 95 %, and (0, inf). Source: David and Nagaraja, *Order Statistics*, section 7.1.
    """
    n = len(values)
    k = 0
    tail = 0.0
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
    return wording.sizes_without_verdict(sizes)


@dataclass(frozen=True)
class Sampling:
    """What the paired ratios behind a `Ratio` are, and how they are worded."""

    singular: str
    plural: str
    fewest: int
    """Pairs from which on there is an interval."""
    digits: int
    """Of a ratio in words, behind the point."""


ROUNDS = Sampling("pair", "pairs", fewest=FEWEST_PAIRS, digits=2)
"""Each pair is one round of one process."""

COLD_ROUNDS = Sampling(
    "pair with cold caches", "pairs with cold caches", fewest=FEWEST_PAIRS, digits=2
)
"""The same, where the caches were cleared before each of the two samples."""


def choose_sampling(cold: bool) -> Sampling:
    """Return what the pairs of a comparison in one process are."""
    return COLD_ROUNDS if cold else ROUNDS


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
    sampling: Sampling = ROUNDS

    @classmethod
    def of(
        cls,
        variant: str,
        baseline: str,
        times: Sequence[float],
        baseline_times: Sequence[float],
        sampling: Sampling = ROUNDS,
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
            sampling=sampling,
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
    def label(self) -> str:
        """See `metallab.wording.ratio_label`."""
        return wording.ratio_label(self)

    @property
    def ends(self) -> str:
        """See `metallab.wording.ratio_ends`."""
        return wording.ratio_ends(self)

    @property
    def phrase(self) -> str:
        """See `metallab.wording.ratio_phrase`."""
        return wording.ratio_phrase(self)

    def sentence(self, note: str = "") -> str:
        """See `metallab.wording.ratio_sentence`."""
        return wording.ratio_sentence(self, note)

    def __str__(self) -> str:
        return self.sentence()


@dataclass(frozen=True)
class Answer:
    """A variant's speed-up over the baseline, or why there is none."""

    variant: str
    result: Ratio | Withheld

    @property
    def ratio(self) -> Ratio | None:
        """The speed-up; None if it is withheld."""
        return self.result if isinstance(self.result, Ratio) else None

    @property
    def withheld(self) -> Withheld | None:
        """Why there is no speed-up; None if there is one."""
        return self.result if isinstance(self.result, Withheld) else None

    @property
    def reason(self) -> Reason | None:
        """The kind of `withheld`."""
        return self.result.reason if isinstance(self.result, Withheld) else None

    @property
    def outcome(self) -> Verdict:
        """The verdict, or ``withheld``."""
        return self.result.verdict if isinstance(self.result, Ratio) else "withheld"

    @property
    def label(self) -> str:
        """The verdict, or that there is no speed-up and the reason."""
        return self.result.label

    def __str__(self) -> str:
        if isinstance(self.result, Withheld):
            return f"{self.variant}: {self.result.sentence}"
        return str(self.result)


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
        """True if the time moved too far; never in fast mode, in which nothing is concluded anyway."""
        return self.before.mode == "full" and has_drifted(self.drift)

    def __str__(self) -> str:
        withheld = why_withheld(self.before, drift=self.drift)
        return f"sentinel on {self.before.device}: {self.drift:+.1%} ({withheld.label if withheld else 'steady'})"


@dataclass(frozen=True)
class Comparison:
    """Variants measured side by side, and the conclusions about each against the baseline."""

    name: str
    question: Question
    baseline: str
    measurements: Mapping[str, Measurement]
    paired: Mapping[str, Ratio]
    """Ratios of real variants with equal outputs; `ratios` are those that may be shown."""
    refused: Mapping[str, Withheld] = field(default_factory=dict)
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
        drift = self.drift
        base = self.measurements[self.baseline]

        answers = {}
        for variant, measured in self.measurements.items():
            if variant == self.baseline:
                continue
            withheld = self.refused.get(variant) or why_withheld(base, measured, drift=drift)
            answers[variant] = Answer(variant, withheld or self.paired[variant])
        return answers

    @property
    def withheld(self) -> dict[str, Withheld]:
        """Variants without a speed-up, and why."""
        return {
            variant: answer.withheld for variant, answer in self.answers.items() if answer.withheld
        }

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
        question = self.measurements[self.baseline].question_in_words
        head = f"{self.name} ({question}, baseline {self.baseline}; {self.parity})"
        lines = [*map(str, self.measurements.values()), *self.sentences]
        if self.ratios and any(measured.varies for measured in self.measurements.values()):
            lines.append(
                "(Times vary; a speed-up is of pairs taken in one round, which vary together.)"
            )
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
            key: Ratio.of(
                key, baseline, measured.samples, base.samples, choose_sampling(measured.cold)
            )
            for key, measured in measurements.items()
            if key != baseline and not (measured.simulated or base.simulated)
        },
        parity=parity,
        watches=tuple(Sentinel.watching),
    )
