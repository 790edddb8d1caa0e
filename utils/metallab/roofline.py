"""How fast a call can be: the numbers of a machine, what the call has to do, and a time from both.

A call does ``flops`` floating-point operations and moves ``bytes`` between memory and the processor. A machine needs
some time to launch any call, does at most so many operations a second, and moves at most so many bytes a second. So the
call takes at least

    overhead + max(flops / peak, bytes / bandwidth)

and whichever of the three is the largest is what limits it. The overhead is **added** to the work, because work begins
when the launch has ended; taking the largest of the three instead misses by a factor of two where both are alike.

These three numbers are the textbook's. They take every operation for a multiply-add of a large product, and every byte
for one of a large copy. Three more numbers say where that is not so, each measured with a probe of its own:

- an elementary function, such as an exponential, takes many instructions;
- memory that the system hands out anew is cleared before it can be used;
- a product with few columns (a *skinny* one) gets through its matrix more slowly than memory delivers it.

A call that counts none of these is predicted from the three alone, as `Machine.textbook` predicts all.

::

    bench = roofline.calibrate(probes, on=lab)
    print(bench.machine)                         # before the first call is timed
    print(bench.measure(call, work, "product"))  # predicted, measured, and how far apart

The numbers of the machine are taken once, and predict every call. While a call is timed the probes that gave them are
looked at again, before it and after it, because a machine that has become slower meanwhile would make a right
prediction look wrong.

This module knows no framework; `metallab.pytorch.fifteen_calls` has the probes and the calls of PyTorch.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from metallab import results_made, timing, units
from metallab.timing import Measurement

Clock = Callable[[], int]

STEADY = 0.15
"""A machine whose probe takes up to so much longer or shorter than before has kept its speed."""

TRIES = 3
"""So often a call is timed in all, if the machine's speed changed meanwhile."""

CLOSE = 0.35
"""A prediction holds if the measured time is no further from it than this share."""

FILLED = 1.05
"""A device is filled when twice the work raises its rate by less than this factor."""

GROW = 4
"""So many sizes are tried for the peak, each with twice the side of the one before."""

LONG_PRODUCT = 0.1
"""Seconds of a product that is not doubled any more: eight times as long would be most of a second."""

NEW = 0.5
"""Memory is handed out anew where writing to it takes longer than writing again by more than this share."""

OWN_TIME = 2.0
"""A probe has to take so many times as long as a launch, or its rate would be that of the launch."""

LOOK = timing.Budget(min_samples=5, min_seconds=0.02, max_seconds=0.5, warmup_limit=0.1)
"""Of a look at a probe."""


class Limit(StrEnum):
    """What keeps a call from being faster."""

    OVERHEAD = "overhead"
    """Starting it, and waiting for it, takes longer than its work."""
    MEMORY = "memory"
    """Moving its bytes takes longest."""
    ARITHMETIC = "arithmetic"
    """Its operations take longest."""


