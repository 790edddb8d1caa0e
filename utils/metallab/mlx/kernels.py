"""`mx.fast.metal_kernel` where there is no Metal: MLX writes the kernel's text, and a CPU runs it.

MLX is given a function's body, and writes the signature around it from the arrays of a call. It does so in its Linux
build, too, where a function is only written down (`mx.export_function`); what it writes is printed with
``verbose=True``. `generate` reads that, and `install` has it compiled by `metalsim.shader` and run. So the text is
MLX's own; that Metal's compiler takes it, only a Mac can say.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
import torch

_PRELUDE = """#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;
"""
"""What of MLX's own header, which it puts before each kernel, kernels here can use: its names of dtypes."""

_KERNEL = re.compile(r"\[\[kernel\]\] void (\w+)\(")
written_by_mlx = mx.fast.metal_kernel
"""MLX's own, also after `install`."""


def install() -> str:
    """Have `mx.fast.metal_kernel` work on this machine; returns who runs its kernels, in a sentence.

    On a Mac nothing is changed. Elsewhere the kernels that are made from now on are computed on the CPU, at once and
    not when they are waited for, and their times say nothing.
    """
    if mx.metal.is_available():
        return "Metal runs the kernels of MLX."
    mx.fast.metal_kernel = SimulatedKernel
    return "SIMULATED: the kernels of MLX run on this CPU, from the text that MLX writes for a Mac."


def generate(kernel: Callable[..., Any], inputs: Sequence[Any], **call: Any) -> str:
    """Return the Metal text that MLX makes of a kernel for a call: signature, body, and what its template is made for.

    Nothing is computed.

    Parameters
    ----------
    kernel
        What `written_by_mlx` gave.
    inputs, call
        What it would be called with.

    Raises
    ------
    ValueError
        Where MLX refuses the call.
    """
    arrays = [mx.array(value) for value in inputs]

    def function(*traced: mx.array) -> list[mx.array]:
        return kernel(inputs=list(traced), **call | {"verbose": True})

    # to write a function down, MLX calls it once and computes nothing; the file is not needed
    with tempfile.TemporaryDirectory() as folder, _what_is_printed() as printed:
        mx.export_function(str(Path(folder, "kernel.mlxfn")), function, *arrays)
        printed.seek(0)
        text = printed.read().decode()
    # it is printed between two lines of ```, after a heading
    return text.split("```\n")[1].strip() + "\n"


@dataclass(frozen=True)
class SimulatedKernel:
    """What `mx.fast.metal_kernel` gives, on a CPU: takes the same arguments, and is called in the same way."""

    name: str
    input_names: Sequence[str]
    output_names: Sequence[str]
    source: str
    header: str = ""
    ensure_row_contiguous: bool = True
    atomic_outputs: bool = False
    compile_options: Any = None

    def __call__(  # noqa: PLR0913 - MLX's arguments
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        """Return the outputs, arrays of ``output_shapes`` and ``output_dtypes``; ``grid`` is in threads.

        What a kernel does not write holds ``init_value``, or without one NaN (whole numbers: -1). ValueError where MLX
        refuses the call, and for its gradient, which a kernel has not; SyntaxError for a body that does not compile. A
        ``stream`` changes nothing: the kernel runs on the CPU before this returns.
        """
        text = generate(
            written_by_mlx(**self._arguments),
            inputs,
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
            grid=grid,
            threadgroup=threadgroup,
            template=template,
            init_value=init_value,
        )
        if verbose:
            print(f"Generated source code for `{self.name}`:\n```\n{text}```")

        @mx.custom_function  # for which MLX can be told what to do about a gradient
        def run(*arrays: mx.array) -> list[mx.array]:
            kinds = zip(output_shapes, output_dtypes, strict=True)
            outputs = [_empty(shape, dtype, init_value) for shape, dtype in kinds]

            # no group is larger than the grid, as on a Mac
            group = tuple(min(sizes) for sizes in zip(threadgroup, grid, strict=True))
            launch = _compile(text, not self.ensure_row_contiguous)
            launch(*self._buffers(arrays), *outputs, threads=tuple(grid), group_size=group)
            return [mx.array(output) for output in outputs]

        @run.vjp
        def refuse(*_: Any) -> None:
            raise ValueError("[Primitive::vjp] Not implemented for CustomKernel.")  # MLX's words

        return run(*(mx.array(value) for value in inputs))

    @property
    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def _buffers(self, arrays: Sequence[mx.array]) -> Iterator[torch.Tensor]:
        """Yield each input and, where the body names them, shape, strides and number of dimensions, in MLX's order.

        Strides count elements. The dtypes are those that MLX gives these parameters in the signature that it writes:
        a kernel takes no other ones.
        """
        for name, array in zip(self.input_names, arrays, strict=True):
            if self.ensure_row_contiguous:
                array = mx.contiguous(array)  # noqa: PLW2901 - the same numbers
            tensor = torch.from_dlpack(array)
            yield tensor

            if f"{name}_shape" in self.source:
                yield torch.tensor(tensor.shape, dtype=torch.int32)
            if f"{name}_strides" in self.source:
                yield torch.tensor(tensor.stride(), dtype=torch.int64)
            if f"{name}_ndim" in self.source:
                yield torch.tensor(tensor.ndim, dtype=torch.int32)


def _empty(shape: Sequence[int], dtype: mx.Dtype, init_value: float | None) -> torch.Tensor:
    """Return memory for a kernel to fill."""
    tensor = torch.from_dlpack(mx.zeros(shape, dtype))
    if init_value is not None:
        return tensor.fill_(init_value)
    return tensor.fill_(float("nan") if tensor.is_floating_point() else -1)


@functools.cache
def _compile(text: str, strided: bool) -> Callable[..., None]:
    """Return the kernel of a text that MLX has written."""
    from metalsim import shader

    library = shader.compile_shader(_PRELUDE + text, strided=strided)
    declaration = _KERNEL.search(text)
    assert declaration is not None, text  # MLX writes one
    return getattr(library, declaration[1])


@contextlib.contextmanager
def _what_is_printed() -> Iterator[IO[bytes]]:
    """Yield a file with what C++ prints meanwhile, which `contextlib.redirect_stdout` does not see."""
    sys.stdout.flush()
    shown = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield file
        finally:
            os.dup2(shown, 1)
            os.close(shown)
