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


def test_an_operation_that_is_not_simulated_is_named(graph):
    with pytest.raises(AttributeError, match="sortWithTensor_axis_name_"):
        graph.sortWithTensor_axis_name_(None, 0, None)


def test_a_setting_that_is_not_simulated_is_named(G):
    with pytest.raises(AttributeError, match="groups"):
        G.MPSGraphConvolution2DOpDescriptor.descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_paddingStyle_dataLayout_weightsLayout_(
            2, 2, 1, 1, 1, 2, 0, 2
        )


@pytest.fixture
def product(graph):
    """A function that adds a product of two placeholders, given by their shapes, to a graph."""

    def multiply(first, second):
        x, y = place(graph, first), place(graph, second)
        return graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(x, y, None)

    return multiply


def test_shapes_are_known_before_a_run(product):
    assert product([2, 3], [3, 5]).shape() == [2, 5]


def test_shapes_that_do_not_fit_are_refused_before_a_run(product):
    with pytest.raises(metalsim.graph.InvalidGraph):
        product([3, 5], [2, 3])


@pytest.fixture
def relu(graph):
    """A ReLU of three numbers, compiled."""
    x = place(graph, [3])
    return compiled(graph, [x], [graph.reLUWithTensor_name_(x, None)])


def test_a_run_computes_what_was_compiled(relu, data):
    (result,) = run(relu, data(np.float32([-1, 0, 2])))
    assert result.tensor().tolist() == [0, 0, 2]


def test_a_run_without_its_inputs_is_refused(relu):
    with pytest.raises(metalsim.graph.InvalidGraph):
        run(relu)


def test_a_run_with_an_input_of_another_shape_is_refused(relu, data):
    with pytest.raises(metalsim.graph.InvalidGraph):
        run(relu, data(np.zeros(4, np.float32)))


def test_a_result_that_needs_an_input_which_is_not_fed_is_refused(graph):
    with pytest.raises(metalsim.graph.InvalidGraph):
        run(compiled(graph, [], [place(graph, [3])]))


@pytest.fixture
def centred(graph, G):
    """A compiled graph of a less the mean of 2 b, with its placeholders a and b."""
    a, b = place(graph, [2]), place(graph, [2])
    two = graph.constantWithData_shape_dataType_(
        np.full(2, 2, np.float32).tobytes(), [2], G.MPSDataTypeFloat32
    )
    doubled = graph.multiplicationWithPrimaryTensor_secondaryTensor_name_(b, two, None)
    mean = graph.meanOfTensor_axes_name_(doubled, [0], None)
    result = graph.subtractionWithPrimaryTensor_secondaryTensor_name_(a, mean, None)
    return compiled(graph, [a, b], [result]), a, b


def save_and_load(G, executable, path):
    """Return what is read of the package into which an executable was written."""
    from Foundation import NSURL

    url = NSURL.fileURLWithPath_(str(path))
    executable.serializeToMPSGraphPackageAtURL_descriptor_(url, None)
    empty = G.MPSGraphExecutable.alloc()
    return empty.initWithMPSGraphPackageAtURL_compilationDescriptor_(url, None)


def run_centred(executable, data) -> list[float]:
    """Run it with its inputs in the order in which it takes them, b first."""
    (result,) = run(executable, data(np.float32([1, 3])), data(np.float32([10, 20])))
    return result.tensor().tolist()


def test_inputs_are_taken_in_no_order_of_a_dictionary(centred):
    """A dictionary has no order on a Mac."""
    executable, a, b = centred
    assert executable.feedTensors() == [b, a]


def test_a_package_keeps_the_graph(centred, data, G, tmp_path):
    executable, _, _ = centred
    loaded = save_and_load(G, executable, tmp_path / "x.mpsgraphpackage")
    assert run_centred(executable, data) == [6, 16]
    assert run_centred(loaded, data) == [6, 16]


def test_a_package_does_not_keep_the_order_of_a_graph(centred, G, tmp_path):
    executable, _, _ = centred
    loaded = save_and_load(G, executable, tmp_path / "x.mpsgraphpackage")
    assert loaded.feedTensors() is None
    assert loaded.targetTensors() is None


def test_a_missing_core_ml_package_is_named(G, tmp_path):
    from Foundation import NSURL

    url = NSURL.fileURLWithPath_(str(tmp_path / "no.mlpackage"))
    with pytest.raises(metalsim.SimulationError, match=r"no\.mlpackage"):
        G.MPSGraphExecutable.alloc().initWithCoreMLPackageAtURL_compilationDescriptor_(url, None)
