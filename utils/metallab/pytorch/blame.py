"""Which operator computes wrongly on a device: found in a model, shrunk, and told by a program for a bug report.

::

    verdict = blame.find(model, inputs, on=lab)  # forward, loss and backward; with optimizer=..., a step, too
    verdict                                      # what is wrong, where, and under which conditions
    verdict.program                              # at most 20 lines that show it without the model
    verdict.draw()                               # how the error grows from layer to layer

**How.** Each operator of the forward and the backward pass is computed again on the CPU in float64 from the numbers
that the *device* gave it. So errors do not add up, and the first operator that differs is the one that is wrong. It
counts as wrong if it differs by more than `metallab.checks` allows its dtype, and the CPU in that same dtype is at
least 8 times closer. What the dtype explains is rounding.

**Random numbers** differ on every device. Of dropout it is asked whether it keeps the share that it should and scales
what it keeps; other random operators are named in ``Verdict.random`` and not judged.

**What is not judged**: what PyTorch cannot compute on the CPU in float64, listed with the reason; memory that nobody
wrote (``empty``); views. A fault that is not there when an operator runs again cannot be shrunk.

**Where there is no time for all calls**, `Choice` has `find` compare one of each kind first.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from metallab import checks, units
from metallab.device import Device
from metallab.pytorch.copies import copied, mapped, tensors_in
from metallab.pytorch.dispatch import CallingModules, calling_line, watching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSER = 8
"""So many times closer than the device the CPU must be in the same dtype, or rounding explains the difference."""

# What stands for an operator that only MPS has: source text, which a reproducing program holds as well.
REFERENCES = {
    "aten::_scaled_dot_product_attention_math_for_mps": "torch.ops.aten._scaled_dot_product_attention_math.default",
    "aten::_lstm_mps": "torch.ops.aten.lstm.input",
    "aten::linear_backward": (
        "lambda x, g, w, mask: [value for value, wanted in zip("
        "(g @ w, g.flatten(0, -2).mT @ x.flatten(0, -2), g.flatten(0, -2).sum(0)), mask) if wanted]"
    ),
}
FLOAT32, EMPTY = "not in float32", "a tensor without elements"
UNWRITTEN = ("empty", "new_empty", "resize", "set_", "detach", "_efficientzerotensor")
DROPS = ("dropout_p", "dropout", "p")

Kind = Literal["agrees", "wrong kernel", "NaN"]
"""``NaN``: one is born, in a CPU's float32 as on the device."""
Direction = Literal["forward", "backward", "step"]
"""Where an operator was called; ``step`` is the optimizer's."""
WHERE = {"forward": "the forward pass", "backward": "the backward pass", "step": "the optimizer's step"}


@dataclass(frozen=True)
class LayerError:
    """How far a layer without layers inside is from the CPU in float64, relative to the root mean square."""

    module: str
    forward: float
    """Of its output on the device; NaN if it has none that is floating, or none with elements."""
    backward: float
    """Of the gradient by its output; NaN if there is none."""
    forward_cpu: float
    """As ``forward``, of the CPU in the model's dtype: what rounding does. NaN where the CPU has no such kernel."""
    backward_cpu: float


@dataclass(frozen=True)
class Culprit:
    """The first call of an operator that is wrong, or where a NaN is born."""

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


