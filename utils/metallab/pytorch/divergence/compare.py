"""Compare a device's call of an operator with the CPU in float64: all that it returns and writes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import checks, units
from metallab.pytorch.divergence.calls import (
    REFERENCES,
    Call,
    count_comparable,
    is_floating,
    to_float64,
    whole_storage,
)
from metallab.pytorch.divergence.differences import (
    Cause,
    Difference,
    NotCompared,
    PositionsOutside,
    Reason,
    StrayWrite,
    WrongKind,
    WrongOrder,
    WrongPositions,
    WrongShare,
    WrongValues,
    WrongWrite,
)
from metallab.pytorch.divergence.unwritten import clear_unwritten

MAX_ROUNDING_FACTOR = 8
"""Rounding is at most so many times the error of the CPU in the same dtype, or of changing the last bits."""
OVERFLOW_SHARE = 0.9
"""From this share of a dtype's largest number on a device may overflow where the CPU does not."""
MAX_DEVIATIONS = 6
"""The share of values that dropout keeps may be so many standard deviations off."""
ROUNDING_OF_SHARE = 1e-9
"""That a mean of zeros and ones in float64 may be off by rounding, where the deviation is 0."""

POSITION_OPERATORS = (
    "max",
    "min",
    "topk",
    "sort",
    "kthvalue",
    "median",
    "nanmedian",
    "mode",
    "cummax",
    "cummin",
    "argmax",
    "argmin",
)
"""Operators that return positions along a dimension of their first argument."""
UNIQUE_POSITIONS = ("sort", "topk")
"""Operators among them that return no position twice."""
DROPOUT_ARGUMENTS = ("dropout_p", "dropout", "p")
"""How operators name the share that dropout leaves out."""
CPU_ERRORS = (RuntimeError, TypeError, IndexError, ValueError)
"""PyTorch's errors where the CPU has no such kernel."""


def results(returned: Any) -> list[Tensor]:
    """Return an operator's results on the CPU; a number as a tensor, without None."""
    leaves = [leaf for leaf in tree_leaves(returned) if leaf is not None]
    return [torch.as_tensor(leaf).detach().cpu() for leaf in leaves]


def any_element(tensor: Tensor, predicate: Callable[[Tensor], Tensor]) -> bool:
    """Return True if `torch.isnan` or `torch.isinf` is true of an element of a floating tensor."""
    if not is_floating(tensor) or tensor.element_size() == 1:
        return False
    if tensor.sum().isfinite():  # quick; a sum of finite numbers may overflow, too
        return False
    return bool(predicate(tensor).any())


# ---- the right results -----------------------------------------------------------------------------------------------


@dataclass
class Reference:
    """A call that the CPU has computed in float64."""

    before: Call
    """The call before the device made it, on the CPU."""
    after: Call
    """The same in float64, after the CPU made it: its arguments may be written to."""
    results: list[Tensor]
    """What the CPU returned in float64, with 0 where the operator writes nothing."""

    @functools.cached_property
    def written(self) -> list[int]:
        """Which tensors among the arguments are written to, by the schema or as the CPU does."""
        by_schema = self.before.written_arguments
        pairs = zip(self.before.named_tensors, self.after.tensors, strict=True)
        return [
            number
            for number, ((name, before), after) in enumerate(pairs)
            if name in by_schema or not _is_same(to_float64(before), after)
        ]

    @functools.cached_property
    def cpu_same_dtype(self) -> list[Tensor]:
        """The CPU's results in the dtype of the arguments, then its arguments; empty without such a kernel."""
        return _results_and_arguments(self.before.copy_to_cpu())

    @functools.cached_property
    def perturbed(self) -> list[Tensor]:
        """As `cpu_same_dtype`, in float64 from arguments that are changed by half of their last bit, up or down.

        So it shows how far rounding the arguments alone moves the results. The signs are the same in each run. Empty
        where that cannot be computed, as of a matrix that is no longer positive definite.
        """
        generator = torch.Generator().manual_seed(0)

        def perturb(storage: Tensor) -> Tensor:
            if not is_floating(storage):
                return storage
            signs = torch.randint(0, 2, storage.shape, generator=generator) * 2 - 1  # -1 or 1
            half_of_last_bit = torch.finfo(storage.dtype).eps / 2
            return to_float64(storage) * (1 + signs * half_of_last_bit)

        return _results_and_arguments(self.before.copy_to_cpu(perturb))

    def rounding(self, number: int, exact: Tensor, where: Tensor) -> float:
        """Return the error that rounding explains, before a factor for the device.

        It is the larger one of two: that of the CPU in the same dtype, and that of arguments that are changed in their
        last bit. It is 0 where the CPU makes no error in that dtype: then changed bits excuse none of the device.

        Parameters
        ----------
        number
            The place of the result in `cpu_same_dtype`.
        exact
            The result in float64.
        where
            Truth values of its shape: the elements that count.
        """
        cpu_error = self._error(self.cpu_same_dtype, number, exact, where)
        if self.cpu_same_dtype and cpu_error == 0:
            return 0.0
        return max(cpu_error, self._error(self.perturbed, number, exact, where))

    @staticmethod
    def _error(others: list[Tensor], number: int, exact: Tensor, where: Tensor) -> float:
        """Return the largest finite error of a result that was computed in another way; 0 without one."""
        if not others or others[number].shape != exact.shape:
            return 0.0
        error = (to_float64(others[number]) - exact).abs()[where]
        finite = error[error.isfinite()]
        return finite.max().item() if finite.numel() else 0.0


