"""Real digits, and networks that learn to read them."""

from __future__ import annotations

import pytest
import torch

from metallab import device
from metallab.quantization import digits


def test_no_picture_is_seen_and_tested():
    seen, unseen = digits.load()
    assert seen.images.shape[1:] == unseen.images.shape[1:] == (1, 32, 32)
    assert (len(seen.labels), len(unseen.labels)) == (1297, 500)
    assert 0 == float(seen.images.min()) < float(seen.images.max()) <= 1
    rows = {picture.numpy().tobytes() for picture in seen.images}
    assert sum(picture.numpy().tobytes() in rows for picture in unseen.images) == 0
    shares = [torch.bincount(part.labels) / len(part.labels) for part in (seen, unseen)]
    torch.testing.assert_close(*shares, rtol=0, atol=0.002)


@pytest.fixture(scope="module")
def few():
    """Zeros and ones, small ones, which a small network soon tells apart."""
    seen, _ = digits.load()
    chosen = seen.labels < 2
    return digits.Digits(seen.images[chosen][:, :, ::4, ::4], seen.labels[chosen])


def test_training_learns_the_same_each_time(few):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = digits.train(4, few, epochs=6, on=device.cpu(), batch=16)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers are his own"
    assert torch.get_num_threads() == threads
    assert not first.training
    assert not any(parameter.requires_grad for parameter in first.parameters())
    assert (first(few.images).argmax(1) == few.labels).float().mean() > 0.9
    torch.manual_seed(7)
    again = digits.train(4, few, epochs=6, on=device.cpu(), batch=16)
    torch.testing.assert_close(again(few.images[:8]), first(few.images[:8]), rtol=1e-3, atol=1e-3)


def test_folding_changes_no_score():
    torch.manual_seed(0)
    network = digits.classifier(4)
    x = torch.rand(3, 1, digits.SIZE, digits.SIZE)
    network(x)  # its batch norms now know a mean that is not 0
    expected = network.eval()(x)
    plain = digits.fold_batch_norms(network)
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in plain)
    torch.testing.assert_close(plain(x), expected)
