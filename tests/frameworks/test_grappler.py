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


def test_without_the_remapper_nothing_is_fused_and_it_is_on_again_afterwards(inputs):
    assert grappler.read(block, *inputs, remapping=False).fused == ()
    assert tf.config.optimizer.get_experimental_options()["remapping"] is True


def test_what_its_writer_fused_is_not_called_fused(inputs):
    def normalised(x):
        return tf.compat.v1.nn.fused_batch_norm(x, tf.ones(3), tf.zeros(3))[0]

    assert grappler.read(normalised, inputs[0]).fused == ()


REFERENCE = np.random.default_rng(0).normal(size=1000)


def off_by_tolerances(factor: float) -> np.ndarray:
    """The reference, with one number off by so many tolerances of float32."""
    limit = 1e-4 * (np.abs(REFERENCE) + np.sqrt(np.mean(REFERENCE**2))) + 1e-6
    got = REFERENCE.copy()
    got[7] += factor * limit[7]
    return got


@pytest.mark.parametrize("factor", [0.2, 0.9, 1.1, 5.0])
def test_an_error_is_in_tolerances_of_the_checks(factor):
    assert grappler.error(REFERENCE, off_by_tolerances(factor)) == pytest.approx(factor, rel=1e-3)


def test_of_several_results_the_largest_error_counts():
    got = off_by_tolerances(1.1)
    several = grappler.error([REFERENCE, REFERENCE], [REFERENCE, got])
    assert several == grappler.error(REFERENCE, got)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(np.full(1000, np.nan), id="NaN"),
        pytest.param(REFERENCE[:10], id="another shape"),
    ],
)
def test_a_result_that_cannot_be_compared_has_an_infinite_error(other):
    assert grappler.error(REFERENCE, other) == np.inf


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(np.inf, 0.0, id="the same"),
        pytest.param(-np.inf, np.inf, id="the other one"),
        pytest.param(1.0, np.inf, id="a number"),
    ],
)
def test_an_infinity_agrees_with_itself_alone(other, expected):
    assert grappler.error(np.array([np.inf, 1.0]), np.array([other, 1.0])) == expected


def late_bias(dtype):
    """Right eagerly, wrong in a graph, as `relu(bias_add(matmul))` is by report on Metal."""
    x, weight, bias = (tf.constant(a, dtype) for a in ([[1.0, 2.0]], [[1.0], [-2.0]], [5.0]))

    def compute():
        if tf.inside_function():
            return tf.nn.bias_add(tf.nn.relu(x @ weight), bias)
        return tf.nn.relu(tf.nn.bias_add(x @ weight, bias))

    return compute


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
    """A device that says whether it is the one on which things are computed now."""

    def __init__(self, lab):
        self.lab, self.is_active = lab, False

    @contextlib.contextmanager
    def active(self):
        self.is_active = True
        with self.lab.active():
            yield
        self.is_active = False


def test_a_reference_is_computed_elsewhere_in_float64(lab):
    placed, seen = Placed(lab), set()

    def noting(dtype):
        compute = right(dtype)
        return lambda: (seen.add((dtype, placed.is_active)), compute())[1]

    surveyed = grappler.survey({"noting": noting}, on=placed)

    assert seen == {("float64", False), ("float32", True)}
    assert surveyed.loc["noting", "verdict"] == "agrees"
    assert surveyed.loc["noting", "ran on"] == "CPU"


def test_a_pattern_that_raises_is_wrong_with_its_first_line(lab):
    surveyed = grappler.survey({"refused": refused}, on=lab)
    expected = "WRONG: it raised UnimplementedError: no kernel for this"
    assert surveyed.loc["refused", "verdict"] == expected


@pytest.mark.parametrize(
    ("remapping", "fused"),
    [
        pytest.param(True, "_FusedMatMul(BiasAdd)", id="on"),
        pytest.param(False, "nothing fused", id="off"),
    ],
)
def test_the_remapper_may_be_off_for_a_survey(lab, remapping, fused):
    product = {"matmul + bias": grappler.common_patterns()["matmul + bias"]}
    surveyed = grappler.survey(product, on=lab, remapping=remapping)
    assert surveyed.loc["matmul + bias", "fused"] == fused


@pytest.fixture
def late_biases(monkeypatch):
    """A TensorFlow whose graphs add the bias after the ReLU; called eagerly, it is right."""
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


@pytest.mark.usefixtures("late_biases")
def test_a_bias_that_is_added_too_late_would_be_seen(lab):
    """By the shipped patterns with their own numbers."""
    every = grappler.common_patterns()
    chosen = {name: make for name, make in every.items() if name.endswith("bias + late")}
    assert list(grappler.survey(chosen, on=lab)["verdict"]) == ["WRONG in graph"] * 2


def test_a_planted_failure_is_found_where_it_is(lab):
    outcomes = grappler.survey({"late": late_bias, "eager": wrong_eagerly, "fine": right}, on=lab)
    assert list(outcomes["verdict"]) == ["WRONG in graph", "WRONG in eager", "agrees"]
    assert outcomes.loc["fine", "fused"] == "nothing fused"


def test_sound_optimizers_step_alike(lab):
    sound = grappler.steps(on=lab, names=["SGD", "Adam"])
    assert sound["verdict"].to_dict() == {"a step of SGD": "agrees", "a step of Adam": "agrees"}


def test_a_step_that_moves_the_weights_otherwise_is_found(lab, monkeypatch):
    apply = tf.keras.optimizers.SGD.apply

    def late(self, gradients, variables):
        by = 1.01 if tf.inside_function() else 1.0
        return apply(self, [gradient * by for gradient in gradients], variables)

    monkeypatch.setattr(tf.keras.optimizers.SGD, "apply", late)
    assert grappler.steps(on=lab, names=["SGD"]).loc["a step of SGD", "verdict"] == "WRONG in graph"
