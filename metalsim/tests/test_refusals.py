"""What Metal kernels refuse, and that the simulated device raises where PyTorch expects it of its Macs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision  # noqa: F401  # whose operators are looked at
from releases import is_followed

from metalsim import operators, refusals
from metalsim.device import TESTED_TORCH, TORCH
from metalsim.refusals import alerts, detours, left_on_cpu, rules, versions

ROOT = Path(__file__).resolve().parents[2]
NEWEST = TORCH
"""Whose words most tests here are about, whichever PyTorch is installed."""


@pytest.fixture
def newest(monkeypatch):
    """Have the rules of the newest PyTorch."""
    monkeypatch.setattr(versions, "find_installed", lambda: NEWEST)


def operators_with_a_kernel() -> set[str]:
    """Operators without their overloads, those of torchvision with its name."""
    native = {
        name.partition(".")[0]
        for name in operators.table()
        if operators.has_kernel(f"aten::{name}")
    }
    return native | {f"torchvision::{name}" for name in operators.TORCHVISION}


VERSION = versions.find_installed()
OF_A_KERNEL = {
    "refusals/rules.py": rules.for_version(VERSION),
    "refusals/detours.py": detours.for_version(VERSION),
    "ALERTS in refusals/alerts.py": [name for name in alerts.ALERTS if alerts.find(name, VERSION)],
    "WITHOUT_CPU_KERNEL in operators.py": operators.WITHOUT_CPU_KERNEL,
    # found with the release that is followed, and of no other
    "CONTIGUOUS in operators.py": operators.CONTIGUOUS if is_followed() else (),
    "WITHOUT_FLOAT8 in operators.py": operators.WITHOUT_FLOAT8,
}
"""The operators of which a place says what their Metal kernels do."""


@pytest.mark.parametrize("place", OF_A_KERNEL)
def test_what_is_said_of_a_kernel_is_of_an_operator_that_has_one(place):
    asked = {name.removeprefix("aten::") for name in OF_A_KERNEL[place]}
    without = asked - operators_with_a_kernel() - {"convolution_overrideable"}
    assert not without, f"take them out of {place}"


# ---- no two tables contradict each other ----------------------------------------------------------------------------

DTYPES = {
    "Bool": torch.bool, "Byte": torch.uint8, "Char": torch.int8, "Int": torch.int32, "Long": torch.int64,
    "Short": torch.int16, "Float8_e4m3fn": torch.float8_e4m3fn,
}  # fmt: skip
"""By what the CPU's errors call them."""


def find_refused_dtypes(version: str) -> list[tuple[str, str]]:
    """Return the operators and dtypes of which one table says that Metal computes them, and a rule that it refuses."""
    return [
        (overload, dtype)
        for operator in operators.WITHOUT_CPU_KERNEL
        for dtype in operators.dtypes_without_cpu_kernel(operator, version)
        for overload in overloads_of(operator)
        if isinstance(call_with(overload, DTYPES[dtype], version), refusals.Refusal)
    ]


def overloads_of(operator: str) -> list[str]:
    """Return an operator with each of its overloads."""
    packet = getattr(torch.ops.aten, operator.removeprefix("aten::"))
    return [f"{operator}.{overload}" for overload in packet.overloads()]


def call_with(overload: str, dtype: torch.dtype, version: str) -> refusals.Refusal | None:
    """Return the outcome of a call of an overload whose tensors are matrices of a dtype."""
    name, _, which = overload.partition(".")
    schema = getattr(getattr(torch.ops.aten, name.removeprefix("aten::")), which)._schema
    matrix = torch.empty(4, 4, dtype=dtype, device="meta")
    given = {
        argument.name: matrix if "Tensor" in str(argument.type) else argument.default_value
        for argument in schema.arguments
    }
    return refusals.outcome(overload, (), given, version)


@pytest.mark.parametrize("version", TESTED_TORCH)
def test_no_rule_contradicts_what_metal_computes_and_the_cpu_does_not(version):
    assert find_refused_dtypes(version) == []


def test_a_rule_that_contradicts_what_metal_computes_is_found(monkeypatch):
    monkeypatch.setattr(operators, "WITHOUT_CPU_KERNEL", {"aten::trace": ("Bool",)})
    monkeypatch.setattr(rules, "RULES", {name: [*held] for name, held in rules.RULES.items()})
    rules.by_dtype("trace", rules.is_("bool"), "trace not implemented for {dtype}")
    monkeypatch.setattr(refusals, "_of_version", refusals._of_version.__wrapped__)  # uncached

    found = find_refused_dtypes(NEWEST)
    assert found == [("aten::trace.default", "Bool"), ("aten::trace.out", "Bool")]


