"""The networks are the same everywhere, and leave the caller's state alone."""

from __future__ import annotations

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


@pytest.mark.parametrize("make", MAKERS)
def test_a_name_stands_for_one_network(make):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = make()
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers moved on"
    torch.manual_seed(2)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            two = make()
    finally:
        torch.set_default_dtype(torch.float32)
    assert one.inference()().shape == SHAPES[one.name]
    assert torch.equal(one.inference()(), two.inference()())


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
    assert [type(layer).__name__ for layer in networks.talk_mlp().model] == [
        "Linear",
        "Softshrink",
    ] * 3 + ["Linear"]
