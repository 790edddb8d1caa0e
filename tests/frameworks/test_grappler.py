"""Optimised graphs are read as they are, wrong results are found and shown, and the remapper is held per call."""

from __future__ import annotations

import contextlib
import os
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from metallab import checks, device
from metallab.tensorflow import grappler

ONEDNN = _pywrap_util_port.IsMklEnabled()
"""TensorFlow computes with oneDNN, and fuses more for it, where the processor has AVX512-VNNI, AVX512-BF16 or AMX."""
tf.get_logger().setLevel("ERROR")


@pytest.fixture(autouse=True)
def plain():
    """The remapper on, as TensorFlow starts, whatever a test left behind."""
    tf.config.optimizer.set_experimental_options({"remapping": True})


@pytest.fixture
def lab():
    return device.cpu(framework="tensorflow")


def block(x, kernel, bias):
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=shape), "float32") for shape in ((2, 8, 8, 3), (3, 3, 3, 4), (4,))]


def test_a_graph_is_read_before_and_after(inputs):
    for fn in (block, tf.function(block)):
        reading = grappler.read(fn, *inputs)
        assert reading.fused == ("_FusedConv2D(BiasAdd, Relu)",)
        assert {"Conv2D", "BiasAdd", "Relu"} <= {node.op for node in reading.before}
        assert dict(reading.ops) == {"_FusedConv2D": 1}
        assert reading.new == ("_FusedConv2D",)
        assert reading.devices == ("CPU",)
        checks.assert_close(block(*inputs), reading.result, "float32")


def test_what_the_optimiser_fused_is_told_from_what_was_written_so():
    assert not grappler.Node("n", "FusedBatchNormV3").fused
    assert grappler.Node("n", "_FusedMatMul").fused
    assert grappler.Node("n", "Contraction", parts=("BiasAdd",)).fused
    assert not grappler.Node("n", "_Arg").fused


def test_collecting_ends_whatever_happens(inputs):
    def fails():
        raise RuntimeError("planned")

    with pytest.raises(RuntimeError, match="planned"):
        grappler.collect(fails)
    tf.function(block, jit_compile=False)(*inputs)  # must not be among what is collected next
    with pytest.raises(ValueError, match="no graph"):
        grappler.collect(lambda: 0)


def test_a_function_that_was_called_before_shows_nothing_and_says_so(inputs):
    known = tf.function(block, jit_compile=False)
    known(*inputs)
    with pytest.raises(ValueError, match="not called before"):
        grappler.collect(known, *inputs)


@pytest.mark.processor
def test_the_remapper_is_held_for_each_call(inputs):
    """Whichever order the calls take, each runs its own graph, and the option stays as it was.

    A graph is optimised once for each set of options, so a call that optimises nothing ran the one it had. Its result
    would not tell: the two graphs give the same bits on a processor for which TensorFlow does not use oneDNN.
    """
    rng = np.random.default_rng(0)
    x, weight, bias = (tf.constant(rng.normal(size=s), "float32") for s in ((128, 128), (128, 128), (128,)))
    compute = lambda: tf.nn.elu(tf.nn.bias_add(x @ weight, bias))
    tf.config.optimizer.set_experimental_options({"remapping": True})
    fused, apart = (grappler.under(tf.function(compute, jit_compile=False), remapping=on) for on in (True, False))
    readings = [grappler.collect(call) for call in (fused, apart)]
    assert [reading.fused for reading in readings] == [("_FusedMatMul(BiasAdd, Elu)",), ()]
    bits = {call: np.array(reading.result) for call, reading in zip((fused, apart), readings, strict=True)}
    for call in (apart, fused, apart):
        with pytest.raises(ValueError, match="no graph was optimised"):
            grappler.collect(call)
        np.testing.assert_array_equal(call(), bits[call])
    assert tf.config.optimizer.get_experimental_options()["remapping"] is True
    assert grappler.collect(tf.function(compute, jit_compile=False)).fused == readings[0].fused


def test_a_result_is_judged_as_the_checks_do():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=1000)
    for factor in (0.2, 0.9, 1.1, 5.0):  # of the tolerance, at the worst place
        limit = 1e-4 * (np.abs(reference) + np.sqrt(np.mean(reference**2))) + 1e-6
        got = reference.copy()
        got[7] += factor * limit[7]
        parity = grappler.judge("x", reference, got)
        assert parity.error == pytest.approx(factor, rel=1e-3)
        assert parity.ok == (factor < 1)
        both = grappler.judge("x", [reference, reference], [reference.copy(), got])
        assert (both.error, both.ok) == (parity.error, parity.ok)
    for other in (np.full(1000, np.nan), reference[:10]):
        parity = grappler.judge("x", reference, other)
        assert parity.error == np.inf
        assert "WRONG" in str(parity)
        assert parity.row[2].startswith("WRONG")
    assert grappler.judge("x", [reference], [reference.copy()] * 2).error == np.inf
    assert grappler.judge("x", reference, reference.copy()).row == ("x", "0", "agrees")


