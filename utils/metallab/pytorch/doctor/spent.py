"""4: where does the time go? Operators with their milliseconds here; copies and fallbacks on an Apple GPU."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from metallab import units
from metallab.device import Device
from metallab.pytorch import trace
from metallab.pytorch.dispatch import installed_package
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.asking import Limits, apple_gpu, best_device, caveat
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table

MOST_ROWS = 12
LONGEST = ("operator", "kind", "called by", "calls", "total [ms]")


def spent(subject: Subject, _: Limits) -> Answer:
    """Trace a step on the best device here, and its copies and fallbacks on an Apple GPU."""
    on = best_device()
    recorded, what = record(subject, on)
    operators = [row for row in recorded.rows() if row["kind"] != "view"]
    whole = sum(row["total [ms]"] for row in operators)
    rows = [
        (*(row[name] for name in LONGEST), f"{row['total [ms]'] / whole:.0%}")
        for row in operators[:MOST_ROWS]
    ]
    sentences = [f"It calls no operator ({what}, traced)."]
    if rows:
        name, _, where, *_, share = rows[0]
        longest = f"{name} takes {share} of it, in {where or 'no layer'}"
        sentences = [f"Of {units.seconds(whole / 1e3)} in operators ({what}, traced), {longest}."]
    evidence = [Evidence(f"The longest of {what}", Table([*LONGEST, "share"], rows))]
    apple, known = apple_gpu() if on.kind == "cpu" else None, True
    if apple is not None:
        try:
            recorded, _ = record(subject.without_float64(), apple)
        except Exception:  # noqa: BLE001 - a model may raise anything
            sentences.append(
                f"It raises on {apple.label}, so its copies are not known: see answer 1."
            )
            apple, known = None, False
    moved = recorded.having("copy", "fallback")
    packages = _packages(moved, subject)
    if moved:
        rows = _moves(moved, timed=apple is None)
        copies = len(recorded.having("copy"))
        name, way, module, line, *_ = rows[0]
        first = f"{name} ({way}) in {module}{line and f' at {line}'}"
        counted = f"{copies} hidden {'copy' if copies == 1 else 'copies'}, fallbacks: {len(moved) - copies}"
        sentences.append(f"Between CPU and GPU: {counted}; the first is {first}.")
        if packages:
            sentences.append(f"They are in the code of {', '.join(packages)}, not in yours.")
        headings = ["operator", "which way", "called by", "at", "calls", "bytes", "ms"]
        evidence.append(Evidence("Copies and fallbacks", Table(headings, rows)))
    elif apple is not None or on.kind != "cpu":
        sentences.append("Nothing is copied between CPU and GPU.")
    asked = on.label + (f"; copies and fallbacks: {apple.label}" if apple else "")
    status = "passed" if known and (packages or not moved) else "incomplete"
    sentence = "\n".join(sentences) + caveat(
        on, "an Apple GPU's times" if apple else "an Apple GPU"
    )
    return Answer(QUESTIONS[3], status, sentence, asked, tuple(evidence))


def record(subject: Subject, on: Device) -> tuple[trace.Trace, str]:
    """Trace one step after a warm-up step; return it and its description."""
    there = subject.to(on.torch_device)
    trains = there.trains
    step, what = (
        (there.training_step(), "a training step") if trains else (there.inference(), "inference")
    )
    step()
    on.synchronize()
    with trace.record(on=on) as recorded:
        step()
    return recorded, what


def _moves(events: Sequence[trace.Event], timed: bool) -> list[tuple]:
    """Return rows of copies and fallbacks by line, the most frequent first."""
    groups: dict[tuple[str, ...], list[trace.Event]] = collections.defaultdict(list)
    for event in events:
        line = "" if event.line.startswith("<") else event.line  # the doctor's own
        name = ".item()" if event.name == trace.ITEM else event.short  # as people write it
        groups[name, event.direction or event.kind, event.module or "no layer", line].append(event)
    rows = []
    for key, group in sorted(groups.items(), key=lambda each: -len(each[1])):
        size, seconds = (
            sum(getattr(event, name) for event in group) for name in ("bytes", "duration")
        )
        rows.append(
            (
                *key,
                len(group),
                units.size(size),
                f"{1e3 * seconds:.3g}" if timed else "not known here",
            )
        )
    return rows


def _packages(moved: Sequence[trace.Event], subject: Subject) -> list[str]:
    """Return the installed packages whose code makes all these copies; none if there is a fallback or a copy elsewhere.

    The package that has the factory is the user's own.
    """
    names = {
        installed_package(event.line.rpartition(":")[0]) if event.kind == "copy" else ""
        for event in moved
    }
    return [] if names & {"", subject.package} else sorted(names)
