"""What goes wrong: the errors of the simulated MPSGraph, beside Python's own and those that PyObjC raises."""

from __future__ import annotations

from metalsim.errors import SimulationError

ABORTS = "On a Mac this aborts the process"


class InvalidGraph(SimulationError):
    """MPSGraph does not accept this. On a Mac it aborts the process; here it is this error, which says so."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. {ABORTS}.")


class NotSimulated(SimulationError, NotImplementedError):
    """It exists on a Mac, and the simulation does not have it."""


class NeedsNewerMacOS(AttributeError):
    """The selector or class came with a later macOS than the one that is simulated: as on a Mac, it is not there."""


class PackageError(SimulationError):
    """A package cannot be written or read; the message says why."""
