"""Which calls a Metal kernel refuses, in a Mac's words, and what to do instead.

A rule is a predicate of a call's arguments, by the names of the operator's schema. It returns the fields of the words,
True where they have none, or None for a call that runs. It sees shapes, dtypes and settings but no numbers, so it works
for tensors of every device, ``meta`` included.

A rule holds for the versions of PyTorch from `Rule.since` to `Rule.until`; an empty one is no limit. A version that is
newer than the newest here has the newest's rules. `for_version` chooses.

The words were read from the macOS wheels of PyTorch 2.11.0, 2.12.0, 2.13.0, 2.14.1 and 2.15.0, and of torchvision
0.26.0, 0.27.0, 0.28.0 and 0.29.2: ``make check-mac`` compares them again, of other versions ``python tools/check_mac.py
--torch all``. Which version says them was read from the function of the library that refers to them.

The conditions and the exceptions of 2.15 were read from the source files that are named below, under
``aten/src/ATen/native/mps/operations``, and compared with PyTorch's own list for its Macs
(``tools/expected_on_macs.py``); numbers and dtypes that the list does not have, with the machine code of the wheels.
They are taken to be the same in all versions that have the words. Those of a rule with ``until`` were read from older
source, and compared with what the older machine code throws; of ``adaptive_max_pool2d``, ``batch_norm``, ``gather``,
``linear`` of complex numbers, ``softplus`` and 2.13's ``kthvalue`` no such source was found, and the condition is
what the words say.

Where a rule begins later than its operator's kernel, and nothing stands beside it for the versions before, the older
kernel has no words for the call: whether it computes it, or what Metal says instead, is not known. The call is taken
for one that runs.

None of it was run on a Mac.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metalsim.refusals import versions

if TYPE_CHECKING:
    import torch

Predicate = Callable[..., Mapping[str, object] | bool | None]
DtypePredicate = Callable[["torch.dtype"], bool]


@dataclass(frozen=True)
class Rule:
    """One thing that a kernel refuses."""

    words: str
    """What a Mac says, with fields for `str.format`."""
    error: type[Exception]
    """What it raises."""
    way_out: str
    """What to do, for people: a part of a sentence."""
    refuses: Predicate
    since: str = ""
    """The first version of PyTorch that says so, such as ``2.13``; empty: all known ones, up to and with `until`."""
    until: str = ""
    """The last version that says so; empty: all later ones."""


RULES: dict[str, list[Rule]] = {}
"""Those of all versions, by operator, without its overload, in the order of the kernel's checks."""


def for_version(version: str) -> Mapping[str, Sequence[Rule]]:
    """Return the rules of a version of PyTorch, such as ``2.13.0``, by operator; operators without one are left out."""
    by_operator = {}
    for operator, rules in RULES.items():
        held = [rule for rule in rules if versions.is_between(version, rule.since, rule.until)]
        if held:
            by_operator[operator] = held
    return by_operator


FLOAT = "call it with floating-point numbers: .float() first"
REAL = "compute with the real and the imaginary part"
WHOLE = "call it with whole numbers"
INT = "call .int() first"
CPU = "move the tensor to the CPU for this call"

# What C++ calls them.
NAMES = {
    "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float64": "Double", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat",
    "complex32": "ComplexHalf", "complex128": "ComplexDouble",
}  # fmt: skip


def refuse(
    operators: str,
    words: str,
    way_out: str,
    error: type[Exception] = RuntimeError,
    since: str = "",
    until: str = "",
) -> Callable[[Predicate], Predicate]:
    """Return a decorator that makes a predicate a rule of these operators and of their in-place and ``out=`` forms.

    Parameters
    ----------
    operators
        Names with blanks between them, without overload; those of another library with its name.
    words
        What a Mac says, with fields that the predicate fills.
    way_out
        What to do, for people: a part of a sentence.
    error
        What is raised.
    since, until
        The first and the last version of PyTorch that says so; empty: no limit.
    """

    def add(predicate: Predicate) -> Predicate:
        for operator in operators.split():
            full_name = operator if "::" in operator else f"aten::{operator}"
            rule = Rule(words, error, way_out, predicate, since, until)
            RULES.setdefault(full_name, []).append(rule)
        return predicate

    return add


def by_dtype(  # noqa: PLR0913 - each is a field of the rule, and calls name it
    operators: str,
    refuses: DtypePredicate,
    words: str,
    way_out: str | None = None,
    error: type[Exception] = NotImplementedError,
    since: str = "",
    until: str = "",
) -> None:
    """Make a rule about the dtype that the operator computes in, to which its arguments are promoted.

    Of the arguments the first two that `_OPERANDS` names are looked at.

    Parameters
    ----------
    operators
        Names with blanks between them, without ``aten::`` and overload.
    refuses
        Tells of a dtype whether the kernel refuses it.
    words
        What a Mac says; ``{dtype}`` is what C++ calls the dtype.
    way_out
        What to do; the usual one for such dtypes if None (`USUAL_WAY_OUT`).
    error
        What is raised.
    since, until
        The first and the last version of PyTorch that says so; empty: no limit.
    """

    def predicate(**arguments: Any) -> Mapping[str, object] | None:
        dtype = _find_dtype(arguments)
        if dtype is None or not refuses(dtype):
            return None
        return {"dtype": name(dtype)}

    if way_out is None:
        way_out = USUAL_WAY_OUT.get(refuses, FLOAT)
    refuse(operators, words, way_out, error, since, until)(predicate)


