"""Quantising: what notebooks 43 and 44 write by hand, run from their cells."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import types
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import nbformat
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import nn

import metallab.device
from metallab import paths
from metallab.quantization import digits


def cells(page: str) -> dict[str, str]:
    """The sources of a page's cells, by their ids."""
    read = nbformat.read(paths.NOTEBOOKS / f"{page}.ipynb", as_version=4)
    return {cell.id: cell.source for cell in read.cells}


def run(page: str, *names: str, **given):
    """Run cells of a page in a module of their own, and return it with what they define.

    ``given`` stands in place of what comes before them on the page.
    """
    module = ModuleType(f"page_{page[:3]}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    module.__dict__.update(
        {"np": np, "torch": torch, "onnxruntime": onnxruntime, "onnx": onnx, **given}
    )
    sources = cells(page)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of dynamo=False
        for name in names:
            exec(compile(sources[name], f"{name}.py", "exec"), module.__dict__)
    return module


by_hand = run("44_take_int8_apart", "hand-code", "hand-scales")
SIZES = st.floats(-1e6, 1e6, width=32).map(lambda number: number if abs(number) > 1e-12 else 0.0)
NUMBERS = arrays(np.float32, array_shapes(min_dims=1, max_dims=2), elements=SIZES)
CHECKED = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,  # the same examples each time
    database=None,
    phases=[Phase.generate],  # and none made smaller
    suppress_health_check=[HealthCheck.too_slow],
)


@functools.cache
def examples() -> list[tuple[np.ndarray, int]]:
    """Return many arrays, and from 2 to 8 bits for each."""
    drawn = []

    @CHECKED
    @given(NUMBERS, st.integers(2, 8))
    def keep(x, bits):
        drawn.append((x, bits))

    keep()
    return drawn


WAYS = ["asymmetric", "symmetric"]


class Quantised(NamedTuple):
    """Numbers, how they are quantised, and with how many bits."""

    x: np.ndarray
    made: Any
    bits: int


@pytest.fixture(scope="module", params=WAYS)
def quantised(request):
    """Many arrays of numbers, quantised by hand."""
    quantise = getattr(by_hand, request.param)
    return [Quantised(x, quantise(x, bits), bits) for x, bits in examples()]


def test_the_range_is_that_of_the_bits(quantised):
    ranges = {each.made.high - each.made.low - 2**each.bits for each in quantised}
    assert ranges <= {-1, -2}
    assert all(each.made.scale > 0 for each in quantised)


def lies_in_its_range(each: Quantised) -> bool:
    q = each.made.quantize(each.x)
    return each.made.low <= q.min() and q.max() <= each.made.high


def test_quantised_numbers_lie_in_their_range(quantised):
    assert [each for each in quantised if not lies_in_its_range(each)] == []


def comes_back(each: Quantised) -> bool:
    back = each.made.dequantize(each.made.quantize(each.x))
    rounding = 1e-3 * each.made.scale + 1e-6 * np.abs(each.x)  # of float32
    return bool((np.abs(back - each.x) <= each.made.scale / 2 + rounding).all())


def test_a_number_in_the_range_comes_back_within_half_a_step(quantised):
    assert [each for each in quantised if not comes_back(each)] == []


def test_zero_comes_back_as_zero(quantised):
    zero = np.zeros(1, np.float32)
    back = {each.made.dequantize(each.made.quantize(zero)).item() for each in quantised}
    assert back == {0.0}


def is_quantised_again_alike(each: Quantised) -> bool:
    q = each.made.quantize(each.x)
    return np.array_equal(each.made.quantize(each.made.dequantize(q)), q)


def test_what_came_back_is_already_quantised(quantised):
    assert [each for each in quantised if not is_quantised_again_alike(each)] == []


def quantize_by_onnx_runtime(numbers: np.ndarray, *, scale: float, zero: int, kind: str):
    """Return the whole numbers of ONNX Runtime's operator."""
    text = f"(float[n] x, float s, {kind} z) => ({kind}[n] q) {{ q = QuantizeLinear(x, s, z) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> quantize {text}')
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    fed = {"x": numbers, "s": np.asarray(scale), "z": np.array(zero, kind)}
    return session.run(None, fed)[0]


