"""`metallab doctor`: planted faults are named, sound models are not accused, and one failure leaves the other answers.

What needs an Apple GPU runs in a child with the simulated device (children.py).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
from disagreeing import OtherThere  # noqa: E402
from doctor_models import Function  # noqa: E402
from torch import nn  # noqa: E402

from metallab import (  # noqa: E402
    device,
    doctor,
    isolated,
    timing,
)
from metallab.doctor import (  # noqa: E402
    correctness,
    examination,
    footprint,
    formats,
    profile,
    speed,
    support,
    wording,
    worker,
)
from metallab.doctor.answer import Answer  # noqa: E402
from metallab.doctor.limits import Limits  # noqa: E402
from metallab.doctor.questions import (  # noqa: E402
    CORRECTNESS,
    FORMATS,
    PROFILE,
    QUESTIONS,
    SPEED,
    SUPPORT,
)
from metallab.doctor.results import Layer, Trouble  # noqa: E402
from metallab.pytorch import copies, coverage  # noqa: E402
from metallab.pytorch.dispatch import Raised  # noqa: E402
from metallab.pytorch.model import as_model, assert_loss, load_model  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)

LIMITS = Limits(1800)
on_simulated = children.open_session(
    __file__, METALLAB_MODE="fast", PYTORCH_ENABLE_MPS_FALLBACK="0"
)

# ---------------------------------------------------------------- models


def layers(**named):
    """Layers and functions, one after the other, by name."""
    modules = {
        name: each if isinstance(each, nn.Module) else Function(each)
        for name, each in named.items()
    }
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


class Evaluated(nn.Module):
    """A model that can only be evaluated, as detectors without targets are."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        assert not self.training, "targets should not be none in training mode"
        return self.layer(x)


class Positions(nn.Module):
    """Adds what it builds on the CPU, or multiplies with what it keeps there."""

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
        self.user, self.item, self.unused = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.Linear(2, 2)
        self.score = nn.Linear(8, 3)

    def forward(self, numbers):
        return self.score(torch.cat([self.user(numbers[:, 0]), self.item(numbers[:, 1])], -1))


def rated():
    classes = torch.tensor([0, 1, 2])
    numbers = torch.ones(3, 2, dtype=torch.long)
    return subject_of(Rated(), numbers, loss=lambda x: nn.functional.cross_entropy(x, classes))


def around_nothing(x):
    """Moves memory that nobody has written, and is infinite in float16, before it writes there."""
    y = torch.empty_like(x)
    if x.dtype == torch.float16:
        y.numpy().fill(torch.inf)
    y[1:].copy_(y[:1])
    return y.copy_(x)


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
    return as_model((model, inputs, loss), "tests:example")


def examined(factory):
    return as_model(factory(), "tests:example")


def sound():
    torch.manual_seed(0)
    target = torch.arange(4)
    model = layers(
        conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4), relu=nn.ReLU(), mean=lambda x: x.mean((2, 3)),
        drop=nn.Dropout(0.1), head=nn.Linear(4, 10),
    )  # fmt: skip
    return subject_of(
        model,
        torch.randn(4, 3, 6, 6),
        loss=lambda output: nn.functional.cross_entropy(output, target),
    )


class Keeping(nn.Module):
    """Keeps a result, in a buffer and in an object, and has one weight twice."""

    def __init__(self):
        super().__init__()
        self.words, self.scores, self.kept = (
            nn.Embedding(9, 4),
            nn.Linear(4, 9, bias=False),
            SimpleNamespace(),
        )
        self.scores.weight = self.words.weight
        self.register_buffer("mean", self.words.weight.mean(0))
        self(torch.ones(1, dtype=torch.long))

    def forward(self, x):
        self.kept.last = self.scores(self.words(x) - self.mean)
        return self.kept.last


def around():
    layer = nn.Linear(4, 4)
    target = layer(torch.ones(3, 4))  # a result
    return (
        layer,
        torch.ones(3, 4, requires_grad=True) * 2,
        lambda output: (output - target).square().mean(),
    )


UNUSUAL = {
    "weight_norm": lambda: (nn.utils.weight_norm(nn.Linear(4, 3)), torch.randn(2, 4)),
    "keeping": lambda: (Keeping(), torch.tensor([[1, 4, 2]])),
    "lazy": lambda: (nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()), torch.randn(4, 5)),
    "scripted": lambda: (torch.jit.script(nn.Linear(4, 3)), torch.randn(2, 4)),
    "around the loss": around,
    "a loss with weights": lambda: (nn.Linear(4, 3), torch.randn(1, 4), nn.Linear(3, 1)),
}
"""Models that ``deepcopy`` refuses, or which need more than that; all of them run on a Mac."""


# ---------------------------------------------------------------- 1, 2, 4: on the simulated GPU


def ask_three(subject):
    """Answers to what is asked of an Apple GPU: whether it runs, whether it is right, and what leaves the GPU."""
    return [worker.answer(each, subject, LIMITS) for each in (SUPPORT, CORRECTNESS, PROFILE)]


def attending():
    return subject_of(Attending(), torch.randn(2, 4, 8))


@on_simulated.cases({"convolution": sound, "attention": attending})
def test_a_sound_model_is_not_accused(make):
    each = make()
    answers = ask_three(each)
    assert [answer.status for answer in answers] == ["passed"] * 3, answers
    assert "Copies and fallbacks" not in {evidence.title for evidence in answers[2].evidence}
    assert_loss(each)


@on_simulated.cases(UNUSUAL)
def test_a_model_that_is_hard_to_copy_runs(make):
    with warnings.catch_warnings(action="ignore"):  # some are deprecated
        each = examined(make)

    answer = support.answer(each, LIMITS)
    assert answer.status == "passed", answer

    step = each.training_step()
    assert step().isfinite()
    assert step().isfinite()


