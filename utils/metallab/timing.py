"""Time code so that the number is true.

Two questions are kept apart. **Latency** is how long one call takes when somebody waits for its result: every call
is synchronised. **Throughput** is how long a call takes in a long row of them: ``block`` calls, then one
synchronisation. On a device that works while Python runs ahead the two differ, and neither is the other's mistake.

This module knows no framework. It is given a function and, in ``on``, the device where the function runs: anything
with a ``label``, a ``simulated`` flag, a ``synchronize`` and an ``active`` (see `DeviceLike`). ``on`` has no default,
because a timer that forgets to wait is the commonest mistake of all, and because a number without the name of its
machine is worth nothing.

The method follows `triton.testing.do_bench`, nvbench, pyperf and `torch.utils.benchmark`: synchronise around each
sample, warm up until the times have settled, stop when the noise is known, report order statistics instead of a
mean. The interval of a comparison is the exact (binomial) interval of a median, see `median_interval`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
import psutil

from metallab import mode, turns, units
from metallab.fields import Amount, Cores, Count, Dtype, Kind, Line, Name, Positive, Samples, Seconds
from metallab.mode import Mode

Question = Literal["latency", "throughput"]
Clock = Callable[[], int]
ParityCheck = Callable[[Any, Any], Any]
"""Raises AssertionError where outputs differ. It may return True or False as well, as `np.allclose` does."""

KEEP = 2000
"""Once `2 * KEEP` samples are kept, every second one is dropped; the rest stay evenly spread."""

ROW_CALLS = 8
"""A throughput block holds at least so many calls where a device works on while Python runs ahead: of a single slow
call the block would be its latency."""

LONGEST_ROW = 20
"""For that a block lasts at most so many times the `Budget.block_seconds` that it would fill otherwise."""

KEPT_BYTES = 2**28
"""Of the results of a throughput block at most so many bytes are kept at a time, which may make the block short."""

BUSY = 0.25
"""Cores that other programs may use before a measurement is flagged."""

DRIFT = 0.10
"""How far a machine's speed may move meanwhile, in either direction, before it is said to have drifted."""

SLOW_CALL = 0.5
"""Seconds of a call from which on what a switch between variants costs (cold caches, sleeping threads) is below 1 %."""

SECONDS_FOR_PAIRS = 10.0
"""For so long at least a comparison of slow calls goes on, to get the pairs that an interval needs."""


class DeviceLike(Protocol):
    """Where timed code runs. `metallab.device.Device` and `metallab.fake_device.FakeDevice` are devices."""

    kind: str
    """What computes: ``cpu``, ``mps``, ``cuda``."""
    label: str
    """The hardware's name, recorded beside every number."""
    simulated: bool
    """True where times say nothing about the hardware that is being imitated: no speed-up is ever given."""
    waits_for_results: bool
    """True if only results can be waited for (JAX, MLX): then every result of a block is kept and handed over."""

    def synchronize(self, *results: Any) -> None:
        """Return when everything launched so far (and every result given) is done."""

    def active(self) -> contextlib.AbstractContextManager:
        """Settings that hold while the device is measured, such as a number of threads."""


@dataclass(frozen=True)
class Host:
    """Plain Python on this computer: nothing runs on after a call returns."""

    label: str = "host"
    simulated: bool = False
    waits_for_results: bool = False
    kind: str = "cpu"

    def synchronize(self, *results: Any) -> None:
        """Nothing to wait for."""

    def active(self) -> contextlib.AbstractContextManager:
        """No settings."""
        return contextlib.nullcontext()


@dataclass(frozen=True)
class Budget:
    """How long to measure. Seconds are of time that passes: waiting between samples counts too."""

    min_samples: int = 10
    min_seconds: float = 0.5
    max_seconds: float = 4.0
    max_samples: int | None = None
    warmup_calls: int = 3
    warmup_seconds: float = 0.025
    warmup_limit: float = 0.5
    block_seconds: float = 0.020


