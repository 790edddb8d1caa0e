"""How much int8 loses and what it moves: SQNR, quantised networks in ONNX Runtime, memory traffic, and their pictures.

Notebook 10 teaches the arithmetic itself; here is what it and the benchmark of int8 share. ONNX Runtime computes on the
CPU, whatever other device the machine has.
"""

from __future__ import annotations

import collections
import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor, nn

from metallab import checks, converters, plots, units
from metallab.timing import Ratio


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
        self.path = path
        self.session = _session(path, threads)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(None, {"input": x.contiguous().numpy()})[0])

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def written(self) -> collections.Counter[str]:
        """How often each operation stands in the file."""
        return _census(self.path)

    def optimised(self) -> collections.Counter[str]:
        """How often each operation stands in the graph that ONNX Runtime makes of it, after all its fusions."""
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder, "optimized.onnx")
            _session(self.path, 1, optimized)
            return _census(optimized)


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


def _census(path: Path) -> collections.Counter[str]:
    import onnx

    return collections.Counter(node.op_type for node in onnx.load(path).graph.node)


@dataclass(frozen=True)
class Traffic:
    """Bytes that a network's layers read and write for one batch."""

    weights: int
    activations: int


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
    """What quantising and dequantising makes of each number of ``x``, above, and how far off it is, below."""
    x = np.asarray(x)
    with plt.rc_context(plots.STYLE):
        figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 4.6), sharex=True, height_ratios=[2, 1])
        above.plot(x, x, color=plots.BLACK, linewidth=1, linestyle=":", label="the number itself")
        for (name, y), colour in zip(curves.items(), itertools.cycle(plots.COLOURS), strict=False):
            above.plot(x, y, color=colour, label=name)
            below.plot(x, np.asarray(y) - x, color=colour)
        above.set_ylabel("comes back as")
        below.set_ylabel("error")
        below.set_xlabel("number")
        above.legend()
        plots.title(figure, "Quantise and dequantise: rounding in the range, saturation beyond", [device])
    furthest = (f"{name}: at most {np.abs(np.asarray(y) - x).max():.3g} off" for name, y in curves.items())
    return plots.described(figure, "; ".join(furthest))


def sqnr_bars(groups: Mapping[str, Mapping[str, float]], *, heading: str, device: str) -> Figure:
    """SQNR in dB as bars: a group for each data, in it a bar for each way to quantise."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    height = 0.8 / len(names)
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 1.3 + 0.3 * len(groups) * len(names)))
        for index, (name, colour) in enumerate(zip(names, itertools.cycle(plots.COLOURS), strict=False)):
            rows = [row + (index - (len(names) - 1) / 2) * height for row in range(len(groups))]
            values = [group.get(name, 0.0) for group in groups.values()]
            bars = axes.barh(rows, values, height * 0.9, color=colour, label=name)
            axes.bar_label(bars, fmt="%.1f", padding=4, fontsize=9)
        axes.set_yticks(range(len(groups)), list(groups))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.1)
        axes.set_xlabel("SQNR [dB] (10 dB more: a tenth of the noise)")
        figure.legend(loc="outside lower center", ncols=3)
        plots.title(figure, heading, [device])
    sentences = (f"{name} of {data}: {value:.1f} dB" for data, group in groups.items() for name, value in group.items())
    return plots.described(figure, "; ".join(sentences))


def speedup_curves(lines: Mapping[str, Mapping[int, Ratio]], *, xlabel: str, heading: str, device: str) -> Figure:
    """Speed-ups with their 95 % intervals over a quantity, one line for each name; of none, that there is none."""
    with plt.rc_context(plots.STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 3.6))
        for (name, line), colour in zip(lines.items(), itertools.cycle(plots.COLOURS), strict=False):
            known = [(x, ratio) for x, ratio in sorted(line.items()) if math.isfinite(ratio.high)]
            axes.plot(sorted(line), [line[x].median for x in sorted(line)], "o-", color=colour, label=name)
            for x, ratio in known:
                axes.plot([x, x], [ratio.low, ratio.high], color=colour, linewidth=6, alpha=0.3)
        axes.axhline(1, color=plots.BLACK, linewidth=1)
        axes.set_xscale("log", base=2)
        if not any(lines.values()):
            axes.text(0.5, 0.6, "no speed-up may be given", color=plots.RED, ha="center", transform=axes.transAxes)
        every = sorted({x for line in lines.values() for x in line})
        axes.set_xticks(every, [f"{x:g}" for x in every])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
        axes.set_xlabel(xlabel)
        axes.set_ylabel("speed-up (bar: 95 % interval)")
        axes.legend()
        plots.title(figure, heading, [device])
    sentences = (
        f"{name} at {x:g}: {units.times(ratio.median)}" for name, line in lines.items() for x, ratio in line.items()
    )
    return plots.described(figure, "; ".join(sentences) or "no speed-up may be given")
