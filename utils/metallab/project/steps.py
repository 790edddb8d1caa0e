"""The steps of page 90: each judges what its reader gave, and returns what it found or raises `Refused`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from metallab import checks, records, timing, units
from metallab.device import PyTorchDevice
from metallab.doctor import questions
from metallab.doctor import wording as doctor_wording
from metallab.doctor.answer import Answer
from metallab.doctor.evidence import MOST_OPERATORS
from metallab.doctor.formats import is_random
from metallab.doctor.results import (
    Asked,
    CorrectnessResult,
    FootprintResult,
    FormatRun,
    FormatsResult,
    NoAnswer,
    OperatorTime,
    ProfileResult,
    SupportResult,
    Task,
    Transfers,
    Why,
)
from metallab.doctor.speed import make_run
from metallab.project import claims, wording
from metallab.project.refusals import Refusal, Refused
from metallab.project.state import Finding, Which
from metallab.project.workbench import Workbench
from metallab.pytorch import crossover, divergence
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.model import ModelUnderTest, as_model
from metallab.timing import Comparison, Reason

FEW_OUTPUTS = 10
"""Outputs below which an agreement says little."""
MOST_NAMES = 4
"""Operators that a refusal of step 5 names."""
TASKS: dict[str, Task] = {"inference": "inference", "training step": "training"}
"""What step 6 times, by the name that its reader gives."""
MEMORY_LIMITS = (1, 2048)
"""Gigabytes of a Mac."""
FEWEST_WORDS_OF_CHANGE = 2
FEWEST_WORDS_OF_SENTENCE = 4

# ---- 1 and 2: does it run --------------------------------------------------------------------------------------------


def examine_script(work: Workbench, factory: Any) -> Finding:
    """Judge step 1: say whether the script runs on MPS as it is, or what is in the way; neither fails the step.

    Raises
    ------
    Refused
        If the factory's name is no text.
    NotAModel
        If it makes no model that runs on the CPU.
    """
    answer = work.examine(factory, "script")[questions.SUPPORT]
    result = answer.result
    summary = wording.prediction(answer)
    if answer.status != "passed" and isinstance(result, SupportResult) and result.operators:
        summary = wording.stops(result)
    return Finding(summary, (answer.asked,), details=(wording.most_important(answer),))


def examine_moved(work: Workbench, given: Any) -> Finding:
    """Judge step 2: the moved model runs on MPS, and its reader says what was changed.

    ``given`` is the name of its factory, and a sentence about the change.

    Raises
    ------
    Refused
        If it is something else, the sentence is about speed, which step 6 finds, step 1 is not done, or the model does
        not run on MPS. Then an earlier examination of a moved model stays.
    NotAModel
        If the factory makes no model that runs on the CPU.
    """
    factory, change = _split_pair(given, Refusal.NO_MOVE)
    if not isinstance(change, str) or len(change.split()) < FEWEST_WORDS_OF_CHANGE:
        raise Refused.because(Refusal.NO_CHANGE)
    if word := claims.find_speed_word(change):
        raise Refused.because(Refusal.CHANGE_CLAIMS_SPEED, word=word)

    work.answer(questions.SUPPORT, "script")  # so that step 1 is done
    with work.keeping_if_accepted("moved"):
        answer = work.examine(factory, "moved")[questions.SUPPORT]
        if answer.status in ("failed", "skipped"):
            raise Refused.because(Refusal.DOES_NOT_RUN, answer=wording.most_important(answer))

    summary = wording.PHRASES["changed"].format(
        change=change.rstrip("."), prediction=wording.prediction(answer)
    )
    what_was_tried = answer.lines[-1]  # on an Apple GPU, be it simulated, or why it was not
    result = answer.result
    return Finding(
        summary,
        (answer.asked,),
        details=(what_was_tried,),
        lacks_apple_gpu=isinstance(result, SupportResult) and result.trial is None,
    )


# ---- 3: does it compute the same -------------------------------------------------------------------------------------


def compare_outputs(work: Workbench, dtype: Any) -> Finding:
    """Judge step 3: script and moved model compute the same, and each operator is right.

    Outputs and gradients of both models are compared on the CPU, and the outputs on the device too; single operators
    are what the doctor has compared with float64.

    Parameters
    ----------
    work
        The project.
    dtype
        The name of the number format whose tolerance counts, such as ``float32``.

    Raises
    ------
    Refused
        If the dtype is none or too loose, outputs or gradients differ, outputs are random, an operator is wrong, or a
        step is to be done first.
    NotAModel
        If a file makes no model any more.
    ValueError
        If an output is in a format of 8 bits, for which no tolerance is known.
    Exception
        Whatever one of the models raises.
    """
    script, moved = work.load("script"), work.load("moved")
    outputs = tensors_in(moved.inference()())
    _check_dtype(dtype, outputs)
    if is_random(script) or is_random(moved):
        raise Refused.because(Refusal.RANDOM_OUTPUTS)

    gradients = _Gradients.of(script, moved)
    try:
        checks.assert_close(
            [*tensors_in(script.inference()()), gradients.of_script],
            [*outputs, gradients.of_moved],
            dtype,
        )
        if work.on.kind != "cpu":
            there = moved.to(work.on.torch_device)
            checks.assert_close(outputs, tensors_in(there.inference()()), dtype)
    except checks.Mismatch as difference:
        raise Refused.because(Refusal.OUTPUTS_DIFFER, difference=difference) from None

    answer = work.answer(questions.CORRECTNESS, "moved")
    if answer.status == "failed":
        raise Refused.because(Refusal.WRONG_OPERATOR, answer=answer.lines[0])
    return _describe_agreement(
        work, answer, dtype, sum(tensor.numel() for tensor in outputs), gradients
    )


@dataclass(frozen=True)
class _Gradients:
    """Gradients of both models by weights that both have."""

    of_script: dict[str, Tensor]
    of_moved: dict[str, Tensor]
    others: int
    """Weights of the script of which the moved model has none with the name and shape."""

    @classmethod
    def of(cls, script: ModelUnderTest, moved: ModelUnderTest) -> _Gradients:
        """Compute them in evaluation mode, without dropout, which would make them differ by chance.

        Weights that only the moved model has are not looked at. Raises what the models raise.
        """
        wanted, got = script.gradients(evaluating=True), moved.gradients(evaluating=True)
        both = [name for name in wanted if name in got and got[name].shape == wanted[name].shape]
        # the message about a difference has the name
        return cls(
            {f"gradient of {name}": wanted[name] for name in both},
            {f"gradient of {name}": got[name] for name in both},
            others=len(wanted) - len(both),
        )


def _check_dtype(dtype: Any, outputs: Sequence[Tensor]) -> None:
    """Raise Refused unless it is a number format that lets no more pass than that of the outputs.

    That is the format of the first floating output. ValueError if it has no tolerance, as formats of 8 bits.
    """
    if not isinstance(dtype, str) or dtype not in checks.TOLERANCES:
        raise Refused.because(Refusal.NO_DTYPE, known=", ".join(checks.TOLERANCES))

    floating = (units.dtype_name(each.dtype) for each in outputs if each.is_floating_point())
    # where none is floating, complex numbers are held to float32, and whole numbers have to be equal in any case
    own = next(floating, "float32")
    if checks.tolerance(dtype).relative > checks.tolerance(own).relative:
        raise Refused.because(Refusal.LOOSE_DTYPE, own=own, dtype=dtype)


def _describe_agreement(
    work: Workbench,
    answer: Answer[CorrectnessResult],
    dtype: str,
    numbers: int,
    gradients: _Gradients,
) -> Finding:
    """Return as the finding of step 3 what agrees, and what was not compared.

    Parameters
    ----------
    work
        The project.
    answer
        The doctor's, of single operators; it may have none, for example without an Apple GPU.
    dtype
        The number format whose tolerance counts.
    numbers
        How many numbers the outputs have; if they are few, their agreement says little.
    gradients
        Those that were compared, and how many could not be.
    """
    result = answer.result if isinstance(answer.result, CorrectnessResult) else None
    has_calls = result is not None and result.compared > 0

    agree = [_numbers_agree(numbers, dtype)]
    if gradients.of_script:
        tensors = units.count(len(gradients.of_script), "tensor")
        agree.append(wording.PHRASES["gradients"].format(tensors=tensors))
    elif not gradients.others:  # which are named below
        agree.append(wording.PHRASES["no gradients"])
    if result is not None and has_calls:
        calls = units.count(result.compared, "call")
        agree.append(wording.PHRASES["calls"].format(calls=calls))

    not_compared = []
    if numbers < FEW_OUTPUTS:
        not_compared.append(wording.PHRASES["few outputs"])
    if gradients.others:
        tensors = units.count(gradients.others, "tensor")
        not_compared.append(wording.PHRASES["other gradients"].format(tensors=tensors))
    if result is not None and has_calls:
        not_compared += wording.left_by_the_doctor(result)
    else:
        not_compared.append(wording.PHRASES["no calls"].format(answer=answer.lines[0]))

    if not_compared:
        agree.append(wording.PHRASES["see below"])
    return Finding(
        " ".join(agree),
        work.places,
        answer.asked if has_calls else None,
        open_points=tuple(not_compared),
        lacks_apple_gpu=_lacks_apple_gpu(answer),
    )


def _lacks_apple_gpu(answer: Answer[Any]) -> bool:
    """Return True if a question has no answer because there was no Apple GPU."""
    return isinstance(answer.result, NoAnswer) and answer.result.why is Why.NO_APPLE_GPU


def _numbers_agree(numbers: int, dtype: str) -> str:
    phrase = wording.PHRASES["agrees" if numbers == 1 else "agree"]
    return phrase.format(numbers=units.count(numbers, "number"), tolerance=checks.tolerance(dtype))


# ---- 4: is it finite -------------------------------------------------------------------------------------------------


def check_finite(work: Workbench, worsen: Any) -> Finding:
    """Judge step 4: outputs and gradients are finite on each device, also for inputs that the reader fears.

    Parameters
    ----------
    work
        The project.
    worsen
        A function that is called with the inputs of the factory, and returns the feared ones. It is given copies, which
        it may change.

    Raises
    ------
    Refused
        If it is no function, returns no tensors or the same ones, something is not finite, or a step is to be done
        first; the message says where.
    Exception
        Whatever the function raises, or the model with what it returns.
    """
    moved = work.load("moved")
    if not callable(worsen):
        raise Refused.because(Refusal.NO_FUNCTION)

    # copies: a function that works in place would change the model's own inputs, which are compared with what it
    # returns, and tried as well
    given = moved.with_inputs(_copy_tensor)
    feared = worsen(*given.inputs, **given.named)
    own_tensors = tensors_in([moved.inputs, moved.named])
    feared_tensors = tensors_in(feared)
    if not feared_tensors:
        raise Refused.because(Refusal.NO_TENSORS)
    # of lists of different lengths `map` would leave out the rest
    is_as_many = len(own_tensors) == len(feared_tensors)
    if is_as_many and all(map(torch.equal, own_tensors, feared_tensors)):
        raise Refused.because(Refusal.SAME_INPUTS)

    with_feared = as_model((moved.model, feared, moved.loss), "your function")
    for whose, subject in (("own inputs", moved), ("feared inputs", with_feared)):
        for on in work.devices:
            _assert_finite(subject, on, wording.PHRASES[whose])

    gradients = moved.gradients()
    summary = wording.PHRASES["finite"]
    if gradients:
        tensors = units.count(len(gradients), "tensor")
        summary = wording.PHRASES["finite gradients"].format(tensors=tensors)
    return Finding(summary, work.places)


def _copy_tensor(tensor: Tensor) -> Tensor:
    """Return equal numbers in memory of their own, which want a gradient if the tensor does."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _assert_finite(subject: ModelUnderTest, on: PyTorchDevice, whose: str) -> None:
    """Raise Refused unless loss, outputs and gradients are finite on a device.

    The message has the operator that makes the first NaN, if one is found; else the weights whose gradients are not
    finite, or that it is the outputs. Raises what the model raises.

    Parameters
    ----------
    subject
        The model with the inputs to be tried, on the CPU.
    on
        The device.
    whose
        Words for these inputs, such as *yours*, for the message.
    """
    on_device = subject.to(on.torch_device)
    gradients = on_device.gradients()
    bad = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    values = [
        tensor
        for tensor in tensors_in((on_device.value(), on_device.inference()()))
        if tensor.is_floating_point()
    ]
    if not bad and all(tensor.isfinite().all() for tensor in values):
        return

    # a second run, which looks at each operator and takes longer; it moves the model and the inputs, not what a loss
    # holds, such as targets
    inputs = subject.named or subject.inputs
    report = divergence.find(subject.model, inputs, on_device.loss, on=on, layers=False)
    where = wording.PHRASES["in the outputs"]
    if bad:
        where = wording.PHRASES["in gradients"].format(names=", ".join(bad))
    if report.divergent_call is not None:
        where = report.headline
    raise Refused.because(Refusal.NOT_FINITE, whose=whose, device=on.label, where=where)


