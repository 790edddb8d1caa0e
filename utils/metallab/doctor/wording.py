"""The doctor's sentences: whatever shows a result takes them from here, and nothing reads them back.

The classes of `metallab.doctor.results` hold numbers and kinds; `describe` turns each into lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from metallab import units
from metallab.doctor.questions import QUESTIONS, SUPPORT
from metallab.doctor.results import (
    Asked,
    BatchTimes,
    CallTime,
    Caveat,
    CorrectnessResult,
    FirstInfinity,
    FootprintResult,
    FormatRun,
    FormatsResult,
    Layer,
    MachineMemory,
    ModelSummary,
    NoAnswer,
    NoBatches,
    NotTried,
    Obstacle,
    OtherOutput,
    ProfileResult,
    SpeedResult,
    SupportResult,
    Task,
    TaskSupport,
    TimedTask,
    Transfers,
    Trial,
    UnsupportedOperator,
    Way,
    Why,
    WrongOperator,
)
from metallab.outcomes import Status

if TYPE_CHECKING:
    from metallab.doctor.audit import Audit, DeviceCheck
    from metallab.doctor.report import Report

MOST_NAMES = 5
"""Weights without a gradient that are named; the rest is counted."""
MOST_PLACES = 3
"""Modules and lines of an operator that are named."""

PHRASES = {
    # of a machine
    "its facts": "This machine",
    "devices": "Devices: each multiplies two matrices, which is compared with NumPy's product",
    "device agrees": "{framework}, {device}: computes, and agrees",
    "device differs": "{framework}, {device}: computes and is WRONG by up to {detail}",
    "device refused": "{framework}, {device}: FAILED: {detail}",
    "any device": "any device",
    "absent": "not installed: {names}",
    "installed": "Installed",
    "packages missing": "pages need packages that are missing, {names}: make setup FORCE=1",
    "packages there": "every package that a page cannot do without is there",
    "tool missing": "{what}: {fix}",
    "tools there": "no compiler or other tool is missing",
    "versions": "{count} packages compared with the versions that were tested together: {told}",
    "versions same": "none differs",
    "version": "{package} is {here}, tested is {tested}",
    "versions fix": "make setup FORCE=1 restores them",
    # of any answer
    "see": "see answer {number}",
    "more time": "more minutes give more time",
    "no answer": "No answer: {why}.",
    "no Apple GPU": "there is no Apple GPU here, nor can a simulated one be used: run make setup, or ask on a Mac",
    "not asked": "Not asked: {why}.",
    "timeout": "it {how}; {more_time}",
    "memory": "it needs more than the {size} that it may have; --process-memory gives more",
    "whole float32": "Float32 is computed without TF32 here.",
    "other hardware": "This does not predict an Apple GPU.",
    "other times": "This does not predict an Apple GPU's times.",
    "tables": "the operators of PyTorch {version}",
    "tables and device": "{tables} and {device}",
    "copies": "{device}; copies and fallbacks: {copies}",
    "time": "{median} a call ({low} to {high})",
    # the report
    "summary": "{name}, {weights:,} weights, inputs {inputs}",
    "clean": "{model}: nothing speaks against it.",
    "headline": "{model}: {problem}; first, {advice}.",
    "others": "Then look at {numbers}.",
    "interrupted": "{model}, interrupted after {count} of {total} questions",
    "asking": "{position} of {total}: question {question.number}, {question} (at most {seconds:.0f} s)",
    "answered": "   {status}, {seconds:.0f} s",
    "asked of": "(asked of {asked})",
    "looking": "looking at {factory}",
    "passed": "nothing speaks against it",
    "incomplete": "it runs, and something is missing or could be better",
    "failed": "it fails on an Apple GPU, is wrong there, or does not fit",
    "skipped": "there is no answer, and the sentence says why",
    # does it run on MPS
    "inference": "Inference",
    "training": "Training",
    "prediction": "{task}: {summary}",
    "prediction with fallback": "{task}: {summary} PYTORCH_ENABLE_MPS_FALLBACK is set here, so it runs, with copies.",
    "no prediction": "{task}: nothing can be predicted ({error}).",
    "simulated GPU": "the simulated Apple GPU",
    "real GPU": "this Apple GPU",
    "surprise": ", which was not predicted",
    "it": "it",
    "its loss": "its loss",
    "ran": "On {where} it ran{surprise}.",
    "raised": "On {where} {who} raised{surprise}: {error}.",
    "obstacle: on the CPU": "raises: a tensor is on the CPU",
    "obstacle: on the GPU": "raises: a tensor is on the GPU that has to be on the CPU",
    "obstacle: makes": "raises: makes {kind}",
    "obstacle: second derivative": "raises: has no derivative",
    "own code": "in PyTorch's own code",
    # is it right
    "as given": "as given, in {mode} mode",
    "other mode": "in {mode} mode",
    "without gradients": "{way} under {function}",
    "repeated": "again with other numbers",
    "again": "{repeated:,} more calls with other numbers agree; a fault that comes and goes may not show.",
    "once": "Each call was compared once: a fault that comes and goes may not show.",
    "swapped": "with their last two dimensions swapped in memory",
    "channels last": "in channels last",
    "odd offset": "at an odd offset",
    "nothing compared": "There was no time to compare anything: {more_time}.",
    "wrong": "No, with the inputs {way}: {headline} {difference} Workaround: {advice}.",
    "wrong at times": "Not always, with the inputs {way}: {headline} {difference} What to do: {advice}.",
    "other output": "No: {headline} What to do: {advice}. The call `divergence.find(model, (x,), on=...)` of "
    "`metallab.pytorch` names the first layer that differs.",
    "output not compared": "What the model returns as a whole was not compared: {why}.",
    "agree": "Yes: {compared:,} of {calls:,} calls of operators were compared, and agree with the CPU in float64 "
    "({ways}), up to rounding ({largest:.1e} of the root mean square).",
    "agree so far": "Yes, as far as there was time: {compared:,} of {calls:,} calls of operators were compared, and "
    "agree with the CPU in float64 ({ways}), up to rounding ({largest:.1e} of the root mean square); {more_time}.",
    "raised early": "No answer: on the Apple GPU {who} raises {error}, on the CPU it does not. Before that "
    "{compared:,} of {calls:,} calls of operators agree with the CPU in float64",
    "raises later": "What follows: {who} raises {error}.",
    "not compared": "Not compared: {names}.",
    "nan": "{headline} What follows it was not compared.",
    "narrowed": "Float64 was replaced by float32: no Apple GPU has it.",
    "no gradient": "No gradient reaches {names}: detached, or not used.",
    "fallbacks": "Operators without an MPS kernel ran on the CPU: {see}.",
    "not tried": "Not tried: {ways}.",
    "no time": "no time",
    # is it fast
    "training step": "Training step",
    "not timed against": "{task}: {time}; there was no time to compare it: {more_time}.",
    "compared": "{task}, {question}: {time}; {speed_ups}.",
    "opaque": "Not compared, as it holds no tensor: {parts}.",
    "random": "Outputs differ from call to call: seed what is random, or turn it off, such as dropout.",
    "nothing to train": "It has nothing to train.",
    "one size": "Other batches were not timed: outputs do not follow the inputs' first dimension.",
    "no time for batches": "There was no time for other batches: {more_time}.",
    "over batches": "Over batches (n): {sentence}",
    # where does the time go
    "a step": "a training step",
    "a call": "inference",
    "no operator": "It calls no operator ({task}, traced).",
    "longest": "Of {seconds} in operators ({task}, traced once{flags}), {operator} takes {share:.0%} of it, "
    "in {module}.",
    "no layer": "no layer",
    "layer": "layer {places} ({kind})",
    "layers": "layers {places} ({kind})",
    "raises there": "It raises on {device}, so its copies are not known: {see}.",
    "transfers": "Between CPU and GPU: {copies}, fallbacks: {fallbacks}; the first is {first}.",
    "one copy": "{count} hidden copy",
    "copies of a step": "{count} hidden copies",
    "transfer": "{name} ({direction}) in {module}",
    "transfer at": "{name} ({direction}) in {module} at {line}",
    "in packages": "They are in the code of {packages}, not in yours.",
    "nothing copied": "Nothing is copied between CPU and GPU.",
    "unknown time": "not known here",
    # does it fit
    "needs": "Training on {what} with AdamW needs {needed}; the weights alone are {weights}.",
    "call needs": "It has nothing to train; a call with its inputs needs {needed}.",
    "a batch": "a batch of {batch}",
    "the inputs": "the inputs",
    "fits": "It fits into the {usable} for it on {machine}{free}{batch}.",
    "does not fit": "It DOES NOT FIT into the {usable} for it on {machine}{free}{batch}.",
    "this machine": "this machine ({label})",
    "a Mac": "a Mac with {installed} and macOS {macos}",
    "free": ", of which {free} are free now",
    "largest batch": "; the largest batch is about {batch:,}",
    "wait for memory": "Memory that other programs hold must become free first.",
    "no peak": "No peak was measured: that may need more memory than there is for it.",
    # which number format
    "nan as well": "{nans} of {outputs} outputs are NaN in {reference} as well.",
    "float64": "float64",
    "itself": "the model as it is, which does not run in float64,",
    "trouble": "{name} {trouble}.",
    "format raises": "raises: {error}",
    "overflows": "OVERFLOWS, first in {where}",
    "makes NaN": "MAKES NaN, first in {where}",
    "the model": "the model itself",
    "errors": "Outputs differ from {reference} by up to {errors} of the root mean square: {choice}.",
    "nearest": "of the small formats {name} is the nearest",
    "stay": "stay with float32",
    "random outputs": "Outputs differ from call to call, and were not compared, in {names}.",
    "no numbers": "Outputs are NaN, or no floating numbers, and were not compared, in {names}.",
    "error not compared": "not compared",
    "not timed": "not timed",
    "not counted": "not counted",
}


def see_support() -> str:
    """Return where more is said of what does not run."""
    return PHRASES["see"].format(number=SUPPORT.number)


@singledispatch
def describe(result: Any) -> list[str]:
    """Return a result in sentences, one point a line, the most important first."""
    raise TypeError(f"there are no words for {type(result).__name__}: register them")


# ---- of any answer -------------------------------------------------------------------------------------------------


@describe.register
def _describe_no_answer(result: NoAnswer) -> list[str]:
    if result.why is Why.NO_APPLE_GPU:
        return [PHRASES["not asked"].format(why=PHRASES["no Apple GPU"])]
    return [PHRASES["no answer"].format(why=why(result))]


def why(result: NoAnswer) -> str:
    """Return why there is no answer, as a part of a sentence."""
    if result.why is Why.TIMEOUT:
        return PHRASES["timeout"].format(how=result.detail, more_time=PHRASES["more time"])
    if result.why is Why.MEMORY and result.max_bytes is not None:
        return PHRASES["memory"].format(size=units.size(result.max_bytes))

    detail = result.detail.removesuffix(".")
    return f"{detail}; {see_support()}" if result.see_support else detail


def caveat(caveat: Caveat) -> str:
    """Return what limits an answer."""
    return PHRASES[caveat]


def describe_asked(asked: Asked) -> str:
    """Return what a question was asked of; empty if nothing was."""
    if asked.tables is not None:
        tables = PHRASES["tables"].format(version=asked.tables)
        if asked.device is None:
            return tables
        return PHRASES["tables and device"].format(tables=tables, device=asked.device)

    if asked.copies is not None:
        return PHRASES["copies"].format(device=asked.device, copies=asked.copies)
    return asked.device or ""


def time(time: CallTime) -> str:
    """Return a time with its quartiles and flags."""
    median, low, high = map(units.seconds, (time.median, time.low, time.high))
    text = PHRASES["time"].format(median=median, low=low, high=high)
    return f"{text} [{', '.join(time.flags)}]" if time.flags else text


def describe_end(status: Status, seconds: float) -> str:
    """Return the line that says how a question ended; its answer stands in the report, once."""
    return PHRASES["answered"].format(status=status, seconds=seconds)


def status(status: Status) -> str:
    """Return what a status means, for a legend."""
    return PHRASES[status]


# ---- the report ----------------------------------------------------------------------------------------------------


def model(model: ModelSummary) -> str:
    """Return a model's class with its size."""
    inputs = ", ".join(map(str, model.inputs))
    return PHRASES["summary"].format(name=model.name, weights=model.weights, inputs=inputs)


