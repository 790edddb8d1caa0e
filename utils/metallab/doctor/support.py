"""Does it run on MPS? From the tables of operators, then by a trial on an Apple GPU."""

from __future__ import annotations

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
    UnsupportedOperator,
)
from metallab.doctor.worker import apple_gpu
from metallab.outcomes import Status
from metallab.pytorch import coverage
from metallab.pytorch.copies import copied
from metallab.pytorch.dispatch import BACKWARD, Raised, explain
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
        ``failed`` if the tables or the trial say that it does not run, ``incomplete`` if some of it may leave the GPU,
        ``skipped`` if nothing can be predicted and there is no Apple GPU to try it on.
    """
    del limits
    traced = list(_predict_tasks(subject))
    covered = [found for _, found in traced if isinstance(found, coverage.Coverage)]

    tried = None
    on = apple_gpu()
    if on is not None:
        raised = try_on(on, subject)
        predicted = all(each.runs for each in covered)
        tried = Trial(
            is_simulated=on.simulated,
            raised=None if raised is None else str(raised),
            is_surprising=bool(covered) and (raised is None) != predicted,
        )

    result = SupportResult(
        tasks=tuple(_to_task_support(task, found) for task, found in traced),
        trial=tried,
        operators=_list_unsupported(covered),
    )
    status = _status(result)
    asked = Asked(tables=str(torch.__version__), device=None if on is None else on.label)
    return Answer(SUPPORT, status, result, Asked() if status == "skipped" else asked)


def _status(result: SupportResult) -> Status:
    if result.trial is None and not result.predicted:
        return "skipped"
    if result.trial is not None and result.trial.raised is not None:
        return "failed"
    if not all(task.runs for task in result.predicted):
        return "failed"
    if not result.predicted or any(task.may_leave_gpu for task in result.predicted):
        return "incomplete"
    return "passed"


def _predict_tasks(
    subject: ModelUnderTest,
) -> Iterator[tuple[Task, coverage.Coverage | coverage.TraceFailed]]:
    """Yield the coverage of inference and of training, or why it is not known."""

    def train(model: nn.Module, /, *inputs: Any, **named: Any) -> Tensor:
        loss = named.pop("the loss")
        return loss(model(*inputs, **named))

    def trace(function: Callable[..., Any], *parts: Any, **settings: Any) -> Any:
        try:
            return coverage.mps_coverage(
                function, *parts, *subject.inputs, **subject.named, **settings
            )
        except coverage.TraceFailed as error:
            return error

    yield "inference", trace(copied(subject.model).eval())
    if subject.can_train:
        # a name that no input has
        yield "training", trace(train, subject.model, training=True, **{"the loss": subject.loss})


def _to_task_support(task: Task, found: coverage.Coverage | coverage.TraceFailed) -> TaskSupport:
    if isinstance(found, coverage.TraceFailed):
        cause = found.__cause__
        why = units.first_line(found) if cause is None else str(explain(cause))
        return TaskSupport(task, runs=None, error=why)

    return TaskSupport(
        task,
        found.runs,
        may_leave_gpu=bool(found.having("falls back", "unknown")),
        summary=found.answer,
    )


def try_on(on: PyTorchDevice, subject: ModelUnderTest) -> Raised | None:
    """Run the model on a device: forward and backward, then without gradients; return what it raises."""
    try:
        there = subject.to(on.torch_device)
        loss = there.value()
        if loss.requires_grad:
            loss.backward()
        there.inference()()
        on.synchronize()
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        return explain(error)
    return None


def _list_unsupported(covered: Sequence[coverage.Coverage]) -> tuple[UnsupportedOperator, ...]:
    """Return the operators that do not run on the GPU, make float64, or meet a tensor on the CPU, each once."""
    found: dict[tuple[str, ...], UnsupportedOperator] = {}
    for use in (use for each in covered for use in each.uses if use.advice):
        found[use.operator,] = UnsupportedOperator(
            use.operator, Obstacle(use.status), use.modules, use.lines, use.advice
        )

    for problem in (problem for each in covered for problem in each.problems if problem.operator):
        line = problem.line or BACKWARD
        found[problem.operator, problem.kind, line] = UnsupportedOperator(
            problem.operator, Obstacle(problem.kind), problem.modules, (line,), problem.way_out
        )
    return tuple(found.values())