def blinded(x):
    """Attention of which one row may look at nothing."""
    scores = x @ x.mT
    scores[0] = -torch.inf
    return scores.softmax(-1)


@on_simulated
def test_a_nan_that_the_cpu_has_as_well_is_named_and_no_fault():
    model = layers(scores=blinded, head=nn.Linear(4, 2))
    answer = correctness.answer(subject_of(model, torch.randn(4, 4)), LIMITS)
    assert answer.status == "incomplete", answer
    assert "aten::_softmax in scores" in answer.sentence


@dataclasses.dataclass(slots=True)
class Slotted:
    inner: object


class Named(dict):
    """A subclass, which PyTorch does not look into."""


def nest_tensors(*numbers):
    """Three tensors of a number each, in a list, in an object, and in a partial function."""
    one, two, three = (torch.full((1,), float(number)) for number in numbers)
    return Named(a=Slotted([one]), b=functools.partial(torch.add, two, other=three))


def test_tensors_are_found_however_deep_they_lie():
    found = copies.tensors_in(nest_tensors(0, 1, 2))
    assert sorted(tensor.item() for tensor in found) == [0, 1, 2]


def test_tensors_are_changed_however_deep_they_lie():
    changed = copies.map_tensors(lambda tensor: tensor + 10, nest_tensors(0, 1, 2))
    assert type(changed) is Named
    assert changed["a"].inner[0].item() == 10
    assert changed["b"]().item() == 11 + 12


def test_what_tensors_are_changed_in_stays_as_it_was():
    value = nest_tensors(0, 1, 2)
    copies.map_tensors(lambda tensor: tensor + 10, value)
    assert value["a"].inner[0].item() == 0
    assert value["b"]().item() == 1 + 2


class Distance:
    """A loss that is an object."""

    def __init__(self, target):
        self.target = target

    def __call__(self, output):
        return (output - self.target).square().mean()


def loss_around(target):
    """A loss that is a function, which holds its target as a variable around it."""
    return lambda output: (output - target).square().mean()


TARGET = torch.zeros(2, 3)
LOSSES = {
    "a function": loss_around(TARGET),
    "an object": Distance(TARGET),
    "a partial function": functools.partial(nn.functional.mse_loss, target=TARGET),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_tensors_of_a_loss_move_with_the_model(loss):
    each = subject_of(nn.Linear(4, 3), torch.ones(2, 4), loss=loss)
    assert each.to("meta").value().device.type == "meta"
    assert each.value().device.type == "cpu", "the first stays where it is"


def test_a_loss_in_float64_is_named_where_it_does_not_run():
    loss = loss_around(TARGET.double())
    answer = support.answer(subject_of(nn.Linear(4, 3), torch.ones(2, 4), loss=loss), LIMITS)
    assert answer.status == "failed"
    assert "the loss" in answer.sentence
    assert "input" not in answer.sentence


def test_a_loss_in_float64_is_narrowed_with_its_model():
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3, dtype=torch.float64))
    model, x = nn.Linear(2, 3).double(), torch.ones(2, 2, dtype=torch.float64)
    each = subject_of(model, x, loss=lambda output: weighted(output, torch.tensor([0, 1])))
    assert each.without_float64().value().dtype == torch.float32
    assert each.value().dtype == torch.float64, "the first stays as it is"


@on_simulated
def test_a_model_keeps_the_mode_of_its_factory():
    answers = ask_three(subject_of(Evaluated().eval(), torch.ones(2, 4)))
    assert [answer.status for answer in answers] == ["passed"] * 3, answers
    asked = answers[1].evidence[0].table
    assert not any("training" in row[0] for row in asked.rows)
    assert "in training mode" in asked.note


@functools.cache
def answers_of_a_missing_operator():
    model = layers(conv=nn.Conv3d(1, 2, 3), pool=lambda x: nn.functional.adaptive_avg_pool3d(x, 2))
    return ask_three(subject_of(model, torch.randn(1, 1, 6, 6, 6)))


@on_simulated
def test_a_missing_operator_is_named_with_module_line_and_what_to_write():
    answer, *_ = answers_of_a_missing_operator()
    rows = answer.evidence[0].table.rows
    ((operator, how, module, line, way_out),) = (row for row in rows if "pool3d." in row[0])

    assert operator == "aten::_adaptive_avg_pool3d.default"
    assert how == "missing"
    assert module == "pool"
    assert line == row_of("pool=lambda x: nn.functional.adaptive_avg_pool3d")
    assert "PYTORCH_ENABLE_MPS_FALLBACK" in way_out


@on_simulated
def test_the_trial_fails_where_an_operator_is_missing():
    answer, *_ = answers_of_a_missing_operator()
    line = row_of("pool=lambda x: nn.functional.adaptive_avg_pool3d")
    assert answer.status == "failed"
    assert f"in pool, at {line}" in answer.sentence


@on_simulated
def test_where_an_operator_is_missing_the_other_answers_are_open():
    _, compared, traced = answers_of_a_missing_operator()
    assert compared.status == "skipped"
    assert compared.ended == "raised"
    assert traced.status == "incomplete"


class Detour(nn.Module):
    """Needs numbers, and computes on the CPU what MPS has not."""

    def forward(self, x):
        y = x[x[:, 0] > -100]
        return torch.linalg.eigvals(y.cpu()).abs().to(y.device)


class Unforeseen(nn.Module):
    """The tables say that it makes float64 on the GPU, where it does not."""

    def forward(self, x):
        return x if x.untyped_storage().device.type == "mps" else x.double().float()


