"""A simulated Apple GPU for machines without one: torch programs for ``device="mps"`` run, and nothing is timed.

A program begins with it::

    import metalsim
    metalsim.install_with_torch(required=True)      # before torch is imported: with torch comes the device

which is `arm` now and `install` later. ``python -m metalsim script.py`` and ``pytest --metalsim`` do it for a whole
program.

What it knows, what it does not, and how it works is told in `metalsim.device`. (PYTEST_DONT_REWRITE: pytest, which
loads the plugin, is not to change this package's assertions, of which there are none.)
"""

from metalsim.device import (
    Counters,
    Event,
    count_work,
    counters,
    install,
    install_with_torch,
    is_installed,
)
from metalsim.errors import SimulationError
from metalsim.planting import FAULTS, FaultNotMet, PlantedFault, list_planted, plant
from metalsim.preload import arm, is_armed
from metalsim.pretending import PRETENCES, list_pretended, pretend

# what these were called at first: programs that begin with metalsim may ask by these names
armed = is_armed
installed = is_installed
planted = list_planted
pretended = list_pretended

__all__ = [
    "FAULTS", "PRETENCES", "Counters", "Event", "FaultNotMet", "PlantedFault", "SimulationError", "arm", "armed",
    "count_work", "counters", "install", "install_with_torch", "installed", "is_armed", "is_installed", "list_planted",
    "list_pretended", "plant", "planted", "pretend", "pretended",
]  # fmt: skip
