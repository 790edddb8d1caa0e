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
        language = ["-fblocks", "-fobjc-runtime=gcc", "-fconstant-string-class=NSConstantString"]
        language += [
            "-fno-objc-exceptions",
            "-Werror=objc-method-access",
            "-fno-sanitize=undefined",
            "-nostdinc++",
        ]
        done = subprocess.run(
            [self.gxx, "-x", "c++", "-E", "-v", "/dev/null"], capture_output=True, text=True
        )
        folders = re.findall(r"^ (/.*/c\+\+/.*)$", done.stderr, re.M)
        library = [f"-I{shlex.quote(folder)}" for folder in folders]
        return [*language, *library, f"-I{shlex.quote(str(INCLUDE))}"]


def find() -> Toolchain:
    """The tools of this machine; SimulationError with what to install."""
    from metalsim.shader import compiler

    try:
        clang = compiler.find_compiler()
    except compiler.NoCompiler as missing:
        raise SimulationError(
            f"Objective-C++ (.mm) needs the compiler for shaders. {missing}"
        ) from None
    path, version = building.compiler()
    any_processor = (
        ("-march=x86_64",) if clang.kind == "zig" else ()
    )  # else it compiles for this very one
    return Toolchain((*clang.command, *any_processor), path, f"{clang.identity}, {version}")


def built_runtime(tools: Toolchain) -> Path:
    """Foundation and Metal as a shared library, built if it is not there."""
    headers = [*RUNTIME.glob("*.h"), *INCLUDE.rglob("*.h"), building.SOURCES / "metal.h"]
    objective = [
        RUNTIME / "foundation.mm",
        RUNTIME / "metal.mm",
    ]  # in the order in which they are loaded
    plain = [RUNTIME / "classes.cpp", RUNTIME / "blocks.cpp"]
    name = (
        f"objc-{building.key(tools.identity, *tools.cflags, files=[*objective, *plain, *headers])}"
    )

    def build(folder: Path) -> None:
        options = [
            "-std=c++20",
            "-O1",
            "-fPIC",
            f"-I{building.SOURCES}",
            f"-ffile-prefix-map={HERE}=metalsim/objc",
        ]
        for source in objective:
            flags = shlex.split(" ".join(tools.cflags))
            _run(
                [
                    *tools.compiler,
                    *options,
                    *flags,
                    "-c",
                    str(source),
                    "-o",
                    f"{folder / source.stem}.o",
                ],
                tools,
            )
        objects = [f"{folder / source.stem}.o" for source in objective]
        library = str(folder / "libmetalsim_objc.so")
        _run([tools.gxx, *options, "-shared", *objects, *map(str, plain), "-o", library], tools)

    return building.build_once(name, "libmetalsim_objc.so", build)


def _run(command: Sequence[str], tools: Toolchain) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SimulationError(
            f"Foundation and Metal could not be built with {tools.identity}:\n{done.stderr}"
        )
