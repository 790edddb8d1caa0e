"""Page 90's steps refuse what no result supports, survive a kernel, and say in the report what is not known."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from doctor_results import (
    AGREES,
    COPIES,
    FITS,
    MAC,
    MODEL,
    NO_ANSWERS,
    OVERFLOWS,
    RUNS,
    SO_FAR,
    SOUND,
    STOPS,
    WRONG,
    answer_to,
)

from metallab import checks, device, needs, project, units
from metallab.doctor import wording as doctor_wording
from metallab.doctor import worker
from metallab.doctor.limits import Limits
from metallab.doctor.questions import (
    CORRECTNESS,
    FOOTPRINT,
    FORMATS,
    PROFILE,
    SUPPORT,
    in_asking_order,
)
from metallab.doctor.report import Report
from metallab.doctor.results import Asked
from metallab.exercises import check
from metallab.project import Refusal, Refused, claims, steps, wording, workbench
from metallab.project.state import Basis
from metallab.pytorch.errors import NotAModel
from metallab.pytorch.model import ModelUnderTest, as_model, load_model, unload_module

SCRIPT = """
import torch

def step(heat):
    return heat + 0.1 * (heat.roll(1, 0) - heat)

def example():
    torch.manual_seed(0)
    return step, (torch.rand(8, 8),)

def moved():
    torch.manual_seed(0)
    return lambda heat: 0.9 * heat + 0.1 * heat.roll(1, 0), (torch.rand(8, 8),)

def other():
    return lambda heat: heat + 1, example()[1]

def root():
    weight = torch.nn.Parameter(torch.ones(()))
    class Root(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))
        def forward(self, x):
            return (self.weight * x).sqrt()
    return Root(), (torch.ones(4),)

def renamed():
    return torch.nn.Sequential(root()[0]), root()[1]

def detached():
    class Detached(type(root()[0])):
        def forward(self, x):
            return super().forward(x) + 3 * (self.weight - self.weight.detach())
    return Detached(), root()[1]

def unused():
    class Unused(type(root()[0])):
        def __init__(self):
            super().__init__()
            self.spare = torch.nn.Parameter(torch.ones(()))
    return Unused(), root()[1]

def dropping():
    return torch.nn.functional.dropout, (torch.ones(64),)
