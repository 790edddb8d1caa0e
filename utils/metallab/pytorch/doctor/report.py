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
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence, broken_off, draft_in

CHILD = "import torch\nfrom metallab.pytorch.doctor import questions\nresult = questions.{call}"
SHARES = {1: 0.25, 5: 0.1, 4: 0.15, 2: 0.15, 6: 0.15, 3: 0.2}
"""Of the time for all, what each question may take, in the order in which they are asked.

What one leaves is for the next ones: first come those that do the same work however long they have.
"""
LEAST_SECONDS = 3.0
"""That each question gets at least, beside the time to import and make the model and to run it a few times."""
PAGE_SECONDS = 1.0
"""For writing the page."""
BUILD_SECONDS = 600.0
"""For the simulated GPU, which is built once and is not counted."""
LOOK_SECONDS = 60.0
"""That looking at the model may take at least: what it takes tells how many minutes are enough."""
APPLE_GPU = (1, 2)
"""The questions that are asked of an Apple GPU, be it simulated; `COPIES` asks it where there is no real GPU."""
COPIES = 4
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(MB|GB|TB)", re.IGNORECASE)
UNITS = {"MB": 2**20, "GB": 2**30, "TB": 2**40}
MEANINGS = {
    "good": "nothing speaks against it",
    "attention": "it runs, and could be better",
    "bad": "it fails on an Apple GPU, is wrong there, or does not fit",
    "unanswered": "the sentence says why",
}
"""What the four outcomes mean, for the reader of the page."""
FINDINGS = {
    (1, "bad"): ("it does not run on an Apple GPU as it is", "see answer 1 for what to do"),
    (1, "attention"): ("some of it may leave the Apple GPU", "look at the operators in answer 1"),
    (2, "bad"): ("it computes wrongly on an Apple GPU", "take the way out in answer 2, and report its program"),
    (2, "attention"): ("not all of it is known to be right", "read in answer 2 why"),
    (3, "attention"): ("not every time may be compared", "read in answer 3 why"),
    (4, "attention"): ("its steps copy between CPU and GPU", "remove the copies at the lines in answer 4"),
    (5, "bad"): ("it does not fit into memory", "take the batch of answer 5, or a smaller model"),
    (5, "attention"): ("other programs hold memory that it needs", "close them"),
    (6, "attention"): ("a small number format fails", "take one that answer 6 finds sound"),
}
"""What is the matter, by question and outcome, and what to do about it."""

