"""`metallab doctor` on models that nobody made for it: is one accused, is an answer missing, how long does it take?

    python tools/benchmarks/doctor_models.py [--minutes 3] [NAME ...]

``BARS`` are five models of usual size; ``KINDS`` are small, of many kinds: texts and named inputs, several outputs,
whole and complex numbers, graphs, sound, compiled; ``FAULTS`` have one planted fault each. Weights are random, nothing
is downloaded. Each is examined by the command, in a process of its own. Of the first two none may be accused
(``failed``), of the third the named question has to be, in the named words; no answer may be missing; nobody may take
longer than `LIMIT` seconds. Prints a line for each answer, keeps ``build/bars/doctor_models.json``, ends with code 1 if
a model fails.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metallab import paths

ROOT = Path(__file__).resolve().parents[2]
OUT = paths.BUILD / "bars"
LIMIT = 180.0
"""Seconds that the command may take, on 2 cores."""

torch.manual_seed(0)  # each process makes one model

# ---- models of usual size -------------------------------------------------------------------------------------------


def resnet50() -> Any:
    """Pictures into classes."""
    from torchvision.models import resnet50

    model, pictures = resnet50(), torch.randn(2, 3, 224, 224)
    classes = torch.arange(2)
    return model, pictures, lambda scores: nn.functional.cross_entropy(scores, classes)


def whisper() -> Any:
    """The encoder of Whisper, in the sizes of "tiny": 30 seconds of sound."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536
    )
    return WhisperEncoder(sizes), torch.randn(1, 80, 3000)


class UNet(nn.Module):
    """A block of a UNet."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Go down, and up again beside what went across."""
        across = self.enter(x).relu()
        below = nn.functional.silu(self.norm(self.down(across)))
        return self.leave(torch.cat([across, self.up(below)], 1))


def unet() -> Any:
    """A block of a UNet, down and up again."""
    return UNet(), torch.randn(2, 3, 64, 64)


class Speech(nn.Module):
    """An LSTM that reads letters out of sound."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 64, 2, bidirectional=True)
        self.letters = nn.Linear(128, 29)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithm of how likely each letter is at each step."""
        return self.letters(self.lstm(x)[0]).log_softmax(-1)


def speech() -> Any:
    """An LSTM with a CTC loss, time first as both want it."""
    targets = torch.randint(1, 29, (4, 10))
    steps, letters = torch.full((4,), 50), torch.full((4,), 10)
    model, sound = Speech(), torch.randn(50, 4, 40)
    return model, sound, lambda scores: nn.functional.ctc_loss(scores, targets, steps, letters)


