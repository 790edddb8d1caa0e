"""What a check leaves for programs: which exercise, how its answer was judged, and the sentence its reader saw."""

from __future__ import annotations

import json
import pickle

import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat import v4

from metallab import checks, judgement, paths
from metallab.classroom import progress
from metallab.judgement import Judgement


def cell_of(judged: Judgement):
    """A saved cell that shows a judgement as its result."""
    return v4.new_code_cell(
        "", outputs=[v4.new_output("execute_result", judged._repr_mimebundle_())]
    )


@pytest.mark.parametrize("outcome", ["right", "open", "not attempted", "not judged"])
def test_a_saved_cell_tells_how_its_answer_was_judged(outcome):
    judged = Judgement("Exercise 13.1", outcome, "as it was said")

    read = judgement.of_cell(cell_of(judged))

    assert read == judged
    assert read.exercise == "Exercise 13.1"
    assert read.outcome == outcome


@pytest.fixture
def published(monkeypatch):
    """What is left in a cell's output."""
    outputs = []
    monkeypatch.setattr(judgement, "publish", outputs.append)
    return outputs


def test_a_wrong_answer_is_left_for_programs(published):
    checks.wrong_answer("Exercise 13.1", "it returned 5, expected 4.")

    (left,) = published
    assert left.data() == {
        "exercise": "Exercise 13.1",
        "outcome": "wrong",
        "sentence": left.sentence,
    }


def test_the_error_of_a_wrong_answer_says_what_is_left_for_programs(published):
    refused = checks.wrong_answer("Exercise 13.1", "it returned 5, expected 4.")

    assert [str(refused)] == published


def test_a_wrong_answer_is_shown_once(published):
    """The error below it is what a reader sees, so the output is for programs alone."""
    checks.wrong_answer("Exercise 13.1", "it returned 5, expected 4.")

    (left,) = published
    assert list(left._repr_mimebundle_()) == [judgement.MIME]


def test_outside_of_a_notebook_a_wrong_answer_prints_nothing(capsys, monkeypatch):
    monkeypatch.setattr(InteractiveShell, "_instance", None)

    judgement.publish(Judgement("Exercise 1", "wrong", "5 is not it."))

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="empty"),
        pytest.param({"outcome": "splendid"}, id="unknown-outcome"),
        pytest.param({"outcome": []}, id="a-list"),
        pytest.param("right", id="a-text"),
    ],
)
def test_an_output_that_is_no_judgement_is_passed_over(data):
    output = {"output_type": "display_data", "data": {judgement.MIME: data}}

    assert judgement.of_cell({"outputs": [output]}) is None


def test_the_last_judgement_of_a_cell_counts():
    outputs = [
        *cell_of(Judgement("A", "wrong", "no")).outputs,
        *cell_of(Judgement("A", "right", "right")).outputs,
    ]

    assert judgement.of_cell({"outputs": outputs}).outcome == "right"


def test_a_judgement_stays_itself_when_it_is_sent_to_another_process():
    sent = pickle.loads(pickle.dumps(Judgement("Exercise 1", "right", "right")))

    assert sent.data() == {"exercise": "Exercise 1", "outcome": "right", "sentence": "right"}


EXECUTED = sorted((paths.ROOT / "data" / "executed").glob("*/[0-9]*.ipynb"))


@pytest.mark.parametrize(
    "path", EXECUTED, ids=lambda path: f"{path.parent.name[:10]}-{path.stem.partition('_')[0]}"
)
def test_no_check_of_a_stored_page_seems_not_to_have_run(path):
    checks = progress.read_checks(json.loads(path.read_text(encoding="utf-8")))

    assert checks
    assert {check.outcome for check in checks} <= {"right", "open", "not judged"}
