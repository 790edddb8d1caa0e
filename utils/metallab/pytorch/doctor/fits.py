"""5: does it fit? Bytes of weights, gradients, optimizer and activations, and the largest batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import psutil
import torch

from metallab import memory, units
from metallab.device import Device
from metallab.pytorch import precision
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.common import Limits, best_device
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table

ADAMW = 2
"""Numbers that AdamW keeps for a weight."""


@dataclass(frozen=True)
class Needs:
    """Bytes of training."""

    weights: int
    gradients: int
    activations: int
    """Kept for the backward pass, at the given batch."""
    row: float
    """Activations of another row of the batch; 0 where the batch cannot be changed."""
    batch: int
    """Rows of the inputs' first dimension."""

    @property
    def training(self) -> int:
        """At the given batch, with AdamW."""
        return self.weights + (1 + ADAMW) * self.gradients + self.activations

    def largest(self, usable: float) -> int:
        """Return the largest batch that fits into so many bytes; 0 if none does."""
        return max(0, int((usable - self.training) // self.row) + self.batch)


def needs(subject: Subject) -> Needs:
    """Count the bytes of a training step."""
    weights = sum(t.nbytes for t in (*subject.model.parameters(), *subject.model.buffers()))
    gradients = sum(p.nbytes for p in subject.model.parameters() if p.requires_grad)
    row = 0.0
    if subject.scales:
        both = (subject, subject.with_batch(2 * subject.batch))
        once, twice = (_kept(each, Subject.outputs) for each in both)
        row = max(0.0, (twice - once) / subject.batch)
    kept = _kept(subject, Subject.value)
    return Needs(weights, gradients, kept, row, subject.batch)


def _kept(subject: Subject, run: Callable[[Subject], object]) -> int:
    """Return the bytes kept for the backward pass, counted on the meta device where possible."""
    try:
        there = subject.to("meta")
        return precision.kept_for_backward(there.model, lambda: run(there))
    except Exception:  # noqa: BLE001 - it depends on numbers
        return precision.kept_for_backward(subject.model, lambda: run(subject))


def fits(subject: Subject, limits: Limits) -> Answer:
    """Count and measure what training needs, and compare it with this machine's memory and another's."""
    on, counted = best_device(), needs(subject)
    installed, free = memory_of(on)
    machines = {f"this machine ({on.label})": installed}
    if limits.target is not None:
        for macos in (15, 26):
            name = f"a Mac with {limits.target / 2**30:.3g} GiB and macOS {macos}"
            machines[name] = memory.metal_limit(limits.target, macos)
    peaks = {}
    if 2 * counted.training <= min(limits.memory, free, *machines.values()):
        peaks = _peaks(subject, on)
    # the rest of the peak, such as gradients of activations, belongs to the batch
    more = max(0, peaks.get("a step of SGD", 0) - counted.gradients - counted.activations)
    row = counted.row and counted.row + more / counted.batch
    found = replace(counted, activations=counted.activations + more, row=row)
    size, given = units.size, f"a batch of {found.batch}" if row else "the inputs"
    sentences = [f"Training on {given} with AdamW needs {size(found.training)}, inference {size(found.weights)}."]
    for machine, usable in machines.items():
        verb = "fits" if found.training <= usable else "DOES NOT FIT"
        now = f", of which {size(free)} are free now" if usable == installed else ""
        batch = f"; the largest batch is about {_about(found.largest(usable))}" if row else ""
        sentences.append(f"It {verb} into the {size(usable)} for it on {machine}{now}{batch}.")
    if free < found.training <= installed:
        sentences.append("Memory that other programs hold must become free first.")
    parts = [
        ("weights", found.weights, "counted"), ("gradients", found.gradients, "counted"),
        ("AdamW", ADAMW * found.gradients, "counted"),
        (f"activations, batch of {found.batch}", found.activations, "by the peak of a step" if more else "counted"),
        ("training in all", found.training, "their sum"),
        *((f"peak of {task}, beyond the weights", peak, "PyTorch's allocator") for task, peak in peaks.items()),
    ]  # fmt: skip
    note = "" if peaks else "No peak was measured: that may need more memory than there is for it."
    table = Table(["part", "size", "how"], [(name, size(value), how) for name, value, how in parts], note)
    fitting = found.training <= min(machines.values())
    status = "failed" if not fitting else "passed" if found.training <= free else "incomplete"
    return Answer(QUESTIONS[4], status, "\n".join(sentences), on.label, (Evidence("Memory", table),))


def _about(batch: int) -> str:
    """Return an estimate with two digits."""
    unit = 10 ** max(0, len(str(batch)) - 2)
    return f"{batch // unit * unit:,}"


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
    tasks = {"inference": there.inference} | ({"a step of SGD": there.training_step} if there.trains else {})
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
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(accumulate((change for _, change in changes), initial=0))
