"""How much int8 loses and what it moves: SQNR, quantised networks in ONNX Runtime, memory traffic, and their pictures.

Notebooks 10 and 10b teach the calls and the arithmetic; here is what they and the benchmark of int8 share. ONNX Runtime
computes on the CPU, whatever other device the machine has.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from metallab import checks, converters, isolated, plots, timing, units
from metallab.allowance import Allowance
from metallab.device import Device, cpu
from metallab.quantization.digits import Digits, accuracy, folded
from metallab.tables import Table
from metallab.timing import Comparison


def sqnr(reference: Any, result: Any) -> float:
    """Signal-to-quantisation-noise ratio in dB: 10 log10(sum of reference^2 / sum of (reference - result)^2).

    Two arrays of the same shape, of NumPy or PyTorch on the CPU. Infinite if they are equal; 10 dB more is a tenth of
    the noise's power. Source: Gray and Neuhoff, *Quantization*, IEEE Transactions on Information Theory 44, 1998.
    ValueError for different shapes, complex numbers, or a reference that is all zeros.
    """
    if any(np.iscomplexobj(array) for array in (reference, result)):
        raise ValueError("an SQNR is of real numbers: give real and imaginary parts one after the other")
    reference, result = (np.asarray(array, dtype=np.float64) for array in (reference, result))
    if reference.shape != result.shape:
        raise ValueError(f"an SQNR is of two arrays of one shape, not {reference.shape} and {result.shape}")
    signal, noise = np.square(reference).sum(), np.square(reference - result).sum()
    if signal == 0:
        raise ValueError("the reference is all zeros: there is no signal that noise could be compared with")
    return math.inf if noise == 0 else float(10 * np.log10(signal / noise))


@dataclass(frozen=True)
class AtLeast:
    """A parity check for `metallab.timing.compare`, for outputs that differ by design: so many dB of SQNR.

    `metallab.checks.Mismatch` if there are fewer, or any value is NaN.
    """

    decibels: float

    def __call__(self, reference: Any, result: Any) -> None:
        actual = sqnr(reference, result)
        if not actual >= self.decibels:  # NaN is refused, too
            raise checks.Mismatch(f"SQNR is {actual:.1f} dB, wanted are {self.decibels:g} dB")

    def __str__(self) -> str:
        return f"outputs compared at {self.decibels:g} dB of SQNR"


@dataclass(frozen=True)
class Choice:
    """How a network is quantised."""

    activations: Literal["uint8", "int8"] = "uint8"
    symmetric: bool = False
    """Of the activations: True puts the zero point in the middle of the whole numbers, False where the data want it."""
    weights: Literal["uint8", "int8"] = "int8"
    """int8 weights are symmetric, uint8 weights are not."""
    per_channel: bool = True
    """A scale for each output channel of a weight, or one for all."""
    first_layer: bool = False
    """True quantises the first convolution as well, which usually stays in float32."""
    reduce_range: bool = False
    """True gives int8 weights 7 bits, -64 to 64: the remedy where `saturates`; elsewhere it costs precision."""


LARGEST_PAIR = 255 * 127 + 255 * 127
"""The largest sum of two products of a uint8 and an int8 number: 64770, where 16 bits with a sign end at 32767."""


def largest_pair() -> int:
    """`LARGEST_PAIR` as ONNX Runtime computes it on this processor: 255 * 127 + 255 * 127, by a `MatMulInteger`.

    It is 32767 where ONNX Runtime multiplies with x86's VPMADDUBSW, which adds two products in 16 bits and saturates.
    """
    import onnx

    text = (
        '<ir_version: 8, opset_import: ["": 17]> pair (uint8[1, 2] a, int8[2, 1] b) => (int32[1, 1] y)'
        " { y = MatMulInteger(a, b) }"
    )
    session = _session(onnx.parser.parse_model(text).SerializeToString(), threads=1)
    inputs = {"a": np.full((1, 2), 255, np.uint8), "b": np.full((2, 1), 127, np.int8)}
    return int(session.run(None, inputs)[0].item())


@dataclass(frozen=True)
class PairSums:
    """The largest sum of two products, as it is and as ONNX Runtime computes it here; shows itself in words.

    >>> PairSums()
    255 x 127 + 255 x 127 is 64770.
    On this processor ONNX Runtime makes 64770 of it: nothing saturates.
    """

    computed: int = field(default_factory=largest_pair)

    def __repr__(self) -> str:
        made = f"255 x 127 + 255 x 127 is {LARGEST_PAIR}.\nOn this processor ONNX Runtime makes {self.computed} of it"
        if self.computed == LARGEST_PAIR:
            return f"{made}: nothing saturates."
        return f"{made}: sums saturate,\nand reduce_range=True is the remedy."


def saturates() -> bool:
    """Do sums of uint8 times int8 lose what does not fit into 16 bits on this processor? Found by computing one.

    Then a network with int8 weights may be far less right than rounding makes it, and ``reduce_range`` mends that, as
    do uint8 weights. Source: ONNX Runtime, *Quantize ONNX models*, "When and why do I need to try U8U8?": on x86
    without VNNI it multiplies uint8 by int8 with VPMADDUBSW; other processors have no such issue.
    """
    return largest_pair() != LARGEST_PAIR


def export(network: nn.Module, example: Tensor, path: Path) -> Path:
    """Write a network as an ONNX file for batches of any size, batch norms folded in, as the quantiser wants it."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        raw = converters.export_onnx(network, example, Path(folder, "raw.onnx"), any_batch=True)
        quant_pre_process(raw, path)
    return path


