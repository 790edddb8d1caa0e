"""A frame's way through a detector, in five stages on one device, and several such ways beside each other.

Film, race and stages are of the same work, from the frame to the finished picture, so that they can be compared.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from metallab import by_mode, device, plots, tables, timing, units
from metallab.allowance import Allowance
from metallab.checks import Mismatch
from metallab.detection import boxes, detector, engines, live, video, yolo

PLAIN = "CPU, float32"
"""The baseline: PyTorch on the CPU, operation by operation, as one writes it first."""

BATCH_SIDE = 320
"""Width and height of the pictures in a batch, in pixels: small, so that a CPU can afford several sizes of a batch."""

HOPELESS = 4.0
"""Times the baseline's time from which a way is not raced."""


HALF = 0.5
"""Intersection over union from which two boxes are taken for one thing's, at sizes that see it differently."""


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
        return boxes.draw(frame, moved, self.names), moved

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
    panes = _on_cpu(network)
    return panes | (_onnx(panes[PLAIN]) if lab.kind == "cpu" else _eager(panes[PLAIN], lab))


def rivals(network: nn.Module, lab: device.Device) -> dict[str, Pipeline]:
    """Plain PyTorch on the CPU, first, and what else one would try with ``lab``.

    On a CPU: one thread, channels last, bfloat16 (both with batch norms folded into convolutions), ONNX Runtime (not
    in fast mode, where the film's pane writes it down already). On a GPU: float32, and float16 in the same way; with
    CUDA also the launches of float16 recorded as one.
    """
    ways = _on_cpu(network)
    plain = ways[PLAIN]
    if lab.kind == "cpu":
        ways["CPU, channels last"] = _rewritten(plain, plain.on, torch.float32)
        ways["CPU, bfloat16"] = _rewritten(plain, plain.on, torch.bfloat16)
        ways["CPU, 1 thread"] = dataclasses.replace(plain, on=device.cpu(threads=1))
        return ways | by_mode(full=_onnx, fast=lambda _: {})(plain)
    ways |= _eager(plain, lab)
    half = ways[f"{lab.kind}, float16"] = _rewritten(plain, lab, torch.float16)
    if lab.kind == "cuda":
        example = half.transfer(np.zeros((1, half.height, half.width, 3), np.uint8))
        recorded = engines.CudaGraph(half.network, example)
        ways["cuda, float16, graph"] = dataclasses.replace(half, network=recorded, any_size=False)
    return ways


def film(panes: Mapping[str, Pipeline], frames: Sequence[np.ndarray], seconds: float = 5.0) -> video.Filmed:
    """`video.film` of pipelines, the first of which is the baseline, with a line that counts the frames."""
    first = next(iter(panes))
    shown = live.progress(frames, "frames made ready")
    return video.film(
        panes,
        shown,
        on={name: pane.on for name, pane in panes.items()},
        baseline=first,
        parity={name: boxes.matches(pane.dtype) for name, pane in panes.items()},
        seconds=seconds,
    )


