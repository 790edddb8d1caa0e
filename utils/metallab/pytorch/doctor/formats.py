"""6: which number format? Error, memory and time of float32, bfloat16 and float16, and where they overflow."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import results_made, timing, units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.pytorch import precision
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.dispatch import CallingModules, below_root, calling_line, explain, watching
from metallab.pytorch.divergence.compare import any_element
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.asking import Limits, best_device, caveat, time_in_words
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table

RANDOM = 1e-3
"""Outputs that differ by more from call to call, over their root mean square, are random."""
UNWRITTEN = ("empty", "new_empty", "resize", "set_")
"""Operators that leave memory uninitialised."""
COPIES = ("copy_", "_to_copy", "clone")
RAISES = "raises:"


@dataclass(frozen=True)
class Format:
    """A run in a number format; as text what the table says of its outputs."""

    error: float = math.nan
    """Largest difference from the exact outputs, over the root mean square; NaN where they cannot be compared."""
    born: Mapping[tuple, str] = field(default_factory=dict)
    """See `_Infinities.born`."""
    trouble: str = ""
    """An exception, or the first infinite number or NaN that float32 does not have."""
    seconds: float = 0.0
    """Of the run; 0 if it raised."""

    def __str__(self) -> str:
        return self.trouble or ("not compared" if math.isnan(self.error) else f"{self.error:.1e}")


def formats(subject: Subject, limits: Limits) -> Answer:
    """Compare float32, bfloat16 and float16, under autocast and with everything cast."""
    on, within = best_device(), Allowance(limits.seconds)
    there = _cast(subject, torch.float32).to(on.torch_device)
    exact, reference = _exact(subject)
    random, plain = is_random(subject), torch.autocast(on.kind, enabled=False)
    ways: dict[str, tuple[Subject, torch.autocast]] = {"float32": (there, plain)}
    for dtype in (torch.bfloat16, torch.float16):
        name = units.dtype_name(dtype)
        ways[f"{name}, autocast"] = there, torch.autocast(on.kind, dtype)
        ways[f"{name}, cast"] = _cast(there, dtype), plain
    found: dict[str, Format] = {}
    for name, way in ways.items():
        found[name] = run_in_format(
            *way, [] if random else exact, found["float32"].born if found else None
        )
    sentences = _in_words(
        found,
        reference,
        "differ from call to call" if random else "are NaN, or no floating numbers",
    )
    if nans := sum(int(t.isnan().sum()) for t in exact):
        sentences.insert(
            0, f"{nans} of {sum(t.numel() for t in exact)} outputs are NaN in {reference} as well."
        )
    costs = {name: _costs(name, *ways[name], each, on, within) for name, each in found.items()}
    rows = [(name, each, *costs[name]) for name, each in found.items()]
    headings = ["format", "error of the outputs", "inference", "kept for the backward pass"]
    evidence = Evidence("Formats", Table(headings, rows, str(within) if within.left_out else ""))
    # where a cast is refused there is autocast as well
    minor = lambda name, trouble: name.endswith(", cast") and trouble.startswith(RAISES)
    careful = nans or any(
        each.trouble and not minor(name, each.trouble) for name, each in found.items()
    )
    status = "incomplete" if careful else "passed"
    return Answer(QUESTIONS[5], status, "\n".join(sentences) + caveat(on), on.label, (evidence,))


def is_random(subject: Subject, task: str = "inference") -> bool:
    """Return True if a second call of inference gives other outputs, or a training step another loss."""
    once, again = (_floating(getattr(subject, task)()()) for _ in range(2))
    return any(_error(a, b) > RANDOM for a, b in zip(once, again, strict=False))


def _in_words(found: Mapping[str, Format], reference: str, why: str) -> list[str]:
    """Return sentences on troubles, and on the distance of the others from the ``reference``."""
    sentences = [f"{name} {each.trouble}." for name, each in found.items() if each.trouble]
    sound = {name: each.error for name, each in found.items() if not each.trouble}
    errors = {name: error for name, error in sound.items() if not math.isnan(error)}
    # where nothing is computed in it, autocast leaves float32's error
    small = {name: error for name, error in errors.items() if error != errors.get("float32")}
    nearest = min(small, key=small.__getitem__, default="")
    choice = f"of the small formats {nearest} is the nearest" if small else "stay with float32"
    if errors:
        listed = ", ".join(f"{error:.1e} in {name}" for name, error in errors.items())
        sentences.append(
            f"Outputs differ from {reference} by up to {listed} of the root mean square: {choice}."
        )
    if others := ", ".join(name for name in sound if name not in errors):
        sentences.append(f"Outputs {why}, and were not compared, in {others}.")
    return sentences


def run_in_format(
    subject: Subject,
    autocast: torch.autocast,
    exact: Sequence[Tensor],
    known: Mapping[tuple, str] | None = None,
) -> Format:
    """Run inference, compare its outputs, and find the first infinite number that is not ``known``."""
    there = subject.copy()
    there.model.eval()
    watched, began = _Infinities(there), time.perf_counter()
    try:
        with torch.no_grad(), autocast, watched.modules, watching(watched.see):
            outputs = there.outputs()
        outputs = _floating(outputs)
    except Exception as error:  # noqa: BLE001 - such as no kernel for this format: it is reported
        return Format(trouble=f"{RAISES} {explain(error)}")
    seconds = time.perf_counter() - began
    pairs = list(zip(exact, outputs, strict=False))
    alike = all(right.shape == got.shape for right, got in pairs)
    errors = [_error(right, got) for right, got in pairs if right.numel()] if alike else []
    new = (
        []
        if known is None
        else [words for place, words in watched.born.items() if place not in known]
    )
    return Format(max(errors, default=math.nan), watched.born, new[0] if new else "", seconds)


class _Infinities:
    """Finds operators that turn finite numbers into infinite ones or NaN; `see` is for `watching`."""

    def __init__(self, subject: Subject) -> None:
        self.modules = CallingModules()
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        own = (
            *subject.model.parameters(),
            *subject.model.buffers(),
            *tensors_in((subject.inputs, subject.named)),
        )
        self.own = {_address(tensor) for tensor in own if tensor.layout == torch.strided}
        """Addresses of weights and inputs, which a cast may have made infinite."""
        self.born: dict[tuple, str] = {}
        """What happens where, by module, operator and number of its call."""

    def see(self, operator: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator and look at its result."""
        short = operator.name().partition("::")[2].partition(".")[0]
        inherited = any(
            short in COPIES or _address(t) not in self.own for t in _infinite((args, kwargs))
        )
        result = operator(*args, **kwargs)
        if operator.is_view or short.startswith(UNWRITTEN):
            return result
        key = (below_root(self.modules.innermost()), operator.name())
        self.counts[key] += 1
        if not inherited and (infinite := _infinite(result)):
            line = calling_line(until=run_in_format.__name__)
            kind = "OVERFLOWS" if any(t.isinf().any() for t in infinite) else "MAKES NaN"
            where = f"{key[0] or 'the model itself'}, {short}{line and f' at {line}'}"
            self.born[*key, self.counts[key]] = f"{kind}, first in {where}"
        return result