def quantize(model: Path, images: Tensor, choice: Choice, path: Path) -> Path:
    """Write an int8 copy of an ONNX file of `export`, by ONNX Runtime's static quantisation in QDQ form.

    ``images`` is a batch of typical inputs: the smallest and largest value of each activation on it set its scale. Two
    things stay in float32, as is usual. The first convolution reads one channel and has little to compute, while the
    rounding of its few weights is carried through the whole network. And the output of the last layer, a `Gemm`, is the
    result: quantising it is noise that saves nothing.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    kind = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
    first = next(node.name for node in onnx.load(model).graph.node if node.op_type == "Conv")
    quantize_static(
        model,
        path,
        _calibration(images),
        quant_format=QuantFormat.QDQ,
        activation_type=kind[choice.activations],
        weight_type=kind[choice.weights],
        per_channel=choice.per_channel,
        reduce_range=choice.reduce_range,
        nodes_to_exclude=[] if choice.first_layer else [first],
        extra_options={
            "ActivationSymmetric": choice.symmetric,
            "OpTypesToExcludeOutputQuantization": ["Gemm"],
        },
    )
    return path


def _calibration(images: Tensor, batch: int = 32):
    """ONNX Runtime's way to be given inputs: an object that is asked for the next one."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(images.split(batch))

        def get_next(self) -> dict[str, np.ndarray] | None:
            part = next(self.batches, None)
            return None if part is None else {"input": part.numpy()}

    return Reader()


class OnnxFile:
    """An ONNX file of `export` or `quantize` in ONNX Runtime on the CPU: float32 pictures in, float32 scores out.

    ``threads`` is how many it computes with. They sleep between calls: by default they spin for a while, and slow down
    whatever runs next.
    """

    def __init__(self, path: Path, threads: int) -> None:
        self.path, self.device = path, cpu()
        self.session = _session(path, threads)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(None, {"input": x.contiguous().numpy()})[0])

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def optimised(self) -> collections.Counter[str]:
        """How often each operation stands in the graph that ONNX Runtime makes of it, after all its fusions."""
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder, "optimized.onnx")
            _session(self.path, 1, optimized)
            return census(optimized)


def _session(model: Path | bytes, threads: int, optimized: Path | None = None):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # else it warns that an optimised file is for this machine alone
    if optimized:
        options.optimized_model_filepath = str(optimized)
    model = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def census(path: Path) -> collections.Counter[str]:
    """How often each operation stands in an ONNX file."""
    import onnx

    return collections.Counter(node.op_type for node in onnx.load(path).graph.node)


CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
"""From float32 to whole numbers, and back."""


