"""Conclusions from times that were measured side by side: a speed-up with its interval, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from metallab import wording
from metallab.outcomes import Verdict
from metallab.timing.measurement import Measurement

DRIFT = 0.10
"""How far a machine's speed may move during a run, in either direction: relative, as the drift of a sentinel's time.

It acts on files that were stored earlier, too: `metallab.records.Record.withheld` asks about the drift that they hold.
So a smaller one withholds speed-ups that pages have shown, and a larger one gives none back, because a file says why
its page withheld them."""

FEWEST_PAIRS = 6
"""Fewer give a median no interval at 95 % (`median_interval`)."""

SMALLEST_DIFFERENCE = 0.01
"""Differences below 1 % are reported as ``same``."""


class Reason(StrEnum):
    """Why no speed-up is given. The values stand in files of results.

    The table *Why no speed-up is given* in README explains each of them; a test compares it with this class.
    """

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
    """Return whether a machine's speed moved by more than `DRIFT`, in either direction.

    Parameters
    ----------
    drift
        Relative change of a sentinel's time, 0.1 for 10 % more; None if nobody watched, of which it says False.
    """
    return drift is not None and abs(drift) > DRIFT


def why_withheld(*measurements: Measurement, drift: float | None = None) -> Withheld | None:
    """Return why nothing may be concluded from measurements.

    **The one rule** of what pages, pictures, films, files and the report withhold for the measurements themselves. What
    is asked first is told where several reasons hold: what no other run of the kind can be without (such as the
    simulated GPU) comes before what may pass (such as other programs that were busy). That outputs differ, or that a
    side cannot do the work at all, is found out by whoever calls the functions.

    Parameters
    ----------
    *measurements
        What a conclusion would be drawn from: both sides of a speed-up, all that a page compares by itself, or a single
        one, as of a record in a file, for which a reason that needs two does not hold.
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
        return Withheld(Reason.BUSY_MACHINE, wording.describe_busy(busiest.others))

    if drift is not None and has_drifted(drift):
        return Withheld(Reason.DRIFTED, wording.describe_drift(drift))
    return None


def verdict(low: float, high: float, factor: float = 1 + SMALLEST_DIFFERENCE) -> Verdict:
    """Return the verdict of an interval of a speed-up.

    Parameters
    ----------
    low, high
        The ends of its 95 % interval: 1.2 is 1.2 times as fast as the baseline.
    factor
        What is no difference: 1.01 for 1 %, in either direction.

    Returns
    -------
    str
        ``faster`` or ``slower`` if all of the interval is beyond the factor, ``same`` if all of it is within, else
        ``inconclusive``.
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
    enclose it with probability 1 - 2 P(X < k). k is the largest with at least ``confidence``. Source: David and
    Nagaraja, *Order Statistics*, section 7.1.

    Parameters
    ----------
    values
        Independent of each other, in any order and unit.
    confidence
        The probability, below 1, with which the interval holds the true median.

    Returns
    -------
    low, high : float
        Two of the values; 0 and infinity for too few of them, which at 95 % are fewer than `FEWEST_PAIRS`.

    Examples
    --------
    >>> median_interval([4, 1, 3, 2, 6, 5])
    (1, 6)
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

    Parameters
    ----------
    won
        Of each size, whether it is won. Sizes without a verdict are None, and are ignored: `not_counted` names them.

    Examples
    --------
    >>> crossover({64: False, 256: True, 512: None, 1024: True})
    256
    """
    largest_lost = max((size for size, wins in won.items() if wins is False), default=-1)
    return min((size for size, wins in won.items() if wins and size > largest_lost), default=None)


def not_counted(won: Mapping[float, bool | None]) -> str:
    """Return a note for a `crossover` on the sizes without a verdict; empty if all have one.

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
    """Baseline's time over variant's: 2 is twice as fast."""
    low: float
    """The lower end of the 95 % interval; 0 if there are too few pairs for one."""
    high: float
    """The upper end; infinite if there are too few."""
    n: int
    """The number of pairs."""
    pairs: tuple[float, ...] = field(default=(), repr=False)
    """The paired ratios, if known."""
    factor: float = 1 + SMALLEST_DIFFERENCE
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
        """Return the speed-up of times that are paired by position.

        Parameters
        ----------
        variant, baseline
            Their names.
        times, baseline_times
            Seconds a call, as many of the one as of the other.
        sampling
            What a pair is.

        Raises
        ------
        ValueError
            If there are more times of one of them.
        """
        pairs = tuple(theirs / ours for ours, theirs in zip(times, baseline_times, strict=True))
        low, high = median_interval(pairs)

        return cls(
            variant=variant,
            baseline=baseline,
            median=float(np.median(pairs)),
            low=low,
            high=high,
            n=len(pairs),
            pairs=pairs,
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
    """A variant's speed-up over the baseline, or why there is none; `print` it for a sentence."""

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
