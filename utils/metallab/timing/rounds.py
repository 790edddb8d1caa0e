"""The rounds of a comparison: one sample of each variant in random order, and which rounds count.

Pairing within a round cancels drift, and the random order cancels cycles. What neither cancels is a disturbance that
lasts for many rounds: other programs, or another speed of the machine. Rounds are therefore parted into stretches with
a look at the machine between them, and disturbed stretches are taken again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metallab import mode, wording
from metallab.status_line import StatusLine
from metallab.timing.budget import Budget, Clock
from metallab.timing.devices import DeviceLike
from metallab.timing.inspections import Inspections
from metallab.timing.load import BackgroundLoad
from metallab.timing.measurement import BUSY, Measurement
from metallab.timing.measuring import take_measurement
from metallab.timing.sampler import Sampler
from metallab.timing.sentinels import Sentinel, find_open
from metallab.timing.stopping import Samples
from metallab.timing.verdicts import DRIFT, FEWEST_PAIRS

FIRST_LOOK = Budget(min_samples=5, min_seconds=0.05, max_seconds=0.25)
"""Of a comparison's look at the speed of a device before its rounds: the device may have rested."""

LOOK = replace(FIRST_LOOK, warmup_limit=0.1)
"""Of one after each stretch of rounds, in which the devices have worked.

It is short, since it only has to tell apart what lasts longer than itself. Where two threads of a rented machine took
twice as long for seconds at a time, medians of 0.5 s differed as much as those of 0.05 s did."""

Look = tuple[Measurement, ...]
"""The time of each watched device's fixed work."""


@dataclass(frozen=True)
class Rounds:
    """The rounds of a comparison that count."""

    rows: list[Sequence[float]]
    """Seconds a call: a row for each round, a column for each variant."""
    stop_reason: str
    others: float
    """Cores that other programs used meanwhile."""
    sentinels: tuple[Sentinel, ...]
    """Of each device that was watched two of its looks at these rounds, those that differ most."""


class _Lookout:
    """Looks at the speed of a comparison's devices, by a piece of work that is the same each time.

    A device without ``make_sentinel_work`` is not watched, nor the simulated GPU, nor anything in fast mode: there no
    speed-up is given anyway. Nor is anything where the page has a sentinel open, which watches all of its comparisons.
    """

    def __init__(self, devices: Iterable[DeviceLike], clock: Clock) -> None:
        self.clock = clock
        self.opened_by_page = find_open()
        """Sentinels whose blocks the page has entered."""
        self.watched: dict[str, DeviceLike] = {}
        self.work: dict[str, Callable[[], Any]] = {}
        if self.opened_by_page or mode.current() != "full":
            return

        for device in devices:
            # a processor is watched once, however many of its threads each variant may use
            name = "CPU" if device.kind == "cpu" else device.label
            make_work = getattr(device, "make_sentinel_work", None)
            if make_work is None or device.simulated or name in self.watched:
                continue
            self.watched[name] = device
            self.work[name] = make_work()

    def look(self, budget: Budget = LOOK) -> Look:
        """Return how long the work takes now on each device."""
        samplers = [
            Sampler(self.work[name], device, "latency", self.clock)
            for name, device in self.watched.items()
        ]
        return tuple(take_measurement(sampler, "sentinel", budget) for sampler in samplers)

    def sentinels(self, looks: Sequence[Look]) -> tuple[Sentinel, ...]:
        """Return the page's sentinels, or for each device the two looks that differ most, in the order of time."""
        if self.opened_by_page:
            return self.opened_by_page

        found = []
        for of_device in zip(*looks, strict=True):
            extremes = [pick(of_device, key=lambda each: each.median) for pick in (min, max)]
            first, last = sorted(extremes, key=of_device.index)
            found.append(Sentinel(before=first, after=last))
        return tuple(found)