def operations(engines: Mapping[str, OnnxFile]) -> Table:
    """What ONNX Runtime runs of each file: convolutions, conversions, ReLUs that are left.

    >>> operations({"int8": OnnxFile(Path("int8.onnx"), threads=1)})
    network  Conv in float32  QLinearConv in int8  conversions  ReLU
    int8     0                4                    2            0
    """
    rows = []
    for name, engine in engines.items():
        count = engine.optimised()
        conversions = sum(count[kind] for kind in CONVERSIONS)
        rows.append([name, count["Conv"], count["QLinearConv"], conversions, count["Relu"]])
    return Table(["network", "Conv in float32", "QLinearConv in int8", "conversions", "ReLU"], rows)


class InPyTorch:
    """A classifier as one runs it in PyTorch without int8, its batch norms folded: the rival that int8 has to beat.

    On a GPU it computes in float16; on a CPU in bfloat16 where that is fast, else in float32. Pictures on the CPU in,
    float32 scores on the CPU out, so the ways there and back are in its time.
    """

    def __init__(self, network: nn.Module, on: Device) -> None:
        self.device, self.dtype = on, _float_of(on)
        self.model = folded(network).to(on.torch_device, self.dtype, memory_format=torch.channels_last)

    @property
    def name(self) -> str:
        """``PyTorch, float16``."""
        return f"PyTorch, {units.dtype_name(self.dtype)}"

    @property
    def size(self) -> int:
        """Bytes of the weights."""
        return sum(weight.numel() * weight.element_size() for weight in self.model.parameters())

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        return self.model(x.to(self.device.torch_device, self.dtype)).float().cpu()


def _float_of(device: Device) -> torch.dtype:
    if device.kind != "cpu":
        return torch.float16
    fast = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


MOST_POINTS = 1.0
"""Points of accuracy, pictures in a hundred, that a network may lose and still be called right."""


@dataclass(frozen=True)
class Kept:
    """What one way to run a classifier keeps of the reference."""

    size: int
    """Bytes of its file, or of its weights."""
    accuracy: float
    """Share of the pictures that it reads right, 0 to 1."""
    points: float
    """Of accuracy more than the reference; below 0: less. One point is one picture in a hundred."""
    changed: int
    """Pictures of which its answer is not the reference's."""
    sqnr: float
    """Of its scores, in dB; see `sqnr`."""

    @property
    def right(self) -> bool:
        """Does it lose `MOST_POINTS` at most?"""
        return self.points >= -MOST_POINTS


@dataclass(frozen=True)
class Fidelity:
    """What several ways to run a classifier keep of the first one, as a table; ``fidelity["int8"]`` is a `Kept`."""

    kept: Mapping[str, Kept]
    pictures: int
    commonest: float = 0.0
    """The share of the class that most pictures are of, 0 to 1: who always says that one reads so many right."""

    @property
    def empty(self) -> str:
        """Why nothing is said about accuracy, where the reference reads no more right than a guess; else empty."""
        name, reference = next(iter(self.kept.items()))
        chance = 2 * math.sqrt(self.commonest * (1 - self.commonest) / self.pictures)
        if reference.accuracy > self.commonest + chance:
            return ""
        guess = f"always saying the commonest class {self.commonest:.1%}"
        return (
            f"{name} reads {reference.accuracy:.1%} right, and {guess}: it has no accuracy to lose. "
            "Judge a trained network."
        )

    def __getitem__(self, name: str) -> Kept:
        return self.kept[name]

    def sentence(self, name: str) -> str:
        """``int8 has 0.29 of the size of float32 and gives the same answer on 499 of 500 pictures (36.4 dB).``"""
        kept, reference = self[name], next(iter(self.kept))
        share = f"{name} has {kept.size / self[reference].size:.2f} of the size of {reference}"
        same = f"{self.pictures - kept.changed} of {self.pictures} pictures"
        return f"{share} and gives the same answer on {same} ({kept.sqnr:.1f} dB)."

    @property
    def table(self) -> Table:
        """A row for each way; of the first, the reference, there is nothing to compare."""
        reference, *others = self.kept
        first = self[reference]
        rows = [[reference, units.size(first.size), f"{first.accuracy:.1%}", "", ""]]
        for name in others:
            kept = self[name]
            words = [f"{kept.accuracy:.1%}", f"{kept.changed} of {self.pictures}", f"{kept.sqnr:.1f}"]
            rows.append([name, units.size(kept.size), *words])
        return Table(["network", "size", "accuracy", "other answers", "SQNR [dB]"], rows, self.empty)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def judge(networks: Mapping[str, OnnxFile | InPyTorch], digits: Digits) -> Fidelity:
    """Run each network on all pictures, and hold its answers and scores against those of the first.

    ``digits`` may be of any classifier, see `Digits`. A first one that only guesses is said to, below the table.

    >>> judge({"float32": whole, "int8": small}, unseen)
    network  size      accuracy  other answers  SQNR [dB]
    float32  261 KiB   97.0%
    int8     75.4 KiB  97.2%     1 of 500       36.4
    """
    scores = {name: network(digits.images) for name, network in networks.items()}
    truth = next(iter(scores.values()))
    kept = {}
    for name, network in networks.items():
        changed = int((scores[name].argmax(1) != truth.argmax(1)).sum())
        right = accuracy(scores[name], digits)
        points = 100 * (right - accuracy(truth, digits))
        kept[name] = Kept(network.size, right, points, changed, sqnr(truth, scores[name]))
    commonest = digits.labels.bincount().max().item() / len(digits.labels)
    return Fidelity(kept, len(digits.labels), commonest)


