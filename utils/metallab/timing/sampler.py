"""Take one sample of a function on a device: call it, wait, and read the clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from metallab import caches, mode, simulation
from metallab.fields import Dtype
from metallab.timing.budget import Budget, Clock
from metallab.timing.devices import DeviceLike
from metallab.timing.inspections import KEPT_BYTES, is_on_simulated_gpu, leaves
from metallab.timing.measurement import Measurement, Question, Size

MIN_BLOCK_CALLS = 8
"""Calls in a throughput block, at least: of a single slow call the block would be its latency."""

MAX_BLOCK_FACTOR = 20
"""Such a block takes at most so many times `Budget.block_seconds`."""

MAX_BLOCK_CALLS = 2**24
"""More calls that take no time are a clock that stands still."""

SLOW_CALL = 0.5
"""Seconds of a call from which on switching between variants (cold caches, sleeping threads) costs below 1 %."""

SETTLED = 0.05
"""Warm-up ends when the medians of its two halves differ by less than this share."""


class Sampler:
    """Takes samples of one function on one device.

    Parameters
    ----------
    fn
        The function; it takes no arguments.
    device
        Where it runs.
    question
        ``latency`` or ``throughput``.
    clock
        Returns nanoseconds.

    Raises
    ------
    ValueError, TypeError
        For another question, and for a function that cannot be called.
    """

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
        """Calls in one sample."""
        self.warm_ups = 0
        self.first_call = math.nan
        """Seconds of the very first call."""
        self.last_call = math.nan
        """Seconds of a call, when last timed."""

        self.first_result: Any = None
        self.kept_result: Any = None
        self.result_bytes: list[int] = []
        """The size of each piece of memory that a call's result lies in."""

        self.has_simulated = False
        """Whether a call worked on the simulated GPU, whatever device it was said to run on."""
        self.clear_caches: Callable[[], Any] | None = None
        """What is called before each sample of a comparison; None if its caches stay warm."""

    @property
    def is_simulated(self) -> bool:
        """True if its times are not those of any hardware."""
        return self.device.simulated or self.has_simulated

    def prepare(self, budget: Budget) -> None:
        """Make the first call, warm up, and find the number of calls that fill a block.

        The variants of a comparison are prepared one after the other, which may take long, as a first call may compile.
        So what belongs to a moment (a time, the source of power) is not read here but in `measurement`, which is called
        for all of them when the last sample is taken.
        """
        self.first_call = self._time_block(keep_result=True)
        self.first_result = self.take_result()
        self.warm_ups = _warm_up(self._time_block, budget, self.clock)
        if self.question == "latency":
            return

        while not self._block_is_full(self._time_block(), budget):
            self.block *= 2
            if self.block > MAX_BLOCK_CALLS:
                raise RuntimeError(
                    f"{self.block} calls took no time by this clock; is the clock running?"
                )

    def _block_is_full(self, seconds: float, budget: Budget) -> bool:
        """Return True if a block is long enough, with calls that can overlap, or its results fill the memory."""
        if 2 * self.block > self._most_calls():
            return True
        if seconds < budget.block_seconds:
            return False

        can_overlap = self.device.kind != "cpu" or self.waits_for_results
        has_enough_calls = self.block >= MIN_BLOCK_CALLS
        twice_is_too_long = 2 * seconds > MAX_BLOCK_FACTOR * budget.block_seconds
        return not can_overlap or has_enough_calls or twice_is_too_long

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
        if overwrite is None:
            return

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
        return self._time_block(keep_result) / self.block

    def take_result(self) -> Any:
        """Return the result that was kept, once: held longer it would change the memory of later calls."""
        result, self.kept_result = self.kept_result, None
        return result

    def _time_block(self, keep_result: bool = False) -> float:
        """Return the seconds of one block: from before its first call until all of it is done."""
        # local names, so that nothing is looked up while the clock runs
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
        stop_reason: str,
        others: float,
        *,
        dtype: Dtype | None,
        size: Size | None,
    ) -> Measurement:
        """Return samples of this function as a measurement.

        It is called when the last sample is taken, of a comparison for all variants in a row. What the machine was like
        at that moment is read here: quickly, since a sentinel's looks between rounds come through here as well.

        Parameters
        ----------
        name
            For people.
        samples
            Seconds a call.
        stop_reason
            What ended the measurement.
        others
            Cores that other programs used meanwhile.
        dtype, size
            What the caller says of the work.
        """
        label, kind = self.device.label, self.device.kind
        threads = getattr(self.device, "threads", None)  # a CPU's, where they are set
        if self.has_simulated and not self.device.simulated:
            # where the function ran its tensors decide, and not what the caller says
            label, kind, threads = simulation.label(), "mps", None

        return Measurement(
            name=name,
            question=self.question,
            samples=tuple(samples),
            first_call=self.first_call,
            block=self.block,
            warmup_calls=self.warm_ups,
            stop_reason=stop_reason,
            mode=mode.current(),
            device=label,
            simulated=self.is_simulated,
            others=others,
            kind=kind,
            threads=threads,
            dtype=dtype,
            size=size,
            cold=self.clear_caches is not None,
        )


def give_clearers(samplers: Iterable[Sampler]) -> None:
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


def _warm_up(time_call: Callable[[], float], budget: Budget, clock: Clock) -> int:
    """Call until the times have settled; return the number of calls.

    Settled: the medians of both halves are within 5 %. Each look comes after twice the time of the one before.
    """
    times: list[float] = []
    start = clock()
    spent = 0.0
    goal = budget.warmup_seconds

    while True:
        is_late = False
        while (len(times) < budget.warmup_calls or spent < goal) and not is_late:
            times.append(time_call())
            spent += times[-1]
            is_late = (clock() - start) / 1e9 >= budget.warmup_limit > 0

        if spent >= budget.warmup_limit or is_late or _halves_agree(times):
            return len(times)
        goal = 2 * spent


def _halves_agree(times: Sequence[float]) -> bool:
    """Return whether the later half of some times is as long as the earlier one, within `SETTLED`."""
    if len(times) < 2:
        return False

    half = len(times) // 2
    first, second = np.median(times[:half]), np.median(times[half:])
    return bool(abs(first - second) <= SETTLED * second)
