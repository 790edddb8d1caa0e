"""Arrays in and out of MPSGraph: the real one on a Mac, the simulated one elsewhere."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import metalsim.graph
from metallab import mpsgraph


@pytest.fixture
def mps():
    """PyObjC's module, or its stand-in for as long as a test runs."""
    here = importlib.util.find_spec("MetalPerformanceShadersGraph") is not None
    if not here:
        metalsim.graph.install()
    import MetalPerformanceShadersGraph

    yield MetalPerformanceShadersGraph
    if not here:
        metalsim.graph.uninstall()


@pytest.fixture
def difference(mps):
    """A compiled graph of a and b, whose results are a - 2 b and 2 b."""
    graph = mps.MPSGraph.alloc().init()
    a, b = (
        graph.placeholderWithShape_dataType_name_([2, 3], mps.MPSDataTypeFloat32, name)
        for name in "ab"
    )
    two = mpsgraph.constant(graph, np.full((2, 3), 2, np.float32))
    doubled = graph.multiplicationWithPrimaryTensor_secondaryTensor_name_(b, two, None)
    result = graph.subtractionWithPrimaryTensor_secondaryTensor_name_(a, doubled, None)
    return mpsgraph.compile(graph, [a, b], [result, doubled])


class Turned:
    """An executable that takes inputs and gives outputs in the other order, as a compiler may put them."""

    def __init__(self, executable) -> None:
        self.executable = executable

    def runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        self, queue, inputs, results, descriptor
    ):
        run = self.executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
        return run(queue, inputs[::-1], results[::-1], descriptor)


def turn(program):
    """Return a program as a compiler may put it, with its inputs and outputs in the other order."""
    return replace(
        program,
        executable=Turned(program.executable),
        feeds=program.feeds[::-1],
        targets=program.targets[::-1],
    )


X, Y = (np.random.default_rng(seed).normal(size=(2, 3)).astype(np.float32) for seed in (0, 1))


@pytest.mark.parametrize(
    "change", [lambda program: program, turn], ids=["in order", "in the other order"]
)
def test_each_array_reaches_its_placeholder(difference, change):
    result, doubled = change(difference)(X, Y)
    np.testing.assert_allclose(result, X - 2 * Y, rtol=1e-6)
    np.testing.assert_allclose(doubled, 2 * Y, rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        pytest.param(
            (X, Y.astype(np.float64)),
            r"this input is float32 of shape \(2, 3\), and an array float64",
            id="another dtype",
        ),
        pytest.param(
            (X.T.copy(), Y), r"shape \(2, 3\), and an array float32 \(3, 2\)", id="another shape"
        ),
        pytest.param((X,), "takes 2 arrays, and 1 were given", id="too few"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(difference, arrays, words):
    with pytest.raises(ValueError, match=words):
        difference(*arrays)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        pytest.param("uint8", "MPSDataTypeUInt8", id="a name"),
        pytest.param(np.int8, "MPSDataTypeInt8", id="a type of NumPy"),
        pytest.param(np.dtype(bool), "MPSDataTypeBool", id="a dtype of NumPy"),
    ],
)
def test_a_dtype_has_its_number(mps, dtype, name):
    assert mpsgraph.data_type(dtype) == getattr(mps, name)


def test_a_dtype_that_metal_does_not_have_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"no float64; float32, .* cast the array with astype"):
        mpsgraph.data_type("float64")


def test_a_dtype_that_numpy_does_not_have_is_refused_with_a_way_out(mps):
    tensor = SimpleNamespace(dataType=lambda: mps.MPSDataTypeBFloat16)
    with pytest.raises(ValueError, match=r"none of float32, .*: cast it in the graph"):
        mpsgraph.dtype_of(tensor)