def compute_reference(before: Call, returned: list[Tensor]) -> Reference | NotCompared:
    """Compute a call in float64 on the CPU.

    Parameters
    ----------
    before
        The call before the device made it, on the CPU.
    returned
        What the device returned, on the CPU: not all tensors can be compared.

    Returns
    -------
    Reference or NotCompared
        The right results. Why there are none if a tensor is sparse or nested, the device returns a dtype for which no
        error is allowed, such as float8, the CPU has no such operator, or it cannot compute the call in float64.
    """
    tensors = (*before.tensors, *returned)
    if any(tensor.layout != torch.strided or tensor.is_nested for tensor in tensors):
        return NotCompared(Reason.NOT_STRIDED)
    if not _is_on_cpu(before):
        return NotCompared(Reason.ONLY_THERE)

    try:
        # first, since a result in a dtype without a tolerance cannot be compared, whatever the CPU computes:
        # `tolerance` raises ValueError then, one of `CPU_ERRORS`, whose message is the reason
        for value in filter(is_floating, returned):
            checks.tolerance(value.dtype)

        after = before.copy_to_cpu(to_float64)
        # with 0 where the operator writes nothing, which has other numbers in each call
        return Reference(before, after, clear_unwritten(before, results(after.compute())))
    except CPU_ERRORS as error:
        message = units.first_line(error).split(". ")[0]
        return NotCompared(Reason.CPU_RAISES, message)


def _is_on_cpu(call: Call) -> bool:
    """Return True if the CPU has an operator, or another one that computes the same; a composite one counts."""
    if call.name in REFERENCES:
        return True
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return has_kernel(call.operator.name(), "CPU")


def _results_and_arguments(call: Call) -> list[Tensor]:
    """Make a call on the CPU, and return its results and its arguments afterwards; nothing if the CPU raises."""
    try:
        return [*clear_unwritten(call, results(call.compute())), *call.tensors]
    except CPU_ERRORS:
        return []


# ---- comparing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What comparing a call with its reference has found."""

    difference: Difference | None = None
    """The first difference; None if the device is right."""
    rounding: float = 0.0
    """The largest rounding, relative to the root mean square of a result."""
    not_compared: NotCompared | None = None
    """Why a part of it was not compared; None if all was."""


def compare(reference: Reference, after: Call, returned: list[Tensor]) -> Comparison:
    """Compare a call on a device with its reference.

    Parameters
    ----------
    reference
        The call on the CPU in float64.
    after
        The call after the device made it, on the CPU: its arguments may be written to.
    returned
        What the device returned, on the CPU. It stays as it is.

    Returns
    -------
    Comparison
        The first difference, if there is one, the largest rounding, and what could not be compared: results in any
        order, another number of them than the CPU returns, or what the device keeps for the gradient.
    """
    if reference.before.settings.get("sorted") is False:
        return Comparison(not_compared=NotCompared(Reason.UNORDERED))

    # results behind these may differ without being wrong, so they are left out on both sides
    count = count_comparable(reference.before)
    if count is None:
        count = len(returned)
    reference = dataclasses.replace(reference, results=reference.results[:count])

    counts = len(returned), len(reference.results)
    if len(reference.results) != count:
        return Comparison(not_compared=NotCompared(Reason.OTHER_COUNT, counts=counts))

    kept = NotCompared(Reason.KEPT, counts=counts) if count < len(returned) else None
    written = clear_unwritten(reference.before, returned[:count])
    comparer = _ResultComparer(reference, after, written)
    difference = comparer.compare()
    return Comparison(difference, comparer.largest, comparer.not_compared or kept)


