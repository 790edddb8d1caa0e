"""The small language model: its text is split cleanly, caches change nothing, few bits are what they cost."""

from __future__ import annotations

import copy
import json
import math
import types

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


def test_no_paragraph_stands_in_two_parts_of_the_text(text):
    training, validation, test = (
        set(part.split("\n\n")) for part in (text.training, text.validation, text.test)
    )
    assert training.isdisjoint(validation)
    assert training.isdisjoint(test)
    assert validation.isdisjoint(test)


def test_each_part_of_the_text_is_long_enough(text):
    assert len(text.training) > 250_000
    assert len(text.validation) > 10_000
    assert len(text.test) > 30_000


def test_the_text_has_known_characters_alone(text):
    assert set(text.training + text.validation + text.test) <= set(corpus.CHARACTERS)


def test_text_there_and_back(text):
    assert corpus.decode(corpus.encode(text.test[:500])) == text.test[:500]


def test_a_character_that_is_not_in_the_vocabulary_is_named():
    with pytest.raises(ValueError, match="'é' is not in the vocabulary"):
        corpus.encode("café")


def test_a_token_sees_those_before_it_and_none_after_it(small):
    tokens = torch.arange(20)[None] % 96
    changed = tokens.clone()
    changed[0, 10:] = 5

    before, after = small(tokens), small(changed)

    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


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


def test_a_fixed_cache_beyond_the_context_is_refused(small):
    with pytest.raises(ValueError, match="1 to 300"):
        decoder.FixedCache(small, 301)


def cells_of(*names, number="31", **given):
    """Run cells of page 31, or of the page with this number, by their ids; return all names that there are then.

    Before them there are what the page's set-up imports, and what is given.
    """
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


@pytest.fixture(scope="module")
def scored(small, text):
    """What page 31's cell defines that scores a model."""
    of_this_text = types.SimpleNamespace(load=lambda: text, encode=corpus.encode)
    return cells_of("cost-score", corpus=of_this_text, models={"32 bits": small})


def test_the_page_s_bits_are_those_of_the_training_script(scored, small, text):
    bits = bits_per_character(small, text.test[:10_000])
    np.testing.assert_allclose(scored["scores"]["32 bits"], bits, rtol=1e-6)


def test_the_page_s_interval_is_1_96_standard_errors_wide_on_each_side(scored):
    expected = (2 - 1.96 / 3**0.5, 2 + 1.96 / 3**0.5)
    assert scored["interval"](np.array([1.0, 2.0, 3.0])) == pytest.approx(expected)


@pytest.fixture(scope="module")
def linear():
    torch.manual_seed(0)
    return nn.Linear(64, 16, bias=False).requires_grad_(False)


@pytest.mark.parametrize(("bits", "most"), [(8, 0.004), (4, 0.07)])
def test_few_bits_are_off_by_half_a_step(page, linear, bits, most):
    packed = page["Packed"](linear, bits, 32)
    groups = linear.weight.unflatten(1, (-1, 32))
    step = (groups.amax(2) - groups.amin(2)) / (2**bits - 1)

    error = (packed.weight.unflatten(1, (-1, 32)) - groups).abs().amax(2)

    assert (error <= 0.5 * step + 1e-3 * groups.abs().amax(2)).all()
    assert 0 < error.max() / groups.abs().max() < most


@pytest.mark.parametrize("bits", [8, 4])
def test_a_packed_layer_has_the_weights_that_are_rounded_to_few_bits(page, linear, bits):
    packed = page["Packed"](linear, bits, 32)
    torch.testing.assert_close(packed.weight, page["round_to"](linear.weight, bits))


@pytest.mark.parametrize("bits", [8, 4])
def test_a_packed_layer_multiplies_by_its_weights(page, linear, bits):
    packed, x = page["Packed"](linear, bits, 32), torch.rand(3, 64)
    torch.testing.assert_close(packed(x), x @ packed.weight.T)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_packed_layer_takes_its_bits_and_one_a_weight_for_its_groups(page, linear, bits):
    packed = page["Packed"](linear, bits, 32)
    taken = 8 * sum(part.nbytes for part in packed.state_dict().values())
    assert taken == 64 * 16 * (bits + 32 / 32)


def test_any_model_can_be_shrunk(page):
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    small = page["shrunk"](model, 8, group=8)
    assert [type(layer).__name__ for layer in small] == ["Packed", "ReLU", "Packed"]


def test_a_shrunk_model_keeps_its_biases(page):
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    x = torch.zeros(2, 64)  # what is left is the biases' doing
    assert model(x).abs().max() > 0
    torch.testing.assert_close(page["shrunk"](model, 8, group=8)(x), model(x), atol=0.01, rtol=0)


def test_a_shrunk_decoder_computes_nearly_the_same(small, page):
    tokens = torch.arange(30)[None]
    truth = small(tokens)
    eight, four = (page["shrunk"](small, bits)(tokens) for bits in (8, 4))
    assert 0 < (eight - truth).abs().max() < (four - truth).abs().max() < truth.abs().max()


def test_shrinking_leaves_the_model_as_it_was(small, page):
    page["shrunk"](small, 8)
    assert isinstance(small.head, nn.Linear)


@pytest.fixture(scope="module")
def saved(small, tmp_path_factory):
    """The file of a decoder's weights, and its checksum."""
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    return path, save(small, path, {"script": "a test"})