def name(dtype: torch.dtype) -> str:
    """Return ``Float`` for ``torch.float32``."""
    return NAMES.get(str(dtype).removeprefix("torch."), str(dtype))


def _find_dtype(arguments: Mapping[str, Any]) -> torch.dtype | None:
    """Return the dtype to which the first two operands are promoted; None for a call without a tensor among them."""
    import torch

    given = [value for key, value in arguments.items() if key in _OPERANDS and value is not None]
    operands = given[:2]
    if not any(isinstance(operand, torch.Tensor) for operand in operands):
        return None
    return operands[0].dtype if len(operands) == 1 else torch.result_type(*operands)


_OPERANDS = ("self", "input", "other", "x", "n", "grad_output", "A")


def complex_(dtype: torch.dtype) -> bool:
    """Return whether numbers have an imaginary part."""
    return dtype.is_complex


def not_floating(dtype: torch.dtype) -> bool:
    """Return whether it is another one than real floating-point numbers."""
    return not dtype.is_floating_point


def not_a_number(dtype: torch.dtype) -> bool:
    """Return whether kernels do not compute with it as with floating-point numbers, real or complex; float8 is none."""
    if dtype.itemsize == 1:
        return True
    return not (dtype.is_floating_point or dtype.is_complex)


def not_whole(dtype: torch.dtype) -> bool:
    """Return whether there are numbers between its numbers."""
    return dtype.is_floating_point or dtype.is_complex


def is_(*names: str) -> DtypePredicate:
    """Return a function that tells whether a dtype has one of these names, such as ``int64``."""

    def is_one(dtype: torch.dtype) -> bool:
        return str(dtype).removeprefix("torch.") in names

    return is_one


def complex_or_bool(dtype: torch.dtype) -> bool:
    """Return whether numbers are complex, or bools."""
    return dtype.is_complex or is_("bool")(dtype)


def not_float32(dtype: torch.dtype) -> bool:
    """Return whether it is another one than float32."""
    return not is_("float32")(dtype)


def not_float_or_half(dtype: torch.dtype) -> bool:
    """Return whether it is another one than float32 and float16."""
    return not is_("float32", "float16")(dtype)


USUAL_WAY_OUT: Mapping[DtypePredicate, str] = {complex_: REAL, not_whole: WHOLE}
"""What to do where a kernel refuses such dtypes, unless a rule says more; of all others `FLOAT`."""


# ---- Activation.mm, ActivationKernel.mm, SoftMax.mm -----------------------------------------------------------------

by_dtype("elu", not_floating, "\"elu_mps\" not implemented for '{dtype}'")
by_dtype("elu_backward", not_floating, "\"elu_backward_mps\" not implemented for '{dtype}'")
by_dtype("softplus", is_("int64"), "Not implemented for long", until="2.14")
by_dtype("softplus", not_floating, "softplus not implemented for {dtype}", since="2.15")
by_dtype(
    "softplus_backward", not_floating, "softplus_backward not implemented for {dtype}", since="2.15"
)

# log_softmax checked nothing about this conversion before 2.15.
for _kernel, _since in (("softmax", ""), ("log_softmax", "2.15")):
    _TO_FLOAT = f"{_kernel} with half to float conversion is not supported on MPS"
    _CONVERT = "convert first: x.float(), then without dtype="

    refuse(f"_{_kernel}", _TO_FLOAT, _CONVERT, since=_since)(
        lambda half_to_float=False, **_: half_to_float
    )

    _NOT_FOR = f"{_kernel} not implemented on MPS for {{dtype}}"
    by_dtype(f"_{_kernel}", not_floating, _NOT_FOR, since="2.15")

_SOFTMAX = "softmax only supported for floating types"
by_dtype("_softmax", not_floating, _SOFTMAX, error=RuntimeError, until="2.14")

for _operator, _until in (("_log_softmax", "2.14"), ("_log_softmax_backward_data", "")):
    _OF_DTYPE = "log_softmax for {} is not supported for MPS"
    by_dtype(_operator, is_("int64"), "MPS doesn't know how to do exponent_i64", until=_until)
    by_dtype(_operator, complex_, _OF_DTYPE.format("complex"), until=_until)
    by_dtype(_operator, is_("bool"), _OF_DTYPE.format("bool"), until=_until)


# ---- AdaptivePooling.mm, Pooling.mm ---------------------------------------------------------------------------------

_ADAPTIVE = "_adaptive_avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d_backward"
_ONE_DIVIDES = (
    "sizes must be divisible by {small} sizes. Non-divisible input sizes are not implemented on MPS device yet. For "
    "now, you can manually transfer tensor to cpu in this case. Please refer to [this issue](https://github.com/pytorch/"
    "pytorch/issues/96056)"
)
_DIVIDE = (
    "choose an output size that divides the input's, resize or pad the input to a multiple of it "
    "(torch.nn.functional.interpolate or pad), or pool on the CPU"
)
_MULTIPLE = "choose an output size that is a multiple of the input's, or use torch.nn.functional.interpolate"
_BOTH_WAYS = (
    "Adaptive pool MPS: Input height and width must both be greater than, or equal to, or lesser than output height "
    "and width"
)


