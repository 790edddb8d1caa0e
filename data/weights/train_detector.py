"""Train the detector of notebook 60 on scenes, in minutes on one large GPU.

``python data/weights/train_detector.py``

The scenes are drawn first, by all cores, and stay on the device. Then follows a plain loop over ultralytics' own model
and loss: AdamW, a warm-up and a cosine, a moving average of the weights, mixed precision on a CUDA device. At the end
the file that was written is loaded again and judged on scenes that training never saw. A GPU adds in no fixed order, so
another run gives other weights, to be judged by their own scores: the checksum names one file, not the recipe.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import scenes
import torch
from safetensors.torch import save_file
from torch import Tensor

from metallab import paths
from metallab.detection import detector  # before ultralytics: it keeps that offline

import ultralytics  # isort: skip
from ultralytics.engine.validator import BaseValidator  # isort: skip
from ultralytics.nn.tasks import DetectionModel  # isort: skip
from ultralytics.utils.metrics import ap_per_class, box_iou  # isort: skip
from ultralytics.utils.nms import non_max_suppression  # isort: skip
from ultralytics.utils.torch_utils import ModelEMA  # isort: skip

SIZES = ((320, 320), (448, 448), (384, 640), (640, 640))
"""Heights and widths of the scenes, an equal number of each, so that the detector works from 320 to 640 pixels."""

NOTHING = -1
"""The class that fills the table up where a scene has fewer objects."""

WARM_UP = 200
"""Steps during which the learning rate rises."""


@dataclass(frozen=True)
class Scenes:
    """Many scenes of one size, as tensors on one device."""

    images: Tensor
    """uint8 (n, 3, height, width)."""
    boxes: Tensor
    """float32 (n, `scenes.MOST`, 4): centre x, centre y, width, height, as shares of the picture."""
    classes: Tensor
    """int64 (n, `scenes.MOST`); `NOTHING` where there is no object."""

    def to(self, device: torch.device | str) -> Scenes:
        """Return the same on a device."""
        return Scenes(self.images.to(device), self.boxes.to(device), self.classes.to(device))

    def batch(self, chosen: Tensor) -> dict[str, Tensor]:
        """Return the chosen scenes in the form that ultralytics' loss takes."""
        classes, boxes = self.classes[chosen], self.boxes[chosen]
        picture, cell = torch.nonzero(classes != NOTHING, as_tuple=True)
        return {
            "img": self.images[chosen].float() / 255,
            "batch_idx": picture.float(),
            "cls": classes[picture, cell].float(),
            "bboxes": boxes[picture, cell],
        }


def draw(pool: Executor, seeds: range, size: tuple[int, int]) -> Iterator[scenes.Frame]:
    """Draw the scenes of these seeds, in order, by all processes of the pool."""
    return pool.map(scenes.still, seeds, itertools.repeat(size), chunksize=16)


def gather(frames: Iterable[scenes.Frame], count: int, size: tuple[int, int]) -> Scenes:
    """Return ``count`` frames of one size as tensors in main memory."""
    height, width = size
    images = np.empty((count, 3, height, width), np.uint8)
    boxes = np.zeros((count, scenes.MOST, 4), np.float32)
    classes = np.full((count, scenes.MOST), NOTHING, np.int64)

    for index, frame in enumerate(frames):
        images[index] = frame.image.transpose(2, 0, 1)
        corners = frame.boxes / np.array([width, height, width, height], np.float32)
        objects = len(frame.classes)
        boxes[index, :objects, :2] = (corners[:, :2] + corners[:, 2:]) / 2
        boxes[index, :objects, 2:] = corners[:, 2:] - corners[:, :2]
        classes[index, :objects] = frame.classes

    return Scenes(torch.from_numpy(images), torch.from_numpy(boxes), torch.from_numpy(classes))


