"""Coverage against facts that do not come from the file it reads: the talks, users' reports and PyTorch's sources."""

from __future__ import annotations

import dataclasses
import html
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from refused import REFUSED
from torch import nn

from metallab.__main__ import main as command
from metallab.pytorch import coverage, networks
from metallab.pytorch.coverage import mps_coverage, report
from metalsim.operators import status

# Operators that raise NotImplementedError on MPS up to PyTorch 2.15, as users report them; listed by hand.
MISSING = [
    "rrelu_with_noise", "mode", "special_ndtri", "special_log_ndtr", "multi_margin_loss",
    "multilabel_margin_loss_forward", "_adaptive_avg_pool3d", "adaptive_max_pool3d", "fractional_max_pool2d",
    "fractional_max_pool3d", "linalg_eig",
]  # fmt: skip
# Named in the talks, or in the release notes since, as running on MPS.
NATIVE = [
    "softshrink", "grid_sampler_2d", "triangular_solve", "topk", "histc", "masked_fill_.Scalar", "median",
    "repeat_interleave.Tensor", "cumsum", "masked_select", "addmm", "native_batch_norm", "_lstm_mps", "_ctc_loss",
]  # fmt: skip


def of(covered, operator):
    return next(
        use for use in covered.uses if use.operator.split("::")[1].split(".")[0] == operator
    )


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("missing", MISSING), ("native", [*NATIVE, "_linalg_svd", "_linalg_svd.U", "_linalg_eigh", "add_.Tensor"]),
        ("falls back", ["embedding_renorm_"]), ("composite", ["linalg_pinv.atol_rtol_tensor"]),
    ],
)  # fmt: skip
def test_what_is_known_of_operators(how, names):
    assert {name: status(f"aten::{name}") for name in names} == dict.fromkeys(names, how)


SYMMETRIC = lambda shape: (lambda a: a + a.mT)(torch.rand(shape))


@pytest.mark.parametrize(
    ("function", "fits", "leaves", "operator", "reason"),
    [
        (torch.linalg.svd, torch.rand(64, 128), torch.rand(64, 129), "_linalg_svd", "33024 bytes"),
        (
            torch.linalg.svdvals, torch.rand(64, 64, dtype=torch.complex64), torch.rand(65, 65, dtype=torch.complex64),
            "_linalg_svd", "33800 bytes",
        ),
        (torch.linalg.eigvalsh, SYMMETRIC((48, 16, 16)), SYMMETRIC((64, 64)), "_linalg_eigh", "less than 12288"),
        (torch.linalg.pinv, torch.rand(64, 64), torch.rand(96, 96), "linalg_pinv", "36864 bytes"),
    ],
)  # fmt: skip
def test_a_kernel_that_leaves_large_matrices_to_the_cpu(function, fits, leaves, operator, reason):
    stays = mps_coverage(function, fits)
    assert (stays.runs, of(stays, operator).reason) == (True, "")
    covered = mps_coverage(function, leaves)
    assert (covered.runs, of(covered, operator).status) == (True, "falls back")
    assert reason in of(covered, operator).advice
    assert operator in covered.answer


@pytest.mark.parametrize("name", REFUSED)
def test_refused_arguments_are_foretold_in_a_mac_s_words(name):
    call = REFUSED[name]
    covered = mps_coverage(call.model, *call.inputs)
    (use,) = covered.having("refused")
    assert (use.reason.startswith(call.words), covered.runs) == (True, False)
    assert use.way_out in str(covered)
    assert use.reason.partition(". ")[0] in html.unescape(covered._repr_html_())


def test_the_backward_pass_is_asked_as_well():
    covered = mps_coverage(
        nn.AdaptiveAvgPool2d(5), torch.rand(1, 2, 12, 12, requires_grad=True), training=True
    )
    assert {use.operator.split("::")[1].split(".")[0] for use in covered.having("refused")} == {
        "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
    }  # fmt: skip


TORCHVISION = ("mobilenet_v3_small", "swin_t")
TIMM = ("vit_tiny_patch16_224",)


@pytest.mark.filterwarnings("ignore:The default weight initialization")
@pytest.mark.parametrize(
    ("package", "name"),
    [*(("torchvision", name) for name in TORCHVISION), *(("timm", name) for name in TIMM)],
)
def test_nothing_is_called_refused_in_sound_networks(package, name):
    package = pytest.importorskip(package)
    make = package.models.get_model if package is torchvision else package.create_model
    with torch.device("meta"):
        covered = mps_coverage(make(name).eval(), torch.empty(1, 3, 224, 224))
    assert (covered.runs, covered.having("falls back", "unknown")) == (True, ())


