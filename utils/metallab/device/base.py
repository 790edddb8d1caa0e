"""What the devices of all frameworks have in common."""

from __future__ import annotations

import contextlib
import html
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from metallab import machine, plain_cells

Kind = Literal["mps", "cuda", "cpu"]
DEVICE_NAMES = ("mps", "cuda", "cpu", "sim")
NAMES = ("auto", *DEVICE_NAMES)
"""What `pick` takes: the name of a device, or ``auto``, which is no device but the best one that is there."""
BEST_FIRST: tuple[Kind, ...] = ("mps", "cuda", "cpu")
SENTINEL_ROWS = 512
"""Rows and columns of the matrices that a sentinel multiplies: milliseconds on two cores, less on a GPU."""
Framework = Literal["torch", "tensorflow", "jax", "mlx"]
TITLES: dict[Framework, str] = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "mlx": "MLX",
}


class DeviceUnavailable(RuntimeError):
    """The device that was asked for is not on this machine, or does not compute correctly."""


@dataclass(frozen=True)
class Device:
    """A device that a run uses; one that computes is of a framework's own class, derived from this one."""

    kind: Kind
    """PyTorch's name of it."""
    hardware: str
    """Its name: ``Apple M2 Max GPU``, ``NVIDIA H200``."""
    simulated: bool = False
    """True for the simulated Apple GPU, whose times say nothing about a Mac."""
    threads: int | None = None
    """CPU only: the number of threads that the framework may use while the device is measured."""
    framework: Framework = "torch"
    """Whose device this is."""
    instead_of: str = ""
    """Why this is not the device that the run asked for; empty if it is."""

    waits_for_results = False
    """True if only results can be waited for (JAX, MLX)."""

    @property
    def label(self) -> str:
        """The hardware's name as it stands beside every number, with the wrong kernels that are planted now."""
        planting = sys.modules.get("metalsim.planting") if self.kind == "mps" else None
        wrong_kernels = planting.list_planted() if planting else ()
        return self.hardware + "".join(f", PLANTED wrong: {name}" for name in wrong_kernels)

    def make_sentinel_work(self) -> Callable[[], Any]:
        """Return a piece of work that is the same each time, for a sentinel of `metallab.timing`.

        A product of two matrices on the device, which each framework makes in its own way.
        """
        raise NotImplementedError(f"{type(self).__name__} does not compute: it has no work to time")

    def synchronize(self, *results: Any) -> None:
        """Return when all that was launched on this device, and the given results, are done."""
        raise NotImplementedError(f"{type(self).__name__} does not compute: nothing runs on it")

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the framework computes here, with this device's settings."""
        raise NotImplementedError(f"{type(self).__name__} does not compute: nothing runs on it")

    def banner(self) -> Banner:
        """Return what a notebook shows first: the hardware that this run used, and whether it is real."""
        return Banner(self)


@dataclass(frozen=True)
class Banner:
    """One line that says on which hardware a page was run."""

    device: Device

    def __str__(self) -> str:
        device = self.device
        title = TITLES[device.framework]
        if device.simulated:
            return (
                f"SIMULATED: this page ran on a {device.label}. The code runs as on a Mac; "
                "no time on this page says anything about a Mac."
            )

        if device.kind == "cpu":
            by = f", by {title}" if device.framework != "torch" else ""
            why = f" ({device.instead_of})" if device.instead_of else ""
            no_gpu = "No GPU takes part: no time measured here is a GPU's."
            return _join(f"This page ran on {device.label}{by}{why}. {no_gpu}")
        return _join(f"This page ran on {device.label} ({title} device '{device.kind}').")

    def _repr_html_(self) -> str:
        colour = "#d55e00" if self.device.simulated else "#0072b2"
        style = f"border-left:.4em solid {colour};padding:.5em 1em;font-weight:600"
        return f'<div style="{style}">{html.escape(str(self))}</div>'


def _join(sentence: str) -> str:
    """Return a banner's sentence, with what ``mps`` is in this notebook if that is not this device."""
    return " ".join(filter(None, [sentence, plain_cells.describe_mps()]))


def require_picked(on: Any) -> None:
    """Raise TypeError for a device's name, or another thing that cannot be waited for, in place of a picked device."""
    if not hasattr(on, "synchronize"):
        raise TypeError(
            f"on is {on!r}, which cannot be waited for: give metallab.device.pick({str(on)!r})"
        )


def choose_name(name: str) -> str:
    """Return the name that counts: the one that is given or, for "auto", that of ``METALLAB_DEVICE``.

    ValueError for a name that does not exist.
    """
    chosen = (os.environ.get("METALLAB_DEVICE") or "auto") if name == "auto" else name
    if chosen not in NAMES:
        raise ValueError(
            f"there is no device {chosen!r}; METALLAB_DEVICE and pick() take one of {', '.join(NAMES)}"
        )
    return chosen


def chip() -> str:
    """Return this machine's chip, as it stands in labels."""
    return machine.describe().chip or "unknown"


PRODUCTS_APART = " (products: Accelerate's own threads)"
"""In the label of a CPU: what its number of threads does not hold."""


def cpu_label(threads: int, apart: str = "") -> str:
    """Return what stands beside numbers of a CPU.

    Parameters
    ----------
    threads
        With how many it computes.
    apart
        What that number does not hold, as `PRODUCTS_APART`.
    """
    noun = "threads" if threads > 1 else "thread"
    return f"{chip()}{apart} CPU, {threads} {noun}"


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def number_in(variable: str) -> int:
    """Return the whole number that an environment variable holds; 0 if it holds none."""
    text = os.environ.get(variable)
    return int(text) if text and text.isdigit() else 0
