"""Softshrink as an operator of our own, ``metallab::softshrink``: one rule, a kernel for each device, a gradient.

    softshrink(x, 0.5)          # CPU, MPS or CUDA; under autograd, torch.compile, torch.export

The rule, to the last bit on every device:

- Above ``lambd`` the value is ``x - lambd``, below ``-lambd`` it is ``x + lambd``.
- Between them lies zero with the sign of ``x``, and NaN stays NaN.
- The gradient passes where ``x`` is not between them, and so it does where ``x`` is NaN.
- ``lambd`` is rounded to the dtype of ``x`` first.

That is what PyTorch 2.15 computes on a CPU for tensors of a few elements. For longer ones its vector instructions lose
the sign of zero, and the gradient where ``x`` is NaN (pytorch#195075). A GPU may take subnormal numbers for zero.

The kernels are made when they are first called: what cannot be made raises `extension.CannotBuild`,
`nvrtc.NoNvidiaCompiler`, or what torch.mps.compile_shader raises.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

from metallab.pytorch import kernels
from metallab.pytorch.kernels import extension, nvrtc

METAL_NAMES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}


class SoftshrinkRoute(Protocol):
    """How a device computes: into given outputs, all tensors of one dtype, shape and dense layout."""

    def softshrink_forward(self, out: Tensor, x: Tensor, lambd: float) -> None:
        """Fill ``out``."""

    def softshrink_backward(self, grad_x: Tensor, grad: Tensor, x: Tensor, lambd: float) -> None:
        """Fill ``grad_x``."""


class MetalRoute:
    """The kernels of softshrink.metal, compiled for an Apple GPU or for one of NVIDIA's."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def softshrink_forward(self, out: Tensor, x: Tensor, lambd: float) -> None:
        """Fill ``out``."""
        self._run("softshrink_forward", (out, x), lambd)

    def softshrink_backward(self, grad_x: Tensor, grad: Tensor, x: Tensor, lambd: float) -> None:
        """Fill ``grad_x``."""
        self._run("softshrink_backward", (grad_x, grad, x), lambd)

    def _run(self, kernel: str, tensors: tuple[Tensor, ...], lambd: float) -> None:
        """Run a kernel on tensors of one dtype, shape and dense layout; four elements a thread where it can be."""
        n, dtype = tensors[0].numel(), tensors[0].dtype
        if dtype not in METAL_NAMES:
            raise TypeError(
                f"softshrink.metal has kernels for {', '.join(map(str, METAL_NAMES))}, not for {dtype}"
            )
        if n == 0:
            return

        flat = [tensor.as_strided((n,), (1,)) for tensor in tensors]  # a kernel sees no strides
        name = METAL_NAMES[dtype]
        if all(map(_is_aligned, flat)):
            by_four = getattr(self.library, f"{kernel}_vec4_{name}")
            by_four(*flat, lambd, n, threads=(n + 3) // 4)
        else:
            by_one = getattr(self.library, f"{kernel}_{name}")
            by_one(*flat, lambd, threads=n)


def _is_aligned(tensor: Tensor) -> bool:
    """Say whether four elements may be read at once where the tensor begins; a view may begin anywhere."""
    if tensor.device.type == "mps":
        # its data_ptr is the address of an object; its memory begins at a page
        begin = tensor.storage_offset() * tensor.element_size()
    else:
        begin = tensor.data_ptr()
    return begin % (4 * tensor.element_size()) == 0


def route(device: torch.device | str) -> SoftshrinkRoute:
    """Return the way that a device computes, made when it is first asked for: the CPU, an MPS or a CUDA device."""
    device = torch.device(device)
    if device.type == "cuda":
        return _cuda_route(torch.cuda.current_device() if device.index is None else device.index)
    return extension.load("softshrink.cpp") if device.type == "cpu" else _mps_route()


@functools.cache
def _mps_route() -> SoftshrinkRoute:
    return MetalRoute(torch.mps.compile_shader(kernels.source("softshrink.metal")))


@functools.cache
def _cuda_route(index: int) -> SoftshrinkRoute:
    with torch.cuda.device(index):
        return MetalRoute(nvrtc.compile_shader(kernels.source("softshrink.metal")))


# ---- the operator ----------------------------------------------------------------------------------------------------

DEVICES = ("cpu", "mps", "cuda")


@torch.library.custom_op("metallab::softshrink", mutates_args=(), device_types=DEVICES)
def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Compute softshrink of every element.

    Parameters
    ----------
    x
        float32, float16 or bfloat16; on the CPU float64 too.
    lambd
        Half the width of what becomes zero.

    Returns
    -------
    Tensor
        Of the shape, dtype and memory format of ``x``.

    Raises
    ------
    ValueError
        For a ``lambd`` below 0 or beyond the dtype.
    TypeError
        For a tensor of whole numbers.
    """
    out = _make_output(x, lambd)
    route(x.device).softshrink_forward(out, _lay_out_as(out, x), lambd)
    return out


@torch.library.custom_op("metallab::softshrink_backward", mutates_args=(), device_types=DEVICES)
def softshrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """Compute the gradient with respect to ``x`` from that with respect to the result; both like ``x``."""
    out = _make_output(x, lambd)
    route(x.device).softshrink_backward(out, _lay_out_as(out, grad), _lay_out_as(out, x), lambd)
    return out


@softshrink.register_fake
def _(x: Tensor, lambd: float = 0.5) -> Tensor:
    return _make_output(x, lambd)


@softshrink_backward.register_fake
def _(grad: Tensor, x: Tensor, lambd: float) -> Tensor:  # noqa: ARG001 - the operator's arguments
    return _make_output(x, lambd)


def _make_output(x: Tensor, lambd: float) -> Tensor:
    """Return an output, after checks that do not look at values."""
    if not x.is_floating_point():
        raise TypeError(f"softshrink takes floating-point tensors, not {x.dtype}")
    if not 0 <= lambd <= torch.finfo(x.dtype).max:
        raise ValueError(
            f"lambd is {lambd}; for {x.dtype} it lies between 0 and {torch.finfo(x.dtype).max:g}"
        )
    return torch.empty_like(x)


def _lay_out_as(out: Tensor, x: Tensor) -> Tensor:
    """Return ``x`` with its elements in the order in which ``out`` has them in memory; itself where it has."""
    return x if x.stride() == out.stride() else torch.empty_like(out).copy_(x)


def _keep_for_backward(ctx: Any, inputs: tuple, output: Tensor) -> None:  # noqa: ARG001 - PyTorch names it
    *_, x, ctx.lambd = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return softshrink_backward(grad, *ctx.saved_tensors, ctx.lambd), None


def _second_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    # what passes a gradient on is linear in it, and its derivative with respect to x is 0
    return softshrink_backward(grad, *ctx.saved_tensors, ctx.lambd), None, None


softshrink.register_autograd(_backward, setup_context=_keep_for_backward)
softshrink_backward.register_autograd(_second_backward, setup_context=_keep_for_backward)
