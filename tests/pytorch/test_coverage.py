"""Coverage against facts that do not come from the file it reads: the talks, users' reports and PyTorch's sources."""

from __future__ import annotations

import dataclasses
import html
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchvision
from refused import REFUSED
from torch import nn
from without_kernel import WITHOUT_KERNEL

from metallab.__main__ import main as command
from metallab.pytorch import coverage, networks
from metallab.pytorch.coverage import mps_coverage, report
from metalsim.operators import status

# Named in the talks, or in the release notes since, as running on MPS.
NATIVE = [
    "softshrink", "grid_sampler_2d", "triangular_solve", "topk", "histc", "masked_fill_.Scalar", "median",
    "repeat_interleave.Tensor", "cumsum", "masked_select", "addmm", "native_batch_norm", "_lstm_mps", "_ctc_loss",
    "_linalg_svd", "_linalg_svd.U", "_linalg_eigh", "add_.Tensor",
]  # fmt: skip


def of(covered, operator):
    return next(
        use for use in covered.uses if use.operator.split("::")[1].split(".")[0] == operator
    )


KNOWN = [
    *(pytest.param(each, "missing", id=f"{each} is missing") for each in WITHOUT_KERNEL),
    *(pytest.param(f"aten::{name}", "native", id=f"{name} is native") for name in NATIVE),
    pytest.param("aten::embedding_renorm_", "falls back", id="embedding_renorm_ falls back"),
    pytest.param("aten::linalg_pinv.atol_rtol_tensor", "composite", id="pinv is composite"),
]


@pytest.mark.parametrize(("operator", "known"), KNOWN)
def test_what_is_known_of_an_operator(operator, known):
    assert status(operator) == known


@pytest.mark.parametrize("operator", WITHOUT_KERNEL)
def test_an_operator_without_a_metal_kernel_is_foretold(operator):
    covered = mps_coverage(*WITHOUT_KERNEL[operator][:2])
    (use,) = covered.having("missing")
    assert not covered.runs
    assert use.operator.partition(".")[0] == operator.partition(".")[0]


def symmetric(*shape: int) -> torch.Tensor:
    a = torch.rand(shape)
    return a + a.mT


class Limited(NamedTuple):
    """A function of matrices, one that its kernel takes, one that it leaves to the CPU, and why."""

    function: Callable[[torch.Tensor], Any]
    fits: torch.Tensor
    leaves: torch.Tensor
    operator: str
    reason: str


LIMITED = {
    "svd": Limited(
        torch.linalg.svd, torch.rand(64, 128), torch.rand(64, 129), "_linalg_svd", "33024 bytes"
    ),
    "svd of complex numbers": Limited(
        torch.linalg.svdvals,
        torch.rand(64, 64, dtype=torch.complex64),
        torch.rand(65, 65, dtype=torch.complex64),
        "_linalg_svd",
        "33800 bytes",
    ),
    "eigenvalues": Limited(
        torch.linalg.eigvalsh,
        symmetric(48, 16, 16),
        symmetric(64, 64),
        "_linalg_eigh",
        "less than 12288",
    ),
    "pseudoinverse": Limited(
        torch.linalg.pinv, torch.rand(64, 64), torch.rand(96, 96), "linalg_pinv", "36864 bytes"
    ),
}


@pytest.mark.parametrize("case", LIMITED.values(), ids=LIMITED)
def test_a_matrix_that_fits_a_kernel_needs_no_reason(case):
    covered = mps_coverage(case.function, case.fits)
    assert covered.runs
    assert of(covered, case.operator).reason == ""


@pytest.mark.parametrize("case", LIMITED.values(), ids=LIMITED)
def test_a_kernel_leaves_a_large_matrix_to_the_cpu(case):
    covered = mps_coverage(case.function, case.leaves)
    assert covered.runs
    assert of(covered, case.operator).status == "falls back"
    assert case.reason in of(covered, case.operator).advice
    assert case.operator in covered.answer


@pytest.mark.parametrize("name", REFUSED)
def test_refused_arguments_are_foretold_in_a_mac_s_words(name):
    call = REFUSED[name]
    covered = mps_coverage(call.model, *call.inputs)
    (use,) = covered.having("refused")

    assert not covered.runs
    assert use.reason.startswith(call.words)
    assert use.way_out in str(covered)
    assert use.reason.partition(". ")[0] in html.unescape(covered._repr_html_())


