"""Find the compiler for shaders.

clang++ 19 or newer if there is one; else the PyPI package ziglang, a clang that needs no administrator. PyTorch is not
imported for it, since whoever asks whether there is a compiler need not wait for that.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST_CLANG, NEWEST_CLANG = 19, 30
MOST_SECONDS = 30
"""How long a compiler may take to say what it is. That takes it some hundredths of a second, and seconds where a busy
machine reads it from a disk for the first time: one that has said nothing by then waits for something else."""


class NoCompiler(RuntimeError):
    """No compiler for shaders, or none that starts; the message says what to do."""


@dataclass(frozen=True)
class Compiler:
    """A clang: its command, and what distinguishes it from another one."""

    command: tuple[str, ...]
    kind: str  # "clang" or "zig"
    identity: str

    @functools.cached_property
    def missing_sanitizers(self) -> str | None:
        """The reason why kernels cannot be compiled with sanitizers, or None."""
        if self.kind != "clang":
            return "they come with clang++ 19 or newer (Debian, Ubuntu: clang-19 libclang-rt-19-dev), not with ziglang"

        folder = _output([*self.command, "-print-resource-dir"]).strip()
        # a clang that names no folder has none: the path of an empty name is the working directory
        if folder and any(Path(folder).glob("lib/**/*clang_rt.asan*")):
            return None
        return f"{self.command[0]} has no sanitizer libraries (Debian, Ubuntu: libclang-rt-19-dev)"

    @property
    def options(self) -> tuple[str, ...]:
        """The target: x86-64-v3, elsewhere the architecture's own minimum."""
        if platform.machine() == "x86_64":
            return ("-march=x86-64-v3" if self.kind == "clang" else "-march=x86_64_v3",)
        return () if self.kind == "clang" else ("-mcpu=baseline",)

    def tool(self, name: str) -> str | None:
        """Return a program of LLVM, such as llvm-symbolizer; None where there is none.

        It is the one beside this clang, or else the first on PATH, of whichever version.
        """
        called = self.command[0]
        clang = Path(os.path.realpath(shutil.which(called) or called))
        beside = clang.with_name(name)
        return str(beside) if beside.exists() else shutil.which(name)


def find_compiler() -> Compiler:
    """Return the compiler for shaders.

    The variable METALSIM_CXX names another one: the command of a clang, or `zig` for the ziglang package. NoCompiler if
    there is none, or not the one that is named.
    """
    return _find_compiler(os.environ.get("METALSIM_CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache
def _find_compiler(asked: str, _path: str) -> Compiler:
    """Find the compiler; `asked` is the value of METALSIM_CXX, empty where nobody has set it.

    `_path` is PATH, by which the result is remembered: another clang may be the first on another one. NoCompiler if
    there is none, and on another system than Linux.
    """
    if sys.platform != "linux":
        raise NoCompiler(
            "shaders are simulated on Linux only; on a Mac torch.mps.compile_shader runs them for real"
        )

    if asked == "zig":
        return _find_zig()
    if asked:
        return _find_named(asked)

    # the newest first; `clang++` alone is whichever version the system has chosen
    names = [f"clang++-{version}" for version in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    for name in (*names, "clang++"):
        if shutil.which(name) and (compiler := _clang([name])):
            return compiler
    return _find_zig()


def _find_named(asked: str) -> Compiler:
    """Return the clang whose command METALSIM_CXX is. NoCompiler, which names the variable, if it is none."""
    way_out = (
        f"name the command of clang++ {OLDEST_CLANG} or newer, or `zig`, or unset the variable"
    )
    try:
        command = shlex.split(asked)
    except ValueError as error:
        raise NoCompiler(f"METALSIM_CXX={asked} is no command ({error}): {way_out}.") from None

    compiler = _clang(command) if command else None  # of blanks alone there is no word
    if compiler is None:
        raise NoCompiler(
            f"METALSIM_CXX={asked} is not clang++ {OLDEST_CLANG} or newer, or does not start: {way_out}."
        )
    return compiler


def _find_zig() -> Compiler:
    """Return the compiler in the package ziglang."""
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        raise _no_compiler("There is no compiler for Metal shaders.")
    command = (str(Path(package.origin).with_name("zig")), "c++")
    return Compiler(command, "zig", "ziglang " + importlib.metadata.version("ziglang"))


def _no_compiler(reason: str) -> NoCompiler:
    """Return the error for a machine without a compiler, with what to install."""
    return NoCompiler(
        f"{reason} Install one: `pip install ziglang` needs no administrator; or clang++ {OLDEST_CLANG} or newer "
        f"(Debian, Ubuntu: clang-{OLDEST_CLANG} libclang-rt-{OLDEST_CLANG}-dev), which also checks kernels for races."
    )


def _clang(command: list[str]) -> Compiler | None:
    """Return the compiler of a command; None if it is no clang that is new enough."""
    path = shutil.which(command[0])
    if path is None:
        return None

    printed = _output([*command, "--version"])
    version = re.search(r"clang version (\d+)", printed)
    if not version or int(version[1]) < OLDEST_CLANG:
        return None

    return Compiler(tuple(command), "clang", printed.splitlines()[0] + " ".join(command[1:]))


def _output(command: list[str]) -> str:
    """Return what a command prints; nothing if it cannot be run, or does not end in `MOST_SECONDS`."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
