"""The networks are the same everywhere, and leave the caller's state alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from metallab.pytorch import networks

MAKERS = [
    getattr(networks, name) for name in ("mlp", "cnn", "resnet", "transformer", "lstm", "talk_mlp")
]
SHAPES = {
    "MLP": (256, 10),
    "CNN": (32, 10),
    "ResNet-18": (8, 1000),
    "Transformer block": (8, 64, 128),
}
SHAPES |= {"LSTM": (16, 10), "Softshrink MLP": (256, 10)}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_network_has_its_shape(make):
    network = make()
    assert network.inference()().shape == SHAPES[network.name]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_name_stands_for_one_network(make):
    """Whatever seed, default dtype and default device the caller has."""
    torch.manual_seed(1)
    one = make()

    torch.manual_seed(2)
    with other_defaults():
        other = make()

    assert torch.equal(one.inference()(), other.inference()())


@contextlib.contextmanager
def other_defaults() -> Iterator[None]:
    """Have another default dtype and another default device."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_the_callers_random_numbers_do_not_move_on_where_a_network_is_made(make):
    state = torch.get_rng_state()
    make()
    assert torch.equal(torch.get_rng_state(), state)


def test_training_changes_neither_the_network_nor_its_inference():
    network = networks.cnn(batch=2, size=8)
    infer = network.inference()
    before, weights = infer(), [p.clone() for p in network.model.parameters()]

    step = network.training_step(learning_rate=0.1)
    losses = [step().item() for _ in range(5)]

    assert losses[-1] < losses[0]
    assert torch.equal(infer(), before)
    assert all(torch.equal(p, w) for p, w in zip(network.model.parameters(), weights, strict=True))


@pytest.mark.parametrize("make", [networks.mlp, networks.cnn, networks.lstm])
def test_a_batch_is_not_learned_by_heart_while_it_is_timed(make):
    """Each step is the same, its loss to the last bits that threads leave open."""
    step = make(batch=8).training_step()
    losses = [step().item() for _ in range(20)]
    assert losses == pytest.approx([losses[0]] * 20, rel=1e-6)
    assert losses[0] > 0


def test_the_talk_s_network_has_seven_layers():
    layers = [type(layer).__name__ for layer in networks.talk_mlp().model]
    assert layers == ["Linear", "Softshrink"] * 3 + ["Linear"]
