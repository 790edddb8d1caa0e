"""The six questions, each asked of a subject within some seconds: what the processes of the doctor compute."""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from metallab import device, memory, timing, units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.pytorch import blame, coverage, crossover, precision, trace
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.subject import NotAModel, Subject, made
from metallab.tables import Table

NO_APPLE_GPU = "there is no Apple GPU here, nor can a simulated one be used: run make setup, or ask on a Mac"
TOO_MUCH_MEMORY = 77
"""The exit code of a process that needed more memory than it may have."""
MOST_ROWS = 12
NO_FLOAT64 = " Asked with float32 in place of float64, which no Apple GPU has."
ADAMW = 2
"""Numbers that AdamW keeps for each weight."""


def ask(number: int, factory: str, seconds: float, most: int, target: int | None) -> Answer:
    """The answer to a question, from 1 on, in this process, which ends if it needs more than ``most`` bytes.

    ``target`` is the memory in bytes that question 5 asks about beside this machine's. Whatever the factory, the model
    or the device raises comes through.
    """
    _hold_memory(most)
    subject = made(factory)
    if number == 5:
        return fits(subject, target, most)
    return {1: runs, 2: right, 3: fast, 4: spent, 6: formats}[number](subject, seconds)


def look(factory: str, most: int) -> tuple[str, str]:
    """The model's class with its size, in words, and the kind of the best device: `NotAModel` if it cannot be asked."""
    _hold_memory(most)
    subject = made(factory)
    try:
        subject.to("cpu").inference()()
    except Exception as error:
        raise NotAModel(
            f"the model does not run with its inputs on the CPU: {units.first_line(error, kind=True)}"
        ) from error
    weights = sum(p.numel() for p in subject.model.parameters())
    shapes = [tuple(t.shape) for t in tree_leaves(subject.arguments) if isinstance(t, Tensor)]
    return f"{subject.name}, {weights:,} weights, inputs {', '.join(map(str, shapes))}", _best_device().kind


def _hold_memory(most: int) -> None:
    """End this process with `TOO_MUCH_MEMORY` once it needs more bytes."""
    process = psutil.Process()

    def watch() -> None:
        while process.memory_info().rss <= most:
            time.sleep(0.05)
        print(f"it needs more than the {units.size(most)} that it may have", file=sys.stderr, flush=True)
        os._exit(TOO_MUCH_MEMORY)

    threading.Thread(target=watch, name="memory-limit", daemon=True).start()


def _apple_gpu() -> Device | None:
    """An Apple GPU: the real one, or the simulated one where this process was given it."""
    if os.environ.get("METALLAB_DEVICE") == "sim":
        return device.pick("sim")
    return device.pick("mps") if torch.backends.mps.is_available() else None


def _best_device() -> Device:
    """The best real one."""
    return device.cpu() if os.environ.get("METALLAB_DEVICE") == "sim" else device.pick()


def _caveat(on: Device, what: str = "an Apple GPU") -> str:
    """What has to be said of times and sizes that are not an Apple GPU's."""
    return "" if on.kind == "mps" and not on.simulated else f" Of {what} this says nothing."


def _in_model(name: str) -> str:
    """A module's name in the model, of its name in `WithLoss`."""
    part, _, inside = name.partition(".")
    return inside or "the model itself" if part == "model" else "the loss"


# ---- 1: does it run -------------------------------------------------------------------------------------------------


def runs(subject: Subject, seconds: float) -> Answer:
    """Which operators of inference and of a training step are missing, refused or leave the GPU; then a trial."""
    covered, failed, uses = {}, {}, []
    tasks = [("Inference", copy.deepcopy(subject.model).eval(), "model.", False)]
    if _may_train(subject):
        tasks.append(("Training", subject.whole, "", True))
    for task, module, path, training in tasks:
        try:
            covered[task] = coverage.mps_coverage(
                module, *subject.inputs, training=training, time_limit=0.4 * seconds, **subject.named
            )
        except coverage.TraceFailed as error:
            failed[task] = units.first_line(error)
            continue
        uses += [
            dataclasses.replace(use, modules=tuple(_in_model(path + name) for name in use.modules))
            for use in covered[task].uses
        ]
    on = _apple_gpu()
    raised = _trial(subject, on) if on else ""
    sentences = [f"{task}: {each.answer}" for task, each in covered.items()]
    sentences += [f"{task}: nothing can be foretold ({why})." for task, why in failed.items()]
    held = all(each.runs for each in covered.values())
    if on:
        where = "the simulated Apple GPU" if on.simulated else "this Apple GPU"
        surprise = ", which was not foretold" if bool(raised) == held and covered else ""
        sentences.append(f"On {where} it {f'raised{surprise}: {raised}' if raised else f'ran{surprise}'}.")
    if not covered and on is None:
        return Answer(QUESTIONS[0], "unanswered", " ".join([*sentences, f"{NO_APPLE_GPU}."]))
    careful = any(use.status in ("falls back", "unknown") for use in uses) or not covered
    outcome = "bad" if not held or raised else "attention" if careful else "good"
    tables = f"the operators of PyTorch {torch.__version__}"
    asked = f"{tables} and {on.label}" if on else tables
    return Answer(QUESTIONS[0], outcome, " ".join(sentences), asked, _table_of_uses(uses))


