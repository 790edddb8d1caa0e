"""Metal puzzles: a kernel with a gap, graded in one sentence, with a picture of which thread reads and writes what.

    twice = Puzzle("twice", lambda a: 2 * a, inputs=lambda n: [torch.randn(n)], sizes=[(8,), (33,)])
    twice.check("kernel void twice(...) { ... }")

On Linux each access is recorded by `metalsim.shader`. On an Apple or NVIDIA GPU the kernel runs as well, or on a Mac
only, and its time is compared with that of a copy.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metallab import checks, judgement, plots, results_made

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from metallab.device import Device
    from metalsim.shader import Accesses

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n#line 1\n"
SECONDS = 4.0  # for one run; a right answer takes less than one
MOST_THREADS, MOST_INTERVALS = 24, 4  # that are drawn
_KINDS = {
    "address": "out of bounds",
    "race": "race",
    "barrier": "divergent barrier",
    "hang": "does not end",
}


@dataclass(frozen=True)
class Score:
    """What a kernel costs: numbers read from and written to device memory, for each result; barriers that a thread
    passes, at most; bytes of threadgroup memory.
    """

    reads: float
    writes: float
    barriers: int = 0
    shared: int = 0

    def __str__(self) -> str:
        reads, writes, barriers = (
            f"{n:.3g} {what}{'' if n == 1 else 's'}"
            for n, what in (
                (self.reads, "read"),
                (self.writes, "write"),
                (self.barriers, "barrier"),
            )
        )
        return f"{reads} and {writes} for each result, {barriers}, {self.shared} bytes of threadgroup memory"


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel is right, or the first thing that is wrong with it, in a sentence.

    `kind` is one of right, does not compile, wrong call, out of bounds, race, divergent barrier, does not end,
    uninitialised, wrong value, too slow.
    """

    kind: str
    sentence: str
    score: Score | None = None


class _Wrong(Exception):
    """Its arguments are those of a `Verdict`."""


