"""Which number format? Error, memory and time of float32, bfloat16 and float16, and where they overflow."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from metallab.pytorch.divergence.compare import any_element, root_mean_square
from metallab.pytorch.model import ModelUnderTest

RANDOM = 100
"""Outputs that differ by more steps of their dtype from call to call, relative to their root mean square, are random:
another order of adding moves them by some steps."""
RANDOM_IF_DRAWN = 8
"""So many steps are enough where an operator draws random numbers: a mean, as a loss is one, hides most of them."""
MEASURED_IN_STEPS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes whose steps limit what counts as random; float64 has the limit of float32, in which most of it was made."""
UNWRITTEN = ("empty", "new_empty", "resize", "set_")
"""How operators begin that leave memory uninitialised, whose numbers mean nothing yet."""
COPIES = ("copy_", "_to_copy", "clone")
"""Operators that copy or cast: an infinity in their argument was not made by them."""
CALLS_OF_A_TIMING = 5
"""Calls that timing a format takes: a format whose calls would take longer than what is left is not timed."""
SHARE_OF_A_TIMING = 1 / 10
"""The share of what is left that timing one format takes at most."""


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
    """The exception; None if it ran."""
    seconds: float = 0.0
    """0 if it raised."""


def answer(subject: ModelUnderTest, limits: Limits) -> Answer[FormatsResult]:
    """Compare float32, bfloat16 and float16, under autocast and with everything cast.

    Parameters
    ----------
    subject
        The model.
    limits
        ``seconds``: a format whose calls would take longer than what is left is not timed.

    Returns
    -------
    Answer
        ``incomplete`` if a format makes an infinity or NaN of its own or raises, or the exact outputs have NaN; else
        ``passed``. That casting everything raises does not count, since there is autocast.

    Raises
    ------
    Exception
        Whatever the model raises as it is on the CPU; what it raises in a format is a part of the answer.
    """
    on = best_device()
    time_budget = Allowance(limits.seconds)
    exact, is_float64 = _compute_exact_outputs(subject)
    has_random = is_random(subject)

    # all run before one is timed: the first, in float32, tells which infinities are no fault of a small format
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
    """Return how the question ends: a NaN in the exact outputs is the model's own, and wants a look as well."""
    if result.nans or any(map(_is_trouble, result.formats)):
        return "incomplete"
    return "passed"


def _is_trouble(run: FormatRun) -> bool:
    """Return True if a format overflows or raises; not where casting everything raises, since there is autocast."""
    is_refused_cast = run.raised is not None and run.how == "cast"
    return not run.is_sound and not is_refused_cast


def _make_formats(subject: ModelUnderTest, on: PyTorchDevice) -> Iterator[Format]:
    """Yield float32, which must come first, then each small format under autocast and with everything cast."""
    in_float32 = _cast(subject, torch.float32).to(on.torch_device)
    no_autocast = torch.autocast(on.kind, enabled=False)
    yield Format("float32", None, in_float32, no_autocast)

    for dtype in (torch.bfloat16, torch.float16):
        name = units.dtype_name(dtype)
        yield Format(name, "autocast", in_float32, torch.autocast(on.kind, dtype))
        yield Format(name, "cast", _cast(in_float32, dtype), no_autocast)


def _to_format_run(
    each: Format, run: Run, in_float32: Run, on: PyTorchDevice, time_budget: Allowance
) -> FormatRun:
    """Return a run in numbers, with what the format costs: time, as time permits, and memory kept for training.

    Infinities that the run ``in_float32`` has at the same places are no fault of a small format, and are left out.
    """
    new = [found for place, found in run.infinities.items() if place not in in_float32.infinities]
    is_number = math.isfinite(run.error)  # JSON has neither infinity nor NaN
    return FormatRun(
        each.dtype,
        each.how,
        error=run.error if is_number else None,
        is_infinite=math.isinf(run.error),
        raised=run.raised,
        infinity=new[0] if new else None,
        time=_time_inference(each, run, on, time_budget),
        kept_bytes=_count_kept_for_backward(each),
    )


@results_made.unheard()
def _time_inference(
    each: Format, run: Run, on: PyTorchDevice, time_budget: Allowance
) -> CallTime | None:
    """Return the time of a call in a format; None if its run raised, or for lack of time, which is noted.

    It takes at most a tenth of what is left, so that all five formats get some; a call that has begun is finished.
    Raises what the model raises now, though it has run once.
    """
    # without a time of the run the calls cannot be planned
    if run.raised is not None or not run.seconds:
        return None
    seconds = CALLS_OF_A_TIMING * run.seconds
    if not time_budget.count(f"timings in {each.name}", each=seconds, wanted=1):
        return None

    budget = timing.Budget(
        min_samples=CALLS_OF_A_TIMING,
        min_seconds=0.1,
        max_seconds=SHARE_OF_A_TIMING * time_budget.left,
    )
    inference = each.autocast(each.subject.inference())
    return call_time(timing.measure(inference, on=on, name=each.name, budget=budget))


