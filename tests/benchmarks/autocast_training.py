"""Does autocast pay on this machine? Steps of training in float32, in float16 with a scaler, and in bfloat16.

    python tests/benchmarks/autocast_training.py

Every format runs in the faster of two memory layouts of its own.

On a GPU: torchvision's ResNet-50 with 64 pictures of 224 x 224 pixels, scikit-learn's digits enlarged. Told are the
speed-up over float32, the peak memory of a step with all that model and optimizer hold, and the loss after some
training from several seeds. Bars, on an NVIDIA H200: both small formats are faster, need at most 60 % of the memory,
and end within the losses that float32 reaches from its seeds.

On a CPU: `networks.cnn` with more and more channels, 32 pictures of 32 x 32 pixels. Bar, on one with AVX512-BF16: from
64 channels on bfloat16 is at least 1.5 times as fast.

Prints ratios and whether they reach the bars, and ends with code 0 either way. Wants a quiet machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metallab import checks, device, memory, timing, units
from metallab.pytorch import networks, precision

FORMATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
MEMORY_BAR, CPU_BAR, CPU_CHANNELS = 0.60, 1.5, 64
SEEDS, STEPS, LAST = 5, 40, 10

Batch = tuple[Tensor, Tensor]


def make_step(model: nn.Module, name: str, rate: float = 1e-3) -> Callable[[Tensor, Tensor], Tensor]:
    """One step of AdamW under autocast, with a learning rate; a scaler for float16."""
    place, dtype = next(model.parameters()).device.type, FORMATS[name]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler(place, enabled=dtype == torch.float16)

    def step(images: Tensor, classes: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(place, dtype=dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(images), classes)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


@dataclass(frozen=True)
class Job:
    """Training steps of a network in a format, on a device."""

    lab: device.Device
    name: str
    build: Callable[[int], nn.Module]
    """A fresh network, from a seed."""
    batch: Batch

    def step(self, layout: torch.memory_format) -> Callable[[], Tensor]:
        """A step on the batch that leaves the weights as they are, however often it is made.

        With a learning rate above 0 a network learns one batch by heart. Its gradients then become subnormal numbers,
        with which CPUs compute up to ten times as long: in float32 alone, which made bfloat16 look ten times as fast.
        """
        model = self.build(0).to(self.lab.torch_device, memory_format=layout)
        images, classes = self.batch
        return functools.partial(
            make_step(model, self.name, rate=0.0), images.contiguous(memory_format=layout), classes
        )

    @functools.cached_property
    def layout(self) -> str:
        """The faster one."""
        return precision.faster_layout(self.step, on=self.lab)

    def peak(self) -> int:
        """Bytes at the peak of a step, with weights, gradients, the optimizer's state and the batch."""
        step = self.step(precision.LAYOUTS[self.layout])
        for _ in range(3):  # until the optimizer has its state, and the scale fits
            step()
        start = torch.accelerator.memory_allocated()
        with memory.peak(on=self.lab) as used:
            step()
        return start + used.bytes

    def losses(self, batches: list[Batch]) -> np.ndarray:
        """The mean loss of the last steps, for each seed."""
        layout, reached = precision.LAYOUTS[self.layout], []
        for seed in range(SEEDS):
            step = make_step(self.build(seed).to(self.lab.torch_device, memory_format=layout), self.name)
            turns = (batches[number % len(batches)] for number in range(STEPS))
            losses = [step(images.contiguous(memory_format=layout), classes) for images, classes in turns]
            reached.append(torch.stack(losses[-LAST:]).mean().item())
        return np.array(reached)


def compare(jobs: list[Job], name: str) -> timing.Comparison:
    """The jobs side by side, each in its faster layout."""
    return timing.compare(
        {job.name: job.step(precision.LAYOUTS[job.layout]) for job in jobs},
        on=jobs[0].lab,
        baseline="float32",
        parity={job.name: checks.matches(job.name) for job in jobs},
        question="throughput",
        name=name,
    )


def resnet(seed: int) -> nn.Module:
    import torchvision

    torch.manual_seed(seed)
    return torchvision.models.resnet50(weights=None, num_classes=10)


