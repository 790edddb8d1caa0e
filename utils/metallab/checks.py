"""Correctness before speed: parity with the CPU, tolerances, and how a wrong answer is refused."""

from __future__ import annotations

import copy
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:  # NumPy 1
    from numpy import byte_bounds

from metallab import isolated, judgement, units
from metallab.device import Device


class Mismatch(AssertionError):
    """Outputs that differ by more than their dtype allows."""


class WrongAnswer(AssertionError):
    """An exercise's answer that its check refuses."""

    _render_traceback_ = (
        isolated.ChildFailed._render_traceback_
    )  # where it was raised helps no learner


def wrong_answer(exercise: str, sentence: str) -> WrongAnswer:
    """Return the error to raise for a wrong answer; that it was wrong is left in the notebook's cell for programs.

    Parameters
    ----------
    exercise
        What the page calls it, such as ``Exercise 13.2``.
    sentence
        What is wrong with the answer.
    """
    refused = judgement.Judgement(exercise, "wrong", sentence)
    judgement.publish(refused)
    return WrongAnswer(str(refused))


@dataclass(frozen=True)
class Tolerance:
    """Outputs agree if ``|result - reference| <= relative * (|reference| + size) + absolute`` everywhere.

    ``size`` is that of the whole reference but its masks, a root mean square (`typical_size`). A GPU adds in another
    order than a CPU, and the error of a sum goes with what is added, not with what is left of it: an output near 0
    among outputs of 30 carries the error of its neighbours. ``absolute`` is for references that are 0 but for rounding.
    """

    relative: float
    absolute: float

    def __str__(self) -> str:
        return (
            f"{self.relative:g} of the value plus {self.relative:g} of the array's root mean square"
        )


TOLERANCES = {
    # Two standard-normal matrices whose product has 16384 terms, added one by one in float32, need 9e-6 (half of it at
    # 4096 terms, growing with the square root); with operands cut to TensorFloat-32 they need 1e-3 at any size.
    # So 1e-4 lets every order of adding pass and no lower precision; an NVIDIA H200 needed 2e-6.
    "float32": Tolerance(1e-4, 1e-6),
    "float64": Tolerance(1e-10, 1e-12),
    # The reference is computed in float32. Rounding operands and result of such a product needs 1.2e-3 in float16 and
    # 1e-2 in bfloat16; adding 1024 terms in float16, too, needs 2e-2 and is refused.
    "float16": Tolerance(1e-2, 1e-4),
    "bfloat16": Tolerance(5e-2, 5e-4),
}
_OF_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

COMPARED = "biufcSU"
"""The kinds of NumPy's dtypes that are compared: booleans, whole, floating and complex numbers, and texts."""

MASK_BINS = 27
"""A mask is so many bins of an eighth of an octave, a factor of 10, larger than what it does not hide."""


def tolerance(dtype: Any) -> Tolerance:
    """The tolerance of a dtype, named by a string or by any framework's own; integers and booleans must be equal.

    ValueError for a dtype that has none.
    """
    name = units.dtype_name(dtype)
    if re.fullmatch(r"q?u?int\d*|bool_?", name):
        return Tolerance(0.0, 0.0)
    if (known := _OF_PARTS.get(name, name)) not in TOLERANCES:
        raise ValueError(
            f"there is no tolerance for {name!r}, only for {', '.join(TOLERANCES)} and whole numbers"
        )
    return TOLERANCES[known]


def matches(dtype: Any, truth: Any = None) -> Callable[[Any, Any], None]:
    """A parity check for `metallab.timing.compare`: outputs within the tolerance of ``dtype``, else `Mismatch`.

    Two variants on one device may be wrong alike. With ``truth``, a result from elsewhere, the baseline and the variant
    have both to agree with that. ValueError for a dtype that has no tolerance.
    """
    tolerance(dtype)
    return _Matches(units.dtype_name(dtype), truth)


@dataclass
class _Matches:
    dtype: str
    truth: Any = None

    def __call__(self, reference: Any, result: Any) -> None:
        if self.truth is None:
            assert_close(reference, result, self.dtype)
            return
        for whose, got in (("the baseline's", reference), ("the variant's", result)):
            try:
                assert_close(self.truth, got, self.dtype)
            except Mismatch as difference:
                raise Mismatch(f"{whose} is wrong: {difference}") from None

    def __str__(self) -> str:
        known = "" if self.truth is None else " with a result from elsewhere"
        return f"outputs compared{known} at {self.dtype} tolerance"


