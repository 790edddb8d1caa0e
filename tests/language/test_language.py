"""The small language model: its text is split cleanly, caches change nothing, few bits are what they cost."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from train_decoder import arguments, train

from metallab import timing
from metallab.language import bits, corpus, decoder, shrink, writing

SMALL = decoder.Shape(width=32, layers=2, heads=2, hidden=64, context=300)


@pytest.fixture(scope="module")
def text():
    return corpus.load()


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    model = decoder.Decoder(SMALL).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.mul_(10)  # so that it prefers some characters clearly
    return model


def test_no_paragraph_of_the_test_is_in_the_training(text):
    parts = [set(part.split("\n\n")) for part in (text.training, text.validation, text.test)]
    assert all(parts)
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert len(text.training) > 250_000
    assert len(text.test) > 30_000
    assert set(text.training + text.validation + text.test) <= set(corpus.CHARACTERS)


def test_text_there_and_back(text):
    assert corpus.decode(corpus.encode(text.test[:500])) == text.test[:500]
    with pytest.raises(ValueError, match="'é' is not in the vocabulary"):
        corpus.encode("café")


def test_a_token_sees_none_after_it(small):
    tokens = torch.arange(20)[None] % 96
    changed = tokens.clone()
    changed[0, 10:] = 5
    assert torch.equal(small(tokens)[:, :10], small(changed)[:, :10])
    assert not torch.allclose(small(tokens)[:, 10:], small(changed)[:, 10:])


@pytest.mark.parametrize("kind", ["growing", "fixed"])
@pytest.mark.parametrize("pieces", [[20], [1] * 20, [7, 1, 5, 1, 6]])
def test_a_cache_changes_nothing(small, kind, pieces):
    tokens = torch.randint(96, (1, 20), generator=torch.Generator().manual_seed(1))
    cache = decoder.GrowingCache() if kind == "growing" else decoder.FixedCache(small, 40)
    parts = [small(part, cache) for part in tokens.split(pieces, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), small(tokens))


def test_a_fixed_cache_has_the_bytes_that_are_counted(small):
    cache = decoder.FixedCache(small, 40, batch=3)
    assert cache.nbytes == 2 * SMALL.layers * 3 * SMALL.width * 40 * 4
    with pytest.raises(ValueError, match="1 to 300"):
        decoder.FixedCache(small, 301)


def test_writing_is_the_same_with_and_without_a_cache(small):
    caches = [None, decoder.GrowingCache(), decoder.FixedCache(small, 60)]
    assert len({writing.write(small, "The ", 40, cache) for cache in caches}) == 1
    drawn = [writing.write(small, "The ", 40, cache, temperature=1.0) for cache in (None, decoder.GrowingCache())]
    assert drawn[0] == drawn[1] != writing.write(small, "The ", 40, temperature=1.0, seed=1)


def test_where_two_decoders_part(small):
    assert writing.first_difference(small, small, "The ", 30).startswith("the same 30 characters (")
    other = decoder.Decoder(SMALL).eval()
    other.load_state_dict(small.state_dict())
    text = writing.write(small, "The ", 30)
    wanted = corpus.encode(text[14])
    with torch.no_grad():  # no state at the tenth character points so far along this row: it is made to lose
        other.head.weight[wanted] *= -1
    apart, at = writing.first_difference(small, other, "The ", 30), text[4:].index(text[14])
    assert apart.startswith(f"the same {at} characters, and then ")
    assert f" for {text[14]!r} after {text[: 4 + at][-12:]!r}" in apart


def test_bits_are_those_of_a_known_model(text):
    """A model whose logits are all alike costs log2(96) bits."""
    model = decoder.Decoder(SMALL).eval()
    nn.init.zeros_(model.head.weight)
    score = bits.bits_per_character(model, text.test[:3000])
    assert score == pytest.approx(np.full((2999 - 128) // 128, math.log2(96)), rel=1e-5)
    with pytest.raises(ValueError, match="at least 257"):
        bits.bits_per_character(model, "short")


def test_bits_are_the_cross_entropy_of_the_second_half(small, text):
    part = text.test[:257]
    tokens = corpus.encode(part)
    logits = small(tokens[None, :-1])[0]
    wanted = functional.cross_entropy(logits[128:], tokens[129:]).item() / math.log(2)
    assert bits.bits_per_character(small, part) == pytest.approx([wanted], rel=1e-4)


@pytest.mark.parametrize(("number", "most"), [(8, 0.004), (4, 0.07)])
def test_few_bits_are_off_by_half_a_step(number, most):
    linear = nn.Linear(64, 16, bias=False)
    packed = shrink.GroupedLinear(linear, number, 32)
    weight = packed.weight
    groups = linear.weight.detach().unflatten(1, (-1, 32))
    step = (groups.amax(2) - groups.amin(2)) / (2**number - 1)
    error = (weight.unflatten(1, (-1, 32)) - groups).abs().amax(2)
    assert (error <= 0.5 * step + 1e-3 * groups.abs().amax(2)).all()
    x = torch.rand(3, 64)
    torch.testing.assert_close(packed(x), x @ weight.T)
    assert 0 < error.max() / groups.abs().max() < most
    assert writing.nbytes(packed) * 8 == 64 * 16 * (number + 32 / 32)


def test_any_model_can_be_shrunk():
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    small = shrink.shrunk(model, 8, group=8)
    assert [type(layer) for layer in small] == [shrink.GroupedLinear, nn.ReLU, shrink.GroupedLinear]
    x = torch.zeros(2, 64)  # what is left is the biases' doing
    assert model(x).abs().max() > 0
    torch.testing.assert_close(small(x), model(x), atol=0.01, rtol=0)
    alone = shrink.shrunk(model[0], 8)
    assert isinstance(alone, shrink.GroupedLinear)
    assert alone.bias is not model[0].bias
    with pytest.raises(ValueError, match="no linear layer inside"):
        shrink.shrunk(nn.ReLU(), 4)


@pytest.mark.parametrize("gradients", [True, False])
def test_attention_of_pytorch_can_be_shrunk(gradients):
    """In evaluation without gradients it computes in one call, which takes the weights of the layers."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    small = shrink.shrunk(model, 8)
    assert type(small.self_attn.out_proj) is shrink.GroupedLinear
    x = torch.randn(2, 5, 64)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(small(x), model(x), rtol=0, atol=0.02)
        assert not torch.equal(small(x), model(x))


