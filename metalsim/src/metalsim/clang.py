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
        folder = Path(_output([*self.command, "-print-resource-dir"]).strip())
        if any(folder.glob("lib/**/*clang_rt.asan*")):
            return None
        return f"{self.command[0]} has no sanitizer libraries (Debian, Ubuntu: libclang-rt-19-dev)"

    @property
    def options(self) -> tuple[str, ...]:
        """The target: x86-64-v3, elsewhere the architecture's own minimum."""
        if platform.machine() == "x86_64":
            return ("-march=x86-64-v3" if self.kind == "clang" else "-march=x86_64_v3",)
        return () if self.kind == "clang" else ("-mcpu=baseline",)

    def tool(self, name: str) -> str | None:
        """Return a program of the same LLVM, such as llvm-symbolizer; None where there is none."""
        called = self.command[0]
        clang = Path(os.path.realpath(shutil.which(called) or called))
        beside = clang.with_name(name)
        return str(beside) if beside.exists() else shutil.which(name)


def find_compiler() -> Compiler:
    """Return the compiler for shaders.

    The variable METALSIM_CXX names another one: the command of a clang, or `zig` for the ziglang package. NoCompiler if
    there is none.
    """
    return _find_compiler(os.environ.get("METALSIM_CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache
def _find_compiler(asked: str, _path: str) -> Compiler:
    """Find the compiler; `asked` is the variable's value, `_path` where programs are looked for."""
    if sys.platform != "linux":
        raise NoCompiler(
            "shaders are simulated on Linux only; on a Mac torch.mps.compile_shader runs them for real"
        )

    if asked == "zig":
        return _find_zig()
    if asked:
        compiler = _clang(shlex.split(asked))
        if compiler is None:
            raise _no_compiler(f"METALSIM_CXX={asked} is not clang++ {OLDEST_CLANG} or newer.")
        return compiler

    names = [f"clang++-{version}" for version in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    for name in (*names, "clang++"):
        if shutil.which(name) and (compiler := _clang([name])):
            return compiler
    return _find_zig()


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
    """Return what a command prints; nothing if it cannot be run."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120
        ).stdout
    except OSError:
        return ""
