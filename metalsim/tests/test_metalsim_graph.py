"""The simulated MPSGraph: PyObjC's modules as stand-ins, checked against its metadata.

What operations give is in tests/conformance/test_mpsgraph.py, which a Mac runs as well; here is what is the
simulation's own: the words of its errors, its packages, and that it says what it does not know.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conformance import graph_programs
from conformance.graph_programs import (
    BILINEAR,
    CLAMP,
    F32,
    GRID,
    I8,
    I32,
    NCHW,
    NDHWC,
    NHWC,
    X,
    agree,
    call,
    compiled,
    execute,
    fft_descriptor,
    floats,
    load,
    mps_type,
    nsdata,
    numbers,
    quantised_convolution,
    run,
    serialise,
    tensor_data,
)

from metallab import isolated
from metalsim import graph as simulated
from metalsim.errors import SimulationError
from metalsim.graph import bridge, contract, importing, package
from metalsim.graph.operations import OPERATIONS
from metalsim.graph.operations.registry import FromTensor
from metalsim.graph.program import Program, Ref, Step

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real MPSGraph")
ABORTS = "On a Mac this aborts the process"


@pytest.fixture(scope="module")
def mac():
    """The modules that a program imports, and the objects that every program makes."""
    simulated.install()
    yield graph_programs.modules()
    simulated.uninstall()


@pytest.fixture
def g(mac):
    return mac.G.MPSGraph.alloc().init()


def test_the_readme_s_example_runs(monkeypatch, tmp_path, capsys, mac):
    monkeypatch.chdir(tmp_path)
    text = contract.SOURCE.with_name("README.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), {})
    assert capsys.readouterr().out == "[1, 4, 8, 8]\n(1, 4, 8, 8) int8\n"


LOADER = """
import sys
import numpy as np
import metalsim.graph
metalsim.graph.install()
assert "torch" not in sys.modules, "installing costs nothing"
import Metal
import MetalPerformanceShadersGraph as G
from Foundation import NSData, NSURL
folder = sys.argv[1]
executable = G.MPSGraphExecutable.alloc().initWithMPSGraphPackageAtURL_compilationDescriptor_(
    NSURL.fileURLWithPath_(folder + "/net.mpsgraphpackage"), None)
assert executable.feedTensors() is None
device = Metal.MTLCreateSystemDefaultDevice()
inputs = []
for name, dtype in (("first", G.MPSDataTypeFloat32), ("second", G.MPSDataTypeInt8)):
    a = np.load(f"{folder}/{name}.npy")
    data = NSData.dataWithBytes_length_(a.tobytes(), a.nbytes)
    inputs.append(G.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
        G.MPSGraphDevice.deviceWithMTLDevice_(device), data, a.shape, dtype))
q, y = executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_(
    device.newCommandQueue(), inputs, None, None)
out = np.empty(q.shape(), np.int8)
q.mpsndarray().readBytes_strideBytes_(out, None)
np.save(folder + "/q.npy", out)
"""


def test_a_package_runs_in_another_process(mac, tmp_path):
    executable, inputs, _ = compiled(mac)
    serialise(mac, executable, tmp_path / "net.mpsgraphpackage")
    serialise(mac, executable, tmp_path / "net.mpsgraphpackage")  # written over
    for name, array in zip(("first", "second"), inputs, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "q.npy"), numbers(execute(mac, executable, inputs)[0]))


def test_a_cell_of_a_page_finds_the_modules():
    """A child with an Apple GPU: the modules are simply there, and say what they are."""
    code = """
