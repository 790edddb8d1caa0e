"""Will my model run on MPS? Which of its operators have a Metal kernel, told on any machine.

Three things are put together. *Which operators exist on MPS* is read from the installed PyTorch (`metalsim.operators`).
*What their kernels refuse*, or leave to the CPU, is known by dtype, shape and setting (`metalsim.refusals`). *Which
operators a model calls*, and with what, is found by running it once on the ``meta`` device, where shapes are computed
and numbers are not, so that a large model costs no memory; a model that asks a tensor for its device is told ``mps``.
One that needs real numbers on its way (``nonzero``, ``nms``) is run on the CPU instead, where a tensor that it leaves
behind cannot be told from the others, and the device is the CPU. So is one that would have caught the failure on
``meta`` and gone on another way than with numbers.

A prediction, not a proof. `confirm` runs the model on a real Apple GPU.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import html
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from metallab import units
from metalsim import operators, refusals

How = Literal["native", "composite", "falls back", "missing", "refused", "unknown"]
"""`metalsim.operators.Status`, or a kernel that refuses the arguments of a call."""

# Functions that are one operator on MPS, with one for the backward pass, and fall into pieces elsewhere: LSTM in
# aten/src/ATen/native/RNN.cpp; linear has a kernel of its own beside the composite in native_functions.yaml.
WHOLE_ON_MPS = {
    "lstm": ("aten::_lstm_mps", "aten::lstm_mps_backward"),
    "linear": ("aten::linear", "aten::linear_backward"),
}
# Attention is one operator where nothing needs a gradient (transformers/attention.cpp).
ATTENTION = "scaled_dot_product_attention"
ATTENTION_TAKES = ("query", "key", "value", "attn_mask", "dropout_p")
ATTENTION_ON_MPS = "aten::_scaled_dot_product_attention_math_for_mps"
FALLBACK_VARIABLE = "PYTORCH_ENABLE_MPS_FALLBACK"
NARROWER = {"float64": "float32", "complex128": "complex64"}
"""The dtypes that MPS does not have, each with the one to take in its place."""


class TraceFailed(RuntimeError):
    """The model could not be run (to its end) with the inputs given: neither on the meta device nor on the CPU."""


class OutOfTime(TraceFailed):
    """The model had not ended at the limit."""


class _Stopped(BaseException):
    """Ends a trace: there is nothing to be told of the model. No `Exception`, which a model may catch."""


class _NeedsNumbers(BaseException):
    """Ends a trace on the meta device, where something failed; ``problem`` if it fails on MPS as well."""

    def __init__(self, message: str, problem: str = "") -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True)
class Use:
    """One operator that a model calls."""

    operator: str
    """Namespace, name and overload: ``aten::add.Tensor``."""
    status: How
    calls: int
    modules: tuple[str, ...]
    """Which modules call it, by their place in the model; ``""`` is the model itself."""
    reason: str = ""
    """Of an operator that has a kernel and falls back all the same: why this model's calls do. Of one that refuses:
    what a Mac says."""
    way_out: str = ""
    """Of one that refuses: what to do."""
    lines: tuple[str, ...] = ()
    """Which lines call it, ``file:number``: of the code around PyTorch's. None in a backward pass."""

    @property
    def advice(self) -> str:
        """What to do about it; empty for what runs on the GPU."""
        name = self.operator.split("::")[1].split(".")[0]
        if self.status == "missing":
            return (
                f"raises NotImplementedError. Set {FALLBACK_VARIABLE}=1 before torch is imported to run {name} on the "
                "CPU, with a copy there and back; better, replace it, or write a kernel (notebook 04)"
            )
        if self.status == "refused":
            words = _first_sentence(self.reason)
            return f'refuses these arguments ("{words}"), also with {FALLBACK_VARIABLE}=1: {self.way_out}'
        if self.status == "falls back":
            why = f" ({self.reason})" if self.reason else ""
            return f"PyTorch itself runs {name} on the CPU{why}: correct, with a copy there and back"
        if self.status == "unknown":
            return "not PyTorch's own: ask the package that brings it whether it has an MPS kernel"
        return ""