def vary(batch: dict[str, Tensor], random: torch.Generator) -> dict[str, Tensor]:
    """Return a batch, mirrored or not, with other colours, and each picture with another brightness and contrast.

    All pictures are mirrored alike, and their three colours exchanged alike. The boxes follow; what is given stays.
    """
    images, boxes = batch["img"], batch["bboxes"].clone()
    # the axis of the pictures, and the column of the boxes' centres
    left_right, top_down = (3, 0), (2, 1)
    for axis, centre in (left_right, top_down):
        if torch.rand((), generator=random) < 0.5:
            images = images.flip(axis)
            boxes[:, centre] = 1 - boxes[:, centre]

    images = images[:, torch.randperm(3, generator=random).to(images.device)]
    change = torch.rand(2, len(images), 1, 1, 1, generator=random).to(images.device) - 0.5
    images = ((images - 0.5) * (1 + 0.6 * change[0]) + 0.5 + 0.3 * change[1]).clamp(0, 1)
    return {**batch, "img": images, "bboxes": boxes}


def learning_rate(step: int, steps: int, highest: float) -> float:
    """Return the rate of a step: it rises straight over `WARM_UP` steps, then falls as half a cosine to a hundredth.

    Of a short training it rises over a tenth.
    """
    rise = max(1, min(WARM_UP, steps // 10))
    if step < rise:
        return highest * (step + 1) / rise
    share = (step - rise) / max(1, steps - rise)
    return highest * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))


class DetectorTraining:
    """A detector in training, and the moving average of its weights."""

    def __init__(self, device: torch.device, highest: float, steps: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.device = device
        self.highest = highest
        self.steps = steps

        model = detector.build(scenes.CLASSES)
        self.model = model.to(device, memory_format=torch.channels_last).train()
        self.average = ModelEMA(self.model, decay=0.999, tau=500)

        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        # biases and the scales of norms do not decay: a small one is no simpler than another
        matrices = [weight for weight in weights if weight.ndim > 1]
        others = [weight for weight in weights if weight.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": 0.02},
                {"params": others, "weight_decay": 0.0},
            ]
        )

    def step(self, number: int, batch: dict[str, Tensor]) -> Tensor:
        """Take a step; return the loss of a picture as three numbers: boxes, classes, and edges.

        The third is the distribution focal loss. ``batch`` is as `Scenes.batch` returns it, on the training's device;
        ``number`` counts from 0, and sets the learning rate.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(number, self.steps, self.highest)

        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            outputs = self.model(batch["img"].contiguous(memory_format=torch.channels_last))
        # the loss in float32: bfloat16 would round the boxes' edges to a pixel
        exact = {name: outputs[name].float() for name in ("boxes", "scores")}
        parts, _ = self.model.loss(batch, {**outputs, **exact})

        self.optimizer.zero_grad(set_to_none=True)
        parts.sum().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.average.update(self.model)
        return parts.detach() / len(batch["img"])


def train(groups: list[Scenes], training: DetectorTraining, batch: int, seed: int) -> None:
    """Take all steps of a training, each on one size of scenes, in turn."""
    random = torch.Generator().manual_seed(seed)
    began = time.perf_counter()
    every = max(1, training.steps // 20)

    for number in range(training.steps):
        data = groups[number % len(groups)]
        chosen = torch.randint(len(data.images), (batch,), generator=random).to(data.images.device)
        inputs = vary(data.batch(chosen), random)
        loss = training.step(
            number, {name: tensor.to(training.device) for name, tensor in inputs.items()}
        )
        if (number + 1) % every == 0:
            show(number + 1, training.steps, loss, time.perf_counter() - began)


def show(step: int, steps: int, loss: Tensor, seconds: float) -> None:
    """Print how far training has come."""
    box, kind, edge = loss.tolist()
    print(
        f"step {step}/{steps}  loss: box {box:.3f}, class {kind:.3f}, edge {edge:.3f}  "
        f"{seconds:.0f} s, {step / seconds:.1f} steps/s",
        flush=True,
    )


def save(model: DetectionModel, path: str | Path) -> str:
    """Write a detector's weights, in half precision, for `detector.load`; return the file's sha256.

    ValueError if a weight is not a finite number in half precision.
    """
    state = {name: _halve(tensor) for name, tensor in model.state_dict().items()}
    if lost := [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]:
        raise ValueError(
            f"not finite in half precision, so not saved: {', '.join(lost[:3])}; train it anew"
        )

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    metadata = {"classes": json.dumps(scenes.CLASSES), "architecture": detector.ARCHITECTURE}
    save_file(state, path, metadata)
    return detector.checksum(path)


def _halve(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, in half precision unless it counts something."""
    stored = tensor.detach().cpu().contiguous()
    return stored.half() if stored.is_floating_point() else stored


