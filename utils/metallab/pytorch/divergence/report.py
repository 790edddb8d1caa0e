"""What a search for the first wrong operator has found."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from metallab.outcomes import Agreement
from metallab.pytorch.divergence import wording
from metallab.pytorch.divergence.conditions import Condition, Fix, FixKind, choose_fix
from metallab.pytorch.divergence.differences import (
    Difference,
    NotCompared,
    WrongDraw,
    WrongKind,
    WrongValues,
)
from metallab.pytorch.divergence.runs import WITH_GRADIENTS, RunMode
from metallab.pytorch.divergence.threads import PUBLIC_THREADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Direction = Literal["forward", "backward", "step"]
"""Where an operator was called; ``step`` is the optimizer's."""
SMALLEST_DRAWN = 1e-17
"""An error of 0 is drawn here: the axis is logarithmic."""
MOST_LABELS = 16
"""With more layers not each has its name below the axis, and names are turned, so that they do not overlap."""


class Outcome(StrEnum):
    """What a search ended with."""

    AGREES = "agrees"
    WRONG_KERNEL = "wrong kernel"
    """A call was wrong each time that it was made with the same numbers."""
    INTERMITTENT = "intermittent"
    """A call was wrong, and with the same numbers right later."""
    NAN = "NaN"
    """A NaN appears, in the same dtype on the CPU as well."""
    OUTPUT_DIFFERS = "output differs"
    """Each call that was compared agrees, and what the model returns or a layer computes does not."""
    RAISED = "raised"
    """The model raises on the device, not on the CPU, and no call before that was wrong."""


@dataclass(frozen=True)
class LayerError:
    """The error of a layer without layers inside, against the CPU in float64, over the root mean square."""

    module: str
    """As ``named_modules`` names it."""
    forward: float
    """The error of its output on the device; NaN without floating elements."""
    backward: float
    """The error of the gradient by its output; NaN if there is none."""
    forward_cpu: float
    """As ``forward``, of the CPU in the model's dtype: rounding. NaN without such a kernel."""
    backward_cpu: float
    """As ``backward``, of the CPU in the model's dtype."""


@dataclass(frozen=True)
class UnexplainedLayer:
    """The first layer whose error rounding does not explain."""

    error: LayerError
    direction: Literal["forward", "backward"]
    """Whether its output is off, or the gradient by it."""
    before: str | None = None
    """The layer that ran before it, whose output agrees; None if there is none, and of a gradient."""

    def __str__(self) -> str:
        return wording.first_layer_off(self)


@dataclass(frozen=True)
class Unexplained:
    """What differs from the CPU though each call that was compared agrees."""

    output: WrongValues | WrongKind | None
    """How the first output of the model differs that does; None if all agree."""
    layer: UnexplainedLayer | None = None
    """None if no layer differs, or their errors are not known."""
    unwritten_lines: tuple[str, ...] = ()
    """``file:number`` of the lines that ask for memory; empty unless an output depends on memory that nobody wrote to,
    which may agree by chance."""


@dataclass(frozen=True)
class CallSite:
    """Where an operator is called."""

    operator: str
    """``aten::convolution``."""
    module: str
    """The innermost module that calls it; empty for the model itself."""
    direction: Direction

    def __str__(self) -> str:
        return wording.call_site(self)


@dataclass(frozen=True)
class Place:
    """Which part of a model runs, and how the model is run."""

    module: str
    """The innermost module; empty for the model itself."""
    direction: Direction
    mode: RunMode

    def __str__(self) -> str:
        return wording.place(self)


@dataclass(frozen=True)
class RandomOperator:
    """An operator that draws random numbers, which are not compared; only whether they can have been drawn."""

    operator: str
    """``aten::native_dropout``."""
    module: str
    """The innermost module that calls it; empty for the model itself."""

    def __str__(self) -> str:
        return wording.random_operator(self)


