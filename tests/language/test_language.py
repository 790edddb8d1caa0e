"""The small language model: its text is split cleanly, caches change nothing, few bits are what they cost."""

from __future__ import annotations

import copy
import json
import math

import nbformat
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from train_decoder import bits_per_character, parse_arguments, save, train

from metallab import paths
from metallab.language import corpus, decoder

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


def cells_of(*names, number="31", **given):
    """What cells of page 31 define, or of the page with this number."""
    (path,) = paths.NOTEBOOKS.glob(f"{number}_*.ipynb")
    page = nbformat.read(path, as_version=4)
    sources = {cell.id: cell.source for cell in page.cells}
    space = {
        "torch": torch,
        "nn": nn,
        "F": functional,
        "np": np,
        "copy": copy,
        "corpus": corpus,
        "device": "cpu",
    } | given
    for name in names:
        exec(sources[name], space)
    return space


@pytest.fixture(scope="module")
def page():
    return cells_of("idea-code", "pack-code", "first-write")


def test_writing_is_the_same_with_and_without_a_cache(small, page):
    caches = [None, decoder.GrowingCache(), decoder.FixedCache(small, 60)]
    assert len({page["write"](small, "The ", 40, cache) for cache in caches}) == 1


def test_bits_are_those_of_a_known_model(text):
    """A model whose logits are all alike costs log2(96) bits."""
    model = decoder.Decoder(SMALL).eval()
    nn.init.zeros_(model.head.weight)
    score = bits_per_character(model, text.test[:3000])
    assert score == pytest.approx(np.full((2999 - 128) // 128, math.log2(96)), rel=1e-5)


def test_bits_are_the_cross_entropy_of_the_second_half(small, text):
    part = text.test[:257]
    tokens = corpus.encode(part)
    logits = small(tokens[None, :-1])[0]
    wanted = functional.cross_entropy(logits[128:], tokens[129:]).item() / math.log(2)
    assert bits_per_character(small, part) == pytest.approx([wanted], rel=1e-4)


def test_the_page_s_bits_are_those_of_the_training_script(small, text):
    class Corpus:
        load, encode = staticmethod(lambda: text), staticmethod(corpus.encode)

    own = cells_of("cost-score", corpus=Corpus, models={"32 bits": small})
    np.testing.assert_allclose(
        own["scores"]["32 bits"], bits_per_character(small, text.test[:10_000]), rtol=1e-6
    )
    low, high = own["interval"](np.array([1.0, 2.0, 3.0]))
    assert (low, high) == (pytest.approx(2 - 1.96 / 3**0.5), pytest.approx(2 + 1.96 / 3**0.5))


@pytest.mark.parametrize(("bits", "most"), [(8, 0.004), (4, 0.07)])
def test_few_bits_are_off_by_half_a_step(page, bits, most):
    linear = nn.Linear(64, 16, bias=False)
    packed = page["Packed"](linear, bits, 32)
    groups = linear.weight.detach().unflatten(1, (-1, 32))
    step = (groups.amax(2) - groups.amin(2)) / (2**bits - 1)
    error = (packed.weight.unflatten(1, (-1, 32)) - groups).abs().amax(2)
    assert (error <= 0.5 * step + 1e-3 * groups.abs().amax(2)).all()
    assert 0 < error.max() / groups.abs().max() < most
    torch.testing.assert_close(packed.weight, page["round_to"](linear.weight.detach(), bits))
    x = torch.rand(3, 64)
    torch.testing.assert_close(packed(x), x @ packed.weight.T)
    assert sum(part.nbytes for part in packed.state_dict().values()) * 8 == 64 * 16 * (
        bits + 32 / 32
    )


def test_any_model_can_be_shrunk(page):
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    small = page["shrunk"](model, 8, group=8)
    assert [type(layer).__name__ for layer in small] == ["Packed", "ReLU", "Packed"]
    x = torch.zeros(2, 64)  # what is left is the biases' doing
    assert model(x).abs().max() > 0
    torch.testing.assert_close(small(x), model(x), atol=0.01, rtol=0)


def test_a_shrunk_decoder_computes_nearly_the_same(small, page):
    tokens = torch.arange(30)[None]
    truth, eight, four = (
        small(tokens),
        page["shrunk"](small, 8)(tokens),
        page["shrunk"](small, 4)(tokens),
    )
    assert 0 < (eight - truth).abs().max() < (four - truth).abs().max() < truth.abs().max()
    assert isinstance(small.head, nn.Linear), "the reference is left as it was"


def test_weights_there_and_back(small, tmp_path):
    path = tmp_path / "weights.safetensors"
    sha256 = save(small, path, {"script": "a test"})
    again = decoder.load(path, sha256)
    for name, weight in small.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight.half().float()), name
    with pytest.raises(ValueError, match="git checkout -- utils/metallab/language/data"):
        decoder.load(path, "0" * 64)
    broken = decoder.Decoder(SMALL)
    with torch.no_grad():
        broken.head.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"not finite in half precision.*head\.weight"):
        save(broken, path)


