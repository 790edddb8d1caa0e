"""Finding the operator that is wrong: planted faults are found, shrunk and reproduced, sound models are not blamed.

Its checks run in a child with the simulated device (children.py).
"""

from __future__ import annotations

import copy
import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from metallab import device  # noqa: E402
from metallab.pytorch import blame, networks  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)


@functools.cache
def outcomes():
    return children.run(__file__, "simulated", on_simulated.checks, ENVIRONMENT)


on_simulated = children.Session(outcomes)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "utils"), "METALLAB_DEVICE": "sim"}


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x):
        return self.second(self.first(x).relu().transpose(2, 3))


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 9)

    def forward(self, x):
        y = self.layer(x).flatten()
        return torch.addcdiv(y[:64], y[1:65], y[2:66].abs() + 1)


def found(name, model, *inputs):
    """What is found with a fault planted; its program ends badly, and only with the fault."""
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"), metalsim.plant(name):
        verdict = blame.find(model, inputs, on=device.pick())
    assert "PLANTED" in verdict.device
    assert verdict.kind == "wrong kernel", verdict
    assert 0 < verdict.program.count("\n") <= 20, verdict.program
    text = "import contextlib, metalsim\nmetalsim.install_with_torch()\nimport torch\n"
    for planted in ("contextlib.nullcontext()", f"metalsim.plant({name!r})"):
        text += f"with {planted}:\n    print('runs', flush=True)\n    exec({verdict.program!r}, {{}})\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.stdout.count("runs") == 2, f"it fails without the fault: {done.stderr}"
    assert "AssertionError" in done.stderr
    return verdict


@on_simulated
def test_a_convolution_that_is_wrong_on_a_transposed_input_is_found():
    torch.manual_seed(0)
    verdict = found("conv2d, non-contiguous input", Transposed(), torch.randn(2, 3, 9, 8))
    assert verdict.culprit.operator == "aten::convolution"
    assert verdict.culprit.module.endswith("second")
    assert verdict.culprit.direction == "forward"
    assert verdict.conditions == ("input is not contiguous (a permuted view)",)
    first, second = verdict.layers
    assert first.forward < 1e-5 < 1e-2 < second.forward
    assert second.forward_cpu < 1e-5
    assert "contiguous" in verdict.advice
    assert "aten::convolution" in verdict.draw().get_label()


@on_simulated
def test_a_gradient_that_is_wrong_above_32768_elements_is_found():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 2))
    verdict = found("ReLU's gradient, above 32768 elements", model, torch.randn(128, 4))
    assert verdict.culprit.operator == "aten::threshold_backward"
    assert verdict.culprit.direction == "backward"
    assert verdict.conditions == ("32769 elements or more",), verdict
    assert "fewer elements" in str(verdict)


@on_simulated
def test_addcdiv_that_is_wrong_at_an_odd_offset_is_found():
    torch.manual_seed(0)
    verdict = found("addcdiv, odd offset", Averaged(), torch.randn(8, 8))
    assert verdict.culprit.operator == "aten::addcdiv"
    assert verdict.conditions == ("tensor1 begins at an odd offset in its storage (here 1)",)


def sound(on):
    """Sound models, smaller than pages measure them, training."""
    small = {
        "MLP": {"batch": 70},
        "CNN": {"batch": 2},
        "ResNet-18": {"batch": 2, "size": 32},
        "LSTM": {"batch": 2},
        "Transformer block": {"batch": 2, "steps": 16},
    }
    made = [make(**small.get(name, {"batch": 2})) for name, make in networks.MEASURED.items()]
    made += [networks.talk_mlp(8), networks.audio_encoder(1, 40), networks.diffusion_block(1, 8)]
    import timm
    import torchvision

    torch.manual_seed(0)
    image = torch.randn(2, 3, 32, 32)
    for name in ("mobilenet_v3_small", "shufflenet_v2_x0_5"):
        made.append(networks.Network(name, torchvision.models.get_model(name, weights=None), (image,)))
    for name in ("resnet10t", "test_vit"):
        options = {"img_size": 32} if "vit" in name else {}
        made.append(networks.Network(name, timm.create_model(name, pretrained=False, **options), (image,)))
    for network in made:
        verdict = blame.find(network.model, network.inputs, on=on)
        assert verdict.kind == "agrees", f"{network.name}: {verdict}"
        assert verdict.judged > 10, network.name
        assert all("lstm" in name or "rnn" in name for name in verdict.unjudged), f"{network.name}: {verdict}"
    assert len(made) >= 12


@on_simulated
def test_no_operator_of_a_sound_model_is_blamed_on_the_simulated_gpu():
    sound(device.pick())


def test_no_operator_of_a_sound_model_is_blamed_on_the_cpu():
    sound(device.cpu())


@on_simulated
def test_dropout_is_random_and_not_wrong():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.3), nn.Linear(64, 2))
    verdict = blame.find(model, (torch.randn(16, 8),), on=device.pick())
    assert (verdict.kind, len(verdict.random)) == ("agrees", 1), verdict
    assert "native_dropout" in verdict.random[0]
    x, kept = torch.ones(4096), torch.ones(4096, dtype=torch.bool)
    call = blame._Call(torch.ops.aten.native_dropout.default, (x, 0.3, True), {})
    assert "It keeps 1" in blame._fault_of_dropout(call, (x, kept))


def test_a_nan_has_a_birthplace_and_rounding_has_none():
    class Root(nn.Module):
        def forward(self, x):
            return (x - 1).sqrt() * 2

    x = torch.tensor([4.0, 0.5])
    verdict = blame.find(Root(), (x.requires_grad_(),), lambda y: y.sum().requires_grad_(), on=device.cpu())
    assert (verdict.kind, verdict.culprit.operator) == ("NaN", "aten::sqrt"), verdict
    assert "NaN IS BORN" in str(verdict)

    class Cancelled(nn.Module):
        def forward(self, x):
            return (x + 1e4).var(0, correction=0)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Cancelled())
    assert blame.find(model, (torch.randn(64, 4),), on=device.cpu()).kind == "agrees"


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="give a tuple"):
        blame.find(nn.Linear(2, 2), torch.ones(1, 2), on=device.cpu())
    with pytest.raises(ValueError, match="nothing to compare"):
        blame.find(nn.Identity(), (torch.ones(2, dtype=torch.int64),), on=device.cpu())


def test_the_model_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    blame.find(model, (torch.randn(8, 4),), on=device.cpu())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
