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

from metallab import (  # noqa: E402
    device,
    doctor,
    isolated,
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
    FORMATS,
    QUESTIONS,
    SPEED,
    SUPPORT,
)
from metallab.doctor.results import Layer, Trouble  # noqa: E402
from metallab.pytorch import copies, coverage  # noqa: E402
from metallab.pytorch.model import as_model, assert_loss, load_model  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)

ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(ROOT / "utils"), "METALLAB_DEVICE": "sim", "METALLAB_MODE": "fast",
    "PYTORCH_ENABLE_MPS_FALLBACK": "0",
}  # fmt: skip
LIMITS = Limits(1800)


@functools.cache
def outcomes():
    return children.run(__file__, "simulated", on_simulated.checks, ENVIRONMENT)


on_simulated = children.Session(outcomes)

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


@on_simulated
def test_sound_models_are_not_accused():
    for each in (sound(), subject_of(Attending(), torch.randn(2, 4, 8))):
        answers = [worker.answer(QUESTIONS[number - 1], each, LIMITS) for number in (1, 2, 4)]
        assert [answer.status for answer in answers] == ["passed"] * 3, answers
        assert "Copies and fallbacks" not in {evidence.title for evidence in answers[2].evidence}
        assert_loss(each)


@on_simulated
def test_models_that_are_hard_to_copy_run():
    with warnings.catch_warnings(action="ignore"):  # some are deprecated
        unusual = {name: examined(make) for name, make in UNUSUAL.items()}
    for name, each in unusual.items():
        answer = support.answer(each, LIMITS)
        assert answer.status == "passed", (name, answer)
        step = each.training_step()
        assert step().isfinite() & step().isfinite(), name


def blinded(x):
    """Attention of which one row may look at nothing."""
    scores = x @ x.mT
    scores[0] = -torch.inf
    return scores.softmax(-1)


@on_simulated
def test_a_nan_that_the_cpu_has_as_well_is_no_fault():
    answer = correctness.answer(
        subject_of(layers(scores=blinded, head=nn.Linear(4, 2)), torch.randn(4, 4)), LIMITS
    )
    assert (answer.status, "aten::_softmax in scores" in answer.sentence) == ("incomplete", True), (
        answer
    )


@dataclasses.dataclass(slots=True)
class Slotted:
    inner: object


class Named(dict):
    """A subclass, which PyTorch does not look into."""


def test_tensors_are_found_however_deep_they_lie():
    one, two, three = (torch.full((1,), float(n)) for n in range(3))
    value = Named(a=Slotted([one]), b=functools.partial(torch.add, two, other=three))
    moved = copies.map_tensors(lambda t: t + 10, value)
    assert type(moved) is Named
    assert (moved["a"].inner[0].item(), moved["b"]().item()) == (10, 23)
    assert (one.item(), len(copies.tensors_in(value))) == (0, 3)


class Distance:
    """A loss that is an object."""

    def __init__(self, target):
        self.target = target

    def __call__(self, output):
        return (output - self.target).square().mean()


def test_tensors_of_a_loss_move_with_the_model():
    target = torch.zeros(2, 3)
    around = lambda output: (output - target).square().mean()
    for loss in (
        around,
        Distance(target),
        functools.partial(nn.functional.mse_loss, target=target),
    ):
        each = subject_of(nn.Linear(4, 3), torch.ones(2, 4), loss=loss)
        assert (each.to("meta").value().device.type, each.value().device.type) == ("meta", "cpu"), (
            loss
        )
    target = target.double()
    answer = support.answer(subject_of(nn.Linear(4, 3), torch.ones(2, 4), loss=around), LIMITS)
    assert (answer.status, "the loss" in answer.sentence, "input" in answer.sentence) == (
        "failed",
        True,
        False,
    )


