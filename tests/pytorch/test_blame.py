"""Finding the operator that is wrong: planted faults are found, shrunk and reproduced, sound models are not blamed.

Its checks run in a child with the simulated device (support/children.py).
"""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
import warnings
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import pytest  # noqa: E402
import torch  # noqa: E402
from doctor_models import Function, Turned  # noqa: E402
from torch import nn  # noqa: E402

from metallab import device  # noqa: E402
from metallab.device import PyTorchDevice  # noqa: E402
from metallab.pytorch import agreement, blame, networks, wrong_calls  # noqa: E402
from metalsim import planting  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)


@functools.cache
def outcomes():
    return children.run(__file__, "simulated", on_simulated.checks, ENVIRONMENT)


on_simulated = children.Session(outcomes)
# one thread: more wait for each other in work so small
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT / "utils"),
    "METALLAB_DEVICE": "sim",
    "OMP_NUM_THREADS": "1",
}


class After(nn.Module):
    """A function of a layer's outputs."""

    def __init__(self, function, width=4):
        super().__init__()
        self.layer, self.function = nn.Linear(8, width), function

    def forward(self, x):
        return self.function(self.layer(x))


def averaged(y):
    y = y.flatten()
    return torch.addcdiv(y[:64], y[1:65], y[2:66].abs() + 1)


def expanded(y):
    return y[:, :1].expand(-1, 4).tanh(), y[:, ::2].tanh(), y[:, 1:].neg()


def blamed(name, model, *inputs, **options):
    """What is wrong with a fault planted, on a device that was picked before."""
    torch.manual_seed(0)
    lab = device.pick()
    with warnings.catch_warnings(action="ignore"), metalsim.plant(name):
        verdict = blame.find(model, inputs, on=lab, **options)
    assert "PLANTED" in verdict.device
    assert "PLANTED" not in lab.label
    assert verdict.kind == "wrong kernel", verdict
    return verdict


def shown(name, *arguments, **options):
    """As `blamed`, with a program that shows the fault."""
    verdict = blamed(name, *arguments, **options)
    assert 0 < verdict.program.count("\n") <= 20, verdict.program
    PROGRAMS[name] = verdict.program
    return verdict


PROGRAMS = {}
"""Those of the planted faults that were found, by fault."""


@on_simulated
def test_a_convolution_wrong_on_a_transposed_input_is_found():
    torch.manual_seed(0)
    verdict = shown("conv2d, non-contiguous input", Turned(), torch.randn(2, 3, 9, 8))
    found = verdict.culprit
    assert (found.operator, found.module, found.direction) == (
        "aten::convolution",
        "second",
        "forward",
    )
    assert verdict.conditions == ("input is not contiguous (a permuted view)",)
    first, second = verdict.layers
    assert first.forward < 1e-5 < 1e-2 < second.forward
    assert second.forward_cpu < 1e-5
    assert "input.contiguous()" in verdict.advice
    assert "stride=[1, 1], padding=[0, 0]" in verdict.program
    for text in (str(verdict), verdict.draw().get_label(), verdict._repr_html_()):
        assert "aten::convolution" in text


@on_simulated
def test_a_gradient_that_is_wrong_above_32768_elements_is_found():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 2))
    verdict = shown("ReLU's gradient, above 32768 elements", model, torch.randn(128, 4))
    assert (verdict.culprit.operator, verdict.culprit.direction) == (
        "aten::threshold_backward",
        "backward",
    )
    assert verdict.conditions == ("32769 elements or more",), verdict


@on_simulated
def test_a_gradient_that_is_wrong_beside_one_of_zeros_is_found():
    """That by BatchNorm2d's bias, whose sum is 0 but for rounding."""
    x = torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last)
    verdict = shown("BatchNorm2d's gradient, channels last", nn.BatchNorm2d(3), x)
    assert (verdict.culprit.operator, verdict.culprit.direction) == (
        "aten::native_batch_norm_backward",
        "backward",
    )
    assert verdict.conditions == ("input is not contiguous (a permuted view)",)


@on_simulated
def test_addcdiv_that_is_wrong_at_an_odd_offset_is_found():
    verdict = shown("addcdiv, odd offset", After(averaged, 9), torch.randn(8, 8))
    assert verdict.conditions == ("tensor1 begins at an odd offset in its storage",)
    assert "tensor1.clone()" in verdict.advice


