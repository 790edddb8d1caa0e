"""Correctness before speed: parity with the CPU, tolerances, and how a wrong answer is refused."""

from __future__ import annotations

import copy
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:  # NumPy 1
    from numpy import byte_bounds

from metallab import isolated, judgement, units
from metallab.device import PyTorchDevice, require_picked


class Mismatch(AssertionError):
    """Outputs that differ by more than their dtype allows."""


class WrongAnswer(AssertionError):
    """An exercise's answer that its check refuses."""

    # where it was raised helps no learner
    _render_traceback_ = isolated.ChildFailed._render_traceback_


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
    """Return the tolerance of a dtype, named by a string or by any framework's own; whole numbers must be equal.

    ValueError for a dtype that has none.
    """
    name = units.dtype_name(dtype)
    if re.fullmatch(r"q?u?int\d*|bool_?", name):
        return Tolerance(0.0, 0.0)

    known = _OF_PARTS.get(name, name)
    if known not in TOLERANCES:
        raise ValueError(
            f"there is no tolerance for {name!r}, only for {', '.join(TOLERANCES)} and whole numbers"
        )
    return TOLERANCES[known]


def matches(dtype: Any, truth: Any = None, ignore: Any = None) -> Callable[[Any, Any], None]:
    """Return a parity check for `metallab.timing.compare`: outputs agree within the tolerance of a dtype.

    Parameters
    ----------
    dtype
        Whose tolerance is allowed, such as ``"float32"``.
    truth
        A result from elsewhere, with which both outputs have to agree: two variants on one device may be wrong alike.
    ignore
        What not to compare; see `assert_close`.

    Returns
    -------
    Callable
        Takes the baseline's output and a variant's, and raises `Mismatch` where they differ.

    Raises
    ------
    ValueError
        For a dtype that has no tolerance.
    """
    tolerance(dtype)
    return _Matches(units.dtype_name(dtype), truth, ignore)


@dataclass
class _Matches:
    dtype: str
    truth: Any = None
    ignore: Any = None

    def __call__(self, reference: Any, result: Any) -> None:
        if self.truth is None:
            assert_close(reference, result, self.dtype, self.ignore)
            return

        for whose, output in (("the baseline's", reference), ("the variant's", result)):
            try:
                assert_close(self.truth, output, self.dtype, self.ignore)
            except Mismatch as difference:
                raise Mismatch(f"{whose} is wrong: {difference}") from None

    def __str__(self) -> str:
        text = "outputs compared"
        if self.truth is not None:
            text += " with a result from elsewhere"
        if self.ignore is not None:
            text += " but where they are masked"
        return f"{text} at {self.dtype} tolerance"