FULL = Budget()
FULL_COMPARISON = Budget(min_samples=20)  # 20 pairs see a true 1.10 at 5 % noise; 10 often do not
FAST = Budget(
    min_samples=3,
    max_samples=3,
    min_seconds=0.0,
    warmup_calls=1,
    warmup_seconds=0.0,
    warmup_limit=0.0,
    block_seconds=0.002,
)


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
        return _noise(self.samples)

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
        elif self.n < FULL.min_samples:
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


DoubtKind = Literal[
    "outputs differ", "simulated", "fast mode", "busy machine", "drifted", "inconclusive", "too few frames"
]


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
    def passes(self) -> bool:
        """Whether another run may well be without it: the machine was busy, or its speed drifted."""
        return self.kind in ("busy machine", "drifted")


_SIMULATED = Doubt("simulated", "its times are not those of the hardware it imitates")


def doubt(*measured: Measurement, drift: float | None = None) -> Doubt:
    """Why nothing may be concluded from measurements that belong together; empty if nothing speaks against it.

    **The one rule** of what pages, pictures, films and the report withhold, besides outputs that differ. ``drift`` is
    that of a sentinel around them, if there was one.
    """
    if any(each.simulated for each in measured):
        return _SIMULATED
    if any(each.mode != "full" for each in measured):
        return Doubt("fast mode", "a look whether it runs, and no conclusion")
    if (others := max((each.others for each in measured), default=0.0)) > BUSY:
        return Doubt("busy machine", f"other programs used {others:.1f} cores meanwhile: close them and run again")
    if drift is not None and abs(drift) > DRIFT:
        change = f"{abs(drift):.0%} {'more' if drift > 0 else 'less'} time"
        reason = f"a fixed computation took {change} afterwards than before: let the machine rest and run again"
        return Doubt("drifted", reason)
    return Doubt()


Verdict = Literal["faster", "slower", "same", "inconclusive"]
FEWEST_PAIRS = 6
"""Fewer give a median no interval at 95 % (`median_interval`)."""

MATTERS = 0.01
"""A difference below 1 % is real on a quiet machine and matters to nobody."""


def verdict(low: float, high: float) -> Verdict:
    """What a 95 % interval of a speed-up says.

    ``faster`` or ``slower`` if all of it lies beyond 1 by more than 1 %, ``same`` if all of it lies within 1 %, and
    ``inconclusive`` otherwise: more or quieter samples are needed.
    """
    if low > 1 + MATTERS:
        return "faster"
    if high < 1 / (1 + MATTERS):
        return "slower"
    return "same" if low >= 1 / (1 + MATTERS) and high <= 1 + MATTERS else "inconclusive"


def crossover(won: Mapping[float, bool | None]) -> float | None:
    """The smallest size from which all larger ones are won; None if the largest is not.

    Sizes of which nothing may be said are None, and are not counted: `not_counted` names them.
    """
    lost = [size for size, wins in won.items() if wins is False]
    return min((size for size, wins in won.items() if wins and size > max(lost, default=-1)), default=None)


def not_counted(won: Mapping[float, bool | None]) -> str:
    """What stands behind a `crossover`: the sizes of which nothing may be said, in brackets; empty if there are none.

    >>> not_counted({256: True, 512: None, 1024: True})
    ' (nothing may be said of n = 512)'
    """
    sizes = [f"{size:.15g}" for size, wins in won.items() if wins is None]
    return f" (nothing may be said of n = {', '.join(sizes)})" if sizes else ""


def undecided(low: float, high: float) -> str:
    """What a 95 % interval that gives no verdict leaves open, in words."""
    if low < 1 / (1 + MATTERS) and high > 1 + MATTERS:
        return "it may be slower or faster"
    return f"it may be {'faster' if high > 1 + MATTERS else 'slower'}, or as fast within {MATTERS:.0%}"


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
    """The name of the comparison that it is of."""

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

    def __str__(self) -> str:
        if not math.isfinite(self.high):
            return f"{self.variant} against {self.baseline}: {self.what_pairs_showed}"
        low, median, high = map(units.times, (self.low, self.median, self.high))
        interval = f"95 % interval {low} to {high}, {self.n} pairs"
        if self.verdict == "faster":
            return f"{self.variant} is {median} times as fast as {self.baseline} ({interval})"
        if self.verdict == "slower":
            low, median, high = (units.times(1 / value) for value in (self.high, self.median, self.low))
            interval = f"95 % interval {low} to {high}, {self.n} pairs"
            return f"{self.variant} takes {median} times as long as {self.baseline} ({interval})"
        if self.verdict == "same":
            return f"{self.variant} is as fast as {self.baseline}, within {MATTERS:.0%} ({interval})"
        left = undecided(self.low, self.high)
        return f"{self.variant} against {self.baseline}: inconclusive, {left} ({median} times as fast, {interval})"

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


