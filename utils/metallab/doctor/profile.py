"""Where does the time go? Operators with their times here; copies and fallbacks on an Apple GPU."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from metallab.device import PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.limits import Limits
from metallab.doctor.questions import PROFILE
from metallab.doctor.results import Asked, OperatorTime, ProfileResult, Task, Transfers
from metallab.doctor.worker import apple_gpu, best_device, caveats
from metallab.pytorch import trace
from metallab.pytorch.dispatch import installed_package
from metallab.pytorch.model import ModelUnderTest


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[ProfileResult]:
    """Trace a step on the best device here, and its copies and fallbacks on an Apple GPU.

    Parameters
    ----------
    subject
        The model; its float64 is narrowed to float32 for the Apple GPU.
    limits
        Not used: one step is traced, after another one.

    Returns
    -------
    Answer
        ``incomplete`` if code that is not an installed package's copies between CPU and GPU, or where copies are not
        known because the model raises on an Apple GPU; else ``passed``.
    """
    del limits
    on = best_device()
    step_trace, task = record(subject, on)

    copies_trace = step_trace if on.kind != "cpu" else None
    apple = apple_gpu() if on.kind == "cpu" else None
    raised_on = None
    if apple is not None:
        try:
            copies_trace, _ = record(subject.without_float64(), apple)
        except Exception:  # noqa: BLE001 - a model may raise anything
            raised_on, apple = apple.label, None

    result = _to_result(
        task, step_trace, copies_trace, subject, is_timed=apple is None, raised_on=raised_on
    )
    is_own_code = bool(result.transfers) and not result.packages
    return Answer(
        PROFILE,
        "incomplete" if raised_on is not None or is_own_code else "passed",
        result,
        Asked(device=on.label, copies=None if apple is None else apple.label),
        caveats(on, has_copies=apple is not None),
    )


def record(subject: ModelUnderTest, on: PyTorchDevice) -> tuple[trace.Trace, Task]:
    """Trace one step after a warm-up step: of training, or of inference where there is nothing to train."""
    there = subject.to(on.torch_device)
    task: Task = "training" if there.can_train else "inference"
    step = there.training_step() if task == "training" else there.inference()

    step()
    on.synchronize()
    with trace.record(on=on) as recorded:
        step()
    return recorded, task


def _to_result(
    task: Task,
    step_trace: trace.Trace,
    copies_trace: trace.Trace | None,
    subject: ModelUnderTest,
    *,
    is_timed: bool,
    raised_on: str | None,
) -> ProfileResult:
    """Return what two traces hold: of the best device, and of the one on which copies can be seen, if there is one.

    ``is_timed`` says whether the times of copies count, and ``raised_on`` names the device on which the model raised.
    """
    events = () if copies_trace is None else copies_trace.having("copy", "fallback")
    copies = sum(event.kind == "copy" for event in events)
    return ProfileResult(
        task,
        _list_operators(step_trace),
        transfers=None if copies_trace is None else _list_transfers(events, is_timed),
        copies=copies,
        fallbacks=len(events) - copies,
        packages=_find_packages(events, subject),
        raised_on=raised_on,
    )


def _list_operators(recorded: trace.Trace) -> tuple[OperatorTime, ...]:
    """Return the operators that compute, the longest first."""
    rows = [row for row in recorded.rows() if row["kind"] != "view"]
    whole = sum(row["total [ms]"] for row in rows)
    return tuple(
        OperatorTime(
            row["operator"],
            row["kind"],
            row["called by"],
            row["calls"],
            seconds=row["total [ms]"] / 1e3,
            share=row["total [ms]"] / whole,
        )
        for row in rows
    )


def _list_transfers(events: Sequence[trace.Event], is_timed: bool) -> tuple[Transfers, ...]:
    """Return copies and fallbacks by line, the most frequent first."""
    groups: dict[tuple[str, str, str, str], list[trace.Event]] = collections.defaultdict(list)
    for event in events:
        line = "" if event.line.startswith("<") else event.line  # the doctor's own
        name = ".item()" if event.name == trace.ITEM else event.short  # as people write it
        groups[name, event.direction or event.kind, event.module, line].append(event)

    return tuple(
        _to_transfers(place, group, is_timed)
        for place, group in sorted(groups.items(), key=_most_first)
    )


def _to_transfers(
    place: tuple[str, str, str, str], events: Sequence[trace.Event], is_timed: bool
) -> Transfers:
    """Return the events of one place in numbers."""
    name, direction, module, line = place
    return Transfers(
        name,
        direction,
        module,
        line,
        calls=len(events),
        bytes=sum(event.bytes for event in events),
        seconds=sum(event.duration for event in events) if is_timed else None,
    )


def _most_first(item: tuple[object, Sequence[object]]) -> int:
    return -len(item[1])


def _find_packages(moved: Sequence[trace.Event], subject: ModelUnderTest) -> tuple[str, ...]:
    """Return the installed packages whose code makes all these copies; none if there is a fallback or a copy elsewhere.

    The package that has the factory is the user's own.
    """
    names = set()
    for event in moved:
        file = event.line.rpartition(":")[0]
        names.add(installed_package(file) if event.kind == "copy" else "")
    return () if names & {"", subject.package} else tuple(sorted(names))