@pytest.mark.nightly
def test_training_learns_and_keeps_its_best(text, tmp_path):
    given = [
        "--steps",
        "12",
        "--batch",
        "4",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
        "--dropout",
        "0",
    ]
    short = corpus.Corpus(text.training, text.validation[:1500], text.test[:1500])
    model, made = train(short, SMALL, torch.device("cpu"), parse_arguments(given))
    assert made["best_step"] == 12
    assert bits_per_character(model, short.validation).mean() == pytest.approx(
        made["validation"], rel=1e-3
    )
    assert made["validation"] < math.log2(96) - 0.5


def test_the_weights_are_those_of_their_record(text):
    record = json.loads(decoder.WEIGHTS.with_suffix(".json").read_text("utf-8"))
    assert (record["sha256"], record["text"]) == (decoder.SHA256, corpus.SHA256)
    score = bits_per_character(decoder.load(), text.test[:4000])
    assert score.mean() == pytest.approx(record["test"], abs=0.3)


def test_a_rotation_tells_distances_and_nothing_else():
    model = decoder.Decoder(SMALL)
    x = torch.rand(2, 16, generator=torch.Generator().manual_seed(0))

    def product(first, second):
        ends = [model.cosine[[first, second]], model.sine[[first, second]]]
        query, key = decoder.rotate(x, tuple(ends))
        return query @ key

    torch.testing.assert_close(product(3, 8), product(203, 208))
    torch.testing.assert_close(product(5, 5), x[0] @ x[1])
    assert abs(product(3, 8) - product(3, 9)) > 0.01


def test_an_adapter_starts_as_nothing_and_merges(small):
    own = cells_of("idea-code", "merge-code", number="32")
    tokens = torch.arange(30)[None]
    adapted = own["adapt"](small, seed=1, rank=4)
    assert torch.equal(adapted(tokens), small(tokens))
    sides = 2 * (32 + 96 + 32 + 32 + 32 + 128 + 64 + 32)  # of two layers
    assert (
        sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad) == 4 * sides
    )
    for layer in [part for part in adapted.modules() if isinstance(part, own["LoRA"])]:
        nn.init.normal_(layer.B, std=0.1)
    merged = own["merge"](adapted)
    assert [*merged.state_dict()] == [*small.state_dict()]
    torch.testing.assert_close(merged(tokens), adapted(tokens), rtol=1e-5, atol=1e-4)
    assert not torch.allclose(merged(tokens), small(tokens), rtol=0.01)


def test_page_32_counts_and_packs_as_pages_30_and_31(page):
    own = cells_of("qlora-pack", "fit-count", number="32")
    needs = cells_of("fit-count", number="30")["needs"]
    linear, llama = (
        nn.Linear(64, 16, bias=False),
        dict(zip(own["names"], own["llamas"]["8B"], strict=False)),
    )
    assert torch.equal(own["Packed"](linear).weight, page["Packed"](linear, 4, 32).weight)
    assert own["needs"](5, 512, **llama) == needs(5, 512, **llama)
    assert own["adapters"]["1B"] == pytest.approx(
        16 * 8 * (2 * 4096 + 2 * 2560 + 3 * 10240), rel=0.01
    )