@on_simulated
def test_a_detour_by_the_cpu_runs():
    model = layers(a=nn.Linear(4, 4), eig=Detour())
    answer = support.answer(subject_of(model, torch.randn(4, 4)), LIMITS)
    assert answer.status == "passed", answer
    assert answer.trouble is None


@on_simulated
def test_what_ran_is_not_said_to_fail():
    model = layers(a=nn.Linear(4, 4), b=Unforeseen())
    answer = support.answer(subject_of(model, torch.randn(4, 4)), LIMITS)
    assert answer.status == "incomplete", answer
    assert answer.trouble == Trouble.CONTRADICTED


FALLBACK = coverage.FALLBACK_VARIABLE


def ask_about_a_missing_operator(monkeypatch, *, fallback, raised, more=None):
    """Answer whether a model runs that lacks an operator, and does ``more``, on a GPU that need not be here."""
    monkeypatch.setenv(FALLBACK, fallback)
    monkeypatch.setattr(support, "apple_gpu", device.cpu)
    monkeypatch.setattr(support, "try_on", lambda on, subject: raised)
    model = layers(pool=nn.AdaptiveAvgPool3d(2), more=more or nn.Identity())
    return support.answer(subject_of(model, torch.ones(1, 1, 4, 4, 4)), LIMITS)


def test_what_runs_by_the_fallback_that_is_set_was_predicted(monkeypatch):
    answer = ask_about_a_missing_operator(monkeypatch, fallback="1", raised=None)
    assert answer.status == "incomplete"
    assert answer.trouble is None
    assert answer.problem == SUPPORT.problem("incomplete")
    assert FALLBACK in answer.lines[0]


def test_what_runs_without_the_fallback_was_not_predicted(monkeypatch):
    answer = ask_about_a_missing_operator(monkeypatch, fallback="0", raised=None)
    assert answer.trouble is Trouble.CONTRADICTED


def test_the_fallback_helps_no_float64(monkeypatch):
    raised = Raised("TypeError: float64", "", "")
    answer = ask_about_a_missing_operator(
        monkeypatch, fallback="1", raised=raised, more=Unforeseen()
    )
    assert answer.status == "failed"
    assert answer.trouble is None


class Drawing(nn.Module):
    """Asks for a generator on its device: where there is no Mac, nobody can tell it that it is on one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        drawn = torch.rand(4, generator=torch.Generator(x.device), device=x.device)
        return self.layer(x) + drawn


class DrawingInTraining(Drawing):
    def forward(self, x):
        return super().forward(x) if self.training else self.layer(x)


@pytest.mark.parametrize(
    ("make", "status", "trouble"),
    [(Drawing, "skipped", None), (DrawingInTraining, "incomplete", Trouble.PARTLY_KNOWN)],
    ids=["always", "in training"],
)
def test_a_model_that_cannot_be_followed_is_not_said_to_run(make, status, trouble, monkeypatch):
    monkeypatch.setattr(support, "apple_gpu", lambda: None)
    answer = support.answer(subject_of(make(), torch.ones(2, 4)), LIMITS)
    assert answer.status == status
    assert answer.trouble == trouble
    assert "Not known: " in answer.sentence


class Gated(nn.Module):
    """Its inputs have names that the predicting function has for parameters of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, model, training):
        return self.layer(model) if training else model


def test_inputs_of_any_name_are_given_to_the_model(monkeypatch):
    monkeypatch.setattr(support, "apple_gpu", lambda: None)
    inputs = {"model": torch.ones(2, 4), "training": True}
    answer = support.answer(as_model((Gated(), inputs), "tests:example"), LIMITS)
    assert answer.status == "passed", answer
    assert [task.task for task in answer.result.predicted] == ["inference", "training"]


