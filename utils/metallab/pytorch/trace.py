"""Record what happens while PyTorch code runs: each operator, each copy between CPU and accelerator, each fallback.

::

    with trace.record(on=lab) as recorded:
        model(inputs)
    recorded                            # a sentence and a table, the longest first
    recorded.timeline()                 # a lane each for the accelerator, for copies and for the CPU
    recorded.save_chrome("trace.json")  # for ui.perfetto.dev or chrome://tracing

A `TorchDispatchMode` sees every operator on its way to a kernel: forward, backward (on autograd's threads, too), of an
optimizer, under autocast, or registered with `torch.library`.

**Times.** The device is waited for before and after every operator, so a duration belongs to one operator; it includes
launch and waiting, and operators no longer overlap with Python. How long the code takes untraced, a timer shows
(`metallab.timing`).

**Fallbacks.** On a Mac they happen below the dispatch mode, so they are deduced from PyTorch's table
(`metalsim.operators`) and the limits of its kernels (`metalsim.refusals`), and marked ``inferred``. The simulated Apple
GPU reports its fallbacks.

**Not seen**: kernels without an operator (`torch.mps.compile_shader`, a pybind11 extension); what an operator does
inside, such as the waiting in ``nonzero``; the copies in ``torch.tensor(..., device=...)`` and in printing; other
threads. Code of `torch.compile` runs uncompiled while it is traced.
"""

from __future__ import annotations

import collections
import contextlib
import html
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import simulation, units
from metallab.device import Device
from metallab.pytorch.dispatch import CallingModules, below_root, calling_line, watching
from metalsim import operators, refusals

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

EventKind = Literal["op", "view", "copy", "fallback"]
Direction = Literal["", "to device", "to host"]
TimeSpan = tuple[float, float]
"""Start and end in seconds."""

CPU_LANE, COPY_LANE = "CPU", "copies"
TITLES = {"": "views (no work)", CPU_LANE: "CPU, fallbacks"}
ITEM = "aten::_local_scalar_dense"  # what `.item()` calls: it copies one number to the host
# The operators that move numbers between devices, each with the position of its source among its tensors.
COPIES = {
    "aten::copy_": 1,
    "aten::_to_copy": 0,
    "aten::_copy_from": 0,
    "aten::_copy_from_and_resize": 0,
    ITEM: 0,
}
COLUMNS = (
    "kind",
    "operator",
    "where",
    "dtype",
    "shapes",
    "called by",
    "calls",
    "total [ms]",
    "mean [µs]",
    "share",
)


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: EventKind
    """An operator, a view, a copy between CPU and accelerator, or a fallback."""
    name: str
    """Namespace, name and overload: ``aten::add.Tensor``."""
    device: str
    """``mps``, ``cuda`` or ``cpu``; the accelerator for a copy, the CPU for a fallback."""
    dtype: str
    """Of its first tensor, such as ``float32``."""
    shapes: tuple[tuple[int, ...], ...]
    """Of its input tensors; ``()`` for a nested tensor."""
    bytes: int
    """Of an operator: all its dense tensors. Of a copy: what crossed. Of a fallback: what it copies there and back."""
    start: float
    """Seconds since the trace began."""
    duration: float
    """Seconds, with launch and waiting."""
    direction: Direction = ""
    """Of a copy."""
    inferred: bool = False
    """True for a fallback that was deduced."""
    module: str = ""
    """The innermost `nn.Module` that called it, by its place in the model; empty for the model itself and outside. In a
    backward pass the one whose gradient it computes, or `dispatch.BACKWARD` if unknown."""
    thread: int = 0
    """0 for the thread that recorded, other numbers for autograd's."""
    line: str = ""
    """Of a copy or a fallback: ``file:number`` of the innermost calling line outside of PyTorch; empty in backward."""

    @property
    def end(self) -> float:
        """Seconds since the trace began."""
        return self.start + self.duration

    @property
    def short(self) -> str:
        """The name without namespace and overload: ``add``."""
        return self.name.rpartition("::")[2].partition(".")[0]

    @property
    def lane(self) -> str:
        """The lane of a timeline; empty for a view."""
        if self.kind == "view":
            return ""
        return (
            COPY_LANE if self.kind == "copy" else CPU_LANE if self.device == "cpu" else self.device
        )

    @property
    def style(self) -> str:
        """Its words in the legend."""
        if self.kind == "fallback":
            return "fallback, inferred" if self.inferred else "fallback"
        if self.kind == "copy":
            return f"copy {self.direction.replace('to ', 'to the ')}"
        return f"operator on the {'CPU' if self.device == 'cpu' else 'accelerator'}"


