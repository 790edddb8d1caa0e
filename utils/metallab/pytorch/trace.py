"""What happened while a piece of PyTorch code ran: each operator, each copy between CPU and accelerator, each fallback.

::

    with trace.record(on=lab) as recorded:
        model(inputs)
    recorded                            # a sentence and a table, the longest first
    recorded.timeline()                 # a lane each for the accelerator, for copies and for the CPU
    recorded.save_chrome("trace.json")  # for ui.perfetto.dev or chrome://tracing

**How.** A `TorchDispatchMode` sees every operator on its way to a kernel: of the forward pass, of the backward pass (on
autograd's threads, too), of an optimizer, under autocast. Operators registered with `torch.library` are seen as well.

**Times.** The device is waited for before and after every operator, as PyTorch's own MPS profiler does with
``wait_until_completed``. So a duration is true and belongs to one operator; it holds the launch and the waiting, and
operators no longer overlap with Python. A trace tells where time goes. How long the code takes, a timer tells without
tracing (`metallab.timing`); compare the two to see what tracing costs.

**Fallbacks.** On a Mac an operator without a Metal kernel runs on the CPU below the place where the mode looks, and so
does a call that its kernel leaves to the CPU. Such an event is deduced from PyTorch's table of kernels
(`metalsim.operators`) and from their limits (`metalsim.refusals`), and marked ``inferred``. The simulated
Apple GPU tells of its fallbacks itself.

**What is not seen**: kernels that are launched without an operator, by a pybind11 extension or by
`torch.mps.compile_shader` (register a `torch.library` operator around them); what an operator does inside, waiting and
copying included, as ``nonzero`` does on a GPU; the copies in ``torch.tensor(..., device=...)`` and in printing; threads
other than this one and autograd's. What `torch.compile` has compiled runs uncompiled while it is traced. A view (``t``,
``view``, ``detach``) is seen, but computes nothing: it is of a kind of its own, and on no lane.
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

from metallab import simulation, units
from metallab.device import Device
from metallab.pytorch.dispatch import CallingModules, calling_line, watching
from metallab.tables import Table
from metalsim import operators, refusals

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EventKind = Literal["op", "view", "copy", "fallback"]
Direction = Literal["", "to device", "to host"]
TimeSpan = tuple[float, float]
"""Start and end in seconds."""

CPU_LANE, COPY_LANE = "CPU", "copies"
ITEM = "aten::_local_scalar_dense"  # what `.item()` calls: it copies one number to the host
# The operators that move numbers between devices, each with the position of its source among its tensors.
COPIES = {"aten::copy_": 1, "aten::_to_copy": 0, "aten::_copy_from": 0, "aten::_copy_from_and_resize": 0, ITEM: 0}


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: EventKind
    """An operator that computed, a view that did not, a copy between CPU and accelerator, or a fallback."""
    name: str
    """Namespace, name and overload: ``aten::add.Tensor``."""
    device: str
    """Where it ran: ``mps``, ``cuda``, ``cpu``; of a copy the accelerator, of a fallback the CPU."""
    dtype: str
    """Of its first tensor: ``float32``; empty if it has none."""
    shapes: tuple[tuple[int, ...], ...]
    """Of the tensors that it was given; of a nested tensor ``()``."""
    bytes: int
    """Of an operator: all its tensors, given and made. Of a copy: what crossed. Of a fallback: what it copies there and
    back. Of a view 0. Tensors that are not dense count nothing."""
    start: float
    """Seconds since the trace began."""
    duration: float
    """Seconds, with the launch and the waiting."""
    direction: Direction = ""
    """Of a copy."""
    inferred: bool = False
    """True for a fallback that was not seen but deduced, see the module's text."""
    module: str = ""
    """The innermost `nn.Module` that called it, by its place in the model; in a backward pass the one whose gradient it
    computes, or `dispatch.BACKWARD` where that is not known."""
    thread: int = 0
    """0 for the thread that recorded, other numbers for autograd's."""
    line: str = ""
    """Of a copy or a fallback: ``file:number`` of the innermost line outside of PyTorch that called it; empty in a
    backward pass."""

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
        """Where a timeline draws it: on the accelerator's lane, among the copies, on the CPU's; a view nowhere."""
        if self.kind == "view":
            return ""
        return COPY_LANE if self.kind == "copy" else CPU_LANE if self.device == "cpu" else self.device


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
        """The lanes of this run; one without an accelerator has the CPU's alone."""
        return (self.accelerator, COPY_LANE, CPU_LANE) if self.accelerator else (CPU_LANE,)

    def having(self, *kinds: EventKind) -> list[Event]:
        """The events of these kinds."""
        return [event for event in self.events if event.kind in kinds]

    def busy(self, *lanes: str) -> list[TimeSpan]:
        """When something was going on on any of these lanes: intervals in order that do not overlap."""
        return _union((event.start, event.end) for event in self.events if event.lane in lanes)

    @property
    def starving(self) -> list[TimeSpan]:
        """When the accelerator had nothing to do because copies were made or the CPU worked; empty without one.

        Time in which nothing at all was going on is not counted: there Python, or this tracer, decided what comes next.
        """
        if not self.accelerator:
            return []
        return _without(self.busy(COPY_LANE, CPU_LANE), self.busy(self.accelerator))

    def __str__(self) -> str:
        count = {kind: len(self.having(kind)) for kind in ("op", "view", "copy", "fallback")}
        inferred = " (inferred)" if any(event.inferred for event in self.events) else ""
        sentence = (
            f"{_counted(count['op'], 'operator')}, {_counted(count['view'], 'view')}, "
            f"{_counted(count['copy'], 'copy', 'copies')}, {_counted(count['fallback'], 'fallback')}{inferred}"
        )
        if moved := sum(event.bytes for event in self.having("copy", "fallback")):
            sentence += f"; {units.size(moved)} between CPU and {self.accelerator}"
        if self.simulated:
            return f"SIMULATED, {self.label}: {sentence}. Its times say nothing about a Mac."
        if not self.seconds:
            return f"{self.label}: {sentence}. The trace is complete when its block has ended."
        sentence = f"{self.label}: {sentence}; {units.seconds(self.seconds)} while traced."
        if not self.accelerator:
            return f"{sentence} There is no accelerator, and so no lane for one and no copies."
        computed, starved = (_length(times) / self.seconds for times in (self.busy(self.accelerator), self.starving))
        return (
            f"{sentence} {self.accelerator} computed for {computed:.0%} of that and starved for {starved:.0%}, while "
            "copies were made or the CPU worked. In the rest Python decided what comes next, and this tracer with it."
        )

    def __repr__(self) -> str:
        return f"{self}\n{self.table().to_string(index=False)}"

    def _repr_html_(self) -> str:
        table = self.table().to_html(index=False, border=0, formatters={"bytes": units.size})
        return f"<p>{html.escape(str(self))}</p>{table}"

    def table(self) -> pd.DataFrame:
        """A row for each operator on each device and dtype, the longest in all first.

        Columns: ``kind``, ``operator``, ``where``, ``dtype``, ``shapes`` given, ``called by``, ``calls``,
        ``total [ms]``, ``mean [µs]``, ``share`` of the traced time in percent, ``bytes`` in all.
        """
        import pandas as pd

        groups: dict[tuple[str, ...], list[Event]] = collections.defaultdict(list)
        for event in self.events:
            kind = f"{event.kind} (inferred)" if event.inferred else event.kind
            groups[kind, event.name, event.direction or event.device, event.dtype].append(event)
        rows = [(*key, *_summed(events, self.seconds)) for key, events in groups.items()]
        names = ["kind", "operator", "where", "dtype", "shapes", "called by", "calls"]
        table = pd.DataFrame(rows, columns=[*names, "total [ms]", "mean [µs]", "share", "bytes"])
        return table.sort_values("total [ms]", ascending=False, ignore_index=True)

    def fallbacks(self) -> Table:
        """A row for each fallback, the longest first: who called it, how long it took, what it copied there and back.

        Its time on a simulated GPU is the simulation's.
        """
        events = sorted(self.having("fallback"), key=lambda event: event.duration, reverse=True)
        time = "time of the simulation" if self.simulated else "time"
        rows = [
            (
                event.short,
                event.module.partition(".")[2] or event.module,
                units.seconds(event.duration),
                units.size(event.bytes),
                "inferred from PyTorch's table" if event.inferred else "told by the device",
            )
            for event in events
        ]
        share = sum(event.duration for event in events) / self.seconds if self.seconds else 0.0
        whose = "the simulation's time, which is not a Mac's" if self.simulated else "the traced time"
        note = f"{_counted(len(events), 'fallback')}, {share:.0%} of {whose}. On {self.label}."
        return Table(["operator", "layer", time, "copied", "how we know"], rows, note)

    def starved(self) -> str:
        """What the copies were, and how long the accelerator waited for them and for the CPU, in a sentence."""
        copies = self.having("copy")
        moved = f"{_counted(len(copies), 'copy', 'copies')}, {units.size(sum(event.bytes for event in copies))}"
        if self.simulated or not self.accelerator:
            return f"{moved}."
        starved, whole = units.seconds(_length(self.starving)), units.seconds(self.seconds)
        return f"{moved}; {self.accelerator} starved for {starved} of {whole}."

    def timeline(self, heading: str = "What ran when", until: float | None = None) -> Figure:
        """A lane each for the accelerator, for copies and for the CPU; shaded where the accelerator starved.

        ``until`` is the end of the time axis in seconds, by default the trace's: give two pictures the same one.
        """
        import matplotlib.pyplot as plt

        from metallab import plots

        until = until or self.seconds or 1.0
        scale, unit = units.of_seconds(until)
        with plt.rc_context(plots.STYLE):
            figure, axes = plt.subplots(figsize=(7.5, 1.5 + 0.5 * len(self.lanes)))
            for start, end in self.starving:
                axes.axvspan(start / scale, end / scale, color=plots.YELLOW, alpha=0.35, linewidth=0, zorder=0)
            for row, lane in enumerate(self.lanes):
                self._draw_lane(axes, row, lane, scale, until)
            axes.set_xlim(0, until / scale)
            titles = [_titled(lane) if self.accelerator else lane for lane in self.lanes]
            axes.set_yticks(range(len(self.lanes)), titles)
            axes.set_ylim(len(self.lanes) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
            axes.set_xlabel(f"time{' of the simulation, not of a Mac' if self.simulated else ''} [{unit}]")
            self._draw_legend(figure)
            plots.title(figure, heading, [self.label], self.simulated)
        return plots.described(figure, str(self))

    def _draw_lane(self, axes: Axes, row: int, lane: str, scale: float, until: float) -> None:
        for key, style in _styles().items():
            bars = [e for e in self.events if e.lane == lane and _style_of(e) == key]
            spans = [(event.start / scale, event.duration / scale) for event in bars]
            axes.broken_barh(spans, (row - 0.35, 0.7), linewidth=0, **style)
        for event in self.events:
            if event.lane == lane and event.duration > 0.01 * len(event.short) * until:
                middle = (event.start + event.duration / 2) / scale
                axes.text(middle, row, event.short, ha="center", va="center", fontsize=7, color="white")

    def _draw_legend(self, figure: Figure) -> None:
        from matplotlib.patches import Patch

        from metallab import plots

        there = {_style_of(event) for event in self.events if event.lane}
        patches = [Patch(label=key, **style) for key, style in _styles().items() if key in there]
        if self.starving:
            patches.append(Patch(label=f"{self.accelerator} starves", facecolor=plots.YELLOW, alpha=0.35))
        figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=8)

    def save_chrome(self, path: Path | str) -> Path:
        """Write the events as Chrome-trace JSON, which Perfetto and chrome://tracing open; returns the file.

        The format: *Trace Event Format*, complete events (``"ph": "X"``) with times in microseconds, and the names of
        process and threads as metadata. Here a thread is a lane; views have one of their own.
        """
        threads = {key: number for number, key in enumerate(self._threads(), start=1)}
        named = [_metadata("process_name", 0, {"name": self.label})]
        for (lane, thread), number in threads.items():
            title = _titled(lane) + (f" (thread {thread})" if thread else "")
            named.append(_metadata("thread_name", number, {"name": title}))
            named.append(_metadata("thread_sort_index", number, {"sort_index": number}))
        written = {
            "traceEvents": named + [_complete(event, threads[event.lane, event.thread]) for event in self.events],
            "displayTimeUnit": "ms",
            "otherData": {
                "by": "metallab.pytorch.trace",
                "device": self.label,
                "simulated": self.simulated,
                "torch": torch.__version__,
            },
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written), encoding="utf-8")
        return path

    def _threads(self) -> list[tuple[str, int]]:
        """Every lane with every thread that worked on it, in the order of the lanes."""
        order = (*self.lanes, "")
        return sorted({(e.lane, e.thread) for e in self.events}, key=lambda key: (order.index(key[0]), key[1]))


