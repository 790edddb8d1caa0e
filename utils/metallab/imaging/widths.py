"""From which width of a kernel the Fourier transform filters faster: measured here, or as it was on another machine.

::

    def ways_for(width):
        kernel = torch.ones(width, width, device=device) / width**2
        return {"direct": lambda: direct(picture, kernel), "FFT": lambda: by_fft(picture, kernel)}

    widths = measure(ways_for, [3, 9, 31], on=lab)
    print(widths)   # a sentence
    widths.draw()   # time over width
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from metallab import allowance, checks, mode, paths, plots, records, timing
from metallab.device import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON, SERIES = "11_filter_with_fft", "n x n"
DIRECT, FFT = "direct", "FFT"
SECONDS, PIXELS = 7.0, 200_000
"""How long all widths may take together, and the pixels that this is for: larger pictures take in proportion longer."""

Ways = Callable[[int], Mapping[str, Callable[[], Any]]]


@dataclass(frozen=True)
class Widths:
    """``FFT`` against ``direct`` at growing widths of the kernel."""

    device: str
    outcomes: Mapping[int, str]
    """By width in pixels: the FFT is ``faster``, ``slower``, ``same`` or ``inconclusive``, or ``withheld (...)``."""
    comparisons: tuple[timing.Comparison, ...] = ()
    """What was measured, for `records.save`; empty for another machine's."""
    left_out: str = ""
    """What was left out for time; empty if nothing was."""
    stored: bool = False
    """True if it was not measured here."""
    pixels: str = ""
    """What was filtered, ``384 x 512 pixels``: its height and width; empty for another machine's."""

    @property
    def crossover(self) -> int | None:
        """The smallest width from which on the FFT is faster at every width; None if it is not at the largest."""
        return timing.crossover({width: self._won(outcome) for width, outcome in self.outcomes.items()})

    @staticmethod
    def _won(outcome: str) -> bool | None:
        return outcome == "faster" if outcome in get_args(timing.Verdict) else None

    def draw(self) -> Figure:
        """Time over width with quartile bands, and a mark at the crossover. ValueError for another machine's.

        Its lines are broken at widths that other programs or a drift disturbed, and the heading names these.
        """
        if not self.comparisons:
            raise ValueError("there are no times to draw of another machine: print it, or draw what `measure` gives")
        sound = [c for c in self.comparisons if not c.withheld.get(FFT, timing.Doubt()).passes]
        lines = {way: {c[way].size.number: c[way] for c in sound} for way in (DIRECT, FFT)}
        gaps = {c[FFT].size.number: None for c in self.comparisons if c not in sound}
        n = self.crossover
        marks = {f"the FFT is faster from {n} on": n} if n else {}
        heading = f"{self.pixels} filtered in two ways{timing.not_counted(gaps)}" if sound else self.sentence
        return plots.curves(lines, xlabel="n, the kernel's width [pixels]", heading=heading, marks=marks, gaps=gaps)

    @property
    def sentence(self) -> str:
        """From which width on the FFT is faster, or that this is not known."""
        begin = f"Stored, from an earlier run on an {self.device}" if self.stored else f"On {self.device}"
        n, largest = self.crossover, max(self.outcomes)
        begin += f", {self.pixels}" if self.pixels else ""
        if n is not None:
            measured = f"measured to {largest}{self._unknown}"
            return f"{begin}: the FFT filters faster than conv2d from {n} x {n} on ({measured})."
        if all(self._won(outcome) is None for outcome in self.outcomes.values()):
            return f"{begin}: this run cannot tell from which width on the FFT is faster: {self.outcomes[largest]}."
        return (
            f"{begin}: the FFT is not shown to be faster than conv2d up to {largest} x {largest}{self._unknown}; "
            "try larger kernels."
        )

    @property
    def _unknown(self) -> str:
        """The widths that the sentence is silent about, withheld or left out for time; empty if there are none."""
        unknown = [str(width) for width, outcome in self.outcomes.items() if self._won(outcome) is None]
        return f"; nothing may be said of {', '.join(unknown)}" if unknown else ""

    def __str__(self) -> str:
        """The sentence, what holds at each width, and what was left out."""
        widths = {outcome: [] for outcome in self.outcomes.values()}
        for width, outcome in self.outcomes.items():
            widths[outcome].append(str(width))
        parts = [f"{outcome} at {', '.join(widths[outcome])}" for outcome in widths]
        return "\n".join(filter(None, [self.sentence, f"  By width: {'; '.join(parts)}.", self.left_out]))


