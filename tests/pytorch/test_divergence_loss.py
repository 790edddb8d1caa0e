"""A loss with a state of its own: each run of `divergence.find` begins with the one that it was given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from metallab import device
from metallab.pytorch import divergence
from metallab.pytorch.copies import narrow_tensors

MODEL = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


class Counting:
    """Weighs each call more than the last one, as a loss with a schedule does."""

    def __init__(self):
        self.calls = 0

    def __call__(self, output):
        self.calls += 1
        return output.square().mean() * self.calls


class Averaging(nn.Module):
    """Divides by an average of what it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(()))

    def forward(self, output):
        loss = output.square().mean()
        self.average += loss.detach()
        return loss / self.average


class Regularized(nn.Module):
    """Holds the model, whose weights are to stay small."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, output):
        return output.mean() + sum(weight.square().sum() for weight in self.model.parameters())


@pytest.mark.parametrize("make", [Counting, Averaging])
def test_a_loss_with_a_state_begins_anew_in_each_run(make):
    report = divergence.find(MODEL, (torch.ones(2, 4),), make(), on=device.cpu())
    assert len(report.layers) == 3
    assert max(layer.backward for layer in report.layers) < 1e-3


def test_the_loss_that_was_given_stays_as_it_is():
    loss = Counting()
    divergence.find(MODEL, (torch.ones(2, 4),), loss, on=device.cpu())
    assert loss.calls == 0


class Classes(nn.Module):
    """Cross-entropy with a weight for each class, in float32."""

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(weight=torch.tensor([0.25, 0.75]))

    def forward(self, output):
        return self.loss(output, torch.tensor([0, 1]))


def test_what_a_loss_holds_is_computed_in_float64_as_well():
    report = divergence.find(MODEL, (torch.ones(2, 4),), Classes(), on=device.cpu())
    assert report.layers_not_compared is None
    assert len(report.layers) == 3


def test_a_loss_that_holds_the_model_holds_the_copy():
    """The weights that the optimizer is given have the gradient of the whole loss, and the caller's model has none."""
    seen = []

    def make_optimizer(parameters):
        seen.extend(parameters)
        return torch.optim.SGD(seen, lr=0.1)

    model = nn.Sequential(nn.Linear(4, 3))
    divergence.find(
        model, (torch.ones(2, 4),), Regularized(model), optimizer=make_optimizer, on=device.cpu()
    )
    weight = seen[0]
    # of the mean alone each row of the gradient is the same
    assert not torch.allclose(weight.grad[0], weight.grad[1])
    assert all(weight.grad is None for weight in model.parameters())


# ---- what a loss has around it ---------------------------------------------------------------------------------------

WEIGHT, TARGETS = torch.tensor([0.25, 0.75]), torch.tensor([0, 1])


def loss_of_a_closure():
    weight, targets = WEIGHT.clone(), TARGETS.clone()
    return lambda output: nn.functional.cross_entropy(output, targets, weight=weight)


def loss_of_a_criterion():
    criterion = nn.CrossEntropyLoss(weight=WEIGHT.clone())
    return lambda output: criterion(output, TARGETS)


def loss_of_variables():
    return lambda output: nn.functional.cross_entropy(output, TARGETS, weight=WEIGHT)


class Trainer:
    def __init__(self):
        self.criterion = nn.CrossEntropyLoss(weight=WEIGHT.clone())

    def loss(self, output):
        return self.criterion(output, TARGETS)


def loss_of_an_object():
    return Trainer().loss


@pytest.mark.parametrize(
    "make", [loss_of_a_closure, loss_of_a_criterion, loss_of_variables, loss_of_an_object]
)
def test_what_a_loss_has_around_it_is_computed_in_float64_as_well(make):
    report = divergence.find(MODEL, (torch.ones(2, 4),), make(), on=device.cpu())
    assert report.layers_not_compared is None
    assert len(report.layers) == 3


def test_a_criterion_around_a_loss_stays_as_it_is():
    criterion = Averaging()
    divergence.find(MODEL, (torch.ones(2, 4),), lambda y: criterion(y), on=device.cpu())
    assert criterion.average == 0


def test_what_is_narrowed_for_an_apple_gpu_keeps_the_model_that_it_holds():
    model = nn.Linear(4, 3)
    loss = Regularized(model)
    loss.register_buffer("target", torch.zeros((), dtype=torch.float64))
    narrowed = narrow_tensors(loss, model)

    assert narrowed.target.dtype == torch.float32
    assert loss.target.dtype == torch.float64
    assert narrowed.model is model