# ---- 5: what takes the time ------------------------------------------------------------------------------------------


def look_into(work: Workbench, name: Any) -> Finding:
    """Judge step 5: say how much of the time is the operator, copy or fallback that the reader looked into.

    It is looked for in the doctor's answers about the script and about the moved model; one of them is enough.

    Parameters
    ----------
    work
        The project.
    name
        The operator's, with or without namespace and overload: ``exp`` as well as ``aten::exp``.

    Raises
    ------
    Refused
        If it is no name, neither answer has it, or a step is to be done first.
    """
    wanted = wording.plain_name(name) if isinstance(name, str) else ""
    if not wanted:
        raise Refused.because(Refusal.NO_OPERATOR, number=questions.PROFILE.number)

    sentences: list[str] = []
    known_names: list[str] = []
    timed_on: Asked | None = None
    versions: tuple[Which, ...] = ("script", "moved")
    for which in versions:
        answer = work.answer(questions.PROFILE, which)
        entries = _list_entries(answer)  # the longest first
        known_names += [entry.name for entry in entries]
        chosen = [entry for entry in entries if wording.plain_name(entry.name) == wanted]
        if chosen:
            sentences.append(wording.describe_entries(which, chosen, entries[0]))
            timed_on = answer.asked

    moved = work.answer(questions.PROFILE, "moved")
    if not sentences:
        raise _refuse_operator(name, known_names, moved)
    # these times are another machine's: on a Mac another operator may take the longest
    if not work.on_a_mac:
        sentences.append(wording.PHRASES["other operator"])
    # ``operators`` says on which device they were timed: the moved model's, or the script's where only that answer has
    # the operator. Copies are told as well, as they may cost more than the operator that was looked into.
    return Finding(
        wording.PHRASES["looked into"].format(name=wanted, found=" ".join(sentences)),
        operators=timed_on,
        details=_describe_copies(moved),
    )


