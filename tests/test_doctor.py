"""`metallab doctor`: planted faults are named, sound models are not accused, and one failure leaves the other answers.

What needs an Apple GPU runs in a child with the simulated device (children.py).
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import warnings
from collections import OrderedDict, UserDict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

sys.path.append(str(Path(__file__).parent / "benchmarks"))
import doctor_models  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from doctor_models import Function  # noqa: E402
from torch import nn  # noqa: E402

from metallab import isolated  # noqa: E402
from metallab.__main__ import main  # noqa: E402
from metallab.pytorch import doctor  # noqa: E402
from metallab.pytorch.doctor import questions, report, subject  # noqa: E402
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence  # noqa: E402
from metallab.tables import Table  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)

ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT / "utils"), "METALLAB_DEVICE": "sim", "METALLAB_MODE": "fast",
    "PYTORCH_ENABLE_MPS_FALLBACK": "0",
}  # fmt: skip


@functools.cache
def outcomes():
    return children.run(__file__, "simulated", on_simulated.checks, ENVIRONMENT)


on_simulated = children.Session(outcomes)

# ---------------------------------------------------------------- models


def layers(**named):
    """Layers and functions, one after the other, by name."""
    modules = {name: each if isinstance(each, nn.Module) else Function(each) for name, each in named.items()}
    return nn.Sequential(OrderedDict(modules))


class Attending(nn.Module):
    """Attention with a mask of minus infinity, whose scores are infinite in every format."""

    def __init__(self):
        super().__init__()
        self.scores, self.value, self.mask = nn.Linear(8, 8), nn.Linear(8, 8), Function(masked)

    def forward(self, x):
        return self.mask(self.scores(x) @ x.mT).softmax(-1) @ self.value(x)


def masked(scores):
    hidden = torch.ones(scores.shape[-2:], device=scores.device).triu(1).bool()
    return scores.masked_fill(hidden, -torch.inf)


class Volumes(nn.Module):
    """An operator that has no MPS kernel."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(2)

    def forward(self, x):
        return self.pool(self.conv(x))


