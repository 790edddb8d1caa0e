"""What timed code runs on, as far as a timer has to know: how to wait for it, and what it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from metallab import caches


class DeviceLike(Protocol):
    """Where timed code runs. `metallab.device.Device` and `metallab.fake_device.FakeDevice` are devices."""

    @property
    def kind(self) -> str:
        """What computes: ``cpu``, ``mps``, ``cuda``."""

    @property
    def label(self) -> str:
        """The hardware's name."""

    @property
    def simulated(self) -> bool:
        """True where times are not those of the imitated hardware: no speed-up is given."""

    @property
    def waits_for_results(self) -> bool:
        """True if only results can be waited for (JAX, MLX)."""

    def synchronize(self, *results: Any) -> None:
        """Wait for everything launched so far and for the given results."""

    def active(self) -> contextlib.AbstractContextManager:
        """Return a context with settings, such as a number of threads."""


@dataclass(frozen=True)
class Host:
    """Plain Python on this computer: ``timing.measure(work, on=timing.Host())``."""

    label: str = "host"
    simulated: bool = False
    waits_for_results: bool = False
    kind: str = "cpu"

    def synchronize(self, *results: Any) -> None:
        """Return at once: a call of Python has ended when it returns."""

    def active(self) -> contextlib.AbstractContextManager:
        """Return a context that sets nothing."""
        return contextlib.nullcontext()

    def cache_clearer(self) -> Callable[[], Any]:
        """Return what clears the caches of the core that runs this thread; see `metallab.caches`."""
        return caches.make_numpy_clearer()