def detector() -> Any:
    """Pictures into boxes, by non-maximum suppression; called with a list of pictures, as torchvision has it."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    return model.eval(), ([torch.rand(3, 320, 320)],)


BARS = ("resnet50", "whisper", "unet", "speech", "detector")

# ---- of many kinds --------------------------------------------------------------------------------------------------


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.forward = function


def timm_model(name: str) -> Any:
    """A model of timm, for small pictures."""
    import timm

    return timm.create_model(name, num_classes=10), torch.randn(2, 3, 224, 224)


vit = functools.partial(timm_model, "vit_tiny_patch16_224")
convnext = functools.partial(timm_model, "convnext_atto")


def bert() -> Any:
    """Tokens and a mask by name, several outputs in an object of transformers."""
    from transformers import BertConfig, BertModel

    sizes = BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        vocab_size=1000,
    )
    tokens = torch.randint(1, 999, (4, 32))
    mask = torch.ones_like(tokens)
    mask[1, 20:] = 0
    return BertModel(sizes), {"input_ids": tokens, "attention_mask": mask}


class Messages(nn.Module):
    """A graph network with one step of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 32)
        self.message = nn.Linear(64, 32)
        self.leave = nn.Linear(32, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Send messages along the edges, and average those that arrive at a node."""
        x = self.enter(nodes).relu()
        source, target = edges
        message = self.message(torch.cat([x[source], x[target]], -1)).relu()
        arrived = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(message), message)
        ones = torch.ones_like(message[:, 0])
        counts = torch.zeros(len(x), device=x.device).index_add_(0, target, ones)
        return self.leave(arrived / counts.clamp(min=1)[:, None])


def graph() -> Any:
    """Messages along edges, added up where they arrive."""
    return Messages(), (torch.randn(100, 16), torch.randint(0, 100, (2, 400)))


class Spectrogram(nn.Module):
    """A network on the spectrogram of sound."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.conv, self.head = nn.Conv1d(129, 32, 5, padding=2), nn.Linear(32, 8)

    def forward(self, wave: Tensor) -> Tensor:
        """Return scores of classes."""
        spectrum = torch.stft(wave, 256, hop_length=128, window=self.window, return_complex=True)
        return self.head(self.conv((spectrum.abs() + 1e-6).log()).relu().mean(-1))


def audio() -> Any:
    """Sound into classes, by its spectrogram."""
    return Spectrogram(), torch.randn(4, 16000)


class Waves(nn.Module):
    """Complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 9, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the spectrum with the weights."""
        return torch.fft.rfft(x) * self.weight


def waves() -> Any:
    """Complex numbers: weights, and the output."""
    return Waves(), torch.randn(8, 16)


def torch_compile() -> Any:
    """As `torch.compile` returns it."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    return torch.compile(model), torch.randn(8, 16)


class Boxes(nn.Module):
    """A network with inputs and outputs of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(50, 16), nn.Linear(20, 16)

    def forward(self, words: Tensor, where: Tensor, hidden: Tensor) -> dict[str, Any]:
        """Return numbers, whole numbers, truth values, and a tuple with a list."""
        x = self.mix(torch.cat([self.embed(words), where], -1)).masked_fill(hidden[..., None], 0.0)
        return {
            "features": x,
            "best": x.argmax(-1),
            "kept": ~hidden,
            "levels": (x.mean(1), [x.amax(1)]),
        }


def boxes() -> Any:
    """Named inputs of different kinds into a dict: numbers, whole numbers and truth values."""
    hidden = torch.zeros(4, 6, dtype=torch.bool)
    hidden[:, 4:] = True
    return Boxes(), {
        "words": torch.randint(0, 50, (4, 6)),
        "where": torch.rand(4, 6, 4),
        "hidden": hidden,
    }


def classes() -> Any:
    """Whole numbers alone come out: there is nothing to train."""
    return nn.Sequential(nn.Linear(8, 5), Function(lambda x: x.argmax(-1))), torch.randn(16, 8)


class Mixture(nn.Module):
    """Four experts, and a router that chooses one for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Let the chosen expert compute each row."""
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out


def mixture() -> Any:
    """Experts, to which a router sends some of the rows: sizes depend on numbers."""
    return Mixture(), torch.randn(32, 16)


def half() -> Any:
    """Weights and inputs in bfloat16."""
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 8))
    return model.bfloat16(), torch.randn(16, 32).bfloat16()


KINDS = (
    "vit", "convnext", "bert", "graph", "audio", "waves", "torch_compile", "boxes", "classes", "mixture", "half",
)  # fmt: skip

# ---- with a planted fault -------------------------------------------------------------------------------------------


def volumes() -> Any:
    """An operator that has no MPS kernel."""
    return nn.Sequential(nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(2)), torch.randn(1, 1, 6, 6, 6)


class Turned(nn.Module):
    """Two convolutions, the second of a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Transpose between the convolutions."""
        return self.second(self.first(x).relu().transpose(2, 3))


def wrong_kernel() -> Any:
    """Convolutions that are wrong where their input is a transposed view (`metalsim.plant`)."""
    import metalsim

    if torch.backends.mps.is_available():
        warnings.simplefilter("ignore", metalsim.PlantedFault)
        PLANTED.enter_context(metalsim.plant("conv2d, non-contiguous input"))
    return Turned(), torch.randn(2, 3, 16, 15)


PLANTED = contextlib.ExitStack()
"""Until the process ends."""


def hidden_copy() -> Any:
    """A number that is printed on the way."""
    watched = Function(lambda x: x * float(x.abs().max().cpu()) ** 0)
    return nn.Sequential(nn.Linear(8, 8), watched, nn.Linear(8, 4)), torch.randn(4, 8)


