"""What is asked in which process, and how the answers come together: the report, its page, its JSON, the exit code."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace

import pytest
from doctor_results import (
    CONTRADICTED,
    MODEL,
    NO_ANSWERS,
    NO_PROGRAM,
    POOL,
    RESULTS,
    RUNS,
    STOPS,
    UNEXPLAINED,
    WRONG,
    all_answers,
    answer_to,
    report_of,
)

from metallab import doctor, isolated, machine, needs, paths
from metallab.__main__ import main
from metallab.doctor import examination, questions, wording
from metallab.doctor.answer import Answer
from metallab.doctor.audit import Audit, DeviceCheck, Difference
from metallab.doctor.command import exit_code
from metallab.doctor.limits import OVER_MEMORY
from metallab.doctor.questions import (
    CORRECTNESS,
    FOOTPRINT,
    PROFILE,
    QUESTIONS,
    SPEED,
    SUPPORT,
    in_asking_order,
)
from metallab.doctor.report import load_report
from metallab.doctor.results import Layer
from metallab.isolated import Outcome


def pretend(monkeypatch, outcomes=None):
    """Stand in for `isolated.run`, and return a list of the calls that it gets, each with the program and the settings.

    ``outcomes`` are what comes of it, by a question's key, *inspect* (the model is looked at) or *build* (the simulated
    GPU is built); where there is none all is well.
    """
    outcomes = outcomes or {}
    calls = []

    def run(source, **settings):
        calls.append((source, settings))
        if source == "import torch":
            return outcomes.get("build", Outcome("ok"))
        if "inspect_model(" in source:
            seen = Outcome("ok", results={"result": (MODEL, "cpu")})
            return outcomes.get("inspect", seen)

        key = key_of(source)
        answer = answer_to(questions.find_question(key))
        return outcomes.get(key, Outcome("ok", results={"result": answer}))

    monkeypatch.setattr(isolated, "run", run)
    return calls


def key_of(source):
    """The key of the question that a process is asked."""
    return source.partition("ask('")[2].partition("'")[0]


def settings_by_key(calls):
    return {key_of(source): settings for source, settings in calls if "ask(" in source}


def result(answer):
    return Outcome("ok", results={"result": answer})


# ---- in processes ----------------------------------------------------------------------------------------------------

ABORTED = Outcome("crashed", reason="the process was ended by SIGABRT", detail="dyld: gone")
FULL = Outcome("crashed", reason="the process ended with 77", exit_code=OVER_MEMORY)
HUNG = Outcome("timeout", reason="took longer than 9 s and was stopped")
RAISED = Outcome("raised", reason="KeyError: labels", detail='File "<isolated>", line 3')


@pytest.mark.parametrize(
    ("outcome", "ended", "word"),
    [
        pytest.param(ABORTED, "crashed", "SIGABRT", id="aborted"),
        pytest.param(FULL, "crashed", "--process-memory", id="over its memory"),
        pytest.param(HUNG, "timeout", "more minutes", id="hung"),
        pytest.param(RAISED, "raised", "labels", id="raised"),
    ],
)
def test_a_process_that_does_not_answer_leaves_the_others(outcome, ended, word, monkeypatch):
    pretend(monkeypatch, {"profile": outcome})
    report = doctor.examine("mine:example", progress=str)
    missing = [answer for answer in report.answers if answer.status == "skipped"]
    assert [(answer.question, answer.ended) for answer in missing] == [(PROFILE, ended)]
    assert word in missing[0].sentence


def test_what_a_crashed_process_printed_last_is_kept(monkeypatch):
    pretend(monkeypatch, {"profile": ABORTED})
    assert "dyld: gone" in str(doctor.examine("mine:example", progress=str))


def test_lines_of_our_own_are_not_shown(monkeypatch):
    pretend(monkeypatch, {"profile": RAISED})
    assert "<isolated>" not in str(doctor.examine("mine:example", progress=str))


def test_what_wants_an_apple_gpu_is_asked_of_one(monkeypatch):
    calls = pretend(monkeypatch)
    doctor.examine("mine:example", progress=str)
    settings = settings_by_key(calls)
    on_mps = {key for key, given in settings.items() if given["device"] == "mps"}
    assert on_mps == {"support", "correctness", "profile"}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)
def test_operators_fall_back_where_the_question_allows_it(question, monkeypatch):
    calls = pretend(monkeypatch)
    doctor.examine("mine:example", progress=str)
    environment = settings_by_key(calls)[question.key]["environment"]
    assert ("PYTORCH_ENABLE_MPS_FALLBACK" in environment) == question.allows_fallback


def test_progress_names_a_question_by_the_number_of_its_answer(monkeypatch):
    """By which the headline leads to it."""
    pretend(monkeypatch)
    told = []
    doctor.examine("mine:example", progress=told.append)
    numbers = re.findall(r"question (\d)", "\n".join(told))
    assert numbers == [str(question.number) for question in in_asking_order()]


def test_no_question_takes_the_time_of_later_ones(monkeypatch):
    """Each has its share of the minutes, though all before it have hung until their limits."""
    now, limits = [1000.0], []
    monkeypatch.setattr(examination.time, "monotonic", lambda: now[0])

    def run(source, **settings):
        if "ask(" in source:
            limits.append(settings["timeout"])
            now[0] += settings["timeout"]
            return HUNG
        now[0] += 5 * ("inspect_model(" in source)  # seconds, which are taken for those to start
        return result((MODEL, "cpu"))

    monkeypatch.setattr(isolated, "run", run)
    doctor.examine("mine:example", minutes=3, progress=str)
    # with the time to start; limits are rounded to a tenth, and the last has what that left over
    share = 180 / len(QUESTIONS) + 5
    assert limits == pytest.approx([share] * len(QUESTIONS), abs=0.5)


def test_without_a_simulated_gpu_the_question_is_asked(monkeypatch):
    kinds = ("SimulationUnavailable", "RuntimeError")
    calls = pretend(monkeypatch, {"build": Outcome("raised", reason="no compiler", kinds=kinds)})
    assert doctor.examine("mine:example", progress=str)[SUPPORT].status == "passed"
    assert not any(settings["device"] for settings in settings_by_key(calls).values())


def test_one_process_answers_all_questions(monkeypatch):
    answers = {question.key: answer_to(question) for question in QUESTIONS}
    done = result((MODEL, answers))
    monkeypatch.setattr(isolated, "run_again", lambda *_, **__: done)
    report = doctor.examine("mine:example", together=True, progress=str)
    assert report.model == MODEL
    assert report.answers == tuple(answers.values())


def test_what_one_process_leaves_open_is_asked_apart(monkeypatch):
    monkeypatch.setattr(isolated, "run_again", lambda *_, **__: ABORTED)
    calls = pretend(monkeypatch)
    doctor.examine("mine:example", together=True, progress=str)
    assert list(settings_by_key(calls)) == [question.key for question in in_asking_order()]


# ---- the report ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", all_answers(), ids=lambda answer: answer.question.key)
def test_an_answer_survives_json(answer):
    data = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    assert Answer.from_json(data) == answer


def test_a_report_survives_its_file(tmp_path):
    report = report_of()
    report.save(tmp_path)
    assert load_report(tmp_path / "doctor.json") == report


def test_a_file_of_another_version_says_what_to_do(tmp_path):
    (tmp_path / "doctor.json").write_text('{"schema": "metallab doctor 1", "answers": []}')
    with pytest.raises(doctor.OtherSchema, match="metallab doctor again"):
        load_report(tmp_path / "doctor.json")


def test_a_file_of_another_program_says_what_to_do(tmp_path):
    (tmp_path / "doctor.json").write_text("[]")
    with pytest.raises(doctor.OtherSchema, match="metallab doctor again"):
        load_report(tmp_path / "doctor.json")


def test_keys_and_attributes_have_the_same_names():
    answer = answer_to(SUPPORT)
    assert {key for key in answer.to_json() if not hasattr(answer, key)} == {"key", "no_answer"}


def test_the_page_holds_every_answer_with_its_evidence(tmp_path):
    stops = replace(RUNS, operators=(replace(POOL, way_out="<drop>"),))
    report = report_of(answer_to(SUPPORT, result=stops), *map(answer_to, QUESTIONS[1:]))
    text = report.save(tmp_path).read_text()
    assert [question.text for question in QUESTIONS if question.text not in text] == []
    assert "&lt;drop&gt;" in text
    assert "<drop>" not in text
    assert "http" not in text


@pytest.mark.parametrize(
    ("out", "page", "numbers"),
    [
        pytest.param("mine", "mine/doctor.html", "mine/doctor.json", id="a-folder"),
        pytest.param("mine.html", "mine.html", "mine.json", id="a-file"),
        pytest.param("new/mine.html", "new/mine.html", "new/mine.json", id="a-file-below"),
    ],
)
def test_a_name_of_a_page_is_a_file_and_any_other_a_folder(out, page, numbers, tmp_path):
    assert report_of().save(tmp_path / out) == tmp_path / page
    assert (tmp_path / page).is_file()
    assert (tmp_path / numbers).is_file()


def find_open(report):
    """The titles of what is unfolded on a page."""
    return re.findall(r"<details open><summary>([^<]*)", report._repr_html_())


def test_what_to_do_is_unfolded_where_an_answer_is_bad():
    bad = replace(answer_to(SUPPORT, "failed"), result=STOPS)
    assert find_open(report_of(bad)) == ["Operators that do not run on the GPU"]
    assert find_open(report_of(replace(bad, status="passed"))) == []


def test_a_page_says_what_made_it_and_when(tmp_path):
    made = replace(report_of(), date="2026-11-30 09:15 UTC")
    text = made.save(tmp_path).read_text()
    assert "<h1>Metal Lab doctor" in text
    assert "2026-11-30 09:15 UTC" in text
    assert load_report(tmp_path / "doctor.json").date == made.date


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        pytest.param([("4", "Conv2d"), ("0", "Conv2d")], "layers 4 and 0 (Conv2d)", id="two"),
        pytest.param([("4", "Conv2d")], "layer 4 (Conv2d)", id="one"),
        pytest.param([("4", "ReLU"), ("0", "Tanh")], "layer 4 (ReLU), layer 0 (Tanh)", id="unlike"),
        pytest.param([], "", id="none"),
    ],
)
def test_layers_are_called_by_place_and_kind(layers, words):
    assert wording.name_layers([Layer(*each) for each in layers]) == words


def test_each_answer_is_printed_once_and_in_order(monkeypatch, tmp_path, capsys):
    pretend(monkeypatch)
    main(["doctor", "mine:example", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    numbers = re.findall(r"^(\d)\. ", out, re.MULTILINE)
    assert numbers == sorted(numbers)
    asked = re.findall(r"^(\d) of \d: ", err, re.MULTILINE)
    assert asked == [*map(str, range(1, len(QUESTIONS) + 1))]
    assert wording.describe(RUNS)[0] not in err


def test_a_notebook_shows_a_part_of_a_page(tmp_path):
    assert "<html" in report_of().save(tmp_path).read_text()
    assert "<html" not in report_of()._repr_html_()


@pytest.mark.parametrize(
    ("statuses", "numbers"),
    [
        pytest.param({5: "failed"}, "5", id="one"),
        pytest.param({6: "incomplete", 2: "failed", 3: "skipped"}, "2, 3, 6", id="three"),
        pytest.param({4: "skipped"}, "4", id="none is bad"),
    ],
)
def test_the_headline_names_the_worst_first(statuses, numbers):
    answers = [answer_to(each, statuses.get(each.number, "passed")) for each in QUESTIONS]
    assert ", ".join(re.findall(r"\d", report_of(*answers).headline)) == numbers


def test_a_wrong_operator_comes_before_the_exception_that_it_may_cause():
    raises = answer_to(SUPPORT, "failed", UNEXPLAINED)
    wrong = answer_to(CORRECTNESS, "failed", WRONG)
    assert report_of(raises, wrong).worst is wrong


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)
def test_no_answer_points_to_itself(question):
    answers = [answer_to(question, result=result) for result in RESULTS[question.key]]
    assert [each for each in answers if f"see answer {question.number}" in each.sentence] == []


def test_an_unexplained_exception_sends_nobody_to_its_answer_for_advice():
    raises = answer_to(SUPPORT, "failed", UNEXPLAINED)
    stops = replace(raises, result=RUNS)
    assert raises.problem.advice != stops.problem.advice


def test_a_headline_does_not_say_that_what_ran_does_not_run():
    runs = answer_to(SUPPORT, "incomplete", CONTRADICTED)
    assert runs.problem.what not in {
        each.what for each in (SUPPORT.problem("failed"), SUPPORT.problem("incomplete"))
    }


def test_without_a_program_none_is_to_be_reported():
    shown, hidden = (answer_to(CORRECTNESS, "failed", each) for each in (WRONG, NO_PROGRAM))
    assert "program" in shown.problem.advice
    assert "program" not in hidden.problem.advice


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["--minutes=soon", "--minutes=0", "--memory=16"])
def test_misuse_ends_with_2(given, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", "mine:example", given])
    assert end.value.code == 2
    assert given.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "outcomes"),
    [
        pytest.param(0, {}, id="all is well"),
        pytest.param(0, {"speed": result(answer_to(SPEED, "incomplete"))}, id="incomplete"),
        pytest.param(
            1,
            {"correctness": result(answer_to(CORRECTNESS, "failed", WRONG)), "support": ABORTED},
            id="wrong, and one is missing",
        ),
        pytest.param(2, {"support": ABORTED}, id="one is missing"),
        pytest.param(
            2,
            {"correctness": result(answer_to(CORRECTNESS, "skipped", NO_ANSWERS[0]))},
            id="no Apple GPU",
        ),
    ],
)
def test_the_exit_code_is_the_worst_of_the_answers(code, outcomes, monkeypatch, tmp_path, capsys):
    pretend(monkeypatch, outcomes)
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == code
    assert str(tmp_path / "doctor.html") in capsys.readouterr().out


def test_what_is_no_model_ends_with_2(monkeypatch, tmp_path, capsys):
    kinds = ("NotAModel", "ValueError")
    pretend(monkeypatch, {"inspect": Outcome("raised", reason="NotAModel: give one", kinds=kinds)})
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == 2
    assert "doctor: give one" in capsys.readouterr().err


def test_where_no_process_can_be_started_the_command_says_so_and_ends_with_2(
    monkeypatch, tmp_path, capsys
):
    def refuse(*_, **__):
        raise isolated.ChildFailed("the folder for temporary files takes none")

    monkeypatch.setattr(isolated, "run", refuse)
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == 2
    assert "metallab doctor: the folder for temporary files" in capsys.readouterr().err


def test_another_machine_is_asked_about(monkeypatch, tmp_path):
    calls = pretend(monkeypatch)
    main(["doctor", "mine:example", "--memory", "16GB", "--out", str(tmp_path)])
    assert any(f", {16 * 2**30})" in source for source, _ in calls)


@pytest.fixture
def interrupt_after(monkeypatch):
    """A function that lets somebody press Ctrl-C when so many questions have been answered; till then all is well."""
    pretend(monkeypatch)
    ask = examination._ask

    def interrupt_after(count):
        def interrupt(question, *rest):
            if in_asking_order().index(question) >= count:
                raise KeyboardInterrupt
            return ask(question, *rest)

        monkeypatch.setattr(examination, "_ask", interrupt)

    return interrupt_after


def test_ctrl_c_keeps_the_answers_that_there_are(interrupt_after, tmp_path):
    interrupt_after(2)
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == 130
    report = load_report(tmp_path / "doctor.json")
    assert report.interrupted
    assert [answer.question for answer in report.answers] == [SUPPORT, FOOTPRINT]


def test_ctrl_c_before_the_first_answer_leaves_no_report(interrupt_after, tmp_path):
    interrupt_after(0)
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == 130
    assert not (tmp_path / "doctor.json").exists()


def test_a_folder_that_takes_no_files_is_refused_first(monkeypatch, tmp_path, capsys):
    calls = pretend(monkeypatch)
    (tmp_path / "file").touch()
    assert main(["doctor", "mine:example", "--out", str(tmp_path / "file" / "below")]) == 2
    assert "--out" in capsys.readouterr().err
    assert calls == []


def test_answers_that_cannot_be_saved_any_more_are_printed_and_end_with_2(
    monkeypatch, tmp_path, capsys
):
    pretend(monkeypatch)
    (tmp_path / "doctor.json").mkdir()  # the folder takes other files
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out
    assert shown.err.splitlines()[-1].startswith("metallab doctor: ")


# ---- other words -----------------------------------------------------------------------------------------------------

OTHER_WORDS = (
    "differs, falls back, this machine, no float64, it needs more than 7 of 8 calls, NOT FIT"
)
"""Words that decisions were taken by, once."""


def decide(answer):
    """What is decided from an answer, without its words."""
    report = report_of(answer, answer_to(SPEED, "skipped"), answer_to(PROFILE, "incomplete"))
    again = Answer.from_json(answer.to_json())
    return again, len(answer.evidence), report.worst.question.key, exit_code(report)


@pytest.mark.parametrize("phrase", wording.PHRASES)
def test_a_reworded_phrase_changes_no_decision(phrase, monkeypatch):
    known = [decide(answer) for answer in all_answers()]
    monkeypatch.setitem(wording.PHRASES, phrase, OTHER_WORDS)
    assert [decide(answer) for answer in all_answers()] == known


def make_audits():
    """Two audits: one with something of each kind to say, and the same where no package, tool or version is wrong."""
    found = Audit(
        machine=machine.describe(),
        checks=(
            DeviceCheck("torch", "mps", "agrees"),
            DeviceCheck("jax", "metal", "differs", "2"),
            DeviceCheck("tensorflow", "", "refused", "no device"),
        ),
        absent=("mlx",),
        packages=("onnx",),
        tools=(needs.MissingTool("a compiler", "make packages"),),
        compared=3,
        differences=(Difference("numpy", "2.0", "1.26"),),
        fitness="fit for measuring",
    )

    return found, replace(found, packages=(), tools=(), differences=())


@pytest.mark.parametrize("phrase", wording.PHRASES)
def test_a_phrase_is_shown_somewhere(phrase, monkeypatch):
    """So a phrase that nothing uses is found, and each is taken from here whenever it is shown."""
    monkeypatch.setitem(wording.PHRASES, phrase, "REWORDED")
    pretend(monkeypatch)

    shown = list(map(str, all_answers()))
    shown += [report_of(answer_to(SUPPORT, "failed")).headline, report_of()._repr_html_()]
    two = report_of(answer_to(SUPPORT, "failed"), answer_to(SPEED, "skipped"))
    shown += [two.headline, replace(two, interrupted=True).headline, report_of().headline]
    shown += [line for audit in make_audits() for line in wording.audit_lines(audit)]
    doctor.examine("mine:example", progress=shown.append)

    assert "REWORDED" in "\n".join(shown), (
        f"no result says it: add one that does to RESULTS of tests/support/doctor_results.py: {phrase!r}"
    )


WITHOUT_SENTENCES = (
    *("answer", "correctness", "footprint", "formats", "limits", "profile", "results", "speed"),
    *("support", "worker"),
)


@pytest.mark.parametrize("name", WITHOUT_SENTENCES)
def test_no_sentence_stands_beside_the_numbers(name):
    assert find_sentences(paths.ROOT / "utils" / "metallab" / "doctor" / f"{name}.py") == []


@pytest.mark.parametrize("name", ["refusals", "state", "steps", "workbench"])
def test_no_sentence_stands_beside_the_steps(name):
    assert find_sentences(paths.ROOT / "utils" / "metallab" / "project" / f"{name}.py") == []


def find_sentences(file):
    """The texts of five words or more in a module, docstrings aside: names of variants have four."""
    tree = ast.parse(file.read_text("utf-8"))
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
    ]
    return [text for text in texts if len(text.split()) > 4]
