"""Where does the time go? Operators with their times here; copies and fallbacks on an Apple GPU."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from metallab.device import PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.limits import Limits
from metallab.doctor.questions import PROFILE
from metallab.doctor.results import Asked, Layer, OperatorTime, ProfileResult, Task, Transfers
from metallab.doctor.worker import apple_gpu, best_device, caveats
from metallab.outcomes import Status
from metallab.pytorch import trace
from metallab.pytorch.dispatch import find_package
from metallab.pytorch.model import ModelUnderTest
from metallab.timing import BUSY, BackgroundLoad, Reason


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
        ``incomplete`` if code that is not an installed package's copies between CPU and GPU, if an operator falls back
        to the CPU, or where copies are not known because the model raises on an Apple GPU; else ``passed``, also where
        there is no GPU that could tell.

    Raises
    ------
    Exception
        Whatever the model raises on the best device; what it raises on an Apple GPU is a part of the answer.
    """
    del limits
    on = best_device()
    load = BackgroundLoad()
    step_trace, task = record(subject, on)
    load.wait()
    flags = (Reason.BUSY_MACHINE.value,) if load.cores() > BUSY else ()

    # a CPU copies nothing to itself, so the copies are looked for on an Apple GPU, if there is one
    if on.kind == "cpu":
        copies = _trace_copies(subject, apple_gpu())
    else:
        copies = _CopiesTrace(step_trace)

    result = replace(_to_result(task, step_trace, copies, subject), flags=flags)
    # packages are named only where their code makes all of the copies and fallbacks
    is_own_code = bool(result.transfers) and not result.packages
    status: Status = "passed"
    if is_own_code or copies.raised_on is not None:
        status = "incomplete"

    return Answer(
        PROFILE,
        status,
        result,
        Asked(device=on.label, copies=copies.other_device),
        caveats(on, has_copies=copies.other_device is not None),
    )


@dataclass(frozen=True)
class _CopiesTrace:
    """A trace that shows copies between CPU and GPU, or why there is none."""

    recorded: trace.Trace | None = None
    """None where there is no GPU, or the model raises there."""
    other_device: str | None = None
    """The label of the Apple GPU that was traced; None if it is the trace of the best device."""
    raised_on: str | None = None
    """The label of the Apple GPU on which the model raises."""


def _trace_copies(subject: ModelUnderTest, apple: PyTorchDevice | None) -> _CopiesTrace:
    """Trace a step on an Apple GPU, if there is one; a model that raises there leaves its copies unknown."""
    if apple is None:
        return _CopiesTrace()
    try:
        recorded, _ = record(subject.without_float64(), apple)
    except Exception:  # noqa: BLE001 - a model may raise anything
        return _CopiesTrace(raised_on=apple.label)
    return _CopiesTrace(recorded, other_device=apple.label)


def record(subject: ModelUnderTest, on: PyTorchDevice) -> tuple[trace.Trace, Task]:
    """Trace one step on a device after a warm-up step, whose first calls take longer.

    Returns
    -------
    recorded : Trace
        The operators of the step.
    task
        ``training``, or ``inference`` where there is nothing to train.

    Raises
    ------
    RuntimeError
        If something else is being recorded in this process.
    Exception
        Whatever the model raises on the device.
    """
    there = subject.to(on.torch_device)
    task: Task = "training" if there.can_train else "inference"
    step = there.training_step() if task == "training" else there.inference()

    step()
    on.synchronize()  # the GPU may still be at work on the warm-up
    with trace.record(on=on) as recorded:
        step()
    return recorded, task