def to_input(images: Sequence[np.ndarray]) -> Tensor:
    """Return pictures of one size, uint8 (height, width, 3) in RGB, as the network takes them: float32 (n, 3, h, w).

    The numbers are 0 to 1. Heights and widths have to be multiples of 32.
    """
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def choose_boxes(outputs: tuple[Tensor, ...], confidence: float = 0.25) -> list[Tensor]:
    """Return each picture's boxes that are kept, float32 (n, 6): left, top, right, bottom (pixels), score, class.

    By ultralytics' non-maximum suppression without its time limit, after which it would drop pictures.
    """
    boxes: list[Tensor] = non_max_suppression(
        outputs[0].float(), confidence, 0.6, max_time_img=float("inf")
    )
    return boxes


@dataclass(frozen=True)
class Score:
    """Mean average precision of a detector, from 0 to 1."""

    map50: float
    """A detection counts from an intersection over union of 0.5 on."""
    map50_95: float
    """The mean over ten thresholds from 0.5 to 0.95, as in COCO."""
    per_class: dict[str, float]
    """The same mean for each class that occurs."""


def evaluate(
    model: DetectionModel,
    frames: Iterable[scenes.Frame],
    device: torch.device | str = "cpu",
    batch: int = 16,
) -> Score:
    """Return mean average precision on frames with known boxes, computed on ``device`` by ultralytics' own functions.

    Boxes count from a score of 0.001 on, since the precision is taken over all scores. The detector is copied, and
    stays where it is. ValueError if there is nothing to find in the frames.
    """
    model = copy.deepcopy(model).to(device).eval()
    predictions, wanted = [], []
    for group in _group(frames, batch):
        with torch.no_grad():
            outputs = model(to_input([frame.image for frame in group]).to(device))
        for frame, boxes in zip(group, choose_boxes(outputs, confidence=0.001), strict=True):
            predictions.append(_judge_frame(boxes.cpu(), frame))
            wanted.append(frame.classes)

    classes = np.concatenate(wanted) if wanted else np.zeros(0)
    if not len(classes):
        raise ValueError(
            "there is nothing to find in these frames: evaluate on some that have boxes"
        )

    hits, scores, guesses = (np.concatenate(column) for column in zip(*predictions, strict=True))
    # of all that it returns, the precision of each class at ten thresholds, and which classes these are
    precision, present = ap_per_class(hits, scores, guesses, classes)[5:7]
    per_class = {
        scenes.CLASSES[int(index)]: float(row.mean())
        for index, row in zip(present, precision, strict=True)
    }
    return Score(float(precision[:, 0].mean()), float(precision.mean()), per_class)


class _Matcher(BaseValidator):
    """ultralytics' matching of detections with labels, without the rest of its validator."""

    def __init__(self) -> None:
        self.iouv = torch.linspace(0.5, 0.95, 10)


