"""MPSGraph from Python: what each operation gives, packages, orders, and what Apple's headers leave open

Results are compared with NumPy in float64, with SciPy, or with functions of PyTorch that the simulation does not use.
Where the headers say nothing, what the simulation chose is the claim (metalsim/src/metalsim/graph/README.md).
"""

from __future__ import annotations

import math
import platform
from pathlib import Path

import nbformat
import numpy as np
import pytest
import scipy.special
import torch
import torch.nn.functional as F

from conformance import graph_programs
from conformance.claims import ON_A_MAC
from conformance.graph_programs import (
    BILINEAR,
    CLAMP,
    CONVOLUTION,
    CONVOLUTION_3D,
    DHWIO,
    EXPLICIT,
    F32,
    GRID,
    HWIO,
    I8,
    NCDHW,
    NCHW,
    NDHWC,
    NEAREST,
    NEAREST_GRID,
    NHWC,
    OIDHW,
    OIHW,
    POSITIVE,
    REFLECT,
    SAME,
    SAME_LOWER,
    SYMMETRIC,
    UNIT,
    VALID,
    ZERO,
    X,
    Y,
    agree,
    band,
    c_round,
    call,
    compiled,
    execute,
    fft_descriptor,
    floats,
    ints,
    load,
    mps_type,
    naive_convolution,
    near,
    nsdata,
    numbers,
    pooled,
    quantised_convolution,
    run,
    same,
    scale_of,
    serialise,
    shaped,
    shuffled,
    softmax,
    tensor_data,
)
from metallab import checks, isolated, mpsgraph, paths
from metalsim.graph import contract, datatypes

README = "metalsim/src/metalsim/graph/README.md"
pytestmark = pytest.mark.claim(on="gpu", used_in="notebooks 09b to 11b")


@pytest.fixture(scope="module")
def mac():
    """The modules that a program imports, and the objects that every program makes."""
    return graph_programs.modules()


@pytest.fixture
def g(mac):
    return mac.G.MPSGraph.alloc().init()


HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -7.2, 3.0], np.float32)
WITH_NAN = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan]], np.float32)
INFINITE = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
WHOLE, OTHERS = ints(2, 3), ints(2, 3, low=1)
TRUE, OTHER = WHOLE > 0, OTHERS > 4
Z = (floats(2, 3) + 1j * floats(2, 3)).astype(np.complex64)


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
    assert run(mac, "divisionWithPrimaryTensor:secondaryTensor:name:", a, b).tolist() == [3, -3, -3, 0]
    assert run(mac, "moduloWithPrimaryTensor:secondaryTensor:name:", a, b).tolist() == [1, -1, 1, 0]
    assert run(mac, "floorModuloWithPrimaryTensor:secondaryTensor:name:", a, b).tolist() == [1, 1, -1, 0]


