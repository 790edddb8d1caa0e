"""Find the operator that computes wrongly on a device, in a model, with a program for a bug report.

::

    verdict = blame.find(model, inputs, on=lab)  # forward, loss and backward; with optimizer=..., a step, too
    verdict                                      # what is wrong, where, and under which conditions
    verdict.program                              # at most 20 lines that show it without the model
    verdict.draw()                               # how the error grows from layer to layer

**How.** Each operator of the forward and the backward pass is computed again on the CPU in float64 from the numbers
that the *device* gave it. So errors do not add up, and the first operator that differs is wrong. Everything that it
returns or writes is compared: values, positions by the values that they point at, dtypes, and the memory of its
arguments, which must not change where the operator writes nothing.

**When a value is wrong.** Its error is larger than `metallab.checks` allows its dtype, relative to the root mean square
of the result, and larger than rounding explains: 8 times the error of the CPU in the same dtype, or of changing each
argument in its last bit. Infinities and NaN must be where the CPU has them.

**Again.** A wrong call is made again with the same numbers. If it is right then, the verdict is *intermittent*, and
there is nothing to shrink: macOS aborts GPU jobs that take long, and PyTorch does not notice.

**Random numbers** differ on every device. Dropout has to keep its share and scale what it keeps; other random operators
are listed in ``Verdict.random``, not compared. Nor is what PyTorch cannot compute on the CPU in float64, memory that is
not written yet (``empty``), and views.
"""

from __future__ import annotations

import dataclasses
import html
import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from metallab import units
from metallab.device import Device
from metallab.outcomes import Agreement
from metallab.pytorch.agreement import (
    REFUSED,
    Comparison,
    drops_nothing,
    fault_of_dropout,
    has,
    results,
)
from metallab.pytorch.copies import copied, mapped, tensors_in
from metallab.pytorch.dispatch import CallingModules, watching
from metallab.pytorch.wrong_calls import (
    EMPTY,
    FLOAT32,
    OR_MORE,
    Call,
    Layout,
    floats,
    shrunk,
    widened,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABORTED_CALLS = "https://github.com/pytorch/pytorch/pull/193571"
"""The report that PyTorch does not notice when macOS aborts a GPU job."""
RIGHT_AGAIN = 3
"""A wrong call is made again until it has been right so many times."""
MOST_CALLS = 20
"""It is made at most so many times; if it was never right then, its kernel is always wrong."""
UNWRITTEN = ("empty", "new_empty", "resize", "set_", "detach", "_efficientzerotensor")

Direction = Literal["forward", "backward", "step"]
"""Where an operator was called; ``step`` is the optimizer's."""
WHERE = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "step": "the optimizer's step",
}


@dataclass(frozen=True)
class LayerError:
    """The error of a layer without layers inside, against the CPU in float64, over the root mean square."""

    module: str
    forward: float
    """Of its output on the device; NaN without floating elements."""
    backward: float
    """Of the gradient by its output; NaN if there is none."""
    forward_cpu: float
    """As ``forward``, of the CPU in the model's dtype: rounding. NaN without such a kernel."""
    backward_cpu: float


@dataclass(frozen=True)
class Culprit:
    """The first call that is wrong, or makes a NaN."""

    operator: str
    """``aten::convolution``."""
    module: str
    """The innermost module that called it, as ``named_modules`` names it; empty for the model itself."""
    direction: Direction
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    """Of the tensors that it was given."""
    difference: str
    """How its result differs, in words."""
    wrong_calls: int = 1
    """How many times it was wrong with the same numbers."""
    right_calls: int = 0
    """How many times it was right with the same numbers, when it was made again."""

    @property
    def is_intermittent(self) -> bool:
        """Whether the same call was right, too."""
        return self.right_calls > 0