@dataclass(frozen=True)
class _Stretch:
    """Some rounds in a row, between two looks at the machine's speed."""

    rows: list[Sequence[float]]
    seconds: float
    others: float
    """Cores that other programs used."""
    looks: tuple[Look, Look]

    def is_steady(self, limits: Sequence[tuple[float, float]]) -> bool:
        """Return whether each device's times, in both looks, are within its limits in seconds."""
        for look in self.looks:
            for measured, (low, high) in zip(look, limits, strict=True):
                if not low <= measured.median <= high:
                    return False
        return True


class _Stretches:
    """Parts the rounds of a comparison into stretches, and knows which of them were disturbed.

    Systems count the work of programs in steps of 10 ms, so a single short round cannot be judged. A stretch is
    disturbed if others were busy in it, or if a device had another speed at one of its ends than in the stretches that
    count (`_find_steady`). Its rounds are taken again in others. What is chosen by is the speed of work that no variant
    does, never the variants' own times, so that the choice favours none of them.

    If others are busy most of the time, the machine is busy for good. Then all rounds count, and the comparison says
    so. They do, too, where too little is steady until it is late (`_is_late`), or where the budget asks for a number of
    samples.
    """

    SECONDS = 0.5
    """Of a stretch, at least."""

    TRIES = 3
    """Others who were busy for most of so many times the least time of a comparison are busy for good.

    So long, and the least time itself, is waited for another speed to go away."""

    def __init__(self, columns: int, clock: Clock, budget: Budget, lookout: _Lookout) -> None:
        self.clock, self.budget, self.lookout = clock, budget, lookout
        self.counted = Samples(columns, clock)
        self.all = Samples(columns, clock)
        self.least = budget.min_seconds * columns
        self.fewest = min(budget.min_samples, FEWEST_PAIRS)

        self.enough: str | None = None
        """Why to stop if all rounds count; None as long as they are too few."""
        self.enough_after = 0.0
        """Seconds after which they were enough."""
        self.closed: list[_Stretch] = []
        self.steady: list[_Stretch] = []
        """Those of them that count."""
        self._open(lookout.look(FIRST_LOOK))

    def _open(self, look: Look) -> None:
        """Begin a stretch, after a look."""
        self.look = look
        self.open_rows: list[Sequence[float]] = []
        self.load = BackgroundLoad()
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
        self._open(self.lookout.look())
        self.closed.append(_Stretch(rows, seconds, others, (before, self.look)))

        quiet = [stretch for stretch in self.closed if stretch.others <= BUSY]
        self.steady = _find_steady(quiet)
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
        if self.enough is None:
            self.enough = self.all.stop_reason(self.budget)
            self.enough_after = self.all.seconds

        if self._all_count:
            if self.enough and self.open_rows:
                self._close()  # which may find that the last rounds were disturbed
            if self._all_count:
                return self.enough

        counted_seconds = sum(stretch.seconds for stretch in self.steady)
        repeated = self.counted.seconds - counted_seconds
        reason = self.counted.stop_reason(self.budget, repeated=repeated)
        return reason or ("time limit" if self._is_late else None)

    @property
    def _is_late(self) -> bool:
        """True if disturbed rounds were taken again for long enough.

        That is for as long as all rounds would have needed, had each of them counted. It is a few times the least time
        at least, so that a moment's disturbance of a short comparison can pass. Where the budget is spent, it is late
        before that as well if the rest of the time would not bring the pairs of an interval: reckoned by how many
        rounds count so far. Of calls that take most of a second, a round or two may be all that is lacking.
        """
        if self.enough is None:
            return False

        budget_seconds = self.budget.max_seconds * self.all.columns
        least_wait = min((1 + self.TRIES) * self.least, 2 * budget_seconds)
        latest = max(2 * self.enough_after, least_wait)
        passed = self.all.seconds
        if passed >= latest:
            return True

        is_spent = passed >= max(budget_seconds, least_wait)
        end = min(latest, self.counted.time_limit(self.budget))
        expected = len(self.counted.rows) * end / passed
        return is_spent and expected < self.fewest

    def finish(self, reason: str) -> Rounds:
        """Return the rounds that count: the undisturbed ones, if they are enough for an interval."""
        if self.open_rows:
            self._close()
        has_enough = len(self.counted.rows) >= self.fewest
        if self._all_count or not has_enough:
            return self._rounds(self.all, self.closed, reason)

        repeated = len(self.all.rows) - len(self.counted.rows)
        if repeated:
            reason = f"{reason}; {repeated} disturbed rounds do not count"
        return self._rounds(self.counted, self.steady, reason)

    def _rounds(self, samples: Samples, stretches: Sequence[_Stretch], stop_reason: str) -> Rounds:
        """Return the rounds of some stretches, with what other programs and the speed did in them."""
        seconds = sum(stretch.seconds for stretch in stretches)
        core_seconds = sum(stretch.others * stretch.seconds for stretch in stretches)
        looks = [look for stretch in stretches for look in stretch.looks]

        return Rounds(
            rows=samples.kept,
            stop_reason=stop_reason,
            others=core_seconds / seconds if seconds else 0.0,
            sentinels=self.lookout.sentinels(looks),
        )


