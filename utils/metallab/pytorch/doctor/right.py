"""2: is it right? Each operator on an Apple GPU against the CPU in float64, and weights that get no gradient."""

from __future__ import annotations

import contextlib
import time
import warnings

import torch

from metallab import units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.pytorch import divergence
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.asking import MORE_TIME, NO_APPLE_GPU, Limits, apple_gpu
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table

NO_FLOAT64 = "\nFloat64 was replaced by float32: no Apple GPU has it."
SWAPPED = "with their last two dimensions swapped in memory"
NO_TIME = "no time"


def right(subject: Subject, limits: Limits) -> Answer:
    """Compare each operator with the CPU in float64: as given, in the other mode, and with inputs in other layouts."""
    on = apple_gpu()
    if on is None:
        return Answer(QUESTIONS[1], "skipped", f"Not asked: {NO_APPLE_GPU}.")
    narrow = subject.without_float64()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        verdicts, not_run = _compare(narrow, on, limits.seconds)
    no_gradient = _no_gradient(subject)
    notes = ("" if narrow is subject else NO_FLOAT64) + no_gradient
    if any("fall back" in str(warning.message) for warning in heard):
        notes += "\nOperators without an MPS kernel ran on the CPU: see answer 1."
    evidence = [Evidence("Compared", _table(verdicts, not_run))]
    not_compared = {
        name: str(why) for report in verdicts.values() for name, why in report.not_compared.items()
    }
    if not_compared:
        table = Table(["operator", "why"], list(not_compared.items()))
        evidence.append(Evidence("Not compared", table))
    way, last = list(verdicts.items())[-1]
    if last.agreement == "differs":
        program = [Evidence("A program that shows it", text=last.program)] if last.program else []
        evidence = [Evidence("The first wrong operator", text=str(last)), *program, *evidence]
        is_it, then = (
            ("Not always", "What to do")
            if last.divergent_call.is_intermittent
            else ("No", "Workaround")
        )
        difference = last.divergent_call.difference
        sentence = (
            f"{is_it}, with the inputs {way}: {last.headline} {difference} {then}: {last.advice}."
        )
        return Answer(QUESTIONS[1], "failed", sentence + notes, on.label, tuple(evidence))
    compared = sum(report.compared for report in verdicts.values())
    skipped = sum(report.skipped for report in verdicts.values())
    if not compared:
        sentence = f"There was no time to compare anything: {MORE_TIME}."
        return Answer(QUESTIONS[1], "skipped", sentence, on.label, ended="timeout")
    late = bool(skipped) or NO_TIME in not_run.values()
    largest = max(verdict.largest for verdict in verdicts.values())
    sentences = [
        f"Yes{', as far as there was time' * late}: {compared} of {compared + skipped} calls of "
        f"operators agree with the CPU in float64 ({', '.join(w for w, v in verdicts.items() if v.compared)}), up to "
        f"rounding ({largest:.1e} of the root mean square){f'; {MORE_TIME}' if late else ''}."
    ]
    sentences += [f"Not compared: {', '.join(not_compared)}."] if not_compared else []
    nan = next((verdict for verdict in verdicts.values() if verdict.divergent_call), None)
    sentences += [f"{nan.headline} What follows it was not compared."] if nan else []
    status = "incomplete" if late or nan or (no_gradient and subject.has_loss) else "passed"
    return Answer(QUESTIONS[1], status, " ".join(sentences) + notes, on.label, tuple(evidence))


def _compare(
    subject: Subject, on: Device, seconds: float
) -> tuple[dict[str, divergence.Report], dict[str, str]]:
    """Compare in each way until something is wrong.

    Return the verdicts, and why others were left out: no time, or an error (such as a .view() of another layout).
    """
    within, verdicts, not_run = Allowance(seconds), {}, {}
    began = time.perf_counter()
    subject.to(on.torch_device).value()
    once = 3 * (time.perf_counter() - began)  # without comparisons
    ways = _ways(subject)
    for number, (way, each) in enumerate(ways.items()):
        share = within.left / 2 if number == 0 else within.left / (len(ways) - number)
        if verdicts and within.left < once:
            not_run[way] = NO_TIME
            continue
        try:
            given = each.model, each.named or each.inputs, each.to(on.torch_device).loss
            verdicts[way] = divergence.find(
                *given, on=on, seconds=max(0.0, share - once), layers=False
            )
        except Exception as error:
            if not verdicts:
                raise
            not_run[way] = units.first_line(error)
            continue
        if verdicts[way].agreement == "differs":
            break
    return verdicts, not_run


def _ways(subject: Subject) -> dict[str, Subject]:
    """Return the subject as given, in the other mode, and with its inputs in layouts that kernels get wrong."""
    switched = subject.copy()
    switched.model.train(not subject.model.training)
    mode, other = (
        "training" if each.model.training else "evaluation" for each in (subject, switched)
    )
    ways = {f"as given, in {mode} mode": subject, f"in {other} mode": switched}
    if any(t.dim() > 1 for t in tensors_in((subject.inputs, subject.named))):
        ways[SWAPPED] = subject.with_inputs(lambda t: t.mT.contiguous().mT if t.dim() > 1 else t)
    if any(t.dim() == 4 for t in tensors_in((subject.inputs, subject.named))):
        last = lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t
        ways["in channels last"] = subject.with_inputs(last)
    offset = lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)
    return ways | {"at an odd offset": subject.with_inputs(offset)}


def _table(verdicts: dict[str, divergence.Report], not_run: dict[str, str]) -> Table:
    rows = [
        (
            w,
            v.compared + v.skipped,
            v.compared,
            str(v.kind) if v.compared else "not compared",
            f"{v.largest:.1e}",
        )
        for w, v in verdicts.items()
    ]
    left = ", ".join(f"{way} ({why})" for way, why in not_run.items())
    return Table(
        ["how", "calls", "compared", "result", "rounding"],
        rows,
        f"Not tried: {left}." if left else "",
    )


def _no_gradient(subject: Subject) -> str:
    """Return a line with the weights that get no gradient in a training step; empty if all have one."""
    with contextlib.suppress(Exception):  # question 1 reports it
        have, weights = subject.gradients(), subject.model.named_parameters()
        names = [
            name for name, weight in weights if have and weight.requires_grad and name not in have
        ]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return (
            f"\nNo gradient reaches {', '.join(names[:5])}{more}: detached, or not used."
            if names
            else ""
        )
    return ""  # of a model that raises