@dataclass(frozen=True)
class CpuTensor:
    """A tensor on the CPU that an operator is given beside tensors of the GPU, which raises on MPS."""

    operator: str
    module: str
    """The innermost module, by its place in the model; empty for the model itself."""
    line: str
    """Which line calls the operator, ``file:number``; empty in a backward pass."""

    ADVICE = "build it with device=x.device; what the model keeps, such as in a list, give to register_buffer"

    def __str__(self) -> str:
        where = ", ".join(filter(None, [self.module and f"in {self.module}", self.line and f"at {self.line}"]))
        return f"a tensor stays on the CPU where {self.operator} meets it{where and f' {where}'}"


@dataclass(frozen=True)
class WideTensor:
    """A tensor of a dtype that MPS does not have, at the operator that makes it of others: there it raises."""

    dtype: str
    """A key of `NARROWER`."""
    operator: str
    modules: tuple[str, ...]
    """The innermost ones, by their place in the model; ``""`` is the model itself."""
    line: str
    """Which line calls the operator, ``file:number``; empty in a backward pass."""
    way_out: str

    def __str__(self) -> str:
        modules = _shortened(self.modules) if any(self.modules) else ""
        where = ", ".join(filter(None, [modules and f"in {modules}", self.line and f"at {self.line}"]))
        return f"MPS has no {self.dtype}, which {self.operator} makes{where and f' {where}'} ({self.way_out})"


@dataclass(frozen=True)
class WideValues:
    """What a model holds or is given in a dtype that MPS does not have: it cannot be moved there."""

    dtype: str
    """A key of `NARROWER`."""
    inputs: tuple[str, ...]
    names: tuple[str, ...]
    """Of parameters and buffers."""

    @property
    def way_out(self) -> str:
        """What to do."""
        return "call .float() first" if self.dtype == "float64" else f"make it with dtype=torch.{NARROWER[self.dtype]}"

    def __str__(self) -> str:
        return f"MPS has no {self.dtype}, but {_shortened((*self.inputs, *self.names))} is; {self.way_out}"