def late_bias(dtype):
    """Right eagerly, wrong in a graph, as `relu(bias_add(matmul))` is by report on Metal."""
    x, weight, bias = (tf.constant(a, dtype) for a in ([[1.0, 2.0]], [[1.0], [-2.0]], [5.0]))
    late = lambda: tf.nn.bias_add(tf.nn.relu(x @ weight), bias)
    right = lambda: tf.nn.relu(tf.nn.bias_add(x @ weight, bias))
    return lambda: late() if tf.inside_function() else right()


def wrong_eagerly(dtype):
    x = tf.constant([1.0, 2.0, 3.0], dtype)
    return lambda: x + x if tf.inside_function() or dtype == "float64" else x


def right(dtype):
    x = tf.constant([2.0], dtype)
    return lambda: x + x


def refused(dtype):
    def compute():
        if dtype == "float32":
            raise tf.errors.UnimplementedError(None, None, "no kernel for this\nand a long story")
        return tf.constant([1.0], dtype)

    return compute


class Placed:
    """A place that notes what is computed while it is active."""

    def __init__(self, lab):
        self.lab, self.now = lab, False

    @contextlib.contextmanager
    def active(self):
        self.now = True
        with self.lab.active():
            yield
        self.now = False


def test_patterns_are_computed_on_the_device_and_their_reference_is_not(lab):
    place, seen = Placed(lab), []

    def noting(dtype):
        inner = right(dtype)
        return lambda: (seen.append((dtype, place.now)), inner())[1]

    findings = grappler.survey([grappler.Pattern("p", noting), grappler.Pattern("none", refused)], on=place)
    assert set(seen) == {("float64", False), ("float32", True)}
    assert findings[0].ok
    assert findings[0].row[2] == "CPU"
    assert not findings[1].ok
    assert findings[1].graph.says == "it raised UnimplementedError: no kernel for this"
    assert findings[1].row[2:4] == ("-", "inf")
    product = [pattern for pattern in grappler.patterns() if pattern.name == "matmul + bias"]
    assert [grappler.survey(product, on=lab, remapping=on)[0].row[1] for on in (True, False)] == [
        "_FusedMatMul(BiasAdd)",
        "nothing fused",
    ]


def test_a_bias_that_is_added_too_late_would_be_seen(lab, monkeypatch):
    """The shipped patterns with their own numbers, on a TensorFlow whose graphs add the bias after the ReLU."""
    add, relu, kept = tf.nn.bias_add, tf.nn.relu, {}

    def forgetful(value, bias):
        if not tf.inside_function():
            return add(value, bias)
        kept["bias"] = bias
        return value

    def late(value):
        return relu(value) if not tf.inside_function() else add(relu(value), kept["bias"])

    monkeypatch.setattr(tf.nn, "bias_add", forgetful)
    monkeypatch.setattr(tf.nn, "relu", late)
    chosen = [p for p in grappler.patterns() if p.name in ("matmul + bias + late", "conv2d + bias + late")]
    assert [finding.row[-1] for finding in grappler.survey(chosen, on=lab)] == ["WRONG in graph"] * 2


def test_a_planted_failure_is_found(lab):
    planted = [grappler.Pattern("late", late_bias), grappler.Pattern("eager", wrong_eagerly)]
    survey = grappler.survey([*planted, grappler.Pattern("fine", right)], on=lab)
    late, eager, fine = survey
    assert survey.wrong == (late, eager)
    assert "late, graph: WRONG: " in repr(survey)
    assert "eager, eager: WRONG: " in survey._repr_html_()
    sound = grappler.survey([grappler.Pattern("fine", right)], on=lab)
    assert "All 1 agree with the CPU in float64, eagerly and as graphs. They ran on CPU." in repr(sound)
    assert grappler.advice(sound, grappler.Steps(), on=lab).startswith(f"Graphs on {lab.label} agree")
    assert "WRONG on" in (told := grappler.advice(survey, grappler.Steps(), on=lab))
    assert "late, eager. Compile with run_eagerly=True" in told
    assert [finding.row[-1] for finding in (late, eager, fine)] == ["WRONG in graph", "WRONG in eager", "agrees"]
    assert [finding.ok for finding in (late, eager, fine)] == [False, False, True]
    assert (late.row[0], fine.row[1]) == ("late", "nothing fused")


