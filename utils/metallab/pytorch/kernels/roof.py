"""Is a kernel as fast as memory allows? It is timed beside a copy, which reads and writes each number, and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from metallab import allowance, checks, timing
from metallab.timing import Comparison, DeviceLike

COPY = timing.Unchecked("a copy gives something else, and moves as many bytes")


def compare(
    variants: Mapping[str, Callable[[], Tensor]], x: Tensor, *, on: DeviceLike, name: str, seconds: float = 6
) -> Comparison:
    """Time functions that make a tensor like ``x`` from ``x``, in turns with a copy of ``x``, launches back to back.

    The first is the baseline, and what the others give is compared with what it gives, within the tolerance of the
    dtype of ``x``. It measures for about so many ``seconds``, in full mode. Errors as `timing.compare`; ValueError if
    there are no variants.

    >>> roof.compare({"mine": mine}, x, on=lab, name="mine").sentences
    ['copy takes 1.03 times as long as mine (95 % interval 1.01 to 1.06, 20 pairs)']
    """
    if not variants:
        raise ValueError("there is nothing to compare with a copy: name a function, {'mine': mine}")
    baseline, *others = variants
    copied = torch.empty_like(x)
    raced = {baseline: variants[baseline], "copy": lambda: copied.copy_(x), **variants}
    parity = {**dict.fromkeys(others, checks.matches(x.dtype)), "copy": COPY}
    budget = allowance.Allowance(seconds).budget(variants=len(raced))
    return timing.compare(
        raced, on=on, baseline=baseline, parity=parity, question="throughput", name=name, budget=budget
    )
