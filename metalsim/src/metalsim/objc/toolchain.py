"""The compiler and the run time that Objective-C++ takes on Linux: clang++ 19 or newer, and GCC's libobjc."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from metalsim import building
from metalsim.errors import SimulationError

HERE = Path(__file__).resolve().parent
INCLUDE, RUNTIME = HERE / "include", HERE / "runtime"
WITHOUT = "The kernel itself runs without: torch.mps.compile_shader takes the same Metal source"


@dataclass(frozen=True)
class Toolchain:
    """How Objective-C++ is compiled and linked."""

    compiler: tuple[str, ...]
    """clang++, with its options if METALSIM_CXX names some."""
    gcc: Path
    """GCC's folder, which has libobjc and the headers of its run time."""
    identity: str
    """The version of the compiler, as it gives it."""

    @property
    def cflags(self) -> list[str]:
        """Options to compile with. A selector that is not declared is an error, on a Mac it is a warning.

        @try is an error too: this run time's exceptions and those of C++ cannot pass through the same functions.
        """
        language = ["-fblocks", "-fobjc-runtime=gcc", "-fconstant-string-class=NSConstantString"]
        language += ["-fno-objc-exceptions", "-Werror=objc-method-access"]
        return [*language, f"-I{shlex.quote(str(INCLUDE))}", f"-idirafter {shlex.quote(str(self.gcc / 'include'))}"]


def find() -> Toolchain:
    """The tools of this machine; SimulationError with what to install."""
    return _find(os.environ.get("METALSIM_CXX", ""), os.environ.get("PATH", ""))


@functools.lru_cache
def _find(_asked: str, _path: str) -> Toolchain:
    from metalsim.shader import compiler

    try:
        shaders = compiler.find_compiler()
    except compiler.NoCompiler:
        shaders = None
    if shaders is None or shaders.kind != "clang":
        raise _missing("clang++ 19 or newer", "clang-19")
    library = _file(shaders.command, "libobjc.so")
    if library is None:
        # libobjc has to be that of the GCC whose libraries clang uses
        gcc = _file(shaders.command, "crtbegin.o")
        raise _missing("GCC's run time for Objective-C", f"libobjc-{gcc.parent.name if gcc else 12}-dev")
    return Toolchain(shaders.command, library.parent, shaders.identity)


def _file(compiler: tuple[str, ...], name: str) -> Path | None:
    """Where clang finds a file of GCC's, or None."""
    printed = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, timeout=60).stdout
    path = Path(printed.strip())
    return path.parent.resolve() / name if path.is_absolute() and path.exists() else None


def _missing(what: str, package: str) -> SimulationError:
    return SimulationError(
        f"Objective-C++ (.mm) needs {what} on Linux, which is not here: install it (Debian, Ubuntu: "
        f"`apt-get install {package}`) and restart Python. {WITHOUT}"
    )


def built_runtime(tools: Toolchain) -> Path:
    """Foundation and Metal as a shared library, built if it is not there."""
    sources = [RUNTIME / "foundation.mm", RUNTIME / "metal.mm", RUNTIME / "blocks.cpp"]
    headers = [*RUNTIME.glob("*.h"), *INCLUDE.rglob("*.h"), building.SOURCES / "metal.h"]
    name = f"objc-{building.key(tools.identity, str(tools.gcc), files=[*sources, *headers])}"

    def build(folder: Path) -> None:
        out = folder / "libmetalsim_objc.so"
        options = ["-std=c++20", "-O1", "-fPIC", "-shared", *shlex.split(" ".join(tools.cflags))]
        options += [f"-I{building.SOURCES}", f"-ffile-prefix-map={HERE}=metalsim/objc"]
        command = [*tools.compiler, *options, *map(str, sources), "-lobjc", "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SimulationError(
                f"Foundation and Metal could not be built with {tools.identity} and {tools.gcc / 'libobjc.so'}:\n"
                f"{done.stderr}"
            )

    return building.built_once(name, "libmetalsim_objc.so", build)