def _compare_sizes(rule: Callable[[tuple[int, int], tuple[int, int]], bool]) -> Predicate:
    """Return a predicate made of a rule about height and width before and after pooling."""

    def predicate(**arguments: Any) -> bool:
        after = arguments.get("output_size") or arguments["grad_output"].shape[-2:]
        return rule(tuple(arguments["self"].shape[-2:]), tuple(after))

    return predicate


def _divides(divisors: tuple[int, int], sizes: tuple[int, int]) -> bool:
    """Return whether height and width are multiples of two sizes."""
    return all(
        divisor and size % divisor == 0 for divisor, size in zip(divisors, sizes, strict=True)
    )


_SHRINKS_UNEVENLY = "Adaptive pool MPS: input " + _ONE_DIVIDES.format(small="output")
_GROWS_UNEVENLY = "Adaptive pool MPS: output " + _ONE_DIVIDES.format(small="input")
_TWO_STEPS = "pool in two steps, one for each direction, or on the CPU"
_one_side_grows = _compare_sizes(
    lambda before, after: (before[0] - after[0]) * (before[1] - after[1]) < 0
)

refuse(_ADAPTIVE, _BOTH_WAYS, _TWO_STEPS)(_one_side_grows)
refuse("adaptive_max_pool2d adaptive_max_pool2d_backward", _BOTH_WAYS, _TWO_STEPS, until="2.12")(
    _one_side_grows
)
refuse(_ADAPTIVE, _SHRINKS_UNEVENLY, _DIVIDE)(
    _compare_sizes(lambda before, after: before[0] >= after[0] and not _divides(after, before))
)
refuse(_ADAPTIVE, _GROWS_UNEVENLY, _MULTIPLE)(
    _compare_sizes(lambda before, after: before[0] < after[0] and not _divides(before, after))
)

_MAX_POOL = (
    "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool2d max_pool2d_backward"
)
_ADAPTIVE_MAX = "Adaptive max pooling{} for complex is not supported for MPS"
_NO_COMPLEX_AVERAGE = "Not implemented for complex"
by_dtype("adaptive_max_pool2d", complex_, _ADAPTIVE_MAX.format(""), since="2.14")
by_dtype("adaptive_max_pool2d_backward", complex_, _ADAPTIVE_MAX.format(" backward"), since="2.14")
by_dtype(_MAX_POOL, complex_, "Max pooling for complex is not supported for MPS")
by_dtype("avg_pool2d avg_pool2d_backward", complex_, _NO_COMPLEX_AVERAGE)
by_dtype("avg_pool3d avg_pool3d_backward", complex_, _NO_COMPLEX_AVERAGE, since="2.14")


# ---- Attention.mm ---------------------------------------------------------------------------------------------------

_ATTENTION = "_scaled_dot_product_attention_math_for_mps"
_NO_ATTENTION = "scaled_dot_product_attention for MPS does not support "
_WITHOUT_DROPOUT = (
    "call .eval() on a part that you do not train, or pass dropout_p=0.0; where a gradient is needed, PyTorch uses "
    "separate operators, which support dropout"
)


@refuse(_ATTENTION, _NO_ATTENTION + "dtype {dtype}", FLOAT, NotImplementedError)
def _attention_dtype(query: Any, key: Any, value: Any, **_: Any) -> Mapping[str, object] | None:
    for tensor in (query, key, value):
        if not_floating(tensor.dtype):
            return {"dtype": name(tensor.dtype)}
    return None


# Wherever no gradient is wanted PyTorch takes this operator for attention (transformers/attention.cpp), in 2.15 also
# with dropout: in the Mac's library that function compares dropout_p with nothing. Before 2.13 no kernel has the words.
refuse(_ATTENTION, _NO_ATTENTION + "dropout.", _WITHOUT_DROPOUT, NotImplementedError, since="2.13")(
    lambda dropout_p=0.0, **_: dropout_p > 0
)


# ---- BinaryKernel.mm, PointwiseOps.mm, TensorCompare.mm, UnaryKernel.mm, UnaryOps.mm --------------------------------

by_dtype("gcd", not_whole, "gcd_mps not implemented for {dtype}")
by_dtype("lcm", not_whole, "lcm_mps not implemented for {dtype}", since="2.13")
for _shift in ("bitwise_left_shift", "bitwise_right_shift"):
    by_dtype(_shift, not_whole, f"{_shift} not implemented for {{dtype}}", since="2.13")
by_dtype(
    "igamma special_gammainc",
    not_floating,
    "igamma_mps not implemented for {dtype}",
    error=TypeError,
    since="2.14",
)
by_dtype(
    "igammac special_gammaincc",
    not_floating,
    "igammac_mps not implemented for {dtype}",
    error=TypeError,
    since="2.14",
)
by_dtype(
    "logaddexp2", not_floating, "\"logaddexp2_mps\" not implemented for '{dtype}'", since="2.14"
)
by_dtype(
    "nextafter",
    not_floating,
    "nextafter_mps not implemented for non-floating types",
    error=TypeError,
)
for _special in (
    "xlog1py", "zeta", "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w", "hermite_polynomial_h",
    "hermite_polynomial_he",
):  # fmt: skip
    _NOT_FLOATING = f"{_special}_mps not implemented for non-floating types"
    by_dtype(
        f"special_{_special}", complex_, _NOT_FLOATING, error=TypeError
    )  # whole numbers are promoted before