def test_the_backward_pass_is_asked_as_well():
    x = torch.rand(1, 2, 12, 12, requires_grad=True)
    covered = mps_coverage(nn.AdaptiveAvgPool2d(5), x, training=True)

    refused = {use.operator.split("::")[1].split(".")[0] for use in covered.having("refused")}
    assert refused == {"_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"}


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

    assert covered.runs
    assert covered.having("falls back", "unknown") == ()


def test_the_talk_s_network_runs():
    talk = networks.talk_mlp()
    assert mps_coverage(talk.model, *talk.inputs, training=True).runs


def test_a_network_with_a_missing_operator_does_not_run():
    covered = mps_coverage(nn.Sequential(nn.Linear(4, 4), nn.RReLU()), torch.randn(2, 4))
    assert not covered.runs
    assert of(covered, "rrelu_with_noise").modules == ("1",)
    assert "PYTORCH_ENABLE_MPS_FALLBACK=1" in str(covered)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        pytest.param(lambda: nn.LSTM(4, 4), torch.randn(2, 3, 4), id="a layer"),
        pytest.param(lambda: networks.lstm().model, torch.randn(2, 3, 64), id="a network"),
    ],
)
def test_lstm_is_one_operator_on_mps(make, inputs):
    """aten/src/ATen/native/RNN.cpp calls _lstm_mps for the whole layer; elsewhere it falls into pieces."""
    covered = mps_coverage(make(), inputs)
    assert of(covered, "_lstm_mps").calls == 1
    assert not any("sigmoid" in use.operator or "tanh" in use.operator for use in covered.uses)


def test_attention_is_one_operator_on_mps_without_gradients():
    """As transformers/attention.cpp has it."""
    layer = nn.TransformerEncoderLayer(8, 2, dropout=0.0)
    covered = mps_coverage(layer.eval(), torch.randn(2, 3, 8))
    assert of(covered, "_scaled_dot_product_attention_math_for_mps").modules == ("self_attn",)
    assert not any("softmax" in use.operator for use in covered.uses)


def test_attention_falls_into_pieces_where_a_gradient_is_wanted():
    layer = nn.TransformerEncoderLayer(8, 2, dropout=0.0)
    covered = mps_coverage(layer.train(), torch.randn(2, 3, 8), training=True)
    assert covered.runs
    assert of(covered, "_safe_softmax").modules == ("self_attn",)
    assert not any("for_mps" in use.operator for use in covered.uses)


def attend_with_dropout(q: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, q, q, None, 0.5)


def test_attention_with_dropout_does_not_run_without_gradients():
    assert not mps_coverage(attend_with_dropout, torch.randn(1, 2, 3, 8)).runs


def test_attention_with_dropout_runs_in_pieces_where_a_gradient_is_wanted():
    x = torch.randn(1, 2, 3, 8, requires_grad=True)
    covered = mps_coverage(attend_with_dropout, x, training=True)
    assert covered.runs
    assert any("softmax" in use.operator for use in covered.uses)


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


def test_a_tensor_left_on_the_cpu_is_found_with_its_line_and_module():
    covered = mps_coverage(nn.Sequential(LeavesATensorBehind()), torch.randn(2, 8))
    (left,) = covered.problems
    assert not covered.runs
    assert left.operator == "aten::add.Tensor"
    assert left.modules == ("0",)
    assert left.line.startswith("tests/pytorch/test_coverage.py:")


def test_what_follows_a_tensor_left_on_the_cpu_is_traced_as_well():
    covered = mps_coverage(nn.Sequential(LeavesATensorBehind()), torch.randn(2, 8))
    assert of(covered, "sin")


def test_each_call_with_a_tensor_left_on_the_cpu_is_found():
    twice = mps_coverage(lambda x: (x + torch.ones(2)) * torch.ones(2), torch.ones(2))
    assert [each.operator for each in twice.problems] == ["aten::add.Tensor", "aten::mul.Tensor"]


