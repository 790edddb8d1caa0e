"""Counts the operators that a model calls, and notes what each call would do on a Mac."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import _StopRecomputationError

from metallab import units
from metallab.pytorch.coverage.report import How, Problem, Use
from metallab.pytorch.coverage.whereabouts import AS_ON_A_MAC, Whereabouts, list_tensors
from metallab.pytorch.dispatch import CallingModules, below_root, calling_line, watching
from metallab.pytorch.placement import Place
from metalsim import operators, refusals

# Functions that are one operator on MPS, with one for the backward pass, and fall into pieces elsewhere: LSTM in
# aten/src/ATen/native/RNN.cpp; linear has a kernel of its own beside the composite in native_functions.yaml.
WHOLE_ON_MPS = {
    "lstm": ("aten::_lstm_mps", "aten::lstm_mps_backward"),
    "linear": ("aten::linear", "aten::linear_backward"),
}
WITHOUT_DERIVATIVE = ("aten::lstm_mps_backward",)
"""Operators of a backward pass that themselves have no derivative (tools/autograd/derivatives.yaml): a gradient of a
gradient, for which ``create_graph=True`` asks, raises there on MPS."""
# Attention is one operator where nothing needs a gradient (transformers/attention.cpp).
ATTENTION = "scaled_dot_product_attention"
ATTENTION_TAKES = ("query", "key", "value", "attn_mask", "dropout_p")
ATTENTION_ON_MPS = "aten::_scaled_dot_product_attention_math_for_mps"

NARROWER = {"float64": "float32", "complex128": "complex64"}
"""The dtypes that MPS does not have, each with the one to take in its place."""

AS_ARRAYS = ("numpy", "__array__")
READ_AS_NUMBERS = (*AS_ARRAYS, "tolist")
"""Functions of a tensor that give its numbers to Python, which a tensor in a trace may not have."""

PACK = "aten::_pack_padded_sequence"
CTC = "ctc_loss"
LENGTHS_OF_CTC = {2: "input_lengths", 3: "target_lengths"}
"""Arguments, by place and name, that CTC takes as numbers, wherever they lie; in a trace it would keep them as tensors
(``ctc_loss`` in LossCTC.cpp, whose other way is for subclasses of tensors)."""
OF_OTHER_DTYPES_ON_MPS = ("quantile", "nanquantile")
"""Functions that compute in float64 on other devices, and in the dtype that they are given on MPS (Sorting.cpp)."""

TAKES_FROM_THE_CPU = (PACK, "aten::_pack_padded_sequence_backward", "aten::_pad_packed_sequence")
"""Operators on the GPU with an argument that lies on the CPU: the lengths of sequences, or the sizes of batches."""

LEFT_ON_THE_CPU = (
    "write table.to(x) for a tensor that exists, and x.new_zeros(3) for a new one: both take device and dtype from x, "
    "which is there; or give device=x.device; what the model keeps, such as in a list, give to register_buffer"
)
DRAW_FIRST = (
    "draw on the CPU, then .to(x.device), or make the generator with torch.Generator(x.device)"
)
NO_ARRAY = ("a tensor on the GPU is no NumPy array", "write .cpu().numpy()")
NO_SECOND_DERIVATIVE = (
    "compute this layer on the CPU, where it falls into operators that have one, or ask for the gradient without "
    "create_graph=True"
)

WAYS_OUT = {
    "aten::_nested_tensor_from_mask_left_aligned": (
        "make the encoder with nn.TransformerEncoder(..., enable_nested_tensor=False)"
    ),
}
"""What to write in place of an operator without a kernel, where its name does not tell where it comes from."""

NO_FAILURES = (AttributeError, _StopRecomputationError)
"""Exceptions that are caught on any device: by the first one code asks what a tensor has, and with the second one a
checkpoint ends what it computes again, as soon as it has all tensors that the backward pass needs."""

ENTRY = "trace_on"
"""The function that calls the model; lines further out are not the model's."""


