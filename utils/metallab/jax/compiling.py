"""What compiling with `jax.jit` costs, and after how many calls it has paid (notebook 07b)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.monitoring
import jax.numpy as jnp

from metallab import allowance, device, mode, plots, tables, timing, units

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def traces(cases: Mapping[str, tuple[Any, Any]]) -> tables.Table:
    """How often `jax.jit` traces a function that is called with the first and then the second of each pair.

    ``cases`` maps what a pair shows, in words, to its two arguments: numbers, arrays, or containers of them.

    >>> print(traces({"1.0, then 2.0": (1.0, 2.0), "1.0, then 1": (1.0, 1)}))
    the first call, then the second  traces
    1.0, then 2.0                    1
    1.0, then 1                      2
    """
    return tables.Table(["the first call, then the second", "traces"], [[c, _traced(*p)] for c, p in cases.items()])


def _traced(first: Any, second: Any) -> int:
    count = 0

    @jax.jit
    def sines(x: Any) -> Any:
        nonlocal count
        count += 1  # Python runs while JAX traces, and not in other calls
        return jax.tree.map(jnp.sin, x)

    sines(first)
    sines(second)
    return count


_counting: list[list[float]] = []
"""What `programs` is filling; JAX keeps a listener for ever, so there is one for all."""


def _compiled(event: str, seconds: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        for counted in _counting:
            counted.append(seconds)


jax.monitoring.register_event_duration_secs_listener(_compiled)


@contextlib.contextmanager
def programs() -> Iterator[list[float]]:
    """A list that grows, while the ``with`` lasts, by the seconds that each compiled program took.

    Operations outside `jax.jit` are programs as well, one for each shape. JAX forgets what it has compiled first, so
    the same code gives the same number again.

    >>> double = jax.jit(lambda x: 2 * x)
    >>> with programs() as compiled:
    ...     called = [double(1.0), double(2.0), double(3)]
    >>> len(compiled)  # one for floats, one for integers
    2
    """
    jax.clear_caches()
    counted: list[float] = []
    _counting.append(counted)
    try:
        yield counted
    finally:
        _counting[:] = [one for one in _counting if one is not counted]


@dataclass(frozen=True)
class FirstCalls:
    """How long the first call of a compiled loop takes, by the loop's name and its number of rounds."""

    lines: Mapping[str, Mapping[int, timing.Measurement]]
    left_out: str = ""
    """What was left out for time; empty if nothing was."""

    @property
    def measurements(self) -> list[timing.Measurement]:
        """All of them, for `metallab.records.save`."""
        return [measured for line in self.lines.values() for measured in line.values()]

    @property
    def doubt(self) -> timing.Doubt:
        """Why no time is told, in words or in the picture; empty if nothing speaks against it."""
        return timing.doubt(*self.measurements)

    def draw(self) -> Figure:
        """Time of a first call over the number of rounds, a line for each loop; if in `doubt` only why not."""
        figure = plots.curves(self.lines, xlabel="rounds of the loop", heading="The first call of a loop under jit")
        if self.doubt:
            (axes,) = figure.axes
            for drawn in (*axes.lines, *axes.collections, axes.get_legend()):
                drawn.remove()
            axes.yaxis.set_visible(False)
            words = f"no times: {self.doubt.kind or self.doubt.reason}"
            axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color=plots.RED)
            plots.described(figure, str(self))
        return figure

    def __str__(self) -> str:
        most = max(max(line) for line in self.lines.values())
        last = {name: line[most] for name, line in self.lines.items()}
        sentence = f"The first call of a loop of {most} round{'s' * (most > 1)}"
        if self.doubt:
            sentence += f": no time is told: {self.doubt}."
        else:
            times = ", ".join(f"{units.seconds(measured.median)} as {name}" for name, measured in last.items())
            sentence += f" takes {times} (medians, {next(iter(last.values())).device})."
        return " ".join([sentence, *filter(None, [self.left_out])])


def first_calls(
    loops: Mapping[str, Callable[[Any, int], Any]],
    x: Any,
    rounds: Sequence[int],
    *,
    on: device.JaxDevice,
    seconds: float = 5.0,
) -> FirstCalls:
    """Time first calls of each ``loop(x, rounds)`` under `jax.jit`: a new function each time, so each is compiled.

    ``rounds`` ascend. Those for which nothing is left of ``seconds`` are left out and named, but for the first two.
    """
    within, left = allowance.Allowance(seconds), len(loops) * len(rounds)
    short = timing.Budget(min_samples=7, min_seconds=0.2, max_seconds=0.5, warmup_calls=1)
    full = mode.by_mode(full=short, fast=timing.FAST)
    lines: dict[str, dict[int, timing.Measurement]] = {name: {} for name in loops}
    for count in within.items(rounds, "rounds:", least=2):
        for name, loop in loops.items():
            label = f"first call of {name}, {count} rounds"
            lines[name][count] = timing.measure(
                _compiled_anew(loop, x, count), on=on, name=label, budget=within.budget(left, full)
            )
            left -= 1
    return FirstCalls(lines, str(within) if within.left_out else "")


def _compiled_anew(loop: Callable[[Any, int], Any], x: Any, rounds: int) -> Callable[[], Any]:
    return lambda: jax.jit(lambda x: loop(x, rounds))(x)


def pays_after(comparison: timing.Comparison, compiled: str = "jit") -> str:
    """How many calls it takes until compiling has paid, in a sentence: first calls cost more than later ones.

    The baseline, whose first call compiles as well, though operation by operation, is what it is held against. It is
    told only where the comparison says that the compiled one is faster; else why not. RuntimeError as
    `metallab.timing.Comparison.drift`.
    """
    if withheld := comparison.withheld.get(compiled):
        return f"{comparison.name}: after how many calls {compiled} pays is not told: {withheld}."
    plain, fast = comparison[comparison.baseline], comparison[compiled]
    told = (
        f"{comparison.name}, {fast.device}: {comparison.baseline} takes {units.seconds(plain.first_call)} at the first "
        f"call and {units.seconds(plain.median)} later, {compiled} {units.seconds(fast.first_call)} and "
        f"{units.seconds(fast.median)}."
    )
    if comparison.ratios[compiled].verdict != "faster":
        return f"{told} It is not shown to be faster than {comparison.baseline}."
    dearer = (fast.first_call - fast.median) - (plain.first_call - plain.median)
    calls = max(1, math.ceil(dearer / (plain.median - fast.median)))
    return f"{told} Compiling pays after {calls} call{'s' * (calls != 1)}."