def measure(ways_for: Ways, widths: Sequence[int], *, on: Device, seconds: float | None = None) -> Widths:
    """Time both ways at each width, in turns, after checking that they give the same picture in float32.

    ``ways_for(width)`` returns functions without arguments named ``direct`` and ``FFT``. Widths for which nothing is
    left of ``seconds`` are left out, and named: 7 s where the picture has at most 0.2 megapixels, and 35 s for each
    megapixel of a larger one, if it is not given. A sentinel watches the machine meanwhile; on NVIDIA GPUs float32
    means float32. ValueError for no widths, KeyError if a way is missing.
    """
    if not widths:
        raise ValueError("there is nothing to measure: give widths in pixels, such as [3, 9, 31]")
    import torch

    made: list[timing.Comparison] = []
    cudnn = torch.backends.cudnn
    exact = cudnn.flags(cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, allow_tf32=False)
    smallest = ways_for(min(widths))[FFT]
    shape = smallest().shape[-2:]
    larger = max(1.0, math.prod(shape) / PIXELS)
    within = allowance.Allowance(SECONDS * larger if seconds is None else seconds)
    with exact, timing.sentinel(smallest, on=on):
        for width in within.items(widths, "kernels of width"):
            ways = ways_for(width)
            made.append(
                timing.compare(
                    {DIRECT: ways[DIRECT], FFT: ways[FFT]},
                    on=on,
                    baseline=DIRECT,
                    parity=checks.matches("float32"),
                    name=f"{width} x {width}",
                    series=SERIES,
                    size=width,
                    dtype=torch.float32,
                    budget=within.budget(len(widths) - len(made), _budget(larger), variants=2),
                )
            )
    outcomes = {width: _outcome(c) for width, c in zip(widths, made, strict=False)}
    pixels = f"{' x '.join(map(str, shape))} pixels"
    return Widths(on.label, outcomes, tuple(made), str(within) if within.left_out else "", pixels=pixels)


def stored(file: str = "nvidia_h200.json") -> Widths:
    """What a reference machine's results in ``data/results`` say: ``inconclusive`` where its processes disagree.

    ValueError if the file has nothing of this page.
    """
    outcomes, device = {}, ""
    for runs in records.by_name(records.load(paths.ROOT / "data" / "results" / file)).values():
        compared, measured = runs[0].comparison, runs[0].measurement
        if runs[0].lesson != LESSON or compared is None or (compared.series, compared.variant) != (SERIES, FFT):
            continue
        sound, doubt = records.believed(runs)
        verdicts = {run.comparison.outcome for run in sound} or {_withheld(doubt)}
        outcomes[int(measured.size.number)] = verdicts.pop() if len(verdicts) == 1 else "inconclusive"
        device = measured.device
    if not outcomes:
        raise ValueError(f"{file} has no kernels of {LESSON}: name a file that has")
    return Widths(device, outcomes, stored=True)


def _outcome(compared: timing.Comparison) -> str:
    ratio = compared.ratios.get(FFT)
    return ratio.verdict if ratio else _withheld(compared.withheld[FFT])


def _withheld(doubt: timing.Doubt) -> str:
    return f"withheld ({doubt.kind or 'no verdict'})"


def _budget(larger: float) -> timing.Budget:
    """Of one width, for a picture so many times as large as the usual one."""
    full = timing.Budget(min_samples=20, min_seconds=0.2, max_seconds=3.0 * larger)
    return mode.by_mode(full=full, fast=timing.FAST)