@pytest.mark.parametrize("least", [-np.inf, 0], ids=["of both signs", "positive"])
@pytest.mark.parametrize("way", WAYS)
def test_by_hand_gives_the_whole_numbers_of_onnx_runtime(way, least):
    numbers = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    made = getattr(by_hand, way)(np.maximum(numbers, np.float32(least)))

    kind = "uint8" if made.low == 0 else "int8"
    theirs = quantize_by_onnx_runtime(numbers, scale=made.scale, zero=made.zero, kind=kind)

    # it uses -128 as well
    assert np.array_equal(np.maximum(theirs, made.low), made.quantize(numbers))


@pytest.mark.parametrize(
    ("page", "cell"),
    [
        pytest.param("43_quantize_to_int8", "kept-open", id="43"),
        pytest.param("44_take_int8_apart", "sign-code", id="44"),
    ],
)
def test_sqnr_is_in_decibels(page, cell):
    sqnr = run(page, cell, **vars(by_hand), metallab=metallab).sqnr
    x = np.float32([3, -4, 0])
    assert sqnr(x, x * np.float32(0.9)) == pytest.approx(20, abs=1e-4)
    assert sqnr(x, x) == np.inf


@pytest.fixture(scope="module")
def pair_sum():
    """Page 44's sum of two products, as int8 instructions compute it."""
    return run("44_take_int8_apart", "sums-code", pd=pd).pair_sum


IN_16 = {"most": 2**15 - 1}


def test_a_pair_of_products_by_hand(pair_sum):
    assert pair_sum(255, 127) == 64770


@pytest.mark.parametrize(
    ("pixel", "weight", "added"),
    [
        pytest.param(255, 127, 0, id="weights of 8 bits"),
        pytest.param(64, 127, 128, id="the 128 that is added takes the room"),
    ],
)
def test_a_pair_that_does_not_fit_into_16_bits_saturates(pair_sum, pixel, weight, added):
    assert pair_sum(pixel, weight, added=added, **IN_16) < pair_sum(pixel, weight)


@pytest.mark.parametrize(
    ("pixel", "added"),
    [pytest.param(255, 0, id="as it is"), pytest.param(127, 128, id="128 added")],
)
def test_weights_of_7_bits_fit_into_16_bits(pair_sum, pixel, added):
    assert pair_sum(pixel, 64, added=added, **IN_16) == pair_sum(pixel, 64)


def test_what_saturates_is_the_largest_number(pair_sum):
    assert pair_sum(255, 127, **IN_16) == 32767


PICTURES = torch.zeros(3, 1, 4, 4)
REST = 3 * ((32 + 8) + (8 + 5))
"""Numbers that pooling and the linear layer read and write."""


@pytest.fixture(scope="module")
def traffic():
    """Page 44's count of the bytes of weights and of values, for a small network."""
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 5, bias=False),
    )
    return run("44_take_int8_apart", "moves-code", network=network, pictures=PICTURES).traffic


def test_traffic_is_what_layers_read_and_write(traffic):
    weights = 4 * (2 * 9 + 8 * 5)
    assert traffic(PICTURES, 4).tolist() == [weights, 4 * (3 * (16 + 32) + REST)]


def test_traffic_of_int8_has_a_convolution_in_float32(traffic):
    weights = 4 * 18 + 40
    values = 4 * 3 * (16 + 32) + 3 * 32 * (4 + 1) + REST
    assert traffic(PICTURES, 1).tolist() == [weights, values]


@pytest.fixture(scope="module")
def trained():
    """A network whose batch norms have seen pictures, and pictures."""
    torch.manual_seed(0)
    network, pictures = digits.classifier(8), digits.load()[1].images[:32]
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = (
                None  # one pass is enough: the running statistics are those of these pictures
            )
    with torch.no_grad():
        network(pictures)
    return network.eval().requires_grad_(False), pictures


@pytest.fixture(scope="module")
def recipe(trained, tmp_path_factory):
    """Page 43's recipe, in a script that has a network, pictures and a folder."""
    network, pictures = trained
    return run(
        "43_quantize_to_int8", "recipe-export", "recipe-quantize", "recipe-call", "kept-open", "kept-code",
        network=network, pictures=pictures, folder=tmp_path_factory.mktemp("recipe"), copy=copy, pd=pd,
        test=digits.Digits(pictures, network(pictures).argmax(1)), metallab=metallab,
    )  # fmt: skip