E = floats(2, 3, 4, 5)
MEAN, VARIANCE = E.mean((0, 2, 3), keepdims=True), E.var((0, 2, 3), keepdims=True)
GAMMA, BETA = floats(1, 3, 1, 1), floats(1, 3, 1, 1)
Q, K, V, MASK = floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 6), floats(3, 5)
SQUARE = floats(3, 4, 4) + 4 * np.eye(4, dtype=np.float32)
AT = np.array([[2, 0], [1, 1]], np.int32)
BLOCKS = floats(2, 8, 3, 5)
LOGITS, LABELS = floats(4, 3), np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]
ONES = np.ones((2, 3), np.float32)


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
    "attention without a mask": (
        "scaledDotProductAttentionWithQueryTensor:keyTensor:valueTensor:scale:name:", (Q, K, V, 0.5),
        softmax(Q @ K.swapaxes(1, 2) * 0.5, -1).astype(np.float32) @ V,
    ),
    "product along": ("reductionProductWithTensor:axis:name:", (X, 1), X.prod(1, keepdims=True)),
    "maximum of several": ("reductionMaximumWithTensor:axes:name:", (X, [0, 2]), X.max((0, 2), keepdims=True)),
    "minimum along": ("reductionMinimumWithTensor:axis:name:", (X, -1), X.min(-1, keepdims=True)),
    "maximum or nan of several": (
        "reductionMaximumPropagateNaNWithTensor:axes:name:", (WITH_NAN, [0, 1]), np.float32([[np.nan]]),
    ),
    "minimum or nan of several": (
        "reductionMinimumPropagateNaNWithTensor:axes:name:", (X, [0, 1]), X.min((0, 1), keepdims=True),
    ),
    "and along": ("reductionAndWithTensor:axis:name:", (TRUE, 1), TRUE.all(1, keepdims=True)),
    "or of several": ("reductionOrWithTensor:axes:name:", (TRUE, [0, 1]), TRUE.any((0, 1), keepdims=True)),
    "one hot of whole numbers": (
        "oneHotWithIndicesTensor:depth:dataType:name:",
        (AT, 3, datatypes.MPS[torch.int32]), np.eye(3, dtype=np.int32)[AT],
    ),
    "scatter nd at most": (
        "scatterNDWithUpdatesTensor:indicesTensor:shape:batchDimensions:mode:name:",
        (np.float32([[1, 5], [3, 4]]), np.int32([[1], [1]]), [3, 2], 0, 5), np.float32([[0, 0], [3, 5], [0, 0]]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAIN)
def test_operation(mac, case):
    selector, arguments, wanted = PLAIN[case]
    result = run(mac, selector, *arguments)
    if isinstance(wanted, list):
        assert len(result) == len(wanted)
        for one, other in zip(result, wanted, strict=True):
            agree(one, other)
    else:
        agree(result, wanted)


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
    result = run(mac, f"cumulative{stem}WithTensor:axis:exclusive:reverse:name:", X, -2, exclusive, reverse)
    agree(result, wanted[:, ::-1] if reverse else wanted)
    if not (exclusive or reverse):
        agree(run(mac, f"cumulative{stem}WithTensor:axis:name:", X, 1), wanted)


def test_cumulative_sums_of_small_whole_numbers_keep_their_type(mac):
    result = run(mac, "cumulativeSumWithTensor:axis:name:", np.int8([100, 27, 1]), 0)
    assert (result.dtype, result.tolist()) == (np.int8, [100, 127, -128])


MODES = {1: "reflect", 2: "symmetric", 3: "edge", 5: "wrap"}  # MPSGraphPaddingMode and NumPy's


@pytest.mark.parametrize("mode", [0, 4, *MODES])
def test_padding(mac, mode):
    left, right = [0, 2, 1], [1, 2, 3]
    result = run(
        mac, "padTensor:withPaddingMode:leftPadding:rightPadding:constantValue:name:", X, mode, left, right, 7.0
    )
    if mode in MODES:
        agree(result, np.pad(X, list(zip(left, right, strict=True)), MODES[mode]))
    else:
        agree(result, np.pad(X, list(zip(left, right, strict=True)), constant_values=7.0 if mode == 0 else 0.0))


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
        result = run(mac, selector, x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), descriptor)
        agree(result, wanted.transpose(0, 2, 3, 1).astype(np.float32))
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
        result = run(mac, selector, x.transpose(0, 2, 3, 4, 1), w.transpose(2, 3, 4, 1, 0), descriptor)
        agree(result, wanted.transpose(0, 2, 3, 4, 1))
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


