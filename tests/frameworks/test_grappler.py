"""Optimised graphs are read as they are, and wrong results are found."""

from __future__ import annotations

import contextlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
from lazily import Lazily

from metallab import checks, device
from metallab.tensorflow import grappler

tf = Lazily("tensorflow")


@pytest.fixture(autouse=True)
def plain():
    """The remapper on, as TensorFlow starts, whatever a test left behind."""
    tf.get_logger().setLevel("ERROR")
    tf.config.optimizer.set_experimental_options({"remapping": True})


@pytest.fixture
def lab():
    return device.cpu(framework="tensorflow")


def block(x, kernel, bias):
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    return [
        tf.constant(rng.normal(size=shape), "float32")
        for shape in ((2, 8, 8, 3), (3, 3, 3, 4), (4,))
    ]


def test_a_graph_is_read_before_and_after(inputs):
    tf.function(block, jit_compile=False)(*inputs)  # must not be among what is read
    reading = grappler.read(block, *inputs)
    assert reading.fused == ("_FusedConv2D(BiasAdd, Relu)",)
    assert reading.new == ("_FusedConv2D",)
    assert reading.devices == ("CPU",)
    checks.assert_close(block(*inputs), reading.result, "float32")
    assert grappler.read(block, *inputs, remapping=False).fused == ()
    assert tf.config.optimizer.get_experimental_options()["remapping"] is True, "as it was"
    normalised = lambda x: tf.compat.v1.nn.fused_batch_norm(x, tf.ones(3), tf.zeros(3))[0]
    assert grappler.read(normalised, inputs[0]).fused == (), (
        "fused by its writer, not by the remapper"
    )


def test_errors_are_in_the_tolerances_of_the_checks():
    reference = np.random.default_rng(0).normal(size=1000)
    limit = 1e-4 * (np.abs(reference) + np.sqrt(np.mean(reference**2))) + 1e-6
    for factor in (0.2, 0.9, 1.1, 5.0):
        got = reference.copy()
        got[7] += factor * limit[7]
        assert grappler.error(reference, got) == pytest.approx(factor, rel=1e-3)
        assert grappler.error([reference, reference], [reference, got]) == grappler.error(
            reference, got
        )
    for other in (np.full(1000, np.nan), reference[:10]):
        assert grappler.error(reference, other) == np.inf


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


def test_a_reference_is_computed_elsewhere(lab):
    now, seen = [False], []

    class Placed:
        @contextlib.contextmanager
        def active(self):
            now[0] = True
            with lab.active():
                yield
            now[0] = False

    def noting(dtype):
        inner = right(dtype)
        return lambda: (seen.append((dtype, now[0])), inner())[1]

    surveyed = grappler.survey({"p": noting, "none": refused}, on=Placed())
    assert set(seen) == {("float64", False), ("float32", True)}
    assert tuple(surveyed.loc["p", ["verdict", "ran on"]]) == ("agrees", "CPU")
    assert (
        surveyed.loc["none", "verdict"] == "WRONG: it raised UnimplementedError: no kernel for this"
    )


def test_the_remapper_may_be_off_for_a_survey(lab):
    product = {"matmul + bias": grappler.common_patterns()["matmul + bias"]}
    fused = [
        grappler.survey(product, on=lab, remapping=on).loc["matmul + bias", "fused"]
        for on in (True, False)
    ]
    assert fused == ["_FusedMatMul(BiasAdd)", "nothing fused"]


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
    chosen = {
        name: make
        for name, make in grappler.common_patterns().items()
        if name.endswith("bias + late")
    }
    assert list(grappler.survey(chosen, on=lab)["verdict"]) == ["WRONG in graph"] * 2


def test_a_planted_failure_is_found(lab):
    outcomes = grappler.survey({"late": late_bias, "eager": wrong_eagerly, "fine": right}, on=lab)
    assert list(outcomes["verdict"]) == ["WRONG in graph", "WRONG in eager", "agrees"]
    assert outcomes.loc["fine", "fused"] == "nothing fused"


def test_a_step_that_moves_the_weights_otherwise_is_found(lab, monkeypatch):
    sound = grappler.steps(on=lab, names=["SGD", "Adam"])
    assert sound["verdict"].to_dict() == {"a step of SGD": "agrees", "a step of Adam": "agrees"}
    apply = tf.keras.optimizers.SGD.apply

    def late(self, gradients, variables):
        by = 1.01 if tf.inside_function() else 1.0
        return apply(self, [gradient * by for gradient in gradients], variables)

    monkeypatch.setattr(tf.keras.optimizers.SGD, "apply", late)
    assert grappler.steps(on=lab, names=["SGD"]).loc["a step of SGD", "verdict"] == "WRONG in graph"
