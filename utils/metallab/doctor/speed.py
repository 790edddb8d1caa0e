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
from metallab.timing import Answer as SpeedUpAnswer
from metallab.timing import Comparison, Question

CALLS = 40
"""Calls in a comparison of a slow model, six pairs and the warm-up: with less time it is not begun."""
INFERENCE_SHARE = 1 / 3
"""The share of the time that inference gets; half of what it leaves is for batches, and the rest for training."""
BATCHES_SHARE = 1 / 2
BATCHES = (1, 4, 16, 64)
SHORTEST = 0.1
"""Seconds of a comparison at least: in less there are too few samples, even of a fast model."""
QUESTIONS: tuple[Question, ...] = ("latency", "throughput")


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[SpeedResult]:
    """Time inference, inference over batches, and a training step on the best device and on the CPU.

    Parameters
    ----------
    subject
        The model.
    limits
        Of these, ``seconds`` is used, in about equal parts for inference, batches and training.

    Returns
    -------
    Answer
        ``incomplete`` if a speed-up is withheld, or something was not compared for lack of time; else ``passed``.

    Raises
    ------
    Exception
        Whatever the model raises on one of the devices.
    """
    on = best_device()
    time_budget = Allowance(limits.seconds)

    # A GPU works on after a call returns, so there the time until one result (latency) and the results in a second
    # (throughput) differ. On a CPU they do not.
    questions = QUESTIONS[:1] if on.kind == "cpu" else QUESTIONS
    inference = []
    for question in questions:
        seconds = INFERENCE_SHARE * time_budget.left / len(questions)
        inference.append(_time_task(subject, "inference", question, on, seconds))

    batches = _time_batches(subject, on, BATCHES_SHARE * time_budget.left)
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
    """Time a task on the best device, and compare it with another one as far as there is time.

    Parameters
    ----------
    subject
        The model, on the CPU.
    task
        A call of inference, or a training step.
    question
        Whether latency or throughput is compared.
    on
        The best device: a GPU is compared with the whole CPU, and the whole CPU with one of its threads.
    seconds
        For all calls; too few for `CALLS` of them on the CPU leave the task without a comparison.

    Returns
    -------
    TimedTask
        Without speed-ups, and with the time on the best device alone, where there are too few seconds to compare.

    Raises
    ------
    Exception
        Whatever the model raises on one of the devices.
    """
    if CALLS * time_second_call(make_run(subject, task)) > seconds:
        on_device = make_run(subject.to(on.torch_device), task)
        measured = timing.measure(on_device, on=on, budget=timing.FAST)
        return TimedTask(task, call_time(measured), speed_ups=None, details=str(measured))

    compared = _compare(subject, task, question, on, seconds)
    variant = crossover.baseline() if on.kind == "cpu" else on.kind  # which runs on the best device
    return TimedTask(
        task,
        call_time(compared[variant]),
        speed_ups=tuple(map(_to_speed_up, compared.answers.values())),
        question=question,
        opaque=tuple(checks.without_arrays(make_run(subject, task)())),
        # two more calls, needed only where differing outputs may be why a speed-up is withheld
        is_random=bool(compared.withheld) and is_random(subject, task),
        details=str(compared),
    )


def _compare(
    subject: ModelUnderTest, task: Task, question: Question, on: PyTorchDevice, seconds: float
) -> Comparison:
    """Time a task on each device in turn, and compare their outputs; parameters are those of `_time_task`.

    One thread of the CPU is left out beside a GPU, which is compared with the whole CPU; it would take the most time.
    Outputs have to agree as float32 does, or no speed-up is given. Raises what the model raises on one of the devices.
    """
    devices = {
        name: cast(PyTorchDevice, each)
        for name, each in crossover.devices(on).items()
        if on.kind == "cpu" or name != ONE_THREAD
    }
    title = "Inference" if task == "inference" else "Training step"
    time_budget = Allowance(max(seconds, SHORTEST))
    budget = time_budget.budget(comparisons=1, full=crossover.budget_here(), variants=len(devices))

    return timing.compare(
        {name: make_run(subject.to(each.torch_device), task) for name, each in devices.items()},
        on=devices,
        baseline=crossover.baseline(),
        roles=crossover.roles(devices),
        parity=checks.matches("float32"),
        question=question,
        name=f"{title}, {question}",
        budget=budget,
    )


def _to_speed_up(answer: SpeedUpAnswer) -> SpeedUp:
    """Return a speed-up in numbers, or the reason why it is withheld; it has no interval if the pairs are too few."""
    ratio = answer.ratio
    if ratio is None:  # it is withheld
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


@results_made.unheard()  # the curve is a step of the answer, and no result of a page
def _time_batches(
    subject: ModelUnderTest, on: PyTorchDevice, seconds: float
) -> BatchTimes | NoBatches:
    """Time inference with each batch of `BATCHES` for which the seconds suffice, and find from which on a device wins.

    It returns the reason where a model takes no other batch, or not even the smallest has time. Raises what the model
    raises on one of the devices.
    """
    if not subject.can_change_batch:
        return NoBatches.ONE_SIZE

    # An estimate, as if the time were proportional to the rows, and each batch had all of it. Those for which it then
    # runs out are left out by `crossover.measure`.
    seconds_a_row = CALLS * time_second_call(subject.inference()) / subject.batch
    batches = [rows for rows in BATCHES if seconds_a_row * rows <= seconds]
    if not batches:
        return NoBatches.NO_TIME

    def make_inference(rows: int, device: torch.device) -> Callable[[], object]:
        return subject.with_batch(rows).to(device).inference()

    curve = crossover.measure("inference", make_inference, batches, on=on, seconds=seconds)
    return _to_batch_times(curve)


def _to_batch_times(curve: crossover.Curve) -> BatchTimes:
    """Return a curve in numbers, at the batches that every device was timed at.

    Others are left out, since a device for which time ran out earlier has no number beside the others'.
    """
    timed_on_all = set.intersection(*(set(by_batch) for by_batch in curve.times.values()))
    batches = tuple(sorted(timed_on_all))
    seconds = {}
    for device, by_batch in curve.times.items():
        seconds[device] = tuple(by_batch[batch].median for batch in batches)

    return BatchTimes(
        batches,
        seconds,
        crossover=curve.crossover,
        is_withheld=curve.withheld is not None,
        sentence=str(curve),
    )
