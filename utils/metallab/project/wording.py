"""The sentences of a project: what steps find, and why they refuse. Nothing reads them back.

The only text that is read in this package is the reader's own (`metallab.project.claims`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metallab import units
from metallab.doctor import wording as doctor_wording
from metallab.doctor.results import (
    Asked,
    CorrectnessResult,
    FootprintResult,
    FormatRun,
    OperatorTime,
    SupportResult,
    Transfers,
)

if TYPE_CHECKING:
    from metallab.doctor.answer import Answer
    from metallab.project.refusals import Refusal
    from metallab.project.state import Step

PHRASES = {
    # how far a step is
    "passed": "passed",
    "undecided": "incomplete: no speed-up is given",
    "outdated": "incomplete: done with an older version of the file",
    "failed": "failed: refused",
    "skipped": "skipped: not done",
    "interrupted": "Interrupted.",
    "raised": "It raised {error}",
    "begun anew": "{file} is of another version of this library, and is begun anew: repeat the steps (the old one is "
    "{kept}).",
    "all answers": "All answers: {page}",
    # the steps
    "step 1": "Does the script run on MPS?",
    "step 2": "What was changed?",
    "step 3": "Does it compute the same?",
    "step 4": "Is it finite for feared inputs?",
    "step 5": "What takes the time?",
    "step 6": "Is it faster?",
    "step 7": "Which number format?",
    "step 8": "Does it fit?",
    "step 9": "What was found?",
    "without it": "step {step}",
    # what they find
    "and": " and ",
    "tables": "PyTorch's tables",
    "not as it is": "Not as it is: {stops}.",
    "changed": "{change}. Does it run now? {prediction}",
    "agree": "{numbers} agree within {tolerance}.",
    "agrees": "{numbers} agrees within {tolerance}.",
    "gradients": "So do the gradients of {tensors} of weights, in evaluation mode.",
    "no gradients": "There are no gradients.",
    "calls": "{calls} of operators, one by one, agree with float64.",
    "see below": "Not all was compared: see below.",
    "few outputs": "Not compared: what the outputs are made of; return that, too.",
    "other gradients": "Not compared: gradients of {tensors} of weights, whose names or shapes are not in both.",
    "no calls": "Not compared: operators, one by one. {answer}",
    "skipped calls": "Not compared: {skipped:,} of {calls:,} calls of operators, for lack of time.",
    "places and operators": "{places}; operators: {asked}",
    "finite": "Outputs are finite for its own inputs and for the feared ones.",
    "finite gradients": "Outputs, and the gradients of {tensors} of weights, are finite for its own inputs and for the "
    "feared ones.",
    "operators of": "operators of {asked}",
    "looked into": "The author looked into {name}. {found}",
    "script": "Script: {entries}{most}.",
    "moved": "Moved: {entries}{most}.",
    "moved copies": "Moved: {copies}",
    "most of all": " (most of all)",
    "most": " (most: {name}, {amount})",
    "share": "{share:.0%} of the time, calls: {calls:,}",
    "share alone": "{share:.0%} of the time",
    "bytes": "{size} {direction}, calls: {calls:,}",
    "bytes alone": "{size} {direction}",
    "other operator": "A Mac may have another operator for the same call.",
    "compared times": "{task}: {sentences}",
    "accepted": "{name}: outputs differ from those of the moved model {exact} by {error} of their root mean square; "
    "{accepted:g} is accepted.",
    "in float64": "in float64",
    "as it is": "as it is",
    "costs": "Inference: {time}; kept for the backward pass: {kept}.",
    "fits": "Into a Mac with {gigabytes:g} GB, yes: {needs}",
    "counted": "counted",
    # what is not known
    "unknown step": "Step {number} ({name}): {words}.",
    "no Mac asked": "How fast it is on an Apple GPU, and whether it is right there: repeat the steps on a Mac.",
    "fast mode": "Fast mode: the doctor had little time, and no time is compared.",
    # why they refuse
    "refusal: no factory": "give the name of your factory as a text, file:function, such as 'my_project:example'",
    "refusal: step missing": "do step {step} first",
    "refusal: file changed": "the file of {factory} has changed since: repeat step {step}",
    "refusal: library changed": "PyTorch or this library has changed since: repeat step {step}",
    "refusal: no move": "name the factory of what you moved, and say in a sentence what you changed",
    "refusal: no change": "say in a sentence what you changed",
    "refusal: change claims speed": "{word!r} is for step 6 to find: say what you changed, not what for",
    "refusal: does not run": "it does not run on MPS yet: {answer}",
    "refusal: no dtype": "name the number format to compare in, as a text: {known}",
    "refusal: loose dtype": "outputs are in {own}: {dtype} would let too much pass",
    "refusal: random outputs": "outputs differ from call to call: seed what is random; turn F.dropout off by hand",
    "refusal: outputs differ": "moved and script differ: {difference}",
    "refusal: wrong operator": "{answer}",
    "refusal: no function": "give a function that is called with the inputs of your factory and returns worse ones",
    "refusal: no tensors": "these are no tensors: return a tuple of inputs that you fear, such as equal numbers",
    "refusal: same inputs": "these are the inputs of your factory: return a tuple of inputs that you fear, such as "
    "equal numbers",
    "refusal: not finite": "with {whose} there is NaN or infinity on {device}: {where}",
    "refusal: no operator": "name one operator, copy or fallback of answer {number}, such as 'aten::exp'",
    "refusal: unknown operator": "{name} is not among what takes the time; {known} are",
    "refusal: no operators known": "{name} is not among what takes the time; answer {number} knows none: {answer}",
    "refusal: no task": "name what to time: {known}",
    "refusal: nothing to train": "the loss has no gradient, so there is no training step: take inference",
    "refusal: times not compared": "no time is compared: {withheld}",
    "refusal: times of random outputs": "no time is compared: {withheld}; a training step is compared without dropout: "
    "turn it off in both factories",
    "refusal: no format": "name a format of answer {number}, and the largest error that you accept, such as 1e-3",
    "refusal: unknown format": "answer {number} has {known}",
    "refusal: no formats known": "answer {number} has no format: {answer}",
    "refusal: no error": "the error is relative to the outputs' root mean square: accept one between 0 and 1",
    "refusal: unsound format": "{name} is not sound: {trouble}",
    "refusal: large error": "{name} has an error of {error}, and you accept {accepted:g}",
    "refusal: no memory": "give the memory of a Mac in GB, such as 16",
    "refusal: memory not counted": "{answer}",
    "refusal: does not fit": "{answer}",
    "refusal: no sentence": "write one sentence, in which a colleague reads what you found",
    "refusal: unknown number": "{number} is in no result: copy a number of the report as printed, or give none",
    "refusal: speed not established": "{word!r} is not established: leave it out, or write {instead!r}",
    "refusal: no Mac": "no Mac has run it: write what PyTorch's tables or the simulated Apple GPU say of one",
    "own inputs": "its inputs",
    "feared inputs": "yours",
    "in the outputs": "in the outputs",
    "in gradients": "in {names}",
    "no time": "no time was compared",
}


def refusal(reason: Refusal, values: Mapping[str, Any]) -> str:
    """Return why a step refuses what it was given."""
    return PHRASES[f"refusal: {reason}"].format(**values)


def step_name(number: int) -> str:
    """Return what a step asks."""
    return PHRASES[f"step {number}"]


def step_status(step: Step) -> str:
    """Return the status of a step, and why it is that."""
    if step.status != "incomplete":
        return PHRASES[step.status]
    return PHRASES["outdated" if step.is_outdated else "undecided"]


def plain_name(name: str) -> str:
    """Return an operator's name without namespace and overload."""
    return name.strip().removeprefix("aten::").partition(".")[0] or name.strip(". ")


