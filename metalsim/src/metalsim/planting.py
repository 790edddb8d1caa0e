"""Wrong kernels, planted on an Apple GPU on purpose, real or simulated: to teach and to test how one is found.

None is ever there unless `plant` is asked for it. Each is modelled on a public report about real Macs; what it computes
wrongly is made up, only when it does so follows the report.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalsim import patches
from metalsim.errors import SimulationError

if TYPE_CHECKING:
    import torch

LIMIT = 2**15
"""Elements up to which the planted gradient is right."""


class PlantedFault(UserWarning):
    """Says that a wrong kernel is planted."""


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
    """Called with the right kernel and its arguments."""


def planted() -> tuple[str, ...]:
    """The names of the faults that are planted now."""
    return tuple(_planted)


@contextlib.contextmanager
def plant(*names: str) -> Iterator[None]:
    """Within the ``with``, kernels of ``mps`` are wrong: the `FAULTS` of these names.

    On a Mac that is the real GPU, whose kernels are replaced in this process alone (not tried on one yet). A
    `PlantedFault` warning says so, and so do `metalsim.device.description` and metallab's labels meanwhile. ValueError
    without a name or for one that does not exist, SimulationError where there is no ``mps``, be it simulated, no
    kernel to replace, or the fault is planted already.
    """
    import torch

    unknown = [name for name in names if name not in FAULTS]
    if unknown or not names:
        raise ValueError(f"there is no fault {', '.join(unknown) or '(none named)'}: plant one of {', '.join(FAULTS)}")
    if not torch.backends.mps.is_available():
        raise SimulationError("there is no Apple GPU to plant wrong kernels on: call metalsim.install() first")
    if twice := [name for name in names if name in _planted or names.count(name) > 1]:
        raise SimulationError(f"{twice[0]} is planted already: leave that `with` first, or name it once")
    library = _library(names)
    _planted.extend(names)
    try:
        told = "; ".join(FAULTS[name].description for name in names)
        simulated = "simulated " if torch._C._mps_get_name() == patches.NAME else ""
        warnings.warn(f"PLANTED on the {simulated}Apple GPU, on purpose: {told}", PlantedFault, stacklevel=3)
        yield
    finally:
        library._destroy()
        for name in names:
            _planted.remove(name)


def _library(names: tuple[str, ...]) -> torch.library.Library:
    import torch

    library = torch.library.Library("aten", "IMPL")
    for name in names:
        wanted = FAULTS[name].operators
        operators = [o for o in wanted if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{o}", "MPS")]
        if not operators:
            raise SimulationError(f"{name} cannot be planted: {', '.join(wanted)} has no kernel of its own here")
        for operator in operators:
            right = torch.library.get_kernel(f"aten::{operator}", "MPS")
            library.impl(operator, _kernel(FAULTS[name], right), "MPS", with_keyset=True)
    return library


def _kernel(fault: Fault, right: Any) -> Callable[..., Any]:
    def kernel(keys: Any, *arguments: Any, **keywords: Any) -> Any:
        return fault.wrong(lambda *a, **k: right.call_boxed(keys, *a, **k), *arguments, **keywords)

    return kernel


def _convolution(right: Callable[..., Any], x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Reads the input's memory as if it were contiguous; an expanded input has too little of it, and is read right."""
    if not x.is_contiguous() and 0 not in x.stride():
        x = x.as_strided(x.shape, x.new_empty(x.shape).stride(), x.storage_offset())
    return right(x, *arguments)


def _addcdiv(
    right: Callable[..., Any], x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **value: Any
) -> torch.Tensor:
    """Reads the numerator one element too early where it begins at an odd element of its storage."""
    if a.storage_offset() % 2:
        a = a.as_strided(a.shape, a.stride(), a.storage_offset() - 1)
    return right(x, a, b, **value)


def _addcdiv_in_place(right: Callable[..., Any], x: torch.Tensor, *arguments: Any, **value: Any) -> torch.Tensor:
    """Writes into a copy that nobody sees where the result is not contiguous."""
    if x.is_contiguous():
        return right(x, *arguments, **value)
    right(x.clone(), *arguments, **value)
    return x


def _relu_gradient(right: Callable[..., Any], *arguments: Any) -> torch.Tensor:
    """1000 times too large from element 32768 on."""
    gradient = right(*arguments)
    if gradient.numel() <= LIMIT:
        return gradient
    flat = gradient.flatten()
    flat[LIMIT:] *= 1000
    return flat.view(gradient.shape)


_planted: list[str] = []

FAULTS: Mapping[str, Fault] = {
    "conv2d, non-contiguous input": Fault(
        "convolutions read a non-contiguous input as if it were contiguous",
        "https://github.com/pytorch/pytorch/issues/180984",
        ("convolution_overrideable", "_mps_convolution"),  # that of the simulated GPU, and that of a Mac
        _convolution,
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
}
"""What `plant` takes, by name."""
