"""Which number format? Error, memory and time of float32, bfloat16 and float16, and where they overflow."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import results_made, timing, units
from metallab.allowance import Allowance
from metallab.device import PyTorchDevice
from metallab.doctor.answer import Answer
from metallab.doctor.limits import Limits
from metallab.doctor.questions import FORMATS
from metallab.doctor.results import (
    Asked,
    CallTime,
    FirstInfinity,
    FormatRun,
    FormatsResult,
    Task,
)
from metallab.doctor.worker import best_device, call_time, caveats
from metallab.outcomes import Status
from metallab.pytorch import precision
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.dispatch import CallingModules, below_root, calling_line, explain, watching
from metallab.pytorch.divergence.compare import any_element
from metallab.pytorch.model import ModelUnderTest

RANDOM = 1e-3
"""Outputs that differ by more from call to call, over their root mean square, are random."""
UNWRITTEN = ("empty", "new_empty", "resize", "set_")
"""Operators that leave memory uninitialised."""
COPIES = ("copy_", "_to_copy", "clone")


@dataclass(frozen=True)
class Format:
    """A number format, and a model that computes in it."""

    dtype: str
    how: Literal["autocast", "cast"] | None
    """None for float32, which is neither."""
    subject: ModelUnderTest
    autocast: torch.autocast

    @property
    def name(self) -> str:
        """``float16, autocast``."""
        return f"{self.dtype}, {self.how}" if self.how else self.dtype


Place = tuple[str, str, int]
"""Where an operator was called: its module, its name, and the number of the call."""


@dataclass(frozen=True)
class Run:
    """A run in a number format."""

    error: float = math.nan
    """Largest difference from the exact outputs, over the root mean square; NaN where they cannot be compared."""
    infinities: Mapping[Place, FirstInfinity] = field(default_factory=dict)
    """Where infinite numbers or NaN come up."""
    raised: str | None = None
    seconds: float = 0.0
    """0 if it raised."""


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[FormatsResult]:
    """Compare float32, bfloat16 and float16, under autocast and with everything cast.

    Parameters
    ----------
    subject
        The model.
    limits
        ``seconds``: a format whose time would take longer is not timed.

    Returns
    -------
    Answer
        ``incomplete`` if a small format overflows or fails, or the exact outputs have NaN; else ``passed``.
    """
    on = best_device()
    time_budget = Allowance(limits.seconds)
    exact, is_float64 = _compute_exact_outputs(subject)
    has_random = is_random(subject)

    formats = list(_make_formats(subject, on))
    runs = [run_in_format(each.subject, each.autocast, exact, has_random) for each in formats]
    result = FormatsResult(
        reference="float64" if is_float64 else "itself",
        formats=tuple(
            _to_format_run(each, run, runs[0], on, time_budget)
            for each, run in zip(formats, runs, strict=True)
        ),
        is_random=has_random,
        nans=sum(int(tensor.isnan().sum()) for tensor in exact),
        outputs=sum(tensor.numel() for tensor in exact),
        left_out=str(time_budget) if time_budget.left_out else "",
    )
    return Answer(FORMATS, _status(result), result, Asked(device=on.label), caveats(on))


def _status(result: FormatsResult) -> Status:
    if result.nans or any(map(_is_trouble, result.formats)):
        return "incomplete"
    return "passed"


def _is_trouble(run: FormatRun) -> bool:
    """Return True if a format fails; not where a cast is refused, since there is autocast as well."""
    is_refused_cast = run.raised is not None and run.how == "cast"
    return not run.is_sound and not is_refused_cast


def _make_formats(subject: ModelUnderTest, on: PyTorchDevice) -> Iterator[Format]:
    """Yield float32, then each small format under autocast and with everything cast."""
    whole = _cast(subject, torch.float32).to(on.torch_device)
    no_autocast = torch.autocast(on.kind, enabled=False)
    yield Format("float32", None, whole, no_autocast)

    for dtype in (torch.bfloat16, torch.float16):
        name = units.dtype_name(dtype)
        yield Format(name, "autocast", whole, torch.autocast(on.kind, dtype))
        yield Format(name, "cast", _cast(whole, dtype), no_autocast)


def _to_format_run(
    each: Format, run: Run, whole: Run, on: PyTorchDevice, time_budget: Allowance
) -> FormatRun:
    """Return a run in numbers, with what the format costs: time, as time permits, and memory.

    ``whole`` is the run in float32, whose infinities are no fault of a small format.
    """
    new = [each for place, each in run.infinities.items() if place not in whole.infinities]
    is_number = math.isfinite(run.error)
    return FormatRun(
        each.dtype,
        each.how,
        error=run.error if is_number else None,
        is_infinite=math.isinf(run.error),
        raised=run.raised,
        infinity=new[0] if new else None,
        time=_time_inference(each, run, on, time_budget),
        kept_bytes=_count_kept(each),
    )


@results_made.unheard()
def _time_inference(
    each: Format, run: Run, on: PyTorchDevice, time_budget: Allowance
) -> CallTime | None:
    """Return the time of a call; None if it raised, or for lack of time."""
    if not run.seconds:
        return None
    if not time_budget.count(f"timings in {each.name}", each=5 * run.seconds, wanted=1):
        return None

    budget = timing.Budget(min_samples=5, min_seconds=0.1, max_seconds=time_budget.left / 10)
    inference = each.autocast(each.subject.inference())
    return call_time(timing.measure(inference, on=on, name=each.name, budget=budget))


def _count_kept(each: Format) -> int | None:
    """Return the bytes kept for the backward pass; None if the model raises, which another column reports."""
    with contextlib.suppress(Exception), each.autocast:
        return precision.kept_for_backward(each.subject.model, each.subject.outputs)
    return None


def is_random(subject: ModelUnderTest, task: Task = "inference") -> bool:
    """Return True if a second call of inference gives other outputs, or a training step another loss."""
    once, again = (
        _to_float64_on_cpu(
            subject.inference()() if task == "inference" else subject.training_step()()
        )
        for _ in range(2)
    )
    return any(_relative_error(a, b) > RANDOM for a, b in zip(once, again, strict=False))


# ---- a run in a format -----------------------------------------------------------------------------------------------


def run_in_format(
    subject: ModelUnderTest,
    autocast: torch.autocast,
    exact: Sequence[Tensor],
    has_random: bool = False,
) -> Run:
    """Run inference, compare its outputs unless they are random, and find where infinite numbers come up."""
    there = subject.copy()
    there.model.eval()
    watched = _NonfiniteFinder(there)
    began = time.perf_counter()
    try:
        with torch.no_grad(), autocast, watched.modules, watching(watched.see):
            outputs = there.outputs()
        outputs = _to_float64_on_cpu(outputs)
    except Exception as error:  # noqa: BLE001 - such as no kernel for this format: it is reported
        return Run(raised=str(explain(error)))

    seconds = time.perf_counter() - began
    largest = math.nan if has_random else _largest_error(exact, outputs)
    return Run(largest, watched.found, seconds=seconds)


def _largest_error(exact: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Return the largest error of all outputs; NaN where they cannot be compared."""
    pairs = list(zip(exact, outputs, strict=False))
    if not all(right.shape == output.shape for right, output in pairs):
        return math.nan
    errors = [_relative_error(right, output) for right, output in pairs if right.numel()]
    return max(errors, default=math.nan)