@dataclass(frozen=True)
class Coverage:
    """Every operator that a model called, the problematic ones first."""

    model: str
    uses: tuple[Use, ...]
    torch_version: str
    traced_on: str
    problems: tuple[str, ...] = field(default=())
    """What would raise beside all else that is here: a tensor on the GPU that is made a NumPy array."""
    cpu_tensors: tuple[CpuTensor, ...] = ()
    """Tensors left on the CPU, which raise, too."""
    wide: tuple[WideValues | WideTensor, ...] = ()
    """Where float64 and complex128 come from, which raise as well. What follows from them is not among it."""

    def having(self, *statuses: How) -> tuple[Use, ...]:
        """The uses with one of these statuses."""
        return tuple(use for use in self.uses if use.status in statuses)

    @property
    def runs(self) -> bool:
        """True if nothing raises, as far as this can see."""
        return not (self.having("missing", "refused") or self.problems or self.cpu_tensors or self.wide)

    @property
    def answer(self) -> str:
        """One line."""
        missing, slow = self.having("missing"), self.having("falls back", "unknown")
        sentences = [*map(str, self.wide), *self.problems]
        if self.cpu_tensors:
            more = f", and {len(self.cpu_tensors) - 1} more like it" if len(self.cpu_tensors) > 1 else ""
            sentences.append(f"{self.cpu_tensors[0]}{more} ({CpuTensor.ADVICE})")
        if missing:
            has = "has" if len(missing) == 1 else "have"
            sentences.append(f"{_listed(missing)} {has} no MPS kernel (with {FALLBACK_VARIABLE}=1 it runs on the CPU)")
        sentences += [
            f'{_listed([use])} refuses these arguments, "{_first_sentence(use.reason)}"'
            for use in self.having("refused")
        ]
        if sentences:
            return f"No: {'; '.join(sentences).removesuffix('.')}."
        if slow:
            return f"Yes, with care: {_listed(slow)} may leave the GPU."
        unseen = (
            ""
            if self.traced_on == "meta"
            else " (Traced on the CPU: tensors left there, and what it does on mps alone, would not be noticed.)"
        )
        every = f"all {len(self.uses)} operators run" if len(self.uses) != 1 else "its one operator runs"
        return f"Yes: {every} on MPS in PyTorch {self.torch_version}.{unseen}"

    def renamed(self, name: Callable[[str], str]) -> Coverage:
        """The same, with another name for each module, parameter and buffer."""

        def names(old: Sequence[str]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(map(name, old)))

        def wide(each: WideValues | WideTensor) -> WideValues | WideTensor:
            if isinstance(each, WideTensor):
                return replace(each, modules=names(each.modules))
            return replace(each, names=names(each.names))

        return replace(
            self,
            uses=tuple(replace(use, modules=names(use.modules)) for use in self.uses),
            cpu_tensors=tuple(replace(each, module=name(each.module)) for each in self.cpu_tensors),
            wide=tuple(map(wide, self.wide)),
        )

    def __str__(self) -> str:
        rows = [(use.operator, use.status, str(use.calls), _shortened(use.modules)) for use in self.uses]
        head = ("operator", "status", "calls", "called by")
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in [head, *rows]]
        advice = [f"{use.operator}: {use.advice}." for use in self.uses if use.advice]
        return "\n".join([f"{self.model}: {self.answer}", "", *lines, *([""] if advice else []), *advice])

    def _repr_html_(self) -> str:
        colours = {"missing": "#d55e00", "refused": "#d55e00", "falls back": "#e69f00", "unknown": "#e69f00"}

        def row(use: Use) -> str:
            colour = colours.get(use.status, "inherit")
            cells = (_listed([use]), use.status, use.calls, _shortened(use.modules), use.advice)
            return f'<tr style="color:{colour}">{"".join(_cell(str(text)) for text in cells)}</tr>'

        names = ("operator", "status", "calls", "called by", "what to do")
        head = "".join(_cell(name, "th") for name in names)
        rows = "".join(map(row, self.uses))
        page = f"<p><b>{html.escape(self.model)}</b>: {html.escape(self.answer)}</p>"
        return f"{page}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def mps_coverage(
    model: Callable[..., Any], *inputs: Any, training: bool = False, time_limit: float = 300.0, **named: Any
) -> Coverage:
    """Which operators ``model(*inputs, **named)`` calls, and whether each runs on MPS with what it is given.

    ``model`` is an `nn.Module`, traced as a copy, or any function of tensors; a module inside a function is not seen
    and therefore not copied. With ``training`` the backward pass of the summed outputs is traced as well.
    `TraceFailed` if the model does not run, has not ended after ``time_limit`` seconds (`OutOfTime`), or computes with
    sparse or nested tensors, whose kernels are others. TypeError for an iterator among the inputs, ValueError for a
    ``time_limit`` that is no number of seconds; infinite means none.
    """
    import torch

    if not time_limit >= 0:
        raise ValueError(f"time_limit is {time_limit}: give seconds, 0 or more, or float('inf') for no limit")
    for leaf in torch.utils._pytree.tree_leaves((inputs, named)):
        if isinstance(leaf, Iterator):
            raise TypeError(
                f"an input is a {type(leaf).__name__}, which can be gone through only once and keeps its tensors to "
                "itself: give list(...) of it"
            )
    with _limited(time_limit):
        traced_on, recorder = _trace(model, inputs, named, training, time.monotonic() + time_limit)
    uses = [recorder.use(operator) for operator in recorder.calls]
    worst_first = ("missing", "refused", "falls back", "unknown", "composite", "native")
    uses.sort(key=lambda use: (worst_first.index(use.status), use.operator))
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", str(model))
    problems = tuple(filter(None, [recorder.problem]))
    # a backward pass meets what the forward pass has kept
    left = tuple(each for each in recorder.cpu_tensors if each.line) or tuple(recorder.cpu_tensors)
    # and a model makes more of what it holds or is given
    wide = _wide_values(model, (inputs, named)) or recorder.wide_tensors()
    return Coverage(name, tuple(uses), torch.__version__, traced_on, problems, left, wide)


