"""Tools that a machine may lack: a page reports what it did not run without them, and how to install them.

A page is **incomplete** if something that this kind of machine can have was missing, and a part of the page was not
run without it. That a Mac has no NVIDIA GPU, and Linux no Core ML, does not count: there pages say in words what they
leave out.

    needs.incomplete("the model was not converted", "install Xcode from the App Store")

shows that in the cell. The executed notebook carries it under `MIME`, from which `metallab.headless`, summary.json, the
report and the tests read it. Cells ``%%isolated --needs objective-c++`` call it by themselves.
"""

from __future__ import annotations

import functools
import html
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from metallab import paths

MIME = "application/vnd.metallab.incomplete+json"
"""Under this type an executed notebook's output holds ``{"what": ..., "mend": ...}``: what was not run, and the fix."""


@dataclass(frozen=True)
class MissingTool:
    """What was not run, and the command or step that would fix it."""

    what: str
    fix: str

    def __repr__(self) -> str:
        return f"NOT RUN: {self.what}.\nTo fix it: {self.fix}"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        style = "border-left:.4em solid #d55e00;padding:.5em 1em"
        fix = f"To fix it: <code>{html.escape(self.fix)}</code>"
        shown = f'<div style="{style}"><b>Not run</b>: {html.escape(self.what)}.<br>{fix}</div>'
        return {
            MIME: {"what": self.what, "mend": self.fix},
            "text/plain": repr(self),
            "text/html": shown,
        }


def incomplete(what: str, fix: str) -> None:
    """Show in a notebook's cell what was not run, and the fix; the page's status becomes *incomplete*.

    ``what`` is a phrase without a full stop, ``fix`` a command or a step. Outside of notebooks it is printed.
    """
    from IPython.display import display

    display(MissingTool(what, fix))


@dataclass(frozen=True)
class Tool:
    """Something besides Python packages that a cell may need, and a machine may lack."""

    name: str
    is_here: Callable[[], bool]
    fix: Callable[[], str]

    @property
    def report(self) -> MissingTool:
        """What to show in a cell that was not run without it."""
        return MissingTool(f"this cell needs {self.name}, which this machine lacks", self.fix())


def missing(names: Iterable[str]) -> list[Tool]:
    """Those of the tools, by their names in `TOOLS`, that this machine lacks. KeyError for a name that is not there."""
    return [TOOLS[name] for name in names if not TOOLS[name].is_here()]


def other_torch() -> MissingTool | None:
    """What to show where the simulated Apple GPU cannot be built, if it is written for another PyTorch; else None."""
    from metalsim.device import TORCH

    here = importlib.metadata.version("torch").split("+")[0]
    what = f"the simulated Apple GPU is written for torch {TORCH}, not {here}"
    return None if here == TORCH else MissingTool(what, SETUP)


def _has_apple_gpu() -> bool:
    from metalsim import preload

    here = (platform.system(), platform.machine())
    if sys.platform == "darwin":
        return (
            int(platform.mac_ver()[0].partition(".")[0] or 15) >= 15
        )  # below, PyTorch sees no GPU
    return here == preload.SYSTEM and shutil.which("g++") is not None


def _fix_apple_gpu() -> str:
    if sys.platform == "darwin":
        return "update to macOS 15"
    return "use a Mac, or Linux on x86-64" if platform.machine() != "x86_64" else _packages("g++")


def _has_shader_compiler() -> bool:
    if sys.platform == "darwin":
        return _has_apple_gpu()
    from metalsim.shader import compiler  # imports torch

    try:
        compiler.find_compiler()
    except compiler.NoCompiler:
        return False
    return True


def has_compiler() -> bool:
    """Return whether there is a C++ compiler, ``CXX`` or ``c++``; a Mac without Xcode's tools has a stand-in for it."""
    if sys.platform == "darwin":
        return subprocess.run(["xcode-select", "-p"], capture_output=True).returncode == 0
    return shutil.which(os.environ.get("CXX", "c++").split()[0]) is not None


def _packages(wanted: str) -> str:
    """How to get what `make packages` installs."""
    if sys.platform == "darwin":
        return "xcode-select --install"
    return (
        "make packages"
        if shutil.which("apt-get")
        else f"install {wanted} with this system's package manager"
    )


SETUP = "make setup FORCE=1"
"""What brings every Python package back."""

CORE_AI = (
    paths.ROOT / ".venv-coreai" / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
)
"""Where set-up installs Core AI for this Python; ``main.pth`` is written last."""

TOOLS = {
    "apple-gpu": Tool("an Apple GPU, be it simulated", _has_apple_gpu, _fix_apple_gpu),
    "shader-compiler": Tool("a compiler for Metal's language", _has_shader_compiler, lambda: SETUP),
    "c++": Tool("a C++ compiler", has_compiler, functools.partial(_packages, "g++")),
    "objective-c++": Tool(
        "an Objective-C++ compiler",
        lambda: has_compiler() and (sys.platform == "darwin" or _has_shader_compiler()),
        lambda: SETUP if has_compiler() else _packages("g++"),
    ),
    "coreai": Tool(
        "Apple's Core AI", lambda: (CORE_AI / "main.pth").exists(), lambda: "make setup COREAI=1"
    ),
    "coremltools": Tool(
        "Apple's coremltools", lambda: bool(importlib.util.find_spec("coremltools")), lambda: SETUP
    ),
}
"""By the names that ``%%isolated --needs`` takes. An ``apple-gpu`` is needed by every cell with ``--device mps``.

A subpackage with a tool of its own adds it when it is imported.
"""
