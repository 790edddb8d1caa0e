"""A tensor's layout in memory, without its numbers: what may matter to a kernel that computes wrongly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Distribution = Literal["rand", "randn"]
"""PyTorch's function that draws the numbers."""


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
        # the sizes in the order of memory, with room for the elements that gaps leave out
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
        """Return an expression for so many numbers of the dtype in one dimension.

        Floating and complex ones are random. Integers are 0, since they may be positions, and truth values True.
        """
        if self.dtype.is_floating_point:
            # drawn in float32 first, so that each dtype has the same numbers
            cast = "" if self.dtype == torch.float32 else f", {self.dtype}"
            return f"torch.{self.distribution}({count}).to(device{cast})"

        function: str = "zeros"
        if self.dtype.is_complex:
            function = self.distribution
        elif self.dtype == torch.bool:
            function = "ones"
        return f"torch.{function}({count}, dtype={self.dtype}).to(device)"