def test_a_number_without_dimensions_may_stay_on_the_cpu():
    assert mps_coverage(lambda x: x + torch.tensor(1.0), torch.randn(2)).runs


def ways_out(covered) -> list[tuple[str, str]]:
    """The operator of each problem, and what to write in its place."""
    return [(each.operator, each.way_out) for each in covered.problems]


def test_float64_is_reported_only_where_it_is_made():
    def model(x):
        y = x.double().cumsum(-1) * torch.linspace(0, 1, 2, dtype=torch.float64, device=x.device)
        return y.exp().float()

    covered = mps_coverage(model, torch.randn(2, requires_grad=True), training=True)

    assert ways_out(covered) == [
        ("aten::_to_copy", "write .to(torch.float32)"),
        ("aten::linspace", "write torch.linspace(..., dtype=torch.float32)"),
    ]
    assert all(each.line.startswith("tests/pytorch/test_coverage.py:") for each in covered.problems)


def test_float64_that_comes_from_the_cpu_is_reported_where_it_is_moved():
    kept = torch.ones(2, dtype=torch.float64)
    covered = mps_coverage(lambda x: x[x.nonzero()[:, 0]] * kept.to(x.device), torch.ones(2))
    assert covered.traced_on == "cpu"
    assert ways_out(covered) == [("aten::_to_copy", "write .to(torch.float32)")]


def test_a_float64_input_is_reported_and_not_what_a_model_makes_of_its_dtype():
    def make_alike(x):
        return x + torch.zeros(2, dtype=x.dtype, device=x.device)

    (given,) = mps_coverage(make_alike, torch.ones(2).double()).problems
    assert given.kind == "float64"
    assert "input 0 is" in given.text


def test_inputs_and_weights_of_complex128_are_reported_at_once():
    model = nn.Linear(2, 2, dtype=torch.complex128)
    (held,) = mps_coverage(model, torch.ones(2, dtype=torch.complex128)).problems
    assert held.kind == "complex128"
    assert "input 0, weight, bias" in held.text
    assert "torch.complex64" in held.way_out


