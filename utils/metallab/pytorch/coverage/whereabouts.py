"""Where each tensor of a trace would lie on a Mac."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from metallab.pytorch.copies import tensors_in
from metallab.pytorch.placement import Place, Placement

MOVES = (Tensor.to, Tensor.cpu, Tensor.type, Tensor.type_as)
"""Methods that may take a tensor elsewhere."""

MADE_ON_THE_CPU = ("from_numpy", "frombuffer", "as_tensor", "tensor")
"""Functions whose result lies on the CPU unless they are given a device, or a tensor on another one."""

STAYS_ON_THE_CPU = {"_pack_padded_sequence": 1, "_pad_packed_sequence": 1}
"""Functions of which one result, by its number, lies on the CPU wherever the others do: the sizes of the batches of a
packed sequence, and the lengths of an unpacked one (aten/src/ATen/native/PackedSequence.cpp)."""

AS_ON_A_MAC = {
    Tensor.device.__get__: torch.device("mps:0"),
    Tensor.is_mps.__get__: True,
    Tensor.is_cpu.__get__: False,
}
"""By the function that reads it, what an attribute of a tensor on the GPU is on a Mac: a model that asks is told this,
and not the device of the trace."""


class Whereabouts:
    """Says where a tensor of a trace would lie on a Mac.

    In a trace on the ``meta`` device it is what stands there that would lie on the GPU. In one on the CPU it has to be
    noted for each tensor as it is made: what the model and its inputs hold is moved to the GPU beforehand, an operator
    computes where its arguments lie, and a function may name a device. What comes from elsewhere, such as a tensor of
    a module of Python, stays on the CPU.

    Parameters
    ----------
    device
        Where the trace computes: ``meta`` or ``cpu``.
    is_followed
        Whether places are noted in a trace on the CPU. If not, no tensor's place is known.
    """

    def __init__(self, device: str, is_followed: bool) -> None:
        self.device = device
        self._placement = Placement() if is_followed and device == "cpu" else None
        self._wanted: Place | None = None
        """Where the function that runs is told to put what it makes; None if it is not told."""
        self._around: Place | None = None
        """Where the tensors lie that the function that runs was given."""

    @property
    def is_noted(self) -> bool:
        """True in a trace on the CPU in which places are noted."""
        return self._placement is not None

    # ---- where something lies

    def find(self, tensor: Tensor) -> Place | None:
        """Return where a tensor would lie; None if that is not known."""
        if self._placement is not None:
            return self._placement.get(tensor) or Place.CPU
        if self.device == "cpu":
            return None
        return Place.GPU if tensor.device.type == self.device else Place.CPU

    def find_any(self, values: Any) -> Place | None:
        """Return GPU if a tensor among values lies there, CPU if all are known to lie there, else None."""
        places = {self.find(leaf) for leaf in list_tensors(values)}
        if Place.GPU in places:
            return Place.GPU
        return Place.CPU if places == {Place.CPU} else None

    # ---- what is put where

    def place_parts(self, *values: Any) -> None:
        """Note that what was moved lies on the GPU: parameters, buffers and inputs.

        What modules keep besides, such as a tensor in a list, ``model.to`` leaves on the CPU. Nothing is noted where
        the device of the trace tells the place.
        """
        if self._placement is None:
            return

        roots = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, nn.Module)]
        modules = [part for root in roots for part in root.modules()]
        for module in modules:
            self._placement.set(module.parameters(recurse=False), Place.GPU)
            self._placement.set(module.buffers(recurse=False), Place.GPU)
        self._placement.set(tensors_in(values), Place.GPU)

        kept = tensors_in([vars(module) for module in modules])
        self._placement.set([each for each in kept if self._is_new(each)], Place.CPU)

    def place_results(self, operator: Any, arguments: Any, result: Any) -> None:
        """Note where an operator has put what it made: where its function wants it, else with its arguments."""
        if self._placement is None:
            return

        # a view lies where the memory is that it shares
        made = [leaf for leaf in list_tensors(result) if self._is_new(leaf)]
        place = self._find_place_of_results(operator, arguments)
        if place is not None:
            self._placement.set(made, place)

    def _find_place_of_results(self, operator: Any, arguments: Any) -> Place | None:
        takes_device = any(each.name == "device" for each in operator._schema.arguments)
        if takes_device and self._wanted is not None:
            return self._wanted
        if list_tensors(arguments):
            return self.find_any(arguments)
        return self._around or Place.CPU

    def _is_new(self, tensor: Tensor) -> bool:
        """Return True for a tensor whose memory was not seen before."""
        return self._placement is not None and self._placement.get(tensor) is None

    # ---- functions that move

    def call(self, call: Callable[..., Any], function: Callable, args: Any, kwargs: Any) -> Any:
        """Call a function of PyTorch, follow where it puts what it makes, and return that.

        Parameters
        ----------
        call
            Takes the function and its arguments, and calls it.
        function, args, kwargs
            As the model has them: they may name the device ``mps``.
        """
        wanted = self._find_wanted(function, args, kwargs)
        with self._noting(wanted, self.find_any((args, kwargs))):
            args, kwargs = self._name_traced_device(function, args, kwargs)
            if wanted is Place.CPU and function in MOVES:
                tensor, *others = args
                args = (self._move(tensor), *others)  # before a dtype changes, which MPS may lack
            elif function in MOVES:
                # its operators' results count as where the tensor lies; the result is moved below, so that its gradient
                # goes back
                self._wanted = None
            result = call(function, *args, **kwargs)

            number = STAYS_ON_THE_CPU.get(getattr(function, "__name__", ""))
            if self._placement is not None and number is not None:
                self._placement.set([result[number]], Place.CPU)

            self._wanted = wanted
            if wanted is None:
                return result
            return pytree.tree_map_only(Tensor, self._move, result)

    @contextlib.contextmanager
    def _noting(self, wanted: Place | None, around: Place | None) -> Iterator[None]:
        """Have what the block makes lie where a function wants it, or where its arguments lie."""
        before = self._wanted, self._around
        self._wanted, self._around = wanted, around
        try:
            yield
        finally:
            self._wanted, self._around = before

    def _find_wanted(self, function: Callable, args: Any, kwargs: Any) -> Place | None:
        """Return where a function is told to put what it makes; None if it is not told, or nothing is noted."""
        if self._placement is None:
            return None
        if function == Tensor.cpu:
            return Place.CPU
        # its operators are given numbers, not the tensor whose device it takes
        if function == Tensor.new_tensor and kwargs.get("device") is None:
            return self.find(args[0])

        destination = _find_destination(function, args, kwargs)
        if isinstance(destination, Tensor):
            return self.find(destination)
        if destination is not None:
            places = {"mps": Place.GPU, "cpu": Place.CPU}
            return places.get(torch.device(destination).type)

        name = getattr(function, "__name__", "")
        is_new = name in MADE_ON_THE_CPU and not list_tensors((args, kwargs))
        return Place.CPU if is_new else None

    def _name_traced_device(
        self, function: Callable, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return a function's arguments with the device of the trace in place of mps.

        By position, `Tensor.to` alone takes a device.
        """

        def rename(value: Any) -> Any:
            is_mps = isinstance(value, str | torch.device) and str(value).startswith("mps")
            return self.device if is_mps else value

        if "device" in kwargs:
            kwargs = kwargs | {"device": rename(kwargs["device"])}
        if function == Tensor.to:
            args = tuple(map(rename, args))
        return args, kwargs

    def _move(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or where it would lie elsewhere a copy, in the place that is wanted."""
        assert self._placement is not None
        assert self._wanted is not None
        source = self.find(tensor)
        if source is not None and source is not self._wanted:
            return self._move_with_gradient(tensor, source, self._wanted)

        self._placement.set([tensor], self._wanted)
        return tensor

    def _move_with_gradient(self, tensor: Tensor, source: Place, target: Place) -> Tensor:
        """Return a copy of a tensor in another place, whose gradient is copied back to where the tensor lies.

        Both are on the device of the trace, so autograd alone would leave the gradient in the place of the copy.
        """
        copy_to = self._copy_to

        class Move(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(tensor: Tensor) -> Tensor:
                return copy_to(target, tensor)

            @staticmethod
            def setup_context(_context: Any, inputs: Any, output: Any) -> None:
                """Keep nothing; vmap and the like want this function."""

            @staticmethod
            def backward(_context: Any, gradient: Tensor) -> Tensor:
                return copy_to(source, gradient)

        return Move.apply(tensor)

    def _copy_to(self, place: Place, tensor: Tensor) -> Tensor:
        """Return a copy that would lie in a place."""
        # in a backward pass, too, this is no call of the model's, so it is not asked what it would be on a Mac
        with self._noting(place, self._around), torch._C.DisableTorchFunction():
            return tensor.to(tensor.device, copy=True)


def list_tensors(values: Any) -> list[Tensor]:
    """Return the tensors among arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _find_destination(
    function: Callable, args: Any, kwargs: Any
) -> str | torch.device | Tensor | None:
    """Return the device, or the tensor on it, that a call names for what it makes; None if it names none.

    It is named by ``device=``, or as an argument of one of the methods that move. Of `Tensor.type`, which takes a
    dtype, that is the CPU for ``torch.FloatTensor`` and its like.
    """
    if kwargs.get("device") is not None:
        return kwargs["device"]
    if function not in (Tensor.to, Tensor.type, Tensor.type_as):
        return None

    second = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("dtype"))
    if function == Tensor.type:
        return "cpu" if _is_cpu_type(second) else None
    return second if isinstance(second, str | torch.device | Tensor) else kwargs.get("other")


def _is_cpu_type(value: Any) -> bool:
    """Return True for ``torch.FloatTensor`` or its name: a dtype on the CPU. ``torch.mps.FloatTensor`` is none."""
    if isinstance(value, type):
        value = f"{value.__module__}.{value.__name__}"
    return isinstance(value, str) and re.fullmatch(r"torch\.\w+Tensor", value) is not None
