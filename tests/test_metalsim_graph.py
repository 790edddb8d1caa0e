"""The simulated MPSGraph: PyObjC's modules as stand-ins, checked against its metadata, computed by PyTorch.

Results are compared with NumPy in float64, with SciPy, or with functions of PyTorch that the simulation does not use.
What the names and arguments are on a Mac is in PyObjC's metadata; that a Mac computes the same is for a Mac to show.
"""

from __future__ import annotations

import json
import math
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
import scipy.special
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view

from metallab import isolated
from metalsim import graph as simulated
from metalsim.errors import SimulationError
from metalsim.graph import bridge, contract, datatypes, importing, package
from metalsim.graph.operations import OPERATIONS
from metalsim.graph.program import Program, Ref, Step

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real MPSGraph")
ABORTS = "On a Mac this aborts the process"
rng = np.random.default_rng(8)


@pytest.fixture(scope="module")
def mac():
    """The modules that a program imports, and the objects that every program makes."""
    simulated.install()
    import Foundation
    import Metal
    import MetalPerformanceShadersGraph as G

    device = Metal.MTLCreateSystemDefaultDevice()
    yield SimpleNamespace(
        G=G,
        Foundation=Foundation,
        Metal=Metal,
        device=device,
        queue=device.newCommandQueue(),
        graph_device=G.MPSGraphDevice.deviceWithMTLDevice_(device),
    )
    simulated.uninstall()


@pytest.fixture
def g(mac):
    return mac.G.MPSGraph.alloc().init()


def mps_type(array):
    return datatypes.MPS[torch.from_numpy(array[:0].copy() if array.ndim else array.reshape(1)).dtype]


def nsdata(mac, array):
    array = np.ascontiguousarray(array)
    return mac.Foundation.NSData.dataWithBytes_length_(array.tobytes(), array.nbytes)


def tensor_data(mac, array):
    """Numbers for a placeholder, in a buffer."""
    array = np.ascontiguousarray(array)
    buffer = mac.device.newBufferWithBytes_length_options_(array.tobytes(), array.nbytes, 0)
    make = mac.G.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_
    return make(buffer, array.shape, mps_type(array))


def numbers(data):
    """A result as a NumPy array."""
    dtype = torch.empty(0, dtype=datatypes.TORCH[data.dataType()]).numpy().dtype
    array = np.empty(data.shape(), dtype)
    data.mpsndarray().readBytes_strideBytes_(array, None)
    return array


def call(graph, selector, *arguments):
    return getattr(graph, contract.python_name(selector))(*arguments)


def run(mac, selector, *arguments, name=None):
    """What an operation makes of NumPy arrays, each of which is fed to a placeholder."""
    graph = mac.G.MPSGraph.alloc().init()
    feeds = {}

    def placed(value):
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [placed(each) for each in value]
        if not isinstance(value, np.ndarray):
            return value
        tensor = graph.placeholderWithShape_dataType_name_(value.shape, mps_type(value), None)
        feeds[tensor] = tensor_data(mac, value)
        return tensor

    made = call(graph, selector, *map(placed, arguments), name)
    targets = list(made) if isinstance(made, list) else [made]
    found = graph.runWithMTLCommandQueue_feeds_targetTensors_targetOperations_(mac.queue, feeds, targets, None)
    arrays = [numbers(found[target]) for target in targets]
    for target, array in zip(targets, arrays, strict=True):
        assert list(target.shape()) == list(array.shape), "the shape that was told when the graph was built"
    return arrays if isinstance(made, list) else arrays[0]


def floats(*shape, low=-2.0, high=2.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def ints(*shape, low=-9, high=9, dtype=np.int32):
    return rng.integers(low, high, shape, dtype=dtype)


def agree(found, wanted, atol=2e-5):
    """Shape, kind and values."""
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    exact = found.dtype == wanted.dtype or (wanted.dtype.itemsize >= 8 and found.dtype.kind == wanted.dtype.kind)
    assert exact, f"{found.dtype} for {wanted.dtype}"
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=atol)


# ---- operations, each beside a reference

X, Y, POSITIVE, UNIT = floats(2, 3, 4), floats(2, 1, 4), floats(2, 3, low=0.1), floats(2, 3, low=-0.9, high=0.9)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -7.2, 3.0], np.float32)
WITH_NAN = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]], np.float32)
INFINITE = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
WHOLE, OTHERS = ints(2, 3), ints(2, 3, low=1)
TRUE, OTHER = WHOLE > 0, OTHERS > 4
Z = (floats(2, 3) + 1j * floats(2, 3)).astype(np.complex64)


def c_round(x):
    return np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)


ELEMENTWISE = {
    "identity": (X, X), "absolute": (X, np.abs(X)), "negative": (X, -X), "square": (X, X**2), "sign": (X, np.sign(X)),
    "signbit": (X, np.signbit(X)), "ceil": (X, np.ceil(X)), "floor": (X, np.floor(X)), "truncate": (X, np.trunc(X)),
    "round": (HALVES, c_round(HALVES)), "rint": (HALVES, np.rint(HALVES)), "isNaN": (WITH_NAN, np.isnan(WITH_NAN)),
    "isInfinite": (INFINITE, np.isinf(INFINITE)), "isFinite": (WITH_NAN, np.isfinite(WITH_NAN)),
    "not": (TRUE, ~TRUE), "bitwiseNOT": (WHOLE, ~WHOLE), "exponent": (X, np.exp(X)), "exponentBase2": (X, 2.0**X),
    "exponentBase10": (X, 10.0**X), "logarithm": (POSITIVE, np.log(POSITIVE)),
    "logarithmBase2": (POSITIVE, np.log2(POSITIVE)), "logarithmBase10": (POSITIVE, np.log10(POSITIVE)),
    "squareRoot": (POSITIVE, np.sqrt(POSITIVE)), "reverseSquareRoot": (POSITIVE, POSITIVE**-0.5),
    "reciprocalSquareRoot": (POSITIVE, POSITIVE**-0.5), "reciprocal": (POSITIVE, 1 / POSITIVE), "sin": (X, np.sin(X)),
    "cos": (X, np.cos(X)), "tan": (UNIT, np.tan(UNIT)), "asin": (UNIT, np.arcsin(UNIT)),
    "acos": (UNIT, np.arccos(UNIT)), "atan": (X, np.arctan(X)), "sinh": (X, np.sinh(X)), "cosh": (X, np.cosh(X)),
    "tanh": (X, np.tanh(X)), "asinh": (X, np.arcsinh(X)), "acosh": (POSITIVE + 1, np.arccosh(POSITIVE + 1)),
    "atanh": (UNIT, np.arctanh(UNIT)), "erf": (X, scipy.special.erf(X)), "reLU": (X, np.maximum(X, 0)),
    "sigmoid": (X, scipy.special.expit(X)), "conjugate": (Z, Z.conj()), "absoluteSquare": (Z, np.abs(Z) ** 2),
}  # fmt: skip
BINARY = {
    "addition": (X, Y, X + Y), "subtraction": (X, Y, X - Y), "multiplication": (X, Y, X * Y),
    "division": (X, Y, X / Y), "power": (POSITIVE, UNIT, POSITIVE**UNIT), "modulo": (X, Y, np.fmod(X, Y)),
    "floorModulo": (X, Y, np.mod(X, Y)), "atan2": (X, Y, np.arctan2(X, Y)), "equal": (WHOLE, OTHERS, WHOLE == OTHERS),
    "notEqual": (WHOLE, OTHERS, WHOLE != OTHERS),
    "greaterThan": (X, Y, X > Y), "greaterThanOrEqualTo": (WHOLE, OTHERS, WHOLE >= OTHERS),
    "lessThan": (X, Y, X < Y), "lessThanOrEqualTo": (WHOLE, OTHERS, WHOLE <= OTHERS),
    "logicalAND": (TRUE, OTHER, TRUE & OTHER),
    "logicalOR": (TRUE, OTHER, TRUE | OTHER), "logicalXOR": (TRUE, OTHER, TRUE ^ OTHER),
    "logicalNAND": (TRUE, OTHER, ~(TRUE & OTHER)), "logicalNOR": (TRUE, OTHER, ~(TRUE | OTHER)),
    "logicalXNOR": (TRUE, OTHER, ~(TRUE ^ OTHER)), "bitwiseAND": (WHOLE, OTHERS, WHOLE & OTHERS),
    "bitwiseOR": (WHOLE, OTHERS, WHOLE | OTHERS),
    "bitwiseXOR": (WHOLE, OTHERS, WHOLE ^ OTHERS), "bitwiseLeftShift": (OTHERS, OTHERS, OTHERS << OTHERS),
    "bitwiseRightShift": (OTHERS, OTHERS, OTHERS >> OTHERS),
    "maximum": (WITH_NAN, np.float32([[2.0]]), np.fmax(WITH_NAN, np.float32(2))),
    "minimum": (WITH_NAN, np.float32([[2.0]]), np.fmin(WITH_NAN, np.float32(2))),
    "maximumWithNaNPropagation": (WITH_NAN, np.float32([[2.0]]), np.maximum(WITH_NAN, np.float32(2))),
    "minimumWithNaNPropagation": (WITH_NAN, np.float32([[2.0]]), np.minimum(WITH_NAN, np.float32(2))),
    "divisionNoNaN": (np.float32([1, 2]), np.float32([0, 4]), np.float32([0, 0.5])),
}  # fmt: skip