@pytest.mark.parametrize("channels_last", [False, True])
def test_pooling(mac, channels_last):
    x, kernel, strides, pads = floats(2, 3, 7, 8), (3, 2), (2, 2), [(1, 1), (0, 1)]
    descriptor = call(
        mac.G.MPSGraphPooling2DOpDescriptor, POOLING, kernel[1], kernel[0], strides[1], strides[0], 1, 1,
        *pads[1], *pads[0], EXPLICIT, NHWC if channels_last else NCHW,
    )  # fmt: skip
    there = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)

    def pool(kind):
        return run(mac, f"{kind}Pooling2DWithSourceTensor:descriptor:name:", x.transpose(there), descriptor)

    sums, counts = (pooled(a, kernel, strides, pads, 0.0, np.sum) for a in (x, np.ones_like(x)))
    agree(pool("max"), pooled(x, kernel, strides, pads, -np.inf, np.max).transpose(there))
    agree(pool("avg"), (sums / counts).transpose(there))
    descriptor.setIncludeZeroPadToAverage_(True)
    agree(pool("avg"), (sums / 6).transpose(there))


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
    spectrum = run(
        mac, "fastFourierTransformWithTensor:axes:descriptor:name:", SIGNAL, axes, fft_descriptor(mac, inverse, mode)
    )
    agree(spectrum, (plain * scale_of(mode, count)).astype(np.complex64), atol=2e-4)


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
        spectrum = run(mac, "realToHermiteanFFTWithTensor:axes:descriptor:name:", *arguments)
        agree(spectrum, (wanted * scale_of(mode, count)).astype(np.complex64), atol=2e-4)
        odd = x.shape[max(axes)] % 2 == 1
        undo = fft_descriptor(mac, not inverse, {0: 1, 1: 0, 2: 2}[mode], odd)
        agree(run(mac, "HermiteanToRealFFTWithTensor:axes:descriptor:name:", spectrum, axes, undo), x)


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
    rounded = numbers(g.runWithFeeds_targetTensors_targetOperations_({}, [wide], None)[wide])
    wanted = np.fft.fft(x.astype(np.float16).astype(np.float64))
    np.testing.assert_allclose(rounded, wanted, atol=1e-2)
    assert (np.float16(rounded.real) == rounded.real).all()


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


def test_nearest_rounding_modes(mac):
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    grid = np.zeros((1, 1, 4, 2), np.float32)
    grid[..., 0] = [0.5, 1.5, 2.25, 2.75]
    rounded = [
        run(mac, NEAREST_GRID, x, grid, NCHW, False, False, True, CLAMP, mode, 0.0).ravel().tolist()
        for mode in range(6)
    ]
    assert rounded == [[1, 2, 2, 3], [0, 1, 2, 3], [1, 2, 3, 3], [0, 1, 2, 2], [0, 2, 2, 3], [1, 1, 2, 3]]
    plain = run(mac, GRID, x, grid, NCHW, False, False, True, CLAMP, NEAREST, 0.0)
    assert plain.ravel().tolist() == rounded[0], "the header's default"


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
    results = g.runWithFeeds_targetTensors_targetOperations_({}, list(made), None)
    for tensor, wanted in made.items():
        np.testing.assert_allclose(numbers(results[tensor]), wanted, rtol=1e-5, atol=1e-5)


def test_a_graph_runs_with_feeds(mac):
    g, data, targets, wanted = quantised_convolution(mac)
    feeds = {tensor: tensor_data(mac, array) for tensor, array in data.items()}
    results = g.runWithFeeds_targetTensors_targetOperations_(feeds, targets, None)
    near([numbers(results[tensor]) for tensor in targets], wanted)
    q = np.empty(wanted[0].shape, np.int8)
    buffer = mac.device.newBufferWithLength_options_(q.nbytes, mac.Metal.MTLResourceStorageModeShared)
    place = mac.G.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_(buffer, q.shape, mps_type(q))
    g.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(mac.queue, feeds, None, {targets[0]: place})
    q = np.frombuffer(buffer.contents().as_buffer(q.nbytes), np.int8).reshape(q.shape)
    assert np.array_equal(q, numbers(results[targets[0]]))


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
    results = [[numbers(each) for each in execute(mac, one, [x])] for one in (executable, loaded)]
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    real = np.rint(x.astype(np.float64) / 0.05).clip(-128, 127) * 0.05
    sampled = F.grid_sample(torch.from_numpy(real / 2), torch.from_numpy(grid).double(), align_corners=False).numpy()
    sums = sampled[..., ::-1].cumsum(-1)[..., ::-1]
    np.testing.assert_allclose(results[0][0], sums, atol=0.05)  # a step of the quantisation
    np.testing.assert_array_equal(results[0][1], np.argsort(-results[0][0], -1))


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
    *results, half = execute(mac, loaded, [])
    for array, data in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(numbers(data), array)
    assert (half.dataType(), numbers(half).item()) == (mac.G.MPSDataTypeFloat16, 1.5)


