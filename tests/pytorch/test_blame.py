"""Finding the operator that is wrong: planted faults are found, shrunk and reproduced, sound models are not blamed.

Its checks run in a child with the simulated device (children.py).
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import subprocess
import sys
import warnings
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace

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
from metallab.pytorch import blame, networks  # noqa: E402
from metalsim import planting  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)


@functools.cache
def outcomes():
    return children.run(__file__, "simulated", on_simulated.checks, ENVIRONMENT)


on_simulated = children.Session(outcomes)
# one thread: more wait for each other in work so small
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "utils"), "METALLAB_DEVICE": "sim", "OMP_NUM_THREADS": "1"}


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


def repeated(y):
    """Three calls of tanh of one kind, one of another size, one of another layout."""
    return y.tanh().tanh().tanh(), y[0].tanh(), y.mT.tanh()


def blamed(name, model, *inputs, **options):
    """What is wrong with a fault planted, on a device that was picked before."""
    torch.manual_seed(0)
    lab = device.pick()
    with warnings.catch_warnings(action="ignore"), metalsim.plant(name):
        verdict = blame.find(model, inputs, on=lab, **options)
    assert "PLANTED" in verdict.device
    assert "PLANTED" not in lab.label
    assert verdict.kind == "wrong kernel", verdict
    assert 0 < verdict.program.count("\n") <= 20, verdict.program
    PROGRAMS[name] = verdict.program
    return verdict


PROGRAMS = {}
"""Those of the planted faults that were found, by fault."""


@on_simulated
def test_a_convolution_wrong_on_a_transposed_input_is_found():
    torch.manual_seed(0)
    verdict = blamed("conv2d, non-contiguous input", Turned(), torch.randn(2, 3, 9, 8))
    found = verdict.culprit
    assert (found.operator, found.module, found.direction) == ("aten::convolution", "second", "forward")
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
    verdict = blamed("ReLU's gradient, above 32768 elements", model, torch.randn(128, 4))
    assert (verdict.culprit.operator, verdict.culprit.direction) == ("aten::threshold_backward", "backward")
    assert verdict.conditions == ("32769 elements or more",), verdict


@on_simulated
def test_a_gradient_that_is_wrong_beside_one_of_zeros_is_found():
    """That by BatchNorm2d's bias, whose sum is 0 but for rounding."""
    x = torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last)
    verdict = blamed("BatchNorm2d's gradient, channels last", nn.BatchNorm2d(3), x)
    assert (verdict.culprit.operator, verdict.culprit.direction) == ("aten::native_batch_norm_backward", "backward")
    assert verdict.conditions == ("input is not contiguous (a permuted view)",)


@on_simulated
def test_addcdiv_that_is_wrong_at_an_odd_offset_is_found():
    torch.manual_seed(0)
    verdict = blamed("addcdiv, odd offset", After(averaged, 9), torch.randn(8, 8))
    assert verdict.culprit.operator == "aten::addcdiv"
    assert verdict.conditions == ("tensor1 begins at an odd offset in its storage (here 1)",)
    assert "tensor1.clone()" in verdict.advice


@on_simulated
def test_a_step_that_leaves_a_transposed_weight_is_found():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    name = "addcdiv_, non-contiguous result"
    with warnings.catch_warnings(action="ignore"), metalsim.plant(name):
        assert blame.find(model, (x,), optimizer=torch.optim.AdamW, on=device.pick()).kind == "agrees"
    model[0].weight = nn.Parameter(torch.randn(8, 16).t())
    verdict = blamed(name, model, x, optimizer=torch.optim.AdamW)
    assert (verdict.culprit.operator, verdict.culprit.direction) == ("aten::addcdiv_", "step")
    assert verdict.conditions == ("self is not contiguous (a permuted view)",)
    assert "weight.data.contiguous()" in verdict.advice


def off_by_one(when):
    """A wrong kernel of one tensor, and no other tensors."""

    def wrong(right, x, *arguments, **keywords):
        result = right(x, *arguments, **keywords)
        return result + 1 if when(x) else result

    return wrong


SHRUNK = {
    "every gelu": ("gelu", lambda x: True, ()),
    "every tanh": ("tanh", lambda x: True, ()),
    "every neg": ("neg", lambda x: True, ()),
    "gelu in bfloat16": ("gelu", lambda x: x.dtype == torch.bfloat16, ("not in float32",)),
    "sum of nothing": ("sum.dim_IntList", lambda x: not x.numel(), ("a tensor without elements",)),
    "sum of at most nine": ("sum.dim_IntList", lambda x: x.numel() < 10, ()),
    "tanh of an expanded view": ("tanh", lambda x: 0 in x.stride(), ("self is not contiguous (an expanded view)",)),
    "tanh of a view with gaps": (
        "tanh", lambda x: x.stride()[-1] == 2 and x.numel() > 1, ("self is not contiguous (a view with gaps)",),
    ),
    "neg of what begins late": ("neg", lambda x: x.storage_offset() > 0, ("self begins at an offset in its storage",)),
}  # fmt: skip
"""Wrong kernels of one operator each: when it is wrong, and what that takes, without what it says in brackets."""
ADVICE = {(): "CPU", ("not in float32",): "float32", ("a tensor without elements",): "nothing"}
"""A word of each that is not about a layout."""


