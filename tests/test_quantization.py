"""Quantising: the lines that notebook 10 writes by hand, and what it and its benchmark share."""

from __future__ import annotations

import dataclasses
import math
import sys
import warnings
from types import ModuleType

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from mutate import Rules
from torch import nn

from metallab import checks, paths, quantization, timing
from metallab.quantization import digits


def written_by_hand() -> ModuleType:
    """The page's own class and functions as a module, from its cells."""
    page = nbformat.read(paths.NOTEBOOKS / "10_quantize_to_int8.ipynb", as_version=4)
    sources = {cell.id: cell.source for cell in page.cells}
    module = ModuleType("by_hand")
    module.__source__ = "\n\n".join(
        ["import dataclasses", "import numpy as np", sources["hand-code"], sources["hand-scales"]]
    )
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(module.__source__, "by_hand.py", "exec"), module.__dict__)
    return module


BY_HAND = Rules(written_by_hand())
RULES = Rules(quantization)
NUMBERS = arrays(np.float32, array_shapes(min_dims=1, max_dims=2), elements=st.floats(-1e6, 1e6, width=32))
# the same examples each time, and none made smaller: the broken copies are many
CHECKED = settings(max_examples=150, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


@BY_HAND.rule(
    ("np.rint(x / self.scale)", "np.floor(x / self.scale)"),
    ("np.rint(x / self.scale) + self.zero", "np.rint(x / self.scale)"),
    ("(q.astype(np.float32) - self.zero)", "q.astype(np.float32)"),
    ("(q.astype(np.float32) - self.zero)", "(q - np.uint8(self.zero))"),
    ("min(x.min(), 0.0), max(x.max(), 0.0)", "x.min(), x.max()"),
    ("max((high - low) / most, TINY)", "(high - low) / most"),
    ("np.maximum(largest / most, TINY)", "largest / most"),
    ("np.abs(x).max(", "x.max("),
    ("2 ** (bits - 1) - 1", "2**bits - 1"),
)
def a_number_in_the_range_comes_back_within_half_a_step(by_hand):
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


@BY_HAND.rule(
    ("np.rint(x / self.scale)", "np.floor(x / self.scale + 0.5)"),
    ("np.clip(q, self.low, self.high)", "q"),
    ("np.clip(q, self.low, self.high)", "np.clip(q, self.low, self.high - 1)"),
    ("np.uint8 if self.low == 0 else np.int8", "np.uint8"),
)
def halves_go_to_even_and_what_is_beyond_saturates(by_hand):
    signed, unsigned = by_hand.Affine(np.float32(1), 0, -127, 127), by_hand.Affine(np.float32(2), 3, 0, 255)
    assert signed.quantize(np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32)).tolist() == [-2, 0, 0, 2, 2]
    assert signed.quantize(np.array([-1e9, -127.4, 127.4, np.inf], np.float32)).tolist() == [-127, -127, 127, 127]
    assert unsigned.quantize(np.array([-9, -7, -6, 503, 504, 506], np.float32)).tolist() == [0, 0, 0, 255, 255, 255]
    assert (signed.quantize(np.zeros(1)).dtype, unsigned.quantize(np.zeros(1)).dtype) == (np.int8, np.uint8)


@BY_HAND.rule(("max(axis=axes", "max(axis=None"), ("keepdims=axes is not None", "keepdims=False"))
def each_channel_has_its_scale(by_hand):
    weights = np.random.default_rng(0).normal(size=(4, 3, 2, 2)).astype(np.float32)
    weights *= np.array([1, 10, 100, 0], np.float32)[:, None, None, None]
    made = by_hand.symmetric(weights, axes=(1, 2, 3))
    q = made.quantize(weights)
    assert made.scale.shape == (4, 1, 1, 1)
    assert np.abs(q).max(axis=(1, 2, 3)).tolist() == [127, 127, 127, 0]
    for channel, back in zip(weights[:3], made.dequantize(q)[:3], strict=True):
        alone = by_hand.symmetric(channel)
        assert np.array_equal(back, alone.dequantize(alone.quantize(channel)))