@pytest.mark.processor
def test_the_cells_to_paste_need_nothing_else(recipe, trained):
    network, pictures = trained
    exported = torch.from_numpy(recipe.networks["float32"](pictures))
    torch.testing.assert_close(exported, network(pictures))


@pytest.mark.processor
def test_the_recipe_keeps_what_the_network_answers(recipe):
    assert recipe.kept["accuracy"]["float32"] == 1
    assert recipe.kept["SQNR [dB]"].max() == np.inf
    assert max(recipe.kept["SQNR [dB]"].iloc[1:]) > 25


@pytest.mark.processor
def test_the_recipe_counts_other_answers(recipe):
    """Of two networks for the first pictures, of which one gives the second class for every other picture."""
    judged = recipe.judge(
        {"a": lambda x: np.eye(2)[[0, 1] * 16] * 4, "b": lambda x: np.eye(2)[[0, 0] * 16] * 4}
    )
    assert judged["other answers"].tolist() == [0, 16]
    assert judged["SQNR [dB]"]["b"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("accuracy", "low", "words"),
    [
        pytest.param(0.99, 1.1, "int8 pays", id="right and faster"),
        pytest.param(0.99, 0.9, "int8 saves memory. SAID.", id="right and slower"),
        pytest.param(0.99, None, "int8 saves memory. SAID.", id="right, and no speed-up is given"),
        pytest.param(0.98, 1.1, "Do not use", id="wrong and faster"),
        pytest.param(0.99, 1.01, "16 bits beats both", id="slower than 16 bits"),
    ],
)
def test_advice_asks_for_right_answers_before_time(capsys, accuracy, low, words):
    ratios = {"16 bits": types.SimpleNamespace(low=1.05)}
    if low is not None:
        ratios["int8"] = types.SimpleNamespace(low=low, high=low + 0.02)
    kept = {"accuracy": {"float32": 0.995, "int8": accuracy}}
    many = types.SimpleNamespace(ratios=ratios, answers={"int8": "SAID"})

    run("43_quantize_to_int8", "brings-words", kept=kept, best="int8", many=many, rival="16 bits")

    assert words in capsys.readouterr().out


@pytest.fixture(scope="module")
def page_44(trained, tmp_path_factory):
    """Page 44 after it has counted in a network that was quantised both ways with 7 bits, and the folder of its files.

    What it counted are names of the module. The cells that a person pastes into a program of theirs, "script-code" and
    "script-quantize", are given nothing of what comes before them.
    """
    network, pictures = trained
    folder = tmp_path_factory.mktemp("page_44")
    with contextlib.chdir(folder):
        torch.onnx.export(network, (pictures,), "float32.onnx", input_names=["input"], dynamo=False)
        script = run("44_take_int8_apart", "script-code", "script-quantize")
        for way in WAYS:
            files = ("float32.onnx", pictures, f"{way}.onnx")
            script.quantize(*files, way == "symmetric", seven_bits=True)
        counting = {"names": tuple(WAYS), "metallab": metallab, "pd": pd}
        return run("44_take_int8_apart", "pair", "fused-count", **counting), folder


def largest_weight(path: Path) -> int:
    """The largest absolute value of the int8 weights in an ONNX file."""
    held = [onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer]
    weights = [each for each in held if each.ndim > 1 and each.dtype == np.int8]
    return max(int(np.abs(weight.astype(int)).max()) for weight in weights)


@pytest.mark.processor
def test_page_44_asks_its_processor_whether_pairs_saturate(page_44):
    page, _ = page_44
    assert page.pair in (64770, 2**15 - 1)


@pytest.mark.processor
@pytest.mark.parametrize("way", WAYS)
def test_weights_of_7_bits_are_64_at_most(page_44, way):
    _, folder = page_44
    assert largest_weight(folder / f"{way}.onnx") == 64


KINDS = ["Conv", "QLinearConv", "QuantizeLinear", "DequantizeLinear", "Relu"]


@pytest.mark.processor
@pytest.mark.parametrize(
    ("way", "counted"),
    [
        pytest.param("asymmetric", [1, 3, 1, 0, 0], id="asymmetric"),
        pytest.param("symmetric", [1, 3, 4, 3, 3], id="symmetric, where less is fused"),
    ],
)
def test_a_quantised_network_is_fused(page_44, way, counted):
    page, _ = page_44
    assert page.counts[way].reindex(KINDS).fillna(0).astype(int).tolist() == counted
