"""Time code so that the number is true.

Two questions are kept apart. **Latency** is the time of one call whose result is waited for: every call is
synchronised. **Throughput** is the time of a call in a long row: ``block`` calls, then one synchronisation. On a device
that works while Python runs ahead the two differ.

This module knows no framework. It is given a function and, in ``on``, the device where the function runs (see
`DeviceLike`). ``on`` has no default, because forgetting to wait is the commonest mistake of a timer.

The method follows `triton.testing.do_bench`, nvbench, pyperf and `torch.utils.benchmark`: synchronise around each
sample, warm up until the times have settled, stop when the noise is known, report order statistics instead of a mean.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, get_args

import numpy as np
import psutil

from metallab import caches, mode, results_made, simulation, turns, units, verdicts
from metallab.fields import Dtype
from metallab.inspections import (
    KEPT_BYTES,
    Inspections,
    is_on_simulated_gpu,
    leaves,
    memory_of,
)
from metallab.verdicts import (  # noqa: F401 - offered here as well
    BUSY,
    DRIFT,
    FAST_MODE,
    FEWEST_PAIRS,
    MATTERS,
    SIMULATED,
    Answer,
    Comparison,
    Measurement,
    ParityCheck,
    Question,
    Ratio,
    Reason,
    Sentinel,
    Size,
    Unchecked,
    Withheld,
    crossover,
    describe_check,
    difference_of,
    has_drifted,
    median_interval,
    noise,
    not_counted,
    verdict,
    why_withheld,
)

T = TypeVar("T")
Clock = Callable[[], int]
KEEP = 2000
"""Of more than twice as many samples every n-th is kept."""

ROW_CALLS = 8
"""Calls in a throughput block, at least: of a single slow call the block would be its latency."""

LONGEST_ROW = 20
"""Such a block takes at most so many times `Budget.block_seconds`."""

SLOW_CALL = 0.5
"""Seconds of a call from which on switching between variants (cold caches, sleeping threads) costs below 1 %."""

SHORTEST = 0.05
"""Seconds that a comparison gets even where nothing is left."""

SECONDS_FOR_PAIRS = 10.0
"""Seconds for which a comparison of slow calls continues at least, to get the pairs of an interval."""


class DeviceLike(Protocol):
    """Where timed code runs. `metallab.device.Device` and `metallab.fake_device.FakeDevice` are devices."""

    @property
    def kind(self) -> str:
        """What computes: ``cpu``, ``mps``, ``cuda``."""

    @property
    def label(self) -> str:
        """The hardware's name."""

    @property
    def simulated(self) -> bool:
        """True where times are not those of the imitated hardware: no speed-up is given."""

    @property
    def waits_for_results(self) -> bool:
        """True if only results can be waited for (JAX, MLX)."""

    def synchronize(self, *results: Any) -> None:
        """Wait for everything launched so far and for the given results."""

    def active(self) -> contextlib.AbstractContextManager:
        """Return a context with settings, such as a number of threads."""


@dataclass(frozen=True)
class Host:
    """Plain Python on this computer."""

    label: str = "host"
    simulated: bool = False
    waits_for_results: bool = False
    kind: str = "cpu"

    def synchronize(self, *results: Any) -> None:
        """Nothing to wait for."""

    def active(self) -> contextlib.AbstractContextManager:
        """No settings."""
        return contextlib.nullcontext()

    def cache_clearer(self) -> Callable[[], Any]:
        """Return what clears the caches of the core that runs this thread; see `metallab.caches`."""
        return caches.make_numpy_clearer()


@dataclass(frozen=True)
class Budget:
    """How long to measure; waiting between samples counts, too."""

    min_samples: int = 10
    min_seconds: float = 0.5
    max_seconds: float = 4.0
    max_samples: int | None = None
    warmup_calls: int = 3
    warmup_seconds: float = 0.025
    warmup_limit: float = 0.5
    block_seconds: float = 0.020


PAGE_SENTINEL = Budget(min_seconds=0.2, max_seconds=2.0)
"""Of the two measurements of a sentinel that a page opens, or that `make bench` makes around one."""

SENTINEL_TRIES = 3
"""Such a measurement that other programs disturbed is taken again, up to so many times in all."""

LOOK = Budget(min_samples=5, min_seconds=0.05, max_seconds=0.5)
"""Of a comparison's look at the speed of a device, before its rounds and after each stretch of them."""