def test_the_talk_s_network_runs_and_rrelu_does_not():
    talk = networks.talk_mlp()
    assert mps_coverage(talk.model, *talk.inputs, training=True).runs
    covered = mps_coverage(nn.Sequential(nn.Linear(4, 4), nn.RReLU()), torch.randn(2, 4))
    assert (covered.runs, of(covered, "rrelu_with_noise").modules) == (False, ("1",))
    assert "PYTORCH_ENABLE_MPS_FALLBACK=1" in str(covered)


def test_lstm_is_one_operator_on_mps():
    """aten/src/ATen/native/RNN.cpp calls _lstm_mps for the whole layer; elsewhere it falls into pieces."""
    for model in (nn.LSTM(4, 4), networks.lstm().model):
        inputs = torch.randn(2, 3, 4 if isinstance(model, nn.LSTM) else 64)
        covered = mps_coverage(model, inputs)
        assert of(covered, "_lstm_mps").calls == 1
        assert not any("sigmoid" in use.operator or "tanh" in use.operator for use in covered.uses)


def test_attention_is_one_operator_on_mps_without_gradients():
    """transformers/attention.cpp: not where a gradient is wanted."""
    layer = nn.TransformerEncoderLayer(8, 2, dropout=0.0)
    covered = mps_coverage(layer.eval(), torch.randn(2, 3, 8))
    assert of(covered, "_scaled_dot_product_attention_math_for_mps").modules == ("self_attn",)
    assert not any("softmax" in use.operator for use in covered.uses)
    training = mps_coverage(layer.train(), torch.randn(2, 3, 8), training=True)
    assert training.runs
    assert of(training, "_safe_softmax").modules == ("self_attn",)
    assert not any("for_mps" in use.operator for use in training.uses)
    dropping = lambda q: nn.functional.scaled_dot_product_attention(q, q, q, None, 0.5)
    assert not mps_coverage(dropping, torch.randn(1, 2, 3, 8)).runs
    wanted = mps_coverage(dropping, torch.randn(1, 2, 3, 8, requires_grad=True), training=True)
    assert any("softmax" in use.operator for use in wanted.uses), "in pieces, which can drop"
    assert wanted.runs


class PackedLSTM(nn.Module):
    """An LSTM over texts of several lengths."""

    def __init__(self, lengths=lambda x: torch.tensor([3, 2])):
        super().__init__()
        self.lstm, self.lengths = nn.LSTM(4, 4, batch_first=True), lengths

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, self.lengths(x), batch_first=True, enforce_sorted=False
        )
        return self.lstm(packed)[0].data


def test_lstm_over_a_packed_sequence_falls_into_pieces_on_mps():
    """In RNN.cpp the overload that takes the sizes of the batches has no branch for MPS."""
    covered = mps_coverage(PackedLSTM(), torch.randn(2, 3, 4))
    operators = {use.operator for use in covered.uses}
    assert not any("lstm" in operator for operator in operators)
    assert any("sigmoid" in operator for operator in operators)


def test_lstm_and_linear_have_one_backward_operator():
    covered = mps_coverage(networks.lstm().model, torch.randn(2, 3, 64), training=True)
    assert of(covered, "lstm_mps_backward").calls == 1
    assert of(covered, "linear_backward").calls == 1
    assert not any("tanh" in use.operator or "addmm" in use.operator for use in covered.uses)


class LeavesATensorBehind(nn.Module):
    def forward(self, x):
        return (x + torch.zeros(8)).sin()


def test_a_tensor_left_on_the_cpu_is_found():
    covered = mps_coverage(nn.Sequential(LeavesATensorBehind()), torch.randn(2, 8))
    (left,) = covered.problems
    assert (left.operator, left.modules, covered.runs) == ("aten::add.Tensor", ("0",), False)
    assert left.line.startswith("tests/pytorch/test_coverage.py:")
    assert of(covered, "sin"), "the trace ended there"
    twice = mps_coverage(lambda x: (x + torch.ones(2)) * torch.ones(2), torch.ones(2))
    assert [each.operator for each in twice.problems] == ["aten::add.Tensor", "aten::mul.Tensor"]
    assert mps_coverage(lambda x: x + torch.tensor(1.0), torch.randn(2)).runs, (
        "a number without dimensions is allowed"
    )