@RULES.rule(
    ("10 * np.log10", "20 * np.log10"),
    ("np.square(reference).sum(), ", "np.square(result).sum(), "),
    ("dtype=np.float64", "dtype=np.float16"),
    ("math.inf if noise == 0 else", ""),
    ("    if reference.shape != result.shape:\n", "    if False:\n"),
    ("    if signal == 0:\n", "    if False:\n"),
)
def sqnr_is_in_decibels(quantization):
    x = torch.tensor([3.0, -4.0, 0.0])
    assert quantization.sqnr(x, x * 0.9) == pytest.approx(20, abs=1e-4)
    assert quantization.sqnr(x * 1e6, x.numpy() * 1e6 * 0.99) == pytest.approx(40, abs=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quantization.sqnr(x, x) == math.inf
    with pytest.raises(ValueError, match=r"not \(3,\) and \(1,\)"):
        quantization.sqnr(x, x[:1])
    with pytest.raises(ValueError, match="all zeros"):
        quantization.sqnr(x * 0, x)


@RULES.rule(("if not actual >= self.decibels:", "if actual < self.decibels:"), ("raise checks.Mismatch(", "str("))
def outputs_that_lost_too_much_get_no_speed_up(quantization):
    x = torch.linspace(-1, 1, 9)
    calls = {"whole": lambda: x, "good": lambda: x * 0.99, "bad": lambda: x * 0.8, "broken": lambda: x * math.nan}
    found = timing.compare(
        calls, on=timing.Host(), baseline="whole", parity=quantization.AtLeast(30), budget=timing.FAST
    )
    assert set(found.paired) == {"good"}
    assert found.withheld["bad"] == "outputs differ: SQNR is 14.0 dB, wanted are 30 dB"
    assert "nan dB" in found.withheld["broken"]
    assert found.parity == "outputs compared at 30 dB of SQNR"


@pytest.fixture(scope="module")
def trained():
    """A network whose batch norms have seen pictures, and pictures."""
    torch.manual_seed(0)
    network, pictures = digits.classifier(8), digits.load()[1].images[:32]
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # one pass is enough: the running statistics are those of these pictures
    with torch.no_grad():
        network(pictures)
    return network.eval().requires_grad_(False), pictures


@RULES.rule(
    ("any_batch=True", "any_batch=False"),
    ("quant_pre_process(raw, path)", "raw.rename(path)"),
    ('"ActivationSymmetric": choice.symmetric', '"ActivationSymmetric": not choice.symmetric'),
    ('"OpTypesToExcludeOutputQuantization": ["Gemm"]', '"OpTypesToExcludeOutputQuantization": []'),
    ("per_channel=choice.per_channel", "per_channel=False"),
    ("[] if choice.first_layer else [first]", "[]"),
    ("activation_type=kind[choice.activations]", 'activation_type=kind["uint8"]'),
    ("weight_type=kind[choice.weights]", 'weight_type=kind["int8"]'),
    ("reduce_range=choice.reduce_range", "reduce_range=False"),
    ("reduce_range=choice.reduce_range", "reduce_range=True"),
    ("_session(self.path, 1, optimized)\n            return _census(optimized)", "return _census(self.path)"),
    ("options.intra_op_num_threads = threads", "options.intra_op_num_threads = 3"),
    ('"session.intra_op.allow_spinning", "0"', '"session.intra_op.allow_spinning", "1"'),
    ("quant_format=QuantFormat.QDQ,", "quant_format=QuantFormat.QOperator,"),
)
@pytest.mark.processor
def a_network_is_quantised_and_fused(quantization, trained, tmp_path, caplog):
    network, pictures = trained
    choices = {
        "asymmetric": quantization.Choice(),
        "symmetric": quantization.Choice(activations="int8", symmetric=True),
        "uint8": quantization.Choice(weights="uint8", per_channel=False),
        "all": quantization.Choice(first_layer=True),
    }
    # what is right on every processor: where sums of pairs saturate, int8 weights need the reduced range
    names = [name for name, choice in choices.items() if choice.weights == "int8"]
    choices |= {f"{name}, 7 bits": dataclasses.replace(choices[name], reduce_range=True) for name in names}
    whole = quantization.export(network, pictures[:1], tmp_path / "float32.onnx")
    files = {
        name: quantization.quantize(whole, pictures, choice, tmp_path / f"{name}.onnx")
        for name, choice in choices.items()
    }
    assert not caplog.records, "the quantiser had something to complain about"
    engine = quantization.OnnxFile(whole, threads=1)
    expected = network(pictures)
    checks.assert_close(expected, engine(pictures), "float32")
    settings = engine.session.get_session_options()
    assert settings.intra_op_num_threads == 1
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    small = {name: quantization.OnnxFile(file, threads=1) for name, file in files.items()}
    kept = {name: quantization.sqnr(expected, made(pictures)) for name, made in small.items()}
    saturated = set(names) if quantization.saturates() else set()
    assert all(decibels > 15 for name, decibels in kept.items() if name not in saturated), kept
    assert kept["asymmetric, 7 bits"] > 30
    for name in names:
        assert (kept[f"{name}, 7 bits"] > kept[name]) == (name in saturated), kept
    for name, made in small.items():
        assert made.size < engine.size
        assert (made.written()["Conv"], made.written()["QLinearConv"]) == (4, 0)
        fused = made.optimised()
        assert (fused["Conv"], fused["QLinearConv"]) == ((0, 4) if name.startswith("all") else (1, 3)), name
    left = small["asymmetric"].optimised()
    assert left["Relu"] == left["DequantizeLinear"] == 0
    left = small["symmetric"].optimised()
    assert left["Relu"] == 3, "clipping at the zero point is no ReLU where it is not the smallest"
    kinds = {name: dtypes(file) for name, file in files.items()}
    assert kinds["asymmetric"] == ({"uint8"}, {"int8"}, True)
    assert kinds["symmetric"] == ({"int8"}, {"int8"}, True)
    assert kinds["uint8"] == ({"uint8"}, {"uint8"}, False)
    assert largest_weight(files["asymmetric"]) == 127
    assert largest_weight(files["asymmetric, 7 bits"]) == 64


def dtypes(path):
    """Of activations and of weights; and whether a weight has several scales."""
    import onnx

    graph = onnx.load(path).graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    activations = {held[node.input[2]].dtype.name for node in graph.node if node.op_type == "QuantizeLinear"}
    kept = [node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in held]
    weights = [node for node in kept if held[node.input[0]].ndim > 1]
    return activations, {held[n.input[0]].dtype.name for n in weights}, any(held[n.input[1]].ndim for n in weights)


def largest_weight(path):
    """The largest magnitude of the int8 weights of a file."""
    import onnx

    held = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    return max(int(np.abs(weight.astype(int)).max()) for weight in held if weight.ndim > 1 and weight.dtype == np.int8)


@RULES.rule(
    ("255 * 127 + 255 * 127\n", "255 * 127\n"),
    ("return largest_pair() != LARGEST_PAIR", "return largest_pair() == LARGEST_PAIR"),
    ("np.full((1, 2), 255, np.uint8)", "np.full((1, 2), 128, np.uint8)"),
)
@pytest.mark.processor
def sums_of_pairs_are_whole_or_saturate(quantization):
    """Whichever this processor does, it is told from what ONNX Runtime computes; 7 bits never saturate."""
    whole = quantization.LARGEST_PAIR
    assert whole == 64770
    assert quantization.largest_pair() in (whole, 2**15 - 1)
    assert quantization.saturates() == (quantization.largest_pair() < whole)
    assert 2 * 255 * 64 < 2**15


@pytest.mark.parametrize(("computed", "saturates"), [(64770, False), (32767, True)])
def test_a_processor_of_either_kind_is_told(monkeypatch, computed, saturates):
    monkeypatch.setattr(quantization, "largest_pair", lambda: computed)
    assert quantization.saturates() is saturates


@RULES.rule(
    ("(inputs[0].numel(), output.numel())", "(0, output.numel())"),
    ("nn.Conv2d, nn.Linear, nn.MaxPool2d,", "nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d,"),
    ("            hook.remove()\n", "            pass\n"),
    ("[first or width, *", "[width, *"),
    ("moved[0][1] * (widths[0] + width) if", "0 if"),
    ("strict=True)) + conversion", "strict=True))"),
)
def traffic_is_what_layers_read_and_write(quantization):
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 5)
    )
    x = torch.zeros(3, 1, 4, 4)
    rest = 3 * ((32 + 8) + (8 + 5))
    plain = quantization.traffic(network, x, 4)
    assert (plain.weights, plain.activations) == (4 * (2 * 9 + 8 * 5), 4 * (3 * (16 + 32) + rest))
    mixed = quantization.traffic(network, x, 1, first=4)
    assert (mixed.weights, mixed.activations) == (4 * 18 + 40, 4 * 3 * (16 + 32) + 3 * 32 * (4 + 1) + rest)
    assert quantization.traffic(network, x, 4, first=4) == plain
    assert not any(layer._forward_hooks for layer in network)