class Ended(BaseException):
    """Ends a trace; not an `Exception`, which a model may catch.

    Parameters
    ----------
    message
        Says of the model what it does: ``item asks for numbers``.
    problem
        What would raise on a Mac at this point, if anything.
    """

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True, eq=False)
class Whole:
    """A call of a function that is one operator on MPS, and one in its backward pass; each call is equal to itself."""

    backward_operator: str


class Recorder:
    """Counts operators by the module that calls them; what is one operator on MPS counts as one.

    Parameters
    ----------
    device
        Where the trace computes: ``meta`` or ``cpu``.
    is_followed
        Whether it is noted, on the CPU, where each tensor would lie.
    """

    def __init__(self, device: str, is_followed: bool = True) -> None:
        self.device = device
        self.whereabouts = Whereabouts(device, is_followed)
        self.modules = CallingModules()

        self.calls: dict[str, collections.Counter[str]] = {}
        """How often each module called an operator."""
        self.ended_by: BaseException | None = None
        """What ended the trace, since a model may catch it."""
        self._problems: dict[Problem, dict[str, None]] = {}
        """Each with the modules in which it was met; a dict keeps the order."""
        self._outcomes: dict[str, refusals.Refusal | refusals.Detour] = {}
        self._lines: dict[str, dict[str, None]] = {}

        self._is_inside_a_whole = False
        """True while a function runs that is one operator on MPS."""
        self._wholes: dict[int, Whole] = {}
        """By the number of a node of autograd, the call of which it is a part."""
        self._counted: set[tuple[Whole, int]] = set()
        """Calls that were counted in a backward pass, with the number of that pass."""
        self._without_derivative: dict[int, str] = {}
        """By the number of a node that differentiates a gradient a second time, the operator that cannot be."""
        self._is_called_by_python = True
        """False while autograd itself calls operators, True again in what it calls of Python's, such as a hook."""
        self._is_of_other_dtypes = False
        """True while a function runs that computes in other dtypes on MPS than here."""
        self._has_zeros = False
        """True if tensors came to the CPU from the meta device: they have zeros for numbers."""

    # ---- what was found

    def summarize(self, operator: str) -> Use:
        """Return what was recorded of an operator; one call that is refused or leaves the GPU decides."""
        modules, outcome = self.calls[operator], self._outcomes.get(operator)
        status: How = operators.status(operator)
        reason = way_out = ""
        # a refusal is the Metal kernel's: without a kernel it does not come so far
        if isinstance(outcome, refusals.Refusal) and status in ("native", "composite"):
            status, reason, way_out = "refused", outcome.words, outcome.way_out
        elif isinstance(outcome, refusals.Detour):
            status, reason = "falls back", outcome.reason
        elif status == "missing":
            way_out = WAYS_OUT.get(operator.removesuffix(".default"), "")

        return Use(
            operator,
            status,
            calls=sum(modules.values()),
            modules=tuple(modules),
            reason=reason,
            way_out=way_out,
            lines=tuple(self._lines.get(operator, ())),
        )

    def list_problems(self, tells_dtypes: bool = True) -> list[Problem]:
        """Return the problems.

        Parameters
        ----------
        tells_dtypes
            Whether dtypes that MPS lacks are among them. They are not where the model was traced with parameters,
            buffers and inputs of such a dtype: nobody can tell then which follow from those.
        """
        found = [replace(each, modules=tuple(modules)) for each, modules in self._problems.items()]
        # those without a line are of a backward pass, which meets again what the forward pass has kept
        found = [each for each in found if each.line] or found
        if not tells_dtypes:
            found = [each for each in found if each.kind not in NARROWER]
        return found

    def report(self, problem: Problem) -> None:
        """Note a problem and its module."""
        self._problems.setdefault(problem, {})[self._module] = None

    @property
    def _module(self) -> str:
        """The innermost module that runs, by its place in the model."""
        return below_root(self.modules.innermost())

    # ---- while the model runs

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Watch the dispatcher, the functions that fall into pieces above it, and which module calls them."""

        def see(operator: Any, args: Any, kwargs: Any) -> Any:
            return self._see_operator(dispatcher, operator, args, kwargs)

        # `see` is given its own mode, which is off in it and has to see the pieces of an operator as well
        dispatcher = watching(see)
        functions = _FunctionMode(self._see_function)
        with (
            self._seeing_attention(),
            self._seeing_backward(functions),
            self._seeing_saved_tensors(functions),
            self.modules,
            functions,
            dispatcher,
        ):
            yield

    @contextlib.contextmanager
    def _seeing_attention(self) -> Iterator[None]:
        """See attention, also where a function of PyTorch's own calls it, such as multi_head_attention_forward.

        Once the mode for functions has seen such a function it is off inside of it.
        """
        attention = nn.functional.scaled_dot_product_attention
        see = functools.partial(self._call, attention)
        with _replacing(nn.functional, "scaled_dot_product_attention", see):
            yield

    @contextlib.contextmanager
    def _seeing_backward(self, functions: _FunctionMode) -> Iterator[None]:
        """See functions in a backward pass, too: of a custom autograd function, a hook, what is computed again.

        The mode for functions has seen the call of ``backward`` or ``grad``, so it is off inside of it.
        """
        run_backward = torch.autograd._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            before = self._is_called_by_python
            # until a function of Python's is seen, such as one that a hook calls
            self._is_called_by_python = False
            try:
                with functions.enter_again():
                    return run_backward(*args, **kwargs)
            finally:
                self._is_called_by_python = before

        with _replacing(torch.autograd, "_engine_run_backward", run):
            yield

    @contextlib.contextmanager
    def _seeing_saved_tensors(self, functions: _FunctionMode) -> Iterator[None]:
        """See what a model does with tensors that autograd saves, such as `torch.autograd.graph.save_on_cpu`.

        The hook is called inside of the function that saves them, where the mode for functions is off, while what takes
        them back is called in the backward pass: one would be told another device than the other.
        """
        push = torch._C._autograd._push_saved_tensors_default_hooks

        def push_seeing(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
            def pack_seeing(tensor: Tensor) -> Any:
                before = self._is_inside_a_whole
                # what the model's own hook calls is no part of that function
                self._is_inside_a_whole = False
                try:
                    with functions.enter_again():
                        return pack(tensor)
                finally:
                    self._is_inside_a_whole = before

            push(pack_seeing, unpack)

        with _replacing(torch._C._autograd, "_push_saved_tensors_default_hooks", push_seeing):
            yield

    def _see_function(self, function: Callable, args: Any, kwargs: Any) -> Any:
        """Call a function, or read a tensor's attribute, so that the model finds its tensors where a Mac has them."""
        before = self._is_called_by_python
        self._is_called_by_python = True
        try:
            with self._watching():
                if function in AS_ON_A_MAC:
                    is_there = self.whereabouts.find(*args) is Place.GPU
                    return AS_ON_A_MAC[function] if is_there else function(*args)
                # `whereabouts` follows where the results lie, and `_call` counts what is one operator on MPS
                return self.whereabouts.call(self._call, function, args, kwargs)
        finally:
            self._is_called_by_python = before

    def _see_operator(
        self, dispatcher: TorchDispatchMode, operator: Any, args: Any, kwargs: Any
    ) -> Any:
        """Compute an operator, or let the dispatcher see the pieces of one that falls into others."""
        # the model is told mps of what lies on the GPU (`AS_ON_A_MAC`); in here a tensor names the device of the trace
        with self._watching(), torch._C.DisableTorchFunction():
            if operator._can_decompose():  # such an operator comes whole only in inference mode
                with dispatcher:
                    pieces = operator.decompose(*args, **kwargs)
                if pieces is not NotImplemented:
                    return pieces
            return self._compute(operator, args, kwargs)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Note errors around operators and functions: one of the meta device must not change the model's way.

        Except those by which PyTorch or a model finds its way on any device (`NO_FAILURES`).
        """
        try:
            yield
        except Exception as error:
            if self.device != "meta" or isinstance(error, NO_FAILURES):
                raise
            self.ended_by = Ended(units.first_line(error))
            raise self.ended_by from error
        except BaseException as error:
            self.ended_by = error
            raise

    # ---- functions, above the dispatcher

    def _call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a function; count it if it is one operator on MPS.

        A tensor that it reads as numbers is judged first. It may end the trace (`_judge_reading`, `_read_lengths`).
        """
        name = getattr(function, "__name__", "")
        if name in READ_AS_NUMBERS:
            self._judge_reading(name, args[0])

        if name in OF_OTHER_DTYPES_ON_MPS:
            return self._call_in_other_dtypes(function, args, kwargs)
        if name == CTC:
            args, kwargs = self._read_lengths(args, kwargs)

        is_on_the_cpu = self.whereabouts.find_any((args, kwargs)) is Place.CPU
        # what is one operator on MPS is counted as a whole, so of what it calls nothing is counted
        if self._is_inside_a_whole or is_on_the_cpu:
            return function(*args, **kwargs)
        if name == ATTENTION:
            return self._call_attention(function, args, kwargs)
        if name in WHOLE_ON_MPS and not _is_packed_lstm(name, args):
            return self._call_whole_on_mps(name, function, args, kwargs)
        return function(*args, **kwargs)

    def _read_lengths(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of CTC with numbers in place of lengths; end a trace in which they have none.

        So CTC takes them outside of a trace, wherever they lie, while it would keep the tensors of a trace.
        """

        def read(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if value.is_meta:
                raise Ended(f"{CTC} asks for numbers")
            return value.tolist()

        args = [read(each) if place in LENGTHS_OF_CTC else each for place, each in enumerate(args)]
        names = LENGTHS_OF_CTC.values()
        kwargs = {name: read(each) if name in names else each for name, each in kwargs.items()}
        return tuple(args), kwargs

    def _call_in_other_dtypes(self, function: Callable, args: Any, kwargs: Any) -> Any:
        """Call a function without judging the dtypes that it computes in, which are others on MPS."""
        self._is_of_other_dtypes = True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_of_other_dtypes = False

    def _judge_reading(self, name: str, tensor: Tensor) -> None:
        """Report a tensor on the GPU that is taken for an array; end a trace in which a tensor has no numbers.

        Where that ends a trace on meta, the report goes with `Ended` into the next one.
        """
        array = Problem("array", *NO_ARRAY, line=_find_calling_line())
        is_array = name in AS_ARRAYS
        if is_array and self.whereabouts.is_noted and self.whereabouts.find(tensor) is Place.GPU:
            self.report(array)

        if self._has_zeros or tensor.is_meta:
            is_on_the_gpu = is_array and tensor.is_meta
            raise Ended(f"{name} asks for numbers", array if is_on_the_gpu else None)

    def _call_attention(self, function: Callable, args: Any, kwargs: Any) -> Any:
        """Call attention: counted as one operator where nothing needs a gradient, else as the pieces that it calls.

        A tensor that lies on the CPU among others on the GPU is reported here.
        """
        given = {**dict(zip(ATTENTION_TAKES, args, strict=False)), **kwargs}
        # in its pieces a mask on the CPU meets numbers that were made for it, whose place nobody names
        if self.whereabouts.is_noted and self._is_on_both(given):
            self._report_left_on_the_cpu(f"aten::{ATTENTION}")

        queries_keys_values = [given[name] for name in ATTENTION_TAKES[:3]]
        if torch.is_grad_enabled() and any(each.requires_grad for each in queries_keys_values):
            return function(*args, **kwargs)

        self._note(ATTENTION_ON_MPS, (), given)
        return self._run_whole(function, args, kwargs)

    def _call_whole_on_mps(self, name: str, function: Callable, args: Any, kwargs: Any) -> Any:
        forward, backward = WHOLE_ON_MPS[name]
        self._note(forward, args, kwargs)
        if torch.is_grad_enabled():
            return self._run_whole_with_gradient(backward, function, args, kwargs)
        return self._run_whole(function, args, kwargs)

    def _run_whole(self, function: Callable, args: Any, kwargs: Any) -> Any:
        """Call a function without counting its operators."""
        self._is_inside_a_whole = True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_inside_a_whole = False

    def _run_whole_with_gradient(
        self, backward_operator: str, function: Callable, args: Any, kwargs: Any
    ) -> Any:
        """Call a function whose backward pass is one operator, too.

        The function runs as it is, with PyTorch's own gradients of its pieces: what a model does with those, such as
        checkpoints, vmap and gradients of gradients, then works as it does anywhere. The nodes of the pieces are noted,
        by which `_note` knows in the backward pass that they are one.
        """
        first = torch.autograd._get_sequence_nr()
        try:
            return self._run_whole(function, args, kwargs)
        finally:
            nodes = range(first, torch.autograd._get_sequence_nr())
            self._wholes |= dict.fromkeys(nodes, Whole(backward_operator))

    # ---- operators, at the dispatcher

    def _compute(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator; note it, and what would go wrong with it on MPS."""
        name = operator.name() if "." in operator.name() else f"{operator.name()}.default"
        # at each operator, also where none is counted: the nodes that autograd has made since belong to this module
        self.modules.innermost()
        given = (args, kwargs)
        self._require_dense(given, f"meet {name}")

        self._judge_second_derivative()
        self._judge_lengths(operator, args)
        args, kwargs = self._gather(operator, args, kwargs)
        result = self._call_operator(operator, args, kwargs)
        self.whereabouts.place_results(operator, (args, kwargs), result)
        if self.whereabouts.find_any((args, kwargs, result)) is not Place.CPU:
            has_gradient = any(leaf.requires_grad for leaf in list_tensors((args, kwargs)))
            self._note(name, args, kwargs, has_node=has_gradient and torch.is_grad_enabled())

        self._require_dense(result, f"are made by {name}")
        self._judge_dtypes(operator, given, result)
        self._judge_generator(operator, args, kwargs, result)
        return result

    def _require_dense(self, values: Any, what: str) -> None:
        """End the trace at a sparse or nested tensor; the message says what they do, in which module and line."""
        if all(map(_is_dense, list_tensors(values))):
            return

        where = f" in {self._module}" if self._module else ""
        if line := _find_calling_line():
            where += f" at {line}"
        elif self.modules.is_in_backward():
            where += " (an embedding with sparse=True makes them in its backward pass)"
        require_dense(values, what + where)

    def _note(
        self,
        operator: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        has_node: bool = False,
    ) -> None:
        """Count a call, unless it is part of one that was counted, and keep its outcome on a Mac.

        Of several calls a refusal is kept, or else the first detour to the CPU. ``has_node`` says that the last node of
        autograd is the operator's own, by which its gradient has its line.
        """
        if self._is_inside_a_whole:
            return
        if whole := self._find_whole_of_gradient():
            if self._is_counted(whole):
                return
            operator, args, kwargs = whole.backward_operator, (), {}

        self.calls.setdefault(operator, collections.Counter())[self._module] += 1
        if line := self._find_line(has_node):
            self._lines.setdefault(operator, {})[line] = None

        outcome = refusals.outcome(operator, args, kwargs) if args or kwargs else None
        if isinstance(outcome, refusals.Refusal) or (outcome and operator not in self._outcomes):
            self._outcomes[operator] = outcome

    def _find_line(self, has_node: bool) -> str:
        """Return the line that calls an operator; where autograd does, that of the operator whose gradient it computes.

        Empty if there is neither. In what a model's own ``backward`` or hook calls there is a line.
        """
        known = self.modules.find_line(has_node, until=ENTRY)
        return _find_calling_line() or str(known or "")

    def _find_whole_of_gradient(self) -> Whole | None:
        """Return the call that is one operator on MPS, and of which autograd computes a gradient; None if of none."""
        node = torch._C._current_autograd_node()
        if node is None or self._is_called_by_python:
            return None
        return self._wholes.get(node._sequence_nr())

    def _is_counted(self, whole: Whole) -> bool:
        """Return True if a call was counted in this backward pass before; from now on it is."""
        key = whole, torch._C._current_graph_task_id()
        was_counted = key in self._counted
        self._counted.add(key)
        return was_counted

    def _judge_second_derivative(self) -> None:
        """Report a gradient of a gradient for which MPS has no formula.

        A backward pass with ``create_graph=True`` makes nodes of its own, and those of operators without a derivative
        are noted. It is reported when a second backward pass comes to such a node.
        """
        node = torch._C._current_autograd_node()
        if node is None or self._is_called_by_python:
            return

        if operator := self._without_derivative.get(node._sequence_nr()):
            text = f"{operator} has no derivative, so a gradient of its gradient raises"
            line = _find_calling_line()
            self.report(Problem("second derivative", text, NO_SECOND_DERIVATIVE, operator, line))

        whole = self._find_whole_of_gradient()
        is_kept = torch.is_grad_enabled()  # by create_graph=True
        if whole and is_kept and whole.backward_operator in WITHOUT_DERIVATIVE:
            # autograd makes the node before its operator is seen, so the last number that was given is its own
            made = torch.autograd._get_sequence_nr() - 1
            self._without_derivative[made] = whole.backward_operator

    def _call_operator(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator. A copy from meta to the CPU gives zeros, on which nothing may depend.

        Ended if an operator on the CPU wants to know numbers that may come from such zeros.
        """
        is_copy = operator == torch.ops.aten._to_copy.default and str(kwargs.get("device")) == "cpu"
        if self.device == "meta" and is_copy and args[0].is_meta:
            self._has_zeros = True
            return torch.zeros_like(args[0], dtype=kwargs.get("dtype"), device="cpu")

        depends_on_numbers = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        is_on_the_cpu = self.whereabouts.find_any(args) is Place.CPU
        if self._has_zeros and is_on_the_cpu and depends_on_numbers & set(operator.tags):
            raise Ended(f"{operator.name()} asks for numbers")
        return operator(*args, **kwargs)

    # ---- what would raise

    def _gather(self, operator: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Report tensors that were left on the CPU, which raise on MPS, and move them for a trace on meta."""
        name = operator.name()
        # a copy is what takes a tensor from one device to the other
        is_exempt = "copy" in name or name in TAKES_FROM_THE_CPU
        if is_exempt or not self._is_on_both((args, kwargs)):
            return args, kwargs

        # x[indices] moves indices from the CPU: in a schema they are a list of optional tensors
        pairs = zip(operator._schema.arguments, args, strict=False)
        not_moved = [each for known, each in pairs if str(known.type) != "List[Optional[Tensor]]"]
        if Place.CPU in self._find_places((not_moved, kwargs)):
            self._report_left_on_the_cpu(name)

        if self.device == "cpu":  # where the trace has those of the GPU, too
            return args, kwargs
        return pytree.tree_map_only(Tensor, lambda leaf: leaf.to("meta"), (args, kwargs))

    def _report_left_on_the_cpu(self, operator: str) -> None:
        text = f"a tensor stays on the CPU where {operator} meets it"
        line = _find_calling_line()
        self.report(Problem("on the CPU", text, LEFT_ON_THE_CPU, operator, line))

    def _is_on_both(self, values: Any) -> bool:
        """Return True if some tensors lie on the GPU and others on the CPU."""
        return self._find_places(values) >= {Place.GPU, Place.CPU}

    def _find_places(self, values: Any) -> set[Place | None]:
        """Return where tensors lie; those without dimensions MPS takes from the CPU like a number of Python."""
        return {self.whereabouts.find(leaf) for leaf in list_tensors(values) if leaf.dim() > 0}

    def _judge_lengths(self, operator: Any, args: Any) -> None:
        """Report the lengths of sequences that are to be packed and lie on the GPU: they are read on the CPU."""
        if operator.name() == PACK and self.whereabouts.find(args[1]) is Place.GPU:
            text = "pack_padded_sequence wants its lengths on the CPU, and they lie on the GPU"
            line = _find_calling_line()
            self.report(Problem("on the GPU", text, "give it lengths.cpu()", PACK, line))

    def _judge_dtypes(self, operator: Any, given: Any, result: Any) -> None:
        """Report dtypes that MPS does not have; what follows from such a tensor is not reported again."""
        if self._is_of_other_dtypes:
            return
        is_known = any(problem.kind in NARROWER for problem in self._problems)
        if is_known and self._find_wide_dtypes(given):
            return

        for dtype in self._find_wide_dtypes(result):
            text = f"MPS has no {dtype}, which {operator.name()} makes"
            way_out = _find_way_out(dtype, operator)
            line = _find_calling_line()
            self.report(Problem(dtype, text, way_out, operator.name(), line))

    def _judge_generator(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Report a generator of the CPU that is to draw numbers on the GPU."""
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Generator)]
        is_of_the_cpu = any(each.device.type == "cpu" for each in given)
        if is_of_the_cpu and self.whereabouts.find_any(result) is Place.GPU:
            text = f"a generator of the CPU is given to {operator.name()}, which draws on the GPU"
            line = _find_calling_line()
            self.report(Problem("on the CPU", text, DRAW_FIRST, operator.name(), line))

    def _find_wide_dtypes(self, values: Any) -> list[Any]:
        """Return the dtypes of tensors on the GPU that MPS does not have, each once."""
        on_gpu = [leaf for leaf in list_tensors(values) if self.whereabouts.find(leaf) != Place.CPU]
        dtypes = dict.fromkeys(units.dtype_name(tensor.dtype) for tensor in on_gpu)
        return [dtype for dtype in dtypes if dtype in NARROWER]


class _FunctionMode(TorchFunctionMode):
    """While it is entered with ``with``, each function of PyTorch's becomes ``see(function, args, kwargs)``."""

    def __init__(self, see: Callable[[Callable, Any, Any], Any]) -> None:
        super().__init__()
        self._see = see

    @contextlib.contextmanager
    def enter_again(self) -> Iterator[None]:
        """Enter it where it is off, because it has seen the function that calls this; nothing is seen twice."""
        if self in torch.overrides._get_current_function_mode_stack():
            yield
            return
        with self:
            yield

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self._see(function, args, kwargs or {})


@contextlib.contextmanager
def _replacing(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Have an attribute, such as a function of a module, another value in the block."""
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, before)


def require_dense(values: Any, where: str) -> None:
    """End the trace if there is a sparse or nested tensor, whose kernels are not known.

    Parameters
    ----------
    values
        Tensors, as deep as PyTorch's pytree goes.
    where
        The end of ``sparse tensors, which ...``.

    Raises
    ------
    Ended
        With the message.
    """
    for leaf in list_tensors(values):
        if not _is_dense(leaf):
            kind = "nested" if leaf.is_nested else "sparse"
            problem = f"computes with {kind} tensors, which {where}, and coverage knows kernels of dense ones alone"
            raise Ended(f"{problem}: try it on a Mac, or make them dense")


def _is_dense(tensor: Tensor) -> bool:
    return not tensor.is_nested and tensor.layout is torch.strided


def _is_packed_lstm(name: str, args: Sequence[Any]) -> bool:
    """Return True for an LSTM over a packed sequence, which MPS computes step by step, as a CPU does (RNN.cpp).

    Its second argument are the sizes of the batches, a tensor; of any other LSTM it is the state, a pair of tensors.
    """
    return name == "lstm" and len(args) > 1 and isinstance(args[1], Tensor)


def _find_calling_line() -> str:
    return calling_line(until=ENTRY)


def _find_way_out(dtype: str, operator: Any) -> str:
    """Return how to avoid a dtype that MPS does not have."""
    name = operator.name().partition("::")[2].partition(".")[0]
    narrower = f"torch.{NARROWER[dtype]}"
    if name == "_to_copy":
        return f"write .to({narrower})"

    takes_dtype = any(argument.name == "dtype" for argument in operator._schema.arguments)
    if hasattr(torch, name) and takes_dtype:
        return f"write torch.{name}(..., dtype={narrower})"
    return f"compute it in {narrower}"