import Metal, MetalPerformanceShadersGraph as G, Foundation, MetalPerformanceShaders, objc
descriptions = [Metal.__doc__.split(":")[0], repr(Metal), str(G.MPSGraph), Metal.MTLCreateSystemDefaultDevice().name()]
graph = G.MPSGraph.alloc().init()
x = graph.constantWithScalar_shape_dataType_(2.0, [3], MetalPerformanceShaders.MPSDataTypeFloat32)
shape = list(graph.squareWithTensor_name_(x, None).shape())
"""
    outcome = isolated.run(code, results=["descriptions", "shape"], device="mps")
    assert outcome.ok, outcome.detail
    assert outcome["shape"] == [3]
    assert all("simulated" in each.lower() for each in outcome["descriptions"])


# ---- what is wrong is told


def test_wrong_selectors(mac, g):
    with pytest.raises(
        AttributeError, match="has no attribute 'sigmoidTensor_name_'; the nearest is sigmoidWithTensor_name_"
    ):
        g.sigmoidTensor_name_()
    with pytest.raises(AttributeError, match="the nearest is placeholderWithShape_dataType_name_"):
        g.placeholderWithShape_dataType_name([1], mac.G.MPSDataTypeFloat32, "x")
    with pytest.raises(AttributeError, match="'MPSGraph' object has no attribute 'alloc'"):
        g.alloc()
    with pytest.raises(AttributeError, match="has deviceWithMTLDevice_ as a class method"):
        mac.graph_device.deviceWithMTLDevice_(mac.device)
    for module, name in ((mac.G, "MPSGrpah"), (mac.Metal, "MTLSize")):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; it is simulated, as far as"):
            getattr(module, name)
    descriptor = mac.G.MPSGraphFFTDescriptor.descriptor()
    with pytest.raises(AttributeError, match=r"'inverse' cannot be set: call setInverse_\(\.\.\.\)"):
        descriptor.inverse = True
    assert not hasattr(g, "sigmoid_")
    assert hasattr(g, "sigmoidWithTensor_name_")


def test_wrong_arguments(mac, g):
    x = g.placeholderWithShape_name_([2, 3], "x")
    with pytest.raises(TypeError, match=r"Need 2 arguments, got 1: -\[MPSGraph reLUWithTensor:name:\]"):
        g.reLUWithTensor_name_(x)
    with pytest.raises(ValueError, match="depythonifying 'long long', got 'float': axis: of"):
        g.softMaxWithTensor_axis_name_(x, 1.0, None)
    with pytest.raises(ValueError, match="depythonifying 'long long', got 'str'"):
        g.softMaxWithTensor_axis_name_(x, "1", None)
    with pytest.raises(ValueError, match="depythonifying 'unsigned long long', got -1"):
        g.transposeTensor_dimension_withDimension_name_(x, -1, 0, None)
    with pytest.raises(ValueError, match="depythonifying 'double', got 'str'"):
        g.leakyReLUWithTensor_alpha_name_(x, "0.1", None)
    with pytest.raises(TypeError, match=r"descending: of .* is a BOOL: give True or False, not 'str'"):
        g.sortWithTensor_axis_descending_name_(x, 0, "no", None)
    with pytest.raises(ValueError, match="is a BOOL: give True or False, not 2"):
        g.sortWithTensor_axis_descending_name_(x, 0, 2, None)
    with pytest.raises(TypeError, match=r"reLUWithTensor: of .* is an MPSGraphTensor, got 'ndarray'"):
        g.reLUWithTensor_name_(X, None)
    with pytest.raises(TypeError, match="is an MPSGraphTensor, got None"):
        g.reLUWithTensor_name_(None, None)
    with pytest.raises(TypeError, match="a name is a str or None, got 'int'"):
        g.reLUWithTensor_name_(x, 3)
    with pytest.raises(TypeError, match=r"withShape: of .* is a list of whole numbers, got 'int'"):
        g.reshapeTensor_withShape_name_(x, 6, None)
    with pytest.raises(TypeError, match=r"a list of whole numbers, got \[6\.0\]"):
        g.reshapeTensor_withShape_name_(x, [6.0], None)
    with pytest.raises(TypeError, match=r"descriptor: of .* is an MPSGraphFFTDescriptor, got None"):
        g.realToHermiteanFFTWithTensor_axes_descriptor_name_(x, [1], None, None)
    with pytest.raises(ValueError, match="0x3 is no MPSDataType"):
        g.castTensor_toType_name_(x, 3, None)
    with pytest.raises(
        TypeError, match=r"the data of a constant is an NSData, got 'list': NSData\.dataWithBytes_length_"
    ):
        g.constantWithData_shape_dataType_([1.0], [1], mac.G.MPSDataTypeFloat32)
    with pytest.raises(TypeError, match=r"write MPSGraph\.alloc\(\)\.init\.\.\.\(\) and not MPSGraph\(\)"):
        mac.G.MPSGraph()
    with pytest.raises(TypeError, match="was allocated and not initialised"):
        mac.G.MPSGraph.alloc().placeholderTensors()
    with pytest.raises(TypeError, match="made by a method of MPSGraph"):
        mac.G.MPSGraphTensor.alloc().init()
    with pytest.raises(TypeError, match="the device is an MTLDevice, got 'MPSGraphDevice'"):
        mac.G.MPSGraphDevice.deviceWithMTLDevice_(mac.graph_device)
    with pytest.raises(TypeError, match=r"NSURL takes a str, got 'PosixPath': write str\(path\)"):
        mac.Foundation.NSURL.fileURLWithPath_(Path("m"))
    with pytest.raises(ValueError, match="NSData wants 8 bytes, and was given 4"):
        mac.Foundation.NSData.dataWithBytes_length_(b"1234", 8)


ADD = "additionWithPrimaryTensor:secondaryTensor:name:"
QUANTISE = "quantizeTensor:scale:zeroPoint:dataType:name:"
INVALID = {
    "sizes": (ADD, lambda t: (t.x, t.four), r"additionWith.* of \[2, 3\] and \[4\]: The size of tensor a"),
    "two types": (ADD, lambda t: (t.x, t.i), "one data type, not MPSDataTypeFloat32 and MPSDataTypeInt32; use cast"),
    "another graph": (ADD, lambda t: (t.x, t.foreign), "belongs to another graph"),
    "matrices": ("matrixMultiplicationWithPrimaryTensor:secondaryTensor:name:", lambda t: (t.x, t.x),
                 r"of \[2, 3\] and \[2"),
    "joined": ("concatTensors:dimension:name:", lambda t: ([t.x, t.four], 0), r"concat.* of \[2, 3\] and \[4\]: "),
    "reshape": ("reshapeTensor:withShape:name:", lambda t: (t.x, [4, 2]), r"reshapeTensor.* of \[2, 3\]"),
    "axis": ("softMaxWithTensor:axis:name:", lambda t: (t.x, 2), "axis 2 of a tensor of 2 dimensions"),
    "axis twice": ("reductionSumWithTensor:axes:name:", lambda t: (t.x, [0, -2]), "name one twice"),
    "whole": ("sigmoidWithTensor:name:", lambda t: (t.i,), "needs floating point numbers, not torch.int32"),
    "truth": ("logicalANDWithPrimaryTensor:secondaryTensor:name:", lambda t: (t.x, t.x),
              "not defined for torch.float32"),
    "quantised already": (QUANTISE, lambda t: (t.i, 1.0, 0.0, I8), "quantises floating point numbers"),
    "quantised to 32 bits": (QUANTISE, lambda t: (t.x, 1.0, 0.0, I32), "to int8 or uint8, not torch.int32"),
    "no scale": (QUANTISE, lambda t: (t.x, 0.0, 0.0, I8), "it must be above 0"),
    "scale of another type": ("quantizeTensor:scaleTensor:zeroPoint:dataType:axis:name:",
                              lambda t: (t.x, t.whole, 0.0, I8, 1),
                              "the scale is torch.int32, the numbers are torch.float32"),
    "scale per axis": ("quantizeTensor:scaleTensor:zeroPoint:dataType:axis:name:", lambda t: (t.x, t.four, 0.0, I8, 1),
                       "4 values, the tensor 3 positions along axis 1"),
    "top of too few": ("topKWithSourceTensor:k:name:", lambda t: (t.x, 4), "4 values of 3"),
    "squeeze": ("squeezeTensor:axis:name:", lambda t: (t.x, 0), "dimension 0 has 2 positions, and not 1"),
    "slice": ("sliceTensor:dimension:start:length:name:", lambda t: (t.x, 1, 2, 2), "positions 2 to 4 of 3"),
    "slice of other dimensions": ("sliceTensor:starts:ends:strides:name:", lambda t: (t.x, [0], [1], [1]),
                                  "2 dimensions"),
    "blocks of nothing": ("depthToSpace2DTensor:widthAxis:heightAxis:depthAxis:blockSize:usePixelShuffleOrder:name:",
                          lambda t: (t.picture, 3, 2, 1, 0, True), "cannot be laid out in blocks of 0 x 0"),
    "scatter": ("scatterAlongAxis:withDataTensor:updatesTensor:indicesTensor:mode:name:",
                lambda t: (0, t.x, t.four, t.i, 6),
                r"updates \[4\] and indices \[2, 3\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_graph_is_an_error_where_a_mac_aborts(mac, g, case):
    selector, arguments, message = INVALID[case]
    there = SimpleNamespace(
        x=g.placeholderWithShape_name_([2, 3], "x"),
        i=g.placeholderWithShape_dataType_name_([2, 3], I32, "i"),
        four=g.placeholderWithShape_name_([4], None),
        picture=g.placeholderWithShape_name_([1, 4, 2, 2], None),
        whole=g.placeholderWithShape_dataType_name_([3], I32, None),
        foreign=mac.G.MPSGraph.new().placeholderWithShape_name_([2, 3], None),
    )
    with pytest.raises(simulated.InvalidGraph, match=message) as caught:
        call(g, selector, *arguments(there), None)
    assert ABORTS in str(caught.value)


def test_what_else_a_mac_aborts_on(mac, g):
    with pytest.raises(
        simulated.InvalidGraph, match=r"of shape \[2\] of MPSDataTypeFloat32 takes 8 bytes, and was given 4"
    ):
        g.constantWithData_shape_dataType_(b"1234", [2], F32)
    with pytest.raises(simulated.InvalidGraph, match="negative size"):
        g.placeholderWithShape_name_([2, -3], None)
    with pytest.raises(simulated.InvalidGraph, match="no target tensors"):
        g.runWithFeeds_targetTensors_targetOperations_({}, [], None)
    y = g.reLUWithTensor_name_(g.placeholderWithShape_name_([2], "x"), None)
    with pytest.raises(simulated.InvalidGraph, match="the placeholder x is needed and was not fed"):
        g.runWithFeeds_targetTensors_targetOperations_({}, [y], None)
    kind = mac.G.MPSGraphShapedType.alloc().initWithShape_dataType_([3], F32)
    with pytest.raises(simulated.InvalidGraph, match=r"\(x\) is \[2\] of MPSDataTypeFloat32, and was given \[3\]"):
        g.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
            None, {g.placeholderTensors()[0]: kind}, [y], None, None
        )


def test_invalid_convolutions(mac, g):
    x, w = g.placeholderWithShape_name_([1, 4, 8, 8], None), g.placeholderWithShape_name_([8, 3, 3, 3], None)
    convolve = g.convolution2DWithSourceTensor_weightsTensor_descriptor_name_
    descriptor = mac.G.MPSGraphConvolution2DOpDescriptor.alloc().init()
    with pytest.raises(simulated.InvalidGraph, match="4 channels, weights for 3 in 1 groups"):
        convolve(x, w, descriptor, None)
    descriptor.setDataLayout_(NDHWC)
    with pytest.raises(simulated.InvalidGraph, match="a layout for NCHW, not MPSGraphTensorNamedDataLayout 8"):
        convolve(x, w, descriptor, None)
    descriptor.setDataLayout_(NCHW)
    descriptor.setStrideInX_(0)
    with pytest.raises(simulated.InvalidGraph, match="at least 1"):
        convolve(x, g.placeholderWithShape_name_([8, 4, 3, 3], None), descriptor, None)
    deep = g.placeholderWithShape_name_([2, 2, 2, 2, 2], None)
    with pytest.raises(simulated.InvalidGraph, match="among the last four"):
        g.fastFourierTransformWithTensor_axes_descriptor_name_(deep, [0, 4], fft_descriptor(mac, False, 0), None)


def test_feeds_of_another_shape_or_type_or_in_another_order(mac):
    g, data, targets, _ = quantised_convolution(mac)
    x, bias = data
    wrong = {x: tensor_data(mac, data[x]), bias: tensor_data(mac, floats(1, 5, 1, 1))}
    with pytest.raises(
        simulated.InvalidGraph, match=r"\(bias\) is \[1, 4, 1, 1\] of MPSDataTypeFloat32, and was given \[1, 5"
    ):
        g.runWithFeeds_targetTensors_targetOperations_(wrong, targets, None)
    narrow = wrong | {bias: tensor_data(mac, data[bias].astype(np.float16))}
    with pytest.raises(simulated.InvalidGraph, match=r"was given \[1, 4, 1, 1\] of MPSDataTypeFloat16"):
        g.runWithFeeds_targetTensors_targetOperations_(narrow, targets, None)
    executable, inputs, _ = compiled(mac)
    assert [t.operation().name() for t in executable.feedTensors()] == ["bias", "x"], (
        "not the order that they were given in"
    )
    with pytest.raises(
        simulated.InvalidGraph, match=r"input 0 \(bias\) .* was given \[1, 3, 6, 6\] of MPSDataTypeInt8"
    ):
        execute(mac, executable, inputs[::-1])
    with pytest.raises(simulated.InvalidGraph, match="1 inputs for a program of 2"):
        execute(mac, executable, inputs[:1])
    with pytest.raises(simulated.InvalidGraph, match="1 results for a program of 2"):
        execute(mac, executable, inputs, [tensor_data(mac, np.zeros((1, 4, 6, 6), np.int8))])
    swapped = [tensor_data(mac, np.zeros((1, 4, 6, 6), kind)) for kind in (np.float32, np.int8)]
    with pytest.raises(simulated.InvalidGraph, match=r"the result of output 0 is .*MPSDataTypeInt8, the memory for it"):
        execute(mac, executable, inputs, swapped)
    buffer = mac.device.newBufferWithLength_options_(4, 0)
    with pytest.raises(simulated.InvalidGraph, match=r"the buffer is too short: shape .* takes 8 bytes, not 4"):
        mac.G.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_(buffer, [2], F32)


def test_buffers(mac):
    buffer = mac.device.newBufferWithBytes_length_options_(b"abcdef", 4, 0)
    assert bytes(buffer.contents().as_buffer(4)) == b"abcd"
    buffer.contents().as_buffer(2)[:] = b"xy"
    assert (bytes(buffer.contents().as_buffer(4)), buffer.length()) == (b"xycd", 4)
    with pytest.raises(ValueError, match="the buffer has 4 bytes, and 5 are asked for"):
        buffer.contents().as_buffer(5)
    assert mac.device.newBufferWithLength_options_(0, 0) is None, "as Metal has it"
    private = mac.device.newBufferWithLength_options_(8, mac.Metal.MTLResourceStorageModePrivate)
    assert private.contents() is None
    with pytest.raises(ValueError, match="24 bytes are to be written, and the buffer takes 8"):
        tensor_data(mac, X[0, :2, :3]).mpsndarray().readBytes_strideBytes_(bytearray(8), None)


def test_what_leaves_a_cell_is_python_s_own(mac, g):
    """An array that Objective-C returned cannot be changed, and comes back from a child process as a list."""
    shape = g.placeholderWithShape_name_([2, 3], "x").shape()
    assert (type(pickle.loads(pickle.dumps(shape))), list(shape), shape.count()) == (list, [2, 3], 2)
    with pytest.raises(TypeError, match="an NSArray cannot be changed"):
        shape.append(4)


def test_a_selector_of_a_later_macos_is_missing(mac, g):
    x = g.placeholderWithShape_name_([2], "x")
    assert simulated.macos_version() == "15.0"
    with pytest.raises(
        simulated.NeedsNewerMacOS, match=r"planarTensor.* needs macOS 26\.3; this is a simulated macOS 15\.0"
    ):
        g.planarTensorWithComplexTensor_name_(x, None)
    try:
        simulated.set_macos_version("13.6")
        with pytest.raises(
            simulated.NeedsNewerMacOS, match=r"realPartOfTensor:name:\] needs macOS 14\.0; .*macOS 13\.6"
        ):
            g.realPartOfTensor_name_(x, None)
        with pytest.raises(simulated.NeedsNewerMacOS, match=r"MPSGraphFFTDescriptor needs macOS 14\.0"):
            mac.G.MPSGraphFFTDescriptor.descriptor()
        assert not hasattr(g, "realPartOfTensor_name_"), "so that a program can ask"
        assert hasattr(g, "sortWithTensor_axis_descending_name_")
    finally:
        simulated.set_macos_version("15.0")
    with pytest.raises(ValueError, match="'Sequoia' is no macOS version"):
        simulated.set_macos_version("Sequoia")


def test_what_is_not_simulated_says_so(mac, g, tmp_path):
    x = g.placeholderWithShape_name_([2], "x")
    with pytest.raises(
        simulated.NotSimulated, match=r"-\[MPSGraph dropoutTensor:rate:name:\] exists on a Mac and is not simulated"
    ):
        g.dropoutTensor_rate_name_(x, 0.5, None)
    with pytest.raises(TypeError, match="Need 3 arguments"):  # and what is known of it is still checked
        g.dropoutTensor_rate_name_(x)
    with pytest.raises(simulated.NotSimulated, match="MPSDataTypeInt4 is not simulated"):
        g.castTensor_toType_name_(x, mac.G.MPSDataTypeInt4, None)
    with pytest.raises(simulated.NotSimulated, match="known only at run time"):
        g.placeholderWithShape_name_([-1, 3], None)
    with pytest.raises(simulated.NotSimulated, match="MPSGraphLSTMDescriptor exists on a Mac"):
        mac.G.MPSGraphLSTMDescriptor.descriptor()
    with pytest.raises(simulated.NotSimulated, match="a zero point of 300, which a Mac converts"):
        g.quantizeTensor_scale_zeroPoint_dataType_name_(x, 1.0, 300.0, mac.G.MPSDataTypeInt8, None)
    narrow = g.constantWithScalar_shape_dataType_(2.0, [2, 2], mac.G.MPSDataTypeFloat16)
    with pytest.raises(simulated.NotSimulated, match=r"inverseOfTensor:name: of this type is not simulated: .*Half"):
        g.inverseOfTensor_name_(narrow, None)
    pair = g.complexTensorWithRealTensor_imaginaryTensor_name_(narrow, narrow, None)
    with pytest.raises(simulated.NotSimulated, match=r"divisionWith.* of this type is not simulated"):
        g.divisionWithPrimaryTensor_secondaryTensor_name_(pair, pair, None)
    with pytest.raises(simulated.NotSimulated, match="command buffers"):
        mac.queue.commandBuffer()
    indices = g.constantWithScalar_shape_dataType_(5, [1], I32)
    picked = g.gatherWithUpdatesTensor_indicesTensor_axis_batchDimensions_name_(x, indices, 0, 0, None)
    with pytest.raises(simulated.NotSimulated, match=r"^an index is outside 0 to 1"):
        g.runWithFeeds_targetTensors_targetOperations_({x: tensor_data(mac, floats(2))}, [picked], None)


def test_numbers_in_tensors_that_are_fed_and_pixels_about_their_edges_are_not_simulated(mac, g):
    x = g.constantWithData_shape_dataType_(nsdata(mac, X), X.shape, mps_type(X))
    with pytest.raises(simulated.NotSimulated, match="only constants are simulated"):
        g.reshapeTensor_withShapeTensor_name_(x, g.placeholderWithShape_dataType_name_([2], I32, None), None)
    picture, grid = floats(1, 4, 5, 3), floats(1, 4, 5, 2)
    with pytest.raises(simulated.NotSimulated, match="coordinates in pixels with alignCorners NO"):
        run(mac, GRID, picture, grid, NHWC, False, False, False, CLAMP, BILINEAR, 0.0)


def test_damaged_and_foreign_packages(mac, tmp_path):
    whole = serialise(mac, compiled(mac)[0], tmp_path / "whole.mpsgraphpackage")

    def broken(name, change):
        copy = tmp_path / f"{name}.mpsgraphpackage"
        shutil.copytree(whole, copy)
        change(copy)
        with pytest.raises(simulated.PackageError) as caught:
            load(mac, copy)
        return str(caught.value)

    def write(folder, file, text):
        (folder / file).write_text(text)

    def rewritten(folder, change):
        """The steps changed, and the manifest made to agree: what a forger would do."""
        steps = json.loads((folder / "graph.json").read_text())
        change(steps)
        write(folder, "graph.json", json.dumps(steps))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["sha256"]["graph.json"] = package._sum(folder / "graph.json")
        write(folder, "manifest.json", json.dumps(manifest))

    cut = broken("cut", lambda f: os.truncate(f / "constants.safetensors", 40))
    assert "is damaged: constants.safetensors is not what was written (its SHA-256 differs)" in cut
    assert "graph.json is not what was written" in broken("graph", lambda f: write(f, "graph.json", "{}"))
    assert "graph.json is missing" in broken("lost", lambda f: (f / "graph.json").unlink())
    assert "manifest.json is damaged" in broken("manifest", lambda f: write(f, "manifest.json", "{"))
    assert "there is no operation 'launchRockets:'" in broken(
        "forged", lambda f: rewritten(f, lambda g: g["steps"][0].update(selector="launchRockets:"))
    )
    assert "an output is not there" in broken("dangling", lambda f: rewritten(f, lambda g: g.update(outputs=[99])))
    later = json.loads((whole / "manifest.json").read_text()) | {"minimum_macos": "26.0"}
    assert "needs macOS 26.0; this is a simulated macOS 15.0" in broken(
        "later", lambda f: write(f, "manifest.json", json.dumps(later))
    )
    for name, needs in (("words", "Sequoia"), ("number", 15)):
        odd = json.dumps(later | {"minimum_macos": needs})
        assert "manifest.json is damaged" in broken(name, lambda f, odd=odd: write(f, "manifest.json", odd))
    newer = later | {"version": 2}
    assert "version 2; this reads" in broken("version", lambda f: write(f, "manifest.json", json.dumps(newer)))
    foreign = tmp_path / "mac.mpsgraphpackage"
    foreign.mkdir()
    (foreign / "manifest.plist").write_text("<plist/>")
    with pytest.raises(
        simulated.PackageError, match=r"no package of the simulation.*a Mac's, which only a Mac can read"
    ):
        load(mac, foreign)
    with pytest.raises(simulated.PackageError, match="there is no package at"):
        load(mac, tmp_path / "nowhere")
    with pytest.raises(simulated.PackageError, match="it is not overwritten"):
        serialise(mac, compiled(mac)[0], foreign)
    with pytest.raises(simulated.PackageError, match=r"cannot be written .*No such file"):
        serialise(mac, compiled(mac)[0], tmp_path / "no" / "folder" / "here")
    assert not list(tmp_path.glob(".*")), "nothing half-written stays"


# ---- Core ML packages


def core_ml_package(folder, operations, weights, outputs, inputs=None):
    """An ML program as coremltools writes one, of (type, {argument: value}, name of the result)."""
    from metalsim.graph import coreml

    MIL = coreml._messages("MIL_pb2")
    model = coreml._messages("Model_pb2").Model(specificationVersion=9)
    data = folder / "Data" / "com.apple.CoreML"
    (data / "weights").mkdir(parents=True)
    entry = {"name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"}
    manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": {"a": entry}, "rootModelIdentifier": "a"}
    (folder / "Manifest.json").write_text(json.dumps(manifest))

    def typed(place, shape, kind):
        place.dataType, place.rank = MIL.DataType.Value(kind), len(shape)
        for size in shape:
            place.dimensions.add().constant.size = size

    blob = bytearray(64)
    function = model.mlProgram.functions["main"]
    function.opset = "CoreML8"
    for name, shape in (inputs or {"x": (2, 3, 6, 6)}).items():
        typed(function.inputs.add(name=name).type.tensorType, shape, "FLOAT32")
    block = function.block_specializations["CoreML8"]
    block.outputs.extend(outputs)
    for name, array in weights.items():
        offset, content = len(blob), array.tobytes()
        blob += coreml.RECORD.pack(coreml.MARK, 2, len(content), offset + 64).ljust(64, b"\0")
        blob += content.ljust(-(-len(content) // 64) * 64, b"\0")
        constant = block.operations.add(type="const")
        constant.outputs.add(name=name)
        value = constant.attributes["val"]
        typed(value.type.tensorType, array.shape, "FLOAT32")
        value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/weights/weight.bin", offset
    for kind, arguments, result in operations:
        operation = block.operations.add(type=kind)
        operation.outputs.add(name=result)
        for name, value in arguments.items():
            if isinstance(value, str) and value.startswith("%"):
                operation.inputs[name].arguments.add(name=value[1:])
                continue
            immediate = operation.inputs[name].arguments.add().value
            content = immediate.immediateValue.tensor
            if isinstance(value, str):
                content.strings.values.append(value)
                typed(immediate.type.tensorType, (), "STRING")
            elif isinstance(value, bool):
                content.bools.values.append(value)
                typed(immediate.type.tensorType, (), "BOOL")
            elif isinstance(value, float):
                content.floats.values.append(value)
                typed(immediate.type.tensorType, (), "FLOAT32")
            else:
                content.ints.values.extend(np.ravel(value))
                typed(immediate.type.tensorType, np.shape(value), "INT32")
    (data / "model.mlmodel").write_bytes(model.SerializeToString())
    (data / "weights" / "weight.bin").write_bytes(blob)
    return folder


def from_core_ml(mac, folder):
    initialise = mac.G.MPSGraphExecutable.alloc().initWithCoreMLPackageAtURL_compilationDescriptor_
    return initialise(mac.Foundation.NSURL.fileURLWithPath_(str(folder)), None)


def small_core_ml_net(folder):
    weights = {"w": floats(4, 3, 3, 3), "b": floats(4), "dense": floats(5, 4), "gain": floats(5), "shift": floats(5)}
    pad = {"pad_type": "custom", "pad": [1, 1, 1, 1]}
    conv = {"x": "%x", "weight": "%w", "bias": "%b", "strides": [2, 1], "dilations": [1, 1], "groups": 1, **pad}
    pool = {"x": "%g", "kernel_sizes": [3, 2], "strides": [1, 2], "pad_type": "valid", "pad": [0, 0, 0, 0]}
    operations = [
        ("conv", conv, "c"),
        ("gelu", {"x": "%c", "mode": "EXACT"}, "g"),
        ("max_pool", pool | {"ceil_mode": False}, "p"),
        ("reduce_mean", {"x": "%p", "axes": [-2, -1], "keep_dims": False}, "m"),
        ("linear", {"x": "%m", "weight": "%dense"}, "l"),
        ("layer_norm", {"x": "%l", "axes": [-1], "gamma": "%gain", "beta": "%shift", "epsilon": 1e-5}, "n"),
        ("silu", {"x": "%n"}, "s"),
        ("softmax", {"x": "%s", "axis": -1}, "y"),
    ]

    def reference(x):
        x, t = torch.from_numpy(x).double(), {k: torch.from_numpy(v).double() for k, v in weights.items()}
        x = F.gelu(F.conv2d(x, t["w"], t["b"], stride=(2, 1), padding=1))
        x = F.linear(F.max_pool2d(x, (3, 2), (1, 2)).mean((-2, -1)), t["dense"])
        return F.softmax(F.silu(F.layer_norm(x, [5], t["gain"], t["shift"])), -1).float().numpy()

    return core_ml_package(folder, operations, weights, ["y"]), reference


def test_a_core_ml_package_becomes_an_executable(mac, tmp_path):
    package_, reference = small_core_ml_net(tmp_path / "net.mlpackage")
    executable, x = from_core_ml(mac, package_), floats(2, 3, 6, 6)
    (result,) = execute(mac, executable, [x])
    agree(numbers(result), reference(x))
    (again,) = execute(mac, load(mac, serialise(mac, executable, tmp_path / "net.mpsgraphpackage")), [x])
    np.testing.assert_array_equal(numbers(again), numbers(result))
    assert "coremltools" not in sys.modules, "which takes seconds to import"


def test_inputs_of_a_core_ml_package_are_in_its_order(mac, tmp_path):
    shapes = {"a": (2, 3), "b": (3,)}
    folder = core_ml_package(tmp_path / "m.mlpackage", [("sub", {"x": "%a", "y": "%b"}, "y")], {}, ["y"], shapes)
    given = [floats(*shape) for shape in shapes.values()]
    (result,) = execute(mac, from_core_ml(mac, folder), given)
    agree(numbers(result), given[0] - given[1])


def test_a_core_ml_package_may_concatenate_one_value_and_a_constant(mac, tmp_path):
    x, weights = floats(2, 3, 6, 6), {"w": floats(2, 3)}
    for value, wanted in (("x", x), ("w", weights["w"])):
        join = ("concat", {"values": f"%{value}", "axis": 1, "interleave": False}, "y")
        folder = core_ml_package(tmp_path / f"{value}.mlpackage", [join], weights, ["y"])
        (result,) = execute(mac, from_core_ml(mac, folder), [x])
        agree(numbers(result), wanted)


def test_core_ml_packages_that_cannot_be_read(mac, tmp_path):
    with pytest.raises(simulated.PackageError, match=r"no Core ML package at .*: it has no Manifest\.json"):
        from_core_ml(mac, tmp_path / "nowhere.mlpackage")
    unknown = core_ml_package(tmp_path / "unknown.mlpackage", [("lstm", {"x": "%x"}, "y")], {}, ["y"])
    with pytest.raises(simulated.NotSimulated, match="the Core ML operation 'lstm' is not simulated; add, "):
        from_core_ml(mac, unknown)
    other = core_ml_package(tmp_path / "other.mlpackage", [("relu", {"x": "%x", "beta": 1.0}, "y")], {}, ["y"])
    with pytest.raises(simulated.NotSimulated, match=r"'relu' of .*beta.* is not simulated"):
        from_core_ml(mac, other)
    row = {"x": "%x", "kernel_sizes": [2], "strides": [1], "pad_type": "valid", "pad": [0, 0]}
    for name, operation, message in (
        ("cast", ("cast", {"x": "%x", "dtype": "uint8"}, "y"), "the Core ML cast to 'uint8' is not simulated; fp16, "),
        ("row", ("max_pool", row, "y"), "a Core ML pooling over 1 dimensions with padding 'valid' is not simulated"),
    ):
        folder = core_ml_package(tmp_path / f"{name}.mlpackage", [operation], {}, ["y"])
        with pytest.raises(simulated.NotSimulated, match=message):
            from_core_ml(mac, folder)
    for name, file, size in (("weights", "weights/weight.bin", 100), ("model", "model.mlmodel", 300)):
        package_, _ = small_core_ml_net(tmp_path / f"{name}.mlpackage")
        os.truncate(package_ / "Data" / "com.apple.CoreML" / file, size)
        with pytest.raises(simulated.PackageError, match="is damaged: "):
            from_core_ml(mac, package_)
    package_, _ = small_core_ml_net(tmp_path / "mark.mlpackage")
    blob = package_ / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
    blob.write_bytes(bytes(128) + blob.read_bytes()[128:])
    with pytest.raises(simulated.PackageError, match=r"weight\.bin has no weight at 64"):
        from_core_ml(mac, package_)
    package_, _ = small_core_ml_net(tmp_path / "manifest.mlpackage")
    (package_ / "Manifest.json").write_text("[]")
    with pytest.raises(simulated.PackageError, match=r"Manifest\.json is damaged"):
        from_core_ml(mac, package_)


# ---- the hook


def test_the_hook_keeps_out_of_the_way(monkeypatch):
    """It refuses on a Mac, and where a module of the name is there; and it finds nothing else."""
    assert importing._finder.find_spec("json", None) is None
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if each is not importing._finder])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SimulationError, match="this is a Mac, which has the real MPSGraph"):
        simulated.install()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setitem(sys.modules, "Metal", SimpleNamespace(__simulated__=False))
    with pytest.raises(SimulationError, match=r"there is a module [A-Za-z]+ already"):
        simulated.install()


def test_without_the_simulation_there_is_no_such_module():
    """The macOS is a variable's to choose, for a process that a page starts."""
    code = "import metalsim.graph as graph; print(graph.macos_version()); import MetalPerformanceShadersGraph"

    def ran(macos: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"METALSIM_MACOS": macos}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)

    done = ran("13.6")
    assert done.stdout == "13.6\n"
    assert "ModuleNotFoundError: No module named 'MetalPerformanceShadersGraph'" in done.stderr
    assert "ValueError: METALSIM_MACOS: 'Sequoia' is no macOS version; write it as '15.0'" in ran("Sequoia").stderr


