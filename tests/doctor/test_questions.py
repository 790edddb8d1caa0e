"""A new question of the doctor is a row, a module and a class of results: here is one, and nothing else changes."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from doctor_results import MODEL, RESULTS, answer_to, find_results, report_of
from torch import nn

from metallab import doctor, paths
from metallab.doctor import questions, results, wording, worker
from metallab.doctor.answer import Answer
from metallab.doctor.command import exit_code
from metallab.doctor.limits import Limits
from metallab.doctor.questions import QUESTIONS, Problem, Question, in_asking_order
from metallab.doctor.report import Report
from metallab.isolated import Outcome
from metallab.pytorch.model import as_model


@dataclasses.dataclass(frozen=True)
class RepeatResult:
    """How often a call gave the same."""

    equal: int
    calls: int


@wording.describe.register
def _(result: RepeatResult) -> list[str]:
    return [f"{result.equal} of {result.calls} calls are equal."]


REPEAT = Question(
    key="repeat",
    number=len(QUESTIONS) + 1,
    text="Does it repeat itself?",
    result_type=RepeatResult,
    turn=0,
    problems={"failed": Problem("it does not repeat itself", "seed it; see answer {number}")},
)


def answer_repeat(subject, limits):
    outputs = [subject.inference()() for _ in range(4)]
    equal = sum(torch.equal(outputs[0], each) for each in outputs)
    status = "passed" if equal == len(outputs) else "failed"
    return Answer(REPEAT, status, RepeatResult(equal, len(outputs)))


@pytest.fixture(autouse=True)
def with_one_more(monkeypatch):
    """The table has one more row, and the package one more module."""
    module = types.ModuleType("metallab.doctor.repeat")
    module.answer = answer_repeat
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(questions, "QUESTIONS", QUESTIONS)
    QUESTIONS.append(REPEAT)
    yield
    QUESTIONS.remove(REPEAT)


def ask(model):
    return worker.answer(REPEAT, as_model((model, torch.ones(3)), "x:y"), Limits(10))


def test_it_is_answered():
    answer = ask(nn.Identity())
    assert answer.status == "passed"
    assert answer.result == RepeatResult(4, 4)
    assert answer.lines == ["4 of 4 calls are equal."]


def test_its_problem_is_the_headline_and_sets_the_exit_code():
    failed = dataclasses.replace(ask(nn.Dropout().train()), status="failed")
    report = report_of(failed)
    assert "it does not repeat itself" in report.headline
    assert f"see answer {REPEAT.number}" in report.headline
    assert exit_code(report) == 1


def test_its_error_is_its_answer():
    answer = ask(nn.Linear(4, 4))
    assert answer.status == "skipped"
    assert answer.ended == "raised"


def test_it_is_asked_in_its_turn(monkeypatch):
    """Before all others, as its row in the table says, and its answer comes into the report."""
    asked = []

    def run(source, **settings):
        if "ask(" not in source:
            return Outcome("ok", results={"result": (MODEL, "cpu")})
        key = re.search(r"ask\('(\w+)'", source)[1]
        asked.append(key)
        answer = answer_to(questions.find_question(key), result=results_of(key))
        return Outcome("ok", results={"result": answer})

    monkeypatch.setattr("metallab.isolated.run", run)
    report = doctor.examine("mine:example", progress=str)
    assert asked == [question.key for question in in_asking_order()]
    assert asked[0] == "repeat"
    assert report[REPEAT].result == RepeatResult(3, 4)


def results_of(key):
    return RepeatResult(3, 4) if key == "repeat" else find_results(key)[0]


def test_it_stands_on_the_page_and_in_the_file(tmp_path):
    report = report_of(*(answer_to(each, result=results_of(each.key)) for each in QUESTIONS))
    page = report.save(tmp_path)
    assert f"{REPEAT.number}. {REPEAT.text}" in page.read_text()
    assert Report.from_json(json.loads((tmp_path / "doctor.json").read_text())) == report


# ---- nothing else knows how many there are ---------------------------------------------------------------------------

PACKAGES = [paths.ROOT / "utils" / "metallab" / name for name in ("doctor", "project")]
FILES = [file for folder in PACKAGES for file in sorted(folder.iterdir()) if file.is_file()]
GUIDES = [paths.ROOT / "docs" / "your_own_code.md", paths.ROOT / "utils/metallab/__main__.py"]


@pytest.mark.parametrize(
    "file", [*FILES, *GUIDES], ids=lambda file: f"{file.parent.name}/{file.name}"
)
def test_no_text_says_how_many_questions_there_are(file):
    text = file.read_text("utf-8")
    assert re.findall(r"(?i)\bsix (?:answers|questions)|\ball six\b|\bof the six\b", text) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_text_names_a_question_by_a_bare_number(file):
    """The table gives the number, so that a question may move."""
    assert re.findall(r"\b(?:answer|question) \d", file.read_text("utf-8")) == []


# ---- what has to be written where, for a question of the table -------------------------------------------------------

ASKED = list(QUESTIONS)
"""Those of the table, without the one that this file adds."""


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question.key)
def test_each_question_has_a_module_of_its_name(question):
    assert (Path(worker.__file__).parent / f"{question.key}.py").exists()
    assert hasattr(results, question.result_type.__name__)


def test_no_two_questions_have_the_same_number():
    assert [question.number for question in ASKED] == [*range(1, len(ASKED) + 1)]


def test_no_two_questions_are_asked_at_the_same_turn():
    assert sorted(question.turn for question in ASKED) == [*range(1, len(ASKED) + 1)]


def find_missing_places(question):
    """Yield each place that is written by hand and does not have a question, and what is to be written there."""
    if question.key not in RESULTS:
        yield (
            f"tests/support/doctor_results.py: RESULTS[{question.key!r}], results as its tests want them, "
            "first one in which nothing is wrong"
        )

    if f"\n`{question.key}`  " not in re.sub(" +", "  ", doctor.__doc__):
        yield f"utils/metallab/doctor/__init__.py: a row `{question.key}` in the table of modules"

    for name, wanted in {
        "docs/your_own_code.md": f"| {question.number}. {question.text} |",
        "notebooks/90_bring_your_own_project.ipynb": question.text[:1].lower()
        + question.text[1:-1],
    }.items():
        if wanted not in (paths.ROOT / name).read_text("utf-8"):
            yield f"{name}: {wanted!r}"


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question.key)
def test_each_question_stands_in_the_lists_that_are_written_by_hand(question):
    missing = list(find_missing_places(question))

    assert not missing, "\n".join([f"write the question {question.key!r} into", *missing])
