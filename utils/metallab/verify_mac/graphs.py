"""MPSGraph from Python: packages, orders, and values that Apple's headers leave open.

Where the headers say nothing, what the simulation chose is the claim (utils/metalsim/graph/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metallab import units
from metallab.verify_mac.trial import Finding, judged, not_applicable, simulated, trial

README = "utils/metalsim/graph/README.md"
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
INVALID = """
import MetalPerformanceShadersGraph as mps
from metallab import mpsgraph
graph = mps.MPSGraph.alloc().init()
a, b = (graph.placeholderWithShape_dataType_name_(s, mps.MPSDataTypeFloat32, None) for s in ([2, 3], [4, 5]))
mpsgraph.compile(graph, [a, b], [graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(a, b, None)])
"""
OTHER_SHAPE = """
import numpy as np
from pathlib import Path
from metallab.mpsgraph import packages
program = packages.load(Path(PACKAGE))
program(*(np.ones((5, 5), np.float32) for _ in range(2)))
"""


def _evaluate(build: Callable[..., Sequence[Any]], *arrays: Any) -> list[Any]:
    """The outputs of a graph that ``build(graph, *placeholders)`` makes, for inputs of NumPy arrays."""
    import MetalPerformanceShadersGraph as mps

    from metallab import mpsgraph

    graph = mps.MPSGraph.alloc().init()
    place = graph.placeholderWithShape_dataType_name_
    inputs = [place(list(array.shape), mpsgraph.data_type(array.dtype), None) for array in arrays]
    return mpsgraph.compile(graph, inputs, list(build(graph, *inputs)))(*arrays)


def _row(*numbers: float) -> Any:
    import numpy as np

    return np.array(numbers, np.float32)


@trial(on="gpu", used_in="notebooks 09 to 11, metallab.mpsgraph")
def results_are_read_back() -> Finding:
    """A compiled graph runs from Python, and ``buffer.contents().as_buffer(n)`` gives its results.

    A product of 64 x 48 with 48 x 32 against NumPy, and the same object a second time with other numbers.
    """
    import MetalPerformanceShadersGraph as mps
    import numpy as np

    from metallab import checks, mpsgraph

    rng = np.random.default_rng(0)
    pairs = [tuple(rng.normal(size=s).astype(np.float32) for s in ((64, 48), (48, 32))) for _ in range(2)]
    graph = mps.MPSGraph.alloc().init()
    place = graph.placeholderWithShape_dataType_name_
    inputs = [place(list(array.shape), mps.MPSDataTypeFloat32, None) for array in pairs[0]]
    product = graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(*inputs, None)
    program = mpsgraph.compile(graph, inputs, [product])
    for a, b in pairs:
        checks.assert_close(a @ b, program(a, b)[0], "float32")
    return judged(True, "both products agree with NumPy")


@trial(on="gpu", used_in="notebook 09, metallab.mpsgraph.packages", seconds=150)
def packages_load_in_another_process() -> Finding:
    """A stored MPSGraphPackage runs in a process that never saw the graph, with the orders from our JSON file.

    Two inputs' difference and sum: the difference is wrong if inputs are taken for each other, both are if outputs are.
    Before that the same, compiled. And feedTensors() of what was loaded is None, so that the file is needed.
    """
    import numpy as np

    from metallab import isolated

    package = f"PACKAGE = {str(Path('small.mpsgraphpackage').resolve())!r}\n"
    stored = isolated.run(package + STORE, results=["compiled", "fed", "targets"], device="mps", timeout=60)
    if not stored.ok:
        return judged(False, f"the process that stores {stored}", detail=stored.detail)
    loaded = isolated.run(package + LOAD, results=["loaded", "fed"], device="mps", timeout=60)
    if not loaded.ok:
        orders = {"inputs": stored["fed"], "outputs": stored["targets"]}
        return judged(False, f"the process that loads {loaded}", detail=loaded.detail, **orders)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    correct = lambda outputs: "right" if np.array_equal(outputs, [x - 1, x + 1]) else "WRONG"
    verdicts = {"compiled": correct(stored["compiled"]), "loaded": correct(loaded["loaded"])}
    other = isolated.run(package + OTHER_SHAPE, device="mps", timeout=60)
    orders = f"compiled for inputs {stored['fed']}, outputs {stored['targets']}"
    told = ", ".join(f"{when} {how}" for when, how in verdicts.items())
    said = f"{told}; {orders}; loaded, it names {loaded['fed']}"
    files = sorted(str(path) for path in Path("small.mpsgraphpackage").rglob("*"))
    values = {"files": files, "fed": loaded["fed"], "another shape": str(other)}
    return judged("WRONG" not in verdicts.values() and loaded["fed"] is None, said, **values)


@trial(on="gpu", used_in="notebook 09, when it goes wrong; metallab.mpsgraph", seconds=90)
def invalid_graph_ends_the_process() -> Finding:
    """A graph whose shapes do not fit ends the process when it is built or compiled: no exception reaches Python.

    In a process of its own. The simulation raises instead, and says that a Mac aborts.
    """
    from metallab import isolated

    ended = isolated.run(INVALID, device="mps", timeout=60)
    if simulated():
        return judged(ended.ended == "raised" and "aborts" in ended.detail, f"{ended}"[:300])
    return judged(ended.ended == "crashed", f"{ended}"[:300], detail=ended.detail[-2000:])


@trial(on="mac", used_in="utils/metalsim/graph/selectors.json, which the simulation is made from")
def selectors_exist() -> Finding:
    """Every class of MPSGraph in our table has the selectors that this version of macOS should have.

    Asked of the classes themselves: respondsToSelector: and instancesRespondToSelector:.
    """
    import platform

    import MetalPerformanceShadersGraph as mps

    from metalsim.graph import contract

    here = contract.version(platform.mac_ver()[0])
    expected = [name for name in contract.class_names() if name.startswith("MPSGraph") and contract.since(name) <= here]
    owners = {name: getattr(mps, name) for name in expected if hasattr(mps, name)}
    asked = [method for name in owners for method in contract.methods(name).values() if method.since <= here]
    missing = [str(method) for method in asked if not _answers(owners[method.owner], method)]
    absent = sorted(set(expected) - set(owners))
    said = f"{len(asked) - len(missing)} of {len(asked)} selectors answer; no class or protocol in PyObjC: {absent}"
    return judged(not missing and bool(asked), said, missing=missing[:100], absent=absent, macos=here)


def _answers(owner: Any, method: Any) -> bool:
    ask = owner.respondsToSelector_ if method.of_class else owner.instancesRespondToSelector_
    return bool(ask(method.selector))


@trial(on="gpu", used_in=f"{README}; notebook 10")
def quantising_rounds_halves_to_even() -> Finding:
    """``quantizeTensor`` rounds halves to even, and keeps to the ends of int8."""
    import MetalPerformanceShadersGraph as mps

    x = _row(0.5, 1.5, 2.5, -0.5, -1.5, 300, -300)
    (got,) = _evaluate(
        lambda g, x: [g.quantizeTensor_scale_zeroPoint_dataType_name_(x, 1.0, 0.0, mps.MPSDataTypeInt8, None)], x
    )
    wanted = [0, 2, 2, 0, -2, 127, -128]
    return judged(got.tolist() == wanted, f"{x.tolist()} became {got.tolist()}", wanted=wanted)


@trial(on="gpu", used_in="notebook 10, the fused convolution")
def quantised_convolution_is_right() -> Finding:
    """dequantize, convolve, quantize as one compiled graph is within one step of the same by hand in float64."""
    import MetalPerformanceShadersGraph as mps
    import numpy as np

    from metallab import mpsgraph
    from metallab.imaging import references

    rng = np.random.default_rng(0)
    x, w = (rng.integers(-127, 128, shape).astype(np.int8) for shape in ((1, 4, 8, 8), (4, 4, 3, 3)))

    def build(g: Any, given: Any) -> list[Any]:
        real = g.dequantizeTensor_scale_zeroPoint_dataType_name_(given, 0.05, 3.0, mps.MPSDataTypeFloat32, None)
        weights = g.dequantizeTensor_scale_zeroPoint_dataType_name_(
            mpsgraph.constant(g, w), 0.002, 0.0, mps.MPSDataTypeFloat32, None
        )
        y = g.convolution2DWithSourceTensor_weightsTensor_descriptor_name_(
            real, weights, mpsgraph.same_convolution(), None
        )
        return [g.quantizeTensor_scale_zeroPoint_dataType_name_(y, 0.1, -5.0, mps.MPSDataTypeInt8, None)]

    (got,) = _evaluate(build, x)
    real, weights = 0.05 * (x.astype(float) - 3.0), 0.002 * w.astype(float)
    padded = np.pad(real, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = references.convolution3d(padded[:, :, None], weights[:, :, None])[:, :, 0]
    wanted = np.clip(np.round(y / 0.1) - 5, -128, 127)
    steps = np.abs(got.astype(float) - wanted)
    return judged(steps.max() <= 1, f"largest difference {steps.max():g} steps, {int((steps > 0).sum())} differ")


@trial(on="gpu", used_in=README)
def rounding_of_halves() -> Finding:
    """``roundWithTensor`` rounds halves away from zero, ``rintWithTensor`` to even."""
    x = _row(0.5, 1.5, 2.5, -0.5, -2.5)
    away, even = _evaluate(lambda g, x: [g.roundWithTensor_name_(x, None), g.rintWithTensor_name_(x, None)], x)
    holds = away.tolist() == [1, 2, 3, -1, -3] and even.tolist() == [0, 2, 2, 0, -2]
    return judged(holds, f"round {away.tolist()}, rint {even.tolist()}")


@trial(on="gpu", used_in=f"{README}; notebook 11")
def sorting_is_stable_with_nan_last() -> Finding:
    """Sorting puts NaN last, and argSort leaves equal values in their order."""
    ties, odd = _row(2, 1, 2, 1, 2), _row(3, float("nan"), 1, 2, 0)
    (order,) = _evaluate(lambda g, x: [g.argSortWithTensor_axis_name_(x, 0, None)], ties)
    (ranked,) = _evaluate(lambda g, x: [g.sortWithTensor_axis_name_(x, 0, None)], odd)
    holds = order.tolist() == [1, 3, 0, 2, 4] and ranked[:4].tolist() == [0, 1, 2, 3] and ranked[4] != ranked[4]
    return judged(holds, f"argSort of ties {order.tolist()}, sorted with NaN {ranked.tolist()}")


@trial(on="gpu", used_in=f"{README}; notebook 11")
def exclusive_maximum_begins_with_the_lowest() -> Finding:
    """An exclusive cumulative maximum begins with the lowest finite float32, not with minus infinity."""
    (got,) = _evaluate(
        lambda g, x: [g.cumulativeMaximumWithTensor_axis_exclusive_reverse_name_(x, 0, True, False, None)],
        _row(1, 3, 2),
    )
    first = float(got[0])
    return judged(-3.5e38 < first < -3.4e38 and got[1:].tolist() == [1, 3], f"{got.tolist()}")


@trial(on="gpu", used_in=f"{README}; notebook 11")
def cumulative_operations_carry_nan() -> Finding:
    """Cumulative sums, minima and maxima carry NaN on from where it stands, as PyTorch's do."""
    x = _row(3, float("nan"), 1)
    names = ("Sum", "Minimum", "Maximum")
    got = _evaluate(lambda g, x: [getattr(g, f"cumulative{n}WithTensor_axis_name_")(x, 0, None) for n in names], x)
    carried = {name: [str(float(v)) for v in values] for name, values in zip(names, got, strict=True)}
    return judged(all(v[0] == "3.0" and v[1:] == ["nan", "nan"] for v in carried.values()), f"{carried}")