def test_a_kernel_computes_whole_numbers_from_its_version_on():
    assert operators.dtypes_without_cpu_kernel("aten::histc", "2.12.0") == ()
    assert "Int" in operators.dtypes_without_cpu_kernel("aten::histc", "2.13.0")


# ---- what is not deterministic --------------------------------------------------------------------------------------

X, WHOLE_ROW, PLACES = (
    torch.ones(4, 3),
    torch.ones(4, dtype=torch.long),
    torch.zeros(4, dtype=torch.long),
)
ALERTS = {
    "kthvalue": (("aten::kthvalue", (X, 2)), "kthvalue MPS", "2.11.0"),
    "a mask's gradient": (
        ("aten::_index_put_impl_", (X, [PLACES], X, True)), "index_put_with_accumulate_mps", "2.13.0",
    ),
    "index_add": (("aten::index_add", (X, 0, PLACES, X)), "index_put_with_accumulate_mps", "2.13.0"),
    "index_add_": (("aten::index_add_", (X, 0, PLACES, X)), "index_put_with_accumulate_mps", "2.13.0"),
    "index_reduce": (("aten::index_reduce", (X, 0, PLACES, X, "mean")), "index_reduce_mps", "2.13.0"),
    "scatter_add": (("aten::scatter_add", (X, 0, PLACES[:, None], X)), "scatter_reduce_mps", "2.13.0"),
    "scatter_reduce": (
        ("aten::scatter_reduce.two", (X, 0, PLACES[:, None], X, "prod")), "scatter_reduce_mps", "2.13.0",
    ),
    "scatter that adds": (
        ("aten::scatter.reduce", (X, 0, PLACES[:, None], X), {"reduce": "add"}), "scatter_reduce_mps", "2.13.0",
    ),
    "an embedding's gradient": (
        ("aten::embedding_dense_backward", (X, PLACES, 5, -1, False)), "embedding_dense_backward_mps", "2.15.0",
    ),
    "a bicubic gradient": (
        ("aten::upsample_bicubic2d_backward", (X[None, None], [4, 3], [1, 1, 2, 2], False)),
        "upsample_bicubic2d_backward", "2.15.0",
    ),
}  # fmt: skip
"""A call, by which name it says that it is not deterministic, and the first version that does."""


@pytest.mark.parametrize("case_id", ALERTS)
def test_a_kernel_that_is_not_deterministic_has_a_name(case_id):
    call, name, _ = ALERTS[case_id]
    assert refusals.alert(*call, version=NEWEST) == name


@pytest.mark.parametrize("case_id", ALERTS)
def test_a_kernel_asks_from_its_version_on(case_id):
    call, _, since = ALERTS[case_id]
    told = [version for version in TESTED_TORCH if refusals.alert(*call, version=version)]
    assert told == list(TESTED_TORCH[TESTED_TORCH.index(since) :])


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(("aten::index_add", (WHOLE_ROW, 0, PLACES, WHOLE_ROW)), id="whole numbers"),
        pytest.param(("aten::_index_put_impl_", (X, [PLACES], X, False)), id="written, not added"),
        pytest.param(("aten::index_reduce", (X, 0, PLACES, X, "amax")), id="the largest by index"),
        pytest.param(
            ("aten::scatter_reduce.two", (X, 0, PLACES[:, None], X, "amin")), id="the smallest"
        ),
        pytest.param(("aten::scatter.src", (X, 0, PLACES[:, None], X)), id="scatter that writes"),
        pytest.param(("aten::index_add", (X, 0, PLACES[:0], X[:0])), id="nothing to add"),
        pytest.param(("aten::cumsum", (X, 0)), id="a sum in order"),
    ],
)
def test_the_same_result_in_any_order_is_deterministic(call):
    assert refusals.alert(*call, version=NEWEST) is None


# ---- what was left on the CPU ---------------------------------------------------------------------------------------

