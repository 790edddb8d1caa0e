"""What is ours in the simulated MPSGraph: installing it, refusals, orders and packages.

What Apple's operations compute is claimed in ``tests/conformance/test_mpsgraph.py``.
"""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

import metalsim
import metalsim.graph


@pytest.fixture
def G():
    metalsim.graph.install()
    import MetalPerformanceShadersGraph

    yield MetalPerformanceShadersGraph
    metalsim.graph.uninstall()


@pytest.fixture
def data(G):
    """Make MPSGraphTensorData of an array."""

    def make(array):
        empty = G.MPSGraphTensorData.alloc()
        return empty.initWithDevice_data_shape_dataType_(
            None, array.tobytes(), array.shape, G.MPSDataTypeFloat32
        )

    return make


@pytest.fixture
def graph(G):
    return G.MPSGraph.alloc().init()


def compiled(graph, feeds, targets):
    return graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        None, dict.fromkeys(feeds), targets, None, None
    )


def run(executable, *inputs):
    return executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
        None, inputs, None, None
    )


def place(graph, shape):
    return graph.placeholderWithShape_dataType_name_(shape, 0x10000020, None)


def test_installing_is_undone():
    metalsim.graph.install()
    metalsim.graph.install()
    import Metal

    assert Metal.__simulated__
    metalsim.graph.uninstall()
    assert "Metal" not in sys.modules
    assert not metalsim.graph.is_installed()


def test_a_module_of_that_name_is_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "Metal", ModuleType("Metal"))
    with pytest.raises(metalsim.SimulationError, match="Metal"):
        metalsim.graph.install()


def test_what_is_not_simulated_is_named(graph, G):
    with pytest.raises(AttributeError, match="sortWithTensor_axis_name_"):
        graph.sortWithTensor_axis_name_(None, 0, None)
    with pytest.raises(AttributeError, match="groups"):
        G.MPSGraphConvolution2DOpDescriptor.descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_paddingStyle_dataLayout_weightsLayout_(
            2, 2, 1, 1, 1, 2, 0, 2
        )


def test_shapes_are_known_before_a_run_and_checked(graph):
    x, y = place(graph, [2, 3]), place(graph, [3, 5])
    product = graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_
    assert product(x, y, None).shape() == [2, 5]
    with pytest.raises(metalsim.graph.InvalidGraph):
        product(y, x, None)


def test_a_run_takes_what_was_compiled(graph, data):
    x = place(graph, [3])
    executable = compiled(graph, [x], [graph.reLUWithTensor_name_(x, None)])
    (result,) = run(executable, data(np.float32([-1, 0, 2])))
    assert result.tensor().tolist() == [0, 0, 2]
    for inputs in ([], [data(np.zeros(4, np.float32))]):
        with pytest.raises(metalsim.graph.InvalidGraph):
            run(executable, *inputs)
    with pytest.raises(metalsim.graph.InvalidGraph):
        run(compiled(graph, [], [x]))


def test_a_package_keeps_the_graph_and_not_its_order(graph, data, G, tmp_path):
    from Foundation import NSURL

    a, b = place(graph, [2]), place(graph, [2])
    two = graph.constantWithData_shape_dataType_(
        np.full(2, 2, np.float32).tobytes(), [2], G.MPSDataTypeFloat32
    )
    doubled = graph.multiplicationWithPrimaryTensor_secondaryTensor_name_(b, two, None)
    mean = graph.meanOfTensor_axes_name_(doubled, [0], None)
    executable = compiled(
        graph, [a, b], [graph.subtractionWithPrimaryTensor_secondaryTensor_name_(a, mean, None)]
    )
    assert executable.feedTensors() == [b, a], "a dictionary has no order on a Mac"
    url = NSURL.fileURLWithPath_(str(tmp_path / "x.mpsgraphpackage"))
    executable.serializeToMPSGraphPackageAtURL_descriptor_(url, None)
    loaded = G.MPSGraphExecutable.alloc().initWithMPSGraphPackageAtURL_compilationDescriptor_(
        url, None
    )
    assert (loaded.feedTensors(), loaded.targetTensors()) == (None, None)
    for each in (executable, loaded):
        (result,) = run(each, data(np.float32([1, 3])), data(np.float32([10, 20])))
        assert result.tensor().tolist() == [6, 16]


def test_a_missing_core_ml_package_is_named(G, tmp_path):
    from Foundation import NSURL

    url = NSURL.fileURLWithPath_(str(tmp_path / "no.mlpackage"))
    with pytest.raises(metalsim.SimulationError, match=r"no\.mlpackage"):
        G.MPSGraphExecutable.alloc().initWithCoreMLPackageAtURL_compilationDescriptor_(url, None)
