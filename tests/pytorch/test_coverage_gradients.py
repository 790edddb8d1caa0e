"""Coverage of what a model does with gradients: checkpoints, vmap, second derivatives, its own backward passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from metallab.pytorch.coverage import TraceFailed, mps_coverage


class Layers(nn.Module):
    """Has layers that are one operator on MPS, and calls a function with them; it may need numbers."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], needs_numbers: bool = False):
        super().__init__()
        self.function, self.needs_numbers = function, needs_numbers
        self.linear, self.without_bias = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.needs_numbers:
            x = x * x.sum().item()
        return self.function(self, x)


def differentiate(function: Callable[[Tensor], Tensor], x: Tensor, create_graph: bool) -> Tensor:
    x = x.detach().requires_grad_()
    [gradient] = torch.autograd.grad(function(x).tanh().sum(), x, create_graph=create_graph)
    return gradient


NUMBERS = pytest.mark.parametrize("needs_numbers", [True, False], ids=["cpu", "meta"])

TRAINED = {
    "a checkpoint": lambda m, x: checkpoint(m.linear, x, use_reentrant=False),
    "a checkpoint without bias": lambda m, x: checkpoint(m.without_bias, x, use_reentrant=False),
    "a checkpoint of an LSTM": lambda m, x: checkpoint(m.lstm, x[None], use_reentrant=False)[0],
    "an older checkpoint": lambda m, x: checkpoint(m.linear, m.linear(x), use_reentrant=True),
    "vmap": lambda m, x: torch.vmap(m.linear)(x),
    "vmap by way of the CPU": lambda m, x: torch.vmap(
        lambda row: m.linear(row).cpu().sin().to(x.device)
    )(x),
    "jacrev": lambda m, x: torch.vmap(torch.func.jacrev(lambda row: m.linear(row).tanh()))(x),
    "a force": lambda m, x: differentiate(m.linear, x, create_graph=True),
}


@NUMBERS
@pytest.mark.parametrize("function", TRAINED.values(), ids=TRAINED)
def test_what_trains_anywhere_trains_on_mps(function, needs_numbers):
    covered = mps_coverage(Layers(function, needs_numbers), torch.randn(6, 4), training=True)
    assert covered.answer.startswith("Yes: ")
    assert covered.traced_on == ("cpu" if needs_numbers else "meta")


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_where_nothing_can_be_trained_nothing_is_said_against_the_inputs():
    """An older checkpoint gives its output a gradient only if its input has one."""

    def run(m: Layers, x: Tensor) -> Tensor:
        return checkpoint(m.linear, x, use_reentrant=True)

    with pytest.raises(TraceFailed, match="use_reentrant=False") as failed:
        mps_coverage(Layers(run), torch.randn(6, 4), training=True)
    assert "does not run" not in str(failed.value)


def count_calls(covered) -> dict[str, int]:
    return {use.operator: use.calls for use in covered.uses}


def test_a_layer_that_is_computed_again_is_counted_again_and_its_gradient_once():
    def run(m: Layers, x: Tensor) -> Tensor:
        return checkpoint(lambda x: m.linear(x.sin()), x, use_reentrant=False)

    calls = count_calls(mps_coverage(Layers(run), torch.randn(6, 4), training=True))
    assert calls["aten::linear"] == 2
    assert calls["aten::linear_backward"] == 1
    assert calls["aten::sin.default"] == 2


def test_a_gradient_of_an_lstm_s_gradient_is_foretold_to_raise():
    """On MPS, where an LSTM is one operator; elsewhere it falls into pieces, each with a derivative."""

    def force(m: Layers, x: Tensor) -> Tensor:
        return differentiate(lambda x: m.lstm(x)[0], x[None], create_graph=True)

    covered = mps_coverage(Layers(force), torch.randn(6, 4), training=True)
    [problem] = covered.problems
    assert problem.kind == "second derivative"
    assert problem.modules == ("lstm",)


def test_an_lstm_s_gradient_that_is_used_as_a_number_raises_nothing():
    def weigh(m: Layers, x: Tensor) -> Tensor:
        return differentiate(lambda x: m.lstm(x)[0], x[None], create_graph=False) * m.linear(x)

    covered = mps_coverage(Layers(weigh), torch.randn(6, 4), training=True)
    assert covered.runs, covered.answer


# ---- gradients in inference ------------------------------------------------------------------------------------------


@NUMBERS
def test_a_model_that_computes_gradients_itself_runs_in_inference(needs_numbers):
    def force(m: Layers, x: Tensor) -> Tensor:
        return differentiate(m.linear, x, create_graph=False)

    covered = mps_coverage(Layers(force, needs_numbers), torch.randn(6, 4))
    assert covered.runs
    assert "aten::linear_backward" in count_calls(covered)
    assert "does not require grad" in covered.needs_gradients
    assert covered.needs_gradients in covered.answer


