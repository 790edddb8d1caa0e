"""Will my model run on MPS? Ask on any machine which of its operators have a Metal kernel.

Which operators exist on MPS is read from the installed PyTorch (`metalsim.operators`). What their kernels refuse, or
leave to the CPU, is known by dtype, shape and setting (`metalsim.refusals`). Which operators a model calls, and with
what, is found by running it once on the ``meta`` device, where shapes are computed and numbers are not; there
``x.device`` is ``mps``. A model that needs numbers (``nonzero``, ``nms``), or fails on ``meta`` for another reason,
runs on the CPU instead. There it is followed where each tensor would lie: ``x.cpu()`` leaves the GPU, and what is
computed from it needs no kernel. Where a tensor comes from outside of the model, that is not known.

A prediction: a kernel may compute something else.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import html
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from metallab import units
from metallab.pytorch.copies import copied, mapped, tensors_in
from metallab.pytorch.dispatch import CallingModules, below_root, calling_line, explain, watching
from metallab.pytorch.errors import NotAModel
from metallab.pytorch.model import load_model
from metallab.pytorch.placement import Place, Placement
from metallab.tables import Table
from metalsim import operators, refusals

How = Literal["native", "composite", "falls back", "missing", "refused", "unknown"]
"""`metalsim.operators.Status`, or a kernel that refuses the arguments of a call."""
WORST_FIRST = ("missing", "refused", "falls back", "unknown", "composite", "native")

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
AS_ARRAYS = ("numpy", "__array__")
READ_AS_NUMBERS = (*AS_ARRAYS, "tolist")
MADE_ON_THE_CPU = ("from_numpy", "frombuffer", "as_tensor", "tensor")
"""Functions whose result lies on the CPU unless they are given a device, or a tensor on another one."""
NO_ARRAY = ("a tensor on the GPU is no NumPy array", "write .cpu().numpy()")
UNSEEN = "Traced on the CPU: tensors left there, and what it does on mps alone, would not always be noticed."


class TraceFailed(RuntimeError):
    """The model could not be run with these inputs, neither on the meta device nor on the CPU."""


class _Ended(BaseException):
    """Ends a trace; not an `Exception`, which a model may catch."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
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
    """The modules that call it, by their place in the model; ``""`` is the model itself."""
    reason: str = ""
    """Why calls of an operator with a kernel fall back, or a Mac's message of refusal."""
    way_out: str = ""
    """What to do about a refusal."""
    lines: tuple[str, ...] = ()
    """The lines outside of PyTorch that call it, ``file:number``; none in a backward pass."""

    @property
    def words(self) -> str:
        """The useful part of the reason."""
        return self.reason.partition(". ")[0]

    @property
    def advice(self) -> str:
        """What to do about it; empty for what runs on the GPU."""
        name = _listed([self]).partition(".")[0]
        if self.status == "missing":
            way_out = f"set {FALLBACK_VARIABLE}=1 before torch is imported to run {name} on the CPU, with copies"
            return f"raises NotImplementedError: {way_out}; better, replace it, or write a kernel (notebook 23)"
        if self.status == "refused":
            return f'refuses these arguments ("{self.words}"), also with {FALLBACK_VARIABLE}=1: {self.way_out}'
        if self.status == "falls back":
            why = f" ({self.reason})" if self.reason else ""
            return f"PyTorch runs {name} on the CPU{why}: correct, with copies there and back"
        if self.status == "unknown":
            return "not PyTorch's own: ask the package that brings it whether it has an MPS kernel"
        return ""


@dataclass(frozen=True)
class Problem:
    """An error on MPS despite a kernel: a tensor on the wrong device, or of a dtype that MPS lacks."""

    kind: Literal["on the CPU", "float64", "complex128", "array"]
    text: str
    way_out: str
    operator: str = ""
    """Empty for a parameter, buffer or input."""
    line: str = ""
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        modules = _shortened(self.modules) if any(self.modules) else ""
        where = ", ".join(
            filter(None, [modules and f"in {modules}", self.line and f"at {self.line}"])
        )
        return f"{self.text}{where and f' {where}'} ({self.way_out})"