def test_results_have_memory_of_their_own(mac, g):
    """Also those of operations that move nothing, such as a slice."""
    x = g.placeholderWithShape_name_([2, 3], "x")
    data = tensor_data(mac, np.ones((2, 3), np.float32))
    row = g.sliceTensor_dimension_start_length_name_(x, 0, 0, 1, None)
    results = g.runWithFeeds_targetTensors_targetOperations_({x: data}, [row, x], None)
    g.runWithMTLCommandQueue_feeds_targetOperations_resultsDictionary_(
        mac.queue, {x: tensor_data(mac, np.zeros((2, 3), np.float32))}, None, {x: data}
    )
    assert [numbers(results[each]).sum() for each in (row, x)] == [3, 6]


def test_one_of_several_results_may_be_fed(mac, g):
    """The step then makes it in vain, and the others stay what they are."""
    x = g.placeholderWithShape_name_([4], "x")
    largest, where = g.topKWithSourceTensor_k_name_(x, 2, None)
    doubled = g.additionWithPrimaryTensor_secondaryTensor_name_(largest, largest, None)
    feeds = {x: tensor_data(mac, np.float32([1, 4, 3, 2])), largest: tensor_data(mac, np.float32([10, 20]))}
    results = g.runWithFeeds_targetTensors_targetOperations_(feeds, [where, doubled], None)
    assert [numbers(results[each]).tolist() for each in (where, doubled)] == [[1, 2], [20, 40]]


def test_arrays_in_the_gpu_s_memory(mac):
    descriptor = mac.G.MPSNDArrayDescriptor.descriptorWithDataType_shape_(F32, X.shape)
    array = mac.G.MPSNDArray.alloc().initWithDevice_descriptor_(mac.device, descriptor)
    array.writeBytes_strideBytes_(X.tobytes(), None)
    data = mac.G.MPSGraphTensorData.alloc().initWithMPSNDArray_(array)
    np.testing.assert_array_equal(numbers(data), X)
    assert [array.lengthOfDimension_(i) for i in range(array.numberOfDimensions())] == [4, 3, 2]


# ---- as notebooks use it


@pytest.mark.claim(used_in="notebooks 09b to 11b, metallab.mpsgraph")
def test_results_are_read_back(mac, g):
    """A compiled graph runs from Python, and ``buffer.contents().as_buffer(n)`` gives its results.

    A product of 64 x 48 with 48 x 32 against NumPy, and the same object a second time with other numbers.
    """
    inputs = [g.placeholderWithShape_dataType_name_(shape, F32, None) for shape in ([64, 48], [48, 32])]
    product = g.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(*inputs, None)
    program = mpsgraph.compile(g, inputs, [product])
    for _ in range(2):
        a, b = floats(64, 48), floats(48, 32)
        checks.assert_close(a @ b, program(a, b)[0], "float32")


