"""Compare a device's call of an operator with the CPU in float64: all that it returns and writes."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import checks, units
from metallab.pytorch.wrong_calls import Call, floats, whole, widened

CLOSER = 8
"""Rounding is at most so many times the error of the CPU in the same dtype, or of changing the last bits."""
POSITIONS = ("max", "min", "topk", "sort", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin", "argmax",
             "argmin")  # fmt: skip
"""Operators that return positions along a dimension of their first argument."""
DROPS = ("dropout_p", "dropout", "p")
REFUSED = (RuntimeError, TypeError, IndexError, ValueError)
"""PyTorch's errors where the CPU has no such kernel."""


def results(returned: Any) -> list[Tensor]:
    """Return an operator's results on the CPU; a number as a tensor, without None."""
    return [
        torch.as_tensor(leaf).detach().cpu() for leaf in tree_leaves(returned) if leaf is not None
    ]


def has(tensor: Tensor, what: Callable[[Tensor], Tensor]) -> bool:
    """Return True if `torch.isnan` or `torch.isinf` is true of a value."""
    if (
        not floats(tensor) or tensor.element_size() == 1 or tensor.sum().isfinite()
    ):  # quick; a sum may overflow, too
        return False
    return bool(what(tensor).any())


@dataclass
class Comparison:
    """A call before and after a device ran it, and in float64 on the CPU; all on the CPU."""

    before: Call
    after: Call
    got: list[Tensor]
    exact: Call
    right: list[Tensor]
    largest: float = 0.0
    """The largest rounding, relative to the root mean square of a result."""
    unjudged: str = ""
    """Why a part of it was not compared."""

    @staticmethod
    def of(before: Call, after: Call, got: list[Tensor]) -> Comparison:
        """Compute a call in float64; raises one of `REFUSED` if that is not possible."""
        if any(t.layout != torch.strided or t.is_nested for t in (*before.tensors, *got)):
            raise TypeError("a sparse or nested tensor")
        for value in filter(floats, got):
            checks.tolerance(value.dtype)
        exact = before.moved(widened)
        right = results(exact.computed())
        return Comparison(before, after, got, exact, right)

    def with_result(self, after: Call, got: list[Tensor]) -> Comparison:
        """Compare the same call, made once more, with what was computed for it already."""
        compared = copy.copy(self)
        compared.after, compared.got = after, got
        return compared

    def fault(self) -> str:
        """Return how the device's result is wrong, or ''."""
        if self.before.settings.get("sorted") is False:
            self.unjudged = "its results are in no order"
            return ""
        if len(self.right) != len(self.got):
            self.unjudged = f"{len(self.got)} results, and {len(self.right)} on the CPU"
            return ""
        several = any(map(floats, self.got))
        for number, (exact, value) in enumerate(zip(self.right, self.got, strict=True)):
            at = not (floats(value) or floats(exact)) and (
                several or self.before.name[6:] in POSITIONS
            )
            if (
                fault := self.fault_of_positions(exact, value)
                if at
                else self.fault_of_values(number, exact, value)
            ):
                return fault
        for number in self.written:
            exact, value = self.exact.tensors[number], self.after.tensors[number]
            if fault := self.fault_of_values(number - len(self.exact.tensors), exact, value):
                name = self.before.named[number][0]
                return (
                    fault
                    if self.before.written() == [name]
                    else f"What it writes to {name}: {fault}"
                )
        return self.stray()

    @functools.cached_property
    def written(self) -> list[int]:
        """The arguments that it writes to, by its schema or as the CPU does."""
        pairs = enumerate(zip(self.before.named, self.exact.tensors, strict=True))
        names = self.before.written()
        return [
            n for n, ((name, was), now) in pairs if name in names or not _same(widened(was), now)
        ]

    @functools.cached_property
    def again(self) -> list[Tensor]:
        """The CPU's results in the same dtype, then its arguments; empty without such a kernel."""
        call = self.before.moved()
        try:
            return [*results(call.computed()), *call.tensors]
        except REFUSED:
            return []

    @functools.cached_property
    def nudged(self) -> list[Tensor]:
        """As `again`, in float64 from arguments that are changed in their last bit."""
        generator = torch.Generator().manual_seed(0)

        def nudge(memory: Tensor) -> Tensor:
            if not floats(memory):
                return memory
            signs = torch.randint(0, 2, memory.shape, generator=generator) * 2 - 1
            return widened(memory) * (1 + signs * torch.finfo(memory.dtype).eps / 2)

        call = self.before.moved(nudge)
        try:
            return [*results(call.computed()), *call.tensors]
        except REFUSED:  # such as a matrix that is no longer positive definite
            return []

    def stray(self) -> str:
        """Return which argument's memory has changed where the operator writes nothing, or ''."""
        for (name, was), now in zip(self.before.named, self.after.tensors, strict=True):
            if was.layout != torch.strided or was.is_quantized:
                continue
            was, memory = whole(was), whole(now)
            if was.shape != memory.shape or torch.equal(was, memory):  # out= was made larger
                continue
            differ = (was != memory) & ~((was != was) & (memory != memory))
            for number in self.written:
                t = self.after.tensors[number]
                if t.untyped_storage().data_ptr() == now.untyped_storage().data_ptr():
                    differ.as_strided(t.shape, t.stride(), t.storage_offset()).fill_(False)
            if differ.any():
                return f"It changes the memory of {name} where it has nothing to write (elements: {int(differ.sum())})."
        return ""

    def fault_of_positions(self, exact: Tensor, value: Tensor) -> str:
        """Compare positions by the values there."""
        if exact.shape == value.shape and torch.equal(exact, value):
            return ""
        if exact.shape != value.shape or exact.dtype != value.dtype:
            return _other_kind(exact, value)
        if self.before.settings.get("stable"):
            return f"{int((exact != value).sum())} of {value.numel()} positions break the order of equal values."
        try:
            meant = _picked(self.before, exact)
            if meant is None:
                self.unjudged = "whole numbers beside its values"
                return ""
            wrong = int((~_equal(_picked(self.before, value), meant)).sum())
            if self.before.name[6:] in ("sort", "topk"):  # no position twice
                dim = self.before.settings["dim"]
                wrong += int((value.sort(dim).values.diff(dim=dim) == 0).sum())
        except (RuntimeError, IndexError):
            return "Positions lie outside of what they point into."
        return (
            f"{wrong} of {value.numel()} positions point at other values, or are there twice."
            if wrong
            else ""
        )

    def fault_of_values(self, number: int, exact: Tensor, value: Tensor) -> str:
        """Return how values differ by more than rounding; ``number`` is their place in `again`."""
        if not exact.numel():  # statistics that are not kept: a device may keep them
            return ""
        if value.shape != exact.shape:
            return _other_kind(exact, value)
        dtype, given = value.dtype, {t.dtype for t in self.before.tensors if floats(t)}
        if {dtype} != (given if floats(exact) else {exact.dtype}) and self.again:
            dtype = self.again[number].dtype
            worse = _precision(value.dtype) > _precision(
                dtype
            )  # statistics beside a result may be better
            if value.dtype != dtype and (number == 0 or worse or not floats(value)):
                return _other_kind(self.again[number], value)
        if floats(value) and floats(exact):
            return self.fault_of_fractions(number, widened(exact), value, dtype)
        differ = value != exact
        if not differ.any() or (self.again and torch.equal(self.again[number], value)):
            return ""
        return _first(differ, exact, value, "they must be equal")

    def fault_of_fractions(
        self, number: int, exact: Tensor, value: Tensor, dtype: torch.dtype
    ) -> str:
        """Return how floating values differ by more than rounding to a dtype."""
        value = widened(value)
        finite = exact.isfinite() & value.isfinite()
        odd = ~finite & ~_equal(exact, value)
        if odd.any():
            most, own = (
                0.9 * torch.finfo(dtype).max,
                widened(self.again[number]) if self.again else value,
            )
            far = exact.abs() > most
            other = (
                odd & far & own.isinf() & ~value.isfinite() & ~_equal(own, value)
            )  # NaN, or another sign
            odd &= ~(far & (value.abs() > most))  # an overflow of the dtype
            odd = other & (not exact.is_complex()) | odd & (
                (own.isfinite() != value.isfinite()) | (not self.again)
            )
            if odd.any():
                return _first(odd, exact, value, "infinite or NaN on one side only")
        error, explained = deviation(exact, value, dtype)
        wrong = error > explained
        if not wrong.any():
            size = exact[finite].abs().square().mean().sqrt().item() if finite.any() else 0.0
            relative = error.max().item() / size if size > _smallest(dtype) else 0.0
            self.largest = max(self.largest, relative)
            return ""
        near = finite & (
            exact.abs() <= (exact.abs() + error)[wrong].max()
        )  # a mask of -1e9 has an error of its own
        rounding = CLOSER * self.rounding(number, exact, near)
        if error[wrong].max() <= rounding:
            return ""
        error[~wrong] = 0
        explained = max(explained[error == error.max()][0].item(), rounding)
        words = f"{error.max():.3g} apart, and rounding explains at most {explained:.3g}"
        return _first(wrong, exact, value, words, error == error.max())

    def rounding(self, number: int, exact: Tensor, where: Tensor) -> float:
        """Return the largest error of the CPU in the same dtype, or of changing the last bits."""

        def error(others: list[Tensor]) -> float:
            if not others or others[number].shape != exact.shape:
                return 0.0
            apart = (widened(others[number]) - exact).abs()[where]
            return apart[apart.isfinite()].max().item() if apart.isfinite().any() else 0.0

        own = error(self.again)
        return max(own, error(self.nudged)) if own or not self.again else 0.0


