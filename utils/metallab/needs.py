"""What a page cannot do here because a tool is missing: said in the page, and kept for whoever ran it.

A page is **incomplete** if something that this kind of machine can have was missing, and a part of the page was not
run for want of it. That a Mac has no NVIDIA GPU, and Linux no Core ML, is no such thing: there pages say in words what
they leave out.

    needs.incomplete("the model was not converted", "install Xcode from the App Store")

shows that in the cell, and the executed notebook carries it under `MIME`: so `metallab.headless` learns of it, and
from it summary.json, the report and the tests. Cells ``%%isolated --needs objective-c++`` call it by themselves.
"""

from __future__ import annotations

import functools
import html
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MIME = "application/vnd.metallab.incomplete+json"
"""Under this type an output of an executed notebook holds ``{"what": ..., "mend": ...}`` of something not run."""


@dataclass(frozen=True)
class Gap:
    """Something that was not run: what, and the command or step that would mend it."""

    what: str
    mend: str

    def __repr__(self) -> str:
        return f"NOT RUN: {self.what}.\nTo mend it: {self.mend}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        style = "border-left:.4em solid #d55e00;padding:.5em 1em"
        mend = f"To mend it: <code>{html.escape(self.mend)}</code>"
        shown = f'<div style="{style}"><b>Not run</b>: {html.escape(self.what)}.<br>{mend}</div>'
        return {MIME: {"what": self.what, "mend": self.mend}, "text/plain": repr(self), "text/html": shown}


def incomplete(what: str, mend: str) -> None:
    """Say in a notebook's cell what was not run, and what mends it; the page's status becomes *incomplete*.

    ``what`` is a phrase without a full stop, ``mend`` a command or a step. Outside of notebooks it is printed.
    """
    from IPython.display import display

    display(Gap(what, mend))


@dataclass(frozen=True)
class Tool:
    """Something besides Python packages that a cell may need, and a machine may lack."""

    name: str
    is_here: Callable[[], bool]
    mend: Callable[[], str]

    @property
    def gap(self) -> Gap:
        """What is said of a cell that was not run for want of it."""
        return Gap(f"this cell needs {self.name}, which this machine lacks", self.mend())


def missing(names: Iterable[str]) -> list[Tool]:
    """Those of the tools, by their names in `TOOLS`, that this machine lacks. KeyError for a name that is not there."""
    return [TOOLS[name] for name in names if not TOOLS[name].is_here()]


def say_missing(*names: str) -> bool:
    """`incomplete` for each of these tools that this machine lacks; True if it lacks any."""
    gaps = [tool.gap for tool in missing(names)]
    for gap in gaps:
        incomplete(gap.what, gap.mend)
    return bool(gaps)


def other_torch() -> Gap | None:
    """What is said where the simulated Apple GPU cannot be built, if PyTorch is not the one that it is written for."""
    from metalsim.device import TORCH

    here = importlib.metadata.version("torch").split("+")[0]
    return None if here == TORCH else Gap(f"the simulated Apple GPU is written for torch {TORCH}, not {here}", SETUP)


def _has_apple_gpu() -> bool:
    from metalsim import preload

    here = (platform.system(), platform.machine())
    return sys.platform == "darwin" or (here == preload.SYSTEM and shutil.which("g++") is not None)


def _mend_apple_gpu() -> str:
    return _packages("g++") if sys.platform == "linux" else "use a Mac, or Linux on x86-64"


def _has_shader_compiler() -> bool:
    return sys.platform == "darwin" or _shader_compiler() is not None


def _has_sanitizers() -> bool:
    if sys.platform == "darwin":
        return True  # nothing is simulated there, and there is no check to run
    compiler = _shader_compiler()
    return compiler is not None and compiler.missing_sanitizers is None


def _shader_compiler():
    """metalsim's compiler for shaders, or None; it imports torch."""
    from metalsim.shader import compiler

    try:
        return compiler.find_compiler()
    except compiler.NoCompiler:
        return None


def _has_objective_c() -> bool:
    if sys.platform == "darwin":
        return subprocess.run(["xcode-select", "-p"], capture_output=True).returncode == 0
    from metalsim import SimulationError
    from metalsim.objc import toolchain

    try:
        toolchain.find()
    except SimulationError:
        return False
    return True


def _packages(wanted: str) -> str:
    """How to get what `make packages` installs."""
    if sys.platform == "darwin":
        return "xcode-select --install"
    return "make packages" if shutil.which("apt-get") else f"install {wanted} with this system's package manager"


_CLANG = "clang 19 or newer, its sanitizers, and GCC's run time for Objective-C"
SETUP = "make setup FORCE=1"
"""What brings every Python package back."""

TOOLS = {
    "apple-gpu": Tool("an Apple GPU, be it simulated", _has_apple_gpu, _mend_apple_gpu),
    "shader-compiler": Tool("a compiler for Metal's language", _has_shader_compiler, lambda: SETUP),
    "sanitizers": Tool("clang's sanitizers", _has_sanitizers, functools.partial(_packages, _CLANG)),
    "objective-c++": Tool("an Objective-C++ compiler", _has_objective_c, functools.partial(_packages, _CLANG)),
    "coremltools": Tool(
        "Apple's coremltools", lambda: importlib.util.find_spec("coremltools") is not None, lambda: SETUP
    ),
}
"""By the names that ``%%isolated --needs`` takes. An ``apple-gpu`` is needed by every cell with ``--device mps``.

A room that knows a tool of its own adds it when it is imported.
"""