by_dtype("addcmul", is_("bool"), "addcmul_mps not implemented for 'Bool'", since="2.15")
by_dtype(
    "clamp clamp_min clamp_max", complex_, "\"clamp_scalar_mps\" not implemented for '{dtype}'"
)
by_dtype(
    "frac", not_floating, "frac_out_mps is only implemented for floating types", error=RuntimeError
)


# ---- Convolution.mm -------------------------------------------------------------------------------------------------

_CONVOLUTIONS = "convolution convolution_overrideable _mps_convolution _mps_convolution_transpose"
_HALF_3D = "ConvTranspose 3D with BF16 or FP16 types is not supported on MPS"
_IN_FLOAT = (
    "compute this layer in float32; under autocast, with torch.autocast('mps', enabled=False) around it "
    "and .float()"
)
_SMALLER = "update to macOS 15.1 or newer, where it runs, or work in parts of at most 65536 in each dimension"


@refuse(_CONVOLUTIONS, "Convolution is supported only for Floating types", FLOAT)
def _convolution_of_whole_numbers(input: Any = None, self: Any = None, **_: Any) -> bool:
    image = input if input is not None else self
    is_complex = image.is_complex()  # those were split into real ones
    return not image.dtype.is_floating_point and not is_complex


@refuse("convolution convolution_overrideable", _HALF_3D, _IN_FLOAT)
def _half_transposed_3d(input: Any, transposed: bool = False, **_: Any) -> bool:
    return (
        transposed and input.dim() == 5 and str(input.dtype) in ("torch.float16", "torch.bfloat16")
    )


LARGEST_BEFORE_15_1 = 2**16
"""The largest size of a convolution's result before macOS 15.1, in any dimension, whatever the message speaks of."""


@functools.cache
def macos() -> tuple[int, ...]:
    """Return a Mac's version; elsewhere 15.0, the oldest that PyTorch takes, as the simulated device reports."""
    version = platform.mac_ver()[0]
    return tuple(map(int, version.split(".")[:2])) if version else (15, 0)


@refuse(
    _CONVOLUTIONS,
    "Output channels > 65536 not supported at the MPS device. ",
    _SMALLER,
    NotImplementedError,
)
def _large_convolution(
    input: Any = None, self: Any = None, transposed: bool = False, **settings: Any
) -> bool:
    image = input if input is not None else self
    sizes = tuple(image.shape) if transposed else _sizes_of_convolution(image, **settings)
    if macos() >= (15, 1) or not all(sizes):
        return False
    return max(sizes) > LARGEST_BEFORE_15_1