def test_a_loss_in_float64_is_narrowed_with_its_model():
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3, dtype=torch.float64))
    model, x = nn.Linear(2, 3).double(), torch.ones(2, 2, dtype=torch.float64)
    each = subject_of(model, x, loss=lambda output: weighted(output, torch.tensor([0, 1])))
    assert (each.value().dtype, each.without_float64().value().dtype) == (
        torch.float64,
        torch.float32,
    )


@on_simulated
def test_a_model_keeps_the_mode_of_its_factory():
    each = subject_of(Evaluated().eval(), torch.ones(2, 4))
    answers = [
        question(each, LIMITS) for question in (support.answer, correctness.answer, profile.answer)
    ]
    assert [answer.status for answer in answers] == ["passed"] * 3, answers
    asked = answers[1].evidence[0].table
    assert not any("training" in row[0] for row in asked.rows)
    assert "in training mode" in asked.note


@on_simulated
def test_a_missing_operator_is_named_with_module_and_line():
    model = layers(conv=nn.Conv3d(1, 2, 3), pool=lambda x: nn.functional.adaptive_avg_pool3d(x, 2))
    volumes = subject_of(model, torch.randn(1, 1, 6, 6, 6))
    answer, compared, traced = (
        worker.answer(QUESTIONS[number - 1], volumes, LIMITS) for number in (1, 2, 4)
    )
    ((operator, how, module, line, way_out),) = (
        row for row in answer.evidence[0].table.rows if "pool3d." in row[0]
    )
    assert (operator, how, module) == ("aten::_adaptive_avg_pool3d.default", "missing", "pool")
    assert line == row_of("pool=lambda x: nn.functional.adaptive_avg_pool3d")
    assert "PYTORCH_ENABLE_MPS_FALLBACK" in way_out
    assert f"in pool, at {line}" in answer.sentence, "the trial"
    assert (answer.status, compared.status, compared.ended) == ("failed", "skipped", "raised")
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
    answer = support.answer(
        subject_of(layers(a=nn.Linear(4, 4), eig=Detour()), torch.randn(4, 4)), LIMITS
    )
    assert (answer.status, answer.trouble) == ("passed", None), answer


@on_simulated
def test_what_ran_is_not_said_to_fail():
    answer = support.answer(
        subject_of(layers(a=nn.Linear(4, 4), b=Unforeseen()), torch.randn(4, 4)), LIMITS
    )
    assert (answer.status, answer.trouble) == ("incomplete", Trouble.CONTRADICTED), answer


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
    assert (answer.status, answer.trouble) == (status, trouble)
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
    assert (answer.status, answer.trouble) == ("failed", None)
    row = answer.evidence[0].table.rows[0]
    assert (row[0], row[-1]) == ("aten::_pack_padded_sequence", "give it lengths.cpu()")


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


@on_simulated
def test_a_tensor_on_the_cpu_is_named_with_module_and_line():
    lines = {
        True: row_of("return x + torch.linspace(0, 1, 8)"),
        False: row_of("return x * self.scales[0]"),
    }
    for adds, line in lines.items():
        model = layers(enter=nn.Linear(8, 8), positions=Positions(adds), head=nn.Linear(8, 2))
        each = subject_of(model, torch.randn(3, 8))
        tried, compared, traced = (
            worker.answer(QUESTIONS[number - 1], each, LIMITS) for number in (1, 2, 4)
        )
        ((operator, _, module, at, way_out),) = tried.evidence[0].table.rows
        assert (operator, module, at) == (
            "aten::add.Tensor" if adds else "aten::mul.Tensor",
            "positions",
            line,
        )
        assert "register_buffer" in way_out
        assert (tried.status, compared.ended, traced.status) == ("failed", "raised", "incomplete")
        assert all("see answer 1" in other.sentence for other in (compared, traced))


