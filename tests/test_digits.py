"""Real digits, and networks that learn to read them."""

from __future__ import annotations

import pytest
import torch
from mutate import Rules

from metallab import device
from metallab.quantization import digits

RULES = Rules(digits)


@RULES.rule(
    ("test_size=TESTED", "test_size=TESTED // 2"),
    ("stratify=pictures.target, random_state=0", "shuffle=False"),
    ("images[part]", "images[: len(part)]"),
)
def no_picture_is_seen_and_tested(digits):
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


@RULES.rule(
    ("            optimizer.step()\n", ""),
    (
        "            optimizer.zero_grad(set_to_none=True)\n",
        "            optimizer.zero_grad()\n            return network\n",
    ),
    ("        torch.default_generator.manual_seed(0)\n", ""),
    ("with torch.random.fork_rng(devices=[]):", "if True:"),
    ('return network.to("cpu", memory_format=torch.contiguous_format).eval()', "return network"),
)
def training_learns_the_same_each_time(digits, few):
    state = torch.get_rng_state()
    first = digits.train(4, few, epochs=6, on=device.cpu(), batch=16)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random numbers are his own"
    assert not first.training
    assert not any(parameter.requires_grad for parameter in first.parameters())
    assert digits.accuracy(first(few.images), few) > 0.9
    torch.manual_seed(7)
    again = digits.train(4, few, epochs=6, on=device.cpu(), batch=16)
    torch.testing.assert_close(again(few.images[:8]), first(few.images[:8]), rtol=1e-3, atol=1e-3)


@RULES.rule(
    ("layers[-1] = fuse_conv_bn_eval(layers[-1], layer)", "pass"),
    ("copy.deepcopy(network):", "network.train():"),
    ('classifier(len(weights["0.weight"]))', "classifier(8)"),
    ("    network.load_state_dict(weights)\n", ""),
    ("scores.argmax(1) == digits.labels", "scores.argmax(1) != digits.labels"),
)
def folding_and_storing_change_no_score(digits, tmp_path):
    torch.manual_seed(0)
    network = digits.classifier(4)
    x = torch.rand(3, 1, digits.SIZE, digits.SIZE)
    network(x)  # its batch norms now know a mean that is not 0
    expected = network.eval()(x)
    plain = digits.folded(network)
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in plain)
    torch.testing.assert_close(plain(x), expected)
    stored = digits.restore(digits.save(network, tmp_path / "weights.safetensors"))
    torch.testing.assert_close(stored(x), expected)
    assert digits.accuracy(expected, digits.Digits(x, expected.argmax(1))) == 1


test_rule_holds, test_broken_rule_goes_red = RULES.tests()


def test_scores_of_other_pictures_are_refused():
    of = digits.Digits(torch.zeros(5, 1, 1, 1), torch.zeros(5, dtype=torch.int64))
    for scores in (torch.eye(10)[:1], torch.zeros(5, 3)):
        with pytest.raises(ValueError, match=r"scores of 5 digits have shape \(n, 10\)"):
            digits.accuracy(scores, of)
