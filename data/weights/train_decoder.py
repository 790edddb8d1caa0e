"""Train the decoder of notebooks 30 and 31 on Python's own help, in minutes on one large GPU.

``python data/weights/train_decoder.py``

A plain loop: AdamW, a warm-up and a cosine, dropout, mixed precision on a CUDA device. The text is small, so the
network soon knows it by heart; what is kept are the weights at the step where the validation part was predicted best.
At the end the file that was written is loaded again and judged on the test part, which nothing looked at before. A GPU
adds in no fixed order, so another run gives other weights, to be judged by their own score.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from metallab import paths
from metallab.language import corpus, decoder

WINDOW = 256
"""Characters in a training sequence."""

EVERY = 100
"""Steps from one look at the validation part to the next."""


# ---- the loop --------------------------------------------------------------------------------------------------------


def draw_batch(tokens: Tensor, size: int, random: torch.Generator) -> Tensor:
    """Return sequences from anywhere in the text, int64 (size, WINDOW + 1), on the device of ``tokens``."""
    starts = torch.randint(len(tokens) - WINDOW, (size, 1), generator=random)
    return tokens[(starts + torch.arange(WINDOW + 1)).to(tokens.device)]


def learning_rate(step: int, steps: int, highest: float) -> float:
    """Return the rate of a step: a straight rise over the first twentieth, then half a cosine to a hundredth."""
    rise = max(1, steps // 20)
    if step < rise:
        return highest * ((step + 1) / rise)
    share = (step - rise) / max(1, steps - rise)
    return highest * (0.01 + 0.495 * (1 + math.cos(math.pi * share)))


def train(
    text: corpus.Corpus, shape: decoder.Shape, device: torch.device, wish: argparse.Namespace
) -> tuple[decoder.Decoder, dict[str, object]]:
    """Train a decoder; return it at its best step, on the CPU, and what is to be said of how it was made.

    The best of the steps at which the validation part is looked at: each hundredth (`EVERY`), and the last. ValueError
    if none of them had a cost that is a number.
    """
    torch.manual_seed(wish.seed)
    random = torch.Generator().manual_seed(wish.seed)
    tokens = corpus.encode(text.training).to(device)
    model = decoder.Decoder(shape, wish.dropout).to(device)
    optimizer = make_optimizer(model)

    best, best_step = math.inf, 0
    best_weights: dict[str, Tensor] | None = None
    began = time.perf_counter()
    for step in range(wish.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, wish.steps, wish.rate)
        loss = take_step(model, optimizer, draw_batch(tokens, wish.batch, random))

        is_last = step + 1 == wish.steps
        if (step + 1) % EVERY and not is_last:
            continue
        cost = float(bits_per_character(model.eval(), text.validation).mean())
        show(step + 1, loss, cost, time.perf_counter() - began)
        # false for NaN, which so never becomes the best
        if cost < best:
            best, best_step = cost, step + 1
            best_weights = copy.deepcopy(model.state_dict())

    if best_weights is None:
        raise ValueError(
            "the validation part never had a cost that is a number: take a lower --rate"
        )
    model.load_state_dict(best_weights)
    seconds = round(time.perf_counter() - began)
    return model.cpu().eval(), {"best_step": best_step, "validation": best, "seconds": seconds}


def make_optimizer(model: decoder.Decoder) -> torch.optim.Optimizer:
    """Return AdamW, which lets matrices decay and leaves norms alone: a small scale is no simpler than another."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def take_step(
    model: decoder.Decoder, optimizer: torch.optim.Optimizer, sequences: Tensor
) -> Tensor:
    """Take one step on a batch and return its loss, in nats a character."""
    device = sequences.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = model.train()(sequences[:, :-1])
    loss = functional.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten())

    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def show(step: int, loss: Tensor, cost: float, seconds: float) -> None:
    """Print how far training has come."""
    learned = loss.item() / math.log(2)
    print(
        f"step {step}: {learned:.3f} bits a character, validation {cost:.3f}, {seconds:.0f} s",
        flush=True,
    )


