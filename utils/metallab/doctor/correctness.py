"""Is it right? Each operator on an Apple GPU against the CPU in float64, what the model returns, and its gradients."""

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
    OtherOutput,
    Way,
    Why,
    WrongOperator,
)
from metallab.doctor.support import is_refused_by_tables
from metallab.doctor.worker import apple_gpu
from metallab.outcomes import Ended, Status
from metallab.pytorch import divergence
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.divergence.differences import NotCompared, Reason
from metallab.pytorch.model import ModelUnderTest

ROUNDS = 10
"""Bursts of calls of each kind that are made again where nothing is wrong, if there is time."""


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[CorrectnessResult]:
    """Compare each operator with the CPU in float64: as given, in other modes, and with inputs in other layouts.

    As given, what the model returns is compared as well: it may differ though each operator agrees, as where a line of
    the model asks on which device it runs. What was compared before an exception is kept: a wrong operator may be its
    cause.

    A call of a kind that was compared in one of these runs is passed over in those that follow.

    Parameters
    ----------
    subject
        The model; its float64 is narrowed to float32 for the Apple GPU.
    limits
        Of these, ``seconds`` is used.

    Returns
    -------
    Answer
        ``failed`` if an operator is wrong, or what the model returns; ``incomplete`` if time ran out, a NaN hides what
        follows it, or a weight that the loss should reach gets no gradient; ``skipped`` without an Apple GPU or without
        time, or if the model raises and nothing before that was wrong. Operators that cannot be compared, an output
        that cannot, and other ways that raise are named and do not count.

    Raises
    ------
    Exception
        What the model raises on the CPU as well when it is run as given; in other ways that is a part of the answer.
    """
    on = apple_gpu()
    if on is None:
        return Answer(CORRECTNESS, "skipped", NoAnswer(Why.NO_APPLE_GPU))

    narrowed = subject.without_float64()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        compared, not_tried = _compare_in_ways(narrowed, on, limits.seconds)

    last = compared[-1].report  # after something wrong no other way is tried
    # what it raises as it was given, unless something wrong ended the comparison
    raising = compared[0].report if last.agreement != "differs" else last
    result = CorrectnessResult(
        runs=tuple(_to_run(each) for each in compared),
        not_tried=tuple(not_tried),
        not_compared=_collect_not_compared(compared),
        wrong=_to_wrong_operator(last),
        other_output=_to_other_output(last),
        output_not_compared=_tell_why_output_was_not_compared(compared[0].report),
        nan=_find_first_nan(compared),
        raised=raising.raised,
        is_raised_by_loss=raising.is_raised_by_loss,
        is_predicted=raising.raised is not None and is_refused_by_tables(subject),
        without_gradient=find_weights_without_gradient(subject),
        is_narrowed=narrowed is not subject,
        # PyTorch warns of it, and there is no other sign
        has_fallbacks=any("fall back" in str(warning.message) for warning in heard),
    )
    status = _status(result, has_loss=subject.has_loss)
    asked = Asked(device=on.label)
    return Answer(CORRECTNESS, status, result, asked, ended=_classify_end(result, status))


def _classify_end(result: CorrectnessResult, status: Status) -> Ended:
    """Return how the question's process ended: without an answer for lack of time, or because the model raised."""
    if status != "skipped":
        return "ok"
    return "timeout" if result.raised is None else "raised"


