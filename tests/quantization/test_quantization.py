"""Quantising: what notebooks 43 and 44 write by hand, run from their cells."""

from __future__ import annotations

import sys
import types
import warnings
from types import ModuleType

import nbformat
import numpy as np
import onnx
import onnxruntime
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
    """What cells of a page define, with ``given`` in place of what comes before them."""
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


def test_a_number_in_the_range_comes_back_within_half_a_step():
    @CHECKED
    @given(NUMBERS, st.integers(2, 8))
    def holds(x, bits):
        for made in (by_hand.asymmetric(x, bits), by_hand.symmetric(x, bits)):
            assert made.scale > 0
            q = made.quantize(x)
            assert made.low <= q.min()
            assert q.max() <= made.high
            assert made.high - made.low in (2**bits - 1, 2**bits - 2)
            back = made.dequantize(q)
            rounding = 1e-3 * made.scale + 1e-6 * np.abs(x)  # of float32
            assert (np.abs(back - x) <= made.scale / 2 + rounding).all()
            assert made.dequantize(made.quantize(np.zeros(1, np.float32))) == 0
            assert np.array_equal(made.quantize(back), q), "what came back is already quantised"

    holds()


@pytest.mark.parametrize("way", ["asymmetric", "symmetric"])
def test_by_hand_gives_the_whole_numbers_of_onnx_runtime(way):
    numbers = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    for x in (numbers, np.maximum(numbers, 0)):
        made = getattr(by_hand, way)(x)
        kind = "uint8" if made.low == 0 else "int8"
        text = f"(float[n] x, float s, {kind} z) => ({kind}[n] q) {{ q = QuantizeLinear(x, s, z) }}"
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> quantize {text}')
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        fed = {"x": numbers, "s": np.asarray(made.scale), "z": np.array(made.zero, kind)}
        (theirs,) = session.run(None, fed)
        assert np.array_equal(
            np.maximum(theirs, made.low), made.quantize(numbers)
        )  # it uses -128 as well


@pytest.mark.parametrize(
    ("page", "cell"), [("43_quantize_to_int8", "kept-open"), ("44_take_int8_apart", "sign-code")]
)
def test_sqnr_is_in_decibels(page, cell):
    sqnr = run(page, cell, **vars(by_hand), metallab=metallab).sqnr
    x = np.float32([3, -4, 0])
    assert sqnr(x, x * np.float32(0.9)) == pytest.approx(20, abs=1e-4)
    assert sqnr(x, x) == np.inf


def test_sums_that_saturate_by_hand():
    """As on page 44: weights of 7 bits fit into 16 bits, those of 8 do not; the 128 that is added uses room up."""
    import pandas as pd

    pair_sum, in_16 = run("44_take_int8_apart", "sums-code", pd=pd).pair_sum, {"most": 2**15 - 1}
    assert pair_sum(255, 127) == 64770
    assert pair_sum(255, 127, **in_16) == 32767
    assert pair_sum(64, 127, added=128, **in_16) < pair_sum(64, 127)
    assert pair_sum(255, 64, **in_16) == pair_sum(255, 64)
    assert pair_sum(127, 64, added=128, **in_16) == pair_sum(127, 64)


def test_traffic_is_what_layers_read_and_write():
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 5, bias=False),
    )
    x, rest = torch.zeros(3, 1, 4, 4), 3 * ((32 + 8) + (8 + 5))
    traffic = run("44_take_int8_apart", "moves-code", network=network, pictures=x).traffic
    assert traffic(x, 4).tolist() == [4 * (2 * 9 + 8 * 5), 4 * (3 * (16 + 32) + rest)]
    assert traffic(x, 1).tolist() == [4 * 18 + 40, 4 * 3 * (16 + 32) + 3 * 32 * (4 + 1) + rest]


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


@pytest.mark.processor
def test_the_cells_to_paste_need_nothing_else(trained, tmp_path):
    """Page 43's recipe, in a script that has a network, pictures and a folder; and what it keeps."""
    import copy

    import pandas as pd

    network, pictures = trained
    page = run(
        "43_quantize_to_int8", "recipe-export", "recipe-quantize", "recipe-call", "kept-open", "kept-code",
        network=network, pictures=pictures, folder=tmp_path, copy=copy, pd=pd,
        test=digits.Digits(pictures, network(pictures).argmax(1)), metallab=metallab,
    )  # fmt: skip
    assert page.kept["accuracy"]["float32"] == 1
    assert page.kept["SQNR [dB]"].max() == np.inf
    assert max(page.kept["SQNR [dB]"].iloc[1:]) > 25
    torch.testing.assert_close(
        torch.from_numpy(page.networks["float32"](pictures)), network(pictures)
    )
    wrong = page.judge(
        {"a": lambda x: np.eye(2)[[0, 1] * 16] * 4, "b": lambda x: np.eye(2)[[0, 0] * 16] * 4}
    )
    assert wrong["other answers"].tolist() == [0, 16]
    assert wrong["SQNR [dB]"]["b"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("accuracy", "low", "words"),
    [
        (0.99, 1.1, "int8 pays"),
        (0.99, 0.9, "int8 saves memory. SAID."),
        (0.99, None, "int8 saves memory. SAID."),
        (0.98, 1.1, "Do not use"),
        (0.99, 1.01, "16 bits beats both"),
    ],
)
def test_advice_asks_for_right_answers_before_time(capsys, accuracy, low, words):
    ratios = {"16 bits": types.SimpleNamespace(low=1.05)}
    ratios |= {} if low is None else {"int8": types.SimpleNamespace(low=low, high=low + 0.02)}
    kept = {"accuracy": {"float32": 0.995, "int8": accuracy}}
    many = types.SimpleNamespace(ratios=ratios, answers={"int8": "SAID"})
    run("43_quantize_to_int8", "brings-words", kept=kept, best="int8", many=many, rival="16 bits")
    assert words in capsys.readouterr().out


@pytest.mark.processor
def test_a_network_is_quantised_and_fused(trained, tmp_path, monkeypatch):
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    network, pictures = trained
    names = ("script-code", "script-quantize", "pair", "fused-count")
    torch.onnx.export(network, (pictures,), "float32.onnx", input_names=["input"], dynamo=False)
    given_names = {"names": ("asymmetric", "symmetric"), "metallab": metallab, "pd": pd}
    page = run("44_take_int8_apart", *names[:3], **given_names)
    assert page.pair in (64770, 2**15 - 1)
    quantised = run("44_take_int8_apart", *names[:2])
    for name in given_names["names"]:
        quantised.quantize(
            "float32.onnx", pictures, f"{name}.onnx", name == "symmetric", seven_bits=True
        )
        held = [
            onnx.numpy_helper.to_array(tensor)
            for tensor in onnx.load(f"{name}.onnx").graph.initializer
        ]
        weights = [each for each in held if each.ndim > 1 and each.dtype == np.int8]
        assert max(int(np.abs(weight.astype(int)).max()) for weight in weights) == 64
    kinds = ["Conv", "QLinearConv", "QuantizeLinear", "DequantizeLinear", "Relu"]
    counted = run("44_take_int8_apart", *names[2:], **given_names).counts
    shown = {
        name: counts.reindex(kinds).fillna(0).astype(int).tolist()
        for name, counts in counted.items()
    }
    assert shown == {"asymmetric": [1, 3, 1, 0, 0], "symmetric": [1, 3, 4, 3, 3]}