@dataclass(frozen=True)
class Race:
    """Ways of a frame, timed in turns on one frame, once their boxes were compared."""

    agreement: tables.Table
    """What became of each way's boxes, and which ways were not raced."""
    compared: timing.Comparison
    """From the frame to the finished picture."""
    stages: Mapping[str, Mapping[str, timing.Measurement]]
    """Of each way that was raced, the stages of the very passes that `compared` has."""
    ways: Mapping[str, Pipeline]
    """Those that were raced."""

    @property
    def figure(self) -> Figure:
        """The stages of each way, as bars."""
        return plots.stages(self.stages)

    @property
    def measurements(self) -> list[timing.Measurement]:
        """All stages of all ways, each named by both, to be saved beside `compared`."""
        return [
            dataclasses.replace(part, name=f"{name}: {stage}")
            for name, parts in self.stages.items()
            for stage, part in parts.items()
        ]

    @property
    def sentences(self) -> list[str]:
        """At most three: the limit of the baseline, and what may be said of the first two others."""
        return [self.limits[0], *self.compared.sentences[:2]]

    @property
    def limits(self) -> list[str]:
        """`limit` of each way, the baseline first; where nothing may be told of any, why, once."""
        every = [parts["total"] for parts in self.stages.values()]
        if doubt := timing.doubt(*every, drift=self.compared.drift):
            return [f"No share of the network is told: {doubt}"]
        return [self.limit(way) for way in self.stages]

    def limit(self, way: str) -> str:
        """How far a faster network could bring a way at most, in words; ask `limits` what may be told."""
        parts = self.stages[way]
        rest = parts["total"].median - parts["infer"].median
        total, others, most = units.seconds(parts["total"].median), units.seconds(rest), parts["total"].median / rest
        return (
            f"{way}: of a frame's {total} {others} are not the network; "
            f"if it took no time a frame would be done {units.times(most)} times as fast, and no faster"
        )

    def follow(self) -> dict[str, Pipeline]:
        """The baseline and at most two others that take pictures of any size: the fastest, none of them slower.

        Where speeds are withheld, the first two.
        """
        speed = {name: ratio.median for name, ratio in self.compared.ratios.items()}
        others = [name for name, way in self.ways.items() if way.any_size and speed.get(name, 1.0) >= 1]
        others.remove(self.compared.baseline)
        others.sort(key=lambda name: -speed.get(name, 1.0))
        return {name: self.ways[name] for name in [self.compared.baseline, *others[:2]]}

    def imagine(self, stage: str, factor: float) -> Figure:
        """The bars of `figure` if one stage were so many times as fast: a calculation, nothing that was measured."""
        imagined = {}
        for name, parts in self.stages.items():
            samples = tuple(seconds / factor for seconds in parts[stage].samples)
            imagined[name] = {**parts, stage: dataclasses.replace(parts[stage], samples=samples)}
            del imagined[name]["total"]
        return plots.stages(imagined, heading=f"CALCULATED, with {stage} {units.times(factor)} times as fast")


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


def race(ways: Mapping[str, Pipeline], frames: Sequence[np.ndarray], seconds: float = 7.0) -> Race:
    """Compare the boxes of all ways with those of the first, then time those that agree, in turns and stage by stage.

    Timed is the frame with the most boxes. Each stage is waited for. A slow way is shown fewer frames, and one that
    takes more than `HOPELESS` times the first's time is not raced. Comparing and timing get ``seconds`` each, in fast
    mode far less. `video.SourceError` if nothing is detected in any frame.
    """
    first, *others = ways
    reference = [ways[first](frame)[1] for frame in frames]
    video.assert_something(reference)
    within = Allowance(by_mode(full=seconds, fast=1.0))
    quickest, _ = _quickest(ways[first], frames[:1])
    rows, kept = [], {first: ways[first]}
    for name in live.progress(others, "rivals compared"):
        share = Allowance(max(0.1, within.left / len(others)))
        result, raced = _against(ways[name], frames, reference, share, quickest)
        rows.append((name, result))
        if raced:
            kept[name] = ways[name]
    frame = frames[int(np.argmax([len(each) for each in reference]))]
    passes = {name: Stages(way.stages(frame), on=way.on) for name, way in kept.items()}
    budget = by_mode(full=timing.Budget(min_samples=20, min_seconds=0.25, max_seconds=2.0), fast=timing.FAST)
    compared = timing.compare(
        passes,
        on={name: way.on for name, way in kept.items()},
        baseline=first,
        parity={name: boxes.matches(way.dtype) for name, way in kept.items()},
        name="frame to picture",
        dtype={name: way.dtype for name, way in kept.items()},
        budget=Allowance(seconds).budget(1, budget, variants=len(kept)),
    )
    stages = {name: each.split(compared[name]) for name, each in passes.items()}
    return Race(tables.Table(["way", f"its boxes, against {first}"], rows), compared, stages, kept)