def headline(report: Report) -> str:
    """Return the worst finding and what to do first, in a sentence, then the numbers of other answers to look at.

    If all passed, it is that nothing speaks against the model. After an interruption the sentence says how many
    questions were answered.
    """
    model = report.model.name
    if report.interrupted:
        model = PHRASES["interrupted"].format(
            model=model, count=len(report.answers), total=len(QUESTIONS)
        )

    careful = [answer for answer in report.answers if answer.status != "passed"]
    if not careful:
        return PHRASES["clean"].format(model=model)

    worst = report.worst
    problem = worst.problem
    text = PHRASES["headline"].format(model=model, problem=problem.what, advice=problem.advice)
    others = ", ".join(str(answer.number) for answer in careful if answer is not worst)
    return f"{text} {PHRASES['others'].format(numbers=others)}" if others else text


# ---- does it run on MPS --------------------------------------------------------------------------------------------


@describe.register
def _describe_support(result: SupportResult) -> list[str]:
    """Return what the tables say of each task, then what happened in the trial.

    Why there was no trial is told only where nothing could be predicted either.
    """
    lines = [task_support(task) for task in result.tasks]
    if result.trial:
        lines.append(trial(result.trial))
    elif not result.predicted:
        lines.append(f"{PHRASES['no Apple GPU']}.")
    return lines