ON_DEVICE, ON_CPU = torch.ones(2, 2, device="meta"), torch.ones(2, 2)
LEFT = {
    "iterated": (("aten::add.Tensor", (ON_DEVICE, ON_CPU)), "Expected all tensors to be on the same device"),
    "a mask": (
        ("aten::masked_fill.Scalar", (ON_DEVICE, ON_CPU, 0)),
        "expected self and mask to be on the same device, but got mask on cpu and self on meta",
    ),
    "what is indexed": (
        ("aten::index.Tensor", (ON_CPU, [ON_DEVICE])),
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "a product": (
        ("aten::mm", (ON_DEVICE, ON_CPU)), "Placeholder storage has not been allocated on MPS device!",
    ),
    "a batch": (
        ("aten::baddbmm", (ON_DEVICE, ON_DEVICE, ON_CPU)), "Expected batch2.is_mps() to be true, but got false.",
    ),
    "what is added to a batch": (
        ("aten::baddbmm", (ON_CPU, ON_DEVICE, ON_DEVICE)), "Expected input.is_mps() to be true, but got false.",
    ),
    "places": (("aten::gather", (ON_DEVICE, 0, ON_CPU)), "Passed CPU tensor to MPS op"),
    "edges": (
        ("aten::bucketize.Tensor", (ON_DEVICE, ON_CPU)),
        "torch.searchsorted(): boundaries and input value tensors should have same device type, but got boundaries "
        "tensor device type cpu and input value tensor device type meta",
    ),
    "an order": (
        ("aten::searchsorted.Scalar", (ON_DEVICE[0], 1.0, False, False, None, ON_CPU[0].long())),
        "torch.searchsorted(): sorter and boundary tensors should have same device type, but got sorter tensor device "
        "type cpu and input value tensor device type meta",
    ),
    "two vectors": (
        ("aten::dot", (ON_DEVICE[0], ON_CPU[0])), "Expected all tensors to be on the same device. Found: meta, cpu",
    ),
    "two vectors, the first conjugated": (
        ("aten::vdot", (ON_CPU[0], ON_DEVICE[0])), "Expected all tensors to be on the same device. Found: cpu, meta",
    ),
}  # fmt: skip
"""A call, and how its message begins."""


@pytest.mark.parametrize("case_id", LEFT)
def test_each_kernel_has_words_for_a_tensor_left_on_the_cpu(case_id):
    call, beginning = LEFT[case_id]
    words = refusals.describe_left_on_cpu(*call, version=NEWEST)
    assert words.startswith(beginning)


# TorchScript's lists find places by operators called `index`, too: these return no tensor
PACKETS = [
    getattr(torch.ops.aten, name)
    for sentence in left_on_cpu.SENTENCES
    for name in sentence.operators
]
OVERLOADS_WITH_WORDS = [
    overload
    for packet in PACKETS
    for overload in (getattr(packet, name) for name in packet.overloads())
    if str(overload._schema.returns[0].type) == "Tensor"
]


@pytest.mark.parametrize("overload", OVERLOADS_WITH_WORDS, ids=str)
def test_words_name_only_arguments_that_an_overload_has(overload):
    schema = overload._schema
    given = [ON_CPU if str(each.type) == "Tensor" else None for each in schema.arguments]
    assert refusals.describe_left_on_cpu(overload.name(), given, version=NEWEST)


def test_words_for_a_tensor_left_on_the_cpu_are_of_a_version():
    call = ("aten::index_select", (ON_DEVICE, 0, ON_CPU))
    newer = refusals.describe_left_on_cpu(*call, version="2.14.1")
    older = refusals.describe_left_on_cpu(*call, version="2.13.0")
    assert newer == "Passed CPU tensor to MPS op"
    assert older != newer


# ---- what becomes of a call -----------------------------------------------------------------------------------------


ROW = torch.ones(2, dtype=torch.long)
SQUARE = torch.ones(2, 2, dtype=torch.long)
SAME_CALL = {
    "by place": ("aten::addr", (SQUARE, ROW, ROW), {}),
    "by name": ("aten::addr.out", (), {"self": SQUARE, "vec1": ROW, "vec2": ROW}),
    "in place": ("aten::addr_", (SQUARE, ROW), {"vec2": ROW}),
}


@pytest.mark.parametrize("call", SAME_CALL.values(), ids=SAME_CALL)
def test_arguments_are_known_by_place_by_name_and_in_place(call):
    refusal = refusals.outcome(*call)
    assert refusal.error is RuntimeError
    assert refusal == refusals.outcome(*SAME_CALL["by place"])


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        pytest.param("aten::addr", (SQUARE, ROW.float(), ROW.float()), id="other arguments"),
        pytest.param("aten::add.Tensor", (SQUARE, SQUARE), id="an operator without a rule"),
    ],
)
def test_what_no_rule_is_about_is_not_refused(operator, arguments):
    assert refusals.outcome(operator, arguments) is None


