"""Tools that a machine may lack: a page reports what it did not run without them, and how to install them.

A page is **incomplete** if something that this kind of machine can have was missing, and a part of the page was not
run without it. That a Mac has no NVIDIA GPU, and Linux no Core ML, does not count: there pages say in words what they
leave out.

    needs.incomplete("the model was not converted", "install Xcode from the App Store")

shows that in the cell. The executed notebook carries it under `MIME`, from which `metallab.headless`, summary.json, the
report and the tests read it. Cells ``%%isolated --needs objective-c++`` call it by themselves.

What was not run is no success for who runs pages as tests: with ``METALLAB_STRICT=1`` a page that is incomplete raises
`NotRun` in its last cell (`close_page`), whoever executes it. Two tools are excepted where a machine cannot have them:
`OPTIONAL`.
"""

from __future__ import annotations

import functools
import html
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metallab import bootstrap, mode, paths

MIME = "application/vnd.metallab.incomplete+json"
"""Under this type an executed notebook's output holds a `MissingTool`, in JSON."""

OPTIONAL = ("coreai", "mlx")
"""The only tools that a page may do without where it is run strictly, and that it may be skipped for.

They may be absent where the machine cannot have them, and `Tool.why_not_here` says why: there is no wheel of MLX or
Core AI for every system, and Core AI, a beta, may fail to install. Where one could be had and was not installed, that
is a failure like any other, with the command that installs it. A compiler, which any machine can have, is never one of
them.
"""


class NotRun(RuntimeError):
    """Parts of a page did not run, and the page was to be complete."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message, without the way to it."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True)
class MissingTool:
    """What was not run, and the command or step that would fix it."""

    what: str
    fix: str
    optional: bool = False
    """Whether a page may do without it on this machine (`Tool.may_be_absent`)."""

    def __repr__(self) -> str:
        return f"NOT RUN: {self.what}.\nTo fix it: {self.fix}"

    def to_json(self) -> dict[str, str | bool]:
        """Return what an executed notebook holds under `MIME`."""
        told: dict[str, str | bool] = {"what": self.what, "fix": self.fix}
        if self.optional:
            told["optional"] = True
        return told

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        style = "border-left:.4em solid #d55e00;padding:.5em 1em"
        fix = f"To fix it: <code>{html.escape(self.fix)}</code>"
        shown = f'<div style="{style}"><b>Not run</b>: {html.escape(self.what)}.<br>{fix}</div>'
        return {
            MIME: self.to_json(),
            "text/plain": repr(self),
            "text/html": shown,
        }


def read_fix(told: Mapping[str, Any]) -> str:
    """Return the fix of what a page or a run's summary tells; some that are stored here call it ``mend``."""
    return str(told["fix"] if "fix" in told else told["mend"])


def incomplete(what: str, fix: str, *, without: str | None = None) -> None:
    """Show in a notebook's cell what was not run, and the fix; the page's status becomes *incomplete*.

    Outside of notebooks it is printed.

    Parameters
    ----------
    what
        A phrase without a full stop.
    fix
        A command or a step.
    without
        The tool that is missing, if it is one of `OPTIONAL`: where this machine may lack it, the page is no failure
        if it is run strictly.

    Raises
    ------
    ValueError
        If ``without`` is another tool.
    """
    if without is not None and without not in OPTIONAL:
        raise ValueError(
            f"a page cannot do without {without!r}: without= takes one of {', '.join(OPTIONAL)}"
        )
    may_be_absent = without is not None and TOOLS[without].may_be_absent
    show(MissingTool(what, fix, optional=may_be_absent))


def show(missing: MissingTool) -> None:
    """Show in a cell what was not run, and remember it for the end of the page (`close_page`)."""
    from IPython.display import display

    display(missing)
    note(missing.to_json())


def note(told: Mapping[str, Any]) -> None:
    """Remember for the end of the page that the cell that runs now has left something out, told as under `MIME`."""
    _not_run.append((len(_cells_run()) - 1, told))


def _cells_run() -> list[str]:
    """Return the source of each cell that was run, after an empty one; the last is the one that runs now.

    Outside of notebooks there are none.
    """
    if "IPython" not in sys.modules:  # a program; the measuring core does without it
        return []
    from IPython import get_ipython

    shell = get_ipython()
    return list(shell.user_ns["In"]) if shell else []