def assert_close(reference: Any, result: Any, dtype: Any) -> None:
    """Raise `Mismatch` unless two results agree.

    Of objects that are none of the known containers the arrays are compared, such as those of a language model's cache
    or of a dataclass. An object without any is passed over; `without_arrays` names those of a result.

    Whole numbers, booleans and texts must be equal, whatever ``dtype`` is. NaN agrees with NaN. Results that share
    memory (an ``out=`` that two functions write, a view of it) are a Mismatch too: nothing is learned from them.

    Parameters
    ----------
    reference, result
        Arrays of NumPy, PyTorch (also sparse, quantised and nested ones), TensorFlow, JAX or MLX, on any device;
        numbers and texts; or lists, tuples, dicts and other objects that hold these.
    dtype
        Whose tolerance is allowed.

    Raises
    ------
    TypeError
        For a result that is none of these or has no numbers, such as a tensor on the meta device.
    """
    allowed = tolerance(dtype)
    expected, got = (
        sorted(_leaves(value), key=lambda pair: pair[0]) for value in (reference, result)
    )
    opaque = [part for part, leaf in expected if _is_opaque(leaf)]
    if len(opaque) < len(
        expected
    ):  # if nothing else is there, it is said below what cannot be compared
        expected, got = (
            [pair for pair in pairs if pair[0] not in opaque] for pairs in (expected, got)
        )
    if not expected or not got:
        raise Mismatch(
            "there is nothing to compare: a function returned None or nothing; let it return its result"
        )
    parts, others = ([part for part, _ in pairs] for pairs in (expected, got))
    if parts != others:
        only = [
            [part for part in a if part not in b] for a, b in ((parts, others), (others, parts))
        ]
        raise Mismatch(
            f"the results have different parts: only in the reference {_few(only[0])}, "
            f"only in the result {_few(only[1])}"
        )
    pairs = zip(expected, got, strict=True)
    if not sum(
        [_assert_leaf_close(leaf, other, allowed, part) for (part, leaf), (_, other) in pairs]
    ):
        raise Mismatch("there is nothing to compare: every array is empty")


def assert_matches_cpu(
    fn: Callable[..., Any], *inputs: Any, on: Device, dtype: Any = "float32"
) -> None:
    """Raise `Mismatch` unless ``fn(*inputs)`` gives on a device, in ``dtype``, what the CPU gives in float32.

    ``fn`` is a function of PyTorch tensors or an `nn.Module`; a module and the inputs are copied, so that neither run
    sees what the other did to them. Floating inputs are cast to ``dtype`` for the device's run. float64 is compared in
    float64. On NVIDIA GPUs PyTorch convolves float32 in TensorFloat-32, which is refused here, unless
    ``torch.backends.cudnn.allow_tf32`` is False. ValueError for a dtype that has no tolerance.
    """
    import torch

    name = units.dtype_name(dtype)
    if name not in TOLERANCES:
        raise ValueError(
            f"parity is checked in {', '.join(TOLERANCES)}, not in {name!r}; whole inputs keep their dtype"
        )
    wanted = getattr(torch, name)
    exact = torch.float64 if name == "float64" else torch.float32
    with torch.no_grad():
        reference = _moved(fn, "cpu", exact)(*_moved(inputs, "cpu", exact))
        result = _moved(fn, on.torch_device, wanted)(*_moved(inputs, on.torch_device, wanted))
    on.synchronize()
    assert_close(reference, result, name)


def _leaves(value: Any, part: str = "result") -> Iterator[tuple[str, Any]]:
    """What a nested result is made of, named by where it is; of objects that others define, the arrays."""
    if value is None:
        return
    if getattr(value, "is_nested", False):  # PyTorch's tensors of several shapes in one
        value = list(value.unbind())
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{part}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{part}[{index}]")
    elif _is_array(value) or not _attributes(value):
        yield part, value
    else:
        arrays = list(_arrays_in(value, part, set()))
        yield from arrays or [(part, value)]


def _is_array(value: Any) -> bool:
    """Return whether it is an array of any framework, however many values it has."""
    is_mlx = type(value).__module__ == "mlx.core"
    return is_mlx or hasattr(value, "untyped_storage") or hasattr(value, "__array__")


def _attributes(value: Any) -> dict[str, Any]:
    """Return what an object consists of, by name; nothing of a number or a text."""
    slots = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
    in_slots = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return in_slots | getattr(value, "__dict__", {})