@pytest.mark.parametrize(
    ("operator", "has_a_rule"), [("aten::addr_.default", True), ("aten::add_.Tensor", False)]
)
def test_arguments_are_looked_at_where_an_operator_has_a_rule(operator, has_a_rule):
    assert refusals.looks_at_arguments(operator) is has_a_rule


INT, FLOAT = torch.ones(2, dtype=torch.int32), torch.ones(2)


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize(
    ("operator", "arguments", "words"),
    [
        pytest.param("igamma", (INT, INT), "igamma_mps not implemented for Int", id="of integers"),
        pytest.param("gcd", (INT, FLOAT), "gcd_mps not implemented for Float", id="of both"),
    ],
)
def test_the_dtype_to_which_arguments_are_promoted_is_refused(operator, arguments, words):
    assert refusals.outcome(f"aten::{operator}", arguments).words == words


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        pytest.param("igamma", (INT, FLOAT), id="both make a float"),
        pytest.param("gcd", (INT, INT), id="integers"),
    ],
)
def test_a_dtype_that_is_promoted_to_one_with_a_kernel_is_not_refused(operator, arguments):
    assert refusals.outcome(f"aten::{operator}", arguments) is None


def scatter_the_largest(operator: str, into: torch.Tensor) -> refusals.Refusal | None:
    """Return what becomes of a call of an operator that reduces."""
    table, index = torch.ones(4, 4, dtype=torch.long), torch.zeros(4, 4, dtype=torch.long)
    return refusals.outcome(f"aten::{operator}.two", (into, 0, index, table, "amax"))


TABLE = torch.ones(4, 4, dtype=torch.long)


@pytest.mark.usefixtures("newest")
def test_what_works_in_place_needs_memory_in_order():
    refusal = scatter_the_largest("scatter_reduce_", TABLE.t())
    assert refusal.words.endswith("currently requires contiguous self")


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize(
    ("operator", "into"),
    [
        pytest.param("scatter_reduce_", TABLE, id="in order"),
        pytest.param("scatter_reduce", TABLE.t(), id="not in place"),
        pytest.param("scatter_reduce_", TABLE.t().float(), id="float32"),
    ],
)
def test_what_needs_no_memory_in_order_is_not_refused(operator, into):
    assert scatter_the_largest(operator, into) is None


@pytest.mark.parametrize(("rows", "is_refused"), [(2**16, False), (2**16 + 1, True)])
def test_a_product_may_be_too_large(rows, is_refused):
    left, right = torch.empty(1, rows, 1, device="meta"), torch.empty(1, 1, 2**16, device="meta")
    assert (refusals.outcome("aten::bmm", (left, right)) is not None) is is_refused


def convolve(
    image: torch.Tensor, weight: torch.Tensor, stride: list[int]
) -> refusals.Refusal | None:
    """Return what becomes of a convolution."""
    call = (image, weight, None, stride, [0], [1], False, [0], 1)
    return refusals.outcome("aten::convolution", call)


def convolve_sound(length: int, *, stride: int = 1) -> refusals.Refusal | None:
    """Return what becomes of a convolution in one dimension whose result has a length, with a stride of 1."""
    sound = torch.empty(1, 2, length + 2, device="meta")
    return convolve(sound, torch.empty(3, 2, 3, device="meta"), [stride])


@pytest.fixture
def macos(monkeypatch):
    """A function that sets the version of macOS; the simulated device is macOS 15.0.

    `is_macos_at_least` and 2**16 in `_mps_convolution_impl` of the wheel ask for it.
    """

    def set_version(version):
        monkeypatch.setattr(rules.platform, "mac_ver", lambda: (version, ("", "", ""), ""))
        monkeypatch.setattr(rules, "macos", rules.macos.__wrapped__)  # which remembers

    return set_version


def test_a_convolution_may_be_too_large_for_macos_15_0(macos):
    macos("")
    refusal = convolve_sound(65537)
    assert refusal.words == "Output channels > 65536 not supported at the MPS device. "