def close_page(page: str, say: Callable[[str], object] | None = None) -> None:
    """End a page: say on the console what it has not run, or, where it is run strictly, raise.

    `metallab.finish`, with which pages end, calls it.

    Parameters
    ----------
    page
        Its name, for the message.
    say
        What else tells it, such as the last cell.

    Raises
    ------
    NotRun
        With ``METALLAB_STRICT=1``, if a tool is missing that is not `OPTIONAL`. It names every cell that did not run.
    """
    gaps = _list_gaps()
    if not gaps:
        return

    text = _describe_gaps(page, gaps)
    if mode.is_strict() and not all(told.get("optional") for _, told in gaps):
        raise NotRun(text)
    if say is not None:
        say(text)
    _warn_on_console(text)


def _list_gaps() -> list[tuple[int, Mapping[str, Any]]]:
    """Return what was left out, with the number of its cell; outside of notebooks the number is -1.

    A cell that was run again has told again what it left out, so what its earlier runs have told does not count.
    """
    cells = _cells_run()
    if not cells:
        return list(_not_run)
    return [(number, told) for number, told in _not_run if cells[number] not in cells[number + 1 :]]


def _describe_gaps(page: str, gaps: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """Return what a page has not run, a line for each cell, and how to fix it, each command once."""
    lines = [f"{page} is incomplete. Not run:"]
    for number, told in gaps:
        where = f"cell {number}" if number > 0 else "here"
        lines.append(f"{where}: {told['what']}")

    fixes = dict.fromkeys(str(told["fix"]) for _, told in gaps)
    lines += [f"to fix it: {fix}" for fix in fixes]
    return "\n  ".join(lines)


def _warn_on_console(text: str) -> None:
    """Log a warning where a person sees it who runs a page without looking into it, as with nbconvert.

    What a cell writes to its standard error becomes part of the page; the kernel's own log goes to the console.
    """
    from traitlets.config import Application

    if Application.initialized():
        Application.instance().log.warning(text)


_not_run: list[tuple[int, Mapping[str, Any]]] = []
"""What this page has not run so far: the number of the cell, as it was run, and what is told of it under `MIME`."""


def _no_reason() -> str:
    """Return that nothing speaks against having a tool."""
    return ""


@dataclass(frozen=True)
class Tool:
    """Something besides Python packages that a cell may need, and a machine may lack."""

    name: str
    """In a sentence: ``a C++ compiler``."""
    is_here: Callable[[], bool]
    fix: Callable[[], str]
    """Returns the command or step that brings it."""
    why_not_here: Callable[[], str] = _no_reason
    """Why this machine cannot have it; empty if it can. Only `OPTIONAL` tools have such a reason."""

    @property
    def may_be_absent(self) -> bool:
        """Whether a page is no failure without it on this machine, be it run strictly."""
        return bool(self.why_not_here())

    @property
    def report(self) -> MissingTool:
        """What to show in a cell that was not run without it."""
        return self.report_for("this cell")

    def report_for(self, what: str) -> MissingTool:
        """Return what to show where something was not run without it, such as *this page*."""
        lacking = f"{what} needs {self.name}, which this machine lacks"
        return MissingTool(lacking, self.fix(), optional=self.may_be_absent)


def missing(names: Iterable[str]) -> list[Tool]:
    """Return the tools that this machine lacks, of some named as in `TOOLS`. KeyError for a name that is not there."""
    return [TOOLS[name] for name in names if not TOOLS[name].is_here()]


def other_torch() -> MissingTool | None:
    """Return what to show where the simulated Apple GPU cannot be built, if it is for another PyTorch; else None."""
    from metalsim.device import OLDEST_TORCH, TORCH, knows

    here = importlib.metadata.version("torch").split("+")[0]
    if knows(here):
        return None
    what = f"the simulated Apple GPU is written for torch {OLDEST_TORCH} to {TORCH}, not {here}"
    return MissingTool(what, SETUP)


def _has_apple_gpu() -> bool:
    """Return whether there is an Apple GPU, or one can be simulated."""
    from metalsim import preload

    if sys.platform == "darwin":
        macos = int(platform.mac_ver()[0].partition(".")[0] or 15)
        return macos >= 15  # below, PyTorch sees no GPU

    here = (platform.system(), platform.machine())
    return here == preload.SYSTEM and shutil.which("g++") is not None


def _name_apple_gpu() -> str:
    """Return the name of an Apple GPU, and what this machine lacks that it can be simulated with."""
    if sys.platform == "darwin":
        return "an Apple GPU"
    if platform.machine() != "x86_64":
        return "an Apple GPU, or Linux on x86-64 to simulate one"
    return "an Apple GPU, or g++ to build the simulated one"


def _fix_apple_gpu() -> str:
    """Return how to get an Apple GPU, be it simulated."""
    if sys.platform == "darwin":
        return "update to macOS 15"
    return "use a Mac, or Linux on x86-64" if platform.machine() != "x86_64" else _packages("g++")


def _has_shader_compiler() -> bool:
    """Return whether Metal's language can be compiled here."""
    if sys.platform == "darwin":
        return _has_apple_gpu()
    from metalsim import clang

    try:
        clang.find_compiler()
    except clang.NoCompiler:
        return False
    return True


def _has_objective_cpp() -> bool:
    """Return whether ``.mm`` files are compiled here: by a Mac's compiler, or by the package for the simulated GPU."""
    if sys.platform == "darwin" or not has_compiler():
        return has_compiler()
    return _has_shader_compiler() and importlib.util.find_spec("metalsim_objc") is not None


def has_compiler() -> bool:
    """Return whether there is the C++ compiler that pages use (`bootstrap.find_compiler`).

    A Mac without Xcode's tools has a stand-in for it, which only asks to install them; it does not count.
    """
    if sys.platform == "darwin":
        return subprocess.run(["xcode-select", "-p"], capture_output=True).returncode == 0
    return shutil.which(bootstrap.find_compiler()[0]) is not None


def use_compiler() -> None:
    """Let all of PyTorch, here and in processes started from here, take the compiler that `has_compiler` found."""
    os.environ["CXX"] = shlex.join(bootstrap.find_compiler())


def _packages(wanted: str) -> str:
    """Return how to get what `make packages` installs."""
    if sys.platform == "darwin":
        return "xcode-select --install"
    if shutil.which("apt-get"):
        return "make packages"
    return f"install {wanted} with this system's package manager"


SETUP = "make setup FORCE=1"
"""What brings every Python package back."""

NEWER_LINUX = "on Linux take one with glibc 2.35 or newer, then make setup FORCE=1"
"""What brings MLX where its wheel does not load."""

CORE_AI = (
    paths.ROOT / ".venv-coreai" / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
)
"""Where set-up installs Core AI for this Python; ``main.pth`` is written last."""

CORE_AI_FAILED = paths.ROOT / ".venv-coreai" / "failed"
"""What set-up leaves where it was asked for Core AI and could not install it."""


def _why_no_core_ai() -> str:
    """Return why this machine cannot have Core AI; empty if it can."""
    if not bootstrap.loads_core_ai():
        return "its wheels are for macOS 26, and for Linux on x86-64 with glibc 2.34"
    if CORE_AI_FAILED.exists():
        return "set-up tried to install it, and failed; make setup COREAI=1 tries again"
    return ""


def _why_no_mlx() -> str:
    """Return why this machine cannot have MLX; empty if it can."""
    return "" if bootstrap.loads_mlx() else "on Linux its wheel takes glibc 2.35"


TOOLS = {
    "apple-gpu": Tool(_name_apple_gpu(), _has_apple_gpu, _fix_apple_gpu),
    "shader-compiler": Tool("a compiler for Metal's language", _has_shader_compiler, lambda: SETUP),
    "c++": Tool("a C++ compiler", has_compiler, functools.partial(_packages, "g++")),
    "objective-c++": Tool(
        "an Objective-C++ compiler",
        _has_objective_cpp,
        lambda: SETUP if has_compiler() else _packages("g++"),
    ),
    "coreai": Tool(
        "Apple's Core AI",
        lambda: (CORE_AI / "main.pth").exists(),
        lambda: "make setup COREAI=1",
        why_not_here=_why_no_core_ai,
    ),
    "coremltools": Tool(
        "Apple's coremltools", lambda: bool(importlib.util.find_spec("coremltools")), lambda: SETUP
    ),
    "mlx": Tool(
        "Apple's MLX",
        lambda: bool(importlib.util.find_spec("mlx")),
        lambda: SETUP if bootstrap.loads_mlx() else NEWER_LINUX,
        why_not_here=_why_no_mlx,
    ),
}
"""By the names that ``%%isolated --needs`` takes. An ``apple-gpu`` is needed by every cell with ``--device mps``.

A subpackage with a tool of its own adds it when it is imported.
"""
