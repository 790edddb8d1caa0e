"""Compare functions: `compare` times them side by side and checks that they return the same."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from metallab import mode, results_made
from metallab.fields import Dtype
from metallab.timing import budget as budgets
from metallab.timing.budget import Budget, Clock, assert_time, shorten
from metallab.timing.comparison import Comparison, pair_samples
from metallab.timing.devices import DeviceLike
from metallab.timing.inspections import Inspections, memory_of
from metallab.timing.load import quiet
from metallab.timing.measurement import Measurement, Question, Size
from metallab.timing.measuring import read_dtype, read_size
from metallab.timing.outputs import ParityCheck, Unchecked, describe_check, difference_of
from metallab.timing.rounds import Rounds, take_rounds
from metallab.timing.sampler import Sampler, give_clearers
from metallab.timing.verdicts import (
    FEWEST_PAIRS,
    SIMULATED,
    Ratio,
    Reason,
    Withheld,
    choose_sampling,
)

T = TypeVar("T")


def compare(  # noqa: PLR0913 - all but the variants are keywords, which a page names
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
    """Time variants side by side, check that they return the same, and say which is faster.

    Each round takes one sample of each variant, in random order: pairing within a round cancels drift, the random order
    cancels cycles. Between the rounds a sentinel watches the speed of each device that has work for one, unless the
    page has one open. Rounds in which other programs were busy, or the machine had another speed than in most, are
    taken again, as long as there is time.

    **How long it takes**: half a second for each variant if their times are steady. If they vary it ends after four
    seconds in all, or, where calls are so slow that there are no 20 rounds by then, after up to four for each variant,
    and of calls of seconds later still, when there are enough pairs for an interval. It takes up to about twice that if
    disturbed rounds are taken again, and where the times are steady up to four times as long. ``seconds=`` sets a limit
    for all of it; with 20 rounds it ends after the share of one variant, as after the four seconds.

    **What is compared**: after the last sample each variant is called once more, untimed, and its result compared with
    the baseline's first one. So a function that is right at first only, learns, or changes an input gets no speed-up;
    let it work on a copy, or learn at a rate of 0. Results of timed calls are compared as well, in rounds drawn at
    random: a GPU job that the system aborts ends early and silently, and would count as a fast one.

    **When a ratio is withheld**: for example where outputs differ, or other programs used more than `BUSY` cores. All
    reasons stand in README under *Why no speed-up is given*. The times are there all the same. In a notebook the result
    is saved after the cell (`metallab.session`).

    Parameters
    ----------
    variants
        Functions without arguments, by name. Each returns its result, so that it can be waited for and compared.
    on
        The device where they work, or one for each variant, by name: what `metallab.device.pick` returned, or
        ``timing.Host()`` for plain Python and NumPy.
    baseline
        The name of the variant that the others are compared with.
    parity
        What says whether two results are the same: ``parity(reference, result)`` raises AssertionError, or returns
        anything but True or None, where they differ. `metallab.checks.matches` makes one with the tolerance of a dtype,
        and `Unchecked` is one that accepts anything, for a reason. A variant that differs gets no speed-up. A mapping
        has one for each variant but the baseline.
    question
        ``"latency"``, how long a call takes whose result is waited for, or ``"throughput"``, how long each call takes
        of many that are waited for together.
    name
        Of the comparison, for people and for the file of results.
    dtype
        Number format, of all variants or of each, such as ``torch.float16``; it is only recorded.
    size
        Amount of work, a number or a `Size`, where comparisons differ in nothing else; it is only recorded.
    series
        What such comparisons have in common: ``series="product, n", size=64`` makes the name ``product, n = 64``.
    roles
        What each variant is on any machine, by name: ``{"cuda": "GPU"}``. It is only recorded.
    budget
        How long to measure; by default `FULL_COMPARISON`, in fast mode `FAST`.
    seconds
        The most time for all of it, as far as slow calls leave a choice: each variant gets its share. By default the
        budget alone says how long.
    cold
        Clear the caches of a variant's device before each of its samples, outside of the time that is taken, as where
        other work comes between two calls of your program. The untimed call before stays, so threads are awake and
        kernels compiled: only the data have to come from memory. It works on PyTorch's devices and on `Host`, for
        latency; the results say that caches were cold. The simulated GPU computes in the CPU's memory, so the CPU's
        caches are cleared there.
    seed
        Of the order of the variants in the rounds.
    clock
        Returns nanoseconds.

    Returns
    -------
    Comparison
        `print` it for everything in words. ``answers["name"]`` is a variant's speed-up, with its 95 % interval, or why
        it is withheld; ``compared["name"]`` is its `Measurement`, with samples in seconds.

    Raises
    ------
    KeyError
        If the baseline is no variant, or a variant has no device or no parity.
    TypeError
        If a variant, or a parity, cannot be called.
    ValueError
        For a size without a series, an unknown dtype, or ``seconds`` that are not above 0; for ``cold`` with
        throughput, and where caches cannot be cleared (`metallab.caches.CachesNotCleared`).

    Examples
    --------
    >>> import operator
    >>> from metallab import timing
    >>> numbers = list(range(1000))
    >>> def add_in_a_loop():
    ...     total = 0
    ...     for number in numbers:
    ...         total += number
    ...     return total
    >>> compared = timing.compare(
    ...     {"loop": add_in_a_loop, "sum": lambda: sum(numbers)},
    ...     on=timing.Host(),
    ...     baseline="loop",
    ...     parity=operator.eq,
    ...     name="add 1000 numbers",
    ... )
    >>> print(compared.answers["sum"])  # doctest: +SKIP
    sum is 4.06 times as fast as loop (95 % interval 4.05 to 4.08, 1180 pairs)
    >>> compared["sum"].median > 0
    True
    """
    checks = _read_checks(variants, baseline, parity)
    devices = _for_each(variants, on, "no device is given for {}: on= names one for each variant")
    if size is not None and not series:
        raise ValueError(
            "a size is one of a series: name what its comparisons have in common, series='product, n'"
        )
    size = read_size(size)
    dtypes = _read_dtypes(variants, dtype)
    name = name or _name_comparison(series, size)
    budget = _choose_budget(budget, seconds, len(variants))

    samplers = {key: Sampler(fn, devices[key], question, clock) for key, fn in variants.items()}
    if cold:
        give_clearers(samplers.values())
    rounds, refused = _measure_and_check(samplers, baseline, checks, budget, random.Random(seed))

    times = _sort_by_variant(rounds, samplers)
    measurements = {
        key: sampler.measurement(
            key, times[key], rounds.stop_reason, rounds.others, dtype=dtypes[key], size=size
        )
        for key, sampler in samplers.items()
    }
    sampling = choose_sampling(cold)
    ratios = {
        key: Ratio.of(key, baseline, times[key], times[baseline], sampling)
        for key in checks
        if key not in refused
    }

    compared = Comparison(
        name=name,
        question=question,
        baseline=baseline,
        measurements=measurements,
        paired=ratios,
        refused=refused,
        parity="; ".join(dict.fromkeys(map(describe_check, checks.values()))),
        sentinels=rounds.sentinels,
        series=series,
        roles=dict(roles or {}),
    )
    return results_made.announce(compared)


def compare_samples(
    measurements: Mapping[str, Measurement], *, baseline: str, name: str, parity: str
) -> Comparison:
    """Return a comparison of samples that were taken elsewhere and are paired by position.

    In a notebook the result is saved after the cell (`metallab.session`).

    Parameters
    ----------
    measurements
        By variant, the baseline among them, with as many samples each: those of one position are a pair.
    baseline
        The name of the variant that the others are compared with.
    name
        Of the comparison.
    parity
        How outputs were compared before, in words.

    Returns
    -------
    Comparison
        As `compare` returns it; its sentinels are those that are open.

    Raises
    ------
    ValueError
        For different numbers of samples.
    """
    compared = pair_samples(measurements, baseline=baseline, name=name, parity=parity)
    return results_made.announce(compared)


# ---- what is given -----------------------------------------------------------------------------------------------


def _read_dtypes(variants: Iterable[str], given: Any) -> dict[str, Dtype | None]:
    """Return the dtype of each variant by its name, from a mapping, which may lack some, or from one for all."""
    dtypes = given if isinstance(given, Mapping) else dict.fromkeys(variants, given)
    return {variant: read_dtype(dtypes.get(variant)) for variant in variants}


def _name_comparison(series: str, size: Size | None) -> str:
    """Return the name of a comparison that is given none: in a series that of its size, ``product, n = 64``."""
    if size is None:
        return "comparison"
    return f"{series} = {size.number:g}"


def _choose_budget(given: Budget | None, seconds: float | None, variants: int) -> Budget:
    """Return the budget of each variant: what is given or the mode's, and its share of the seconds at most."""
    budget = given
    if budget is None:
        budget = budgets.FULL_COMPARISON if mode.current() == "full" else budgets.FAST
    if seconds is None:
        return budget

    assert_time(seconds, "a comparison")
    return shorten(budget, seconds / variants)


