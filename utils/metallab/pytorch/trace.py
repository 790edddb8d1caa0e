"""Record what happens while PyTorch code runs: each operator, each copy between CPU and accelerator, each fallback.

::

    with trace.record(on=lab) as recorded:
        model(inputs)
    recorded                            # a sentence, the lines that copy or fall back, a table of all operators
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

**Copies inside of an operator** are deduced as well, from what the operator is given: an index or a mask on the CPU
goes to the device; ``torch.tensor(..., device=...)`` does; and one number comes to the host where Python needs it
(``torch.equal``, ``allclose``), or where the shape of a result depends on values (``nonzero``, ``unique``, indexing by
a mask). They stand beside their operator, without a time of their own, which is in the operator's.

**Not seen**: kernels without an operator (`torch.mps.compile_shader`, a pybind11 extension); what else an operator does
inside; the copies of ``print`` and ``str``, which PyTorch hides from every mode; other threads. Code of `torch.compile`
runs uncompiled while it is traced.
"""

from __future__ import annotations

import collections
import contextlib
import html
import json
import os
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import simulation, units
from metallab.device import PyTorchDevice, require_picked
from metallab.pytorch.dispatch import CallingLine, CallingModules, below_root, watching
from metalsim import operators, refusals

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

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
READS_BY_PYTHON = {"aten::equal": 1, "aten::allclose": 1}
"""Operators that return a truth value to Python, with the bytes that come to the host inside."""
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
"""Operators that are given indices and masks, which may lie on the CPU."""
FROM_PYTHON = "aten::lift_fresh"
"""What ``torch.tensor`` calls when its numbers lie where they shall."""
COUNT_BYTES = 8
"""Of the number of values that a result has, an int64."""
BETWEEN_MODULES = "; "
"""What stands between the modules that call an operator, in a row."""
MOST_OF_A_LINE = 100
"""So many characters of a line of code are shown."""
MOST_SHAPES = 4
"""So many shapes of a call stand in a row: one ``cat`` may be given dozens."""
COLUMNS = (
    "kind", "operator", "where", "dtype", "shapes", "called by", "calls", "total [ms]", "mean [µs]", "share",
)  # fmt: skip


FORMATTERS = {"bytes": units.size}
"""How columns of a table are shown."""


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
    """True for a fallback that was deduced, and for a copy inside of an operator."""
    module: str = ""
    """The innermost `nn.Module` that called it, by its place in the model; empty for the model itself and outside. In a
    backward pass the one whose gradient it computes, or `dispatch.BACKWARD` if unknown."""
    thread: int = 0
    """0 for the thread that recorded, other numbers for autograd's."""
    line: str = ""
    """Of a copy or a fallback: ``file:number`` of the innermost calling line outside of PyTorch. In a backward pass
    that of the operator whose gradient it computes; empty if unknown."""
    source: str = ""
    """What stands in that line."""
    own_line: str = ""
    """The innermost calling line of the reader's own code, where `line` is an installed package's; else empty."""
    is_backward: bool = False
    """Of a copy or a fallback: whether it computes a gradient."""

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
        if self.kind == "copy":
            return COPY_LANE
        return CPU_LANE if self.device == "cpu" else self.device

    @property
    def style(self) -> str:
        """Its words in the legend."""
        if self.kind == "fallback":
            return "fallback, inferred" if self.inferred else "fallback"
        if self.kind == "copy":
            return f"copy {self.direction.replace('to ', 'to the ')}"
        return f"operator on the {'CPU' if self.device == 'cpu' else 'accelerator'}"


@dataclass(frozen=True)
class Crossing:
    """What one line copies between CPU and accelerator in one direction, or leaves to the CPU."""

    kind: EventKind
    """A copy or a fallback."""
    name: str
    """The operator, short."""
    direction: Direction
    """Of a copy."""
    inferred: bool
    """True for fallbacks and copies that were deduced."""
    is_backward: bool
    """Whether it happens where gradients are computed."""
    calls: int
    bytes: int
    """Of all calls together, as of an `Event`."""

    def __str__(self) -> str:
        if self.kind == "copy":
            copies = units.count(self.calls, "copy", "copies")
            what = f"{copies} {self.direction.replace('to ', 'to the ')}"
        else:
            what = f"{units.count(self.calls, 'fallback')} to the CPU, {self.name}"
        if self.inferred:
            what += " (inferred)"
        if self.is_backward:
            what += ", in the backward pass"
        return f"{what}: {units.size(self.bytes)}"


