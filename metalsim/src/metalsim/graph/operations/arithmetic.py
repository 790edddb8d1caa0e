"""Elementwise arithmetic, comparison, logic, activations and complex numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metalsim.graph.operations.registry import (
    axis_of,
    elementwise,
    floating,
    operation,
    require,
    same_dtype,
)

UNORDERED = (torch.bool, torch.complex64, torch.complex32)


def round_half_away(x: Tensor) -> Tensor:
    """C's ``round``: to the nearest whole number, halves away from zero."""
    whole = torch.trunc(x)
    return whole + torch.where((x - whole).abs() >= 0.5, torch.sign(x), torch.zeros_like(x))


def _of_floats(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        require(x.is_floating_point() or x.is_complex(), f"needs floating point numbers, not {x.dtype}")
        return function(x)

    return apply


def _of_numbers(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        require(x.dtype != torch.bool, "needs numbers, not truth values")
        return function(x)

    return apply


def _identity_of_whole(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return _of_numbers(lambda x: function(x) if x.is_floating_point() else x.clone())


def _not(x: Tensor) -> Tensor:
    require(x.dtype == torch.bool, f"needs truth values, not {x.dtype}")
    return torch.logical_not(x)


def _bitwise_not(x: Tensor) -> Tensor:
    require(not (x.is_floating_point() or x.is_complex()), f"needs whole numbers, not {x.dtype}")
    return torch.bitwise_not(x)


elementwise(
    {
        "identity": torch.clone,
        "absolute": _of_numbers(torch.abs),
        "negative": _of_numbers(torch.neg),
        "square": _of_numbers(torch.square),
        "sign": _of_numbers(torch.sgn),
        "signbit": _of_numbers(torch.signbit),
        "ceil": _identity_of_whole(torch.ceil),
        "floor": _identity_of_whole(torch.floor),
        "truncate": _identity_of_whole(torch.trunc),
        "round": _identity_of_whole(round_half_away),
        "rint": _identity_of_whole(torch.round),
        "isNaN": torch.isnan,
        "isInfinite": torch.isinf,
        "isFinite": torch.isfinite,
        "not": _not,
        "bitwiseNOT": _bitwise_not,
        "conjugate": torch.conj_physical,
        "absoluteSquare": lambda x: (x.real.square() + x.imag.square()) if x.is_complex() else x.square(),
    }
)
elementwise(
    {
        name: _of_floats(function)
        for name, function in {
            "exponent": torch.exp,
            "exponentBase2": torch.exp2,
            "exponentBase10": lambda x: torch.pow(10.0, x),
            "logarithm": torch.log,
            "logarithmBase2": torch.log2,
            "logarithmBase10": torch.log10,
            "squareRoot": torch.sqrt,
            "reverseSquareRoot": torch.rsqrt,
            "reciprocalSquareRoot": torch.rsqrt,
            "reciprocal": torch.reciprocal,
            "sin": torch.sin,
            "cos": torch.cos,
            "tan": torch.tan,
            "asin": torch.asin,
            "acos": torch.acos,
            "atan": torch.atan,
            "sinh": torch.sinh,
            "cosh": torch.cosh,
            "tanh": torch.tanh,
            "asinh": torch.asinh,
            "acosh": torch.acosh,
            "atanh": torch.atanh,
            "erf": torch.erf,
            "reLU": torch.relu,
            "sigmoid": torch.sigmoid,
        }.items()
    }
)


def _nonzero(b: Tensor) -> Tensor:
    return torch.where(b == 0, torch.ones_like(b), b)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Of whole numbers the whole part; whole numbers divided by 0 give 0 here."""
    if a.is_floating_point() or a.is_complex():
        return a / b
    return torch.where(b == 0, torch.zeros_like(b), torch.div(a, _nonzero(b), rounding_mode="trunc"))


def _modulo(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return torch.fmod(a, b)
    return torch.where(b == 0, torch.zeros_like(b), torch.fmod(a, _nonzero(b)))


def _floor_modulo(a: Tensor, b: Tensor) -> Tensor:
    """0 where the divisor is 0, as Apple's header has it."""
    return torch.where(b == 0, torch.zeros_like(b), torch.remainder(a, _nonzero(b)))


def _divide_no_nan(a: Tensor, b: Tensor) -> Tensor:
    floating(a, b)
    return torch.where(b == 0, torch.zeros_like(b), a / b)


def _binary(stem: str, function: Callable[[Tensor, Tensor], Tensor], refused: tuple[torch.dtype, ...] = ()) -> None:
    def apply(primary: Tensor, secondary: Tensor) -> Tensor:
        same_dtype(primary, secondary)
        require(primary.dtype not in refused, f"is not defined for {primary.dtype}")
        return function(primary, secondary)

    operation(f"{stem}WithPrimaryTensor:secondaryTensor:name:")(apply)


for _stem, _function in {
    "addition": torch.add,
    "subtraction": torch.subtract,
    "multiplication": torch.multiply,
    "division": _divide,
    "divisionNoNaN": _divide_no_nan,
    "power": torch.pow,
}.items():
    _binary(_stem, _function, refused=(torch.bool,))
for _stem, _function in {
    "modulo": _modulo,
    "floorModulo": _floor_modulo,
    "atan2": torch.atan2,
    "maximum": torch.fmax,
    "minimum": torch.fmin,
    "maximumWithNaNPropagation": torch.maximum,
    "minimumWithNaNPropagation": torch.minimum,
    "greaterThan": torch.gt,
    "greaterThanOrEqualTo": torch.ge,
    "lessThan": torch.lt,
    "lessThanOrEqualTo": torch.le,
}.items():
    _binary(_stem, _function, refused=UNORDERED)
_binary("equal", torch.eq)
_binary("notEqual", torch.ne)

NUMBERS = (torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
for _stem, _function in {
    "logicalAND": torch.logical_and,
    "logicalOR": torch.logical_or,
    "logicalXOR": torch.logical_xor,
    "logicalNAND": lambda a, b: ~torch.logical_and(a, b),
    "logicalNOR": lambda a, b: ~torch.logical_or(a, b),
    "logicalXNOR": lambda a, b: ~torch.logical_xor(a, b),
}.items():
    _binary(_stem, _function, refused=NUMBERS + WHOLE)
for _stem, _function in {
    "bitwiseAND": torch.bitwise_and,
    "bitwiseOR": torch.bitwise_or,
    "bitwiseXOR": torch.bitwise_xor,
    "bitwiseLeftShift": torch.bitwise_left_shift,
    "bitwiseRightShift": torch.bitwise_right_shift,
}.items():
    _binary(_stem, _function, refused=NUMBERS)


@operation("selectWithPredicateTensor:truePredicateTensor:falsePredicateTensor:name:")
def select(predicate: Tensor, true: Tensor, false: Tensor) -> Tensor:
    same_dtype(true, false)
    require(predicate.dtype == torch.bool, f"the predicate holds truth values, not {predicate.dtype}")
    return torch.where(predicate, true, false)


@operation("clampWithTensor:minValueTensor:maxValueTensor:name:")
def clamp(tensor: Tensor, low: Tensor, high: Tensor) -> Tensor:
    same_dtype(tensor, low, high)
    return torch.minimum(torch.maximum(tensor, low), high)


@operation("leakyReLUWithTensor:alpha:name:")
def leaky_relu(tensor: Tensor, alpha: float) -> Tensor:
    floating(tensor)
    return torch.where(tensor > 0, tensor, tensor * alpha)


@operation("leakyReLUWithTensor:alphaTensor:name:")
def leaky_relu_of_tensor(tensor: Tensor, alpha: Tensor) -> Tensor:
    floating(tensor, alpha)
    return torch.where(tensor > 0, tensor, tensor * alpha)


@operation("softMaxWithTensor:axis:name:")
def softmax(tensor: Tensor, axis: int) -> Tensor:
    floating(tensor)
    return torch.softmax(tensor, axis_of(tensor, axis))


@operation("complexTensorWithRealTensor:imaginaryTensor:name:")
def complex_of_parts(real: Tensor, imaginary: Tensor) -> Tensor:
    floating(real, imaginary)
    require(real.dtype != torch.bfloat16, "there are complex numbers of 32 and 16 bit floats, not of bfloat16")
    return torch.complex(*torch.broadcast_tensors(real, imaginary))


@operation("realPartOfTensor:name:")
def real_part(tensor: Tensor) -> Tensor:
    return tensor.real.clone()


@operation("imaginaryPartOfTensor:name:")
def imaginary_part(tensor: Tensor) -> Tensor:
    return tensor.imag.clone() if tensor.is_complex() else torch.zeros_like(tensor)


@operation("castTensor:toType:name:")
def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_complex() and not dtype.is_complex:
        tensor = tensor.real
    return tensor.to(dtype, copy=True)


@operation("reinterpretCastTensor:toType:name:")
def reinterpret(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    require(tensor.ndim or tensor.element_size() == dtype.itemsize, "a scalar keeps the size of its type")
    return tensor.contiguous().view(dtype).clone()
