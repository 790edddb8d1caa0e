"""Results beside NumPy's, in words that fit a table: ``agrees``, ``DIFFERS: ...`` or ``refused: ...``.

`metallab.checks` raises where outputs differ, and a page stops there. A table of many small cases, some of which a
device is known to refuse, wants a word for each of them instead: one of `metallab.outcomes.Agreement`, and the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from metallab import checks, isolated, units
from metallab.device import Device
from metallab.outcomes import Agreement

if TYPE_CHECKING:
    from torch import Tensor

AGREES: Agreement = "agrees"
_COMPLEX = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}


def against_numpy(
    function: Callable[..., Tensor],
    reference: Callable[..., np.ndarray],
    *arrays: np.ndarray,
    on: Device,
    dtype: str = "float32",
) -> str:
    """What ``function`` of tensors gives on a device, against what ``reference`` gives of the same numbers in float64.

    Floating ``arrays`` are rounded to ``dtype`` (float16, float32 or float64) and complex ones to pairs of it, before
    either sees them; whole numbers stay. What PyTorch raises on the device is a ``refused``, with its first line.
    TypeError for a call with arguments that no device takes, and what ``reference`` raises comes through.
    """
    rounded = [_rounded(array, dtype) for array in arrays]
    truth = reference(*(_as_numpy(tensor) for tensor in rounded))
    try:
        result = function(*(tensor.to(on.torch_device) for tensor in rounded)).cpu()
    except (RuntimeError, TypeError) as refusal:
        if "invalid combination of arguments" in str(refusal):  # no device takes such a call
            raise
        return f"refused: {units.first_line(refusal)}"
    return agreement(truth, _as_numpy(result), dtype)


def agreement(truth: np.ndarray, result: np.ndarray, dtype: str = "float32") -> str:
    """Do two arrays agree at a dtype's tolerance (`metallab.checks`)? Empty ones do if their shapes are equal.

    Of a result that was not made for lack of a tool (`metallab.isolated.Skipped`): why.
    """
    if isinstance(result, isolated.Skipped):
        return repr(result)
    if np.shape(truth) == np.shape(result) and not np.size(truth):
        return AGREES
    try:
        checks.assert_close(truth, result, dtype)
    except checks.Mismatch as difference:
        return f"DIFFERS: {units.first_line(difference).removeprefix('result: ')}"
    return AGREES


def _rounded(array: Any, dtype: str) -> Tensor:
    import torch

    tensor = torch.tensor(np.asarray(array))
    if tensor.is_complex():
        return tensor.to(getattr(torch, _COMPLEX[dtype]))
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


def _as_numpy(tensor: Tensor) -> np.ndarray:
    """In 64 bits: NumPy has no complex numbers of 16."""
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128).resolve_conj().numpy()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