@trial(on="gpu", used_in=README)
def scalar_constants_have_no_dimension() -> Finding:
    """``constantWithScalar:dataType:`` makes a tensor of shape [], not [1]."""
    import MetalPerformanceShadersGraph as mps

    graph = mps.MPSGraph.alloc().init()
    shape = graph.constantWithScalar_dataType_(2.0, mps.MPSDataTypeFloat32).shape()
    shape = None if shape is None else [int(size) for size in shape]
    return judged(shape == [], f"its shape is {shape}")


@trial(on="gpu", used_in=README)
def maxima_leave_nan_out_or_carry_it() -> Finding:
    """``maximumWithPrimaryTensor`` leaves NaN out, and the form with NaNPropagation carries it."""
    x, y = _row(float("nan"), 1), _row(2, 2)

    def build(g: Any, a: Any, b: Any) -> list[Any]:
        return [
            g.maximumWithPrimaryTensor_secondaryTensor_name_(a, b, None),
            g.maximumWithNaNPropagationWithPrimaryTensor_secondaryTensor_name_(a, b, None),
        ]

    plain, carrying = _evaluate(build, x, y)
    return judged(plain.tolist() == [2, 2] and carrying[0] != carrying[0], f"{plain.tolist()}, {carrying.tolist()}")


@trial(on="gpu", used_in=f"{README}; notebook 11")
def real_transforms_halve_the_last_dimension() -> Finding:
    """A real-to-Hermitean transform halves the last of its dimensions in whatever order the axes are named."""
    import MetalPerformanceShadersGraph as mps
    import numpy as np

    from metallab import parity

    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    said, shapes = {}, {}
    for axes in ([0, 1], [1, 0]):

        def build(g: Any, x: Any, axes: list[int] = axes) -> list[Any]:
            how = mps.MPSGraphFFTDescriptor.descriptor()
            f = g.realToHermiteanFFTWithTensor_axes_descriptor_name_(x, axes, how, None)
            return [g.realPartOfTensor_name_(f, None), g.imaginaryPartOfTensor_name_(f, None)]

        real, imaginary = _evaluate(build, x)
        shapes[str(axes)] = list(real.shape)
        said[str(axes)] = parity.verdict(np.fft.rfftn(x.astype(float)), real + 1j * imaginary)
    return judged(set(said.values()) == {parity.AGREES}, f"{said}, shapes {shapes}", said=said, shapes=shapes)