def _sizes_of_convolution(
    image: Any, weight: Any, stride: Any, padding: Any, dilation: Any, **_: Any
) -> tuple[int, ...]:
    """Return the shape of a convolution's result, also of one that no device takes."""
    kernel = weight.shape[2:]
    # one setting may stand for all dimensions
    settings = (list(setting) * len(kernel) for setting in (stride, padding, dilation))
    space = zip(image.shape[2:], kernel, *settings, strict=False)
    sizes = ((n + 2 * p - d * (k - 1) - 1) // max(s, 1) + 1 for n, k, s, p, d in space)
    return image.shape[0], weight.shape[0], *sizes


# ---- CrossKernel.mm, Distributions.mm, Dropout.mm, RangeFactories.mm, SummaryOps.mm ---------------------------------

_RANDOM_BEFORE_2_13 = "random_mps_ handles only integral, floating-point and boolean types"
_RANDOM = "random_mps handles only integral, floating-point and boolean types"
_DROPOUT = "native_dropout_mps: input must be a floating-point or complex tensor, got {dtype}"
_LOGSPACE = "logspace is not implemented for integral dtypes on MPS"
by_dtype("linalg_cross", is_("bool"), "linalg.cross: not implemented for 'Bool'", since="2.14")
by_dtype(
    "bernoulli", complex_, "bernoulli is not implemented for complex types on MPS", since="2.15"
)
by_dtype(
    "normal_",
    not_a_number,
    "normal_kernel_mps not implemented for '{dtype}'",
    error=TypeError,
    since="2.13",
)
by_dtype("random_", complex_, _RANDOM_BEFORE_2_13, error=RuntimeError, until="2.12")
by_dtype("random_", complex_, _RANDOM, error=RuntimeError, since="2.13")
by_dtype("bincount", is_("bool"), "bincount is not supported for Bool", INT)


@refuse("native_dropout", _DROPOUT, FLOAT, since="2.13")
def _dropout_of_whole_numbers(
    input: Any, train: bool | None = True, **_: Any
) -> Mapping[str, object] | None:
    if train is False or not not_a_number(input.dtype):
        return None
    return {"dtype": name(input.dtype)}


@refuse(
    "logspace",
    _LOGSPACE,
    "make it in float32 and convert the result",
    NotImplementedError,
    since="2.15",
)
def _logspace_of_whole_numbers(out: Any = None, dtype: Any = None, **_: Any) -> bool:
    made = out.dtype if out is not None else dtype
    return made is not None and not_a_number(made)


for _factory, _since in (("arange", ""), ("linspace", "2.14")):
    _BOOLS = f"\"{_factory}_mps\" not implemented for 'Bool'"
    _FROM_WHOLE = "make whole numbers and convert the result"

    refuse(_factory, _BOOLS, _FROM_WHOLE, NotImplementedError, since=_since)(
        lambda out=None, dtype=None, **_: (
            str(out.dtype if out is not None else dtype) == "torch.bool"
        )
    )


# ---- FastFourierTransform.mm, GridSampler.mm, UpSample.mm -----------------------------------------------------------

_SOME_FIRST = "transform some dimensions first and the others of the result"
_MOST_FOUR = "MPS FFT only supports transforming up to 4 dimensions, but got {count} dimensions"
refuse("_fft_c2c _fft_r2c _fft_c2r", _MOST_FOUR, _SOME_FIRST, since="2.14")(
    lambda dim, **_: {"count": len(dim)} if len(dim) > 4 else None
)


by_dtype(
    "_fft_r2c", not_float_or_half, "Only float and half dtypes are supported", error=RuntimeError
)

NEAREST, BICUBIC = 1, 2
"""Of grid_sampler's modes."""
_BILINEAR_OR_CPU = f"sample with mode='bilinear', or {CPU}"
_OTHER_MODE = "sample with mode='bilinear' or mode='nearest'"
_BICUBIC_BACKWARD = (
    "grid_sampler_3d backward on MPS only supports bilinear and nearest interpolation"
)
by_dtype("grid_sampler_2d", complex_, "grid_sampler_2d is not supported for complex on MPS")
by_dtype(
    "grid_sampler_2d_backward",
    complex_,
    "grid_sampler_2d_backward is not supported for complex on MPS",
    since="2.13",
)


@refuse(
    "grid_sampler_3d",
    "grid_sampler_3d: Unsupported Nearest interpolation",
    _BILINEAR_OR_CPU,
    until="2.12",
)
def _nearest_in_3d(interpolation_mode: int, **_: Any) -> bool:
    return interpolation_mode == NEAREST


# Before 2.15 the CPU refuses bicubic in 3D as well, and so does every device, in words that are the same everywhere,
# before a kernel is asked: check_grid_sampler_3d, which stands in the wheels' own header (GridSamplerUtils.h). No rule
# is needed there.
@refuse(
    "grid_sampler_3d",
    "grid_sampler_3d: Unsupported Bicubic interpolation",
    _OTHER_MODE,
    since="2.15",
)
def _bicubic_in_3d(interpolation_mode: int, **_: Any) -> bool:
    return interpolation_mode == BICUBIC


refuse(
    "grid_sampler_3d_backward", _BICUBIC_BACKWARD, _OTHER_MODE, NotImplementedError, since="2.15"
)(_bicubic_in_3d)

_ANTIALIASED = "_upsample_{}2d_aa_out_mps only supports floating-point dtypes"
_BILINEAR = _ANTIALIASED.format("bilineard")  # as it is there
by_dtype("_upsample_bilinear2d_aa", not_floating, _BILINEAR, error=RuntimeError)
by_dtype("_upsample_bicubic2d_aa", not_floating, _ANTIALIASED.format("bicubic"), error=RuntimeError)

# No function of these dtypes is among the 18563 Metal functions in 2.15's wheel; in older ones nobody looked.
_NO_FUNCTION = "Failed to create function state object for: "
by_dtype(
    "upsample_bicubic2d",
    is_("uint8"),
    _NO_FUNCTION + "upsample_bicubic2d_uchar",
    error=RuntimeError,
)
by_dtype("renorm", is_("complex64"), _NO_FUNCTION + "renorm_float2", REAL, RuntimeError)


# ---- Embedding.mm, FusedAdamKernel.mm, FusedAdamWKernel.mm, FusedSgdKernel.mm, UnfoldBackward.mm ---------------------

HIGHEST_RANK = 16
"""Dimensions that a kernel can count (``c10::metal::max_ndim``). No tensor is made with more; a view may have more."""
_LOWER_RANK = "reshape it to at most 16 dimensions"
_EMBEDDING = "embedding_dense_backward_mps: indices ndim {rank} exceeds metal max_ndim {most}"
refuse("embedding_dense_backward", _EMBEDDING, _LOWER_RANK, since="2.13")(
    lambda indices, **_: (
        {"rank": indices.dim(), "most": HIGHEST_RANK} if indices.dim() >= HIGHEST_RANK else None
    )
)
refuse("unfold_backward", "unfold_backward_mps :Only up to 16-dim tensors supported", _LOWER_RANK)(
    lambda grad_in, **_: grad_in.dim() >= HIGHEST_RANK
)


_NOT_FUSED = "leave fused=True out"
refuse(
    "_fused_adam_ _fused_adamw_ _fused_sgd_",
    "Only float, bfloat and half are supported",
    _NOT_FUSED,
)(lambda self, **_: any(not_floating(parameter.dtype) for parameter in self))


# ---- Indexing.mm, ScatterGather.mm, Sort.mm, Unique.mm, ReduceOps.mm, ScanKernel.mm ---------------------------------

MANY = 2**32
_IN_PARTS = "work on it in parts"
_INDEX_REDUCE = "index_reduce for MPS does not support torch.{} dtype"
_AMIN = "scatter_reduce(amin/amax) on int64 currently requires contiguous self"
_RANK = ": tensor rank {rank} exceeds Metal max of {most}"
_INDICES = "Current limit allows up to 16 indices to be used in MPS indexing kernels"
_INDEX_FIRST = "index some dimensions first and the others of the result"
for _refused, _name, _way_out in (("int64", "long", INT), ("complex64", "cfloat", REAL)):
    _NOT_REDUCED = _INDEX_REDUCE.format(_name)
    by_dtype("index_reduce", is_(_refused), _NOT_REDUCED, _way_out, RuntimeError, since="2.12")
refuse(
    "masked_fill", "masked_fill not supported for tensors of more than 2**32 elements", _IN_PARTS
)(lambda self, **_: self.numel() > MANY)
refuse(
    "scatter_reduce", "scatter_reduce: reduce='mean' not implemented for 'Bool'", INT, since="2.13"
)(lambda self, reduce, **_: reduce == "mean" and str(self.dtype) == "torch.bool")
refuse("scatter_reduce", "not supported for torch.int64", INT, until="2.12")(
    lambda self, reduce, **_: reduce in ("amin", "amax") and str(self.dtype) == "torch.int64"
)
for _operators, _name in (("gather", "gather"), ("scatter scatter_add scatter_reduce", "scatter")):
    _NOT_YET = f"{_name}(): Yet not supported for complex"
    by_dtype(_operators, complex_, _NOT_YET, error=RuntimeError, until="2.11")
refuse(
    "gather", "sparse_grad not supported in MPS yet", "leave sparse_grad=True out", until="2.12"
)(lambda sparse_grad=False, **_: sparse_grad)


@refuse("scatter_reduce_", _AMIN, "call .contiguous() first", since="2.13")
def _writes_into_a_view(self: Any, reduce: str, **_: Any) -> bool:
    return (
        reduce in ("amin", "amax") and str(self.dtype) == "torch.int64" and not self.is_contiguous()
    )


# Only in place and with out=: of a result of its own empty_mps says first that it has too many dimensions.
@refuse("scatter_ scatter_add_ scatter_reduce_", "scatter" + _RANK, _LOWER_RANK, since="2.13")
def _rank_of_index(index: Any, **_: Any) -> Mapping[str, object] | None:
    return {"rank": index.dim(), "most": HIGHEST_RANK} if index.dim() > HIGHEST_RANK else None


refuse("gather", "gather" + _RANK, _LOWER_RANK, since="2.13")(
    lambda out=None, **arguments: None if out is None else _rank_of_index(**arguments)
)
refuse("index", _INDICES, _INDEX_FIRST)(
    lambda indices, **_: sum(index is not None for index in indices) > HIGHEST_RANK
)


for _extreme in ("argmax", "argmin"):

    @refuse(_extreme, f"{_extreme}_out_mps: tensor rank > {{most}} is not supported", _LOWER_RANK)
    def _extreme_of_many_dimensions(
        self: Any, dim: int | None = None, keepdim: bool = False, **_: Any
    ) -> Mapping[str, object] | None:
        if self.dim() <= HIGHEST_RANK or dim is None or keepdim:
            return None
        return {"most": HIGHEST_RANK}

    by_dtype(
        _extreme, complex_, f"{_extreme}_out_mps: not implemented for {{dtype}}", error=RuntimeError
    )

_UNIQUE = "unique is not supported on MPS for dtype {dtype}"
_LAST_FOUR = "On-going issue on MPSGraph topk when ndims() - axis > 4, see issue #154890"
_KTH_BEFORE_2_13 = "kthvalue is not implemented for complex types"
_KTH_IN_2_13 = "\"kthvalue_mps\" not implemented for '{dtype}'"
_KTH = "kthvalue_mps not implemented for {dtype}"
by_dtype("kthvalue", complex_, _KTH_BEFORE_2_13, until="2.12")
by_dtype("kthvalue", complex_, _KTH_IN_2_13, since="2.13", until="2.13")  # of bool nothing is known
by_dtype("kthvalue", complex_or_bool, _KTH, INT, since="2.14")


@refuse("kthvalue", _LAST_FOUR, "move the dimension to one of the last four", until="2.12")
def _kthvalue_of_an_early_dimension(self: Any, dim: int = -1, **_: Any) -> bool:
    return self.numel() > 0 and dim % max(self.dim(), 1) < self.dim() - 4


by_dtype(
    "median nanmedian",
    complex_or_bool,
    "median_mps not implemented for {dtype}",
    INT,
    since="2.14",
)
by_dtype("_unique2 _unique unique_consecutive", complex_, _UNIQUE, CPU, RuntimeError, since="2.14")
for _name in ("cummax", "cummin"):
    _NO_SCAN = f"\"{_name}\" not implemented for '{{dtype}}'"
    by_dtype(f"_{_name}_helper", complex_, _NO_SCAN, error=RuntimeError, since="2.14")


# ---- Linear.mm, LinearAlgebra.mm, RnnOps.mm -------------------------------------------------------------------------

_LINEAR = "MPS device does not support linear for non-float "
_HUGE = "Output dim sizes larger than 2**32 elements for matmul not supported on MPS device."
_SOLVE = (
    "solve with the identity instead, torch.linalg.solve(a, eye), or move the tensor to the CPU"
)
_NO_PROJECTION = "leave proj_size out and follow the LSTM by a linear layer, or run it on the CPU"
refuse("linear", _LINEAR + "inputs", FLOAT)(lambda input, **_: not_a_number(input.dtype))
refuse("linear", _LINEAR + "weights", FLOAT)(lambda weight, **_: not_a_number(weight.dtype))
by_dtype(
    "linear",
    complex_,
    "mps linear does not support complex types",
    error=RuntimeError,
    until="2.11",
)
refuse("linear", _LINEAR + "bias", FLOAT)(
    lambda bias=None, **_: bias is not None and not_a_number(bias.dtype)
)
refuse("addr", "MPS device does not support addr for non-float input", FLOAT)(
    lambda vec1, **_: not_a_number(vec1.dtype)
)
refuse("bmm", _HUGE, _IN_PARTS, NotImplementedError)(
    lambda self, mat2, **_: self.shape[-2] * mat2.shape[-1] > MANY
)
by_dtype(
    "cholesky_inverse",
    not_float32,
    "cholesky_inverse: MPS only supports float type!",
    CPU,
    RuntimeError,
)
_QR = "{}: MPS currently supports float32 only"
by_dtype("geqrf", not_float32, _QR.format("geqrf"), CPU, RuntimeError, since="2.14")
by_dtype(
    "linalg_qr", not_float32, _QR.format("linalg_qr"), CPU, RuntimeError, since="2.12", until="2.13"
)
by_dtype(
    "linalg_inv_ex",
    complex_,
    "linalg_inv: not supported for complex types yet!",
    _SOLVE,
    RuntimeError,
)


@refuse(
    "geqrf linalg_qr",
    "MPS QR: at most {most} dims",
    _LOWER_RANK,
    NotImplementedError,
    since="2.15",
)
def _qr_of_many_dimensions(
    self: Any = None, A: Any = None, **_: Any
) -> Mapping[str, object] | None:
    matrix = self if self is not None else A
    return {"most": HIGHEST_RANK} if matrix.dim() > HIGHEST_RANK else None


by_dtype(
    "linalg_lu_factor_ex linalg_lu",
    complex_,
    "linalg.lu_factor(): MPS doesn't support complex types.",
    CPU,
    RuntimeError,
    until="2.14",
)
refuse(
    "linalg_lu_factor_ex linalg_lu",
    "linalg.lu_factor(): MPS doesn't allow pivot == False.",
    "leave pivot=True",
)(lambda pivot=True, **_: not pivot)
refuse(
    "_linalg_svd",
    "linalg.svd: driver= is not supported on MPS.",
    "leave driver= out",
    since="2.14",
)(lambda driver=None, **_: driver is not None)
refuse(
    "_lstm_mps lstm", "LSTM with projections is not currently supported with MPS.", _NO_PROJECTION
)(
    lambda hx, **_: (
        isinstance(hx, list | tuple) and len(hx) == 2 and hx[0].shape[-1] != hx[1].shape[-1]
    )
)


# ---- LossOps.mm, Normalization.mm, HistogramKernel.mm ---------------------------------------------------------------

_BATCH_NORM = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update "
    "_batch_norm_no_update"
)
_HISTOGRAM = "\"histogram_mps\" not implemented for '{dtype}'"
by_dtype("huber_loss", complex_, "huber_loss for complex is not supported for MPS")
by_dtype("huber_loss smooth_l1_loss", is_("int64"), "MPS doesn't know how to do square_i64")
by_dtype(
    "mse_loss",
    not_floating,
    "mse_loss_out_mps: only defined for floating types",
    error=RuntimeError,
)
by_dtype(
    "nll_loss_forward nll_loss2d_forward",
    not_floating,
    "nll_loss is not implemented for {dtype} on MPS",
    since="2.15",
)
by_dtype(
    "nll_loss_forward nll_loss2d_forward",
    complex_,
    "nlld_loss for complex is not supported for MPS",
    until="2.14",
)
_LONG_BATCH_NORM = "Long batch norm is not supported with MPS"
_COMPLEX_BATCH_NORM = "Batch norm for complex is not supported for MPS"
_NO_BATCH_NORM = "batch_norm is not implemented for {dtype} on MPS"
by_dtype(_BATCH_NORM, is_("int64"), _LONG_BATCH_NORM, until="2.13")
by_dtype(_BATCH_NORM, complex_, _COMPLEX_BATCH_NORM, until="2.13")
by_dtype(_BATCH_NORM, not_floating, _NO_BATCH_NORM, since="2.14")
by_dtype("native_layer_norm", is_("int64"), "Not implemented for long on MPS")
_HISTC_DTYPES = (  # what the kernel before 2.15 is not compiled for, which histogram with edges shares
    ("", "2.11", not_float32),
    ("2.12", "2.12", not_floating),
    ("2.13", "2.14", complex_or_bool),
)
for _since, _until, _dtypes in _HISTC_DTYPES:
    by_dtype("histc", _dtypes, _HISTOGRAM, since=_since, until=_until)
