"""The exercises of page 42."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from metallab import units
from metallab.exercises.judging import Right, exercise, expect, expect_that


class _Call(nn.Module):
    """PyTorch's RReLU in a network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def _await_apart(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine gives; a notebook's own loop is busy with the cell that waits for this."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


@exercise(
    "42.1",
    hint="torch.where(condition, this, that); the slope is the mean of the two",
)
def judge_rrelu(
    rrelu: Callable[..., Any], convert: Callable[..., Any], run: Callable[..., Any]
) -> Right:
    """Compare with PyTorch's RReLU in evaluation mode, and convert a network in which the answer takes its place.

    ``convert`` and ``run`` are the page's: from a network to a package, and from that to outputs.
    """
    for lower, upper in ((1 / 8, 1 / 3), (0.0, 0.5), (1.0, 2.0)):
        for x in (torch.randn(1, 1, 8, 8), torch.tensor([-2.0, 0.0, 3.0])):
            given, wanted = x.clone(), nn.RReLU(lower, upper).eval()(x)
            got = rrelu(given, lower, upper)
            is_right = (got - wanted).abs().max().item() < 2e-6
            expect(f"rrelu(x, {lower:.3g}, {upper:.3g})", got, wanted, holds=is_right)
            assert given.equal(x), "it changes x"

    off = _convert(rrelu, convert, run)
    return Right(f"Converted, it is off by {off:.1e}.")


def _convert(
    rrelu: Callable[..., Any], convert: Callable[..., Any], run: Callable[..., Any]
) -> float:
    """Convert a network in which the answer takes RReLU's place, and run it.

    Return the largest difference from PyTorch's outputs. AssertionError, with what was raised, if it cannot be
    converted or run.
    """
    from coreai_torch import get_decomp_table

    # what RReLU becomes where a network is exported: it is given, and returns, the noise of training as well
    def decompose(
        x: torch.Tensor,
        noise: torch.Tensor,
        lower: float = 1 / 8,
        upper: float = 1 / 3,
        *_: Any,
        **__: Any,
    ) -> tuple[Any, torch.Tensor]:
        return rrelu(x, lower, upper), noise

    x, network = torch.randn(1, 1, 8, 8), _Call().eval()
    operator = torch.ops.aten.rrelu_with_noise_functional.default
    table = {**get_decomp_table(), operator: decompose}
    try:
        package = convert(network, (x,), "rrelu", table=table)
        converted = _await_apart(run(package, x))
    except Exception as refusal:  # whatever the converter and the run time raise of an answer
        reason = units.first_line(refusal, kind=True)[:150]
        raise AssertionError(f"it cannot be converted: {reason}") from refusal
    return float(np.abs(converted - network(x).numpy()).max())


@exercise(
    "42.2",
    hint="function.desc.output_names has the order",
)
def judge_in_order(in_order: Callable[..., Any]) -> bool:
    """Give it outputs that arrive in another order than they are returned in, and ask for a list in the latter.

    Each array is full of its place in the list.
    """
    cases = ((["b", "a"], "ab"), (["a", "c", "b"], "cba"), (["a"], "a"))

    for returned, arrived in cases:
        got = in_order(*_plant_outputs(returned, arrived))
        case = f"returned {returned}, arrived {[*arrived]}: in_order"
        expect_that(isinstance(got, list), case, got, "a list")
        kinds = {type(array).__name__ for array in got}
        assert kinds == {"ndarray"}, f"in the list are {kinds}, expected NumPy arrays"
        numbers = [int(array[0]) for array in got]
        expect(f"{case}, by their numbers,", numbers, [*range(len(returned))])
    return True


def _plant_outputs(returned: Sequence[str], arrived: str) -> tuple[SimpleNamespace, dict[str, Any]]:
    """Return a function of a model and its outputs, with names in two orders."""
    from coreai.runtime import NDArray

    arrays = {name: np.full(2, number) for number, name in enumerate(returned)}
    outputs = {name: NDArray(arrays[name]) for name in arrived}
    return SimpleNamespace(desc=SimpleNamespace(output_names=returned)), outputs
