"""The six questions, each asked of a subject within some seconds: what the processes of the doctor compute."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from metallab import device, memory, simulation, timing, units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.pytorch import blame, coverage, crossover, precision, trace
from metallab.pytorch.copies import copied, tensors_in
from metallab.pytorch.dispatch import (
    BACKWARD,
    CallingModules,
    Raised,
    below_root,
    calling_line,
    explain,
    installed_package,
    watching,
)
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence, drafting, so_far
from metallab.pytorch.doctor.subject import DOES_NOT_RUN, NotAModel, Subject, WithLoss, made
from metallab.tables import Table
from metalsim import operators

NO_APPLE_GPU = "there is no Apple GPU here, nor can a simulated one be used: run make setup, or ask on a Mac"
TOO_MUCH_MEMORY = 77
"""The exit code of a process that needed more memory than it may have."""
MOST_ROWS = 12
ON_TWO_DEVICES = re.compile("same device|CPU tensor|Placeholder storage")
"""What PyTorch says of a tensor on the CPU among others, on a Mac or elsewhere."""
RANDOM = 1e-3
"""Outputs that are further apart from call to call, over their root mean square, are random: no rounding does that."""
NO_FLOAT64 = "\nAsked with float32 in place of float64, which no Apple GPU has."
INFERENCES = 5
"""For which each question gets time at least."""
PLANNED = 0.8
"""Of the time for a question; the rest is for what cannot be interrupted."""
SOONEST = 0.1
"""Seconds without which a question is not started."""
ADAMW = 2
"""Numbers that AdamW keeps for each weight."""


def ask(number: int, factory: str, ends: float, most: int, target: int | None, draft: str) -> Answer:
    """The answer to a question, from 1 on, in this process, which ends if it needs more than ``most`` bytes.

    It plans to be done when `time.monotonic`, which is the same for all processes, is at ``ends``, and keeps what it
    has so far in the file ``draft``. ``target`` is the memory in bytes that question 5 asks about beside this
    machine's. Whatever the factory raises comes through; what the model or the device raises is the answer.
    """
    _hold_memory(most)
    subject = made(factory)
    seconds = PLANNED * (ends - time.monotonic())
    if seconds < SOONEST:
        return Answer(QUESTIONS[number - 1], "unanswered", "Not started.", ended="not started")
    with drafting(Path(draft)):
        return answered(number, subject, seconds, most, target)


def answered(number: int, subject: Subject, seconds: float, most: int, target: int | None = None) -> Answer:
    """See `ask`."""
    try:
        with crossover.whole_float32():
            if number == 5:
                return fits(subject, target, most)
            return {1: runs, 2: right, 3: fast, 4: spent, 6: formats}[number](subject, seconds)
    except simulation.SimulationUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is told
        on = _apple_gpu() if number == 2 else _best_device()
        failed = on is not None and on.kind == "mps" and _trial(subject.without_float64(), on)
        why = f"{_it_raises(on)}: see answer 1" if failed else f"No answer: {explain(error, (WithLoss,))}"
        return Answer(QUESTIONS[number - 1], "unanswered", f"{why}.", ended="raised")


def _it_raises(on: Device) -> str:
    return f"It raises on {'the simulated' if on.simulated else 'this'} Apple GPU"


def look(factory: str, most: int) -> tuple[str, str, float]:
    """The model's class with its size, in words, the kind of the best device, and the seconds that a question needs.

    Those are what importing and making the model took, and `INFERENCES` on the CPU. `NotAModel` if it cannot be asked.
    """
    _hold_memory(most)
    began = time.perf_counter()
    subject = made(factory)
    seconds = time.perf_counter() - began
    try:
        seconds += INFERENCES * _second_call(subject.to("cpu").inference())
    except Exception as error:
        raise NotAModel(f"{DOES_NOT_RUN}: {explain(error)}") from error
    _assert_loss(subject)
    weights = sum(p.numel() for p in subject.model.parameters())
    shapes = [tuple(t.shape) for t in tensors_in(subject.arguments)]
    words = f"{subject.name}, {weights:,} weights, inputs {', '.join(map(str, shapes))}"
    return words, _best_device().kind, seconds


def _assert_loss(subject: Subject) -> None:
    """NotAModel if the factory's loss raises, gives no number, or none that a weight could be trained by."""
    try:
        outputs = subject.outputs()
    except Exception:  # noqa: BLE001 - a model that fails in its own mode alone is an answer
        return
    try:
        loss = subject.whole.loss_of(outputs)
    except Exception as error:
        if not subject.has_loss:  # ours, the mean square, which not all outputs have
            return
        told = explain(error, (WithLoss,))
        raise NotAModel(f"the loss does not run with these outputs on the CPU: {told}") from error
    what = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise NotAModel(f"the loss gives {what}: let it return one number, such as loss.mean()")
    if subject.has_loss and not loss.requires_grad and any(p.requires_grad for p in subject.model.parameters()):
        raise NotAModel("the loss depends on no weight (is something detached?): mend it, or leave it out")


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
    if on.kind == "mps" and not on.simulated:
        return ""
    precise = "\nFloat32 is computed in full here, without TF32." if on.kind == "cuda" else ""
    return f"{precise}\nOf {what} this says nothing."