FULL = Budget()
FULL_COMPARISON = Budget(min_samples=20)  # 20 pairs see a true 1.10 at 5 % noise; 10 often do not
FAST = Budget(
    min_samples=3,
    max_samples=3,
    warmup_calls=1,
    warmup_seconds=0.0,
    warmup_limit=0.0,
    block_seconds=0.002,
)


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
    """Time ``fn()`` on a device, once for each shape and dtype.

    A function that works on the simulated GPU is labelled so, whatever ``on`` says.

    ``dtype`` (``torch.float16``, ``"float16"``) and ``size`` are only recorded. ``budget`` is `FULL`, or `FAST` in fast
    mode; ``clock`` returns nanoseconds. TypeError if ``fn`` cannot be called; ValueError for an unknown dtype.

    In a notebook the result is saved after the cell (`metallab.session`).
    """
    measured = _measure(fn, on, question, name, dtype, size, budget, clock)
    return results_made.announce(measured)


def _measure(
    fn: Callable[[], Any],
    on: DeviceLike,
    question: Question,
    name: str | None,
    dtype: Any,
    size: Size | float | None,
    budget: Budget | None,
    clock: Clock,
) -> Measurement:
    budget = budget or (FULL if mode.current() == "full" else FAST)
    sampler = _Sampler(fn, on, question, clock)
    with undisturbed() as load, on.active():
        sampler.prepare(budget)
        samples = _Samples(1, clock)
        while (reason := samples.stop_reason(budget)) is None:
            samples.rows.append((sampler.sample(),))
    seconds = [seconds for (seconds,) in samples.kept]
    about = {"dtype": _dtype(dtype), "size": _size(size)}
    return sampler.measurement(
        name or getattr(fn, "__name__", type(fn).__name__), seconds, reason, load.cores(), about
    )


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
    seconds: float | None = None,
    cold: bool = False,
    seed: int = 0,
    clock: Clock = time.perf_counter_ns,
) -> Comparison:
    """Time variants side by side: each round takes one sample of each, in random order.

    Pairing within a round cancels drift, the random order cancels cycles. Between the rounds a sentinel watches the
    speed of each device that has work for one, unless the page has one open. Rounds in which other programs were busy,
    or the machine had another speed than in most, are taken again, as the budget permits.

    After the last sample each variant is called once more, untimed, and its result compared with the baseline's first
    one. So a function that is right at first only, learns, or changes an input gets no speed-up; let it work on a copy,
    or learn at a rate of 0. Results of timed calls are compared as well, in rounds drawn at random: a GPU job that the
    system aborts ends early and silently, and would count as a fast one.

    Parameters
    ----------
    variants, baseline
        Functions without arguments, by name, and the name of the one that the others are compared with.
    on
        One device, or one for each variant.
    parity
        ``parity(reference, result)`` raises AssertionError, or returns anything but True or None, where results differ
        (`metallab.checks.matches` makes one); such a variant gets no speed-up. A mapping has one for each variant.
    question, budget, seed, clock
        ``latency`` or ``throughput``; `FULL_COMPARISON`, or `FAST` in fast mode; of the order; returns nanoseconds.
    seconds
        The time for all of it, as far as slow calls leave a choice: each variant gets its share. By default the budget
        alone says how long.
    cold
        Clear the caches of a variant's device before each of its samples, outside of the time that is taken, as where
        other work comes between two calls of your program. The untimed call before stays, so threads are awake and
        kernels compiled: only the data have to come from memory. It works on PyTorch's devices and on `Host`, for
        latency; the results say that caches were cold. The simulated GPU computes in the CPU's memory, so the CPU's
        caches are cleared there.
    dtype, size, series, roles
        Only recorded: number format, of all variants or of each; amount of work; name of comparisons that differ in
        size only (``series="product, n", size=64`` makes ``product, n = 64``); what each is: ``{"cuda": "GPU"}``.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a variant has no device or parity, or cannot be called; for a size without a series, an unknown dtype, or
        ``seconds`` that are not above 0; for ``cold`` with throughput, and where caches cannot be cleared
        (`metallab.caches.CachesNotCleared`).

    In a notebook the result is saved after the cell (`metallab.session`).
    """
    judges = _judges(variants, baseline, parity)
    devices = _for_each(variants, on, "no device is given for {}: on= names one for each variant")
    if size is not None and not series:
        raise ValueError(
            "a size is one of a series: name what its comparisons have in common, series='product, n'"
        )
    dtypes = dtype if isinstance(dtype, Mapping) else dict.fromkeys(variants, dtype)
    size, budget = _size(size), budget or (FULL_COMPARISON if mode.current() == "full" else FAST)
    if seconds is not None:
        assert_time(seconds, "a comparison")
        budget = shorten(budget, seconds / len(variants))
    name = name or (f"{series} = {size.number:g}" if size else "comparison")
    samplers = {key: _Sampler(fn, devices[key], question, clock) for key, fn in variants.items()}
    if cold:
        _give_clearers(samplers.values())
    rounds, refused = _in_turns(samplers, baseline, judges, budget, random.Random(seed))
    times = dict(zip(samplers, zip(*rounds.rows, strict=True), strict=True))
    measurements = {
        key: sampler.measurement(
            key,
            times[key],
            rounds.stop_reason,
            rounds.others,
            {"dtype": _dtype(dtypes.get(key)), "size": size},
        )
        for key, sampler in samplers.items()
    }
    paired = {
        key: Ratio.of(key, baseline, times[key], times[baseline], verdicts.choose_sampling(cold))
        for key in judges
        if key not in refused
    }
    check = "; ".join(dict.fromkeys(map(describe_check, judges.values())))
    roles = dict(roles or {})
    compared = Comparison(
        name,
        question,
        baseline,
        measurements,
        paired,
        refused,
        check,
        rounds.watches,
        series,
        roles,
    )
    return results_made.announce(compared)