@on_simulated
def test_what_it_takes_is_all_that_it_takes():
    torch.manual_seed(0)
    gelu = nn.Sequential(nn.Linear(8, 16), nn.GELU()).bfloat16()
    asked = {
        "gelu": (gelu, torch.randn(5, 8).bfloat16()),
        "sum.dim_IntList": (After(lambda y: y.sum(0)), torch.randn(0, 8)),
        "tanh": (After(expanded), torch.randn(5, 8)),
        "neg": (After(expanded), torch.randn(5, 8)),
    }
    for name, (operator, when, conditions) in SHRUNK.items():
        metalsim.FAULTS[name] = planting.Fault(name, "", (operator,), off_by_one(when))
        verdict = blamed(name, *asked[operator])
        PROGRAMS.pop(name)
        assert verdict.culprit.operator == f"aten::{operator.partition('.')[0]}", name
        got = tuple(condition.removesuffix(" (here 1)") for condition in verdict.conditions)
        assert got == conditions, f"{name}: {verdict}"
        assert ADVICE.get(conditions, "") in verdict.advice
        assert "bfloat16" not in verdict.program or "bfloat16" in name, "float32 is simpler"
        assert "rand(0" not in verdict.program or "nothing" in name, "with elements is simpler"


@on_simulated
def test_each_program_fails_only_where_its_fault_is_planted():
    """In another process, which knows nothing of the models."""
    assert len(PROGRAMS) == 5, "the planted faults were not found"
    text = "import warnings, metalsim\nmetalsim.install_with_torch()\nimport torch\nwarnings.simplefilter('ignore')\n"
    for name, program in PROGRAMS.items():
        text += f"exec({program!r}, {{}})\nwith metalsim.plant({name!r}):\n    try:\n        exec({program!r}, {{}})\n"
        text += f"    except AssertionError as error:\n        print({name!r}, '|', 'not close' in str(error))\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [f"{name} | True" for name in PROGRAMS], done.stderr


def sound(on):
    """Sound models, smaller than pages measure them, training. Thirty more: tests/benchmarks/sound_models.py."""
    small = {"LSTM": {"batch": 2}, "Transformer block": {"batch": 2, "steps": 16}}
    made = [networks.MEASURED[name](**options) for name, options in small.items()]
    made += [networks.talk_mlp(8), networks.diffusion_block(1, 8)]
    import timm
    import torchvision
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    text = LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, vocab_size=99)
    made.append(networks.Network("Llama", LlamaModel(text), (torch.randint(0, 99, (2, 12)),)))
    image = torch.randn(2, 3, 32, 32)
    made.append(networks.Network("ShuffleNet", torchvision.models.shufflenet_v2_x0_5(weights=None), (image,)))
    for name, options in (("resnet10t", {}), ("test_vit", {"img_size": 32})):
        made.append(networks.Network(name, timm.create_model(name, **options), (image,)))
    half = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(3600, 3))
    for dtype in (torch.float16, torch.bfloat16):
        made.append(networks.Network(str(dtype), copy.deepcopy(half).to(dtype), (image.to(dtype),)))
    for network in made:
        # AdamW's epsilon is 0 in float16, and 0 / 0 is NaN: no kernel's fault, but no agreement. It takes long, too
        small = sum(p.numel() for p in network.model.parameters()) < 1e5 and "float16" not in network.name
        optimizer = torch.optim.AdamW if small else torch.optim.SGD
        verdict = blame.find(network.model, network.inputs, optimizer=optimizer, on=on)
        assert verdict.kind == "agrees", f"{network.name}: {verdict}"
        assert verdict.judged > 10, network.name
        assert all("lstm" in name or "rnn" in name for name in verdict.unjudged), f"{network.name}: {verdict}"
        assert len(verdict.layers) > 1 or "layers" in verdict.unjudged, network.name
    assert len(made) >= 10


@on_simulated
def test_no_sound_model_is_blamed_on_the_simulated_gpu():
    sound(device.pick())


@on_simulated
def test_no_sound_model_is_blamed_on_the_cpu():
    """In the same process, which has imported whatever makes the models."""
    with device.cpu(1).active():
        sound(device.cpu(1))


@on_simulated
def test_dropout_is_random_and_not_wrong():
    torch.manual_seed(0)
    drop = nn.Dropout(0.3)
    model = nn.Sequential(nn.Linear(8, 64), drop, drop, nn.Linear(64, 2))
    verdict = blame.find(model, (torch.randn(16, 8),), on=device.pick())
    assert (verdict.kind, len(verdict.random)) == ("agrees", 1), verdict
    assert "native_dropout" in verdict.random[0]
    x, kept = torch.ones(4096), torch.ones(4096, dtype=torch.bool)
    call = blame._Call(torch.ops.aten.native_dropout.default, (x, 0.3, True), {})
    assert blame._fault_of_dropout(call, (x, kept))