# ---- of the doctor's answers -----------------------------------------------------------------------------------------


def most_important(answer: Answer[Any]) -> str:
    """Return the first point of an answer; of support the last two.

    These are what the tables say of training, or of inference where there is nothing to train, and how the trial ended;
    without a trial, what they say of both.
    """
    if isinstance(answer.result, SupportResult):
        return " ".join(answer.lines[-2:])
    return answer.lines[0]


def prediction(answer: Answer[SupportResult]) -> str:
    """Return what PyTorch's tables say of training, or of inference where there is nothing to train.

    Where something is in the way, or there is no prediction, it is `most_important` of the answer.
    """
    result = answer.result
    if answer.status != "passed" or not isinstance(result, SupportResult):
        return most_important(answer)

    last = result.tasks[-1]
    return last.summary or doctor_wording.task_support(last)


def stops(result: SupportResult) -> str:
    """Return which operators are in the way."""
    named = {plain_name(each.name): doctor_wording.obstacle(each) for each in result.operators}
    listed = ", ".join(f"{name} ({obstacle})" for name, obstacle in named.items())
    return PHRASES["not as it is"].format(stops=listed)


def shorten_place(asked: Asked, cpu: str) -> str:
    """Return what was asked, short enough for a column of the report: without versions, and *CPU* for this one.

    Parameters
    ----------
    asked
        What the doctor asked a question of. ``tables``: PyTorch's tables of operators, then the device on which the
        model was tried, if there was one. ``copies``: a device, and another one on which copies and fallbacks were
        counted, because the first is a CPU, which copies nothing. Otherwise the device alone.
    cpu
        The label of this machine's CPU, which the report names elsewhere.
    """
    device = shorten_label(asked.device, cpu)
    if asked.tables is not None:
        tables = PHRASES["tables"]  # without PyTorch's version, which the report names once
        return tables if device is None else PHRASES["and"].join([tables, device])

    return doctor_wording.describe_asked(
        Asked(device=device, copies=shorten_label(asked.copies, cpu))
    )


