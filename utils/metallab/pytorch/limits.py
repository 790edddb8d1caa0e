"""Metal kernels that look at their arguments: which calls PyTorch itself leaves to the CPU.

`metallab.pytorch.coverage` tells which operators have a Metal kernel. A kernel may still leave a call to the CPU, with
a warning or without a word; `detour` tells of which calls that is true. The rules see shapes and dtypes, so they serve
tensors of every device, ``meta`` among them. The simulated Apple GPU keeps to the same rules (`metallab.simulation`).

Read from ``svd_kernel_mps`` and ``eigh_kernel_mps`` (aten/src/ATen/native/mps/operations/LinearAlgebra.mm), and held
against the machine code of PyTorch 2.15's wheel for macOS. None of it was run on a Mac yet: `make verify-mac` asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

THREADGROUP_BYTES = 32768
"""Memory of a threadgroup, in bytes: what Metal promises on every Apple GPU from the M1 on."""

EIGH_LEAST = 12288
"""Numbers, in all matrices together, from which `eigh` uses the GPU; below it computes on the CPU without a word."""


@dataclass(frozen=True)
class Detour:
    """A call that is computed on the CPU although its operator has a Metal kernel."""

    reason: str
    """Why, for people: a part of a sentence."""
    warning: str = ""
    """PyTorch's words, which it says once in a process; empty if it says nothing."""


def detour(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Detour | None:
    """What becomes of a call of ``aten::_linalg_svd.U`` with these arguments: None if it stays on the GPU.

    Nothing is known here of operators without a kernel, which never stay: see `coverage.status`.
    """
    rule = RULES.get(operator.partition(".")[0])
    return rule(*args, **(kwargs or {})) if rule else None


def _svd(matrix: Any, *_: Any, **__: Any) -> Detour | None:
    """The kernel stages a whole matrix in a threadgroup's memory."""
    return _too_large("linalg.svd", _bytes(matrix)) if matrix.numel() else None


def _eigh(matrix: Any, *_: Any, **__: Any) -> Detour | None:
    """The kernel stages a matrix and its vectors, and leaves it where there is too little to do."""
    if not matrix.numel():
        return None
    if found := _too_large("linalg.eigh", 2 * _bytes(matrix)):
        return found
    if matrix.numel() < EIGH_LEAST:
        return Detour(f"eigh leaves less than {EIGH_LEAST} numbers, in all matrices together, to the CPU")
    return None


def _pinv(matrix: Any, *_: Any, hermitian: bool = False, **__: Any) -> Detour | None:
    """A composite that autograd and inference mode take for one operator: what it calls inside decides."""
    return _eigh(matrix) if hermitian else _svd(matrix)


def _bytes(matrix: Any) -> int:
    """Of one matrix of a batch."""
    return math.prod(matrix.shape[-2:]) * matrix.element_size()


def _too_large(name: str, staged: int) -> Detour | None:
    if staged <= THREADGROUP_BYTES:
        return None
    return Detour(
        f"a matrix needs {staged} bytes, and the kernel has {THREADGROUP_BYTES}",
        f"{name}: matrix too large to stage in MPS threadgroup memory ({staged} > {THREADGROUP_BYTES} bytes); "
        "falling back to CPU.",
    )


RULES: Mapping[str, Callable[..., Detour | None]] = {
    "aten::_linalg_svd": _svd,
    "aten::_linalg_eigh": _eigh,
    "aten::linalg_pinv": _pinv,
}
"""By operator, without its overload: a function of the arguments of a call."""
