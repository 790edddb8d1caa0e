"""TensorFlow's devices."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from metallab.device.base import SENTINEL_ROWS, Device, Framework, cores, number_in

PLUGINS = ("tensorflow-metal",)
"""The packages that bring it to an Apple GPU."""


@dataclass(frozen=True)
class TensorFlowDevice(Device):
    """A device that TensorFlow computes on."""

    framework: Framework = "tensorflow"

    @property
    def name(self) -> str:
        """TensorFlow's name of the device, as `tf.device` takes it."""
        return "/CPU:0" if self.kind == "cpu" else "/GPU:0"

    def synchronize(self, *results: Any) -> None:
        """Return when all that TensorFlow launched is done."""
        import tensorflow as tf

        tf.test.experimental.sync_devices()

    def make_sentinel_work(self) -> Callable[[], Any]:
        """Return a product of two matrices on this device, for a sentinel."""
        import tensorflow as tf

        with self.active():
            matrix = tf.ones((SENTINEL_ROWS, SENTINEL_ROWS))
        return lambda: matrix @ matrix

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Place what runs inside on this device."""
        import tensorflow as tf

        with tf.device(self.name):
            yield


DEVICE = TensorFlowDevice


def kinds() -> tuple[str, ...]:
    """Return the kinds of device that TensorFlow sees in this process."""
    import tensorflow as tf

    gpu = "mps" if sys.platform == "darwin" else "cuda"
    return ("cpu", gpu) if tf.config.list_physical_devices("GPU") else ("cpu",)


def product(a: Any, b: Any) -> Any:
    """Return the product of two NumPy matrices, on the device that is active."""
    import tensorflow as tf

    return tf.linalg.matmul(tf.constant(a), tf.constant(b))


def nvidia_name() -> str:
    """Return the name of its NVIDIA GPU."""
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    return tf.config.experimental.get_device_details(gpu).get("device_name", "unknown NVIDIA GPU")


def threads() -> int:
    """Return how many threads TensorFlow's own pool has: what was set, else one for each core this process may use."""
    import tensorflow as tf

    set_by = "TF_NUM_INTRAOP_THREADS"
    return tf.config.threading.get_intra_op_parallelism_threads() or number_in(set_by) or cores()
