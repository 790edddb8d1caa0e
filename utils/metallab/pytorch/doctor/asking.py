"""The code of the doctor's processes: look at a model, or answer one of the six questions about it."""

from __future__ import annotations

import os
import sys
import threading
import time

import psutil

from metallab import simulation, units
from metallab.pytorch import crossover
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.dispatch import explain
from metallab.pytorch.doctor.answer import QUESTIONS, Answer
from metallab.pytorch.doctor.common import Limits, apple_gpu, best_device, it_raises, trial
from metallab.pytorch.doctor.fast import fast
from metallab.pytorch.doctor.fits import fits
from metallab.pytorch.doctor.formats import formats
from metallab.pytorch.doctor.right import right
from metallab.pytorch.doctor.runs import runs
from metallab.pytorch.doctor.spent import spent
from metallab.pytorch.doctor.subject import DOES_NOT_RUN, NotAModel, Subject, assert_loss, made

ASKED = (runs, right, fast, spent, fits, formats)
PLANNED = 0.7
"""The share of a question's time that it plans for; the rest is a reserve."""


def ask(number: int, factory: str, ends: float, most: int, target: int | None) -> Answer:
    """Answer a question in this process, until `time.monotonic` is at ``ends``, with at most ``most`` bytes.

    ``target`` is the memory of the machine that question 5 also asks about.
    """
    hold_memory(most)
    subject = made(factory)
    return answered(number, subject, Limits(max(0.1, PLANNED * (ends - time.monotonic())), most, target))


def answered(number: int, subject: Subject, limits: Limits) -> Answer:
    """Answer a question; an error of the model or the device is the answer."""
    try:
        with crossover.whole_float32():
            return ASKED[number - 1](subject, limits)
    except simulation.SimulationUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        on = apple_gpu() if number == 2 else best_device()
        failed = on is not None and on.kind == "mps" and trial(subject.without_float64(), on)
        why = f"{it_raises(on)}: see answer 1" if failed else f"No answer: {explain(error)}"
        return Answer(QUESTIONS[number - 1], "skipped", f"{why}.", ended="raised")


def look(factory: str, most: int) -> tuple[str, str]:
    """Return the model's class with its size, and the kind of the best device. `NotAModel` if it is none."""
    hold_memory(most)
    subject = made(factory)
    try:
        subject.inference()()
    except Exception as error:
        raise NotAModel(f"{DOES_NOT_RUN}: {explain(error)}") from error
    assert_loss(subject)
    weights = sum(p.numel() for p in subject.model.parameters())
    shapes = ", ".join(str(tuple(t.shape)) for t in tensors_in((subject.inputs, subject.named)))
    return f"{subject.name}, {weights:,} weights, inputs {shapes}", best_device().kind


def hold_memory(most: int) -> None:
    """End this process when it uses more bytes."""
    process = psutil.Process()

    def watch() -> None:
        while process.memory_info().rss <= most:
            time.sleep(0.05)
        print(f"it needs more than the {units.size(most)} that it may have", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=watch, name="memory-limit", daemon=True).start()