"""


def examine(factory, questions=None, **_):
    """Find everything good, as the doctor might, and the factory `bad` not."""
    status = "failed" if factory.endswith("bad") else "passed"
    asked = in_asking_order() if questions is None else questions
    answers = sorted((answer_to(each, status) for each in asked), key=lambda each: each.number)
    return Report(factory, MODEL, tuple(answers), torch.__version__)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A project on the CPU whose script is `heat.py`."""
    (tmp_path / "heat.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(workbench.doctor, "examine", examine)
    # it withholds each speed-up, however busy the machine is
    monkeypatch.setenv("METALLAB_MODE", "fast")
    unload_module("heat")
    return project.Project(tmp_path / "out", on=device.cpu())


def begin(work, moved="heat:moved", script="heat:example"):
    work.step(1)(script)
    work.step(2)([moved, "one pass over memory"])
    return work


def give(work, question, result, status="passed", which="moved", **fields):
    """Let the doctor have found something else."""
    known = work.state.examined[which]
    answers = [
        answer_to(each.question, status, result, **fields) if each.question is question else each
        for each in known.report.answers
    ]
    report = replace(known.report, answers=tuple(answers))
    work.state.examined[which] = replace(known, report=report)


def refuse(work, number, given):
    """Return why a step refuses what it is given."""
    with pytest.raises(Refused) as raised:
        work.step(number)(given)
    assert work.rows[number - 1].status == "failed"
    return raised.value.reason


ALL_STEPS = [
    "float32",
    lambda heat: (1e6 * heat,),
    "roll",
    "inference",
    ["float32", 1e-3],
    16,
    "The heat is the same.",
]
"""What steps 3 to 9 are given."""


def finish(work):
    for number, given in enumerate(ALL_STEPS, 3):
        assert work.step(number)(given) is True
    return work


# ---- all steps -------------------------------------------------------------------------------------------------------


def test_a_function_of_tensors_goes_through_all_steps(work):
    statuses = [row.status for row in finish(begin(work)).rows]
    assert statuses == [*["passed"] * 5, "incomplete", *["passed"] * 3], "no verdict in fast mode"


def test_a_step_prints_what_it_found(work, capsys):
    begin(work).step(5)("roll")
    assert "60%" in capsys.readouterr().out


def test_a_report_leads_to_the_doctors_pages_and_says_when(work):
    page = finish(begin(work)).save().read_text("utf-8")
    links = re.findall(r'href="([^"]*)"', page)
    assert links == [f"{which}/doctor.html" for which in work.state.examined]
    assert links
    assert all((work.folder / link).is_file() for link in links)
    top = page[: page.index("<table>")]
    assert re.search(r"Metal Lab, \d{4}-\d\d-\d\d", top)


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_the_report_has_the_sentence_and_what_was_asked(work, name):
    text = finish(begin(work)).save().with_name(name).read_text("utf-8")
    words = ("heat:example, moved: heat:moved", ALL_STEPS[-1], "No Mac has run it", "operators of")
    assert [each for each in words if each not in text] == []


def test_the_report_is_a_page(work):
    page = finish(begin(work)).save().with_suffix(".md").read_text("utf-8")
    assert len(page.partition("## Details")[0].split()) < 450


def test_an_answer_of_a_check_is_short(work):
    with pytest.raises(checks.WrongAnswer) as raised:
        check("90.9", "Good work.", work)
    assert len(str(raised.value)) < 500
    assert str(raised.value).count("\n") < 3


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_steps_survive_the_kernel(work):
    begin(work).step(3)("float32")
    again = project.Project(work.folder, on=work.on)
    assert [row.status for row in again.rows][:4] == [*["passed"] * 3, "skipped"]
    assert again.rows == work.rows


def test_steps_age_with_the_file(work, tmp_path):
    begin(work)
    (tmp_path / "heat.py").write_text(SCRIPT + "# edited\n")
    assert [row.status for row in work.rows[:2]] == ["incomplete"] * 2
    assert work.rows[0].is_outdated


def test_what_is_not_done_is_not_known(work):
    assert any("Step 4" in line for line in begin(work).unknown)


def test_a_file_of_another_version_is_begun_anew_and_kept(work, capsys):
    begin(work)
    file = work.folder / "steps.json"
    file.write_text('{"steps": {"1": {"outcome": "good"}}}')
    again = project.Project(work.folder, on=work.on)
    assert {row.status for row in again.rows} == {"skipped"}
    assert "steps.older.json" in capsys.readouterr().out
    assert json.loads(file.with_name("steps.older.json").read_text())["steps"]["1"]


def test_an_interrupted_step_says_so(work, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(workbench.doctor, "examine", interrupt)
    with pytest.raises(KeyboardInterrupt):
        work.step(1)("heat:example")

    assert work.rows[0].status == "failed"
    assert work.rows[0].refusal == "Interrupted."


def test_an_interrupted_report_is_not_kept(work, monkeypatch):
    interrupted = replace(examine("heat:example"), interrupted=True)
    monkeypatch.setattr(workbench.doctor, "examine", lambda *_, **__: interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.step(1)("heat:example")
    assert work.state.examined == {}


@pytest.mark.parametrize("number", [0, 10])
def test_there_is_no_step_but_the_nine(work, number):
    with pytest.raises(IndexError):
        work.step(number)


def test_a_moved_file_that_changed_wants_step_2_again(work, tmp_path):
    begin(work)
    (tmp_path / "heat.py").write_text(SCRIPT + "# edited\n")
    assert refuse(work, 3, "float32") is Refusal.FILE_CHANGED


def now_with_another_library(factory, minutes):
    return Basis(factory, "", minutes, "99", "new")


def test_another_pytorch_or_library_wants_the_doctor_again(work, monkeypatch):
    begin(work)
    monkeypatch.setattr(Basis, "now", now_with_another_library)
    assert refuse(work, 2, ["heat:moved", "one pass"]) is Refusal.LIBRARY_CHANGED
    assert begin(work).state.examined["moved"].basis.torch == "99"


# ---- 1 and 2 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["heat.py", "heat:nothing", "nowhere:example", 3, None])
def test_a_wrong_file_is_refused(work, factory, monkeypatch):
    monkeypatch.setattr(workbench.doctor, "examine", lambda factory, **_: load_model(factory))
    refuse(work, 1, factory)


def test_operators_in_the_way_are_named_without_their_namespace(work, monkeypatch):
    work.step(1)("heat:example")
    give(work, SUPPORT, STOPS, "failed", which="script")
    stored = work.state.examined["script"].report
    monkeypatch.setattr(work, "examine", lambda *_: stored)
    work.step(1)("heat:example")
    assert "on the CPU (raises: a tensor is on the CPU)" in work.rows[0].finding.summary


def test_steps_want_those_before_them(work):
    assert refuse(work, 2, ["heat:moved", "one pass"]) is Refusal.STEP_MISSING
    work.step(1)("heat:example")
    assert refuse(work, 3, "float32") is Refusal.STEP_MISSING


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(["heat:bad", "one pass"], Refusal.DOES_NOT_RUN, id="does not run"),
        pytest.param(["heat:moved", ""], Refusal.NO_CHANGE, id="no change"),
        pytest.param(["heat:moved", "it is faster"], Refusal.CHANGE_CLAIMS_SPEED, id="speed"),
        pytest.param(None, Refusal.NO_MOVE, id="nothing"),
    ],
)
def test_a_move_wants_a_model_that_runs_and_a_change(work, given, reason):
    begin(work)
    assert refuse(work, 2, given) is reason
    assert work.state.examined["moved"].basis.factory == "heat:moved"


# ---- 3 ---------------------------------------------------------------------------------------------------------------


def test_parity_is_refused_where_outputs_differ(work):
    assert refuse(begin(work, "heat:other"), 3, "float32") is Refusal.OUTPUTS_DIFFER


def test_a_loose_number_format_is_refused(work):
    assert refuse(begin(work), 3, "bfloat16") is Refusal.LOOSE_DTYPE


def test_parity_is_refused_where_gradients_differ(work):
    begin(work, "heat:detached", "heat:root")
    assert refuse(work, 3, "float32") is Refusal.OUTPUTS_DIFFER
    assert "gradient of weight" in work.rows[2].refusal


def test_a_wrong_operator_is_refused(work):
    give(begin(work), CORRECTNESS, WRONG, "failed")
    assert refuse(work, 3, "float32") is Refusal.WRONG_OPERATOR


def test_what_was_not_compared_is_named(work):
    begin(work, "heat:renamed", "heat:root")
    give(work, CORRECTNESS, SO_FAR, "incomplete")
    work.step(3)("float32")
    left = "\n".join(work.rows[2].finding.open_points)
    words = ("return that", "gradients of 1 tensor ", "4 of 40 calls", "aten::lstm", "and 2 more")
    assert [each for each in words if each not in left] == []
    assert set(work.rows[2].finding.open_points) <= set(work.unknown)


def test_calls_that_cannot_be_compared_do_not_lack_time(work):
    """Such as those that draw random numbers: more minutes would not help them."""
    result = replace(AGREES, runs=tuple(replace(run, uncompared=3) for run in AGREES.runs))
    give(begin(work), CORRECTNESS, result)

    work.step(3)("float32")

    left = "\n".join(work.rows[2].finding.open_points)
    assert "lack of time" not in left


def test_without_an_apple_gpu_operators_were_not_compared(work):
    give(begin(work), CORRECTNESS, NO_ANSWERS[0], "skipped")
    work.step(3)("float32")
    finding = work.rows[2].finding
    assert finding.operators is None
    assert any("operators, one by one" in line for line in finding.open_points)


# ---- 4 to 8 ----------------------------------------------------------------------------------------------------------


def test_inputs_that_are_the_same_are_refused(work):
    begin(work, "heat:root")
    assert refuse(work, 4, lambda x: (x.clone(),)) is Refusal.SAME_INPUTS


def test_other_inputs_may_be_made_in_place(work):
    """The function is given copies, so that they are compared with the factory's own, which are tried as well."""
    begin(work, "heat:root")
    assert work.step(4)(lambda x: (x.mul_(2),)) is True


def test_own_inputs_that_make_nan_are_refused_though_the_function_changes_them(work, tmp_path):
    file = tmp_path / "heat.py"
    file.write_text(
        file.read_text() + "\ndef negative():\n    return root()[0], (-torch.ones(4),)\n"
    )
    begin(work, "heat:negative", "heat:root")

    def repair(x):
        x.fill_(1)
        return (2 * x,)

    assert refuse(work, 4, repair) is Refusal.NOT_FINITE


def test_inputs_that_make_nan_are_refused(work):
    begin(work, "heat:root")
    assert refuse(work, 4, lambda x: (0 * x,)) is Refusal.NOT_FINITE


def test_a_weight_without_a_gradient_is_not_counted_as_finite(work):
    begin(work, "heat:unused").step(4)(lambda x: (2 * x,))
    assert units.count(1, "tensor") in work.rows[3].finding.summary


def test_where_a_nan_comes_from_is_asked_with_the_loss_on_the_device(monkeypatch):
    """`divergence.find` gets the loss of the model that was moved, and not that of the one that was given."""
    negative = as_model((torch.sqrt, (-torch.ones(2),)), "test")
    on_device = replace(negative, loss=torch.sum)
    losses = []

    def find(model, inputs, loss, **_):
        losses.append(loss)
        return SimpleNamespace(divergent_call=None)

    monkeypatch.setattr(ModelUnderTest, "to", lambda *_: on_device)
    monkeypatch.setattr(steps.divergence, "find", find)
    with pytest.raises(Refused):  # the square root of -1 is NaN
        steps._assert_finite(negative, device.cpu(), "yours")
    assert losses == [torch.sum]


@pytest.mark.parametrize(
    ("number", "given", "reason"),
    [
        pytest.param(5, "conv2d", Refusal.UNKNOWN_OPERATOR, id="not traced"),
        pytest.param(5, "", Refusal.NO_OPERATOR, id="no operator"),
        pytest.param(6, "faster", Refusal.NO_TASK, id="no task"),
        pytest.param(6, "training step", Refusal.NOTHING_TO_TRAIN, id="nothing to train"),
        pytest.param(7, ["float32", 1e-9], Refusal.LARGE_ERROR, id="large error"),
        pytest.param(7, ["float32", 5], Refusal.NO_ERROR, id="no error"),
        pytest.param(7, ["int8", 0.1], Refusal.UNKNOWN_FORMAT, id="unknown format"),
        pytest.param(7, "float32", Refusal.NO_FORMAT, id="no pair"),
        pytest.param(8, "8 GB", Refusal.NO_MEMORY, id="a text"),
        pytest.param(8, 0, Refusal.NO_MEMORY, id="nothing"),
        pytest.param(8, True, Refusal.NO_MEMORY, id="a truth value"),
    ],
)
def test_what_the_tools_do_not_report_is_refused(work, number, given, reason):
    assert refuse(begin(work), number, given) is reason


@pytest.mark.parametrize("name", ["float16, autocast", "bfloat16, cast", "bfloat16, autocast"])
def test_a_format_that_is_not_sound_is_refused(work, name):
    give(begin(work), FORMATS, OVERFLOWS)
    assert refuse(work, 7, [name, 0.1]) is Refusal.UNSOUND_FORMAT


def test_an_error_is_accepted_as_it_is_shown(work):
    run = replace(SOUND.formats[0], error=1.04e-3)
    give(begin(work), FORMATS, replace(SOUND, formats=(run,)))
    assert work.step(7)(["float32", float(doctor_wording.error(run))])


@pytest.mark.parametrize(
    ("number", "question", "reason"),
    [
        (5, PROFILE, Refusal.NO_OPERATORS_KNOWN),
        (7, FORMATS, Refusal.NO_FORMATS_KNOWN),
    ],
)
def test_where_the_doctor_has_no_answer_a_step_says_why(work, number, question, reason):
    begin(work)
    for which in ("script", "moved"):
        give(work, question, NO_ANSWERS[1], "skipped", which=which)
    assert refuse(work, number, ["float32", 0.1] if number == 7 else "roll") is reason


def test_a_copy_can_be_looked_into(work):
    give(begin(work), PROFILE, COPIES)
    work.step(5)("_to_copy")
    finding = work.rows[4].finding
    assert "8 B to host" in finding.summary
    assert "most: roll" in finding.summary
    assert "1 hidden copy" in finding.details[0]


def test_the_device_is_named_on_which_the_operator_was_timed(work):
    """The moved model's answer is lacking, as after its time ran out, and the script's has the operator."""
    begin(work)
    on_the_cpu = Asked(device="the CPU of the script")
    give(work, PROFILE, COPIES, which="script", asked=on_the_cpu)
    give(work, PROFILE, NO_ANSWERS[1], "skipped", asked=Asked())

    work.step(5)("roll")

    assert work.rows[4].finding.operators == on_the_cpu


@pytest.mark.parametrize(
    ("usable", "reason"),
    [(MAC.usable, None), (1, Refusal.DOES_NOT_FIT)],
)
def test_a_mac_that_is_too_small_is_refused(work, usable, reason, monkeypatch):
    begin(work)
    result = replace(FITS, machines=(FITS.machines[0], replace(MAC, usable=usable)))
    answer = answer_to(FOOTPRINT, result=result)
    monkeypatch.setattr(work, "examine_memory", lambda _: answer)
    assert (refuse(work, 8, 8) if reason else work.step(8)(8) and None) is reason


def test_no_time_is_compared_where_outputs_differ(work):
    assert refuse(begin(work, "heat:other"), 6, "inference") is Refusal.TIMES_NOT_COMPARED


def test_random_outputs_are_advised_about(work):
    script = "heat:dropping"
    assert refuse(begin(work, script, script), 6, "inference") is Refusal.TIMES_OF_RANDOM_OUTPUTS


# ---- 9 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("It is faster than the script.", Refusal.SPEED_NOT_ESTABLISHED),
        ("It halves the time of a step.", Refusal.SPEED_NOT_ESTABLISHED),
        ("It needs 77 MiB for each step.", Refusal.UNKNOWN_NUMBER),
        ("It runs on my iMac as it is.", Refusal.NO_MAC),
        ("It works on Apple computers.", Refusal.NO_MAC),
        ("A step takes 8 ms where the script takes 9.", Refusal.UNKNOWN_NUMBER),
        ("Good work.", Refusal.NO_SENTENCE),
        (None, Refusal.NO_SENTENCE),
    ],
)
def test_a_sentence_that_no_result_supports_is_refused(work, sentence, reason):
    assert refuse(begin(work), 9, sentence) is reason