STORE = """
import numpy as np, MetalPerformanceShadersGraph as mps
from pathlib import Path
from metallab import mpsgraph
from metallab.mpsgraph import packages
graph = mps.MPSGraph.alloc().init()
a, b = (graph.placeholderWithShape_dataType_name_([2, 3], mps.MPSDataTypeFloat32, name) for name in "ab")
outputs = [
    graph.subtractionWithPrimaryTensor_secondaryTensor_name_(a, b, None),
    graph.additionWithPrimaryTensor_secondaryTensor_name_(a, b, None),
]
program = mpsgraph.compile(graph, [a, b], outputs)
compiled = program(np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32))
packages.store(program, Path(PACKAGE))
fed = [[a, b].index(tensor) for tensor in program.executable.feedTensors()]
targets = [outputs.index(tensor) for tensor in program.executable.targetTensors()]
"""
LOAD = """
import numpy as np
from pathlib import Path
from metallab.mpsgraph import packages
program = packages.load(Path(PACKAGE))
loaded = program(np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32))
fed = program.executable.executable.feedTensors()
fed = None if fed is None else [str(tensor) for tensor in fed]
"""
OTHER_SHAPE = """
import numpy as np
from pathlib import Path
from metallab.mpsgraph import packages
program = packages.load(Path(PACKAGE))
program(*(np.ones((5, 5), np.float32) for _ in range(2)))
"""
BAD_GRAPH = """
import MetalPerformanceShadersGraph as mps
from metallab import mpsgraph
graph = mps.MPSGraph.alloc().init()
a, b = (graph.placeholderWithShape_dataType_name_(s, mps.MPSDataTypeFloat32, None) for s in ([2, 3], [4, 5]))
mpsgraph.compile(graph, [a, b], [graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(a, b, None)])
"""


@pytest.mark.claim(used_in="notebook 09b, its first two scripts", seconds=120)
def test_apples_calls_alone_store_and_load_a_package():
    """The page's two scripts, as they stand: one stores a ReLU, and in another process the second runs it."""
    page = nbformat.read(next(paths.NOTEBOOKS.glob("09b_*.ipynb")), as_version=4)
    cells = {cell.id: cell.source.partition("\n")[2] for cell in page.cells}  # without the line of the magic
    stored = isolated.run(cells["first-code"], device="mps", timeout=60)
    assert stored.ok, stored.detail
    loaded = isolated.run(cells["load-run"], results=["answer"], device="mps", timeout=60)
    np.testing.assert_array_equal(loaded["answer"], [0, 0, 0, 1])


@pytest.mark.claim(used_in="notebook 09b, metallab.mpsgraph.packages", seconds=200)
def test_packages_load_in_another_process(evidence):
    """A stored MPSGraphPackage runs in a process that never saw the graph, with the orders from our JSON file.

    Two inputs' difference and sum: the difference is wrong if inputs are taken for each other, both are if outputs are.
    Before that the same, compiled. And feedTensors() of what was loaded is None, so that the file is needed.
    """
    package = f"PACKAGE = {str(Path('small.mpsgraphpackage').resolve())!r}\n"
    stored = isolated.run(package + STORE, results=["compiled", "fed", "targets"], device="mps", timeout=60)
    assert stored.ok, stored.detail
    evidence("compiled for inputs, outputs", (stored["fed"], stored["targets"]))
    evidence("files", sorted(str(path) for path in Path("small.mpsgraphpackage").rglob("*")))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(stored["compiled"], [x - 1, x + 1])
    loaded = isolated.run(package + LOAD, results=["loaded", "fed"], device="mps", timeout=60)
    assert loaded.ok, loaded.detail
    np.testing.assert_array_equal(loaded["loaded"], [x - 1, x + 1])
    assert loaded["fed"] is None
    evidence("given another shape", str(isolated.run(package + OTHER_SHAPE, device="mps", timeout=60)))


@pytest.mark.claim(used_in="notebook 09b, when it goes wrong; metallab.mpsgraph", seconds=90)
def test_invalid_graph_ends_the_process(evidence):
    """A graph whose shapes do not fit ends the process when it is built or compiled: no exception reaches Python.

    In a process of its own. The simulation raises instead, and says that a Mac aborts.
    """
    ended = isolated.run(BAD_GRAPH, device="mps", timeout=60)
    evidence("ended", f"{ended}"[:300])
    if ON_A_MAC:
        evidence("detail", ended.detail[-2000:])
        assert ended.ended == "crashed"
    else:
        assert ended.ended == "raised"
        assert "aborts" in ended.detail