class _NonfiniteFinder:
    """Finds operators that turn finite numbers into infinite ones or NaN; `see` is for `watching`."""

    def __init__(self, subject: ModelUnderTest) -> None:
        self.modules = CallingModules()
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        own = (
            *subject.model.parameters(),
            *subject.model.buffers(),
            *tensors_in((subject.inputs, subject.named)),
        )
        self.own = {_address(tensor) for tensor in own if tensor.layout == torch.strided}
        """Addresses of weights and inputs, which a cast may have made infinite."""
        self.found: dict[Place, FirstInfinity] = {}

    def see(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and look at its result."""
        name = operator.name().partition("::")[2].partition(".")[0]
        is_inherited = any(
            name in COPIES or _address(tensor) not in self.own
            for tensor in _list_nonfinite((args, kwargs))
        )
        result = operator(*args, **kwargs)
        if operator.is_view or name.startswith(UNWRITTEN):
            return result

        module = below_root(self.modules.innermost())
        self.counts[module, operator.name()] += 1
        if is_inherited:
            return result
        if infinite := _list_nonfinite(result):
            place = module, operator.name(), self.counts[module, operator.name()]
            is_infinity = any(bool(tensor.isinf().any()) for tensor in infinite)
            line = calling_line(until=run_in_format.__name__)
            kind: Literal["infinity", "NaN"] = "infinity" if is_infinity else "NaN"
            self.found[place] = FirstInfinity(kind, module, name, line)
        return result


def _list_nonfinite(values: Any) -> list[Tensor]:
    """Return the dense tensors among values that have an infinite number or NaN."""
    found = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    dense = (tensor for tensor in found if tensor.layout == torch.strided and not tensor.is_nested)
    return [tensor for tensor in dense if any_element(tensor, _mark_nonfinite)]


def _mark_nonfinite(numbers: Tensor) -> Tensor:
    return ~numbers.isfinite()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# ---- outputs and their errors ----------------------------------------------------------------------------------------


def _cast(
    subject: ModelUnderTest, dtype: torch.dtype, wide: torch.dtype | None = None
) -> ModelUnderTest:
    """Return a copy with floating weights and inputs in a dtype, complex ones in ``wide``."""

    def cast(tensor: Tensor) -> Tensor:
        if tensor.is_complex():  # module.to() would drop their imaginary part
            return tensor.to(wide or tensor.dtype)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return subject.cast(cast)


def _compute_exact_outputs(subject: ModelUnderTest) -> tuple[list[Tensor], bool]:
    """Return the outputs in float64 and True, or the model's own outputs and False if it does not run in that."""
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # of tensors that the model makes on its way
        wide = _cast(subject, torch.float64, torch.complex128)
        return _to_float64_on_cpu(wide.inference()()), True
    except Exception:  # noqa: BLE001 - a model may insist on its own format
        torch.set_default_dtype(default)
        return _to_float64_on_cpu(subject.inference()()), False
    finally:
        torch.set_default_dtype(default)


def _to_float64_on_cpu(outputs: object) -> list[Tensor]:
    """Return floating outputs in float64 on the CPU, complex ones as pairs of real numbers."""
    found = []
    for tensor in tensors_in(outputs):
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        if real.is_floating_point():
            found.append(real.detach().cpu().double())
    return found


def _relative_error(exact: Tensor, result: Tensor) -> float:
    """Return the largest difference over the root mean square, where the exact number is finite."""
    finite = exact.isfinite()
    if exact.shape != result.shape or not finite.any():
        return math.nan

    apart = (exact - result)[finite].abs().max().item()
    size = exact[finite].square().mean().sqrt().item()
    if math.isnan(apart):
        return math.inf
    return apart / size if size else apart