by_dtype("histc", complex_or_bool, "\"histc_mps\" not implemented for '{dtype}'", INT, since="2.15")
refuse(
    "histogram _histogramdd_from_bin_cts",
    "histogram is only supported for float32",
    FLOAT,
    since="2.12",
)(lambda self, bins=None, **_: not hasattr(bins, "dtype") and str(self.dtype) != "torch.float32")
refuse("histogram _histogramdd_from_bin_cts", _HISTOGRAM, FLOAT, NotImplementedError, until="2.11")(
    lambda self, bins=None, **_: (
        {"dtype": name(self.dtype)}
        if not hasattr(bins, "dtype") and not_float32(self.dtype)
        else None
    )
)


def _with_edges(dtypes: Callable[[torch.dtype], bool]) -> Predicate:
    """Return a predicate about the dtype where edges are given."""

    def predicate(self: Any, bins: Any, **_: Any) -> Mapping[str, object] | None:
        is_listed = isinstance(bins, list | tuple)
        edges = bins if is_listed else [bins]
        if not all(hasattr(each, "dtype") for each in edges) or not dtypes(self.dtype):
            return None
        return {"dtype": name(self.dtype)}

    return predicate


for _since, _until, _dtypes in (*_HISTC_DTYPES, ("2.15", "", not_floating)):
    refuse(
        "histogram _histogramdd_from_bin_tensors",
        _HISTOGRAM,
        FLOAT,
        NotImplementedError,
        _since,
        _until,
    )(_with_edges(_dtypes))