def task_support(support: TaskSupport) -> str:
    """Return what the tables say of a task."""
    task = PHRASES[support.task]
    if support.runs is None and not support.summary:
        return PHRASES["no prediction"].format(task=task, error=support.error)
    phrase = "prediction with fallback" if support.needs_fallback else "prediction"
    return PHRASES[phrase].format(task=task, summary=support.summary)


def trial(trial: Trial) -> str:
    """Return what happened on an Apple GPU."""
    where = PHRASES["simulated GPU" if trial.is_simulated else "real GPU"]
    surprise = PHRASES["surprise"] if trial.is_surprising else ""
    if trial.raised is not None:
        who = PHRASES["its loss" if trial.is_raised_by_loss else "it"]
        return PHRASES["raised"].format(where=where, who=who, surprise=surprise, error=trial.raised)
    return PHRASES["ran"].format(where=where, surprise=surprise)


def obstacle(operator: UnsupportedOperator) -> str:
    """Return what is in the way of an operator."""
    kind = operator.obstacle
    if kind is Obstacle.ON_CPU:
        return PHRASES["obstacle: on the CPU"]
    if kind is Obstacle.ON_GPU:
        return PHRASES["obstacle: on the GPU"]
    if kind is Obstacle.SECOND_DERIVATIVE:
        return PHRASES["obstacle: second derivative"]
    if kind in (Obstacle.FLOAT64, Obstacle.COMPLEX128, Obstacle.ARRAY):
        return PHRASES["obstacle: makes"].format(kind=kind)
    return kind