class Evaluated(nn.Module):
    """A model that can only be evaluated, as detectors without targets are."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        assert not self.training, "targets should not be none in training mode"
        return self.layer(x)


def subject_of(model, *inputs, loss=None):
    torch.manual_seed(0)
    return subject.checked((model, inputs, loss), "tests:example")


def examined(factory):
    return subject.checked(factory(), "tests:example")


def sound():
    torch.manual_seed(0)
    target = torch.arange(4)
    model = layers(
        conv=nn.Conv2d(3, 8, 3), norm=nn.BatchNorm2d(8), relu=nn.ReLU(), mean=lambda x: x.mean((2, 3)),
        drop=nn.Dropout(0.1), head=nn.Linear(8, 10),
    )  # fmt: skip
    return subject_of(model, torch.randn(4, 3, 8, 8), loss=lambda output: nn.functional.cross_entropy(output, target))


# ---------------------------------------------------------------- 1, 2, 4: on the simulated GPU


@on_simulated
def test_sound_models_are_not_accused_on_the_simulated_gpu():
    for each in (sound(), subject_of(Attending(), torch.randn(2, 4, 8))):
        answers = [question(each, 60) for question in (questions.runs, questions.right, questions.spent)]
        assert [answer.outcome for answer in answers] == ["good"] * 3, answers
        assert "simulated Apple GPU" in answers[1].on
        assert "Nothing in it is copied" in answers[2].sentence


@on_simulated
def test_a_model_keeps_the_mode_that_the_factory_gave_it():
    each = subject_of(Evaluated().eval(), torch.ones(2, 4))
    answers = [question(each, 60) for question in (questions.runs, questions.right, questions.spent)]
    assert [answer.outcome for answer in answers] == ["good"] * 3, answers
    assert "as given, in evaluation mode" in answers[1].sentence
    assert "in training mode (targets should not be none" in answers[1].evidence[0].table.note


@on_simulated
def test_a_missing_operator_is_named_with_its_module_its_line_and_a_way_out():
    answer = questions.runs(subject_of(Volumes(), torch.randn(1, 1, 6, 6, 6)), 60)
    assert answer.outcome == "bad"
    assert "_adaptive_avg_pool3d has no MPS kernel" in answer.sentence
    assert "On the simulated Apple GPU it raised: " in answer.sentence
    ((operator, how, module, line, way_out),) = (row for row in answer.evidence[0].table.rows if "pool3d." in row[0])
    assert (operator, how, module) == ("aten::_adaptive_avg_pool3d.default", "missing", "pool")
    file, _, number = line.partition(":")
    assert Path(file).name == Path(__file__).name
    assert "self.pool(self.conv(x))" in Path(__file__).read_text().splitlines()[int(number) - 1]
    assert "PYTORCH_ENABLE_MPS_FALLBACK" in way_out
    spent = questions.spent(subject_of(Volumes(), torch.randn(1, 1, 6, 6, 6)), 60)
    assert "Its copies on an Apple GPU are not known, for it raises: " in spent.sentence


@on_simulated
def test_a_wrong_kernel_is_named_also_one_that_is_wrong_in_another_layout_than_the_given():
    with warnings.catch_warnings(action="ignore"), metalsim.plant("conv2d, non-contiguous input"):
        answer = questions.right(sound(), 60)
    assert answer.outcome == "bad"
    assert "No, with the inputs with their last two dimensions swapped in memory: WRONG KERNEL" in answer.sentence
    assert "aten::convolution in conv, the forward pass" in answer.sentence
    assert "contiguous" in answer.sentence.partition("Way out: ")[2]
    assert (
        "torch.testing.assert_close" in {each.title: each.text for each in answer.evidence}["A program that shows it"]
    )


@on_simulated
def test_what_there_was_no_time_to_compare_is_counted_and_never_called_right():
    each = sound()
    lab = questions.device.pick("sim")
    verdict = questions.blame.find(each.whole, each.arguments, lambda value: value, on=lab, seconds=0)
    assert verdict.judged == 0
    assert verdict.skipped > 10
    assert f"{verdict.skipped} more were not compared" in verdict.headline
    answer = questions.right(each, 1e-9)
    assert answer.outcome == "unanswered"
    assert "no time to compare" in answer.sentence


@on_simulated
def test_the_answer_says_how_many_calls_of_how_many_kinds_were_compared():
    layers = [nn.Linear(8, 8) for _ in range(4)]  # between them what is not compared, for it draws numbers
    model = nn.Sequential(*layers[:2], nn.Dropout(0.5), *layers[2:])
    answer = questions.right(subject_of(model, torch.randn(4, 8)), 60)
    count, kinds = map(
        int, re.search(r"Yes: all (\d+) calls of operators, of (\d+) kinds, agree", answer.sentence).groups()
    )
    assert count > 2 * kinds
    assert [row[1] for row in answer.evidence[0].table.rows] == [row[2] for row in answer.evidence[0].table.rows]
    asked = questions._Asked(questions.blame.Choice())
    asked.verdicts["as given"] = [questions.blame.Verdict("agrees", "a GPU", 1, 1e-7)]
    one, same, other = ({"layout": "l", "kind": kind, "call": call} for kind, call in (("k", 1), ("k", 2), ("m", 3)))
    asked.choice.met["as given"] = [one, same, other]
    asked.choice.compared |= {"k", 1}
    assert "Yes, as far as there was time: 1 of 3 calls of operators, 1 of 2 kinds, agree" in asked.agreement
    asked.choice.compared |= {"m", 3}
    assert "Yes: 2 of 3 calls of operators, one or more of each of 2 kinds, agree" in asked.agreement


@on_simulated
def test_what_no_apple_gpu_has_is_told_and_the_rest_is_asked_without_it():
    each = examined(doctor_models.double)
    runs, right, spent = (question(each, 60) for question in (questions.runs, questions.right, questions.spent))
    assert runs.outcome == "bad"
    assert "float64" in runs.sentence
    assert right.outcome == "good"
    assert right.sentence.endswith("Asked with float32 in place of float64, which no Apple GPU has.")
    assert "Nothing in it is copied" in spent.sentence
    assert each.model.scale.dtype == torch.float64


@on_simulated
def test_a_hidden_copy_is_named_with_its_module_and_gets_no_time_of_the_simulation():
    answer = questions.spent(examined(doctor_models.hidden_copy), 60)
    assert answer.outcome == "attention"
    assert "1 hidden copy and 0 fallbacks: _to_copy (to host) in 1" in answer.sentence
    (copies,) = (each.table for each in answer.evidence if each.title == "Copies and fallbacks")
    ((*_, at, _calls, size, time),) = copies.rows
    file, _, number = at.partition(":")
    assert "float(x.abs().max().cpu())" in (ROOT / file).read_text().splitlines()[int(number) - 1]
    assert (size, time) == ("4 B", "not known here")
    assert "not in yours" not in answer.sentence
    assert answer.sentence.endswith("Of an Apple GPU's times this says nothing."), "of its copies it does"
    assert answer.on.startswith(questions.device.cpu().label)


@on_simulated
def test_copies_that_an_installed_package_makes_are_told_and_are_not_the_model_s_fault():
    from torchvision.ops import batched_nms  # takes a number to the GPU in each call

    kept = lambda boxes, scores: boxes[batched_nms(boxes, scores, torch.zeros_like(scores).long(), 0.5)]
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]])
    each = subject_of(Function(kept), boxes, torch.ones(2))
    answer = questions.spent(each, 60)
    assert answer.outcome == "good", answer
    assert "1 hidden copy" in answer.sentence
    assert "That is done in the code of torchvision, not in yours." in answer.sentence
    each.package = "torchvision"  # of whoever examines a model of torchvision's and may change it
    assert questions.spent(each, 60).outcome == "attention"


@on_simulated
def test_a_target_that_a_loss_has_around_it_is_moved_with_the_model():
    each = sound()
    there = each.to(questions.device.pick("sim").torch_device)
    assert there.value().item() == pytest.approx(there.to("cpu").value().item(), rel=0.5)  # dropout draws anew
    assert each.value().device.type == "cpu"
    batch = {"x": torch.ones(3, 4), "target": torch.zeros(3, 2)}
    each = subject_of(nn.Linear(4, 2), batch["x"], loss=lambda output: (output - batch["target"]).square().mean())
    assert each.to(questions.device.pick("sim").torch_device).value().device.type == "mps"


# ---------------------------------------------------------------- on the CPU


def test_without_an_apple_gpu_the_tables_alone_are_asked():
    each = subject_of(Evaluated(), torch.ones(2, 4))
    runs, right = questions.runs(each, 60), questions.right(each, 60)
    assert runs.outcome == "good"
    assert "Training: nothing can be foretold (" in runs.sentence
    assert "targets should not be none in training mode" in runs.sentence
    assert right.outcome == "unanswered"
    assert right.sentence.startswith("Not asked: there is no Apple GPU here")


def test_times_come_with_batches_and_without_a_conclusion_in_a_fast_run(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    answer = questions.fast(sound(), 60)
    for words in ("inference, latency: ", "training step, throughput: ", "Over batches (n): inference", "fast mode"):
        assert words in answer.sentence
    assert "Of an Apple GPU this says nothing." in answer.sentence
    (batches,) = (evidence.table for evidence in answer.evidence if evidence.title == "Over batches")
    assert [row[0] for row in batches.rows] == ["1", "4", "16", "64"]


def test_a_slow_model_is_timed_over_the_batches_for_which_there_is_time(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setattr(questions, "_second_call", lambda run: 0.1)  # of its batch of 4
    seconds = 1.1 * questions.CALLS * 0.1
    told, (batches,) = questions._times_over_batches(sound(), questions.device.cpu(), seconds)
    assert [row[0] for row in batches.table.rows] == ["1", "4"]
    assert "inference" in told


def test_what_there_is_no_time_to_compare_is_measured_alone_and_says_so():
    answer = questions.fast(sound(), 1e-9)
    assert answer.outcome == "good"
    for words in ("inference: ", "training step: ", "There was no time for other batches"):
        assert words in answer.sentence
    assert answer.sentence.count("its share of --minutes was too short to compare it.") == 2


def test_memory_is_counted_and_so_is_the_largest_batch():
    each = subject_of(nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)), torch.randn(8, 100))
    counted = questions.needs(each)
    weights = 4 * (100 * 200 + 200 + 200 * 10 + 10)
    assert (counted.weights, counted.gradients, counted.optimizer) == (weights, weights, 2 * weights)
    assert counted.row == 4 * (100 + 200)  # the input, and what ReLU gives, which it and the second layer keep
    exact = counted.fixed + counted.activations - 8 * counted.row
    assert counted.largest(exact + 100 * counted.row) == 100
    assert counted.largest(exact + 100 * counted.row - 1) == 99
    assert counted.largest(0) == 0


def test_what_does_not_fit_is_said_and_is_not_run():
    each = subject_of(nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)), torch.randn(512, 1000))
    answer = questions.fits(each, 10**7, 2**40)
    assert answer.outcome == "bad"
    assert (
        "It DOES NOT FIT into the 6.36 MiB for it on an Apple machine with 0.00931 GiB; the largest" in answer.sentence
    )
    assert "It fits into the" in answer.sentence
    assert answer.evidence[0].table.rows[-1][1] == "not measured"
    roomy = questions.fits(each, 16 * 2**30, 2**40)
    assert roomy.outcome == "good"
    assert "DOES NOT FIT" not in roomy.sentence
    assert roomy.evidence[0].table.rows[-1][0].startswith("peak of a step")


def test_an_overflow_is_named_with_the_module_where_it_begins():
    answer = questions.formats(examined(doctor_models.overflow), 2)
    assert answer.outcome == "attention"
    assert "float16, autocast OVERFLOWS, first in 1. float16, cast OVERFLOWS, first in 1." in answer.sentence
    assert answer.sentence.startswith("float16, ")
    assert "bfloat16, autocast OVERFLOWS" not in answer.sentence
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    assert float(rows["float32"]) < 1e-5 < float(rows["bfloat16, autocast"]) < 0.1


def test_an_overflow_in_the_model_s_own_lines_is_named_too():
    answer = questions.formats(subject_of(Function(lambda x: x * 1e6), torch.ones(2, 8)), 2)
    assert answer.outcome == "attention"
    assert "float16, cast OVERFLOWS, first in the model itself." in answer.sentence
    assert "bfloat16, cast OVERFLOWS" not in answer.sentence


def test_a_model_in_a_small_format_is_held_against_float32_too():
    answer = questions.formats(subject_of(nn.Linear(8, 4).bfloat16(), torch.ones(2, 8).bfloat16()), 2)
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    assert float(rows["float32"]) < 1e-5 < float(rows["bfloat16, cast"])


def test_infinities_of_every_format_are_no_overflow():
    answer = questions.formats(subject_of(Attending(), torch.randn(2, 4, 8)), 2)
    assert answer.outcome == "good", answer
    assert "OVERFLOWS" not in answer.sentence


large = lambda x: x[x > 1.001]  # another number in each format, none here in float32


@pytest.mark.parametrize("function", [large, lambda x: (2 * x, large(x))])
def test_outputs_of_another_size_are_not_compared(function):
    answer = questions.formats(subject_of(Function(function), torch.tensor([1.001, 0.5])), 2)
    assert "Outputs are empty or of another size than in float64, and were not compared, in float32" in answer.sentence
    assert "nan" not in answer.sentence
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    assert rows["float32"] == "not compared"


def test_complex_outputs_are_compared_with_their_imaginary_part():
    each = examined(doctor_models.waves)
    answer = questions.formats(each, 2)
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    assert float(rows["float32"]) < 1e-5
    assert each.value().dtype == torch.float32
    assert each.value().requires_grad
    assert each.model.weight.dtype == torch.complex64


def test_a_model_that_does_not_run_in_float64_is_held_against_itself():
    insisting = Function(lambda x: x @ torch.ones(4, 2, dtype=torch.float32))
    answer = questions.formats(subject_of(insisting, torch.randn(4, 4)), 2)
    assert "Outputs differ from the model as it is, which does not run in float64, by 0.0e+00 in float32" in (
        answer.sentence
    )
    assert torch.get_default_dtype() == torch.float32
    assert "bfloat16, cast raises (" in answer.sentence
    assert answer.outcome == "good", "there is autocast as well"


def test_a_model_without_fractions_in_its_output_has_nothing_to_train_and_nothing_to_compare():
    each = examined(doctor_models.classes)
    assert "Training" not in questions.runs(each, 60).sentence
    assert "in 0" in questions.spent(each, 60).sentence
    assert each.value() == 0
    assert "It has nothing to train." in questions.fast(each, 1e-9).sentence
    assert "Outputs have no numbers with a fraction, and were not compared, in float32" in (
        questions.formats(each, 2).sentence
    )


def test_other_batches_are_left_to_models_that_take_them():
    stack = lambda pictures: torch.stack([picture - torch.zeros(3, 1, 1) for picture in pictures])
    listed = subject_of(Function(stack), [torch.ones(3, 4, 4)])
    unbatched = subject_of(nn.Conv2d(3, 2, 1), torch.ones(3, 4, 4))
    three = subject_of(nn.ReLU(), torch.ones(3, 4))
    add = lambda x, rows: x.index_add(0, rows, x[rows])  # rows that are named by number, of which there must be so many
    edges = subject_of(Function(add), torch.ones(3, 4), torch.tensor([0, 2]))
    single = subject_of(Function(lambda x: x.squeeze()), torch.ones(3, 4))  # of a batch of one comes something else
    every = (listed, unbatched, three, edges, single)
    assert [each.batch for each in every] == [0, 3, 3, 3, 3]
    assert [each.scales for each in every] == [False, False, True, False, False]
    assert "so other batches were not timed" in questions.fast(single, 1e-9).sentence
    sentence = questions.fits(listed, None, 2**40).sentence
    assert "with the inputs that are given" in sentence
    assert "largest batch" not in sentence


def test_modules_have_their_names_in_the_model_also_one_that_is_called_model():
    inner = layers(up=nn.Conv3d(1, 1, 1), pool=nn.AdaptiveAvgPool3d(2))
    nn.init.constant_(inner.up.weight, 1e6)
    for name in ("model", "models"):
        loss = Function(lambda output: output.square().mean())
        each = subject_of(layers(**{name: inner}), torch.ones(1, 1, 4, 4, 4), loss=loss)
        rows = questions.runs(each, 60).evidence[0].table.rows  # of the forward and of the backward pass
        assert [row[2] for row in rows] == [f"{name}.pool"] * 2
        assert f"float16, cast OVERFLOWS, first in {name}.up." in questions.formats(each, 2).sentence
        events = questions._recorded(each, questions.device.cpu())[0].events
        modules = {event.short: event.module for event in events}
        assert (modules["convolution"], modules["_adaptive_avg_pool3d"]) == (f"{name}.up", f"{name}.pool")
        assert (modules["mean"], modules["add_"]) == ("the loss", "the step itself")  # add_ is the optimizer's


def test_named_inputs_may_be_any_mapping():
    each = subject.checked((Function(lambda x: 2 * x), UserDict(x=torch.ones(3, 4))), "tests:example")  # a tokenizer's
    assert each.batch == 3
    assert each.to("meta").outputs().device.type == "meta"


# ---------------------------------------------------------------- what is not a model


def raising():
    raise OSError("no such file: weights.pt")


a_tensor = lambda: torch.ones(3)
a_list_for_a_model = lambda: ([nn.Linear(2, 2)], (torch.ones(2),))
no_tensors = lambda: (nn.Linear(2, 2), (3,))
loss_of_no_kind = lambda: (nn.Linear(2, 2), torch.ones(2), 7)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("nothing", "names no factory: write package.module:factory"),
        ("no_such_module_here:example", "no_such_module_here cannot be imported (ModuleNotFoundError"),
        ("test_doctor:nobody", "test_doctor has no function nobody"),
        ("test_doctor:raising", "raised OSError: no such file: weights.pt"),
        ("test_doctor:a_tensor", "returns a Tensor: let it return (model, inputs) or (model, inputs, loss)"),
        ("test_doctor:a_list_for_a_model", "returns a list where the model belongs: give an nn.Module"),
        ("test_doctor:no_tensors", "gives no tensor among the inputs"),
        ("test_doctor:loss_of_no_kind", "returns a int as the loss: give a function of the output"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(factory, words):
    with pytest.raises(subject.NotAModel) as refusal:
        subject.made(factory)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


# ---------------------------------------------------------------- the report


def answered(number):
    table = Table(["a", "b"], [["<1>", 2]], "a note")
    return Answer(QUESTIONS[number - 1], "good", f"Answer {number} & more.", "a CPU", (Evidence("Seen", table),))


def pretended(monkeypatch, **ends):
    """`isolated.run`, with an outcome of its own for some questions; the calls that it was given."""
    calls = []

    def run(source, **settings):
        calls.append((source, settings))
        if source == "import torch":
            return isolated.Outcome("well")
        if "look(" in source:
            return ends.get("look", isolated.Outcome("well", results={"result": ("Net, 3 weights", "cpu")}))
        number = int(source.partition("ask(")[2][0])
        if settings.get("device") is None and f"plain{number}" in ends:
            return ends[f"plain{number}"]
        return ends.get(f"ask{number}", isolated.Outcome("well", results={"result": answered(number)}))

    monkeypatch.setattr(isolated, "run", run)
    return calls


def test_an_answer_that_crashes_hangs_or_needs_too_much_leaves_the_others(monkeypatch):
    limit = "it needs more than the 1 GiB that it may have\n"
    calls = pretended(
        monkeypatch,
        ask2=isolated.Outcome("crashed", reason="the process was ended by SIGABRT", detail="dyld: gone"),
        ask3=isolated.Outcome("hung", reason="took longer than 9 s and was stopped"),
        ask5=isolated.Outcome("crashed", reason="the process ended with 77", detail=limit),
    )
    seen = []
    examined = doctor.examine("mine:example", minutes=3, progress=seen.append)
    assert [answer.outcome for answer in examined.answers] == [
        "good", "unanswered", "unanswered", "good", "unanswered", "good",
    ]  # fmt: skip
    sentences = [answer.sentence for answer in examined.answers]
    assert sentences[1] == "No answer: the process was ended by SIGABRT."
    assert "dyld: gone" in str(examined)
    assert sentences[2] == "No answer: it took longer than 9 s and was stopped; --minutes gives more."
    assert sentences[4].endswith("1 GiB that it may have; --process-memory gives more.")
    assert sum("of 6: " in line for line in seen) == 6
    asked = {source.partition("ask(")[2][:1]: settings for source, settings in calls if "ask(" in source}
    assert [number for number, settings in asked.items() if settings["device"] == "mps"] == ["1", "2", "4"]
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in asked["1"]["environment"]
    assert asked["2"]["environment"]["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"
    assert sum(settings["timeout"] for settings in asked.values()) < 6 * 180


def test_where_no_gpu_can_be_simulated_the_question_is_asked_without(monkeypatch):
    gone = isolated.Outcome("raised", reason="no compiler", kinds=("SimulationUnavailable", "RuntimeError"))
    plain = isolated.Outcome("well", results={"result": answered(1)})
    pretended(monkeypatch, ask1=gone, plain1=plain)
    assert doctor.examine("mine:example", progress=str).answers[0].sentence == "Answer 1 & more."


def test_the_page_and_the_json_hold_every_answer_with_its_evidence(monkeypatch, tmp_path):
    pretended(monkeypatch)
    examined = doctor.examine("mine:example", progress=str)
    page = examined.save(tmp_path / "new")
    text = page.read_text()
    for number, question in enumerate(QUESTIONS, 1):
        assert f"<h3>{number}. {question}</h3><p>Answer {number} &amp; more.</p>" in text
    assert "<td>&lt;1&gt;</td><td>2</td>" in text
    assert examined._repr_html_() in text
    assert "http" not in text
    assert text.count('<div style="overflow-x:auto"><table>') == len(QUESTIONS), "a wide table scrolls in the page"
    told = json.loads((tmp_path / "new" / "doctor.json").read_text())
    assert told["outcome"] == "good"
    assert [each["question"] for each in told["answers"]] == list(QUESTIONS)
    assert told["answers"][0]["evidence"] == [
        {"title": "Seen", "headings": ["a", "b"], "rows": [["<1>", "2"]], "note": "a note"}
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine:example", "--minutes", "soon"], "'soon' is no number of minutes: write it like 3"),
        (["mine:example", "--minutes", "0"], "'0' is no number of minutes"),
        (["mine:example", "--memory", "16"], "'16' is no size: write it like 16GB"),
    ],
)
def test_misuse_is_told_in_a_line(arguments, words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_the_command_tells_the_worst_by_its_code(monkeypatch, tmp_path, capsys):
    pretended(monkeypatch)
    assert main(["doctor", "mine:example", "--memory", "16GB", "--out", str(tmp_path)]) == 0
    assert f"the page: {tmp_path / 'doctor.html'}" in capsys.readouterr().out
    bad = Answer(QUESTIONS[1], "bad", "No.")
    calls = pretended(monkeypatch, ask2=isolated.Outcome("well", results={"result": bad}))
    assert main(["doctor", "mine:example", "--memory", "16GB", "--out", str(tmp_path)]) == 1
    assert any(source.endswith(f", {16 * 2**30})") for source, _ in calls if "ask(5" in source)
    refused = isolated.Outcome("raised", reason="NotAModel: give one", kinds=("NotAModel", "ValueError"))
    pretended(monkeypatch, look=refused)
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("metallab doctor: give one\n")


def test_ctrl_c_keeps_the_answers_that_there_are(monkeypatch, tmp_path, capsys):
    pretended(monkeypatch)
    answering = report._answer

    def interrupted(number, *rest):
        if number > last:
            raise KeyboardInterrupt
        return answering(number, *rest)

    monkeypatch.setattr(report, "_answer", interrupted)
    last = 2
    assert main(["doctor", "mine:example", "--out", str(tmp_path / "two")]) == 130
    told = json.loads((tmp_path / "two" / "doctor.json").read_text())
    assert told["interrupted"]
    assert [each["question"] for each in told["answers"]] == list(QUESTIONS[:2])
    assert f"the page: {tmp_path / 'two' / 'doctor.html'}" in capsys.readouterr().out
    last = 0
    assert main(["doctor", "mine:example", "--out", str(tmp_path / "none")]) == 130
    assert capsys.readouterr().err.endswith("metallab doctor: interrupted before the first answer\n")


@pytest.mark.parametrize("below", [".", "below"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_computed(below, monkeypatch, tmp_path, capsys):
    calls = pretended(monkeypatch)
    (tmp_path / "file").touch()
    out = tmp_path / "file" / below
    assert main(["doctor", "mine:example", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(rf"metallab doctor: {re.escape(str(out))} cannot be written \(.+\): name another --out\n", told)
    assert not calls


def test_the_example_of_the_docs_is_one_and_its_command_is_understood(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "your_own_code.md").read_text()
    (code,) = (block.partition("```")[0] for block in text.split("```py\n") if block.startswith("# my_model.py"))
    (line,) = (line for line in text.splitlines() if line.startswith("metallab doctor my_model:example"))
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    each = subject.made("my_model:example")
    assert each.value().requires_grad
    assert each.batch == 8
    assert each.scales
    calls = pretended(monkeypatch)
    assert main([*line.split()[1:], "--out", str(tmp_path)]) == 0
    assert any("ask(5, 'my_model:example'" in source and source.endswith(f", {16 * 2**30})") for source, _ in calls)


CRASHING = """
import os, torch
class Ends(torch.nn.Module):
    def forward(self, x):
        held = bytearray({held})
        if x.device.type == "mps":
            os.abort()
        return x * 2