def test_float64_is_reported_only_where_it_is_made():
    """Nor of what a model makes where it is given float64 itself."""

    def model(x):
        y = x.double().cumsum(-1) * torch.linspace(0, 1, 2, dtype=torch.float64, device=x.device)
        return y.exp().float()

    places = lambda covered: [(each.operator, each.way_out) for each in covered.problems]
    covered = mps_coverage(model, torch.randn(2, requires_grad=True), training=True)
    made = [
        ("aten::_to_copy", "write .to(torch.float32)"),
        ("aten::linspace", "write torch.linspace(..., dtype=torch.float32)"),
    ]
    assert places(covered) == made
    assert all(each.line.startswith("tests/pytorch/test_coverage.py:") for each in covered.problems)
    kept = torch.ones(2, dtype=torch.float64)
    on_the_cpu = mps_coverage(lambda x: x[x.nonzero()[:, 0]] * kept.to(x.device), torch.ones(2))
    assert on_the_cpu.traced_on == "cpu"
    assert places(on_the_cpu) == [("aten::_to_copy", "write .to(torch.float32)")]
    (given,) = mps_coverage(
        lambda x: x + torch.zeros(2, dtype=x.dtype, device=x.device), torch.ones(2).double()
    ).problems
    assert (given.kind, "input 0 is" in given.text) == ("float64", True)
    (held,) = mps_coverage(
        nn.Linear(2, 2, dtype=torch.complex128), torch.ones(2, dtype=torch.complex128)
    ).problems
    assert (held.kind, "input 0, weight, bias" in held.text) == ("complex128", True)
    assert "torch.complex64" in held.way_out


