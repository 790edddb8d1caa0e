"""The error that the simulation raises on its own account; everything else reads as on a Mac.

`metalsim.graph.errors` has kinds of it for MPSGraph.
"""


class SimulationError(RuntimeError):
    """The simulated Apple GPU cannot be had here; the message says why and what to do."""
