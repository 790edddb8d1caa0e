"""Is this machine fit for measuring now? One verdict, from what `metallab.timing` looks at anyway, and from its power.

``fitness.judge(lab)`` times one and the same computation twice, as a sentinel does around the comparisons of a page. It
finds the machine unfit for the reasons for which a speed-up would be withheld (`metallab.timing.why_withheld`), for
times that are far apart, and on battery or in low-power mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from metallab import machine, mode, timing, wording
from metallab.device import Device
from metallab.timing import UNRELIABLE, Reason, Sentinel, Withheld, why_withheld

LOOK = timing.Budget(min_seconds=0.5, max_seconds=2.0)
"""Of each of the two measurements: what other programs use is not known of less than 0.3 s."""


class Obstacle(StrEnum):
    """Why a machine is not fit for measuring."""

    BUSY = "busy machine"
    """Other programs compute."""
    DRIFTED = "drifted"
    """It did not keep its speed."""
    WITHHELD = "withheld"
    """Another reason why a speed-up measured now would be withheld."""
    RESTLESS = "restless"
    """The times of one computation are far apart."""
    BATTERY = "battery"
    LOW_POWER = "low-power mode"

    @property
    def is_of_measurements(self) -> bool:
        """Whether it is why a speed-up would be withheld, so that `Withheld.detail` has its words."""
        return self in (Obstacle.BUSY, Obstacle.DRIFTED, Obstacle.WITHHELD)


_OF_REASON = {Reason.BUSY_MACHINE: Obstacle.BUSY, Reason.DRIFTED: Obstacle.DRIFTED}


@dataclass(frozen=True)
class Fitness:
    """Whether a machine is fit for measuring, and the numbers that say so."""

    watch: Sentinel
    """One computation, timed twice."""
    machine: machine.Machine
    """What it said of itself meanwhile, its power above all."""

    @property
    def withheld(self) -> Withheld | None:
        """Why no speed-up would be given that was measured now; None if nothing speaks against one."""
        after = self.watch.after or self.watch.before
        return why_withheld(self.watch.before, after, drift=self.watch.drift)

    @property
    def is_judged(self) -> bool:
        """False on the simulated GPU, whose times say nothing, and in fast mode, which takes too few."""
        withheld = self.withheld
        return withheld is None or withheld.reason not in (Reason.SIMULATED, Reason.FAST_MODE)

    @property
    def noise(self) -> float:
        """Interquartile range over median, of the less steady of the two measurements."""
        after = self.watch.after or self.watch.before
        return max(self.watch.before.noise, after.noise)

    @property
    def others(self) -> float:
        """CPU cores that other programs used, in the busier of the two measurements."""
        after = self.watch.after or self.watch.before
        return max(self.watch.before.others, after.others)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """What speaks against measuring now; empty if nothing does, and where it was not judged."""
        if not self.is_judged:
            return ()

        found = []
        withheld = self.withheld
        if withheld is not None:
            found.append(_OF_REASON.get(withheld.reason, Obstacle.WITHHELD))
        if self.noise > UNRELIABLE:
            found.append(Obstacle.RESTLESS)
        if self.machine.power_source == "battery":
            found.append(Obstacle.BATTERY)
        if self.machine.low_power_mode:
            found.append(Obstacle.LOW_POWER)
        return tuple(found)

    @property
    def is_fit(self) -> bool:
        """True if it was judged, and nothing speaks against measuring."""
        return self.is_judged and not self.obstacles

    def __str__(self) -> str:
        return wording.fitness_sentence(self)

    __repr__ = __str__


def judge(
    on: Device,
    *,
    budget: timing.Budget | None = None,
    ask: Callable[[], machine.Machine] = machine.describe,
    clock: timing.Clock = time.perf_counter_ns,
) -> Fitness:
    """Judge whether this machine is fit for measuring now; it takes one to four seconds.

    Parameters
    ----------
    on
        The device to be measured; its `metallab.device.Device.make_sentinel_work` is timed.
    budget
        Of each of two measurements; by default `LOOK`, in fast mode `metallab.timing.FAST`.
    ask
        Describes the machine.
    clock
        Returns nanoseconds.

    Returns
    -------
    Fitness
        Its text is the verdict in one sentence.

    Examples
    --------
    >>> fitness.judge(device.pick())
    Fit for measuring now: ...
    """
    if budget is None:
        budget = mode.by_mode(full=LOOK, fast=timing.FAST)

    with timing.sentinel(on.make_sentinel_work(), on=on, budget=budget, clock=clock) as watch:
        described = ask()
    return Fitness(watch, described)