def _in_model(name: str) -> str:
    """A module's name in the model, of its name in `WithLoss`; `BACKWARD` stays."""
    if name == BACKWARD:
        return name
    part, _, inside = name.partition(".")
    return inside or "the model itself" if part == "model" else "the loss"


# ---- 1: does it run -------------------------------------------------------------------------------------------------


def runs(subject: Subject, seconds: float) -> Answer:
    """Which operators of inference and of a training step are missing, refused or leave the GPU; then a trial."""
    covered, failed, left, within, ended = {}, {}, [], Allowance(seconds), "well"
    tasks = [("Inference", copied(subject.model).eval(), "model.", False)]
    if _may_train(subject):
        tasks.append(("Training", subject.whole, "", True))
    for task, module, path, training in tasks:
        limit = 0.6 * within.left
        try:
            traced = coverage.mps_coverage(
                module, *subject.inputs, training=training, time_limit=limit, **subject.named
            )
        except coverage.OutOfTime:
            failed[task], ended = f"{limit:.1f} s were too few; --minutes gives more", "hung"
            continue
        except coverage.TraceFailed as error:
            cause = error.__cause__  # whose modules are named as in the model
            failed[task] = str(explain(cause, (WithLoss,))) if cause else units.first_line(error)
            continue
        covered[task] = traced.renamed(lambda name, path=path: _in_model(name if name == BACKWARD else path + name))
        left += covered[task].cpu_tensors
    told: dict[str, list[str]] = {}
    for task, each in covered.items():
        told.setdefault(each.answer, []).append(task)
    sentences = [f"{' and '.join(same).capitalize()}: {answer}" for answer, same in told.items()]
    sentences += [f"{task}: nothing can be foretold ({why})." for task, why in failed.items()]
    held = all(each.runs for each in covered.values())
    tables = f"the operators of PyTorch {torch.__version__}"
    table = _table_of_trouble(covered.values(), left)
    so_far(Answer(QUESTIONS[0], "good" if held else "bad", "\n".join(sentences), tables, table, ended=ended))
    on = _apple_gpu()
    raised = _trial(subject, on) if on else None
    if on:
        where = "the simulated Apple GPU" if on.simulated else "this Apple GPU"
        surprise = ", which was not foretold" if bool(raised) == held and covered else ""
        sentences.append(f"On {where} it {f'raised{surprise}: {raised}' if raised else f'ran{surprise}'}.")
    if not covered and on is None:
        return Answer(QUESTIONS[0], "unanswered", "\n".join([*sentences, f"{NO_APPLE_GPU}."]), ended=ended)
    if raised and not left and ON_TWO_DEVICES.search(raised.text):  # where the trace saw no device
        left.append(coverage.CpuTensor("not known", raised.module, raised.line))
        sentences.append(f"Way out: {coverage.CpuTensor.ADVICE}.")
    careful = any(each.having("falls back", "unknown") for each in covered.values()) or not covered or ended != "well"
    outcome = "bad" if not held or raised else "attention" if careful else "good"
    asked = f"{tables} and {on.label}" if on else tables
    table = _table_of_trouble(covered.values(), left)
    return Answer(QUESTIONS[0], outcome, "\n".join(sentences), asked, table, ended=ended)


def _may_train(subject: Subject) -> bool:
    """False where the loss depends on nothing that can be trained; a model that fails in its own mode may train."""
    try:
        return subject.trains
    except Exception:  # noqa: BLE001 - the trace tells what it raises
        return True


def _trial(subject: Subject, on: Device) -> Raised | None:
    """What a run, and a step where the model has a gradient, raises on a device."""
    try:
        blame.backward(subject.to(on.torch_device).value())
        on.synchronize()
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is told
        return explain(error, (WithLoss,))
    return None