@on_simulated
def test_copies_are_named_as_people_write_them():
    def cut(x):
        for row in x:
            x = x * row.max().item()
        return x

    answer = profile.answer(subject_of(layers(cut=cut), torch.randn(3, 8)), LIMITS)
    named = {layer for each in answer.result.operators for layer in each.layers}
    assert named == {Layer("cut", "Function")}
    ((operator, _, module, line, calls, *_),) = answer.evidence[-1].table.rows
    assert (operator, module, line, calls) == (
        ".item()",
        "cut",
        row_of("x = x * row.max().item()"),
        "3",
    )
    answer = profile.answer(examined(doctor_models.hidden_copy), LIMITS)
    ((operator, way, module, _, calls, size, time),) = answer.evidence[-1].table.rows
    assert (answer.status, operator, way, module, calls) == (
        "incomplete",
        "_to_copy",
        "to host",
        "1",
        "1",
    )
    assert (size, time) == ("4 B", "not known here"), "no simulated time"
    assert answer.on.startswith(device.cpu().label)


@on_simulated
def test_a_kernel_that_is_wrong_in_another_layout_is_named():
    conv, norm = ("conv2d, non-contiguous input", "BatchNorm2d's gradient, channels last")
    for fault, operator, way in (
        (conv, "convolution in conv", "swapped"),
        (norm, "backward in norm", "channels last"),
    ):
        with warnings.catch_warnings(action="ignore"), metalsim.plant(fault):
            answer = correctness.answer(sound(), LIMITS)
        evidence = {each.title: each for each in answer.evidence}
        assert (answer.status, operator in evidence["The first wrong operator"].text) == (
            "failed",
            True,
        )
        assert way in evidence["Compared"].table.rows[-1][0]
        assert "torch.testing.assert_close" in evidence["A program that shows it"].text


@on_simulated
def test_what_there_was_no_time_to_compare_is_not_right():
    answer = correctness.answer(sound(), Limits(1e-9))
    assert (answer.status, answer.ended) == ("skipped", "timeout")


@on_simulated
def test_weights_without_a_gradient_are_named():
    answer = correctness.answer(rated(), LIMITS)
    assert (answer.status, "unused.weight, unused.bias" in answer.sentence) == ("incomplete", True)


@on_simulated
def test_float64_on_the_way_is_named_once_with_its_line():
    lines = row_of("steps = torch.arange(8"), row_of("turned = torch.view_as_complex")
    answer = support.answer(
        subject_of(layers(enter=nn.Linear(8, 8), waves=Waves()), torch.randn(3, 8)), LIMITS
    )
    assert (answer.status, lines[0] in answer.sentence) == ("failed", True)
    assert [tuple(row) for row in answer.evidence[0].table.rows] == [
        (
            "aten::arange",
            "raises: makes float64",
            "waves",
            lines[0],
            "write torch.arange(..., dtype=torch.float32)",
        ),
        (
            "aten::_to_copy",
            "raises: makes complex128",
            "waves",
            lines[1],
            "write .to(torch.complex64)",
        ),
    ]


@on_simulated
def test_the_rest_is_asked_without_float64():
    each = examined(doctor_models.double)
    tried, compared, traced = (
        question(each, LIMITS) for question in (support.answer, correctness.answer, profile.answer)
    )
    assert (tried.status, compared.status, traced.status) == ("failed", "passed", "passed")
    assert "scale" in tried.sentence
    assert wording.PHRASES["narrowed"] in compared.sentence
    assert each.model.scale.dtype == torch.float64
    target = torch.zeros(2, 3, dtype=torch.float64)
    regression = subject_of(
        nn.Linear(4, 3), torch.ones(2, 4), loss=lambda y: (y - target).square().mean()
    )
    assert correctness.answer(regression, LIMITS).status == "passed"


@on_simulated
def test_copies_of_an_installed_package_are_no_fault():
    from torchvision.ops import batched_nms  # takes a number to the GPU in each call

    kept = lambda boxes, scores: boxes[
        batched_nms(boxes, scores, torch.zeros_like(scores).long(), 0.5)
    ]
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]])
    each = subject_of(Function(kept), boxes, torch.ones(2))
    answer = profile.answer(each, LIMITS)
    assert (answer.status, "torchvision" in answer.sentence) == ("passed", True)
    each.package = "torchvision"  # the user may change it
    assert profile.answer(each, LIMITS).status == "incomplete"