@on_simulated
def test_a_step_that_leaves_a_transposed_weight_is_found():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].weight = nn.Parameter(torch.randn(8, 16).t())
    verdict = shown(
        "addcdiv_, non-contiguous result", model, torch.randn(5, 8), optimizer=torch.optim.AdamW
    )
    assert (verdict.culprit.operator, verdict.culprit.direction) == ("aten::addcdiv_", "step")
    assert verdict.conditions == ("self is not contiguous (a permuted view)",)
    assert "weight.data.contiguous()" in verdict.advice


@on_simulated
def test_each_program_fails_only_where_its_fault_is_planted():
    """In another process, which knows nothing of the models."""
    assert len(PROGRAMS) == 5, "the planted faults were not found"
    text = "import warnings, metalsim\nmetalsim.install_with_torch()\nimport torch\nwarnings.simplefilter('ignore')\n"
    for name, program in PROGRAMS.items():
        text += f"exec({program!r}, {{}})\nwith metalsim.plant({name!r}):\n    try:\n        exec({program!r}, {{}})\n"
        text += f"    except AssertionError as error:\n        print({name!r}, '|', 'not close' in str(error))\n"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=1800
    )
    assert done.stdout.splitlines() == [f"{name} | True" for name in PROGRAMS], done.stderr


def planted(operator, wrong, model, *inputs, **options):
    """What is wrong with one kernel replaced: ``wrong`` is called with the right one and its arguments."""
    metalsim.FAULTS["mine"] = planting.Fault("mine", "", (operator,), wrong)
    verdict = blamed("mine", model, *inputs, layers=False, **options)
    assert verdict.culprit.operator == f"aten::{operator.partition('.')[0]}", verdict
    return verdict


def off_by_one(when):
    """A wrong kernel of one tensor, and no other tensors."""
    return lambda right, x, *more, **named: right(x, *more, **named) + bool(when(x))


SHRUNK = {
    "every one": ("gelu", lambda x: True, ()),
    "bfloat16": ("gelu", lambda x: x.dtype == torch.bfloat16, ("not in float32",)),
    "nothing": ("sum.dim_IntList", lambda x: not x.numel(), ("a tensor without elements",)),
    "at most nine": ("sum.dim_IntList", lambda x: x.numel() < 10, ()),
    "expanded": ("tanh", lambda x: 0 in x.stride(), ("self is not contiguous (an expanded view)",)),
    "gaps": (
        "tanh", lambda x: x.stride()[-1] == 2 and x.numel() > 1, ("self is not contiguous (a view with gaps)",),
    ),
    "late": ("neg", lambda x: x.storage_offset() > 0, ("self begins at an offset in its storage",)),
    "elements": ("cos", lambda x: x.numel() >= 1030, ("1030 elements or more",)),
    "rows": ("cos", lambda x: x.shape[0] >= 1024, ("self.shape[0] of 1024 or more",)),
    "values": ("cos", lambda x: x.max() > 4.2, ()),
    "values in bfloat16": ("gelu", lambda x: x.dtype == torch.bfloat16 and x.max() > 2.5, ()),
}  # fmt: skip
"""Wrong kernels of one operator each: when it is wrong, and what may be claimed that it needs."""
ADVICE = {(): "CPU", ("not in float32",): "float32", ("a tensor without elements",): "nothing"}


@on_simulated
def test_conditions_are_claimed_if_seen_on_both_sides():
    gelu = nn.Sequential(nn.Linear(8, 16), nn.GELU()).bfloat16()
    models = {
        "gelu": (gelu, 9 * torch.randn(64, 8).bfloat16()),
        "sum.dim_IntList": (After(lambda y: y.sum(0)), torch.randn(0, 8)),
        "tanh": (After(expanded), torch.randn(5, 8)),
        "neg": (After(expanded), torch.randn(5, 8)),
        "cos": (After(torch.cos), 9 * torch.randn(1500, 8)),
    }
    for name, (operator, when, conditions) in SHRUNK.items():
        verdict = planted(operator, off_by_one(when), *models[operator])
        assert verdict.conditions == conditions, f"{name}: {verdict}"
        assert ADVICE.get(conditions, "") in verdict.advice
        assert "bfloat16" not in verdict.program or "bfloat16" in name, "float32 is simpler"


# ---- what a comparison of values with a fixed tolerance does not see ------------------------------------------------