def shorten_label(label: str | None, cpu: str) -> str | None:
    """Return a device's label without the CPU's name, which the report has above."""
    if label is None:
        return None
    host = cpu.partition(" CPU")[0]
    return label.replace(cpu, "CPU").replace(f" (on {host})", "")


# ---- what steps find -------------------------------------------------------------------------------------------------


def left_by_the_doctor(result: CorrectnessResult) -> list[str]:
    """Return what the doctor's comparison of operators leaves open, one point each.

    Calls of operators that cannot be compared, such as those that draw random numbers, are not among those for which
    there was no time: the doctor's own words name these operators.
    """
    lines = []
    skipped = sum(run.skipped for run in result.runs)
    if skipped:
        lines.append(PHRASES["skipped calls"].format(skipped=skipped, calls=result.calls))
    lines += doctor_wording.left_uncompared(result)
    return lines + doctor_wording.limits_of_comparison(result)


def amount(entry: OperatorTime | Transfers, with_calls: bool = True) -> str:
    """Return how much of the time an operator is, or how many bytes a transfer has."""
    if isinstance(entry, OperatorTime):
        phrase = PHRASES["share" if with_calls else "share alone"]
        return phrase.format(share=entry.share, calls=entry.calls)

    phrase = PHRASES["bytes" if with_calls else "bytes alone"]
    return phrase.format(size=units.size(entry.bytes), direction=entry.direction, calls=entry.calls)


def describe_entries(
    which: str,
    entries: Sequence[OperatorTime | Transfers],
    longest: OperatorTime | Transfers,
) -> str:
    """Return how much of the time the operator is that a reader looked into, and what takes the most.

    Parameters
    ----------
    which
        The version of the model, ``script`` or ``moved``.
    entries
        The entries with the operator's name, one at least; several if it is also copied or falls back.
    longest
        The first of all entries, which takes the most; it is named unless it is the first of ``entries``.
    """
    most = PHRASES["most of all"]
    if entries[0] != longest:
        name = plain_name(longest.name)
        most = PHRASES["most"].format(name=name, amount=amount(longest, with_calls=False))
    return PHRASES[which].format(entries="; ".join(map(amount, entries)), most=most)


def costs(run: FormatRun) -> str:
    """Return the time and memory of a format."""
    time, kept = doctor_wording.inference(run), doctor_wording.show_kept_bytes(run)
    return PHRASES["costs"].format(time=time, kept=kept)


def fits(result: FootprintResult, gigabytes: float) -> str:
    """Return that a model fits into a Mac, and what it needs."""
    needs = doctor_wording.footprint(result)
    return PHRASES["fits"].format(gigabytes=gigabytes, needs=needs[:1].lower() + needs[1:])