# ---- torchvision/csrc/ops/mps ---------------------------------------------------------------------------------------

_TORCHVISION = {
    "nms": ("dets", "scores"),
    **dict.fromkeys(("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"), ("input", "rois")),
    "_roi_align_backward": ("grad", "rois"),
    "_roi_pool_backward": ("grad", "rois", "argmax"),
    **dict.fromkeys(
        ("_ps_roi_align_backward", "_ps_roi_pool_backward"), ("grad", "rois", "channel_mapping")
    ),
    "deform_conv2d": ("input", "weight", "offset", "mask", "bias"),
}
"""Its operators that have a Metal kernel, and the tensors that they take."""
_FOLDER = "torchvision/csrc/ops/mps"
_NO_SHADER = "aoti_torch_mps_get_kernel_function( shaderLibrary(), kernel.c_str(), &func) API call failed at {location}"


_METAL_NAMES = {
    "bfloat16": "bfloat", "int64": "long", "int32": "int", "int16": "short", "int8": "char", "uint8": "uchar",
    "bool": "bool", "complex64": "float2", "complex32": "half2",
}  # fmt: skip


def _refuse_of_torchvision(kernel: str, tensors: tuple[str, ...]) -> None:
    """Add what a kernel refuses, in its order.

    From torchvision 0.29 on, which takes PyTorch 2.14 and later, the message begins with its place, which differs by
    build. Before, torchvision was of one version of PyTorch, which said that it finds no function.
    """
    operator = f"torchvision::{kernel}"
    plain = kernel.removeprefix("_").removesuffix("_backward")
    location = {"location": f"{_function_of(kernel)}, {_FOLDER}/{plain}_kernel.mm"}

    for start, since, until in (("", "", "2.13"), ("{location}, ", "2.14", "")):
        for tensor in tensors:
            words = f"{start}{tensor} must be a MPS tensor"
            moved = 'call .to("mps") on it'
            is_left = _is_left_on_the_cpu(tensor, tensors, location)
            refuse(operator, words, moved, since=since, until=until)(is_left)
        if kernel.endswith("_backward"):
            words = f"{start}MPS does not support {plain} backward with float16 inputs."
            refuse(operator, words, _IN_FLOAT, since=since, until=until)(_is_half(location))

    words = _NO_FUNCTION + "{function}"
    refuse(operator, words, _IN_FLOAT, until="2.13")(_lacks_function(kernel, tensors))
    refuse(operator, _NO_SHADER, _IN_FLOAT, since="2.14")(_lacks_shader(tensors))