@pytest.mark.parametrize("stem", ELEMENTWISE)
def test_one_tensor_elementwise(mac, stem):
    x, wanted = ELEMENTWISE[stem]
    agree(run(mac, f"{stem}WithTensor:name:", x), wanted)


@pytest.mark.parametrize("stem", BINARY)
def test_two_tensors_elementwise(mac, stem):
    *operands, wanted = BINARY[stem]
    agree(run(mac, f"{stem}WithPrimaryTensor:secondaryTensor:name:", *operands), wanted)


def test_whole_numbers_divide_as_in_c_and_give_0_for_0(mac):
    a, b = np.int32([7, -7, 7, 5]), np.int32([2, 2, -2, 0])
    words = "WithPrimaryTensor:secondaryTensor:name:"
    assert run(mac, f"division{words}", a, b).tolist() == [3, -3, -3, 0]
    assert run(mac, f"modulo{words}", a, b).tolist() == [1, -1, 1, 0]
    assert run(mac, f"floorModulo{words}", a, b).tolist() == [1, 1, -1, 0]


def softmax(x, axis):
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


E = floats(2, 3, 4, 5)
MEAN, VARIANCE = E.mean((0, 2, 3), keepdims=True), E.var((0, 2, 3), keepdims=True)
GAMMA, BETA = floats(1, 3, 1, 1), floats(1, 3, 1, 1)
Q, K, V, MASK = floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 6), floats(3, 5)
SQUARE = floats(3, 4, 4) + 4 * np.eye(4, dtype=np.float32)
AT = np.array([[2, 0], [1, 1]], np.int32)
BLOCKS = floats(2, 8, 3, 5)
LOGITS, LABELS = floats(4, 3), np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
ONES = np.ones((2, 3), np.float32)


def shuffled(x, block):
    return F.pixel_shuffle(torch.from_numpy(x), block).numpy()


def band(x, lower, upper):
    return np.triu(np.tril(x, upper), -lower)