@on_simulated
def test_small_gradients_are_judged_by_their_size():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 64)).bfloat16()
    x = torch.randn(16, 8).bfloat16()
    planted(
        "threshold_backward",
        lambda right, *a: 0 * right(*a),
        model,
        x,
        loss=lambda y: 1e-6 * y.sum(),
    )
    planted(
        "tanh_backward",
        lambda right, *a: 2 * right(*a),
        After(torch.tanh),
        x.float(),
        loss=lambda y: 1e-9 * y.sum(),
    )


@on_simulated
def test_one_overflow_explains_no_other_error():
    scale = torch.tensor([6e4, 1.0, 1.0, 1.0], dtype=torch.float16)
    model = After(lambda y: y * scale.to(y.device)).half()
    verdict = planted(
        "mul.Tensor", lambda right, *a: right(*a) + 5, model, 10 * torch.randn(16, 8).half()
    )
    assert verdict.culprit.direction == "forward"
    planted(
        "tanh",
        lambda right, x: right(x) + torch.inf * (x > 1),
        After(torch.tanh),
        9 * torch.randn(16, 8),
    )
    for wrong in (torch.nan, -torch.inf):  # the CPU has inf there
        other = lambda right, x, wrong=wrong: right(x).masked_fill(x > 90, wrong)
        planted(
            "exp", other, After(lambda y: torch.exp(50 * y).clamp(0, 9)), 9 * torch.randn(16, 8)
        )


@on_simulated
def test_running_statistics_are_compared():
    def wrong(right, x, w, b, mean, var, *more):
        return right(x, w, b, mean.clone(), var.clone(), *more)

    verdict = planted("native_batch_norm", wrong, nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4))
    assert "running_mean" in verdict.culprit.difference


@on_simulated
def test_positions_are_compared_by_the_values_that_they_point_at():
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2))
    other = lambda right, *a, **k: (lambda values, at: (values, at.flip(-1)))(*right(*a, **k))
    planted("max_pool2d_with_indices", other, pooled, torch.randn(2, 3, 10, 10))
    planted("topk", other, After(lambda y: y.topk(3).values), torch.randn(16, 8))
    tied = lambda right, x, *a, **named: (lambda values, at: (values, 7 - at))(
        *right(x.flip(1), *a, **named)
    )
    model = After(lambda y: y.gather(1, y.sign().sort(stable=True, dim=1).indices), 8)
    planted("sort.stable", tied, model, torch.randn(16, 8))
    planted(
        "argmax",
        lambda right, *a: 3 - right(*a),
        After(lambda y: y + y.argmax(1)[:, None]),
        torch.randn(16, 8),
    )
    tied = wrong_calls.Call(torch.ops.aten.topk.default, (torch.ones(5), 2), {})
    for at, wrong in (([4, 1], False), ([4, 9], True), ([4, 4], True)):
        compared = agreement.Comparison.of(tied, tied, [torch.ones(2), torch.tensor(at)])
        assert bool(compared.fault()) == wrong


@on_simulated
def test_memory_that_is_not_to_be_written_is_compared():
    def zeroing(right, x):
        y = right(x)
        x.zero_()
        return y

    def beyond(right, x, *more, **named):
        right(x, *more, **named)
        x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(9)
        return x

    model, x = After(torch.tanh), torch.randn(16, 8)
    assert "self" in planted("tanh", zeroing, model, x).culprit.difference
    assert (
        "self"
        in planted(
            "add_.Tensor", beyond, After(lambda y: (y[2:4].add_(1.0), y)[1]), x
        ).culprit.difference
    )


@on_simulated
def test_a_result_of_another_dtype_is_wrong():
    verdict = planted(
        "tanh", lambda right, x: right(x).bfloat16(), After(torch.tanh), torch.randn(16, 8)
    )
    assert "bfloat16" in verdict.culprit.difference
    planted(
        "gt.Scalar",
        lambda right, *a: right(*a).byte(),
        After(lambda y: y * (y > 0)),
        torch.randn(16, 8),
    )
    planted(
        "gelu",
        lambda right, *a, **b: right(*a, **b).float(),
        After(nn.GELU()).half(),
        torch.randn(16, 8).half(),
    )


@on_simulated
def test_a_number_is_compared():
    model = After(lambda y: y * y.max().item())
    assert planted(
        "_local_scalar_dense", lambda right, x: 2 * right(x), model, torch.randn(16, 8)
    ).program