def _read_checks(
    variants: Iterable[str], baseline: str, parity: ParityCheck | Mapping[str, ParityCheck]
) -> dict[str, ParityCheck]:
    """Return the parity check of each variant but the baseline. KeyError and TypeError as `compare`."""
    if baseline not in variants:
        raise KeyError(f"baseline {baseline!r} is not among the variants {sorted(variants)}")

    others = [key for key in variants if key != baseline]
    checks = _for_each(others, parity, "no parity is given for {}: a speed-up needs equal outputs")
    for check in checks.values():
        if not callable(check):
            raise TypeError(
                f"{check!r} is given as a parity: give a function of two results, or Unchecked with a reason"
            )
    return checks


def _for_each(variants: Iterable[str], given: T | Mapping[str, T], missing: str) -> dict[str, T]:
    """Return a value for each variant, from a mapping or from one for all. KeyError if one is missing."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(variants, given)

    lacking = sorted(set(variants) - given.keys())
    if lacking:
        raise KeyError(missing.format(", ".join(lacking)))
    return {variant: given[variant] for variant in variants}


# ---- rounds, and the outputs before, between and after them ------------------------------------------------------


def _measure_and_check(
    samplers: Mapping[str, Sampler],
    baseline: str,
    checks: Mapping[str, ParityCheck],
    budget: Budget,
    rng: random.Random,
) -> tuple[Rounds, dict[str, Withheld]]:
    """Take the rounds, and check outputs before, between and after them.

    Return the rounds that count, and the variants that are refused.
    """
    with quiet():
        for sampler in samplers.values():
            with sampler.device.active():
                sampler.prepare(budget)

        at_first = _find_differing_at_first(samplers, baseline, checks)
        inspections = _prepare_inspections(
            samplers, baseline, _without(checks, at_first), budget, rng
        )
        rounds = take_rounds(samplers, budget, rng, inspections)

    at_last = _find_differing_at_last(samplers, inspections)
    # a variant that differed in a round alone is in `inspections.refused`
    for variant, number in inspections.differed_in.items():
        if variant in at_last:
            # these words are kept, because they tell whether the baseline changed, too
            detail = f"{at_last[variant].detail}; so it was in round {number}"
            at_last[variant] = Withheld(Reason.OUTPUTS_DIFFER, detail)

    differing = at_first | inspections.refused | at_last
    return rounds, _find_simulated(samplers, baseline) | differing


def _sort_by_variant(rounds: Rounds, variants: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each variant, in the order of the rounds, of which each has one sample of each."""
    return dict(zip(variants, zip(*rounds.rows, strict=True), strict=True))