@trial(on="gpu", used_in="notebook 11, complex to complex")
def transforms_agree_with_numpy() -> Finding:
    """Complex transforms of pairs of float32 and float16, scaled by None, Size or Unitary, are NumPy's.

    Of 8 x 12 pairs in two dimensions: NumPy's norms are backward, forward and ortho.
    """
    import MetalPerformanceShadersGraph as mps
    import numpy as np

    from metallab import parity

    parts, said = np.random.default_rng(0).normal(size=(2, 8, 12)).astype("f"), {}
    for bits, scaling, norm in [(32, "None", "backward"), (32, "Size", "forward"), (16, "Unitary", "ortho")]:

        def build(g: Any, *inputs: Any, bits: int = bits, scaling: str = scaling) -> list[Any]:
            how = mps.MPSGraphFFTDescriptor.descriptor()
            how.setScalingMode_(getattr(mps, f"MPSGraphFFTScalingMode{scaling}"))
            a, b = (g.castTensor_toType_name_(x, getattr(mps, f"MPSDataTypeFloat{bits}"), None) for x in inputs)
            pairs = g.complexTensorWithRealTensor_imaginaryTensor_name_(a, b, None)
            f = g.fastFourierTransformWithTensor_axes_descriptor_name_(pairs, [0, 1], how, None)
            return [g.realPartOfTensor_name_(f, None), g.imaginaryPartOfTensor_name_(f, None)]

        real, imaginary = _evaluate(build, *parts)
        truth = np.fft.fft2(parts[0] + 1j * parts[1].astype(float), norm=norm)
        said[f"float{bits}, {scaling}"] = parity.verdict(truth, real + 1j * imaginary, f"float{bits}")
    return judged(set(said.values()) == {parity.AGREES}, f"{said}", said=said)