def _judge_frame(boxes: Tensor, frame: scenes.Frame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whether a frame's boxes are right at each threshold (n, 10), their scores and their classes (n,)."""
    iou = box_iou(torch.from_numpy(frame.boxes), boxes[:, :4])
    right = _Matcher().match_predictions(boxes[:, 5], torch.from_numpy(frame.classes), iou)
    return right.numpy(), boxes[:, 4].numpy(), boxes[:, 5].numpy()


def _group(frames: Iterable[scenes.Frame], size: int) -> Iterable[list[scenes.Frame]]:
    """Yield frames in groups of at most ``size`` that have one shape."""
    group: list[scenes.Frame] = []
    for frame in frames:
        if group and (len(group) == size or group[0].image.shape != frame.image.shape):
            yield group
            group = []
        group.append(frame)
    if group:
        yield group


def judge(
    model: DetectionModel, pool: Executor, count: int, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Return the scores on the scenes of the seeds from 0 on, for each size."""
    scores = {}
    for height, width in SIZES:
        score = evaluate(model, draw(pool, range(count), (height, width)), device)
        print(
            f"{width} x {height}: mAP50 {score.map50:.4f}, mAP50-95 {score.map50_95:.4f}",
            flush=True,
        )
        scores[f"{width}x{height}"] = asdict(score)
    return scores


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python data/weights/train_detector.py", description=__doc__
    )
    add = parser.add_argument
    written = "folder for weights and record (default: %(default)s)"
    add("--out", type=Path, default=paths.BUILD / "detector", help=written)
    add("--device", default=_find_device(), help="cuda, mps or cpu (default: %(default)s)")

    add("--steps", type=int, default=6000, help="training steps (default: %(default)s)")
    add("--batch", type=int, default=64, help="pictures a step (default: %(default)s)")
    add("--images", type=int, default=6000, help="scenes of each size (default: %(default)s)")
    by = "scenes of each size to judge by (default: %(default)s)"
    add("--held-out", type=int, default=250, help=by)
    add("--rate", type=float, default=2e-3, help="highest learning rate (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")

    drawing = "processes that draw (default: all cores)"
    add("--workers", type=int, default=os.cpu_count(), help=drawing)
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Draw, train, save, judge, and write down how it was done."""
    wish = parse_arguments(given)
    with ProcessPoolExecutor(wish.workers, multiprocessing.get_context("spawn")) as pool:
        _run(wish, torch.device(wish.device), pool)


def _run(wish: argparse.Namespace, device: torch.device, pool: Executor) -> None:
    """Do what the command line asks for, with processes that draw.

    The file of weights is loaded again before it is judged, so that the score is of what was written.
    """
    began = time.perf_counter()
    groups = _draw_all(wish.images, device, pool)
    drawing = time.perf_counter() - began

    training = DetectorTraining(device, wish.rate, wish.steps, wish.seed)
    train(groups, training, wish.batch, wish.seed)
    trained = time.perf_counter() - began - drawing

    path = wish.out / detector.WEIGHTS.name
    # the average, which is steadier than the last weights
    sha256 = save(training.average.ema, path)
    settings = ("steps", "batch", "images", "rate", "seed")
    last_seed = scenes.FIRST_TRAINING_SEED + len(SIZES) * wish.images - 1
    record = {
        "file": path.name,
        "sha256": sha256,
        "date": date.today().isoformat(),
        "device": _describe_device(device),
        "torch": torch.__version__,
        "ultralytics": ultralytics.__version__,
        "seconds": {"drawing": round(drawing), "training": round(trained)},
        "settings": {name: getattr(wish, name) for name in settings},
        "training_seeds": [scenes.FIRST_TRAINING_SEED, last_seed],
        "held_out_seeds": [0, wish.held_out - 1],
        "held_out": judge(detector.load(path, sha256), pool, wish.held_out, device),
    }
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {path} and {path.with_suffix('.json').name}; sha256 {sha256}")


def _draw_all(count: int, device: torch.device, pool: Executor) -> list[Scenes]:
    """Draw so many scenes of each size, of seeds that follow each other, and store them near the device."""
    began = time.perf_counter()
    groups = []
    for place, size in enumerate(SIZES):
        first = scenes.FIRST_TRAINING_SEED + place * count
        drawn = gather(draw(pool, range(first, first + count), size), count, size)
        groups.append(drawn.to(_choose_store(drawn, device)))
        seconds = time.perf_counter() - began
        print(f"drew {count} scenes of {size[1]} x {size[0]}, {seconds:.0f} s", flush=True)
    return groups


def _choose_store(drawn: Scenes, device: torch.device) -> torch.device:
    """Return where scenes stay: on a CUDA device with room for them and 20 GB for the training, else main memory."""
    if device.type != "cuda":
        return torch.device("cpu")
    free, _ = torch.cuda.mem_get_info(device)
    return device if free > drawn.images.nbytes + 20e9 else torch.device("cpu")


def _find_device() -> str:
    """Return the accelerator, or the CPU if there is none."""
    accelerator = torch.accelerator.current_accelerator()
    is_there = torch.accelerator.is_available() and accelerator is not None
    return str(accelerator.type) if is_there else "cpu"


def _describe_device(device: torch.device) -> str:
    """Return what a device is called in the record."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{device.type}, {platform.machine()}"


if __name__ == "__main__":
    main()