def _may_train(subject: Subject) -> bool:
    """False where the loss depends on nothing that can be trained; a model that fails in its own mode may train."""
    try:
        return subject.trains
    except Exception:  # noqa: BLE001 - the trace tells what it raises
        return True


def _trial(subject: Subject, on: Device) -> str:
    """What a run, and a step where the model has a gradient, raises on a device; empty if nothing."""
    try:
        blame.backward(subject.to(on.torch_device).value())
        on.synchronize()
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is told
        return units.first_line(error).removesuffix(".")
    return ""


def _table_of_uses(uses: Sequence[coverage.Use]) -> tuple[Evidence, ...]:
    """Of operators that do not run on the GPU; nothing where all do."""
    rows = {
        use.operator: (
            use.operator, use.status, ", ".join(dict.fromkeys(use.modules[:3])),
            ", ".join(use.lines[:3]) or "in PyTorch's own code", use.advice,
        )
        for use in uses if use.advice
    }  # fmt: skip
    headings = ["operator", "on MPS", "called by", "at", "way out"]
    return (Evidence("Operators that do not run on the GPU", Table(headings, list(rows.values()))),) if rows else ()


# ---- 2: is it right -------------------------------------------------------------------------------------------------


def right(subject: Subject, seconds: float) -> Answer:
    """Each operator against the CPU in float64: as given, in the other mode, and with inputs laid out in other ways."""
    on = _apple_gpu()
    if on is None:
        return Answer(QUESTIONS[1], "unanswered", f"Not asked: {NO_APPLE_GPU}.")
    narrow = subject.without_float64()
    narrowed = "" if narrow is subject else NO_FLOAT64
    asked = _asked(narrow, on, seconds)
    evidence = [Evidence("Asked", asked.table)]
    if asked.unjudged:
        evidence.append(Evidence("Not compared", Table(["operator", "why"], list(asked.unjudged.items()))))
    if asked.culprit is None:
        if not asked.judged:
            return Answer(QUESTIONS[1], "unanswered", "There was no time to compare anything: --minutes gives more.")
        outcome = "good" if asked.every_kind else "attention"
        return Answer(QUESTIONS[1], outcome, asked.agreement + narrowed, on.label, tuple(evidence))
    way, verdict = asked.culprit
    module = verdict.culprit.module.removeprefix("model").removeprefix(".")  # in the model, not in `WithLoss`
    verdict = dataclasses.replace(verdict, culprit=dataclasses.replace(verdict.culprit, module=module))
    evidence.insert(0, Evidence("The first wrong operator", text=str(verdict)))
    if verdict.program:
        evidence.insert(1, Evidence("A program that shows it", text=verdict.program))
    sentence = f"No, with the inputs {way}: {verdict.headline}"
    sentence += f" {verdict.culprit.difference} Way out: {verdict.advice}." if verdict.kind == "wrong kernel" else ""
    return Answer(QUESTIONS[1], "bad", sentence + narrowed, on.label, tuple(evidence))