@RULES.rule(
    ("np.abs(np.asarray(y) - x).max():.3g} off", "0} off"),
    ("values = [group.get(name, 0.0)", "values = [0.0"),
    ("[ratio.low, ratio.high]", "[ratio.low, ratio.low]"),
    ("if math.isfinite(ratio.high)]", "]"),
    ("        if not any(lines.values()):\n", "        if False:\n"),
)
def pictures_show_their_numbers(quantization):
    stairs = quantization.staircase([0.0, 0.4, 1.0], {"rounded": [0.0, 0.0, 1.0]}, device="a CPU")
    assert "rounded: at most 0.4 off" in stairs.get_label()
    bars = quantization.sqnr_bars({"data": {"a": 40.0, "b": 46.0}}, heading="SQNR", device="a CPU")
    assert [bar.get_width() for bar in bars.axes[0].patches] == [40, 46]
    sure, unsure = timing.Ratio("i", "f", 2.0, 1.5, 2.5, 20), timing.Ratio("i", "f", 0.9, 0.0, math.inf, 3)
    curve = quantization.speedup_curves({"one": {8: unsure, 16: sure}}, xlabel="channels", heading="h", device="a CPU")
    intervals = [line.get_ydata() for line in curve.axes[0].lines if line.get_linewidth() == 6]
    assert [list(ends) for ends in intervals] == [[1.5, 2.5]]
    assert curve.get_label() == "one at 8: 0.90; one at 16: 2.00"
    none = quantization.speedup_curves({"one": {}}, xlabel="channels", heading="h", device="a CPU")
    assert none.get_label() == none.axes[0].texts[0].get_text() == "no speed-up may be given"
    assert all("a CPU" in figure.get_suptitle() for figure in (stairs, bars, curve))