def compare_samples(
    measurements: Mapping[str, Measurement], *, baseline: str, name: str, parity: str
) -> Comparison:
    """Return a comparison of samples that were taken elsewhere and are paired by position.

    ``parity`` describes how outputs were compared before. ValueError for different numbers of samples.

    In a notebook the result is saved after the cell (`metallab.session`).
    """
    compared = verdicts.compare_samples(measurements, baseline=baseline, name=name, parity=parity)
    return results_made.announce(compared)


def within(
    seconds: float,
    items: Iterable[T],
    what: str = "",
    *,
    least: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[T]:
    """Go through ``items`` while there is time for one more, and print which were left out for lack of it.

    One more is taken to need what the one before took, so on a slow machine a sweep is shorter, and it is said. Nothing
    is interrupted: it takes longer by what had begun, or by what ``least`` insists on.

    >>> for n in timing.within(20, [64, 256, 1024], "sizes"):
    ...     timing.measure(make(n), on=lab, name=f"{n}")

    Parameters
    ----------
    seconds
        The time for all of them, from the first on.
    items
        What is gone through, such as sizes.
    what
        What they are, for the line that says which were left out.
    least
        So many are done in any case.
    clock
        Returns seconds.

    Raises
    ------
    ValueError
        If ``seconds`` is not above 0.
    """
    assert_time(seconds, "a sweep")
    waiting = list(items)
    started = clock()
    last = 0.0
    for done, item in enumerate(waiting):
        begun = clock()
        if done >= least and last > seconds - (begun - started):
            left_out = f"{what} {', '.join(map(str, waiting[done:]))}".lstrip()
            took = f"the last one, {waiting[done - 1]}, took {units.seconds(last)}"
            print(f"Left out for lack of time ({units.seconds(seconds)}): {left_out} ({took}).")
            return
        yield item
        last = clock() - begun


def shorten(budget: Budget, seconds: float) -> Budget:
    """Return a budget that takes at most so many seconds, though never less than `SHORTEST`."""
    most = min(budget.max_seconds, max(SHORTEST, seconds))
    return replace(budget, max_seconds=most, min_seconds=min(budget.min_seconds, most))


def assert_time(seconds: float, what: str) -> None:
    """ValueError unless this is a time: neither 0 nor negative, infinite or NaN."""
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{what}: {seconds} s is no time; give seconds, more than 0 (of work: measure one first)"
        )


def _judges(
    variants: Iterable[str], baseline: str, parity: ParityCheck | Mapping[str, ParityCheck]
) -> dict[str, ParityCheck]:
    """Return the parity check of each variant but the baseline. KeyError and TypeError as `compare`."""
    if baseline not in variants:
        raise KeyError(f"baseline {baseline!r} is not among the variants {sorted(variants)}")
    others = [key for key in variants if key != baseline]
    judges = _for_each(others, parity, "no parity is given for {}: a speed-up needs equal outputs")
    for judge in judges.values():
        if not callable(judge):
            raise TypeError(
                f"{judge!r} is given as a parity: give a function of two results, or Unchecked with a reason"
            )
    return judges


