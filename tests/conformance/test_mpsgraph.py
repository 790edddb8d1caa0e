"""MPSGraph from Python: the operations that notebooks use, packages, orders, and what Apple's headers leave open

Results are compared with NumPy in float64, or with PyTorch's own functions.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from conformance.claims import ON_A_MAC, apart
from metallab import checks, isolated, mpsgraph, paths

README = "metalsim/src/metalsim/graph/README.md"
pytestmark = pytest.mark.claim(on="gpu", used_in="notebooks 41 to 65")
rng = np.random.default_rng(0)
X, Y = (rng.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(2))


@pytest.fixture
def G():
    """The module that a program imports."""
    if not ON_A_MAC:
        import metalsim.graph

        metalsim.graph.install()
    import MetalPerformanceShadersGraph

    return MetalPerformanceShadersGraph


@pytest.fixture
def compute(G):
    """Return a function that runs one operation in a graph of its own, and returns its result as an array.

    It takes the operation's selector and all arguments but the last, which is the name. Arrays among them become
    placeholders of the graph.
    """

    def run(selector, *arguments):
        graph = G.MPSGraph.alloc().init()
        arrays = [each for each in arguments if isinstance(each, np.ndarray)]
        placeholders = [make_placeholder(graph, each) for each in arrays]

        of_arrays = iter(placeholders)
        taken = [next(of_arrays) if isinstance(each, np.ndarray) else each for each in arguments]
        result = getattr(graph, selector)(*taken, None)

        program = mpsgraph.compile(graph, placeholders, [result])
        return program(*arrays)[0]

    return run


def make_placeholder(graph, array):
    """Return what stands for an array in a graph."""
    dtype = mpsgraph.data_type(array.dtype)
    return graph.placeholderWithShape_dataType_name_(list(array.shape), dtype, None)


def two(stem):
    return f"{stem}WithPrimaryTensor_secondaryTensor_name_"


OPERATIONS = {
    "reLU": (("reLUWithTensor_name_", X), np.maximum(X, 0)),
    "sigmoid": (("sigmoidWithTensor_name_", X), 1 / (1 + np.exp(-X.astype(float)))),
    "addition": ((two("addition"), X, Y), X + Y),
    "subtraction": ((two("subtraction"), X, Y[:, :1]), X - Y[:, :1]),
    "multiplication": ((two("multiplication"), X, Y), X * Y),
    "product": ((two("matrixMultiplication"), X, Y.swapaxes(1, 2).copy()), X @ Y.swapaxes(1, 2)),
    "mean": (("meanOfTensor_axes_name_", X, [1]), X.mean(1, keepdims=True)),
    "reshape": (("reshapeTensor_withShape_name_", X, [4, -1]), X.reshape(4, 6)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(compute, name):
    call, wanted = OPERATIONS[name]
    checks.assert_close(wanted, compute(*call), "float32")


def test_same_convolution(compute, G):
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in [(2, 3, 5, 6), (4, 3, 3, 2)])
    selector = "convolution2DWithSourceTensor_weightsTensor_descriptor_name_"
    given = compute(selector, x, w, mpsgraph.same_convolution())

    exact, weights = torch.from_numpy(x).double(), torch.from_numpy(w).double()
    wanted = torch.nn.functional.conv2d(exact, weights, padding="same")
    checks.assert_close(wanted.numpy(), given, "float32")


@pytest.mark.claim(used_in=f"{README}; notebook 44")
def test_quantising_rounds_halves_to_even(compute, G):
    """``quantizeTensor`` rounds halves to even, and keeps to the ends of int8."""
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300])
    given = compute("quantizeTensor_scale_zeroPoint_dataType_name_", x, 1.0, 0.0, G.MPSDataTypeInt8)
    assert given.tolist() == [0, 2, 2, 0, -2, 127, -128]


def test_dequantising_by_tensor_and_by_channel(compute, G):
    q, scales = np.int8([[-3, 5], [7, -128]]), np.float32([0.5, 2])
    plain = compute(
        "dequantizeTensor_scale_zeroPoint_dataType_name_", q, 0.5, 3.0, G.MPSDataTypeFloat32
    )
    np.testing.assert_allclose(plain, (q.astype(float) - 3) * 0.5)
    selector = "dequantizeTensor_scaleTensor_zeroPoint_dataType_axis_name_"
    by_row = compute(selector, q, scales, 0.0, G.MPSDataTypeFloat32, 0)
    np.testing.assert_allclose(by_row, q * scales[:, None])


@pytest.mark.claim(used_in="notebook 44, the fused convolution")
def test_quantised_convolution_is_right(G):
    """dequantize, convolve, quantize as one compiled graph is within one step of the same in float64."""
    x = rng.integers(-128, 128, (1, 3, 6, 6)).astype(np.int8)
    w = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)

    graph = G.MPSGraph.alloc().init()
    given = graph.placeholderWithShape_dataType_name_(list(x.shape), G.MPSDataTypeInt8, "x")
    real = graph.dequantizeTensor_scale_zeroPoint_dataType_name_(
        given, 0.05, 3.0, G.MPSDataTypeFloat32, None
    )
    y = graph.convolution2DWithSourceTensor_weightsTensor_descriptor_name_(
        real, mpsgraph.constant(graph, w), mpsgraph.same_convolution(), None
    )
    q = graph.quantizeTensor_scale_zeroPoint_dataType_name_(y, 0.5, -5.0, G.MPSDataTypeInt8, None)
    (result,) = mpsgraph.compile(graph, [given], [q])(x)

    exact = torch.from_numpy((x.astype(float) - 3) * 0.05)
    wanted = torch.nn.functional.conv2d(exact, torch.from_numpy(w).double(), padding=1) / 0.5 - 5
    assert np.abs(result - wanted.round().clamp(-128, 127).numpy()).max() <= 1


def _fourier(G, mode: str, *, is_inverse: bool = False):
    """Return the descriptor of a Fourier transform."""
    descriptor = G.MPSGraphFFTDescriptor.descriptor()
    descriptor.setScalingMode_(getattr(G, f"MPSGraphFFTScalingMode{mode}"))
    if is_inverse:
        descriptor.setInverse_(True)
        descriptor.setRoundToOddHermitean_(True)
    return descriptor


@pytest.mark.parametrize("mode", ["None", "Size", "Unitary"])
@pytest.mark.parametrize("axes", [[2], [1, 2], [0, 1, 2]])
def test_real_to_hermitean_and_back(G, axes, mode):
    """A spectrum is that of NumPy's ``rfftn``, and the way back gives the input again, both scaled as the mode says."""
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    graph = G.MPSGraph.alloc().init()
    given = graph.placeholderWithShape_dataType_name_(list(x.shape), G.MPSDataTypeFloat32, None)

    there, back = _fourier(G, mode), _fourier(G, mode, is_inverse=True)
    spectrum = graph.realToHermiteanFFTWithTensor_axes_descriptor_name_(given, axes, there, None)
    parts = [
        graph.realPartOfTensor_name_(spectrum, None),
        graph.imaginaryPartOfTensor_name_(spectrum, None),
        graph.HermiteanToRealFFTWithTensor_axes_descriptor_name_(spectrum, axes, back, None),
    ]
    real, imaginary, returned = mpsgraph.compile(graph, [given], parts)(x)

    # without scaling, there and back multiplies by the count
    count = np.prod([x.shape[axis] for axis in axes])
    scale = {"None": 1, "Size": 1 / count, "Unitary": count**-0.5}[mode]
    wanted = np.fft.rfftn(x.astype(float), axes=axes) * scale
    np.testing.assert_allclose(real + 1j * imaginary, wanted, atol=1e-4)
    np.testing.assert_allclose(returned, x * count * scale**2, atol=1e-4 * count)