@dataclass(frozen=True)
class CrossingLine:
    """A line with all that it copies between CPU and accelerator, or leaves to the CPU."""

    line: str
    """As `Event.line`; empty for what no line is known of."""
    source: str
    own_line: str
    crossings: tuple[Crossing, ...]
    """In the order in which they happened first."""

    @property
    def calls(self) -> int:
        """How many copies and fallbacks there were."""
        return sum(crossing.calls for crossing in self.crossings)

    def __str__(self) -> str:
        place = self.line or "a line that is not known"
        if self.source:
            place += f"  {textwrap.shorten(self.source, MOST_OF_A_LINE, placeholder=' ...')}"
        lines = [place]
        if self.own_line:
            lines.append(f"    called from {self.own_line}")
        return "\n".join([*lines, *(f"    {crossing}" for crossing in self.crossings)])


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
        spans = sorted((event.start, event.end) for event in self.events if event.lane in lanes)

        # so that no time counts twice: autograd's threads run beside each other
        joined: list[TimeSpan] = []
        for start, end in spans:
            if joined and start <= joined[-1][1]:
                first, last = joined[-1]
                joined[-1] = first, max(end, last)
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
        counted = self._count_events()
        if self.simulated:
            return f"SIMULATED, {self.label}: {counted}. Its times say nothing about a Mac."
        if not self.seconds:
            return f"{self.label}: {counted}. The trace is complete when its block has ended."

        sentence = f"{self.label}: {counted}; {units.seconds(self.seconds)} while traced."
        if not self.accelerator:
            return f"{sentence} There is no accelerator."
        computed = _total(self.busy(self.accelerator)) / self.seconds
        starved = _total(self.starving) / self.seconds
        return f"{sentence} {self.accelerator} computed for {computed:.0%} of that and starved for {starved:.0%}."

    def _count_events(self) -> str:
        """Return how many events of each kind there are, with those that were inferred, and the bytes that crossed."""
        counted = ", ".join(
            [
                self._count_kind("op", "operator"),
                self._count_kind("view", "view"),
                self._count_kind("copy", "copy", "copies"),
                self._count_kind("fallback", "fallback"),
            ]
        )

        crossed = sum(event.bytes for event in self.having("copy", "fallback"))
        if crossed:
            counted += f"; {units.size(crossed)} between CPU and {self.accelerator}"
        return counted

    def _count_kind(self, kind: EventKind, noun: str, plural: str | None = None) -> str:
        """Return how many events of a kind there are, and how many of them were inferred, if any."""
        events = self.having(kind)
        counted = units.count(len(events), noun, plural)
        inferred = sum(event.inferred for event in events)
        return f"{counted} ({inferred} inferred)" if inferred else counted

    def list_crossing_lines(self) -> list[CrossingLine]:
        """Return the lines that copy between CPU and accelerator or fall back to the CPU, the most frequent first."""
        by_line: dict[tuple[str, str, str], list[Event]] = collections.defaultdict(list)
        for event in self.having("copy", "fallback"):
            by_line[event.line, event.source, event.own_line].append(event)

        lines = [CrossingLine(*line, _count_crossings(events)) for line, events in by_line.items()]
        return sorted(lines, key=lambda line: line.calls, reverse=True)

    def describe_crossings(self, most: int | None = None) -> list[str]:
        """Return the lines that copy or fall back, under a heading and an empty line, for `print`; none if none does.

        Parameters
        ----------
        most
            So many are told; by default all of them.
        """
        lines = self.list_crossing_lines()
        if not lines:
            return []

        told = [
            "",
            f"Lines that copy between CPU and {self.accelerator}, or fall back to the CPU, the most frequent first "
            "(what runs once, such as moving the model, may stay):",
            *map(str, lines[:most]),
        ]
        if most is not None and len(lines) > most:
            more = units.count(len(lines) - most, "more line")
            told.append(f"and {more}; there are {len(lines)}")
        return told

    def __repr__(self) -> str:
        table = self.table().to_string(index=False, formatters=FORMATTERS)
        return "\n".join([str(self), *self.describe_crossings(), "", table])

    def _repr_html_(self) -> str:
        shown = f"<p>{html.escape(str(self))}</p>"
        if text := "\n".join(self.describe_crossings()):
            shown += f"<pre>{html.escape(text)}</pre>"
        return shown + self.table().to_html(index=False, border=0, formatters=FORMATTERS)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `table`, each as a dict."""
        groups: dict[tuple[str, ...], list[Event]] = collections.defaultdict(list)
        for event in self.events:
            kind = f"{event.kind} (inferred)" if event.inferred else event.kind
            groups[kind, event.name, event.direction or event.device, event.dtype].append(event)

        rows = [self._make_row(key, events) for key, events in groups.items()]
        return sorted(rows, key=lambda row: row["total [ms]"], reverse=True)

    def _make_row(self, key: tuple[str, ...], events: Sequence[Event]) -> dict[str, Any]:
        """Return the row of events that have kind, operator, place and dtype in common, which are the ``key``.

        The share is one of the whole time of the trace, and is empty until the trace has ended.
        """
        total = sum(event.duration for event in events)
        # in the order of COLUMNS
        values = (
            *key,
            _list_some(_describe_shapes(event) for event in events),
            _list_some(_sort_modules(events)),
            len(events),
            round(1e3 * total, 4),
            round(1e6 * total / len(events), 1),
            f"{total / self.seconds:.0%}" if self.seconds else "",
        )

        row: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
        row["bytes"] = sum(event.bytes for event in events)
        return row

    def table(self) -> pd.DataFrame:
        """Return a row for each operator on each device and dtype, the longest first, with `COLUMNS` and ``bytes``."""
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=[*COLUMNS, "bytes"])

    def timeline(self, heading: str = "What ran when") -> Figure:
        """Draw a lane each for the accelerator, for copies and for the CPU; shaded where the accelerator starved.

        Parameters
        ----------
        heading
            The title.
        """
        from metallab import plots

        whole = self.seconds or 1.0  # 0 until the trace has ended
        scale, unit = units.of_seconds(whole)
        with plots.picture(1.5 + 0.5 * len(self.lanes)) as (figure, axes):
            for start, end in self.starving:
                axes.axvspan(start / scale, end / scale, linewidth=0, zorder=0, **_starving_style())
            for event in self.events:
                if event.lane:  # a view has none: it is no work
                    self._draw_event(axes, event, scale)

            axes.set_xlim(0, whole / scale)
            # without an accelerator all work is the CPU's, and none of it a fallback
            titles = [TITLES.get(lane, lane) if self.accelerator else lane for lane in self.lanes]
            plots.rows(axes, titles)
            whose = " of the simulation, not of a Mac" if self.simulated else ""
            axes.set_xlabel(f"time{whose} [{unit}]")

            patches = self._make_legend()
            figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=8)
            plots.title(figure, heading, [self.label], self.simulated)
        return plots.describe(figure, str(self))

    def _draw_event(self, axes: Axes, event: Event, scale: float) -> None:
        """Draw an event as a bar in its lane, with its name where there is room."""
        row = self.lanes.index(event.lane)
        start, duration = event.start / scale, event.duration / scale
        style = _styles()[event.style]
        axes.broken_barh([(start, duration)], (row - 0.35, 0.7), linewidth=0, **style)

        # a letter is about a hundredth of the picture wide
        letter = 0.01 * (self.seconds or 1.0)
        if event.duration > letter * len(event.short):
            middle = start + duration / 2
            axes.text(middle, row, event.short, ha="center", va="center", fontsize=7, color="white")

    def _make_legend(self) -> list[Patch]:
        """Return what the colours mean, of those that are drawn."""
        from matplotlib.patches import Patch

        there = {event.style for event in self.events if event.lane}
        patches = [Patch(label=name, **style) for name, style in _styles().items() if name in there]
        if self.starving:
            patches.append(Patch(label=f"{self.accelerator} starves", **_starving_style()))
        return patches

    def save_chrome(self, path: Path | str) -> Path:
        """Write the events as Chrome-trace JSON, for Perfetto and chrome://tracing; return the file.

        The format: *Trace Event Format*, complete events (``"ph": "X"``) in microseconds. What the format calls a
        thread is what one thread did in one lane, such as copies.

        Parameters
        ----------
        path
            The file; its folder is made.
        """
        order = (*self.lanes, "")  # the last is that of views
        threads = sorted(
            {(event.lane, event.thread) for event in self.events},
            key=lambda thread: (order.index(thread[0]), thread[1]),
        )
        numbers = {thread: number for number, thread in enumerate(threads, start=1)}

        written = [_name_thread(0, "process_name", {"name": self.label})]
        for (lane, thread), number in numbers.items():
            title = TITLES.get(lane, lane)
            if thread:
                title += f" (thread {thread})"
            written.append(_name_thread(number, "thread_name", {"name": title}))
            written.append(_name_thread(number, "thread_sort_index", {"sort_index": number}))
        for event in self.events:
            written.append(_to_chrome(event, numbers[event.lane, event.thread]))

        made_by = {
            "by": __name__,
            "device": self.label,
            "simulated": self.simulated,
            "torch": torch.__version__,
        }
        text = json.dumps({"traceEvents": written, "displayTimeUnit": "ms", "otherData": made_by})
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


def _name_thread(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a metadata event of Chrome's format, which says something of a lane."""
    return {"ph": "M", "name": name, "tid": number, "args": arguments, "pid": os.getpid(), "ts": 0}


