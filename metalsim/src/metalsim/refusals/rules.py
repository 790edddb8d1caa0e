"""Which calls a Metal kernel refuses, in a Mac's words, and what to do instead.

A rule is a predicate of a call's arguments, which it takes by the names of the operator's schema: it returns what fills
the words' fields, or something true where they have none, or None for a call that runs. It sees shapes, dtypes and
settings and no numbers, so it serves tensors of every device, ``meta`` among them.

The words and the exceptions were read from the wheels of PyTorch 2.15.0 and torchvision 0.29.2 for macOS. The
conditions were read from the source files that are named below, under ``aten/src/ATen/native/mps/operations``, and
compared with PyTorch's own list for its Macs (``tests/test_refusals.py``); numbers and dtypes that the list does not
have, with the machine code of the wheels. None of it was run on a Mac.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Predicate = Callable[..., Mapping[str, object] | bool | None]


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


RULES: dict[str, list[Rule]] = {}
"""By operator, without its overload, in the order in which the kernel asks."""

FLOAT = "call it with floating-point numbers: .float() first"
REAL = "compute with the real and the imaginary part"
CPU = "move the tensor to the CPU for this call"

# What C++ calls them.
NAMES = {
    "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "float64": "Double", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat",
    "complex32": "ComplexHalf", "complex128": "ComplexDouble",
}  # fmt: skip


def refused(*operators: str, words: str, way_out: str, error: type[Exception] = RuntimeError) -> Callable:
    """Make a predicate a rule of these operators, whose in-place and ``out=`` forms have it too."""

    def add(predicate: Predicate) -> Predicate:
        for operator in operators:
            full_name = operator if "::" in operator else f"aten::{operator}"
            RULES.setdefault(full_name, []).append(Rule(words, error, way_out, predicate))
        return predicate

    return add


def by_dtype(
    *operators: str, refuses: Callable[[torch.dtype], bool], words: str, way_out: str = FLOAT,
    error: type[Exception] = NotImplementedError,
) -> None:  # fmt: skip
    """A rule that looks at the dtype that the operator computes in: that to which its arguments are promoted."""

    def predicate(**arguments: Any) -> Mapping[str, object] | None:
        dtype = _promoted(arguments)
        return {"dtype": name(dtype)} if dtype is not None and refuses(dtype) else None

    refused(*operators, words=words, way_out=way_out, error=error)(predicate)


def name(dtype: torch.dtype) -> str:
    """``Float`` of ``torch.float32``."""
    return NAMES.get(str(dtype).removeprefix("torch."), str(dtype))


def _promoted(arguments: Mapping[str, Any]) -> torch.dtype | None:
    import torch

    operands = [value for key, value in arguments.items() if key in _OPERANDS and value is not None][:2]
    if not any(isinstance(operand, torch.Tensor) for operand in operands):
        return None
    return operands[0].dtype if len(operands) == 1 else torch.result_type(*operands)


_OPERANDS = ("self", "input", "other", "x", "n", "grad_output", "A")

complex_ = lambda dtype: dtype.is_complex
not_floating = lambda dtype: not dtype.is_floating_point
not_a_number = lambda dtype: not (dtype.is_floating_point or dtype.is_complex)
not_whole = lambda dtype: dtype.is_floating_point or dtype.is_complex
is_ = lambda *names: lambda dtype: str(dtype).removeprefix("torch.") in names


# ---- Activation.mm, ActivationKernel.mm, SoftMax.mm -----------------------------------------------------------------

by_dtype("elu", refuses=not_floating, words="\"elu_mps\" not implemented for '{dtype}'")
by_dtype("elu_backward", refuses=not_floating, words="\"elu_backward_mps\" not implemented for '{dtype}'")
by_dtype("softplus", refuses=not_floating, words="softplus not implemented for {dtype}")
by_dtype("softplus_backward", refuses=not_floating, words="softplus_backward not implemented for {dtype}")

for _kernel in ("softmax", "log_softmax"):

    @refused(
        f"_{_kernel}", words=f"{_kernel} with half to float conversion is not supported on MPS",
        way_out="convert first: x.float(), then without dtype=",
    )  # fmt: skip
    def _half_to_float(half_to_float: bool = False, **_: Any) -> bool:
        return half_to_float

    by_dtype(f"_{_kernel}", refuses=not_floating, words=f"{_kernel} not implemented on MPS for {{dtype}}")

_LOG_SOFTMAX_BACKWARD = "_log_softmax_backward_data"
by_dtype(_LOG_SOFTMAX_BACKWARD, refuses=is_("int64"), words="MPS doesn't know how to do exponent_i64")
by_dtype(
    _LOG_SOFTMAX_BACKWARD, refuses=complex_, words="log_softmax for complex is not supported for MPS", way_out=REAL
)
by_dtype(_LOG_SOFTMAX_BACKWARD, refuses=is_("bool"), words="log_softmax for bool is not supported for MPS")


# ---- AdaptivePooling.mm, Pooling.mm ---------------------------------------------------------------------------------

_ADAPTIVE = ("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward")
_ONE_DIVIDES = (
    "sizes must be divisible by {small} sizes. Non-divisible input sizes are not implemented on MPS device yet. For "
    "now, you can manually transfer tensor to cpu in this case. Please refer to [this issue](https://github.com/pytorch/"
    "pytorch/issues/96056)"
)
_DIVIDE = (
    "choose an output size that divides the input's, resize or pad the input to a multiple of it "
    "(torch.nn.functional.interpolate or pad), or pool on the CPU"
)


def _pooled_sizes(arguments: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width before and after."""
    image = arguments["self"]
    after = arguments.get("output_size") or arguments["grad_output"].shape[-2:]
    return tuple(image.shape[-2:]), tuple(after)