FAITHFUL = AtLeast(20)
"""What scores must keep of the reference's before their time counts; below, something is broken."""


def race(networks: Mapping[str, OnnxFile | InPyTorch], images: Tensor, name: str, *, seconds: float) -> Comparison:
    """Time networks side by side on a batch of pictures, float32 (n, 1, h, w) on the CPU; the first is the baseline.

    All together they get ``seconds``. Who keeps less than `FAITHFUL` of the first one's scores gets no speed-up.
    ValueError as `metallab.allowance.Allowance`.
    """
    return timing.compare(
        {way: functools.partial(network, images) for way, network in networks.items()},
        on={way: network.device for way, network in networks.items()},
        baseline=next(iter(networks)),
        parity=FAITHFUL,
        question="throughput",
        name=name,
        budget=Allowance(seconds).budget(variants=len(networks)),
    )


def advice(name: str, fidelity: Fidelity, race: Comparison) -> str:
    """Does a quantised network pay, in a sentence: right first, then time, against the baseline and against all others.

    ``race`` compares times with the reference of ``fidelity``, and has the other networks as variants.

    >>> advice("int8", judge(networks, unseen), race)
    'int8 pays: it is faster, has 0.29 of the size and loses no accuracy (+0.2 points).'
    """
    kept = fidelity[name]
    if fidelity.empty:
        return f"No advice: {fidelity.empty}"
    share = f"{kept.size / fidelity[race.baseline].size:.2f} of the size"
    if not kept.right:
        return f"Do not use {name}: it loses {-kept.points:.1f} points of accuracy."
    lost = f"loses {-kept.points:.1f} points of accuracy" if kept.points < 0 else "loses no accuracy"
    ratio = race.ratios.get(name)
    if ratio is None:
        return f"{name} has {share} and {lost}; whether it saves time is not known."
    side = ratio.side or ratio.verdict
    if side != "faster":
        time = {"slower": "costs time", "same": "saves no time"}.get(side, "is not shown to save time")
        return f"{name} saves memory alone: it has {share}, {lost}, and {time}."
    ahead = [other for other, its in race.ratios.items() if other != name and its.low > ratio.high]
    if ahead:
        return f"{name} has {share}, {lost} and beats {race.baseline}, but {' and '.join(ahead)} is faster still."
    return f"{name} pays: it is faster than {race.baseline}, has {share} and {lost}."


def core_ml_sizes(models: Mapping[str, Any], folder: Path) -> Table:
    """Sizes of Core ML models as packages, which are written into ``folder``, and the SQNR of their weights, in dB.

    The first is the reference. Only in a process of its own, as `metallab.converters.to_core_ml`.
    """
    import coremltools.optimize.coreml as cto

    def weights(model: Any) -> np.ndarray:
        stored = cto.get_weights_metadata(cto.decompress_weights(model) if model is not first else model)
        return np.concatenate([weight.val.ravel() for weight in stored.values()])

    first = next(iter(models.values()))
    sizes = {name: converters.save_core_ml(model, folder / f"{name}.mlpackage") for name, model in models.items()}
    rows = []
    for name, model in models.items():
        kept = "" if model is first else f"{sqnr(weights(first), weights(model)):.1f}"
        whole = next(iter(sizes.values()))
        rows.append([name, units.size(sizes[name]), f"{sizes[name] / whole:.2f}", kept])
    return Table(["Core ML package", "size", "of the first", "SQNR of the weights [dB]"], rows)