@pytest.mark.claim(used_in="notebooks 41 to 65, metallab.mpsgraph")
def test_results_are_read_back(G):
    """A compiled graph runs from Python, and ``buffer.contents().as_buffer(n)`` gives its results.

    As `mpsgraph.Program` reads them: a product of 64 x 48 with 48 x 32 against NumPy, and the same object a second time
    with other numbers, so that no result is left over from the first.
    """
    graph = G.MPSGraph.alloc().init()
    place = graph.placeholderWithShape_dataType_name_
    inputs = [place(shape, G.MPSDataTypeFloat32, None) for shape in ([64, 48], [48, 32])]
    product = graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(*inputs, None)
    program = mpsgraph.compile(graph, inputs, [product])

    first, second = (
        (rng.normal(size=(64, 48)).astype(np.float32), rng.normal(size=(48, 32)).astype(np.float32))
        for _ in range(2)
    )
    checks.assert_close(first[0] @ first[1], program(*first)[0], "float32")
    checks.assert_close(second[0] @ second[1], program(*second)[0], "float32")


STORE = """
import numpy as np, MetalPerformanceShadersGraph as mps
from Foundation import NSURL
from metallab import mpsgraph
graph = mps.MPSGraph.alloc().init()
place = graph.placeholderWithShape_dataType_name_
a, b = (place([2, 3], mps.MPSDataTypeFloat32, name) for name in "ab")
outputs = [
    graph.subtractionWithPrimaryTensor_secondaryTensor_name_(a, b, None),
    graph.additionWithPrimaryTensor_secondaryTensor_name_(a, b, None),
]
program = mpsgraph.compile(graph, [a, b], outputs)
compiled = program(np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32))
how = mps.MPSGraphExecutableSerializationDescriptor.alloc().init()
how.setDeploymentPlatform_(mps.MPSGraphDeploymentPlatformMacOS)
how.setMinimumDeploymentTarget_("15.0.0")
program.executable.serializeToMPSGraphPackageAtURL_descriptor_(NSURL.fileURLWithPath_(PACKAGE), how)
fed = [[a, b].index(tensor) for tensor in program.executable.feedTensors()]
targets = [outputs.index(tensor) for tensor in program.executable.targetTensors()]
"""
LOAD = """
import numpy as np, MetalPerformanceShadersGraph as mps
from Foundation import NSURL
from metallab import mpsgraph
read = mps.MPSGraphExecutable.alloc().initWithMPSGraphPackageAtURL_compilationDescriptor_
executable = read(NSURL.fileURLWithPath_(PACKAGE), None)
place = mps.MPSGraph.alloc().init().placeholderWithShape_dataType_name_
inputs, outputs = (tuple(place(SHAPE, mps.MPSDataTypeFloat32, name) for name in names) for names in ("ab", "cd"))
feeds, targets = tuple(inputs[i] for i in FED), tuple(outputs[i] for i in TARGETS)
numbers = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE), np.ones(SHAPE, np.float32)
loaded = mpsgraph.Program(executable, inputs, outputs, feeds, targets)(*numbers)
fed = executable.feedTensors()
fed = None if fed is None else [str(tensor) for tensor in fed]
"""
BAD_GRAPH = """
import MetalPerformanceShadersGraph as mps
from metallab import mpsgraph
graph = mps.MPSGraph.alloc().init()
a, b = (graph.placeholderWithShape_dataType_name_(s, mps.MPSDataTypeFloat32, None) for s in ([2, 3], [4, 5]))
mpsgraph.compile(graph, [a, b], [graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name_(a, b, None)])
"""


