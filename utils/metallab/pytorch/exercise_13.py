"""Checks of the exercises of page 13: a predicted relu, and a CPU with two rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from metallab import mode, timing
from metallab.isolated import Skipped
from metallab.pytorch import predictions
from metallab.pytorch.predictions import Explanation
from metallab.roofline import Bench, Work

CpuSeconds = Callable[[float, float, float, float, float], float]
"""Of bytes, overhead, rate in the cache, rate outside, and size of the cache."""


def predict_relu(
    seconds: Callable[[Any, torch.Tensor], Any],
    without: Callable[[torch.Tensor, torch.Tensor], Any],
    bench: Bench,
    z: torch.Tensor,
) -> Any:
    """Measure ``torch.relu(z)`` after its prediction, and the experiment that is to explain the difference.

    Parameters
    ----------
    seconds : callable
        Predicts from the machine and z.
    without : callable
        Computes the same from z and memory of its size, without what the count left out. It may return ``...``.
    bench : metallab.roofline.Bench
        The machine.
    z : torch.Tensor
        What relu is taken of.

    Returns
    -------
    metallab.pytorch.predictions.Explanation or ...
        ``...`` where nothing was predicted.

    Raises
    ------
    AssertionError
        As `metallab.pytorch.predictions.explain`.
    """
    predicted = seconds(bench.machine, z)
    if predicted is ...:
        return ...

    result = torch.empty_like(z)
    is_tried = without(z, result) is not ...

    def measure(call: Callable[[], Any]) -> float:
        work = Work(z.numel(), 2 * z.nbytes)
        return bench.measure(call, work, "exercise", _choose_budget()).measurement.median

    return predictions.explain(
        predicted,
        call=lambda: torch.relu(z),
        without=(lambda: without(z, result)) if is_tried else None,
        is_same=_is_same,
        measure=measure,
    )


def _choose_budget() -> timing.Budget:
    """A second, since a page has a minute."""
    return mode.by_mode(full=timing.Budget(max_seconds=1.0), fast=timing.FAST)


def _is_same(expected: Any, got: Any) -> bool:
    return isinstance(got, torch.Tensor) and torch.equal(expected, got)


def judge_relu(explanation: Explanation, bench: Bench) -> bool | Skipped:
    """Judge a prediction: right where it held or was explained, open otherwise.

    Parameters
    ----------
    explanation : Explanation
        From `predict_relu`.
    bench : metallab.roofline.Bench
        A simulated device has no times.

    Returns
    -------
    bool or metallab.isolated.Skipped
        Never False: what this machine does is no mistake of yours.
    """
    print(explanation)
    if bench.on.simulated:
        return Skipped("a simulated GPU has no times of its own")
    return predictions.judge(explanation)


def judge_two_rates(cpu_seconds: CpuSeconds) -> bool:
    """Judge the time of moving bytes by a CPU with a cache.

    Parameters
    ----------
    cpu_seconds : callable
        Of bytes, overhead, rate in the cache, rate outside of it, and the bytes that fit into the cache.

    Returns
    -------
    bool
        True for the overhead and, behind it, the bytes at the rate of the place where all of them lie.

    Raises
    ------
    AssertionError
        Names the first case in which it returns something else.
    """
    overhead, cached, uncached, cache = 3e-6, 200e9, 20e9, 1e6
    for moved in (0.0, 1e3, 1e6, 1.1e6, 64e6):
        wanted = overhead + moved / (cached if moved <= cache else uncached)
        got = cpu_seconds(moved, overhead, cached, uncached, cache)
        is_near = isinstance(got, int | float) and abs(got - wanted) <= 1e-6 * wanted
        assert is_near, f"{moved:g} bytes take {got!r} seconds, and should take {wanted:.4g}"
    return True


def find_crossover(
    cpu_seconds: Callable[[float], float],
    gpu_seconds: Callable[[float], float],
    bytes_a_number: int,
    largest: int = 2**30,
) -> int | None:
    """Return the power of two from which on a GPU wins, by two functions of bytes.

    Parameters
    ----------
    cpu_seconds, gpu_seconds : callable
        Seconds for so many bytes.
    bytes_a_number : int
        That are moved for each number.
    largest : int
        Numbers, at most.

    Returns
    -------
    int or None
        How many numbers; None if the GPU does not win at the largest size.
    """
    won = None
    size = largest
    while size >= 1 and gpu_seconds(size * bytes_a_number) < cpu_seconds(size * bytes_a_number):
        won, size = size, size // 2
    return won
