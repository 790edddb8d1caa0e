"""Wrong kernels, planted on an Apple GPU on purpose, real or simulated: to teach and to test how one is found.

None is ever there unless `plant` is asked for it. Each is modelled on a public report about real Macs; what it computes
wrongly is made up, only when it does so follows the report.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalsim import patches
from metalsim.errors import SimulationError

if TYPE_CHECKING:
    import torch

LIMIT = 2**15
"""Elements up to which the planted gradient is right."""
LONG = 2**15
"""A kernel whose arguments have more elements together counts as a long one."""
ABORTED = range(10, 20)
"""The calls that are wrong of a fault that comes and goes, counted from 1, unless others are named."""


class PlantedFault(UserWarning):
    """Says that a wrong kernel is planted."""


class FaultNotMet(PlantedFault):
    """Says that a fault was planted, and that no call was of the kind that is wrong."""


@dataclass(frozen=True)
class Fault:
    """A wrong kernel that can be planted."""

    description: str
    """What it computes wrongly, and when."""
    source: str
    """The public report that it is modelled on."""
    operators: tuple[str, ...]
    """Those whose kernels it replaces, without ``aten::``; what has none for ``mps`` is passed over."""
    wrong: Callable[..., Any]
    """Called with the right kernel, a `RightKernel`, and its arguments."""
    counts: Callable[..., bool] | None = None
    """Of a fault that comes and goes: tells by its arguments whether a call is counted. None: every call is wrong."""
    shows: bool = True
    """Whether a call that it makes wrong can be told from one that it leaves alone, when it is made."""


@dataclass
class RightKernel:
    """The kernel that a fault replaces: called as the operator is."""

    operator: str
    """Its name, without ``aten::``."""
    kernel: Any
    keys: Any
    """The dispatcher's, of this call."""
    last: tuple[tuple, Any] | None = None
    """The positional arguments of the last call, and what it returned."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute what the operator should."""
        result = self.kernel.call_boxed(self.keys, *arguments, **keywords)
        self.last = arguments, result
        return result

    def has_made(self, arguments: tuple, result: Any) -> bool:
        """Return True if it was given these very arguments, and has returned this very result."""
        if self.last is None or self.last[1] is not result or len(self.last[0]) != len(arguments):
            return False
        return all(mine is given for mine, given in zip(self.last[0], arguments, strict=True))


@dataclass
class Meetings:
    """How often a planted fault was met."""

    calls: int = 0
    """Of the operators whose kernels it replaces."""
    counted: int = 0
    """Of those that a fault which comes and goes counts."""
    wrong: int = 0
    """Of those that were wrong."""

    def describe(self, name: str, calls: range) -> str:
        """Say why a fault was not met: too few calls, or none of the kind that is wrong.

        `name` is the fault's; of one that comes and goes `calls` has the numbers of the calls that would be wrong.
        """
        fault = FAULTS[name]
        operators = " and ".join(fault.operators)
        if not self.calls:
            return f"nothing has called {operators} on the Apple GPU"

        if fault.counts is not None:
            numbers = f"{calls.start} to {calls.stop - 1}"
            return f"{self.counted} of {self.calls} calls were counted, and those numbered {numbers} are wrong"

        count = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"{count} of {operators}, none of the kind that is wrong ({fault.description})"


def list_planted() -> tuple[str, ...]:
    """Return the names of the faults that are planted now."""
    return tuple(_planted)


def _has_device() -> bool:
    """Return whether there is an ``mps``: of a simulated one torch may not tell (`metalsim.by_name`)."""
    import torch

    return torch.backends.mps.is_available() or sys.modules["metalsim.device"].is_installed()


