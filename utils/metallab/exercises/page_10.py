"""The exercises of page 10."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from metallab.exercises.judging import exercise, expect, expect_that
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
    """Return what the answer makes of an array where the page's variable ``device`` names this place.

    The answer takes no device, but uses that variable, among the globals of its cell; afterwards it is as before.
    """
    # `check` has wrapped the answer, whose globals are the page's
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
    """Move arrays of each dtype to the page's device, and to ``meta``, which has dtypes and shapes but no numbers.

    Floating numbers have to become float32, before they are moved, since Metal has no float64; other dtypes stay. Where
    the page's device is the CPU, only ``meta`` shows that a tensor is left there.
    """
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

    for name, numbers in cases.items():
        array, case = np.array(numbers, dtype=name), f"to_device of {name} {numbers}"
        dtype = torch.float32 if name.startswith("float") else getattr(torch, name)
        for place in (device.type, "meta"):
            got = _move(to_device, array.copy(), place)
            expect(f"{case}, as dtype,", getattr(got, "dtype", got), dtype)
            expect(f"for {place} {case}", got.device.type, place)
            expect(f"{case}, as shape,", tuple(got.shape), array.shape)

        made = _move(to_device, array.copy(), device.type).cpu().numpy()
        wanted = array.astype(made.dtype)
        expect(case, made, wanted, holds=np.array_equal(made, wanted))
    return True


def _pick_as_found(scores: torch.Tensor, recent: torch.Tensor) -> int:
    """Return what the function of the page returns on a CPU."""
    ages = torch.arange(1, recent.shape[1] + 1)
    seen = functional.one_hot(recent, 96).transpose(1, 2)
    repeats = functional.linear(seen, ages[None])[..., 0]

    best = (scores - 0.1 * repeats).argmax(-1)
    return int(best.mode().values)


def _make_drafts(seed: int, drafts: int, lately: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores of 96 characters for each draft, and the numbers of its recent characters.

    Most drafts choose the same character, ``early``, and only if the penalty of a recent character grows with its place
    among them: without a penalty, or with an equal one for all, they choose ``late``. The last drafts choose another.
    """
    random = torch.Generator().manual_seed(seed)
    # none of them is among the other recent characters, which are below 48
    late, early, other = (48 + torch.randperm(48, generator=random)[:3]).tolist()
    recent = torch.randint(48, (drafts, lately), generator=random)
    recent[:, 0], recent[:, -1] = early, late  # of a single character the second stays

    scores = torch.randn(drafts, 96, generator=random)
    most = drafts // 2 + 1
    scores[:most, late], scores[:most, early] = 20.0, 19.95
    scores[most:, other] = 25.0
    return scores, recent


@exercise(
    "10.2",
    hint="what is float64, what is made on the CPU, what gets whole numbers, and which operator has no kernel?",
)
def judge_pick(pick: Callable[..., Any], device: torch.device) -> bool:
    """Compare the picked character with that of the function as found, on the CPU and on the page's device.

    The result has to lie on that device, and each operator to run on MPS, by PyTorch's tables of operators.
    """
    for seed, drafts, lately in ((0, 1, 1), (1, 5, 12), (2, 9, 3), (3, 7, 30)):
        scores, recent = _make_drafts(seed, drafts, lately)
        wanted = _pick_as_found(scores, recent)
        for place in dict.fromkeys(("cpu", device.type)):  # once, where both are the CPU
            # copies, so that an answer that subtracts in place does not do it twice
            got = pick(scores.to(place, copy=True), recent.to(place, copy=True))
            case = f"pick of {drafts} drafts with {lately} recent characters, on {place},"
            is_index = isinstance(got, torch.Tensor) and got.numel() == 1
            expect_that(is_index, case, got, "a tensor with one character's number")
            expect(case, int(got), wanted)
            expect(f"{case} as device", got.device.type, place)

    asked = coverage.mps_coverage(pick, scores, recent)
    assert asked.runs, asked.answer
    return True