@dataclass(frozen=True)
class Comparison:
    """Variants measured side by side, and what may be said of each against the baseline."""

    name: str
    question: Question
    baseline: str
    measurements: Mapping[str, Measurement]
    paired: Mapping[str, Ratio]
    """What the times of real variants with equal outputs gave. Ask `ratios` for what may be said of it."""
    refused: Mapping[str, Doubt] = field(default_factory=dict)
    """Variants whose times were not set against the baseline's, and why: outputs that differ, or a simulated device."""
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
        """How far the machine's speed moved meanwhile: the largest drift that a sentinel around it saw, None without.

        RuntimeError as long as the ``with`` block of a sentinel goes on: nothing can be said before.
        """
        return max((watch.drift for watch in self.watches), key=abs, default=None)

    @property
    def withheld(self) -> dict[str, Doubt]:
        """Variants that get no speed-up, and why: outputs that differ, or a `doubt`. RuntimeError as `drift`."""
        drift, base = self.drift, self.measurements[self.baseline]
        reasons = {
            variant: self.refused.get(variant) or doubt(base, measured, drift=drift)
            for variant, measured in self.measurements.items()
            if variant != self.baseline
        }
        return {variant: reason for variant, reason in reasons.items() if reason}

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The speed-ups that may be shown, drawn or averaged: all that are not withheld."""
        withheld = self.withheld
        return {variant: ratio for variant, ratio in self.paired.items() if variant not in withheld}

    @property
    def sentences(self) -> list[str]:
        """What may be said of each variant against the baseline, or why nothing is. RuntimeError as `drift`."""
        withheld, ratios = self.withheld, self.ratios
        variants = [variant for variant in self.measurements if variant != self.baseline]
        return [
            str(ratios[variant]) if variant in ratios else f"{variant}: no speed-up is given: {withheld[variant]}"
            for variant in variants
        ]

    @property
    def headlines(self) -> list[str]:
        """`sentences`, each behind the comparison's name: for who sees nothing else of it."""
        return [f"{self.name}: {sentence}" for sentence in self.sentences]

    def __str__(self) -> str:
        head = f"{self.name} ({self.question}, baseline {self.baseline}; {self.parity})"
        verdicts = [str(ratio) for ratio in self.ratios.values()]
        refused = [f"{variant}: no speed-up is given: {why}" for variant, why in self.withheld.items()]
        restless = verdicts and any({"noisy", "unreliable"}.intersection(m.flags) for m in self.measurements.values())
        aside = ["(Times vary; a speed-up is of pairs taken in one round, which vary together.)"] if restless else []
        lines = [*map(str, self.measurements.values()), *verdicts, *aside, *refused]
        return "\n".join([head, *(f"  {line}" for line in lines)])


@dataclass(frozen=True)
class Unchecked:
    """A parity check that checks nothing, and says why that is right: ``Unchecked("the same function twice")``."""

    reason: str

    def __call__(self, reference: Any, result: Any) -> None:
        """Accept anything."""

    def __str__(self) -> str:
        return f"outputs not compared: {self.reason}"