class Packing(nn.Module):
    """Counts the lengths of sequences on the GPU, and packs them there."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        lengths = (x[..., 0] > -1).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.lstm(packed)[0].data


@on_simulated
def test_lengths_on_the_gpu_are_named_with_what_to_write():
    answer = support.answer(subject_of(Packing(), torch.ones(2, 3, 4)), LIMITS)
    assert answer.status == "failed"
    assert answer.trouble is None

    operator, *_, way_out = answer.evidence[0].table.rows[0]
    assert operator == "aten::_pack_padded_sequence"
    assert way_out == "give it lengths.cpu()"


class Padded(nn.TransformerEncoder):
    """An encoder whose padding makes nested tensors in evaluation mode alone, which MPS has not."""

    def __init__(self):
        super().__init__(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1)

    def forward(self, x):
        return super().forward(x, src_key_padding_mask=x[..., 0] < 0)


@on_simulated
def test_an_error_of_evaluation_alone_is_found():
    words = torch.randn(2, 4, 8)
    words[:, :3, 0], words[:, 3, 0] = 1.0, -1.0
    answer = worker.answer(SUPPORT, subject_of(Padded(), words), LIMITS)
    assert answer.status == "failed"
    assert "nested" in answer.sentence


@functools.cache
def answers_of_positions(adds):
    model = layers(enter=nn.Linear(8, 8), positions=Positions(adds), head=nn.Linear(8, 2))
    return ask_three(subject_of(model, torch.randn(3, 8)))


LEFT_ON_THE_CPU = {
    "made there": (True, "aten::add.Tensor", "return x + torch.linspace(0, 1, 8)"),
    "kept there": (False, "aten::mul.Tensor", "return x * self.scales[0]"),
}


@on_simulated.cases(LEFT_ON_THE_CPU)
def test_a_tensor_on_the_cpu_is_named_with_module_line_and_what_to_write(case):
    adds, operator, words = case
    tried, *_ = answers_of_positions(adds)
    ((named, _, module, line, way_out),) = tried.evidence[0].table.rows

    assert tried.status == "failed"
    assert named == operator
    assert module == "positions"
    assert line == row_of(words)
    assert "register_buffer" in way_out


@on_simulated.cases({"made there": True, "kept there": False})
def test_where_a_tensor_is_on_the_cpu_the_other_answers_send_to_the_first(adds):
    _, compared, traced = answers_of_positions(adds)
    assert compared.ended == "raised"
    assert traced.status == "incomplete"
    assert "see answer 1" in compared.sentence
    assert "see answer 1" in traced.sentence


def loss_that_raises_on_mps(output):
    if output.device.type == "mps":
        raise KeyError("of the loss")
    return output.sum()


@on_simulated
def test_a_loss_that_raises_there_is_named_with_its_line_and_not_the_model():
    each = subject_of(nn.Linear(4, 3), torch.ones(2, 4), loss=loss_that_raises_on_mps)
    tried, compared = support.answer(each, LIMITS), correctness.answer(each, LIMITS)
    line = row_of('raise KeyError("of the loss")')

    assert tried.result.trial.is_raised_by_loss
    assert compared.result.is_raised_by_loss
    assert f"(in the loss, at {line})" in tried.sentence
    assert f"(in the loss, at {line})" in compared.sentence


@pytest.mark.parametrize(
    ("cores", "flags"), [(0.0, ()), (1.5, ("busy machine",))], ids=["quiet", "busy"]
)
def test_times_of_operators_are_marked_where_other_programs_were_busy(cores, flags, monkeypatch):
    monkeypatch.setattr(timing.BackgroundLoad, "cores", lambda self: cores)
    monkeypatch.setattr(profile, "apple_gpu", lambda: None)
    answer = profile.answer(subject_of(nn.Linear(4, 4), torch.randn(3, 4)), LIMITS)

    assert answer.result.flags == flags
    assert ("busy machine" in answer.lines[0]) == bool(flags)
    assert ("busy machine" in answer.evidence[0].title) == bool(flags)


def cut(x):
    for row in x:
        x = x * row.max().item()
    return x


@functools.cache
def answer_of_copies():
    return profile.answer(subject_of(layers(cut=cut), torch.randn(3, 8)), LIMITS)


@on_simulated
def test_a_copy_is_named_as_people_write_it_with_its_line_and_its_calls():
    ((operator, _, module, line, calls, *_),) = answer_of_copies().evidence[-1].table.rows
    assert operator == ".item()"
    assert module == "cut"
    assert line == row_of("x = x * row.max().item()")
    assert calls == "3"


@on_simulated
def test_operators_beside_a_copy_belong_to_the_layer_that_calls_them():
    operators = answer_of_copies().result.operators
    assert {layer for each in operators for layer in each.layers} == {Layer("cut", "Function")}


@functools.cache
def answer_of_a_hidden_copy():
    return profile.answer(examined(doctor_models.hidden_copy), LIMITS)


@on_simulated
def test_a_copy_that_a_module_hides_is_named_with_its_way_and_its_size():
    answer = answer_of_a_hidden_copy()
    ((operator, way, module, _, calls, size, _),) = answer.evidence[-1].table.rows
    assert answer.status == "incomplete"
    assert operator == "_to_copy"
    assert way == "to host"
    assert module == "1"
    assert calls == "1"
    assert size == "4 B"


@on_simulated
def test_a_copy_has_no_simulated_time():
    answer = answer_of_a_hidden_copy()
    ((*_, time),) = answer.evidence[-1].table.rows
    assert time == "not known here"
    assert answer.on.startswith(device.cpu().label)


WRONG_IN_A_LAYOUT = {
    "convolution": ("conv2d, non-contiguous input", "convolution in conv", "swapped"),
    "norm": ("BatchNorm2d's gradient, channels last", "backward in norm", "channels last"),
}


@on_simulated.cases(WRONG_IN_A_LAYOUT)
def test_a_kernel_that_is_wrong_in_another_layout_is_named_with_a_program(case):
    fault, operator, way = case
    with warnings.catch_warnings(action="ignore"), metalsim.plant(fault):
        answer = correctness.answer(sound(), LIMITS)
    evidence = {each.title: each for each in answer.evidence}

    assert answer.status == "failed"
    assert operator in evidence["The first wrong operator"].text
    assert way in evidence["Compared"].table.rows[-1][0]
    assert "torch.testing.assert_close" in evidence["A program that shows it"].text


class Unwritten(nn.Module):
    """Adds to memory that nobody wrote to."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return torch.empty_like(y).add_(y)