@pytest.mark.parametrize("saturates", [True, False])
def test_the_page_shows_the_remedy_where_sums_saturate_and_says_so_where_not(monkeypatch, capsys, tmp_path, saturates):
    """Its cells as they are, with networks that lose a part of each score: half where sums saturate, else a tenth."""
    page = nbformat.read(paths.NOTEBOOKS / "10_quantize_to_int8.ipynb", as_version=4)
    sources = {cell.id: cell.source for cell in page.cells}
    monkeypatch.setattr(quantization, "saturates", lambda: saturates)
    made = []

    def in_onnx_runtime(_, choices, folder):
        made.extend(choices)
        return {n: lambda x, keeps=0.9 if c.reduce_range else 0.5: x * keeps for n, c in choices.items()}

    names = {"quantization": quantization, "dataclasses": dataclasses, "folder": tmp_path}
    names |= {"network": lambda x: x, "unseen": digits.Digits(torch.ones(3), torch.zeros(3))}
    exec(sources["ort-make"], names)
    written = list(names["choices"])
    names |= {"in_onnx_runtime": in_onnx_runtime, "engines": in_onnx_runtime(None, names["choices"], None)}
    made.clear()
    for _ in range(2):  # a reader may run a cell twice
        exec(sources["pairs-run"], names)
    said, reduced = capsys.readouterr().out, [name for name, c in names["choices"].items() if c.reduce_range]
    assert str(quantization.largest_pair()) in said
    assert [name for name in names["choices"] if name not in reduced] == written
    if saturates:
        assert {n.removesuffix(", reduced range") for n in reduced} == {n for n in written if n != "uint8 weights"}
        assert made == 2 * reduced
        assert all(f"{n.removesuffix(', reduced range')}: 6.0 dB; with the reduced range 20.0 dB" in said for n in made)
        assert "Nothing saturates" not in said
    else:
        assert not made
        assert "Nothing saturates here" in said


test_rule_holds, test_broken_rule_goes_red = RULES.tests()
test_by_hand_holds, test_broken_by_hand_goes_red = BY_HAND.tests()


def test_imaginary_parts_are_not_dropped_in_silence():
    with pytest.raises(ValueError, match="real numbers"):
        quantization.sqnr(np.array([1 + 1j]), np.array([1 + 9j]))
