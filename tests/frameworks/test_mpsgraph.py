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
    """A graph of a - 2 b, with its placeholders."""
    graph = mps.MPSGraph.alloc().init()
    a, b = (
        graph.placeholderWithShape_dataType_name_([2, 3], mps.MPSDataTypeFloat32, name)
        for name in "ab"
    )
    two = mpsgraph.constant(graph, np.full((2, 3), 2, np.float32))
    doubled = graph.multiplicationWithPrimaryTensor_secondaryTensor_name_(b, two, None)
    return (
        graph,
        a,
        b,
        graph.subtractionWithPrimaryTensor_secondaryTensor_name_(a, doubled, None),
        doubled,
    )


class Turned:
    """An executable that takes inputs and gives outputs in the other order, as a compiler may put them."""

    def __init__(self, executable) -> None:
        self.executable = executable

    def runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        self, queue, inputs, results, descriptor
    ):
        run = self.executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
        return run(queue, inputs[::-1], results[::-1], descriptor)


def test_each_array_reaches_its_placeholder(difference):
    graph, a, b, result, doubled = difference
    program = mpsgraph.compile(graph, [a, b], [result, doubled])
    x, y = (np.random.default_rng(seed).normal(size=(2, 3)).astype(np.float32) for seed in (0, 1))
    orders = {"feeds": program.feeds[::-1], "targets": program.targets[::-1]}
    for made in (program, replace(program, executable=Turned(program.executable), **orders)):
        outputs = made(x, y)
        np.testing.assert_allclose(outputs[0], x - 2 * y, rtol=1e-6)
        np.testing.assert_allclose(outputs[1], 2 * y, rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"this input is float32 of shape \(2, 3\), and an array float64"
    ):
        program(x, y.astype(np.float64))
    with pytest.raises(ValueError, match=r"shape \(2, 3\), and an array float32 \(3, 2\)"):
        program(x.T.copy(), y)
    with pytest.raises(ValueError, match="takes 2 arrays, and 1 were given"):
        program(x)


def test_dtypes_have_their_numbers(mps):
    assert mpsgraph.data_type("uint8") == mps.MPSDataTypeUInt8
    assert mpsgraph.data_type(np.int8) == mps.MPSDataTypeInt8
    assert mpsgraph.data_type(np.dtype(bool)) == mps.MPSDataTypeBool
    with pytest.raises(
        ValueError, match=r"Metal has no float64; float32, .* cast the array with astype"
    ):
        mpsgraph.data_type("float64")
    with pytest.raises(ValueError, match=r"none of float32, .*: cast it in the graph"):
        mpsgraph.dtype_of(SimpleNamespace(dataType=lambda: mps.MPSDataTypeBFloat16))
