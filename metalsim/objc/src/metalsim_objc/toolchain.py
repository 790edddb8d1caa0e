"""How Objective-C++ is compiled and linked on Linux: by the compiler for shaders, and by g++ with its C++ library."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metalsim import building
from metalsim.errors import SimulationError

HERE = Path(__file__).resolve().parent
INCLUDE, RUNTIME = HERE / "include", HERE / "runtime"
LIBRARY = "libmetalsim_objc.so"
LANGUAGE = (
    *("-fblocks", "-fobjc-runtime=gcc", "-fconstant-string-class=NSConstantString"),
    *(
        "-fno-objc-exceptions",
        "-Werror=objc-method-access",
        "-fno-sanitize=undefined",
        "-nostdinc++",
    ),
)
"""Options for Objective-C++ with this run time, and without the compiler's own C++ library."""
RUNTIME_FLAGS = ("-std=c++20", "-O1", "-fPIC")
"""What Foundation and Metal are compiled with, by either compiler."""
LINK_FLAGS = ("-shared",)
"""And what they are linked with, beside `RUNTIME_FLAGS`."""


@dataclass(frozen=True)
class Toolchain:
    """A clang that compiles, and the g++ whose C++ library is PyTorch's, which links."""

    compiler: tuple[str, ...]
    gxx: str
    identity: str
    """The versions of both, as they give them."""

    @functools.cached_property
    def cflags(self) -> list[str]:
        """Options to compile with. A selector that is not declared is an error, on a Mac it is a warning.

        @try is an error too: this run time's exceptions and those of C++ cannot pass through the same functions.
        """
        ask = [self.gxx, "-x", "c++", "-E", "-v", "/dev/null"]
        told = subprocess.run(ask, capture_output=True, text=True).stderr
        folders = [*re.findall(r"^ (/.*/c\+\+/.*)$", told, re.M), str(INCLUDE)]
        return [*LANGUAGE, *(f"-I{shlex.quote(folder)}" for folder in folders)]


def find() -> Toolchain:
    """Return this machine's tools: the clang of shaders, which knows Objective-C++, and g++, for PyTorch's C++ library.

    SimulationError, with what to install, where one is missing.
    """
    from metalsim.shader import compiler

    try:
        clang = compiler.find_compiler()
    except compiler.NoCompiler as missing:
        raise SimulationError(
            f"Objective-C++ (.mm) needs the compiler for shaders. {missing}"
        ) from None

    path, version = building.compiler()
    command = list(clang.command)
    if clang.kind == "zig":
        # else zig compiles for this very processor, and what is kept may be used on another one; clang does not
        command.append("-march=x86_64")
    return Toolchain(tuple(command), path, f"{clang.identity}, {version}")


def build_runtime(tools: Toolchain) -> Path:
    """Return Foundation and Metal as a shared library, built if it is not there.

    SimulationError, with what the tools said, if it cannot be built.
    """
    headers = [*RUNTIME.glob("*.h"), *INCLUDE.rglob("*.h"), building.SOURCES / "metal.h"]
    # in the order in which they are loaded
    objective = [RUNTIME / "foundation.mm", RUNTIME / "metal.mm"]
    plain = [RUNTIME / "classes.cpp", RUNTIME / "blocks.cpp"]
    commands = (*tools.compiler, tools.gxx, *tools.cflags, *RUNTIME_FLAGS, *LINK_FLAGS)
    key = building.key(tools.identity, *commands, files=[*objective, *plain, *headers])

    def build(folder: Path) -> None:
        options = [
            *RUNTIME_FLAGS,
            f"-I{building.SOURCES}",
            # no folder of this machine in what is built
            f"-ffile-prefix-map={HERE}=metalsim_objc",
        ]
        # they are quoted for torch, which writes them into a file of commands for the shell
        flags = [*options, *shlex.split(" ".join(tools.cflags))]
        objects = []
        for source in objective:
            compiled = str(folder / f"{source.stem}.o")
            _run([*tools.compiler, *flags, "-c", str(source), "-o", compiled], tools)
            objects.append(compiled)

        library = str(folder / LIBRARY)
        _run([tools.gxx, *options, *LINK_FLAGS, *objects, *map(str, plain), "-o", library], tools)

    return building.build_once(f"objc-{key}", LIBRARY, build)


def _run(command: Sequence[str], tools: Toolchain) -> None:
    """Run one of the tools. SimulationError with what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SimulationError(
            f"Foundation and Metal could not be built with {tools.identity}:\n{done.stderr}"
        )
