"""What the doctor's processes share: they look at a model, or answer one of the six questions about it."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil
import torch

from metallab import device, timing, units
from metallab.device import Device
from metallab.pytorch import crossover
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.dispatch import explain
from metallab.pytorch.doctor.answer import QUESTIONS, Answer
from metallab.pytorch.doctor.subject import (
    DOES_NOT_RUN,
    Subject,
    assert_loss,
    forget,
    made,
    refusing,
)

ASKED = ("runs", "right", "fast", "spent", "fits", "formats")
"""For each question a module with a function of that name."""
PLANNED = 0.7
"""The share of a question's time that it plans for; the rest is a reserve."""
NO_APPLE_GPU = (
    "there is no Apple GPU here, nor can a simulated one be used: run make setup, or ask on a Mac"
)
MORE_TIME = "more minutes give more time"


@dataclass(frozen=True)
class Limits:
    """Limits of a question: seconds, and bytes of its process; ``target`` is the memory of a machine to ask about."""

    seconds: float = 60.0
    memory: int = 2**40
    target: int | None = None


def ask(number: int, factory: str, ends: float, most: int, target: int | None) -> Answer:
    """Answer a question in this process, until `time.monotonic` is at ``ends``, with at most ``most`` bytes.

    ``target`` is the memory of the machine that question 5 also asks about.
    """
    hold_memory(most)
    subject = made(factory)
    return answered(
        number, subject, Limits(max(0.1, PLANNED * (ends - time.monotonic())), most, target)
    )


def ask_together(
    numbers: Sequence[int], factory: str, seconds: float, most: int, target: int | None
) -> tuple[str, dict[int, Answer]]:
    """Look at a model and answer questions, each in an equal part of the time; beside CUDA only what it cannot."""
    forget(factory)
    (model, _), subject = look(factory, most), made(factory)
    if os.environ.get("METALLAB_DEVICE") == "sim" and torch.cuda.is_available():
        numbers = [number for number in numbers if number in (1, 2)]
    began, answers = time.monotonic(), {}
    for asked, number in enumerate(numbers):
        start = time.monotonic()
        part = PLANNED * (began + seconds - start) / (len(numbers) - asked)
        answer = answered(number, subject, Limits(max(0.1, part), most, target))
        answers[number] = replace(answer, seconds=round(time.monotonic() - start, 1))
    return model, answers


def answered(number: int, subject: Subject, limits: Limits) -> Answer:
    """Answer a question; an error of the model or the device is the answer."""
    name = ASKED[number - 1]
    try:
        with crossover.whole_float32():
            return getattr(importlib.import_module(f"metallab.pytorch.doctor.{name}"), name)(
                subject, limits
            )
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        also = "; see answer 1" if number == 2 else ""
        return Answer(
            QUESTIONS[number - 1], "skipped", f"No answer: {explain(error)}{also}.", ended="raised"
        )


def look(factory: str, most: int) -> tuple[str, str]:
    """Return the model's class with its size, and the kind of the best device. `NotAModel` if it is none."""
    hold_memory(most)
    subject = made(factory)
    with refusing(DOES_NOT_RUN):
        subject.inference()()
    assert_loss(subject)
    weights = sum(p.numel() for p in subject.model.parameters())
    shapes = ", ".join(str(tuple(t.shape)) for t in tensors_in((subject.inputs, subject.named)))
    return (
        f"{type(subject.model).__name__}, {weights:,} weights, inputs {shapes}",
        best_device().kind,
    )


def hold_memory(most: int) -> None:
    """End this process when it uses more bytes."""
    process = psutil.Process()

    def watch() -> None:
        while process.memory_info().rss <= most:
            time.sleep(0.05)
        print(
            f"it needs more than the {units.size(most)} that it may have",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    threading.Thread(target=watch, name="memory-limit", daemon=True).start()


def apple_gpu() -> Device | None:
    """Return the Apple GPU, real or simulated, if this process has one."""
    if os.environ.get("METALLAB_DEVICE") == "sim":
        return device.pick("sim")
    return device.pick("mps") if torch.backends.mps.is_available() else None


def best_device() -> Device:
    """Return the best real device."""
    return device.cpu() if os.environ.get("METALLAB_DEVICE") == "sim" else device.pick()


def caveat(on: Device, what: str = "an Apple GPU") -> str:
    """Return a note on times and sizes that are not of an Apple GPU."""
    if on.kind == "mps" and not on.simulated:
        return ""
    precise = "\nFloat32 is computed without TF32 here." if on.kind == "cuda" else ""
    return f"{precise}\nThis does not predict {what}."


def second_call(run: Callable[[], object]) -> float:
    """Return the seconds of the second call."""
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def time_in_words(measured: timing.Measurement) -> str:
    """Return a time with its quartiles and flags."""
    low, high = map(units.seconds, measured.quartiles)
    flags = f" [{', '.join(measured.flags)}]" if measured.flags else ""
    return f"{units.seconds(measured.median)} a call ({low} to {high}){flags}"