def _to_chrome(event: Event, number: int) -> dict[str, Any]:
    """Return a complete event of Chrome's format; times are in microseconds."""
    arguments: dict[str, Any] = {
        "device": event.device,
        "dtype": event.dtype,
        "shapes": event.shapes,
        "bytes": event.bytes,
    }
    for name in ("direction", "inferred", "module"):
        if value := getattr(event, name):
            arguments[name] = value

    return {
        "ph": "X",
        "tid": number,
        "args": arguments,
        "pid": os.getpid(),
        "ts": round(1e6 * event.start, 3),
        "dur": round(1e6 * event.duration, 3),
        "name": event.name,
        "cat": event.kind,
    }


# ---- recording -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def record(on: PyTorchDevice) -> Iterator[Trace]:
    """Record what the block runs.

    Parameters
    ----------
    on
        A device of `metallab.device.pick`, which is waited for around each operator.

    Yields
    ------
    Trace
        Complete when the block ends.

    Raises
    ------
    RuntimeError
        Inside another block that records.
    TypeError
        For a device's name or a `torch.device`.
    ValueError
        For an operator that runs on another device than this one and the CPU.
    """
    require_picked(on)
    if not _alone.acquire(blocking=False):
        raise RuntimeError(
            "a trace is being recorded already: end its block first, two would count everything twice"
        )

    try:
        recorder = _Recorder(on)
        with on.active(), recorder.modules, recorder.listening(), watching(recorder.see):
            # the first operator loads libraries, which takes long
            torch.ones(1, device=on.torch_device)
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

    def __init__(self, on: PyTorchDevice) -> None:
        self.on = on
        self.trace = Trace(on.label, "" if on.kind == "cpu" else on.kind, on.simulated)
        self.modules = CallingModules()
        self.threads = {threading.get_ident(): 0}
        """The number of each thread that ran an operator."""
        self.zero = 0
        """When the trace began, by `time.perf_counter_ns`."""
        self._reported = threading.local()
        """``inside``: what the simulated GPU reports of the operator that this thread runs."""

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what the simulated GPU reports while an operator runs."""
        if not self.on.simulated:
            yield
            return

        simulation.install(
            on_event=lambda event: getattr(self._reported, "inside", []).append(event)
        )
        try:
            yield
        finally:
            simulation.install(on_event=None)

    def see(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator, wait for it, note what it was, and return its result.

        It is one event of the trace, and one more for each copy that it makes inside. An operator that raises is none.
        ValueError if it ran on a device that this trace does not wait for.
        """
        if function.namespace == "profiler":  # PyTorch's own marks
            return function(*args, **kwargs)

        self.on.synchronize()  # what was launched unseen belongs to no event
        inside: list[Any] = []
        self._reported.inside = inside  # to which `listening` adds what the simulated GPU reports
        start = time.perf_counter_ns()
        try:
            result = function(*args, **kwargs)
            self.on.synchronize()
        finally:
            self._reported.inside = []  # what is reported between operators belongs to none
        stop = time.perf_counter_ns()

        call = _Call(function, args, kwargs, result, inside)
        event = self._describe(call, start, stop)
        self.trace.events.append(event)
        self.trace.events += self._describe_copies_inside(call, event)
        return result

    def _describe_copies_inside(self, call: _Call, event: Event) -> list[Event]:
        """Return the copies that an operator makes inside, which no mode sees; ``event`` is the operator's own.

        Of an operator that is a copy or a fallback there are none: what crosses there, its event has.
        """
        if not self.trace.accelerator or event.kind in ("copy", "fallback"):
            return []

        # the operator's own event, which came before, has kept the line for its gradient
        line = self.modules.find_line(has_node=False)
        copies = call.find_copies_inside(self.trace.accelerator)
        return [
            replace(
                event,
                kind="copy",
                device=self.trace.accelerator,
                bytes=size,
                duration=0.0,
                direction=direction,
                inferred=True,
                line=str(line or ""),
                source=line.source if line else "",
                own_line=str((line.own if line else None) or ""),
                is_backward=self.modules.is_in_backward(),
            )
            for direction, size in copies
        ]

    def _describe(self, call: _Call, start: int, stop: int) -> Event:
        """Return the event of an operator that has run, from one time to another in nanoseconds.

        ValueError if it ran on a device that this trace does not wait for.
        """
        there = self.trace.accelerator
        if strangers := call.devices - {there, "cpu", "meta"}:
            raise ValueError(
                f"{call.name} runs on {', '.join(strangers)}, and this trace waits for {self.on.kind} only: "
                "give record() the device that the code runs on"
            )

        # there fallbacks are deduced; the simulated GPU reports its own
        is_on_a_mac = there == "mps" and not self.on.simulated
        kind, direction, inferred = call.kind(there, is_on_a_mac)
        is_crossing = kind in ("copy", "fallback")
        # an operator without inputs, such as `ones`, is named by its result's dtype
        tensors = call.given or call.made

        line = self._find_line(call, is_crossing)
        own_line = line.own if line else None
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
            line=str(line or ""),
            source=line.source if line else "",
            own_line=str(own_line or ""),
            is_backward=is_crossing and self.modules.is_in_backward(),
        )

    def _find_line(self, call: _Call, is_crossing: bool) -> CallingLine | None:
        """Return the line of a copy or a fallback; None of another operator, and if it is not known.

        The line of another operator is kept if it has a gradient, because that may cross where the operator does not.
        """
        if not is_crossing and not call.has_node:
            return None
        line = self.modules.find_line(has_node=call.has_node)
        return line if is_crossing else None