@contextlib.contextmanager
def plant(*names: str, calls: range | None = None) -> Iterator[None]:
    """Within the ``with``, kernels of ``mps`` are wrong: the `FAULTS` of these names.

    On a Mac that is the real GPU, whose kernels are replaced in this process alone (not tried on one yet). A
    `PlantedFault` warning says so, and so do `metalsim.device.description` and metallab's labels meanwhile. If no call
    was of the kind that is wrong, a `FaultNotMet` warning says so in the end.

    Parameters
    ----------
    names
        Of the faults.
    calls
        Of a fault that comes and goes, as an aborted call does: the numbers of the wrong calls, counted from 1 when it
        is planted; by default `ABORTED`.

    Raises
    ------
    ValueError
        Without a name or for one that does not exist; for ``calls`` where each named fault is always there.
    SimulationError
        Where there is no ``mps``, be it simulated, no kernel to replace, or the fault is planted already.
    """
    import torch

    _check_names(names, calls)
    struck = ABORTED if calls is None else calls
    meetings = {name: Meetings() for name in names}
    library = _replace_kernels(meetings, struck)
    _planted.extend(names)

    try:
        told = "; ".join(FAULTS[name].description for name in names)
        simulated = "simulated " if torch._C._mps_get_name() == patches.NAME else ""
        warnings.warn(
            f"PLANTED on the {simulated}Apple GPU, on purpose: {told}", PlantedFault, stacklevel=3
        )
        yield
    finally:
        library._destroy()
        for name in names:
            _planted.remove(name)

    for name, met in meetings.items():  # not where an error has ended the `with`
        if FAULTS[name].shows and not met.wrong:
            why = met.describe(name, struck)
            warnings.warn(f"NOT MET: {name}: {why}", FaultNotMet, stacklevel=3)


def _check_names(names: tuple[str, ...], calls: range | None) -> None:
    """Raise what `plant` raises for faults that cannot be planted, or not now."""
    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        raise ValueError(
            f"there is no fault {', '.join(unknown) or '(none named)'}: plant one of {', '.join(FAULTS)}"
        )

    if calls is not None and not any(FAULTS[name].counts for name in names):
        come_and_go = ", ".join(name for name, fault in FAULTS.items() if fault.counts)
        raise ValueError(
            f"{', '.join(names)} is wrong in every call: calls= is for faults that come and go, {come_and_go}"
        )

    if not _has_device():
        raise SimulationError(
            "there is no Apple GPU to plant wrong kernels on: call metalsim.install() first"
        )

    if twice := [name for name in names if name in _planted or names.count(name) > 1]:
        raise SimulationError(
            f"{twice[0]} is planted already: leave that `with` first, or name it once"
        )


def _replace_kernels(meetings: Mapping[str, Meetings], calls: range) -> torch.library.Library:
    """Replace the kernels of some faults until the library, which is returned, is destroyed.

    `meetings` has the faults' names, and counts their calls from now on; those in `calls` are wrong of a fault that
    comes and goes. SimulationError, before any kernel is replaced, for a fault whose operators have none of their own.
    """
    import torch

    replaced = {name: _operators_with_kernel(name) for name in meetings}
    library = torch.library.Library("aten", "IMPL")
    for name, met in meetings.items():
        numbers = itertools.count(1)  # of the counted calls, whichever operator they are of
        for operator in replaced[name]:
            right = torch.library.get_kernel(f"aten::{operator}", "MPS")
            wrong = _make_kernel(FAULTS[name], operator, right, met, numbers, calls)
            library.impl(operator, wrong, "MPS", with_keyset=True, allow_override=True)
    return library


def _operators_with_kernel(name: str) -> list[str]:
    """Return the operators of a fault that have a kernel for ``mps``. SimulationError if none has."""
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    wanted = FAULTS[name].operators
    operators = [operator for operator in wanted if has_kernel(f"aten::{operator}", "MPS")]
    if not operators:
        raise SimulationError(
            f"{name} cannot be planted: {', '.join(wanted)} has no kernel of its own here"
        )
    return operators