def _for_each(variants: Iterable[str], given: Any, missing: str) -> dict[str, Any]:
    """Return a value for each variant, from a mapping or from one for all. KeyError if one is missing."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(variants, given)
    if lacking := sorted(set(variants) - given.keys()):
        raise KeyError(missing.format(", ".join(lacking)))
    return {variant: given[variant] for variant in variants}


@contextlib.contextmanager
def sentinel(
    fn: Callable[[], Any],
    *,
    on: DeviceLike,
    budget: Budget | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Iterator[Sentinel]:
    """``with sentinel(work, on=lab) as watch: ...`` and then ``watch.drift``, ``watch.throttled``.

    Comparisons inside of it open none of their own.
    """
    short = budget or (PAGE_SENTINEL if mode.current() == "full" else FAST)

    def timed() -> Measurement:
        for _ in range(SENTINEL_TRIES):
            measured = _measure(fn, on, "latency", "sentinel", None, None, short, clock)
            if not measured.is_busy:
                break
        return measured

    watch = Sentinel(before=timed())
    Sentinel.watching.append(watch)
    try:
        yield watch
    finally:
        Sentinel.watching.remove(watch)
    watch.after = timed()


class _Sampler:
    """Takes samples of one function on one device."""

    def __init__(
        self, fn: Callable[[], Any], device: DeviceLike, question: Question, clock: Clock
    ) -> None:
        if question not in ("latency", "throughput"):
            raise ValueError(f"question is {question!r}; ask for 'latency' or 'throughput'")
        if not callable(fn):
            raise TypeError(
                f"{type(fn).__name__} cannot be called: give the function itself, as in lambda: model(x)"
            )
        self.fn, self.device, self.question, self.clock = fn, device, question, clock
        self.synchronize, self.waits_for_results = device.synchronize, device.waits_for_results
        self.block = 1
        self.first_call = math.nan
        self.first_result: Any = None
        self.kept_result: Any = None
        self.result_bytes: list[int] = []
        """The size of each piece of memory that a call's result lies in."""
        self.last_call = math.nan
        """Seconds of a call, when last timed."""
        self.warm_ups = 0
        self.has_simulated = False
        """Whether a call worked on the simulated GPU, whatever device it was said to run on."""
        self.clear_caches: Callable[[], Any] | None = None
        """What is called before each sample of a comparison; None if its caches stay warm."""

    @property
    def is_simulated(self) -> bool:
        """True if its times are not those of any hardware."""
        return self.device.simulated or self.has_simulated

    def prepare(self, budget: Budget) -> None:
        """Make the first call, warm up, and find the number of calls that fill a block."""
        self.first_call = self._timed_block(keep_result=True)
        self.first_result = self.take_result()
        self.warm_ups = _warm_up(self._timed_block, budget, self.clock)
        while self.question == "throughput" and not self._block_is_full(
            self._timed_block(), budget
        ):
            self.block *= 2
            if self.block > 2**24:
                raise RuntimeError(
                    f"{self.block} calls took no time by this clock; is the clock running?"
                )

    def _block_is_full(self, seconds: float, budget: Budget) -> bool:
        """Return True if a block is long enough, with calls that can overlap, or its results fill the memory."""
        overlap = self.device.kind != "cpu" or self.waits_for_results
        is_row = (
            not overlap
            or self.block >= ROW_CALLS
            or 2 * seconds > LONGEST_ROW * budget.block_seconds
        )
        return (seconds >= budget.block_seconds and is_row) or 2 * self.block > self._most_calls()

    def _most_calls(self) -> float:
        """Return how many results of a block fit into memory, where all are kept."""
        arrays = leaves(self.first_result) if self.waits_for_results else ()
        kept = sum(getattr(array, "nbytes", 0) for array in arrays)
        return KEPT_BYTES / kept if kept else math.inf

    def last_result(self) -> Any:
        """Return the result of one more, untimed call: keeping a timed one's would change the next one's memory."""
        with self.device.active():
            result = self.fn()
            self.device.synchronize(result)
        return result

    def warm_up_once(self) -> None:
        """Make one untimed call, to restore this variant's caches and threads, unless calls are slow."""
        if self.last_call < SLOW_CALL:
            self.device.synchronize(self.fn())

    def overwrite_freed(self) -> None:
        """Write over the memory that earlier results were freed from, if this kind of device can.

        The next results get it from the allocator. A call that computes nothing would return what lies there: the right
        result of an earlier call, and nothing would show.
        """
        overwrite = getattr(self.device, "overwrite_freed", None)
        if overwrite is not None:
            held_at_once = min(self.block, 2)  # a result is freed when the next call has returned
            sizes = self.result_bytes * held_at_once
            if sum(sizes) <= KEPT_BYTES:
                overwrite(sizes)

    def sample(self, keep_result: bool = False) -> float:
        """Return the seconds per call of one block; its last result is kept for `take_result` if wanted.

        Caches are cleared before, where that was asked for, and the block waits until they are.
        """
        if self.clear_caches is not None:
            self.clear_caches()
        return self._timed_block(keep_result) / self.block

    def take_result(self) -> Any:
        """Return the result that was kept, once: held longer it would change the memory of later calls."""
        result, self.kept_result = self.kept_result, None
        return result

    def _timed_block(self, keep_result: bool = False) -> float:
        fn, synchronize, clock = self.fn, self.synchronize, self.clock
        calls = itertools.repeat(None, self.block)
        simulated_before = simulation.count_work()
        synchronize()  # earlier launches belong to no sample
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
        if simulation.count_work() != simulated_before or is_on_simulated_gpu(result):
            self.has_simulated = True
        if keep_result:
            self.kept_result = result
        seconds = max(stop - start, 1) / 1e9  # not zero, if the clock did not tick
        self.last_call = seconds / self.block
        return seconds

    def measurement(
        self,
        name: str,
        samples: Sequence[float],
        reason: str,
        others: float,
        about: Mapping[str, Any],
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
            cold=self.clear_caches is not None,
            **self._where(),
            **about,
        )

    def _where(self) -> dict[str, Any]:
        """Return the fields of a `Measurement` about where the function ran, which its tensors decide."""
        if not self.has_simulated or self.device.simulated:
            return described(self.device)
        return {"device": simulation.label(), "simulated": True, "kind": "mps", "threads": None}


