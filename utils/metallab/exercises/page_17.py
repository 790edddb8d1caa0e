"""The exercises of page 17."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from metallab.exercises.judging import exercise, expect, expect_that

CASTS = [(65520, "float16"), (4098, "float16"), (2e-8, "float16"), (259, "bfloat16")]


@exercise(
    "17.1",
    hint="halfway: 65520, 4098 and 259; 0.00000002 is less than half of the smallest",
)
def judge_predicted(predicted: Callable[..., Any], device: torch.device) -> bool:
    """Cast the four numbers on this device, and compare; the message does not tell what they become."""
    answer = predicted()
    is_list = isinstance(answer, list | tuple)
    expect_that(is_list, "predicted()", answer, "a list of four numbers")
    assert len(answer) == 4, f"predicted() returned {len(answer)} numbers, expected 4"

    for (number, name), got in zip(CASTS, answer, strict=True):
        assert not isinstance(got, str), f"{got!r} is a text and no number"
        stored = torch.tensor(float(number), device=device).to(getattr(torch, name))
        is_same = str(float(got)) == str(stored.item())  # -0.0 is not 0.0
        assert is_same, f"{number} to {name} does not become {got}"
    return True


def _count_held(model: nn.Module, x: torch.Tensor) -> int:
    """Train a model by one step of AdamW under autocast, and return the bytes of weights, gradients and averages."""
    optimizer, held = torch.optim.AdamW(model.parameters()), 0
    with torch.autocast(x.device.type, torch.bfloat16):
        model(x).sum().backward()
    optimizer.step()

    for weight in model.parameters():
        state = optimizer.state[weight]
        for tensor in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]):
            held += tensor.nbytes
    return held


@exercise(
    "17.2",
    hint="autocast leaves weights in float32; AdamW keeps two averages for each",
)
def judge_training_bytes(
    training_bytes: Callable[..., Any], make_network: Callable[[], nn.Module]
) -> bool:
    """Ask for the page's network and for one in which a weight is in two places, before and after a step of training.

    Before it no weight has a gradient yet, and the answer is the same.
    """
    network = make_network()
    here = next(network.parameters()).device
    inner = nn.TransformerEncoderLayer(4, 2, 4, bias=False)
    inner.linear2.weight = inner.linear1.weight  # one weight in two places
    # with averages of its own, which are buffers: they have no gradient, and the optimizer keeps nothing of them
    nested = nn.Sequential(nn.Linear(4, 4), inner, nn.BatchNorm1d(4)).to(here)
    models = {
        "this page's network": (network, torch.ones(2, 1, 32, 32, device=here)),
        "a Transformer": (nested, torch.ones(3, 4, device=here)),
    }

    for name, (model, x) in models.items():
        # counted before the answer has a model, which it may turn into 16 bits
        trained = copy.deepcopy(model)
        held = _count_held(trained, x)
        expect(f"training_bytes({name}), not trained yet,", training_bytes(model), held)
        expect(f"training_bytes({name}), trained,", training_bytes(trained), held)
    return True