@dataclasses.dataclass
class _Asked:
    """What was compared, in which ways, and what came of it."""

    choice: blame.Choice
    verdicts: dict[str, list[blame.Verdict]] = dataclasses.field(default_factory=dict)
    """By way, of each time that it was run."""
    left_out: list[str] = dataclasses.field(default_factory=list)

    @property
    def _all(self) -> list[blame.Verdict]:
        return [verdict for each in self.verdicts.values() for verdict in each]

    @property
    def culprit(self) -> tuple[str, blame.Verdict] | None:
        """The verdict that accuses an operator, with its way."""
        return next(((way, each) for way, every in self.verdicts.items() for each in every if each.culprit), None)

    @property
    def judged(self) -> int:
        return sum(verdict.judged for verdict in self._all)

    @property
    def unjudged(self) -> dict[str, str]:
        return {name: why for verdict in self._all for name, why in verdict.unjudged.items()}

    @property
    def every_kind(self) -> bool:
        compared, there = self.choice.count("kind")
        return compared == there

    @property
    def agreement(self) -> str:
        """What may be said where nothing is wrong."""
        (calls, there), (kinds, all_kinds) = self.choice.count("call"), self.choice.count("kind")
        largest = max(verdict.largest for verdict in self._all)
        every = f"all {calls}" if calls == there else f"{calls} of {there}"
        each = "" if calls == there else "one or more of each " if kinds == all_kinds else f"{kinds} "
        what = f"{every} calls of operators, {each}of {all_kinds} kinds,"
        sentences = [
            f"Yes{'' if self.every_kind else ', as far as there was time'}: {what} agree with the CPU in float64 "
            f"({', '.join(self.verdicts)}); they differ by up to {largest:.1e} of the root mean square, which is "
            "rounding."
        ]
        if self.unjudged:
            sentences.append(f"Not compared: {', '.join(self.unjudged)}.")
        if not self.every_kind:
            sentences.append("--minutes gives more time.")
        return " ".join(sentences)

    @property
    def table(self) -> Table:
        """A row for each way."""
        rows = [
            (way, len(self.choice.met[way]), sum(each.judged for each in verdicts), verdicts[-1].kind,
             f"{max(each.largest for each in verdicts):.1e}")
            for way, verdicts in self.verdicts.items()
        ]  # fmt: skip
        notes = ["A kind is an operator with its settings, and the size, layout and dtype of its tensors."]
        notes += [f"Not tried: {', '.join(self.left_out)}."] if self.left_out else []
        return Table(["how", "calls", "compared", "result", "rounding"], rows, " ".join(notes))


def _asked(subject: Subject, on: Device, seconds: float) -> _Asked:
    """Run the subject in each way, and compare one call of each kind, then all, while there is time."""
    within, asked = Allowance(seconds), _Asked(blame.Choice())
    ways, once = _ways(subject), 0.0
    for each in ("kind", "kind", "call"):  # the second time those for which a way had no time
        waiting = [way for way in ways if not asked.verdicts or asked.choice.left(way, each)]
        for number, way in enumerate(waiting):
            if within.left < once:
                asked.left_out += [way] if way not in asked.verdicts else []
                continue
            share = within.left / (len(waiting) - number) - once if asked.verdicts else within.left / 2
            before, compared = within.left, asked.choice.seconds
            try:
                verdict = blame.find(
                    ways[way].whole, ways[way].arguments, lambda value: value, on=on, seconds=max(share, once),
                    choice=asked.choice.begin(way, each), layers=False,
                )  # fmt: skip
            except Exception as error:
                if not asked.verdicts:
                    raise
                asked.left_out.append(f"{way} ({units.first_line(error)})")  # such as a .view() of another layout
                del ways[way], asked.choice.met[way]
                continue
            once = max(once, before - within.left - (asked.choice.seconds - compared))  # without comparing anything
            asked.verdicts.setdefault(way, []).append(verdict)
            if verdict.culprit:
                return asked
    return asked


def _ways(subject: Subject) -> dict[str, Subject]:
    """The subject as given, in the other mode, and with its inputs in layouts that kernels are known to get wrong."""
    switched = copy.deepcopy(subject.whole).train(not subject.whole.training)
    mode, other = ("training" if whole.training else "evaluation" for whole in (subject.whole, switched))
    return {
        f"as given, in {mode} mode": subject,
        f"in {other} mode": dataclasses.replace(subject, whole=switched),
        "with their last two dimensions swapped in memory": subject.with_inputs(_swapped),
        "at an odd offset": subject.with_inputs(_offset),
    }