@refused(
    *_ADAPTIVE, way_out="pool in two steps, one for each direction, or on the CPU",
    words="Adaptive pool MPS: Input height and width must both be greater than, or equal to, or lesser than output "
    "height and width",
)  # fmt: skip
def _shrinks_and_grows(**arguments: Any) -> bool:
    (height, width), (rows, columns) = _pooled_sizes(arguments)
    return not (height >= rows and width >= columns) and not (height <= rows and width <= columns)


@refused(
    *_ADAPTIVE, words="Adaptive pool MPS: input " + _ONE_DIVIDES.format(small="output"),
    way_out=_DIVIDE,
)  # fmt: skip
def _shrinks_unevenly(**arguments: Any) -> bool:
    before, after = _pooled_sizes(arguments)
    return before[0] >= after[0] and not _divides(after, before)


@refused(
    *_ADAPTIVE, words="Adaptive pool MPS: output " + _ONE_DIVIDES.format(small="input"),
    way_out="choose an output size that is a multiple of the input's, or use torch.nn.functional.interpolate",
)  # fmt: skip
def _grows_unevenly(**arguments: Any) -> bool:
    before, after = _pooled_sizes(arguments)
    return before[0] < after[0] and not _divides(before, after)


def _divides(divisors: tuple[int, int], sizes: tuple[int, int]) -> bool:
    return all(divisor and size % divisor == 0 for divisor, size in zip(divisors, sizes, strict=True))


_COMPLEX_POOL = {"refuses": complex_, "way_out": REAL}
by_dtype("adaptive_max_pool2d", words="Adaptive max pooling for complex is not supported for MPS", **_COMPLEX_POOL)
by_dtype(
    "adaptive_max_pool2d_backward",
    words="Adaptive max pooling backward for complex is not supported for MPS",
    **_COMPLEX_POOL,
)
by_dtype(
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "max_pool2d", "max_pool2d_backward",
    words="Max pooling for complex is not supported for MPS", **_COMPLEX_POOL,
)  # fmt: skip
by_dtype(
    "avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward", words="Not implemented for complex",
    **_COMPLEX_POOL,
)  # fmt: skip


# ---- Attention.mm ---------------------------------------------------------------------------------------------------

_ATTENTION = "_scaled_dot_product_attention_math_for_mps"


