"""The exercises of page 10."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from metallab.exercises.judging import exercise, expect, require_attempt
from metallab.pytorch import coverage


class LikeMetal(TorchDispatchMode):
    """A device that has no float64."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = operator(*args, **(kwargs or {}))
        is_wide = getattr(made, "dtype", None) == torch.float64 and made.is_meta
        assert not is_wide, "a float64 tensor is moved, and Metal has no float64"
        return made


def _move(to_device: Callable[..., Any], array: np.ndarray, place: str) -> Any:
    """Return what the answer makes if the page's `device` is another one."""
    space = getattr(inspect.unwrap(to_device), "__globals__", {})
    here = space.get("device")
    space["device"] = torch.device(place)
    try:
        with LikeMetal():
            return to_device(array)
    finally:
        space["device"] = here


@exercise(
    "10.1",
    hint="which dtype does Metal not have? is_floating_point() tells",
)
def judge_to_device(to_device: Callable[..., Any], device: torch.device) -> bool:
    """Move arrays of each dtype to the page's device, and to one that computes nothing."""
    cases: dict[str, Any] = {
        "float64": [[1.5, -0.1, 1e-6], [np.inf, 1e30, 0.0]],
        "float32": [3.14159, -2.0],
        "float16": [1.5, -0.1],
        "int64": [7, -(2**40)],
        "int32": -8,  # of no dimension
        "int16": [],
        "int8": [-3],
        "uint8": [200, 7],
        "bool": [True, False],
    }
    to_device(np.ones(2, "float32"))

    for name, numbers in cases.items():
        array, case = np.array(numbers, dtype=name), f"to_device of {name} {numbers}"
        dtype = torch.float32 if name.startswith("float") else getattr(torch, name)
        for place in (device.type, "meta"):  # meta computes no numbers
            got = _move(to_device, array.copy(), place)
            expect(f"{case}, as dtype,", getattr(got, "dtype", got), dtype)
            expect(f"for {place} {case}", got.device.type, place)
            expect(f"{case}, as shape,", tuple(got.shape), array.shape)

        made = _move(to_device, array.copy(), device.type).cpu().numpy()
        wanted = array.astype(made.dtype)
        expect(case, made, wanted, holds=np.array_equal(made, wanted))
    return True


@exercise(
    "10.2",
    hint="make the numbers where x is: torch.arange(..., device=...)",
)
def judge_numbered(numbered: type, device: torch.device) -> bool:
    """Number the columns on the CPU, on the page's device, and where nothing is computed."""
    cases = [((0, 3), torch.float32), ((2, 3), torch.float32), ((2, 4), torch.float16)]
    cases += [((3, 1), torch.int64), ((3, 2), torch.uint8)]
    require_attempt(numbered()(torch.ones(2, 2)))

    for shape, dtype in cases:
        module = numbered()
        table = torch.arange(-7, shape[0] * shape[1] - 7).view(shape).to(dtype)
        wanted = table + torch.arange(shape[1])  # as it was
        for x in (table.clone(), table.to(device)):
            _judge_one(module, x, wanted)
        if dtype.is_floating_point:
            learns = module(table.clone().requires_grad_()).requires_grad
            assert learns, "gradients do not pass it: x cannot be trained any more"

        away = module(table.to("meta"))  # where no numbers are computed
        expect("for x on meta it", away.device.type, "meta")
        asked = coverage.mps_coverage(module, table)
        assert asked.runs, asked.answer
    return True


def _judge_one(module: torch.nn.Module, x: torch.Tensor, wanted: torch.Tensor) -> None:
    """Judge one call of the module."""
    before = x.clone()
    got, case = module(x), f"Numbered()({x.tolist()}) of {x.dtype}"

    expect(f"{case}, as dtype,", getattr(got, "dtype", got), wanted.dtype)
    expect(case, got, wanted, holds=torch.equal(got.cpu(), wanted))
    expect(f"for x on {x.device} it", got.device, x.device)
    assert torch.equal(x, before), "it changes its input"
