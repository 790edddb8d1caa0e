"""A line on a page finds its exercise, and says how an answer was judged."""

from __future__ import annotations

import linecache
import sys
import tracemalloc
import types

import numpy as np
import pytest
import torch

from metallab import checks, isolated, judgement
from metallab.exercises import hint, judging
from metallab.exercises.judging import Open, Right, exercise, expect

PAGE = "97"


@pytest.fixture
def double(monkeypatch):
    """The function that judges exercise 97.1, to double a number; no other exercise is known meanwhile."""
    monkeypatch.setattr(judging, "_EXERCISES", {})
    # `check` imports the module of a page to find its exercises
    module = f"metallab.exercises.page_{PAGE}"
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))

    @exercise(f"{PAGE}.1", hint="twice as much")
    def judge_double(answer):
        for number in (1, 3):
            expect(f"double({number})", answer(number), 2 * number)
        return True

    return judge_double


def ask(accepts, answer=lambda: None):
    """The judgement of an exercise whose function is this one."""
    judging._EXERCISES[f"{PAGE}.1"] = judging.Exercise(f"{PAGE}.1", "a hint", accepts)
    return judging.check(f"{PAGE}.1", answer)


def test_a_right_answer_is_right(double):
    judged = judging.check(f"{PAGE}.1", lambda x: 2 * x)

    assert judged.outcome == "right"
    assert str(judged) == "Exercise 97.1: right"


@pytest.mark.parametrize("answer", [..., [1, ...], lambda x: ..., lambda x: (x, ...)])
def test_a_stub_is_not_attempted_and_never_wrong(double, answer):
    assert judging.check(f"{PAGE}.1", answer).outcome == "not attempted"


def test_a_wrong_answer_says_what_was_returned_and_expected_and_not_the_hint(double):
    with pytest.raises(checks.WrongAnswer) as refused:
        judging.check(f"{PAGE}.1", lambda x: x + 1)
    said = str(refused.value)
    assert "double(3) returned 4, expected 6" in said
    assert "twice as much" not in said
    assert refused.value._render_traceback_() == [f"WrongAnswer: {said}"]


def test_the_hint_comes_when_asked(double, capsys):
    hint(f"{PAGE}.1")
    assert "twice as much" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("returned", "outcome", "words"),
    [
        pytest.param(True, "right", "right", id="true"),
        pytest.param(np.True_, "right", "right", id="of-numpy"),
        pytest.param(Right("Off by 0."), "right", "Off by 0.", id="with-words"),
        pytest.param(Open("It took longer."), "open", "It took longer.", id="open"),
        pytest.param(isolated.Skipped("no GPU"), "not judged", "no GPU", id="skipped"),
    ],
)
def test_what_an_exercise_returns_is_its_outcome(double, returned, outcome, words):
    judged = ask(lambda answer: returned)
    assert judged.outcome == outcome
    assert words in judged


@pytest.mark.parametrize("returned", [False, 7, "no", []])
def test_what_is_not_true_is_wrong(double, returned):
    with pytest.raises(checks.WrongAnswer):
        ask(lambda answer: returned)


def test_an_exercise_that_returns_nothing_is_a_mistake_of_the_page(double):
    with pytest.raises(TypeError, match="let it return True"):
        ask(lambda answer: None)


def test_a_result_that_the_check_cannot_use_is_shown(double):
    with pytest.raises(checks.WrongAnswer, match=r"returned None, which cannot be used: Attrib"):
        ask(lambda answer: answer().shape == (2,))


@pytest.mark.parametrize(
    "array", [np.ones((3000, 1000)), torch.ones(3000, 1000)], ids=["NumPy", "PyTorch"]
)
def test_of_a_large_array_the_beginning_is_shown(array):
    """It is not made a list as a whole, which would take gigabytes of an array that a page times."""
    tracemalloc.start()
    try:
        shown = judging.show(array)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    row = "[" + "1.0, " * 12 + "...]"
    assert shown == "[" + f"{row}, " * 12 + "...]"
    assert peak < array.nbytes / 10


def test_a_package_that_is_missing_makes_no_answer_wrong(double):
    def accepts(answer):
        raise ModuleNotFoundError("No module named 'coreai'")

    judged = ask(accepts)

    assert judged.outcome == "not judged"
    assert "coreai" in judged


def test_an_open_answer_is_amber_and_no_error():
    shown = judgement.Judgement("Exercise 97.1", "open", "open. Slower")._repr_mimebundle_()
    assert shown[judgement.MIME]["outcome"] == "open"
    assert "#e69f00" in shown["text/html"]


@pytest.mark.parametrize("number", ["97.9", "13", 13.2, "x.1"])
def test_an_unknown_number_is_refused_with_what_to_write(double, number):
    with pytest.raises(LookupError, match=str(number)):
        judging.check(number, None)


def test_a_page_without_exercises_is_named():
    with pytest.raises(LookupError, match="page 99 has none"):
        judging.find_exercise("99.1")


CELLS = (
    "def lesson(x):\n    return [1][x]",
    "def mine(x):\n    if x == 3:\n        raise OSError('many\\n' * 99)\n    return lesson(x)",
)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        pytest.param(3, r"OSError: many many .*\nLine 3 of your cell: raise", id="raised-there"),
        pytest.param(7, r"IndexError: .*\nLine 4 of your cell: return lesson", id="raised-deeper"),
    ],
)
def test_an_error_of_a_learner_s_code_takes_three_lines(double, monkeypatch, number, said):
    monkeypatch.setattr(linecache, "cache", {})
    space = {"check": judging.check}
    for cell in (*CELLS, "def run():\n    return check('97.1', mine)"):
        linecache.cache[cell] = len(cell), None, cell.splitlines(True), cell
        exec(compile(cell, cell, "exec"), space)
    judging._EXERCISES["97.1"] = judging.Exercise("97.1", "-", lambda answer: answer(number))

    with pytest.raises(checks.WrongAnswer, match=said) as refused:
        space["run"]()
    assert len(str(refused.value).splitlines()) <= 3