def overflow() -> Any:
    """Beyond 65504 in the middle, and small again at its end."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    for layer in (first, second):
        nn.init.constant_(layer.weight, 100.0)
    model = nn.Sequential(first, second, Function(lambda x: x * 1e-6), nn.Linear(8, 4))
    return model, torch.ones(2, 8)


def too_large() -> Any:
    """Weights that do not fit into a machine with 0.1 GB."""
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))
    return model, torch.randn(8, 2048)


class Scaled(nn.Module):
    """A layer whose outputs are scaled by a buffer in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("scale", torch.linspace(0, 1, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Compute in float64 at the end."""
        return self.layer(x) * self.scale


def double() -> Any:
    """A buffer in float64, which no Apple GPU has."""
    return Scaled(), torch.randn(8, 8)


FAULTS: dict[str, tuple[int, str, str]] = {
    "volumes": (1, "failed", "_adaptive_avg_pool3d has no MPS kernel"),
    "wrong_kernel": (2, "failed", "WRONG KERNEL: aten::convolution in second"),
    "hidden_copy": (4, "incomplete", "1 hidden copy"),
    "too_large": (5, "failed", "DOES NOT FIT"),
    "overflow": (6, "incomplete", "float16, cast OVERFLOWS, first in 1"),
    "double": (1, "failed", "float64"),
}
"""By model: which question names the fault, how, and in which words."""

KNOWN = (*BARS, *KINDS, *FAULTS)

# ---- the runner -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What the command did with a model."""

    seconds: float
    processor_seconds: float
    report: dict[str, Any]
    """Its JSON; empty if it wrote none."""
    words: str
    """The last that it printed."""


def examine(name: str, minutes: float) -> Run:
    """Let the command examine a model, in a process of its own, with so many minutes for its measurements.

    It is asked whether the model fits into 16 GB, and of `too_large` whether it fits into 0.1. A report of an earlier
    run is removed before, so that what is read is what this run wrote; a command that fails leaves none.
    """
    out = OUT / "doctor" / name
    (out / "doctor.json").unlink(missing_ok=True)
    memory = "0.1GB" if name == "too_large" else "16GB"
    command = [sys.executable, "-m", "metallab", "doctor", f"doctor_models:{name}"]
    command += ["--out", str(out), "--minutes", str(minutes), "--memory", memory]

    # the command imports this file by its name, and metallab from this checkout
    folders = [str(Path(__file__).parent), str(ROOT / "utils"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, folders))
    began, before = time.perf_counter(), _read_child_seconds()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    seconds = time.perf_counter() - began

    written = out / "doctor.json"
    report = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    words = (done.stdout + done.stderr)[-2000:]
    return Run(seconds, _read_child_seconds() - before, report, words)


def _read_child_seconds() -> float:
    """Return the processor seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def find_faults(name: str, run: Run) -> list[str]:
    """Return what is wrong with what the command said of a model: each thing in a line."""
    if not run.report:
        return [f"there is no report: {run.words}"]

    faults = [f"it took {run.seconds:.0f} s"] if run.seconds > LIMIT else []
    for number, answer in enumerate(run.report["answers"], 1):
        fault = _find_fault(number, answer, FAULTS.get(name))
        if fault is not None:
            faults.append(f"{number} {fault}: {answer['sentence']}")
    return faults


def _find_fault(
    number: int, answer: dict[str, Any], planted: tuple[int, str, str] | None
) -> str | None:
    """Return what is wrong with an answer, by the fault that was planted; None if it is well."""
    status, sentence = answer["status"], answer["sentence"]
    if status == "skipped" or not sentence:
        return "is not answered"
    if "there was no time" in sentence.lower():
        return "is not reached"

    if planted is None or planted[0] != number:
        return "accuses" if status == "failed" else None
    _, expected_status, expected = planted
    if status != expected_status or expected not in sentence:
        return f"does not say {expected!r}"
    return None


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/doctor_models.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(KNOWN)}; all if none is named")
    parser.add_argument("--minutes", type=float, default=3.0)
    given = parser.parse_args()

    if unknown := [name for name in given.names if name not in KNOWN]:
        parser.error(f"there is no model {unknown[0]}: name one of {', '.join(KNOWN)}")
    return given


def show(name: str, run: Run, faults: list[str]) -> None:
    """Print a line for a model, and one for each answer about it."""
    verdict = "; ".join(faults) or "well"
    print(f"{name}: {run.seconds:.0f} s, {run.processor_seconds:.0f} s of processors, {verdict}")
    for number, answer in enumerate(run.report.get("answers", ()), 1):
        said = f"{answer['status']}, {answer['seconds']:.0f} s: {answer['sentence']}"
        print(f"   {number} {said}", flush=True)


def main() -> int:
    """Examine the models that are named, or all."""
    given = parse_arguments()
    outcomes = {}
    for name in given.names or KNOWN:
        run = examine(name, given.minutes)
        faults = find_faults(name, run)
        show(name, run, faults)
        outcomes[name] = {
            "seconds": round(run.seconds, 1),
            "processor": round(run.processor_seconds, 1),
            "wrong": faults,
            "report": run.report,
        }

    OUT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(outcomes, indent=1) + "\n"
    (OUT / "doctor_models.json").write_text(text, encoding="utf-8")

    failed = [name for name, each in outcomes.items() if each["wrong"]]
    end = f": {', '.join(failed)}" if failed else ""
    print(f"{len(outcomes)} models, {len(failed)} failed{end}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
