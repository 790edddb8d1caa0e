"""Correctness before speed: parity with the CPU, plausible rates, and exercises that check themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metallab import peaks, units
from metallab.device import Accelerator
from metallab.timing import Measurement


class Mismatch(AssertionError):
    """Outputs that differ by more than their dtype allows."""


class Implausible(AssertionError):
    """A rate that the hardware cannot reach: the time must be wrong."""


class WrongAnswer(AssertionError):
    """An exercise's answer that its check refuses."""


@dataclass(frozen=True)
class Tolerance:
    """Outputs agree if ``|result - reference| <= absolute + relative * |reference|`` everywhere."""

    relative: float
    absolute: float


TOLERANCES = {
    # A GPU adds in another order than a CPU: about the square root of the terms' number times the rounding step,
    # here for sums of some thousand terms of size 1.
    "float64": Tolerance(1e-10, 1e-10),
    "float32": Tolerance(1e-4, 1e-4),
    "float16": Tolerance(1e-2, 1e-2),
    "bfloat16": Tolerance(5e-2, 5e-2),
}


def tolerance(dtype: Any) -> Tolerance:
    """The tolerance of a dtype, named by a string or by any framework's own; integers and booleans must be equal."""
    name = str(dtype).rsplit(".", 1)[-1]
    name = {"complex64": "float32", "complex128": "float64"}.get(name, name)
    return TOLERANCES.get(name, Tolerance(0.0, 0.0))


def matches(dtype: Any) -> Callable[[Any, Any], None]:
    """A parity check for `metallab.timing.compare`: outputs within the tolerance of ``dtype``, else `Mismatch`."""
    return _Matches(str(dtype).rsplit(".", 1)[-1])


@dataclass(frozen=True)
class _Matches:
    dtype: str

    def __call__(self, reference: Any, result: Any) -> None:
        assert_close(reference, result, self.dtype)

    def __str__(self) -> str:
        return f"outputs agree within {self.dtype} tolerance"


def assert_close(reference: Any, result: Any, dtype: Any) -> None:
    """Raise `Mismatch` unless two results (arrays, numbers, or lists, tuples and dicts of them) agree.

    Arrays may be of NumPy, PyTorch, TensorFlow or JAX, on any device. NaN agrees with NaN.
    """
    expected, got = dict(_arrays(reference)), dict(_arrays(result))
    if expected.keys() != got.keys():
        raise Mismatch(f"the results have different parts: {sorted(expected)} and {sorted(got)}")
    if not expected:
        raise Mismatch("there is nothing to compare: the function returned None; let it return its result")
    for part, array in expected.items():
        _assert_arrays_close(array, got[part], tolerance(dtype), part)


def assert_matches_cpu(fn: Callable[..., Any], *inputs: Any, on: Accelerator, dtype: Any = "float32") -> None:
    """Raise `Mismatch` unless ``fn(*inputs)`` gives on a device, in ``dtype``, what the CPU gives in float32.

    ``fn`` is a function of PyTorch tensors or an `nn.Module`, which is copied; floating inputs are cast to ``dtype``
    for the device's run. float64 is compared in float64.
    """
    import torch

    dtype = getattr(torch, str(dtype).rsplit(".", 1)[-1])
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.no_grad():
        reference = _moved(fn, "cpu", exact)(*(_moved(x, "cpu", exact) for x in inputs))
        result = _moved(fn, on.torch_device, dtype)(*(_moved(x, on.torch_device, dtype) for x in inputs))
    on.synchronize()
    assert_close(reference, result, dtype)


def assert_plausible(
    measurement: Measurement, *, on: Accelerator, flops: float = 0.0, bytes: float = 0.0, dtype: Any = "float32"
) -> str:
    """Raise `Implausible` if the implied rate is above the device's peak; returns the rate in words otherwise.

    ``flops`` and ``bytes`` are what one call computes and moves. The peaks are those of `metallab.peaks`; where none
    is known for a device the sentence says so.
    """
    said = []
    for amount, unit, peak in (
        (flops, "FLOP/s", peaks.flops(on, dtype)),
        (bytes, "B/s", peaks.bandwidth(on)),
    ):
        if not amount:
            continue
        rate = amount / measurement.median
        if peak is not None and rate > peak.value:
            raise Implausible(
                f"{measurement.name}: {units.seconds(measurement.median)} would be {units.rate(rate, unit)}, above "
                f"{units.rate(peak.value, unit)}, the peak of {on.label} ({peak.source}). The time is wrong: is the "
                "device waited for, and the result really computed?"
            )
        share = f"{rate / peak.value:.0%} of the peak" if peak else "no peak is known for this device"
        said.append(f"{units.rate(rate, unit)} ({share})")
    return f"{measurement.name}: {', '.join(said) or 'no work was stated'}"


def exercise(name: str, answer: Any, accepts: Callable[[Any], Any], hint: str) -> str:
    """Judge an answer: ``...`` is not attempted, else ``accepts(answer)`` must be true, and may assert for itself.

    Returns a sentence to show. `WrongAnswer`, with the hint, if it is refused.
    """
    if answer is ...:
        return f"{name}: not attempted yet"
    try:
        accepted = accepts(answer)
    except (AssertionError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        raise WrongAnswer(f"{name}: {error or type(error).__name__}. Hint: {hint}") from error
    if not accepted:
        raise WrongAnswer(f"{name}: {answer!r} is not it. Hint: {hint}")
    return f"{name}: right"


def _arrays(value: Any, part: str = "result") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays in a nested result, named by where they are."""
    if value is None:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays(item, f"{part}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _arrays(item, f"{part}[{index}]")
    else:
        yield part, _as_numpy(value)


def _as_numpy(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # PyTorch: off the graph, off the device, into a dtype that NumPy has
        value = value.detach().cpu().resolve_conj()
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.asarray(value)
    # ml_dtypes' bfloat16, which JAX and TensorFlow use, is foreign to NumPy's arithmetic
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _assert_arrays_close(reference: np.ndarray, result: np.ndarray, allowed: Tolerance, part: str) -> None:
    if reference.shape != result.shape:
        raise Mismatch(f"{part}: shapes differ, {reference.shape} and {result.shape}")
    if np.allclose(result, reference, rtol=allowed.relative, atol=allowed.absolute, equal_nan=True):
        return
    wide = [array.astype(np.complex128 if np.iscomplexobj(array) else np.float64) for array in (reference, result)]
    difference = np.abs(wide[1] - wide[0])
    nan = np.isnan(wide[0]) != np.isnan(wide[1])
    if nan.any():
        raise Mismatch(f"{part}: {nan.sum()} of {nan.size} values are NaN on one side only")
    worst = np.unravel_index(np.nanargmax(difference), difference.shape)
    at = f" at {tuple(int(i) for i in worst)}" if worst else ""
    raise Mismatch(
        f"{part}: largest difference {difference[worst]:.3g}{at} ({result[worst]:.6g} for {reference[worst]:.6g}), "
        f"allowed {allowed.absolute:g} + {allowed.relative:g} of the value"
    )


def _moved(value: Any, device: Any, dtype: Any) -> Any:
    """A tensor or a copy of a module on a device in a dtype; anything else as it is. Integers keep their dtype."""
    import torch

    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device, dtype)
    if isinstance(value, torch.Tensor):
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)
    return value
