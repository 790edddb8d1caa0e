"""``metallab doctor package.module:factory``: the questions are asked one after the other, and become a page.

This process imports neither torch nor the factory's module: both are left to the processes that answer.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from metallab import isolated, paths
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence

CHILD = "from metallab.pytorch.doctor import questions\nresult = questions.{call}"
SHARES = (0.15, 0.25, 0.2, 0.1, 0.1, 0.2)
"""Of the time for all, what each question may take; what one leaves is for the next ones."""
LEAST_SECONDS = 15.0
"""That are kept for each question: starting a process and importing PyTorch takes some of it."""
BUILD_SECONDS = 600.0
"""For the simulated GPU, which is built once and is not counted."""
APPLE_GPU = (1, 2)
"""The questions that are asked of an Apple GPU, be it simulated; `COPIES` asks it where there is no real GPU."""
COPIES = 4
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(MB|GB|TB)", re.IGNORECASE)
UNITS = {"MB": 2**20, "GB": 2**30, "TB": 2**40}
COLOURS = {"good": "#009e73", "attention": "#e69f00", "bad": "#d55e00", "unanswered": "#666666"}

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


class Refused(ValueError):
    """What was given is not a model that runs; the message says what to give."""


@dataclass(frozen=True)
class Report:
    """Six answers about a model, or fewer where it was interrupted."""

    factory: str
    model: str
    answers: tuple[Answer, ...]
    torch: str
    """PyTorch's version."""
    interrupted: bool = False
    """Whether somebody stopped it: then only the first of the six are there."""

    @property
    def outcome(self) -> str:
        """The worst of the answers."""
        outcomes = {answer.outcome for answer in self.answers}
        return next(name for name in ("bad", "unanswered", "attention", "good") if name in outcomes)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "schema": "metallab doctor 1",
            "factory": self.factory,
            "model": self.model,
            "torch": self.torch,
            "outcome": self.outcome,
            "interrupted": self.interrupted,
            "answers": [answer.to_json() for answer in self.answers],
        }

    def save(self, folder: Path | str) -> Path:
        """Write ``doctor.html`` and ``doctor.json`` into a folder, which is made; returns the page."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "doctor.json").write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        page = folder / "doctor.html"
        page.write_text(PAGE.format(title=html.escape(self.factory), body=self._repr_html_()), encoding="utf-8")
        return page

    def __str__(self) -> str:
        head = f"{self.factory}: {self.model}, PyTorch {self.torch}"
        return "\n".join([head, *(f"{number}. {answer}" for number, answer in enumerate(self.answers, 1))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        about = html.escape(f"{self.model}, PyTorch {self.torch}")
        head = f"<p><b>{html.escape(self.factory)}</b>: {about}</p>"
        return head + "".join(_section(number, answer) for number, answer in enumerate(self.answers, 1))


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; font-size: 14px }} td, th {{ padding: .2em .8em .2em 0; text-align: left;
vertical-align: top }} h1 {{ overflow-wrap: break-word }}</style></head>
<body><h1>{title}</h1>{body}</body></html>
"""


def _section(number: int, answer: Answer) -> str:
    escaped = html.escape
    style = f"border-left:.4em solid {COLOURS[answer.outcome]};padding:.2em 1em;margin:1em 0;overflow-wrap:break-word"
    asked = f"<p><small>Asked of {escaped(answer.on)}; {answer.seconds:.0f} s.</small></p>" if answer.on else ""
    details = "".join(
        f"<details><summary>{escaped(each.title)}</summary>{_shown(each)}</details>" for each in answer.evidence
    )
    head = f"<h3>{number}. {escaped(answer.question)}</h3><p>{escaped(answer.sentence)}</p>"
    return f'<section style="{style}">{head}{asked}{details}</section>'


def _shown(evidence: Evidence) -> str:
    if evidence.table is None:
        return f'<pre style="white-space:pre-wrap">{html.escape(evidence.text)}</pre>'
    lines = [("th", evidence.table.headings), *(("td", row) for row in evidence.table.rows)]
    rows = "".join(f"<tr>{''.join(f'<{tag}>{html.escape(v)}</{tag}>' for v in row)}</tr>" for tag, row in lines)
    return f'<div style="overflow-x:auto"><table>{rows}</table></div><p>{html.escape(evidence.table.note)}</p>'


