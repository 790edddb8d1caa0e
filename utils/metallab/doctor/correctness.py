"""Is it right? Each operator on an Apple GPU against the CPU in float64, and weights that get no gradient."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from metallab import units
from metallab.allowance import Allowance
from metallab.device import PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.limits import Limits
from metallab.doctor.questions import CORRECTNESS
from metallab.doctor.results import (
    Asked,
    ComparedRun,
    CorrectnessResult,
    Layout,
    Mode,
    NoAnswer,
    NotTried,
    Way,
    Why,
    WrongOperator,
)
from metallab.doctor.worker import apple_gpu
from metallab.outcomes import Status
from metallab.pytorch import divergence
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.model import ModelUnderTest


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[CorrectnessResult]:
    """Compare each operator with the CPU in float64: as given, in the other mode, and with inputs in other layouts.

    Parameters
    ----------
    subject
        The model; its float64 is narrowed to float32 for the Apple GPU.
    limits
        Of these, ``seconds`` is used.

    Returns
    -------
    Answer
        ``failed`` if an operator is wrong; ``incomplete`` if something could not be compared or a weight that the loss
        should reach gets no gradient; ``skipped`` without an Apple GPU or without time.
    """
    on = apple_gpu()
    if on is None:
        return Answer(CORRECTNESS, "skipped", NoAnswer(Why.NO_APPLE_GPU))

    narrowed = subject.without_float64()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        compared, not_tried = _compare_in_ways(narrowed, on, limits.seconds)

    result = CorrectnessResult(
        runs=tuple(_to_run(each) for each in compared),
        not_tried=tuple(not_tried),
        not_compared=_collect_not_compared(compared),
        wrong=_to_wrong_operator(compared[-1].report),
        nan=_find_first_nan(compared),
        without_gradient=find_weights_without_gradient(subject),
        is_narrowed=narrowed is not subject,
        # PyTorch's own words, as there is no other sign of it
        has_fallbacks=any("fall back" in str(warning.message) for warning in heard),
    )
    status = _status(result, has_loss=subject.has_loss)
    asked = Asked(device=on.label)
    if status == "skipped":
        return Answer(CORRECTNESS, status, result, asked, ended="timeout")
    return Answer(CORRECTNESS, status, result, asked)


def _status(result: CorrectnessResult, has_loss: bool) -> Status:
    if result.wrong is not None:
        return "failed"
    if not result.compared:
        return "skipped"
    if result.is_out_of_time or result.nan is not None:
        return "incomplete"
    if result.without_gradient and has_loss:
        return "incomplete"
    return "passed"


# ---- the comparison --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Compared:
    """A way to run the model, and what was found."""

    way: Way
    report: divergence.Report


def _compare_in_ways(
    subject: ModelUnderTest, on: PyTorchDevice, seconds: float
) -> tuple[list[_Compared], list[NotTried]]:
    """Compare in each way until something is wrong.

    Returns
    -------
    list of _Compared
        One at least.
    list of NotTried
        Those that were left out: for lack of time, or because of an error, such as a ``.view()`` of another layout.
    """
    time_budget = Allowance(seconds)
    began = time.perf_counter()
    subject.to(on.torch_device).value()
    uncompared = 3 * (time.perf_counter() - began)  # seconds of a run without comparisons

    compared: list[_Compared] = []
    not_tried: list[NotTried] = []
    ways = _list_ways(subject)
    for number, (way, changed) in enumerate(ways):
        # the way that the model is used in gets half of the time
        share = time_budget.left / 2 if number == 0 else time_budget.left / (len(ways) - number)
        if compared and time_budget.left < uncompared:
            not_tried.append(NotTried(way))
            continue

        try:
            report = _compare_operators(changed, on, max(0.0, share - uncompared))
        except Exception as error:
            if not compared:
                raise
            not_tried.append(NotTried(way, units.first_line(error)))
            continue

        compared.append(_Compared(way, report))
        if report.agreement == "differs":
            break
    return compared, not_tried


def _compare_operators(
    subject: ModelUnderTest, on: PyTorchDevice, seconds: float
) -> divergence.Report:
    """Compare the calls of operators for so many seconds."""
    inputs = subject.named or subject.inputs
    loss = subject.to(on.torch_device).loss
    return divergence.find(subject.model, inputs, loss, on=on, seconds=seconds, layers=False)


def _list_ways(subject: ModelUnderTest) -> list[tuple[Way, ModelUnderTest]]:
    """Return the model as given, in the other mode, and with its inputs in layouts that kernels get wrong."""
    switched = subject.copy()
    switched.model.train(not subject.model.training)
    mode: Mode = "training" if subject.model.training else "evaluation"
    other: Mode = "evaluation" if subject.model.training else "training"
    ways = [(Way(Layout.AS_GIVEN, mode), subject), (Way(Layout.OTHER_MODE, other), switched)]

    inputs = tensors_in((subject.inputs, subject.named))
    if any(tensor.dim() > 1 for tensor in inputs):
        ways.append((Way(Layout.SWAPPED, mode), subject.with_inputs(_swap_in_memory)))
    if any(tensor.dim() == 4 for tensor in inputs):
        ways.append((Way(Layout.CHANNELS_LAST, mode), subject.with_inputs(_to_channels_last)))
    ways.append((Way(Layout.ODD_OFFSET, mode), subject.with_inputs(_to_odd_offset)))
    return ways


def _swap_in_memory(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def _to_channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _to_odd_offset(tensor: Tensor) -> Tensor:
    """Return equal numbers that do not begin where their memory does."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


# ---- what was found --------------------------------------------------------------------------------------------------


def _to_run(compared: _Compared) -> ComparedRun:
    report = compared.report
    return ComparedRun(
        compared.way, report.compared, report.skipped, report.kind.value, report.largest
    )


def _collect_not_compared(compared: Sequence[_Compared]) -> dict[str, str]:
    """Return the operators that cannot be compared, and why."""
    return {
        operator: str(why)
        for each in compared
        for operator, why in each.report.not_compared.items()
    }


def _find_first_nan(compared: Sequence[_Compared]) -> str | None:
    """Return where a NaN appears that the CPU has as well; None if none does."""
    found = (each.report for each in compared if each.report.kind is divergence.Outcome.NAN)
    return next((report.headline for report in found), None)


def _to_wrong_operator(report: divergence.Report) -> WrongOperator | None:
    """Return what is wrong in the last run, after which no other is made; None if nothing is."""
    call = report.divergent_call
    if call is None or report.agreement != "differs":
        return None

    return WrongOperator(
        operator=call.operator,
        module=call.module,
        direction=call.direction,
        wrong_calls=call.wrong_calls,
        right_calls=call.right_calls,
        headline=report.headline,
        difference=str(call.difference),
        advice=report.advice,
        details=str(report),
        program=report.program,
    )


def find_weights_without_gradient(subject: ModelUnderTest) -> tuple[str, ...]:
    """Return the names of the weights that get no gradient in a training step; none of a model that raises."""
    with contextlib.suppress(Exception):  # the question of support reports it
        gradients = subject.gradients()
        if not gradients:
            return ()

        weights = subject.model.named_parameters()
        return tuple(
            name for name, weight in weights if weight.requires_grad and name not in gradients
        )
    return ()
