"""``metallab doctor package.module:factory``: ask the questions one after the other, and report.

This process imports neither torch nor the factory's module; the processes that answer do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from metallab import isolated, paths
from metallab.pytorch.doctor.answer import IN_PRINT, QUESTIONS, Answer, Evidence, NotAModel

CHILD = "import gc; gc.set_threshold(100_000)\nfrom metallab.pytorch.doctor import asking\nresult = asking.{call}"
ORDER = (1, 5, 4, 2, 6, 3)
"""Of the questions: first those whose work does not depend on the time they have."""
BUILD_SECONDS, LOOK_SECONDS = 600.0, 60.0
"""For building the simulated GPU once, which does not count, and at least for looking at the model."""
FINDINGS = {
    (1, "failed"): ("it does not run on an Apple GPU as it is", "see answer 1 for what to do"),
    (1, "incomplete"): ("some of it may leave the Apple GPU", "look at the operators in answer 1"),
    (2, "failed"): (
        "it computes wrongly on an Apple GPU",
        "take the way out in answer 2, and report its program",
    ),
    (2, "incomplete"): ("not all of it is known to be right", "read in answer 2 why"),
    (3, "incomplete"): ("not every time may be compared", "read in answer 3 why"),
    (4, "incomplete"): (
        "its steps copy between CPU and GPU",
        "remove the copies at the lines in answer 4",
    ),
    (5, "failed"): (
        "it does not fit into memory",
        "take the batch of answer 5, or a smaller model",
    ),
    (5, "incomplete"): ("other programs hold memory that it needs", "close them"),
    (6, "incomplete"): ("a small number format fails", "take one that answer 6 finds sound"),
}
"""Problem and advice, by question and status."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


