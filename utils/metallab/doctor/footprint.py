"""Does it fit? Bytes of weights, gradients, optimizer and activations, and the largest batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import psutil
import torch

from metallab import memory
from metallab.device import PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.limits import Limits
from metallab.doctor.questions import FOOTPRINT
from metallab.doctor.results import Asked, FootprintResult, MachineMemory, Task
from metallab.doctor.worker import best_device
from metallab.outcomes import Status
from metallab.pytorch import precision
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.model import ModelUnderTest

MACOS = (15, 26)
"""Versions of macOS that give a GPU different shares of the memory."""
NUMBERS_OF_ADAMW = 2
"""That AdamW keeps for each weight."""


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[FootprintResult]:
    """Count and measure what training needs, and compare it with this machine's memory and another's.

    Parameters
    ----------
    subject
        The model with its inputs.
    limits
        ``max_bytes``: what this process may have, beyond which nothing is run; ``machine_bytes``: the memory of a Mac
        to ask about, or None.

    Returns
    -------
    Answer
        ``failed`` if it does not fit into one of the machines, ``incomplete`` if other programs hold memory that it
        needs; else ``passed``.
    """
    on = best_device()
    counted = count_bytes(subject)
    machines = [_describe_this_machine(on), *_list_macs(limits.machine_bytes)]
    free = machines[0].free or 0

    usable = min(machine.usable for machine in machines)
    peaks: dict[Task, int] = {}
    if 2 * (counted.fixed + counted.activations) <= min(limits.max_bytes, free, usable):
        peaks = _measure_peaks(subject, on)

    activations = counted.activations
    if not counted.gradients:  # nothing to train: a call, with its inputs
        inputs = tensors_in((subject.inputs, subject.named))
        activations = sum(tensor.nbytes for tensor in inputs) + peaks.get("inference", 0)
    # what a step holds beyond that, such as gradients of activations, belongs to the batch
    rest = max(0, peaks.get("training", 0) - counted.gradients - activations)
    activations += rest

    batch = subject.batch if activations and subject.can_change_batch else 0
    if batch:
        machines = [_with_batch(each, counted.fixed, activations, batch) for each in machines]
    result = FootprintResult(
        weights=counted.weights,
        gradients=counted.gradients,
        optimizer=NUMBERS_OF_ADAMW * counted.gradients,
        activations=activations,
        is_by_peak=rest > 0,
        rows=subject.batch,
        batch=batch,
        machines=tuple(machines),
        peaks=peaks,
    )
    return Answer(FOOTPRINT, _status(result, free), result, Asked(device=on.label))


def _status(result: FootprintResult, free: int) -> Status:
    if not all(map(result.fits, result.machines)):
        return "failed"
    return "passed" if result.needed <= free else "incomplete"


# ---- machines --------------------------------------------------------------------------------------------------------


def _describe_this_machine(on: PyTorchDevice) -> MachineMemory:
    usable, free = read_memory(on)
    return MachineMemory(usable, label=on.label, free=free)


def _list_macs(installed: int | None) -> Iterator[MachineMemory]:
    """Yield what a GPU may use in a Mac with so much memory, by its system."""
    if not installed:
        return
    for macos in MACOS:
        usable = memory.metal_limit(installed, macos)
        yield MachineMemory(usable, installed=installed, macos=macos)


def _with_batch(machine: MachineMemory, fixed: int, activations: int, batch: int) -> MachineMemory:
    largest = largest_batch(machine.usable - fixed, activations, batch)
    return replace(machine, largest_batch=largest)


def largest_batch(usable: float, activations: int, batch: int) -> int:
    """Return about the largest batch that fits into so many bytes, where ``batch`` rows need ``activations``."""
    most = max(0, int(usable * batch / activations))
    unit = 10 ** max(0, len(str(most)) - 2)
    return most // unit * unit


def read_memory(on: PyTorchDevice) -> tuple[int, int]:
    """Return the bytes that a device may use, and how many of them are free."""
    if on.kind == "cuda":
        free, installed = torch.cuda.mem_get_info()
        return installed, free

    machine = psutil.virtual_memory()  # an Apple GPU's, too
    usable = torch.mps.recommended_max_memory() if on.kind == "mps" else machine.total
    return usable, min(usable, machine.available)


# ---- what is needed --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """Bytes that training needs, but for the peak of a step."""

    weights: int
    gradients: int
    activations: int
    """What the forward pass keeps for the backward pass."""

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.weights + (1 + NUMBERS_OF_ADAMW) * self.gradients


def count_bytes(subject: ModelUnderTest) -> Counted:
    """Return the bytes of the weights, of their gradients, and of what is kept for the backward pass."""
    parameters = list(subject.model.parameters())
    weights = sum(tensor.nbytes for tensor in (*parameters, *subject.model.buffers()))
    gradients = sum(weight.nbytes for weight in parameters if weight.requires_grad)

    try:
        there = subject.to("meta")
        kept = precision.kept_for_backward(there.model, there.value)
    except Exception:  # noqa: BLE001 - it depends on numbers
        kept = precision.kept_for_backward(subject.model, subject.value)
    return Counted(weights, gradients, kept)


Make = Callable[[], Callable[[], object]]


def _measure_peaks(subject: ModelUnderTest, on: PyTorchDevice) -> dict[Task, int]:
    """Return the peaks of inference and of a training step in bytes, beyond the weights that lie there."""
    there = subject.to(on.torch_device)
    tasks: dict[Task, Make] = {"inference": there.inference}
    if there.can_train:
        tasks["training"] = there.training_step

    if on.kind == "cpu":
        return {task: measure_allocated_peak(make()) for task, make in tasks.items()}
    return {task: _measure_device_peak(make, on) for task, make in tasks.items()}


def _measure_device_peak(make: Make, on: PyTorchDevice) -> int:
    """Return the most bytes that a GPU held during a call."""
    # so that what a library takes once, as cuBLAS does 32 MiB, is not counted as the batch's
    make()()

    run = make()
    with memory.peak(on=on) as measured:
        run()
    return measured.bytes or 0


def measure_allocated_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that PyTorch held on the CPU during a call, beyond those that it held before."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiled:
        result = run()
    del result

    events = profiled.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    return max(accumulate((change for _, change in changes), initial=0))