def _count_kept_for_backward(each: Format) -> int | None:
    """Return the bytes kept for the backward pass; None if the model raises, which another column reports."""
    with contextlib.suppress(Exception), each.autocast:
        return precision.count_kept_bytes(each.subject.model, each.subject.outputs)
    return None


def is_random(subject: ModelUnderTest, task: Task = "inference") -> bool:
    """Return True if a second call of inference gives other outputs, or a second training step another loss.

    Both start from the same weights, since each works on a copy of the model. Outputs whose shapes differ, or that have
    no finite number, do not count: there is no difference to measure. Raises what the model raises.
    """
    make_run = subject.inference if task == "inference" else subject.training_step
    first, draws = _run_counting_draws(make_run())
    second, _ = _run_counting_draws(make_run())

    steps = [
        torch.finfo(each.dtype).eps for each in tensors_in(first) if each.dtype in MEASURED_IN_STEPS
    ]
    limit = max(steps, default=torch.finfo(torch.float32).eps)
    limit *= RANDOM_IF_DRAWN if draws else RANDOM

    # of a model that returns fewer outputs the second time, those that both have
    pairs = zip(_to_float64_on_cpu(first), _to_float64_on_cpu(second), strict=False)
    return any(_relative_error(one, other) > limit for one, other in pairs)


def _run_counting_draws(run: Callable[[], object]) -> tuple[object, int]:
    """Return what a run returns, and how many operators in it draw random numbers."""
    draws = 0

    def see(operator: Any, args: tuple, kwargs: dict) -> Any:
        nonlocal draws
        draws += torch.Tag.nondeterministic_seeded in operator.tags
        return operator(*args, **kwargs)

    with watching(see):
        returned = run()
    return returned, draws


# ---- a run in a format -----------------------------------------------------------------------------------------------


def run_in_format(
    subject: ModelUnderTest,
    autocast: torch.autocast,
    exact: Sequence[Tensor],
    has_random: bool = False,
) -> Run:
    """Run inference in a number format, compare its outputs, and find where infinite numbers or NaN come up.

    Parameters
    ----------
    subject
        The model, in the format if everything is cast; a copy of it is run in evaluation mode.
    autocast
        What it runs under; switched off where everything is cast, and for float32.
    exact
        The right outputs, in float64 on the CPU.
    has_random
        Whether outputs differ from call to call, so that they cannot be compared.

    Returns
    -------
    Run
        With the exception in place of numbers if the model raises, for example because there is no kernel.
    """
    copy = subject.copy()
    copy.model.eval()
    finder = _NonfiniteFinder(copy)
    began = time.perf_counter()
    try:
        with torch.no_grad(), autocast, finder.modules, watching(finder.see):
            outputs = copy.outputs()
        on_cpu = _to_float64_on_cpu(outputs)  # waits for the device, so the time ends behind it
    except Exception as error:  # noqa: BLE001 - such as no kernel for this format: it is reported
        return Run(raised=str(explain(error)))

    # more than a call takes, since each operator was looked at
    seconds = time.perf_counter() - began
    largest = math.nan if has_random else _largest_error(exact, on_cpu)
    return Run(largest, finder.found, seconds=seconds)