def test_one_call_of_each_kind_is_compared_once():
    choice, x, counts = blame.Choice(), torch.randn(5, 8), []
    for run, each in (("a", "kind"), ("a", "kind"), ("b", "kind"), ("a", "call"), ("b", "call")):
        given = choice.begin(run, each)
        verdict = blame.find(After(repeated), (x,), added, on=device.cpu(), choice=given, layers=False)
        calls = len(choice.met[run])
        assert (verdict.kind, verdict.judged + verdict.passed_over, verdict.skipped) == ("agrees", calls, 0)
        assert verdict.layers == ()
        assert not choice.left(run, each)
        counts.append(verdict.judged)
    tanh = [keys for keys in choice.met["a"] if "tanh.default" in keys["layout"]]
    assert [len({keys[each] for keys in tanh}) for each in ("layout", "kind", "call")] == [2, 3, 5]
    kinds, again, other, rest, all_of_other = counts
    assert (again, other) == (0, 0)
    assert kinds < calls == kinds + rest == all_of_other
    assert choice.count("call") == (2 * calls, 2 * calls)
    assert choice.count("kind") == (kinds, kinds)


def added(outputs):
    return outputs[0].sum()


def test_after_half_of_the_time_new_layouts_alone_are_compared(monkeypatch):
    compared = {}
    for seconds in (0, 10, 1000):  # the clock goes on by one when it is read, which is twice where a call is compared
        clock = itertools.count()
        monkeypatch.setattr(blame, "time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        choice = blame.Choice("kind")
        given = (torch.randn(5, 8),)
        verdict = blame.find(After(repeated), given, added, on=device.cpu(), seconds=seconds, choice=choice)
        assert verdict.judged + verdict.passed_over + verdict.skipped == len(choice.met[""])
        assert verdict.judged == choice.count("kind")[0]
        tanh = [keys for keys in choice.met[""] if "tanh.default" in keys["layout"]]
        compared[seconds] = [keys["kind"] in choice.compared for keys in (tanh[0], tanh[3], tanh[4])]
    assert compared[0] == [False, False, False]
    assert compared[10] == [True, False, True]
    assert compared[1000] == [True, True, True]


@on_simulated
def test_float64_is_refused_where_the_device_has_none():
    with pytest.raises(ValueError, match="float64"):
        blame.find(nn.Linear(2, 2).double(), (torch.ones(1, 2).double(),), on=device.pick())


def test_arguments_may_have_names_and_dtypes_may_be_mixed():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8).bfloat16(), nn.LayerNorm(8)

        def forward(self, x, *, scale):
            return self.norm(self.layer(x).to(self.norm.weight.dtype)) * scale

    given = UserDict(x=torch.randn(4, 8).bfloat16(), scale=torch.tensor(2.0))  # as a tokenizer returns
    verdict = blame.find(Mixed(), given, on=device.cpu())
    assert verdict.kind == "agrees", verdict
    assert [layer.module for layer in verdict.layers] == ["layer", "norm"]
    assert all(layer.forward == layer.forward_cpu < 0.1 for layer in verdict.layers)


def test_operators_are_compared_where_the_model_has_no_float64():
    verdict = blame.find(After(lambda y: y @ torch.ones(4, 2)), (torch.randn(5, 8),), on=device.cpu())
    assert (verdict.kind, verdict.layers, "layers" in verdict.unjudged) == ("agrees", (), True)
    assert verdict.judged > 2


def test_a_nan_has_a_birthplace_and_rounding_has_none():
    root = Function(lambda x: (x - 1).sqrt() * 2)
    for x, loss, direction in (
        (torch.tensor([4.0, 0.5]), torch.sum, "forward"),
        (torch.ones(2).requires_grad_(), lambda y: 0 * y.sum(), "backward"),
    ):
        verdict = blame.find(root, (x,), loss, on=device.cpu())
        assert (verdict.kind, verdict.culprit.direction) == ("NaN", direction), verdict
        assert verdict.culprit.operator == "aten::sqrt" or direction == "backward"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Function(lambda x: (x + 1e4).var(0, correction=0)))
    assert blame.find(model, (torch.randn(64, 4),), on=device.cpu()).kind == "agrees"


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="tuple"):
        blame.find(nn.Linear(2, 2), torch.ones(1, 2), on=device.cpu())
    with pytest.raises(ValueError, match="nothing"):
        blame.find(nn.Identity(), (torch.ones(2, dtype=torch.int64),), on=device.cpu())


def test_the_model_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    blame.find(model, (torch.randn(8, 4),), on=device.cpu())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))


@pytest.mark.parametrize("tensor", [torch.arange(8.0)[1:], torch.rand(3, 4, 5).mT[1:], torch.zeros(3, 0)[1:]])
def test_an_input_is_moved_with_its_offset(tensor):
    """To another device, be it one without numbers."""
    there = blame._moved(tensor, "meta")
    wanted = (tensor.shape, tensor.stride(), tensor.storage_offset() if tensor.numel() else 0)
    assert (there.shape, there.stride(), there.storage_offset()) == wanted
    assert blame._moved(tensor, "cpu").data_ptr() == tensor.data_ptr()