def _make_kernel(
    fault: Fault,
    operator: str,
    replaced: Any,
    met: Meetings,
    numbers: Iterator[int],
    calls: range,
) -> Callable[..., Any]:
    """Return what runs in place of an operator's kernel: the wrong one, or in calls that are spared the right one.

    A fault's calls are counted together, whichever operator they are of: ``numbers`` gives the next one's number, and
    those in ``calls`` are wrong.
    """

    def is_spared(*arguments: Any) -> bool:
        """Return whether a call is right, and count it if it is of the kind that a fault which comes and goes counts.

        No call of a fault that is always there is spared.
        """
        if fault.counts is None:
            return False
        if not fault.counts(*arguments):
            return True
        met.counted = next(numbers)
        return met.counted not in calls

    def kernel(keys: Any, *arguments: Any, **keywords: Any) -> Any:
        met.calls += 1
        right = RightKernel(operator, replaced, keys)
        if is_spared(*arguments):
            return right(*arguments, **keywords)

        result = fault.wrong(right, *arguments, **keywords)
        # a fault that is always there passes on a call that it leaves alone as it came, and its result as well
        is_left_alone = fault.counts is None and right.has_made(arguments, result)
        if not is_left_alone:
            met.wrong += 1
        return result

    return kernel


def _is_long(*arguments: Any) -> bool:
    """Return whether a kernel has much to do, by the elements of its arguments."""
    import torch

    return sum(each.numel() for each in arguments if isinstance(each, torch.Tensor)) > LONG


def _leave_as_it_was(right: RightKernel, *arguments: Any, **keywords: Any) -> torch.Tensor:
    """Compute nothing: return new memory of the result's shape and dtype, with whatever it held before."""
    import torch
    from torch.utils._pytree import tree_map_only

    # the shape is asked of the operator itself, without memory: tensors of `meta` have none
    on_meta = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), arguments)

    # its arguments stand in another order than those of `convolution`
    if right.operator == "_mps_convolution":
        image, weight, bias, padding, stride, dilation, groups = on_meta
        none = [0] * len(padding)
        on_meta = (image, weight, bias, stride, padding, dilation, False, none, groups)

    is_convolution = "convolution" in right.operator
    shape_of = getattr(torch.ops.aten, "convolution" if is_convolution else right.operator)
    return torch.empty_like(shape_of(*on_meta, **keywords), device=arguments[0].device)


def _addcdiv(
    right: Callable[..., Any], x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **value: Any
) -> torch.Tensor:
    """Read the numerator one element too early where it begins at an odd element of its storage."""
    if a.storage_offset() % 2:
        a = a.as_strided(a.shape, a.stride(), a.storage_offset() - 1)
    return right(x, a, b, **value)


def _addcdiv_in_place(
    right: Callable[..., Any], x: torch.Tensor, *arguments: Any, **value: Any
) -> torch.Tensor:
    """Write into a copy that nobody sees where the result is not contiguous."""
    if x.is_contiguous():
        return right(x, *arguments, **value)
    right(x.clone(), *arguments, **value)
    return x


def _relu_gradient(right: Callable[..., Any], *arguments: Any) -> torch.Tensor:
    """Return a gradient that is 1000 times too large from element 32768 on."""
    gradient = right(*arguments)
    if gradient.numel() <= LIMIT:
        return gradient
    flat = gradient.flatten()
    flat[LIMIT:] *= 1000
    return flat.view(gradient.shape)