def test_a_model_that_allows_gradients_itself_is_traced_without_them():
    def force(m: Layers, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return differentiate(m.linear, x, create_graph=False)

    covered = mps_coverage(Layers(force), torch.randn(6, 4))
    assert covered.answer.startswith("Yes: ")
    assert "aten::linear_backward" in count_calls(covered)
    assert covered.needs_gradients == ""


# ---- backward passes and hooks of the model's own --------------------------------------------------------------------


def with_backward(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Return what `Layers` may run: it copies what a layer returns, and computes the gradient of the copy its own way.

    The gradient is ``function`` of what the layer returned and of the gradient of the copy.
    """

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return function(ctx.saved_tensors[0], gradient)

    return lambda m, x: Copy.apply(m.linear(x))


def with_hook(hook: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A model whose output has a hook."""

    def run(m: Layers, x: Tensor) -> Tensor:
        y = m.linear(x)
        y.register_hook(hook)
        return y

    return run


def save_as_arrays(m: Layers, x: Tensor) -> Tensor:
    """Keep what the backward pass needs as arrays."""
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda saved: saved.detach().numpy(), torch.from_numpy
    )
    with hooks:
        return m.linear(x).tanh()


AS_ARRAYS = {
    "numpy() of a gradient": with_backward(lambda x, g: torch.from_numpy(g.numpy() * 2)),
    "array of a gradient": with_backward(lambda x, g: g * float(np.array(g).max())),
    "numpy() of a saved tensor": with_backward(lambda x, g: g * float(x.detach().numpy().max())),
    "numpy() in a hook": with_hook(lambda g: g * float(g.numpy().max())),
    "numpy() of what is saved": save_as_arrays,
}


@NUMBERS
@pytest.mark.parametrize("function", AS_ARRAYS.values(), ids=AS_ARRAYS)
def test_a_tensor_on_the_gpu_is_no_array_in_a_backward_pass(function, needs_numbers):
    covered = mps_coverage(Layers(function, needs_numbers), torch.randn(6, 4), training=True)
    assert not covered.runs, covered.answer
    assert covered.problems[0].kind == "array"
    assert covered.problems[0].line.startswith("tests/pytorch/test_coverage_gradients.py:")


def save_on_the_cpu(m: Layers, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return m.linear(x).tanh()


ELSEWHERE = {
    "by way of an array": with_backward(
        lambda x, g: torch.from_numpy(g.cpu().numpy() * 2).to(g.device)
    ),
    "by way of the CPU": with_backward(
        lambda x, g: torch.linalg.eigvals(g.cpu()[:4]).real.to(g.device) * g
    ),
    "a hook by way of the CPU": with_hook(lambda g: g.cpu().to(g.device)),
    "saved on the CPU": save_on_the_cpu,
    "a branch by device": with_backward(
        lambda x, g: g if g.device.type == "mps" else g.double().float()
    ),
}


@NUMBERS
@pytest.mark.parametrize("function", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_leaves_the_gpu_is_followed_in_a_backward_pass(function, needs_numbers):
    covered = mps_coverage(Layers(function, needs_numbers), torch.randn(6, 4), training=True)
    assert covered.answer.startswith("Yes: ")


MISSING = {
    "in a backward pass": with_backward(lambda x, g: g + torch.mode(g, 0).values),
    "in a hook": with_hook(lambda g: g + torch.mode(g, 0).values),
}


@pytest.mark.parametrize("function", MISSING.values(), ids=MISSING)
def test_a_missing_operator_is_found_in_a_backward_pass(function):
    covered = mps_coverage(Layers(function), torch.randn(6, 4), training=True)
    assert [use.operator for use in covered.having("missing")] == ["aten::mode.default"]


def find_line(text: str) -> str:
    """The place of the only line of this file that contains a text."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.strip().startswith(text)]
    return f"tests/pytorch/test_coverage_gradients.py:{number}"


def reduce_segments(m: Layers, x: Tensor) -> Tensor:
    lengths = torch.tensor([2, 4], device=x.device)
    return torch.segment_reduce(m.linear(x), "sum", lengths=lengths)


def test_a_missing_gradient_has_the_line_of_its_operator():
    covered = mps_coverage(Layers(reduce_segments), torch.randn(6, 4), training=True)
    lines = {use.operator: use.lines for use in covered.having("missing")}
    line = find_line("return torch.segment_reduce(")
    assert lines["aten::segment_reduce.default"] == (line,)
    assert lines["aten::_segment_reduce_backward.default"] == (line,)


def test_a_missing_operator_in_a_backward_pass_of_the_model_s_own_has_its_line():
    covered = mps_coverage(Layers(MISSING["in a backward pass"]), torch.randn(6, 4), training=True)
    [missing] = covered.having("missing")
    assert missing.lines == (find_line('"in a backward pass": with_backward('),)


def test_an_operator_that_is_missing_is_found_in_what_takes_saved_tensors_back():
    """Autograd calls such a hook while it computes the gradient of a linear layer, which is one operator on MPS."""

    def take_back(saved: Tensor) -> Tensor:
        torch.mode(saved.detach(), 0)  # has no kernel on MPS
        return saved

    def run(m: Layers, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, take_back):
            return m.linear(x)

    covered = mps_coverage(Layers(run), torch.randn(6, 4), training=True)
    assert [use.operator for use in covered.having("missing")] == ["aten::mode.default"]