@refused(
    _ATTENTION, words="scaled_dot_product_attention for MPS does not support dtype {dtype}", error=NotImplementedError,
    way_out=FLOAT,
)  # fmt: skip
def _attention_dtype(query: Any, key: Any, value: Any, **_: Any) -> Mapping[str, object] | None:
    return next(({"dtype": name(one.dtype)} for one in (query, key, value) if not_floating(one.dtype)), None)


# Wherever no gradient is wanted PyTorch takes this operator for attention (transformers/attention.cpp), in 2.15 also
# with dropout: in the Mac's library that function compares dropout_p with nothing.
@refused(
    _ATTENTION, words="scaled_dot_product_attention for MPS does not support dropout.", error=NotImplementedError,
    way_out="call .eval(), which a frozen part wants anyway, or pass dropout_p=0.0; where a gradient is wanted PyTorch "
    "computes attention in pieces, with dropout",
)  # fmt: skip
def _attention_dropout(dropout_p: float = 0.0, **_: Any) -> bool:
    return dropout_p > 0


# ---- BinaryKernel.mm, PointwiseOps.mm, TensorCompare.mm, UnaryKernel.mm, UnaryOps.mm --------------------------------

by_dtype("gcd", refuses=not_whole, words="gcd_mps not implemented for {dtype}", way_out="call it with whole numbers")
by_dtype("lcm", refuses=not_whole, words="lcm_mps not implemented for {dtype}", way_out="call it with whole numbers")
for _direction in ("left", "right"):
    by_dtype(
        f"bitwise_{_direction}_shift", refuses=not_whole,
        words=f"bitwise_{_direction}_shift not implemented for {{dtype}}", way_out="call it with whole numbers",
    )  # fmt: skip
by_dtype(
    "igamma", "special_gammainc", refuses=not_floating, words="igamma_mps not implemented for {dtype}", error=TypeError
)
by_dtype(
    "igammac",
    "special_gammaincc",
    refuses=not_floating,
    words="igammac_mps not implemented for {dtype}",
    error=TypeError,
)
by_dtype("logaddexp2", refuses=not_floating, words="\"logaddexp2_mps\" not implemented for '{dtype}'")
by_dtype(
    "nextafter", refuses=not_floating, words="nextafter_mps not implemented for non-floating types", error=TypeError
)
for _special in (
    "xlog1py", "zeta", "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w", "hermite_polynomial_h",
    "hermite_polynomial_he",
):  # fmt: skip
    by_dtype(  # whole numbers are promoted to float32 before
        f"special_{_special}", refuses=complex_, words=f"{_special}_mps not implemented for non-floating types",
        error=TypeError, way_out=REAL,
    )  # fmt: skip
by_dtype("addcmul", refuses=is_("bool"), words="addcmul_mps not implemented for 'Bool'")
by_dtype(
    "clamp", "clamp_min", "clamp_max", refuses=complex_, words="\"clamp_scalar_mps\" not implemented for '{dtype}'",
    way_out=REAL,
)  # fmt: skip
by_dtype("frac", refuses=not_floating, words="frac_out_mps is only implemented for floating types", error=RuntimeError)


# ---- Convolution.mm -------------------------------------------------------------------------------------------------

_CONVOLUTIONS = ("convolution", "convolution_overrideable", "_mps_convolution", "_mps_convolution_transpose")


@refused(*_CONVOLUTIONS, words="Convolution is supported only for Floating types", way_out=FLOAT)
def _convolution_of_whole_numbers(input: Any = None, self: Any = None, **_: Any) -> bool:
    image = input if input is not None else self
    return not image.dtype.is_floating_point and not image.is_complex()  # complex ones were split into real ones


@refused(
    *_CONVOLUTIONS[:2], words="ConvTranspose 3D with BF16 or FP16 types is not supported on MPS",
    way_out="compute this layer in float32; under autocast, with torch.autocast('mps', enabled=False) around it and "
    ".float()",
)  # fmt: skip
def _half_transposed_3d(input: Any, transposed: bool = False, **_: Any) -> bool:
    return transposed and input.dim() == 5 and str(input.dtype) in ("torch.float16", "torch.bfloat16")


LARGEST_BEFORE_15_1 = 2**16
"""The largest size of a convolution's result before macOS 15.1, in any dimension, whatever the message speaks of."""