def places(operator: UnsupportedOperator) -> tuple[str, str]:
    """Return the modules and the lines that call an operator, as far as they are named."""
    modules = ", ".join(operator.modules[:MOST_PLACES])
    return modules, ", ".join(operator.lines[:MOST_PLACES]) or PHRASES["own code"]


# ---- is it right ---------------------------------------------------------------------------------------------------


@describe.register
def _describe_correctness(result: CorrectnessResult) -> list[str]:
    """Return what is wrong, what the model raised, or that all agree, then what limits the comparison.

    Nothing else is told where there was no time to compare a call. Beside a wrong operator, at which the comparison
    ended, what it left open is not told.
    """
    if result.raised is not None and result.wrong is None:
        return [exception_on_gpu(result), *left_uncompared(result), *limits_of_comparison(result)]
    if not result.compared and result.wrong is None:
        return [PHRASES["nothing compared"].format(more_time=PHRASES["more time"])]

    first = " ".join([agreement(result), *left_uncompared(result)])
    if result.wrong is not None:
        first = wrong_operator(result.runs[-1].way, result.wrong)
    elif result.other_output is not None:
        first = other_output(result.other_output)
    return [first, *limits_of_comparison(result)]


def wrong_operator(where: Way, wrong: WrongOperator) -> str:
    """Return which operator is wrong, how, and what to do."""
    phrase = PHRASES["wrong at times" if wrong.is_intermittent else "wrong"]
    return phrase.format(
        way=way(where), headline=wrong.headline, difference=wrong.difference, advice=wrong.advice
    )


