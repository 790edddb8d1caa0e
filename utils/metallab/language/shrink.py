"""Weights in 8 or 4 bits, in groups that share a scale: the kind that language models are passed around in.

Plain PyTorch: a product makes its weights whole again first. So memory shrinks, and time does not; kernels that
multiply by the small numbers themselves are MLX's, llama.cpp's and others'.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

BITS = (8, 4)
Model = TypeVar("Model", bound=nn.Module)


class GroupedLinear(nn.Module):
    """A linear layer whose weights are whole numbers of ``bits`` bits. A bias stays as it is.

    Each ``group`` neighbours in a row share a scale and a smallest value, both in float16: so a weight takes
    ``bits + 32 / group`` bits. Two weights of 4 bits share a byte.
    """

    def __init__(self, linear: nn.Linear, bits: int, group: int) -> None:
        """ValueError for other bits than `BITS`, or a group that does not divide the inputs evenly."""
        super().__init__()
        if bits not in BITS:
            raise ValueError(f"bits is {bits}: this packs weights into 8 or 4")
        if group < 2 or group % 2 or linear.in_features % group:
            raise ValueError(f"group is {group}: give an even number that divides {linear.in_features}")
        self.bits, self.group, self.bias = bits, group, linear.bias
        weight = linear.weight.detach().float().unflatten(1, (-1, group))
        low, high = weight.amin(2, keepdim=True), weight.amax(2, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).clamp_min(torch.finfo(torch.float16).tiny)
        low, scale = low.half(), scale.half()
        levels = ((weight - low) / scale).round().clamp(0, 2**bits - 1).to(torch.uint8).flatten(1)
        self.register_buffer("levels", levels if bits == 8 else levels[:, ::2] | levels[:, 1::2] << 4)
        self.register_buffer("scale", scale)
        self.register_buffer("low", low)
        self.register_buffer("like", linear.weight.new_empty(0), persistent=False)  # has the dtype of what is computed

    @property
    def weight(self) -> Tensor:
        """The weights as numbers again, (outputs, inputs): PyTorch's attention reads its layers' by this name."""
        levels, dtype = self.levels, self.like.dtype
        if self.bits == 4:
            levels = torch.stack([levels & 15, levels >> 4], 2).flatten(1)
        return (levels.unflatten(1, (-1, self.group)).to(dtype) * self.scale.to(dtype) + self.low.to(dtype)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """``x``, (..., inputs), times the weights, plus the bias: (..., outputs)."""
        return functional.linear(x, self.weight, self.bias)


def shrunk(model: Model, bits: int, group: int = 32) -> Model | GroupedLinear:
    """A copy with each `nn.Linear` as `GroupedLinear`, be it the model itself, and attention's last; all else stays.

    ValueError as there, or if there is none.
    """
    small = copy.deepcopy(model)
    if type(small) is nn.Linear:
        return GroupedLinear(small, bits, group)
    linear = [
        (module, name, child)
        for module in small.modules()
        for name, child in module.named_children()
        if type(child) in (nn.Linear, NonDynamicallyQuantizableLinear)  # others that inherit may compute otherwise
    ]
    if not linear:
        raise ValueError("no linear layer inside: give a model that has some")
    for module, name, child in linear:
        setattr(module, name, GroupedLinear(child, bits, group))
    return small