def _table_of_trouble(
    covered: Collection[coverage.Coverage], left: Sequence[coverage.CpuTensor]
) -> tuple[Evidence, ...]:
    """Of operators that do not run on the GPU, make float64, or meet what was left on the CPU; nothing if all is well.

    Parameters, buffers and inputs in float64 are no operators: the sentence names them.
    """
    elsewhere = "in PyTorch's own code"
    rows: dict[Any, tuple[str, ...]] = {
        use.operator: (
            use.operator, use.status, ", ".join(use.modules[:3]),
            ", ".join(use.lines[:3]) or elsewhere, use.advice,
        )
        for each in covered for use in each.uses if use.advice
    }  # fmt: skip
    rows |= {
        (wide.operator, wide.dtype, wide.line): (
            wide.operator, f"raises: makes {wide.dtype}", ", ".join(wide.modules[:3]), wide.line or elsewhere,
            wide.way_out,
        )
        for each in covered for wide in each.wide if isinstance(wide, coverage.WideTensor)
    }  # fmt: skip
    rows |= {
        each: (each.operator, "raises: a tensor is on the CPU", each.module, each.line or BACKWARD, each.ADVICE)
        for each in left
    }
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
            why = "There was no time to compare anything: --minutes gives more."
            return Answer(QUESTIONS[1], "unanswered", why, ended="hung")
        nans, are_harmless = _nans_in_words(asked.born, subject)
        outcome = "good" if asked.every_kind and are_harmless else "attention"
        sentence = asked.agreement + nans + _ran_on_the_cpu(asked.operators) + narrowed
        return Answer(QUESTIONS[1], outcome, sentence, on.label, tuple(evidence))
    way, verdict = asked.culprit
    module = verdict.culprit.module.removeprefix("model").removeprefix(".")  # in the model, not in `WithLoss`
    verdict = dataclasses.replace(verdict, culprit=dataclasses.replace(verdict.culprit, module=module))
    evidence.insert(0, Evidence("The first wrong operator", text=str(verdict)))
    if verdict.program:
        evidence.insert(1, Evidence("A program that shows it", text=verdict.program))
    sentence = f"No, with the inputs {way}: {verdict.headline}"
    sentence += f" {verdict.culprit.difference} Way out: {verdict.advice}." if verdict.kind == "wrong kernel" else ""
    return Answer(QUESTIONS[1], "bad", sentence + narrowed, on.label, tuple(evidence))


def _nans_in_words(born: Sequence[str], subject: Subject) -> tuple[str, bool]:
    """Where a NaN is born and what it spoils, on the CPU as well, as a line; whether that is nothing."""
    if not born:
        return "", True
    step = dataclasses.replace(subject, whole=copied(subject.whole))
    loss = step.value()
    blame.backward(loss)
    gradients = [weight.grad for weight in step.whole.parameters() if weight.grad is not None]
    arrivals = [("outputs", _widened(subject.inference()())), ("the loss", [loss] if subject.has_loss else [])]
    arrivals.append(("gradients of weights", gradients))
    reached = [name for name, tensors in arrivals if any(t.isnan().any() for t in tensors)]
    more = f" and {len(born) - 2} more" if len(born) > 2 else ""
    fate = f"it reaches {', '.join(reached)}" if reached else "it reaches no output and no gradient of a weight"
    where = "; ".join(_in_a_call(each) for each in born[:2])
    return f"\nOn the CPU as well a NaN is born of numbers, by {where}{more}: {fate}.", not reached


def _in_a_call(where: str) -> str:
    """What `blame.Verdict.born` says of a place, with the module as the model names it."""
    place, _, rest = where.partition(", ")
    operator, _, module = place.partition(" in ")
    return f"{operator} in {_in_model(module) if module.startswith('model') else 'the loss'}, {rest}"


def _ran_on_the_cpu(called: Iterable[str]) -> str:
    """Of the operators that have no MPS kernel, how they could be run, as a sentence; empty if all have one."""
    missing = [name.partition("::")[2] for name in called if operators.status(name) == "missing"]
    if not missing:
        return ""
    return (
        f"\nWithout MPS kernel, see answer 1: {', '.join(missing)}. For this answer PyTorch ran them on the CPU "
        f"({coverage.FALLBACK_VARIABLE}=1)."
    )


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
    def operators(self) -> list[str]:
        """Each that was called."""
        return list(dict.fromkeys(name for verdict in self._all for name in verdict.operators))

    @property
    def born(self) -> list[str]:
        """Where a NaN is, on the CPU as well."""
        return list(dict.fromkeys(where for verdict in self._all for where in verdict.born))

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
        which = " that can be compared" if self.unjudged else ""
        what = f"{every} calls of operators{which}, {each}of {all_kinds} kinds,"
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
                    choice=asked.choice.begin(way, each), layers=False, past_nans=True,
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
            if asked.judged:
                table = Evidence("Asked", asked.table)
                so_far(Answer(QUESTIONS[1], "attention", asked.agreement, on.label, (table,)))
    return asked


