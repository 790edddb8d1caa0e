"""Compare each operator that a device computes with the CPU in float64, until one is wrong."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import units
from metallab.device import PyTorchDevice
from metallab.outcomes import Agreement
from metallab.pytorch.dispatch import CallingModules, watching
from metallab.pytorch.divergence.calls import Call
from metallab.pytorch.divergence.compare import (
    Reference,
    any_element,
    compare,
    compare_dropout,
    compute_reference,
    drops_nothing,
    results,
)
from metallab.pytorch.divergence.compared import CallKind, ComparedCalls, kind_of
from metallab.pytorch.divergence.differences import Difference, NewNaN, NotCompared
from metallab.pytorch.divergence.draws import compare_draw
from metallab.pytorch.divergence.layouts import Layout
from metallab.pytorch.divergence.new_memory import EMPTY
from metallab.pytorch.divergence.repeat import make_sample
from metallab.pytorch.divergence.report import (
    CallSite,
    Direction,
    DivergentCall,
    Place,
    RandomOperator,
    Report,
)
from metallab.pytorch.divergence.runs import RunMode
from metallab.pytorch.divergence.unwritten import clear_expected_infinities, clear_unwritten

RIGHT_REPEATS = 3
"""A wrong call is made again until it has been right so many times."""
MAX_REPEATS = 20
"""It is made at most so many times; if it was never right then, its kernel is always wrong."""
UNWRITTEN = (*EMPTY, "resize", "set_", "detach", "_efficientzerotensor")
"""How operators begin whose results hold no numbers yet, or no others than before."""


@dataclass(frozen=True)
class Repeats:
    """How often a call was wrong and right with the same numbers."""

    wrong: int
    right: int


class OperatorComparer:
    """Compares each operator that a device computes, until one is wrong.

    Enter `watching` with ``with``, and say in `direction` what runs.

    Parameters
    ----------
    on
        The device.
    seconds
        After these no more calls are compared.
    mode
        How the model is run.
    known
        Kinds of calls that earlier runs have compared, which are passed over.
    show_progress
        Is called with this comparer after each call that the device has computed.

    Attributes
    ----------
    report : Report
        What was found so far.
    always_wrong_call : Call or None
        The first wrong call, with layouts in place of tensors; None unless it is wrong each time.
    began : float
        When it was made, by `time.monotonic`.
    """

    def __init__(
        self,
        on: PyTorchDevice,
        seconds: float,
        mode: RunMode,
        known: ComparedCalls,
        show_progress: Callable[[OperatorComparer], object],
    ) -> None:
        """Begin with a report in which nothing was compared; the seconds count from now."""
        self.on = on
        self.seconds = seconds
        self.mode = mode
        self.known = known
        self.show_progress = show_progress
        self.began = time.monotonic()
        self.modules = CallingModules()
        self.direction: Direction = "forward"

        self.report = Report("agrees", on.label)
        self.always_wrong_call: Call | None = None

        self._path = ""
        """Of the module that runs, from the root's."""
        self._infinities: dict[int, CallSite] = {}
        """By address of memory that holds an infinity, the call that it comes from."""
        self._unwritten: set[int] = set()
        """Addresses of memory that nobody has written to."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See each operator that is called."""
        with self.modules, watching(self._see_whole_or_parts):
            yield

    def _see_whole_or_parts(self, operator: Any, args: tuple, kwargs: dict) -> Any:
        """See an operator, or those that it consists of.

        PyTorch takes an operator apart before it is seen, but for inference mode.
        """
        key = self._key_of_parts(operator) if torch.is_inference_mode_enabled() else None
        if key is None:
            return self.see(operator, args, kwargs)

        with watching(self._see_whole_or_parts):
            return operator._op_dk(key, *args, **kwargs)

    def _key_of_parts(self, operator: Any) -> Any:
        """Return the dispatcher's key of the code that calls the operators of which one consists; None if it is whole.

        One that has a gradient formula and a kernel for the device is whole there, as ``linear`` is on MPS. The
        simulated GPU has kernels for some others, which choose among operators: they have no formula.
        """
        if not operator._can_decompose():
            return None

        name, device_key = operator.name(), self.on.kind.upper()
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, device_key):
            return torch._C.DispatchKey.CompositeImplicitAutograd
        # gradient formulas stand under Autograd, for all devices together; under a device's own key stand only the
        # simulated GPU's kernels that choose among operators
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, f"Autograd{device_key}"):
            return getattr(torch._C.DispatchKey, device_key)
        return None

    def see(self, operator: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator, compare it if the device computed it, and return its result.

        Once a call is wrong, or the time is over, operators are only run; those after the time are counted as skipped.
        What the operator raises is raised.
        """
        self._path = self.modules.innermost()
        call = Call(operator, args, kwargs)
        result = self._see_call(call)
        self._note_unwritten(call, result)
        return result

    def _note_unwritten(self, call: Call, result: Any) -> None:
        """Note memory that is new and not written to, and forget what a call has written to."""
        if call.operator.is_view or call.short_name.startswith("detach"):
            return
        addresses = {_address(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        if call.short_name.startswith(EMPTY):
            self._unwritten |= addresses
            return
        written = {_address(t) for name, t in call.named_tensors if name in call.written_arguments}
        self._unwritten -= addresses | written

    def _see_call(self, call: Call) -> Any:
        """Run a call, compare it if the device computed it, and return its result.

        After a wrong call, and where it computes nothing, as a view, it is run and no more. After the time is over it
        is counted.
        """
        operator, args, kwargs = call.operator, call.args, call.kwargs
        if self.report.divergent_call or _computes_nothing(call):
            return operator(*args, **kwargs)

        kind = kind_of(call)
        # copied before the call, which may write to its arguments
        is_late = time.monotonic() - self.began > self.seconds
        with _without_gradients_or_inference_mode():
            before = None if is_late else call.copy_to_cpu()
        result = operator(*args, **kwargs)

        if not self._is_on_device(call, result):
            return result
        if before is None:
            self._leave_out(kind)
            return result

        with _without_gradients_or_inference_mode():
            self._compare(call, before, result, kind)
        self.show_progress(self)
        return result

    def _leave_out(self, kind: CallKind | None) -> None:
        """Count a call that there is no time for."""
        if self.known.is_known(kind):
            self.report.known += 1
        else:
            self.report.skipped += 1

    @property
    def module(self) -> str:
        """The innermost module, as `named_modules` names it; empty for the model itself, and where it is not known."""
        return self._path.partition(".")[2]

    @property
    def here(self) -> Place:
        """What of the model runs now."""
        return Place(self.module, self.direction, self.mode)

    def _is_on_device(self, call: Call, result: Any) -> bool:
        """Return True if a tensor of a call, or of what it returned, lies on the device."""
        leaves = (*call.tensors, *tree_leaves(result))
        return any(leaf.device.type == self.on.kind for leaf in leaves if isinstance(leaf, Tensor))

    def _compare(self, call: Call, before: Call, result: Any, kind: CallKind | None) -> None:
        """Compare a call with the CPU in float64, unless its kind is known; note in the report what was found.

        Parameters
        ----------
        call
            On the device, after it was made.
        before
            What it was given, on the CPU.
        result
            What it returned, on the device.
        kind
            The call's.
        """
        if _is_random(call):
            self._compare_random(call, before, result)
            self._keep(kind, call, before, result)
            return

        holds = tuple((_has_infinity(each), _has_nan(each)) for each in before.tensors)
        if self.known.has_held(kind, holds):
            self.report.known += 1
            return

        self.on.synchronize()  # a copy to the CPU may be under way
        returned, after = results(result), call.copy_to_cpu()
        reference = compute_reference(before, returned)
        if isinstance(reference, NotCompared):
            self.report.not_compared[call.name] = reference
            self.report.uncompared += 1
            return

        self.report.compared += 1
        self.known.add(kind, holds)
        comparison = compare(reference, after, returned)
        if comparison.not_compared is not None:
            self.report.not_compared[call.name] = comparison.not_compared
        if comparison.difference is not None:
            repeats = self._repeat(call, reference)
            self._record("differs", call, comparison.difference, repeats)
            if not repeats.right:  # only a fault that is there each time can be minimized
                self.always_wrong_call = self._lay_out(call, before)
            return

        self.report.largest = max(self.report.largest, comparison.rounding)
        self._keep(kind, call, before, result)
        # results and arguments in one order on both sides; an infinity is traced by its address on the device
        results_on_device = [leaf for leaf in tree_leaves(result) if leaf is not None]
        on_device = [*results_on_device, *call.tensors]
        # nor does it come from memory that the operator left as it was
        written = clear_expected_infinities(before, clear_unwritten(before, returned))
        on_cpu = [*written, *after.tensors]
        self._trace_infinities(call, before, on_cpu, on_device)

    def _keep(self, kind: CallKind | None, call: Call, before: Call, result: Any) -> None:
        """Keep a call that was right, to make it again; not a random one that was just found wrong."""
        if not self.known.wants_sample(kind) or self.report.divergent_call is not None:
            return
        sample = make_sample(
            call,
            before,
            result,
            module=self.module,
            direction=self.direction,
            mode=self.mode,
            is_random=_is_random(call),
        )
        self.known.keep(kind, sample)

    def _lay_out(self, call: Call, before: Call) -> Call:
        """Return a call with layouts in place of its tensors, and what those held ``before``, which is on the CPU."""
        values = iter(before.tensors)  # in the order in which `replace` goes through the call's

        def lay_out(tensor: Tensor) -> Layout:
            layout = Layout.of(tensor).hold(next(values))
            return replace(
                layout,
                is_on_cpu=tensor.device.type != self.on.kind,
                is_unwritten=_address(tensor) in self._unwritten,
            )

        return call.replace(Tensor, lay_out)

    def _compare_random(self, call: Call, before: Call, result: Any) -> None:
        """Note a random operator, and compare what of dropout does not depend on random numbers."""
        random = RandomOperator(call.name, self.module)
        if random not in self.report.random:
            self.report.random += (random,)
        self.report.uncompared += 1

        difference = _compare_random_numbers(before, result)
        if difference is not None:
            self._record("differs", call, difference, self._draw_again(call, before))

    def _draw_again(self, call: Call, before: Call) -> Repeats:
        """Make a call again that has drawn what it must not; it draws other numbers."""

        def is_right() -> bool:
            again = before.place_like(call)
            return (
                _compare_random_numbers(before, again.operator(*again.args, **again.kwargs)) is None
            )

        return self._repeat_until_right(is_right)

    def _repeat(self, call: Call, reference: Reference) -> Repeats:
        """Make a wrong call again with the same numbers, to tell a wrong kernel from a fault that comes and goes.

        It ends with `RIGHT_REPEATS` right ones, after `MAX_REPEATS`, or where a copy of the numbers finds no memory.

        Parameters
        ----------
        call
            On the device.
        reference
            Its numbers, and its right results.

        Returns
        -------
        Repeats
            How often it was wrong, the first time included, and right.
        """

        def is_right() -> bool:
            again = reference.before.place_like(call)
            result = again.operator(*again.args, **again.kwargs)
            self.on.synchronize()
            return compare(reference, again.copy_to_cpu(), results(result)).difference is None

        return self._repeat_until_right(is_right)

    @staticmethod
    def _repeat_until_right(is_right: Callable[[], bool]) -> Repeats:
        """Make a call again until it was right `RIGHT_REPEATS` times, at most `MAX_REPEATS` times in all.

        It ends where the call raises RuntimeError.
        """
        wrong, right = 1, 0  # the first time, when it was found, counts
        while right < RIGHT_REPEATS and wrong + right < MAX_REPEATS:
            try:
                if is_right():
                    right += 1
                else:
                    wrong += 1
            except RuntimeError:
                # no memory: the call ran once, so it is not its fault, and the counts stand
                break
        return Repeats(wrong, right)

    def _trace_infinities(
        self, call: Call, before: Call, on_cpu: Sequence[Any], on_device: Sequence[Any]
    ) -> None:
        """Note which call an infinity in the results comes from; a NaN that no argument has ends the search.

        That is done by `_record`, after which no call is compared. A right operator makes a NaN from infinities, so the
        call that made those is what a reader looks for.

        Parameters
        ----------
        call, before
            The call on the device, and on the CPU with what it was given.
        on_cpu
            Copies, on the CPU, of what the device made: its results and its arguments afterwards.
        on_device
            The same on the device, in the same order.
        """
        infinite_arguments = [
            tensor
            for tensor, value in zip(call.tensors, before.tensors, strict=True)
            if _has_infinity(value)
        ]
        infinite_results = [
            tensor for tensor, value in zip(on_device, on_cpu, strict=True) if _has_infinity(value)
        ]

        origin = self._find_origin(call, infinite_arguments, bool(infinite_results))
        if origin is not None:
            self._infinities.update(dict.fromkeys(map(_address, infinite_results), origin))

        has_new_nan = any(map(_has_nan, on_cpu)) and not any(map(_has_nan, before.tensors))
        # the mean of nothing is NaN
        has_elements = any(tensor.numel() for tensor in before.tensors)
        if has_new_nan and has_elements:
            self.report.infinity = origin if infinite_arguments else None
            # the CPU makes the NaN as well, else the call would have been found wrong before
            self._record("agrees", call, NewNaN())

    def _find_origin(
        self, call: Call, infinite_arguments: Sequence[Any], makes_one: bool
    ) -> CallSite | None:
        """Return the call that an infinity in the arguments or the results comes from; None if it is not known.

        That is this call if it makes one from finite arguments. The first call of a run that does is noted in the
        report, unless it was asked for an infinity, as a mask is.
        """
        if makes_one and not infinite_arguments:
            here = CallSite(call.name, self.module, self.direction)
            if self.report.infinity is None and not _asks_for_infinity(call):
                self.report.infinity = here
            return here

        origins = (self._infinities.get(_address(tensor)) for tensor in infinite_arguments)
        return next((origin for origin in origins if origin is not None), None)

    def _record(
        self,
        agreement: Agreement,
        call: Call,
        difference: Difference,
        repeats: Repeats = Repeats(wrong=1, right=0),
    ) -> None:
        """Name a call in the report as the first that is wrong, or makes a NaN, after which none is compared.

        ``agreement`` is ``agrees`` for a NaN that the CPU has as well. A call that was not made again was wrong once.
        """
        tensors = call.tensors

        self.report.agreement = agreement
        self.report.divergent_call = DivergentCall(
            operator=call.name,
            module=self.module,
            direction=self.direction,
            mode=self.mode,
            dtype=units.dtype_name(tensors[0].dtype) if tensors else "",
            shapes=tuple(tuple(tensor.shape) for tensor in tensors),
            difference=difference,
            wrong_calls=repeats.wrong,
            right_calls=repeats.right,
        )


@contextlib.contextmanager
def _without_gradients_or_inference_mode() -> Iterator[None]:
    """Compute what the comparison needs: without gradients, and with tensors that may be used after inference mode.

    The model may run in inference mode, whose tensors cannot be written to outside of it.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


def _computes_nothing(call: Call) -> bool:
    """Return True for views, and for memory that is not written yet."""
    return call.operator.is_view or call.short_name.startswith(UNWRITTEN)


def _is_random(call: Call) -> bool:
    """Return True if a call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in call.operator.tags and not drops_nothing(call)


def _compare_random_numbers(call: Call, returned: Any) -> Difference | None:
    """Return what is wrong with random numbers, or with what dropout keeps."""
    return compare_dropout(call, returned) or compare_draw(call, returned)


def _asks_for_infinity(call: Call) -> bool:
    """Return True if a number among the arguments is infinite or NaN, as for a mask."""
    leaves = tree_leaves((call.args, call.kwargs))
    return any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in leaves)


def _has_infinity(value: Any) -> bool:
    return any_element(value, torch.isinf)


def _has_nan(value: Any) -> bool:
    return any_element(value, torch.isnan)


def _address(value: Any) -> int:
    """Return where a tensor's memory begins; what has no such memory goes by its identity."""
    is_strided = isinstance(value, Tensor) and value.layout == torch.strided
    return value.untyped_storage().data_ptr() if is_strided else id(value)
