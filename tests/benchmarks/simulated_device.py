"""What the simulated Apple GPU costs: switching it on, and running on it beside the CPU that computes for it.

    python tests/benchmarks/simulated_device.py

Targets (`TARGETS`): install under 1 s beside the import of torch, once the device is built; a notebook's workloads at
most 3 times as long as on the CPU. The two sides of a workload take turns, and the ratio is the median over the rounds.
Ends with code 1 beyond a target: run it on a quiet machine. How long a small operator takes is told and has no target.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import metalsim

metalsim.install_with_torch()

import torch  # noqa: E402 - the simulation comes first
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

TARGETS = {"install": 1.0, "workload": 3.0}
ROUNDS = 7
INSTALL = """
import time, metalsim
start = time.perf_counter()
metalsim.arm()
armed = time.perf_counter()
import torch
imported = time.perf_counter()
metalsim.install()
print(armed - start + time.perf_counter() - imported)
"""


def training(
    model: Callable[[], nn.Module], shape: tuple[int, ...], steps: int
) -> Callable[[str], Callable[[], float]]:
    """A workload: training steps on random data, with the loss read at the end of each."""

    def on(place: str) -> Callable[[], float]:
        torch.manual_seed(0)
        net = model().to(place)
        optimiser = torch.optim.AdamW(net.parameters(), 1e-3)
        x, y = torch.randn(shape).to(place), torch.randint(10, shape[:1]).to(place)

        def run() -> float:
            for _ in range(steps):
                loss = F.cross_entropy(net(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                last = loss.item()
            return last

        return run

    return on


def inference(model: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[[str], Callable[[], float]]:
    """A workload: forward passes without gradients, and the result on the CPU."""

    def on(place: str) -> Callable[[], float]:
        net, x = model().eval().to(place), torch.randn(shape).to(place)

        def run() -> float:
            with torch.inference_mode():
                return sum(float(net(x).cpu().sum()) for _ in range(5))

        return run

    return on


def small_operators(place: str) -> Callable[[], float]:
    """A thousand additions of a few numbers: nothing but overhead."""
    x = torch.ones(16, device=place)

    def run() -> float:
        y = x
        for _ in range(1000):
            y = y + x
        return y[0].item()

    return run


def mlp() -> nn.Module:
    """The network of the talk: 784-256-256-256-10 with Softshrink."""
    layers = [nn.Linear(784, 256), nn.Softshrink(), nn.Linear(256, 256), nn.Softshrink(), nn.Linear(256, 256)]
    return nn.Sequential(*layers, nn.Softshrink(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    """A small convolutional network for 32 x 32 pictures."""
    block = lambda i, o: [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*block(3, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 64, 10))


class Encoder(nn.Module):
    """Two Transformer layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.encode, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(x).mean(1))


WORKLOADS = {
    "train MLP, batch 256": training(mlp, (256, 784), 5),
    "train CNN, batch 32": training(cnn, (32, 3, 32, 32), 2),
    "train Transformer, 16 x 64": training(Encoder, (16, 64, 64), 2),
    "infer CNN, batch 8": inference(cnn, (8, 3, 32, 32)),
    "matmul 512": lambda place: (lambda a: lambda: (a @ a).sum().item())(torch.randn(512, 512).to(place)),
}


def seconds(run: Callable[[], float]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def ratio(workload: Callable[[str], Callable[[], float]]) -> tuple[float, float, float]:
    """Median seconds on the CPU and on the device, and the median ratio of the rounds."""
    sides = {place: workload(place) for place in ("cpu", "mps")}
    for run in sides.values():
        run()
    rounds = [{place: seconds(run) for place, run in sides.items()} for _ in range(ROUNDS)]
    cpu, mps = (statistics.median(one[place] for one in rounds) for place in sides)
    return cpu, mps, statistics.median(one["mps"] / one["cpu"] for one in rounds)


def install_seconds() -> float:
    """Median over processes of their own; the import of torch is taken out."""
    runs = (
        subprocess.run([sys.executable, "-c", INSTALL], capture_output=True, text=True, check=True) for _ in range(3)
    )
    return statistics.median(float(done.stdout.split()[-1]) for done in runs)


def main() -> int:
    beyond = []
    took = install_seconds()
    print(f"arm and install: {took:.2f} s (target {TARGETS['install']:.0f} s)")
    if took > TARGETS["install"]:
        beyond.append("install")
    print(f"{'workload':<28} {'cpu':>10} {'simulated':>10} {'ratio':>6}")
    for name, workload in WORKLOADS.items():
        cpu, mps, factor = ratio(workload)
        print(f"{name:<28} {cpu * 1e3:7.1f} ms {mps * 1e3:7.1f} ms {factor:6.2f}", flush=True)
        if factor > TARGETS["workload"]:
            beyond.append(name)
    cpu, mps, factor = ratio(small_operators)
    print(f"{'one addition of 16 numbers':<28} {cpu * 1e3:7.2f} us {mps * 1e3:7.2f} us {factor:6.2f} (no target)")
    if beyond:
        print(f"BEYOND the target: {', '.join(beyond)}; is the machine quiet?")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