def _ways(subject: Subject) -> dict[str, Subject]:
    """The subject as given, in the other mode, and with its inputs in layouts that kernels are known to get wrong."""
    switched = copied(subject.whole).train(not subject.whole.training)
    mode, other = ("training" if whole.training else "evaluation" for whole in (subject.whole, switched))
    ways = {
        f"as given, in {mode} mode": subject,
        f"in {other} mode": dataclasses.replace(subject, whole=switched),
        "with their last two dimensions swapped in memory": subject.with_inputs(_swapped),
        "at an odd offset": subject.with_inputs(_offset),
    }
    if not any(t.dim() > 1 for t in tensors_in(subject.arguments)):
        del ways["with their last two dimensions swapped in memory"]  # as given
    return ways


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
    parts: list[tuple[str, list[Evidence], bool]] = []

    def answer() -> Answer:
        sentences, evidence, is_settled = zip(*parts, strict=True)
        outcome = "good" if all(is_settled) else "attention"
        return Answer(QUESTIONS[2], outcome, "\n".join(sentences) + _caveat(on), on.label, tuple(chain(*evidence)))

    parts.append(_task_times(subject, "inference", on, within.left / 3))
    so_far(answer())
    parts.append(_times_over_batches(subject, on, within.left / 2))
    so_far(answer())
    trains = subject.trains
    nothing = ("It has nothing to train.", [], True)
    parts.append(_task_times(subject, "training_step", on, within.left) if trains else nothing)
    return answer()


def _task_times(subject: Subject, task: str, on: Device, seconds: float) -> tuple[str, list[Evidence], bool]:
    """What a task takes and how it compares, in words; alone where so much time does not allow comparing.

    The last is whether that may be concluded.
    """
    name, run = task.replace("_", " "), getattr(subject, task)
    if CALLS * _second_call(run()) > seconds:
        measured = timing.measure(getattr(subject.to(on.torch_device), task)(), on=on, budget=timing.FAST)
        sentence = (
            f"{name.capitalize()}: {_time_in_words(measured)}; its share of --minutes was too short to compare it."
        )
        return sentence, [Evidence(f"Measured, {name}", text=str(measured))], False
    compared = crossover.measure_networks({subject.name: lambda: subject}, on=on, seconds=seconds, tasks=[task])
    sentences = []
    for each in compared.comparisons:
        measured = each[on.kind if on.kind != "cpu" else crossover.baseline()]
        speed_up = " ".join(sentence.removesuffix(".") for sentence in each.sentences)
        what = each.name.removeprefix(f"{subject.name}, ").capitalize()
        sentences.append(f"{what}: {_time_in_words(measured)}; {speed_up}.")
    is_settled = not any(each.withheld for each in compared.comparisons)
    if any(doubt.kind == "outputs differ" for each in compared.comparisons for doubt in each.withheld.values()):
        sentences += ["They differ from call to call: seed what is random in it, to compare."] * _is_random(subject)
    evidence = [Evidence(f"Measured, {name}", text="\n".join(map(str, compared.comparisons)))]
    return "\n".join(sentences), evidence, is_settled