@dataclass(frozen=True)
class Coverage:
    """Every operator that a model called, the problematic ones first."""

    model: str
    uses: tuple[Use, ...]
    traced_on: str
    problems: tuple[Problem, ...] = ()
    """Errors despite a kernel."""

    def having(self, *statuses: How) -> tuple[Use, ...]:
        """Return the uses with one of these statuses."""
        return tuple(use for use in self.uses if use.status in statuses)

    @property
    def runs(self) -> bool:
        """True if nothing raises, as far as known."""
        return not (self.having("missing", "refused") or self.problems)

    @property
    def answer(self) -> str:
        """One line."""
        missing, slow = self.having("missing"), self.having("falls back", "unknown")
        kinds = collections.Counter(problem.kind for problem in self.problems)
        first = [
            next(problem for problem in self.problems if problem.kind == kind) for kind in kinds
        ]
        sentences = [
            str(each) + (f", and {n - 1} more" if (n := kinds[each.kind]) > 1 else "")
            for each in first
        ]
        if missing:
            has = "has" if len(missing) == 1 else "have"
            sentences.append(
                f"{_listed(missing)} {has} no MPS kernel (with {FALLBACK_VARIABLE}=1 it runs on the CPU)"
            )
        sentences += [
            f'{_listed([use])} refuses these arguments, "{use.words}"'
            for use in self.having("refused")
        ]
        unseen = f" ({UNSEEN})" if self.traced_on == "cpu" else ""
        if sentences:
            return f"No: {'; '.join(sentences).removesuffix('.')}.{unseen}"
        if slow:
            return f"Yes, with care: {_listed(slow)} may leave the GPU."
        every = (
            f"all {len(self.uses)} operators run"
            if len(self.uses) != 1
            else "its one operator runs"
        )
        return f"Yes: {every} on MPS in PyTorch {torch.__version__}.{unseen}"

    def __str__(self) -> str:
        rows = [(use.operator, use.status, use.calls, _shortened(use.modules)) for use in self.uses]
        advice = [f"{use.operator}: {use.advice}." for use in self.uses if use.advice]
        table = repr(Table(["operator", "status", "calls", "called by"], rows))
        return "\n".join(
            [f"{self.model}: {self.answer}", "", table, *([""] if advice else []), *advice]
        )

    def _repr_html_(self) -> str:
        rows = [
            (_listed([u]), u.status, u.calls, _shortened(u.modules), u.advice) for u in self.uses
        ]
        table = Table(["operator", "status", "calls", "called by", "what to do"], rows)
        return f"<p><b>{html.escape(self.model)}</b>: {html.escape(self.answer)}</p>{table._repr_html_()}"


def mps_coverage(
    model: Callable[..., Any], *inputs: Any, training: bool = False, **named: Any
) -> Coverage:
    """Predict which operators ``model(*inputs, **named)`` calls, and whether each runs on MPS with what it is given.

    Parameters
    ----------
    model
        An `nn.Module`, traced as a copy, or a function of tensors and modules; a module that the function has in a
        closure is neither seen nor copied.
    inputs, named
        What it is called with, on any device.
    training
        Trace the backward pass of the summed outputs as well.

    Raises
    ------
    TraceFailed
        If the model does not run, or computes with sparse or nested tensors, whose kernels are others.
    """
    traced_on, recorder = _trace(model, inputs, named, training)
    uses = [recorder.use(operator) for operator in recorder.calls]
    uses.sort(key=lambda use: (WORST_FIRST.index(use.status), use.operator))
    name = (
        type(model).__name__
        if isinstance(model, nn.Module)
        else getattr(model, "__name__", str(model))
    )
    problems = recorder.problems(_held_in_wide_dtypes(model, inputs, named))
    return Coverage(name, tuple(uses), traced_on, tuple(problems))


def _trace(model: Callable, inputs: Any, named: Any, training: bool) -> tuple[str, _Recorder]:
    """Return where it was traced, and the recorder."""
    problem = None
    # at last on the CPU as it is: code that takes the device from a tensor may not run with the name of another one
    for device, is_followed in (("meta", True), ("cpu", True), ("cpu", False)):
        try:
            recorder = _traced_on(device, is_followed, model, inputs, named, training)
            recorder.found |= {problem: {}} if problem else {}
            return device, recorder
        except (Exception, _Ended) as error:  # noqa: BLE001 - a model may raise anything; it is reported below
            failure = error  # the CPU's, which is what the model raises anywhere
            problem = getattr(error, "problem", None)
    if isinstance(failure, _Ended):
        raise TraceFailed(f"the model {failure}") from None
    why = (
        f"the model does not run with these inputs on the CPU: {explain(failure)}; do they fit it?"
    )
    raise TraceFailed(why) from failure


