"""JAX's devices. Of JAX's work only the results can be waited for."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from metallab.device.base import SENTINEL_ROWS, Device, Framework, cores, number_in

PLUGINS = ("jax-mps", "jax-metal")
"""The packages that bring it to an Apple GPU, the newer one first."""


@dataclass(frozen=True)
class JaxDevice(Device):
    """A device that JAX computes on."""

    framework: Framework = "jax"
    waits_for_results = True

    @property
    def jax_device(self) -> Any:
        """The `jax.Device`: ``jax.device_put(x, lab.jax_device)``."""
        return devices()[self.kind]

    def synchronize(self, *results: Any) -> None:
        """Return when the results are there; JAX has no call that waits for everything."""
        import jax

        jax.block_until_ready(results)

    def make_sentinel_work(self) -> Callable[[], Any]:
        """Return a product of two matrices on this device, for a sentinel."""
        import jax.numpy as jnp

        with self.active():
            matrix = jnp.ones((SENTINEL_ROWS, SENTINEL_ROWS))
        return lambda: matrix @ matrix

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this device the one where new arrays go; arrays that exist are computed with where they are."""
        import jax

        with jax.default_device(self.jax_device):
            yield


DEVICE = JaxDevice


def threads() -> int:
    """Return how many threads its pool has: what was set, else one for each core this process may use."""
    return number_in("PJRT_NPROC") or number_in("NPROC") or cores()


def nvidia_name() -> str:
    """Return the name of its NVIDIA GPU."""
    return str(devices()["cuda"].device_kind)


@functools.cache
def devices() -> dict[str, Any]:
    """Return JAX's first device of each kind: ``{"cpu": CpuDevice(id=0), ...}``.

    A GPU that JAX does not see, or that cannot start, is not there; `jax.devices` says why.
    """
    # jax-metal 0.1.1 does not start without it
    os.environ.setdefault("ENABLE_PJRT_COMPATIBILITY", "1")
    import jax

    # from JAX_PLATFORMS: "mps" alone would leave nothing to compare with
    chosen = jax.config.jax_platforms
    if chosen and "cpu" not in chosen.split(","):
        jax.config.update("jax_platforms", f"{chosen},cpu")

    names = {"metal": "mps", "gpu": "cuda"}
    first = {"cpu": jax.devices("cpu")[0]}
    for device in jax.devices():
        platform = device.platform.lower()
        first.setdefault(names.get(platform, platform), device)
    return first


def kinds() -> tuple[str, ...]:
    """Return the kinds of device that JAX sees in this process."""
    return tuple(devices())


def product(a: Any, b: Any) -> Any:
    """Return the product of two NumPy matrices, on the device that is active."""
    import jax

    return jax.jit(lambda a, b: a @ b)(a, b)
