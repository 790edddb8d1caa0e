"""Trains the decoder of notebooks 30 and 31 on Python's own help, in minutes on one large GPU.

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


def batch(tokens: Tensor, size: int, random: torch.Generator) -> Tensor:
    """Sequences from anywhere in the text, int64 (size, WINDOW + 1), on the device of ``tokens``."""
    starts = torch.randint(len(tokens) - WINDOW, (size, 1), generator=random)
    return tokens[(starts + torch.arange(WINDOW + 1)).to(tokens.device)]


def learning_rate(step: int, steps: int, highest: float) -> float:
    """A straight rise over the first twentieth, then half a cosine to a hundredth."""
    rise = max(1, steps // 20)
    share = (step - rise) / max(1, steps - rise)
    return highest * (
        (step + 1) / rise if step < rise else 0.01 + 0.495 * (1 + math.cos(math.pi * share))
    )


def train(
    text: corpus.Corpus, shape: decoder.Shape, device: torch.device, wish: argparse.Namespace
) -> tuple[decoder.Decoder, dict[str, object]]:
    """The decoder at its best step, on the CPU, and what is to be said of how it was made."""
    torch.manual_seed(wish.seed)
    random = torch.Generator().manual_seed(wish.seed)
    tokens = corpus.encode(text.training).to(device)
    model = decoder.Decoder(shape, wish.dropout).to(device)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    best, kept, best_step, started = math.inf, None, 0, time.perf_counter()
    for step in range(wish.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, wish.steps, wish.rate)
        sequences = batch(tokens, wish.batch, random)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model.train()(sequences[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % EVERY == 0 or step + 1 == wish.steps:
            cost = bits_per_character(model.eval(), text.validation).mean()
            seconds = time.perf_counter() - started
            learned = loss.item() / math.log(2)
            print(
                f"step {step + 1}: {learned:.3f} bits a character, validation {cost:.3f}, {seconds:.0f} s",
                flush=True,
            )
            if cost < best:
                best, kept, best_step = cost, copy.deepcopy(model.state_dict()), step + 1
    model.load_state_dict(kept)
    made = {
        "best_step": best_step,
        "validation": best,
        "seconds": round(time.perf_counter() - started),
    }
    return model.cpu().eval(), made


@torch.no_grad()
def bits_per_character(model: decoder.Decoder, text: str) -> np.ndarray:
    """Bits that a character of ``text`` costs under ``model``, as on page 31: the mean of each passage, (passages,).

    0 if the model foresees all, log2(96) = 6.6 if nothing. All but the first half window counts.
    """
    half, tokens = WINDOW // 2, corpus.encode(text)
    starts = torch.arange(0, len(tokens) - WINDOW, half)
    costs = []
    for part in (
        tokens[starts[:, None] + torch.arange(WINDOW + 1)]
        .to(model.embedding.weight.device)
        .split(64)
    ):
        logits = model(part[:, :-1])[:, half:].float().transpose(1, 2)
        costs.append(functional.cross_entropy(logits, part[:, half + 1 :], reduction="none").cpu())
    return torch.cat(costs).double().mean(1).numpy() / math.log(2)


def save(model: decoder.Decoder, path: str | Path, **provenance: object) -> str:
    """Write the weights in half precision, for `decoder.load`, with where they come from; the file's SHA-256.

    ValueError if a weight is not a finite number in half precision.
    """
    state = {
        name: weight.detach().half().cpu().contiguous()
        for name, weight in model.state_dict().items()
    }
    if lost := [name for name, weight in state.items() if not torch.isfinite(weight).all()]:
        raise ValueError(
            f"not finite in half precision, so not saved: {', '.join(lost[:3])}; train it anew"
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    metadata = {"shape": json.dumps(asdict(model.shape)), "characters": corpus.CHARACTERS}
    save_file(
        state, path, metadata | {name: json.dumps(value) for name, value in provenance.items()}
    )
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    accelerator = (
        torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    )
    parser = argparse.ArgumentParser(
        prog="python data/weights/train_decoder.py", description=__doc__
    )
    parser.add_argument(
        "--out", type=Path, default=paths.BUILD / "decoder", help="folder for weights and record"
    )
    parser.add_argument(
        "--device", default=accelerator, help="cuda, mps or cpu (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=800, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=64, help="sequences a step (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=2e-3, help="highest learning rate (default: %(default)s)"
    )
    parser.add_argument(
        "--dropout", type=float, default=0.3, help="share that is left out (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights and batches (default: %(default)s)"
    )
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Train, save, judge, and write down how it was done."""
    wish = arguments(given)
    device = torch.device(wish.device)
    text = corpus.load()
    model, made = train(text, decoder.Shape(), device, wish)
    path = wish.out / decoder.WEIGHTS.name
    record = {
        "script": "python data/weights/train_decoder.py",
        "text": corpus.SHA256,
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{device.type}, {platform.machine()}",
        "torch": torch.__version__,
        "settings": {
            name: getattr(wish, name) for name in ("steps", "batch", "rate", "dropout", "seed")
        },
        **made,
    }
    sha256 = save(model, path, **record)
    score = bits_per_character(decoder.load(path, sha256), text.test)
    record = {"file": path.name, "sha256": sha256, **record, "test": float(score.mean())}
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"test: {score.mean():.4f} bits a character, {len(score)} passages")
    print(f"wrote {path} and {path.with_suffix('.json').name}; sha256 {sha256}")


if __name__ == "__main__":
    main()