def _times_over_batches(subject: Subject, on: Device, seconds: float) -> tuple[str, list[Evidence], bool]:
    """From which batch on a device is faster, of the batches for which there is time; whether there was any."""
    if not subject.scales:
        return "Its outputs do not grow with the inputs' first dimension, so other batches were not timed.", [], True
    cost = CALLS * _second_call(subject.inference()) / subject.batch
    sizes = [n for n in (1, 4, 16, 64) if cost * n <= seconds]
    if not sizes:
        return "There was no time for other batches: --minutes gives more.", [], False

    def work(rows: int, where: torch.device) -> Callable[[], object]:
        return subject.with_batch(rows).to(where).inference()

    curve = crossover.measure("inference", work, sizes, on=on, seconds=seconds)
    lines = curve.times.values()
    rows = [(n, *(units.seconds(line[n].median) for line in lines)) for n in sizes if all(n in line for line in lines)]
    table = Table(["batch", *curve.times], rows)
    return f"Over batches (n): {curve}", [Evidence("Over batches", table)], not curve.doubt


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
    whole = sum(event.duration for event in recorded.events)
    rows = _longest(recorded.events, whole)
    first = f"{rows[0][0]} takes {rows[0][-1]} of it, in {rows[0][2]}" if rows else ""
    sentences = [f"Of {units.seconds(whole)} in operators ({what}, traced), {first}."]
    if not rows:
        sentences = [f"It calls no operator ({what}, traced)."]
    headings = ["operator", "kind", "called by", "calls", "ms", "share"]
    evidence = [Evidence(f"The longest of {what}", Table(headings, rows))]
    so_far(Answer(QUESTIONS[3], "good", sentences[0] + _caveat(on), on.label, tuple(evidence)))
    apple, are_copies_known = _apple_gpu() if on.kind == "cpu" else None, True
    if apple is not None:
        try:
            recorded, _ = _recorded(subject.without_float64(), apple)
        except Exception:  # noqa: BLE001 - a model may raise anything; the CPU's times stand all the same
            sentences.append(f"{_it_raises(apple)}, so its copies are not known: see answer 1.")
            apple, are_copies_known = None, False
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
    outcome = "good" if are_copies_known and (packages or not moved) else "attention"
    caveat = _caveat(on, "an Apple GPU's times" if apple else "an Apple GPU")
    return Answer(QUESTIONS[3], outcome, "\n".join(sentences) + caveat, asked, tuple(evidence))


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
        module = below_root(event.module)
        if module != BACKWARD:
            module = _in_model(path + module) if event.module else "the step itself"
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
    """Rows of copies and fallbacks, those of one line together, the most frequent first."""
    groups: dict[tuple[str, str, str, str], list[trace.Event]] = collections.defaultdict(list)
    for event in events:
        line = "" if event.line.startswith("<") else event.line  # of the process that asks
        name = ".item()" if event.name == trace.ITEM else event.short  # as people write it
        groups[name, event.direction or event.kind, event.module, line].append(event)
    return [
        (*key, len(group), units.size(sum(event.bytes for event in group)),
         f"{1e3 * sum(event.duration for event in group):.3g}" if timed else "not known here")
        for key, group in sorted(groups.items(), key=lambda each: -len(each[1]))
    ]  # fmt: skip


def _moves_in_words(recorded: trace.Trace, rows: Sequence[tuple]) -> str:
    copies, fallbacks = (len(recorded.having(kind)) for kind in ("copy", "fallback"))
    counted = f"{copies} hidden {'copy' if copies == 1 else 'copies'} and "
    counted += f"{fallbacks} fallback{'' if fallbacks == 1 else 's'}"
    first = "; ".join(
        f"{operator} ({way}) in {module}{line and f' at {line}'}" for operator, way, module, line, *_ in rows[:3]
    )
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"Between CPU and GPU it makes {counted}: {first}{more}."


def _packages(moved: Sequence[trace.Event], subject: Subject) -> list[str]:
    """The installed packages whose lines make these copies; none if one of them is made elsewhere, or is a fallback.

    The package that has the factory is the reader's own, installed or not.
    """
    names = {installed_package(event.line.rpartition(":")[0]) if event.kind == "copy" else "" for event in moved}
    return [] if names & {"", subject.package} else sorted(names)


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

    def with_peak(self, step: int) -> Needs:
        """With what a step of SGD was seen to take beyond the weights, such as gradients of activations.

        What is more than was counted is taken for the batch's.
        """
        activations = max(self.activations, step - self.gradients)
        more = (activations - self.activations) / self.batch if self.row else 0.0
        return dataclasses.replace(self, activations=activations, row=self.row + more)

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
    installed, free = _memory_of(on)
    machines = {f"this machine ({on.label})": installed}
    if target is not None:
        for macos in (15, 26):
            machines[f"a Mac with {target / 2**30:.3g} GiB and macOS {macos}"] = memory.metal_limit(target, macos)
    not_run = [("peak", "not measured", "it was not run yet")]
    so_far(_fit_of(counted, "counted", machines, free, on, not_run))
    peaks, step = _peaks(subject, on, counted, min(most, free, *machines.values()))
    seen = counted.with_peak(step)
    how = "counted" if seen == counted else "the peak of a step, without the gradients"
    return _fit_of(seen, how, machines, free, on, peaks)