def _function_of(kernel: str) -> str:
    """Return the function in torchvision that calls a kernel, as its messages name it."""
    plain = kernel.removeprefix("_").removesuffix("_backward")
    if kernel == "nms":
        return f"{plain}_kernel"
    direction = "backward" if kernel.endswith("_backward") else "forward"
    return f"{plain}_{direction}_kernel"


def _is_left_on_the_cpu(
    tensor: str, tensors: tuple[str, ...], location: Mapping[str, object]
) -> Predicate:
    """Return a predicate: one of the tensors is on the CPU, and another one is not."""

    def predicate(**given: Any) -> Mapping[str, object] | None:
        if given[tensor].device.type != "cpu":
            return None
        is_mixed = any(given[each].device.type != "cpu" for each in tensors)
        return location if is_mixed else None

    return predicate


def _is_half(location: Mapping[str, object]) -> Predicate:
    """Return a predicate: the gradient is in float16."""

    def predicate(grad: Any, **_: Any) -> Mapping[str, object] | None:
        return location if str(grad.dtype) == "torch.float16" else None

    return predicate


def _lacks_shader(tensors: tuple[str, ...]) -> Predicate:
    """Return a predicate: a kernel has something to do, in another dtype than its two."""

    def predicate(**given: Any) -> Mapping[str, object] | None:
        if is_("float32", "float16")(given[tensors[0]].dtype):
            return None
        has_something_to_do = all(given[tensor].numel() for tensor in tensors[:2])
        return {"location": f"{_FOLDER}/mps_stable_kernels.h"} if has_something_to_do else None

    return predicate


def _lacks_function(kernel: str, tensors: tuple[str, ...]) -> Predicate:
    """Return a predicate like that of `_lacks_shader`, which names the function that is missing."""
    lacks_shader = _lacks_shader(tensors)
    is_deformed = kernel == "deform_conv2d"
    function = "deformable_im2col" if is_deformed else kernel.removeprefix("_")

    def predicate(**given: Any) -> Mapping[str, object] | None:
        dtype = str(given[tensors[0]].dtype).removeprefix("torch.")
        missing = {"function": f"{function}_{_METAL_NAMES.get(dtype, dtype)}"}
        return missing if lacks_shader(**given) else None

    return predicate


for _kernel, _tensors in _TORCHVISION.items():
    _refuse_of_torchvision(_kernel, _tensors)
