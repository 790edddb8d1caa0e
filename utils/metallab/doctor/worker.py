"""What the doctor's processes do: look at a model, and answer one question about it, or several."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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
from metallab.pytorch.errors import NotAModel
from metallab.pytorch.model import (
    DOES_NOT_RUN,
    NEEDS_GRADIENTS,
    ModelUnderTest,
    assert_loss,
    load_model,
    raising_not_a_model,
    unload_module,
)
from metallab.timing import Measurement

TIME_SHARE = 0.7
"""The share of a question's time that it plans for; the rest is a reserve."""
SHORTEST = 0.1
"""Seconds that a question plans for at least, also where loading the model has taken all: it cannot plan for none."""
# ---- what the child process is told to do ----------------------------------------------------------------------------


def ask(
    key: str, factory: str, ends: float, max_bytes: int, machine_bytes: int | None
) -> Answer[Any]:
    """Load the model in this process, and answer one question about it.

    Parameters
    ----------
    key
        The question's, see `metallab.doctor.questions`.
    factory
        ``package.module:factory``.
    ends
        When the caller stops this process, in seconds of `time.monotonic`, which all processes of a machine share.
    max_bytes
        Memory that this process may use; it ends itself when it uses more.
    machine_bytes
        Memory of a machine that the question of memory also asks about; None for no other machine.

    Returns
    -------
    Answer
        Also where the model or the device raises: the exception is the answer then.

    Raises
    ------
    NotAModel
        If the factory makes no model.
    """
    exit_above_memory_limit(max_bytes)
    subject = load_model(factory)

    # after the imports and the loading, which have taken a part of the time
    seconds = max(SHORTEST, TIME_SHARE * (ends - time.monotonic()))
    return answer(find_question(key), subject, Limits(seconds, max_bytes, machine_bytes))


def ask_together(
    keys: Sequence[str], factory: str, seconds: float, max_bytes: int, machine_bytes: int | None
) -> tuple[ModelSummary, dict[str, Answer[Any]]]:
    """Inspect a model and answer several questions about it in this process.

    Where this process simulates an Apple GPU beside an NVIDIA GPU, only the questions that need an Apple GPU are
    answered; the caller asks the others in a process that uses the NVIDIA GPU.

    Parameters
    ----------
    keys
        The questions', see `metallab.doctor.questions`.
    factory, max_bytes, machine_bytes
        As in `ask`.
    seconds
        For all questions together; each may take an equal part of what is left.

    Returns
    -------
    model : ModelSummary
        What the model is.
    answers : dict
        The answers by the keys of their questions, each with its seconds.

    Raises
    ------
    NotAModel
        If the factory makes no model that runs on the CPU.
    """
    # this process stays for the next call, and the file may be edited meanwhile
    unload_module(factory)
    model, _ = inspect_model(factory, max_bytes)
    # made again, since the inspection has run the first one in its own mode, which may change its buffers
    subject = load_model(factory)

    questions = [find_question(key) for key in keys]
    if os.environ.get("METALLAB_DEVICE") == "sim" and torch.cuda.is_available():
        questions = [question for question in questions if question.needs_apple_gpu]

    ends = time.monotonic() + seconds
    answers: dict[str, Answer[Any]] = {}
    for question in questions:
        start = time.monotonic()
        equal_part = (ends - start) / (len(questions) - len(answers))
        limits = Limits(max(SHORTEST, TIME_SHARE * equal_part), max_bytes, machine_bytes)

        given = answer(question, subject, limits)
        answers[question.key] = replace(given, seconds=round(time.monotonic() - start, 1))
    return model, answers


def answer(question: Question[R], subject: ModelUnderTest, limits: Limits) -> Answer[R]:
    """Answer a question about a model; an exception of the model or of the device is the answer."""
    module = importlib.import_module(f"{__package__}.{question.key}")
    try:
        # without TF32, whose rounding would count as a wrong result and as a speed-up
        with crossover.whole_float32():
            return module.answer(subject, limits)
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        # what raises on an Apple GPU is explained by the question whether the model runs there
        see_support = question.needs_apple_gpu and question.key != SUPPORT.key
        no_answer = NoAnswer(Why.RAISED, str(explain(error)), see_support=see_support)
        return Answer(question, "skipped", no_answer, ended="raised")


