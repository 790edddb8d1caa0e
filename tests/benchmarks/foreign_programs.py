"""Programs of other projects on the simulated Apple GPU, as their makers' documentation writes them.

    python tests/benchmarks/foreign_programs.py [--python PYTHON] [PACKAGE ...]

Each runs twice, on the CPU and with ``device="mps"``, from the same seed and with weights drawn at random, and its
results are compared. PYTHON is one that has this project's torch and the packages; one that it lacks is named. Nothing
is downloaded. A package's programs run in a process of their own. Prints a Markdown table with versions, and ends with
code 1 if a program fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[2] / "metalsim" / "src"
AGREED = "agrees"
LIMIT = 1800  # seconds for the programs of one package
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
OFFLINE = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "PYTHONWARNINGS": "ignore"}

Program = Callable[[str], Any]
"""Given a device, it returns tensors, or lists and dictionaries of them."""


def outcome(program: Program, devices: tuple[str, str] = ("cpu", "mps")) -> str:
    """`AGREED`, or in a line why not: what the second device raised, or how its results differ from the first's."""
    import torch

    results = []
    for device in devices:
        torch.manual_seed(0)
        try:
            results.append([tensor.detach().cpu() for tensor in _tensors(program(device))])
        except Exception as error:  # noqa: BLE001 - somebody's program: whatever it raises is told
            return f"on {device}: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    first, second = results
    if not first or len(first) != len(second):
        return f"{len(first)} results on {devices[0]}, {len(second)} on {devices[1]}"
    try:
        torch.testing.assert_close(second, first, check_device=False, **CLOSE)
    except AssertionError as error:
        return f"differs: {' '.join(str(error).split())[:200]}"
    return AGREED


def _tensors(values: Any) -> list[Any]:
    """All tensors in nested lists and dictionaries."""
    import torch

    if isinstance(values, torch.Tensor):
        return [values]
    parts = values.values() if isinstance(values, Mapping) else values if isinstance(values, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def trained(model: Any, *inputs: Any) -> list[Any]:
    """What a model gives, and the gradients of its weights."""
    results = _tensors(model(*inputs))
    sum(tensor.float().square().mean() for tensor in results).backward()
    return [*results, *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def given(model: Any, *inputs: Any, **named: Any) -> Any:
    """What a model gives without gradients."""
    import torch

    with torch.no_grad():
        return model.eval()(*inputs, **named)


# ---- the programs, by package: each function gives their names and what to call --------------------------------------


def transformers() -> dict[str, Program]:
    import torch
    import transformers as package

    text = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    ours = {**text, "intermediate_size": 64}
    grouped = {**ours, "num_key_value_heads": 2}
    tokens = torch.arange(10).reshape(1, 10) + 3

    def of(name: str, config: str, settings: dict, **inputs: Any) -> Program:
        def program(device: str) -> Any:
            model = getattr(package, name)(getattr(package, config)(**settings)).to(device)
            return dict(given(model, **{key: value.to(device) for key, value in inputs.items()}))

        return program

    def generates(**how: Any) -> Program:
        def program(device: str) -> Any:
            config = package.GPT2Config(**gpt2, bos_token_id=0, eos_token_id=98)
            model = package.GPT2LMHeadModel(config).eval().to(device)
            return model.generate(tokens.to(device), max_new_tokens=8, pad_token_id=98, **how)

        return program

    picture = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    small_picture = {**vision, "image_size": 32, "patch_size": 8}
    speech = torch.linspace(-1, 1, 80 * 60).reshape(1, 80, 60)
    whisper = {
        "vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 30,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }  # fmt: skip
    gpt2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}
    mamba = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2}
    t5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return {
        "BERT": of("BertModel", "BertConfig", ours, input_ids=tokens),
        "GPT-2": of("GPT2Model", "GPT2Config", gpt2, input_ids=tokens),
        "Llama": of("LlamaForCausalLM", "LlamaConfig", grouped, input_ids=tokens),
        "Qwen2": of("Qwen2ForCausalLM", "Qwen2Config", grouped, input_ids=tokens),
        "Mistral": of("MistralForCausalLM", "MistralConfig", grouped, input_ids=tokens),
        "Mixtral": of("MixtralForCausalLM", "MixtralConfig", grouped, input_ids=tokens),
        "T5": of("T5ForConditionalGeneration", "T5Config", t5, input_ids=tokens, decoder_input_ids=tokens),
        "Whisper": of("WhisperModel", "WhisperConfig", whisper, input_features=speech, decoder_input_ids=tokens),
        "ViT": of("ViTModel", "ViTConfig", small_picture, pixel_values=picture),
        "CLIP, pictures": of("CLIPVisionModel", "CLIPVisionConfig", small_picture, pixel_values=picture),
        "Mamba": of("MambaModel", "MambaConfig", mamba, input_ids=tokens),
        "greedy generation": generates(do_sample=False),
        "beam search": generates(do_sample=False, num_beams=3),
    }  # fmt: skip


def timm() -> dict[str, Program]:
    import timm as package
    import torch

    names = (
        "resnet18", "mobilenetv3_small_050", "efficientnet_lite0", "convnext_atto", "regnetx_002", "densenet121",
        "repvgg_a0", "ghostnet_050", "mobilevit_xxs", "vit_tiny_patch16_224", "deit_tiny_patch16_224",
        "mixer_s32_224", "gmlp_ti16_224", "pit_ti_224", "xcit_nano_12_p16_224", "edgenext_xx_small",
    )  # fmt: skip

    def of(name: str) -> Program:
        def program(device: str) -> Any:
            model = package.create_model(name, num_classes=10).eval().to(device)
            size = 224 if "224" in name else 64
            return trained(model, torch.linspace(-1, 1, 3 * size * size).reshape(1, 3, size, size).to(device))

        return program

    return {f"{name}, forward and backward": of(name) for name in names}


def torchvision() -> dict[str, Program]:
    import torch
    from torchvision.models import detection, segmentation

    picture = torch.linspace(0, 1, 3 * 96 * 96).reshape(3, 96, 96)

    def detects(name: str) -> Program:
        def program(device: str) -> Any:
            model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5).to(device)
            return given(model, [picture.to(device)])

        return program

    def segments(device: str) -> Any:
        model = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
        return given(model.to(device), picture[None].to(device))["out"]

    # Not SSDLite: untrained it gives every box the same score, and the order of equals decides which are kept.
    names = ("fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_resnet50_fpn")
    return {name: detects(name) for name in names} | {"lraspp_mobilenet_v3_large": segments}