def test_a_custom_operator_for_the_cpu_alone_is_missing():
    @torch.library.custom_op("metallab_test::cpu_only", mutates_args=(), device_types="cpu")
    def cpu_only(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    cpu_only.register_fake(lambda x: torch.empty_like(x))
    covered = mps_coverage(lambda x: cpu_only(x), torch.randn(2))
    assert not covered.runs


def test_nothing_of_the_caller_changes_where_the_cpu_is_needed():
    """nonzero needs numbers, so this one runs on the CPU: inputs, batch statistics and random numbers stay."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(inplace=True))
    x = torch.randn(2, 8)
    before, statistics = x.clone(), model[0].running_mean.clone()
    state = torch.get_rng_state()

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            x.add_(1)
            return self.inner(x)[x.nonzero()[0, 0]]

    assert mps_coverage(Odd(), x).traced_on == "cpu"
    assert torch.equal(x, before)
    assert torch.equal(model[0].running_mean, statistics)
    assert torch.equal(torch.get_rng_state(), state)


class OtherWayOnMeta(nn.Module):
    """Chooses by a number, and goes another way where there is none: as a user's model may, to be exported."""

    def __init__(self, caught, asks):
        super().__init__()
        self.caught, self.asks = caught, asks

    def forward(self, x):
        try:
            positive = self.asks(x)
        except self.caught:
            return x.sin()
        return nn.functional.rrelu(x) if positive else x


class OnTheCpu(nn.Module):
    """One call of an operator that has no kernel, by way of the CPU."""

    def __init__(self, reads=lambda x: x):
        super().__init__()
        self.first, self.reads = nn.Conv2d(1, 4, 3), reads

    def forward(self, x):
        given = self.first(x).cpu()
        there = torch.nn.functional.fractional_max_pool2d(given, 2, output_size=3)
        self.reads(there)
        return there.to(x.device) * 2


@pytest.mark.parametrize("training", [False, True])
def test_what_a_model_computes_on_the_cpu_needs_no_kernel(training):
    covered = mps_coverage(OnTheCpu(), torch.rand(1, 1, 16, 16), training=training)
    assert (covered.runs, covered.traced_on) == (True, "meta"), covered.answer
    assert "aten::_to_copy.default" in {use.operator for use in covered.uses}
    assert not any("fractional" in use.operator for use in covered.uses)


def test_the_cpus_own_attention_is_no_missing_operator():
    """What asks for numbers is traced on the CPU, which has a kernel of its own for attention."""

    def routed(x):
        attended = nn.functional.scaled_dot_product_attention(x, x, x)
        return attended if len(attended.sum(-1).nonzero()) else x

    covered = mps_coverage(routed, torch.rand(1, 2, 6, 8, requires_grad=True), training=True)
    assert (covered.runs, covered.traced_on) == (True, "cpu"), covered.answer


def test_inference_mode_hides_nothing():
    with torch.inference_mode():
        assert not mps_coverage(nn.AdaptiveAvgPool3d(2), torch.randn(1, 1, 4, 4, 4)).runs
    hidden = torch.inference_mode()(lambda x: nn.functional.rrelu(x))
    assert not mps_coverage(hidden, torch.randn(2)).runs


@pytest.mark.parametrize(
    ("reads", "runs"),
    [
        (lambda x: x.detach().numpy(), False),
        (lambda x: np.asarray(x.detach()), False),
        (lambda x: x.detach().cpu().numpy(), True),
        (lambda x: x.tolist(), True),
    ],
)
def test_a_tensor_on_the_gpu_is_no_array(reads, runs):
    covered = mps_coverage(lambda x: (reads(x * 2), x + 1)[1], torch.ones(3))
    assert (covered.traced_on, covered.runs, not covered.problems) == ("cpu", runs, runs)


@pytest.mark.parametrize("reads", [lambda x: x[x > 0.5], lambda x: np.asarray(x.detach())])
def test_numbers_that_came_from_the_gpu_are_asked_of_the_cpu(reads):
    """Of the zeros in their place nothing may follow."""
    assert mps_coverage(OnTheCpu(reads), torch.rand(1, 1, 16, 16)).traced_on == "cpu"


@pytest.mark.parametrize("asks", [lambda x: x.sum().item() > 0, lambda x: x.numpy().sum() > 0])
def test_a_caught_failure_on_meta_leads_no_other_way(asks):
    covered = mps_coverage(OtherWayOnMeta(BaseException, asks), torch.ones(4))
    assert covered.traced_on == "cpu"
    assert not covered.runs
    assert of(covered, "rrelu_with_noise")
    assert not any("sin" in use.operator for use in covered.uses)


def test_indices_may_stay_on_the_cpu():
    """A Mac takes them to where the tensor is."""

    def write(x):
        x = x.clone()
        x[torch.tensor([0, 1])] = torch.zeros(2)
        return x

    assert mps_coverage(lambda x: x[torch.tensor([0, 1])], torch.ones(3)).runs
    assert [each.operator for each in mps_coverage(write, torch.ones(3)).problems] == [
        "aten::index_put_"
    ]


class Graph(nn.Module):
    """A layer over a graph, whose neighbours are a sparse matrix."""

    def __init__(self, adjacency):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        try:
            return self.layer(torch.sparse.mm(self.adjacency.to_sparse(), x))
        except RuntimeError:
            return x


@pytest.mark.filterwarnings("ignore")  # of layouts in beta
@pytest.mark.parametrize(
    ("model", "inputs", "kind"),
    [
        (Graph(torch.eye(3).to_sparse()), torch.ones(3, 4), "sparse"),
        (Graph(torch.eye(3)), torch.ones(3, 4), "aten::.*sparse"),
        (nn.Linear(3, 2), torch.eye(3).to_sparse(), "inputs"),
        (nn.Embedding(5, 3, sparse=True), torch.tensor([1, 2]), "made by"),
        (nn.Linear(3, 2), torch.nested.nested_tensor([torch.ones(1, 3)]), "nested"),
    ],
)
def test_sparse_and_nested_tensors_are_refused_in_a_line(model, inputs, kind):
    """Their kernels are others: neither Yes nor No."""
    with pytest.raises(coverage.TraceFailed, match=kind) as failed:
        mps_coverage(model, inputs, training="Embedding" in str(model))
    assert "\n" not in str(failed.value)


@dataclasses.dataclass(frozen=True)
class Batch:
    x: Any
    more: Any = None


class Plain:
    def __init__(self, x):
        self.x = x


WRAPPED = {
    "set": (lambda t: {t}, lambda v: next(iter(v))),
    "object": (Plain, lambda v: v.x),
    "list in a dataclass in a dict": (lambda t: {"a": Batch([t])}, lambda v: v["a"].x[0]),
}


@pytest.mark.parametrize(("wrap", "unwrap"), WRAPPED.values(), ids=WRAPPED)
def test_tensors_are_found_wherever_they_lie(wrap, unwrap):
    """As an input they are moved, copied and asked for their dtype; as an output they have a backward pass."""
    x, layer = torch.randn(2, 4), nn.Linear(4, 4)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, value):
            with torch.no_grad():
                unwrap(value).add_(1)
            return wrap(self.layer(unwrap(value)).sin())

    before = x.clone()
    covered = mps_coverage(Wrapped(), wrap(x))
    assert (covered.runs, covered.traced_on) == (True, "meta"), covered.answer
    assert torch.equal(x, before), "the caller's was changed"
    assert of(mps_coverage(Wrapped(), wrap(x), training=True), "linear_backward")
    assert mps_coverage(Wrapped(), wrap(x.double())).problems[0].kind == "float64"
    with pytest.raises(coverage.TraceFailed, match="sparse"):
        mps_coverage(Wrapped(), wrap(x.to_sparse()))


QUESTIONS = {
    "type": lambda x: x.device.type == "mps",
    "device": lambda x: x.device == torch.device("mps:0"),
    "is_cpu": lambda x: not x.is_cpu,
    "moved there": lambda x: torch.zeros(1).to("mps").device == x.device,
}