@dataclass
class Verdict:
    """What `find` has found."""

    kind: Kind
    device: str
    judged: int = 0
    """Calls of operators that were compared."""
    largest: float = 0.0
    """The largest difference of those that agree, relative to the root mean square: rounding."""
    culprit: Culprit | None = None
    conditions: tuple[str, ...] = ()
    """What it takes for the fault to show: a layout, a number of elements; empty if it shows with any."""
    program: str = ""
    """At most 20 lines that end with an AssertionError where the fault is; empty if it shows with no random numbers."""
    layers: tuple[LayerError, ...] = ()
    random: tuple[str, ...] = ()
    """Random operators, with their modules: from there on layers differ without being wrong."""
    unjudged: dict[str, str] = field(default_factory=dict)
    """Operators that were not compared, with the reason."""
    skipped: int = 0
    """Calls that were not compared because the time was over."""
    passed_over: int = 0
    """Calls that were not compared because another like them was: see `Choice`."""
    operators: dict[str, None] = field(default_factory=dict)
    """Each that was called, compared or not, with its overload: ``aten::add.Tensor``."""
    born: dict[str, None] = field(default_factory=dict)
    """With ``past_nans`` where a NaN is born, in a CPU's float32 as on the device, in words."""

    @property
    def headline(self) -> str:
        """What is wrong, and where, as one sentence."""
        if self.culprit is None:
            rest = f"; {self.skipped} more were not compared, for the time was over" if self.skipped else ""
            every = self.judged if self.skipped or self.passed_over else f"all {self.judged}"
            return f"On {self.device} {every} calls of operators agree with the CPU in float64{rest}."
        bad = self.culprit
        where = f"{bad.operator} in {f'{bad.module}, ' if bad.module else ''}{WHERE[bad.direction]}"
        if self.kind == "NaN":
            return f"A NaN is born by {where}, on the CPU in {bad.dtype} as well."
        needs = f" The fault needs: {'; '.join(self.conditions)}." if self.conditions else ""
        return f"WRONG KERNEL: {where}, on {self.device}.{needs}"

    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        if bad := self.culprit:
            rows += [("given", f"{bad.dtype}, {', '.join(map(str, bad.shapes))}"), ("result", bad.difference)]
        if self.kind == "wrong kernel":
            rows.append(("what to do", self.advice))
        else:
            rows.append(("rounding", f"up to {self.largest:.1e} of the root mean square"))
        rows += [("random", f"{name}: devices draw numbers of their own") for name in self.random]
        rows += [("not compared", f"{name}: {why}") for name, why in self.unjudged.items()]
        return rows

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {name}: {text}" for name, text in self._rows())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colour = "#009e73" if self.culprit is None else "#d55e00"
        cell = '<td style="text-align:left">'
        rows = "".join(f"<tr>{cell}{name}</td>{cell}{html.escape(text)}</td></tr>" for name, text in self._rows())
        style = f"border-left:.4em solid {colour};padding:.5em 1em"
        return f'<div style="{style}"><b>{html.escape(self.headline)}</b><table>{rows}</table></div>'

    @property
    def advice(self) -> str:
        """What to put in the wrong operator's place."""
        if FLOAT32 in self.conditions:
            return "compute it in float32"
        if EMPTY in self.conditions:
            return "leave it out where there is nothing to compute"
        if any("elements or more" in condition for condition in self.conditions):
            return "give it fewer elements at a time, or compute it on the CPU"
        if self.conditions and self.culprit.direction == "step":
            return "make the weights contiguous before training, weight.data = weight.data.contiguous()"
        if self.conditions:
            moved = dict.fromkeys(_which(self.conditions, "begins at"), "clone")
            copied = moved | dict.fromkeys(_which(self.conditions, "is not contiguous"), "contiguous")  # moves it, too
            return "; ".join(f"give it {name}.{how}() in place of {name}" for name, how in copied.items())
        return "compute it on the CPU, or write it with other operators"

    def draw(self) -> Figure:
        """The error of each layer on a logarithmic axis, forward and backward, beside what rounding does on the CPU."""
        import matplotlib.pyplot as plt

        from metallab import plots

        names = [layer.module for layer in self.layers]
        steps = range(len(names))
        with plt.rc_context(plots.STYLE):
            figure, rows = plt.subplots(2, 1, figsize=(7.5, 4.6), sharex=True, sharey=True)
            for axes, part in zip(rows, ("forward", "backward"), strict=True):
                lines = ((part, "device", "o-", plots.RED), (f"{part}_cpu", "rounding on a CPU", "s--", plots.BLUE))
                for key, label, style, colour in lines:
                    errors = [max(getattr(layer, key), 1e-17) for layer in self.layers]
                    axes.plot(steps, errors, style, color=colour, label=label, markersize=5)
                axes.set_yscale("log")
                axes.set_ylabel(f"{part}: error\nover RMS")
                if self.culprit and self.culprit.direction == part and self.culprit.module in names:
                    where = names.index(self.culprit.module)
                    axes.axvline(where, color=plots.GREY, linestyle=":", zorder=0)
                    axes.set_title(f"first wrong: {self.culprit.operator} in {self.culprit.module}", fontsize=9)
            rows[0].legend(fontsize=8)
            step = max(1, len(names) // 16)
            rows[1].set_xticks(steps[::step], names[::step], **({"rotation": 60, "ha": "right"} if step > 1 else {}))
            rows[1].set_xlabel("layer, in the order of the forward pass")
            plots.title(figure, "The error of each layer, against the CPU in float64", [self.device])
        ending = f"the first wrong operator is {self.culprit.operator}" if self.culprit else "no operator is wrong"
        return plots.described(figure, f"error of {len(names)} layers, forward and backward; {ending}")


Each = Literal["layout", "kind", "call"]


@dataclass
class Choice:
    """Which calls `find` compares, and which were compared: give it to one `find` after the other.

    A layout is an operator with the layout and dtype of its tensors; a kind has their sizes and the operator's settings
    as well. With ``each="kind"`` one call of each kind is compared, with ``"call"`` every one; what was compared before
    is not compared again. When half of the time is over, only layouts that are new are compared.
    """

    each: Each = "call"
    run: str = ""
    """The name of what is run: calls of the same kind in two runs are two calls."""
    compared: set[Hashable] = field(default_factory=set)
    """Layouts, kinds and calls."""
    met: dict[str, list[dict[Each, Hashable]]] = field(default_factory=dict)
    """By run, its calls in order, each with its layout, its kind and itself."""
    seconds: float = 0.0
    """That comparing took, in all runs."""
    _number: int = 0

    def begin(self, run: str, each: Each) -> Choice:
        """From here on calls are of this run, and one of each kind, or each one, is compared."""
        self.run, self.each, self.met[run], self._number = run, each, [], 0
        return self

    def keys(self, call: _Call) -> dict[Each, Hashable]:
        """Of the next call, whose tensors stand as `_Tensor`: its layout, its kind and itself."""
        layouts = [(t.dtype, t.permuted, t.gap, bool(t.expanded), t.offset % 2) for t in call.tensors]
        kind = f"{call.operator} {call.args} {call.kwargs}"
        self._number += 1  # of calls that nothing can be compared with, too
        return {"layout": f"{call.operator} {layouts}", "kind": kind, "call": (self.run, self._number)}

    def note(self, keys: dict[Each, Hashable], compared: bool) -> None:
        """There was such a call."""
        self.met.setdefault(self.run, []).append(keys)
        self.compared.update(keys.values() if compared else ())

    def left(self, run: str, each: Each) -> bool:
        """Whether a run has calls of which nothing alike was compared."""
        return any(keys[each] not in self.compared for keys in self.met.get(run, ()))

    def count(self, each: Each) -> tuple[int, int]:
        """How many of each were compared, and how many there are in all runs."""
        there = {keys[each] for calls in self.met.values() for keys in calls}
        return len(there & self.compared), len(there)


def find(
    model: nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None = None,
    *,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    on: Device,
    seconds: float = math.inf,
    choice: Choice | None = None,
    layers: bool = True,
    past_nans: bool = False,
) -> Verdict:
    """Run ``loss(model(*inputs)).backward()`` on a copy on a device, and find the first operator that is wrong there.

    ``inputs`` are a tuple of arguments, or a dict of those that have names. ``loss`` takes the model's output and
    returns one number; without it, it is the mean square of all floating outputs. ``optimizer``, such as
    ``torch.optim.AdamW``, is given the copy's parameters, and takes one step that is looked at as well: a change
    that is lost shows if it is larger than what the weights' dtype explains, so give it no tiny learning rate.

    On an NVIDIA GPU set ``torch.backends.cudnn.allow_tf32 = False`` first: convolutions in TensorFloat-32 are further
    off than float32 explains.

    After ``seconds`` no more calls are compared; what has begun is run to its end. ``choice`` says which are compared,
    by default all. Without ``layers`` their errors, which take two more runs on the CPU, are left out. A NaN that is
    born, in a CPU's float32 as well, ends the search, unless it is to go ``past_nans``: then it is only noted.

    The model stays as it is, in its mode (training or evaluation) and its dtypes, float16 and bfloat16 included.
    TypeError if ``inputs`` is neither, ValueError if the model has no floating parameter and no floating input, or
    float64 where the device has none.
    """
    if not isinstance(inputs, list | tuple | Mapping):
        raise TypeError(f"inputs is a {type(inputs).__name__}: give a tuple of what the model is called with, (x,)")
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs  # PyTorch goes through no other mapping
    floating = [t for t in (*model.parameters(), *tensors_in(inputs)) if _floats(t)]
    if not floating:
        raise ValueError("the model has no floating parameter and no floating input: there is nothing to compare")
    if on.kind == "mps" and any(t.dtype in (torch.float64, torch.complex128) for t in floating):
        raise ValueError("no Apple GPU has float64: give model.float() and inputs in float32")
    run = _Run(model, inputs, loss or mean_square, optimizer)
    judge = _Judge(on, seconds, choice or Choice(), past_nans)
    device = run.layers(on.torch_device, judge=judge, note=layers)
    conditions, program = _shrunk(judge.call, on.torch_device) if judge.call else ((), "")
    errors = _layer_errors(run, device, judge.verdict.unjudged) if layers else ()
    return dataclasses.replace(judge.verdict, conditions=conditions, program=program, layers=errors)


def _moved(tensor: Tensor, device: Any) -> Tensor:
    """On a device, at the same offset in its memory, which `Tensor.to` forgets."""
    there = tensor.to(device)
    offset = tensor.storage_offset()
    if there.storage_offset() == offset or not there.numel():
        return there
    last = sum((count - 1) * step for count, step in zip(there.shape, there.stride(), strict=True))
    return there.new_zeros(offset + last + 1).as_strided(there.shape, there.stride(), offset).copy_(there)


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

    def layers(self, device: Any, wide: bool = False, judge: _Judge | None = None, note: bool = True) -> _Layers:
        """Compute it on a copy, in float64 if ``wide``; a ``judge`` looks at each operator. Empty unless ``note``."""
        model = copied(self.model).to(device)
        if wide:
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data = widened(tensor.data)
        change = widened if wide else lambda t: t
        inputs = mapped(lambda t: change(_moved(t.detach(), device)).requires_grad_(t.requires_grad), self.inputs)
        noted: _Layers = []
        for name, module in model.named_modules():
            if note and not any(module.children()):
                module.register_forward_hook(_noting(name or type(module).__name__, noted))

        def value() -> Tensor:
            return self.loss(model(**inputs) if isinstance(inputs, dict) else model(*inputs))

        if judge is None:
            backward(value())
            return noted
        optimizer = self.optimizer(model.parameters()) if self.optimizer else None
        with judge.modules, watching(judge.see):
            result = value()
            judge.direction = "backward"
            backward(result)
            judge.direction = "step"
            if optimizer is not None:
                optimizer.step()
        return noted


def backward(loss: Tensor) -> None:
    """The backward pass, if there is one: a model without weights may have none."""
    if loss.requires_grad:
        loss.backward()


def _noting(name: str, noted: _Layers) -> Callable[..., None]:
    """A forward hook that notes a layer's output and the gradient by it."""

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        tensor = next(filter(_floats, tensors_in(output)), None)
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
        LayerError(name, *(relative_error(e, v) for values in (got, own) for e, v in zip(right, values, strict=True)))
        for (name, got), (_, right), (_, own) in zip(device, exact, same, strict=True)
    )