@on_simulated
def test_a_wrong_optimizer_of_lists_is_shown_by_one_of_each():
    def wrong(right, weights, *more, **named):
        right(weights, *more, **named)
        weights[0].add_(1)

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    fused = functools.partial(torch.optim.AdamW, fused=True)
    verdict = planted("_fused_adamw_", wrong, model, torch.randn(16, 8), optimizer=fused)
    assert verdict.culprit.direction == "step"
    assert 0 < verdict.program.count("\n") <= 20, verdict.program


# ---- what is not wrong ----------------------------------------------------------------------------------------------


@on_simulated
def test_no_sound_model_is_blamed():
    """Smaller than pages measure them, training."""
    on = device.pick()
    torch.manual_seed(0)
    block = networks.transformer(batch=2, steps=16)
    made = [networks.lstm(batch=2), block, networks.talk_mlp(8)]
    half = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 3)
    )
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        image = torch.randn(2, 3, 32, 32).to(dtype)
        made.append(networks.Network(str(dtype), copy.deepcopy(half).to(dtype), (image,)))
    for network in made:
        # AdamW's epsilon is 0 in float16, and 0 / 0 is NaN: no kernel's fault, but no agreement
        optimizer = torch.optim.AdamW if network.name == "torch.float32" else torch.optim.SGD
        verdict = blame.find(network.model, network.inputs, optimizer=optimizer, on=on)
        assert verdict.kind == "agrees", f"{network.name}: {verdict}"
        assert verdict.judged > 10, network.name
        assert all("lstm" in name or "rnn" in name for name in verdict.unjudged), (
            f"{network.name}: {verdict}"
        )
        assert len(verdict.layers) > 1 or "layers" in verdict.unjudged, network.name


@on_simulated
def test_another_order_of_adding_is_not_blamed():
    def reversed_sum(right, x, dims, *more, **named):
        return right(x.flip(dims), dims, *more, **named)

    def reversed_batch(right, gradient, x, *more):
        first, *others = right(gradient.flip(0), x.flip(0), *more)
        return first.flip(0), *others

    metalsim.FAULTS["sum"] = planting.Fault("sum", "", ("sum.dim_IntList",), reversed_sum)
    metalsim.FAULTS["batch"] = planting.Fault(
        "batch", "", ("native_batch_norm_backward",), reversed_batch
    )
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Function(lambda x: x.sum((2, 3))), nn.LayerNorm(8)
    )
    for dtype in (torch.float32, torch.bfloat16):
        with warnings.catch_warnings(action="ignore"), metalsim.plant("sum", "batch"):
            verdict = blame.find(
                model.to(dtype), (torch.randn(4, 3, 9, 9).to(dtype),), on=device.pick()
            )
        assert verdict.kind == "agrees", verdict


@on_simulated
def test_dropout_is_random_and_not_wrong():
    torch.manual_seed(0)
    drop = nn.Dropout(0.3)
    model = nn.Sequential(nn.Linear(8, 64), drop, drop, nn.Linear(64, 2))
    verdict = blame.find(model, (torch.randn(16, 8),), on=device.pick())
    assert (verdict.kind, len(verdict.random)) == ("agrees", 1), verdict
    assert "native_dropout" in verdict.random[0]
    planted(
        "native_dropout",
        lambda right, x, *more: (x, torch.ones_like(x, dtype=torch.bool)),
        model,
        torch.randn(99, 8),
    )


def test_rounding_is_no_fault_where_sums_cancel():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Function(lambda x: (x + 1e4).var(0, correction=0)))
    assert blame.find(model, (torch.randn(64, 4),), on=device.cpu()).kind == "agrees"
    x = torch.randn(1000)
    call = wrong_calls.Call(torch.ops.aten.sum.default, (torch.cat([x, -x.flip(0)]),), {})
    for got, wrong in ((2e-6, False), (2e-3, True)):  # another order of adding, and no order
        assert bool(agreement.Comparison.of(call, call, [torch.tensor(got)]).fault()) == wrong


def test_what_is_not_compared_for_time_is_counted():
    verdict = blame.find(After(torch.tanh), (torch.randn(5, 8),), on=device.cpu(), seconds=-1)
    assert (verdict.kind, verdict.judged, verdict.skipped > 5) == ("agrees", 0, True)


