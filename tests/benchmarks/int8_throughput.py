"""Does int8 pay, and does it stay right? The networks of notebook 10, trained, quantised and timed in ONNX Runtime.

    python tests/benchmarks/int8_throughput.py [--channels 16 32 64] [--epochs 4] [--batch 32]

For the widest network, of 64 channels on pictures of 32 x 32, there are bars, meant for a quiet x86 CPU with
AVX512-VNNI: the best int8 has at least 2.5 times the throughput of float32, 0.30 of its size at most, an accuracy
within a point, and 38 dB of SQNR. They are printed as met or missed, and nothing fails: on another CPU, or a busy one,
other numbers are right. Narrower networks are reported without bars, as PyTorch is.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from metallab import device, machine, paths, quantization, timing, units
from metallab.quantization import digits

SPEED, SIZE, POINTS, DECIBELS = 2.5, 0.30, 1.0, 38.0
CHOICES = {
    "int8 asymmetric": quantization.Choice(activations="uint8", symmetric=False),
    "int8 symmetric": quantization.Choice(activations="int8", symmetric=True),
    "uint8 weights": quantization.Choice(activations="uint8", weights="uint8", per_channel=False),
    "int8, first layer too": quantization.Choice(activations="uint8", first_layer=True),
}


@dataclass(frozen=True)
class Result:
    """What one way to run a network of so many channels gave."""

    channels: int
    name: str
    seconds: float
    """For a batch."""
    speed: timing.Ratio | None
    """Over ONNX Runtime's float32; None for that itself, and where scores differ too much."""
    size: float | None
    """Of the float32 file; None for PyTorch, which has none."""
    points: float
    """Of accuracy, against float32: -1 is one per cent of the pictures worse."""
    decibels: float
    flags: tuple[str, ...]

    def __str__(self) -> str:
        speed = f"{self.speed.median:.2f} ({self.speed.low:.2f} to {self.speed.high:.2f})" if self.speed else ""
        size = f"{self.size:.3f}" if self.size else ""
        return (
            f"{self.channels:4} {self.name:16} {units.seconds(self.seconds):>9} {speed:21} {size:6}"
            f" {self.points:+6.1f} {self.decibels:6.1f} {', '.join(self.flags)}"
        )


def in_pytorch(network: nn.Sequential, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The network in PyTorch, as fast as it is without compiling: batch norms folded, channels last."""
    model = digits.folded(network).to(dtype, memory_format=torch.channels_last)
    return torch.inference_mode()(lambda x: model(x.to(dtype)).float())


def ways_to_run(network: nn.Sequential, seen: digits.Digits, folder: Path) -> dict[str, Callable[[Tensor], Tensor]]:
    """The network in ONNX Runtime, in float32 and quantised, and in PyTorch; float32 comes first."""
    float32 = quantization.export(network, seen.images[:1], folder / "float32.onnx")
    small = {
        name: quantization.quantize(float32, seen.images[:256], choice, folder / f"{name}.onnx")
        for name, choice in CHOICES.items()
    }
    threads = torch.get_num_threads()
    ways = {name: quantization.OnnxFile(file, threads) for name, file in {"float32": float32, **small}.items()}
    ways["PyTorch float32"] = in_pytorch(network, torch.float32)
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        ways["PyTorch bfloat16"] = in_pytorch(network, torch.bfloat16)
    return ways


def measure(channels: int, epochs: int, batch: int) -> list[Result]:
    """Train a network, quantise it, and time all ways to run it side by side."""
    seen, unseen = digits.load()
    network = digits.train(channels, seen, epochs=epochs, on=device.cpu())
    with tempfile.TemporaryDirectory() as folder:
        ways = ways_to_run(network, seen, Path(folder))
        sizes = {name: way.size for name, way in ways.items() if isinstance(way, quantization.OnnxFile)}
    race = timing.compare(
        {name: functools.partial(way, unseen.images[:batch]) for name, way in ways.items()},
        on=device.cpu(),
        baseline="float32",
        parity=quantization.AtLeast(20),
        question="throughput",
        budget=timing.Budget(min_samples=30, min_seconds=1.0, max_seconds=15.0),
    )
    truth = network(unseen.images)
    accuracy = lambda scores: 100 * digits.accuracy(scores, unseen)
    scores = {name: way(unseen.images) for name, way in ways.items()}
    return [
        Result(
            channels=channels,
            name=name,
            seconds=race[name].median,
            speed=race.ratios.get(name),
            size=sizes[name] / sizes["float32"] if name in sizes else None,
            points=accuracy(scores[name]) - accuracy(truth),
            decibels=quantization.sqnr(truth, scores[name]),
            flags=race[name].flags,
        )
        for name in ways
    ]


def bars(results: list[Result]) -> list[str]:
    """What the fastest int8 network that keeps its scores met and missed."""
    good = [r for r in results if r.name in CHOICES and r.speed and r.decibels >= DECIBELS]
    if not good:
        return [f"MISSED: no int8 network of {results[0].channels} channels keeps {DECIBELS:g} dB"]
    best = max(good, key=lambda result: result.speed.median)
    checks = {
        f"throughput {best.speed.median:.2f} times float32's, wanted {SPEED:g}": best.speed.median >= SPEED,
        f"size {best.size:.3f} of float32's, allowed {SIZE:g}": best.size <= SIZE,
        f"accuracy {best.points:+.1f} points, allowed {-POINTS:g}": best.points >= -POINTS,
        f"SQNR {best.decibels:.1f} dB, wanted {DECIBELS:g}": best.decibels >= DECIBELS,
    }
    return [f"{'met' if met else 'MISSED'}: {best.name}, {what}" for what, met in checks.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    print(f"{device.cpu().label}, batches of {arguments.batch}")
    print(f"{'':21} {'a batch':>9} {'speed (95 % interval)':21} {'size':6} points   dB")
    results = []
    for channels in arguments.channels:
        measured = measure(channels, arguments.epochs, arguments.batch)
        print(*measured, sep="\n", flush=True)
        results += measured
    widest = max(arguments.channels)
    if widest >= 64:
        print(*bars([result for result in results if result.channels == widest]), sep="\n")
    out = paths.BUILD / "bars" / "int8_throughput.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    described = json.loads(machine.describe().to_json())
    out.write_text(json.dumps({"results": [asdict(result) for result in results], "machine": described}, indent=1))
    print(f"saved in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