SLOWER = "The moved step is faster than the script."


def test_faster_is_supported_by_a_speed_up(work, monkeypatch):
    begin(work)
    monkeypatch.setattr(work, "verdicts", lambda: {"moved takes half the time": "faster"})
    assert work.step(9)(SLOWER)


@pytest.mark.parametrize("verdict", ["slower", "withheld"])
def test_faster_is_refused_without_one(work, verdict, monkeypatch):
    begin(work)
    monkeypatch.setattr(work, "verdicts", lambda: {"moved takes half the time": verdict})
    assert refuse(work, 9, SLOWER) is Refusal.SPEED_NOT_ESTABLISHED
    assert "takes half the time" in work.rows[8].refusal


def test_what_is_denied_claims_nothing(work):
    assert begin(work).step(9)("Whether it is faster is not known here.")


def test_a_number_is_taken_from_the_report(work):
    begin(work).step(5)("roll")
    assert work.step(9)("The rolling takes 60 % of a step.")


# ---- other words -----------------------------------------------------------------------------------------------------

OTHER_WORDS = "differs, falls back, this machine, no float64, NOT FIT, no speed-up is given, itself"
"""Words that decisions were taken by, once."""


def decide(work):
    """Go through all steps; return what was decided, without its words."""
    finish(begin(work))
    refused = [refuse(work, 3, "bfloat16"), refuse(work, 7, ["float32", 1e-9])]
    give(work, CORRECTNESS, SO_FAR, "incomplete")
    work.step(3)("float32")
    rows = [(row.status, row.is_outdated) for row in work.rows]
    points = [len(row.finding.open_points) for row in work.rows if row.finding]
    return refused, rows, points, len(work.unknown)