@dataclass(frozen=True)
class Puzzle:
    """A kernel to write, and how it is judged.

    Parameters
    ----------
    name
        The kernel's name in the source. Its arguments are the result, the inputs, then the numbers.
    reference
        Input tensors -> the tensor that the kernel has to compute.
    inputs
        A size -> the input tensors.
    sizes
        Sizes that are tried, each a tuple of arguments for `inputs`, `numbers` and `launch`; the first is drawn.
    numbers
        A size -> integers after the inputs, each a ``constant long&`` of the kernel.
    launch
        A size -> ``threads`` and ``group_size``; by default a thread for each result.
    tolerance
        Largest error relative to max(1, \\|expected\\|); 0 compares bit by bit.
    best
        The `Score` of the best known kernel for the first size, as a tuple.
    most_reads
        More reads for each result than this, of the first input or of another of its shape, are too slow.
    steps
        Accesses to arrays of the busiest thread of the best known kernel, for the first size; twice as many are too
        slow.
    large
        The size that is timed on a GPU.
    """

    name: str
    reference: Callable[..., torch.Tensor]
    inputs: Callable[..., Sequence[torch.Tensor]]
    sizes: Sequence[tuple[int, ...]]
    numbers: Callable[..., Sequence[int]] = lambda *size: ()
    launch: Callable[..., dict[str, Any]] = lambda *size: {}
    tolerance: float = 0.0
    best: tuple[float, ...] | None = None
    most_reads: float = math.inf
    steps: int | None = None
    large: tuple[int, ...] | None = None

    def check(self, source: str, on: Device | None = None) -> judgement.Judgement:
        """Judge a kernel, and draw its accesses for the first size in a notebook.

        Returns a sentence with the score and, where ``on`` is an Apple or NVIDIA GPU, with its time beside that of a
        copy of as many bytes. Raises `checks.WrongAnswer` with the first thing that is wrong. A source in
        which the line with ``your code here`` still stands is not attempted yet. A kernel that does not end within
        `SECONDS` is *open*: either it never does, or this machine was too busy.
        """
        if source is ... or "your code here" in str(source):
            return judgement.Judgement(self.name, "not attempted", "not attempted yet")
        if not isinstance(source, str):
            raise checks.wrong_answer(
                self.name, f"the source is no text but a {type(source).__name__}."
            )
        verdict = self.grade(source, draw=True)
        if verdict.kind == "does not end":
            return judgement.Judgement(self.name, "open", f"open. {verdict.sentence}")
        if verdict.kind != "right":
            raise checks.wrong_answer(self.name, verdict.sentence)
        on_gpu = (
            "" if on is None or on.simulated or on.kind == "cpu" else f" {self._on_gpu(source, on)}"
        )
        return judgement.Judgement(self.name, "right", f"{verdict.sentence}{on_gpu}")

    def grade(self, source: str, draw: bool = False) -> Verdict:
        """Return the verdict on a kernel: of the first size with a fault, the first fault in the order of `Verdict`."""
        try:
            kernel, score, shares = self._kernel(source), None, False
            for size in self.sizes:
                run = self.run(source, size, kernel)
                if draw and score is None:
                    run.show()
                run.judge()
                score, shares = score or run.score(), shares or run.shares
        except _Wrong as wrong:
            return Verdict(*wrong.args)
        known = Score(*self.best) if self.best else score
        if kernel_is_simulated() and known.shared and not shares:
            unused = "no thread reads in threadgroup memory what another has written, which this puzzle is about."
            return Verdict("too slow", f"right, but {unused}", score)
        best = "" if known == score else f"; best known: {known}"
        if not kernel_is_simulated():
            return Verdict(
                "right",
                "right on this GPU; races and accesses outside of memory were not looked for.",
            )
        return Verdict("right", f"right: {score}{best}.", score)

    def run(self, source: str, size: tuple[int, ...], kernel: Any = None) -> Run:
        """Run a kernel at one size. What cannot be compiled or called is raised as a verdict."""
        return Run(self, kernel or self._kernel(source), source, size)

    @results_made.unheard()
    def _on_gpu(self, source: str, on: Device) -> str:
        """The kernel on a real GPU: its result at each size, and its time. `WrongAnswer` for a wrong result there."""
        import torch

        from metallab import timing
        from metallab.pytorch.kernels import nvrtc

        compiler = nvrtc if on.kind == "cuda" else torch.mps
        try:
            kernel = getattr(compiler.compile_shader(HEADER + source), self.name)
        except SyntaxError as error:
            return f"Not on {on.label}: {error.msg}."
        for size in [*self.sizes, *([self.large] if self.large else [])]:
            inputs = [tensor.contiguous() for tensor in self.inputs(*size)]
            expected = self.reference(*inputs)
            moved = [tensor.to(on.torch_device) for tensor in (torch.zeros_like(expected), *inputs)]
            launch = {"threads": expected.numel(), **self.launch(*size)}
            call = lambda moved=moved, size=size, launch=launch: kernel(
                *moved, *self.numbers(*size), **launch
            )
            call()
            if not bool(self.alike(moved[0].cpu(), expected).all()):
                raise checks.wrong_answer(
                    self.name, f"at size {_size(size)} the result is wrong on {on.label}."
                )
        if not self.large:
            return f"Right on {on.label}, too."
        source_bytes = torch.empty(
            sum(t.nbytes for t in moved) // 2, dtype=torch.uint8, device=on.torch_device
        )
        copy = torch.empty_like(source_bytes)
        compared = timing.compare(
            {self.name: call, "copy": lambda: copy.copy_(source_bytes)},
            on=on,
            baseline=self.name,
            parity=timing.Unchecked("a copy gives something else, and moves as many bytes"),
            question="throughput",
            name=f"{self.name}, size {_size(self.large)}",
        )
        return " ".join(compared.sentences)

    def alike(self, got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
        """Return for each result, flat, whether it is right: bit by bit, or within the tolerance."""
        got, wanted = got.double().flatten(), expected.double().flatten()
        close = (got - wanted).abs() <= self.tolerance * wanted.abs().clamp(min=1.0)
        return (got == wanted) | close | (got.isnan() & wanted.isnan())

    def _kernel(self, source: str) -> Any:
        try:
            library = _compile(HEADER + source)
        except SyntaxError as error:
            first = str(error).replace("program_source:", "line ").splitlines()[0]
            raise _Wrong("does not compile", f"it does not compile: {first}") from error
        try:
            return getattr(library, self.name)
        except AttributeError as error:
            raise _Wrong(
                "wrong call", f"there is no `kernel void {self.name}(...)` in it."
            ) from error
        except RuntimeError as error:  # too much threadgroup memory, for instance
            raise _Wrong("does not compile", f"{error}.") from error


def kernel_is_simulated() -> bool:
    """Whether kernels run on the simulated GPU, which records their accesses; on a Mac they run on its GPU."""
    return sys.platform != "darwin"


def _compile(source: str) -> Any:
    if kernel_is_simulated():
        from metalsim import shader
    else:
        from torch import mps as shader
    return shader.compile_shader(source)


class Run:
    """One run of a kernel at one size, and what can be said of it."""

    def __init__(self, puzzle: Puzzle, kernel: Any, source: str, size: tuple[int, ...]) -> None:
        import torch

        self.puzzle, self.kernel, self.source, self.size = puzzle, kernel, source, size
        inputs = [tensor.contiguous() for tensor in puzzle.inputs(*size)]
        self.expected = expected = puzzle.reference(*inputs).contiguous()
        where = "cpu" if kernel_is_simulated() else "mps"
        out = torch.full_like(expected, math.nan if expected.is_floating_point() else -(2**30))
        self.arrays = [out, *inputs]
        arguments = [tensor.to(where) for tensor in self.arrays]
        self.names = _parameters(source, puzzle.name)
        launch = {"threads": out.numel(), **puzzle.launch(*size)}
        numbers = puzzle.numbers(*size)
        if (given := len(arguments) + len(numbers)) != len(self.names):
            raise _Wrong(
                "wrong call", f"it has {len(self.names)} arguments in memory; {given} are passed."
            )
        self.threads, self.group = (
            _three(launch.get(key, launch["threads"])) for key in ("threads", "group_size")
        )
        self.accesses: Accesses | None = None
        self.shares = False  # a thread reads what another has written to threadgroup memory
        self.record = lambda **how: kernel.accesses(
            *arguments, *numbers, timeout=SECONDS, **launch, **how
        )
        try:
            if kernel_is_simulated():
                self.accesses = self.record()
                data = self.accesses.memory.get(0)
                self.result = (
                    out
                    if data is None
                    else torch.frombuffer(bytearray(data), dtype=out.dtype).view_as(out)
                )
            else:
                kernel(*arguments, *numbers, **launch)
                self.result = arguments[0].cpu()
        except (RuntimeError, TypeError) as error:
            raise _Wrong(
                "wrong call", f"it cannot be called: {str(error).splitlines()[0]}"
            ) from error

    def judge(self) -> None:
        """Raise `_Wrong` for the first fault."""
        if self.accesses is not None:
            self._judge_fault()
            self._judge_uninitialised()
        self._judge_values()
        slow, most = f"right, but too slow: at size {_size(self.size)}", self.puzzle.most_reads
        for index in (
            i for i, array in enumerate(self.arrays) if i and array.shape == self.arrays[1].shape
        ):
            if (reads := self.moved(index, 0)) > most:
                read = f"it reads {reads:.3g} numbers of {self.names[index]} from device memory for each result"
                raise _Wrong("too slow", f"{slow} {read}, and {most:.3g} are enough.")
        if self.accesses and (few := self.puzzle.steps) and self.size == self.puzzle.sizes[0]:
            own = self.accesses.lines[self.accesses.lines["kind"] < 2]
            most = np.bincount(own["group"] * np.prod(self.group) + own["thread"]).max()
            if most >= 2 * few:
                raise _Wrong(
                    "too slow", f"{slow} one thread makes {most} accesses, and {few} are enough."
                )

    def _judge_fault(self) -> None:
        fault = self.accesses.fault
        if fault is None:
            return
        kind = _KINDS.get(fault.kind, "does not end")
        at = f"at size {_size(self.size)} "
        marked = [one for one in self.accesses.lines if one["kind"] == (3 if kind == "race" else 2)]
        if kind == "out of bounds" and marked:
            verb = "reads" if "read" in fault.message else "writes"
            if not (found := self._nearest(marked, fault.line)):
                raise _Wrong(
                    kind,
                    f"{at}{self._thread(marked[0])} {verb} outside of every array{_line(fault.line)}.",
                )
            one, place = found
            shared = {name: length for _, length, name in self.accesses.shared}
            length = shared[place.name] if place.buffer is None else self._bytes(place.buffer)[1]
            signed = (
                f", which is {element} as an int"
                if (element := self._element(place)) < 0 <= place.byte
                else ""
            )
            raise _Wrong(
                kind,
                f"{at}{self._thread(one)} {verb} {self._named(place)}{_line(fault.line)}{signed}; {self._name(place)} "
                f"ends with element {length // self._width(place) - 1}.",
            )
        if kind == "race" and len(marked) > 1:
            now, before = marked[:2]
            raise _Wrong(
                kind,
                f"{at}{self._thread(before)} and {self._thread(now)} use {self._named(self.accesses.place(now))} in no "
                f"defined order, and at least one writes it{_line(*map(self.accesses.source_line, (before, now)))}.",
            )
        message = fault.message.replace("the others have returned", "the others do not reach it")
        raise _Wrong(kind, f"{at}{message}{_line(fault.line)}.")

    def _nearest(self, marked: list[np.void], line: int | None) -> tuple[np.void, Any] | None:
        """Of the lines for an access outside of all memory, the one for what was meant; None if that is not clear."""
        text = (
            self.source.splitlines()[line - 1]
            if line and line <= self.source.count("\n") + 1
            else ""
        )
        pairs = [(one, self.accesses.place(one)) for one in marked]
        named = [pair for pair in pairs if re.search(rf"\b{self._name(pair[1])}\s*\[", text)]
        far = lambda pair: abs(self._element(pair[1]))
        return min(named or [pair for pair in pairs if far(pair) < 1 << 18], key=far, default=None)

    def _judge_uninitialised(self) -> None:
        at, lines = f"at size {_size(self.size)} ", self.accesses.lines
        written: dict[tuple[int, int], int] = {}  # group, or -1 in `out`; byte -> who wrote it
        for one in lines[(lines["region"] < 0) | self._in_buffer(0)]:
            group, begin = int(one["group"]) if one["region"] < 0 else -1, int(one["offset"])
            keys = [(group, byte) for byte in range(begin, begin + int(one["bytes"]))]
            if one["kind"] == 1:
                written.update(dict.fromkeys(keys, one["thread"]))
            elif written.keys() >= set(keys):
                self.shares |= group >= 0 and any(written[key] != one["thread"] for key in keys)
            else:
                what = f"{self._named(self.accesses.place(one))}, which no thread has written"
                line = _line(self.accesses.source_line(one))
                raise _Wrong("uninitialised", f"{at}{self._thread(one)} reads {what}{line}.")
        for index in range(1, len(self.arrays)):
            for one in lines[self._in_buffer(index) & (lines["kind"] == 1)][:1]:
                place = f"{self._named(self.accesses.place(one))}{_line(self.accesses.source_line(one))}"
                raise _Wrong(
                    "wrong value", f"{at}{self._thread(one)} writes {place}, which is an input."
                )
        for element in range(self.expected.numel()):
            if (-1, element * self.expected.element_size()) not in written:
                raise _Wrong(
                    "uninitialised", f"{at}no thread writes {self.names[0]}{self._index(element)}."
                )

    def _judge_values(self) -> None:
        got, wanted = self.result.flatten(), self.expected.flatten()
        alike = self.puzzle.alike(got, wanted)
        if bool(alike.all()):
            return
        first = int((~alike).nonzero()[0])
        digits = 7 if wanted.is_floating_point() else 10
        got_text, wanted_text = (f"{each[first].item():.{digits}g}" for each in (got, wanted))
        kind, why = "wrong value", f"{int((~alike).sum())} of {len(alike)} are wrong."
        if self.accesses and self.record(unset="zero").memory != self.accesses.memory:
            kind, why = "uninitialised", "a thread reads a variable of its own that it has not set."
        place = f"{self.names[0]}{self._index(first)}"
        raise _Wrong(
            kind,
            f"at size {_size(self.size)} {place} is {got_text}, and should be {wanted_text}; {why}",
        )

    def score(self) -> Score:
        """What the kernel costs at this size; zeros where accesses were not recorded."""
        if self.accesses is None:
            return Score(0, 0)
        reads, writes = (
            sum(self.moved(index, kind) for index in range(len(self.arrays))) for kind in (0, 1)
        )
        barriers = int(self.accesses.lines["interval"].max(initial=0))
        return Score(reads, writes, barriers, self.kernel.static_thread_group_memory_length)

    def moved(self, index: int, kind: int) -> float:
        """How many numbers of a buffer are read (kind 0) or written (1) for each result."""
        if self.accesses is None:
            return 0.0
        mine = self.accesses.lines[self._in_buffer(index)]
        size = self.arrays[index].element_size()
        return float(mine["bytes"][mine["kind"] == kind].sum()) / size / self.expected.numel()

    def _in_buffer(self, index: int) -> np.ndarray:
        """Which lines are accesses to a buffer: each has a region of its own."""
        region = next(r for r, buffers in enumerate(self.accesses.regions) if index in buffers)
        return (self.accesses.lines["region"] == region) & (self.accesses.lines["kind"] < 2)

    def _position(self, one: np.void) -> tuple[int, ...]:
        """Position in the grid of the thread of a line."""
        groups = [-(-t // g) for t, g in zip(self.threads, self.group, strict=True)]
        group, thread = (
            _unflattened(int(one["group"]), groups),
            _unflattened(int(one["thread"]), self.group),
        )
        return tuple(g * s + t for g, s, t in zip(group, self.group, thread, strict=True))

    def _thread(self, one: np.void) -> str:
        axes = max((axis + 1 for axis in range(3) if self.threads[axis] > 1), default=1)
        position = ", ".join(map(str, self._position(one)[:axes]))
        return f"thread {position}" if axes == 1 else f"thread ({position})"

    def _bytes(self, index: int) -> tuple[int, int]:
        """Bytes of an element and of all of a buffer."""
        array = self.arrays[index] if index < len(self.arrays) else None
        return (8, 8) if array is None else (array.element_size(), array.nbytes)

    def _width(self, place: Any) -> int:
        """Bytes of an element."""
        lines = self.accesses.lines["bytes"][self.accesses.lines["region"] < 0]
        return int(lines.min(initial=16)) if place.buffer is None else self._bytes(place.buffer)[0]

    def _element(self, place: Any) -> int:
        """Which element a place is; a large one that an unsigned index below 0 became is below 0."""
        element = place.byte // self._width(place)
        return element - (1 << 32) if element >> 31 == 1 else element

    def _name(self, place: Any) -> str:
        return place.name if place.buffer is None else self.names[place.buffer]

    def _named(self, place: Any) -> str:
        shape = (
            re.search(rf"\b{place.name}((?:\s*\[\d+\])+)", self.source)
            if place.buffer is None
            else None
        )
        element = place.byte // self._width(place)
        sides = [int(side) for side in re.findall(r"\d+", shape[1])] if shape else []
        if len(sides) == 2:
            return f"{place.name}[{element // sides[1]}][{element % sides[1]}]"
        return f"{self._name(place)}[{element}]"

    def _index(self, element: int) -> str:
        shape = list(self.expected.shape)
        if len(shape) < 2:
            return f"[{element}]"
        return f"[{element}] (row {element // shape[-1]}, column {element % shape[-1]})"

    def show(self) -> None:
        """Display the accesses of this run in a notebook."""
        if self.accesses is not None and len(self._seen()):
            from IPython.display import display

            display(figure := self.draw())
            plots.plt.close(figure)

    def _seen(self) -> list[tuple[np.void, Any]]:
        """Accesses of the first threadgroup to arrays, and where each was."""
        lines = self.accesses.lines[self.accesses.lines["group"] == 0]
        seen = [(one, self.accesses.place(one)) for one in lines[lines["kind"] < 2]]
        if found := self._nearest(
            [*lines[lines["kind"] == 2]], self.accesses.fault and self.accesses.fault.line
        ):
            seen.append(found)
        return [
            (one, place)
            for one, place in seen
            if place.buffer is None or place.buffer < len(self.arrays)
        ]

    def draw(self) -> Figure:
        """Return a picture of the first threadgroup: a column an interval between barriers, in it from below the
        inputs, the threads, threadgroup memory and the result; a line for each read (blue) and write (orange).
        """
        seen = self._seen()
        intervals = sorted({int(one["interval"]) for one, _ in seen})
        intervals = [*intervals[: MOST_INTERVALS - 1], *intervals[MOST_INTERVALS - 1 :][-1:]]
        most = MOST_THREADS // len(intervals)
        shared = sorted({place.name for _, place in seen if place.buffer is None})
        rows = [*reversed(self.names[1 : len(self.arrays)]), "threads", *shared, self.names[0]]
        shown = [
            (one, place)
            for one, place in seen
            if one["thread"] < most and one["interval"] in intervals
        ]
        shown = [(one, place) for one, place in shown if -2 <= self._element(place) < 2 * most]
        some = ", not all drawn" if len(shown) < len(seen) else ""
        with plots.plt.rc_context(plots.STYLE | {"axes.grid": False}):
            size = (7.5, 0.8 + 0.6 * len(rows))
            figure, axes = plots.plt.subplots(
                1, len(intervals), figsize=size, squeeze=False, sharey=True
            )
            for axis, interval in zip(axes[0], intervals, strict=True):
                self._draw_interval(
                    axis, rows, [(o, p) for o, p in shown if o["interval"] == interval]
                )
                if len(intervals) > 1:
                    axis.set_title(f"after {interval} barrier{'' if interval == 1 else 's'}")
            axes[0][0].set_yticks(range(len(rows)), rows)
            outside = ", or outside (red)" if any(one["kind"] == 2 for one, _ in seen) else ""
            heading = f"{self.puzzle.name}, size {_size(self.size)}{some}: who reads (blue) and writes (orange) what"
            plots.title(figure, heading + outside, [])
        return plots.describe(figure, self._in_words(seen))

    def _draw_interval(self, axis: Any, rows: list[str], seen: list[tuple[np.void, Any]]) -> None:
        middle = rows.index("threads")
        cells: dict[int, dict[int, str]] = {row: {} for row in range(len(rows))}
        for one, place in seen:
            thread, element = int(one["thread"]), self._element(place)
            row = rows.index(self._name(place))
            colour = (plots.BLUE, plots.ORANGE, plots.RED)[one["kind"]]
            step = 0.2 if row > middle else -0.2
            axis.plot(
                [thread, element],
                [middle + step, row - step],
                color=colour,
                linewidth=0.9,
                alpha=0.8,
            )
            cells[row][element] = str(element)
            cells[middle][thread] = re.sub(r"[^\d,]", "", self._thread(one))
        for row, elements in cells.items():
            marker = "o" if row == middle else "s"
            axis.plot(
                [*elements],
                [row] * len(elements),
                marker,
                color="white",
                markeredgecolor=plots.GREY,
                markersize=11,
            )
            for element, text in elements.items():
                axis.text(
                    element, row, text, ha="center", va="center", fontsize=7 - (len(text) > 2)
                )
        axis.set_ylim(-0.5, len(rows) - 0.5)
        axis.set_xticks([])
        axis.spines[["left", "bottom"]].set_visible(False)

    def _in_words(self, seen: list[tuple[np.void, Any]]) -> str:
        verbs = ("reads", "writes", "goes outside at")
        said = [
            f"{self._thread(one)} {verbs[one['kind']]} {self._named(place)}" for one, place in seen
        ]
        more = f", and {len(said) - 12} more accesses" if len(said) > 12 else ""
        return f"Accesses of the first threadgroup of {self.puzzle.name}: {', '.join(said[:12])}{more}."


def _parameters(source: str, kernel: str) -> list[str]:
    """Names of the kernel's buffers in order."""
    found = re.search(rf"kernel\s+void\s+{kernel}\s*\((.*?)\)\s*\{{", source, re.DOTALL)
    inside = re.sub(r"\[\[.*?\]\]", "", found[1] if found else "", flags=re.DOTALL)
    parts = [part.strip() for part in inside.split(",")]
    return [
        re.findall(r"\w+", part)[-1]
        for part in parts
        if re.match(r"(const\s+)?(device|constant)\b", part)
    ]


def _line(*numbers: int | None) -> str:
    known = sorted({number for number in numbers if number})
    return (
        f" (line{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))})" if known else ""
    )


def _three(value: Any) -> tuple[int, int, int]:
    return tuple([*(value if isinstance(value, Sequence) else [value]), 1, 1][:3])


def _unflattened(number: int, sides: Sequence[int]) -> tuple[int, int, int]:
    return number % sides[0], number // sides[0] % sides[1], number // (sides[0] * sides[1])


def _size(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