def other_output(output: OtherOutput) -> str:
    """Return that the model returns something else, though each operator agrees, and what to do."""
    return PHRASES["other output"].format(headline=output.headline, advice=output.advice)


def name_raising(result: CorrectnessResult) -> str:
    """Return who raises: the model, or its loss."""
    return PHRASES["its loss" if result.is_raised_by_loss else "it"]


def exception_on_gpu(result: CorrectnessResult) -> str:
    """Return what the model raises on the Apple GPU, and how many calls before that agree with the CPU."""
    phrase = PHRASES["raised early"].format(
        who=name_raising(result),
        compared=result.compared,
        calls=result.calls,
        error=result.raised,
    )
    if not result.is_predicted:
        return f"{phrase}."
    return f"{phrase}; {see_support()}."


def agreement(result: CorrectnessResult) -> str:
    """Return how many calls agree with the CPU."""
    phrase = PHRASES["agree so far" if result.is_out_of_time else "agree"]
    return phrase.format(
        compared=result.compared,
        calls=result.calls,
        ways=", ".join(way(run.way) for run in result.runs if run.is_compared),
        largest=result.largest,
        more_time=PHRASES["more time"],
    )


def left_uncompared(result: CorrectnessResult) -> list[str]:
    """Return what the comparison leaves open, one point each."""
    lines = []
    if result.output_not_compared is not None:
        lines.append(PHRASES["output not compared"].format(why=result.output_not_compared))
    if result.wrong is None:
        phrase = PHRASES["again" if result.repeated else "once"]
        lines.append(phrase.format(repeated=result.repeated))
    if result.not_compared:
        lines.append(PHRASES["not compared"].format(names=", ".join(result.not_compared)))
    if result.nan is not None:
        lines.append(PHRASES["nan"].format(headline=result.nan))
    return lines


def limits_of_comparison(result: CorrectnessResult) -> list[str]:
    """Return what else is to be known of a comparison, one point each.

    It compares less than it seems to where the model raised behind the wrong operator, where it was not run as it is,
    but in float32 in place of float64 (``is_narrowed``), which no Apple GPU has, where no gradient reaches some
    weights, and where operators ran on the CPU, which are right by nature.
    """
    lines = []
    if result.wrong is not None and result.raised is not None:
        phrase = PHRASES["raises later"]
        lines.append(phrase.format(who=name_raising(result), error=result.raised))
    if result.is_narrowed:
        lines.append(PHRASES["narrowed"])
    if result.without_gradient:
        lines.append(without_gradient(result.without_gradient))
    if result.has_fallbacks:
        lines.append(PHRASES["fallbacks"].format(see=see_support()))
    return lines


def without_gradient(names: Sequence[str]) -> str:
    """Return that no gradient reaches some weights."""
    listed = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        listed += f" and {len(names) - MOST_NAMES} more"
    return PHRASES["no gradient"].format(names=listed)


def way(way: Way) -> str:
    """Return how a model was run."""
    phrase = PHRASES[way.layout].format(mode=way.mode)
    if way.gradients == "kept":
        return phrase
    return PHRASES["without gradients"].format(way=phrase, function=way.gradients)


