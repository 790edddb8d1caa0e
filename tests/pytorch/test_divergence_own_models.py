"""Finding the wrong operator of what people bring: their mistakes and the tool's own are not the device's.

Its checks run in a child with the simulated device (support/children.py).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

CHILD = __name__ == "__main__"

import children  # noqa: E402

import metalsim  # noqa: E402

if CHILD:
    metalsim.install_with_torch()

import pytest  # noqa: E402
import torch  # noqa: E402
from disagreeing import OtherThere  # noqa: E402
from torch import nn  # noqa: E402

from metallab import device  # noqa: E402
from metallab.pytorch import divergence  # noqa: E402
from metallab.pytorch.divergence import layers  # noqa: E402
from metallab.pytorch.divergence.conditions import FixKind  # noqa: E402
from metallab.pytorch.divergence.differences import Reason  # noqa: E402
from metallab.pytorch.divergence.new_memory import filling_new_memory  # noqa: E402

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


def is_sum(output):
    return output.sum().item()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        pytest.param(nn.MSELoss(), "lambda output", id="without targets"),
        pytest.param(lambda output: output, r"\(6, 4\)", id="several numbers"),
        pytest.param(is_sum, r"float.*\.item", id="a float"),
        pytest.param(0.5, "float", id="no function"),
    ],
)
def test_a_loss_that_is_none_is_refused_with_what_to_give(loss, words):
    with pytest.raises(TypeError, match=words):
        divergence.find(nn.Linear(4, 4), (torch.randn(6, 4),), loss, on=device.cpu())


def test_a_function_is_no_model():
    with pytest.raises(TypeError, match=r"nn\.Module"):
        divergence.find(torch.tanh, (torch.randn(6, 4),), on=device.cpu())


def test_a_name_is_no_device():
    with pytest.raises(TypeError, match=r"device\.pick"):
        divergence.find(nn.Linear(4, 4), (torch.randn(6, 4),), on="mps")


# ---- what differs though no operator does ---------------------------------------------------------------------------


class Unwritten(nn.Module):
    """Adds to memory that nobody wrote to."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, rows):
        y = self.layer(x)
        return torch.empty_like(y).index_add_(0, rows, y)


class Written(Unwritten):
    """Asks for memory, and writes all of it."""

    def forward(self, x, rows):
        y = self.layer(x)
        sums = torch.empty_like(y)
        sums[rows] = y
        return sums


@on_simulated
def test_an_output_that_differs_is_told_though_each_operator_agrees():
    report = divergence.find(OtherThere(), (torch.randn(5, 4),), on=device.pick())

    assert report.kind == "output differs"
    assert report.agreement == "differs"
    assert report.unexplained.output.total == 10
    assert report.fix.kind is FixKind.FIND_SOURCE


@on_simulated
def test_the_layer_at_which_an_unexplained_error_begins_is_named():
    report = divergence.find(OtherThere(), (torch.randn(5, 4),), on=device.pick())

    layer = report.unexplained.layer
    assert layer.error.module == "behind"
    assert layer.before == "before"
    assert layer.error.forward > 0.01
    assert "behind" in str(report)


@on_simulated
def test_memory_that_nobody_wrote_to_is_found_with_its_line():
    report = divergence.find(Unwritten(), (torch.randn(16, 8), torch.arange(16)), on=device.pick())

    assert report.kind == "output differs"
    assert report.fix.kind is FixKind.FILL_MEMORY
    (line,) = report.unexplained.unwritten_lines
    assert Path(__file__).name in line


def test_memory_that_nobody_wrote_to_is_found_where_it_agrees_by_chance():
    with filling_new_memory(0):
        report = divergence.find(
            Unwritten(), (torch.randn(16, 8), torch.arange(16)), on=device.cpu()
        )

    assert report.unexplained.output is None
    assert report.unexplained.unwritten_lines


def test_memory_that_is_written_before_it_is_read_is_no_fault():
    report = divergence.find(Written(), (torch.randn(16, 8), torch.arange(16)), on=device.cpu())

    assert report.is_output_compared
    assert report.kind == "agrees"


@on_simulated
def test_a_layer_behind_that_works_in_place_makes_no_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    report = divergence.find(model, (torch.randn(16, 4),), on=device.pick())

    assert report.kind == "agrees"
    assert report.layers[0].forward < 1e-5


def test_an_output_of_random_numbers_is_said_to_be_not_compared():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    report = divergence.find(model, (torch.randn(5, 4),), on=device.cpu())

    assert report.kind == "agrees"
    assert not report.is_output_compared
    assert report.output_not_compared.reason is Reason.RANDOM


def test_a_layer_inside_of_a_transform_has_no_error():
    """Nobody can read the numbers that vmap and jacrev give to it: it is listed without an error, and ends nothing."""

    class Jacobian(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return torch.func.vmap(torch.func.jacrev(self.layer))(x)

    report = divergence.find(Jacobian(), (torch.randn(5, 3),), on=device.cpu())

    assert report.kind == "agrees"
    assert {layer.module for layer in report.layers} == {"layer"}
    assert all(math.isnan(layer.forward) for layer in report.layers)


# ---- time that runs out ----------------------------------------------------------------------------------------------


def test_that_time_ran_out_is_said_before_all_else():
    report = divergence.find(nn.Linear(4, 4), (torch.randn(6, 4),), on=device.cpu(), seconds=-1)

    assert not report.is_complete
    assert report.headline.startswith("TIME RAN OUT")
    assert "seconds=" in str(report)


if CHILD:
    children.answer(on_simulated.checks, Path(sys.argv[2]))
