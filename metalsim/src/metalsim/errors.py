"""The errors that the simulation raises on its own account; everything else reads as on a Mac."""


class SimulationError(RuntimeError):
    """The simulated Apple GPU cannot be had here; the message says why and what to do."""


class InvalidGraph(SimulationError):
    """A graph of MPSGraph, or a call, on which a Mac ends the process."""