def not_tried(left_out: Sequence[NotTried]) -> str:
    """Return the ways that were left out, and why; empty if none was."""
    if not left_out:
        return ""
    reasons = [PHRASES["no time"] if each.error is None else each.error for each in left_out]
    ways = [f"{way(each.way)} ({why})" for each, why in zip(left_out, reasons, strict=True)]
    return PHRASES["not tried"].format(ways=", ".join(ways))


# ---- is it fast ----------------------------------------------------------------------------------------------------


@describe.register
def _describe_speed(result: SpeedResult) -> list[str]:
    """Return the times of inference, over batches, and of a training step."""
    lines = [line for task in result.inference for line in describe_timed_task(task)]
    lines.append(over_batches(result))
    if result.training is None:
        lines.append(PHRASES["nothing to train"])
    else:
        lines += describe_timed_task(result.training)
    return lines


def describe_timed_task(timed: TimedTask) -> list[str]:
    """Return the time of a task with its speed-ups, one point a line; only the time if it was not compared.

    It is compared with other devices, by latency or by throughput (`timed.question`). The other lines say what of the
    outputs was not compared: parts that hold no tensor, and outputs that differ from call to call.
    """
    task = PHRASES["training step" if timed.task == "training" else timed.task]
    more_time = PHRASES["more time"]
    if timed.speed_ups is None:
        phrase = PHRASES["not timed against"]
        return [phrase.format(task=task, time=time(timed.time), more_time=more_time)]

    lines = [
        PHRASES["compared"].format(
            task=task,
            question=timed.question,
            time=time(timed.time),
            speed_ups="; ".join(each.sentence.removesuffix(".") for each in timed.speed_ups),
        )
    ]
    if timed.opaque:
        lines.append(PHRASES["opaque"].format(parts=", ".join(timed.opaque)))
    if timed.is_random:
        lines.append(PHRASES["random"])
    return lines


def over_batches(result: SpeedResult) -> str:
    """Return from which batch on a device is faster, or why that is not known."""
    if isinstance(result.batches, BatchTimes):
        return PHRASES["over batches"].format(sentence=result.batches.sentence)
    if result.batches is NoBatches.ONE_SIZE:
        return PHRASES["one size"]
    return PHRASES["no time for batches"].format(more_time=PHRASES["more time"])


# ---- where does the time go ----------------------------------------------------------------------------------------


@describe.register
def _describe_profile(result: ProfileResult) -> list[str]:
    """Return which operator takes the longest, then what is copied, or why that is not known."""
    lines = [longest(result)]
    if result.raised_on is not None:
        phrase = PHRASES["raises there"]
        lines.append(phrase.format(device=result.raised_on, see=see_support()))
    if result.transfers is not None:
        lines.append(copies(result))
    if result.packages:
        lines.append(PHRASES["in packages"].format(packages=", ".join(result.packages)))
    return lines


def name_traced_task(task: Task) -> str:
    """Return what was traced."""
    return PHRASES["a step" if task == "training" else "a call"]


def longest(result: ProfileResult) -> str:
    """Return which operator takes the most time, and which share of it; that there is none if nothing was called."""
    task = name_traced_task(result.task)
    if not result.operators:
        return PHRASES["no operator"].format(task=task)

    operator = result.operators[0]  # they are sorted, the longest first
    return PHRASES["longest"].format(
        seconds=units.seconds(result.seconds),
        task=task,
        flags="".join(f", {flag}" for flag in result.flags),
        operator=operator.name,
        share=operator.share,
        module=name_layers(operator.layers) or operator.modules or PHRASES["no layer"],
    )


def name_layers(layers: Sequence[Layer]) -> str:
    """Return layers with their kinds, such as ``layers 4 and 0 (Conv2d)``; empty of none."""
    places: dict[str, list[str]] = {}
    for layer in layers:
        places.setdefault(layer.kind, []).append(layer.place)

    told = []
    for kind, same in places.items():
        phrase = PHRASES["layer" if len(same) == 1 else "layers"]
        *first, last = same
        listed = f"{', '.join(first)} and {last}" if first else last
        told.append(phrase.format(places=listed, kind=kind))
    return ", ".join(told)


