"""The exercises of page 12."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import metalsim
from metallab.exercises.judging import exercise, expect, expect_that, is_near

NAN, INFINITY = float("nan"), float("inf")

PLACES = ("first", "second", "third")
"""The layers of a model with a hidden fault."""
NEEDS = ("weight layout", "input layout", "offset", "size")
"""What a hidden fault may need."""


@exercise(
    "12.1",
    hint="where are both finite? everywhere else they have to be the same",
)
def judge_layer_error(layer_error: Callable[..., Any]) -> bool:
    """Ask for the error of layers whose values are finite, infinite and NaN.

    It is the largest difference over the root mean square of the exact values, of those that are finite. Where one of
    both is infinite or NaN the other has to be the same, or the error is infinite. The tensors have to stay as they
    are.
    """
    exact = [3.0, -4.0, 0.0, NAN, INFINITY]
    cases: list[tuple[list, list, float]] = [  # exact, given, the error
        (exact, exact, 0.0),
        (exact, [3.0, -3.5, 0.0, NAN, INFINITY], 0.5 / (25 / 3) ** 0.5),
        (exact, [3.0, -4.0, NAN, NAN, INFINITY], INFINITY),
        (exact, [3.0, INFINITY, 0.0, NAN, INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, 5.0, INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, INFINITY, INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, NAN, -INFINITY], INFINITY),
        (exact, [3.0, -4.0, 0.0, NAN, 7.0], INFINITY),
        ([3.0, -4.0, INFINITY, -INFINITY], [3.0, -4.0, -INFINITY, INFINITY], INFINITY),
        ([[3.0, 4.0], [4.0, 3.0]], [[2.0, 4.5], [1.0, 2.0]], 3 / 12.5**0.5),
    ]

    for *pair, wanted in cases:
        tensors = [torch.tensor(part, dtype=torch.float64) for part in pair]
        got = layer_error(*tensors)
        # as texts, since NaN is not equal to itself
        kept = str([t.tolist() for t in tensors]) == str(pair)
        assert kept, f"it changes {pair}"
        # `is_near` cannot compare infinities
        near = got == wanted or is_near(got, wanted, relative=0)
        expect(f"layer_error({pair[0]}, {pair[1]})", got, wanted, holds=near)
    return True


@exercise(
    "12.2",
    hint="split counts rows unless the tensor is flat; f may give another dtype",
)
def judge_in_parts(in_parts: Callable[..., Any]) -> bool:
    """Apply functions to tensors of several shapes in parts of so many numbers at most, and compare with the whole.

    The result has to have the shape and the dtype of the function's own, the function may be given no more numbers at
    once, and x has to stay as it is.
    """
    cases: list[tuple[Callable[..., Any], tuple[int, ...], int]] = [  # function, shape, most
        (torch.relu, (50, 3), 32),
        (torch.exp, (23,), 3),
        (torch.neg, (5, 3, 2), 7),
        (torch.isnan, (4, 4), 5),
        (torch.relu, (6,), 10),
        (torch.exp, (3, 0), 2),
        (torch.exp, (), 2),
    ]

    for function, shape, most in cases:
        x = torch.linspace(-2, 2, torch.Size(shape).numel()).view(shape)
        x = x.transpose(0, -1)  # so that view(-1) raises, and reshape is wanted
        kept, wanted = x.clone(), function(x)
        noting = _Noting(function)
        got = in_parts(noting, x, most)

        case = f"in_parts(torch.{function.__name__}, x, {most}) for x of {tuple(x.shape)}"
        assert x.equal(kept), f"{case}: x is changed"
        largest = max(noting.sizes, default=0)
        assert largest <= most, f"{case}: f is given {largest} at once, expected {most} at most"
        expect_that(isinstance(got, torch.Tensor), case, got, "a tensor")
        expect(f"{case}, as shape,", tuple(got.shape), tuple(wanted.shape))
        expect(f"{case}, as dtype,", got.dtype, wanted.dtype)
        expect(case, got, wanted, holds=got.equal(wanted))
    return True


class _Noting:
    """A function that notes how many numbers it is given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.sizes: list[int] = []

    def __call__(self, part: torch.Tensor) -> torch.Tensor:
        self.sizes.append(part.numel())
        return self.function(part)


# ---- a fault that follows from a name --------------------------------------------------------------------------------


@dataclass(frozen=True)
class HiddenFault:
    """A fault, and a model one layer of which meets it."""

    fault: str
    """Its name in `metalsim.FAULTS`."""
    operator: str
    """The operator that is wrong."""
    needs: str
    """One of `NEEDS`."""
    make: Callable[[str], tuple[nn.Module, tuple[Tensor, ...]]]
    """Given one of `PLACES`, returns a model that meets the fault in that layer alone, and its inputs."""


