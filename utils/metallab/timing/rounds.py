"""The rounds of a comparison: one sample of each variant in random order, and which rounds count.

Pairing within a round cancels drift, and the random order cancels cycles. What neither cancels is a disturbance that
lasts for many rounds: other programs, or another speed of the machine. Rounds are therefore parted into stretches with
a look at the machine between them, and disturbed stretches are taken again.
"""

from __future__ import annotations

import functools
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

It takes 0.05 to 0.25 s, after at most 0.1 s of warming up. It is short, since it only has to tell apart what lasts
longer than itself: where two threads of a virtual machine took twice as long for seconds at a time, medians of 0.5 s
differed as much as those of 0.05 s did."""

OTHERS_WERE_BUSY = "others were busy most of the time"
"""Why rounds end for which a quieter moment was waited for."""

Look = tuple[Measurement, ...]
"""The time of each watched device's fixed work."""


@dataclass(frozen=True)
class Rounds:
    """The rounds of a comparison that count."""

    rows: list[Sequence[float]]
    """Seconds a call: a row for each round, a column for each variant."""
    stop_reason: str
    others: float
    """Cores that other programs used meanwhile; where rounds count in which they were busy, during those alone."""
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

    @property
    def is_busy(self) -> bool:
        """True if other programs used more than `BUSY` cores."""
        return self.others > BUSY

    @functools.cached_property
    def extremes(self) -> list[tuple[float, float]]:
        """For each watched device the shorter and the longer of its two times, in seconds."""
        return [
            (min(before.median, after.median), max(before.median, after.median))
            for before, after in zip(*self.looks, strict=True)
        ]