class _Call:
    """An operator that has run, with its tensors."""

    def __init__(
        self, function: Any, args: tuple, kwargs: dict, result: Any, inside: Sequence[Any]
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.inside = inside
        """What the simulated GPU reported of it."""
        self.name: str = function.name()
        self.given, self.made = _list_tensors((args, kwargs)), _list_tensors(result)
        self.devices = {tensor.device.type for tensor in (*self.given, *self.made)}

    @property
    def has_node(self) -> bool:
        """Whether autograd has made a node for it, for its gradient."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.given)

    def direction(self, accelerator: str) -> Direction:
        """Return the direction of a copy between the CPU and the accelerator; '' of another copy or operator."""
        base = self.name.partition(".")[0]
        if base not in COPIES:
            return ""

        source = self.given[COPIES[base]].device.type
        # ITEM makes no tensor; of the others the target is the other device, or the same one
        target = "cpu" if base == ITEM else next(iter(self.devices - {source}), source)
        if {source, target} != {"cpu", accelerator}:
            return ""
        return "to host" if target == "cpu" else "to device"

    def kind(self, accelerator: str, is_on_a_mac: bool) -> tuple[EventKind, Direction, bool]:
        """Return the kind, a copy's direction, and whether a fallback was inferred.

        That the simulated GPU has reported a fallback comes before what the name of the operator says.
        """
        if any(event.kind == "fallback" for event in self.inside):
            return "fallback", "", False
        if direction := self.direction(accelerator):
            return "copy", direction, False
        if is_on_a_mac and "mps" in self.devices and self.leaves_the_gpu():
            return "fallback", "", True
        return "view" if self.function.is_view else "op", "", False

    def find_copies_inside(self, accelerator: str) -> list[tuple[Direction, int]]:
        """Return the direction and the bytes of copies that an operator on the accelerator makes inside.

        An index that lies on the CPU is copied to the device: of a mask the positions where it is true. Where a result
        has as many values as are chosen, their number is read. Numbers from Python go to the device, and a truth value
        that Python needs comes to the host.
        """
        base = self.name.partition(".")[0]
        if accelerator not in self.devices:
            return []
        if base == FROM_PYTHON:
            return [("to device", _count_bytes(self.made))]
        if base in READS_BY_PYTHON:
            return [("to host", READS_BY_PYTHON[base])]
        if base in INDEXING:
            return self._find_copies_of_indices(accelerator)
        if torch.Tag.dynamic_output_shape in self.function.tags:
            return [("to host", COUNT_BYTES)]
        return []

    def _find_copies_of_indices(self, accelerator: str) -> list[tuple[Direction, int]]:
        """Return the copies of an indexing, each as its direction and its bytes.

        From the CPU an index is copied as it is, and a mask as the positions where it is true, int64 for each of its
        dimensions. Of a mask on the accelerator the number of these positions comes to the host, for the result's size.
        """
        copies: list[tuple[Direction, int]] = []
        indices = self.args[1]  # one for each dimension that is indexed
        for index in _list_tensors(indices):
            is_mask = index.dtype in (torch.bool, torch.uint8)
            if index.device.type == accelerator:
                copies += [("to host", COUNT_BYTES)] if is_mask else []
            elif is_mask:
                chosen = int(index.count_nonzero())
                copies.append(("to device", COUNT_BYTES * chosen * index.dim()))
            else:
                copies.append(("to device", index.nbytes))
        return copies

    def leaves_the_gpu(self) -> bool:
        """Return True if PyTorch computes this call on the CPU of a Mac."""
        if operators.status(self.name) in ("missing", "falls back"):
            return True
        return isinstance(refusals.outcome(self.name, self.args, self.kwargs), refusals.Detour)

    def bytes(self, kind: EventKind, accelerator: str) -> int:
        """Return the bytes of an event; see `Event.bytes`."""
        if kind == "view":
            return 0

        # an operator that writes to what it is given may return it as well
        tensors = {id(tensor): tensor for tensor in (*self.given, *self.made)}.values()
        if kind == "op":
            return _count_bytes(tensors)

        reported = [event.bytes for event in self.inside if event.kind == kind]
        if reported:
            return sum(reported)

        there = [tensor for tensor in tensors if tensor.device.type == accelerator]
        if kind == "copy":  # as many as of its one tensor there
            return _count_bytes(there[:1])

        # a fallback copies arguments and results once, and back what it writes to
        written = [tensor for tensor in self._find_written() if tensor.device.type == accelerator]
        return _count_bytes([*there, *written])

    def _find_written(self) -> list[Tensor]:
        """Return the arguments that the operator writes to, as its schema marks them."""
        values = []
        for index, slot in enumerate(self.function._schema.arguments):
            if slot.alias_info and slot.alias_info.is_write:
                is_positional = index < len(self.args)
                values.append(self.args[index] if is_positional else self.kwargs.get(slot.name))
        return _list_tensors(values)


def _list_tensors(values: Any) -> list[Tensor]:
    """Return the tensors among an operator's arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of dense tensors; others have no such figure."""
    dense = [each for each in tensors if each.layout == torch.strided and not each.is_nested]
    return sum(tensor.nbytes for tensor in dense)


# ---- spans of time, and words ----------------------------------------------------------------------------------------


def _total(spans: Iterable[TimeSpan]) -> float:
    """Return how long spans are together, in seconds."""
    return sum(end - start for start, end in spans)


def _without(intervals: Iterable[TimeSpan], taken: Sequence[TimeSpan]) -> list[TimeSpan]:
    """Return what is left of intervals, in order, where others are taken away.

    Both are sorted, and no two of ``taken`` overlap.
    """
    left = []
    for start, end in intervals:
        free_from = start
        for low, high in taken:
            if high <= free_from or low >= end:
                continue
            if low > free_from:
                left.append((free_from, low))
            free_from = high

        if free_from < end:
            left.append((free_from, end))
    return left


def _count_crossings(events: Iterable[Event]) -> tuple[Crossing, ...]:
    """Return what the copies and fallbacks of one line are, those of one kind counted together."""
    alike: dict[tuple[object, ...], list[Event]] = collections.defaultdict(list)
    for event in events:
        # copies go by their direction, whichever operator makes them
        name = "" if event.kind == "copy" else event.name
        alike[event.kind, name, event.direction, event.inferred, event.is_backward].append(event)
    return tuple(map(_to_crossing, alike.values()))


def _to_crossing(events: Sequence[Event]) -> Crossing:
    """Return what events of one line are that have their kind in common."""
    first = events[0]
    return Crossing(
        kind=first.kind,
        name=first.short,
        direction=first.direction,
        inferred=first.inferred,
        is_backward=first.is_backward,
        calls=len(events),
        bytes=sum(event.bytes for event in events),
    )


def _sort_modules(events: Iterable[Event]) -> list[str]:
    """Return the modules of events, that with the most time first."""
    times: dict[str, float] = collections.defaultdict(float)
    for event in events:
        times[event.module] += event.duration
    return sorted(times, key=times.__getitem__, reverse=True)


def _describe_shapes(event: Event) -> str:
    """Return the shapes of an event's inputs, ``8x4, 4``, of many the first ones."""
    shapes = ["x".join(map(str, shape)) or "()" for shape in event.shapes]
    listed = ", ".join(shapes[:MOST_SHAPES])
    return f"{listed}, ... ({len(shapes)})" if len(shapes) > MOST_SHAPES else listed


def _list_some(names: Iterable[str], most: int = 2) -> str:
    """Return the first names, each once, and how many more there are."""
    each_once = list(dict.fromkeys(filter(None, names)))
    listed = BETWEEN_MODULES.join(each_once[:most])
    return f"{listed} and {len(each_once) - most} more" if len(each_once) > most else listed


def _starving_style() -> dict[str, Any]:
    """Return how it is drawn that the accelerator starves."""
    from metallab import plots

    return {"facecolor": plots.YELLOW, "alpha": 0.35}


def _styles() -> dict[str, dict[str, Any]]:
    """Return how events are drawn, by the legend's words."""
    from metallab import plots

    return {
        "operator on the accelerator": {"facecolor": plots.BLUE},
        "copy to the device": {"facecolor": plots.ORANGE},
        "copy to the host": {"facecolor": plots.PURPLE},
        "operator on the CPU": {"facecolor": plots.GREEN},
        "fallback": {"facecolor": plots.RED},
        "fallback, inferred": {"facecolor": plots.RED, "hatch": "///", "edgecolor": "#a34700"},
    }
