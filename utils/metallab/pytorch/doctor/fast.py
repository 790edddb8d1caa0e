"""3: is it fast? On the best device here against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch

from metallab import checks, results_made, timing, units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.pytorch import crossover
from metallab.pytorch.crossover import ONE_THREAD
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.asking import (
    MORE_TIME,
    Limits,
    best_device,
    caveat,
    second_call,
    time_in_words,
)
from metallab.pytorch.doctor.formats import is_random
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table

CALLS = 40
"""Calls in a comparison of a slow model: six pairs and the warm-up."""
BATCHES = (1, 4, 16, 64)

Part = tuple[str, list[Evidence], bool]
"""A part of the answer in words, its evidence, and whether it is conclusive."""


def fast(subject: Subject, limits: Limits) -> Answer:
    """Time inference, inference over batches, and a training step on the best device and on the CPU."""
    on, within = best_device(), Allowance(limits.seconds)
    # on a GPU work runs on after a call returns
    questions = ("latency",) if on.kind == "cpu" else ("latency", "throughput")
    parts = [
        _task(subject, "inference", question, on, within.left / 3 / len(questions))
        for question in questions
    ]
    parts.append(_over_batches(subject, on, within.left / 2))
    nothing = ("It has nothing to train.", [], True)
    parts.append(
        _task(subject, "training_step", "throughput", on, within.left)
        if subject.trains
        else nothing
    )
    sentences, evidence, settled = zip(*parts, strict=True)
    status = "passed" if all(settled) else "incomplete"
    return Answer(
        QUESTIONS[2], status, "\n".join(sentences) + caveat(on), on.label, tuple(chain(*evidence))
    )


@results_made.unheard()
def _task(
    subject: Subject, task: str, question: timing.Question, on: Device, seconds: float
) -> Part:
    """Compare a GPU with the whole CPU, or that with a single thread; only time it where the seconds do not suffice."""
    name, title = task.replace("_", " ").capitalize(), f"Measured, {task.replace('_', ' ')}"
    if CALLS * second_call(getattr(subject, task)()) > seconds:
        measured = timing.measure(
            getattr(subject.to(on.torch_device), task)(), on=on, budget=timing.FAST
        )
        sentence = (
            f"{name}: {time_in_words(measured)}; there was no time to compare it: {MORE_TIME}."
        )
        return sentence, [Evidence(title, text=str(measured))], False
    devices = {
        name: each
        for name, each in crossover.devices(on).items()
        if on.kind == "cpu" or name != ONE_THREAD
    }
    within = Allowance(max(seconds, 0.1))
    compared = timing.compare(
        {name: getattr(subject.to(each.torch_device), task)() for name, each in devices.items()},
        on=devices,
        baseline=crossover.baseline(),
        roles=crossover.roles(devices),
        parity=checks.matches("float32"),
        question=question,
        name=f"{name}, {question}",
        budget=within.budget(1, crossover.budget_here(), variants=len(devices)),
    )
    measured = compared[on.kind if on.kind != "cpu" else crossover.baseline()]
    speed_up = " ".join(sentence.removesuffix(".") for sentence in compared.sentences)
    sentences = [f"{compared.name}: {time_in_words(measured)}; {speed_up}."]
    if opaque := checks.without_arrays(getattr(subject, task)()()):
        sentences.append(f"Not compared, as it holds no tensor: {', '.join(opaque)}.")
    if compared.withheld and is_random(subject, task):
        sentences.append(
            "Outputs differ from call to call: seed what is random, or turn it off, such as dropout."
        )
    return "\n".join(sentences), [Evidence(title, text=str(compared))], not compared.withheld


@results_made.unheard()
def _over_batches(subject: Subject, on: Device, seconds: float) -> Part:
    """Find the batch from which on a device is faster, as time permits."""
    if not subject.scales:
        return (
            "Other batches were not timed: outputs do not follow the inputs' first dimension.",
            [],
            True,
        )
    cost = CALLS * second_call(subject.inference()) / subject.batch
    sizes = [n for n in BATCHES if cost * n <= seconds]
    if not sizes:
        return f"There was no time for other batches: {MORE_TIME}.", [], False

    def work(rows: int, where: torch.device) -> Callable[[], object]:
        return subject.with_batch(rows).to(where).inference()

    curve = crossover.measure("inference", work, sizes, on=on, seconds=seconds)
    lines = curve.times.values()
    rows = [
        (n, *(units.seconds(line[n].median) for line in lines))
        for n in sizes
        if all(n in line for line in lines)
    ]
    table = Table(["batch", *curve.times], rows)
    return f"Over batches (n): {curve}", [Evidence("Over batches", table)], not curve.withheld
