"""Shared by several questions: devices, a trial run, times in words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from metallab import device, timing, units
from metallab.device import Device
from metallab.pytorch.dispatch import Raised, explain
from metallab.pytorch.doctor.subject import Subject

NO_APPLE_GPU = "there is no Apple GPU here, nor can a simulated one be used: run make setup, or ask on a Mac"
MORE_TIME = "--minutes gives more time"


@dataclass(frozen=True)
class Limits:
    """Limits of a question: seconds, and bytes of its process; ``target`` is the memory of a machine to ask about."""

    seconds: float = 60.0
    memory: int = 2**40
    target: int | None = None


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


def trial(subject: Subject, on: Device) -> Raised | None:
    """Run the model, forward and backward, on a device; return what it raises."""
    try:
        loss = subject.to(on.torch_device).value()
        if loss.requires_grad:
            loss.backward()
        on.synchronize()
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is reported
        return explain(error)
    return None


def it_raises(on: Device) -> str:
    return f"It raises on {'the simulated' if on.simulated else 'this'} Apple GPU"


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