@pytest.mark.parametrize(
    ("version", "length", "stride"),
    [
        pytest.param("", 65536, 1, id="small enough"),
        pytest.param("", 65537, 2, id="with a stride"),
        pytest.param("15.1", 65537, 1, id="macOS 15.1"),
    ],
)
def test_other_convolutions_are_not_too_large(macos, version, length, stride):
    macos(version)
    assert convolve_sound(length, stride=stride) is None


@pytest.mark.parametrize(
    ("dimensions", "stride"),
    [
        pytest.param(3, [0], id="a stride of 0"),
        pytest.param(3, [], id="no stride"),
        pytest.param(1, [1], id="one dimension"),
    ],
)
def test_an_invalid_convolution_is_left_to_pytorch_to_refuse(dimensions, stride):
    image = torch.empty([4] * dimensions, device="meta")
    assert convolve(image, torch.empty(3, 4, 3, device="meta"), stride) is None


def ones(*size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype)


HIGH, INDEX = ones(*[1] * 17), ones(*[1] * 17, dtype=torch.long)
LOW, WHERE = HIGH[0, 0], INDEX[0, 0]


@pytest.mark.parametrize(
    ("operator", "refused", "runs", "words"),
    [
        ("argmax", (HIGH, 0), (LOW, 0), "argmax_out_mps: tensor rank > 16 is not supported"),
        ("argmin", (ones(2, dtype=torch.complex64),), (HIGH,), "argmin_out_mps: not implemented for ComplexFloat"),
        ("embedding_dense_backward", (HIGH, INDEX[0]), (HIGH[0], WHERE), "indices ndim 16 exceeds metal max_ndim 16"),
        ("unfold_backward", (HIGH[0],), (LOW,), "unfold_backward_mps :Only up to 16-dim tensors supported"),
        ("scatter_.src", (HIGH, 0, INDEX), (LOW, 0, WHERE), "scatter: tensor rank 17 exceeds Metal max of 16"),
        ("gather.out", (HIGH, 0, INDEX, False, HIGH), (LOW, 0, WHERE, False, LOW), "gather: tensor rank 17 exceeds"),
        ("index.Tensor", (HIGH, [INDEX] * 17), (HIGH, [INDEX] * 16), "Current limit allows up to 16 indices"),
        ("linalg_qr", (HIGH,), (HIGH[0],), "MPS QR: at most 16 dims"),
        ("geqrf", (HIGH,), (HIGH[0],), "MPS QR: at most 16 dims"),
        ("histc", (ones(2).bool(),), (ones(2).char(),), "\"histc_mps\" not implemented for 'Bool'"),
        ("histogram.bins_tensor", (ones(2).int(), ones(2)), (ones(2), ones(2)), "\"histogram_mps\" not"),
        ("histogram.bin_ct", (ones(2).half(), 3), (ones(2), 3), "histogram is only supported for float32"),
        ("_fused_sgd_", ([ones(2).int()],), ([ones(2).half()],), "Only float, bfloat and half are supported"),
    ],
)  # fmt: skip
def test_kernels_count_dimensions_and_know_dtypes(newest, operator, refused, runs, words):
    assert words in refusals.outcome(f"aten::{operator}", refused).words
    assert refusals.outcome(f"aten::{operator}", runs) is None


def call_torchvision(
    operator: str, dtype: torch.dtype, *, tensors: int, device: str = "meta", count: int = 1
) -> refusals.Refusal | None:
    """Return what becomes of a call of torchvision with so many tensors alike."""
    one = torch.ones(count, device=device, dtype=dtype)
    return refusals.outcome(f"torchvision::{operator}", [one] * tensors)