def _fit_of(
    counted: Needs, how: str, machines: Mapping[str, int], free: int, on: Device, peaks: Sequence[tuple[str, str, str]]
) -> Answer:
    """Whether what is needed fits into each machine's bytes, this one's first; ``how`` activations were found."""
    sentences, rows = [], []
    for number, (machine, usable) in enumerate(machines.items()):
        fit = counted.training <= usable
        largest = _about(counted.largest(usable)) if counted.row else "not known"
        with_batch = f"; the largest batch (first dimension) that does is about {largest}" if counted.row else ""
        verb = "fits" if fit else "DOES NOT FIT"
        now = "" if number else f", of which {units.size(free)} are free now"
        sentences.append(f"It {verb} into the {units.size(usable)} for it on {machine}{now}{with_batch}.")
        if fit and now and counted.training > free:
            sentences.append("What other programs hold must become free first.")
        rows.append((machine, units.size(usable), now and units.size(free), "yes" if fit else "no", largest))
    batch = f"activations, batch of {counted.batch}" if counted.row else "activations"
    parts = [
        ("weights", counted.weights, "counted"), ("gradients", counted.gradients, "counted"),
        ("AdamW", counted.optimizer, "counted"), (batch, counted.activations, how),
        ("training in all", counted.training, "their sum"),
    ]  # fmt: skip
    table = [(name, units.size(size), source) for name, size, source in parts]
    given = f"at the batch of {counted.batch} that is given" if counted.row else "with the inputs that are given"
    head = f"Training with AdamW needs {units.size(counted.training)} {given}, inference {units.size(counted.weights)} "
    head += "of weights."
    fitting = counted.training <= min(machines.values())
    outcome = "bad" if not fitting else "good" if counted.training <= free else "attention"
    evidence = (
        Evidence("Memory", Table(["part", "size", "how"], [*table, *peaks])),
        Evidence("Machines", Table(["machine", "memory for it", "free now", "fits", "largest batch"], rows)),
    )
    return Answer(QUESTIONS[4], outcome, "\n".join([head, *sentences]), on.label, evidence)


def _about(count: int) -> str:
    """Its first three digits, so that ``_about(284_085)`` is "284,000"."""
    unit = 10 ** max(0, len(str(count)) - 3)
    return f"{count // unit * unit:,}"


def _memory_of(on: Device) -> tuple[int, int]:
    """Bytes that a device may use, and how many of them are free."""
    if on.kind == "cuda":
        free, installed = torch.cuda.mem_get_info()
        return installed, free
    machine = psutil.virtual_memory()  # an Apple GPU's, too
    usable = torch.mps.recommended_max_memory() if on.kind == "mps" else machine.total
    return usable, min(usable, machine.available)


def _peaks(subject: Subject, on: Device, counted: Needs, most: int) -> tuple[list[tuple[str, str, str]], int]:
    """Rows with the peaks of inference and of a step, beyond the weights that lie there; bytes of the step, or 0."""
    if 2 * counted.training > most:
        return [("peak", "not measured", "it may need more memory than there is for it")], 0
    there = subject.to(on.torch_device)
    tasks = {"inference": there.inference}
    if there.trains:
        tasks["a step of SGD"] = there.training_step
    rows, step = [], 0
    for name, make in tasks.items():
        if on.kind == "cpu":
            peak = _allocated_peak(make())
        else:
            make()()  # so that what a library takes once, as cuBLAS does 32 MiB, is not counted as the batch's
            run = make()
            with memory.peak(on=on) as measured:
                run()
            peak = measured.bytes
        rows.append((f"peak of {name}, beyond the weights", units.size(peak), "counted by PyTorch's allocator"))
        step = peak if name == "a step of SGD" else 0
    return rows, step


