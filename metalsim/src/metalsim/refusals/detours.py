"""Calls that PyTorch leaves to the CPU although the operator has a Metal kernel, with or without a warning.

Read from ``svd_kernel_mps`` and ``eigh_kernel_mps`` (aten/src/ATen/native/mps/operations/LinearAlgebra.mm) and
``avg_pool2d_template`` (Pooling.mm), and compared with the machine code of PyTorch 2.15's wheel for macOS; that of
``linalg_qr``, which 2.12 and 2.13 have, from ``linalg_qr_out_impl_mps`` of older source. The warnings were compared
with the wheels of 2.11 to 2.15. None of it was run on a Mac yet: `make verify-mac` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metalsim.refusals import versions

THREADGROUP_BYTES = 32768
"""Memory of a threadgroup in bytes, on every Apple GPU from the M1 on."""

EIGH_LEAST = 12288
"""Numbers in all matrices together from which on `eigh` uses the GPU."""

QR_MOST = 512
"""The smaller side of a matrix up to which `qr` of PyTorch 2.12 and 2.13 uses the GPU."""


@dataclass(frozen=True)
class Detour:
    """A call that is computed on the CPU although its operator has a Metal kernel."""

    reason: str
    """A part of a sentence."""
    warning: str = ""
    """PyTorch's warning, once in a process; may be empty."""


Predicate = Callable[..., Detour | None]


@dataclass(frozen=True)
class DetourRule:
    """Which calls of an operator are computed on the CPU, and in which versions of PyTorch."""

    operator: str
    """Without its overload."""
    find: Predicate
    """A function of the arguments of a call, by the names of its schema."""
    warnings: tuple[str, ...]
    """The words of its detours, with fields for `str.format`."""
    since: str = ""
    """The first version, such as ``2.14``; empty: all known ones, up to and with `until`."""
    until: str = ""
    """The last version; empty: all later ones."""


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


def _qr(A: Any, **_: Any) -> Detour | None:
    smaller_side = min(A.shape[-2:])
    if not A.numel() or smaller_side <= QR_MOST:
        return None
    return Detour(f"a matrix has more than {QR_MOST} rows and columns", QR_TOO_LARGE)


AVERAGE_OF_WHOLE_NUMBERS = (
    "MPS: passing divisor to Average Pooling op with int64 input is not supported on MPS backend. Falling back on CPU. "
    "This may have performance implications."
)
TOO_LARGE = (
    "{kernel}: matrix too large to stage in MPS threadgroup memory ({staged} > {bytes} bytes); "
    "falling back to CPU."
)
SVD_TOO_LARGE = TOO_LARGE.replace("{kernel}", "linalg.svd")
EIGH_TOO_LARGE = TOO_LARGE.replace("{kernel}", "linalg.eigh")
QR_TOO_LARGE = (
    "linalg_qr: MPS implementation is currently limited to min(m,n) <= 512, falling back to CPU."
)


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


RULES = (
    # _linalg_svd and _linalg_eigh have no kernel before 2.14
    DetourRule("aten::_linalg_svd", _svd, (SVD_TOO_LARGE,), since="2.14"),
    DetourRule("aten::_linalg_eigh", _eigh, (EIGH_TOO_LARGE,), since="2.14"),
    # a composite in inference mode: what it calls decides
    DetourRule(
        "aten::linalg_pinv",
        lambda self, hermitian=False, **_: _eigh(self) if hermitian else _svd(self),
        (),
        since="2.14",
    ),
    DetourRule("aten::linalg_qr", _qr, (QR_TOO_LARGE,), since="2.12", until="2.13"),
    DetourRule("aten::avg_pool2d", _avg_pool2d, (AVERAGE_OF_WHOLE_NUMBERS,)),
)
"""Those of all versions."""


def for_version(version: str) -> Mapping[str, Predicate]:
    """Return the predicates of a version of PyTorch, such as ``2.13.0``, by operator."""
    held = [rule for rule in RULES if versions.is_between(version, rule.since, rule.until)]
    return {rule.operator: rule.find for rule in held}


def warnings_of(version: str) -> set[str]:
    """Return the words of all detours of a version of PyTorch, with fields for `str.format`."""
    held = [rule for rule in RULES if versions.is_between(version, rule.since, rule.until)]
    return {words for rule in held for words in rule.warnings}