@pytest.mark.claim(used_in="notebook 41, its first two scripts", seconds=120, slow=True)
def test_apples_calls_alone_store_and_load_a_package(G):
    """The page's two scripts, as they stand: one stores a ReLU, and in another process the second runs it."""
    page = nbformat.read(next(paths.NOTEBOOKS.glob("09b_*.ipynb")), as_version=4)
    cells = {
        cell.id: cell.source.partition("\n")[2] for cell in page.cells
    }  # without the line of the magic
    stored = apart(cells["first-code"], device="mps", timeout=60)
    assert stored.ok, stored.detail
    loaded = apart(cells["load-run"], ["answer"], device="mps", timeout=60)
    np.testing.assert_array_equal(loaded["answer"], [0, 0, 0, 1])


@pytest.mark.claim(used_in="notebook 41, Deeper: a whole network", seconds=200)
def test_packages_load_in_another_process(G, evidence):
    """A stored MPSGraphPackage runs in a process that never saw the graph, if the orders are written down beside it.

    Two inputs' difference and sum: the difference is wrong if inputs are taken for each other, both are if outputs are.
    feedTensors() of what was loaded is None, so that the note is needed.
    """
    package = f"PACKAGE = {str(Path('small.mpsgraphpackage').resolve())!r}\n"
    stored = isolated.run(
        package + STORE, results=["compiled", "fed", "targets"], device="mps", timeout=60
    )

    assert stored.ok, stored.detail
    evidence("compiled for inputs, outputs", (stored["fed"], stored["targets"]))
    evidence("files", sorted(str(path) for path in Path("small.mpsgraphpackage").rglob("*")))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(stored["compiled"], [x - 1, x + 1])
    orders = f"FED, TARGETS, SHAPE = {stored['fed']}, {stored['targets']}, [2, 3]\n"
    loaded = isolated.run(
        package + orders + LOAD, results=["loaded", "fed"], device="mps", timeout=60
    )
    assert loaded.ok, loaded.detail
    np.testing.assert_array_equal(loaded["loaded"], [x - 1, x + 1])
    assert loaded["fed"] is None

    # what a Mac does with a shape that the package was not compiled for is recorded, not claimed
    other = package + orders.replace("[2, 3]", "[5, 5]") + LOAD
    evidence("given another shape", str(apart(other, device="mps", timeout=60)))


@pytest.mark.claim(used_in="notebook 41, when it goes wrong; metallab.mpsgraph", seconds=90)
def test_invalid_graph_ends_the_process(G, evidence):
    """A graph whose shapes do not fit ends the process when it is built or compiled: no exception reaches Python.

    On a Mac in a process of its own. The simulation raises instead, and says that a Mac ends the process.
    """
    ended = apart(BAD_GRAPH, device="mps", timeout=60)
    evidence("ended", f"{ended}"[:300])
    if ON_A_MAC:
        evidence("detail", ended.detail[-2000:])
        assert ended.ended == "crashed"
    else:
        assert ended.ended == "raised"
        assert "InvalidGraph" in ended.detail
