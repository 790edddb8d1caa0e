"""Prepare a process before torch is imported: load a library that answers for the accelerator, and hide CUDA.

torch asks one function which accelerator a process has, and a build for Linux never says ``mps``. The dynamic linker
binds that name to the library that was loaded first: ours, if it comes before torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from metalsim import building
from metalsim.errors import SimulationError

SYSTEM = ("Linux", "x86_64")
FIRST = "`import metalsim; metalsim.install_with_torch(required=True)`"
"""What a program begins with."""
_library: ctypes.CDLL | None = None
_forgiving = False


def arm() -> None:
    """Prepare this process for the simulated device, before torch is imported.

    The first call on a machine compiles a small file (a second). CUDA is hidden from torch, here and in child
    processes.

    Raises
    ------
    SimulationError
        If torch is imported, on another system than Linux on x86-64, and without a compiler.
    """
    if _library is not None:
        return

    _check_system()
    if "torch" in sys.modules:
        raise SimulationError(
            "torch was imported before the simulated Apple GPU was armed: restart Python with `python -m metalsim`, or "
            f"begin with {FIRST} (`import metallab` under METALLAB_DEVICE=sim does that)"
        )
    load_answer()


def load_answer() -> None:
    """Do what `arm` does, where torch is known to be imported next: its libraries must not be loaded yet."""
    global _library
    if _library is not None:
        return

    _check_system()
    library = ctypes.CDLL(str(_build_answer()), mode=ctypes.RTLD_GLOBAL)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _library = library


def is_armed() -> bool:
    """Return True once `arm` has succeeded in this process."""
    return _library is not None


def answer_mps(yes: bool) -> None:
    """Make torch see ``mps`` as its accelerator, or none. SimulationError before `arm`."""
    if _library is None:
        raise SimulationError(
            f"the simulated Apple GPU is not armed: begin with {FIRST}, before torch is imported"
        )
    _library.metalsim_set_accelerator(int(yes))


def after_torch(do: Callable[[], object], required: bool = False) -> None:
    """Call ``do`` as soon as torch is imported."""
    after_import("torch", do, required)


def after_import(module: str, do: Callable[[], object], required: bool = False) -> None:
    """Call ``do`` as soon as a module is imported.

    A SimulationError is a warning, or raised by the import if ``do`` is ``required``, except under `forgiving`.
    """
    sys.meta_path.insert(0, _AroundImport(module, do, required))


def wrap_import(module: str, before: Callable[[], object], after: Callable[[], object]) -> None:
    """Call ``before`` when a module is about to be imported, and ``after`` as soon as it is.

    A SimulationError of ``after`` is a warning.
    """
    sys.meta_path.insert(0, _AroundImport(module, after, required=False, before=before))


def before_import(module: str, do: Callable[[], object]) -> None:
    """Call ``do`` once, as soon as a module is about to be imported."""
    sys.meta_path.insert(0, _BeforeImport(module, do))


@contextlib.contextmanager
def forgiving() -> Iterator[None]:
    """Within this block a failure of what is ``required`` of an import is a warning."""
    global _forgiving
    before, _forgiving = _forgiving, True
    try:
        yield
    finally:
        _forgiving = before


class _AroundImport(importlib.abc.MetaPathFinder):
    """Finds a module, and lets its loader do more: before the module is loaded, and after that."""

    def __init__(
        self,
        module: str,
        do: Callable[[], object],
        required: bool,
        before: Callable[[], object] | None = None,
    ) -> None:
        self._module, self._do, self._required = module, do, required
        self._before = before
        self._looking = False

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as if this finder were not there, with a loader that calls `_load`; None for other modules.

        That search asks all finders, and so this one again, which then returns None as well.
        """
        if name != self._module or self._looking:
            return None

        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False

        if spec is None or spec.loader is None:  # not there, or a folder that only has its name
            return spec

        load = functools.partial(self._load, spec.loader.exec_module)
        setattr(spec.loader, "exec_module", load)  # noqa: B010 - a type checker refuses the assignment
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Load the module as its own loader does, with what is to be done before and after.

        If what comes before raises, so does the import, and the module is not loaded. Of what comes after, a
        SimulationError is a warning, unless it is required and nobody is `forgiving`.
        """
        # only now: others may ask where the module is, and not import it
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._before is not None:
            self._before()

        load(module)

        try:
            self._do()
        except SimulationError as error:
            # torch itself is fine; who asks for the device is told again
            if self._required and not _forgiving:
                raise
            warnings.warn(
                f"PyTorch has no simulated Apple GPU: {error}", RuntimeWarning, stacklevel=2
            )


class _BeforeImport(importlib.abc.MetaPathFinder):
    """Finds no module, and does one thing when another one is looked for."""

    def __init__(self, module: str, do: Callable[[], object]) -> None:
        self._module, self._do = module, do

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self._module and self in sys.meta_path:
            sys.meta_path.remove(self)
            self._do()


def _check_system() -> None:
    """Raise SimulationError where there can be no simulated GPU: on a Mac, which has a real one, and elsewhere."""
    here = (platform.system(), platform.machine())
    if here == ("Darwin", "arm64"):
        raise SimulationError("this Mac has a real Apple GPU: use it, without metalsim")
    if here != SYSTEM:
        raise SimulationError(
            f"the simulated Apple GPU runs on {' '.join(SYSTEM)}; this is {' '.join(here)}"
        )


_ANSWER_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared")
"""What the library that answers for the accelerator is compiled with."""


def _build_answer() -> Path:
    """Return the library that answers for the accelerator, built if it is not in the cache."""
    path, version = building.compiler()
    source = building.SOURCES / "accelerator.cpp"

    def build(folder: Path) -> None:
        out = folder / "accelerator.so"
        command = [path, *_ANSWER_FLAGS, str(source), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)

        if done.returncode:
            raise SimulationError(f"{version} could not compile {source.name}:\n{done.stderr}")

    name = f"accelerator-{building.key(version, *_ANSWER_FLAGS, files=[source])}"
    return building.build_once(name, "accelerator.so", build)