def test_a_custom_operator_for_the_cpu_alone_is_missing():
    @torch.library.custom_op("metallab_test::cpu_only", mutates_args=(), device_types="cpu")
    def cpu_only(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    cpu_only.register_fake(lambda x: torch.empty_like(x))
    covered = mps_coverage(lambda x: cpu_only(x), torch.randn(2))
    assert not covered.runs


class AsksForItsNumbers(nn.Module):
    """Changes its input, and needs numbers, so that it runs on the CPU; it has statistics and random numbers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(inplace=True))

    def forward(self, x):
        x.add_(1)
        return self.inner(x)[x.nonzero()[0, 0]]


def test_nothing_of_the_caller_changes_where_the_cpu_is_needed():
    model, x = AsksForItsNumbers(), torch.randn(2, 8)
    before, statistics = x.clone(), model.inner[0].running_mean.clone()
    state = torch.get_rng_state()

    covered = mps_coverage(model, x)

    assert covered.traced_on == "cpu"
    assert torch.equal(x, before)
    assert torch.equal(model.inner[0].running_mean, statistics)
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


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_what_a_model_computes_on_the_cpu_needs_no_kernel(training):
    covered = mps_coverage(OnTheCpu(), torch.rand(1, 1, 16, 16), training=training)
    assert covered.runs, covered.answer
    assert covered.traced_on == "meta"
    assert "aten::_to_copy.default" in {use.operator for use in covered.uses}
    assert not any("fractional" in use.operator for use in covered.uses)


def test_the_cpus_own_attention_is_no_missing_operator():
    """What asks for numbers is traced on the CPU, which has a kernel of its own for attention."""

    def routed(x):
        attended = nn.functional.scaled_dot_product_attention(x, x, x)
        return attended if len(attended.sum(-1).nonzero()) else x

    covered = mps_coverage(routed, torch.rand(1, 2, 6, 8, requires_grad=True), training=True)
    assert covered.traced_on == "cpu"
    assert covered.runs, covered.answer


def test_inference_mode_of_the_caller_hides_nothing():
    with torch.inference_mode():
        assert not mps_coverage(nn.AdaptiveAvgPool3d(2), torch.randn(1, 1, 4, 4, 4)).runs


def test_inference_mode_of_a_model_hides_nothing():
    hidden = torch.inference_mode()(lambda x: nn.functional.rrelu(x))
    assert not mps_coverage(hidden, torch.randn(2)).runs


@pytest.mark.parametrize(
    ("reads", "runs"),
    [
        pytest.param(lambda x: x.detach().numpy(), False, id="numpy()"),
        pytest.param(lambda x: np.asarray(x.detach()), False, id="asarray"),
        pytest.param(lambda x: x.detach().cpu().numpy(), True, id="cpu().numpy()"),
        pytest.param(lambda x: x.tolist(), True, id="tolist()"),
    ],
)
def test_a_tensor_on_the_gpu_is_no_array(reads, runs):
    covered = mps_coverage(lambda x: (reads(x * 2), x + 1)[1], torch.ones(3))
    assert covered.traced_on == "cpu"
    assert covered.runs is runs
    assert (covered.problems == ()) is runs


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
    assert mps_coverage(lambda x: x[torch.tensor([0, 1])], torch.ones(3)).runs


def test_what_is_written_at_indices_may_not_stay_on_the_cpu():
    def write(x):
        x = x.clone()
        x[torch.tensor([0, 1])] = torch.zeros(2)
        return x

    covered = mps_coverage(write, torch.ones(3))
    assert [each.operator for each in covered.problems] == ["aten::index_put_"]


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


def test_a_sparse_tensor_of_the_models_own_is_named_with_its_line():
    def multiply(x):
        return torch.eye(3, device=x.device).to_sparse() @ x

    with pytest.raises(coverage.TraceFailed, match=r" at tests/pytorch/test_coverage\.py:\d+"):
        mps_coverage(multiply, torch.ones(3, 4))


def test_a_sparse_gradient_is_named_with_the_setting_that_makes_it():
    embedding = nn.Embedding(5, 3, sparse=True)
    with pytest.raises(coverage.TraceFailed, match="sparse=True"):
        mps_coverage(embedding, torch.tensor([1, 2]), training=True)


CALLS = {
    "a tuple of inputs": (((torch.ones(2, 3),),), {}, r"mps_coverage\(model, \*inputs\)"),
    "train": ((torch.ones(2, 3),), {"train": True}, "training=True"),
}


@pytest.mark.parametrize(("inputs", "named", "way_out"), CALLS.values(), ids=CALLS)
def test_a_call_that_means_something_else_is_told_how_to_write_it(inputs, named, way_out):
    with pytest.raises(coverage.TraceFailed, match=way_out) as failed:
        mps_coverage(nn.Linear(3, 2), *inputs, **named)
    assert "do they fit" not in str(failed.value)


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


WRAPPINGS = pytest.mark.parametrize(("wrap", "unwrap"), WRAPPED.values(), ids=WRAPPED)


class Wrapped(nn.Module):
    """Takes a tensor out of an object, changes it, and returns what it computes in such an object."""

    def __init__(self, wrap, unwrap):
        super().__init__()
        self.wrap, self.unwrap, self.layer = wrap, unwrap, nn.Linear(4, 4)

    def forward(self, value):
        with torch.no_grad():
            self.unwrap(value).add_(1)
        return self.wrap(self.layer(self.unwrap(value)).sin())


@WRAPPINGS
def test_a_tensor_in_an_object_is_moved_and_the_callers_is_not_changed(wrap, unwrap):
    x = torch.randn(2, 4)
    before = x.clone()

    covered = mps_coverage(Wrapped(wrap, unwrap), wrap(x))

    assert covered.runs, covered.answer
    assert covered.traced_on == "meta"
    assert torch.equal(x, before)


@WRAPPINGS
def test_a_tensor_in_an_object_that_is_returned_has_a_backward_pass(wrap, unwrap):
    covered = mps_coverage(Wrapped(wrap, unwrap), wrap(torch.randn(2, 4)), training=True)
    assert of(covered, "linear_backward")


@WRAPPINGS
def test_a_tensor_in_an_object_is_asked_for_its_dtype(wrap, unwrap):
    covered = mps_coverage(Wrapped(wrap, unwrap), wrap(torch.randn(2, 4).double()))
    assert covered.problems[0].kind == "float64"


@WRAPPINGS
def test_a_sparse_tensor_in_an_object_is_refused(wrap, unwrap):
    with pytest.raises(coverage.TraceFailed, match="sparse"):
        mps_coverage(Wrapped(wrap, unwrap), wrap(torch.randn(2, 4).to_sparse()))


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


def test_an_exception_of_a_models_own_is_told():
    def broken(x):
        raise KeyError("no such layer")

    with pytest.raises(coverage.TraceFailed, match="no such layer"):
        mps_coverage(broken, torch.randn(2))


def test_shapes_that_do_not_fit_are_told():
    with pytest.raises(coverage.TraceFailed, match="1x3 and 2x2"):
        mps_coverage(nn.Linear(2, 2), torch.rand(1, 3))


def test_nms_needs_numbers_and_is_traced_on_the_cpu():
    def suppress(boxes, scores):
        return torchvision.ops.nms(boxes, scores, 0.5)

    covered = mps_coverage(suppress, torch.rand(5, 4), torch.rand(5))
    assert covered.traced_on == "cpu"
    assert of(covered, "nms").status == "native"
    assert "Traced on the CPU" in covered.answer, "what it does on mps alone is not seen"


@pytest.mark.parametrize(
    "make",
    [networks.mlp, networks.cnn, networks.resnet, networks.transformer, networks.lstm],
    ids=lambda make: make.__name__,
)
def test_the_collection_s_networks_run(make):
    network = make()
    covered = mps_coverage(network.model.train(), *network.inputs, training=True)
    assert covered.runs, covered.answer
    assert not covered.having("unknown")


class Trained(nn.Module):
    """Is told whether it is trained by an argument, which has the name of a setting of coverage."""

    def forward(self, x, training):
        return x * 2 if training else x


FACTORIES = {
    "good": lambda: (nn.Linear(2, 2), (torch.randn(1, 2),)),
    "one_input_needs_no_tuple": lambda: (nn.Linear(2, 2), torch.randn(1, 2)),
    "missing_operator": lambda: (
        nn.Sequential(nn.Linear(2, 2), nn.RReLU()),
        (torch.randn(1, 2),),
    ),
    "has_an_input_named_as_a_setting": lambda: (Trained(), {"x": torch.ones(2), "training": True}),
    "as_the_doctor_takes_it": lambda: (nn.RReLU(), {"input": torch.ones(2)}, torch.sum),
    "makes_a_number": lambda: 3,
    "has_other_shapes": lambda: (nn.Linear(2, 2), torch.ones(3)),
}


@pytest.fixture
def factories(monkeypatch):
    """A module of functions that make a model with its inputs."""
    module = types.ModuleType("factories")
    vars(module).update(FACTORIES)
    monkeypatch.setitem(sys.modules, "factories", module)


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    "name", ["good", "one_input_needs_no_tuple", "has_an_input_named_as_a_setting"]
)
def test_the_command_ends_with_0_for_a_model_that_runs(name):
    assert command(["coverage", f"factories:{name}"]) == 0


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["factories:missing_operator", "--training"], id="in training"),
        pytest.param(["factories:as_the_doctor_takes_it"], id="with names and a loss"),
    ],
)
def test_the_command_ends_with_1_and_names_the_operator_that_is_missing(arguments, capsys):
    assert command(["coverage", *arguments]) == 1
    assert "rrelu_with_noise" in capsys.readouterr().out


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    "misuse",
    [
        "factories:makes_a_number",
        "factories:has_other_shapes",
        "factories:is_not_there",
        "nowhere:x",
        "factories",
    ],
)
def test_misuse_of_the_command_is_a_line_and_ends_with_2(misuse, capsys):
    assert command(["coverage", misuse]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# ---- traced on the CPU, where each tensor would lie ------------------------------------------------------------------


def of_rows(function):
    """Return a model that applies a function to some rows of what a layer returns.

    How many rows they are depends on the numbers, so it cannot be traced without any, and is traced on the CPU.
    """

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x)
            # all rows, but that is known only when it is computed
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
    assert covered.traced_on == "cpu"
    assert covered.runs, covered.answer


FAIL_ON_MPS = {
    "float64 before": (lambda y: y.double().cpu().cumsum(0).float().to(y.device), "float64"),
    "left there": (lambda y: y + y.cpu(), "on the CPU"),
    "an array": (lambda y: y + float(y.detach().numpy().sum()), "array"),
}


@pytest.mark.parametrize(("function", "kind"), FAIL_ON_MPS.values(), ids=FAIL_ON_MPS)
def test_what_fails_on_mps_is_found_on_the_cpu(function, kind):
    covered = mps_coverage(of_rows(function), torch.randn(4, 4))
    assert covered.traced_on == "cpu"
    assert covered.problems[0].kind == kind, covered.answer


def test_a_no_of_a_trace_on_the_cpu_says_what_it_does_not_see():
    covered = mps_coverage(of_rows(lambda y: torch.mode(y).values), torch.randn(4, 4))
    assert not covered.runs
    assert report.WITH_THESE_NUMBERS in covered.answer


def draw(y):
    """Where there is no Mac, a generator on mps raises, so that the model cannot be told that it is on one."""
    return y + torch.rand(4, generator=torch.Generator(y.device))


def test_where_no_device_can_be_followed_there_is_no_yes():
    covered = mps_coverage(of_rows(draw), torch.randn(4, 4))
    assert not covered.is_sure
    assert covered.runs
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
    "type by its name": lambda model, y: y + y.type(dtype=torch.FloatTensor),
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
    assert covered.is_sure
    assert covered.runs is runs, covered.answer
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
    def run(model, x, padding):
        return after(model(x, src_key_padding_mask=padding))

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
    assert not [
        use.operator for use in covered.uses if "fwd" in use.operator or "nested" in use.operator
    ]


@BY_TRACE
def test_attention_alone_runs_without_a_kernel_of_the_cpu(after):
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    covered = mps_coverage(
        lambda model, x: after(model(x, x, x)[0]), attention, torch.rand(2, 4, 8)
    )
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
        return nn.functional.ctc_loss(
            x, targets, inputs, target_lengths=labels, reduction=reduction
        )

    x = torch.rand(5, 3, 8).log_softmax(-1).requires_grad_()
    covered = mps_coverage(loss, x, training=training)
    assert covered.runs, covered.answer


def test_targets_of_ctc_may_lie_anywhere():
    """PyTorch copies them itself."""
    targets = torch.ones(3, 2, dtype=torch.long)

    def loss(x):
        return nn.functional.ctc_loss(x, targets, (5, 5, 5), (2, 2, 2))

    covered = mps_coverage(loss, torch.rand(5, 3, 8).log_softmax(-1))
    assert covered.runs, covered.answer


def draw_with(generator_of):
    return lambda x: x + torch.rand(4, device=x.device, generator=generator_of(x))


@NUMBERS
def test_a_generator_of_the_cpu_draws_nothing_on_the_gpu(needs_numbers):
    add_random = draw_with(lambda x: torch.Generator().manual_seed(0))

    def draw(model, y):
        return add_random(y)

    covered = mps_coverage(Keeps(draw, needs_numbers), torch.randn(4, 4))
    [problem] = covered.problems
    assert "generator" in problem.text
    assert problem.line.startswith("tests/pytorch/test_coverage.py:")


@NUMBERS
def test_a_generator_of_the_cpu_may_draw_there(needs_numbers):
    def draw(model, y):
        return y + torch.rand(4, generator=torch.Generator()).to(y.device)

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


def test_a_module_that_is_given_by_name_has_its_float64_told():
    """Moving the module to an Apple GPU raises, whatever the function does with the buffer."""
    table = nn.Module()
    table.register_buffer("scale", torch.ones(4, dtype=torch.float64))

    def scale(x, table):
        return x * table.scale.float()

    covered = mps_coverage(scale, torch.ones(2, 4), table=table)
    assert [problem.text for problem in covered.problems] == ["MPS has no float64, but scale is"]


def test_where_a_repaired_model_does_not_run_what_it_holds_is_told():
    """A product of two dtypes raises, so that nothing behind it is known."""
    weight = torch.ones(4, 4, dtype=torch.float64)

    def multiply(x):
        return (x @ weight.to(x.device)) * x.sum().item()

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