@dataclass(frozen=True)
class DivergentCall:
    """The first call that is wrong, or makes a NaN."""

    operator: str
    """``aten::convolution``."""
    module: str
    """The innermost module that called it, as ``named_modules`` names it; empty for the model itself."""
    direction: Direction
    dtype: str
    """The dtype of the first tensor that it was given, ``float32``."""
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of all tensors that it was given."""
    difference: Difference
    """How its result differs."""
    wrong_calls: int = 1
    """How many times it was wrong with the same numbers."""
    right_calls: int = 0
    """How many times it was right with the same numbers, when it was made again."""
    mode: RunMode = WITH_GRADIENTS
    """How the model was run."""

    @property
    def is_intermittent(self) -> bool:
        """Whether the same call was right, too."""
        return self.right_calls > 0


@dataclass(frozen=True)
class NotRun:
    """A way to run the model in which it raises."""

    mode: RunMode
    error: str
    """The first line of what it raises."""

    def __str__(self) -> str:
        return wording.not_run(self)


@dataclass
class Report:
    """What `metallab.pytorch.divergence.find` has found; as text all of it, in a notebook as a table."""

    agreement: Agreement
    """Whether the device and the CPU agree."""
    device: str
    """The device's label."""
    compared: int = 0
    """How many calls of operators were compared."""
    largest: float = 0.0
    """The largest difference of those that agree, relative to the root mean square: rounding."""
    divergent_call: DivergentCall | None = None
    """The first call that is wrong, or makes a NaN; None if there is none."""
    conditions: tuple[Condition, ...] = ()
    """What the fault needs: a layout, a number of elements. ``str`` of each is its words."""
    program: str = ""
    """At most 20 lines that end with an AssertionError; empty if random numbers do not show the fault."""
    layers: tuple[LayerError, ...] = ()
    """The error of each layer; empty if they were not asked for, or could not be compared."""
    random: tuple[RandomOperator, ...] = ()
    """Random operators, with their modules."""
    not_compared: dict[str, NotCompared] = field(default_factory=dict)
    """Operators that were not compared, with the reason."""
    layers_not_compared: NotCompared | None = None
    """Why the errors of layers are not known, though they were asked for."""
    unexplained: Unexplained | None = None
    """What the model or a layer computes otherwise than the CPU though each compared call agrees; None if nothing."""
    is_output_compared: bool = False
    """Whether what the model returns was compared with the CPU: not where a call is wrong, or without ``layers``."""
    output_not_compared: NotCompared | None = None
    """Why it was not, though it was to be."""
    skipped: int = 0
    """Calls that were not compared because the time was over."""
    known: int = 0
    """Calls that were passed over: one of the same kind was compared when the model was run in another mode."""
    uncompared: int = 0
    """Calls of random operators, and of those in `not_compared` that have no right result on the CPU."""
    modes: tuple[RunMode, ...] = ()
    """How the model was run."""
    raised: str | None = None
    """What the model raises on the device as it was given, not on the CPU; a wrong call before it may be the cause."""
    is_raised_by_loss: bool = False
    """Whether it is the loss that raises it."""
    is_loss_narrowed: bool = False
    """Whether the loss has float64 around it, which no Apple GPU has, so that float32 stood in its place."""
    repeated: int = 0
    """Calls that were made again with other numbers, and compared: what was right once may be wrong later."""
    repeated_kinds: int = 0
    """Of how many kinds they were."""
    not_run: tuple[NotRun, ...] = ()
    """Ways to run the model in which it raises."""
    infinity: CallSite | None = None
    """The call that made the first infinity, or the one that a NaN comes from."""

    @property
    def calls(self) -> int:
        """All calls of operators, but those of a kind that was compared in another mode."""
        return self.compared + self.skipped + self.uncompared

    @property
    def kind(self) -> Outcome:
        """What the search ended with; prints as ``agrees``, ``wrong kernel`` or another of its values."""
        if self.divergent_call is None:
            return self._kind_without_call()
        if self.agreement != "differs":
            return Outcome.NAN
        if self.divergent_call.is_intermittent:
            return Outcome.INTERMITTENT
        return Outcome.WRONG_KERNEL

    def _kind_without_call(self) -> Outcome:
        """Return what a search ended with that found no wrong call."""
        if self.raised is not None:
            return Outcome.RAISED
        return Outcome.AGREES if self.unexplained is None else Outcome.OUTPUT_DIFFERS

    @property
    def is_complete(self) -> bool:
        """Whether the time was enough to compare all calls."""
        return self.skipped == 0

    def merge(self, other: Report) -> Report:
        """Return what this run and another one of the same model have found: the first wrong call, or else a NaN."""
        worst = self if self.divergent_call is not None else other
        if other.agreement == "differs" and self.agreement != "differs":
            worst = other
        # a run that raised on the device is not made good by one in another mode that agrees
        agreements = (self.agreement, other.agreement)
        is_refused = worst.agreement != "differs" and "refused" in agreements

        return replace(
            worst,
            agreement="refused" if is_refused else worst.agreement,
            raised=self.raised or other.raised,
            is_raised_by_loss=self.is_raised_by_loss or other.is_raised_by_loss,
            compared=self.compared + other.compared,
            largest=max(self.largest, other.largest),
            infinity=worst.infinity or self.infinity,
            random=tuple(dict.fromkeys((*self.random, *other.random))),
            not_compared=self.not_compared | other.not_compared,
            skipped=self.skipped + other.skipped,
            known=self.known + other.known,
            uncompared=self.uncompared + other.uncompared,
            modes=(*self.modes, *other.modes),
            not_run=(*self.not_run, *other.not_run),
        )

    @property
    def fix(self) -> Fix:
        """What to put in the wrong operator's place, or to do about one that is wrong at times; `advice` has the words.

        Without a fault it says nothing of use.
        """
        first = self.divergent_call
        if first is None and self.unexplained is not None:
            is_unwritten = bool(self.unexplained.unwritten_lines)
            return Fix(FixKind.FILL_MEMORY if is_unwritten else FixKind.FIND_SOURCE)
        if first is not None and isinstance(first.difference, WrongDraw):
            return Fix(FixKind.DRAW_ON_CPU)
        if self.kind is Outcome.INTERMITTENT:
            # Less work helps against calls that macOS aborts for their length. An operator about which others reported
            # such faults is the likelier cause.
            is_reported = first is not None and first.operator.rpartition("::")[2] in PUBLIC_THREADS
            return Fix(FixKind.OTHER_OPERATORS if is_reported else FixKind.LESS_WORK)
        return choose_fix(self.conditions, is_step=first is not None and first.direction == "step")

    @property
    def advice(self) -> str:
        """The words of `fix`."""
        return str(self.fix)

    @property
    def headline(self) -> str:
        """The report in one sentence."""
        return wording.headline(self)

    def __str__(self) -> str:
        lines = [f"  {name}: {text}" for name, text in wording.rows(self)]
        return "\n".join([self.headline, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return a table for a notebook.

        Its edge is green; red if a call is wrong or makes a NaN, or the output differs; orange if time ran out.
        """
        colour = "#009e73" if self.is_complete else "#e69f00"
        if self.divergent_call is not None or self.unexplained is not None:
            colour = "#d55e00"
        style = f"border-left:.4em solid {colour};padding:.5em 1em"

        cell = '<td style="text-align:left">'
        rows = "".join(
            f"<tr>{cell}{name}</td>{cell}{html.escape(text)}</td></tr>"
            for name, text in wording.rows(self)
        )
        return (
            f'<div style="{style}"><b>{html.escape(self.headline)}</b><table>{rows}</table></div>'
        )

    def draw(self) -> Figure:
        """Draw the error of each layer, forward and backward, beside rounding on the CPU.

        Returns
        -------
        matplotlib.figure.Figure
            The errors are relative to the root mean square. A dotted line stands at the layer of the first wrong call.
            Without errors of layers (see `layers`) the picture is empty.
        """
        import matplotlib.pyplot as plt

        from metallab import plots

        with plt.rc_context(plots.STYLE):
            figure, (forward, backward) = plt.subplots(
                2, 1, figsize=(7.5, 4.6), sharex=True, sharey=True
            )
            self._draw_errors(forward, "forward")
            self._draw_errors(backward, "backward")
            forward.legend(fontsize=8)
            self._label_layers(backward)

            title = "The error of each layer, against the CPU in float64"
            plots.title(figure, title, [self.device])

        ending = "no operator is wrong"
        if self.divergent_call is not None:
            ending = f"the first wrong operator is {self.divergent_call.operator}"
        described = f"error of {len(self.layers)} layers, forward and backward; {ending}"
        return plots.describe(figure, described)

    def _draw_errors(self, axes: Axes, direction: Literal["forward", "backward"]) -> None:
        """Draw the errors of one direction, with a line at the first wrong call if it is in a layer and that direction.

        An error of 0 is drawn at `SMALLEST_DRAWN`, since the axis is logarithmic; an error that is not known, NaN, is a
        gap in the line.
        """
        from metallab import plots

        for key, label, style, colour in (
            (direction, "device", "o-", plots.RED),
            (f"{direction}_cpu", "rounding on a CPU", "s--", plots.BLUE),
        ):
            # the error first: max(nan, x) is NaN, and max(x, nan) is x
            errors = [max(getattr(layer, key), SMALLEST_DRAWN) for layer in self.layers]
            axes.plot(range(len(errors)), errors, style, color=colour, label=label, markersize=5)

        axes.set_yscale("log")
        axes.set_ylabel(f"{direction}: error\nover RMS")

        first = self.divergent_call
        names = [layer.module for layer in self.layers]
        if first is not None and first.direction == direction and first.module in names:
            axes.axvline(names.index(first.module), color=plots.GREY, linestyle=":", zorder=0)
            axes.set_title(f"first wrong: {first.operator} in {first.module}", fontsize=9)

    def _label_layers(self, axes: Axes) -> None:
        """Write the names of layers below an axis: of more than `MOST_LABELS` at most so many, at equal distances."""
        names = [layer.module for layer in self.layers]
        step = max(1, math.ceil(len(names) / MOST_LABELS))  # 1 also without a layer
        positions = range(0, len(names), step)
        if step > 1:
            axes.set_xticks(positions, names[::step], rotation=60, ha="right")
        else:
            axes.set_xticks(positions, names)
        axes.set_xlabel("layer, in the order of the forward pass")