def examine(
    factory: str,
    *,
    minutes: float = 3.0,
    memory: int | None = None,
    process_memory: int | None = None,
    progress: Callable[[str], object] = print,
) -> Report:
    """Ask the six questions of what ``package.module:factory`` makes.

    ``minutes`` are for all of them together. Each plans with its share, and is stopped when it would take more than
    half of the next ones' shares, of which each keeps `LEAST_SECONDS`. ``memory`` in bytes is that of a machine that
    question 5 asks about beside this one. A process that needs more than ``process_memory`` bytes, by default four
    fifths of what is free, is ended. ``progress`` is given a line as each answer comes. Where there is no simulated GPU
    yet, it is built first. Interrupted (Ctrl-C), it returns the answers that there are.
    `Refused` if the factory makes no model that runs on the CPU, ValueError if ``minutes`` is no time.
    """
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes is {minutes:g}: give a number above 0, such as 3")
    most = process_memory or int(0.8 * psutil.virtual_memory().available)
    progress(f"looking at {factory}")
    began = time.monotonic()
    model, kind = _look(factory, 60 * minutes, most)
    left = 60 * minutes - (time.monotonic() - began)
    isolated.run("import torch", device="mps", timeout=BUILD_SECONDS)  # what fails here the answers tell
    ends = time.monotonic() + left
    answers: list[Answer] = []
    try:
        for number, question in enumerate(QUESTIONS, 1):
            left = ends - time.monotonic()
            seconds, *later = (
                max(LEAST_SECONDS, left * share / sum(SHARES[number - 1 :])) for share in SHARES[number - 1 :]
            )
            limit = max(seconds, left - sum(max(LEAST_SECONDS, each / 2) for each in later))
            apple = number in APPLE_GPU or (number == COPIES and kind in ("cpu", "mps"))
            progress(f"{number} of {len(QUESTIONS)}: {question} (about {seconds:.0f} s)")
            answers.append(_answer(number, factory, (seconds, limit), most, memory, apple))
            progress(f"   {answers[-1].sentence}")
    except KeyboardInterrupt:
        if not answers:
            raise
        return Report(factory, model, tuple(answers), metadata.version("torch"), interrupted=True)
    return Report(factory, model, tuple(answers), metadata.version("torch"))


def _environment(number: int) -> dict[str, str]:
    """Of a child: where this process finds modules; from question 2 on operators without a kernel run on the CPU."""
    variables = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return variables | ({"PYTORCH_ENABLE_MPS_FALLBACK": "1"} if number > 1 else {})


def _look(factory: str, seconds: float, most: int) -> tuple[str, str]:
    source = CHILD.format(call=f"look({factory!r}, {most})")
    outcome = isolated.run(source, results=["result"], environment=_environment(0), timeout=seconds)
    if "NotAModel" in outcome.kinds:
        raise Refused(outcome.reason.removeprefix("NotAModel: "))
    if not outcome.ok:
        raise Refused(f"{factory} could not be tried: {_why(outcome)}")
    return outcome["result"]


def _answer(
    number: int, factory: str, seconds: tuple[float, float], most: int, target: int | None, apple: bool
) -> Answer:
    """``seconds`` are those to plan with and those after which it is stopped."""
    began = time.monotonic()
    # a fifth, and at least 4 s, is kept for starting and for what cannot be interrupted
    planned = min(0.8 * seconds[0], seconds[0] - 4)
    source = CHILD.format(call=f"ask({number}, {factory!r}, {planned}, {most}, {target})")
    settings = {"results": ["result"], "environment": _environment(number), "timeout": round(seconds[1], 1)}
    outcome = isolated.run(source, device="mps" if apple else None, **settings)
    if apple and "SimulationUnavailable" in outcome.kinds:
        outcome = isolated.run(source, **settings)
    passed = round(time.monotonic() - began, 1)
    if outcome.ok:
        return replace(outcome["result"], seconds=passed)
    evidence = (Evidence("What it printed last", text=outcome.detail[-4000:]),) if outcome.detail else ()
    sentence = f"No answer: {_why(outcome)}."
    return Answer(QUESTIONS[number - 1], "unanswered", sentence, evidence=evidence, seconds=passed)


def _why(outcome: isolated.Outcome) -> str:
    """Why a child brought nothing back, in a line."""
    limit = next((line for line in outcome.detail.splitlines() if line.startswith("it needs more than")), "")
    if outcome.ended == "hung":
        return f"it {outcome.reason}; --minutes gives more"
    return (f"{limit}; --process-memory gives more" if limit else outcome.reason).removesuffix(".")


def _size(text: str) -> int:
    """Bytes of ``16GB``, which are 16 GiB, as memory is sold."""
    match = SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it like 16GB")
    return int(float(match[1]) * UNITS[match[2].upper()])


def _minutes(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes: write it like 3")


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """``metallab doctor``: 0, 1 if an answer is that it fails, is wrong or does not fit, 2 if nothing was asked.

    130 if it was interrupted.
    """
    parser.add_argument("factory", help="package.module:factory; it returns (model, inputs) or (model, inputs, loss)")
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=3.0,
        help="for all answers together, of which each takes at least 15 s (%(default)g)",
    )
    parser.add_argument("--memory", type=_size, metavar="16GB", help="does it also fit into such a machine?")
    parser.add_argument("--process-memory", type=_size, metavar="8GB", help="that an answer may need at most")
    parser.add_argument(
        "--out", type=Path, default=paths.BUILD / "doctor", help="a folder for doctor.html and .json (%(default)s)"
    )
    given = parser.parse_args(arguments)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=given.out).close()
    except OSError as error:
        print(f"{parser.prog}: {given.out} cannot be written ({error.strerror}): name another --out", file=sys.stderr)
        return 2
    try:
        report = examine(
            given.factory,
            minutes=given.minutes,
            memory=given.memory,
            process_memory=given.process_memory,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except Refused as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted before the first answer", file=sys.stderr)
        return INTERRUPTED
    print(report)
    print(f"the page: {report.save(given.out)}")
    if report.interrupted:
        return INTERRUPTED
    return 1 if report.outcome == "bad" else 0
