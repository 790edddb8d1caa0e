"""Sound models of other people: does `metallab.pytorch.divergence` accuse any of their operators?

    python tools/benchmarks/sound_models.py [NAME ...]

Thirty models of torchvision, timm and transformers with random weights and small inputs: forward, backward and a step
of SGD, on the CPU and on the simulated Apple GPU. Nothing is wrong with any of them, so whoever is accused is accused
wrongly. Of each is told how many calls were compared, the largest difference that counted as rounding, and what was not
compared. Ends with code 1 if one is accused, or cannot be asked.

In November 2026 (PyTorch 2.15, torchvision 0.29.2, timm 1.0.31, transformers 5.23) none of the 60 was accused; rounding
went up to 0.00003 of the root mean square, in MNASNet. Every call could be compared.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import metalsim

metalsim.install_with_torch()

import timm  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402
from torch import nn  # noqa: E402

from metallab import device, units  # noqa: E402
from metallab.pytorch import divergence  # noqa: E402

IMAGE = 64
TORCHVISION = (
    "resnet18", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
    "squeezenet1_0", "squeezenet1_1", "densenet121", "efficientnet_b0", "regnet_y_400mf", "mnasnet0_5",
)  # fmt: skip
TIMM = (
    "test_vit", "test_resnet", "test_efficientnet", "test_convnext", "test_byobnet", "resnet10t", "convnext_atto",
    "ghostnet_050", "lcnet_035", "mobilenetv4_conv_small",
)  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64},
    "Llama": {**SMALL, "num_key_value_heads": 2},
    "Qwen2": {**SMALL, "num_key_value_heads": 2},
    "Mistral": {**SMALL, "num_key_value_heads": 2},
    "Bert": SMALL,
    "Roberta": {**SMALL, "max_position_embeddings": 64},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 99},
    "T5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
}

Model = tuple[nn.Module, Any]
"""With its inputs."""


def make_for_pictures(make: Callable[[], nn.Module], size: int = IMAGE) -> Model:
    """Make a model, with two random pictures."""
    return make(), (torch.randn(2, 3, size, size),)


def make_for_texts(name: str) -> Model:
    """Make a model of transformers, with a text of 12 tokens."""
    transformers = importlib.import_module("transformers")
    settings = getattr(transformers, f"{name}Config")(**TRANSFORMERS[name], pad_token_id=0)
    tokens = torch.randint(1, 99, (2, 12))

    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if name == "T5":
        inputs["decoder_input_ids"] = tokens
    return getattr(transformers, f"{name}Model")(settings), inputs


def models() -> dict[str, Callable[[], Model]]:
    """Return what makes each model with its inputs, by name."""
    makers: dict[str, Callable[[], Model]] = {}
    for name in TRANSFORMERS:
        makers[f"transformers {name}"] = functools.partial(make_for_texts, name)

    for name in TIMM:
        size: dict[str, Any] = {"img_size": IMAGE} if name == "test_vit" else {}
        model = functools.partial(timm.create_model, name, **size)
        makers[f"timm {name}"] = functools.partial(make_for_pictures, model)

    for name in TORCHVISION:
        model = functools.partial(torchvision.models.get_model, name, weights=None)
        makers[f"torchvision {name}"] = functools.partial(make_for_pictures, model)
    return makers


def is_asked(name: str, words: Sequence[str]) -> bool:
    """Say whether a name holds one of the words; without words all are asked."""
    return not words or any(word in name for word in words)


def find_unknown(words: Sequence[str]) -> list[str]:
    """Return those of the words that no model's name holds."""
    all_names = "\n".join(models())
    return [word for word in words if word not in all_names]


def is_accused(name: str, make: Callable[[], Model], on: Any) -> bool:
    """Ask about a model on a device and print what came of it; say whether it is accused, or cannot be asked."""
    torch.manual_seed(0)
    where = "simulated" if on.simulated else "CPU"

    try:
        with warnings.catch_warnings(action="ignore"):
            model, inputs = make()
            report = divergence.find(model.train(), inputs, optimizer=torch.optim.SGD, on=on)
    except Exception as problem:  # noqa: BLE001 - whatever another's model raises is told, and counts
        print(f"{name}, {where}: RAISED {units.first_line(problem, kind=True)}", flush=True)
        return True

    if report.kind != "agrees":
        print(f"{name}, {where}: {report}", flush=True)
    else:
        print(f"{name}, {where}: {describe(report)}", flush=True)
    return report.kind != "agrees"


def describe(report: divergence.Report) -> str:
    """Say how much of a model was compared, and how far it was rounded."""
    left_out = list(report.not_compared)
    if report.layers_not_compared is not None:
        left_out.append("layers")

    line = f"{report.compared} calls, rounding {report.largest:.0e}"
    if left_out:
        line += f", not compared: {', '.join(left_out)}"
    return line


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask about the models; return 1 if one is accused, or cannot be asked, else 0.

    Raises
    ------
    SystemExit
        With 2 for a word that no model's name contains.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/benchmarks/sound_models.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="models whose name contains this; all without one"
    )
    words = parser.parse_args(arguments).names
    if unknown := find_unknown(words):
        parser.error(f"no model's name contains {', '.join(unknown)}")

    chosen = {name: make for name, make in models().items() if is_asked(name, words)}
    devices = (device.cpu(), device.pick("sim"))

    accused = sum(is_accused(name, make, on) for name, make in chosen.items() for on in devices)
    print(f"{accused} of {len(devices) * len(chosen)} accused or not asked, {len(chosen)} models")
    return 1 if accused else 0


if __name__ == "__main__":
    sys.exit(main())