def _traced_on(
    device: str, is_followed: bool, model: Callable, inputs: Any, named: Any, training: bool
) -> _Recorder:
    # the caller's random numbers stay as they were
    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.set_grad_enabled(training),
    ):
        subject, arguments, keywords = (_moved(value, device) for value in (model, inputs, named))
        recorder = _Recorder(device, training, is_followed)
        recorder.place_parts(subject, arguments, keywords)
        # MPS has neither the CPU's fused encoder nor its fused attention
        fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        try:
            with recorder.recording(), math:
                outputs = subject(*arguments, **keywords)
                if training:
                    _summed(outputs).backward()
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
    if recorder.ended_by:  # the model caught even that
        raise recorder.ended_by
    return recorder


class _Recorder:
    """Counts operators by the module that calls them; what is one operator on MPS counts as one."""

    def __init__(self, device: str, training: bool, is_followed: bool = True) -> None:
        self.device, self.training = device, training
        self.places = Placement() if is_followed and device == "cpu" else None
        """Where tensors of a trace on the CPU would lie; None if that is not followed."""
        self.wanted: Place | None = None
        """Where the function that runs puts what it makes, if it is told so."""
        self.around: Place | None = None
        """Where the tensors lie that the function that runs was given."""
        self.ended_by: BaseException | None = None
        self.modules = CallingModules()
        self.calls: dict[str, collections.Counter] = {}
        self.found: dict[Problem, dict[str, None]] = {}
        self.outcomes: dict[str, refusals.Refusal | refusals.Detour] = {}
        self.lines: dict[str, dict[str, None]] = {}
        self.inside_a_whole = False
        self.has_zeros = False
        """True if tensors came to the CPU from the meta device: they have zeros for numbers."""

    @property
    def module(self) -> str:
        """The innermost module that runs, by its place in the model."""
        return below_root(self.modules.innermost())

    def place_parts(self, *values: Any) -> None:
        """Place what was moved on the GPU, and what modules keep beside parameters and buffers on the CPU."""
        if self.places is None:
            return
        modules = [
            part
            for each in pytree.tree_leaves(values)
            if isinstance(each, nn.Module)
            for part in each.modules()
        ]
        moved = [t for part in modules for t in (*part.parameters(False), *part.buffers(False))]
        self.places.set([*moved, *tensors_in(values)], Place.GPU)

        kept = tensors_in([vars(part) for part in modules])
        self.places.set([t for t in kept if self.places.get(t) is None], Place.CPU)

    def place_of(self, tensor: Tensor) -> Place | None:
        """Return where a tensor would lie on a Mac; None if that is not known."""
        if self.places is not None:
            return self.places.get(tensor)
        if self.device == "cpu":
            return None
        return Place.GPU if tensor.device.type == self.device else Place.CPU

    def place_of_any(self, values: Any) -> Place | None:
        """Return GPU if a tensor lies there, CPU if all are known to lie there, else None."""
        places = {self.place_of(leaf) for leaf in _leaves(values)}
        if Place.GPU in places:
            return Place.GPU
        return Place.CPU if places == {Place.CPU} else None

    def note(
        self, operator: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Count a call, unless it is part of one that was counted, and keep its outcome on a Mac."""
        if self.inside_a_whole:
            return
        self.calls.setdefault(operator, collections.Counter())[self.module] += 1
        if line := _calling_line():
            self.lines.setdefault(operator, {})[line] = None
        outcome = refusals.outcome(operator, args, kwargs) if args or kwargs else None
        if isinstance(outcome, refusals.Refusal) or (outcome and operator not in self.outcomes):
            self.outcomes[operator] = outcome

    def use(self, operator: str) -> Use:
        """Return what was recorded of an operator; one call that is refused or leaves the GPU decides."""
        modules, outcome = self.calls[operator], self.outcomes.get(operator)
        how, reason, way_out = operators.status(operator), "", ""
        if isinstance(outcome, refusals.Refusal) and how in ("native", "composite"):
            how, reason, way_out = "refused", outcome.words, outcome.way_out
        elif isinstance(outcome, refusals.Detour):
            how, reason = "falls back", outcome.reason
        lines = tuple(self.lines.get(operator, ()))
        return Use(operator, how, sum(modules.values()), tuple(modules), reason, way_out, lines)

    def problems(self, held: list[Problem]) -> list[Problem]:
        """Those that were found, without what follows from dtypes that the model holds or is given."""
        found = [
            replace(problem, modules=tuple(modules)) for problem, modules in self.found.items()
        ]
        # a backward pass meets what the forward pass has kept
        found = [each for each in found if each.line] or found
        return held + [each for each in found if not held or each.kind not in NARROWER]

    def report(self, problem: Problem) -> None:
        """Note a problem and its module."""
        self.found.setdefault(problem, {})[self.module] = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note errors around operators and functions: one of the meta device must not change the model's way.

        Except AttributeError, by which code asks what a tensor has.
        """
        try:
            yield
        except Exception as error:
            if self.device != "meta" or isinstance(error, AttributeError):
                raise
            self.ended_by = _Ended(units.first_line(error))
            raise self.ended_by from error
        except BaseException as error:
            self.ended_by = error
            raise

    def call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a function; count it if it is one operator on MPS."""
        name = getattr(function, "__name__", "")
        if name in AS_ARRAYS and self.places and self.place_of(args[0]) is Place.GPU:
            self.report(Problem("array", *NO_ARRAY, line=_calling_line()))
        if name in READ_AS_NUMBERS and (self.has_zeros or args[0].is_meta):
            array = Problem("array", *NO_ARRAY, line=_calling_line())
            raise _Ended(
                f"{name} asks for numbers", array if name != "tolist" and args[0].is_meta else None
            )
        if (
            self.inside_a_whole
            or name not in (*WHOLE_ON_MPS, ATTENTION)
            or _is_packed_lstm(name, args)
            or self._is_on_the_cpu((args, kwargs))
        ):
            return function(*args, **kwargs)
        if name == ATTENTION:
            given = {**dict(zip(ATTENTION_TAKES, args, strict=False)), **kwargs}
            if torch.is_grad_enabled() and any(
                given[each].requires_grad for each in ATTENTION_TAKES[:3]
            ):
                return function(*args, **kwargs)
            self.note(ATTENTION_ON_MPS, (), given)
            return self.whole(function, args, kwargs)
        forward, backward = WHOLE_ON_MPS[name]
        self.note(forward, args, kwargs)
        if self.training:
            return _differentiable(self, backward, function, args, kwargs)
        return self.whole(function, args, kwargs)

    def whole(self, function: Callable, args: Any, kwargs: Any) -> Any:
        """Call a function without counting its operators."""
        self.inside_a_whole = True
        try:
            return function(*args, **kwargs)
        finally:
            self.inside_a_whole = False

    def operator(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Note an operator and what would go wrong with it on MPS."""
        name = function.name() + ("" if "." in function.name() else ".default")
        given = (args, kwargs)
        where = f" in {self.module}" if self.module else ""
        _require_dense(given, f"meet {name}{where}")
        args, kwargs = self._gathered(function, args, kwargs)
        result = self._computed(function, args, kwargs)
        self._place_results(function, args, kwargs, result)
        if not self._is_on_the_cpu((args, kwargs, result)):
            self.note(name, args, kwargs)
        _require_dense(result, f"are made by {name}{where}")
        # what follows from such a tensor is not reported again
        follows = self._wide_dtypes(given) and any(
            problem.kind in NARROWER for problem in self.found
        )
        for dtype in () if follows else self._wide_dtypes(result):
            text = f"MPS has no {dtype}, which {function.name()} makes"
            self.report(
                Problem(dtype, text, _way_out_of(dtype, function), function.name(), _calling_line())
            )
        return result

    def _wide_dtypes(self, values: Any) -> list[str]:
        """Return the dtypes of tensors on the traced device that MPS does not have."""
        dtypes = dict.fromkeys(
            units.dtype_name(t.dtype) for t in _leaves(values) if self.place_of(t) is not Place.CPU
        )
        return [dtype for dtype in dtypes if dtype in NARROWER]

    def _is_on_the_cpu(self, values: Any) -> bool:
        """Return True if the model computes this on the CPU on purpose."""
        return self.place_of_any(values) is Place.CPU

    def _place_results(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Place what an operator has made: where its function wants it, else with its arguments."""
        if self.places is None:
            return
        given = self.place_of_any((args, kwargs))
        if function == torch.ops.aten.lift_fresh.default and given is None:
            self.places.set(args, Place.CPU)  # numbers of Python or NumPy
        if not _leaves((args, kwargs)):
            given = self.around or Place.CPU
        takes_device = any(argument.name == "device" for argument in function._schema.arguments)
        place = self.wanted if takes_device and self.wanted is not None else given
        # what lies in memory of an argument stays there
        made = [leaf for leaf in _leaves(result) if self.places.get(leaf) is None]
        if place is not None:
            self.places.set(made, place)

    def placing(self, function: Callable, args: Any, kwargs: Any) -> Any:
        """Call a function, and follow where it puts what it makes."""
        wanted = self._wanted_place(function, args, kwargs)
        before = self.wanted, self.around
        self.wanted, self.around = wanted, self.place_of_any((args, kwargs))
        try:
            args, kwargs = _on_device(self.device, function, args, kwargs)
            if wanted is Place.CPU and function in MOVES:  # where it is cast as well
                args = (self._move(args[0]), *args[1:])
            elif function in MOVES:
                self.wanted = None
            result = self.call(function, *args, **kwargs)

            self.wanted = wanted
            if wanted is None:
                return result
            return pytree.tree_map_only(Tensor, self._move, result)
        finally:
            self.wanted, self.around = before

    def _move(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or where it would lie elsewhere a copy, in the place that is wanted."""
        source, target = self.place_of(tensor), self.wanted
        if source is not None and source is not target:
            return _move_with_gradient(self, tensor, source, target)
        self.places.set([tensor], target)
        return tensor

    def copy_to(self, place: Place, tensor: Tensor) -> Tensor:
        """Return a copy that would lie in a place."""
        before, self.wanted = self.wanted, place
        try:
            return tensor.to(tensor.device, copy=True)
        finally:
            self.wanted = before

    def _wanted_place(self, function: Callable, args: Any, kwargs: Any) -> Place | None:
        """Return where a function is told to put what it makes."""
        if self.places is None:
            return None
        if function == Tensor.cpu:
            return Place.CPU
        if function == Tensor.new_tensor and kwargs.get("device") is None:
            return self.place_of(args[0])

        destinations = _list_destinations(function, args, kwargs)
        if destinations:
            if isinstance(destinations[0], Tensor):
                return self.place_of(destinations[0])
            return {"mps": Place.GPU, "cpu": Place.CPU}.get(torch.device(destinations[0]).type)

        name = getattr(function, "__name__", "")
        is_new = name in MADE_ON_THE_CPU and not _leaves((args, kwargs))
        return Place.CPU if is_new else None

    def _computed(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator. A copy from meta to the CPU gives zeros, on which nothing may depend."""
        to_the_cpu = (
            function == torch.ops.aten._to_copy.default and str(kwargs.get("device")) == "cpu"
        )
        if self.device == "meta" and to_the_cpu and args[0].is_meta:
            self.has_zeros = True
            return torch.zeros_like(args[0], dtype=kwargs.get("dtype"), device="cpu")
        asks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(
            function.tags
        )
        if self.has_zeros and asks and self._is_on_the_cpu(args):
            raise _Ended(f"{function.name()} asks for numbers")
        return function(*args, **kwargs)

    def _gathered(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Report and move tensors that were left on the CPU, which raise on MPS."""

        def kinds(values: Any) -> set[Place | None]:
            return {self.place_of(leaf) for leaf in _leaves(values) if leaf.dim() > 0}

        if not kinds((args, kwargs)) >= {Place.GPU, Place.CPU} or "copy" in function.name():
            return args, kwargs
        # x[indices] moves indices from the CPU
        given = zip(function._schema.arguments, args, strict=False)
        plain = [
            value for argument, value in given if str(argument.type) != "List[Optional[Tensor]]"
        ]
        if Place.CPU in kinds((plain, kwargs)):
            text = f"a tensor stays on the CPU where {function.name()} meets it"
            way_out = "build it with device=x.device; what the model keeps, such as in a list, give to register_buffer"
            self.report(Problem("on the CPU", text, way_out, function.name(), _calling_line()))
        if self.device == "cpu":
            return args, kwargs
        return pytree.tree_map_only(Tensor, lambda leaf: leaf.to("meta"), (args, kwargs))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Watch the dispatcher, and the functions that fall into pieces above it."""
        recorder = self

        def see(function, args, kwargs):
            with (
                recorder.watching(),
                torch._C.DisableTorchFunction(),
            ):  # in here a device is what it is
                if function._can_decompose():  # whole only in inference mode
                    with each:
                        pieces = function.decompose(*args, **kwargs)
                    if pieces is not NotImplemented:
                        return pieces
                return recorder.operator(function, args, kwargs)

        each = watching(see)

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                with recorder.watching():
                    kwargs = kwargs or {}
                    if function in (
                        Tensor.device.__get__,
                        Tensor.is_mps.__get__,
                        Tensor.is_cpu.__get__,
                    ):
                        if recorder.place_of(*args) is Place.GPU:
                            return AS_ON_A_MAC[function]
                        return function(*args)
                    return recorder.placing(function, args, kwargs)

        # Functions is off inside a function of PyTorch's own that it has seen, such as multi_head_attention_forward
        attention = nn.functional.scaled_dot_product_attention
        nn.functional.scaled_dot_product_attention = functools.partial(self.call, attention)
        try:
            with self.modules, Functions(), each:
                yield
        finally:
            nn.functional.scaled_dot_product_attention = attention


def _list_destinations(
    function: Callable, args: Any, kwargs: Any
) -> list[str | torch.device | Tensor]:
    """Return the devices, or the tensors on them, that a call names for what it makes; the first one counts."""
    destinations = [kwargs["device"]] if kwargs.get("device") is not None else []
    if function == Tensor.to:
        destinations += [
            each for each in args[1:2] if isinstance(each, str | torch.device | Tensor)
        ]
        destinations += [kwargs["other"]] if "other" in kwargs else []
    return destinations


def _is_packed_lstm(name: str, args: Sequence[Any]) -> bool:
    """Return True for an LSTM over a packed sequence, which MPS computes step by step, as a CPU does (RNN.cpp).

    Its second argument are the sizes of the batches, a tensor; of any other LSTM it is the state, a pair of tensors.
    """
    return name == "lstm" and len(args) > 1 and isinstance(args[1], Tensor)


def _leaves(values: Any) -> list[Tensor]:
    """Return the tensors among arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _calling_line() -> str:
    return calling_line(until=_traced_on.__name__)


MOVES = (Tensor.to, Tensor.cpu)
"""Methods that may take a tensor elsewhere."""
AS_ON_A_MAC = {
    Tensor.device.__get__: torch.device("mps:0"),
    Tensor.is_mps.__get__: True,
    Tensor.is_cpu.__get__: False,
}
"""What attributes of a tensor on the GPU are there."""


def _on_device(device: str, function: Callable, args: Any, kwargs: Any) -> Any:
    """Return a function's arguments with the device of a trace in place of mps."""

    def changed(value: Any) -> Any:
        is_mps = isinstance(value, str | torch.device) and str(value).startswith("mps")
        return device if is_mps else value

    if "device" in kwargs:
        kwargs = kwargs | {"device": changed(kwargs["device"])}
    return (tuple(map(changed, args)) if function == Tensor.to else args), kwargs


def _move_with_gradient(
    recorder: _Recorder, tensor: Tensor, source: Place, target: Place
) -> Tensor:
    """Copy a tensor to another place; its gradient goes the other way."""

    class Move(torch.autograd.Function):
        @staticmethod
        def forward(_context, tensor):
            return recorder.copy_to(target, tensor)

        @staticmethod
        def backward(_context, gradient):
            return recorder.copy_to(source, gradient)

    return Move.apply(tensor)


def _differentiable(
    recorder: _Recorder, backward: str, function: Callable, args: Any, kwargs: Any
) -> Any:
    """Call a function whose backward pass is one operator, too; its gradients have the right shapes only."""
    leaves, structure = pytree.tree_flatten((args, kwargs))

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(context, *tensors):
            context.save_for_backward(*tensors)
            given = iter(tensors)
            filled = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return recorder.whole(function, *pytree.tree_unflatten(filled, structure))

        @staticmethod
        def backward(context, *gradients):
            recorder.note(backward)
            zeros = lambda: tuple(
                torch.zeros_like(t) if t.is_floating_point() else None
                for t in context.saved_tensors
            )
            return recorder.whole(zeros, (), {})

    return Whole.apply(*_leaves(leaves))


def _moved(value: Any, device: Any) -> Any:
    """Copy a module, or every tensor in a value, to a device. Parameters are moved before the module is copied."""
    if isinstance(value, torch.jit.ScriptModule):  # its parameters are in C++
        return copied(value).to(device)
    if isinstance(value, nn.Module):
        moved = {
            id(p): nn.Parameter(_copied(p, device), p.requires_grad) for p in value.parameters()
        }
        return copied(value, moved | {id(b): _copied(b, device) for b in value.buffers()})
    return mapped(
        lambda tensor: _copied(tensor, device), value, lambda module: _moved(module, device)
    )


def _require_dense(values: Any, where: str) -> None:
    """End the trace if there is a sparse or nested tensor, whose kernels are not known."""
    for leaf in _leaves(values):
        if leaf.is_nested or leaf.layout is not torch.strided:
            kind = "nested" if leaf.is_nested else "sparse"
            problem = f"computes with {kind} tensors, which {where}, and coverage knows kernels of dense ones alone"
            raise _Ended(f"{problem}: try it on a Mac, or make them dense")


def _copied(tensor: Tensor, device: Any) -> Tensor:
    _require_dense(tensor, "are among its inputs, parameters or buffers")
    return tensor.detach().to(device, copy=True).requires_grad_(tensor.requires_grad)


def _way_out_of(dtype: str, operator: Any) -> str:
    """Return how to avoid a dtype that MPS does not have."""
    name, narrower = (
        operator.name().partition("::")[2].partition(".")[0],
        f"torch.{NARROWER[dtype]}",
    )
    if name == "_to_copy":
        return f"write .to({narrower})"
    if hasattr(torch, name) and any(
        argument.name == "dtype" for argument in operator._schema.arguments
    ):
        return f"write torch.{name}(..., dtype={narrower})"
    return f"compute it in {narrower}"


def _summed(outputs: Any) -> Tensor:
    """Return the sum of all differentiable outputs; ValueError if there is none."""
    wanted = [leaf for leaf in tensors_in(outputs) if leaf.requires_grad]
    if not wanted:
        raise ValueError(
            "training=True, but no output depends on a parameter or input that requires a gradient"
        )
    return sum((leaf.abs() if leaf.is_complex() else leaf).sum() for leaf in wanted)


def _held_in_wide_dtypes(model: Any, inputs: Any, named: Any) -> list[Problem]:
    """Return a problem for the parameters, buffers and inputs that MPS cannot hold."""
    values = [(f"input {i}", leaf) for i, leaf in enumerate(tensors_in(inputs))]
    values += [(name, leaf) for name, value in named.items() for leaf in tensors_in(value)]
    for module in (each for each in (model, *inputs) if isinstance(each, nn.Module)):
        values += [*module.named_parameters(), *module.named_buffers()]
    found = []
    for dtype, narrower in NARROWER.items():
        if names := [name for name, value in values if units.dtype_name(value.dtype) == dtype]:
            way_out = (
                "call .float() first"
                if dtype == "float64"
                else f"make it with dtype=torch.{narrower}"
            )
            found.append(Problem(dtype, f"MPS has no {dtype}, but {_shortened(names)} is", way_out))
    return found


def _listed(uses: Sequence[Use]) -> str:
    return ", ".join(use.operator.split("::")[1].removesuffix(".default") for use in uses)


def _shortened(modules: Sequence[str], most: int = 3) -> str:
    names = [name or "(the model)" for name in modules]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Run ``metallab coverage package.module:factory``, and return its exit code.

    Parameters
    ----------
    parser
        Without arguments yet.
    arguments
        What stands behind the command's name.

    Returns
    -------
    int
        0 if the model runs on MPS; 1 if not; 2 if the factory makes no model, or its operators cannot be listed.

    Raises
    ------
    SystemExit
        With 2, if the arguments are wrong, and with 0 after ``--help``, as `argparse` does.
    """
    parser.add_argument(
        "factory",
        help="package.module:factory; it returns (model, inputs) or (model, inputs, loss)",
    )
    parser.add_argument("--training", action="store_true", help="trace the backward pass as well")
    given = parser.parse_args(arguments)
    try:
        subject = load_model(given.factory)
        coverage = mps_coverage(
            subject.model, *subject.inputs, training=given.training, **subject.named
        )
    except (NotAModel, TraceFailed) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(coverage)
    return 0 if coverage.runs else 1