@dataclass(frozen=True)
class Sweep:
    """The network alone, timed over the frames of a batch or over the size of a picture."""

    comparisons: Mapping[int, timing.Comparison]
    xlabel: str
    frames: Mapping[int, int]
    """How many frames each comparison's calls hold."""
    work: Mapping[int, int]
    """How much each comparison's calls compute, in `unit`."""
    unit: str
    """``frames`` or ``pixels``."""
    left_out: str

    @property
    def doubt(self) -> timing.Doubt:
        """Why nothing may be told of any time here; empty if something may."""
        doubts = [timing.doubt(c[c.baseline], drift=c.drift) for c in self.comparisons.values()]
        return doubts[0] if all(doubts) else timing.Doubt()

    @property
    def figure(self) -> Figure | None:
        """Time a call over what was varied; a way whose boxes differ, or of which nothing may be said, is not drawn.

        None where nothing may be said of any.
        """
        if self.doubt:
            return None
        told = {x: c for x, c in self.comparisons.items() if not timing.doubt(c[c.baseline], drift=c.drift)}
        shown = dict.fromkeys(name for c in told.values() for name in (c.baseline, *c.ratios))
        lines = {name: {x: c[name] for x, c in told.items() if name in (c.baseline, *c.ratios)} for name in shown}
        return plots.curves(lines, xlabel=self.xlabel, heading="The network alone")

    @property
    def gains(self) -> list[str]:
        """For each way what the most work costs against the least, in a sentence; empty where nothing may be told."""
        told = [x for x, c in self.comparisons.items() if not timing.doubt(c[c.baseline], drift=c.drift)]
        if len(told) < 2:
            return []
        few, many = told[0], told[-1]
        first, last = self.comparisons[few], self.comparisons[many]
        shown = [name for name in last.measurements if all(name in (c.baseline, *c.ratios) for c in (first, last))]
        sentences = []
        for name in shown:
            before, after = first[name].median, last[name].median
            each = [units.seconds(time / self.frames[x]) for x, time in ((few, before), (many, after))]
            sentences.append(
                f"{name}, {first.name} to {last.name}: {units.times(self.work[many] / self.work[few])} times the "
                f"{self.unit} take {units.times(after / before)} times as long ({each[0]} a frame, then {each[1]})"
            )
        return sentences

    def __repr__(self) -> str:
        if self.doubt:
            return "\n".join([f"No times are told: {self.doubt}", *filter(None, [self.left_out])])
        refused = {f"{name}: {why}": None for c in self.comparisons.values() for name, why in c.refused.items()}
        return "\n".join([*self.gains, *refused, *filter(None, [self.left_out])])


def sweep_batches(
    ways: Mapping[str, Pipeline], frames: Sequence[np.ndarray], counts: Sequence[int], seconds: float = 4.0
) -> Sweep:
    """Time the network alone with several frames in a batch, in turns; what does not fit into ``seconds`` is left out.

    ``ways`` take any size; the first is the baseline, with whose boxes all others' are compared.
    """
    side = by_mode(full=BATCH_SIDE, fast=96)
    sizes = {count: (count, side) for count in counts}
    return _sweep(ways, frames, sizes, "frames in a batch", "batch of {}", seconds)


def sweep_sizes(
    ways: Mapping[str, Pipeline], frames: Sequence[np.ndarray], sides: Sequence[int], seconds: float = 4.0
) -> Sweep:
    """As `sweep_batches`, with one frame that is scaled to squares of so many pixels a side, multiples of 32."""
    sizes = {side: (1, side) for side in sides}
    return _sweep(ways, frames, sizes, "width and height [pixels]", "{0} x {0} pixels", seconds)