def assert_close(reference: Any, result: Any, dtype: Any, ignore: Any = None) -> None:
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
    ignore
        Booleans, True where nothing is to be compared: an array that can be broadcast to the output's shape, such as
        the mask of attention, whose scores of -1e9 mean nothing. Of several outputs the masks lie in the same
        containers, with None for an output that is compared as a whole.

    Raises
    ------
    TypeError
        For a result that is none of these or has no numbers, such as a tensor on the meta device, and for an
        ``ignore`` that is no array of booleans.
    ValueError
        For a dtype that has no tolerance, and for an ``ignore`` that fits no output, or is an array where there are
        several.

    Examples
    --------
    >>> reference, result = np.array([1.0, -1e9]), np.array([1.0, -3e38])
    >>> assert_close(reference, result, "float32", ignore=reference < -1e8)
    """
    allowed = tolerance(dtype)
    expected, given = _list_leaves(reference), _list_leaves(result)
    opaque = {part for part, leaf in expected.items() if _is_opaque(leaf)}
    if len(opaque) < len(
        expected
    ):  # if there is nothing else, it is said below what cannot be compared
        expected, given = _leave_out(expected, opaque), _leave_out(given, opaque)

    _require_same_parts(list(expected), list(given))
    masks = _list_masks(ignore, list(expected))

    compared = 0
    for part, leaf in expected.items():
        compared += _assert_leaf_close(_Pair(leaf, given[part], part, masks.get(part)), allowed)
    if not compared:
        why = "every array is empty" if ignore is None else "ignore leaves nothing of any array"
        raise Mismatch(f"there is nothing to compare: {why}")


def _list_leaves(value: Any) -> dict[str, Any]:
    """Return the parts of a result, in the order of their names."""
    return dict(sorted(_leaves(value), key=lambda pair: pair[0]))


def _leave_out(parts: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {part: leaf for part, leaf in parts.items() if part not in names}


def _require_same_parts(expected: list[str], given: list[str]) -> None:
    """Raise `Mismatch` unless two results have the same parts, and at least one."""
    if not expected or not given:
        raise Mismatch(
            "there is nothing to compare: a function returned None or nothing; let it return its result"
        )
    if expected == given:
        return

    only_expected = _list_some([part for part in expected if part not in given])
    only_given = _list_some([part for part in given if part not in expected])
    raise Mismatch(
        f"the results have different parts: only in the reference {only_expected}, "
        f"only in the result {only_given}"
    )


def _list_masks(ignore: Any, parts: list[str]) -> dict[str, np.ndarray]:
    """Return by part the mask of what is not compared there, for the parts that have one; none if ``ignore`` is None.

    ``parts`` are the names of the result's parts; masks lie in the same containers. ValueError for a mask of a part
    that the result does not have, and for a single mask where it has several; TypeError for one that has other values
    than booleans.
    """
    if ignore is None:
        return {}

    masks = _list_leaves(ignore)
    if list(masks) == [ROOT] and parts != [ROOT]:
        raise ValueError(
            f"ignore is one array, and the result has {len(parts)} parts: {_list_some(parts)}; give masks in the same "
            "containers, with None where all is compared"
        )
    if unknown := [part for part in masks if part not in parts]:
        raise ValueError(
            f"ignore has masks for {_list_some(unknown)}, and the result has {_list_some(parts)}"
        )

    arrays = {part: _as_numpy(mask, "ignore") for part, mask in masks.items()}
    for mask in arrays.values():
        if mask.dtype.kind != "b":
            raise TypeError(
                f"ignore has {mask.dtype}: give booleans, True where nothing is compared, such as scores < -1e8"
            )
    return arrays


def assert_matches_cpu(
    fn: Callable[..., Any], *inputs: Any, on: PyTorchDevice, dtype: Any = "float32", **named: Any
) -> None:
    """Raise `Mismatch` unless ``fn(*inputs, **named)`` gives on a device, in a dtype, what the CPU gives in float32.

    float64 is compared in float64. On NVIDIA GPUs PyTorch convolves float32 in TensorFloat-32, which is refused here,
    unless ``torch.backends.cudnn.allow_tf32`` is False.

    Parameters
    ----------
    fn
        A function of PyTorch tensors, or an `nn.Module`. A module and the inputs are copied, so that neither run sees
        what the other did to them.
    inputs
        What it is called with: tensors, and containers and other objects that hold some, such as a batch. Floating
        tensors are cast to ``dtype`` for the device's run.
    on
        The device.
    dtype
        One of `TOLERANCES`.
    named
        What it is called with by name.

    Raises
    ------
    TypeError
        If ``on`` is no device that was picked, and what ``fn`` raises.
    ValueError
        For a dtype that has no tolerance.
    """
    import torch

    require_picked(on)

    name = units.dtype_name(dtype)
    if name not in TOLERANCES:
        raise ValueError(
            f"parity is checked in {', '.join(TOLERANCES)}, not in {name!r}; whole inputs keep their dtype"
        )

    on_device = getattr(torch, name)
    on_cpu = torch.float64 if name == "float64" else torch.float32
    with torch.no_grad():
        reference = _call_there(fn, inputs, named, "cpu", on_cpu)
        result = _call_there(fn, inputs, named, on.torch_device, on_device)
    on.synchronize()

    try:
        assert_close(reference, result, name)
    except Mismatch as difference:
        raise Mismatch(f"{difference}{_propose_evaluation(fn)}") from None


def _call_there(fn: Any, inputs: tuple, named: dict[str, Any], device: Any, dtype: Any) -> Any:
    """Call a copy of a function with copies of what it is given, on a device in a dtype.

    TypeError, with what to give instead, where a function refuses a tuple or a list that is given alone.
    """
    function = _move(fn, device, dtype)
    try:
        return function(*_move(inputs, device, dtype), **_move(named, device, dtype))
    except TypeError as error:
        if len(inputs) != 1 or not isinstance(inputs[0], tuple | list):
            raise
        raise TypeError(
            f"{error}: give the inputs one by one, assert_matches_cpu(fn, x, y, on=...), and without the brackets of a "
            f"{type(inputs[0]).__name__}"
        ) from error


def _propose_evaluation(fn: Any) -> str:
    """Return how to compare a module without random numbers; nothing for one in evaluation mode, or a function."""
    if not getattr(fn, "training", False):
        return ""
    return (
        ". The model is in training mode, in which dropout and the like draw other numbers on each device: call "
        "model.eval() first"
    )


# ---- the parts of a result ---------------------------------------------------------------------------------------

ROOT = "result"
"""The name of a result, with which those of its parts begin."""


def _leaves(value: Any, part: str = ROOT) -> Iterator[tuple[str, Any]]:
    """Yield what a nested result is made of, named by where it is; of objects that others define, the arrays."""
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

    Numbers and texts beside them are its settings. Modules are left out: their weights are no result. ``seen`` has the
    ``id`` of what was looked at: objects may hold each other.
    """
    is_left_out = isinstance(value, type | types.ModuleType) or hasattr(value, "parameters")
    if is_left_out or id(value) in seen:
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


