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

    classes = torch.arange(2)
    return (
        resnet50(),
        torch.randn(2, 3, 224, 224),
        lambda scores: nn.functional.cross_entropy(scores, classes),
    )


def whisper() -> Any:
    """The encoder of Whisper, in the sizes of "tiny": 30 seconds of sound."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
    }
    return WhisperEncoder(WhisperConfig(**sizes)), torch.randn(1, 80, 3000)


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        across = self.enter(x).relu()
        below = nn.functional.silu(self.norm(self.down(across)))
        return self.leave(torch.cat([across, self.up(below)], 1))


def unet() -> Any:
    """A block of a UNet, down and up again."""
    return UNet(), torch.randn(2, 3, 64, 64)


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.letters = nn.LSTM(40, 64, 2, bidirectional=True), nn.Linear(128, 29)

    def forward(self, x: Tensor) -> Tensor:
        return self.letters(self.lstm(x)[0]).log_softmax(-1)


def speech() -> Any:
    """An LSTM with a CTC loss, time first as both want it."""
    targets, steps, letters = (
        torch.randint(1, 29, (4, 10)),
        torch.full((4,), 50),
        torch.full((4,), 10),
    )
    return (
        Speech(),
        torch.randn(50, 4, 40),
        lambda scores: nn.functional.ctc_loss(scores, targets, steps, letters),
    )


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

    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
    }
    tokens = torch.randint(1, 999, (4, 32))
    mask = torch.ones_like(tokens)
    mask[1, 20:] = 0
    return BertModel(BertConfig(**sizes, vocab_size=1000)), {
        "input_ids": tokens,
        "attention_mask": mask,
    }


class Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.message, self.leave = (
            nn.Linear(16, 32),
            nn.Linear(64, 32),
            nn.Linear(32, 3),
        )

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.enter(nodes).relu()
        source, target = edges
        message = self.message(torch.cat([x[source], x[target]], -1)).relu()
        arrived = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(message), message)
        counts = torch.zeros(len(x), device=x.device).index_add_(
            0, target, torch.ones_like(message[:, 0])
        )
        return self.leave(arrived / counts.clamp(min=1)[:, None])


def graph() -> Any:
    """Messages along edges, added up where they arrive."""
    return Messages(), (torch.randn(100, 16), torch.randint(0, 100, (2, 400)))


class Sound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.conv, self.head = nn.Conv1d(129, 32, 5, padding=2), nn.Linear(32, 8)

    def forward(self, wave: Tensor) -> Tensor:
        spectrum = torch.stft(wave, 256, hop_length=128, window=self.window, return_complex=True)
        return self.head(self.conv((spectrum.abs() + 1e-6).log()).relu().mean(-1))


def sound() -> Any:
    """Sound into classes, by its spectrogram."""
    return Sound(), torch.randn(4, 16000)


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 9, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x) * self.weight


def waves() -> Any:
    """Complex numbers: weights, and the output."""
    return Waves(), torch.randn(8, 16)


def compiled() -> Any:
    """As `torch.compile` returns it."""
    return torch.compile(
        nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    ), torch.randn(8, 16)


class Boxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(50, 16), nn.Linear(20, 16)

    def forward(self, words: Tensor, where: Tensor, hidden: Tensor) -> dict[str, Any]:
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
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
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
    "vit", "convnext", "bert", "graph", "sound", "waves", "compiled", "boxes", "classes", "mixture", "half",
)  # fmt: skip

# ---- with a planted fault -------------------------------------------------------------------------------------------


def volumes() -> Any:
    """An operator that has no MPS kernel."""
    return nn.Sequential(nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(2)), torch.randn(1, 1, 6, 6, 6)


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
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
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Linear(8, 8), Function(lambda x: x * 1e-6), nn.Linear(8, 4)
    )
    for layer in model[:2]:
        nn.init.constant_(layer.weight, 100.0)
    return model, torch.ones(2, 8)


def too_large() -> Any:
    """Weights that do not fit into a machine with 0.1 GB."""
    return nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)), torch.randn(
        8, 2048
    )


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("scale", torch.linspace(0, 1, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
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

# ---- the runner -----------------------------------------------------------------------------------------------------


def examined(name: str, minutes: float) -> tuple[float, float, dict[str, Any], str]:
    """Seconds that the command takes on a model, and those of processors, its JSON (empty if none), its last words."""
    out = OUT / "doctor" / name
    (out / "doctor.json").unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "metallab",
        "doctor",
        f"doctor_models:{name}",
        "--out",
        str(out),
    ]
    command += ["--minutes", str(minutes), "--memory", "0.1GB" if name == "too_large" else "16GB"]
    path = os.pathsep.join(
        [str(Path(__file__).parent), str(ROOT / "utils"), os.environ.get("PYTHONPATH", "")]
    )
    environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}
    began, worked = time.perf_counter(), _worked()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - began
    written = out / "doctor.json"
    report = json.loads(written.read_text()) if written.exists() else {}
    return seconds, _worked() - worked, report, (done.stdout + done.stderr)[-2000:]


def _worked() -> float:
    """Processor seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def complaints(name: str, seconds: float, report: dict[str, Any], words: str) -> list[str]:
    """What is wrong with a report: each thing in a line."""
    if not report:
        return [f"there is no report: {words}"]
    wrong = [f"it took {seconds:.0f} s"] if seconds > LIMIT else []
    number, status, expected = FAULTS.get(name, (0, "", ""))
    for n, answer in enumerate(report["answers"], 1):
        if answer["status"] == "skipped" or not answer["sentence"]:
            wrong.append(f"{n} is not answered: {answer['sentence']}")
        elif "there was no time" in answer["sentence"].lower():
            wrong.append(f"{n} is not reached: {answer['sentence']}")
        elif answer["status"] == "failed" and n != number:
            wrong.append(f"{n} accuses: {answer['sentence']}")
        elif n == number and (answer["status"], expected in answer["sentence"]) != (status, True):
            wrong.append(f"{n} does not say {expected!r}: {answer['sentence']}")
    return wrong


def main() -> int:
    """Examine the models that are named, or all."""
    known = (*BARS, *KINDS, *FAULTS)
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/doctor_models.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; all if none is named")
    parser.add_argument("--minutes", type=float, default=3.0)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"there is no model {unknown[0]}: name one of {', '.join(known)}")
    kept = {}
    for name in given.names or known:
        seconds, worked, report, words = examined(name, given.minutes)
        wrong = complaints(name, seconds, report, words)
        kept[name] = {
            "seconds": round(seconds, 1),
            "processor": round(worked, 1),
            "wrong": wrong,
            "report": report,
        }
        print(
            f"{name}: {seconds:.0f} s, {worked:.0f} s of processors, {'; '.join(wrong) or 'well'}"
        )
        for n, answer in enumerate(report.get("answers", ()), 1):
            print(
                f"   {n} {answer['status']}, {answer['seconds']:.0f} s: {answer['sentence']}",
                flush=True,
            )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "doctor_models.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, each in kept.items() if each["wrong"]]
    print(f"{len(kept)} models, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
