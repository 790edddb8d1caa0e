"""1: does it run on MPS? From the tables of operators, then by a trial on an Apple GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metallab import units
from metallab.device import Device
from metallab.pytorch import coverage
from metallab.pytorch.copies import copied
from metallab.pytorch.dispatch import BACKWARD, Raised, explain
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.asking import NO_APPLE_GPU, Limits, apple_gpu
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table


def runs(subject: Subject, _: Limits) -> Answer:
    """Find operators that are missing, refused or leave the GPU, in inference and training; then try the model."""
    covered, sentences = _predicted(subject)
    predicted = all(each.runs for each in covered)
    asked, raised = f"the operators of PyTorch {torch.__version__}", None
    if on := apple_gpu():
        asked += f" and {on.label}"
        raised = trial(subject, on)
        surprise = ", which was not predicted" if bool(raised) == predicted and covered else ""
        where = "the simulated Apple GPU" if on.simulated else "this Apple GPU"
        sentences.append(
            f"On {where} it {f'raised{surprise}: {raised}' if raised else f'ran{surprise}'}."
        )
    elif not covered:
        return Answer(QUESTIONS[0], "skipped", "\n".join([*sentences, f"{NO_APPLE_GPU}."]))
    careful = any(each.having("falls back", "unknown") for each in covered) or not covered
    status = "failed" if not predicted or raised else "incomplete" if careful else "passed"
    return Answer(QUESTIONS[0], status, "\n".join(sentences), asked, _trouble(covered))


def _predicted(subject: Subject) -> tuple[list[coverage.Coverage], list[str]]:
    """Return the coverage of inference and training, and a sentence for each."""

    def train(model: nn.Module, /, *inputs: Any, **named: Any) -> Tensor:
        loss = named.pop("the loss")
        return loss(model(*inputs, **named))

    tasks: dict[str, tuple[Any, ...]] = {"Inference": (copied(subject.model).eval(), {})}
    if subject.trains:
        tasks["Training"] = train, subject.model, {"training": True, "the loss": subject.loss}
    covered, sentences = [], []
    for task, (*called, settings) in tasks.items():
        try:
            covered.append(
                coverage.mps_coverage(*called, *subject.inputs, **subject.named, **settings)
            )
            sentences.append(f"{task}: {covered[-1].answer}")
        except coverage.TraceFailed as error:
            why = explain(error.__cause__) if error.__cause__ else units.first_line(error)
            sentences.append(f"{task}: nothing can be predicted ({why}).")
    return covered, sentences


def trial(subject: Subject, on: Device) -> Raised | None:
    """Run the model on a device: forward and backward, then without gradients; return what it raises."""
    try:
        there = subject.to(on.torch_device)
        if (loss := there.value()).requires_grad:
            loss.backward()
        there.inference()()
        on.synchronize()
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        return explain(error)
    return None


def _trouble(covered: Sequence[coverage.Coverage]) -> tuple[Evidence, ...]:
    """Return a table of the operators that do not run on the GPU, make float64, or meet a tensor on the CPU."""
    elsewhere = "in PyTorch's own code"
    rows: dict[Any, tuple[str, ...]] = {
        use.operator: (
            use.operator, use.status, ", ".join(use.modules[:3]), ", ".join(use.lines[:3]) or elsewhere, use.advice,
        )
        for each in covered for use in each.uses if use.advice
    }  # fmt: skip
    for problem in (problem for each in covered for problem in each.problems):
        if problem.operator:
            how = {"on the CPU": "a tensor is on the CPU"}.get(
                problem.kind, f"makes {problem.kind}"
            )
            place, line = ", ".join(problem.modules[:3]), problem.line or BACKWARD
            rows[problem.operator, how, line] = (
                problem.operator,
                f"raises: {how}",
                place,
                line,
                problem.way_out,
            )
    headings = ["operator", "on MPS", "called by", "at", "way out"]
    return (
        (Evidence("Operators that do not run on the GPU", Table(headings, list(rows.values()))),)
        if rows
        else ()
    )