# ---- contract, bridge and packages


def test_what_exists_depends_on_the_macos_and_on_the_ancestors(monkeypatch):
    known = contract.methods("MPSGraph")
    scan, planar = (
        known["cumulativeSumWithTensor_axis_name_", False],
        known["planarTensorWithComplexTensor_name_", False],
    )
    assert (scan.since, planar.since) == ((13,), (26, 3))
    assert contract.there(scan)
    assert not contract.there(planar)
    monkeypatch.setattr(contract, "_macos", contract.version("13.0.0"))
    assert contract.there(scan)
    assert contract.missing_class("MPSGraph") is None
    assert "needs macOS 14.0" in str(contract.missing_class("MPSGraphFFTDescriptor"))
    assert "needs macOS 26.3; this is a simulated macOS 13.0" in str(contract.missing("MPSGraph", planar.name, False))
    assert ("label", False) in contract.methods("MTLBuffer"), "from MTLResource"
    assert "the nearest is sinWithTensor_name_" in str(contract.missing("MPSGraph", "sinWithTensor_nam_", False))


def test_arguments_are_what_the_selector_takes():
    def method(*encodings):
        return contract.Method("X", "do" + ":with" * (len(encodings) - 1) + ":", False, encodings, "void", ())

    given = (np.int64(3), -4, np.float32(0.5), True, np.bool_(False), None, print)
    assert bridge.checked(method("Q", "q", "d", "Z", "Z", "@", "@?"), given) == [3, -4, 0.5, True, False, None, print]
    with pytest.raises(TypeError, match=r"Need 1 arguments, got 2: -\[X do:\]"):
        bridge.checked(method("Q"), (1, 2))
    for encoding, value in (
        ("Q", 1.0), ("Q", "1"), ("Q", -1), ("I", 2**32), ("q", 2**63), ("d", "1"), ("f", "2.5"), ("Z", 2),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"depythonifying|BOOL"):
            bridge.checked(method(encoding), (value,))
    for encoding, value in (("Z", "yes"), ("@?", 3)):
        with pytest.raises(TypeError):
            bridge.checked(method(encoding), (value,))