def test_a_shrunk_decoder_computes_nearly_the_same(small):
    tokens = torch.arange(30)[None]
    truth, eight, four = small(tokens), shrink.shrunk(small, 8)(tokens), shrink.shrunk(small, 4)(tokens)
    assert 0 < (eight - truth).abs().max() < (four - truth).abs().max() < truth.abs().max()
    assert isinstance(small.head, nn.Linear), "the reference is left as it was"


def test_weights_there_and_back(small, tmp_path):
    path = tmp_path / "weights.safetensors"
    sha256 = decoder.save(small, path, script="a test")
    again = decoder.load(path, sha256)
    for name, weight in small.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight.half().float()), name
    with pytest.raises(ValueError, match="git checkout -- data/weights"):
        decoder.load(path, "0" * 64)
    broken = decoder.Decoder(SMALL)
    with torch.no_grad():
        broken.head.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"not finite in half precision.*head\.weight"):
        decoder.save(broken, path)


@pytest.mark.nightly
def test_training_learns_and_keeps_its_best(text, tmp_path):
    given = ["--steps", "12", "--batch", "4", "--device", "cpu", "--out", str(tmp_path), "--dropout", "0"]
    short = corpus.Corpus(text.training, text.validation[:1500], text.test[:1500])
    model, made = train(short, SMALL, torch.device("cpu"), arguments(given))
    assert made["best_step"] == 12
    assert bits.bits_per_character(model, short.validation).mean() == pytest.approx(made["validation"], rel=1e-3)
    assert made["validation"] < math.log2(96) - 0.5


def test_the_weights_are_those_of_their_record(text):
    record = json.loads(decoder.WEIGHTS.with_suffix(".json").read_text("utf-8"))
    assert (record["sha256"], record["text"]) == (decoder.SHA256, corpus.SHA256)
    score = bits.bits_per_character(decoder.load(), text.test[:4000])
    assert score.mean() == pytest.approx(record["test"], abs=0.3)


@pytest.mark.parametrize(("others", "words"), [(0.0, "4,000 tokens/s on GPU"), (1.5, "no rate is given: busy")])
def test_a_rate_is_given_only_of_a_quiet_machine(others, words):
    half_a_second = timing.Measurement(
        "reading", "latency", (0.5,) * 10, 1.0, 1, 3, "quiet", "full", "GPU", False, others
    )
    assert words in writing.rate(2000, half_a_second)


def test_a_rotation_tells_distances_and_nothing_else():
    model = decoder.Decoder(SMALL)
    x = torch.rand(2, 16, generator=torch.Generator().manual_seed(0))

    def product(first, second):
        ends = [model.cosine[[first, second]], model.sine[[first, second]]]
        query, key = decoder.rotated(x, tuple(ends))
        return query @ key

    torch.testing.assert_close(product(3, 8), product(203, 208))
    torch.testing.assert_close(product(5, 5), x[0] @ x[1])
    assert abs(product(3, 8) - product(3, 9)) > 0.01
