"""MPSGraph programs as tests write them: placeholders fed with NumPy arrays, and references for what they give."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view

from conformance.claims import ON_A_MAC
from metallab import checks
from metalsim.graph import contract, datatypes


def modules():
    """The modules that a program imports, and the objects that every program makes."""
    import Foundation
    import Metal
    import MetalPerformanceShadersGraph as G

    device = Metal.MTLCreateSystemDefaultDevice()
    return SimpleNamespace(
        G=G,
        Foundation=Foundation,
        Metal=Metal,
        device=device,
        queue=device.newCommandQueue(),
        graph_device=G.MPSGraphDevice.deviceWithMTLDevice_(device),
    )


rng = np.random.default_rng(8)


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
    several = not hasattr(made, "dataType")
    targets = list(made) if several else [made]
    results = graph.runWithMTLCommandQueue_feeds_targetTensors_targetOperations_(mac.queue, feeds, targets, None)
    arrays = [numbers(results[target]) for target in targets]
    for target, array in zip(targets, arrays, strict=True):
        assert list(target.shape()) == list(array.shape), "the shape that was told when the graph was built"
    return arrays if several else arrays[0]


def floats(*shape, low=-2.0, high=2.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def ints(*shape, low=-9, high=9, dtype=np.int32):
    return rng.integers(low, high, shape, dtype=dtype)


def agree(result, wanted, atol=2e-5):
    """Shape, kind and values: a Mac's within what this project allows a GPU, the simulation's closely."""
    wanted = np.asarray(wanted)
    assert result.shape == wanted.shape
    exact = result.dtype == wanted.dtype or (wanted.dtype.itemsize >= 8 and result.dtype.kind == wanted.dtype.kind)
    assert exact, f"{result.dtype} for {wanted.dtype}"
    if ON_A_MAC and wanted.dtype.kind in "fc":
        checks.assert_close(wanted, result, str(result.dtype))
    else:
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=atol)


X, Y, POSITIVE, UNIT = floats(2, 3, 4), floats(2, 1, 4), floats(2, 3, low=0.1), floats(2, 3, low=-0.9, high=0.9)


def c_round(x):
    return np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)


def softmax(x, axis):
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def shuffled(x, block):
    return F.pixel_shuffle(torch.from_numpy(x), block).numpy()


def band(x, lower, upper):
    return np.triu(np.tril(x, upper), -lower)


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


def pooled(x, kernel, strides, pads, fill, reduce):
    windows = sliding_window_view(np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill), kernel, (2, 3))
    return reduce(windows[:, :, :: strides[0], :: strides[1]], (-2, -1))


def fft_descriptor(mac, inverse, mode, odd=False):
    descriptor = mac.G.MPSGraphFFTDescriptor.descriptor()
    descriptor.setInverse_(inverse)
    descriptor.setScalingMode_(mode)
    descriptor.setRoundToOddHermitean_(odd)
    return descriptor


def scale_of(mode, count):
    return {0: 1.0, 1: 1 / count, 2: count**-0.5}[mode]


GRID = (
    "sampleGridWithSourceTensor:coordinateTensor:layout:normalizeCoordinates:relativeCoordinates:"
    "alignCorners:paddingMode:samplingMode:constantValue:name:"
)
NEAREST_GRID = GRID.replace("samplingMode", "nearestRoundingMode")
REFLECT, SYMMETRIC, CLAMP, ZERO = 1, 2, 3, 4
NEAREST, BILINEAR = 0, 1


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


def near(result, wanted):
    """The quantised result within one step, the real one closely."""
    assert np.abs(result[0].astype(float) - wanted[0]).max() <= 1
    assert (result[0] == wanted[0]).mean() > 0.95
    np.testing.assert_allclose(result[1], wanted[1], atol=1e-4)


def execute(mac, executable, inputs, results=None):
    run_ = executable.runWithMTLCommandQueue_inputsArray_resultsArray_executionDescriptor_
    return run_(mac.queue, [tensor_data(mac, each) for each in inputs], results, None)


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


F32, I32, I8 = (datatypes.MPS[dtype] for dtype in (torch.float32, torch.int32, torch.int8))
