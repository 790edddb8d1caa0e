"""Which hardware this run uses, and how to wait for it.

``lab = device.pick()`` chooses the best device that really computes: an Apple GPU, else an NVIDIA GPU, else the CPU.
``METALLAB_DEVICE`` (auto, mps, cuda, cpu, sim) chooses for a whole run. What is PyTorch's, TensorFlow's, JAX's and
MLX's is in `pytorch`, `tensorflow`, `jax` and `mlx`; each imports its framework inside functions, so importing this
package is instant, and a device of one framework imports no other.
"""

from __future__ import annotations

import importlib.util

from metallab.device import jax, mlx, plugins, pytorch, tensorflow
from metallab.device.base import NAMES, TITLES, Banner, Device, DeviceUnavailable, Framework, wanted
from metallab.device.plugins import plugin
from metallab.device.pytorch import PyTorchDevice

__all__ = [
    "NAMES", "TITLES", "Banner", "Device", "DeviceUnavailable", "PyTorchDevice", "cpu", "first_framework", "pick",
    "picked", "plugin", "probe",
]  # fmt: skip
_FRAMEWORKS = {"torch": pytorch, "tensorflow": tensorflow, "jax": jax, "mlx": mlx}

picked: list[Device] = []
"""What `pick` has returned so far; the first is the device of a page."""


def pick(name: str = "auto", framework: Framework = "torch") -> Device:
    """The device to use, by PyTorch unless another framework is named.

    A name given here counts; ``"auto"`` leaves the choice to ``METALLAB_DEVICE``, and where that is unset or "auto" to
    the machine: the first of mps, cuda, cpu that passes `probe`, with a warning if one that is there is passed over.
    ``METALLAB_DEVICE`` speaks for a run of pages with several frameworks: TensorFlow, JAX and MLX take the CPU where
    they do not have the device that it names, and say why in `Device.instead_of`. DeviceUnavailable if a device that
    was asked for is missing or computes wrongly; ValueError for a name or a framework that does not exist.

    In a notebook whose cells may use the simulated Apple GPU by its name (`metallab.plain_cells`), ``pick("mps")`` is
    that, and says so in its label.
    """
    found: Device
    if _module(framework) is pytorch:
        found = pytorch.pick(name, wanted(name))
    else:
        found = plugins.pick(name, wanted(name), framework)
    picked.append(found)
    return found


def cpu(threads: int | None = None, framework: Framework = "torch") -> Device:
    """The CPU as a baseline: with one thread, or by default with all that the framework uses on this machine.

    A baseline of one thread alone makes every GPU look good: show both. On a Mac the label says that PyTorch's matrix
    products keep threads of their own, unless this process was started with VECLIB_MAXIMUM_THREADS=1. The
    others fix their threads when they start: a baseline of one is measured in a child process,
    ``isolated.run(source, threads=1)``. ValueError for fewer threads than 1, or any for one of these.
    """
    if _module(framework) is pytorch:
        return pytorch.cpu(threads)
    if threads is not None:
        raise ValueError(
            f"{TITLES[framework]} fixes its threads when it starts: isolated.run(source, threads=1)"
        )
    return plugins.known("cpu", framework)


def first_framework() -> Framework:
    """PyTorch, or where it is not installed the first of TensorFlow, JAX and MLX that is: a page may need no other."""
    installed = (name for name in _FRAMEWORKS if importlib.util.find_spec(name))
    return next(installed, "torch")


def probe(kind: str, framework: Framework = "torch") -> str | None:
    """What keeps a framework from computing on a device, or None: a small product is compared with the right one."""
    return pytorch.probe(kind) if _module(framework) is pytorch else plugins.probe(kind, framework)


def _module(framework: str):
    """What is known of a framework's devices. ValueError for one that is not known."""
    if framework not in _FRAMEWORKS:
        raise ValueError(
            f"no device of the framework {framework!r}; there are {', '.join(_FRAMEWORKS)}"
        )
    return _FRAMEWORKS[framework]
