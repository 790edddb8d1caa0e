"""What the doctor's processes do: look at a model, and answer one question about it, or several."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import psutil
import torch

from metallab import device, units
from metallab.device import Device, PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.limits import OVER_MEMORY, Limits
from metallab.doctor.questions import SUPPORT, Question, R, find_question
from metallab.doctor.results import CallTime, Caveat, ModelSummary, NoAnswer, Why
from metallab.pytorch import crossover
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.dispatch import explain
from metallab.pytorch.model import (
    DOES_NOT_RUN,
    ModelUnderTest,
    assert_loss,
    load_model,
    raising_not_a_model,
    unload_module,
)
from metallab.verdicts import Measurement

TIME_SHARE = 0.7
"""The share of a question's time that it plans for; the rest is a reserve."""
SHORTEST = 0.1
"""Seconds that a question plans for at least."""

# ---- what the child process is told to do ----------------------------------------------------------------------------


def ask(
    key: str, factory: str, ends: float, max_bytes: int, machine_bytes: int | None
) -> Answer[Any]:
    """Answer a question in this process.

    Parameters
    ----------
    key
        The question's, see `metallab.doctor.questions`.
    factory
        ``package.module:factory``.
    ends
        Until when, by `time.monotonic`.
    max_bytes
        Memory that this process may use; it ends itself when it uses more.
    machine_bytes
        Memory of a machine that the question of memory also asks about.
    """
    exit_above_memory_limit(max_bytes)
    subject = load_model(factory)
    seconds = max(SHORTEST, TIME_SHARE * (ends - time.monotonic()))
    return answer(find_question(key), subject, Limits(seconds, max_bytes, machine_bytes))


def ask_together(
    keys: Sequence[str], factory: str, seconds: float, max_bytes: int, machine_bytes: int | None
) -> tuple[ModelSummary, dict[str, Answer[Any]]]:
    """Look at a model and answer questions, each in an equal part of the time; beside CUDA only what it cannot.

    Parameters are those of `ask`, with ``seconds`` for all questions together.
    """
    unload_module(factory)
    model, _ = inspect_model(factory, max_bytes)
    subject = load_model(factory)

    questions = [find_question(key) for key in keys]
    if os.environ.get("METALLAB_DEVICE") == "sim" and torch.cuda.is_available():
        questions = [question for question in questions if question.needs_apple_gpu]

    began = time.monotonic()
    answers: dict[str, Answer[Any]] = {}
    for question in questions:
        start = time.monotonic()
        part = TIME_SHARE * (began + seconds - start) / (len(questions) - len(answers))
        given = answer(question, subject, Limits(max(SHORTEST, part), max_bytes, machine_bytes))
        answers[question.key] = replace(given, seconds=round(time.monotonic() - start, 1))
    return model, answers


def answer(question: Question[R], subject: ModelUnderTest, limits: Limits) -> Answer[R]:
    """Answer a question; an error of the model or of the device is the answer."""
    module = importlib.import_module(f"{__package__}.{question.key}")
    try:
        with crossover.whole_float32():
            return module.answer(subject, limits)
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        # an error on an Apple GPU is what the question of support is about
        see_support = question.needs_apple_gpu and question.key != SUPPORT.key
        why = NoAnswer(Why.RAISED, str(explain(error)), see_support=see_support)
        return Answer(question, "skipped", why, ended="raised")


def inspect_model(factory: str, max_bytes: int) -> tuple[ModelSummary, str]:
    """Return what the model is, and the kind of the best device. `NotAModel` if it is none."""
    exit_above_memory_limit(max_bytes)
    subject = load_model(factory)
    with raising_not_a_model(DOES_NOT_RUN):
        subject.inference()()
    assert_loss(subject)

    inputs = tensors_in((subject.inputs, subject.named))
    summary = ModelSummary(
        type(subject.model).__name__,
        sum(weight.numel() for weight in subject.model.parameters()),
        tuple(tuple(tensor.shape) for tensor in inputs),
    )
    return summary, best_device().kind


def exit_above_memory_limit(max_bytes: int) -> None:
    """End this process with `OVER_MEMORY` when it uses more bytes."""
    process = psutil.Process()

    def watch() -> None:
        while process.memory_info().rss <= max_bytes:
            time.sleep(0.05)
        print(f"more than {units.size(max_bytes)} of memory", file=sys.stderr, flush=True)
        os._exit(OVER_MEMORY)

    threading.Thread(target=watch, name="memory-limit", daemon=True).start()


# ---- what several questions need -------------------------------------------------------------------------------------


def apple_gpu() -> PyTorchDevice | None:
    """Return the Apple GPU, real or simulated, if this process has one."""
    if os.environ.get("METALLAB_DEVICE") == "sim":
        return cast(PyTorchDevice, device.pick("sim"))
    if torch.backends.mps.is_available():
        return cast(PyTorchDevice, device.pick("mps"))
    return None


def best_device() -> PyTorchDevice:
    """Return the best real device."""
    if os.environ.get("METALLAB_DEVICE") == "sim":
        return cast(PyTorchDevice, device.cpu())
    return cast(PyTorchDevice, device.pick())


def caveats(on: Device, has_copies: bool = False) -> tuple[Caveat, ...]:
    """Return what limits times and sizes that are not of an Apple GPU; its copies may be known all the same."""
    if on.kind == "mps" and not on.simulated:
        return ()

    last = Caveat.OTHER_TIMES if has_copies else Caveat.OTHER_HARDWARE
    return (Caveat.WHOLE_FLOAT32, last) if on.kind == "cuda" else (last,)


def time_second_call(run: Callable[[], object]) -> float:
    """Return the seconds of the second call."""
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def call_time(measured: Measurement) -> CallTime:
    """Return the time of a call in numbers."""
    low, high = measured.quartiles
    return CallTime(measured.median, low, high, measured.flags)