@contextlib.contextmanager
def record(on: Device) -> Iterator[Trace]:
    """Record what the block runs; the `Trace` that it gives is complete when the block ends.

    ``on`` is the device whose work is waited for, as `metallab.device.pick` gives it. RuntimeError inside another
    block that records, TypeError for the name of a device, or a `torch.device`.
    """
    if not hasattr(on, "synchronize"):
        raise TypeError(f"on is {on!r}, which cannot be waited for: give metallab.device.pick({str(on)!r})")
    if not _alone.acquire(blocking=False):
        raise RuntimeError("a trace is being recorded already: end its block first, two would count everything twice")
    try:
        recorder = _Recorder(on)
        with on.active(), recorder.modules, recorder.listening(), watching(recorder.see):
            recorder.begin()
            try:
                yield recorder.trace
            finally:
                on.synchronize()
                recorder.end()
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
        """Hear what the simulated GPU tells of itself."""
        if not self.on.simulated:
            yield
            return
        simulation.install(on_event=self.hear)
        try:
            yield
        finally:
            simulation.install(on_event=None)

    def hear(self, event: Any) -> None:
        """Keep what the simulated GPU tells while an operator runs, on the thread where it does."""
        if (inside := getattr(self.told, "inside", None)) is not None:
            inside.append(event)

    def begin(self) -> None:
        """Start the clock, once all that a first operator loads is there: seconds, which would look like a gap."""
        torch.ones(1, device=self.on.torch_device)
        self.trace.events.clear()
        self.zero = time.perf_counter_ns()

    def end(self) -> None:
        """Stop the clock."""
        self.trace.seconds = (time.perf_counter_ns() - self.zero) / 1e9
        self.trace.events.sort(key=lambda event: event.start)

    def see(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator, wait for it, and note what it was."""
        if function.namespace == "profiler":  # marks that PyTorch sets for its own profiler
            return function(*args, **kwargs)
        self.on.synchronize()  # whatever was launched unseen belongs to nobody's event
        self.told.inside = inside = []
        start = time.perf_counter_ns()
        try:
            result = function(*args, **kwargs)
            self.on.synchronize()
        finally:
            self.told.inside = None
        stop = time.perf_counter_ns()
        self.trace.events.append(self.event(_Call(function, args, kwargs, result, inside), start, stop))
        return result

    def event(self, call: _Call, start: int, stop: int) -> Event:
        """What is noted of an operator that has run."""
        there = self.trace.accelerator
        if strangers := call.devices - {there, "cpu", "meta"}:
            raise ValueError(
                f"{call.name} runs on {', '.join(strangers)}, and this trace waits for {self.on.kind} alone: its times "
                "would be wrong. Give record() the device that the code runs on"
            )
        kind, direction, inferred = self.judge(call)
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
            module=self.modules.innermost(),
            thread=self.threads.setdefault(threading.get_ident(), len(self.threads)),
            line=calling_line() if kind in ("copy", "fallback") else "",
        )

    def judge(self, call: _Call) -> tuple[EventKind, Direction, bool]:
        """Of which kind an operator was; of a copy where it went; and whether a fallback was inferred."""
        there = self.trace.accelerator
        if any(told.kind == "fallback" for told in call.inside):
            return "fallback", "", False
        if direction := call.direction(there):
            return "copy", direction, False
        on_a_mac = there == "mps" and not self.on.simulated
        if on_a_mac and "mps" in call.devices and call.leaves_the_gpu():
            return "fallback", "", True
        return "view" if call.function.is_view else "op", "", False


class _Call:
    """An operator that has run, with its tensors."""

    def __init__(self, function: Any, args: tuple, kwargs: dict, result: Any, inside: Sequence[Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.inside = inside
        """What the simulated GPU told of it."""
        self.name: str = function.name()
        self.given, self.made = _tensors((*args, *kwargs.values())), _tensors(result)
        self.devices = {tensor.device.type for tensor in (*self.given, *self.made)}

    def direction(self, accelerator: str) -> Direction:
        """Which way it copied; empty if it did not go between the CPU and the accelerator."""
        base = self.name.partition(".")[0]
        if base not in COPIES:
            return ""
        source = self.given[COPIES[base]].device.type
        target = "cpu" if base == ITEM else next(iter(self.devices - {source}), source)
        if {source, target} != {"cpu", accelerator}:
            return ""
        return "to host" if target == "cpu" else "to device"

    def leaves_the_gpu(self) -> bool:
        """What PyTorch's table and the limits of its kernels say of this call."""
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
        there = [tensor for tensor in (*self.given, *self.made) if tensor.device.type == accelerator]
        if kind == "copy":
            return _bytes(there[:1])
        written = [tensor for tensor in self.written() if tensor.device.type == accelerator]
        return _bytes((*there, *written))  # there, and back what was made or written

    def written(self) -> list[Tensor]:
        """The arguments that it wrote to, by its schema."""
        slots = enumerate(self.function._schema.arguments)
        written = [(index, slot.name) for index, slot in slots if slot.alias_info and slot.alias_info.is_write]
        return _tensors([self.args[i] if i < len(self.args) else self.kwargs.get(name) for i, name in written])


def _tensors(values: Any) -> list[Tensor]:
    """All tensors among an operator's arguments or results, which are tensors or lists of them."""
    if isinstance(values, Tensor):
        return [values]
    return [tensor for value in values for tensor in _tensors(value)] if isinstance(values, list | tuple) else []


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of dense tensors; others have no such figure."""
    return sum(tensor.nbytes for tensor in tensors if tensor.layout == torch.strided and not tensor.is_nested)


def _union(intervals: Iterable[TimeSpan]) -> list[TimeSpan]:
    joined: list[TimeSpan] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _without(intervals: Iterable[TimeSpan], taken: Sequence[TimeSpan]) -> list[TimeSpan]:
    """What is left of some intervals where others are taken away; both in order."""
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


def _length(intervals: Iterable[TimeSpan]) -> float:
    return sum(end - start for start, end in intervals)


def _counted(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _summed(events: Sequence[Event], seconds: float) -> tuple[Any, ...]:
    """The columns of a row of the table, from ``shapes`` on."""
    total = sum(event.duration for event in events)
    return (
        _listed(dict.fromkeys(", ".join("x".join(map(str, s)) or "()" for s in event.shapes) for event in events)),
        _listed(dict.fromkeys(event.module.partition(".")[2] or event.module for event in events)),
        len(events),
        round(1e3 * total, 4),
        round(1e6 * total / len(events), 1),
        f"{total / seconds:.0%}" if seconds else "",
        sum(event.bytes for event in events),
    )


def _listed(names: Iterable[str], most: int = 2) -> str:
    names = [name for name in names if name]
    return "; ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _titled(lane: str) -> str:
    return {"": "views (no work)", CPU_LANE: "CPU, fallbacks"}.get(lane, lane)


def _styles() -> dict[str, dict[str, Any]]:
    """How events are drawn, by what the legend says of them."""
    from metallab import plots

    return {
        "operator on the accelerator": {"facecolor": plots.BLUE},
        "copy to the device": {"facecolor": plots.ORANGE},
        "copy to the host": {"facecolor": plots.PURPLE},
        "operator on the CPU": {"facecolor": plots.GREEN},
        "fallback": {"facecolor": plots.RED},
        "fallback, inferred": {"facecolor": plots.RED, "hatch": "///", "edgecolor": "#a34700"},
    }


def _style_of(event: Event) -> str:
    if event.kind == "fallback":
        return "fallback, inferred" if event.inferred else "fallback"
    if event.kind == "copy":
        return "copy to the host" if event.direction == "to host" else "copy to the device"
    return "operator on the CPU" if event.device == "cpu" else "operator on the accelerator"


def _metadata(name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": os.getpid(), "tid": thread, "ts": 0, "args": args}


def _complete(event: Event, thread: int) -> dict[str, Any]:
    """A complete event of the Trace Event Format; times in microseconds, to the nanosecond."""
    told = {"device": event.device, "dtype": event.dtype, "shapes": list(map(list, event.shapes)), "bytes": event.bytes}
    told |= {"direction": event.direction} if event.direction else {}
    told |= {"inferred": event.inferred} if event.kind == "fallback" else {}
    told |= {"module": event.module} if event.module else {}
    times = {"ts": round(1e6 * event.start, 3), "dur": round(1e6 * event.duration, 3)}
    return {"ph": "X", "name": event.name, "cat": event.kind, "pid": os.getpid(), "tid": thread, **times, "args": told}
