"""TensorFlow and JAX on the hardware there is, in the same terms as PyTorch.

``device.pick(framework="jax")`` gives an `Accelerator` of that framework: it waits for it, holds work to its device
and says which hardware that is. Neither framework is simulated. Where it has no GPU of its own the CPU is taken, and
the banner says that, and why.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from metallab import isolated, machine, units
from metallab.device import BEST_FIRST, NAMES, Accelerator, DeviceUnavailable, Framework, synchronizer

TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
PLUGINS = {"tensorflow": ("tensorflow-metal",), "jax": ("jax-mps", "jax-metal")}
"""The packages that bring a framework to an Apple GPU."""


@dataclass(frozen=True)
class TensorFlow(Accelerator):
    """A device that TensorFlow computes on."""

    framework: Framework = "tensorflow"

    @property
    def name(self) -> str:
        """TensorFlow's name of the device, as `tf.device` takes it."""
        return "/CPU:0" if self.kind == "cpu" else "/GPU:0"

    def synchronize(self, *results: Any) -> None:
        """Return when all that TensorFlow launched is done."""
        _synchronizer("tensorflow")(*results)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Place what runs inside on this device."""
        import tensorflow as tf

        with tf.device(self.name):
            yield


@dataclass(frozen=True)
class Jax(Accelerator):
    """A device that JAX computes on. Of JAX's work only the results can be waited for."""

    framework: Framework = "jax"
    waits_for_results = True

    @property
    def jax_device(self):
        """The `jax.Device`: ``jax.device_put(x, lab.jax_device)``."""
        return jax_devices()[self.kind]

    def synchronize(self, *results: Any) -> None:
        """Return when the results are there; JAX has no call that waits for everything."""
        _synchronizer("jax")(*results)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this device the one where new arrays go; arrays that exist are computed with where they are."""
        import jax

        with jax.default_device(self.jax_device):
            yield


def pick(name: str, framework: Framework) -> TensorFlow | Jax:
    """The device of a framework; see `metallab.device.pick`, which calls this.

    ``METALLAB_DEVICE`` speaks for a whole run, whose pages use several frameworks: a device that this framework does
    not have becomes the CPU, with the reason in ``instead_of``. A name that is given here is insisted on.
    """
    setting = os.environ.get("METALLAB_DEVICE") or "auto"
    wanted = setting if name == "auto" else name
    if wanted not in NAMES:
        raise ValueError(f"there is no device {wanted!r}; METALLAB_DEVICE and pick() take one of {', '.join(NAMES)}")
    faults = {}
    for kind in BEST_FIRST if wanted == "auto" else (wanted,):
        if (fault := probe(kind, framework)) is None:
            return accelerator(kind, framework, "; ".join(faults.values()) if wanted == "auto" else "")
        if wanted != "auto" or _installed_for(kind, framework):
            faults[kind] = fault
    if name != "auto":
        raise DeviceUnavailable(f"{wanted} was asked for, but {faults[wanted]}; pick() takes the best device there is")
    return accelerator("cpu", framework, f"the run asked for {wanted}, but {faults[wanted]}")


def cpu(framework: Framework) -> TensorFlow | Jax:
    """The CPU with as many threads as the framework has in this process.

    Thread pools are fixed once they are started. A baseline of one thread is measured in a child process:
    ``isolated.run(source, threads=1)``.
    """
    return accelerator("cpu", framework)


def accelerator(kind: str, framework: Framework, instead_of: str = "") -> TensorFlow | Jax:
    """A device of a framework that is known to be there."""
    chip = machine.describe().chip or "unknown"
    made = {"tensorflow": TensorFlow, "jax": Jax}[framework]
    if kind == "cpu":
        threads = _threads(framework)
        label = f"{chip} CPU, {threads} thread{'s' if threads > 1 else ''}"
        return made("cpu", label, threads=threads, instead_of=instead_of)
    return made(kind, f"{chip} GPU" if kind == "mps" else _nvidia_name(framework))


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
    if kind not in _devices(framework):
        return f"{title} sees no {kind} device on this machine"
    try:
        wrong = _error_of_product(kind, framework)
    except Exception as error:  # noqa: BLE001  # plugins raise whatever they like; all of it means "does not compute"
        return f"a product on {kind} failed: {units.first_line(error)}"
    return None if wrong == 0 else f"a product on {kind} is wrong by {wrong:.3g}"


@functools.cache
def jax_devices() -> dict[str, Any]:
    """JAX's first device of each kind: ``{"cpu": CpuDevice(id=0), ...}``.

    A GPU that JAX does not see, or that cannot start, is not there; `jax.devices` says why.
    """
    os.environ.setdefault("ENABLE_PJRT_COMPATIBILITY", "1")  # jax-metal 0.1.1 does not start without it
    import jax

    chosen = jax.config.jax_platforms  # from JAX_PLATFORMS: "mps" alone would leave nothing to compare with
    if chosen and "cpu" not in chosen.split(","):
        jax.config.update("jax_platforms", f"{chosen},cpu")
    found = {"cpu": jax.devices("cpu")[0]}
    for device in jax.devices():
        found.setdefault(_kind_of_platform(device.platform), device)
    return found


def plugin(framework: Framework) -> str:
    """The installed package that brings a framework to an Apple GPU, with its version; empty if there is none."""
    for name in PLUGINS[framework]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return ""


@functools.cache
def _synchronizer(framework: Framework):
    return synchronizer(framework)  # made once: what it imports shall not be looked up inside a sample


def _installed_for(kind: str, framework: Framework) -> bool:
    """Is a device there that has to be accounted for when it is passed over?"""
    return bool(kind == "mps" and plugin(framework)) or kind in _devices(framework)


def _plugin_fault(framework: Framework) -> str | None:
    if sys.platform != "darwin":
        return f"{TITLES[framework]} sees no mps device on this machine"
    if not plugin(framework):
        return f"{' or '.join(PLUGINS[framework])} is not installed"
    source = f"from metallab import frameworks\nwrong = frameworks._error_of_product('mps', {framework!r})"
    tried = isolated.run(source, results=["wrong"])
    return None if tried.ok else f"{plugin(framework)} cannot be used: {tried.reason}"


def _devices(framework: Framework) -> tuple[str, ...]:
    """The kinds of device that a framework sees in this process."""
    if framework == "jax":
        return tuple(jax_devices())
    import tensorflow as tf

    gpu = "mps" if sys.platform == "darwin" else "cuda"
    return ("cpu", gpu) if tf.config.list_physical_devices("GPU") else ("cpu",)


def _error_of_product(kind: str, framework: Framework) -> float:
    """The largest error in a product of small whole numbers, which is exact in any order and any precision."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (64, 64)).astype(np.float32) for _ in range(2))
    place = accelerator(kind, framework)
    with place.active():
        if framework == "jax":
            import jax

            product = jax.jit(lambda a, b: a @ b)(a, b)
        else:
            import tensorflow as tf

            product = tf.linalg.matmul(tf.constant(a), tf.constant(b))
    return float(np.abs(np.asarray(product) - a @ b).max())


def _kind_of_platform(platform: str) -> str:
    return {"metal": "mps", "gpu": "cuda"}.get(platform.lower(), platform.lower())


def _nvidia_name(framework: Framework) -> str:
    if framework == "jax":
        return jax_devices()["cuda"].device_kind
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    return tf.config.experimental.get_device_details(gpu).get("device_name", "unknown NVIDIA GPU")


def _threads(framework: Framework) -> int:
    """How many threads a framework's own pool has: what was set, else one for each core this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if framework == "tensorflow":
        import tensorflow as tf

        set_by = "TF_NUM_INTRAOP_THREADS"
        return tf.config.threading.get_intra_op_parallelism_threads() or _number(os.environ.get(set_by)) or cores
    return _number(os.environ.get("PJRT_NPROC")) or _number(os.environ.get("NPROC")) or cores


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