@pytest.mark.parametrize("asks", QUESTIONS.values(), ids=QUESTIONS)
def test_a_model_that_asks_for_its_device_is_told_a_mac_s(asks):
    covered = mps_coverage(
        lambda x: nn.functional.rrelu(x) if asks(x) else x.sin(), torch.randn(2, 2)
    )
    assert covered.traced_on == "meta"
    assert of(covered, "rrelu_with_noise"), "it went the way that it goes elsewhere"
    assert not covered.runs


def test_whatever_a_model_raises_is_told():
    def broken(x):
        raise KeyError("no such layer")

    with pytest.raises(coverage.TraceFailed, match="no such layer"):
        mps_coverage(broken, torch.randn(2))
    with pytest.raises(coverage.TraceFailed, match="1x3 and 2x2"):
        mps_coverage(nn.Linear(2, 2), torch.rand(1, 3))


def test_nms_needs_numbers_and_is_traced_on_the_cpu():
    covered = mps_coverage(
        lambda b, s: torchvision.ops.nms(b, s, 0.5), torch.rand(5, 4), torch.rand(5)
    )
    assert (covered.traced_on, of(covered, "nms").status) == ("cpu", "native")
    assert "Traced on the CPU" in covered.answer, "what it does on mps alone is not seen"


@pytest.mark.parametrize(
    "make", [networks.mlp, networks.cnn, networks.resnet, networks.transformer, networks.lstm]
)
def test_the_collection_s_networks_run(make):
    network = make()
    covered = mps_coverage(network.model.train(), *network.inputs, training=True)
    assert covered.runs, covered.answer
    assert not covered.having("unknown")


def test_command_line(monkeypatch, capsys):
    factories = types.ModuleType("factories")
    monkeypatch.setitem(sys.modules, "factories", factories)
    factories.good = lambda: (nn.Linear(2, 2), (torch.randn(1, 2),))
    factories.bare = lambda: (nn.Linear(2, 2), torch.randn(1, 2))  # one input needs no tuple
    factories.bad = lambda: (nn.Sequential(nn.Linear(2, 2), nn.RReLU()), (torch.randn(1, 2),))
    factories.named = lambda: (
        nn.RReLU(),
        {"input": torch.ones(2)},
        torch.sum,
    )  # what the doctor takes
    factories.odd = lambda: 3
    factories.failing = lambda: (nn.Linear(2, 2), torch.ones(3))
    for code, name, *more in ((0, "good"), (0, "bare"), (1, "bad", "--training"), (1, "named")):
        assert command(["coverage", f"factories:{name}", *more]) == code, name
    assert "rrelu_with_noise" in capsys.readouterr().out
    for misuse in (
        "factories:odd",
        "factories:none",
        "nowhere:x",
        "factories",
        "factories:failing",
    ):
        assert command(["coverage", misuse]) == 2
        assert capsys.readouterr().err.count("\n") == 1


# ---- traced on the CPU, where each tensor would lie ------------------------------------------------------------------


def of_rows(function):
    """A model that needs numbers, so that it is traced on the CPU."""
    layer = nn.Linear(4, 4)

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            y = self.layer(x)
            return function(y[y.sum(-1) > -100])

    return Rows()