def measure(
    fn: Callable[[], Any],
    *,
    on: DeviceLike,
    question: Question = "latency",
    name: str | None = None,
    dtype: Any = None,
    size: Size | float | None = None,
    budget: Budget | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Measurement:
    """Time ``fn()`` on a device.

    Call it once for each shape and dtype: the warm-up belongs to the function that is given. ``dtype``
    (``torch.float16``, ``"float16"``) and ``size`` are recorded, and change nothing. ``budget`` is `FULL`, or `FAST` in
    fast mode; ``clock`` returns nanoseconds. Whatever ``fn`` raises comes through. TypeError if it cannot be called;
    ValueError for a dtype that is none of `metallab.fields.Dtype`.
    """
    budget = budget or (FULL if mode.current() == "full" else FAST)
    sampler = _Sampler(fn, on, question, clock)
    with undisturbed() as load, on.active():
        sampler.prepare(budget)
        samples = _Samples(1, clock)
        while (reason := samples.stop_reason(budget)) is None:
            seconds = sampler.sample()
            samples.add((seconds,))
    seconds = [row[0] for row in samples.rows]
    about = {"dtype": _dtype(dtype), "size": _size(size)}
    return sampler.measurement(name or _name_of(fn), seconds, reason, load.cores(), about)


def compare(
    variants: Mapping[str, Callable[[], Any]],
    *,
    on: DeviceLike | Mapping[str, DeviceLike],
    baseline: str,
    parity: ParityCheck | Mapping[str, ParityCheck],
    question: Question = "latency",
    name: str | None = None,
    dtype: Any = None,
    size: Size | float | None = None,
    series: str = "",
    roles: Mapping[str, str] | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter_ns,
) -> Comparison:
    """Time variants side by side: each round takes one sample of each, in random order.

    ``on`` is one device, or one for each variant. ``parity(reference, result)`` sees the first result of the
    baseline and of each variant, and raises AssertionError, or returns anything but True or None, where they differ
    (`metallab.checks.matches` makes one); such a variant is timed but gets no speed-up. Where variants compute in
    several dtypes, give each its own parity. Pairing within a round cancels what drifts, and the random order what
    comes in cycles. KeyError if the baseline is not among the variants, or a variant has no device or no parity;
    TypeError if a parity or a variant cannot be called.

    For whoever reads the results later, and nothing else: ``dtype`` is the number format, of all variants or a mapping
    with that of each; ``size`` how much work it was; ``series`` what comparisons that differ in size only have in
    common, with n for the size (``series="product, n", size=64`` also names the comparison, ``product, n = 64``);
    ``roles`` what a variant is on any machine, where its name says what it is on this one: ``{"cuda": "GPU"}``.
    ValueError for a size without a series, or a dtype that is none of `metallab.fields.Dtype`.

    After the last sample each variant is called once more, untimed: its parity holds that result, and the baseline's
    own, against a copy of the baseline's first. So a function that is right at first only, learns, or changes an input
    (also one that another variant reads) gets no speed-up; let it work on a copy, or learn at a rate of 0. A change of
    an input that changes no output is not seen, such as sorting in place what is sorted then.
    """
    if baseline not in variants:
        raise KeyError(f"baseline {baseline!r} is not among the variants {sorted(variants)}")
    judges = dict(parity) if isinstance(parity, Mapping) else dict.fromkeys(variants, parity)
    if missing := variants.keys() - judges.keys() - {baseline}:
        raise KeyError(f"no parity is given for {', '.join(sorted(missing))}: a speed-up needs equal outputs")
    if wrong := [judge for judge in judges.values() if not callable(judge)]:
        raise TypeError(
            f"{wrong[0]!r} is given as a parity: give a function of two results, or Unchecked with the reason why "
            "nothing needs to be compared"
        )
    if size is not None and not series:
        raise ValueError("a size is one of a series: name what its comparisons have in common, series='product, n'")
    dtypes = dict(dtype) if isinstance(dtype, Mapping) else dict.fromkeys(variants, dtype)
    size, budget = _size(size), budget or (FULL_COMPARISON if mode.current() == "full" else FAST)
    name = name or (f"{series} = {size.number:g}" if size else "comparison")
    devices = dict(on) if isinstance(on, Mapping) else dict.fromkeys(variants, on)
    if missing := variants.keys() - devices.keys():
        raise KeyError(f"no device is given for {', '.join(sorted(missing))}: on= names one for each variant")
    samplers = {key: _Sampler(fn, devices[key], question, clock) for key, fn in variants.items()}
    with undisturbed() as load:
        for sampler in samplers.values():
            with sampler.device.active():
                sampler.prepare(budget)
        refused = _refused(samplers, baseline, judges)
        unsettled = {key: judges[key] for key in variants if key not in {baseline, *refused}}
        unsettled = {key: judge for key, judge in unsettled.items() if not isinstance(judge, Unchecked)}
        first = _copied(samplers[baseline].first_result) if unsettled else None
        for sampler in samplers.values():
            sampler.first_result = None  # so that memory is what it would be without the check
        rows, reason = _interleave(list(samplers.values()), budget, random.Random(seed))
    columns = dict(zip(samplers, zip(*rows, strict=True), strict=True))
    cores = load.cores()
    refused |= _refused_in_the_end(samplers, baseline, unsettled, first)
    return Comparison(
        name=name,
        question=question,
        baseline=baseline,
        measurements={
            key: sampler.measurement(key, columns[key], reason, cores, {"dtype": _dtype(dtypes.get(key)), "size": size})
            for key, sampler in samplers.items()
        },
        paired={
            key: _ratio(name, key, baseline, columns[key], columns[baseline])
            for key in variants
            if key != baseline and key not in refused
        },
        refused=refused,
        parity="; ".join(dict.fromkeys(_in_words(judges[key]) for key in variants if key != baseline)),
        watches=tuple(_watching),
        series=series,
        roles=dict(roles or {}),
    )


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
            key: _ratio(name, key, baseline, measured.samples, base.samples)
            for key, measured in measurements.items()
            if key != baseline and not (measured.simulated or base.simulated)
        },
        parity=parity,
        watches=tuple(_watching),
    )