def _list_some(parts: list[str]) -> str:
    """Return the first names of parts, as a text."""
    listed = ", ".join(parts[:5])
    if len(parts) > 5:
        listed += ", ..."
    return listed or "none"


# ---- two arrays ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """Two arrays that are to agree."""

    reference: Any
    result: Any
    part: str
    ignore: np.ndarray | None = None
    """Booleans, True where nothing is compared."""

    def choose(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return booleans, True where the arrays are compared."""
        if self.ignore is None:
            return np.ones(shape, bool)
        try:
            return ~np.broadcast_to(self.ignore, shape)
        except ValueError:
            raise ValueError(
                f"ignore has the shape {self.ignore.shape}, which cannot be broadcast to that of {self.part}, {shape}"
            ) from None


def _assert_leaf_close(pair: _Pair, allowed: Tolerance) -> int:
    """Raise `Mismatch` unless two parts agree; return how many values were compared."""
    reference, result = _as_numpy(pair.reference, pair.part), _as_numpy(pair.result, pair.part)
    if _share_memory(pair.reference, pair.result):
        raise Mismatch(
            f"{pair.part}: both results are in the same memory, so that comparing them shows nothing; let each "
            "function return an output of its own"
        )
    if reference.shape != result.shape:
        raise Mismatch(f"{pair.part}: shapes differ, {reference.shape} and {result.shape}")

    compared = pair.choose(reference.shape)
    if {reference.dtype.kind, result.dtype.kind} <= set("fc"):
        _assert_arrays_close(reference, result, allowed, pair.part, compared)
    else:
        _assert_equal(reference, result, pair.part, compared)
    return np.count_nonzero(compared)


def _share_memory(reference: Any, result: Any) -> bool:
    """Return whether two arrays overlap in memory, as far as that is known."""
    one, other = _memory(reference), _memory(result)
    if one is None or other is None:
        return False
    return one.owner == other.owner and one.begin < other.end and other.begin < one.end


class _Memory(NamedTuple):
    """Where an array lies."""

    owner: Any
    """Whose addresses they are: the CPU's, or those of one allocation on a device."""
    begin: int
    end: int


def _memory(value: Any) -> _Memory | None:
    """Return where an array of PyTorch or NumPy lies; None if that is not known."""
    if isinstance(value, np.ndarray):
        return _Memory("cpu", *byte_bounds(value))
    if not hasattr(value, "untyped_storage"):
        return None

    if str(value.layout).startswith("torch.sparse"):
        value = value._values() if str(value.layout) == "torch.sparse_coo" else value.values()
    if str(value.layout) != "torch.strided" or not value.numel():
        return None

    storage, step = value.untyped_storage().data_ptr(), value.element_size()
    begin = storage + step * value.storage_offset()
    sizes = zip(value.shape, value.stride(), strict=True)
    end = begin + step * (1 + sum((count - 1) * stride for count, stride in sizes))
    # a device's addresses may be handles: only within one storage can they be told apart
    owner = "cpu" if value.device.type == "cpu" else (str(value.device), storage)
    return _Memory(owner, begin, end)


def _as_numpy(value: Any, part: str) -> np.ndarray:
    """Return an array of any framework as one of NumPy; TypeError for what cannot be compared."""
    if hasattr(value, "untyped_storage"):  # PyTorch
        return _tensor_as_numpy(value, part)
    if type(value).__module__ == "mlx.core" and units.dtype_name(value.dtype) == "bfloat16":
        value = value.astype(sys.modules["mlx.core"].float32)  # NumPy has no such buffer
    array = np.asarray(value)
    if array.dtype.name.startswith(("bfloat16", "float8")):
        return array.astype(np.float32)  # of ml_dtypes, for JAX and TensorFlow: foreign to NumPy

    if array.dtype.kind not in COMPARED or isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{part} is a {type(value).__name__}, which cannot be compared; return arrays, numbers, or lists, tuples "
            "and dicts of them"
        )
    return array