@dataclass
class Batch:
    x: torch.Tensor


class Unpacked(nn.Linear):
    def forward(self, batch):
        return super().forward(batch.x)


def test_unusual_models_inputs_and_optimizers_are_compared():
    x = torch.randn(5, 8)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    for model, given, optimizer in (
        (Unpacked(8, 8), Batch(x), None),
        (normed, x, functools.partial(torch.optim.LBFGS, max_iter=1)),
        (nn.Linear(8, 8), torch.randn(0, 8), None),
    ):
        assert blame.find(model, (given,), optimizer=optimizer, on=device.cpu()).kind == "agrees"


COMPLEX = torch.complex(torch.randn(4, 4), torch.randn(4, 4))
SPARSE = torch.eye(5).to_sparse()


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.fft.irfft(torch.fft.rfft(y)),
        lambda y: y * torch.mm(COMPLEX, COMPLEX.mH).real.sum(),
        lambda y: torch.sparse.mm(SPARSE, y),
    ],
)
def test_complex_and_sparse_tensors_are_not_blamed(function):
    assert blame.find(After(function), (torch.randn(5, 8),), on=device.cpu()).kind == "agrees"


def test_arguments_may_have_names_and_dtypes_may_be_mixed():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8)

        def forward(self, x, *, scale):
            return self.norm(self.layer(x).to(self.norm.weight.dtype)) * scale

    given = UserDict(
        x=torch.randn(4, 8).bfloat16(), scale=torch.tensor(2.0)
    )  # as a tokenizer returns
    verdict = blame.find(Mixed(), given, on=device.cpu())
    assert verdict.kind == "agrees", verdict
    assert [layer.module for layer in verdict.layers] == ["layer", "norm"]
    assert all(layer.forward == layer.forward_cpu < 0.1 for layer in verdict.layers)


def test_operators_are_compared_where_the_model_has_no_float64():
    verdict = blame.find(
        After(lambda y: y @ torch.ones(4, 2)), (torch.randn(5, 8),), on=device.cpu()
    )
    assert (verdict.kind, verdict.layers, "layers" in verdict.unjudged) == ("agrees", (), True)
    assert verdict.judged > 2


def test_a_nan_has_a_birthplace():
    root = Function(lambda x: (x - 1).sqrt() * 2)
    for x, loss, direction in (
        (torch.tensor([4.0, 0.5]), torch.sum, "forward"),
        (torch.ones(2).requires_grad_(), lambda y: 0 * y.sum(), "backward"),
    ):
        verdict = blame.find(root, (x,), loss, on=device.cpu())
        assert (verdict.kind, verdict.culprit.direction) == ("NaN", direction), verdict
        assert verdict.culprit.operator == "aten::sqrt" or direction == "backward"


def test_a_nan_is_followed_to_its_first_infinity():
    model = nn.Sequential(After(lambda y: y * 1e38 * 1e38), nn.Linear(4, 4))
    verdict = blame.find(model, (torch.randn(5, 8),), on=device.cpu())
    assert (verdict.kind, verdict.culprit.operator) == ("NaN", "aten::addmm")
    assert "aten::mul in 0" in verdict.headline


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="tuple"):
        blame.find(nn.Linear(2, 2), torch.ones(1, 2), on=device.cpu())
    with pytest.raises(ValueError, match="nothing"):
        blame.find(nn.Identity(), (torch.ones(2, dtype=torch.int64),), on=device.cpu())
    with pytest.raises(ValueError, match="float64"):
        blame.find(
            nn.Linear(2, 2).double(),
            (torch.ones(1, 2).double(),),
            on=PyTorchDevice("mps", "Apple M2 GPU"),
        )


def test_the_model_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    blame.find(model, (torch.randn(8, 4),), on=device.cpu())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "tensor", [torch.arange(8.0)[1:], torch.rand(3, 4, 5).mT[1:], torch.zeros(3, 0)[1:]]
)
def test_an_input_is_moved_with_its_offset(tensor):
    """To another device, be it one without numbers."""
    there = blame._moved(tensor, "meta")
    wanted = (tensor.shape, tensor.stride(), tensor.storage_offset() if tensor.numel() else 0)
    assert (there.shape, there.stride(), there.storage_offset()) == wanted
    assert blame._moved(tensor, "cpu").data_ptr() == tensor.data_ptr()


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