@dataclass(repr=False)
class Trace:
    """Events in the order in which they began."""

    label: str
    """The hardware's name."""
    accelerator: str
    """``mps`` or ``cuda``; empty on a run that has none."""
    simulated: bool
    events: list[Event] = field(default_factory=list)
    seconds: float = 0.0
    """From the beginning of the trace to its end."""

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes of a timeline."""
        return (self.accelerator, COPY_LANE, CPU_LANE) if self.accelerator else (CPU_LANE,)

    def having(self, *kinds: EventKind) -> list[Event]:
        """Return the events of these kinds."""
        return [event for event in self.events if event.kind in kinds]

    def busy(self, *lanes: str) -> list[TimeSpan]:
        """Return the intervals in which any of these lanes was busy, in order."""
        joined: list[TimeSpan] = []
        for start, end in sorted(
            (event.start, event.end) for event in self.events if event.lane in lanes
        ):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        return joined

    @property
    def starving(self) -> list[TimeSpan]:
        """The intervals in which the accelerator waited for copies or for the CPU."""
        if not self.accelerator:
            return []
        return _without(self.busy(COPY_LANE, CPU_LANE), self.busy(self.accelerator))

    def __str__(self) -> str:
        kinds = {"op": "operators", "view": "views", "copy": "copies", "fallback": "fallbacks"}
        sentence = ", ".join(f"{len(self.having(kind))} {name}" for kind, name in kinds.items())
        sentence += " (inferred)" if any(event.inferred for event in self.events) else ""
        if moved := sum(event.bytes for event in self.having("copy", "fallback")):
            sentence += f"; {units.size(moved)} between CPU and {self.accelerator}"
        if self.simulated:
            return f"SIMULATED, {self.label}: {sentence}. Its times say nothing about a Mac."
        if not self.seconds:
            return f"{self.label}: {sentence}. The trace is complete when its block has ended."
        sentence = f"{self.label}: {sentence}; {units.seconds(self.seconds)} while traced."
        if not self.accelerator:
            return f"{sentence} There is no accelerator."
        spans = (self.busy(self.accelerator), self.starving)
        computed, starved = (
            sum(end - start for start, end in each) / self.seconds for each in spans
        )
        return f"{sentence} {self.accelerator} computed for {computed:.0%} of that and starved for {starved:.0%}."

    def __repr__(self) -> str:
        return f"{self}\n{self.table().to_string(index=False)}"

    def _repr_html_(self) -> str:
        table = self.table().to_html(index=False, border=0, formatters={"bytes": units.size})
        return f"<p>{html.escape(str(self))}</p>{table}"

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `table`, each as a dict."""
        groups: dict[tuple[str, ...], list[Event]] = collections.defaultdict(list)
        for event in self.events:
            kind = f"{event.kind} (inferred)" if event.inferred else event.kind
            groups[kind, event.name, event.direction or event.device, event.dtype].append(event)
        rows = []
        for key, events in groups.items():
            total = sum(event.duration for event in events)
            shapes = _listed(
                ", ".join("x".join(map(str, shape)) or "()" for shape in e.shapes) for e in events
            )
            share = f"{total / self.seconds:.0%}" if self.seconds else ""
            times = (len(events), round(1e3 * total, 4), round(1e6 * total / len(events), 1), share)
            row = dict(zip(COLUMNS, (*key, shapes, _listed(_by_time(events)), *times), strict=True))
            rows.append(row | {"bytes": sum(event.bytes for event in events)})
        return sorted(rows, key=lambda row: row["total [ms]"], reverse=True)

    def table(self) -> pd.DataFrame:
        """Return a row for each operator on each device and dtype, the longest first, with `COLUMNS` and ``bytes``."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=[*COLUMNS, "bytes"])

    def timeline(self, heading: str = "What ran when") -> Figure:
        """Draw a lane each for the accelerator, for copies and for the CPU; shaded where the accelerator starved."""
        from matplotlib.patches import Patch

        from metallab import plots

        whole = self.seconds or 1.0
        scale, unit = units.of_seconds(whole)
        drawn = [event for event in self.events if event.lane]
        starving = {"facecolor": plots.YELLOW, "alpha": 0.35}
        with plots.picture(1.5 + 0.5 * len(self.lanes)) as (figure, axes):
            for start, end in self.starving:
                axes.axvspan(start / scale, end / scale, linewidth=0, zorder=0, **starving)
            for event in drawn:
                row, span = (
                    self.lanes.index(event.lane),
                    (event.start / scale, event.duration / scale),
                )
                axes.broken_barh([span], (row - 0.35, 0.7), linewidth=0, **_styles()[event.style])
                if event.duration > 0.01 * len(event.short) * whole:  # there is room for its name
                    middle = span[0] + span[1] / 2
                    axes.text(
                        middle,
                        row,
                        event.short,
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white",
                    )
            axes.set_xlim(0, whole / scale)
            plots.rows(
                axes, [TITLES.get(lane, lane) if self.accelerator else lane for lane in self.lanes]
            )
            axes.set_xlabel(
                f"time{' of the simulation, not of a Mac' if self.simulated else ''} [{unit}]"
            )
            there = {event.style for event in drawn}
            patches = [
                Patch(label=name, **style) for name, style in _styles().items() if name in there
            ]
            patches += (
                [Patch(label=f"{self.accelerator} starves", **starving)] if self.starving else []
            )
            figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=8)
            plots.title(figure, heading, [self.label], self.simulated)
        return plots.described(figure, str(self))

    def save_chrome(self, path: Path | str) -> Path:
        """Write the events as Chrome-trace JSON, for Perfetto and chrome://tracing; return the file.

        The format: *Trace Event Format*, complete events (``"ph": "X"``) in microseconds. A thread is a lane.
        """
        order = (*self.lanes, "")
        threads = sorted(
            {(e.lane, e.thread) for e in self.events}, key=lambda key: (order.index(key[0]), key[1])
        )
        common = {"pid": os.getpid(), "ts": 0}
        written = [
            {"ph": "M", "name": "process_name", "tid": 0, "args": {"name": self.label}} | common
        ]
        for number, (lane, thread) in enumerate(threads, start=1):
            title = TITLES.get(lane, lane) + (f" (thread {thread})" if thread else "")
            for name, argument in (
                ("thread_name", {"name": title}),
                ("thread_sort_index", {"sort_index": number}),
            ):
                written.append({"ph": "M", "name": name, "tid": number, "args": argument} | common)
        for event in self.events:
            arguments = {
                name: getattr(event, name) for name in ("device", "dtype", "shapes", "bytes")
            }
            more = {name: getattr(event, name) for name in ("direction", "inferred", "module")}
            times = {"ts": round(1e6 * event.start, 3), "dur": round(1e6 * event.duration, 3)}
            tid, named = (
                1 + threads.index((event.lane, event.thread)),
                {"name": event.name, "cat": event.kind},
            )
            arguments |= {name: value for name, value in more.items() if value}
            written.append({"ph": "X", "tid": tid, "args": arguments} | common | named | times)
        by = {
            "by": __name__,
            "device": self.label,
            "simulated": self.simulated,
            "torch": torch.__version__,
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"traceEvents": written, "displayTimeUnit": "ms", "otherData": by})
        Path(path).write_text(text, encoding="utf-8")
        return Path(path)


@contextlib.contextmanager
def record(on: Device) -> Iterator[Trace]:
    """Record what the block runs; the `Trace` is complete when the block ends.

    ``on`` is a device of `metallab.device.pick`. RuntimeError inside another block that records, TypeError for a
    device's name or a `torch.device`.
    """
    if not hasattr(on, "synchronize"):
        raise TypeError(
            f"on is {on!r}, which cannot be waited for: give metallab.device.pick({str(on)!r})"
        )
    if not _alone.acquire(blocking=False):
        raise RuntimeError(
            "a trace is being recorded already: end its block first, two would count everything twice"
        )
    try:
        recorder = _Recorder(on)
        with on.active(), recorder.modules, recorder.listening(), watching(recorder.see):
            torch.ones(1, device=on.torch_device)  # the first operator loads libraries
            recorder.trace.events.clear()
            recorder.zero = time.perf_counter_ns()
            try:
                yield recorder.trace
            finally:
                on.synchronize()
                recorder.trace.seconds = (time.perf_counter_ns() - recorder.zero) / 1e9
                recorder.trace.events.sort(key=lambda event: event.start)
    finally:
        _alone.release()


_alone = threading.Lock()


class _Recorder:
    """Notes every operator that reaches the dispatcher."""

    def __init__(self, on: Device) -> None:
        self.on = on
        self.trace = Trace(on.label, "" if on.kind == "cpu" else on.kind, on.simulated)
        self.modules = CallingModules()
        self.threads = {threading.get_ident(): 0}
        self.told = threading.local()
        self.zero = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what the simulated GPU reports while an operator runs."""
        if not self.on.simulated:
            yield
            return
        simulation.install(on_event=lambda event: getattr(self.told, "inside", []).append(event))
        try:
            yield
        finally:
            simulation.install(on_event=None)

    def see(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator, wait for it, and note what it was."""
        if function.namespace == "profiler":  # PyTorch's own marks
            return function(*args, **kwargs)
        self.on.synchronize()  # what was launched unseen belongs to no event
        self.told.inside = inside = []
        start = time.perf_counter_ns()
        try:
            result = function(*args, **kwargs)
            self.on.synchronize()
        finally:
            self.told.inside = []
        stop = time.perf_counter_ns()
        self.trace.events.append(
            self.event(_Call(function, args, kwargs, result, inside), start, stop)
        )
        return result

    def event(self, call: _Call, start: int, stop: int) -> Event:
        """Describe an operator that has run."""
        there = self.trace.accelerator
        if strangers := call.devices - {there, "cpu", "meta"}:
            raise ValueError(
                f"{call.name} runs on {', '.join(strangers)}, and this trace waits for {self.on.kind} only: "
                "give record() the device that the code runs on"
            )
        kind, direction, inferred = call.kind(
            there, on_a_mac=there == "mps" and not self.on.simulated
        )
        tensors = call.given or call.made
        return Event(
            kind=kind,
            name=call.name,
            device=there if there in call.devices and kind != "fallback" else "cpu",
            dtype=units.dtype_name(tensors[0].dtype) if tensors else "",
            shapes=tuple(() if tensor.is_nested else tuple(tensor.shape) for tensor in call.given),
            bytes=call.bytes(kind, there),
            start=(start - self.zero) / 1e9,
            duration=(stop - start) / 1e9,
            direction=direction,
            inferred=inferred,
            module=below_root(self.modules.innermost()),
            thread=self.threads.setdefault(threading.get_ident(), len(self.threads)),
            line=calling_line() if kind in ("copy", "fallback") else "",
        )


class _Call:
    """An operator that has run, with its tensors."""

    def __init__(
        self, function: Any, args: tuple, kwargs: dict, result: Any, inside: Sequence[Any]
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.inside = inside
        """What the simulated GPU reported of it."""
        self.name: str = function.name()
        self.given, self.made = _tensors((args, kwargs)), _tensors(result)
        self.devices = {tensor.device.type for tensor in (*self.given, *self.made)}

    def direction(self, accelerator: str) -> Direction:
        """Return the direction of a copy between the CPU and the accelerator, or ''."""
        base = self.name.partition(".")[0]
        if base not in COPIES:
            return ""
        source = self.given[COPIES[base]].device.type
        target = "cpu" if base == ITEM else next(iter(self.devices - {source}), source)
        if {source, target} != {"cpu", accelerator}:
            return ""
        return "to host" if target == "cpu" else "to device"

    def kind(self, accelerator: str, on_a_mac: bool) -> tuple[EventKind, Direction, bool]:
        """Return the kind, a copy's direction, and whether a fallback was inferred."""
        if any(told.kind == "fallback" for told in self.inside):
            return "fallback", "", False
        if direction := self.direction(accelerator):
            return "copy", direction, False
        if on_a_mac and "mps" in self.devices and self.leaves_the_gpu():
            return "fallback", "", True
        return "view" if self.function.is_view else "op", "", False

    def leaves_the_gpu(self) -> bool:
        """Return True if PyTorch computes this call on the CPU of a Mac."""
        if operators.status(self.name) in ("missing", "falls back"):
            return True
        return isinstance(refusals.outcome(self.name, self.args, self.kwargs), refusals.Detour)

    def bytes(self, kind: EventKind, accelerator: str) -> int:
        """See `Event.bytes`."""
        if kind == "view":
            return 0
        if kind == "op":
            return _bytes({id(tensor): tensor for tensor in (*self.given, *self.made)}.values())
        if told := [event.bytes for event in self.inside if event.kind == kind]:
            return sum(told)
        there = [
            tensor for tensor in (*self.given, *self.made) if tensor.device.type == accelerator
        ]
        if kind == "copy":
            return _bytes(there[:1])
        slots = enumerate(self.function._schema.arguments)
        written = [
            (index, slot.name)
            for index, slot in slots
            if slot.alias_info and slot.alias_info.is_write
        ]
        back = _tensors(
            [self.args[i] if i < len(self.args) else self.kwargs.get(name) for i, name in written]
        )
        return _bytes((*there, *(tensor for tensor in back if tensor.device.type == accelerator)))


def _tensors(values: Any) -> list[Tensor]:
    """The tensors among an operator's arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of dense tensors; others have no such figure."""
    return sum(
        tensor.nbytes
        for tensor in tensors
        if tensor.layout == torch.strided and not tensor.is_nested
    )


def _without(intervals: Iterable[TimeSpan], taken: Sequence[TimeSpan]) -> list[TimeSpan]:
    """Take intervals away from others; both in order."""
    left = []
    for start, end in intervals:
        for low, high in taken:
            if high <= start or low >= end:
                continue
            if low > start:
                left.append((start, low))
            start = high
        if start < end:
            left.append((start, end))
    return left


def _by_time(events: Iterable[Event]) -> list[str]:
    """The modules of events, that with the most time first."""
    times: collections.Counter[str] = collections.Counter()
    for event in events:
        times[event.module] += event.duration
    return [name for name, _ in times.most_common()]


def _listed(names: Iterable[str], most: int = 2) -> str:
    names = list(dict.fromkeys(filter(None, names)))
    return "; ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _styles() -> dict[str, dict[str, Any]]:
    """How events are drawn, by the legend's words."""
    from metallab import plots

    return {
        "operator on the accelerator": {"facecolor": plots.BLUE},
        "copy to the device": {"facecolor": plots.ORANGE},
        "copy to the host": {"facecolor": plots.PURPLE},
        "operator on the CPU": {"facecolor": plots.GREEN},
        "fallback": {"facecolor": plots.RED},
        "fallback, inferred": {"facecolor": plots.RED, "hatch": "///", "edgecolor": "#a34700"},
    }
