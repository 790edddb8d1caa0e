"""Sound models of other people: does `metallab.pytorch.divergence` accuse any of their operators?

    python tests/benchmarks/sound_models.py [NAME ...]

Thirty models of torchvision, timm and transformers with random weights and small inputs: forward, backward and a step
of SGD, on the CPU and on the simulated Apple GPU. Nothing is wrong with any of them, so whoever is accused is accused
wrongly. Of each is told how many calls were compared, the largest difference that counted as rounding, and what was not
compared. Ends with code 1 if one is accused, or cannot be asked.

In November 2026 (PyTorch 2.15, torchvision 0.29.2, timm 1.0.31, transformers 5.23) none of the 60 was accused; rounding
went up to 0.00003 of the root mean square, in MNASNet. Every call could be compared.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
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
SMALL = {
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

Made = tuple[nn.Module, Any]


def seen(make: Callable[[], nn.Module], size: int = IMAGE) -> Made:
    return make(), (torch.randn(2, 3, size, size),)


def read(name: str) -> Made:
    """A model of transformers, with a text of 12 tokens."""
    transformers = importlib.import_module("transformers")
    settings = getattr(transformers, f"{name}Config")(**TRANSFORMERS[name], pad_token_id=0)
    tokens = torch.randint(1, 99, (2, 12))
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if name == "T5":
        given["decoder_input_ids"] = tokens
    return getattr(transformers, f"{name}Model")(settings), given


def models() -> dict[str, Callable[[], Made]]:
    """What makes each model with its inputs, by name."""
    made: dict[str, Callable[[], Made]] = {}
    for name in TRANSFORMERS:
        made[f"transformers {name}"] = functools.partial(read, name)
    for name in TIMM:
        sized = {"img_size": IMAGE} if name == "test_vit" else {}
        made[f"timm {name}"] = functools.partial(
            seen, functools.partial(timm.create_model, name, **sized)
        )
    for name in TORCHVISION:
        model = functools.partial(torchvision.models.get_model, name, weights=None)
        made[f"torchvision {name}"] = functools.partial(seen, model)
    return made


def main(names: list[str]) -> int:
    accused = 0
    made = {
        name: make
        for name, make in models().items()
        if not names or any(word in name for word in names)
    }
    for name, make in made.items():
        for on in (device.cpu(), device.pick("sim")):
            torch.manual_seed(0)
            where = "simulated" if on.simulated else "CPU"
            try:
                with warnings.catch_warnings(action="ignore"):
                    model, inputs = make()
                    report = divergence.find(
                        model.train(), inputs, optimizer=torch.optim.SGD, on=on
                    )
            except Exception as problem:  # noqa: BLE001 - whatever another's model raises is told, and counts
                accused += 1
                print(f"{name}, {where}: RAISED {units.first_line(problem, kind=True)}", flush=True)
                continue
            accused += report.kind != "agrees"
            left_out = list(report.not_compared)
            if report.layers_not_compared is not None:
                left_out.append("layers")
            told = f"{report.compared} calls, rounding {report.largest:.0e}"
            if left_out:
                told += f", not compared: {', '.join(left_out)}"
            print(f"{name}, {where}: {report if report.divergent_call else told}", flush=True)
    print(f"{accused} of {2 * len(made)} accused or not asked, {len(made)} models")
    return 1 if accused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