def widened(tensor: Tensor) -> Tensor:
    """In float64 or complex128 where it has fractions; others stay as they are."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) if _floats(tensor) else tensor


def mean_square(output: Any) -> Tensor:
    """The sum of the mean squares of all floating and complex tensors in a model's output; 0 if there are none."""
    floating = list(filter(_floats, tensors_in(output)))
    real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in floating]
    return sum(t.square().mean() for t in real) if real else torch.zeros(())


def _floats(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def relative_error(exact: Tensor | None, result: Tensor | None, floor: float = 0.0) -> float:
    """Largest difference over the root mean square; infinite where one is NaN or infinite and the other is not.

    ``floor`` is added to the root mean square.
    """
    if exact is None or result is None or not exact.numel() or exact.shape != result.shape:
        return math.nan
    wide = torch.complex128 if exact.is_complex() else torch.float64
    exact, result = exact.to(wide), result.to(wide)
    norm = torch.linalg.vector_norm
    apart, size = norm(exact - result, math.inf).item(), norm(exact).item() / math.sqrt(exact.numel()) + floor
    if math.isfinite(apart) and math.isfinite(size) and size:  # as almost always, in two quick passes
        return apart / size
    apart = torch.where((exact == result) | (exact.isnan() & result.isnan()), 0, (exact - result).abs()).max().item()
    kept = exact[exact.isfinite()].abs()
    size = (kept.square().mean().sqrt().item() if kept.numel() else 0.0) + floor
    return math.inf if math.isnan(apart) else apart / size if size else math.inf if apart > 1e-6 else apart


# ---- operators ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A call of an operator; tensors are on the device, or stand as `_Tensor`."""

    operator: Any
    args: tuple
    kwargs: dict

    @property
    def name(self) -> str:
        return self.operator.name().partition(".")[0]

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that are given, by name."""
        names = [argument.name for argument in self.operator._schema.arguments]
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    @property
    def tensors(self) -> list[Any]:
        """Those among the arguments, or what stands for them."""
        return [t for t in tree_leaves((self.args, self.kwargs)) if isinstance(t, Tensor | _Tensor)]

    def mapped(self, kind: Any, change: Callable[[Any], Any]) -> _Call:
        """The call with each argument of a type changed, also within lists."""
        return _Call(self.operator, *tree_map_only(kind, change, (self.args, self.kwargs)))

    def written(self) -> list[str]:
        """Names of the arguments that it writes to."""
        return [a.name for a in self.operator._schema.arguments if a.alias_info is not None and a.alias_info.is_write]

    def outputs(self, returned: Any) -> list[Tensor]:
        """What it wrote or else returned, without whole numbers beside others: positions, which ties leave open."""
        values = [self.arguments.get(name) for name in self.written()] or returned
        tensors = [t for t in tree_leaves(values) if isinstance(t, Tensor)]
        return [t for t in tensors if _floats(t)] or tensors

    def moved(self, wide: bool = False) -> _Call:
        """A copy on the CPU, with floating tensors in float64 if ``wide``."""

        def move(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("cpu")
            moved = value.detach().to("cpu", copy=True)
            return widened(moved) if wide else moved

        return self.mapped((torch.device, Tensor), move)

    def computed(self) -> list[Tensor]:
        function = eval(REFERENCES[self.name], {"torch": torch}) if self.name in REFERENCES else self.operator
        return self.outputs(function(*self.args, **self.kwargs))


class _Judge:
    """Compares each operator that a device computes, until one is wrong."""

    def __init__(self, on: Device, seconds: float, choice: Choice, past_nans: bool) -> None:
        self.on, self.modules, self.seconds, self.choice = on, CallingModules(), seconds, choice
        self.past_nans = past_nans
        self.path = ""
        self.began = time.monotonic()
        self.direction: Direction = "forward"
        self.verdict = Verdict("agrees", on.label)
        self.call: _Call | None = None

    def see(self, operator: Any, args: tuple, kwargs: dict) -> Any:
        self.path = self.modules.innermost()
        self.verdict.operators[operator.name()] = None
        call = _Call(operator, args, kwargs)
        short = call.name.rpartition("::")[2]
        if self.verdict.culprit or operator.is_view or short.startswith(UNWRITTEN):
            return operator(*args, **kwargs)
        layouts = call.mapped(Tensor, _Tensor.of)
        keys = self.choice.keys(layouts)
        began = time.monotonic()
        share = 0.5 if keys["layout"] in self.choice.compared else 1.0
        wanted, late = keys[self.choice.each] not in self.choice.compared, began - self.began > share * self.seconds
        compared = wanted and not late
        with torch.no_grad():
            before = call.moved() if compared else None
        result = operator(*args, **kwargs)
        outputs = call.outputs(result)
        if all(t.device.type != self.on.kind for t in outputs):
            return result
        if before is not None:
            with torch.no_grad():
                if not self.compare(before, layouts, [t.detach().cpu() for t in outputs], result):
                    return result
            self.choice.seconds += time.monotonic() - began
        self.verdict.skipped += wanted and late
        self.verdict.passed_over += not wanted
        self.choice.note(keys, compared)
        return result

    def compare(self, call: _Call, layouts: _Call, got: list[Tensor], result: Any) -> bool:
        """Whether it could be compared with float64.

        ``call`` holds what the operator was given, ``got`` what the device made of it.
        """
        if torch.Tag.nondeterministic_seeded in call.operator.tags and not self.drops_nothing(call):
            name = f"{call.name} in {self.module() or 'the model'}"
            self.verdict.random += (name,) if name not in self.verdict.random else ()
            if fault := _fault_of_dropout(call, result):
                self.blame("wrong kernel", call, None, fault)
            return False
        try:
            right = call.moved(wide=True).computed()
        except (RuntimeError, TypeError, IndexError) as problem:  # no kernel in float64, or none on the CPU at all
            self.verdict.unjudged[call.name] = units.first_line(problem).split(". ")[0]
            return False
        self.verdict.judged += 1
        born = any(_has_nan(t) for t in got) and not any(_has_nan(t) for t in call.tensors)
        for number, (exact, value) in enumerate(zip(right, got, strict=False)):
            words = _mismatch(exact, value) if value.numel() or value.shape != exact.shape else ""
            if words and not self.explained(call, number, exact, relative_error(exact, value)):
                self.blame("wrong kernel", call, layouts, words)
                return True
            rounding = math.inf if words else relative_error(exact, value, floor=1e-2)  # as `checks.TOLERANCES` has it
            if rounding < math.inf:
                self.verdict.largest = max(self.verdict.largest, rounding)
        if born and self.past_nans:
            line = calling_line(until=_Run.layers.__name__)
            where = f"{call.name} in {self.module() or 'the model itself'}, {WHERE[self.direction]}"
            self.verdict.born[where + (line and f", at {line}")] = None
        elif born:
            self.blame("NaN", call, None, "Its inputs have none.")
        return True

    def explained(self, call: _Call, number: int, exact: Tensor, error: float) -> bool:
        """Is the CPU in the same dtype about as far from float64, in the same one of the outputs?"""
        try:
            same = call.moved().computed()
        except (RuntimeError, TypeError):  # the CPU has no kernel in this dtype: float64 alone decides
            return False
        own = relative_error(exact, same[number])
        return own * CLOSER >= error > 0

    def drops_nothing(self, call: _Call) -> bool:
        defaults = {each.name: each.default_value for each in call.operator._schema.arguments}
        given = {**defaults, **call.arguments}
        return any(given.get(name) == 0 for name in DROPS) or given.get("train") is False

    def module(self) -> str:
        """The innermost module, as `named_modules` names it; empty for the model itself, and where it is not known."""
        return self.path.partition(".")[2]

    def blame(self, kind: Kind, call: _Call, layouts: _Call | None, difference: str) -> None:
        tensors = call.tensors
        dtype = units.dtype_name(tensors[0].dtype) if tensors else ""
        shapes = tuple(tuple(t.shape) for t in tensors)
        self.call, self.verdict.kind = layouts, kind
        self.verdict.culprit = Culprit(call.name, self.module(), self.direction, dtype, shapes, difference)


def _has_nan(tensor: Tensor) -> bool:
    if not _floats(tensor) or not tensor.sum().isnan():  # quick; a sum of infinities is NaN as well
        return False
    return bool(tensor.isnan().any())


def _mismatch(exact: Tensor, value: Tensor) -> str:
    """How two results differ by more than `metallab.checks` allows; empty if they do not."""
    if exact.shape == value.shape and value.is_floating_point():  # most agree number by number, which is asked quickly
        allowed = checks.tolerance(value.dtype)
        if bool(((exact - value).abs_() <= exact.abs().mul_(allowed.relative).add_(allowed.absolute)).all()):
            return ""
    try:
        checks.assert_close(exact, widened(value), value.dtype)
    except checks.Mismatch as difference:
        return units.first_line(difference).removeprefix("result: ")
    return ""


def _fault_of_dropout(call: _Call, result: Any) -> str:
    """What is wrong with a call of dropout or bernoulli; empty if nothing is, or it is another random operator."""
    share = call.arguments.get("p")
    if call.name not in ("aten::native_dropout", "aten::bernoulli_") or not isinstance(share, float):
        return ""
    dropout = call.name == "aten::native_dropout"
    kept = 1 - share if dropout else share
    mask = (result[1] if dropout else result).detach().cpu().double()
    spread = math.sqrt(kept * (1 - kept) / max(mask.numel(), 1))
    if mask.numel() and abs(mask.mean().item() - kept) > 6 * spread + 1e-9:
        return f"It keeps {mask.mean().item():.3g} of the values, not {kept:.3g}."
    if dropout and kept:
        return _mismatch(call.args[0].double() * mask / kept, result[0].detach().cpu())
    return ""


# ---- shrinking ------------------------------------------------------------------------------------------------------

PECULIARITIES = ("offset", "gap", "order", "expanded")


@dataclass(frozen=True)
class _Tensor:
    """How a tensor lies in memory; `source` is an expression for one like it with other numbers."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Its dimensions, that with the largest stride first."""
    gap: bool
    """Not dense: every second element of its innermost dimension."""
    offset: int
    dtype: torch.dtype
    expanded: tuple[int, ...] = ()
    fill: str = "randn"

    @staticmethod
    def of(tensor: Tensor) -> _Tensor:
        """The layout of a tensor."""
        plain = tuple(range(tensor.dim()))
        if tensor.is_contiguous() or not tensor.numel():
            return _Tensor(tuple(tensor.shape), plain, False, tensor.storage_offset(), tensor.dtype)
        expanded = tuple(d for d in plain if tensor.stride(d) == 0 and tensor.shape[d] > 1)
        order = tuple(sorted(plain, key=lambda d: -(tensor.stride(d) or math.inf)))
        base = tensor[tuple(slice(0, 1) if d in expanded else slice(None) for d in plain)]
        gap = not base.permute(order).is_contiguous()
        return _Tensor(tuple(tensor.shape), order, gap, tensor.storage_offset(), tensor.dtype, expanded)

    @property
    def permuted(self) -> bool:
        return self.order != tuple(sorted(self.order))

    @property
    def source(self) -> str:
        inner = [1 if d in self.expanded else self.shape[d] for d in self.order]
        inner[-1:] = [inner[-1] * 2] if self.gap else inner[-1:]
        fill = self.fill if self.dtype.is_floating_point else "ones" if self.dtype == torch.bool else "zeros"
        count = math.prod(inner)
        text = f"torch.{fill}({self.offset + count}, dtype={self.dtype}).to(device)"
        text += f"[{self.offset}:]" if self.offset else ""
        text += f".view({inner})" if inner != [count] else ""
        text += "[..., ::2]" if self.gap else ""
        if self.permuted:
            text += f".permute({[self.order.index(d) for d in range(len(self.order))]})"
        return text + (f".expand({list(self.shape)})" if self.expanded else "")

    def without(self, peculiarity: str) -> _Tensor:
        """The same as a contiguous tensor has it in one of `PECULIARITIES`."""
        plain = {"offset": 0, "gap": False, "order": tuple(range(len(self.shape))), "expanded": ()}
        return dataclasses.replace(self, **{peculiarity: plain[peculiarity]})


def _shrunk(call: _Call, device: torch.device) -> tuple[tuple[str, ...], str]:
    """Conditions and program of a wrong call; nothing where no random numbers show the fault."""
    fills = ("rand", "randn")  # positive numbers first: a ReLU hides half of the others
    filled = [call.mapped(_Tensor, lambda t, fill=fill: dataclasses.replace(t, fill=fill)) for fill in fills]
    call = next((each for each in filled if _fails(each, device)), None)
    if call is None:
        return (), ""
    conditions = []
    for change, condition in ((_in_float32, FLOAT32), (_with_elements, EMPTY)):
        changed = call.mapped(_Tensor, change)
        if changed != call and _fails(changed, device):
            call = changed
        elif changed != call:
            conditions.append(condition)
    call = _smallest(_plainest(call, device), device)
    conditions += _layouts(call, device)
    elements = max(math.prod(t.shape) for t in call.tensors)
    conditions += [f"{elements} elements or more"] if elements > 1024 else []
    return tuple(conditions), _program(call, str(device))


def _plainest(call: _Call, device: torch.device) -> _Call:
    """A call that fails as well, of tensors that lie in memory as plainly as they can, in one dimension at best."""
    for index, peculiarity in itertools.product(range(len(call.tensors)), PECULIARITIES):
        changed = _with(call, index, call.tensors[index].without(peculiarity))
        call = changed if changed != call and _fails(changed, device) else call
    sizes = call.tensors
    if len({t.shape for t in sizes}) == 1 and all(t.shape and not t.gap and not t.expanded for t in sizes):
        flat = call.mapped(_Tensor, lambda t: dataclasses.replace(t, shape=(math.prod(t.shape),), order=(0,)))
        call = flat if _fails(flat, device) else call
    return call


def _layouts(call: _Call, device: torch.device) -> list[str]:
    """Which layouts the fault needs, in words, of a call that fails in no plainer ones."""
    conditions = []
    for index, (name, tensor) in enumerate(zip(_names(call), call.tensors, strict=True)):
        if tensor.permuted or tensor.gap or tensor.expanded:
            how = "a permuted view" if tensor.permuted else "a view with gaps" if tensor.gap else "an expanded view"
            conditions.append(f"{name} is not contiguous ({how})")
        if tensor.offset:
            odd, even = (_fails(_with(call, index, dataclasses.replace(tensor, offset=n)), device) for n in (1, 2))
            kind = "an odd offset" if odd and not even else "an offset"
            conditions.append(f"{name} begins at {kind} in its storage (here {tensor.offset})")
    return conditions


def _which(conditions: Iterable[str], what: str) -> list[str]:
    """The arguments of which one of the conditions says ``what``."""
    return [condition.split()[0] for condition in conditions if f" {what} " in condition]


def _in_float32(tensor: _Tensor) -> _Tensor:
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return dataclasses.replace(tensor, dtype=torch.float32) if half else tensor


def _with_elements(tensor: _Tensor) -> _Tensor:
    return dataclasses.replace(tensor, shape=tuple(n or 1 for n in tensor.shape))


def _smallest(call: _Call, device: torch.device) -> _Call:
    """Each size made as small as it fails, equal ones together."""
    for size in sorted({n for t in call.tensors for n in t.shape if n > 1}, reverse=True):
        passes, fails = 0, size
        while fails - passes > 1:
            middle = 1 if passes == 0 and fails == size else (passes + fails) // 2
            if _fails(_resized(call, size, middle), device):
                fails = middle
            else:
                passes = middle
        call = _resized(call, size, fails)
    return call


def _resized(call: _Call, old: int, new: int) -> _Call:
    def resized(tensor: _Tensor) -> _Tensor:
        return dataclasses.replace(tensor, shape=tuple(new if n == old else n for n in tensor.shape))

    return call.mapped(_Tensor, resized)


def _names(call: _Call) -> list[str]:
    """The arguments' names, one for each tensor."""
    return [name for name, value in call.arguments.items() for leaf in tree_leaves(value) if isinstance(leaf, _Tensor)]


def _with(call: _Call, index: int, tensor: _Tensor) -> _Call:
    count = itertools.count()
    return call.mapped(_Tensor, lambda t: tensor if next(count) == index else t)


def _fails(call: _Call, device: torch.device) -> bool:
    """Does the program end with an AssertionError on the device, and not on the CPU?"""

    def ends(where: str) -> str:
        with torch.random.fork_rng(devices=[]):
            try:
                exec(_program(call, where), {})
            except AssertionError:
                return "wrong"
            except (RuntimeError, TypeError, IndexError, ValueError):  # no such call, for its sizes do not fit
                return "refused"
        return "right"

    return ends("cpu") == "right" and ends(str(device)) == "wrong"


def _program(call: _Call, device: str) -> str:
    """Text that computes the call on the device and on the CPU in float64, and asserts that they agree."""
    tensors = call.tensors
    names = [f"{name}{n}" if _names(call).count(name) > 1 else name for n, name in enumerate(_names(call))]
    left = iter(names)
    named = call.mapped(_Tensor, lambda _: _Name(next(left)))
    args, kwargs = named.args, named.kwargs
    results = [_text(named.arguments.get(name)) for name in named.written()]
    if call.name not in REFERENCES:  # whose arguments may have other names
        kept = len(args)
        while kept and not any(isinstance(leaf, _Name) for leaf in tree_leaves(args[kept - 1])):
            kept -= 1
        args, kwargs = args[:kept], dict([*named.arguments.items()][kept:])
    settings = ", ".join(f"{key}={_text(value)}" for key, value in kwargs.items())
    given = ",\n        ".join(filter(None, [", ".join(map(_text, args)), settings]))
    function = f"torch.ops.{call.operator}"
    returned = f"(operator({given}), {', '.join(results)})[1:]" if results else f"operator({given})"
    one = not results and [str(part.type) for part in call.operator._schema.returns] == ["Tensor"]
    if not results and not one:
        returned = f"[x for x in {returned} if x is not None]"  # gradients that nobody asked for
    dtype = next((t.dtype for t in tensors if t.dtype.is_floating_point), torch.float32)
    alike = [(source, len(list(group))) for source, group in itertools.groupby(t.source for t in tensors)]
    sources = [source if count == 1 else f"*({source} for _ in range({count}))" for source, count in alike]
    relative, moved = f"{checks.tolerance(dtype).relative:g}", ("", "")
    compared = [
        "for a, b in zip(right, result):",
        f"    rtol, a, b = {relative}, a.double(), b.cpu().double()",
        "    torch.testing.assert_close(b, a, rtol=rtol, atol=rtol * a.abs().nanmean().item() + 1e-6, equal_nan=True)",
    ]
    if one:
        moved = (".double()", ".cpu().double()")
        compared = [
            f"allowed = {relative} * right.abs().nanmean().item() + 1e-6",
            f"torch.testing.assert_close(result, right, rtol={relative}, atol=allowed, equal_nan=True)",
        ]
    return "\n".join([
        "import torch", "",
        "torch.manual_seed(0)", f'device = "{device}"',
        f"tensors = [{', '.join(t.source for t in tensors)}]" if len(tensors) == 1 else "tensors = [",
        *([f"    {source}," for source in sources] + ["]"] if len(tensors) > 1 else []),
        "", f"def run(operator, {', '.join(names)}):", f"    return {returned}", "",
        "exact = [x.cpu().double() if x.is_floating_point() else x.cpu() for x in tensors]",
        f"right = run({REFERENCES.get(call.name, function)}, *exact){moved[0]}",
        f"result = run({function}, *tensors){moved[1]}",
        *compared,
    ]) + "\n"  # fmt: skip


class _Name(str):
    __repr__ = str.__str__


def _text(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(list(value)) if isinstance(value, list | tuple) else repr(value)
