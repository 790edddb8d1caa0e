"""From which width of a kernel the Fourier transform filters faster: measured here, or on another machine (page 11)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from metallab import allowance, checks, mode, paths, records, timing
from metallab.device import Device

LESSON, SERIES = "11_filter_with_fft", "n x n"
DIRECT, FFT = "direct", "FFT"
SECONDS, PIXELS = 7.0, 200_000
"""How long all widths may take together, and the pixels that this is for: larger pictures take in proportion longer."""

Ways = Callable[[int], Mapping[str, Callable[[], Any]]]


def measure(
    ways_for: Ways, widths: Sequence[int], *, on: Device, seconds: float | None = None
) -> tuple[list[timing.Comparison], str]:
    """Time both ways at each width, in turns, after checking that they give the same picture in float32.

    A sentinel watches the machine meanwhile; on NVIDIA GPUs float32 means float32.

    Parameters
    ----------
    ways_for
        ``ways_for(width)`` returns functions without arguments named ``direct`` and ``FFT``.
    seconds
        By default 7 where the picture has at most 0.2 megapixels, and 35 for each megapixel of a larger one.

    Returns
    -------
    comparisons, left_out
        One for each width that fitted into ``seconds``, and the widths that did not, as text.
    """
    import torch

    made: list[timing.Comparison] = []
    cudnn = torch.backends.cudnn
    exact = cudnn.flags(cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, allow_tf32=False)
    smallest = ways_for(min(widths))[FFT]
    larger = max(1.0, math.prod(smallest().shape[-2:]) / PIXELS)
    within = allowance.Allowance(SECONDS * larger if seconds is None else seconds)
    full = timing.Budget(min_samples=20, min_seconds=0.2, max_seconds=3.0 * larger)
    with exact, timing.sentinel(smallest, on=on):
        for width in within.items(widths, "kernels of width"):
            ways = ways_for(width)
            budget = mode.by_mode(full=full, fast=timing.FAST)
            compared = timing.compare(
                {DIRECT: ways[DIRECT], FFT: ways[FFT]},
                on=on,
                baseline=DIRECT,
                parity=checks.matches("float32"),
                name=f"{width} x {width}",
                series=SERIES,
                size=width,
                dtype=torch.float32,
                budget=within.budget(len(widths) - len(made), budget, variants=2),
            )
            made.append(compared)
    return made, str(within) if within.left_out else ""


def outcomes(comparisons: Sequence[timing.Comparison]) -> dict[int, str]:
    """By width, whether the FFT is ``faster``, ``slower``, ``same`` or ``inconclusive``, or ``withheld (...)``."""
    made = {}
    for compared in comparisons:
        ratio = compared.ratios.get(FFT)
        width = int(compared[FFT].size.number)
        made[width] = ratio.verdict if ratio else f"withheld ({compared.withheld[FFT].kind or 'no verdict'})"
    return made


def stored(file: str) -> str:
    """The `sentence` of a reference machine's results in ``data/results``.

    A width is ``inconclusive`` where its processes disagree. ValueError if the file has nothing of this page.
    """
    found, device = {}, ""
    for runs in records.by_name(records.load(paths.ROOT / "data" / "results" / file)).values():
        compared, measured = runs[0].comparison, runs[0].measurement
        if runs[0].lesson != LESSON or compared is None or (compared.series, compared.variant) != (SERIES, FFT):
            continue
        sound, doubt = records.believed(runs)
        verdicts = {run.comparison.outcome for run in sound} or {f"withheld ({doubt.kind})"}
        found[int(measured.size.number)] = verdicts.pop() if len(verdicts) == 1 else "inconclusive"
        device = measured.device
    if not found:
        raise ValueError(f"{file} has no kernels of {LESSON}: name a file that has")
    return sentence(f"Stored, from an earlier run on an {device}", found)


def crossover(outcomes: Mapping[int, str]) -> int | None:
    """The smallest width from which on the FFT is faster at every width of which something may be said, or None."""
    return timing.crossover({width: _won(outcome) for width, outcome in outcomes.items()})


def _won(outcome: str) -> bool | None:
    return outcome == "faster" if outcome in get_args(timing.Verdict) else None


def sentence(where: str, outcomes: Mapping[int, str]) -> str:
    """The `crossover` in a sentence, with the widths of which nothing may be said."""
    unknown = [str(width) for width, outcome in outcomes.items() if _won(outcome) is None]
    aside = f"; nothing may be said of {', '.join(unknown)}" if unknown else ""
    first, largest = crossover(outcomes), max(outcomes)
    if len(unknown) == len(outcomes):
        return f"{where}: this run cannot tell from which width on the FFT is faster: {outcomes[largest]}."
    if first is None:
        return f"{where}: the FFT is not shown to be faster than conv2d up to {largest} x {largest}{aside}."
    return f"{where}: the FFT filters faster than conv2d from {first} x {first} on (measured to {largest}{aside})."