class _Stretches:
    """Parts the rounds of a comparison into stretches, and knows which of them were disturbed.

    Systems count the work of programs in steps of 10 ms, so a single short round cannot be judged. A stretch is
    disturbed if others were busy in it, or if a device had another speed at one of its ends than in the stretches that
    count (`_find_steady`). Its rounds are taken again in others. What is chosen by is the speed of work that no variant
    does, never the variants' own times, so that the choice favours none of them.

    If others are busy most of the time, the machine is busy for good. Then all rounds count, and the comparison says
    so. They do, too, where too few rounds are undisturbed until it is late (`_is_late`), or where the budget asks for a
    number of samples.
    """

    SECONDS = 0.5
    """Of a stretch, at least."""

    BUSY_FOR_GOOD = 3
    """Others who were busy for most of so many times the least time of a comparison are busy for good."""

    WAIT = 4
    """As long as too few rounds count, disturbed ones are taken again for so many times a comparison's least time."""

    def __init__(self, columns: int, clock: Clock, budget: Budget, lookout: _Lookout) -> None:
        self.clock, self.budget, self.lookout = clock, budget, lookout
        self.all = Samples(columns, clock)
        self.counted = Samples(columns, clock)
        self.least = self.all.least_seconds(budget)
        self.fewest = min(budget.min_samples, FEWEST_PAIRS)
        """Rounds that have to count, or all of them do."""

        self.enough_after: float | None = None
        """Seconds after which all rounds were enough, the disturbed ones among them; None as long as they are not."""
        self.calm: str | None = None
        """Why the rounds that count are enough; None if they are not."""
        self.closed: list[_Stretch] = []
        self.steady: Sequence[_Stretch] = []
        """Those of them that count."""
        self._begin(lookout.look(FIRST_LOOK))

    def _begin(self, look: Look) -> None:
        """Begin a stretch, after a look."""
        self.look = look
        self.current_rows: list[Sequence[float]] = []
        self.load = BackgroundLoad()
        self.began = self.clock()

    @property
    def _current_seconds(self) -> float:
        return (self.clock() - self.began) / 1e9

    def add(self, row: Sequence[float]) -> None:
        """Take a round in; with it a stretch may end."""
        self.all.rows.append(row)
        self.current_rows.append(row)
        if self._current_seconds >= self.SECONDS:
            self._end()

    def _end(self) -> None:
        """End a stretch, find anew which of them count, and whether they are enough, and begin another one."""
        seconds, others = self._current_seconds, self.load.cores()
        look = self.lookout.look()
        self.closed.append(_Stretch(self.current_rows, seconds, others, (self.look, look)))

        quiet = [stretch for stretch in self.closed if not stretch.is_busy]
        self.steady = _find_steady(quiet)
        self.counted.rows = [row for stretch in self.steady for row in stretch.rows]
        self.calm = self.counted.calm(self.budget, _seconds_of(self.steady))

        # last, so that the time for all of this belongs to no stretch
        self._begin(look)

    @property
    def _is_undisturbed(self) -> bool:
        return len(self.steady) == len(self.closed)

    @property
    def _is_busy_for_good(self) -> bool:
        busy = _seconds_of(stretch for stretch in self.closed if stretch.is_busy)
        waited = self.all.seconds >= self.BUSY_FOR_GOOD * self.least
        return waited and busy > _seconds_of(self.closed) / 2

    def stop_reason(self) -> str | None:
        """Return why to stop now, or None to go on.

        All rounds are judged if none was disturbed or none is taken again, and otherwise those that count.
        """
        reason = self.all.stop_reason(self.budget)
        if reason and self.enough_after is None:
            self.enough_after = self.all.seconds

        if self.budget.max_samples:
            return reason
        if reason and self._is_undisturbed and self.current_rows:
            self._end()  # which may find that the last rounds were disturbed
        return reason if self._is_undisturbed else self._reason_to_take_none_again()

    def _reason_to_take_none_again(self) -> str | None:
        """Return why to stop now although rounds were disturbed, or None to go on."""
        if self._is_busy_for_good and self.enough_after is not None:
            return OTHERS_WERE_BUSY
        if self.calm and not self._is_busy_for_good:
            return self.calm

        is_over = self.steady and self.all.seconds >= self.counted.time_limit(self.budget)
        return "time limit" if is_over or self._is_late else None

    @property
    def _is_late(self) -> bool:
        """True if disturbed rounds were taken again for long enough.

        That is for as long as all rounds would have needed, had each of them counted. A short comparison goes on for
        `WAIT` times its least time, so that a moment's disturbance can pass.

        Where the budget is spent, it is late before that as well if the rest of the time would not bring the pairs of
        an interval: reckoned by how many rounds count so far. Of calls that take most of a second, a round or two may
        be all that is lacking.
        """
        if self.enough_after is None:
            return False

        budget_seconds = self.budget.max_seconds * self.all.columns
        least_wait = self.WAIT * self.least
        latest = max(2 * self.enough_after, least_wait)
        passed = self.all.seconds
        if passed >= latest:
            return True

        is_spent = passed >= max(budget_seconds, least_wait)
        end = min(latest, self.counted.time_limit(self.budget))
        expected = len(self.counted.rows) * end / passed
        return is_spent and expected < self.fewest

    def finish(self, reason: str) -> Rounds:
        """Return the rounds that count: the undisturbed ones, unless they are fewer than an interval needs."""
        if self.current_rows:
            self._end()

        if self._is_undisturbed or self.budget.max_samples:
            return self._rounds(self.all, self.closed, reason, _mean_load(self.closed))

        is_busy_for_good = self._is_busy_for_good
        if len(self.counted.rows) >= self.fewest and not is_busy_for_good:
            repeated = len(self.all.rows) - len(self.counted.rows)
            reason = f"{reason}; {repeated} disturbed rounds do not count"
            return self._rounds(self.counted, self.steady, reason, _mean_load(self.steady))

        # the load of the busy stretches is not averaged with that of quiet ones, as their rounds count as well
        disturbed = [stretch for stretch in self.closed if stretch.is_busy]
        if is_busy_for_good:
            reason = OTHERS_WERE_BUSY
        return self._rounds(self.all, self.closed, reason, _mean_load(disturbed or self.closed))

    def _rounds(
        self, samples: Samples, stretches: Sequence[_Stretch], stop_reason: str, others: float
    ) -> Rounds:
        """Return the rounds of some stretches, with what other programs and the speed did in them."""
        looks = [look for stretch in stretches for look in stretch.looks]
        return Rounds(samples.kept, stop_reason, others, self.lookout.sentinels(looks))


def _seconds_of(stretches: Iterable[_Stretch]) -> float:
    """Return how long some stretches took together, without the looks between them."""
    return sum(stretch.seconds for stretch in stretches)


def _mean_load(stretches: Sequence[_Stretch]) -> float:
    """Return how many cores other programs used in these stretches on average, over their time."""
    seconds = _seconds_of(stretches)
    core_seconds = sum(stretch.others * stretch.seconds for stretch in stretches)
    return core_seconds / seconds if seconds else 0.0


def _find_steady(stretches: Sequence[_Stretch], device: int = 0) -> Sequence[_Stretch]:
    """Return those that have the most rounds together, and in which each device kept its speed.

    It did if the slowest of the looks at it, at the ends of these stretches, took at most `DRIFT` more time than the
    fastest. `has_drifted` asks how much more or less time the later of two looks took. For a machine that became
    faster, that is a smaller share than how much more it took before, so this is a little stricter, and what is steady
    has never drifted.

    Parameters
    ----------
    stretches
        In which the devices before this one kept their speeds.
    device
        The position of the first device that is still to be asked for.
    """
    if not stretches or device == len(stretches[0].extremes):
        return stretches

    choices = []
    for fastest in {stretch.extremes[device][0]: None for stretch in stretches}:
        alike = [
            stretch
            for stretch in stretches
            if fastest <= stretch.extremes[device][0]
            and stretch.extremes[device][1] <= fastest * (1 + DRIFT)
        ]
        choices.append(_find_steady(alike, device + 1))
    return max(choices, key=lambda chosen: sum(len(stretch.rows) for stretch in chosen))


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