PLAIN = {
    "select": (
        "selectWithPredicateTensor:truePredicateTensor:falsePredicateTensor:name:",
        (TRUE, WHOLE, OTHERS), np.where(TRUE, WHOLE, OTHERS),
    ),
    "clamp": (
        "clampWithTensor:minValueTensor:maxValueTensor:name:",
        (X, np.float32([-1]), np.float32([0.5])), X.clip(-1, 0.5),
    ),
    "leaky": ("leakyReLUWithTensor:alpha:name:", (X, 0.1), np.where(X > 0, X, np.float32(0.1) * X)),
    "leaky tensor": ("leakyReLUWithTensor:alphaTensor:name:", (X, Y), np.where(X > 0, X, Y * X)),
    "softmax": ("softMaxWithTensor:axis:name:", (X, -2), softmax(X, 1)),
    "complex": ("complexTensorWithRealTensor:imaginaryTensor:name:", (X, X + 1), X + 1j * (X + 1)),
    "real": ("realPartOfTensor:name:", (Z,), Z.real),
    "imaginary": ("imaginaryPartOfTensor:name:", (Z,), Z.imag),
    "cast": ("castTensor:toType:name:", (X, datatypes.MPS[torch.int8]), X.astype(np.int8)),
    "reinterpret": ("reinterpretCastTensor:toType:name:", (X, datatypes.MPS[torch.int32]), X.view(np.int32)),
    "product": (
        "matrixMultiplicationWithPrimaryTensor:secondaryTensor:name:",
        (Q, K.swapaxes(1, 2)), Q @ K.swapaxes(1, 2),
    ),
    "inverse": ("inverseOfTensor:name:", (SQUARE,), np.linalg.inv(SQUARE)),
    "normalise": (
        "normalizationWithTensor:meanTensor:varianceTensor:gammaTensor:betaTensor:epsilon:name:",
        (E, MEAN, VARIANCE, GAMMA, BETA, 1e-3), (E - MEAN) / np.sqrt(VARIANCE + np.float32(1e-3)) * GAMMA + BETA,
    ),
    "normalise plainly": (
        "normalizationWithTensor:meanTensor:varianceTensor:gammaTensor:betaTensor:epsilon:name:",
        (E, MEAN, VARIANCE, None, None, 0.0), (E - MEAN) / np.sqrt(VARIANCE),
    ),
    "attention": (
        "scaledDotProductAttentionWithQueryTensor:keyTensor:valueTensor:maskTensor:scale:name:", (Q, K, V, MASK, 0.5),
        softmax(Q @ K.swapaxes(1, 2) * 0.5 + MASK, -1).astype(np.float32) @ V,
    ),
    "cross entropy": (
        "softMaxCrossEntropyWithSourceTensor:labelsTensor:axis:reductionType:name:", (LOGITS, LABELS, 1, 1),
        -(LABELS * np.log(softmax(LOGITS, 1))).sum().reshape(1),
    ),
    "sum": ("reductionSumWithTensor:axes:name:", (X, [0, -1]), X.sum((0, 2), keepdims=True)),
    "sum of all": ("reductionSumWithTensor:axes:name:", (X, None), X.sum(keepdims=True)),
    "sum of one": ("reductionSumWithTensor:axis:name:", (WHOLE, 1), WHOLE.sum(1, keepdims=True, dtype=np.int32)),
    "product of": ("reductionProductWithTensor:axes:name:", (X, [0, 2]), X.prod((0, 2), keepdims=True)),
    "maximum": ("reductionMaximumWithTensor:axis:name:", (WITH_NAN, 1), np.float32([[3], [np.nan]])),
    "minimum": ("reductionMinimumWithTensor:axes:name:", (WITH_NAN, [0, 1]), np.float32([[1]])),
    "maximum or nan": (
        "reductionMaximumPropagateNaNWithTensor:axis:name:",
        (WITH_NAN, 0), WITH_NAN.max(0, keepdims=True),
    ),
    "minimum or nan": ("reductionMinimumPropagateNaNWithTensor:axis:name:", (X, 0), X.min(0, keepdims=True)),
    "and": ("reductionAndWithTensor:axes:name:", (TRUE, [0]), TRUE.all(0, keepdims=True)),
    "or": ("reductionOrWithTensor:axis:name:", (TRUE, 1), TRUE.any(1, keepdims=True)),
    "where largest": ("reductionArgMaximumWithTensor:axis:name:", (X, 2), X.argmax(2)[..., None].astype(np.int32)),
    "where smallest": ("reductionArgMinimumWithTensor:axis:name:", (X, 1), X.argmin(1)[:, None].astype(np.int32)),
    "mean": ("meanOfTensor:axes:name:", (X, [1]), X.mean(1, keepdims=True)),
    "variance": ("varianceOfTensor:axes:name:", (X, [1, 2]), X.var((1, 2), keepdims=True)),
    "variance about": ("varianceOfTensor:meanTensor:axes:name:", (X, Y, [1]), ((X - Y) ** 2).mean(1, keepdims=True)),
    "reshape": ("reshapeTensor:withShape:name:", (X, [4, -1]), X.reshape(4, 6)),
    "transpose": ("transposeTensor:dimension:withDimension:name:", (X, 0, 2), X.swapaxes(0, 2)),
    "permute": ("transposeTensor:permutation:name:", (X, [2, 0, 1]), X.transpose(2, 0, 1)),
    "expand": ("expandDimsOfTensor:axis:name:", (X, -1), X[..., None]),
    "expand two": ("expandDimsOfTensor:axes:name:", (X, [0, -1]), X[None, ..., None]),
    "squeeze": ("squeezeTensor:axes:name:", (Y, [1]), Y[:, 0]),
    "squeeze one": ("squeezeTensor:axis:name:", (Y, -2), Y[:, 0]),
    "squeeze all": ("squeezeTensor:name:", (Y,), Y[:, 0]),
    "flatten": ("flatten2DTensor:axis:name:", (X, 2), X.reshape(6, 4)),
    "broadcast": ("broadcastTensor:toShape:name:", (Y, [2, 3, 4]), np.broadcast_to(Y, (2, 3, 4))),
    "tile": ("tileTensor:withMultiplier:name:", (WHOLE, [2, 3]), np.tile(WHOLE, (2, 3))),
    "concatenate": ("concatTensors:dimension:name:", ([X, Y], 1), np.concatenate([X, Y], 1)),
    "concatenate two": ("concatTensor:withTensor:dimension:name:", (X, Y, -2), np.concatenate([X, Y], 1)),
    "interleave": (
        "concatTensors:dimension:interleave:name:",
        ([WHOLE, OTHERS], 1, True), np.stack([WHOLE, OTHERS], 2).reshape(2, 6),
    ),
    "stack": ("stackTensors:axis:name:", ([WHOLE, OTHERS], -1), np.stack([WHOLE, OTHERS], -1)),
    "split": ("splitTensor:splitSizes:axis:name:", (X, [1, 3], 2), np.split(X, [1], 2)),
    "split evenly": ("splitTensor:numSplits:axis:name:", (X, 2, 2), np.split(X, 2, 2)),
    "reverse": ("reverseTensor:axes:name:", (X, [0, 2]), X[::-1, :, ::-1]),
    "reverse all": ("reverseTensor:name:", (X,), X[::-1, ::-1, ::-1]),
    "slice": ("sliceTensor:dimension:start:length:name:", (X, 2, 1, 2), X[..., 1:3]),
    "slice with steps": (
        "sliceTensor:starts:ends:strides:name:",
        (X, [0, 2, -1], [2, 0, 0], [1, -1, -2]), X[0:2, 2:0:-1, -1:0:-2],
    ),
    "slice by masks": (
        "sliceTensor:starts:ends:strides:startMask:endMask:squeezeMask:name:",
        (X, [1, 1, -1], [0, 0, 1], [1, 1, 1], 0b010, 0b010, 0b101), X[1, :, -1],
    ),
    "one hot": (
        "oneHotWithIndicesTensor:depth:axis:dataType:onValue:offValue:name:",
        (AT, 3, 0, datatypes.MPS[torch.float32], 2.0, -1.0),
        np.float32(3) * np.eye(3, dtype=np.float32)[AT].transpose(2, 0, 1) - 1,
    ),
    "one hot plainly": ("oneHotWithIndicesTensor:depth:name:", (AT, 3), np.eye(3, dtype=np.float32)[AT]),
    "pixel shuffle": (
        "depthToSpace2DTensor:widthAxis:heightAxis:depthAxis:blockSize:usePixelShuffleOrder:name:",
        (BLOCKS, 3, 2, 1, 2, True), shuffled(BLOCKS, 2),
    ),
    "pixel unshuffle": (
        "spaceToDepth2DTensor:widthAxis:heightAxis:depthAxis:blockSize:usePixelShuffleOrder:name:",
        (shuffled(BLOCKS, 2), 3, 2, 1, 2, True), BLOCKS,
    ),
    "depth to space": (
        "depthToSpace2DTensor:widthAxis:heightAxis:depthAxis:blockSize:usePixelShuffleOrder:name:",
        (np.float32([[[[1]], [[2]], [[3]], [[4]]]]), 3, 2, 1, 2, False), np.float32([[[[1, 2], [3, 4]]]]),
    ),
    "space to depth": (
        "spaceToDepth2DTensor:widthAxis:heightAxis:depthAxis:blockSize:usePixelShuffleOrder:name:",
        (np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2), 3, 2, 1, 2, False),
        np.float32([0, 4, 1, 5, 2, 6, 3, 7]).reshape(1, 8, 1, 1),
    ),
    "band": ("bandPartWithTensor:numLower:numUpper:name:", (SQUARE, 1, 0), band(SQUARE, 1, 0)),
    "band without end": ("bandPartWithTensor:numLower:numUpper:name:", (SQUARE, -1, 1), np.tril(SQUARE, 1)),
    "coordinate": ("coordinateAlongAxis:withShape:name:", (-1, [2, 3]), np.int32([[0, 1, 2], [0, 1, 2]])),
    "shape": ("shapeOfTensor:name:", (X,), np.int32([2, 3, 4])),
    "gather along": (
        "gatherAlongAxis:withUpdatesTensor:indicesTensor:name:",
        (1, WHOLE, AT), np.take_along_axis(WHOLE, AT, 1),
    ),
    "gather": ("gatherWithUpdatesTensor:indicesTensor:axis:batchDimensions:name:", (X, AT, 1, 0), X[:, AT]),
    "gather in batches": (
        "gatherWithUpdatesTensor:indicesTensor:axis:batchDimensions:name:",
        (X, AT, 1, 1), np.stack([X[0, AT[0]], X[1, AT[1]]]),
    ),
    "gather nd": (
        "gatherNDWithUpdatesTensor:indicesTensor:batchDimensions:name:",
        (X[:, :, 0], np.int32([[1, 2], [0, 1]]), 0), X[[1, 0], [2, 1], 0],
    ),
    "gather nd in batches": (
        "gatherNDWithUpdatesTensor:indicesTensor:batchDimensions:name:",
        (X, AT[:, :, None], 1), np.stack([X[0, AT[0]], X[1, AT[1]]]),
    ),
    "scatter": (
        "scatterWithDataTensor:updatesTensor:indicesTensor:axis:mode:name:",
        (ONES, 2 * ONES[:, :2], np.int32([2, 0]), 1, 2), np.float32([[2, 1, 2], [2, 1, 2]]),
    ),
    "scatter along": (
        "scatterAlongAxis:withDataTensor:updatesTensor:indicesTensor:mode:name:",
        (1, ONES, 3 * ONES[:, :2], AT, 6), np.float32([[3, 1, 3], [1, 3, 1]]),
    ),
    "scatter into zeros": (
        "scatterAlongAxis:withUpdatesTensor:indicesTensor:shape:mode:name:",
        (1, ONES[:, :2], AT, [2, 3], 1), np.float32([[-1, 0, -1], [0, -2, 0]]),
    ),
    "scatter nd": (
        "scatterNDWithDataTensor:updatesTensor:indicesTensor:batchDimensions:mode:name:",
        (ONES, np.float32([4, 8, 2]), np.int32([[0, 1], [1, 2], [1, 2]]), 0, 3),
        np.float32([[1, 0.25, 1], [1, 1, 1 / 16]]),
    ),
    "scatter nd added": (
        "scatterNDWithUpdatesTensor:indicesTensor:shape:batchDimensions:name:",
        (np.float32([[1, 2], [3, 4]]), np.int32([[1], [1]]), [3, 2], 0), np.float32([[0, 0], [4, 6], [0, 0]]),
    ),
    "sort": ("sortWithTensor:axis:descending:name:", (X, 1, True), -np.sort(-X, 1)),
    "sort upwards": ("sortWithTensor:axis:name:", (WHOLE, -1), np.sort(WHOLE, -1)),
    "argsort": ("argSortWithTensor:axis:descending:name:", (X, 2, True), np.argsort(-X, 2).astype(np.int32)),
    "argsort of ties": ("argSortWithTensor:axis:name:", (np.int32([1, 0, 1, 0]), 0), np.int32([1, 3, 0, 2])),
    "top": (
        "topKWithSourceTensor:axis:k:name:",
        (X, 1, 2), [-np.sort(-X, 1)[:, :2], np.argsort(-X, 1)[:, :2].astype(np.int32)],
    ),
    "top of rows": (
        "topKWithSourceTensor:k:name:",
        (X, 1), [X.max(2, keepdims=True), X.argmax(2)[..., None].astype(np.int32)],
    ),
    "bottom": (
        "bottomKWithSourceTensor:axis:k:name:",
        (X, 0, 1), [X.min(0, keepdims=True), X.argmin(0)[None].astype(np.int32)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAIN)
def test_operation(mac, case):
    selector, arguments, wanted = PLAIN[case]
    found = run(mac, selector, *arguments)
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            agree(one, other)
    else:
        agree(found, wanted)


SCANS = {
    "Sum": (np.cumsum, 0.0), "Product": (np.cumprod, 1.0),
    "Maximum": (np.maximum.accumulate, np.finfo(np.float32).min),
    "Minimum": (np.minimum.accumulate, np.finfo(np.float32).max),
}  # fmt: skip


@pytest.mark.parametrize("stem", SCANS)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative_operations(mac, stem, exclusive, reverse):
    scan, first = SCANS[stem]
    x = X[:, ::-1] if reverse else X
    if exclusive:
        x = np.concatenate([np.full_like(x[:, :1], first), x[:, :-1]], 1)
    wanted = scan(x, 1).astype(np.float32)
    found = run(mac, f"cumulative{stem}WithTensor:axis:exclusive:reverse:name:", X, -2, exclusive, reverse)
    agree(found, wanted[:, ::-1] if reverse else wanted)
    if not (exclusive or reverse):
        agree(run(mac, f"cumulative{stem}WithTensor:axis:name:", X, 1), wanted)


def test_cumulative_sums_of_small_whole_numbers_keep_their_type(mac):
    found = run(mac, "cumulativeSumWithTensor:axis:name:", np.int8([100, 27, 1]), 0)
    assert (found.dtype, found.tolist()) == (np.int8, [100, 127, -128])


MODES = {1: "reflect", 2: "symmetric", 3: "edge", 5: "wrap"}  # MPSGraphPaddingMode and NumPy's


@pytest.mark.parametrize("mode", [0, 4, *MODES])
def test_padding(mac, mode):
    left, right = [0, 2, 1], [1, 2, 3]
    found = run(
        mac, "padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:name:", X, mode, left, right, 7.0
    )
    if mode in MODES:
        agree(found, np.pad(X, list(zip(left, right, strict=True)), MODES[mode]))
    else:
        agree(found, np.pad(X, list(zip(left, right, strict=True)), constant_values=7.0 if mode == 0 else 0.0))


# ---- convolution and pooling


def naive_convolution(x, w, strides, dilations, pads, groups):
    """(N, C, *sizes) with (O, I, *taps), in float64, window by window."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads])
    spans = [(taps - 1) * step + 1 for taps, step in zip(w.shape[2:], dilations, strict=True)]
    axes = tuple(range(2, x.ndim))
    windows = sliding_window_view(x, spans, axes)
    n = len(axes)
    windows = windows[
        (slice(None), slice(None), *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))
    ]
    outputs = []
    for group in range(groups):
        part = windows[:, group * w.shape[1] : (group + 1) * w.shape[1]]
        kernel = w[group * (len(w) // groups) : (group + 1) * (len(w) // groups)].astype(np.float64)
        outputs.append(np.tensordot(part, kernel, ((1, *range(2 + n, 2 + 2 * n)), range(1, n + 2))))
    return np.moveaxis(np.concatenate(outputs, -1), -1, 1)


def same(size, taps, stride, dilation, lower):
    total = max((-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
    pair = total // 2, total - total // 2
    return pair[::-1] if lower else pair


CONVOLUTION = (
    "descriptorWithStrideInX:strideInY:dilationRateInX:dilationRateInY:groups:paddingLeft:paddingRight:"
    "paddingTop:paddingBottom:paddingStyle:dataLayout:weightsLayout:"
)
CONVOLUTION_3D = (
    "descriptorWithStrideInX:strideInY:strideInZ:dilationRateInX:dilationRateInY:dilationRateInZ:groups:"
    "paddingLeft:paddingRight:paddingTop:paddingBottom:paddingFront:paddingBack:paddingStyle:dataLayout:"
    "weightsLayout:"
)
NCHW, NHWC, OIHW, HWIO, NCDHW, NDHWC, OIDHW, DHWIO = 0, 1, 2, 3, 7, 8, 9, 10
EXPLICIT, VALID, SAME, SAME_LOWER = 0, 1, 2, 4


@pytest.mark.parametrize(
    ("strides", "dilations", "groups", "style", "channels_last"),
    [
        ((1, 1), (1, 1), 1, EXPLICIT, False),
        ((2, 1), (1, 2), 1, EXPLICIT, True),
        ((2, 3), (1, 1), 1, SAME, False),
        ((2, 1), (2, 1), 2, SAME_LOWER, True),
        ((1, 2), (1, 1), 4, VALID, False),
    ],
)
def test_convolution_in_two_dimensions(mac, strides, dilations, groups, style, channels_last):
    """Strides and dilations are of height and width; the descriptor names width (X) first."""
    x, w = floats(2, 4, 8, 9), floats(8, 4 // groups, 3, 2)
    explicit = [(1, 2), (0, 3)]
    pads = {
        EXPLICIT: explicit,
        VALID: [(0, 0)] * 2,
        SAME: [same(*a, False) for a in zip((8, 9), (3, 2), strides, dilations, strict=True)],
        SAME_LOWER: [same(*a, True) for a in zip((8, 9), (3, 2), strides, dilations, strict=True)],
    }[style]
    (top, bottom), (left, right) = explicit
    descriptor = call(
        mac.G.MPSGraphConvolution2DOpDescriptor, CONVOLUTION, strides[1], strides[0], dilations[1], dilations[0],
        groups, left, right, top, bottom, style, NHWC if channels_last else NCHW, HWIO if channels_last else OIHW,
    )  # fmt: skip
    wanted = naive_convolution(x, w, strides, dilations, pads, groups)
    selector = "convolution2DWithSourceTensor:weightsTensor:descriptor:name:"
    if channels_last:
        found = run(mac, selector, x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), descriptor)
        agree(found, wanted.transpose(0, 2, 3, 1).astype(np.float32))
    else:
        agree(run(mac, selector, x, w, descriptor), wanted.astype(np.float32))


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolution_in_three_dimensions(mac, channels_last):
    x, w = floats(1, 4, 5, 6, 7), floats(6, 2, 2, 3, 2)
    strides, dilations, pads = (1, 2, 2), (2, 1, 1), [(1, 0), (2, 1), (0, 3)]
    descriptor = call(
        mac.G.MPSGraphConvolution3DOpDescriptor, CONVOLUTION_3D, *strides[::-1], *dilations[::-1], 2,
        *pads[2], *pads[1], *pads[0], EXPLICIT, NDHWC if channels_last else NCDHW, DHWIO if channels_last else OIDHW,
    )  # fmt: skip
    wanted = naive_convolution(x, w, strides, dilations, pads, 2).astype(np.float32)
    selector = "convolution3DWithSourceTensor:weightsTensor:descriptor:name:"
    if channels_last:
        found = run(mac, selector, x.transpose(0, 2, 3, 4, 1), w.transpose(2, 3, 4, 1, 0), descriptor)
        agree(found, wanted.transpose(0, 2, 3, 4, 1))
    else:
        agree(run(mac, selector, x, w, descriptor), wanted)


def test_setting_paddings_makes_the_style_explicit(mac):
    descriptor = mac.G.MPSGraphConvolution2DOpDescriptor.alloc().init()
    descriptor.setPaddingStyle_(SAME)
    descriptor.setExplicitPaddingWithPaddingLeft_paddingRight_paddingTop_paddingBottom_(1, 2, 3, 4)
    assert (descriptor.paddingStyle(), descriptor.paddingTop(), descriptor.strideInX()) == (EXPLICIT, 3, 1)


def test_a_descriptor_changed_later_changes_nothing(mac, g):
    """The operation was added with the values of that moment."""
    x = g.placeholderWithShape_name_([1, 1, 4, 4], "x")
    w = g.constantWithScalar_shape_dataType_(1.0, [1, 1, 2, 2], mac.G.MPSDataTypeFloat32)
    descriptor = mac.G.MPSGraphConvolution2DOpDescriptor.alloc().init()
    y = g.convolution2DWithSourceTensor_weightsTensor_descriptor_name_(x, w, descriptor, None)
    descriptor.setStrideInX_(2)
    assert list(y.shape()) == [1, 1, 3, 3]


POOLING = (
    "descriptorWithKernelWidth:kernelHeight:strideInX:strideInY:dilationRateInX:dilationRateInY:"
    "paddingLeft:paddingRight:paddingTop:paddingBottom:paddingStyle:dataLayout:"
)


def pooled(x, kernel, strides, pads, fill, reduce):
    windows = sliding_window_view(np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill), kernel, (2, 3))
    return reduce(windows[:, :, :: strides[0], :: strides[1]], (-2, -1))


@pytest.mark.parametrize("channels_last", [False, True])
def test_pooling(mac, channels_last):
    x, kernel, strides, pads = floats(2, 3, 7, 8), (3, 2), (2, 2), [(1, 1), (0, 1)]
    descriptor = call(
        mac.G.MPSGraphPooling2DOpDescriptor, POOLING, kernel[1], kernel[0], strides[1], strides[0], 1, 1,
        *pads[1], *pads[0], EXPLICIT, NHWC if channels_last else NCHW,
    )  # fmt: skip
    there = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)

    def found(kind):
        return run(mac, f"{kind}Pooling2DWithSourceTensor:descriptor:name:", x.transpose(there), descriptor)

    sums, counts = (pooled(a, kernel, strides, pads, 0.0, np.sum) for a in (x, np.ones_like(x)))
    agree(found("max"), pooled(x, kernel, strides, pads, -np.inf, np.max).transpose(there))
    agree(found("avg"), (sums / counts).transpose(there))
    descriptor.setIncludeZeroPadToAverage_(True)
    agree(found("avg"), (sums / 6).transpose(there))


# ---- quantisation


@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, 0), (np.int8, -100), (np.uint8, 130)])
def test_quantise_and_back(mac, dtype, zero):
    """Rounded to the nearest step, saturated at both ends; back within half a step where nothing was cut off."""
    x, scale = floats(4, 50, low=-6, high=6), 0.02
    limits = np.iinfo(dtype)
    kind = mps_type(np.zeros(1, dtype))
    q = run(mac, "quantizeTensor:scale:zeroPoint:dataType:name:", x, scale, float(zero), kind)
    wanted = np.clip(np.rint(x.astype(np.float64) / scale) + zero, limits.min, limits.max)
    assert q.dtype == dtype
    assert np.abs(q - wanted).max() <= 1
    assert (q == wanted).mean() > 0.98, "a half may fall either way in float32"
    assert (q == limits.max).any()
    back = run(mac, "dequantizeTensor:scale:zeroPoint:dataType:name:", q, scale, float(zero), mps_type(x))
    agree(back, ((q.astype(np.float64) - zero) * scale).astype(np.float32))
    inside = (wanted > limits.min) & (wanted < limits.max)
    assert np.abs(back - x)[inside].max() <= scale / 2 + 1e-5


@pytest.mark.parametrize("tensors", [False, True])
def test_quantise_per_channel(mac, tensors):
    x = floats(3, 4, 5)
    scale, zero = np.float32([0.1, 0.02, 0.05, 0.3]), np.int8([1, -2, 3, 0])
    zeros = zero if tensors else -2.0
    there = "zeroPointTensor" if tensors else "zeroPoint"
    q = run(mac, f"quantizeTensor:scaleTensor:{there}:dataType:axis:name:", x, scale, zeros, mps_type(zero), -2)
    shift = (zero if tensors else np.full(4, -2)).reshape(1, 4, 1).astype(np.float64)
    wanted = np.clip(np.rint(x / scale.reshape(1, 4, 1).astype(np.float64)) + shift, -128, 127)
    assert np.abs(q - wanted).max() <= 1
    assert (q == wanted).mean() > 0.95
    back = run(mac, f"dequantizeTensor:scaleTensor:{there}:dataType:axis:name:", q, scale, zeros, mps_type(x), 1)
    agree(back, ((q - shift) * scale.reshape(1, 4, 1)).astype(np.float32))


# ---- Fourier transforms, against NumPy in float64


def fft_descriptor(mac, inverse, mode, odd=False):
    descriptor = mac.G.MPSGraphFFTDescriptor.descriptor()
    descriptor.setInverse_(inverse)
    descriptor.setScalingMode_(mode)
    descriptor.setRoundToOddHermitean_(odd)
    return descriptor


def scale_of(mode, count):
    return {0: 1.0, 1: 1 / count, 2: count**-0.5}[mode]


SIGNAL = (floats(2, 3, 4, 5, 6) + 1j * floats(2, 3, 4, 5, 6)).astype(np.complex64)


@pytest.mark.parametrize("axes", [[4], [3, 4], [4, 2], [1, 2, 3], [1, 2, 3, 4], [-1]])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_complex_to_complex(mac, axes, inverse, mode):
    count = math.prod(SIGNAL.shape[axis] for axis in axes)
    plain = (
        np.fft.ifftn(SIGNAL.astype(complex), axes=axes) * count
        if inverse
        else np.fft.fftn(SIGNAL.astype(complex), axes=axes)
    )
    found = run(
        mac, "fastFourierTransformWithTensor:axes:descriptor:name:", SIGNAL, axes, fft_descriptor(mac, inverse, mode)
    )
    agree(found, (plain * scale_of(mode, count)).astype(np.complex64), atol=2e-4)


@pytest.mark.parametrize("axes", [[4], [3, 4], [1, 4], [1, 2, 3], [1, 2, 3, 4]])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_real_to_hermitean_and_back(mac, axes, mode):
    """Forwards with one scaling, back with what undoes it; both signs of the exponent."""
    x = SIGNAL.real.copy()
    count = math.prod(x.shape[axis] for axis in axes)
    plain = np.fft.rfftn(x.astype(np.float64), axes=axes)
    for inverse in (False, True):
        wanted = plain.conj() if inverse else plain
        arguments = x, axes, fft_descriptor(mac, inverse, mode)
        found = run(mac, "realToHermiteanFFTWithTensor:axes:descriptor:name:", *arguments)
        agree(found, (wanted * scale_of(mode, count)).astype(np.complex64), atol=2e-4)
        odd = x.shape[max(axes)] % 2 == 1
        undo = fft_descriptor(mac, not inverse, {0: 1, 1: 0, 2: 2}[mode], odd)
        agree(run(mac, "HermiteanToRealFFTWithTensor:axes:descriptor:name:", found, axes, undo), x)


def test_the_order_of_axes_does_not_matter(mac):
    x, forward = SIGNAL.real.copy(), fft_descriptor(mac, False, 0)
    selector = "realToHermiteanFFTWithTensor:axes:descriptor:name:"
    np.testing.assert_array_equal(run(mac, selector, x, [4, 2], forward), run(mac, selector, x, [2, 4], forward))


def test_half_precision_spectra_are_rounded_from_single(mac, g):
    x = floats(3, 8)
    narrow = g.castTensor_toType_name_(
        g.constantWithData_shape_dataType_(nsdata(mac, x), x.shape, mps_type(x)), mac.G.MPSDataTypeFloat16, None
    )
    spectrum = g.fastFourierTransformWithTensor_axes_descriptor_name_(narrow, [1], fft_descriptor(mac, False, 0), None)
    assert spectrum.dataType() == mac.G.MPSDataTypeComplexFloat16
    wide = g.castTensor_toType_name_(spectrum, mac.G.MPSDataTypeComplexFloat32, None)
    found = numbers(g.runWithFeeds_targetTensors_targetOperations_({}, [wide], None)[wide])
    wanted = np.fft.fft(x.astype(np.float16).astype(np.float64))
    np.testing.assert_allclose(found, wanted, atol=1e-2)
    assert (np.float16(found.real) == found.real).all()


# ---- sampling, against PyTorch's own

GRID = (
    "sampleGridWithSourceTensor:coordinateTensor:layout:normalizeCoordinates:relativeCoordinates:"
    "alignCorners:paddingMode:samplingMode:constantValue:name:"
)
NEAREST_GRID = GRID.replace("samplingMode", "nearestRoundingMode")
REFLECT, SYMMETRIC, CLAMP, ZERO = 1, 2, 3, 4
NEAREST, BILINEAR = 0, 1


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_grid_sampling(mac, aligned, padding, mode):
    """PyTorch reflects about the centres of the edge pixels if corners are aligned, else about their edges."""
    x, grid = floats(2, 3, 5, 6), floats(2, 4, 7, 2, low=-1.6, high=1.6)
    wanted = F.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), mode, padding, aligned).numpy()
    pad = {"zeros": ZERO, "border": CLAMP, "reflection": REFLECT if aligned else SYMMETRIC}[padding]
    if mode == "bilinear":
        agree(run(mac, GRID, x, grid, NCHW, True, False, aligned, pad, BILINEAR, 0.0), wanted)
    else:
        agree(run(mac, NEAREST_GRID, x, grid, NCHW, True, False, aligned, pad, 4, 0.0), wanted)


def test_grid_coordinates_in_pixels_relative_and_with_a_constant_outside(mac):
    x = floats(1, 4, 5, 3)
    rows, columns = np.meshgrid(np.arange(4, dtype=np.float32), np.arange(5, dtype=np.float32), indexing="ij")
    here = np.stack([columns, rows], -1)[None]
    agree(run(mac, GRID, x, here, NHWC, False, False, True, CLAMP, BILINEAR, 0.0), x)
    shift = np.zeros_like(here) + np.float32([1, 0])
    wanted = np.concatenate([x[:, :, 1:], np.full((1, 4, 1, 3), 9, np.float32)], 2)
    for relative, grid in ((False, here + shift), (True, shift)):
        agree(run(mac, GRID, x, grid, NHWC, False, relative, True, 0, BILINEAR, 9.0), wanted)
    for aligned in (False, True):
        agree(run(mac, GRID, x, np.zeros_like(here), NHWC, True, True, aligned, CLAMP, BILINEAR, 0.0), x)
    with pytest.raises(simulated.NotSimulated, match="coordinates in pixels with alignCorners NO"):
        run(mac, GRID, x, here, NHWC, False, False, False, CLAMP, BILINEAR, 0.0)


def test_nearest_rounding_modes(mac):
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    grid = np.zeros((1, 1, 4, 2), np.float32)
    grid[..., 0] = [0.5, 1.5, 2.25, 2.75]
    found = [
        run(mac, NEAREST_GRID, x, grid, NCHW, False, False, True, CLAMP, mode, 0.0).ravel().tolist()
        for mode in range(6)
    ]
    assert found == [[1, 2, 2, 3], [0, 1, 2, 3], [1, 2, 3, 3], [0, 1, 2, 2], [0, 2, 2, 3], [1, 1, 2, 3]]
    plain = run(mac, GRID, x, grid, NCHW, False, False, True, CLAMP, NEAREST, 0.0)
    assert plain.ravel().tolist() == found[0], "the header's default"


@pytest.mark.parametrize("size", [(7, 4), (3, 9)])
def test_resizing(mac, size):
    x, selector = floats(2, 3, 5, 6), "resizeTensor:size:mode:centerResult:alignCorners:layout:name:"
    for aligned in (False, True):
        wanted = F.interpolate(torch.from_numpy(x), size, mode="bilinear", align_corners=aligned).numpy()
        agree(run(mac, selector, x, size, BILINEAR, True, aligned, NCHW), wanted)
    picture = x[0].transpose(1, 2, 0)
    rows, columns = ([math.floor(i * a / b + 0.5) for i in range(b)] for a, b in zip((5, 6), size, strict=True))
    rows, columns = np.minimum(rows, 4), np.minimum(columns, 5)
    agree(run(mac, selector, picture, size, NEAREST, False, False, 5), picture[rows][:, columns])


# ---- selectors that take numbers in tensors


def test_numbers_may_come_in_constant_tensors(mac, g):
    x = g.constantWithData_shape_dataType_(nsdata(mac, X), X.shape, mps_type(X))

    def constant(*values):
        array = np.int32(values)
        return g.constantWithData_shape_dataType_(nsdata(mac, array), array.shape, mps_type(array))

    made = {
        g.sortWithTensor_axisTensor_descending_name_(x, constant(1), False, None): np.sort(X, 1),
        g.reshapeTensor_withShapeTensor_name_(x, constant(6, 4), None): X.reshape(6, 4),
        g.cumulativeSumWithTensor_axisTensor_exclusive_reverse_name_(x, constant(2), False, False, None): X.cumsum(2),
        g.fastFourierTransformWithTensor_axesTensor_descriptor_name_(
            x, constant(1, 2), fft_descriptor(mac, False, 0), None
        ): np.fft.fftn(X, axes=(1, 2)),
    }
    found = g.runWithFeeds_targetTensors_targetOperations_({}, list(made), None)
    for tensor, wanted in made.items():
        np.testing.assert_allclose(numbers(found[tensor]), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(simulated.NotSimulated, match="only constants are simulated"):
        g.reshapeTensor_withShapeTensor_name_(
            x, g.placeholderWithShape_dataType_name_([2], mps_type(WHOLE), None), None
        )


def test_the_readme_s_example_runs(monkeypatch, tmp_path, capsys, mac):
    monkeypatch.chdir(tmp_path)
    text = contract.SOURCE.with_name("README.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), {})
    assert capsys.readouterr().out == "[1, 4, 8, 8]\n(1, 4, 8, 8) int8\n"


# ---- a whole program: build, compile, store, load in another process, run


def quantised_convolution(mac):
    """x dequantised, convolved with a constant and quantised again; and x itself plus a second input."""
    g, G = mac.G.MPSGraph.alloc().init(), mac.G
    x = g.placeholderWithShape_dataType_name_([1, 3, 6, 6], G.MPSDataTypeInt8, "x")
    bias = g.placeholderWithShape_dataType_name_([1, 4, 1, 1], G.MPSDataTypeFloat32, "bias")
    w = (np.arange(4 * 3 * 9, dtype=np.float32).reshape(4, 3, 3, 3) % 7 - 3) / 10
    weights = g.constantWithData_shape_dataType_(nsdata(mac, w), w.shape, G.MPSDataTypeFloat32)
    descriptor = call(G.MPSGraphConvolution2DOpDescriptor, CONVOLUTION, 1, 1, 1, 1, 1, 1, 1, 1, 1, EXPLICIT, NCHW, OIHW)
    y = g.dequantizeTensor_scale_zeroPoint_dataType_name_(x, 0.02, -3.0, G.MPSDataTypeFloat32, None)
    y = g.convolution2DWithSourceTensor_weightsTensor_descriptor_name_(y, weights, descriptor, "conv")
    y = g.additionWithPrimaryTensor_secondaryTensor_name_(y, bias, "biased")
    q = g.quantizeTensor_scale_zeroPoint_dataType_name_(y, 0.05, 4.0, G.MPSDataTypeInt8, "q")
    data = {x: ints(1, 3, 6, 6, low=-128, high=127, dtype=np.int8), bias: floats(1, 4, 1, 1)}
    real = naive_convolution((data[x].astype(np.float64) + 3) * 0.02, w, (1, 1), (1, 1), [(1, 1)] * 2, 1) + data[bias]
    wanted = np.clip(np.rint(real / 0.05) + 4, -128, 127)
    return g, data, [q, y], [wanted, real]


def shaped(mac, array):
    return mac.G.MPSGraphShapedType.alloc().initWithShape_dataType_(array.shape, mps_type(array))


def compiled(mac):
    g, data, targets, wanted = quantised_convolution(mac)
    feeds = {tensor: shaped(mac, array) for tensor, array in data.items()}
    compilation = mac.G.MPSGraphCompilationDescriptor.alloc().init()
    compilation.setOptimizationLevel_(mac.G.MPSGraphOptimizationLevel1)
    compilation.setWaitForCompilationCompletion_(True)
    executable = g.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        mac.graph_device, feeds, targets, None, compilation
    )
    return executable, [data[tensor] for tensor in executable.feedTensors()], wanted


def near(found, wanted):
    """The quantised result within one step, the real one closely."""
    assert np.abs(found[0].astype(float) - wanted[0]).max() <= 1
    assert (found[0] == wanted[0]).mean() > 0.95
    np.testing.assert_allclose(found[1], wanted[1], atol=1e-4)


def execute(mac, executable, inputs, results=None):
    run_ = executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
    return run_(mac.queue, [tensor_data(mac, each) for each in inputs], results, None)


def test_a_graph_runs_with_feeds(mac):
    g, data, targets, wanted = quantised_convolution(mac)
    feeds = {tensor: tensor_data(mac, array) for tensor, array in data.items()}
    found = g.runWithFeeds_targetTensors_targetOperations_(feeds, targets, None)
    near([numbers(found[tensor]) for tensor in targets], wanted)
    q = np.empty(wanted[0].shape, np.int8)
    buffer = mac.device.newBufferWithLength_options_(q.nbytes, mac.Metal.MTLResourceStorageModeShared)
    place = mac.G.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_(buffer, q.shape, mps_type(q))
    g.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(mac.queue, feeds, None, {targets[0]: place})
    q = np.frombuffer(buffer.contents().as_buffer(q.nbytes), np.int8).reshape(q.shape)
    assert np.array_equal(q, numbers(found[targets[0]]))


def test_an_executable_fills_the_given_buffers_and_takes_nsdata(mac):
    executable, inputs, wanted = compiled(mac)
    assert [t.operation().name() for t in executable.targetTensors()] == ["q", "biased"]
    near([numbers(each) for each in execute(mac, executable, inputs)], wanted)
    results = [tensor_data(mac, np.zeros(w.shape, t)) for w, t in zip(wanted, (np.int8, np.float32), strict=True)]
    given = [
        mac.G.MPSGraphTensorData.alloc().initWithDevice_data_shape_dataType_(
            mac.graph_device, nsdata(mac, each), each.shape, mps_type(each)
        )
        for each in inputs
    ]
    execution = mac.G.MPSGraphExecutableExecutionDescriptor.alloc().init()
    execution.setWaitUntilCompleted_(True)
    told = []
    execution.setCompletionHandler_(lambda data, error: told.append((len(data), error)))
    run_ = executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
    assert list(run_(mac.queue, given, results, execution)) == results
    near([numbers(each) for each in results], wanted)
    assert told == [(2, None)]
    executable.specializeWithDevice_inputTypes_compilationDescriptor_(
        mac.graph_device, [shaped(mac, each) for each in inputs], None
    )
    kinds = executable.getOutputTypesWithDevice_inputTypes_compilationDescriptor_(
        mac.graph_device, [shaped(mac, each) for each in inputs], None
    )
    assert [list(kind.shape()) for kind in kinds] == [[1, 4, 6, 6]] * 2


def serialise(mac, executable, path):
    how = mac.G.MPSGraphExecutableSerializationDescriptor.alloc().init()
    how.setAppend_(False)
    how.setDeploymentPlatform_(mac.G.MPSGraphDeploymentPlatformMacOS)
    how.setMinimumDeploymentTarget_("14.0.0")
    executable.serializeToMPSGraphPackageAtURL_descriptor_(mac.Foundation.NSURL.fileURLWithPath_(str(path)), how)
    return path


def load(mac, path):
    initialise = mac.G.MPSGraphExecutable.alloc().initWithMPSGraphPackageAtURL_compilationDescriptor_
    return initialise(mac.Foundation.NSURL.fileURLWithPath_(str(path)), None)


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


def test_a_long_program_survives_a_package(mac, g, tmp_path):
    """Quantised, filtered by its spectrum, sampled, scanned and sorted: descriptors and numbers are stored as well."""
    G, x, half = mac.G, floats(1, 2, 6, 8), np.full((1, 1, 6, 5), 0.5, np.complex64)
    grid = floats(1, 4, 5, 2, low=-1, high=1)
    source = g.placeholderWithShape_dataType_name_(x.shape, F32, "x")
    q = g.quantizeTensor_scale_zeroPoint_dataType_name_(source, 0.05, 0.0, G.MPSDataTypeInt8, "q")
    y = g.dequantizeTensor_scale_zeroPoint_dataType_name_(q, 0.05, 0.0, F32, "real again")
    spectrum = g.realToHermiteanFFTWithTensor_axes_descriptor_name_(y, [2, 3], fft_descriptor(mac, False, 0), "fft")
    filter_ = g.constantWithData_shape_dataType_(nsdata(mac, half), half.shape, G.MPSDataTypeComplexFloat32)
    spectrum = g.multiplicationWithPrimaryTensor_secondaryTensor_name_(spectrum, filter_, "filtered")
    y = g.HermiteanToRealFFTWithTensor_axes_descriptor_name_(spectrum, [2, 3], fft_descriptor(mac, True, 1), "back")
    places = g.constantWithData_shape_dataType_(nsdata(mac, grid), grid.shape, F32)
    y = call(g, GRID, y, places, NCHW, True, False, False, ZERO, BILINEAR, 0.0, "sampled")
    total = g.cumulativeSumWithTensor_axis_exclusive_reverse_name_(y, 3, False, True, "sums")
    order = g.argSortWithTensor_axis_descending_name_(total, -1, True, "order")
    executable = g.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        mac.graph_device, {source: shaped(mac, x)}, [total, order], None, None
    )
    loaded = load(mac, serialise(mac, executable, tmp_path / "long.mpsgraphpackage"))
    assert (loaded.feedTensors(), loaded.targetTensors()) == (None, None)
    manifest = json.loads((tmp_path / "long.mpsgraphpackage" / "manifest.json").read_text())
    assert manifest["minimum_macos"] == "14.0.0"
    found = [[numbers(each) for each in execute(mac, one, [x])] for one in (executable, loaded)]
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)
    real = np.rint(x.astype(np.float64) / 0.05).clip(-128, 127) * 0.05
    sampled = F.grid_sample(torch.from_numpy(real / 2), torch.from_numpy(grid).double(), align_corners=False).numpy()
    sums = sampled[..., ::-1].cumsum(-1)[..., ::-1]
    np.testing.assert_allclose(found[0][0], sums, atol=0.05)  # a step of the quantisation
    np.testing.assert_array_equal(found[0][1], np.argsort(-found[0][0], -1))


def test_every_kind_of_constant_survives_a_package(mac, g, tmp_path):
    kinds = (np.float32, np.float16, np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_, np.complex64)
    arrays = [ints(2, 3, low=0).astype(kind) for kind in kinds]
    constants = [g.constantWithData_shape_dataType_(nsdata(mac, a), a.shape, mps_type(a)) for a in arrays]
    targets = [g.identityWithTensor_name_(constant, None) for constant in constants]
    small = g.constantWithRealPart_imaginaryPart_dataType_(1.5, -2.0, mac.G.MPSDataTypeComplexFloat16)
    targets.append(g.realPartOfTensor_name_(small, None))
    executable = g.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        None, {}, targets, None, None
    )
    loaded = load(mac, serialise(mac, executable, tmp_path / "constants.mpsgraphpackage"))
    *found, half = execute(mac, loaded, [])
    for array, data in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(numbers(data), array)
    assert (half.dataType(), numbers(half).item()) == (mac.G.MPSDataTypeFloat16, 1.5)


def test_a_cell_of_a_page_finds_the_modules():
    """A child with an Apple GPU: the modules are simply there, and say what they are."""
    code = """
import Metal, MetalPerformanceShadersGraph as G, Foundation, MetalPerformanceShaders, objc
said = [Metal.__doc__.split(":")[0], repr(Metal), str(G.MPSGraph), Metal.MTLCreateSystemDefaultDevice().name()]
graph = G.MPSGraph.alloc().init()
x = graph.constantWithScalar_shape_dataType_(2.0, [3], MetalPerformanceShaders.MPSDataTypeFloat32)
shape = list(graph.squareWithTensor_name_(x, None).shape())
"""
    outcome = isolated.run(code, results=["said", "shape"], device="mps")
    assert outcome.ok, outcome.detail
    assert outcome["shape"] == [3]
    assert all("simulated" in each.lower() for each in outcome["said"])


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


F32, I32, I8 = (datatypes.MPS[dtype] for dtype in (torch.float32, torch.int32, torch.int8))
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
    selector, arguments, said = INVALID[case]
    there = SimpleNamespace(
        x=g.placeholderWithShape_name_([2, 3], "x"),
        i=g.placeholderWithShape_dataType_name_([2, 3], I32, "i"),
        four=g.placeholderWithShape_name_([4], None),
        picture=g.placeholderWithShape_name_([1, 4, 2, 2], None),
        whole=g.placeholderWithShape_dataType_name_([3], I32, None),
        foreign=mac.G.MPSGraph.new().placeholderWithShape_name_([2, 3], None),
    )
    with pytest.raises(simulated.InvalidGraph, match=said) as caught:
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


def test_results_have_memory_of_their_own(mac, g):
    """Also those of operations that move nothing, such as a slice."""
    x = g.placeholderWithShape_name_([2, 3], "x")
    data = tensor_data(mac, np.ones((2, 3), np.float32))
    row = g.sliceTensor_dimension_start_length_name_(x, 0, 0, 1, None)
    found = g.runWithFeeds_targetTensors_targetOperations_({x: data}, [row, x], None)
    g.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(
        mac.queue, {x: tensor_data(mac, np.zeros((2, 3), np.float32))}, None, {x: data}
    )
    assert [numbers(found[each]).sum() for each in (row, x)] == [3, 6]


def test_one_of_several_results_may_be_fed(mac, g):
    """The step then makes it in vain, and the others stay what they are."""
    x = g.placeholderWithShape_name_([4], "x")
    largest, where = g.topKWithSourceTensor_k_name_(x, 2, None)
    doubled = g.additionWithPrimaryTensor_secondaryTensor_name_(largest, largest, None)
    feeds = {x: tensor_data(mac, np.float32([1, 4, 3, 2])), largest: tensor_data(mac, np.float32([10, 20]))}
    found = g.runWithFeeds_targetTensors_targetOperations_(feeds, [where, doubled], None)
    assert [numbers(found[each]).tolist() for each in (where, doubled)] == [[1, 2], [20, 40]]


def test_what_leaves_a_cell_is_python_s_own(mac, g):
    """An array that Objective-C returned cannot be changed, and comes back from a child process as a list."""
    shape = g.placeholderWithShape_name_([2, 3], "x").shape()
    assert (type(pickle.loads(pickle.dumps(shape))), list(shape), shape.count()) == (list, [2, 3], 2)
    with pytest.raises(TypeError, match="an NSArray cannot be changed"):
        shape.append(4)


def test_arrays_in_the_gpu_s_memory(mac):
    descriptor = mac.G.MPSNDArrayDescriptor.descriptorWithDataType_shape_(F32, X.shape)
    array = mac.G.MPSNDArray.alloc().initWithDevice_descriptor_(mac.device, descriptor)
    array.writeBytes_strideBytes_(X.tobytes(), None)
    data = mac.G.MPSGraphTensorData.alloc().initWithMPSNDArray_(array)
    np.testing.assert_array_equal(numbers(data), X)
    assert [array.lengthOfDimension_(i) for i in range(array.numberOfDimensions())] == [4, 3, 2]


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
    (found,) = execute(mac, executable, [x])
    agree(numbers(found), reference(x))
    (again,) = execute(mac, load(mac, serialise(mac, executable, tmp_path / "net.mpsgraphpackage")), [x])
    np.testing.assert_array_equal(numbers(again), numbers(found))
    assert "coremltools" not in sys.modules, "which takes seconds to import"


def test_inputs_of_a_core_ml_package_are_in_its_order(mac, tmp_path):
    shapes = {"a": (2, 3), "b": (3,)}
    folder = core_ml_package(tmp_path / "m.mlpackage", [("sub", {"x": "%a", "y": "%b"}, "y")], {}, ["y"], shapes)
    given = [floats(*shape) for shape in shapes.values()]
    (found,) = execute(mac, from_core_ml(mac, folder), given)
    agree(numbers(found), given[0] - given[1])


def test_a_core_ml_package_may_concatenate_one_value_and_a_constant(mac, tmp_path):
    x, weights = floats(2, 3, 6, 6), {"w": floats(2, 3)}
    for value, wanted in (("x", x), ("w", weights["w"])):
        join = ("concat", {"values": f"%{value}", "axis": 1, "interleave": False}, "y")
        folder = core_ml_package(tmp_path / f"{value}.mlpackage", [join], weights, ["y"])
        (found,) = execute(mac, from_core_ml(mac, folder), [x])
        agree(numbers(found), wanted)


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
    for name, operation, said in (
        ("cast", ("cast", {"x": "%x", "dtype": "uint8"}, "y"), "the Core ML cast to 'uint8' is not simulated; fp16, "),
        ("row", ("max_pool", row, "y"), "a Core ML pooling over 1 dimensions with padding 'valid' is not simulated"),
    ):
        folder = core_ml_package(tmp_path / f"{name}.mlpackage", [operation], {}, ["y"])
        with pytest.raises(simulated.NotSimulated, match=said):
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


def test_the_contract_carries_its_licence():
    text = contract.SOURCE.with_name("LICENSE-PyObjC.txt").read_text()
    assert "MIT license" in text
    assert "Ronald Oussoren" in text
    assert "LICENSE-PyObjC.txt" in json.loads(contract.SOURCE.read_text())["license"]
