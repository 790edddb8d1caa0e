"""Does it run on MPS? From the tables of operators, then by a trial on an Apple GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metallab import units
from metallab.device import PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.limits import Limits
from metallab.doctor.questions import SUPPORT
from metallab.doctor.results import (
    Asked,
    Obstacle,
    SupportResult,
    Task,
    TaskSupport,
    Trial,
    Trouble,
    UnsupportedOperator,
)
from metallab.doctor.worker import apple_gpu
from metallab.outcomes import Status
from metallab.pytorch import coverage
from metallab.pytorch.copies import copy_model
from metallab.pytorch.dispatch import BACKWARD, Raised, call_loss, explain
from metallab.pytorch.model import ModelUnderTest


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[SupportResult]:
    """Find operators that are missing, refused or leave the GPU, in inference and training; then try the model.

    Parameters
    ----------
    subject
        The model.
    limits
        Not used: there is nothing that could be left out.

    Returns
    -------
    Answer
        ``failed`` if the trial, or without one the tables, say that it does not run, ``incomplete`` if they differ,
        some of it may leave the GPU, only the trial could say, or without one inference or training cannot be
        predicted, ``skipped`` if nothing can be predicted and there is no Apple GPU to try it on.
    """
    del limits
    predictions = list(_predict_tasks(subject))
    covered = [found for _, found in predictions if isinstance(found, coverage.Coverage)]
    on = apple_gpu()
    trial = None if on is None else _try_model(on, subject, covered)

    result = SupportResult(
        tasks=tuple(_to_task_support(task, found) for task, found in predictions),
        trial=trial,
        operators=_list_unsupported(covered),
    )
    status = _status(result)
    if status == "skipped":  # neither tables nor a device had anything to say
        return Answer(SUPPORT, status, result)
    asked = Asked(tables=str(torch.__version__), device=None if on is None else on.label)
    return Answer(SUPPORT, status, result, asked)


def is_refused_by_tables(subject: ModelUnderTest) -> bool:
    """Return True if the tables of operators say that a model raises, in inference or in training."""
    found = [covered for _, covered in _predict_tasks(subject)]
    return any(isinstance(each, coverage.Coverage) and not each.runs for each in found)


def _status(result: SupportResult) -> Status:
    """Return how the question ends: *skipped* where there was no trial and nothing is predicted.

    It is *failed* if the trial raised or, without a trial, the tables say that a task does not run. It is *incomplete*
    if the trial ran though they say so, if operators may leave the GPU, or if too little is predicted: nothing at all
    beside a trial, or not each task without one.
    """
    if result.trial is None and not result.predicted:
        return "skipped"
    if result.trial is not None and result.trial.raised is not None:
        return "failed"
    if result.trouble in (Trouble.CONTRADICTED, Trouble.PARTLY_KNOWN):
        return "incomplete"
    if not all(task.runs for task in result.predicted):
        return "failed"
    if not result.predicted or any(task.may_leave_gpu for task in result.predicted):
        return "incomplete"
    return "passed"


def _predict_tasks(
    subject: ModelUnderTest,
) -> Iterator[tuple[Task, coverage.Coverage | coverage.TraceFailed]]:
    """Yield what PyTorch's tables say of inference, and of training if there is something to train.

    It is the coverage, or the exception that says why the operators of the task could not be listed.
    """

    def train(model: nn.Module, /, *inputs: Any, **named: Any) -> Tensor:
        loss = named.pop("the loss")
        value: Tensor = call_loss(loss, model(*inputs, **named))
        return value

    def predict(function: Callable[..., Any], inputs: Any, named: Any, training: bool) -> Any:
        try:
            return coverage.predict_coverage(function, inputs, named, training)
        except coverage.TraceFailed as error:
            return error

    # a copy, whose mode may be changed; the training step runs in the mode that the factory has chosen
    inferring = copy_model(subject.model).eval()
    yield "inference", predict(inferring, subject.inputs, subject.named, training=False)

    if subject.can_train:
        # Model and loss are arguments, since what a function has in a closure is not copied to where it is traced. With
        # a blank in its name the loss cannot be taken for an input of the model, whose names are identifiers.
        inputs = (subject.model, *subject.inputs)
        named = subject.named | {"the loss": subject.loss}
        yield "training", predict(train, inputs, named, training=True)


def _to_task_support(task: Task, found: coverage.Coverage | coverage.TraceFailed) -> TaskSupport:
    """Return what the tables say of a task: whether it runs, or why that cannot be predicted.

    It may leave the GPU if operators fall back to the CPU, or are not PyTorch's own, so that no table has them.
    """
    if isinstance(found, coverage.TraceFailed):
        # the model's own exception, if there was one, says more than that of the search
        cause = found.__cause__
        why = units.first_line(found) if cause is None else str(explain(cause))
        return TaskSupport(task, runs=None, error=why)

    needs_fallback = _needs_fallback(found)
    if not found.is_sure and (found.runs or needs_fallback):
        return TaskSupport(task, runs=None, summary=found.answer)
    return TaskSupport(
        task,
        runs=found.runs or needs_fallback,
        may_leave_gpu=needs_fallback or bool(found.having("falls back", "unknown")),
        needs_fallback=needs_fallback,
        summary=found.answer,
    )


def _needs_fallback(covered: coverage.Coverage) -> bool:
    """Return True if a model lacks operators and nothing else, and the fallback is set, which runs those on the CPU."""
    is_set = os.environ.get(coverage.FALLBACK_VARIABLE, "0") not in ("", "0")
    return is_set and covered.runs_with_fallback and not covered.runs


def _try_model(
    on: PyTorchDevice, subject: ModelUnderTest, covered: Sequence[coverage.Coverage]
) -> Trial:
    """Run the model on an Apple GPU, and return whether it ran, and whether the tables had said so.

    Nothing is surprising where the tables said nothing: then ``covered`` is empty, or holds what they are not sure of.
    Nor is it where operators are missing that run on the CPU, as the fallback is set.
    """
    raised = try_on(on, subject)
    predicted = [each for each in covered if each.is_sure or not each.runs]
    was_predicted_to_run = all(each.runs or _needs_fallback(each) for each in predicted)
    has_run = raised is None
    return Trial(
        is_simulated=on.simulated,
        raised=None if raised is None else str(raised),
        is_raised_by_loss=raised is not None and raised.is_of_loss,
        is_surprising=bool(predicted) and has_run != was_predicted_to_run,
    )


def try_on(on: PyTorchDevice, subject: ModelUnderTest) -> Raised | None:
    """Run the model on a device: forward and backward in its mode, then inference.

    Return the exception that it raises, with its module and line; None if it runs.
    """
    try:
        there = subject.to(on.torch_device)
        loss = there.value()
        if loss.requires_grad:
            loss.backward()
        there.inference()()
        on.synchronize()  # a GPU may report an error only when its work is done
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        return explain(error)
    return None


def _list_unsupported(covered: Sequence[coverage.Coverage]) -> tuple[UnsupportedOperator, ...]:
    """Return the operators that do not run on the GPU, make float64, or meet a tensor on the CPU.

    What inference and training both call is there once, as training calls it, which comes last.
    """
    by_key: dict[tuple[str, ...], UnsupportedOperator] = {}
    uses = [use for each in covered for use in each.uses]
    for use in uses:
        if use.advice:  # an operator that runs needs none
            by_key[use.operator,] = UnsupportedOperator(
                use.operator, Obstacle(use.status), use.modules, use.lines, use.advice
            )

    # a tensor at the wrong place or of the wrong dtype is a matter of the line, so each line counts
    problems = [problem for each in covered for problem in each.problems]
    for problem in problems:
        if problem.operator:  # a weight or an input has none; the task's summary tells of it
            line = problem.line or BACKWARD
            by_key[problem.operator, problem.kind, line] = UnsupportedOperator(
                problem.operator, Obstacle(problem.kind), problem.modules, (line,), problem.way_out
            )
    return tuple(by_key.values())
