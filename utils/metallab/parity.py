"""Results beside NumPy's: one of `metallab.outcomes.Agreement` for each, and the reason.

`metallab.checks` raises where outputs differ, and a page stops there. A table of many small cases, some of which a
device is known to refuse, wants an answer for each of them instead. Its text fits into a table: ``agrees``,
``DIFFERS: ...`` or ``refused: ...``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metallab import checks, isolated, units
from metallab.device import PyTorchDevice
from metallab.outcomes import Agreement

if TYPE_CHECKING:
    from torch import Tensor

_WORDS: dict[Agreement, str] = {"agrees": "agrees", "differs": "DIFFERS", "refused": "refused"}
"""In a table; the one that must not be missed has large letters."""
_COMPLEX = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}


@dataclass(frozen=True)
class Parity:
    """Whether a result agrees with another one; its text is for a table."""

    outcome: Agreement
    detail: str = ""
    """Where and by how much they differ, or what the device said; empty if they agree."""

    @property
    def agrees(self) -> bool:
        """True if they agree."""
        return self.outcome == "agrees"

    def __str__(self) -> str:
        return ": ".join(filter(None, (_WORDS[self.outcome], self.detail)))


def against_numpy(
    function: Callable[..., Tensor],
    reference: Callable[..., np.ndarray],
    *arrays: np.ndarray,
    on: PyTorchDevice,
    dtype: str = "float32",
) -> Parity:
    """Compare a function of tensors on a device with NumPy's of the same numbers in float64.

    Parameters
    ----------
    function
        Of as many tensors as there are arrays, on the device.
    reference
        Of as many arrays, in float64 or complex128.
    *arrays
        Of any shape. Floating ones are rounded to the dtype and complex ones to pairs of it, before either function
        sees them; whole numbers stay.
    on
        The device.
    dtype
        float16, float32 or float64.

    Returns
    -------
    Parity
        Refused where PyTorch raised on the device: the detail is the first line of what it said.

    Raises
    ------
    TypeError
        For a call with arguments that no device takes. What the reference raises comes through.
    """
    rounded = [_round(array, dtype) for array in arrays]
    truth = reference(*(_as_numpy(tensor) for tensor in rounded))
    try:
        result = function(*(tensor.to(on.torch_device) for tensor in rounded)).cpu()
    except (RuntimeError, TypeError) as refusal:
        if "invalid combination of arguments" in str(refusal):  # no device takes such a call
            raise
        return Parity("refused", units.first_line(refusal))
    return _compare(truth, _as_numpy(result), dtype)


def agreement(
    truth: np.ndarray, result: np.ndarray | isolated.Skipped, dtype: str = "float32"
) -> Parity | isolated.Skipped:
    """Return whether two arrays agree at a dtype's tolerance (`metallab.checks`).

    Parameters
    ----------
    truth, result
        Of any shape; empty ones agree if their shapes are equal. A result that was not made for lack of a tool is
        returned, since it shows the reason.
    dtype
        In which the result was computed: its tolerance counts.

    Returns
    -------
    Parity
        Its text is ``agrees``, or ``DIFFERS: ...`` with where and by how much.
    """
    if isinstance(result, isolated.Skipped):
        return result
    return _compare(truth, result, dtype)


def _compare(truth: np.ndarray, result: np.ndarray, dtype: str) -> Parity:
    if np.shape(truth) == np.shape(result) and not np.size(truth):
        return Parity("agrees")
    try:
        checks.assert_close(truth, result, dtype)
    except checks.Mismatch as difference:
        return Parity("differs", units.first_line(difference).removeprefix("result: "))
    return Parity("agrees")


def _round(array: Any, dtype: str) -> Tensor:
    """Return an array as a tensor of a dtype, whole numbers as they are."""
    import torch

    tensor = torch.tensor(np.asarray(array))
    if tensor.is_complex():
        return tensor.to(getattr(torch, _COMPLEX[dtype]))
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


def _as_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array in 64 bits: NumPy has no complex numbers of 16."""
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128).resolve_conj().numpy()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