def _refuse_operator(name: str, names: Sequence[str], answer: Answer[ProfileResult]) -> Refused:
    """Return that an operator is not among those that take the time."""
    if names:
        known = ", ".join(dict.fromkeys(names[:MOST_NAMES]))
        return Refused.because(Refusal.UNKNOWN_OPERATOR, name=name, known=known)
    return Refused.because(
        Refusal.NO_OPERATORS_KNOWN, name=name, number=answer.number, answer=answer.lines[0]
    )


def _list_entries(answer: Answer[ProfileResult]) -> list[OperatorTime | Transfers]:
    """Return what the page of the doctor lists: the longest operators, then copies and fallbacks."""
    if not isinstance(answer.result, ProfileResult):
        return []
    return [*answer.result.operators[:MOST_OPERATORS], *(answer.result.transfers or ())]


def _describe_copies(answer: Answer[ProfileResult]) -> tuple[str, ...]:
    """Return what the moved model copies, in a line; nothing where that is not known."""
    result = answer.result
    if not isinstance(result, ProfileResult) or result.transfers is None:
        return ()
    copies = doctor_wording.copies(result)
    return (wording.PHRASES["moved copies"].format(copies=copies),)


# ---- 6: is it faster -------------------------------------------------------------------------------------------------


def compare_times(work: Workbench, name: Any) -> Finding:
    """Judge step 6: compare the times of the moved model with those of the script, and keep the samples in a file.

    It is no refusal if it is slower, or no speed-up may be given: then the finding is undecided.

    Parameters
    ----------
    work
        The project.
    name
        A key of `TASKS`: what is timed.

    Raises
    ------
    Refused
        If it is another name, there is nothing to train, the outputs differ, or a step is to be done first.
    OSError
        If the file cannot be written.
    Exception
        Whatever one of the models raises.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise Refused.because(Refusal.NO_TASK, known=" or ".join(TASKS))
    task = TASKS[name]
    script, moved = work.load("script"), work.load("moved")
    if task == "training" and not (script.can_train and moved.can_train):
        raise Refused.because(Refusal.NOTHING_TO_TRAIN)

    compared = _time_versions(work, name, script, moved)
    # kept before it is judged, so that the samples can be looked at after a refusal, too; that establishes no speed,
    # since `Workbench.verdicts` reads nothing of a step that was refused
    work.comparisons = [compared]
    records.save("results", compared, on=work.on, folder=work.folder)

    # ``refused`` has what the measuring itself found, such as outputs that differ; ``withheld``, below, has these and
    # every other lack of a speed-up, as on a busy machine
    for refused in compared.refused.values():
        if refused.reason is Reason.OUTPUTS_DIFFER:
            # a time of other numbers is no time of the same work; random outputs have an advice of their own
            kind = Refusal.TIMES_NOT_COMPARED
            if is_random(script, task) or is_random(moved, task):
                kind = Refusal.TIMES_OF_RANDOM_OUTPUTS
            raise Refused.because(kind, withheld=refused)

    sentences = "; ".join(compared.sentences)
    return Finding(
        wording.PHRASES["compared times"].format(task=name, sentences=sentences),
        work.places,
        details=tuple(map(str, compared.measurements.values())),
        is_undecided=bool(compared.withheld),
    )


class _Version(NamedTuple):
    """A version of the model on a device."""

    subject: ModelUnderTest
    on: PyTorchDevice


def _time_versions(
    work: Workbench, name: str, script: ModelUnderTest, moved: ModelUnderTest
) -> Comparison:
    """Time the script on the CPU, and the moved model on the CPU and, if there is another one, on the device.

    ``name`` is that of the task. So the comparison tells what the change brings, and what the device does.
    """
    cpu = work.devices[0]
    baseline = "script on the CPU"
    sides = {baseline: _Version(script, cpu), "moved on the CPU": _Version(moved, cpu)}
    if work.on.kind != "cpu":
        sides[f"moved on {work.on.kind.upper()}"] = _Version(moved, work.on)

    # without TF32, whose rounding would count as a difference between the versions
    with crossover.whole_float32():
        return timing.compare(
            {variant: _make_task(side, TASKS[name]) for variant, side in sides.items()},
            on={variant: side.on for variant, side in sides.items()},
            baseline=baseline,
            parity=checks.matches("float32"),
            name=name,
            budget=crossover.budget_here(),
        )


def _make_task(side: _Version, task: Task) -> Callable[[], list[Tensor]]:
    """Return a function that computes a task, and returns its tensors."""
    run = make_run(side.subject.to(side.on.torch_device), task)
    return lambda: tensors_in(run())


# ---- 7 and 8: which format, does it fit ------------------------------------------------------------------------------


def choose_format(work: Workbench, given: Any) -> Finding:
    """Judge step 7: the number format has an error that the reader accepts.

    ``given`` is the name of a format as in the doctor's answer, such as ``float16, autocast``, and the largest error,
    over the root mean square of the outputs, between 0 and 1.

    Raises
    ------
    Refused
        If it is something else, the answer has no such format, the format overflows or was not compared, its error is
        larger, or a step is to be done first.
    """
    answer = work.answer(questions.FORMATS, "moved")
    name, accepted = _split_pair(given, Refusal.NO_FORMAT, number=answer.number)
    result = answer.result
    if not isinstance(result, FormatsResult):
        raise Refused.because(
            Refusal.NO_FORMATS_KNOWN, number=answer.number, answer=answer.lines[0]
        )

    known = [run.name for run in result.formats]
    if name not in known:
        listed = "; ".join(map(repr, known))
        raise Refused.because(Refusal.UNKNOWN_FORMAT, number=answer.number, known=listed)
    if not isinstance(accepted, int | float) or not 0 < accepted < 1:
        raise Refused.because(Refusal.NO_ERROR)

    run = result[name]
    if not run.is_sound or run.error is None:  # there is no error that could be accepted
        raise Refused.because(Refusal.UNSOUND_FORMAT, name=name, trouble=doctor_wording.error(run))
    if _as_shown(run.error) > accepted:
        error = doctor_wording.error(run)
        raise Refused.because(Refusal.LARGE_ERROR, name=name, error=error, accepted=accepted)
    return _describe_choice(answer, result.reference, run, accepted)


def _describe_choice(
    answer: Answer[FormatsResult],
    reference: Literal["float64", "itself"],
    run: FormatRun,
    accepted: float,
) -> Finding:
    """Return as the finding of step 7 what the format's error is related to, and what the format costs."""
    exact = "in float64" if reference == "float64" else "as it is"
    summary = wording.PHRASES["accepted"].format(
        name=run.name,
        exact=wording.PHRASES[exact],
        error=doctor_wording.error(run),
        accepted=accepted,
    )
    return Finding(summary, (answer.asked,), details=(wording.costs(run),))