@pytest.mark.processor
def test_the_patterns_agree_on_the_cpu_and_fuse_as_known(lab):
    findings = {finding.pattern: finding for finding in grappler.survey(grappler.patterns(), on=lab)}
    assert len(findings) == 16
    assert not [finding.row for finding in findings.values() if not finding.ok]
    fused = {name: finding.reading.fused for name, finding in findings.items()}
    gelu = "_FusedMatMul(BiasAdd, GeluExact)" if ONEDNN else "_FusedMatMul(BiasAdd)"
    assert fused["matmul + bias + gelu"] == (gelu,)
    assert fused["matmul + bias + softplus"] == ("_FusedMatMul(BiasAdd)",)
    assert fused["conv2d + bias + tanh"] == ("_FusedConv2D(BiasAdd)",)
    assert fused["conv2d + fused_batch_norm + relu"] == ("_FusedConv2D(FusedBatchNorm, Relu)",)
    assert fused["conv2d + Keras BatchNormalization"] == fused["Keras LSTM"] == ()


def test_a_training_step_that_moves_the_weights_otherwise_is_found(lab, monkeypatch):
    sound = grappler.steps(on=lab, names=["SGD", "Adam"])
    assert list(sound) == ["SGD", "Adam"]
    assert sound.wrong == ()
    apply = tf.keras.optimizers.SGD.apply

    def late(self, gradients, variables):
        by = 1.01 if tf.inside_function() else 1.0
        return apply(self, [gradient * by for gradient in gradients], variables)

    monkeypatch.setattr(tf.keras.optimizers.SGD, "apply", late)
    planted = grappler.steps(on=lab, names=["SGD"])
    assert planted.wrong == ("SGD",)
    assert "WRONG: " in planted._repr_html_()
    assert "a step of SGD" in grappler.advice(grappler.Survey(), planted, on=lab)


def test_what_a_setting_did_is_said():
    def finding(name, wrong=False, fused=False):
        nodes = (grappler.Node("a", "_FusedMatMul", parts=("BiasAdd",)),) if fused else ()
        parity = grappler.GraphParity(name, 9.0, "it differs") if wrong else grappler.GraphParity(name, 0.1)
        return grappler.PatternResult(name, grappler.Reading((), nodes), grappler.GraphParity(name, 0.1), parity)

    good, bad = finding("a"), finding("b", wrong=True, fused=True)
    assert "1 of 2 patterns were fused (0 without it)" in grappler.effect([good, good], [good, bad], "OFF=1")
    for before, after, message in (
        ([good], [good], "With OFF=1.*nothing to repair"),
        ([good], [bad], "now these are wrong: b"),
        ([bad], [finding("b")], "now agrees: b. Set it"),
        ([bad, good], [bad, good], "still wrong: b. Compute these eagerly"),
    ):
        assert re.search(message, grappler.effect(before, after, "OFF=1")), message


def test_graphs_are_drawn_side_by_side(inputs):
    from matplotlib.colors import to_hex

    reading = grappler.read(block, *inputs)
    figure = grappler.draw({"written": reading.before, "optimised": reading.after}, heading="A block", device="CPU")
    before, after = ({text.get_text(): text for text in axes.texts if text.get_text()} for axes in figure.axes)
    assert set(before) == {"x", "kernel", "bias", "Conv2D", "BiasAdd", "Relu", "result"}
    assert set(after) == {"x", "kernel", "bias", "_FusedConv2D\nBiasAdd + Relu", "result"}
    rows = {words: text.get_position()[1] for words, text in before.items()}
    chain = ["x", "Conv2D", "BiasAdd", "Relu", "result"]
    assert [rows[words] for words in chain] == [0, -1, -2, -3, -4]
    assert rows["bias"] == -1, "an argument stands beside the step that is done when it is needed"
    edge = to_hex(after["_FusedConv2D\nBiasAdd + Relu"].get_bbox_patch().get_edgecolor())
    assert edge == "#e69f00"
    assert "Conv2D -> BiasAdd -> Relu" in figure.get_label()
    assert "_FusedConv2D(BiasAdd, Relu)" in figure.get_label()
    assert "CPU" in figure.get_suptitle()


def test_a_large_graph_with_loops_is_counted():
    lstm = next(pattern for pattern in grappler.patterns() if pattern.name == "Keras LSTM")
    nodes = grappler.read(lstm.make("float32")).after
    small = (grappler.Node("0/x", "_Arg"), grappler.Node("0/y", "Relu", ("0/x",)))
    figure = grappler.draw({"small": small, "large": nodes}, heading="An LSTM", device="CPU")
    (words,) = (text.get_text() for text in figure.axes[1].texts)
    assert words.startswith("too many to draw")
    assert "TensorList" in figure.get_label()
    assert {text.get_text() for text in figure.axes[0].texts if text.get_text()} == {"x", "Relu"}