def _sweep(
    ways: Mapping[str, Pipeline],
    frames: Sequence[np.ndarray],
    sizes: Mapping[int, tuple[int, int]],
    xlabel: str,
    name: str,
    seconds: float,
) -> Sweep:
    within, comparisons = Allowance(seconds), {}
    full = by_mode(full=timing.Budget(min_samples=10, min_seconds=0.2, max_seconds=2.0), fast=timing.FAST)
    for x in within.items(list(sizes), xlabel):
        count, side = sizes[x]
        batch = yolo.prepare(list(itertools.islice(itertools.cycle(frames), count)), side, side)
        comparisons[x] = timing.compare(
            {n: functools.partial(way.infer, way.transfer(batch)) for n, way in ways.items()},
            on={n: way.on for n, way in ways.items()},
            baseline=next(iter(ways)),
            parity={n: _SameRaw(way.select, boxes.matches(way.dtype)) for n, way in ways.items()},
            name=name.format(x),
            dtype={n: way.dtype for n, way in ways.items()},
            # a share is kept for what they take besides measuring, or the last one would be left out for it
            budget=within.budget(len(sizes) - len(comparisons) + 1, full, variants=len(ways)),
        )
    frames_in = {x: count for x, (count, _) in sizes.items()}
    several = len(set(frames_in.values())) > 1
    work = frames_in if several else {x: side * side for x, (_, side) in sizes.items()}
    unit = "frames" if several else "pixels"
    return Sweep(comparisons, xlabel, frames_in, work, unit, str(within) if within.left_out else "")


def boxes_by_size(raced: Race, frame: np.ndarray, sides: Sequence[int]) -> tables.Table:
    """What the baseline of a race finds in a frame, uint8 (h, w, 3), scaled to squares of ``sides``, multiples of 32.

    Each box is set against those at the race's own size: of the same class, overlapping by at least `HALF`.
    """
    plain = raced.ways[raced.compared.baseline]
    expected = plain(frame)[1].numpy()
    rows = [(f"{plain.width} x {plain.height}", len(expected), "", "")]
    for side in sides:
        got = dataclasses.replace(plain, height=side, width=side)(frame)[1].numpy()
        pairs = boxes.iou(expected[:, :4], got[:, :4]) * (expected[:, None, 5] == got[None, :, 5]) >= HALF
        kept = int(min(pairs.any(axis=1).sum(), pairs.any(axis=0).sum()))
        rows.append((f"{side} x {side}", len(got), len(expected) - kept, len(got) - kept))
    return tables.Table(["size", "boxes", "missing", "more"], rows)


@dataclass(frozen=True)
class _SameRaw:
    """A parity of raw outputs: the boxes that are selected from them are compared."""

    select: Callable[[Any], list[Tensor]]
    same: boxes.SameBoxes

    def __call__(self, reference: Any, result: Any) -> None:
        self.same(self.select(reference), self.select(result))

    def __str__(self) -> str:
        return str(self.same)


def _on_cpu(network: nn.Module) -> dict[str, Pipeline]:
    height, width = by_mode(full=(384, 640), fast=(192, 320))
    return {PLAIN: Pipeline(device.cpu(), network, network.names, height=height, width=width)}


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


def _quickest(way: Pipeline, frames: Sequence[np.ndarray]) -> tuple[float, list[Tensor]]:
    """Seconds of the quickest frame, and the boxes of each; the first frame once more before."""
    seconds, kept = [], []
    with way.on.active():
        way(frames[0])
        for frame in frames:
            start = time.perf_counter()
            kept.append(way(frame)[1])
            seconds.append(time.perf_counter() - start)
    return min(seconds), kept


def _against(
    way: Pipeline, frames: Sequence[np.ndarray], reference: Sequence[Tensor], within: Allowance, plain: float
) -> tuple[str, bool]:
    """What became of the boxes of a way, in words, and whether it is raced; ``plain``: the baseline's seconds."""
    quickest, kept = _quickest(way, frames[:1])
    for frame in within.items(frames[1:], least=0):
        seconds, (more,) = _quickest(way, [frame])
        quickest = min(quickest, seconds)
        kept.append(more)
    expected, same = reference[: len(kept)], boxes.matches(way.dtype)
    try:
        same(expected, kept)
    except Mismatch as difference:
        return f"DIFFERENT, not raced: {difference}", False
    edge = same.at_the_edge(expected, kept)
    words = f"the same {sum(map(len, expected))} in {len(kept)} frames"
    words += f" (no time for the other {len(reference) - len(kept)})" if len(kept) < len(reference) else ""
    words += f", but for {edge} that rounding decides" if edge else ""
    if not way.on.simulated and quickest > HOPELESS * plain:
        return f"{words}; not raced: {units.times(quickest / plain)} times the time", False
    return words, True
