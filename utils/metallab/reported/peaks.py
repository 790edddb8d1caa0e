"""What an Apple GPU can do at most, to catch speeds that cannot be true.

The limits follow from `metallab.reported.chips`. They are limits and not expectations: a good program reaches 80 % of
one, many reach a few per cent, and neither is an error. Where sources disagree a limit is a band from the lowest to the
highest that they allow, and only what lies above its upper end is refused.

A chip's name says nothing of its number of GPU cores, so the limit is that of the largest GPU sold under the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from metallab import reported, units
from metallab.device import Device

ALUS = 128
"""Arithmetic units of a GPU core: each does one multiply-add a cycle, which is two operations. Measured on M1 and M2 by
philipturner/metal-benchmarks; M3 and later are taken to have as many."""

MATRIX_FLOP_A_CYCLE = 1024
"""Float16 operations a cycle of the matrix units in one GPU core, estimated from measurements of the A19,
whose GPU cores are those of M5 (tzakharko.github.io/apple-neural-accelerators-benchmark). For int8, twice as many."""

ROUNDED = 1.03
"""Bandwidths are sold rounded: 204.8 GB/s as 200. So much above the label is not refused."""


@dataclass(frozen=True)
class Band:
    """A limit: between two values that sources give, or up to the one value that there is."""

    low: float | None
    """FLOP/s or B/s; None where only an upper limit is known."""
    high: float
    """What nothing passes."""
    unit: str
    why: str
    """What it was computed from."""

    def __str__(self) -> str:
        high = units.rate(self.high, self.unit)
        if self.low is None:
            return f"at most {high}"
        low = units.rate(self.low, self.unit)
        return high if low == high else f"{low} to {high}"


class ImpossibleSpeed(ValueError):
    """A speed above what the chip can do; the message says by how much, and what to look for."""


def float32(chip: str) -> Band | None:
    """Arithmetic in float32 by the formula: GPU cores x 128 ALUs x 2 operations x clock.

    Parameters
    ----------
    chip : str
        Such as ``M2 Max`` or ``Apple M2 Max``.

    Returns
    -------
    Band or None
        FLOP/s, without matrix units. Its ends are the formula with the clock that a source has, and the figure that is
        published without a method; they agree within 3 % for M1 and M2, and disagree for most of M3, M4 and M5. None
        for a chip of which neither is known.
    """
    known = reported.chip(chip)
    if known is None:
        return None

    computed = None
    if known.clock is not None:
        computed = max(known.gpu_cores) * ALUS * 2 * known.clock
    values = [value for value in (computed, known.published) if value is not None]
    if not values:
        return None

    low = min(values) if computed is not None else None
    why = f"{max(known.gpu_cores)} cores x {ALUS} ALUs x 2 x clock, and the published figure"
    return Band(low, max(values), "FLOP/s", why)


def arithmetic(chip: str, dtype: object = "float32") -> Band | None:
    """The most arithmetic that a chip's GPU can do in a format, its matrix units included.

    Parameters
    ----------
    chip : str
        Such as ``M2 Max`` or ``Apple M2 Max``.
    dtype : optional
        A name such as ``float16``, or a framework's dtype.

    Returns
    -------
    Band or None
        FLOP/s, or operations per second for int8. None where nothing is known: a chip that is not in the table,
        float64, which no Apple GPU has, and int8 without matrix units.

    Notes
    -----
    M1 and M2 do as many operations in float16 as in float32, as philipturner/metal-benchmarks measured. From M3 on
    float16 may run beside float32, so twice as many are allowed, as an upper limit: products that people measured gain
    at most 12 %. M5's matrix units do far more. Frameworks may use them for products of float32 as well, rounded to
    TF32 as MLX does by default, so they raise the limit of float32 too. A chip of which no source says whether it has
    matrix units gets the limit of one that has.
    """
    known, band = reported.chip(chip), float32(chip)
    name = units.dtype_name(dtype)
    if known is None or band is None:
        return None

    if known.has_matrix_units or known.has_matrix_units is None:
        highest_clock = band.high / (max(known.gpu_cores) * ALUS * 2)
        operations = max(known.gpu_cores) * MATRIX_FLOP_A_CYCLE * highest_clock
        why = f"{max(known.gpu_cores)} cores x {MATRIX_FLOP_A_CYCLE} x clock, of the matrix units"
        highest = {"float32": 1, "float16": 1, "bfloat16": 1, "int8": 2}.get(name)
        unit = "OP/s" if name == "int8" else "FLOP/s"
        return Band(band.low, highest * operations, unit, why) if highest else None

    if name == "float32":
        return band
    if name not in ("float16", "bfloat16"):
        return None
    if known.family in ("Apple7", "Apple8"):
        return band
    return Band(band.low, 2 * band.high, "FLOP/s", f"{band.why}; twice that as an upper limit")


def bandwidth(chip: str) -> Band | None:
    """The bandwidth of a chip's memory, as it is sold, in B/s.

    Parameters
    ----------
    chip : str
        Such as ``M2 Max`` or ``Apple M2 Max``; the fastest memory that is sold under the name counts.

    Returns
    -------
    Band or None
        Its upper end is 3 % above the label, which is rounded.
    """
    known = reported.chip(chip)
    if known is None or known.bandwidth is None:
        return None
    return Band(known.bandwidth, known.bandwidth * ROUNDED, "B/s", "the label, which is rounded")


def ridge(chip: str, dtype: object = "float32") -> Band | None:
    """The ridge point of a chip's GPU: from so many operations for each byte on arithmetic takes longer than memory.

    Parameters
    ----------
    chip : str
        Such as ``M2 Max`` or ``Apple M2 Max``.
    dtype : optional
        ``float32`` is without matrix units, as `float32` is; other formats have them where `arithmetic` does.

    Returns
    -------
    Band or None
        FLOP/B: the ends of `float32` or `arithmetic` over the bandwidth on the label. None where one of both is
        unknown.
    """
    name = units.dtype_name(dtype)
    peak = float32(chip) if name == "float32" else arithmetic(chip, name)
    memory = bandwidth(chip)
    if peak is None or memory is None or memory.low is None:
        return None

    low = peak.low / memory.low if peak.low is not None else None
    return Band(low, peak.high / memory.low, "FLOP/B", f"{peak.why}, over the label's bandwidth")


def chip_of(device: Device) -> str | None:
    """The chip of a device, such as ``M2 Max``; None if it is no Apple GPU, is simulated, or is not in the table."""
    if device.kind != "mps" or device.simulated:
        return None
    # a virtual machine says "Apple M1 (Virtual) GPU"
    name = re.sub(r" \(.*?\)", "", device.label.removesuffix(" GPU")).removeprefix("Apple ")
    return name if reported.chip(name) else None


def check_arithmetic(rate: float, chip: str, dtype: object = "float32") -> None:
    """Refuse an arithmetic rate that a chip's GPU cannot reach.

    Parameters
    ----------
    rate : float
        FLOP/s.
    chip : str
        Such as ``M2 Max``; a chip without a known limit refuses nothing.
    dtype : optional
        The format that computed.

    Raises
    ------
    ImpossibleSpeed
        The rate lies above the upper end of `arithmetic`.
    """
    _check(rate, arithmetic(chip, dtype), chip)


def check_bandwidth(rate: float, chip: str) -> None:
    """Refuse a number of bytes per second that a chip's memory cannot deliver.

    Small data lie in a cache, which is faster than memory: check only data larger than that, some 100 MB.

    Parameters
    ----------
    rate : float
        B/s, bytes read and bytes written together.
    chip : str
        Such as ``M2 Max``; a chip without a known limit refuses nothing.

    Raises
    ------
    ImpossibleSpeed
        The rate lies above the upper end of `bandwidth`.
    """
    _check(rate, bandwidth(chip), chip)


def _check(rate: float, limit: Band | None, chip: str) -> None:
    if limit is None or rate <= limit.high:
        return
    name, times = chip.removeprefix("Apple "), units.times(rate / limit.high)
    raise ImpossibleSpeed(
        f"{units.rate(rate, limit.unit)} is {times} times what an {name} can do at most ({limit}): was the GPU waited "
        "for, was the result used, and was the work counted rightly?"
    )
