"""MLX's devices. MLX is lazy: it computes what somebody waits for, and nothing else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from metallab.device.base import PRODUCTS_APART, SENTINEL_ROWS, Device, Framework

PLUGINS = ("mlx-metal",)
"""The packages that bring it to an Apple GPU."""


@dataclass(frozen=True)
class MlxDevice(Device):
    """A device that MLX computes on."""

    framework: Framework = "mlx"
    waits_for_results = True

    @property
    def mlx_device(self) -> Any:
        """The `mlx.core.Device`: ``with mx.stream(lab.mlx_device):``."""
        import mlx.core as mx

        return mx.Device(mx.cpu if self.kind == "cpu" else mx.gpu)

    def synchronize(self, *results: Any) -> None:
        """Compute the results, and return when they are there.

        TypeError for a result without an array: what is not returned is never computed, and its time would be that of
        writing down what to do.
        """
        import mlx.core as mx

        for result in results:
            leaves = [result]
            if isinstance(result, (dict, list, tuple)):
                from mlx.utils import tree_flatten

                leaves = [leaf for _, leaf in tree_flatten(result)]
            if not any(isinstance(leaf, mx.array) for leaf in leaves):
                raise TypeError(
                    "the function returned no MLX array, so MLX computed nothing that could be waited for: return "
                    "what it shall compute"
                )

        if results:
            mx.eval(*results)
        else:
            mx.synchronize()

    def make_sentinel_work(self) -> Callable[[], Any]:
        """Return a product of two matrices on this device, for a sentinel."""
        import mlx.core as mx

        with self.active():
            matrix = mx.ones((SENTINEL_ROWS, SENTINEL_ROWS))
        return lambda: matrix @ matrix

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this device the one that operations run on; what is written down already keeps its own."""
        import mlx.core as mx

        with mx.stream(self.mlx_device):
            yield


DEVICE = MlxDevice


def threads() -> int:
    """Return how many threads MLX computes on: one."""
    return 1


def apart() -> str:
    """Return what that does not hold: on a Mac, Accelerate has threads of its own for products."""
    return PRODUCTS_APART if sys.platform == "darwin" else ""


def nvidia_name() -> str:
    """Return the name of its NVIDIA GPU."""
    import mlx.core as mx

    return str(mx.device_info(mx.gpu).get("device_name", "unknown NVIDIA GPU"))


def kinds() -> tuple[str, ...]:
    """Return the kinds of device that MLX sees in this process."""
    import mlx.core as mx

    gpu = "mps" if sys.platform == "darwin" else "cuda"
    return ("cpu", gpu) if mx.is_available(mx.gpu) else ("cpu",)


def product(a: Any, b: Any) -> Any:
    """Return the product of two NumPy matrices, on the device that is active."""
    import mlx.core as mx

    return mx.array(a) @ mx.array(b)