def _status(result: CorrectnessResult, has_loss: bool) -> Status:
    """Return how the question ends.

    A weight without a gradient counts only if the user gave the loss: the doctor's own, the mean square of all outputs,
    need not reach each weight.
    """
    if result.wrong is not None or result.other_output is not None:
        return "failed"
    if result.raised is not None or not result.compared:
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
    """Compare the model's operators in each way to run it, until something is wrong.

    Parameters
    ----------
    subject
        The model without float64.
    on
        An Apple GPU.
    seconds
        For all ways together; a run that has begun is finished.

    Returns
    -------
    compared : list of _Compared
        One at least: the first way is tried without regard to the time.
    not_tried : list of NotTried
        Those that were left out: for lack of time, or because of an error, such as a ``.view()`` of another layout.

    Raises
    ------
    Exception
        What the model raises in the first way, as it was given, and on the CPU as well.
    """
    time_budget = Allowance(seconds)
    seconds_of_run = _estimate_uncompared_run(subject, on)

    compared: list[_Compared] = []
    not_tried: list[NotTried] = []
    search = divergence.Search(on)
    ways = _list_ways(subject)
    for number, (way, changed) in enumerate(ways):
        if compared and time_budget.left < seconds_of_run:
            not_tried.append(NotTried(way))
            continue

        # half of the time for the first way, and of what is then left an equal part for each other; a right run that
        # needs less leaves the rest to those after it, and at last to the calls that are made again
        seconds_to_compare = time_budget.left / _count_parts(number, len(ways)) - seconds_of_run
        try:
            report = _compare_operators(changed, way, search, max(0.0, seconds_to_compare))
        except Exception as error:
            if not compared:
                raise
            not_tried.append(NotTried(way, units.first_line(error)))
            continue

        compared.append(_Compared(way, report))
        # what the model raises as given is an answer of its own; in another way it is told beside what was compared
        if number > 0 and report.raised is not None:
            not_tried.append(NotTried(way, report.raised))
        if report.agreement == "differs":
            break
    if compared[-1].report.agreement != "differs":
        compared += _repeat(search, ways[0][0].mode, time_budget.left)
    return compared, not_tried


def _count_parts(number: int, ways: int) -> int:
    """Return of how many parts of the time that is left a way gets one, by its number and how many ways there are.

    The first, in which the model is used, gets half of it; each other an equal part.
    """
    return 2 if number == 0 else ways - number


def _repeat(search: divergence.Search, mode: Mode, seconds: float) -> list[_Compared]:
    """Make calls again with other numbers, and return what was found; nothing if there was no time for any."""
    nothing = divergence.Report("agrees", search.on.label)
    found = search.repeat(nothing, ROUNDS, seconds)
    return [_Compared(Way(Layout.REPEATED, mode), found)] if found.repeated else []


def _estimate_uncompared_run(subject: ModelUnderTest, on: PyTorchDevice) -> float:
    """Return about the seconds of a forward and a backward pass on a device, from the time of a forward pass.

    A backward pass takes about twice as long as the forward pass: it computes gradients by inputs and by weights.
    """
    began = time.perf_counter()
    with contextlib.suppress(Exception):  # the comparison tells what was compared before that
        subject.to(on.torch_device).value()
    return 3 * (time.perf_counter() - began)


def _compare_operators(
    subject: ModelUnderTest, way: Way, search: divergence.Search, seconds: float
) -> divergence.Report:
    """Run a model in one way on a device, and compare calls of operators for so many seconds.

    As given, what it returns is compared, too, however long that takes: the CPU runs the model forward, in float64 and
    in its own dtype. Layers are not kept, since those of a large model do not fit into memory a second time.
    """
    inputs = subject.named or subject.inputs
    loss = subject.to(search.on.torch_device).loss  # which may hold tensors, such as targets
    run = divergence.TrainingRun(subject.model, inputs, loss, keeps_layers=False)
    mode = divergence.RunMode(way.mode == "training", divergence.Gradients(way.gradients))

    is_as_given = way.layout is Layout.AS_GIVEN
    report, on_device = search.compare(run, mode, seconds=seconds, record=is_as_given)
    if not is_as_given or report.raised is not None or report.divergent_call is not None:
        return report
    return divergence.compare_whole(report, run, on_device)


