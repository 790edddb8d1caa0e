"""The simulated Apple GPU, as metallab's pages use it: `metalsim`, with errors that say what to do.

``METALLAB_DEVICE=sim`` chooses it. It has to be armed before torch is loaded, which ``import metallab`` does; and
installed once torch is there, which ``device.pick()`` does. Its times say nothing about a Mac.

In a notebook's kernel it may also be used by its name alone, while the run's device is the CPU
(`metallab.plain_cells`).

With it come stand-ins for PyObjC's Metal modules (`metalsim.graph`), so that MPSGraph can be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class SimulationUnavailable(RuntimeError):
    """The simulated GPU cannot be used here; the message says why and what to do."""


def label() -> str:
    """What stands beside every number from it."""
    from metallab import machine

    return f"simulated Apple GPU (on {machine.describe().chip or 'an unknown processor'})"


def running() -> bool:
    """True if this process has the simulated GPU already, whoever installed it: then ``mps`` is no Apple GPU."""
    metalsim = sys.modules.get("metalsim")
    return metalsim is not None and metalsim.is_installed()


def count_work() -> int:
    """Return how much this process has simulated (`metalsim.count_work`): what raises it has no hardware's time."""
    metalsim = sys.modules.get("metalsim")
    return 0 if metalsim is None else metalsim.count_work()


def offer(after_torch: Callable[[], object]) -> None:
    """Let ``mps`` be used by its name in this process (`metalsim.by_name`), before torch is imported.

    ``after_torch`` is called when it is.
    """
    from metalsim import by_name

    by_name.offer(after_torch)


def is_offered() -> bool:
    """True if ``mps`` is to be used by its name here, though torch says that there is none."""
    by_name = sys.modules.get("metalsim.by_name")
    return by_name is not None and by_name.is_offered()


def is_ready() -> bool:
    """True if this process has the simulated GPU, or gets it with torch, or by its name, as far as is known by now."""
    if is_offered():
        return sys.modules["metalsim.by_name"].fault() is None
    metalsim = sys.modules.get("metalsim")
    return metalsim is not None and metalsim.is_armed()


def offer_graphs() -> None:
    """Let MPSGraph be imported where PyObjC is not installed."""
    import metalsim.graph

    metalsim.graph.install()


def arm(required: bool = False) -> None:
    """Prepare this process, before torch is imported: with torch the simulated device comes as well.

    Where that fails, importing torch warns, or raises `metalsim.SimulationError` if the device is ``required``.
    `SimulationUnavailable`, with what to do, if it is too late or cannot be done here.
    """
    import metalsim
    import metalsim.graph

    try:
        metalsim.install_with_torch(required=required)
        metalsim.graph.install()
    except metalsim.SimulationError as error:
        raise SimulationUnavailable(str(error)) from error


def install(on_event: Callable[[Any], None] | None = None) -> str:
    """Make ``device="mps"`` work in this process; the line that says what is simulated.

    Where `offer` was called it works by its name alone, and torch goes on saying that there is none. ``on_event`` is
    told of every operator, copy and fallback (`metalsim.Event`). `SimulationUnavailable` with the reason if it cannot
    be done.
    """
    import metalsim
    import metalsim.graph

    try:
        metalsim.graph.install()
        if is_offered():
            from metalsim import by_name

            said = by_name.use()
            return metalsim.install(on_event) if on_event is not None else said

        metalsim.arm()
        import torch  # noqa: F401  # where `arm` above promised it the device, it comes with this

        return metalsim.install(on_event)
    except metalsim.SimulationError as error:
        raise SimulationUnavailable(str(error)) from error
