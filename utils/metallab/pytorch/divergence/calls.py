"""A call of an operator: with tensors, with their layouts, or with names in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from metallab.pytorch.divergence.layouts import Layout

# source text for operators that only MPS has; it is part of the program for a bug report
REFERENCES = {
    "aten::_scaled_dot_product_attention_math_for_mps": "torch.ops.aten._scaled_dot_product_attention_math.default",
    "aten::_lstm_mps": "torch.ops.aten.lstm.input",
    "aten::linear_backward": (
        "lambda x, g, w, mask: [value for value, wanted in zip("
        "(g @ w, g.flatten(0, -2).mT @ x.flatten(0, -2), g.flatten(0, -2).sum(0)), mask) if wanted]"
    ),
}

# how many results, from the first one on, are the same everywhere: those behind them are what an operator keeps for its
# gradient, in a form that each device and each dtype may choose
_COUNTS_OF_RESULTS = {
    "aten::_lstm_mps": 3,  # the output, the last hidden state and the last cell state
}
_BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
_MODE_OF_A_SUM = 0


def is_floating(tensor: Tensor) -> bool:
    """Return True for floating and complex tensors."""
    return tensor.is_floating_point() or tensor.is_complex()


def to_float64(tensor: Tensor) -> Tensor:
    """Return a floating tensor in float64, a complex one in complex128, and any other as it is."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def whole_storage(tensor: Tensor) -> Tensor:
    """Return the whole memory that a tensor is a view of, in one dimension."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


class Placeholder(str):
    """A name that stands in a call's place for a tensor; its ``repr`` is the name."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True)
class Call:
    """A call of an operator with tensors, or a `Layout` or a `Placeholder` in place of each."""

    operator: Any
    """A ``torch._ops.OpOverload``."""
    args: tuple
    kwargs: dict

    @property
    def name(self) -> str:
        """``aten::add``."""
        return self.operator.name().partition(".")[0]

    @property
    def short_name(self) -> str:
        """``add``."""
        return self.name.rpartition("::")[2]

    @property
    def arguments(self) -> dict[str, Any]:
        """The given ones, by name."""
        names = [argument.name for argument in self.operator._schema.arguments]
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments, with defaults."""
        schema = self.operator._schema.arguments
        return {argument.name: argument.default_value for argument in schema} | self.arguments

    @property
    def named_tensors(self) -> list[tuple[str, Any]]:
        """Each tensor, or what stands in its place, with its argument's name."""
        return [
            (name, leaf)
            for name, value in self.arguments.items()
            for leaf in tree_leaves(value)
            if isinstance(leaf, Tensor | Layout | Placeholder)
        ]

    @property
    def tensors(self) -> list[Any]:
        """The tensors among the arguments, or what stands in their place."""
        return [leaf for _, leaf in self.named_tensors]

    @property
    def written_arguments(self) -> list[str]:
        """The names of the arguments that it writes to, by its schema."""
        return [
            argument.name
            for argument in self.operator._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    def replace(self, kind: Any, change: Callable[[Any], Any]) -> Call:
        """Return the call with ``change(argument)`` in place of each argument of a type."""
        return Call(self.operator, *tree_map_only(kind, change, (self.args, self.kwargs)))

    def copy_to_cpu(self, change: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Call:
        """Return a copy on the CPU whose tensors share memory as those of this call do.

        Parameters
        ----------
        change
            Applied once to each storage, in one dimension, such as `to_float64`; by default nothing is changed. A
            tensor without such a storage, as a sparse one, is given to it whole.
        """
        copies: dict[Any, Tensor] = {}
        """By storage: its copy, which all views of the storage share."""

        def copy(value: Any) -> Any:
            """Return a tensor as a view of the copy of its storage, and the CPU in place of a device."""
            if isinstance(value, torch.device):
                return torch.device("cpu")
            tensor = value.detach()
            if not _has_plain_storage(tensor):  # such as a sparse one, which shares nothing
                return change(tensor.to("cpu", copy=True))

            # one copy for each storage, device and dtype; a view may also be conjugated or negated lazily, as its whole
            # storage is then, while another view of the same memory is not
            key = (*_storage_key(tensor), tensor.is_conj(), tensor.is_neg())
            if key not in copies:
                storage = whole_storage(tensor).to("cpu", copy=True)
                copies[key] = change(storage.resolve_conj().resolve_neg())
            return copies[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        return self.replace((torch.device, Tensor), copy)

    def place_like(self, other: Call) -> Call:
        """Return ``other`` with copies of this call's tensors in place of its own, each on the device of the other's.

        So a call whose arguments were kept on the CPU can be made on the device again. Tensors share memory as in this
        call, with its layouts and offsets.

        Parameters
        ----------
        other
            A call of the same operator with as many tensors, in the same order.

        Raises
        ------
        RuntimeError
            PyTorch's, if a copy finds no memory.
        """
        mine = iter(self.tensors)  # which `replace` goes through in the same order
        copies: dict[Any, Tensor] = {}
        """By device and storage: its copy there."""

        def place(there: Tensor) -> Tensor:
            tensor = next(mine)
            if not _has_plain_storage(tensor):
                return tensor.to(there.device, copy=True)

            key = (there.device, *_storage_key(tensor))
            if key not in copies:
                copies[key] = whole_storage(tensor).to(there.device, copy=True)
            return copies[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        return other.replace(Tensor, place)

    def compute(self) -> Any:
        """Call the operator, or its entry in `REFERENCES`, and return what it returns."""
        function = self.operator
        if self.name in REFERENCES:
            function = eval(REFERENCES[self.name], {"torch": torch})
        return function(*self.args, **self.kwargs)


def count_comparable(call: Call) -> int | None:
    """Return how many results of a call, from the first one on, are the same everywhere; None if all of them are.

    Of a sum of embeddings in bags that is the sum alone. What stands behind it is the bookkeeping of its gradient,
    which the CPU's short cut for float32 leaves empty, while float64 fills it in.
    """
    if call.name in _BAGS and call.settings["mode"] == _MODE_OF_A_SUM:
        return 1
    return _COUNTS_OF_RESULTS.get(call.name)


def _has_plain_storage(tensor: Tensor) -> bool:
    """Return True if a tensor is a view of one storage, by shape, stride and offset."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_nested


def _storage_key(tensor: Tensor) -> tuple[torch.device, int, torch.dtype]:
    return tensor.device, tensor.untyped_storage().data_ptr(), tensor.dtype