NO_FUNCTION = "aoti_torch_mps_get_kernel_function( shaderLibrary(), kernel.c_str(), &func)"
OF_TORCHVISION = {
    "_roi_align_backward": (2, torch.float16, "MPS does not support roi_align backward with float16 inputs."),
    "_ps_roi_pool_backward": (3, torch.float16, "MPS does not support ps_roi_pool backward with float16 inputs."),
    "roi_pool": (2, torch.bfloat16, NO_FUNCTION),
    "nms": (2, torch.int32, NO_FUNCTION),
    "deform_conv2d": (5, torch.bfloat16, NO_FUNCTION.partition(", &")[0]),
}  # fmt: skip
"""By operator: how many tensors it is given, a dtype that it refuses, and the words."""
FORWARD = [name for name in OF_TORCHVISION if not name.endswith("_backward")]


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("operator", OF_TORCHVISION)
def test_torchvision_refuses_a_dtype_wherever_it_was_built(operator):
    tensors, dtype, words = OF_TORCHVISION[operator]
    refusal = call_torchvision(operator, dtype, tensors=tensors)
    assert words in refusal.words
    built_elsewhere = refusal.words.replace("torchvision/csrc", "/elsewhere/torchvision/csrc")
    assert refusals.is_refusal(refusal.error(built_elsewhere))


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("operator", OF_TORCHVISION)
def test_torchvision_computes_float32(operator, device):
    tensors, _, _ = OF_TORCHVISION[operator]
    assert call_torchvision(operator, torch.float32, tensors=tensors, device=device) is None


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("operator", FORWARD)
def test_torchvision_computes_float16(operator):
    tensors, _, _ = OF_TORCHVISION[operator]
    assert call_torchvision(operator, torch.float16, tensors=tensors) is None


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("operator", FORWARD)
def test_torchvision_asks_for_no_kernel_where_there_is_nothing_to_compute(operator):
    tensors, dtype, _ = OF_TORCHVISION[operator]
    assert call_torchvision(operator, dtype, tensors=tensors, count=0) is None


@pytest.mark.usefixtures("newest")
def test_torchvision_wants_all_tensors_on_the_device():
    boxes, features = torch.ones(1, 5), torch.ones(1, 2, 4, 4, device="meta")
    of_boxes = refusals.outcome("torchvision::roi_align", (features, boxes)).words
    of_input = refusals.outcome("torchvision::roi_align", (boxes, features)).words
    assert of_boxes.endswith("roi_align_kernel.mm, rois must be a MPS tensor")
    assert "input must be a MPS tensor" in of_input


@pytest.fixture
def refusal(newest):
    """One with an error of its own, NotImplementedError."""
    return refusals.outcome("aten::igamma", (INT, INT))


def test_a_refusal_is_known_by_type_and_words(refusal):
    assert refusals.is_refusal(refusal.error(refusal.words))


def test_an_error_of_another_type_is_no_refusal(refusal):
    assert not refusals.is_refusal(RuntimeError(refusal.words))


def test_an_error_with_other_words_is_no_refusal(refusal):
    assert not refusals.is_refusal(refusal.error(refusal.words[:-3]))
    assert not refusals.is_refusal(RuntimeError("size mismatch"))


# ---- by the version of PyTorch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "between"),
    [
        ("2.12.1", False),
        ("2.13.0+cpu", True),
        ("2.14.0a0+git1234567", True),
        ("2.15.0", False),
        ("10.0.0", False),
    ],
)
def test_a_version_is_between_two(version, between):
    assert versions.is_between(version, "2.13", "2.14") == between
    assert versions.is_between(version, "", "")


INTS, COMPLEX = ones(2, 2, dtype=torch.int32), ones(2, 2, dtype=torch.complex64)
HISTOGRAM_OF_INTS = "\"histogram_mps\" not implemented for 'Int'"
RANDOM = "handles only integral, floating-point and boolean types"


