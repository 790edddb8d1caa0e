"""How much of a part of a tool can be afforded here: measure first what a step costs, then choose how many to take.

A tool knows how long a part of it may take, and not how fast the machine is. Sweeps on pages ask `timing.within`, and
comparisons take ``seconds``. What has several kinds of work asks::

    allowance = Allowance(20)                                  # seconds, from here on
    step_seconds = timing.measure(step, on=lab, budget=timing.FAST).median
    steps = allowance.count("steps of training", each=step_seconds, wanted=200)
    ...
    print(allowance)   # Left out for time (20 s for this part): 150 of 200 steps of training (0.4 s each).

What was left out is part of the result: print the allowance where the results stand. Nothing is ever interrupted, so
a part takes longer than its allowance by at most the piece that it had begun, or by what ``least`` insists on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from metallab import mode, timing, units
from metallab.timing import Budget

T = TypeVar("T")


class Allowance:
    """Seconds that a part of a page may take, what is left of them, and what was left out for want of more.

    They count from the making on. Make one in the cell that spends it: a reader's pause between cells counts, too.
    ``clock`` returns seconds. ValueError unless ``seconds`` is more than 0.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        timing.assert_time(seconds, "an allowance")
        self.seconds, self.clock = seconds, clock
        self.started = clock()
        self.left_out: list[str] = []
        """What was not done, each with its cost, in words."""

    @property
    def left(self) -> float:
        """Seconds that are left; 0 if more than all are spent."""
        return max(0.0, self.seconds - (self.clock() - self.started))

    def count(self, what: str, *, each: float, wanted: int) -> int:
        """How many pieces of work that take ``each`` seconds can be done, ``wanted`` at most.

        Fewer are noted as left out, with what one costs. ValueError if ``each`` is not a time.
        """
        timing.assert_time(each, what)
        count = min(wanted, int(self.left / each))
        if count < wanted:
            self.left_out.append(
                f"{wanted - count} of {wanted} {what} ({units.seconds(each)} each)"
            )
        return count

    def items(self, items: Iterable[T], what: str = "", *, least: int = 1) -> Iterator[T]:
        """Go through ``items`` while there is time for one more; the rest, by their text, are noted as left out.

        One more is taken to need what the one before took. The first ``least`` are done in any case.
        """
        waiting = list(items)
        last = 0.0
        for done, item in enumerate(waiting):
            if done >= least and last > self.left:
                took = f"the last one, {waiting[done - 1]}, took {units.seconds(last)}"
                self.left_out.append(
                    f"{what} {', '.join(map(str, waiting[done:]))} ({took})".lstrip()
                )
                return

            begun = self.clock()
            yield item
            last = self.clock() - begun

    def budget(
        self, comparisons: int = 1, full: Budget | None = None, *, variants: int = 1
    ) -> Budget:
        """How long one of so many ``comparisons`` that are to come may measure: ``full``, or its share if that is less.

        ``full`` is what `metallab.timing.compare` takes by itself in this mode. Where calls are slow a comparison waits
        once for each of its ``variants``: name their number if that is to fit. One that needs longer than its share to
        get its pairs takes longer; those that come after it then get less.
        """
        full = full or (timing.FULL_COMPARISON if mode.current() == "full" else timing.FAST)
        return timing.shorten(full, self.left / max(1, comparisons) / variants)

    def __str__(self) -> str:
        if not self.left_out:
            return "Nothing was left out for time."
        return f"Left out for time ({units.seconds(self.seconds)} for this part): {'; '.join(self.left_out)}."
