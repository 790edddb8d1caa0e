"""What TensorFlow, JAX and MLX have in common: not simulated, and an Apple GPU is a plugin's, if one is installed.

Where a framework has no GPU of its own the CPU is taken, and the banner says that, and why.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys

from metallab import isolated, units
from metallab.device import jax, mlx, tensorflow
from metallab.device.base import (
    BEST_FIRST,
    TITLES,
    Device,
    DeviceUnavailable,
    Framework,
    chip,
    cpu_label,
)

FRAMEWORKS = {"tensorflow": tensorflow, "jax": jax, "mlx": mlx}


def pick(name: str, wanted: str, framework: Framework) -> Device:
    """The device of a framework for a name, which stands for ``wanted``; see `metallab.device.pick`."""
    faults = {}
    for kind in BEST_FIRST if wanted == "auto" else (wanted,):
        if (fault := probe(kind, framework)) is None:
            return known(kind, framework, "; ".join(faults.values()) if wanted == "auto" else "")
        if wanted != "auto" or _installed_for(kind, framework):
            faults[kind] = fault
    if name != "auto":
        raise DeviceUnavailable(
            f"{wanted} was asked for, but {faults[wanted]}; pick() takes the best device there is"
        )
    return known("cpu", framework, f"the run asked for {wanted}, but {faults[wanted]}")


def known(kind: str, framework: Framework, instead_of: str = "") -> Device:
    """A device that is known to be there."""
    of = FRAMEWORKS[framework]
    if kind == "cpu":
        label = cpu_label(of.threads(), of.apart() if framework == "mlx" else "")
        return of.DEVICE("cpu", label, threads=of.threads(), instead_of=instead_of)
    return of.DEVICE(kind, f"{chip()} GPU" if kind == "mps" else of.nvidia_name())


def probe(kind: str, framework: Framework) -> str | None:
    """What keeps a framework from computing on a device, or None: a small product is compared with the right one.

    On a Mac the plugin is tried in a child process first, because some abort the process that loads them.
    """
    title = TITLES[framework]
    if kind == "cpu":
        return None
    if kind == "sim":
        return f"{title} is not simulated"
    if kind == "mps" and (fault := _plugin_fault(framework)):
        return fault
    if kind not in FRAMEWORKS[framework].kinds():
        return f"{title} sees no {kind} device on this machine"
    try:
        wrong = error_of_product(kind, framework)
    except Exception as error:  # noqa: BLE001  # plugins raise whatever they like; all of it means "does not compute"
        return f"a product on {kind} failed: {units.first_line(error)}"
    return None if wrong == 0 else f"a product on {kind} is wrong by {wrong:.3g}"


def plugin(framework: Framework) -> str:
    """The installed package that brings a framework to an Apple GPU, with its version; empty if there is none."""
    for name in FRAMEWORKS[framework].PLUGINS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return ""


def error_of_product(kind: str, framework: Framework) -> float:
    """The largest error in a product of small whole numbers, which is exact in any order and any precision."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(np.float32) for _ in range(2))
    with known(kind, framework).active():
        product = FRAMEWORKS[framework].product(a, b)
    return float(np.abs(np.asarray(product) - a @ b).max())


def _installed_for(kind: str, framework: Framework) -> bool:
    """Is a device there that has to be accounted for when it is passed over?"""
    return bool(kind == "mps" and plugin(framework)) or kind in FRAMEWORKS[framework].kinds()


def _plugin_fault(framework: Framework) -> str | None:
    if sys.platform != "darwin":
        return f"{TITLES[framework]} sees no mps device on this machine"
    if not plugin(framework):
        return f"{' or '.join(FRAMEWORKS[framework].PLUGINS)} is not installed"
    source = f"from metallab.device import plugins\nwrong = plugins.error_of_product('mps', {framework!r})"
    tried = isolated.run(source, results=["wrong"])
    return None if tried.ok else f"{plugin(framework)} cannot be used: {tried.reason}"
