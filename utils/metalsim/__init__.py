"""A simulated Apple GPU for machines without one: torch programs for ``device="mps"`` run, and nothing is timed.

Order matters::

    import metalsim
    metalsim.arm()                       # before torch is imported
    metalsim.install(native=has_kernel)  # imports torch, builds the device once, switches it on

What it knows, what it does not, and how it works is told in `metalsim.device`.
"""

from metalsim.device import Counters, Event, counters, install, installed
from metalsim.errors import SimulationError
from metalsim.preload import arm, armed

__all__ = ["Counters", "Event", "SimulationError", "arm", "armed", "counters", "install", "installed"]