def _slots_of(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    every = [names] if isinstance(names, str) else list(names)
    return [name for name in every if not name.startswith("__")]


def _arrays_in(value: Any, part: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in an object, such as a language model's cache, however deep they lie.

    Numbers and texts beside them are its settings. Modules are left out: their weights are no result.
    """
    if (
        id(value) in seen
        or isinstance(value, type | types.ModuleType)
        or hasattr(value, "parameters")
    ):
        return
    seen.add(id(value))
    if _is_array(value):
        yield part, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _arrays_in(item, f"{part}[{key!r}]", seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from _arrays_in(item, f"{part}[{index}]", seen)
    else:
        for name, item in _attributes(value).items():
            yield from _arrays_in(item, f"{part}.{name}", seen)


def without_arrays(result: Any) -> list[str]:
    """Return the parts of a result that `assert_close` passes over, as there is no array in them, and what they are.

    Parameters
    ----------
    result
        What a function returned.
    """
    return [f"{part} ({type(leaf).__name__})" for part, leaf in _leaves(result) if _is_opaque(leaf)]


def _is_opaque(leaf: Any) -> bool:
    """Return whether a leaf is an object without arrays, numbers or texts."""
    return not _is_array(leaf) and np.asarray(leaf).dtype.kind not in COMPARED


def _few(parts: list[str]) -> str:
    return ", ".join([*parts[:5], *(["..."] if len(parts) > 5 else [])]) or "none"


def _assert_leaf_close(reference: Any, result: Any, allowed: Tolerance, part: str) -> int:
    """Returns how many values were compared."""
    arrays = _as_numpy(reference, part), _as_numpy(result, part)
    one, other = _memory(reference), _memory(result)
    if one and other and one[0] == other[0] and one[1] < other[2] and other[1] < one[2]:
        raise Mismatch(
            f"{part}: both results are in the same memory, so that comparing them shows nothing; let each function "
            "return an output of its own"
        )
    _assert_arrays_close(*arrays, allowed, part)
    return arrays[0].size


def _memory(value: Any) -> tuple[Any, int, int] | None:
    """Where an array of PyTorch or NumPy lies: in whose memory, from which address on and up to which."""
    if isinstance(value, np.ndarray):
        return "cpu", *byte_bounds(value)
    if not hasattr(value, "untyped_storage"):
        return None
    if str(value.layout).startswith("torch.sparse"):
        value = value._values() if str(value.layout) == "torch.sparse_coo" else value.values()
    if str(value.layout) != "torch.strided" or not value.numel():
        return None
    storage, step = value.untyped_storage().data_ptr(), value.element_size()
    first = storage + step * value.storage_offset()
    last = first + step * sum(
        (count - 1) * stride for count, stride in zip(value.shape, value.stride(), strict=True)
    )
    # a device's addresses may be handles: only within one storage can they be told apart
    return "cpu" if value.device.type == "cpu" else (str(value.device), storage), first, last + step


def _as_numpy(value: Any, part: str) -> np.ndarray:
    if hasattr(value, "untyped_storage"):  # PyTorch
        return _tensor_as_numpy(value, part)
    if type(value).__module__ == "mlx.core" and units.dtype_name(value.dtype) == "bfloat16":
        value = value.astype(sys.modules["mlx.core"].float32)  # NumPy has no such buffer
    array = np.asarray(value)
    if array.dtype.name.startswith(
        ("bfloat16", "float8")
    ):  # of ml_dtypes, for JAX and TensorFlow: foreign to NumPy
        return array.astype(np.float32)
    if array.dtype.kind not in COMPARED or isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{part} is a {type(value).__name__}, which cannot be compared; return arrays, numbers, or lists, tuples "
            "and dicts of them"
        )
    return array


def _tensor_as_numpy(value: Any, part: str) -> np.ndarray:
    """A tensor of PyTorch off the graph, off the device, dense, and in a dtype that NumPy has."""
    dtype, layout = units.dtype_name(value.dtype), str(value.layout)
    if value.is_meta:
        raise TypeError(
            f"{part} is on the meta device, which has shapes and no numbers; compute it on a real device"
        )
    try:
        value = value.detach().cpu()
        value = value if layout == "torch.strided" else value.to_dense()
        value = value.dequantize() if value.is_quantized else value.resolve_conj().resolve_neg()
        if dtype == "complex32":
            value = value.cfloat()
        foreign = value.is_floating_point() and not hasattr(np, units.dtype_name(value.dtype))
        return (value.float() if foreign else value).numpy()
    except (RuntimeError, TypeError) as refusal:  # NotImplementedError is a RuntimeError
        raise TypeError(
            f"{part} is a {type(value).__name__} of {dtype} ({layout}), which cannot be compared: "
            f"{units.first_line(refusal)}"
        ) from refusal


def _assert_arrays_close(
    reference: np.ndarray, result: np.ndarray, allowed: Tolerance, part: str
) -> None:
    if reference.shape != result.shape:
        raise Mismatch(f"{part}: shapes differ, {reference.shape} and {result.shape}")
    if not {reference.dtype.kind, result.dtype.kind} <= set("fc"):
        return _assert_equal(reference, result, part)
    # halves overflow soon; by dtype, since NumPy 1 takes the precision of single numbers for accidental
    wide = np.result_type(reference.dtype, result.dtype, np.float32)
    reference, result = reference.astype(wide), result.astype(wide)
    nan = np.isnan(reference)
    if one_sided := np.count_nonzero(nan != np.isnan(result)):
        raise Mismatch(f"{part}: {one_sided} of {reference.size} values are NaN on one side only")
    size = typical_size(reference)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where((reference == result) | nan, 0, np.abs(reference - result))
        limit = allowed.relative * (np.abs(reference) + size) + allowed.absolute
    difference = np.where(np.isnan(difference), np.inf, difference)  # infinite complex numbers
    limit = np.where(np.isfinite(limit), limit, 0)  # an infinity agrees with itself alone
    if wrong := np.count_nonzero(difference > limit):
        worst = np.unravel_index(np.argmax(difference - limit), reference.shape)
        raise Mismatch(
            f"{part}: {wrong} of {reference.size} values differ too much, worst {_at(worst)}{result[worst]:.6g} for "
            f"{reference[worst]:.6g}: {difference[worst]:.3g} apart, and rounding explains at most "
            f"{limit[worst]:.3g}"
        )
    return None


def _assert_equal(reference: np.ndarray, result: np.ndarray, part: str) -> None:
    if "U" in (kinds := {reference.dtype.kind, result.dtype.kind}) and len(kinds) > 1:
        raise Mismatch(f"{part}: {reference.dtype} cannot be equal to {result.dtype}")
    differ = np.asarray(reference != result)
    if wrong := np.count_nonzero(differ):
        first = np.unravel_index(np.argmax(differ), differ.shape)
        whole = reference.dtype if reference.dtype.kind not in "fc" else result.dtype
        raise Mismatch(
            f"{part}: {wrong} of {differ.size} values differ, first {_at(first)}{result[first]} for "
            f"{reference[first]}; {whole} must be equal"
        )


def _at(index: tuple) -> str:
    return f"at {tuple(int(i) for i in index)}: " if index else ""


def typical_size(reference: np.ndarray) -> float:
    """Return the root mean square of the values that carry information: neither 0 nor infinite nor NaN, and no masks.

    A mask such as -1e9 would make any difference elsewhere look small. In real numbers masks are sizes that repeat, all
    but for a few percent, and are 10 times as large as anything else, however many there are. Whatever is above 1000
    times the median of the rest does not count either.
    """
    with np.errstate(over="ignore"):
        sizes = np.abs(reference).astype(np.float64)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not sizes.size:
        return 0.0
    if reference.dtype.kind != "c":  # sizes in the spectrum of real numbers repeat as well
        sizes = _without_masks(sizes)
    sizes = sizes[sizes <= 1000 * np.median(sizes)]
    largest = sizes.max()
    return float(largest * np.sqrt(np.mean((sizes / largest) ** 2)))  # no overflow on the way


def _without_masks(sizes: np.ndarray) -> np.ndarray:
    """Return positive sizes without those at the top that are 10 times larger than the rest and nearly the same.

    Sizes are counted in bins 9 % wide. Masks are three or more in at most two bins that touch; those in a spectrum are
    two. They may be of several kinds: -1e9 and, where two were added, -2e9.
    """
    bins = np.floor(8 * np.log2(sizes)).astype(np.int32)
    bins -= bins.min()
    counts = np.bincount(bins)
    groups = np.split(found := np.flatnonzero(counts), np.flatnonzero(np.diff(found) > 1) + 1)
    keep = len(groups)
    for number in range(len(groups) - 1, 0, -1):
        if len(groups[number]) > 2 or counts[groups[number]].sum() < 3:
            break
        if groups[number][0] - groups[number - 1][-1] > MASK_BINS:
            keep = number
    return sizes[bins <= groups[keep - 1][-1]]


def _moved(value: Any, device: Any, dtype: Any) -> Any:
    """A copy of a tensor or a module, or of those in a list, tuple or dict, on a device in a dtype.

    Integers keep their dtype, and anything else stays as it is.
    """
    import torch

    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device, dtype)
    if isinstance(value, torch.Tensor):
        moved = value.detach().to(
            device, dtype if value.is_floating_point() else value.dtype, copy=True
        )
        return moved.requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(_moved(item, device, dtype) for item in value)
    if type(value) is dict:
        return {key: _moved(item, device, dtype) for key, item in value.items()}
    return value