def _find_steady(stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """Return those that have the most rounds together, and in which each device kept its speed.

    It did if the slowest of the looks at it, at the ends of these stretches, took at most `DRIFT` more time than the
    fastest. Which of the two came first makes no difference here. So this is a little stricter than `has_drifted`,
    which relates the later look to the earlier one: of a machine that has become faster it asks how much less time it
    takes now, which is a smaller share than how much more it took before. So the rounds of one that barely has not
    drifted are taken again. What is steady has never drifted.
    """
    looks = {id(look): look for stretch in stretches for look in stretch.looks}.values()
    of_each_device = zip(*looks, strict=True)

    best: list[_Stretch] = []
    most_rows = 0
    for fastest in itertools.product(*of_each_device):
        limits = [(look.median, look.median * (1 + DRIFT)) for look in fastest]
        steady = [stretch for stretch in stretches if stretch.is_steady(limits)]

        rows = sum(len(stretch.rows) for stretch in steady)
        if rows > most_rows:
            best, most_rows = steady, rows
    return best


def take_rounds(
    samplers: Mapping[str, Sampler],
    budget: Budget,
    rng: random.Random,
    inspections: Inspections,
) -> Rounds:
    """Take rounds of one sample each, shuffled in every round, until enough of them count.

    Parameters
    ----------
    samplers
        Of each variant, prepared.
    budget
        How long.
    rng
        Draws the orders.
    inspections
        Looks at results of some of the timed calls.
    """
    columns = list(samplers.items())
    clock = columns[0][1].clock
    lookout = _Lookout([sampler.device for _, sampler in columns], clock)
    stretches = _Stretches(len(columns), clock, budget, lookout)
    order = list(range(len(columns)))

    with StatusLine() as line:

        def tell() -> str:
            return wording.rounds_progress(samplers, len(stretches.all.rows), line.seconds)

        while (reason := stretches.stop_reason()) is None:
            rng.shuffle(order)
            row = [0.0] * len(columns)

            inspections.begin_round()
            for index in order:
                name, sampler = columns[index]
                row[index] = _take_sample(name, sampler, inspections)
            inspections.end_round()

            stretches.add(row)
            line.show(tell)
        line.ending = tell()
    return stretches.finish(reason)


def _take_sample(name: str, sampler: Sampler, inspections: Inspections) -> float:
    """Return the seconds a call of one variant's sample, and look at its result if that is due."""
    with sampler.device.active():
        sampler.warm_up_once()
        if inspections.is_due:
            inspections.prepare(sampler.overwrite_freed)

        seconds = sampler.sample(keep_result=inspections.is_due)
        if inspections.is_due:
            inspections.compare(name, sampler.take_result())
    return seconds
