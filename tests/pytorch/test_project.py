"""Page 90's steps refuse what no result supports, survive a kernel, and say in the report what is not known."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from metallab import checks, device, needs
from metallab.exercises import check
from metallab.pytorch import project
from metallab.pytorch.doctor import Answer, NotAModel, Report, asking, report, subject
from metallab.pytorch.doctor.answer import QUESTIONS, Evidence
from metallab.tables import Table

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
"""
LONGEST = Evidence("The longest", Table(["operator", "calls", "share"], [("aten::roll", 1, "60%")]))
ROWS = [("float32", "1.0e-07", "2 ms", "1 KiB"), ("float16, cast", "NaN", "not timed", "1 KiB")]
FORMATS = Evidence("Formats", Table(["format", "error", "inference", "kept"], ROWS))


def examined(factory, questions=range(1, 7), **_):
    """A doctor who finds everything good, and the factory `bad` not."""
    status = "failed" if factory.endswith("bad") else "passed"
    said, rows = {3: "no speed-up is given"}, {4: (LONGEST,), 6: (FORMATS,)}
    answers = [
        Answer(QUESTIONS[n - 1], status, said.get(n, f"Answer {n}"), "here", rows.get(n, ()))
        for n in questions
    ]
    return Report(factory, "step, 0 weights", tuple(answers), torch.__version__)


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A project on the CPU whose script is `heat.py`."""
    (tmp_path / "heat.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(project.doctor, "examine", examined)
    monkeypatch.setenv(
        "METALLAB_MODE", "fast"
    )  # which withholds each speed-up, however busy the machine is
    subject.forget("heat")
    return project.Project(tmp_path / "out", on=device.cpu())


def begun(work, moved="heat:moved"):
    work.step(1)("heat:example")
    work.step(2)([moved, "one pass over memory"])
    return work


def refusal(work, number, given):
    with pytest.raises(checks.WrongAnswer) as raised:
        check(f"90.{number}", given, work)
    message = str(raised.value)
    assert work.rows[number - 1]["words"] == "refused"
    assert (len(message) < 500, message.count("\n") < 3) == (True, True)
    return message


def test_a_function_of_tensors_goes_through_all_steps(work, capsys):
    begun(work)
    found = "The heat is the same."
    given = [
        "float32",
        lambda heat: (1e6 * heat,),
        "roll",
        "inference",
        ["float32", 1e-3],
        8,
        found,
    ]
    for number, each in enumerate(given, 3):
        assert work.step(number)(each) is True
    assert [row["words"] for row in work.rows] == [
        *["done"] * 5,
        "done without a verdict",
        *["done"] * 3,
    ]
    assert "60%" in capsys.readouterr().out
    page = work.save()
    text = page.with_suffix(".md").read_text("utf-8")
    for words in (
        "heat:example, moved: heat:moved",
        found,
        "No Mac has run it",
        "operators of here",
    ):
        assert words in text
        assert words in page.read_text("utf-8")
    assert len(text.partition("## Details")[0].split()) < 450


def test_steps_survive_the_kernel_and_age_with_the_file(work, tmp_path):
    begun(work).step(3)("float32")
    again = project.Project(work.folder, on=work.on)
    assert [row["words"] for row in again.rows][:4] == ["done"] * 3 + ["not done"]
    (tmp_path / "heat.py").write_text(SCRIPT + "# edited\n")
    assert {row["outcome"] for row in again.rows[:3]} == {project.OLD}
    assert "Step 4 (Is it finite for feared inputs?): not done." in again.unknown


@pytest.mark.parametrize("factory", ["heat.py", "heat:nothing", "nowhere:example", 3, None])
def test_a_wrong_file_is_refused(work, factory, monkeypatch):
    monkeypatch.setattr(project.doctor, "examine", lambda factory, **_: subject.made(factory))
    refusal(work, 1, factory)


def test_steps_want_those_before_them(work):
    assert "step 1" in refusal(work, 2, ["heat:moved", "one pass"])
    work.step(1)("heat:example")
    assert "step 2" in refusal(work, 3, "float32")


@pytest.mark.parametrize(
    "given", [["heat:bad", "one pass"], ["heat:moved", ""], ["heat:moved", "it is faster"], None]
)
def test_a_move_wants_a_model_that_runs_and_a_change(work, given):
    begun(work)
    refusal(work, 2, given)
    assert work.kept["examined"]["moved"]["factory"] == "heat:moved"


def test_parity_is_refused_where_outputs_differ(work):
    assert "differ" in refusal(begun(work, "heat:other"), 3, "float32")
    assert "let too much pass" in refusal(work, 3, "bfloat16")


def test_parity_is_refused_where_gradients_differ(work):
    work.step(1)("heat:root")
    work.step(2)(["heat:detached", "one more term"])
    assert "gradient of weight" in refusal(work, 3, "float32")


def test_what_was_not_compared_is_named(work):
    work.step(1)("heat:root")
    work.step(2)(["heat:renamed", "another name"])
    second = work.kept["examined"]["moved"]["answers"][1]
    second["sentence"] = (
        "3 of 4 calls of operators (1 of the root mean square). Not compared: aten::lstm.\nTo do: all."
    )
    assert work.step(3)("float32") is True
    assert (
        "3 calls of operators, one by one, agree with float64. Not all was compared"
        in work.rows[2]["found"][0]
    )
    assert [u.split()[2] for u in work.unknown[-5:]] == [
        "what",
        "gradients",
        "1",
        "aten::lstm.",
        "all.",
    ]
    second["sentence"] = "No Apple GPU."
    work.step(3)("float32")
    assert "Not compared: operators, one by one. No Apple GPU." in work.unknown


def test_a_moved_file_that_changed_wants_step_2_again(work, tmp_path):
    begun(work)
    (tmp_path / "heat.py").write_text(SCRIPT + "# edited\n")
    assert "repeat step 2" in refusal(work, 3, "float32")


def test_another_pytorch_or_library_wants_the_doctor_again(work, monkeypatch):
    begun(work)
    monkeypatch.setattr(project, "_versions", lambda: {"torch": "99", "library": "new"})
    assert "repeat step 1" in refusal(work, 2, ["heat:moved", "one pass"])
    assert begun(work).kept["examined"]["moved"]["torch"] == "99"


def test_inputs_that_are_the_same_or_make_nan_are_refused(work):
    begun(work, "heat:root")
    assert "factory" in refusal(work, 4, lambda x: (x.clone(),))
    assert "NaN or infinity" in refusal(work, 4, lambda x: (0 * x,))


@pytest.mark.parametrize(
    ("number", "given"),
    [
        (5, "conv2d"), (5, ""), (6, "faster"), (6, "training step"), (7, ["float32", 1e-9]), (7, ["float32", 5]),
        (7, ["float16, cast", 0.1]), (7, ["int8", 0.1]), (8, "8 GB"), (8, 0), (8, True),
    ],
)  # fmt: skip
def test_what_the_tools_do_not_report_is_refused(work, number, given):
    refusal(begun(work), number, given)


@pytest.mark.parametrize(
    "sentence",
    [
        "It is faster than the script.",
        "It halves the time of a step.",
        "It needs 77 MiB for each step.",
        "It runs on my iMac as it is.",
        "It works on Apple computers.",
        "A step takes 8 ms where the script takes 9.",
        "Good work.",
        None,
    ],
)
def test_a_sentence_that_no_result_supports_is_refused(work, sentence):
    begun(work)
    refusal(work, 9, sentence)


@pytest.mark.parametrize(
    ("found", "supported"), [("faster", True), ("slower", False), ("withheld", False)]
)
def test_faster_wants_a_speed_up_that_was_established(work, found, supported, monkeypatch):
    begun(work)
    monkeypatch.setattr(work, "_verdicts", lambda: {"moved takes half the time of script": found})
    sentence = "The moved step is faster than the script."
    assert (
        (work.step(9)(sentence) is True)
        if supported
        else "takes half the time" in refusal(work, 9, sentence)
    )
    assert work.step(9)("Whether it is faster is not known here.")


def test_a_number_is_taken_from_the_report(work):
    begun(work).step(5)("roll")
    assert work.step(9)("The rolling takes 60 % of a step.")


def test_no_time_is_compared_where_outputs_differ(work):
    assert "no time is compared" in refusal(begun(work, "heat:other"), 6, "inference")


def test_one_process_answers_all_questions(tmp_path, monkeypatch):
    """What it leaves open, because it crashed, is asked apart."""
    asked = [Answer(question, "passed", "Yes.") for question in QUESTIONS]
    done = report.isolated.Outcome("ok", results={"result": ("step", dict(enumerate(asked, 1)))})
    monkeypatch.setattr(report.isolated, "run_again", lambda *_, **__: done)
    found = report.examine("heat:example", together=True, progress=str)
    assert (found.model, found.answers) == ("step", tuple(asked))
    crashed = report.isolated.Outcome("crashed", reason="the process ended")
    monkeypatch.setattr(report.isolated, "run_again", lambda *_, **__: crashed)
    monkeypatch.setattr(report, "_look", lambda *_: ("apart", "cpu"))
    monkeypatch.setattr(report, "_run", lambda *_, **__: crashed)
    monkeypatch.setattr(report, "_answer", lambda number, *_: asked[number - 1])
    assert report.examine("heat:example", together=True, progress=str).model == "apart"


def test_a_function_is_a_model_without_weights():
    made = subject.checked((torch.relu, torch.ones(2)), "x:y")
    assert (type(made.model).__name__, made.trains) == ("relu", False)
    with pytest.raises(NotAModel):
        subject.checked((3, torch.ones(2)), "x:y")


def test_memory_of_a_function_is_that_of_a_call():
    made = subject.checked((lambda x: x.exp().sin(), torch.ones(1024, 1024)), "x:y")
    answer = asking.answered(5, made, asking.Limits())
    assert answer.status == "passed"
    assert "a call with its inputs needs 12 MiB" in answer.sentence


def test_what_no_apple_gpu_tried_makes_the_page_incomplete(work, monkeypatch, capsys):
    """Its answer then comes from PyTorch's list of operators alone."""
    absent = replace(needs.TOOLS["apple-gpu"], is_here=lambda: False, fix=lambda: "buy one")
    monkeypatch.setitem(needs.TOOLS, "apple-gpu", absent)
    begun(work)
    printed = capsys.readouterr().out
    assert printed.count("NOT RUN: step 2 needs an Apple GPU") == 1
    assert "step 1 needs" not in printed