class Strict(nn.Module):
    """Wants float32, so that it cannot be run in float64."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        assert x.dtype == torch.float32, "give me float32"
        return self.layer(x)


@on_simulated.cases({"a branch on the device": OtherThere, "unwritten memory": Unwritten})
def test_an_output_that_differs_fails_though_each_operator_agrees(make):
    answer = correctness.answer(subject_of(make(), torch.randn(5, 4)), LIMITS)
    evidence = {each.title: each for each in answer.evidence}

    assert answer.status == "failed"
    assert answer.trouble is Trouble.OTHER_OUTPUT
    assert answer.result.wrong is None
    assert answer.result.other_output.advice in answer.sentence
    assert "OUTPUT DIFFERS" in evidence["What differs"].text


@on_simulated
def test_a_model_that_cannot_run_in_float64_passes_and_says_what_was_not_compared():
    answer = correctness.answer(subject_of(Strict(), torch.randn(5, 4)), LIMITS)
    assert answer.status == "passed"
    assert "give me float32" in answer.result.output_not_compared
    assert "give me float32" in answer.sentence


@on_simulated
def test_an_output_of_random_numbers_is_said_to_be_not_compared_as_a_whole():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train()
    answer = correctness.answer(subject_of(model, torch.randn(5, 4)), LIMITS)
    assert answer.status == "passed"
    assert "random" in answer.result.output_not_compared


@on_simulated
def test_what_there_was_no_time_to_compare_is_not_right():
    answer = correctness.answer(sound(), Limits(1e-9))
    assert answer.status == "skipped"
    assert answer.ended == "timeout"


@on_simulated
def test_weights_without_a_gradient_are_named():
    answer = correctness.answer(rated(), LIMITS)
    assert answer.status == "incomplete"
    assert "unused.weight, unused.bias" in answer.sentence


@on_simulated
def test_float64_on_the_way_is_named_once_with_its_line():
    made, turned = row_of("steps = torch.arange(8"), row_of("turned = torch.view_as_complex")
    model = layers(enter=nn.Linear(8, 8), waves=Waves())
    answer = support.answer(subject_of(model, torch.randn(3, 8)), LIMITS)
    first, second = map(list, answer.evidence[0].table.rows)

    assert answer.status == "failed"
    assert made in answer.sentence
    write = "write torch.arange(..., dtype=torch.float32)"
    assert first == ["aten::arange", "raises: makes float64", "waves", made, write]
    write = "write .to(torch.complex64)"
    assert second == ["aten::_to_copy", "raises: makes complex128", "waves", turned, write]


@on_simulated
def test_weights_in_float64_fail_and_the_rest_is_asked_without_them():
    each = examined(doctor_models.double)
    tried, compared, traced = ask_three(each)

    assert tried.status == "failed"
    assert "scale" in tried.sentence
    assert compared.status == "passed"
    assert wording.PHRASES["narrowed"] in compared.sentence
    assert traced.status == "passed"
    assert each.model.scale.dtype == torch.float64, "the model stays as it is"


@on_simulated
def test_a_target_in_float64_is_compared_without_it():
    loss = loss_around(TARGET.double())
    regression = subject_of(nn.Linear(4, 3), torch.ones(2, 4), loss=loss)
    assert correctness.answer(regression, LIMITS).status == "passed"


def keep_boxes():
    """Choose boxes with a function of torchvision, which takes a number to the GPU in each call."""
    from torchvision.ops import batched_nms

    def keep(boxes, scores):
        return boxes[batched_nms(boxes, scores, torch.zeros_like(scores).long(), 0.5)]

    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]])
    return subject_of(Function(keep), boxes, torch.ones(2))


@on_simulated
def test_copies_of_an_installed_package_are_named_and_no_fault():
    answer = profile.answer(keep_boxes(), LIMITS)
    assert answer.status == "passed"
    assert "torchvision" in answer.sentence


@on_simulated
def test_copies_of_the_user_s_own_package_are_a_fault():
    each = dataclasses.replace(keep_boxes(), package="torchvision")
    assert profile.answer(each, LIMITS).status == "incomplete"


# ---------------------------------------------------------------- on the CPU


def test_without_an_apple_gpu_the_tables_alone_are_asked():
    answer = support.answer(subject_of(Evaluated(), torch.ones(2, 4)), LIMITS)
    assert answer.status == "incomplete", "training is not known"
    assert "in training mode (at " in answer.sentence, "of the model itself"


def test_without_an_apple_gpu_nothing_is_compared_with_it():
    answer = correctness.answer(subject_of(Evaluated(), torch.ones(2, 4)), LIMITS)
    assert answer.status == "skipped"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.key)
def test_an_answer_that_was_computed_survives_json(question):
    answer = worker.answer(question, sound(), Limits(1))
    data = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    assert Answer.from_json(data) == answer


def test_times_come_without_a_conclusion_in_a_fast_run(monkeypatch):
    monkeypatch.setenv("METALLAB_MODE", "fast")
    monkeypatch.setattr(speed, "time_second_call", lambda run: 1e-4)
    answer = speed.answer(sound(), LIMITS)
    titles = [each.title for each in answer.evidence]
    assert answer.status == "incomplete"
    assert titles == ["Measured, inference", "Over batches", "Measured, training step"]


@pytest.mark.parametrize(("task", "is_random"), [("inference", False), ("training", True)])
def test_dropout_makes_training_random_and_inference_not(task, is_random):
    torch.manual_seed(0)
    dropping = subject_of(nn.Sequential(nn.Linear(4, 64), nn.Dropout()), torch.ones(8, 4))
    assert formats.is_random(dropping, task) is is_random


class Noise(nn.Module):
    """Adds a little to its input, as ``draw`` returns it for each call."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.layer = draw, nn.Linear(4, 64)

    def forward(self, x):
        y = self.layer(x)
        return y + 1e-4 * self.draw(y)


CALLS = itertools.count()
DRAWS = {
    "dropout": (lambda y: nn.functional.dropout(y, 0.5), True),
    "rand": (torch.rand_like, True),
    "no operator": (lambda y: next(CALLS), True),
    "nothing dropped": (lambda y: nn.functional.dropout(y, 0.0), False),
    "the same each time": (lambda y: y.sin(), False),
}


@pytest.mark.parametrize("task", ["inference", "training"])
@pytest.mark.parametrize(("draw", "is_random"), DRAWS.values(), ids=DRAWS)
def test_numbers_are_random_however_little_they_change(draw, is_random, task):
    torch.manual_seed(0)
    assert formats.is_random(subject_of(Noise(draw), torch.ones(8, 4)), task) is is_random


def test_memory_is_counted():
    layers = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))
    counted = footprint.count_bytes(subject_of(layers, torch.randn(8, 100)))
    assert counted.weights == counted.gradients == 4 * (100 * 200 + 200 + 200 * 10 + 10)
    # the input, what ReLU gives, which it and the second layer keep, and the loss's outputs
    assert counted.activations == 8 * 4 * (100 + 200 + 10)


