"""A frame's way through a detector, in five stages on one device, and several such ways beside each other.

Film, race and stages are of the same work, from the frame to the finished picture, so that they can be compared.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metallab import by_mode, device, timing, units
from metallab.allowance import Allowance
from metallab.checks import Mismatch
from metallab.detection import boxes, detector, engines, video, yolo

PLAIN = "CPU, float32"
"""The baseline: PyTorch on the CPU, operation by operation, as one writes it first."""

HOPELESS = 4.0
"""Times the baseline's time from which a way is not raced."""


@dataclass(frozen=True)
class Pipeline:
    """One way of a frame: what computes it, where, and in which number format."""

    on: device.Device
    network: Callable[[Tensor], Any]
    """From pictures (n, 3, height, width) to the detector's raw outputs."""
    names: Mapping[int, str]
    """Of the classes, by their ids."""
    dtype: torch.dtype = torch.float32
    height: int = 384
    width: int = 640
    """Of the picture that the network sees, in pixels."""
    any_size: bool = True
    """False for a network that was recorded or written down for this size, and for one picture at a time."""

    def prepare(self, frames: Sequence[np.ndarray]) -> np.ndarray:
        """Frames, uint8 (h, w, 3), scaled and padded: uint8 (n, height, width, 3)."""
        return yolo.prepare(frames, self.height, self.width)

    def transfer(self, pictures: np.ndarray) -> Tensor:
        """Sent to the device as bytes; there numbers from 0 to 1, (n, 3, height, width) in `dtype`."""
        there = torch.from_numpy(pictures).to(self.on.torch_device)
        return there.permute(0, 3, 1, 2).to(self.dtype) / 255

    def infer(self, numbers: Tensor) -> Any:
        """The network's raw outputs."""
        with torch.inference_mode():
            return self.network(numbers)

    def select(self, outputs: Any) -> list[Tensor]:
        """Of each picture the boxes that are kept, float32 (n, 6) on the CPU."""
        return [kept.cpu() for kept in detector.detections(outputs)]

    def draw(self, frame: np.ndarray, kept: Sequence[Tensor]) -> tuple[np.ndarray, Tensor]:
        """The frame with its boxes, and the boxes in the frame's own pixels."""
        moved = yolo.to_frame(kept[0], frame, self.height, self.width)
        return yolo.draw(frame, moved, self.names), moved

    def stages(self, frame: np.ndarray) -> dict[str, Callable[..., Any]]:
        """The five stages of a frame, each taking what the one before returns; the last returns a list of boxes."""
        return {
            "prepare": functools.partial(self.prepare, [frame]),
            "transfer": self.transfer,
            "infer": self.infer,
            "select": self.select,
            "draw": lambda kept: [self.draw(frame, kept)[1]],
        }

    def __call__(self, frame: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """The finished picture of a frame, and its boxes (n, 6) in the frame's pixels."""
        outputs = self.infer(self.transfer(self.prepare([frame])))
        return self.draw(frame, self.select(outputs))


def two_panes(network: nn.Module, lab: device.Device) -> dict[str, Pipeline]:
    """Plain PyTorch on the CPU, first, and beside it the same network on ``lab``, both in float32.

    Where ``lab`` is the CPU the second is ONNX Runtime on it.
    """
    plain = _on_cpu(network)
    return {PLAIN: plain} | (_onnx(plain) if lab.kind == "cpu" else _eager(plain, lab))


def rivals(network: nn.Module, lab: device.Device) -> dict[str, Pipeline]:
    """Plain PyTorch on the CPU, first, and what else one would try with ``lab``.

    On a CPU: one thread, channels last, bfloat16 (both with batch norms folded into convolutions), ONNX Runtime (not
    in fast mode, where the film's pane writes it down already). On a GPU: float32, and float16 in the same way; with
    CUDA also the launches of float16 recorded as one.
    """
    plain = _on_cpu(network)
    if lab.kind == "cpu":
        onnx = by_mode(full=_onnx, fast=lambda _: {})(plain)
        return {
            PLAIN: plain,
            "CPU, channels last": _rewritten(plain, plain.on, torch.float32),
            "CPU, bfloat16": _rewritten(plain, plain.on, torch.bfloat16),
            "CPU, 1 thread": dataclasses.replace(plain, on=device.cpu(threads=1)),
        } | onnx
    half = _rewritten(plain, lab, torch.float16)
    ways = {PLAIN: plain} | _eager(plain, lab) | {f"{lab.kind}, float16": half}
    if lab.kind == "cuda":
        example = half.transfer(np.zeros((1, half.height, half.width, 3), np.uint8))
        recorded = engines.CudaGraph(half.network, example)
        ways["cuda, float16, graph"] = dataclasses.replace(half, network=recorded, any_size=False)
    return ways


def _on_cpu(network: nn.Module) -> Pipeline:
    height, width = by_mode(full=(384, 640), fast=(192, 320))
    return Pipeline(device.cpu(), network, network.names, height=height, width=width)


def _eager(plain: Pipeline, lab: device.Device) -> dict[str, Pipeline]:
    if lab.kind == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # float32 shall mean float32
    there = copy.deepcopy(plain.network).to(lab.torch_device)
    return {f"{lab.kind}, float32": dataclasses.replace(plain, on=lab, network=there)}


def _onnx(plain: Pipeline) -> dict[str, Pipeline]:
    example = torch.ones(1, 3, plain.height, plain.width)
    engine = engines.OnnxNetwork(plain.network, example, plain.on.threads)
    return {"CPU, ONNX Runtime": dataclasses.replace(plain, network=engine, any_size=False)}


def _rewritten(plain: Pipeline, lab: device.Device, dtype: torch.dtype) -> Pipeline:
    """Batch norms folded into convolutions, the colours of a pixel side by side in memory, in a dtype, on a device."""
    model = copy.deepcopy(plain.network).fuse(verbose=False).to(lab.torch_device, dtype)
    return dataclasses.replace(plain, on=lab, network=model.to(memory_format=torch.channels_last), dtype=dtype)


class Stages:
    """A pipeline as a variant of `metallab.timing.compare`, which keeps each stage's time of every sample.

    So the comparison and the stages are of the same calls. The first stage is called without arguments, each later one
    with the result of the stage before it, and each is waited for on ``on``. A call returns what the last one does.
    """

    def __init__(self, stages: Mapping[str, Callable[..., Any]], on: timing.DeviceLike) -> None:
        self.stages, self.on = dict(stages), on
        self.first: list[float] = []
        self.latest: list[float] = []
        self.samples: list[list[float]] = []
        """Of each call that was a sample: the seconds of each stage."""

    def __call__(self) -> Any:
        self.latest, arguments = [], ()
        self.on.synchronize()
        for stage in self.stages.values():
            start = time.perf_counter()
            result = stage(*arguments)
            self.on.synchronize(result)
            self.latest.append(time.perf_counter() - start)
            arguments = (result,)
        self.first = self.first or self.latest
        return result

    def after_sample(self) -> None:
        """Keep the stages of the call that was just timed; `metallab.timing` calls it."""
        self.samples.append(self.latest)

    def split(self, total: timing.Measurement) -> dict[str, timing.Measurement]:
        """The stages of what was measured of this pipeline, each a latency, and ``total`` itself."""
        columns = zip(self.stages, zip(*self.samples, strict=True), self.first, strict=True)
        parts = {
            name: dataclasses.replace(total, name=name, samples=seconds, first_call=first)
            for name, seconds, first in columns
        }
        return parts | {"total": total}


@dataclass(frozen=True)
class Race:
    """Ways of a frame, timed in turns on one frame, once their boxes were compared."""

    boxes: Mapping[str, str]
    """By way, but for the first: whether its boxes are those of the first, and why it was not raced."""
    compared: timing.Comparison
    """From the frame to the finished picture."""
    stages: Mapping[str, Mapping[str, timing.Measurement]]
    """Of each way that was raced, the stages of the very passes that `compared` has, and their ``total``."""
    ways: Mapping[str, Pipeline]
    """Those that were raced."""


def race(ways: Mapping[str, Pipeline], frames: Sequence[np.ndarray], seconds: float = 7.0) -> Race:
    """Compare the boxes of all ways with those of the first, then time those that agree, in turns and stage by stage.

    Timed is the frame with the most boxes. A slow way is shown fewer frames, and one that takes more than `HOPELESS`
    times the first's time is not raced. Comparing and timing get ``seconds`` each, in fast mode far less.
    `video.SourceError` if nothing is detected in any frame.
    """
    first, *others = ways
    reference = [ways[first](frame)[1] for frame in frames]
    video.assert_something(reference)
    plain, _ = _seconds(ways[first], frames[0])
    within = Allowance(by_mode(full=seconds, fast=1.0))
    agreement, kept = {}, {first: ways[first]}
    for name in others:
        share = Allowance(max(0.1, within.left / len(others)))
        agreement[name], raced = _agreement(ways[name], frames, reference, share, plain)
        if raced:
            kept[name] = ways[name]
    frame = frames[int(np.argmax([len(each) for each in reference]))]
    passes = {name: Stages(way.stages(frame), on=way.on) for name, way in kept.items()}
    budget = by_mode(full=timing.Budget(min_samples=20, min_seconds=0.25, max_seconds=2.0), fast=timing.FAST)
    shared = Allowance(seconds).budget(1, budget, variants=len(kept))
    compared = _compared(passes, kept, boxes.matches, "frame to picture", shared)
    return Race(agreement, compared, {name: each.split(compared[name]) for name, each in passes.items()}, kept)


def compare_networks(
    ways: Mapping[str, Pipeline], pictures: np.ndarray, name: str, within: Allowance
) -> timing.Comparison:
    """Time the network alone on prepared pictures, uint8 (n, height, width, 3), in a third of what ``within`` has left.

    ``ways`` take any size; the first is the baseline, with whose boxes all others' are compared.
    """
    calls = {each: functools.partial(way.infer, way.transfer(pictures)) for each, way in ways.items()}

    def same_raw(dtype: torch.dtype) -> Callable[[Any, Any], None]:
        def same_boxes(reference: Any, result: Any) -> None:
            boxes.matches(dtype)(*([kept.cpu() for kept in detector.detections(raw)] for raw in (reference, result)))

        return same_boxes

    full = by_mode(full=timing.Budget(min_samples=10, min_seconds=0.2, max_seconds=2.0), fast=timing.FAST)
    return _compared(calls, ways, same_raw, name, within.budget(3, full, variants=len(ways)))


def _compared(
    calls: Mapping[str, Callable[[], Any]],
    ways: Mapping[str, Pipeline],
    parity: Callable[[torch.dtype], Callable],
    name: str,
    budget: timing.Budget,
) -> timing.Comparison:
    return timing.compare(
        calls,
        on={name: way.on for name, way in ways.items()},
        baseline=next(iter(ways)),
        parity={name: parity(way.dtype) for name, way in ways.items()},
        name=name,
        dtype={name: way.dtype for name, way in ways.items()},
        budget=budget,
    )


def _seconds(way: Pipeline, frame: np.ndarray) -> tuple[float, Tensor]:
    """Seconds and boxes of a frame, the second time that it is computed."""
    with way.on.active():
        way(frame)
        start = time.perf_counter()
        kept = way(frame)[1]
        return time.perf_counter() - start, kept


def _agreement(
    way: Pipeline, frames: Sequence[np.ndarray], reference: Sequence[Tensor], within: Allowance, plain: float
) -> tuple[str, bool]:
    """Whether the boxes of a way agree, as text, and whether it is raced; ``plain``: the baseline's seconds."""
    quickest, found = _seconds(way, frames[0])
    kept = [found]
    for frame in within.items(frames[1:], least=0):
        with way.on.active():
            start = time.perf_counter()
            kept.append(way(frame)[1])
            quickest = min(quickest, time.perf_counter() - start)
    expected = reference[: len(kept)]
    try:
        boxes.matches(way.dtype)(expected, kept)
    except Mismatch as difference:
        return f"DIFFERENT, not raced: {difference}", False
    several = sum(map(len, expected))
    words = f"the same {several} in {len(kept)} of {len(reference)} frames"
    if other := abs(sum(map(len, kept)) - several):
        words += f", but for {other} that rounding decides"
    if not way.on.simulated and quickest > HOPELESS * plain:
        return f"{words}; not raced: {units.times(quickest / plain)} times the time", False
    return words, True
