"""6: which number format? Error, memory and time of float32, bfloat16 and float16, and where they overflow."""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from metallab import timing, units
from metallab.allowance import Allowance
from metallab.device import Device
from metallab.pytorch import precision
from metallab.pytorch.copies import tensors_in
from metallab.pytorch.dispatch import CallingModules, below_root, calling_line, explain, watching
from metallab.pytorch.doctor.answer import QUESTIONS, Answer, Evidence
from metallab.pytorch.doctor.common import Limits, best_device, caveat, time_in_words
from metallab.pytorch.doctor.subject import Subject
from metallab.tables import Table

SMALL = (torch.bfloat16, torch.float16)
RANDOM = 1e-3
"""Outputs that differ by more from call to call, over their root mean square, are random."""
UNWRITTEN = ("empty", "new_empty", "resize", "set_")
"""Operators that leave memory uninitialised."""


@dataclass(frozen=True)
class Format:
    """The outputs in a number format."""

    error: float = math.nan
    """Largest difference from the exact outputs, over the root mean square; NaN where they cannot be compared."""
    born: Mapping[tuple, str] = field(default_factory=dict)
    """See `_Infinities.born`."""
    first: str = ""
    """The first that float32 does not have."""
    finite: bool = True
    """Whether the outputs are."""
    refused: str = ""
    """The error that was raised."""
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.refused:
            return f"raises: {self.refused}"
        if self.first:
            return f"infinite or NaN, first in {self.first}"
        return "not compared" if math.isnan(self.error) else f"{self.error:.1e}"


def formats(subject: Subject, limits: Limits) -> Answer:
    """Compare float32, bfloat16 and float16, under autocast and with everything cast."""
    on, within = best_device(), Allowance(limits.seconds)
    there = _cast(subject, torch.float32).to(on.torch_device)
    exact, reference = _exact(subject)
    unfit = _not_comparable(subject, exact)
    compared = [] if unfit else exact
    ways: dict[str, tuple[Subject, torch.dtype | None]] = {"float32": (there, None)}
    for dtype in SMALL:
        name = units.dtype_name(dtype)
        ways |= {f"{name}, autocast": (there, dtype), f"{name}, cast": (_cast(there, dtype), None)}
    plain = run_in_format(there, on, compared)
    found = {name: run_in_format(each, on, compared, autocast, plain.born) for name, (each, autocast) in ways.items()}
    sentences = _in_words(found, reference, unfit or "are empty or of another size than in float64")
    nans = sum(int(t.isnan().sum()) for t in compared)
    if nans:
        sentences.insert(0, f"{nans} of {sum(t.numel() for t in exact)} outputs are NaN in float64 as well.")
    # where a cast is refused there is autocast as well
    refused = any(each.refused for name, each in found.items() if not name.endswith(", cast"))
    all_nan = bool(exact) and all(t.isnan().all() for t in exact)
    careful = nans or all_nan or refused or any(each.first for each in found.values())
    kept, times = _kept(there, on), _times(ways, found, on, within)
    rows = [(name, each, times.get(name, "not timed"), kept.get(name, "not counted")) for name, each in found.items()]
    headings = ["format", "error of the outputs", "inference", "kept for the backward pass"]
    evidence = Evidence("Formats", Table(headings, rows, str(within) if within.left_out else ""))
    status = "incomplete" if careful else "passed"
    return Answer(QUESTIONS[5], status, "\n".join(sentences) + caveat(on), on.label, (evidence,))


def _not_comparable(subject: Subject, exact: Sequence[Tensor]) -> str:
    """Return why outputs cannot be compared with the exact ones, or ''."""
    if not exact:
        return "have no numbers with a fraction"
    if all(t.isnan().all() for t in exact):
        return "are all NaN in float64 as well"
    return "differ from call to call, since something in it is random" if is_random(subject) else ""


def is_random(subject: Subject, task: str = "inference") -> bool:
    """Return True if a second call of inference gives other outputs, or a training step another loss."""
    once, again = (_floating(getattr(subject, task)()()) for _ in range(2))
    return any(_error(a, b) > RANDOM for a, b in zip(once, again, strict=False))


def _in_words(found: Mapping[str, Format], reference: str, unfit: str) -> list[str]:
    """Return sentences on overflows, errors, and the distance of the others from the ``reference``."""
    hidden = "; its outputs are finite and may be wrong all the same"
    sentences = [
        f"{name} {'MAKES NaN' if each.first.endswith('(NaN)') else 'OVERFLOWS'}, "
        f"first in {each.first}{hidden if each.finite else ''}."
        for name, each in found.items() if each.first
    ]  # fmt: skip
    sentences += [f"{name} raises ({each.refused})." for name, each in found.items() if each.refused]
    sound = {name: each.error for name, each in found.items() if not each.first and not each.refused}
    errors = {name: error for name, error in sound.items() if not math.isnan(error)}
    # where nothing is computed in it, autocast leaves float32's error
    small = {name: error for name, error in errors.items() if error != errors.get("float32")}
    nearest = min(small, key=small.__getitem__, default="")
    choice = f"of the small formats {nearest} is the nearest" if small else "stay with float32"
    if errors:
        listed = ", ".join(f"{error:.1e} in {name}" for name, error in errors.items())
        sentences.append(f"Outputs differ from {reference} by up to {listed} of the root mean square: {choice}.")
    if others := ", ".join(name for name in sound if name not in errors):
        sentences.append(f"Outputs {unfit}, and were not compared, in {others}.")
    return sentences