# ---------------------------------------------------------------- on the CPU


def test_without_an_apple_gpu_the_tables_alone_are_asked():
    each = subject_of(Evaluated(), torch.ones(2, 4))
    tried, compared = support.answer(each, LIMITS), correctness.answer(each, LIMITS)
    assert (tried.status, compared.status) == ("incomplete", "skipped")  # training is not known
    assert "in training mode (at " in tried.sentence, "of the model itself"


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
    assert (answer.status, titles) == (
        "incomplete",
        ["Measured, inference", "Over batches", "Measured, training step"],
    )
    torch.manual_seed(0)
    dropping = subject_of(nn.Sequential(nn.Linear(4, 64), nn.Dropout()), torch.ones(8, 4))
    assert [formats.is_random(dropping, task) for task in ("inference", "training")] == [
        False,
        True,
    ]


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
    each = subject_of(
        Function(lambda x: (seen.append(torch.backends.cudnn.allow_tf32), x)[1]), torch.ones(2)
    )
    assert torch.backends.cudnn.allow_tf32
    worker.answer(FORMATS, each, Limits(5))
    assert set(seen) == {False}


def test_what_does_not_fit_is_said_and_is_not_run(monkeypatch):
    each = subject_of(
        nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10)), torch.randn(512, 1000)
    )
    answer, roomy = (
        footprint.answer(each, Limits(machine_bytes=target)) for target in (10**7, 16 * 2**30)
    )
    assert (answer.status, roomy.status) == ("failed", "passed")
    assert "DOES NOT FIT into the 6.36 MiB" in answer.sentence, "on macOS 15"
    assert "No peak" in answer.evidence[0].table.note
    assert roomy.evidence[0].table.rows[-1][0].startswith("peak of a step")
    monkeypatch.setattr(footprint, "read_memory", lambda on: (2**30, 2**10))
    assert footprint.answer(each, LIMITS).status == "incomplete", "other programs hold it"


def test_the_peak_has_every_tensor_that_lives_at_a_time():
    model = nn.Sequential(
        nn.Linear(100, 1000, bias=False), nn.ReLU(), nn.Linear(1000, 100, bias=False)
    )
    each = subject_of(model, torch.randn(512, 100))
    inference, step = map(
        footprint.measure_allocated_peak, (each.inference(), each.training_step())
    )
    hidden, weights = 4 * 512 * 1000, 4 * 2 * 100 * 1000
    assert 2 * hidden <= inference < 3 * hidden, "what the first layer gives, and ReLU"
    assert step >= weights + 2 * hidden


def in_formats(model, *inputs):
    """The outcome of question 6, and the cell of each format."""
    answer = formats.answer(subject_of(model, *inputs), Limits(2))
    return answer.status, {row[0]: row[1] for row in answer.evidence[0].table.rows}


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (lambda x: x * torch.nan, "incomplete"),
        (lambda x: x + torch.randn_like(x), "passed"),
        (lambda x: x.argmax(-1), "passed"),
    ],
)
def test_outputs_that_have_no_error_are_not_compared(function, outcome):
    found, cells = in_formats(layers(last=function), torch.ones(2, 4))
    assert (found, set(cells.values())) == (outcome, {"not compared"})


