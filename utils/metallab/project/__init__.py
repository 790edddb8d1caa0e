"""Page 90: what the tools report of a script of one's own, step by step, and a page of report.

A step is given what its reader wrote, asks the tools, and keeps what they report in ``steps.json``. Page 90 is the
example: ``check("90.1", "my_project:example", work)``, and at the end ``work.save()``.

=========== =======================================================================================
`steps`     what judges each step
`workbench` what steps share: the doctor's answers, the model as it is now, what was found
`state`     what is kept in ``steps.json``
`claims`    which sentence of a reader is supported
`refusals`  why a step refuses
`wording`   the sentences; no other module has one, and none reads one
=========== =======================================================================================
"""

from __future__ import annotations

import contextlib
import inspect
import platform
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from metallab import doctor, mode, needs, paths
from metallab.doctor.questions import CORRECTNESS, SPEED
from metallab.doctor.report import render
from metallab.project import wording
from metallab.project.refusals import Refusal, Refused
from metallab.project.state import Step, digest_of
from metallab.project.steps import JUDGES
from metallab.project.workbench import Workbench
from metallab.pytorch.dispatch import explain

__all__ = ["Project", "Refusal", "Refused", "Step"]

TEMPLATES = Path(__file__).parent
MOST_GIVEN = 300
"""Characters of what a step was given that are kept."""


class Project(Workbench):
    """The steps of one project, and its report; see `Workbench` for its parameters."""

    def step(self, number: int) -> Callable[[Any], bool]:
        """Return a function that judges what a step was given; see `metallab.exercises`.

        Parameters
        ----------
        number
            The step, from 1 to 9.

        Returns
        -------
        Callable
            It prints and keeps what was found, and returns True, as what judges an exercise does. It raises `Refused`
            with the reason, and keeps that, where the tools do not support what the step was given, or the reader's own
            code or a tool raises; OSError if ``steps.json`` cannot be written.

        Raises
        ------
        IndexError
            If there is no such step.
        """
        if not 1 <= number <= len(JUDGES):
            raise IndexError(f"there is no step {number}: steps are 1 to {len(JUDGES)}")
        judge = JUDGES[number - 1]

        def judge_step(given: Any) -> bool:
            """Judge what the reader gave, keep what was found or why it was refused, and print it; see `step`."""
            # a refusal that stays only if the reader interrupts the step
            interrupted = wording.PHRASES["interrupted"]
            step = Step(number, _describe_given(given)[:MOST_GIVEN], refusal=interrupted)
            self.state.steps[number] = step
            try:
                finding = judge(self, given)
                details = tuple(map(self._without_folder, finding.details))
                step.finding = replace(finding, details=details)
                step.refusal = None
            except Exception as error:
                refused = _as_refusal(error)
                step.refusal = self._without_folder(str(refused))
                raise refused from error
            finally:
                # of the script and of the moved model, as far as they are examined, since a step may compare both: with
                # other digests later, it is outdated
                factories = [each.basis.factory for each in self.state.examined.values()]
                step.digests = {factory: digest_of(factory) for factory in factories}
                self.state.save(self.folder / "steps.json")

            print("\n".join(step.lines))
            if step.finding.lacks_apple_gpu:
                _show_missing_apple_gpu(number)
            return True

        return judge_step

    # ---- the report ----------------------------------------------------------------------------------------------

    @property
    def unknown(self) -> list[str]:
        """What the report does not know, one point a line.

        That is each step that has not *passed*, what this machine or mode cannot tell, the doctor's answers about the
        moved model that no step covers, and what step 3 could not compare. Two answers of the doctor are left out,
        whether the model is right and fast, since steps 3 and 6 ask the same.
        """
        rows = self.rows
        lines = [_name_unknown_step(step) for step in rows if step.status != "passed"]
        if not self.on_a_mac:
            lines.append(wording.PHRASES["no Mac asked"])
        if mode.current() == "fast":
            lines.append(wording.PHRASES["fast mode"])

        moved = self.state.examined.get("moved")
        for answer in moved.report.answers if moved else ():
            is_in_a_step = answer.question.key in (CORRECTNESS.key, SPEED.key)
            if answer.status != "passed" and not is_in_a_step:
                lines.append(f"{answer.question} {wording.most_important(answer)}")

        third = rows[2].finding  # rows begin with step 1
        return [*lines, *(third.open_points if third else ())]

    def save(self) -> Path:
        """Write ``report.html`` and ``report.md`` into the folder; return the page. OSError if it takes no files."""
        page = self.folder / "report.html"
        paths.write_atomically(page.with_suffix(".md"), self._render_report("project.md.j2"))
        paths.write_atomically(page, self._render_report("project.html.j2"))
        return page

    def _render_report(self, template: str, page: bool = True) -> str:
        """Return the report of all steps as text or HTML.

        Parameters
        ----------
        template
            A file of this package.
        page
            Whether HTML is a page of its own, or a part of a notebook.
        """
        system = f"macOS {platform.mac_ver()[0]}" if self.on_a_mac else platform.system()
        versions = [
            f"{datetime.now(UTC):%Y-%m-%d}",
            f"PyTorch {torch.__version__}",
            f"Python {platform.python_version()}",
            system,
        ]

        return render(
            template,
            folder=TEMPLATES,
            work=self,
            cpu=self.devices[0].label,
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            versions=", ".join(versions),
            page=page,
        )

    def _repr_html_(self) -> str:
        return self._render_report("project.html.j2", page=False)

    def _without_folder(self, line: str) -> str:
        return line.replace(f"{self.folder}/", "")


def _show_missing_apple_gpu(number: int) -> None:
    """Show that a step did not ask an Apple GPU, and what to do: the page is incomplete then."""
    tool = needs.TOOLS["apple-gpu"]
    missing = tool.report_for(wording.PHRASES["without it"].format(step=number))
    if tool.is_here():  # so it is there, and cannot be used
        missing = replace(missing, fix=needs.SETUP)
    needs.show(missing)


def _as_refusal(error: Exception) -> Refused:
    """Return an error of a step as a refusal."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, doctor.NotAModel):
        return Refused(str(error))
    return Refused(wording.PHRASES["raised"].format(error=explain(error)))


def _name_unknown_step(step: Step) -> str:
    phrase = wording.PHRASES["unknown step"]
    return phrase.format(number=step.number, name=step.name, words=step.words)


def _describe_given(given: Any) -> str:
    """Return what a step was given: of a function its source, if there is one."""
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(given)
    return repr(getattr(given, "__name__", given))
