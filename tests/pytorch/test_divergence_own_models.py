"""Finding the wrong operator of what people bring: their mistakes and the tool's own are not the device's.

Its checks run in a child with the simulated device (support/children.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from metallab import device  # noqa: E402
from metallab.pytorch import divergence  # noqa: E402
from metallab.pytorch.divergence import layers  # noqa: E402

if sys.platform == "darwin" and not CHILD:
    pytest.skip("a Mac has no simulated GPU", allow_module_level=True)


# one thread: more wait for each other in work so small
on_simulated = children.open_session(__file__, OMP_NUM_THREADS="1")


# ---- what raises, and is not the device's ----------------------------------------------------------------------------


class Force(nn.Module):
    """The gradient of an energy by the positions, as in a network of atoms."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, x):
        x.requires_grad_()
        return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


@on_simulated
def test_a_model_that_differentiates_itself_is_compared():
    report = divergence.find(Force(), (torch.randn(5, 3),), on=device.pick())

    assert report.raised is None
    assert report.kind == "agrees"


@on_simulated
def test_an_optimizer_that_raises_everywhere_is_not_the_device_s():
    def make_optimizer(parameters):
        return torch.optim.Adam(parameters, lr=-1.0)

    with pytest.raises(ValueError, match="learning rate"):
        divergence.find(
            nn.Linear(4, 4), (torch.randn(6, 4),), optimizer=make_optimizer, on=device.pick()
        )


@on_simulated
def test_what_the_tool_raises_itself_is_not_the_device_s():
    def fail(*_):
        raise KeyError("of the tool")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "_recording_hook", lambda *_: fail)
        with pytest.raises(RuntimeError, match="KeyError"):
            divergence.find(nn.Linear(4, 4), (torch.randn(6, 4),), on=device.pick())


@pytest.mark.parametrize(
    ("make_optimizer", "example"),
    [
        pytest.param(
            lambda model: torch.optim.SGD(model.parameters(), lr=0.5), "SGD, lr=0.5", id="object"
        ),
        pytest.param(lambda _: "AdamW", "torch.optim.AdamW", id="name"),
    ],
)
def test_an_optimizer_that_is_no_class_is_refused_with_what_to_give(make_optimizer, example):
    model = nn.Linear(4, 4)

    with pytest.raises(TypeError, match=example):
        divergence.find(
            model, (torch.randn(6, 4),), optimizer=make_optimizer(model), on=device.cpu()
        )


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