def run_in_format(
    subject: Subject,
    on: Device,
    exact: Sequence[Tensor],
    autocast: torch.dtype | None = None,
    known: Mapping[tuple, str] | None = None,
) -> Format:
    """Run inference, compare its outputs, and find the first infinite number that is not ``known``."""
    there, watched = subject.copy(), _Infinities()
    there.model.eval()
    began = time.perf_counter()
    try:
        with torch.no_grad(), _autocast(on, autocast), watched.modules, watching(watched.see):
            outputs = there.outputs()
        outputs = _floating(outputs)
    except Exception as error:  # noqa: BLE001 - such as no kernel for this format: it is reported
        return Format(refused=str(explain(error)))
    pairs = list(zip(exact, outputs, strict=False))
    alike = all(right.shape == got.shape for right, got in pairs)
    errors = [_error(right, got) for right, got in pairs if right.numel()] if alike else []
    first = next((words for place, words in watched.born.items() if place not in (known or {})), "")
    finite, seconds = not any(map(_is_infinite, outputs)), time.perf_counter() - began
    return Format(max(errors, default=math.nan), watched.born, first if known is not None else "", finite, "", seconds)


class _Infinities:
    """Finds operators that turn finite numbers into infinite ones or NaN; `see` is for `watching`."""

    def __init__(self) -> None:
        self.modules = CallingModules()
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.infinite: set[int] = set()
        """Addresses of memory with an infinite number."""
        self.born: dict[tuple, str] = {}
        """The place in words, by module, operator and number of its call."""

    def see(self, operator: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator and look at its result."""
        inherited = any(_address(tensor) in self.infinite for tensor in _tensors((args, kwargs)))
        result = operator(*args, **kwargs)
        short = operator.name().partition("::")[2].partition(".")[0]
        if operator.is_view or short.startswith(UNWRITTEN):
            return result
        key = (below_root(self.modules.innermost()), operator.name())
        self.counts[key] += 1
        copied = short == "copy_" and any(map(_is_infinite, _tensors(args[1:])))  # such as memory that nobody wrote
        for tensor in _tensors(result):
            self.infinite.discard(_address(tensor))
            if _is_infinite(tensor) and (inherited or not copied):
                self.infinite.add(_address(tensor))
                if not inherited:
                    line = calling_line(until=run_in_format.__name__)
                    words = f"{key[0] or 'the model itself'}, {short}{line and f' at {line}'}"
                    self.born.setdefault((*key, self.counts[key]), words + " (NaN)" * (not tensor.isinf().any()))
        return result


def _tensors(values: Any) -> list[Tensor]:
    """Return the dense floating tensors of at least 16 bits among values."""
    found = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return [t for t in found if t.layout == torch.strided and not t.is_nested and t.itemsize > 1]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_infinite(tensor: Tensor) -> bool:
    return not tensor.sum().isfinite() and not bool(tensor.isfinite().all())  # a sum is quick


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
        return _floating(subject.inference()()), "the model as it is, which does not run in float64,"
    finally:
        torch.set_default_dtype(default)


def _autocast(on: Device, dtype: torch.dtype | None) -> torch.autocast:
    """Autocast context for ``dtype``; disabled if it is None."""
    return torch.autocast(on.kind, dtype=dtype, enabled=dtype is not None)


def _floating(outputs: object) -> list[Tensor]:
    """Return floating outputs in float64 on the CPU, complex ones as pairs of real numbers."""
    found = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors_in(outputs)]
    return [t.detach().cpu().double() for t in found if t.is_floating_point()]


def _error(exact: Tensor, result: Tensor) -> float:
    """Return the largest difference over the root mean square, where the exact number is finite."""
    finite = exact.isfinite()
    if exact.shape != result.shape or not finite.any():
        return math.nan
    apart = (exact - result)[finite].abs().max().item()
    size = exact[finite].square().mean().sqrt().item()
    return math.inf if math.isnan(apart) else apart / size if size else apart


def _kept(subject: Subject, on: Device) -> dict[str, str]:
    """Return the bytes kept for the backward pass, under autocast, in words; none if the model raises there."""
    kept = {}
    for dtype in (None, *SMALL):
        name = f"{units.dtype_name(dtype)}, autocast" if dtype else "float32"
        try:
            with _autocast(on, dtype):
                kept[name] = units.size(precision.kept_for_backward(subject.model, subject.outputs))
        except Exception:  # noqa: BLE001 - whatever a model raises: another column reports it
            return {}
    return kept


def _times(
    ways: Mapping[str, tuple[Subject, torch.dtype | None]], found: Mapping[str, Format], on: Device, within: Allowance
) -> dict[str, str]:
    """Return the times of the accepted formats, in words, as time permits."""
    times, accepted = {}, [name for name, each in found.items() if not each.refused]
    for name in accepted:
        if within.count(f"timings in {name}", each=max(5 * found[name].seconds, 1e-6), wanted=1):
            there, autocast = ways[name]
            budget = timing.Budget(min_samples=5, min_seconds=0.1, max_seconds=within.left / 2 / len(accepted))
            call = _autocast(on, autocast)(there.inference())
            times[name] = time_in_words(timing.measure(call, on=on, name=name, budget=budget))
    return times
