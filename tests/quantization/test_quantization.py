"""Quantising: the lines that notebook 10b writes by hand, and what 10, 10b and the benchmark share."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
import types
import warnings
from types import ModuleType

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import nn

from metallab import checks, device, isolated, paths, quantization, timing, units
from metallab.quantization import digits


def cells(page: str) -> dict[str, str]:
    """The sources of a page's cells, by their ids."""
    read = nbformat.read(paths.NOTEBOOKS / f"{page}.ipynb", as_version=4)
    return {cell.id: cell.source for cell in read.cells}


def written_by_hand() -> ModuleType:
    """The page's own class and functions as a module, from its cells."""
    sources = cells("10b_take_int8_apart")
    module = ModuleType("by_hand")
    text = "\n\n".join(["import numpy as np", *(sources[name] for name in ("hand-code", "hand-scales", "sums-pair"))])
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(text, "by_hand.py", "exec"), module.__dict__)
    return module


by_hand = written_by_hand()
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
    import onnx

    numbers = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    for x in (numbers, np.maximum(numbers, 0)):
        made = getattr(by_hand, way)(x)
        kind = "uint8" if made.low == 0 else "int8"
        text = f"(float[n] x, float s, {kind} z) => ({kind}[n] q) {{ q = QuantizeLinear(x, s, z) }}"
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> quantize {text}')
        session = quantization._session(model.SerializeToString(), threads=1)
        given = {"x": numbers, "s": np.asarray(made.scale), "z": np.array(made.zero, kind)}
        (theirs,) = session.run(None, given)
        assert np.array_equal(np.maximum(theirs, made.low), made.quantize(numbers))  # it uses -128 as well


def test_sqnr_is_in_decibels():
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


def test_outputs_that_lost_too_much_are_refused():
    x = torch.linspace(-1, 1, 9)
    enough = quantization.AtLeast(30)
    enough(x, x * 0.99)
    for worse in (x * 0.8, x * math.nan):
        with pytest.raises(checks.Mismatch, match="SQNR is"):
            enough(x, worse)


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


@pytest.fixture(scope="module")
def files(trained, tmp_path_factory):
    """The files of page 10b's cell to paste, by name, whose int8 weights have 7 bits; and `float32`."""
    network, pictures = trained
    folder, script = tmp_path_factory.mktemp("files"), {}
    exec(cells("10b_take_int8_apart")["script-code"], script)
    made = {"float32": quantization.export(network, pictures[:1], folder / "float32.onnx")}
    for name in ("asymmetric", "symmetric"):
        made[name] = folder / f"{name}.onnx"
        script["quantize"](made["float32"], pictures, made[name], name == "symmetric", seven_bits=True)
    return {name: quantization.OnnxFile(file, threads=1) for name, file in made.items()}


@pytest.mark.processor
def test_a_network_is_quantised_and_fused(trained, files):
    network, pictures = trained
    expected = network(pictures)
    checks.assert_close(expected, files["float32"](pictures), "float32")
    options = files["float32"].session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    kinds = ("Conv", "QLinearConv", "QuantizeLinear", "DequantizeLinear", "Relu")
    shown = {name: [file.optimised()[kind] for kind in kinds] for name, file in files.items()}
    assert shown["asymmetric"] == [1, 3, 1, 0, 0]
    assert shown["symmetric"] == [1, 3, 4, 3, 3]
    for name in ("asymmetric", "symmetric"):
        assert files[name].size < files["float32"].size
        assert largest_weight(files[name].path) == 64
    assert quantization.sqnr(expected, files["asymmetric"](pictures)) > 30
    assert quantization.sqnr(expected, files["symmetric"](pictures)) > 15


def largest_weight(path):
    """The largest magnitude of the int8 weights of a file."""
    import onnx

    held = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    return max(int(np.abs(weight.astype(int)).max()) for weight in held if weight.ndim > 1 and weight.dtype == np.int8)


@pytest.mark.processor
def test_sums_of_pairs_are_whole_or_saturate():
    assert quantization.largest_pair() in (64770, 2**15 - 1)
    assert quantization.saturates() == (quantization.largest_pair() < 64770)


@pytest.mark.parametrize(("computed", "saturates"), [(64770, False), (32767, True)])
def test_a_processor_of_either_kind_is_recognised(monkeypatch, computed, saturates):
    monkeypatch.setattr(quantization, "largest_pair", lambda: computed)
    assert quantization.saturates() is saturates


def test_sums_that_saturate_by_hand():
    """As on page 10b: weights of 7 bits fit into 16 bits, those of 8 do not; the 128 that is added uses room up."""
    in_16 = {"most": 2**15 - 1}
    assert by_hand.pair_sum(255, 127) == 64770
    assert by_hand.pair_sum(255, 127, **in_16) == 32767
    assert by_hand.pair_sum(64, 127, added=128, **in_16) < by_hand.pair_sum(64, 127)
    assert by_hand.pair_sum(255, 64, **in_16) == by_hand.pair_sum(255, 64)
    assert by_hand.pair_sum(127, 64, added=128, **in_16) == by_hand.pair_sum(127, 64)