@torch.no_grad()
def bits_per_character(model: decoder.Decoder, text: str) -> np.ndarray:
    """Return the bits that a character costs under a model, as on page 31: the mean of each passage, (passages,).

    0 if the model foresees all, log2(96) = 6.6 if nothing. All but the first half window counts.
    """
    half, tokens = WINDOW // 2, corpus.encode(text)
    starts = torch.arange(0, len(tokens) - WINDOW, half)
    passages = tokens[starts[:, None] + torch.arange(WINDOW + 1)]

    costs = []
    for part in passages.to(model.embedding.weight.device).split(64):
        logits = model(part[:, :-1])[:, half:].float().transpose(1, 2)
        costs.append(functional.cross_entropy(logits, part[:, half + 1 :], reduction="none").cpu())
    nats = torch.cat(costs).double().mean(1).numpy()
    return np.asarray(nats / math.log(2))


# ---- the file --------------------------------------------------------------------------------------------------------


def save(
    model: decoder.Decoder, path: str | Path, provenance: Mapping[str, object] | None = None
) -> str:
    """Write the weights in half precision, for `decoder.load`, and return the file's SHA-256.

    Parameters
    ----------
    model
        The decoder.
    path
        The file; its folder is made if it is not there.
    provenance
        What the file says of where the weights come from: anything that JSON can hold, by name.

    Raises
    ------
    ValueError
        A weight is not a finite number in half precision.
    """
    state = {
        name: weight.detach().half().cpu().contiguous()
        for name, weight in model.state_dict().items()
    }
    if lost := [name for name, weight in state.items() if not torch.isfinite(weight).all()]:
        raise ValueError(
            f"not finite in half precision, so not saved: {', '.join(lost[:3])}; train it anew"
        )

    metadata = {"shape": json.dumps(asdict(model.shape)), "characters": corpus.CHARACTERS}
    for name, value in (provenance or {}).items():
        metadata[name] = json.dumps(value)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path, metadata)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def describe_device(device: torch.device) -> str:
    """Return what a device is called in the record."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{device.type}, {platform.machine()}"


# ---- the command -----------------------------------------------------------------------------------------------------


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python data/weights/train_decoder.py", description=__doc__
    )
    add = parser.add_argument
    written = "folder for weights and record (default: %(default)s)"
    add("--out", type=Path, default=paths.BUILD / "decoder", help=written)
    add("--device", default=find_device(), help="cuda, mps or cpu (default: %(default)s)")

    add("--steps", type=int, default=800, help="training steps (default: %(default)s)")
    add("--batch", type=int, default=64, help="sequences a step (default: %(default)s)")
    add("--rate", type=float, default=2e-3, help="highest learning rate (default: %(default)s)")
    dropped = "share of activations that training leaves out (default: %(default)s)"
    add("--dropout", type=float, default=0.3, help=dropped)
    add("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")
    return parser.parse_args(given)


def find_device() -> str:
    """Return the accelerator, or the CPU if there is none."""
    accelerator = torch.accelerator.current_accelerator()
    is_there = torch.accelerator.is_available() and accelerator is not None
    return str(accelerator.type) if is_there else "cpu"


def main(given: list[str] | None = None) -> None:
    """Train, save, judge, and write down how it was done."""
    wish = parse_arguments(given)
    device = torch.device(wish.device)
    text = corpus.load()
    model, made = train(text, decoder.Shape(), device, wish)

    settings = ("steps", "batch", "rate", "dropout", "seed")
    provenance = {
        "script": "python data/weights/train_decoder.py",
        "text": corpus.SHA256,
        "date": date.today().isoformat(),
        "device": describe_device(device),
        "torch": torch.__version__,
        "settings": {name: getattr(wish, name) for name in settings},
        **made,
    }
    path = wish.out / decoder.WEIGHTS.name
    sha256 = save(model, path, provenance)

    score = bits_per_character(decoder.load(path, sha256), text.test)
    record = {"file": path.name, "sha256": sha256, **provenance, "test": float(score.mean())}
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"test: {score.mean():.4f} bits a character, {len(score)} passages")
    print(f"wrote {path} and {path.with_suffix('.json').name}; sha256 {sha256}")


if __name__ == "__main__":
    main()
