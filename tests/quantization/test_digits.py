"""Real digits, and networks that learn to read them."""

from __future__ import annotations

import pytest
import torch

from metallab import device
from metallab.quantization import digits


@pytest.fixture(scope="module")
def parts():
    """The digits that are learned, and those of the test."""
    return digits.load()


def test_digits_are_pictures_of_one_channel_from_0_to_1(parts):
    seen, unseen = parts
    assert seen.images.shape[1:] == (1, 32, 32)
    assert unseen.images.shape[1:] == (1, 32, 32)
    assert float(seen.images.min()) == 0
    assert 0 < float(seen.images.max()) <= 1


def test_no_picture_is_seen_and_tested(parts):
    seen, unseen = ({picture.numpy().tobytes() for picture in part.images} for part in parts)
    assert seen.isdisjoint(unseen)


def test_each_digit_has_the_same_share_of_both_parts(parts):
    seen, unseen = parts
    assert len(seen.labels) == 1297
    assert len(unseen.labels) == 500
    shares = [torch.bincount(part.labels) / len(part.labels) for part in parts]
    torch.testing.assert_close(*shares, rtol=0, atol=0.002)


@pytest.fixture(scope="module")
def few():
    """Zeros and ones, small ones, which a small network soon tells apart."""
    seen, _ = digits.load()
    chosen = seen.labels < 2
    return digits.Digits(seen.images[chosen][:, :, ::4, ::4], seen.labels[chosen])


def train(few):
    return digits.train(4, few, epochs=6, on=device.cpu(), batch=16)


@pytest.fixture(scope="module")
def trained(few):
    return train(few)


def test_training_learns(trained, few):
    assert (trained(few.images).argmax(1) == few.labels).float().mean() > 0.9


def test_a_trained_network_is_ready_to_be_asked(trained):
    assert not trained.training
    assert not any(parameter.requires_grad for parameter in trained.parameters())


def test_training_learns_the_same_each_time_and_leaves_the_callers_state(trained, few):
    torch.manual_seed(7)
    state, threads = torch.get_rng_state(), torch.get_num_threads()

    again = train(few)

    torch.testing.assert_close(again(few.images[:8]), trained(few.images[:8]), rtol=1e-3, atol=1e-3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_folding_changes_no_score():
    torch.manual_seed(0)
    network = digits.classifier(4)
    x = torch.rand(3, 1, digits.SIZE, digits.SIZE)
    network(x)  # its batch norms now know a mean that is not 0
    expected = network.eval()(x)

    plain = digits.fold_batch_norms(network)

    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in plain)
    torch.testing.assert_close(plain(x), expected)