RUN_ON_THE_CPU = {
    "a missing operator": lambda y: torch.linalg.eigvals(y.cpu()).abs().to(y.device),
    "float64": lambda y: y.cpu().double().cumsum(0).float().to(y.device),
    "both in one call": lambda y: y.to("cpu", torch.float64).cumsum(0).to(y.device, torch.float32),
    "numpy": lambda y: (
        torch.from_numpy(y.detach().cpu().numpy().astype("float64")).float().to(y.device) + y
    ),
    "a number": lambda y: y * y.sum().item(),
    "made there": lambda y: (
        y + torch.ones(4, device=y.device) + torch.tensor([1.0], device=y.device)
    ),
    "a branch by device": lambda y: y.float() if y.device.type == "mps" else y.double().float(),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("function", RUN_ON_THE_CPU.values(), ids=RUN_ON_THE_CPU)
def test_what_leaves_the_gpu_is_followed_on_the_cpu(function, training):
    covered = mps_coverage(of_rows(function), torch.randn(4, 4), training=training)
    assert (covered.traced_on, covered.runs) == ("cpu", True), covered.answer


FAIL_ON_MPS = {
    "float64 before": (lambda y: y.double().cpu().cumsum(0).float().to(y.device), "float64"),
    "left there": (lambda y: y + y.cpu(), "on the CPU"),
    "an array": (lambda y: y + float(y.detach().numpy().sum()), "array"),
}


@pytest.mark.parametrize(("function", "kind"), FAIL_ON_MPS.values(), ids=FAIL_ON_MPS)
def test_what_fails_on_mps_is_found_on_the_cpu(function, kind):
    covered = mps_coverage(of_rows(function), torch.randn(4, 4))
    assert (covered.traced_on, covered.problems[0].kind) == ("cpu", kind), covered.answer


def test_a_no_of_a_trace_on_the_cpu_says_what_it_does_not_see():
    covered = mps_coverage(of_rows(lambda y: torch.mode(y).values), torch.randn(4, 4))
    assert not covered.runs
    assert report.WITH_THESE_NUMBERS in covered.answer


def draw(y):
    """Where there is no Mac, a generator on mps raises, so that the model cannot be told that it is on one."""
    return y + torch.rand(4, generator=torch.Generator(y.device))


def test_where_no_device_can_be_followed_there_is_no_yes():
    covered = mps_coverage(of_rows(draw), torch.randn(4, 4))
    assert (covered.runs, covered.is_sure) == (True, False)
    assert covered.answer.startswith("Not known: ")
    assert "getNewGenerator" in covered.not_followed


def test_what_is_found_without_following_is_a_no():
    covered = mps_coverage(of_rows(lambda y: torch.mode(draw(y)).values), torch.randn(4, 4))
    assert covered.answer.startswith("No: mode has no MPS kernel")


OUTSIDE = torch.ones(4)
OUTER_LAYER = nn.Linear(4, 4)

MIXED = {
    "arange": lambda model, y: y * torch.arange(4),
    "a plain attribute": lambda model, y: y + model.kept,
    "in a list": lambda model, y: y + model.listed[0],
    "of Python's module": lambda model, y: y + OUTSIDE,
    "a layer of Python's module": lambda model, y: OUTER_LAYER(y),
    "from a number": lambda model, y: y * torch.tensor([y.sum().item()]),
    "type": lambda model, y: y + y.type(torch.FloatTensor),
    "type of another": lambda model, y: y + torch.ones(4).type_as(OUTSIDE),
    "a mask": lambda model, y: y.masked_fill(torch.ones(4, dtype=torch.bool), 0),
    "a mask of attention": lambda model, y: nn.functional.scaled_dot_product_attention(
        y[None, None], y[None, None], y[None, None], torch.ones(4, 4).tril().bool()
    ),
    "a state": lambda model, y: model.lstm(y[None], (torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)))[
        0
    ],
}
"""Each raises on the simulated GPU, too."""

SOUND = {
    "an index": lambda model, y: y[:, torch.arange(2)],
    "a number": lambda model, y: y + torch.arange(4).sum(),
    "copied": lambda model, y: y + model.kept.to(y.device),
    "copied into": lambda model, y: y.clone().copy_(torch.ones(4)),
    "type of it": lambda model, y: y + torch.arange(4).type_as(y),
    "all on the CPU": lambda model, y: y.type(torch.FloatTensor) + torch.arange(4),
    "by a context": lambda model, y: y + _make_on(y.device),
}
"""Each runs on the simulated GPU, too."""


def _make_on(device):
    with device:
        return torch.arange(4)


class Keeps(nn.Module):
    """Keeps tensors that `nn.Module.to` does not move; where it needs numbers it is traced on the CPU."""

    def __init__(self, function, needs_numbers):
        super().__init__()
        self.function, self.needs_numbers = function, needs_numbers
        self.kept, self.listed = torch.ones(4), [torch.ones(4)]
        self.layer, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        y = self.layer(x)
        return self.function(self, y[y.sum(-1) > -100] if self.needs_numbers else y)


NUMBERS = pytest.mark.parametrize("needs_numbers", [True, False], ids=["cpu", "meta"])


@NUMBERS
@pytest.mark.parametrize("function", MIXED.values(), ids=MIXED)
def test_a_tensor_that_is_left_on_the_cpu_is_found_wherever_it_is_traced(function, needs_numbers):
    covered = mps_coverage(Keeps(function, needs_numbers), torch.randn(4, 4))
    assert not covered.runs
    assert covered.problems[0].kind == "on the CPU"


@NUMBERS
@pytest.mark.parametrize("function", SOUND.values(), ids=SOUND)
def test_what_may_stay_on_the_cpu_is_no_problem(function, needs_numbers):
    covered = mps_coverage(Keeps(function, needs_numbers), torch.randn(4, 4))
    assert covered.answer.startswith("Yes: ")
    assert covered.is_sure


# ---- packed sequences, whose lengths are read on the CPU ----------------------------------------------------------


def _count(y):
    return (y[..., 0] > -100).sum(1)