def test_traffic_is_what_layers_read_and_write():
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 5, bias=False)
    )
    block = {"torch": torch, "network": network, "pictures": torch.zeros(3, 1, 4, 4), "units": units}
    exec(cells("10b_take_int8_apart")["moves-code"].split("print(")[0], block)
    x, rest = torch.zeros(3, 1, 4, 4), 3 * ((32 + 8) + (8 + 5))
    size = lambda weights, activations: f"weights {units.size(weights)}, activations {units.size(activations)}"
    assert block["traffic"](x, 4, 4) == size(4 * (2 * 9 + 8 * 5), 4 * (3 * (16 + 32) + rest))
    assert block["traffic"](x, 1, 4) == size(4 * 18 + 40, 4 * 3 * (16 + 32) + 3 * 32 * (4 + 1) + rest)


class Answers:
    """Stands for a network of one file: it gives the same scores whatever it is asked."""

    def __init__(self, scores, size):
        self.scores, self.size = scores, size

    def __call__(self, _):
        return self.scores


PICTURES = digits.Digits(torch.zeros(100, 1, 32, 32), torch.arange(100) % 10)


def scores_of(*wrong):
    """Right answers to `PICTURES`, but for those with these numbers."""
    answers = PICTURES.labels.clone()
    answers[list(wrong)] += 1
    return torch.eye(10)[answers] * 4


@pytest.fixture
def judged():
    """Of 100 pictures the reference reads 98; "close" one less, "off" three, each wrong in other places, too."""
    networks = {"float32": Answers(scores_of(0, 1), 4096), "close": Answers(scores_of(1, 2, 3), 1024)}
    return quantization.judge(networks | {"off": Answers(scores_of(*range(5)), 1024)}, PICTURES)


def test_a_network_is_judged_by_answers_and_scores(judged):
    assert judged["float32"] == quantization.Kept(4096, pytest.approx(0.98), 0.0, 0, math.inf)
    close = judged["close"]
    assert (close.size, close.accuracy, close.points) == (1024, pytest.approx(0.97), pytest.approx(-1, abs=1e-4))
    assert close.changed == 3, "two that are wrong now, and one that is right now"
    assert close.sqnr == pytest.approx(10 * math.log10(100 / 6))
    assert (close.right, judged["off"].right) == (True, False)
    assert judged.sentence("close").startswith(
        "close has 0.25 of the size of float32 and gives the same answer on 97 of"
    )
    assert judged.rows[1] == ["close", "1 KiB", "97.0%", "3 of 100", "12.2"]
    assert judged.empty == ""


def test_who_only_guesses_has_no_accuracy_to_lose():
    always = torch.eye(10)[[3] * 100]
    guessing = quantization.judge({"float32": Answers(always, 8), "int8": Answers(always * 0.9, 2)}, PICTURES)
    assert guessing.empty == guessing.note != ""
    race = types.SimpleNamespace(baseline="float32", ratios={}, withheld={})
    assert quantization.advice("int8", guessing, race).startswith("No advice")


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [
        ({"close": 0.5, "rival": 0.8}, "close pays: it is faster than float32, has 0.25 of the size"),
        ({"close": 0.5, "rival": 0.3}, "beats float32, but rival is faster still"),
        ({"close": 2.0}, "close saves memory alone: it has 0.25 of the size, loses 1.0 points of accuracy, and costs"),
        ({"off": 0.1}, "Do not use off: it loses 3.0 points of accuracy."),
        ({}, "whether it saves time is not known."),
    ],
)
def test_advice_asks_for_right_answers_before_time(judged, seconds, advice):
    name = "off" if "off" in seconds else "close"
    paired = {n: timing.Ratio(n, "float32", 1 / s, 0.995 / s, 1.005 / s, 20) for n, s in seconds.items()}
    race = types.SimpleNamespace(baseline="float32", ratios=paired, withheld={"close": "outputs differ"})
    assert advice in quantization.advice(name, judged, race)


def test_networks_race_only_if_their_scores_are_kept(trained):
    network, pictures = trained
    rival = quantization.InPyTorch(network, device.cpu())
    broken = lambda x: -rival(x)
    broken.device = rival.device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        race = quantization.race({"first": rival, "same": rival, "off": broken}, pictures, "digits", seconds=0.1)
    assert (race.baseline, race.name, race.question) == ("first", "digits", "throughput")
    assert set(race.paired) == {"same"}
    assert "wanted are 20 dB" in race.withheld["off"]