def _give_clearers(samplers: Iterable[_Sampler]) -> None:
    """Let samplers clear the caches of their devices; those of one kind share a buffer, which may be large.

    ValueError for throughput; `metallab.caches.CachesNotCleared` for a device that does not know how.
    """
    clearers: dict[tuple[str, type], Callable[[], Any]] = {}
    for sampler in samplers:
        device = sampler.device
        if sampler.question != "latency":
            raise ValueError(
                "cold=True is about single calls, since only the first of a row would be cold: ask for "
                "question='latency'"
            )

        make = getattr(device, "cache_clearer", None)
        if make is None:
            raise caches.CachesNotCleared(
                f"the caches of {device.label} cannot be cleared from here: leave cold=True out, or compare on a "
                "device of PyTorch or on timing.Host()"
            )

        kind = (device.kind, type(device))
        if kind not in clearers:
            clearers[kind] = make()
        sampler.clear_caches = clearers[kind]


def described(device: DeviceLike) -> dict[str, Any]:
    """Return the fields of a `Measurement` about its device."""
    threads = getattr(device, "threads", None)  # a CPU's, where they are set
    return {
        "device": device.label,
        "simulated": device.simulated,
        "kind": device.kind,
        "threads": threads,
    }


def _dtype(given: Any) -> Dtype | None:
    """Return the name of ``"float16"``, ``torch.float16``, ``numpy.dtype("float16")``."""
    name = None if given is None else units.dtype_name(given)
    if name not in (None, *get_args(Dtype)):
        raise ValueError(
            f"dtype is {given!r}; name one of {', '.join(get_args(Dtype))}, or leave it out"
        )
    return name


def _size(given: Size | float | None) -> Size | None:
    return given if given is None or isinstance(given, Size) else Size(given)