@dataclass(frozen=True)
class Work:
    """What a call has to do."""

    flops: float
    """Floating-point operations; a multiply-add counts as two."""
    bytes: float
    """Read from memory and written to it, each number once."""
    why: str = ""
    """How both were counted."""
    functions: float = 0.0
    """Elementary functions, such as exponentials, beside the operations."""
    new: float = 0.0
    """Bytes of results for which the call asks for memory; 0 where it writes into memory that it is given."""
    matrix: float = 0.0
    """Bytes of the matrix in a product with few columns; 0 for everything else."""

    @property
    def intensity(self) -> float:
        """Operations for each byte, in FLOP/B."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Prediction:
    """How long a call takes at least, in parts: seconds."""

    overhead: float
    arithmetic: float
    memory: float

    @property
    def work(self) -> float:
        """Seconds of the longer of arithmetic and memory: both happen at the same time."""
        return max(self.arithmetic, self.memory)

    @property
    def seconds(self) -> float:
        """Seconds of the call: first it is launched, then it works."""
        return self.overhead + self.work

    @property
    def limit(self) -> Limit:
        """The part that takes longest."""
        if self.overhead > self.work:
            return Limit.OVERHEAD
        if self.memory > self.arithmetic:
            return Limit.MEMORY
        return Limit.ARITHMETIC


@dataclass(frozen=True)
class Machine:
    """The numbers of a machine that predict a call's time: three of the textbook, and three more."""

    label: str
    """The hardware's name."""
    overhead: float
    """Seconds of a call that has next to nothing to do."""
    peak: float
    """Floating-point operations per second of a product that fills the device."""
    bandwidth: float
    """Bytes per second of a large copy, those read and those written together."""
    functions: float = math.inf
    """Elementary functions per second, with the few operations around each."""
    new_memory: float = math.inf
    """Bytes per second that the system hands out; infinite where memory is kept and used again."""
    new_from: float = 0.0
    """A result of fewer bytes gets memory that was used before."""
    skinny: float = math.inf
    """Bytes per second of its matrix that a product with few columns gets through."""
    probed: Mapping[Limit, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds that the probe of each limit took, to see later whether the machine has kept its speed."""
    spread: float = field(default=1.0, compare=False)
    """How far apart the looks were from which the numbers were taken: the highest rate over the lowest."""
    launches: tuple[float, ...] = field(default=(), compare=False)
    """Seconds of each small call of which the overhead is the median: how far one number for all calls is off."""

    @property
    def is_steady(self) -> bool:
        """Whether the machine kept its speed while its numbers were taken."""
        return self.spread <= 1 + STEADY

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic takes longer than memory, in FLOP/B."""
        return self.peak / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Return the operations per second that a call of this intensity (FLOP/B) can reach: the roofline."""
        return min(self.peak, self.bandwidth * intensity)

    def predict(self, work: Work) -> Prediction:
        """Predict how long a call takes at least.

        Parameters
        ----------
        work : Work
            What it has to do.

        Returns
        -------
        Prediction
            Its parts in seconds, their sum, and which of them is the limit.
        """
        arithmetic = work.flops / self.peak + work.functions / self.functions
        moving = max(work.bytes / self.bandwidth, work.matrix / self.skinny)
        new = work.new / self.new_memory if work.new >= self.new_from else 0.0
        return Prediction(self.overhead, arithmetic, moving + new)

    @property
    def textbook(self) -> Machine:
        """The same machine with overhead, peak and bandwidth alone."""
        return Machine(self.label, self.overhead, self.peak, self.bandwidth)

    @property
    def further(self) -> str:
        """The numbers beside the three, as a line."""
        parts = []
        if math.isfinite(self.functions):
            parts.append(f"{self.functions / 1e9:.3g} billion elementary functions a second")
        else:
            parts.append("elementary functions as fast as memory delivers their numbers")
        if math.isfinite(self.new_memory):
            rate, least = units.rate(self.new_memory, "B/s"), units.size(self.new_from)
            parts.append(f"new memory at {rate}, for results from {least} on")
        else:
            parts.append("new memory costs nothing")
        if math.isfinite(self.skinny):
            parts.append(f"the matrix of a skinny product at {units.rate(self.skinny, 'B/s')}")
        return "; ".join(parts)

    def __str__(self) -> str:
        text = (
            f"{self.label}: {units.seconds(self.overhead)} overhead, {units.rate(self.peak, 'FLOP/s')}, "
            f"{units.rate(self.bandwidth, 'B/s')}; ridge point {self.ridge:.3g} FLOP/B"
        )
        if not self.is_steady:
            text += (
                f" [disturbed: one look gave {units.times(self.spread)} times as much as another, "
                "so take the numbers again on a quiet machine]"
            )
        return text


@dataclass(frozen=True)
class Probe:
    """A call whose time gives one of a machine's numbers."""

    call: Callable[[], Any]
    work: Work


@dataclass(frozen=True)
class NewMemory:
    """The same writing twice: into memory that is asked for, and into memory that is there."""

    bytes: float
    asked: Callable[[], Any]
    given: Callable[[], Any]


@dataclass(frozen=True)
class Probes:
    """What is timed to learn a machine's numbers."""

    launches: Sequence[Probe]
    """Calls of several kinds with next to no work, since a launch costs something else for each."""
    product: Callable[[int], Probe]
    """A matrix product, 2 to the given power times the side of the smallest: it has to fill the device."""
    copy: Probe
    """A copy that is larger than any cache, into memory that is there."""
    half_copy: Probe | None = None
    """The same of half of the numbers: the difference of the two has no launch and no wait in it, and gives the
    bandwidth. Without it the overhead is subtracted from the copy."""
    functions: Sequence[Probe] = ()
    """An elementary function for each number, from a size that fits into a cache to one that fills the device: the
    first that takes longer than its launch counts."""
    skinny: Sequence[Probe] = ()
    """Products of a matrix and few columns: the geometric mean of their rates counts."""
    new_memory: Sequence[NewMemory] = ()
    """From the smallest size to the largest."""


def is_close(measured: float, predicted: float) -> bool:
    """Say whether a measured time is within `CLOSE` of a predicted one.

    Parameters
    ----------
    measured, predicted : float
        Seconds.

    Returns
    -------
    bool
        Whether they are no further apart than this share of the predicted time.
    """
    return abs(measured / predicted - 1) <= CLOSE


@dataclass(frozen=True)
class Reading:
    """A call that was predicted and then measured."""

    work: Work
    prediction: Prediction
    measurement: Measurement
    speed: float
    """What the machine's probe took around it, over what it took when the machine's numbers were measured."""

    @property
    def ratio(self) -> float:
        """Measured over predicted time."""
        return self.measurement.median / self.prediction.seconds

    @property
    def holds(self) -> bool:
        """Whether the measured time is within `CLOSE` of the prediction."""
        return is_close(self.measurement.median, self.prediction.seconds)

    @property
    def is_steady(self) -> bool:
        """Whether the machine had the speed that it was measured with."""
        return abs(self.speed - 1) <= STEADY

    @property
    def is_above_the_roof(self) -> bool:
        """Whether its work alone should have taken longer than `CLOSE` allows: no machine is faster than its roof."""
        return self.measurement.median < (1 - CLOSE) * self.prediction.work

    @property
    def rate(self) -> float:
        """Operations per second that it reached, its launch included."""
        return self.work.flops / self.measurement.median

    def __str__(self) -> str:
        text = (
            f"{self.measurement.name}: predicted {units.seconds(self.prediction.seconds)} "
            f"({self.prediction.limit}), measured {units.seconds(self.measurement.median)}, "
            f"{units.times(self.ratio)} times"
        )
        if not self.is_steady:
            text += f" [the machine itself took {units.times(self.speed)} times as long as before]"
        if self.is_above_the_roof:
            text += " [above the roof: the machine was disturbed when its numbers were taken, or a cache helps]"
        return text


@dataclass(frozen=True)
class Bench:
    """A machine whose numbers are known, and what is needed to time calls on it: `calibrate` makes one."""

    machine: Machine
    probes: Probes
    on: timing.DeviceLike
    look: timing.Budget = LOOK
    """Of one probe."""
    clock: Clock = time.perf_counter_ns

    def measure(
        self,
        call: Callable[[], Any],
        work: Work,
        name: str,
        budget: timing.Budget | None = None,
    ) -> Reading:
        """Time a call whose time has been predicted, and look at the machine before and after it.

        If the machine has not kept its speed the call is timed again, up to `TRIES` times in all, and the last time
        counts: chosen by the probes, and never by the call's own time.

        Parameters
        ----------
        call : callable
            What is timed, without arguments.
        work : Work
            What it has to do.
        name : str
            Of the call, for people.
        budget : timing.Budget, optional
            How long to measure.

        Returns
        -------
        Reading
            Prediction, measurement, and the machine's speed around it.
        """
        prediction = self.machine.predict(work)
        probe = self._choose_probe(prediction.limit)
        expected = self.machine.probed[prediction.limit]

        before = self._time(probe)
        for _ in range(TRIES):
            measured = timing.measure(call, on=self.on, name=name, budget=budget, clock=self.clock)
            after = self._time(probe)
            reading = Reading(work, prediction, measured, (before + after) / 2 / expected)
            if reading.is_steady:
                break
            before = after
        return reading

    def _choose_probe(self, limit: Limit) -> Probe:
        """Return the probe whose time shows whether the machine has kept the speed that this limit depends on."""
        if limit is Limit.OVERHEAD:
            return self.probes.launches[0]
        return self.probes.copy if limit is Limit.MEMORY else self.probes.product(0)

    def _time(self, probe: Probe) -> float:
        return _Timer(self.on, self.look, self.clock).time(probe.call)


def calibrate(
    probes: Probes,
    *,
    on: timing.DeviceLike,
    looks: int = 3,
    look: timing.Budget = LOOK,
    clock: Clock = time.perf_counter_ns,
) -> Bench:
    """Measure a machine's numbers, in turns.

    Parameters
    ----------
    probes : Probes
        What is timed.
    on : DeviceLike
        Where it runs.
    looks : int
        Rounds; each takes every probe, and the median of the rounds counts.
    look : timing.Budget
        Of one probe in one round.
    clock : callable
        Returns nanoseconds.

    Returns
    -------
    Bench
        With the machine's numbers. The launch is subtracted from the times of the probes, since it is no part of their
        rate; the bandwidth is that of the difference of two copies, where there are two. A number whose probes are
        missing stays as `Machine` has it. A machine whose looks were far apart says so when it is printed, and is not
        `Machine.is_steady`.

    Raises
    ------
    ValueError
        Without a look.
    """
    if looks < 1:
        raise ValueError(f"the machine is looked at {looks} times: one look is the least")

    timer = _Timer(on, look, clock)
    power = _find_filling_power(probes, timer)
    new = _find_new_memory(probes.new_memory, timer)
    rounds = [_look(probes, power, new, timer) for _ in range(looks)]
    probed = {}
    for limit in Limit:
        probed[limit] = statistics.median(each.probed[limit] for each in rounds)

    peaks = [each.peak for each in rounds]
    bandwidths = [each.bandwidth for each in rounds]
    machine = Machine(
        label=on.label,
        overhead=statistics.median(each.overhead for each in rounds),
        peak=statistics.median(peaks),
        bandwidth=statistics.median(bandwidths),
        functions=statistics.median(each.functions for each in rounds),
        new_memory=statistics.median(each.new_memory for each in rounds),
        new_from=new[0].bytes if new else 0.0,
        skinny=statistics.median(each.skinny for each in rounds),
        probed=probed,
        spread=max(max(rates) / min(rates) for rates in (peaks, bandwidths)),
        launches=tuple(
            map(statistics.median, zip(*(each.launches for each in rounds), strict=True))
        ),
    )
    return Bench(machine, probes, on, look, clock)


@dataclass(frozen=True)
class _Timer:
    """Times probes, which are no results of a page."""

    on: timing.DeviceLike
    budget: timing.Budget
    clock: Clock

    def time(self, call: Callable[[], Any]) -> float:
        with results_made.unheard():
            measured = timing.measure(
                call, on=self.on, name="probe", budget=self.budget, clock=self.clock
            )
        return measured.median


def _find_filling_power(probes: Probes, timer: _Timer) -> int:
    """Return how often the product's side has to be doubled until the device is full.

    It is full where the next doubling brings less than `FILLED`. Nothing larger is tried than a product that takes
    `LONG_PRODUCT` seconds, or than the last of `GROW` sizes: that one counts then.
    """
    rate = 0.0
    for power in range(GROW):
        product = probes.product(power)
        seconds = timer.time(product.call)
        reached = product.work.flops / seconds
        if reached < FILLED * rate:
            return power - 1
        if seconds > LONG_PRODUCT:
            return power
        rate = reached
    return GROW - 1


def _find_new_memory(sizes: Sequence[NewMemory], timer: _Timer) -> Sequence[NewMemory]:
    """Return the sizes that are handed out anew at each call, from the smallest such; none where memory is kept.

    ``sizes`` go from the smallest to the largest. From the largest down each is tried, up to the first that is kept,
    since what is smaller is kept as well.
    """
    for position in reversed(range(len(sizes))):
        size = sizes[position]
        asked, given = timer.time(size.asked), timer.time(size.given)
        if asked <= (1 + NEW) * given:
            return sizes[position + 1 :]
    return sizes


def _look(probes: Probes, power: int, new: Sequence[NewMemory], timer: _Timer) -> Machine:
    """Return the machine's numbers as they are now: each probe is timed once, and rates are without the launch.

    ``power`` is the product's size that fills the device, ``new`` the sizes of memory that are handed out anew.
    """
    launches = [timer.time(probe.call) for probe in probes.launches]
    overhead = statistics.median(launches)
    product = probes.product(power)
    working = timer.time(product.call) - overhead
    copying = timer.time(probes.copy.call)
    bandwidth = _look_at_bandwidth(probes, copying, overhead, timer)

    return Machine(
        label=timer.on.label,
        overhead=overhead,
        peak=product.work.flops / working,
        bandwidth=bandwidth,
        functions=_look_at_functions(probes.functions, overhead, bandwidth, timer),
        new_memory=_look_at_new_memory(new, timer),
        skinny=_look_at_skinny(probes.skinny, overhead, timer),
        probed={
            Limit.OVERHEAD: launches[0],
            # the smallest product shows whether the processor has kept its clock, and is done sooner
            Limit.ARITHMETIC: timer.time(probes.product(0).call),
            Limit.MEMORY: copying,
        },
        launches=tuple(launches),
    )


def _look_at_bandwidth(probes: Probes, copying: float, overhead: float, timer: _Timer) -> float:
    """Return the rate of the bytes that the whole copy has more than half of it.

    What both pay alike drops out. An overhead that is subtracted makes the rate too high instead where the copy does
    not pay all of it: on an H200 that gave 4.2 to 4.6 TB/s as small calls took 13 to 22 us, and the difference of two
    copies 4.2 to 4.3 in the same rounds.
    """
    bytes_copied = probes.copy.work.bytes
    half = probes.half_copy
    if half is None:
        return bytes_copied / (copying - overhead)

    more = copying - timer.time(half.call)
    if more <= 0:  # disturbed: the next looks, and their spread, tell
        return bytes_copied / copying
    return (bytes_copied - half.work.bytes) / more


def _look_at_functions(
    probes: Sequence[Probe], overhead: float, bandwidth: float, timer: _Timer
) -> float:
    """Return the rate of the first size that takes longer than its launch; infinite if none does."""
    for probe in probes:
        seconds = timer.time(probe.call)
        if seconds < OWN_TIME * overhead:
            continue

        working = seconds - overhead
        is_largest = probe is probes[-1]
        if is_largest and is_close(working, probe.work.bytes / bandwidth):
            return math.inf  # it waited for memory, so its functions are faster than can be seen
        return probe.work.functions / working
    return math.inf


def _look_at_new_memory(sizes: Sequence[NewMemory], timer: _Timer) -> float:
    """Return the bytes per second that are handed out, on top of writing them."""
    if not sizes:
        return math.inf
    largest = sizes[-1]
    more = timer.time(largest.asked) - timer.time(largest.given)
    return largest.bytes / more if more > 0 else math.inf


def _look_at_skinny(probes: Sequence[Probe], overhead: float, timer: _Timer) -> float:
    """Return the geometric mean of the rates; infinite where a launch takes most of the time."""
    rates = []
    for probe in probes:
        seconds = timer.time(probe.call)
        if seconds < OWN_TIME * overhead:
            return math.inf
        rates.append(probe.work.matrix / (seconds - overhead))
    return statistics.geometric_mean(rates) if rates else math.inf


# ---- which limit it was, by experiment -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """The same call with more or fewer operations, or more or fewer bytes: the other of the two stays."""

    what: str
    """Such as ``5 x 5 weights in place of 3 x 3``."""
    of: Limit
    """What changes: `Limit.ARITHMETIC` or `Limit.MEMORY`."""
    factor: float
    """By how much it changes: 2 is twice as many, 0.5 half as many. Never 1."""
    launches: int = 1
    """How many calls do it."""


def observe_limit(
    machine: Machine, seconds: float, doubled: float, changed: float, change: Change
) -> Limit:
    """Say what limits a call, from two experiments with it.

    Parameters
    ----------
    machine : Machine
        For its overhead.
    seconds : float
        What the call takes.
    doubled : float
        Seconds of the same call with twice the operations and twice the bytes. If it takes less than 1.5 times as long
        the overhead is more than half of the first time: ``(t0 + 2 w) / (t0 + w) < 1.5`` where ``t0 > w``.
    changed : float
        Seconds with another number of operations alone, or of bytes alone.
    change : Change
        What was changed, and by how much.

    Returns
    -------
    Limit
        The one whose change the time followed. Half of the way counts, on a scale of factors.

    Raises
    ------
    ValueError
        For a change that changes nothing, or one of the overhead.
    """
    if change.factor == 1 or change.of is Limit.OVERHEAD:
        raise ValueError(f"{change.what!r} tells nothing: change the operations or the bytes")

    if doubled < 1.5 * seconds:
        return Limit.OVERHEAD

    least = machine.overhead / 1000  # a launch that is quicker than the others has some work, too
    work = max(seconds - machine.overhead, least)
    other = max(changed - change.launches * machine.overhead, least)
    half_way = change.factor**0.5
    followed = other / work > half_way if change.factor > 1 else other / work < half_way

    if followed:
        return change.of
    return Limit.MEMORY if change.of is Limit.ARITHMETIC else Limit.ARITHMETIC


def explains(prediction: float, measured: float, without: float) -> bool:
    """Say whether an experiment explains why a prediction failed.

    Parameters
    ----------
    prediction, measured : float
        Seconds.
    without : float
        Seconds of a call that does the same without what is suspected.

    Returns
    -------
    bool
        Whether that is at most half as far from the prediction, in factors above 1, as the call was.
    """
    before = max(prediction / measured, measured / prediction)
    after = max(prediction / without, without / prediction)
    return after <= 1 + (before - 1) / 2


# ---- two machines ----------------------------------------------------------------------------------------------------


def wins_from(
    work: Callable[[int], Work], first: Machine, second: Machine, largest: int = 2**40
) -> int | None:
    """Predict from which size on the second machine is faster.

    Parameters
    ----------
    work : callable
        What there is to do at a size, an integer from 1 on; it grows with the size.
    first, second : Machine
        Such as a CPU, and the GPU that is to win.
    largest : int
        Sizes above it are not looked at.

    Returns
    -------
    int or None
        The smallest size that the second machine wins, and at which it goes on to win up to ``largest``; None if it
        does not win there.
    """

    def wins(size: int) -> bool:
        return second.predict(work(size)).seconds < first.predict(work(size)).seconds

    if not wins(largest):
        return None

    # by steps of two down to the largest size that it loses, then between the two
    won = largest
    while won > 1 and wins(won // 2):
        won //= 2
    lost = won // 2
    while won - lost > 1:
        middle = (won + lost) // 2
        if wins(middle):
            won = middle
        else:
            lost = middle
    return won


def count_close(readings: Sequence[Reading]) -> int:
    """Return how many of the predictions hold."""
    return sum(each.holds for each in readings)