def transfers(result: ProfileResult) -> str:
    """Return how much is copied between CPU and GPU, and where first; empty if nothing is."""
    if not result.transfers:
        return ""
    phrase = PHRASES["one copy" if result.copies == 1 else "copies of a step"]
    return PHRASES["transfers"].format(
        copies=phrase.format(count=result.copies),
        fallbacks=result.fallbacks,
        first=transfer(result.transfers[0]),
    )


def copies(result: ProfileResult) -> str:
    """Return what is copied between CPU and GPU, also that nothing is; empty where no GPU could say."""
    return PHRASES["nothing copied"] if result.transfers == () else transfers(result)


def transfer(transfer: Transfers) -> str:
    """Return an operator with its direction, module and line."""
    phrase = PHRASES["transfer at" if transfer.line else "transfer"]
    return phrase.format(
        name=transfer.name,
        direction=transfer.direction,
        module=module(transfer),
        line=transfer.line,
    )


def module(transfer: Transfers) -> str:
    """Return the module that copies."""
    return transfer.module or PHRASES["no layer"]


# ---- does it fit ---------------------------------------------------------------------------------------------------


@describe.register
def _describe_footprint(result: FootprintResult) -> list[str]:
    """Return what is needed, then for each machine whether it fits."""
    lines = [footprint(result)]
    lines += [machine_memory(result, machine) for machine in result.machines]
    if result.is_waiting_for_memory:
        lines.append(PHRASES["wait for memory"])
    return lines


def footprint(result: FootprintResult) -> str:
    """Return what training needs, or a call where there is nothing to train."""
    needed = units.size(result.needed)
    if not result.can_train:
        return PHRASES["call needs"].format(needed=needed)

    what = PHRASES["a batch"].format(batch=result.batch) if result.batch else PHRASES["the inputs"]
    return PHRASES["needs"].format(what=what, needed=needed, weights=units.size(result.weights))


def machine_memory(result: FootprintResult, machine: MachineMemory) -> str:
    """Return whether the model fits into a machine, and with which batch at most.

    What is free is known of this machine only, and the largest batch only of a model that takes another batch.
    """
    phrase = PHRASES["fits" if result.fits(machine) else "does not fit"]
    free = ""
    if machine.free is not None:
        free = PHRASES["free"].format(free=units.size(machine.free))
    batch = ""
    if machine.largest_batch is not None:
        batch = PHRASES["largest batch"].format(batch=machine.largest_batch)

    return phrase.format(
        usable=units.size(machine.usable), machine=machine_name(machine), free=free, batch=batch
    )


def machine_name(machine: MachineMemory) -> str:
    """Return which machine it is."""
    if machine.installed is None:
        return PHRASES["this machine"].format(label=machine.label)
    installed = f"{machine.installed / 2**30:.3g} GiB"
    return PHRASES["a Mac"].format(installed=installed, macos=machine.macos)


# ---- which number format -------------------------------------------------------------------------------------------


@describe.register
def _describe_formats(result: FormatsResult) -> list[str]:
    """Return which formats fail and how, then the errors of those that are sound, then those without an error.

    A format is sound if it ran without an infinity or NaN of its own. It has no error if outputs are random, or there
    is no finite number to compare. The line with the errors ends with advice: which small format is the nearest, or to
    stay with float32 where none is sound (`choice`).
    """
    reference = PHRASES[result.reference]
    lines = []
    if result.nans:  # NaN that the reference has too is the model's, and speaks against no format
        phrase = PHRASES["nan as well"]
        lines.append(phrase.format(nans=result.nans, outputs=result.outputs, reference=reference))
    for run in result.formats:
        if not run.is_sound:
            lines.append(PHRASES["trouble"].format(name=run.name, trouble=trouble(run)))

    sound = [run for run in result.formats if run.is_sound]
    if compared := [run for run in sound if run.is_compared]:
        errors = ", ".join(f"{error(run)} in {run.name}" for run in compared)
        phrase = PHRASES["errors"]
        lines.append(phrase.format(reference=reference, errors=errors, choice=choice(compared)))
    if others := [run.name for run in sound if not run.is_compared]:
        phrase = PHRASES["random outputs" if result.is_random else "no numbers"]
        lines.append(phrase.format(names=", ".join(others)))
    return lines