def test_saved_weights_come_back_in_half_precision(small, saved):
    again, weights = decoder.load(*saved).state_dict(), small.state_dict()
    assert again.keys() == weights.keys()
    rounded = {name: weight.half().float() for name, weight in weights.items()}
    assert [name for name in again if not torch.equal(again[name], rounded[name])] == []


def test_weights_with_another_checksum_are_refused_with_the_way_back(saved):
    path, _ = saved
    with pytest.raises(ValueError, match="git checkout -- utils/metallab/language/data"):
        decoder.load(path, "0" * 64)


def test_a_weight_that_is_too_large_for_half_precision_is_not_saved(tmp_path):
    broken = decoder.Decoder(SMALL)
    with torch.no_grad():
        broken.head.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"not finite in half precision.*head\.weight"):
        save(broken, tmp_path / "weights.safetensors")


@pytest.mark.nightly
def test_training_learns_and_keeps_its_best(text, tmp_path):
    given = ["--steps", "12", "--batch", "4", "--device", "cpu", "--dropout", "0", "--out"]
    short = corpus.Corpus(text.training, text.validation[:1500], text.test[:1500])

    model, made = train(short, SMALL, torch.device("cpu"), parse_arguments([*given, str(tmp_path)]))

    score = bits_per_character(model, short.validation).mean()
    assert made["best_step"] == 12
    assert made["validation"] < math.log2(96) - 0.5
    assert score == pytest.approx(made["validation"], rel=1e-3)


RECORD = json.loads(decoder.WEIGHTS.with_suffix(".json").read_text("utf-8"))


def test_the_record_names_the_weights_and_the_text():
    assert RECORD["sha256"] == decoder.SHA256
    assert RECORD["text"] == corpus.SHA256


def test_the_weights_have_the_score_of_their_record(text):
    score = bits_per_character(decoder.load(), text.test[:4000])
    assert score.mean() == pytest.approx(RECORD["test"], abs=0.3)


def rotated_product(first: int, second: int) -> torch.Tensor:
    """The product of two vectors, rotated for two places in a text."""
    model = decoder.Decoder(SMALL)
    ends = model.cosine[[first, second]], model.sine[[first, second]]
    query, key = decoder.rotate(TWO, ends)
    return query @ key


TWO = torch.rand(2, 16, generator=torch.Generator().manual_seed(0))


def test_a_rotation_tells_distances():
    assert abs(rotated_product(3, 8) - rotated_product(3, 9)) > 0.01


def test_a_rotation_tells_nothing_but_the_distance():
    torch.testing.assert_close(rotated_product(3, 8), rotated_product(203, 208))


def test_a_rotation_by_one_place_changes_no_product():
    torch.testing.assert_close(rotated_product(5, 5), TWO[0] @ TWO[1])


@pytest.fixture(scope="module")
def page_32():
    return cells_of("idea-code", "merge-code", number="32")


@pytest.fixture
def adapted(page_32, small):
    """A decoder with adapters of rank 4, which have learned nothing."""
    return page_32["adapt"](small, seed=1, rank=4)


def teach(adapted, layer: type[nn.Module]) -> None:
    """Give each adapter some numbers, as if it had learned."""
    torch.manual_seed(0)
    for part in adapted.modules():
        if isinstance(part, layer):
            nn.init.normal_(part.B, std=0.1)


TOKENS = torch.arange(30)[None]


def test_an_adapter_starts_as_nothing(adapted, small):
    assert torch.equal(adapted(TOKENS), small(TOKENS))


def test_only_the_sides_of_adapters_are_trained(adapted):
    sides = 2 * (32 + 96 + 32 + 32 + 32 + 128 + 64 + 32)  # of two layers
    trained = [weight.numel() for weight in adapted.parameters() if weight.requires_grad]
    assert sum(trained) == 4 * sides


def test_a_merged_adapter_computes_what_it_has_learned(adapted, page_32, small):
    teach(adapted, page_32["LoRA"])
    merged = page_32["merge"](adapted)
    torch.testing.assert_close(merged(TOKENS), adapted(TOKENS), rtol=1e-5, atol=1e-4)
    assert not torch.allclose(merged(TOKENS), small(TOKENS), rtol=0.01)


def test_a_merged_adapter_has_the_weights_of_a_plain_decoder(adapted, page_32, small):
    assert [*page_32["merge"](adapted).state_dict()] == [*small.state_dict()]


@pytest.fixture(scope="module")
def counted():
    """What page 32's cells on packing and counting define."""
    return cells_of("qlora-pack", "fit-count", number="32")


def test_page_32_packs_as_page_31(counted, page, linear):
    assert torch.equal(counted["Packed"](linear).weight, page["Packed"](linear, 4, 32).weight)


def test_page_32_counts_bytes_as_page_30(counted):
    needs = cells_of("fit-count", number="30")["needs"]
    llama = dict(zip(counted["names"], counted["llamas"]["8B"], strict=False))
    assert counted["needs"](5, 512, **llama) == needs(5, 512, **llama)


def test_page_32_counts_the_weights_of_an_adapter(counted):
    expected = 16 * 8 * (2 * 4096 + 2 * 2560 + 3 * 10240)
    assert counted["adapters"]["1B"] == pytest.approx(expected, rel=0.01)
