"""Objective-C++ on the simulated Apple GPU: ``.mm`` host code of a Metal kernel compiles here and runs.

What compiles and runs it is the package metalsim-objc, which few programs need, and which is installed beside metalsim.
This module has `torch.utils.cpp_extension.load` ask for it when the first ``.mm`` file comes, and says what to install
where it is missing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from metalsim import preload
from metalsim.errors import SimulationError

MODULE = "torch.utils.cpp_extension"


def offer(connect: Callable[[int], None]) -> None:
    """Let torch build ``.mm`` files from now on; ``connect`` gives the device the address of their stream.

    Nothing is imported, built or asked for before the first one comes.
    """
    if MODULE in sys.modules:
        _teach(sys.modules[MODULE], connect)
    else:
        preload.after_import(MODULE, lambda: _teach(sys.modules[MODULE], connect))


def _teach(cpp_extension: Any, connect: Callable[[int], None]) -> None:
    """Have torch's module for extensions hand ``.mm`` files over."""
    write = cpp_extension._write_ninja_file

    @functools.wraps(write)
    def write_ninja_file(**build: Any) -> None:
        has_objective_c = any(source.endswith(".mm") for source in build["sources"])
        # without `ldflags` it is setuptools that links, and nothing can be added here
        if not has_objective_c or build["ldflags"] is None:
            write(**build)
            return

        _import_extension().write_ninja_file(cpp_extension, write, build, connect)

    cpp_extension._write_ninja_file = write_ninja_file


def _import_extension() -> ModuleType:
    """Return what writes ninja files for Objective-C++. SimulationError where metalsim-objc is not installed."""
    try:
        from metalsim_objc import extension
    except ModuleNotFoundError as missing:
        if missing.name != "metalsim_objc":
            raise
        raise SimulationError(
            "Objective-C++ (.mm) needs the package metalsim-objc, which is not installed: pip install its wheel, or "
            "the folder metalsim/objc of the checkout that metalsim comes from"
        ) from None
    return extension