def test_a_package_is_read_only_if_it_is_whole(tmp_path):
    values = (torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64), torch.tensor([1, 2], dtype=torch.int8))
    step = Step("absoluteSquareWithTensor:name:", (Ref(0),), 1)
    program = Program((), values, (step,), (Ref(2), Ref(1)))
    folder = tmp_path / "p.mpsgraphpackage"
    package.write(program, folder, "15.0.0")
    package.write(program, folder, "15.0.0")
    squares, whole = package.read(folder).run([])
    assert (squares.tolist(), whole.tolist()) == ([5, 10], [1, 2])
    damages = {
        "graph.json": lambda text: text.replace("absoluteSquare", "square"),
        "manifest.json": lambda text: text.replace('"version": 1', '"version": 2'),
    }
    for file, change in damages.items():
        whole_text = (folder / file).read_text()
        (folder / file).write_text(change(whole_text))
        with pytest.raises(simulated.PackageError):
            package.read(folder)
        (folder / file).write_text(whole_text)
    package.write(program, folder, "26.0")
    with pytest.raises(simulated.PackageError, match=r"needs macOS 26\.0"):
        package.read(folder)
    package.write(Program((), values, (step,), (Ref(3),)), folder, "")
    with pytest.raises(simulated.PackageError, match="an output is not there"):
        package.read(folder)
    (tmp_path / "mine").mkdir()
    with pytest.raises(simulated.PackageError, match="is no package of the simulation; it is not overwritten"):
        package.write(program, tmp_path / "mine", "")