@functools.cache
def macos() -> tuple[int, ...]:
    """Of a Mac its version; elsewhere 15.0, which the simulated device says it is: the oldest that PyTorch takes."""
    version = platform.mac_ver()[0]
    return tuple(map(int, version.split(".")[:2])) if version else (15, 0)


@refused(
    *_CONVOLUTIONS, words="Output channels > 65536 not supported at the MPS device. ", error=NotImplementedError,
    way_out="update to macOS 15.1 or newer, where it runs, or work in parts of at most 65536 in each dimension",
)  # fmt: skip
def _large_convolution(input: Any = None, self: Any = None, transposed: bool = False, **settings: Any) -> bool:
    image = input if input is not None else self
    sizes = tuple(image.shape) if transposed else _convolved_sizes(image, **settings)
    return macos() < (15, 1) and all(sizes) and max(sizes) > LARGEST_BEFORE_15_1


def _convolved_sizes(image: Any, weight: Any, stride: Any, padding: Any, dilation: Any, **_: Any) -> tuple[int, ...]:
    """The shape of a convolution's result; of one that no device takes, whatever PyTorch may say of it."""
    kernel = weight.shape[2:]
    settings = (list(setting) * len(kernel) for setting in (stride, padding, dilation))  # one may stand for all
    space = zip(image.shape[2:], kernel, *settings, strict=False)
    sizes = ((n + 2 * p - d * (k - 1) - 1) // max(s, 1) + 1 for n, k, s, p, d in space)
    return image.shape[0], weight.shape[0], *sizes


# ---- CrossKernel.mm, Distributions.mm, Dropout.mm, RangeFactories.mm, SummaryOps.mm ---------------------------------

by_dtype("linalg_cross", refuses=is_("bool"), words="linalg.cross: not implemented for 'Bool'")
by_dtype("bernoulli", refuses=complex_, words="bernoulli is not implemented for complex types on MPS", way_out=REAL)
by_dtype("normal_", refuses=not_a_number, words="normal_kernel_mps not implemented for '{dtype}'", error=TypeError)
by_dtype(
    "random_", refuses=complex_, words="random_mps handles only integral, floating-point and boolean types",
    error=RuntimeError, way_out=REAL,
)  # fmt: skip


@refused(
    "native_dropout", way_out=FLOAT,
    words="native_dropout_mps: input must be a floating-point or complex tensor, got {dtype}",
)  # fmt: skip
def _dropout_of_whole_numbers(input: Any, train: bool | None = True, **_: Any) -> Mapping[str, object] | None:
    return {"dtype": name(input.dtype)} if train is not False and not_a_number(input.dtype) else None


@refused(
    "logspace", words="logspace is not implemented for integral dtypes on MPS", error=NotImplementedError,
    way_out="make it in float32 and convert the result",
)  # fmt: skip
def _logspace_of_whole_numbers(out: Any = None, dtype: Any = None, **_: Any) -> bool:
    made = out.dtype if out is not None else dtype
    return made is not None and not_a_number(made)


for _factory in ("arange", "linspace"):

    @refused(
        _factory, words=f"\"{_factory}_mps\" not implemented for 'Bool'", error=NotImplementedError,
        way_out="make whole numbers and convert the result",
    )  # fmt: skip
    def _range_of_bools(out: Any = None, dtype: Any = None, **_: Any) -> bool:
        return str(out.dtype if out is not None else dtype) == "torch.bool"


by_dtype("bincount", refuses=is_("bool"), words="bincount is not supported for Bool", way_out="call .int() first")


# ---- FastFourierTransform.mm, GridSampler.mm, UpSample.mm -----------------------------------------------------------


@refused(
    "_fft_c2c", "_fft_r2c", "_fft_c2r", way_out="transform some dimensions first and the others of the result",
    words="MPS FFT only supports transforming up to 4 dimensions, but got {count} dimensions",
)  # fmt: skip
def _many_dimensions(dim: Any, **_: Any) -> Mapping[str, object] | None:
    return {"count": len(dim)} if len(dim) > 4 else None


by_dtype(
    "_fft_r2c", refuses=lambda dtype: str(dtype) not in ("torch.float32", "torch.float16"), error=RuntimeError,
    words="Only float and half dtypes are supported",
)  # fmt: skip

BICUBIC = 2
"""Of grid_sampler's modes."""
by_dtype("grid_sampler_2d", refuses=complex_, words="grid_sampler_2d is not supported for complex on MPS", way_out=REAL)
by_dtype(
    "grid_sampler_2d_backward", refuses=complex_, words="grid_sampler_2d_backward is not supported for complex on MPS",
    way_out=REAL,
)  # fmt: skip
_OTHER_MODE = "sample with mode='bilinear' or mode='nearest'"


@refused("grid_sampler_3d", words="grid_sampler_3d: Unsupported Bicubic interpolation", way_out=_OTHER_MODE)
def _bicubic_in_3d(interpolation_mode: int, **_: Any) -> bool:
    return interpolation_mode == BICUBIC


@refused(
    "grid_sampler_3d_backward", error=NotImplementedError, way_out=_OTHER_MODE,
    words="grid_sampler_3d backward on MPS only supports bilinear and nearest interpolation",
)  # fmt: skip
def _bicubic_backward_in_3d(interpolation_mode: int, **_: Any) -> bool:
    return interpolation_mode == BICUBIC


for _mode, _written in (("bilinear", "bilineard"), ("bicubic", "bicubic")):  # the first as it is misspelt there
    by_dtype(
        f"_upsample_{_mode}2d_aa", refuses=not_floating, error=RuntimeError,
        words=f"_upsample_{_written}2d_aa_out_mps only supports floating-point dtypes",
    )  # fmt: skip

# No function of these dtypes is among the 18563 Metal functions in the wheel.
_NO_FUNCTION = "Failed to create function state object for: "
by_dtype(
    "upsample_bicubic2d", refuses=is_("uint8"), words=_NO_FUNCTION + "upsample_bicubic2d_uchar",
    error=RuntimeError,
)  # fmt: skip
by_dtype(
    "renorm", refuses=is_("complex64"), words=_NO_FUNCTION + "renorm_float2", error=RuntimeError,
    way_out=REAL,
)  # fmt: skip


# ---- Embedding.mm, FusedAdamKernel.mm, FusedAdamWKernel.mm, FusedSgdKernel.mm, UnfoldBackward.mm ---------------------

HIGHEST_RANK = 16
"""Dimensions that a kernel can count (``c10::metal::max_ndim``). No tensor is made with more; a view may have more."""
_LOWER_RANK = "reshape it to at most 16 dimensions"


@refused(
    "embedding_dense_backward", way_out=_LOWER_RANK,
    words="embedding_dense_backward_mps: indices ndim {rank} exceeds metal max_ndim {most}",
)  # fmt: skip
def _indices_of_many_dimensions(indices: Any, **_: Any) -> Mapping[str, object] | None:
    return {"rank": indices.dim(), "most": HIGHEST_RANK} if indices.dim() >= HIGHEST_RANK else None


@refused("unfold_backward", words="unfold_backward_mps :Only up to 16-dim tensors supported", way_out=_LOWER_RANK)
def _unfolded_to_many_dimensions(grad_in: Any, **_: Any) -> bool:
    return grad_in.dim() >= HIGHEST_RANK


@refused(
    "_fused_adam_", "_fused_adamw_", "_fused_sgd_", words="Only float, bfloat and half are supported",
    way_out="leave fused=True out",
)  # fmt: skip
def _fused_for_others(self: Any, **_: Any) -> bool:
    return any(not_floating(parameter.dtype) for parameter in self)


# ---- Indexing.mm, ScatterGather.mm, Sort.mm, Unique.mm, ReduceOps.mm, ScanKernel.mm ---------------------------------

MANY = 2**32
_IN_PARTS = "work on it in parts"
by_dtype(
    "index_reduce", refuses=is_("int64"), words="index_reduce for MPS does not support torch.long dtype",
    error=RuntimeError, way_out="call .int() first",
)  # fmt: skip
by_dtype(
    "index_reduce", refuses=is_("complex64"), words="index_reduce for MPS does not support torch.cfloat dtype",
    error=RuntimeError, way_out=REAL,
)  # fmt: skip


@refused("masked_fill", words="masked_fill not supported for tensors of more than 2**32 elements", way_out=_IN_PARTS)
def _huge_masked_fill(self: Any, **_: Any) -> bool:
    return self.numel() > MANY


@refused(
    "scatter_reduce", words="scatter_reduce: reduce='mean' not implemented for 'Bool'", way_out="call .int() first"
)
def _mean_of_bools(self: Any, reduce: str, **_: Any) -> bool:
    return reduce == "mean" and str(self.dtype) == "torch.bool"


@refused(
    "scatter_reduce_", words="scatter_reduce(amin/amax) on int64 currently requires contiguous self",
    way_out="call .contiguous() first",
)  # fmt: skip
def _scattered_into_a_view(self: Any, reduce: str, **_: Any) -> bool:
    return reduce in ("amin", "amax") and str(self.dtype) == "torch.int64" and not self.is_contiguous()


def _rank_of_index(index: Any, **_: Any) -> Mapping[str, object] | None:
    return {"rank": index.dim(), "most": HIGHEST_RANK} if index.dim() > HIGHEST_RANK else None


# Only in place and with out=: of a result of its own empty_mps says first that it has too many dimensions.
refused(
    "scatter_", "scatter_add_", "scatter_reduce_", way_out=_LOWER_RANK,
    words="scatter: tensor rank {rank} exceeds Metal max of {most}",
)(_rank_of_index)  # fmt: skip


@refused("gather", words="gather: tensor rank {rank} exceeds Metal max of {most}", way_out=_LOWER_RANK)
def _gathered_into_a_view(out: Any = None, **arguments: Any) -> Mapping[str, object] | None:
    return None if out is None else _rank_of_index(**arguments)


@refused(
    "index", words="Current limit allows up to 16 indices to be used in MPS indexing kernels",
    way_out="index some dimensions first and the others of the result",
)  # fmt: skip
def _many_indices(indices: Any, **_: Any) -> bool:
    return sum(index is not None for index in indices) > HIGHEST_RANK


for _extreme in ("argmax", "argmin"):

    @refused(_extreme, words=f"{_extreme}_out_mps: tensor rank > {{most}} is not supported", way_out=_LOWER_RANK)
    def _extreme_of_many_dimensions(
        self: Any, dim: int | None = None, keepdim: bool = False, **_: Any
    ) -> Mapping[str, object] | None:
        return {"most": HIGHEST_RANK} if self.dim() > HIGHEST_RANK and dim is not None and not keepdim else None

    by_dtype(
        _extreme, refuses=complex_, words=f"{_extreme}_out_mps: not implemented for {{dtype}}", error=RuntimeError,
        way_out=REAL,
    )  # fmt: skip

by_dtype(
    "kthvalue", refuses=lambda dtype: dtype.is_complex or is_("bool")(dtype), way_out="call .int() first",
    words="kthvalue_mps not implemented for {dtype}",
)  # fmt: skip
by_dtype(
    "median", "nanmedian", refuses=lambda dtype: dtype.is_complex or is_("bool")(dtype), way_out="call .int() first",
    words="median_mps not implemented for {dtype}",
)  # fmt: skip
by_dtype(
    "_unique2", "_unique", "unique_consecutive", refuses=complex_, error=RuntimeError, way_out=CPU,
    words="unique is not supported on MPS for dtype {dtype}",
)  # fmt: skip
for _extreme in ("cummax", "cummin"):
    by_dtype(
        f"_{_extreme}_helper",
        refuses=complex_,
        words=f"\"{_extreme}\" not implemented for '{{dtype}}'",
        way_out=REAL,
        error=RuntimeError,
    )


# ---- Linear.mm, LinearAlgebra.mm, RnnOps.mm -------------------------------------------------------------------------

_LINEAR = "MPS device does not support linear for non-float "


@refused("linear", words=_LINEAR + "inputs", way_out=FLOAT)
def _linear_of_whole_numbers(input: Any, **_: Any) -> bool:
    return not_a_number(input.dtype)


@refused("linear", words=_LINEAR + "weights", way_out=FLOAT)
def _whole_weights(weight: Any, **_: Any) -> bool:
    return not_a_number(weight.dtype)


@refused("linear", words=_LINEAR + "bias", way_out=FLOAT)
def _whole_bias(bias: Any = None, **_: Any) -> bool:
    return bias is not None and not_a_number(bias.dtype)


@refused("addr", words="MPS device does not support addr for non-float input", way_out=FLOAT)
def _addr_of_whole_numbers(vec1: Any, **_: Any) -> bool:
    return not_a_number(vec1.dtype)


@refused(
    "bmm", words="Output dim sizes larger than 2**32 elements for matmul not supported on MPS device.",
    error=NotImplementedError, way_out=_IN_PARTS,
)  # fmt: skip
def _huge_product(self: Any, mat2: Any, **_: Any) -> bool:
    return self.shape[-2] * mat2.shape[-1] > MANY


by_dtype(
    "cholesky_inverse", refuses=lambda dtype: str(dtype) != "torch.float32", error=RuntimeError, way_out=CPU,
    words="cholesky_inverse: MPS only supports float type!",
)  # fmt: skip
by_dtype(
    "geqrf", refuses=lambda dtype: str(dtype) != "torch.float32", error=RuntimeError, way_out=CPU,
    words="geqrf: MPS currently supports float32 only",
)  # fmt: skip


@refused("geqrf", "linalg_qr", words="MPS QR: at most {most} dims", error=NotImplementedError, way_out=_LOWER_RANK)
def _qr_of_many_dimensions(self: Any = None, A: Any = None, **_: Any) -> Mapping[str, object] | None:
    matrix = self if self is not None else A
    return {"most": HIGHEST_RANK} if matrix.dim() > HIGHEST_RANK else None


by_dtype(
    "linalg_inv_ex", refuses=complex_, words="linalg_inv: not supported for complex types yet!", error=RuntimeError,
    way_out="solve with the identity instead, torch.linalg.solve(a, eye), or move the tensor to the CPU",
)  # fmt: skip


@refused(
    "linalg_lu_factor_ex", "linalg_lu", words="linalg.lu_factor(): MPS doesn't allow pivot == False.",
    way_out="leave pivot=True",
)  # fmt: skip
def _without_pivot(pivot: bool = True, **_: Any) -> bool:
    return not pivot


@refused("_linalg_svd", words="linalg.svd: driver= is not supported on MPS.", way_out="leave driver= out")
def _svd_driver(driver: str | None = None, **_: Any) -> bool:
    return driver is not None


@refused(
    "_lstm_mps", "lstm", words="LSTM with projections is not currently supported with MPS.",
    way_out="leave proj_size out and follow the LSTM by a linear layer, or run it on the CPU",
)  # fmt: skip
def _lstm_projections(hx: Any, **_: Any) -> bool:
    return isinstance(hx, list | tuple) and len(hx) == 2 and hx[0].shape[-1] != hx[1].shape[-1]


# ---- LossOps.mm, Normalization.mm, HistogramKernel.mm ---------------------------------------------------------------

by_dtype("huber_loss", refuses=complex_, words="huber_loss for complex is not supported for MPS", way_out=REAL)
by_dtype("huber_loss", "smooth_l1_loss", refuses=is_("int64"), words="MPS doesn't know how to do square_i64")
by_dtype(
    "mse_loss", refuses=not_floating, words="mse_loss_out_mps: only defined for floating types", error=RuntimeError
)
by_dtype(
    "nll_loss_forward",
    "nll_loss2d_forward",
    refuses=not_floating,
    words="nll_loss is not implemented for {dtype} on MPS",
)
by_dtype(
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update", "_batch_norm_no_update", refuses=not_floating,
    words="batch_norm is not implemented for {dtype} on MPS",
)  # fmt: skip
by_dtype("native_layer_norm", refuses=is_("int64"), words="Not implemented for long on MPS")
by_dtype(
    "histc", refuses=lambda dtype: dtype.is_complex or is_("bool")(dtype), way_out="call .int() first",
    words="\"histc_mps\" not implemented for '{dtype}'",
)  # fmt: skip


@refused("histogram", "_histogramdd_from_bin_cts", words="histogram is only supported for float32", way_out=FLOAT)
def _histogram_with_a_number_of_bins(self: Any, bins: Any = None, **_: Any) -> bool:
    return not hasattr(bins, "dtype") and str(self.dtype) != "torch.float32"


@refused(
    "histogram", "_histogramdd_from_bin_tensors", words="\"histogram_mps\" not implemented for '{dtype}'",
    error=NotImplementedError, way_out=FLOAT,
)  # fmt: skip
def _histogram_with_edges(self: Any, bins: Any, **_: Any) -> Mapping[str, object] | None:
    with_edges = hasattr(bins, "dtype") or (isinstance(bins, list | tuple) and all(hasattr(b, "dtype") for b in bins))
    return {"dtype": name(self.dtype)} if with_edges and not_floating(self.dtype) else None


# ---- torchvision/csrc/ops/mps ---------------------------------------------------------------------------------------

_TORCHVISION = {
    "nms": ("dets", "scores"),
    **dict.fromkeys(("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"), ("input", "rois")),
    "_roi_align_backward": ("grad", "rois"),
    "_roi_pool_backward": ("grad", "rois", "argmax"),
    **dict.fromkeys(("_ps_roi_align_backward", "_ps_roi_pool_backward"), ("grad", "rois", "channel_mapping")),
    "deform_conv2d": ("input", "weight", "offset", "mask", "bias"),
}
"""Its operators that have a Metal kernel, and the tensors that they take."""
_FOLDER = "torchvision/csrc/ops/mps"
_IN_FLOAT = (
    "compute this layer in float32; under autocast, with torch.autocast('mps', enabled=False) around it and .float()"
)


def _of_torchvision(kernel: str, tensors: tuple[str, ...]) -> None:
    """What a kernel refuses, in its order. Before the words stands where they are said, which differs by build."""
    operator, plain, backward = f"torchvision::{kernel}", *_backward_of(kernel)
    direction = "" if kernel == "nms" else "_backward" if backward else "_forward"
    location = {"location": f"{plain}{direction}_kernel, {_FOLDER}/{plain}_kernel.mm"}

    def left_on_the_cpu(tensor: str) -> Predicate:
        return lambda **given: location if given[tensor].device.type == "cpu" and _elsewhere(given, tensors) else None

    def half(grad: Any, **_: Any) -> Mapping[str, object] | None:
        return location if str(grad.dtype) == "torch.float16" else None

    def without_a_shader(**given: Any) -> Mapping[str, object] | None:
        known = str(given[tensors[0]].dtype) in ("torch.float32", "torch.float16")
        nothing_to_do = not all(given[tensor].numel() for tensor in tensors[:2])
        return None if known or nothing_to_do else {"location": f"{_FOLDER}/mps_stable_kernels.h"}

    for tensor in tensors:
        words = f"{{location}}, {tensor} must be a MPS tensor"
        refused(operator, words=words, way_out='call .to("mps") on it')(left_on_the_cpu(tensor))
    if backward:
        words = f"{{location}}, MPS does not support {plain} backward with float16 inputs."
        refused(operator, words=words, way_out=_IN_FLOAT)(half)
    refused(operator, words=_NO_SHADER, way_out=_IN_FLOAT)(without_a_shader)


_NO_SHADER = "aoti_torch_mps_get_kernel_function( shaderLibrary(), kernel.c_str(), &func) API call failed at {location}"


def _backward_of(kernel: str) -> tuple[str, bool]:
    """``roi_align`` and True of ``_roi_align_backward``."""
    return kernel.removeprefix("_").removesuffix("_backward"), kernel.endswith("_backward")


def _elsewhere(given: Mapping[str, Any], tensors: tuple[str, ...]) -> bool:
    return any(given[tensor].device.type != "cpu" for tensor in tensors)


for _kernel, _tensors in _TORCHVISION.items():
    _of_torchvision(_kernel, _tensors)
