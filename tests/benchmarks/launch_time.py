"""What a launch costs: a ResNet of 24 blocks by every portable route of notebook 09, each in fresh processes.

    python tests/benchmarks/launch_time.py [--blocks 24] [--channels 64] [--size 32] [--processes 6]

The bar: from the AOTInductor package the first answer comes at least 10 times sooner than from torch.compile with an
empty cache; imports are in both, files are in memory. It is printed as met or missed, and nothing fails: on another
machine, or a busy one, other numbers are right. Six processes are the fewest that give an interval; with them it takes
some ten minutes on two cores, most of it compiling.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from metallab import checks, converters, device, launches, machine, paths, units

BAR = 10.0
AOT, COLD = "AOTInductor, loader alone", "torch.compile, cold"
NET = """
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        conv = lambda: nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        norm = lambda: nn.BatchNorm2d(channels)
        self.body = nn.Sequential(conv(), norm(), nn.ReLU(), conv(), norm())
        self.last = nn.ReLU()

    def forward(self, x):
        return self.last(x + self.body(x))


def make():
    blocks = (Block({channels}) for _ in range({blocks}))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear({channels}, 10))
    return nn.Sequential(nn.Conv2d(3, {channels}, 3, padding=1), *blocks, *head)
"""


def measure(blocks: int, channels: int, size: int, processes: int, folder: Path) -> dict[str, launches.Launch]:
    """Write the network's files into a folder, and launch it by every route."""
    file = folder / "net.py"
    file.write_text(NET.format(blocks=blocks, channels=channels), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("net", file)
    net = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(net)
    torch.manual_seed(0)
    model = net.make().eval()
    x = np.random.default_rng(0).normal(size=(1, 3, size, size)).astype(np.float32)
    prepare(model, x, folder)
    with torch.no_grad():
        truth = model(torch.from_numpy(x)).numpy()
    measured = launches.measure(launches.PORTABLE, folder, processes=processes, on=device.cpu())
    for launch in measured.values():
        checks.assert_close(truth, launch.output, "float32")
    return measured


def prepare(model: torch.nn.Module, x: np.ndarray, folder: Path) -> None:
    """Write the files that the routes read, besides ``net.py``, for a model in evaluation mode."""
    example = torch.from_numpy(x)
    launches.store(model, x, folder)
    with torch.no_grad():
        exported = torch.export.export(model, (example,))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "model.pt2"))
    converters.export_onnx(model, example, folder / "model.onnx")


def bar(measured: dict[str, launches.Launch]) -> list[str]:
    """Both splits, and whether the package is as much sooner as it should be."""
    lines = []
    for name in (AOT, COLD):
        parts = (f"{stage} {launches.spread(part)}" for stage, part in measured[name].parts.items())
        lines.append(f"{name}: {', '.join(parts)}")
    sooner = launches.compare(measured, AOT, COLD)
    met = "met" if sooner.median >= BAR else "MISSED"
    return [*lines, f"{met}: {units.times(sooner.median)} times sooner, wanted {BAR:g}; {sooner}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--processes", type=int, default=6)
    given = parser.parse_args()
    print(f"{given.blocks} blocks of {given.channels} channels on {device.cpu().label}", flush=True)
    out = paths.BUILD / "bars"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(given.blocks, given.channels, given.size, given.processes, Path(folder))
    for name, launch in measured.items():
        print(f"{name:26}", *(f"{stage} {launches.spread(part)};" for stage, part in launch.parts.items()))
    print(*bar(measured), sep="\n")
    launches.picture(measured.values(), heading=f"A ResNet of {given.blocks} blocks").savefig(out / "launch_time.png")
    described = {
        "results": [asdict(part) for launch in measured.values() for part in launch.measurements()],
        "machine": json.loads(machine.describe().to_json()),
    }
    (out / "launch_time.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
    print(f"saved in {out / 'launch_time.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
