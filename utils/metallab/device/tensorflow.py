"""TensorFlow's devices."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from metallab.device.base import Device, Framework, chip, cores, cpu_label, number_in

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
        _synchronizer()(*results)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Place what runs inside on this device."""
        import tensorflow as tf

        with tf.device(self.name):
            yield


def known(kind: str, instead_of: str = "") -> TensorFlowDevice:
    """A device that is known to be there."""
    if kind == "cpu":
        threads = _threads()
        return TensorFlowDevice("cpu", cpu_label(threads), threads=threads, instead_of=instead_of)
    if kind == "mps":
        return TensorFlowDevice(kind, f"{chip()} GPU")
    if kind == "cuda":
        return TensorFlowDevice(kind, _nvidia_name())
    raise AssertionError(f"what is a {kind} called?")


def kinds() -> tuple[str, ...]:
    """The kinds of device that TensorFlow sees in this process."""
    import tensorflow as tf

    gpu = "mps" if sys.platform == "darwin" else "cuda"
    return ("cpu", gpu) if tf.config.list_physical_devices("GPU") else ("cpu",)


def product(a: Any, b: Any) -> Any:
    """The product of two NumPy matrices, on the device that is active."""
    import tensorflow as tf

    return tf.linalg.matmul(tf.constant(a), tf.constant(b))


def synchronizer() -> Callable[..., None]:
    """A function that returns when all that TensorFlow launched is done."""
    import tensorflow as tf

    def wait(*results: Any) -> None:
        tf.test.experimental.sync_devices()

    wait.waits_for_results = False
    return wait


@functools.cache
def _synchronizer() -> Callable[..., None]:
    return synchronizer()  # made once: what it imports shall not be looked up inside a sample


def _nvidia_name() -> str:
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    return tf.config.experimental.get_device_details(gpu).get("device_name", "unknown NVIDIA GPU")


def _threads() -> int:
    """How many threads TensorFlow's own pool has: what was set, else one for each core this process may use."""
    import tensorflow as tf

    set_by = "TF_NUM_INTRAOP_THREADS"
    return tf.config.threading.get_intra_op_parallelism_threads() or number_in(set_by) or cores()