@trial(on="gpu", used_in="notebook 11, conv3d and grid sampling")
def volumes_and_grids_agree() -> Finding:
    """A 3-D convolution and grid sampling with normalised coordinates and aligned corners agree with our references."""
    import MetalPerformanceShadersGraph as mps
    import numpy as np

    from metallab import parity
    from metallab.imaging import references

    shapes = (2, 3, 4, 5, 6), (2, 3, 2, 3, 3), (1, 2, 4, 5), (1, 6, 7, 2)
    rng = np.random.default_rng(0)
    given = [rng.normal(size=shape).astype("f") for shape in shapes]
    layouts = mps.MPSGraphTensorNamedDataLayoutNCDHW, mps.MPSGraphTensorNamedDataLayoutOIDHW
    strides = (
        "descriptorWithStrideInX_strideInY_strideInZ_dilationRateInX_dilationRateInY_dilationRateInZ_groups_"
        "paddingStyle_dataLayout_weightsLayout_"
    )
    steps = getattr(mps.MPSGraphConvolution3DOpDescriptor, strides)
    how = steps(1, 1, 1, 1, 1, 1, 1, mps.MPSGraphPaddingStyleTF_VALID, *layouts)
    grid = (
        "sampleGridWithSourceTensor_coordinateTensor_layout_normalizeCoordinates_relativeCoordinates_alignCorners_"
        "paddingMode_samplingMode_constantValue_name_"
    )
    mode = (mps.MPSGraphTensorNamedDataLayoutNCHW, True, False, True)
    edges = (mps.MPSGraphPaddingModeZero, mps.MPSGraphResizeBilinear, 0.0, None)

    def build(g: Any, video: Any, weights: Any, picture: Any, places: Any) -> list[Any]:
        solid = g.convolution3DWithSourceTensor_weightsTensor_descriptor_name_(video, weights, how, None)
        return [solid, getattr(g, grid)(picture, places, *mode, *edges)]

    truth = references.convolution3d(*given[:2]), references.sampled_grid(*given[2:])
    said = [parity.verdict(*pair) for pair in zip(truth, _evaluate(build, *given), strict=True)]
    return judged(set(said) == {parity.AGREES}, f"convolution: {said[0]}; grid: {said[1]}")