def enlarged_digits(lab: device.Device) -> list[Batch]:
    """Batches of 64 digits of 224 x 224 in three equal channels, with their classes."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    small = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    parts = zip(small.split(64)[: STEPS // 2], torch.tensor(classes).split(64), strict=False)
    enlarge = lambda part: F.interpolate(part.to(lab.torch_device), size=224).expand(-1, 3, -1, -1).contiguous()
    return [(enlarge(part), known.to(lab.torch_device)) for part, known in parts]


def on_a_gpu(lab: device.Device) -> None:
    """ResNet-50: time, memory, loss."""
    torch.backends.cudnn.allow_tf32 = False  # float32 shall mean float32
    print(f"ResNet-50, training, 64 pictures of 224 x 224, on {lab.label}, PyTorch {torch.__version__}")
    jobs = {name: Job(lab, name, resnet, enlarged_digits(lab)[0]) for name in FORMATS}
    compared = compare(list(jobs.values()), "ResNet-50")
    print(compared)
    peaks = {name: job.peak() for name, job in jobs.items()}
    batches = enlarged_digits(lab)
    losses = {name: job.losses(batches) for name, job in jobs.items()}
    low, high = losses["float32"].min(), losses["float32"].max()
    print(f"float32, {jobs['float32'].layout}: peak {units.size(peaks['float32'])}")
    print(f"  loss {low:.4g} to {high:.4g} over {SEEDS} seeds")
    for name in ("float16", "bfloat16"):
        ratio, share, loss = compared.ratios.get(name), peaks[name] / peaks["float32"], losses[name].mean()
        apart = np.abs(losses[name] - losses["float32"]).mean()
        held = {
            "faster": ratio is not None and ratio.verdict == "faster",
            f"at most {MEMORY_BAR:.0%} of the memory": share <= MEMORY_BAR,
            "loss within the seeds' spread": low <= loss <= high,
        }
        print(f"{name}, {jobs[name].layout}: {ratio or compared.withheld[name]}")
        print(f"  peak {units.size(peaks[name])}, {share:.0%} of float32's")
        print(f"  loss {loss:.4g} (mean of seeds), from each seed {apart:.2g} apart from float32's on average")
        print("  " + "; ".join(f"{'MET' if met else 'MISSED'}: {bar}" for bar, met in held.items()))


def on_a_cpu(lab: device.Device) -> None:
    """A small convolutional network, by its channels."""
    native = torch.cpu._is_avx512_bf16_supported()
    print(f"CNN, training, 32 pictures of 32 x 32, on {lab.label}, PyTorch {torch.__version__}")
    print(f"AVX512-BF16: {'yes' if native else 'no, so that the bar is not for this processor'}")
    for channels in (8, 16, 32, 64, 128):
        network = networks.cnn(batch=32, channels=channels, size=32)
        batch = network.inputs[0], torch.arange(32) % 10
        build = lambda seed, network=network: network.to("cpu").model
        jobs = [Job(lab, name, build, batch) for name in ("float32", "bfloat16")]
        compared = compare(jobs, f"CNN, {channels} channels")
        ratio = compared.ratios.get("bfloat16")
        flags = ", ".join(sorted({flag for measured in compared.measurements.values() for flag in measured.flags}))
        layouts = ", ".join(f"{job.name} {job.layout}" for job in jobs)
        print(f"{channels:4} channels: {ratio or compared.withheld['bfloat16']}; {layouts} [{flags or 'no flags'}]")
        if native and channels >= CPU_CHANNELS:
            met = ratio is not None and ratio.median >= CPU_BAR
            print(f"      {'MET' if met else 'MISSED'}: at least {CPU_BAR:g} times as fast")


def main() -> None:
    lab = device.pick()
    if lab.simulated:
        print("Nothing is timed on a simulated GPU: run this without METALLAB_DEVICE=sim.")
    elif lab.kind == "cpu":
        on_a_cpu(lab)
    else:
        on_a_gpu(lab)


if __name__ == "__main__":
    main()
