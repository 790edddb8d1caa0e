"""5: does it fit? Bytes of weights, gradients, optimizer and activations, and the largest batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import psutil
import torch

from metallab import memory, units
from metallab.device import Device
from metallab.pytorch import precision
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.asking import Limits, best_device
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table


def fits(subject: Subject, limits: Limits) -> Answer:
    """Count and measure what training needs, and compare it with this machine's memory and another's."""
    on, size = best_device(), units.size
    weights, gradients, activations = counted(subject)
    installed, free = memory_of(on)
    machines = {f"this machine ({on.label})": installed}
    for macos in (15, 26) if limits.target else ():
        name = f"a Mac with {limits.target / 2**30:.3g} GiB and macOS {macos}"
        machines[name] = memory.metal_limit(limits.target, macos)
    fixed = weights + 3 * gradients  # AdamW keeps two numbers for each
    peaks = {}
    if 2 * (fixed + activations) <= min(limits.memory, free, *machines.values()):
        peaks = _peaks(subject, on)
    if not gradients:  # nothing to train: a call, with its inputs
        held = sum(t.nbytes for t in tensors_in((subject.inputs, subject.named)))
        activations = held + peaks.get("inference", 0)
    # the rest of the peak, such as gradients of activations, belongs to the batch
    more = max(0, peaks.get("a step of SGD", 0) - gradients - activations)
    activations += more
    needed, batch = fixed + activations, subject.batch if activations and subject.scales else 0
    given = f"a batch of {batch}" if batch else "the inputs"
    sentences = [
        f"Training on {given} with AdamW needs {size(needed)}; the weights alone are {size(weights)}."
    ]
    if not gradients:
        sentences = [f"It has nothing to train; a call with its inputs needs {size(needed)}."]
    for machine, usable in machines.items():
        verb = "fits" if needed <= usable else "DOES NOT FIT"
        now = f", of which {size(free)} are free now" if usable == installed else ""
        most = (
            f"; the largest batch is about {largest_batch(usable - fixed, activations, batch)}"
            if batch
            else ""
        )
        sentences.append(f"It {verb} into the {size(usable)} for it on {machine}{now}{most}.")
    if free < needed <= installed:
        sentences.append("Memory that other programs hold must become free first.")
    parts = [
        ("weights", weights, "counted"), ("gradients", gradients, "counted"), ("AdamW", 2 * gradients, "counted"),
        (f"activations, batch of {subject.batch}", activations, "by the peak of a step" if more else "counted"),
        ("training in all", needed, "their sum"),
        *((f"peak of {task}, beyond the weights", peak, "PyTorch's allocator") for task, peak in peaks.items()),
    ]  # fmt: skip
    note = "" if peaks else "No peak was measured: that may need more memory than there is for it."
    table = Table(
        ["part", "size", "how"], [(name, size(value), how) for name, value, how in parts], note
    )
    status = (
        "failed"
        if needed > min(machines.values())
        else "passed"
        if needed <= free
        else "incomplete"
    )
    return Answer(
        QUESTIONS[4], status, "\n".join(sentences), on.label, (Evidence("Memory", table),)
    )


def counted(subject: Subject) -> tuple[int, int, int]:
    """Return the bytes of the weights, of their gradients, and of what the forward pass keeps for the backward pass."""
    weights = sum(t.nbytes for t in (*subject.model.parameters(), *subject.model.buffers()))
    gradients = sum(p.nbytes for p in subject.model.parameters() if p.requires_grad)
    try:
        there = subject.to("meta")
        kept = precision.kept_for_backward(there.model, there.value)
    except Exception:  # noqa: BLE001 - it depends on numbers
        kept = precision.kept_for_backward(subject.model, subject.value)
    return weights, gradients, kept


def largest_batch(usable: float, activations: int, batch: int) -> str:
    """Return about the largest batch that fits into so many bytes, where ``batch`` rows need ``activations``."""
    most = max(0, int(usable * batch / activations))
    unit = 10 ** max(0, len(str(most)) - 2)
    return f"{most // unit * unit:,}"


def memory_of(on: Device) -> tuple[int, int]:
    """Return the bytes that a device may use, and how many of them are free."""
    if on.kind == "cuda":
        free, installed = torch.cuda.mem_get_info()
        return installed, free
    machine = psutil.virtual_memory()  # an Apple GPU's, too
    usable = torch.mps.recommended_max_memory() if on.kind == "mps" else machine.total
    return usable, min(usable, machine.available)


def _peaks(subject: Subject, on: Device) -> dict[str, int]:
    """Peaks of inference and of a training step in bytes, beyond the weights that lie there."""
    there = subject.to(on.torch_device)
    tasks = {"inference": there.inference} | (
        {"a step of SGD": there.training_step} if there.trains else {}
    )
    peaks = {}
    for name, make in tasks.items():
        if on.kind == "cpu":
            peaks[name] = allocated_peak(make())
            continue
        make()()  # so that what a library takes once, as cuBLAS does 32 MiB, is not counted as the batch's
        run = make()
        with memory.peak(on=on) as measured:
            run()
        peaks[name] = measured.bytes
    return peaks


def allocated_peak(run: Callable[[], object]) -> int:
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