def _infinite(values: Any) -> list[Tensor]:
    """Return the dense tensors among values that have an infinite number or NaN."""
    found = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    dense = (t for t in found if t.layout == torch.strided and not t.is_nested)
    return [t for t in dense if any_element(t, lambda numbers: ~numbers.isfinite())]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _cast(subject: Subject, dtype: torch.dtype, wide: torch.dtype | None = None) -> Subject:
    """Return a copy with floating weights and inputs in a dtype, complex ones in ``wide``."""

    def cast(tensor: Tensor) -> Tensor:
        if tensor.is_complex():  # module.to() would drop their imaginary part
            return tensor.to(wide or tensor.dtype)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return subject.cast(cast)


def _exact(subject: Subject) -> tuple[list[Tensor], str]:
    """Return the outputs in float64, or in the model's own format if it does not run in that, and the format's name."""
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)  # of tensors that the model makes on its way
        return _floating(_cast(subject, torch.float64, torch.complex128).inference()()), "float64"
    except Exception:  # noqa: BLE001 - a model may insist on its own format
        torch.set_default_dtype(default)
        return _floating(
            subject.inference()()
        ), "the model as it is, which does not run in float64,"
    finally:
        torch.set_default_dtype(default)


def _floating(outputs: object) -> list[Tensor]:
    """Return floating outputs in float64 on the CPU, complex ones as pairs of real numbers."""
    found = [
        torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors_in(outputs)
    ]
    return [t.detach().cpu().double() for t in found if t.is_floating_point()]


def _error(exact: Tensor, result: Tensor) -> float:
    """Return the largest difference over the root mean square, where the exact number is finite."""
    finite = exact.isfinite()
    if exact.shape != result.shape or not finite.any():
        return math.nan
    apart = (exact - result)[finite].abs().max().item()
    size = exact[finite].square().mean().sqrt().item()
    return math.inf if math.isnan(apart) else apart / size if size else apart


@results_made.unheard()
def _costs(
    name: str, there: Subject, autocast: torch.autocast, ran: Format, on: Device, within: Allowance
) -> tuple[str, str]:
    """Return the time of inference, as time permits, and the bytes kept for the backward pass, in words."""
    seconds, kept = "not timed", "not counted"
    if ran.seconds and within.count(f"timings in {name}", each=5 * ran.seconds, wanted=1):
        budget = timing.Budget(min_samples=5, min_seconds=0.1, max_seconds=within.left / 10)
        seconds = time_in_words(
            timing.measure(autocast(there.inference()), on=on, name=name, budget=budget)
        )
    with (
        contextlib.suppress(Exception),
        autocast,
    ):  # whatever a model raises: another column reports it
        kept = units.size(precision.kept_for_backward(there.model, there.outputs))
    return seconds, kept