LENGTHS = {
    "a list": (lambda y: [3, 2], True),
    "a tensor on the CPU": (lambda y: torch.tensor([3, 2]), True),
    "counted and copied": (lambda y: _count(y).cpu(), True),
    "made on the GPU": (lambda y: torch.tensor([3, 2], device=y.device), False),
    "counted on the GPU": (_count, False),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(("lengths", "runs"), LENGTHS.values(), ids=LENGTHS)
def test_lengths_of_a_packed_sequence_have_to_be_on_the_cpu(lengths, runs, training):
    covered = mps_coverage(PackedLSTM(lengths), torch.randn(2, 3, 4), training=training)
    assert (covered.runs, covered.is_sure) == (runs, True), covered.answer
    assert [problem.kind for problem in covered.problems] == ([] if runs else ["on the GPU"])


@NUMBERS
@pytest.mark.parametrize("make", [nn.GRU, nn.LSTM])
def test_a_packed_sequence_comes_back_with_its_lengths_on_the_cpu(make, needs_numbers):
    recurrent = make(4, 4, batch_first=True)

    def unpack(layer, x):
        x = x[x.sum((1, 2)) > -100] if needs_numbers else x
        packed = nn.utils.rnn.pack_padded_sequence(x, [3, 2], batch_first=True)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
        assert lengths.device.type == "cpu"
        return padded[torch.arange(2), lengths - 1]

    covered = mps_coverage(unpack, recurrent, torch.randn(2, 3, 4))
    assert covered.answer.startswith("Yes: ")


@pytest.mark.parametrize(
    "words",
    [
        "Torch not compiled with CUDA enabled",
        "No CUDA GPUs are available",
        "Found no NVIDIA driver on your system",
    ],
)
def test_a_device_that_a_model_names_is_not_blamed_on_its_inputs(words):
    def names_a_device(x):
        raise RuntimeError(words)

    with pytest.raises(coverage.TraceFailed, match=r"\.to\(x\.device\)") as failed:
        mps_coverage(names_a_device, torch.ones(2))
    assert "do they fit" not in str(failed.value)


# ---- the fused encoder, for which a Mac asks before it looks at the device -------------------------------------------

PADDING = torch.tensor([[False] * 4, [False, False, True, True]])
WAYS_OF_TRACING = {
    "first": lambda y: y,
    "with numbers": lambda y: y * y.sum().item(),
    "not followed": lambda y: y + torch.rand(8, generator=torch.Generator(y.device)),
}
BY_TRACE = pytest.mark.parametrize("after", WAYS_OF_TRACING.values(), ids=WAYS_OF_TRACING)


def make_encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 1, **options).eval()


def encode_padded(encoder, x, after):
    run = lambda model, x, padding: after(model(x, src_key_padding_mask=padding))
    return mps_coverage(run, encoder, x, PADDING)


@BY_TRACE
def test_a_padded_encoder_calls_an_operator_that_is_missing(after):
    covered = encode_padded(make_encoder(), torch.rand(2, 4, 8), after)
    [missing] = covered.having("missing")
    assert missing.operator.startswith("aten::_nested_tensor_from_mask_left_aligned")
    assert "enable_nested_tensor=False" in missing.advice
    assert "enable_nested_tensor=False" in covered.answer


OTHER_ENCODERS = {
    "without nested tensors": lambda: make_encoder(enable_nested_tensor=False),
    "in training mode": lambda: make_encoder().train(),
    "a layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
}


@BY_TRACE
@pytest.mark.parametrize("make", OTHER_ENCODERS.values(), ids=OTHER_ENCODERS)
def test_other_padded_encoders_run(make, after):
    covered = encode_padded(make(), torch.rand(2, 4, 8), after)
    assert covered.runs, covered.answer
    assert not [use.operator for use in covered.uses if "fwd" in use.operator or "nested" in use.operator]


@BY_TRACE
def test_attention_alone_runs_without_a_kernel_of_the_cpu(after):
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    covered = mps_coverage(lambda model, x: after(model(x, x, x)[0]), attention, torch.rand(2, 4, 8))
    assert covered.runs, covered.answer
    assert not [use.operator for use in covered.uses if "_native_multi_head" in use.operator]


# ---- what is other on MPS than in a trace ----------------------------------------------------------------------------