def test_an_overflow_is_named_with_the_module_where_it_begins():
    answer = formats.answer(examined(doctor_models.overflow), Limits(2))
    cells = {row[0]: row[1] for row in answer.evidence[0].table.rows}
    assert answer.status == "incomplete"
    assert all("first in 1, " in cells[name] for name in ("float16, autocast", "float16, cast"))
    assert float(cells["float32"]) < 1e-5 < float(cells["bfloat16, autocast"]) < 0.1
    assert (
        "the model itself, mul"
        in in_formats(Function(lambda x: x * 1e6), torch.ones(2, 8))[1]["float16, cast"]
    )
    model = layers(
        enter=nn.Linear(4, 4), energy=energies, head=nn.Linear(1, 3)
    )  # ends in finite numbers
    expected = f"OVERFLOWS, first in energy, pow at {row_of('return (x * 40)')}"
    cells = in_formats(model, torch.randn(2, 4) + 20)[1]
    assert {cells[name] for name in ("float16, autocast", "float16, cast")} == {expected}
    nothing = subject_of(Function(lambda x: (x - x) / (x.new_ones(1) * 1e-8)), torch.ones(2, 2))
    assert (
        "float16, cast MAKES NaN, first in the model itself, div"
        in formats.answer(nothing, LIMITS).sentence
    )
    large = layers(up=nn.Linear(2, 2))
    nn.init.constant_(large.up.weight, 1e6)  # not infinite before it is cast
    assert "first in up, " in in_formats(large, torch.ones(1, 2))[1]["float16, cast"]


def test_a_constant_infinity_is_no_overflow():
    bounds = layers(
        least=lambda x: x.clamp(min=-torch.inf),
        fill=lambda x: torch.full_like(x, -torch.inf).exp() + x,
    )
    assert in_formats(bounds, torch.ones(2, 4))[0] == "passed"
    assert in_formats(Attending(), torch.randn(2, 4, 8))[0] == "passed"
    assert in_formats(Function(around_nothing), torch.randn(2, 4))[0] == "passed"


def test_a_model_without_float64_is_compared_with_itself():
    insisting = Function(lambda x: x @ torch.ones(4, 2, dtype=torch.float32))
    outcome, cells = in_formats(insisting, torch.randn(4, 4))
    assert (outcome, cells["float32"]) == ("passed", "0.0e+00"), "there is autocast as well"
    assert torch.get_default_dtype() == torch.float32
    assert cells["bfloat16, cast"].startswith("raises: ")
    assert row_of("insisting = Function(") in cells["bfloat16, cast"]
    cells = in_formats(nn.Linear(8, 4).bfloat16(), torch.ones(2, 8).bfloat16())[1]
    assert float(cells["float32"]) < 1e-5 < float(cells["bfloat16, cast"])


def test_a_model_of_whole_numbers_has_nothing_to_train():
    each = examined(doctor_models.classes)
    assert "Training" not in support.answer(each, LIMITS).sentence
    assert each.value() == 0
    timed = speed.answer(each, Limits(1e-9))
    assert (timed.status, [each.title for each in timed.evidence]) == (
        "incomplete",
        ["Measured, inference"],
    )
    nothing = profile.answer(subject_of(nn.Identity(), torch.ones(2, 4)), LIMITS)
    assert (nothing.status, nothing.evidence[0].table.rows) == ("passed", [])


def test_other_batches_are_left_to_models_that_take_them():
    stack = lambda pictures: torch.stack([picture - torch.zeros(3, 1, 1) for picture in pictures])
    add = lambda x, rows: x.index_add(
        0, rows, x[rows]
    )  # rows that are named by number, of which there must be so many
    every = (
        subject_of(Function(stack), [torch.ones(3, 4, 4)]),
        subject_of(nn.Conv2d(3, 2, 1), torch.ones(3, 4, 4)),
        subject_of(nn.ReLU(), torch.ones(3, 4)),
        subject_of(Function(add), torch.ones(3, 4), torch.tensor([0, 2])),
        subject_of(
            Function(lambda x: x.squeeze()), torch.ones(3, 4)
        ),  # of a batch of one comes something else
    )
    assert [(each.batch, each.can_change_batch) for each in every] == [
        (0, False),
        (3, False),
        (3, True),
        (3, False),
        (3, False),
    ]


