"""Fourier transforms: complex to complex, real to Hermitean, Hermitean to real.

Formulas as Apple's header gives them: the sign of the exponent is the descriptor's ``inverse``, the factor its scaling
mode, and one does not imply the other. The dimension that is cut in half is the last of those transformed, whatever
the order in which the axes are named.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from metalsim.graph.operations.registry import Descriptor, Properties, Shape, axes_of, operation, require

FFT = Annotated[Properties, Descriptor("MPSGraphFFTDescriptor")]
# MPSGraphFFTScalingMode
NONE, SIZE, UNITARY = range(3)
NARROW = {torch.float16: torch.float32, torch.complex32: torch.complex64}
COMPLEX = {torch.float32: torch.complex64, torch.float16: torch.complex32}
REAL = {complex_: real for real, complex_ in COMPLEX.items()}


def _axes(tensor: Tensor, axes: Shape) -> list[int]:
    """The transformed dimensions, in the order of the tensor."""
    require(axes, "needs one axis at least")
    chosen = sorted(axes_of(tensor, axes))
    require(
        chosen[0] >= tensor.ndim - 4, f"axes {list(axes)} of {tensor.ndim} dimensions: they must be among the last four"
    )
    return chosen


def _scaled(tensor: Tensor, mode: int, sizes: list[int]) -> Tensor:
    require(mode in (NONE, SIZE, UNITARY), f"there is no MPSGraphFFTScalingMode {mode}")
    if mode == NONE:
        return tensor
    volume = math.prod(sizes)
    return tensor / (volume if mode == SIZE else math.sqrt(volume))


def _wide(tensor: Tensor) -> Tensor:
    """16-bit numbers are transformed in 32 bits, and rounded at the end."""
    return tensor.to(NARROW.get(tensor.dtype, tensor.dtype))


@operation("fastFourierTransformWithTensor:axes:descriptor:name:")
def transform(tensor: Tensor, axes: Shape, descriptor: FFT) -> Tensor:
    dtype = COMPLEX.get(tensor.dtype, tensor.dtype)
    require(dtype in REAL, f"transforms float32, float16 and their complex numbers, not {tensor.dtype}")
    dimensions = _axes(tensor, axes)
    if descriptor.inverse:
        spectrum = torch.fft.ifftn(_wide(tensor), dim=dimensions, norm="forward")
    else:
        spectrum = torch.fft.fftn(_wide(tensor), dim=dimensions)
    return _scaled(spectrum, descriptor.scalingMode, [tensor.shape[axis] for axis in dimensions]).to(dtype)


@operation("realToHermiteanFFTWithTensor:axes:descriptor:name:")
def real_to_hermitean(tensor: Tensor, axes: Shape, descriptor: FFT) -> Tensor:
    """The last transformed dimension of size n becomes n // 2 + 1."""
    require(tensor.dtype in COMPLEX, f"transforms float32 and float16, not {tensor.dtype}")
    dimensions = _axes(tensor, axes)
    spectrum = torch.fft.rfftn(_wide(tensor), dim=dimensions)
    if descriptor.inverse:
        spectrum = spectrum.conj_physical()
    sizes = [tensor.shape[axis] for axis in dimensions]
    return _scaled(spectrum, descriptor.scalingMode, sizes).to(COMPLEX[tensor.dtype])


@operation("HermiteanToRealFFTWithTensor:axes:descriptor:name:")
def hermitean_to_real(tensor: Tensor, axes: Shape, descriptor: FFT) -> Tensor:
    """The last transformed dimension of size n becomes 2 (n - 1), one more with roundToOddHermitean."""
    require(tensor.dtype in REAL, f"transforms complex numbers, not {tensor.dtype}")
    dimensions = _axes(tensor, axes)
    sizes = [tensor.shape[axis] for axis in dimensions]
    sizes[-1] = 2 * (sizes[-1] - 1) + bool(descriptor.roundToOddHermitean)
    require(sizes[-1] > 0, "the result would be empty: one frequency makes no signal of even size")
    spectrum = _wide(tensor) if descriptor.inverse else _wide(tensor).conj_physical()
    signal = torch.fft.irfftn(spectrum, s=sizes, dim=dimensions, norm="forward")
    return _scaled(signal, descriptor.scalingMode, sizes).to(REAL[tensor.dtype])