@pytest.mark.claim(on="mac", used_in="metalsim/src/metalsim/graph/selectors.json, which the simulation is made from")
def test_selectors_exist(evidence):
    """Every class of MPSGraph in our table has the selectors that this version of macOS should have.

    Asked of the classes themselves: respondsToSelector: and instancesRespondToSelector:.
    """
    import MetalPerformanceShadersGraph as G

    here = contract.version(platform.mac_ver()[0])
    expected = [name for name in contract.class_names() if name.startswith("MPSGraph") and contract.since(name) <= here]
    owners = {name: getattr(G, name) for name in expected if hasattr(G, name)}
    asked = [method for name in owners for method in contract.methods(name).values() if method.since <= here]
    missing = [str(method) for method in asked if not _answers(owners[method.owner], method)]
    evidence("asked", len(asked))
    evidence("no class or protocol in PyObjC", sorted(set(expected) - set(owners)))
    evidence("missing", missing[:100])
    assert asked
    assert not missing


def _answers(owner, method):
    ask = owner.respondsToSelector_ if method.of_class else owner.instancesRespondToSelector_
    return bool(ask(method.selector))


@pytest.mark.claim(used_in=f"{README}; notebook 10b")
def test_quantising_rounds_halves_to_even(mac):
    """``quantizeTensor`` rounds halves to even, and keeps to the ends of int8."""
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300])
    result = run(mac, "quantizeTensor:scale:zeroPoint:dataType:name:", x, 1.0, 0.0, I8)
    assert result.tolist() == [0, 2, 2, 0, -2, 127, -128]


@pytest.mark.claim(used_in="notebook 10b, the fused convolution")
def test_quantised_convolution_is_right(mac):
    """dequantize, convolve, quantize as one compiled graph is within one step of the same by hand in float64."""
    executable, inputs, wanted = compiled(mac)
    near([numbers(each) for each in execute(mac, executable, inputs)], wanted)


@pytest.mark.claim(used_in=f"{README}; notebook 11b")
def test_sorting_puts_nan_last(mac):
    """Sorting puts NaN last."""
    result = run(mac, "sortWithTensor:axis:name:", np.float32([3, np.nan, 1, 2, 0]), 0)
    np.testing.assert_array_equal(result, [0, 1, 2, 3, np.nan])


@pytest.mark.claim(used_in=f"{README}; notebook 11b")
@pytest.mark.parametrize("stem", ["Sum", "Minimum", "Maximum"])
def test_cumulative_operations_carry_nan(mac, stem):
    """Cumulative sums, minima and maxima carry NaN on from where it stands, as PyTorch's do."""
    result = run(mac, f"cumulative{stem}WithTensor:axis:name:", np.float32([3, np.nan, 1]), 0)
    np.testing.assert_array_equal(result, [3, np.nan, np.nan])


@pytest.mark.claim(used_in=README)
def test_scalar_constants_have_no_dimension(g):
    """``constantWithScalar:dataType:`` makes a tensor of shape [], not [1]."""
    assert list(g.constantWithScalar_dataType_(2.0, F32).shape()) == []


@pytest.mark.claim(used_in=README)
def test_grid_coordinates_in_pixels(mac):
    """Grid sampling takes coordinates in pixels, with the first pixel's centre at 0, when corners are not aligned.

    The simulation refuses this, because no header says where the centre is.
    """
    if not ON_A_MAC:
        pytest.skip("the simulation refuses it, since no header says where the centre is")
    picture = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    grid = np.array([[[[0, 0], [1, 1]]]], np.float32)
    result = run(mac, GRID, picture, grid, NCHW, False, False, False, CLAMP, BILINEAR, 0.0)
    assert result.ravel().tolist() == [0, 3]