def example():
    return Ends(), torch.ones(3)
"""


def test_real_processes_bring_answers_back_or_why_there_is_none(tmp_path, monkeypatch):
    (tmp_path / "aborting_model.py").write_text(CRASHING.format(held=1))
    (tmp_path / "greedy_model.py").write_text(CRASHING.format(held="1 << 30"))
    monkeypatch.syspath_prepend(tmp_path)
    assert report._look("aborting_model:example", 300, 2**40) == ("Ends, 0 weights, inputs (3,)", "cpu")
    crashed = report._answer(1, "aborting_model:example", (300, 300), 2**40, None, apple=True)
    assert crashed.outcome == "unanswered"
    assert "SIGABRT" in crashed.sentence
    with pytest.raises(doctor.Refused, match=r"it needs more than the 1 GiB that it may have"):
        report._look("greedy_model:example", 300, 1 << 30)


# ---------------------------------------------------------------- models that nobody made for it


@pytest.mark.parametrize(
    ("seconds", "number", "outcome", "sentence", "words"),
    [
        (9, 1, "good", "Well.", []),
        (999, 1, "good", "Well.", ["it took 999 s"]),
        (9, 1, "bad", "No.", ["1 accuses: No."]),
        (9, 2, "bad", "WRONG KERNEL: aten::convolution in second", []),
        (9, 2, "good", "Yes.", ["2 does not say 'WRONG KERNEL: aten::convolution in second': Yes."]),
        (9, 3, "unanswered", "No answer.", ["3 is not answered: No answer."]),
        (9, 3, "good", "There was no time.", ["3 is not reached: There was no time."]),
    ],
)
def test_what_is_wrong_with_a_report_is_told(seconds, number, outcome, sentence, words):
    answers = [{"outcome": "good", "sentence": "Well."} for _ in QUESTIONS]
    answers[number - 1] = {"outcome": outcome, "sentence": sentence}
    name = "wrong_kernel" if number == 2 else "vit"
    assert doctor_models.complaints(name, seconds, {"answers": answers}, "") == words


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
