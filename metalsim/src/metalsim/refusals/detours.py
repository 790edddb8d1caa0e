"""Calls that PyTorch leaves to the CPU although the operator has a Metal kernel, with or without a warning.

Read from ``svd_kernel_mps`` and ``eigh_kernel_mps`` (aten/src/ATen/native/mps/operations/LinearAlgebra.mm) and
``avg_pool2d_template`` (Pooling.mm), and compared with the machine code of PyTorch 2.15's wheel for macOS. None of it
was run on a Mac yet: `make verify-mac` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

THREADGROUP_BYTES = 32768
"""Memory of a threadgroup in bytes, on every Apple GPU from the M1 on."""

EIGH_LEAST = 12288
"""Numbers in all matrices together from which on `eigh` uses the GPU."""


@dataclass(frozen=True)
class Detour:
    """A call that is computed on the CPU although its operator has a Metal kernel."""

    reason: str
    """A part of a sentence."""
    warning: str = ""
    """PyTorch's warning, once in a process; may be empty."""


def _svd(A: Any, **_: Any) -> Detour | None:
    """The kernel stages a whole matrix in a threadgroup's memory."""
    return _too_large("linalg.svd", _bytes(A)) if A.numel() else None


def _eigh(A: Any, **_: Any) -> Detour | None:
    """The kernel stages a matrix and its vectors, and leaves it where there is too little to do."""
    if not A.numel():
        return None
    if detour := _too_large("linalg.eigh", 2 * _bytes(A)):
        return detour
    if A.numel() < EIGH_LEAST:
        return Detour(
            f"eigh leaves less than {EIGH_LEAST} numbers, in all matrices together, to the CPU"
        )
    return None


def _avg_pool2d(self: Any, divisor_override: int | None = None, **_: Any) -> Detour | None:
    if str(self.dtype) != "torch.int64" or divisor_override is None:
        return None
    return Detour(
        "whole numbers are averaged there with the window's own divisor only",
        AVERAGE_OF_WHOLE_NUMBERS,
    )


AVERAGE_OF_WHOLE_NUMBERS = (
    "MPS: passing divisor to Average Pooling op with int64 input is not supported on MPS backend. Falling back on CPU. "
    "This may have performance implications."
)
TOO_LARGE = (
    "{kernel}: matrix too large to stage in MPS threadgroup memory ({staged} > {bytes} bytes); "
    "falling back to CPU."
)
WARNINGS = (
    AVERAGE_OF_WHOLE_NUMBERS,
    *(TOO_LARGE.replace("{kernel}", f"linalg.{name}") for name in ("svd", "eigh")),
)
"""The words of all detours, with fields for `str.format`."""


def _bytes(matrix: Any) -> int:
    """Of one matrix of a batch."""
    return math.prod(matrix.shape[-2:]) * matrix.element_size()


def _too_large(kernel: str, staged: int) -> Detour | None:
    if staged <= THREADGROUP_BYTES:
        return None
    return Detour(
        f"a matrix needs {staged} bytes, and the kernel has {THREADGROUP_BYTES}",
        TOO_LARGE.format(kernel=kernel, staged=staged, bytes=THREADGROUP_BYTES),
    )


RULES: Mapping[str, Callable[..., Detour | None]] = {
    "aten::_linalg_svd": _svd,
    "aten::_linalg_eigh": _eigh,
    # a composite in inference mode: what it calls decides
    "aten::linalg_pinv": lambda self, hermitian=False, **_: (
        _eigh(self) if hermitian else _svd(self)
    ),
    "aten::avg_pool2d": _avg_pool2d,
}
"""By operator, without its overload: a function of the arguments of a call, by the names of its schema."""