@dataclass(frozen=True)
class Report:
    """Six answers about a model; fewer after an interruption."""

    factory: str
    model: str
    answers: tuple[Answer, ...]
    torch: str
    """PyTorch's version."""
    interrupted: bool = False

    @property
    def worst(self) -> Answer:
        """The worst answer, the first of several."""
        return min(self.answers, key=lambda answer: list(IN_PRINT).index(answer.status))

    @property
    def headline(self) -> str:
        """The worst finding and the first step, in a sentence."""
        name = self.model.partition(",")[0]
        if self.interrupted:
            name += f", interrupted after {len(self.answers)} of {len(QUESTIONS)} questions"
        careful = [each for each in self.answers if each.status != "passed"]
        if not careful:
            return f"{name}: nothing speaks against it."
        unknown = (f"question {self.worst.number} has no answer", "read there why")
        what, do = FINDINGS.get((self.worst.number, self.worst.status), unknown)
        others = ", ".join(str(each.number) for each in careful if each is not self.worst)
        return f"{name}: {what}; first, {do}." + (f" Then look at {others}." if others else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        fields = {name: value for name, value in vars(self).items() if name != "answers"}
        answers = [answer.to_json() for answer in self.answers]
        head = {
            "schema": "metallab doctor 1",
            "outcome": self.worst.outcome,
            "headline": self.headline,
        }
        return head | fields | {"answers": answers}

    def save(self, folder: Path | str) -> Path:
        """Write ``doctor.html`` and ``doctor.json`` into a folder; return the page."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "doctor.json").write_text(
            json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8"
        )
        page = folder / "doctor.html"
        page.write_text(self._html(page=True), encoding="utf-8")
        return page

    def __str__(self) -> str:
        head = [self.headline, f"{self.factory}: {self.model}, PyTorch {self.torch}"]
        return "\n".join([*head, *(f"{answer.number}. {answer}" for answer in self.answers)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._html(page=False)

    def _html(self, page: bool) -> str:
        return rendered("doctor.html.j2", report=self, page=page)


def rendered(template: str, **values: Any) -> str:
    """Return a page from a template of this folder."""
    import jinja2  # which PyTorch brings

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    settings = {"trim_blocks": True, "undefined": jinja2.StrictUndefined, "loader": loader}
    environment = jinja2.Environment(autoescape=".html" in template, **settings)
    return environment.get_template(template).render(**values)


def examine(
    factory: str,
    *,
    minutes: float = 3.0,
    memory: int | None = None,
    process_memory: int | None = None,
    progress: Callable[[str], object] = print,
    together: bool = False,
    questions: Sequence[int] = ORDER,
) -> Report:
    """Ask the six questions about the model that ``package.module:factory`` makes.

    Parameters
    ----------
    factory
        A function without arguments, as text.
    minutes
        For all together: each may take an equal part of the rest, and up to as much again to make the model. Building
        the simulated GPU, the first time, does not count.
    memory
        Bytes of a machine that question 5 asks about beside this one.
    process_memory
        Bytes that a process may need; by default four fifths of what is free.
    progress
        Called with a line as each answer comes.
    together
        Ask first in one process, without fallback to the CPU, which is sooner; apart where that process does not end
        well.
    questions
        The numbers of those to ask, in this order.

    Returns
    -------
    Report
        After Ctrl-C, with the answers that there are.

    Raises
    ------
    NotAModel
        If the factory makes no model that runs on the CPU.
    ValueError
        If ``minutes`` is no time.
    """
    if not 0 < minutes < math.inf:
        raise ValueError(f"minutes is {minutes:g}: give a number above 0, such as 3")
    most = process_memory or int(0.8 * psutil.virtual_memory().available)
    if together:
        model, answers = _together(factory, 60 * minutes, most, memory, questions)
        if len(answers) == len(questions):
            return Report(
                factory,
                model,
                tuple(answers[n] for n in sorted(answers)),
                metadata.version("torch"),
            )
    progress(f"looking at {factory}")
    began = time.monotonic()
    model, kind = _look(factory, max(60 * minutes, LOOK_SECONDS), most)
    looked = time.monotonic() - began
    built = _run(
        "import torch", BUILD_SECONDS, device="mps"
    ).ok  # the simulated GPU, if there is no other
    left, answers = 60 * minutes, {}
    with contextlib.suppress(KeyboardInterrupt):
        for number in questions:
            part = left / (len(questions) - len(answers))
            start = min(
                looked, part
            )  # for importing and making the model, which takes long on a busy machine
            seconds, began = max(1.0, part + start), time.monotonic()
            progress(
                f"{number} of {len(QUESTIONS)}: {QUESTIONS[number - 1]} (at most {seconds:.0f} s)"
            )
            on_apple_gpu = built and (number in (1, 2) or (number == 4 and kind != "cuda"))
            answers[number] = _answer(number, factory, seconds, most, memory, on_apple_gpu)
            left -= max(0.0, time.monotonic() - began - start)
            progress("\n".join(f"   {line}" for line in answers[number].sentence.splitlines()))
    if not answers:
        raise KeyboardInterrupt
    in_order = tuple(answers[number] for number in sorted(answers))
    return Report(
        factory,
        model,
        in_order,
        metadata.version("torch"),
        interrupted=len(answers) < len(questions),
    )


def _run(
    source: str, seconds: float, *, fallback: bool = False, **settings: Any
) -> isolated.Outcome:
    """Run code in a process with this one's module path; missing operators run on the CPU if ``fallback``."""
    variables = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    variables |= {"PYTORCH_ENABLE_MPS_FALLBACK": "1"} if fallback else {}
    return isolated.run(source, environment=variables, timeout=round(seconds, 1), **settings)


def _look(factory: str, seconds: float, most: int) -> tuple[str, str]:
    outcome = _run(CHILD.format(call=f"look({factory!r}, {most})"), seconds, results=["result"])
    if "NotAModel" in outcome.kinds:
        raise NotAModel(outcome.reason.removeprefix("NotAModel: "))
    if not outcome.ok:
        raise NotAModel(f"{factory} could not be tried: {_why(outcome)}")
    return outcome["result"]


def _together(
    factory: str, seconds: float, most: int, target: int | None, asked: Sequence[int]
) -> tuple[str, dict]:
    """Return the model and the answers of one process; of two, where an Apple GPU is simulated beside an NVIDIA GPU."""
    model, answers = "", {}
    for_nvidia = shutil.which("nvidia-smi") and not {1, 2} & {*asked}
    for device in (None,) if for_nvidia else ("mps", None):
        left = [number for number in asked if number not in answers]
        source = CHILD.format(
            call=f"ask_together({left}, {factory!r}, {seconds}, {most}, {target})"
        )
        limit = {"results": ["result"], "timeout": 2 * seconds + LOOK_SECONDS}
        outcome = isolated.run_again(source, device=device, **limit) if left else None
        if outcome and "NotAModel" in outcome.kinds:
            raise NotAModel(outcome.reason.removeprefix("NotAModel: "))
        if outcome and outcome.ok:
            model, some = outcome["result"]
            answers |= some
        elif outcome and "SimulationUnavailable" not in outcome.kinds:
            break
    return model, answers


def _answer(
    number: int, factory: str, seconds: float, most: int, target: int | None, on_apple_gpu: bool
) -> Answer:
    """Ask a question in a process, for at most so many ``seconds``."""
    began = time.monotonic()
    source = CHILD.format(call=f"ask({number}, {factory!r}, {began + seconds}, {most}, {target})")
    where = {"device": "mps" if on_apple_gpu else None, "fallback": number != 1}
    outcome = _run(source, seconds, results=["result"], **where)
    if outcome.ok:
        answer = outcome["result"]
    else:
        last = (
            "" if outcome.ended == "raised" else outcome.detail[-4000:]
        )  # a traceback has our lines only
        evidence = (Evidence("What it printed last", text=last),) if last else ()
        sentence = f"No answer: {_why(outcome)}."
        answer = Answer(
            QUESTIONS[number - 1], "skipped", sentence, evidence=evidence, ended=outcome.ended
        )
    return replace(answer, seconds=round(time.monotonic() - began, 1))


def _why(outcome: isolated.Outcome) -> str:
    """Return in a line why a process has no result."""
    limit = next(
        (line for line in outcome.detail.splitlines() if line.startswith("it needs more than")), ""
    )
    if outcome.ended == "timeout":
        return f"it {outcome.reason}; more minutes give more time"
    return (f"{limit}; --process-memory gives more" if limit else outcome.reason).removesuffix(".")


def _size(text: str) -> int:
    """Return the bytes of ``16GB``, which are 16 GiB, as memory is sold."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])B", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it like 16GB")
    return int(float(match[1]) * 2 ** {"M": 20, "G": 30, "T": 40}[match[2].upper()])


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """``metallab doctor``: 0, 1 if an answer is bad, 2 if one is missing or nothing was asked, 130 if interrupted."""
    parser.add_argument(
        "factory",
        help="package.module:factory; it returns (model, inputs) or (model, inputs, loss)",
    )
    parser.add_argument(
        "--minutes", type=float, default=3.0, help="for all answers together (%(default)g)"
    )
    parser.add_argument(
        "--memory", type=_size, metavar="16GB", help="does it also fit into such a machine?"
    )
    parser.add_argument(
        "--process-memory", type=_size, metavar="8GB", help="that an answer may need at most"
    )
    out = "a folder for doctor.html and .json (%(default)s)"
    parser.add_argument("--out", type=Path, default=paths.BUILD / "doctor", help=out)
    given = parser.parse_args(arguments)
    if not 0 < given.minutes < math.inf:
        parser.error("--minutes is a number above 0, such as 3")
    options = {
        "minutes": given.minutes,
        "memory": given.memory,
        "process_memory": given.process_memory,
    }
    try:
        paths.make_output(given.out)
        report = examine(
            given.factory, **options, progress=lambda line: print(line, file=sys.stderr, flush=True)
        )
    except (OSError, NotAModel) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted before the first answer", file=sys.stderr)
        return INTERRUPTED
    print(report)
    print(f"the page: {report.save(given.out)}")
    if report.interrupted:
        return INTERRUPTED
    statuses = {answer.status for answer in report.answers}
    return 1 if "failed" in statuses else 2 if "skipped" in statuses else 0
