"""What a file of results holds: the classes are its schema, and msgspec checks it.

A new field with a default and a type of `metallab.fields` is written, read back and in the published schema
(``python -m metallab.results.check_results --schema``) without another line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta

from metallab import machine, wording
from metallab.fields import Drift, LessonName, Line, Name, RatioValue, Sentence
from metallab.outcomes import Verdict
from metallab.timing import (
    Answer,
    Measurement,
    Ratio,
    Reason,
    Withheld,
    choose_sampling,
    why_withheld,
)


class RecordError(ValueError):
    """A results file that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Compared:
    """The result of a comparison for one of its variants."""

    name: Name
    """Of the comparison."""
    variant: Name
    baseline: Name
    outcome: Literal["baseline", Verdict]
    median: RatioValue | None = None
    """The speed-up over the baseline with its 95 % interval; None for the baseline, where outputs differ, and of a
    simulated device. A speed-up that was withheld for another reason is kept: see `Record.withheld`."""
    low: RatioValue | None = None
    high: RatioValue | None = None
    """None where too few pairs give no upper end."""
    reason: Reason | None = None
    """Why no speed-up is given; None where one is, and for a reason that only ``detail`` says."""
    detail: Line = ""
    """What happened and what to do, in words."""
    parity: Line = ""
    """What was checked before any time was compared."""
    role: Line = ""
    """What the variant is on any machine, ``GPU, float16``; empty if that is its name."""
    series: Line = ""
    """The name of comparisons that differ in size only, with n for the size: ``matrix product, n``."""

    @property
    def withheld(self) -> Withheld | None:
        """Why the page withheld a speed-up, as the file says; None if it did not."""
        if self.reason or self.detail:
            return Withheld(self.reason or Reason.OTHER, self.detail)
        if self.outcome == "withheld":
            return Withheld(Reason.OTHER, wording.PHRASES["unknown"])
        return None


PictureName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.png$")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Headline:
    """A page's findings: up to three sentences and a picture."""

    sentences: Annotated[tuple[Sentence, ...], Meta(min_length=1, max_length=3)]
    picture: PictureName | None = None
    """The PNG beside the file of results. A page gives a figure of matplotlib, or the path of a PNG."""
    alternative_text: Line = ""
    """The picture in words; of a figure they are made (`figure_words.describe_figure`)."""
    sha256: Digest | None = None
    """Of the picture."""


@dataclass(frozen=True)
class Record:
    """One measurement of one process."""

    lesson: LessonName
    name: Name
    """``lesson/measurement`` or ``lesson/comparison/variant``. Records of one name are of one process each."""
    taken: Name
    """When it was saved, as ISO 8601 in UTC. A page saves all of its results again after each cell that measures, so
    they all have the moment of its last one; when a single one was measured is not recorded."""
    measurement: Measurement
    comparison: Compared | None
    sentinel_drift: Drift | None
    """How much longer a fixed piece of work on the page's device took after the comparison than before it: 0.1 is 10 %.
    None if nobody watched. In files of before 29 November 2026 it may be that of the whole page, as ``page_drift``."""
    machine: machine.Machine
    headline: Headline | None = None
    """What its page found."""
    page_drift: Drift | None = None
    """The same of a fixed piece of work on the CPU around the whole page, by `make bench`. It withholds nothing,
    because the pairs of one round share the drift; the report advises to run the page again."""
    without_headline: Line = ""
    """Why its page has no headline although its metadata name one, such as a variable that no cell had made when the
    results were saved."""

    @property
    def moment(self) -> datetime:
        """``taken`` as a time with its zone: UTC where it names none."""
        given = datetime.fromisoformat(self.taken)
        return given if given.tzinfo else given.replace(tzinfo=UTC)

    @property
    def withheld(self) -> Withheld | None:
        """Why no conclusion may be drawn from it; None if nothing speaks against one.

        What the page withheld when it was measured, else what `metallab.timing.why_withheld` says of the measurement
        and of the sentinel around it.
        """
        stated = None if self.comparison is None else self.comparison.withheld
        return stated or why_withheld(self.measurement, drift=self.sentinel_drift)

    @property
    def disturbance(self) -> Withheld | None:
        """What disturbed the machine, so that the page should be run again; None if nothing is known to have.

        It is what the comparison states, because a reason may need the measurements of both sides, which one record
        does not have; where it states none that another run may be without, it is what
        `metallab.timing.why_withheld` says of this measurement and of the sentinel around it.
        """
        stated = None if self.comparison is None else self.comparison.withheld
        alone = why_withheld(self.measurement, drift=self.sentinel_drift)
        for reason in (stated, alone):
            if reason is not None and reason.is_transient:
                return reason
        return None

    @property
    def answer(self) -> Answer | None:
        """The speed-up of its comparison, or why there is none; None for a baseline and where nothing was compared."""
        compared = self.comparison
        if compared is None or compared.outcome == "baseline":
            return None

        withheld = self.withheld
        if withheld is not None:
            return Answer(compared.variant, withheld)
        if compared.median is None or compared.low is None:
            return Answer(compared.variant, Withheld(Reason.OTHER, wording.PHRASES["unknown"]))

        ratio = Ratio(
            compared.variant,
            compared.baseline,
            compared.median,
            compared.low,
            math.inf if compared.high is None else compared.high,
            n=self.measurement.n,
            sampling=choose_sampling(self.measurement.cold),
        )
        return Answer(compared.variant, ratio)


def by_name(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the runs of each benchmark, in the order given."""
    benchmarks: dict[str, list[Record]] = {}
    for record in records:
        benchmarks.setdefault(record.name, []).append(record)
    return benchmarks


_GRAVEST_FIRST = (Reason.OUTPUTS_DIFFER, Reason.SIMULATED, Reason.FAST_MODE)
"""Which of several reasons of one benchmark is told; all others come after these."""


def usable_runs(runs: Sequence[Record]) -> tuple[list[Record], Withheld | None]:
    """Return the runs of one benchmark that conclusions may be drawn from, or why there are none.

    A process is left out for a reason that another run may be without (`Withheld.is_transient`), such as a busy
    machine, if there is one without it. Any other reason excludes all.

    Parameters
    ----------
    runs
        One record from each process.

    Returns
    -------
    list of Record, Withheld or None
        The runs and None, or an empty list and the gravest reason.
    """
    reasons = [run.withheld for run in runs]

    lasting = [reason for reason in reasons if reason and not reason.is_transient]
    if lasting:
        return [], min(lasting, key=_gravity)

    usable = [run for run, reason in zip(runs, reasons, strict=True) if reason is None]
    if usable:
        return usable, None
    return [], reasons[0]  # all of them may pass, and none is graver


def _gravity(withheld: Withheld) -> int:
    """Return the place of a reason among the gravest, 0 for the first."""
    try:
        return _GRAVEST_FIRST.index(withheld.reason)
    except ValueError:
        return len(_GRAVEST_FIRST)