def _allocated_peak(run: Callable[[], object]) -> int:
    """The most bytes that PyTorch held on the CPU during a call, beyond those that it held before."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiled:
        result = run()
    del result
    events = profiled.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(accumulate((change for _, change in changes), initial=0))


# ---- 6: which number format -----------------------------------------------------------------------------------------


def formats(subject: Subject, seconds: float) -> Answer:
    """Error, memory and time of float32, and of bfloat16 and float16 under autocast and with everything cast."""
    on, within = _best_device(), Allowance(seconds)
    there = _cast(subject, torch.float32).to(on.torch_device)
    exact, reference = _exact(subject)
    plain = _fate(there, on, exact, there)
    ways = {"float32": (there, None)}
    for dtype in (torch.bfloat16, torch.float16):
        name = units.dtype_name(dtype)
        ways |= {f"{name}, autocast": (there, dtype), f"{name}, cast": (_cast(there, dtype), None)}
    fates = {name: _fate(each, on, exact, there, autocast, plain.beyond) for name, (each, autocast) in ways.items()}
    cost = max(sum(fate.seconds for fate in fates.values()), 1e-6)
    if why := _not_comparable(subject, exact):
        fates = {name: dataclasses.replace(fate, error=math.nan) for name, fate in fates.items()}
    sentences = _fates_in_words(fates, reference, why or "are empty or of another size than in float64")
    nans = sum(int(t.isnan().sum()) for t in exact)
    if nans and not why:
        sentences = f"{nans} of {sum(t.numel() for t in exact)} outputs are NaN in float64 as well.\n{sentences}"
    # where a cast is refused there is autocast as well
    careful = nans or any(fate.first or (fate.refused and not name.endswith(", cast")) for name, fate in fates.items())
    outcome = "attention" if careful else "good"

    def answer(times: Mapping[str, str], kept: Mapping[str, str]) -> Answer:
        rows = [
            (name, fate.words, times.get(name, "not timed"), kept.get(name, "not counted"))
            for name, fate in fates.items()
        ]
        headings = ["format", "error of the outputs", "inference", "kept for the backward pass"]
        table = Table(headings, rows, str(within) if within.left_out else "")
        return Answer(QUESTIONS[5], outcome, sentences + _caveat(on), on.label, (Evidence("Formats", table),))

    so_far(answer({}, {}))
    kept = _kept_in_formats(there, on) if within.count("counts of what is kept", each=cost, wanted=1) else {}
    so_far(answer({}, kept))
    return answer(_times(ways, fates, on, within), kept)


@dataclasses.dataclass(frozen=True)
class Fate:
    """What a format makes of the outputs."""

    error: float = 0.0
    """Largest difference from the exact outputs, over the root mean square; NaN if nothing is of the same size."""
    beyond: tuple[_OperatorCall, ...] = ()
    """The operators that make an infinite number or a NaN of finite ones, in order."""
    first: str = ""
    """The module that calls the first of them that makes none in float32, in words; empty if there is none."""
    at: str = ""
    """That operator, with the line that calls it."""
    shows: bool = True
    """Whether the outputs have an infinite number or a NaN."""
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
            return f"infinite or NaN, first in {self.first}, {self.at}"
        return "not compared" if math.isnan(self.error) else f"{self.error:.1e}"


def _not_comparable(subject: Subject, exact: Sequence[Tensor]) -> str:
    """What outputs are that no format's may be held against the exact ones; empty if they may."""
    if not exact:
        return "have no numbers with a fraction"
    if all(t.isnan().all() for t in exact):
        return "are all NaN in float64 as well"
    return "differ from call to call, since something in it is random" if _is_random(subject) else ""


def _is_random(subject: Subject) -> bool:
    """Whether inference gives other outputs when it is called again."""
    once, again = (_widened(subject.inference()()) for _ in range(2))
    return any(blame.relative_error(a, b) > RANDOM for a, b in zip(once, again, strict=False))


def _fates_in_words(fates: dict[str, Fate], reference: str, why: str) -> str:
    """What overflows, what is refused, how far the others are from the ``reference``; or ``why`` it is not told."""
    hidden = "; its outputs are finite and may be wrong all the same"
    sentences = [
        f"{name} OVERFLOWS, first in {fate.first}, {fate.at}{'' if fate.shows else hidden}."
        for name, fate in fates.items() if fate.first
    ]  # fmt: skip
    sentences += [f"{name} raises ({fate.refused})." for name, fate in fates.items() if fate.refused]
    sound = {name: fate.error for name, fate in fates.items() if not fate.first and not fate.refused}
    compared = {name: error for name, error in sound.items() if not math.isnan(error)}
    # where nothing is computed in it, autocast leaves float32's error
    small = [name for name, error in compared.items() if name != "float32" and error != compared.get("float32")]
    nearest = min(small, key=compared.__getitem__, default="")
    choice = f"of the small formats {nearest} is the nearest" if small else "stay with float32"
    errors = ", ".join(f"{error:.1e} in {name}" for name, error in compared.items())
    if compared:
        sentences.append(f"Outputs differ from {reference} by up to {errors} of the root mean square: {choice}.")
    if len(compared) < len(sound):
        others = ", ".join(name for name in sound if name not in compared)
        sentences.append(f"Outputs {why}, and were not compared, in {others}.")
    return "\n".join(sentences)