class _Samples:
    """Rows of samples, a column for each variant, and the rule when to stop."""

    def __init__(self, columns: int, clock: Clock) -> None:
        self.columns = columns
        self.clock, self.started = clock, clock()
        self.rows: list[Sequence[float]] = []
        self.next_look = 1  # at least one sample

    @property
    def seconds(self) -> float:
        """Since the first could be taken."""
        return (self.clock() - self.started) / 1e9

    @property
    def kept(self) -> list[Sequence[float]]:
        """The rows, or every n-th of more than twice `KEEP`."""
        return self.rows[:: max(1, len(self.rows) // KEEP)]

    def stop_reason(self, budget: Budget, repeated: float = 0.0) -> str | None:
        """Return why to stop now, or None to go on. The noise is computed from time to time.

        ``repeated`` is the time, in seconds, of rows that do not count, since others are taken in their place.
        """
        seen = len(self.rows)
        if seen < self.next_look:
            return None
        # look again after a fifth more samples, and at the budget's numbers
        named = [
            count for count in (budget.min_samples, budget.max_samples) if count and count > seen
        ]
        self.next_look = min([math.ceil(seen * 1.2), *named])
        if budget.max_samples and seen >= budget.max_samples:
            return f"{seen} samples, as asked"
        enough = seen >= budget.min_samples
        passed = self.seconds
        if enough and passed - repeated >= budget.min_seconds * self.columns:
            columns = list(zip(*self.kept, strict=True))
            if all(noise(column) < 0.05 for column in columns):
                return "quiet"
            if seen >= 2 * budget.min_samples and all(map(_noise_is_stable, columns)):
                return "noise is stable"
        return "time limit" if passed >= self._patience(budget, enough) else None

    def _patience(self, budget: Budget, enough: bool) -> float:
        """Return the time limit; a comparison of slow variants has more, for the pairs of an interval."""
        if enough or self.columns == 1:
            return budget.max_seconds
        limit = budget.max_seconds * self.columns
        lacking = len(self.rows) < FEWEST_PAIRS <= budget.min_samples
        return (
            max(2 * limit, SECONDS_FOR_PAIRS) if lacking else limit
        )  # twice: each sample follows an untimed call


@dataclass(frozen=True)
class _Rounds:
    """The rounds of a comparison that count."""

    rows: list[Sequence[float]]
    """Seconds a call: a row for each round, a column for each variant."""
    stop_reason: str
    others: float
    """Cores that other programs used meanwhile."""
    watches: tuple[Sentinel, ...]
    """The sentinel of each device that was watched: two of its looks at these rounds, those that differ most."""


def _in_turns(
    samplers: Mapping[str, _Sampler],
    baseline: str,
    judges: Mapping[str, ParityCheck],
    budget: Budget,
    rng: random.Random,
) -> tuple[_Rounds, dict[str, Withheld]]:
    """Sample in rounds, and check outputs before and after.

    Return the rounds that count, and the variants that are refused.
    """
    with undisturbed():
        for sampler in samplers.values():
            with sampler.device.active():
                sampler.prepare(budget)
        at_first = _differing_at_first(samplers, baseline, judges)
        checked = {
            k: j for k, j in judges.items() if k not in at_first and not isinstance(j, Unchecked)
        }
        inspections = Inspections(
            baseline,
            checked,
            {k: samplers[k].first_result for k in (baseline, *checked)},
            budget.max_samples or FEWEST_PAIRS,
            samplers[baseline].clock,
            rng,
        )
        for sampler in samplers.values():
            sampler.result_bytes = memory_of(sampler.first_result)
            sampler.first_result = None  # so that memory is what it would be without the check

        rounds = _interleave(samplers, budget, rng, inspections)
    in_the_end = _differing_in_the_end(samplers, baseline, checked, inspections.reference)
    for variant, number in inspections.differed_in.items():
        if (
            variant in in_the_end
        ):  # whose words are kept, as they tell whether the baseline changed, too
            detail = f"{in_the_end[variant].detail}; so it was in round {number}"
            in_the_end[variant] = Withheld(Reason.OUTPUTS_DIFFER, detail)
    differing = at_first | inspections.refused | in_the_end
    return rounds, _simulated(samplers, baseline) | differing


class _Lookout:
    """Looks at the speed of a comparison's devices, by a piece of work that is the same each time.

    A device without ``fixed_work`` is not watched, nor the simulated GPU, nor anything in fast mode: there no speed-up
    is given anyway. Nor is anything where the page has a sentinel open, which watches all of its comparisons.
    """

    def __init__(self, devices: Iterable[DeviceLike], clock: Clock) -> None:
        self.clock = clock
        self.opened_by_page = tuple(Sentinel.watching)
        self.watched: dict[str, DeviceLike] = {}
        if self.opened_by_page or mode.current() != "full":
            return

        for device in devices:
            if hasattr(device, "fixed_work") and not device.simulated:
                # a processor is watched once, however many of its threads each variant may use
                self.watched.setdefault("CPU" if device.kind == "cpu" else device.label, device)
        self.work = {name: device.fixed_work() for name, device in self.watched.items()}

    def look(self) -> _Look:
        """Return how long the work takes now on each device."""
        return tuple(
            _measure(self.work[name], device, "latency", "sentinel", None, None, LOOK, self.clock)
            for name, device in self.watched.items()
        )

    def sentinels(self, looks: Sequence[_Look]) -> tuple[Sentinel, ...]:
        """Return the page's sentinels, or for each device the two looks that differ most, in the order of time."""
        if self.opened_by_page:
            return self.opened_by_page

        found = []
        for of_device in zip(*looks, strict=True):
            extremes = [pick(of_device, key=lambda each: each.median) for pick in (min, max)]
            first, last = sorted(extremes, key=of_device.index)
            found.append(Sentinel(before=first, after=last))
        return tuple(found)


_Look = tuple[Measurement, ...]
"""The time of each watched device's fixed work."""


@dataclass(frozen=True)
class _Stretch:
    """Some rounds in a row, between two looks at the machine's speed."""

    rows: list[Sequence[float]]
    seconds: float
    others: float
    """Cores that other programs used."""
    looks: tuple[_Look, _Look]


class _Stretches:
    """Parts the rounds of a comparison into stretches, and knows which of them were disturbed.

    Systems count the work of programs in steps of 10 ms, so a single short round cannot be judged. A stretch is
    disturbed if others were busy in it, or if a device had another speed at one of its ends than in the stretches that
    count (`_steady`). Its rounds are taken again in others. What is chosen by is the speed of work that no variant
    does, never the variants' own times, so that the choice favours none of them.

    If others are busy most of the time, the machine is busy for good. Then all rounds count, and the comparison says
    so. They do, too, where nothing steady comes within the budget, or where it asks for a number of samples.
    """

    SECONDS = 0.5
    """Of a stretch, at least."""

    TRIES = 3
    """Others who were busy for most of this many times the least time of a comparison are busy for good."""

    def __init__(self, columns: int, clock: Clock, budget: Budget, lookout: _Lookout) -> None:
        self.clock, self.budget, self.lookout = clock, budget, lookout
        self.counted = _Samples(columns, clock)
        self.all = _Samples(columns, clock)
        self.least = budget.min_seconds * columns
        self.fewest = min(budget.min_samples, FEWEST_PAIRS)
        self.closed: list[_Stretch] = []
        self.steady: list[_Stretch] = []
        """Those of them that count."""
        self._open()

    def _open(self) -> None:
        self.look = self.lookout.look()
        self.open_rows: list[Sequence[float]] = []
        self.load = Others()
        self.opened = self.clock()

    @property
    def _open_seconds(self) -> float:
        return (self.clock() - self.opened) / 1e9

    def add(self, row: Sequence[float]) -> None:
        """Take a round in; with it a stretch may end."""
        self.all.rows.append(row)
        self.open_rows.append(row)
        if self._open_seconds >= self.SECONDS:
            self._close()

    def _close(self) -> None:
        """End a stretch, and find anew which of them count."""
        rows, before = self.open_rows, self.look
        seconds, others = self._open_seconds, self.load.cores()
        self._open()
        self.closed.append(_Stretch(rows, seconds, others, (before, self.look)))

        quiet = [stretch for stretch in self.closed if stretch.others <= BUSY]
        self.steady = _steady(quiet)
        self.counted.rows = [row for stretch in self.steady for row in stretch.rows]

    @property
    def _is_busy_for_good(self) -> bool:
        passed = sum(stretch.seconds for stretch in self.closed)
        busy = sum(stretch.seconds for stretch in self.closed if stretch.others > BUSY)
        return passed >= self.TRIES * self.least and busy > passed / 2

    @property
    def _all_count(self) -> bool:
        """True if nothing was disturbed, or is not taken again."""
        nothing_disturbed = len(self.steady) == len(self.closed)
        return bool(self.budget.max_samples) or nothing_disturbed or self._is_busy_for_good

    def stop_reason(self) -> str | None:
        """Return why to stop now, or None to go on: judged by the rounds that count."""
        if self._all_count:
            reason = self.all.stop_reason(self.budget)
            if reason and self.open_rows:
                self._close()
            if self._all_count:
                return reason

        counted_seconds = sum(stretch.seconds for stretch in self.steady)
        is_late = self.all.seconds >= 2 * self.budget.max_seconds * self.all.columns
        reason = self.counted.stop_reason(
            self.budget, repeated=self.counted.seconds - counted_seconds
        )
        return reason or ("time limit" if is_late else None)

    def finish(self, reason: str) -> _Rounds:
        """Return the rounds that count: the undisturbed ones, if they are enough for an interval."""
        if self.open_rows:
            self._close()
        enough = len(self.counted.rows) >= self.fewest
        if self._all_count or not enough:
            return self._rounds(self.all, self.closed, reason)

        repeated = len(self.all.rows) - len(self.counted.rows)
        told = f"{reason}; {repeated} disturbed rounds do not count" if repeated else reason
        return self._rounds(self.counted, self.steady, told)

    def _rounds(
        self, samples: _Samples, stretches: Sequence[_Stretch], stop_reason: str
    ) -> _Rounds:
        """Return the rounds of some stretches, with what other programs and the speed did in them."""
        seconds = sum(stretch.seconds for stretch in stretches)
        work = sum(stretch.others * stretch.seconds for stretch in stretches)
        looks = [look for stretch in stretches for look in stretch.looks]
        return _Rounds(
            samples.kept,
            stop_reason,
            work / seconds if seconds else 0.0,
            self.lookout.sentinels(looks),
        )


def _steady(stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """Return those that have the most rounds together, and in which each device kept its speed.

    It did if no two looks at it, at the ends of these stretches, differ by more than a drift (`has_drifted`).
    """
    looks = {id(look): look for stretch in stretches for look in stretch.looks}.values()
    of_each_device = zip(*looks, strict=True)
    best: list[_Stretch] = []
    for fastest in itertools.product(*of_each_device):
        limits = [(look.median, look.median * (1 + DRIFT)) for look in fastest]
        steady = [
            stretch
            for stretch in stretches
            if all(
                low <= measured.median <= high
                for look in stretch.looks
                for measured, (low, high) in zip(look, limits, strict=True)
            )
        ]
        best = max(best, steady, key=lambda those: sum(len(each.rows) for each in those))
    return best


def _interleave(
    samplers: Mapping[str, _Sampler],
    budget: Budget,
    rng: random.Random,
    inspections: Inspections,
) -> _Rounds:
    """Take rounds of one sample each, shuffled in every round, until enough of them count."""
    columns = list(samplers.items())
    clock = columns[0][1].clock
    lookout = _Lookout([sampler.device for _, sampler in columns], clock)
    stretches = _Stretches(len(columns), clock, budget, lookout)
    order = list(range(len(columns)))
    while (reason := stretches.stop_reason()) is None:
        rng.shuffle(order)
        row = [0.0] * len(columns)
        inspections.begin_round()
        for index in order:
            name, sampler = columns[index]
            with sampler.device.active():
                sampler.warm_up_once()
                if inspections.is_due:
                    inspections.prepare(sampler.overwrite_freed)
                row[index] = sampler.sample(keep_result=inspections.is_due)
                if inspections.is_due:
                    inspections.compare(name, sampler.take_result())
        inspections.end_round()
        stretches.add(row)
    return stretches.finish(reason)


def _warm_up(timed_call: Callable[[], float], budget: Budget, clock: Clock) -> int:
    """Call until the times have settled; return the number of calls.

    Settled: the medians of both halves are within 5 %. Each look comes after twice the time of the one before.
    """
    times: list[float] = []
    start, spent, goal = clock(), 0.0, budget.warmup_seconds
    while True:
        out_of_patience = False
        while (len(times) < budget.warmup_calls or spent < goal) and not out_of_patience:
            times.append(timed_call())
            spent += times[-1]
            out_of_patience = (clock() - start) / 1e9 >= budget.warmup_limit > 0
        if spent >= budget.warmup_limit or out_of_patience or _halves_agree(times):
            return len(times)
        goal = 2 * spent


def _halves_agree(times: Sequence[float]) -> bool:
    if len(times) < 2:
        return False
    half = len(times) // 2
    first, second = np.median(times[:half]), np.median(times[half:])
    return abs(first - second) <= 0.05 * second


def _simulated(samplers: Mapping[str, _Sampler], baseline: str) -> dict[str, Withheld]:
    """Return the variants that worked on the simulated GPU, or whose baseline did: they are told no speed-up."""
    base = samplers[baseline]
    return {
        name: SIMULATED
        for name, sampler in samplers.items()
        if name != baseline and (sampler.is_simulated or base.is_simulated)
    }


def _differing_at_first(
    samplers: Mapping[str, _Sampler], baseline: str, parity: Mapping[str, ParityCheck]
) -> dict[str, Withheld]:
    """Return the variants whose first result differs from the baseline's, and how."""
    differing, reference = {}, samplers[baseline].first_result
    for variant, judge in parity.items():
        if difference := difference_of(judge, reference, samplers[variant].first_result):
            differing[variant] = Withheld(Reason.OUTPUTS_DIFFER, difference)
    return differing


def _differing_in_the_end(
    samplers: Mapping[str, _Sampler], baseline: str, parity: Mapping[str, ParityCheck], first: Any
) -> dict[str, Withheld]:
    """Return the variants whose last result, or the baseline's, differs from the baseline's first."""
    differing: dict[str, Withheld] = {}
    for called in (baseline, *parity) if parity else ():
        result = samplers[
            called
        ].last_result()  # compared before another function can write over it
        whose = f"'{baseline}' itself returns" if called == baseline else "it returns"
        for key in parity if called == baseline else [called]:
            if key not in differing and (difference := difference_of(parity[key], first, result)):
                changed = (
                    f"{whose} something else in the last call, so a function changes its input or itself, "
                    "or the system aborted the call"
                )
                differing[key] = Withheld(Reason.OUTPUTS_DIFFER, f"{changed}: {difference}")
    return differing


def _noise_is_stable(samples: Sequence[float]) -> bool:
    """Return True if half of the samples have the same noise within 10 %."""
    now, before = noise(samples), noise(samples[: len(samples) // 2])
    return abs(now - before) <= 0.10 * now


class Others:
    """Counts the cores that other programs use: all busy time less that of this process and of those it started."""

    def __init__(self) -> None:
        self.wall, self.busy, self.own = time.monotonic(), _busy_seconds(), _own_seconds()

    def cores(self) -> float:
        """Return the cores that others used on average; 0 where the time was too short to know."""
        wall = time.monotonic() - self.wall
        if wall < 0.3:  # systems count in steps of 10 ms
            return 0.0
        return max(0.0, (_busy_seconds() - self.busy - (_own_seconds() - self.own)) / wall)


def _own_seconds() -> float:
    """Return the busy seconds of this process and of all that it started, such as compilers and workers that load data.

    What a process that has ended used is in the count of the one that waited for it. macOS keeps that for this process
    alone: there the work of a child's child counts as that of others once it has ended.
    """
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            used = child.cpu_times()
            seconds += used.user + used.system + used.children_user + used.children_system
    return seconds


def _busy_seconds() -> float:
    """Return the busy seconds of all cores since the machine started, with those taken by its host."""
    times = psutil.cpu_times()
    return sum(
        getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal")
    )


@contextlib.contextmanager
def undisturbed() -> Iterator[Others]:
    """Wait for a turn, then switch garbage collection off; yields the count of other programs' work from then on."""
    with turns.turn():
        load = Others()
        was_on = gc.isenabled()
        gc.disable()
        try:
            yield load
        finally:
            if was_on:
                gc.enable()