def _swapped(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def _offset(tensor: Tensor) -> Tensor:
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


# ---- 3: is it fast --------------------------------------------------------------------------------------------------


CALLS = 40
"""That a comparison takes at least, with warming up, for six pairs of a slow model."""


def fast(subject: Subject, seconds: float) -> Answer:
    """On the best device against the CPU: inference, inference over batches, and a training step."""
    on, within = _best_device(), Allowance(seconds)
    parts = [_task_times(subject, "inference", on, within.left / 3), _times_over_batches(subject, on, within.left / 2)]
    if subject.trains:
        parts.append(_task_times(subject, "training_step", on, within.left))
    else:
        parts.append(("It has nothing to train.", []))
    sentences, evidence = zip(*parts, strict=True)
    return Answer(QUESTIONS[2], "good", " ".join(sentences) + _caveat(on), on.label, tuple(chain(*evidence)))


def _task_times(subject: Subject, task: str, on: Device, seconds: float) -> tuple[str, list[Evidence]]:
    """What a task takes and how it compares, in words; alone where so much time does not allow comparing."""
    name, run = task.replace("_", " "), getattr(subject, task)
    if CALLS * _second_call(run()) > seconds:
        measured = timing.measure(getattr(subject.to(on.torch_device), task)(), on=on, budget=timing.FAST)
        sentence = f"{name}: {_time_in_words(measured)}; its share of --minutes was too short to compare it."
        return sentence, [Evidence(f"Measured, {name}", text=str(measured))]
    compared = crossover.measure_networks({subject.name: lambda: subject}, on=on, seconds=seconds, tasks=[task])
    sentences = []
    for each in compared.comparisons:
        measured = each[on.kind if on.kind != "cpu" else crossover.baseline()]
        speed_up = " ".join(sentence.removesuffix(".") for sentence in each.sentences)
        sentences.append(f"{each.name.removeprefix(f'{subject.name}, ')}: {_time_in_words(measured)}; {speed_up}.")
    return " ".join(sentences), [Evidence(f"Measured, {name}", text="\n".join(map(str, compared.comparisons)))]


def _times_over_batches(subject: Subject, on: Device, seconds: float) -> tuple[str, list[Evidence]]:
    """From which batch on a device is faster, of the batches for which there is time."""
    if not subject.scales:
        return "Its outputs do not grow with the inputs' first dimension, so other batches were not timed.", []
    cost = CALLS * _second_call(subject.inference()) / subject.batch
    sizes = [n for n in (1, 4, 16, 64) if cost * n <= seconds]
    if not sizes:
        return "There was no time for other batches: --minutes gives more.", []

    def work(rows: int, where: torch.device) -> Callable[[], object]:
        return subject.with_batch(rows).to(where).inference()

    curve = crossover.measure("inference", work, sizes, on=on, seconds=seconds)
    rows = [(n, *(units.seconds(line[n].median) if n in line else "" for line in curve.times.values())) for n in sizes]
    return f"Over batches (n): {curve}", [Evidence("Over batches", Table(["batch", *curve.times], rows))]


def _second_call(run: Callable[[], object]) -> float:
    """Seconds of a call that is not the first."""
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _time_in_words(measured: timing.Measurement) -> str:
    """A time with its quartiles and what speaks against it, in words."""
    low, high = map(units.seconds, measured.quartiles)
    flags = f" [{', '.join(measured.flags)}]" if measured.flags else ""
    return f"{units.seconds(measured.median)} a call ({low} to {high}){flags}"


# ---- 4: where does the time go --------------------------------------------------------------------------------------


def spent(subject: Subject, seconds: float) -> Answer:
    """Operators of a step with their milliseconds on the device that is here; copies and fallbacks of an Apple GPU."""
    on = _best_device()
    recorded, what = _recorded(subject, on)
    whole = sum(event.duration for event in recorded.events) or 1.0
    rows = _longest(recorded.events, whole)
    first = f"{rows[0][0]} takes {rows[0][-1]} of it, in {rows[0][2]}" if rows else "there are no operators"
    sentences = [f"Of {units.seconds(whole)} in operators ({what}, traced), {first}."]
    headings = ["operator", "kind", "called by", "calls", "ms", "share"]
    evidence = [Evidence(f"The longest of {what}", Table(headings, rows))]
    apple = _apple_gpu() if on.kind == "cpu" else None
    if apple is not None:
        try:
            recorded, _ = _recorded(subject.without_float64(), apple)
        except Exception as error:  # noqa: BLE001 - a model may raise anything; the CPU's times stand all the same
            apple = None
            sentences.append(f"Its copies on an Apple GPU are not known, for it raises: {units.first_line(error)}")
    moved = recorded.having("copy", "fallback")
    packages = _packages(moved, subject)
    if moved:
        rows = _moves(moved, timed=apple is None)
        sentences.append(_moves_in_words(recorded, rows))
        if packages:
            sentences.append(f"That is done in the code of {', '.join(packages)}, not in yours.")
        headings = ["operator", "which way", "called by", "at", "calls", "bytes", "ms"]
        evidence.append(Evidence("Copies and fallbacks", Table(headings, rows)))
    elif apple is not None or on.kind != "cpu":
        sentences.append("Nothing in it is copied between CPU and GPU.")
    asked = on.label + (f"; copies and fallbacks: {apple.label}" if apple else "")
    outcome = "attention" if moved and not packages else "good"
    caveat = _caveat(on, "an Apple GPU's times" if apple else "an Apple GPU")
    return Answer(QUESTIONS[3], outcome, " ".join(sentences) + caveat, asked, tuple(evidence))


def _recorded(subject: Subject, on: Device) -> tuple[trace.Trace, str]:
    """A traced step after one that nobody looked at, and what it was; modules are named as in the model."""
    there = subject.to(on.torch_device)
    trains = there.trains
    step, what = (there.training_step(), "a training step") if trains else (there.inference(), "inference")
    step()
    on.synchronize()
    with trace.record(on=on) as recorded:
        step()
    path = "" if trains else "model."
    for number, event in enumerate(recorded.events):
        module = _in_model(path + event.module.partition(".")[2]) if event.module else "the step itself"
        recorded.events[number] = dataclasses.replace(event, module=module)
    return recorded, what


def _longest(events: Sequence[trace.Event], whole: float) -> list[tuple]:
    """Rows of the operators that take most of ``whole`` seconds."""
    groups: dict[tuple[str, str], list[trace.Event]] = collections.defaultdict(list)
    for event in events:
        if event.kind != "view":
            groups[event.short, event.kind].append(event)
    total = {key: sum(event.duration for event in group) for key, group in groups.items()}
    rows = []
    for key in sorted(groups, key=total.__getitem__, reverse=True)[:MOST_ROWS]:
        by_module = collections.Counter()
        for event in groups[key]:
            by_module[event.module] += event.duration
        modules = ", ".join(name for name, _ in by_module.most_common(2))
        modules += f" and {len(by_module) - 2} more" if len(by_module) > 2 else ""
        rows.append((*key, modules, len(groups[key]), f"{1e3 * total[key]:.3g}", f"{total[key] / whole:.0%}"))
    return rows


def _moves(events: Sequence[trace.Event], timed: bool) -> list[tuple]:
    """Rows of copies and fallbacks, those of one line together."""
    groups: dict[tuple[str, str, str, str], list[trace.Event]] = collections.defaultdict(list)
    for event in events:
        line = "" if event.line.startswith("<") else event.line  # of the process that asks
        groups[event.short, event.direction or event.kind, event.module, line].append(event)
    return [
        (*key, len(group), units.size(sum(event.bytes for event in group)),
         f"{1e3 * sum(event.duration for event in group):.3g}" if timed else "not known here")
        for key, group in groups.items()
    ]  # fmt: skip


def _moves_in_words(recorded: trace.Trace, rows: Sequence[tuple]) -> str:
    copies, fallbacks = (len(recorded.having(kind)) for kind in ("copy", "fallback"))
    counted = f"{copies} hidden {'copy' if copies == 1 else 'copies'} and "
    counted += f"{fallbacks} fallback{'' if fallbacks == 1 else 's'}"
    first = "; ".join(f"{operator} ({way}) in {module}" for operator, way, module, *_ in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"Between CPU and GPU it makes {counted}: {first}{more}."


def _packages(moved: Sequence[trace.Event], subject: Subject) -> list[str]:
    """The installed packages whose lines make these copies; none if one of them is made elsewhere, or is a fallback.

    The package that has the factory is the reader's own, installed or not.
    """
    names = {_package(event.line) if event.kind == "copy" else "" for event in moved}
    return [] if names & {"", subject.package} else sorted(names)


def _package(line: str) -> str:
    """The installed package in which a line ``file:number`` lies; empty if it lies elsewhere."""
    file = Path(line.rpartition(":")[0]).absolute()
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return next((file.relative_to(f).parts[0].removesuffix(".py") for f in folders if file.is_relative_to(f)), "")


# ---- 5: does it fit -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Needs:
    """Bytes of training, counted and not measured."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """What the forward pass keeps for the backward pass, at the batch that is given."""
    row: float
    """Of the activations, what another row of the batch adds; 0 where batches cannot be changed."""
    batch: int
    """Rows of the inputs' first dimension."""

    @property
    def fixed(self) -> int:
        """Whatever the batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def training(self) -> int:
        """At the batch that is given."""
        return self.fixed + self.activations

    def largest(self, usable: float) -> int:
        """The largest batch that fits into so many bytes; 0 if none does."""
        rest = self.activations - self.row * self.batch
        return max(0, int((usable - self.fixed - rest) // self.row))


def needs(subject: Subject) -> Needs:
    """Counted on the ``meta`` device, where nothing needs memory; on the CPU where the model needs numbers."""
    weights = sum(t.nbytes for t in (*subject.model.parameters(), *subject.model.buffers()))
    trained = sum(p.nbytes for p in subject.model.parameters() if p.requires_grad)
    return Needs(
        weights, trained, ADAMW * trained, _kept(subject, Subject.value), _kept_for_a_row(subject), subject.batch
    )


def _kept_for_a_row(subject: Subject) -> float:
    if not subject.scales:
        return 0.0
    try:
        larger = subject.with_batch(2 * subject.batch)
        once, twice = (_kept(each, Subject.outputs) for each in (subject, larger))
    except Exception:  # noqa: BLE001 - a model that refuses other batches has no largest one
        return 0.0
    return max(0.0, (twice - once) / subject.batch)


def _kept(subject: Subject, run: Callable[[Subject], object]) -> int:
    """Bytes that ``run(subject)`` keeps for the backward pass."""
    try:
        on_meta = subject.to("meta")
        return precision.kept_for_backward(on_meta.whole, lambda: run(on_meta))
    except Exception:  # noqa: BLE001 - whatever fails there alone, such as what needs numbers, is asked of the CPU
        return precision.kept_for_backward(subject.whole, lambda: run(subject))


def fits(subject: Subject, target: int | None, most: int) -> Answer:
    """Bytes of weights, gradients, optimiser and activations; whether this machine and another have them; the peak."""
    on = _best_device()
    counted = needs(subject)
    machines = {f"this machine ({on.label})": _memory_of(on)}
    if target is not None:
        machines[f"an Apple machine with {target / 2**30:.3g} GiB"] = memory.metal_limit(target)
    sentences, rows = [], []
    for machine, usable in machines.items():
        fit = counted.training <= usable
        largest = str(counted.largest(usable)) if counted.row else "not known"
        with_batch = f"; the largest batch (first dimension) that does is {largest}" if counted.row else ""
        verb = "fits" if fit else "DOES NOT FIT"
        sentences.append(f"It {verb} into the {units.size(usable)} for it on {machine}{with_batch}.")
        rows.append((machine, units.size(usable), "yes" if fit else "no", largest))
    parts = [
        ("weights", counted.weights), ("gradients", counted.gradients), ("AdamW", counted.optimizer),
        (f"activations, batch of {counted.batch}" if counted.row else "activations", counted.activations),
        ("training in all", counted.training),
    ]  # fmt: skip
    table = [(name, units.size(size), "counted") for name, size in parts]
    table += _peaks(subject, on, counted, min(most, min(machines.values())))
    given = f"at the batch of {counted.batch} that is given" if counted.row else "with the inputs that are given"
    head = f"Training with AdamW needs {units.size(counted.training)} {given}, inference {units.size(counted.weights)} "
    head += "of weights."
    evidence = (
        Evidence("Memory", Table(["part", "size", "how"], table)),
        Evidence("Machines", Table(["machine", "memory for it", "fits", "largest batch"], rows)),
    )
    outcome = "good" if counted.training <= min(machines.values()) else "bad"
    return Answer(QUESTIONS[4], outcome, " ".join([head, *sentences]), on.label, evidence)


def _memory_of(on: Device) -> int:
    """Bytes that a device may use."""
    if on.kind == "mps":
        return torch.mps.recommended_max_memory()
    return torch.cuda.mem_get_info()[1] if on.kind == "cuda" else psutil.virtual_memory().total


def _peaks(subject: Subject, on: Device, counted: Needs, most: int) -> list[tuple[str, str, str]]:
    """Rows with the peaks of inference and of a step, beyond the weights that lie there."""
    if 2 * counted.training > most:
        return [("peak", "not measured", "it may need more memory than there is for it")]
    there = subject.to(on.torch_device)
    tasks = {"inference": there.inference()}
    if there.trains:
        tasks["a step of SGD"] = there.training_step()
    rows = []
    for name, run in tasks.items():
        with memory.peak(on=on) as peak:
            run()
        least = "at least, " if peak.how == "sampled" else ""
        rows.append((f"peak of {name}, beyond the weights", units.size(peak.bytes), f"measured ({least}{peak.how})"))
    return rows


# ---- 6: which number format -----------------------------------------------------------------------------------------


def formats(subject: Subject, seconds: float) -> Answer:
    """Error, memory and time of float32, and of bfloat16 and float16 under autocast and with everything cast."""
    on, within = _best_device(), Allowance(seconds)
    there = _cast(subject, torch.float32).to(on.torch_device)
    exact, reference = _exact(subject)
    plain = _fate(there, on, exact)
    ways = {"float32": (there, None)}
    for dtype in (torch.bfloat16, torch.float16):
        name = units.dtype_name(dtype)
        ways |= {f"{name}, autocast": (there, dtype), f"{name}, cast": (_cast(there, dtype), None)}
    fates = {name: _fate(each, on, exact, autocast, plain.beyond) for name, (each, autocast) in ways.items()}
    cost = max(sum(fate.seconds for fate in fates.values()), 1e-6)
    kept = _kept_in_formats(there, on) if within.count("counts of what is kept", each=cost, wanted=1) else {}
    times = _times(ways, fates, on, within)
    rows = [
        (name, fate.words, times.get(name, "not timed"), kept.get(name, "not counted")) for name, fate in fates.items()
    ]
    headings = ["format", "error of the outputs", "inference", "kept for the backward pass"]
    table = Table(headings, rows, str(within) if within.left_out else "")
    sentences = _fates_in_words(fates, reference, fractions=bool(exact))
    # where a cast is refused there is autocast as well
    careful = any(fate.first or (fate.refused and not name.endswith(", cast")) for name, fate in fates.items())
    outcome = "attention" if careful else "good"
    return Answer(QUESTIONS[5], outcome, sentences + _caveat(on), on.label, (Evidence("Formats", table),))


@dataclasses.dataclass(frozen=True)
class Fate:
    """What a format makes of the outputs."""

    error: float = 0.0
    """Largest difference from the exact outputs, over the root mean square; NaN if nothing is of the same size."""
    beyond: tuple[str, ...] = ()
    """The modules that give an infinite number or a NaN, in the order in which they end."""
    first: str = ""
    """The first of them that gives none in float32, in words; empty if there is none."""
    refused: str = ""
    """What was raised."""
    seconds: float = 0.0
    """That the run took, its first call and the search for infinite numbers included."""

    @property
    def words(self) -> str:
        """For a table."""
        if self.refused:
            return f"raises: {self.refused}"
        if self.first:
            return f"infinite or NaN, first in {self.first}"
        return "not compared" if math.isnan(self.error) else f"{self.error:.1e}"


def _fates_in_words(fates: dict[str, Fate], reference: str, fractions: bool) -> str:
    """What overflows, what is refused, how far the others are from the ``reference``, if outputs have ``fractions``."""
    sentences = [f"{name} OVERFLOWS, first in {fate.first}." for name, fate in fates.items() if fate.first]
    sentences += [f"{name} raises ({fate.refused})." for name, fate in fates.items() if fate.refused]
    sound = {name: fate.error for name, fate in fates.items() if not fate.first and not fate.refused}
    compared = {name: error for name, error in sound.items() if not math.isnan(error)}
    small = [name for name in compared if name != "float32"]
    nearest = min(small, key=compared.__getitem__, default="")
    choice = f"of the small formats {nearest} is the nearest" if small else "stay with float32"
    errors = ", ".join(f"{error:.1e} in {name}" for name, error in compared.items())
    if compared:
        sentences.append(f"Outputs differ from {reference} by {errors} of the root mean square: {choice}.")
    if len(compared) < len(sound):
        others = ", ".join(name for name in sound if name not in compared)
        why = "are empty or of another size than in float64" if fractions else "have no numbers with a fraction"
        sentences.append(f"Outputs {why}, and were not compared, in {others}.")
    return " ".join(sentences)


def _fate(
    subject: Subject,
    on: Device,
    exact: Sequence[Tensor],
    autocast: torch.dtype | None = None,
    known: Sequence[str] = (),
) -> Fate:
    """Run inference, and look where the first number beyond the format's range comes up, but for those ``known``."""
    model, beyond = copy.deepcopy(subject.model).eval(), []
    for name, module in model.named_modules():
        module.register_forward_hook(_noting_infinity(name, beyond))
    began = time.perf_counter()
    try:
        with torch.no_grad(), _autocast(on, autocast):
            outputs = _widened(model(*subject.inputs, **subject.named))
    except Exception as error:  # noqa: BLE001 - no kernel for this format, inputs of another: it is told
        return Fate(refused=units.first_line(error).removesuffix("."))
    first = next((_in_model(f"model.{name}") for name in beyond if name not in known), "")
    pairs = list(zip(exact, outputs, strict=False))
    alike = all(right.shape == got.shape for right, got in pairs)
    errors = [blame.relative_error(right, got) for right, got in pairs if right.numel()]
    error = max(errors) if errors and alike else math.nan
    return Fate(error, tuple(beyond), first, seconds=time.perf_counter() - began)


def _noting_infinity(name: str, beyond: list[str]) -> Callable[..., None]:
    def see(_module: nn.Module, _inputs: object, output: object) -> None:
        tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
        if any(not t.isfinite().all() for t in tensors):
            beyond.append(name)

    return see


def _cast(subject: Subject, dtype: torch.dtype) -> Subject:
    """A copy with weights, inputs and what is around the loss in a dtype, where they are floating.

    Complex numbers stay: module.to() would drop their imaginary part.
    """
    return subject.cast(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _exact(subject: Subject) -> tuple[list[Tensor], str]:
    """The outputs of inference in float64, and that name; in the model's own format where it does not run so."""
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # of tensors that the model makes on its way
        return _widened(subject.cast(blame.widened).inference()()), "float64"
    except Exception:  # noqa: BLE001 - whatever a model raises that insists on its own format
        torch.set_default_dtype(default)
        return _widened(subject.inference()()), "the model as it is, which does not run in float64,"
    finally:
        torch.set_default_dtype(default)


def _autocast(on: Device, dtype: torch.dtype | None) -> torch.autocast:
    """To a dtype; to none, the model computes as it is."""
    return torch.autocast(on.kind, dtype=dtype, enabled=dtype is not None)


def _widened(outputs: object) -> list[Tensor]:
    """What has a fraction, in float64 or complex128 on the CPU."""
    tensors = [t.detach().cpu() for t in tree_leaves(outputs) if isinstance(t, Tensor)]
    return [blame.widened(t) for t in tensors if t.is_floating_point() or t.is_complex()]


def _kept_in_formats(subject: Subject, on: Device) -> dict[str, str]:
    """What the forward pass keeps for the backward pass, under autocast."""

    def outputs(_model: nn.Module, dtype: torch.dtype) -> object:
        with _autocast(on, None if dtype == torch.float32 else dtype):
            return subject.outputs()

    try:
        sizes = precision.kept_in_formats(subject.whole, outputs).sizes
    except RuntimeError:  # a format is refused, which the other column says
        return {}
    return {name if name == "float32" else f"{name}, autocast": units.size(size) for name, size in sizes.items()}


def _times(
    ways: dict[str, tuple[Subject, torch.dtype | None]], fates: dict[str, Fate], on: Device, within: Allowance
) -> dict[str, str]:
    """Seconds a call with its quartiles, in words; nothing of formats that are refused or for which no time is left."""
    times, accepted = {}, [name for name, fate in fates.items() if not fate.refused]
    for name in accepted:
        if within.count(f"timings in {name}", each=max(5 * fates[name].seconds, 1e-6), wanted=1):
            there, autocast = ways[name]
            run = _autocast(on, autocast)(there.inference())
            budget = timing.Budget(min_samples=5, min_seconds=0.1, max_seconds=within.left / 2 / len(accepted))
            times[name] = _time_in_words(timing.measure(run, on=on, name=name, budget=budget))
    return times