def inspect_model(factory: str, max_bytes: int) -> tuple[ModelSummary, str]:
    """Run the model of a factory once on the CPU, and summarize it.

    Parameters
    ----------
    factory
        ``package.module:factory``.
    max_bytes
        Memory that this process may use; it ends itself when it uses more.

    Returns
    -------
    summary : ModelSummary
        Its class, the number of its weights, and the shapes of its inputs.
    kind : str
        The kind of the best device here, such as ``cpu`` or ``cuda``.

    Raises
    ------
    NotAModel
        If the factory makes no model, or the model or its loss does not run on the CPU.
    """
    exit_above_memory_limit(max_bytes)
    subject = load_model(factory)
    _assert_inference(subject)
    assert_loss(subject)

    inputs = tensors_in((subject.inputs, subject.named))
    summary = ModelSummary(
        type(subject.model).__name__,
        sum(weight.numel() for weight in subject.model.parameters()),
        tuple(tuple(tensor.shape) for tensor in inputs),
    )
    return summary, best_device().kind


def _assert_inference(subject: ModelUnderTest) -> None:
    """Raise NotAModel if the model does not run without gradients, as the doctor's questions about inference call it.

    A model that computes gradients itself, such as forces, may run with them alone: nothing is wrong with its inputs.
    """
    try:
        subject.inference()()
        return
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything; it is reported
        failure = error

    copy = subject.copy()
    copy.model.eval()
    with raising_not_a_model(DOES_NOT_RUN):
        copy.outputs()
    raise NotAModel(NEEDS_GRADIENTS.format(error=explain(failure))) from failure


_memory_limit: int | None = None
"""Bytes that this process may use; None while nobody watches."""


def exit_above_memory_limit(max_bytes: int) -> None:
    """Start a thread that ends this process, with the exit code `OVER_MEMORY`, as soon as it uses more bytes.

    So a model that is too large ends here, and does not make the machine swap or the system kill other programs. In a
    process that stays for another examination, whose limit is another one, the thread goes on with that.
    """
    global _memory_limit
    is_watched = _memory_limit is not None
    _memory_limit = max_bytes
    if is_watched:
        return

    process = psutil.Process()

    def watch() -> None:
        while process.memory_info().rss <= (limit := _memory_limit):
            time.sleep(0.05)
        print(f"more than {units.size(limit)} of memory", file=sys.stderr, flush=True)
        os._exit(OVER_MEMORY)  # at once: sys.exit would end this thread only

    threading.Thread(target=watch, name="memory-limit", daemon=True).start()


# ---- what several questions need -------------------------------------------------------------------------------------


def apple_gpu() -> PyTorchDevice | None:
    """Return the Apple GPU of this process, real or simulated; None if it has none."""
    if os.environ.get("METALLAB_DEVICE") == "sim":
        return device.pick("sim")
    if torch.backends.mps.is_available():
        return device.pick("mps")
    return None


def best_device() -> PyTorchDevice:
    """Return the best real device; in a process that simulates an Apple GPU that is its CPU."""
    if os.environ.get("METALLAB_DEVICE") == "sim":
        return device.cpu()
    return device.pick()


def caveats(on: Device, has_copies: bool = False) -> tuple[Caveat, ...]:
    """Return what limits an answer whose times and sizes were measured on a device.

    Parameters
    ----------
    on
        The device. Nothing limits what was measured on a real Apple GPU.
    has_copies
        Whether the copies in the answer are those of an Apple GPU, so that the caveat is about its times only.
    """
    if on.kind == "mps" and not on.simulated:
        return ()

    hardware = Caveat.OTHER_TIMES if has_copies else Caveat.OTHER_HARDWARE
    if on.kind == "cuda":  # the only device that has TF32, which `answer` switches off
        return Caveat.WHOLE_FLOAT32, hardware
    return (hardware,)


def time_second_call(run: Callable[[], object]) -> float:
    """Return the seconds of the second call: the first one allocates memory, and may compile."""
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def call_time(measured: Measurement) -> CallTime:
    """Return the median, the quartiles and the flags of a measurement."""
    low, high = measured.quartiles
    return CallTime(measured.median, low, high, measured.flags)
