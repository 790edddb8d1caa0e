"""What TensorFlow, JAX and MLX have in common: not simulated, and an Apple GPU is a plugin's, if one is installed.

Where a framework has no GPU of its own the CPU is taken, and the banner says that, and why.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from types import ModuleType

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

FRAMEWORKS: dict[str, ModuleType] = {"tensorflow": tensorflow, "jax": jax, "mlx": mlx}
"""Each has its class `DEVICE`, and the same functions about its threads, its GPU and a product on it."""


def pick(name: str, wanted: str, framework: Framework) -> Device:
    """Return the device of a framework for a name, as `metallab.device.pick`.

    Parameters
    ----------
    name
        What was given to it.
    wanted
        The name that counts.
    framework
        Its name.

    Raises
    ------
    DeviceUnavailable
        If the device that ``name`` asks for is not here. Where the run asks for it, the CPU is taken, and says why.
    """
    if wanted == "auto":
        return _pick_best(framework)

    fault = probe(wanted, framework)
    if fault is None:
        return make(wanted, framework)
    if name != "auto":
        raise DeviceUnavailable(
            f"{wanted} was asked for, but {fault}; pick() takes the best device there is"
        )
    return make("cpu", framework, f"the run asked for {wanted}, but {fault}")


def _pick_best(framework: Framework) -> Device:
    """Return the best device that computes, which tells what is wrong with those that are there and better."""
    faults: list[str] = []
    for kind in BEST_FIRST:
        fault = probe(kind, framework)
        if fault is None:
            return make(kind, framework, "; ".join(faults))
        if _is_installed_for(kind, framework):
            faults.append(fault)
    raise AssertionError("the CPU has no fault")


def make(kind: str, framework: Framework, instead_of: str = "") -> Device:
    """Return a device that is known to be there.

    Parameters
    ----------
    kind
        ``cpu``, ``mps`` or ``cuda``.
    framework
        Its name.
    instead_of
        Of a CPU: why it is not the device that was asked for.
    """
    its = FRAMEWORKS[framework]
    device: Device
    if kind == "cpu":
        label = cpu_label(its.threads(), its.apart() if framework == "mlx" else "")
        device = its.DEVICE("cpu", label, threads=its.threads(), instead_of=instead_of)
    else:
        device = its.DEVICE(kind, f"{chip()} GPU" if kind == "mps" else its.nvidia_name())
    return device


def probe(kind: str, framework: Framework) -> str | None:
    """Return what keeps a framework from computing on a device, or None.

    A small product is compared with the right one.

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
    """Return the package that brings a framework to an Apple GPU, with its version; empty if none is installed."""
    for name in FRAMEWORKS[framework].PLUGINS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return ""


def error_of_product(kind: str, framework: Framework) -> float:
    """Return the largest error in a product of small whole numbers, which is exact in any order and any precision.

    Parameters
    ----------
    kind
        ``cpu``, ``mps`` or ``cuda``.
    framework
        Its name.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(np.float32) for _ in range(2))
    with make(kind, framework).active():
        product = FRAMEWORKS[framework].product(a, b)
    return float(np.abs(np.asarray(product) - a @ b).max())


def _is_installed_for(kind: str, framework: Framework) -> bool:
    """Return whether a device is there that has to be accounted for when it is passed over."""
    return bool(kind == "mps" and plugin(framework)) or kind in FRAMEWORKS[framework].kinds()


def _plugin_fault(framework: Framework) -> str | None:
    """Return what keeps a framework's plugin from computing on an Apple GPU, or None."""
    is_mac = sys.platform == "darwin"
    if not is_mac:
        return f"{TITLES[framework]} sees no mps device on this machine"
    if not plugin(framework):
        return f"{' or '.join(FRAMEWORKS[framework].PLUGINS)} is not installed"
    source = f"from metallab.device import plugins\nwrong = plugins.error_of_product('mps', {framework!r})"
    tried = isolated.run(source, results=["wrong"])
    return None if tried.ok else f"{plugin(framework)} cannot be used: {tried.reason}"
