"""Does it fit? Bytes of weights, gradients, optimizer and activations, and the largest batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
"""Numbers that AdamW keeps for each weight: the averages of its gradient and of the gradient's square."""
SAFETY_FACTOR = 2
"""A step is run where so many times the counted bytes are free: what it allocates on its way is not in the count."""


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
        ``failed`` if there is a machine into which it does not fit, ``incomplete`` if other programs hold memory that
        it needs; else ``passed``.

    Raises
    ------
    Exception
        Whatever the model raises with its inputs.
    """
    on = best_device()
    counted = count_bytes(subject)
    usable, free = read_memory(on)
    this_machine = MachineMemory(usable, label=on.label, free=free)
    machines = [this_machine, *_list_macs(limits.machine_bytes)]

    # what does not fit into one of the machines is not run, since the count alone answers then
    peaks: dict[Task, int] = {}
    smallest = min(machine.usable for machine in machines)
    if SAFETY_FACTOR * counted.total <= min(limits.max_bytes, free, smallest):
        peaks = _measure_peaks(subject, on)

    # what the count knows of the batch, then what the peak of a step shows beyond that
    activations = counted.activations
    if not counted.gradients:
        activations = _count_call(subject, peaks)
    # a step may also stay below the count, since it frees activations while it still makes gradients
    beyond = max(0, peaks.get("training", 0) - counted.gradients - activations)
    activations += beyond

    # where nothing grows with the batch, no batch is the largest
    batch = subject.batch if activations and subject.can_change_batch else 0
    if batch:
        machines = [_with_batch(each, counted.fixed, activations, batch) for each in machines]
    result = FootprintResult(
        weights=counted.weights,
        gradients=counted.gradients,
        optimizer=NUMBERS_OF_ADAMW * counted.gradients,
        activations=activations,
        is_by_peak=beyond > 0,
        rows=subject.batch,
        batch=batch,
        machines=tuple(machines),
        peaks=peaks,
    )
    return Answer(FOOTPRINT, _status(result, free), result, Asked(device=on.label))


def _status(result: FootprintResult, free: int) -> Status:
    """Return how the question ends, where so many bytes of this machine are free."""
    if not all(map(result.fits, result.machines)):
        return "failed"
    return "passed" if result.needed <= free else "incomplete"


def _count_call(subject: ModelUnderTest, peaks: Mapping[Task, int]) -> int:
    """Return the bytes of a call of a model that has nothing to train: its inputs, and the peak if it was measured."""
    inputs = tensors_in((subject.inputs, subject.named))
    return sum(tensor.nbytes for tensor in inputs) + peaks.get("inference", 0)


# ---- machines --------------------------------------------------------------------------------------------------------


def _list_macs(installed: int | None) -> Iterator[MachineMemory]:
    """Yield what a GPU may use in a Mac with so many bytes of memory, by its system; nothing for None."""
    if not installed:
        return
    for macos in MACOS:
        usable = memory.metal_limit(installed, macos)
        yield MachineMemory(usable, installed=installed, macos=macos)


def _with_batch(machine: MachineMemory, fixed: int, activations: int, batch: int) -> MachineMemory:
    """Return a machine with the largest batch that fits into it beside the ``fixed`` bytes."""
    largest = largest_batch(machine.usable - fixed, activations, batch)
    return replace(machine, largest_batch=largest)


def largest_batch(usable: float, activations: int, batch: int) -> int:
    """Return about the largest batch that fits into memory, rounded down to two digits.

    It has no more digits, since the bytes of a row are an estimate.

    Parameters
    ----------
    usable
        Bytes that are left for what belongs to the batch; 0 or less if nothing is.
    activations
        The bytes that ``batch`` rows need, above 0.
    batch
        Rows.
    """
    most = max(0, int(usable * batch / activations))
    unit = 10 ** max(0, len(str(most)) - 2)
    return most // unit * unit


def read_memory(on: PyTorchDevice) -> tuple[int, int]:
    """Return the bytes that a device may use, and how many of them are free now."""
    if on.kind == "cuda":
        free, installed = torch.cuda.mem_get_info()
        return installed, free

    machine = psutil.virtual_memory()  # also for an Apple GPU, which shares the CPU's memory
    usable = torch.mps.recommended_max_memory() if on.kind == "mps" else machine.total
    return usable, min(usable, machine.available)


# ---- what is needed --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """Bytes that training needs, but for the peak of a step."""

    weights: int
    """With buffers."""
    gradients: int
    activations: int
    """What the forward pass keeps for the backward pass."""

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch: weights, gradients, and AdamW's numbers for each gradient."""
        return self.weights + self.gradients + NUMBERS_OF_ADAMW * self.gradients

    @property
    def total(self) -> int:
        """Bytes of a step with this batch."""
        return self.fixed + self.activations


def count_bytes(subject: ModelUnderTest) -> Counted:
    """Count the bytes of the weights, of their gradients, and of what is kept for the backward pass.

    Raises what the model raises with its inputs on the CPU.
    """
    parameters = list(subject.model.parameters())
    weights = sum(tensor.nbytes for tensor in (*parameters, *subject.model.buffers()))
    gradients = sum(weight.nbytes for weight in parameters if weight.requires_grad)

    try:
        # without memory and without computing, so that a model which does not fit can be counted
        on_meta = subject.to("meta")
        kept = precision.count_kept_bytes(on_meta.model, on_meta.value)
    except Exception:  # noqa: BLE001 - a model that looks at its numbers, which meta tensors lack, raises anything
        kept = precision.count_kept_bytes(subject.model, subject.value)
    return Counted(weights, gradients, kept)


MakeRun = Callable[[], Callable[[], object]]
"""Returns a function that makes one call or step."""


def _measure_peaks(subject: ModelUnderTest, on: PyTorchDevice) -> dict[Task, int]:
    """Return the peaks of inference and of a training step in bytes, beyond the weights on the device.

    A model that has nothing to train has no peak of training. Raises what the model raises.
    """
    there = subject.to(on.torch_device)
    tasks: dict[Task, MakeRun] = {"inference": there.inference}
    if there.can_train:
        tasks["training"] = there.training_step

    if on.kind == "cpu":  # for which PyTorch keeps no peak, so it is taken from a profile
        return {task: measure_allocated_peak(make_run()) for task, make_run in tasks.items()}
    return {task: _measure_device_peak(make_run, on) for task, make_run in tasks.items()}


def _measure_device_peak(make_run: MakeRun, on: PyTorchDevice) -> int:
    """Return the most bytes that a GPU held during a call, beyond those before; 0 if it does not say."""
    # so that what a library takes once, as cuBLAS does 32 MiB, is not counted as the batch's
    make_run()()

    run = make_run()
    with memory.peak(on=on) as measured:
        run()
    return measured.bytes or 0


def measure_allocated_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that PyTorch held on the CPU during a call, beyond those that it held before.

    PyTorch keeps no such peak for the CPU, so it is the largest sum of what the profiler saw allocated and freed. It is
    0 if the call allocates nothing, or only frees. Raises what the call raises.
    """
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiled:
        run()

    # each event is one allocation (bytes above 0) or release (below 0); they do not come in the order of time
    events = profiled.profiler.kineto_results.events()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    return max(accumulate((change for _, change in changes), initial=0))