def deviation(exact: Tensor, value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the error of each value, 0 where one is not finite, and the allowed error."""
    finite = exact.isfinite() & value.isfinite()
    error, size = ((value - exact).abs(), exact.abs())
    error, size = error.where(finite, 0.0), size.where(finite, 0.0)
    relative, smallest = checks.tolerance(dtype).relative, _smallest(dtype)
    allowed = relative * size + smallest
    if (error > allowed).any():
        allowed += relative * checks.array_size(exact[finite].numpy())
    return error, allowed


def _smallest(dtype: torch.dtype) -> float:
    """Return the size below which numbers may be flushed to 0; float16's are multiples of 6e-8."""
    return 2.0**-23 if dtype == torch.float16 else torch.finfo(dtype).smallest_normal


def _precision(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and (torch.equal(a, b) or bool(_equal(a, b).all()))


def _other_kind(exact: Tensor, value: Tensor) -> str:
    def kind(tensor: Tensor) -> str:
        return f"{units.dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"

    return f"It is {kind(value)}, not {kind(exact)}."


def _first(
    differ: Tensor, exact: Tensor, value: Tensor, why: str, worst: Tensor | None = None
) -> str:
    """Return how many values differ, and one of them."""
    at = tuple((differ if worst is None else worst).nonzero()[0].tolist())
    got, wanted = (t[at].item() for t in (value, exact))
    place = f"at {at}: " if at else ""
    numbers = f"{got:.6g} for {wanted:.6g}" if floats(exact) else f"{got} for {wanted}"
    return f"{int(differ.sum())} of {value.numel()} values differ too much, {place}{numbers}; {why}"


def _picked(call: Call, positions: Tensor) -> Tensor | None:
    """Return the values at positions; None if they are no positions in the first argument."""
    x, short, settings = call.tensors[0], call.name.rpartition("::")[2], call.settings
    if "max_pool" in short:
        last = 3 if "3d" in short else 2
        return x.flatten(-last).gather(-1, positions.flatten(-last))
    if short not in POSITIONS or not x.dim():
        return None
    dim = settings.get("dim")
    if dim is None:
        return x.flatten()[positions]
    return x.gather(dim, positions if positions.dim() == x.dim() else positions.unsqueeze(dim))


def drops_nothing(call: Call) -> bool:
    """Return True if a random operator needs no random numbers."""
    return (
        any(call.settings.get(name) == 0 for name in DROPS) or call.settings.get("train") is False
    )


def fault_of_dropout(call: Call, returned: Any) -> str:
    """Return what is wrong with a call of dropout or bernoulli, or ''."""
    share = call.arguments.get("p")
    if call.name not in ("aten::native_dropout", "aten::bernoulli_") or not isinstance(
        share, float
    ):
        return ""
    dropout = call.name == "aten::native_dropout"
    kept, got = 1 - share if dropout else share, results(returned)
    mask = got[-1].double()
    spread = math.sqrt(kept * (1 - kept) / max(mask.numel(), 1))
    if mask.numel() and abs(mask.mean().item() - kept) > 6 * spread + 1e-9:
        return f"It keeps {mask.mean().item():.3g} of the values, not {kept:.3g}."
    if not dropout or not kept or not mask.numel():
        return ""
    exact = call.tensors[0].double() * mask / kept
    error, allowed = deviation(exact, got[0].double(), got[0].dtype)
    return (
        _first(error > allowed, exact, got[0], "what is kept is scaled wrongly")
        if (error > allowed).any()
        else ""
    )