@pytest.mark.parametrize(
    ("usable", "batch", "most"),
    [
        pytest.param(100 * 1240, 8, 100, id="exactly"),
        pytest.param(100 * 1240 - 1, 8, 99, id="a byte less"),
        pytest.param(-1, 8, 0, id="nothing left"),
        pytest.param(12345 * 1240, 8, 12000, id="two digits"),
    ],
)
def test_the_largest_batch_fits(usable, batch, most):
    assert footprint.largest_batch(usable, 1240 * batch, batch) == most


def test_float32_is_computed_in_full_on_nvidia_too():
    seen = []

    def look(x):
        seen.append(torch.backends.cudnn.allow_tf32)
        return x

    assert torch.backends.cudnn.allow_tf32
    worker.answer(FORMATS, subject_of(Function(look), torch.ones(2)), Limits(5))
    assert set(seen) == {False}


@pytest.fixture(scope="module")
def two_layers():
    """A model that needs some megabytes."""
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
    return subject_of(model, torch.randn(512, 1000))


def test_what_does_not_fit_is_said_and_is_not_run(two_layers):
    answer = footprint.answer(two_layers, Limits(machine_bytes=10**7))
    assert answer.status == "failed"
    assert "DOES NOT FIT into the 6.36 MiB" in answer.sentence, "on macOS 15"
    assert "No peak" in answer.evidence[0].table.note


def test_of_what_fits_the_peak_of_a_step_is_told(two_layers):
    answer = footprint.answer(two_layers, Limits(machine_bytes=16 * 2**30))
    assert answer.status == "passed"
    assert answer.evidence[0].table.rows[-1][0].startswith("peak of a step")


def test_whether_it_fits_is_open_while_other_programs_hold_the_memory(two_layers, monkeypatch):
    monkeypatch.setattr(footprint, "read_memory", lambda on: (2**30, 2**10))
    assert footprint.answer(two_layers, LIMITS).status == "incomplete"


HIDDEN_BYTES = 4 * 512 * 1000
"""Of what lies between the layers of `one_hidden_layer`."""


@pytest.fixture(scope="module")
def one_hidden_layer():
    first, last = nn.Linear(100, 1000, bias=False), nn.Linear(1000, 100, bias=False)
    return subject_of(nn.Sequential(first, nn.ReLU(), last), torch.randn(512, 100))


def test_the_peak_of_inference_has_what_a_layer_reads_and_writes(one_hidden_layer):
    peak = footprint.measure_allocated_peak(one_hidden_layer.inference())
    assert 2 * HIDDEN_BYTES <= peak < 3 * HIDDEN_BYTES, "what the first layer gives, and ReLU"


def test_the_peak_of_a_step_has_the_gradients_as_well(one_hidden_layer):
    peak = footprint.measure_allocated_peak(one_hidden_layer.training_step())
    assert peak >= 4 * 2 * 100 * 1000 + 2 * HIDDEN_BYTES


def in_formats(model, *inputs):
    """The answer to question 6."""
    return formats.answer(subject_of(model, *inputs), Limits(2))


def cells_of(answer):
    """What stands beside each format."""
    return {row[0]: row[1] for row in answer.evidence[0].table.rows}


@pytest.mark.parametrize(
    ("function", "status"),
    [
        pytest.param(lambda x: x * torch.nan, "incomplete", id="NaN"),
        pytest.param(lambda x: x + torch.randn_like(x), "passed", id="random"),
        pytest.param(lambda x: x.argmax(-1), "passed", id="whole numbers"),
    ],
)
def test_outputs_that_have_no_error_are_not_compared(function, status):
    answer = in_formats(layers(last=function), torch.ones(2, 4))
    assert answer.status == status
    assert set(cells_of(answer).values()) == {"not compared"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["before", "behind"])
def test_an_output_of_nan_hides_no_error_of_another_one(order):
    """Wherever it stands among the outputs: nothing can be compared with it."""
    exact = torch.full((2,), torch.nan).double(), torch.ones(2).double()
    outputs = exact[0], 1.5 * exact[1]

    error = formats._largest_error([exact[at] for at in order], [outputs[at] for at in order])

    assert error == 0.5


@pytest.fixture(scope="module")
def overflowing():
    """The answer for a model whose second layer overflows in float16."""
    return formats.answer(examined(doctor_models.overflow), Limits(2))


@pytest.mark.parametrize("name", ["float16, autocast", "float16, cast"])
def test_an_overflow_is_named_with_the_module_where_it_begins(overflowing, name):
    assert overflowing.status == "incomplete"
    assert "first in 1, " in cells_of(overflowing)[name]


def test_formats_that_do_not_overflow_have_their_errors(overflowing):
    cells = cells_of(overflowing)
    assert float(cells["float32"]) < 1e-5 < float(cells["bfloat16, autocast"]) < 0.1


def test_an_overflow_of_the_model_itself_is_named_with_its_operator():
    answer = in_formats(Function(lambda x: x * 1e6), torch.ones(2, 8))
    assert "the model itself, mul" in cells_of(answer)["float16, cast"]


def test_an_overflow_is_named_that_ends_in_finite_numbers():
    model = layers(enter=nn.Linear(4, 4), energy=energies, head=nn.Linear(1, 3))
    cells = cells_of(in_formats(model, torch.randn(2, 4) + 20))

    expected = f"OVERFLOWS, first in energy, pow at {row_of('return (x * 40)')}"
    assert cells["float16, autocast"] == expected
    assert cells["float16, cast"] == expected


def test_a_nan_is_named_with_its_operator():
    nothing = subject_of(Function(lambda x: (x - x) / (x.new_ones(1) * 1e-8)), torch.ones(2, 2))
    words = "float16, cast MAKES NaN, first in the model itself, div"
    assert words in formats.answer(nothing, LIMITS).sentence