def _to_result(
    task: Task, step_trace: trace.Trace, copies: _CopiesTrace, subject: ModelUnderTest
) -> ProfileResult:
    """Return in numbers what a trace on the best device shows, and the one that shows copies, if there is one."""
    operators = _list_operators(step_trace, subject)
    if copies.recorded is None:
        return ProfileResult(task, operators, transfers=None, raised_on=copies.raised_on)

    # the simulated GPU knows no time, so what another device than the best one took does not count
    is_timed = copies.other_device is None
    events = copies.recorded.having("copy", "fallback")
    count = sum(event.kind == "copy" for event in events)
    return ProfileResult(
        task,
        operators,
        transfers=_list_transfers(events, is_timed),
        copies=count,
        fallbacks=len(events) - count,
        packages=_find_packages(events, subject),
    )


def _list_operators(recorded: trace.Trace, subject: ModelUnderTest) -> tuple[OperatorTime, ...]:
    """Return the operators that compute, the longest first, each with its seconds and its share of all of them.

    Views are left out, because they compute nothing.
    """
    kinds = {place: type(module).__name__ for place, module in subject.model.named_modules()}
    rows = [row for row in recorded.rows() if row["kind"] != "view"]  # the longest first
    whole = sum(row["total [ms]"] for row in rows)

    return tuple(
        OperatorTime(
            row["operator"],
            row["kind"],
            row["called by"],
            row["calls"],
            seconds=row["total [ms]"] / 1e3,
            share=row["total [ms]"] / whole,
            layers=_find_layers(row["called by"], kinds),
        )
        for row in rows
    )


def _find_layers(called_by: str, kinds: Mapping[str, str]) -> tuple[Layer, ...]:
    """Return the layers that a trace names in a row; none if something in it is no layer of the model."""
    places = called_by.split(trace.BETWEEN_MODULES)
    if not all(kinds.get(place) and place for place in places):
        return ()
    return tuple(Layer(place, kinds[place]) for place in places)


def _list_transfers(events: Sequence[trace.Event], is_timed: bool) -> tuple[Transfers, ...]:
    """Return copies and fallbacks, one entry for those of one place in the code, the most frequent first.

    ``is_timed`` says whether the durations of the events are times of a real device.
    """
    groups: dict[_Place, list[trace.Event]] = collections.defaultdict(list)
    for event in events:
        # "<string>" is the doctor's own code, at which a reader cannot look
        line = "" if event.line.startswith("<") else event.line
        # .item() is what people write, aten::_local_scalar_dense what PyTorch calls
        name = ".item()" if event.name == trace.ITEM else event.short
        # only copies have a direction, so a fallback goes by its kind
        place = _Place(name, event.direction or event.kind, event.module, line)
        groups[place].append(event)

    by_frequency = sorted(groups.items(), key=_negative_length)
    return tuple(_to_transfers(place, group, is_timed) for place, group in by_frequency)


class _Place(NamedTuple):
    """What the copies and fallbacks of one entry have in common."""

    name: str
    direction: str
    module: str
    line: str


def _to_transfers(place: _Place, events: Sequence[trace.Event], is_timed: bool) -> Transfers:
    """Return how often one place copies or falls back, how many bytes, and how long unless it is not timed."""
    return Transfers(
        place.name,
        place.direction,
        place.module,
        place.line,
        calls=len(events),
        bytes=sum(event.bytes for event in events),
        seconds=sum(event.duration for event in events) if is_timed else None,
    )


def _negative_length(group: tuple[_Place, Sequence[trace.Event]]) -> int:
    """Return a key by which the longest group is sorted first."""
    return -len(group[1])


def _find_packages(events: Sequence[trace.Event], subject: ModelUnderTest) -> tuple[str, ...]:
    """Return the installed packages whose code makes all these copies, in alphabetical order.

    It is empty if the reader's own code makes a copy, or an operator falls back, since both are the reader's to change.
    The package that has the factory is the reader's own, be it installed.
    """
    packages = set()
    for event in events:
        if event.kind == "fallback":
            return ()
        file = event.line.rpartition(":")[0]
        packages.add(find_package(file))  # empty for a file that belongs to none

    has_own_code = "" in packages or subject.package in packages
    return () if has_own_code else tuple(sorted(packages))
