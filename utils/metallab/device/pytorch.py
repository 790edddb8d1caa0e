"""PyTorch's devices: an Apple GPU, be it simulated, an NVIDIA GPU, the CPU."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from metallab import caches, simulation
from metallab.device.base import (
    BEST_FIRST,
    PRODUCTS_APART,
    SENTINEL_ROWS,
    Device,
    DeviceUnavailable,
    chip,
    cpu_label,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PyTorchDevice(Device):
    """A device that PyTorch computes on."""

    @property
    def torch_device(self) -> torch.device:
        """The `torch.device`: ``x.to(lab.torch_device)``."""
        import torch

        return torch.device(self.kind)

    def synchronize(self, *results: Any) -> None:
        """Return when all that PyTorch launched on this device is done."""
        if self.kind == "cpu":
            return
        import torch

        getattr(torch, self.kind).synchronize()

    def make_sentinel_work(self) -> Callable[[], Any]:
        """Return a product of two matrices on this device, for a sentinel."""
        import torch

        matrix = torch.ones(SENTINEL_ROWS, SENTINEL_ROWS, device=self.torch_device)
        return lambda: matrix @ matrix

    def overwrite_freed(self, sizes: Iterable[int]) -> None:
        """Write into memory of these sizes, in bytes, and free it: PyTorch hands it out next.

        Its bytes are all ones: NaN in floating formats, -1 in whole numbers. Nothing is done on the CPU, where no call
        ends before it has computed.
        """
        if self.kind == "cpu":
            return
        import torch

        held = [
            torch.full((size,), 0xFF, dtype=torch.uint8, device=self.torch_device) for size in sizes
        ]
        self.synchronize(*held)

    def cache_clearer(self) -> Callable[[], Any]:
        """Return what clears this device's caches: it reads a buffer that is larger, with all of the device's threads.

        The simulated GPU computes in the CPU's memory, so there it is the CPU's caches. See `metallab.caches`.
        """
        import torch

        place = torch.device("cpu") if self.simulated else self.torch_device
        if place.type == "cuda":
            cache = torch.cuda.get_device_properties(place).L2_cache_size
        elif place.type == "mps":
            cache = None  # no program is told its size: the buffer is larger than any that is known
        else:
            cache = caches.find_cpu_cache()
        size = caches.size_buffer(cache)
        if place.type != "cuda":  # on a Mac it is the same memory
            caches.require_memory(size)

        buffer = torch.ones(size // 4, dtype=torch.float32, device=place)
        return buffer.sum

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Hold PyTorch to this device's number of threads; on a Mac all but its matrix products, see `cpu`."""
        if self.threads is None:
            yield
            return
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def pick(name: str, wanted: str) -> PyTorchDevice:
    """Return the device for a name, as `metallab.device.pick`, which calls this.

    Parameters
    ----------
    name
        What was given to it.
    wanted
        The name that counts.

    Raises
    ------
    DeviceUnavailable
        If PyTorch is missing, or the device that was asked for, or if that computes wrongly.
    """
    if importlib.util.find_spec("torch") is None:
        raise DeviceUnavailable(
            "PyTorch is not installed: pip install 'path/to/metal-lab[pytorch]', make setup in a checkout, or name "
            "another framework, pick(framework=...)"
        )
    if wanted == "sim" or (name == "mps" and simulation.is_offered()):
        return _make_simulated()
    if wanted != "auto":
        if (fault := probe(wanted)) is not None:
            raise DeviceUnavailable(_say_missing(name, wanted, fault))
        return _make(wanted)

    for kind in BEST_FIRST:
        if (fault := probe(kind)) is None:
            return _make(kind)
        if _backend(kind).is_available():
            warnings.warn(f"{kind} is passed over: {fault}", RuntimeWarning, stacklevel=3)
    raise AssertionError("the CPU has no fault")


def _say_missing(name: str, wanted: str, fault: str) -> str:
    """Return what an error says where a device is not here: how to take another one."""
    setting = "METALLAB_DEVICE=auto" if name == "auto" else "pick()"
    message = f"{wanted} was asked for, but {fault}; {setting} takes the best device there is"
    if wanted == "mps" and sys.platform == "linux":
        imitation = "METALLAB_DEVICE=sim" if name == "auto" else 'pick("sim")'
        message += f", and {imitation} one that imitates an Apple GPU"
    return message


def cpu(threads: int | None = None) -> PyTorchDevice:
    """Return the CPU, as `metallab.device.cpu`, which calls this."""
    import torch

    most = torch.get_num_threads() if threads is None else threads
    if most < 1:
        raise ValueError(f"threads is {most}; a CPU baseline needs at least 1")
    are_held = threads is not None or most == 1
    apart = PRODUCTS_APART if are_held and _accelerate_has_its_own_threads() else ""
    return PyTorchDevice("cpu", cpu_label(most, apart), threads=most)


def _accelerate_has_its_own_threads() -> bool:
    """Return whether `torch.set_num_threads` leaves matrix products out: on a Mac they are Accelerate's.

    A variable that it reads when it starts is reported to hold it to one (`metallab.isolated.ONE_THREAD`).
    """
    return sys.platform == "darwin" and os.environ.get("VECLIB_MAXIMUM_THREADS") != "1"


def probe(kind: str) -> str | None:
    """Return what keeps PyTorch from computing on a device, or None: a small product is compared with the CPU's.

    ``is_available()`` alone is not believed: it has been True on machines whose GPU gave wrong results.
    """
    import torch

    if kind == "cpu":
        return None
    if not _backend(kind).is_available():
        return f"PyTorch {torch.__version__} sees no {kind} device on this machine"

    # Small whole numbers: their products and sums are exact in any order and any precision, so nothing may differ.
    # The CPU is named because a page may have set another default device.
    generator = torch.Generator().manual_seed(0)
    a, b = (
        torch.randint(-8, 9, (64, 64), generator=generator, device="cpu").float() for _ in range(2)
    )
    try:
        product = (a.to(kind) @ b.to(kind)).cpu()
    except (RuntimeError, TypeError, AssertionError) as error:
        return f"a product on {kind} failed: {error}"
    if torch.equal(product, a @ b):
        return None
    return f"a product on {kind} is wrong by {(product - a @ b).abs().max().item():.3g}"


def _backend(kind: str) -> Any:
    """Return PyTorch's module of a GPU, which says whether it is available."""
    import torch

    return {"mps": torch.backends.mps, "cuda": torch.cuda}[kind]


def _make(kind: str) -> PyTorchDevice:
    """Return a device that is known to be there."""
    if kind == "cpu":
        return cpu()
    if kind == "cuda":
        import torch

        return PyTorchDevice("cuda", torch.cuda.get_device_name())
    if kind == "mps":
        return _make_simulated() if simulation.running() else PyTorchDevice("mps", f"{chip()} GPU")
    raise AssertionError(f"what is a {kind} called?")


def _make_simulated() -> PyTorchDevice:
    """Return the simulated Apple GPU, which is installed. DeviceUnavailable if it cannot be."""
    try:
        # one that runs may be traced, and to install it again would take away what hears of its operators
        if not simulation.running():
            simulation.install()
    except simulation.SimulationUnavailable as error:
        raise DeviceUnavailable(f"the simulated Apple GPU cannot be used: {error}") from error
    return PyTorchDevice("mps", simulation.label(), simulated=True)