def random_layer() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A convolution in int8, the same each time: input (1, 8, 16, 16), weights (8, 8, 3, 3), and scales (8,).

    The scales, one for each filter, are float32 and 0.001 to 0.004.
    """
    random = np.random.default_rng(0)
    x = random.integers(-127, 128, (1, 8, 16, 16), np.int8)
    w = random.integers(-127, 128, (8, 8, 3, 3), np.int8)
    return x, w, random.uniform(0.001, 0.004, 8).astype(np.float32)


def steps_apart(expected: np.ndarray, result: Any) -> str | isolated.Skipped:
    """How many whole numbers of ``result`` are those of ``expected``, in words; one step of difference is allowed.

    Two arrays of whole numbers of one shape; what stands for a cell that was not run comes back as it is.
    `metallab.checks.Mismatch` if any number is further off.
    """
    if isinstance(result, isolated.Skipped):
        return result
    steps = np.abs(np.asarray(result, int) - np.asarray(expected, int))
    if steps.max() > 1:
        raise checks.Mismatch(f"whole numbers differ by up to {steps.max()} steps, one is allowed")
    return f"{(steps == 0).sum()} of {steps.size} whole numbers are equal, {(steps == 1).sum()} are one step apart"


@dataclass(frozen=True)
class Traffic:
    """Bytes that a network's layers read and write for one batch; shows itself in words.

    >>> Traffic(weights=67000, activations=397000)
    weights 65.4 KiB, activations 388 KiB
    """

    weights: int
    activations: int

    def __repr__(self) -> str:
        return f"weights {units.size(self.weights)}, activations {units.size(self.activations)}"


def traffic(network: nn.Module, x: Tensor, width: int, first: int | None = None) -> Traffic:
    """What moves if each layer reads its weights and its input once and writes its output once.

    A number has ``width`` bytes, in the first layer ``first``, whose output is then converted: read and written once
    more. Layers are convolutions, poolings and linear layers; batch norm and ReLU are fused into them and move nothing.
    """
    kinds = (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
    layers = [layer for layer in network.modules() if isinstance(layer, kinds)]
    moved: list[tuple[int, int]] = []
    hooks = [
        layer.register_forward_hook(lambda _, inputs, output: moved.append((inputs[0].numel(), output.numel())))
        for layer in layers
    ]
    try:
        with torch.no_grad():
            network(x)
    finally:
        for hook in hooks:
            hook.remove()
    widths = [first or width, *[width] * (len(layers) - 1)]
    weights = [layer.weight.numel() if hasattr(layer, "weight") else 0 for layer in layers]
    conversion = moved[0][1] * (widths[0] + width) if widths[0] != width else 0
    return Traffic(
        weights=sum(size * count for size, count in zip(widths, weights, strict=True)),
        activations=sum(size * sum(pair) for size, pair in zip(widths, moved, strict=True)) + conversion,
    )


def staircase(x: Sequence[float], curves: Mapping[str, Sequence[float]], *, device: str) -> Figure:
    """What quantising and dequantising makes of each number of ``x``."""
    x = np.asarray(x)
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.3))
        axes.plot(x, x, color=plots.BLACK, linewidth=1, linestyle=":", label="the number itself")
        for (name, y), colour in zip(curves.items(), itertools.cycle(plots.COLOURS), strict=False):
            axes.plot(x, y, color=colour, label=name)
        axes.set_ylabel("comes back as")
        axes.set_xlabel("number")
        axes.legend()
        plots.title(figure, "Quantise and dequantise: rounding in the range, saturation beyond", [device])
    furthest = (f"{name}: at most {np.abs(np.asarray(y) - x).max():.3g} off" for name, y in curves.items())
    return plots.described(figure, "; ".join(furthest))