def _as_shown(error: float) -> float:
    """Round an error to two digits, as it is shown: a reader may accept what they read."""
    if not error:
        return 0.0
    return round(error, 1 - math.floor(math.log10(error)))


def check_memory(work: Workbench, gigabytes: Any) -> Finding:
    """Judge step 8: training the moved model fits into a Mac with so many gigabytes, with each version of macOS.

    Raises
    ------
    Refused
        If it is no number of gigabytes that a Mac may have, the doctor cannot count, it does not fit, or step 2 is to
        be done first.
    NotAModel
        If the file makes no model any more.
    """
    is_number = isinstance(gigabytes, int | float) and not isinstance(gigabytes, bool)
    least, most = MEMORY_LIMITS
    if not is_number or not least <= gigabytes <= most:
        raise Refused.because(Refusal.NO_MEMORY)

    work.answer(questions.FOOTPRINT, "moved")  # so that step 2 is done, and with this file
    answer = work.examine_memory(int(gigabytes * 2**30))
    result = answer.result
    if not isinstance(result, FootprintResult):
        raise Refused.because(Refusal.MEMORY_NOT_COUNTED, answer=answer.lines[0])

    macs = result.machines[1:]  # the first is this machine
    for mac in macs:
        if not result.fits(mac):
            line = doctor_wording.machine_memory(result, mac)
            raise Refused.because(Refusal.DOES_NOT_FIT, answer=line)
    return Finding(
        wording.fits(result, gigabytes),
        is_counted=True,  # no device was asked
        details=tuple(doctor_wording.machine_memory(result, mac) for mac in macs),
    )


