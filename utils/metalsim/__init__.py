"""A simulated Apple GPU for machines without one: torch programs for ``device="mps"`` run, and nothing is timed.

Order matters::

    import metalsim
    metalsim.arm()                                  # before torch is imported
    metalsim.install()                              # imports torch, builds the device once, switches it on

    metalsim.install_with_torch()                   # or both: now, and when torch is imported

What it knows, what it does not, and how it works is told in `metalsim.device`.
"""

from metalsim.device import Counters, Event, counters, install, install_with_torch, installed
from metalsim.errors import SimulationError
from metalsim.planting import FAULTS, PlantedFault, plant, planted
from metalsim.preload import arm, armed

__all__ = [
    "FAULTS",
    "Counters",
    "Event",
    "PlantedFault",
    "SimulationError",
    "arm",
    "armed",
    "counters",
    "install",
    "install_with_torch",
    "installed",
    "plant",
    "planted",
]
