"""What a device can reach at most, to catch times that cannot be true.

The figures are the makers' own; the rates of M2 Pro and M2 Ultra follow from their numbers of cores and are unverified.
A device that is not in the table has no peak, and nothing is checked against it. They are limits and not expectations:
reaching a few per cent of one is no error.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import psutil

from metallab import units
from metallab.device import Device


@dataclass(frozen=True)
class Peak:
    """A limit in FLOP/s or B/s, and who says so."""

    value: float
    source: str


APPLE = "Apple's specification of the chip"
NVIDIA = "NVIDIA's data sheet, dense"

# Unified memory, GB/s. Where a name was sold with several memory configurations the larger figure stands.
_APPLE_BANDWIDTH = {
    "M1": 68.3, "M1 Pro": 200, "M1 Max": 400, "M1 Ultra": 800,
    "M2": 100, "M2 Pro": 200, "M2 Max": 400, "M2 Ultra": 800,
    "M3": 100, "M3 Pro": 150, "M3 Max": 400, "M3 Ultra": 819,
    "M4": 120, "M4 Pro": 273, "M4 Max": 546,
    "M5": 153, "M5 Pro": 307, "M5 Max": 614,
}  # fmt: skip
# TFLOP/s in float32, the largest GPU sold under the name; M2 Pro and M2 Ultra follow from their cores, unverified.
_APPLE_TFLOPS = {
    "M1": 2.6, "M1 Pro": 5.2, "M1 Max": 10.4, "M1 Ultra": 21,
    "M2": 3.6, "M2 Pro": 6.8, "M2 Max": 13.6, "M2 Ultra": 27.2,
}  # fmt: skip
_HOPPER = {"float32": 67, "tf32": 494.7, "float16": 989.4, "bfloat16": 989.4, "float64": 67}
_AMPERE = {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312, "float64": 19.5}
_NVIDIA_TFLOPS = {"NVIDIA H200": _HOPPER, "NVIDIA H100": _HOPPER, "NVIDIA A100": _AMPERE}
_NVIDIA_BANDWIDTH = {"NVIDIA H200": 4800, "NVIDIA H100": 3938, "NVIDIA A100": 2039}


def flops(on: Device, dtype: Any) -> Peak | None:
    """The peak arithmetic rate of a device in FLOP/s, or None if it is not known or the device is simulated.

    ``dtype`` is the format that computes: ``"tf32"`` where float32 is rounded to TensorFloat-32 on an NVIDIA GPU.
    """
    name = units.dtype_name(dtype)
    if on.simulated:
        return None
    if on.kind == "cuda":
        rate = _of_nvidia(_NVIDIA_TFLOPS, on.label, {}).get(name)
        return Peak(rate * 1e12, NVIDIA) if rate else None
    if on.kind == "mps":
        # an upper limit: on M1 and M2 float16 is published as no faster than float32 (philipturner/metal-benchmarks)
        times = {"float32": 1, "float16": 2, "bfloat16": 2}.get(name)
        rate = _of_apple(_APPLE_TFLOPS, on.label)
        return Peak(rate * times * 1e12, APPLE) if rate and times else None
    return _cpu_flops(on, name) if on.kind == "cpu" else None


def bandwidth(on: Device) -> Peak | None:
    """The peak memory bandwidth of a GPU in B/s, or None if it is not known; CPUs have too many caches to have one."""
    if on.simulated or on.kind not in ("cuda", "mps"):
        return None
    if on.kind == "cuda":
        rate, source = _of_nvidia(_NVIDIA_BANDWIDTH, on.label, None), NVIDIA
    else:
        rate, source = _of_apple(_APPLE_BANDWIDTH, on.label), APPLE
    return Peak(rate * 1e9, source) if rate else None


def _cpu_flops(on: Device, dtype: str) -> Peak | None:
    """A ceiling that no x86 core passes: two 512-bit multiply-adds each cycle at the highest clock.

    Intel's optimisation manual: 2 units x 16 floats x 2 operations are 64 FLOP per cycle in float32, half in float64.
    Tiles for half precision (AMX) are far above that, so half precision has no ceiling here, nor has an Apple CPU.
    """
    per_cycle = {"float32": 64, "float64": 32}.get(dtype)
    if per_cycle is None or "Apple" in on.label:
        return None
    cores = on.threads or psutil.cpu_count() or 1
    clock = _highest_clock()
    return Peak(cores * clock * per_cycle, f"{cores} cores x {per_cycle} FLOP a cycle x {clock / 1e9:g} GHz")


@functools.cache
def _highest_clock() -> float:
    """Hertz; 6 GHz, above any server's, where the system does not tell."""
    try:
        frequency = psutil.cpu_freq()
    except (FileNotFoundError, RuntimeError, NotImplementedError):
        frequency = None
    megahertz = max(frequency.max, frequency.current) if frequency else 0
    return max(megahertz * 1e6, 6e9)


def _of_apple(table: dict[str, float], label: str) -> float | None:
    """The chip's whole name counts: an M5 Max is no M5, and one that is not listed has no limit."""
    chip = re.sub(r" \(.*\)", "", label.removesuffix(" GPU"))  # a virtual machine says "Apple M1 (Virtual)"
    return table.get(chip.removeprefix("Apple "))


def _of_nvidia(table: dict[str, Any], label: str, otherwise: Any) -> Any:
    """The name may go on, as in ``NVIDIA H100 80GB HBM3``; the table holds the fastest sold under it."""
    return next((rates for name, rates in table.items() if re.match(rf"{name}\b", label)), otherwise)
