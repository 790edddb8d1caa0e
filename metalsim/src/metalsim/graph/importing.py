"""The import hook: PyObjC's modules as stand-ins, made when a program imports them."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from metalsim import preload
from metalsim.errors import SimulationError


def _foundation(module: ModuleType) -> None:
    from metalsim.graph import foundation

    for name in ("NSArray", "NSData", "NSDictionary", "NSNumber", "NSURL"):
        setattr(module, name, getattr(foundation, name))


def _objc(module: ModuleType) -> None:
    vars(module).update(nil=None, YES=True, NO=False, __version__="12.2.2", autorelease_pool=contextlib.nullcontext)


def _metal(module: ModuleType) -> None:
    from metalsim.graph import metal

    for name in ("MTLCreateSystemDefaultDevice", "MTLCopyAllDevices"):
        setattr(module, name, getattr(metal, name))
    vars(module).update(metal.CONSTANTS)


def _shaders(module: ModuleType) -> None:
    from metalsim.graph import contract

    names = contract.constants()
    vars(module).update({name: names[name] for name in names if not name.startswith("MPSGraph")})
    _classes(module, ("MPSNDArray", "MPSNDArrayDescriptor"))


def _graph(module: ModuleType) -> None:
    from metalsim.graph import contract

    vars(module).update(contract.constants())  # PyObjC looks in MetalPerformanceShaders as well
    _classes(module, tuple(name for name in contract.class_names() if name.startswith("MPS")))


FILLERS: dict[str, Callable[[ModuleType], None]] = {
    "objc": _objc,
    "Foundation": _foundation,
    "Metal": _metal,
    "MetalPerformanceShaders": _shaders,
    "MetalPerformanceShadersGraph": _graph,
}


def _classes(module: ModuleType, names: Sequence[str]) -> None:
    """Give a module these classes when they are asked for: they need torch, which takes seconds to import."""

    def find(name: str) -> Any:
        from metalsim.graph import contract

        if name not in names:
            return _refuse(module, name)
        if newer := contract.missing_class(name):
            raise newer
        return _simulated_class(name)

    module.__getattr__ = find
    module.__dir__ = lambda: sorted({*vars(module), *names})


def _refuse(module: ModuleType, name: str) -> Any:
    raise AttributeError(
        f"module '{module.__name__}' has no attribute '{name}'; it is simulated, as far as MPSGraph needs it"
    )


def _simulated_class(name: str) -> type:
    with preload.forgiving():  # graphs are computed by PyTorch, and on the CPU: they do without its simulated device
        from metalsim.graph import descriptors, mpsgraph, tensors
    from metalsim.graph.errors import NotSimulated

    for module in (mpsgraph, tensors):
        simulated = getattr(module, name, None)
        if isinstance(simulated, type):
            return simulated
    if name in descriptors.CLASSES:
        return descriptors.CLASSES[name]
    raise NotSimulated(f"{name} exists on a Mac and is not simulated")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in FILLERS:
            return None
        return importlib.util.spec_from_loader(name, self, origin="simulated by metalsim.graph")

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = (
            f"A simulated {module.__name__}: the part of it that MPSGraph needs, on a machine without Metal. "
            "See metalsim.graph."
        )
        module.__simulated__ = True
        module.__getattr__ = lambda name: _refuse(module, name)
        FILLERS[module.__name__](module)


_finder = _Finder()


def hook() -> None:
    """Make ``import MetalPerformanceShadersGraph`` and its kin find the stand-ins. A second call changes nothing.

    SimulationError on a Mac, and where one of the modules is there already.
    """
    if _finder in sys.meta_path:
        return
    if sys.platform == "darwin":
        raise SimulationError("this is a Mac, which has the real MPSGraph: import it, and do not simulate it")
    for name in FILLERS:
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            raise SimulationError(
                f"there is a module {name} already, which would be taken for the simulated one: rename the file, or "
                "uninstall the package, that it comes from"
            )
    sys.meta_path.append(_finder)


def unhook() -> None:
    """Take the stand-ins out again; for tests."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in FILLERS:
        if getattr(sys.modules.get(name), "__simulated__", False):
            del sys.modules[name]


def hooked() -> bool:
    """True after `hook`."""
    return _finder in sys.meta_path