@dataclass
class Sentinel:
    """A fixed computation timed before and after a long run: has the machine slowed down meanwhile?

    What was compared in between is given no speed-up if it has, see `doubt`.
    """

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


_watching: list[Sentinel] = []
"""Those whose ``with`` blocks go on: a comparison belongs to them."""


@contextlib.contextmanager
def sentinel(
    fn: Callable[[], Any], *, on: DeviceLike, budget: Budget | None = None, clock: Clock = time.perf_counter_ns
) -> Iterator[Sentinel]:
    """``with sentinel(work, on=lab) as watch: ...`` and then ``watch.drift``, ``watch.throttled``."""
    short = budget or (Budget(min_seconds=0.2, max_seconds=2.0) if mode.current() == "full" else FAST)
    measured = functools.partial(measure, fn, on=on, name="sentinel", budget=short, clock=clock)
    watch = Sentinel(before=measured())
    _watching.append(watch)
    try:
        yield watch
    finally:
        _watching.remove(watch)
    watch.after = measured()


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a median: two order statistics, whatever the distribution, of independent values.

    The number of samples below the true median is binomial(n, 1/2), so the k-th smallest and the k-th largest of n
    enclose it with probability 1 - 2 P(X < k). k is the largest with at least ``confidence``. Fewer than six values
    give no such interval at 95 %: the answer is then (0, inf). Source: any text on order statistics, e.g. David and
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