def _tensor_as_numpy(value: Any, part: str) -> np.ndarray:
    """Return a tensor of PyTorch off the graph, off the device, dense, and in a dtype that NumPy has."""
    dtype, layout = units.dtype_name(value.dtype), str(value.layout)
    if value.is_meta:
        raise TypeError(
            f"{part} is on the meta device, which has shapes and no numbers; compute it on a real device"
        )

    try:
        value = value.detach().cpu()
        if layout != "torch.strided":
            value = value.to_dense()
        value = value.dequantize() if value.is_quantized else value.resolve_conj().resolve_neg()

        if dtype == "complex32":
            value = value.cfloat()
        elif value.is_floating_point() and not hasattr(np, units.dtype_name(value.dtype)):
            value = value.float()
        return value.numpy()
    except (RuntimeError, TypeError) as refusal:  # NotImplementedError is a RuntimeError
        raise TypeError(
            f"{part} is a {type(value).__name__} of {dtype} ({layout}), which cannot be compared: "
            f"{units.first_line(refusal)}"
        ) from refusal


def _assert_arrays_close(
    reference: np.ndarray,
    result: np.ndarray,
    allowed: Tolerance,
    part: str,
    compared: np.ndarray,
) -> None:
    """Raise `Mismatch` unless floating or complex arrays agree where they are compared."""
    # halves overflow soon; by dtype, since NumPy 1 takes the precision of single numbers for accidental
    wide = np.result_type(reference.dtype, result.dtype, np.float32)
    reference, result = reference.astype(wide), result.astype(wide)
    number = np.count_nonzero(compared)

    nan = np.isnan(reference)
    one_sided = compared & (nan != np.isnan(result))
    if count := np.count_nonzero(one_sided):
        raise Mismatch(
            f"{part}: {count} of {number} values are NaN on one side only"
            f"{_propose_ignore(reference, result, one_sided)}"
        )

    # a number near 0 may be the difference of numbers of this size, and as far off as they are
    size = typical_size(reference[compared])
    with np.errstate(invalid="ignore", over="ignore"):
        is_same = (reference == result) | nan | ~compared
        difference = np.where(is_same, 0, np.abs(reference - result))
        limit = allowed.relative * (np.abs(reference) + size) + allowed.absolute
    difference = np.where(np.isnan(difference), np.inf, difference)  # infinite complex numbers
    limit = np.where(np.isfinite(limit), limit, 0)  # an infinity agrees with itself alone

    wrong = difference > limit
    if count := np.count_nonzero(wrong):
        worst = np.unravel_index(np.argmax(difference - limit), reference.shape)
        raise Mismatch(
            f"{part}: {count} of {number} values differ too much, worst {_at(worst)}{result[worst]:.6g} for "
            f"{reference[worst]:.6g}: {difference[worst]:.3g} apart, and rounding explains at most "
            f"{limit[worst]:.3g}{_propose_ignore(reference, result, wrong)}"
        )


