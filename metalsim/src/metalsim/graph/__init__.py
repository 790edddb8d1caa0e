"""A simulated MPSGraph: PyObjC's modules as stand-ins, so that the Python code of a Mac runs where there is none.

``metalsim.graph.install()``, and these can be imported: ``Metal``, ``MetalPerformanceShaders``,
``MetalPerformanceShadersGraph``, ``Foundation`` and ``objc``, as far as MPSGraph needs them. Selectors, arguments and
the macOS that brought each are checked against PyObjC's own metadata; PyTorch computes, on the CPU. No compiler, no GPU
and no simulated ``mps`` device are needed. `README.md` beside this file has an example and the limits.
"""

from __future__ import annotations

from metalsim.graph import contract
from metalsim.graph.errors import InvalidGraph, NeedsNewerMacOS, NotSimulated, PackageError
from metalsim.graph.importing import hook, hooked, unhook

__all__ = [
    "InvalidGraph",
    "NeedsNewerMacOS",
    "NotSimulated",
    "PackageError",
    "install",
    "installed",
    "macos_version",
    "set_macos_version",
    "uninstall",
]


def install() -> str:
    """Make the stand-ins importable, and return a line that says what is simulated. Nothing is imported yet.

    SimulationError on a Mac, which has the real ones, and where a module of one of their names is there already.
    """
    hook()
    return (
        f"Simulated MPSGraph of macOS {macos_version()}: selectors as PyObjC 12.2.2 has them, computed by PyTorch on "
        "the CPU. No time measured here is a GPU's."
    )


def uninstall() -> None:
    """Take the stand-ins out again. Objects made by them stay what they are."""
    unhook()


def installed() -> bool:
    """True after `install`."""
    return hooked()


def macos_version() -> str:
    """The macOS that is simulated: ``"15.0"`` unless `set_macos_version` said otherwise."""
    return contract.version_text(contract.macos())


def set_macos_version(version: str) -> None:
    """Simulate another macOS: selectors and classes that came later are then missing, as on a Mac that has it.

    ValueError for what is no version.
    """
    contract.set_macos(version)