@pytest.mark.parametrize("module", [wording, doctor_wording], ids=["project", "doctor"])
def test_other_words_change_no_decision(work, module, monkeypatch):
    known = decide(work)
    for phrase in module.PHRASES:
        monkeypatch.setitem(module.PHRASES, phrase, OTHER_WORDS)
    assert decide(work) == known


def count_phrases(work, words, monkeypatch):
    """Let every phrase be the same words; return how many of them each step shows."""
    for phrases in (wording.PHRASES, doctor_wording.PHRASES):
        for phrase in phrases:
            monkeypatch.setitem(phrases, phrase, words)
    decide(work)
    return ["\n".join(row.lines).count(words) for row in work.rows]


def test_other_words_choose_no_other_phrase(work, monkeypatch):
    counts = count_phrases(work, "MEANINGLESS", monkeypatch)
    assert count_phrases(work, OTHER_WORDS, monkeypatch) == counts


@pytest.mark.parametrize("reason", Refusal)
def test_each_refusal_has_words(reason):
    assert f"refusal: {reason}" in wording.PHRASES


def test_every_phrase_of_a_refusal_is_one():
    phrases = [each for each in wording.PHRASES if each.startswith("refusal: ")]
    assert len(phrases) == len(Refusal)


# ---- models of a reader ----------------------------------------------------------------------------------------------