@pytest.mark.parametrize(
    ("factor", "turned", "speed", "later", "decision"),
    [
        (0.99, 0, 2.0, 0.9, "int8 beats float32; no rival was raced"),
        (0.99, 1, 2.0, 0.9, "int8 beats float32; no rival was raced"),
        (0.99, 0, 1.0, 0.9, "inconclusive: int8 saves size, and may not be faster"),
        (0.99, 0, 0.5, 0.9, "int8 saves size alone, and costs time"),
        (0.99, 3, 2.0, 0.9, "too many wrong answers"),
        (0.5, 0, 2.0, 0.9, "something is broken"),
        (0.99, 0, 4.0, 0.5, "too noisy to decide: repeat on a quiet machine"),
    ],
)
def test_the_block_for_scripts_decides(tmp_path, capsys, factor, turned, speed, later, decision):
    """Page 10's own block, with planted scores and times: who comes second takes ``later`` of its time."""
    labels = torch.arange(100) % 2
    scores = 98 + 2 * np.eye(2, dtype=np.float32)[labels]
    small = scores * np.float32(factor)
    small[range(turned), 1 - labels[:turned]] = 100
    now, calls = 0.0, 0

    class Session:
        def __init__(self, path, options):
            self.small = path.name == "int8.onnx"

        def get_inputs(self):
            return [types.SimpleNamespace(name="x")]

        def run(self, _, feed):
            nonlocal now, calls
            calls += 1
            now += (1 / speed if self.small else 1.0) * (1.0 if calls % 2 else later)
            return [(small if self.small else scores)[: len(feed["x"])]]

    block = {}
    exec(cells("10_quantize_to_int8")["script-code"], block)
    options = types.SimpleNamespace(add_session_config_entry=print)
    block["onnxruntime"] = types.SimpleNamespace(InferenceSession=Session, SessionOptions=lambda: options)
    block["time"] = types.SimpleNamespace(perf_counter=lambda: now)
    files = [tmp_path / "float32.onnx", tmp_path / "int8.onnx"]
    for file, size in zip(files, (400, 100), strict=True):
        file.write_bytes(bytes(size))
    assert block["does_int8_pay"](*files, torch.zeros(100, 3), labels) == decision
    shown = capsys.readouterr().out
    assert f"0.25 of the size, {quantization.sqnr(scores, small):.1f} dB, {turned}.0 points lost" in shown
    is_sound = decision not in ("too many wrong answers", "something is broken")
    speeds = [f"{later * speed:.2f} to {speed / later:.2f}"] if is_sound else []
    assert re.findall(r"(\S+ to \S+) times as fast", shown) == speeds
    assert block["does_int8_pay"](*files, torch.zeros(100, 3), labels * 0) == "float32 only guesses: train it first"


@pytest.mark.processor
def test_the_cells_to_paste_need_nothing_else(trained, tmp_path):
    """Page 10's recipe and its block, in a script that has a network, pictures and a folder and nothing of ours."""
    network, pictures = trained
    script = {"network": network, "pictures": pictures, "folder": tmp_path, "seven_bits": quantization.saturates()}
    sources = cells("10_quantize_to_int8")
    for name in ("recipe-export", "recipe-quantize", "recipe-call", "script-code"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            exec(sources[name], script)
    files = tmp_path / "float32.onnx", tmp_path / "int8.onnx"
    assert script["does_int8_pay"](*files, pictures, network(pictures).argmax(1)) != "something is broken"


def test_the_rival_computes_what_the_network_does(trained):
    network, pictures = trained
    rival = quantization.InPyTorch(network, device.cpu())
    assert rival.name == f"PyTorch, {units.dtype_name(rival.dtype)}"
    assert rival.dtype in (torch.bfloat16, torch.float32)
    scores = rival(pictures)
    assert (scores.dtype, scores.device.type) == (torch.float32, "cpu")
    assert quantization.sqnr(network(pictures), scores) > 25
    assert rival.size == sum(w.numel() for w in rival.model.parameters()) * rival.dtype.itemsize
    assert quantization._float_of(types.SimpleNamespace(kind="mps")) == torch.float16


def test_one_step_may_differ_and_no_more():
    expected = np.array([1, 2, 3])
    assert quantization.steps_apart(expected, np.array([1, 3, 3], np.int8)).startswith(
        "2 of 3 whole numbers are equal, 1"
    )
    with pytest.raises(checks.Mismatch, match="by up to 2 steps"):
        quantization.steps_apart(expected, np.array([1, 4, 3]))


CORE_ML = """
import os
from pathlib import Path
from metallab import converters, quantization
from metallab.quantization import digits

whole = converters.to_core_ml(digits.classifier(16).eval(), size=digits.SIZE)

import coremltools.optimize.coreml as cto

int8 = cto.OptimizationConfig(cto.OpLinearQuantizerConfig("linear_symmetric"))
packages = {"float32": whole, "int8": cto.linear_quantize_weights(whole, int8)}
rows = quantization.core_ml_sizes(packages, Path(os.environ["WORK"])).rows
"""


@pytest.mark.skipif(not importlib.util.find_spec("coremltools"), reason="coremltools is not installed")
def test_core_ml_packages_are_held_against_the_first(tmp_path):
    """What page 10b does in a cell that a quick run leaves out."""
    outcome = isolated.run(CORE_ML, results=["rows"], environment={"WORK": str(tmp_path), "TQDM_DISABLE": "1"})
    (whole, *_, nothing), (int8, _, share, kept) = outcome["rows"]
    assert (whole, nothing, int8) == ("float32", "", "int8")
    assert 0.2 < float(share) < 0.8
    assert 25 < float(kept) < 60, "8 bits"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["float32.mlpackage", "int8.mlpackage"]