OF_VERSIONS = {
    "softmax": ("_softmax", (INTS, 0, False), {
        "2.14.1": "softmax only supported for floating types",
        "2.15.0": "softmax not implemented on MPS for Int",
    }),
    "log_softmax": ("_log_softmax", (INTS.bool(), 0, False), {
        "2.14.1": "log_softmax for bool is not supported for MPS",
        "2.15.0": "log_softmax not implemented on MPS for Bool",
    }),
    "kthvalue of complex numbers": ("kthvalue", (COMPLEX, 1), {
        "2.12.0": "kthvalue is not implemented for complex types",
        "2.13.0": "\"kthvalue_mps\" not implemented for 'ComplexFloat'",
        "2.14.0": "kthvalue_mps not implemented for ComplexFloat",
    }),
    "kthvalue of many dimensions": ("kthvalue", (ones(2, 1, 1, 1, 1), 1, 0), {
        "2.12.0": "On-going issue on MPSGraph topk when ndims() - axis > 4, see issue #154890",
        "2.13.0": None,
    }),
    "histc": ("histc", (INTS,), {"2.11.0": HISTOGRAM_OF_INTS, "2.12.0": HISTOGRAM_OF_INTS, "2.13.0": None}),
    "histogram": ("histogram.bins_tensor", (INTS, ones(3)), {
        "2.12.0": HISTOGRAM_OF_INTS, "2.14.0": None, "2.15.0": HISTOGRAM_OF_INTS,
    }),
    "adaptive_max_pool2d": (
        "adaptive_max_pool2d", (ones(1, 1, 4, 4), (2, 8)), {"2.12.1": rules._BOTH_WAYS, "2.13.0": None},
    ),
    "index_reduce": ("index_reduce", (INTS.long(), 0, INTS[0], INTS, "amax"), {
        "2.11.0": None, "2.12.0": "index_reduce for MPS does not support torch.long dtype",
    }),
    "scatter_reduce": ("scatter_reduce_.two", (INTS.long(), 0, INTS.long(), INTS.long(), "amax"), {
        "2.12.0": "not supported for torch.int64", "2.13.0": None,
    }),
    "random": ("random_", (COMPLEX,), {"2.12.0": f"random_mps_ {RANDOM}", "2.13.0": f"random_mps {RANDOM}"}),
    "qr": ("linalg_qr", (COMPLEX,), {
        "2.11.0": None, "2.13.0": "linalg_qr: MPS currently supports float32 only", "2.14.0": None,
    }),
    "nearest sampling of a volume": ("grid_sampler_3d", (ones(1, 1, 2, 2, 2), ones(1, 2, 2, 2, 3), 1, 0, False), {
        "2.12.1": "grid_sampler_3d: Unsupported Nearest interpolation", "2.13.0": None,
    }),
    "bicubic sampling of a volume": ("grid_sampler_3d", (ones(1, 1, 2, 2, 2), ones(1, 2, 2, 2, 3), 2, 0, False), {
        "2.14.1": None, "2.15.0": "grid_sampler_3d: Unsupported Bicubic interpolation",
    }),
    "linear": (
        "linear", (COMPLEX, COMPLEX), {"2.11.0": "mps linear does not support complex types", "2.12.0": None},
    ),
}  # fmt: skip
"""A call, and the words of some versions; None where it is not refused."""
AT_A_VERSION = [
    pytest.param(f"aten::{operator}", arguments, version, words, id=f"{name}, {version}")
    for name, (operator, arguments, by_version) in OF_VERSIONS.items()
    for version, words in by_version.items()
]


@pytest.mark.parametrize(("operator", "arguments", "version", "words"), AT_A_VERSION)
def test_words_are_those_of_the_version(operator, arguments, version, words):
    refusal = refusals.outcome(operator, arguments, version=version)
    assert (refusal.words if refusal else None) == words


@pytest.mark.parametrize(("operator", "arguments", "version", "words"), AT_A_VERSION)
def test_a_refusal_of_a_version_is_known_as_one(operator, arguments, version, words):
    refusal = refusals.outcome(operator, arguments, version=version)
    assert refusal is None or refusals.is_refusal(refusal.error(words), version)


def test_a_newer_version_than_known_has_the_newest_rules():
    assert rules.for_version("3.1.0") == rules.for_version(NEWEST)
    assert detours.for_version("3.1.0") == detours.for_version(NEWEST)


def test_a_refusal_of_another_version_is_none():
    older = RuntimeError("softmax only supported for floating types")
    assert refusals.is_refusal(older, "2.14.1")
    assert not refusals.is_refusal(older, NEWEST)


OF_BOOLS = ("aten::addcmul", (INTS.bool(), INTS.bool(), INTS.bool()))


def test_a_call_that_the_installed_version_does_not_refuse_is_not_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.14.1+cpu")
    assert refusals.outcome(*OF_BOOLS) is None
    assert not refusals.looks_at_arguments("aten::addcmul")