def test_a_function_is_a_model_without_weights():
    made = as_model((torch.relu, torch.ones(2)), "x:y")

    assert type(made.model).__name__ == "relu"
    assert not made.can_train


def test_a_number_is_no_model():
    with pytest.raises(NotAModel):
        as_model((3, torch.ones(2)), "x:y")


def test_memory_of_a_function_is_that_of_a_call():
    made = as_model((lambda x: x.exp().sin(), torch.ones(1024, 1024)), "x:y")
    answer = worker.answer(FOOTPRINT, made, Limits())
    assert answer.status == "passed"
    assert answer.result.needed == 12 * 2**20


@pytest.fixture
def gaps(monkeypatch):
    """What the page has not run, as it is remembered for its end."""
    found = []
    monkeypatch.setattr(needs, "_not_run", found)
    return found


def examine_without_apple_gpu(factory, **settings):
    """Answer as the doctor does where no Apple GPU can be used, be it simulated."""
    results = {SUPPORT.key: replace(RUNS, trial=None)}
    results[CORRECTNESS.key] = NO_ANSWERS[0]
    report = examine(factory, **settings)
    answers = [
        replace(each, result=results.get(each.question.key, each.result)) for each in report.answers
    ]
    return replace(report, answers=tuple(answers))


@pytest.mark.parametrize("is_here", [True, False], ids=["unusable", "absent"])
def test_what_no_apple_gpu_tried_makes_the_page_incomplete(work, gaps, is_here, monkeypatch):
    """Its answer then comes from PyTorch's list of operators alone."""
    tool = replace(needs.TOOLS["apple-gpu"], is_here=lambda: is_here, fix=lambda: "buy one")
    monkeypatch.setitem(needs.TOOLS, "apple-gpu", tool)
    monkeypatch.setattr(workbench.doctor, "examine", examine_without_apple_gpu)
    begin(work).step(3)("float32")
    assert [told["what"].partition(" needs")[0] for _, told in gaps] == ["step 2", "step 3"]
    assert {told["fix"] for _, told in gaps} == {needs.SETUP if is_here else "buy one"}


def test_with_an_apple_gpu_nothing_is_left_out(work, gaps):
    begin(work).step(3)("float32")
    assert gaps == []


# ---- the reader's sentence -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("It is slower on the GPU.", "", id="supported"),
        pytest.param("It is faster on the GPU.", "faster", id="not supported"),
        pytest.param("Slower on a CPU, three times as fast here.", "times", id="the second one"),
        pytest.param("It is not faster.", "", id="negated"),
    ],
)
def test_each_word_about_speed_needs_a_verdict(text, word):
    assert claims.find_unsupported_speed_word(text, {"The step took longer.": "slower"}) == word