@dataclass
class _ResultComparer:
    """Compares the results of one call, one after the other."""

    reference: Reference
    after: Call
    returned: list[Tensor]
    largest: float = 0.0
    """The largest rounding so far."""
    not_compared: NotCompared | None = None

    def compare(self) -> Difference | None:
        """Return the first difference, of results, arguments that are written to, and other memory."""
        return self._compare_results() or self._compare_written() or self._find_stray_write()

    def _compare_results(self) -> Difference | None:
        """Return how the first result that is wrong differs; None if each is right.

        Integers are compared as positions where they may be some: beside floating results, as those of ``max``, and of
        operators that return nothing else, as ``argmax``.
        """
        call = self.reference.before
        has_floating = any(map(is_floating, self.returned))
        has_positions = has_floating or call.short_name in POSITION_OPERATORS

        pairs = zip(self.reference.results, self.returned, strict=True)
        for number, (exact, value) in enumerate(pairs):
            if has_positions and not is_floating(value) and not is_floating(exact):
                difference = self._compare_positions(exact, value)
            else:
                difference = self._compare_values(number, exact, value)
            if difference is not None:
                return difference
        return None

    def _compare_written(self) -> Difference | None:
        """Return how the first argument that the operator writes to differs afterwards; None if each is right.

        The difference names the argument, unless it is the only one that the operator writes to.
        """
        call = self.reference.before
        exact, values = self.reference.after.tensors, self.after.tensors

        for number in self.reference.written:
            place = number - len(exact)  # from the end, as in `Reference.cpu_same_dtype`
            difference = self._compare_values(place, exact[number], values[number])
            if difference is not None:
                name, _ = call.named_tensors[number]
                is_only = call.written_arguments == [name]
                return difference if is_only else WrongWrite(name, difference)
        return None

    def _find_stray_write(self) -> StrayWrite | None:
        """Return which argument's memory has changed where the operator writes nothing; None if none has.

        The whole storage is looked at, also what lies before, behind and between the elements of a view.
        """
        for (name, before), after in zip(
            self.reference.before.named_tensors, self.after.tensors, strict=True
        ):
            if before.layout != torch.strided or before.is_quantized:
                continue  # it has no such storage

            was, now = whole_storage(before), whole_storage(after)
            was_enlarged = was.shape != now.shape  # as an argument out= may be
            if was_enlarged or torch.equal(was, now):
                continue

            has_changed = ~_equal(was, now)
            # what it writes to may be another argument that is a view of the same storage
            self._clear_written(has_changed, after)
            if has_changed.any():
                return StrayWrite(name, int(has_changed.sum()))
        return None

    def _clear_written(self, has_changed: Tensor, after: Tensor) -> None:
        """Set truth values of a whole storage to False where the operator writes to it."""
        storage = after.untyped_storage().data_ptr()
        for number in self.reference.written:
            tensor = self.after.tensors[number]
            if tensor.untyped_storage().data_ptr() == storage:
                written = has_changed.as_strided(
                    tensor.shape, tensor.stride(), tensor.storage_offset()
                )
                written.fill_(False)

    # ---- positions

    def _compare_positions(self, exact: Tensor, value: Tensor) -> Difference | None:
        """Return how positions differ, by the values there: where values are equal, devices may choose another one.

        None if they point at equal values, and of integers that are no positions, for which `not_compared` is set. Of
        a stable sort, each counts.
        """
        if exact.shape != value.shape or exact.dtype != value.dtype:
            return WrongKind.of(exact, value)
        if torch.equal(exact, value):
            return None
        if self.reference.before.settings.get("stable"):
            return WrongOrder(int((exact != value).sum()), value.numel())

        try:
            wrong = self._count_wrong_positions(exact, value)
        except (RuntimeError, IndexError):  # PyTorch finds no value at such a position
            return PositionsOutside()
        return WrongPositions(wrong, value.numel()) if wrong else None

    def _count_wrong_positions(self, exact: Tensor, value: Tensor) -> int:
        """Return how many positions point at other values than they should, or are there twice.

        It is 0 if these are no positions, which `not_compared` then says. RuntimeError or IndexError from PyTorch if a
        position lies outside of the tensor.
        """
        call = self.reference.before
        if not _returns_positions(call):
            self.not_compared = NotCompared(Reason.INTEGERS)
            return 0

        wrong = int((~_equal(_values_at(call, value), _values_at(call, exact))).sum())
        if call.short_name in UNIQUE_POSITIONS:
            # sorted, the same position twice is a difference of 0 between neighbours
            dim = call.settings["dim"]
            wrong += int((value.sort(dim).values.diff(dim=dim) == 0).sum())
        return wrong

    # ---- values

    def _compare_values(
        self, number: int, exact: Tensor, value: Tensor
    ) -> WrongValues | WrongKind | None:
        """Return how the values of one result or argument differ by more than rounding.

        Parameters
        ----------
        number
            Their place in `Reference.cpu_same_dtype`.
        exact, value
            The right values, and those of the device on the CPU.

        Returns
        -------
        WrongValues, WrongKind or None
            `WrongKind` for another shape, or for a dtype that the CPU does not return; None if the device is right.
        """
        # without elements, such as statistics that the CPU does not keep, while a device may keep them
        if not exact.numel():
            return None
        if value.shape != exact.shape:
            same_dtype = self.reference.cpu_same_dtype
            return WrongKind.of(same_dtype[number] if same_dtype else exact, value)

        dtype = self._right_dtype(number, exact, value)
        if value.dtype != dtype:
            # a device may keep statistics beside the result, such as a mean, in a more precise dtype, whose numbers
            # are closer to each other. Where the CPU returns nothing in this dtype, the device's dtype is the right one
            is_worse = _step_above_1(value.dtype) > _step_above_1(dtype)
            is_result = number == 0
            if is_result or is_worse or not is_floating(value):
                # it is there: without such results `_right_dtype` takes the device's dtype for right
                return WrongKind.of(self.reference.cpu_same_dtype[number], value)

        if is_floating(value) and is_floating(exact):
            return self._compare_floating(number, to_float64(exact), to_float64(value), dtype)

        # integers and truth values must be equal, to those of float64 or of the dtype of the arguments
        differ = value != exact
        same_dtype = self.reference.cpu_same_dtype
        if not differ.any() or (same_dtype and torch.equal(same_dtype[number], value)):
            return None
        return WrongValues.of(differ, exact, value, Cause.NOT_EQUAL)

    def _right_dtype(self, number: int, exact: Tensor, value: Tensor) -> torch.dtype:
        """Return the dtype that a result should have: that of the arguments, or else what the CPU returns.

        Where the CPU has no kernel for the dtype of the arguments, any is right.
        """
        tensors = self.reference.before.tensors
        expected = {exact.dtype}
        if is_floating(exact):
            expected = {tensor.dtype for tensor in tensors if is_floating(tensor)}

        if expected == {value.dtype} or not self.reference.cpu_same_dtype:
            return value.dtype
        return self.reference.cpu_same_dtype[number].dtype

    def _compare_floating(
        self, number: int, exact: Tensor, value: Tensor, dtype: torch.dtype
    ) -> WrongValues | None:
        """Return how floating values differ by more than rounding to a dtype; None if rounding explains all of it.

        Two bounds are tried, the quick one first: what `metallab.checks` allows the dtype, then a multiple of the
        errors that the CPU makes in that dtype. `largest` is kept up to date for values that pass the first.

        Parameters
        ----------
        number
            Their place in `Reference.cpu_same_dtype`.
        exact, value
            The right values and those of the device, in float64 or complex128.
        dtype
            The one in which the device computed.
        """
        not_finite = self._find_not_finite(number, exact, value, dtype)
        if not_finite.any():
            return WrongValues.of(not_finite, exact, value, Cause.NOT_FINITE)

        error, allowed = compute_errors(exact, value, dtype)
        finite = exact.isfinite() & value.isfinite()
        wrong = error > allowed
        if not wrong.any():
            relative = _relative(error.max().item(), exact[finite], dtype)
            self.largest = max(self.largest, relative)
            return None

        # only the rounding of values that are no larger than the wrong ones counts: a mask of -1e9 among them has an
        # error of its own, which explains none of those of smaller numbers. The error is added, as the device's number
        # is the larger one where the right one is 0
        largest_size = (exact.abs() + error)[wrong].max()
        no_larger = finite & (exact.abs() <= largest_size)
        rounding = MAX_ROUNDING_FACTOR * self.reference.rounding(number, exact, no_larger)
        if error[wrong].max() <= rounding:
            return None

        # the one with the largest error is shown
        error[~wrong] = 0
        largest = error.max()
        is_largest = error == largest
        wrong_values = WrongValues.of(wrong, exact, value, Cause.NOT_ROUNDING, shown=is_largest)
        return dataclasses.replace(
            wrong_values,
            error=largest.item(),
            allowed=max(allowed[is_largest][0].item(), rounding),
        )

    def _find_not_finite(
        self, number: int, exact: Tensor, value: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return where a value is infinite or NaN otherwise than it should be, which no overflow of its dtype explains.

        Parameters
        ----------
        number
            Their place in `Reference.cpu_same_dtype`.
        exact, value
            The right values and those of the device, in float64 or complex128.
        dtype
            The one in which the device computed, where what is too large for it becomes infinite.

        Returns
        -------
        Tensor
            Truth values of the same shape.
        """
        finite = exact.isfinite() & value.isfinite()
        differ = ~finite & ~_equal(exact, value)
        if not differ.any():
            return differ

        # near the largest number of the dtype one side may overflow and the other not
        overflow_from = OVERFLOW_SHARE * torch.finfo(dtype).max
        may_overflow = exact.abs() > overflow_from
        wrong = differ & ~(may_overflow & (value.abs() > overflow_from))
        if not self.reference.cpu_same_dtype:
            return wrong

        # what the CPU makes infinite in the dtype, the device may as well
        on_cpu = to_float64(self.reference.cpu_same_dtype[number])
        wrong &= on_cpu.isfinite() != value.isfinite()
        if exact.is_complex():
            return wrong

        # but where the CPU overflows, NaN or an infinity of the other sign is wrong
        overflows_on_cpu = may_overflow & on_cpu.isinf()
        is_other = differ & overflows_on_cpu & ~value.isfinite() & ~_equal(on_cpu, value)
        return wrong | is_other


def compute_errors(exact: Tensor, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the error of each value, and the error that is allowed.

    A value may be off by a share of itself. Only if some are off by more does a share of the values' typical size, a
    root mean square without the huge numbers of masks, count as well, because it takes several passes over the values.
    The size below which a device may flush numbers to 0 is always allowed.

    Parameters
    ----------
    exact, value
        The right values and those of a device, in float64 or complex128, of one shape, on the CPU.
    dtype
        The one in which the device computed.

    Returns
    -------
    error : Tensor
        Float64, of the same shape; 0 where one of the values is not finite.
    allowed : Tensor
        Float64, of the same shape.
    """
    finite = exact.isfinite() & value.isfinite()
    error = (value - exact).abs().where(finite, 0.0)
    size = exact.abs().where(finite, 0.0)

    relative = checks.tolerance(dtype).relative
    allowed = relative * size + _smallest(dtype)
    if (error > allowed).any():
        on_cpu = exact[finite].numpy()  # which takes no tensor of another device
        allowed += relative * checks.typical_size(on_cpu)
    return error, allowed


# ---- random numbers --------------------------------------------------------------------------------------------------


def drops_nothing(call: Call) -> bool:
    """Return True if a random operator needs no random numbers."""
    if call.settings.get("train") is False:
        return True
    return any(call.settings.get(name) == 0 for name in DROPOUT_ARGUMENTS)


def compare_dropout(call: Call, returned: Any) -> WrongShare | WrongValues | None:
    """Return what is wrong with a call of dropout or bernoulli, as far as it does not depend on random numbers.

    That is the share of values which are kept, and how dropout scales them.

    Parameters
    ----------
    call
        With what it was given, on the CPU.
    returned
        What the device returned.

    Returns
    -------
    WrongShare, WrongValues or None
        None if the share is kept and scaled as it should be, and of other operators.
    """
    is_dropout = call.name == "aten::native_dropout"
    probability = call.arguments.get("p")
    is_known = is_dropout or call.name == "aten::bernoulli_"
    if not is_known or not isinstance(probability, float):
        return None

    # bernoulli returns the mask alone, dropout the values and then the mask
    right_share = 1 - probability if is_dropout else probability
    tensors = results(returned)
    value, mask = tensors[0], tensors[-1].double()
    if not mask.numel():
        return None

    # the share of n independent draws has the standard deviation sqrt(p (1 - p) / n)
    share = mask.mean().item()
    standard_deviation = math.sqrt(right_share * (1 - right_share) / mask.numel())
    if abs(share - right_share) > MAX_DEVIATIONS * standard_deviation + ROUNDING_OF_SHARE:
        return WrongShare(share, right_share)
    if not is_dropout or not right_share:
        return None

    # dropout divides by the share, so that the mean stays
    exact = call.tensors[0].double() * mask / right_share
    error, allowed = compute_errors(exact, value.double(), value.dtype)
    wrong = error > allowed
    return WrongValues.of(wrong, exact, value, Cause.SCALED) if wrong.any() else None


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _relative(error: float, finite: Tensor, dtype: torch.dtype) -> float:
    """Return an error over the root mean square of the right values; 0 if those are too small for the dtype."""
    size = root_mean_square(finite)
    return error / size if size > _smallest(dtype) else 0.0


def root_mean_square(numbers: Tensor) -> float:
    """Return the root mean square of finite numbers, in float64 or complex128; 0 of none.

    They are squared as shares of the largest, since the square of a number above 1e154 is infinite in float64, and that
    of one below 1e-162 is 0.
    """
    sizes = numbers.abs()
    largest = sizes.max().item() if sizes.numel() else 0.0
    if not largest:
        return 0.0
    return largest * (sizes / largest).square().mean().sqrt().item()


def _smallest(dtype: torch.dtype) -> float:
    """Return the size below which numbers may be flushed to 0; float16's are multiples of 6e-8."""
    return 2.0**-23 if dtype == torch.float16 else torch.finfo(dtype).smallest_normal


def _step_above_1(dtype: torch.dtype) -> float:
    """Return the distance from 1 to the next number; 0 for integers."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Return where two tensors are equal; a NaN equals another."""
    return (a == b) | ((a != a) & (b != b))


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have one shape and are equal; a NaN equals another."""
    return a.shape == b.shape and (torch.equal(a, b) or bool(_equal(a, b).all()))


def _returns_positions(call: Call) -> bool:
    """Return True if the integers that an operator returns are positions in its first argument."""
    if "max_pool" in call.short_name:
        return True
    return call.short_name in POSITION_OPERATORS and call.tensors[0].dim() > 0


def _values_at(call: Call, positions: Tensor) -> Tensor:
    """Return the values at positions in the first argument of an operator that `_returns_positions`.

    Parameters
    ----------
    call
        With what it was given, on the CPU.
    positions
        Integers: along the dimension ``dim``, in the whole tensor without one, and of pooling in a plane or a volume.

    Raises
    ------
    RuntimeError, IndexError
        PyTorch's, if a position is below 0 or lies behind the end.
    """
    argument = call.tensors[0]
    if "max_pool" in call.short_name:
        # positions count through a plane's two dimensions, or a volume's three, as if they were one; a row is pooled
        # by PyTorch as a plane of one row
        first_pooled = -3 if "3d" in call.short_name else -2
        flat = argument.flatten(first_pooled)
        return flat.gather(-1, positions.flatten(first_pooled))

    # None where all of the tensor is searched: what is not given has its default here, as -1 for sort and topk
    dim = call.settings.get("dim")
    if dim is None:
        # indexing with brackets would count a wrong position of -1 from the end
        return argument.flatten().gather(0, positions.flatten())
    keeps_dim = positions.dim() == argument.dim()
    return argument.gather(dim, positions if keeps_dim else positions.unsqueeze(dim))