def _list_ways(subject: ModelUnderTest) -> list[tuple[Way, ModelUnderTest]]:
    """Return the ways to run a model, each with the model changed for it.

    That is as given, without gradients and in the other mode, whose operators differ, and with its inputs in layouts
    that kernels get wrong. A layout that leaves all inputs as they are is left out.
    """
    mode: Mode = "training" if subject.model.training else "evaluation"
    other: Mode = "evaluation" if subject.model.training else "training"

    ways = [(Way(Layout.AS_GIVEN, mode), subject)]
    for without in divergence.WITHOUT_GRADIENTS:
        way = Way(
            Layout.OTHER_MODE,
            "training" if without.is_training else "evaluation",
            without.gradients.value,
        )
        ways.append((way, subject))
    ways.append((Way(Layout.OTHER_MODE, other), subject))

    inputs = tensors_in((subject.inputs, subject.named))
    if any(tensor.dim() > 1 for tensor in inputs):
        ways.append((Way(Layout.SWAPPED, mode), subject.with_inputs(_swap_in_memory)))
    if any(tensor.dim() == 4 for tensor in inputs):
        ways.append((Way(Layout.CHANNELS_LAST, mode), subject.with_inputs(_to_channels_last)))
    ways.append((Way(Layout.ODD_OFFSET, mode), subject.with_inputs(_to_odd_offset)))
    return ways


def _swap_in_memory(tensor: Tensor) -> Tensor:
    """Return equal numbers whose last two dimensions lie in the other order; a tensor of one dimension as it is."""
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def _to_channels_last(tensor: Tensor) -> Tensor:
    """Return equal numbers in channels-last order; a tensor of other than four dimensions as it is."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _to_odd_offset(tensor: Tensor) -> Tensor:
    """Return equal numbers that do not begin where their memory does."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


# ---- what was found --------------------------------------------------------------------------------------------------


def _to_run(compared: _Compared) -> ComparedRun:
    """Return a run with the counts of its report."""
    report = compared.report
    return ComparedRun(
        compared.way,
        report.compared,
        report.skipped,
        report.kind.value,
        report.largest,
        report.uncompared,
        report.known,
        report.repeated,
    )


def _collect_not_compared(compared: Sequence[_Compared]) -> dict[str, str]:
    """Return the operators that cannot be compared, and why; those that draw random numbers among them."""
    reasons: dict[str, NotCompared] = {}
    for each in compared:
        for random in each.report.random:
            reasons[random.operator] = NotCompared(Reason.RANDOM)
        reasons |= each.report.not_compared
    return {operator: str(why) for operator, why in reasons.items()}


def _find_first_nan(compared: Sequence[_Compared]) -> str | None:
    """Return where a NaN appears that the CPU has as well; None if none does."""
    found = (each.report for each in compared if each.report.kind is divergence.Outcome.NAN)
    return next((report.headline for report in found), None)


def _to_wrong_operator(report: divergence.Report) -> WrongOperator | None:
    """Return the wrong operator of a report; None if there is none, be it that a NaN appears on the CPU as well."""
    call = report.divergent_call
    has_only_nan = report.agreement != "differs"
    if call is None or has_only_nan:
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


def _to_other_output(report: divergence.Report) -> OtherOutput | None:
    """Return how what the model returns differs though each operator agrees; None if it does not."""
    if report.kind is not divergence.Outcome.OUTPUT_DIFFERS:
        return None
    return OtherOutput(report.headline, report.advice, details=str(report))


def _tell_why_output_was_not_compared(as_given: divergence.Report) -> str | None:
    """Return why what the model returns could not be compared; None if it was, or if something was found before."""
    why = as_given.output_not_compared
    return None if why is None else str(why)


def find_weights_without_gradient(subject: ModelUnderTest) -> tuple[str, ...]:
    """Return the names of the weights that want a gradient and get none from a backward pass on the CPU.

    None are named where no weight gets one, since such a model is not made for training, or where the model raises,
    which the question of support reports.
    """
    try:
        gradients = subject.gradients()
    except Exception:  # noqa: BLE001 - a model may raise anything
        return ()
    if not gradients:
        return ()

    weights = subject.model.named_parameters()
    return tuple(name for name, weight in weights if weight.requires_grad and name not in gradients)