def _largest_error(exact: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Return the largest error of all outputs, over the root mean square of the exact ones.

    Outputs none of whose exact numbers is finite are left out. It is NaN where nothing can be compared: an output has
    another shape than the exact one, or there is no such number at all.
    """
    pairs = list(zip(exact, outputs, strict=False))
    if not all(right.shape == output.shape for right, output in pairs):
        return math.nan
    errors = [_relative_error(right, output) for right, output in pairs if right.numel()]
    # the largest of numbers among which there is NaN depends on their order
    known = [error for error in errors if not math.isnan(error)]
    return max(known, default=math.nan)


class _NonfiniteFinder:
    """Finds the operators of a run that turn finite numbers into infinite ones or NaN.

    Enter `modules` with ``with``, and give `see` to `metallab.pytorch.dispatch.watching`; `found` has the places.
    """

    def __init__(self, subject: ModelUnderTest) -> None:
        """Begin with no place found, for a run of this model, whose weights and inputs are known by their addresses."""
        self.modules = CallingModules()
        self.found: dict[Place, FirstInfinity] = {}

        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        """How many times each module has called each operator."""
        given = (
            *subject.model.parameters(),
            *subject.model.buffers(),
            *tensors_in((subject.inputs, subject.named)),
        )
        self._given = {_address(tensor) for tensor in given if tensor.layout == torch.strided}
        """Addresses of weights and inputs, which a cast may have made infinite."""

    def see(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, note the place if it makes infinite numbers or NaN, and return its result."""
        name = operator.name().partition("::")[2].partition(".")[0]
        # Asked before the call, which may write to its arguments. The name counts, since an operator that only copies
        # makes no numbers: what it returns it has inherited, even from weights and inputs.
        has_inherited = self._has_inherited(name, (args, kwargs))
        result = operator(*args, **kwargs)
        # neither computes numbers: a view has those of its argument, and unwritten memory has any
        if operator.is_view or name.startswith(UNWRITTEN):
            return result

        # the number of the call tells two calls on one line apart, in each format alike
        module = below_root(self.modules.innermost())
        self._counts[module, operator.name()] += 1
        place = module, operator.name(), self._counts[module, operator.name()]

        nonfinite = [] if has_inherited else _list_nonfinite(result)
        if nonfinite:
            # of a result with both, the infinities are named: a NaN is made of them more often than they of it
            is_infinity = any(bool(tensor.isinf().any()) for tensor in nonfinite)
            kind: Literal["infinity", "NaN"] = "infinity" if is_infinity else "NaN"
            line = calling_line(until=run_in_format.__name__)
            self.found[place] = FirstInfinity(kind, module, name, line)
        return result

    def _has_inherited(self, name: str, arguments: Any) -> bool:
        """Return True if an operator is given infinite numbers or NaN that another operator has made.

        Those of weights and inputs count as made by the operator that computes with them, since casting them to a small
        format makes infinities where the user's code has none. An operator that only copies computes nothing: what it
        returns it has inherited, also from weights and inputs.
        """
        return any(
            name in COPIES or _address(tensor) not in self._given
            for tensor in _list_nonfinite(arguments)
        )


def _list_nonfinite(values: Any) -> list[Tensor]:
    """Return the tensors among values, however deep they lie, that have an infinite number or NaN.

    Sparse and nested tensors are left out, because not all operators that look at numbers take them.
    """
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    dense = (each for each in tensors if each.layout == torch.strided and not each.is_nested)
    return [tensor for tensor in dense if any_element(tensor, _mark_nonfinite)]


def _mark_nonfinite(numbers: Tensor) -> Tensor:
    """Return truth values: where a number is infinite or NaN."""
    return ~numbers.isfinite()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# ---- outputs and their errors ----------------------------------------------------------------------------------------


def _cast(
    subject: ModelUnderTest, dtype: torch.dtype, complex_dtype: torch.dtype | None = None
) -> ModelUnderTest:
    """Return a copy of a model with its floating weights and inputs in another dtype.

    Parameters
    ----------
    subject
        The model.
    dtype
        Of floating tensors; integers and truth values stay as they are.
    complex_dtype
        Of complex tensors, which ``module.to(dtype)`` would strip of their imaginary part; None leaves them.
    """

    def cast(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(complex_dtype or tensor.dtype)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return subject.cast(cast)


def _compute_exact_outputs(subject: ModelUnderTest) -> tuple[list[Tensor], bool]:
    """Return the outputs with which those of each format are compared, and whether they were computed in float64.

    A model that raises in float64 is compared with its own outputs; it raises here if it does not run as it is either.
    """
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # of tensors that the model makes on its way
        in_float64 = _cast(subject, torch.float64, complex_dtype=torch.complex128)
        return _to_float64_on_cpu(in_float64.inference()()), True
    except Exception:  # noqa: BLE001 - a model may insist on its own format
        # before its own outputs are computed, and so before `finally`
        torch.set_default_dtype(default)
        return _to_float64_on_cpu(subject.inference()()), False
    finally:
        torch.set_default_dtype(default)


def _to_float64_on_cpu(outputs: object) -> list[Tensor]:
    """Return the floating tensors among outputs in float64 on the CPU, complex ones as pairs of real numbers.

    Integers and truth values are left out, since no format rounds them. The copy waits until the device has computed.
    """
    on_cpu = []
    for tensor in tensors_in(outputs):
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        if real.is_floating_point():
            on_cpu.append(real.detach().cpu().double())
    return on_cpu


def _relative_error(exact: Tensor, result: Tensor) -> float:
    """Return the largest difference over the root mean square of the exact numbers, where these are finite.

    Parameters
    ----------
    exact, result
        Float64 on the CPU.

    Returns
    -------
    float
        NaN if the shapes differ or no exact number is finite; infinite if the result has NaN where the exact number is
        finite; the difference itself where all exact numbers are 0.
    """
    finite = exact.isfinite()
    if exact.shape != result.shape or not finite.any():
        return math.nan

    largest = (exact - result)[finite].abs().max().item()
    if math.isnan(largest):
        return math.inf
    size = root_mean_square(exact[finite])
    return largest / size if size else largest