WORST_FIRST = ("bad", "unanswered", "attention", "good")
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
        return next(name for name in WORST_FIRST if name in outcomes)

    @property
    def headline(self) -> str:
        """What is the worst, and what to do first, in a sentence."""
        name = self.model.partition(",")[0]
        if self.interrupted:
            name += f", interrupted after {len(self.answers)} of {len(QUESTIONS)} questions"
        careful = [each for each in self.answers if each.outcome != "good"]
        if not careful:
            return f"{name}: nothing speaks against it."
        worst = min(careful, key=lambda each: WORST_FIRST.index(each.outcome))
        number = _number(worst)
        lack = "has no answer" if worst.outcome == "unanswered" else "has no whole answer"
        found = FINDINGS.get((number, worst.outcome)) if worst.ended == "well" or worst.outcome == "bad" else None
        what, do = found or (f"question {number} {lack}", "read there why")
        others = ", ".join(str(_number(each)) for each in careful if each is not worst)
        return f"{name}: {what}; first, {do}." + (f" Then look at {others}." if others else "")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "schema": "metallab doctor 1",
            "factory": self.factory,
            "model": self.model,
            "torch": self.torch,
            "outcome": self.outcome,
            "headline": self.headline,
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
        head = [self.headline, f"{self.factory}: {self.model}, PyTorch {self.torch}"]
        return "\n".join([*head, *(f"{_number(answer)}. {answer}" for answer in self.answers)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        escaped = html.escape
        head = f"<p><b>{escaped(self.headline)}</b></p>"
        head += f"<p>{escaped(f'{self.factory}: {self.model}, PyTorch {self.torch}')}</p>"
        legend = "".join(f"<li>{_mark(outcome)}: {words}</li>" for outcome, words in MEANINGS.items())
        sections = "".join(map(_section, self.answers))
        return f'<style>{STYLE}</style><div class="doctor">{head}<ul>{legend}</ul>{sections}</div>'


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<style>:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em;
margin: 2em auto; padding: 0 1em }} h1 {{ overflow-wrap: anywhere }}</style></head>
<body><h1>{title}</h1>{body}</body></html>
"""
STYLE = """
.doctor { overflow-wrap: anywhere } .doctor ul { list-style: none; padding: 0; font-size: 14px }
.doctor section { border-left: .4em solid var(--mark); padding: .2em 1em; margin: 1em 0 }
.doctor mark { background: none; color: inherit; white-space: nowrap }
.doctor mark::before { content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .3em;
border-radius: 50%; background: var(--mark) }
.doctor h3 mark { font-weight: normal; font-size: 14px; margin-left: .6em }
.doctor .good { --mark: #009e73 } .doctor .attention { --mark: #e69f00 } .doctor .bad { --mark: #d55e00 }
.doctor .unanswered { --mark: #888 }
.doctor .table { overflow-x: auto; overflow-wrap: break-word } .doctor pre { white-space: pre-wrap; font-size: 13px }
.doctor table { border-collapse: collapse; font-size: 14px }
.doctor td, .doctor th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top; max-width: 24em }
@media (max-width: 600px) { .doctor th { display: none } .doctor .table { overflow-wrap: anywhere }
.doctor td { display: block; padding: 0; max-width: none } .doctor td::before { content: attr(data-heading) ": " }
.doctor tr { display: block; padding: .4em 0 } .doctor section { padding: .2em .6em } }
"""


def _number(answer: Answer) -> int:
    return QUESTIONS.index(answer.question) + 1


def _mark(outcome: str) -> str:
    """An outcome as a colour and as a word."""
    return f'<mark class="{outcome}">{outcome}</mark>'


def _section(answer: Answer) -> str:
    escaped = html.escape
    asked = f"<p><small>Asked of {escaped(answer.on)}; {answer.seconds:.0f} s.</small></p>" if answer.on else ""
    details = "".join(
        f"<details><summary>{escaped(each.title)}</summary>{_shown(each)}</details>" for each in answer.evidence
    )
    head = f"<h3>{_number(answer)}. {escaped(answer.question)}{_mark(answer.outcome)}</h3>"
    head += "".join(f"<p>{escaped(line)}</p>" for line in answer.sentence.splitlines())
    return f'<section class="{answer.outcome}">{head}{asked}{details}</section>'


def _shown(evidence: Evidence) -> str:
    if evidence.table is None:
        return f"<pre>{html.escape(evidence.text)}</pre>"
    headings = [html.escape(heading) for heading in evidence.table.headings]
    rows = [
        "".join(f'<td data-heading="{heading}">{html.escape(v)}</td>' for heading, v in zip(headings, row, strict=True))
        for row in evidence.table.rows
    ]
    lines = "".join(f"<tr>{row}</tr>" for row in ["".join(f"<th>{heading}</th>" for heading in headings), *rows])
    return f'<div class="table"><table>{lines}</table></div><p>{html.escape(evidence.table.note)}</p>'


def examine(
    factory: str,
    *,
    minutes: float = 3.0,
    memory: int | None = None,
    process_memory: int | None = None,
    progress: Callable[[str], object] = print,
) -> Report:
    """Ask the six questions of what ``package.module:factory`` makes.

    ``minutes`` are for all of them together. Each plans with its share of what is left, and is stopped when less than
    half of their shares, or of the least that makes sense, would be left for the next ones; what it has then is its
    answer. ``memory`` in bytes is that of a machine that question 5 asks about beside this one. A process that needs
    more than ``process_memory`` bytes, by default four fifths of what is free, is ended. ``progress`` is given a line
    as each answer comes. Where there is no simulated GPU yet, it is built first, which is not counted. Interrupted
    (Ctrl-C), it returns the answers that there are. `Refused` if the factory makes no model that runs on the CPU, or
    one that wants more minutes, ValueError if ``minutes`` is no time.
    """
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes is {minutes:g}: give a number above 0, such as 3")
    most = process_memory or int(0.8 * psutil.virtual_memory().available)
    progress(f"looking at {factory}")
    began = time.monotonic()
    model, kind, least = _look(factory, max(60 * minutes, LOOK_SECONDS), most)
    looked = time.monotonic() - began
    least += LEAST_SECONDS
    if 60 * minutes < (needed := looked + len(QUESTIONS) * least):
        enough = f"{math.ceil(needed / 6) / 10:g}"
        raise Refused(
            f"{minutes:g} minutes are too few: to make {factory} and ask something takes {least:.0f} s, six times; "
            f"give --minutes {enough} or more"
        )
    began = time.monotonic()
    _run("import torch", 1, BUILD_SECONDS, device="mps")  # what fails here the answers tell
    started = min(looked, time.monotonic() - began)  # more than that it was building
    whole = 60 * minutes - looked - started - PAGE_SECONDS
    ends = time.monotonic() + whole
    answers: dict[int, Answer] = {}
    is_whole = False
    with contextlib.suppress(KeyboardInterrupt):
        waiting = list(SHARES)
        while waiting:
            left = ends - time.monotonic()
            seconds = max(least, left * SHARES[waiting[0]] / sum(SHARES[each] for each in waiting))
            number, *waiting = waiting
            limit = max(seconds, left - sum(max(least, whole * SHARES[each] / 2) for each in waiting))
            progress(f"{number} of {len(QUESTIONS)}: {QUESTIONS[number - 1]} (at most {limit:.0f} s)")
            apple = number in APPLE_GPU or (number == COPIES and kind in ("cpu", "mps"))
            answers[number] = _answer(number, factory, (seconds, limit), most, memory, apple)
            progress("\n".join(f"   {line}" for line in answers[number].sentence.splitlines()))
        is_whole = True
    if not answers:
        raise KeyboardInterrupt
    told = tuple(answers[number] for number in sorted(answers))
    return Report(factory, model, told, metadata.version("torch"), interrupted=not is_whole)


def _run(source: str, number: int, seconds: float, **settings: Any) -> isolated.Outcome:
    """In a process that finds modules where this one does; from question 2 on what has no kernel runs on the CPU."""
    variables = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    variables |= {"PYTORCH_ENABLE_MPS_FALLBACK": "1"} if number != 1 else {}
    return isolated.run(source, environment=variables, timeout=round(seconds, 1), **settings)


def _look(factory: str, seconds: float, most: int) -> tuple[str, str, float]:
    outcome = _run(CHILD.format(call=f"look({factory!r}, {most})"), 0, seconds, results=["result"])
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
    with tempfile.TemporaryDirectory(prefix="metallab-doctor-") as folder:
        draft = Path(folder, "draft")
        call = f"ask({number}, {factory!r}, {began + seconds[0]}, {most}, {target}, {str(draft)!r})"
        source = CHILD.format(call=call)
        outcome = _run(source, number, seconds[1], results=["result"], device="mps" if apple else None)
        if apple and "SimulationUnavailable" in outcome.kinds:
            outcome = _run(source, number, seconds[1], results=["result"])
        if outcome.ok:
            answer = outcome["result"]
        else:
            # what was raised is in the reason, and the lines that it came through are ours
            last = "" if outcome.ended == "raised" else outcome.detail[-4000:]
            words = [Evidence("What it printed last", text=last)] if last else []
            answer = broken_off(QUESTIONS[number - 1], draft_in(draft), outcome.ended, _why(outcome), *words)
    took = time.monotonic() - began
    if answer.ended == "not started":
        enough = math.ceil((2 * took + (took + LEAST_SECONDS) / SHARES[number]) / 6) / 10
        why = f"Not started: making the model took all of its {seconds[0]:.0f} s; give --minutes {enough:g} or more."
        answer = replace(answer, sentence=why)
    return replace(answer, seconds=round(took, 1))


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
    raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0: write it like 3")


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """``metallab doctor``: 0, 1 if an answer is bad, 2 if one is missing or not whole, or nothing was asked.

    130 if it was interrupted.
    """
    parser.add_argument("factory", help="package.module:factory; it returns (model, inputs) or (model, inputs, loss)")
    parser.add_argument("--minutes", type=_minutes, default=3.0, help="for all answers together (%(default)g)")
    parser.add_argument("--memory", type=_size, metavar="16GB", help="does it also fit into such a machine?")
    parser.add_argument("--process-memory", type=_size, metavar="8GB", help="that an answer may need at most")
    parser.add_argument(
        "--out", type=Path, default=paths.BUILD / "doctor", help="a folder for doctor.html and .json (%(default)s)"
    )
    given = parser.parse_args(arguments)
    try:
        paths.make_output(given.out)
    except OSError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
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
    whole = all(answer.outcome != "unanswered" and answer.ended == "well" for answer in report.answers)
    return 1 if report.outcome == "bad" else 0 if whole else 2