def _propose_ignore(reference: np.ndarray, result: np.ndarray, wrong: np.ndarray) -> str:
    """Return how to leave out what is wrong, where it looks like what a mask hides; else nothing.

    That is what is infinite, or 1000 times larger than the values that carry information, in either array. Where one
    side is NaN, a mask has to be all of it: a few huge numbers among those are what unwritten memory held.
    """
    limit = 1000 * (typical_size(reference) or 1.0)
    with np.errstate(over="ignore"):
        larger = np.fmax(np.abs(reference), np.abs(result))  # which passes over NaN
    huge = np.count_nonzero(larger[wrong] > limit)
    has_nan = bool(np.isnan(np.abs(reference[wrong]) + np.abs(result[wrong])).any())
    if not huge or (has_nan and huge < np.count_nonzero(wrong)):
        return ""
    return (
        f". {huge} of them are larger than {limit:.2g}: if a mask put them there, as -1e9 in the scores of attention, "
        "pass ignore=, booleans that are True where nothing is to be compared"
    )


def _assert_equal(
    reference: np.ndarray, result: np.ndarray, part: str, compared: np.ndarray
) -> None:
    """Raise `Mismatch` unless whole numbers, booleans or texts are equal where they are compared."""
    kinds = {reference.dtype.kind, result.dtype.kind}
    if "U" in kinds and len(kinds) > 1:
        raise Mismatch(f"{part}: {reference.dtype} cannot be equal to {result.dtype}")

    differ = compared & np.asarray(reference != result)
    if wrong := np.count_nonzero(differ):
        first = np.unravel_index(np.argmax(differ), differ.shape)
        whole = reference.dtype if reference.dtype.kind not in "fc" else result.dtype
        raise Mismatch(
            f"{part}: {wrong} of {np.count_nonzero(compared)} values differ, first {_at(first)}{result[first]} for "
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

    # groups of bins that touch, from the small sizes to the large ones
    filled = np.flatnonzero(counts)
    gaps = np.flatnonzero(np.diff(filled) > 1)
    groups = np.split(filled, gaps + 1)

    # from the top down, as long as a group may be a mask; what lies above a wide gap is one
    kept = len(groups)
    for number in range(len(groups) - 1, 0, -1):
        is_narrow = len(groups[number]) <= 2
        if not is_narrow or counts[groups[number]].sum() < 3:
            break
        if groups[number][0] - groups[number - 1][-1] > MASK_BINS:
            kept = number
    return sizes[bins <= groups[kept - 1][-1]]


def _move(value: Any, device: Any, dtype: Any) -> Any:
    """Return a copy of a value on a device in a dtype; see `_Mover`."""
    return _Mover(device, dtype).move(value)


@dataclass
class _Mover:
    """Copies tensors and modules to a device in a dtype, however deep they lie. Integers keep their dtype."""

    device: Any
    dtype: Any
    copies: dict[int, Any] = field(default_factory=dict)
    """By the ``id`` of an object that holds others, what stands for it: it may hold itself."""

    def move(self, value: Any) -> Any:
        """Return a copy of a value; what holds no tensor stays as it is."""
        import torch

        if isinstance(value, torch.nn.Module):
            return copy.deepcopy(value).to(self.device, self.dtype)
        if isinstance(value, torch.Tensor):
            cast = self.dtype if value.is_floating_point() else value.dtype
            moved = value.detach().to(self.device, cast, copy=True)
            return moved.requires_grad_(value.requires_grad)

        if isinstance(value, tuple):
            return self._move_tuple(value)
        if type(value) is list:
            return [self.move(item) for item in value]
        if type(value) is dict:
            return {key: self.move(item) for key, item in value.items()}
        return self._move_object(value)

    def _move_tuple(self, value: tuple) -> Any:
        """Return a copy of a tuple, or of one with names, such as a packed sequence; itself if nothing in it moves."""
        moved = [self.move(item) for item in value]
        if all(one is other for one, other in zip(moved, value, strict=True)):
            return value
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)

    def _move_object(self, original: Any) -> Any:
        """Return a copy of an object with what it consists of moved; itself if nothing of that is."""
        is_shared = type | types.ModuleType | types.FunctionType | types.MethodType
        if isinstance(original, is_shared) or not _attributes(original):
            return original
        if id(original) in self.copies:
            return self.copies[id(original)]
        self.copies[id(original)] = original  # until it is known that something in it moves

        held = _attributes(original)
        moved = {name: self.move(item) for name, item in held.items()}
        if all(moved[name] is held[name] for name in held):
            return original

        copied = self.copies[id(original)] = copy.copy(original)
        for name, item in moved.items():
            object.__setattr__(copied, name, item)  # a frozen dataclass refuses an assignment
        return copied