class _Sampler:
    """One function on one device, and how a sample of its time is taken."""

    def __init__(self, fn: Callable[[], Any], device: DeviceLike, question: Question, clock: Clock) -> None:
        if question not in ("latency", "throughput"):
            raise ValueError(f"question is {question!r}; ask for 'latency' or 'throughput'")
        if not callable(fn):
            raise TypeError(f"{type(fn).__name__} cannot be called: give the function itself, as in lambda: model(x)")
        self.fn, self.device, self.question, self.clock = fn, device, question, clock
        self.synchronize, self.waits_for_results = device.synchronize, device.waits_for_results
        self.after_sample = getattr(fn, "after_sample", lambda: None)
        self.block = 1
        self.first_call = math.nan
        self.first_result: Any = None
        self.last_call = math.nan
        """Seconds of a call, when one was last timed."""
        self.warm_ups = 0

    def prepare(self, budget: Budget) -> None:
        """The first call, the warm-up, and for throughput the number of calls that fill a block."""
        self.first_call = self._timed_block(keep_result=True)
        self.warm_ups = _warm_up(self._timed_block, budget, self.clock)
        while self.question == "throughput" and not self._block_is_full(self._timed_block(), budget):
            self.block *= 2
            if self.block > 2**26:
                raise RuntimeError(f"{self.block} calls took no time by this clock; is the clock running?")

    def _block_is_full(self, seconds: float, budget: Budget) -> bool:
        """It lasts long enough and, where calls can overlap, is a row of them; or no more results would fit."""
        overlap = self.device.kind != "cpu" or self.waits_for_results
        is_row = not overlap or self.block >= ROW_CALLS or 2 * seconds > LONGEST_ROW * budget.block_seconds
        return (seconds >= budget.block_seconds and is_row) or 2 * self.block > self._most_calls()

    def _most_calls(self) -> float:
        """A block's results are all kept until they are waited for, where nothing else can be; they must fit."""
        kept = _bytes_of(self.first_result) if self.waits_for_results else 0
        return KEPT_BYTES / kept if kept else math.inf

    def last_result(self) -> Any:
        """Of one more call, which is not timed: keeping a timed one's would change what memory the next one gets."""
        with self.device.active():
            result = self.fn()
            self.device.synchronize(result)
        return result

    def take_over(self) -> None:
        """One call that counts for nothing: caches and sleeping threads are as another variant left them.

        A slow call outweighs that, and calls that count for nothing would take half of a comparison's time.
        """
        if self.last_call < SLOW_CALL:
            self.device.synchronize(self.fn())

    def sample(self) -> float:
        """Seconds per call, of one block."""
        seconds = self._timed_block() / self.block
        self.after_sample()
        return seconds

    def _timed_block(self, keep_result: bool = False) -> float:
        fn, synchronize, clock = self.fn, self.synchronize, self.clock
        calls = itertools.repeat(None, self.block)
        synchronize()  # whatever was launched before belongs to nobody's sample
        if self.waits_for_results:
            start = clock()
            results = [fn() for _ in calls]
            synchronize(*results)
            stop = clock()
            result = results[-1]
        else:
            start = clock()
            for _ in calls:
                result = fn()
            synchronize(result)
            stop = clock()
        if keep_result:
            self.first_result = result
        seconds = max(stop - start, 1) / 1e9  # a clock that did not tick: at least, not zero
        self.last_call = seconds / self.block
        return seconds

    def measurement(
        self, name: str, samples: Sequence[float], reason: str, others: float, about: Mapping[str, Any]
    ) -> Measurement:
        return Measurement(
            name=name,
            question=self.question,
            samples=tuple(samples),
            first_call=self.first_call,
            block=self.block,
            warmup_calls=self.warm_ups,
            stop_reason=reason,
            mode=mode.current(),
            others=others,
            **described(self.device),
            **about,
        )


def described(device: DeviceLike) -> dict[str, Any]:
    """The fields of a `Measurement` that tell where it was made."""
    threads = getattr(device, "threads", None)  # a CPU's, where they are set
    return {"device": device.label, "simulated": device.simulated, "kind": device.kind, "threads": threads}


def _dtype(given: Any) -> Dtype | None:
    """The name of a number format: of ``"float16"``, ``torch.float16``, ``numpy.dtype("float16")``."""
    name = given if given is None or isinstance(given, str) else getattr(given, "name", str(given).rpartition(".")[2])
    if name not in (None, *get_args(Dtype)):
        raise ValueError(f"dtype is {given!r}; name one of {', '.join(get_args(Dtype))}, or leave it out")
    return name


def _size(given: Size | float | None) -> Size | None:
    return given if given is None or isinstance(given, Size) else Size(given)


