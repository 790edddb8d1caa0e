"""A simulated MPSGraph: PyObjC's modules as stand-ins, so that the Python code of a Mac runs where there is none.

After ``metalsim.graph.install()`` these can be imported: ``Metal``, ``MetalPerformanceShaders``,
``MetalPerformanceShadersGraph``, ``Foundation`` and ``objc``, with what `metalsim.graph.mpsgraph`
has. PyTorch computes, on the CPU. No compiler and no simulated ``mps`` device are needed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from metalsim import preload
from metalsim.errors import InvalidGraph, SimulationError

__all__ = ["InvalidGraph", "install", "is_installed", "uninstall"]

MODULES = ("Foundation", "Metal", "MetalPerformanceShaders", "MetalPerformanceShadersGraph", "objc")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find the stand-ins, and nothing else; torch is imported with the first of them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in MODULES:
            return None
        return importlib.util.spec_from_loader(name, self, origin="simulated")

    def exec_module(self, module: ModuleType) -> None:
        # graphs are computed on the CPU, without torch's simulated device
        with preload.forgiving():
            from metalsim.graph import mpsgraph

        module.__doc__ = f"A simulated {module.__name__}: the part of it that MPSGraph needs. See metalsim.graph."
        vars(module)["__simulated__"] = True
        vars(module).update(mpsgraph.CONTENT[module.__name__])


_finder = _Finder()


def install() -> str:
    """Make the stand-ins importable. A second call changes nothing.

    Returns
    -------
    str
        A line that names what is simulated.

    Raises
    ------
    SimulationError
        On a Mac, which has the real modules, and where a module of one of their names is there already.
    """
    said = "Simulated MPSGraph, computed by PyTorch on the CPU. No time measured here is a GPU's."
    if is_installed():
        return said

    if sys.platform == "darwin":
        raise SimulationError(
            "this is a Mac, which has the real MPSGraph: import it, and do not simulate it"
        )
    for name in MODULES:
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            raise SimulationError(
                f"there is a module {name} already, which would be taken for the simulated one: rename the file, "
                "or uninstall the package, that it comes from"
            )

    sys.meta_path.append(_finder)
    return said


def uninstall() -> None:
    """Remove the stand-ins. Objects made by them stay what they are."""
    if is_installed():
        sys.meta_path.remove(_finder)
    for name in MODULES:
        if getattr(sys.modules.get(name), "__simulated__", False):
            del sys.modules[name]


def is_installed() -> bool:
    """Return True after `install`."""
    return _finder in sys.meta_path
