"""Is it fast? On the best device here against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from metallab import checks, results_made, timing
from metallab.allowance import Allowance
from metallab.device import PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.formats import is_random
from metallab.doctor.limits import Limits
from metallab.doctor.questions import SPEED
from metallab.doctor.results import (
    Asked,
    BatchTimes,
    NoBatches,
    SpeedResult,
    SpeedUp,
    Task,
    TimedTask,
)
from metallab.doctor.worker import best_device, call_time, caveats, time_second_call
from metallab.outcomes import Status
from metallab.pytorch import crossover
from metallab.pytorch.crossover import ONE_THREAD
from metallab.pytorch.model import ModelUnderTest
from metallab.verdicts import Answer as SpeedUpAnswer
from metallab.verdicts import Comparison, Question

CALLS = 40
"""Calls in a comparison of a slow model: six pairs and the warm-up."""
BATCHES = (1, 4, 16, 64)
SHORTEST = 0.1
"""Seconds of a comparison at least."""
QUESTIONS: tuple[Question, ...] = ("latency", "throughput")


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[SpeedResult]:
    """Time inference, inference over batches, and a training step on the best device and on the CPU.

    Parameters
    ----------
    subject
        The model.
    limits
        Of these, ``seconds`` is used: a third for inference, half of the rest for batches, what is left for training.

    Returns
    -------
    Answer
        ``incomplete`` if a speed-up is withheld, or something was not compared for lack of time; else ``passed``.
    """
    on = best_device()
    time_budget = Allowance(limits.seconds)

    # on a GPU work runs on after a call returns
    questions = QUESTIONS[:1] if on.kind == "cpu" else QUESTIONS
    inference = []
    for question in questions:
        seconds = time_budget.left / 3 / len(questions)
        inference.append(_time_task(subject, "inference", question, on, seconds))

    batches = _time_batches(subject, on, time_budget.left / 2)
    training = None
    if subject.can_train:
        training = _time_task(subject, "training", "throughput", on, time_budget.left)

    result = SpeedResult(tuple(inference), batches, training)
    status: Status = "passed" if result.is_conclusive else "incomplete"
    return Answer(SPEED, status, result, Asked(device=on.label), caveats(on))


def make_run(subject: ModelUnderTest, task: Task) -> Callable[[], Any]:
    """Return a function that makes a call of inference, or a training step."""
    return subject.inference() if task == "inference" else subject.training_step()


@results_made.unheard()
def _time_task(
    subject: ModelUnderTest, task: Task, question: Question, on: PyTorchDevice, seconds: float
) -> TimedTask:
    """Compare a GPU with the whole CPU, or that with a single thread; only time it where the seconds do not suffice."""
    if CALLS * time_second_call(make_run(subject, task)) > seconds:
        there = make_run(subject.to(on.torch_device), task)
        measured = timing.measure(there, on=on, budget=timing.FAST)
        return TimedTask(task, call_time(measured), speed_ups=None, details=str(measured))

    compared = _compare(subject, task, question, on, seconds)
    name = crossover.baseline() if on.kind == "cpu" else on.kind
    return TimedTask(
        task,
        call_time(compared[name]),
        speed_ups=tuple(map(_to_speed_up, compared.answers.values())),
        question=question,
        opaque=tuple(checks.without_arrays(make_run(subject, task)())),
        is_random=bool(compared.withheld) and is_random(subject, task),
        details=str(compared),
    )


def _compare(
    subject: ModelUnderTest, task: Task, question: Question, on: PyTorchDevice, seconds: float
) -> Comparison:
    devices = {
        name: cast(PyTorchDevice, each)
        for name, each in crossover.devices(on).items()
        if on.kind == "cpu" or name != ONE_THREAD
    }
    name = "Inference" if task == "inference" else "Training step"
    budget = Allowance(max(seconds, SHORTEST)).budget(
        1, crossover.budget_here(), variants=len(devices)
    )

    return timing.compare(
        {name: make_run(subject.to(each.torch_device), task) for name, each in devices.items()},
        on=devices,
        baseline=crossover.baseline(),
        roles=crossover.roles(devices),
        parity=checks.matches("float32"),
        question=question,
        name=f"{name}, {question}",
        budget=budget,
    )


def _to_speed_up(answer: SpeedUpAnswer) -> SpeedUp:
    """Return a speed-up in numbers."""
    ratio = answer.ratio
    if ratio is None:
        reason = None if answer.reason is None else answer.reason.value
        return SpeedUp(answer.variant, answer.outcome, str(answer), reason=reason)

    return SpeedUp(
        answer.variant,
        answer.outcome,
        str(answer),
        median=ratio.median,
        low=ratio.low if ratio.has_interval else None,
        high=ratio.high if ratio.has_interval else None,
        pairs=ratio.n,
    )


@results_made.unheard()
def _time_batches(
    subject: ModelUnderTest, on: PyTorchDevice, seconds: float
) -> BatchTimes | NoBatches:
    """Find the batch from which on a device is faster, as time permits."""
    if not subject.can_change_batch:
        return NoBatches.ONE_SIZE

    cost = CALLS * time_second_call(subject.inference()) / subject.batch
    sizes = [size for size in BATCHES if cost * size <= seconds]
    if not sizes:
        return NoBatches.NO_TIME

    def make(rows: int, where: torch.device) -> Callable[[], object]:
        return subject.with_batch(rows).to(where).inference()

    curve = crossover.measure("inference", make, sizes, on=on, seconds=seconds)
    return _to_batch_times(curve)


def _to_batch_times(curve: crossover.Curve) -> BatchTimes:
    """Return a curve in numbers, at the sizes that every device was timed at."""
    common = set.intersection(*(set(line) for line in curve.times.values()))
    batches = tuple(sorted(common))
    seconds = {}
    for name, line in curve.times.items():
        seconds[name] = tuple(line[size].median for size in batches)

    return BatchTimes(
        batches,
        seconds,
        crossover=curve.crossover,
        is_withheld=curve.withheld is not None,
        sentence=str(curve),
    )