def test_operators_belong_to_modules_of_the_model():
    each = rated()
    events = profile.record(each, device.cpu())[0].events
    modules = lambda name: {event.module for event in events if event.short == name}
    assert modules("embedding_dense_backward") == {"user", "item"}
    assert modules("mm") == {"score"}
    assert modules("nll_loss_forward") == modules("add_") == {""}
    pool = subject_of(
        layers(model=layers(pool=nn.AdaptiveAvgPool3d(2))),
        torch.ones(1, 1, 4, 4, 4, requires_grad=True),
    )
    rows = (
        support.answer(pool, LIMITS).evidence[0].table.rows
    )  # of the forward and of the backward pass
    assert [row[2] for row in rows] == ["model.pool"] * 2


def test_a_failure_on_the_cpu_has_its_module_and_line(monkeypatch):
    each = subject_of(layers(words=Words()), torch.ones(2))
    told = f"KeyError: 'words' (in words, at {row_of('return {')})"
    monkeypatch.setattr(worker, "load_model", lambda factory: each)
    monkeypatch.setattr(
        worker, "exit_above_memory_limit", lambda most: None
    )  # its thread would outlive this test
    with pytest.raises(doctor.NotAModel, match=re.escape(told)):
        worker.inspect_model("tests:example", 2**40)
    assert told in worker.answer(SPEED, each, LIMITS).sentence
    with pytest.raises(coverage.TraceFailed, match=re.escape(told)):
        coverage.mps_coverage(each.model, *each.inputs)


# ---------------------------------------------------------------- what is not a model


def raising():
    raise OSError("no such file: weights.pt")


a_tensor = lambda: torch.ones(3)
no_tensors = lambda: (nn.Linear(2, 2), (3,))
ends = lambda: sys.exit(3)


@pytest.mark.parametrize(
    ("factory", "word"),
    [
        ("nothing", "nothing:NAME"),
        ("no_such_module_here:example", "ModuleNotFoundError"),
        ("rv/wrong.py:none", "rv.wrong:none"),
        ("test_doctor:nobody", "nobody"),
        ("test_doctor:raising", "weights.pt"),
        ("test_doctor:a_tensor", "Tensor"),
        ("test_doctor:no_tensors", "no tensor"),
        ("test_doctor:ends", "SystemExit: 3"),
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
    each = as_model(
        (Function(lambda x: 2 * x), UserDict(x=torch.ones(3, 4))), "tests:example"
    )  # a tokenizer's
    assert (each.batch, each.to("meta").outputs().device.type) == (3, "meta")


# ---------------------------------------------------------------- real processes


def test_the_example_of_the_docs_is_one(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "your_own_code.md").read_text()
    (code,) = (
        block.partition("```")[0]
        for block in text.split("```py\n")
        if block.startswith("# my_model.py")
    )
    (tmp_path / "my_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    each = load_model("my_model:example")
    assert (each.value().requires_grad, each.batch, each.can_change_batch) == (True, 8, True)


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


def test_real_processes_bring_answers_back_or_the_reason(tmp_path, monkeypatch):
    (tmp_path / "aborting_model.py").write_text(CRASHING.format(act="x.is_mps and os.abort()"))
    (tmp_path / "greedy_model.py").write_text(
        CRASHING.format(act="held = bytearray(1 << 30); threading.Event().wait()")
    )
    monkeypatch.syspath_prepend(tmp_path)
    aborting = examination._Subject("aborting_model:example", 2**40, None)
    crashed = examination._ask(SUPPORT, aborting, 1800, True)
    assert (crashed.status, "SIGABRT" in crashed.sentence) == ("skipped", True)
    greedy = examination._Subject("greedy_model:example", 1 << 30, None)
    with pytest.raises(doctor.NotAModel, match=r"1 GiB that it may have; --process-memory"):
        examination._inspect_model(greedy, 1800)


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
