"""Which hardware this run uses, and how to wait for it.

``lab = device.pick()`` chooses the best device that really computes: an Apple GPU, else an NVIDIA GPU, else the CPU.
``METALLAB_DEVICE`` (auto, mps, cuda, cpu, sim) chooses for a whole run. Frameworks are imported inside functions, so
importing this module is instant.
"""

from __future__ import annotations

import contextlib
import html
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from metallab import machine

NAMES = ("auto", "mps", "cuda", "cpu", "sim")
BEST_FIRST = ("mps", "cuda", "cpu")
Framework = Literal["torch", "tensorflow", "jax"]


class DeviceUnavailable(RuntimeError):
    """The device that was asked for is not on this machine, or does not compute correctly."""


@dataclass(frozen=True)
class Accelerator:
    """A device that a run uses: a place in the sense of `metallab.timing.Place`."""

    kind: Literal["mps", "cuda", "cpu"]
    label: str
    """The hardware's name as it stands beside every number: ``Apple M2 Max GPU``, ``NVIDIA H200``."""
    simulated: bool = False
    threads: int | None = None
    """CPU only: the number of threads that the framework may use while the device is measured."""
    framework: Framework = "torch"
    """Whose device this is; those of TensorFlow and JAX are in `metallab.frameworks`."""
    instead_of: str = ""
    """Why this is not the device that the run asked for; empty if it is."""

    waits_for_results = False

    @property
    def torch_device(self):
        """The `torch.device`: ``x.to(lab.torch_device)``."""
        import torch

        return torch.device(self.kind)

    def synchronize(self, *results: Any) -> None:
        """Return when all that PyTorch launched on this device is done."""
        if self.kind == "cpu":
            return
        import torch

        getattr(torch, self.kind).synchronize()

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

    def banner(self) -> Banner:
        """What a notebook shows first: the hardware that this run used, and whether it is real."""
        return Banner(self)


@dataclass(frozen=True)
class Banner:
    """One line that says on which hardware a page was run."""

    accelerator: Accelerator

    def __str__(self) -> str:
        lab = self.accelerator
        title = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}[lab.framework]
        if lab.simulated:
            ran = f"SIMULATED: this page ran on a {lab.label}."
            return f"{ran} The code runs as on a Mac; no time on this page says anything about a Mac."
        if lab.kind == "cpu":
            by = f", by {title}" if lab.framework != "torch" else ""
            why = f" ({lab.instead_of})" if lab.instead_of else ""
            return (
                f"This page ran on {lab.label}{by}{why}. No GPU takes part: nothing here says how fast a GPU would be."
            )
        return f"This page ran on {lab.label} ({title} device '{lab.kind}')."

    def _repr_html_(self) -> str:
        colour = "#d55e00" if self.accelerator.simulated else "#0072b2"
        style = f"border-left:.4em solid {colour};padding:.5em 1em;font-weight:600"
        return f'<div style="{style}">{html.escape(str(self))}</div>'


def pick(name: str = "auto", framework: Framework = "torch") -> Accelerator:
    """The device to use, by PyTorch unless another framework is named.

    A name given here counts; ``"auto"`` leaves the choice to ``METALLAB_DEVICE``, and where that is unset or "auto" to
    the machine: the first of mps, cuda, cpu that passes `probe`, with a warning if one that is there is passed over.
    ``METALLAB_DEVICE`` speaks for a run of pages with several frameworks: TensorFlow and JAX take the CPU where they do
    not have the device that it names, and say why in `Accelerator.instead_of`. DeviceUnavailable if a device that was
    asked for is missing or computes wrongly; ValueError for a name that does not exist.
    """
    if framework != "torch":
        from metallab import frameworks

        return frameworks.pick(name, framework)
    wanted = (os.environ.get("METALLAB_DEVICE") or "auto") if name == "auto" else name
    if wanted not in NAMES:
        raise ValueError(f"there is no device {wanted!r}; METALLAB_DEVICE and pick() take one of {', '.join(NAMES)}")
    if wanted == "sim":
        return _simulated()
    if wanted != "auto":
        if (fault := probe(wanted)) is not None:
            setting = "METALLAB_DEVICE=auto" if name == "auto" else "pick()"
            raise DeviceUnavailable(f"{wanted} was asked for, but {fault}; {setting} takes the best device there is")
        return _accelerator(wanted)
    for kind in BEST_FIRST:
        if (fault := probe(kind)) is None:
            return _accelerator(kind)
        if _backend(kind).is_available():
            warnings.warn(f"{kind} is passed over: {fault}", RuntimeWarning, stacklevel=2)
    raise AssertionError("the CPU has no fault")


