"""A tensor's layout in memory, and what it holds, without its numbers: what may matter to a kernel that is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Distribution = Literal["rand", "randn"]
"""PyTorch's function that draws the numbers."""
DISTRIBUTIONS: tuple[Distribution, ...] = ("rand", "randn")


@dataclass(frozen=True)
class Layout:
    """A tensor's layout; `source` is an expression for such a tensor with random numbers."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Its dimensions, that with the largest stride first."""
    has_gaps: bool
    """Not dense: every second element of its innermost dimension."""
    offset: int
    """In its storage, in elements."""
    dtype: torch.dtype
    expanded: tuple[int, ...] = ()
    """Dimensions along which all elements lie at one place."""
    distribution: Distribution = "rand"
    is_on_cpu: bool = False
    """It lies there, while other arguments lie on the device."""
    has_nan: bool = False
    """A floating tensor whose first element is NaN."""
    is_unwritten: bool = False
    """Memory that nobody has written to."""
    integers: tuple[int, int] = (0, 0)
    """The smallest and the largest, if it has integers; from the largest downwards each is there."""
    has_hidden_row: bool = False
    """The first row, along the last dimension, is False throughout, or minus infinity: as a mask, it hides all."""

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        """Return the layout of a tensor.

        A tensor without elements counts as contiguous, since no layout of it matters.
        """
        shape = tuple(tensor.shape)
        offset = int(tensor.storage_offset())
        dimensions = tuple(range(tensor.dim()))
        if tensor.is_contiguous() or not tensor.numel():
            return Layout(shape, dimensions, False, offset, tensor.dtype)

        expanded = tuple(d for d in dimensions if tensor.stride(d) == 0 and shape[d] > 1)
        # an expanded dimension, whose stride is 0, counts as the outermost
        strides = [stride or math.inf for stride in tensor.stride()]
        order = tuple(sorted(dimensions, key=strides.__getitem__, reverse=True))

        # without expansion and in the order of memory, it is contiguous unless elements are left out
        one_of_each = tuple(slice(0, 1) if d in expanded else slice(None) for d in dimensions)
        has_gaps = not tensor[one_of_each].permute(order).is_contiguous()
        return Layout(shape, order, has_gaps, offset, tensor.dtype, expanded)

    def hold(self, value: Tensor) -> Layout:
        """Return the layout with what a tensor on the CPU holds; of complex numbers nothing is noted."""
        if not value.numel() or value.is_complex():
            return self
        hides = ~value if value.dtype == torch.bool else value == -torch.inf
        has_hidden_row = value.dim() > 0 and bool(hides.all(-1).any())
        if value.is_floating_point():
            has_nan = bool(value.isnan().any())
            return replace(self, has_nan=has_nan, has_hidden_row=has_hidden_row)
        if value.dtype != torch.bool:
            return replace(self, integers=(int(value.min()), int(value.max())))
        return replace(self, has_hidden_row=has_hidden_row)

    @property
    def plain(self) -> Layout:
        """The layout without what it holds."""
        return replace(self, has_nan=False, integers=(0, 0), has_hidden_row=False)

    @property
    def is_permuted(self) -> bool:
        """Whether its dimensions lie in another order than in a contiguous tensor."""
        return list(self.order) != sorted(self.order)

    @property
    def is_contiguous(self) -> bool:
        """Whether a tensor of this layout is contiguous."""
        return not (self.expanded or self.has_gaps or self.is_permuted)

    @property
    def source(self) -> str:
        """An expression for such a tensor with random numbers; it uses ``torch`` and ``device``.

        It draws numbers in one dimension, and makes views of them: at the offset, in the order of memory, with gaps,
        permuted, and expanded, each only if the layout has it.
        """
        # the sizes in the order of memory: 1 where all elements lie at one place, and twice as many where gaps leave
        # out every second one
        in_memory = [1 if d in self.expanded else self.shape[d] for d in self.order]
        if self.has_gaps:
            in_memory[-1] *= 2
        count = math.prod(in_memory)

        text = self._storage_source(self.offset + count)
        if self.offset:
            text += f"[{self.offset}:]"
        if in_memory != [count]:
            text += f".view({in_memory})"
        if self.has_gaps:
            text += "[..., ::2]"
        if self.is_permuted:
            text += f".permute({[self.order.index(d) for d in range(len(self.order))]})"
        if self.expanded:
            text += f".expand({list(self.shape)})"
        return text

    def _storage_source(self, count: int) -> str:
        """Return an expression for so many numbers of the dtype, in one dimension, where the argument lay.

        They are made on the CPU and moved, so that the CPU and the device compute with the same numbers. A floating
        dtype other than float32 is cast to on the way: ``torch.randn(6).to(device, torch.float16)``.
        """
        numbers = self._numbers_source(count)
        if self.is_on_cpu:
            return numbers

        if self.dtype == torch.bool and self.has_hidden_row:
            numbers = f"({numbers})"  # a comparison, of which .to would take the right side alone
        if self.dtype.is_floating_point and self.dtype != torch.float32:
            return f"{numbers}.to(device, {self.dtype})"
        return f"{numbers}.to(device)"

    def _numbers_source(self, count: int) -> str:
        """Return the expression for so many numbers on the CPU.

        Floating and complex ones are random. Integers are 0, since they may be positions, unless `integers` says
        otherwise, and truth values True.
        """
        if self.dtype.is_floating_point:
            # drawn in float32 first, so that each dtype has the same numbers
            numbers = f"torch.{self.distribution}({count})"
            if self.has_nan:
                numbers += f".index_fill(0, torch.tensor({self.offset}), torch.nan)"
            if self.has_hidden_row:
                row = f"torch.arange({self.offset}, {self.offset + self.shape[-1]})"
                numbers += f".index_fill(0, {row}, -torch.inf)"
            is_cast = self.is_on_cpu and self.dtype != torch.float32
            return f"{numbers}.to({self.dtype})" if is_cast else numbers

        if self.dtype.is_complex:
            return f"torch.{self.distribution}({count}, dtype={self.dtype})"
        if self.dtype == torch.bool:
            return self._truth_source(count)
        smallest, largest = self.integers
        if largest <= 0:  # negative ones alone are 0 as well
            return f"torch.zeros({count}, dtype={self.dtype})"
        return (
            f"torch.arange({largest}, {largest - count}, -1).clamp(min={smallest}).to({self.dtype})"
        )

    def _truth_source(self, count: int) -> str:
        """Return the expression for so many truth values on the CPU."""
        if not self.has_hidden_row:
            return f"torch.ones({count}, dtype={self.dtype})"
        return f"torch.arange({count}) >= {self.offset + self.shape[-1]}"
