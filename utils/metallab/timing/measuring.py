"""Time one function: `measure`, and `sentinel`, which times fixed work before and after others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

from metallab import mode, results_made, units, wording
from metallab.fields import Dtype
from metallab.status_line import StatusLine
from metallab.timing import budget as budgets
from metallab.timing.budget import Budget, Clock
from metallab.timing.devices import DeviceLike
from metallab.timing.load import quiet
from metallab.timing.measurement import Measurement, Question, Size
from metallab.timing.sampler import Sampler
from metallab.timing.sentinels import Sentinel, keep_open
from metallab.timing.stopping import Samples

SENTINEL_TRIES = 3
"""A sentinel's measurement that other programs disturbed is taken again, up to so many times in all."""


def measure(  # noqa: PLR0913 - all but the function are keywords, which a page names
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
    """Time ``fn()`` on a device: first call, warm-up, and as many samples as the noise needs.

    It takes half a second, or up to four if the times vary or a call is slow. In a notebook the result is saved after
    the cell (`metallab.session`). Time each shape and dtype by itself; to say that one function is faster than another,
    use `compare`, since a machine's speed may change between two measurements.

    Parameters
    ----------
    fn
        The function, without arguments: ``lambda: model(x)``.
    on
        The device where it works and that is waited for: what `metallab.device.pick` returned, or ``timing.Host()``
        for plain Python and NumPy. It has no default, because forgetting to wait is the commonest mistake of a timer. A
        function that works on the simulated GPU is labelled so, whatever is said here.
    question
        ``"latency"``, how long a call takes whose result is waited for, or ``"throughput"``, how long each call takes
        of many that are waited for together.
    name
        For people; by default the function's.
    dtype
        Number format of the work, ``torch.float16`` or ``"float16"``; it is only recorded.
    size
        Amount of the work, a number or a `Size`; it is only recorded.
    budget
        How long to measure; by default `FULL`, in fast mode `FAST`.
    clock
        Returns nanoseconds.

    Returns
    -------
    Measurement
        Its samples in seconds a call, their median, quartiles and noise; `print` it for a summary.

    Raises
    ------
    TypeError
        If ``fn`` cannot be called.
    ValueError
        For another question or an unknown dtype.

    Examples
    --------
    >>> from metallab import timing
    >>> measured = timing.measure(lambda: sum(range(1000)), on=timing.Host(), name="sum")
    >>> print(measured)  # doctest: +SKIP
    sum: 12.4 µs a call, latency, on host (quartiles 12.3 µs to 12.6 µs, 2013 samples, first call 15.1 µs)
    >>> measured.median > 0
    True
    """
    known_dtype, known_size = read_dtype(dtype), read_size(size)
    sampler = Sampler(fn, on, question, clock)
    title = name or str(getattr(fn, "__name__", type(fn).__name__))
    if budget is None:
        budget = budgets.FULL if mode.current() == "full" else budgets.FAST

    measured = take_measurement(sampler, title, budget, dtype=known_dtype, size=known_size)
    return results_made.announce(measured)


def take_measurement(
    sampler: Sampler,
    name: str,
    budget: Budget,
    *,
    dtype: Dtype | None = None,
    size: Size | None = None,
) -> Measurement:
    """Take samples until they are enough, and tell no page of the result."""
    with StatusLine() as line, quiet() as load, sampler.device.active():
        sampler.prepare(budget)
        samples = Samples(1, sampler.clock)

        def tell() -> str:
            return wording.samples_progress(name, len(samples.rows), line.seconds)

        while (stop_reason := samples.stop_reason(budget)) is None:
            samples.rows.append((sampler.sample(),))
            line.show(tell)
        line.ending = tell()

    seconds = [seconds for (seconds,) in samples.kept]
    return sampler.measurement(name, seconds, stop_reason, load.cores(), dtype=dtype, size=size)


@contextlib.contextmanager
def sentinel(
    fn: Callable[[], Any],
    *,
    on: DeviceLike,
    budget: Budget | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Iterator[Sentinel]:
    """Time a fixed piece of work before and after a ``with`` block, to see whether the machine kept its speed.

    Comparisons inside of the block open no sentinel of their own, and withhold speed-ups if this one drifts. They can
    be asked for them after the block.

    Parameters
    ----------
    fn
        The work, without arguments: the same each time.
    on
        The device where it works.
    budget
        Of each of the two measurements; by default `PAGE_SENTINEL`, in fast mode `FAST`.
    clock
        Returns nanoseconds.

    Yields
    ------
    Sentinel
        After the block its ``drift`` is 0.1 where the work took 10 % longer.

    Examples
    --------
    >>> with timing.sentinel(lab.make_sentinel_work(), on=lab) as watch:
    ...     compared = timing.compare(variants, on=lab, baseline="eager", parity=check)
    >>> print(watch)
    sentinel on NVIDIA H200: +0.3% (steady)
    """
    if budget is None:
        budget = budgets.PAGE_SENTINEL if mode.current() == "full" else budgets.FAST

    watch = Sentinel(before=_take_undisturbed(fn, on, budget, clock))
    with keep_open(watch):
        yield watch
    watch.after = _take_undisturbed(fn, on, budget, clock)


def _take_undisturbed(
    fn: Callable[[], Any], on: DeviceLike, budget: Budget, clock: Clock
) -> Measurement:
    """Return a measurement while no other program was busy, or the last of `SENTINEL_TRIES`."""
    for _ in range(SENTINEL_TRIES):
        measured = take_measurement(Sampler(fn, on, "latency", clock), "sentinel", budget)
        if not measured.is_busy:
            break
    return measured


def read_dtype(given: Any) -> Dtype | None:
    """Return the name of ``"float16"``, ``torch.float16``, ``numpy.dtype("float16")``. ValueError for another one."""
    if given is None:
        return None

    name = units.dtype_name(given)
    for known in get_args(Dtype):
        if name == known:
            return known
    raise ValueError(
        f"dtype is {given!r}; name one of {', '.join(get_args(Dtype))}, or leave it out"
    )


def read_size(given: Size | float | None) -> Size | None:
    """Return a size; a bare number is one without a unit."""
    if given is None or isinstance(given, Size):
        return given
    return Size(given)