# ---- the contract itself


def test_every_operation_is_in_the_contract_and_takes_what_it_says():
    known = {method.selector: method for method in contract.methods("MPSGraph").values()}
    assert len(OPERATIONS) > 150
    for selector, operation in OPERATIONS.items():
        assert selector in known
        numbers_ = {int: "QqI", float: "df", bool: "Z", torch.dtype: "I"}
        for encoding, kind in zip(known[selector].arguments, operation.kinds, strict=False):
            if kind in numbers_:
                assert encoding in numbers_[kind], f"{selector}: {encoding} for {kind}"
            else:
                assert encoding == "@", f"{selector}: {encoding} for {kind}"


def selectors_of_cases() -> re.Pattern:
    """The selectors that the conformance suite names, as Apple or as Python spells them; ``{stem}`` may be any word."""
    patterns = {re.escape(text) for text in vars(graph_programs).values() if isinstance(text, str)}
    for name in ("test_mpsgraph.py", "graph_programs.py"):
        for node in ast.walk(ast.parse(Path(graph_programs.__file__).with_name(name).read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (re.escape(part.value) if isinstance(part, ast.Constant) else r"\w+" for part in node.values)
                patterns.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                patterns.add(re.escape(node.value))
            elif isinstance(node, ast.Attribute):
                patterns.add(re.escape(node.attr))
    return re.compile("|".join(pattern for pattern in patterns if re.search("[:_]", pattern)))


def test_every_operation_has_a_case_that_a_mac_is_asked_as_well():
    """But those that take numbers in tensors: one piece of code reads these, and a case runs it for four selectors."""
    cases = selectors_of_cases()
    alone = [
        selector
        for selector, operation in OPERATIONS.items()
        if not any(isinstance(kind, FromTensor) for kind in operation.kinds)
        and not cases.fullmatch(selector)
        and not cases.fullmatch(contract.python_name(selector))
    ]
    assert not alone


def test_the_contract_carries_its_licence():
    text = contract.SOURCE.with_name("LICENSE-PyObjC.txt").read_text()
    assert "MIT license" in text
    assert "Ronald Oussoren" in text
    assert "LICENSE-PyObjC.txt" in json.loads(contract.SOURCE.read_text())["license"]