class _Samples:
    """Rows of samples (one column a variant) with the rule that says when there are enough."""

    def __init__(self, columns: int, clock: Clock) -> None:
        self.columns = columns
        self.clock, self.started = clock, clock()
        self.rows: list[Sequence[float]] = []
        self.next_look = 1  # however little a budget allows: without a sample nothing is known
        self.stride = 1
        self.seen = 0

    def add(self, row: Sequence[float]) -> None:
        """Keep a row: seconds per call."""
        if self.seen % self.stride == 0:
            self.rows.append(row)
        self.seen += 1
        if len(self.rows) >= 2 * KEEP:
            self.rows = self.rows[::2]
            self.stride *= 2

    def stop_reason(self, budget: Budget) -> str | None:
        """Why to stop now, or None to go on. It looks closely only now and then: looking is not for free."""
        if self.seen < self.next_look:
            return None
        self._plan_next_look(budget)
        if budget.max_samples and self.seen >= budget.max_samples:
            return f"{self.seen} samples, as asked"
        enough = self.seen >= budget.min_samples
        passed = _since(self.started, self.clock)
        if enough and passed >= budget.min_seconds * self.columns:
            columns = list(zip(*self.rows, strict=True))
            if all(_noise(column) < 0.05 for column in columns):
                return "quiet"
            if self.seen >= 2 * budget.min_samples and all(map(_noise_is_stable, columns)):
                return "noise is stable"
        return "time limit" if passed >= self._patience(budget, enough) else None

    def _patience(self, budget: Budget, enough: bool) -> float:
        """Seconds that may pass: in a comparison of slow variants the limit once for each, to get its pairs.

        Until they give an interval, once more for each, since a sample comes after a call that does not count; and
        `SECONDS_FOR_PAIRS` at least, however short the budget.
        """
        if enough or self.columns == 1:
            return budget.max_seconds
        if self.seen >= FEWEST_PAIRS or budget.min_samples < FEWEST_PAIRS:
            return budget.max_seconds * self.columns
        return max(2 * budget.max_seconds * self.columns, SECONDS_FOR_PAIRS)

    def _plan_next_look(self, budget: Budget) -> None:
        """After a fifth more samples, and exactly at the numbers that the budget names."""
        named = [count for count in (budget.min_samples, budget.max_samples) if count and count > self.seen]
        self.next_look = min(max(self.seen + 1, math.ceil(self.seen * 1.2)), *named, 2**62)


def _interleave(samplers: Sequence[_Sampler], budget: Budget, rng: random.Random) -> tuple[list[Sequence[float]], str]:
    """Rounds of one sample each, in an order shuffled anew every round, and why they stopped."""
    samples = _Samples(len(samplers), samplers[0].clock)
    order = list(range(len(samplers)))
    while (reason := samples.stop_reason(budget)) is None:
        rng.shuffle(order)
        row = [0.0] * len(samplers)
        for index in order:
            sampler = samplers[index]
            with sampler.device.active():
                sampler.take_over()
                row[index] = sampler.sample()
        samples.add(row)
    return samples.rows, reason


def _since(start: int, clock: Clock) -> float:
    """Seconds since a reading of the clock."""
    return (clock() - start) / 1e9


def _warm_up(timed_call: Callable[[], float], budget: Budget, clock: Clock) -> int:
    """Call until the times have settled; returns the number of calls.

    Settled: the median of the first half is within 5 % of that of the second. Each look comes after twice the time of
    the one before, so that a slow start is left behind.
    """
    times: list[float] = []
    start, spent, goal = clock(), 0.0, budget.warmup_seconds
    while True:
        out_of_patience = False
        while (len(times) < budget.warmup_calls or spent < goal) and not out_of_patience:
            times.append(timed_call())
            spent += times[-1]
            out_of_patience = _since(start, clock) >= budget.warmup_limit > 0
        if spent >= budget.warmup_limit or out_of_patience or _halves_agree(times):
            return len(times)
        goal = 2 * spent


def _halves_agree(times: Sequence[float]) -> bool:
    if len(times) < 2:
        return False
    half = len(times) // 2
    first, second = np.median(times[:half]), np.median(times[half:])
    return abs(first - second) <= 0.05 * second


def _in_words(parity: ParityCheck) -> str:
    """What a parity check compares: its own text, or the name of a function."""
    name = getattr(parity, "__name__", "<lambda>")
    if name == "<lambda>" and type(parity).__str__ is not object.__str__:
        return str(parity)
    return f"outputs checked by {'a function of yours' if name == '<lambda>' else name}"


def _refused(samplers: Mapping[str, _Sampler], baseline: str, parity: Mapping[str, ParityCheck]) -> dict[str, Doubt]:
    """The variants whose times are not set against the baseline's, and why."""
    refused = {}
    for key, sampler in samplers.items():
        if key == baseline:
            continue
        if sampler.device.simulated or samplers[baseline].device.simulated:
            refused[key] = _SIMULATED
        elif difference := _difference(parity[key], samplers[baseline].first_result, sampler.first_result):
            refused[key] = Doubt("outputs differ", difference)
    return refused