QUANTILES = {
    "quantile": lambda x: torch.quantile(x, 0.5),
    "of several": lambda x: torch.quantile(x, torch.tensor([0.1, 0.9], device=x.device), dim=0),
    "a method": lambda x: x.quantile(0.5, dim=0),
    "nanquantile": lambda x: torch.nanquantile(x, 0.5),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("function", QUANTILES.values(), ids=QUANTILES)
def test_a_quantile_computes_in_its_own_dtype_on_mps(function, training):
    covered = mps_coverage(function, torch.rand(6, 8, requires_grad=True), training=training)
    assert covered.runs, covered.answer


def test_a_quantile_hides_no_float64_behind_it():
    covered = mps_coverage(lambda x: x.quantile(0.5).double(), torch.rand(6, 8))
    assert [problem.kind for problem in covered.problems] == ["float64"]


CTC_LENGTHS = {
    "on the CPU": lambda x: (torch.full((3,), 5), torch.full((3,), 2)),
    "on the GPU": lambda x: (x.new_full((3,), 5).long(), x.new_full((3,), 2).long()),
    "numbers": lambda x: ((5, 5, 5), (2, 2, 2)),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("lengths", CTC_LENGTHS.values(), ids=CTC_LENGTHS)
def test_lengths_of_ctc_may_lie_anywhere(lengths, reduction, training):
    def loss(x):
        targets = torch.ones(3, 2, dtype=torch.long, device=x.device)
        inputs, labels = lengths(x)
        return nn.functional.ctc_loss(x, targets, inputs, target_lengths=labels, reduction=reduction)

    x = torch.rand(5, 3, 8).log_softmax(-1).requires_grad_()
    covered = mps_coverage(loss, x, training=training)
    assert covered.runs, covered.answer


def test_targets_of_ctc_may_lie_anywhere():
    """PyTorch copies them itself."""
    targets = torch.ones(3, 2, dtype=torch.long)
    loss = lambda x: nn.functional.ctc_loss(x, targets, (5, 5, 5), (2, 2, 2))
    covered = mps_coverage(loss, torch.rand(5, 3, 8).log_softmax(-1))
    assert covered.runs, covered.answer


def draw_with(generator_of):
    return lambda x: x + torch.rand(4, device=x.device, generator=generator_of(x))


@NUMBERS
def test_a_generator_of_the_cpu_draws_nothing_on_the_gpu(needs_numbers):
    draw = lambda model, y: draw_with(lambda x: torch.Generator().manual_seed(0))(y)
    covered = mps_coverage(Keeps(draw, needs_numbers), torch.randn(4, 4))
    [problem] = covered.problems
    assert "generator" in problem.text
    assert problem.line.startswith("tests/pytorch/test_coverage.py:")


@NUMBERS
def test_a_generator_of_the_cpu_may_draw_there(needs_numbers):
    draw = lambda model, y: y + torch.rand(4, generator=torch.Generator()).to(y.device)
    covered = mps_coverage(Keeps(draw, needs_numbers), torch.randn(4, 4))
    assert covered.runs, covered.answer


# ---- dtypes that the model holds, and those that it makes ------------------------------------------------------------

TABLE = np.array([0.1, 0.3, 0.3, 0.3])
MAKE_FLOAT64 = {
    "moved": lambda x: x * torch.from_numpy(TABLE).to(x.device),
    "made": lambda x: x * torch.arange(4, device=x.device, dtype=torch.float64),
    "converted": lambda x: x.double().float(),
}


class HoldsPositions(nn.Module):
    def __init__(self, function, dtype):
        super().__init__()
        self.function = function
        self.register_buffer("positions", torch.ones(4, dtype=dtype))

    def forward(self, x):
        return self.function(x + self.positions.to(x.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("function", MAKE_FLOAT64.values(), ids=MAKE_FLOAT64)
def test_a_buffer_of_float64_hides_no_other_float64(function, dtype):
    covered = mps_coverage(HoldsPositions(function, dtype), torch.rand(2, 4))
    lines = [problem.line for problem in covered.problems]
    assert lines.count("") == (dtype == torch.float64)
    assert any("test_coverage.py:" in line for line in lines)
    assert "at tests/pytorch/test_coverage.py:" in covered.answer


def test_where_a_repaired_model_does_not_run_what_it_holds_is_told():
    """A product of two dtypes raises, so that nothing behind it is known."""
    weight = torch.ones(4, 4, dtype=torch.float64)
    multiply = lambda x: (x @ weight.to(x.device)) * x.sum().item()
    covered = mps_coverage(multiply, torch.ones(2, 4).double())
    assert [problem.text for problem in covered.problems] == ["MPS has no float64, but input 0 is"]


WIDE = {
    "times since 1970": (1.7e9 + torch.arange(6.0, dtype=torch.float64) * 10, True),
    "times since the first": (torch.arange(6.0, dtype=torch.float64) * 10, False),
    "all the same": (torch.full((6,), 1.7e9 + 1, dtype=torch.float64), False),
    "random": (torch.rand(6, dtype=torch.float64), False),
    "with an infinity": (torch.tensor([0.0, 1.0, torch.inf], dtype=torch.float64), False),
    "empty": (torch.empty(0, dtype=torch.float64), False),
}


@pytest.mark.parametrize(("numbers", "loses"), WIDE.values(), ids=WIDE)
def test_it_is_said_where_float32_loses_what_numbers_differ_in(numbers, loses):
    [problem] = mps_coverage(lambda x: x + 1, numbers).problems
    assert ("subtract" in problem.way_out) == loses
