"""Copies of models and of what they are given: on a device, or with each tensor changed, however deep it lies."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.utils._pytree import tree_map


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a model, also of one that keeps results, as `torch.nn.utils.weight_norm` does.

    Tensors that are results of others are detached in the copy: ``deepcopy`` refuses them. ``memo`` is ``deepcopy``'s.
    """
    leaf = Tensor.__deepcopy__

    def each(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if tensor.is_leaf:
            return leaf(tensor, memo)
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)  # which deepcopy notes in its memo

    with mock.patch.object(Tensor, "__deepcopy__", each):
        made = copy.deepcopy(model, memo)
    for weight in made.parameters():
        if not weight.is_leaf:  # of a scripted module, which is copied in C++
            weight.detach_().requires_grad_()
    return made


def mapped(do: Callable, value: Any, do_module: Callable = lambda module: module) -> Any:
    """Return a copy of a value, with its containers, dataclasses and objects, in which ``do`` replaces each tensor."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return do(leaf)
        if isinstance(leaf, nn.Module):
            return do_module(leaf)
        with contextlib.ExitStack() as patched:
            for kind in (Tensor, nn.Parameter):
                patched.enter_context(mock.patch.object(kind, "__deepcopy__", lambda tensor, memo: do(tensor)))
            try:
                return copy.deepcopy(leaf)
            except Exception:  # noqa: BLE001 - what cannot be copied, such as a lock, is given as it is
                return leaf

    return tree_map(one, value)


def tensors_in(value: Any) -> list[Tensor]:
    """Return every tensor in a value, however deep it lies, but those of modules."""
    found: list[Tensor] = []
    mapped(lambda tensor: found.append(tensor) or tensor, value)
    return found