def _lose_copy(
    right: Callable[..., Any], to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> Any:
    """Lose a non_blocking copy to the device if its source is freed before a copy back has waited for it."""
    if source.device.type == "mps" and not non_blocking:
        while _copies:  # they have arrived, and their sources may go
            _copies.pop().detach()
    if non_blocking and source.device.type == "cpu":
        # called when the source is freed
        _copies.append(weakref.finalize(source, to.detach().zero_))
    return right(to, source, non_blocking)


def _long_product(right: Callable[..., Any], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add the first 64 terms of each sum twice where there are 32767 or more, and rows and columns are 16 or more."""
    product = right(a, b)
    long = a.shape[2] >= LIMIT - 1 and min(a.shape[1], b.shape[2]) >= 16
    return product + right(a[:, :, :64], b[:, :64]) if long else product


def _attention(right: Callable[..., Any], *arguments: Any, **scale: Any) -> Any:
    """See one key more than there is, for at most 8 queries without a mask and keys that are not a multiple of 32.

    The one too many is made up: a key of ones, and 32 for its values. The weights are returned without it.
    """
    import torch

    pad = torch.nn.functional.pad
    query, key, value, *more = arguments
    has_mask = any(map(torch.is_tensor, more))
    if query.shape[-2] > 8 or key.shape[-2] % 32 == 0 or has_mask:
        return right(*arguments, **scale)

    output, shares = right(
        query, pad(key, (0, 0, 0, 1), value=1.0), pad(value, (0, 0, 0, 1), value=32.0), **scale
    )
    return output, shares[..., :-1]


def _attention_of_nothing(
    right: Callable[..., Any], *arguments: Any, **scale: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give NaN to a query whose mask hides every key."""
    import torch

    output, shares = right(*arguments, **scale)
    mask = next(filter(torch.is_tensor, arguments[3:]), None)
    if mask is None:
        return output, shares

    is_seen = mask if mask.dtype == torch.bool else mask > -torch.inf
    sees_nothing = ~is_seen.any(-1, keepdim=True)
    return output.masked_fill(sees_nothing, torch.nan), shares


def _unique_in_float32(
    right: Callable[..., Any], x: torch.Tensor, *settings: Any, **named: Any
) -> tuple[torch.Tensor, ...]:
    """Look whole numbers up in float32, which has none between 16777216 and 16777218."""
    import torch

    values, places, counts = right(x, *settings, **named)
    if places.numel() and not x.is_floating_point():
        places = torch.searchsorted(values.float(), x.float().contiguous())
    return values, places, counts


def _multiply_and_add(
    right: Callable[..., Any], x: torch.Tensor, *factors: torch.Tensor, **scales: Any
) -> torch.Tensor:
    """Multiply the first argument with beta even where that is 0: a NaN in it comes through."""
    result = right(x, *factors, **scales)
    return result + 0 * x if scales.get("beta") == 0 else result


def _small_sum(right: RightKernel, *arguments: Any, **keywords: Any) -> torch.Tensor:
    """Give a sum or a mean that is 1 % too small."""
    result = right(*arguments, **keywords)
    return result - result / 100 if result.is_floating_point() else result


def _impossible_draw(
    right: RightKernel, probabilities: torch.Tensor, *settings: Any, **named: Any
) -> torch.Tensor:
    """Draw the least probable place of each row, be its probability 0, as the last one."""
    drawn = right(probabilities, *settings, **named)
    drawn[..., -1:] = probabilities.argmin(-1, keepdim=True)
    return drawn


def _is_any(*_: Any) -> bool:
    """Return True: each call is counted."""
    return True


def _read_as_contiguous(place: int) -> Callable[..., Any]:
    """Return a kernel that reads the tensor at a place as if it were contiguous.

    An expanded one has too little memory for that: it is read right.
    """

    def wrong(right: Callable[..., Any], *arguments: Any) -> Any:
        x = arguments[place]
        if not x.is_contiguous() and 0 not in x.stride():
            x = x.as_strided(x.shape, x.new_empty(x.shape).stride(), x.storage_offset())
        return right(*arguments[:place], x, *arguments[place + 1 :])

    return wrong


def _alone(right: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Raise where another thread is computing already."""
    if not _busy.acquire(blocking=False):
        raise RuntimeError(
            "two threads use the GPU at once, which ends the process on a Mac: let one lock hold both"
        )
    try:
        return right(*arguments, **keywords)
    finally:
        _busy.release()


_planted: list[str] = []
_copies: list[weakref.finalize] = []
_busy = threading.RLock()

FAULTS: Mapping[str, Fault] = {
    "conv2d, non-contiguous input": Fault(
        "convolutions read a non-contiguous input as if it were contiguous",
        "https://github.com/pytorch/pytorch/issues/180984",
        (
            "convolution_overrideable",
            "_mps_convolution",
        ),  # that of the simulated GPU, and that of a Mac
        _read_as_contiguous(0),
    ),
    "ReLU's gradient, above 32768 elements": Fault(
        "the gradient of ReLU is 1000 times too large behind its first 32768 elements",
        "https://github.com/pytorch/pytorch/issues/177116",
        ("threshold_backward",),
        _relu_gradient,
    ),
    "addcdiv, odd offset": Fault(
        "addcdiv reads a view at an odd offset one element too early",
        "https://github.com/pytorch/pytorch/issues/118115",
        ("addcdiv",),
        _addcdiv,
    ),
    "addcdiv_, non-contiguous result": Fault(
        "addcdiv_ writes nothing into a tensor that is not contiguous",
        "https://github.com/pytorch/pytorch/issues/118115",
        ("addcdiv_",),
        _addcdiv_in_place,
    ),
    "non_blocking copy, source freed": Fault(
        "a non_blocking copy to the device is lost if its source is freed before values are copied back",
        "https://github.com/pytorch/pytorch/issues/139550",
        ("copy_",),
        _lose_copy,
        shows=False,  # whether the source is freed turns out later
    ),
    "bmm, 32767 terms": Fault(
        "batched products that sum over 32767 numbers or more are a few per cent off",
        "https://github.com/pytorch/pytorch/issues/195163",
        ("bmm",),
        _long_product,
    ),
    "linear, non-contiguous weight": Fault(
        "linear reads a non-contiguous weight as if it were contiguous",
        "https://github.com/pytorch/pytorch/issues/162730",
        ("linear",),
        _read_as_contiguous(1),
    ),
    # As a pull request describes it, which was closed: the sources of the kernels check that bound.
    # What was confirmed of them, and fixed in 2.11, is pytorch#174861 (16 bits, grouped queries, more
    # than 1023 keys): float32 sums were written into buffers of 16 bits, and over what lay behind.
    "attention, keys not a multiple of 32": Fault(
        "attention of at most 8 queries sees a key more than there is, unless keys are a multiple of 32",
        "https://github.com/pytorch/pytorch/pull/169222",
        ("_scaled_dot_product_attention_math_for_mps",),
        _attention,
    ),
    "BatchNorm2d's gradient, channels last": Fault(
        "the gradient of BatchNorm2d reads an input in channels last as if it were contiguous",
        "https://github.com/pytorch/pytorch/issues/175189",
        ("native_batch_norm_backward",),
        _read_as_contiguous(1),
    ),
    "attention, all keys masked": Fault(
        "attention without gradients is NaN for a query whose mask hides every key",
        "https://github.com/pytorch/pytorch/issues/156707",
        ("_scaled_dot_product_attention_math_for_mps",),
        _attention_of_nothing,
    ),
    "unique, integers above 2**24": Fault(
        "unique finds the places of integers above 16777216 in float32",
        "https://github.com/pytorch/pytorch/issues/195595",
        ("_unique2",),
        _unique_in_float32,
    ),
    "baddbmm, NaN with beta=0": Fault(
        "baddbmm with beta=0 lets a NaN of its first argument through, as memory holds that nobody wrote",
        "https://github.com/pytorch/pytorch/issues/187521",
        ("baddbmm",),
        _multiply_and_add,
    ),
    "two threads at once": Fault(
        "an operator raises while another thread is inside one, where PyTorch 2.14 may end the process",
        "https://github.com/pytorch/pytorch/issues/197805",
        ("mm", "addmm", "relu", "_softmax"),
        _alone,
        shows=False,  # it raises, which nobody overlooks
    ),
    "call aborted by the system": Fault(
        "some long products and convolutions return early, and leave in their result what was in its memory",
        "https://github.com/pytorch/pytorch/pull/193571",
        (
            "mm",
            "addmm",
            "bmm",
            "baddbmm",
            "linear",
            "convolution_overrideable",
            "_mps_convolution",
        ),
        _leave_as_it_was,
        counts=_is_long,
    ),
    "sum, once in many calls": Fault(
        "some sums and means of more than 32768 numbers are 1 % too small",
        "https://github.com/pytorch/pytorch/issues/178497",
        ("sum", "sum.dim_IntList", "mean", "mean.dim"),
        _small_sum,
        counts=_is_long,
    ),
    "multinomial, probability 0": Fault(
        "some calls of multinomial draw what has probability 0",
        "https://github.com/pytorch/pytorch/issues/192577",
        ("multinomial",),
        _impossible_draw,
        counts=_is_any,
    ),
}
"""What `plant` takes, by name."""