@trial(on="gpu", used_in=README)
def grid_coordinates_in_pixels() -> Finding:
    """Grid sampling takes coordinates in pixels, with the first pixel's centre at 0, when corners are not aligned.

    The simulation refuses this, because no header says where the centre is.
    """
    import MetalPerformanceShadersGraph as mps
    import numpy as np

    picture = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    grid = np.array([[[[0, 0], [1, 1]]]], np.float32)
    name = (
        "sampleGridWithSourceTensor_coordinateTensor_layout_normalizeCoordinates_relativeCoordinates_alignCorners_"
        "paddingMode_samplingMode_constantValue_name_"
    )
    mode = (mps.MPSGraphTensorNamedDataLayoutNCHW, False, False, False)
    last = (mps.MPSGraphPaddingModeZero, mps.MPSGraphResizeBilinear, 0.0, None)
    try:
        (got,) = _evaluate(lambda g, x, c: [getattr(g, name)(x, c, *mode, *last)], picture, grid)
    except Exception as error:
        if simulated():
            return not_applicable(f"the simulation refuses it: {units.first_line(error, kind=True)[:150]}")
        raise
    return judged(got.ravel().tolist() == [0, 3], f"at (0, 0) and (1, 1): {got.ravel().tolist()}")


@trial(on="gpu", used_in=f"{README}; PyObjC's readBytes")
def tensor_data_is_read_into_numpy() -> Finding:
    """``MPSNDArray.readBytes:strideBytes:`` writes a tensor's numbers into a NumPy array."""
    import Metal
    import MetalPerformanceShadersGraph as mps
    import numpy as np

    device = Metal.MTLCreateSystemDefaultDevice()
    x = np.arange(6, dtype=np.float32)
    buffer = device.newBufferWithBytes_length_options_(x.tobytes(), x.nbytes, Metal.MTLResourceStorageModeShared)
    data = mps.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_(buffer, [6], mps.MPSDataTypeFloat32)
    got = np.zeros(6, np.float32)
    data.mpsndarray().readBytes_strideBytes_(got, None)
    return judged(np.array_equal(x, got), f"{got.tolist()}")
