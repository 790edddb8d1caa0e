"""A model with a loss that holds the model itself, such as one with a penalty on its weights."""

import pytest
import torch
from torch import nn

from metallab.pytorch.dispatch import explain
from metallab.pytorch.model import Function, ModelUnderTest, as_model


def make_penalized() -> ModelUnderTest:
    """Return a model whose loss is the sum of its weights, whatever the outputs are."""
    model = nn.Linear(2, 1, bias=False)

    def penalty(output):
        return 0.0 * output.sum() + model.weight.sum()

    return as_model((model, torch.ones(3, 2), penalty), "tests:penalized")


def to_double(subject: ModelUnderTest) -> ModelUnderTest:
    return subject.to("cpu").cast(lambda tensor: tensor.double())


def test_a_loss_that_holds_the_model_is_cast_with_it():
    assert to_double(make_penalized()).value().dtype == torch.float64


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(ModelUnderTest.copy, id="a copy"),
        pytest.param(to_double, id="a cast"),
    ],
)
def test_a_loss_that_holds_the_model_holds_its_copy_in_a_copy(change):
    changed = change(make_penalized())

    changed.value().backward()

    assert changed.model.weight.grad.tolist() == [[1.0, 1.0]]


def test_gradients_of_a_loss_that_holds_the_model_leave_it_as_it_is():
    subject = make_penalized()

    gradients = subject.gradients()

    assert gradients["weight"].tolist() == [[1.0, 1.0]]
    assert subject.model.weight.grad is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda subject: subject.to("cpu"), id="a move"),
        pytest.param(to_double, id="a cast"),
    ],
)
def test_an_input_that_requires_a_gradient_requires_one_in_a_changed_copy(change):
    """Such as the coordinates of a network for differential equations, which asks for its own derivative."""
    x = torch.ones(3, 2, requires_grad=True)

    changed = change(as_model((nn.Linear(2, 1), x), "tests:coordinates"))

    assert changed.inputs[0].requires_grad
    assert changed.inputs[0].is_leaf


# ---- a loss with variables of its module around it -------------------------------------------------------------------

TARGETS = torch.arange(2)
WEIGHTED = {"loss": nn.CrossEntropyLoss(weight=torch.ones(3))}


def loss_of_variables(output):
    return WEIGHTED["loss"](output, TARGETS)


def test_variables_that_a_loss_names_move_with_the_model():
    made = as_model((nn.Linear(4, 3), torch.ones(2, 4), loss_of_variables), "tests:example")

    there = made.to("meta")

    assert there.loss(there.model(*there.inputs)).device.type == "meta"
    assert TARGETS.device.type == "cpu"
    assert WEIGHTED["loss"].weight.device.type == "cpu"


calls = 0


def counting_loss(output):
    global calls
    calls += 1
    return output.mean()


def test_a_loss_without_tensors_around_it_keeps_its_module():
    made = as_model((nn.Linear(4, 3), torch.ones(2, 4), counting_loss), "tests:example")
    before = calls
    made.loss(made.model(*made.inputs))
    assert calls == before + 1


# ---- a loss that raises ----------------------------------------------------------------------------------------------


def raising_loss(output):
    raise KeyError("words")


class RaisingCriterion(nn.Module):
    """A loss that is a module, so that a module is at work where it raises."""

    def __init__(self):
        super().__init__()
        self.inner = Function(raising_loss)

    def forward(self, output):
        return self.inner(output)


@pytest.mark.parametrize("loss", [raising_loss, RaisingCriterion()], ids=["function", "module"])
def test_what_a_loss_raises_is_told_as_the_loss_s_with_its_line(loss):
    made = as_model((nn.Linear(4, 3), torch.ones(2, 4), loss), "tests:example")
    with pytest.raises(KeyError) as raised:
        made.value()
    told = explain(raised.value)

    assert told.is_of_loss
    assert told.module == ""
    assert int(told.line.rpartition(":")[2]) == raising_loss.__code__.co_firstlineno + 1
    assert "in the loss" in str(told)


def test_what_a_model_raises_is_not_told_as_the_loss_s():
    made = as_model((nn.Linear(4, 3), torch.ones(2, 5), torch.sum), "tests:example")
    with pytest.raises(RuntimeError) as raised:
        made.value()
    assert not explain(raised.value).is_of_loss