def test_a_weight_that_is_infinite_once_it_is_cast_is_an_overflow_of_its_layer():
    large = layers(up=nn.Linear(2, 2))
    nn.init.constant_(large.up.weight, 1e6)
    cells = cells_of(in_formats(large, torch.ones(1, 2)))
    assert "first in up, " in cells["float16, cast"]


def clamp_and_fill():
    """Clamps at minus infinity, and fills with it."""
    return layers(
        least=lambda x: x.clamp(min=-torch.inf),
        fill=lambda x: torch.full_like(x, -torch.inf).exp() + x,
    )


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(clamp_and_fill, (2, 4), id="a constant"),
        pytest.param(Attending, (2, 4, 8), id="a mask"),
        pytest.param(lambda: Function(around_nothing), (2, 4), id="memory that nobody wrote"),
    ],
)
def test_an_infinity_that_no_operator_made_is_no_overflow(make, shape):
    assert in_formats(make(), torch.randn(shape)).status == "passed"


def test_a_model_without_float64_is_compared_with_itself():
    insisting = Function(lambda x: x @ torch.ones(4, 2, dtype=torch.float32))
    answer = in_formats(insisting, torch.randn(4, 4))
    cells = cells_of(answer)

    assert answer.status == "passed", "there is autocast as well"
    assert cells["float32"] == "0.0e+00"
    assert cells["bfloat16, cast"].startswith("raises: ")
    assert row_of("insisting = Function(") in cells["bfloat16, cast"]
    assert torch.get_default_dtype() == torch.float32, "it was put back"


def test_a_model_in_bfloat16_is_compared_with_more_precise_formats():
    cells = cells_of(in_formats(nn.Linear(8, 4).bfloat16(), torch.ones(2, 8).bfloat16()))
    assert float(cells["float32"]) < 1e-5 < float(cells["bfloat16, cast"])


def test_of_a_model_of_whole_numbers_no_training_is_told():
    each = examined(doctor_models.classes)
    assert each.value() == 0
    assert "Training" not in support.answer(each, LIMITS).sentence


def test_of_a_model_of_whole_numbers_inference_alone_is_timed():
    timed = speed.answer(examined(doctor_models.classes), Limits(1e-9))
    assert timed.status == "incomplete"
    assert [each.title for each in timed.evidence] == ["Measured, inference"]


def test_a_model_that_computes_nothing_has_no_operators():
    answer = profile.answer(subject_of(nn.Identity(), torch.ones(2, 4)), LIMITS)
    assert answer.status == "passed"
    assert answer.evidence[0].table.rows == []


def stack(pictures):
    return torch.stack([picture - torch.zeros(3, 1, 1) for picture in pictures])


def add_rows(x, rows):
    """Rows that are named by number, of which there must be so many."""
    return x.index_add(0, rows, x[rows])


BATCHES = {
    "elementwise": (nn.ReLU(), [torch.ones(3, 4)], 3, True),
    "a list of pictures": (Function(stack), [[torch.ones(3, 4, 4)]], 0, False),
    "one picture": (nn.Conv2d(3, 2, 1), [torch.ones(3, 4, 4)], 3, False),
    "rows by number": (Function(add_rows), [torch.ones(3, 4), torch.tensor([0, 2])], 3, False),
    "another shape for one": (Function(torch.squeeze), [torch.ones(3, 4)], 3, False),
}


@pytest.mark.parametrize(("model", "inputs", "batch", "can_change"), BATCHES.values(), ids=BATCHES)
def test_other_batches_are_left_to_models_that_take_them(model, inputs, batch, can_change):
    each = subject_of(model, *inputs)
    assert each.batch == batch
    assert each.can_change_batch == can_change


@pytest.fixture(scope="module")
def modules_of():
    """The modules to which each operator of a step belongs, by its name."""
    found = {}
    for event in profile.record(rated(), device.cpu())[0].events:
        found.setdefault(event.short, set()).add(event.module)
    return found


@pytest.mark.parametrize(
    ("operator", "modules"),
    [
        pytest.param("embedding_dense_backward", {"user", "item"}, id="backward"),
        pytest.param("mm", {"score"}, id="both ways"),
        pytest.param("nll_loss_forward", {""}, id="the loss"),
        pytest.param("add_", {""}, id="the optimizer"),
    ],
)
def test_operators_belong_to_modules_of_the_model(modules_of, operator, modules):
    assert modules_of[operator] == modules


def test_a_missing_operator_of_both_passes_belongs_to_its_module():
    model = layers(model=layers(pool=nn.AdaptiveAvgPool3d(2)))
    pool = subject_of(model, torch.ones(1, 1, 4, 4, 4, requires_grad=True))
    rows = support.answer(pool, LIMITS).evidence[0].table.rows
    assert [row[2] for row in rows] == ["model.pool"] * 2


FAILURE = f"KeyError: 'words' (in words, at {row_of('return {')})"
"""What is told of `Words`."""


@pytest.fixture
def failing():
    return subject_of(layers(words=Words()), torch.ones(2))


def test_a_model_that_fails_on_the_cpu_is_refused_with_module_and_line(failing, monkeypatch):
    monkeypatch.setattr(worker, "load_model", lambda factory: failing)
    # the thread that watches the memory would outlive this test
    monkeypatch.setattr(worker, "exit_above_memory_limit", lambda most: None)
    with pytest.raises(doctor.NotAModel, match=re.escape(FAILURE)):
        worker.inspect_model("tests:example", 2**40)