def first_framework() -> Framework:
    """PyTorch, or where it is not installed the first of TensorFlow and JAX that is: a page may need no other."""
    installed = (name for name in ("torch", "tensorflow", "jax") if importlib.util.find_spec(name))
    return next(installed, "torch")


def cpu(threads: int | None = None) -> Accelerator:
    """The CPU as a baseline: with one thread, or by default with all that PyTorch uses on this machine.

    A baseline of one thread alone makes every GPU look good: show both. On a Mac the label says that matrix products
    keep threads of their own, unless this process was started with VECLIB_MAXIMUM_THREADS=1.
    """
    import torch

    most = torch.get_num_threads() if threads is None else threads
    if most < 1:
        raise ValueError(f"threads is {most}; a CPU baseline needs at least 1")
    held = threads is not None or most == 1
    apart = " (products: Accelerate's own threads)" if held and _accelerate_has_its_own_threads() else ""
    return Accelerator("cpu", f"{_chip()}{apart} CPU, {most} thread{'s' if most > 1 else ''}", threads=most)


def _accelerate_has_its_own_threads() -> bool:
    """On a Mac PyTorch's matrix products are Accelerate's, which `torch.set_num_threads` does not reach.

    A variable that it reads when it starts is reported to hold it to one (`metallab.isolated.ONE_THREAD`).
    """
    return sys.platform == "darwin" and os.environ.get("VECLIB_MAXIMUM_THREADS") != "1"


def probe(kind: str) -> str | None:
    """What keeps PyTorch from computing on a device, or None: a small product is compared with the CPU's.

    ``is_available()`` alone is not believed: it has been True on machines whose GPU gave wrong results.
    """
    import torch

    if kind == "cpu":
        return None
    if not _backend(kind).is_available():
        return f"PyTorch {torch.__version__} sees no {kind} device on this machine"
    generator = torch.Generator().manual_seed(0)
    # Small whole numbers: their products and sums are exact in any order and any precision, so nothing may differ.
    # The CPU is named because a page may have set another default device.
    a, b = (torch.randint(-8, 9, (64, 64), generator=generator, device="cpu").float() for _ in range(2))
    try:
        product = (a.to(kind) @ b.to(kind)).cpu()
    except (RuntimeError, TypeError, AssertionError) as error:
        return f"a product on {kind} failed: {error}"
    if torch.equal(product, a @ b):
        return None
    return f"a product on {kind} is wrong by {(product - a @ b).abs().max().item():.3g}"


def synchronizer(framework: Framework) -> Callable[..., None]:
    """A function that returns when a framework's work is done: call it with the results to wait for.

    Its attribute ``waits_for_results`` is True for JAX, where nothing but a result can be waited for. ImportError if
    the framework is not installed, ValueError if it is none of the three.
    """
    makers = {"torch": _torch_synchronizer, "tensorflow": _tensorflow_synchronizer, "jax": _jax_synchronizer}
    if framework not in makers:
        raise ValueError(f"no synchronizer for {framework!r}; there are {', '.join(makers)}")
    return makers[framework]()


def _torch_synchronizer() -> Callable[..., None]:
    import torch

    # current_accelerator() names cuda on a machine without a GPU: ask whether it is there. Asked once, not in a sample.
    there = torch.accelerator.is_available()

    def wait(*results: Any) -> None:
        if there:
            torch.accelerator.synchronize()

    wait.waits_for_results = False
    return wait


def _tensorflow_synchronizer() -> Callable[..., None]:
    import tensorflow as tf

    def wait(*results: Any) -> None:
        tf.test.experimental.sync_devices()

    wait.waits_for_results = False
    return wait


def _jax_synchronizer() -> Callable[..., None]:
    import jax

    def wait(*results: Any) -> None:
        jax.block_until_ready(results)

    wait.waits_for_results = True
    return wait


def _backend(kind: str):
    import torch

    return torch.backends.mps if kind == "mps" else torch.cuda


def _accelerator(kind: str) -> Accelerator:
    if kind == "cpu":
        return cpu()
    if kind == "cuda":
        import torch

        return Accelerator("cuda", torch.cuda.get_device_name())
    return Accelerator("mps", f"{_chip()} GPU")


def _simulated() -> Accelerator:
    from metallab import simulation

    try:
        simulation.install()
    except simulation.SimulationUnavailable as error:
        raise DeviceUnavailable(f"the simulated Apple GPU cannot be used: {error}") from error
    return Accelerator("mps", simulation.label(), simulated=True)


def _chip() -> str:
    return machine.describe().chip or "unknown"
