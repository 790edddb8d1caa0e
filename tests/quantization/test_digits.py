"""Real digits, and networks that learn to read them."""

from __future__ import annotations

import pytest
import torch

from metallab import device
from metallab.quantization import digits


def test_no_picture_is_seen_and_tested():
    seen, unseen = digits.load()
    assert seen.images.shape[1:] == unseen.images.shape[1:] == (1, 32, 32)
    assert len(unseen.labels) == 500
    assert len(seen.labels) == 1297
    assert float(seen.images.min()) == 0
    assert float(seen.images.max()) <= 1
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
    assert digits.accuracy(first(few.images), few) > 0.9
    torch.manual_seed(7)
    again = digits.train(4, few, epochs=6, on=device.cpu(), batch=16)
    torch.testing.assert_close(again(few.images[:8]), first(few.images[:8]), rtol=1e-3, atol=1e-3)


def test_folding_and_storing_change_no_score(tmp_path):
    torch.manual_seed(0)
    network = digits.classifier(4)
    x = torch.rand(3, 1, digits.SIZE, digits.SIZE)
    network(x)  # its batch norms now know a mean that is not 0
    expected = network.eval()(x)
    plain = digits.folded(network)
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in plain)
    torch.testing.assert_close(plain(x), expected)

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network

        def forward(self, x):
            return self.inner(x)

    torch.testing.assert_close(digits.folded(Own().train())(x), expected)
    stored = digits.restore(digits.save(network, tmp_path / "weights.safetensors"))
    torch.testing.assert_close(stored(x), expected)
    assert digits.accuracy(expected, digits.Digits(x, expected.argmax(1))) == 1


def test_scores_of_other_pictures_are_refused():
    of = digits.Digits(torch.zeros(5, 1, 1, 1), torch.zeros(5, dtype=torch.int64))
    for scores in (torch.eye(10)[:1], torch.zeros(5)):
        with pytest.raises(ValueError, match=r"scores of 5 pictures have shape \(5, classes\)"):
            digits.accuracy(scores, of)
    assert digits.accuracy(torch.eye(3)[[0, 0, 0, 1, 2]], of) == pytest.approx(0.6), "any number of classes"
    with pytest.raises(ValueError, match="class 3 has no score"):
        digits.accuracy(torch.zeros(5, 3), digits.Digits(of.images, torch.tensor([0, 1, 2, 3, 0])))
