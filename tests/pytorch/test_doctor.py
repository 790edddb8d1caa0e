"""`metallab doctor`: planted faults are named, sound models are not accused, and one failure leaves the other answers.

What needs an Apple GPU runs in a child with the simulated device (children.py).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import sys
import warnings
from collections import OrderedDict, UserDict
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import doctor_models  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from doctor_models import Function  # noqa: E402
from torch import nn  # noqa: E402

from metallab import isolated  # noqa: E402
from metallab.__main__ import main  # noqa: E402
from metallab.pytorch import doctor  # noqa: E402
from metallab.pytorch.doctor import answer as answers_of  # noqa: E402
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


class Positions(nn.Module):
    """Adds what it builds on the CPU, and multiplies with what it keeps there."""

    def __init__(self, adds):
        super().__init__()
        self.adds, self.scales = adds, [torch.ones(8)]

    def forward(self, x):
        if self.adds:
            return x + torch.linspace(0, 1, 8)
        return x * self.scales[0]


class Waves(nn.Module):
    """Makes float64 and complex128 on its way, and computes on with them."""

    def forward(self, x):
        steps = torch.arange(8, dtype=torch.float64, device=x.device)
        turned = torch.view_as_complex(x.reshape(-1, 4, 2)).to(torch.complex128)
        return x * steps.neg().exp().float() + turned.abs().sum().float()


class Rated(nn.Module):
    """Embeddings of whole numbers, which have no gradient by which a backward pass could leave their module."""

    def __init__(self):
        super().__init__()
        self.tags, self.user, self.item = nn.EmbeddingBag(9, 4), nn.Embedding(9, 4), nn.Embedding(9, 4)
        self.score = nn.Linear(12, 3)

    def forward(self, numbers):
        rows = numbers[:, 0]
        return self.score(torch.cat([self.tags(numbers), self.user(rows), self.item(rows)], -1))


def energies(x):
    """Infinite in float16, and finite again."""
    return (x * 40).pow(2).sum(-1, keepdim=True).reciprocal()


class Words(nn.Module):
    """Fails with what it is given, on the CPU as well."""

    def forward(self, x):
        return {"letters": x}["words"]


def row_of(words):
    """The line of this file, ``file:number``, that holds these words first."""
    lines = Path(__file__).read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if words in line)
    return f"{os.path.relpath(__file__)}:{number}"


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


class Keeping(nn.Module):
    """Keeps a result, in a buffer and in an object, and has one weight twice."""

    def __init__(self):
        super().__init__()
        self.words, self.scores, self.kept = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), SimpleNamespace()
        self.scores.weight = self.words.weight
        self.register_buffer("mean", self.words.weight.mean(0))
        self(torch.ones(1, dtype=torch.long))

    def forward(self, x):
        self.kept.last = self.scores(self.words(x) - self.mean)
        return self.kept.last


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    more: list


class Batched(nn.Linear):
    def forward(self, batch):
        return super().forward(batch.x) * batch.more[0]


def around():
    layer = nn.Linear(4, 4)
    target = layer(torch.ones(3, 4))  # a result
    return layer, torch.ones(3, 4, requires_grad=True) * 2, lambda output: (output - target).square().mean()


UNUSUAL = {
    "weight_norm": lambda: (nn.utils.weight_norm(nn.Linear(4, 3)), torch.randn(2, 4)),
    "keeping": lambda: (Keeping(), torch.tensor([[1, 4, 2]])),
    "lazy": lambda: (nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()), torch.randn(4, 5)),
    "scripted": lambda: (torch.jit.script(nn.Linear(4, 3)), torch.randn(2, 4)),
    "a dataclass": lambda: (Batched(4, 3), Batch(torch.randn(2, 4), [torch.ones(3)])),
    "around the loss": around,
}
"""Models that ``deepcopy`` refuses, or which need more than that; all of them run on a Mac."""


# ---------------------------------------------------------------- 1, 2, 4: on the simulated GPU


@on_simulated
def test_sound_models_are_not_accused():
    with warnings.catch_warnings(action="ignore"):  # some are deprecated
        unusual = {name: examined(make) for name, make in UNUSUAL.items()}
    for name, each in {"sound": sound(), "attending": subject_of(Attending(), torch.randn(2, 4, 8)), **unusual}.items():
        answers = [questions.answered(number, each, 60, 2**40) for number in (1, 2, 4, 5, 6)]
        assert [answer.outcome for answer in answers] == ["good"] * 5, (name, answers)
        assert "Copies and fallbacks" not in {evidence.title for evidence in answers[2].evidence}
        questions._assert_loss(each)
        step = each.training_step()
        assert step().isfinite() & step().isfinite()


def blinded(x):
    """Attention of which one row may look at nothing."""
    scores = x @ x.mT
    scores[0] = -torch.inf
    return scores.softmax(-1)


@on_simulated
def test_a_nan_that_the_cpu_has_as_well_is_no_fault():
    tidy = layers(scores=blinded, tidy=lambda x: x.detach().nan_to_num(0.0), head=nn.Linear(4, 2))
    kept = layers(enter=nn.Linear(4, 4), log=lambda x: (x - 100).log())
    lost = subject_of(nn.Linear(2, 2), torch.ones(2, 2), loss=lambda y: (y - 100).log().sum())
    for each, outcome, place in (
        (subject_of(tidy, torch.randn(4, 4)), "good", "aten::_softmax in scores"),
        (subject_of(kept, torch.randn(4, 4)), "attention", "aten::log in log"),
        (lost, "attention", "aten::log in the loss"),
    ):
        answer = questions.right(each, 60)
        assert (answer.outcome, place in answer.sentence) == (outcome, True), answer
        assert all(row[2] for row in answer.evidence[0].table.rows), "and the others are compared"
        assert row_of("return scores.softmax(-1)") in answer.sentence or outcome == "attention"


@on_simulated
def test_a_model_keeps_the_mode_that_the_factory_gave_it():
    each = subject_of(Evaluated().eval(), torch.ones(2, 4))
    answers = [question(each, 60) for question in (questions.runs, questions.right, questions.spent)]
    assert [answer.outcome for answer in answers] == ["good"] * 3, answers
    asked = answers[1].evidence[0].table
    assert not any("training" in row[0] for row in asked.rows)
    assert "in training mode" in asked.note


@on_simulated
def test_a_missing_operator_is_named_with_module_and_line():
    volumes = subject_of(Volumes(), torch.randn(1, 1, 6, 6, 6))
    answer, right, spent = (questions.answered(number, volumes, 60, 2**40) for number in (1, 2, 4))
    ((operator, how, module, line, way_out),) = (row for row in answer.evidence[0].table.rows if "pool3d." in row[0])
    assert (operator, how, module) == ("aten::_adaptive_avg_pool3d.default", "missing", "pool")
    assert line == row_of("return self.pool(self.conv(x))")
    assert "PYTORCH_ENABLE_MPS_FALLBACK" in way_out
    assert f"in pool, at {line}" in answer.sentence, "the trial"
    assert (answer.outcome, right.outcome, right.ended, spent.outcome) == ("bad", "unanswered", "raised", "attention")
    assert not any("github" in str(each) for each in (answer, spent, right))


@on_simulated
def test_a_tensor_on_the_cpu_is_named_with_module_and_line():
    lines = {True: row_of("return x + torch.linspace(0, 1, 8)"), False: row_of("return x * self.scales[0]")}
    for adds, line in lines.items():
        model = layers(enter=nn.Linear(8, 8), positions=Positions(adds), head=nn.Linear(8, 2))
        each = subject_of(model, torch.randn(3, 8))
        runs, right, spent = (questions.answered(number, each, 60, 2**40) for number in (1, 2, 4))
        ((operator, _, module, at, way_out),) = runs.evidence[0].table.rows
        assert (operator, module, at) == ("aten::add.Tensor" if adds else "aten::mul.Tensor", "positions", line)
        assert "register_buffer" in way_out
        assert (runs.outcome, right.ended, spent.outcome) == ("bad", "raised", "attention")
        assert all("see answer 1" in other.sentence for other in (right, spent))


@on_simulated
def test_a_tensor_on_the_cpu_that_the_trace_cannot_see():
    chosen = lambda x: x[x.abs().sum(-1).nonzero()[:, 0].tolist()]  # needs numbers, so it is traced on the CPU
    answer = questions.runs(subject_of(layers(chosen=chosen, positions=Positions(adds=True)), torch.ones(3, 8)), 60)
    ((operator, _, module, at, _),) = answer.evidence[0].table.rows
    line = row_of("return x + torch.linspace(0, 1, 8)")
    assert (answer.outcome, operator, module, at) == ("bad", "not known", "positions", line)


@on_simulated
def test_reading_a_number_is_called_as_people_write_it():
    def cut(x):
        for row in x:
            x = x * row.max().item()
        return x

    answer = questions.spent(subject_of(layers(cut=cut), torch.randn(3, 8)), 60)
    ((operator, _, module, line, calls, *_),) = answer.evidence[-1].table.rows
    assert (operator, module, line, calls) == (".item()", "cut", row_of("x = x * row.max().item()"), "3")


@on_simulated
def test_a_kernel_that_is_wrong_in_another_layout_is_named():
    with warnings.catch_warnings(action="ignore"), metalsim.plant("conv2d, non-contiguous input"):
        answer = questions.right(sound(), 60)
    evidence = {each.title: each for each in answer.evidence}
    assert answer.outcome == "bad"
    assert "aten::convolution in conv" in evidence["The first wrong operator"].text
    assert "swapped in memory" in evidence["Asked"].table.rows[-1][0]
    assert "torch.testing.assert_close" in evidence["A program that shows it"].text


@on_simulated
def test_what_there_was_no_time_to_compare_is_never_called_right():
    each = sound()
    lab = questions.device.pick("sim")
    verdict = questions.blame.find(each.whole, each.arguments, lambda value: value, on=lab, seconds=0)
    assert verdict.judged == 0
    assert verdict.skipped > 10
    answer = questions.right(each, 1e-9)
    assert (answer.outcome, answer.ended) == ("unanswered", "hung")


def test_each_kind_has_to_be_compared():
    asked = questions._Asked(questions.blame.Choice())
    asked.verdicts["as given"] = [questions.blame.Verdict("agrees", "a GPU", 1, 1e-7)]
    one, same, other = ({"layout": "l", "kind": kind, "call": call} for kind, call in (("k", 1), ("k", 2), ("m", 3)))
    asked.choice.met["as given"] = [one, same, other]
    asked.choice.compared |= {"k", 1}
    assert (asked.every_kind, "1 of 3" in asked.agreement) == (False, True)
    asked.choice.compared |= {"m", 3}
    assert (asked.every_kind, "2 of 3" in asked.agreement) == (True, True)


@on_simulated
def test_float64_on_the_way_is_named_once_with_its_line():
    lines = row_of("steps = torch.arange(8"), row_of("turned = torch.view_as_complex")
    answer = questions.runs(subject_of(layers(enter=nn.Linear(8, 8), waves=Waves()), torch.randn(3, 8)), 60)
    assert (answer.outcome, lines[0] in answer.sentence) == ("bad", True)
    assert [tuple(row) for row in answer.evidence[0].table.rows] == [
        ("aten::arange", "raises: makes float64", "waves", lines[0], "write torch.arange(..., dtype=torch.float32)"),
        ("aten::_to_copy", "raises: makes complex128", "waves", lines[1], "write .to(torch.complex64)"),
    ]


@on_simulated
def test_the_rest_is_asked_without_float64():
    each = examined(doctor_models.double)
    runs, right, spent = (question(each, 60) for question in (questions.runs, questions.right, questions.spent))
    assert (runs.outcome, right.outcome, spent.outcome) == ("bad", "good", "good")
    assert "scale" in runs.sentence
    assert questions.NO_FLOAT64 in right.sentence
    assert each.model.scale.dtype == torch.float64


@on_simulated
def test_a_hidden_copy_is_named_without_a_simulated_time():
    answer = questions.spent(examined(doctor_models.hidden_copy), 60)
    ((operator, way, module, at, calls, size, time),) = answer.evidence[-1].table.rows
    assert (answer.outcome, operator, way, module, calls) == ("attention", "_to_copy", "to host", "1", "1")
    file, _, number = at.partition(":")
    assert "float(x.abs().max().cpu())" in (ROOT / file).read_text().splitlines()[int(number) - 1]
    assert (size, time) == ("4 B", "not known here")
    assert answer.on.startswith(questions.device.cpu().label)


@on_simulated
def test_copies_of_an_installed_package_are_no_fault():
    from torchvision.ops import batched_nms  # takes a number to the GPU in each call

    kept = lambda boxes, scores: boxes[batched_nms(boxes, scores, torch.zeros_like(scores).long(), 0.5)]
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]])
    each = subject_of(Function(kept), boxes, torch.ones(2))
    answer = questions.spent(each, 60)
    assert (answer.outcome, "torchvision" in answer.sentence) == ("good", True)
    assert len(answer.evidence[-1].table.rows) == 1
    each.package = "torchvision"  # of whoever examines a model of torchvision's and may change it
    assert questions.spent(each, 60).outcome == "attention"


@on_simulated
def test_a_target_around_the_loss_is_moved_with_the_model():
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
    assert (runs.outcome, right.outcome) == ("good", "unanswered")
    assert "in training mode (at " in runs.sentence, "of the model itself"


def test_a_trace_that_has_no_time_makes_no_whole_answer(monkeypatch):
    def late(*_, training, **__):
        if training:
            raise questions.coverage.OutOfTime("it had not ended")
        return questions.coverage.Coverage("m", (), "2.15", "meta")

    monkeypatch.setattr(questions.coverage, "mps_coverage", late)
    answer = questions.runs(subject_of(nn.Linear(4, 2), torch.ones(2, 4)), 60)
    assert (answer.outcome, answer.ended) == ("attention", "hung")


def test_a_question_with_no_time_left_is_not_started(monkeypatch):
    monkeypatch.setattr(questions, "made", lambda factory: sound())
    monkeypatch.setattr(questions, "_hold_memory", lambda most: None)
    late = questions.ask(3, "mine:example", 0.0, 2**40, None, "")
    assert (late.outcome, late.ended) == ("unanswered", "not started")
    monkeypatch.setattr(isolated, "run", lambda *_, **__: isolated.Outcome("well", results={"result": late}))
    answer = report._answer(3, "mine:example", (9, 10), 2**40, None, apple=False)
    assert (answer.ended, "--minutes" in answer.sentence) == ("not started", True)


def test_times_come_without_a_conclusion_in_a_fast_run(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setattr(questions, "_second_call", lambda run: 1e-4)
    answer = questions.fast(sound(), 60)
    titles = [each.title for each in answer.evidence]
    assert (answer.outcome, titles) == ("attention", ["Measured, inference", "Over batches", "Measured, training step"])


@pytest.mark.parametrize(("number", "count"), [(3, 2), (5, 1), (6, 2)])
def test_drafts_are_kept(number, count, monkeypatch):
    """What a question has until it is stopped, in its order."""
    kept = []
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setattr(questions, "so_far", kept.append)
    question = {3: questions.fast, 5: questions.fits, 6: questions.formats}[number]
    answer = question(sound(), *([None, 2**40] if number == 5 else [1e-9]))
    assert len(kept) == count
    assert {each.question for each in (*kept, answer)} == {QUESTIONS[number - 1]}
    assert all(each.evidence and each != answer for each in kept)


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


def test_float32_is_computed_in_full_on_nvidia_too():
    seen = []
    each = subject_of(Function(lambda x: (seen.append(torch.backends.cudnn.allow_tf32), x)[1]), torch.ones(2))
    assert torch.backends.cudnn.allow_tf32
    questions.answered(6, each, 5, 2**40)
    assert set(seen) == {False}


def test_what_does_not_fit_is_said_and_is_not_run():
    each = subject_of(nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)), torch.randn(512, 1000))
    answer, roomy = (questions.fits(each, target, 2**40) for target in (10**7, 16 * 2**30))
    assert (answer.outcome, roomy.outcome) == ("bad", "good")
    assert [row[3] for row in answer.evidence[1].table.rows] == ["yes", "no", "no"]  # here, on macOS 15, on macOS 26
    assert answer.evidence[1].table.rows[1][1] == "6.36 MiB"
    assert answer.evidence[0].table.rows[-1][1] == "not measured"
    assert roomy.evidence[0].table.rows[-1][0].startswith("peak of a step")


def test_what_fits_only_when_others_let_go_of_their_memory(monkeypatch):
    monkeypatch.setattr(questions, "_memory_of", lambda on: (2**30, 2**10))
    answer = questions.fits(subject_of(nn.Linear(100, 100), torch.randn(8, 100)), None, 2**40)
    assert (answer.outcome, answer.evidence[1].table.rows[0][2]) == ("attention", "1 KiB")


def test_the_peak_has_every_tensor_that_lives_at_a_time():
    model = nn.Sequential(nn.Linear(100, 1000, bias=False), nn.ReLU(), nn.Linear(1000, 100, bias=False))
    each = subject_of(model, torch.randn(512, 100))
    inference, step = map(questions._allocated_peak, (each.inference(), each.training_step()))
    hidden, weights = 4 * 512 * 1000, 4 * 2 * 100 * 1000
    assert 2 * hidden <= inference < 3 * hidden, "what the first layer gives, and ReLU"
    assert step >= weights + 2 * hidden


def test_outputs_that_are_nan_or_random_have_no_error():
    answer = questions.formats(subject_of(layers(nan=lambda x: x * torch.nan), torch.ones(2, 4)), 2)
    assert (answer.outcome, {row[1] for row in answer.evidence[0].table.rows}) == ("attention", {"not compared"})
    some = layers(enter=nn.Linear(4, 4), scores=blinded)
    answer = questions.formats(subject_of(some, torch.randn(4, 4)), 2)
    assert (answer.outcome, answer.sentence.startswith("4 of 16 ")) == ("attention", True)
    noisy = layers(enter=nn.Linear(4, 4), draw=lambda x: x + torch.randn_like(x))
    answer = questions.formats(subject_of(noisy, torch.randn(4, 4)), 2)
    assert {row[1] for row in answer.evidence[0].table.rows} == {"not compared"}


def test_a_model_that_computes_nothing_has_no_times():
    answer = questions.spent(subject_of(nn.Identity(), torch.ones(2, 4)), 2)
    assert (answer.outcome, answer.evidence[0].table.rows) == ("good", [])


def test_an_overflow_is_named_with_the_module_where_it_begins():
    answer = questions.formats(examined(doctor_models.overflow), 2)
    assert answer.outcome == "attention"
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    for name in ("float16, autocast", "float16, cast"):
        assert "first in 1, " in rows[name]
    assert float(rows["float32"]) < 1e-5 < float(rows["bfloat16, autocast"]) < 0.1


def first_infinite(model, *inputs):
    """Where each format makes its first infinite number or NaN, by format; the others are left out."""
    answer = questions.formats(subject_of(model, *inputs), 2)
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows if row[1].startswith("infinite")}
    assert answer.outcome == ("attention" if rows else "good")
    return {name: words.partition("first in ")[2] for name, words in rows.items()}


def test_an_overflow_is_named_wherever_it_is():
    own = first_infinite(Function(lambda x: x * 1e6), torch.ones(2, 8))
    assert own["float16, cast"].startswith("the model itself, ")
    assert "bfloat16, cast" not in own
    model = layers(enter=nn.Linear(4, 4), energy=energies, head=nn.Linear(1, 3))  # ends in finite numbers
    place = f"energy, pow at {row_of('return (x * 40)')}"
    expected = {"float16, autocast": place, "float16, cast": place}
    assert first_infinite(model, torch.randn(2, 4) + 20) == expected
    model = layers(large=lambda x: 3.4e38 * x, small=torch.reciprocal)
    assert first_infinite(model, torch.ones(2, 4))["bfloat16, cast"].startswith("large, mul at ")


def test_a_constant_infinity_is_no_overflow():
    bounds = layers(least=lambda x: x.clamp(min=-torch.inf), fill=lambda x: torch.full_like(x, -torch.inf).exp() + x)
    assert first_infinite(bounds, torch.ones(2, 4)) == {}
    assert first_infinite(Attending(), torch.randn(2, 4, 8)) == {}


def test_a_model_in_a_small_format_is_held_against_float32_too():
    answer = questions.formats(subject_of(nn.Linear(8, 4).bfloat16(), torch.ones(2, 8).bfloat16()), 2)
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    assert float(rows["float32"]) < 1e-5 < float(rows["bfloat16, cast"])


large = lambda x: x[x > 1.001]  # another number in each format, none here in float32


def test_outputs_of_another_size_are_not_compared():
    answer = questions.formats(subject_of(Function(lambda x: (2 * x, large(x))), torch.tensor([1.001, 0.5])), 2)
    assert {row[0]: row[1] for row in answer.evidence[0].table.rows}["float32"] == "not compared"


def test_a_model_without_float64_is_compared_with_itself():
    insisting = Function(lambda x: x @ torch.ones(4, 2, dtype=torch.float32))
    answer = questions.formats(subject_of(insisting, torch.randn(4, 4)), 2)
    rows = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    assert rows["float32"] == "0.0e+00"
    assert torch.get_default_dtype() == torch.float32
    assert rows["bfloat16, cast"].startswith("raises: ")
    assert row_of("insisting = Function(") in rows["bfloat16, cast"]
    assert answer.outcome == "good", "there is autocast as well"


def test_a_model_of_whole_numbers_has_nothing_to_train():
    each = examined(doctor_models.classes)
    assert "Training" not in questions.runs(each, 60).sentence
    assert {row[2] for row in questions.spent(each, 60).evidence[0].table.rows} == {"0", "1"}
    assert each.value() == 0
    timed = questions.fast(each, 1e-9)
    assert (timed.outcome, [each.title for each in timed.evidence]) == ("attention", ["Measured, inference"])
    assert {row[1] for row in questions.formats(each, 2).evidence[0].table.rows} == {"not compared"}


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
    assert "Over batches" not in {evidence.title for evidence in questions.fast(single, 1e-9).evidence}
    assert questions.fits(listed, None, 2**40).evidence[1].table.rows[0][-1] == "not known"


def test_modules_have_their_names_also_one_called_model():
    inner = layers(up=nn.Conv3d(1, 1, 1), pool=nn.AdaptiveAvgPool3d(2))
    nn.init.constant_(inner.up.weight, 1e6)
    for name in ("model", "models"):
        loss = Function(lambda output: output.square().mean())
        each = subject_of(layers(**{name: inner}), torch.ones(1, 1, 4, 4, 4), loss=loss)
        rows = questions.runs(each, 60).evidence[0].table.rows  # of the forward and of the backward pass
        assert [row[2] for row in rows] == [f"{name}.pool"] * 2
        formats = {row[0]: row[1] for row in questions.formats(each, 2).evidence[0].table.rows}
        assert f"first in {name}.up, " in formats["float16, cast"]
        events = questions._recorded(each, questions.device.cpu())[0].events
        modules = {event.short: event.module for event in events}
        assert (modules["convolution"], modules["_adaptive_avg_pool3d"]) == (f"{name}.up", f"{name}.pool")
        assert (modules["mean"], modules["add_"]) == ("the loss", "the step itself")  # add_ is the optimizer's


def test_a_backward_operator_has_the_module_of_its_gradient():
    classes = torch.tensor([0, 1, 2])
    each = subject_of(
        Rated(), torch.ones(3, 2, dtype=torch.long), loss=lambda x: nn.functional.cross_entropy(x, classes)
    )
    events = questions._recorded(each, questions.device.cpu())[0].events
    modules = lambda name: {event.module for event in events if event.short == name}
    assert modules("embedding_dense_backward") == {"user", "item"}
    assert modules("_embedding_bag_backward") | modules("_embedding_bag_dense_backward") == {"tags"}
    assert modules("nll_loss_backward") == modules("_log_softmax_backward_data") == {"the loss"}
    assert modules("mm") == {"score"}


def test_a_failure_on_the_cpu_has_its_module_and_line(monkeypatch):
    each = subject_of(layers(words=Words()), torch.ones(2))
    told = f"KeyError: 'words' (in words, at {row_of('return {')})"
    monkeypatch.setattr(questions, "made", lambda factory: each)
    monkeypatch.setattr(questions, "_hold_memory", lambda most: None)  # its thread would outlive this test
    with pytest.raises(subject.NotAModel, match=re.escape(told)):
        questions.look("tests:example", 2**40)
    assert told in questions.answered(3, each, 60, 2**40).sentence
    with pytest.raises(questions.coverage.TraceFailed, match=re.escape(told)):
        questions.coverage.mps_coverage(each.model, *each.inputs)


def test_named_inputs_may_be_any_mapping():
    each = subject.checked((Function(lambda x: 2 * x), UserDict(x=torch.ones(3, 4))), "tests:example")  # a tokenizer's
    assert each.batch == 3
    assert each.to("meta").outputs().device.type == "meta"


# ---------------------------------------------------------------- what is not a model


def raising():
    raise OSError("no such file: weights.pt")


a_tensor = lambda: torch.ones(3)
no_tensors = lambda: (nn.Linear(2, 2), (3,))
needs = lambda n, *more, size=3: (nn.Linear(n, 2), None)
ends = lambda: sys.exit(3)
lazy_misfit = lambda: (nn.Sequential(nn.LazyLinear(2), nn.Linear(3, 3)), torch.ones(2))


@pytest.mark.parametrize(
    ("factory", "word"),
    [
        ("nothing", "package.module:factory"),
        ("no_such_module_here:example", "ModuleNotFoundError"),
        ("rv/wrong.py:none", "rv.wrong:none"),
        ("test_doctor:nobody", "nobody"),
        ("test_doctor:raising", "weights.pt"),
        ("test_doctor:a_tensor", "Tensor"),
        ("test_doctor:no_tensors", "no tensor"),
        ("test_doctor:needs", "wants n:"),
        ("test_doctor:ends", "SystemExit: 3"),
        ("test_doctor:lazy_misfit", "does not run"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(factory, word):
    with pytest.raises(subject.NotAModel) as refusal:
        subject.made(factory)
    assert word in str(refusal.value)
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
            return ends.get("look", isolated.Outcome("well", results={"result": ("Net, 3 weights", "cpu", 0.001)}))
        number = int(source.partition("ask(")[2][0])
        if settings.get("device") is None and f"plain{number}" in ends:
            return ends[f"plain{number}"]
        return ends.get(f"ask{number}", isolated.Outcome("well", results={"result": answered(number)}))

    monkeypatch.setattr(isolated, "run", run)
    return calls


def test_an_answer_that_crashes_or_hangs_leaves_the_others(monkeypatch):
    limit = "it needs more than the 1 GiB that it may have\n"
    detail = 'File "<isolated>", line 3, in <module>\nKeyError: labels'
    calls = pretended(
        monkeypatch,
        ask2=isolated.Outcome("crashed", reason="the process was ended by SIGABRT", detail="dyld: gone"),
        ask3=isolated.Outcome("hung", reason="took longer than 9 s and was stopped"),
        ask5=isolated.Outcome("crashed", reason="the process ended with 77", detail=limit),
        ask6=isolated.Outcome("raised", reason="KeyError: labels", detail=detail),
    )
    examined = doctor.examine("mine:example", minutes=3, progress=str)
    assert [(answer.outcome, answer.ended) for answer in examined.answers] == [
        ("good", "well"), ("unanswered", "crashed"), ("unanswered", "hung"), ("good", "well"),
        ("unanswered", "crashed"), ("unanswered", "raised"),
    ]  # fmt: skip
    for answer, word in zip(
        examined.answers, ("", "SIGABRT", "--minutes", "", "--process-memory", "labels"), strict=True
    ):
        assert word in answer.sentence
    assert "dyld: gone" in str(examined)
    assert "<isolated>" not in str(examined), "our own lines"
    asked = {source.partition("ask(")[2][:1]: settings for source, settings in calls if "ask(" in source}
    assert {number for number, settings in asked.items() if settings["device"] == "mps"} == {"1", "2", "4"}
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in asked["1"]["environment"]
    assert asked["2"]["environment"]["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"


class Clock:
    """Seconds that pass when a question takes them: all that it may, where it is ``greedy``."""

    def __init__(self, monkeypatch, greedy=(), looking=2.0, needs=0.0):
        self.now, self.limits, self.plans = 1000.0, {}, {}
        monkeypatch.setattr(report.time, "monotonic", lambda: self.now)

        def run(source, **settings):
            result = ("Net, 3 weights", "cpu", needs)
            if "look(" in source:
                self.now += looking
            elif "ask(" in source:
                number, _, ends = source.partition("ask(")[2].split(", ")[:3]
                result = answered(int(number))
                self.limits[int(number)], self.plans[int(number)] = settings["timeout"], float(ends) - self.now
                if int(number) in greedy:
                    self.now += settings["timeout"]
                    return isolated.Outcome("hung", reason="took longer and was stopped")
            return isolated.Outcome("well", results={"result": result})

        monkeypatch.setattr(isolated, "run", run)


def test_no_question_takes_what_later_ones_need(monkeypatch):
    clock = Clock(monkeypatch, greedy=range(1, 7))
    doctor.examine("mine:example", minutes=3, progress=str)
    assert clock.now - 1000 == pytest.approx(179, abs=0.9)
    for number, share in report.SHARES.items():
        assert clock.limits[number] >= 0.45 * share * 178, number
        assert clock.limits[number] >= clock.plans[number] - 0.1


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (lambda output: output.square(), "(4, 10)"),
        (lambda output: output.detach().mean(), "detached"),
        (lambda output: nn.functional.cross_entropy(output, torch.zeros(7).long()), row_of("output, torch.zeros(7)")),
    ],
)
def test_a_loss_that_fails_or_trains_nothing_is_refused(loss, word):
    with pytest.raises(subject.NotAModel, match=re.escape(word)):
        questions._assert_loss(dataclasses.replace(sound(), whole=subject.WithLoss(sound().model, loss)))


def test_a_loss_is_not_refused_for_what_is_the_model_s():
    one = nn.BatchNorm1d(2), torch.ones(1, 2)  # fails in its own mode
    frozen = sound().model.requires_grad_(False), torch.randn(4, 3, 8, 8)
    for model, given in (one, frozen):
        questions._assert_loss(subject_of(model, given, loss=lambda output: output.mean()))
    sparse = Function(lambda x: (x * 2).to_sparse())  # of which there is no mean square, the loss that is ours
    questions._assert_loss(subject_of(sparse, torch.eye(2)))


def test_too_few_minutes_are_refused_with_what_would_do(monkeypatch):
    clock = Clock(monkeypatch, looking=5.0, needs=2.0)
    with pytest.raises(doctor.Refused, match=r"--minutes 0\.6 "):
        doctor.examine("mine:example", minutes=0.3, progress=str)
    assert not clock.limits, "nothing was asked"
    assert len(doctor.examine("mine:example", minutes=0.6, progress=str).answers) == 6


@pytest.mark.parametrize(
    ("draft", "ended", "outcome"),
    [
        ("good", "hung", "attention"),
        ("bad", "hung", "bad"),
        ("good", "crashed", "unanswered"),
        ("bad", "crashed", "bad"),
        ("", "hung", "unanswered"),
    ],
)
def test_a_question_that_is_stopped_gives_what_it_has(draft, ended, outcome, monkeypatch):
    def run(source, **_):
        (file,) = re.findall(r"'([^']+/draft)'", source)
        if draft:
            with answers_of.drafting(Path(file)):
                answers_of.so_far(answered(3))
                answers_of.so_far(Answer(QUESTIONS[2], draft, "It is fast.", "a CPU", answered(3).evidence))
        return isolated.Outcome(ended, reason="took longer than 9 s and was stopped" if ended == "hung" else "it ended")

    monkeypatch.setattr(isolated, "run", run)
    answer = report._answer(3, "mine:example", (8, 9), 2**40, None, apple=False)
    assert (answer.outcome, answer.ended) == (outcome, ended)
    assert ("--minutes" in answer.sentence) == (ended == "hung"), "only where time was the reason"
    assert answer.sentence.startswith("It is fast.") == bool(draft)
    assert len(answer.evidence) == bool(draft)


def test_without_a_simulated_gpu_the_question_is_asked(monkeypatch):
    gone = isolated.Outcome("raised", reason="no compiler", kinds=("SimulationUnavailable", "RuntimeError"))
    plain = isolated.Outcome("well", results={"result": answered(1)})
    pretended(monkeypatch, ask1=gone, plain1=plain)
    assert doctor.examine("mine:example", progress=str).answers[0].outcome == "good"


def test_page_and_json_hold_every_answer_with_its_evidence(monkeypatch, tmp_path):
    pretended(monkeypatch)
    examined = doctor.examine("mine:example", progress=str)
    text = examined.save(tmp_path / "new").read_text()
    for number, question in enumerate(QUESTIONS, 1):
        assert question in text
        assert f"Answer {number} &amp; more." in text
    assert ("&lt;1&gt;" in text, "<1>" in text, "http" in text) == (True, False, False)
    told = json.loads((tmp_path / "new" / "doctor.json").read_text())
    assert (told["outcome"], told["headline"]) == ("good", examined.headline)
    assert [(each["question"], each["ended"]) for each in told["answers"]] == [(each, "well") for each in QUESTIONS]
    assert told["answers"][0]["evidence"] == [
        {"title": "Seen", "headings": ["a", "b"], "rows": [["<1>", "2"]], "note": "a note"}
    ]


@pytest.mark.parametrize(
    ("outcomes", "first", "others"),
    [({5: "bad"}, 5, ""), ({6: "attention", 2: "bad", 3: "unanswered"}, 2, "3, 6"), ({4: "unanswered"}, 4, "")],
)
def test_the_headline_names_the_worst_first(outcomes, first, others):
    answers = (Answer(question, outcomes.get(n, "good"), "So.") for n, question in enumerate(QUESTIONS, 1))
    headline = doctor.Report("mine:example", "Net, 3 weights", tuple(answers), "2").headline
    numbers = ", ".join(re.findall(r"\d", headline))
    assert numbers == f"{first}{others and ', '}{others}"


@pytest.mark.parametrize("given", ["--minutes=soon", "--minutes=0", "--memory=16"])
def test_misuse_ends_with_2(given, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", "mine:example", given])
    assert end.value.code == 2
    assert given.partition("=")[0] in capsys.readouterr().err


CRASHED = isolated.Outcome("crashed", reason="it ended")


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (0, {}),
        (0, {"ask3": Answer(QUESTIONS[2], "attention", "Slow.")}),
        (1, {"ask2": Answer(QUESTIONS[1], "bad", "No."), "ask1": CRASHED}),
        (2, {"ask1": CRASHED}),
        (2, {"ask1": Answer(QUESTIONS[0], "attention", "In part.", ended="hung")}),
        (2, {"ask2": Answer(QUESTIONS[1], "unanswered", "Not started.", ended="not started")}),
        (2, {"ask2": Answer(QUESTIONS[1], "unanswered", "There is no Apple GPU.")}),
        (2, {"look": isolated.Outcome("raised", reason="NotAModel: give one", kinds=("NotAModel", "ValueError"))}),
    ],
)
def test_the_command_tells_the_worst_by_its_code(code, ends, monkeypatch, tmp_path, capsys):
    whole = {name: isolated.Outcome("well", results={"result": e}) for name, e in ends.items() if isinstance(e, Answer)}
    calls = pretended(monkeypatch, **{**ends, **whole})
    assert main(["doctor", "mine:example", "--memory", "16GB", "--out", str(tmp_path)]) == code
    told = capsys.readouterr()
    assert (str(tmp_path / "doctor.html") in told.out, "give one" in told.err) == ("look" not in ends, "look" in ends)
    assert ("look" in ends) != any("ask(5" in source and f", {16 * 2**30}, " in source for source, _ in calls)


@pytest.mark.parametrize("count", [2, 0])
def test_ctrl_c_keeps_the_answers_that_there_are(count, monkeypatch, tmp_path):
    pretended(monkeypatch)
    answering = report._answer

    def interrupted(number, *rest):
        if list(report.SHARES).index(number) >= count:
            raise KeyboardInterrupt
        return answering(number, *rest)

    monkeypatch.setattr(report, "_answer", interrupted)
    assert main(["doctor", "mine:example", "--out", str(tmp_path)]) == 130
    assert (tmp_path / "doctor.json").exists() == bool(count)
    if count:
        told = json.loads((tmp_path / "doctor.json").read_text())
        assert told["interrupted"]
        assert [each["question"] for each in told["answers"]] == [QUESTIONS[0], QUESTIONS[4]]


def test_a_folder_that_takes_no_files_is_refused_first(monkeypatch, tmp_path, capsys):
    calls = pretended(monkeypatch)
    (tmp_path / "file").touch()
    assert main(["doctor", "mine:example", "--out", str(tmp_path / "file" / "below")]) == 2
    assert ("--out" in capsys.readouterr().err, calls) == (True, [])


def test_the_example_of_the_docs_is_one(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "your_own_code.md").read_text()
    (code,) = (block.partition("```")[0] for block in text.split("```py\n") if block.startswith("# my_model.py"))
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    each = subject.made("my_model:example")
    assert (each.value().requires_grad, each.batch, each.scales) == (True, 8, True)


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
    assert report._look("aborting_model:example", 300, 2**40)[:2] == ("Ends, 0 weights, inputs (3,)", "cpu")
    crashed = report._answer(1, "aborting_model:example", (300, 300), 2**40, None, apple=True)
    assert crashed.outcome == "unanswered"
    assert "SIGABRT" in crashed.sentence
    with pytest.raises(doctor.Refused, match=r"it needs more than the 1 GiB that it may have"):
        report._look("greedy_model:example", 300, 1 << 30)


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