def confirm(coverage: Coverage, model: Callable[..., Any], *inputs: Any, **named: Any) -> str:
    """Run the model's forward pass on this machine's MPS device and say whether the prediction held.

    RuntimeError where there is no MPS device.
    """
    import torch

    if not torch.backends.mps.is_available():
        raise RuntimeError("there is no MPS device here; a prediction can be confirmed on a Mac only")
    device = torch.device("mps")
    helped = os.environ.get(FALLBACK_VARIABLE) == "1" and replace(coverage, uses=coverage.having("refused")).runs
    foretold = coverage.runs or helped
    try:
        with torch.no_grad():
            _moved(model, device)(*_moved(inputs, device), **_moved(named, device))
        torch.mps.synchronize()
    except Exception as error:  # noqa: BLE001 - a model may raise anything; it is told
        held = "as predicted" if not foretold else "NOT predicted"
        return f"It raised, {held}: {units.first_line(error)}"
    return f"It ran, {'as predicted' if foretold else 'NOT predicted'}."


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """`OutOfTime` once a block has taken so long.

    The recorder looks at the clock at every operator, where it is safe to stop. A model that calls none any more is
    interrupted by a signal a second later; outside of the main thread, or beside another timer, it is not.
    """
    alarm = threading.current_thread() is threading.main_thread() and not signal.getitimer(signal.ITIMER_REAL)[0]
    if alarm:
        before = signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, min(seconds + 1, threading.TIMEOUT_MAX))
    try:
        yield
    except _Stopped as stopped:
        if str(stopped):
            raise TraceFailed(f"the model {stopped}") from None
        raise OutOfTime(
            f"the model has not ended after {seconds:.3g} s: is there a loop that never ends (time_limit= sets more)"
        ) from None
    finally:
        if alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _stop(*_: Any) -> None:
    raise _Stopped


def _trace(model: Callable, inputs: Any, named: Any, training: bool, until: float) -> tuple[str, _Recorder]:
    """Where it was traced, and what was recorded."""
    from metallab.pytorch.dispatch import explain

    problem = ""
    for device in ("meta", "cpu"):
        try:
            recorder = _traced_on(device, model, inputs, named, training, until)
            recorder.problem = problem
            return device, recorder
        except (Exception, _NeedsNumbers) as error:  # noqa: BLE001 - a model may raise anything; it is told below
            failure = error  # the CPU's, which is what the model raises anywhere
            problem = getattr(error, "problem", "")
    raise TraceFailed(
        f"the model does not run with these inputs on the CPU: {explain(failure)}; do they fit it?"
    ) from failure


def _traced_on(device: str, model: Callable, inputs: Any, named: Any, training: bool, until: float) -> _Recorder:
    import torch

    # the caller's random numbers stay as they were: on the CPU dropout would draw some
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.set_grad_enabled(training):
        subject, arguments, keywords = (_moved(value, device) for value in (model, inputs, named))
        recorder = _Recorder(device, training, until)
        # the fused encoder of the CPU does not exist on MPS: keep to the path that an MPS run takes
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        # nor does its fused attention
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        try:
            with recorder.recording(), math if device == "cpu" else contextlib.nullcontext():
                outputs = subject(*arguments, **keywords)
                if training:
                    _summed(outputs).backward()
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
    if recorder.ended_by:  # the model caught even that
        raise recorder.ended_by
    return recorder