# ---- 9: what was found -----------------------------------------------------------------------------------------------


def check_sentence(work: Workbench, text: Any) -> Finding:
    """Judge step 9: the reader's sentence claims nothing that the results do not support.

    Raises
    ------
    Refused
        If it is no sentence on one line of four words or more, has a number that was never shown, a word about speed
        without such a verdict, or a word about Macs though none was asked.
    metallab.records.RecordError
        If the file with the samples of step 6 is missing or damaged.
    """
    is_one_line = isinstance(text, str) and "\n" not in text.strip()
    if not is_one_line or len(text.split()) < FEWEST_WORDS_OF_SENTENCE:
        raise Refused.because(Refusal.NO_SENTENCE)
    if number := claims.find_unknown_number(text, work.collect_shown_text()):
        raise Refused.because(Refusal.UNKNOWN_NUMBER, number=number)

    verdicts = work.verdicts()
    if word := claims.find_unsupported_speed_word(text, verdicts):
        instead = next(iter(verdicts), wording.PHRASES["no time"])
        raise Refused.because(Refusal.SPEED_NOT_ESTABLISHED, word=word, instead=instead)
    if not work.on_a_mac and claims.is_about_a_mac(text):
        raise Refused.because(Refusal.NO_MAC)
    return Finding(text.strip())


# ---- all of them -----------------------------------------------------------------------------------------------------


JUDGES: tuple[Callable[[Workbench, Any], Finding], ...] = (
    examine_script,
    examine_moved,
    compare_outputs,
    check_finite,
    look_into,
    compare_times,
    choose_format,
    check_memory,
    check_sentence,
)
"""What judges each step, in their order."""


def _split_pair(given: Any, otherwise: Refusal, **values: Any) -> tuple[Any, Any]:
    """Return two values that a reader gave. Raise a refusal of the kind ``otherwise`` if it is something else.

    ``values`` are what the refusal's words name.
    """
    if not isinstance(given, list | tuple) or len(given) != 2 or None in given:
        raise Refused.because(otherwise, **values)
    return given[0], given[1]