def trouble(run: FormatRun) -> str:
    """Return what speaks against a format; empty if nothing does."""
    if run.raised is not None:
        return PHRASES["format raises"].format(error=run.raised)
    if run.infinity is None:
        return ""
    phrase = PHRASES["overflows" if run.infinity.kind == "infinity" else "makes NaN"]
    return phrase.format(where=infinity_place(run.infinity))


def infinity_place(infinity: FirstInfinity) -> str:
    """Return the module, operator and line where an infinity or NaN comes up first."""
    place = f"{infinity.module or PHRASES['the model']}, {infinity.operator}"
    return f"{place} at {infinity.line}" if infinity.line else place


def error(run: FormatRun) -> str:
    """Return the error of a format's outputs, or why there is none."""
    if not run.is_sound:
        return trouble(run)
    if run.is_infinite:
        return "inf"
    return PHRASES["error not compared"] if run.error is None else f"{run.error:.1e}"


def show_kept_bytes(run: FormatRun) -> str:
    """Return the memory that a format keeps for the backward pass."""
    return PHRASES["not counted"] if run.kept_bytes is None else units.size(run.kept_bytes)


def inference(run: FormatRun) -> str:
    """Return the time of inference in a format."""
    return PHRASES["not timed"] if run.time is None else time(run.time)


def choice(compared: Sequence[FormatRun]) -> str:
    """Return the advice which format to take: the small one that is the nearest to the reference.

    Parameters
    ----------
    compared
        The sound formats with an error, float32 among them, which is no small one.
    """
    whole = [run.error for run in compared if run.how is None]
    # a format under autocast has float32's error where no operator computes in it: it was not tried then
    small = [run for run in compared if run.error not in whole]
    if not small:
        return PHRASES["stay"]
    nearest = min(small, key=_size_of_error)
    return PHRASES["nearest"].format(name=nearest.name)


def _size_of_error(run: FormatRun) -> float:
    return float("inf") if run.error is None else run.error


# ---- the machine -------------------------------------------------------------------------------------------------


def audit_lines(audit: Audit) -> list[str]:
    """Return what ``metallab doctor --machine`` prints: machine, devices, what is installed, and the verdict."""
    hardware = [f"{label}: {value}" for label, value in audit.machine.rows()]
    devices = list(map(device_check, audit.checks))
    if audit.absent:
        devices.append(PHRASES["absent"].format(names=", ".join(audit.absent)))

    sections = {
        "its facts": hardware,
        "devices": devices,
        "installed": _list_installation(audit),
    }
    lines: list[str] = []
    for heading, told in sections.items():
        lines += [PHRASES[heading], *(f"  {line}" for line in told), ""]
    return [*lines, str(audit.fitness)]


def device_check(check: DeviceCheck) -> str:
    """Return whether a device computes, and computes right."""
    return PHRASES[f"device {check.outcome}"].format(
        framework=check.framework,
        device=check.device or PHRASES["any device"],
        detail=check.detail,
    )


def _list_installation(audit: Audit) -> list[str]:
    """Return what is missing, and which packages have another version than the tested one."""
    if audit.packages:
        lines = [PHRASES["packages missing"].format(names=", ".join(audit.packages))]
    else:
        lines = [PHRASES["packages there"]]

    missing = [PHRASES["tool missing"].format(what=each.what, fix=each.fix) for each in audit.tools]
    lines += missing or [PHRASES["tools there"]]
    if not audit.compared:  # outside of a checkout no tested version is known
        return lines

    told = [
        PHRASES["version"].format(package=each.package, here=each.here, tested=each.tested)
        for each in audit.differences
    ]
    if told:
        told.append(PHRASES["versions fix"])
    versions = "; ".join(told) or PHRASES["versions same"]
    return [*lines, PHRASES["versions"].format(count=audit.compared, told=versions)]