def _fate(
    subject: Subject,
    on: Device,
    exact: Sequence[Tensor],
    plain: Subject,
    autocast: torch.dtype | None = None,
    known: Sequence[_OperatorCall] = (),
) -> Fate:
    """Run inference, and look where the first number beyond the format's range comes up, but for those ``known``.

    ``plain`` is the subject in float32.
    """
    subject = dataclasses.replace(subject, whole=copied(subject.whole).eval())
    watched = _Infinities(_infinite_by_cast(subject, plain))
    began = time.perf_counter()
    try:
        with torch.no_grad(), _autocast(on, autocast), watched.modules, watching(watched.see):
            outputs = subject.outputs()
        outputs = _widened(outputs)
    except Exception as error:  # noqa: BLE001 - no kernel for this format, inputs of another: it is told
        return Fate(refused=str(explain(error)))
    first = next((call for call in watched.born if call not in known), None)
    overflow = {"first": _in_model(f"model.{first.module}"), "at": watched.born[first]} if first is not None else {}
    shows = _has_infinite(outputs)
    pairs = list(zip(exact, outputs, strict=False))
    alike = all(right.shape == got.shape for right, got in pairs)
    errors = [blame.relative_error(right, got) for right, got in pairs if right.numel()]
    error = max(errors) if errors and alike else math.nan
    return Fate(error, tuple(watched.born), **overflow, shows=shows, seconds=time.perf_counter() - began)


@dataclasses.dataclass(frozen=True)
class _OperatorCall:
    """The same in each format, however many conversions are between."""

    module: str
    operator: str
    number: int
    """Of this operator's calls in this module."""


class _Infinities:
    """Operators that make an infinite number or a NaN of finite ones; `see` is for `watching`."""

    def __init__(self, cast: set[int]) -> None:
        self.cast = cast
        self.modules = CallingModules()
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.born: dict[_OperatorCall, str] = {}
        """With the line that calls it, in words."""

    def see(self, operator: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator and look at its result."""
        result = operator(*args, **kwargs)
        name, module = operator.name(), below_root(self.modules.innermost())
        self.counts[module, name] += 1
        short = name.partition("::")[2].partition(".")[0]
        if operator.is_view or short.startswith(blame.UNWRITTEN) or not _has_infinite(result):
            return result
        written = [a.alias_info is not None and a.alias_info.is_write for a in operator._schema.arguments]
        given = [value for value, changed in zip(args, written, strict=False) if not changed]
        constants = [v for v in tree_leaves((args, kwargs)) if isinstance(v, float)]
        if all(map(math.isfinite, constants)) and not _has_infinite((given, kwargs), but=self.cast):
            line = calling_line(until=_fate.__name__)
            self.born[_OperatorCall(module, name, self.counts[module, name])] = short + (line and f" at {line}")
        return result


def _has_infinite(values: object, but: Container[int] = ()) -> bool:
    """Whether a tensor among values has an infinite number or a NaN, beside those whose memory is at ``but``."""
    tensors = [t for t in tree_leaves(values) if isinstance(t, Tensor) and t.is_floating_point()]
    tensors = [t for t in tensors if t.layout == torch.strided and not t.is_nested and t.itemsize > 1]  # no float8
    # a sum is quick, and finite only if all of them are
    infinite = (t for t in tensors if not t.sum().isfinite() and not t.isfinite().all())
    return any(t.untyped_storage().data_ptr() not in but for t in infinite)


def _infinite_by_cast(subject: Subject, plain: Subject) -> set[int]:
    """Where weights, buffers and inputs lie that are finite in float32 and not in the subject's format."""
    held = [
        [*each.model.parameters(), *each.model.buffers(), *tensors_in((each.inputs, each.named))]
        for each in (subject, plain)
    ]
    pairs = zip(*held, strict=True)
    return {t.untyped_storage().data_ptr() for t, wide in pairs if _has_infinite(t) and not _has_infinite(wide)}


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
    found = [t.detach().cpu() for t in tensors_in(outputs)]
    return [blame.widened(t) for t in found if t.is_floating_point() or t.is_complex()]


def _kept_in_formats(subject: Subject, on: Device) -> dict[str, str]:
    """What the forward pass keeps for the backward pass, under autocast."""

    def outputs(_model: nn.Module, dtype: torch.dtype) -> object:
        with _autocast(on, None if dtype == torch.float32 else dtype):
            return subject.outputs()

    try:
        sizes = precision.kept_in_formats(subject.whole, outputs)
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
