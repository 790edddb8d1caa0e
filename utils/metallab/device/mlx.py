"""MLX's devices. MLX is lazy: it computes what somebody waits for, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from metallab.device.base import PRODUCTS_APART, Device, Framework, chip, cpu_label

PLUGINS = ("mlx-metal",)
"""The packages that bring it to an Apple GPU."""


@dataclass(frozen=True)
class MlxDevice(Device):
    """A device that MLX computes on."""

    framework: Framework = "mlx"
    waits_for_results = True

    @property
    def mlx_device(self):
        """The `mlx.core.Device`: ``with mx.stream(lab.mlx_device):``."""
        import mlx.core as mx

        return mx.Device(mx.cpu if self.kind == "cpu" else mx.gpu)

    def synchronize(self, *results: Any) -> None:
        """Compute the results, and return when they are there.

        TypeError for a result without an array: what is not returned is never computed, and its time would be that of
        writing down what to do.
        """
        _synchronizer()(*results)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this device the one that operations run on; what is written down already keeps its own."""
        import mlx.core as mx

        with mx.stream(self.mlx_device):
            yield


def known(kind: str, instead_of: str = "") -> MlxDevice:
    """A device that is known to be there."""
    if kind == "cpu":
        # MLX computes on one thread there; on a Mac, Accelerate has threads of its own for products.
        apart = PRODUCTS_APART if sys.platform == "darwin" else ""
        return MlxDevice("cpu", cpu_label(1, apart), threads=1, instead_of=instead_of)
    if kind == "mps":
        return MlxDevice(kind, f"{chip()} GPU")
    if kind == "cuda":
        import mlx.core as mx

        return MlxDevice(kind, str(mx.device_info(mx.gpu).get("device_name", "unknown NVIDIA GPU")))
    raise AssertionError(f"what is a {kind} called?")


def kinds() -> tuple[str, ...]:
    """The kinds of device that MLX sees in this process."""
    import mlx.core as mx

    gpu = "mps" if sys.platform == "darwin" else "cuda"
    return ("cpu", gpu) if mx.is_available(mx.gpu) else ("cpu",)


def product(a: Any, b: Any) -> Any:
    """The product of two NumPy matrices, on the device that is active."""
    import mlx.core as mx

    return mx.array(a) @ mx.array(b)


def synchronizer() -> Callable[..., None]:
    """A function that computes the results that it is given, and returns when they are there.

    TypeError for a result without an array.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    def wait(*results: Any) -> None:
        for result in results:
            leaves = [result] if not isinstance(result, (dict, list, tuple)) else [x for _, x in tree_flatten(result)]
            if not any(isinstance(leaf, mx.array) for leaf in leaves):
                raise TypeError(
                    "the function returned no MLX array, so MLX computed nothing that could be waited for: return "
                    "what it shall compute"
                )
        mx.eval(*results) if results else mx.synchronize()

    wait.waits_for_results = True
    return wait


@functools.cache
def _synchronizer() -> Callable[..., None]:
    return synchronizer()  # made once: what it imports shall not be looked up inside a sample