def diffusers() -> dict[str, Program]:
    import diffusers as package
    import torch

    noise = torch.linspace(-1, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)
    blocks = {"block_out_channels": (32, 32), "layers_per_block": 1, "norm_num_groups": 8}

    def unet() -> Any:
        kinds = {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        }
        return package.UNet2DModel(sample_size=16, **kinds, **blocks).eval()

    def denoises(device: str) -> Any:
        model, schedule = unet().to(device), package.DDIMScheduler()
        schedule.set_timesteps(4)
        sample = noise.to(device)
        for step in schedule.timesteps:
            sample = schedule.step(given(model, sample, step).sample, step, sample).prev_sample
        return sample

    def encodes(device: str) -> Any:
        model = package.AutoencoderKL(latent_channels=4, sample_size=16, **blocks).eval().to(device)
        with torch.no_grad():
            return model.decode(model.encode(noise.to(device)).latent_dist.mode()).sample

    return {
        "UNet, forward and backward": lambda device: trained(unet().to(device), noise.to(device), 1),
        "DDIM, 4 steps": denoises,
        "VAE": encodes,
    }


def ultralytics() -> dict[str, Program]:
    import torch
    from ultralytics import YOLO

    def of(name: str) -> Program:
        def program(device: str) -> Any:
            return given(
                YOLO(name).model.to(device), torch.linspace(0, 1, 3 * 64 * 64).reshape(1, 3, 64, 64).to(device)
            )[0]

        return program

    return {name: of(f"{name}.yaml") for name in ("yolov5n", "yolov8n", "yolo11n")}


def _regression() -> tuple[Any, Any, Any]:
    import torch

    x = torch.linspace(-1, 1, 64).reshape(32, 2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, x, x.sum(1, keepdim=True).sin()


def accelerate() -> dict[str, Program]:
    import torch
    from accelerate import Accelerator

    def trains(device: str) -> Any:
        model, x, y = _regression()
        accelerator = Accelerator(cpu=device == "cpu")
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
        model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
        assert accelerator.device.type == device
        for inputs, targets in data:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
        return list(model.parameters())

    def alone(device: str) -> Any:
        Accelerator._shared_state = {}
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
        return trains(device)

    return {"a training loop with Accelerator": alone}


def lightning() -> dict[str, Program]:
    import lightning as package
    import torch

    class Fits(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.x, self.y = _regression()

        def training_step(self, batch: Any, index: int) -> Any:
            return torch.nn.functional.mse_loss(self.inner(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    def fits(device: str) -> Any:
        model = Fits()
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(model.x, model.y), batch_size=8)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        package.Trainer(accelerator=device, devices=1, max_epochs=1, **quiet).fit(model, data)
        return list(model.parameters())

    return {"Trainer(accelerator='mps').fit, with --pretend processor": fits}


PACKAGES = {
    package.__name__: package
    for package in (transformers, timm, torchvision, diffusers, ultralytics, accelerate, lightning)
}


# ---- running them ----------------------------------------------------------------------------------------------------


def _child(package: str) -> None:
    """Runs the programs of a package in this process; a JSON line for each."""
    sys.path[:0] = [str(SOURCES)]
    sys.path.remove(str(Path(__file__).parent))
    import metalsim

    metalsim.install_with_torch(required=True)
    if package == "lightning":
        metalsim.pretend("processor")
    os.chdir(tempfile.mkdtemp())
    for name, program in PACKAGES[package]().items():
        print("\n" + json.dumps([name, outcome(program)]), flush=True)


def _ran(python: str, package: str) -> dict[str, str]:
    """What came of each program of a package."""
    command = [python, str(Path(__file__).resolve()), "--child", package]
    done = subprocess.run(command, env=os.environ | OFFLINE, capture_output=True, text=True, timeout=LIMIT, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    if done.returncode:
        lines.append(("the process", f"ended with {done.returncode}: {' '.join(done.stderr.split())[-200:]}"))
    return dict(lines)


def main() -> int:
    """1 if a program fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = f"of {', '.join(PACKAGES)}"
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"{names}; all by default")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the packages")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.packages) - set(PACKAGES):
        parser.error(f"no programs of {', '.join(unknown)}; there are those {names}")
    if arguments.child:
        _child(arguments.child)
        return 0
    print("| package | programs | agree with the CPU | others |\n|---|---|---|---|")
    failed = 0
    for package in arguments.packages or PACKAGES:
        asked = [arguments.python, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
        version = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if not version:
            print(f"| {package}, not installed | | | |", flush=True)
            continue
        outcomes = _ran(arguments.python, package)
        others = {name: why for name, why in outcomes.items() if why != AGREED}
        failed += len(others)
        told = "; ".join(f"{name}: {why}" for name, why in others.items())
        print(f"| {package} {version} | {len(outcomes)} | {len(outcomes) - len(others)} | {told} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