class _Stack(nn.Module):
    """Three layers; one of them is given its input through a function."""

    def __init__(
        self, make_layer: Callable[[], nn.Module], place: str, change: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        for name in PLACES:
            self.add_module(name, make_layer())
        self.place, self.change = place, change

    def forward(self, x: Tensor) -> Tensor:
        for name in PLACES:
            if name == self.place:
                x = self.change(x)
            x = self.get_submodule(name)(x)
        return x


class _Blend(nn.Module):
    """A layer of one operator with three arguments."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcdiv(x, x, x.abs() + 1)


class _Rectifier(nn.Module):
    """A ReLU of its input, which is repeated some times and averaged again."""

    def __init__(self) -> None:
        super().__init__()
        self.repeats = 1

    def forward(self, x: Tensor) -> Tensor:
        rectified = torch.relu(x.repeat(self.repeats, 1))
        return rectified.unflatten(0, (self.repeats, -1)).mean(0)


def _return_same(x: Tensor) -> Tensor:
    return x


def _transpose_weight(place: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    stack = _Stack(lambda: nn.Linear(12, 12), place, _return_same)
    layer = stack.get_submodule(place)
    assert isinstance(layer, nn.Linear)
    layer.weight = nn.Parameter(layer.weight.detach().t())
    return stack, (torch.randn(5, 12),)


def _transpose_input(place: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    stack = _Stack(lambda: nn.Conv2d(4, 4, 3, padding=1), place, lambda x: x.transpose(2, 3))
    return stack, (torch.randn(2, 4, 6, 6),)


def _leave_out_first(place: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return _Stack(_Blend, place, lambda x: x[1:]), (torch.randn(65, requires_grad=True),)


def _repeat_input(place: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    stack = _Stack(_Rectifier, place, _return_same)
    layer = stack.get_submodule(place)
    assert isinstance(layer, _Rectifier)
    layer.repeats = 3  # 38400 numbers, and 12800 in the other layers
    return stack, (torch.randn(64, 200, requires_grad=True),)


HIDDEN_FAULTS = (
    HiddenFault(
        "linear, non-contiguous weight", "aten::linear", "weight layout", _transpose_weight
    ),
    HiddenFault(
        "conv2d, non-contiguous input", "aten::convolution", "input layout", _transpose_input
    ),
    HiddenFault("addcdiv, odd offset", "aten::addcdiv", "offset", _leave_out_first),
    HiddenFault(
        "ReLU's gradient, above 32768 elements", "aten::threshold_backward", "size", _repeat_input
    ),
)


def choose_fault(name: str) -> tuple[HiddenFault, str]:
    """Return the fault that follows from a name, and the layer that meets it."""
    number = int.from_bytes(hashlib.sha256(name.strip().lower().encode()).digest()[:8], "big")
    fault = HIDDEN_FAULTS[number % len(HIDDEN_FAULTS)]
    return fault, PLACES[number // len(HIDDEN_FAULTS) % len(PLACES)]


@contextlib.contextmanager
def hide_fault(name: str) -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
    """Plant a fault on an Apple GPU, real or simulated, within the ``with``, and give a model that meets it.

    Parameters
    ----------
    name
        Of whoever looks for it: the fault and the layer follow from it, whatever its capitals.

    Yields
    ------
    model : torch.nn.Module
        Its layers are called as `PLACES`.
    inputs : tuple of Tensor
        What it is called with.

    Raises
    ------
    ValueError
        If the name is no text, or an empty one.
    metalsim.SimulationError
        Where there is no ``mps``, be it simulated.
    """
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a fault follows from a name: give yours as a text, not {name!r}")
    hidden, place = choose_fault(name)

    # the weights are the same for everybody, and the page's own random numbers go on as if there were none
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", metalsim.PlantedFault)  # it says which one
        torch.manual_seed(0)
        with metalsim.plant(hidden.fault):
            yield hidden.make(place)


@exercise(
    "12.3",
    hint="print what divergence.find returns: its first sentence names layer, operator and what the fault needs",
)
def judge_found(found: Any) -> bool:
    """Compare layer, operator and condition with those of the fault that follows from the name, all of them texts.

    The message says which of them is wrong, and not what is right.
    """
    is_list = isinstance(found, list | tuple) and len(found) == 4
    if not is_list or not all(isinstance(each, str) for each in found):
        raise AssertionError(
            f"found is {found!r}, expected four texts: your name, the layer, the operator, and what it needs"
        )

    name, layer, operator, needs = found
    hidden, place = choose_fault(name)
    assert layer == place, f"the layer is another one than {layer!r}"
    assert operator == hidden.operator, f"the operator is another one than {operator!r}"
    assert needs in NEEDS, f"what it needs is {needs!r}, expected one of {', '.join(NEEDS)}"
    assert needs == hidden.needs, f"it needs something else than {needs!r}"
    return True