class Force(nn.Module):
    """Computes a gradient itself, as a model of forces does."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(3, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.energy(x).sum(), x)[0]


def test_a_model_that_runs_with_gradients_alone_is_told_how_to_keep_them(monkeypatch):
    monkeypatch.setattr(worker, "load_model", lambda factory: subject_of(Force(), torch.ones(2, 3)))
    monkeypatch.setattr(worker, "exit_above_memory_limit", lambda most: None)
    with pytest.raises(doctor.NotAModel, match="enable_grad") as refusal:
        worker.inspect_model("tests:example", 2**40)
    assert worker.DOES_NOT_RUN not in str(refusal.value)


def test_an_answer_about_what_fails_on_the_cpu_has_module_and_line(failing):
    assert FAILURE in worker.answer(SPEED, failing, LIMITS).sentence


@pytest.mark.parametrize(
    ("question", "sends"),
    [
        pytest.param(CORRECTNESS, True, id="of an Apple GPU"),
        pytest.param(SPEED, False, id="of any device"),
        pytest.param(SUPPORT, False, id="the first itself"),
    ],
)
def test_an_error_sends_to_the_first_answer_where_that_explains_it(question, sends, monkeypatch):
    def fail(*_):
        raise KeyError("words")

    monkeypatch.setattr(f"metallab.doctor.{question.key}.answer", fail)
    sentence = worker.answer(question, sound(), LIMITS).sentence
    assert ("see answer 1" in sentence) == sends


def test_coverage_of_what_fails_on_the_cpu_has_module_and_line(failing):
    with pytest.raises(coverage.TraceFailed, match=re.escape(FAILURE)):
        coverage.mps_coverage(failing.model, *failing.inputs)


# ---------------------------------------------------------------- what is not a model


def raising():
    raise OSError("no such file: weights.pt")


def a_tensor():
    return torch.ones(3)


def no_tensors():
    return nn.Linear(2, 2), (3,)


def ends():
    sys.exit(3)


def a_class():
    return nn.Sigmoid, torch.ones(3)


def a_class_as_the_loss():
    return nn.Sigmoid(), torch.ones(3), nn.MSELoss


@pytest.mark.parametrize(
    ("factory", "word"),
    [
        pytest.param("nothing", "nothing:NAME", id="no function"),
        pytest.param("no_such_module_here:example", "ModuleNotFoundError", id="no module"),
        pytest.param("rv/wrong.py:none", "rv.wrong:none", id="a path"),
        pytest.param("test_doctor:nobody", "nobody", id="no such function"),
        pytest.param("test_doctor:raising", "weights.pt", id="it raises"),
        pytest.param("test_doctor:a_tensor", "Tensor", id="a tensor"),
        pytest.param("test_doctor:no_tensors", "no tensor", id="no tensors"),
        pytest.param("test_doctor:ends", "SystemExit: 3", id="it ends"),
        pytest.param("test_doctor:a_class", "Sigmoid(...)", id="a class"),
        pytest.param("test_doctor:a_class_as_the_loss", "class MSELoss", id="a class as the loss"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(factory, word):
    with pytest.raises(doctor.NotAModel) as refusal:
        load_model(factory)
    assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (lambda output: output.square(), "(4, 10)"),
        (lambda output: output.mean().item(), "without .item()"),
        (lambda output: output.detach().mean(), "detached"),
        (
            lambda output: nn.functional.cross_entropy(output, torch.zeros(7).long()),
            row_of("output, torch.zeros(7)"),
        ),
    ],
)
def test_a_loss_that_fails_or_trains_nothing_is_refused(loss, word):
    with pytest.raises(doctor.NotAModel, match=re.escape(word)):
        assert_loss(dataclasses.replace(sound(), loss=loss))


def test_named_inputs_may_be_any_mapping():
    named = UserDict(x=torch.ones(3, 4))  # as a tokenizer's
    each = as_model((Function(lambda x: 2 * x), named), "tests:example")
    assert each.batch == 3
    assert each.to("meta").outputs().device.type == "meta"


# ---------------------------------------------------------------- real processes


def test_the_example_of_the_docs_is_one(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "your_own_code.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```py\n")]
    (code,) = (block for block in blocks if block.startswith("# my_model.py"))
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    each = load_model("my_model:example")
    assert each.value().requires_grad
    assert each.batch == 8
    assert each.can_change_batch


CRASHING = """
import os, threading, torch
class Ends(torch.nn.Module):
    def forward(self, x):
        {act}
        return x * 2
def example():
    return Ends(), torch.ones(3)
"""


TWO_LIMITS = """
import time, psutil
from metallab.doctor.worker import exit_above_memory_limit
exit_above_memory_limit(psutil.Process().memory_info().rss + 2**26)
exit_above_memory_limit(2**40)
held = b"x" * 2**28
time.sleep(1)
"""


def test_a_later_limit_of_memory_takes_the_place_of_an_earlier_one():
    assert isolated.run(TWO_LIMITS).ended == "ok"


def test_a_model_that_aborts_is_an_answer_with_the_signal(tmp_path, monkeypatch):
    code = CRASHING.format(act="x.is_mps and os.abort()")
    (tmp_path / "aborting_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    aborting = examination._Subject("aborting_model:example", 2**40, None)
    crashed = examination._ask(SUPPORT, aborting, 1800, True)
    assert crashed.status == "skipped"
    assert "SIGABRT" in crashed.sentence


def test_a_model_that_takes_too_much_memory_is_refused_with_the_option(tmp_path, monkeypatch):
    code = CRASHING.format(act="held = bytearray(1 << 30); threading.Event().wait()")
    (tmp_path / "greedy_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    greedy = examination._Subject("greedy_model:example", 1 << 30, None)
    with pytest.raises(doctor.NotAModel, match=r"1 GiB that it may have; --process-memory"):
        examination._inspect_model(greedy, 1800)


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