def test_a_call_that_the_installed_version_refuses_has_its_words(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.15.0")
    assert refusals.outcome(*OF_BOOLS).words == "addcmul_mps not implemented for 'Bool'"


def words_of_nms(version: str, *, boxes: torch.Tensor, scores: torch.Tensor) -> str:
    """Return how a version of PyTorch, whose torchvision is of that time, refuses these."""
    return refusals.outcome("torchvision::nms", (boxes, scores), version=version).words


THREE_BOXES = ones(3, 4, dtype=torch.int32)
THERE, HERE = THREE_BOXES.to("meta"), THREE_BOXES


def test_torchvision_before_0_29_says_no_place():
    """Its versions up to 0.28 are of PyTorch 2.11 to 2.13, of one each."""
    of_integers = words_of_nms("2.11.0", boxes=THERE, scores=THERE)
    on_the_cpu = words_of_nms("2.11.0", boxes=THERE.float(), scores=HERE)
    assert of_integers == "Failed to create function state object for: nms_int"
    assert on_the_cpu == "scores must be a MPS tensor"


def test_torchvision_from_0_29_on_says_a_place():
    of_integers = words_of_nms("2.14.1", boxes=THERE, scores=THERE)
    on_the_cpu = words_of_nms("2.14.1", boxes=THERE.float(), scores=HERE)
    assert of_integers.startswith("aoti_torch_mps_get_kernel_function(")
    assert on_the_cpu.endswith("nms_kernel.mm, scores must be a MPS tensor")


def detour_of_qr(rows: int, version: str):
    return refusals.outcome(
        "aten::linalg_qr", (torch.empty(rows, 600, device="meta"),), version=version
    )


def test_qr_left_large_matrices_to_the_cpu():
    assert detour_of_qr(513, "2.13.0").warning in detours.warnings_of("2.13.0")


@pytest.mark.parametrize(
    ("rows", "version"),
    [
        pytest.param(512, "2.13.0", id="small enough"),
        pytest.param(513, "2.14.0", id="a newer version"),
    ],
)
def test_other_matrices_of_qr_stay_on_the_device(rows, version):
    assert detour_of_qr(rows, version) is None


@pytest.mark.parametrize(("version", "status"), [("2.13.0", "falls back"), ("2.14.0", "composite")])
def test_svd_fell_back_by_itself_before_it_had_a_kernel(monkeypatch, version, status):
    monkeypatch.setattr(versions, "find_installed", lambda: version)
    assert operators.status("aten::linalg_svd.U") == status


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0"])
def test_the_norms_of_an_embedding_fall_back_by_themselves(monkeypatch, version):
    monkeypatch.setattr(versions, "find_installed", lambda: version)
    assert operators.status("aten::embedding_renorm_") == "falls back"


def test_a_table_is_read_from_a_folder(tmp_path):
    entry = "- func: new_one(Tensor self) -> Tensor\n  dispatch:\n    CPU, MPS: new_one\n"
    (tmp_path / "native_functions.yaml").write_text(entry)
    assert operators.table(tmp_path) == {"new_one": "native"}


def test_without_a_folder_the_table_is_that_of_the_installed_pytorch():
    assert len(operators.table()) > 1000


# ---- PyTorch's own list ---------------------------------------------------------------------------------------------

of_the_followed_release = pytest.mark.skipif(
    not is_followed(), reason="differences are explained for the release that is followed"
)
PRINT_DIFFERENCES = """
import json, sys
sys.path.insert(0, "tools")
import expected_on_macs
print(json.dumps([[*key, why] for key, why in expected_on_macs.DIFFERENCES.items()]))
"""


def run_with_the_sources(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, with the simulated GPU of these sources."""
    folders = ["metalsim/src", os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=1800
    )


def rows_of_the_readme() -> set[tuple[str, str, str]]:
    """Return the entries that do not agree, of which side, and why: of the followed release."""
    readme = (ROOT / "metalsim/README.md").read_text(encoding="utf-8")
    table = readme.partition("\nThese do not agree (")[2].partition("\nThe same with PyTorch")[0]
    rows = re.findall(r"^\| `(\S+)` \| (.*?) \| (.*) \|$", table, re.MULTILINE)
    return {
        (name, "gradients" if dtypes.endswith("(gradients)") else "forward", why)
        for name, dtypes, why in rows
    }


@of_the_followed_release
def test_the_readme_has_the_reason_of_each_difference():
    done = run_with_the_sources("-c", PRINT_DIFFERENCES)
    assert done.returncode == 0, done.stderr

    assert {tuple(each) for each in json.loads(done.stdout)} == rows_of_the_readme()


@of_the_followed_release
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_simulated_device_raises_where_pytorch_s_macs_do(every):
    """`tools/expected_on_macs.py` of all of float32 and a sample of each other entry, in one process.

    Every difference has its reason. By default only every eighth name is tried.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    names = sorted({op.name for op in op_db})[::every] if every > 1 else []  # none: all
    done = run_with_the_sources("tools/expected_on_macs.py", "--only", ",".join(names))

    assert done.returncode == 0, done.stdout + done.stderr
