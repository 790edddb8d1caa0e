"""What the steps of a project share: its folder and devices, the doctor's answers, and the model as it is now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from metallab import device, doctor, paths, records
from metallab.device import PyTorchDevice
from metallab.doctor import questions
from metallab.doctor.answer import Answer
from metallab.doctor.questions import Question, R
from metallab.doctor.report import Report
from metallab.doctor.results import Asked
from metallab.outcomes import REACHED_THE_END, Verdict
from metallab.project import wording
from metallab.project.refusals import Refusal, Refused
from metallab.project.state import (
    STEPS,
    Basis,
    Examination,
    State,
    Step,
    Which,
    digest_of,
)
from metallab.pytorch.model import ModelUnderTest, load_model, unload_module
from metallab.timing import Comparison

EXAMINING_STEP: dict[Which, int] = {"script": 1, "moved": 2}
"""The step that examines each version of the model."""
TIMING_STEP = 6


class Workbench:
    """What steps ask.

    Parameters
    ----------
    folder
        Where ``steps.json``, results and the report are kept; an earlier state is continued.
    on
        The device that outputs and times are also taken on.
    minutes
        For all of the doctor's answers together.
    """

    def __init__(self, folder: Path | str, *, on: PyTorchDevice, minutes: float = 3.0) -> None:
        """Continue the state in the folder, if there is one; outputs are also taken on ``on`` unless it is the CPU."""
        self.folder = Path(folder)
        self.on = on
        self.minutes = minutes
        self.on_a_mac = on.kind == "mps" and not on.simulated

        cpu = device.cpu()
        self.devices = [cpu] if on.kind == "cpu" else [cpu, self.on]
        self.places = tuple(Asked(device=each.label) for each in self.devices)
        self.state = State.load(self.folder / "steps.json")
        self.comparisons: list[Comparison] = []
        """What step 6 has compared since this was made, one or none; a page draws it. It is not kept in a file."""

    # ---- the doctor ----------------------------------------------------------------------------------------------

    def examine(self, factory: Any, which: Which) -> Report:
        """Return the doctor's report of a version of the model, and print its headline if the doctor was asked now.

        A report is kept, and the doctor is asked again only if the factory, its file, the minutes, PyTorch or this
        library has changed.

        Parameters
        ----------
        factory
            What a step was given; ``package.module:factory`` if it is right.
        which
            Which version it makes, as whose report it is kept.

        Raises
        ------
        Refused
            If the factory is no text.
        NotAModel
            If it makes no model that runs on the CPU.
        KeyboardInterrupt
            After Ctrl-C; what was answered by then is not kept.
        OSError
            If the folder takes no files.
        """
        if not isinstance(factory, str):
            raise Refused.because(Refusal.NO_FACTORY)

        basis = Basis.now(factory, self.minutes)
        known = self.state.examined.get(which)
        if known is None or known.basis != basis:
            report = doctor.examine(
                factory, minutes=self.minutes, progress=_say_nothing, together=True
            )
            # it lacks answers, and would be taken for whole until a file changes
            if report.interrupted:
                raise KeyboardInterrupt
            page = report.save(self.folder / which)
            print(report.headline)
            print(wording.PHRASES["all answers"].format(page=paths.shorten(page)))
            known = self.state.examined[which] = Examination(report, basis)
        return known.report

    def examine_memory(self, installed: int) -> Answer[Any]:
        """Ask the doctor whether the moved model fits into a Mac with so many bytes of memory.

        The answer is not kept, since it is of one size of memory. Raises KeyError if step 2 is not done, and NotAModel
        if the file makes no model any more.
        """
        report = doctor.examine(
            self.state.examined["moved"].basis.factory,
            minutes=self.minutes,
            memory=installed,
            questions=[questions.FOOTPRINT],
            together=True,
            progress=_say_nothing,
        )
        return report[questions.FOOTPRINT]

    @contextlib.contextmanager
    def keeping_if_accepted(self, which: Which) -> Iterator[None]:
        """Keep a new examination only if the block does not raise.

        If it does, an earlier one is put back, or there is none again. After Ctrl-C the new one stays, since `examine`
        keeps only those that have all answers.
        """
        before = self.state.examined.get(which)
        try:
            yield
        except Exception:
            self.state.examined.pop(which, None)
            if before is not None:
                self.state.examined[which] = before
            raise

    def answer(self, question: Question[R], which: Which) -> Answer[R]:
        """Return the doctor's answer from the report that is kept.

        Parameters
        ----------
        question
            One of the doctor's.
        which
            The version of the model. The script's file may have changed, since a reader may edit it into the moved one.

        Raises
        ------
        Refused
            If the step that asks the doctor is not done, or PyTorch, this library or the moved model's file has changed
            since; the message names the step to repeat.
        """
        step = EXAMINING_STEP[which]
        known = self.state.examined.get(which)
        if known is None:
            raise Refused.because(Refusal.STEP_MISSING, step=step)

        now = Basis.now(known.basis.factory, known.basis.minutes)
        if (now.torch, now.library) != (known.basis.torch, known.basis.library):
            raise Refused.because(Refusal.LIBRARY_CHANGED, step=step)
        if which == "moved" and now.digest != known.basis.digest:
            raise Refused.because(Refusal.FILE_CHANGED, factory=now.factory, step=step)
        return known.report[question]

    # ---- the model, and what was found ---------------------------------------------------------------------------

    def load(self, which: Which) -> ModelUnderTest:
        """Return the model, from the file as it is now.

        Refused where `answer` is; NotAModel if the file makes no model any more.
        """
        self.answer(questions.SUPPORT, which)  # for its refusals alone
        factory = self.state.examined[which].basis.factory
        unload_module(factory)
        return load_model(factory)

    def verdicts(self) -> dict[str, Verdict]:
        """Return the verdict of each sentence about speed that step 6 has kept, computed again from its samples.

        They are none if the step is not done, was refused, or the model's file has changed since.

        Raises
        ------
        metallab.records.RecordError
            If the file with the samples is missing or damaged.
        """
        step = self.rows[TIMING_STEP - 1]
        if step.is_outdated or step.status not in REACHED_THE_END:
            return {}
        answers = [record.answer for record in records.load(self.folder / "results.json")]
        return {str(answer): answer.outcome for answer in answers if answer}

    def collect_shown_text(self) -> str:
        """Return all that was shown, from which a reader may copy numbers.

        What the last step shows is left out: it is the reader's own sentence.
        """
        shown = []
        for step in self.state.steps.values():
            if step.number != STEPS:
                shown += step.lines
        for report in self.reports:
            shown += [report.description, *(answer.sentence for answer in report.answers)]
        return "\n".join(shown)

    @property
    def reports(self) -> list[Report]:
        """The doctor's reports, of the script first."""
        return [examination.report for examination in self.state.examined.values()]

    @property
    def rows(self) -> list[Step]:
        """The steps in their order; what was done with an older version of the file is marked so."""
        rows = []
        for number in range(1, STEPS + 1):
            step = self.state.steps.get(number, Step(number))
            is_old = any(digest_of(factory) != digest for factory, digest in step.digests.items())
            # a refusal stays one, whatever has changed
            rows.append(replace(step, is_outdated=is_old and step.finding is not None))
        return rows


def _say_nothing(line: str) -> None:
    """Take a line of the doctor's progress; the step prints what was found."""
