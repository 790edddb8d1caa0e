"""Which hardware this run uses, and how to wait for it.

``lab = device.pick()`` chooses the best device that really computes: an Apple GPU, else an NVIDIA GPU, else the CPU.
``METALLAB_DEVICE`` (auto, mps, cuda, cpu, sim) chooses for a whole run. What is PyTorch's, TensorFlow's, JAX's and
MLX's is in `pytorch`, `tensorflow`, `jax` and `mlx`; each imports its framework inside functions, so importing this
package is instant, and a device of one framework imports no other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Literal, overload

from metallab.device import jax, mlx, plugins, pytorch, tensorflow
from metallab.device.base import (
    DEVICE_NAMES,
    NAMES,
    TITLES,
    Banner,
    Device,
    DeviceUnavailable,
    Framework,
    choose_name,
    require_picked,
)
from metallab.device.plugins import plugin
from metallab.device.pytorch import PyTorchDevice

__all__ = [
    "DEVICE_NAMES", "NAMES", "TITLES", "Banner", "Device", "DeviceUnavailable", "PyTorchDevice", "cpu",
    "first_framework", "pick", "picked", "plugin", "probe",
    "require_picked",
]  # fmt: skip
_FRAMEWORKS: dict[Framework, ModuleType] = {
    "torch": pytorch,
    "tensorflow": tensorflow,
    "jax": jax,
    "mlx": mlx,
}

picked: list[Device] = []
"""What `pick` has returned so far; the first is the device of a page."""


@overload
def pick(name: str = "auto", framework: Literal["torch"] = "torch") -> PyTorchDevice: ...


@overload
def pick(name: str = "auto", *, framework: Framework) -> Device: ...


def pick(name: str = "auto", framework: Framework = "torch") -> Device:
    """Return the device to use: the best one that really computes, unless one is named.

    ``METALLAB_DEVICE`` speaks for a run of pages with several frameworks: TensorFlow, JAX and MLX take the CPU where
    they do not have the device that it names, and say why in `Device.instead_of`.

    Parameters
    ----------
    name
        ``mps``, ``cuda``, ``cpu`` or ``sim``, the simulated Apple GPU. ``"auto"`` leaves the choice to
        ``METALLAB_DEVICE``, and where that is unset or "auto" to the machine: the first of mps, cuda, cpu that passes
        `probe`, with a warning if one that is there is passed over. In a notebook whose cells may use the simulated
        Apple GPU by its name (`metallab.plain_cells`), ``"mps"`` is that, and says so in its label.
    framework
        ``torch``, ``tensorflow``, ``jax`` or ``mlx``.

    Returns
    -------
    Device
        Of PyTorch a `PyTorchDevice`, with ``torch_device`` for ``tensor.to``. Its ``banner()`` says what it is.

    Raises
    ------
    DeviceUnavailable
        If a device that was asked for is missing or computes wrongly.
    ValueError
        For a name or a framework that does not exist.

    Examples
    --------
    >>> lab = device.pick()
    >>> x = torch.ones(3, device=lab.torch_device)
    """
    _assert_known(framework)
    found: Device
    if framework == "torch":
        found = pytorch.pick(name, choose_name(name))
    else:
        found = plugins.pick(name, choose_name(name), framework)
    picked.append(found)
    return found


@overload
def cpu(threads: int | None = None, framework: Literal["torch"] = "torch") -> PyTorchDevice: ...


@overload
def cpu(threads: int | None = None, *, framework: Framework) -> Device: ...


def cpu(threads: int | None = None, framework: Framework = "torch") -> Device:
    """Return the CPU as a baseline: with one thread, or by default with all that the framework uses here.

    A baseline of one thread alone makes every GPU look good: show both. On a Mac the label says that PyTorch's matrix
    products keep threads of their own, unless this process was started with VECLIB_MAXIMUM_THREADS=1.

    Parameters
    ----------
    threads
        How many PyTorch may use while the device is measured. The other frameworks fix theirs when they start: a
        baseline of one is measured in a child process, ``isolated.run(source, threads=1)``.
    framework
        ``torch``, ``tensorflow``, ``jax`` or ``mlx``.

    Raises
    ------
    ValueError
        For fewer threads than 1, or any for another framework than PyTorch.
    """
    _assert_known(framework)
    if framework == "torch":
        return pytorch.cpu(threads)

    if threads is not None:
        raise ValueError(
            f"{TITLES[framework]} fixes its threads when it starts: isolated.run(source, threads=1)"
        )
    return plugins.make("cpu", framework)


def first_framework() -> Framework:
    """Return PyTorch, or where it is not installed the first of TensorFlow, JAX and MLX that is."""
    return next(_find_installed(), "torch")


def _find_installed() -> Iterator[Framework]:
    """Yield the frameworks that are installed."""
    for name in _FRAMEWORKS:
        if importlib.util.find_spec(name):
            yield name


def probe(kind: str, framework: Framework = "torch") -> str | None:
    """Return what keeps a framework from computing on a device, or None.

    A small product is compared with the right one, because a device that is there may compute wrongly.

    Parameters
    ----------
    kind
        ``mps``, ``cuda`` or ``cpu``.
    framework
        ``torch``, ``tensorflow``, ``jax`` or ``mlx``.
    """
    _assert_known(framework)
    return pytorch.probe(kind) if framework == "torch" else plugins.probe(kind, framework)


def _assert_known(framework: str) -> None:
    """ValueError for a framework of whose devices nothing is known."""
    if framework not in _FRAMEWORKS:
        raise ValueError(
            f"no device of the framework {framework!r}; there are {', '.join(_FRAMEWORKS)}"
        )