def _without(
    checks: Mapping[str, ParityCheck], refused: Mapping[str, Withheld]
) -> dict[str, ParityCheck]:
    """Return the checks that are still to be asked: of variants that are not refused, for a result to compare."""
    return {
        variant: check
        for variant, check in checks.items()
        if variant not in refused and not isinstance(check, Unchecked)
    }


def _prepare_inspections(
    samplers: Mapping[str, Sampler],
    baseline: str,
    checks: Mapping[str, ParityCheck],
    budget: Budget,
    rng: random.Random,
) -> Inspections:
    """Return what looks at results between the first and the last, and let go of the first ones."""
    inspections = Inspections(
        baseline,
        checks,
        {variant: samplers[variant].first_result for variant in (baseline, *checks)},
        certain=budget.max_samples or FEWEST_PAIRS,  # a small limit is the number of rounds
        clock=samplers[baseline].clock,
        rng=rng,
    )

    for sampler in samplers.values():
        sampler.result_bytes = memory_of(sampler.first_result)
        sampler.first_result = None  # so that memory is what it would be without the check
    return inspections


def _find_simulated(samplers: Mapping[str, Sampler], baseline: str) -> dict[str, Withheld]:
    """Return the variants that worked on the simulated GPU, or whose baseline did: they are told no speed-up."""
    base = samplers[baseline]
    return {
        variant: SIMULATED
        for variant, sampler in samplers.items()
        if variant != baseline and (sampler.is_simulated or base.is_simulated)
    }


def _find_differing_at_first(
    samplers: Mapping[str, Sampler], baseline: str, checks: Mapping[str, ParityCheck]
) -> dict[str, Withheld]:
    """Return the variants whose first result differs from the baseline's, and how."""
    reference = samplers[baseline].first_result

    differing = {}
    for variant, check in checks.items():
        difference = difference_of(check, reference, samplers[variant].first_result)
        if difference is not None:
            differing[variant] = Withheld(Reason.OUTPUTS_DIFFER, difference)
    return differing


def _find_differing_at_last(
    samplers: Mapping[str, Sampler], inspections: Inspections
) -> dict[str, Withheld]:
    """Return the variants whose last result, or the baseline's, differs from the baseline's first."""
    checks, baseline = inspections.judges, inspections.baseline
    if not checks:
        return {}

    differing: dict[str, Withheld] = {}
    for called in (baseline, *checks):
        # each is compared before another function can write over it
        result = samplers[called].last_result()
        whose = f"'{baseline}' itself returns" if called == baseline else "it returns"

        for variant in checks if called == baseline else [called]:
            if variant in differing:
                continue
            difference = difference_of(checks[variant], inspections.reference, result)
            if difference is not None:
                detail = (
                    f"{whose} something else in the last call, so a function draws random numbers, or changes its "
                    f"input or itself, or the system aborted the call: {difference}"
                )
                differing[variant] = Withheld(Reason.OUTPUTS_DIFFER, detail)
    return differing