@dataclass
class Verdict:
    """What `find` has found."""

    agreement: Agreement
    """Of the device with the CPU."""
    device: str
    judged: int = 0
    """Calls of operators that were compared."""
    largest: float = 0.0
    """The largest difference of those that agree, relative to the root mean square: rounding."""
    culprit: Culprit | None = None
    conditions: tuple[str, ...] = ()
    """The conditions of the fault: a layout, a number of elements."""
    program: str = ""
    """At most 20 lines that end with an AssertionError; empty if random numbers do not show the fault."""
    layers: tuple[LayerError, ...] = ()
    random: tuple[str, ...] = ()
    """Random operators, with their modules."""
    unjudged: dict[str, str] = field(default_factory=dict)
    """Operators that were not compared, with the reason."""
    skipped: int = 0
    """Calls that were not compared because the time was over."""
    infinity: str = ""
    """The call that made the first infinity, or the one that a NaN comes from."""

    @property
    def kind(self) -> str:
        """``agrees``, ``wrong kernel``, ``intermittent`` or ``NaN``.

        *Intermittent*: a call was wrong, and with the same numbers right later. *NaN*: one appears, in the CPU's
        float32 as well.
        """
        if self.culprit is None:
            return "agrees"
        if self.agreement != "differs":
            return "NaN"
        return "intermittent" if self.culprit.is_intermittent else "wrong kernel"

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.culprit is None:
            every = f"{self.judged} of {self.judged + self.skipped}"
            return f"On {self.device} {every} calls of operators agree with the CPU in float64."
        bad = self.culprit
        where = f"{bad.operator} in {f'{bad.module}, ' if bad.module else ''}{WHERE[bad.direction]}"
        if self.kind == "NaN":
            origin = f" Its infinity comes from {self.infinity}." if self.infinity else ""
            return f"A NaN appears in {where}, on the CPU in {bad.dtype} as well.{origin}"
        if self.kind == "intermittent":
            every = bad.wrong_calls + bad.right_calls
            return (
                f"INTERMITTENT: {where}, on {self.device}, was wrong in {bad.wrong_calls} of {every} calls with the "
                f"same numbers. macOS may have aborted the call, which PyTorch does not notice ({ABORTED_CALLS}), "
                "or threads race."
            )
        needs = f" The fault needs: {'; '.join(self.conditions)}." if self.conditions else ""
        return f"WRONG KERNEL: {where}, on {self.device}.{needs}"

    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        if bad := self.culprit:
            rows += [
                ("given", f"{bad.dtype}, {', '.join(map(str, bad.shapes))}"),
                ("result", bad.difference),
            ]
        if self.agreement == "differs":
            rows.append(("what to do", self.advice))
        else:
            rows.append(("rounding", f"up to {self.largest:.1e} of the root mean square"))
        if self.infinity and self.kind != "NaN":
            rows.append(("infinity", f"first in {self.infinity}"))
        rows += [("random", f"{name}: devices draw numbers of their own") for name in self.random]
        rows += [("not compared", f"{name}: {why}") for name, why in self.unjudged.items()]
        return rows

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {name}: {text}" for name, text in self._rows())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colour = "#009e73" if self.culprit is None else "#d55e00"
        cell = '<td style="text-align:left">'
        rows = "".join(
            f"<tr>{cell}{name}</td>{cell}{html.escape(text)}</td></tr>"
            for name, text in self._rows()
        )
        style = f"border-left:.4em solid {colour};padding:.5em 1em"
        return (
            f'<div style="{style}"><b>{html.escape(self.headline)}</b><table>{rows}</table></div>'
        )

    @property
    def advice(self) -> str:
        """What to put in the wrong operator's place, or to do about one that is wrong at times."""
        if self.kind == "intermittent":
            return "give the GPU less work at a time, such as smaller batches, close what else uses it, and run again"
        if FLOAT32 in self.conditions:
            return "compute it in float32"
        if EMPTY in self.conditions:
            return "leave it out where there is nothing to compute"
        if any(OR_MORE in condition for condition in self.conditions):
            return "give it fewer elements at a time, or compute it on the CPU"
        if self.conditions and self.culprit.direction == "step":
            return "make the weights contiguous before training, weight.data = weight.data.contiguous()"
        if self.conditions:
            given = {condition.split()[0]: "clone" for condition in self.conditions}
            given |= {
                c.split()[0]: "contiguous" for c in self.conditions if "contiguous" in c
            }  # moves it, too
            return "; ".join(
                f"give it {name}.{how}() in place of {name}" for name, how in given.items()
            )
        return "compute it on the CPU, or write it with other operators"

    def draw(self) -> Figure:
        """Draw the error of each layer, forward and backward, beside rounding on the CPU."""
        import matplotlib.pyplot as plt

        from metallab import plots

        names = [layer.module for layer in self.layers]
        steps = range(len(names))
        with plt.rc_context(plots.STYLE):
            figure, rows = plt.subplots(2, 1, figsize=(7.5, 4.6), sharex=True, sharey=True)
            for axes, part in zip(rows, ("forward", "backward"), strict=True):
                lines = (
                    (part, "device", "o-", plots.RED),
                    (f"{part}_cpu", "rounding on a CPU", "s--", plots.BLUE),
                )
                for key, label, style, colour in lines:
                    errors = [max(getattr(layer, key), 1e-17) for layer in self.layers]
                    axes.plot(steps, errors, style, color=colour, label=label, markersize=5)
                axes.set_yscale("log")
                axes.set_ylabel(f"{part}: error\nover RMS")
                if self.culprit and self.culprit.direction == part and self.culprit.module in names:
                    where = names.index(self.culprit.module)
                    axes.axvline(where, color=plots.GREY, linestyle=":", zorder=0)
                    axes.set_title(
                        f"first wrong: {self.culprit.operator} in {self.culprit.module}", fontsize=9
                    )
            rows[0].legend(fontsize=8)
            step = max(1, len(names) // 16)
            rows[1].set_xticks(
                steps[::step],
                names[::step],
                **({"rotation": 60, "ha": "right"} if step > 1 else {}),
            )
            rows[1].set_xlabel("layer, in the order of the forward pass")
            plots.title(
                figure, "The error of each layer, against the CPU in float64", [self.device]
            )
        ending = (
            f"the first wrong operator is {self.culprit.operator}"
            if self.culprit
            else "no operator is wrong"
        )
        return plots.described(
            figure, f"error of {len(names)} layers, forward and backward; {ending}"
        )


def find(
    model: nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None = None,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    on: Device,
    seconds: float = math.inf,
    layers: bool = True,
) -> Verdict:
    """Run ``loss(model(*inputs)).backward()`` on a copy on a device, and find the first operator that is wrong there.

    On an NVIDIA GPU set ``torch.backends.cudnn.allow_tf32 = False`` first: convolutions in TensorFloat-32 are further
    off than float32 explains.

    Parameters
    ----------
    model
        Stays as it is. It is run in its mode (training or evaluation) and its dtypes, float16 and bfloat16 included.
    inputs
        A tuple of arguments, or a dict of those that have names.
    loss
        Takes the model's output and returns one number; by default the mean square of all floating outputs.
    optimizer
        Such as ``torch.optim.AdamW``: is given the copy's parameters and takes one step, which is compared as well.
    on
        The device.
    seconds
        After these no more calls are compared; the run that has begun is finished.
    layers
        Whether to compute the errors of layers, which takes two more runs on the CPU.

    Raises
    ------
    TypeError
        If ``inputs`` is neither a tuple nor a dict.
    ValueError
        If the model has no floating parameter and no floating input, or float64 where the device has none.
    """
    if not isinstance(inputs, list | tuple | Mapping):
        raise TypeError(
            f"inputs is a {type(inputs).__name__}: give a tuple of what the model is called with, (x,)"
        )
    inputs = (
        dict(inputs) if isinstance(inputs, Mapping) else inputs
    )  # PyTorch goes through no other mapping
    floating = [t for t in (*model.parameters(), *tensors_in(inputs)) if floats(t)]
    if not floating:
        raise ValueError(
            "the model has no floating parameter and no floating input: there is nothing to compare"
        )
    if on.kind == "mps" and any(t.dtype in (torch.float64, torch.complex128) for t in floating):
        raise ValueError("no Apple GPU has float64: give model.float() and inputs in float32")
    run = _Run(model, inputs, loss or mean_square, optimizer)
    judge = _Judge(on, seconds)
    device = run.layers(on.torch_device, judge=judge, note=layers)
    conditions, program = (
        shrunk(judge.call, on.torch_device, judge.began + seconds) if judge.call else ((), "")
    )
    errors = _layer_errors(run, device, judge.verdict.unjudged) if layers else ()
    return dataclasses.replace(judge.verdict, conditions=conditions, program=program, layers=errors)


def _moved(tensor: Tensor, device: Any) -> Tensor:
    """On a device, at the same offset in its memory, which `Tensor.to` forgets."""
    there = tensor.to(device)
    offset = tensor.storage_offset()
    if there.storage_offset() == offset or not there.numel():
        return there
    last = sum((count - 1) * step for count, step in zip(there.shape, there.stride(), strict=True))
    return (
        there.new_zeros(offset + last + 1)
        .as_strided(there.shape, there.stride(), offset)
        .copy_(there)
    )


# ---- layers ---------------------------------------------------------------------------------------------------------

_Layers = list[tuple[str, list[Tensor | None]]]
"""Name of each call of a layer, its output and the gradient by that, on the CPU."""


@dataclass(frozen=True)
class _Run:
    """What is computed on each device."""

    model: nn.Module
    inputs: Sequence[Any] | dict[str, Any]
    loss: Callable[[Any], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None

    def layers(
        self, device: Any, wide: bool = False, judge: _Judge | None = None, note: bool = True
    ) -> _Layers:
        """Compute it on a copy, in float64 if ``wide``; a ``judge`` looks at each operator. Empty unless ``note``."""
        model = copied(self.model).to(device)
        if wide:
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data = widened(tensor.data)
        change = widened if wide else lambda t: t
        inputs = mapped(
            lambda t: change(_moved(t.detach(), device)).requires_grad_(t.requires_grad),
            self.inputs,
        )
        noted: _Layers = []
        for name, module in model.named_modules():
            if note and not any(module.children()):
                module.register_forward_hook(_noting(name or type(module).__name__, noted))

        def value() -> Tensor:
            return self.loss(model(**inputs) if isinstance(inputs, dict) else model(*inputs))

        if judge is None:
            backward(value())
            return noted

        def closure() -> Tensor:
            optimizer.zero_grad()
            backward(again := value())
            return again

        optimizer = self.optimizer(model.parameters()) if self.optimizer else None
        with judge.modules, watching(judge.see):
            result = value()
            judge.direction = "backward"
            backward(result)
            judge.direction = "step"
            if optimizer is not None:
                parameter = inspect.signature(optimizer.step).parameters.get("closure")
                optimizer.step(
                    *[closure] * (parameter is not None and parameter.default is parameter.empty)
                )  # LBFGS
        return noted


def backward(loss: Tensor) -> None:
    """The backward pass, if there is one: a model without weights may have none."""
    if loss.requires_grad:
        loss.backward()


def _noting(name: str, noted: _Layers) -> Callable[..., None]:
    """A forward hook that notes a layer's output and the gradient by it."""

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = next(filter(floats, tensors_in(output)), None)
        values = [None if tensor is None else tensor.detach().cpu(), None]
        noted.append((name, values))
        if tensor is not None and tensor.requires_grad:
            tensor.register_hook(lambda gradient: values.__setitem__(1, gradient.detach().cpu()))

    return hook


def _layer_errors(run: _Run, device: _Layers, unjudged: dict[str, str]) -> tuple[LayerError, ...]:
    """Of each layer on the device and on the CPU; none, with the reason in ``unjudged``, where float64 fails."""
    names = [name for name, _ in device]
    try:
        exact = run.layers("cpu", wide=True)
    except (RuntimeError, TypeError) as problem:  # such as a model that mixes in float32 of its own
        unjudged["layers"] = units.first_line(problem)
        return ()
    try:
        same = run.layers("cpu")
    except (RuntimeError, TypeError):  # the CPU has no kernel in this dtype
        same = [(name, [None, None]) for name in names]
    if any([name for name, _ in layers] != names for layers in (exact, same)):
        unjudged["layers"] = "the CPU went through other layers"
        return ()
    return tuple(
        LayerError(
            name,
            *(
                relative_error(e, v)
                for values in (got, own)
                for e, v in zip(right, values, strict=True)
            ),
        )
        for (name, got), (_, right), (_, own) in zip(device, exact, same, strict=True)
    )


def mean_square(output: Any) -> Tensor:
    """The sum of the mean squares of all floating and complex tensors in a model's output; 0 if there are none."""
    floating = list(filter(floats, tensors_in(output)))
    real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in floating]
    return sum(t.square().mean() for t in real) if real else torch.zeros(())


def relative_error(exact: Tensor | None, result: Tensor | None) -> float:
    """Largest difference over the root mean square; infinite where one is NaN or infinite and the other is not."""
    if exact is None or result is None or not exact.numel() or exact.shape != result.shape:
        return math.nan
    exact, result = widened(exact), widened(result)
    same = (exact == result) | (exact.isnan() & result.isnan())
    apart = (exact - result).abs().masked_fill(same, 0.0).max().item()
    kept = exact[exact.isfinite()].abs()
    size = kept.square().mean().sqrt().item() if kept.numel() else 0.0
    return (
        math.inf
        if math.isnan(apart)
        else apart / size
        if size
        else math.inf
        if apart > 1e-6
        else apart
    )


# ---- operators ------------------------------------------------------------------------------------------------------


class _Judge:
    """Compares each operator that a device computes, until one is wrong."""

    def __init__(self, on: Device, seconds: float) -> None:
        self.on, self.modules, self.seconds = on, CallingModules(), seconds
        self.path = ""
        self.began = time.monotonic()
        self.direction: Direction = "forward"
        self.verdict = Verdict("agrees", on.label)
        self.call: Call | None = None
        self.infinities: dict[int, str] = {}
        """By address of memory that holds an infinity, the call that it comes from."""

    def see(self, operator: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator, and compare it if the device computed it."""
        self.path = self.modules.innermost()
        call = Call(operator, args, kwargs)
        if (
            self.verdict.culprit
            or operator.is_view
            or call.name.rpartition("::")[2].startswith(UNWRITTEN)
        ):
            return operator(*args, **kwargs)
        late = time.monotonic() - self.began > self.seconds
        with torch.no_grad():
            before = None if late else call.moved()
        result = operator(*args, **kwargs)
        if all(
            t.device.type != self.on.kind
            for t in (*call.tensors, *tree_leaves(result))
            if isinstance(t, Tensor)
        ):
            return result
        if before is None:
            self.verdict.skipped += 1
            return result
        with torch.no_grad():
            self.compare(call, before, result)
        return result

    def compare(self, call: Call, before: Call, result: Any) -> None:
        """Compare a call with float64; ``before`` is what it was given, on the CPU."""
        if torch.Tag.nondeterministic_seeded in call.operator.tags and not drops_nothing(call):
            name = f"{call.name} in {self.module or 'the model'}"
            self.verdict.random += (name,) if name not in self.verdict.random else ()
            if fault := fault_of_dropout(before, result):
                self.blame("differs", call, fault)
            return
        self.on.synchronize()  # a copy to the CPU may be under way
        got, after = results(result), call.moved()
        try:
            compared = Comparison.of(before, after, got)
        except REFUSED as problem:
            self.verdict.unjudged[call.name] = units.first_line(problem).split(". ")[0]
            return
        self.verdict.judged += 1
        fault = compared.fault()
        if compared.unjudged:
            self.verdict.unjudged[call.name] = compared.unjudged
        if fault:
            wrong_calls, right_calls = self.made_again(call, compared)
            layouts = None if right_calls else call.mapped(Tensor, Layout.of)
            self.blame("differs", call, fault, layouts, wrong_calls, right_calls)
            return
        self.verdict.largest = max(self.verdict.largest, compared.largest)
        held = [leaf for leaf in tree_leaves(result) if leaf is not None]
        self.look_for_infinities(call, before, [*got, *after.tensors], [*held, *call.tensors])

    def made_again(self, call: Call, wrong: Comparison) -> tuple[int, int]:
        """Make a wrong call again with the same numbers; return how often it was wrong, this time too, and right.

        It ends with `RIGHT_AGAIN` right ones, after `MOST_CALLS`, or where a copy of the numbers finds no memory.
        """
        wrong_calls, right_calls = 1, 0
        while right_calls < RIGHT_AGAIN and wrong_calls + right_calls < MOST_CALLS:
            try:
                again = wrong.before.placed_like(call)
                result = again.operator(*again.args, **again.kwargs)
                self.on.synchronize()
            except RuntimeError:  # it ran once: what is known stays
                break
            if wrong.with_result(again.moved(), results(result)).fault():
                wrong_calls += 1
            else:
                right_calls += 1
        return wrong_calls, right_calls

    def look_for_infinities(
        self, call: Call, before: Call, got: Sequence[Any], held: Sequence[Any]
    ) -> None:
        """Note which call an infinity comes from; a NaN that no argument has ends the search.

        ``got`` are its results and its arguments afterwards, on the CPU, ``held`` the same on the device.
        """
        infinite = [t for t, value in zip(held, got, strict=True) if has(value, torch.isinf)]
        given = [
            t
            for t, value in zip(call.tensors, before.tensors, strict=True)
            if has(value, torch.isinf)
        ]
        known = [self.infinities[key] for key in map(_memory, given) if key in self.infinities]
        here = f"{call.name} in {self.module or 'the model itself'}, {WHERE[self.direction]}"
        if infinite and not given:
            numbers = [n for n in tree_leaves((call.args, call.kwargs)) if isinstance(n, float)]
            if all(map(math.isfinite, numbers)):  # otherwise it is asked for, as in a mask
                self.verdict.infinity = self.verdict.infinity or here
            known = [here]
        if known:
            self.infinities.update(dict.fromkeys(map(_memory, infinite), known[0]))
        born = any(has(t, torch.isnan) for t in got) and not any(
            has(t, torch.isnan) for t in before.tensors
        )
        if born and any(t.numel() for t in before.tensors):  # the mean of nothing is NaN
            self.verdict.infinity = known[0] if known and given else ""
            self.blame("agrees", call, "Its inputs have none.")

    @property
    def module(self) -> str:
        """The innermost module, as `named_modules` names it; empty for the model itself, and where it is not known."""
        return self.path.partition(".")[2]

    def blame(
        self,
        agreement: Agreement,
        call: Call,
        difference: str,
        layouts: Call | None = None,
        wrong_calls: int = 1,
        right_calls: int = 0,
    ) -> None:
        """Name a call as the first that is wrong, or makes a NaN; its ``layouts`` are shrunk if it can be run again."""
        tensors = call.tensors
        dtype = units.dtype_name(tensors[0].dtype) if tensors else ""
        shapes = tuple(tuple(t.shape) for t in tensors)
        self.call, self.verdict.agreement = layouts, agreement
        self.verdict.culprit = Culprit(
            call.name,
            self.module,
            self.direction,
            dtype,
            shapes,
            difference,
            wrong_calls,
            right_calls,
        )


def _memory(value: Any) -> int:
    strided = isinstance(value, Tensor) and value.layout == torch.strided
    return value.untyped_storage().data_ptr() if strided else id(value)
