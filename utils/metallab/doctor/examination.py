"""Ask the questions about a model, one after the other, each in a process of its own.

This process imports neither torch nor the factory's module; the processes that answer do.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata
from typing import Any, Literal

import psutil

from metallab import isolated
from metallab.doctor import wording
from metallab.doctor.answer import Answer
from metallab.doctor.limits import OVER_MEMORY
from metallab.doctor.questions import Question, in_asking_order
from metallab.doctor.report import Report
from metallab.doctor.results import ModelSummary, NoAnswer, Why
from metallab.pytorch.errors import NotAModel

# with the garbage collected less often, importing PyTorch takes a sixth less time
CHILD_SOURCE = "import gc; gc.set_threshold(100_000)\nfrom metallab.doctor import worker\nresult = worker.{call}"
BUILD_SECONDS = 600.0
"""For building the simulated GPU once, which does not count."""
INSPECTION_SECONDS = 60.0
"""What inspecting the model may take at least, since imports take long on a busy machine."""
MEMORY_SHARE = 0.8
"""The share of the free memory that a process which answers may use, so that other programs keep some."""
MOST_PRINTED = 4000
"""Characters that are kept of what a process printed last."""


@dataclass(frozen=True)
class _Subject:
    """What is examined, and how much memory there is for it."""

    factory: str
    max_bytes: int
    machine_bytes: int | None


def examine(
    factory: str,
    *,
    minutes: float = 3.0,
    memory: int | None = None,
    process_memory: int | None = None,
    progress: Callable[[str], object] = print,
    together: bool = False,
    questions: Sequence[Question[Any]] | None = None,
) -> Report:
    """Ask the questions about the model that ``package.module:factory`` makes.

    Parameters
    ----------
    factory
        A function without arguments, as text.
    minutes
        For all together: each may take an equal part of the rest, and up to as much again to make the model. Building
        the simulated GPU, the first time, does not count. Where ``together`` has to begin again, it has this time anew.
    memory
        Bytes of a machine that the question of memory asks about beside this one; None for no other machine.
    process_memory
        Bytes that a process may need; by default four fifths of what is free.
    progress
        Called with a line before each question, and with how it ended; not while all are asked in one process.
    together
        Ask first in one process, without fallback to the CPU, which is sooner; all again, each in a process of its own,
        where that process ends otherwise than ``ok``, or not all answers come.
    questions
        Those to ask, in this order; by default all of `metallab.doctor.questions`.

    Returns
    -------
    Report
        After Ctrl-C, with the answers that there are.

    Raises
    ------
    NotAModel
        If the factory makes no model that runs on the CPU: trying it raises, crashes, takes too long, or needs too much
        memory.
    ValueError
        If ``minutes`` is not a finite number above 0, or there is no question.
    KeyboardInterrupt
        After Ctrl-C, if there is no answer yet.
    metallab.isolated.ChildFailed
        If no process can be started, for example because the folder for temporary files cannot be written.
    """
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes is {minutes:g}: give a number above 0, such as 3")
    if questions is None:
        questions = in_asking_order()
    if not questions:
        raise ValueError("there is no question to ask: give one of metallab.doctor.questions")

    max_bytes = process_memory or int(MEMORY_SHARE * psutil.virtual_memory().available)
    subject = _Subject(factory, max_bytes, memory)
    if together:
        model, by_key = _ask_together(subject, 60 * minutes, questions)
        if model is not None and len(by_key) == len(questions):
            return _make_report(factory, model, by_key.values())
    return _ask_apart(subject, 60 * minutes, questions, progress)


def _make_report(
    factory: str, model: ModelSummary, answers: Iterable[Answer[Any]], interrupted: bool = False
) -> Report:
    """Return a report of the answers, in the order of their numbers, which is not that of asking."""
    in_order = tuple(sorted(answers, key=lambda answer: answer.number))
    torch_version = metadata.version("torch")  # without importing it, which this process avoids
    date = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    return Report(factory, model, in_order, torch_version, interrupted, date)


# ---- each in a process of its own ------------------------------------------------------------------------------------


def _ask_apart(
    subject: _Subject,
    seconds: float,
    questions: Sequence[Question[Any]],
    progress: Callable[[str], object],
) -> Report:
    """Ask one question after the other, each in a process of its own.

    Parameters
    ----------
    subject
        What is examined.
    seconds
        For all questions together. The time in which a process imports PyTorch and makes the model does not count, as
        long as it takes no longer than the inspection did, and no longer than the question's own part.
    questions
        In the order of asking.
    progress
        Called with a line before each question, and with how it ended.

    Returns
    -------
    Report
        After Ctrl-C, with the answers that there are.

    Raises
    ------
    NotAModel
        If the factory makes no model that runs on the CPU, or trying it ends without a result.
    KeyboardInterrupt
        After Ctrl-C, if there is no answer yet.
    metallab.isolated.ChildFailed
        If no process can be started.
    """
    progress(wording.PHRASES["looking"].format(factory=subject.factory))
    began = time.monotonic()
    model, kind = _inspect_model(subject, max(seconds, INSPECTION_SECONDS))
    inspected_in = time.monotonic() - began
    # builds the simulated GPU, if there is no other
    has_apple_gpu = _run_in_process("import torch", BUILD_SECONDS, device="mps").ok

    left = seconds
    answers: list[Answer[Any]] = []
    with contextlib.suppress(KeyboardInterrupt):
        for question in questions:
            part = left / (len(questions) - len(answers))
            # for importing and making the model, as long as the inspection took; at most as much again as the part
            allowance_to_start = min(inspected_in, part)
            limit = max(1.0, part + allowance_to_start)  # nothing starts in less than a second
            progress(_announce(question, len(answers) + 1, len(questions), limit))

            began = time.monotonic()
            on_apple_gpu = has_apple_gpu and _wants_apple_gpu(question, kind)
            answers.append(_ask(question, subject, limit, on_apple_gpu))
            # one that was quicker than the allowance does not give the others more time
            left -= max(0.0, time.monotonic() - began - allowance_to_start)
            progress(wording.describe_end(answers[-1].status, answers[-1].seconds))

    # stopped before the first answer there is nothing to report
    if not answers:
        raise KeyboardInterrupt
    return _make_report(subject.factory, model, answers, interrupted=len(answers) < len(questions))


def _announce(question: Question[Any], position: int, total: int, seconds: float) -> str:
    """Return the line that says which question is asked, as which of how many, and for how many seconds at most.

    It has the number of the answer, which the headline names, because the order of asking is another one.
    """
    return wording.PHRASES["asking"].format(
        position=position, total=total, question=question, seconds=seconds
    )


def _wants_apple_gpu(question: Question[Any], kind: str) -> bool:
    """Return True if a question is asked of an Apple GPU where the best device is of a ``kind``."""
    return question.needs_apple_gpu or (question.uses_apple_gpu and kind != "cuda")


def _inspect_model(subject: _Subject, seconds: float) -> tuple[ModelSummary, str]:
    """Inspect the model in a process, for at most so many seconds.

    Return what it is, and the kind of the best device, such as ``cuda``. Raise NotAModel if it is no model that runs on
    the CPU, or the process ends without a result, since then no question could be answered either.
    """
    call = f"inspect_model({subject.factory!r}, {subject.max_bytes})"
    outcome = _run_in_process(CHILD_SOURCE.format(call=call), seconds, results=["result"])
    _raise_not_a_model(outcome)
    if not outcome.ok:
        why = wording.why(_explain_no_answer(outcome, subject))
        raise NotAModel(f"{subject.factory} could not be tried: {why}")
    return outcome["result"]


def _ask(
    question: Question[Any], subject: _Subject, seconds: float, on_apple_gpu: bool
) -> Answer[Any]:
    """Ask a question in a process of its own, for at most so many seconds.

    Return what the process answers; how it ended, as the reason why there is no answer, if it crashed, was stopped or
    used too much memory. ``on_apple_gpu`` gives it the Apple GPU, which may be simulated.
    """
    began = time.monotonic()
    # the process is told when it will be stopped, and plans for what its imports leave of the time
    call = (
        f"ask({question.key!r}, {subject.factory!r}, {began + seconds}, "
        f"{subject.max_bytes}, {subject.machine_bytes})"
    )
    outcome = _run_in_process(
        CHILD_SOURCE.format(call=call),
        seconds,
        results=["result"],
        device="mps" if on_apple_gpu else None,
        fallback=question.allows_fallback,
    )

    if outcome.ok:
        answer = outcome["result"]
    else:
        result = _explain_no_answer(outcome, subject)
        answer = Answer(question, "skipped", result, ended=outcome.ended)
    return replace(answer, seconds=round(time.monotonic() - began, 1))


def _explain_no_answer(outcome: isolated.Outcome, subject: _Subject) -> NoAnswer:
    """Return why a process has no result, with what it printed last.

    Nothing is printed of an exception: the model's are answers, so this one came from the doctor's own code, and the
    traceback would show lines that the reader has not written.
    """
    if outcome.ended == "raised":
        return NoAnswer(Why.ENDED, outcome.reason)

    printed = outcome.detail[-MOST_PRINTED:]
    if outcome.ended == "timeout":
        return NoAnswer(Why.TIMEOUT, outcome.reason, printed)
    if outcome.exit_code == OVER_MEMORY:
        return NoAnswer(Why.MEMORY, outcome.reason, printed, subject.max_bytes)
    return NoAnswer(Why.ENDED, outcome.reason, printed)


def _run_in_process(
    source: str, seconds: float, *, fallback: bool = False, **settings: Any
) -> isolated.Outcome:
    """Run Python text in a process for at most so many seconds, and return how it ended.

    The process finds the modules that this one finds. Operators that MPS lacks run on the CPU if ``fallback``. Other
    ``settings`` are those of `metallab.isolated.run`.
    """
    # an empty entry of sys.path is the working directory
    variables = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if fallback:
        variables["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"
    timeout = round(seconds, 1)  # which a message shows, if it runs out
    return isolated.run(source, environment=variables, timeout=timeout, **settings)


def _raise_not_a_model(outcome: isolated.Outcome) -> None:
    """Raise NotAModel, with the same message, if a process has raised it."""
    if NotAModel.__name__ in outcome.kinds:
        raise NotAModel(outcome.reason.removeprefix(f"{NotAModel.__name__}: "))


# ---- all in one process ----------------------------------------------------------------------------------------------


def _ask_together(
    subject: _Subject, seconds: float, questions: Sequence[Question[Any]]
) -> tuple[ModelSummary | None, dict[str, Answer[Any]]]:
    """Ask several questions in one process; in a second one, what the first left to the NVIDIA GPU.

    Parameters
    ----------
    subject
        What is examined.
    seconds
        For all questions of a process together; the second process has as many again, since it begins anew.
    questions
        In the order of asking.

    Returns
    -------
    model : ModelSummary or None
        None if no process ended ``ok``.
    answers : dict
        By the keys of questions, those that came; a process that crashes or takes too long gives none.

    Raises
    ------
    NotAModel
        If the factory makes no model that runs on the CPU.
    metallab.isolated.ChildFailed
        If no process can be started.
    """
    model = None
    answers: dict[str, Answer[Any]] = {}
    for device in _devices_to_ask(questions):
        unanswered = [question.key for question in questions if question.key not in answers]
        if not unanswered:
            break

        call = (
            f"ask_together({unanswered}, {subject.factory!r}, {seconds}, "
            f"{subject.max_bytes}, {subject.machine_bytes})"
        )
        # twice the time, as a question finishes what it has begun
        limit = 2 * seconds + INSPECTION_SECONDS
        outcome = isolated.run_again(
            CHILD_SOURCE.format(call=call), device=device, results=["result"], timeout=limit
        )
        _raise_not_a_model(outcome)
        if outcome.ok:
            model, more = outcome["result"]
            answers |= more
        elif "SimulationUnavailable" not in outcome.kinds:
            break  # it would end so without the simulated GPU as well
    return model, answers


def _devices_to_ask(questions: Sequence[Question[Any]]) -> tuple[Literal["mps"] | None, ...]:
    """Return the devices of the processes that are asked in turn: an Apple GPU, then this machine's best, as None.

    Beside an NVIDIA GPU the first is left out if no question needs an Apple GPU, which would be a simulated one there.
    """
    has_nvidia = shutil.which("nvidia-smi") is not None
    if has_nvidia and not any(question.needs_apple_gpu for question in questions):
        return (None,)
    return ("mps", None)