class _Recorder:
    """Counts operators by the module that calls them, and takes for one what is one operator on MPS."""

    def __init__(self, device: str, training: bool, until: float) -> None:
        from metallab.pytorch.dispatch import CallingModules

        self.device, self.training, self.until = device, training, until
        self.ended_by: BaseException | None = None
        self.modules = CallingModules()
        self.calls: dict[str, collections.Counter] = {}
        self.cpu_tensors: dict[CpuTensor, None] = {}
        self.wide: dict[tuple[str, str, str, str], dict[str, None]] = {}
        """Modules by what a `WideTensor` has beside them: dtype, operator, line, way out."""
        self.outcomes: dict[str, refusals.Refusal | refusals.Detour] = {}
        self.lines: dict[str, dict[str, None]] = {}
        self.inside_a_whole = False
        self.problem = ""
        """What ended a trace on the meta device, and would fail on MPS, too."""
        self.has_zeros = False
        """Whether tensors on the CPU have zeros for numbers: those that came from the meta device, which has none."""

    @property
    def module(self) -> str:
        """The innermost module that runs, forward or backward, by its place in the model."""
        from metallab.pytorch.dispatch import below_root

        return below_root(self.modules.innermost())

    def note(self, operator: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        """Count a call, unless it is a piece of a whole that was counted, and keep what becomes of it on a Mac."""
        from metallab.pytorch.dispatch import calling_line

        if self.inside_a_whole:
            return
        self.calls.setdefault(operator, collections.Counter())[self.module] += 1
        if line := calling_line(until=_traced_on.__name__):
            self.lines.setdefault(operator, {})[line] = None
        outcome = refusals.outcome(operator, args, kwargs) if args or kwargs else None
        if isinstance(outcome, refusals.Refusal) or (outcome and operator not in self.outcomes):
            self.outcomes[operator] = outcome

    def use(self, operator: str) -> Use:
        """What was recorded of an operator. One call that is refused, or leaves the GPU, is enough to say so."""
        modules, outcome = self.calls[operator], self.outcomes.get(operator)
        lines = tuple(self.lines.get(operator, ()))
        counted = {"operator": operator, "calls": sum(modules.values()), "modules": tuple(modules), "lines": lines}
        how = operators.status(operator)
        if isinstance(outcome, refusals.Refusal) and how in ("native", "composite"):
            return Use(status="refused", reason=outcome.words, way_out=outcome.way_out, **counted)
        if isinstance(outcome, refusals.Detour):
            return Use(status="falls back", reason=outcome.reason, **counted)
        return Use(status=how, **counted)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around each operator and function: what fails on the meta device alone must not lead the model another way.

        Attributes that a tensor lacks are asked for by way of trying.
        """
        try:
            if time.monotonic() > self.until:
                raise _Stopped
            yield
        except Exception as error:
            if self.device != "meta" or isinstance(error, AttributeError):
                raise
            self.ended_by = _NeedsNumbers(units.first_line(error))
            raise self.ended_by from error
        except BaseException as error:
            self.ended_by = error
            raise

    def call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a function, counting it once if it is one operator on MPS."""
        import torch

        from metallab.pytorch.dispatch import calling_line

        name = getattr(function, "__name__", "")
        if name in ("numpy", "tolist", "__array__") and (self.has_zeros or args[0].is_meta):
            on_gpu = name != "tolist" and args[0].is_meta
            line = calling_line(until=_traced_on.__name__)
            problem = f"a tensor on the GPU is no NumPy array{line and f' at {line}'} (write .cpu().numpy())"
            raise _NeedsNumbers(f"{name} asks for numbers", problem if on_gpu else "")
        if self.inside_a_whole or name not in (*WHOLE_ON_MPS, ATTENTION) or self._is_on_the_cpu((args, kwargs)):
            return function(*args, **kwargs)
        if name == ATTENTION:
            given = {**dict(zip(ATTENTION_TAKES, args, strict=False)), **kwargs}
            if torch.is_grad_enabled() and any(given[each].requires_grad for each in ATTENTION_TAKES[:3]):
                return function(*args, **kwargs)
            self.note(ATTENTION_ON_MPS, (), given)
            return self._whole(function, args, kwargs)
        forward, backward = WHOLE_ON_MPS[name]
        self.note(forward, args, kwargs)
        if self.training:
            return _differentiable(self, backward, function, args, kwargs)
        return self._whole(function, args, kwargs)

    def _whole(self, function: Callable, args: Any, kwargs: Any) -> Any:
        self.inside_a_whole = True
        try:
            return function(*args, **kwargs)
        finally:
            self.inside_a_whole = False

    def operator(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Note an operator that reached the dispatcher, and what would go wrong with it on MPS."""
        from metallab.pytorch.dispatch import calling_line

        name = function.name() + ("" if "." in function.name() else ".default")
        given = (args, kwargs)
        where = f" in {self.module}" if self.module else ""
        _require_dense((args, kwargs), f"meet {name}{where}")
        if self.device == "meta":
            args, kwargs = self._gathered(function, args, kwargs)
        result = self._computed(function, args, kwargs)
        if not self._is_on_the_cpu((args, kwargs, result)):
            self.note(name, args, kwargs)
        _require_dense(result, f"are made by {name}{where}")
        made = self._wide_dtypes(result)
        # what is made of such a tensor follows from it; the first may be one that a closure has
        if made and not (self.wide and self._wide_dtypes(given)):
            line = calling_line(until=_traced_on.__name__)
            for dtype in made:
                key = (dtype, function.name(), line, _way_out_of(dtype, function))
                self.wide.setdefault(key, {})[self.module] = None
        return result

    def wide_tensors(self) -> tuple[WideTensor, ...]:
        """Those of the forward pass, for a backward pass makes more of them; its own if there are no others."""
        made = [
            WideTensor(dtype, operator, tuple(modules), line, way_out)
            for (dtype, operator, line, way_out), modules in self.wide.items()
        ]
        return tuple(each for each in made if each.line) or tuple(made)

    def _wide_dtypes(self, values: Any) -> list[str]:
        """The dtypes among values on the traced device that MPS does not have."""
        import torch

        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        dtypes = dict.fromkeys(_name_of(leaf.dtype) for leaf in leaves if leaf.device.type == self.device)
        return [dtype for dtype in dtypes if dtype in NARROWER]

    def _is_on_the_cpu(self, values: Any) -> bool:
        """Whether a model on the GPU computes this on the CPU, as it says itself: not known of a CPU's trace."""
        import torch

        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return self.device == "meta" and bool(leaves) and all(leaf.device.type == "cpu" for leaf in leaves)

    def _computed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives. To the CPU the meta device brings zeros, whose numbers nothing may depend on."""
        import torch

        to_the_cpu = function == torch.ops.aten._to_copy.default and str(kwargs.get("device")) == "cpu"
        if self.device == "meta" and to_the_cpu and args[0].is_meta:
            self.has_zeros = True
            return torch.zeros_like(args[0], dtype=kwargs.get("dtype"), device="cpu")
        asks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(function.tags)
        if self.has_zeros and asks and self._is_on_the_cpu(args):
            raise _NeedsNumbers(f"{function.name()} asks for numbers")
        return function(*args, **kwargs)

    def _gathered(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Tensors left on the CPU beside others raise on MPS: noted, then moved, so that the trace goes on."""
        import torch

        from metallab.pytorch.dispatch import calling_line

        def kinds(values: Any) -> set[str]:
            leaves = torch.utils._pytree.tree_leaves(values)
            return {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0}

        if kinds((args, kwargs)) != {"meta", "cpu"} or "copy" in function.name():
            return args, kwargs
        # indices may lie on the CPU: x[indices] takes them to where x is
        given = zip(function._schema.arguments, args, strict=False)
        plain = [value for argument, value in given if str(argument.type) != "List[Optional[Tensor]]"]
        if "cpu" in kinds((plain, kwargs)):
            line = calling_line(until=_traced_on.__name__)
            self.cpu_tensors[CpuTensor(function.name(), self.module, line)] = None
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to("meta"), (args, kwargs))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Watch the dispatcher, and above it the functions that fall into pieces on the way to it."""
        from unittest import mock

        import torch
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                with recorder.watching(), torch._C.DisableTorchFunction():  # in here a device is what it is
                    if function._can_decompose():  # whole only in inference mode
                        with self:
                            pieces = function.decompose(*args, **(kwargs or {}))
                        if pieces is not NotImplemented:
                            return pieces
                    return recorder.operator(function, args, kwargs or {})

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                with recorder.watching():
                    if recorder.device == "meta":
                        if function in (torch.Tensor.device.__get__, torch.Tensor.is_mps.__get__):
                            return _as_on_a_mac(function, *args)
                        args, kwargs = _on_meta(function, args, kwargs or {})
                    return recorder.call(function, *args, **(kwargs or {}))

        # Functions is off inside a function of PyTorch's own that it has seen, such as multi_head_attention_forward
        attention = functools.partial(self.call, torch.nn.functional.scaled_dot_product_attention)
        patched = mock.patch.object(torch.nn.functional, ATTENTION, attention)
        with patched, self.modules, Functions(), Operators():
            yield


def _as_on_a_mac(attribute: Callable, tensor: Any) -> Any:
    """What a tensor's ``device`` or ``is_mps`` is on a Mac, for one that is on the meta device in its stead."""
    import torch

    if torch.Tensor.device.__get__(tensor).type != "meta":
        return attribute(tensor)
    return torch.device("mps:0") if attribute == torch.Tensor.device.__get__ else True


def _on_meta(function: Callable, args: Any, kwargs: Any) -> Any:
    """A function's arguments, with the meta device in place of a Mac's GPU: what it makes there, or moves there."""
    import torch

    def changed(value: Any) -> Any:
        return "meta" if isinstance(value, str | torch.device) and str(value).startswith("mps") else value

    if "device" in kwargs:
        kwargs = kwargs | {"device": changed(kwargs["device"])}
    return (tuple(map(changed, args)) if function == torch.Tensor.to else args), kwargs


def _differentiable(recorder: _Recorder, backward: str, function: Callable, args: Any, kwargs: Any) -> Any:
    """A whole whose backward pass is one operator too: computed for its shapes, with gradients of the right shapes."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, structure = pytree.tree_flatten((args, kwargs))
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(context, *tensors):
            context.save_for_backward(*tensors)
            filled = list(leaves)
            for index, tensor in zip(positions, tensors, strict=True):
                filled[index] = tensor
            inner_args, inner_kwargs = pytree.tree_unflatten(filled, structure)
            return recorder._whole(function, inner_args, inner_kwargs)

        @staticmethod
        def backward(context, *gradients):
            recorder.note(backward)
            recorder.inside_a_whole = True
            try:
                return tuple(torch.zeros_like(t) if t.is_floating_point() else None for t in context.saved_tensors)
            finally:
                recorder.inside_a_whole = False

    return Whole.apply(*(leaves[index] for index in positions))


def _moved(value: Any, device: Any) -> Any:
    """Copies on a device: of a module, or of every tensor in what was given, however deep it lies.

    A module's parameters and buffers are moved before it is copied, so that a large one is never there twice.
    """
    import torch

    from metallab.pytorch.copies import copied, mapped

    if isinstance(value, torch.jit.ScriptModule):  # its parameters lie in C++, where deepcopy's memo does not reach
        return copied(value).to(device)
    if isinstance(value, torch.nn.Module):
        moved = {id(p): torch.nn.Parameter(_copied(p, device), p.requires_grad) for p in value.parameters()}
        return copied(value, moved | {id(b): _copied(b, device) for b in value.buffers()})
    return mapped(lambda tensor: _copied(tensor, device), value, lambda module: _moved(module, device))


def _require_dense(values: Any, where: str) -> None:
    """Ends the trace if there is a sparse or nested tensor: `table` is of kernels for dense ones."""
    import torch

    for leaf in torch.utils._pytree.tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and (leaf.is_nested or leaf.layout is not torch.strided):
            kind = "nested" if leaf.is_nested else "sparse"
            raise _Stopped(
                f"computes with {kind} tensors, which {where}, and coverage knows kernels of dense ones alone: try it "
                "on a Mac, or make them dense"
            )


def _copied(tensor: Any, device: Any) -> Any:
    _require_dense(tensor, "are among its inputs, parameters or buffers")
    there = tensor.detach().to(device)
    if there.data_ptr() == tensor.data_ptr() and there.device == tensor.device:
        there = there.clone()
    return there.requires_grad_(tensor.requires_grad)


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _way_out_of(dtype: str, operator: Any) -> str:
    """How to write a call of an operator that makes a dtype that MPS does not have."""
    import torch

    name, narrower = operator.name().partition("::")[2].partition(".")[0], f"torch.{NARROWER[dtype]}"
    if name == "_to_copy":
        return f"write .to({narrower})"
    if hasattr(torch, name) and any(argument.name == "dtype" for argument in operator._schema.arguments):
        return f"write torch.{name}(..., dtype={narrower})"
    return f"compute it in {narrower}"


def _summed(outputs: Any) -> Any:
    """The sum of all differentiable outputs; ValueError if there is none."""
    from metallab.pytorch.copies import tensors_in

    wanted = [leaf for leaf in tensors_in(outputs) if leaf.requires_grad]
    if not wanted:
        raise ValueError("training=True, but no output depends on a parameter or input that requires a gradient")
    return sum((leaf.abs() if leaf.is_complex() else leaf).sum() for leaf in wanted)


def _wide_values(model: Any, inputs: Any) -> tuple[WideValues, ...]:
    """The parameters, buffers and inputs that MPS cannot hold."""
    import torch

    from metallab.pytorch.copies import tensors_in

    given = [(f"input {i}", leaf) for i, leaf in enumerate(tensors_in(inputs))]
    is_module = isinstance(model, torch.nn.Module)
    held = [*model.named_parameters(), *model.named_buffers()] if is_module else []
    found = []
    for dtype in NARROWER:
        named = (tuple(name for name, value in values if _name_of(value.dtype) == dtype) for values in (given, held))
        found.append(WideValues(dtype, *named))
    return tuple(each for each in found if each.inputs or each.names)


def _cell(text: str, tag: str = "td") -> str:
    """A cell of an HTML table with its text on the left, and wrapped where it is long: wider for a sentence."""
    width = 18 if len(text) > 60 else 7
    wraps = f";overflow-wrap:anywhere;min-width:{width}em" if len(text) > 12 else ""
    return f'<{tag} style="text-align:left{wraps}">{html.escape(text)}</{tag}>'


def _first_sentence(words: str) -> str:
    """Of a Mac's message; what follows is seldom of use."""
    return words.partition(". ")[0]


def _listed(uses: Sequence[Use]) -> str:
    return ", ".join(use.operator.split("::")[1].removesuffix(".default") for use in uses)


def _shortened(modules: Sequence[str], most: int = 3) -> str:
    names = [name or "(the model)" for name in modules]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """``metallab coverage package.module:factory``: 0 if it runs on MPS, 1 if not, 2 on misuse."""
    from metallab.pytorch.doctor.subject import NotAModel, made

    takes = (
        "package.module:factory; it returns (model, inputs) or (model, inputs, loss), of which the loss is not traced"
    )
    parser.add_argument("factory", help=takes)
    parser.add_argument("--training", action="store_true", help="trace the backward pass as well")
    given = parser.parse_args(arguments)
    try:
        subject = made(given.factory)
        coverage = mps_coverage(subject.model, *subject.inputs, training=given.training, **subject.named)
    except (NotAModel, TraceFailed) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(coverage)
    return 0 if coverage.runs else 1
