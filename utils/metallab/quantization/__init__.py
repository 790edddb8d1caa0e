"""How much int8 loses: SQNR, quantised networks in ONNX Runtime beside PyTorch, and whether int8 pays.

Notebooks 10 and 10b teach the calls and the arithmetic. ONNX Runtime computes on the CPU of any machine.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    ValueError for different shapes, or a reference that is all zeros.
    """
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


WHOLE_PAIR = 255 * 127 + 255 * 127
"""The largest sum of two products of a uint8 and an int8 number: 64770, where 16 bits with a sign end at 32767."""


def largest_pair() -> int:
    """`WHOLE_PAIR` as ONNX Runtime computes it on this processor: 255 * 127 + 255 * 127, by a `MatMulInteger`.

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


def saturates() -> bool:
    """Whether this processor loses what does not fit into 16 bits in sums of uint8 times int8, found by computing one.

    If so, int8 weights need ``reduce_range=True``, which gives them 7 bits. Source: ONNX Runtime, *Quantize ONNX
    models*, "When and why do I need to try U8U8?": x86 without VNNI multiplies with VPMADDUBSW.
    """
    return largest_pair() != WHOLE_PAIR


def export(network: nn.Module, example: Tensor, path: Path) -> Path:
    """Write a network as an ONNX file for batches of any size, batch norms folded in, as the quantiser wants it."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        raw = converters.export_onnx(network, example, Path(folder, "raw.onnx"), any_batch=True)
        quant_pre_process(raw, path)
    return path


class OnnxFile:
    """An ONNX file in ONNX Runtime on the CPU: float32 pictures in, float32 scores out.

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
        import onnx

        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder, "optimized.onnx")
            _session(self.path, 1, optimized)
            return collections.Counter(node.op_type for node in onnx.load(optimized).graph.node)


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


class Fidelity(Table):
    """What several ways to run a classifier keep of the first one, as a table; ``fidelity["int8"]`` is a `Kept`."""

    def __init__(self, kept: Mapping[str, Kept], pictures: int, commonest: float = 0.0):
        """``commonest`` is the share of the class that most pictures are of, 0 to 1: always that is right so often."""
        self.kept, self.pictures, self.empty = kept, pictures, ""
        reference, *others = kept
        first = kept[reference]
        if first.accuracy <= commonest + 2 * math.sqrt(commonest * (1 - commonest) / pictures):
            self.empty = (
                f"{reference} reads {first.accuracy:.1%} right, and always saying the commonest class {commonest:.1%}: "
                "it has no accuracy to lose. Judge a trained network."
            )
        rows = [[reference, units.size(first.size), f"{first.accuracy:.1%}", "", ""]]
        for name in others:
            each = kept[name]
            words = [f"{each.accuracy:.1%}", f"{each.changed} of {pictures}", f"{each.sqnr:.1f}"]
            rows.append([name, units.size(each.size), *words])
        super().__init__(["network", "size", "accuracy", "other answers", "SQNR [dB]"], rows, self.empty)

    def __getitem__(self, name: str) -> Kept:
        return self.kept[name]

    def sentence(self, name: str) -> str:
        """``int8 has 0.29 of the size of float32 and gives the same answer on 499 of 500 pictures (36.4 dB).``"""
        kept, reference = self[name], next(iter(self.kept))
        share = f"{name} has {kept.size / self[reference].size:.2f} of the size of {reference}"
        same = f"{self.pictures - kept.changed} of {self.pictures} pictures"
        return f"{share} and gives the same answer on {same} ({kept.sqnr:.1f} dB)."


def judge(networks: Mapping[str, OnnxFile | InPyTorch], digits: Digits) -> Fidelity:
    """Run each network on all pictures, and compare its answers and scores with those of the first.

    ``digits`` may be of any classifier, see `Digits`. If the first one only guesses, a line below the table says so.

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
    """How many whole numbers are equal and how many one step apart, in words; a skipped result comes back as it is.

    `metallab.checks.Mismatch` if any is further off.
    """
    if isinstance(result, isolated.Skipped):
        return result
    steps = np.abs(np.asarray(result, int) - np.asarray(expected, int))
    if steps.max() > 1:
        raise checks.Mismatch(f"whole numbers differ by up to {steps.max()} steps, one is allowed")
    return f"{(steps == 0).sum()} of {steps.size} whole numbers are equal, {(steps == 1).sum()} are one step apart"


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
