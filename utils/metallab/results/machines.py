"""This machine beside those in ``data/results``, for notebook 12.

::

    here = machines.beside("12_compare_machines", *comparisons)
    here.of_size("matrix product, n")   # a picture: each machine's speed-up over its own CPU, by size
    print(*here.sentences("matrix product, n"), sep="\\n")
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from metallab import plots, tables
from metallab.records import gather
from metallab.results import findings
from metallab.results.findings import Column, Conclusion
from metallab.timing import Comparison


@dataclass(frozen=True)
class Machines:
    """Columns of results, this machine's first; only ratios are compared."""

    columns: tuple[Column, ...]
    unreadable: tuple[findings.Unreadable, ...] = ()
    """Stored files that cannot be used, and why."""

    @property
    def described(self) -> tables.Table:
        """A row for each machine: what it is, how its results were made."""
        rows = findings.provenance(self.columns)
        shown = [(label, cells) for label, cells in rows if label in _DESCRIBED]
        machines = [[one.head, *(cells[index] for _, cells in shown)] for index, one in enumerate(self.columns)]
        note = "; ".join(f"left out: {one.what}: {one.reason}" for one in self.unreadable)
        return tables.Table(["machine", *(label for label, _ in shown)], machines, note)

    def of_size(self, series: str) -> Figure:
        """Draw the speed-ups of a series, such as ``"matrix product, n"``, over the size, each with its 95 % interval.

        Speed-ups that are withheld are not drawn; `sentences` names them. ValueError if nothing may be drawn.
        """
        lines = {
            (one.head, f"{measured} over {base}"): {size: each.ratio for size, each in by_size.items() if each.ratio}
            for one in self.columns
            for (measured, base), by_size in _by_sides(one, series).items()
        }
        heading = f"{series.removesuffix(', n')}: speed-up over the same machine's whole CPU"
        return plots.speedups_by_size({key: line for key, line in lines.items() if line}, heading=heading)

    def sentences(self, series: str) -> list[str]:
        """Return for each machine from which size on its GPU wins over its CPU, or one thread over all."""
        told = []
        for one in self.columns:
            for sides, by_size in list(_by_sides(one, series).items())[:1]:
                words = findings.from_which_size({size: each.outcome for size, each in by_size.items()})
                first = next(iter(by_size.values()))
                why = "" if any(each.ratio for each in by_size.values()) else f" ({first.words})"
                measured = f"{one.head}, {series.removesuffix(', n')}"
                told.append(f"{measured}: {_sentence(*sides, words)}{why}." if words else f"{measured}: {first.words}.")
        return told

    @property
    def gpus(self) -> dict[str, dict[str, list[tuple[float, float, float]]]]:
        """Each GPU's speed-ups over its own CPU with their intervals, by machine and lesson; for `plots.by_lesson`."""
        speed_ups: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
        for one in self.columns:
            for each in one.conclusions:
                if each.by_gpu and each.ratio:
                    speed_ups.setdefault(one.head, {}).setdefault(each.lesson, []).append(each.ratio)
        return speed_ups


_DESCRIBED = ("Chip", "System", "frameworks", "processes for each")


def beside(lesson: str, *measured: Comparison) -> Machines:
    """Return this machine, with its latest run and a page's new results, beside those in ``data/results``."""
    page = findings.column(gather(lesson, *measured), "this page")
    columns, unreadable = findings.beside(_newest(findings.with_now(page), page))
    return Machines(tuple(columns), tuple(unreadable))


def _newest(both: Column, page: Column) -> Column:
    """Return a machine's results without an earlier run's of a series that a page has measured."""
    lessons = {each.lesson for each in page.conclusions}
    again = {each.series for each in page.conclusions if each.series}
    kept = [each for each in both.conclusions if each.lesson in lessons or each.series not in again]
    return replace(both, conclusions=tuple(kept))


def _by_sides(one: Column, series: str) -> dict[tuple[str, str], dict[float, Conclusion]]:
    """Return a series by size, for each (measured, baseline) in words, a GPU's first."""
    by_sides: dict[tuple[str, str], dict[float, Conclusion]] = {}
    for each in sorted(one.conclusions, key=lambda each: not each.by_gpu):
        if each.series == series and each.measured.size:
            sides = _IN_WORDS.get(each.role, each.role), _IN_WORDS.get(each.baseline_role, each.baseline_role)
            by_sides.setdefault(sides, {})[each.measured.size.number] = each
    return {sides: dict(sorted(by_size.items())) for sides, by_size in by_sides.items()}


_IN_WORDS = {"GPU": "the GPU", "CPU": "the whole CPU", "CPU, 1 thread": "one CPU thread"}


def _sentence(measured: str, base: str, words: str) -> str:
    """``words`` are those of `findings.from_which_size`.

    >>> _sentence("the GPU", "the whole CPU", "faster from n = 256 on")
    'the GPU is faster than the whole CPU from n = 256 on'
    """
    verdict, _, sizes = words.partition(" ")
    if verdict in ("faster", "slower"):
        return f"{measured} is {verdict} than {base} {sizes}"
    return f"{measured} beside {base}: {words}"
