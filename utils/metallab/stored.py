"""Results that are stored with the project, for a page on a machine without the device that it is about."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from metallab import paths, records
from metallab.records import Record
from metallab.timing import Answer, Comparison

RESULTS = paths.ROOT / "data" / "results"


_NO_RESULTS = (
    "{name}, measured before on another machine: its results are stored in the project's data/results, and this "
    "installation of metallab alone does not have them."
)


def load(path: Path | str) -> list[Record]:
    """Return the records of a file of results; see `metallab.records.load`."""
    return records.load(path)


def of(lesson: str, *comparisons: Comparison) -> list[Record]:
    """Return comparisons of this machine as records of a page, to be set beside those of a file.

    Parameters
    ----------
    lesson
        The page's name.
    *comparisons
        What it has compared.
    """
    return records.gather(lesson, *comparisons)


def comparison(lesson: str, name: str, variant: str = "", file: str = "nvidia_h200.json") -> str:
    """Return a reference machine's results of one comparison in ``data/results``, in sentences that name the machine.

    >>> print(comparison("14_find_where_the_time_goes", "Softshrink MLP, batch 4096"))
    Measured before on an NVIDIA H200, Softshrink MLP, batch 4096: native is 20.9 times as fast as the round trip
    (median of 2 processes, 18.2 to 23.7).

    Parameters
    ----------
    lesson, name, variant
        The page, the comparison, and one of its variants; all of them if none is named.
    file
        The machine's file in ``data/results``.

    Returns
    -------
    str
        The sentences. Where metallab was installed from a wheel, which brings no results, one that says so.

    Raises
    ------
    ValueError
        If the file has no such comparison.
    """
    if not RESULTS.is_dir():
        return _NO_RESULTS.format(name=name)

    wanted = f"{lesson}/{name}/{variant}"
    lines = []
    for told, runs in records.by_name(load(RESULTS / file)).items():
        is_wanted = told == wanted if variant else told.startswith(wanted)
        compared = runs[0].comparison
        if not is_wanted or compared is None or compared.outcome == "baseline":
            continue
        sentence = _sentence(runs, compared.variant)
        lines.append(f"Measured before on an {runs[0].measurement.device}, {name}: {sentence}.")

    if not lines:
        raise ValueError(f"{file} has no comparison {name!r} of {lesson}: ask for one that it has")
    return "\n".join(lines)


def _sentence(runs: Sequence[Record], variant: str) -> str:
    """Return a variant's speed-up over all processes that measured it, or why there is none."""
    usable, withheld = records.usable_runs(runs)
    if withheld:
        return str(Answer(variant, withheld))

    answer = usable[0].answer
    assert answer is not None
    assert answer.ratio is not None  # nothing is withheld
    ratio = answer.ratio
    compared = [run.comparison for run in usable if run.comparison is not None]
    medians = sorted(each.median for each in compared if each.median is not None)
    if len(medians) == 1:
        return ratio.sentence("one process")
    ratio = replace(ratio, median=statistics.median(medians), low=medians[0], high=medians[-1])
    return ratio.sentence(f"median of {len(medians)} processes, {ratio.ends}")