def _refused_in_the_end(
    samplers: Mapping[str, _Sampler], baseline: str, parity: Mapping[str, ParityCheck], first: Any
) -> dict[str, Doubt]:
    """Of the variants that a parity is given for, those whose last result is not the baseline's first, and why."""
    refused: dict[str, Doubt] = {}
    for called in (baseline, *parity) if parity else ():
        result = samplers[called].last_result()  # judged before another function can write over it
        for key in parity if called == baseline else [called]:
            if key not in refused and (difference := _difference(parity[key], first, result)):
                whose = f"those of '{baseline}' itself" if called == baseline else "those"
                changes = "so that a function changes its input or itself"
                refused[key] = Doubt(
                    "outputs differ", f"{whose} of the last call from the first ones, {changes}: {difference}"
                )
    return refused


def _copied(result: Any) -> Any:
    """A copy that later calls cannot change; of what cannot be copied, such as a handle, the thing itself."""
    try:
        tensors = [leaf for leaf in _leaves(result) if hasattr(leaf, "detach") and hasattr(leaf, "clone")]
        # those of PyTorch that have a gradient cannot be copied deeply
        return copy.deepcopy(result, {id(tensor): tensor.detach().clone() for tensor in tensors})
    except Exception:  # noqa: BLE001 - somebody's own kind of result, which may raise anything
        return result


def _difference(parity: ParityCheck, reference: Any, result: Any) -> str:
    """What a parity check says of two results; empty if they agree."""
    try:
        answer = parity(reference, result)
    except AssertionError as difference:
        return " ".join(str(difference).split()) or "the check says no more"
    if answer is None or bool(answer == True):  # noqa: E712 - not its truth: a text or an error's size is true, too
        return ""
    return f"the check returned {answer!r}"


def _ratio(name: str, variant: str, baseline: str, times: Sequence[float], baseline_times: Sequence[float]) -> Ratio:
    paired = [theirs / ours for ours, theirs in zip(times, baseline_times, strict=True)]
    low, high = median_interval(paired)
    return Ratio(variant, baseline, float(np.median(paired)), low, high, len(paired), tuple(paired), name)


def _noise(samples: Sequence[float]) -> float:
    low, median, high = np.percentile(samples, (25, 50, 75))
    return float((high - low) / median)


def _noise_is_stable(samples: Sequence[float]) -> bool:
    """Would more samples teach more about the noise? Not if half of them say the same within 10 %."""
    now, before = _noise(samples), _noise(samples[: len(samples) // 2])
    return abs(now - before) <= 0.10 * now


class Others:
    """How many cores other programs keep busy, from its making on: all busy time less this process's own."""

    def __init__(self) -> None:
        self.wall, self.busy, self.own = time.monotonic(), _busy_seconds(), time.process_time()

    def cores(self) -> float:
        wall = time.monotonic() - self.wall
        if wall < 0.3:  # systems count in steps of 10 ms
            return 0.0
        return max(0.0, (_busy_seconds() - self.busy - (time.process_time() - self.own)) / wall)


def _busy_seconds() -> float:
    """Seconds that all cores together have worked since the machine started, or were taken by its host."""
    times = psutil.cpu_times()
    return sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))


@contextlib.contextmanager
def undisturbed() -> Iterator[Others]:
    """One's turn, where several people measure, and no garbage collection while times are taken.

    Gives what counts the work of other programs from here on: waiting for the turn is no part of a measurement.
    """
    with turns.turn():
        load = Others()
        was_on = gc.isenabled()
        gc.disable()
        try:
            yield load
        finally:
            if was_on:
                gc.enable()


def _bytes_of(result: Any) -> int:
    """The size of all arrays in a result."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in _leaves(result))


def _leaves(result: Any) -> Iterator[Any]:
    """What a result is made of, however nested."""
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from _leaves(item)
    else:
        yield result


def _name_of(fn: Callable) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
