"""PyTorch's own database of operators, run on the GPU and compared with the CPU and with what `coverage` foretells.

Each entry of ``torch.testing._internal.common_methods_invocations.op_db`` brings sample inputs. They run forward and
backward in float32 on both, from the same seed. `run` is what tools/benchmarks/simulated_operators.py runs as well.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# torch's test tools import this package for tests that are not run here
if importlib.util.find_spec("expecttest") is None:
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal import common_methods_invocations as invocations

from metallab import checks
from metallab.pytorch import coverage
from metalsim import refusals

SAMPLES = 2
"""At most so many samples of an entry."""
_REFUSED = re.compile(
    r"Cannot convert a MPS Tensor to float64|Trying to convert ComplexDouble|not support"
)


@dataclass(frozen=True)
class Asked:
    """What came of one entry."""

    name: str
    answer: str
    """agrees, differs, missing as foretold, missing but not foretold, runs but was foretold missing, refused, raises,
    skipped."""
    reason: str = ""


def names() -> list[str]:
    """All entries, as ``name.variant``."""
    return list(_entries())


@functools.cache
def _entries() -> dict[str, Any]:
    return {op.full_name: op for op in invocations.op_db}


def ask(name: str, samples: int = SAMPLES) -> Asked:
    """Return what came of an entry's first samples, in float32: the first answer that is not "agrees", if there is one.

    Results and gradients on the GPU are compared with the CPU's, and the operators that raise with those that
    `coverage` foretells to be missing. "skipped" is an entry without float32, and one of which no sample can be made or
    none runs on the CPU.
    """
    op = _entries()[name]
    if torch.float32 not in op.supported_dtypes("cpu"):
        return Asked(op.full_name, "skipped", "it has no float32")
    try:
        given = list(
            _first(
                op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), samples
            )
        )
    except Exception as error:  # noqa: BLE001  # the database is not ours; its troubles are told
        return Asked(op.full_name, "skipped", f"no samples: {brief(error)}")
    asked = Asked(op.full_name, "skipped", "no sample runs on the CPU")
    for sample in given:
        try:
            expected = run(op, sample, "cpu")
        except Exception:  # noqa: BLE001, S112  # what the CPU refuses tells nothing
            continue
        asked = _compare_sample(op, sample, expected)
        if asked.answer != "agrees":
            break

    return asked


def _compare_sample(op: Any, sample: Any, expected: Any) -> Asked:
    """Return what came of a sample on the GPU, whose results and gradients are compared with the CPU's.

    An exception is "refused" if it has the words of a refusal that is known of MPS, or is a NotImplementedError with
    other words than those of a missing kernel; any other is "raises".
    """
    foretold = _foretold_missing(op, sample)
    answer = functools.partial(Asked, op.full_name)

    try:
        result = run(op, sample, "mps")
    except NotImplementedError as error:
        missing = re.match(
            r"The operator '([^']+)' is not currently implemented for the MPS device", str(error)
        )
        if not missing:
            return answer("refused", brief(error))
        return answer("missing as foretold" if foretold else "missing but not foretold", missing[1])
    except Exception as error:  # noqa: BLE001  # a verdict, not a crash
        foreknown = _REFUSED.search(str(error)) or refusals.is_refusal(error)
        return answer("refused" if foreknown else "raises", brief(error))
    if foretold:
        return answer("runs but was foretold missing", ", ".join(foretold))
    try:
        _assert_agree(tensors(expected), tensors(result))
    except checks.Mismatch as difference:
        return answer("differs", brief(difference))

    return answer("agrees")


def _assert_agree(expected: list[torch.Tensor], result: list[torch.Tensor]) -> None:
    """Raise `checks.Mismatch` if tensors differ beyond the tolerance of their dtype, or in their number."""
    if len(expected) != len(result):  # a gradient, for example, that one side alone has
        raise checks.Mismatch(f"{len(expected)} tensors on the CPU, {len(result)} on the GPU")

    for one, other in zip(expected, result, strict=True):
        if one.numel() == 0 and one.shape == other.shape:
            continue  # they agree, and `assert_close` refuses to compare nothing
        # whole numbers have to be equal, whatever dtype is named
        checks.assert_close(one, other, one.dtype if one.dtype in _FLOATING else "float32")


_FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.complex64)


def _foretold_missing(op: Any, sample: Any) -> list[str]:
    """The operators of a sample, forward and backward, that have no Metal kernel by PyTorch's table."""

    def call(*tensors: Any) -> Any:
        return op.op(*tensors, **sample.kwargs)

    with sdpa_kernel(SDPBackend.MATH):
        try:
            covered = coverage.mps_coverage(call, sample.input, *sample.args)
        except coverage.TraceFailed:
            return []
    return [use.operator for use in covered.having("missing")]


def run(op: Any, sample: Any, device: str) -> tuple[Any, Any]:
    """Return the results of an operator for a sample that was put on a device, and the gradients of the sample.

    Results are a tuple of tensors. Gradients are a list with one for each tensor of the sample that wants one, or None
    where the results do not depend on it; in place of the list there is None if there is nothing to differentiate.
    All are copied to the CPU. What the operator raises comes through.
    """
    leaves: list[torch.Tensor] = []
    arguments = [_placed(value, device, leaves) for value in (sample.input, *sample.args)]
    keywords = {name: _placed(value, device, leaves) for name, value in sample.kwargs.items()}
    torch.manual_seed(0)
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's fused attention sums in another order
        results = op.op(*arguments, **keywords)
    results = sample.output_process_fn_grad(results)
    flat = [t for t in tensors(results) if t.requires_grad]
    gradients = None
    if flat and leaves:
        # one number; in a sum without squares each element of a result would have the same gradient, 1
        total = sum(((t.abs() if t.is_complex() else t) ** 2).sum() for t in flat)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)

    return tuple(t.detach().cpu() for t in tensors(results)), gradients and [
        g if g is None else g.cpu() for g in gradients
    ]


def _placed(value: Any, device: str, leaves: list[torch.Tensor]) -> Any:
    """Return an argument of a sample for a device: its tensors copied there, and "cpu" as a value replaced.

    Those copies that want a gradient are added to ``leaves``. Containers are made anew, with their types.
    """
    if isinstance(value, torch.Tensor):
        placed = value.detach().clone().to(device).requires_grad_(value.requires_grad)
        if placed.requires_grad:
            leaves.append(placed)
        return placed
    if isinstance(value, list | tuple):
        placed = [_placed(one, device, leaves) for one in value]
        return type(value)(*placed) if hasattr(value, "_fields") else type(value)(placed)
    if isinstance(value, dict):
        return {key: _placed(one, device, leaves) for key, one in value.items()}
    if isinstance(value, torch.device | str) and str(value) == "cpu":
        return type(value)(device)
    return copy.copy(value) if not isinstance(value, Callable) else value


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in a result, however it is nested, in its order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [tensor for one in value for tensor in tensors(one)]
        if isinstance(value, list | tuple)
        else []
    )


def _first(values: Iterable[Any], most: int) -> Iterator[Any]:
    for _, value in zip(range(most), values, strict=False):
        yield value


def brief(error: BaseException) -> str:
    """An exception in a line: its type, and how its message begins."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:160]}".replace("\t", " ")
